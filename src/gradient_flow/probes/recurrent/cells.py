"""The steps of torch's recurrent cells, written out, with their Jacobians in closed form.

A state is one row of numbers: h for RNN and GRU, (h, c) side by side for the LSTM. The Jacobian of a step is never a
matrix here but two products, J v and Jᵀ u, each of which costs one product with the recurrent weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

Kind = Literal["tanh", "relu", "gru", "lstm"]


class Transitions(Protocol):
    """The Jacobians J of every step of a few sequences: `apply` gives J v, `pull` gives Jᵀ u.

    `times` and `rows` say for each row of `v` (points, size) at which step of which sequence it is multiplied.
    """

    steps: int
    rows: int
    size: int
    device: torch.device
    dtype: torch.dtype

    def apply(self, times: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """J v, row by row."""

    def pull(self, times: torch.Tensor, rows: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Jᵀ u, row by row."""


@dataclass(frozen=True)
class TorchCell:
    """One layer in one direction: `nn.RNNCell`, `GRUCell`, `LSTMCell`, or the inside of `nn.RNN`, `GRU`, `LSTM`."""

    kind: Kind
    weight_ih: torch.Tensor
    weight_hh: torch.Tensor
    """(gates * hidden, width of h)."""
    bias_ih: torch.Tensor | None = None
    bias_hh: torch.Tensor | None = None
    weight_hr: torch.Tensor | None = None
    """The LSTM's projection of h, where it has one."""

    @property
    def hidden(self) -> int:
        """Units: the width of c, and of h where that is not projected."""
        return self.weight_hh.shape[0] // {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4}[self.kind]

    @property
    def width(self) -> int:
        """The width of h."""
        return self.weight_hh.shape[1]

    @property
    def size(self) -> int:
        """Numbers in a state."""
        return self.width + (self.hidden if self.kind == "lstm" else 0)

    def roll(self, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """All states (steps + 1, rows, size) from the first (rows, size) on, for inputs (steps, rows, features)."""
        states = [state]
        for drive in self._drive(inputs):
            states.append(self._step(drive, states[-1]).state)
        return torch.stack(states)

    def transitions(self, inputs: torch.Tensor, states: torch.Tensor) -> Transitions:
        """The Jacobians of the steps that start at `states` (steps, rows, size)."""
        step = self._step(self._drive(inputs), states)
        if self.kind == "lstm":
            return LSTMTransitions(self.weight_hh, self.weight_hr, step)
        return GatedTransitions(self.weight_hh, step)

    def slopes(self, inputs: torch.Tensor, states: torch.Tensor) -> torch.Tensor | None:
        """Slopes of all bounded gates at `states` (steps, rows, size), as shares of the largest; None for a ReLU."""
        if self.kind == "relu":
            return None
        drive = self._drive(inputs)
        recurrent = torch.nn.functional.linear(states[..., : self.width], self.weight_hh, self.bias_hh)
        # Of a GRU's candidate this is what it is with an open reset gate.
        gates = (drive + recurrent).reshape(*drive.shape[:-1], -1, self.hidden)
        candidate = {"tanh": 0, "gru": 2, "lstm": 2}[self.kind]
        slopes = 4 * torch.sigmoid(gates) * torch.sigmoid(-gates)
        slopes[..., candidate, :] = 1 - torch.tanh(gates[..., candidate, :]).square()
        return slopes

    def _drive(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the input adds to each gate, for all steps in one product: (steps, rows, gates * hidden)."""
        return torch.nn.functional.linear(inputs, self.weight_ih, self.bias_ih)

    def _step(self, drive: torch.Tensor, state: torch.Tensor) -> Step:
        h = state[..., : self.width]
        recurrent = torch.nn.functional.linear(h, self.weight_hh, self.bias_hh)
        if self.kind == "gru":
            return _gru_step(drive, recurrent, h)
        if self.kind == "lstm":
            return _lstm_step(drive + recurrent, state[..., self.width :], self.weight_hr)
        z = drive + recurrent
        after = torch.tanh(z) if self.kind == "tanh" else torch.relu(z)
        slope = 1 - after.square() if self.kind == "tanh" else (z > 0).to(z.dtype)
        return Step(after, slope.unsqueeze(-2))


@dataclass(frozen=True)
class Step:
    """The next state, and the factors of its derivative: (..., hidden), but `gates` (..., gates, hidden)."""

    state: torch.Tensor
    gates: torch.Tensor
    """How a change of each gate's recurrent share changes the memory: h of RNN and GRU, c of the LSTM."""
    keep: torch.Tensor | None = None
    """How the memory itself is carried over: the GRU's update gate, the LSTM's forget gate."""
    output: torch.Tensor | None = None
    """LSTM: how a change of c changes h."""
    output_gate: torch.Tensor | None = None
    """LSTM: how a change of the output gate's recurrent share changes h."""


def _gru_step(drive: torch.Tensor, recurrent: torch.Tensor, h: torch.Tensor) -> Step:
    drive_r, drive_z, drive_n = drive.chunk(3, dim=-1)
    recurrent_r, recurrent_z, recurrent_n = recurrent.chunk(3, dim=-1)
    r, z = torch.sigmoid(drive_r + recurrent_r), torch.sigmoid(drive_z + recurrent_z)
    n = torch.tanh(drive_n + r * recurrent_n)
    through_n = (1 - z) * (1 - n.square())
    gates = torch.stack([through_n * recurrent_n * r * (1 - r), (h - n) * z * (1 - z), through_n * r], dim=-2)
    return Step((1 - z) * n + z * h, gates, keep=z)


def _lstm_step(gates: torch.Tensor, c: torch.Tensor, weight_hr: torch.Tensor | None) -> Step:
    i, f, g, o = gates.chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    after = f * c + i * g
    squashed = torch.tanh(after)
    h = o * squashed if weight_hr is None else (o * squashed) @ weight_hr.T
    return Step(
        torch.cat([h, after], dim=-1),
        torch.stack([g * i * (1 - i), c * f * (1 - f), i * (1 - g.square())], dim=-2),
        keep=f,
        output=o * (1 - squashed.square()),
        output_gate=squashed * o * (1 - o),
    )


class GatedTransitions:
    """RNN and GRU: J = diag(keep) + Σ diag(gate) W_gate."""

    def __init__(self, weight: torch.Tensor, step: Step) -> None:
        self._weight, self._gates, self._keep = weight, step.gates, step.keep
        self.steps, self.rows, _, self.size = step.gates.shape
        self.device, self.dtype = weight.device, weight.dtype

    def apply(self, times: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """J v, row by row."""
        gates = self._gates[times, rows]  # (points, gates, hidden)
        after = (gates * (v @ self._weight.T).reshape(gates.shape)).sum(dim=-2)
        return after if self._keep is None else after + self._keep[times, rows] * v

    def pull(self, times: torch.Tensor, rows: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Jᵀ u, row by row."""
        before = (self._gates[times, rows] * u.unsqueeze(-2)).flatten(-2) @ self._weight
        return before if self._keep is None else before + self._keep[times, rows] * u


class LSTMTransitions:
    """dc' = f dc + Σ gate W_gate dh over i, f, g; dh' = R (output dc' + output_gate W_o dh), R the projection."""

    def __init__(self, weight: torch.Tensor, weight_hr: torch.Tensor | None, step: Step) -> None:
        self._weight, self._projection, self._step = weight, weight_hr, step
        self._width = weight.shape[1]
        self.steps, self.rows, self.size = step.state.shape
        self.device, self.dtype = weight.device, weight.dtype

    def apply(self, times: torch.Tensor, rows: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """J v, row by row."""
        gates, keep, output, output_gate = self._factors(times, rows)
        dh, dc = v[:, : self._width], v[:, self._width :]
        shares = (dh @ self._weight.T).reshape(len(v), 4, -1)
        after_c = keep * dc + (gates * shares[:, :3]).sum(dim=-2)
        after_h = output * after_c + output_gate * shares[:, 3]
        return torch.cat([after_h if self._projection is None else after_h @ self._projection.T, after_c], dim=-1)

    def pull(self, times: torch.Tensor, rows: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """Jᵀ u, row by row."""
        gates, keep, output, output_gate = self._factors(times, rows)
        to_h, to_c = u[:, : self._width], u[:, self._width :]
        to_h = to_h if self._projection is None else to_h @ self._projection
        to_c = to_c + output * to_h
        shares = torch.cat([gates * to_c.unsqueeze(-2), (output_gate * to_h).unsqueeze(-2)], dim=-2)
        return torch.cat([shares.flatten(-2) @ self._weight, keep * to_c], dim=-1)

    def _factors(
        self, times: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        step = self._step
        assert step.keep is not None
        assert step.output is not None
        assert step.output_gate is not None
        at = times, rows
        return step.gates[at], step.keep[at], step.output[at], step.output_gate[at]
