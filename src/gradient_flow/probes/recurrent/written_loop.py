"""A recurrence written out in a `forward`: a square matrix that multiplies, time and again, what became of its product.

No module is called for such a step, so no hook sees it. A copy of the model runs once more, with an eye on every
operation that one of its square matrices takes part in; the other operand is the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_FEWEST_USES: Final = 3
_MOST_STEPS: Final = 64
_ROWS: Final = 4


@dataclass
class Loop:
    """The states that one matrix multiplied, in order, each with the graph that leads back to the one before."""

    path: str
    """Name of the matrix in the model."""
    size: int
    length: int = 0
    states: list[torch.Tensor] = field(default_factory=list)
    """The first `_MOST_STEPS` of them, as they were multiplied: a view would not be part of the graph."""
    in_columns: bool = False
    """Whether they are (size, rows), as in W @ h, and not (rows, size) or (size,)."""

    def as_rows(self, state: torch.Tensor) -> torch.Tensor:
        """A state, or a gradient of it, as (..., rows, size)."""
        if self.in_columns:
            return state.transpose(-1, -2)
        return state if self.states[0].dim() > 1 else state.unsqueeze(-2)

    def as_given(self, rows: torch.Tensor) -> torch.Tensor:
        """The other way round."""
        if self.in_columns:
            return rows.transpose(-1, -2)
        return rows if self.states[0].dim() > 1 else rows.squeeze(-2)


def square_matrices(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers that could map a state to the next one."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: tensor
        for name, tensor in tensors
        if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] > 1 and tensor.is_floating_point()
    }


def written_out_loops(twin: nn.Module, args: Any, kwargs: Any) -> list[Loop]:
    """The loops in one more forward of `twin`, which is a copy to play with, on a few samples of what the model got.

    Every state but the first comes with its graph.
    """
    if not square_matrices(twin):
        return []
    with torch.no_grad():
        seen = _run(twin, args, kwargs)
    if not seen:
        return []
    args, kwargs = _few_samples(args, kwargs, seen[0].as_rows(seen[0].states[0]).shape[0])
    for parameter in twin.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    with torch.enable_grad():
        return list(_of_different_states(_run(twin, args, kwargs)))


def _run(twin: nn.Module, args: Any, kwargs: Any) -> list[Loop]:
    with _MatrixUses(square_matrices(twin)) as uses:
        twin(*args, **kwargs)
    return [loop for loop in uses.loops.values() if len(loop.states) >= _FEWEST_USES]


def _few_samples(args: Any, kwargs: Any, batch: int) -> tuple[Any, Any]:
    """The first samples, along the first dimension that is as long as the state's batch, and with a gradient."""

    def few(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        along = next((dim for dim, size in enumerate(leaf.shape[:2]) if size == batch), None)
        leaf = leaf.detach() if along is None or batch <= _ROWS else leaf.detach().narrow(along, 0, _ROWS)
        return leaf.requires_grad_(True) if leaf.is_floating_point() else leaf

    few_args, few_kwargs = pytree.tree_map(few, (args, kwargs))
    return few_args, few_kwargs


def _of_different_states(loops: list[Loop]) -> Iterator[Loop]:
    """Of several matrices that multiply one state, as the gates of a GRU, or of one module, the first."""
    owners: set[str] = set()
    for loop in loops:
        owner = loop.path.rpartition(".")[0].rpartition(".")[0] if loop.path.endswith(".weight") else ""
        owner = owner or loop.path.rpartition(".")[0]
        if owner not in owners:
            owners.add(owner)
            yield loop


class _MatrixUses(TorchFunctionMode):
    """Notes what each matrix is multiplied with."""

    def __init__(self, matrices: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(matrix): name for name, matrix in matrices.items()}
        self.loops: dict[str, Loop] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in pytree.tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        for tensor in tensors if len(tensors) > 1 else ():
            # W.T is another tensor with W behind it.
            name = self._names.get(id(tensor)) or self._names.get(id(tensor._base))
            others = [other for other in tensors if other is not tensor and other.is_floating_point()]
            if name is not None and others:
                self._use(name, tensor.shape[0], max(others, key=lambda other: other.dim()))
        return func(*args, **(kwargs or {}))

    def _use(self, name: str, size: int, state: torch.Tensor) -> None:
        in_columns = state.shape[-1] != size
        if not 1 <= state.dim() <= 2 or (in_columns and state.shape[0] != size):
            return
        loop = self.loops.setdefault(name, Loop(name, size, in_columns=in_columns))
        loop.length += 1
        # A state that was changed in place is the same tensor again, with another graph.
        if len(loop.states) < _MOST_STEPS and not any(state is earlier for earlier in loop.states[-1:]):
            loop.states.append(state)


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
