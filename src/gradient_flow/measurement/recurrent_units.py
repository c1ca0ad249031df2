"""From a kept sequence to its walks: on a copy of the module, in the precision that suits its size."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.isolated_copy import isolated_copy
from gradient_flow.capture.recurrent_calls import CellSequence
from gradient_flow.capture.recurrent_layers import LayerSequence
from gradient_flow.capture.recurrent_loop import Loop, square_matrices, written_out_loops
from gradient_flow.measurement.recurrent_dynamics import precision_for
from gradient_flow.measurement.recurrent_walk import Walk, walk_cell, walk_layers, walk_loop, walk_module
from gradient_flow.measurement.samples import effective_rank

_ROWS_TO_RANK: Final = 128


def walks_of(sequence: LayerSequence | CellSequence) -> list[Walk]:
    """The sequence along each layer and direction of its module."""
    module = sequence.module
    if isinstance(sequence, LayerSequence):
        return walk_layers(sequence, isolated_copy(sequence.module, _precision_of(sequence.module)))
    if isinstance(module, nn.RNNCellBase):
        return [walk_cell(sequence, isolated_copy(module, _precision_of(module)))]
    dtype = precision_for(sum(sequence.calls[-1].outs[out][:1].numel() for _, out in sequence.pairs))
    try:
        return [walk_module(sequence, isolated_copy(module, dtype), dtype)]
    except RuntimeError:  # a forward that makes fp32 tensors of its own does not take fp64
        return [walk_module(sequence, isolated_copy(module, torch.float32), torch.float32)]


def loops_of(model: nn.Module, args: Any, kwargs: Any) -> list[tuple[Loop, Walk]]:
    """The recurrences written out in the `forward` of a model, for the arguments of a call of it."""
    matrices = square_matrices(model)
    if not matrices:
        return []
    dtype = precision_for(max(len(matrix) for matrix in matrices.values()))
    try:
        loops = written_out_loops(isolated_copy(model, dtype), *_cast((args, kwargs), dtype))
    except RuntimeError:
        loops = written_out_loops(isolated_copy(model, torch.float32), *_cast((args, kwargs), torch.float32))
    return [(loop, walk) for loop in loops if (walk := walk_loop(loop)) is not None]


def rank_along(rows: torch.Tensor) -> float | None:
    """Effective rank of (steps, samples, features), centred, of evenly spaced rows; 0 where nothing varies."""
    flat = rows.flatten(0, 1)
    if not flat.shape[-1] or len(flat) < 2:
        return None
    rank = effective_rank(flat[:: -(-len(flat) // _ROWS_TO_RANK)], centred=True)
    return 0.0 if math.isnan(rank) else rank


def rank_between_samples(rows: torch.Tensor) -> float | None:
    """The same, centred at every step: without the course that all samples share, such as the way from a zero state."""
    return rank_along(rows - rows.mean(dim=1, keepdim=True)) if rows.shape[1] > 1 else None


def _precision_of(module: nn.RNNBase | nn.RNNCellBase) -> torch.dtype:
    return precision_for(module.hidden_size * (2 if isinstance(module, (nn.LSTM, nn.LSTMCell)) else 1))


def _cast(values: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().to(dtype) if real else leaf

    return torch.utils._pytree.tree_map(cast, values)
