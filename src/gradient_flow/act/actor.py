"""`Actor`: what is done to the gradients of one step once they are measured. First the guard, then the clip."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from gradient_flow.act.buffers import BufferKeeper, BufferLook, BufferReport, bad_buffers
from gradient_flow.act.clipper import GradientClipper
from gradient_flow.act.guard import WITHHELD, Guard, GuardEvent, NaNInfHandler, event_of
from gradient_flow.act.in_place import ScaleInStep
from gradient_flow.act.on_device import REPLACED
from gradient_flow.act.rollback import Snapshot, is_worth_keeping
from gradient_flow.act.schedule_hold import ScheduleHold
from gradient_flow.capture.sharding import several_ranks
from gradient_flow.config import GradientConfig
from gradient_flow.errors import warn
from gradient_flow.table import GradientTable
from gradient_flow.table.row_parameters import Parameters, rows_now

_TOGETHER: Final = 100
"""Steps after which a model counts no longer as one that is trained together with another."""


class Actor:
    """Guard, replacement, rollback and clipping of one run, with all their state."""

    def __init__(self, config: GradientConfig) -> None:
        self.config = config
        self.guard = Guard(config)
        self.nan_inf_handler = NaNInfHandler(config)
        self.clipper = GradientClipper(config)
        self._buffers_failed = False
        self._forget_state_of_models()

    def _forget_state_of_models(self) -> None:
        self._snapshots: weakref.WeakKeyDictionary[torch.optim.Optimizer, Snapshot] = weakref.WeakKeyDictionary()
        self._buffers: weakref.WeakKeyDictionary[torch.nn.Module, BufferKeeper] = weakref.WeakKeyDictionary()
        self._minded: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._minded_steps = 0

    def forget_snapshots(self) -> None:
        """Drop what could be restored: another run begins."""
        self._forget_state_of_models()

    def __getstate__(self) -> dict[str, Any]:
        of_this_process = ("_snapshots", "_buffers", "_minded", "_minded_steps")
        return {name: value for name, value in vars(self).items() if name not in of_this_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Actor.__init__(self, state["config"])  # what an older version did not have
        vars(self).update(state)
        self._forget_state_of_models()

    # ---- buffers --------------------------------------------------------------------------------------------------

    def see_buffers(self, model: torch.nn.Module, *, first: bool = False) -> None:
        """Take the buffers as they are now for good ones, before any forward of a step; `first`: only if none are."""

        def see() -> None:
            known = self._buffers.get(model)
            if known is not None and first:
                return
            keeper = self._buffers.setdefault(model, known or BufferKeeper(model, self.config.buffer_limit_mib))
            if self.config.undoes_buffers:
                keeper.refresh()

        self._without_harm(see)

    def undo_buffers(self, model: torch.nn.Module) -> None:
        """A `GradScaler` skipped a step without asking us: restore its buffers if the policy says so."""
        keeper = self._buffers.get(model)
        if keeper is not None and self.config.undoes_buffers:
            self._without_harm(keeper.put_back)

    def has_good_buffers(self, model: torch.nn.Module) -> bool:
        """Whether every buffer is finite, but for those that hold Inf on purpose."""
        keeper = self._buffers.get(model)
        return not bad_buffers(model, meant=() if keeper is None else keeper.meant_infinite)

    def mind_buffers(self, model: torch.nn.Module, event: GuardEvent | None, *, closely: bool) -> BufferReport:
        """Keep the buffers of a good step, put back those of a bad one, and tell which are not finite.

        Those of models that are trained together with it too: a generator's step runs the discriminator as well.
        """
        if event is None and not self.config.enable_nan_inf_check:
            return BufferReport()
        self._minded_steps += 1
        reports: list[BufferReport] = []

        def mind_all() -> None:
            for each in (model, *self._trained_with(model)):
                reports.append(self._after_good_step(each, closely) if event is None else self._after_bad_step(each))

        self._without_harm(mind_all)
        self._minded[model] = self._minded_steps
        return _merged(reports)

    def start_minding(self, model: torch.nn.Module) -> list[BufferLook]:
        """Where a device acts by itself, and so nothing is put back: look at the buffers; what is bad comes later."""
        looks: list[BufferLook] = []
        if not self.config.enable_nan_inf_check or self.config.undoes_buffers:
            return looks
        self._minded_steps += 1

        def start() -> None:
            for each in (model, *self._trained_with(model)):
                looks.append(self._keeper(each).start_look())

        self._without_harm(start)
        self._minded[model] = self._minded_steps
        return looks

    def report_on(self, looks: Sequence[BufferLook]) -> BufferReport:
        """What these looks found. Waits for it."""
        return _merged([BufferReport(bad, "left as they are" if bad else "") for bad in (look.bad() for look in looks)])

    def buffers_are_still(self, model: torch.nn.Module) -> bool:
        """Whether no buffer shows a change since the last good step, so that a skipped step has none to undo."""
        if not self.config.undoes_buffers:
            return True
        self._minded_steps += 1
        models = (model, *self._trained_with(model))
        self._minded[model] = self._minded_steps
        return all(self._keeper(each).is_still() for each in models)

    def _keeper(self, model: torch.nn.Module) -> BufferKeeper:
        if model not in self._buffers:
            self._buffers[model] = BufferKeeper(model, self.config.buffer_limit_mib)
        return self._buffers[model]

    def _trained_with(self, model: torch.nn.Module) -> list[torch.nn.Module]:
        recent = self._minded_steps - _TOGETHER
        return [other for other, step in self._minded.items() if other is not model and step > recent]

    def _after_good_step(self, model: torch.nn.Module, closely: bool) -> BufferReport:
        keeper = self._keeper(model)
        if not self.config.undoes_buffers:
            bad = keeper.look(closely=closely)
            return BufferReport(bad, "left as they are" if bad else "")
        had_copies = keeper.has_copies
        bad = keeper.refresh()
        if bad and had_copies:
            keeper.put_back(only=bad)
        return self._what_is_left(model, keeper, bad, "they were never seen finite")

    def _after_bad_step(self, model: torch.nn.Module) -> BufferReport:
        keeper = self._buffers.get(model)
        if keeper is None:
            keeper = self._buffers[model] = BufferKeeper(model, self.config.buffer_limit_mib, trusted=False)
        bad = keeper.look(closely=True)
        if not self.config.undoes_buffers:
            return BufferReport(bad, "left as they are" if bad else "")
        if not keeper.has_copies:
            touched = any(True for _ in model.buffers())
            return BufferReport(bad, "left: no good step was seen before this one" if touched else "")
        keeper.put_back()
        return self._what_is_left(model, keeper, bad, "over `buffer_limit_mib`, new, or never seen finite")

    def _what_is_left(
        self, model: torch.nn.Module, keeper: BufferKeeper, bad: Mapping[str, int], reason: str
    ) -> BufferReport:
        left = bad_buffers(model, meant=keeper.meant_infinite, among=bad) if bad else {}
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            return BufferReport(bad, f"left (`{next(iter(left))}`{more}): {reason}")
        return BufferReport(bad, "put back" if bad else "")

    def _without_harm(self, action: Callable[[], object]) -> None:
        """Run `action`; buffers that cannot be copied or read must not end the training."""
        if self._buffers_failed:
            return
        try:
            action()
        except Exception as problem:
            self._buffers_failed = True
            warn(
                f"Buffers are no longer watched ({type(problem).__name__}: {problem}): a skipped step does not undo "
                "what it did to them. Training continues.",
                stacklevel=2,
            )

    # ---- gradients ------------------------------------------------------------------------------------------------

    def judge(
        self,
        step: int,
        table: GradientTable,
        loss: float | None,
        *,
        scaler_handles_it: bool,
        bad_ranks: tuple[int, ...] = (),
        done: str | None = None,
    ) -> GuardEvent | None:
        """What is to be done about non-finite gradients or a non-finite loss; `None` where all is finite.

        `done`: what a device did about it already.
        """
        finite = table.total.finite
        # Each rank has a loss of its own; the gradients are those of all, and only what is of all may decide.
        if finite and (loss is None or math.isfinite(loss) or several_ranks()):
            return None
        handled = scaler_handles_it and not finite
        action = done if done is not None and not handled else self.guard.decide(scaler_handles_it=handled)
        if finite and action in REPLACED:
            action = "observe"  # the loss alone is not finite: there is no element to put a number for
        return event_of(step, action, table.names, table.nan_count.tolist(), table.inf_count.tolist(), loss, bad_ranks)

    def note_step(self, event: GuardEvent | None) -> None:
        """Count a step that a device acted on by itself."""
        self._snapshots.clear()
        if event is None:
            self.guard.good_step()
            return
        self.guard.bad_step(event)
        if event.action in REPLACED:
            self.nan_inf_handler.total_replacements += event.nan + event.inf

    def good_step(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """All gradients are finite, so the weights that made them are worth keeping."""
        self.guard.good_step()
        if self.config.nonfinite != "rollback" or optimizer is None:
            self._snapshots.clear()
            return
        last = self._snapshots.get(optimizer)
        due = last is None or step - last.step >= self.config.snapshot_every
        if due and is_worth_keeping(optimizer) and self.has_good_buffers(model):
            self._snapshots[optimizer] = Snapshot(step, model, optimizer)

    def bad_step(
        self,
        event: GuardEvent,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None,
        model: torch.nn.Module,
        hold: ScheduleHold,
    ) -> GuardEvent:
        """Do what was decided, put it on record, and raise if that was the decision."""
        if event.action == "rollback":
            event = self._roll_back(event, optimizer, model)
        self.guard.bad_step(event)
        if event.action == "raise":
            raise self.guard.error(event)
        if event.action in ("skip", "rollback"):
            # Optimizers pass over parameters without a gradient: no decay, no momentum, no step count.
            for _, parameter in parameters:
                parameter.grad = None
            for group in optimizer.param_groups if optimizer is not None else ():
                for parameter in group["params"]:
                    parameter.grad = None
        elif event.action in REPLACED:
            self.nan_inf_handler.replace(parameters, table, by_zero=event.action == "zero")
        if event.action in WITHHELD:
            hold.hold()
        return event

    def clip(
        self,
        event: GuardEvent | None,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None,
        in_step: ScaleInStep | None,
        scale: float = 1.0,
    ) -> dict[str, Any]:
        """Clip what the guard let through, inside the optimizer's own step where that is exact.

        `scale` is a loss scale still in the gradients that the table is free of.
        """
        if event is not None and event.action in REPLACED:
            rows = rows_now(parameters, range(len(parameters)))
            table = GradientTable(table.names, rows, missing=table.missing, thresholds=table.thresholds)
        elif event is not None and (event.action in WITHHELD or not table.total.finite):
            return self.clipper.untouched(table.total.norm)
        # Replacements for NaN or Inf are not norms of this run: they must not set the limit of later steps.
        decision = self.clipper.decide(parameters, table, optimizer, remember=event is None)
        factor, total = decision.uniform_factor, decision.total_norm
        if factor is not None and factor != 1.0 and in_step is not None and in_step.takes(factor, parameters):
            in_step.begin(factor)
            return self.clipper.describe(decision, [name for name, _ in parameters], total * factor)
        return self.clipper.apply(decision, parameters, table, scale=scale)

    def _roll_back(
        self, event: GuardEvent, optimizer: torch.optim.Optimizer | None, model: torch.nn.Module
    ) -> GuardEvent:
        snapshot = None if optimizer is None else self._snapshots.get(optimizer)
        if snapshot is None or optimizer is None:
            return replace(event, action="skip")  # no snapshot yet
        snapshot.restore(optimizer)
        self.see_buffers(model)  # those of the snapshot are the good ones now
        return replace(event, restored_step=snapshot.step)


def _merged(reports: list[BufferReport]) -> BufferReport:
    """One report of several models; what was left, in any of them, is what is said."""
    bad = {name: count for report in reversed(reports) for name, count in report.bad.items()}
    left = [report.done for report in reports if report.done and not report.put_back]
    return BufferReport(bad, left[0] if left else "put back" if bad else "")
