"""Each step of the watched optimizers, from the hook that it begins with to the record that it leaves."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from gradient_flow.act.attachment import Attachment
from gradient_flow.capture.arrivals import is_capturing
from gradient_flow.capture.optimizer_steps import after_backward, backward_depth, running_backward
from gradient_flow.capture.sharding import is_first_rank
from gradient_flow.capture.unsupported import why_elsewhere
from gradient_flow.diagnosis.optimizer.record import OPTIMIZER
from gradient_flow.diagnosis.verdict import LOOP
from gradient_flow.errors import warn
from gradient_flow.flow.backward_steps import BackwardStep
from gradient_flow.flow.describe import Describer
from gradient_flow.flow.guard import Guard
from gradient_flow.flow.histograms import Histograms
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.known_parameters import KnownParameters, Named
from gradient_flow.flow.ordinary_steps import OrdinarySteps
from gradient_flow.flow.progress import Progress
from gradient_flow.flow.rank_checks import BadRank, RankCheck, RankReport, RankTrace
from gradient_flow.flow.recorder import Arrival, OpenStep, Recorder
from gradient_flow.flow.step_losses import StepLosses
from gradient_flow.flow.step_records import StepRecords
from gradient_flow.flow.step_tables import StepMeasure, StepTables
from gradient_flow.flow.watched_optimizers import WatchedOptimizers
from gradient_flow.flow.weakly import weakly
from gradient_flow.record.event import FORENSICS, LOOKED, LOOKS_ENDED, MODE, UNSUPPORTED, Event
from gradient_flow.record.look import LookRecord
from gradient_flow.record.plain import to_plain
from gradient_flow.record.step import StepRecord
from gradient_flow.table import GradientTable
from gradient_flow.table.updates import WeightSample


class Steps:
    """Measures each step, lets a manager act on it, has it recorded, and looks ahead to the next."""

    def __init__(
        self,
        progress: Progress,
        known: KnownParameters,
        measure: StepMeasure,
        recorder: Recorder,
        records: StepRecords,
        optimizers: WatchedOptimizers,
        guard: Guard,
        describer: Describer,
        *,
        every: int,
        layers_every: int,
        by_hand: bool,
        attachment: Attachment | None,
        scaler: Any,
        check: RankCheck | None,
        trace: RankTrace | None,
        process_group: Any,
    ) -> None:
        self.progress, self.known, self.measure = progress, known, measure
        self.records, self.describer = records, describer
        self.losses = StepLosses(known)
        self._recorder, self._optimizers, self._guard = recorder, optimizers, guard
        self._every, self._layers_every, self._by_hand = every, layers_every, by_hand
        self._attachment, self._scaler = attachment, scaler
        self._origins = 0 if attachment is None else len(attachment.manager.origins)
        self._check, self._trace = check, trace
        self._histograms = Histograms()
        self.rank_report: RankReport | None = None
        """How ranks compared, where they were checked with the last recorded step."""
        self.bad_ranks: tuple[BadRank, ...] = ()
        self._warned_of_ranks = False
        self._backward: BackwardStep | None = None
        self.backward_steps = 0
        self._open: OpenStep | None = None
        self._usual: StepTables | None = None
        """What was measured in the general way, until the step is over."""
        self._sample: WeightSample | None = None
        self.inside: Inside | None = None
        self.ordinary: OrdinarySteps | None = None
        together = (scaler, attachment, check, trace, process_group)  # each has something to do in every step
        if not guard.off and all(each is None for each in together):
            self.ordinary = OrdinarySteps(
                self.progress,
                recorder,
                records,
                measure,
                self.losses,
                self._histograms,
                optimizers,
                guard,
                every=every,
                layers_every=layers_every,
            )

    @property
    def table(self) -> GradientTable | None:
        """The gradients of the last recorded step, as backward left them."""
        progress = self.progress
        if progress.rows is not None and self.ordinary is not None:
            progress.table, progress.rows = self.ordinary.table(progress.rows), None
        return progress.table

    def look_inside(self, inside: Inside) -> None:
        """Look inside a model in some of the steps to come."""
        self.inside = self.records.inside = self.measure.talk = inside
        if self.ordinary is not None:
            self.ordinary.inside = inside

    def forget_plans(self) -> None:
        """The coming step is not what was expected."""
        if self.ordinary is not None:
            self.ordinary.forget()

    # ---- a step begins --------------------------------------------------------------------------------------------

    def begins(self, optimizer: torch.optim.Optimizer, loss: Any) -> None:
        """An optimizer is about to step; `loss` is what its closure returned. An ordinary step does not come here."""
        self.forget_plans()  # until this one is over, which it may never be
        if self._guard.closed or is_capturing():
            return  # what is launched into a CUDA graph would run with each of its replays
        if loss is not None:
            self.losses.closure_returned(loss)
        logged = self.progress.logged.get("loss", loss)
        task = running_backward()
        measure = self._before_step if task is None else partial(self._inside_backward, task=task)
        measured = self._guard.run(partial(measure, optimizer), together=True)
        if self._attachment is not None:
            table = measured.table if measured is not None and measured.clipped is None else None
            self._act(self._attachment, optimizer, logged, table)

    def take_by_hand(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A step that the user tells of, before the weights change."""
        self._guard.run(self._before_step, optimizer, together=True)
        self._guard.run(self.finish)
        self._guard.run(self._look_ahead, optimizer)

    def _before_step(self, optimizer: torch.optim.Optimizer | None) -> StepTables | None:
        # Most of a step of a small model is this code, found in no cache: what does not apply is not even called.
        if self._backward is not None:
            self.end_backward()
        progress = self.progress
        progress.thread = threading.get_ident()
        progress.steps += 1
        own = self._optimizers.count(optimizer)
        logged = self.losses.of_step(optimizer)
        if progress.logged:
            logged = logged | progress.take_logged()
        if self._scaler is not None:
            self.records.count_skipped()
        recorded = self._is_recorded(own)
        if self._trace is not None:  # a manager acts on every step, recorded or not
            self._ask_ranks(asked=recorded or self._attachment is not None)
        if not recorded:
            return None
        ours = self.stepped_by(optimizer)
        looks = self._is_look(own)
        if self._guard.gave_up or self._is_elsewhere(ours):
            return None
        with self._guard.or_end():
            measured = self.measure.measure(optimizer, ours)
            table, clipped, owed = measured.table, measured.clipped, measured.owed
            if self._check is not None:
                self._compare_ranks(clipped if clipped is not None else table, looks)
        progress.put_tables(table, clipped)
        look = LookRecord(step=progress.steps, table=table) if looks else None
        over_ranks = self.measure.rank_steps.get(id(optimizer))
        if over_ranks is not None and look is not None:
            over_ranks.remember(look, ours)
            look = None  # it is completed by the ranks together, with their next recorded step
        if self._guard.failed:
            return measured  # nothing is recorded any more, but the other ranks count on this one
        if owed is not None:
            self._recorder.add_late_look(owed.look.step, owed.ready, owed.complete)
        record = self._record(logged, optimizer)
        if look is not None:
            self._sample = WeightSample([(name, parameter) for name, parameter in ours if parameter.grad is not None])
        self._usual = measured if optimizer is not None else None
        arrivals = [self.records.arrival(record, measured, looks=looks)]
        if look is not None and (taken := self._histograms.start(look, optimizer, ours)) is not None:
            arrivals.append(Arrival(*taken))
        self._open = self._recorder.open(record, look, arrivals)
        if self.inside is not None:
            scale = self.records.scale
            if self._scaler is not None:
                scale.settle(wait=self.inside.is_looking)
            norm = record.norm if measured.here else None
            self.inside.before_update(optimizer, table, ours, scale.scale, self._held_by_optimizers, norm)
        return measured

    def _record(self, logged: Mapping[str, Any], optimizer: torch.optim.Optimizer | None) -> StepRecord:
        record = self.records.make(logged, optimizer)
        if self.bad_ranks:
            record.nonfinite_ranks = [bad._asdict() for bad in self.bad_ranks]
        if self.rank_report is not None:
            record.values |= self.rank_report.to_record()
        return record

    def _act(
        self, attachment: Attachment, optimizer: torch.optim.Optimizer, loss: Any, table: GradientTable | None
    ) -> None:
        """Let the manager act. What it raises is passed on: the user chose that policy."""
        steps = self.measure.rank_steps.get(id(optimizer))
        ranks = None if steps is None or table is None else steps.ranks
        bad_ranks = None if self._trace is None else tuple(bad.rank for bad in self.bad_ranks)
        done = attachment.before_step(optimizer, loss, table, ranks=ranks, bad_ranks=bad_ranks)
        for origin in attachment.manager.origins[self._origins :]:
            self._guard.run(self._recorder.add_event, origin_event(origin, self.progress.steps))
        self._origins = len(attachment.manager.origins)
        if self._backward is not None and running_backward() is not None:
            info = done.info()
            self._backward.add_action(info["clipping"], info["nan_inf"]["action"])
        if self._open is None:
            return

        def put(opened: OpenStep) -> None:
            record, info = opened.record, done.info()
            if info["clipping"]["clipped"]:
                record.clipped_norm = info["clipping"]["clipped_norm"]
            record.clip_threshold, record.guard = info["clipping"]["threshold"], info["nan_inf"]["action"]

        self._open.arrivals.append(Arrival(done.ready, put))

    # ---- a step is over -------------------------------------------------------------------------------------------

    def ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped. An ordinary step does not come here."""
        if self._attachment is not None:
            self._attachment.after_step(optimizer)
        if self._guard.closed:
            return
        steps = self.measure.rank_steps.get(id(optimizer))
        if steps is not None:
            self._guard.run(steps.step_is_done)
        if self._open is not None:
            self._guard.run(self.finish)
        if self.inside is not None and running_backward() is None:
            self._guard.run(self._look_ahead, optimizer)
        if self._check is not None and running_backward() is None:
            self._check.step_is_done()
        if self.ordinary is not None and self._usual is not None:
            self._guard.run(self._plan_ordinary, self.ordinary, optimizer)

    def finish(self) -> None:
        """The step is over: complete its record with what has arrived so far."""
        opened, self._open = self._open, None
        sample, self._sample = self._sample, None
        if opened is None:
            return
        opened.take_in()
        waiting = bool(opened.arrivals)
        if opened.look is not None and opened.look.table is not None and sample is not None:
            moved, look, names = sample.moved(), opened.look, opened.look.table.names

            def put_ratios(_: OpenStep) -> None:
                ratios = moved.ratios()
                look.update_ratio = np.array([ratios.get(name, np.nan) for name in names])

            opened.arrivals.append(Arrival(moved.ready, put_ratios))
        opened.finished = True
        if self.inside is not None and not waiting:
            self.inside.note(opened.record)
        self._recorder.move_on()

    def _look_ahead(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A step is over: record what a look saw in it, and begin one if the coming step is to be looked at."""
        inside, step = self.inside, self.progress.steps
        if inside is None:
            return
        if inside.has_news:
            self._record_looks(inside, optimizer)
        if self.may_be_recorded() and not self._guard.gave_up:
            inside.plan(step + 1, partial(self.stepped_by, optimizer), optimizer, self._optimizers.living)
        if (mode := inside.news_of_mode()) is not None:
            self._recorder.add_event(Event(kind=MODE, step=step, data=mode))
        if (ended := inside.news_of_end()) is not None:
            self._recorder.add_event(Event(kind=LOOKS_ENDED, step=step, data={"reason": ended}))

    def _record_looks(self, inside: Inside, optimizer: torch.optim.Optimizer | None) -> None:
        step = self.progress.steps
        found = inside.after_update(step)
        if found is not None:
            seen, why = found
            self._recorder.add_look(LookRecord(step=step, seen=seen))
            self._recorder.add_event(Event(kind=LOOKED, step=step, data=why))
        for name, facts in ((LOOP, inside.after_round(optimizer)), (OPTIMIZER, inside.after_state(optimizer, step))):
            if facts is not None:
                self._recorder.add_look(LookRecord(step=step, seen={name: facts}))

    def _plan_ordinary(self, ordinary: OrdinarySteps, optimizer: torch.optim.Optimizer) -> None:
        """See how long the coming steps may be ordinary, after one that took the general way."""
        usual, self._usual = self._usual, None
        if usual is not None and not self._guard.gave_up:
            alone = usual.here and len(self._optimizers.steps) == 1
            ordinary.plan(optimizer, self._parameters_of(optimizer), usual=alone)

    # ---- steps that are taken inside a backward pass --------------------------------------------------------------

    def _inside_backward(self, optimizer: torch.optim.Optimizer, task: int) -> StepTables | None:
        """A step that is one of many in the backward pass `task`, and is recorded together with them."""
        if self._backward is not None and not self._backward.takes(optimizer, task):
            self.end_backward()
        if self._backward is None:
            self.progress.steps += 1
            self.backward_steps += 1
            own = self.backward_steps
            self._backward = BackwardStep(recorded=self._is_recorded(own), looks=self._is_look(own))
            self._backward.losses = self.losses.of_step(None, inside=True)
        step = self._backward
        step.recorded &= not self._guard.gave_up
        if step.add_step(optimizer, task):
            ended = weakly(self, "_on_backward_ended")
            after_backward(lambda: ended(step))
        if self._attachment is not None:
            self._ask_ranks(asked=True)
        if not step.recorded:
            return None
        ours = self._parameters_of(optimizer)
        with self._guard.or_end():
            measured = self.measure.measure(optimizer, ours)
        over_ranks = id(optimizer) in self.measure.rank_steps
        sample = WeightSample([(name, p) for name, p in ours if p.grad is not None]) if step.looks else None
        step.add_tables(measured, None if over_ranks else sample)
        return measured

    def _on_backward_ended(self, step: BackwardStep) -> None:
        if self._backward is step and backward_depth() <= 1:
            self._guard.run(self.end_backward, together=True)

    def settle(self) -> None:
        """Record a backward pass whose end was not seen, such as one that failed."""
        if self._backward is not None and running_backward() is None:
            self._guard.run(self.end_backward, together=True)

    def end_backward(self) -> None:
        """Record the steps that were taken inside a backward pass as one."""
        step, self._backward = self._backward, None
        if step is None:
            return
        progress = self.progress
        logged = step.losses | progress.take_logged()
        self.records.count_skipped()
        if self._attachment is None:
            self._ask_ranks(asked=step.recorded)
        if self._check is not None:
            self._check.step_is_done()
        if not step.recorded or not step.measured:
            return
        with self._guard.or_end():
            table, clipped = step.tables(self.known.places)
            self._compare_ranks(clipped if clipped is not None else table, step.looks)
        progress.put_tables(table, clipped)
        if self._guard.failed:
            return
        record = self._record(logged, None)
        record.lr, record.guard, record.optimizer = step.rates, step.guard, self._optimizers.first_of(step.optimizers)
        if (managed := step.managed_norm()) is not None:
            record.clipped_norm = managed
        look = LookRecord(step=progress.steps, table=table) if step.looks else None
        if look is not None and (ratios := step.ratios()):
            look.update_ratio = np.array([ratios.get(name, np.nan) for name in table.names])
        arrival = self.records.arrival(record, StepTables(table, clipped), looks=look is not None)
        self._open = self._recorder.open(record, look, [arrival])
        if self.inside is not None:
            scale = self.records.scale
            scale.settle(wait=self.inside.is_looking)
            self.inside.before_update(None, table, self.known.live(), scale.scale)
        self.finish()
        if self.inside is not None:
            self._look_ahead(None)

    # ---- which steps, of which parameters -------------------------------------------------------------------------

    def _is_recorded(self, own_step: int) -> bool:
        """Counted per optimizer: with two that alternate, every second step must not always be the same one's."""
        return own_step % self._every == 0

    def _is_look(self, own_step: int) -> bool:
        return (own_step // self._every) % self._layers_every == 0 or own_step == self._every

    def may_be_recorded(self) -> bool:
        """Whether the next step, by any optimizer, may be."""
        if self._every == 1:
            return True
        if running_backward() is not None:
            return self._is_recorded(self.backward_steps + (self._backward is None))
        return any(self._is_recorded(own + 1) for own in self._optimizers.steps)

    def wants_losses(self) -> bool:
        """Whether the loss of the coming step is to be known."""
        return self._every == 1 or self._by_hand or self.may_be_recorded()

    def stepped_by(self, optimizer: torch.optim.Optimizer | None) -> Named:
        """What an optimizer steps; without one, everything."""
        return self.known.live() if optimizer is None else self._parameters_of(optimizer)

    def _parameters_of(self, optimizer: torch.optim.Optimizer) -> Named:
        found = self.known.of(optimizer)
        if found is None:
            self.learn_from(optimizer, {})  # a parameter group was added meanwhile
            found = self.known.of(optimizer)
        return found or []

    def learn_from(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Know the parameters of an optimizer; `names` are those of some, by id."""
        self._recorder.list_parameters(self.known.add_from(optimizer, self._optimizers.number_of(optimizer), names))

    def _held_by_optimizers(self) -> dict[int, str]:
        return self._optimizers.held(self.known.name_of)

    def _is_elsewhere(self, parameters: Named) -> bool:
        """Whether gradients are kept elsewhere than in `.grad`; of Megatron that is known only after the first step."""
        for _, parameter in parameters:
            if parameter.grad is not None:
                return False
        reason = why_elsewhere(parameter for _, parameter in parameters)
        if reason is not None:
            self.give_up(reason)
        return reason is not None

    def give_up(self, reason: str) -> None:
        """Record nothing further, because the gradients are not where they could be read; the verdict says why."""
        if self._guard.gave_up:
            return
        event = Event(kind=UNSUPPORTED, step=self.progress.steps, data={"reason": reason})
        self._guard.run(self._recorder.add_event, event)
        self._guard.gave_up = True
        if is_first_rank():
            warn(f"gradient_flow does not record this training. {reason}", stacklevel=3)

    # ---- ranks ----------------------------------------------------------------------------------------------------

    def _ask_ranks(self, *, asked: bool) -> None:
        if self._trace is not None:
            # What is not asked for now must not be blamed on a later step.
            self.bad_ranks = self._trace.bad_ranks() if asked else self._trace.forget()

    def _compare_ranks(self, table: GradientTable, looks: bool) -> None:
        """One small collective where it was asked for, in the same steps on every rank."""
        report = self.rank_report = self._check.compare(table) if self._check is not None and looks else None
        if report is not None and report.differing and not self._warned_of_ranks:
            self._warned_of_ranks = True
            warn(f"Step {self.progress.steps}: {report}", stacklevel=6)


def origin_event(origin: Any, step: int) -> Event:
    """What `gf.find_nonfinite` found, as an event of a step."""
    plain = to_plain(origin)
    if isinstance(plain.get("file"), str):  # no home folder, no user name
        plain["file"] = os.path.basename(plain["file"])
    return Event(kind=FORENSICS, step=step, data={"origin": plain})
