"""`Flow`: one training run under watch, as its user holds it. What happens in a step is in `steps.py`."""

from __future__ import annotations

import platform
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gradient_flow._version import __version__
from gradient_flow.act.attachment import Attachment
from gradient_flow.capture import foreign_clipping, losses
from gradient_flow.capture.optimizer_steps import after_each_step, before_each_step, no_shortcut
from gradient_flow.capture.sharding import is_first_rank
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError, MonitorStateError, check_choice, check_whole, warn
from gradient_flow.flow.alerts import Alerts
from gradient_flow.flow.describe import Describer, is_described
from gradient_flow.flow.end import close_at_exit, end_run
from gradient_flow.flow.guard import Guard
from gradient_flow.flow.inside import Inside
from gradient_flow.flow.known_parameters import KnownParameters
from gradient_flow.flow.loggers import make_loggers
from gradient_flow.flow.notebook import LiveView, run_state_html
from gradient_flow.flow.passes import Passes
from gradient_flow.flow.progress import Progress
from gradient_flow.flow.rank_checks import RankCheck, RankReport, RankTrace
from gradient_flow.flow.recorder import Recorder, Sink
from gradient_flow.flow.step_records import StepRecords
from gradient_flow.flow.step_tables import StepMeasure
from gradient_flow.flow.steps import Steps, origin_event
from gradient_flow.flow.watched_optimizers import WatchedOptimizers
from gradient_flow.flow.weakly import weakly
from gradient_flow.record.ending import Ending
from gradient_flow.record.event import CURE, LOOKS_DROPPED, RESERVED_KINDS, RESUMED, Event
from gradient_flow.record.evidence import NonFinite
from gradient_flow.record.export import record_metrics
from gradient_flow.record.look import LookRecord
from gradient_flow.record.plain import to_plain
from gradient_flow.record.run import Run
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.record.step import RESERVED, StepRecord
from gradient_flow.record.window import History
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, Thresholds

if TYPE_CHECKING:
    from gradient_flow.looks.live import Looks

_CURE: Final = "gradient_flow.cures.cure"
"""Imported on demand: `cures/` is a room below this one."""


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
        if groups is not None:
            GradientTable((), np.empty((0, len(COLUMNS)))).group(groups)  # refused now rather than at the first step
        self._groups, self._roles = groups, dict(roles)
        self._known = KnownParameters(parameters)
        self._history = History(check_whole("history", history, error=InputError))
        self._let_go = None if attachment is None else weakref.finalize(self, attachment.close)
        self._acts, self._ranks = attachment is not None, (check, trace)
        self._by_hand = by_hand
        self._optimizers = WatchedOptimizers()
        self._handles: list[Any] = []
        self._closing = threading.RLock()
        measure = StepMeasure(self._known, thresholds, process_group, scaler)
        self._guard = Guard(measure.rank_steps)
        looks = inside is not None and inside.is_on and not self._guard.off
        settings = {"every": every, "layers_every": layers_every, **thresholds._asdict()}
        header = self._header(settings) | ({"by_hand": True} if by_hand else {}) | ({"looks": True} if looks else {})
        first = is_first_rank() and not self._guard.off
        self.describer = Describer(
            on=first and is_described(describe), config=config, scaler=scaler, attachment=attachment
        )
        writer = RunWriter(run, header, again=again) if first and run is not None else None
        self._recorder = Recorder(self._known, self._history, writer, header)
        self._progress = Progress()
        self._records = StepRecords(
            self._progress, self._recorder, self._known, self._optimizers, self.describer, scaler
        )
        self._steps = Steps(
            self._progress,
            self._known,
            measure,
            self._recorder,
            self._records,
            self._optimizers,
            self._guard,
            self.describer,
            every=every,
            layers_every=layers_every,
            by_hand=by_hand,
            attachment=attachment,
            scaler=scaler,
            check=check,
            trace=trace,
            process_group=process_group,
        )
        ordinary = self._steps.ordinary
        self._shortcut = no_shortcut if ordinary is None else weakref.ref(ordinary)
        self._passes = Passes(self._steps, self._guard)
        self._model: Callable[[], torch.nn.Module | None] = _no_model if inside is None else inside.model
        if inside is not None and looks:
            self.look_inside(inside)
        elif inside is not None:
            inside.close()  # it listens to data loaders from its beginning
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
        self.describer.tell = weakly(self, "_add_about")
        self._guard.run(lambda: self.describer.begin(parameter for _, parameter in self._known.live()))
        self._stay_open = close_at_exit(self, self._recorder) if first else losses.nothing
        self._stop_listening: list[Callable[[], None]] = []
        if not self._guard.off:
            passes = self._passes
            self._stop_listening = [
                foreign_clipping.listen(weakly(passes, "on_clip")),
                losses.listen(weakly(passes, "on_loss"), weakly(passes, "on_unclear_loss"), self._shortcut),
            ]
        for stop in self._stop_listening:  # also if the flow is dropped without `close()`
            weakref.finalize(self, stop).atexit = False
        self._guard.run(self._records.count_skipped)  # the scale to begin with: the first steps may be skipped

    # ---- what a user calls ----------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Optimizer steps so far, recorded or not."""
        return self._progress.steps

    @property
    def table(self) -> GradientTable | None:
        """The gradients of the last recorded step, as backward left them."""
        return self._steps.table

    @property
    def clipped_table(self) -> GradientTable | None:
        """The same after clipping, if the step was clipped by `torch.nn.utils`: by norm or by value."""
        return self._progress.clipped_table

    @property
    def first_nonfinite(self) -> NonFinite | None:
        """The first step with NaN or Inf in its gradients, and where."""
        return self._records.first_nonfinite

    @property
    def rank_report(self) -> RankReport | None:
        """How ranks compared, where they were checked with the last recorded step."""
        return self._steps.rank_report

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
        self._progress.logged.update(values)

    def step(self, optimizer: torch.optim.Optimizer | None = None, **values: Any) -> None:
        """Record a step by hand, before the weights change: for loops without a torch optimizer."""
        if self._guard.closed:
            raise MonitorStateError("Cannot record a step after close(). Create a new watch().")
        if self._guard.gave_up:
            return
        self._progress.logged.update(values)
        self._steps.take_by_hand(optimizer)

    def add_optimizer(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str] | None = None) -> None:
        """Watch the steps of one more optimizer. `names`, by the id of the parameter, is for those not known yet."""
        number = self._optimizers.add(optimizer)
        self._steps.losses.add_optimizer(optimizer)
        self._steps.learn_from(optimizer, names or {})
        self._guard.run(lambda: self.describer.add_optimizer(optimizer, number))
        if self._guard.off and not self._acts:
            return
        handles = [
            before_each_step(optimizer, weakly(self._steps, "begins"), self._shortcut),
            after_each_step(optimizer, weakly(self._steps, "ended"), self._shortcut),
        ]
        self._handles += handles
        for handle in handles:
            weakref.finalize(self, handle.remove).atexit = False

    def look_inside(self, inside: Inside) -> None:
        """Look inside a model in some of the steps to come."""
        self._model = inside.model
        self._steps.look_inside(inside)
        weakref.finalize(self, inside.close)  # a flow that is dropped without `close()` leaves no hook behind

    def add_event(self, kind: str, step: int | None = None, **data: Any) -> None:
        """Record something that happened, with plain values: `flow.add_event("augmentation", strength=0.3)`."""
        if not isinstance(kind, str) or kind in RESERVED_KINDS:
            raise InputError(f"`kind` must be a text of your own, none of {sorted(RESERVED_KINDS)}; got {kind!r}.")
        event = Event(kind=kind, step=self.steps if step is None else step, data=to_plain(data))
        self._guard.run(self._recorder.add_event, event)

    def add_origin(self, origin: Any, step: int | None = None) -> None:
        """Record what `gf.find_nonfinite` found: the verdict and the page then name the operation and its line."""
        event = origin_event(origin, self.steps if step is None else step)
        self._guard.run(self._recorder.add_event, event)

    def add_look(self, seen: Mapping[str, Any], step: int | None = None) -> None:
        """Record what probes saw at a step, by the name of each probe: `flow.add_look(analyzer.seen)`."""
        plain = {name: to_plain(found) for name, found in seen.items()}
        look = LookRecord(step=self.steps if step is None else step, seen=plain)
        self._guard.run(self._recorder.add_look, look)

    @property
    def skipped_steps(self) -> int:
        """Steps that the `GradScaler` skipped. Waits for the scale where a device has it."""
        self._records.scale.settle(wait=True)
        return self._records.scale.total

    def subscribe(self, sink: Sink) -> None:
        """Call `sink(record, look)` with every record once it is complete; `look` is None at most steps."""
        self._recorder.before_anything()  # what was before is not for it
        self._recorder.sinks.append(sink)

    @property
    def run(self) -> Run:
        """The run so far, as `gf.load_run` would read it."""
        self._steps.settle()
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
        return None if self._steps.inside is None else self._steps.inside.looks

    def give_up(self, reason: str) -> None:
        """Record nothing further, because the gradients are not where they could be read; the verdict says why."""
        self._steps.give_up(reason)

    def close(self, error: BaseException | Ending | None = None) -> None:
        """Stop watching at once, also from another thread or a signal handler: hooks go, files are finished.

        `error`: what ended the training, if something did; the run has then failed or was interrupted.
        """
        guard, steps = self._guard, self._steps
        with self._closing:
            if guard.closed or guard.is_elsewhere:
                return
            self._stay_open()
            guard.run(self._records.count_skipped)
            guard.closed = True
            for handle in self._handles:
                handle.remove()
            self._handles = []
            for stop in self._stop_listening:
                stop()
            if steps.inside is not None:
                steps.inside.close()
            if self._let_go is not None:
                self._let_go()  # once: by the time it is collected another run may use the same schedule
            guard.run(steps.end_backward, together=True)
            guard.run(steps.finish)
            guard.run(self._complete)
            self._end(error)
            for watcher in self._ranks:
                if watcher is not None:
                    watcher.close()
            for logger in self._loggers:
                logger.close()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to go on counting and remembering."""
        self._steps.settle()
        self._guard.run(lambda: self._recorder.move_on(all_of_them=True))
        return {
            "steps": self.steps,
            "own_steps": self._optimizers.steps,
            "backward_steps": self._steps.backward_steps,
            "skipped_steps": self.skipped_steps,
            "last_scale": self._records.scale.scale,
            "history": self._history.state_dict(),
            "first_nonfinite": None if self.first_nonfinite is None else vars(self.first_nonfinite).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._recorder.before_anything()
        self._steps.forget_plans()
        self._progress.steps, self._records.scale.total = state["steps"], state["skipped_steps"]
        self._optimizers.resume(state["own_steps"])
        self._steps.backward_steps = state.get("backward_steps", 0)
        self._records.scale.scale = state["last_scale"]
        self._history.load_state_dict(state["history"])
        first = state["first_nonfinite"]
        self._records.first_nonfinite = None if first is None else NonFinite(**first)
        self._guard.run(self._recorder.add_event, Event(kind=RESUMED, step=self.steps))

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
        states = {
            "closed": self._guard.closed,
            "switched off": self._guard.off,
            "not supported": self._guard.gave_up,
            "waiting for flow.step()": self._by_hand and not self._optimizers and not self.steps,
        }
        state = next((f", {name}" for name, holds in states.items() if holds), "")
        return f"Flow({self.steps} steps, {len(self._known.described)} tensors{state})"

    # ---- its end and its output -----------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Write what is owed and open."""
        self._recorder.move_on(all_of_them=True)
        for look in self._steps.measure.owed_here():
            self._recorder.add_look(look)
        inside = self._steps.inside
        if inside is not None and (dropped := inside.untold_drops()):
            self._recorder.add_event(Event(kind=LOOKS_DROPPED, step=self.steps, data=dropped))
        self.describer.tell_news()

    def _end(self, error: BaseException | Ending | None) -> None:
        """Write the end line with the verdict, even if recording failed earlier."""
        if self._guard.off:
            return
        ending = replace(error, step=self.steps) if isinstance(error, Ending) else Ending.by(error, self.steps)
        found = None
        try:
            found = end_run(self._recorder, self.steps, ending)
        except Exception as problem:
            warn(f"gradient_flow could not write the end of the run ({type(problem).__name__}: {problem}).")
        finally:
            self._guard.run(self._recorder.close)
        for view in self._views:  # with the end, and the verdict on all of it
            view.draw("Training, ended")
        if self._alerts is not None:
            alerts = self._alerts
            self._guard.run(lambda: alerts.close(self.diagnose() if found is None else found, ending))

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


def _name_of(writer: RunWriter | None) -> str:
    """What an alert calls the run."""
    return "training" if writer is None else writer.folder.name


def _noting(alerts: Alerts, recorder: Recorder) -> Sink:
    """A sink that holds no reference to the flow, so that a dropped flow can be collected."""
    path = None if recorder.writer is None else recorder.writer.path
    return lambda _record, _look: alerts.note(path, recorder.kept_lines)


def _no_model() -> None:
    """The model of a flow that was given parameters only."""
