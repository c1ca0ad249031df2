"""What is kept of a call of `nn.RNN`, `nn.GRU` or `nn.LSTM`: enough to walk the same sequence again, step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from gradient_flow.probes.recurrent.row_samples import EndGradient, kept, rows_to_keep, same_rows, steps_to_keep


class LayerSequence:
    """One sequence through a module of all its layers and directions: inputs and first states of a few samples.

    The states between the steps stay inside the fused kernel; they are recomputed from these where needed.
    A decoder that calls the module once per step makes one sequence of many calls.
    """

    def __init__(self, path: str, module: nn.RNNBase) -> None:
        self.path, self.module = path, module
        self.inputs: list[torch.Tensor] = []
        """(steps, rows, features) of each call."""
        self.initial: tuple[torch.Tensor, ...] = ()
        """h, and c of an LSTM, before the first step; each (layers * directions, rows, width)."""
        self.length = 0
        """Steps that the module made, of which the first are kept."""
        self.end = EndGradient()
        """Parts: `output` (rows, directions, width), `h` and `c` as in `initial`."""
        self._final: tuple[torch.Tensor, ...] = ()
        self._calls = self._kept_steps = self._most_steps = 0

        self.cuts = 0
        """Calls that took the state of the one before detached."""
        self._returns_graph = False

    linked = True

    @property
    def links(self) -> int:
        """Steps that took the state of the one before: inside a call all but the first do."""
        return max(0, self.length - 1)

    def continues_in(self, call: LayerCall) -> bool:
        """Whether the call starts with the state that this sequence ended with."""
        given = call.states_before
        return bool(given) and all(same_rows(a, b, dim=1) for a, b in zip(self._final, given, strict=True))

    def add(self, call: LayerCall) -> list[Any]:
        """Take a call in; returns the handles of the hooks put on its output."""
        inputs = call.inputs
        if not self._calls:
            self.initial = call.states_before or tuple(torch.zeros_like(state) for state in call.states_after)
            self._most_steps = steps_to_keep(inputs[0].numel() + sum(state[0].numel() for state in self.initial))
        self.cuts += bool(self._calls and self._returns_graph and not call.takes_graph)
        self._final, self._returns_graph = call.states_after, call.returns_graph
        self.length += call.length
        room = self._most_steps - self._kept_steps
        if room > 0:
            self.inputs.append(inputs[:room].clone())
            self._kept_steps += min(room, len(inputs))
        self._calls += 1
        return call.watch_gradients(self.end, self._calls)


class LayerCall:
    """One call of the module, reduced to a few samples of a common length."""

    def __init__(self, module: nn.RNNBase, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = args[0] if args else kwargs["input"]
        hx = args[1] if len(args) > 1 else kwargs.get("hx")
        self._module, (self._output, last) = module, result
        self._packed = isinstance(given, PackedSequence)
        self._last: tuple[torch.Tensor, ...] = last if isinstance(last, tuple) else (last,)
        self._unbatched = self._last[0].dim() == 2
        before = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if isinstance(given, PackedSequence):
            self.inputs = self._take_packed(given)
        else:
            self.inputs = self._take_padded(given)
        self.takes_graph = any(state.requires_grad for state in before)
        self.returns_graph = any(state.requires_grad for state in self._last)
        self.states_before = tuple(self._state(state) for state in before)
        self.states_after = tuple(self._state(state) for state in self._last)

    def _take_padded(self, given: torch.Tensor) -> torch.Tensor:
        time_first = self._time_first(given)
        self.length, batch, features = time_first.shape
        self._rows = rows_to_keep(batch, features + self._last[0].shape[-1])
        return kept(time_first, self._rows, dim=1)

    def _take_packed(self, given: PackedSequence) -> torch.Tensor:
        """The longest samples, cut to the shortest of them: sorted by length, they come first at every step."""
        sizes = given.batch_sizes
        self.length = len(sizes)
        count = len(rows_to_keep(int(sizes[0]), given.data.shape[-1] + self._last[0].shape[-1]))
        starts = torch.cumsum(sizes, 0) - sizes
        common = int((sizes >= count).sum())
        self._first = starts[:1] + torch.arange(count)
        ends = torch.tensor([int((sizes > row).sum()) - 1 for row in range(count)])
        self._ends = starts[ends] + torch.arange(count)
        order = given.sorted_indices
        self._rows = list(range(count)) if order is None else order[:count].tolist()
        index = (starts[:common, None] + torch.arange(count)).to(given.data.device)
        return given.data.detach()[index]  # (steps, rows, features)

    def _time_first(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._unbatched:
            return tensor.unsqueeze(1)
        return tensor.transpose(0, 1) if self._module.batch_first else tensor

    def _state(self, state: torch.Tensor) -> torch.Tensor:
        return kept(state.unsqueeze(1) if self._unbatched else state, self._rows, dim=1)

    def watch_gradients(self, end: EndGradient, call: int) -> list[Any]:
        """Hooks on the output and on the last states."""
        output = self._output.data if self._packed else self._output
        last, self._output, self._last = self._last, None, ()  # the hooks hold on to this call, not to its graph
        handles = [end.watch(output, call, "output", self._packed_end if self._packed else self._padded_end)]
        for part, state in zip("hc", last, strict=False):
            handles.append(end.watch(state, call, part, self._state))
        return [handle for handle in handles if handle is not None]

    def _padded_end(self, gradient: torch.Tensor) -> torch.Tensor:
        """Of each direction the gradient at the last step that has one; a reverse direction ends at step 0."""
        rows = kept(self._time_first(gradient), self._rows, dim=1)  # (steps, rows, directions * width)
        ends = []
        for direction, part in enumerate(rows.chunk(2 if self._module.bidirectional else 1, dim=-1)):
            steps = (part != 0).flatten(1).any(dim=1).nonzero()
            ends.append(part[0 if len(steps) == 0 else int(steps[0 if direction else -1])])
        return torch.stack(ends, dim=1)

    def _packed_end(self, gradient: torch.Tensor) -> torch.Tensor:
        parts = gradient.chunk(2 if self._module.bidirectional else 1, dim=-1)
        at = [self._ends, self._first][: len(parts)]
        return torch.stack([part[index.to(part.device)] for part, index in zip(parts, at, strict=True)], dim=1)
