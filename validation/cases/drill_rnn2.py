# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrences written by hand: minimal gates, state spaces, both directions, over maps; sick and healthy.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import BURSTS, FORGETS, thrives
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, SHORT
from validation.setups import live
from validation.tasks import flags, tallies, tides

zoo = Zoo("rnn", half="drill", analyzer="recurrent", proof=thrives())


class Reader(nn.Module):
    """States of any recurrence, and an answer from the last, or at each."""

    def __init__(self, core: nn.Module, size: int, out: int, each: bool = False) -> None:
        super().__init__()
        self.core, self.head, self.each = core, nn.Linear(size, out), each

    def forward(self, x: Tensor) -> Tensor:
        states = self.core(x)
        states = states[0] if isinstance(states, tuple) else states
        return self.head(states if self.each else states[:, -1])


def first_flag(seed: int, core: nn.Module, size: int = 28, length: int = 20, **more) -> Setup:
    task = flags(seed, length)
    return live(Reader(core, size, 4), task, hints={"required_lag": length - 1}, **{"lr": 1e-2, "steps": 60, **more})


def first_sum(seed: int, core: nn.Module, size: int = 28, length: int = 20, **more) -> Setup:
    task = tallies(seed, length)
    return live(Reader(core, size, 2), task, hints={"required_lag": length - 3}, **{"lr": 1e-2, "steps": 60, **more})


def next_gauge(seed: int, core: nn.Module, size: int = 24, **more) -> Setup:
    return live(Reader(core, size, 3, each=True), tides(seed, 20), **{"lr": 1e-2, "steps": 60, **more})


class Minimal(nn.Module):
    """One gate, of the input alone, between the state and what is new."""

    def __init__(self, dim: int, size: int, bias: float) -> None:
        super().__init__()
        self.gate, self.new, self.size = nn.Linear(dim, size), nn.Linear(dim, size), size
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        z, new = torch.sigmoid(self.gate(x)), torch.tanh(self.new(x))
        h, states = x.new_zeros(len(x), self.size), []
        for t in range(x.shape[1]):
            h = (1 - z[:, t]) * h + z[:, t] * new[:, t]
            states.append(h)
        return torch.stack(states, 1)


slow_gate = zoo.healthy("flags-one-gate-that-opens-rarely", lambda s: first_flag(s, Minimal(7, 28, -3.0), lr=2e-2))
zoo.sick(
    "flags-one-gate-that-is-always-open",
    lambda s: first_flag(s, Minimal(7, 28, 6.0), lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("core.gate", "core.new"),
    also={"SATURATION"},
    control=slow_gate,
)


class Space(nn.Module):
    """A diagonal state space: decays through an exponential of a step that is learned."""

    def __init__(self, dim: int, size: int, step: float) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.log(torch.linspace(0.5, 4.0, size)))
        self.log_step = nn.Parameter(torch.full((size,), step).log())
        self.b, self.c, self.size = nn.Linear(dim, size, bias=False), nn.Linear(size, size), size

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.exp(-self.log_a.exp() * self.log_step.exp())
        u, h, states = (1 - keep) * self.b(x), x.new_zeros(len(x), self.size), []
        for t in range(x.shape[1]):
            h = keep * h + u[:, t]
            states.append(h)
        return F.silu(self.c(torch.stack(states, 1)))


small_steps = zoo.healthy("sums-state-space-steps-of-a-fiftieth", lambda s: first_sum(s, Space(3, 28, 0.02)))
zoo.sick(
    "sums-state-space-steps-of-three",
    lambda s: first_sum(s, Space(3, 28, 3.0), lr=1e-3),
    FORGETS,
    *SHORT,
    layer=("core.b", "core.c", "core"),
    control=small_steps,
)


class Hand(nn.Module):
    """An LSTM of one matrix; `forget` is the bias of the gate that keeps, `size` the width."""

    def __init__(self, dim: int, size: int, forget: float, gain: float = 1.0) -> None:
        super().__init__()
        self.all, self.size = nn.Linear(dim + size, 4 * size), size
        with torch.no_grad():
            self.all.bias[size : 2 * size] = forget
            self.all.weight[:, dim:] *= gain

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.size)
        states = []
        for now in x.unbind(1):
            i, f, g, o = self.all(torch.cat([now, h], -1)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)


keeping = zoo.healthy("flags-lstm-of-one-matrix-bias-3", lambda s: first_flag(s, Hand(7, 28, 3.0)))
zoo.sick(
    "flags-lstm-of-one-matrix-bias-minus-6",
    lambda s: first_flag(s, Hand(7, 28, -6.0), lr=2e-3),
    FORGETS,
    *SHORT,
    layer="core.all",
    also={"SATURATION"},
    control=keeping,
)


class Elman(nn.Module):
    """A plain recurrence by hand; `draw` is the size of its singular values."""

    def __init__(self, dim: int, size: int, draw: float, bend=torch.tanh) -> None:
        super().__init__()
        self.into, self.back, self.bend, self.size = nn.Linear(dim, size), nn.Linear(size, size, bias=False), bend, size
        nn.init.orthogonal_(self.back.weight, draw)

    def forward(self, x: Tensor) -> Tensor:
        h, states = x.new_zeros(len(x), self.size), []
        for now in self.into(x).unbind(1):
            h = self.bend(now + self.back(h))
            states.append(h)
        return torch.stack(states, 1)


linear = zoo.healthy(
    "sums-linear-recurrence-of-radius-1", lambda s: first_sum(s, Elman(3, 28, 1.0, nn.Identity()), lr=3e-3)
)
zoo.sick(
    "sums-linear-recurrence-of-radius-2.4",
    lambda s: first_sum(s, Elman(3, 28, 2.4, nn.Identity()), lr=1e-4),
    BURSTS,
    *CHAOTIC,
    layer=("core.back", "core.into"),
    also={*GROWS, "first_loss_high", "LOW_RANK"},
    control=linear,
)


class Pieces(nn.Module):
    """Reads a GRU in pieces of four; `cut` hands the state on without its past."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.gru, self.cut = nn.GRU(7, 28, batch_first=True), cut
        self.gru.bias_ih_l0.data[28:56] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        state, states = None, []
        for piece in x.split(4, dim=1):
            made, state = self.gru(piece, state)
            state = state.detach() if self.cut else state
            states.append(made)
        return torch.cat(states, 1)


whole = zoo.healthy("flags-in-pieces-of-four", lambda s: first_flag(s, Pieces(False)))
zoo.sick(
    "flags-in-pieces-of-four-without-their-past",
    lambda s: first_flag(s, Pieces(True), lr=5e-3),
    FORGETS,
    *CUT_SHORT,
    layer="core.gru",
    control=whole,
)


class Maps(nn.Module):
    """A recurrence over short maps: convolutions take the place of matrices."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.enter, self.gates = nn.Conv1d(1, width, 3, padding=1), nn.Conv1d(2 * width, 3 * width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.enter(now[:, None]) for now in x.unbind(1)]
        h, states = torch.zeros_like(maps[0]), []
        for now in maps:
            z, r, n = self.gates(torch.cat([now, h], 1)).chunk(3, 1)
            h = torch.lerp(h, torch.tanh(r.sigmoid() * n), z.sigmoid())
            states.append(h.flatten(1))
        return torch.stack(states, 1)


class Ways(nn.Module):
    """Both directions, and what they say at each step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 12, 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Skipping(nn.Module):
    """Adds what is new to the state, behind a norm."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(dim, size), nn.Linear(size, size)
        self.norm, self.size = nn.LayerNorm(size), size

    def forward(self, x: Tensor) -> Tensor:
        h, states = x.new_zeros(len(x), self.size), []
        for now in x.unbind(1):
            h = h + 0.2 * torch.tanh(self.into(now) + self.back(self.norm(h)))
            states.append(h)
        return torch.stack(states, 1)


class Echo(nn.Module):
    """A reservoir that is never trained, and a readout that is."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.rnn, self.read = nn.RNN(dim, 60, batch_first=True).requires_grad_(False), nn.Linear(60, size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.read(self.rnn(x)[0]))


zoo.healthy("tides-gates-over-maps", lambda s: next_gauge(s, Maps(8)))
zoo.healthy("tides-both-ways-lstm", lambda s: next_gauge(s, Ways("LSTM")))
zoo.healthy("tides-both-ways-gru", lambda s: next_gauge(s, Ways("GRU")))
zoo.healthy("sums-added-behind-a-norm", lambda s: first_sum(s, Skipping(3, 28)))
zoo.healthy("tides-reservoir-and-readout", lambda s: next_gauge(s, Echo(3, 24)))
zoo.healthy("tides-one-gate-half-open", lambda s: next_gauge(s, Minimal(3, 24, 0.0)))
zoo.healthy("tides-state-space-steps-of-a-half", lambda s: next_gauge(s, Space(3, 24, 0.5)))
zoo.healthy("tides-in-a-lstm-of-one-matrix", lambda s: next_gauge(s, Hand(3, 24, 1.0)))
zoo.healthy("tides-relu-of-radius-0.9", lambda s: next_gauge(s, Elman(3, 24, 0.9, torch.relu), lr=3e-3))
