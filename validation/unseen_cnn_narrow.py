# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Convolutional networks with cut and narrow places, and their twins. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo
from validation.evidence import (
    both,
    effective_rank,
    judged,
    no_gradient,
    rank_at_most,
)
from validation.evidence_training import learns_less, trains
from validation.nets import he_
from validation.nets_unseen import ConvCoder, Mobile, Signal, UNet
from validation.setups import pair
from validation.tasks import images
from validation.tasks_unseen import pictures, waves
from validation.unseen_cnn import coder, tanh_signal, u_net

zoo = Zoo("cnn", proof=trains(lr=3e-3, steps=30))

# --- cut and narrow

zoo.sick(
    "u-net-deep-path-detached",
    "tune",
    lambda s: pair(UNet(16, 16, cut=True), pictures(s, 6, 12)),
    no_gradient("down", "deep", "up"),
    "DISCONNECTED",
    layer=("up", "down", "deep"),
    also={"DEAD"},
    control=u_net,
)


def channel_rank(path: str, limit: float) -> Proof:
    """What a convolution hands on has a low effective rank over its channels, taken at every place."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        kept: list[Tensor] = []
        handle = setup.model.get_submodule(path).register_forward_hook(lambda _m, _i, output: kept.append(output))
        with torch.no_grad():
            setup.model(setup.input_fn())
        handle.remove()
        states = kept[0].double().transpose(0, 1).flatten(1).T
        rank = effective_rank(states - states.mean(dim=0))
        return judged(rank <= limit, "effective rank over channels {:.2f}", rank)

    return proof


tiny_images = zoo.healthy(
    "mobile-4x24-images-of-4x4",
    "tune",
    lambda s: pair(he_(Mobile([24] * 5, 7)), images(s, 3, 4, 7, 32, 2.0)),
    trains(lr=1e-2),
)
zoo.sick(
    "mobile-4x24-third-pointwise-to-1-channel",
    "tune",
    lambda s: pair(he_(Mobile([24, 24, 24, 1, 24], 7)), images(s, 3, 4, 7, 32, 2.0)),
    both(channel_rank("pointwise.2", 1.01), learns_less(lr=1e-2, steps=60, by=0.1)),
    "BOTTLENECK",
    layer=("pointwise.2", "depthwise.3"),
    also={"LOW_RANK", "VANISHING"},
    control=tiny_images,
)
zoo.sick(
    "conv-autoencoder-1-channel-of-16-factors",
    "tune",
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
    "signal-cascade-summary-24", "tune", lambda s: pair(Cascade(24), waves(s, 5, 32, 14, 32)), trains(lr=1e-2)
)
zoo.sick(
    "signal-cascade-summary-1-of-14-classes",
    "tune",
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
    "tune",
    rank_one_mix,
    channel_rank("convs.1", 1.01),
    "LOW_RANK",
    "BOTTLENECK",
    layer="convs.1",
    control=tanh_signal,
)
