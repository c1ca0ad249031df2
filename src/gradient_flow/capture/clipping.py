"""Seeing gradients before `torch.nn.utils.clip_grad_norm_` changes them.

That function is usually imported by name, so it cannot be wrapped itself; the helper it calls is looked up in its
module at each call and can. While somebody listens the helper is wrapped, afterwards it is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_HELPER = "_clip_grads_with_norm_"
Listener = Callable[[list[torch.Tensor]], Callable[[], None]]
_listeners: list[Listener] = []
_original: Callable[..., Any] | None = None


def listen(listener: Listener) -> Callable[[], None]:
    """Call `listener(parameters)` before they are clipped by norm, and what it returns afterwards.

    Returns a function that ends it.
    """
    global _original
    module = torch.nn.utils.clip_grad
    if not _listeners and hasattr(module, _HELPER):
        _original = getattr(module, _HELPER)
        setattr(module, _HELPER, _tell_then_clip)
    _listeners.append(listener)

    def end() -> None:
        global _original
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners and _original is not None:
            setattr(module, _HELPER, _original)
            _original = None

    return end


def _tell_then_clip(parameters: Any, *arguments: Any, **settings: Any) -> Any:
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    afterwards = [listener(parameters) for listener in list(_listeners)]
    assert _original is not None
    result = _original(parameters, *arguments, **settings)
    for after in afterwards:
        after()
    return result
