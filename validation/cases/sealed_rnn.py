# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of passwords, doses, swells and gaits, with one fault each, and their twins.

Half: sealed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import doses, gaits, passwords, swells
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.recurrent import BURSTS, FORGETS, apart, states_flat
from validation.evidence.signal import both, dead, equal_units, gradient_ratio, no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, SHORT
from validation.nets import Cell
from validation.setups import live
from validation.tasks import every

zoo = Zoo("rnn", half="sealed", analyzer="recurrent", proof=thrives())


class Reader(nn.Module):
    """Any recurrent layer; the last state, or each, is read."""

    def __init__(self, rnn: nn.Module, out: int, every_step: bool = False) -> None:
        super().__init__()
        self.rnn, self.read, self.every_step = rnn, nn.Linear(rnn.hidden_size, out), every_step

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        return self.read(states if self.every_step else states[:, -1])


def word(seed: int, rnn: nn.Module, length: int = 20, **more) -> Setup:
    """Which word was said first, asked at the end."""
    hints = {"required_lag": length - 1}
    return live(Reader(rnn, 5), passwords(seed, length), hints=hints, **{"lr": 1e-2, "steps": 50, **more})


def dosed(seed: int, rnn: nn.Module, length: int = 20, **more) -> Setup:
    """How much was given first, asked at the end."""
    hints = {"required_lag": length - 1}
    return live(Reader(rnn, 2), doses(seed, length), hints=hints, **{"lr": 1e-2, "steps": 50, **more})


def ahead(seed: int, rnn: nn.Module, dim: int = 2, **more) -> Setup:
    """The next value of a wave, at every step."""
    return live(Reader(rnn, dim, True), swells(seed, dim=dim), **{"lr": 1e-2, "steps": 60, **more})


# --- memory that is too short


class Peephole(nn.Module):
    """An LSTM by hand; the bias for the forget gate is given to the slice of the `at`-th gate."""

    def __init__(self, dim: int, width: int, at: int, value: float) -> None:
        super().__init__()
        self.hidden_size, self.gates = width, nn.Linear(dim + width, 4 * width)
        nn.init.constant_(self.gates.bias[width : 2 * width], -3.0 if at != 1 else 0.0)
        nn.init.constant_(self.gates.bias[at * width : (at + 1) * width], value)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = c = x.new_zeros(len(x), self.hidden_size)
        states = []
        for now in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([now, h], dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, dim=1), h


lstm = zoo.healthy("passwords-own-lstm-bias-on-the-forget-gate", lambda s: word(s, Peephole(6, 24, 1, 3.5)))
zoo.sick(
    "passwords-own-lstm-bias-on-the-input-gate",
    lambda s: word(s, Peephole(6, 24, 0, 3.5), lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.gates",),
    control=lstm,
)


class Diagonal(nn.Module):
    """A state-space layer: each channel fades by exp(-step · pace); `sign` may be lost."""

    def __init__(self, dim: int, width: int, step: float, sign: float = -1.0) -> None:
        super().__init__()
        self.hidden_size, self.step, self.sign = width, step, sign
        self.pace = nn.Parameter(torch.linspace(-1.0, 1.0, width))
        self.into, self.skip, self.mix = nn.Linear(dim, width), nn.Linear(dim, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keep, state, states = (self.sign * self.step * self.pace.exp()).exp(), x.new_zeros(len(x), self.hidden_size), []
        for now in self.into(x).unbind(1):
            state = keep * state + now
            states.append(state)
        return F.silu(self.mix(torch.stack(states, dim=1)) + self.skip(x)), state


ssm = zoo.healthy("doses-state-space-steps-of-0.02", lambda s: dosed(s, Diagonal(3, 24, 0.02)))
zoo.sick(
    "doses-state-space-steps-of-2",
    lambda s: dosed(s, Diagonal(3, 24, 2.0), lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.into", "rnn.mix", "rnn.skip"),
    control=ssm,
)


class Chunked(nn.Module):
    """A GRU over parts of a long sequence; `carry` hands the state from part to part."""

    def __init__(self, carry: bool) -> None:
        super().__init__()
        self.hidden_size, self.carry, self.gru = 24, carry, nn.GRU(6, 24, batch_first=True)
        self.gru.bias_ih_l0.data[24:48] = 3.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, parts = None, []
        for part in x.split(5, dim=1):
            states, h = self.gru(part, h if self.carry else None)
            parts.append(states)
        return torch.cat(parts, dim=1), h


carried = zoo.healthy("passwords-state-carried-from-part-to-part", lambda s: word(s, Chunked(True), 15))
zoo.sick(
    "passwords-state-begins-anew-in-each-part",
    lambda s: word(s, Chunked(False), 15),
    FORGETS,
    *CUT_SHORT,
    layer="rnn.gru",
    control=carried,
)


class Elman(nn.Module):
    """A plain recurrence whose matrix begins as a multiple of the identity."""

    def __init__(self, dim: int, width: int, start: float, act=torch.relu) -> None:
        super().__init__()
        self.hidden_size, self.act = width, act
        self.ih, self.hh = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.hh.weight.copy_(start * torch.eye(width) + 0.01 * torch.randn(width, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, states = x.new_zeros(len(x), self.hidden_size), []
        for now in self.ih(x).unbind(1):
            h = self.act(now + self.hh(h))
            states.append(h)
        return torch.stack(states, dim=1), h


identity = zoo.healthy("passwords-relu-from-the-identity", lambda s: word(s, Elman(6, 32, 1.0), 14, lr=3e-3, clip=1.0))
zoo.sick(
    "passwords-relu-from-a-fifth-of-the-identity",
    lambda s: word(s, Elman(6, 32, 0.2), 20, lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.ih", "rnn.hh"),
    control=identity,
)


class Fading(Cell):
    """A sum of features that fades: `lost` is the share that goes in each step."""

    def __init__(self, dim: int, width: int, lost: float) -> None:
        super().__init__()
        self.hidden_size, self.lost, self.feature = width, lost, nn.Linear(dim, width)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return (1 - self.lost) * state + torch.tanh(2 * self.feature(x))


fading = zoo.healthy("passwords-sum-that-fades-by-0.05", lambda s: word(s, Fading(6, 32, 0.05), 10))
zoo.sick(
    "passwords-sum-that-fades-by-0.95",
    lambda s: word(s, Fading(6, 32, 0.95), 10, lr=3e-3),
    FORGETS,
    *SHORT,
    layer="rnn.feature",
    control=fading,
)


class Rotor(nn.Module):
    """Pairs of numbers that turn at a learned angle, and shrink by a fixed radius."""

    def __init__(self, dim: int, pairs: int, radius: float) -> None:
        super().__init__()
        self.hidden_size, self.radius = 2 * pairs, radius
        self.angle, self.into = nn.Parameter(torch.linspace(0.05, 1.5, pairs)), nn.Linear(dim, 2 * pairs)
        self.mix = nn.Linear(2 * pairs, 2 * pairs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.radius * self.angle.cos(), self.radius * self.angle.sin()
        a = b = x.new_zeros(len(x), self.hidden_size // 2)
        states = []
        for now in self.into(x).unbind(1):
            left, right = now.chunk(2, dim=1)
            a, b = cos * a - sin * b + left, sin * a + cos * b + right
            states.append(torch.cat([a, b], dim=1))
        states = torch.stack(states, dim=1)
        return torch.tanh(self.mix(states)), states[:, -1]


rotor = zoo.healthy("passwords-rotors-of-radius-0.98", lambda s: word(s, Rotor(6, 14, 0.98), lr=5e-3))
zoo.sick(
    "passwords-rotors-of-radius-0.45",
    lambda s: word(s, Rotor(6, 14, 0.45), lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.into", "rnn.mix"),
    control=rotor,
)

# --- states that grow or never settle


def grown(seed: int, rnn: nn.Module, length: int = 20, **more) -> Setup:
    return dosed(seed, rnn, length, **{"lr": 1e-4, "steps": 40, "clip": 1.0, **more})


zoo.sick(
    "doses-state-space-that-lost-its-minus",
    lambda s: grown(s, Diagonal(3, 24, 0.25, sign=1.0)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.mix", "rnn.skip"),
    also=GROWS,
    control=ssm,
)
leaning = zoo.healthy(
    "doses-leaky-relu-from-the-identity", lambda s: dosed(s, Elman(3, 24, 0.97, F.leaky_relu), 12, lr=3e-3, clip=1.0)
)
zoo.sick(
    "doses-leaky-relu-from-1.7-times-the-identity",
    lambda s: grown(s, Elman(3, 24, 1.7, F.leaky_relu)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.ih", "rnn.hh"),
    also=GROWS,
    control=leaning,
)
zoo.sick(
    "doses-rotors-of-radius-1.6",
    lambda s: grown(s, Rotor(3, 14, 1.6)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.mix"),
    also=GROWS,
    control=rotor,
)


def reservoir(gain: float) -> nn.RNN:
    """A recurrence drawn by a bell; `gain` is over the root of its width. The input is weak."""
    rnn = nn.RNN(3, 40, batch_first=True)
    nn.init.normal_(rnn.weight_hh_l0, std=gain / 40**0.5)
    nn.init.normal_(rnn.weight_ih_l0, std=0.3)
    return rnn


settled = zoo.healthy("doses-elman-drawn-by-the-root", lambda s: dosed(s, reservoir(1.0), 10, lr=5e-3, clip=1.0))
zoo.sick(
    "doses-elman-drawn-by-4-times-the-root",
    lambda s: grown(s, reservoir(4.0), 40),
    lasting(apart),
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=settled,
)


class Inert(Cell):
    """A state with a velocity: `keep` of the velocity stays in each step."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size, self.half, self.keep = 2 * width, width, keep
        self.push, self.pull = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.pull.weight, std=0.02)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        place, speed = state.split(self.half, dim=1)
        speed = self.keep * speed + self.push(x) + self.pull(place)
        return torch.cat([place + 0.1 * speed, speed], dim=1)


inert = zoo.healthy("doses-velocity-kept-by-0.9", lambda s: dosed(s, Inert(3, 16, 0.9), 12))
zoo.sick(
    "doses-velocity-kept-by-1.7",
    lambda s: grown(s, Inert(3, 16, 1.7)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.push", "rnn.pull"),
    also=GROWS,
    control=inert,
)


class Additive(Cell):
    """Adds to its state what a matrix makes of it; `by` divides what is added."""

    def __init__(self, dim: int, width: int, by: float) -> None:
        super().__init__()
        self.hidden_size, self.by, self.into, self.field = width, by, nn.Linear(dim, width), nn.Linear(width, width)
        nn.init.orthogonal_(self.field.weight)
        nn.init.zeros_(self.field.bias)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + (self.into(x) + self.field(state)) / self.by


added = zoo.healthy("doses-a-thirtieth-is-added", lambda s: dosed(s, Additive(3, 24, 30.0)))
zoo.sick(
    "doses-all-of-it-is-added",
    lambda s: grown(s, Additive(3, 24, 1.0)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.field"),
    also=GROWS,
    control=added,
)

# --- narrow


class Projected(nn.Module):
    """An LSTM that hands on `size` numbers of its state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden_size, self.lstm, self.project = size, nn.LSTM(5, 32, batch_first=True), nn.Linear(32, size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, (h, _) = self.lstm(x)
        return self.project(states), h


wide = zoo.healthy("swells-projected-to-12", lambda s: ahead(s, Projected(12), 5))
zoo.sick(
    "swells-projected-to-1",
    lambda s: ahead(s, Projected(1), 5),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("rnn.project", "read"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=wide,
)


class Stacked(nn.Module):
    """Two GRUs with `size` numbers between them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.low, self.between = nn.GRU(4, 24, batch_first=True), nn.Linear(24, size)
        self.high, self.head = nn.GRU(size, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.high(self.between(self.low(x)[0]))
        return self.head(states.mean(dim=1))


two = zoo.healthy("gaits-twelve-numbers-between", lambda s: live(Stacked(12), gaits(s), lr=1e-2, steps=60))
zoo.sick(
    "gaits-one-number-between",
    lambda s: live(Stacked(1), gaits(s), lr=1e-2, steps=60),
    lags(0.08),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("between", "high"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=two,
)

# --- dead, flat, cut, dying, equal


class Rectified(Cell):
    """A GRU whose candidate is rectified; `bias` is where the candidate begins."""

    def __init__(self, dim: int, width: int, bias: float) -> None:
        super().__init__()
        self.hidden_size, self.gates, self.new = width, nn.Linear(dim + width, width), nn.Linear(dim + width, width)
        nn.init.constant_(self.new.bias, bias)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        z = torch.sigmoid(self.gates(torch.cat([x, state], dim=1)))
        return z * state + (1 - z) * torch.relu(self.new(torch.cat([x, state], dim=1)))


def walking(seed: int, rnn: nn.Module, **more) -> Setup:
    return live(Reader(rnn, 5), gaits(seed), **{"lr": 1e-2, "steps": 60, **more})


awake = zoo.healthy("gaits-rectified-candidates", lambda s: walking(s, Rectified(4, 24, 0.0)))
zoo.sick(
    "gaits-rectified-candidates-begin-at-minus-20",
    lambda s: walking(s, Rectified(4, 24, -20.0)),
    lasting(dead("rnn", 0.97)),
    "DEAD",
    layer=("rnn.new", "rnn.gates"),
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK", *SHORT},
    control=awake,
)


def loud(std: float) -> nn.RNN:
    rnn = nn.RNN(2, 24, batch_first=True)
    for weight in (rnn.weight_ih_l0, rnn.weight_hh_l0):
        nn.init.normal_(weight, std=std)
    return rnn


quiet = zoo.healthy("swells-elman-drawn-with-0.2", lambda s: ahead(s, loud(0.2)))
zoo.sick(
    "swells-elman-drawn-with-12",
    lambda s: ahead(s, loud(12.0), lr=3e-3),
    lasting(states_flat("tanh", 0.85)),
    "SATURATION",
    "SHORT_MEMORY",
    "VANISHING",
    "SPECTRAL_RADIUS",
    layer="rnn",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=quiet,
)


class Retold(nn.Module):
    """An encoder's state starts a decoder; `data` takes its numbers only."""

    def __init__(self, data: bool) -> None:
        super().__init__()
        self.data, self.encoder = data, nn.GRU(2, 24, batch_first=True)
        self.decoder, self.out = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)[1]
        return self.out(self.decoder(torch.ones_like(x), h.data if self.data else h)[0])


def retold(seed: int, data: bool) -> Setup:
    return live(Retold(data), swells(seed, 6).changed(lambda x, _t: (x, x)), lr=1e-2, steps=70)


in_graph = zoo.healthy("swells-retold-from-the-state", lambda s: retold(s, False))
zoo.sick(
    "swells-retold-from-the-state's-data",
    lambda s: retold(s, True),
    lasting(no_gradient("encoder")),
    "DISCONNECTED",
    layer="encoder",
    also={"DEAD", "SHORT_MEMORY"},
    control=in_graph,
)


class Tower(nn.Module):
    """Recurrent layers on top of one another, with `gain` on what goes up."""

    def __init__(self, depth: int, gain: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.RNN(4 if i == 0 else 20, 20, batch_first=True) for i in range(depth))
        for layer in self.layers:
            nn.init.normal_(layer.weight_ih_l0, std=gain / math.sqrt(layer.input_size))
        self.head = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return self.head(x[:, -1])


tower = zoo.healthy("gaits-tower-of-2", lambda s: live(Tower(2, 1.0), gaits(s), lr=5e-3, steps=60))
zoo.sick(
    "gaits-tower-of-6-small-draw",
    lambda s: live(Tower(6, 0.1), gaits(s), "SGD", 0.05, 60),
    both(lasting(gradient_ratio("layers.0", "layers.5", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK", "SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=tower,
)


def constant(value: float | None) -> nn.RNN:
    rnn = nn.RNN(4, 16, batch_first=True)
    if value is not None:
        for parameter in rnn.parameters():
            nn.init.constant_(parameter, value)
    return rnn


def even(seed: int, value: float | None) -> Setup:
    """All weights begin at one value, and the reader's units count alike."""
    setup = walking(seed, constant(value), kind="SGD", lr=0.1, momentum=0.9)
    if value is not None:
        setup.model.read.weight.data = setup.model.read.weight.data[:, :1].expand(5, 16).clone()
    return setup


uneven = zoo.healthy("gaits-elman-sgd", lambda s: even(s, None))
zoo.sick(
    "gaits-elman-all-weights-0.05",
    lambda s: even(s, 0.05),
    both(lasting(equal_units("rnn.weight_ih_l0")), lags(0.08)),
    "SYMMETRY",
    layer=("rnn", "read"),
    also={"LOW_RANK", "BOTTLENECK", *SHORT},
    control=uneven,
)

# --- numbers, jumps, rates


class Masked(nn.Module):
    """The mean of the states over the steps that count; `least` steps are taken for the division."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.gru, self.head, self.least = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 5), least

    def forward(self, x: Tensor) -> Tensor:
        states, counts = self.gru(x)[0], (x.abs().sum(dim=2, keepdim=True) > 0).float()
        return self.head((states * counts).sum(dim=1) / counts.sum(dim=1).clamp_min(self.least))


def absent(seed: int, least: float) -> Setup:
    """Now and then a walker did not come."""
    now = every(12, 7)

    def leave_out(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x[1:]]) if now() else x

    return live(Masked(least), gaits(seed).mapped(leave_out), lr=1e-2, steps=60)


at_least_one = zoo.healthy("gaits-absent-walkers-counted-as-one-step", lambda s: absent(s, 1.0))
zoo.sick("gaits-absent-walkers", lambda s: absent(s, 0.0), breaks, "NUMERICAL", control=at_least_one)


def knocked(seed: int, factor: float) -> Setup:
    """Now and then the meter is knocked: one value is far out, in what goes in and in what is asked."""
    now = every(11, 6)

    def knock(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if now():
            x, t = x.clone(), t.clone()
            x[0, 5], t[0, 4] = factor * x[0, 5], factor * t[0, 4]
        return x, t

    return live(Reader(nn.GRU(2, 24, batch_first=True), 2, True), swells(seed).changed(knock), lr=5e-3, steps=70)


steady = zoo.healthy("swells-steady-meter", lambda s: knocked(s, 1.0))
zoo.sick("swells-knocked-meter", lambda s: knocked(s, 3e4), gradient_norms_spread(30), *JUMPS, control=steady)


def stiff(seed: int, scale: float) -> Setup:
    """The rate of each step is multiplied by what was meant for the loss."""
    return ahead(seed, nn.LSTM(2, 20, batch_first=True), lr=1e-2 * scale, steps=50)


lively = zoo.healthy("swells-lstm-rate-0.01", lambda s: stiff(s, 1.0))
zoo.sick("swells-lstm-rate-1e-9", lambda s: stiff(s, 1e-7), does_not_move(steps=50), "SLOW", control=lively)
