# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Recurrent networks that look odd and are well.

Half: sealed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import dialects, gaits, leftovers, passwords, scrolls, swells
from validation.evidence import thrives
from validation.setups import live
from validation.tasks import token_loss

zoo = Zoo("rnn", half="sealed", analyzer="recurrent", proof=thrives())


class Tag(nn.Module):
    """Words, any recurrent layer, an answer at every place."""

    def __init__(self, rnn: nn.Module, features: int, words: int) -> None:
        super().__init__()
        self.table, self.rnn, self.head = nn.Embedding(words, 16), rnn, nn.Linear(features, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.table(tokens))[0])


zoo.healthy(
    "leftovers-both-ways",
    lambda s: live(
        Tag(nn.GRU(16, 24, batch_first=True, bidirectional=True), 48, 8), leftovers(s, length=6), lr=1e-2, steps=80
    ),
)
zoo.healthy(
    "scrolls-two-lstms-dropped-between",
    lambda s: live(Tag(nn.LSTM(16, 24, 2, batch_first=True, dropout=0.3), 24, 14), scrolls(s), lr=1e-2, steps=80),
)
zoo.healthy(
    "scrolls-small-limit-and-adam",
    lambda s: live(Tag(nn.GRU(16, 24, batch_first=True), 24, 14), scrolls(s), lr=1e-2, steps=70, clip=0.1),
)


class Packed(nn.Module):
    """Texts of many lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn, self.head = nn.Embedding(32, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = 4 + torch.arange(len(tokens)) % 7
        packed = pack_padded_sequence(self.table(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][-1])


zoo.healthy("dialects-packed", lambda s: live(Packed(), dialects(s), lr=1e-2, steps=80), thrives(0.05))


class Quasi(nn.Module):
    """Gates from convolutions; the recurrence itself has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Conv1d(4, 48, 2, padding=1), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        new, keep = self.gates(x.transpose(1, 2))[:, :, :-1].chunk(2, dim=1)
        new, keep, h = torch.tanh(new), torch.sigmoid(keep), 0
        for t in range(new.shape[2]):
            h = keep[:, :, t] * h + (1 - keep[:, :, t]) * new[:, :, t]
        return self.head(h)


zoo.healthy("gaits-quasi-recurrent", lambda s: live(Quasi(), gaits(s), lr=1e-2, steps=80))


class Echo(nn.Module):
    """A drawn recurrence that is not trained, and a reader that is."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.read = nn.RNN(2, 60, batch_first=True).requires_grad_(False), nn.Linear(60, 2)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, 0.9)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.rnn(x)[0])


zoo.healthy("swells-drawn-recurrence", lambda s: live(Echo(), swells(s), lr=2e-2, steps=60))


class Looked(nn.Module):
    """The last state looks up what the others hold: attention over time, which becomes sharp by right."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.ask, self.head = nn.GRU(6, 24, batch_first=True), nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        weight = torch.einsum("bd,btd->bt", self.ask(states[:, -1]), states).softmax(dim=1)
        return self.head(torch.einsum("bt,btd->bd", weight, states))


zoo.healthy("passwords-looked-up-over-time", lambda s: live(Looked(), passwords(s, 14), lr=1e-2, steps=60))


def recent(seed: int) -> Setup:
    """The word is said at the end of a long silence: no long memory is needed."""

    class Ending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(6, 24, batch_first=True), nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x.flip(1))[0][:, -1])

    return live(Ending(), passwords(seed, 30), lr=5e-3, steps=50, hints={"required_lag": 1})


zoo.healthy("passwords-said-at-the-end", recent)


class Slow(nn.Module):
    """Half of the state changes every step, half only every third."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow, self.head = nn.GRUCell(4 + 12, 12), nn.GRUCell(4 + 12, 12), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        f = s = x.new_zeros(len(x), 12)
        for t, now in enumerate(x.unbind(1)):
            f = self.fast(torch.cat([now, s], dim=1), f)
            if t % 3 == 2:
                s = self.slow(torch.cat([now, f], dim=1), s)
        return self.head(torch.cat([f, s], dim=1))


zoo.healthy("gaits-two-clocks", lambda s: live(Slow(), gaits(s), lr=1e-2, steps=70))


def identity(seed: int) -> Setup:
    """A rectified recurrence that begins as the identity, with a small rate and a limit."""

    class Rectified(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(2, 24, nonlinearity="relu", batch_first=True), nn.Linear(24, 2)
            nn.init.eye_(self.rnn.weight_hh_l0)
            self.rnn.weight_hh_l0.data *= 0.6

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    return live(Rectified(), swells(seed), lr=5e-3, steps=70, clip=1.0)


zoo.healthy("swells-rectified-from-the-identity", identity)


def residual(seed: int) -> Setup:
    """Three recurrent layers with skips between them and norms before them."""

    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.head = nn.Linear(4, 20), nn.Linear(20, 5)
            self.layers = nn.ModuleList(nn.GRU(20, 20, batch_first=True) for _ in range(3))
            self.norms = nn.ModuleList(nn.LayerNorm(20) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = x + layer(norm(x))[0]
            return self.head(x.mean(dim=1))

    return live(Skips(), gaits(seed), lr=5e-3, steps=60)


zoo.healthy("gaits-three-layers-with-skips", residual)


def masked(seed: int) -> Setup:
    """Only the second half of each text counts."""

    def late(z: Tensor, y: Tensor) -> Tensor:
        return token_loss(z[:, 6:], y[:, 6:])

    return live(Tag(nn.RNN(16, 24, batch_first=True), 24, 14), scrolls(seed).with_loss(late), lr=1e-2, steps=70)


zoo.healthy("scrolls-second-half-counts", masked)


class Two(nn.Module):
    """A wave and its turn, each by its own recurrence, multiplied at the end: a bilinear reader."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.GRU(2, 16, batch_first=True), nn.GRU(2, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.a(x)[0] * F.silu(self.b(x)[0]) + self.a(x)[0])


zoo.healthy("swells-two-recurrences-multiplied", lambda s: live(Two(), swells(s), lr=1e-2, steps=60))
