# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons with narrow, flat and equal places, with their twins. Set aside."""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.evidence import both, equal_units, no_gradient, rank_at_most, saturated, share_dead, trace
from validation.evidence_training import learns_less, trains
from validation.nets import Tower, gaussian_, he_, mlp, xavier_
from validation.nets_unseen import DeepSet, Gated, TwoTower
from validation.setups import biased, pair
from validation.tasks import blobs, manifold, patches
from validation.tasks_unseen import table, views
from validation.unseen_mlp import adagrad, selu, tabular, towers

zoo = Zoo("mlp", proof=trains(lr=3e-3))

# --- narrow places

glu = zoo.healthy("glu-he-5x60", "tune", lambda s: pair(Gated([36] + [60] * 5 + [15]), blobs(s, 36, 15)))
zoo.sick(
    "glu-5x60-fourth-width-2-of-15-classes",
    "tune",
    lambda s: pair(Gated([36, 60, 60, 60, 2, 60, 15]), blobs(s, 36, 15)),
    both(rank_at_most("glus.3", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="layers.3",
    also={"LOW_RANK"},
    control=glu,
)
elu = zoo.healthy(
    "elu-3x66-of-12-classes", "tune", lambda s: pair(xavier_(mlp([44, 66, 66, 66, 12], nn.ELU)), blobs(s, 44, 12))
)
zoo.sick(
    "elu-3x66-first-width-2-of-12-classes",
    "tune",
    lambda s: pair(xavier_(mlp([44, 2, 66, 66, 12], nn.ELU)), blobs(s, 44, 12)),
    both(rank_at_most("0", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="0",
    also={"LOW_RANK"},
    control=elu,
)
zoo.sick(
    "elu-4x66-last-hidden-width-1-of-12-classes",
    "tune",
    lambda s: pair(xavier_(mlp([44, 66, 66, 66, 1, 12], nn.ELU)), blobs(s, 44, 12)),
    both(rank_at_most("6", 1), learns_less(by=0.15)),
    "BOTTLENECK",
    layer="6",
    also={"LOW_RANK"},
    control=elu,
)
zoo.sick(
    "two-tower-items-through-width-1",
    "tune",
    lambda s: pair(TwoTower([24, 48, 48, 16], [18, 40, 1, 40, 16], nn.LeakyReLU), views(s)),
    both(rank_at_most("item.2", 1), learns_less(lr=1e-2, by=0.15)),
    "BOTTLENECK",
    layer="item.2",
    also={"LOW_RANK", "VANISHING"},
    control=towers,
)
pooled = zoo.healthy(
    "deep-set-silu-20-members",
    "tune",
    lambda s: pair(DeepSet([24, 44, 44], [44, 44, 12], nn.SiLU), patches(s, 20, 24, 12, 32)),
    trains(lr=1e-2),
)
zoo.sick(
    "deep-set-pooled-through-width-1",
    "tune",
    lambda s: pair(DeepSet([24, 44, 1], [1, 44, 12], nn.SiLU), patches(s, 20, 24, 12, 32)),
    both(rank_at_most("joint.0", 1.01), learns_less(lr=1e-2, by=0.1)),
    "BOTTLENECK",
    layer="each.2",
    also={"LOW_RANK", "VANISHING"},
    control=pooled,
)
latent = zoo.healthy(
    "denoising-autoencoder-latent-12-of-10-factors",
    "tune",
    lambda s: pair(mlp([48, 40, 12, 40, 48], nn.GELU), manifold(s, 48, 10).mapped(noisy)),
    trains(lr=1e-2, steps=80),
)
zoo.sick(
    "denoising-autoencoder-latent-2-of-10-factors",
    "tune",
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
    "tune",
    outer,
    rank_at_most("4", 1.01),
    "LOW_RANK",
    "BOTTLENECK",
    layer="4",
    also={"SYMMETRY"},
    control=selu,
)

# --- saturated


def timestamps(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """One of the numbers is a time in seconds since 1970, within a month."""
    categories, values = batch
    values = values.clone()
    values[:, 3] = 1.7e9 + 8e5 * values[:, 3]
    return categories, values


tabular_tanh = zoo.healthy("tabular-tanh", "tune", lambda s: pair(tabular(act=nn.Tanh), table(s)), trains(lr=1e-2))
zoo.sick(
    "tabular-tanh-with-raw-timestamps",
    "tune",
    lambda s: pair(tabular(act=nn.Tanh), table(s).mapped(timestamps)),
    both(saturated("body.1", "tanh", 0.99), learns_less(lr=1e-2, by=0.1)),
    "SATURATION",
    "VANISHING",
    layer="body.0",
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "EXPLODING"},
    control=tabular_tanh,
)
relu6 = zoo.healthy(
    "relu6-he-6x70", "tune", lambda s: pair(he_(Tower([16] + [70] * 6 + [5], nn.ReLU6)), blobs(s, 16, 5, 100))
)
zoo.sick(
    "relu6-6x70-fifth-bias-40",
    "tune",
    lambda s: biased(he_(Tower([16] + [70] * 6 + [5], nn.ReLU6)), "fc5", 40, blobs(s, 16, 5, 100)),
    both(saturated("act5", "relu6", 0.99), no_gradient("fc1", "fc5")),
    "SATURATION",
    "DEAD",
    layer="fc5",
    also={"VANISHING", "DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=relu6,
)


@torch.no_grad()
def shut(seed: int) -> Setup:
    """The gates of the second unit start at sigmoid(-60)."""
    model = Gated([36] + [60] * 4 + [15])
    model.layers[1].bias[60:] = -60
    return pair(model, blobs(seed, 36, 15))


def nothing_passes(case: Case, seed: int) -> Evidence:
    outputs = trace(case.make(seed)).outputs
    largest = outputs["glus.1"].abs().max().item()
    return Evidence(
        largest < 1e-18, f"largest output of the gated unit {largest:.1e}, dead {share_dead(outputs['head']):.0%}"
    )


zoo.sick(
    "glu-4x60-second-gates-shut",
    "tune",
    shut,
    both(nothing_passes, learns_less(by=0.15)),
    "SATURATION",
    "DEAD",
    "VANISHING",
    layer="layers.1",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=glu,
)

# --- the same in every unit


@torch.no_grad()
def one_over_fan_in(model: nn.Module, *paths: str) -> nn.Module:
    """Weights of 1 / fan-in, which keeps the mean and makes all units one."""
    for path in paths:
        layer = model.get_submodule(path)
        layer.weight.fill_(1 / layer.in_features)
        layer.bias.zero_()
    return model


zoo.sick(
    "tabular-body-of-one-over-fan-in",
    "tune",
    lambda s: pair(one_over_fan_in(tabular(act=nn.SiLU), "body.0", "body.2", "body.4"), table(s)),
    both(equal_units("body.0.weight"), equal_units("body.2.weight")),
    "SYMMETRY",
    layer=("body.0", "body.2"),
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=adagrad,
)
zoo.sick(
    "deep-set-members-encoded-by-equal-units",
    "tune",
    lambda s: pair(
        one_over_fan_in(DeepSet([24, 44, 44], [44, 44, 12], nn.Softplus), "each.0", "each.2"),
        patches(s, 20, 24, 12, 32),
    ),
    equal_units("each.0.weight"),
    "SYMMETRY",
    layer=("each.0", "each.2"),
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=pooled,
)
