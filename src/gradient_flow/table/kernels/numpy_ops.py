"""The NumPy kernel: blocks that stay in the cache, in few passes.

Long blocks of fp32 are summed in fp32, a short run at a time, and the runs in fp64; everything else is summed in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds, limits_in_float32, merge_by_owner
from gradient_flow.table.exponents import BINS, FIELDS, Counts, bins_of_fields

BLOCK: Final = 1 << 17
"""Elements measured at once: with its temporaries a block stays in the cache that each core has to itself. Two threads
take longer than one: with blocks this small they spend their time handing the interpreter's lock to each other."""
_RUN: Final = 1 << 10
"""Elements that BLAS multiplies at once: below its limit for threads of its own, which would cost more than they do."""
_LONG: Final = 1 << 14
"""From here on a block of fp32 is summed in fp32: of shorter ones the time goes into calls."""
_SAFE: Final = (1e-12, 1e15)
"""With the largest element between these, no square in fp32 overflows, and what underflows is nothing beside it."""
_CHUNK: Final = 1 << 19
"""Elements whose exponents are counted at once."""
_FEW: Final = 64
"""One element in so many is few enough to be picked out, which is cheaper than another look at all."""
_ADDED: Final = 1 << 6
"""Elements that are added up in fp32: sixteen times as many equal ones would lose a digit."""
_ONES: Final = {np.dtype(kind): np.ones((_ADDED, 1), kind) for kind in (np.float32, np.float64)}


class _Scratch:
    """Memory for one block, used again for each: fresh memory costs more than the arithmetic in it."""

    def __init__(self, elements: int) -> None:
        longest = -(-min(elements, BLOCK) // _RUN) * _RUN
        self.wide: np.ndarray = np.empty(longest)
        self.narrow: np.ndarray = np.empty(longest, np.float32)
        self.flags = np.empty(longest, bool)


def rows(arrays: list[np.ndarray], thresholds: Thresholds) -> Rows:
    """One row per dense array, real or complex."""
    flat = [array.reshape(-1) for array in arrays]
    scratch = _Scratch(max((array.size for array in flat), default=0))
    places = [(at, block) for at, array in enumerate(flat) for block in _blocks(array)]
    with np.errstate(over="ignore", invalid="ignore"):
        measured = [_block(block, thresholds, scratch) for _, block in places]
    owners = np.array([at for at, _ in places], dtype=np.int64)
    return merge_by_owner(np.array(measured).reshape(-1, len(COLUMNS)), owners, len(arrays))


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Cut an array into blocks; a long one into whole runs, and what is left of the last."""
    end = array.size - array.size % _RUN if array.size >= _LONG else array.size
    for start in range(0, end, BLOCK):
        yield array[start : min(start + BLOCK, end)]
    if end < array.size:
        yield array[end:]


def _block(block: np.ndarray, thresholds: Thresholds, scratch: _Scratch) -> Rows:
    if block.dtype.kind == "f":
        if block.dtype.itemsize == 2:
            block = block.astype(np.float32)  # exact, and NumPy has no fast loops for fp16
        quick = _finite_block(block, thresholds, scratch)
        if quick is not None:
            return quick
    return _careful_block(block, thresholds)


def _finite_block(block: np.ndarray, thresholds: Thresholds, scratch: _Scratch) -> Rows | None:
    """Counts that are mostly 0 are taken only where others say that they are not; None with NaN or Inf."""
    count = block.size
    low, high = float(np.minimum.reduce(block)), float(np.maximum.reduce(block))  # first: fastest at fetching memory
    if not math.isfinite(high - low):
        return None
    largest = max(0.0, -low, high)  # not -0
    least, most = _SAFE
    if block.dtype == np.float32 and count >= _LONG and count % _RUN == 0 and least < largest < most:
        numbers, magnitudes = block, scratch.narrow[:count]
    else:
        numbers = magnitudes = scratch.wide[: -(-count // _RUN) * _RUN]
        numbers[:count] = block
        numbers[count:] = 0.0  # adds nothing
    total, square = _sum(numbers), _sum_of_squares(numbers)
    magnitude = _sum(np.absolute(numbers, out=magnitudes))

    sizes, flags = magnitudes[:count], scratch.flags[:count]
    if sizes.dtype == np.float32:
        thresholds = limits_in_float32(thresholds)
    near, zeros = int(np.count_nonzero(np.less(sizes, thresholds.near_zero, out=flags))), 0
    if 0 < near < count // _FEW:
        zeros = near - int(np.count_nonzero(sizes[np.flatnonzero(flags)]))  # a mask as an index takes far longer
    elif near or thresholds.near_zero <= 0:
        zeros = int(np.count_nonzero(np.equal(block, 0, out=flags)))
    is_large = largest > thresholds.very_large
    large = np.count_nonzero(np.greater(sizes, thresholds.very_large, out=flags)) if is_large else 0
    return np.array([count, count, total, square, magnitude, low, high, largest, zeros, near, large, 0, 0, 0])


def _sum(numbers: np.ndarray) -> float:
    """The sum of whole runs."""
    sums = np.matmul(numbers.reshape(-1, _ADDED), _ONES[numbers.dtype])
    return float(np.add.reduce(sums, axis=None, dtype=np.float64))


def _sum_of_squares(numbers: np.ndarray) -> float:
    squares = np.matmul(numbers.reshape(-1, 1, _RUN), numbers.reshape(-1, _RUN, 1))
    return float(np.add.reduce(squares, axis=None, dtype=np.float64))


def _careful_block(block: np.ndarray, thresholds: Thresholds) -> Rows:
    is_complex = block.dtype.kind == "c"
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
        result[INDEX["sum"]] = values.sum()
        result[INDEX["sum_sq"]] = np.add.reduce(values * values)
        result[INDEX["sum_abs"]] = sizes.sum()
        result[INDEX["parts"]] = values.size
        result[INDEX["min"]] = values.min()
        result[INDEX["max"]] = values.max()
        result[INDEX["max_abs"]] = sizes.max()
        result[INDEX["zeros"]] = sizes.size - np.count_nonzero(sizes)
        result[INDEX["near_zero"]] = np.count_nonzero(sizes < thresholds.near_zero)
        result[INDEX["very_large"]] = np.count_nonzero(sizes > thresholds.very_large)
    return result


def exponents(arrays: list[np.ndarray], shift: int) -> Counts:
    """Histograms of dense arrays, real or complex, whose elements are divided by 2^shift."""
    counts = np.zeros((len(arrays), BINS + 1))
    bins = bins_of_fields(shift)
    for row, array in zip(counts, arrays, strict=True):
        flat = array.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            np.add.at(row, bins, _fields(flat[start : start + _CHUNK]))
    return counts[:, :BINS]


def _fields(block: np.ndarray) -> NDArray[np.int64]:
    """How many elements have which exponent of fp32; zeros are not among them."""
    with np.errstate(over="ignore", invalid="ignore"):
        if block.dtype.kind == "c":
            sizes = np.where(np.isfinite(block), np.abs(block), np.nan)  # Inf and NaN together have a size of Inf
        else:
            sizes = block.astype(np.float32) if block.dtype.itemsize == 2 else block
    if sizes.dtype == np.float32:
        fields = sizes.view(np.uint32) >> 23 & 255
    else:
        raw = (sizes.astype(np.float64).view(np.uint64) >> 52 & 2047).astype(np.int64)
        fields = np.where(raw == 2047, 255, np.clip(raw - 1023 + 127, 0, 254))
    counts = np.bincount(fields.astype(np.int64), minlength=FIELDS)
    if counts[0]:
        counts[0] -= np.count_nonzero(sizes == 0)
    return counts
