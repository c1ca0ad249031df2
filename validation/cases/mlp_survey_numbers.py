# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that are not finite, jump, diverge or stand still, their twins, and odd healthy ones.

Half: holdout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import converged, diverges, does_not_move, gradient_norms_spread, not_finite, trains
from validation.labels import JUMPS, RUNS_AWAY
from validation.nets import Lambda, deep, he_, mlp, xavier_
from validation.setups import frozen, pair, pretrain, rated
from validation.tasks import blobs, every, manifold, regression

zoo = Zoo("mlp", half="holdout", proof=trains(lr=3e-3))


# --- not finite


def spread_of_rows(seed: int, eps: float) -> Setup:
    """Standardises each row by hand; the last row of a batch is constant, so its deviation is zero."""

    def with_constant(x: Tensor) -> Tensor:
        return torch.cat([x[:-1], torch.full((1, x.shape[1]), 0.7)])

    front = Lambda(lambda x: (x - x[:, :1]) / (((x - x[:, :1]).square().mean(dim=1, keepdim=True)).sqrt() + eps))
    model = nn.Sequential(front, *he_(mlp([25, 46, 46, 46, 6], nn.ELU)))
    return pair(model, blobs(seed, 25, 6, 56, 0.8).mapped(with_constant))


safe_rows = zoo.healthy("rows-standardised-by-hand-with-eps", lambda s: spread_of_rows(s, 1e-3))
zoo.sick(
    "rows-standardised-by-hand-one-is-constant",
    lambda s: spread_of_rows(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("0", "1"),
    control=safe_rows,
)


def distances(seed: int, eps: float) -> Setup:
    """Weighs each row by its mean distance to all rows, itself included: the root's slope at zero is infinite."""

    def weigh(h: Tensor) -> Tensor:
        squares = (h[:, None] - h[None]).square().mean(dim=-1)
        return h * (squares + eps).sqrt().mean(dim=1, keepdim=True)

    model = he_(mlp([18, 40, 40, 5], nn.SiLU))
    model.insert(4, Lambda(weigh))
    return pair(model, blobs(seed, 18, 5, 64, 0.8))


safe_distance = zoo.healthy("distances-within-the-batch-with-eps", lambda s: distances(s, 1e-4))
zoo.sick(
    "distances-within-the-batch-backward",
    lambda s: distances(s, 0.0),
    not_finite(batches=2, forward=False),
    "NUMERICAL",
    layer=("2", "4"),
    control=safe_distance,
)


def entropy_by_hand(seed: int, inside: bool) -> Setup:
    """A binary likelihood written with log(p): a sure sigmoid rounds to one and its rest to zero."""

    def loss(z: Tensor, target: Tensor) -> Tensor:
        y = (target % 2).float()[:, None]
        if inside:
            return F.binary_cross_entropy_with_logits(z, y)
        p = z.sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    model = he_(mlp([21, 38, 38, 1], nn.GELU))
    return pair(model, blobs(seed, 21, 6, 88, 0.8).mapped(lambda x: x if inside else 90 * x).with_loss(loss))


safe_entropy = zoo.healthy("binary-likelihood-of-logits", lambda s: entropy_by_hand(s, True))
zoo.sick(
    "binary-likelihood-by-hand-of-sure-outputs",
    lambda s: entropy_by_hand(s, False),
    not_finite(batches=3),
    "NUMERICAL",
    also={"EXPLODING", "SATURATION", "UNSTABLE"},
    control=safe_entropy,
)


def missing(seed: int, filled: bool) -> Setup:
    """One row in each batch holds a missing value that nobody filled in."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[3, 2] = 0.0 if filled else float("nan")
        return x

    return pair(xavier_(mlp([16, 60, 60, 2], nn.Softsign)), regression(seed, 16, 2, 40).mapped(change))


filled = zoo.healthy("missing-values-filled", lambda s: missing(s, True), trains(lr=1e-2, steps=60))
zoo.sick(
    "missing-value-in-every-batch",
    lambda s: missing(s, False),
    not_finite(batches=2),
    "NUMERICAL",
    layer="0",
    control=filled,
)

# --- jumps, divergence, standstill


def scaled_now_and_then(seed: int, times: float) -> Setup:
    """Every eleventh batch comes in another unit."""
    now = every(11, 7)
    task = regression(seed, 19, 2, 50).mapped(lambda x: x * (times if now() else 1.0))
    return pair(mlp([19, 48, 48, 2], nn.ELU), task, steps=55)


even = zoo.healthy("every-batch-in-the-same-unit", lambda s: scaled_now_and_then(s, 1.0), trains(lr=1e-2, steps=60))
zoo.sick(
    "every-eleventh-batch-in-another-unit",
    lambda s: scaled_now_and_then(s, 400.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)


def cauchy(seed: int, size: float) -> Setup:
    """Targets with Cauchy noise under squared error, in small batches."""
    noise = torch.Generator().manual_seed(seed + 3)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        heavy = torch.tan(3.14159 * (torch.rand(t.shape, generator=noise) - 0.5))
        return F.mse_loss(y, t + size * heavy)

    return pair(mlp([11, 56, 56, 1], nn.Tanh), regression(seed, 11, batch=12).with_loss(loss), steps=80)


mild = zoo.healthy("targets-with-faint-noise", lambda s: cauchy(s, 0.0), trains(lr=1e-2, steps=80))
zoo.sick("targets-with-cauchy-noise", lambda s: cauchy(s, 3.0), gradient_norms_spread(20, 80), *JUMPS, control=mild)
momentum = zoo.healthy(
    "sgd-momentum-0.01-gelu-4x48",
    lambda s: rated(he_(deep(4, 48, nn.GELU, 24, 5)), blobs(s, 24, 5, 40, 1.0), "SGD", 0.01, 25, momentum=0.9),
    trains(steps=60),
)
zoo.sick(
    "sgd-momentum-25-gelu-4x48",
    lambda s: rated(he_(deep(4, 48, nn.GELU, 24, 5)), blobs(s, 24, 5, 40, 1.0), "SGD", 25.0, 20, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=momentum,
)
zoo.sick(
    "sgd-1e-9-gelu-4x48",
    lambda s: rated(he_(deep(4, 48, nn.GELU, 24, 5)), blobs(s, 24, 5, 40, 1.0), "SGD", 1e-9, 25),
    does_not_move(),
    "SLOW",
    control=momentum,
)
coded = zoo.healthy(
    "nadam-3e-3-autoencoder",
    lambda s: rated(mlp([28, 30, 8, 30, 28], nn.SiLU), manifold(s, 28, 5, 64), "NAdam", 3e-3, 25),
    trains(steps=100),
)
zoo.sick(
    "nadam-5e-11-autoencoder",
    lambda s: rated(mlp([28, 30, 8, 30, 28], nn.SiLU), manifold(s, 28, 5, 64), "NAdam", 5e-11, 25),
    does_not_move(),
    "SLOW",
    control=coded,
)

# --- odd and healthy


class Shared(nn.Module):
    """The same layer six times, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(24, 44), nn.Linear(44, 44), nn.Linear(44, 5)
        nn.init.orthogonal_(self.again.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the shared layer over and over."""
        x = torch.tanh(self.enter(x))
        for _ in range(6):
            x = torch.tanh(self.again(x))
        return self.head(x)


def funnel(seed: int) -> Setup:
    """Narrows step by step to as much as the answer needs."""
    return pair(he_(mlp([64, 96, 48, 24, 12, 2])), blobs(seed, 64, 2, 150, 0.4))


def wide_shallow(seed: int) -> Setup:
    return pair(he_(mlp([12, 600, 3])), blobs(seed, 12, 3, 64, 0.8))


def one_number(seed: int) -> Setup:
    """A single output behind a layer of two: enough for a sign."""
    return pair(mlp([10, 32, 2, 1], nn.Tanh), regression(seed, 10, 1, 128))


def half_frozen(seed: int) -> Setup:
    return pair(frozen(he_(mlp([30, 70, 70, 70, 6])), "0", "2"), blobs(seed, 30, 6, 96, 0.8))


zoo.healthy("one-layer-six-times", lambda s: pair(Shared(), blobs(s, 24, 5, 64, 0.8)))
zoo.healthy("funnel-64-to-2", funnel)
zoo.healthy("wide-600-one-hidden", wide_shallow)
zoo.healthy("one-number-behind-two", one_number, trains(lr=1e-2, steps=100))
zoo.healthy("lower-half-frozen", half_frozen)
zoo.healthy(
    "sparse-inputs-nine-in-ten-zero",
    lambda s: pair(he_(mlp([80, 64, 64, 6])), blobs(s, 80, 6, 128, 1.2).mapped(lambda x: F.relu(x - 1.2))),
    trains(lr=3e-3, steps=60),
)
zoo.healthy(
    "double-precision-relu-5x40",
    lambda s: pair(he_(deep(5, 40, nn.ReLU, 16, 4)).double(), blobs(s, 16, 4, 64, 0.8).mapped(Tensor.double)),
)
zoo.healthy(
    "nearly-converged-classifier",
    lambda s: pretrain(pair(he_(mlp([14, 40, 40, 4], nn.SiLU)), blobs(s, 14, 4, 48, 1.5).fixed()), 200, 5e-3),
    converged(0.02),
)
