"""`GradientManagementConfig`: the settings of gradient management within a training run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from gradient_flow.checks import check_flag
from gradient_flow.config import GradientConfig


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
