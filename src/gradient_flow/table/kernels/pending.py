"""Rows that a device is still computing: copied behind its work into pinned memory, and read when they are there.

The host asks whether they have come (`ready`), and waits only where somebody wants them now, or where more tables are
under way than the ring holds. Waits are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from gradient_flow.table.columns import Rows

MOST_UNDER_WAY: Final = 16
"""Copies that may be on their way to the host at once; one more, and the oldest is waited for."""


class Waits:
    """How often the host waited for a device."""

    def __init__(self) -> None:
        self.count = 0


WAITS: Final = Waits()


class Copy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._host: torch.Tensor | None = tensor
        self._event: Any = None
        self._values: np.ndarray | None = None
        self._fault: Exception | None = None
        if tensor.device.type != "cpu":
            _make_room()
            self._host, self._event = copied_behind(tensor)
            _under_way.append(self)

    def ready(self) -> bool:
        """Whether reading it costs no wait."""
        return self._event is None or bool(self._event.query())

    def values(self) -> np.ndarray:
        """What it holds; waits where it has not come."""
        if self._fault is not None:
            raise self._fault
        if self._values is None:
            self._arrive()
        assert self._values is not None
        return self._values

    def _arrive(self) -> None:
        assert self._host is not None
        try:
            if not self.ready():
                WAITS.count += 1
                self._event.synchronize()
            # A copy: the pinned memory goes back to torch, for the tables to come.
            self._values = self._host.to(torch.float64, copy=True).numpy()
        except Exception as fault:  # the device failed; asking again would not help
            self._fault = fault
            raise
        finally:
            self._host = self._event = None
            if self in _under_way:
                _under_way.remove(self)


_under_way: Final[deque[Copy]] = deque()


def copied_behind(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy in host memory that is complete once the event beside it has come."""
    device = tensor.device
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
    host.copy_(tensor, non_blocking=True)
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return host, event


def _make_room() -> None:
    for copy in [each for each in _under_way if each.ready()]:
        copy.values()
    while len(_under_way) >= MOST_UNDER_WAY:
        _under_way[0].values()


class PendingRows:
    """A function that gives the rows, and says whether that costs a wait."""

    def __init__(self, copies: list[Copy], finish: Callable[[list[np.ndarray]], Rows]) -> None:
        self._copies, self._finish = copies, finish

    def ready(self) -> bool:
        """Whether the rows can be had without waiting."""
        return all(copy.ready() for copy in self._copies)

    def __call__(self) -> Rows:
        return self._finish([copy.values() for copy in self._copies])

    def then(self, change: Callable[[Rows], Rows]) -> PendingRows:
        """The rows as `change` makes them, once they have come."""
        return PendingRows(self._copies, lambda arrived: change(self._finish(arrived)))


def put_together(rows: Rows, parts: list[tuple[list[int], PendingRows]]) -> PendingRows:
    """Rows that are here already, and those at some positions that are still on their way."""
    copies = [copy for _, pending in parts for copy in pending._copies]

    def finish(arrived: list[np.ndarray]) -> Rows:
        first = 0
        for positions, pending in parts:
            last = first + len(pending._copies)
            rows[positions] = pending._finish(arrived[first:last])
            first = last
        return rows

    return PendingRows(copies, finish)
