"""Tasks of the programs that nobody has seen: what people train at work."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.rewards import unpaid
from validation.tasks.sequences import token_loss
from validation.tasks.task import Task, drawn_once

# --- rows, coordinates, documents


def clicks(seed: int, fields: int = 5, kinds: int = 20, batch: int = 96) -> Task:
    """Categories of a visit; whether it ends in a click depends on pairs of them."""
    fixed = drawn_once(seed, 1200)
    traits, lean = torch.randn(fields, kinds, 3, generator=fixed), torch.randn(fields, kinds, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(kinds, (batch, fields), generator=random)
        each = traits[torch.arange(fields), ids]  # (batch, fields, 3)
        pairs = each.sum(dim=1).square().sum(dim=1) - each.square().sum(dim=(1, 2))
        score = 0.3 * pairs + lean[torch.arange(fields), ids].sum(dim=1)
        return ids, (score > 0).float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.flatten(), t))


def homes(seed: int, dim: int = 9, batch: int = 64) -> Task:
    """The price of a home from its standardised columns."""
    way = torch.randn(dim, 1, generator=drawn_once(seed, 1201)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        price = torch.tanh(2 * x @ way) + 0.4 * x[:, :1] * x[:, 1:2]
        return x, price + 0.1 * torch.randn(batch, 1, generator=random)

    return Task(seed, draw, F.mse_loss)


def scenes(seed: int, batch: int = 128) -> Task:
    """The colour of a picture at two coordinates."""
    fixed = drawn_once(seed, 1202)
    ways, phases = 4 * torch.randn(2, 12, generator=fixed), 6 * torch.rand(12, generator=fixed)
    mix = torch.randn(12, 3, generator=fixed) / math.sqrt(6)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        place = 2 * torch.rand(batch, 2, generator=random) - 1
        return place, torch.sin(place @ ways + phases) @ mix

    return Task(seed, draw, F.mse_loss)


def documents(seed: int, words: int = 60, topics: int = 8, batch: int = 64) -> Task:
    """Shares of the words of texts that mix two of several topics. The loss takes logits over the words."""
    lists = (3 * torch.randn(topics, words, generator=drawn_once(seed, 1203))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        first, second = torch.randint(topics, (2, batch), generator=random)
        share = torch.rand(batch, 1, generator=random)
        spread = share * lists[first] + (1 - share) * lists[second]
        drawn = torch.multinomial(spread, 60, replacement=True, generator=random)
        counts = F.one_hot(drawn, words).sum(dim=1) / 60
        return counts * words, counts

    return Task(seed, draw, lambda z, t: -(t * z.log_softmax(dim=1)).sum(dim=1).mean())


def genres(seed: int, dim: int = 20, labels: int = 10, batch: int = 64) -> Task:
    """Several labels for each row, each by a rule of its own."""
    rules = torch.randn(dim, labels, generator=drawn_once(seed, 1204)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, (x @ rules > 0).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


# --- pictures and signals


def glyphs(seed: int, classes: int = 10, size: int = 12, batch: int = 32) -> Task:
    """Signs of six by six dots at a random place."""
    signs = (torch.rand(classes, 6, 6, generator=drawn_once(seed, 1205)) < 0.5).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = 0.15 * torch.randn(batch, 1, size, size, generator=random)
        corner = torch.randint(size - 5, (batch, 2), generator=random).tolist()
        for i, (row, column) in enumerate(corner):
            x[i, 0, row : row + 6, column : column + 6] += signs[target[i]]
        return x, target

    return Task(seed, draw, F.cross_entropy)


def paints(seed: int, classes: int = 8, size: int = 8, batch: int = 32) -> Task:
    """Rough pictures that differ by their hue alone."""
    hues = F.normalize(torch.randn(classes, 3, generator=drawn_once(seed, 1206)), dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        light = 2 * torch.rand(batch, 1, size, size, generator=random)
        return light * hues[target][..., None, None] + 0.1 * torch.randn(batch, 3, size, size, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def pulses(seed: int, classes: int = 5, length: int = 48, batch: int = 24) -> Task:
    """Two leads of a heartbeat whose shape tells the class, at a random time, under noise."""
    shapes = torch.randn(classes, 2, 12, generator=drawn_once(seed, 1207))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = 0.3 * torch.randn(batch, 2, length, generator=random)
        start = torch.randint(length - 12, (batch,), generator=random).tolist()
        for i, at in enumerate(start):
            x[i, :, at : at + 12] += shapes[target[i]]
        return x, target

    return Task(seed, draw, F.cross_entropy)


def spots(seed: int, size: int = 12, batch: int = 32) -> Task:
    """Where the bright spot of a noisy picture is, from -1 to 1 both ways."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.6 * torch.rand(batch, 2, generator=random) - 0.8
        away = (line[:, None] - at[:, 0, None, None]).square() + (line - at[:, 1, None, None]).square()
        x = 2 * torch.exp(-away / 0.08)[:, None]
        return x + 0.2 * torch.randn(x.shape, generator=random), at

    return Task(seed, draw, F.mse_loss)


# --- tokens and sequences


def sorting(seed: int, vocabulary: int = 8, length: int = 7, batch: int = 24) -> Task:
    """The same tokens in order."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=random)
        return tokens, tokens.sort(dim=1).values

    return Task(seed, draw, token_loss)


def majority(seed: int, vocabulary: int = 6, length: int = 13, batch: int = 32) -> Task:
    """Which token a text holds most often."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        favoured = torch.randint(vocabulary, (batch, 1), generator=random)
        tokens = torch.randint(vocabulary, (batch, length), generator=random)
        tokens = torch.where(torch.rand(batch, length, generator=random) < 0.35, favoured, tokens)
        return tokens, F.one_hot(tokens, vocabulary).sum(dim=1).argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def blanks(seed: int, vocabulary: int = 14, length: int = 10, batch: int = 24) -> Task:
    """Rows that count up by one or two, from anywhere; the token `vocabulary` stands where one is to be guessed."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        start = torch.randint(vocabulary, (batch, 1), generator=random)
        pace = 1 + torch.randint(2, (batch, 1), generator=random)
        row = (start + pace * torch.arange(length)) % vocabulary
        hidden = torch.rand(batch, length, generator=random) < 0.2
        hidden[:, 3] = True
        return row.masked_fill(hidden, vocabulary), row.masked_fill(~hidden, -100)

    return Task(seed, draw, token_loss)


def order(seed: int, length: int = 24, batch: int = 32) -> Task:
    """Two signs of two kinds near the start, then chatter; at the end, which came in which order: four classes."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        signs = torch.randint(2, (batch, 2), generator=random)
        x = 0.5 * F.one_hot(2 + torch.randint(4, (batch, length), generator=random), 6).float()
        for i, at in enumerate((0, 2)):
            x[:, at] = 3 * F.one_hot(signs[:, i], 6).float()
        return x, 2 * signs[:, 0] + signs[:, 1]

    return Task(seed, draw, F.cross_entropy)


def keepsakes(seed: int, length: int = 24, batch: int = 32) -> Task:
    """Two numbers are shown at first, noise follows, and they are asked for at the end."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kept = 2 * torch.rand(batch, 2, generator=random) - 1
        x = 0.2 * torch.randn(batch, length, 3, generator=random)
        x[..., 2] = 0
        x[:, 0] = torch.cat([kept, torch.ones(batch, 1)], dim=1)
        return x, kept

    return Task(seed, draw, F.mse_loss)


def loads(seed: int, length: int = 24, batch: int = 24) -> Task:
    """What a town draws from the grid, every hour the next: a level, a daily swing and its echo."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        level, swing = torch.randn(2, batch, 1, generator=random)
        hour = torch.arange(length + 1) + torch.randint(8, (batch, 1), generator=random)
        x = 0.7 * level + (1 + 0.3 * swing) * torch.sin(2 * math.pi * hour / 8)
        x = (x + 0.1 * torch.randn(x.shape, generator=random))[..., None]
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


# --- agents


def errands(seed: int, batch: int = 96) -> Task:
    """The way to a goal in four directions or standing still; what each pays, from 0 to 1. The loss is the caller's."""
    ways = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, 8, generator=random)
        pay = 0.5 + 0.5 * F.normalize(state[:, :2], dim=1) @ ways.T
        return state, pay

    return Task(seed, draw, unpaid)
