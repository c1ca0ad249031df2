"""When to stop, and the weights of the best epoch."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import nn

from gradient_flow.errors import ConfigError, InputError, check_choice, check_flag, check_number, check_whole


@dataclass(frozen=True, slots=True)
class EarlyStoppingConfig:
    """When training stops by itself, and whether the weights of the best epoch come back.

    >>> EarlyStoppingConfig(patience=3, monitor="val_accuracy", mode="max").restore_best_weights
    True
    """

    patience: int = 10
    """Epochs in a row without improvement after which training stops."""
    _: KW_ONLY
    min_delta: float = 0.0
    """An epoch improves when it is better than the best one by more than this, in the units of the monitored value."""
    mode: str = "min"
    """`min`: smaller is better. `max`: larger is better."""
    monitor: str = "val_loss"
    """What is looked at: `val_loss`, `train_loss`, or a metric of the functions, such as `val_accuracy`. Without a
    `val_func` the training value of that name is taken."""
    restore_best_weights: bool = True
    """Put the weights (and buffers) of the best epoch back at the end; they are kept in host memory."""
    min_epochs: int = 0
    """Never stop before this many epochs."""
    enabled: bool = True
    """False: neither stop nor restore; the best epoch is still reported."""

    def __post_init__(self) -> None:
        check_whole("patience", self.patience, 1)
        check_number("min_delta", self.min_delta, "a number of at least 0", 0.0)
        check_choice("mode", self.mode, ("min", "max"))
        if not isinstance(self.monitor, str) or not self.monitor:
            raise ConfigError(f"`monitor` must name a value, such as 'val_loss'; got {self.monitor!r}.")
        check_flag("restore_best_weights", self.restore_best_weights)
        check_whole("min_epochs", self.min_epochs, 0)
        check_flag("enabled", self.enabled)


class EarlyStopping:
    """The best value so far and for how long there has been no better one."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best_value: float | None = None
        self.best_epoch: int | None = None
        self.waited = 0
        """Epochs since the last improvement."""
        self.best_weights: dict[str, Any] | None = None

    def improves(self, value: float) -> bool:
        """Whether this value would be the new best. One that is not finite never is."""
        if not math.isfinite(value):
            return False
        if self.best_value is None:
            return True
        gain = self.best_value - value if self.config.mode == "min" else value - self.best_value
        return gain > self.config.min_delta

    def record(self, value: float, epoch: int) -> bool:
        """Take the value of an epoch into account, and say whether it is the best."""
        improved = self.improves(value)
        if improved:
            self.best_value, self.best_epoch, self.waited = value, epoch, 0
        else:
            self.waited += 1
        return improved

    def stop_after(self, epochs: int) -> bool:
        """Whether training should stop after that many epochs."""
        config = self.config
        return config.enabled and self.waited >= config.patience and epochs >= config.min_epochs

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights of the best epoch are to be kept."""
        return self.config.enabled and self.config.restore_best_weights

    def reason(self, monitored: str) -> str:
        """Why training stopped, for a person."""
        best = "no finite value so far" if self.best_value is None else f"best {self.best_value:.6g}"
        at = "" if self.best_epoch is None else f" at epoch {self.best_epoch}"
        by = f" by more than {self.config.min_delta:g}" if self.config.min_delta else ""
        return f"`{monitored}` did not improve{by} for {self.waited} epochs ({best}{at})"

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        return {name: getattr(self, name) for name in ("best_value", "best_epoch", "waited", "best_weights")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        for name in self.state_dict():
            setattr(self, name, state[name])


def weights_on_host(model: nn.Module) -> dict[str, Any]:
    """A copy of the model's state, buffers included, in host memory."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in model.state_dict().items()
    }


def monitored_name(monitor: str, values: Mapping[str, Any], *, validated: bool) -> str:
    """Which of the values of an epoch `monitor` means; without validation it is the training value.

    >>> monitored_name("accuracy", {"train_accuracy": 0.8, "val_accuracy": 0.7}, validated=True)
    'val_accuracy'
    >>> monitored_name("val_loss", {"train_loss": 0.5}, validated=False)
    'train_loss'
    """
    names = [monitor, f"val_{monitor}", f"train_{monitor}"]
    if not validated and monitor.startswith("val_"):
        names = [f"train_{monitor}", f"train_{monitor.removeprefix('val_')}"]
    known = [name for name, value in values.items() if name.startswith(("train_", "val_")) and value is not None]
    found = next((name for name in names if name in known), None)
    if found is None:
        raise InputError(f"`monitor` is {monitor!r}, but the functions returned {', '.join(known)}.")
    return found
