"""The NumPy kernel: blocks that fit the cache. What orders and counts is read as it is, sums are in fp64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds, limits_in_float32, merge_rows

BLOCK = 1 << 15


class _Scratch:
    """Memory for one block, used again for each: fresh memory costs more than the arithmetic in it."""

    def __init__(self) -> None:
        self.wide = np.empty(BLOCK)
        self.sizes: dict[Any, NDArray[np.floating[Any]]] = {
            np.dtype(np.float32): np.empty(BLOCK, np.float32),
            np.dtype(np.float64): np.empty(BLOCK, np.float64),
        }
        self.ones = np.ones(BLOCK)


def rows(arrays: list[np.ndarray], thresholds: Thresholds) -> Rows:
    """One row per dense array, real or complex."""
    scratch = _Scratch()
    return np.array([_row(array, thresholds, scratch) for array in arrays]).reshape(-1, len(COLUMNS))


def _row(array: np.ndarray, thresholds: Thresholds, scratch: _Scratch) -> Rows:
    flat = array.reshape(-1)
    blocks = [_block(flat[start : start + BLOCK], thresholds, scratch) for start in range(0, flat.size, BLOCK)]
    return merge_rows(np.array(blocks)) if blocks else EMPTY.copy()


def _block(block: np.ndarray, thresholds: Thresholds, scratch: _Scratch) -> Rows:
    if block.dtype.kind == "f":
        if block.dtype.itemsize == 2:
            block = block.astype(np.float32)  # exact, and NumPy has no fast loops for fp16
        if block.dtype == np.float32:
            thresholds = limits_in_float32(thresholds)
        with np.errstate(over="ignore", invalid="ignore"):
            quick = _finite_block(block, thresholds, scratch)
        if quick is not None:
            return quick
    return _careful_block(block, thresholds)


def _finite_block(block: np.ndarray, thresholds: Thresholds, scratch: _Scratch) -> Rows | None:
    """Counts that are mostly 0 are taken only where the extremes say that they are not; None with NaN or Inf."""
    count = block.size
    wide, ones = scratch.wide[:count], scratch.ones[:count]
    sizes = scratch.sizes[block.dtype][:count]
    wide[:] = block
    total = np.dot(wide, ones)  # in half the time that `sum` takes
    if not np.isfinite(total):
        return None
    square = np.dot(wide, wide)
    magnitude = np.dot(np.abs(wide, out=wide), ones)
    smallest, low, high = np.abs(block, out=sizes).min(), block.min(), block.max()
    largest = max(abs(low), abs(high))
    zeros = np.count_nonzero(sizes == 0) if smallest == 0 else 0
    near = np.count_nonzero(sizes < thresholds.near_zero) if smallest < thresholds.near_zero else 0
    large = np.count_nonzero(sizes > thresholds.very_large) if largest > thresholds.very_large else 0
    return np.array([count, count, total, square, magnitude, low, high, largest, zeros, near, large, 0, 0, 0])


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
