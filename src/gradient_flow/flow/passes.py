"""Backward passes and clips of the user's code, heard of as they happen: the losses and norms that a step will need."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gradient_flow.capture import foreign_clipping, losses
from gradient_flow.capture.arrivals import is_capturing
from gradient_flow.capture.module_calls import aside, has_modes
from gradient_flow.flow.guard import Guard
from gradient_flow.flow.loss_origin import LossOrigin
from gradient_flow.flow.steps import Steps


class Passes:
    """Tells the steps of a flow what led to them."""

    def __init__(self, steps: Steps, guard: Guard) -> None:
        self._steps, self._guard = steps, guard
        self._losses, self._measure = steps.losses, steps.measure
        self._origin: LossOrigin = steps.records.loss_origin

    def on_clip(self, parameters: list[torch.Tensor]) -> Callable[[], None]:
        """Gradients are about to be clipped; what to call once they are."""
        guard = self._guard
        if not guard.closed:
            self._steps.describer.saw_clip(foreign_clipping.current_clip())
        if guard.closed or guard.gave_up or not self._steps.may_be_recorded() or is_capturing():
            return losses.nothing
        done: list[Callable[[], None]] = []

        def measure_before() -> None:
            marked = self._measure.before_clip(parameters)
            done.extend([] if marked is None else [marked])

        guard.run(measure_before)
        return lambda: guard.run(done[0]) if done else None

    def on_loss(self, loss: torch.Tensor | None, clear: bool = True) -> Callable[[], None]:
        """A backward pass is about to begin; what to call once it has ended."""
        guard, steps = self._guard, self._steps
        if guard.closed or guard.gave_up or not steps.wants_losses():
            self._losses.forget()
            return losses.nothing
        if steps.progress.thread != threading.get_ident() and not self._losses.is_ours(loss):
            return (
                losses.nothing
            )  # another model's loss: reading our gradients while their thread writes them would crash
        guard.run(self._begins, loss, clear)
        return partial(guard.run, self._ended)

    def on_unclear_loss(self, loss: torch.Tensor | None) -> Callable[[], None]:
        """The same of a pass that may be something else than that of a loss."""
        return self.on_loss(loss, clear=False)

    def _begins(self, loss: torch.Tensor | None, clear: bool) -> None:
        value = scaler = None
        if loss is not None:
            scaler = losses.scaler_of(loss) if losses.scaled else None
            if has_modes():  # those of the user see what the user does
                with aside():
                    value = self._value_of(loss, scaler)
            else:
                value = self._value_of(loss, scaler)
            if scaler is not None:
                self._measure.hear_scaler(scaler)
            else:  # what a scaler made overflow is nobody's fault
                self._origin.hold(loss)
        inside = self._steps.inside
        if inside is not None and (batches := inside.batches) is not None:
            batches.backward_begins(value)
        self._losses.begin(loss, value, clear=clear, scaled=scaler is not None)

    def _value_of(self, loss: torch.Tensor, scaler: Any) -> Any:
        value = self._losses.value_of(loss)
        is_finite = scaler is None and type(value) is float and math.isfinite(value)
        if not is_finite and self._steps.records.first_nonfinite is None:
            self._origin.note(loss, self._steps.progress.steps + 1)
        return value

    def _ended(self) -> None:
        inside = self._steps.inside
        if self._losses.end() and inside is not None:
            inside.backward_ended(self._steps.known.live)
