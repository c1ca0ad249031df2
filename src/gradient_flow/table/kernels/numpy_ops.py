"""The NumPy kernel: blocks that fit the cache. What orders and counts is read as it is, sums are in fp64."""

from __future__ import annotations

import numpy as np

from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds, limits_in_float32, merge_rows

BLOCK = 1 << 15


def rows(arrays: list[np.ndarray], thresholds: Thresholds) -> Rows:
    """One row per dense array."""
    return np.array([row(array, thresholds) for array in arrays]).reshape(-1, len(COLUMNS))


def row(array: np.ndarray, thresholds: Thresholds) -> Rows:
    """The row of one dense real or complex array."""
    flat = array.reshape(-1)
    blocks = [_block(flat[start : start + BLOCK], thresholds) for start in range(0, flat.size, BLOCK)]
    return merge_rows(np.array(blocks)) if blocks else EMPTY.copy()


def _block(block: np.ndarray, thresholds: Thresholds) -> Rows:
    if block.dtype.kind == "f":
        if block.dtype.itemsize == 2:
            block = block.astype(np.float32)  # exact, and NumPy has no fast loops for fp16
        if block.dtype == np.float32:
            thresholds = limits_in_float32(thresholds)
        with np.errstate(over="ignore", invalid="ignore"):
            quick = _finite_block(block, thresholds)
        if quick is not None:
            return quick
    return _careful_block(block, thresholds)


def _finite_block(block: np.ndarray, thresholds: Thresholds) -> Rows | None:
    """Counts that are mostly 0 are taken only where the extremes say that they are not; None with NaN or Inf."""
    wide = block.astype(np.float64)
    total = wide.sum()
    if not np.isfinite(total):
        return None
    result = EMPTY.copy()
    result[INDEX["count"]] = result[INDEX["parts"]] = block.size
    result[INDEX["sum"]] = total
    result[INDEX["sum_sq"]] = np.dot(wide, wide)
    result[INDEX["sum_abs"]] = np.abs(wide, out=wide).sum()
    sizes = np.abs(block)
    smallest, largest = sizes.min(), sizes.max()
    result[INDEX["min"]], result[INDEX["max"]], result[INDEX["max_abs"]] = block.min(), block.max(), largest
    if smallest == 0:
        result[INDEX["zeros"]] = np.count_nonzero(sizes == 0)
    if float(smallest) < thresholds.near_zero:
        result[INDEX["near_zero"]] = np.count_nonzero(sizes < thresholds.near_zero)
    if float(largest) > thresholds.very_large:
        result[INDEX["very_large"]] = np.count_nonzero(sizes > thresholds.very_large)
    return result


def _careful_block(block: np.ndarray, thresholds: Thresholds) -> Rows:
    is_complex = block.dtype.kind == "c"
    with np.errstate(over="ignore", invalid="ignore"):
        elements = block.astype(np.complex128 if is_complex else np.float64)
        sizes = np.abs(elements)
    finite, nan = np.isfinite(elements), np.isnan(elements)
    infinite = elements[~finite & ~nan].view(np.float64).reshape(-1, 2 if is_complex else 1)  # (inf, parts)
    downwards, upwards = (infinite == -np.inf).any(axis=1), (infinite == np.inf).any(axis=1)
    elements, sizes = elements[finite], sizes[finite]

    values = elements.view(np.float64)
    result = EMPTY.copy()
    result[INDEX["count"]] = block.size
    result[INDEX["nan"]], result[INDEX["inf"]] = np.count_nonzero(nan), len(infinite)
    result[INDEX["neg_inf"]] = float(downwards.sum()) - 0.5 * float((downwards & upwards).sum())
    if values.size:
        with np.errstate(over="ignore", invalid="ignore"):
            result[INDEX["sum"]] = values.sum()
            result[INDEX["sum_sq"]] = np.dot(values, values)
            result[INDEX["sum_abs"]] = sizes.sum()
        result[INDEX["parts"]] = values.size
        result[INDEX["min"]] = values.min()
        result[INDEX["max"]] = values.max()
        result[INDEX["max_abs"]] = sizes.max()
        result[INDEX["zeros"]] = sizes.size - np.count_nonzero(sizes)
        result[INDEX["near_zero"]] = np.count_nonzero(sizes < thresholds.near_zero)
        result[INDEX["very_large"]] = np.count_nonzero(sizes > thresholds.very_large)
    return result
