"""Medians where means would let one outlier decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

import numpy as np

MAD_TO_SIGMA: Final = 1.4826
"""Median absolute deviation times this is the standard deviation, for normal noise."""
SPIKE: Final = 6.0
"""Robust deviations of a logarithm from which on a norm stands out."""
FLOOR: Final = 0.1
"""Least deviation, in nats: at convergence all norms are alike and noise would count as spikes."""
_EFFICIENCY: Final = 0.955
"""Variance of the least-squares slope over that of the Theil-Sen slope, for normal noise (Sen, 1968)."""
_MOST_POINTS: Final = 200

Points = Sequence[tuple[float, float]]


def middle_and_spread(logarithms: Sequence[float], floor: float = FLOOR) -> tuple[float, float]:
    """The median, and the robust deviation, at least `floor`."""
    middle = median(logarithms)
    return middle, max(MAD_TO_SIGMA * median(abs(value - middle) for value in logarithms), floor)


class Slope(NamedTuple):
    """A slope and its standard error; NaN where there are too few points."""

    value: float
    error: float


def median_slope(points: Points) -> float:
    """Theil-Sen: the median slope over all pairs of points, thinned out when there are many."""
    if len(points) > _MOST_POINTS:
        stride = len(points) / _MOST_POINTS
        points = [points[int(k * stride)] for k in range(_MOST_POINTS)]
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2)]
    return median(slopes) if slopes else math.nan


def slope_with_error(points: Points) -> Slope:
    """The Theil-Sen slope, with its standard error from the spread of the residuals."""
    value = median_slope(points)
    if len(points) < 3:
        return Slope(value, math.nan)
    x, y = np.array(points, dtype=np.float64).T
    residuals = y - value * x
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(residuals - np.median(residuals))))
    spread = float(np.sqrt(((x - x.mean()) ** 2).sum()))
    small_sample = math.sqrt(len(points) / (len(points) - 2))
    return Slope(value, small_sample * sigma / (spread * math.sqrt(_EFFICIENCY)))


def percentile_of(values: Iterable[float], percentage: float) -> float:
    """The percentile with linear interpolation, as NumPy has it.

    >>> percentile_of([1.0, 2.0, 4.0], 75)
    3.0
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * (percentage / 100)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    share = place - below
    # From the nearer end, so that both ends are met exactly.
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def median_of(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return percentile_of(values, 50)
