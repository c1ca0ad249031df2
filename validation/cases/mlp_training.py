# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons at all stages of training, with all kinds of optimizers, scales and precisions, all healthy.

Half: tune.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import converged, trains
from validation.nets import Gated, Tower, deep, he_, mlp, xavier_
from validation.setups import pair, pretrain, rated
from validation.tasks import Task, blobs, manifold, regression

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- optimizers and schedules


def stepping(model: nn.Module, task: Task, make, steps: int = 30) -> Setup:
    return pair(model, task, optimizer=make(model.parameters()), steps=steps)


class Clipped(torch.optim.SGD):
    """Clips to norm 1 before each step, as most training loops do."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class WarmedUp(torch.optim.Adam):
    """Raises its rate from nearly nothing over the first steps."""

    def step(self, closure=None):
        count = self.state.setdefault("warm-up", {"step": 0})
        count["step"] += 1
        self.param_groups[0]["lr"] = 3e-3 * min(1.0, count["step"] / 20)
        return super().step(closure)


zoo.healthy(
    "adam-0.03-easy-task",
    lambda s: stepping(mlp([10, 32, 3], nn.Tanh), blobs(s, 10, 3, 64, 1.5), lambda p: torch.optim.Adam(p, lr=0.03)),
    trains(),
)
zoo.healthy(
    "clipped-sgd",
    lambda s: stepping(he_(deep(4, 64)), blobs(s), lambda p: Clipped(p, lr=0.1, momentum=0.9)),
    trains(steps=30),
)
zoo.healthy(
    "adam-with-warm-up",
    lambda s: stepping(he_(deep(4, 48, nn.SiLU)), blobs(s), lambda p: WarmedUp(p)),
    trains(steps=50),
)
zoo.healthy("fine-tuning-adamw-1e-4", lambda s: fine_tuned(s), trains(steps=60, fall=0.02))


def fine_tuned(seed: int) -> Setup:
    """A trained model on slightly moved data, at a small rate."""
    task = blobs(seed, 32, 8, 512, 0.5)
    model = copy.deepcopy(pretrain(pair(he_(Tower([32, 64, 64, 8], nn.GELU)), task), 60).model)
    moved = blobs(seed, 32, 8, 512, 0.5).mapped(lambda x: x + x.roll(1, dims=1))
    return stepping(model, moved, lambda p: torch.optim.AdamW(p, lr=1e-4))


zoo.healthy(
    "adamw-decay-0.3",
    lambda s: rated(he_(deep(3, 60, nn.GELU, 30, 8)), blobs(s, 30, 8), "AdamW", 2e-3, 30, weight_decay=0.3),
    trains(steps=40),
)
zoo.healthy(
    "rmsprop-1e-3", lambda s: rated(he_(Tower([30, 60, 60, 8])), blobs(s, 30, 8), "RMSprop", 1e-3, 30), trains(steps=40)
)
zoo.healthy(
    "nadam-2e-3-batch-16",
    lambda s: rated(he_(mlp([18, 48, 48, 4], nn.Mish)), blobs(s, 18, 4, 16, 1.0), "NAdam", 2e-3, 30),
    trains(steps=60),
)
zoo.healthy(
    "sgd-0.03-plain",
    lambda s: rated(he_(mlp([18, 64, 64, 4], nn.ReLU)), blobs(s, 18, 4, 64, 1.0), "SGD", 3e-2, 30),
    trains(steps=60),
)

# --- scales, precisions, batches

zoo.healthy("loss-times-1e4", lambda s: pair(he_(deep(5, 64)), blobs(s).scaled(1e4)))
zoo.healthy("loss-scaled-by-65536", lambda s: pair(he_(deep(4, 64, nn.GELU)), blobs(s).scaled(65536.0)))
zoo.healthy(
    "loss-times-1e-6",
    lambda s: pair(xavier_(Tower([20] + [64] * 5 + [6], nn.Tanh)), blobs(s, 20, 6).scaled(1e-6)),
    trains(lr=2e5, sgd=True),
)
zoo.healthy("sum-instead-of-mean", lambda s: pair(he_(deep(4, 56, nn.SiLU)), blobs(s).scaled(256.0)))
zoo.healthy("batch-of-1", lambda s: pair(he_(deep(3, 48)), blobs(s, batch=1).fixed()), trains(most_dead=1))
zoo.healthy(
    "batch-of-2", lambda s: pair(he_(Tower([16, 40, 40, 3], nn.Tanh)), blobs(s, 16, 3, 2, 2.0)), trains(steps=80)
)
zoo.healthy("double-precision", lambda s: pair(he_(deep(4, 48)).double(), blobs(s).mapped(Tensor.double)))
zoo.healthy(
    "bfloat16-5x72",
    lambda s: pair(he_(deep(5, 72, nn.SiLU, 24, 6)).bfloat16(), blobs(s, 24, 6).mapped(Tensor.bfloat16)),
    trains(lr=1e-3, steps=60),
)

# --- late in training, or at its very start

zoo.healthy("converged-classifier", lambda s: pretrain(pair(he_(deep(3, 64)), blobs(s).fixed()), 120), converged(0.02))
zoo.healthy(
    "converged-regression",
    lambda s: pretrain(pair(mlp([8, 64, 64, 1], nn.Tanh), regression(s, 8, batch=32, noise=0).fixed()), 300, 5e-3),
    converged(0.02),
)
zoo.healthy(
    "trained-to-the-noise-floor",
    lambda s: pretrain(pair(mlp([8, 32, 3], nn.SiLU), blobs(s, 8, 3, 128)), 200, 1e-2),
    converged(0.9),  # ln 3 = 1.1 by chance; the clusters overlap
)
zoo.healthy(
    "tiny-regression-1x8", lambda s: pair(mlp([3, 8, 1], nn.Tanh), regression(s, 3)), trains(lr=3e-2, steps=100)
)
zoo.healthy("linear-model", lambda s: pair(nn.Linear(64, 10), blobs(s)), trains(lr=1e-2))
zoo.healthy(
    "converged-autoencoder",
    lambda s: pretrain(pair(mlp([20, 24, 6, 24, 20], nn.Tanh), manifold(s, 20, 3, 48).fixed()), 300, 1e-2),
    converged(0.03),
)
zoo.healthy(
    "converged-glu",
    lambda s: pretrain(pair(Gated([20, 40, 40, 5]), blobs(s, 20, 5, 64, 1.0).fixed()), 150, 5e-3),
    converged(0.02),
)
zoo.healthy(
    "deep-narrow-tanh-orthogonal-10x20",
    lambda s: pair(orthogonal(Tower([12] + [20] * 10 + [3], nn.Tanh)), blobs(s, 12, 3, 64, 1.0)),
)


def orthogonal(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=1.1)
            nn.init.zeros_(module.bias)
    return model
