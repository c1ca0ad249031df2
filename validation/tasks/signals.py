"""Tasks on pictures and signals."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.task import Task, drawn_once


def images(
    seed: int, channels: int = 3, size: int = 12, classes: int = 8, batch: int = 32, strength: float = 1.0
) -> Task:
    """Smooth class templates under noise."""
    coarse = torch.randn(classes, channels, 4, 4, generator=drawn_once(seed))
    templates = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False) * strength

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, channels, size, size, generator=random)
        return (templates[target] + noise) / math.sqrt(1 + strength**2), target

    return Task(seed, draw, F.cross_entropy)


def grey(seed: int) -> Task:
    """Six classes of small pictures in one channel."""
    return images(seed, 1, 8, 6, 20, 1.5)


def pictures(seed: int, factors: int = 6, size: int = 8, channels: int = 1, batch: int = 32) -> Task:
    """Sums of smooth templates with random weights, to be reconstructed."""
    coarse = torch.randn(factors, channels, 4, 4, generator=drawn_once(seed, 700))
    templates = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.einsum("bf,fchw->bchw", torch.randn(batch, factors, generator=random), templates)
        x = x / math.sqrt(factors) * 1.5
        return x, x

    return Task(seed, draw, F.mse_loss)


def waves(seed: int, channels: int = 4, length: int = 32, classes: int = 6, batch: int = 24) -> Task:
    """Signals of several channels whose frequencies depend on the class, with random phase, under noise."""
    frequency = 1 + 7 * torch.rand(classes, channels, 1, generator=drawn_once(seed, 700))
    time = torch.linspace(0, 2 * math.pi, length)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        phase = torch.rand(batch, channels, 1, generator=random)
        noise = torch.randn(batch, channels, length, generator=random)
        return (1.3 * torch.sin(frequency[target] * time + phase) + 0.4 * noise), target

    return Task(seed, draw, F.cross_entropy)


def series(seed: int, dim: int = 3, length: int = 24, batch: int = 24) -> Task:
    """Sums of two oscillations per channel; every step predicts the next."""
    rate = 0.2 + 0.8 * torch.rand(2, dim, 1, generator=drawn_once(seed, 700))
    time = torch.arange(length + 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 2 * math.pi * torch.rand(batch, 2, dim, 1, generator=random)
        x = torch.sin(rate * time + phase).sum(dim=1).transpose(1, 2)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)
