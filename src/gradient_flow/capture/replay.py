"""Running a step again: nothing is compiled, no optimizer gets to change a weight, and the loss is found."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class StepEnds(BaseException):
    """The optimizer is about to change weights: all has been seen. No `except Exception` of the step may catch it."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Grad mode on, anomaly mode off, nothing compiled, and no optimizer gets to change a weight."""

    thread = threading.get_ident()

    def end_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if threading.get_ident() == thread:  # another may be training something else
            raise StepEnds

    with ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(end_step).remove)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Weights that autocast has in store were cast out of our sight.
        torch.clear_autocast_cache()
        stack.callback(torch.clear_autocast_cache)
        yield


def loss_in(returned: Any) -> torch.Tensor | None:
    """The loss in what a step returns, if there is one."""
    if isinstance(returned, Mapping):
        returned = returned.get("loss")
    elif isinstance(returned, (tuple, list)) and returned:
        returned = returned[0]
    elif not isinstance(returned, torch.Tensor):
        returned = getattr(returned, "loss", None)
    return returned if isinstance(returned, torch.Tensor) else None
