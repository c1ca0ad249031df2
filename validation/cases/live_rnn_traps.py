# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that train well and look odd.

Half: live.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.live_rnn import Gated, Loop, gru_cell, lstm, signs
from validation.evidence import thrives
from validation.nets import gate_bias_
from validation.nets.programs import Tagger
from validation.setups import live, told
from validation.tasks import Task, adding, brackets, markov, swings, tanks

zoo = Zoo("rnn", half="live", analyzer="recurrent", proof=thrives())


def forecast(seed: int, rnn: nn.Module, features: int, task: Task | None = None, **more) -> Setup:
    return live(Tagger(nn.Identity(), rnn, 2, features), task or swings(seed), **{"lr": 5e-3, "steps": 50, **more})


# --- gates open or shut, and right

zoo.healthy("signs-lstm-24-gates-wide-open", lambda s: signs(s, lstm(24, 8.0), 40))
zoo.healthy(
    "swings-lstm-forgets-on-purpose", lambda s: forecast(s, gate_bias_(nn.LSTM(2, 24, batch_first=True), 1, -1.0), 24)
)
zoo.healthy(
    "last-sign-needs-no-memory",
    lambda s: told(
        Tagger(nn.Linear(8, 12), nn.RNN(12, 24, batch_first=True), 5, 24, last=True),
        tanks(s, 16).mapped(lambda x: x.flip(1)),
        1,
        lr=5e-3,
    ),
)
zoo.healthy(
    "early-sum-gru-cell-short", lambda s: told(Loop(gru_cell(2, 24), 1), adding(s, 12, early=True), 11, lr=1e-2)
)

# --- ways to write and to train


class Bidirectional(nn.Module):
    """Two layers in both directions, with dropout between them, a tag at every place."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 12)
        self.rnn = kind(12, 16, 2, batch_first=True, bidirectional=True, dropout=dropout)
        self.tag = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        states, _ = self.rnn(self.words(tokens))
        return {"logits": self.tag(states), "states": states}


def both_ways(seed: int, model: nn.Module, **more) -> Setup:
    task = brackets(seed)
    inner = F.cross_entropy
    return live(
        model,
        task.with_loss(lambda out, t: inner(out["logits"].flatten(0, 1), t.flatten())),
        **{"lr": 1e-2, "steps": 40, **more},
    )


zoo.healthy("brackets-bidirectional-lstm", lambda s: both_ways(s, Bidirectional(nn.LSTM)))
zoo.healthy("brackets-bidirectional-gru-dropout-0.5", lambda s: both_ways(s, Bidirectional(nn.GRU, 0.5)))
zoo.healthy("brackets-bidirectional-lstm-clipped-to-0.1", lambda s: both_ways(s, Bidirectional(nn.LSTM), clip=0.1))


class Translate(nn.Module):
    """An encoder's last state starts a decoder, which reads the right answer of the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.GRU(2, 24, batch_first=True), nn.GRUCell(2, 24)
        self.out = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, last = self.encoder(x[:, :8])
        state, said = last[0], []
        for t in range(x.shape[1]):
            state = self.decoder(x[:, t], state)
            said.append(self.out(state))
        return torch.stack(said, dim=1)


zoo.healthy("swings-encoder-and-decoder-loop", lambda s: live(Translate(), swings(s, 14), lr=5e-3))


class Packed(nn.Module):
    """Sequences of unlike length, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = gate_bias_(nn.LSTM(2, 24, batch_first=True), 1, 3.0), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 10 + torch.arange(len(x)) % 4
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.fc(self.rnn(packed)[1][0][0])


zoo.healthy("early-sum-packed-sequences", lambda s: live(Packed(), adding(s, 14, early=True), lr=1e-2, steps=80))


zoo.healthy("swings-own-minimal-gated-unit", lambda s: forecast(s, Gated(2, 24, -1.5), 24, steps=40))


class Diagonal(nn.Module):
    """A state-space layer: each number of the state decays at its own learned rate; read through a gate."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden_size, self.rate = width, nn.Parameter(torch.linspace(-1.0, 4.0, width))
        self.into, self.gate = nn.Linear(dim, width), nn.Linear(dim, width)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        keep, drive, state, states = torch.sigmoid(self.rate), self.into(x), 0.0, []
        for now in drive.unbind(1):
            state = keep * state + (1 - keep) * now
            states.append(state)
        return torch.stack(states, dim=1) * F.silu(self.gate(x)), None


zoo.healthy("swings-diagonal-state-space", lambda s: forecast(s, Diagonal(2, 32), 32, lr=1e-2, steps=60))
zoo.healthy(
    "swings-lstm-loss-times-1e4", lambda s: forecast(s, nn.LSTM(2, 24, batch_first=True), 24, swings(s).scaled(1e4))
)
zoo.healthy(
    "swings-gru-batches-of-2",
    lambda s: forecast(s, nn.GRU(2, 20, batch_first=True), 20, swings(s, batch=2), lr=3e-3, steps=80),
)


class Spoken(nn.Module):
    """Words in and out by one matrix, a GRU between, under autocast."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.words, self.rnn, self.low = nn.Embedding(20, 24), nn.GRU(24, 24, batch_first=True), low
        self.words.weight.data *= 0.3

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return F.linear(self.rnn(self.words(tokens))[0], self.words.weight).float()


zoo.healthy("words-tied-gru-autocast", lambda s: live(Spoken(True), markov(s, 20, 10, 16), lr=1e-2))
zoo.healthy(
    "words-tied-gru-sgd-nesterov",
    lambda s: live(Spoken(False), markov(s, 20, 10, 16), "SGD", 0.5, 80, momentum=0.9, nesterov=True),
)
