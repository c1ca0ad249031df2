"""Steps at which nothing happens but the step: noted as they are taken, recorded many at a time.

Between two steps of a small model torch evicts everything of ours from the caches, so each line of Python that runs
costs several times what it costs when it runs again. An ordinary step therefore only has its gradients measured, and
leaves a note; in every Nth step with the rows of all tensors, and a sample of the weights before and after it. The
notes become records together: when there are `MOST_NOTED`, after `LONGEST` seconds, and before anything else is
recorded or anybody asks. Whatever is unusual about a step makes it take the general way. Where only every Nth step is
recorded, those between are counted and left alone.

For the same reason the hooks of an ordinary step come here at once, and what they do is written out in few functions:
`pass_begins` and `pass_ended` around the backward pass, `take` and `step_is_over` around the step. Each says whether
the general way is spared.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch._C import _current_graph_task_id

from gradient_flow.capture import losses
from gradient_flow.capture.module_calls import has_modes
from gradient_flow.flow.guard import Guard
from gradient_flow.flow.histograms import Histograms
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.known_parameters import Named
from gradient_flow.flow.progress import Progress
from gradient_flow.flow.recorder import Recorder, arriving
from gradient_flow.flow.step_losses import StepLosses
from gradient_flow.flow.step_records import StepRecords
from gradient_flow.flow.step_tables import StepMeasure
from gradient_flow.flow.watched_optimizers import WatchedOptimizers
from gradient_flow.record.look import LookRecord
from gradient_flow.record.step import StepRecord
from gradient_flow.table import GradientStats, GradientTable
from gradient_flow.table.columns import INDEX, LARGEST_SUM
from gradient_flow.table.updates import Moved, WeightSample

if TYPE_CHECKING:
    from gradient_flow.table.kernels.native import InPlace

MOST_NOTED: Final = 32
"""Steps that may be noted and not recorded yet: a process that is killed loses no more."""
LONGEST: Final = 1.0
"""Seconds after which the next step has them recorded, so that a growing file is at most that old."""
FIRST: Final = 16
"""Steps before this one are recorded one by one: the file of a run that has just begun is looked into most."""
_FURTHEST: Final = 250
"""Steps after which one takes the general way at any rate: it sees what is looked for in no ordinary one."""
_WINDOW: Final = 32
_HALF: Final = 16
_HIGH: Final = 1.8
"""Times the median norm: up to here nothing calls a step a spike, nor asks for its batch."""
_JUMP: Final = 3.0
"""The same for the half of the window that the state of an optimizer is watched by."""
_QUIET: Final = 1e-3
"""Times the largest norm: above it gradients have not gone quiet."""
_RATE: Final = 3.0
"""Times the learning rate before, up or down: within it nobody asks for a look."""
_COUNT, _SUM_SQ, _NAN, _INF = (INDEX[name] for name in ("count", "sum_sq", "nan", "inf"))


class _Plan(NamedTuple):
    """What an optimizer was at its last step that took the general way; valid while all of it holds."""

    optimizer: int
    number: int
    """The optimizer by its id, and as records name it."""
    until: float
    """Before this step nothing is due but tables."""
    own: int
    """By how much the optimizer's own count of steps is ahead of the flow's."""
    lists: list[list[int]]
    """Ids of the parameters of each group."""
    order: list[int]
    """Where those with a gradient are among all of them, in the order of the table."""
    missing: list[int]
    names: list[str]
    absent: list[str]
    step: Any
    """The optimizer's own `step`, which a scheduler leaves its trace in."""


class _NotedTable:
    """What is kept of the tensors of a step that a table is due in."""

    __slots__ = ("moved", "rows", "sample")

    def __init__(self, rows: InPlace, sample: WeightSample) -> None:
        self.rows = rows
        self.sample: WeightSample | None = sample
        """Of the weights before the step, until it is over."""
        self.moved: Callable[[], Moved] | None = None
        """How far it moved them; None where it was never seen to end."""

    def step_is_over(self) -> None:
        """Read the weights again."""
        sample, self.sample = self.sample, None
        if sample is not None:
            self.moved = sample.moved_later()

    def look(self, step: int, table: GradientTable) -> LookRecord:
        """The record."""
        look = LookRecord(step=step, table=table)
        if self.moved is not None:
            ratios = self.moved().ratios()
            look.update_ratio = np.array([ratios.get(name, np.nan) for name in table.names])
        return look


class _Note(NamedTuple):
    """What is kept of a step until its record is made."""

    plan: _Plan
    step: int
    time: float
    total: tuple[float, ...]
    rates: list[Any]
    logged: dict[str, Any]
    table: _NotedTable | None


class OrdinarySteps:
    """Takes ordinary steps of a flow with one optimizer, in host memory, and hands their records to the recorder."""

    def __init__(
        self,
        progress: Progress,
        recorder: Recorder,
        records: StepRecords,
        measure: StepMeasure,
        losses: StepLosses,
        histograms: Histograms,
        optimizers: WatchedOptimizers,
        guard: Guard,
        *,
        every: int,
        layers_every: int,
    ) -> None:
        self._progress, self._guard = progress, guard
        self._recorder, self._measure, self._losses = recorder, measure, losses
        self._histograms, self._optimizers, self._origin = histograms, optimizers, records.loss_origin
        self._every, self._layers_every, self._start = every, layers_every, records.start
        self.inside: Inside | None = None
        self._plan: _Plan | None = None
        self._last: _Plan | None = None
        """By which the last ordinary step was measured."""
        self._under_way = False
        """Whether an ordinary step has begun and is not over."""
        self._notes: deque[_Note] = deque()
        self._norms: deque[float] = deque(maxlen=_WINDOW)
        self._rate = math.nan
        recorder.before_anything = self.catch_up
        records.note_norms = self.note_general

    def plan(self, optimizer: torch.optim.Optimizer, parameters: Named, *, usual: bool) -> None:
        """A step of this optimizer took the general way and is over; whether it was `usual` in its way.

        From it is seen how far the coming ones may be ordinary.
        """
        step = self._progress.steps
        self._plan = None
        until = float(step + _FURTHEST) if usual and step >= FIRST else 0.0
        if self.inside is not None:
            until = min(until, self.inside.free_until(step, optimizer, self._every))
        if until <= step + 1 or len(self._norms) < _WINDOW // 2:
            return
        held = [p for group in optimizer.param_groups for p in group["params"]]
        at = {id(p): position for position, p in enumerate(held)}
        with_gradient = [(name, at[id(p)]) for name, p in parameters if p.grad is not None]
        without = [(name, at[id(p)]) for name, p in parameters if p.grad is None]
        self._plan = _Plan(
            optimizer=id(optimizer),
            number=self._optimizers.number_of(optimizer),
            until=until,
            own=self._optimizers.of(optimizer) - step,
            lists=[[*map(id, group["params"])] for group in optimizer.param_groups],
            order=[position for _, position in with_gradient],
            missing=[position for _, position in without],
            names=[name for name, _ in with_gradient],
            absent=[name for name, _ in without],
            step=vars(optimizer).get("step"),
        )

    def forget(self) -> None:
        """What was planned no longer holds."""
        self._plan = None

    def note_general(self, record: StepRecord) -> None:
        """The numbers of a step that took the general way."""
        if math.isfinite(record.norm):
            self._norms.append(record.norm)
        else:
            # Who watches norms goes on in a way of its own now: none is ordinary for a while.
            self._norms.clear()
            self.forget()
        rates = [rate for rate in record.lr or () if type(rate) is float] if isinstance(record.lr, list) else []
        self._rate = max(rates, default=math.nan)

    def pass_begins(self, loss: torch.Tensor) -> Callable[[], object] | None:
        """A backward pass is about to begin; what to call once it has ended. None: this pass takes the general way."""
        plan = self._plan
        if plan is None or self._is_off() or self._progress.thread != get_ident() or has_modes():
            return None
        if (self._progress.steps + 1 + plan.own) % self._every:
            return losses.nothing  # of a step that is not recorded
        try:
            value = self._losses.begin_usual(loss)
            if value is None:
                return None
            self._origin.hold(loss)
            if self.inside is not None and self.inside.batches is not None:
                self.inside.batches.backward_begins(value)
        except Exception as problem:
            self._guard.fail(problem)
            return None
        return self.pass_ended

    def pass_ended(self) -> None:
        """The pass that began in the usual way has ended."""
        try:
            if self._losses.end() and self.inside is not None:
                self.inside.pass_ended()
        except Exception as problem:
            self._guard.fail(problem)

    def take(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note the step that begins, if it is ordinary. False, and nothing has changed, if it is not."""
        plan = self._plan
        if plan is None or self._is_off():
            return False
        try:
            return self._take(optimizer, plan)
        except Exception as problem:
            self._guard.fail(problem)
            return False

    def _take(self, optimizer: torch.optim.Optimizer, plan: _Plan) -> bool:
        # Nearly all of a step of ours runs in this one function: each call would cost more than what it does.
        progress = self._progress
        step = progress.steps + 1
        if step >= plan.until or plan.optimizer != id(optimizer) or _current_graph_task_id() >= 0:
            return False
        inside, groups = self.inside, optimizer.param_groups
        own = step + plan.own
        if own % self._every:
            self._pass_over(optimizer, step)
            return True
        if len(groups) == 1:
            held = groups[0]["params"]
            rates: list[Any] = [groups[0].get("lr")]
        else:
            held = [p for group in groups for p in group["params"]]
            rates = [group.get("lr") for group in groups]
        if [[*map(id, group["params"])] for group in groups] != plan.lists or vars(optimizer).get("step") != plan.step:
            return False
        rate: float = max(rates) if set(map(type, rates)) == {float} else 0.0
        if not self._rate / _RATE < rate < self._rate * _RATE or (inside is not None and not inside.may_pass()):
            return False
        if plan.missing and any(held[at].grad is not None for at in plan.missing):
            return False
        looks = own // self._every % self._layers_every == 0
        if looks and self._histograms.is_due(plan.optimizer, step):
            return False
        rows = self._measure.in_place(optimizer, [held[at].grad for at in plan.order])
        if rows is None:
            return False
        total = rows.total()
        norm = math.sqrt(total[_SUM_SQ])
        finite = not total[_NAN] and not total[_INF] and total[_COUNT] and total[_SUM_SQ] < LARGEST_SUM
        if not finite or self._stands_out(norm):
            return False
        told = self._losses.of_step(optimizer)
        if progress.logged:
            told = told | progress.take_logged()
        for name, value in told.items():
            if type(value) is not float:
                told[name] = arriving(value)
        if inside is not None:
            inside.step_begins()
        self._norms.append(norm)
        self._rate, self._last = rate, plan
        table = _NotedTable(rows, WeightSample(self._named(plan, held))) if looks else None
        self._notes.append(_Note(plan, step, round(time.time() - self._start, 4), total, rates, told, table))
        # It was noted, and all that is left is to count it.
        self._optimizers.count(optimizer)
        progress.steps, progress.thread, progress.rows = step, get_ident(), rows
        self._under_way = True
        return True

    def _pass_over(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Count a step that is not recorded; what was logged for it goes with it."""
        progress = self._progress
        progress.take_logged()
        self._losses.pass_over(optimizer)
        if self.inside is not None:
            self.inside.step_begins()
        self._optimizers.count(optimizer)
        progress.steps, progress.thread = step, get_ident()
        self._under_way = True

    def step_is_over(self) -> bool:
        """Whether the step that is over was an ordinary one; if it is time, all that were noted are recorded."""
        if not self._under_way:
            return False
        self._under_way = False
        if not self._is_off():
            self._guard.run(self._end_step)
        return True

    def _end_step(self) -> None:
        notes = self._notes
        if notes and notes[-1].table is not None:
            notes[-1].table.step_is_over()
        late = notes and time.time() - self._start - notes[0].time > LONGEST
        if late or len(notes) >= MOST_NOTED or self._recorder.sinks:
            self.catch_up()

    def _is_off(self) -> bool:
        guard = self._guard
        return guard.closed or guard.failed or guard.ended or os.getpid() != guard.pid

    def table(self, rows: InPlace) -> GradientTable | None:
        """The table of the step that was noted last."""
        return None if self._last is None else self._table(self._last, rows)

    def _table(self, plan: _Plan, rows: InPlace) -> GradientTable:
        return GradientTable(plan.names, rows, missing=plan.absent, thresholds=self._measure.thresholds)

    def _named(self, plan: _Plan, held: list[Any]) -> Named:
        return [(name, held[at]) for name, at in zip(plan.names, plan.order, strict=True)]

    def catch_up(self) -> None:
        """Make records of what was noted, and hand them on in order."""
        done: list[tuple[StepRecord, LookRecord | None]] = []
        while self._notes:
            note = self._notes.popleft()
            record = StepRecord.of(note.step, note.time, GradientStats("total", note.total))
            for name, value in note.logged.items():
                record.put(name, value)
            record.lr, record.optimizer = note.rates, note.plan.number
            for name, late in record.pending():  # of a user who logs what a device computes
                record.put(name, late.value())
            table = note.table
            done.append((record, None if table is None else table.look(note.step, self._table(note.plan, table.rows))))
            if self.inside is not None:
                self.inside.passed(record, note.plan.optimizer)
        if not done:
            return
        self._recorder.hand_on(done)
        if self.inside is not None and self.inside.is_asked:
            self.forget()  # they ask for a look at one of the coming steps

    def _stands_out(self, norm: float) -> bool:
        """Whether somebody may want to know of this norm at once."""
        norms = self._norms
        if norm < _QUIET * max(norms):
            return True
        if norm <= _HIGH * min(norms):  # nearly always that settles it
            return False
        return norm > _HIGH * median(norms) or norm > _JUMP * median(list(norms)[-_HALF:])
