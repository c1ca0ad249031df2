# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of every day that train well, some of them a little unusual.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last
from validation.cases._daily_recurrent import (
    INTENT,
    SIGNS,
    activities,
    amounts,
    balances,
    chords,
    elman,
    gru,
    intents,
    lstm,
    parcels,
    sayings,
    solar,
    strips,
    towns,
    turned,
)
from validation.evidence import thrives
from validation.nets import Cell, gate_bias_
from validation.setups import frozen, live, pretrain
from validation.tasks import token_loss

zoo = Zoo("rnn", half="daily", analyzer="recurrent", proof=thrives(0.2))
KINDS = len(SIGNS)


def warm_cosine(step: int, warm: int = 10, total: int = 80) -> float:
    return min((step + 1) / warm, 0.52 + 0.48 * math.cos(math.pi * min(step / total, 1.0)))


# --- letters


def spells(seed: int, rnn: nn.Module, features: int, size: int = 24, **more) -> Setup:
    """The next letter of a saying."""
    model = Each(nn.Embedding(KINDS, size), rnn, features, KINDS, more.pop("dropout", 0.0))
    return live(model, sayings(seed), **{"lr": 1e-2, "steps": 80, **more})


zoo.healthy(
    "sayings-lstm-sgd-2-clipped",
    lambda s: spells(s, lstm(24, 48), 48, kind="SGD", lr=2.0, momentum=0.8, clip=0.5, steps=100),
)
zoo.healthy("sayings-two-lstms-dropout-0.4", lambda s: spells(s, lstm(24, 48, 2, dropout=0.4), 48, dropout=0.4))
zoo.healthy("sayings-gru-warm-up-and-cosine", lambda s: spells(s, gru(24, 48), 48, rate=warm_cosine, weight_decay=0.1))
zoo.healthy("sayings-elman-of-64", lambda s: spells(s, elman(24, 64), 64, lr=4e-3))
zoo.healthy("sayings-gru-adamax", lambda s: spells(s, gru(24, 40), 40, kind="Adamax", lr=2e-2))
zoo.healthy("sayings-lstm-radam", lambda s: spells(s, lstm(24, 40), 40, kind="RAdam", lr=1.5e-2, steps=100))
zoo.healthy("sayings-gru-rate-falls-by-0.97", lambda s: spells(s, gru(24, 40), 40, lr=2e-2, rate=lambda t: 0.97**t))


def tied(seed: int) -> Setup:
    """The head is the embedding."""
    model = Each(nn.Embedding(KINDS, 40), lstm(40, 40), 40, KINDS)
    nn.init.normal_(model.enter.weight, std=0.3)
    model.head.weight = model.enter.weight
    return live(model, sayings(seed), lr=1e-2, steps=80)


zoo.healthy("sayings-lstm-head-is-the-embedding", tied)


def sparse_table(seed: int) -> Setup:
    """Only the rows of a batch get a gradient."""
    model = Each(nn.Embedding(KINDS, 24, sparse=True), gru(24, 48), 48, KINDS)
    return live(model, sayings(seed), "SGD", 1.0, 110)


zoo.healthy("sayings-gru-sparse-embedding-sgd", sparse_table)


class WholeMask(nn.Module):
    """LSTM cells in a loop; one mask of dropout for all steps of a row, on input and state."""

    def __init__(self, share: float = 0.2) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Embedding(KINDS, 24), nn.LSTMCell(24, 40), nn.Linear(40, KINDS)
        self.share = share

    def forward(self, signs: Tensor) -> Tensor:
        x = self.enter(signs)
        on_x, on_h = F.dropout(x.new_ones(len(x), 24), self.share, self.training), x.new_ones(len(x), 40)
        on_h = F.dropout(on_h, self.share, self.training)
        h, c, out = x.new_zeros(len(x), 40), x.new_zeros(len(x), 40), []
        for now in x.unbind(1):
            h, c = self.cell(now * on_x, (h * on_h, c))
            out.append(h)
        return self.head(torch.stack(out, dim=1))


zoo.healthy("sayings-lstm-cells-one-mask-per-row", lambda s: live(WholeMask(), sayings(s, 14), lr=1e-2, steps=80))


def second_half(seed: int) -> Setup:
    """Only the second half of a window counts."""
    task = sayings(seed).with_loss(lambda z, t: token_loss(z[:, 10:], t[:, 10:]))
    return live(Each(nn.Embedding(KINDS, 24), lstm(24, 48), 48, KINDS), task, lr=1e-2, steps=80)


zoo.healthy("sayings-lstm-second-half-counts", second_half)

# --- requests


class Requests(nn.Module):
    """Packed requests; how their states are read is a function of states, lengths and words."""

    def __init__(self, rnn: nn.Module, features: int, read, drop: float = 0.0) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(INTENT, 24, padding_idx=0), nn.Dropout(drop)
        self.rnn, self.head, self.read = rnn, nn.Linear(features, 4), read

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.drop(self.words(words)), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(self.drop(self.read(states, lengths)))


def largest(states: Tensor, lengths: Tensor) -> Tensor:
    there = torch.arange(states.shape[1]) < lengths[:, None]
    return states.masked_fill(~there[..., None], -1e9).amax(dim=1)


def average(states: Tensor, lengths: Tensor) -> Tensor:
    return states.sum(dim=1) / lengths[:, None]


def final(states: Tensor, lengths: Tensor) -> Tensor:
    return states[torch.arange(len(states)), lengths - 1]


zoo.healthy(
    "requests-bigru-largest-of-states",
    lambda s: live(Requests(gru(24, 24, bidirectional=True), 48, largest), intents(s), lr=1e-2, steps=70),
)
zoo.healthy(
    "requests-bilstm-mean-of-states-dropout",
    lambda s: live(Requests(lstm(24, 24, bidirectional=True), 48, average, 0.3), intents(s), lr=1e-2, steps=80),
)
zoo.healthy(
    "requests-gru-state-at-its-length",
    lambda s: live(Requests(gru(24, 48), 48, final), intents(s, 9), lr=1e-2, steps=100),
)
zoo.healthy(
    "requests-bigru-batches-of-4",
    lambda s: live(Requests(gru(24, 24, bidirectional=True), 48, largest), intents(s, batch=4), lr=5e-3, steps=110),
)
zoo.healthy(
    "requests-frozen-words-lstm",
    lambda s: live(frozen(Requests(lstm(24, 40), 40, largest), "words"), intents(s), lr=1e-2, steps=80),
)


def weighted(seed: int) -> Setup:
    """One of the four is rare, and weighs more."""
    weight = torch.tensor([1.0, 1.0, 1.0, 4.0])
    task = intents(seed).with_loss(lambda z, t: F.cross_entropy(z, t, weight, label_smoothing=0.05))
    return live(Requests(gru(24, 24, bidirectional=True), 48, largest), task, lr=1e-2, steps=80)


zoo.healthy("requests-bigru-class-weights-and-smoothing", weighted)

# --- numbers, chords


class Attending(nn.Module):
    """A GRU reads; GRU cells write and look at what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.reader = nn.Embedding(8, 24), gru(24, 32)
        self.target, self.cell = nn.Embedding(9, 24), nn.GRUCell(24 + 32, 32)
        self.key, self.head = nn.Linear(32, 32), nn.Linear(64, 8)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        states, h = self.reader(self.source(source))
        h, seen, out = h[0], torch.zeros(len(source), 32), []
        keys = self.key(states)
        for now in self.target(shifted).unbind(1):
            h = self.cell(torch.cat([now, seen], dim=-1), h)
            weight = (keys @ h[..., None]).softmax(dim=1)
            seen = (weight * states).sum(dim=1)
            out.append(self.head(torch.cat([h, seen], dim=-1)))
        return torch.stack(out, dim=1)


zoo.healthy("numbers-gru-cells-look-at-what-was-read", lambda s: live(Attending(), turned(s), lr=1e-2, steps=90))


class OwnWords(nn.Module):
    """The writer is fed its own last answer in half of the cases."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.reader = nn.Embedding(8, 24), lstm(24, 40)
        self.target, self.cell, self.head = nn.Embedding(9, 24), nn.LSTMCell(24, 40), nn.Linear(40, 8)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        h, c = (state[0] for state in self.reader(self.source(source))[1])
        last, out = shifted[:, 0], []
        for t in range(shifted.shape[1]):
            own = torch.rand(len(source)) < (0.5 if self.training and t else 0.0)
            h, c = self.cell(self.target(torch.where(own, last, shifted[:, t])), (h, c))
            out.append(self.head(h))
            last = out[-1].argmax(dim=-1)
        return torch.stack(out, dim=1)


zoo.healthy("numbers-half-of-the-words-are-its-own", lambda s: live(OwnWords(), turned(s, length=4), lr=1e-2, steps=90))


def tags(seed: int, rnn: nn.Module, features: int, **more) -> Setup:
    return live(Each(nn.Embedding(10, 20), rnn, features, 5), chords(seed), **{"lr": 1e-2, "steps": 80, **more})


zoo.healthy("chords-bilstm", lambda s: tags(s, lstm(20, 24, bidirectional=True), 48))
zoo.healthy("chords-gru-nadam", lambda s: tags(s, gru(20, 48), 48, kind="NAdam"))
zoo.healthy("chords-elman-rmsprop-decay", lambda s: tags(s, elman(20, 64), 64, kind="RMSprop", lr=3e-3, steps=100))


class Spread(nn.Module):
    """A convolution over two notes, batch norm, a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.conv = nn.Embedding(10, 20), nn.Conv1d(20, 32, 2)
        self.norm, self.rnn, self.head = nn.BatchNorm1d(32), gru(32, 32), nn.Linear(32, 5)

    def forward(self, notes: Tensor) -> Tensor:
        x = F.pad(self.enter(notes).transpose(1, 2), (1, 0))
        return self.head(self.rnn(F.gelu(self.norm(self.conv(x))).transpose(1, 2))[0])


zoo.healthy("chords-convolution-batch-norm-gru", lambda s: live(Spread(), chords(s), lr=1e-2, steps=70))

# --- forecasts


def forecast(seed: int, rnn: nn.Module, features: int, out: int = 3, loss=F.mse_loss, noise=0.05, **more) -> Setup:
    task = solar(seed, noise=noise).with_loss(loss)
    return live(Each(nn.Linear(3, 20), rnn, features, out), task, **{"lr": 1e-2, "steps": 70, **more})


def normal(y: Tensor, t: Tensor) -> Tensor:
    mean, log_var = y.chunk(2, dim=-1)
    return 3.0 + 0.5 * (log_var.clamp(-6, 4) + (t - mean).square() * torch.exp(-log_var.clamp(-6, 4))).mean()


def pinball(y: Tensor, t: Tensor) -> Tensor:
    share, miss = torch.tensor([0.1, 0.5, 0.9]), t[..., None] - y.unflatten(-1, (3, 3))
    return torch.maximum(share * miss, (share - 1) * miss).mean()


zoo.healthy("panels-lstm", lambda s: forecast(s, lstm(20, 40), 40))
zoo.healthy("panels-gru-huber-sgd", lambda s: forecast(s, gru(20, 40), 40, 3, F.huber_loss, kind="SGD", lr=0.3))
zoo.healthy("panels-noisy-gru", lambda s: forecast(s, gru(20, 40), 40, noise=0.4))
zoo.healthy("panels-lstm-normal-likelihood", lambda s: forecast(s, lstm(20, 40), 40, 6, normal, steps=90))
zoo.healthy("panels-gru-quantiles-of-each", lambda s: forecast(s, gru(20, 40), 40, 9, pinball))
zoo.healthy("panels-elman-l1", lambda s: forecast(s, elman(20, 48), 48, 3, F.l1_loss, lr=4e-3))


class Ahead(nn.Module):
    """A GRU reads twelve hours and GRU cells tell the next eight, each from the last."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.cell, self.head = gru(3, 40), nn.GRUCell(3, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, last, out = self.rnn(x[:, :12])[1][0], x[:, 11], []
        for _ in range(8):
            h = self.cell(last, h)
            last = last + self.head(h)
            out.append(last)
        return torch.stack(out, dim=1)


zoo.healthy(
    "panels-eight-hours-from-its-own-answers",
    lambda s: live(Ahead(), solar(s).with_loss(lambda y, t: F.mse_loss(y, t[:, 11:19])), lr=1e-2, steps=80),
)

# --- activities


def moves(seed: int, rnn: nn.Module, features: int, enter: nn.Module | None = None, drop: float = 0.0, **more) -> Setup:
    model = Last(enter or nn.Linear(3, 20), rnn, features, 5, drop)
    return live(model, activities(seed), **{"lr": 1e-2, "steps": 80, **more})


class Frames(nn.Module):
    """Two strided convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(3, 24, 5, 2, 2), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 24, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)


zoo.healthy("wrist-convolutions-and-lstm", lambda s: moves(s, lstm(24, 32), 32, Frames()))
zoo.healthy("wrist-two-grus-dropout-between", lambda s: moves(s, gru(20, 32, 2, dropout=0.2), 32, drop=0.2))
zoo.healthy(
    "wrist-layer-norm-before-lstm",
    lambda s: moves(s, lstm(20, 48), 48, nn.Sequential(nn.Linear(3, 20), nn.LayerNorm(20))),
)


class Retold(nn.Module):
    """A code of ten numbers of a recording, from which it is told again."""

    def __init__(self, code: int = 10) -> None:
        super().__init__()
        self.rnn, self.code = gru(3, 48), nn.Linear(48, code)
        self.start, self.back, self.head = nn.Linear(code, 48), gru(code, 48), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(self.rnn(x)[1][0])
        told = self.back(code[:, None].expand(-1, x.shape[1], -1), torch.tanh(self.start(code))[None])[0]
        return self.head(told)


zoo.healthy(
    "wrist-retold-from-ten-numbers",
    lambda s: live(
        Retold(),
        activities(s, length=10, noise=0.1).changed(lambda x, _: (x, x)).with_loss(F.mse_loss),
        lr=1e-2,
        steps=110,
    ),
)


class Both(nn.Module):
    """The kind of activity and the next reading."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.kind, self.next = gru(3, 40), nn.Linear(40, 5), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = self.rnn(x)[0]
        return self.kind(states[:, -1]), self.next(states[:, :-1])


def two_tasks(seed: int) -> Setup:
    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(output[0], target[0]) + 0.5 * F.mse_loss(output[1], target[1])

    task = activities(seed, noise=0.3).changed(lambda x, t: (x, (t, x[:, 1:]))).with_loss(loss)
    return live(Both(), task, lr=1e-2, steps=80)


zoo.healthy("wrist-kind-and-next-reading", two_tasks)


def tuned(seed: int) -> Setup:
    """A GRU from another task stays as it is; a new head learns."""
    setup = pretrain(moves(seed, gru(20, 40), 40), 50, 1e-2)
    model = frozen(setup.model, "enter", "rnn")
    model.head = nn.Linear(40, 5)
    return live(model, activities(seed), lr=2e-2, steps=60)


zoo.healthy("wrist-new-head-on-a-frozen-gru", tuned)

# --- memories that suffice


class Summing(Cell):
    """A linear state that is added to, and a gate of what to add."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden_size, self.add, self.gate = width, nn.Linear(dim, width), nn.Linear(dim, width)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + torch.sigmoid(self.gate(x)) * self.add(x)


def ledger(seed: int, rnn: nn.Module, features: int, **more) -> Setup:
    return live(Each(nn.Linear(1, 16), rnn, features, 1), balances(seed), **{"lr": 1e-2, "steps": 80, **more})


def identity(width: int) -> nn.RNN:
    rnn = elman(16, width, nonlinearity="relu")
    nn.init.eye_(rnn.weight_hh_l0)
    return rnn


zoo.healthy("balances-gru", lambda s: ledger(s, gru(16, 40), 40))
zoo.healthy("balances-lstm-amsgrad", lambda s: ledger(s, lstm(16, 40), 40, amsgrad=True))
zoo.healthy("balances-gated-sum", lambda s: ledger(s, Summing(16, 24), 24))
zoo.healthy("balances-relu-elman-from-the-identity", lambda s: ledger(s, identity(32), 32, lr=2e-3, clip=1.0))
zoo.healthy("parcels-of-seven-scans-default-lstm", lambda s: towns(s, lstm(20, 40), 40, 7))
zoo.healthy("parcels-lstm-forget-bias-3", lambda s: towns(s, gate_bias_(lstm(20, 40), 1, 3.0), 40))
zoo.healthy("doses-gru-update-bias-3", lambda s: amounts(s, gate_bias_(gru(20, 40), 1, 3.0), 40))


class Rows(nn.Module):
    """A picture by rows of six pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).unflatten(1, (6, 6))


zoo.healthy("strips-row-by-row-gru", lambda s: live(Last(Rows(), gru(6, 40), 40, 5), strips(s), lr=1e-2, steps=60))


class Zoneout(nn.Module):
    """A GRU cell whose units sometimes keep their old state; when it counts, the mean of both."""

    def __init__(self, share: float = 0.15) -> None:
        super().__init__()
        self.cell, self.share = nn.GRUCell(20, 40), share

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), 40), []
        for now in x.unbind(1):
            new = self.cell(now, h)
            keep = (torch.rand_like(h) < self.share).float() if self.training else self.share
            h = keep * h + (1 - keep) * new
            out.append(h)
        return torch.stack(out, dim=1)


zoo.healthy("parcels-of-nine-scans-zoneout", lambda s: towns(s, Zoneout(), 40, 9))


class Weighing(nn.Module):
    """A GRU over the scans, and weights by which its states are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(19, 20), gru(20, 32)
        self.score, self.head = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Linear(32, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.rnn(self.enter(tokens))[0]
        return self.head((self.score(states).softmax(dim=1) * states).sum(dim=1))


zoo.healthy("parcels-gru-weighed-sum-of-states", lambda s: live(Weighing(), parcels(s), lr=1e-2, steps=90))
