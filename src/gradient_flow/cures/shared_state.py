"""What `input_fn` leaves behind for `loss_fn`: the targets of the batch, in a closure, a global or an attribute.

A batch that is replayed needs the targets that belong to it. `loss_fn` is given only the output, so it finds them in
variables that `input_fn` sets. Those are looked up from the function itself, kept with the batch and put back before
the loss is taken.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

_DEEP: Final = 4
"""Functions within functions, and objects within objects, that are followed."""
_MOST: Final = 400
"""Variables that are kept: a loss that reaches more is not a closure over a batch."""
_PLAIN: Final = (int, float, str, bytes, bool, type(None))


class Variable:
    """One variable that a function can reach: a cell of its closure, a global, an attribute, an element."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.read, self.write = read, write


def variables_of(function: Callable[..., Any]) -> list[Variable]:
    """Every variable that a function reads, directly or through functions and objects that it holds."""
    found: list[Variable] = []
    _walk(function, found, set(), 0)
    return found[:_MOST]


def _walk(value: Any, found: list[Variable], seen: set[int], depth: int) -> None:
    if id(value) in seen or depth > _DEEP or len(found) > _MOST:
        return
    seen.add(id(value))
    for variable in _inside(value):
        found.append(variable)
        held = _read(variable)
        if not isinstance(held, (torch.Tensor, nn.Module, torch.optim.Optimizer, type, types.ModuleType, *_PLAIN)):
            _walk(held, found, seen, depth + 1)


def _inside(value: Any) -> Iterator[Variable]:
    if isinstance(value, functools.partial):
        yield Variable(lambda: value.func, _refuse)
        for each in (*value.args, *value.keywords.values()):
            yield Variable(functools.partial(_same, each), _refuse)
    elif isinstance(value, types.MethodType):
        yield Variable(lambda: value.__self__, _refuse)
        yield Variable(lambda: value.__func__, _refuse)
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            yield Variable(functools.partial(getattr, cell, "cell_contents"), functools.partial(_set_cell, cell))
        for default in value.__defaults__ or ():
            yield Variable(functools.partial(_same, default), _refuse)
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield _of_mapping(value.__globals__, name)
    elif isinstance(value, dict):
        yield from (_of_mapping(value, name) for name in list(value))
    elif isinstance(value, list):
        yield from (_of_mapping(value, at) for at in range(len(value)))
    elif _is_users(value):
        yield from (_of_mapping(vars(value), name) for name in list(vars(value)))


def _is_users(value: Any) -> bool:
    """An object with attributes that is neither torch's nor Python's own."""
    home = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and home not in ("torch", "builtins", "numpy", "functools", "typing")


def _of_mapping(holder: Any, key: Any) -> Variable:
    return Variable(functools.partial(_get, holder, key), functools.partial(_set, holder, key))


def _get(holder: Any, key: Any) -> Any:
    return holder[key]


def _set(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def _set_cell(cell: Any, value: Any) -> None:
    cell.cell_contents = value


def _same(value: Any) -> Any:
    return value


def _refuse(_value: Any) -> None:
    """A part of a function that cannot change."""


def _read(variable: Variable) -> Any:
    try:
        return variable.read()
    except (KeyError, IndexError, ValueError, AttributeError):  # an empty cell, an element that is gone
        return None


class SharedState:
    """The variables that a function reads, as they are now and as they were."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._variables = variables_of(function)

    def values(self, *, copied: bool = False) -> list[Any]:
        """What the variables hold now; `copied` for tensors that somebody fills again and again."""
        held = [_read(variable) for variable in self._variables]
        return [_copy(value) for value in held] if copied else held

    def put(self, values: list[Any]) -> None:
        """Give every variable back what it held."""
        for variable, value in zip(self._variables, values, strict=True):
            if value is not None and _read(variable) is not value:
                variable.write(value)


def _copy(value: Any) -> Any:
    if type(value) is torch.Tensor:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value
