"""Steps that a device acted on by itself: accounted for, in their order, once their numbers have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gradient_flow.act.buffers import BufferLook
from gradient_flow.act.on_device import DeviceAction
from gradient_flow.capture.arrivals import LateNumber, has_come, on_device
from gradient_flow.capture.optimizer_steps import NotedScale
from gradient_flow.diagnosis.step_health import Finding
from gradient_flow.errors import warn
from gradient_flow.record.step import number_of
from gradient_flow.table import GradientTable

MOST_OPEN: Final = 8
"""Steps that may be unaccounted for at once. One more, and the oldest is waited for."""


@dataclass(kw_only=True)
class ManagedStep:
    """A step in the hands of a manager: what is known of it, or on its way."""

    number: int
    table: GradientTable
    loss: float | LateNumber | None
    rate: Any
    """The first learning rate, a number or on its way."""
    overflow: Sequence[float | LateNumber] = ()
    """Above 0 where a `GradScaler` found the gradients not finite."""
    noted: NotedScale | None = None
    """The loss scale at this step."""
    findings: list[Finding] = field(default_factory=list)
    bad_ranks: tuple[int, ...] = ()
    checked: bool = True
    action: DeviceAction | None = None
    """What was launched for it; None where the host acts."""
    buffers: Sequence[BufferLook] = ()
    info: dict[str, Any] | None = None
    """What the step reports, once it is accounted for."""

    def _coming(self) -> list[LateNumber]:
        return [value for value in (self.loss, self.rate, *self.overflow) if isinstance(value, LateNumber)]

    def wait(self) -> None:
        """Wait for all of it, once: what was sent last comes first, and the rest is there by then."""
        if self.action is not None:
            self.action.wait()
        for look in self.buffers:
            look.wait()
        if self.noted is not None:
            self.noted.value()
        for value in reversed(self._coming()):
            value.value()

    def ready(self) -> bool:
        """Whether it can be accounted for without a wait."""
        return (
            self.table.ready
            and all(value.ready() for value in self._coming())
            and (self.noted is None or self.noted.ready())
            and (self.action is None or self.action.ready())
            and all(look.ready() for look in self.buffers)
        )


class LateSteps:
    """Steps that are not accounted for yet, the oldest first."""

    def __init__(self) -> None:
        self._open: deque[ManagedStep] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, step: ManagedStep) -> None:
        """One more."""
        self._open.append(step)

    def those_after(self, step: ManagedStep) -> int:
        """How many are younger than this one."""
        return sum(other.number > step.number for other in self._open)

    def settle(self, conclude: Callable[[ManagedStep], object], *, at_most: int = MOST_OPEN) -> None:
        """Account for those that have come, and wait for the oldest while more than `at_most` are left."""
        while self._open and (len(self._open) > at_most or has_come(self._open[0])):
            step = self._open.popleft()
            try:
                step.wait()
                conclude(step)
            except Exception as problem:  # the device failed: what it did is not to be known any more
                lost, self._open = len(self._open) + 1, deque()
                warn(
                    f"{lost} steps from step {step.number} on cannot be accounted for "
                    f"({type(problem).__name__}: {problem}). Training is not stopped by this.",
                    stacklevel=5,
                )


def late_number(value: Any) -> float | LateNumber | None:
    """A number of one element: as it is, or on its way from a device; None for anything else."""
    is_late = on_device(value) and not getattr(value, "is_meta", False) and value.numel() == 1
    return LateNumber(value) if is_late else number_of(value)


def known(value: float | LateNumber | None) -> float | None:
    """The number; waits for it where it has not come."""
    return float(value) if isinstance(value, LateNumber) else value
