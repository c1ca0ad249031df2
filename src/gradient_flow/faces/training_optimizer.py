"""`TrainingOptimizer`: epochs with managed gradients, a learning-rate schedule, early stopping and the best weights."""

from __future__ import annotations

import asyncio
import copy
import logging
import numbers
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from gradient_flow.capture.model_state import ModesKept
from gradient_flow.config import GradientConfig
from gradient_flow.errors import InputError, MonitorStateError
from gradient_flow.faces.manager import GradientManager
from gradient_flow.training.config import GradientManagementConfig, LRSchedulerConfig
from gradient_flow.training.early_stopping import EarlyStopping, EarlyStoppingConfig, monitored_name, weights_on_host
from gradient_flow.training.epoch_functions import EpochFunction
from gradient_flow.training.history import TrainingHistory
from gradient_flow.training.schedule import ScheduledRates, rates_of

__all__ = [
    "EarlyStoppingConfig",
    "GradientManagementConfig",
    "LRSchedulerConfig",
    "TrainingHistory",
    "TrainingOptimizer",
]

_logger = logging.getLogger(__name__)
_STATE_VERSION = 1


class TrainingOptimizer:
    """Trains for some epochs: every optimizer step guarded and clipped, the rate scheduled, the best weights kept.

    Args:
        early_stopping_config: when to stop; `None`: run all epochs and keep the last weights.
        lr_scheduler_config: how the learning rate moves; `None`: it stays.
        gradient_config: `GradientManagementConfig` or `GradientConfig`; `None`: the documented defaults. A change to it
            holds from the next step on. To leave gradients alone pass `enable_gradient_management=False`.
        optimizer: the optimizer whose steps are managed and whose learning rates are scheduled.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> training = TrainingOptimizer(EarlyStoppingConfig(patience=2), optimizer=optimizer)
    >>> history = training.run_training(model, train_func=lambda epoch: 1.0 / min(epoch + 1, 4), max_epochs=20)
    >>> history["best_epoch"], history["stopped_early"], len(history["train_loss"])
    (3, True, 6)
    """

    def __init__(
        self,
        early_stopping_config: EarlyStoppingConfig | None = None,
        lr_scheduler_config: LRSchedulerConfig | None = None,
        gradient_config: GradientManagementConfig | GradientConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        _check_type("early_stopping_config", early_stopping_config, EarlyStoppingConfig)
        _check_type("lr_scheduler_config", lr_scheduler_config, LRSchedulerConfig)
        _check_type("gradient_config", gradient_config, GradientConfig)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"`optimizer` must be a torch optimizer, got {optimizer!r}. Pass the one you train with.")
        self.optimizer = optimizer
        self.early_stopping_config = early_stopping_config or EarlyStoppingConfig(enabled=False)
        self.lr_scheduler_config = lr_scheduler_config or LRSchedulerConfig("none")
        self.gradient_config = gradient_config or GradientManagementConfig()
        managed = getattr(self.gradient_config, "enable_gradient_management", True)
        self.gradient_manager = GradientManager(self.gradient_config) if managed else None
        self.history = TrainingHistory()
        """The history of the run that goes on, or went on last."""
        self._stopping = EarlyStopping(self.early_stopping_config)
        self._rates = ScheduledRates(optimizer, self.lr_scheduler_config)
        self._goes_on = False
        self._running = False

    async def optimize_training(
        self,
        model: nn.Module,
        train_func: Callable[..., Any],
        val_func: Callable[..., Any] | None = None,
        max_epochs: int = 100,
        *,
        on_epoch_end: Callable[..., Any] | None = None,
    ) -> TrainingHistory:
        """Train until `max_epochs` epochs are done or early stopping says so, and return the history.

        The functions, plain or async, get what their parameters name: `model`, `optimizer`, `epoch` (from 0) and
        `gradient_manager`. `train_func` trains one epoch, `val_func` validates; they return the loss as a number, a
        mapping with a loss, or (loss, metrics). They run in this thread, one after the other. The model is in training
        mode for `train_func` (submodules that came in evaluation mode stay so) and in evaluation mode for `val_func`;
        afterwards every mode is as it was. Whether `val_func` records a graph is up to it.

        `on_epoch_end` is called when an epoch is complete: the place to save `state_dict()`, model and optimizer.

        Each call is a new run, from the learning rates that the optimizer has, or had before an earlier run moved them;
        the first call after `load_state_dict()` goes on instead. When an exception passes, hooks are gone and the
        weights are as they were at that moment; `restore_best_weights()` puts the best ones back.
        """
        functions = [EpochFunction("train_func", train_func)]
        if val_func is not None:
            functions.append(EpochFunction("val_func", val_func))
        epoch_end = None if on_epoch_end is None else EpochFunction("on_epoch_end", on_epoch_end)
        self._check_run(model, max_epochs)
        with ExitStack() as stack:
            self._running = True
            stack.callback(setattr, self, "_running", False)
            self._begin(max_epochs)
            modes = stack.enter_context(ModesKept(model))
            if self.gradient_manager is not None and getattr(self.gradient_config, "enable_gradient_management", True):
                stack.enter_context(self.gradient_manager.attach(model, self.optimizer))
            if self.lr_scheduler_config.interval == "step":
                stack.callback(self.optimizer.register_step_post_hook(self._after_step).remove)
            for epoch in range(len(self.history["epoch"]), max_epochs):
                if self.history["stopped_early"]:
                    break
                await self._run_epoch(model, functions, epoch, modes)
                _logger.info(self.history.last_epoch_line(max_epochs))
                if epoch_end is not None:
                    await epoch_end.call(**self._offer(model, epoch))
                await asyncio.sleep(0)  # other tasks get their turn, and a cancellation comes through
        self._finish(model)
        return self.history

    def run_training(
        self,
        model: nn.Module,
        train_func: Callable[..., Any],
        val_func: Callable[..., Any] | None = None,
        max_epochs: int = 100,
        *,
        on_epoch_end: Callable[..., Any] | None = None,
    ) -> TrainingHistory:
        """`optimize_training` without `await`.

        From Python 3.11 on the first Ctrl-C ends the run between epochs (or where a function awaits), a second at once.
        """
        if _event_loop_is_running():
            raise MonitorStateError(
                "run_training() starts an event loop, and one is running here already, as in a notebook. Use "
                "`await training_optimizer.optimize_training(...)` with the same arguments."
            )
        return asyncio.run(self.optimize_training(model, train_func, val_func, max_epochs, on_epoch_end=on_epoch_end))

    def restore_best_weights(self, model: nn.Module) -> bool:
        """Put the weights and buffers of the best epoch into the model; False when none were kept."""
        if self._stopping.best_weights is None:
            return False
        model.load_state_dict(self._stopping.best_weights)
        return True

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, besides the states of the model and the optimizer.

        A run goes on exactly as it would have when all three were saved between epochs, as in `on_epoch_end`.
        """
        return {
            "version": _STATE_VERSION,
            "history": copy.deepcopy(dict(self.history)),
            "early_stopping": self._stopping.state_dict(),
            "schedule": self._rates.state_dict(),
            "gradient_manager": None if self.gradient_manager is None else self.gradient_manager.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `optimize_training` go on from a saved state. Load those of model and optimizer as well."""
        self._refuse_while_running()
        if not isinstance(state, dict) or state.get("version") != _STATE_VERSION:
            raise InputError("`state` must come from TrainingOptimizer.state_dict(), of this version of the package.")
        self._rates.load_state_dict(state["schedule"])
        self._goes_on = True
        self.history = TrainingHistory(copy.deepcopy(state["history"]))
        self._stopping = EarlyStopping(self.early_stopping_config)
        self._stopping.load_state_dict(state["early_stopping"])
        if self.gradient_manager is not None and state["gradient_manager"] is not None:
            self.gradient_manager.load_state_dict(state["gradient_manager"])

    # ---- one run ----------------------------------------------------------------------------------------------------

    def _check_run(self, model: Any, max_epochs: Any) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"`model` must be a module, got {type(model).__name__}.")
        if isinstance(max_epochs, bool) or not isinstance(max_epochs, numbers.Integral) or max_epochs < 1:
            raise InputError(f"`max_epochs` must be an integer ≥ 1, got {max_epochs!r}.")
        trained = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        if trained.isdisjoint(map(id, model.parameters())):
            raise InputError(
                "`optimizer` holds none of the parameters of `model`. Pass the one that trains this model."
            )
        self._refuse_while_running()

    def _refuse_while_running(self) -> None:
        if self._running:
            raise MonitorStateError(
                "This TrainingOptimizer is training already. Wait until it ends, or create another."
            )

    def _begin(self, max_epochs: int) -> None:
        if not self._goes_on:
            self.history, self._stopping = TrainingHistory(), EarlyStopping(self.early_stopping_config)
        self._goes_on = False
        self._rates.begin(max_epochs, self.early_stopping_config.mode)
        self.history["restored_best_weights"] = False
        if not self._stopping.stop_after(len(self.history["epoch"])):  # loaded, and it may wait longer than before
            self.history.update(stopped_early=False, stop_reason=None)

    async def _run_epoch(self, model: nn.Module, functions: list[EpochFunction], epoch: int, modes: ModesKept) -> None:
        offered = self._offer(model, epoch)
        values: dict[str, Any] = {"epoch": epoch, "learning_rate": rates_of(self.optimizer)[0]}
        counted = self._gradient_counts()
        modes.train()
        values |= (await functions[0].result(**offered)).named("train")
        for validate in functions[1:]:
            modes.evaluate()
            values |= (await validate.result(**offered)).named("val")
        values["gradient_stats"] = self._gradient_stats(counted)
        monitored = monitored_name(self.early_stopping_config.monitor, values, validated=len(functions) > 1)
        value = values[monitored]
        if self._stopping.record(value, epoch) and self._stopping.keeps_weights:
            self._stopping.best_weights = weights_on_host(model)
        if self.lr_scheduler_config.interval == "epoch":
            self._rates.move(value)
        self.history.add_epoch(values)
        self.history.update(
            monitor=monitored, best_epoch=self._stopping.best_epoch, best_value=self._stopping.best_value
        )
        if self._stopping.stop_after(epoch + 1):
            self.history.update(stopped_early=True, stop_reason=self._stopping.reason(monitored))

    def _after_step(self, *_: Any) -> None:
        last = None if self.gradient_manager is None else self.gradient_manager.last_step
        if last is None or not last["skipped"]:  # a step that was withheld from the optimizer is none
            self._rates.move()

    def _offer(self, model: nn.Module, epoch: int) -> dict[str, Any]:
        return {
            "model": model,
            "optimizer": self.optimizer,
            "epoch": epoch,
            "gradient_manager": self.gradient_manager,
        }

    def _gradient_counts(self) -> dict[str, int]:
        manager = self.gradient_manager
        if manager is None:
            return {}
        return {
            "steps": manager.total_steps,
            "unhealthy_steps": manager.unhealthy_steps,
            "clipped_steps": manager.clipped_steps,
            "skipped_steps": manager.guard.skipped,
            "replacements": manager.nan_inf_handler.total_replacements,
        }

    def _gradient_stats(self, before: dict[str, int]) -> dict[str, int] | None:
        """What was counted since `before`."""
        return {name: count - before[name] for name, count in self._gradient_counts().items()} or None

    def _finish(self, model: nn.Module) -> None:
        stopping, history = self._stopping, self.history
        if history["stopped_early"]:
            _logger.info("stopped early: %s", history["stop_reason"])
        if stopping.keeps_weights and stopping.best_epoch not in (None, history["epoch"][-1]):
            history["restored_best_weights"] = self.restore_best_weights(model)
        if self.gradient_manager is not None:
            history["gradient_summary"] = self.gradient_manager.get_training_summary()


def _check_type(name: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise InputError(f"`{name}` must be a {kind.__name__}, got {type(value).__name__}.")


def _event_loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
