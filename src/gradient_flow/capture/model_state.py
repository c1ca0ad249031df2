"""A model that is left as it was found, whatever is run with it in between."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradient_flow.capture.losses import unheard
from gradient_flow.capture.random_state import RandomState

_BITS: Final = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


class _Contents(NamedTuple):
    """A tensor, the memory it pointed to, and a copy of what was in there."""

    tensor: torch.Tensor
    memory: torch.Tensor
    copy: torch.Tensor
    requires_grad: bool


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Give a model back everything that the block changes.

    Parameters and buffers have their values back bit by bit, gradients are the same tensors, and every module has the
    attributes, mode and parts that it had. Within the block no parameter has a gradient. What modules keep in
    containers of their own is not restored.
    """
    modules = list(model.modules())
    contents = [kept for tensor in _tensors_of(modules) if (kept := _keep(tensor)) is not None]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    attributes = [(module, _attributes(module)) for module in modules]
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        for module, (plain, registered) in attributes:
            _put_attributes_back(module, plain, registered)
        with torch.no_grad():
            for kept in contents:
                _put_contents_back(kept)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _tensors_of(modules: list[nn.Module]) -> list[torch.Tensor]:
    """Parameters, buffers and plain attributes, each once."""
    found: dict[int, torch.Tensor] = {}
    for module in modules:
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()]
        found.update((id(tensor), tensor) for tensor in own if isinstance(tensor, torch.Tensor))
    return list(found.values())


def _keep(tensor: torch.Tensor) -> _Contents | None:
    if is_lazy(tensor) or tensor.device.type == "meta":
        return None  # nothing to lose
    memory = tensor.detach()
    try:
        copy = memory.clone()
    except RuntimeError:  # the device is out of memory
        copy = memory.cpu()
    return _Contents(tensor, memory, copy, tensor.requires_grad)


def _put_contents_back(kept: _Contents) -> None:
    if not same_bits(kept.memory, kept.copy):
        # Through `.data` the version counter stays: a graph that the caller still holds remains usable.
        kept.memory.data.copy_(kept.copy)
    if kept.tensor.is_leaf and kept.tensor.requires_grad != kept.requires_grad:
        kept.tensor.requires_grad_(kept.requires_grad)
    if kept.tensor.data_ptr() != kept.memory.data_ptr() or kept.tensor.shape != kept.memory.shape:
        kept.tensor.data = kept.memory


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether nothing has changed. When in doubt, as with a sparse tensor, it has."""
    one, other = getattr(one, "_local_tensor", one), getattr(other, "_local_tensor", other)
    bits = _BITS.get(one.dtype)
    try:
        if bits is not None:  # as numbers -0.0 would equal 0.0, and NaN nothing
            one, other = one.view(bits), other.view(bits)
        return one.device == other.device and torch.equal(one, other)
    except RuntimeError:
        return False


def _attributes(module: nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The attributes of a module, and what it has registered."""
    present = vars(module)
    names = [name for name in ("_parameters", "_buffers", "_modules") if isinstance(present.get(name), dict)]
    return dict(present), {name: dict(present[name]) for name in names}


def _put_attributes_back(module: nn.Module, plain: dict[str, Any], registered: dict[str, dict[str, Any]]) -> None:
    present = vars(module)  # not through setattr: a property or `__setattr__` of the user's would run
    _put_back(present, plain)
    for name, members in registered.items():
        _put_back(present[name], members)


def _put_back(present: dict[str, Any], before: dict[str, Any]) -> None:
    changed = present.keys() != before.keys() or any(present[name] is not value for name, value in before.items())
    if changed:
        present.clear()
        present.update(before)


@contextmanager
def nothing_changed(model: nn.Module) -> Iterator[None]:
    """Weights, buffers, gradients, mode and all random generators are afterwards as they were."""
    state = RandomState.capture()
    try:
        with unheard(), left_as_found(model):
            yield
    finally:
        state.restore()


@contextmanager
def gradients_kept(model: nn.Module) -> Iterator[None]:
    """The model's gradients are afterwards the same tensors."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


Module = TypeVar("Module", bound=nn.Module)


def isolated_copy(module: Module, dtype: torch.dtype = torch.float64) -> Module:
    """The module in evaluation mode and in `dtype`, with parameters, buffers and tensor attributes of its own.

    No hook comes along, nothing needs a gradient, and what the copy changes when it runs (running statistics, lists
    that it keeps) is its own. Weights that an old-style `weight_norm` computes in a hook keep their present values.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        for name, value in vars(part).items():
            if "hook" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()  # hooks of others would see our runs
                continue
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor):  # computed by a hook, or kept from the last forward with its graph
                    memo[id(item)] = _own(item, dtype)
        for tensor in [*part._parameters.values(), *part._buffers.values()]:
            if tensor is not None:
                memo[id(tensor)] = _own(tensor, dtype)
    twin = copy.deepcopy(module, memo)
    # Setting the mode part by part would do what an overridden `train` adds to it; on our copy that is harmless.
    return twin.eval()


def _own(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A detached copy, in `dtype` where it holds real numbers, and still a parameter where it was one."""
    # There is no fp64 on Apple's GPUs.
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    own = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
    return nn.Parameter(own, requires_grad=False) if isinstance(tensor, nn.Parameter) else own


class ModesKept:
    """Switches a model between training and evaluation; on leaving, every submodule is in the mode it came in.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with ModesKept(model) as modes:
    ...     modes.train()
    ...     in_training = model[0].training, model[1].training
    ...     modes.evaluate()
    >>> in_training, model[0].training, model[1].training
    ((True, False), True, False)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._came_in = [(module, module.training) for module in model.modules()]

    def train(self) -> None:
        """Training mode; in a model that came in training mode, submodules put in evaluation mode stay there."""
        self._model.train()
        if self._came_in[0][1]:
            self._put_back()

    def evaluate(self) -> None:
        """Evaluation mode throughout."""
        self._model.eval()

    def _put_back(self) -> None:
        for module, training in self._came_in:
            # Not module.train(): it would take the submodules along.
            module.training = training

    def __enter__(self) -> ModesKept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.train(self._came_in[0][1])
        self._put_back()
