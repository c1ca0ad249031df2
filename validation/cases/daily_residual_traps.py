# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily residual networks that train well, some of them a little unusual.

Half: daily.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import Head, conv
from validation.cases._daily_nets import (
    Block,
    Rows,
    alloys,
    bearings,
    bumps,
    buoys,
    friends,
    gaits,
    galaxies,
    leaves,
    pendulums,
)
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain

zoo = Zoo("residual", half="daily", proof=thrives(0.2, most_dead=0.5))

zoo.healthy("galaxies-eight-pre-norm-blocks-clipped", lambda s: live(
    Rows((16, 40, 9), [Block(40, F.gelu) for _ in range(8)]), galaxies(s), "AdamW", 3e-3, 60, clip=1.0
))  # fmt: skip
zoo.healthy("galaxies-branches-from-zero-adam", lambda s: live(
    Rows((16, 40, 9), [Block(40, torch.relu, False, 0.0) for _ in range(5)]), galaxies(s), "Adam", 4e-3, 60
))  # fmt: skip
zoo.healthy("galaxies-blocks-batches-of-4", lambda s: live(
    Rows((16, 40, 9), [Block(40) for _ in range(2)]), galaxies(s, batch=4), "SGD", 0.02, 120, momentum=0.9
))  # fmt: skip
zoo.healthy("alloys-branches-of-a-tenth-adamw", lambda s: live(
    Rows((10, 48, 6), [Block(48, scale=0.1) for _ in range(6)]), alloys(s), "AdamW", 4e-3, 70, weight_decay=0.05
))  # fmt: skip
zoo.healthy("alloys-three-blocks-radam", lambda s: live(
    Rows((10, 48, 6), [Block(48, torch.tanh) for _ in range(3)]), alloys(s), "RAdam", 1e-2, 80
))  # fmt: skip


class Change(nn.Module):
    """What changes is learned and added to the state."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 4))
        nn.init.zeros_(self.net[4].weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


zoo.healthy("pendulums-what-changes-is-added", lambda s: live(Change(), pendulums(s), "Adam", 5e-3, 80))


class Halves(nn.Module):
    """Two halves of the stream in turn, each changed by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = (nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        a = a + self.f(b)
        return torch.cat([a, b + self.g(a)], dim=1)


zoo.healthy("gaits-reversible-halves-denoise", lambda s: live(
    Rows((36, 48, 36), [Halves() for _ in range(3)]), gaits(s, noise=0.4), "Adam", 4e-3, 80
))  # fmt: skip


class Friends(nn.Module):
    """Three rounds over friends, each added to what a person was."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.rounds = nn.Linear(8, 32), nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(32) for _ in range(3)), nn.Linear(32, 4)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        x, link = self.stem(x), link / link.sum(dim=2, keepdim=True)
        for norm, layer in zip(self.norms, self.rounds, strict=True):
            x = x + F.relu(layer(link @ norm(x)))
        return self.head(x)


zoo.healthy("friends-three-rounds-added", lambda s: live(Friends(), friends(s), "Adam", 5e-3, 60))


class Basic(nn.Module):
    """Two convolutions and a skip, by a strided kernel where the size changes."""

    def __init__(self, a: int, b: int, stride: int = 1, zero: bool = False) -> None:
        super().__init__()
        self.first, self.second = conv(a, b, stride), nn.Conv2d(b, b, 3, padding=1, bias=False)
        self.norm, self.skip = nn.BatchNorm2d(b), nn.Identity() if a == b else nn.Conv2d(a, b, 1, stride, bias=False)
        if zero:
            nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.norm(self.second(self.first(x))))


def resnet(zero: bool = False) -> nn.Sequential:
    return nn.Sequential(conv(3, 12), Basic(12, 12, zero=zero), Basic(12, 24, 2, zero=zero), Head(24, 8))


zoo.healthy("leaves-resnet-sgd-step-decay", lambda s: live(
    resnet(), leaves(s), "SGD", 0.05, 60, momentum=0.9, weight_decay=5e-4, rate=lambda t: 0.1 ** (t // 40)
))  # fmt: skip
zoo.healthy("leaves-resnet-last-scales-from-zero", lambda s: live(resnet(True), leaves(s), "AdamW", 4e-3, 50))


def tuned(seed: int) -> Setup:
    """Trained on other leaves; the stem and the first block are frozen."""
    model = resnet()
    pretrain(live(model, leaves(seed + 4)), 40)
    model[3] = Head(24, 8)
    return live(frozen(model, "0", "1"), leaves(seed), "AdamW", 4e-3, 50)


zoo.healthy("leaves-resnet-first-block-frozen", tuned)


class Steps(nn.Module):
    """One block is used four times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.out = nn.Conv2d(1, 20, 3, padding=1), Light(20), nn.Conv2d(20, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for _ in range(4):
            h = self.block(h)
        return x - self.out(h)


class Light(nn.Module):
    """A convolution beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * F.leaky_relu(self.conv(x), 0.1)


zoo.healthy("bumps-one-block-four-times", lambda s: live(Steps(), bumps(s, noise=0.5), "Adam", 3e-3, 60))


class Dilated(nn.Module):
    """Gated dilated convolutions; what each says is added to the stream and to the answer."""

    def __init__(self, inputs: int, out: int, width: int = 20) -> None:
        super().__init__()
        self.stem = nn.Conv1d(inputs, width, 1)
        self.convs = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, dilation=2**i, padding=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.out = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        x, said = self.stem(x), 0.0
        for layer, skip in zip(self.convs, self.skips, strict=True):
            a, b = layer(x).chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            x, said = x + h, said + skip(h)
        return self.out(F.relu(said).amax(dim=2))


zoo.healthy("bearings-gated-dilated", lambda s: live(Dilated(2, 7), bearings(s), "Adam", 5e-3, 90))
zoo.healthy("buoys-gated-dilated-means", lambda s: live(
    Dilated(3, 3), buoys(s).changed(lambda x, y: (x, x[..., -4:].mean(dim=2))), "AdamW", 5e-3, 80
))  # fmt: skip
