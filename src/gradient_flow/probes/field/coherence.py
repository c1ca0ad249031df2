"""Whether the gradients of successive steps go the same way."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


class FlowCoherence:
    """||mean g||² / mean ||g||² over steps: one copy of the gradient is kept, however many steps.

    1 when every step goes the same way; about 1 / steps for pure noise; near 0 for what goes in circles.
    """

    def __init__(self) -> None:
        self._sum: list[Tensor] = []
        self._squares = 0.0
        self.steps = 0

    def add(self, gradients: Iterable[Tensor | None]) -> None:
        """One step's gradients, always of the same parameters; a missing one counts as zero."""
        found = [None if g is None else g.detach().double() for g in gradients]
        square = _square(g for g in found if g is not None)
        if not math.isfinite(square):
            return  # non-finite is counted elsewhere, and would make every later step NaN
        if not self._sum:
            self._sum = [torch.zeros(0) if g is None else torch.zeros_like(g) for g in found]
        self._sum = [
            total if g is None else g.clone() if total.shape != g.shape else total + g
            for total, g in zip(self._sum, found, strict=True)
        ]
        self._squares += square
        self.steps += 1

    def value(self) -> float | None:
        """The coherence so far; `None` before two steps, and where every gradient was zero."""
        if self.steps < 2 or self._squares == 0:
            return None
        return _square(self._sum) / (self.steps * self._squares)


def _square(tensors: Iterable[Tensor]) -> float:
    parts = [tensor.square().sum() for tensor in tensors]
    return float(torch.stack(parts).sum()) if parts else 0.0
