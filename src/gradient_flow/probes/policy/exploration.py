"""How much a policy explores: its level now, where it is heading, and what the documented levels call that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.robust import MAD_TO_SIGMA, slope_with_error
from gradient_flow.probes.policy.step import PolicyStep

COLLAPSED: Final = 0.1
"""Normalised entropy below which a policy has stopped exploring."""
NEARLY_COLLAPSED: Final = 0.3
"""Normalised entropy below which little exploration is left."""
GONE: Final = 0.05
"""Normalised entropy that a fall is extrapolated to."""
UNIFORM: Final = 0.98
"""Normalised entropy above which a policy is as good as random."""
TINY_STD: Final = 0.02
"""A standard deviation below this share of half the action range is no exploration."""
FEWEST_STEPS: Final = 6
"""A trend needs as many."""


class CollapseRisk(str, Enum):
    """Risk that exploration ends; compares equal to its text."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"

    def __str__(self) -> str:
        return self.value


class Adequacy(str, Enum):
    """Whether a policy explores enough; compares equal to its text."""

    TOO_LOW = "TOO_LOW"
    ADEQUATE = "ADEQUATE"
    TOO_HIGH = "TOO_HIGH"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A quantity over the steps watched: its level at both ends, and when it reaches its floor at the closing pace."""

    start: float
    level: float
    slope: float | None = None
    """Change per step over the closing half; `None` with too few steps."""
    significant: bool = False
    """Whether the slope is beyond three of its standard errors."""
    steps_to_floor: float | None = None
    """Steps until the floor, if it falls at this pace; `None` if it does not fall."""
    steps: int = 0

    @property
    def collapsing(self) -> bool:
        """Falling, and at the floor within as many steps as were watched: the pace decides, not a level."""
        return self.steps_to_floor is not None and self.steps_to_floor <= self.steps


def trend_of(values: Sequence[float], floor: float, least_drop: float) -> Trend | None:
    """The trend of a history; a fall counts from `least_drop` on. `None` without values."""
    if not values:
        return None
    third = max(1, len(values) // 3)
    start, level = median(values[:third]), median(values[-third:])
    if len(values) < FEWEST_STEPS:
        return Trend(start=start, level=level, steps=len(values))
    slope = slope_with_error(list(enumerate(values))[len(values) // 2 :])
    falls = slope.significant and slope.value < 0 and start - level >= least_drop
    found = Trend(start=start, level=level, slope=slope.value, significant=slope.significant, steps=len(values))
    return replace(found, steps_to_floor=max(0.0, level - floor) / -slope.value) if falls else found


def entropy_trend(steps: Sequence[PolicyStep]) -> Trend | None:
    """Of the normalised entropy."""
    return trend_of([step.entropy for step in steps if step.entropy is not None], GONE, 0.1)


def std_trend(steps: Sequence[PolicyStep]) -> Trend | None:
    """Of the logarithm of the standard deviation, in half action ranges where those are known."""
    stds = [step.std_mean if step.std_relative is None else step.std_relative for step in steps]
    logs = [math.log(max(std, 1e-30)) for std in stds if std is not None]
    return trend_of(logs, math.log(TINY_STD), math.log(2))


def discrete_risk(entropy: float, entropies: Trend) -> CollapseRisk:
    """Nearly certain, or nearly so and falling fast, is high; a fall that will get there, or a low level, medium."""
    steep = entropy < NEARLY_COLLAPSED and entropy < 0.3 * entropies.start and entropies.collapsing
    if entropy < COLLAPSED or steep:
        return CollapseRisk.HIGH
    return CollapseRisk.MEDIUM if entropy < NEARLY_COLLAPSED or entropies.collapsing else CollapseRisk.LOW


def continuous_risk(std: float, stds: Trend, below_threshold: bool) -> CollapseRisk:
    """The same of a standard deviation in half action ranges (or in its own units, when the range is not known)."""
    if std < TINY_STD:
        return CollapseRisk.HIGH
    return CollapseRisk.MEDIUM if below_threshold or stds.collapsing else CollapseRisk.LOW


def worse(risks: Iterable[CollapseRisk | None]) -> CollapseRisk | None:
    """The worst of those that there are."""
    return max((risk for risk in risks if risk is not None), key=list(CollapseRisk).index, default=None)


def adequacy(too_low: Sequence[bool], too_high: Sequence[bool]) -> Adequacy | None:
    """Too low if any part of the policy is, else too high if any is; `None` for a policy without parts."""
    if not too_low:
        return None
    return Adequacy.TOO_LOW if any(too_low) else Adequacy.TOO_HIGH if any(too_high) else Adequacy.ADEQUATE


_NEAR: Final = 0.05
"""A return within so much of the best is as good, as a share of the best or of the way to it."""
FEWEST: Final = 8
"""With fewer returns nothing can be said."""


class ReturnCourse(str, Enum):
    """How a history of returns ends, seen against its own beginning and its best stretch."""

    AT_BEST = "are at their best"
    FELL = "are below their best"
    FLAT = "never rose"
    BETWEEN = "between"

    def __str__(self) -> str:
        return self.value


def return_course(returns: Sequence[float] | None, best_return: float | None = None) -> ReturnCourse | None:
    """How the returns end, in the order of time; `None` for too few of them.

    A policy that has learnt is one whose closing returns are above its opening ones and near its best. Returns that
    were level all along do not tell an optimum from a failure: that takes `best_return`, the most that the task gives.
    Only differences are compared, so any shift and scale of the reward gives the same answer.
    """
    values = [float(value) for value in returns or () if math.isfinite(value)]
    if len(values) < FEWEST:
        return None
    width = max(2, len(values) // 4)
    opening, closing = median(values[:width]), median(values[-width:])
    best = max(median(values[i : i + width]) for i in range(len(values) - width + 1))
    noise = 3 * _error_of_median(values, width)
    if best_return is not None and closing >= best_return - _NEAR * max(best_return - min(values), best_return) - noise:
        return ReturnCourse.AT_BEST
    if closing - opening > noise and best - closing <= max(0.1 * (best - opening), noise):
        return ReturnCourse.AT_BEST if best_return is None else ReturnCourse.BETWEEN
    if best - opening > noise and best - closing > max(0.3 * (best - opening), noise):
        return ReturnCourse.FELL
    return ReturnCourse.BETWEEN if closing - opening > noise else ReturnCourse.FLAT


def _error_of_median(values: Sequence[float], width: int) -> float:
    """Standard error of a median over `width` values, from successive differences, which a trend hardly changes."""
    jumps = [abs(later - earlier) for earlier, later in pairwise(values)]
    sigma = MAD_TO_SIGMA * median(jumps) / math.sqrt(2)
    # Rounding keeps a constant history from looking as if it had risen.
    return max(1.2533 * sigma / math.sqrt(width), 1e-9 * max(map(abs, values)))
