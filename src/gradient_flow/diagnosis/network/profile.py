"""The gradient over depth, along the main path: gains of each part, what they add up to, and where most of it happens.

Everything is in decades (powers of ten) and from ratios alone: a factor on the loss, the width and the batch size
change nothing. Three things lower or raise a norm without harm and are taken out: an average over positions, an input
of another scale that is normalised at once, and a head that starts small, whose own gradient is whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from gradient_flow.diagnosis.network.record import AnalysisRecord, Place

_MOST_AT_ENTRY: Final = 3.0
DOMINANT: Final = 0.5
"""One part with more than this share of the whole change is its place."""


@dataclass(frozen=True)
class Part:
    """What lies between two places of the main path."""

    layer: str
    """The layer that makes the later place from the earlier one."""
    gain: float
    """Decades by which the gradient grows on its way back through it; negative where it shrinks."""
    growth: float
    """Decades by which the values grow on their way forward; 0 across a normalisation."""
    earlier: Place
    later: Place


@dataclass(frozen=True)
class DepthProfile:
    """The parts of one chain, from the first layer to the last hidden one."""

    parts: tuple[Part, ...]
    head: Part
    """The part of the last layer with weights."""
    tail: tuple[Part, ...] = ()
    """What comes after it: a final activation, a temperature."""

    @property
    def gain(self) -> float:
        """Decades from the last hidden place back to the first."""
        return math.fsum(part.gain for part in self.parts)

    @property
    def whole(self) -> tuple[Part, ...]:
        """All parts up to the head."""
        return (*self.parts, self.head)

    @property
    def largest_growth(self) -> tuple[float, int, int]:
        """Largest rise of the values over a stretch of parts: decades, and the parts it runs from and to."""
        best, start, total = (0.0, 0, 0), 0, 0.0
        for index, part in enumerate(self.whole):
            if total <= 0:
                start, total = index, 0.0
            # What weights enlarge forward they enlarge backward too; a bias behind a signal that is gone does not.
            total += min(part.growth, part.gain) if part.growth > 0 else part.growth
            best = max(best, (total, start, index))
        return best

    def culprit(self, sign: int) -> Part | None:
        """The one part that accounts for most of the change, if there is one."""
        if not self.parts:
            return None
        strongest = max(self.parts, key=lambda part: sign * part.gain)
        of_all = math.fsum(max(0.0, sign * part.gain) for part in self.parts)
        # In a stack of two or three layers each has a large share: the others must be much smaller as well.
        others = sorted((sign * part.gain for part in self.parts if part is not strongest), reverse=True)
        alone = not others or sign * strongest.gain > 2 * max(others[0], 0.25)
        return strongest if alone and sign * strongest.gain > DOMINANT * of_all else None

    @property
    def first(self) -> str:
        """The layer nearest to the input."""
        return self.parts[0].earlier.layer

    def layers(self) -> list[str]:
        """Names of the layers, from the input on."""
        return list(dict.fromkeys(part.layer for part in self.parts))


def depth_profiles(record: AnalysisRecord, *, at_first: bool = False) -> list[DepthProfile]:
    """One profile per chain along which a gradient arrives everywhere; `at_first`: of the first watched step alone."""
    profiles = []
    for chain, credits in zip(record.chains, record.averaging, strict=False):
        places = [record.places[index] for index in chain]
        parts = _parts(places, credits, 1 if at_first else None)
        if parts:
            last = max((k for k, part in enumerate(parts) if part.later.own_weights), default=len(parts) - 1)
            profiles.append(DepthProfile(tuple(parts[:last]), parts[last], tuple(parts[last + 1 :])))
    return profiles


def activation_gain(record: AnalysisRecord, layer: str) -> float | None:
    """Decades that the activation behind a layer takes from the gradient, where it can be seen by itself."""
    for profile in depth_profiles(record):
        parts = (*profile.whole, *profile.tail)
        for part, following in zip(parts, [*parts[1:], None], strict=False):
            if part.earlier.own_weights and part.earlier.name == layer and not part.later.own_weights:
                # A factor by hand stands between them: what the activation takes is its input, not what the layer gave.
                if part.later.role == "input" and following is not None and not following.later.own_weights:
                    return following.gain
                return part.gain
    return None


def _parts(places: Sequence[Place], credits: Sequence[float], steps: int | None) -> list[Part]:
    parts: list[Part] = []
    for earlier, later, credit in zip(places, places[1:], credits, strict=False):
        ratios = [
            math.log10(a / b)
            for a, b in zip(earlier.gradient[:steps], later.gradient[:steps], strict=False)
            if a is not None and b is not None and 0 < a < math.inf and 0 < b < math.inf
        ]
        if not ratios:
            parts = []  # blocked or cut here: what comes before it is another rule's matter
            continue
        growth = _decades(later.typical_rms, earlier.typical_rms)
        gain = median(ratios) + credit
        if "Norm" in later.kind and earlier.typical_rms == 0:
            gain = min(gain, 0.0)  # of a state that begins at zero, a norm divides by the root of its eps: 316 times
        parts.append(Part(_maker(earlier, later), gain, growth, earlier, later))
    return _relative_at_entry(parts)


def _relative_at_entry(parts: list[Part]) -> list[Part]:
    """Up to a normalisation right behind the first layer, gains relative to the scale of the values, which is arbitrary
    there: an embedding that starts at 0.02 has a gradient 50 times as large and is none the worse for it."""
    first = next((k for k, part in enumerate(parts) if "Norm" in part.later.kind), None)
    at_entry = first is not None and sum(part.later.own_weights for part in parts[: first + 1]) <= 2
    # Three decades of growth before the first norm on the path are a stack without norms, not a small embedding.
    at_entry = at_entry and math.fsum(part.growth for part in parts[:first]) < _MOST_AT_ENTRY
    adjusted = []
    for k, part in enumerate(parts):
        gain = part.gain - part.growth if at_entry and first is not None and k <= first else part.gain
        adjusted.append(replace(part, gain=gain, growth=0.0 if "Norm" in part.later.kind else part.growth))
    return adjusted


def _maker(earlier: Place, later: Place) -> str:
    """Of two inputs in a row, the module that took the first made the second: a branch that is added by hand."""
    if later.role == "input" and earlier.role == "input":
        return earlier.name
    if not later.name:
        return earlier.layer  # put together by the model itself, which has no path
    return later.layer


def _decades(value: float, reference: float) -> float:
    return math.log10(value / reference) if 0 < value < math.inf and 0 < reference < math.inf else 0.0
