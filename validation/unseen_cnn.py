# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Convolutional networks with faults, and their twins: signals, U-Nets, mobile nets, autoencoders. Set aside."""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Setup, Zoo
from validation.evidence import (
    activation_growth,
    both,
    dead,
    equal_units,
    gradient_ratio,
    no_gradient,
    saturated,
)
from validation.evidence_training import trains
from validation.nets import ConvNet, gaussian_, he_, scale_, xavier_
from validation.nets_unseen import ConvCoder, Mobile, Signal, UNet
from validation.setups import pair, partly_dead
from validation.tasks import images
from validation.tasks_unseen import pictures, waves

zoo = Zoo("cnn", proof=trains(lr=3e-3, steps=30))
SHRINKS = gradient_ratio(below=10**-2.5)


# --- vanishing and exploding

signal = zoo.healthy("signal-gelu-3x20", "tune", lambda s: pair(he_(Signal([4, 20, 20, 20], act=nn.GELU)), waves(s)))
zoo.sick(
    "signal-sigmoid-default-6x20",
    "tune",
    lambda s: pair(Signal([4] + [20] * 6, act=nn.Sigmoid), waves(s)),
    SHRINKS,
    "VANISHING",
    control=signal,
)
mobile = zoo.healthy(
    "mobile-silu-3x20", "tune", lambda s: pair(he_(Mobile([20] * 4, 7)), images(s, 3, 10, 7, 20)), trains(lr=1e-2)
)
zoo.sick(
    "mobile-default-10x20-without-norms",
    "tune",
    lambda s: pair(Mobile([20] * 11, 7), images(s, 3, 10, 7, 20)),
    SHRINKS,
    "VANISHING",
    control=mobile,
)


def one_kernel(model: Signal, at: int, factor: float, seed: int) -> Setup:
    scale_(he_(model).convs[at], factor)
    return pair(model, waves(seed))


zoo.sick(
    "signal-5x20-last-kernel-times-5e3",
    "tune",
    lambda s: one_kernel(Signal([4] + [20] * 5, act=nn.ReLU), 4, 5e3, s),
    both(gradient_ratio("convs.3", "convs.4", above=100), activation_growth(100)),
    "EXPLODING",
    layer="convs.4",
    also={"UNSTABLE"},
    control=signal,
)
coder = zoo.healthy(
    "conv-autoencoder-12-channels", "tune", lambda s: pair(ConvCoder(16, 12), pictures(s, 6)), trains(lr=1e-2)
)
zoo.sick(
    "leaky-conv-9x14-gain-5",
    "tune",
    lambda s: pair(gaussian_(ConvNet([3] + [14] * 9, 6, nn.LeakyReLU), 5.0), images(s, 3, 8, 6, 16)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=mobile,
)

# --- dead, saturated, equal


def shifted(model: nn.Module, path: str, value: float, task) -> Setup:
    nn.init.constant_(model.get_submodule(path).bias, value)
    return pair(model, task)


u_net = zoo.healthy("u-net-group-norm-batch-2", "tune", lambda s: pair(UNet(16, 16), pictures(s, 6, 12, 1, 2)))
zoo.sick(
    "u-net-merge-bias-minus-30",
    "tune",
    lambda s: shifted(UNet(16, 16), "merge", -30, pictures(s, 6, 12)),
    both(dead("merge_act", 0.99), no_gradient("enter", "deep", "merge")),
    "DEAD",
    layer="merge",
    also={"DISCONNECTED", "VANISHING"},
    control=u_net,
)
zoo.sick(
    "u-net-group-norm-shift-minus-7-in-the-deep",
    "tune",
    lambda s: shifted(UNet(16, 16), "norm", -7, pictures(s, 6, 12)),
    both(dead("deep_act", 0.99), no_gradient("down", "deep")),
    "DEAD",
    layer=("deep", "norm"),
    also={"DISCONNECTED", "VANISHING"},
    control=u_net,
)
relu_signal = zoo.healthy(
    "signal-relu-4x32", "tune", lambda s: pair(he_(Signal([3, 32, 32, 32, 32], 5)), waves(s, 3, 24, 5))
)
zoo.sick(
    "signal-4x32-80-percent-of-first-channels-dead",
    "tune",
    lambda s: partly_dead(he_(Signal([3, 32, 32, 32, 32], 5)), "convs.0", 0.8, waves(s, 3, 24, 5)),
    dead("acts.0", 0.78),
    "DEAD",
    layer="convs.0",
    control=relu_signal,
)
tanh_signal = zoo.healthy(
    "signal-tanh-3x24", "tune", lambda s: pair(xavier_(Signal([4, 24, 24, 24], act=nn.Tanh)), waves(s))
)
zoo.sick(
    "signal-tanh-3x24-in-microvolts",
    "tune",
    lambda s: pair(xavier_(Signal([4, 24, 24, 24], act=nn.Tanh)), waves(s).mapped(lambda x: 2e4 * x)),
    saturated("acts.0", "tanh", 0.95),
    "SATURATION",
    "VANISHING",
    layer="convs.0",
    control=tanh_signal,
)


def signed(seed: int) -> Setup:
    """Half of the channels of the last convolution sit far to the left, half far to the right."""
    model = xavier_(Signal([4, 24, 24, 24], act=nn.Sigmoid))
    with torch.no_grad():
        model.convs[2].bias.copy_(torch.tensor([-18.0, 18.0]).repeat(12))
    return pair(model, waves(seed))


zoo.sick(
    "signal-sigmoid-3x24-last-biases-18-either-way",
    "tune",
    signed,
    saturated("acts.2", "sigmoid", 0.99),
    "SATURATION",
    "DEAD",
    "VANISHING",
    layer="convs.2",
    also={"LOW_RANK", "BOTTLENECK"},
    control=tanh_signal,
)


@torch.no_grad()
def filled(model: nn.Module, value: float) -> nn.Module:
    for parameter in model.parameters():
        parameter.fill_(value if parameter.dim() > 1 else 0.0)
    return model


zoo.sick(
    "signal-constant-kernels-3x16",
    "tune",
    lambda s: pair(filled(Signal([4, 16, 16, 16], act=nn.SiLU), 0.02), waves(s)),
    both(equal_units("convs.0.weight"), equal_units("convs.2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=signal,
)
