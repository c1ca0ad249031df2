"""Tasks of the half `veiled` alone: none of them occurs in another half."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.rewards import off_course, unpaid
from validation.tasks.sequences import leanings, token_loss
from validation.tasks.task import Task, drawn_once
from validation.tasks.vectors import at_two_places, mostly_of_one

# --- rows


def bakes(seed: int, dim: int = 10, out: int = 1, batch: int = 64) -> Task:
    """How well bread rises: a wave, a product and a slope."""
    fixed = drawn_once(seed, 4100)
    a, b, c = torch.randn(3, dim, out, generator=fixed) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sin(1.5 * x @ a) + 0.5 * (x @ b) * (x @ c) + 0.7 * x @ c

    return Task(seed, draw, F.mse_loss)


def minerals(seed: int, dim: int = 14, classes: int = 7, batch: int = 64, noise: float = 0.6) -> Task:
    """Kinds of stone; each is found at two places of the chart."""
    return at_two_places(seed, 4101, 1.4, dim, classes, batch, noise)


def ledgers(seed: int, dim: int = 28, factors: int = 5, batch: int = 64) -> Task:
    """Accounts moved by a few hidden causes, some of them rectified, to be given back."""
    mix = 1.5 * torch.randn(2, factors, dim, generator=drawn_once(seed, 4102)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        z = torch.randn(batch, factors, generator=random)
        x = z @ mix[0] + 0.5 * z.abs() @ mix[1] + 0.05 * torch.randn(batch, dim, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


def recipes(seed: int, fields: int = 4, kinds: int = 15, classes: int = 5, batch: int = 96) -> Task:
    """Four ingredients by their numbers; what the dish is."""
    votes = 1.6 * torch.randn(fields, kinds, classes, generator=drawn_once(seed, 4103))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(kinds, (batch, fields), generator=random)
        scores = torch.stack([votes[i, x[:, i]] for i in range(fields)]).sum(dim=0)
        return x, scores.argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def atlases(seed: int, out: int = 3, batch: int = 128) -> Task:
    """Colours of a smooth map by its two coordinates."""
    fixed = drawn_once(seed, 4104)
    way, phase = 2.5 * torch.randn(2, 6, generator=fixed), 6.3 * torch.rand(6, generator=fixed)
    mix = torch.randn(6, out, generator=fixed) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(batch, 2, generator=random) - 1
        return x, torch.sin(x @ way + phase) @ mix

    return Task(seed, draw, F.mse_loss)


def fares(seed: int, dim: int = 7, batch: int = 96) -> Task:
    """What a ride costs: positive, with a spread of its own."""
    way = torch.randn(2, dim, generator=drawn_once(seed, 4105)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        level = 1.2 * x @ way[0] + 0.5 * (x @ way[1]).abs()
        return x, torch.exp(level + 0.2 * torch.randn(batch, generator=random))

    return Task(seed, draw, F.mse_loss)


def halves(seed: int, dim: int = 20, factors: int = 6, batch: int = 48) -> Task:
    """Torn tickets: the left and the right part of each, to be matched within the batch."""
    mix = torch.randn(2, factors, dim, generator=drawn_once(seed, 4106)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        z = 1.6 * torch.randn(batch, factors, generator=random)
        a, b = (torch.tanh(z @ m) + 0.1 * torch.randn(batch, dim, generator=random) for m in mix)
        return (a, b), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def grades(seed: int, dim: int = 9, levels: int = 5, batch: int = 96) -> Task:
    """Marks from 0 to 4 that follow a hidden amount."""
    way = torch.randn(2, dim, generator=drawn_once(seed, 4107)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        z = 1.5 * x @ way[0] + torch.sin(2 * x @ way[1]) + 0.2 * torch.randn(batch, generator=random)
        return x, torch.bucketize(z, torch.tensor([-1.4, -0.5, 0.5, 1.4]))[: len(z)].clamp_max(levels - 1)

    return Task(seed, draw, F.cross_entropy)


def villages(seed: int, nodes: int = 9, dim: int = 5, classes: int = 4, batch: int = 32) -> Task:
    """Houses and the paths between them; what most of its neighbours are like decides a house's class."""
    kinds = 1.4 * torch.randn(classes, dim, generator=drawn_once(seed, 4108))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        t = torch.randint(classes, (batch, nodes), generator=random)
        same = (t[:, :, None] == t[:, None, :]).float()
        near = (torch.rand(batch, nodes, nodes, generator=random) < 0.1 + 0.7 * same).float()
        near = ((near + near.transpose(1, 2) + torch.eye(nodes)) > 0).float()
        x = kinds[t] + 0.9 * torch.randn(batch, nodes, dim, generator=random)
        return (x, near / near.sum(dim=2, keepdim=True)), t

    return Task(seed, draw, token_loss)


# --- pictures and signals


def tiles(seed: int, classes: int = 6, size: int = 10, channels: int = 1, batch: int = 32) -> Task:
    """Stripes of the class's direction and pace, shifted anyhow."""
    fixed = drawn_once(seed, 4110)
    angle = math.pi * (torch.arange(classes) + 0.3 * torch.rand(classes, generator=fixed)) / classes
    pace = 0.9 + 0.8 * torch.rand(classes, generator=fixed)
    row, column = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        along = angle[t].cos()[:, None, None] * row + angle[t].sin()[:, None, None] * column
        phase = 6.3 * torch.rand(batch, channels, 1, 1, generator=random)
        x = 1.2 * torch.sin((pace[t][:, None, None] * along)[:, None] + phase)
        return x + 0.4 * torch.randn(batch, channels, size, size, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def coins(seed: int, size: int = 12, batch: int = 12) -> Task:
    """Bright discs on a dark table: which pixels belong to one."""
    row, column = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = size * torch.rand(2, batch, 3, 1, 1, generator=random)
        wide = 1.5 + 1.5 * torch.rand(batch, 3, 1, 1, generator=random)
        t = ((row - at[0]).square() + (column - at[1]).square() < wide.square()).any(dim=1, keepdim=True).float()
        return t + 0.6 * torch.randn(t.shape, generator=random), t

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def quilts(seed: int, factors: int = 6, size: int = 8, channels: int = 1, batch: int = 32) -> Task:
    """Pictures sewn from a few pieces, to be given back."""
    base = F.interpolate(torch.randn(factors, channels, 4, 4, generator=drawn_once(seed, 4111)), size, mode="bicubic")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.einsum("bf,fchw->bchw", torch.randn(batch, factors, generator=random), base) / 1.5
        return x, x

    return Task(seed, draw, F.mse_loss)


def calls(seed: int, classes: int = 5, length: int = 40, channels: int = 2, batch: int = 32) -> Task:
    """Bird calls: a tone that rises or falls at the class's pace, somewhere in the noise."""
    fixed = drawn_once(seed, 4112)
    start = 0.4 + 1.6 * torch.rand(classes, channels, generator=fixed)
    rise = 0.1 * torch.randn(classes, channels, generator=fixed)
    time = torch.arange(16).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.3 * torch.randn(batch, channels, length, generator=random)
        tone = 1.5 * torch.sin(start[t][..., None] * time + rise[t][..., None] * time.square() / 2)
        for i, at in enumerate(torch.randint(length - 16, (batch,), generator=random).tolist()):
            x[i, :, at : at + 16] += tone[i]
        return x, t

    return Task(seed, draw, F.cross_entropy)


# --- tokens and sets


def turns(seed: int, vocabulary: int = 8, length: int = 8, batch: int = 32, by: int = 1) -> Task:
    """At every place the token to the right, round the corner."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=random)
        return tokens, tokens.roll(-by, 1)

    return Task(seed, draw, token_loss)


def menus(seed: int, vocabulary: int = 30, length: int = 10, classes: int = 5, batch: int = 32) -> Task:
    """Which kitchen a menu is from, by its words."""
    return leanings(seed, 4113, 1.5, vocabulary, length, classes, batch)


def reels(seed: int, vocabulary: int = 12, length: int = 12, batch: int = 24) -> Task:
    """Tunes in which each note mostly follows from the one before; every place guesses the next."""
    after = torch.randperm(vocabulary, generator=drawn_once(seed, 4114))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        row = [torch.randint(vocabulary, (batch,), generator=random)]
        for _ in range(length):
            stray = torch.rand(batch, generator=random) < 0.15
            row.append(torch.where(stray, torch.randint(vocabulary, (batch,), generator=random), after[row[-1]]))
        tokens = torch.stack(row, dim=1)
        return tokens[:, :-1], tokens[:, 1:]

    return Task(seed, draw, token_loss)


def flocks(seed: int, length: int = 9, dim: int = 8, classes: int = 5, batch: int = 32) -> Task:
    """Birds of several kinds; the class is the kind of which there are most."""
    return mostly_of_one(seed, 4115, 1.4, 0.5, length, dim, classes, batch)


def lockers(seed: int, length: int = 6, dim: int = 12, classes: int = 5, batch: int = 48) -> Task:
    """A row of lockers, each with a number on it and a thing in it; one number is asked for, last in the row."""
    numbers = F.normalize(torch.randn(length, dim, generator=drawn_once(seed, 4116)), dim=1) * 2.5

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        which = torch.stack([torch.randperm(length, generator=random) for _ in range(batch)])
        things = torch.randint(classes, (batch, length), generator=random)
        asked = torch.randint(length, (batch,), generator=random)
        rows = torch.cat([numbers[which], 2 * F.one_hot(things, classes).float()], dim=2)
        mine = torch.arange(batch)
        ask = torch.cat([numbers[which[mine, asked]], torch.zeros(batch, classes)], dim=1)
        x = torch.cat([rows, ask[:, None]], dim=1)
        return x + 0.1 * torch.randn(x.shape, generator=random), things[mine, asked]

    return Task(seed, draw, F.cross_entropy)


# --- sequences


def whispers(seed: int, length: int = 18, classes: int = 4, dim: int = 5, batch: int = 32) -> Task:
    """A word is whispered at the first step, then there is only noise; at the end it is asked for."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.2 * torch.randn(batch, length, dim, generator=random)
        x[:, 0] += 2 * F.one_hot(t, dim).float()
        return x, t

    return Task(seed, draw, F.cross_entropy)


def weights(seed: int, length: int = 18, batch: int = 32) -> Task:
    """Two weights are put down at the first step; at the end their sum and difference are asked for."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        w = 2 * torch.rand(batch, 2, generator=random) - 1
        x = 0.1 * torch.randn(batch, length, 3, generator=random)
        x[:, 0] = torch.cat([w, torch.ones(batch, 1)], dim=1)
        return x, torch.stack([w.sum(dim=1), w[:, 0] - w[:, 1]], dim=1)

    return Task(seed, draw, F.mse_loss)


def drifts(seed: int, length: int = 16, dim: int = 3, batch: int = 24) -> Task:
    """Floats that circle and drift by a common law; every step guesses the next place."""
    fixed = drawn_once(seed, 4118)
    law = 0.97 * torch.linalg.qr(torch.randn(dim, dim, generator=fixed))[0]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state, places = 1.5 * torch.randn(batch, dim, generator=random), []
        for _ in range(length + 1):
            places.append(state)
            state = state @ law + 0.1 * torch.randn(batch, dim, generator=random)
        x = torch.stack(places, dim=1)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def dances(seed: int, length: int = 12, dim: int = 4, classes: int = 5, batch: int = 32) -> Task:
    """Dances: each class turns at its own pace about its own place."""
    fixed = drawn_once(seed, 4119)
    pace = 0.3 + 0.5 * torch.arange(classes)[:, None] + 0.2 * torch.rand(classes, dim, generator=fixed)
    place = 0.6 * torch.randn(classes, dim, generator=fixed)
    time = torch.arange(length)[:, None]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        phase = 6.3 * torch.rand(batch, 1, dim, generator=random)
        x = torch.cos(pace[t][:, None] * time + phase) + place[t][:, None]
        return x + 0.2 * torch.randn(x.shape, generator=random), t

    return Task(seed, draw, F.cross_entropy)


# --- agents


def stalls(seed: int, dim: int = 8, actions: int = 6, batch: int = 96) -> Task:
    """What each of six stalls would earn today, from 0 to 1."""
    tastes = torch.randn(actions, dim, generator=drawn_once(seed, 4120)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sigmoid(3 * torch.sin(1.3 * x @ tastes.T))

    return Task(seed, draw, unpaid)


def rudders(seed: int, dim: int = 6, count: int = 2, batch: int = 96) -> Task:
    """The best angle of each rudder, within -1 and 1; the loss takes mean and deviation."""
    way = torch.randn(dim, count, generator=drawn_once(seed, 4121)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, 0.9 * torch.sin(1.4 * x @ way)

    return Task(seed, draw, off_course)


def rafts(seed: int, dim: int = 7, actions: int = 4, batch: int = 96) -> Task:
    """Where a raft is, where it gets to, which oar was pulled and what it paid. The loss is the caller's."""
    fixed = drawn_once(seed, 4122)
    worth = torch.randn(dim, actions, generator=fixed) / math.sqrt(dim)
    push = 0.5 * torch.randn(actions, dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        x = torch.randn(batch, dim, generator=random)
        action = torch.randint(actions, (batch,), generator=random)
        paid = torch.sin(1.5 * x @ worth).gather(1, action[:, None])[:, 0]
        after = 0.8 * x + push[action] + 0.2 * torch.randn(batch, dim, generator=random)
        return (x, after), (action, paid)

    return Task(seed, draw, F.mse_loss)
