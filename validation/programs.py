"""What several programs share: the plain loops, what hooks into them, and the loss on a batch that no loop sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, call
from validation.tasks import Task, token_loss

Criterion = Callable[[Any, Any], Tensor]
Hook = Callable[[int], Any]
"""What a loop does beside learning; it gets the number of the step."""
Body = Callable[[int, Any, Any, Callable[[], Tensor]], "Tensor | None"]
"""What a loop does with a batch: it gets the number of the step, inputs, targets, and how to compute the loss."""


def nothing(_step: int) -> None:
    """What happens where nothing does."""


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


def program(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer],
    run: Callable[[], None],
    losses: list[float],
    task: Task,
    criterion: Criterion = F.cross_entropy,
    **more: Any,
) -> Program:
    """A loop of any kind, scored by its loss on unseen data."""
    score = held_out(model, task, criterion)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, **more)


def shuffled(x: Tensor, y: Tensor, batch: int, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a table from a loader that shuffles, read several times."""
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from DataLoader(TensorDataset(x, y), batch, shuffle=True, generator=order)


def descend(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Tensor:
    """One step of every tutorial: clear, look at the loss, go back, move."""
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    return loss


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Any, y: Any, criterion: Criterion = F.cross_entropy
) -> float:
    """The same on a batch, for loops that note the loss."""
    return descend(optimizer, lambda: criterion(call(model, x), y)).item()


def step_from(
    loss: Tensor, optimizer: torch.optim.Optimizer, clip: nn.Module | None = None, limit: float = 1.0
) -> float:
    """The same from a loss that is there already; the gradients of `clip` are held below a limit."""
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(clip.parameters(), limit)
    optimizer.step()
    return loss.item()


def learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Any, Any]],
    loss_of: Criterion,
    score: Callable[[], float],
    steps: int | None = None,
    *,
    before: Hook = nothing,
    after: Hook = nothing,
) -> Program:
    """The loop of every tutorial, with a line of the user's own `before` and `after` the step of the optimizer.

    `loss_of` gets inputs and targets, and does all that is between them and the loss. The loop ends with the batches
    where no number of `steps` is given.
    """
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(count() if steps is None else range(steps), batches, strict=False):
            optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            before(step)
            optimizer.step()
            after(step)
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def fit(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    steps: int = 80,
    criterion: Criterion = F.cross_entropy,
    meant: Criterion | None = None,
    unseen: Task | None = None,
    *,
    before: Hook = nothing,
    after: Hook = nothing,
) -> Program:
    """The same of a model and a criterion; `meant` and `unseen` score it where they differ from what trains it."""
    score = held_out(model, unseen or task, meant or criterion)

    def loss_of(x: Any, y: Any) -> Tensor:
        return criterion(call(model, x), y)

    return learn(model, optimizer, task, loss_of, score, steps, before=before, after=after)


def clips(model: nn.Module, limit: float) -> Hook:
    """Hold the norm of the gradients below a limit."""
    return lambda _: nn.utils.clip_grad_norm_(model.parameters(), limit)


def fit_experts(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    steps: int,
    balance: float,
    score: Callable[[], float] | None = None,
    **more: Any,
) -> Program:
    """The same of a model over tokens that also says how unevenly it uses its experts, which counts by `balance`."""
    losses: list[float] = []

    def run() -> None:
        for _, (x, y) in zip(range(steps), task, strict=False):
            optimizer.zero_grad()
            logits, uneven = model(x)
            loss = token_loss(logits, y)
            (loss + balance * uneven).backward()
            optimizer.step()
            losses.append(loss.item())

    score = score or held_out(model, task, lambda output, y: token_loss(output[0], y))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, **more)


def fit_by_closure(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    steps: int,
    criterion: Criterion,
    unseen: Task | None = None,
) -> Program:
    """The same where the optimizer asks for the loss itself, as often as it likes."""
    losses: list[float] = []

    def run() -> None:
        for _, (x, y) in zip(range(steps), task, strict=False):

            def closure(x: Any = x, y: Any = y) -> Tensor:
                optimizer.zero_grad()
                loss = criterion(call(model, x), y)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())

    return program(model, optimizer, run, losses, unseen or task, criterion)


def script(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer],
    task: Task,
    criterion: Criterion,
    body: Body,
    steps: int = 60,
    unseen: Task | None = None,
    *,
    meant: Criterion | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Program:
    """A loop whose `body` does as it likes with each batch; what it gives back is noted as the loss."""
    losses: list[float] = []

    def run() -> None:
        for (x, y), i in zip(task, range(steps), strict=False):
            value = body(i, x, y, lambda x=x, y=y: criterion(call(model, x), y))
            if value is not None:
                losses.append(value.item())

    score = held_out(model, unseen or task, meant or criterion)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, scaler=scaler)


def plainly(optimizer: torch.optim.Optimizer, after: Hook = nothing, before: Hook = nothing) -> Body:
    """The body of `fit`, for a script."""

    def body(i: int, _x: Any, _y: Any, loss_of: Callable[[], Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        before(i)
        optimizer.step()
        after(i)
        return loss

    return body


def adam(model: nn.Module, lr: float = 3e-3, **more: Any) -> torch.optim.Optimizer:
    """Adam over the whole model."""
    return torch.optim.Adam(model.parameters(), lr=lr, **more)


def sgd(model: nn.Module, lr: float = 0.1, **more: Any) -> torch.optim.Optimizer:
    """SGD over the whole model."""
    return torch.optim.SGD(model.parameters(), lr=lr, **more)
