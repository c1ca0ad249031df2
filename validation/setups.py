"""Puts models and tasks together, with the changes that several zoos make to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from validation.case import Setup, call
from validation.tasks import Task


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
