"""What the sequence cases of the half `threads` share: tasks as in the threads, small modules, set-ups."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup
from validation.cases._common_sequences import Last, told
from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- what comes first decides

PARCEL = 18
"""Tokens of a parcel: six places, eleven scans, the question."""


def parcels(seed: int, length: int = 20, batch: int = 32) -> Task:
    """A parcel's first scan names its place, other scans follow, then a question: where does it go?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        place = torch.randint(6, (batch, 1), generator=random)
        scans = 6 + torch.randint(11, (batch, length - 2), generator=random)
        return torch.cat([place, scans, torch.full((batch, 1), 17)], dim=1), place[:, 0]

    return Task(seed, draw, F.cross_entropy)


def levels(seed: int, length: int = 20, count: int = 2, batch: int = 32) -> Task:
    """Levels of some tanks at the first step, noise of the sensors afterwards; at the end, what were they?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randn(batch, count, generator=random)
        x = 0.2 * torch.randn(batch, length, count + 1, generator=random)
        x[:, 0] = torch.cat([target, torch.ones(batch, 1)], dim=1)
        return x, target

    return Task(seed, draw, F.mse_loss)


def episodes(seed: int, length: int = 16, kinds: int = 5, dim: int = 8, batch: int = 32) -> Task:
    """What an agent sees in the first three steps tells what it must do at the end; the rest is noise."""
    hint = 1.2 * torch.randn(kinds, 3, dim, generator=drawn_once(seed, 9100))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        x = 0.4 * torch.randn(batch, length, dim, generator=random)
        x[:, :3] += hint[kind]
        return x, kind

    return Task(seed, draw, F.cross_entropy)


NOTE = 12


def melodies(seed: int, length: int = 16, batch: int = 24, noise: float = 0.05) -> Task:
    """A note follows from the last one and the one before it; the first two are free."""
    table = torch.stack([torch.randperm(NOTE, generator=drawn_once(seed, 9200 + i)) for i in range(3)])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        notes = list(torch.randint(NOTE, (2, batch), generator=random))
        for _ in range(length - 1):
            free = torch.randint(NOTE, (batch,), generator=random)
            new = table[notes[-2] % 3, notes[-1]]
            notes.append(torch.where(torch.rand(batch, generator=random) < noise, free, new))
        tune = torch.stack(notes, dim=1)
        return tune[:, :-1], tune[:, 1:]

    return Task(seed, draw, lambda z, t: token_loss(z[:, 1:], t[:, 1:]))


def loads(seed: int, length: int = 24, batch: int = 24, ahead: int = 1) -> Task:
    """Power that a town needs: two waves of fixed pace and free phase; every step the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 6.3 * torch.rand(batch, 1, 2, generator=random)
        size = 0.5 + torch.rand(batch, 1, 2, generator=random)
        time = torch.arange(length + ahead * 1.0)[None, :, None] * torch.tensor([0.5, 1.3])
        x = (size * torch.sin(time + phase)).sum(dim=2, keepdim=True)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-ahead], x[:, ahead:]

    return Task(seed, draw, F.mse_loss)


def windows(seed: int, length: int = 10, dim: int = 3, factors: int = 6, batch: int = 32) -> Task:
    """Windows of several sensors that some factors drive, to be rebuilt."""
    ways = torch.randn(factors, length * dim, generator=drawn_once(seed, 9300)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = (torch.randn(batch, factors, generator=random) @ ways).view(batch, length, dim)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


# --- what is to be found somewhere


def lockers(seed: int, count: int = 6, things: int = 6, batch: int = 32) -> Task:
    """Each token is a locker, what lies in it, and the locker it asks for: what lies in that one?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        thing = torch.randint(things, (batch, count), generator=random)
        asked = torch.randint(count, (batch, count), generator=random)
        own = torch.eye(count).expand(batch, -1, -1)
        x = torch.cat([own, F.one_hot(thing, things).float(), F.one_hot(asked, count).float()], dim=2)
        return 2 * x, thing.gather(1, asked)

    return Task(seed, draw, token_loss)


LOCKER = 18
"""Numbers of a locker's token."""


def doubles(seed: int, count: int = 6, things: int = 3, batch: int = 32) -> Task:
    """The same with two lockers to ask for: both answers are one class of nine."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        thing = torch.randint(things, (batch, count), generator=random)
        one, two = torch.randint(count, (2, batch, count), generator=random)
        own = torch.eye(count).expand(batch, -1, -1)
        parts = [own, F.one_hot(thing, things).float(), F.one_hot(one, count).float(), F.one_hot(two, count).float()]
        return 2 * torch.cat(parts, dim=2), things * thing.gather(1, one) + thing.gather(1, two)

    return Task(seed, draw, token_loss)


DOUBLE = 21


def recipes(seed: int, words: int = 10, length: int = 7, batch: int = 32) -> Task:
    """Words of a recipe, each in another code and from three places further on, round the end."""
    code = torch.randperm(words, generator=drawn_once(seed, 9400))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        return x, code[x.roll(-3, dims=1)]

    return Task(seed, draw, token_loss)


REVIEW = 36


def reviews(seed: int, kinds: int = 5, length: int = 12, batch: int = 32, lean: float = 1.3) -> Task:
    """Texts whose words lean towards their kind."""
    lists = (lean * torch.randn(kinds, REVIEW, generator=drawn_once(seed, 9500))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        return torch.multinomial(lists[kind], length, replacement=True, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def holes(seed: int, kinds: int = 8, size: int = 12, batch: int = 24) -> Task:
    """Pictures in 16 patches, and which half of them is to be guessed; the loss counts those only."""
    rough = torch.randn(kinds, 1, 4, 4, generator=drawn_once(seed, 9600))
    pictures = F.interpolate(rough, size=size, mode="bilinear")
    patches = F.unfold(pictures, 3, stride=3).transpose(1, 2)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        x = patches[kind] + 0.2 * torch.randn(batch, 16, 9, generator=random)
        hidden = torch.rand(batch, 16, generator=random).argsort(dim=1) < 8
        return (x, hidden), torch.cat([patches[kind], hidden[..., None].float()], dim=2)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        counted = target[..., 9:]
        return (counted * (y - target[..., :9]).square()).sum() / (9 * counted.sum())

    return Task(seed, draw, loss)


# --- set-ups


def delivered(seed: int, rnn: nn.Module, features: int, length: int = 20, **more) -> Setup:
    """Where does a parcel go?"""
    model = Last(nn.Embedding(PARCEL, 20), rnn, features, 6)
    return told(model, parcels(seed, length), length - 1, **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more})


def gauged(seed: int, rnn: nn.Module, features: int, length: int = 20, **more) -> Setup:
    """What were the levels?"""
    model = Last(nn.Linear(3, 20), rnn, features, 2)
    return told(model, levels(seed, length), length - 1, **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more})
