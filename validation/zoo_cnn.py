# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks with faults, and their healthy twins."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import (
    activation_growth,
    both,
    dead,
    equal_units,
    gradient_ratio,
    no_gradient,
    not_finite,
    rank_at_most,
    saturated,
)
from validation.evidence_training import diverges, does_not_move, gradient_norms_spread, learns_less, trains
from validation.nets import ConvNet, gaussian_, he_, mlp, scale_, xavier_
from validation.setups import biased, pair, partly_dead, rated
from validation.tasks import Task, images

zoo = Zoo("cnn")
SHRINKS = gradient_ratio(below=10**-2.5)


def plain(depth: int, width: int, act=nn.ReLU, **more) -> ConvNet:
    return ConvNet([3] + [width] * depth, act=act, **more)


# --- vanishing and exploding

he_5 = zoo.healthy("relu-he-5x16", "tune", lambda s: pair(he_(plain(5, 16)), images(s)), trains(lr=3e-3, steps=30))
zoo.sick(
    "relu-default-14x12",
    "tune",
    lambda s: pair(plain(14, 12), images(s, size=8)),
    SHRINKS,
    "VANISHING",
    also={"DEAD"},
    control=he_5,
)
pooled = zoo.healthy(
    "max-pool-relu-4x20",
    "tune",
    lambda s: pair(he_(ConvNet([1, 20, 20, 20, 20], 5, pool=(1, 2))), images(s, 1, 16, 5)),
    trains(lr=3e-3, steps=30),
)
zoo.sick(
    "sigmoid-xavier-8x16",
    "tune",
    lambda s: pair(xavier_(ConvNet([1] + [16] * 8, 5, nn.Sigmoid, pool=(3,))), images(s, 1, 12, 5)),
    SHRINKS,
    "VANISHING",
    control=pooled,
)


def scaled_conv(model: ConvNet, layer: int, factor: float, task: Task) -> Setup:
    scale_(he_(model).convs[layer], factor)
    return pair(model, task)


zoo.sick(
    "leaky-6x16-fifth-conv-times-1e-4",
    "tune",
    lambda s: scaled_conv(ConvNet([1] + [16] * 6, 5, nn.LeakyReLU), 4, 1e-4, images(s, 1, 10, 5)),
    gradient_ratio("convs.3", "convs.4", below=10**-2.5),
    "VANISHING",
    layer="convs.4",
    control=pooled,
)
zoo.sick(
    "relu-gain-4-8x16",
    "tune",
    lambda s: pair(gaussian_(plain(8, 16), 4), images(s, size=8)),
    both(gradient_ratio(above=100), activation_growth(30)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=he_5,
)
zoo.sick(
    "relu-he-5x16-second-conv-times-3e3",
    "tune",
    lambda s: scaled_conv(ConvNet([1] + [16] * 5, 5), 1, 3e3, images(s, 1, 10, 5)),
    both(gradient_ratio("convs.0", "convs.1", above=100), activation_growth(30)),
    "EXPLODING",
    layer="convs.1",
    also={"UNSTABLE"},
    control=pooled,
)

# --- dead, saturated, symmetric

zoo.sick(
    "relu-5x16-second-bias-minus-20",
    "tune",
    lambda s: biased(he_(plain(5, 16)), "convs.1", -20, images(s)),
    dead("acts.1", 0.99),
    "DEAD",
    layer="convs.1",
    also={"DISCONNECTED", "VANISHING"},
    control=he_5,
)
zoo.sick(
    "relu-4x24-two-thirds-of-third-channels-dead",
    "tune",
    lambda s: partly_dead(he_(ConvNet([1, 24, 24, 24, 24], 5)), "convs.2", 0.67, images(s, 1, 10, 5)),
    dead("acts.2", 0.65),
    "DEAD",
    layer="convs.2",
    control=pooled,
)
zoo.sick(
    "zero-init-head-and-convs",
    "tune",
    lambda s: pair(zeroed(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5)),
    no_gradient("convs", "head.weight"),
    "DEAD",
    "SYMMETRY",
    "VANISHING",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=pooled,
)


def zeroed(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


zoo.sick(
    "sigmoid-4x16-second-bias-10",
    "tune",
    lambda s: biased(xavier_(plain(4, 16, nn.Sigmoid)), "convs.1", 10, images(s)),
    saturated("acts.1", "sigmoid", 0.95),
    "SATURATION",
    layer="convs.1",
    also={"VANISHING", "DEAD"},
    control=he_5,
)
zoo.sick(
    "tanh-3x20-pixels-0-to-255-squared",
    "tune",
    lambda s: pair(
        xavier_(ConvNet([1, 20, 20, 20], 5, nn.Tanh)), images(s, 1, 10, 5).mapped(lambda x: (x * 60).square())
    ),
    saturated("acts.0", "tanh", 0.9),
    "SATURATION",
    layer="convs.0",
    also={"VANISHING"},
    control=pooled,
)


@torch.no_grad()
def equal_channels(model: ConvNet) -> ConvNet:
    """Every channel of a layer starts with the same kernel."""
    for conv in model.convs:
        # Equal inputs add up in step, so the usual scale would saturate what follows.
        conv.weight.copy_(conv.weight[:1, :1].expand_as(conv.weight) / conv.in_channels**0.5)
        conv.bias.zero_()
    model.head.weight.copy_(model.head.weight[:, :1].expand_as(model.head.weight))
    return model


zoo.sick(
    "equal-channels-4x16",
    "tune",
    lambda s: pair(equal_channels(he_(plain(4, 16, nn.Tanh))), images(s)),
    both(equal_units("convs.0.weight"), equal_units("convs.2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "EXPLODING", "VANISHING"},
    control=he_5,
)

# --- cut, narrow, not finite


class Backbone(nn.Module):
    """Features that reach the classifier with or without their history."""

    def __init__(self, features: ConvNet, classifier: nn.Module, cut: bool) -> None:
        super().__init__()
        self.trunk, self.cut, self.classifier = features, cut, classifier

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        return self.classifier(h.detach() if self.cut else h)


zoo.sick(
    "trunk-detached-from-classifier",
    "tune",
    lambda s: pair(Backbone(he_(ConvNet([1, 16, 16], 24)), mlp([24, 24, 5]), True), images(s, 1, 10, 5)),
    no_gradient("trunk"),
    "DISCONNECTED",
    layer=("trunk.head", "classifier.0"),
    also={"DEAD"},
    control=pooled,
)
zoo.sick(
    "classifier-through-width-2",
    "tune",
    lambda s: pair(Backbone(he_(ConvNet([1, 24, 24, 24], 2)), he_(mlp([2, 32, 10])), False), images(s, 1, 10, 10)),
    both(rank_at_most("trunk.head", 2, 8), learns_less(lr=3e-3, steps=40, by=0.1)),
    "BOTTLENECK",
    layer="trunk.head",
    also={"LOW_RANK", "DEAD"},
    control=pooled,
)


def with_nan(model: ConvNet, layer: int, task: Task) -> Setup:
    with torch.no_grad():
        model.convs[layer].weight[2, 0, 1, 1] = float("nan")
    return pair(model, task)


zoo.sick(
    "nan-in-third-kernel",
    "tune",
    lambda s: with_nan(he_(ConvNet([1] + [12] * 5, 5)), 2, images(s, 1, 8, 5)),
    not_finite(),
    "NUMERICAL",
    layer="convs.2",
    control=pooled,
)


def half(seed: int, dtype: torch.dtype, scale: float) -> Setup:
    """A loss scale may be too large for the type: then the forward pass is fine and gradients overflow."""
    task = images(seed, size=6).mapped(lambda x: x.to(dtype))
    return pair(he_(plain(3, 8)).to(dtype), task.with_loss(lambda y, t: F.cross_entropy(y.float(), t) * scale))


bfloat = zoo.healthy("bfloat16-loss-scale-1024", "tune", lambda s: half(s, torch.bfloat16, 1024), trains(lr=1e-2))
zoo.sick(
    "float16-loss-scale-too-large",
    "tune",
    lambda s: half(s, torch.float16, 2**23),
    not_finite(batches=4, forward=False),
    "NUMERICAL",
    "EXPLODING",
    control=bfloat,
)

# --- rates and instability

momentum = zoo.healthy(
    "sgd-0.02-momentum-0.9",
    "tune",
    lambda s: rated(he_(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5), "SGD", 0.02, 25, momentum=0.9),
    trains(steps=40, fall=0.05),
)
zoo.sick(
    "sgd-0.5-momentum-0.9-hot-input",
    "tune",
    lambda s: rated(
        he_(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5).mapped(lambda x: x * 10), "SGD", 0.5, 25, momentum=0.9
    ),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    control=momentum,
)
zoo.sick(
    "sgd-1e-9",
    "tune",
    lambda s: rated(he_(ConvNet([1, 16, 16, 16], 5)), images(s, 1, 10, 5), "SGD", 1e-9, 20, momentum=0.9),
    does_not_move(),
    "SLOW",
    control=momentum,
)
zoo.sick(
    "adam-3",
    "tune",
    lambda s: rated(he_(plain(4, 16)), images(s, size=8), "Adam", 3.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={"DEAD", "NUMERICAL"},
    control=he_5,
)


def glitches(seed: int, every: int, size: float) -> Setup:
    """Some batches are brighter by orders of magnitude, as from a broken loader."""
    count = iter(range(10**9))
    task = images(seed, size=8).mapped(lambda x: x * (size if next(count) % every == every - 3 else 1))
    return pair(he_(plain(3, 16)), task, steps=40)


zoo.sick(
    "every-ninth-batch-times-100",
    "tune",
    lambda s: glitches(s, 9, 100.0),
    gradient_norms_spread(50),
    "UNSTABLE",
    "EXPLODING",
    control=he_5,
)
