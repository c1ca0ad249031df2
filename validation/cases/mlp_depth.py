# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons whose signal dies or grows with depth, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Setup, Zoo
from validation.cases.mlp_twins import gelu_4, relu_4, selu, tanh_16, towers
from validation.evidence import activation_growth, both, gradient_ratio, trains
from validation.nets import Lambda, Tower, TwoTower, deep, gaussian_, he_, mlp, xavier_
from validation.setups import pair, scaled
from validation.tasks import blobs, regression, views

SHRINKS = gradient_ratio(below=10**-2.5)
zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- vanishing

relu_12 = zoo.healthy("relu-he-12x64", lambda s: pair(he_(deep(12, 64)), blobs(s)), trains())
zoo.sick(
    "sigmoid-default-12x64", lambda s: pair(deep(12, 64, nn.Sigmoid), blobs(s)), SHRINKS, "VANISHING", control=relu_12
)
zoo.sick(
    "relu-default-20x64", lambda s: pair(deep(20, 64), blobs(s)), SHRINKS, "VANISHING", also={"DEAD"}, control=relu_4
)
zoo.sick(
    "relu-gain-0.7-20x64",  # the gradients of the weights are level here: only those of the activations fall
    lambda s: pair(gaussian_(deep(20, 64), 0.7), blobs(s)),
    SHRINKS,
    "VANISHING",
    also={"DEAD"},
    control=relu_12,
)
zoo.sick(
    "relu-he-7x64-fourth-layer-times-1e-4",
    lambda s: scaled(he_(deep(7, 64)), "6", 1e-4, blobs(s)),
    gradient_ratio("4", "6", below=10**-2.5),
    "VANISHING",
    layer="6",
    control=relu_12,
)
sigmoid_2 = zoo.healthy(
    "sigmoid-xavier-2x48", lambda s: pair(xavier_(deep(2, 48, nn.Sigmoid)), blobs(s)), trains(lr=1e-2)
)
zoo.sick(
    "sigmoid-xavier-7x48",
    lambda s: pair(xavier_(deep(7, 48, nn.Sigmoid)), blobs(s)),
    SHRINKS,
    "VANISHING",
    control=sigmoid_2,
)
zoo.sick(
    "tanh-default-24x96",
    lambda s: pair(Tower([40] + [96] * 24 + [6], nn.Tanh), blobs(s, 40, 6)),
    SHRINKS,
    "VANISHING",
    control=tanh_16,
)
zoo.sick(
    "gelu-default-14x80",
    lambda s: pair(deep(14, 80, nn.GELU, 20, 5), blobs(s, 20, 5)),
    SHRINKS,
    "VANISHING",
    control=gelu_4,
)


def tiny_uniform(seed: int):
    model = Tower([24] + [12] * 9 + [1], nn.Tanh)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.05, 0.05)
    return pair(model, regression(seed, 24))


zoo.sick("tanh-uniform-0.05-9x12", tiny_uniform, SHRINKS, "VANISHING", control=tanh_16)
softsign = zoo.healthy(
    "softsign-xavier-6x52", lambda s: pair(xavier_(deep(6, 52, nn.Softsign, 28, 7)), blobs(s, 28, 7))
)
zoo.sick(
    "softsign-default-20x52",
    lambda s: pair(deep(20, 52, nn.Softsign, 28, 7), blobs(s, 28, 7)),
    SHRINKS,
    "VANISHING",
    control=softsign,
)
mish = zoo.healthy(
    "mish-he-4x88-regression",
    lambda s: pair(he_(mlp([14] + [88] * 4 + [2], nn.Mish)), regression(s, 14, 2)),
    trains(lr=3e-3, steps=60),
)
zoo.sick(
    "mish-default-13x88-regression",
    lambda s: pair(mlp([14] + [88] * 13 + [2], nn.Mish), regression(s, 14, 2)),
    SHRINKS,
    "VANISHING",
    control=mish,
)
zoo.sick(
    "two-tower-third-of-query-side-times-3e-5",
    lambda s: scaled(TwoTower([24, 48, 48, 48, 16], [18, 40, 16], nn.LeakyReLU), "query.4", 3e-5, views(s)),
    gradient_ratio("query.2", "query.4", below=10**-2.5),
    "VANISHING",
    layer="query.4",
    control=towers,
)


def averaged_away(seed: int, divisor: float) -> Setup:
    """Divides by a count twice on the way, as a mean over rows that were a mean already."""
    model = he_(Tower([30, 60, 60, 60, 60, 60, 8], nn.SiLU, {2: Lambda(lambda x: x / divisor)}))
    return pair(model, blobs(seed, 30, 8, 96))


undivided = zoo.healthy("silu-he-5x60-tower", lambda s: averaged_away(s, 1.0))
zoo.sick(
    "silu-5x60-divided-by-5e4-behind-second",
    lambda s: averaged_away(s, 5e4),
    gradient_ratio("fc2", "fc3", below=10**-2.5),
    "VANISHING",
    layer=("after2", "fc2", "fc3"),
    control=undivided,
)

# --- exploding

zoo.sick(
    "relu-gain-3-12x64",
    lambda s: pair(gaussian_(deep(12, 64), 3), blobs(s)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    control=relu_12,
)
batch_norm_10 = zoo.healthy(
    "batch-norm-relu-10x64", lambda s: pair(deep(10, 64, norm=nn.BatchNorm1d), blobs(s)), trains()
)
zoo.sick(
    "batch-norm-relu-50x64",
    lambda s: pair(deep(50, 64, norm=nn.BatchNorm1d), blobs(s, batch=128)),
    gradient_ratio(above=100),
    "EXPLODING",
    control=batch_norm_10,
)
zoo.sick(
    "relu-he-8x64-fifth-layer-times-1e3",
    lambda s: scaled(he_(deep(8, 64)), "8", 1e3, blobs(s)),
    both(gradient_ratio("6", "8", above=100), activation_growth(100)),
    "EXPLODING",
    layer="8",
    also={"UNSTABLE"},
    control=relu_12,
)
relu_16 = zoo.healthy(
    "relu-he-16x96-tower", lambda s: pair(he_(Tower([32] + [96] * 16 + [12])), blobs(s, 32, 12)), trains()
)
zoo.sick(
    "relu-gain-2-16x96",
    lambda s: pair(gaussian_(Tower([32] + [96] * 16 + [12]), 2), blobs(s, 32, 12)),
    both(gradient_ratio(above=50), activation_growth(50)),
    "EXPLODING",
    control=relu_16,
)
zoo.sick(
    "tanh-gain-3-24x64",
    lambda s: pair(gaussian_(deep(24, 64, nn.Tanh), 3), blobs(s)),
    gradient_ratio(above=100),
    "EXPLODING",
    "SATURATION",
    control=tanh_16,
)
zoo.sick(
    "gelu-he-6x48-third-layer-times-2e3",
    lambda s: scaled(he_(Tower([20] + [48] * 6 + [5], nn.GELU)), "fc3", 2e3, blobs(s, 20, 5)),
    both(gradient_ratio("fc2", "fc3", above=100), activation_growth(100)),
    "EXPLODING",
    layer="fc3",
    also={"UNSTABLE"},
    control=gelu_4,
)
layer_norm_12 = zoo.healthy(
    "layer-norm-relu-12x64", lambda s: pair(deep(12, 64, norm=nn.LayerNorm), blobs(s)), trains()
)
zoo.sick(
    "batch-norm-relu-60x40",
    lambda s: pair(deep(60, 40, norm=nn.BatchNorm1d, dim=30, classes=4), blobs(s, 30, 4, 96)),
    gradient_ratio(above=100),
    "EXPLODING",
    control=layer_norm_12,
)
zoo.sick(
    "selu-gain-3-18x44",
    lambda s: pair(gaussian_(deep(18, 44, nn.SELU, 22, 9), 3.0), blobs(s, 22, 9)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE", "SATURATION"},
    control=selu,
)


@torch.no_grad()
def standard_normal(model: nn.Module) -> nn.Module:
    """Weights straight from `randn`, as one writes it by hand."""
    for parameter in model.parameters():
        parameter.normal_()
    return model


zoo.sick(
    "relu-randn-weights-6x128",
    lambda s: pair(standard_normal(mlp([26] + [128] * 6 + [5])), blobs(s, 26, 5, 64)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=undivided,
)


def weight_normed(seed: int, gain: float) -> Setup:
    model = he_(mlp([26, 56, 56, 56, 56, 6], nn.GELU))
    for i in (0, 2, 4, 6):
        nn.utils.parametrizations.weight_norm(model[i])
    with torch.no_grad():
        model[2].parametrizations.weight.original0.mul_(gain)
    return pair(model, blobs(seed, 26, 6))


weight_norm = zoo.healthy("weight-norm-gelu-4x56", lambda s: weight_normed(s, 1.0))
zoo.sick(
    "weight-norm-4x56-second-gain-times-1e3",
    lambda s: weight_normed(s, 1e3),
    both(gradient_ratio("0", "2", above=100), activation_growth(100)),
    "EXPLODING",
    layer="2",
    also={"UNSTABLE"},
    control=weight_norm,
)
