"""Numbers that a device is still computing: copied behind its work into pinned memory, and read when they are there.

The host asks whether they have come (`ready`), and waits only when they are wanted now, or when more copies are
under way than the ring holds. Waits are counted.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np
import torch

MOST_UNDER_WAY: Final = 128
"""Copies that may be on their way to the host at once; one more, and the oldest is waited for. An open record has a
handful: its tables, the loss, learning rates, what was logged."""


class Waits:
    """How often the host waited for a device."""

    def __init__(self) -> None:
        self.count = 0


WAITS: Final = Waits()


def on_device(value: Any) -> bool:
    """Whether it is a tensor that reading makes the host wait for."""
    device = getattr(value, "device", None)
    return device is not None and getattr(device, "type", "cpu") != "cpu"


def is_capturing() -> bool:
    """Whether launches are being captured into a CUDA graph or a compiled step: then launch nothing."""
    if torch.compiler.is_compiling():
        return True
    # Where nobody has used CUDA nothing is captured; whether there is a device takes longer to ask.
    begun: Any = torch.cuda.is_initialized  # it has no types
    return begun() and torch.cuda.is_current_stream_capturing()


def copied_behind(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy in host memory that is complete once the event beside it has come."""
    device = tensor.device
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
    host.copy_(tensor, non_blocking=True)
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return host, event


class Copy:
    """A snapshot of a tensor on its way to the host; later changes on the device do not affect it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: Any = None
        self._fault: Exception | None = None
        if on_device(tensor):
            _make_room()
            self._host, self._event = copied_behind(tensor.detach())
            _under_way.append(self)
        else:
            self._host = tensor.detach()

    def ready(self) -> bool:
        """Whether reading it costs no wait."""
        return self._event is None or bool(self._event.query())

    def tensor(self) -> torch.Tensor:
        """What it holds, in host memory; waits where it has not come."""
        if self._event is not None:
            self._arrive()
        if self._fault is not None:
            raise self._fault
        return self._host

    def values(self) -> np.ndarray:
        """The same as an array of fp64."""
        result: np.ndarray = self.tensor().to(torch.float64).numpy()
        return result

    def _arrive(self) -> None:
        try:
            if not self._event.query():
                WAITS.count += 1
                self._event.synchronize()
            # A copy: the pinned memory goes back to torch, for the copies to come.
            self._host = self._host.clone()
        except Exception as fault:  # the device failed, and asking again would not help
            self._fault = fault
        finally:
            self._event = None
            if self in _under_way:
                _under_way.remove(self)


_under_way: Final[deque[Copy]] = deque()


def _make_room() -> None:
    for copy in [each for each in _under_way if has_come(each)]:
        copy._arrive()
    while len(_under_way) >= MOST_UNDER_WAY:
        _under_way[0]._arrive()


def has_come(waited_for: Any) -> bool:
    """Whether it is `ready`, or never will be: of a device that failed nothing comes, and reading says so."""
    try:
        return bool(waited_for.ready())
    except Exception:
        return True


class LateNumber:
    """A number on its way: `float()` of it waits, `ready()` tells whether it would."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.on_device = tensor.detach()  # a loss would keep its graph
        """As the device has it, for what is launched before it changes there."""
        self._copy = Copy(tensor)

    def ready(self) -> bool:
        """Whether it has come."""
        return self._copy.ready()

    def value(self) -> Any:
        """The number, or a list where the tensor holds several."""
        tensor = self._copy.tensor()
        return tensor.item() if tensor.numel() == 1 else tensor.tolist()

    def __float__(self) -> float:
        return float(self.value())
