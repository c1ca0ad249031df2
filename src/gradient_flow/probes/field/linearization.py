"""A function at a point, as a linear map: J v forwards and Jᵀ u backwards, without ever building J."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradient_flow.capture.random_state import kept_random_state
from gradient_flow.errors import InputError


def function_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module as a function of its input whose calls leave its buffers alone, such as running statistics."""

    def function(x: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        output = torch.func.functional_call(module, buffers, (x,))
        return next((part for part in output if isinstance(part, Tensor)), output) if _several(output) else output

    return function


def function_of_tensor(module: nn.Module, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A call of a module as a function of one tensor, each time from the same buffers."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def function(x: Tensor) -> Tensor:
        output = call(x)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if not torch.equal(buffer, before[name]):
                    buffer.copy_(before[name])
        return output

    return function


def _several(output: object) -> bool:
    return isinstance(output, (tuple, list))


class Linearization:
    """J of `function` at `x`, applied to flat vectors: `forward` is J v (one jvp), `backward` is Jᵀ u (one vjp).

    Forward-mode derivatives come from `torch.func.jvp`. An operation without them (cuDNN and oneDNN recurrent layers,
    custom functions) is derived twice backwards instead: Jᵀ u is linear in u, so its derivative along v is J v.
    Every call of the function starts from the same random state, which makes dropout one fixed mask; the state, the
    parameters and their gradients are afterwards as they were.

    Args:
        function: a tensor to a tensor. Use `function_of` for a module that changes its buffers, such as batch norm.
        x: where to linearise. All its elements together are the input, so a batch gives a block-diagonal J.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.numel() == 0:
            what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"`x` must be a tensor of real numbers, got {what}.")
        self._function = function
        self._x = x.detach().clone()
        self._leaf = self._x.clone().requires_grad_()
        with torch.enable_grad():
            # A second clone, so that a function that works in place does not meet a leaf.
            self._y = self._call(self._leaf.clone())
        self._adjoint: tuple[Tensor, Tensor] | None = None
        if not isinstance(self._y, Tensor) or not self._y.is_floating_point() or self._y.numel() == 0:
            what = f"{self._y.dtype}" if isinstance(self._y, Tensor) else type(self._y).__name__
            raise InputError(f"`function` must return a tensor of real numbers, got {what}.")
        self.inputs, self.outputs = self._x.numel(), self._y.numel()
        self.dtype, self.device = self._x.dtype, self._x.device
        self.method = "forward mode"
        """How J v is computed: `forward mode`, or `double backward` where an operation has no forward derivative."""

    def forward(self, v: Tensor) -> Tensor:
        """J v, flat, in double precision."""
        direction = v.to(self._x).reshape(self._x.shape)
        if self.method == "forward mode":
            try:
                return self._once_forward(direction)
            except RuntimeError:  # no forward derivative, or the function does what functorch cannot trace
                self.method = "double backward"
        return self._twice_backward(direction)

    def backward(self, u: Tensor) -> Tensor:
        """Jᵀ u, flat, in double precision."""
        if not self._y.requires_grad:
            return torch.zeros(self.inputs, dtype=torch.float64, device=self.device)
        weight = u.to(self._y).reshape(self._y.shape)
        (pulled,) = torch.autograd.grad(
            self._y, self._leaf, weight, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return pulled.detach().double().flatten()

    def matrix(self) -> Tensor:
        """J as a matrix (outputs, inputs), over the shorter side. Only for small ones."""
        if self.inputs <= self.outputs:
            columns = [self.forward(unit_direction(self.inputs, index)) for index in range(self.inputs)]
            return torch.stack(columns, dim=1)
        return torch.stack([self.backward(unit_direction(self.outputs, index)) for index in range(self.outputs)])

    def _call(self, x: Tensor) -> Tensor:
        # Fused attention kernels can be derived once only; the plain formula has every derivative.
        with kept_random_state(self._x.device), sdpa_kernel(SDPBackend.MATH):
            return self._function(x)

    def _once_forward(self, v: Tensor) -> Tensor:
        with warnings.catch_warnings():
            # Torch scripts its own rules at the first forward derivative, and warns about itself.
            warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
            pushed: Tensor = torch.func.jvp(self._call, (self._x.clone(),), (v,))[1]
        return pushed.detach().double().flatten()

    def _twice_backward(self, v: Tensor) -> Tensor:
        if not self._y.requires_grad:
            return torch.zeros(self.outputs, dtype=torch.float64, device=self.device)
        if self._adjoint is None:
            dummy = torch.zeros_like(self._y, requires_grad=True)
            with torch.enable_grad():
                (pulled,) = torch.autograd.grad(
                    self._y, self._leaf, dummy, create_graph=True, allow_unused=True, materialize_grads=True
                )
            refuse_once_differentiable([pulled])
            self._adjoint = (dummy, pulled)
        dummy, pulled = self._adjoint
        if not pulled.requires_grad:
            return torch.zeros(self.outputs, dtype=torch.float64, device=self.device)
        (pushed,) = torch.autograd.grad(pulled, dummy, v, retain_graph=True, allow_unused=True, materialize_grads=True)
        return pushed.detach().double().flatten()


def random_direction(size: int, generator: torch.Generator) -> Tensor:
    """Independent signs: of all random probes the ones with the least variance."""
    return torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8).double().mul_(2).sub_(1)


def unit_direction(size: int, index: int) -> Tensor:
    """One axis."""
    unit = torch.zeros(size, dtype=torch.float64)
    unit[index] = 1.0
    return unit


def refuse_once_differentiable(tensors: Iterable[Tensor]) -> None:
    """An operation that was written for one derivative only would silently count as constant."""
    waiting = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "Error":  # what torch leaves where a second derivative would start
            raise InputError("An operation in the function is marked as differentiable only once; two are needed here.")
        waiting += [following for following, _ in node.next_functions]


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean of a row of estimates, and its standard error."""
    if values.numel() < 2:
        return float(values.mean()), math.nan
    return float(values.mean()), float(values.std() / math.sqrt(values.numel()))
