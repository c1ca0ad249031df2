"""Mistakes that programs of several halves make, and the same programs without them.

Each takes how a network, its task and its loss are made, and gives a build that is told the seed and whether it has the
fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from validation.case import Program
from validation.cases._common_loops import study
from validation.programs import adam, held_out, script, sgd
from validation.tasks import Task

Made = Callable[[int], tuple[nn.Module, Task, Callable[..., Tensor]]]
Loss = Callable[[], Tensor]
Schedule = Callable[[torch.optim.Optimizer], LRScheduler]
Beside = Callable[[int, bool], Program]


def cleared_when(clears: Callable[[int], bool], made: Made, rate: float, steps: int = 80) -> Beside:
    """SGD with momentum; the fault clears at some steps only."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        optimizer = sgd(model, rate, momentum=0.9)

        def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            if not fault or clears(i):
                optimizer.zero_grad()
            value = loss_of()
            value.backward()
            optimizer.step()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


def ordered(letters: str, made: Made, rate: float, kind: str = "Adam", steps: int = 70, **options: Any) -> Beside:
    """Z clears, B goes back, S steps; `letters` is the order of the fault."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=rate, **options)

        def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            value = loss_of()
            for letter in letters if fault else "ZBS":
                {"Z": optimizer.zero_grad, "B": value.backward, "S": optimizer.step}[letter]()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


def scheduled(
    made: Made, rate: float, good: Schedule, bad: Schedule, steps: int = 80, stepped: bool = True, **options: Any
) -> Beside:
    """AdamW under a schedule that moves on after every batch, but for a fault that is not `stepped`."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, **options)
        schedule = (bad if fault else good)(optimizer)

        def after(_: int) -> None:
            if stepped or not fault:
                schedule.step()

        return study(model, task, optimizer, loss, steps, after=after)

    return build


def clipped(made: Made, rate: float, good: float, bad: float, steps: int = 80, by_value: bool = False) -> Beside:
    """SGD with momentum under a limit for the norm of its gradients, or for each of their numbers."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        cut = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
        optimizer, limit = sgd(model, rate, momentum=0.9), bad if fault else good
        return study(model, task, optimizer, loss, steps, ready=lambda _: cut(model.parameters(), limit))

    return build


def rated(made: Made, kind: str, good: float, bad: float, steps: int = 70, **options: Any) -> Beside:
    """A rate that suits, and one that does not."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=bad if fault else good, **options)
        return study(model, task, optimizer, loss, steps)

    return build


def summed(made: Made, whole: Callable[[Any, Any], Tensor], rate: float, steps: int, momentum: float = 0.9) -> Beside:
    """SGD on the mean of the loss, and on the `whole` of it."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        return study(model, task, sgd(model, rate, momentum=momentum), whole if fault else loss, steps, loss)

    return build


def in_parts(made: Made, parts: int, rate: float, steps: int, momentum: float = 0.9) -> Beside:
    """Several parts to a step of SGD; the fault does not divide their losses."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        optimizer = sgd(model, rate, momentum=momentum)

        def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            value = loss_of()
            (value if fault else value / parts).backward()
            if (i + 1) % parts == 0:
                optimizer.step()
                optimizer.zero_grad()
            return value

        return script(model, optimizer, task, loss, body, steps * parts)

    return build


def labelled(made: Made, wrong: Callable[[Tensor], Tensor], rate: float, steps: int) -> Beside:
    """Labels are spoilt on their way from the file; the score knows the right ones."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        unseen = held_out(model, made(seed)[1], loss)
        task = task.changed(lambda x, y: (x, wrong(y))) if fault else task
        return study(model, task, adam(model, rate), loss, steps, score=unseen)

    return build


def activated(made: Made, last: Callable[[Tensor], Tensor], rate: float, steps: int) -> Beside:
    """The last activation stands in the model and in the loss; what the author prints is the score."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        wrong = lambda out, y: loss(last(out), y)  # noqa: E731
        return study(model, task, adam(model, rate), wrong if fault else loss, steps)

    return build


def shaped(
    make: Callable[[], nn.Module], task_of: Callable[[int], Task], rate: float, kind: Callable[..., Tensor], steps: int
) -> Beside:
    """The model gives (N, 1), the targets come as (N,)."""

    def build(seed: int, fault: bool) -> Program:
        model = make()

        def meant(out: Tensor, y: Tensor) -> Tensor:
            return kind(out.squeeze(1), y)

        task = task_of(seed).changed(lambda x, y: (x, y.flatten()))
        return study(model, task, adam(model, rate), kind if fault else meant, steps, meant)

    return build
