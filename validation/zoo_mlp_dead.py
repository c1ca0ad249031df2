# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons with dead, cut and narrow places. Twins share a half."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Zoo
from validation.evidence import both, dead, no_gradient, rank_at_most
from validation.evidence_training import learns_less, trains
from validation.nets import Lambda, Tower, constant_, deep, he_, mlp, xavier_
from validation.setups import biased, pair, partly_dead
from validation.tasks import blobs, manifold, regression

zoo = Zoo("mlp")

# --- dead

relu_6 = zoo.healthy("relu-he-6x64", "tune", lambda s: pair(he_(deep(6, 64)), blobs(s)), trains())
zoo.sick(
    "relu-6x64-third-bias-minus-10",
    "tune",
    lambda s: biased(he_(deep(6, 64)), "4", -10, blobs(s)),
    dead("5", 0.99),
    "DEAD",
    layer="4",
    also={"DISCONNECTED", "VANISHING"},
    control=relu_6,
)


zoo.sick(
    "relu-6x64-60-percent-of-third-dead",
    "tune",
    lambda s: partly_dead(he_(deep(6, 64)), "4", 0.6, blobs(s)),
    dead("5", 0.55),
    "DEAD",
    layer="4",
    control=relu_6,
)
zoo.sick(
    "zero-init-4x64",
    "tune",
    lambda s: pair(constant_(deep(4, 64), 0), blobs(s)),
    no_gradient("0", "2", "4", "6", "8.weight"),
    "DEAD",
    "SYMMETRY",
    "VANISHING",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=relu_6,
)


def binary(seed: int, net: nn.Module, out: nn.Module, dim: int, target: float = 1.0):
    """Two classes with one output unit under a squared error."""
    task = blobs(seed, dim, 2).with_loss(lambda y, t: (y.squeeze(1) - target * t).square().mean())
    return pair(nn.Sequential(he_(net), out), task)


one_sigmoid = zoo.healthy(
    "sigmoid-on-one-unit", "tune", lambda s: binary(s, mlp([32, 48, 48, 1]), nn.Sigmoid(), 32), trains()
)
zoo.sick(
    "softmax-over-one-unit",
    "tune",
    lambda s: binary(s, mlp([32, 48, 48, 1]), nn.Softmax(dim=1), 32),
    no_gradient("0"),
    "DEAD",
    "SATURATION",
    "DISCONNECTED",
    "VANISHING",
    layer=("1", "0.4"),
    control=one_sigmoid,
)


def burnt(seed: int, model: nn.Module, task, lr: float, steps: int):
    """Trained too fast at first, so that ReLUs died; the rate is right now, but they stay dead."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss_fn(model(task.input_fn())).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
    return pair(model, task)


zoo.sick(
    "relu-5x64-burnt-by-a-high-rate",
    "tune",
    lambda s: burnt(s, he_(deep(5, 64)), blobs(s), 1.0, 40),
    dead("9", 0.6),
    "DEAD",
    also={"VANISHING", "DISCONNECTED", "EXPLODING"},
    control=relu_6,
)
relu_8 = zoo.healthy(
    "relu-he-8x128-tower",
    "tune",
    lambda s: pair(he_(Tower([48] + [128] * 8 + [10])), blobs(s, 48, batch=128)),
    trains(),
)


def negative_weights(seed: int):
    """Behind a ReLU, a layer with only negative weights never fires."""
    model = he_(Tower([48] + [128] * 8 + [10]))
    with torch.no_grad():
        model.fc6.weight.copy_(-model.fc6.weight.abs())
    return pair(model, blobs(seed, 48, batch=128))


zoo.sick(
    "relu-8x128-sixth-all-negative",
    "tune",
    negative_weights,
    dead("act6", 0.99),
    "DEAD",
    layer="fc6",
    also={"DISCONNECTED", "VANISHING"},
    control=relu_8,
)
zoo.sick(
    "relu-5x96-75-percent-of-second-dead",
    "tune",
    lambda s: partly_dead(he_(Tower([20] + [96] * 5 + [5])), "fc2", 0.75, blobs(s, 20, 5)),
    dead("act2", 0.75),
    "DEAD",
    layer="fc2",
    control=relu_8,
)
zoo.sick(
    "relu-on-the-output-bias-minus-8",
    "tune",
    lambda s: biased(nn.Sequential(he_(mlp([24, 40, 40, 3], nn.Tanh)), nn.ReLU()), "0.4", -8, regression(s, 24, 3)),
    dead("1", 0.99),
    "DEAD",
    layer=("1", "0.4"),
    also={"DISCONNECTED", "VANISHING"},
    control=relu_8,
)

# --- cut off


class Cut(nn.Module):
    """Where the graph is lost on the way."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def cut(seed: int):
    model = he_(deep(6, 64))
    model.insert(6, Cut())
    return pair(model, blobs(seed))


zoo.sick(
    "detach-behind-third-6x64",
    "tune",
    cut,
    no_gradient("0", "2", "4"),
    "DISCONNECTED",
    layer=("4", "6"),
    also={"DEAD"},
    control=relu_6,
)


class Forgotten(nn.Module):
    """Owns a layer that its forward does not call."""

    def __init__(self, body: nn.Module, extra: nn.Module) -> None:
        super().__init__()
        self.body, self.extra = body, extra

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


zoo.sick(
    "layer-never-called",
    "tune",
    lambda s: pair(Forgotten(he_(deep(3, 64)), nn.Linear(64, 64)), blobs(s)),
    no_gradient("extra"),
    "DISCONNECTED",
    layer="extra",
    also={"DEAD"},
    control=relu_6,
)


def rounded(seed: int):
    """Quantisation without a straight-through estimator: the slope is zero everywhere."""
    return pair(Tower([24, 64, 64, 64, 6], nn.Tanh, {2: Lambda(lambda x: torch.round(x * 8) / 8)}), blobs(seed, 24, 6))


def straight_through(seed: int):
    step = Lambda(lambda x: x + (torch.round(x * 8) / 8 - x).detach())
    return pair(Tower([24, 64, 64, 64, 6], nn.Tanh, {2: step}), blobs(seed, 24, 6))


quantised = zoo.healthy("straight-through-rounding-3x64", "tune", straight_through, trains(lr=3e-3))
zoo.sick(
    "rounding-without-straight-through-3x64",
    "tune",
    rounded,
    no_gradient("fc1", "fc2"),
    "DISCONNECTED",
    "DEAD",
    layer=("fc2",),
    also={"VANISHING"},
    control=quantised,
)

# --- narrow places

zoo.sick(
    "relu-6x64-third-width-2",
    "tune",
    lambda s: pair(he_(mlp([64, 64, 64, 2, 64, 64, 64, 10])), blobs(s)),
    both(rank_at_most("4", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="4",
    also={"LOW_RANK", "DEAD"},
    control=relu_6,
)
zoo.sick(
    "relu-6x64-fourth-width-1",
    "tune",
    lambda s: pair(he_(mlp([64, 64, 64, 64, 1, 64, 64, 10])), blobs(s)),
    both(rank_at_most("6", 1), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="6",
    also={"LOW_RANK", "DEAD", "VANISHING"},
    control=relu_6,
)
zoo.sick(
    "tanh-5x64-second-width-3-of-16-classes",
    "tune",
    lambda s: pair(xavier_(mlp([64, 64, 3, 64, 64, 64, 16], nn.Tanh)), blobs(s, classes=16)),
    both(rank_at_most("2", 3), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="2",
    also={"LOW_RANK"},
    control=relu_6,
)
roomy = zoo.healthy(
    "autoencoder-latent-8-of-4-factors",
    "tune",
    lambda s: pair(mlp([32, 24, 8, 24, 32], nn.ELU), manifold(s, 32, 4)),
    trains(lr=3e-3),
)
zoo.sick(
    "autoencoder-latent-2-of-4-factors",
    "tune",
    lambda s: pair(mlp([32, 24, 2, 24, 32], nn.ELU), manifold(s, 32, 4)),
    both(rank_at_most("2", 2), learns_less(steps=200, lr=1e-2)),
    "BOTTLENECK",
    layer="2",
    also={"LOW_RANK"},
    control=roomy,
)
gelu_tower = zoo.healthy(
    "gelu-he-4x72-tower",
    "tune",
    lambda s: pair(he_(Tower([40] + [72] * 4 + [12], nn.GELU)), blobs(s, 40, 12)),
    trains(),
)
zoo.sick(
    "gelu-4x72-second-width-1",
    "tune",
    lambda s: pair(he_(Tower([40, 72, 1, 72, 72, 12], nn.GELU)), blobs(s, 40, 12)),
    both(rank_at_most("fc2", 1), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="fc2",
    also={"LOW_RANK", "VANISHING"},
    control=gelu_tower,
)
zoo.sick(
    "tanh-7x56-fifth-width-3-of-20-classes",
    "tune",
    lambda s: pair(xavier_(Tower([40, 56, 56, 56, 56, 3, 56, 56, 20], nn.Tanh)), blobs(s, 40, 20)),
    both(rank_at_most("fc5", 3), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="fc5",
    also={"LOW_RANK"},
    control=gelu_tower,
)
latent_12 = zoo.healthy(
    "autoencoder-latent-12-of-6-factors",
    "tune",
    lambda s: pair(Tower([40, 32, 12, 32, 40], nn.Tanh), manifold(s, 40, 6)),
    trains(lr=3e-3, steps=60),
)
zoo.sick(
    "autoencoder-latent-1-of-6-factors",
    "tune",
    lambda s: pair(Tower([40, 32, 1, 32, 40], nn.Tanh), manifold(s, 40, 6)),
    both(rank_at_most("fc2", 1), learns_less(steps=200, lr=1e-2)),
    "BOTTLENECK",
    layer="fc2",
    also={"LOW_RANK"},
    control=latent_12,
)
