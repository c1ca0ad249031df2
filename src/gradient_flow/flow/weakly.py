"""Hooks that keep nothing alive: a flow that is dropped without `close()` can be collected."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from gradient_flow.capture.losses import nothing


def weakly(owner: object, method: str) -> Callable[..., Any]:
    """A function that calls a method of its owner while that exists, and afterwards does nothing."""
    reference = weakref.ref(owner)

    def hook(*arguments: Any) -> Any:
        alive = reference()
        return getattr(alive, method)(*arguments) if alive is not None else nothing

    return hook
