# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks with faults that people reported in threads, and the fix that each thread came to.

Half: reported.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, gaussian, he, start
from validation.cases._plain_nets import BLOWN
from validation.cases._reported_nets import (
    SQUASHED,
    UNLEARNED,
    Pooled,
    animals,
    clouds_of_points,
    dense,
    hands,
    lesions,
    numerals,
    plates,
    same_for_all,
    vgg,
)
from validation.evidence import (
    activation_growth,
    at_last,
    both,
    breaks,
    channel_rank,
    dead,
    diverges,
    does_not_move,
    equal_units,
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
from validation.tasks.task import Loss

zoo = Zoo("cnn", half="reported", proof=thrives(0.2, most_dead=0.5))

# --- too narrow

# AntixK/PyTorch-VAE#95 and keras-team/keras#2841: pictures come back as their mean, for the code is far too small.


class ConvCoder(nn.Module):
    """Strided convolutions, a code, and the way back."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.fc1, self.fc2 = nn.Linear(216, code), nn.Linear(code, 216)
        self.decoder = nn.Sequential(nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(F.relu(self.fc2(self.fc1(self.encoder(x)))).unflatten(1, (24, 3, 3)))


def coded(seed: int, code: int) -> Setup:
    return live(ConvCoder(code), plates(seed), "Adam", 5e-3, 110)


code = zoo.healthy("plates-conv-coder-of-24", lambda s: coded(s, 24))
zoo.sick(
    "plates-conv-coder-of-1",
    lambda s: coded(s, 1),
    both(lags(0.2), lasting(rank_at_most("fc1", 1.01))),
    *NARROW,
    layer=("fc1", "fc2"),
    also=SQUASHED,
    control=code,
)

# d-li14/mobilenetv2.pytorch#4 and pytorch/vision#973: a width multiplier that is not rounded up leaves next to no
# channels.


class Mobile(nn.Module):
    """Depthwise and pointwise convolutions whose widths are multiplied."""

    def __init__(self, times: float) -> None:
        super().__init__()
        sizes = [max(1, int(times * n)) for n in (16, 24, 32)]
        self.stem = nn.Conv2d(3, sizes[0], 3, 1, 1)
        parts: list[nn.Module] = []
        for a, b in pairwise(sizes):
            parts += [nn.Conv2d(a, a, 3, 2, 1, groups=a), nn.ReLU6(), nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU6()]
        self.blocks = nn.Sequential(*parts)
        self.fc = nn.Linear(sizes[-1], 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu6(self.stem(x))).mean(dim=(2, 3)))


def multiplied(seed: int, times: float) -> Setup:
    return live(Mobile(times), animals(seed), "Adam", 1e-2, 90)


whole = zoo.healthy("animals-mobile-width-1", lambda s: multiplied(s, 1.0), thrives(0.2, most_dead=0.6))
zoo.sick(
    "animals-mobile-width-a-twentieth",
    lambda s: multiplied(s, 0.05),
    both(lags(0.2), lasting(channel_rank("stem", 1.01))),
    *NARROW,
    layer=("stem", "blocks.0", "blocks.2", "blocks.5", "blocks.7", "fc"),
    also=SQUASHED,
    control=whole,
)

# adambielski/siamese-triplet#35: the embedding of two numbers from the demo of ten digits, now for many more classes.


class Embedded(nn.Module):
    """Convolutions with PReLU, dense layers down to an embedding, the classes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.convnet = nn.Sequential(
            nn.Conv2d(1, 12, 5), nn.PReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.PReLU(), nn.Flatten()
        )
        self.fc = nn.Sequential(nn.Linear(96, 48), nn.PReLU(), nn.Linear(48, size))
        self.kinds = nn.Linear(size, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.kinds(F.relu(self.fc(self.convnet(x))))


def embedded(seed: int, size: int) -> Setup:
    return live(Embedded(size), numerals(seed, classes=24), "Adam", 4e-3, 110)


embedding = zoo.healthy("numerals-24-kinds-embedding-of-32", lambda s: embedded(s, 32))
zoo.sick(
    "numerals-24-kinds-embedding-of-2",
    lambda s: embedded(s, 2),
    both(lags(0.2), lasting(rank_at_most("fc.2", 2.01))),
    *NARROW,
    layer=("fc.2", "kinds"),
    also=SQUASHED,
    control=embedding,
)

# davidstutz/pointnet-auto-encoder#1: every cloud comes back as the same mean shape; the latent space may be too
# small.


class PointCoder(nn.Module):
    """A PointNet: convolutions of width one over points, the largest over all, a code, the points again."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(2, 32, 1), nn.SiLU(), nn.Conv1d(32, 64, 1), nn.SiLU())
        self.code, self.decoder = nn.Linear(64, code), dense([code, 64, 48], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.code(self.each(x).amax(dim=2))).unflatten(1, (2, 24))


def pointed(seed: int, code: int) -> Setup:
    return live(PointCoder(code), clouds_of_points(seed, factors=6), "Adam", 1e-2, 120)


points = zoo.healthy("outlines-pointnet-code-of-24", lambda s: pointed(s, 24))
zoo.sick(
    "outlines-pointnet-code-of-1",
    lambda s: pointed(s, 1),
    both(worse(1.4), lasting(rank_at_most("code", 1.01))),
    *NARROW,
    layer=("code", "decoder.0"),
    also=SQUASHED,
    control=points,
)

# --- too small on the way back

# kuangliu/pytorch-cifar#28 (and rasbt/deeplearning-models#31): the batch norms are taken out of a VGG and accuracy
# stays that of chance.


def plain(seed: int, norm: bool) -> Setup:
    model = Pooled(vgg([16] * 7, 3, norm), 16, 8)
    return live(model, animals(seed), "SGD", 0.05, 90, momentum=0.9)


normed = zoo.healthy("animals-vgg-of-seven-with-norms", lambda s: plain(s, True))
zoo.sick(
    "animals-vgg-of-seven-norms-taken-out",
    lambda s: plain(s, False),
    both(gradient_ratio("features.0", "features.12", below=0.05), lags(0.3)),
    "VANISHING",
    "SLOW",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=normed,
)

# --- too large

# joshvarty.com "LTFN 6: weight initialization" and e-com-net.com 1281957349447188480: every kernel from a normal of
# deviation one, the cost is in the thousands; a tenth, or by the fan, is the fix.


def unit(seed: int, raw: bool) -> Setup:
    model = Pooled(vgg([12, 12, 12, 16], 3, False), 16, 8)
    return live(gaussian(model, 1.0) if raw else he(model), animals(seed), "SGD", 0.01, 90, momentum=0.9)


by_fan = zoo.healthy("animals-kernels-by-their-fan", lambda s: unit(s, False))
zoo.sick(
    "animals-kernels-of-deviation-one",
    lambda s: unit(s, True),
    both(activation_growth(10), worse(1.5)),
    *RUNS_AWAY,
    "first_loss_high",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=by_fan,
)

# --- nothing fires

# jiecaoyu/pytorch-nin-cifar10#1: a net in net ends in ReLU and mean; at a rate of 0.1 its logits become exactly zero,
# the loss the logarithm of their number, and stay so.


def nin(seed: int, lr: float) -> Setup:
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 8, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )
    return live(he(model), animals(seed), "SGD", lr, 100, momentum=0.9)


lower = zoo.healthy("animals-net-in-net-lower-rate", lambda s: nin(s, 0.02), thrives(0.15, most_dead=0.8))
zoo.sick(
    "animals-net-in-net-all-logits-zero",
    lambda s: nin(s, 2.0),
    both(at_last(dead("8", 0.99)), worse(1.4)),
    "DEAD",
    "DISCONNECTED",
    "rate_too_high",
    *RUNS_AWAY,
    layer=("0", "1", "2", "3", "5", "6", "7", "8"),
    also={*BLOWN, *UNLEARNED},
    control=lower,
)

# --- flat

# togheppi/DCGAN#2 and fchollet/deep-learning-with-python-notebooks#7: a generator that ends in tanh is held against
# pixels of 0..255.


class Painter(nn.Module):
    """Takes noise off a picture; ends in tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.last, self.tanh = nn.Conv2d(16, 1, 3, padding=1), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.tanh(self.last(self.net(x)))


def painted(seed: int, raw: bool) -> Setup:
    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.clamp(-3, 3) / 3
        return x / 3, 127.5 * (y + 1) if raw else y

    return live(Painter(), plates(seed, noise=0.6).changed(change), "Adam", 1e-2, 80)


ranged = zoo.healthy("plates-tanh-output-pixels-within-1", lambda s: painted(s, False))
zoo.sick(
    "plates-tanh-output-pixels-of-255",
    lambda s: painted(s, True),
    both(at_last(saturated("tanh", "tanh", 0.95)), lags(0.3)),
    "SATURATION",
    "VANISHING",
    layer=("last", "tanh"),
    also={"input_scales", "DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "first_loss_high", *UNLEARNED},
    control=ranged,
)

# --- alike and cut off

# pytorch/pytorch#19250: a norm of as many groups as channels on maps of one dot gives zeros, whatever comes in.


class Shrunk(nn.Module):
    """Strided convolutions down to one dot; a norm of some groups on it."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3))
        )
        self.norm, self.fc = nn.GroupNorm(groups, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.convs(x))).flatten(1))


def shrunk(seed: int, groups: int) -> Setup:
    return live(Shrunk(groups), animals(seed), "Adam", 4e-3, 80)


grouped = zoo.healthy("animals-one-dot-four-groups", lambda s: shrunk(s, 4))
zoo.sick(
    "animals-one-dot-a-group-for-each-channel",
    lambda s: shrunk(s, 32),
    both(lasting(same_for_all("norm")), lags(0.3)),
    "LOW_RANK",
    "BOTTLENECK",
    "DISCONNECTED",
    "DEAD",
    "VANISHING",
    layer=("norm", "convs.4", "fc"),
    also={"SYMMETRY", "SATURATION", *UNLEARNED},
    control=grouped,
)

# LZGMatrix/BOP19_CDPN_2019ICCV#4: coordinates by `argmax` of a heat map, and a layer behind; the maps never learn.


class Heat(nn.Module):
    """Heat maps say where the dots are, softly or by the hottest dot; a linear layer corrects."""

    def __init__(self, hard: bool, size: int = 12) -> None:
        super().__init__()
        self.maps = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))
        self.fix, self.hard, self.size = nn.Linear(6, 6), hard, size

    def forward(self, x: Tensor) -> Tensor:
        heat = self.maps(x).flatten(2)
        line = torch.linspace(-1, 1, self.size)
        if self.hard:
            at = heat.argmax(dim=2)
            places = torch.stack([line[at // self.size], line[at % self.size]], dim=2)
        else:
            share = heat.softmax(dim=2).unflatten(2, (self.size, self.size))
            places = torch.stack([(share.sum(dim=3) * line).sum(dim=2), (share.sum(dim=2) * line).sum(dim=2)], dim=2)
        return self.fix(places.flatten(1))


def heated(seed: int, hard: bool) -> Setup:
    return live(Heat(hard), hands(seed), "Adam", 1e-2, 90)


softly = zoo.healthy("hands-soft-argmax", lambda s: heated(s, False))
zoo.sick(
    "hands-hard-argmax",
    lambda s: heated(s, True),
    both(lasting(no_gradient("maps")), lags(0.1)),
    *CUT_OFF,
    "detached",
    layer=("maps", "maps.0", "maps.1", "maps.2"),
    also={"never_moves", "frozen"},
    control=softly,
)

# --- numbers

# jocicmarko/ultrasound-nerve-segmentation#4, jakeret/tf_unet#74: Dice without a smoothing term; a picture without a
# lesion divides nothing by nothing once the prediction is zero too.


class Mask(nn.Module):
    """A small net that scores every dot."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)),
            *(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def dice(smooth: float) -> Loss:
    """One minus the Dice coefficient of each picture; scores are capped to 0 and 1."""

    def loss(z: Tensor, mask: Tensor) -> Tensor:
        p = F.hardsigmoid(z).flatten(1)
        t = mask.flatten(1)
        return (1 - (2 * (p * t).sum(dim=1) + smooth) / (p.sum(dim=1) + t.sum(dim=1) + smooth)).mean()

    return loss


def segmented(seed: int, smooth: float) -> Setup:
    return live(Mask(), lesions(seed, empty=0.3).with_loss(dice(smooth)), "Adam", 2e-2, 100)


smoothed = zoo.healthy("lesions-dice-smoothed", lambda s: segmented(s, 1.0))
zoo.sick(
    "lesions-dice-zero-by-zero",
    lambda s: segmented(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={"EXPLODING", "UNSTABLE", "all_masked"},
    control=smoothed,
)

# --- steps

# FluxML/model-zoo#220 and geifmany/cifar-vgg#1: a VGG at the rate of its norms' twin diverges or jumps; a lower one
# learns.


def fast(seed: int, lr: float) -> Setup:
    model = he(Pooled(vgg([16, 16, 24], 3, False), 24, 8))
    return live(model, animals(seed), "SGD", lr, 80, momentum=0.9)


calm = zoo.healthy("animals-small-vgg-three-hundredths", lambda s: fast(s, 0.03))
zoo.sick(
    "animals-small-vgg-rate-1",
    lambda s: fast(s, 1.0),
    both(diverges(3), worse(1.5)),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=calm,
)

# arashno/tensorflow_multigpu_imagenet#18 and the usual "my loss decreases far too slowly": the rate was lowered too
# often.


def slow(seed: int, lr: float) -> Setup:
    return live(Pooled(vgg([16, 16, 24], 1, True), 24, 10), numerals(seed), "SGD", lr, 80, momentum=0.9)


brisk = zoo.healthy("numerals-small-vgg-a-tenth", lambda s: slow(s, 0.1))
zoo.sick(
    "numerals-small-vgg-a-hundred-millionth",
    lambda s: slow(s, 1e-8),
    both(does_not_move(1e-5), lags(0.2)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck"},
    control=brisk,
)

# taourl.com 2674227 (a Keras question, "identical outputs for different inputs"): kernels start at one value.


def even(seed: int, equal: bool) -> Setup:
    model = Pooled(vgg([16, 16], 3, False), 16, 8)
    model = start(model, lambda w: nn.init.constant_(w, 0.05)) if equal else he(model)
    return live(model, animals(seed), "Adam", 5e-3, 90)


drawn = zoo.healthy("animals-kernels-drawn-by-kaiming", lambda s: even(s, False))
zoo.sick(
    "animals-kernels-all-of-one-value",
    lambda s: even(s, True),
    both(lasting(equal_units("features.0.weight")), lags(0.1)),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("features.0", "features.1", "features.2", "features.3", "fc"),
    also={"DEAD", "VANISHING", *UNLEARNED},
    control=drawn,
)
