"""What a `GradScaler` does: scale, unscale, and overflow steps that it skips without calling the optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch


def unscale_gradients(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Bring the gradients to their own scale and let the scaler look for overflow, unless that was done already."""
    if not scaler.is_enabled():
        return
    try:
        scaler.unscale_(optimizer)
    except RuntimeError as problem:
        if "already been called" not in str(problem):
            raise


def saw_overflow(scaler: Any, optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether the scaler, or the fused step that it prepared, found this optimizer's gradients not finite."""
    found = getattr(optimizer, "found_inf", None)
    if found is not None:
        return float(found) > 0
    if scaler is None or optimizer is None or not scaler.is_enabled():
        return False
    # torch has no public question for this; unscale_() leaves the answer here, by device.
    by_device = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(float(value) > 0 for value in by_device.values())


class ScaleWatch:
    """Reads off the scale how many steps were skipped: each overflow multiplies it by the back-off factor."""

    def __init__(self) -> None:
        self.scale: float | None = None

    def skipped_since(self, scaler: Any) -> int:
        """Steps skipped since the last call."""
        before, self.scale = self.scale, float(scaler.get_scale())
        if before is None or self.scale >= before:
            return 0
        if self.scale <= 0:
            return 1
        return max(1, round(math.log(self.scale / before) / math.log(scaler.get_backoff_factor())))
