# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Convolutional networks whose signal dies, grows, stops, flattens or is the same in every channel, and their twins.

Half: tune.
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
    saturated,
)
from validation.evidence.training import trains
from validation.labels import DEADENS
from validation.nets import ConvCoder, ConvNet, Mobile, Signal, UNet, constant_, deep_conv, gaussian_, he_, xavier_
from validation.setups import biased, pair, partly_dead, scaled
from validation.tasks import images, pictures, waves

SHRINKS = gradient_ratio(below=10**-2.5)
zoo = Zoo("cnn", half="tune", proof=trains(lr=3e-3, steps=30))


# --- vanishing and exploding

he_5 = zoo.healthy("relu-he-5x16", lambda s: pair(he_(deep_conv(5, 16)), images(s)))
zoo.sick(
    "relu-default-14x12",
    lambda s: pair(deep_conv(14, 12), images(s, size=8)),
    SHRINKS,
    "VANISHING",
    also={"DEAD"},
    control=he_5,
)
pooled = zoo.healthy(
    "max-pool-relu-4x20", lambda s: pair(he_(ConvNet([1, 20, 20, 20, 20], 5, pool=(1, 2))), images(s, 1, 16, 5))
)
zoo.sick(
    "sigmoid-xavier-8x16",
    lambda s: pair(xavier_(ConvNet([1] + [16] * 8, 5, nn.Sigmoid, pool=(3,))), images(s, 1, 12, 5)),
    SHRINKS,
    "VANISHING",
    control=pooled,
)
zoo.sick(
    "leaky-6x16-fifth-conv-times-1e-4",
    lambda s: scaled(he_(ConvNet([1] + [16] * 6, 5, nn.LeakyReLU)), "convs.4", 1e-4, images(s, 1, 10, 5)),
    gradient_ratio("convs.3", "convs.4", below=10**-2.5),
    "VANISHING",
    layer="convs.4",
    control=pooled,
)
zoo.sick(
    "relu-gain-4-8x16",
    lambda s: pair(gaussian_(deep_conv(8, 16), 4), images(s, size=8)),
    both(gradient_ratio(above=100), activation_growth(30)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=he_5,
)
zoo.sick(
    "relu-he-5x16-second-conv-times-3e3",
    lambda s: scaled(he_(ConvNet([1] + [16] * 5, 5)), "convs.1", 3e3, images(s, 1, 10, 5)),
    both(gradient_ratio("convs.0", "convs.1", above=100), activation_growth(30)),
    "EXPLODING",
    layer="convs.1",
    also={"UNSTABLE"},
    control=pooled,
)
signal = zoo.healthy("signal-gelu-3x20", lambda s: pair(he_(Signal([4, 20, 20, 20], act=nn.GELU)), waves(s)))
zoo.sick(
    "signal-sigmoid-default-6x20",
    lambda s: pair(Signal([4] + [20] * 6, act=nn.Sigmoid), waves(s)),
    SHRINKS,
    "VANISHING",
    control=signal,
)
mobile = zoo.healthy(
    "mobile-silu-3x20", lambda s: pair(he_(Mobile([20] * 4, 7)), images(s, 3, 10, 7, 20)), trains(lr=1e-2)
)
zoo.sick(
    "mobile-default-10x20-without-norms",
    lambda s: pair(Mobile([20] * 11, 7), images(s, 3, 10, 7, 20)),
    SHRINKS,
    "VANISHING",
    control=mobile,
)
zoo.sick(
    "signal-5x20-last-kernel-times-5e3",
    lambda s: scaled(he_(Signal([4] + [20] * 5, act=nn.ReLU)), "convs.4", 5e3, waves(s)),
    both(gradient_ratio("convs.3", "convs.4", above=100), activation_growth(100)),
    "EXPLODING",
    layer="convs.4",
    also={"UNSTABLE"},
    control=signal,
)
coder = zoo.healthy("conv-autoencoder-12-channels", lambda s: pair(ConvCoder(16, 12), pictures(s, 6)), trains(lr=1e-2))
zoo.sick(
    "leaky-conv-9x14-gain-5",
    lambda s: pair(gaussian_(ConvNet([3] + [14] * 9, 6, nn.LeakyReLU), 5.0), images(s, 3, 8, 6, 16)),
    both(gradient_ratio(above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=mobile,
)

# --- dead, saturated, equal

zoo.sick(
    "relu-5x16-second-bias-minus-20",
    lambda s: biased(he_(deep_conv(5, 16)), "convs.1", -20, images(s)),
    dead("acts.1", 0.99),
    "DEAD",
    layer="convs.1",
    also=DEADENS,
    control=he_5,
)
zoo.sick(
    "relu-4x24-two-thirds-of-third-channels-dead",
    lambda s: partly_dead(he_(ConvNet([1, 24, 24, 24, 24], 5)), "convs.2", 0.67, images(s, 1, 10, 5)),
    dead("acts.2", 0.65),
    "DEAD",
    layer="convs.2",
    control=pooled,
)
zoo.sick(
    "zero-init-head-and-convs",
    lambda s: pair(constant_(ConvNet([1, 16, 16, 16], 5), 0), images(s, 1, 10, 5)),
    no_gradient("convs", "head.weight"),
    "DEAD",
    "SYMMETRY",
    "VANISHING",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=pooled,
)
zoo.sick(
    "sigmoid-4x16-second-bias-10",
    lambda s: biased(xavier_(deep_conv(4, 16, nn.Sigmoid)), "convs.1", 10, images(s)),
    saturated("acts.1", "sigmoid", 0.95),
    "SATURATION",
    layer="convs.1",
    also={"VANISHING", "DEAD"},
    control=he_5,
)
zoo.sick(
    "tanh-3x20-pixels-0-to-255-squared",
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
    lambda s: pair(equal_channels(he_(deep_conv(4, 16, nn.Tanh))), images(s)),
    both(equal_units("convs.0.weight"), equal_units("convs.2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "EXPLODING", "VANISHING"},
    control=he_5,
)
u_net = zoo.healthy("u-net-group-norm-batch-2", lambda s: pair(UNet(16, 16), pictures(s, 6, 12, 1, 2)))
zoo.sick(
    "u-net-merge-bias-minus-30",
    lambda s: biased(UNet(16, 16), "merge", -30, pictures(s, 6, 12)),
    both(dead("merge_act", 0.99), no_gradient("enter", "deep", "merge")),
    "DEAD",
    layer="merge",
    also=DEADENS,
    control=u_net,
)
zoo.sick(
    "u-net-group-norm-shift-minus-7-in-the-deep",
    lambda s: biased(UNet(16, 16), "norm", -7, pictures(s, 6, 12)),
    both(dead("deep_act", 0.99), no_gradient("down", "deep")),
    "DEAD",
    layer=("deep", "norm"),
    also=DEADENS,
    control=u_net,
)
relu_signal = zoo.healthy("signal-relu-4x32", lambda s: pair(he_(Signal([3, 32, 32, 32, 32], 5)), waves(s, 3, 24, 5)))
zoo.sick(
    "signal-4x32-80-percent-of-first-channels-dead",
    lambda s: partly_dead(he_(Signal([3, 32, 32, 32, 32], 5)), "convs.0", 0.8, waves(s, 3, 24, 5)),
    dead("acts.0", 0.78),
    "DEAD",
    layer="convs.0",
    control=relu_signal,
)
tanh_signal = zoo.healthy("signal-tanh-3x24", lambda s: pair(xavier_(Signal([4, 24, 24, 24], act=nn.Tanh)), waves(s)))
zoo.sick(
    "signal-tanh-3x24-in-microvolts",
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
    lambda s: pair(filled(Signal([4, 16, 16, 16], act=nn.SiLU), 0.02), waves(s)),
    both(equal_units("convs.0.weight"), equal_units("convs.2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=signal,
)
