# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons whose signal dies, grows, stops, narrows or flattens, and their twins.

Half: holdout.
"""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Setup, Zoo
from validation.evidence.signal import (
    activation_growth,
    both,
    dead,
    equal_units,
    gradient_ratio,
    no_gradient,
    rank_at_most,
    saturated,
)
from validation.evidence.training import learns_less, trains
from validation.labels import DEADENS, NARROW, ONE_WAY
from validation.nets import Lambda, Tabular, Tower, constant_, deep, gaussian_, he_, mlp, xavier_
from validation.setups import biased, pair, partly_dead, scaled
from validation.tasks import blobs, manifold, regression, table

zoo = Zoo("mlp", half="holdout", proof=trains(lr=3e-3))


# --- dying and growing

hardswish = zoo.healthy("hardswish-he-5x72", lambda s: pair(he_(deep(5, 72, nn.Hardswish, 34, 6)), blobs(s, 34, 6, 80)))
zoo.sick(
    "hardswish-default-15x72",
    lambda s: pair(deep(15, 72, nn.Hardswish, 34, 6), blobs(s, 34, 6, 80)),
    gradient_ratio(below=10**-2.5),
    "VANISHING",
    control=hardswish,
)


def celu(seed: int, path: str = "0", factor: float = 1.0) -> Setup:
    return scaled(gaussian_(mlp([20] + [50] * 6 + [3], nn.CELU), 1.1), path, factor, regression(seed, 20, 3, 72))


celu_twin = zoo.healthy("celu-6x50-regression", celu, trains(lr=3e-3, steps=60))
zoo.sick(
    "celu-6x50-fourth-weight-times-2e-5",
    lambda s: celu(s, "6", 2e-5),
    gradient_ratio("4", "6", below=10**-2.5),
    "VANISHING",
    layer="6",
    control=celu_twin,
)
zoo.sick(
    "celu-6x50-second-weight-times-2e4",
    lambda s: celu(s, "2", 2e4),
    both(gradient_ratio("0", "2", above=100), activation_growth(100)),
    "EXPLODING",
    layer="2",
    also={"UNSTABLE", "SATURATION"},
    control=celu_twin,
)
leaky = zoo.healthy("leaky-he-13x38", lambda s: pair(he_(deep(13, 38, nn.LeakyReLU, 18, 4)), blobs(s, 18, 4, 60)))
zoo.sick(
    "leaky-gain-4-13x38",
    lambda s: pair(gaussian_(deep(13, 38, nn.LeakyReLU, 18, 4), 4.0), blobs(s, 18, 4, 60)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=leaky,
)

# --- dead and cut


def tower(depth: int, width: int, between: dict[int, nn.Module] | None = None) -> Tower:
    return he_(Tower([40] + [width] * depth + [9], nn.ReLU, between))


rectified = zoo.healthy("tower-relu-5x90", lambda s: pair(tower(5, 90), blobs(s, 40, 9, 200)))
zoo.sick(
    "tower-relu-5x90-second-bias-minus-35",
    lambda s: biased(tower(5, 90), "fc2", -35, blobs(s, 40, 9, 200)),
    both(dead("act2", 0.99), no_gradient("fc1", "fc2")),
    "DEAD",
    layer="fc2",
    also=DEADENS,
    control=rectified,
)
zoo.sick(
    "tower-relu-5x90-three-quarters-of-third-dead",
    lambda s: partly_dead(tower(5, 90), "fc3", 0.75, blobs(s, 40, 9, 200)),
    dead("act3", 0.72),
    "DEAD",
    layer="fc3",
    control=rectified,
)
zoo.sick(
    "tower-relu-5x90-detached-behind-fourth",
    lambda s: pair(tower(5, 90, {4: Lambda(torch.Tensor.detach)}), blobs(s, 40, 9, 200)),
    no_gradient("fc1", "fc4"),
    "DISCONNECTED",
    layer=("after4", "fc4"),
    also={"DEAD"},
    control=rectified,
)


class Forgotten(Tower):
    """Owns a second head that its forward never calls."""

    def __init__(self) -> None:
        super().__init__([40, 64, 64, 9], nn.GELU)
        self.second_head = nn.Linear(64, 9)
        self.depth = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run all but the second head."""
        return self.head(self.act2(self.fc2(self.act1(self.fc1(x)))))


zoo.sick(
    "tower-gelu-second-head-never-called",
    lambda s: pair(Forgotten(), blobs(s, 40, 9, 48)),
    no_gradient("second_head"),
    "DISCONNECTED",
    layer="second_head",
    also={"DEAD"},
    control=rectified,
)

# --- narrow

silu = zoo.healthy("silu-6x82-of-18-classes", lambda s: narrowed(s, 82))
zoo.sick(
    "silu-6x82-third-width-2-of-18-classes",
    lambda s: narrowed(s, 2),
    both(rank_at_most("4", 2), learns_less(by=0.12)),
    "BOTTLENECK",
    layer="4",
    also=NARROW,
    control=silu,
)


def narrowed(seed: int, width: int) -> Setup:
    model = he_(mlp([50, 82, 82, width, 82, 82, 82, 18], nn.SiLU))
    return pair(model, blobs(seed, 50, 18, 144, 0.8))


gelu_norm = zoo.healthy("gelu-norm-4x70-of-11-classes", lambda s: normed(s, 70))
zoo.sick(
    "gelu-norm-4x70-second-width-1-of-11-classes",
    lambda s: normed(s, 1),
    both(rank_at_most("2", 1), learns_less(by=0.12)),
    "BOTTLENECK",
    layer="2",
    also=NARROW,
    control=gelu_norm,
)


def normed(seed: int, width: int) -> Setup:
    layers = [nn.Linear(32, 70), nn.GELU(), nn.Linear(70, width), nn.Linear(width, 70), nn.LayerNorm(70), nn.GELU()]
    return pair(nn.Sequential(*layers, nn.Linear(70, 70), nn.GELU(), nn.Linear(70, 11)), blobs(seed, 32, 11, 120, 0.8))


wide_code = zoo.healthy(
    "tanh-autoencoder-code-10-of-8-factors",
    lambda s: pair(mlp([40, 36, 10, 36, 40], nn.Tanh), manifold(s, 40, 8, 96)),
    trains(lr=1e-2, steps=80),
)
zoo.sick(
    "tanh-autoencoder-code-1-of-8-factors",
    lambda s: pair(mlp([40, 36, 1, 36, 40], nn.Tanh), manifold(s, 40, 8, 96)),
    both(rank_at_most("2", 1), learns_less(steps=150, lr=1e-2)),
    "BOTTLENECK",
    layer="2",
    also=NARROW,
    control=wide_code,
)


def rows(seed: int, width: int) -> Setup:
    model = Tabular((30, 20, 9), 8, 6, [60, width, 60, 12], act=nn.GELU)
    return pair(model, table(seed, (30, 20, 9), 6, 12, 96))


rows_twin = zoo.healthy("tabular-three-columns-12-classes", lambda s: rows(s, 60), trains(lr=1e-2))
zoo.sick(
    "tabular-three-columns-body-through-width-1",
    lambda s: rows(s, 1),
    both(rank_at_most("body.2", 1), learns_less(lr=1e-2, by=0.12)),
    "BOTTLENECK",
    layer="body.2",
    also=NARROW,
    control=rows_twin,
)

# --- flat, equal, of one direction

tanh = zoo.healthy("tanh-xavier-4x58", lambda s: pair(flat_tanh(), blobs(s, 26, 7, 90, 0.8)))
sigmoid = zoo.healthy("sigmoid-gain-4-3x64", lambda s: pair(sigmoids(), blobs(s, 30, 5, 70, 1.0)), trains(lr=1e-2))


def flat_tanh() -> nn.Sequential:
    return xavier_(mlp([26, 58, 58, 58, 58, 7], nn.Tanh))


def sigmoids() -> Tower:
    return gaussian_(Tower([30, 64, 64, 64, 5], nn.Sigmoid), 4.0)


zoo.sick(
    "tanh-4x58-inputs-in-the-hundreds",
    lambda s: pair(flat_tanh(), blobs(s, 26, 7, 90, 0.8).mapped(lambda x: 400 * x)),
    saturated("1", "tanh", 0.95),
    "SATURATION",
    "VANISHING",
    layer="0",
    also={"EXPLODING", "UNSTABLE"},
    control=tanh,
)
zoo.sick(
    "sigmoid-3x64-second-bias-22-either-way",
    lambda s: biased(sigmoids(), "fc2", 22, blobs(s, 30, 5, 70, 1.0), sign=True),
    both(saturated("act2", "sigmoid", 0.95), learns_less(lr=1e-2, by=0.2)),
    "SATURATION",
    "DEAD",
    "VANISHING",
    layer="fc2",
    also={"LOW_RANK", "BOTTLENECK", "DISCONNECTED"},
    control=sigmoid,
)


@torch.no_grad()
def alike(model: nn.Sequential, *places: int) -> nn.Sequential:
    """All units of a layer, and what the next reads from them, start as copies of the first."""
    for i in places:
        model[i].weight.copy_(model[i].weight[:1].expand_as(model[i].weight).clone())
        model[i].bias.zero_()
        model[i + 2].weight.copy_(model[i + 2].weight[:, :1].expand_as(model[i + 2].weight).clone() / 8)
    return model


zoo.sick(
    "tanh-4x58-third-units-all-one",
    lambda s: pair(alike(flat_tanh(), 4), blobs(s, 26, 7, 90, 0.8)),
    equal_units("4.weight"),
    "SYMMETRY",
    layer="4",
    also={"LOW_RANK", "BOTTLENECK"},
    control=tanh,
)


def softplus_body(seed: int, value: float | None = None) -> Setup:
    """With the same value in every weight nothing tells the units of a layer apart."""
    model = mlp([22, 34, 34, 34, 4], nn.Softplus)
    return pair(model if value is None else constant_(model, value), blobs(seed, 22, 4, 64, 0.8))


softplus = zoo.healthy("softplus-default-3x34", softplus_body, trains(lr=1e-2, steps=60))
zoo.sick(
    "softplus-3x34-every-weight-0.05",
    lambda s: softplus_body(s, 0.05),
    both(equal_units("0.weight"), equal_units("2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=softplus,
)


@torch.no_grad()
def flattened(seed: int) -> Setup:
    """The fifth weight is a product of two vectors, of the same norm as before."""
    model = he_(mlp([50] + [82] * 6 + [18], nn.SiLU))
    weight = model[8].weight
    product = torch.randn(82, 1) @ torch.randn(1, 82)
    weight.copy_(product * weight.norm() / product.norm())
    return pair(model, blobs(seed, 50, 18, 144, 0.8))


zoo.sick(
    "silu-6x82-fifth-weight-of-rank-1",
    flattened,
    rank_at_most("8", 1.01),
    *ONE_WAY,
    layer="8",
    also={"SYMMETRY"},
    control=silu,
)
