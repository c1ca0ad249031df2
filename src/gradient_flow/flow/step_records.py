"""The record of a step: opened as it begins, filled when its numbers have come, with what stands out about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from gradient_flow.capture.optimizer_steps import NotedScale, ScaleWatch
from gradient_flow.errors import warn
from gradient_flow.flow.describe import Describer
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.known_parameters import KnownParameters
from gradient_flow.flow.loss_origin import LossOrigin
from gradient_flow.flow.nonfinite_looks import NonFiniteLooks
from gradient_flow.flow.progress import Progress
from gradient_flow.flow.recorder import Arrival, OpenStep, Recorder, arriving, arriving_list
from gradient_flow.flow.step_tables import StepTables
from gradient_flow.flow.watched_optimizers import WatchedOptimizers
from gradient_flow.record.event import BATCH, CLIP_BEFORE_UNSCALE, FORENSICS, Event
from gradient_flow.record.evidence import CLIP_TOLERANCE, NonFinite
from gradient_flow.record.step import StepRecord
from gradient_flow.table import GradientTable

_MOST_LAYERS: Final = 20
"""Layers with NaN or Inf that a record names."""


class StepRecords:
    """Makes the records of a run, and the events that its steps give rise to."""

    def __init__(
        self,
        progress: Progress,
        recorder: Recorder,
        known: KnownParameters,
        optimizers: WatchedOptimizers,
        describer: Describer,
        scaler: Any,
    ) -> None:
        self._progress, self._recorder, self._optimizers = progress, recorder, optimizers
        self._describer, self._scaler = describer, scaler
        self.start = time.time()
        self._bad_looks = NonFiniteLooks()
        self._told_of_clip = False
        self._noted: NotedScale | None = None
        self.scale = ScaleWatch()
        self.loss_origin = LossOrigin(known.name_of)
        self.inside: Inside | None = None
        self.first_nonfinite: NonFinite | None = None
        self.note_norms: Callable[[StepRecord], None] | None = None
        """Told of each record once its numbers have come."""

    def now(self) -> float:
        """Seconds since the watch began."""
        return round(time.time() - self.start, 4)

    def count_skipped(self) -> None:
        """See by the scale whether the `GradScaler` has skipped steps."""
        if self._scaler is not None:
            self._noted = self.scale.note(self._scaler)

    def make(self, logged: Mapping[str, Any], optimizer: torch.optim.Optimizer | None) -> StepRecord:
        """The record of the step that begins, with what is known by then."""
        record = StepRecord.awaited(self._progress.steps, self.now())
        for name, value in logged.items():
            record.put(name, arriving(value))
        if optimizer is not None:
            record.lr = arriving_list([group["lr"] for group in optimizer.param_groups if "lr" in group])
            record.optimizer = self._optimizers.number_of(optimizer)
        if self._scaler is not None:
            record.put("amp_scale", None if self._noted is None else self._noted.scale)
            record.put("skipped_steps", self._noted)
        self._describer.at_step(optimizer, record.optimizer)
        return record

    def arrival(self, record: StepRecord, measured: StepTables, *, looks: bool) -> Arrival:
        """Fills the record from the tables of its step, as soon as they have arrived."""
        ready = _at_once if measured.here else lambda: measured.ready
        return Arrival(ready, partial(self._fill, record, measured, looks))

    def _fill(self, record: StepRecord, measured: StepTables, looks: bool, opened: OpenStep) -> None:
        record.fill(measured.table.total)
        if measured.clipped is not None and record.clipped_norm is None:
            record.clipped_norm = measured.clipped.total.norm
        if self.note_norms is not None:
            self.note_norms(record)
        bad = record.nan_count or record.inf_count
        if bad:
            self._note_nonfinite(record, measured.table)
        if record.step == self._progress.steps:  # else the numbers came late from a device, and the batch is gone
            self._name_batch(record)
        if measured.scales and measured.scale_at_clip != 1.0:
            self._tell_of_scaled_clip(measured, record.step)
        if bad and opened.look is None and not looks:
            opened.look = self._bad_looks.look(record.step, measured.table)
        if opened.finished and self.inside is not None:
            self.inside.note(record)  # its step is over: else that is done when it is

    def _name_batch(self, record: StepRecord) -> None:
        """Record the batch of a step that spikes or is not finite."""
        batches = None if self.inside is None else self.inside.batches
        named = None if batches is None else batches.of_step(record.norm)
        if named is not None:
            record.values |= {"batch": named["batch"]}
            self._recorder.add_event(Event(kind=BATCH, step=record.step, data=named))

    def _note_nonfinite(self, record: StepRecord, table: GradientTable) -> None:
        bad = [name for name, finite in zip(table.names, table.finite, strict=True) if not finite]
        record.finite_norm = table.total.finite_part.norm
        record.nonfinite_layers = bad[:_MOST_LAYERS]
        if self.first_nonfinite is None:
            origin = self.loss_origin.of_step(record.step, frozenset(bad))
            if origin is not None:
                self._recorder.add_event(Event(kind=FORENSICS, step=record.step, data={"origin": origin}))
            self.first_nonfinite = NonFinite(record.step, tuple(bad), record.nan_count, record.inf_count)

    def _tell_of_scaled_clip(self, step: StepTables, number: int) -> None:
        """Once, and where the clip took effect: with an infinite limit it only served to read the norm."""
        if self._told_of_clip or step.clipped is None:
            return
        if step.clipped.total.norm < step.table.total.norm * (1 - CLIP_TOLERANCE):
            self._told_of_clip = True
            data = {"scale": step.scale_at_clip}
            self._recorder.add_event(Event(kind=CLIP_BEFORE_UNSCALE, step=number, data=data))
            warn(
                f"Step {number}: gradients were clipped with the loss scale ({step.scale_at_clip:,.0f}) still in "
                "them. Call scaler.unscale_(optimizer) before clip_grad_norm_. Norms are recorded unscaled.",
                stacklevel=9,
            )


def _at_once() -> bool:
    """When numbers are there that need not be waited for."""
    return True
