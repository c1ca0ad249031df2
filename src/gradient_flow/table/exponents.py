"""Histograms of exponents: how many elements of a gradient are of which power of two.

64 bins. Bin 0 has what is smaller than any normal number of fp32 and bf16 (2⁻¹²⁶), bin 1 what lies between that and
2⁻⁴⁵, bins 2 to 62 one power of two each (2⁻⁴⁵ ≤ |g| < 2⁻⁴⁴ up to 2¹⁵ ≤ |g| < 2¹⁶), and bin 63 everything from 2¹⁶ on,
which fp16 cannot hold. Zeros, NaN and Inf are in none: the table counts them. A complex element goes by its magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from gradient_flow.table.kernels.pending import LateRows

BINS: Final = 64
LOWEST: Final = -45
"""The power of two of bin 2, the first that has one of its own."""
HIGHEST: Final = 15
"""That of bin 62, the last of them."""
SMALLEST_NORMAL: Final = -126
FIELDS: Final = 256
"""Values of the 8 bits that hold the exponent of fp32: 0 below the normal numbers, 255 for NaN and Inf."""
BIAS: Final = 127
LATER: Final = 1.5
"""A look takes one when its step is this many times that of the last: fewer and fewer, so that neither
their time (two to three times that of a table) nor their place in the file grows with the run."""
LEFT_OUT: Final = BINS
"""Stands for a bin where an element is in none."""

Counts = NDArray[np.float64]
"""Whole numbers, one row of `BINS` for each tensor."""


def lower_border(index: int) -> float:
    """The power of two that the elements of a bin reach at least; -inf for the first."""
    return -math.inf if index == 0 else SMALLEST_NORMAL if index == 1 else float(index - 2 + LOWEST)


def bins_of_fields(shift: int) -> NDArray[np.int64]:
    """The bin of each exponent field of fp32, for elements that are divided by 2^shift.

    What is below the normal numbers stays in bin 0: how far below is not looked at.
    """
    exponents = np.arange(FIELDS) - BIAS - shift
    bins = np.clip(exponents - LOWEST + 2, 1, BINS - 1)
    bins[(exponents < SMALLEST_NORMAL) | (np.arange(FIELDS) == 0)] = 0
    bins[FIELDS - 1] = LEFT_OUT
    return bins.astype(np.int64)


def shift_of(scale: float) -> int:
    """A loss scale as a power of two, which those of a `GradScaler` are; any other is rounded to one."""
    return round(math.log2(scale)) if 0 < scale < math.inf else 0


def exponent_counts(gradients: Sequence[Any], scale: float | torch.Tensor = 1.0) -> Counts | LateRows:
    """How many elements of each gradient lie in which bin, with a loss scale taken off; late where on a device.

    The scale may be a tensor, where only a device knows it.

    >>> import numpy as np
    >>> counts = exponent_counts([np.array([0.0, 1.0, 1.5, 2.0, 1e30])])
    >>> {int(at): int(counts[0, at]) for at in np.flatnonzero(counts[0])}
    {47: 2, 48: 1, 63: 1}
    """
    from gradient_flow.table import dense, kernels

    plain: list[Any] = []
    repeats = np.ones((len(gradients), 1))
    for position, gradient in enumerate(gradients):
        simple, correction = dense.simplify(gradient, f"gradients[{position}]")
        plain.append(simple)
        repeats[position] = correction.repeat
    shift = shift_of(scale) if isinstance(scale, (int, float)) else scale.log2().round()
    counts = kernels.exponents_of(plain, shift)
    if (repeats == 1).all():
        return counts
    return counts * repeats if isinstance(counts, np.ndarray) else counts.then(lambda arrived: arrived * repeats)


def trimmed(row: NDArray[Any]) -> list[int]:
    """A histogram as a run file has it: its first bin that is not empty, then the counts up to the last one."""
    filled = np.flatnonzero(row)
    return [int(filled[0]), *row[filled[0] : filled[-1] + 1].astype(np.int64).tolist()] if len(filled) else []


def spread_out(found: Any) -> NDArray[np.int64]:
    """The counts of all bins from what a file has. Raises `ValueError` where that is no histogram."""
    row = np.zeros(BINS, dtype=np.int64)
    if not isinstance(found, list) or not all(type(n) is int and 0 <= n < 2**53 for n in found):
        raise ValueError("not a list of counts")
    if found:
        first, counts = found[0], found[1:]
        if first + len(counts) > BINS:
            raise ValueError(f"more than {BINS} bins")
        row[first : first + len(counts)] = counts
    return row
