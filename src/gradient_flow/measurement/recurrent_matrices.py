"""Jacobians as matrices: of a loop written out in a `forward`, whose steps cannot be run one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch

from gradient_flow.capture.recurrent_loop import Loop

_MOST_ELEMENTS: Final = 1 << 23
"""Numbers in all matrices together: 64 MB in fp64."""


class MatrixTransitions:
    """The Jacobians of every step, each kept as a matrix; (steps, rows, size, size)."""

    def __init__(self, matrices: torch.Tensor) -> None:
        self._matrices = matrices
        self.steps, self.rows, self.size, _ = matrices.shape
        self.device, self.dtype = matrices.device, matrices.dtype

    def apply(self, times: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """J v, row by row."""
        return torch.bmm(self._matrices[times, rows], v.unsqueeze(-1)).squeeze(-1)

    def pull(self, times: torch.Tensor, rows: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Jᵀ u, row by row."""
        return torch.bmm(u.unsqueeze(1), self._matrices[times, rows]).squeeze(1)

    def first(self, steps: int) -> MatrixTransitions:
        """The same for the first steps only."""
        return MatrixTransitions(self._matrices[:steps])


def loop_jacobians(loop: Loop) -> MatrixTransitions | None:
    """d s_{t+1} / d s_t of every step whose first state has a graph; None where one state does not lead to the next.

    That is what goes from one product to the next: a second state beside it, as the c of an LSTM, is not seen.
    """
    states = [state for state in loop.states if state.requires_grad]
    if len(states) < 2:
        return None
    samples = loop.as_rows(states[0]).shape[0]
    rows = max(1, min(samples, _MOST_ELEMENTS // (4 * loop.size**2)))
    steps = max(1, min(len(states) - 1, _MOST_ELEMENTS // (rows * loop.size**2)))
    each_unit = torch.eye(loop.size, dtype=states[0].dtype, device=states[0].device)
    cotangents = loop.as_given(each_unit[:, None].expand(-1, samples, -1))  # one unit of all samples at a time
    matrices = []
    for before, after in pairwise(states[: steps + 1]):
        found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            after, before, cotangents, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        if found[0] is None:
            return None
        matrices.append(loop.as_rows(found[0]).transpose(0, 1)[:rows])  # (rows, size, size)
    stacked = torch.stack(matrices).detach()
    return MatrixTransitions(stacked) if bool(stacked.any()) else None
