"""Named gradients out of whatever holds them: a module, an optimizer, a mapping, an iterable, one array."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gradient_flow.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gradient_flow.capture.arrivals import LateNumber

ACCEPTED = "a module, an optimizer, a mapping of names to gradients, an iterable of gradients, or one tensor or array"


class NamedGradients(NamedTuple):
    """Gradients in order, and the names of parameters that have none (frozen, or unused in this step)."""

    names: tuple[str, ...]
    gradients: list[Any]
    missing: tuple[str, ...]
    absent: Mapping[str, Any] = MappingProxyType({})
    """The parameters that `missing` names, where it was parameters that were given."""
    order: tuple[str, ...] = ()
    """All names, those of missing gradients too, in the order in which they were given."""


def named_gradients(source: Any) -> NamedGradients:
    """Find the gradients in `source` and name them. A parameter stands for its `.grad`; nothing is copied."""
    torch = sys.modules.get("torch")
    if torch is not None:
        if isinstance(source, torch.nn.Module):
            return _split(module_parameters(source))
        if isinstance(source, torch.optim.Optimizer):
            return _split(optimizer_parameters(source))
    if _is_array(source):
        return _split([("0", source)])
    if isinstance(source, Mapping):
        return _split((str(name), value) for name, value in source.items())
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        items = list(source)
        if torch is not None and set(map(type, items)) == {torch.Tensor}:
            return NamedGradients(_numbers(len(items)), items, (), {}, _numbers(len(items)))
        return _split(_numbered(items))
    raise InputError(f"`source` must be {ACCEPTED}; got {_describe(source)}.")


def module_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters by name, tied ones once. Wrappers (`torch.compile`, DDP) leave no trace in the names."""
    import torch

    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module
    return [(name.replace("_orig_mod.", ""), parameter) for name, parameter in module.named_parameters()]


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters of all groups: by their own names where the optimizer knows them, else `group.position`."""
    named: list[tuple[str, torch.nn.Parameter]] = []
    for group_index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"{group_index}.{position}" for position in range(len(group["params"]))]
        named += zip(names, group["params"], strict=True)
    return named


def held_parameters(source: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """Parameters by name, to act on, out of a module, an optimizer, a mapping or an iterable of them."""
    import torch

    if isinstance(source, torch.nn.Module):
        return module_parameters(source)
    if isinstance(source, torch.optim.Optimizer):
        return optimizer_parameters(source)
    if isinstance(source, torch.Tensor):
        source = [source]
    if isinstance(source, Mapping):
        pairs = [(str(name), value) for name, value in source.items()]
    elif isinstance(source, Iterable) and not isinstance(source, (str, bytes)):
        pairs = list(_numbered(source))
    else:
        raise InputError(f"`model` must be a module, an optimizer or parameters; got {_describe(source)}.")
    for name, value in pairs:
        if not (isinstance(value, torch.Tensor) and value.is_leaf):
            raise InputError(
                f"`model[{name}]` must be a parameter, whose `.grad` can be changed; got {_describe(value)}."
            )
    return pairs


def parameters_to_manage(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, *, only_optimizer: bool = False
) -> list[tuple[str, torch.nn.Parameter]]:
    """Those of the model and those that only the optimizer has (a learnt loss), each once and under a name of its own.

    With `only_optimizer` those of the model that the optimizer does not step are left out.
    """
    named = module_parameters(model)
    if optimizer is None:
        return named
    names = {id(p): name for name, p in named}
    taken = set(names.values())
    for name, p in optimizer_parameters(optimizer):
        if id(p) not in names:
            unique = name if not name[0].isdigit() and name not in taken else f"optimizer.{name}"
            names[id(p)] = unique
            named.append((unique, p))
    inside = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [(name, p) for name, p in named if id(p) in inside] if only_optimizer else named


@lru_cache(maxsize=4)
def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _numbered(source: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    for position, item in enumerate(source):
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            yield item  # named_parameters() and dict.items()
        elif item is None:
            raise InputError(
                f"`source[{position}]` is None. A list must hold gradients only; pass the model, or a mapping of "
                "names to gradients, and absent gradients are listed as missing."
            )
        else:
            yield str(position), item


def gradients_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> NamedGradients:
    """The gradients of leaf tensors by name, whether they are of class `Parameter` or not."""
    names, gradients, order = [], [], []
    absent: dict[str, Any] = {}
    for name, parameter in parameters:
        order.append(name)
        gradient = parameter.grad
        if gradient is None:
            absent[name] = parameter
        else:
            names.append(name)
            gradients.append(gradient)
    return NamedGradients(tuple(names), gradients, tuple(absent), absent, tuple(order))


def _split(pairs: Iterable[tuple[str, Any]]) -> NamedGradients:
    torch = sys.modules.get("torch")
    names, gradients, missing, order = [], [], [], []
    absent: dict[str, Any] = {}
    # By exact type, because isinstance on every parameter is slow; a subclass may be of either kind (`DTensor`).
    parameter_types = set() if torch is None else {torch.nn.Parameter}
    array_types = {np.ndarray} if torch is None else {np.ndarray, torch.Tensor}
    for name, value in pairs:
        order.append(name)
        kind = type(value)
        if kind not in array_types:
            if kind in parameter_types or is_parameter(value):
                if value.grad is None:
                    absent[name] = value
                value = value.grad
            elif value is not None and not _is_array(value):
                value = _array_from_numbers(value, name)
            if value is None:
                missing.append(name)
                continue
        names.append(name)
        gradients.append(value)
    return NamedGradients(tuple(names), gradients, tuple(missing), absent, tuple(order))


def is_parameter(value: Any) -> bool:
    """Whether this is a parameter, which stands for its `.grad`."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Parameter)


def _is_array(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(value, (np.ndarray, np.generic)) or (torch is not None and isinstance(value, torch.Tensor))


def _array_from_numbers(value: Any, name: str) -> np.ndarray:
    if isinstance(value, (str, bytes, bool)):
        raise InputError(f"Gradient `{name}` must be a tensor, an array or numbers; got {_describe(value)}.")
    try:
        array = np.asarray(value)
    except Exception as problem:  # NumPy and array-likes raise many kinds here, all meaning the same
        raise InputError(
            f"Gradient `{name}` cannot be read as an array: {problem}. Rows of unequal length must be passed as "
            "separate gradients."
        ) from problem
    if array.dtype == object:
        raise InputError(f"Gradient `{name}` must be a tensor, an array or numbers; got {_describe(value)}.")
    return array


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


BIASES: Final = "biases"
_NAMED: Final = re.compile(r"W_(in|rec|out|h_init)(_?\d+)?", re.IGNORECASE)
_BLOCK: Final = re.compile(r"^(.*?\.\d+)\.")
_TORCH_RECURRENT: Final = (("weight_ih", "W_in"), ("weight_hh", "W_rec"), ("weight_hr", "W_rec"))
_RECURRENT_TYPES: Final = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "RNNBase")


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Parameter name → group, for the parameters of `model` (under the names that `module_parameters` gives)."""

    owners = {name.replace("_orig_mod.", ""): module for name, module in model.named_modules()}
    recurrent = [name for name, module in owners.items() if _is_recurrent(module)]
    own_names = any(_NAMED.fullmatch(part) for name, _ in module_parameters(model) for part in name.split("."))
    places = {name: place for place, name in enumerate(owners)}
    first = min((places[name] for name in recurrent), default=len(places))
    within = set(recurrent)
    roles = {}
    for name, _ in module_parameters(model):
        path, _, leaf = name.rpartition(".")
        if leaf.startswith("bias") or leaf.endswith("_bias"):
            roles[name] = BIASES
        elif own_names or recurrent:
            after = places.get(path, -1) > first
            roles[name] = _recurrent_role(name, leaf, path in within, after and _is_linear(owners[path]))
        else:
            roles[name] = _general_role(name, owners.get(path))
    return roles


def _recurrent_role(name: str, leaf: str, in_recurrent: bool, is_readout: bool) -> str:
    for part in name.split("."):
        found = _NAMED.fullmatch(part)
        if found:
            return f"W_{found.group(1).lower()}"
    if in_recurrent:
        return next((role for prefix, role in _TORCH_RECURRENT if leaf.startswith(prefix)), name)
    return "W_out" if is_readout else name


def _general_role(name: str, owner: nn.Module | None) -> str:
    kind = type(owner).__name__
    if "Norm" in kind:
        return "norms"
    if "Embedding" in kind:
        return "embeddings"
    block = _BLOCK.match(name)
    return block.group(1) if block else name


def _is_recurrent(module: nn.Module) -> bool:
    return any(base.__name__ in _RECURRENT_TYPES for base in type(module).__mro__)


def _is_linear(module: nn.Module) -> bool:
    return any(base.__name__ == "Linear" for base in type(module).__mro__)


class KnownParameter(NamedTuple):
    """A parameter by name. An id alone would not do: it is given anew once its object is gone."""

    name: str
    parameter: weakref.ref[torch.Tensor]

    def is_(self, parameter: torch.Tensor) -> bool:
        """Whether this is the one."""
        return self.parameter() is parameter


class ScaleAtClip(NamedTuple):
    """What a `GradScaler` knew when gradients were clipped."""

    scale: float | LateNumber
    unscaled: frozenset[int]
    """Ids of the optimizers whose gradients had been unscaled by then."""


class ClippedRow:
    """The row of a gradient before it was clipped, and how to tell whether that gradient is still the one there."""

    def __init__(self, table: Any, name: str, scale: ScaleAtClip | None = None) -> None:
        self.table, self.name, self.scale = table, name, scale
        self._gradient: weakref.ref[torch.Tensor] | None = None
        self._version = -1

    def mark(self, parameter: torch.Tensor) -> None:
        """Remember the gradient as the clip left it."""
        assert parameter.grad is not None
        self._gradient, self._version = weakref.ref(parameter.grad), parameter.grad._version

    def is_of(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter's gradient is the clipped one, untouched since."""
        gradient = parameter.grad
        marked = self._gradient() if self._gradient is not None else None
        return gradient is not None and gradient is marked and gradient._version == self._version
