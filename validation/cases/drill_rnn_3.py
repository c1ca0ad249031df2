# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrences in other clothes: stacked, both ways, with memories, spaces, chunks and cells of their own.

Half: drill.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._drill_tasks import drawers, marks, queues, waves
from validation.cases.drill_rnn2 import Reader
from validation.evidence import BURSTS, FORGETS, lags, thrives
from validation.labels import CHAOTIC, GROWS, SHORT
from validation.setups import live

zoo = Zoo("rnn", half="drill", analyzer="recurrent", proof=thrives())


def marked(seed: int, core: nn.Module, size: int = 24, length: int = 16, **more) -> Setup:
    return live(
        Reader(core, size, 4),
        marks(seed, length),
        hints={"required_lag": length - 1},
        **{"lr": 1e-2, "steps": 70, **more},
    )


def rocked(seed: int, core: nn.Module, size: int = 24, length: int = 24, **more) -> Setup:
    return live(Reader(core, size, 2, True), waves(seed, length), **{"lr": 1e-2, "steps": 60, **more})


# --- torch's own, put together otherwise

zoo.healthy("marks-two-lstms-on-each-other", lambda s: marked(s, nn.LSTM(6, 24, 2, batch_first=True)))


class Ends(nn.Module):
    """Both directions, the last state of each."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(6, 16, batch_first=True, bidirectional=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[1].transpose(0, 1).flatten(1))


zoo.healthy("marks-gru-both-ways", lambda s: live(Ends(), marks(s, 12), lr=1e-2, steps=60))


# --- cells of their own


class Turning(nn.Module):
    """The state turns by an orthogonal matrix and is rectified softly."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.into = nn.Linear(dim, size)
        self.back = nn.utils.parametrizations.orthogonal(nn.Linear(size, size, bias=False))
        self.bias, self.size = nn.Parameter(torch.zeros(size)), size

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), self.size), []
        for t in range(x.shape[1]):
            z = self.into(x[:, t]) + self.back(h)
            h = torch.sign(z) * F.relu(z.abs() + self.bias)
            out.append(h)
        return torch.stack(out, 1)


class Space(nn.Module):
    """A diagonal space of states with complex turns, all steps at once."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.log(torch.linspace(0.005, 0.3, size)))
        self.angle = nn.Parameter(torch.rand(size) * math.pi / 4)
        self.into, self.skip = nn.Linear(dim, size), nn.Linear(dim, size)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1])
        kernel = (-self.decay.exp() * steps[:, None]).exp() * torch.cos(self.angle * steps[:, None])  # (time, size)
        u = self.into(x)
        lag = steps[:, None] - steps[None, :]
        mixed = torch.einsum("tsd,bsd->btd", kernel[lag.clamp_min(0)] * (lag >= 0)[..., None], u)
        return F.gelu(mixed) + self.skip(x)


class Fast(nn.Module):
    """Fast weights: what is seen is written into a matrix and read again."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.key, self.value, self.ask = nn.Linear(dim, size), nn.Linear(dim, size), nn.Linear(dim, size)
        self.rate = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        k, v, q = F.normalize(self.key(x), dim=-1), self.value(x), F.normalize(self.ask(x), dim=-1)
        rate, memory, out = torch.sigmoid(self.rate(x)), 0.0, []
        for t in range(x.shape[1]):
            old = 0.0 if t == 0 else (memory @ k[:, t, :, None]).squeeze(2)
            memory = memory + (rate[:, t] * (v[:, t] - old))[:, :, None] * k[:, t, None, :]
            out.append((memory @ q[:, t, :, None]).squeeze(2))
        return torch.stack(out, 1)


class Gate(nn.Module):
    """A minimal gated unit of the state, written with cells; `bias` opens its gate."""

    def __init__(self, dim: int, size: int, bias: float = -2.0, gain: float = 1.0, radius: float | None = None) -> None:
        super().__init__()
        self.gate, self.new, self.size = nn.Linear(dim + size, size), nn.Linear(dim + size, size), size
        nn.init.constant_(self.gate.bias, bias)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), self.size), []
        for t in range(x.shape[1]):
            z = torch.sigmoid(self.gate(torch.cat([x[:, t], h], 1)))
            h = (1 - z) * h + z * torch.tanh(self.new(torch.cat([x[:, t], h], 1)))
            out.append(h)
        return torch.stack(out, 1)


turns = zoo.healthy("marks-turned-by-an-orthogonal-matrix", lambda s: marked(s, Turning(6, 24), lr=5e-3))
spaced = zoo.healthy("marks-a-space-of-states", lambda s: marked(s, Space(6, 24)))
zoo.healthy("waves-fast-weights", lambda s: rocked(s, Fast(2, 16), 16, lr=5e-3))
rare = zoo.healthy("marks-minimal-gates", lambda s: marked(s, Gate(6, 24, -3.0), lr=2e-2))


# --- from sequence to sequence


class Pointers(nn.Module):
    """Reads numbers, then points at them one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.say = nn.GRU(1, 32, batch_first=True), nn.GRUCell(32, 32)
        self.a, self.b, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        known, last = self.read(x)
        h, seen, out = last[0], known.mean(dim=1), []
        for _ in range(x.shape[1]):
            h = self.say(seen, h)
            scores = self.v(torch.tanh(self.a(known) + self.b(h)[:, None])).squeeze(2)
            seen = (scores.softmax(1)[:, :, None] * known).sum(dim=1)
            out.append(scores)
        return torch.stack(out, 1)


zoo.healthy("queues-pointed-at", lambda s: live(Pointers(), queues(s), lr=1e-2, steps=90))


class Hops(nn.Module):
    """A state that asks a list of drawers twice."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value, self.ask = nn.Linear(17, 24), nn.Linear(17, 24), nn.Linear(12, 24)
        self.cell, self.out = nn.GRUCell(24, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        h = self.ask(asked)
        for _ in range(2):
            seen = ((self.key(x) @ h[:, :, None]).squeeze(2) / 24**0.5).softmax(1)
            h = self.cell((seen[:, :, None] * self.value(x)).sum(dim=1), h)
        return self.out(h)


zoo.healthy("drawers-asked-twice", lambda s: live(Hops(), drawers(s), lr=1e-2, steps=90))


# --- sick: forget


zoo.sick(
    "marks-minimal-gates-wide-open",
    lambda s: marked(s, Gate(6, 24, 8.0), length=20, lr=5e-4),
    FORGETS,
    *SHORT,
    layer=("core.gate", "core.new"),
    also={"SATURATION"},
    control=rare,
)


class Fading(Space):
    """The same with steps of time that are given in other units: all fades within a step."""

    def __init__(self, dim: int, size: int, unit: float) -> None:
        super().__init__(dim, size)
        with torch.no_grad():
            self.decay.add_(math.log(unit))


zoo.sick(
    "marks-a-space-whose-time-is-in-milliseconds",
    lambda s: marked(s, Fading(6, 24, 1000.0), lr=1e-3),
    lags(0.1),
    *SHORT,
    layer=("core", "core.into"),
    also={"DEAD"},
    control=spaced,
)


class Parts(nn.Module):
    """A GRU over parts of `part` steps; `keep` hands its state from part to part."""

    def __init__(self, part: int, keep: bool) -> None:
        super().__init__()
        self.rnn, self.part, self.keep = nn.GRU(6, 24, batch_first=True), part, keep
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for piece in x.split(self.part, dim=1):
            out, new = self.rnn(piece, state)
            state = new if self.keep else None
        return self.head(out[:, -1])


def in_parts(seed: int, keep: bool) -> Setup:
    return live(Parts(3, keep), marks(seed, 9), lr=1e-2, steps=70, hints={"required_lag": 8})


kept = zoo.healthy("marks-state-handed-from-part-to-part", lambda s: in_parts(s, True))
zoo.sick(
    "marks-state-lost-between-parts",
    lambda s: in_parts(s, False),
    lags(0.1),
    *SHORT,
    layer="rnn",
    also={"DISCONNECTED", "loss_stuck"},
    control=kept,
)


def shrunk(core: nn.GRU, factor: float) -> nn.GRU:
    with torch.no_grad():
        core.weight_hh_l0.mul_(factor)
        core.bias_ih_l0[core.hidden_size : 2 * core.hidden_size] = -8.0
    return core


gru = zoo.healthy("marks-one-gru", lambda s: marked(s, nn.GRU(6, 24, batch_first=True), length=8))
zoo.sick(
    "marks-gru-that-always-takes-the-new",
    lambda s: marked(s, shrunk(nn.GRU(6, 24, batch_first=True), 0.05), length=8, lr=1e-3),
    FORGETS,
    *SHORT,
    layer="core",
    also={"SATURATION"},
    control=gru,
)

# --- sick: burst


class Rough(nn.Module):
    """An Elman cell of one's own; `radius` is the size of its turns, `act` what bounds it."""

    def __init__(self, dim: int, size: int, radius: float, act=torch.tanh) -> None:
        super().__init__()
        self.into, self.back, self.size, self.act = nn.Linear(dim, size), nn.Linear(size, size, bias=False), size, act
        with torch.no_grad():
            self.into.weight.mul_(0.1)
            nn.init.orthogonal_(self.back.weight)
            self.back.weight.mul_(radius)

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), self.size), []
        for t in range(x.shape[1]):
            h = self.act(self.into(x[:, t]) + self.back(h))
            out.append(h)
        return torch.stack(out, 1)


even = zoo.healthy("waves-own-elman-orthogonal", lambda s: rocked(s, Rough(2, 24, 0.95)))
zoo.sick(
    "waves-own-elman-leaky-turns-of-1.7",
    lambda s: rocked(s, Rough(2, 24, 1.7, lambda z: F.leaky_relu(z, 0.9)), lr=1e-5),
    BURSTS,
    *CHAOTIC,
    layer=("core.back", "core.into"),
    also=GROWS,
    control=even,
)
zoo.sick(
    "waves-own-elman-hard-bounds-turns-of-2.2",
    lambda s: rocked(s, Rough(2, 24, 2.2, lambda z: F.softsign(z) * 3), lr=1e-5, length=40),
    BURSTS,
    *CHAOTIC,
    layer=("core.back", "core.into"),
    also=GROWS,
    control=even,
)


class Swollen(Turning):
    """The same with a matrix that is orthogonal but for its size."""

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), self.size), []
        for t in range(x.shape[1]):
            z = self.into(x[:, t]) + 1.6 * self.back(h)
            h = torch.sign(z) * F.relu(z.abs() + self.bias)
            out.append(h)
        return torch.stack(out, 1)


zoo.sick(
    "marks-turned-and-swollen",
    lambda s: marked(s, Swollen(6, 24), lr=1e-5, length=24),
    BURSTS,
    *CHAOTIC,
    layer=("core", "core.into"),
    also=GROWS,
    control=turns,
)
