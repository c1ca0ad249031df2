"""Medians and percentiles of short lists, at every step: sorting a hundred numbers is quicker than asking NumPy to."""

from __future__ import annotations

import math
from collections.abc import Iterable


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
