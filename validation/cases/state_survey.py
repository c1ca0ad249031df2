# ruff: noqa: D103 - a case is explained by its name
"""The same faults of the optimizer in other networks, by other numbers.

Half: holdout.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Zoo
from validation.evidence.loops import learns
from validation.nets import ConvNet, LanguageModel, mlp
from validation.states import add_all
from validation.tasks import grey, manifold, markov, token_loss

zoo = Zoo("state", half="holdout", proof=learns())


def wrong_unit(_x: Tensor, y: Tensor, row: int) -> None:
    y[row] += 1500.0


def twice(_x: Tensor, y: Tensor, row: int) -> None:
    y[row] = 5000.0


add_all(
    zoo,
    {
        "coder": (lambda: mlp([32, 48, 16, 48, 32], nn.Tanh), lambda s: manifold(s, 32, 4, 48), F.mse_loss, 2e-3),
        "grey": (lambda: ConvNet([1, 12, 24], 10, pool=(0, 1)), grey, F.cross_entropy, 2e-3),
        "words": (lambda: LanguageModel(30, 48, 3, 3), lambda s: markov(s, 30, 12, 24), token_loss, 2e-3),
    },
    {
        "eps": 0.3,
        "scale": 3e-10,
        "low": 0.001,
        "decay": 50.0,
        "momentum": 0.998,
        "every": 5,
        "sgd": 20.0,
        "spoilt": {"wrong-unit": (10, 40, 400, 10, wrong_unit), "lone-outlier": (5, 20, 300, 6, twice)},
    },
)
