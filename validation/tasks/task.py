"""What all tasks are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[Any, Any], Tensor]


class Task:
    """An `input_fn` and a `loss_fn` that share the current targets."""

    def __init__(self, seed: int, draw: Callable[[torch.Generator], tuple[Any, Any]], loss: Loss) -> None:
        # A generator of its own: batches are the same whatever else draws random numbers meanwhile.
        self._random = torch.Generator().manual_seed(seed + 1000)
        self._seed = seed
        self._draw = draw
        self._loss = loss
        self.target: Any = None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield batches with their targets for ever, as a loader does for an epoch."""
        while True:
            yield self._draw(self._random)

    def aside(self) -> tuple[Any, Any]:
        """Draw a batch from another stream: the loop never sees it, and it is the same each time."""
        return self._draw(torch.Generator().manual_seed(self._seed + 9000))

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

    def changed(self, change: Callable[[Any, Any], tuple[Any, Any]]) -> Task:
        """Return the same task with every batch and its targets changed together."""
        draw = self._draw
        self._draw = lambda random: change(*draw(random))
        return self


def drawn_once(seed: int, offset: int = 500) -> torch.Generator:
    """What the task itself is drawn from: centres, teachers, templates."""
    return torch.Generator().manual_seed(seed + offset)


def every(period: int, at: int) -> Callable[[], bool]:
    """Return a function that is true in one of `period` calls: the first time in call number `at`, from 0."""
    calls = count()
    return lambda: next(calls) % period == at
