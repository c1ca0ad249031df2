"""Seeing gradients before `torch.nn.utils` clips them, by norm or by value.

Those functions are usually imported by name, so they cannot be wrapped themselves; what they call can: a helper that is
looked up in its module at each call, and the function inside a `no_grad` wrapper. While there is a listener these are
wrapped, afterwards they are as they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gradient_flow.capture.losses import is_unheard

Listener = Callable[[list[torch.Tensor]], Callable[[], None]]
_listeners: list[Listener] = []
_restore: list[Callable[[], None]] = []
_current: list[Clip] = []


class Clip(NamedTuple):
    """What a clip does: `by` norm or value, and its limit as it was given."""

    by: str
    limit: Any


def current_clip() -> Clip | None:
    """The clip being reported to listeners; None outside of one."""
    return _current[-1] if _current else None


def listen(listener: Listener) -> Callable[[], None]:
    """Call `listener(parameters)` before they are clipped, and what it returns afterwards.

    Returns a function that ends it.
    """
    if not _listeners:
        _wrap_all()
    _listeners.append(listener)

    def end() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
        while _restore and not _listeners:
            _restore.pop()()

    return end


def _wrap_all() -> None:
    module = torch.nn.utils.clip_grad
    _wrap_attribute(module, "_clip_grads_with_norm_")
    # The same under its public name, for those who take norms of several device meshes together first.
    _wrap_attribute(torch.nn.utils, "clip_grads_with_norm_")
    _wrap_inside(module.clip_grad_value_)


def _wrap_attribute(owner: Any, name: str) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return
    over: list[bool] = []
    ours = _telling(original, "norm", "max_norm", over)
    setattr(owner, name, ours)

    def restore() -> None:
        over.append(True)
        if getattr(owner, name) is ours:  # else another tool has wrapped it since: its wrapper stays, ours is inert
            setattr(owner, name, original)

    _restore.append(restore)


def _wrap_inside(function: Any) -> None:
    original = getattr(function, "__wrapped__", None)
    for cell in getattr(function, "__closure__", None) or ():
        if original is not None and cell.cell_contents is original:
            cell.cell_contents = _telling(original, "value", "clip_value")
            _restore.append(functools.partial(setattr, cell, "cell_contents", original))
            return


def _telling(clip: Callable[..., Any], by: str, limit: str, over: Sequence[bool] = ()) -> Callable[..., Any]:
    @functools.wraps(clip)
    def tell_then_clip(parameters: Any, *arguments: Any, **settings: Any) -> Any:
        if over or is_unheard():  # `is_unheard`: a clip of ours, that will be undone
            return clip(parameters, *arguments, **settings)
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        _current.append(Clip(by, settings.get(limit, arguments[0] if arguments else None)))
        try:
            afterwards = [listener(parameters) for listener in _listeners]  # also one that a listener adds just now
        finally:
            _current.pop()
        result = clip(parameters, *arguments, **settings)
        for after in afterwards:
            after()
        return result

    return tell_then_clip
