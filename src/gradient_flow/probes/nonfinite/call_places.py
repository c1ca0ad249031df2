"""Where a call belongs, also in a backward pass, where only the autograd node at work leads to a line of code."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from gradient_flow.capture.autograd_graph import graph_behind
from gradient_flow.probes.nonfinite.operators import name_of_node
from gradient_flow.probes.nonfinite.where import NOWHERE, CodeLine, outermost_module_call, place_of_call

_HIDERS: Final = ("Where", "MaskedFill", "Clamp", "NanToNum", "Index", "Maximum", "Minimum")
"""Nodes that hand a gradient of zero to elements that were not used."""


class Whereabouts(NamedTuple):
    """Pass, place and familiar name of a call."""

    phase: str
    place: CodeLine
    operator: str
    custom: str | None = None
    """The custom `autograd.Function` at work."""


class CallPlaces:
    """Finds the place of a call, and remembers the places of autograd nodes for the backward pass.

    Torch numbers nodes as it makes them, and makes an operator's node just before the operator runs: the newest number
    seen from inside an operator is its own. Numbers are counted per thread.
    """

    def __init__(self, model: nn.Module) -> None:
        self.stop: FrameType | None = None
        """The frame that runs the step: the way up the stack ends there."""
        self._paths = {id(module): path for path, module in named_parts(model)}
        self._paths[id(model)] = ""
        self._thread = threading.get_ident()
        self._made: dict[tuple[int, int], Whereabouts] = {}
        self._newest: dict[int, tuple[int, Whereabouts | None]] = {self._thread: (_next_number() - 1, None)}
        self._hiders: dict[int, Any] = {}

    def where(self, node: Any, operator: str) -> Whereabouts:
        """Where the running call belongs; `node` is the autograd node at work, if there is one."""
        place = place_of_call(sys._getframe(), self.stop, self._path_of, node is not None)
        if node is None:
            return Whereabouts("forward", place, place.custom or operator, place.custom)
        made, custom = self.made(node), custom_function(node)
        in_user_code = place.file is not None
        if not in_user_code:
            known = replace(made.place, custom=place.custom, recomputed=place.recomputed)
            place = replace(known, library=place.library or known.library)
        if place.module is None:
            place = replace(place, module=made.place.module, module_type=place.module_type or made.place.module_type)
        if place.recomputed:
            return Whereabouts("forward", place, place.custom or operator, place.custom)
        # Lines of the user's that run in a backward pass are either a custom function's or a hook's.
        in_hook = in_user_code and custom is None
        return Whereabouts("backward", place, operator if in_hook else f"{custom or made.operator} backward", custom)

    def record_node(self, node: Any, operator: str, makes_node: bool) -> None:
        """Give the newest node of this thread a place, if the running call made it."""
        thread, own = threading.get_ident(), _next_number() - 1
        newest, previous = self._newest.get(thread, (own - 1, None))
        if own <= newest:
            return
        here = self.where(node, operator)
        if not makes_node and here.place.custom is None:  # a custom function makes its node, then runs without grad
            return
        if previous is not None:  # writing into a view makes further nodes when it is done
            self._made.update(((thread, between), previous) for between in range(newest + 1, own))
        self._made[thread, own] = here
        self._newest[thread] = own, here

    def made(self, node: Any) -> Whereabouts:
        """Where a node was made. Nodes from before are nowhere."""
        number = node._sequence_nr()
        found = self._made.get((threading.get_ident(), number)) or self._made.get((self._thread, number))
        if found is None:
            newest, last = self._newest[self._thread]
            if newest < number < _next_number():
                found = last
        return found or Whereabouts("forward", NOWHERE, name_of_node(node.name()))

    def note_hider(self, node: Any) -> None:
        """Remember a node that hands on zeros for what was not used."""
        if node.name().startswith(_HIDERS):
            self._hiders.setdefault(node._sequence_nr(), node)

    def hider_of(self, node: Any) -> tuple[str, CodeLine] | None:
        """The operator, and its place, that keeps the result of this node's operator out of the loss."""
        for hider in reversed(self._hiders.values()):
            if any(behind is node and behind is not hider for behind in graph_behind([hider])):
                made = self.made(hider)
                return made.operator, made.place
        return None

    def model_argument(self, tensor: torch.Tensor) -> tuple[str, int | None] | None:
        """Name and position of the argument that a tensor came in with, while the model or a part of it runs."""
        called = outermost_module_call(sys._getframe(), self.stop, self._path_of)
        if called is None:
            return None
        module, args, kwargs = called
        names = [*inspect.signature(module.forward).parameters]
        for position, value in enumerate(args):
            name = names[position] if position < len(names) else f"argument {position}"
            for path in _paths_to(tensor, value, name):
                return path, position
        for key, value in kwargs.items():
            for path in _paths_to(tensor, value, key):
                return path, None
        return None

    def _path_of(self, module: Any) -> str | None:
        return self._paths.get(id(module))


def named_parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules by path. Wrappers (`torch.compile`, DDP) leave no trace in the paths."""
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return [(tidy(name), module) for name, module in inner.named_modules()]


def tidy(name: str) -> str:
    """A path or name without the wrapper that `torch.compile` puts in."""
    return name.replace("_orig_mod.", "").removesuffix("_orig_mod").removesuffix(".")


def custom_function(node: Any) -> str | None:
    """The name of the `autograd.Function` behind a node, if it is one that is not torch's own."""
    owner = getattr(node, "_forward_cls", None)
    return None if owner is None or owner.__module__.startswith("torch.") else str(owner.__name__)


def _paths_to(tensor: torch.Tensor, value: Any, path: str) -> Iterator[str]:
    """Where in an argument, which may be a nest of containers, a tensor lies that shares memory with this one."""
    if isinstance(value, torch.Tensor):
        if value is tensor or value.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _paths_to(tensor, item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _paths_to(tensor, item, f"{path}[{index}]")


def _next_number() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
