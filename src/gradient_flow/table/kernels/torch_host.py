"""The torch kernel in host memory, where a number can be looked at without a wait: cheap passes, and few of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gradient_flow.table.columns import COLUMNS, Rows


class Scratch:
    """Memory for one bucket of lines, used again for each: fresh memory costs more than the arithmetic in it."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A matrix of fp64, and two of the lines' own dtype, used after it in the same place in the cache."""
        count, own = lines.numel(), self._dtype.itemsize * lines.numel()
        if len(self._memory) < max(8 * count, 2 * own):
            self._memory = torch.empty(max(8 * count, 2 * own), dtype=torch.uint8)
        wide = self._memory[: 8 * count].view(torch.float64).view(lines.shape)
        first, second = self._memory[:own].view(self._dtype), self._memory[own : 2 * own].view(self._dtype)
        return wide, first.view(lines.shape), second.view(lines.shape)


def columns(lines: torch.Tensor, near: float, large: float, scratch: Scratch) -> Rows:
    """All columns of each line of real numbers; they mean nothing where `sum_abs` is not finite.

    Sums are in fp64. Counts that are mostly 0 are taken only where the extremes say that they are not.
    """
    rows = np.zeros((len(lines), len(COLUMNS)))
    column = dict(zip(COLUMNS, rows.T, strict=True))
    wide, sizes, flags = scratch.of(lines)
    column["min"][:] = lines.amin(1).numpy()
    column["max"][:] = lines.amax(1).numpy()
    column["sum"][:] = wide.copy_(lines).sum(1).numpy()
    column["sum_abs"][:] = wide.abs_().sum(1).numpy()
    column["sum_sq"][:] = wide.square_().sum(1).numpy()

    def how_many(compare: Callable[..., torch.Tensor], limit: float) -> np.ndarray:
        # Ones and zeros of the elements' own type: torch writes and adds these several times as fast as booleans.
        counts: np.ndarray = compare(sizes, limit, out=flags).sum(1).numpy()
        return counts

    torch.abs(lines, out=sizes)
    column["near_zero"][:] = how_many(torch.lt, near)
    if (near <= 0 or column["near_zero"].any()) and (sizes.amin(1).numpy() == 0).any():
        column["zeros"][:] = how_many(torch.eq, 0.0)
    largest = np.maximum(column["max"], -column["min"])
    if (largest > large).any():
        column["very_large"][:] = how_many(torch.gt, large)
    column["max_abs"][:] = np.where(largest > 0, largest, 0.0)  # not -0
    column["count"][:] = column["parts"][:] = lines.shape[1]
    return rows
