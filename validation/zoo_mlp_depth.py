# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons whose signal dies, grows, saturates or is the same in every unit. Twins share a half."""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Case, Evidence, Zoo
from validation.evidence import activation_growth, both, equal_units, gradient_ratio, saturated, size, trace
from validation.evidence_training import learns_less, trains
from validation.nets import Tower, constant_, deep, gaussian_, he_, mlp, scale_, xavier_
from validation.setups import biased, pair
from validation.tasks import blobs, manifold, regression

zoo = Zoo("mlp")
SHRINKS = gradient_ratio(below=10**-2.5)

# --- vanishing over depth

relu_12 = zoo.healthy("relu-he-12x64", "tune", lambda s: pair(he_(deep(12, 64)), blobs(s)), trains())
zoo.sick(
    "sigmoid-default-12x64",
    "tune",
    lambda s: pair(deep(12, 64, nn.Sigmoid), blobs(s)),
    SHRINKS,
    "VANISHING",
    control=relu_12,
)
relu_4 = zoo.healthy("relu-default-4x64", "tune", lambda s: pair(deep(4, 64), blobs(s)), trains(lr=3e-3))
zoo.sick(
    "relu-default-20x64",
    "tune",
    lambda s: pair(deep(20, 64), blobs(s)),
    SHRINKS,
    "VANISHING",
    also={"DEAD"},
    control=relu_4,
)
zoo.sick(
    "relu-gain-0.7-20x64",  # the gradients of the weights are level here: only those of the activations fall
    "tune",
    lambda s: pair(gaussian_(deep(20, 64), 0.7), blobs(s)),
    SHRINKS,
    "VANISHING",
    also={"DEAD"},
    control=relu_12,
)


def tiny_fourth(seed: int):
    model = he_(deep(7, 64))
    scale_(model[6], 1e-4)
    return pair(model, blobs(seed))


zoo.sick(
    "relu-he-7x64-fourth-layer-times-1e-4",
    "tune",
    tiny_fourth,
    gradient_ratio("4", "6", below=10**-2.5),
    "VANISHING",
    layer="6",
    control=relu_12,
)

sigmoid_2 = zoo.healthy(
    "sigmoid-xavier-2x48", "tune", lambda s: pair(xavier_(deep(2, 48, nn.Sigmoid)), blobs(s)), trains(lr=1e-2)
)
zoo.sick(
    "sigmoid-xavier-7x48",
    "tune",
    lambda s: pair(xavier_(deep(7, 48, nn.Sigmoid)), blobs(s)),
    SHRINKS,
    "VANISHING",
    control=sigmoid_2,
)
tanh_16 = zoo.healthy(
    "tanh-xavier-16x96",
    "tune",
    lambda s: pair(xavier_(Tower([40] + [96] * 16 + [6], nn.Tanh)), blobs(s, 40, 6)),
    trains(),
)
zoo.sick(
    "tanh-default-24x96",
    "tune",
    lambda s: pair(Tower([40] + [96] * 24 + [6], nn.Tanh), blobs(s, 40, 6)),
    SHRINKS,
    "VANISHING",
    control=tanh_16,
)
gelu_4 = zoo.healthy(
    "gelu-default-4x80", "tune", lambda s: pair(deep(4, 80, nn.GELU, 20, 5), blobs(s, 20, 5)), trains(lr=3e-3)
)
zoo.sick(
    "gelu-default-14x80",
    "tune",
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


zoo.sick("tanh-uniform-0.05-9x12", "tune", tiny_uniform, SHRINKS, "VANISHING", control=tanh_16)

# --- exploding over depth

zoo.sick(
    "relu-gain-3-12x64",
    "tune",
    lambda s: pair(gaussian_(deep(12, 64), 3), blobs(s)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    control=relu_12,
)
batch_norm_10 = zoo.healthy(
    "batch-norm-relu-10x64", "tune", lambda s: pair(deep(10, 64, norm=nn.BatchNorm1d), blobs(s)), trains()
)
zoo.sick(
    "batch-norm-relu-50x64",
    "tune",
    lambda s: pair(deep(50, 64, norm=nn.BatchNorm1d), blobs(s, batch=128)),
    gradient_ratio(above=100),
    "EXPLODING",
    control=batch_norm_10,
)


def huge_layer(model: nn.Module, path: str, factor: float, task):
    scale_(he_(model).get_submodule(path), factor)
    return pair(model, task)


zoo.sick(
    "relu-he-8x64-fifth-layer-times-1e3",
    "tune",
    lambda s: huge_layer(deep(8, 64), "8", 1e3, blobs(s)),
    both(gradient_ratio("6", "8", above=100), activation_growth(100)),
    "EXPLODING",
    layer="8",
    also={"UNSTABLE"},
    control=relu_12,
)
relu_16 = zoo.healthy(
    "relu-he-16x96-tower", "tune", lambda s: pair(he_(Tower([32] + [96] * 16 + [12])), blobs(s, 32, 12)), trains()
)
zoo.sick(
    "relu-gain-2-16x96",
    "tune",
    lambda s: pair(gaussian_(Tower([32] + [96] * 16 + [12]), 2), blobs(s, 32, 12)),
    both(gradient_ratio(above=50), activation_growth(50)),
    "EXPLODING",
    control=relu_16,
)
zoo.sick(
    "tanh-gain-3-24x64",
    "tune",
    lambda s: pair(gaussian_(deep(24, 64, nn.Tanh), 3), blobs(s)),
    gradient_ratio(above=100),
    "EXPLODING",
    "SATURATION",
    control=tanh_16,
)
zoo.sick(
    "gelu-he-6x48-third-layer-times-2e3",
    "tune",
    lambda s: huge_layer(Tower([20] + [48] * 6 + [5], nn.GELU), "fc3", 2e3, blobs(s, 20, 5)),
    both(gradient_ratio("fc2", "fc3", above=100), activation_growth(100)),
    "EXPLODING",
    layer="fc3",
    also={"UNSTABLE"},
    control=gelu_4,
)
layer_norm_12 = zoo.healthy(
    "layer-norm-relu-12x64", "tune", lambda s: pair(deep(12, 64, norm=nn.LayerNorm), blobs(s)), trains()
)
zoo.sick(
    "batch-norm-relu-60x40",
    "tune",
    lambda s: pair(deep(60, 40, norm=nn.BatchNorm1d, dim=30, classes=4), blobs(s, 30, 4, 96)),
    gradient_ratio(above=100),
    "EXPLODING",
    control=layer_norm_12,
)

# --- saturation

tanh_5 = zoo.healthy("tanh-xavier-5x64", "tune", lambda s: pair(xavier_(deep(5, 64, nn.Tanh)), blobs(s)), trains())
zoo.sick(
    "tanh-xavier-5x64-input-times-1e4",
    "tune",
    lambda s: pair(xavier_(deep(5, 64, nn.Tanh)), blobs(s).mapped(lambda x: x * 1e4)),
    saturated("1", "tanh", 0.95),
    "SATURATION",
    layer="0",
    also={"VANISHING"},
    control=tanh_5,
)
zoo.sick(
    "tanh-gain-6-5x64",
    "tune",
    lambda s: pair(gaussian_(deep(5, 64, nn.Tanh), 6), blobs(s)),
    both(saturated("1", "tanh"), saturated("7", "tanh")),
    "SATURATION",
    also={"EXPLODING"},
    control=tanh_5,
)


def out_of_reach(seed: int, low: float, high: float, net: nn.Module, squash: nn.Module, dim: int, steps: int):
    """A squashed output trained on targets that it cannot reach."""
    task = regression(seed, dim).with_loss(lambda y, t: (y - (low + (high - low) * (t > 0))).square().mean())
    model = nn.Sequential(net, squash)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss_fn(model(task.input_fn())).backward()
        optimizer.step()
    return pair(model, task)


linear_head = zoo.healthy(
    "linear-head-for-large-targets",
    "tune",
    lambda s: out_of_reach(s, 20, 60, mlp([16, 32, 32, 1]), nn.Identity(), 16, 1),
    trains(lr=1e-2, steps=60),
)
zoo.sick(
    "sigmoid-head-for-large-targets",
    "tune",
    lambda s: out_of_reach(s, 20, 60, mlp([16, 32, 32, 1]), nn.Sigmoid(), 16, 60),
    both(saturated("1", "sigmoid", 0.9), learns_less(lr=1e-2)),
    "SATURATION",
    layer=("1", "0.4"),
    also={"VANISHING", "DEAD"},
    control=linear_head,
)
sigmoid_3 = zoo.healthy(
    "sigmoid-3x40-standardised",
    "tune",
    lambda s: pair(xavier_(Tower([12, 40, 40, 40, 4], nn.Sigmoid)), blobs(s, 12, 4)),
    trains(lr=1e-2),
)


def wide_columns(x):
    scale = torch.ones(x.shape[1])
    scale[[2, 7]] = 3e3
    return x * scale


zoo.sick(
    "sigmoid-3x40-two-columns-times-3e3",
    "tune",
    lambda s: pair(xavier_(Tower([12, 40, 40, 40, 4], nn.Sigmoid)), blobs(s, 12, 4).mapped(wide_columns)),
    saturated("act1", "sigmoid", 0.9),
    "SATURATION",
    layer="fc1",
    also={"VANISHING"},
    control=sigmoid_3,
)


hard_tanh = zoo.healthy(
    "hardtanh-5x56",
    "tune",
    lambda s: pair(xavier_(Tower([20] + [56] * 5 + [6], nn.Hardtanh)), blobs(s, 20, 6)),
    trains(),
)
zoo.sick(
    "hardtanh-5x56-third-bias-8",
    "tune",
    lambda s: biased(xavier_(Tower([20] + [56] * 5 + [6], nn.Hardtanh)), "fc3", 8, blobs(s, 20, 6), sign=True),
    saturated("act3", "hardtanh", 0.95),
    "SATURATION",
    "DEAD",
    layer="fc3",
    also={"VANISHING"},
    control=hard_tanh,
)
double_softmax = zoo.healthy(
    "cross-entropy-on-logits-5x48", "tune", lambda s: pair(he_(deep(5, 48, dim=24)), blobs(s, 24)), trains()
)


def softmax_twice(seed: int):
    """A softmax before a loss that has one: once outputs are sure of themselves, nothing comes back."""
    model = he_(deep(5, 48, dim=24)).append(nn.Softmax(dim=1))
    scale_(model[10], 40)
    return pair(model, blobs(seed, 24))


def softmax_blocks(case: Case, seed: int) -> Evidence:
    gradients = trace(case.make(seed)).gradients
    ratio = size(gradients["10"]) / size(gradients["11"])
    return Evidence(ratio < 0.05, f"gradient behind / before the softmax {ratio:.1e}")


zoo.sick(
    "softmax-twice-with-large-logits",
    "tune",
    softmax_twice,
    both(softmax_blocks, learns_less(lr=1e-3, by=0.2)),
    "SATURATION",
    "VANISHING",
    layer=("10", "11"),
    also={"EXPLODING"},
    control=double_softmax,
)

# --- the same in every unit

zoo.sick(
    "constant-init-4x64",
    "tune",
    lambda s: pair(constant_(deep(4, 64), 0.1), blobs(s)),
    both(equal_units("0.weight"), equal_units("4.weight")),
    "SYMMETRY",
    also={"EXPLODING", "BOTTLENECK", "LOW_RANK"},
    control=relu_4,
)


@torch.no_grad()
def equal_hidden(seed: int):
    """One hidden layer starts with equal units on both sides, all else as it should be."""
    model = xavier_(Tower([20] + [48] * 4 + [6], nn.Tanh))
    model.fc3.weight.copy_(model.fc3.weight[0].clone().expand_as(model.fc3.weight))
    model.fc4.weight.copy_(model.fc4.weight[:, :1].clone().expand_as(model.fc4.weight) / 48**0.5)
    return pair(model, blobs(seed, 20, 6))


zoo.sick(
    "third-layer-equal-units-4x48",
    "tune",
    equal_hidden,
    equal_units("fc3.weight"),
    "SYMMETRY",
    layer="fc3",
    also={"BOTTLENECK", "LOW_RANK", "VANISHING"},
    control=tanh_16,
)
zoo.sick(
    "constant-init-autoencoder",
    "tune",
    lambda s: pair(constant_(mlp([32, 24, 16, 24, 32], nn.ELU), 0.05), manifold(s, 32, 6)),
    both(equal_units("0.weight"), equal_units("4.weight")),
    "SYMMETRY",
    also={"BOTTLENECK", "LOW_RANK"},
    control=gelu_4,
)
