# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks with the faults of any network, from threads, and sound ones that only looked odd to people.

Half: threads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last, dates, ends_worse, told
from validation.cases._threads_sequences import (
    NOTE,
    PARCEL,
    delivered,
    episodes,
    gauged,
    loads,
    melodies,
    parcels,
    windows,
)
from validation.evidence import both, breaks, diverges, lasting, no_gradient, states_rank, thrives
from validation.labels import GROWS, SHORT
from validation.setups import frozen, live, pretrain
from validation.tasks import adding

zoo = Zoo("rnn", half="threads", analyzer="recurrent", proof=thrives(0.2))
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK", "loss_grows", "first_loss_high"}

# --- the faults of any network


class Rebuild(nn.Module):
    """An LSTM reads a window, a narrow or wide one keeps a code of it, a third writes it again."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enter, self.code = nn.LSTM(3, 32, batch_first=True), nn.LSTM(32, code, batch_first=True)
        self.leave, self.out = nn.LSTM(code, 32, batch_first=True), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.code(self.enter(x)[0])[0][:, -1:]
        return self.out(self.leave(kept.expand(-1, x.shape[1], -1))[0])


def rebuilt(seed: int, code: int) -> Setup:
    return live(Rebuild(code), windows(seed, 6, factors=3), "Adam", 1e-2, 120)


# datascience.stackexchange 52662: the autoencoder has LSTM(1) in its middle, for windows of many columns.
roomy = zoo.healthy("windows-lstm-code-of-24", lambda s: rebuilt(s, 24))
zoo.sick(
    "windows-lstm-code-of-1",
    lambda s: rebuilt(s, 1),
    both(lasting(states_rank(1.01, "code")), ends_worse(1.3)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("code", "leave"),
    also={"SLOW", "loss_stuck", *SHORT},
    control=roomy,
)


def composed(seed: int, width: int) -> Setup:
    rnn = nn.LSTM(16, width, batch_first=True)
    return live(Each(nn.Embedding(NOTE, 16), rnn, width, NOTE), melodies(seed), "Adam", 1e-2, 110)


# jcjohnson/torch-rnn#196: the model underfits however long it runs; its layer is far too small for the text.
sized = zoo.healthy("melodies-lstm-48-units", lambda s: composed(s, 48))
zoo.sick(
    "melodies-lstm-2-units",
    lambda s: composed(s, 2),
    both(lasting(states_rank(2.01)), ends_worse(1.5)),
    "BOTTLENECK",
    "LOW_RANK",
    layer="rnn",
    also={"SLOW", "loss_stuck", *SHORT},
    control=sized,
)


class Variational(nn.Module):
    """A GRU gives the mean and the deviation of a code; the code is drawn by a function with or without a gradient."""

    def __init__(self, drawn: bool) -> None:
        super().__init__()
        self.encoder, self.mean, self.spread = nn.GRU(3, 32, batch_first=True), nn.Linear(32, 8), nn.Linear(32, 8)
        self.decoder, self.out, self.drawn = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 3), drawn

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)[1][-1]
        mean, std = self.mean(h), 0.1 * F.softplus(self.spread(h))
        z = torch.normal(mean, std).detach() if self.drawn else mean + std * torch.randn_like(std)
        return self.out(self.decoder(z[:, None].expand(-1, x.shape[1], -1))[0])


# lucidrains/slot-attention#4, evelinehong/slot-attention-pytorch#8: what is drawn by sample() or torch.normal has no
# gradient to mean and deviation, so that nothing before them learns.
shifted = zoo.healthy("windows-code-mean-plus-noise", lambda s: live(
    Variational(False), windows(s, 6, factors=3), "Adam", 1e-2, 120
))  # fmt: skip
zoo.sick(
    "windows-code-drawn-without-gradient",
    lambda s: live(Variational(True), windows(s, 6, factors=3), "Adam", 1e-2, 120),
    both(lasting(no_gradient("encoder", "mean", "spread")), ends_worse(1.2)),
    "DISCONNECTED",
    "detached",
    "DEAD",
    "never_moves",
    layer=("encoder", "mean", "spread"),
    also={"SLOW", "loss_stuck", "frozen", "LOW_RANK", "BOTTLENECK", *SHORT},
    control=shifted,
)


class Stories(nn.Module):
    """Rectified Elman layers, each added to what it read."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.floors = nn.ModuleList(nn.RNN(24, 24, nonlinearity="relu", batch_first=True) for _ in range(depth))
        for floor in self.floors:
            nn.init.eye_(floor.weight_hh_l0)

    def forward(self, x: Tensor) -> Tensor:
        for floor in self.floors:
            x = x + floor(x)[0]
        return x


def storied(seed: int, clip: float | None) -> Setup:
    model = Each(nn.Embedding(NOTE, 24), Stories(3), 24, NOTE)
    return live(model, melodies(seed), "SGD", 0.3, 110, clip=clip)


# bshao001/ChatLearner#24: with residual layers and SGD the perplexity explodes in a few hundred steps.
held = zoo.healthy("melodies-residual-elman-sgd-clipped", lambda s: storied(s, 0.5))
zoo.sick(
    "melodies-residual-elman-sgd-not-clipped",
    lambda s: storied(s, None),
    both(diverges(2), ends_worse(1.3)),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    "SPECTRAL_RADIUS",
    "rate_too_high",
    "first_loss_high",
    also={*WILD_TOO, "loss_nonfinite", "loss_stuck", "DISCONNECTED", "BOTTLENECK", "SLOW"},
    control=held,
)


class Likely(nn.Module):
    """An LSTM that gives the mean of the next value and its deviation, by ReLU or by softplus."""

    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.rnn, self.head, self.relu = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 2), relu
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.head(self.rnn(x)[0]).chunk(2, dim=-1)
        spread = F.relu(spread) if self.relu else F.softplus(spread) + 1e-3
        return torch.cat([mean, spread], dim=-1)


def likely(seed: int, relu: bool, lr: float = 1e-2, steps: int = 90) -> Setup:
    def loss(y: Tensor, t: Tensor) -> Tensor:
        return (y[..., 1:].log() + 0.5 * ((t - y[..., :1]) / y[..., 1:]).square() + 1.0).mean()

    return live(Likely(relu), loads(seed).with_loss(loss), "Adam", lr, steps)


# mllam/neural-lam#537, tonyduan/mixture-density-network#4: a deviation of exactly zero, by which is divided.
soft = zoo.healthy("loads-deviation-by-softplus", lambda s: likely(s, False))
zoo.sick(
    "loads-deviation-by-relu",
    lambda s: likely(s, True),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "EXPLODING",
    layer=("head", "rnn"),
    control=soft,
)


# --- sound, though somebody worried


class Coupled(nn.Module):
    """An LSTM that forgets as much as it takes in; or one whose gates all have the bias of the output gate."""

    def __init__(self, dim: int, width: int, shared: bool = False) -> None:
        super().__init__()
        self.shared, self.width = shared, width
        self.gates = nn.Linear(dim + width, (4 if shared else 3) * width, bias=not shared)
        self.bias = nn.Parameter(torch.ones(width)) if shared else None
        if not shared:
            self.gates.bias.data[:width] = -2.0

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.width)
        out = []
        for now in x.unbind(1):
            parts = self.gates(torch.cat([now, h], dim=1)).chunk(4 if self.shared else 3, dim=1)
            if self.shared:
                i, f, o = (torch.sigmoid(part + self.bias) for part in parts[:3])
            else:
                i, o = torch.sigmoid(parts[0]), torch.sigmoid(parts[1])
                f = 1 - i
            c = f * c + i * torch.tanh(parts[-1])
            h = o * torch.tanh(c)
            out.append(h)
        return torch.stack(out, dim=1)


# glample/tagger#25, juntaoy/aracoref#12: where is the forget gate? It is one minus the input gate.
zoo.healthy("levels-lstm-forgets-what-it-takes-in", lambda s: gauged(s, Coupled(20, 40), 40, 12))
# ddbourgin/numpy-ml#42: all gates add the bias of the output gate; not as it was meant, but it learns.
zoo.healthy("parcels-lstm-one-bias-for-all-gates", lambda s: delivered(s, Coupled(20, 40, True), 40, 8, lr=1e-2))
# husnejahan/DeepAR-pytorch#4, AppliedDataSciencePartners/WorldModels#15: the loss is negative, as a density allows.
zoo.healthy("loads-negative-log-likelihood", lambda s: likely(s, False, 2e-2, 120))


# Kaixhin/PlaNet#26: is the state ever reset? At each chunk, and that is right.
zoo.healthy("episodes-gru-state-zero-in-each-chunk", lambda s: told(
    Last(nn.Linear(8, 20), nn.GRU(20, 40, batch_first=True), 40, 5), episodes(s, 10), 9, kind="Adam", lr=5e-3, steps=60
))  # fmt: skip


class Summed(nn.Module):
    """A GRU both ways in two layers; the outputs of the ways are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Embedding(PARCEL, 20)
        self.rnn = nn.GRU(20, 32, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        out = self.rnn(self.enter(x))[0]
        return self.head((out[..., :32] + out[..., 32:]).mean(dim=1))


# spro/practical-pytorch#97: may one add both ways? One may.
zoo.healthy("parcels-gru-both-ways-summed", lambda s: live(Summed(), parcels(s, 12), "Adam", 5e-3, 80))


class SameMask(nn.Module):
    """Dropout of the state by one mask for all steps."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(dim, width)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.cell.hidden_size), []
        mask = F.dropout(torch.ones_like(h), 0.25, self.training)
        for now in x.unbind(1):
            h = self.cell(now, h * mask.clamp(max=1.0))
            out.append(h)
        return torch.stack(out, dim=1)


# ECMWFCode4Earth/ml_drought#103, keras-team/keras#10838: one mask for all steps; results vary little, and it learns.
zoo.healthy("parcels-gru-one-mask-for-all-steps", lambda s: delivered(s, SameMask(20, 40), 40, 8, lr=1e-2))


def irnn(dim: int, width: int, scale: float) -> nn.RNN:
    rnn = nn.RNN(dim, width, nonlinearity="relu", batch_first=True)
    rnn.weight_hh_l0.data = scale * torch.eye(width)
    nn.init.zeros_(rnn.bias_hh_l0)
    return rnn


# keras-team/keras#275, cooijmanstim/recurrent-batch-normalization#3: why an identity? It keeps what it has.
zoo.healthy("levels-irnn", lambda s: gauged(s, irnn(20, 40, 1.0), 40, 20, lr=2e-3, clip=1.0))
zoo.healthy("adding-irnn-of-0.98", lambda s: told(
    Last(nn.Linear(2, 16), irnn(16, 48, 0.98), 48, 1), adding(s, 12).changed(lambda x, y: (x, y.view(-1, 1))), 11,
    kind="Adam", lr=3e-3, steps=120, clip=1.0,
), thrives(0.15))  # fmt: skip


class Sum(nn.Module):
    """Decays that all start at one value near 1."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.b, self.decay = nn.Linear(dim, width), nn.Parameter(torch.full((width,), 4.0))

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.sigmoid(self.decay)
        h, out = torch.zeros(len(x), len(keep)), []
        for now in self.b(x).unbind(1):
            h = keep * h + (1 - keep) * now
            out.append(h)
        return F.gelu(4 * torch.stack(out, dim=1))


# MzeroMiko/VMamba#217: the decays are not drawn as in the paper but all the same, which matters little.
zoo.healthy("levels-state-space-one-decay-for-all", lambda s: gauged(s, Sum(20, 40), 40, 16, lr=1e-2))


class Translator(nn.Module):
    """A GRU reads, another writes with teacher forcing, and looks back by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(9, 24), nn.Embedding(10, 24)
        self.encoder, self.decoder = nn.GRU(24, 40, batch_first=True), nn.GRU(24, 40, batch_first=True)
        self.out = nn.Linear(80, 9)

    def forward(self, words: Tensor, before: Tensor) -> Tensor:
        memory, state = self.encoder(self.source(words))
        said = self.decoder(self.target(before), state)[0]
        seen = (said @ memory.transpose(1, 2) / 40**0.5).softmax(dim=-1) @ memory
        return self.out(torch.cat([said, seen], dim=-1))


zoo.healthy("dates-gru-translator-with-attention", lambda s: live(Translator(), dates(s), "Adam", 1e-2, 120))


def sung(seed: int, rnn: nn.Module, width: int = 40, drop: float = 0.0, **more) -> Setup:
    model = Each(nn.Embedding(NOTE, 16), rnn, width, NOTE, dropout=drop)
    return live(model, melodies(seed), **{"kind": "Adam", "lr": 1e-2, "steps": 100, **more})


def layer(kind: type[nn.RNNBase], dim: int = 16, width: int = 40, **more) -> nn.RNNBase:
    return kind(dim, width, batch_first=True, **more)


zoo.healthy("melodies-gru", lambda s: sung(s, layer(nn.GRU)))
zoo.healthy("melodies-lstm-sgd-5-clipped-at-0.25", lambda s: sung(
    s, layer(nn.LSTM), kind="SGD", lr=5.0, clip=0.25, steps=120
))  # fmt: skip
zoo.healthy("melodies-lstm-dropout-0.4", lambda s: sung(s, layer(nn.LSTM), drop=0.4))
zoo.healthy("melodies-gru-batches-of-4", lambda s: live(
    Each(nn.Embedding(NOTE, 16), layer(nn.GRU), 40, NOTE), melodies(s, batch=4), "Adam", 8e-3, 120
))  # fmt: skip
zoo.healthy("melodies-gru-a-third-is-chance", lambda s: live(
    Each(nn.Embedding(NOTE, 16), layer(nn.GRU), 40, NOTE), melodies(s, noise=0.35), "Adam", 1e-2, 120
), thrives(0.1))  # fmt: skip
zoo.healthy("melodies-gru-warm-up-and-decay", lambda s: sung(
    s, layer(nn.GRU), kind="AdamW", weight_decay=0.1, rate=lambda t: min((t + 1) / 20, 0.52 + 0.48 * math.cos(t / 32))
))  # fmt: skip
zoo.healthy("melodies-two-lstms-dropout-between", lambda s: sung(s, layer(nn.LSTM, num_layers=2, dropout=0.2)))
zoo.healthy("melodies-table-of-4000", lambda s: live(
    Each(nn.Embedding(4000, 16), layer(nn.GRU), 40, NOTE), melodies(s), "Adam", 1e-2, 90
))  # fmt: skip
zoo.healthy("loads-lstm-rmsprop", lambda s: live(
    Each(nn.Linear(1, 8), layer(nn.LSTM, 8, 32), 32, 1), loads(s), "RMSprop", 3e-3, 90
))  # fmt: skip
zoo.healthy("loads-elman-default-start", lambda s: live(
    Each(nn.Linear(1, 8), layer(nn.RNN, 8, 32), 32, 1), loads(s), "Adam", 3e-3, 100
))  # fmt: skip
zoo.healthy("parcels-frozen-table", lambda s: live(
    frozen(Last(nn.Embedding(PARCEL, 20), layer(nn.GRU, 20), 40, 6), "enter"), parcels(s, 8), "Adam", 1e-2, 80
))  # fmt: skip
# speechbrain/speechbrain#104: a uniform draw as torch has it, and a wide GRU learns all the same.
zoo.healthy("episodes-gru-100-units-rate-1e-3", lambda s: live(
    Last(nn.Linear(8, 16), layer(nn.GRU, 16, 100), 100, 5), episodes(s, 8), "Adam", 1e-3, 100
))  # fmt: skip
zoo.healthy("parcels-gru-nearly-done", lambda s: pretrain(
    delivered(s, layer(nn.GRU, 20), 40, 8, lr=1e-3, steps=50), 45, 5e-3
))  # fmt: skip
