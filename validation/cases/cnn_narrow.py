# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Convolutional networks with cut and narrow places, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.cnn_signal import coder, pooled, tanh_signal, u_net
from validation.evidence import both, channel_rank, learns_less, no_gradient, rank_at_most, trains
from validation.labels import ONE_WAY
from validation.nets import ConvCoder, ConvNet, Mobile, Signal, UNet, he_, mlp
from validation.setups import pair
from validation.tasks import images, pictures, waves

zoo = Zoo("cnn", half="tune", proof=trains(lr=3e-3, steps=30))


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
    lambda s: pair(Backbone(he_(ConvNet([1, 16, 16], 24)), mlp([24, 24, 5]), True), images(s, 1, 10, 5)),
    no_gradient("trunk"),
    "DISCONNECTED",
    layer=("trunk.head", "classifier.0"),
    also={"DEAD"},
    control=pooled,
)
zoo.sick(
    "classifier-through-width-2",
    lambda s: pair(Backbone(he_(ConvNet([1, 24, 24, 24], 2)), he_(mlp([2, 32, 10])), False), images(s, 1, 10, 10)),
    both(rank_at_most("trunk.head", 2, 8), learns_less(lr=3e-3, steps=40, by=0.1)),
    "BOTTLENECK",
    layer="trunk.head",
    also={"LOW_RANK", "DEAD"},
    control=pooled,
)
zoo.sick(
    "u-net-deep-path-detached",
    lambda s: pair(UNet(16, 16, cut=True), pictures(s, 6, 12)),
    no_gradient("down", "deep", "up"),
    "DISCONNECTED",
    layer=("up", "down", "deep"),
    also={"DEAD"},
    control=u_net,
)
tiny_images = zoo.healthy(
    "mobile-4x24-images-of-4x4", lambda s: pair(he_(Mobile([24] * 5, 7)), images(s, 3, 4, 7, 32, 2.0)), trains(lr=1e-2)
)
zoo.sick(
    "mobile-4x24-third-pointwise-to-1-channel",
    lambda s: pair(he_(Mobile([24, 24, 24, 1, 24], 7)), images(s, 3, 4, 7, 32, 2.0)),
    both(channel_rank("pointwise.2", 1.01), learns_less(lr=1e-2, steps=60, by=0.1)),
    "BOTTLENECK",
    layer=("pointwise.2", "depthwise.3"),
    also={"LOW_RANK", "VANISHING"},
    control=tiny_images,
)
zoo.sick(
    "conv-autoencoder-1-channel-of-16-factors",
    lambda s: pair(ConvCoder(16, 1), pictures(s, 16)),
    both(rank_at_most("encoder.2", 4), learns_less(lr=1e-2, steps=200, by=0.3)),
    "BOTTLENECK",
    layer="encoder.2",
    also={"LOW_RANK"},
    control=coder,
)


class Cascade(nn.Module):
    """A signal encoder, a summary of `narrow` numbers per clip, a classifier."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.encoder = he_(Signal([5, 28, 28], narrow, nn.GELU))
        self.first, self.act, self.last = nn.Linear(narrow, 40), nn.GELU(), nn.Linear(40, 14)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(self.encoder(x))))


cascade = zoo.healthy(
    "signal-cascade-summary-24", lambda s: pair(Cascade(24), waves(s, 5, 32, 14, 32)), trains(lr=1e-2)
)
zoo.sick(
    "signal-cascade-summary-1-of-14-classes",
    lambda s: pair(Cascade(1), waves(s, 5, 32, 14, 32)),
    both(rank_at_most("first", 1.01), learns_less(lr=1e-2, steps=60, by=0.15)),
    "BOTTLENECK",
    layer=("encoder.head", "first"),
    also={"LOW_RANK"},
    control=cascade,
)


@torch.no_grad()
def rank_one_mix(seed: int) -> Setup:
    """A pointwise convolution whose matrix is a product of two vectors."""
    model = Signal([4, 24, 24, 24], act=nn.Tanh, kernel=1)
    model.convs[1].weight.copy_((torch.randn(24, 1) @ torch.randn(1, 24) / 5)[..., None])
    return pair(model, waves(seed, batch=32))


zoo.sick(
    "pointwise-signal-second-of-rank-1",
    rank_one_mix,
    channel_rank("convs.1", 1.01),
    *ONE_WAY,
    layer="convs.1",
    control=tanh_signal,
)
