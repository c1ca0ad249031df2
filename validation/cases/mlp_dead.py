# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons with dead and cut places, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Zoo
from validation.cases.mlp_twins import adagrad, nesterov, relu_6, relu_8, towers
from validation.evidence import both, dead, learns_less, no_gradient, trains
from validation.labels import DEADENS
from validation.nets import DeepSet, Lambda, Tabular, Tower, TwoTower, constant_, deep, he_, mlp
from validation.setups import biased, pair, partly_dead
from validation.tasks import blobs, manifold, patches, regression, table, views

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- dead

zoo.sick(
    "relu-6x64-third-bias-minus-10",
    lambda s: biased(he_(deep(6, 64)), "4", -10, blobs(s)),
    dead("5", 0.99),
    "DEAD",
    layer="4",
    also=DEADENS,
    control=relu_6,
)
zoo.sick(
    "relu-6x64-60-percent-of-third-dead",
    lambda s: partly_dead(he_(deep(6, 64)), "4", 0.6, blobs(s)),
    dead("5", 0.55),
    "DEAD",
    layer="4",
    control=relu_6,
)
zoo.sick(
    "zero-init-4x64",
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


one_sigmoid = zoo.healthy("sigmoid-on-one-unit", lambda s: binary(s, mlp([32, 48, 48, 1]), nn.Sigmoid(), 32), trains())
zoo.sick(
    "softmax-over-one-unit",
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
    lambda s: burnt(s, he_(deep(5, 64)), blobs(s), 1.0, 40),
    dead("9", 0.6),
    "DEAD",
    also={"VANISHING", "DISCONNECTED", "EXPLODING"},
    control=relu_6,
)


def negative_weights(seed: int):
    """Behind a ReLU, a layer with only negative weights never fires."""
    model = he_(Tower([48] + [128] * 8 + [10]))
    with torch.no_grad():
        model.fc6.weight.copy_(-model.fc6.weight.abs())
    return pair(model, blobs(seed, 48, batch=128))


zoo.sick(
    "relu-8x128-sixth-all-negative",
    negative_weights,
    dead("act6", 0.99),
    "DEAD",
    layer="fc6",
    also=DEADENS,
    control=relu_8,
)
zoo.sick(
    "relu-5x96-75-percent-of-second-dead",
    lambda s: partly_dead(he_(Tower([20] + [96] * 5 + [5])), "fc2", 0.75, blobs(s, 20, 5)),
    dead("act2", 0.75),
    "DEAD",
    layer="fc2",
    control=relu_8,
)
zoo.sick(
    "relu-on-the-output-bias-minus-8",
    lambda s: biased(nn.Sequential(he_(mlp([24, 40, 40, 3], nn.Tanh)), nn.ReLU()), "0.4", -8, regression(s, 24, 3)),
    dead("1", 0.99),
    "DEAD",
    layer=("1", "0.4"),
    also=DEADENS,
    control=relu_8,
)
zoo.sick(
    "two-tower-first-of-item-side-bias-minus-14",
    lambda s: biased(TwoTower([24, 48, 48, 16], [18, 40, 16]), "item.0", -14, views(s)),
    both(dead("item.1", 0.99), no_gradient("item.0")),
    "DEAD",
    layer="item.0",
    also=DEADENS,
    control=towers,
)
normed = zoo.healthy(
    "layer-norm-relu-5x84-batch-4",
    lambda s: pair(deep(5, 84, dim=18, classes=4, norm=nn.LayerNorm), blobs(s, 18, 4, 4, 1.0)),
    trains(lr=1e-3, steps=80),
)
zoo.sick(
    "layer-norm-5x84-fourth-shift-minus-9",
    lambda s: biased(deep(5, 84, dim=18, classes=4, norm=nn.LayerNorm), "10", -9, blobs(s, 18, 4, 128)),
    both(dead("11", 0.99), no_gradient("0", "9")),
    "DEAD",
    layer=("9", "10"),
    also=DEADENS,
    control=normed,
)
zoo.sick(
    "deep-set-members-behind-a-threshold-of-40",
    lambda s: pair(DeepSet([24, 40, 40], [40, 40, 6], lambda: nn.Threshold(40.0, 0.0)), patches(s)),
    both(dead("each.1", 0.99), no_gradient("each.0")),
    "DEAD",
    layer="each.0",
    also=DEADENS,
    control=nesterov,
)
wide = zoo.healthy(
    "relu-he-3x200-batch-32",
    lambda s: pair(he_(mlp([50, 200, 200, 200, 20])), blobs(s, 50, 20, 32, 0.8)),
    trains(lr=1e-3),
)
zoo.sick(
    "relu-3x200-90-percent-of-last-hidden-dead",
    lambda s: partly_dead(he_(mlp([50, 200, 200, 200, 20])), "4", 0.9, blobs(s, 50, 20, 128, 0.8)),
    dead("5", 0.88),
    "DEAD",
    layer="4",
    control=wide,
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


quantised = zoo.healthy("straight-through-rounding-3x64", straight_through)
zoo.sick(
    "rounding-without-straight-through-3x64",
    rounded,
    no_gradient("fc1", "fc2"),
    "DISCONNECTED",
    "DEAD",
    layer=("fc2",),
    also={"VANISHING"},
    control=quantised,
)


class Sampler(nn.Module):
    """An encoder of a distribution, a draw from it, a decoder; `sample` lets no gradient through, `rsample` does."""

    def __init__(self, dim: int, latent: int, through: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([dim, 36, 2 * latent], nn.SiLU), mlp([latent, 36, dim], nn.SiLU)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        mean, log_std = self.encoder(x).chunk(2, dim=1)
        draw = torch.distributions.Normal(mean, (log_std - 2).exp())
        return self.decoder(draw.rsample() if self.through else draw.sample())


sampler = zoo.healthy("stochastic-autoencoder-rsample", lambda s: pair(Sampler(28, 8, True), manifold(s, 28, 5, 96)))
zoo.sick(
    "stochastic-autoencoder-without-rsample",
    lambda s: pair(Sampler(28, 8, False), manifold(s, 28, 5, 96)),
    no_gradient("encoder"),
    "DISCONNECTED",
    layer=("encoder.2", "encoder.0"),
    also={"DEAD"},
    control=sampler,
)


class Routed(nn.Module):
    """A gate weighs four branches; a hard one-hot choice gives it no gradient."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.gate, self.hard = nn.Linear(20, 4), hard
        self.branches = nn.ModuleList(he_(mlp([20, 32, 32])) for _ in range(4))
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(dim=1)
        if self.hard:
            share = nn.functional.one_hot(share.argmax(dim=1), 4).float()
        mixed = sum(share[:, i : i + 1] * branch(x) for i, branch in enumerate(self.branches))
        return self.head(torch.relu(mixed))


routed = zoo.healthy("soft-gate-over-4-branches", lambda s: pair(Routed(False), blobs(s, 20, 6)))
zoo.sick(
    "argmax-gate-over-4-branches",
    lambda s: pair(Routed(True), blobs(s, 20, 6)),
    no_gradient("gate"),
    "DISCONNECTED",
    layer="gate",
    also={"DEAD"},
    control=routed,
)
zoo.sick(
    "tabular-embeddings-through-numpy",
    lambda s: pair(Tabular(cut=True), table(s)),
    both(no_gradient("embeddings"), learns_less(steps=120, lr=1e-2, by=0.05)),
    "DISCONNECTED",
    layer=("embeddings.0", "embeddings.1"),
    also={"DEAD"},
    control=adagrad,
)
