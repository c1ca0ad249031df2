"""Tasks of the half `sealed` alone: none of them occurs in another half."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.rewards import offers, steering
from validation.tasks.sequences import leanings, token_loss, told_at_first
from validation.tasks.task import Task, drawn_once
from validation.tasks.vectors import mostly_of_one

# --- rows


def soils(seed: int, dim: int = 12, out: int = 1, batch: int = 64) -> Task:
    """Harvests from what a soil holds: folds, a bend and a slope."""
    fixed = drawn_once(seed, 3100)
    a, b, c = torch.randn(3, dim, out, generator=fixed) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, (x @ a).abs() - 0.8 + torch.tanh(2 * x @ b) + 0.5 * x @ c

    return Task(seed, draw, F.mse_loss)


def stars(seed: int, dim: int = 16, classes: int = 6, batch: int = 64, noise: float = 0.5) -> Task:
    """Kinds of stars: each lies along an arc of its own, between two places."""
    ends = 1.3 * torch.randn(2, classes, dim, generator=drawn_once(seed, 3101))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        angle = math.pi / 2 * torch.rand(batch, 1, generator=random)
        x = angle.cos() * ends[0, t] + angle.sin() * ends[1, t]
        return x + noise * torch.randn(batch, dim, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def rosters(seed: int, dim: int = 32, factors: int = 6, batch: int = 64) -> Task:
    """Rows that mix a few hidden needs, squashed a little, to be given back."""
    mix = 1.6 * torch.randn(factors, dim, generator=drawn_once(seed, 3102)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.5 * torch.tanh(torch.randn(batch, factors, generator=random) @ mix)
        x = x + 0.05 * torch.randn(batch, dim, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


def loans(seed: int, kinds: int = 24, dim: int = 6, batch: int = 96) -> Task:
    """Whether a loan is paid back: two kinds and some numbers."""
    fixed = drawn_once(seed, 3103)
    first, second = 1.5 * torch.randn(2, kinds, 4, generator=fixed)
    way = torch.randn(dim, generator=fixed) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(kinds, (batch, 2), generator=random)
        x = torch.randn(batch, dim, generator=random)
        good = (first[kind[:, 0]] * second[kind[:, 1]]).sum(dim=1) / 2 + x @ way
        return (kind, x), (good > 0).float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.view_as(t), t))


def races(seed: int, dim: int = 12, batch: int = 64) -> Task:
    """Two runners; 1 if the first one is faster. The net gives a score of each."""
    way = torch.randn(2, dim, generator=drawn_once(seed, 3104)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a, b = torch.randn(2, batch, dim, generator=random)
        speed = [x @ way[0] + (x @ way[1]).abs() for x in (a, b)]
        return (a, b), (speed[0] > speed[1]).float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.view_as(t), t))


def gusts(seed: int, dim: int = 8, batch: int = 96) -> Task:
    """Wind whose spread depends on the weather: for quantiles, densities and deviations."""
    way = torch.randn(2, dim, generator=drawn_once(seed, 3105)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        spread = 0.2 + 0.4 * (x @ way[1]).abs()
        return x, 2 * torch.tanh(1.5 * x @ way[0]) + spread * torch.randn(batch, generator=random)

    return Task(seed, draw, F.mse_loss)


def portraits(seed: int, dim: int = 24, factors: int = 6, batch: int = 48) -> Task:
    """Two photographs of each of many people, to be matched within the batch."""
    mix = torch.randn(2, factors, dim, generator=drawn_once(seed, 3106)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        who = 1.5 * torch.randn(batch, factors, generator=random)
        noise = 0.2 * torch.randn(2, batch, dim, generator=random)
        return (who @ mix[0] + noise[0], who @ mix[1] + noise[1]), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def meshes(seed: int, nodes: int = 10, dim: int = 6, classes: int = 4, batch: int = 32) -> Task:
    """Graphs as dense matrices of neighbours; the class is that of the kinds that most nodes have."""
    kinds = 1.3 * torch.randn(classes, dim, generator=drawn_once(seed, 3107))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        of = torch.where(
            torch.rand(batch, nodes, generator=random) < 0.6,
            t[:, None],
            torch.randint(classes, (batch, nodes), generator=random),
        )
        near = (torch.rand(batch, nodes, nodes, generator=random) < 0.3).float()
        near = ((near + near.transpose(1, 2)) > 0).float()
        x = kinds[of] + 0.6 * torch.randn(batch, nodes, dim, generator=random)
        return (x, near / near.sum(dim=2, keepdim=True).clamp_min(1)), t

    return Task(seed, draw, F.cross_entropy)


# --- pictures and signals


def stamps(seed: int, classes: int = 6, size: int = 12, channels: int = 1, batch: int = 32) -> Task:
    """A stamp of five by five, somewhere in a noisy picture."""
    shapes = 1.6 * torch.randn(classes, channels, 5, 5, generator=drawn_once(seed, 3108))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.4 * torch.randn(batch, channels, size, size, generator=random)
        at = torch.randint(size - 4, (batch, 2), generator=random)
        for i, (row, column) in enumerate(at.tolist()):
            x[i, :, row : row + 5, column : column + 5] += shapes[t[i]]
        return x, t

    return Task(seed, draw, F.cross_entropy)


def fields(seed: int, size: int = 12, classes: int = 3, batch: int = 12) -> Task:
    """Aerial pictures of two channels: each pixel belongs to a crop, in large patches."""
    colour = 1.2 * torch.randn(classes, 2, generator=drawn_once(seed, 3109))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rough = torch.randn(batch, classes, 4, 4, generator=random)
        t = F.interpolate(rough, size, mode="bilinear").argmax(dim=1)
        x = colour[t].permute(0, 3, 1, 2)
        return x + 0.7 * torch.randn(x.shape, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def mists(seed: int, factors: int = 8, size: int = 8, batch: int = 48) -> Task:
    """Smooth pictures under a mist of any strength; the mist itself is asked for, as in diffusion."""
    base = F.interpolate(torch.randn(factors, 1, 3, 3, generator=drawn_once(seed, 3110)), size, mode="bilinear")

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        clean = torch.einsum("bf,fchw->bchw", torch.randn(batch, factors, generator=random), base) / 2
        level = 0.1 + 0.9 * torch.rand(batch, 1, generator=random)
        mist = torch.randn(clean.shape, generator=random)
        a = level[:, :, None, None]
        return ((1 - a * a).sqrt() * clean + a * mist, level), mist

    return Task(seed, draw, F.mse_loss)


def pulses(seed: int, classes: int = 5, length: int = 48, channels: int = 2, batch: int = 32) -> Task:
    """A heartbeat of the class's shape, repeated at any pace."""
    shape = 1.5 * torch.randn(classes, channels, 9, generator=drawn_once(seed, 3111))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.4 * torch.randn(batch, channels, length, generator=random)
        for i in range(batch):
            gap, at = torch.randint(12, 18, (2,), generator=random).tolist()
            for start in range(at - 12, length - 9, gap):
                x[i, :, start : start + 9] += shape[t[i]]
        return x, t

    return Task(seed, draw, F.cross_entropy)


def mixtures(seed: int, factors: int = 6, size: int = 8, batch: int = 32) -> Task:
    """Pictures of two channels made of a few parts, to be given back."""
    base = F.interpolate(torch.randn(factors, 2, 4, 4, generator=drawn_once(seed, 3112)), size, mode="bilinear")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.einsum("bf,fchw->bchw", torch.randn(batch, factors, generator=random), base)
        return x, x

    return Task(seed, draw, F.mse_loss)


# --- tokens and sets


def leftovers(seed: int, vocabulary: int = 8, length: int = 8, batch: int = 32) -> Task:
    """At every place the token two places to the left, round the corner."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=random)
        return tokens, tokens.roll(2, 1)

    return Task(seed, draw, token_loss)


def dialects(seed: int, vocabulary: int = 32, length: int = 10, classes: int = 5, batch: int = 32) -> Task:
    """Where somebody is from, by the words."""
    return leanings(seed, 3113, 1.4, vocabulary, length, classes, batch)


def scrolls(seed: int, vocabulary: int = 14, length: int = 12, batch: int = 24) -> Task:
    """Each token follows from the one before by a list with two ways; every place guesses the next."""
    ways = torch.randint(vocabulary, (vocabulary, 2), generator=drawn_once(seed, 3114))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        row = [torch.randint(vocabulary, (batch,), generator=random)]
        for _ in range(length):
            which = (torch.rand(batch, generator=random) < 0.2).long()
            row.append(ways[row[-1], which])
        tokens = torch.stack(row, dim=1)
        return tokens[:, :-1], tokens[:, 1:]

    return Task(seed, draw, token_loss)


def shoals(seed: int, count: int = 10, classes: int = 4, batch: int = 32) -> Task:
    """Sets of points of three dimensions on a surface of the class's own."""
    stretch = torch.randn(classes, 3, 3, generator=drawn_once(seed, 3115))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = torch.randn(batch, count, 3, generator=random)
        x = x / x.norm(dim=2, keepdim=True)
        return x @ stretch[t] + 0.1 * torch.randn(batch, count, 3, generator=random), t

    return Task(seed, draw, F.cross_entropy)


def letters(seed: int, length: int = 9, dim: int = 10, classes: int = 5, batch: int = 32) -> Task:
    """A row of vectors; most of them lean to the class, some to another one."""
    return mostly_of_one(seed, 3116, 1.2, 0.45, length, dim, classes, batch)


# --- sequences


def passwords(seed: int, length: int = 20, classes: int = 5, dim: int = 6, batch: int = 32) -> Task:
    """A word at the first step, small talk afterwards; at the end the word is asked for."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.15 * torch.randn(batch, length, dim, generator=random)
        x[:, 0] = 2.2 * F.one_hot(t, dim).float()
        return x, t

    return Task(seed, draw, F.cross_entropy)


def doses(seed: int, length: int = 20, batch: int = 32) -> Task:
    """Two doses at the first step, nothing but noise afterwards; at the end their amounts are asked for."""
    return told_at_first(seed, 2, length, batch)


def swells(seed: int, length: int = 16, dim: int = 2, batch: int = 24) -> Task:
    """Waves that fade, each at its own pace; every step guesses the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        pace = 0.5 + 0.5 * torch.rand(batch, 1, dim, generator=random)
        fade = 0.02 * torch.rand(batch, 1, dim, generator=random)
        time = torch.arange(length + 1)[None, :, None]
        x = 1.5 * torch.exp(-fade * time) * torch.cos(pace * time + 6.3 * torch.rand(batch, 1, dim, generator=random))
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def gaits(seed: int, length: int = 12, dim: int = 4, classes: int = 5, batch: int = 32) -> Task:
    """Steps of a walker: the class is in how the steps follow one another and in their mean."""
    fixed = drawn_once(seed, 3117)
    turn = torch.linalg.qr(torch.randn(classes, dim, dim, generator=fixed))[0]
    lean = 0.5 * torch.randn(classes, dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        state, steps = torch.randn(batch, dim, generator=random), []
        for _ in range(length):
            state = 0.9 * torch.einsum("bi,bij->bj", state, turn[t]) + 0.2 * torch.randn(batch, dim, generator=random)
            steps.append(state + lean[t])
        return torch.stack(steps, dim=1), t

    return Task(seed, draw, F.cross_entropy)


# --- agents


def kiosks(seed: int, dim: int = 9, actions: int = 5, batch: int = 96) -> Task:
    """What each of five goods would earn from a customer, from 0 to 1."""
    return offers(seed, 3118, 3.0, dim, actions, batch)


def cranes(seed: int, dim: int = 7, count: int = 3, batch: int = 96) -> Task:
    """The best pull of each rope, within -1 and 1; the loss takes mean and deviation."""
    return steering(seed, 3119, dim, count, batch)


def alleys(seed: int, dim: int = 8, actions: int = 4, batch: int = 96) -> Task:
    """Where one is, where one gets to, what was done and what it paid. The loss is the caller's."""
    fixed = drawn_once(seed, 3120)
    worth = torch.randn(dim, actions, generator=fixed) / math.sqrt(dim)
    turn = torch.linalg.qr(torch.randn(actions, dim, dim, generator=fixed))[0]

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        x = torch.randn(batch, dim, generator=random)
        action = torch.randint(actions, (batch,), generator=random)
        paid = torch.tanh(1.5 * x @ worth)[torch.arange(batch), action]
        after = 0.8 * torch.einsum("bi,bij->bj", x, turn[action]) + 0.3 * torch.randn(batch, dim, generator=random)
        return (x, after), (action, paid)

    return Task(seed, draw, F.mse_loss)
