# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of which people wrote that they forget, or that their state runs away, with the fixes.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last, ends_worse, grows, through_time, told
from validation.cases._reported_sequences import blind_to
from validation.cases._threads_sequences import (
    NOTE,
    PARCEL,
    delivered,
    episodes,
    gauged,
    loads,
    melodies,
    parcels,
)
from validation.evidence import both, lasting, saturated, states_flat, thrives
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, SHORT
from validation.setups import live

zoo = Zoo("rnn", half="threads", analyzer="recurrent", proof=thrives(0.2))
FORGETS = both(lasting(through_time("enter", below=1e-4)), ends_worse())
WEAK_TOO = {"SLOW", "LOW_RANK", "BOTTLENECK", "loss_stuck"}
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK", "loss_grows", "first_loss_high"}

# --- the state is lost on the way


class TwoWays(nn.Module):
    """An LSTM both ways; the head reads its outputs at the last step, or where each way ends."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(PARCEL, 20), nn.LSTM(20, 32, batch_first=True, bidirectional=True)
        self.head, self.ends = nn.Linear(64, 6), ends

    def forward(self, x: Tensor) -> Tensor:
        out, (h, _) = self.rnn(self.enter(x))
        return self.head(torch.cat([h[0], h[1]], dim=1) if self.ends else out[:, -1])


# yunjey/pytorch-tutorial#149, aymericdamien/TensorFlow-Examples#201: at the last step, the way back has read one word.
where_it_ends = zoo.healthy(
    "parcels-bilstm-where-each-way-ends", lambda s: told(TwoWays(True), parcels(s, 40), 39, lr=5e-3, steps=70)
)
zoo.sick(
    "parcels-bilstm-read-at-the-last-step",
    lambda s: told(TwoWays(False), parcels(s, 40), 39, lr=5e-3, steps=70),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=where_it_ends,
)


class Windowed(nn.Module):
    """An LSTM over a window; each of its steps may be a row of its own, of one step."""

    def __init__(self, folded: bool) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Linear(8, 20), nn.LSTM(20, 40, batch_first=True), nn.Linear(40, 5)
        self.folded = folded

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        out = self.rnn(h.reshape(-1, 1, 20) if self.folded else h)[0]
        return self.head(out.reshape(len(x), -1, 40)[:, -1])


# ColasGael/Machine-Learning-for-Solar-Energy-Prediction#2, titu1994/LSTM-FCN#4: reshape to (rows, 1, features), so
# that a row has one time step and the layer nothing to remember.
steps_kept = zoo.healthy("episodes-lstm-rows-of-8-steps", lambda s: told(Windowed(False), episodes(s, 8), 7, lr=1e-2))
zoo.sick(
    "episodes-lstm-rows-of-1-step",
    lambda s: told(Windowed(True), episodes(s, 8), 7, lr=1e-2),
    both(lasting(blind_to("enter", *range(7))), ends_worse(1.5)),
    *CUT_SHORT,
    layer=("rnn", "enter"),
    also={*WEAK_TOO, "DEAD", "never_moves", "broadcast", "detached"},
    control=steps_kept,
)


class HandCell(nn.Module):
    """An LSTM cell in a loop; its cell state may be new in each round."""

    def __init__(self, dim: int, width: int, passed: bool, drop: float = 0.0) -> None:
        super().__init__()
        self.cell, self.passed, self.drop = nn.LSTMCell(dim, width), passed, drop
        self.cell.bias_hh.data[width : 2 * width] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.cell.hidden_size)
        out = []
        for now in x.unbind(1):
            h, c = self.cell(now, (h, c if self.passed else torch.zeros_like(c)))
            c = F.dropout(c, self.drop, self.training)
            out.append(h)
        return torch.stack(out, dim=1)


# changywtw/Dual-Attention-Network#2: the cells are called one by one, and the cell state does not go from one to the
# next.
handed_on = zoo.healthy("levels-lstm-cell-state-handed-on", lambda s: gauged(s, HandCell(20, 40, True), 40, 16))
zoo.sick(
    "levels-lstm-cell-state-always-new",
    lambda s: gauged(s, HandCell(20, 40, False), 40, 16),
    FORGETS,
    *CUT_SHORT,
    layer=("rnn.cell", "enter"),
    also=WEAK_TOO,
    control=handed_on,
)


class DropAll(nn.Module):
    """A GRU cell in a loop; the state is dropped from, by a new mask at each step, or only what is read from it."""

    def __init__(self, dim: int, width: int, state: bool) -> None:
        super().__init__()
        self.cell, self.state = nn.GRUCell(dim, width), state
        self.cell.bias_hh.data[width : 2 * width] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.cell.hidden_size), []
        for now in x.unbind(1):
            h = self.cell(now, h)
            if self.state:
                h = h * (torch.rand_like(h) > 0.5)
            out.append(F.dropout(h, 0.2, self.training))
        return torch.stack(out, dim=1)


# ECMWFCode4Earth/ml_drought#103: dropout between the time steps, with a new mask for each, wipes out what was kept.
drop_outside = zoo.healthy("parcels-gru-dropout-of-outputs", lambda s: delivered(s, DropAll(20, 40, False), 40, 16))
zoo.sick(
    "parcels-gru-dropout-of-the-state",
    lambda s: delivered(s, DropAll(20, 40, True), 40, 16),
    both(lasting(through_time("enter", below=1e-3)), ends_worse(1.3)),
    *SHORT,
    layer=("rnn.cell", "enter"),
    also={*WEAK_TOO, "UNSTABLE"},
    control=drop_outside,
)


class Wrong(nn.Module):
    """An LSTM without a forget gate; the input gate is added to what it should hold back, or multiplied with it."""

    def __init__(self, dim: int, width: int, added: bool) -> None:
        super().__init__()
        self.gates, self.width, self.added = nn.Linear(dim + width, 3 * width), width, added
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.width)
        out = []
        for now in x.unbind(1):
            i, g, o = self.gates(torch.cat([now, h], dim=1)).chunk(3, dim=1)
            i, g = torch.sigmoid(i), torch.tanh(g)
            c = c + (i + g if self.added else i * g)
            h = torch.sigmoid(o) * self.act(c)
            out.append(h)
        return torch.stack(out, dim=1)


# MartinuzziFrancesco/torchrecurrent#22: sigmoid(i) + tanh(g) where a product was meant; the cell only ever climbs.
multiplied = zoo.healthy("levels-first-lstm-gate-multiplied", lambda s: gauged(s, Wrong(20, 40, False), 40, 24))
zoo.sick(
    "levels-first-lstm-gate-added",
    lambda s: gauged(s, Wrong(20, 40, True), 40, 24),
    both(lasting(saturated("rnn.act", "tanh", 0.7)), ends_worse(1.3)),
    "SATURATION",
    "SHORT_MEMORY",
    "VANISHING",
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer=("rnn", "rnn.gates", "rnn.act", "enter"),
    also={*WEAK_TOO, "UNSTABLE"},
    control=multiplied,
)


class Scan(nn.Module):
    """A diagonal state-space layer: each number decays by exp(-rate * step) at each step."""

    def __init__(self, dim: int, width: int, step: float, sign: float = -1.0) -> None:
        super().__init__()
        self.b = nn.Linear(dim, width)
        self.log_rate = nn.Parameter(torch.log(0.5 + torch.arange(width) % 4))
        self.log_step = nn.Parameter(torch.full((width,), step).log())
        self.sign = sign

    def forward(self, x: Tensor) -> Tensor:
        step = self.log_step.exp()
        keep = torch.exp(self.sign * step * self.log_rate.exp())
        h, out = torch.zeros(len(x), len(step)), []
        for now in self.b(x).unbind(1):
            h = keep * h + now
            out.append(h)
        return torch.stack(out, dim=1)


# dhkim0225/1day_1paper#139, state-spaces/mamba#197: the larger the step, the less is left of the past; with a step of
# 2 where papers draw it between 0.001 and 0.1, next to nothing.
small_step = zoo.healthy("levels-state-space-step-0.01", lambda s: gauged(s, Scan(20, 40, 0.01), 40, 24, lr=3e-3))
zoo.sick(
    "levels-state-space-step-2",
    lambda s: gauged(s, Scan(20, 40, 2.0), 40, 24, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.b", "enter"),
    also=WEAK_TOO,
    control=small_step,
)

# --- it fades


def pixels(seed: int, dim: int, width: int = 40) -> Setup:
    """Which of five signs is it? A row of 48 numbers, read so many at a time; their first part tells."""
    task = episodes(seed, 16, dim=3).mapped(lambda x: x.reshape(len(x), -1, dim))
    model = Last(nn.Linear(dim, 16), nn.RNN(16, width, batch_first=True), width, 5)
    return told(model, task, 48 // dim - 1, kind="Adam", lr=3e-3, steps=100)


# keras-team/keras#275 and the example mnist_irnn: pixel by pixel an Elman layer does not learn; row by row it does.
rows = zoo.healthy("signs-elman-row-by-row", lambda s: pixels(s, 12))
zoo.sick(
    "signs-elman-pixel-by-pixel",
    lambda s: pixels(s, 1),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=rows,
)


def stacked(seed: int, gain: float) -> Setup:
    """Two Elman layers, drawn orthogonal as speech people do, or uniform within a tenth."""
    rnn = nn.RNN(20, 40, 2, batch_first=True)
    for name, weight in rnn.named_parameters():
        if "bias" in name:
            nn.init.zeros_(weight)
        elif "hh" in name and gain == 1:
            nn.init.orthogonal_(weight)
        elif "hh" in name:
            nn.init.uniform_(weight, -gain, gain)
    return delivered(seed, rnn, 40, 16, lr=2e-3, steps=110)


# speechbrain/speechbrain#104, PaddlePaddle/Paddle#6217: uniform draws for the recurrent weights, and no convergence;
# they should be orthogonal.
orthogonal = zoo.healthy("parcels-two-elman-layers-orthogonal", lambda s: stacked(s, 1.0))
zoo.sick(
    "parcels-two-elman-layers-within-0.05",
    lambda s: stacked(s, 0.05),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=orthogonal,
)


class Leaky(nn.Module):
    """Units of a continuous-time network, which move by a share of the way at each step."""

    def __init__(self, dim: int, width: int, alpha: float) -> None:
        super().__init__()
        self.inp, self.back, self.alpha = nn.Linear(dim, width), nn.Linear(width, width, bias=False), alpha
        nn.init.normal_(self.back.weight, std=0.3 / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.back.in_features), []
        for now in self.inp(x).unbind(1):
            h = (1 - self.alpha) * h + self.alpha * torch.tanh(now + self.back(h))
            out.append(h)
        return torch.stack(out, dim=1)


# benhuh/RNN_multitask#2: decay * hidden + (1 - decay) * activity, with the two factors in each other's place: a unit
# that should lose a tenth at each step loses nine tenths.
slow_units = zoo.healthy(
    "levels-leaky-units-keep-nine-tenths", lambda s: gauged(s, Leaky(20, 40, 0.1), 40, 24, lr=3e-3)
)
zoo.sick(
    "levels-leaky-units-factors-swapped",
    lambda s: gauged(s, Leaky(20, 40, 0.9), 40, 24, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.inp", "rnn.back", "enter"),
    also=WEAK_TOO,
    control=slow_units,
)

# --- it runs away


class Elman(nn.Module):
    """An Elman layer from tensors, as in a first lesson."""

    def __init__(self, dim: int, width: int, draw, act=torch.tanh) -> None:
        super().__init__()
        self.w = nn.Parameter(draw(dim, width))
        self.u = nn.Parameter(draw(width, width))
        self.b, self.act = nn.Parameter(torch.zeros(width)), act

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), len(self.u)), []
        for now in x.unbind(1):
            h = self.act(now @ self.w + h @ self.u + self.b)
            out.append(h)
        return torch.stack(out, dim=1)


def centred(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) / rows**0.5


# AdaptInfer/Contextualized#33: torch.rand draws between 0 and 1, not around 0; the state sits at its ends.
around = zoo.healthy("melodies-elman-drawn-around-0", lambda s: live(
    Each(nn.Embedding(NOTE, 16), Elman(16, 40, centred), 40, NOTE), melodies(s), "Adam", 5e-3, 110
))  # fmt: skip
zoo.sick(
    "melodies-elman-torch-rand",
    lambda s: live(Each(nn.Embedding(NOTE, 16), Elman(16, 40, torch.rand), 40, NOTE), melodies(s), "Adam", 5e-3, 110),
    both(lasting(states_flat("tanh", 0.8)), ends_worse(1.3)),
    "SPECTRAL_RADIUS",
    "SATURATION",
    "VANISHING",
    "SHORT_MEMORY",
    "EXPLODING",
    layer=("rnn", "enter"),
    also={"UNSTABLE", "SLOW", "LOW_RANK", "BOTTLENECK", "DEAD", "first_loss_high", "loss_stuck"},
    control=around,
)


def rectified(seed: int, draw) -> Setup:
    return live(
        Each(nn.Linear(1, 8), Elman(8, 32, draw, torch.relu), 32, 1), loads(seed, 30), "Adam", 2e-3, 110, clip=1.0
    )


# lmjohns3/theanets#75, datawhalechina/leedl-tutorial#40: rectified units from random weights explode; from a radius
# of 1 they do not. Here from torch.rand, once more.
held = zoo.healthy("loads-relu-elman-drawn-around-0", lambda s: rectified(s, centred))
zoo.sick(
    "loads-relu-elman-torch-rand",
    lambda s: rectified(s, torch.rand),
    both(lasting(grows("rnn", 1e3)), ends_worse(2.0)),
    *CHAOTIC,
    "UNSTABLE",
    "NUMERICAL",
    "first_loss_high",
    layer=("rnn", "enter"),
    also={*WILD_TOO, "loss_nonfinite"},
    control=held,
)


def signed(seed: int, sign: float) -> Setup:
    return live(Each(nn.Linear(1, 8), Scan(8, 32, 0.15, sign), 32, 1), loads(seed, 40), "Adam", 2e-3, 110)


# state-spaces/mamba#326: what is stored is log(-A), and A = exp(A_log) without the minus grows at each step.
minus = zoo.healthy("loads-state-space-minus-exp", lambda s: signed(s, -1.0))
zoo.sick(
    "loads-state-space-plus-exp",
    lambda s: signed(s, 1.0),
    both(lasting(grows("rnn", 1e2)), ends_worse(2.0)),
    *CHAOTIC,
    "UNSTABLE",
    "NUMERICAL",
    "first_loss_high",
    layer=("rnn", "rnn.b"),
    also={*WILD_TOO, "loss_nonfinite"},
    control=minus,
)
