"""A history of norms: falling to nothing, rising out of bounds, or neither. Ratios decide, never a level.

A run that converges lets its norm fall too, by one or two orders of magnitude over its whole length, so a slow fall of
that size is no finding. A fall or rise counts when it is large (two decades), or when it is fast: a decade or more at
a rate that no converging run keeps up, half as large again at every step, and still going at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gradient_flow.diagnosis.robust import median_slope
from gradient_flow.diagnosis.words import compared, plain, times

LARGE_CHANGE: Final = 2.0
"""Decades between the ends of a history that count whatever the pace."""
FAST_CHANGE: Final = 1.0
"""Decades that count when reached at `FAST_RATE`."""
FAST_RATE: Final = math.log10(1.5)
"""Decades per step from which on a change is fast."""
_TAIL: Final = 3
JUMP: Final = 1.0
"""Decades above everything before it that make the last norm a spike."""


@dataclass(frozen=True)
class NormTrend:
    """What a history of norms shows."""

    status: str
    """`vanishing`, `exploding`, `stable`, `nan` or `insufficient_data`."""
    slope: float
    """Decades per step (median of all pairwise slopes); NaN where there are no two positive norms."""
    change: float
    """Decades from the start to the end; -inf when the norm falls to exactly zero."""
    indices: tuple[int, ...]
    """The entries that made the case."""
    message: str


def norm_trend(norms: Sequence[float]) -> NormTrend:
    """Classify a history of norms in the order of time."""
    bad = tuple(i for i, norm in enumerate(norms) if not math.isfinite(norm))
    if bad:
        what = "NaN" if math.isnan(norms[bad[0]]) else "infinite"
        many = f" ({len(bad)} entries in all)" if len(bad) > 1 else ""
        message = f"The norm is {what} at entry {bad[0]}{many}. Look at what happened just before."
        return NormTrend("nan", math.nan, math.nan, bad, message)
    if len(norms) < 2:
        message = f"A trend needs at least two norms, got {len(norms)}."
        return NormTrend("insufficient_data", math.nan, math.nan, (), message)

    positive = [i for i, norm in enumerate(norms) if norm > 0]
    if not positive:
        indices = tuple(range(len(norms)))
        return NormTrend("vanishing", math.nan, -math.inf, indices, "Every norm is exactly zero: no gradient arrives.")
    start = positive[0]
    run = norms[start:]  # leading zeros are a late start, not a fall
    if len(run) < 2:
        message = "Only the last norm is above zero: there is no trend yet."
        return NormTrend("insufficient_data", math.nan, math.nan, (), message)
    window = max(1, len(run) // 5)
    first, last = median(run[:window]), median(run[-window:])
    if last == 0:
        since = start + max(i for i, norm in enumerate(run) if norm > 0) + 1
        message = f"The norm falls from {plain(first)} to exactly zero at entry {since}."
        return NormTrend("vanishing", math.nan, -math.inf, tuple(range(since, len(norms))), message)

    points = [(i, math.log10(norms[i])) for i in positive]
    slope, closing_slope = median_slope(points), median_slope(points[len(points) // 2 :])
    change = math.log10(last / first) if first > 0 else math.inf
    span = f"from {plain(first)} to {plain(last)}"
    if _counts(change, slope, closing_slope):
        rising = change > 0
        indices = _beyond(norms, first, 1 if rising else -1, start)
        status, word = ("exploding", "rises") if rising else ("vanishing", "falls")
        message = f"The norm {word} {span}: {compared(10**change, 2)}, since entry {indices[0]}."
        return NormTrend(status, slope, change, indices, message)
    late = _late_turn(norms, run, start)
    if late is not None:
        return NormTrend(late[0], slope, change, late[1], late[2])
    before = max(run[:-1])
    if run[-1] > 0 and before > 0 and math.log10(run[-1] / before) >= JUMP:
        message = f"The last norm, {plain(run[-1])}, is {times(run[-1] / before)} the largest before it."
        return NormTrend("exploding", slope, change, (len(norms) - 1,), message)
    moving = f"moves {span}" if abs(change) >= 0.05 else f"stays near {plain(last)}"
    return NormTrend("stable", slope, change, (), f"The norm {moving}: no sign of vanishing or exploding.")


def _late_turn(norms: Sequence[float], run: Sequence[float], start: int) -> tuple[str, tuple[int, ...], str] | None:
    """A turn in the last entries, too late for the medians of the ends: the closing three all far from all before."""
    if len(run) < 8:
        return None
    base, tail = median(run[:-_TAIL]), run[-_TAIL:]
    if base <= 0:
        return None
    for status, word, sign in (("exploding", "rises", 1), ("vanishing", "falls", -1)):
        if all(sign * (norm - base * 10 ** (sign * LARGE_CHANGE)) >= 0 for norm in tail):
            indices = _beyond(norms, base, sign, start)
            message = f"The norm {word} from {plain(base)} to {plain(run[-1])} at the end, since entry {indices[0]}."
            return status, indices, message
    return None


def _counts(change: float, slope: float, closing_slope: float) -> bool:
    direction = math.copysign(1.0, change)
    closing_slope = slope if math.isnan(closing_slope) else closing_slope
    fast = min(direction * slope, direction * closing_slope) >= FAST_RATE
    return abs(change) >= LARGE_CHANGE or (abs(change) >= FAST_CHANGE and fast)


def _beyond(norms: Sequence[float], first: float, sign: int, start: int) -> tuple[int, ...]:
    """The closing stretch of entries that lie beyond a third of a decade of where the history began."""
    limit = 10 ** (sign / 3)
    at = len(norms)
    while at > start + 1 and sign * (norms[at - 1] - first * limit) > 0:
        at -= 1
    return tuple(range(at, len(norms))) or (len(norms) - 1,)
