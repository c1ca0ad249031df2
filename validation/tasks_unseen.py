"""Further synthetic tasks, for the cases of `unseen_*.py`: signals, tables, pairs, pictures of few factors, series."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks import Task, token_loss


def _fixed(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 700)


def waves(seed: int, channels: int = 4, length: int = 32, classes: int = 6, batch: int = 24) -> Task:
    """Signals of several channels whose frequencies depend on the class, with random phase, under noise."""
    frequency = 1 + 7 * torch.rand(classes, channels, 1, generator=_fixed(seed))
    time = torch.linspace(0, 2 * math.pi, length)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        phase = torch.rand(batch, channels, 1, generator=random)
        noise = torch.randn(batch, channels, length, generator=random)
        return (1.3 * torch.sin(frequency[target] * time + phase) + 0.4 * noise), target

    return Task(seed, draw, F.cross_entropy)


def table(seed: int, sizes: tuple[int, ...] = (40, 12), numbers: int = 8, classes: int = 5, batch: int = 64) -> Task:
    """Rows of categories and numbers, of which both decide the class."""
    fixed = _fixed(seed)
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
    fixed = _fixed(seed)
    mixes = [torch.randn(factors, dim, generator=fixed) / math.sqrt(factors) for dim in dims]

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        shared = torch.randn(batch, factors, generator=random)
        seen = tuple(shared @ mix + 0.2 * torch.randn(batch, mix.shape[1], generator=random) for mix in mixes)
        return seen, torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def pictures(seed: int, factors: int = 6, size: int = 8, channels: int = 1, batch: int = 32) -> Task:
    """Sums of smooth templates with random weights, to be reconstructed."""
    coarse = torch.randn(factors, channels, 4, 4, generator=_fixed(seed))
    templates = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.einsum("bf,fchw->bchw", torch.randn(batch, factors, generator=random), templates)
        x = x / math.sqrt(factors) * 1.5
        return x, x

    return Task(seed, draw, F.mse_loss)


def series(seed: int, dim: int = 3, length: int = 24, batch: int = 24) -> Task:
    """Sums of two oscillations per channel; every step predicts the next."""
    rate = 0.2 + 0.8 * torch.rand(2, dim, 1, generator=_fixed(seed))
    time = torch.arange(length + 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 2 * math.pi * torch.rand(batch, 2, dim, 1, generator=random)
        x = torch.sin(rate * time + phase).sum(dim=1).transpose(1, 2)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def ciphers(seed: int, vocabulary: int = 14, length: int = 6, batch: int = 32) -> Task:
    """Translate tokens by a fixed code, under teacher forcing: inputs are the source and the shifted answer."""
    code = torch.randperm(vocabulary, generator=_fixed(seed))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(vocabulary, (batch, length), generator=random)
        answer = code[source]
        return (source, torch.cat([torch.full((batch, 1), vocabulary), answer[:, :-1]], dim=1)), answer

    return Task(seed, draw, token_loss)
