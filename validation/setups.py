"""Puts models and tasks together, with the changes that several files of cases make to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from validation.case import Setup, call
from validation.nets import Mover, Players, Rules, SequenceModel, scale_
from validation.tasks import Task, echo, grey, moves, recall
from validation.tasks.task import Loss

# --- any model


def pair(model: nn.Module, task: Task, **more: Any) -> Setup:
    """Put a model and a task together."""
    return Setup(model=model, input_fn=task.input_fn, loss_fn=task.loss_fn, **more)


def rated(model: nn.Module, task: Task, kind: str, lr: float, steps: int = 20, **more: Any) -> Setup:
    """Put an optimizer of torch beside it, for analyses that train."""
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr, **more)
    return pair(model, task, optimizer=optimizer, steps=steps)


def pretrain(setup: Setup, steps: int, lr: float = 3e-3) -> Setup:
    """Train inside `build`, for cases that look at a model late in its life."""
    optimizer = torch.optim.Adam([p for p in setup.model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        setup.loss_fn(call(setup.model, setup.input_fn())).backward()
        optimizer.step()
    setup.model.zero_grad(set_to_none=True)
    return setup


def biased(model: nn.Module, path: str, value: float, task: Task, sign: bool = False) -> Setup:
    """Set the bias of one layer to a value, of either sign if asked for."""
    bias = model.get_submodule(path).bias
    with torch.no_grad():
        bias.copy_(value * torch.randn_like(bias).sign() if sign else torch.full_like(bias, value))
    return pair(model, task)


def scaled(model: nn.Module, path: str, factor: float, task: Task) -> Setup:
    """Multiply the weight of one layer."""
    scale_(model.get_submodule(path), factor)
    return pair(model, task)


def partly_dead(model: nn.Module, path: str, share: float, task: Task) -> Setup:
    """Push a share of the units of one layer so far down that they never fire."""
    layer = model.get_submodule(path)
    with torch.no_grad():
        layer.bias[: round(share * len(layer.bias))] = -30
    return pair(model, task)


def frozen(model: nn.Module, *paths: str) -> nn.Module:
    """Freeze some modules."""
    for path in paths:
        model.get_submodule(path).requires_grad_(False)
    return model


# --- pictures and sequences


def vision(seed: int, model: nn.Module) -> Setup:
    """Let a small vision transformer tell grey pictures apart."""
    return pair(model, grey(seed))


def lagged(model: nn.Module, seed: int, lag: int, classes: int = 4, dim: int = 8, batch: int = 48) -> Setup:
    """A task whose answer lies `lag` steps back, and a user who knows it."""
    return pair(model, recall(seed, lag, classes, dim, batch), hints={"required_lag": lag})


def recent(rnn: nn.Module, seed: int, length: int, back: int, classes: int = 4) -> Setup:
    """A long sequence whose answer lies near its end, and a user who knows that."""
    task = recall(seed, length, classes, where=length - back)
    return pair(SequenceModel(rnn, classes), task, hints={"required_lag": back})


def every_step(
    rnn: nn.Module, seed: int, length: int = 12, classes: int = 6, lag: int = 1, batch: int = 32, **more: Any
) -> Setup:
    """Ask at every step for what was shown `lag` steps before."""
    return pair(SequenceModel(rnn, classes, every_step=True, **more), echo(seed, length, classes, 8, batch, lag))


# --- policies and games


def of_logits(output: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    """Logits, no deviation, no mean, value."""
    return output[0], None, None, output[1]


def of_logits_alone(logits: Tensor) -> tuple[Tensor, None, None, None]:
    """Logits, nothing beside them."""
    return logits, None, None, None


def of_moves(output: tuple[Tensor, Tensor]) -> tuple[None, Tensor, Tensor, None]:
    """No logits, deviation, mean, no value."""
    return None, output[1], output[0], None


def discrete(model: nn.Module, task: Task, **more: Any) -> Setup:
    """A policy that chooses among actions."""
    return pair(model, task, kwargs={"action_extractor": of_logits}, **more)


def rated_policy(model: nn.Module, task: Task, kind: str, lr: float, steps: int = 20) -> Setup:
    """The same with an optimizer of torch."""
    return discrete(model, task, optimizer=getattr(torch.optim, kind)(model.parameters(), lr=lr), steps=steps)


def continuous(model: nn.Module, task: Task, reach: float = 1.0) -> Setup:
    """A policy that moves within ± `reach`, which every user of an environment knows."""
    return pair(model, task, kwargs={"action_extractor": of_moves}, hints={"action_range": (-reach, reach)})


def mover(seed: int, reach: float, share: float, factor: float = 1.0, dim: int = 11, count: int = 4) -> Setup:
    """Move within `reach` by a deviation of `share` of it; `factor` multiplies the weights of the mean."""
    model = Mover(dim, count, reach, share * reach)
    scale_(model.mean, factor)
    return continuous(model, moves(seed, dim, count, reach), reach)


def played(model: nn.Module, random: torch.Generator, batch: int) -> Setup:
    """A game in which each parameter of the model is a player, and the output holds the loss of each."""
    turns = list(model.parameters())
    players = [(lambda out, i=i: out[i], [move]) for i, move in enumerate(turns)]
    return Setup(
        model=model,
        input_fn=lambda: torch.randn(batch, len(turns[-1]), generator=random),
        loss_fn=lambda out: out[0],
        kwargs={"players": players},
    )


def play(seed: int, dims: tuple[int, ...], rules: Rules, spread: float = 1.0) -> Setup:
    """Seat as many players as there are `dims`, each at a random move."""
    random = torch.Generator().manual_seed(seed + 20)
    return played(Players(rules, [spread * torch.randn(dim, generator=random) for dim in dims]), random, 48)


# --- programs that train


def live(
    model: nn.Module,
    task: Task,
    kind: str = "AdamW",
    lr: float = 3e-3,
    steps: int = 40,
    *,
    clip: float | None = None,
    rate: Callable[[int], float] | None = None,
    hints: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Setup:
    """Put a model under an optimizer for real training, with clipping and a schedule of the rate if asked for.

    Both hang on the optimizer's own hooks, so that a plain loop of forward, backward and step has them too.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = getattr(torch.optim, kind)(trainable, lr=lr, **options)
    if rate is not None:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
    if clip is not None:
        optimizer.register_step_pre_hook(lambda *_: (nn.utils.clip_grad_norm_(trainable, clip), None)[1])
    return pair(model, task, optimizer=optimizer, steps=steps, hints=hints or {}, kwargs=kwargs or {})


def told(model: nn.Module, task: Task, lag: int | None = None, **more: Any) -> Setup:
    """Real training for a user who knows how far back the answer lies."""
    return live(model, task, hints={} if lag is None else {"required_lag": lag}, **more)


def choosing(model: nn.Module, task: Task, loss: Loss | None = None, **more: Any) -> Setup:
    """A policy of nothing but logits, in real training; `loss` stands for that of the task."""
    task = task if loss is None else task.with_loss(loss)
    return live(model, task, kwargs={"action_extractor": of_logits_alone}, **{"lr": 5e-3, "steps": 60, **more})
