# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that saturate, or whose units are all the same, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.cases.mlp_narrow import glu, pooled
from validation.cases.mlp_twins import adagrad, gelu_4, relu_4, tanh_16
from validation.evidence import both, equal_units, learns_less, no_gradient, saturated, share_dead, size, trace, trains
from validation.nets import DeepSet, Gated, Tabular, Tower, constant_, deep, gaussian_, he_, mlp, scale_, xavier_
from validation.setups import biased, pair
from validation.tasks import blobs, manifold, patches, regression, table

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- saturated

tanh_5 = zoo.healthy("tanh-xavier-5x64", lambda s: pair(xavier_(deep(5, 64, nn.Tanh)), blobs(s)), trains())
zoo.sick(
    "tanh-xavier-5x64-input-times-1e4",
    lambda s: pair(xavier_(deep(5, 64, nn.Tanh)), blobs(s).mapped(lambda x: x * 1e4)),
    saturated("1", "tanh", 0.95),
    "SATURATION",
    layer="0",
    also={"VANISHING"},
    control=tanh_5,
)
zoo.sick(
    "tanh-gain-6-5x64",
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
    lambda s: out_of_reach(s, 20, 60, mlp([16, 32, 32, 1]), nn.Identity(), 16, 1),
    trains(lr=1e-2, steps=60),
)
zoo.sick(
    "sigmoid-head-for-large-targets",
    lambda s: out_of_reach(s, 20, 60, mlp([16, 32, 32, 1]), nn.Sigmoid(), 16, 60),
    both(saturated("1", "sigmoid", 0.9), learns_less(lr=1e-2)),
    "SATURATION",
    layer=("1", "0.4"),
    also={"VANISHING", "DEAD"},
    control=linear_head,
)
sigmoid_3 = zoo.healthy(
    "sigmoid-3x40-standardised",
    lambda s: pair(xavier_(Tower([12, 40, 40, 40, 4], nn.Sigmoid)), blobs(s, 12, 4)),
    trains(lr=1e-2),
)


def wide_columns(x):
    scale = torch.ones(x.shape[1])
    scale[[2, 7]] = 3e3
    return x * scale


zoo.sick(
    "sigmoid-3x40-two-columns-times-3e3",
    lambda s: pair(xavier_(Tower([12, 40, 40, 40, 4], nn.Sigmoid)), blobs(s, 12, 4).mapped(wide_columns)),
    saturated("act1", "sigmoid", 0.9),
    "SATURATION",
    layer="fc1",
    also={"VANISHING"},
    control=sigmoid_3,
)
hard_tanh = zoo.healthy(
    "hardtanh-5x56", lambda s: pair(xavier_(Tower([20] + [56] * 5 + [6], nn.Hardtanh)), blobs(s, 20, 6)), trains()
)
zoo.sick(
    "hardtanh-5x56-third-bias-8",
    lambda s: biased(xavier_(Tower([20] + [56] * 5 + [6], nn.Hardtanh)), "fc3", 8, blobs(s, 20, 6), sign=True),
    saturated("act3", "hardtanh", 0.95),
    "SATURATION",
    "DEAD",
    layer="fc3",
    also={"VANISHING"},
    control=hard_tanh,
)
double_softmax = zoo.healthy(
    "cross-entropy-on-logits-5x48", lambda s: pair(he_(deep(5, 48, dim=24)), blobs(s, 24)), trains()
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
    softmax_twice,
    both(softmax_blocks, learns_less(lr=1e-3, by=0.2)),
    "SATURATION",
    "VANISHING",
    layer=("10", "11"),
    also={"EXPLODING"},
    control=double_softmax,
)


def timestamps(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """One of the numbers is a time in seconds since 1970, within a month."""
    categories, values = batch
    values = values.clone()
    values[:, 3] = 1.7e9 + 8e5 * values[:, 3]
    return categories, values


tabular_tanh = zoo.healthy("tabular-tanh", lambda s: pair(Tabular(act=nn.Tanh), table(s)), trains(lr=1e-2))
zoo.sick(
    "tabular-tanh-with-raw-timestamps",
    lambda s: pair(Tabular(act=nn.Tanh), table(s).mapped(timestamps)),
    both(saturated("body.1", "tanh", 0.99), learns_less(lr=1e-2, by=0.1)),
    "SATURATION",
    "VANISHING",
    layer="body.0",
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "EXPLODING"},
    control=tabular_tanh,
)
relu6 = zoo.healthy("relu6-he-6x70", lambda s: pair(he_(Tower([16] + [70] * 6 + [5], nn.ReLU6)), blobs(s, 16, 5, 100)))
zoo.sick(
    "relu6-6x70-fifth-bias-40",
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

zoo.sick(
    "constant-init-4x64",
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
    equal_hidden,
    equal_units("fc3.weight"),
    "SYMMETRY",
    layer="fc3",
    also={"BOTTLENECK", "LOW_RANK", "VANISHING"},
    control=tanh_16,
)
zoo.sick(
    "constant-init-autoencoder",
    lambda s: pair(constant_(mlp([32, 24, 16, 24, 32], nn.ELU), 0.05), manifold(s, 32, 6)),
    both(equal_units("0.weight"), equal_units("4.weight")),
    "SYMMETRY",
    also={"BOTTLENECK", "LOW_RANK"},
    control=gelu_4,
)


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
    lambda s: pair(one_over_fan_in(Tabular(act=nn.SiLU), "body.0", "body.2", "body.4"), table(s)),
    both(equal_units("body.0.weight"), equal_units("body.2.weight")),
    "SYMMETRY",
    layer=("body.0", "body.2"),
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=adagrad,
)
zoo.sick(
    "deep-set-members-encoded-by-equal-units",
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
