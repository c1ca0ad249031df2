# ruff: noqa: D102 - a forward is explained by its class
"""Convolutional networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.nets.dense import Activation
from validation.nets.weights import he_


class ConvNet(nn.Module):
    """3×3 convolutions ("convs.0" …), global average, linear head; `pool` halves the image after those layers."""

    def __init__(
        self,
        channels: Sequence[int],
        classes: int = 8,
        act: Activation = nn.ReLU,
        norm: Callable[[int], nn.Module] | None = None,
        pool: Sequence[int] = (),
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.convs, self.norms, self.acts = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.pool = set(pool)
        for fan_in, fan_out in pairwise(channels):
            self.convs.append(nn.Conv2d(fan_in, fan_out, 3, padding=1, stride=stride))
            self.norms.append(norm(fan_out) if norm else nn.Identity())
            self.acts.append(act())
        self.head = nn.Linear(channels[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        for i, (conv, norm, act) in enumerate(zip(self.convs, self.norms, self.acts, strict=True)):
            x = act(norm(conv(x)))
            if i in self.pool:
                x = F.max_pool2d(x, 2)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean(dim=(2, 3)))


class Signal(nn.Module):
    """One-dimensional convolutions over several channels, largest value over time, head: "convs.0" …, "acts.0" …"""

    def __init__(self, channels: Sequence[int], classes: int = 6, act: Activation = nn.ReLU, kernel: int = 5) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(a, b, kernel, padding=kernel // 2) for a, b in pairwise(channels))
        self.acts = nn.ModuleList(act() for _ in self.convs)
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv, act in zip(self.convs, self.acts, strict=True):
            x = act(conv(x))
        return self.head(x.amax(dim=2))


class Mobile(nn.Module):
    """Depthwise and pointwise convolutions without norms: "stem", "depthwise.0", "pointwise.0", … "head"."""

    def __init__(self, widths: Sequence[int], classes: int, act: Activation = nn.SiLU) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.depthwise = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1, groups=a) for a in widths[:-1])
        self.pointwise = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairwise(widths))
        self.acts = nn.ModuleList(act() for _ in self.pointwise)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, pointwise, act in zip(self.depthwise, self.pointwise, self.acts, strict=True):
            x = act(pointwise(depthwise(x)))
        return self.head(x.mean(dim=(2, 3)))


class UNet(nn.Module):
    """Two levels down and up with group norms; `cut` detaches what comes from below."""

    def __init__(self, width: int, narrow: int, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.enter, self.down = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1, stride=2)
        self.deep = nn.Conv2d(width, narrow, 3, padding=1, stride=2)
        self.norm, self.deep_act = nn.GroupNorm(1, narrow), nn.ReLU()
        self.up = nn.ConvTranspose2d(narrow, width, 4, stride=4)
        self.merge, self.merge_act = nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU()
        self.out = nn.Conv2d(width, 1, 1)
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.enter(x))
        below = self.up(self.deep_act(self.norm(self.deep(F.relu(self.down(a))))))
        below = below.detach() if self.cut else below
        return self.out(self.merge_act(self.merge(torch.cat([a, below], dim=1))))


class ConvCoder(nn.Module):
    """Strided convolutions to a code of `latent` channels on a 2×2 map, and back."""

    def __init__(self, width: int, latent: int, act: Activation = nn.ELU) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), act(), nn.Conv2d(width, latent, 3, stride=2, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(latent, width, 2, stride=2), act(), nn.ConvTranspose2d(width, 1, 2, stride=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def deep_conv(depth: int, width: int, act: Activation = nn.ReLU, **more) -> ConvNet:
    """`depth` convolutions of the same width over three channels."""
    return ConvNet([3] + [width] * depth, act=act, **more)
