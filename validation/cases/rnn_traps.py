# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that look odd and are healthy.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from validation.case import Setup, Zoo
from validation.evidence import converged, trains
from validation.nets import Cell, SequenceModel, Words, gate_bias_, spectral_
from validation.setups import every_step, frozen, pair, pretrain, recent
from validation.tasks import Task, ciphers, echo, markov, recall, series, waves

zoo = Zoo("rnn", half="tune", analyzer="recurrent", proof=trains(lr=1e-2))


# --- usual layers


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


def both_ways(seed: int) -> Setup:
    rnn = nn.LSTM(8, 24, batch_first=True, bidirectional=True)
    return pair(SequenceModel(rnn, 6, every_step=True, features=48), echo(seed, 12))


zoo.healthy("default-lstm-answer-3-steps-back", lambda s: recent(nn.LSTM(8, 32, batch_first=True), s, 30, 3))
zoo.healthy(
    "default-gru-short-sequences", lambda s: pair(SequenceModel(nn.GRU(8, 32, batch_first=True), 4), recall(s, 6))
)
zoo.healthy("default-tanh-rnn-every-step", lambda s: every_step(nn.RNN(8, 40, batch_first=True), s, 14))
zoo.healthy(
    "lstm-forget-bias-1",
    lambda s: every_step(gate_bias_(nn.LSTM(8, 32, batch_first=True), 1, 1.0), s, 16, lag=2),
    trains(lr=1e-2, steps=60, fall=0.05),
)
zoo.healthy("bidirectional-lstm", both_ways)
zoo.healthy("two-layer-gru-dropout", lambda s: every_step(nn.GRU(8, 32, 2, batch_first=True, dropout=0.2), s, 12))
zoo.healthy("reservoir-with-fixed-recurrence", lambda s: pair(Reservoir(64, 6), echo(s, 14)))
zoo.healthy("lstm-next-token", lambda s: pair(WordModel(nn.LSTM(8, 48, batch_first=True), 48), markov(s)))
zoo.healthy("gru-to-gru-teacher-forcing", repeating)
zoo.healthy("default-gru-length-40-every-step", lambda s: every_step(nn.GRU(8, 24, batch_first=True), s, 40))

# --- own cells, other ways to read and write


class Minimal(Cell):
    """Own cell with a single gate that forgets and writes at once."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.gate, self.new = nn.Linear(dim + width, width), nn.Linear(dim + width, width)
        self.hidden_size = width

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        share = torch.sigmoid(self.gate(torch.cat([x, state], dim=1)))
        fresh = torch.tanh(self.new(torch.cat([x, share * state], dim=1)))
        return (1 - share) * state + share * fresh


class Packed(nn.Module):
    """Sequences of different lengths, packed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(states[torch.arange(len(x)), lengths - 1])


def packed(seed: int) -> Setup:
    codes = 2 * torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        target, lengths = torch.randint(4, (20,), generator=random), torch.randint(3, 12, (20,), generator=random)
        return (codes[target][:, None] + 0.7 * torch.randn(20, 11, 8, generator=random), lengths), target

    return pair(Packed(24), Task(seed, draw, F.cross_entropy))


class Looking(nn.Module):
    """A GRU decoder that looks back at all states of the encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(14, 16), nn.Embedding(15, 16)
        self.encoder = nn.GRU(16, width, batch_first=True, bidirectional=True)
        self.decoder, self.query = nn.GRU(16, width, batch_first=True), nn.Linear(width, 2 * width)
        self.head = nn.Linear(3 * width, 14)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.source(source))[0]
        states = self.decoder(self.target(target))[0]
        share = (self.query(states) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5).softmax(dim=-1)
        return self.head(torch.cat([states, share @ memory], dim=-1))


class Carried(nn.Module):
    """Takes its state over from the batch before, without history: truncated backpropagation as it should be."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, width, batch_first=True), nn.Linear(width, 3)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.rnn(x, self.last)
        self.last = last.detach()
        return self.head(states)


class Normed(Cell):
    """A tanh cell with a norm on its state."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.cell, self.norm, self.hidden_size = nn.RNNCell(dim, width), nn.LayerNorm(width), width

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.norm(self.cell(x, state))


class Heard(nn.Module):
    """Convolutions shorten a signal, a GRU reads what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 20, 5, stride=2, padding=2)
        self.rnn, self.head = nn.GRU(20, 28, batch_first=True), nn.Linear(28, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(F.gelu(self.conv(x)).transpose(1, 2))[0][:, -1])


class Rebuilt(nn.Module):
    """Reads a short series, rebuilds it from the last state alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.LSTM(3, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        last = self.encoder(x)[1][0][-1]
        return self.head(self.decoder(last[:, None].expand(-1, x.shape[1], -1))[0])


def rebuilding(seed: int) -> Setup:
    task = series(seed, 3, 6)
    inputs: dict[str, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        inputs["x"] = x
        return x

    return pair(Rebuilt(32), task.mapped(keep).with_loss(lambda y, _: F.mse_loss(y, inputs["x"])))


zoo.healthy("own-minimal-gated-cell", lambda s: every_step(Minimal(8, 36), s))
zoo.healthy("packed-sequences-of-3-to-11", packed)
zoo.healthy("gru-decoder-that-looks-back", lambda s: pair(Looking(28), ciphers(s, length=4)), trains(lr=1e-2, steps=80))
zoo.healthy("state-carried-over-batches", lambda s: pair(Carried(32), series(s)))
zoo.healthy("tanh-cell-with-layer-norm", lambda s: every_step(Normed(8, 36), s))
zoo.healthy("convolution-then-gru", lambda s: pair(Heard(), waves(s)))
zoo.healthy("sequence-autoencoder-of-6-steps", rebuilding, trains(lr=1e-2, steps=80))
zoo.healthy(
    "three-layer-lstm-dropout-0.3",
    lambda s: every_step(nn.LSTM(8, 26, 3, batch_first=True, dropout=0.3), s, 8),
    trains(lr=1e-2, steps=100, fall=0.2),
)
zoo.healthy(
    "bidirectional-gru-two-layers",
    lambda s: every_step(nn.GRU(8, 20, 2, batch_first=True, bidirectional=True), s, features=40),
)
zoo.healthy("default-lstm-length-80-answer-2-back", lambda s: recent(nn.LSTM(8, 30, batch_first=True), s, 80, 2, 3))
zoo.healthy("default-tanh-length-25-answer-1-back", lambda s: recent(nn.RNN(8, 30, batch_first=True), s, 25, 1, 3))
zoo.healthy(
    "lstm-forecast-batch-1",
    lambda s: pair(SequenceModel(nn.LSTM(3, 24, batch_first=True), 3, True), series(s, batch=1)),
    trains(lr=1e-2, steps=80),
)
zoo.healthy(
    "gru-loss-times-1e5", lambda s: pair(SequenceModel(nn.GRU(3, 28, batch_first=True), 3, True), series(s).scaled(1e5))
)
zoo.healthy("words-with-frozen-embedding", lambda s: pair(frozen(Words(20), "embedding"), markov(s, 24)))
zoo.healthy(
    "converged-gru-forecast",
    lambda s: pretrain(
        pair(SequenceModel(nn.GRU(3, 32, batch_first=True), 3, True), series(s, 3, 12, 8).fixed()), 250, 1e-2
    ),
    converged(0.02),
)
