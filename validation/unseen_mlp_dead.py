# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons with dead and cut places, and their twins. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, dead, no_gradient
from validation.evidence_training import learns_less, trains
from validation.nets import deep, he_, mlp
from validation.nets_unseen import DeepSet, TwoTower
from validation.setups import pair, partly_dead
from validation.tasks import blobs, manifold, patches
from validation.tasks_unseen import table, views
from validation.unseen_mlp import adagrad, nesterov, tabular, towers

zoo = Zoo("mlp", proof=trains(lr=3e-3))

# --- dead


def silenced(model: nn.Module, path: str, value: float, task) -> Setup:
    nn.init.constant_(model.get_submodule(path).bias, value)
    return pair(model, task)


DIES = {"DISCONNECTED", "VANISHING"}
zoo.sick(
    "two-tower-first-of-item-side-bias-minus-14",
    "tune",
    lambda s: silenced(TwoTower([24, 48, 48, 16], [18, 40, 16]), "item.0", -14, views(s)),
    both(dead("item.1", 0.99), no_gradient("item.0")),
    "DEAD",
    layer="item.0",
    also=DIES,
    control=towers,
)
normed = zoo.healthy(
    "layer-norm-relu-5x84-batch-4",
    "tune",
    lambda s: pair(deep(5, 84, dim=18, classes=4, norm=nn.LayerNorm), blobs(s, 18, 4, 4, 1.0)),
    trains(lr=1e-3, steps=80),
)
zoo.sick(
    "layer-norm-5x84-fourth-shift-minus-9",
    "tune",
    lambda s: silenced(deep(5, 84, dim=18, classes=4, norm=nn.LayerNorm), "10", -9, blobs(s, 18, 4, 128)),
    both(dead("11", 0.99), no_gradient("0", "9")),
    "DEAD",
    layer=("9", "10"),
    also=DIES,
    control=normed,
)
zoo.sick(
    "deep-set-members-behind-a-threshold-of-40",
    "tune",
    lambda s: pair(DeepSet([24, 40, 40], [40, 40, 6], lambda: nn.Threshold(40.0, 0.0)), patches(s)),
    both(dead("each.1", 0.99), no_gradient("each.0")),
    "DEAD",
    layer="each.0",
    also=DIES,
    control=nesterov,
)
wide = zoo.healthy(
    "relu-he-3x200-batch-32",
    "tune",
    lambda s: pair(he_(mlp([50, 200, 200, 200, 20])), blobs(s, 50, 20, 32, 0.8)),
    trains(lr=1e-3),
)
zoo.sick(
    "relu-3x200-90-percent-of-last-hidden-dead",
    "tune",
    lambda s: partly_dead(he_(mlp([50, 200, 200, 200, 20])), "4", 0.9, blobs(s, 50, 20, 128, 0.8)),
    dead("5", 0.88),
    "DEAD",
    layer="4",
    control=wide,
)

# --- cut off


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


sampler = zoo.healthy(
    "stochastic-autoencoder-rsample", "tune", lambda s: pair(Sampler(28, 8, True), manifold(s, 28, 5, 96))
)
zoo.sick(
    "stochastic-autoencoder-without-rsample",
    "tune",
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


routed = zoo.healthy("soft-gate-over-4-branches", "tune", lambda s: pair(Routed(False), blobs(s, 20, 6)))
zoo.sick(
    "argmax-gate-over-4-branches",
    "tune",
    lambda s: pair(Routed(True), blobs(s, 20, 6)),
    no_gradient("gate"),
    "DISCONNECTED",
    layer="gate",
    also={"DEAD"},
    control=routed,
)
zoo.sick(
    "tabular-embeddings-through-numpy",
    "tune",
    lambda s: pair(tabular(cut=True), table(s)),
    both(no_gradient("embeddings"), learns_less(steps=120, lr=1e-2, by=0.05)),
    "DISCONNECTED",
    layer=("embeddings.0", "embeddings.1"),
    also={"DEAD"},
    control=adagrad,
)
