# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that people reported with the faults of any network, and sound ones that only looked odd to them.

Half: reported.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last, ends_worse, small_gradients, told
from validation.cases._reported_sequences import (
    OPINION,
    SHOP,
    TICKET,
    clips,
    curves,
    horizons,
    machines,
    opinions,
    orthogonal,
    products,
    sessions,
    settings,
    tickets,
)
from validation.evidence import (
    at_last,
    both,
    breaks,
    dead,
    diverges,
    gates_flat,
    lasting,
    no_gradient,
    states_rank,
    thrives,
)
from validation.labels import GROWS, SHORT
from validation.nets import SequenceModel
from validation.setups import frozen, live, pretrain
from validation.tasks import Task, adding

zoo = Zoo("rnn", half="reported", analyzer="recurrent", proof=thrives(0.2))
WEAK_TOO = {"SLOW", "LOW_RANK", "BOTTLENECK", "loss_stuck"}
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK", "loss_grows", "first_loss_high"}

# --- the faults of any network


def prices(seed: int, level: float, unit: float) -> Setup:
    """What a share costs, in cents or standardised."""
    model = SequenceModel(nn.LSTM(1, 32, batch_first=True), 1, every_step=True)
    return live(model, curves(seed, 20, unit=unit, level=level), "Adam", 5e-3, 100)


# austineaero/Remaining-Useful-Life-RUL-Estimation#19 and countless others: the LSTM reads prices as they are.
standard = zoo.healthy("prices-lstm-standardised", lambda s: prices(s, 0.0, 1.0))
zoo.sick(
    "prices-lstm-in-cents",
    lambda s: prices(s, 4000.0, 300.0),
    both(lasting(gates_flat(0.8, 2)), ends_worse(1.5)),
    "SATURATION",
    "input_scales",
    "VANISHING",
    "SHORT_MEMORY",
    "DEAD",
    layer="rnn",
    also={"EXPLODING", "UNSTABLE", "SPECTRAL_RADIUS", "first_loss_high", *WEAK_TOO},
    control=standard,
)


class Forecaster(nn.Module):
    """An LSTM reads the past, another writes what comes next from the last value and the state it is given."""

    def __init__(self, handed: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.LSTM(1, 32, batch_first=True), nn.LSTM(1, 32, batch_first=True)
        self.head, self.handed = nn.Linear(32, 1), handed

    def forward(self, x: Tensor) -> Tensor:
        state = self.encoder(x)[1]
        return self.head(self.decoder(x[:, -1:].expand(-1, 6, -1), state if self.handed else None)[0])


# nyu-dl/dl4mt-tutorial#65, keras-team/keras#2995: the decoder starts from zeros, so that the encoder learns nothing.
handed = zoo.healthy(
    "horizons-decoder-gets-the-state", lambda s: live(Forecaster(True), horizons(s), "Adam", 1e-2, 100)
)
zoo.sick(
    "horizons-decoder-starts-from-zeros",
    lambda s: live(Forecaster(False), horizons(s), "Adam", 1e-2, 100),
    both(lasting(no_gradient("encoder")), ends_worse(1.5)),
    "DISCONNECTED",
    "DEAD",
    layer="encoder",
    also={"detached", "never_moves", "SHORT_MEMORY", "VANISHING", *WEAK_TOO},
    control=handed,
)


class Dense(nn.Module):
    """An LSTM and a dense layer for all coming values, with or without a rectifier behind it."""

    def __init__(self, out: nn.Module) -> None:
        super().__init__()
        self.rnn, self.head, self.out = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 6), out

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.head(self.rnn(x)[0][:, -1]))[..., None]


def dense(seed: int, out: nn.Module) -> Setup:
    """Temperatures of a cold room, of which few are above zero."""
    return live(Dense(out), horizons(seed, level=-1.2), "Adam", 1e-2, 100)


# datascience.stackexchange 67599, Stack Overflow 51432661: Dense(1, activation='relu') at the end, one value for all.
linear = zoo.healthy("horizons-linear-output", lambda s: dense(s, nn.Identity()))
zoo.sick(
    "horizons-relu-output-for-frost",
    lambda s: dense(s, nn.ReLU()),
    both(at_last(dead("out", 0.9)), ends_worse(2.0)),
    "DEAD",
    "DISCONNECTED",
    "VANISHING",
    layer=("out", "head"),
    also={"loss_stuck", "never_moves", "SHORT_MEMORY", *WEAK_TOO},
    control=linear,
)


def sized(seed: int, width: int) -> Setup:
    model = Last(nn.Linear(6, 16), nn.GRU(16, width, batch_first=True), width, 5)
    return told(model, settings(seed, 8, count=5), 7, kind="Adam", lr=1e-2, steps=100)


# discuss.pytorch.org 21588: an LSTM of hidden_size 2 for a task of the papers, which never gets there.
wide = zoo.healthy("machines-five-numbers-in-40-units", lambda s: sized(s, 40))
zoo.sick(
    "machines-five-numbers-in-2-units",
    lambda s: sized(s, 2),
    both(lasting(states_rank(2.01)), ends_worse(1.5)),
    "BOTTLENECK",
    "LOW_RANK",
    layer="rnn",
    also={"SLOW", *SHORT},
    control=wide,
)


class Floors(nn.Module):
    """LSTMs on top of each other."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.floors = nn.ModuleList(nn.LSTM(24, 24, batch_first=True) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for floor in self.floors:
            x = floor(x)[0]
        return x


def floors(seed: int, depth: int) -> Setup:
    return live(Last(nn.Linear(12, 24), Floors(depth), 24, 5), clips(seed), "Adam", 3e-3, 110)


# karpathy/char-rnn#60: LSTMs of more than two layers did not learn anything from the default start.
flat = zoo.healthy("clips-lstm-1-floor", lambda s: floors(s, 1))
zoo.sick(
    "clips-lstm-8-floors",
    lambda s: floors(s, 8),
    both(small_gradients(["rnn.floors.0", "enter"], "rnn.floors.7", 1e-2), ends_worse(1.3)),
    "VANISHING",
    "SLOW",
    layer=("enter", "rnn", *(f"rnn.floors.{i}" for i in range(8))),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", "loss_stuck"},
    control=flat,
)


class Captcha(nn.Module):
    """Strips of a picture, pooled, and an LSTM; logarithms of chances, with time first."""

    def __init__(self, pool: int) -> None:
        super().__init__()
        self.enter, self.pool = nn.Linear(8, 24), nn.AvgPool1d(pool)
        self.rnn, self.head = nn.LSTM(24, 32, batch_first=True, bidirectional=True), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.enter(x)).transpose(1, 2)).transpose(1, 2)
        return self.head(self.rnn(x)[0]).log_softmax(dim=-1).transpose(0, 1)


def captchas(seed: int, pool: int, batch: int = 16) -> Setup:
    """Four signs, each three strips wide."""
    signs = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed + 61))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(1, 6, (batch, 4), generator=random)
        x = signs[text].repeat_interleave(3, dim=1)
        return x + 0.2 * torch.randn(x.shape, generator=random), text

    def loss(z: Tensor, text: Tensor) -> Tensor:
        lengths = torch.full((batch,), len(z)), torch.full((batch,), 4)
        return F.ctc_loss(z, text, *lengths)

    return live(Captcha(pool), Task(seed, draw, loss), "Adam", 1e-2, 80)


# ypwhs/captcha_break#29, FangShancheng/ABINet#65: after pooling there are fewer steps than CTC needs; the loss is inf.
long = zoo.healthy("captchas-ctc-12-steps", lambda s: captchas(s, 1))
zoo.sick(
    "captchas-ctc-4-steps",
    lambda s: captchas(s, 3),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    control=long,
)


class Scaled(nn.Module):
    """Each window by its own deviation, then a GRU."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Linear(1, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 1)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = (x - x.mean(dim=1, keepdim=True)) / (x.var(dim=1, keepdim=True) + self.eps).sqrt()
        return self.head(self.rnn(x)[0])


def still(seed: int, eps: float) -> Setup:
    """In some windows a sensor stands still."""

    def stop(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        still = (torch.arange(len(x)) < 2)[:, None, None]
        return x.masked_fill(still, 0.0), y.masked_fill(still, 0.0)

    return live(Scaled(eps), curves(seed).changed(stop), "Adam", 1e-2, 80)


# pytorch/pytorch#4320, keras-team/keras#2960: a deviation of zero, of which neither quotient nor gradient is a number.
with_eps = zoo.healthy("sensors-windows-by-deviation-with-eps", lambda s: still(s, 1e-5))
zoo.sick(
    "sensors-windows-by-deviation-of-zero",
    lambda s: still(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "bad_batch",
    layer=("enter", "rnn"),
    control=with_eps,
)


def bursts(seed: int, clip: float | None) -> Setup:
    rnn = nn.RNN(20, 40, nonlinearity="relu", batch_first=True)
    nn.init.eye_(rnn.weight_hh_l0)
    return machines(seed, rnn, 40, 30, kind="SGD", lr=0.02, steps=100, clip=clip)


# chentuochao/Sound_Bubble#4: the limit of the gradient never got to the loop, and the loss explodes.
clipped = zoo.healthy("machines-irnn-sgd-clipped", lambda s: bursts(s, 1.0))
zoo.sick(
    "machines-irnn-sgd-not-clipped",
    lambda s: bursts(s, None),
    both(diverges(2), ends_worse(1.5)),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    "SPECTRAL_RADIUS",
    "rate_too_high",
    also={*WILD_TOO, "loss_nonfinite", "loss_stuck", "DISCONNECTED"},
    control=clipped,
)


def equal(seed: int, value: float | None) -> Setup:
    rnn = nn.LSTM(16, 32, batch_first=True)
    for weight in rnn.parameters():
        if value is not None:
            nn.init.constant_(weight, value)
    model = Last(nn.Linear(12, 16), rnn, 32, 5)
    if value is not None:
        nn.init.constant_(model.head.weight, value)
    return live(model, clips(seed), "Adam", 1e-2, 90)


# datascience.stackexchange 129637 and threads on kernel_initializer='ones': all units start alike and stay alike.
random_start = zoo.healthy("clips-lstm-drawn-weights", lambda s: equal(s, None))
zoo.sick(
    "clips-lstm-all-weights-0.1",
    lambda s: equal(s, 0.1),
    both(lasting(states_rank(1.01)), ends_worse(1.3)),
    "LOW_RANK",
    "SYMMETRY",
    "BOTTLENECK",
    layer=("rnn", "head"),
    also={"SLOW", "loss_stuck", *SHORT},
    control=random_start,
)


# --- sound, though somebody worried


class OwnGru(nn.Module):
    """A GRU by hand; z may be the share of the old state or that of the new one."""

    def __init__(self, dim: int, width: int, new: bool) -> None:
        super().__init__()
        self.gates, self.cand, self.width, self.new = (
            nn.Linear(dim + width, 2 * width),
            nn.Linear(dim + width, width),
            width,
            new,
        )
        self.gates.bias.data[:width] = -2.0 if new else 2.0

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.width), []
        for now in x.unbind(1):
            z, r = torch.sigmoid(self.gates(torch.cat([now, h], dim=1))).chunk(2, dim=1)
            n = torch.tanh(self.cand(torch.cat([now, r * h], dim=1)))
            h = z * n + (1 - z) * h if self.new else z * h + (1 - z) * n
            out.append(h)
        return torch.stack(out, dim=1)


# fatchord/WaveRNN#7, keras-team/keras#14649, boyu-ai/Hands-on-NLP#1: z and 1 - z changed places, which is the same.
zoo.healthy("machines-own-gru-z-is-the-old-share", lambda s: machines(s, OwnGru(20, 40, False), 40, 16))
zoo.healthy("machines-own-gru-z-is-the-new-share", lambda s: machines(s, OwnGru(20, 40, True), 40, 16))


def language(seed: int, rnn: nn.Module, width: int = 40, **more) -> Setup:
    """The next item of a session."""
    return live(Each(nn.Embedding(SHOP, 24), rnn, width, SHOP), sessions(seed), **{"lr": 1e-2, "steps": 100, **more})


def cell(kind: type[nn.RNNBase], dim: int = 24, width: int = 40, **more) -> nn.RNNBase:
    return kind(dim, width, batch_first=True, **more)


# pytorch/examples#95: SGD at a rate of several, and a clip of 0.25 that is active at nearly every step.
zoo.healthy("sessions-lstm-sgd-8-clipped-at-0.25", lambda s: language(
    s, cell(nn.LSTM), kind="SGD", lr=8.0, clip=0.25, steps=120
))  # fmt: skip
# lhotse-speech/lhotse#356 and others: is a loss that oscillates this much normal? With batches of four, it is.
zoo.healthy("sessions-gru-batches-of-4", lambda s: live(
    Each(nn.Embedding(SHOP, 24), cell(nn.GRU), 40, SHOP), sessions(s, batch=4), "Adam", 8e-3, 120
))  # fmt: skip
zoo.healthy("sessions-gru-half-of-it-chance", lambda s: live(
    Each(nn.Embedding(SHOP, 24), cell(nn.GRU), 40, SHOP), sessions(s, noise=0.4), "Adam", 1e-2, 120
), thrives(0.1))  # fmt: skip
zoo.healthy("sessions-lstm-dropout-0.5", lambda s: live(
    Each(nn.Embedding(SHOP, 24), cell(nn.LSTM), 40, SHOP, dropout=0.5), sessions(s), "Adam", 1e-2, 110
))  # fmt: skip
zoo.healthy("sessions-lstm-two-floors-dropout-between", lambda s: language(s, cell(nn.LSTM, num_layers=2, dropout=0.2)))
zoo.healthy("sessions-gru-decay-0.1", lambda s: language(s, cell(nn.GRU), kind="AdamW", weight_decay=0.1))
zoo.healthy("sessions-gru-warm-up-and-cosine", lambda s: language(
    s, cell(nn.GRU), rate=lambda t: min((t + 1) / 15, 0.52 + 0.48 * math.cos(math.pi * min(t, 100) / 100))
))  # fmt: skip
zoo.healthy("sessions-gru-rmsprop", lambda s: language(s, cell(nn.GRU), kind="RMSprop", lr=5e-3))


def large_table(seed: int) -> Setup:
    """A vocabulary of three thousand, of which a shop uses few."""
    return live(Each(nn.Embedding(3000, 24), cell(nn.GRU), 40, SHOP), sessions(seed), "Adam", 1e-2, 90)


zoo.healthy("sessions-table-of-3000-items", large_table)


# Threads on GloVe vectors: the table is frozen on purpose.
def frozen_table(seed: int) -> Setup:
    model = Last(nn.Embedding(TICKET, 20), cell(nn.GRU, 20), 40, 5)
    return live(frozen(model, "enter"), tickets(seed, 8), "Adam", 1e-2, 90)


zoo.healthy("tickets-frozen-vectors", frozen_table)


class Both(nn.Module):
    """Both ways, and the last state of each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Linear(12, 20), cell(nn.LSTM, 20, 24, bidirectional=True)
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat(tuple(self.rnn(self.enter(x))[1][0]), dim=1))


# yunjey/pytorch-tutorial#149, pytorch/pytorch#3587: which outputs to take from both ways? The last of each.
zoo.healthy("clips-bilstm-last-states-of-both-ways", lambda s: live(Both(), clips(s), "Adam", 5e-3, 90))


class Packed(nn.Module):
    """Rows of unlike length, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = (
            nn.Embedding(OPINION, 20, padding_idx=0),
            cell(nn.GRU, 20, 32),
            nn.Linear(32, 4),
        )

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.enter(words), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][-1])


zoo.healthy("opinions-packed", lambda s: live(Packed(), opinions(s), "Adam", 1e-2, 60))


class Pooled(nn.Module):
    """The mean or the largest over all steps."""

    def __init__(self, largest: bool) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Embedding(OPINION, 20), cell(nn.LSTM, 20, 32), nn.Linear(32, 4)
        self.largest = largest

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        states = self.rnn(self.enter(words))[0]
        return self.head(states.amax(dim=1) if self.largest else states.mean(dim=1))


zoo.healthy("opinions-largest-over-all-steps", lambda s: live(Pooled(True), opinions(s), "Adam", 1e-2, 80))
zoo.healthy("opinions-mean-over-all-steps", lambda s: live(Pooled(False), opinions(s), "Adam", 1e-2, 110))


class Attentive(nn.Module):
    """Where in an opinion to look, by the states; it becomes sharp, for one word counts."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(OPINION, 20), cell(nn.GRU, 20, 32)
        self.score, self.head = nn.Linear(32, 1), nn.Linear(32, 4)

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        states = self.rnn(self.enter(words))[0]
        p = self.score(states).masked_fill(words[..., None] == 0, -1e9).softmax(dim=1)
        return self.head((p * states).sum(dim=1))


zoo.healthy("opinions-gru-and-attention", lambda s: live(Attentive(), opinions(s), "Adam", 1e-2, 80))

# gabrielloye/RNN-walkthrough#3: the state begins with zeros in every batch; so it should, for the rows are independent.
zoo.healthy("curves-elman-default-next-value", lambda s: live(
    Each(nn.Linear(1, 8), cell(nn.RNN, 8, 32), 32, 1), curves(s), "Adam", 5e-3, 90
))  # fmt: skip
zoo.healthy("curves-time-first-as-the-layer-has-it", lambda s: live(
    TimeFirst(), curves(s).changed(lambda x, y: (x.transpose(0, 1), y.transpose(0, 1))), "Adam", 5e-3, 90
))  # fmt: skip


class TimeFirst(nn.Module):
    """Without batch_first, for data that have time first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


# oxwhirl/pymarl#161: why is the state not detached? Here it is, every eight steps, and the task needs no more than two.
class Chunks(nn.Module):
    """A GRU cell whose state is cut every eight steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(1, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), 32), []
        for t, now in enumerate(x.unbind(1)):
            h = self.cell(now, h.detach() if t % 8 == 0 else h)
            out.append(self.head(h))
        return torch.stack(out, dim=1)


zoo.healthy("curves-gru-cut-every-8-steps", lambda s: live(Chunks(), curves(s, 24), "Adam", 1e-2, 90))


class Sums(nn.Module):
    """A linear unit whose state grows because it is a sum, as it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.back, self.head = nn.Linear(1, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 1)
        nn.init.eye_(self.back.weight)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), 8), []
        for now in self.inp(x).unbind(1):
            h = now + self.back(h)
            out.append(self.head(h))
        return torch.stack(out, dim=1)


zoo.healthy("curves-sums-in-linear-units", lambda s: live(
    Sums(), curves(s).changed(lambda x, _: (0.5 * x, 0.5 * x.cumsum(dim=1))), "Adam", 5e-3, 80
))  # fmt: skip
# raphael.uaca.com, IRNN: many zeros behind the rectifier, steep at times, and it learns.
zoo.healthy("adding-irnn", lambda s: told(
    Last(nn.Linear(2, 16), irnn(16, 40), 40, 1), adding(s, 16).changed(lambda x, y: (x, y.view(-1, 1))), 15,
    kind="Adam", lr=3e-3, steps=120, clip=1.0,
), thrives(0.15))  # fmt: skip


def irnn(dim: int, width: int) -> nn.RNN:
    rnn = nn.RNN(dim, width, nonlinearity="relu", batch_first=True)
    nn.init.eye_(rnn.weight_hh_l0)
    nn.init.zeros_(rnn.bias_hh_l0)
    return rnn


# stats.stackexchange 376851: it seems slow, and a small rate is right for so many units.
zoo.healthy("curves-lstm-100-units-rate-1e-3", lambda s: live(
    Each(nn.Linear(1, 8), cell(nn.LSTM, 8, 100), 100, 1), curves(s), "Adam", 1e-3, 110
))  # fmt: skip


def grown(seed: int) -> Setup:
    """Trained before; gradients are small, for there is little left to learn."""
    setup = products(seed, cell(nn.GRU, 20, 40), 40, 8, lr=1e-3, steps=60)
    return pretrain(setup, 45, 5e-3)


zoo.healthy("tickets-gru-nearly-done", grown)
zoo.healthy("machines-elman-orthogonal-12-steps-sgd", lambda s: machines(
    s, orthogonal(nn.RNN(20, 40, batch_first=True)), 40, 12, kind="SGD", lr=0.1, momentum=0.9, clip=1.0
))  # fmt: skip


class Skips(nn.Module):
    """Four GRUs, each added to what it read, with norms."""

    def __init__(self) -> None:
        super().__init__()
        self.floors = nn.ModuleList(cell(nn.GRU, 24, 24) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for floor, norm in zip(self.floors, self.norms, strict=True):
            x = x + floor(norm(x))[0]
        return x


zoo.healthy(
    "clips-four-grus-with-skips", lambda s: live(Last(nn.Linear(12, 24), Skips(), 24, 5), clips(s), "Adam", 3e-3, 70)
)


class Front(nn.Module):
    """Convolutions over time with batch norm, for a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv1d(12, 24, 3, padding=1), nn.BatchNorm1d(24), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)


zoo.healthy("clips-convolution-and-gru", lambda s: live(Last(Front(), cell(nn.GRU), 40, 5), clips(s), "Adam", 5e-3, 60))
zoo.healthy("machines-lstm-first-state-learned", lambda s: told(Learned(), settings(s, 10), 9, lr=1e-2, steps=100))


class Learned(nn.Module):
    """An LSTM whose first state is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Linear(3, 16), cell(nn.LSTM, 16, 32), nn.Linear(32, 2)
        self.h, self.c = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(torch.zeros(1, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        state = (self.h.expand(-1, len(x), -1).contiguous(), self.c.expand(-1, len(x), -1).contiguous())
        return self.head(self.rnn(self.enter(x), state)[0][:, -1])
