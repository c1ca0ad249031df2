# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Healthy recurrent networks that look as if something were wrong with them.

Half: blind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Zoo
from validation.cases._blind_tasks import cues, moods, reviews, rhymes, tides, voltages
from validation.evidence import thrives
from validation.nets import gate_bias_
from validation.nets.programs import Tagger
from validation.setups import live
from validation.tasks import token_loss

zoo = Zoo("rnn", half="blind", analyzer="recurrent", proof=thrives())


def tagger(rnn: nn.Module, dim: int, out: int, last: bool = False) -> Tagger:
    return Tagger(nn.Identity(), rnn, out, dim, last=last)


zoo.healthy(
    "tides-gru-needs-two-steps",
    lambda s: live(tagger(nn.GRU(2, 20, batch_first=True), 20, 2), tides(s), lr=5e-3, steps=60),
)
zoo.healthy(
    "tides-lstm-needs-two-steps-of-forty",
    lambda s: live(tagger(nn.LSTM(2, 20, batch_first=True), 20, 2), tides(s, 40), lr=1e-2, steps=50),
)
zoo.healthy(
    "cues-of-three-steps-elman",
    lambda s: live(tagger(nn.RNN(7, 24, batch_first=True), 24, 5, True), cues(s, 3), lr=5e-3, steps=60),
)
zoo.healthy(
    "moods-both-ways-two-floors-dropout",
    lambda s: live(
        tagger(nn.LSTM(5, 16, 2, batch_first=True, bidirectional=True, dropout=0.3), 32, 4),
        moods(s).with_loss(lambda z, t: F.cross_entropy(z.mean(dim=1), t)),
        lr=1e-2,
        steps=60,
    ),
)


class Words(nn.Module):
    """A language model whose last layer is its table, under a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(12, 24), nn.GRU(24, 24, batch_first=True)
        nn.init.normal_(self.table.weight, std=0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.rnn(self.table(tokens))[0], self.table.weight)


zoo.healthy(
    "rhymes-tied-table-under-a-limit",
    lambda s: live(Words(), rhymes(s).with_loss(token_loss), lr=1e-2, steps=100, clip=0.25, weight_decay=0.1),
)


class Packed(nn.Module):
    """Texts of different lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn, self.fc = nn.Embedding(41, 20, 40), nn.GRU(20, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = (tokens != 40).sum(dim=1)
        packed = nn.utils.rnn.pack_padded_sequence(self.table(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.fc(self.rnn(packed)[1][-1])


def cut(tokens: Tensor) -> Tensor:
    lengths = 5 + torch.arange(len(tokens)) % 8
    return tokens.masked_fill(torch.arange(12)[None] >= lengths[:, None], 40)


zoo.healthy("reviews-packed-by-length", lambda s: live(Packed(), reviews(s).mapped(cut), lr=1e-2, steps=60))


class Summing(nn.Module):
    """Attention over the states of an LSTM, for what was said at first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = gate_bias_(nn.LSTM(4, 24, batch_first=True), 1, 2.0)
        self.ask, self.fc = nn.Linear(24, 24, bias=False), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, (last, _) = self.rnn(x)
        weight = torch.softmax((states * self.ask(last[-1])[:, None]).sum(dim=2), dim=1)
        return self.fc(torch.cat([last[-1], (weight[..., None] * states).sum(dim=1)], dim=1))


zoo.healthy("voltages-looked-up-by-the-last-state", lambda s: live(Summing(), voltages(s, 12), lr=1e-2, steps=80))


class Frozen(nn.Module):
    """A random recurrence that is not trained, and a line that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.RNN(2, 60, batch_first=True).requires_grad_(False), nn.Linear(60, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0])


zoo.healthy("tides-reservoir", lambda s: live(Frozen(), tides(s), lr=1e-2, steps=80))


class Last(nn.Module):
    """Only the last steps count: a window of four out of thirty."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(5, 20, batch_first=True), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x[:, -4:])[0][:, -1])


zoo.healthy("moods-of-thirty-steps-the-last-four-read", lambda s: live(Last(), moods(s, 30), lr=1e-2, steps=60))
