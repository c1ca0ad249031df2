# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks with mistakes that people told of in threads, and what each thread came to.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he
from validation.cases._plain_nets import BLOWN
from validation.cases._threads_nets import (
    PINCHED,
    QUIET,
    STILL,
    Averaged,
    beats,
    boxes,
    cells,
    convs,
    fields,
    kanji,
    layers,
    leaves,
    paintings,
)
from validation.evidence import (
    at_last,
    both,
    breaks,
    channel_rank,
    dead,
    diverges,
    does_not_move,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live

zoo = Zoo("cnn", half="threads", proof=thrives(0.2, most_dead=0.5))

# --- too narrow

# vladmandic/dcae#4: the channels of a coder were made few at the same shrinking of the picture, and what comes back is
# blurred; the answer: that is twice and more the compression.


class Shrinker(nn.Module):
    """Three strided convolutions, a latent of few channels at two by two, and the way back."""

    def __init__(self, latent: int) -> None:
        super().__init__()
        self.encoder = convs(1, [16, 24, 32], nn.SiLU, stride=2)
        self.latent, self.open = nn.Conv2d(32, latent, 2), nn.ConvTranspose2d(latent, 32, 2)
        self.decoder = nn.Sequential(
            *(nn.ConvTranspose2d(32, 24, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.SiLU()),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.open(self.latent(self.encoder(x))))


def shrunk(seed: int, latent: int) -> Setup:
    return live(Shrinker(latent), paintings(seed), "Adam", 5e-3, 100)


enough = zoo.healthy("paintings-latent-of-32", lambda s: shrunk(s, 32))
zoo.sick(
    "paintings-latent-of-1",
    lambda s: shrunk(s, 1),
    both(lags(0.2), lasting(rank_at_most("latent", 1.01))),
    *NARROW,
    layer=("latent", "open"),
    also=PINCHED,
    control=enough,
)

# vojirt/JSRNet#2: two thousand features become four channels before a decoder of 128; meant there, too few where the
# pictures differ. Here six maps have to pass one channel.


class Pinched(nn.Module):
    """Wide convolutions around a one by one convolution of so many channels."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body, self.reduce = convs(6, [24, 24], norm=True), nn.Conv2d(24, size, 1)
        self.widen = nn.Sequential(nn.Conv2d(size, 24, 1), nn.ReLU(), nn.Conv2d(24, 6, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(self.reduce(self.body(x)))


def pinched(seed: int, size: int) -> Setup:
    return live(Pinched(size), fields(seed), "AdamW", 8e-3, 80)


broad = zoo.healthy("fields-reduced-to-16-channels", lambda s: pinched(s, 16))
zoo.sick(
    "fields-reduced-to-1-channel",
    lambda s: pinched(s, 1),
    both(lags(0.2), lasting(channel_rank("reduce", 1.01))),
    *NARROW,
    layer=("reduce", "widen", "widen.0"),
    also=PINCHED,
    control=broad,
)

# theorangeduck.com "My Neural Network isn't working!" again and many beginners' nets: the first convolution has as many
# filters as the signal has channels, which is one.


class Lead(nn.Module):
    """Convolutions over a lead of a heart beat, of which the first has so many filters."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, filters, 7, padding=3), nn.Conv1d(filters, 32, 1)
        self.act, self.fc = nn.GELU(), layers([32, 32, 6], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.conv2(torch.tanh(self.conv1(x))))
        return self.fc(h.mean(dim=2))


def lead(seed: int, filters: int) -> Setup:
    return live(Lead(filters), beats(seed), "Adam", 8e-3, 110)


many = zoo.healthy("beats-first-layer-of-24-filters", lambda s: lead(s, 24))
zoo.sick(
    "beats-first-layer-of-1-filter",
    lambda s: lead(s, 1),
    both(lags(0.12), lasting(channel_rank("conv1", 1.01))),
    *NARROW,
    layer=("conv1", "conv2"),
    also=PINCHED,
    control=many,
)

# --- too small on the way back

# titu1994/keras-squeeze-excite-network#7: why a sigmoid and no softmax in the gate of the channels? With the softmax
# the performance died: each gate divides by the number of channels.


class Twice(nn.Sigmoid):
    """A gate that is one at its start."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Gated(nn.Module):
    """A convolution whose channels are multiplied by a gate of their means."""

    def __init__(self, a: int, b: int, gate: nn.Module) -> None:
        super().__init__()
        self.conv, self.squeeze, self.excite, self.gate = (
            nn.Conv2d(a, b, 3, 1, 1),
            nn.Linear(b, 8),
            nn.Linear(8, b),
            gate,
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return x * self.gate(self.excite(F.relu(self.squeeze(x.mean(dim=(2, 3))))))[..., None, None]


def excited(seed: int, gate) -> Setup:
    body = nn.Sequential(Gated(3, 24, gate()), Gated(24, 24, gate()), Gated(24, 24, gate()), Gated(24, 24, gate()))
    return live(Averaged(he(body), 24, 5), leaves(seed, 5, noise=0.3), "Adam", 3e-3, 90)


sigmoid = zoo.healthy("leaves-gates-by-twice-a-sigmoid", lambda s: excited(s, Twice))
zoo.sick(
    "leaves-gates-by-a-softmax",
    lambda s: excited(s, lambda: nn.Softmax(dim=1)),
    both(gradient_ratio("body.0.conv", "body.3.conv", below=1e-2), lags(0.2)),
    "VANISHING",
    "SLOW",
    "softmax_dimension",
    layer=tuple(f"body.{i}{p}" for i in range(4) for p in ("", ".gate", ".conv", ".squeeze", ".excite")),
    also=QUIET,
    control=sigmoid,
)

# keras-team/keras#6447 "model.predict() gives same output for all inputs": squashing activations in every hidden
# layer; ReLU was the answer of several.


def squashed(seed: int, act: type[nn.Module]) -> Setup:
    body = convs(3, [16] * 6, act)
    return live(Averaged(he(body) if act is nn.ReLU else body, 16, 5), leaves(seed, 5, noise=0.3), "Adam", 3e-3, 90)


relus = zoo.healthy("leaves-six-relu-convolutions", lambda s: squashed(s, nn.ReLU))
zoo.sick(
    "leaves-six-sigmoid-convolutions",
    lambda s: squashed(s, nn.Sigmoid),
    both(gradient_ratio("body.0", "body.10", below=1e-2), lags(0.2)),
    "VANISHING",
    "SLOW",
    layer=tuple(f"body.{i}" for i in range(12)),
    also=QUIET,
    control=relus,
)

# --- nothing fires

# WeiTang114/MVCNN-TensorFlow#14: after some hundred steps all is class 0; the last layer, fc8, had a ReLU.


class Views(nn.Module):
    """Several views of a thing, their maximum, dense layers; perhaps a ReLU on the logits."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.features = convs(1, [16, 24], stride=2)
        self.fc7, self.relu7, self.fc8 = nn.Linear(24 * 9, 48), nn.ReLU(), nn.Linear(48, 20)
        self.relu8 = nn.ReLU() if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        views = torch.stack([self.features(x), self.features(x.flip(3))]).amax(dim=0)
        return self.relu8(self.fc8(self.relu7(self.fc7(views.flatten(1)))))


def views(seed: int, last: bool) -> Setup:
    return live(Views(last), kanji(seed, 20), "SGD", 0.05, 90, momentum=0.9)


bare = zoo.healthy("kanji-views-bare-logits", lambda s: views(s, False), thrives(0.2, most_dead=0.7))
zoo.sick(
    "kanji-views-relu-on-the-logits",
    lambda s: views(s, True),
    both(at_last(dead("relu8", 0.09)), lags(0.1), worse(2.0)),
    *CUT_OFF[::-1],
    "output_range",
    layer=("fc8", "relu8"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "rate_too_high", "UNSTABLE", *STILL},
    control=bare,
)

# --- flat

# taourl.com 2580276 "Loss function not decreasing on a CNN model", second answer: pixels from 0 to 255 are not scaled;
# with the tanh of a LeNet the first layer is at its ends.


class LeNet(nn.Module):
    """Tanh convolutions with pools and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.t1, self.c2, self.t2 = nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 16, 3), nn.Tanh()
        self.fc = layers([64, 48, 24], nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.t1(self.c1(x)), 2)
        return self.fc(F.avg_pool2d(self.t2(self.c2(x)), 2).flatten(1))


def pixels(seed: int, raw: bool) -> Setup:
    task = kanji(seed, 24, noise=0.8).mapped(lambda x: (128 + 50 * x).clamp(0, 255) if raw else x)
    return live(LeNet(), task, "Adam", 3e-3, 90)


unit = zoo.healthy("kanji-lenet-unit-scale", lambda s: pixels(s, False))
zoo.sick(
    "kanji-lenet-pixels-of-255",
    lambda s: pixels(s, True),
    both(lasting(saturated("t1", "tanh", 0.8)), lags(0.15)),
    "SATURATION",
    "VANISHING",
    "input_scales",
    layer=("c1", "t1"),
    also={*QUIET, "EXPLODING"},
    control=unit,
)

# --- cut off

# Hiyuur/SR-TOD#5: the difference between the picture and what a branch rebuilds becomes a mask by `torch.sign`, so
# neither the threshold nor the branch behind it can learn.


class Masked(nn.Module):
    """A branch says where to look, then convolutions over what is left."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.look, self.level, self.hard = convs(3, [12, 12]), nn.Conv2d(12, 3, 3, padding=1), hard
        self.net = Averaged(convs(3, [16, 16], stride=2), 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        far = self.level(self.look(x))
        mask = (torch.sign(far) + 1) * 0.5 if self.hard else torch.sigmoid(4 * far)
        return self.net(x * mask)


def masked(seed: int, hard: bool) -> Setup:
    return live(Masked(hard), leaves(seed), "Adam", 5e-3, 100)


smooth = zoo.healthy("leaves-mask-by-a-sigmoid", lambda s: masked(s, False))
zoo.sick(
    "leaves-mask-by-the-sign",
    lambda s: masked(s, True),
    both(lasting(no_gradient("look", "level")), worse(1.3)),
    *CUT_OFF,
    "never_moves",
    "detached",
    layer=("look", "look.0", "look.1", "look.2", "look.3", "level"),
    also={"VANISHING", *STILL},
    control=smooth,
)

# --- numbers

# akanazawa/cmr#11 (and pytorch/pytorch#6394): the root of a sum of squares of differences; where a picture is flat the
# sum is zero and its root has no gradient. The answer is blown up from a coarse one, so it is flat in places.


def edges(seed: int, eps: float) -> Setup:
    def slope(y: Tensor) -> Tensor:
        down, right = y[..., 1:, :-1] - y[..., :-1, :-1], y[..., :-1, 1:] - y[..., :-1, :-1]
        return (down.square() + right.square() + eps).sqrt()

    def loss(y: Tensor, mask: Tensor) -> Tensor:
        return F.mse_loss(y, mask) + 0.2 * F.l1_loss(slope(y), slope(mask))

    body = nn.Sequential(nn.AvgPool2d(2), convs(1, [16, 16]), nn.Conv2d(16, 1, 3, padding=1))
    model = nn.Sequential(body, nn.Sigmoid(), nn.Upsample(scale_factor=2))
    return live(model, cells(seed).with_loss(loss), "Adam", 5e-3, 80)


added = zoo.healthy("cells-edge-loss-with-an-eps", lambda s: edges(s, 1e-6), thrives(0.15, most_dead=0.5))
zoo.sick(
    "cells-edge-loss-root-of-zero",
    lambda s: edges(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={*BLOWN, "UNSTABLE", "EXPLODING"},
    control=added,
)

# --- steps

# ugent-korea/pytorch-unet-segmentation#5 and milesial/Pytorch-UNet#255: the mask is all white or all black; a lower
# rate solved it.


class Small(nn.Module):
    """A U-Net of one step down."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = (
            convs(1, [12, 12], nn.LeakyReLU),
            convs(12, [24, 24], nn.LeakyReLU),
            nn.ConvTranspose2d(24, 12, 2, 2),
        )
        self.join, self.out = convs(24, [12], nn.LeakyReLU), nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.out(self.join(torch.cat([x, self.up(self.deep(F.max_pool2d(x, 2)))], dim=1)))


def unet(seed: int, lr: float, kind: str = "Adam") -> Setup:
    return live(Small(), cells(seed), kind, lr, 80)


low = zoo.healthy("cells-unet-rate-0.003", lambda s: unet(s, 3e-3))
zoo.sick(
    "cells-unet-rate-1-all-black",
    lambda s: unet(s, 1.0),
    both(diverges(3), worse(1.5)),
    *JUMPS,
    "rate_too_high",
    "NUMERICAL",
    "DEAD",
    also={*BLOWN, "SLOW"},
    control=low,
)

# Stack Overflow, many ("bounding box regression loss is huge, then nan"): edges in pixels of the full picture under SGD
# at a rate for unit scale; as shares of the picture they train.


def located(seed: int, times: float) -> Setup:
    model = nn.Sequential(convs(1, [16, 24], stride=2), nn.Flatten(), layers([216, 48, 4]))
    return live(model, boxes(seed).changed(lambda x, y: (x, times * y)), "SGD", 0.02, 90, momentum=0.9)


shares = zoo.healthy("boxes-as-shares", lambda s: located(s, 1.0))
zoo.sick(
    "boxes-in-pixels-of-1024",
    lambda s: located(s, 1024.0),
    both(diverges(3), worse(3.0)),
    *RUNS_AWAY,
    "rate_too_high",
    "first_loss_high",
    "loss_nonfinite",
    "DEAD",
    also={*BLOWN, "SLOW", "input_scales"},
    control=shares,
)

# taourl.com 2580276 "Loss function not decreasing on a CNN model", first answer: a rate that is far too low.


def crawl(seed: int, lr: float) -> Setup:
    return live(Averaged(convs(3, [16, 24], norm=True), 24, 8), leaves(seed), "Adam", lr, 70)


walk = zoo.healthy("leaves-batch-norm-adam", lambda s: crawl(s, 5e-3))
zoo.sick(
    "leaves-batch-norm-adam-a-hundred-millionth",
    lambda s: crawl(s, 1e-8),
    both(does_not_move(1e-5), lags(0.3)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck", "VANISHING", "zero_rate"},
    control=walk,
)
