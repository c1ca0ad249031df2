# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons whose signal dies, grows, stops or is cut off, with their twins. Set aside."""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Setup, Zoo
from validation.evidence import activation_growth, both, gradient_ratio
from validation.evidence_training import diverges, trains
from validation.nets import Lambda, Tower, deep, gaussian_, he_, mlp, scale_, xavier_
from validation.nets_unseen import DeepSet, Tabular, TwoTower
from validation.setups import pair, rated
from validation.tasks import blobs, patches, regression
from validation.tasks_unseen import table, views

zoo = Zoo("mlp", proof=trains(lr=3e-3))
SHRINKS = gradient_ratio(below=10**-2.5)

# --- vanishing

softsign = zoo.healthy(
    "softsign-xavier-6x52", "tune", lambda s: pair(xavier_(deep(6, 52, nn.Softsign, 28, 7)), blobs(s, 28, 7))
)
zoo.sick(
    "softsign-default-20x52",
    "tune",
    lambda s: pair(deep(20, 52, nn.Softsign, 28, 7), blobs(s, 28, 7)),
    SHRINKS,
    "VANISHING",
    control=softsign,
)
mish = zoo.healthy(
    "mish-he-4x88-regression",
    "tune",
    lambda s: pair(he_(mlp([14] + [88] * 4 + [2], nn.Mish)), regression(s, 14, 2)),
    trains(lr=3e-3, steps=60),
)
zoo.sick(
    "mish-default-13x88-regression",
    "tune",
    lambda s: pair(mlp([14] + [88] * 13 + [2], nn.Mish), regression(s, 14, 2)),
    SHRINKS,
    "VANISHING",
    control=mish,
)
towers = zoo.healthy(
    "two-tower-retrieval",
    "tune",
    lambda s: pair(TwoTower([24, 48, 48, 16], [18, 40, 16]), views(s)),
    trains(lr=1e-2, steps=60),
)


def weak_tower(seed: int) -> Setup:
    model = TwoTower([24, 48, 48, 48, 16], [18, 40, 16], nn.LeakyReLU)
    scale_(model.query[4], 3e-5)
    return pair(model, views(seed))


zoo.sick(
    "two-tower-third-of-query-side-times-3e-5",
    "tune",
    weak_tower,
    gradient_ratio("query.2", "query.4", below=10**-2.5),
    "VANISHING",
    layer="query.4",
    control=towers,
)


def averaged_away(seed: int, divisor: float) -> Setup:
    """Divides by a count twice on the way, as a mean over rows that were a mean already."""
    model = he_(Tower([30, 60, 60, 60, 60, 60, 8], nn.SiLU, {2: Lambda(lambda x: x / divisor)}))
    return pair(model, blobs(seed, 30, 8, 96))


undivided = zoo.healthy("silu-he-5x60-tower", "tune", lambda s: averaged_away(s, 1.0))
zoo.sick(
    "silu-5x60-divided-by-5e4-behind-second",
    "tune",
    lambda s: averaged_away(s, 5e4),
    gradient_ratio("fc2", "fc3", below=10**-2.5),
    "VANISHING",
    layer=("after2", "fc2", "fc3"),
    control=undivided,
)

# --- exploding

selu = zoo.healthy(
    "selu-lecun-18x44", "tune", lambda s: pair(gaussian_(deep(18, 44, nn.SELU, 22, 9), 1.0), blobs(s, 22, 9))
)
zoo.sick(
    "selu-gain-3-18x44",
    "tune",
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
    "tune",
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


weight_norm = zoo.healthy("weight-norm-gelu-4x56", "tune", lambda s: weight_normed(s, 1.0))
zoo.sick(
    "weight-norm-4x56-second-gain-times-1e3",
    "tune",
    lambda s: weight_normed(s, 1e3),
    both(gradient_ratio("0", "2", above=100), activation_growth(100)),
    "EXPLODING",
    layer="2",
    also={"UNSTABLE"},
    control=weight_norm,
)
nesterov = zoo.healthy(
    "nesterov-0.05-deep-set",
    "tune",
    lambda s: rated(deep_set(), patches(s), "SGD", 0.05, 30, momentum=0.9, nesterov=True),
    trains(steps=60, fall=0.05),
)
zoo.sick(
    "nesterov-15-deep-set",
    "tune",
    lambda s: rated(deep_set(), patches(s), "SGD", 15.0, 20, momentum=0.9, nesterov=True),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    control=nesterov,
)
adagrad = zoo.healthy(
    "adagrad-0.02-tabular",
    "tune",
    lambda s: rated(tabular(), table(s), "Adagrad", 0.02, 30),
    trains(steps=60),
)
zoo.sick(
    "rmsprop-2-tabular",
    "tune",
    lambda s: rated(tabular(), table(s), "RMSprop", 2.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    control=adagrad,
)


def deep_set() -> DeepSet:
    return DeepSet([24, 40, 40], [40, 40, 6], nn.GELU)


def tabular(width: int = 10, **more) -> Tabular:
    return Tabular((40, 12), width, 8, [64, 48, 5], **more)
