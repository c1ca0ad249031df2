"""`GradientManagementConfig`: the settings of gradient management within a training run."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from gradient_flow.config import GradientConfig
from gradient_flow.errors import ConfigError, check_choice, check_flag, check_number, check_whole


@dataclass
class GradientManagementConfig(GradientConfig):
    """The settings of a `GradientConfig`, and a switch for all of them.

    >>> GradientManagementConfig(enable_gradient_management=True, max_grad_norm=0.5).to_gradient_config().max_grad_norm
    0.5
    """

    enable_gradient_management: bool = True
    """False: no manager, no hook, gradients as they come."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "enable_gradient_management":
            super().__setattr__(name, value)
            return
        check_flag(name, value)
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise if any setting is out of its range."""
        for setting in fields(self):
            setattr(self, setting.name, getattr(self, setting.name))  # each is checked as it is set

    def to_gradient_config(self) -> GradientConfig:
        """The same settings without the switch."""
        return GradientConfig(**{setting.name: getattr(self, setting.name) for setting in fields(GradientConfig)})


SCHEDULER_TYPES = ("cosine", "step", "exponential", "plateau", "linear_warmup", "one_cycle", "none")
_OTHER_NAMES = {"linear": "linear_warmup", "warmup": "linear_warmup", "onecycle": "one_cycle"}
_WARMUP_OF_LINEAR = 5


@dataclass(frozen=True, slots=True)
class LRSchedulerConfig:
    """How the learning rate moves from epoch to epoch, starting from the rate of each of the optimizer's groups.

    >>> LRSchedulerConfig(scheduler_type="step", step_size=10, gamma=0.5).kind
    'step'
    """

    scheduler_type: str = "cosine"
    """`cosine`, `step`, `exponential`, `plateau`, `linear_warmup` (or `linear`, `warmup`), `one_cycle` (`onecycle`), or
    `none`."""
    _: KW_ONLY
    interval: str = "epoch"
    """`epoch`: the rate moves after each epoch. `step`: after each optimizer step; then all lengths are in steps."""
    min_lr: float = 0.0
    """The schedule never goes below this rate; a warm-up may start below it."""
    warmup_epochs: int | None = None
    """Epochs of linear warm-up before the schedule proper. `None`: none, or 5 for `linear_warmup`."""
    warmup_steps: int | None = None
    """The same in optimizer steps, for `interval="step"`."""
    warmup_start_factor: float = 0.1
    """The warm-up starts at this share of the rate."""
    T_max: int | None = None
    """`cosine`: epochs from the rate down to `min_lr`; afterwards it rises again. `None`: what the warm-up leaves of
    the run."""
    step_size: int = 30
    """`step`: epochs between two reductions."""
    gamma: float | None = None
    """`step`, `exponential`: factor of a reduction. `None`: 0.1 for `step`, 0.95 for `exponential`."""
    factor: float = 0.5
    """`plateau`: factor of a reduction."""
    patience: int = 5
    """`plateau`: epochs without improvement that are let pass before a reduction."""
    threshold: float = 1e-4
    """`plateau`: relative change of the monitored value that counts as improvement."""
    cooldown: int = 0
    """`plateau`: epochs after a reduction in which nothing is counted."""
    max_lr: float | None = None
    """`one_cycle`: the peak. `None`: the optimizer's own rates."""
    pct_start: float = 0.3
    """`one_cycle`: share of the run on the way up."""
    div_factor: float = 25.0
    """`one_cycle`: it starts at the peak divided by this."""
    final_div_factor: float = 1e4
    """`one_cycle`: it ends at its start divided by this."""
    total_steps: int | None = None
    """`interval="step"`: optimizer steps of the whole run, for `one_cycle` and for `cosine` without `T_max`."""

    def __post_init__(self) -> None:
        check_choice("scheduler_type", self.scheduler_type, (*SCHEDULER_TYPES, *_OTHER_NAMES))
        check_choice("interval", self.interval, ("epoch", "step"))
        for name, at_least in (("step_size", 1), ("patience", 0), ("cooldown", 0)):
            check_whole(name, getattr(self, name), at_least)
        for name, at_least in (("warmup_epochs", 0), ("warmup_steps", 0), ("T_max", 1), ("total_steps", 1)):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), at_least)
        for name in ("min_lr", "threshold"):
            check_number(name, getattr(self, name), "a number of at least 0", 0.0)
        for name in ("gamma", "max_lr", "div_factor", "final_div_factor"):
            if getattr(self, name) is not None or name.endswith("factor"):
                check_number(name, getattr(self, name), "a number above 0", 0.0, open_ends="l")
        check_number("warmup_start_factor", self.warmup_start_factor, "above 0 and at most 1", 0.0, 1.0, open_ends="l")
        check_number("factor", self.factor, "above 0 and below 1", 0.0, 1.0, open_ends="lu")
        check_number("pct_start", self.pct_start, "between 0 and 1", 0.0, 1.0)
        self._check_together()

    def _check_together(self) -> None:
        if self.max_lr is not None and self.max_lr < self.min_lr:
            raise ConfigError(f"`max_lr` must not be below `min_lr`, got {self.max_lr!r} and {self.min_lr!r}.")
        if self.kind == "one_cycle" and (self.warmup_epochs or self.warmup_steps):
            raise ConfigError(
                "`one_cycle` includes a warm-up: drop `warmup_epochs` and `warmup_steps`, and set `pct_start`."
            )
        by_step = self.interval == "step"
        if by_step and self.warmup_epochs is not None:
            raise ConfigError('`warmup_epochs` goes with interval="epoch". Here use `warmup_steps`.')
        if not by_step and (self.warmup_steps is not None or self.total_steps is not None):
            raise ConfigError('`warmup_steps` and `total_steps` go with interval="step". Here use `warmup_epochs`.')
        if by_step and self.kind == "plateau":
            raise ConfigError('`plateau` needs one value per epoch. Use it with interval="epoch".')
        if by_step and self.total_steps is None and (self.kind == "one_cycle" or self._cosine_needs_an_end):
            raise ConfigError(f'`total_steps` is needed for {self.kind!r} with interval="step".')

    @property
    def kind(self) -> str:
        """The scheduler type by its first name."""
        return _OTHER_NAMES.get(self.scheduler_type, self.scheduler_type)

    @property
    def moves(self) -> bool:
        """Whether there is anything to do."""
        return self.kind != "none" or self.warmup > 0

    @property
    def _cosine_needs_an_end(self) -> bool:
        return self.kind == "cosine" and self.T_max is None

    @property
    def warmup(self) -> int:
        """Length of the warm-up, in epochs or in steps as `interval` says."""
        given = self.warmup_steps if self.interval == "step" else self.warmup_epochs
        if given is None:
            return _WARMUP_OF_LINEAR if self.kind == "linear_warmup" else 0
        return given
