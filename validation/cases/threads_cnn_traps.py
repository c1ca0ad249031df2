# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks that learn, some with what people in threads took for a fault.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._threads_nets import (
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
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain

zoo = Zoo("cnn", half="threads", proof=thrives(0.2, most_dead=0.5))


class Squeezed(nn.Module):
    """A gate of the channels by two numbers: few, but only a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 24, 3, 1, 1), nn.Conv2d(24, 24, 3, 1, 1), nn.Linear(24, 8)
        self.squeeze, self.excite = nn.Linear(24, 2), nn.Linear(2, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = x * torch.sigmoid(self.excite(F.gelu(self.squeeze(x.mean(dim=(2, 3))))))[..., None, None]
        return self.fc(F.relu(self.conv2(x)).mean(dim=(2, 3)))


# xiaolai-sqlai/mobilenetv3#33: how much may a gate reduce? Much.
zoo.healthy("leaves-gate-squeezed-to-2", lambda s: live(Squeezed(), leaves(s), "Adam", 5e-3, 90))


class Firing(nn.Module):
    """A one by one convolution of eight channels between wider ones, as squeeze nets have it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(3, 24, 3, 1, 1), nn.Conv2d(24, 8, 1)
        self.one, self.three, self.fc = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 3, 1, 1), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(F.relu(self.stem(x))))
        return self.fc(torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], dim=1).mean(dim=(2, 3)))


zoo.healthy("leaves-squeeze-net-fire", lambda s: live(Firing(), leaves(s, noise=0.4), "Adam", 8e-3, 100))
# jakeret/tf_unet#234: mostly ground, so the loss is small from the start; it learns all the same.


class Rare(nn.Module):
    """Convolutions with a first guess that says ground."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = convs(1, [16, 16], norm=True), nn.Conv2d(16, 1, 1)
        nn.init.constant_(self.out.bias, -1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


zoo.healthy("cells-first-guess-says-ground", lambda s: live(Rare(), cells(s), "Adam", 5e-3, 70))


def pooled(seed: int) -> Setup:
    features = nn.Sequential(convs(1, [16]), nn.MaxPool2d(2), convs(16, [24]), nn.MaxPool2d(2), nn.Flatten())
    return live(nn.Sequential(features, nn.Dropout(0.4), layers([216, 48, 10])), kanji(seed), "Adam", 3e-3, 80)


zoo.healthy("kanji-max-pool-dropout", pooled)


def denoised(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 9140)
    task = paintings(seed, size=12).mapped(lambda x: x + 0.5 * torch.randn(x.shape, generator=random))
    return live(nn.Sequential(convs(1, [16, 16]), nn.Conv2d(16, 1, 3, 1, 1)), task, "Adam", 3e-3, 70)


zoo.healthy("paintings-denoised", denoised)


def small(seed: int) -> Setup:
    norms = ((nn.Conv2d(a, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.ReLU()) for a in (3, 16))
    body = nn.Sequential(*(part for parts in norms for part in parts))
    return live(Averaged(body, 16, 8), leaves(seed, batch=4), "Adam", 4e-3, 110)


zoo.healthy("leaves-batches-of-4-group-norm", small)


class Apart(nn.Module):
    """Depthwise and pointwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.point = (
            nn.Conv2d(3, 24, 3, 1, 1),
            nn.Conv2d(24, 24, 3, 1, 1, groups=24),
            nn.Conv2d(24, 32, 1),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (24, 24, 32))
        self.fc = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip((self.stem, self.deep, self.point), self.norms, strict=True):
            x = F.relu6(norm(layer(x)))
        return self.fc(x.mean(dim=(2, 3)))


zoo.healthy("leaves-depthwise", lambda s: live(Apart(), leaves(s), "SGD", 0.05, 80, momentum=0.9))


def tuned(seed: int) -> Setup:
    model = Averaged(convs(3, [16, 24], norm=True), 24, 8)
    pretrain(live(model, leaves(seed)), 40)
    nn.init.normal_(model.head.weight, std=0.01)
    nn.init.zeros_(model.head.bias)
    return live(frozen(model, "body"), leaves(seed), "Adam", 2e-2, 60)


zoo.healthy("leaves-frozen-features", tuned)


def clipped(seed: int) -> Setup:
    leaky = nn.LeakyReLU
    model = nn.Sequential(convs(1, [16, 24], leaky, stride=2), nn.Flatten(), layers([216, 48, 4], leaky))
    return live(model, boxes(seed), "AdamW", 3e-3, 90, clip=0.2)


zoo.healthy("boxes-leaky-clipped", clipped)


class Dilated(nn.Module):
    """Convolutions over a lead with growing steps."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            *(nn.Conv1d(1, 16, 5, padding=2), nn.GELU(), nn.Conv1d(16, 16, 5, padding=4, dilation=2), nn.GELU()),
            *(nn.Conv1d(16, 24, 5, padding=8, dilation=4), nn.GELU()),
        )
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.convs(x).amax(dim=2))


zoo.healthy("beats-dilated", lambda s: live(Dilated(), beats(s), "Adam", 5e-3, 90))
zoo.healthy(
    "fields-tanh-convolutions",
    lambda s: live(nn.Sequential(convs(6, [24, 24], nn.Tanh), nn.Conv2d(24, 6, 1)), fields(s), "Adam", 5e-3, 80),
)
