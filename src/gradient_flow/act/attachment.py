"""`Attachment`: a manager at the side of optimizers. It acts before each of their steps and cleans up after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from gradient_flow.act.in_place import ScaleInStep
from gradient_flow.act.late_steps import ManagedStep
from gradient_flow.act.schedule_hold import ScheduleHold, check_schedulers
from gradient_flow.capture.arrivals import LateNumber
from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.capture.optimizer_steps import late_scale, stepping_optimizer
from gradient_flow.capture.parameters import parameters_to_manage
from gradient_flow.config import GradientConfig
from gradient_flow.errors import InputError
from gradient_flow.table import GradientTable
from gradient_flow.table.rank_names import RankNames
from gradient_flow.table.row_parameters import Parameters, parameters_of_rows


class StepManager(Protocol):
    """What an attachment asks of a `GradientManager`."""

    process_group: Any
    """Ranks with different parameters that are managed as one model."""
    origins: list[Any]
    """Causes of non-finite gradients that replays found."""

    @property
    def config(self) -> GradientConfig:
        """The settings in force."""

    @property
    def last_step(self) -> dict[str, Any] | None:
        """What the last step returned."""

    def see_buffers(self, model: torch.nn.Module) -> None:
        """Take note of the buffers as they are now, to go back to."""

    def has_managed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the coming step was managed already."""

    def measure_step(
        self, parameters: Any, ranks: RankNames | None, scale: float | LateNumber
    ) -> tuple[GradientTable, Parameters]:
        """The table of the coming step."""

    def manage_step(self, *parts: Any, **further: Any) -> ManagedStep:
        """Guard, clip and record the coming step."""

    def info_of(self, step: ManagedStep) -> dict[str, Any]:
        """What a step reports; waits for it."""

    def settle(self) -> None:
        """Account for every step so far."""

    def count_overflows(self, scaler: Any, *, before_forward_of: torch.nn.Module | None = None) -> int:
        """Count what the scaler skipped since."""


class BadRanks(Protocol):
    """What tells whose gradients were not finite before ranks were averaged."""

    def bad_ranks(self) -> Any:
        """The ranks with non-finite gradients since the last call."""

    def close(self) -> None:
        """Take the hooks away."""


class Outcome(NamedTuple):
    """What came of a step that was managed; where a device acted by itself, that is known later."""

    ready: Callable[[], bool]
    """Whether asking costs no wait."""
    info: Callable[[], dict[str, Any]]
    """What the step reports."""


class Attachment:
    """What a manager needs to know of a run to manage its optimizer steps, wherever their hooks are."""

    def __init__(
        self,
        manager: StepManager,
        model: torch.nn.Module,
        *,
        scaler: Any = None,
        scheduler: Any = None,
        process_group: Any = None,
        trace: BadRanks | None = None,
    ) -> None:
        check_schedulers(scheduler)
        self.manager, self.model, self.scaler, self.scheduler = manager, model, scaler, scheduler
        self.process_group = process_group if process_group is not None else manager.process_group
        self._ranks: dict[int, RankNames] = {}
        self._trace = trace
        self._in_step: dict[int, ScaleInStep] = {}
        self._forward_hook: Any = None
        manager.see_buffers(model)

    def before_step(
        self,
        optimizer: torch.optim.Optimizer,
        loss: Any,
        table: GradientTable | None = None,
        closure: Callable[[], Any] | None = None,
        *,
        ranks: RankNames | None = None,
        bad_ranks: tuple[int, ...] | None = None,
    ) -> Outcome:
        """Manage the gradients of the coming step. `table` is theirs, unscaled, where it was taken already.

        `ranks` and `bad_ranks` belong to the table: the names it was made with, and whose own gradients were bad.
        """
        self.after_step(optimizer)  # a step that failed may have left its scale behind
        if self.manager.has_managed(optimizer) and (last := self.manager.last_step) is not None:
            return Outcome(lambda: True, lambda: last)
        self._watch_for_overflows()
        in_step = self._in_step.setdefault(id(optimizer), ScaleInStep(optimizer))
        parameters = parameters_to_manage(self.model, optimizer, only_optimizer=True)
        scale = late_scale(optimizer)
        of_rows: Parameters
        if table is None:
            if self.process_group is not None:
                ranks = self._ranks.setdefault(id(optimizer), RankNames(self.process_group))
            table, of_rows = self.manager.measure_step(parameters, ranks, scale)
        else:
            of_rows = parameters_of_rows(table, parameters, ranks)
        if bad_ranks is None and self._trace is not None:
            bad_ranks = tuple(bad.rank for bad in self._trace.bad_ranks())
        step = self.manager.manage_step(
            of_rows,
            table,
            optimizer,
            self.model,
            loss,
            closure=closure,
            scaler=self.scaler,
            scheduler=self.scheduler,
            in_step=in_step,
            bad_ranks=bad_ranks or (),
            scale=scale,
        )
        return Outcome(lambda: step.info is not None or step.ready(), lambda: self.manager.info_of(step))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The step is over: remove everything of ours from the optimizer."""
        in_step = self._in_step.get(id(optimizer))
        if in_step is not None:
            in_step.end()

    def _watch_for_overflows(self) -> None:
        """A `GradScaler` that overflows skips the optimizer silently; the next forward is the first sign of it.

        From then on the buffers would hold that forward as well.
        """
        if self._forward_hook is None and self.scaler is not None and self.scaler.is_enabled():
            hook = ModuleHook(self.model, self._before_forward)
            self._forward_hook = self.model.register_forward_pre_hook(hook, with_kwargs=True)

    def _before_forward(self, _module: Any, _args: Any, _kwargs: Any) -> None:
        # A compiled model runs without; in a CUDA graph the scale must not be read.
        if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        if self.manager.config.undoes_buffers and next(self.model.buffers(), None) is not None:
            self.manager.count_overflows(self.scaler, before_forward_of=self.model)

    def close(self) -> None:
        """The same for all optimizers; overflows since the last step are counted."""
        if self._forward_hook is not None:
            self._forward_hook.remove()
        self.manager.settle()
        # No forward follows a last overflow, so the buffers are still those of the skipped step.
        self.manager.count_overflows(self.scaler, before_forward_of=self.model)
        if self._trace is not None:
            self._trace.close()
        ScheduleHold(self.scheduler).release()
        for in_step in self._in_step.values():
            in_step.end()


def as_optimizers(given: Any) -> list[torch.optim.Optimizer]:
    """One optimizer or several as a list, without wrappers; anything else is refused by its place."""
    several = isinstance(given, (list, tuple))
    optimizers = list(given) if several else [given]
    for position, each in enumerate(optimizers):
        if not isinstance(each, torch.optim.Optimizer):
            what = f"optimizer[{position}]" if several and len(optimizers) > 1 else "optimizer"
            raise InputError(f"`{what}` must be a torch optimizer, got {type(each).__name__}.")
    return [stepping_optimizer(each) for each in optimizers]
