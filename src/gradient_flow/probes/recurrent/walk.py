"""A kept sequence walked again, one layer and direction after the other, by the equations of torch's cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.model_state import isolated_copy
from gradient_flow.errors import InputError
from gradient_flow.probes.recurrent.calls import CellSequence
from gradient_flow.probes.recurrent.cells import Kind, TorchCell, Transitions
from gradient_flow.probes.recurrent.dynamics import precision_for
from gradient_flow.probes.recurrent.layers import LayerSequence
from gradient_flow.probes.recurrent.module_cells import ModuleTransitions
from gradient_flow.probes.recurrent.written_loop import Loop, loop_jacobians, square_matrices, written_out_loops
from gradient_flow.table.samples import effective_rank

ROWS: Final = 4
"""Samples whose Jacobians are looked at."""
_WEIGHTS: Final = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


@dataclass(frozen=True)
class Walk:
    """One layer in one direction, or one cell, along a sequence, in the order in which it makes its steps."""

    suffix: str
    """As in the names of the weights: `_l0`, `_l1_reverse`; empty for a cell."""
    width: int
    """How much of a state is h, what others see of it."""
    inputs: torch.Tensor
    """(steps, rows, features)."""
    states: torch.Tensor
    """Before each step, and after the last one: (steps + 1, rows, size)."""
    cotangents: torch.Tensor | None
    """dL/ds at the last step, where the backward brought one; (rows, size)."""
    jacobians: Callable[[int], Transitions]
    """The Jacobians of the first steps, for a few rows."""
    note: str = ""
    slopes: Callable[[int], torch.Tensor | None] = lambda steps: None
    """The slopes of the gates over the first steps, for a few rows, where known."""

    def finite_steps(self) -> tuple[int, int | None]:
        """How many steps can be used, and which one made a state that is not finite, if one did.

        A state after an input that was not finite itself is not the cell's fault.
        """
        fed = _first_nonfinite(self.inputs)
        state = _first_nonfinite(self.states)
        ends = [len(self.inputs), fed, None if state is None else state - 1]
        usable = min(end for end in ends if end is not None)
        return max(0, usable), state if state is not None and (fed is None or state <= fed) else None


def walk_layers(sequence: LayerSequence, twin: nn.RNNBase) -> list[Walk]:
    """Every layer and direction of `nn.RNN`, `GRU` or `LSTM`, with the weights of `twin`, without dropout."""
    weight = _cell(twin, "_l0").weight_hh
    inputs = _like(torch.cat(sequence.inputs), weight)
    initial = [_like(state, weight) for state in sequence.initial]
    walks, directions = [], 2 if twin.bidirectional else 1
    for layer in range(twin.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"_l{layer}" + "_reverse" * direction
            cell = _cell(twin, suffix)
            index = layer * directions + direction
            own = inputs.flip(0) if direction else inputs
            states = cell.roll(own, torch.cat([state[index] for state in initial], dim=-1))
            entering = _entering(sequence, index, direction, layer == twin.num_layers - 1, cell, states)
            walks.append(_of_torch_cell(suffix, cell, own, states, entering))
            h = states[1:, :, : cell.width]
            outputs.append(h.flip(0) if direction else h)
        inputs = torch.cat(outputs, dim=-1)
    return walks


def walk_cell(sequence: CellSequence, twin: nn.RNNCellBase) -> Walk:
    """A cell of torch's along the states that it was really given, whatever happened to them between the calls."""
    cell = _cell(twin, "")
    weight = cell.weight_hh
    inputs = _like(torch.stack([call.leaves[0] for call in sequence.calls]), weight)
    states = [torch.cat([call.leaves[leaf] for leaf, _ in sequence.pairs], dim=-1) for call in sequence.calls]
    last = torch.cat([sequence.calls[-1].outs[out] for _, out in sequence.pairs], dim=-1)
    path = _like(torch.stack([*states, last]), weight)
    return _of_torch_cell("", cell, inputs, path, _end_of_loop(sequence, path[0]))


def walk_module(sequence: CellSequence, twin: nn.Module, dtype: torch.dtype) -> Walk:
    """A custom cell, at the states that it received."""
    if not sequence.pairs:
        raise InputError("no state was found in it: nothing that it returned was given to it again.")
    transitions = ModuleTransitions(sequence, twin, dtype)
    rows = torch.arange(transitions.rows, device=transitions.device)
    again = transitions.step(transitions.steps - 1, rows, transitions.states[-1])
    last = transitions.last_state
    differs = float((again - last).norm() / last.norm().clamp_min(1e-12))
    note = (
        "" if differs < 0.01 else f"run again it gives another state ({differs:.0%} off): it is random, or keeps one."
    )
    return Walk(
        "",
        transitions.size,
        transitions.inputs,
        torch.cat([transitions.states, last[None]]),
        _end_of_loop(sequence, last),
        lambda steps: transitions.first(steps, ROWS),
        note,
    )


def _of_torch_cell(
    suffix: str, cell: TorchCell, inputs: torch.Tensor, states: torch.Tensor, cotangents: torch.Tensor | None
) -> Walk:
    def jacobians(steps: int) -> Transitions:
        return cell.transitions(inputs[:steps, :ROWS], states[:steps, :ROWS])

    def slopes(steps: int) -> torch.Tensor | None:
        return cell.slopes(inputs[:steps, :ROWS], states[:steps, :ROWS])

    return Walk(suffix, cell.width, inputs, states, cotangents, jacobians, slopes=slopes)


def _end_of_loop(sequence: CellSequence, state: torch.Tensor) -> torch.Tensor | None:
    """The gradient that entered at the end of a loop over a cell, side by side as the state is; (rows, size)."""
    parts = sequence.end.parts_made_last
    if not any(out in parts for _, out in sequence.pairs):
        return None
    last = [sequence.calls[-1].outs[out] for _, out in sequence.pairs]
    found = [parts.get(out, torch.zeros_like(like)) for (_, out), like in zip(sequence.pairs, last, strict=True)]
    return torch.cat([part.reshape(len(state), -1).to(state) for part in found], dim=-1)


def _entering(
    sequence: LayerSequence, index: int, direction: int, is_top: bool, cell: TorchCell, states: torch.Tensor
) -> torch.Tensor | None:
    """dL/d(h, c) at the end of one direction: what came to the last state, and to the output of the top layer."""
    parts: dict[Any, torch.Tensor] = sequence.end.parts
    total = torch.zeros_like(states[0])
    if "h" in parts:
        total[:, : cell.width] += parts["h"][index].to(total)
    if "output" in parts and is_top:
        total[:, : cell.width] += parts["output"][:, direction].to(total)
    if "c" in parts:
        total[:, cell.width :] += parts["c"][index].to(total)
    return total if bool(total.any()) else None


def _cell(module: nn.Module, suffix: str) -> TorchCell:
    weights: dict[str, Any] = {name: getattr(module, name + suffix, None) for name in _WEIGHTS}
    return TorchCell(kind=_kind(module), **weights)


def _first_nonfinite(along: torch.Tensor) -> int | None:
    bad = (~torch.isfinite(along)).flatten(1).any(dim=1).nonzero()
    return int(bad[0]) if len(bad) else None


def _like(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return tensor.to(device=weight.device, dtype=weight.dtype)


def _kind(module: nn.Module) -> Kind:
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return "lstm"
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        return "gru"
    return "relu" if getattr(module, "nonlinearity", "tanh") == "relu" else "tanh"


def walk_loop(loop: Loop) -> Walk | None:
    """A loop written out in a `forward`; None where it turns out not to be one."""
    transitions = loop_jacobians(loop)
    if transitions is None:
        return None
    with_graph = [state for state in loop.states if state.requires_grad][: transitions.steps + 1]
    states = torch.stack([loop.as_rows(state.detach()) for state in with_graph])
    nothing = states.new_zeros(transitions.steps, states.shape[1], 0)
    note = "written out in a `forward`, its state is what the matrix multiplies; a second one beside it is not seen."
    return Walk("", loop.size, nothing, states, None, transitions.first, note)


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
