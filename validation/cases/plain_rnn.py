# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Everyday recurrent networks with the faults that people report: memory, recurrence, and those of any network.

Half: plain.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo, costly
from validation.cases._common_sequences import Each, Last, ends_worse, flat, small_gradients, through_time, told
from validation.cases._everyday_sequences import more_than
from validation.cases._plain_sequences import (
    VISIT,
    bearings,
    campaigns,
    commands,
    orders,
    rides,
    surnames,
    swaps,
    switches,
    verses,
    warmups,
)
from validation.evidence.live import at_last, breaks, lasting, never_fires, thrives
from validation.evidence.signal import both, judged, no_gradient
from validation.evidence.training import diverges, gradient_norms_spread, train
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, RUNS_AWAY, SHORT
from validation.nets import Cell
from validation.setups import live
from validation.tasks import every

zoo = Zoo("rnn", half="plain", analyzer="recurrent", proof=thrives(0.2))
FORGETS = both(lasting(through_time("enter", below=1e-4)), ends_worse())
CUT_OFF = both(lasting(through_time("enter", below=1e-12)), ends_worse())
RUNS = both(lasting(through_time("enter", above=1e3)), ends_worse())
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK"}
SHORT_TOO = {"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"}


def adverts(seed: int, rnn: nn.Module, features: int, length: int = 24, size: int = 24, **more) -> Setup:
    """Which advert began a visit?"""
    model = Last(nn.Embedding(VISIT, size), rnn, features, 6)
    return told(model, campaigns(seed, length), length - 1, **{"lr": 5e-3, "steps": 80, **more})


def levels(seed: int, rnn: nn.Module, features: int, length: int = 24, size: int = 16, **more) -> Setup:
    """Which levels did a device show at first?"""
    model = Last(nn.Linear(3, size), rnn, features, 2)
    return told(model, warmups(seed, length), length - 3, **{"lr": 5e-3, "steps": 80, **more})


# --- memory that is too short


class Chunks(nn.Module):
    """An LSTM over a long row in chunks; between them its state is kept, repackaged or begun anew."""

    def __init__(self, between: str, size: int = 6) -> None:
        super().__init__()
        self.between, self.size, self.lstm = between, size, nn.LSTM(24, 40, batch_first=True)
        self.lstm.bias_hh_l0.data[40:80] = 2.5

    def forward(self, x: Tensor) -> Tensor:
        state, out = None, []
        for chunk in x.split(self.size, dim=1):
            if self.between == "anew":
                state = None
            if self.between == "repackaged" and state is not None:
                state = tuple(each.detach() for each in state)
            states, state = self.lstm(chunk, state)
            out.append(states)
        return torch.cat(out, dim=1)


whole = zoo.healthy("adverts-lstm-in-chunks-state-kept", lambda s: adverts(s, Chunks("kept"), 40, lr=1e-2))
zoo.sick(
    "adverts-lstm-in-chunks-repackaged-hidden",
    lambda s: adverts(s, Chunks("repackaged"), 40, lr=1e-2),
    CUT_OFF,
    *CUT_SHORT,
    layer=("rnn.lstm", "enter"),
    control=whole,
)
zoo.sick(
    "adverts-lstm-in-chunks-hidden-begun-anew",
    lambda s: adverts(s, Chunks("anew"), 40, lr=1e-2),
    CUT_OFF,
    *CUT_SHORT,
    layer=("rnn.lstm", "enter"),
    control=whole,
)


class CellLoop(nn.Module):
    """An LSTM cell in a loop that takes over the hidden state and forgets to take over the cell state, if told."""

    def __init__(self, dim: int, width: int, both_states: bool) -> None:
        super().__init__()
        self.cell, self.both_states = nn.LSTMCell(dim, width), both_states
        self.cell.bias_hh.data[width : 2 * width] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(2, len(x), self.cell.hidden_size)
        out = []
        for now in x.unbind(1):
            h, new = self.cell(now, (h, c))
            c = new if self.both_states else c
            out.append(h)
        return torch.stack(out, dim=1)


taken = zoo.healthy("levels-lstm-cell-both-states-go-on", lambda s: levels(s, CellLoop(16, 36, True), 36, lr=1e-2))
zoo.sick(
    "levels-lstm-cell-only-h-goes-on",
    lambda s: levels(s, CellLoop(16, 36, False), 36, lr=1e-2),
    FORGETS,
    *SHORT,
    layer="rnn.cell",
    control=taken,
)


class KeepProb(nn.Module):
    """A GRU cell with dropout on the state that goes round; 0.9 was a keep probability where it came from."""

    def __init__(self, p: float, dim: int = 24, width: int = 40) -> None:
        super().__init__()
        self.cell, self.drop = nn.GRUCell(dim, width), nn.Dropout(p)
        self.cell.bias_hh.data[width : 2 * width] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.cell.hidden_size), []
        for now in x.unbind(1):
            h = self.cell(now, self.drop(h))
            out.append(h)
        return torch.stack(out, dim=1)


lightly = zoo.healthy(
    "adverts-gru-cell-state-dropout-0.02", lambda s: adverts(s, KeepProb(0.02), 40, 16, lr=1e-2, clip=1.0)
)
zoo.sick(
    "adverts-gru-cell-keep-probability-0.9-as-dropout",
    lambda s: adverts(s, KeepProb(0.9), 40, 16, lr=1e-2, clip=1.0),
    both(at_last(through_time("enter", below=1e-2)), ends_worse()),
    *SHORT,
    layer=("rnn.cell", "rnn.drop"),
    also={"UNSTABLE", "EXPLODING"},
    control=lightly,
)


@torch.no_grad()
def drawn(rnn: nn.RNNBase, hidden, bias: float = 0.0) -> nn.RNNBase:
    """Draw the recurrent matrices by a function; all biases the same."""
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            hidden(weight)
        elif name.startswith("bias"):
            weight.fill_(bias)
    return rnn


def relu_rnn(width: int = 48) -> nn.RNN:
    return nn.RNN(24, width, nonlinearity="relu", batch_first=True)


identity = zoo.healthy(
    "adverts-relu-rnn-from-the-identity", lambda s: adverts(s, drawn(relu_rnn(), nn.init.eye_), 48, 30, clip=1.0)
)
zoo.sick(
    "adverts-relu-rnn-as-torch-draws-it",
    lambda s: adverts(s, relu_rnn(), 48, 30, clip=1.0),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=identity,
)


@torch.no_grad()
def everything(model: nn.Module, std: float) -> nn.Module:
    """`for p in model.parameters(): p.normal_(0, std)`."""
    for weight in model.parameters():
        weight.normal_(0, std)
    return model


def bi_elman(seed: int, std: float | None) -> Setup:
    """Two Elman floors; orthogonal, or every parameter drawn with one small deviation."""
    rnn = drawn(nn.RNN(16, 32, 2, batch_first=True), nn.init.orthogonal_)
    return levels(seed, rnn if std is None else everything(rnn, std), 32, 20, lr=3e-3, clip=1.0)


orthogonal = zoo.healthy("levels-two-elman-floors-orthogonal", lambda s: bi_elman(s, None))
zoo.sick(
    "levels-two-elman-floors-everything-normal-0.01",
    lambda s: bi_elman(s, 0.01),
    both(through_time("enter", below=1e-12), at_last(through_time("enter", below=0.05)), ends_worse()),
    *SHORT,
    layer="rnn",
    also={"LOW_RANK", "SLOW", "BOTTLENECK"},
    control=orthogonal,
)


def penalised(seed: int, towards: float) -> Setup:
    """A soft orthogonal penalty, |WWᵀ - I|²; without the identity it draws W to zero."""
    setup = levels(seed, drawn(nn.RNN(16, 40, batch_first=True), nn.init.orthogonal_), 40, lr=3e-3, steps=120)
    loss, weight = setup.loss_fn, setup.model.rnn.weight_hh_l0

    def both_terms(output: Tensor) -> Tensor:
        return loss(output) + 0.5 * (weight @ weight.T - towards * torch.eye(40)).square().sum()

    return Setup(
        model=setup.model,
        input_fn=setup.input_fn,
        loss_fn=both_terms,
        optimizer=setup.optimizer,
        steps=setup.steps,
        hints=setup.hints,
    )


soft = zoo.healthy("levels-elman-soft-orthogonal-penalty", lambda s: penalised(s, 1.0))
zoo.sick(
    "levels-elman-orthogonal-penalty-without-the-identity",
    lambda s: penalised(s, 0.0),
    both(at_last(through_time("enter", below=1e-3)), ends_worse()),
    *SHORT,
    layer="rnn",
    also={"SLOW"},
    control=soft,
)


class Rate(Cell):
    """A rate network of neuroscience: a state that leaks by `alpha` = step / time constant towards its drive."""

    def __init__(self, dim: int, width: int, alpha: float, swapped: bool = False) -> None:
        super().__init__()
        self.hidden_size, self.alpha, self.swapped = width, alpha, swapped
        self.win, self.wrec = nn.Linear(dim, width), nn.Linear(width, width)
        nn.init.orthogonal_(self.wrec.weight, 0.9)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        new = self.win(x) + self.wrec(torch.tanh(state))
        keep = self.alpha if self.swapped else 1 - self.alpha
        return keep * state + (1 - keep) * new


leaky = zoo.healthy("levels-rate-network-step-a-twentieth", lambda s: levels(s, Rate(16, 48, 0.05), 48, lr=1e-2))
zoo.sick(
    "levels-rate-network-step-in-milliseconds-constant-in-seconds",
    lambda s: levels(s, Rate(16, 48, 20.0), 48, lr=1e-2, clip=1.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn.win", "rnn.wrec"),
    also=WILD_TOO,
    control=leaky,
)


class Filters(nn.Module):
    """Moving averages of many rates over a projection, a dense layer; `decay` is what is kept, or what is new."""

    def __init__(self, dim: int, width: int, of_the_new: bool) -> None:
        super().__init__()
        self.inp, self.mix, self.of_the_new = nn.Linear(dim, width), nn.Linear(width, width), of_the_new
        self.logit = nn.Parameter(torch.linspace(3.0, 6.0, width))

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.sigmoid(self.logit)
        keep = 1 - decay if self.of_the_new else decay
        state, out = torch.zeros(len(x), len(decay)), []
        for now in self.inp(x).unbind(1):
            state = keep * state + (1 - keep) * now
            out.append(state)
        return F.gelu(self.mix(8 * torch.stack(out, dim=1)))


averages = zoo.healthy("levels-moving-averages-decay-kept", lambda s: levels(s, Filters(16, 40, False), 40, lr=1e-2))
zoo.sick(
    "levels-moving-averages-decay-and-rest-swapped",
    lambda s: levels(s, Filters(16, 40, True), 40, lr=1e-2),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.inp", "rnn.mix"),
    control=averages,
)


class Selective(nn.Module):
    """A selective state space: each channel has four states and a step of its own, softplus of a bias plus the input.

    The bias should be the inverse softplus of small steps; a bias of the default scale gives steps near `step`.
    """

    def __init__(self, width: int, step: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.log(torch.arange(1.0, 5.0)).repeat(width, 1))
        self.dt, self.bc, self.out = nn.Linear(width, width), nn.Linear(width, 8), nn.Linear(width, width)
        nn.init.normal_(self.dt.weight, std=0.02)
        nn.init.constant_(self.dt.bias, math.log(math.expm1(step)))

    def forward(self, x: Tensor) -> Tensor:
        dt, (b, c) = F.softplus(self.dt(x)), self.bc(x).chunk(2, dim=-1)
        keep = torch.exp(-dt[..., None] * torch.exp(self.a))
        news = (dt * x)[..., None] * b[:, :, None]
        state, said = torch.zeros_like(keep[:, 0]), []
        for t in range(x.shape[1]):
            state = keep[:, t] * state + news[:, t]
            said.append((state * c[:, t, None]).sum(dim=-1))
        return self.out(F.layer_norm(torch.stack(said, dim=1), (x.shape[-1],)))


small_steps = zoo.healthy(
    "levels-selective-state-space-steps-of-0.01", lambda s: levels(s, Selective(24, 0.01), 24, size=24, lr=1e-2)
)
zoo.sick(
    "levels-selective-state-space-steps-of-5",
    lambda s: levels(s, Selective(24, 5.0), 24, size=24, lr=1e-2),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.dt", "rnn.bc"),
    control=small_steps,
)


class Quasi(nn.Module):
    """Gates by a convolution over time, then a pool that forgets; which share the gate is, papers write both ways."""

    def __init__(self, width: int, keeps: bool) -> None:
        super().__init__()
        self.conv, self.keeps = nn.Conv1d(24, 3 * width, 2), keeps
        self.conv.bias.data[width : 2 * width] = 4.0

    def forward(self, x: Tensor) -> Tensor:
        new, gate, out = self.conv(F.pad(x.transpose(1, 2), (1, 0))).transpose(1, 2).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        keep = gate if self.keeps else 1 - gate
        c, states = torch.zeros_like(new[:, 0]), []
        for t in range(x.shape[1]):
            c = keep[:, t] * c + (1 - keep[:, t]) * torch.tanh(new[:, t])
            states.append(torch.sigmoid(out[:, t]) * c)
        return 4 * torch.stack(states, dim=1)


pooled = zoo.healthy("adverts-quasi-recurrent-gate-keeps", lambda s: adverts(s, Quasi(40, True), 40, lr=1e-2))
zoo.sick(
    "adverts-quasi-recurrent-gate-replaces",
    lambda s: adverts(s, Quasi(40, False), 40, lr=1e-2),
    FORGETS,
    *SHORT,
    layer=("rnn.conv",),
    control=pooled,
)


class Retention(nn.Module):
    """Retention of four heads as a recurrence; a head keeps 1 - 2^(-5-i) of its memory per step, or 2^(-5-i)."""

    def __init__(self, width: int, complement: bool) -> None:
        super().__init__()
        gamma = 2.0 ** (-5 - torch.arange(4.0))
        self.register_buffer("gamma", (1 - gamma if complement else gamma)[:, None, None])
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (4, -1)) for part in (self.q, self.k, self.v))
        memory, out = torch.zeros(len(x), 4, q.shape[-1], q.shape[-1]), []
        for t in range(x.shape[1]):
            memory = self.gamma * memory + k[:, t, :, :, None] * v[:, t, :, None]
            out.append(torch.einsum("bhi,bhij->bhj", q[:, t], memory).flatten(1))
        return self.o(self.norm(torch.stack(out, dim=1)))


retained = zoo.healthy("adverts-retention-keeps-nearly-all", lambda s: adverts(s, Retention(24, True), 24, 16, lr=1e-2))
zoo.sick(
    "adverts-retention-one-minus-left-out",
    lambda s: adverts(s, Retention(24, False), 24, 16, lr=1e-2),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.k", "rnn.v"),
    control=retained,
)

# --- recurrences that run away


class Rotations(nn.Module):
    """A linear recurrence of complex eigenvalues, of size exp(-exp(nu)); without the minus they lie outside."""

    def __init__(self, dim: int, width: int, minus: bool) -> None:
        super().__init__()
        self.minus, self.inp, self.out = minus, nn.Linear(dim, 2 * width), nn.Linear(2 * width, width)
        self.nu, self.theta = nn.Parameter(torch.linspace(-5.0, -1.0, width)), nn.Parameter(3 * torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.exp(-torch.exp(self.nu) if self.minus else torch.exp(self.nu))
        re, im = size * self.theta.cos(), size * self.theta.sin()
        a = b = torch.zeros(len(x), len(size))
        out = []
        for now in self.inp(x).unbind(1):
            u, v = now.chunk(2, dim=-1)
            a, b = re * a - im * b + u, im * a + re * b + v
            out.append(torch.cat([a, b], dim=-1))
        return F.gelu(self.out(torch.stack(out, dim=1)))


inside = zoo.healthy(
    "levels-complex-eigenvalues-inside-the-circle",
    lambda s: levels(s, Rotations(16, 24, True), 24, 40, lr=5e-3, clip=1.0),
)
zoo.sick(
    "levels-complex-eigenvalues-minus-forgotten",
    lambda s: levels(s, Rotations(16, 24, False), 24, 40, lr=5e-3, clip=1.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn", "rnn.inp", "rnn.out"),
    also=WILD_TOO,
    control=inside,
)


class Euler(Cell):
    """A learned differential equation, dx = A tanh(x) - x + B u, by Euler's method with steps of `dt`."""

    def __init__(self, dim: int, width: int, dt: float) -> None:
        super().__init__()
        self.hidden_size, self.dt = width, dt
        self.b, self.a = nn.Linear(dim, width), nn.Linear(width, width)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + self.dt * (self.a(torch.tanh(state)) - state + self.b(x))


fine = zoo.healthy("levels-equation-by-euler-steps-of-0.05", lambda s: levels(s, Euler(16, 40, 0.05), 40, lr=1e-2))
zoo.sick(
    "levels-equation-by-euler-steps-of-3",
    lambda s: levels(s, Euler(16, 40, 3.0), 40, lr=1e-2, clip=1.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn.a", "rnn.b"),
    also=WILD_TOO,
    control=fine,
)


class LeakyElman(Cell):
    """An Elman cell with leaky rectifiers, orthogonal times a gain; and its input."""

    def __init__(self, dim: int, width: int, gain: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.x2h, self.h2h = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.h2h.weight, gain)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return F.leaky_relu(self.x2h(x) + self.h2h(state), 0.5)


unit = zoo.healthy("adverts-leaky-cell-orthogonal", lambda s: adverts(s, LeakyElman(24, 40, 1.2), 40, clip=1.0))
zoo.sick(
    "adverts-leaky-cell-orthogonal-gain-5-by-3-twice",
    lambda s: adverts(s, LeakyElman(24, 40, 25 / 9), 40, clip=1.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn.x2h", "rnn.h2h"),
    also=WILD_TOO,
    control=unit,
)


class Added(Cell):
    """A rectified cell whose state is also added to the new one; its matrix begins small, or as the identity."""

    def __init__(self, dim: int, width: int, identity: bool) -> None:
        super().__init__()
        self.hidden_size = width
        self.i2h, self.h2h = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.eye_(self.h2h.weight) if identity else nn.init.normal_(self.h2h.weight, std=0.02)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + F.relu(self.i2h(x) + self.h2h(state))


small = zoo.healthy("switches-added-state-small-matrix", lambda s: kicked(s, Added(16, 32, False), 32, clip=1.0))


def kicked(seed: int, rnn: nn.Module, features: int, **more) -> Setup:
    """At every step, where was each switch kicked last?"""
    model = Each(nn.Linear(3, 16), rnn, features, 3)
    return told(model, switches(seed), 10, **{"lr": 5e-3, "steps": 80, **more})


zoo.sick(
    "switches-added-state-and-identity-matrix",
    lambda s: kicked(s, Added(16, 32, True), 32, clip=1.0),
    both(lasting(through_time("enter", above=50)), ends_worse()),
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn.i2h", "rnn.h2h"),
    also=WILD_TOO,
    control=small,
)


class Delta(nn.Module):
    """A fast memory written by the delta rule, by keys of length one."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, width), nn.Linear(dim, width)
        self.v, self.beta = nn.Linear(dim, width), nn.Linear(dim, 1)
        nn.init.constant_(self.beta.bias, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, beta = self.q(x), F.normalize(self.k(x), dim=-1), self.v(x), torch.sigmoid(self.beta(x))
        memory, out = torch.zeros(len(x), v.shape[-1], k.shape[-1]), []
        for t in range(x.shape[1]):
            miss = v[:, t] - (memory @ k[:, t, :, None])[..., 0]
            memory = memory + beta[:, t, :, None] * miss[..., None] * k[:, t, None]
            out.append((memory @ q[:, t, :, None])[..., 0])
        return torch.stack(out, dim=1)


zoo.healthy("adverts-delta-rule-keys-of-length-one", lambda s: adverts(s, Delta(24, 24), 24, 16, lr=1e-2, clip=1.0))

# --- the faults of any network


class Tower(nn.Module):
    """Floors of Elman layers over spoken commands, with sums between floors or without."""

    def __init__(self, floors: int, add: bool, width: int = 24) -> None:
        super().__init__()
        self.enter, self.add = nn.Linear(8, width), add
        self.floors = nn.ModuleList(nn.RNN(width, width, batch_first=True) for _ in range(floors))
        self.head = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for floor in self.floors:
            h = h + floor(h)[0] if self.add else floor(h)[0]
        return self.head(h.mean(dim=1))


def spoken(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, commands(seed), **{"lr": 2e-3, "steps": 60, **more})


summed = zoo.healthy("commands-fourteen-floors-with-sums", lambda s: spoken(s, Tower(14, True)))
zoo.sick(
    "commands-fourteen-floors-one-on-the-other",
    lambda s: spoken(s, Tower(14, False)),
    both(small_gradients(["enter", "floors.0"], "head", 3e-2), ends_worse()),
    "VANISHING",
    layer=("enter", *(f"floors.{i}" for i in range(14))),
    also={"LOW_RANK", "BOTTLENECK", "SLOW", "SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=summed,
)


class Rectified(nn.Module):
    """A number from the last state of a GRU, through a ReLU at the very end or not."""

    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Linear(4, 16), nn.GRU(16, 32, batch_first=True)
        self.head, self.relu = nn.Linear(32, 1), relu

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.rnn(self.enter(x))[0][:, -1])
        return F.relu(y) if self.relu else y


def frost(seed: int, relu: bool) -> Setup:
    """The logarithm of what is left, which is never positive."""
    task = bearings(seed).changed(lambda x, left: (x, (left + 0.05).log() - 0.5))
    return live(Rectified(relu), task, lr=1e-2, steps=60)


linear_end = zoo.healthy("bearings-log-of-the-rest-linear-end", lambda s: frost(s, False))
zoo.sick(
    "bearings-log-of-the-rest-relu-at-the-end",
    lambda s: frost(s, True),
    both(at_last(never_fires("head", 0.99), no_gradient("head", "rnn", "enter")), ends_worse()),
    "DEAD",
    "DISCONNECTED",
    layer=("head",),
    also={"VANISHING", *SHORT_TOO, "SLOW"},
    control=linear_end,
)


class Bounded(nn.Module):
    """The next hour by an LSTM, through a tanh at the end or not."""

    def __init__(self, tanh: bool) -> None:
        super().__init__()
        self.rnn, self.head, self.tanh = nn.LSTM(2, 32, batch_first=True), nn.Linear(32, 2), tanh

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.rnn(x)[0])
        return torch.tanh(y) if self.tanh else y


def counts(seed: int, tanh: bool) -> Setup:
    """Bicycles are counted in tens: 1 to 7 of them, and never scaled to -1 … 1."""
    task = rides(seed).changed(lambda x, y: (x, 2 * y + 4))
    return live(Bounded(tanh), task, lr=2e-2, steps=80)


open_end = zoo.healthy("rides-counts-in-tens-linear-end", lambda s: counts(s, False))
zoo.sick(
    "rides-counts-in-tens-tanh-at-the-end",
    lambda s: counts(s, True),
    both(at_last(flat("head", "tanh", 0.9)), ends_worse(2.0)),
    "SATURATION",
    "VANISHING",
    layer=("head",),
    also={"DEAD", "DISCONNECTED", *SHORT_TOO, "LOW_RANK", "SLOW"},
    control=open_end,
)


def gates_flat(setup: Setup) -> float:
    """Share of an LSTM's or GRU's gates that are flat for what the input alone gives them."""
    rnn, x = setup.model.rnn, setup.input_fn()
    with torch.no_grad():
        z = F.linear(setup.model.enter(x), rnn.weight_ih_l0, rnn.bias_ih_l0)[..., : 2 * rnn.hidden_size]
        slope = 4 * torch.sigmoid(z) * (1 - torch.sigmoid(z))
    return (slope < 0.05).double().mean().item()


def pressures(seed: int, scale: float) -> Setup:
    """Signs of wear as a sensor sends them, in pascals, or scaled."""
    model = Last(nn.Identity(), nn.LSTM(4, 32, batch_first=True), 32, 1)
    return live(model, bearings(seed).mapped(lambda x: scale * (x + 1)), lr=5e-3, steps=60)


bars = zoo.healthy("bearings-pressures-in-bar", lambda s: pressures(s, 1.0))
zoo.sick(
    "bearings-pressures-in-pascal",
    lambda s: pressures(s, 1e5),
    both(lasting(more_than(gates_flat, 0.9, "share of flat gates")), ends_worse(1.5)),
    "SATURATION",
    "VANISHING",
    layer=("rnn",),
    also={"EXPLODING", "UNSTABLE", "SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "DEAD"},
    control=bars,
)


def tagger(seed: int, std: float | None) -> Setup:
    """Slots of a request by an LSTM, every parameter of which may be drawn with one deviation."""
    model = Each(nn.Embedding(18, 24), nn.LSTM(24, 64, batch_first=True), 64, 4)
    if std is not None:
        everything(model.rnn, std)
    return live(model, orders(seed), lr=2e-3, steps=60)


usual = zoo.healthy("orders-lstm-as-torch-draws-it", lambda s: tagger(s, None))
zoo.sick(
    "orders-lstm-everything-normal-of-deviation-3",
    lambda s: tagger(s, 3.0),
    both(lasting(more_than(gates_flat, 0.6, "share of flat gates")), ends_worse(1.3)),
    "SATURATION",
    "VANISHING",
    "SPECTRAL_RADIUS",
    layer=("rnn",),
    also={"EXPLODING", "UNSTABLE", "SHORT_MEMORY"},
    control=usual,
)


class MeanName(nn.Module):
    """The mean of a GRU's states over the letters of a name."""

    def __init__(self, at_least: int) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(17, 20, padding_idx=0), nn.GRU(20, 32, batch_first=True)
        self.head, self.at_least = nn.Linear(32, 5), at_least

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        states = self.rnn(self.enter(letters))[0] * (letters > 0)[..., None]
        return self.head(states.sum(dim=1) / lengths.clamp_min(self.at_least)[:, None])


def blank_names(seed: int, at_least: int) -> Setup:
    """A field is left blank in some batch."""
    now = every(40, 21)

    def blank(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        letters, lengths = (each.clone() for each in batch)
        if now():
            letters[3], lengths[3] = 0, 0
        return letters, lengths

    return live(MeanName(at_least), surnames(seed).mapped(blank), lr=1e-2, steps=60)


named = zoo.healthy("surnames-mean-over-at-least-one-letter", lambda s: blank_names(s, 1), thrives(0.15))
zoo.sick("surnames-mean-over-a-blank-name", lambda s: blank_names(s, 0), breaks, "NUMERICAL", control=named)


class Twins(nn.Module):
    """Two commands, one LSTM, the distance of its last states; the root may have a floor."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.enter, self.rnn, self.floor = nn.Linear(8, 16), nn.LSTM(16, 24, batch_first=True), floor

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = (self.rnn(self.enter(x))[0][:, -1] for x in (first, second))
        return ((a - b).square().sum(dim=1) + self.floor).sqrt()


def same_speaker(seed: int, floor: float) -> Setup:
    """Pairs of commands: near if they are the same, apart by a margin if not; now and then a recording twice."""
    now = every(30, 11)

    def paired(x: Tensor, target: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a, b = x.chunk(2)
        b = b.clone()
        y = target.clone().chunk(2)
        alike = (y[0] == y[1]).float()
        if now():
            b[0], alike[0] = a[0], 1.0
        return (a, b), alike

    def loss(distance: Tensor, alike: Tensor) -> Tensor:
        return (alike * distance.square() + (1 - alike) * F.relu(1.5 - distance).square()).mean() + 0 * distance.sum()

    return live(Twins(floor), commands(seed, 3, batch=64).changed(paired).with_loss(loss), lr=5e-3, steps=60)


floored = zoo.healthy("commands-in-pairs-root-with-a-floor", lambda s: same_speaker(s, 1e-6))
zoo.sick("commands-in-pairs-root-of-nothing", lambda s: same_speaker(s, 0.0), breaks, "NUMERICAL", control=floored)


class Captioner(nn.Module):
    """What a picture shows starts an LSTM that writes a text; the start may go through numpy."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.feature, self.start = nn.Linear(120, 48), nn.Linear(48, 40)
        self.words, self.rnn = nn.Embedding(11, 16), nn.LSTM(16, 40, batch_first=True)
        self.head, self.cut = nn.Linear(40, 10), cut

    def forward(self, picture: Tensor, shifted: Tensor) -> Tensor:
        h = torch.tanh(self.start(F.gelu(self.feature(picture))))
        if self.cut:
            h = torch.from_numpy(h.detach().numpy().copy())
        return self.head(self.rnn(self.words(shifted), (h[None], torch.zeros_like(h)[None]))[0])


def captions(seed: int, cut: bool) -> Setup:
    """Four things stand in a picture, one in each quarter, among clutter; they are named in some order."""
    random = torch.Generator().manual_seed(seed + 31)

    def shown(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        things = 4.0 * F.one_hot(batch[0], 10).flatten(1)
        return torch.cat([things, 2 * torch.randn(len(things), 80, generator=random)], dim=1), batch[1]

    return live(Captioner(cut), swaps(seed, length=4).mapped(shown), lr=1e-2, steps=100)


started = zoo.healthy("captions-lstm-started-by-features", lambda s: captions(s, False), thrives(0.05))
zoo.sick(
    "captions-lstm-started-by-features-through-numpy",
    lambda s: captions(s, True),
    both(lasting(no_gradient("feature", "start")), ends_worse(1.1)),
    "DISCONNECTED",
    "DEAD",
    layer=("feature", "start"),
    also=SHORT_TOO,
    control=started,
)


class Frozen(nn.Module):
    """An acoustic network under no_grad, as it was when it was pretrained; here it is new and should learn."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.acoustic = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 3))
        self.cached, self.rnn, self.head = cached, nn.GRU(3, 32, batch_first=True), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cached):
            features = self.acoustic(x)
        return self.head(self.rnn(features)[0].mean(dim=1))


acoustic = zoo.healthy("commands-acoustic-network-learns-too", lambda s: spoken(s, Frozen(False), lr=1e-2))
zoo.sick(
    "commands-acoustic-network-left-under-no-grad",
    lambda s: spoken(s, Frozen(True), lr=1e-2),
    both(lasting(no_gradient("acoustic")), ends_worse(1.15)),
    "DISCONNECTED",
    "DEAD",
    layer=("acoustic", "acoustic.0", "acoustic.2"),
    control=acoustic,
)


class Retold(nn.Module):
    """A GRU reads a text, a dense layer makes a code, another GRU tells the text from the code alone."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(11, 16), nn.GRU(16, 40, batch_first=True)
        self.code, self.wide = nn.Linear(40, code), nn.Linear(code, 40)
        self.teller, self.head = nn.GRU(16, 40, batch_first=True), nn.Linear(40, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        code = self.code(self.reader(self.words(source))[0][:, -1])
        return self.head(self.teller(self.words(shifted), torch.tanh(self.wide(code))[None])[0])


def retold(seed: int, code: int) -> Setup:
    return live(Retold(code), swaps(seed, 10, 4), lr=1e-2, steps=120)


roomy = zoo.healthy("texts-retold-from-a-code-of-24", lambda s: retold(s, 24))
zoo.sick(
    "texts-retold-from-a-code-of-1",
    lambda s: retold(s, 1),
    ends_worse(1.3),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("code", "wide"),
    also=SHORT_TOO,
    control=roomy,
)
wide = zoo.healthy(
    "verses-gru-embedding-of-16",
    lambda s: live(Each(nn.Embedding(12, 16), nn.GRU(16, 40, batch_first=True), 40, 12), verses(s), lr=1e-2, steps=80),
)
zoo.sick(
    "verses-gru-embedding-of-1",
    lambda s: live(Each(nn.Embedding(12, 1), nn.GRU(1, 40, batch_first=True), 40, 12), verses(s), lr=1e-2, steps=80),
    ends_worse(1.2),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("enter", "rnn"),
    also=SHORT_TOO,
    control=wide,
)


def prices(seed: int, level: float) -> Setup:
    """Next prices in thousands, or as they are, by SGD with momentum."""
    task = rides(seed).changed(lambda x, y: (x, level * (y + 3)))
    model = Each(nn.Linear(2, 16), nn.GRU(16, 32, batch_first=True), 32, 2)
    return live(model, task, kind="SGD", lr=0.05, momentum=0.9, steps=60)


def leaps(above: float) -> Proof:
    """Some step moves a matrix by many times its own size."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        largest = train(setup, setup.steps, setup.optimizer).largest_update
        return judged(not largest <= above, "largest update {:.1e} of the weight", largest)

    return costly(proof)


thousands = zoo.healthy("rides-prices-in-thousands-sgd", lambda s: prices(s, 0.5))
zoo.sick(
    "rides-prices-as-they-are-sgd",
    lambda s: prices(s, 2000.0),
    both(leaps(10.0), ends_worse(3.0)),
    *RUNS_AWAY,
    also={"SATURATION", "DEAD", *SHORT_TOO, "LOW_RANK", "BOTTLENECK"},
    control=thousands,
)


def glitches(seed: int, size: float) -> Setup:
    """A meter glitches in one batch of ten; nobody clips and nobody filters."""
    now = every(10, 4)

    def glitch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.clone()
        if now():
            y[0, 5:8] += size
        return x, y

    model = Each(nn.Linear(2, 16), nn.LSTM(16, 32, batch_first=True), 32, 2)
    return live(model, rides(seed).changed(glitch), lr=3e-3, steps=70)


calm = zoo.healthy("rides-meter-without-glitches", lambda s: glitches(s, 0.0))
zoo.sick(
    "rides-meter-glitches-in-one-batch-of-ten",
    lambda s: glitches(s, 4000.0),
    both(gradient_norms_spread(15), ends_worse(1.3)),
    *JUMPS,
    also={"NUMERICAL", "SATURATION"},
    control=calm,
)


def spelled(seed: int, lr: float) -> Setup:
    """A language model by an LSTM and SGD, as the example of torch has it, which clips; here nobody does."""
    model = Each(nn.Embedding(12, 32), nn.LSTM(32, 48, batch_first=True), 48, 12, dropout=0.1)
    return live(model, verses(seed), kind="SGD", lr=lr, steps=80)


twenty = zoo.healthy("verses-lstm-sgd-2", lambda s: spelled(s, 2.0), thrives(0.1))
zoo.sick(
    "verses-lstm-sgd-200-without-clipping",
    lambda s: spelled(s, 200.0),
    both(diverges(), ends_worse(2.0)),
    *RUNS_AWAY,
    also={"SATURATION", "DEAD", *SHORT_TOO, "LOW_RANK", "BOTTLENECK"},
    control=twenty,
)
