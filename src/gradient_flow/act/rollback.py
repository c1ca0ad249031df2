"""`Snapshot`: what an optimizer step changes, as it was at a good step, to go back to."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gradient_flow.table import measure


class Snapshot:
    """A copy of an optimizer's parameters and state and of the model's buffers. It keeps no model alive.

    Learning rates belong to the schedule and stay as they are.
    """

    def __init__(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.step = step
        tensors = _changed_by_steps(model, optimizer)
        self._tensors = [(weakref.ref(tensor), tensor.detach().clone()) for tensor in tensors]
        self._state = [(weakref.ref(p), _copy(state)) for p, state in optimizer.state.items()]

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Put everything back, in place where it can be: fused and compiled steps hold on to their tensors."""
        with torch.no_grad():
            for reference, saved in self._tensors:
                tensor = reference()
                if tensor is not None:
                    tensor.detach().copy_(saved)
            states = {p: state for reference, state in self._state if (p := reference()) is not None}
            for parameter in [p for p in optimizer.state if p not in states]:
                del optimizer.state[parameter]
            for parameter, saved_state in states.items():
                now = optimizer.state[parameter]
                for name in [name for name in now if name not in saved_state]:
                    del now[name]
                for name, saved in saved_state.items():
                    now[name] = _restored(now.get(name), saved)


def is_worth_keeping(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether weights and buffers are finite. A bad batch may spoil running statistics though its step is skipped."""
    tensors = _changed_by_steps(model, optimizer)
    return measure([t.detach() for t in tensors if t.is_floating_point() or t.is_complex()]).total.finite


def _changed_by_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [*parameters, *model.buffers()]


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
