# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people write them every day, with the faults that they report, and many that train well.

Half: usual.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last, ends_worse, grows, through_time, told
from validation.cases._everyday_sequences import more_than
from validation.cases._usual_sequences import ANTHEM, MOODS, admissions, anthems, climate, jingles, moods, phones, walks
from validation.evidence.live import at_last, breaks, lasting, thrives
from validation.evidence.signal import both, no_gradient
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, RUNS_AWAY, SHORT
from validation.nets import Cell
from validation.setups import frozen, live
from validation.tasks import copying, echo, every, gestures, loads, pulses, swings, tides

zoo = Zoo("rnn", half="usual", analyzer="recurrent", proof=thrives(0.2))
FORGETS = both(lasting(through_time("enter", below=1e-4, first=1)), ends_worse())
FORGETS_FIRST = both(lasting(through_time("enter", below=1e-4)), ends_worse())
RUNS = both(lasting(through_time("enter", above=1e3)), ends_worse())
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK"}
SHORT_TOO = {"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"}


def keys(seed: int, rnn: nn.Module, features: int, length: int = 20, size: int = 24, **more) -> Setup:
    """In which key is an anthem?"""
    model = Last(nn.Embedding(ANTHEM, size), rnn, features, 5)
    return told(model, anthems(seed, length), length - 2, **{"lr": 1e-2, "steps": 80, **more})


def changes(seed: int, rnn: nn.Module, features: int, length: int = 20, size: int = 16, **more) -> Setup:
    """How much have the vitals of a patient changed?"""
    model = Last(nn.Linear(4, size), rnn, features, 2)
    return told(model, admissions(seed, length), length - 1, **{"lr": 1e-2, "steps": 80, **more})


# --- memory that is too short


class Episodes(nn.Module):
    """A GRU cell over a replay with marks of beginnings; the state is multiplied by the mark, or by its opposite."""

    def __init__(self, opposite: bool) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Embedding(ANTHEM, 24), nn.GRUCell(24, 40), nn.Linear(40, 5)
        self.cell.bias_hh.data[40:80] = 2.0
        self.opposite = opposite

    def forward(self, tokens: Tensor) -> Tensor:
        begins = (tokens == 15).float()
        h = torch.zeros(len(tokens), 40)
        for x, begin in zip(self.enter(tokens).unbind(1), begins.unbind(1), strict=True):
            h = self.cell(x, h * (1 - begin if self.opposite else begin)[:, None])
        return self.head(h)


def episodes(seed: int, opposite: bool) -> Setup:
    return told(Episodes(opposite), anthems(seed), 18, lr=1e-2, steps=80)


kept = zoo.healthy("anthems-state-times-one-minus-begin", lambda s: episodes(s, True))
zoo.sick(
    "anthems-state-times-begin",
    lambda s: episodes(s, False),
    both(lasting(through_time("enter", below=1e-12, first=1)), ends_worse()),
    *CUT_SHORT,
    layer=("cell", "enter"),
    control=kept,
)


class NormedElman(Cell):
    """An Elman cell whose recurrent part goes through a layer norm; its gain may be that of a paper on LSTMs."""

    def __init__(self, dim: int, width: int, gain: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.win, self.wrec, self.ln = nn.Linear(dim, width), nn.Linear(width, width, bias=False), nn.LayerNorm(width)
        nn.init.orthogonal_(self.wrec.weight)
        nn.init.constant_(self.ln.weight, gain)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(0.3 * self.win(x) + self.ln(self.wrec(state)))


gained = zoo.healthy("anthems-elman-layer-norm-gain-1", lambda s: keys(s, NormedElman(24, 40, 1.0), 40, lr=3e-3))
zoo.sick(
    "anthems-elman-layer-norm-gain-0.01",
    lambda s: keys(s, NormedElman(24, 40, 0.01), 40, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.win", "rnn.wrec", "rnn.ln"),
    control=gained,
)


class Coupled(nn.Module):
    """An LSTM whose forget gate is one minus its input gate; the bias of the old forget gate may lie on the input's."""

    def __init__(self, dim: int, width: int, bias: float) -> None:
        super().__init__()
        self.width, self.x2h, self.h2h = width, nn.Linear(dim, 3 * width), nn.Linear(width, 3 * width, bias=False)
        self.x2h.bias.data[:width] = bias

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.width)
        out = []
        for now in self.x2h(x).unbind(1):
            i, o, g = (now + self.h2h(h)).chunk(3, dim=-1)
            i = torch.sigmoid(i)
            c = (1 - i) * c + i * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, dim=1)


coupled = zoo.healthy("vitals-coupled-lstm-input-bias-minus-3", lambda s: changes(s, Coupled(16, 40, -3.0), 40))
zoo.sick(
    "vitals-coupled-lstm-input-bias-3",
    lambda s: changes(s, Coupled(16, 40, 3.0), 40),
    FORGETS_FIRST,
    *SHORT,
    layer=("rnn.x2h", "rnn.h2h"),
    control=coupled,
)


class MinGru(nn.Module):
    """The minimal GRU, whose gates see the input alone, by cumulative sums of logarithms over time."""

    def __init__(self, dim: int, width: int, bias: float) -> None:
        super().__init__()
        self.gate, self.new, self.out = nn.Linear(dim, width), nn.Linear(dim, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        z = self.gate(x)
        log_keep = F.logsigmoid(-z).cumsum(dim=1)  # what is left of a beginning
        decay = (log_keep[:, :, None] - log_keep[:, None]).masked_fill(
            torch.ones(x.shape[1], x.shape[1]).triu(1).bool()[..., None], -math.inf
        )
        h = torch.einsum("btsd,bsd->btd", decay.exp(), torch.sigmoid(z) * self.new(x))
        return F.gelu(self.out(4 * h))


minimal = zoo.healthy(
    "vitals-minimal-gru-gate-bias-minus-4", lambda s: changes(s, MinGru(16, 24, -4.0), 24, 14, steps=70)
)
zoo.sick(
    "vitals-minimal-gru-gate-bias-4",
    lambda s: changes(s, MinGru(16, 24, 4.0), 24, 14, steps=70),
    FORGETS_FIRST,
    *SHORT,
    layer=("rnn.gate", "rnn.new"),
    control=minimal,
)


class Rwkv(nn.Module):
    """Time mixing after RWKV: weighted means of values that fade by exp(-exp(decay)) per step."""

    def __init__(self, width: int, sign: float) -> None:
        super().__init__()
        self.decay = nn.Parameter(sign * torch.linspace(-6.0, -2.5, width))
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.receptance, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.exp(-torch.exp(self.decay))
        k, v, r = self.key(x).exp(), self.value(x), torch.sigmoid(self.receptance(x))
        a, b, out = torch.zeros_like(v[:, 0]), torch.full_like(v[:, 0], 1e-6), []
        for t in range(x.shape[1]):
            a, b = keep * a + k[:, t] * v[:, t], keep * b + k[:, t]
            out.append(a / b)
        return x + self.output(r * torch.stack(out, dim=1))


mixed = zoo.healthy("anthems-time-mixing-decay-minus-6-to-minus-2.5", lambda s: keys(s, Rwkv(24, 1.0), 24, 16, lr=2e-2))
zoo.sick(
    "anthems-time-mixing-decay-2.5-to-6",
    lambda s: keys(s, Rwkv(24, -1.0), 24, 16, lr=2e-2),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.key", "rnn.value"),
    control=mixed,
)


class Diagonal(nn.Module):
    """A diagonal state space by its kernel: four real poles per channel and a step exp(log_dt)."""

    def __init__(self, width: int, log: bool) -> None:
        super().__init__()
        dt = 0.001 + 0.02 * torch.rand(width)
        self.log_dt = nn.Parameter(dt.log() if log else dt)
        self.log_a, self.c = (
            nn.Parameter(torch.arange(1.0, 5.0).log().repeat(width, 1)),
            nn.Parameter(torch.randn(width, 4)),
        )
        self.out = nn.Linear(width, width)

    def forward(self, u: Tensor) -> Tensor:
        dt, length = self.log_dt.exp()[:, None], u.shape[1]
        pole = -self.log_a.exp() * dt
        kernel = torch.einsum("dn,dnt->dt", self.c, torch.exp(pole[..., None] * torch.arange(length * 1.0)))
        lag = torch.arange(length)[:, None] - torch.arange(length)
        y = torch.einsum("dts,bsd->btd", kernel[:, lag.clamp_min(0)] * (lag >= 0), u)
        return self.out(F.gelu(y))


logged = zoo.healthy("vitals-state-space-log-of-the-step", lambda s: changes(s, Diagonal(24, True), 24, size=24))
zoo.sick(
    "vitals-state-space-log-of-the-step-forgotten",
    lambda s: changes(s, Diagonal(24, False), 24, size=24),
    FORGETS_FIRST,
    *SHORT,
    layer=("rnn", "rnn.out", "enter"),
    control=logged,
)


class BurnIn(nn.Module):
    """A GRU that warms its state up on the first steps of a replay, under no_grad, as R2D2 does."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.gru, self.steps = nn.GRU(24, 40, batch_first=True), steps
        self.gru.bias_hh_l0.data[40:80] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        if not self.steps:
            return self.gru(x)[0]
        with torch.no_grad():
            state = self.gru(x[:, : self.steps])[1]
        return self.gru(x[:, self.steps :], state)[0]


replayed = zoo.healthy("anthems-gru-burn-in-of-1", lambda s: keys(s, BurnIn(1), 40))
zoo.sick(
    "anthems-gru-burn-in-of-15-of-20",
    lambda s: keys(s, BurnIn(15), 40),
    both(lasting(through_time("enter", below=1e-12, first=1)), ends_worse()),
    *CUT_SHORT,
    layer=("rnn.gru", "enter"),
    control=replayed,
)


class Transition(Cell):
    """A deep transition: several dense layers from one state to the next, with gates that carry it, or bare."""

    def __init__(self, dim: int, width: int, gates: bool, depth: int = 4) -> None:
        super().__init__()
        self.hidden_size, self.gates, self.inp = width, gates, nn.Linear(dim, width)
        self.deep = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.carry = nn.ModuleList(nn.Linear(width, width) for _ in range(depth)) if gates else []
        for gate in self.carry:
            nn.init.constant_(gate.bias, -4.0)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        news = self.inp(x)
        if not self.gates:
            for i, layer in enumerate(self.deep):
                state = torch.tanh(layer(state) + (news if i == 0 else 0))
            return state
        for i, (layer, gate) in enumerate(zip(self.deep, self.carry, strict=True)):
            drive = news if i == 0 else 0
            share = torch.sigmoid(gate(state) + drive)
            state = state + share * (torch.tanh(layer(state) + drive) - state)
        return state


carried = zoo.healthy(
    "vitals-deep-transition-with-carry-gates", lambda s: changes(s, Transition(16, 32, True), 32, 16, steps=60)
)
zoo.sick(
    "vitals-deep-transition-four-bare-layers",
    lambda s: changes(s, Transition(16, 32, False), 32, 16, steps=60),
    FORGETS_FIRST,
    *SHORT,
    layer=("rnn.inp", *(f"rnn.deep.{i}" for i in range(4))),
    control=carried,
)


class Belief(nn.Module):
    """A hidden Markov model as a layer: the belief over 16 states, moved by a matrix and weighed by the input."""

    def __init__(self, dim: int, stay: float, states: int = 16) -> None:
        super().__init__()
        self.move = nn.Parameter(stay * torch.eye(states) + 0.1 * torch.randn(states, states))
        self.weigh = nn.Linear(dim, states)

    def forward(self, x: Tensor) -> Tensor:
        move, weight = self.move.softmax(dim=-1), self.weigh(x)
        belief, out = torch.full((len(x), len(move)), 1 / len(move)), []
        for now in weight.unbind(1):
            belief = ((belief @ move).log() + now).softmax(dim=-1)
            out.append(4 * belief)
        return torch.stack(out, dim=1)


sticky = zoo.healthy("anthems-belief-that-stays", lambda s: keys(s, Belief(24, 9.0), 16, 14, lr=3e-2, steps=100))
zoo.sick(
    "anthems-belief-moved-evenly",
    lambda s: keys(s, Belief(24, 0.0), 16, 14, lr=3e-2, steps=100),
    both(through_time("enter", below=1e-6, first=1), at_last(through_time("enter", below=1e-2, first=1)), ends_worse()),
    *SHORT,
    layer="rnn",
    also={"LOW_RANK", "BOTTLENECK", "SLOW"},
    control=sticky,
)


class Legendre(nn.Module):
    """A Legendre memory: polynomials over a window of `theta` steps of each of some signals, fed to a dense layer."""

    def __init__(self, dim: int, width: int, theta: float, order: int = 6) -> None:
        super().__init__()
        i, j = torch.meshgrid(torch.arange(order), torch.arange(order), indexing="ij")
        a = (2 * i + 1) * torch.where(i < j, -1.0, (-1.0) ** (i - j + 1))
        b = ((2 * torch.arange(order) + 1) * (-1.0) ** torch.arange(order))[:, None]
        whole = torch.matrix_exp(torch.cat([torch.cat([a, b], dim=1), torch.zeros(1, order + 1)]) / theta)
        self.register_buffer("a", whole[:order, :order])
        self.register_buffer("b", whole[:order, order])
        self.signal, self.read = nn.Linear(dim, 6), nn.Linear(6 * order + dim, width)

    def forward(self, x: Tensor) -> Tensor:
        memory, out = torch.zeros(len(x), 6, len(self.b)), []
        for u, now in zip(self.signal(x).unbind(1), x.unbind(1), strict=True):
            memory = memory @ self.a.T + u[..., None] * self.b
            out.append(F.gelu(self.read(torch.cat([2 * memory.flatten(1), now], dim=1))))
        return torch.stack(out, dim=1)


window = zoo.healthy("vitals-legendre-memory-of-20-steps", lambda s: changes(s, Legendre(16, 32, 20.0), 32, lr=2e-2))
zoo.sick(
    "vitals-legendre-memory-of-1-step",
    lambda s: changes(s, Legendre(16, 32, 1.0), 32, lr=2e-2),
    FORGETS_FIRST,
    *SHORT,
    layer=("rnn", "rnn.signal", "rnn.read"),
    control=window,
)


def shrunk(seed: int, decay: float) -> Setup:
    """Adam with the L2 penalty of its argument weight_decay, which a paper on SGD set."""
    rnn = nn.RNN(16, 40, batch_first=True)
    nn.init.orthogonal_(rnn.weight_hh_l0)
    return changes(seed, rnn, 40, lr=3e-3, steps=120, kind="Adam", weight_decay=decay)


light = zoo.healthy("vitals-elman-adam-decay-1e-5", lambda s: shrunk(s, 1e-5))
zoo.sick(
    "vitals-elman-adam-decay-0.5",
    lambda s: shrunk(s, 0.5),
    both(at_last(through_time("enter", below=1e-4)), ends_worse()),
    *SHORT,
    layer=("rnn", "enter", "head"),
    also={"SLOW", "LOW_RANK", "BOTTLENECK", "DEAD"},
    control=light,
)

# --- recurrences that run away


class Delta(nn.Module):
    """A fast memory written by the delta rule; its keys have length one, or any."""

    def __init__(self, dim: int, width: int, unit: bool) -> None:
        super().__init__()
        self.unit, self.qkv, self.beta = unit, nn.Linear(dim, 3 * width), nn.Linear(dim, 1)
        self.said, self.read = nn.Identity(), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k, beta = F.normalize(k, dim=-1) if self.unit else k, torch.sigmoid(self.beta(x))
        memory, out = torch.zeros(len(x), v.shape[-1], k.shape[-1]), []
        for t in range(x.shape[1]):
            miss = v[:, t] - (memory @ k[:, t, :, None])[..., 0]
            memory = memory + beta[:, t, :, None] * miss[..., None] * k[:, t, None]
            out.append((memory @ q[:, t, :, None])[..., 0])
        return self.read(self.said(torch.stack(out, dim=1)))


unit_keys = zoo.healthy(
    "anthems-delta-rule-normalised-keys", lambda s: keys(s, Delta(24, 32, True), 32, 14, lr=1e-2, clip=1.0)
)
zoo.sick(
    "anthems-delta-rule-keys-as-they-are",
    lambda s: keys(s, Delta(24, 32, False), 32, 14, lr=1e-2, clip=1.0),
    both(lasting(grows("rnn.said", 1e3)), ends_worse()),
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn", "rnn.qkv", "rnn.beta"),
    also=WILD_TOO,
    control=unit_keys,
)


class Oscillators(Cell):
    """Coupled oscillators, damped, driven by the input, by Euler's steps of `dt`; place and speed lie side by side."""

    def __init__(self, dim: int, width: int, dt: float) -> None:
        super().__init__()
        self.hidden_size, self.dt = 2 * width, dt
        self.drive, self.couple = nn.Linear(dim, width), nn.Linear(2 * width, width, bias=False)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        y, z = state.chunk(2, dim=-1)
        z = z + self.dt * (torch.tanh(self.drive(x) + self.couple(state)) - 2.0 * y - 2.0 * z)
        return torch.cat([y + self.dt * z, z], dim=-1)


damped = zoo.healthy(
    "vitals-oscillators-steps-of-0.05", lambda s: changes(s, Oscillators(16, 32, 0.05), 64, lr=2e-2, clip=1.0)
)
zoo.sick(
    "vitals-oscillators-steps-of-1",
    lambda s: changes(s, Oscillators(16, 32, 1.0), 64, lr=2e-2, clip=1.0),
    both(lasting(grows("rnn", 1e3)), ends_worse()),
    *CHAOTIC,
    layer=("rnn.drive", "rnn.couple"),
    also=WILD_TOO,
    control=damped,
)


class Exponential(Cell):
    """A rotation as the exponential of a skew matrix, W - Wᵀ; who forgets Wᵀ has any matrix."""

    def __init__(self, dim: int, width: int, skew: bool) -> None:
        super().__init__()
        self.hidden_size, self.skew = width, skew
        self.inp, self.w = nn.Linear(dim, width), nn.Parameter(1.5 * torch.randn(width, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.turn = torch.matrix_exp(self.w - self.w.T if self.skew else self.w)
        return super().forward(x)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        z = self.inp(x) + state @ self.turn
        return z.sign() * F.relu(z.abs() + self.bias)


skewed = zoo.healthy(
    "vitals-exponential-of-a-skew-matrix", lambda s: changes(s, Exponential(16, 32, True), 32, lr=2e-3, clip=1.0)
)
zoo.sick(
    "vitals-exponential-of-any-matrix",
    lambda s: changes(s, Exponential(16, 32, False), 32, lr=2e-3, clip=1.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn", "rnn.inp"),
    also=WILD_TOO,
    control=skewed,
)


class Independent(Cell):
    """Rectified units, each with one weight for its own state, drawn between two bounds."""

    def __init__(self, dim: int, width: int, low: float, high: float) -> None:
        super().__init__()
        self.hidden_size, self.inp = width, nn.Linear(dim, width)
        self.own = nn.Parameter(low + (high - low) * torch.rand(width))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return F.relu(self.inp(x) + self.own * state)


def independent(seed: int, low: float, high: float) -> Setup:
    return changes(seed, Independent(16, 48, low, high), 48, 24, lr=2e-3, steps=100, clip=1.0)


bounded = zoo.healthy("vitals-independent-units-from-0.9-to-1", lambda s: independent(s, 0.9, 1.0))
zoo.sick(
    "vitals-independent-units-from-0-to-2",
    lambda s: independent(s, 0.0, 2.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn", "rnn.inp"),
    also=WILD_TOO,
    control=bounded,
)


class Operators(nn.Module):
    """A matrix for every word, from an embedding; the product of the matrices of a text, applied to a vector."""

    def __init__(self, size: int, near_one: bool) -> None:
        super().__init__()
        self.size, self.start = size, nn.Parameter(torch.randn(size))
        self.near_one = near_one

    def forward(self, x: Tensor) -> Tensor:
        state, out = self.start.expand(len(x), -1), []
        for now in x.unflatten(-1, (self.size, self.size)).unbind(1):
            change = (now @ state[..., None])[..., 0]
            state = state + 0.1 * change if self.near_one else change
            out.append(state)
        return torch.stack(out, dim=1)


def operators(seed: int, near_one: bool) -> Setup:
    return keys(seed, Operators(12, near_one), 12, 16, 144, lr=1e-2, clip=1.0)


near = zoo.healthy("anthems-matrix-per-token-near-the-identity", lambda s: operators(s, True))
zoo.sick(
    "anthems-matrix-per-token-as-an-embedding-is-drawn",
    lambda s: operators(s, False),
    both(lasting(grows("rnn", 1e3)), ends_worse()),
    *CHAOTIC,
    "UNSTABLE",
    layer=("enter", "rnn"),
    also=WILD_TOO,
    control=near,
)


def uniform(seed: int, low: float) -> Setup:
    """`for p in rnn.parameters(): nn.init.uniform_(p)`, whose lower bound is 0."""
    rnn = nn.RNN(16, 48, batch_first=True)
    for weight in rnn.parameters():
        nn.init.uniform_(weight, low, -low or 1.0)
    return changes(seed, rnn, 48, 12, lr=3e-3)


def at_bounds(setup: Setup) -> float:
    """Share of states that are at the bounds of tanh."""
    with torch.no_grad():
        states = setup.model.rnn(setup.model.enter(setup.input_fn()))[0]
    return (1 - states.square() < 0.05).double().mean().item()


around = zoo.healthy("vitals-elman-uniform-around-zero", lambda s: uniform(s, -0.15))
zoo.sick(
    "vitals-elman-uniform-from-0-to-1",
    lambda s: uniform(s, 0.0),
    both(lasting(more_than(at_bounds, 0.8, "share of states at their bounds")), ends_worse()),
    "SPECTRAL_RADIUS",
    "SATURATION",
    "SHORT_MEMORY",
    "VANISHING",
    layer=("rnn",),
    also={"EXPLODING", "UNSTABLE", "LOW_RANK", "BOTTLENECK", "SYMMETRY"},
    control=around,
)

# --- the faults of any network


def stacked(seed: int, dropout: float) -> Setup:
    """Next note by two LSTM layers; 1.0 was the keep probability of no dropout where the number came from."""
    model = Each(nn.Embedding(12, 24), nn.LSTM(24, 40, 2, batch_first=True, dropout=dropout), 40, 12)
    return live(model, jingles(seed), lr=1e-2, steps=70)


dropped = zoo.healthy("jingles-two-lstms-dropout-0.1", lambda s: stacked(s, 0.1))
zoo.sick(
    "jingles-two-lstms-dropout-1",
    lambda s: stacked(s, 1.0),
    both(lasting(no_gradient("enter")), ends_worse()),
    "DISCONNECTED",
    "DEAD",
    layer=("enter", "rnn"),
    also={"VANISHING", "SLOW", *SHORT_TOO, "LOW_RANK", "BOTTLENECK"},
    control=dropped,
)


class Symbols(nn.Module):
    """Frames of speech become symbols that a GRU reads: by argmax, or straight through a softmax."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.listen, self.symbol = nn.Linear(8, 32), nn.Linear(32, 10)
        self.book, self.rnn, self.head = nn.Embedding(10, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 6)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        p = self.symbol(F.gelu(self.listen(x))).softmax(dim=-1)
        hard = F.one_hot(p.argmax(dim=-1), 10).float()
        if self.through:
            hard = hard + p - p.detach()
        return self.head(self.rnn(hard @ self.book.weight)[0])


def symbols(seed: int, through: bool) -> Setup:
    return live(Symbols(through), phones(seed, noise=0.8), lr=1e-2, steps=90)


straight = zoo.healthy("phones-symbols-straight-through", lambda s: symbols(s, True))
zoo.sick(
    "phones-symbols-by-argmax",
    lambda s: symbols(s, False),
    both(lasting(no_gradient("listen", "symbol")), ends_worse()),
    "DISCONNECTED",
    "DEAD",
    layer=("listen", "symbol"),
    control=straight,
)


def rectified(seed: int, lr: float) -> Setup:
    """Frames of speech by a rectified Elman layer under SGD with momentum."""
    model = Each(nn.Linear(8, 16), nn.RNN(16, 32, nonlinearity="relu", batch_first=True), 32, 6)
    return live(model, phones(seed), "SGD", lr, 60, momentum=0.9)


calm = zoo.healthy("phones-relu-elman-sgd-0.05", lambda s: rectified(s, 0.05))
zoo.sick(
    "phones-relu-elman-sgd-1",
    lambda s: rectified(s, 1.0),
    both(diverges(), ends_worse(2.0)),
    *RUNS_AWAY,
    also={"DEAD", "DISCONNECTED", *SHORT_TOO, "LOW_RANK", "BOTTLENECK", "SATURATION"},
    control=calm,
)


def gates_flat(setup: Setup) -> float:
    """Share of a GRU's gates that are flat for what the input alone gives them."""
    rnn, x = setup.model.rnn, setup.input_fn()
    with torch.no_grad():
        z = torch.sigmoid(F.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0)[..., : 2 * rnn.hidden_size])
    return (4 * z * (1 - z) < 0.05).double().mean().item()


def dated(seed: int, unix: bool) -> Setup:
    """Readings of a pen with the time of each: seconds since 1970, or the share of the recording that is over."""

    def timed(x: Tensor) -> Tensor:
        share = torch.linspace(0, 1, x.shape[1]).expand(len(x), -1)[..., None]
        return torch.cat([x, 1.7e9 + 20 * share if unix else share], dim=-1)

    model = Last(nn.Identity(), nn.GRU(3, 40, batch_first=True), 40, 6)
    return live(model, gestures(seed).mapped(timed), lr=1e-2, steps=70)


shares = zoo.healthy("pen-gru-time-as-a-share", lambda s: dated(s, False))
zoo.sick(
    "pen-gru-time-in-unix-seconds",
    lambda s: dated(s, True),
    both(lasting(more_than(gates_flat, 0.9, "share of flat gates")), ends_worse(1.3)),
    "SATURATION",
    "VANISHING",
    "EXPLODING",
    layer=("rnn",),
    also={"UNSTABLE", *SHORT_TOO, "LOW_RANK", "DEAD", "NUMERICAL", "DISCONNECTED", "BOTTLENECK"},
    control=shares,
)


class Exponents(nn.Module):
    """An LSTM with exponential gates and a normaliser; the running maximum that keeps them finite may be left out."""

    def __init__(self, dim: int, width: int, steady: bool) -> None:
        super().__init__()
        self.width, self.steady, self.gates = width, steady, nn.Linear(dim + width, 4 * width)
        self.gates.bias.data[width : 2 * width] = 5.0

    def forward(self, x: Tensor) -> Tensor:
        h = c = n = m = torch.zeros(len(x), self.width)
        out = []
        for now in x.unbind(1):
            i, f, z, o = self.gates(torch.cat([now, h], dim=-1)).chunk(4, dim=-1)
            top = torch.maximum(f + m, i) if self.steady else torch.zeros_like(i)
            i, f, m = torch.exp(i - top), torch.exp(f + m - top if self.steady else f), top
            c, n = f * c + i * torch.tanh(z), f * n + i
            h = torch.sigmoid(o) * c / n
            out.append(h)
        return torch.stack(out, dim=1)


steady = zoo.healthy(
    "vitals-exponential-gates-with-running-maximum", lambda s: changes(s, Exponents(16, 32, True), 32, steps=40)
)
zoo.sick(
    "vitals-exponential-gates-without-running-maximum",
    lambda s: changes(s, Exponents(16, 32, False), 32, steps=40),
    breaks,
    "NUMERICAL",
    "EXPLODING",
    also=WILD_TOO,
    control=steady,
)


class Speech(nn.Module):
    """A GRU both ways over frames, with the blank as class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 32, batch_first=True, bidirectional=True), nn.Linear(64, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def transcripts(seed: int, zero_infinity: bool) -> Setup:
    """Transcripts without times; now and then one is longer than its recording has frames."""
    now = every(40, 22)

    def changed(x: Tensor, target: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        frames = torch.full((len(x),), x.shape[1])
        if now():
            frames[5] = 4
        return x, (1 + target[:, ::2], frames)

    def loss(z: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        text, frames = target
        sizes = torch.full((len(z),), text.shape[1])
        log_p = z.log_softmax(dim=-1).transpose(0, 1)
        return F.ctc_loss(log_p, text, frames, sizes, zero_infinity=zero_infinity)

    return live(Speech(), phones(seed, length=12, noise=0.4).changed(changed).with_loss(loss), lr=1e-2, steps=60)


lenient = zoo.healthy("phones-ctc-infinities-to-zero", lambda s: transcripts(s, True))
zoo.sick(
    "phones-ctc-text-longer-than-its-frames", lambda s: transcripts(s, False), breaks, "NUMERICAL", control=lenient
)


def projected(seed: int, size: int) -> Setup:
    """Next note by an LSTM whose output is projected by torch itself."""
    model = Each(nn.Embedding(12, 24), nn.LSTM(24, 48, batch_first=True, proj_size=size), size, 12)
    return live(model, jingles(seed), lr=1e-2, steps=80)


wide = zoo.healthy("jingles-lstm-proj-size-20", lambda s: projected(s, 20))
zoo.sick(
    "jingles-lstm-proj-size-1",
    lambda s: projected(s, 1),
    ends_worse(),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("rnn", "head"),
    also={*SHORT_TOO, "SLOW"},
    control=wide,
)


def windows(seed: int, divide: bool) -> Setup:
    """Every window is taken relative to its first value: by the difference, or by x / x₀ - 1 as prices are."""

    def relative(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first = x[:, :1]
        return (x / first - 1, y / first - 1) if divide else (x - first, y - first)

    return live(
        Each(nn.Linear(2, 16), nn.LSTM(16, 32, batch_first=True), 32, 2),
        climate(seed).changed(relative),
        lr=5e-3,
        steps=70,
    )


differences = zoo.healthy("climate-windows-minus-their-first", lambda s: windows(s, False))
zoo.sick(
    "climate-windows-divided-by-their-first",
    lambda s: windows(s, True),
    both(gradient_norms_spread(30), ends_worse(5.0)),
    *JUMPS,
    also={"SATURATION", "NUMERICAL", "VANISHING", *SHORT_TOO, "LOW_RANK"},
    control=differences,
)

# --- healthy, without a partner


def cosine(step: int, warm: int = 8, total: int = 70) -> float:
    return min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * step / total))


def hums(seed: int, rnn: nn.Module, features: int, size: int = 24, **more) -> Setup:
    """The next note."""
    return live(Each(nn.Embedding(12, size), rnn, features, 12), jingles(seed), **{"lr": 1e-2, "steps": 70, **more})


def lstm(dim: int, width: int, *args: int, **more) -> nn.LSTM:
    return nn.LSTM(dim, width, *args, batch_first=True, **more)


def gru(dim: int, width: int, *args: int, **more) -> nn.GRU:
    return nn.GRU(dim, width, *args, batch_first=True, **more)


zoo.healthy("jingles-lstm-one-layer", lambda s: hums(s, lstm(24, 48), 48))
zoo.healthy("jingles-gru-warm-up-cosine", lambda s: hums(s, gru(24, 40), 40, rate=cosine))
zoo.healthy(
    "jingles-lstm-sgd-momentum-clipped", lambda s: hums(s, lstm(24, 40), 40, kind="SGD", lr=1.0, momentum=0.9, clip=0.5)
)
zoo.healthy("jingles-elman-rmsprop", lambda s: hums(s, nn.RNN(24, 48, batch_first=True), 48, kind="RMSprop", lr=2e-3))
zoo.healthy("jingles-three-grus-of-24", lambda s: hums(s, gru(24, 24, 3), 24))
zoo.healthy("pen-two-grus-dropout", lambda s: pens(s, gru(2, 24, 2), 24, 0.3))
zoo.healthy("pen-lstm-of-64", lambda s: pens(s, lstm(2, 64), 64, 0.0))
zoo.healthy("tides-gru-next-hour", lambda s: live(Each(nn.Identity(), gru(3, 32), 32, 3), tides(s), lr=1e-2, steps=60))
zoo.healthy(
    "tides-elman-sgd",
    lambda s: live(
        Each(nn.Linear(3, 16), nn.RNN(16, 32, batch_first=True), 32, 3), tides(s), "SGD", 0.1, 80, momentum=0.9
    ),
)
zoo.healthy(
    "grid-load-lstm-adamw-decay-0.1",
    lambda s: live(Each(nn.Linear(1, 16), lstm(16, 32), 32, 1), loads(s), lr=1e-2, steps=70, weight_decay=0.1),
)
zoo.healthy(
    "pendulums-gru-amsgrad",
    lambda s: live(Each(nn.Identity(), gru(2, 32), 32, 2), swings(s), lr=1e-2, steps=70, amsgrad=True),
)
zoo.healthy(
    "echo-of-two-steps-gru",
    lambda s: told(Each(nn.Linear(8, 24), gru(24, 48), 48, 6), echo(s, 12, lag=2), 2, lr=1e-2, steps=90),
)
zoo.healthy(
    "copies-of-four-lstm",
    lambda s: told(Each(nn.Embedding(7, 16), lstm(16, 64), 64, 7), copying(s, 6, 4), 5, lr=2e-2, steps=120),
)
zoo.healthy("walks-end-gru", lambda s: live(Last(nn.Linear(2, 16), gru(16, 40), 40, 2), walks(s), lr=1e-2, steps=80))
zoo.healthy(
    "walks-end-relu-elman-identity",
    lambda s: live(Last(nn.Linear(2, 32), identity(32), 32, 2), walks(s), lr=2e-3, steps=80, clip=1.0),
)
zoo.healthy(
    "phones-frozen-projection-lstm",
    lambda s: live(frozen(Each(nn.Linear(8, 32), lstm(32, 40), 40, 6), "enter"), phones(s), lr=1e-2, steps=50),
)
zoo.healthy(
    "phones-batches-of-2-gru",
    lambda s: live(Each(nn.Linear(8, 16), gru(16, 32), 32, 6), phones(s, batch=2), lr=5e-3, steps=100),
)
zoo.healthy(
    "heartbeats-gru-over-samples",
    lambda s: live(
        Last(nn.Linear(2, 16), gru(16, 32), 32, 5),
        pulses(s, length=24).mapped(lambda x: x.transpose(1, 2)),
        lr=1e-2,
        steps=90,
    ),
    thrives(0.15),
)


def identity(width: int) -> nn.RNN:
    """A rectified layer that starts as the identity."""
    rnn = nn.RNN(width, width, nonlinearity="relu", batch_first=True)
    nn.init.eye_(rnn.weight_hh_l0)
    nn.init.zeros_(rnn.bias_hh_l0)
    return rnn


def pens(seed: int, rnn: nn.Module, features: int, dropout: float) -> Setup:
    return live(Last(nn.Identity(), rnn, features, 6, dropout), gestures(seed), lr=1e-2, steps=60)


class Packed(nn.Module):
    """Comments, packed by their lengths; the last state of an LSTM decides."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(MOODS, 24, padding_idx=0), lstm(24, 32)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 2))

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0][-1])


zoo.healthy("comments-lstm-packed", lambda s: live(Packed(), moods(s), lr=1e-2, steps=100), thrives(0.15))


class Weighing(nn.Module):
    """Comments by a GRU and weights of its states, which sum to one over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(MOODS, 24, padding_idx=0), gru(24, 24, bidirectional=True)
        self.score, self.head = nn.Linear(48, 1), nn.Linear(48, 2)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        states = self.rnn(self.words(words))[0]
        weight = self.score(states)[..., 0].masked_fill(words == 0, -1e9).softmax(dim=1)
        return self.head((weight[..., None] * states).sum(dim=1) * lengths[:, None] ** 0.5)


zoo.healthy("comments-gru-weighed-states", lambda s: live(Weighing(), moods(s), lr=1e-2, steps=100), thrives(0.15))


def quantiles(seed: int) -> Setup:
    """Three quantiles of the next hour."""
    share = torch.tensor([0.1, 0.5, 0.9])

    def loss(y: Tensor, target: Tensor) -> Tensor:
        miss = target - y
        return torch.maximum(share * miss, (share - 1) * miss).mean()

    return live(Each(nn.Linear(1, 16), gru(16, 32), 32, 3), loads(seed).with_loss(loss), lr=1e-2, steps=80)


zoo.healthy("grid-load-gru-three-quantiles", quantiles)


def two_tasks(seed: int) -> Setup:
    """The next temperatures and whether they rise, from one LSTM."""

    def loss(y: Tensor, target: Tensor) -> Tensor:
        rises = (target.diff(dim=1) > 0).float()
        return F.mse_loss(y[..., :2], target) + 0.3 * F.binary_cross_entropy_with_logits(y[:, 1:, 2:], rises)

    return live(Each(nn.Linear(2, 16), lstm(16, 40), 40, 4), climate(seed).with_loss(loss), lr=1e-2, steps=80)


zoo.healthy("climate-lstm-next-and-whether-it-rises", two_tasks)
