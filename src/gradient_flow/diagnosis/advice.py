"""Advice with a knob, a direction and, where one follows from the evidence, a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gradient_flow.diagnosis.treatment import Advice, Treatment
from gradient_flow.diagnosis.words import percent, plain

TARGET_RATIO: Final = 1e-3
"""An update that moves a weight by a thousandth of its size is the usual rule of thumb."""
LARGEST_RATIO: Final = 1e-2
_DIVERGED: Final = 30.0
"""An update ratio beyond this tells how far a run has diverged, not which rate it would bear."""
_HIGHEST_RATE: Final = 10.0
"""No optimizer runs with more: a run that needs it has a loss that is scaled down."""
_HIGHEST_LIMIT: Final = 1e3
"""A limit on the norm beyond this says that the loss is on another scale, not where to clip."""

RAISE_CLIP: Final = "Raise the clip limit to about the usual norm, so that it catches spikes only."
CLIPPED_SCALED: Final = "clip_grad_norm_ is called before scaler.unscale_."
UNSCALE_FIRST: Final = "Call scaler.unscale_(optimizer) before clip_grad_norm_."


def rescale_weights(layers: Sequence[str], gain_per_layer: float) -> str:
    """Which factor on the initial weights makes the gradient level. `gain_per_layer` is the factor seen per layer."""
    factor = 1 / gain_per_layer
    which = f"these {len(layers)} layers ({_some(layers)})" if len(layers) > 1 else f"`{layers[0]}`"
    return Advice(
        f"Scale the initial weights of {which} by {plain(factor)}: the gradient changes by a factor of "
        f"{plain(gain_per_layer)} per layer, and this offsets it.",
        Treatment("rescale", {"factors": dict.fromkeys(layers, factor)}),
    )


def rescale_one(layer: str, gain: float, usual: float) -> str:
    """For one layer among others that are fine."""
    return Advice(
        f"Scale the weights of `{layer}` by {plain(usual / gain)}: the gradient changes by a factor of {plain(gain)} "
        f"there, against {plain(usual)} in the other layers.",
        Treatment("rescale", {"factors": {layer: usual / gain}}),
    )


def learning_rate_at_most(rate: float | None, ratio: float) -> str:
    """From the update-to-weight ratio that was seen."""
    if rate is None or not math.isfinite(ratio) or ratio <= 0:
        return "Lower the learning rate by factors of 10 until the update ratio is near 0.001."
    if ratio > _DIVERGED:
        return _to_rate(
            f"Lower the learning rate a hundredfold, from {plain(rate)} to {_round(rate / 100)}, and warm it up.",
            rate / 100,
            rate,
        )
    return _to_rate(
        f"Lower the learning rate from {plain(rate)} to {_round(rate * LARGEST_RATIO / ratio)} or less: the update "
        f"ratio is {plain(ratio, 2)}, and stable runs stay below {LARGEST_RATIO:g}.",
        rate * LARGEST_RATIO / ratio,
        rate,
    )


def lower_learning_rate(rate: float | None, ratio: float | None) -> str:
    """The same words wherever a rate is too high; by the update ratio where that is known and large."""
    if ratio is not None and ratio > LARGEST_RATIO:
        return learning_rate_at_most(rate, ratio)
    if rate is None:
        return "Lower the learning rate by a factor of 3."
    return _to_rate(f"Lower the learning rate by a factor of 3, to {_round(rate / 3)}.", rate / 3, rate)


def learning_rate_up_to(rate: float | None, ratio: float) -> str:
    """From an update-to-weight ratio that is far too small."""
    if rate is None or not ratio > 0:
        return "Raise the learning rate until the update ratio is near 0.001."
    if rate * TARGET_RATIO / ratio > _HIGHEST_RATE:
        return (
            "Remove the factor that scales the loss down, or use Adam, which is insensitive to it: the update ratio is "
            f"{plain(ratio, 2)}, {TARGET_RATIO:g} is usual, and no sensible learning rate reaches that with this loss."
        )
    return _to_rate(
        f"Raise the learning rate from {plain(rate)} by factors of 10, up to {_round(rate * TARGET_RATIO / ratio)}: "
        f"the update ratio is {plain(ratio, 2)}, and {TARGET_RATIO:g} is usual.",
        rate * TARGET_RATIO / ratio,
        rate,
    )


def clip_limit(norms: Sequence[float], share: float) -> float:
    """A limit on the norm that touches the given share of the steps that were seen."""
    return float(np.percentile(norms, 100 * (1 - share)))


def clip_at(norms: Sequence[float], share: float = 0.1) -> str:
    """Where to clip, so that the given share of the steps is touched."""
    limit = clip_limit(norms, share)
    if limit > _HIGHEST_LIMIT:
        return (
            f"Clip the norm at its usual level, but first bring that level ({plain(float(np.median(norms)), 2)}) "
            "down: average the loss or standardise the targets."
        )
    return Advice(
        f"Clip the norm at {plain(limit)}: that affects {percent(share)} of your steps.",
        Treatment("clip", {"norm": limit}),
    )


def by_itself(text: str, kind: str) -> str:
    """Advice whose treatment takes its numbers from the model: which layers, which activations, which means."""
    return Advice(text, Treatment(kind))


def initialise(text: str, layers: Sequence[str], how: str = "he") -> str:
    """Advice to reinitialise the weights of layers."""
    return Advice(text, Treatment("reinitialise", {"layers": list(layers), "how": how}))


def _to_rate(text: str, rate: float, now: float) -> str:
    """Advice of a rate, rounded down to one digit as the text says it."""
    rounded = _down(rate)
    return Advice(text, Treatment("learning_rate", {"factor": rounded / now, "rate": rounded}) if now > 0 else None)


def _some(layers: Sequence[str]) -> str:
    shown = [f"`{layer}`" for layer in (layers if len(layers) <= 3 else [layers[0], layers[1], layers[-1]])]
    return ", ".join(shown) if len(layers) <= 3 else f"{shown[0]}, {shown[1]} … {shown[2]}"


def _round(value: float) -> str:
    return plain(_down(value), 1)


def _down(value: float) -> float:
    """One digit, downwards: a bound that is rounded up would not be one.

    >>> _down(0.0299), _down(9.99)
    (0.02, 9.0)
    """
    if not 0 < value < math.inf:
        return value
    power = math.floor(math.log10(value))
    return float(f"{math.floor(value / 10**power + 1e-9)}e{power}")
