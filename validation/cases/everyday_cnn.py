# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks as people write them, with the faults that people have, and their twins.

Half: everyday.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import (
    CUT_OFF,
    NARROW,
    RUINED,
    beats,
    cells,
    clouds,
    digits,
    gaussian,
    he,
    photos,
    start,
)
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, channel_rank, equal_units, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("cnn", half="everyday", proof=thrives())


class LeNet(nn.Module):
    """Two convolutions, two pools, two linear layers: everybody's first."""

    def __init__(self, act=torch.relu, out: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc1, self.fc2, self.act = nn.Linear(144, 64), nn.Linear(64, out), act

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.act(self.conv1(x)), 2)
        x = F.max_pool2d(self.act(self.conv2(x)), 2)
        return self.fc2(self.act(self.fc1(x.flatten(1))))


def read(seed: int, model: nn.Module, *args, factor: float = 1.0, **more) -> Setup:
    return live(model, digits(seed).mapped(lambda x: factor * x), *args, **more)


class Vgg(nn.Module):
    """Convolutions of one width, two pools on the way, the mean, a head."""

    def __init__(self, depth: int, width: int = 16, norm: bool = True, act=torch.relu, classes: int = 8) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise([3, *[width] * depth]))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) if norm else nn.Identity() for _ in range(depth))
        self.head, self.act, self.pools = nn.Linear(width, classes), act, {depth // 3, 2 * depth // 3}

    def forward(self, x: Tensor) -> Tensor:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = self.act(norm(conv(x)))
            x = F.avg_pool2d(x, 2) if i in self.pools else x
        return self.head(x.mean(dim=(2, 3)))


def seen(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, photos(seed), *args, **more)


# --- dying and growing

normed = zoo.healthy("photos-vgg-12x16-batch-norm-sgd", lambda s: seen(s, Vgg(12), "SGD", 0.05, 50, momentum=0.9))
zoo.sick(
    "photos-vgg-12x16-no-norm-torch-default-sgd",
    lambda s: seen(s, Vgg(12, norm=False), "SGD", 0.05, 50, momentum=0.9),
    lasting(gradient_ratio("convs.0", "convs.11", below=10**-2.5)),
    "VANISHING",
    also={"SLOW", "LOW_RANK"},
    control=normed,
)
paced = zoo.healthy("digits-lenet-sgd-0.05-momentum", lambda s: read(s, LeNet(), "SGD", 0.05, 60, momentum=0.9))
zoo.sick(
    "photos-vgg-6x16-sigmoid-sgd",
    lambda s: seen(s, Vgg(6, norm=False, act=torch.sigmoid), "SGD", 0.05, 50, momentum=0.9),
    lasting(gradient_ratio("convs.0", "convs.5", below=10**-2.5)),
    "VANISHING",
    also={"SLOW", "LOW_RANK"},
    control=normed,
)
four = zoo.healthy("photos-vgg-5x16-kaiming-adam", lambda s: seen(s, he(Vgg(5, norm=False)), "Adam", 3e-3, 60))
zoo.sick(
    "photos-vgg-5x16-normal-1-adam",
    lambda s: seen(s, gaussian(Vgg(5, norm=False), 1.0), "Adam", 3e-3, 60),
    lasting(gradient_ratio("convs.0", "convs.4", above=100)),
    "EXPLODING",
    "UNSTABLE",
    control=four,
)
zoo.sick(
    "photos-vgg-5x16-kaiming-sgd-2-momentum",
    lambda s: seen(s, he(Vgg(5, norm=False)), "SGD", 2.0, 60, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=four,
)


class ConvCoder(nn.Module):
    """Strides down to a code of so many numbers, and back up; `last` bounds the picture."""

    def __init__(self, code: int, last=None) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 24, 3, 2, 1)
        self.fc, self.back = nn.Linear(216, code), nn.Linear(code, 216)
        self.up1, self.up2, self.last = nn.ConvTranspose2d(24, 12, 2, 2), nn.ConvTranspose2d(12, 1, 2, 2), last

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = F.relu(self.back(self.fc(x.flatten(1)))).unflatten(1, (24, 3, 3))
        x = self.up2(F.relu(self.up1(x)))
        return self.last(x) if self.last else x


coder = zoo.healthy("clouds-autoencoder-code-32", lambda s: live(ConvCoder(32), clouds(s), "Adam", 5e-3, 90))
zoo.sick(
    "clouds-autoencoder-summed-loss-sgd-0.01",
    lambda s: live(
        ConvCoder(32),
        clouds(s).with_loss(lambda y, t: F.mse_loss(y, t, reduction="sum")),
        "SGD",
        0.01,
        60,
        momentum=0.9,
    ),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=coder,
)


def bytes_at_times(seed: int, factor: float) -> Setup:
    """One worker of the loader forgets to divide by 255, so every eighth batch is of another scale."""
    now = every(8, 5)
    task = digits(seed).mapped(lambda x: x * (factor if now() else 1.0))
    return live(LeNet(), task, "Adam", 1e-3, 70)


even = zoo.healthy("digits-all-workers-divide-by-255", lambda s: bytes_at_times(s, 1.0))
zoo.sick(
    "digits-every-eighth-batch-not-divided-by-255",
    lambda s: bytes_at_times(s, 255.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)

# --- dead, flat, equal


def prior(seed: int, everywhere: bool) -> Setup:
    """The bias that a rare class asks for belongs to the head; here each layer gets it, or the head alone."""
    model = Segment()
    if everywhere:
        start(model, nn.init.kaiming_normal_, -4.6)
    else:
        nn.init.constant_(model.head.bias, -1.0)
    return live(model, cells(seed), "Adam", 3e-3, 60)


class Segment(nn.Module):
    """Three convolutions and a head over each dot, all at full size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


rare = zoo.healthy("cells-prior-in-the-bias-of-the-head", lambda s: prior(s, False))
zoo.sick(
    "cells-prior-in-the-bias-of-every-layer",
    lambda s: prior(s, True),
    lasting(never_fires("body.2", 0.99)),
    "DEAD",
    "DISCONNECTED",
    layer=("body.0", "body.2", "body.4"),
    also={"VANISHING", "SLOW"},
    control=rare,
)
zoo.sick(
    "digits-lenet-adam-0.5-kills-the-units",
    lambda s: read(s, LeNet(), "Adam", 0.5, 60),
    at_last(never_fires("fc1", 0.95)),
    "DEAD",
    "EXPLODING",
    "UNSTABLE",
    also={*RUINED, "NUMERICAL"},
    control=paced,
)
tanh = zoo.healthy("digits-lenet-tanh-adam", lambda s: read(s, LeNet(torch.tanh), "Adam", 3e-3, 50))
zoo.sick(
    "digits-lenet-tanh-bytes",
    lambda s: read(s, LeNet(torch.tanh), "Adam", 1e-3, 50, factor=255.0),
    lasting(flat_behind("conv1", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="conv1",
    also={"EXPLODING", "UNSTABLE"},
    control=tanh,
)


def painted(seed: int, size: float) -> Setup:
    """A sigmoid paints from 0 to 1; the targets reach as far, or to 255."""

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(y, size * torch.sigmoid(2 * t))

    return live(ConvCoder(32, torch.sigmoid), clouds(seed).with_loss(loss), "Adam", 5e-3, 90)


unit = zoo.healthy("clouds-sigmoid-picture-of-0-to-1", lambda s: painted(s, 1.0))
zoo.sick(
    "clouds-sigmoid-picture-of-0-to-255",
    lambda s: painted(s, 255.0),
    at_last(flat_behind("up2", "sigmoid", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="up2",
    also={"SLOW", "DEAD"},
    control=unit,
)
zoo.sick(
    "digits-lenet-constant-0.02",
    lambda s: read(s, start(LeNet(), lambda w: nn.init.constant_(w, 0.02)), "Adam", 3e-4, 50),
    lasting(equal_units("conv1.weight"), equal_units("conv2.weight"), equal_units("fc1.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "DEAD"},
    control=paced,
)

# --- narrow

zoo.sick(
    "clouds-autoencoder-code-2-of-16-factors",
    lambda s: live(ConvCoder(2), clouds(s), "Adam", 5e-3, 90),
    lags(0.15),
    *NARROW,
    layer=("fc", "back"),
    also={"DEAD"},
    control=coder,
)


class Waist(nn.Module):
    """A point-wise convolution to `narrow` channels in the middle, with norms all along."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, narrow, 1),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.fc = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean(dim=(2, 3)))


broad = zoo.healthy("photos-point-wise-to-16-channels", lambda s: seen(s, Waist(16), "Adam", 5e-3, 60))
zoo.sick(
    "photos-point-wise-to-1-channel",
    lambda s: seen(s, Waist(1), "Adam", 5e-3, 60),
    lags(0.15),
    *NARROW,
    layer=("body.3", "body.6"),
    control=broad,
)


class Flat(nn.Module):
    """Features, then `numbers` of them for a plot, then classes."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.embed, self.fc = nn.Linear(144, numbers), nn.Linear(numbers, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(self.embed(x.flatten(1)))


fifty = zoo.healthy("digits-features-of-48-numbers", lambda s: read(s, Flat(48), "Adam", 5e-3, 80))
zoo.sick(
    "digits-features-of-2-numbers-to-plot",
    lambda s: read(s, Flat(2), "Adam", 5e-3, 80),
    lags(0.15),
    *NARROW,
    layer=("embed", "fc"),
    control=fifty,
)


class Clean(nn.Module):
    """Down, a floor of `floor` channels, up: colour pictures freed of noise, without a skip."""

    def __init__(self, floor: int) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ELU(), nn.MaxPool2d(2))
        self.floor, self.lift = nn.Conv2d(24, floor, 3, padding=1), nn.Conv2d(floor, 24, 3, padding=1)
        self.out = nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.lift(F.elu(self.floor(self.enc(x)))))
        return self.out(F.interpolate(x, scale_factor=2))


def cleaned(seed: int, floor: int) -> Setup:
    return live(Clean(floor), clouds(seed, channels=3, noise=0.3), "Adam", 5e-3, 70)


deep = zoo.healthy("clouds-noise-taken-away-floor-of-16", lambda s: cleaned(s, 16))
zoo.sick(
    "clouds-noise-taken-away-floor-of-2",
    lambda s: cleaned(s, 2),
    lags(0.15),
    *NARROW,
    layer=("floor", "lift"),
    control=deep,
)


class Leads(nn.Module):
    """Convolutions over time; the second hands on `narrow` channels."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(2, 24, 7, padding=3), nn.Conv1d(24, narrow, 5, padding=2)
        self.conv3, self.fc = nn.Conv1d(narrow, 32, 5, padding=2), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return self.fc(F.gelu(self.conv3(x)).amax(dim=2))


ample = zoo.healthy("beats-conv1d-24-24-32", lambda s: live(Leads(24), beats(s), "Adam", 5e-3, 50))
zoo.sick(
    "beats-conv1d-24-1-32",
    lambda s: live(Leads(1), beats(s), "Adam", 5e-3, 50),
    both(lags(0.1), lasting(channel_rank("conv2", 1.01))),
    *NARROW,
    layer=("conv2", "conv3"),
    control=ample,
)

# --- cut


class Focus(nn.Module):
    """A small net says where to look; `hard` cuts its map at a half, which no gradient passes."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.where, self.point = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
        self.conv, self.fc, self.hard = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16 * 36, 10), hard

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.sigmoid(self.point(F.relu(self.where(x))))
        mask = (mask > 0.4).float() if self.hard else mask
        return self.fc(F.max_pool2d(F.relu(self.conv(x * mask)), 2).flatten(1))


soft = zoo.healthy("digits-soft-mask", lambda s: read(s, Focus(False), "Adam", 3e-3, 50))
zoo.sick(
    "digits-mask-by-threshold",
    lambda s: read(s, Focus(True), "Adam", 3e-3, 50),
    lasting(no_gradient("where", "point")),
    *CUT_OFF,
    layer=("point", "where"),
    control=soft,
)


class Rounded(nn.Module):
    """A code of whole numbers; with `straight` the gradient passes the rounding as if it were not there."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, 2, 1))
        self.dec = nn.Sequential(nn.ConvTranspose2d(8, 16, 2, 2), nn.ReLU(), nn.ConvTranspose2d(16, 1, 2, 2))
        self.straight = straight

    def forward(self, x: Tensor) -> Tensor:
        z = 2 * self.enc(x)
        code = z + (z.round() - z).detach() if self.straight else z.round()
        return self.dec(code)


straight = zoo.healthy(
    "clouds-rounded-code-straight-through", lambda s: live(Rounded(True), clouds(s), "Adam", 1e-2, 80)
)
zoo.sick(
    "clouds-rounded-code-no-straight-through",
    lambda s: live(Rounded(False), clouds(s), "Adam", 1e-2, 80),
    lasting(no_gradient("enc")),
    *CUT_OFF,
    layer=("enc.2", "enc.0"),
    also={"VANISHING"},
    control=straight,
)


class Tuned(nn.Module):
    """A backbone and a head; the backbone should learn too, but somebody left `no_grad` around it."""

    def __init__(self, blind: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
        )
        self.head, self.blind = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)), blind

    def forward(self, x: Tensor) -> Tensor:
        if self.blind:
            with torch.no_grad():
                h = self.backbone(x)
        else:
            h = self.backbone(x)
        return self.head(h.mean(dim=(2, 3)))


tuned = zoo.healthy("photos-backbone-and-head-tuned", lambda s: seen(s, Tuned(False), "AdamW", 5e-3, 60))
zoo.sick(
    "photos-backbone-left-under-no-grad",
    lambda s: seen(s, Tuned(True), "AdamW", 5e-3, 60),
    lasting(no_gradient("backbone")),
    *CUT_OFF,
    layer=("backbone.3", "backbone.0", "head.0"),
    control=tuned,
)

# --- numbers and rates


def dice(smooth: float):
    """The logarithm of the overlap."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        overlap = (2 * (p * t).sum(dim=(1, 2, 3)) + smooth) / ((p + t).sum(dim=(1, 2, 3)) + smooth)
        return -overlap.log().mean()

    return loss


def empty(seed: int, smooth: float) -> Setup:
    """In one batch of twelve a picture shows no cell."""
    now = every(12, 7)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if now():
            t = t.clone()
            t[0] = 0
        return x, t

    return live(Segment(), cells(seed).changed(change).with_loss(dice(smooth)), "Adam", 5e-3, 60)


smooth = zoo.healthy("cells-log-dice-smoothed", lambda s: empty(s, 1.0))
zoo.sick(
    "cells-log-dice-of-an-empty-mask",
    lambda s: empty(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=smooth,
)


class Sphere(nn.Module):
    """Features of length one, compared with the directions of the classes."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.fc, self.eps = nn.Linear(32 * 9, 10, bias=False), eps

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return 8 * self.fc(x / (x.norm(dim=1, keepdim=True) + self.eps))


def blank(seed: int, eps: float) -> Setup:
    """One picture of the tenth batch is black."""
    now = every(100, 9)
    task = digits(seed).mapped(lambda x: torch.cat([0 * x[:1], x[1:]]) if now() else x)
    return live(Sphere(eps), task, "Adam", 3e-3, 60)


lit = zoo.healthy("digits-unit-features-with-eps", lambda s: blank(s, 1e-6))
zoo.sick("digits-unit-features-of-a-black-picture", lambda s: blank(s, 0.0), breaks, "NUMERICAL", control=lit)
zoo.sick(
    "digits-lenet-sgd-5e-8-momentum",
    lambda s: read(s, LeNet(), "SGD", 5e-8, 60, momentum=0.9),
    does_not_move(steps=60),
    "SLOW",
    control=paced,
)
zoo.sick(
    "digits-lenet-sgd-0.05-clipped-to-1e-6",
    lambda s: read(s, LeNet(), "SGD", 0.05, 60, momentum=0.9, clip=1e-6),
    does_not_move(steps=60),
    "SLOW",
    control=paced,
)
