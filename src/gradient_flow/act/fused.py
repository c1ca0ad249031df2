"""Clipping inside a fused optimizer step: the factor goes in as `grad_scale`, gradients are not written twice."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

import torch

_UNSET: Final = object()
_PRECISE: Final = (torch.float32, torch.bfloat16, torch.float16)
"""The scale is a float: for doubles it would lose digits."""


_IN_STEP: Final[weakref.WeakSet[torch.optim.Optimizer]] = weakref.WeakSet()
"""Optimizers whose coming step has a factor of ours."""


class ScaleInStep:
    """Hands an optimizer a factor on its gradients for one step, and takes it back afterwards."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before: Any = _UNSET
        self._active = False

    def takes(self, factor: float, parameters: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """Whether this optimizer divides by a scale as exactly as we would multiply by the factor."""
        optimizer = self._optimizer
        if optimizer in _IN_STEP:
            return False  # somebody else's factor is in this step already
        fused = all(group.get("fused") for group in optimizer.param_groups)
        return (
            fused
            and getattr(optimizer, "_step_supports_amp_scaling", False)
            and factor > 1e-30
            and all(p.dtype in _PRECISE and p.grad is not None and p.grad.dtype in _PRECISE for _, p in parameters)
        )

    def begin(self, factor: float) -> None:
        """Scale the gradients of the coming step, on top of a scale that a GradScaler left to it."""
        _IN_STEP.add(self._optimizer)
        self._before = getattr(self._optimizer, "grad_scale", _UNSET)
        pending = 1.0 if self._before in (_UNSET, None) else float(self._before)
        device = next(p.device for group in self._optimizer.param_groups for p in group["params"])
        self._optimizer.grad_scale = torch.tensor(pending / factor, dtype=torch.float32, device=device)  # type: ignore[attr-defined]  # read by fused steps
        self._active = True

    def end(self) -> None:
        """The step is over: everything as it was."""
        if not self._active:
            return
        self._active = False
        _IN_STEP.discard(self._optimizer)
        if self._before is _UNSET:
            del self._optimizer.grad_scale  # type: ignore[attr-defined]  # set by begin()
        else:
            self._optimizer.grad_scale = self._before  # type: ignore[attr-defined]  # it was the scaler's
