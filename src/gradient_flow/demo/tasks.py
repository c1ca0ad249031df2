"""What the demo's networks learn: made-up data that is drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from gradient_flow.demo.networks import LENGTH, VOCABULARY

FEATURES: Final = 32
CLASSES: Final = 10
BATCH: Final = 128


class Task:
    """Batches and their loss. The targets of the last batch are kept for the loss to read."""

    def __init__(self, seed: int, draw: Callable[[torch.Generator, int], tuple[Tensor, Tensor]]) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._draw = draw
        self.step = 0
        self.batch = self.target = torch.empty(0)

    def next_batch(self) -> Tensor:
        """Draw a batch."""
        self.step += 1
        self.batch, self.target = self._draw(self._generator, self.step)
        return self.batch

    def loss(self, logits: Tensor) -> Tensor:
        """Cross-entropy over classes, for every place where there are several."""
        return F.cross_entropy(logits.flatten(0, -2), self.target.flatten())


def clusters(seed: int, change: Callable[[Tensor, int], Tensor] | None = None, separation: float = 1.0) -> Task:
    """Gaussian clusters to classify. `change` modifies the batch of a step."""
    centres = separation * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator, step: int) -> tuple[Tensor, Tensor]:
        target = torch.randint(CLASSES, (BATCH,), generator=random)
        batch = centres[target] + torch.randn(BATCH, FEATURES, generator=random)
        return (batch if change is None else change(batch, step)), target

    return Task(seed + 1, draw)


def chain(seed: int, batch: int = 16) -> Task:
    """The next token of a chain that jumps now and then."""
    follows = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator, _step: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(VOCABULARY, (batch, LENGTH + 1), generator=random)
        jumps = torch.rand(batch, LENGTH, generator=random) < 0.2
        for place in range(LENGTH):
            tokens[:, place + 1] = torch.where(jumps[:, place], tokens[:, place + 1], follows[tokens[:, place]])
        return tokens[:, :-1], tokens[:, 1:]

    return Task(seed + 1, draw)
