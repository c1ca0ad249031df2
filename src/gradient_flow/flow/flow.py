"""`Flow`: one training run under watch, from the hooks on its optimizers to its records."""

from __future__ import annotations

import math
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch

from gradient_flow._version import __version__
from gradient_flow.act.attachment import Attachment
from gradient_flow.capture import foreign_clipping, losses
from gradient_flow.capture.arrivals import is_capturing
from gradient_flow.capture.module_calls import aside, has_modes
from gradient_flow.capture.optimizer_steps import (
    NotedScale,
    ScaleWatch,
    after_backward,
    after_each_step,
    backward_depth,
    before_each_step,
    running_backward,
)
from gradient_flow.capture.sharding import is_first_rank
from gradient_flow.capture.unsupported import why_elsewhere
from gradient_flow.config import disabled
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.optimizer.record import OPTIMIZER
from gradient_flow.diagnosis.verdict import LOOP, verdict
from gradient_flow.errors import InputError, MonitorStateError, check_choice, check_whole, warn
from gradient_flow.flow.alerts import Alerts
from gradient_flow.flow.backward_steps import BackwardStep
from gradient_flow.flow.describe import Describer, is_described
from gradient_flow.flow.end import close_at_exit, end_run
from gradient_flow.flow.histograms import Histograms
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.known_parameters import KnownParameters, Named
from gradient_flow.flow.loggers import make_loggers
from gradient_flow.flow.loss_origin import LossOrigin
from gradient_flow.flow.nonfinite_looks import NonFiniteLooks
from gradient_flow.flow.notebook import LiveView, run_state_html
from gradient_flow.flow.ordinary_steps import OrdinarySteps
from gradient_flow.flow.rank_checks import BadRank, RankCheck, RankReport, RankTrace
from gradient_flow.flow.recorder import Arrival, OpenStep, Recorder, Sink, arriving, arriving_list
from gradient_flow.flow.step_losses import StepLosses
from gradient_flow.flow.step_tables import StepMeasure, StepTables
from gradient_flow.flow.watched_optimizers import WatchedOptimizers
from gradient_flow.record.ending import Ending
from gradient_flow.record.event import (
    BATCH,
    CLIP_BEFORE_UNSCALE,
    CURE,
    FORENSICS,
    LOOKED,
    LOOKS_DROPPED,
    LOOKS_ENDED,
    RESERVED_KINDS,
    RESUMED,
    UNSUPPORTED,
    Event,
)
from gradient_flow.record.evidence import CLIP_TOLERANCE, NonFinite
from gradient_flow.record.export import record_metrics
from gradient_flow.record.look import LookRecord
from gradient_flow.record.plain import to_plain
from gradient_flow.record.run import Run
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.record.step import RESERVED, StepRecord
from gradient_flow.record.window import History
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, Thresholds
from gradient_flow.table.updates import WeightSample

if TYPE_CHECKING:
    from gradient_flow.looks.live import Looks
    from gradient_flow.table.kernels.native import InPlace

Made = TypeVar("Made")

_CURE: Final = "gradient_flow.cures.cure"
"""Imported on demand: `cures/` is a room below this one."""
_MOST_LAYERS: Final = 20
"""Layers with NaN or Inf that a record names."""


class Flow:
    """One training run under watch: `table`, `history`, `run`, `diagnose()`. Made by `watch`; a context manager."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        roles: Mapping[str, str],
        *,
        run: str | Path | None,
        every: int = 1,
        layers_every: int = 10,
        groups: Any = None,
        log: Any = None,
        scaler: Any = None,
        attachment: Attachment | None = None,
        history: int = 10_000,
        near_zero: float = 1e-7,
        very_large: float = 1e3,
        process_group: Any = None,
        check: RankCheck | None = None,
        trace: RankTrace | None = None,
        again: str = "append",
        by_hand: bool = False,
        inside: Inside | None = None,
        describe: bool = True,
        config: Any = None,
        alert: Any = None,
    ) -> None:
        check_choice("again", again, ("append", "number"))
        self.every = check_whole("every", every, error=InputError)
        self.layers_every = check_whole("layers_every", layers_every, error=InputError)
        thresholds = Thresholds(near_zero, very_large)
        self._known = KnownParameters(parameters)
        self._roles = dict(roles)
        if groups is not None:
            GradientTable((), np.empty((0, len(COLUMNS)))).group(groups)  # refused now rather than at the first step
        self._groups = groups
        self._scaler = scaler
        self._attachment = attachment
        self._let_go = None if attachment is None else weakref.finalize(self, attachment.close)
        self._origins = 0 if attachment is None else len(attachment.manager.origins)
        self._check, self._trace = check, trace
        self._measure = StepMeasure(self._known, thresholds, process_group, scaler)
        self._losses = StepLosses(self._known)
        self._bad_looks = NonFiniteLooks()
        self._histograms = Histograms()
        self._loss_origin = LossOrigin(self._known.name_of)
        self.rank_report: RankReport | None = None
        """How ranks compared, where they were checked with the last recorded step."""
        self._history = History(check_whole("history", history, error=InputError))
        self._table: GradientTable | None = None
        self._rows: InPlace | None = None
        """Of the last step, where that was an ordinary one; a table is made of them when somebody asks."""
        self.clipped_table: GradientTable | None = None
        """The same after clipping, if the step was clipped by `torch.nn.utils`: by norm or by value."""
        self.steps = 0
        """Optimizer steps so far, recorded or not."""
        self.first_nonfinite: NonFinite | None = None
        self._scale = ScaleWatch()
        self._noted: NotedScale | None = None
        self._optimizers = WatchedOptimizers()
        self._backward: BackwardStep | None = None
        self._backward_steps = 0
        self._by_hand, self._gave_up = by_hand, False
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._handles: list[Any] = []
        self._logged: dict[str, Any] = {}
        self._open: OpenStep | None = None
        self._passing = False
        """Whether an ordinary step is under way."""
        self._usual: StepTables | None = None
        """What was measured in the general way, until the step is over."""
        self._sample: WeightSample | None = None
        self._bad_ranks: tuple[BadRank, ...] = ()
        self._warned_of_ranks = self._told_of_clip = False
        self._start = time.time()
        self._closed = self._failed = self._ended = False
        self._closing = threading.RLock()
        self._off = disabled()
        self._ordinary: OrdinarySteps | None = None
        self._inside: Inside | None = None
        self._model: Callable[[], torch.nn.Module | None] = _no_model if inside is None else inside.model
        if inside is not None and inside.is_on and not self._off:
            self.look_inside(inside)
        settings = {"every": every, "layers_every": layers_every, **thresholds._asdict()}
        header = self._header(settings) | ({"by_hand": True} if by_hand else {})
        header |= {"looks": True} if self._inside is not None else {}
        first = is_first_rank() and not self._off
        self.describer = Describer(
            on=first and is_described(describe), config=config, scaler=scaler, attachment=attachment
        )
        writer = RunWriter(run, header, again=again) if first and run is not None else None
        self._recorder = Recorder(self._known, self._history, writer, header)
        together = (scaler, attachment, check, trace, process_group)  # each has something to do in every step
        if every == 1 and not self._off and all(each is None for each in together):
            self._ordinary = OrdinarySteps(
                self._recorder,
                self._measure,
                self._losses,
                self._histograms,
                layers_every=layers_every,
                start=self._start,
            )
            self._ordinary.inside = self._inside
        self._loggers = make_loggers(log, None if writer is None else writer.folder) if first else []
        if self._loggers:
            self._recorder.sinks.append(self._log_record)
        self._views: list[LiveView] = []
        self._alerts: Alerts | None = None
        if alert is not None:
            alerts = Alerts(alert, _name_of(writer))  # refused on every rank alike
            if first:
                self._alerts = alerts
                self._recorder.sinks.append(_noting(alerts, self._recorder))
        self.describer.tell = _weakly(self, "_add_about")
        self._guarded(lambda: self.describer.begin(parameter for _, parameter in self._known.live()))
        self._stay_open = close_at_exit(self, self._recorder) if first else _nothing
        self._stop_listening: list[Callable[[], None]] = []
        if not self._off:
            self._stop_listening = [
                foreign_clipping.listen(_weakly(self, "_on_clip")),
                losses.listen(_weakly(self, "_on_loss"), _weakly(self, "_on_unclear_loss")),
            ]
        for stop in self._stop_listening:  # also if the flow is dropped without `close()`
            weakref.finalize(self, stop).atexit = False
        self._guarded(self._count_skipped)  # the scale to begin with: steps may be skipped before the first is taken

    # ---- what a user calls ----------------------------------------------------------------------------------------

    @property
    def table(self) -> GradientTable | None:
        """The gradients of the last recorded step, as backward left them."""
        if self._rows is not None and self._ordinary is not None:
            self._table, self._rows = self._ordinary.table(self._rows), None
        return self._table

    @property
    def history(self) -> History:
        """The last steps, number by number."""
        self._recorder.before_anything()
        return self._history

    def log(self, **values: Any) -> None:
        """Record values with the coming step: `flow.log(loss=loss, epoch=epoch)`. Call it before the step."""
        reserved = sorted(RESERVED & values.keys())
        if reserved:
            raise InputError(f"`{reserved[0]}` is recorded by the watch itself. Log your value under another name.")
        self._logged.update(values)

    def step(self, optimizer: torch.optim.Optimizer | None = None, **values: Any) -> None:
        """Record a step by hand, before the weights change: for loops without a torch optimizer."""
        if self._closed:
            raise MonitorStateError("Cannot record a step after close(). Create a new watch().")
        if self._gave_up:
            return
        self._logged.update(values)
        self._guarded(lambda: self._before_step(optimizer), together=True)
        self._guarded(self._finish)
        self._guarded(lambda: self._look_ahead(optimizer))

    def add_optimizer(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str] | None = None) -> None:
        """Watch the steps of one more optimizer. `names`, by the id of the parameter, is for those not known yet."""
        number = self._optimizers.add(optimizer)
        self._losses.add_optimizer(optimizer)
        self._learn_from(optimizer, names or {})
        self._guarded(lambda: self.describer.add_optimizer(optimizer, number))
        if self._off and self._attachment is None:
            return
        handles = [
            before_each_step(optimizer, _weakly(self, "_on_step_begins")),
            after_each_step(optimizer, _weakly(self, "_on_step_ended")),
        ]
        self._handles += handles
        for handle in handles:
            weakref.finalize(self, handle.remove).atexit = False

    def look_inside(self, inside: Inside) -> None:
        """Look inside a model in some of the steps to come."""
        self._inside, self._model, self._measure.talk = inside, inside.model, inside
        if self._ordinary is not None:
            self._ordinary.inside = inside
        weakref.finalize(self, inside.close)  # a flow that is dropped without `close()` leaves no hook behind

    def add_event(self, kind: str, step: int | None = None, **data: Any) -> None:
        """Record something that happened, with plain values: `flow.add_event("augmentation", strength=0.3)`."""
        if not isinstance(kind, str) or kind in RESERVED_KINDS:
            raise InputError(f"`kind` must be a text of your own, none of {sorted(RESERVED_KINDS)}; got {kind!r}.")
        event = Event(kind=kind, step=self.steps if step is None else step, data=to_plain(data))
        self._guarded(lambda: self._recorder.add_event(event))

    def add_origin(self, origin: Any, step: int | None = None) -> None:
        """Record what `gf.find_nonfinite` found: the verdict and the page then name the operation and its line."""
        plain = to_plain(origin)
        if isinstance(plain.get("file"), str):  # no home folder, no user name
            plain["file"] = os.path.basename(plain["file"])
        self.add_event(FORENSICS, step, origin=plain)

    def add_look(self, seen: Mapping[str, Any], step: int | None = None) -> None:
        """Record what probes saw at a step, by the name of each probe: `flow.add_look(analyzer.seen)`."""
        plain = {name: to_plain(found) for name, found in seen.items()}
        look = LookRecord(step=self.steps if step is None else step, seen=plain)
        self._guarded(lambda: self._recorder.add_look(look))

    @property
    def skipped_steps(self) -> int:
        """Steps that the `GradScaler` skipped. Waits for the scale where a device has it."""
        self._scale.settle(wait=True)
        return self._scale.total

    def subscribe(self, sink: Sink) -> None:
        """Call `sink(record, look)` with every record once it is complete; `look` is None at most steps."""
        self._recorder.before_anything()  # what was before is not for it
        self._recorder.sinks.append(sink)

    @property
    def run(self) -> Run:
        """The run so far, as `gf.load_run` would read it."""
        self._settle()
        return self._recorder.run

    def diagnose(self) -> Diagnosis:
        """What is wrong with the run so far; the same as `gf.diagnose(flow)` and `gf.diagnose(folder)`."""
        return verdict(self.run)

    def show(self, every: float = 1.0) -> None:
        """In a notebook: show the run in this cell's output, redrawn at most once per `every` seconds."""
        view = LiveView(every, self._recorder)
        view.draw("Training")
        self._views.append(view)
        self._recorder.sinks.append(view)

    def _repr_html_(self) -> str:
        return run_state_html(repr(self), self.run)

    def cure(self, input_fn: Callable[[], Any], loss_fn: Callable[[Any], torch.Tensor], **settings: Any) -> Any:
        """Try fixes on the model as it is now, as `gf.cure` does with the same settings; the result is an event too.

        Model, optimizer, random state and the records of this run are afterwards as they were.
        """
        model, optimizers = self._model(), self._optimizers.living()
        if model is None:
            raise MonitorStateError("`flow.cure` needs the watched model, which no longer exists.")
        if len(optimizers) != 1:
            raise MonitorStateError(
                f"`flow.cure` needs one optimizer, and {len(optimizers)} are watched. Call gf.cure(model, input_fn, "
                "loss_fn, optimizer) with the one that trains these weights."
            )
        found = import_module(_CURE).cure(model, input_fn, loss_fn, optimizers[0], **settings)
        self.add_event(CURE, cure=found.to_dict())
        return found

    @property
    def looks(self) -> Looks | None:
        """Which steps were looked at from inside, at what cost, and why no further; None before the first."""
        return None if self._inside is None else self._inside.looks

    def give_up(self, reason: str) -> None:
        """Record nothing further, because the gradients are not where they could be read; the verdict says why."""
        if self._gave_up:
            return
        self.add_event(UNSUPPORTED, reason=reason)
        self._gave_up = True
        if is_first_rank():
            warn(f"gradient_flow does not record this training. {reason}", stacklevel=3)

    def close(self, error: BaseException | Ending | None = None) -> None:
        """Stop watching at once, also from another thread or a signal handler: hooks go, files are finished.

        `error`: what ended the training, if something did; the run has then failed or was interrupted.
        """
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                return
            self._stay_open()
            self._guarded(self._count_skipped)
            self._closed = True
            for handle in self._handles:
                handle.remove()
            self._handles = []
            for stop in self._stop_listening:
                stop()
            if self._inside is not None:
                self._inside.close()
            if self._let_go is not None:
                self._let_go()  # once: by the time it is collected another run may use the same schedule
            self._guarded(self._end_backward, together=True)
            self._guarded(self._finish)
            self._guarded(self._complete)
            self._end(error)
            for watcher in (self._check, self._trace):
                if watcher is not None:
                    watcher.close()
            for logger in self._loggers:
                logger.close()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on counting and remembering."""
        self._settle()
        self._guarded(lambda: self._recorder.move_on(all_of_them=True))
        return {
            "steps": self.steps,
            "own_steps": self._optimizers.steps,
            "backward_steps": self._backward_steps,
            "skipped_steps": self.skipped_steps,
            "last_scale": self._scale.scale,
            "history": self._history.state_dict(),
            "first_nonfinite": None if self.first_nonfinite is None else vars(self.first_nonfinite).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._recorder.before_anything()
        if self._ordinary is not None:
            self._ordinary.forget()
        self.steps, self._scale.total = state["steps"], state["skipped_steps"]
        self._optimizers.resume(state["own_steps"])
        self._backward_steps = state.get("backward_steps", 0)
        self._scale.scale = state["last_scale"]
        self._history.load_state_dict(state["history"])
        first = state["first_nonfinite"]
        self.first_nonfinite = None if first is None else NonFinite(**first)
        self._guarded(lambda: self._recorder.add_event(Event(kind=RESUMED, step=self.steps)))

    @property
    def path(self) -> Path | None:
        """The run file, where there is one."""
        self._recorder.before_anything()  # who asks is about to read it
        writer = self._recorder.writer
        return None if writer is None else writer.path

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def __repr__(self) -> str:
        waits = self._by_hand and not self._optimizers and not self.steps
        states = {
            "closed": self._closed,
            "switched off": self._off,
            "not supported": self._gave_up,
            "waiting for flow.step()": waits,
        }
        state = next((f", {name}" for name, holds in states.items() if holds), "")
        return f"Flow({self.steps} steps, {len(self._known.described)} tensors{state})"

    # ---- one step -------------------------------------------------------------------------------------------------

    def _on_step_begins(self, optimizer: torch.optim.Optimizer, loss: Any) -> None:
        if self._ordinary is not None and loss is None and not self._closed and self._backward is None:
            rows = self._guarded(self._ordinary.take, optimizer, self.steps + 1, self._logged)
            if rows is not None:
                # It was noted, and all that is left is to count it.
                self.steps += 1
                self._optimizers.count(optimizer)
                self._thread = threading.get_ident()
                self._rows, self._passing = rows, True
                if self._logged:
                    self._logged = {}
                return
            self._ordinary.forget()  # until this one is over, which it may never be
        if self._closed or is_capturing():
            return  # what is launched into a CUDA graph would run with each of its replays
        if loss is not None:
            self._losses.closure_returned(loss)
        logged = self._logged.get("loss", loss)
        task = running_backward()
        measure = self._before_step if task is None else partial(self._inside_backward, task=task)
        measured = self._guarded(partial(measure, optimizer), together=True)
        if self._attachment is not None:
            table = measured.table if measured is not None and measured.clipped is None else None
            self._act(self._attachment, optimizer, logged, table)

    def _act(
        self, attachment: Attachment, optimizer: torch.optim.Optimizer, loss: Any, table: GradientTable | None
    ) -> None:
        """Let the manager act. What it raises is passed on: the user chose that policy."""
        steps = self._measure.rank_steps.get(id(optimizer))
        ranks = None if steps is None or table is None else steps.ranks
        bad_ranks = None if self._trace is None else tuple(bad.rank for bad in self._bad_ranks)
        done = attachment.before_step(optimizer, loss, table, ranks=ranks, bad_ranks=bad_ranks)
        for origin in attachment.manager.origins[self._origins :]:
            self.add_origin(origin)
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

    def _on_step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        if self._passing and self._ordinary is not None:
            self._passing = False
            self._guarded(self._ordinary.step_is_over)
            return
        if self._attachment is not None:
            self._attachment.after_step(optimizer)
        if self._closed:
            return
        steps = self._measure.rank_steps.get(id(optimizer))
        if steps is not None:
            self._guarded(steps.step_is_done)
        if self._open is not None:
            self._guarded(self._finish)
        if self._inside is not None and running_backward() is None:
            self._guarded(partial(self._look_ahead, optimizer))
        if self._check is not None and running_backward() is None:
            self._check.step_is_done()
        if self._ordinary is not None and self._usual is not None:
            self._guarded(partial(self._plan_ordinary, optimizer))

    def _plan_ordinary(self, optimizer: torch.optim.Optimizer) -> None:
        """See how long the coming steps may be ordinary, after one that took the general way."""
        usual, self._usual = self._usual, None
        if self._ordinary is not None and usual is not None and not self._gave_up:
            number, own = self._optimizers.number_of(optimizer), self._optimizers.of(optimizer)
            alone = usual.here and len(self._optimizers.steps) == 1
            self._ordinary.plan(optimizer, number, own, self.steps, self._parameters_of(optimizer), alone)

    def _look_ahead(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A step is over: record what a look saw in it, and begin one if the coming step is to be looked at."""
        inside = self._inside
        if inside is None:
            return
        if inside.has_news:
            self._record_looks(inside, optimizer)
        if self._may_be_recorded() and not self._gave_up:
            inside.plan(self.steps + 1, partial(self._stepped_by, optimizer), optimizer, self._optimizers.living)
        if (ended := inside.news_of_end()) is not None:
            self._recorder.add_event(Event(kind=LOOKS_ENDED, step=self.steps, data={"reason": ended}))

    def _record_looks(self, inside: Inside, optimizer: torch.optim.Optimizer | None) -> None:
        found = inside.after_update(self.steps)
        if found is not None:
            seen, why = found
            self._recorder.add_look(LookRecord(step=self.steps, seen=seen))
            self._recorder.add_event(Event(kind=LOOKED, step=self.steps, data=why))
        loop = inside.after_round(optimizer)
        if loop is not None:
            self._recorder.add_look(LookRecord(step=self.steps, seen={LOOP: loop}))
        state = inside.after_state(optimizer, self.steps)
        if state is not None:
            self._recorder.add_look(LookRecord(step=self.steps, seen={OPTIMIZER: state}))

    def _is_recorded(self, own_step: int) -> bool:
        """Counted per optimizer: with two that alternate, every second step must not always be the same one's."""
        return own_step % self.every == 0

    def _is_look(self, own_step: int) -> bool:
        return (own_step // self.every) % self.layers_every == 0 or own_step == self.every

    def _may_be_recorded(self) -> bool:
        """Whether the next step, by any optimizer, may be."""
        if self.every == 1:
            return True
        if running_backward() is not None:
            return self._is_recorded(self._backward_steps + (self._backward is None))
        return any(self._is_recorded(own + 1) for own in self._optimizers.steps)

    def _on_clip(self, parameters: list[torch.Tensor]) -> Callable[[], None]:
        if not self._closed:
            self.describer.saw_clip(foreign_clipping.current_clip())
        if self._closed or self._gave_up or not self._may_be_recorded() or is_capturing():
            return _nothing
        done: list[Callable[[], None]] = []

        def measure_before() -> None:
            marked = self._measure.before_clip(parameters)
            done.extend([] if marked is None else [marked])

        self._guarded(measure_before)
        return lambda: self._guarded(done[0]) if done else None

    def _on_loss(self, loss: torch.Tensor | None, clear: bool = True) -> Callable[[], None]:
        if self._closed or self._gave_up or not (self.every == 1 or self._by_hand or self._may_be_recorded()):
            self._losses.forget()
            return _nothing
        if self._thread != threading.get_ident() and not self._losses.is_ours(loss):
            return _nothing  # another model's loss: reading our gradients while their thread writes them would crash
        self._guarded(self._backward_begins, loss, clear)
        return partial(self._guarded, self._backward_ended)

    def _backward_begins(self, loss: torch.Tensor | None, clear: bool) -> None:
        value = None
        if clear and loss is not None and not has_modes():
            value = self._losses.begin_usual(loss)
            if value is not None:
                if self._inside is not None and (batches := self._inside.batches) is not None:
                    batches.backward_begins(value)
                return
        if loss is not None:
            scaler = losses.scaler_of(loss) if losses.scaled else None
            if has_modes():  # those of the user see what the user does
                with aside():
                    value = self._value_of(loss, scaler)
            else:
                value = self._value_of(loss, scaler)
            if scaler is not None:
                self._measure.hear_scaler(scaler)
        if self._inside is not None and (batches := self._inside.batches) is not None:
            batches.backward_begins(value)
        self._losses.begin(loss, value, clear=clear)

    def _value_of(self, loss: torch.Tensor, scaler: Any) -> Any:
        value = self._losses.value_of(loss)
        is_finite = scaler is None and type(value) is float and math.isfinite(value)
        if not is_finite and self.first_nonfinite is None:
            self._loss_origin.note(loss, self.steps + 1)
        return value

    def _backward_ended(self) -> None:
        if self._losses.end() and self._inside is not None:
            self._inside.backward_ended(self._known.live)

    def _on_unclear_loss(self, loss: torch.Tensor | None) -> Callable[[], None]:
        return self._on_loss(loss, clear=False)

    def _before_step(self, optimizer: torch.optim.Optimizer | None) -> StepTables | None:
        # Most of a step of a small model is this code, found in no cache: what does not apply is not even called.
        if self._backward is not None:
            self._end_backward()
        self._thread = threading.get_ident()
        self.steps += 1
        own = self._optimizers.count(optimizer)
        logged = self._losses.of_step(optimizer)
        if self._logged:
            logged, self._logged = logged | self._logged, {}
        if self._scaler is not None:
            self._count_skipped()
        recorded = self._is_recorded(own)
        if self._trace is not None:  # a manager acts on every step, recorded or not
            self._ask_ranks(asked=recorded or self._attachment is not None)
        if not recorded:
            return None
        ours = self._stepped_by(optimizer)
        looks = self._is_look(own)
        if self._gave_up or self._is_elsewhere(ours):
            return None
        try:
            measured = self._measure.measure(optimizer, ours)
            table, clipped, owed = measured.table, measured.clipped, measured.owed
            if self._check is not None:
                self._compare_ranks(clipped if clipped is not None else table, looks)
        except BaseException:
            self._ended = True  # on every rank alike, see `_or_end`
            raise
        self._table, self._rows, self.clipped_table = table, None, clipped
        look = LookRecord(step=self.steps, table=table) if looks else None
        over_ranks = self._measure.rank_steps.get(id(optimizer))
        if over_ranks is not None and look is not None:
            over_ranks.remember(look, ours)
            look = None  # it is completed by the ranks together, with their next recorded step
        if self._failed:
            return measured  # nothing is recorded any more, but the other ranks count on this one
        if owed is not None:
            self._recorder.add_late_look(owed.look.step, owed.ready, owed.complete)
        record = self._record(logged, optimizer)
        if look is not None:
            self._sample = WeightSample([(name, parameter) for name, parameter in ours if parameter.grad is not None])
        self._usual = measured if optimizer is not None else None
        arrivals = [self._arrival(record, measured, looks=looks)]
        if look is not None and (taken := self._histograms.start(look, optimizer, ours)) is not None:
            arrivals.append(Arrival(*taken))
        self._open = self._recorder.open(record, look, arrivals)
        if self._inside is not None:
            if self._scaler is not None:
                self._scale.settle(wait=self._inside.is_looking)
            norm = record.norm if measured.here else None
            self._inside.before_update(optimizer, table, ours, self._scale.scale, self._held_by_optimizers, norm)
        return measured

    def _arrival(self, record: StepRecord, measured: StepTables, *, looks: bool) -> Arrival:
        """Fills the record from the tables of its step, as soon as they have arrived."""
        ready = _at_once if measured.here else lambda: measured.ready
        return Arrival(ready, partial(self._fill, record, measured, looks))

    def _fill(self, record: StepRecord, measured: StepTables, looks: bool, opened: OpenStep) -> None:
        record.fill(measured.table.total)
        if measured.clipped is not None and record.clipped_norm is None:
            record.clipped_norm = measured.clipped.total.norm
        if self._ordinary is not None:
            self._ordinary.note_general(record)
        bad = record.nan_count or record.inf_count
        if bad:
            self._note_nonfinite(record, measured.table)
        self._name_batch(record)
        if measured.scales and measured.scale_at_clip != 1.0:
            self._tell_of_scaled_clip(measured, record.step)
        if bad and opened.look is None and not looks:
            opened.look = self._bad_looks.look(record.step, measured.table)
        if opened.finished and self._inside is not None:
            self._inside.note(record)  # its step is over: else that is done when it is

    def _name_batch(self, record: StepRecord) -> None:
        """Record the batch of a step that spikes or is not finite."""
        batches = None if self._inside is None else self._inside.batches
        if batches is None or record.step != self.steps:
            return  # the numbers came late from a device, and the batch is gone
        named = batches.of_step(record.norm)
        if named is not None:
            record.values |= {"batch": named["batch"]}
            self._recorder.add_event(Event(kind=BATCH, step=record.step, data=named))

    def _held_by_optimizers(self) -> dict[int, str]:
        return self._optimizers.held(self._known.name_of)

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

    def _is_elsewhere(self, parameters: Named) -> bool:
        """Whether gradients are kept elsewhere than in `.grad`; of Megatron that is known only after the first step."""
        for _, parameter in parameters:
            if parameter.grad is not None:
                return False
        reason = why_elsewhere(parameter for _, parameter in parameters)
        if reason is not None:
            self.give_up(reason)
        return reason is not None

    def _inside_backward(self, optimizer: torch.optim.Optimizer, task: int) -> StepTables | None:
        """A step that is one of many in the backward pass `task`, and is recorded together with them."""
        if self._backward is not None and not self._backward.takes(optimizer, task):
            self._end_backward()
        if self._backward is None:
            self.steps += 1
            self._backward_steps += 1
            own = self._backward_steps
            self._backward = BackwardStep(recorded=self._is_recorded(own), looks=self._is_look(own))
            self._backward.losses = self._losses.of_step(None, inside=True)
        step = self._backward
        step.recorded &= not self._gave_up
        if step.add_step(optimizer, task):
            ended = _weakly(self, "_on_backward_ended")
            after_backward(lambda: ended(step))
        if self._attachment is not None:
            self._ask_ranks(asked=True)
        if not step.recorded:
            return None
        ours = self._parameters_of(optimizer)
        with self._or_end():
            measured = self._measure.measure(optimizer, ours)
        over_ranks = id(optimizer) in self._measure.rank_steps
        sample = WeightSample([(name, p) for name, p in ours if p.grad is not None]) if step.looks else None
        step.add_tables(measured, None if over_ranks else sample)
        return measured

    def _on_backward_ended(self, step: BackwardStep) -> None:
        if self._backward is step and backward_depth() <= 1:
            self._guarded(self._end_backward, together=True)

    def _settle(self) -> None:
        """Record a backward pass whose end was not seen, such as one that failed."""
        if self._backward is not None and running_backward() is None:
            self._guarded(self._end_backward, together=True)

    def _end_backward(self) -> None:
        """Record the steps that were taken inside a backward pass as one."""
        step, self._backward = self._backward, None
        if step is None:
            return
        logged, self._logged = step.losses | self._logged, {}
        self._count_skipped()
        if self._attachment is None:
            self._ask_ranks(asked=step.recorded)
        if self._check is not None:
            self._check.step_is_done()
        if not step.recorded or not step.measured:
            return
        with self._or_end():
            table, clipped = step.tables(self._known.places)
            self._compare_ranks(clipped if clipped is not None else table, step.looks)
        self._table, self._rows, self.clipped_table = table, None, clipped
        if self._failed:
            return
        record = self._record(logged, None)
        record.lr, record.guard, record.optimizer = step.rates, step.guard, self._optimizers.first_of(step.optimizers)
        if (managed := step.managed_norm()) is not None:
            record.clipped_norm = managed
        look = LookRecord(step=self.steps, table=table) if step.looks else None
        if look is not None and (ratios := step.ratios()):
            look.update_ratio = np.array([ratios.get(name, np.nan) for name in table.names])
        arrival = self._arrival(record, StepTables(table, clipped), looks=look is not None)
        self._open = self._recorder.open(record, look, [arrival])
        if self._inside is not None:
            self._scale.settle(wait=self._inside.is_looking)
            self._inside.before_update(None, table, self._known.live(), self._scale.scale)
        self._finish()
        if self._inside is not None:
            self._look_ahead(None)

    def _ask_ranks(self, *, asked: bool) -> None:
        if self._trace is not None:
            # What is not asked for now must not be blamed on a later step.
            self._bad_ranks = self._trace.bad_ranks() if asked else self._trace.forget()

    @contextmanager
    def _or_end(self) -> Iterator[None]:
        """A failure in here happens on every rank alike: no rank is left waiting, and recording ends."""
        try:
            yield
        except BaseException:
            self._ended = True
            raise

    def _finish(self) -> None:
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
        if self._inside is not None and not waiting:
            self._inside.note(opened.record)
        self._recorder.move_on()

    def _complete(self) -> None:
        """Write what is owed and open."""
        self._recorder.move_on(all_of_them=True)
        for look in self._measure.owed_here():
            self._recorder.add_look(look)
        if self._inside is not None and (dropped := self._inside.untold_drops()):
            self._recorder.add_event(Event(kind=LOOKS_DROPPED, step=self.steps, data=dropped))
        self.describer.tell_news()

    def _end(self, error: BaseException | Ending | None) -> None:
        """Write the end line with the verdict, even if recording failed earlier."""
        if self._off:
            return
        ending = replace(error, step=self.steps) if isinstance(error, Ending) else Ending.by(error, self.steps)
        found = None
        try:
            found = end_run(self._recorder, self.steps, ending)
        except Exception as problem:
            warn(f"gradient_flow could not write the end of the run ({type(problem).__name__}: {problem}).")
        finally:
            self._guarded(self._recorder.close)
        for view in self._views:  # with the end, and the verdict on all of it
            view.draw("Training, ended")
        if self._alerts is not None:
            alerts = self._alerts
            self._guarded(lambda: alerts.close(self.diagnose() if found is None else found, ending))

    def _add_about(self, part: Mapping[str, Any]) -> None:
        self._recorder.add_about(part)
        for logger in self._loggers:
            logger.describe(self._recorder.about)

    def grouped(self, table: GradientTable) -> GradientTable:
        """The table by groups, or by role where no groups were given."""
        return table.group(self._groups if self._groups is not None else self._roles.get)

    def _log_record(self, record: StepRecord, look: LookRecord | None) -> None:
        groups = None if look is None or look.table is None else self.grouped(look.table)
        metrics = record_metrics(record, groups)
        for logger in self._loggers:
            logger(metrics, record.step)

    def _compare_ranks(self, table: GradientTable, looks: bool) -> None:
        """One small collective where it was asked for, in the same steps on every rank."""
        report = self.rank_report = self._check.compare(table) if self._check is not None and looks else None
        if report is not None and report.differing and not self._warned_of_ranks:
            self._warned_of_ranks = True
            warn(f"Step {self.steps}: {report}", stacklevel=6)

    def _record(self, logged: Mapping[str, Any], optimizer: torch.optim.Optimizer | None) -> StepRecord:
        record = StepRecord.awaited(self.steps, round(time.time() - self._start, 4))
        for name, value in logged.items():
            record.put(name, arriving(value))
        if optimizer is not None:
            record.lr = arriving_list([group["lr"] for group in optimizer.param_groups if "lr" in group])
            record.optimizer = self._optimizers.number_of(optimizer)
        if self._scaler is not None:
            scale = None if self._noted is None else self._noted.scale
            record.put("amp_scale", scale)
            record.put("skipped_steps", self._noted)
        if self._bad_ranks:
            record.nonfinite_ranks = [bad._asdict() for bad in self._bad_ranks]
        if self.rank_report is not None:
            record.values |= self.rank_report.to_record()
        self.describer.at_step(optimizer, record.optimizer)
        return record

    def _note_nonfinite(self, record: StepRecord, table: GradientTable) -> None:
        bad = [name for name, finite in zip(table.names, table.finite, strict=True) if not finite]
        record.finite_norm = table.total.finite_part.norm
        record.nonfinite_layers = bad[:_MOST_LAYERS]
        if self.first_nonfinite is None:
            origin = self._loss_origin.of_step(record.step)
            if origin is not None:
                self._recorder.add_event(Event(kind=FORENSICS, step=record.step, data={"origin": origin}))
            self.first_nonfinite = NonFinite(record.step, tuple(bad), record.nan_count, record.inf_count)

    def _count_skipped(self) -> None:
        if self._scaler is not None:
            self._noted = self._scale.note(self._scaler)

    def _stepped_by(self, optimizer: torch.optim.Optimizer | None) -> Named:
        """What an optimizer steps; without one, everything."""
        return self._known.live() if optimizer is None else self._parameters_of(optimizer)

    def _parameters_of(self, optimizer: torch.optim.Optimizer) -> Named:
        found = self._known.of(optimizer)
        if found is None:
            self._learn_from(optimizer, {})  # a parameter group was added meanwhile
            found = self._known.of(optimizer)
        return found or []

    def _learn_from(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        self._recorder.list_parameters(self._known.add_from(optimizer, self._optimizers.number_of(optimizer), names))

    def _header(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        names = self._known.names
        return {
            "version": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "settings": dict(settings),
            "parameters": list(self._known.described),
            "groups": {name: self._roles.get(name, name) for name in names},
        }

    def _guarded(self, action: Callable[..., Made], *given: Any, together: bool = False) -> Made | None:
        """Run `action`; if it fails, stop recording with one warning. Training must never notice.

        What ranks do `together` goes on after a failure on one of them, which the others do not know of.
        """
        # A forked child must not write into its parent's run.
        if os.getpid() != self._pid or self._ended or self._off:
            return None
        if self._failed and not (together and self._measure.rank_steps):
            return None
        try:
            return action(*given)
        except Exception as problem:
            self._failed = True
            warn(
                f"gradient_flow stopped recording ({type(problem).__name__}: {problem}); training continues.",
                stacklevel=4,
            )
            return None


def _at_once() -> bool:
    """When numbers are there that need not be waited for."""
    return True


def _nothing() -> None:
    """What to call after a clip of other parameters: nothing."""


def _name_of(writer: RunWriter | None) -> str:
    """What an alert calls the run."""
    return "training" if writer is None else writer.folder.name


def _noting(alerts: Alerts, recorder: Recorder) -> Sink:
    """A sink that holds no reference to the flow, so that a dropped flow can be collected."""
    path = None if recorder.writer is None else recorder.writer.path
    return lambda _record, _look: alerts.note(path, recorder.kept_lines)


def _no_model() -> None:
    """The model of a flow that was given parameters only."""


def _weakly(flow: Flow, method: str) -> Callable[..., Any]:
    """A hook that does not keep the flow alive: one that is dropped without `close()` can be collected."""
    reference = weakref.ref(flow)

    def hook(*arguments: Any) -> Any:
        alive = reference()
        return getattr(alive, method)(*arguments) if alive is not None else _nothing

    return hook
