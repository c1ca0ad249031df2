# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons with narrow places, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Setup, Zoo
from validation.cases.mlp_twins import relu_6, selu, towers
from validation.evidence import both, learns_less, rank_at_most, trains
from validation.labels import ONE_WAY
from validation.nets import DeepSet, Gated, Tower, TwoTower, gaussian_, he_, mlp, xavier_
from validation.setups import pair
from validation.tasks import blobs, manifold, patches, views

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- narrow layers

zoo.sick(
    "relu-6x64-third-width-2",
    lambda s: pair(he_(mlp([64, 64, 64, 2, 64, 64, 64, 10])), blobs(s)),
    both(rank_at_most("4", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="4",
    also={"LOW_RANK", "DEAD"},
    control=relu_6,
)
zoo.sick(
    "relu-6x64-fourth-width-1",
    lambda s: pair(he_(mlp([64, 64, 64, 64, 1, 64, 64, 10])), blobs(s)),
    both(rank_at_most("6", 1), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="6",
    also={"LOW_RANK", "DEAD", "VANISHING"},
    control=relu_6,
)
zoo.sick(
    "tanh-5x64-second-width-3-of-16-classes",
    lambda s: pair(xavier_(mlp([64, 64, 3, 64, 64, 64, 16], nn.Tanh)), blobs(s, classes=16)),
    both(rank_at_most("2", 3), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="2",
    also={"LOW_RANK"},
    control=relu_6,
)
roomy = zoo.healthy(
    "autoencoder-latent-8-of-4-factors", lambda s: pair(mlp([32, 24, 8, 24, 32], nn.ELU), manifold(s, 32, 4))
)
zoo.sick(
    "autoencoder-latent-2-of-4-factors",
    lambda s: pair(mlp([32, 24, 2, 24, 32], nn.ELU), manifold(s, 32, 4)),
    both(rank_at_most("2", 2), learns_less(steps=200, lr=1e-2)),
    "BOTTLENECK",
    layer="2",
    also={"LOW_RANK"},
    control=roomy,
)
gelu_tower = zoo.healthy(
    "gelu-he-4x72-tower", lambda s: pair(he_(Tower([40] + [72] * 4 + [12], nn.GELU)), blobs(s, 40, 12)), trains()
)
zoo.sick(
    "gelu-4x72-second-width-1",
    lambda s: pair(he_(Tower([40, 72, 1, 72, 72, 12], nn.GELU)), blobs(s, 40, 12)),
    both(rank_at_most("fc2", 1), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="fc2",
    also={"LOW_RANK", "VANISHING"},
    control=gelu_tower,
)
zoo.sick(
    "tanh-7x56-fifth-width-3-of-20-classes",
    lambda s: pair(xavier_(Tower([40, 56, 56, 56, 56, 3, 56, 56, 20], nn.Tanh)), blobs(s, 40, 20)),
    both(rank_at_most("fc5", 3), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="fc5",
    also={"LOW_RANK"},
    control=gelu_tower,
)
latent_12 = zoo.healthy(
    "autoencoder-latent-12-of-6-factors",
    lambda s: pair(Tower([40, 32, 12, 32, 40], nn.Tanh), manifold(s, 40, 6)),
    trains(lr=3e-3, steps=60),
)
zoo.sick(
    "autoencoder-latent-1-of-6-factors",
    lambda s: pair(Tower([40, 32, 1, 32, 40], nn.Tanh), manifold(s, 40, 6)),
    both(rank_at_most("fc2", 1), learns_less(steps=200, lr=1e-2)),
    "BOTTLENECK",
    layer="fc2",
    also={"LOW_RANK"},
    control=latent_12,
)
glu = zoo.healthy("glu-he-5x60", lambda s: pair(Gated([36] + [60] * 5 + [15]), blobs(s, 36, 15)))
zoo.sick(
    "glu-5x60-fourth-width-2-of-15-classes",
    lambda s: pair(Gated([36, 60, 60, 60, 2, 60, 15]), blobs(s, 36, 15)),
    both(rank_at_most("glus.3", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="layers.3",
    also={"LOW_RANK"},
    control=glu,
)
elu = zoo.healthy(
    "elu-3x66-of-12-classes", lambda s: pair(xavier_(mlp([44, 66, 66, 66, 12], nn.ELU)), blobs(s, 44, 12))
)
zoo.sick(
    "elu-3x66-first-width-2-of-12-classes",
    lambda s: pair(xavier_(mlp([44, 2, 66, 66, 12], nn.ELU)), blobs(s, 44, 12)),
    both(rank_at_most("0", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="0",
    also={"LOW_RANK"},
    control=elu,
)
zoo.sick(
    "elu-4x66-last-hidden-width-1-of-12-classes",
    lambda s: pair(xavier_(mlp([44, 66, 66, 66, 1, 12], nn.ELU)), blobs(s, 44, 12)),
    both(rank_at_most("6", 1), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="6",
    also={"LOW_RANK"},
    control=elu,
)
zoo.sick(
    "two-tower-items-through-width-1",
    lambda s: pair(TwoTower([24, 48, 48, 16], [18, 40, 1, 40, 16], nn.LeakyReLU), views(s)),
    both(rank_at_most("item.2", 1), learns_less(lr=1e-2, by=0.15)),
    "BOTTLENECK",
    layer="item.2",
    also={"LOW_RANK", "VANISHING"},
    control=towers,
)
pooled = zoo.healthy(
    "deep-set-silu-20-members",
    lambda s: pair(DeepSet([24, 44, 44], [44, 44, 12], nn.SiLU), patches(s, 20, 24, 12, 32)),
    trains(lr=1e-2),
)
zoo.sick(
    "deep-set-pooled-through-width-1",
    lambda s: pair(DeepSet([24, 44, 1], [1, 44, 12], nn.SiLU), patches(s, 20, 24, 12, 32)),
    both(rank_at_most("joint.0", 1.01), learns_less(lr=1e-2, by=0.1)),
    "BOTTLENECK",
    layer="each.2",
    also={"LOW_RANK", "VANISHING"},
    control=pooled,
)
latent = zoo.healthy(
    "denoising-autoencoder-latent-12-of-10-factors",
    lambda s: pair(mlp([48, 40, 12, 40, 48], nn.GELU), manifold(s, 48, 10).mapped(noisy)),
    trains(lr=1e-2, steps=80),
)
zoo.sick(
    "denoising-autoencoder-latent-2-of-10-factors",
    lambda s: pair(mlp([48, 40, 2, 40, 48], nn.GELU), manifold(s, 48, 10).mapped(noisy)),
    both(rank_at_most("2", 2), learns_less(steps=200, lr=1e-2)),
    "BOTTLENECK",
    layer="2",
    also={"LOW_RANK"},
    control=latent,
)


def noisy(x: torch.Tensor) -> torch.Tensor:
    # A fixed pattern of gaps: the same whoever draws.
    return x * (torch.arange(x.shape[1]) % 5 != 0)


# --- a wide layer that hands on one direction


@torch.no_grad()
def outer(seed: int) -> Setup:
    """The third weight starts as a product of two vectors."""
    model = gaussian_(mlp([22] + [64] * 5 + [14], nn.SELU), 1.0)
    model[4].weight.copy_(torch.randn(64, 1) @ torch.randn(1, 64) / 8)
    return pair(model, blobs(seed, 22, 14))


zoo.sick(
    "selu-5x64-third-weight-of-rank-1",
    outer,
    rank_at_most("4", 1.01),
    *ONE_WAY,
    layer="4",
    also={"SYMMETRY"},
    control=selu,
)
