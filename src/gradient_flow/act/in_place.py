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


def scale_gradients_there_(parameters: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """The same by a factor that only the device knows: a few launches, and the bits that `scale_gradients_` gives.

    For gradients in fp32, bf16 and fp16 on one device. Factors below 1e-38 lose digits: there is no asking for them.
    """
    narrow = factor.to(torch.float32)
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        gradient = writable_gradient(parameter)
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for dtype, gradients in by_dtype.items():
        if dtype == torch.float32:
            torch._foreach_mul_(gradients, narrow)
        else:
            # A tensor of one element would be rounded to their dtype first. What GradScaler unscales with is not.
            unused = torch.zeros((), dtype=torch.float32, device=factor.device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, unused, narrow)


def clamp_gradients_there_(parameters: Sequence[torch.Tensor], limit: float | torch.Tensor) -> None:
    """Clamp every element to [-limit, limit], in two launches; one for each gradient where only the device knows it."""
    gradients = [writable_gradient(parameter) for parameter in parameters]
    if not isinstance(limit, torch.Tensor):
        torch._foreach_clamp_min_(gradients, -limit)
        torch._foreach_clamp_max_(gradients, limit)
        return
    for gradient in gradients:
        gradient.clamp_(min=-limit, max=limit)


def clamp_gradients_(parameters: Sequence[torch.Tensor], limit: float) -> None:
    """Clamp every element to [-limit, limit]; real and imaginary parts separately."""
    for parameter in parameters:
        if parameter.grad is not None:  # else it lies on other ranks
            _change_values_(parameter, lambda values: values.clamp_(-limit, limit))


def replace_nonfinite_(tensor: torch.Tensor, nan: float, inf: float) -> None:
    """Replace NaN by `nan` and ±Inf by ±`inf`, bounded by the range of the dtype."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    low, value, high = (within_range(number, real.dtype) for number in (-inf, nan, inf))
    real.nan_to_num_(nan=value, posinf=high, neginf=low)


def within_range(number: float, dtype: torch.dtype) -> float:
    """The number, or the largest of its sign that the dtype can hold."""
    largest = torch.finfo(dtype).max
    return max(-largest, min(largest, number))


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
PRECISE: Final = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes for which a factor in fp32 is precise enough."""


def _filled(number: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """A 0-dim tensor on the device. Made there: a number that is sent would be waited for."""
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no fp64
    if isinstance(number, torch.Tensor):
        return number.to(device, wide, non_blocking=True)
    return torch.full((), number, dtype=wide, device=device)


_IN_STEP: Final[weakref.WeakSet[torch.optim.Optimizer]] = weakref.WeakSet()
"""Optimizers whose coming step has a factor of ours."""


class ScaleInStep:
    """Hands an optimizer a factor on its gradients for one step, or the word to skip it, and takes both back."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._before: dict[str, Any] = {}
        """What the optimizer had under the names that we have set."""

    def listens(self) -> bool:
        """Whether the coming step reads `grad_scale` and `found_inf`, and no other tool has set them for it."""
        optimizer = self._optimizer
        fused = all(group.get("fused") for group in optimizer.param_groups)
        return fused and getattr(optimizer, "_step_supports_amp_scaling", False) and optimizer not in _IN_STEP

    def takes(self, factor: float | torch.Tensor, parameters: Sequence[tuple[str, torch.Tensor]]) -> bool:
        """Whether this optimizer divides by a scale as exactly as we would multiply by the factor."""
        precise = isinstance(factor, torch.Tensor) or factor > SMALLEST_PRECISE_FACTOR
        return (
            precise
            and self.listens()
            and all(p.dtype in PRECISE and p.grad is not None and p.grad.dtype in PRECISE for _, p in parameters)
        )

    def begin(self, factor: float | torch.Tensor | None, *, skip: torch.Tensor | None = None) -> None:
        """Scale the gradients of the coming step, on top of a scale that a GradScaler left to it, or `skip` it.

        What is on a device stays there: the scale, and whether to skip.
        """
        _IN_STEP.add(self._optimizer)
        device = next(p.device for group in self._optimizer.param_groups for p in group["params"])
        if factor is not None:
            pending = getattr(self._optimizer, "grad_scale", None)
            pending = _filled(1.0 if pending is None else pending, device)
            self._set("grad_scale", (pending / _filled(factor, pending.device)).float())
        if skip is not None:
            found, ours = getattr(self._optimizer, "found_inf", None), skip.to(device, torch.float32)
            # Fused steps compare with 1, and count their steps back by what it says: it must be 1 or 0.
            both = ours if found is None else torch.maximum(found.to(device, non_blocking=True), ours)
            self._set("found_inf", both.clamp(max=1.0))

    def _set(self, name: str, value: torch.Tensor) -> None:
        self._before[name] = vars(self._optimizer).get(name, _UNSET)
        setattr(self._optimizer, name, value)

    def end(self) -> None:
        """The step is over: restore what was there."""
        if not self._before:
            return
        _IN_STEP.discard(self._optimizer)
        before, self._before = self._before, {}
        for name, value in before.items():
            if value is _UNSET:
                delattr(self._optimizer, name)
            else:
                setattr(self._optimizer, name, value)  # it was the scaler's
