"""What the returns of an agent say about a policy that explores little: it has arrived, or it is stuck."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.robust import MAD_TO_SIGMA

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
