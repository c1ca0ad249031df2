"""Tasks of the half `blind` alone: none of them occurs in another half."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.bench import mirrors
from validation.tasks.rewards import offers, steering
from validation.tasks.sequences import leanings, token_loss, told_at_first
from validation.tasks.task import Task, drawn_once

# --- rows


def plants(seed: int, dim: int = 14, out: int = 1, batch: int = 64) -> Task:
    """Yields of a chemical plant from its readings: products of pairs and a bend."""
    fixed = drawn_once(seed, 2100)
    a, b = torch.randn(2, dim, out, generator=fixed) / math.sqrt(dim)
    c = torch.randn(dim, out, generator=fixed) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, (x @ a) * (x @ b) + 1.5 * torch.sin(1.3 * x @ c)

    return Task(seed, draw, F.mse_loss)


def states(seed: int, dim: int = 18, classes: int = 7, batch: int = 64) -> Task:
    """Conditions of an engine; each class has two places of its own."""
    places = torch.randn(2, classes, dim, generator=drawn_once(seed, 2101))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        which = torch.randint(2, (batch,), generator=random)
        return places[which, t] + 0.6 * torch.randn(batch, dim, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def spectra(seed: int, bins: int = 40, factors: int = 5, batch: int = 64) -> Task:
    """Spectra that mix a few lines, each as strong as it likes, to be given back."""
    fixed = drawn_once(seed, 2102)
    centres = bins * torch.rand(factors, 1, generator=fixed)
    lines = torch.exp(-((torch.arange(bins) - centres) / 3).square())

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 2 * torch.randn(batch, factors, generator=random) @ lines
        x = x + 0.05 * torch.randn(batch, bins, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


def orders(seed: int, users: int = 30, goods: int = 40, factors: int = 4, batch: int = 128) -> Task:
    """How much a user likes an article, from the numbers of both."""
    fixed = drawn_once(seed, 2103)
    u, v = torch.randn(users, factors, generator=fixed), torch.randn(goods, factors, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        i = torch.randint(users, (batch,), generator=random)
        j = torch.randint(goods, (batch,), generator=random)
        return (i, j), (u[i] * v[j]).sum(dim=1) / 2

    return Task(seed, draw, F.mse_loss)


def clouds(seed: int, batch: int = 128) -> Task:
    """Points of four dimensions from a twisted density. The loss is the caller's."""
    turn = torch.linalg.qr(torch.randn(4, 4, generator=drawn_once(seed, 2104)))[0]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        z = torch.randn(batch, 4, generator=random) * torch.tensor([2.0, 0.4, 1.0, 0.3])
        z = torch.cat([z[:, :3], z[:, 3:] + 0.5 * z[:, :1].square() - 1], dim=1)
        x = z @ turn
        return x, x

    return Task(seed, draw, F.mse_loss)


def twins(seed: int, dim: int = 20, factors: int = 8, batch: int = 64) -> Task:
    """Two measurements each; whether both come from one person."""
    mix = torch.randn(factors, dim, generator=drawn_once(seed, 2105)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        same = torch.rand(batch, 1, generator=random) < 0.5
        a, b = torch.randn(2, batch, factors, generator=random)
        b = torch.where(same, a, b)
        noise = 0.15 * torch.randn(2, batch, dim, generator=random)
        return (a @ mix + noise[0], b @ mix + noise[1]), same.float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.view_as(t), t))


def nodes(seed: int, count: int = 48, dim: int = 10, classes: int = 4, graphs: int = 2) -> Task:
    """Nodes of random graphs; the class of a node is that of most of its neighbours' hidden kind."""
    kinds = 1.5 * torch.randn(classes, dim, generator=drawn_once(seed, 2106))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        size = count * graphs
        t = torch.randint(classes, (size,), generator=random)
        alike = (t[:, None] == t[None]).float()
        near = torch.rand(size, size, generator=random) < 0.03 + 0.25 * alike
        x = 0.35 * kinds[t] + torch.randn(size, dim, generator=random)
        return (x, near.nonzero().T), t

    return Task(seed, draw, F.cross_entropy)


# --- pictures and signals


def gratings(seed: int, classes: int = 6, size: int = 10, channels: int = 3, batch: int = 32) -> Task:
    """Stripes at an angle of the class's own, at any phase, in any colour."""
    angles = math.pi * torch.arange(classes) / classes + 0.3 * torch.rand((), generator=drawn_once(seed, 2107))
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        along = torch.cos(angles[t])[:, None, None] * line[:, None] + torch.sin(angles[t])[:, None, None] * line
        wave = torch.sin(1.6 * along + 6.3 * torch.rand(batch, 1, 1, generator=random))
        colour = 0.5 + torch.rand(batch, channels, 1, 1, generator=random)
        return colour * wave[:, None] + 0.3 * torch.randn(batch, channels, size, size, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def cells(seed: int, size: int = 12, batch: int = 16) -> Task:
    """Pictures with some bright cells, and where they are: 1 at their dots, 0 elsewhere."""
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = size * torch.rand(batch, 4, 2, generator=random)
        away = (line[:, None] - at[..., 0, None, None]).square() + (line - at[..., 1, None, None]).square()
        light = torch.exp(-away / 3).amax(dim=1)[:, None]
        return light + 0.3 * torch.randn(light.shape, generator=random), (light > 0.5).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def scans(seed: int, factors: int = 12, size: int = 10, batch: int = 32) -> Task:
    """Smooth scans of two channels under noise, to be cleaned."""
    fixed = drawn_once(seed, 2108)
    base = F.interpolate(torch.randn(factors, 2, 4, 4, generator=fixed), size, mode="bilinear")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        clean = torch.einsum("bf,fchw->bchw", torch.randn(batch, factors, generator=random), base) / 2
        return clean + 0.3 * torch.randn(clean.shape, generator=random), clean

    return Task(seed, draw, F.mse_loss)


def tones(seed: int, classes: int = 6, length: int = 60, batch: int = 32) -> Task:
    """A tone of the class's pitch and vowel, over three microphones."""
    fixed = drawn_once(seed, 2109)
    pitch, loud = 0.25 + 0.2 * torch.arange(classes), torch.rand(classes, 3, generator=fixed) + 0.3
    time = torch.arange(length).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        wave = torch.sin(pitch[t][:, None] * time + 6.3 * torch.rand(batch, 1, generator=random))
        return loud[t][:, :, None] * wave[:, None] + 0.3 * torch.randn(batch, 3, length, generator=random), t

    return Task(seed, draw, F.cross_entropy)


# --- tokens, sets, sequences


def reversals(seed: int, vocabulary: int = 9, length: int = 8, batch: int = 32) -> Task:
    """The tokens in reverse."""
    return mirrors(seed, vocabulary, length, batch)


def reviews(seed: int, vocabulary: int = 40, length: int = 12, classes: int = 5, batch: int = 32) -> Task:
    """Texts whose words lean towards those of their class."""
    return leanings(seed, 2110, 1.3, vocabulary, length, classes, batch)


def flags(seed: int, length: int = 9, dim: int = 12, classes: int = 5, batch: int = 32) -> Task:
    """One of several vectors carries a flag; the class is that of this one."""
    kinds = 1.5 * torch.randn(classes, dim - 1, generator=drawn_once(seed, 2111))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        of = torch.randint(classes, (batch, length), generator=random)
        at = torch.randint(length, (batch,), generator=random)
        x = kinds[of] + 0.3 * torch.randn(batch, length, dim - 1, generator=random)
        flag = 3 * F.one_hot(at, length).float()[..., None]
        return torch.cat([x, flag], dim=2), of[torch.arange(batch), at]

    return Task(seed, draw, F.cross_entropy)


def rhymes(seed: int, vocabulary: int = 12, length: int = 14, batch: int = 24) -> Task:
    """Rows that repeat with a period of three, with slips; every place guesses the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        motif = torch.randint(vocabulary, (batch, 3), generator=random)
        row = motif.repeat(1, length // 3 + 2)[:, : length + 1]
        slip = torch.rand(row.shape, generator=random) < 0.05
        row = torch.where(slip, torch.randint(vocabulary, row.shape, generator=random), row)
        return row[:, :-1], row[:, 1:]

    return Task(seed, draw, token_loss)


def clauses(seed: int, length: int = 12, dim: int = 16, classes: int = 6, batch: int = 24) -> Task:
    """Sentences as vectors: half of the places lean to the class, the others to anything."""
    kinds = torch.randn(classes, dim, generator=drawn_once(seed, 2112))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        told = (torch.rand(batch, length, 1, generator=random) < 0.5).float()
        other = kinds[torch.randint(classes, (batch, length), generator=random)]
        x = told * kinds[t][:, None] + 0.5 * (1 - told) * other
        return x + 0.4 * torch.randn(batch, length, dim, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def cues(seed: int, length: int = 22, classes: int = 5, dim: int = 7, batch: int = 32) -> Task:
    """A cue at the first step, chatter afterwards; at the end the cue is asked for."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.3 * torch.randn(batch, length, dim, generator=random)
        x[..., :classes] *= 0.3
        x[:, 0, :classes] = 2.5 * F.one_hot(t, classes).float()
        return x, t

    return Task(seed, draw, F.cross_entropy)


def voltages(seed: int, length: int = 22, batch: int = 32) -> Task:
    """Three voltages at the first step, silence with hum afterwards; at the end they are asked for."""
    return told_at_first(seed, 3, length, batch)


def tides(seed: int, length: int = 20, dim: int = 2, batch: int = 24) -> Task:
    """Second-order processes with a pace of their own; every step guesses the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        pace = 0.4 + 0.5 * torch.rand(batch, 1, dim, generator=random)
        start = 6.3 * torch.rand(batch, 1, dim, generator=random)
        level = 1 + 0.3 * torch.randn(batch, 1, dim, generator=random)
        x = level * torch.sin(pace * torch.arange(length + 1)[None, :, None] + start)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def moods(seed: int, length: int = 10, dim: int = 5, classes: int = 4, batch: int = 32) -> Task:
    """A walk whose mean drift tells the class: all steps count alike."""
    drift = 0.6 * torch.randn(classes, dim, generator=drawn_once(seed, 2113))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        return drift[t][:, None] + 0.7 * torch.randn(batch, length, dim, generator=random), t

    return Task(seed, draw, F.cross_entropy)


# --- agents


def stalls(seed: int, dim: int = 10, actions: int = 6, batch: int = 96) -> Task:
    """Which stall pays how much for a load, from 0 to 1: the one whose taste is nearest pays best."""
    return offers(seed, 2114, 2.5, dim, actions, batch)


def rudders(seed: int, dim: int = 8, count: int = 2, batch: int = 96) -> Task:
    """The best turn of each rudder, within -1 and 1; the loss takes mean and deviation."""
    return steering(seed, 2115, dim, count, batch)


def journeys(seed: int, dim: int = 7, actions: int = 3, reward: float = 1.0, batch: int = 96) -> Task:
    """Where one is, where one gets to, what was done and what it paid. The loss is the caller's."""
    fixed = drawn_once(seed, 2116)
    worth = torch.randn(dim, actions, generator=fixed) / math.sqrt(dim)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=fixed))[0]

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        x = torch.randn(batch, dim, generator=random)
        action = torch.randint(actions, (batch,), generator=random)
        paid = reward * torch.tanh(x @ worth)[torch.arange(batch), action]
        return (x, 0.8 * x @ turn + 0.3 * torch.randn(batch, dim, generator=random)), (action, paid)

    return Task(seed, draw, F.mse_loss)
