"""`Snapshot`: what an optimizer step changes, as it was at a good step, to go back to."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from gradient_flow.act.buffers import BufferKeeper
from gradient_flow.table import measure


class Snapshot:
    """A copy of an optimizer's parameters and state and of the model's buffers. It keeps no model alive.

    Learning rates belong to the schedule and stay as they are.
    """

    def __init__(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.step = step
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._tensors = [(weakref.ref(tensor), tensor.detach().clone()) for tensor in parameters]
        self._buffers = BufferKeeper(model, math.inf)
        self._buffers.refresh()
        self._state = [(weakref.ref(p), _copy(state)) for p, state in optimizer.state.items()]

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Put everything back, in place where it can be: fused and compiled steps hold on to their tensors."""
        with torch.no_grad():
            for reference, saved in self._tensors:
                tensor = reference()
                if tensor is not None:
                    tensor.detach().copy_(saved)
            self._buffers.put_back()
            states = {p: state for reference, state in self._state if (p := reference()) is not None}
            for parameter in [p for p in optimizer.state if p not in states]:
                del optimizer.state[parameter]
            for parameter, saved_state in states.items():
                now = optimizer.state[parameter]
                for name in [name for name in now if name not in saved_state]:
                    del now[name]
                for name, saved in saved_state.items():
                    now[name] = _restored(now.get(name), saved)


def is_worth_keeping(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the weights are finite."""
    parameters = [p.detach() for group in optimizer.param_groups for p in group["params"]]
    return measure([p for p in parameters if p.is_floating_point() or p.is_complex()]).total.finite


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _restored(now: Any, saved: Any) -> Any:
    if isinstance(saved, torch.Tensor) and isinstance(now, torch.Tensor) and now.shape == saved.shape:
        now.copy_(saved)
        return now
    return _copy(saved)
