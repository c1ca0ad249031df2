"""Tasks of the files `drill_*_3.py`, drawn anew for every batch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.task import Loss, Task, drawn_once

Random = torch.Generator


def _task(seed: int, draw, loss: Loss) -> Task:
    return Task(seed, draw, loss)


def tokens_loss(z: Tensor, t: Tensor) -> Tensor:
    """Cross-entropy at every place; -100 is not asked."""
    return F.cross_entropy(z.flatten(0, -2), t.flatten(), ignore_index=-100)


def bent(seed: int, dim: int = 8, out: int = 2, batch: int = 48, noise: float = 0.1) -> Task:
    """A crooked surface."""
    once = drawn_once(seed, 61)
    a, b = torch.randn(dim, 12, generator=once) / dim**0.5, torch.randn(12, out, generator=once) / 3

    def draw(random: Random):
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sin(2 * x @ a) @ b + noise * torch.randn(batch, out, generator=random)

    return _task(seed, draw, F.mse_loss)


def kinds(seed: int, dim: int = 12, classes: int = 6, batch: int = 48, wrong: float = 0.0) -> Task:
    """Clouds around two centres per class; a share of the labels is drawn at random."""
    centres = 1.2 * torch.randn(2, classes, dim, generator=drawn_once(seed, 62))

    def draw(random: Random):
        t = torch.randint(classes, (batch,), generator=random)
        side = torch.randint(2, (batch,), generator=random)
        x = centres[side, t] + torch.randn(batch, dim, generator=random)
        lies = torch.rand(batch, generator=random) < wrong
        return x, torch.where(lies, torch.randint(classes, (batch,), generator=random), t)

    return _task(seed, draw, F.cross_entropy)


def visitors(seed: int, dim: int = 8, batch: int = 64) -> Task:
    """Counts whose rate is an exponential of the inputs."""
    w = torch.randn(dim, generator=drawn_once(seed, 63)) / dim**0.5

    def draw(random: Random):
        x = torch.randn(batch, dim, generator=random)
        return x, torch.poisson((1 + x @ w).exp(), generator=random)

    return _task(seed, draw, lambda z, t: F.poisson_nll_loss(z.squeeze(-1), t))


def forks(seed: int, batch: int = 64) -> Task:
    """An input with up to three answers: the inverse of a function."""

    def draw(random: Random):
        y = 2 * torch.rand(batch, 1, generator=random) - 1
        x = y + 0.4 * torch.sin(2 * math.pi * y) + 0.05 * torch.randn(batch, 1, generator=random)
        return x, y

    return _task(seed, draw, F.mse_loss)


def relief(seed: int, batch: int = 128) -> Task:
    """The height of a landscape at points of a square."""
    once = drawn_once(seed, 64)
    waves, phase = 6 * torch.randn(2, 10, generator=once), 6 * torch.rand(10, generator=once)

    def draw(random: Random):
        x = 2 * torch.rand(batch, 2, generator=random) - 1
        return x, torch.sin(x @ waves + phase).mean(dim=1, keepdim=True) * 2

    return _task(seed, draw, F.mse_loss)


def moons(seed: int, batch: int = 96) -> Task:
    """Points of two half circles, to be given a density."""

    def draw(random: Random):
        angle, side = math.pi * torch.rand(batch, generator=random), torch.rand(batch, generator=random).round()
        x = torch.stack([angle.cos() * (1 - 2 * side) + side, angle.sin() * (1 - 2 * side) + side / 2], dim=1)
        return x + 0.1 * torch.randn(batch, 2, generator=random), torch.zeros(batch)

    return _task(seed, draw, lambda z, _: z)


def couples(seed: int, batch: int = 32, dim: int = 20) -> Task:
    """Two views of the same thing."""
    views = torch.randn(2, 5, dim, generator=drawn_once(seed, 65))

    def draw(random: Random):
        hidden = torch.randn(batch, 5, generator=random)
        a, b = (torch.tanh(hidden @ v) + 0.2 * torch.randn(batch, dim, generator=random) for v in views)
        return (a, b), torch.arange(batch)

    return _task(seed, draw, lambda z, t: F.cross_entropy(z, t))


def triples(seed: int, batch: int = 40, dim: int = 16) -> Task:
    """A thing, another of its kind and one of another kind."""
    centres = torch.randn(8, dim, generator=drawn_once(seed, 66))

    def draw(random: Random):
        mine = torch.randint(8, (batch,), generator=random)
        other = (mine + torch.randint(1, 8, (batch,), generator=random)) % 8
        return torch.stack(
            [centres[i] + 0.7 * torch.randn(batch, dim, generator=random) for i in (mine, mine, other)], dim=1
        ), torch.zeros(batch)

    return _task(seed, draw, lambda z, _: F.triplet_margin_loss(*z.unbind(1)))


def tunes(seed: int, kinds_: int = 11, length: int = 12, batch: int = 24) -> Task:
    """Tokens of which the next follows from the last two, mostly."""
    table = torch.randint(kinds_, (kinds_, kinds_), generator=drawn_once(seed, 67))

    def draw(random: Random):
        seq = [torch.randint(kinds_, (batch,), generator=random) for _ in range(2)]
        while len(seq) <= length:
            new = torch.randint(kinds_, (batch,), generator=random)
            seq.append(torch.where(torch.rand(batch, generator=random) < 0.1, new, table[seq[-1] % 4, seq[-2]]))
        ids = torch.stack(seq, dim=1)
        return ids[:, :-1], ids[:, 1:]

    return _task(seed, draw, tokens_loss)


def gaps(seed: int, kinds_: int = 9, length: int = 12, batch: int = 32) -> Task:
    """Periodic sequences with holes; only the holes are asked. The last token stands for a hole."""

    def draw(random: Random):
        part = torch.randint(kinds_ - 1, (batch, 4), generator=random)
        ids = part.repeat(1, length // 4)
        holes = torch.rand(batch, length, generator=random) < 0.2
        return ids.masked_fill(holes, kinds_ - 1), ids.masked_fill(~holes, -100)

    return _task(seed, draw, tokens_loss)


def drawers(seed: int, pairs: int = 6, dim: int = 12, batch: int = 40) -> Task:
    """Drawers with a name and a colour; which colour has the drawer of this name? Looking at one is right."""
    names = F.normalize(torch.randn(10, dim, generator=drawn_once(seed, 68)), dim=1) * 3

    def draw(random: Random):
        which = torch.stack([torch.randperm(10, generator=random)[:pairs] for _ in range(batch)])
        colour = torch.randint(5, (batch, pairs), generator=random)
        asked = torch.randint(pairs, (batch,), generator=random)
        rows = torch.arange(batch)
        x = torch.cat([names[which], F.one_hot(colour, 5).float()], dim=2)
        return (x, names[which[rows, asked]]), colour[rows, asked]

    return _task(seed, draw, F.cross_entropy)


def queues(seed: int, length: int = 6, batch: int = 32) -> Task:
    """Numbers, to be pointed at from the smallest to the largest."""

    def draw(random: Random):
        x = torch.rand(batch, length, 1, generator=random)
        return x, x.squeeze(2).argsort(dim=1)

    return _task(seed, draw, tokens_loss)


def waves(seed: int, length: int = 24, dim: int = 2, batch: int = 24, noise: float = 0.05) -> Task:
    """Sums of sines; the next value at every step."""

    def draw(random: Random):
        speed = 0.2 + 0.5 * torch.rand(batch, 1, dim, generator=random)
        start = 6.3 * torch.rand(batch, 1, dim, generator=random)
        x = torch.sin(start + speed * torch.arange(length + 1)[None, :, None])
        x = x + noise * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return _task(seed, draw, F.mse_loss)


def marks(seed: int, length: int = 16, classes: int = 4, dim: int = 6, batch: int = 40) -> Task:
    """A mark at the first step, noise behind it: which mark was it?"""
    shown = 2 * torch.randn(classes, dim, generator=drawn_once(seed, 69))

    def draw(random: Random):
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.3 * torch.randn(batch, length, dim, generator=random)
        x[:, 0] += shown[t]
        return x, t

    return _task(seed, draw, F.cross_entropy)


def moods(seed: int, length: int = 14, kinds_: int = 20, batch: int = 32) -> Task:
    """Tokens with a weight each, some of which turn what follows: is the sum positive?"""
    worth = torch.randn(kinds_, generator=drawn_once(seed, 70))

    def draw(random: Random):
        ids = torch.randint(kinds_, (batch, length), generator=random)
        turn = torch.where(ids.roll(1, 1) == 0, -1.0, 1.0)
        return ids, (worth[ids] * turn).sum(dim=1).gt(0).long()

    return _task(seed, draw, F.cross_entropy)


def signs(seed: int, classes: int = 6, size: int = 12, channels: int = 1, batch: int = 24) -> Task:
    """A small sign somewhere in a noisy picture."""
    drawn = (torch.randn(classes, channels, 5, 5, generator=drawn_once(seed, 71)) > 0).float() * 2 - 1

    def draw(random: Random):
        t = torch.randint(classes, (batch,), generator=random)
        x = 0.5 * torch.randn(batch, channels, size, size, generator=random)
        for i, (r, c) in enumerate(torch.randint(size - 4, (batch, 2), generator=random).tolist()):
            x[i, :, r : r + 5, c : c + 5] += drawn[t[i]]
        return x, t

    return _task(seed, draw, F.cross_entropy)


def stains(seed: int, size: int = 16, batch: int = 16) -> Task:
    """Round stains in a noisy picture; which points do they cover?"""

    def draw(random: Random):
        grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).float()
        mid = size * torch.rand(batch, 3, 2, 1, 1, generator=random)
        wide = 1.5 + 2 * torch.rand(batch, 3, 1, 1, generator=random)
        mask = ((grid - mid).square().sum(dim=2).sqrt() < wide).any(dim=1).float()[:, None]
        return mask + 0.6 * torch.randn(batch, 1, size, size, generator=random), mask

    return _task(seed, draw, F.binary_cross_entropy_with_logits)


def stalls(seed: int, dim: int = 8, actions: int = 5, batch: int = 96) -> Task:
    """A state, and what each action would pay."""
    w = torch.randn(dim, actions, generator=drawn_once(seed, 72)) / dim**0.5

    def draw(random: Random):
        x = torch.randn(batch, dim, generator=random)
        return x, torch.tanh(2 * x @ w) + 0.2 * torch.randn(batch, actions, generator=random)

    return _task(seed, draw, F.mse_loss)
