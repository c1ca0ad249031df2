"""Hearing of calls of torch's loss functions, with what they were given and what they returned.

Programs hold `F.cross_entropy` in variables and import it by name, so it cannot be wrapped itself; what it calls can: a
function that is looked up in `torch._C._nn` (or `torch`) at each call. While somebody listens these are wrapped,
afterwards they are as they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

_NN: Final[Any] = torch._C._nn
_INSIDE: Final[tuple[tuple[str, Any, str, int], ...]] = (
    ("cross_entropy", _NN, "cross_entropy_loss", 3),
    ("nll_loss", _NN, "nll_loss_nd", 3),
    ("binary_cross_entropy", _NN, "binary_cross_entropy", 3),
    ("binary_cross_entropy_with_logits", torch, "binary_cross_entropy_with_logits", 4),
    ("mse_loss", _NN, "mse_loss", 2),
    ("l1_loss", _NN, "l1_loss", 2),
    ("smooth_l1_loss", _NN, "smooth_l1_loss", 2),
    ("huber_loss", _NN, "huber_loss", 2),
)
"""Public name, where the inner function lies, its name, and which of its arguments is the reduction."""
_REDUCTIONS: Final = {0: "none", 1: "mean", 2: "sum"}
_IGNORE: Final = 4
"""Which argument of the two losses of classes is the label that is ignored."""
Listener = Callable[[str, torch.Tensor, torch.Tensor, dict[str, Any], Any], None]
_listeners: list[Listener] = []
_restore: list[Callable[[], None]] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Call `listener(function, predicted, target, settings, result)` after each call. Returns what ends it.

    `settings` has the `reduction` and, for losses of classes, `ignore_index`. The listener must not raise.
    """
    if not _listeners:
        for name, owner, inside, reduction in _INSIDE:
            if hasattr(owner, inside):
                _wrap(name, owner, inside, reduction)
    _listeners.append(listener)

    def end() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
        while _restore and not _listeners:
            _restore.pop()()

    return end


def _wrap(name: str, owner: Any, inside: str, reduction: int) -> None:
    original = getattr(owner, inside)

    @functools.wraps(original)
    def call_then_tell(*arguments: Any, **settings: Any) -> Any:
        result = original(*arguments, **settings)
        if len(arguments) > reduction and not torch.compiler.is_compiling():
            options = {"reduction": _REDUCTIONS.get(arguments[reduction], "mean")}
            if name in ("cross_entropy", "nll_loss") and len(arguments) > _IGNORE:
                options["ignore_index"] = arguments[_IGNORE]
            _tell(name, arguments[0], arguments[1], options, result)
        return result

    def restore() -> None:
        if vars(owner).get(inside) is call_then_tell:  # else another tool has replaced it
            setattr(owner, inside, original)

    setattr(owner, inside, call_then_tell)
    _restore.append(restore)


def _tell(name: str, predicted: Any, target: Any, settings: dict[str, Any], result: Any) -> None:
    plain = torch._C._functorch.peek_interpreter_stack() is None
    if plain and torch.is_grad_enabled() and isinstance(predicted, torch.Tensor) and isinstance(target, torch.Tensor):
        for listener in list(_listeners):
            listener(name, predicted, target, settings, result)
