# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that only look odd: short tasks, gates that should close, frozen states, packed sequences.

Half: veiled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import calls, dances, drifts, reels, whispers
from validation.cases.veiled_rnn import Listener, danced, floated, heard
from validation.evidence import thrives
from validation.nets import Cell
from validation.setups import live

zoo = Zoo("rnn", half="veiled", analyzer="recurrent", proof=thrives())


def late(seed: int) -> Setup:
    """The word is whispered at the last step but one, so nothing need be kept."""
    task = whispers(seed, 16).mapped(lambda x: x.roll(-2, 1))
    return live(Listener(nn.RNN(5, 24, batch_first=True), 4), task, lr=5e-3, steps=50, hints={"required_lag": 1})


zoo.healthy("whispers-just-before-the-end", late)
zoo.healthy("dances-gru-three-layers-dropout", lambda s: danced(s, nn.GRU(4, 24, 3, batch_first=True, dropout=0.3)))


class Ends(nn.Module):
    """Both ways, and both last states are read."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 16, batch_first=True, bidirectional=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat(list(self.lstm(x)[1][0]), dim=1))


zoo.healthy("dances-both-ends", lambda s: live(Ends(), dances(s), lr=1e-2, steps=50))


class Echo(nn.Module):
    """A reservoir: its matrices stay as they were drawn, only the reader learns."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.RNN(3, 80, batch_first=True), nn.Linear(80, 3)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, 0.9)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.3)
        self.rnn.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


zoo.healthy("drifts-fixed-reservoir", lambda s: live(Echo(), drifts(s), lr=1e-2, steps=50))


class Clockwork(Cell):
    """Half of the units move at each step, the other half at every fourth."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden_size, self.ih, self.hh = 24, nn.Linear(dim, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, states = x.new_zeros(len(x), 24), []
        for i, now in enumerate(x.unbind(1)):
            new = torch.tanh(self.ih(now) + self.hh(h))
            h = new if i % 4 == 0 else torch.cat([new[:, :12], h[:, 12:]], dim=1)
            states.append(h)
        return torch.stack(states, dim=1), h


zoo.healthy("drifts-clockwork", lambda s: floated(s, Clockwork(3)))


class Highway(Cell):
    """A state that is added to by a small share, as a flow in time."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden_size, self.into, self.field = 32, nn.Linear(dim, 32), nn.Linear(32, 32)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + 0.3 * torch.tanh(self.into(x) + self.field(state))


zoo.healthy("whispers-added-by-a-third", lambda s: heard(s, Highway(5), 14, clip=1.0))


class Scan(nn.Module):
    """A selective state space: how much is kept and taken in depends on the input, all steps by a cumulative sum."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.hidden_size, self.rate, self.into, self.gate = (
            24,
            nn.Linear(dim, 24),
            nn.Linear(dim, 24),
            nn.Linear(dim, 24),
        )
        nn.init.constant_(self.rate.bias, -3.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        step = F.softplus(self.rate(x))
        faded = step.cumsum(dim=1)
        states = (-faded).exp() * ((faded.clamp_max(30.0)).exp() * self.into(x)).cumsum(dim=1)
        return states * F.silu(self.gate(x)) + states, states[:, -1]


zoo.healthy("whispers-selective-scan", lambda s: heard(s, Scan(5), 14))


class Packed(nn.Module):
    """Dances of any length, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        lengths = 6 + torch.arange(len(x)) % 7
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.gru(packed)[1][0])


zoo.healthy("dances-packed", lambda s: live(Packed(), dances(s), lr=1e-2, steps=60))


class Tunes(nn.Module):
    """Notes by a table, an LSTM, a guess of the next at each step, tied to the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(12, 24), nn.LSTM(24, 24, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(12))

    def forward(self, notes: Tensor) -> Tensor:
        return F.linear(self.lstm(self.table(notes))[0], self.table.weight, self.bias)


zoo.healthy("reels-lstm-tied", lambda s: live(Tunes(), reels(s), lr=1e-2, steps=60))


class Copier(nn.Module):
    """An encoder's state starts a decoder that is told the right note before; half of the time it hears itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.encoder = nn.Embedding(13, 24), nn.GRU(24, 48, batch_first=True)
        self.decoder, self.out = nn.GRUCell(24, 48), nn.Linear(48, 12)

    def forward(self, notes: Tensor) -> Tensor:
        h, said, before = self.encoder(self.table(notes))[1][0], [], torch.full((len(notes),), 12)
        for i in range(notes.shape[1]):
            h = self.decoder(self.table(before), h)
            said.append(self.out(h))
            before = notes[:, i] if i % 2 else said[-1].argmax(dim=1)
        return torch.stack(said, dim=1)


def copied(seed: int) -> Setup:
    return live(Copier(), reels(seed, length=5).changed(lambda x, _t: (x, x)), lr=1e-2, steps=60)


zoo.healthy("reels-copied-by-an-encoder-and-a-decoder", copied)


class Normed(nn.Module):
    """A convolution before, a norm behind each step of a GRU, the mean of all steps is read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.cell, self.norm = nn.Conv1d(2, 16, 5, stride=3), nn.GRUCell(16, 24), nn.LayerNorm(24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, total = x.new_zeros(len(x), 24), 0
        steps = F.gelu(self.conv(x)).unbind(2)
        for now in steps:
            h = self.norm(self.cell(now, h))
            total = total + h
        return self.head(total / len(steps))


zoo.healthy("calls-convolution-then-normed-cells", lambda s: live(Normed(), calls(s), lr=1e-2, steps=60), thrives(0.05))
zoo.healthy("drifts-gradients-within-0.05", lambda s: floated(s, nn.GRU(3, 24, batch_first=True), clip=0.05, steps=70))
zoo.healthy(
    "drifts-loss-in-millionths",
    lambda s: live(Listener(nn.LSTM(3, 24, batch_first=True), 3, True), drifts(s).scaled(1e-6), lr=1e-2),
)


class Small(nn.Module):
    """Six units are enough for one slow wave."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x[..., :1])[0])


zoo.healthy(
    "drifts-six-units-for-one-number",
    lambda s: live(Small(), drifts(s).changed(lambda x, t: (x, t[..., :1])), lr=2e-2, steps=80),
)
