"""How the cases of the demo are built: model, optimizer, task, and the fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from gradient_flow.demo.networks import LanguageModel, stack
from gradient_flow.demo.tasks import CLASSES, FEATURES, Task, chain, clusters
from gradient_flow.demo.written_out import written_out

_WIDTH: Final = 64
_LATE: Final = 0.6
"""Faults of a single batch come after this share of the steps: the run is in order until then."""


@dataclass(frozen=True)
class Setup:
    """What is trained on what."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: Task


def _healthy(seed: int, _steps: int, _folder: Path) -> Setup:
    model = LanguageModel()
    return Setup(model, torch.optim.AdamW(model.parameters(), lr=2e-3), chain(seed))


def _vanishing(seed: int, _steps: int, _folder: Path) -> Setup:
    model = stack([FEATURES] + [_WIDTH] * 9 + [CLASSES], nn.Sigmoid, nn.init.xavier_normal_)
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.05), clusters(seed))


def _nan(seed: int, steps: int, folder: Path) -> Setup:
    stuck = seed % FEATURES

    def sensor_fails(batch: Tensor, step: int) -> Tensor:
        if step == round(_LATE * steps):
            batch[:, stuck] = 1.0
        return batch

    layers = stack([FEATURES, _WIDTH, _WIDTH, CLASSES], nn.ReLU, nn.init.kaiming_normal_)
    model = nn.Sequential(written_out("standardise", folder).Standardise(), *layers)
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.05), clusters(seed, sensor_fails))


def _attention(seed: int, steps: int, _folder: Path) -> Setup:
    model = LanguageModel(annealing=1e-3 ** (1 / steps))
    return Setup(model, torch.optim.AdamW(model.parameters(), lr=2e-3), chain(seed))


def _exploding(seed: int, _steps: int, _folder: Path) -> Setup:
    def too_large(weight: Tensor) -> object:
        return nn.init.normal_(weight, std=3 / weight.shape[1] ** 0.5)

    model = stack([FEATURES] + [_WIDTH] * 9 + [CLASSES], nn.ReLU, too_large)
    return Setup(model, torch.optim.Adam(model.parameters(), lr=1e-3), clusters(seed))


def _dead(seed: int, _steps: int, _folder: Path) -> Setup:
    model = stack([FEATURES] + [_WIDTH] * 4 + [CLASSES], nn.ReLU, nn.init.kaiming_normal_)
    third = model[4]
    assert isinstance(third, nn.Linear)
    nn.init.constant_(third.bias, -30.0)
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.05), clusters(seed))


def _spike(seed: int, steps: int, _folder: Path) -> Setup:
    def wrong_unit(batch: Tensor, step: int) -> Tensor:
        return batch * 1000 if step == round(_LATE * steps) else batch

    model = stack([FEATURES, _WIDTH, _WIDTH, CLASSES], nn.ReLU, nn.init.kaiming_normal_)
    return Setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3), clusters(seed, wrong_unit))


def _slow(seed: int, _steps: int, _folder: Path) -> Setup:
    model = stack([FEATURES, _WIDTH, _WIDTH, CLASSES], nn.ReLU, nn.init.kaiming_normal_)
    return Setup(model, torch.optim.Adam(model.parameters(), lr=1e-8), clusters(seed))


BUILD: Final[dict[str, Callable[[int, int, Path], Setup]]] = {
    "healthy": _healthy,
    "vanishing": _vanishing,
    "nan": _nan,
    "attention": _attention,
    "exploding": _exploding,
    "dead": _dead,
    "spike": _spike,
    "slow": _slow,
}
"""Name of the case → a function of the seed, the number of steps and the run folder."""
