"""What several programs share: the plainest loop, and the loss on a batch that no loop sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, call
from validation.tasks import Task

Criterion = Callable[[Any, Any], Tensor]


def held_out(model: nn.Module, task: Task, criterion: Criterion = F.cross_entropy) -> Callable[[], float]:
    """Score of a model: its loss on unseen data, as it will be used."""
    x, y = task.aside()

    def score() -> float:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        with torch.no_grad():
            loss = criterion(call(model, x), y).item()
        for module, training in modes:
            module.training = training
        return loss

    return score


def fit(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    steps: int = 80,
    criterion: Criterion = F.cross_entropy,
    meant: Criterion | None = None,
    unseen: Task | None = None,
) -> Program:
    """The loop of every tutorial; `meant` and `unseen` score it where they differ from what it trains with."""
    losses: list[float] = []
    batches = iter(task)

    def run() -> None:
        for _ in range(steps):
            x, y = next(batches)
            optimizer.zero_grad()
            loss = criterion(call(model, x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    score = held_out(model, unseen or task, meant or criterion)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def adam(model: nn.Module, lr: float = 3e-3, **more: Any) -> torch.optim.Optimizer:
    """Adam over the whole model."""
    return torch.optim.Adam(model.parameters(), lr=lr, **more)


def sgd(model: nn.Module, lr: float = 0.1, **more: Any) -> torch.optim.Optimizer:
    """SGD over the whole model."""
    return torch.optim.SGD(model.parameters(), lr=lr, **more)
