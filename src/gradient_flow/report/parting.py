"""When two recorded series part, whatever their scale.

`d` is the logarithm of their ratio at the steps both recorded (for a series that is not positive
throughout, the difference over the median size of both). `d` is smoothed by a running median over `WINDOW` records, so
one odd batch is no parting. The noise of `d` is taken from its own changes from record to record (median absolute
deviation), so a trend is not noise. The series part at the first step from which on the smoothed `d` is beyond the
larger of `DEVIATIONS` standard errors and `FLOOR`, for a whole window and for `LASTING` of all that follows. None of
this depends on the scale of the loss. A record that is finite in one run alone is an infinite difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.robust import MAD_TO_SIGMA

WINDOW: Final = 9
"""Records; of a short series a quarter."""
_LEAST: Final = 3
"""Records at least that are beyond the limit one after the other."""
DEVIATIONS: Final = 6.0
FLOOR: Final = math.log(1.25)
"""A quarter more or less is what another seed does."""
LASTING: Final = 0.8
_EQUAL: Final = 1e-9
"""Relative difference up to which numbers are the same: the same computation in the same order is bit-identical."""

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Parting:
    """How a series of a run compares with that of the first run."""

    common: int
    """Records that both have."""
    first_unequal: int | None
    """The first step whose values are not the same number; None if all are."""
    parts: int | None
    """The step from which on they differ beyond noise, to the end; None if they do not."""
    ratio: float
    """Median of the last tenth of the common records over that of the first run; NaN where not positive."""

    @property
    def size(self) -> float:
        """How far apart they end, as the magnitude of the logarithm of the ratio; infinite where there is none."""
        if self.first_unequal is None:
            return 0.0
        return abs(math.log(self.ratio)) if self.ratio > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold."""
        return {**asdict(self), "ratio": self.ratio if math.isfinite(self.ratio) else None}


def parting(steps: Sequence[int], ours: Values, theirs: Values) -> Parting:
    """Compare two series at the same steps. The docstring of the module says how.

    >>> same = np.array([2.0, 1.9, 2.1, 2.0, 1.9, 2.1, 2.0, 1.9, 2.1, 2.0])
    >>> parting(range(10), same, same).first_unequal is None
    True
    """
    known = np.isfinite(ours) | np.isfinite(theirs)
    at, ours, theirs = np.asarray(steps)[known], ours[known], theirs[known]
    unequal = np.flatnonzero(~np.isclose(ours, theirs, rtol=_EQUAL, atol=0.0))
    since = _lasting(difference(ours, theirs))
    if since is not None and len(unequal):
        since = max(since, int(unequal[0]))  # smoothing reaches half a window back: nobody parts before a difference
    late = slice(-max(1, len(at) // 10), None)
    return Parting(
        common=len(at),
        first_unequal=int(at[unequal[0]]) if len(unequal) else None,
        parts=int(at[since]) if since is not None else None,
        ratio=_ratio(ours[late], theirs[late]) if len(at) else math.nan,
    )


def difference(ours: Values, theirs: Values) -> Values:
    """Scale-free difference, record by record: infinite where one is finite alone, 0 where both are 0."""
    with np.errstate(all="ignore"):
        together = np.concatenate([ours, theirs])
        together = together[np.isfinite(together)]
        if (together >= 0).all():
            found = np.log(theirs) - np.log(ours)
        else:
            found = (theirs - ours) / np.median(np.abs(together))
    found[(ours == 0) & (theirs == 0)] = 0.0
    return np.where(np.isnan(found), np.inf, found)


def _lasting(found: Values) -> int | None:
    """Where the difference begins to stay beyond its noise."""
    if not len(found):
        return None
    window = min(WINDOW, len(found) // 8 * 2 + 1)
    finite = found[np.isfinite(found)]
    changes = np.abs(np.diff(finite))
    noise = MAD_TO_SIGMA * float(np.median(changes)) / math.sqrt(2) if len(changes) else 0.0
    # The median of n values scatters 1.25 sigma / sqrt(n).
    limit = max(FLOOR, DEVIATIONS * 1.25 * noise / math.sqrt(window))
    half = window // 2
    padded = np.pad(found, half, mode="reflect")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    beyond = np.abs(smooth) > limit
    from_here = np.cumsum(beyond[::-1])[::-1] / np.arange(len(beyond), 0, -1)
    least = min(len(found), max(window, _LEAST))
    for start in np.flatnonzero(beyond[: len(beyond) - least + 1]):
        if beyond[start : start + least].all() and from_here[start] >= LASTING:
            return int(start)
    return None


def _ratio(ours: Values, theirs: Values) -> float:
    a, b = np.median(ours), np.median(theirs)
    return float(b / a) if math.isfinite(a) and math.isfinite(b) and a > 0 and b >= 0 else math.nan
