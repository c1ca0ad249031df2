"""Small models with one planted fault each, and what `cure` needs of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

Fn = Callable[..., Any]


def batches(seed: int = 0, features: int = 8, scale: float = 1.0) -> tuple[Fn, Fn]:
    """A linear task with its own generator; the targets lie in a closure, as users write it."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.zeros(32, 1)

    def input_fn() -> torch.Tensor:
        nonlocal target
        x = torch.randn(32, features, generator=generator)
        target = x[:, :1] - x[:, 1:2]
        return scale * x

    return input_fn, lambda output: (output - target).square().mean()


def mlp(width: int = 24, depth: int = 2, act: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    """He-initialised layers, 8 features to one number."""
    torch.manual_seed(seed)
    sizes = [8, *[width] * depth]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layer = nn.Linear(a, b)
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, act()]
    return nn.Sequential(*layers, nn.Linear(width, 1))
