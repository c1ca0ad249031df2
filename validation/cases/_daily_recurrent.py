"""What the recurrent cases of the half `daily` share: tasks as people have them, and a few modules."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup
from validation.cases._common_sequences import Last, told
from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- what is said at the beginning and asked at the end

PARCEL = 19
"""Tokens of a parcel: six towns, twelve scans, "delivered"."""


def parcels(seed: int, length: int = 22, batch: int = 32) -> Task:
    """A town, many scans on the way, "delivered": to which town did it go? Needs a lag of length - 1."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        town = torch.randint(6, (batch, 1), generator=random)
        scans = 6 + torch.randint(12, (batch, length - 2), generator=random)
        return torch.cat([town, scans, torch.full((batch, 1), 18)], dim=1), town[:, 0]

    return Task(seed, draw, F.cross_entropy)


def doses(seed: int, length: int = 22, batch: int = 32, noise: float = 0.2) -> Task:
    """Three amounts at the first step, noise on four channels afterwards: what were the amounts?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        amount = 2 * torch.rand(batch, 3, generator=random) - 1
        x = noise * torch.randn(batch, length, 4, generator=random)
        x[:, 0] = torch.cat([amount, torch.ones(batch, 1)], dim=1)
        return x, 2 * amount

    return Task(seed, draw, F.mse_loss)


def strips(seed: int, kinds: int = 5, length: int = 36, batch: int = 32) -> Task:
    """Pictures as strips of pixels, one after the other; the kind shows in the first eight."""
    top = torch.randn(kinds, 8, generator=drawn_once(seed, 7000)).sign()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        x = 0.3 * torch.randn(batch, length, generator=random)
        x[:, :8] += top[kind]
        return x[..., None], kind

    return Task(seed, draw, F.cross_entropy)


# --- text

SAYINGS = (
    "a bird in the hand is worth two in the bush. all that glitters is not gold. "
    "an apple a day keeps the doctor away. the early bird gets the worm. "
    "a rolling stone gathers no moss. when the cat is away the mice will play. "
    "too many cooks spoil the broth. birds of a feather flock together. "
)
SIGNS = sorted(set(SAYINGS))
SAID = torch.tensor([SIGNS.index(sign) for sign in SAYINGS])


def sayings(seed: int, length: int = 20, batch: int = 16) -> Task:
    """The next letter of well-known sayings."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        start = torch.randint(len(SAID) - length - 1, (batch, 1), generator=random)
        window = SAID[start + torch.arange(length + 1)]
        return window[:, :-1], window[:, 1:]

    return Task(seed, draw, token_loss)


INTENT = 26


def intents(seed: int, longest: int = 14, batch: int = 32) -> Task:
    """Requests of unlike length, padded with 0: one word of eight says which of four is meant."""

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        lengths = torch.randint(4, longest + 1, (batch,), generator=random)
        words = torch.randint(9, INTENT, (batch, longest), generator=random)
        key = torch.randint(8, (batch,), generator=random)
        place = (torch.rand(batch, generator=random) * lengths).long()
        words[torch.arange(batch), place] = 1 + key
        return (words.masked_fill(torch.arange(longest) >= lengths[:, None], 0), lengths), key // 2

    return Task(seed, draw, F.cross_entropy)


def turned(seed: int, digits: int = 8, length: int = 5, batch: int = 32) -> Task:
    """A number is to be written from its end, each digit by another sign, under teacher forcing."""
    code = torch.randperm(digits, generator=drawn_once(seed, 7100))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(digits, (batch, length), generator=random)
        answer = code[source.flip(1)]
        return (source, torch.cat([torch.full((batch, 1), digits), answer[:, :-1]], dim=1)), answer

    return Task(seed, draw, token_loss)


def chords(seed: int, notes: int = 10, length: int = 14, batch: int = 24) -> Task:
    """A label for every note, by the note and the one before it."""
    table = torch.randint(5, (notes, notes), generator=drawn_once(seed, 7200))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        note = torch.randint(notes, (batch, length), generator=random)
        return note, table[note, note.roll(1, dims=1)]

    return Task(seed, draw, lambda z, t: token_loss(z[:, 1:], t[:, 1:]))


# --- readings


def solar(seed: int, length: int = 20, panels: int = 3, batch: int = 24, noise: float = 0.05) -> Task:
    """The yield of some panels over days with and without clouds; every step predicts the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.arange(length + 1.0)[None, :, None]
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=random) + 0.4 * torch.arange(panels)
        height = 0.6 + 0.8 * torch.rand(batch, 1, panels, generator=random)
        x = height * torch.sin(2 * math.pi * t / 8 + phase) + 0.3 * torch.sin(t / 5 + phase)
        x = x + noise * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def activities(seed: int, kinds: int = 5, length: int = 20, batch: int = 32, noise: float = 0.5) -> Task:
    """Three axes of a wrist: each kind of activity has its own pace and heights, from any phase."""
    random = drawn_once(seed, 7300)
    pace = 0.4 + 0.3 * torch.arange(kinds) + 0.05 * torch.rand(kinds, generator=random)
    height = 0.5 + torch.rand(kinds, 3, generator=random)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=random) + torch.arange(3.0)
        angle = pace[kind][:, None, None] * torch.arange(length)[None, :, None] + phase
        x = height[kind][:, None] * angle.sin()
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def balances(seed: int, length: int = 16, batch: int = 32) -> Task:
    """Payments in and out: what is the balance after each?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 0.5 * torch.randn(batch, length, 1, generator=random)
        return x, x.cumsum(dim=1)

    return Task(seed, draw, F.mse_loss)


# --- set-ups


def towns(seed: int, rnn: nn.Module, features: int, length: int = 22, size: int = 20, **more) -> Setup:
    """To which town did a parcel go?"""
    return told(
        Last(nn.Embedding(PARCEL, size), rnn, features, 6),
        parcels(seed, length),
        length - 1,
        **{"lr": 1e-2, "steps": 80, **more},
    )


def amounts(seed: int, rnn: nn.Module, features: int, length: int = 22, size: int = 20, **more) -> Setup:
    """What were the amounts at the beginning?"""
    return told(
        Last(nn.Linear(4, size), rnn, features, 3),
        doses(seed, length),
        length - 1,
        **{"lr": 1e-2, "steps": 80, **more},
    )


def lstm(dim: int, width: int, *args: int, **more) -> nn.LSTM:
    """Batch first."""
    return nn.LSTM(dim, width, *args, batch_first=True, **more)


def gru(dim: int, width: int, *args: int, **more) -> nn.GRU:
    """Batch first."""
    return nn.GRU(dim, width, *args, batch_first=True, **more)


def elman(dim: int, width: int, gain: float | None = None, **more) -> nn.RNN:
    """Batch first; the recurrent matrix may be drawn orthogonal, with a gain."""
    rnn = nn.RNN(dim, width, batch_first=True, **more)
    if gain is not None:
        nn.init.orthogonal_(rnn.weight_hh_l0, gain)
    return rnn
