"""Changes to the `.grad` of parameters, in place. Each writes only the gradients it is given."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from gradient_flow.capture.sharding import is_sharded, is_unreduced, local_part

SMALLEST_PRECISE_FACTOR: Final = 1e-30
"""Smaller factors lose digits in fp32, where numbers below 1e-38 have fewer of them."""


def scale_gradients_(parameters: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply every gradient by the factor, exact to fp32 also for gradients of lower precision."""
    # A tiny factor is applied in two parts, so that it keeps its digits.
    parts = (factor,) if factor >= SMALLEST_PRECISE_FACTOR or factor == 0 else (math.sqrt(factor),) * 2
    gradients = [_stored_values(writable_gradient(parameter)) for parameter in parameters if parameter.grad is not None]
    # One by one on the CPU: there the in-place foreach kernel rounds the factor to the dtype of the gradient.
    on_device = [g for g in gradients if g.device.type != "cpu"]
    others = [g for g in gradients if g.device.type == "cpu"]
    for part in parts:
        if on_device:
            torch._foreach_mul_(on_device, part)
        for gradient in others:
            gradient.mul_(part)


def clamp_gradients_(parameters: Sequence[torch.Tensor], limit: float) -> None:
    """Clamp every element to [-limit, limit]; real and imaginary parts separately."""
    for parameter in parameters:
        if parameter.grad is not None:  # else it lies on other ranks
            _change_values_(parameter, lambda values: values.clamp_(-limit, limit))


def replace_nonfinite_(tensor: torch.Tensor, nan: float, inf: float) -> None:
    """Replace NaN by `nan` and ±Inf by ±`inf`, bounded by the range of the dtype."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    largest = torch.finfo(real.dtype).max
    low, value, high = (max(-largest, min(largest, number)) for number in (-inf, nan, inf))
    real.nan_to_num_(nan=value, posinf=high, neginf=low)


def replace_nonfinite_gradient_(parameter: torch.Tensor, nan: float, inf: float) -> None:
    """The same for the gradient of a parameter, if it has one on this rank."""
    if parameter.grad is not None:
        _change_values_(parameter, lambda values: replace_nonfinite_(values, nan, inf))


def writable_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, first copied where its memory is not its own numbers: expanded, or a lazy conjugate.

    Of a sharded gradient it is the part on this rank: each rank changes its own, and all of them read the same table.
    """
    gradient = parameter.grad
    assert gradient is not None
    if is_sharded(gradient):
        own: torch.Tensor = local_part(gradient)
        return own
    gradient = gradient.detach()
    if gradient.is_conj() or gradient.is_neg():
        parameter.grad = gradient = gradient.resolve_conj().resolve_neg()
    if gradient.layout == torch.strided and gradient.numel() and 0 in gradient.stride():
        parameter.grad = gradient = gradient.clone(memory_format=torch.contiguous_format)
    return gradient


def _change_values_(parameter: torch.Tensor, change: Callable[[torch.Tensor], object]) -> None:
    gradient: Any = parameter.grad
    if is_unreduced(gradient):
        # What is done to an element must be done to the sum, not to the terms of it that ranks hold.
        from torch.distributed.tensor import Replicate

        whole = [Replicate() if placement.is_partial() else placement for placement in gradient.placements]
        parameter.grad = gradient.redistribute(placements=whole)
    gradient = writable_gradient(parameter)
    if gradient.layout == torch.sparse_coo:
        # Entries that are stored several times count as their sum, which is what has to be changed.
        parameter.grad = gradient = gradient.coalesce()
    values = _stored_values(gradient.detach())
    change(torch.view_as_real(values) if values.is_complex() else values)


def _stored_values(gradient: torch.Tensor) -> torch.Tensor:
    """The memory behind a gradient of any layout: what a sparse one does not store is zero and stays so."""
    if gradient.layout == torch.strided:
        return gradient
    return gradient._values() if gradient.layout == torch.sparse_coo else gradient.values()


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
            return False  # another tool has scaled this step already
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
        """The step is over: restore the scale that was there."""
        if not self._active:
            return
        self._active = False
        _IN_STEP.discard(self._optimizer)
        if self._before is _UNSET:
            del self._optimizer.grad_scale  # type: ignore[attr-defined]  # set by begin()
        else:
            self._optimizer.grad_scale = self._before  # type: ignore[attr-defined]  # it was the scaler's
