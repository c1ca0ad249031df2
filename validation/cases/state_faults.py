# ruff: noqa: D103 - a case is explained by its name
"""Programs whose optimizer is at fault: eps, precision, decay, momentum, state, and a sample that spoils its batches.

Half: tune.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Zoo
from validation.evidence.loops import learns
from validation.nets import ConvNet, LanguageModel, he_, mlp
from validation.states import add_all
from validation.tasks import blobs, images, markov, token_loss

zoo = Zoo("state", half="tune", proof=learns())


def far_target(_x: Tensor, y: Tensor, row: int) -> None:
    y[row] = 3000.0


def far_input(x: Tensor, y: Tensor, row: int) -> None:
    x[row] *= 0
    y[row] = -900.0


add_all(
    zoo,
    {
        "dense": (lambda: he_(mlp([24, 64, 64, 6])), lambda s: blobs(s, 24, 6, 64, 0.7), F.cross_entropy, 3e-3),
        "convolutions": (
            lambda: ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,)),
            lambda s: images(s, size=8),
            F.cross_entropy,
            3e-3,
        ),
        "language": (lambda: LanguageModel(24, 32, 4, 2, tied=True), lambda s: markov(s, 24, 16, 16), token_loss, 3e-3),
    },
    {
        "eps": 1.0,
        "scale": 1e-9,
        "low": 0.003,
        "decay": 60.0,
        "momentum": 0.999,
        "every": 1,
        "sgd": 15.0,
        "spoilt": {"far-target": (8, 32, 320, 8, far_target), "far-answer": (6, 24, 240, 8, far_input)},
    },
)
