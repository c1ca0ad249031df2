"""What a manager knows of a run: its settings, its parts, its counts, and how a checkpoint or a pickle keeps them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gradient_flow.act.actor import Actor
from gradient_flow.act.clipper import GradientClipper
from gradient_flow.act.guard import Guard, NaNInfHandler
from gradient_flow.act.late_steps import LateSteps, ManagedStep
from gradient_flow.capture.optimizer_steps import (
    ScaleWatch,
)
from gradient_flow.capture.random_state import RandomState
from gradient_flow.config import GradientConfig
from gradient_flow.errors import ConfigError, InputError
from gradient_flow.faces.monitor import GradientMonitor
from gradient_flow.table.rank_names import RankNames

if TYPE_CHECKING:
    from gradient_flow.probes.nonfinite.origin import NonFiniteOrigin


class ManagerState:
    """Settings, parts and counts. Everything that is known of steps waits for those that a device acted on."""

    def __init__(self, config: GradientConfig | None = None, *, process_group: Any = None) -> None:
        if config is not None and not isinstance(config, GradientConfig):
            raise InputError(f"`config` must be a GradientConfig, got {type(config).__name__}.")
        self._config = config if config is not None else GradientConfig()
        self.config.check()
        if self.config.nonfinite == "rollback" and self.config.rollback_after > self.config.max_consecutive_skips:
            raise ConfigError(
                f"`rollback_after` ({self.config.rollback_after}) must not exceed `max_consecutive_skips` "
                f"({self.config.max_consecutive_skips}): the limit would end the run before any rollback."
            )
        self.process_group = process_group
        """Ranks with different parameters, such as pipeline stages, that are managed as one model."""
        self._ranks = None if process_group is None else RankNames(process_group)
        self._monitor = GradientMonitor(self.config)
        self._actor = Actor(self.config)
        self.total_steps = 0
        self._unhealthy_steps = 0
        self._clipped_steps = 0
        self._last_step: dict[str, Any] | None = None
        self._late = LateSteps()
        """Steps that a device acted on by itself, and that are not accounted for yet."""
        self._reasons: set[str] = set()
        """Why the host was waited for, as far as that was told."""
        self.origins: list[NonFiniteOrigin] = []
        """Causes of non-finite gradients that replays found."""
        self._health: dict[str, Any] = {"healthy": True, "warnings": [], "recommendations": [], "issues": []}
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._random: RandomState | None = None
        self._replays = 0
        self._scale = ScaleWatch()
        self._counted_overflows = 0
        """Overflows that showed in the scale so far."""
        self._seen_overflows = 0
        """Overflows that were seen in the gradients, before they show in the scale."""
        self._warned = False
        self._attached: list[torch.optim.Optimizer] = []
        self._asked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Models of which it is known whether their gradients can be read."""
        self._served: tuple[weakref.ref[torch.optim.Optimizer], list[Any]] | None = None

    @property
    def config(self) -> GradientConfig:
        """The settings in force. Change their fields; another object cannot take their place."""
        return self._config

    @property
    def monitor(self) -> GradientMonitor:
        """Statistics and health of all steps so far. Like everything that is known of steps, it waits for a device."""
        self.settle()
        return self._monitor

    @property
    def clipper(self) -> GradientClipper:
        """Decides and does the clipping."""
        self.settle()
        return self._actor.clipper

    @property
    def nan_inf_handler(self) -> NaNInfHandler:
        """Counts and replaces NaN and Inf."""
        self.settle()
        return self._actor.nan_inf_handler

    @property
    def guard(self) -> Guard:
        """Decides about steps with NaN or Inf, and counts them."""
        self.settle()
        return self._actor.guard

    @property
    def unhealthy_steps(self) -> int:
        """Steps that were not healthy."""
        self.settle()
        return self._unhealthy_steps

    @property
    def clipped_steps(self) -> int:
        """Steps whose gradients were changed by the clip."""
        self.settle()
        return self._clipped_steps

    @property
    def last_step(self) -> dict[str, Any] | None:
        """What the last step returned."""
        self.settle()
        return self._last_step

    def settle(self) -> None:
        """Account for every step so far, in order; waits for those whose numbers a device has not sent yet."""
        self._late.settle(self._conclude_late, at_most=0)

    def _conclude_late(self, step: ManagedStep) -> None:
        """Account for a step that a device acted on by itself: its numbers are there, or are waited for."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        # Which model and optimizers were seen is of this process only.
        return {**vars(self), "_model": None, "_attached": [], "_asked": None, "_served": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ManagerState.__init__(self, state["_config"])  # what an older version did not have
        now = vars(self)
        # Once these had no underscore, or were kept beside the actor that has them.
        now.update({f"_{name}" if f"_{name}" in now else name: value for name, value in state.items()})
        self._asked = weakref.WeakSet()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that a resumed run is managed like the uninterrupted one."""
        return {
            "total_steps": self.total_steps,
            "unhealthy_steps": self.unhealthy_steps,
            "clipped_steps": self.clipped_steps,
            "total_replacements": self.nan_inf_handler.total_replacements,
            "monitor": self.monitor.state_dict(),
            "clipper": self.clipper.state_dict(),
            "guard": self.guard.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise InputError(f"`state` must come from GradientManager.state_dict(); it has no {', '.join(missing)}.")
        self.settle()
        self._actor.forget_snapshots()
        self._served, self._scale = None, ScaleWatch()
        self._counted_overflows = self._seen_overflows = 0
        self.total_steps, self._unhealthy_steps = state["total_steps"], state["unhealthy_steps"]
        self._clipped_steps = state["clipped_steps"]
        self.nan_inf_handler.total_replacements = state["total_replacements"]
        self.monitor.load_state_dict(state["monitor"])
        self.clipper.load_state_dict(state["clipper"])
        self.guard.load_state_dict(state["guard"])
