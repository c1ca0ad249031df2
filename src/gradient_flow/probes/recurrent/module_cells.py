"""The Jacobians of a custom cell: its own forward, differentiated at the states that it received."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gradient_flow.probes.recurrent.calls import CellCall, CellSequence, is_real


class ModuleTransitions:
    """Steps of a module of any kind. The samples of a batch must not depend on each other, as in evaluation mode.

    `twin` is a copy of the module that may be called at will. States of several tensors lie side by side.
    """

    def __init__(self, sequence: CellSequence, twin: nn.Module, dtype: torch.dtype) -> None:
        self._twin, self._pairs, self.dtype = twin, sequence.pairs, dtype
        # A first call without a state (None) has nothing to be differentiated by.
        self._calls = [call for call in sequence.calls if all(is_real(call.leaves[leaf]) for leaf, _ in self._pairs)]
        first = self._calls[0]
        self._shapes = [first.leaves[leaf].shape for leaf, _ in self._pairs]
        self._has_batch = all(leaf in first.batched for leaf, _ in self._pairs)
        self.steps = len(self._calls)
        self.rows = self._shapes[0][0] if self._has_batch else 1
        self._widths = [shape.numel() // self.rows for shape in self._shapes]
        self.size = sum(self._widths)
        self.device = _device(twin, first.leaves[self._pairs[0][0]])
        self.states = torch.stack([self._flat([call.leaves[leaf] for leaf, _ in self._pairs]) for call in self._calls])
        """Before each step; (steps, rows, size)."""
        self.last_state = self._flat([self._calls[-1].outs[out] for _, out in self._pairs])
        self.inputs = torch.stack([self._fed(call) for call in self._calls])
        """What else goes in, side by side; (steps, rows, features), of which there may be none."""

    def first(self, steps: int, rows: int) -> ModuleTransitions:
        """The same for the first steps and samples only."""
        part = copy.copy(self)
        part.steps, part.rows = steps, min(rows, self.rows)
        return part

    def step(self, time: int, rows: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """The states (points, size) one step on."""
        if not self._has_batch:  # such a cell takes one state at a time
            return torch.cat([self._call(time, None, state[None]) for state in states])
        return self._call(time, rows, states)

    def apply(self, times: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """J v, row by row."""

        def forward(step: Callable[[torch.Tensor], torch.Tensor], state: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            # Jᵀ u is linear in u, so its own backward is J: not every operation has a forward derivative, and torch
            # takes seconds to load those that do.
            back = torch.func.vjp(step, state)[1]
            product: torch.Tensor = torch.func.vjp(lambda u: back(u)[0], torch.zeros_like(v))[1](v)[0]
            return product

        return self._at_each_time(forward, times, rows, v)

    def pull(self, times: torch.Tensor, rows: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Jᵀ u, row by row."""

        def back(step: Callable[[torch.Tensor], torch.Tensor], state: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            product: torch.Tensor = torch.func.vjp(step, state)[1](u)[0]
            return product

        return self._at_each_time(back, times, rows, u)

    def _at_each_time(
        self, product: Callable[..., torch.Tensor], times: torch.Tensor, rows: torch.Tensor, vectors: torch.Tensor
    ) -> torch.Tensor:
        """Arguments other than tensors may differ from step to step, so each step is a call of its own."""
        result = torch.zeros_like(vectors)
        for time in sorted(set(times.tolist())):
            at = (times == time).nonzero().squeeze(1)
            states = self.states[time, rows[at]]

            def step(state: torch.Tensor, time: int = time, rows: torch.Tensor = rows[at]) -> torch.Tensor:
                return self.step(time, rows, state)

            result[at] = product(step, states, vectors[at]).detach()
        return result

    def _call(self, time: int, rows: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
        call = self._calls[time]
        leaves: list[Any] = []
        for index, leaf in enumerate(call.leaves):
            if isinstance(leaf, torch.Tensor):
                leaf = leaf.to(device=self.device, dtype=self.dtype if is_real(leaf) else leaf.dtype)
                leaf = leaf[rows] if rows is not None and index in call.batched else leaf
            leaves.append(leaf)
        for (leaf, _), part, shape in zip(
            self._pairs, torch.split(states, self._widths, dim=-1), self._shapes, strict=True
        ):
            leaves[leaf] = part.reshape(len(states), *shape[1:]) if self._has_batch else part.reshape(shape)
        args, kwargs = pytree.tree_unflatten(leaves, call.spec)
        outs = pytree.tree_flatten(self._twin(*args, **kwargs))[0]
        return torch.cat([outs[out].reshape(len(states), -1) for _, out in self._pairs], dim=-1)

    def _fed(self, call: CellCall) -> torch.Tensor:
        states = {leaf for leaf, _ in self._pairs}
        usable = call.batched if self._has_batch else range(len(call.leaves))
        fed = [call.leaves[index] for index in sorted(set(usable) - states) if is_real(call.leaves[index])]
        return self._flat(fed) if fed else self.states.new_zeros(self.rows, 0)

    def _flat(self, parts: list[torch.Tensor]) -> torch.Tensor:
        rows = [part.reshape(self.rows, -1).to(device=self.device, dtype=self.dtype) for part in parts]
        return torch.cat(rows, dim=-1)


def _device(twin: nn.Module, state: torch.Tensor) -> torch.device:
    weight = next(twin.parameters(), None)
    return state.device if weight is None else weight.device
