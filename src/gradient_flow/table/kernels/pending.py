"""Rows that a device is still computing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradient_flow.capture.arrivals import Copy
from gradient_flow.table.columns import Rows


class LateRows:
    """A function that gives the rows, and says whether that costs a wait."""

    def __init__(self, copies: list[Copy], finish: Callable[[list[np.ndarray]], Rows]) -> None:
        self._copies, self._finish = copies, finish

    def ready(self) -> bool:
        """Whether the rows can be had without waiting."""
        return all(copy.ready() for copy in self._copies)

    def __call__(self) -> Rows:
        """The rows; waits for them where they have not come."""
        return self._finish([copy.values() for copy in self._copies])

    def then(self, change: Callable[[Rows], Rows]) -> LateRows:
        """The rows as `change` makes them, once they have come."""
        return LateRows(self._copies, lambda arrived: change(self._finish(arrived)))


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

    return LateRows(copies, finish)
