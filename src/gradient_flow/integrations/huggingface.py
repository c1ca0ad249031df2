"""`GradientFlowCallback`: the optimizer steps of a Hugging Face `Trainer`, before and after its clipping."""

from __future__ import annotations

import json
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from gradient_flow.config import disabled
from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError, MissingExtraError, MonitorStateError, check_whole, warn
from gradient_flow.faces.manager import GradientManager
from gradient_flow.flow.flow import Flow
from gradient_flow.flow.watch import watch
from gradient_flow.record.ending import FAILED, Ending
from gradient_flow.record.export import logged_metrics
from gradient_flow.record.look import LookRecord
from gradient_flow.record.run import Run
from gradient_flow.record.signals import NAMES as SIGNAL_NAMES
from gradient_flow.record.step import StepRecord

try:
    from tqdm.auto import tqdm  # type: ignore[import-untyped]
    from transformers.trainer_callback import CallbackHandler, ExportableState, TrainerCallback
except ImportError as problem:
    raise MissingExtraError("huggingface") from problem

STOPPED_EARLY = Ending(state=FAILED, message="the Trainer stopped before its end")
"""What is known of a training that the Trainer left by an exception."""
KEPT_STEPS = 1_000
"""Steps of the history that a checkpoint keeps, in its `trainer_state.json`. The run file has them all."""


class GradientFlowCallback(TrainerCallback, ExportableState):
    """Watches every optimizer step of a `Trainer`: `Trainer(..., callbacks=[GradientFlowCallback()])`.

    The Trainer has no event between backward and its clipping. This callback sees gradients there, and again as the
    optimizer gets them. With each log of the Trainer go `grad_norm_clipped`, `grad_variance`, `grad_mean`, `grad_max`,
    `grad_min` and `grad_nonfinite_steps` (since the last log), to everything in `report_to`. At the end it says in one
    line what it saw.

    After an error the Trainer tells its callbacks nothing. Hooks then stay until it trains again, until it is gone, or
    until the end of a `with GradientFlowCallback(...) as callback:` around `trainer.train()`, which also records the
    error.

    Args:
        run: a folder for the run file; trials of a hyperparameter search get a folder each in it.
        every: record every Nth optimizer step.
        groups: parameters to merge, as in `gf.watch`; only with it do logs have entries for groups.
        log: further loggers beside those of the Trainer: they get every recorded step.
        manager: guards and clips after the Trainer's own clipping; `max_grad_norm=0` leaves clipping to it alone.
        say: whether to print the line at the end.
        settings: what else `gf.watch` takes: `layers_every`, `history`, `near_zero`, `very_large`, `process_group`,
            `check_ranks`, `trace_ranks`, `describe`, `config`.
    """

    def __init__(
        self,
        run: str | Path | None = None,
        *,
        every: int = 1,
        groups: Callable[[str], str | None] | Mapping[str, str | Sequence[str]] | None = None,
        log: Any = None,
        manager: GradientManager | None = None,
        say: bool = True,
        **settings: Any,
    ) -> None:
        for name, value in {"every": every, **{key: settings[key] for key in COUNTS & settings.keys()}}.items():
            check_whole(name, value, at_least=1)
        unknown = sorted(settings.keys() - COUNTS - FURTHER)
        if unknown:
            known = ", ".join(sorted(COUNTS | FURTHER))
            raise InputError(f"`{unknown[0]}` is not a setting of GradientFlowCallback. Known settings: {known}.")
        if manager is not None and not isinstance(manager, GradientManager):
            raise InputError(f"`manager` must be a GradientManager, got {type(manager).__name__}.")
        self.run, self.log, self.manager, self.say = run, log, manager, say
        self._watching = {"every": every, "groups": groups, **settings}
        self.flow: Flow | None = None
        """The watch over the current training, or over the last one."""
        self.left_out: list[str] = []
        self._begin_counting(0)

    def _begin_counting(self, steps: int) -> None:
        self._first_step = steps
        self._recorded = self._clipped = self._nonfinite = self._nonfinite_since_log = 0
        self._latest: dict[str, float] = {}

    # ---- what the Trainer calls -----------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Start watching the optimizer, which exists from here on."""
        self.close(STOPPED_EARLY)  # one that is still watched did not come to its end
        if disabled():
            return
        if self.left_out:
            _warn(
                f"The Trainer rebuilt this callback from the checkpoint, without its {', '.join(self.left_out)}. "
                "Leave `restore_callback_states_from_checkpoint` off: resuming does not need it."
            )
        try:
            self.flow = self._watch(state, parts["model"], parts["optimizer"])
            self._describe(self.flow, args, parts.get("lr_scheduler"))
        except Exception as problem:
            if self.manager is not None:
                raise  # a policy was asked for; training without it is no choice of ours
            _warn(f"This training cannot be watched ({type(problem).__name__}: {problem}); training continues.")
            return
        # The state lives as long as the Trainer or its next training; with it goes what an error has left behind.
        weakref.finalize(state, self.flow.close, STOPPED_EARLY)
        self._begin_counting(state.global_step)
        if state.global_step:
            self._resume(self.flow, state)
        handler = _handler_that_called(self)
        if handler is not None:
            # Reporters are in front of the callbacks of a user: what is added to a log must be there before them.
            handler.callbacks.remove(self)
            handler.callbacks.insert(0, self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Tell the watch where in the data the coming step is."""
        if self.flow is not None and state.epoch is not None:
            self.flow.log(epoch=state.epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **parts: Any) -> None:
        """Put our numbers beside the Trainer's; what it logs of reinforcement learning goes into the run."""
        known = {
            key: value for key, value in (logs or {}).items() if key in SIGNAL_NAMES and isinstance(value, (int, float))
        }
        if known and self.flow is not None:
            self.flow.log(**known)
        if logs is None or "loss" not in logs or not self._latest:
            return  # an evaluation, the summary, or no step since the last log
        ours = {**self._latest, "grad_nonfinite_steps": self._nonfinite_since_log}
        self._latest, self._nonfinite_since_log = {}, 0
        for entry in (logs, state.log_history[-1] if state.log_history else {}):
            entry |= {key: value for key, value in ours.items() if key not in entry}

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Take every hook away and say what was seen."""
        self.close()
        if self.say and self.flow is not None and state.is_world_process_zero:
            tqdm.write(self.summary())

    def state(self) -> dict[str, Any]:
        """What the Trainer puts into its checkpoints."""
        wanted = {"run": self.run and str(self.run), "log": self.log, "say": self.say, **self._watching}
        settings = {name: value for name, value in wanted.items() if _is_json(value)}
        left_out = [*(wanted.keys() - settings.keys()), *(["manager"] if self.manager is not None else [])]
        return {"args": settings, "attributes": {"left_out": sorted(left_out), "checkpoint": self._checkpoint()}}

    # ---- what a user calls ----------------------------------------------------------------------------------------

    @property
    def run_so_far(self) -> Run:
        """What was recorded of the current training, or of the last one."""
        if self.flow is None:
            raise MonitorStateError("Nothing was watched yet. Train first.")
        return self.flow.run

    def diagnose(self) -> Diagnosis:
        """What is wrong with the training so far; the same as `gf.diagnose` of its run folder."""
        return verdict(self.run_so_far)

    def summary(self) -> str:
        """What was seen, in one line."""
        if self.flow is None:
            return "gradient_flow: nothing was watched."
        steps = self.flow.steps - self._first_step
        seen = f"{steps} steps watched" if self._recorded == steps else f"{self._recorded} of {steps} steps recorded"
        seen += f", {self._clipped} clipped, {self._nonfinite} with NaN or Inf"
        if self.flow.skipped_steps:
            seen += f", {self.flow.skipped_steps} skipped by the GradScaler"
        where = "" if self.flow.path is None else f" Run: {self.flow.path.parent}"
        return f"gradient_flow: {seen}. {self.flow.diagnose().message}{where}"

    def close(self, error: BaseException | Ending | None = None) -> None:
        """End the watch: no hook is left. The Trainer's end does this; after an error a `with` block does."""
        if self.flow is not None:
            self.flow.close(error)

    def _describe(self, flow: Flow, args: Any, scheduler: Any) -> None:
        """What the Trainer knows of its run, beside what the watch sees."""
        flow.describer.add_scheduler(scheduler)
        for precision, name in (("bf16", "bfloat16"), ("fp16", "float16")):
            if getattr(args, precision, False) is True:
                flow.describer.add_precision(name)

    def __enter__(self) -> GradientFlowCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A flow that is still open here belongs to a training that failed; someone else caught the exception.
        self.close(error if error is not None else STOPPED_EARLY)

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _watch(self, state: Any, model: Any, optimizer: Any) -> Flow:
        run = self.run
        if run is not None and state.is_hyper_param_search and state.trial_name:
            run = Path(run) / state.trial_name
        flow = watch(
            model,
            optimizer,
            run=run,
            again="append" if state.global_step else "number",
            log=self.log,
            scaler=getattr(optimizer, "scaler", None),
            manager=self.manager,
            **self._watching,
        )
        flow.subscribe(self._note_step)
        return flow

    def _note_step(self, record: StepRecord, look: LookRecord | None) -> None:
        """Called by the watch with each record once it is complete."""
        assert self.flow is not None
        # A line on the console for each layer is too much unless asked for.
        wanted = look is not None and look.table is not None and self._watching["groups"] is not None
        groups = self.flow.grouped(look.table) if wanted and look is not None and look.table is not None else None
        by_name = {name.removeprefix("train/"): value for name, value in logged_metrics(record, groups).items()}
        norm, clipped = record.norm, record.norm if record.clipped_norm is None else record.clipped_norm
        finite = math.isfinite(norm)
        self._recorded += 1
        self._clipped += finite and clipped < norm
        self._nonfinite += not finite
        self._nonfinite_since_log += not finite
        self._latest = {**by_name, "grad_norm_clipped": clipped}

    def _checkpoint(self) -> dict[str, Any] | None:
        if self.flow is None:
            return None
        flow = self.flow.state_dict()
        flow["history"] = {"records": flow["history"]["records"][-KEPT_STEPS:]}
        manager = None if self.manager is None else self.manager.state_dict()
        return {"flow": flow, "manager": manager if _is_json(manager) else None}

    def _resume(self, flow: Flow, state: Any) -> None:
        stored = state.stateful_callbacks.get(type(self).__name__) or {}
        if isinstance(stored, list):  # several callbacks of this class: the first of them is as good as any
            stored = stored[0]
        kept = stored.get("attributes", {}).get("checkpoint")
        if kept is None:  # the checkpoint is of a run that was not watched
            at = state.global_step
            kept = {"flow": {**flow.state_dict(), "steps": at, "own_steps": [at]}, "manager": None}
        flow.load_state_dict(kept["flow"])
        if self.manager is not None and kept["manager"] is not None:
            self.manager.load_state_dict(kept["manager"])
        self._first_step = flow.steps


COUNTS = {"layers_every", "history"}
FURTHER = {"near_zero", "very_large", "process_group", "check_ranks", "trace_ranks", "describe", "config"}
"""Settings that go to `gf.watch` as they are."""


def _handler_that_called(callback: TrainerCallback) -> CallbackHandler | None:
    """The Trainer's list of callbacks, which no event hands over: it is the one that called us."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, CallbackHandler) and any(each is callback for each in caller.callbacks):
            return caller
        frame = frame.f_back
    return None


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _warn(message: str) -> None:
    warn(message, stacklevel=4)
