"""`GradientManager`: one training step guarded, clipped and recorded, from one read of the gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradient_flow.act.attachment import Attachment, as_optimizers
from gradient_flow.act.clip_advice import ClipAdvice, advise_on_clipping
from gradient_flow.act.guard import GuardEvent
from gradient_flow.act.schedule_hold import check_schedulers
from gradient_flow.capture.optimizer_steps import (
    after_each_step,
    before_each_step,
    late_scale,
    stepping_optimizer,
    unscale_gradients,
)
from gradient_flow.capture.parameters import parameters_to_manage
from gradient_flow.capture.random_state import RandomState
from gradient_flow.config import GradientConfig, check_names
from gradient_flow.errors import InputError, MonitorStateError
from gradient_flow.faces.manager_steps import StepManager
from gradient_flow.flow.rank_checks import RankTrace
from gradient_flow.record.export import write_json
from gradient_flow.report.figures import save_figure
from gradient_flow.report.training_figures import plot_training_curves
from gradient_flow.table import measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class GradientManager(StepManager):
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
    check_names(settings, InputError)
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
