"""Small synthetic tasks. Each remembers the targets of the batch it gave last, for the loss to read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Any, Any], Tensor]


class Task:
    """An `input_fn` and a `loss_fn` that share the current targets."""

    def __init__(self, seed: int, draw: Callable[[torch.Generator], tuple[Any, Any]], loss: Loss) -> None:
        # A generator of its own: batches are the same whatever else draws random numbers meanwhile.
        self._random = torch.Generator().manual_seed(seed + 1000)
        self._draw = draw
        self._loss = loss
        self.target: Any = None

    def input_fn(self) -> Any:
        """Draw the next batch."""
        batch, self.target = self._draw(self._random)
        return batch

    def loss_fn(self, output: Any) -> Tensor:
        """Compare the output with the targets of the last batch."""
        return self._loss(output, self.target)

    def with_loss(self, loss: Loss) -> Task:
        """Return the same task under another loss."""
        self._loss = loss
        return self

    def scaled(self, factor: float) -> Task:
        """Return the same task with the loss multiplied, as loss scaling does."""
        loss = self._loss
        return self.with_loss(lambda output, target: loss(output, target) * factor)

    def fixed(self) -> Task:
        """Return the same task with one batch over and over, as one does to see whether a model can overfit."""
        batch = self.input_fn()
        target = self.target
        self._draw = lambda _random: (batch, target)
        return self

    def mapped(self, change: Callable[[Any], Any]) -> Task:
        """Return the same task with every input batch changed."""
        draw = self._draw

        def changed(random: torch.Generator) -> tuple[Any, Any]:
            batch, target = draw(random)
            return change(batch), target

        self._draw = changed
        return self


def _fixed(seed: int) -> torch.Generator:
    """What the task itself is drawn from: centres, teachers, templates."""
    return torch.Generator().manual_seed(seed + 500)


def blobs(seed: int, dim: int = 64, classes: int = 10, batch: int = 256, separation: float = 0.5) -> Task:
    """Gaussian clusters to be told apart; features have unit variance."""
    centres = torch.randn(classes, dim, generator=_fixed(seed)) * separation

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, dim, generator=random)
        return (centres[target] + noise) / math.sqrt(1 + separation**2), target

    return Task(seed, draw, F.cross_entropy)


def regression(seed: int, dim: int = 16, out: int = 1, batch: int = 128, noise: float = 0.1) -> Task:
    """Targets of a small random teacher, of unit scale."""
    teacher = torch.randn(dim, out, generator=_fixed(seed)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sin(1.5 * x @ teacher) + noise * torch.randn(batch, out, generator=random)

    return Task(seed, draw, F.mse_loss)


def manifold(seed: int, dim: int = 32, factors: int = 4, batch: int = 128) -> Task:
    """Points of a low-dimensional linear subspace, to be reconstructed."""
    basis = torch.linalg.qr(torch.randn(dim, factors, generator=_fixed(seed)))[0].T * math.sqrt(dim / factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, factors, generator=random) @ basis
        return x, x

    return Task(seed, draw, F.mse_loss)


def images(
    seed: int, channels: int = 3, size: int = 12, classes: int = 8, batch: int = 32, strength: float = 1.0
) -> Task:
    """Smooth class templates under noise."""
    coarse = torch.randn(classes, channels, 4, 4, generator=_fixed(seed))
    templates = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False) * strength

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, channels, size, size, generator=random)
        return (templates[target] + noise) / math.sqrt(1 + strength**2), target

    return Task(seed, draw, F.cross_entropy)


def markov(seed: int, vocabulary: int = 20, length: int = 16, batch: int = 16) -> Task:
    """Next-token prediction on a noisy permutation chain. The loss takes logits (batch, length, vocabulary)."""
    follows = torch.randperm(vocabulary, generator=_fixed(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length + 1), generator=random)
        jump = torch.rand(batch, length, generator=random) < 0.2
        for t in range(length):
            tokens[:, t + 1] = torch.where(jump[:, t], tokens[:, t + 1], follows[tokens[:, t]])
        return tokens[:, :-1], tokens[:, 1:]

    return Task(seed, draw, token_loss)


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def patches(seed: int, length: int = 10, dim: int = 24, classes: int = 6, batch: int = 24) -> Task:
    """Sets of vectors of which each leans towards the centre of the class."""
    centres = torch.randn(classes, length, dim, generator=_fixed(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        noise = torch.randn(batch, length, dim, generator=random)
        return (centres[target] * 0.7 + noise) / 1.22, target

    return Task(seed, draw, F.cross_entropy)


def recall(seed: int, length: int, classes: int = 4, dim: int = 8, batch: int = 64, where: int = 0) -> Task:
    """Say at the end which class was shown at step `where`; the rest is noise. Needs a lag of length - where."""
    codes = torch.randn(classes, dim, generator=_fixed(seed)) * 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = torch.randn(batch, length, dim, generator=random) * 0.3
        x[:, where] = codes[target]
        return x, target

    return Task(seed, draw, F.cross_entropy)


def echo(seed: int, length: int, classes: int = 6, dim: int = 8, batch: int = 32, lag: int = 1) -> Task:
    """Say at every step which class was shown `lag` steps before."""
    codes = torch.randn(classes, dim, generator=_fixed(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        shown = torch.randint(classes, (batch, length), generator=random)
        return codes[shown], shown.roll(lag, dims=1)

    return Task(seed, draw, lambda logits, target: token_loss(logits[:, lag:], target[:, lag:]))
