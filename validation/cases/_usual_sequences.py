"""What the sequence cases of the half `usual` share: tasks as people have them, and parts of networks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks import Task, token_loss
from validation.tasks.task import drawn_once

# --- tokens

ANTHEM = 17
"""Tokens of an anthem: five keys, ten notes, a mark of its beginning, a bar at its end."""


def anthems(seed: int, length: int = 20, batch: int = 32) -> Task:
    """A mark, the key, many notes, a bar: in which key is it? Needs a lag of length - 2."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        key = torch.randint(5, (batch, 1), generator=random)
        notes = 5 + torch.randint(10, (batch, length - 3), generator=random)
        mark, bar = torch.full((batch, 1), 15), torch.full((batch, 1), 16)
        return torch.cat([mark, key, notes, bar], dim=1), key[:, 0]

    return Task(seed, draw, F.cross_entropy)


def jingles(seed: int, notes: int = 12, length: int = 14, batch: int = 16, noise: float = 0.1) -> Task:
    """Next note: a step from the last note that depends on whether the one before was low, mostly."""
    step = torch.randint(1, notes, (2, notes), generator=drawn_once(seed, 6000))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        row = [torch.randint(notes, (batch,), generator=random) for _ in range(2)]
        for _ in range(length - 1):
            new = (row[-1] + step[(row[-2] < notes // 4).long(), row[-1]]) % notes
            free = torch.randint(notes, (batch,), generator=random)
            row.append(torch.where(torch.rand(batch, generator=random) < noise, free, new))
        text = torch.stack(row, dim=1)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


MOODS = 24


def moods(seed: int, longest: int = 12, batch: int = 32) -> Task:
    """Comments padded with 0; words have a value, and word 1 turns that of the next. Inputs: words, lengths."""
    value = torch.randn(MOODS, generator=drawn_once(seed, 6100))
    value[:2] = 0

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        words = torch.randint(1, MOODS, (batch, longest), generator=random)
        lengths = torch.randint(4, longest + 1, (batch,), generator=random)
        words = words.masked_fill(torch.arange(longest) >= lengths[:, None], 0)
        turned = F.pad(words[:, :-1] == 1, (1, 0))
        score = (value[words] * torch.where(turned, -1.0, 1.0)).sum(dim=1)
        return (words, lengths), (score > 0).long()

    return Task(seed, draw, F.cross_entropy)


def registers(seed: int, names: int = 6, values: int = 6, pairs: int = 4, batch: int = 32) -> Task:
    """name value name value … name: what is its value? Names come first in the numbers of tokens."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        name = torch.rand(batch, names, generator=random).argsort(dim=1)[:, :pairs]
        value = torch.randint(values, (batch, pairs), generator=random)
        rows = torch.stack([name, names + value], dim=2).flatten(1)
        asked = torch.randint(pairs, (batch, 1), generator=random)
        return torch.cat([rows, name.gather(1, asked)], dim=1), value.gather(1, asked)[:, 0]

    return Task(seed, draw, F.cross_entropy)


def residues(seed: int, kinds: int = 12, length: int = 12, batch: int = 24) -> Task:
    """Each residue of a chain is buried or not, by itself and its two neighbours."""
    weight = torch.randn(3, kinds, generator=drawn_once(seed, 6200))
    weight = (weight - weight.mean(dim=1, keepdim=True)) / weight.std(dim=1, keepdim=True)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        chain = torch.randint(kinds, (batch, length), generator=random)
        left, right = chain.roll(1, dims=1), chain.roll(-1, dims=1)
        score = 2.5 * weight[0, chain] + weight[1, left] + weight[2, right]
        return chain, (score > 0).long()

    return Task(seed, draw, token_loss)


# --- readings


def admissions(seed: int, length: int = 20, batch: int = 32) -> Task:
    """Two vitals at admission, many that say nothing, two at discharge: how much have they changed?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        first, last = torch.randn(2, batch, 2, generator=random)
        x = 0.2 * torch.randn(batch, length, 4, generator=random)
        x[:, 0, :2], x[:, 0, 2] = first, 1.0
        x[:, -1, :2], x[:, -1, 3] = 0.3 * last, 1.0
        return x, first - 0.3 * last

    return Task(seed, draw, F.mse_loss)


def walks(seed: int, length: int = 16, batch: int = 32) -> Task:
    """Steps of a walk in two directions: where does it end?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, length, 2, generator=random)
        return x, x.sum(dim=1) / math.sqrt(length)

    return Task(seed, draw, F.mse_loss)


def climate(seed: int, length: int = 18, batch: int = 24, middle: float = 0.0) -> Task:
    """Two temperatures around a middle, every step the next: a day's round and a slow drift."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase, height = 6.3 * torch.rand(2, batch, 1, 2, generator=random)
        t = torch.arange(length + 1.0)[None, :, None]
        x = (0.5 + height / 6.3) * torch.sin(2 * math.pi * t / 9 + phase) + 0.3 * torch.sin(t / 7 + height)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1] + middle, x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def phones(seed: int, kinds: int = 6, length: int = 14, bands: int = 8, batch: int = 24, noise: float = 0.6) -> Task:
    """Frames of speech; each sound lasts two frames: which is it at every frame?"""
    sound = torch.randn(kinds, bands, generator=drawn_once(seed, 6300))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(kinds, (batch, length // 2), generator=random).repeat_interleave(2, dim=1)
        return sound[target] + noise * torch.randn(batch, length, bands, generator=random), target

    return Task(seed, draw, token_loss)


# --- measurements and parts


def ahead(length: int) -> Tensor:
    """True where a token would look ahead."""
    return torch.ones(length, length).triu(1).bool()


def parted(x: Tensor, heads: int) -> Tensor:
    """Give (batch, heads, length, size)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """The way back."""
    return x.transpose(1, 2).flatten(2)
