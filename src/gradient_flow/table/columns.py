"""What is recorded of a tensor: one row of numbers, which merge exactly, and every statistic as arithmetic on them.

A row is an array of `len(COLUMNS)` floats; a table is a matrix of rows. All functions take either, the columns last.

Sums, counts and extremes are over the finite elements; `count` is over all. A complex element counts once and by its
magnitude for norms, zeros and thresholds; `sum`, `min` and `max` are over its real and imaginary parts as two real
numbers, and `parts` says how many real numbers those are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Rows = NDArray[np.float64]
AnyRows = TypeVar("AnyRows", Rows, "torch.Tensor")
"""Rows in host memory, or on a device that has not been waited for."""

COLUMNS: Final = (
    "count",  # elements, finite or not
    "parts",  # real numbers in the finite elements: one each, two if complex
    "sum",
    "sum_sq",
    "sum_abs",
    "min",
    "max",
    "max_abs",
    "zeros",
    "near_zero",
    "very_large",
    "nan",
    "inf",
    "neg_inf",  # those of `inf` that are negative; a complex element that is infinite both ways counts half
)
INDEX: Final = {name: position for position, name in enumerate(COLUMNS)}
OF_SIZES: Final = ("count", "parts", "sum_sq", "sum_abs", "max_abs", "nan", "inf", "neg_inf")
"""What follows from magnitudes alone: enough for every norm, at a third of the work."""
NOT_OF_SIZES: Final = [INDEX[name] for name in COLUMNS if name not in OF_SIZES]
_MIN, _MAX, _MAX_ABS = INDEX["min"], INDEX["max"], INDEX["max_abs"]
_ADDED: Final = [INDEX[name] for name in COLUMNS if name not in ("min", "max", "max_abs")]
_SUMS, _EXTREMES, _COUNTS = slice(0, _MIN), slice(_MAX, _MAX_ABS + 1), slice(_MAX_ABS + 1, len(COLUMNS))
"""The columns that are added, before and behind those that are not, and the two of which the largest counts."""

LARGEST_SUM: Final = 1e300
"""Sums of squares below it neither are infinite nor become so."""

EMPTY: Final[Rows] = np.zeros(len(COLUMNS))
EMPTY[_MIN], EMPTY[_MAX] = np.inf, -np.inf
EMPTY.setflags(write=False)


class Thresholds(NamedTuple):
    """From where on an element counts as near zero or very large, by its magnitude."""

    near_zero: float = 1e-7
    very_large: float = 1e3


def limits_in_float32(thresholds: Thresholds) -> Thresholds:
    """Thresholds such that comparing fp32 elements with them in fp32 gives what comparing in fp64 would."""
    up, down = np.float32(np.inf), np.float32(-np.inf)
    with np.errstate(over="ignore"):
        near, large = np.float32(thresholds.near_zero), np.float32(thresholds.very_large)
        near = np.nextafter(near, up) if float(near) < thresholds.near_zero else near
        large = np.nextafter(large, down) if float(large) > thresholds.very_large else large
    return Thresholds(float(near), float(large))


def merge_rows(rows: Rows) -> Rows:
    """The row of all elements together, from a matrix of rows."""
    merged = EMPTY.copy()
    if len(rows):  # by slices, which are views: every recorded step comes here
        np.add.reduce(rows[:, _SUMS], axis=0, out=merged[_SUMS])
        np.add.reduce(rows[:, _COUNTS], axis=0, out=merged[_COUNTS])
        merged[_MIN] = np.minimum.reduce(rows[:, _MIN])
        np.maximum.reduce(rows[:, _EXTREMES], axis=0, out=merged[_EXTREMES])
    return merged


def merge_by_owner(rows: Rows, owners: NDArray[np.int64], count: int) -> Rows:
    """`count` rows, each the merge of those that it owns; the empty row where it owns none."""
    merged = np.tile(EMPTY, (count, 1))
    if len(rows):
        order = np.argsort(owners, kind="stable")
        present, first = np.unique(owners[order], return_index=True)
        rows = rows[order]
        merged[present] = np.add.reduceat(rows, first, axis=0)
        merged[present, _MIN] = np.minimum.reduceat(rows[:, _MIN], first)
        for column in (_MAX, _MAX_ABS):
            merged[present, column] = np.maximum.reduceat(rows[:, column], first)
    return merged


def repeat_row(row: Rows, times: int) -> Rows:
    """The row of the same elements `times` over."""
    if times == 0:
        return EMPTY.copy()
    repeated = row.copy()
    repeated[_ADDED] *= times
    return repeated


def scale_rows(rows: AnyRows, factor: Any) -> AnyRows:
    """The rows of the same elements times a positive factor. Threshold counts stay as they were taken.

    Rows and factor may be tensors of a device: nothing is read there.
    """
    scaled: Any = rows.copy() if isinstance(rows, np.ndarray) else rows.clone()
    for name in ("sum", "sum_abs", "min", "max", "max_abs"):
        scaled[..., INDEX[name]] *= factor
    scaled[..., INDEX["sum_sq"]] *= factor**2
    result: AnyRows = scaled
    return result


def zeros_row(count: int, thresholds: Thresholds, parts: int = 1) -> Rows:
    """The row of `count` zeros, each of `parts` real numbers."""
    row = EMPTY.copy()
    if count:
        row[[INDEX["count"], INDEX["zeros"]]] = count
        row[INDEX["parts"]] = count * parts
        row[INDEX["near_zero"]] = count * (thresholds.near_zero > 0)
        row[INDEX["very_large"]] = count * (thresholds.very_large < 0)
        row[[_MIN, _MAX]] = 0.0
    return row


def finite_part(rows: Rows) -> Rows:
    """The same rows with the non-finite elements left out."""
    finite = rows.copy()
    finite[..., INDEX["count"]] -= rows[..., INDEX["nan"]] + rows[..., INDEX["inf"]]
    finite[..., [INDEX["nan"], INDEX["inf"], INDEX["neg_inf"]]] = 0
    return finite


def _column(rows: Rows, name: str) -> Rows:
    return rows[..., INDEX[name]]


def _norm_like(rows: Rows, value: Rows) -> Rows:
    """NaN if there is a NaN, else Inf if there is an Inf, else the value: as torch's norms have it."""
    value = np.where(_column(rows, "inf") > 0, np.inf, value)
    return np.where(_column(rows, "nan") > 0, np.nan, value)


def _unless_nonfinite(rows: Rows, value: Rows) -> Rows:
    return np.where(_column(rows, "nan") + _column(rows, "inf") > 0, np.nan, value)


def _ratio(part: Rows, whole: Rows, empty: float = np.nan) -> Rows:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, empty)


def norm(rows: Rows) -> Rows:
    """L2 norm."""
    return _norm_like(rows, np.sqrt(_column(rows, "sum_sq")))


def l1(rows: Rows) -> Rows:
    """Sum of magnitudes."""
    return _norm_like(rows, _column(rows, "sum_abs"))


def linf(rows: Rows) -> Rows:
    """Largest magnitude."""
    return _norm_like(rows, _column(rows, "max_abs"))


def mean_abs(rows: Rows) -> Rows:
    """Mean magnitude; 0 for a tensor without elements, as the other norms have it."""
    return _norm_like(rows, _ratio(_column(rows, "sum_abs"), _column(rows, "count"), empty=0.0))


def mean(rows: Rows) -> Rows:
    """Mean element."""
    positive = _column(rows, "inf") > _column(rows, "neg_inf")
    negative = _column(rows, "neg_inf") > 0
    value = _ratio(_column(rows, "sum"), _column(rows, "parts"))
    value = np.where(positive, np.where(negative, np.nan, np.inf), np.where(negative, -np.inf, value))
    return np.where(_column(rows, "nan") > 0, np.nan, value)


def variance(rows: Rows) -> Rows:
    """Population variance of the elements. Its rounding error is about 1e-15 of the mean square."""
    parts = _column(rows, "parts")
    with np.errstate(over="ignore", invalid="ignore"):
        centred = _ratio(_column(rows, "sum_sq"), parts) - _ratio(_column(rows, "sum"), parts) ** 2
        return _unless_nonfinite(rows, np.maximum(centred, 0.0))


def std(rows: Rows) -> Rows:
    """Population standard deviation."""
    return np.sqrt(variance(rows))


def minimum(rows: Rows) -> Rows:
    """Smallest element; non-finite when the row is."""
    value = np.where(_column(rows, "count") > 0, _column(rows, "min"), np.nan)
    value = _unless_nonfinite(rows, value)
    return np.where((_column(rows, "neg_inf") > 0) & (_column(rows, "nan") == 0), -np.inf, value)


def maximum(rows: Rows) -> Rows:
    """Largest element; non-finite when the row is."""
    value = np.where(_column(rows, "count") > 0, _column(rows, "max"), np.nan)
    value = _unless_nonfinite(rows, value)
    positive = _column(rows, "inf") > _column(rows, "neg_inf")
    return np.where(positive & (_column(rows, "nan") == 0), np.inf, value)


def fraction(rows: Rows, name: str) -> Rows:
    """Share of the elements that column `name` counts; 0 for a tensor without elements."""
    return _ratio(_column(rows, name), _column(rows, "count"), empty=0.0)


def finite(rows: Rows) -> NDArray[np.bool_]:
    """Whether every element is finite."""
    return np.asarray(_column(rows, "nan") + _column(rows, "inf") == 0)


def zero_fraction(rows: Rows) -> Rows:
    """Share of elements that are exactly zero, 0 to 1."""
    return fraction(rows, "zeros")


def near_zero_percent(rows: Rows) -> Rows:
    """Percentage of elements below the near-zero threshold."""
    return 100.0 * fraction(rows, "near_zero")


def very_large_percent(rows: Rows) -> Rows:
    """Percentage of elements above the very-large threshold."""
    return 100.0 * fraction(rows, "very_large")


def _whole(name: str, rows: Rows) -> NDArray[np.int64]:
    return _column(rows, name).astype(np.int64)


def usual_statistics(row: Sequence[float]) -> dict[str, float] | None:
    """What every step records of one row, by the arithmetic above on plain numbers; None for a row with NaN or Inf.

    NumPy takes microseconds to get going on one row, and every recorded step wants ten statistics of it.
    """
    count, parts, total, sum_sq, sum_abs, low, high, largest, zeros, _, _, nan, inf, _ = row
    if nan or inf or not count or not parts or not sum_sq < LARGEST_SUM:
        return None
    average = total / parts
    return {
        "norm": math.sqrt(sum_sq),
        "l1": sum_abs,
        "linf": largest,
        "mean": average,
        "variance": max(sum_sq / parts - average * average, 0.0),
        "min": low,
        "max": high,
        "zero_fraction": zeros / count,
        "nan_count": 0,
        "inf_count": 0,
    }


STATISTICS: Final = {
    "norm": norm,
    "l1": l1,
    "linf": linf,
    "mean": mean,
    "mean_abs": mean_abs,
    "variance": variance,
    "std": std,
    "min": minimum,
    "max": maximum,
    "zero_fraction": zero_fraction,
    "near_zero_percent": near_zero_percent,
    "very_large_percent": very_large_percent,
    "nan_count": lambda rows: _whole("nan", rows),
    "inf_count": lambda rows: _whole("inf", rows),
    "count": lambda rows: _whole("count", rows),
    "finite": finite,
}
"""Every derived statistic by its public name."""

NORM_KINDS: Final = {"l2": norm, "l1": l1, "linf": linf, "mean": mean_abs}
