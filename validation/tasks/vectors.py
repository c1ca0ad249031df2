"""Tasks on vectors, tables, pairs and sets."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.task import Task, drawn_once


def blobs(seed: int, dim: int = 64, classes: int = 10, batch: int = 256, separation: float = 0.5) -> Task:
    """Gaussian clusters to be told apart; features have unit variance."""
    centres = torch.randn(classes, dim, generator=drawn_once(seed)) * separation

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, dim, generator=random)
        return (centres[target] + noise) / math.sqrt(1 + separation**2), target

    return Task(seed, draw, F.cross_entropy)


def regression(seed: int, dim: int = 16, out: int = 1, batch: int = 128, noise: float = 0.1) -> Task:
    """Targets of a small random teacher, of unit scale."""
    teacher = torch.randn(dim, out, generator=drawn_once(seed)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sin(1.5 * x @ teacher) + noise * torch.randn(batch, out, generator=random)

    return Task(seed, draw, F.mse_loss)


def manifold(seed: int, dim: int = 32, factors: int = 4, batch: int = 128) -> Task:
    """Points of a low-dimensional linear subspace, to be reconstructed."""
    basis = torch.linalg.qr(torch.randn(dim, factors, generator=drawn_once(seed)))[0].T * math.sqrt(dim / factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, factors, generator=random) @ basis
        return x, x

    return Task(seed, draw, F.mse_loss)


def table(seed: int, sizes: tuple[int, ...] = (40, 12), numbers: int = 8, classes: int = 5, batch: int = 64) -> Task:
    """Rows of categories and numbers, of which both decide the class."""
    fixed = drawn_once(seed, 700)
    effects = [2 * torch.randn(size, classes, generator=fixed) for size in sizes]
    slopes = torch.randn(numbers, classes, generator=fixed) / math.sqrt(numbers)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        categories = torch.stack([torch.randint(size, (batch,), generator=random) for size in sizes], dim=1)
        values = torch.randn(batch, numbers, generator=random)
        score = values @ slopes + sum(effect[categories[:, i]] for i, effect in enumerate(effects))
        return (categories, values), score.argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def views(seed: int, dims: tuple[int, int] = (24, 18), factors: int = 6, batch: int = 48) -> Task:
    """Two noisy views of the same factors, to be matched within the batch. The loss takes a matrix of scores."""
    fixed = drawn_once(seed, 700)
    mixes = [torch.randn(factors, dim, generator=fixed) / math.sqrt(factors) for dim in dims]

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        shared = torch.randn(batch, factors, generator=random)
        seen = tuple(shared @ mix + 0.2 * torch.randn(batch, mix.shape[1], generator=random) for mix in mixes)
        return seen, torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def patches(seed: int, length: int = 10, dim: int = 24, classes: int = 6, batch: int = 24) -> Task:
    """Sets of vectors of which each leans towards the centre of the class."""
    centres = torch.randn(classes, length, dim, generator=drawn_once(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, length, dim, generator=random)
        return (centres[target] * 0.7 + noise) / 1.22, target

    return Task(seed, draw, F.cross_entropy)


def at_two_places(seed: int, offset: int, spread: float, dim: int, classes: int, batch: int, noise: float) -> Task:
    """Classes each of which lies at two places."""
    places = spread * torch.randn(2, classes, dim, generator=drawn_once(seed, offset))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        which = torch.randint(2, (batch,), generator=random)
        return places[which, target] + noise * torch.randn(batch, dim, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def mostly_of_one(
    seed: int, offset: int, spread: float, share: float, length: int, dim: int, classes: int, batch: int
) -> Task:
    """Sets of vectors; a share of them is of the class, the others are of any."""
    kinds = spread * torch.randn(classes, dim, generator=drawn_once(seed, offset))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        own = torch.rand(batch, length, generator=random) < share
        of = torch.where(own, target[:, None], torch.randint(classes, (batch, length), generator=random))
        return kinds[of] + 0.4 * torch.randn(batch, length, dim, generator=random), target

    return Task(seed, draw, F.cross_entropy)
