"""Compiled code: whether there is any, which a new hook would have compiled anew, and hooks that stay outside it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch._dynamo.decorators import skip

Hook = TypeVar("Hook", bound=Callable[..., Any])


def breaks_graph(hook: Hook) -> Hook:
    """A hook that a compiled model calls outside its graph, as `torch._dynamo.disable` has it.

    That one costs microseconds at each call; this one only where something is being compiled.
    """
    disabled = torch._dynamo.disable(hook)  # type: ignore[no-untyped-call]
    compiler = torch._C._dynamo.eval_frame.get_eval_frame_callback

    @wraps(hook)
    def call(*args: Any) -> Any:
        return hook(*args) if compiler() is None else disabled(*args)

    return cast(Hook, skip(call))


def compiled_graphs() -> int:
    """Graphs that were compiled in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a part of it, is compiled, in place or in a wrapper around it."""
    for module in model.modules():
        if "_orig_mod" in module._modules or vars(module).get("_compiled_call_impl") is not None:
            return True
    return bool(compiled_graphs()) and _is_wrapped(model)


_unwrapped: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
"""Models that no compiled wrapper held, by `id`, with the number of graphs at that time."""


def _is_wrapped(model: nn.Module) -> bool:
    """Whether a compiled wrapper holds the model, as far as something was compiled since it was last asked.

    A wrapper is found among all objects of the process, which takes a while; looks ask each time, and as a rule
    something else was compiled.
    """
    graphs = compiled_graphs()
    known, then = _unwrapped.get(id(model), (None, -1))
    if known is not None and known() is model and then == graphs:
        return False
    found = any(isinstance(owner, dict) and owner.get("_orig_mod") is model for owner in gc.get_referrers(model))
    if not found:
        key = id(model)
        _unwrapped[key] = weakref.ref(model, lambda gone: _forget(key, gone)), graphs
    return found


def _forget(key: int, gone: weakref.ref[nn.Module]) -> None:
    """A later model at the same address keeps its own entry."""
    if _unwrapped.get(key, (None,))[0] is gone:
        del _unwrapped[key]
