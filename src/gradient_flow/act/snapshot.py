"""`Snapshot`: weights, buffers and optimizer state as they were at a good step, to go back to."""

from __future__ import annotations

from typing import Any

import torch


class Snapshot:
    """A copy of everything that an optimizer step changes. Learning rates are the schedule's and stay as they are."""

    def __init__(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.step = step
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in [*model.parameters(), *model.buffers()]]
        self._state = {p: _copy(state) for p, state in optimizer.state.items()}

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Put everything back, in place where it can be: fused and compiled steps hold on to their tensors."""
        with torch.no_grad():
            for tensor, saved in self._tensors:
                tensor.detach().copy_(saved)
            for parameter in list(optimizer.state):
                if parameter not in self._state:
                    del optimizer.state[parameter]
            for parameter, saved_state in self._state.items():
                now = optimizer.state[parameter]
                for name in [name for name in now if name not in saved_state]:
                    del now[name]
                for name, saved in saved_state.items():
                    now[name] = _restored(now.get(name), saved)


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
