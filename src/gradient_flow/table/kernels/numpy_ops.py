"""The NumPy kernel: blocks that fit the cache, widened to fp64."""

from __future__ import annotations

import numpy as np

from gradient_flow.table.columns import EMPTY, INDEX, Rows, Thresholds, merge_rows

BLOCK = 1 << 14


def row(array: np.ndarray, thresholds: Thresholds) -> Rows:
    """The row of one dense real or complex array."""
    flat = array.reshape(-1)
    blocks = [_block(flat[start : start + BLOCK], thresholds) for start in range(0, flat.size, BLOCK)]
    return merge_rows(np.array(blocks)) if blocks else EMPTY.copy()


def _block(block: np.ndarray, thresholds: Thresholds) -> Rows:
    is_complex = block.dtype.kind == "c"
    with np.errstate(over="ignore", invalid="ignore"):
        elements = block.astype(np.complex128 if is_complex else np.float64)
        sizes = np.abs(elements)
        total = sizes.sum()
    is_nan, is_inf, is_negative_inf = 0, 0, 0.0
    if not np.isfinite(total):
        finite, nan = np.isfinite(elements), np.isnan(elements)
        infinite = elements[~finite & ~nan].view(np.float64).reshape(-1, 2 if is_complex else 1)  # (inf, parts)
        is_nan, is_inf = int(nan.sum()), len(infinite)
        downwards, upwards = (infinite == -np.inf).any(axis=1), (infinite == np.inf).any(axis=1)
        is_negative_inf = float(downwards.sum()) - 0.5 * float((downwards & upwards).sum())
        elements, sizes = elements[finite], sizes[finite]

    values = elements.view(np.float64)
    result = EMPTY.copy()
    result[INDEX["count"]] = block.size
    result[[INDEX["nan"], INDEX["inf"], INDEX["neg_inf"]]] = is_nan, is_inf, is_negative_inf
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
