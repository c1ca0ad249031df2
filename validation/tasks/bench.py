"""Tasks of the programs that are drilled on: laboratories, workshops, timetables."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.rewards import offers
from validation.tasks.sequences import token_loss
from validation.tasks.task import Task, drawn_once

# --- rows


def spectra(seed: int, parts: int = 6, dim: int = 40, batch: int = 64) -> Task:
    """A spectrum of several lines, each with a strength of its own, to be rebuilt."""
    lines = torch.randn(parts, dim, generator=drawn_once(seed, 1300)) / math.sqrt(parts)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        strength = torch.randn(batch, parts, generator=random)
        x = strength @ lines + 0.05 * torch.randn(batch, dim, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


def sensors(seed: int, dim: int = 14, out: int = 6, batch: int = 64) -> Task:
    """What several instruments show, from the settings of a machine."""
    ways = 1.2 * torch.randn(dim, out, generator=drawn_once(seed, 1301)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, 1.5 * torch.tanh(x @ ways) + 0.05 * torch.randn(batch, out, generator=random)

    return Task(seed, draw, F.mse_loss)


def grains(seed: int, dim: int = 18, classes: int = 7, batch: int = 64) -> Task:
    """The sort of a grain from its measures."""
    centres = 0.9 * torch.randn(classes, dim, generator=drawn_once(seed, 1302))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        return (centres[target] + torch.randn(batch, dim, generator=random)) / 1.35, target

    return Task(seed, draw, F.cross_entropy)


def pairings(seed: int, users: int = 30, items: int = 24, factors: int = 5, batch: int = 128) -> Task:
    """How much a user likes an item; inputs are two numbers of a row."""
    fixed = drawn_once(seed, 1303)
    taste, trait = torch.randn(users, factors, generator=fixed), torch.randn(items, factors, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        user = torch.randint(users, (batch,), generator=random)
        item = torch.randint(items, (batch,), generator=random)
        return torch.stack([user, item], dim=1), (taste[user] * trait[item]).sum(dim=1) / math.sqrt(factors)

    return Task(seed, draw, lambda y, t: F.mse_loss(y.flatten(), t))


# --- pictures and graphs


def weaves(seed: int, classes: int = 6, size: int = 10, channels: int = 3, batch: int = 32) -> Task:
    """Cloth: a small pattern of the class, repeated, that starts anywhere."""
    patterns = torch.randn(classes, channels, 4, 4, generator=drawn_once(seed, 1304)).repeat(1, 1, 4, 4)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        row, column = torch.randint(4, (2, batch), generator=random).tolist()
        cut = [patterns[k, :, r : r + size, c : c + size] for k, r, c in zip(target, row, column, strict=True)]
        x = torch.stack(cut)
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def plates(seed: int, channels: int = 3, size: int = 8, batch: int = 24) -> Task:
    """Smooth colour plates; the answer is the same plate with its colours mixed anew."""
    mix = torch.linalg.qr(torch.randn(channels, channels, generator=drawn_once(seed, 1305)))[0]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        coarse = torch.randn(batch, channels, 4, 4, generator=random)
        x = 1.5 * F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
        return x, torch.einsum("bchw,cd->bdhw", x, mix)

    return Task(seed, draw, F.mse_loss)


def molecules(seed: int, nodes: int = 10, dim: int = 8, batch: int = 16) -> Task:
    """Graphs with a value for each node that its neighbours decide; inputs are features and a matrix of bonds."""
    way = torch.randn(dim, 3, generator=drawn_once(seed, 1306)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.randn(batch, nodes, dim, generator=random)
        bonds = (torch.rand(batch, nodes, nodes, generator=random) < 0.25).float()
        bonds = ((bonds + bonds.transpose(1, 2)) > 0).float() + torch.eye(nodes)
        bonds = bonds.clamp_max(1)
        return (x, bonds), torch.tanh((bonds @ x @ way) / 1.5)

    return Task(seed, draw, F.mse_loss)


# --- sequences


def gestures(seed: int, classes: int = 6, length: int = 20, batch: int = 32) -> Task:
    """The path of a pen, (batch, length, 2); its shape tells the class."""
    fixed = drawn_once(seed, 1307)
    amount, shift = torch.randn(classes, 3, 2, generator=fixed), 6 * torch.rand(classes, 3, 2, generator=fixed)
    time = torch.linspace(0, 1, length)[:, None, None] * torch.tensor([3.0, 6.0, 9.0])[:, None]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        path = (amount[target][:, None] * torch.sin(time + shift[target][:, None])).sum(dim=2) / 1.3
        return path + 0.3 * torch.randn(path.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def flags(seed: int, length: int = 20, classes: int = 4, batch: int = 32) -> Task:
    """A flag at the first step, chatter on other channels, and a bell at the last step that asks for the flag."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = torch.zeros(batch, length, classes + 3)
        x[..., classes : classes + 2] = 0.6 * torch.randn(batch, length, 2, generator=random)
        x[:, 0, :classes] = 2 * F.one_hot(target, classes).float()
        x[:, -1, -1] = 1
        return x, target

    return Task(seed, draw, F.cross_entropy)


def tallies(seed: int, length: int = 20, batch: int = 32) -> Task:
    """Two sums of what came in the first three steps, asked for at the end."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 0.15 * torch.randn(batch, length, 3, generator=random)
        marks = torch.randint(2, (batch, 3, 2), generator=random) * 2.0 - 1
        x[:, :3, :2] = marks
        x[:, :3, 2] = 1
        return x, marks.sum(dim=1) / math.sqrt(3)

    return Task(seed, draw, F.mse_loss)


def tides(seed: int, length: int = 20, batch: int = 24) -> Task:
    """Three gauges of a harbour, every step the next; all of them follow the same tide."""
    lag = torch.tensor([0.0, 0.6, 1.3])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        start, height = 6.3 * torch.rand(batch, 1, 1, generator=random), torch.rand(batch, 1, 1, generator=random)
        time = torch.arange(length + 1.0)[:, None]
        x = (0.6 + height) * torch.sin(0.7 * time - lag + start)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


# --- tokens


def songs(seed: int, vocabulary: int = 12, length: int = 12, batch: int = 16) -> Task:
    """Notes of which each follows from the one before it, mostly; the answer is the next."""
    follows = torch.randperm(vocabulary, generator=drawn_once(seed, 1308))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        notes = torch.randint(vocabulary, (batch, length + 1), generator=random)
        free = torch.rand(batch, length, generator=random) < 0.1
        for t in range(length):
            notes[:, t + 1] = torch.where(free[:, t], notes[:, t + 1], follows[notes[:, t]])
        return notes[:, :-1], notes[:, 1:]

    return Task(seed, draw, token_loss)


def mirrors(seed: int, vocabulary: int = 9, length: int = 8, batch: int = 24) -> Task:
    """The same tokens from the last to the first."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=random)
        return tokens, tokens.flip(1)

    return Task(seed, draw, token_loss)


def orders(seed: int, kinds: int = 5, length: int = 9, dim: int = 12, batch: int = 24) -> Task:
    """A tray of vectors of which one carries a mark; the kind of that one is asked for."""
    codes = 1.5 * torch.randn(kinds, dim - 1, generator=drawn_once(seed, 1309))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch, length), generator=random)
        marked = torch.randint(length, (batch,), generator=random)
        mark = 3 * F.one_hot(marked, length).float()[..., None]
        x = torch.cat([codes[kind] + 0.3 * torch.randn(batch, length, dim - 1, generator=random), mark], dim=2)
        return x, kind.gather(1, marked[:, None]).squeeze(1)

    return Task(seed, draw, F.cross_entropy)


# --- agents


def routes(seed: int, dim: int = 10, actions: int = 6, batch: int = 96) -> Task:
    """What each route pays, from 0 to 1, by the state of the roads. The loss is one minus what is earned."""
    return offers(seed, 1310, 3.0, dim, actions, batch)
