# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks whose states are narrow, saturated or dead, and healthy ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo
from validation.evidence import both, dead, effective_rank, judged, rank_at_most, slope_share
from validation.evidence_training import learns_less, trains
from validation.nets import SequenceModel, spectral_
from validation.setups import pair
from validation.tasks import Task, echo, markov, recall
from validation.zoo_rnn import identity, lstm, plain

zoo = Zoo("rnn", "recurrent")

# --- states without room

default_lstm = zoo.healthy(
    "default-lstm-every-step", "tune", lambda s: every_step(nn.LSTM(8, 32, batch_first=True), s, 14), trains(lr=1e-2)
)
default_gru = zoo.healthy(
    "default-gru-every-step", "tune", lambda s: every_step(nn.GRU(8, 40, batch_first=True), s, 18), trains(lr=1e-2)
)


def every_step(rnn: nn.Module, seed: int, length: int, lag: int = 1) -> Setup:
    return pair(SequenceModel(rnn, 6, every_step=True), echo(seed, length, lag=lag))


@torch.no_grad()
def one_direction(width: int) -> nn.RNN:
    """Input and recurrence both write along one direction only."""
    rnn = nn.RNN(8, width, batch_first=True)
    way = torch.randn(width, 1) / width**0.5
    rnn.weight_ih_l0.copy_(way @ torch.randn(1, 8))
    rnn.weight_hh_l0.copy_(0.9 * way @ way.T / way.square().sum())
    rnn.bias_ih_l0.zero_()
    rnn.bias_hh_l0.zero_()
    return rnn


def state_rank(limit: float) -> Proof:
    """Effective rank of all states, centred."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        with torch.no_grad():
            states = setup.model.rnn(first_of(setup))[0].flatten(0, 1).double()
        rank = effective_rank(states - states.mean(0))
        return judged(rank < limit, "states have effective rank {:.2f}", rank)

    return proof


def first_of(setup: Setup) -> Tensor:
    x = setup.input_fn()
    return setup.model.squeeze(x) if hasattr(setup.model, "squeeze") else x


zoo.sick(
    "tanh-states-along-one-direction",
    "tune",
    lambda s: every_step(one_direction(48), s, 14),
    state_rank(2),
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "SYMMETRY"},
    control=default_lstm,
)


@torch.no_grad()
def narrow_lstm(width: int) -> nn.LSTM:
    """Gates stand still; what is written into the cells is one number of the input."""
    rnn = nn.LSTM(8, width, batch_first=True)
    for name, weight in rnn.named_parameters():
        weight.zero_()
        if name == "weight_ih_l0":
            weight[2 * width : 3 * width] = torch.randn(width, 1) @ torch.randn(1, 8) * 0.3
    return rnn


zoo.sick(
    "lstm-cells-written-along-one-direction",
    "tune",
    lambda s: every_step(narrow_lstm(40), s, 12),
    state_rank(2),
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "SYMMETRY", "VANISHING"},
    control=default_lstm,
)


@torch.no_grad()
def two_directions(width: int) -> nn.RNN:
    """Input and recurrence write into a plane."""
    rnn = nn.RNN(8, width, 1, "relu", batch_first=True)
    plane = torch.linalg.qr(torch.randn(width, 2))[0].abs()
    rnn.weight_ih_l0.copy_(plane @ torch.randn(2, 8))
    rnn.weight_hh_l0.copy_(0.6 * plane @ plane.T / torch.linalg.matrix_norm(plane @ plane.T, 2))
    rnn.bias_ih_l0.fill_(0.2)
    rnn.bias_hh_l0.zero_()
    return rnn


zoo.sick(
    "relu-states-in-a-plane",
    "tune",
    lambda s: every_step(two_directions(64), s, 16),
    state_rank(4),
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "DEAD"},
    control=default_gru,
)


@torch.no_grad()
def equal_gru(width: int) -> nn.GRU:
    """All units start alike."""
    rnn = nn.GRU(8, width, batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("weight"):
            parts = weight.view(3, width, -1)
            parts.copy_(parts[:, :1].expand_as(parts).clone())
            if "hh" in name:
                weight.copy_(weight.mean(1, keepdim=True).expand_as(weight))
        else:
            weight.zero_()
    return rnn


zoo.sick(
    "gru-equal-units",
    "tune",
    lambda s: every_step(equal_gru(40), s, 18),
    state_rank(1.2),
    "LOW_RANK",
    "SYMMETRY",
    "BOTTLENECK",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_gru,
)


class Squeezed(nn.Module):
    """The input passes through a few numbers before the recurrent layer sees it."""

    def __init__(self, narrow: int, width: int, classes: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(8, narrow)
        self.rnn = nn.LSTM(narrow, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.squeeze(x))[0])


zoo.sick(
    "lstm-input-squeezed-to-1",
    "tune",
    lambda s: pair(Squeezed(1, 40, 6), echo(s, 14)),
    both(state_rank(6), learns_less(lr=1e-2, steps=60, by=0.15)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("squeeze", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_gru,
)


class LastStateThroughOne(nn.Module):
    """The last state reaches the classifier through one number."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, width, batch_first=True)
        self.narrow, self.wide = nn.Linear(width, 1), nn.Linear(1, width)
        self.act, self.head = nn.Tanh(), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.wide(self.narrow(self.rnn(x)[0][:, -1]))))


zoo.sick(
    "gru-summary-of-width-1",
    "tune",
    lambda s: pair(LastStateThroughOne(32, 8), recall(s, 8, 8, where=5)),
    both(rank_at_most("narrow", 1), learns_less(lr=1e-2, steps=60, by=0.15)),
    "BOTTLENECK",
    layer=("narrow", "wide"),
    also={"LOW_RANK"},
    control=default_lstm,
)

# --- saturated and dead states


def flat_states(kind: str, at_least: float) -> Proof:
    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        with torch.no_grad():
            states = setup.model.rnn(setup.input_fn())[0]
        share = slope_share(states.double(), kind)
        return judged(share > at_least, "{:.0%} saturated", share)

    return proof


zoo.sick(
    "tanh-inputs-times-1e3",
    "tune",
    lambda s: pair(SequenceModel(plain(32, 0.9), 6, every_step=True), echo(s, 14).mapped(lambda x: x * 1e3)),
    flat_states("tanh", 0.9),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_lstm,
)


def gates_shut(at_least: float) -> Proof:
    """Input, forget and output gates of an LSTM sit at 0 or 1."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        rnn, x = setup.model.rnn, setup.input_fn()
        z = F.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0).detach().double()
        share = slope_share(torch.sigmoid(z), "sigmoid")
        return judged(share > at_least, "{:.0%} of the gates shut", share)

    return proof


zoo.sick(
    "lstm-inputs-times-1e3",
    "tune",
    lambda s: pair(
        SequenceModel(nn.LSTM(8, 40, batch_first=True), 6, every_step=True), echo(s, 12).mapped(lambda x: x * 1e3)
    ),
    gates_shut(0.9),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_gru,
)


@torch.no_grad()
def silent_rnn(width: int) -> nn.RNN:
    rnn = identity(width, 1.0)
    rnn.bias_ih_l0.fill_(-30)
    return rnn


zoo.sick(
    "relu-bias-minus-30",
    "tune",
    lambda s: pair(SequenceModel(silent_rnn(32), 6, every_step=True), echo(s, 12)),
    dead("rnn", 0.99),
    "DEAD",
    "VANISHING",
    "DISCONNECTED",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK"},
    control=default_gru,
)

# --- healthy


class Reservoir(nn.Module):
    """An echo-state network: the recurrent weights are fixed, only the readout learns."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.rnn = spectral_(nn.RNN(8, width, batch_first=True), 0.9).requires_grad_(False)
        self.readout = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.rnn(x)[0])


class WordModel(nn.Module):
    """Embedding, recurrent layer, next-token head."""

    def __init__(self, rnn: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.rnn, self.head = rnn, nn.Linear(width, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


class Repeater(nn.Module):
    """Reads a sequence, then writes it under teacher forcing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 16)
        self.encoder, self.decoder = nn.GRU(16, width, batch_first=True), nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, state = self.encoder(self.embedding(source))
        return self.head(self.decoder(self.embedding(target), state)[0])


def repeating(seed: int) -> Setup:
    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(3, (32, 4), generator=random) + 3 * torch.arange(4)
        return (source, torch.cat([torch.full((32, 1), 12), source[:, :-1]], dim=1)), source

    return pair(Repeater(48), Task(seed, draw, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())))


def recent(rnn: nn.Module, seed: int, length: int, back: int) -> Setup:
    """A long sequence whose answer lies near its end, and a user who knows that."""
    return pair(SequenceModel(rnn, 4), recall(seed, length, where=length - back), hints={"required_lag": back})


def both_ways(seed: int) -> Setup:
    rnn = nn.LSTM(8, 24, batch_first=True, bidirectional=True)
    return pair(SequenceModel(rnn, 6, every_step=True, features=48), echo(seed, 12))


zoo.healthy(
    "default-lstm-answer-3-steps-back",
    "tune",
    lambda s: recent(nn.LSTM(8, 32, batch_first=True), s, 30, 3),
    trains(lr=1e-2),
)
zoo.healthy(
    "default-gru-short-sequences",
    "tune",
    lambda s: pair(SequenceModel(nn.GRU(8, 32, batch_first=True), 4), recall(s, 6)),
    trains(lr=1e-2),
)
zoo.healthy(
    "default-tanh-rnn-every-step", "tune", lambda s: every_step(nn.RNN(8, 40, batch_first=True), s, 14), trains(lr=1e-2)
)
zoo.healthy(
    "lstm-forget-bias-1", "tune", lambda s: every_step(lstm(32, 1.0), s, 16, 2), trains(lr=1e-2, steps=60, fall=0.05)
)
zoo.healthy("bidirectional-lstm", "tune", both_ways, trains(lr=1e-2))
zoo.healthy(
    "two-layer-gru-dropout",
    "tune",
    lambda s: every_step(nn.GRU(8, 32, 2, batch_first=True, dropout=0.2), s, 12),
    trains(lr=1e-2),
)
zoo.healthy("reservoir-with-fixed-recurrence", "tune", lambda s: pair(Reservoir(64, 6), echo(s, 14)), trains(lr=1e-2))
zoo.healthy(
    "lstm-next-token",
    "tune",
    lambda s: pair(WordModel(nn.LSTM(8, 48, batch_first=True), 48), markov(s)),
    trains(lr=1e-2),
)
zoo.healthy("gru-to-gru-teacher-forcing", "tune", repeating, trains(lr=1e-2))
zoo.healthy(
    "default-gru-length-40-every-step",
    "tune",
    lambda s: every_step(nn.GRU(8, 24, batch_first=True), s, 40),
    trains(lr=1e-2),
)
