"""`GradientManager`: one training step guarded, clipped and recorded, from one read of the gradients."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from gradient_flow.act.actor import Actor
from gradient_flow.act.attachment import Attachment, as_optimizers
from gradient_flow.act.buffers import BufferReport
from gradient_flow.act.clip_advice import ClipAdvice, advise_on_clipping
from gradient_flow.act.clipper import GradientClipper
from gradient_flow.act.device_clip import FOLLOW
from gradient_flow.act.guard import WITHHELD, Guard, GuardEvent, NaNInfHandler, event_of
from gradient_flow.act.in_place import ScaleInStep
from gradient_flow.act.late_steps import LateSteps, ManagedStep, known, late_number
from gradient_flow.act.on_device import REPLACED, DeviceAction, is_on_one_device, why_host_decides
from gradient_flow.act.schedule_hold import ScheduleHold, check_schedulers
from gradient_flow.capture.arrivals import LateNumber
from gradient_flow.capture.optimizer_steps import (
    NotedScale,
    ScaleWatch,
    after_each_step,
    before_each_step,
    found_overflow,
    late_scale,
    running_backward,
    stepping_optimizer,
    unscale_gradients,
)
from gradient_flow.capture.parameters import parameters_to_manage
from gradient_flow.capture.random_state import RandomState
from gradient_flow.capture.unsupported import why_unsupported
from gradient_flow.config import GradientConfig
from gradient_flow.diagnosis.step_health import Finding, bad_buffers_finding, report
from gradient_flow.errors import ConfigError, InputError, MonitorStateError, warn
from gradient_flow.faces.monitor import GradientMonitor, describe_gradients
from gradient_flow.flow.rank_checks import RankTrace
from gradient_flow.record.export import write_json
from gradient_flow.report.figures import save_figure
from gradient_flow.report.training_figures import plot_training_curves
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.rank_names import RankNames
from gradient_flow.table.row_parameters import Parameters, measure_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin

logger = logging.getLogger("gradient_flow")
_MOST_REPLAYS: Final = 3
"""Bad steps of a run that are replayed to find the cause: each replay costs several steps."""
_STALLING_INF: Final = 1.0
"""Replacements for Inf above this are warned about."""


class GradientManager:
    """Guards, clips and watches the gradients of a model: `step` in a loop, or `attach` to an optimizer.

    A step goes: measure, health, guard, clip, record. Gradients are read once for all of it and written only if they
    have to change.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> manager = GradientManager(GradientConfig(max_grad_norm=1.0))
    >>> info = manager.step(model, optimizer, loss=model(torch.full((1, 1), 8.0)).sum())
    >>> info["statistics"]["total_norm"], info["clipping"]["clip_ratio"], info["health"]["healthy"]
    (8.0, 0.125, True)
    """

    def __init__(self, config: GradientConfig | None = None, *, process_group: Any = None) -> None:
        if config is not None and not isinstance(config, GradientConfig):
            raise InputError(f"`config` must be a GradientConfig, got {type(config).__name__}.")
        self._config = config if config is not None else GradientConfig()
        self.config.check()
        if self.config.nonfinite == "rollback" and self.config.rollback_after > self.config.max_consecutive_skips:
            raise ConfigError(
                f"`rollback_after` ({self.config.rollback_after}) must not exceed `max_consecutive_skips` "
                f"({self.config.max_consecutive_skips}): the limit would end the run before any rollback."
            )
        self.process_group = process_group
        """Ranks with different parameters, such as pipeline stages, that are managed as one model."""
        self._ranks = None if process_group is None else RankNames(process_group)
        self._monitor = GradientMonitor(self.config)
        self._actor = Actor(self.config)
        self.total_steps = 0
        self._unhealthy_steps = 0
        self._clipped_steps = 0
        self._last_step: dict[str, Any] | None = None
        self._late = LateSteps()
        """Steps that a device acted on by itself, and that are not accounted for yet."""
        self._reasons: set[str] = set()
        """Why the host was waited for, as far as that was told."""
        self.origins: list[NonFiniteOrigin] = []
        """Causes of non-finite gradients that replays found."""
        self._health: dict[str, Any] = {"healthy": True, "warnings": [], "recommendations": [], "issues": []}
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._random: RandomState | None = None
        self._replays = 0
        self._scale = ScaleWatch()
        self._counted_overflows = 0
        """Overflows that showed in the scale so far."""
        self._seen_overflows = 0
        """Overflows that were seen in the gradients, before they show in the scale."""
        self._warned = False
        self._attached: list[torch.optim.Optimizer] = []
        self._asked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Models of which it is known whether their gradients can be read."""
        self._served: tuple[weakref.ref[torch.optim.Optimizer], list[Any]] | None = None

    @property
    def config(self) -> GradientConfig:
        """The settings in force. Change their fields; another object cannot take their place."""
        return self._config

    @property
    def monitor(self) -> GradientMonitor:
        """Statistics and health of all steps so far. Like everything that is known of steps, it waits for a device."""
        self.settle()
        return self._monitor

    @property
    def clipper(self) -> GradientClipper:
        """Decides and does the clipping."""
        self.settle()
        return self._actor.clipper

    @property
    def nan_inf_handler(self) -> NaNInfHandler:
        """Counts and replaces NaN and Inf."""
        self.settle()
        return self._actor.nan_inf_handler

    @property
    def guard(self) -> Guard:
        """Decides about steps with NaN or Inf, and counts them."""
        self.settle()
        return self._actor.guard

    @property
    def unhealthy_steps(self) -> int:
        """Steps that were not healthy."""
        self.settle()
        return self._unhealthy_steps

    @property
    def clipped_steps(self) -> int:
        """Steps whose gradients were changed by the clip."""
        self.settle()
        return self._clipped_steps

    @property
    def last_step(self) -> dict[str, Any] | None:
        """What the last step returned."""
        self.settle()
        return self._last_step

    def settle(self) -> None:
        """Account for every step so far, in order; waits for those whose numbers a device has not sent yet."""
        self._late.settle(self._conclude_late, at_most=0)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        # Which model and optimizers were seen is of this process only.
        return {**vars(self), "_model": None, "_attached": [], "_asked": None, "_served": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        GradientManager.__init__(self, state["_config"])  # what an older version did not have
        now = vars(self)
        # Once these had no underscore, or were kept beside the actor that has them.
        now.update({f"_{name}" if f"_{name}" in now else name: value for name, value in state.items()})
        self._asked = weakref.WeakSet()

    # ---- acting ---------------------------------------------------------------------------------------------------

    def step(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        loss: torch.Tensor | None = None,
        backward: bool = True,
        *,
        closure: Callable[[], Any] | None = None,
        scaler: Any = None,
        scheduler: Any = None,
    ) -> dict[str, Any]:
        """Run backward (if asked), then measure, guard, clip and record. Call `optimizer.step()` afterwards.

        Args:
            loss: what backward starts from; with `backward=False` it is only recorded.
            closure: a function that computes the loss of this step again. Without `loss` it is called to get it.
                When gradients are not finite, it is replayed to find the operation that made them.
            scaler: the `GradScaler`, if there is one. Its overflow check comes first and sees what backward left.
            scheduler: one or several schedules that move with every optimizer step: held for a step that is skipped.

        Returns a dictionary with `health`, `nan_inf`, `clipping` and `statistics`, and `skipped`: whether this step was
        withheld from the optimizer. Its gradients are then `None`, so `optimizer.step()` changes nothing.
        """
        if not isinstance(model, torch.nn.Module):
            raise InputError(f"`model` must be a module, got {type(model).__name__}.")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"`optimizer` must be a torch optimizer or None, got {type(optimizer).__name__}.")
        optimizer = None if optimizer is None else stepping_optimizer(optimizer)
        scaled = scaler is not None and scaler.is_enabled()
        if scaled and optimizer is None:
            raise InputError("`scaler` needs `optimizer`: gradients are unscaled for the optimizer that steps them.")
        check_schedulers(scheduler)
        if loss is None and closure is not None:
            self.mark_step_start(model)
            loss = closure()
        if backward and loss is not None:
            _run_backward(loss, scaler)
        if scaler is not None and optimizer is not None:
            unscale_gradients(scaler, optimizer)
        # Under a scaler the gradients of other optimizers are still scaled.
        table, parameters = self.measure_step(
            parameters_to_manage(model, optimizer, only_optimizer=scaled), self._ranks
        )
        done = self.manage_step(
            parameters,
            table,
            optimizer,
            model,
            loss,
            closure=closure,
            scaler=scaler,
            scheduler=scheduler,
            scale=late_scale(optimizer),
        )
        info = self.info_of(done)
        # In a loop that calls `step` itself, the hook of an attachment must not manage the same gradients again.
        self._served = None
        if optimizer in self._attached and optimizer is not None and not info["skipped"]:
            self._served = weakref.ref(optimizer), _marks(optimizer)
        if closure is not None:
            self.mark_step_start()  # the next step starts from here
        return info

    def has_managed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the coming step of an attached optimizer was managed by `step` already; asking ends it."""
        served, self._served = self._served, None
        return served is not None and served[0]() is optimizer and served[1] == _marks(optimizer)

    def mark_step_start(self, model: torch.nn.Module | None = None) -> None:
        """Remember the random state, so that a replay of the coming step draws what the step drew.

        With `model`, before its first forward: its buffers too, so that even a bad first step can be undone.
        """
        self._random = RandomState.capture()
        if model is not None:
            self._actor.see_buffers(model, first=True)

    def see_buffers(self, model: torch.nn.Module) -> None:
        """Take the model's buffers as they are for good: what `skip` and `rollback` put back after a bad step.

        Call it after you have changed them yourself, as by `model.load_state_dict(...)` in the middle of a run.
        """
        self._actor.see_buffers(model)

    @contextmanager
    def attach(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        scaler: Any = None,
        scheduler: Any = None,
        trace_ranks: bool = False,
    ) -> Iterator[GradientManager]:
        """Manage every `optimizer.step()` inside a `with` block; nothing else in the loop changes.

        With `trace_ranks` the gradients of each rank are also looked at before `DistributedDataParallel` averages
        them, so that an event names the rank that a NaN came from. That costs a second read of the gradients and one
        collective of two numbers per rank and step.

        A step with a closure (LBFGS) is judged by the closure's first evaluation. A `GradScaler` that finds an overflow
        does not call an optimizer that is not fused: then hold the schedule yourself, by the scale that fell.

        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with create_gradient_manager(max_grad_norm=1.0).attach(model, optimizer) as manager:
        ...     model(torch.ones(1, 2)).sum().backward(); optimizer.step()
        >>> manager.total_steps
        1
        """
        trace = RankTrace(model) if trace_ranks else None
        attachment = Attachment(self, model, scaler=scaler, scheduler=scheduler, trace=trace)
        optimizers, handles = as_optimizers(optimizer), []
        if any(each in self._attached for each in optimizers):
            raise MonitorStateError("This manager is attached to `optimizer` already: it would act twice on each step.")
        for each in optimizers:
            handles.append(before_each_step(each, attachment.before_step))
            handles.append(after_each_step(each, attachment.after_step))
        self._attached += optimizers
        try:
            yield self
        finally:
            for each in optimizers:
                self._attached.remove(each)
            self._served = None
            for handle in handles:
                handle.remove()
            attachment.close()

    def healthy(self, model: torch.nn.Module | None = None) -> bool:
        """Whether a checkpoint may be saved now: the last step was good and every weight is finite.

        Reads the weights once. `model` is by default the one of the last step. With a sharded model, all ranks ask.
        """
        model = model if model is not None else self._model() if self._model is not None else None
        self.settle()
        if (
            self._actor.guard.consecutive
            or "explosion" in self._health["issues"]
            or "nonfinite" in self._health["issues"]
        ):
            return False
        if model is None:
            return True
        weights = {n: p.detach() for n, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}
        return measure(weights).total.finite and self._actor.has_good_buffers(model)

    def __repr__(self) -> str:
        on = f"attached to {len(self._attached)} optimizers, " if len(self._attached) > 1 else ""
        on = on or ("attached, " if self._attached else "")
        kind = self.config.active_clip_type
        clip = f"clip by {kind}" if kind else "no clip"
        return f"GradientManager({clip}, {on}{self.total_steps:,} steps, {self.clipped_steps:,} clipped)"

    def _repr_html_(self) -> str:
        from gradient_flow.faces.notebook import manager_html

        return manager_html(self)

    # ---- telling --------------------------------------------------------------------------------------------------

    def get_training_summary(self) -> dict[str, Any]:
        """The run so far: statistics over all steps, health, replacements, clipping, guard."""
        norms = self.monitor.norms
        return {
            "total_steps": self.total_steps,
            "gradient_statistics": {"gradient_norms": norms.to_dict(), "nonfinite_norms": norms.nonfinite},
            "health_issues": {
                "unhealthy_steps": self.unhealthy_steps,
                "unhealthy_share": self.unhealthy_steps / self.total_steps if self.total_steps else 0.0,
                "latest_warnings": list(self._health["warnings"]),
                "latest_recommendations": list(self._health["recommendations"]),
            },
            "nan_inf_summary": {
                "total_replacements": self.nan_inf_handler.total_replacements,
                "bad_steps": self.guard.bad_steps,
                "skipped_steps": self.guard.skipped,
                "by_action": dict(self.guard.by_action),
                "events": [str(event) for event in list(self.guard.events)[-10:]],
            },
            "clipping_summary": self.clip_advice().to_dict(),
        }

    def clip_advice(self) -> ClipAdvice:
        """How often steps are clipped, how the norms lie, and which limit would fit."""
        config = self.config
        limit = config.max_grad_norm if config.active_clip_type in ("norm", "zclip") else None
        by_norm = config.active_clip_type not in ("agc", "value")
        norms = self.monitor.recent_norms()
        return advise_on_clipping(self.total_steps, self.clipped_steps, norms, limit, by_norm=by_norm)

    @property
    def events(self) -> list[GuardEvent]:
        """The newest steps with non-finite gradients, and what was done."""
        return list(self.guard.events)

    def plot_training_curves(self, save_path: str | Path | None = None) -> Figure:
        """Four panels over the remembered steps: loss, gradient norms, NaN/Inf counts, clipping ratios."""
        figure = plot_training_curves(list(self.monitor.history))
        if save_path is not None and self.config.save_gradient_plots:
            save_figure(figure, save_path)
        return figure

    def save_training_log(self, file_path: str | Path) -> None:
        """Write settings, summary, events and the remembered steps as strict JSON, whole or not at all."""
        log = {
            "config": vars(self.config),
            "summary": self.get_training_summary(),
            "events": [vars(event) for event in self.guard.events],
            "origins": [origin.to_dict() for origin in self.origins],
            "steps": list(self.monitor.history),
        }
        write_json(Path(file_path), log)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that a resumed run is managed like the uninterrupted one."""
        return {
            "total_steps": self.total_steps,
            "unhealthy_steps": self.unhealthy_steps,
            "clipped_steps": self.clipped_steps,
            "total_replacements": self.nan_inf_handler.total_replacements,
            "monitor": self.monitor.state_dict(),
            "clipper": self.clipper.state_dict(),
            "guard": self.guard.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise InputError(f"`state` must come from GradientManager.state_dict(); it has no {', '.join(missing)}.")
        self.settle()
        self._actor.forget_snapshots()
        self._served, self._scale = None, ScaleWatch()
        self._counted_overflows = self._seen_overflows = 0
        self.total_steps, self._unhealthy_steps = state["total_steps"], state["unhealthy_steps"]
        self._clipped_steps = state["clipped_steps"]
        self.nan_inf_handler.total_replacements = state["total_replacements"]
        self.monitor.load_state_dict(state["monitor"])
        self.clipper.load_state_dict(state["clipper"])
        self.guard.load_state_dict(state["guard"])

    # ---- one step -------------------------------------------------------------------------------------------------

    def _is_checked(self, step: int) -> bool:
        """Health and statistics are taken at the first step and every Nth after it."""
        return self.config.enable_gradient_monitoring and (step - 1) % self.config.check_frequency == 0

    @property
    def _acts(self) -> bool:
        """Whether every step is guarded or clipped."""
        return self.config.enable_gradient_clipping or self.config.enable_nan_inf_check

    def measure_step(
        self, parameters: Parameters, ranks: RankNames | None = None, scale: float | LateNumber = 1.0
    ) -> tuple[GradientTable, Parameters]:
        """The table of the coming step, unscaled, and a parameter for each of its rows; both empty if not needed."""
        needed = self._acts or self._is_checked(self.total_steps + 1)
        return measure_parameters(parameters, ranks, scale) if needed else (measure({}), [])

    def manage_step(
        self,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None,
        model: torch.nn.Module,
        loss: Any,
        *,
        closure: Callable[[], Any] | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        in_step: ScaleInStep | None = None,
        bad_ranks: tuple[int, ...] = (),
        scale: float | LateNumber = 1.0,
    ) -> ManagedStep:
        """Health, guard, clip and record for gradients that were measured: one row of the table per parameter.

        `scale` is a loss scale still in the gradients that the table is free of. With `in_step`, a device may act by
        itself; what the step reports is then known later: ask `info_of`.
        """
        self.total_steps += 1
        self._model = weakref.ref(model)
        hold = ScheduleHold(scheduler)
        hold.release()
        rates = [group["lr"] for group in optimizer.param_groups if "lr" in group] if optimizer is not None else []
        checked = self._is_checked(self.total_steps)
        step = ManagedStep(
            number=self.total_steps,
            table=table,
            loss=late_number(loss),
            rate=late_number(rates[0]) if rates else None,
            overflow=found_overflow(scaler, optimizer),
            noted=None if scaler is None else self._scale.note(scaler),
            findings=self._unsupported(model, table) if self._acts or checked else [],
            bad_ranks=bad_ranks,
            checked=checked,
        )
        scaled = bool(step.overflow)
        if in_step is not None and optimizer is not None and closure is None:
            schedule = bool(hold)
            if self._acts_on_device(parameters, table, optimizer, model, in_step, schedule=schedule, scaled=scaled):
                action, clipper = self._actor.guard.decide(), self._actor.clipper
                step.buffers = self._actor.start_minding(model)
                step.action = DeviceAction(action, clipper, parameters, table, optimizer, step.loss, scale, in_step)
                self._late.add(step)
                self._late.settle(self._conclude_late)
                return step
        self.settle()
        step.wait()

        def act(event: GuardEvent | None) -> tuple[GuardEvent | None, dict[str, Any]]:
            if event is None:
                self._actor.good_step(step.number, model, optimizer)
            else:
                event = self._actor.bad_step(event, parameters, table, optimizer, model, hold)
            return event, self._actor.clip(event, parameters, table, optimizer, in_step, float(scale))

        self._conclude(
            step,
            lambda event, closely: self._actor.mind_buffers(model, event, closely=closely),
            lambda event: self._find_origin(closure, model, event),
            act,
        )
        return step

    def info_of(self, step: ManagedStep) -> dict[str, Any]:
        """What a step reports; waits where a device has not sent its numbers yet."""
        if step.info is None:
            self._late.settle(self._conclude_late, at_most=self._late.those_after(step))
        if step.info is None:
            raise MonitorStateError(f"What was done at step {step.number} is not known: its device failed.")
        return step.info

    def _acts_on_device(
        self,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        in_step: ScaleInStep,
        *,
        schedule: bool,
        scaled: bool,
    ) -> bool:
        """Whether this step needs no host; where it needs one, say why, once."""
        if not is_on_one_device(parameters, table) or running_backward() is not None:
            return False
        guard = self._actor.guard
        reason = why_host_decides(self.config, optimizer, in_step, schedule=schedule, scaled=scaled)
        if reason is None:
            if self.config.enable_gradient_clipping and self.config.active_clip_type in FOLLOW:
                self.settle()  # the limit follows from earlier norms, and not from when they came
            while len(self._late) and not guard.decides_alike(len(self._late)):
                self._late.settle(self._conclude_late, at_most=len(self._late) - 1)
            if not guard.decides_alike(0):
                reason = "a limit of skipped steps is reached"
            elif not self._actor.buffers_are_still(model):
                reason = "buffers change, and a skipped step has to restore them"
        if reason is not None and reason not in self._reasons:
            self._reasons.add(reason)
            logger.info("gradient_flow waits for the device in such steps: %s.", reason)
        return reason is None

    def _conclude_late(self, step: ManagedStep) -> None:
        """A step that a device acted on by itself: its numbers are there, or are waited for."""
        action = step.action
        assert action is not None

        def note(event: GuardEvent | None) -> tuple[GuardEvent | None, dict[str, Any]]:
            self._actor.note_step(event)
            return event, action.clipping(step.table, event)

        self._conclude(step, lambda _event, _closely: self._actor.report_on(step.buffers), lambda _event: None, note)

    def _conclude(
        self,
        step: ManagedStep,
        mind_buffers: Callable[[GuardEvent | None, bool], BufferReport],
        find_origin: Callable[[GuardEvent], NonFiniteOrigin | None],
        act: Callable[[GuardEvent | None], tuple[GuardEvent | None, dict[str, Any]]],
    ) -> None:
        """Judge, act and record: all that happens once the numbers of a step are there."""
        table, number, checked = step.table, known(step.loss), step.checked
        hidden = 0 if step.noted is None else self._count_overflows(step.noted, step.number)
        overflow = not table.total.finite and any(float(found) > 0 for found in step.overflow)
        done = None if step.action is None else step.action.action
        event = self._actor.judge(
            step.number, table, number, scaler_handles_it=overflow, bad_ranks=step.bad_ranks, done=done
        )
        # Before the step is replayed: it ran with the buffers as they were.
        buffers = mind_buffers(event, hidden > 0)
        if event is not None:
            event = event.with_buffers(tuple(buffers.bad), buffers.done)
        bad = not table.total.finite or not math.isfinite(number or 0.0)
        # A step that the guard has to act on is never called healthy, whatever the frequency of checks.
        findings = [] if not buffers.bad else [bad_buffers_finding(step.number, buffers.bad, buffers.done)]
        findings += step.findings
        self._health = (
            self._monitor.check_gradient_health(table, loss=number, step=step.number, more=findings)
            if checked or bad
            else report(findings)
        )
        self._unhealthy_steps += not self._health["healthy"]

        origin = None if event is None else find_origin(event)
        replaced = event is not None and event.action in REPLACED
        nan_inf = self._actor.nan_inf_handler.report(table, replaced=replaced)
        nan_inf |= {"bad_buffers": dict(buffers.bad), "buffers_put_back": buffers.put_back}
        if event is not None:
            self._seen_overflows += event.action == "left to GradScaler"
            self._tell_of(event, origin)
        event, clipping = act(event)
        self._clipped_steps += clipping["clipped"]
        nan_inf["action"] = None if event is None else event.action
        statistics = describe_gradients(table)
        if checked and len(table):
            self._record(step, statistics, clipping, event)
        step.info = self._last_step = {
            "step": step.number,
            "health": {**self._own_health(), "checked": checked},
            "nan_inf": nan_inf,
            "clipping": clipping,
            "statistics": statistics,
            "skipped": event is not None and event.action in WITHHELD,
        }
        if origin is not None:
            step.info["origin"] = origin
        if self.config.debug_mode:
            step.info["layers"] = table.to_dict()["gradients"]
        self._tell(step.info)
        if event is not None and event.action == "replace":
            self._warn_of_replacement(event)

    def _unsupported(self, model: torch.nn.Module, table: GradientTable) -> list[Finding]:
        """Where gradients are kept elsewhere, this step was neither guarded nor clipped: not to be called healthy."""
        empty = not len(table) and any(parameter.requires_grad for parameter in model.parameters())
        if model in self._asked and not empty:
            return []
        reason = why_unsupported(model, process_group=self.process_group)
        if reason is None:
            self._asked.add(model)
            return []
        if model not in self._asked:
            self._asked.add(model)
            warn(f"gradient_flow cannot guard and clip this training. {reason}", stacklevel=4)
        return [Finding("unsupported", f"Not supported: nothing is judged. {reason}", reason)] if empty else []

    def _own_health(self) -> dict[str, Any]:
        """The health of this step for the caller to keep or to change."""
        return {name: list(value) if isinstance(value, list) else value for name, value in self._health.items()}

    def _record(
        self,
        step: ManagedStep,
        statistics: Mapping[str, Any],
        clipping: Mapping[str, Any],
        event: GuardEvent | None,
    ) -> None:
        shown = ("clipped", "clipped_norm", "clip_ratio", "threshold")
        self._monitor.remember(
            step.table,
            statistics,
            loss=known(step.loss),
            step=step.number,
            healthy=self._health["healthy"],
            action=None if event is None else event.action,
            lr=known(step.rate),
            **{name: clipping[name] for name in shown},
        )

    def _find_origin(
        self, closure: Callable[[], Any] | None, model: torch.nn.Module, event: GuardEvent
    ) -> NonFiniteOrigin | None:
        if closure is None or event.action == "left to GradScaler" or self._replays >= _MOST_REPLAYS:
            return None
        from gradient_flow.probes.nonfinite.find import find_nonfinite

        self._replays += 1
        try:
            origin = find_nonfinite(closure, model, rng_state=self._random)
        except Exception as problem:  # a failed search must not end the training
            warn(f"The step could not be replayed: {problem}", stacklevel=6)
            return None
        self.origins.append(origin)
        return origin

    def count_overflows(self, scaler: Any, *, before_forward_of: torch.nn.Module | None = None) -> int:
        """Put on record what a scaler skipped without calling the optimizer: it shows in its scale. Returns how many.

        Asked before the next forward of a model, its buffers are still those of the skipped step and are put back.
        """
        if scaler is None:
            return 0
        self.settle()  # what they saw in gradients is not hidden
        hidden = self._count_overflows(self._scale.note(scaler), self.total_steps)
        if hidden and before_forward_of is not None:
            self._actor.undo_buffers(before_forward_of)
        return hidden

    def _count_overflows(self, noted: NotedScale, step: int) -> int:
        skipped = noted.value() - self._counted_overflows
        self._counted_overflows += skipped
        seen, self._seen_overflows = self._seen_overflows, max(0, self._seen_overflows - skipped)
        hidden = max(0, skipped - seen)
        for _ in range(hidden):
            self._actor.guard.bad_step(event_of(step, "left to GradScaler", (), (), (), None))
        return hidden

    def _tell_of(self, event: GuardEvent, origin: NonFiniteOrigin | None) -> None:
        logger.warning("non-finite gradients at %s", event)
        if origin is not None:
            logger.warning("%s", origin)

    def _tell(self, info: Mapping[str, Any]) -> None:
        level = logging.INFO if self.config.verbose_logging else logging.DEBUG
        if not info["health"]["checked"] or not logger.isEnabledFor(level):
            return
        if self.config.log_gradient_stats:
            s, c = info["statistics"], info["clipping"]
            clipped = f", clipped to {c['clipped_norm']:.6g}" if c["clipped"] else ""
            text = "step %d: gradient norm %.6g, mean %.3g, std %.3g%s"
            logger.log(level, text, info["step"], s["total_norm"], s["mean"], s["std"], clipped)
        for warning in info["health"]["warnings"]:
            logger.warning("%s", warning)

    def _warn_of_replacement(self, event: GuardEvent) -> None:
        if self._warned or not event.inf or abs(self.config.replace_inf_with) <= _STALLING_INF:
            return
        self._warned = True
        warn(
            f"Step {event.step}: Inf gradients were replaced by replace_inf_with={self.config.replace_inf_with:g}, "
            "then clipped. Adam keeps the square of such a gradient for thousands of steps (about 37,000 for 1e6 at "
            "beta2=0.999) and hardly moves that weight meanwhile; clipping afterwards shrinks every other gradient of "
            "the step with it. nonfinite='skip' leaves such steps out, nonfinite='zero' drops only their bad elements.",
            stacklevel=5,
        )


def create_gradient_manager(
    max_grad_norm: float = 1.0,
    enable_monitoring: bool = True,
    enable_nan_inf_check: bool = True,
    verbose: bool = False,
    **settings: Any,
) -> GradientManager:
    """A manager with common settings; `settings` are further fields of `GradientConfig`.

    `max_grad_norm` is the norm to clip to, `enable_monitoring` measures and judges every step, `enable_nan_inf_check`
    guards against NaN and Inf, `verbose` logs what is done.

    >>> create_gradient_manager(max_grad_norm=0.5, clip_type="zclip").config.clip_type
    'zclip'
    """
    try:
        config = GradientConfig(
            max_grad_norm=max_grad_norm,
            enable_gradient_monitoring=enable_monitoring,
            enable_nan_inf_check=enable_nan_inf_check,
            verbose_logging=verbose,
            **settings,
        )
    except TypeError as problem:
        raise InputError(f"create_gradient_manager: {problem}. Settings are the fields of GradientConfig.") from None
    return GradientManager(config)


def safe_backward(
    loss: torch.Tensor,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    gradient_manager: GradientManager,
    *,
    closure: Callable[[], Any] | None = None,
    scaler: Any = None,
    scheduler: Any = None,
) -> dict[str, Any]:
    """Backward, then everything that the manager does with a step: `GradientManager.step` as a function.

    Args:
        loss: what backward starts from.
        model: whose gradients these are.
        optimizer: which steps them; call its `step()` afterwards.
        gradient_manager: measures, guards, clips and records.
        closure: computes the loss of this step again, to find the operation that made NaN or Inf.
        scaler: the `GradScaler`, if there is one.
        scheduler: one or several schedules, held for a step that is skipped.
    """
    if not isinstance(gradient_manager, GradientManager):
        raise InputError(f"`gradient_manager` must be a GradientManager, got {type(gradient_manager).__name__}.")
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"`loss` must be a tensor, got {type(loss).__name__}.")
    return gradient_manager.step(model, optimizer, loss, closure=closure, scaler=scaler, scheduler=scheduler)


def _run_backward(loss: Any, scaler: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"`loss` must be a tensor to run backward from, got {type(loss).__name__}.")
    if loss.requires_grad:
        (scaler.scale(loss) if scaler is not None else loss).backward()


def _marks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Which gradients these are, and in which state."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return [None if gradient is None else (id(gradient), gradient._version) for gradient in gradients]
