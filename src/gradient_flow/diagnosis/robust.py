"""Medians where means would let one outlier decide."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    return middle, max(MAD_TO_SIGMA * median([abs(value - middle) for value in logarithms]), floor)


def exceeds(value: float, factor: float, others: Collection[float]) -> bool:
    """Whether a value is above `factor` times the median of others, none of them negative.

    >>> exceeds(4.0, 2.0, [1.0, 1.5, 9.0]), exceeds(4.0, 2.0, [1.0, 3.0, 9.0])
    (True, False)
    """
    # Nearly always the least of them settles it, and nothing need be sorted.
    return value > factor * min(others) and value > factor * median(others)


def spikes(norms: Sequence[float], *, window: int | None = None, least: int = 8, tall: float = 1.0) -> list[int]:
    """Which norms stand out: by `SPIKE` robust deviations of their logarithm, and `tall` times the median at least.

    Each is compared with the `window` norms before it that do not stand out themselves, or, without a window, with all
    norms. At least `least` norms are needed to compare with.

    >>> spikes([1.0, 1.1, 0.9, 1.0, 90.0, 1.05, 0.95, 1.0])
    [4]
    >>> spikes([1.0] * 20 + [50.0] + [1.0] * 5, window=64)
    [20]
    """
    known = [(at, math.log(norm)) for at, norm in enumerate(norms) if 0 < norm < math.inf]
    if window is None:
        if len(known) < least:
            return []
        middle, spread = middle_and_spread([value for _, value in known])
        return [at for at, value in known if _stands_out(value, middle, spread, tall)]
    found: list[int] = []
    recent: deque[float] = deque(maxlen=window)
    ordered: list[float] = []  # the same values, sorted: their median costs nothing
    for at, value in known:
        if len(ordered) >= least:
            middle = (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
            # Nearly every norm is within the least deviation: the spread of the others need not be known.
            if value - middle > SPIKE * FLOOR and _stands_out(value, *middle_and_spread(ordered), tall):
                found.append(at)
                continue
        if len(recent) == window:
            del ordered[bisect_left(ordered, recent[0])]
        recent.append(value)
        insort(ordered, value)
    return found


def heights(norms: Sequence[float], at: Sequence[int], window: int) -> list[float]:
    """How many times its surroundings each spike is: the median of up to `window` norms around it, spikes left out.

    >>> heights([8.0, 8.0, 80.0, 8.0, 0.1, 0.1, 0.1, 0.1], [2], window=4)
    [10.0]
    """
    tall = set(at)
    usual = [k for k, norm in enumerate(norms) if k not in tall and 0 < norm < math.inf]
    found = []
    for index in at:
        here = bisect_left(usual, index)
        before, after = usual[max(0, here - window // 2) : here], usual[here : here + window // 2]
        # In a steep fall one side is far above the other: the higher one is what the spike has to exceed.
        sides = [median(norms[k] for k in side) for side in (before, after) if side]
        found.append(norms[index] / max(sides) if sides else 1.0)
    return found


def _stands_out(value: float, middle: float, spread: float, tall: float) -> bool:
    return (value - middle) / spread > SPIKE and value - middle > math.log(tall)


_NORMAL_MEDIAN: Final = 0.6745
"""The median magnitude of a normal variable, in standard deviations."""
_FEW: Final = 3
_LOUD, _BACK = 2.0, 1.5
"""Times the losses around it that of a loud batch is, and how far the next ones may be above those before."""
LEARNS: Final = 0.7
"""Share of the first loss that is left of a training that learns."""
_ON_A_SIDE: Final = 0.1
_CLEARLY: Final = 3.0
"""Standard errors beyond which a fall of the loss is none of chance."""


def loss_change(losses: Sequence[float], least: int = 1) -> float:
    """The loss at the end over that at the start, each the median of a fifth; NaN with fewer than `least` losses.

    A loss that is not positive is compared by its change relative to its size, so below 1 always means that it fell.

    >>> loss_change([4.0, 3.0, 2.0, 1.0])
    0.25
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < max(least, 1):
        return math.nan
    few = max(1, len(finite) // 5)
    first, last = median(finite[:few]), median(finite[-few:])
    if first == 0:
        return 1.0 if last <= 0 else math.inf
    return last / first if first > 0 else 1 + (last - first) / abs(first)


def lie_around_zero(losses: Sequence[float]) -> bool:
    """Whether a tenth or more lies on each side of zero, as of sums of advantages: their ratios say nothing.

    >>> lie_around_zero([1.1, -0.1, 0.02, -0.03, 0.04]), lie_around_zero([3.0, 2.0, 1.0]), lie_around_zero([1.0, -9.0])
    (True, False, True)
    """
    below = sum(loss < 0 for loss in losses)
    return 0 < below < len(losses) and _ON_A_SIDE <= below / len(losses) <= 1 - _ON_A_SIDE


def fell_beyond_noise(losses: Sequence[float]) -> bool:
    """Whether the loss at the end is below that at the start by more than batches differ from each other.

    What neighbours differ by is their noise, whatever the trend; a median of n has 1.25 σ / √n of it.

    >>> fell_beyond_noise([8.5, 11.1, 8.2, 5.7, 7.0, 9.0, 7.7, 7.0, 9.1, 6.0]), fell_beyond_noise(range(20, 0, -1))
    (False, True)
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 2:
        return False
    few = max(1, len(finite) // 5)
    error = median_error(finite) * math.sqrt(2 * len(finite) / few)
    return median(finite[:few]) - median(finite[-few:]) > _CLEARLY * error


def fell_to(losses: Sequence[float], share: float, least: int = 1) -> bool:
    """Whether less than this share of the first loss is left, and chance did not do it.

    >>> fell_to([4.0, 3.0, 2.0, 1.0] * 5, 0.5), fell_to(range(20, 0, -1), 0.5)
    (False, True)
    """
    return loss_change(losses, least) < share and fell_beyond_noise(losses)


def beside(losses: Sequence[float], at: int) -> tuple[float, float] | None:
    """The median loss of a few steps before one and of a few after it; None where too few are known, or positive.

    >>> beside([4.0, 3.0, 2.0, 90.0, 2.0, 1.0], 3)
    (3.0, 1.5)
    """
    before = [loss for loss in losses[max(0, at - 5) : at] if math.isfinite(loss)]
    after = [loss for loss in losses[at + 1 : at + 4] if math.isfinite(loss)]
    if len(before) < _FEW or not after or min(*before, *after) <= 0:
        return None
    return median(before), median(after)


def is_loud(loss: float, before: float, after: float) -> bool:
    """Whether a loss is far above those on both sides of it."""
    return loss > _LOUD * max(before, after)


def sets_back(before: float, after: float) -> bool:
    """Whether losses after a step are well above those before it."""
    return after >= _BACK * before


def goes_unfelt(losses: Sequence[float], at: Iterable[int]) -> bool:
    """Whether a training learns, and the loss neither jumps at any of these steps nor is set back by it."""
    if not fell_to(losses, LEARNS):
        return False
    for k in at:
        sides = beside(losses, k)
        if sides is None or is_loud(losses[k], *sides) or sets_back(*sides):
            return False
    return True


def median_error(values: Sequence[float]) -> float:
    """The standard error of the median of values whose noise is what neighbours differ by, whatever their trend.

    >>> round(median_error([1.0, 3.0] * 50), 2)
    0.26
    """
    noise = median(abs(b - a) for a, b in pairwise(values)) / (_NORMAL_MEDIAN * math.sqrt(2))
    return 1.25 * noise / math.sqrt(len(values))


def relative_slope(loss: float, gradient: float, weights: float) -> float:
    """||gradient|| · ||weights|| / loss: what a step as long as the weights could change of the loss, in first order.

    About 0.1 to 10 while there is something to learn. Next to nothing at a floor of the loss, and huge next to a loss
    of zero, of which the slope is the root. A factor on the loss cancels. NaN where the loss is not positive.
    """
    return gradient * weights / loss if 0 < loss < math.inf else math.nan


AT_FLOOR: Final = 1e-2
NEAR_ZERO_LOSS: Final = 1e2
"""Relative slopes below the first, or above the second, are those of a run that has converged."""


def is_converged(losses: Sequence[float], gradient: float, weights: float) -> bool:
    """Whether the loss is at its floor: flat there, or as good as zero."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        return False
    loss = median(finite[-max(1, len(finite) // 5) :])
    if loss == 0:
        return True
    slope = relative_slope(loss, gradient, weights)
    return slope < AT_FLOOR or slope > NEAR_ZERO_LOSS


def is_solved(losses: Sequence[float]) -> bool:
    """Whether the last losses are all below a tenth of the very first: whatever the steps were, they did it.

    Of the first alone, since a solver may be done before a fifth of the run, and a run that broke was worse since.
    Losses on both sides of zero come near it by chance.

    >>> is_solved([2.0, 1.0, 0.1, 0.1, 0.1]), is_solved([1.1, 0.3, -0.2, 0.1, -0.1, 0.05])
    (True, False)
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    return len(finite) > 1 and is_done(max(finite[-3:]), finite[0]) and not lie_around_zero(finite)


def is_done(loss: float, first: float) -> bool:
    """Whether a loss is below a tenth of the very first."""
    return 0 <= loss < 0.1 * first


class Slope(NamedTuple):
    """A slope and its standard error; NaN where there are too few points."""

    value: float
    error: float

    @property
    def significant(self) -> bool:
        """Whether it is beyond three of its standard errors."""
        return self.value != 0 and abs(self.value) > 3 * self.error


def median_slope(points: Points) -> float:
    """Theil-Sen: the median slope over all pairs of points, thinned out when there are many."""
    if len(points) > _MOST_POINTS:
        stride = len(points) / _MOST_POINTS
        points = [points[int(k * stride)] for k in range(_MOST_POINTS)]
    if len(points) < 2:
        return math.nan
    x, y = np.array(points, dtype=np.float64).T
    one, other = _pairs(len(points))
    # At once: one by one, the 20,000 pairs took a quarter of the time of a verdict.
    return _middle((y[other] - y[one]) / (x[other] - x[one]))


def _middle(values: NDArray[np.float64]) -> float:
    """The median as NumPy has it, in half its time."""
    if np.isnan(values).any():
        return math.nan
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    below, above = np.partition(values, (half - 1, half))[half - 1 : half + 1]
    return float((below + above) / 2)


@lru_cache(maxsize=4)  # of long series all have the same number of points
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(count, 1)


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


def level_at_end(values: NDArray[np.float64]) -> float | None:
    """The median of the last tenth of the finite values; None where there is none.

    >>> level_at_end(np.array([9.0, 5.0, np.nan, 1.0]))
    1.0
    """
    finite = values[np.isfinite(values)]
    return float(np.median(finite[-max(1, len(finite) // 10) :])) if len(finite) else None


def median_of(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return percentile_of(values, 50)
