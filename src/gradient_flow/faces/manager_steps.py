"""One step of a manager: measured, judged, guarded, clipped and recorded."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from gradient_flow.act.buffers import BufferReport
from gradient_flow.act.device_clip import FOLLOW
from gradient_flow.act.guard import WITHHELD, GuardEvent, event_of
from gradient_flow.act.in_place import ScaleInStep
from gradient_flow.act.late_steps import ManagedStep, known, late_number
from gradient_flow.act.on_device import REPLACED, DeviceAction, is_on_one_device, why_host_decides
from gradient_flow.act.schedule_hold import ScheduleHold
from gradient_flow.capture.arrivals import LateNumber
from gradient_flow.capture.optimizer_steps import (
    NotedScale,
    found_overflow,
    running_backward,
)
from gradient_flow.capture.unsupported import why_unsupported
from gradient_flow.diagnosis.step_health import Finding, bad_buffers_finding, report
from gradient_flow.errors import MonitorStateError, warn
from gradient_flow.faces.manager_state import ManagerState
from gradient_flow.faces.monitor import describe_gradients
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.rank_names import RankNames
from gradient_flow.table.row_parameters import Parameters, measure_parameters

if TYPE_CHECKING:
    from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin

logger = logging.getLogger("gradient_flow")
_MOST_REPLAYS: Final = 3
"""Bad steps of a run that are replayed to find the cause: each replay costs several steps."""
_STALLING_INF: Final = 1.0
"""Replacements for Inf above this are warned about."""


class StepManager(ManagerState):
    """What is done with the gradients of a step, here or on their device."""

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
