"""Whether the gradients of one step are healthy, by what came before them. Scale-free once there is a past.

A norm is compared with the median of the logarithms of the last norms, in robust deviations. The deviation has a floor:
at convergence all norms are nearly equal, and without it the next breath of noise would be an explosion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.robust import FLOOR, SPIKE, loss_change, median_of, middle_and_spread, percentile_of
from gradient_flow.diagnosis.trend import LARGE_CHANGE
from gradient_flow.diagnosis.words import plain

WINDOW: Final = 100
EARLY_FLOOR: Final = 0.5
"""Least deviation of the logarithm of norms while fewer than 16 are known: twenty times is then the least spike."""
_FEW: Final = 3
"""Norms without which nothing is compared."""
_SETTLED: Final = 16
"""Norms with which the past is known well."""
DRIFT: Final = LARGE_CHANGE * math.log(10)
"""A norm that moves this far across the window drifts."""
TINY_NORM: Final = 1e-7
"""Norms that stay below this are vanishing, unless the loss has nothing left to give."""
HUGE_NORM: Final = 1e3
"""A level that counts only as long as there is no past to compare with."""
NO_LOSS: Final = 1e-6
"""A loss of this magnitude counts as 0."""
_LEAST_FALL: Final = 0.05
"""A loss that lost less of its first value than this has not fallen."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what was seen, with its numbers, and what to do."""

    kind: str
    """`nonfinite`, `explosion`, `vanishing`, `unusual` or `unsupported`."""
    warning: str
    recommendation: str


@dataclass(frozen=True)
class StepNumbers:
    """What a step is judged by."""

    step: int
    norm: float
    nan: int = 0
    inf: int = 0
    count: int = 0
    bad_layers: Sequence[str] = ()
    culprit: str | None = None
    """The layer that accounts for most of a rise of the norm."""
    zero_layers: int = 0
    layers: int = 0
    max_grad_norm: float | None = None
    """The limit in force, if steps are clipped by norm."""


@dataclass
class LossSoFar:
    """Where the loss of a run began and how far down it came; what a window of the last losses forgets."""

    first: list[float] = field(default_factory=list)
    lowest: float = math.inf

    def add(self, loss: float) -> None:
        """One more finite loss."""
        if len(self.first) < _SETTLED:
            self.first.append(loss)
        self.lowest = min(self.lowest, loss)

    def at_its_floor(self, losses: Sequence[float]) -> bool:
        """Whether the last losses are about 0, or well below the first ones and near the lowest."""
        last = list(losses)[-_SETTLED:]
        if _is_nothing(last):
            return True
        if len(self.first) < _FEW or len(last) < _FEW:
            return False
        # The spread of the last losses is a floor of its own: noise is no fall.
        start, (level, spread) = median_of(self.first), middle_and_spread(last, 0.0)
        fell = start - level > max(_LEAST_FALL * abs(start), spread)
        return fell and median_of(last[-_FEW:]) <= self.lowest + 0.1 * (start - self.lowest)


def _is_nothing(losses: Sequence[float]) -> bool:
    """Whether the loss is known, and about 0."""
    last = list(losses)[-_SETTLED:]
    return bool(last) and all(abs(loss) < NO_LOSS for loss in last)


def deviations(norm: float, past: Sequence[float]) -> float:
    """Robust deviations of a norm above the past ones, in logarithms; NaN where unknown."""
    positive = [value for value in past if value > 0]
    if len(positive) < _FEW or not 0 < norm < math.inf:
        return math.nan
    logs = [math.log(value) for value in positive]
    middle, spread = middle_and_spread(logs, FLOOR if len(positive) >= _SETTLED else EARLY_FLOOR)
    return (math.log(norm) - middle) / spread


def judge_step(
    now: StepNumbers,
    past: Sequence[float],
    losses: Sequence[float] = (),
    *,
    loss_so_far: LossSoFar | None = None,
    widespread: float = 1e-6,
) -> list[Finding]:
    """Everything that is wrong with a step. `past` holds finite norms before it, the newest last; so do `losses`."""
    if now.nan or now.inf:
        return [_nonfinite(now, widespread)]
    past = list(past)[-WINDOW:]
    if loss_so_far is None:
        loss_so_far = LossSoFar()
        for loss in losses:
            loss_so_far.add(loss)
    converged = now.norm < TINY_NORM and loss_so_far.at_its_floor(losses)
    spike, drift = _spike(now, past), None if converged else _drift(now, past, losses)
    level = None if spike or drift else _level(now, past, losses) or (None if converged else _tiny(now, past, losses))
    return [finding for finding in (spike, drift, level, _dead_layers(now)) if finding is not None]


def report(findings: Sequence[Finding]) -> dict[str, Any]:
    """The documented dictionary."""
    return {
        "healthy": not findings,
        "warnings": [finding.warning for finding in findings],
        "recommendations": [finding.recommendation for finding in findings],
        "issues": [finding.kind for finding in findings],
    }


def _where(now: StepNumbers) -> str:
    return f"; step {now.step}" + (f"; layer `{now.culprit}`" if now.culprit else "")


def _nonfinite(now: StepNumbers, widespread: float) -> Finding:
    layers = ", ".join(f"`{layer}`" for layer in now.bad_layers[:3])
    more = f" and {len(now.bad_layers) - 3} more" if len(now.bad_layers) > 3 else ""
    share = (now.nan + now.inf) / max(now.count, 1)
    kind = "widespread" if share > widespread else "isolated"
    return Finding(
        "nonfinite",
        f"Non-finite gradients: {now.nan} NaN and {now.inf} Inf in {now.count} elements ({kind}) of {layers}{more}; "
        f"step {now.step}",
        "Check the model for numerical issues: gf.find_nonfinite(step_fn, model) names the operation that produced "
        "them. Until then skip such steps with nonfinite='skip'.",
    )


def _spike(now: StepNumbers, past: Sequence[float]) -> Finding | None:
    z = deviations(now.norm, past)
    if not abs(z) > SPIKE:
        return None
    side = "above" if z > 0 else "below"
    evidence = (
        f"norm {plain(now.norm)} is {abs(z):.0f} robust deviations {side} the last {len(past)} steps{_where(now)}"
    )
    if z < 0:
        recommendation = f"Look at the batch and the loss of this step: {evidence}."
        return Finding("unusual", f"Unusual pattern, sudden drop: {evidence}", recommendation)
    limit = percentile_of(past, 90)
    return Finding(
        "explosion",
        f"Gradient explosion: {evidence}",
        f"Reduce the learning rate if this recurs, and clip at {plain(limit)} (which affects 10% of the last "
        f"{len(past)} steps): {evidence}.",
    )


def _drift(now: StepNumbers, past: Sequence[float], losses: Sequence[float]) -> Finding | None:
    positive = [value for value in past if value > 0]
    if len(positive) < _SETTLED or not now.norm > 0:
        return None
    edge = max(len(positive) // 5, 3)
    first, last = median_of(positive[:edge]), median_of([*positive[-edge + 1 :], now.norm])
    change = math.log(last / first)
    if abs(change) < DRIFT or (change < 0 and _converging(losses)):
        return None
    evidence = f"norm went from {plain(first)} to {plain(last)} over the last {len(positive) + 1} steps{_where(now)}"
    if change > 0:
        return Finding("explosion", f"Gradient explosion: {evidence}", f"Reduce the learning rate: {evidence}.")
    return Finding(
        "vanishing",
        f"Vanishing gradients: {evidence}, and the loss did not fall with it",
        f"Increase the learning rate, or check activations and initialisation for saturation: {evidence}.",
    )


def _converging(losses: Sequence[float]) -> bool:
    """Whether the loss fell as well: then a falling norm is success."""
    return loss_change(losses, _SETTLED) < 0.5


def _level(now: StepNumbers, past: Sequence[float], losses: Sequence[float]) -> Finding | None:
    """Absolute levels: zero counts unless the loss is 0 too, a large one only while there is no past."""
    if now.layers and now.norm == 0 and not _is_nothing(losses):
        return Finding(
            "vanishing",
            f"Vanishing gradients: every gradient is exactly zero; step {now.step}",
            "Check that the loss depends on the parameters (detach, dead units, an all-zero mask): no learning rate "
            "helps.",
        )
    if len(past) < _SETTLED and now.norm > HUGE_NORM * max(now.max_grad_norm or 1.0, 1.0):
        return Finding(
            "explosion",
            f"Gradient explosion: norm {plain(now.norm)} at step {now.step}, with no earlier steps to compare it with",
            "Reduce the learning rate, or average the loss instead of summing it: norm "
            f"{plain(now.norm)}{_where(now)}.",
        )
    return None


def _tiny(now: StepNumbers, past: Sequence[float], losses: Sequence[float]) -> Finding | None:
    """Norms that stay next to nothing, with a loss that is not known to be at its floor."""
    recent = [*past[-_SETTLED:], now.norm]
    if not 0 < now.norm < TINY_NORM or (len(past) >= _SETTLED and median_of(recent) >= TINY_NORM):
        return None
    steps = f", like most of the last {_SETTLED} steps" if len(past) >= _SETTLED else ""
    loss = "the loss is not at its floor" if len(losses) >= _FEW else "the loss is not known"
    advice = "Increase the learning rate or the scale of the loss, or check the initialisation"
    known = "" if len(losses) >= _FEW else " Pass the loss, so that convergence can be ruled out."
    return Finding(
        "vanishing",
        f"Vanishing gradients: norm {plain(now.norm)} is below {plain(TINY_NORM)}{steps}, and {loss}{_where(now)}",
        f"{advice}: norm {plain(now.norm)}.{known}",
    )


def _dead_layers(now: StepNumbers) -> Finding | None:
    if not now.layers or now.norm == 0 or now.zero_layers * 2 <= now.layers:
        return None
    return Finding(
        "unusual",
        f"Unusual pattern: {now.zero_layers} of {now.layers} gradients are exactly zero; step {now.step}",
        "Check for dead units, a detached part of the model, or parameters that this batch does not use.",
    )


def bad_buffers_finding(step: int, bad: Mapping[str, int], done: str) -> Finding:
    """Buffers that hold NaN or Inf, such as running statistics: training may not notice, evaluation does."""
    shown = ", ".join(f"`{name}` ({count} elements)" for name, count in list(bad.items())[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    advice = (
        "Evaluation uses these buffers. Reset them (`reset_running_stats()` for batch norm). With nonfinite='skip' a "
        "bad step is undone for buffers too."
        if done.startswith("left")
        else "Check the batch. The buffers were restored to their values after the last good step."
    )
    return Finding("nonfinite", f"Non-finite buffers: {shown}{more}, {done}; step {step}", advice)


def blame(names: Sequence[str], sum_sq: NDArray[np.float64], usual: NDArray[np.float64] | None) -> str | None:
    """The layer whose sum of squares rises most above what is usual for it; the largest, where that is not known."""
    if not len(names):
        return None
    return names[int(np.argmax(sum_sq if usual is None else sum_sq - usual))]
