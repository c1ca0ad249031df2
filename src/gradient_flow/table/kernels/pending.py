"""Rows that a device is still computing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gradient_flow.capture.arrivals import Copy
from gradient_flow.table.columns import Rows


class LateRows:
    """A function that gives the rows, and says whether that costs a wait."""

    def __init__(
        self,
        copies: list[Copy],
        finish: Callable[[list[np.ndarray]], Rows],
        on_device: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        self._copies, self._finish = copies, finish
        self.on_device = on_device
        """The same rows where they are made, for what is launched behind them; None if they are not all on one
        device."""

    def ready(self) -> bool:
        """Whether the rows can be had without waiting."""
        return all(copy.ready() for copy in self._copies)

    def __call__(self) -> Rows:
        """The rows; waits for them where they have not come."""
        return self._finish([copy.values() for copy in self._copies])

    def then(
        self, change: Callable[[Rows], Rows], on_device: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> LateRows:
        """The rows as `change` makes them, once they have come; `on_device` does the same there, where that can be."""
        here = self.on_device
        there = None if here is None or on_device is None else lambda: on_device(here())
        return LateRows(self._copies, lambda arrived: change(self._finish(arrived)), there)


def rows_of_tensor(rows: torch.Tensor) -> LateRows:
    """Rows that a device has made already, on their way."""
    return LateRows([Copy(rows)], lambda arrived: arrived[0], lambda: rows)


def put_together(rows: Rows, parts: list[tuple[list[int], LateRows]]) -> LateRows:
    """Rows that are here already, and those at some positions that are still on their way."""
    copies = [copy for _, pending in parts for copy in pending._copies]

    def finish(arrived: list[np.ndarray]) -> Rows:
        first = 0
        for positions, pending in parts:
            last = first + len(pending._copies)
            rows[positions] = pending._finish(arrived[first:last])
            first = last
        return rows

    whole = len(parts) == 1 and parts[0][0] == list(range(len(rows)))
    return LateRows(copies, finish, parts[0][1].on_device if whole else None)
