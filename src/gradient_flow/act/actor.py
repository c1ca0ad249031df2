"""`Actor`: what is done to the gradients of one step once they are measured. First the guard, then the clip."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any

import torch

from gradient_flow.act.clipper import GradientClipper
from gradient_flow.act.guard import WITHHELD, Guard, GuardEvent, NaNInfHandler, event_of
from gradient_flow.act.in_place import ScaleInStep
from gradient_flow.act.rollback import Snapshot, is_worth_keeping
from gradient_flow.act.schedule_hold import ScheduleHold
from gradient_flow.capture.optimizer_steps import pending_scale
from gradient_flow.capture.sharding import several_ranks
from gradient_flow.config import GradientConfig
from gradient_flow.table import GradientTable
from gradient_flow.table.row_parameters import Parameters, rows_now


class Actor:
    """Guard, replacement, rollback and clipping of one run, with all their state."""

    def __init__(self, config: GradientConfig) -> None:
        self.config = config
        self.guard = Guard(config)
        self.nan_inf_handler = NaNInfHandler(config)
        self.clipper = GradientClipper(config)
        self._snapshots: weakref.WeakKeyDictionary[torch.optim.Optimizer, Snapshot] = weakref.WeakKeyDictionary()

    def forget_snapshots(self) -> None:
        """Nothing to go back to any more: another run begins."""
        self._snapshots.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_snapshots"}  # of this process only

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._snapshots = weakref.WeakKeyDictionary()

    def judge(
        self,
        step: int,
        table: GradientTable,
        loss: float | None,
        *,
        scaler_handles_it: bool,
        bad_ranks: tuple[int, ...] = (),
    ) -> GuardEvent | None:
        """What is to be done about non-finite gradients or a non-finite loss; `None` where all is finite."""
        finite = table.total.finite
        # Each rank has a loss of its own; the gradients are those of all, and only what is of all may decide.
        if finite and (loss is None or math.isfinite(loss) or several_ranks()):
            return None
        action = self.guard.decide(scaler_handles_it=scaler_handles_it and not finite)
        if finite and action in ("replace", "zero"):
            action = "observe"  # the loss alone is not finite: there is no element to put a number for
        return event_of(step, action, table.names, table.nan_count.tolist(), table.inf_count.tolist(), loss, bad_ranks)

    def good_step(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """All gradients are finite, so the weights that made them are worth keeping."""
        self.guard.good_step()
        if self.config.nonfinite != "rollback" or optimizer is None:
            self._snapshots.clear()
            return
        last = self._snapshots.get(optimizer)
        due = last is None or step - last.step >= self.config.snapshot_every
        if due and is_worth_keeping(model, optimizer):
            self._snapshots[optimizer] = Snapshot(step, model, optimizer)

    def bad_step(
        self,
        event: GuardEvent,
        parameters: Parameters,
        table: GradientTable,
        optimizer: torch.optim.Optimizer | None,
        hold: ScheduleHold,
    ) -> GuardEvent:
        """Do what was decided, put it on record, and raise if that was the decision."""
        if event.action == "rollback":
            event = self._roll_back(event, optimizer)
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
        elif event.action in ("replace", "zero"):
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
    ) -> dict[str, Any]:
        """Clip what the guard let through, inside the optimizer's own step where that is exact."""
        if event is not None and event.action in ("replace", "zero"):
            rows = rows_now(parameters, range(len(parameters)))
            table = GradientTable(table.names, rows, missing=table.missing, thresholds=table.thresholds)
        elif event is not None and (event.action in WITHHELD or not table.total.finite):
            return self.clipper.untouched(table.total.norm)
        # Numbers put in the place of NaN or Inf are no norms of this run: they set no limit for later steps.
        decision = self.clipper.decide(parameters, table, optimizer, remember=event is None)
        factor, total = decision.uniform_factor, decision.total_norm
        if factor is not None and factor != 1.0 and in_step is not None and in_step.takes(factor, parameters):
            in_step.begin(factor)
            return self.clipper.describe(decision, [name for name, _ in parameters], total * factor)
        return self.clipper.apply(decision, parameters, table, scale=pending_scale(optimizer))

    def _roll_back(self, event: GuardEvent, optimizer: torch.optim.Optimizer | None) -> GuardEvent:
        snapshot = None if optimizer is None else self._snapshots.get(optimizer)
        if snapshot is None or optimizer is None:
            return replace(event, action="skip")  # nothing to go back to yet
        snapshot.restore(optimizer)
        return replace(event, restored_step=snapshot.step)
