# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks that are not finite, jump, run away or stand still, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.residual_faults import mixer, pre_norm, scaled_24, staged
from validation.evidence import diverges, does_not_move, gradient_norms_spread, not_finite, trains
from validation.labels import JUMPS, RUNS_AWAY
from validation.nets.dense import Lambda
from validation.nets.residual import (
    Mixer,
    ResidualBlock,
    ResidualNet,
    Staged,
    dense_branch,
    residual_convs,
    residual_mlp,
)
from validation.nets.weights import he_
from validation.setups import pair, rated
from validation.tasks import Task, blobs, every, images, patches, regression

zoo = Zoo("residual", half="tune", proof=trains(lr=3e-3, steps=30))


def overflow(model: ResidualNet, block: int, task: Task) -> Setup:
    model.blocks[block].branch.insert(1, Lambda(lambda x: torch.exp(x * 60)))
    return pair(model, task)


zoo.sick(
    "8-blocks-exp-in-sixth",
    lambda s: overflow(residual_mlp(8, 40, 24, 6, scale=0.4), 5, blobs(s, 24, 6)),
    not_finite(),
    "NUMERICAL",
    layer=("blocks.5.branch.0", "blocks.5.branch.3"),
    also={"EXPLODING"},
    control=pre_norm,
)
zoo.sick(
    "conv-4-blocks-momentum-sgd-20",
    lambda s: rated(residual_convs(4, 12, False, 0.5), images(s, size=8), "SGD", 20.0, 20, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=scaled_24,
)


class Length(nn.Module):
    """Brings every token to length one by hand; padding is all zeros."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.norm(dim=-1, keepdim=True) + self.eps)


def padded(seed: int, eps: float) -> Setup:
    def pad(x: Tensor) -> Tensor:
        x[:, -2:] = 0
        return x

    model = Mixer(3, 28)
    nn.init.zeros_(model.project.bias)
    model.blocks[0].norm1 = Length(eps)
    return pair(model, patches(seed).mapped(pad))


padding = zoo.healthy("mixer-3x28-padded-tokens", lambda s: padded(s, 0.1))
zoo.sick(
    "mixer-3x28-padded-tokens-to-unit-length",
    lambda s: padded(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("project", "blocks.0.tokens.0"),
    control=padding,
)
zoo.sick(
    "two-stages-nesterov-300",
    lambda s: rated(Staged(), images(s, 3, 8, 7, 16), "SGD", 300.0, 15, momentum=0.9, nesterov=True),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=staged,
)
zoo.sick(
    "mixer-4x28-adamw-1e-9",
    lambda s: rated(Mixer(4, 28), patches(s), "AdamW", 1e-9, 20),
    does_not_move(),
    "SLOW",
    control=mixer,
)


def misread(seed: int, period: int, times: float) -> Setup:
    """A worker now and then forgets to divide by the unit."""
    now = every(period, period // 2)
    blocks = [ResidualBlock(dense_branch(40, 40, nn.SiLU), 0.3) for _ in range(4)]
    task = regression(seed, 18, 2, 64).mapped(lambda x: x * (times if now() else 1))
    model = he_(ResidualNet(nn.Linear(18, 40), blocks, nn.Linear(40, 2)))
    return pair(model, task.with_loss(F.mse_loss), steps=40)


steady = zoo.healthy("4-blocks-regression", lambda s: misread(s, 10, 1.0), trains(lr=3e-3, steps=60))
zoo.sick(
    "4-blocks-every-tenth-batch-times-500",
    lambda s: misread(s, 10, 500.0),
    gradient_norms_spread(100),
    *JUMPS,
    control=steady,
)
