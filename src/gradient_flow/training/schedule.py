"""Learning rates: a schedule that gives them without touching an optimizer, and an optimizer's read and set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.optim import lr_scheduler

from gradient_flow.errors import ConfigError, InputError
from gradient_flow.training.config import LRSchedulerConfig

_GAMMA = {"step": 0.1, "exponential": 0.95}


class LearningRateSchedule:
    """The learning rates of a run, one per group of the optimizer: `rates` now, `step()` to the next epoch.

    Torch's schedulers compute them on an optimizer of our own that holds nothing but rates: on the user's they would
    replace `step`, leave keys in its groups, and warn when an epoch made no step.

    Args:
        config: the settings.
        rates: the optimizer's rates at the beginning.
        length: epochs (or steps) of the whole run.
        mode: whether the monitored value is to become small (`min`) or large (`max`).

    >>> schedule = LearningRateSchedule(LRSchedulerConfig("step", step_size=1, gamma=0.5), [0.8], length=3)
    >>> schedule.rates, schedule.step(), schedule.step()
    ([0.8], [0.4], [0.2])
    """

    def __init__(self, config: LRSchedulerConfig, rates: Sequence[float], length: int, mode: str = "min") -> None:
        for index, rate in enumerate(rates):
            if rate < config.min_lr and not (config.kind == "one_cycle" and config.max_lr is not None):
                raise ConfigError(
                    f"`min_lr` ({config.min_lr!r}) is above the learning rate of the optimizer's group {index} "
                    f"({rate!r}): the schedule would raise it."
                )
        self.config = config
        self.base_rates = list(rates)
        self._taken = 0
        self._worst = math.inf if mode == "min" else -math.inf
        groups: list[dict[str, Any]] = [{"params": [torch.zeros(1)], "lr": rate} for rate in rates]
        self._carrier = torch.optim.SGD(groups, lr=0.0)
        rest = max(1, int(config.total_steps or length) - config.warmup)
        self._scheduler = _torch_scheduler(config, self._carrier, rest, "min" if mode == "min" else "max")

    @property
    def rates(self) -> list[float]:
        """What to train with until the next `step()`."""
        if self._taken < self.config.warmup:
            factor = warmup_factor(self._taken, self.config.warmup, self.config.warmup_start_factor)
            return [rate * factor for rate in self.base_rates]
        return [max(float(group["lr"]), self.config.min_lr) for group in self._carrier.param_groups]

    def step(self, value: float | None = None, current: Sequence[float] | None = None) -> list[float]:
        """Go on by one epoch (or step) and return the new rates.

        Args:
            value: the monitored value of the epoch, for `plateau`.
            current: the optimizer's rates now: the schedule continues from a rate that was changed elsewhere.
        """
        self._taken += 1
        if self._taken > self.config.warmup:
            for group, rate in zip(self._carrier.param_groups, current or self.rates, strict=False):
                group["lr"] = rate
            self._advance(value)
        return self.rates

    def _advance(self, value: float | None) -> None:
        self._carrier.step()  # a scheduler warns when no optimizer step came before it
        scheduler = self._scheduler
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            # An infinite best would never be beaten again: what is not finite counts as the worst there is.
            scheduler.step(value if value is not None and math.isfinite(value) else self._worst)
        elif isinstance(scheduler, lr_scheduler.OneCycleLR):
            if scheduler.last_epoch < scheduler.total_steps - 1:  # the cycle is over: its last rate stays
                scheduler.step()
        elif scheduler is not None:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        return {
            "kind": self.config.kind,
            "base_rates": list(self.base_rates),
            "rates": [group["lr"] for group in self._carrier.param_groups],
            "taken": self._taken,
            "scheduler": None if self._scheduler is None else dict(self._scheduler.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state of the same kind of schedule."""
        if len(state["rates"]) != len(self.base_rates):
            raise InputError(
                f"The schedule was saved with {len(state['rates'])} parameter groups, this one has "
                f"{len(self.base_rates)}. Make the groups as they were before going on."
            )
        self.base_rates, self._taken = list(state["base_rates"]), state["taken"]
        for group, rate in zip(self._carrier.param_groups, state["rates"], strict=True):
            group["lr"] = rate
        if self._scheduler is not None:
            self._scheduler.load_state_dict(dict(state["scheduler"]))


def warmup_factor(taken: int, length: int, start: float) -> float:
    """Share of the rate after `taken` of `length` steps: a line from `start` to 1.

    >>> [warmup_factor(taken, 4, 0.5) for taken in (0, 2, 4, 9)]
    [0.5, 0.75, 1.0, 1.0]
    """
    return start + (1.0 - start) * min(taken / length, 1.0)


def _torch_scheduler(
    config: LRSchedulerConfig, carrier: torch.optim.Optimizer, length: int, mode: Literal["min", "max"]
) -> lr_scheduler.LRScheduler | None:
    """Torch's scheduler for what follows the warm-up; `None` where the rate then stays."""
    kind = config.kind
    if kind == "cosine":
        return lr_scheduler.CosineAnnealingLR(carrier, config.T_max or length, eta_min=config.min_lr)
    if kind == "step":
        return lr_scheduler.StepLR(carrier, config.step_size, gamma=config.gamma or _GAMMA[kind])
    if kind == "exponential":
        return lr_scheduler.ExponentialLR(carrier, gamma=config.gamma or _GAMMA[kind])
    if kind == "plateau":
        return lr_scheduler.ReduceLROnPlateau(
            carrier,
            mode=mode,
            factor=config.factor,
            patience=config.patience,
            threshold=config.threshold,
            cooldown=config.cooldown,
            min_lr=config.min_lr,
        )
    if kind == "one_cycle":
        # Torch divides by zero where the way up is exactly one step long.
        up = config.pct_start if config.pct_start * length != 1.0 else config.pct_start - 1e-12
        return lr_scheduler.OneCycleLR(
            carrier,
            max_lr=[config.max_lr or float(group["lr"]) for group in carrier.param_groups],
            total_steps=length,
            pct_start=float(up),
            cycle_momentum=False,  # a learning-rate schedule leaves the momentum alone
            div_factor=config.div_factor,
            final_div_factor=config.final_div_factor,
        )
    return None


class ScheduledRates:
    """The learning rates of an optimizer, moved along a schedule, one run after the other."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: LRSchedulerConfig) -> None:
        self._optimizer = optimizer
        self._config = config
        self._schedule: LearningRateSchedule | None = None
        self._saved: dict[str, Any] | None = None

    def begin(self, length: int, mode: str) -> None:
        """Begin a run, or go on with the one that was loaded."""
        saved, self._saved = self._saved, None
        if not self._config.moves:
            return
        rates = rates_of(self._optimizer)
        if saved is not None:
            rates = saved["base_rates"]  # the optimizer's own are those of the epoch it was saved after
        elif self._schedule is not None and same_rates(rates, self._schedule.rates):
            rates = self._schedule.base_rates  # unchanged since the last run left them
        self._schedule = LearningRateSchedule(self._config, rates, length, mode)
        if saved is not None:
            self._schedule.load_state_dict(saved)
        set_rates_(self._optimizer, self._schedule.rates)

    def move(self, value: float | None = None) -> None:
        """Set the rates of the next epoch (or step); `value` is what was monitored."""
        if self._schedule is not None:
            set_rates_(self._optimizer, self._schedule.step(value, rates_of(self._optimizer)))

    def state_dict(self) -> dict[str, Any] | None:
        """All that is needed to go on from here; `None` where the rates stay."""
        return self._saved if self._schedule is None or self._saved is not None else self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Let the next run go on from a saved state."""
        saved = "none" if state is None else state["kind"]
        if saved != self._config.kind or (state is not None) != self._config.moves:
            raise InputError(
                f"`state` was saved with the learning-rate schedule {saved!r}, this one is {self._config.kind!r}. "
                "Go on with the same settings."
            )
        self._saved = state


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """The learning rate of each parameter group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def set_rates_(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    """Give each group its rate; groups that were added later keep their own."""
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        if isinstance(group["lr"], torch.Tensor):  # a captured graph reads this very tensor
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def same_rates(some: Sequence[float], others: Sequence[float]) -> bool:
    """Whether these are the same rates, but for what an fp32 tensor loses of them."""
    return len(some) == len(others) and all(
        math.isclose(one, other, rel_tol=1e-6) for one, other in zip(some, others, strict=True)
    )
