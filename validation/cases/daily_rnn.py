# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of every day whose memory is too short or whose state runs away, with their twins.

Half: daily.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Last, ends_worse, grows, through_time, told
from validation.cases._daily_recurrent import INTENT, PARCEL, amounts, doses, elman, intents, parcels, strips, towns
from validation.cases._usual_nets import falls_behind, rebuilt
from validation.evidence import at_last, both, lasting, thrives
from validation.labels import CHAOTIC, GROWS, SHORT
from validation.nets import Cell

zoo = Zoo("rnn", half="daily", analyzer="recurrent", proof=thrives(0.2))
FORGETS = both(lasting(through_time("enter", below=1e-4)), ends_worse())
RUNS = both(lasting(grows("rnn", 1e3)), ends_worse())
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK", "loss_grows", "first_loss_high"}
WEAK_TOO = {"SLOW", "LOW_RANK", "BOTTLENECK"}

# --- memory that is too short


def clamped(seed: int, bound: float) -> Setup:
    """All weights are clamped after each step, as the critics of some GANs are."""
    setup = amounts(seed, elman(20, 40, 1.0), 40, lr=3e-3, steps=100)

    def clamp(*_: object) -> None:
        for weight in setup.model.parameters():
            weight.data.clamp_(-bound, bound)

    setup.optimizer.register_step_post_hook(clamp)
    return setup


loosely = zoo.healthy("doses-elman-weights-clamped-at-1", lambda s: clamped(s, 1.0))
zoo.sick(
    "doses-elman-weights-clamped-at-0.02",
    lambda s: clamped(s, 0.02),
    both(at_last(through_time("enter", below=1e-4)), ends_worse()),
    *SHORT,
    "SLOW",
    "weights_overwritten",
    "never_moves",
    layer=("rnn", "enter", "head"),
    also=WEAK_TOO,
    control=loosely,
)


def sparse(seed: int, weight: float) -> Setup:
    """The recurrent weights pay for their size: a sum where a mean was meant."""
    rnn = elman(20, 40, 1.0)
    task = doses(seed).with_loss(lambda y, t: F.mse_loss(y, t) + weight * rnn.weight_hh_l0.abs().sum())
    return told(Last(nn.Linear(4, 20), rnn, 40, 3), task, 21, lr=4e-3, steps=110)


lightly = zoo.healthy("doses-elman-penalty-mean-of-recurrent-weights", lambda s: sparse(s, 1e-5))
zoo.sick(
    "doses-elman-penalty-sum-of-recurrent-weights",
    lambda s: sparse(s, 0.05),
    both(at_last(through_time("enter", below=1e-4)), falls_behind(rebuilt, 1.5, "error")),
    *SHORT,
    layer="rnn",
    also={*WEAK_TOO, "first_loss_high", "decay_dominates", "only_decay"},
    control=lightly,
)


class Jordan(nn.Module):
    """What goes back is the state of the last step, or, after Jordan, the chances that were said."""

    def __init__(self, said: bool) -> None:
        super().__init__()
        self.enter, self.inp, self.head = nn.Embedding(PARCEL, 20), nn.Linear(20, 40), nn.Linear(40, 6)
        self.back, self.said = nn.Linear(6 if said else 40, 40, bias=False), said
        nn.init.orthogonal_(self.back.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        back = torch.zeros(len(tokens), self.back.in_features)
        for x in self.inp(0.5 * self.enter(tokens)).unbind(1):
            h = torch.tanh(x + self.back(back))
            z = self.head(h)
            back = z.softmax(dim=-1) if self.said else h
        return z


def jordan(seed: int, said: bool) -> Setup:
    return told(Jordan(said), parcels(seed, 16), 15, lr=5e-3, steps=90)


goes_back = zoo.healthy("parcels-state-goes-back", lambda s: jordan(s, False))
zoo.sick(
    "parcels-jordan-chances-go-back",
    lambda s: jordan(s, True),
    FORGETS,
    *SHORT,
    "BOTTLENECK",
    layer=("back", "inp", "head"),
    also=WEAK_TOO,
    control=goes_back,
)


class Sru(nn.Module):
    """A simple recurrent unit: gates of the input alone, a sum that fades, a way around it."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.new, self.forget, self.way = (nn.Linear(width, width) for _ in range(3))
        nn.init.constant_(self.forget.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        f, r, new = torch.sigmoid(self.forget(x)), torch.sigmoid(self.way(x)), self.new(x)
        c, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            c = f[:, t] * c + (1 - f[:, t]) * new[:, t]
            out.append(r[:, t] * torch.tanh(3 * c) + (1 - r[:, t]) * x[:, t])
        return torch.stack(out, dim=1)


keeps = zoo.healthy("parcels-simple-recurrent-unit-bias-3", lambda s: towns(s, Sru(32, 3.0), 32, size=32))
zoo.sick(
    "parcels-simple-recurrent-unit-bias-of-a-highway",
    lambda s: towns(s, Sru(32, -3.0), 32, size=32),
    FORGETS,
    *SHORT,
    layer=("rnn.new", "rnn.forget"),
    control=keeps,
)


class Gappy(nn.Module):
    """Most readings are missing; where one is, a GRU cell goes on, and elsewhere the state stays, or is lost."""

    def __init__(self, stays: bool) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Linear(5, 20), nn.GRUCell(20, 36), nn.Linear(36, 3)
        self.stays = stays

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        h = torch.zeros(len(x), 36)
        for now, m in zip(self.enter(torch.cat([x, there], dim=-1)).unbind(1), there.unbind(1), strict=True):
            new = self.cell(now, h)
            h = m * new + (1 - m) * h if self.stays else m * new
        return self.head(h)


def gappy(seed: int, stays: bool) -> Setup:
    def some(x: Tensor, target: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        there = torch.zeros(len(x), x.shape[1], 1)
        there[:, [0, 5, 11, 17, 21]] = 1.0
        return (x * there, there), target

    return told(Gappy(stays), doses(seed).changed(some), 21, lr=1e-2, steps=80)


held = zoo.healthy("doses-missing-readings-keep-the-state", lambda s: gappy(s, True))
zoo.sick(
    "doses-missing-readings-lose-the-state",
    lambda s: gappy(s, False),
    both(lasting(through_time("enter", below=1e-12)), ends_worse()),
    *SHORT,
    "DISCONNECTED",
    layer=("cell", "enter"),
    also=WEAK_TOO,
    control=held,
)


class Antisymmetric(Cell):
    """A state that moves by an antisymmetric matrix minus a diffusion, in steps of a tenth."""

    def __init__(self, dim: int, width: int, diffusion: float) -> None:
        super().__init__()
        self.hidden_size, self.diffusion, self.inp = width, diffusion, nn.Linear(dim, width)
        self.w = nn.Parameter(torch.randn(width, width) / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        turn = self.w - self.w.T - self.diffusion * torch.eye(self.hidden_size)
        return state + 0.1 * torch.tanh(self.inp(x) + state @ turn.T)


thin = zoo.healthy(
    "doses-antisymmetric-diffusion-0.1", lambda s: amounts(s, Antisymmetric(20, 40, 0.1), 40, lr=8e-3, steps=110)
)
zoo.sick(
    "doses-antisymmetric-diffusion-9",
    lambda s: amounts(s, Antisymmetric(20, 40, 9.0), 40, lr=8e-3, steps=110),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.inp"),
    control=thin,
)


def pixels(seed: int, gain: float | None) -> Setup:
    """A picture read pixel by pixel by an Elman layer as torch draws it, or with an orthogonal recurrence."""
    return told(Last(nn.Linear(1, 16), elman(16, 48, gain), 48, 5), strips(seed), 35, lr=3e-3, steps=100)


drawn = zoo.healthy("strips-pixel-by-pixel-elman-orthogonal", lambda s: pixels(s, 1.0))
zoo.sick(
    "strips-pixel-by-pixel-elman-default",
    lambda s: pixels(s, None),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    control=drawn,
)


class OwnGru(Cell):
    """A GRU by hand; by mistake the reset gate may be on the state that is kept, too."""

    def __init__(self, dim: int, width: int, everywhere: bool) -> None:
        super().__init__()
        self.hidden_size, self.everywhere = width, everywhere
        self.gates, self.new = nn.Linear(dim + width, 2 * width), nn.Linear(dim + width, width)
        self.gates.bias.data[:width] = 3.0

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        z, r = torch.sigmoid(self.gates(torch.cat([x, state], dim=-1))).chunk(2, dim=-1)
        past = r * state
        new = torch.tanh(self.new(torch.cat([x, past], dim=-1)))
        return (1 - z) * new + z * (past if self.everywhere else state)


once = zoo.healthy("doses-own-gru-reset-in-the-candidate", lambda s: amounts(s, OwnGru(20, 40, False), 40))
zoo.sick(
    "doses-own-gru-reset-on-the-whole-state",
    lambda s: amounts(s, OwnGru(20, 40, True), 40),
    FORGETS,
    *SHORT,
    layer=("rnn.gates", "rnn.new"),
    control=once,
)


class OwnLstm(nn.Module):
    """An LSTM by hand with fused gates; the forget gate may go through the sigmoid twice."""

    def __init__(self, dim: int, width: int, twice: bool) -> None:
        super().__init__()
        self.width, self.twice = width, twice
        self.x2g, self.h2g = nn.Linear(dim, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.x2g.bias.data[width : 2 * width] = 4.0

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.width)
        out = []
        for now in self.x2g(x).unbind(1):
            i, f, g, o = (now + self.h2g(h)).chunk(4, dim=-1)
            i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
            if self.twice:
                f = torch.sigmoid(f)
            c = f * c + i * torch.tanh(g)
            h = o * torch.tanh(c)
            out.append(h)
        return torch.stack(out, dim=1)


gate_once = zoo.healthy("parcels-own-lstm-one-sigmoid", lambda s: towns(s, OwnLstm(20, 40, False), 40, 36, steps=60))
zoo.sick(
    "parcels-own-lstm-forget-gate-sigmoid-twice",
    lambda s: towns(s, OwnLstm(20, 40, True), 40, 36, steps=60),
    both(lasting(through_time("enter", below=1e-3)), ends_worse()),
    *SHORT,
    layer=("rnn.x2g", "rnn.h2g"),
    control=gate_once,
)


class Dilated(nn.Module):
    """An Elman cell whose past lies `reach` steps back."""

    def __init__(self, dim: int, width: int, reach: int) -> None:
        super().__init__()
        self.reach, self.inp, self.past = reach, nn.Linear(dim, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: list[Tensor] = [torch.zeros(len(x), self.past.in_features)] * self.reach
        for now in self.inp(x).unbind(1):
            out.append(torch.tanh(now + self.past(out[-self.reach])))
        return torch.stack(out[self.reach :], dim=1)


far = zoo.healthy("doses-dilated-cell-seven-steps-back", lambda s: amounts(s, Dilated(20, 48, 7), 48, lr=3e-3))
zoo.sick(
    "doses-dilated-cell-dilation-left-at-1",
    lambda s: amounts(s, Dilated(20, 48, 1), 48, lr=3e-3),
    both(lasting(through_time("enter", below=1e-3)), ends_worse()),
    *SHORT,
    layer=("rnn.inp", "rnn.past"),
    control=far,
)


class Scaled(nn.Module):
    """A GRU cell whose state hands back a share of its gradient, as models that plan do at each unrolled step."""

    def __init__(self, dim: int, width: int, share: float) -> None:
        super().__init__()
        self.cell, self.share = nn.GRUCell(dim, width), share
        self.cell.bias_hh.data[width : 2 * width] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.cell.hidden_size), []
        for now in x.unbind(1):
            h = self.share * h + (1 - self.share) * h.detach()
            h = self.cell(now, h)
            out.append(h)
        return torch.stack(out, dim=1)


whole = zoo.healthy("doses-gru-cell-whole-gradient", lambda s: amounts(s, Scaled(20, 40, 1.0), 40))
zoo.sick(
    "doses-gru-cell-half-the-gradient-at-each-step",
    lambda s: amounts(s, Scaled(20, 40, 0.5), 40),
    FORGETS,
    *SHORT,
    layer=("rnn.cell", "enter"),
    control=whole,
)


class Rounded(nn.Module):
    """A GRU cell for a small device: its state is rounded to sixteenths, with or without a gradient."""

    def __init__(self, dim: int, width: int, through: bool) -> None:
        super().__init__()
        self.cell, self.through = nn.GRUCell(dim, width), through
        self.cell.bias_hh.data[width : 2 * width] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.cell.hidden_size), []
        for now in x.unbind(1):
            fine = self.cell(now, h)
            h = (16 * fine).round() / 16
            if self.through:
                h = fine + (h - fine).detach()
            out.append(fine)
        return torch.stack(out, dim=1)


straight = zoo.healthy("doses-rounded-state-straight-through", lambda s: amounts(s, Rounded(20, 40, True), 40, 16))
zoo.sick(
    "doses-rounded-state-without-gradient",
    lambda s: amounts(s, Rounded(20, 40, False), 40, 16),
    both(lasting(through_time("enter", below=1e-12)), ends_worse()),
    *SHORT,
    "DISCONNECTED",
    "DEAD",
    layer=("rnn.cell", "enter"),
    also={"detached"},
    control=straight,
)


class TwoWays(nn.Module):
    """An LSTM both ways over a request; the head gets the end of each way, or by mistake its beginning."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(INTENT, 20), nn.LSTM(20, 32, batch_first=True, bidirectional=True)
        self.head, self.ends = nn.Linear(64, 4), ends

    def forward(self, words: Tensor) -> Tensor:
        ahead, back = self.rnn(self.enter(words))[0].chunk(2, dim=-1)
        last, first = (-1, 0) if self.ends else (0, -1)
        return self.head(torch.cat([ahead[:, last], back[:, first]], dim=-1))


def two_ways(seed: int, ends: bool) -> Setup:
    return told(TwoWays(ends), intents(seed, 9).mapped(lambda x: x[0]), 8, lr=1e-2, steps=90)


both_ends = zoo.healthy("requests-bilstm-ends-of-both-ways", lambda s: two_ways(s, True))
zoo.sick(
    "requests-bilstm-beginnings-of-both-ways",
    lambda s: two_ways(s, False),
    both(lasting(through_time("enter", below=1e-12, first=4)), ends_worse(1.5)),
    *SHORT,
    "DISCONNECTED",
    "DEAD",
    layer=("rnn", "enter", "head"),
    also={*WEAK_TOO, "never_moves"},
    control=both_ends,
)

# --- states that run away


def two_floors(seed: int, start) -> Setup:
    """Two rectified Elman layers; all their matrices are drawn in one loop over the parameters."""
    rnn = elman(20, 40, num_layers=2, nonlinearity="relu")
    for weight in rnn.parameters():
        if weight.dim() == 2:
            start(weight)
    return amounts(seed, rnn, 40, 14, lr=2e-3, steps=120, clip=1.0)


glorot = zoo.healthy("doses-two-relu-elmans-orthogonal", lambda s: two_floors(s, nn.init.orthogonal_))
zoo.sick(
    "doses-two-relu-elmans-normal-of-0.6",
    lambda s: two_floors(s, lambda weight: nn.init.normal_(weight, std=0.6)),
    RUNS,
    *CHAOTIC,
    "UNSTABLE",
    layer="rnn",
    also=WILD_TOO,
    control=glorot,
)


class Looped(Cell):
    """A residual block of two dense layers, applied at every step; its second matrix begins small, or as any other."""

    def __init__(self, dim: int, width: int, gain: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.up, self.down = nn.Linear(dim + width, 2 * width), nn.Linear(2 * width, width)
        nn.init.xavier_uniform_(self.up.weight, 2**0.5)
        nn.init.xavier_uniform_(self.down.weight, gain)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + self.down(F.leaky_relu(self.up(torch.cat([x, state], dim=-1)), 0.2))


begun_small = zoo.healthy(
    "doses-looped-residual-block-begins-small", lambda s: amounts(s, Looped(20, 32, 0.05), 32, lr=2e-3, clip=1.0)
)
zoo.sick(
    "doses-looped-residual-block-drawn-as-any-layer",
    lambda s: amounts(s, Looped(20, 32, 2**0.5), 32, lr=2e-3, clip=1.0),
    both(grows("rnn", 1e3), at_last(grows("rnn", 30)), ends_worse(3.0)),
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn.up", "rnn.down"),
    also=WILD_TOO,
    control=begun_small,
)


class FastWeights(nn.Module):
    """A cell with a fast matrix that is written by its own states; a layer norm keeps them in bounds, or is missing."""

    def __init__(self, dim: int, width: int, normed: bool) -> None:
        super().__init__()
        self.inp, self.back = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()
        nn.init.eye_(self.back.weight)
        self.back.weight.data *= 0.5

    def forward(self, x: Tensor) -> Tensor:
        h, fast, out = torch.zeros(len(x), self.back.in_features), 0.0, []
        for now in self.inp(x).unbind(1):
            slow = now + self.back(h)
            h = F.leaky_relu(slow, 0.5)
            fast = 0.95 * fast + 0.13 * h[:, :, None] * h[:, None]
            h = F.leaky_relu(self.norm(slow + (fast @ h[..., None])[..., 0]), 0.5)
            out.append(h)
        return torch.stack(out, dim=1)


def fast(seed: int, normed: bool) -> Setup:
    return amounts(seed, FastWeights(20, 24, normed), 24, 7, lr=3e-3, clip=1.0)


normed = zoo.healthy("doses-fast-weights-layer-norm", lambda s: fast(s, True))
zoo.sick(
    "doses-fast-weights-without-norm",
    lambda s: fast(s, False),
    both(grows("rnn", 1e3), at_last(grows("rnn", 3)), ends_worse(5.0)),
    *CHAOTIC,
    "UNSTABLE",
    "NUMERICAL",
    layer=("rnn.inp", "rnn.back", "enter"),
    also=WILD_TOO,
    control=normed,
)


class Stations(Cell):
    """Twelve stations in a ring of neighbours; each takes the mean of the others' states, or their sum."""

    def __init__(self, dim: int, summed: bool, count: int = 12, size: int = 6) -> None:
        super().__init__()
        self.hidden_size, self.count = count * size, count
        self.inp, self.pass_on = nn.Linear(dim, count * size), nn.Linear(size, size, bias=False)
        nn.init.eye_(self.pass_on.weight)
        place = torch.arange(count)
        near = ((place[:, None] - place).abs() % count).clamp_max(3) < 3
        links = near.float()
        self.register_buffer("links", links if summed else links / links.sum(dim=1, keepdim=True))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        told = self.links @ self.pass_on(state.unflatten(1, (self.count, -1)))
        return F.leaky_relu(0.3 * self.inp(x) + told.flatten(1), 0.9)


def stations(seed: int, summed: bool) -> Setup:
    return amounts(seed, Stations(20, summed), 72, 12, steps=100, clip=1.0)


averaged = zoo.healthy("doses-stations-mean-of-neighbours", lambda s: stations(s, False))
zoo.sick(
    "doses-stations-sum-of-neighbours",
    lambda s: stations(s, True),
    RUNS,
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn.inp", "rnn.pass_on"),
    also=WILD_TOO,
    control=averaged,
)


class Multiplied(Cell):
    """Multiplicative integration: the drives of input and state, and their product by a weight."""

    def __init__(self, dim: int, width: int, weight: float) -> None:
        super().__init__()
        self.hidden_size, self.weight = width, weight
        self.x, self.h = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.h.weight)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        a, b = self.x(x), self.h(state)
        return F.leaky_relu(self.weight * a * b + b + 0.3 * a, 0.8)


small = zoo.healthy(
    "parcels-product-of-drives-by-0.1", lambda s: towns(s, Multiplied(20, 40, 0.1), 40, 14, lr=5e-4, clip=1.0)
)
zoo.sick(
    "parcels-product-of-drives-by-5",
    lambda s: towns(s, Multiplied(20, 40, 5.0), 40, 14, lr=5e-4, clip=1.0),
    RUNS,
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn.x", "rnn.h", "enter"),
    also=WILD_TOO,
    control=small,
)


class Householder(Cell):
    """A recurrence of reflections I - 2vvᵀ / |v|²; the division may be forgotten."""

    def __init__(self, dim: int, width: int, divided: bool, count: int = 2) -> None:
        super().__init__()
        self.hidden_size, self.divided, self.inp = width, divided, nn.Linear(dim, width)
        self.mirrors = nn.Parameter(2.8 * torch.randn(count, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        for v in self.mirrors:
            share = 2 / v.dot(v) if self.divided else 2.0
            state = state - share * (state @ v)[:, None] * v
        return F.leaky_relu(self.inp(x) + state + self.bias, 0.8)


mirrored = zoo.healthy(
    "doses-householder-divided", lambda s: amounts(s, Householder(20, 32, True), 32, 10, lr=5e-3, steps=120, clip=1.0)
)
zoo.sick(
    "doses-householder-not-divided",
    lambda s: amounts(s, Householder(20, 32, False), 32, 10, lr=5e-3, steps=120, clip=1.0),
    RUNS,
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn", "rnn.inp"),
    also=WILD_TOO,
    control=mirrored,
)


class Normed(Cell):
    """A rectified cell under weight norm; its gains are set by hand."""

    def __init__(self, dim: int, width: int, gain: float) -> None:
        super().__init__()
        self.hidden_size, self.inp = width, nn.Linear(dim, width)
        self.back = parametrizations.weight_norm(nn.Linear(width, width, bias=False))
        self.back.parametrizations.weight.original0.data.fill_(gain)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return F.leaky_relu(self.inp(x) + self.back(state), 0.3)


one = zoo.healthy(
    "doses-weight-norm-gain-1", lambda s: amounts(s, Normed(20, 48, 1.0), 48, 10, lr=5e-3, steps=120, clip=1.0)
)
zoo.sick(
    "doses-weight-norm-gain-12",
    lambda s: amounts(s, Normed(20, 48, 12.0), 48, 10, lr=5e-3, steps=120, clip=1.0),
    RUNS,
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn.back", "rnn.inp"),
    also=WILD_TOO,
    control=one,
)
