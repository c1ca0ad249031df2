# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Pictures through nets that look odd and train well: U-shapes, depthwise, squeezes, groups, dilation, twins.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Zoo
from validation.cases._drill_tasks import signs, stains, waves
from validation.evidence import thrives
from validation.setups import live

zoo = Zoo("cnn", half="drill", proof=thrives())


def conv(a: int, b: int, size: int = 3, **more) -> nn.Conv2d:
    return nn.Conv2d(a, b, size, padding="same" if more.get("stride", 1) == 1 else 1, **more)


class Unet(nn.Module):
    """Down, a few channels at the bottom, up again, what was seen on the way beside it."""

    def __init__(self, bottom: int) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(1, 12), conv(12, 24, stride=2), conv(24, bottom, stride=2)
        self.up1, self.d = nn.ConvTranspose2d(bottom, 24, 2, 2), conv(48, 12)
        self.up2, self.out = nn.ConvTranspose2d(12, 12, 2, 2), nn.Conv2d(24, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        b = F.relu(self.b(a))
        x = F.relu(self.d(torch.cat([self.up1(F.relu(self.c(b))), b], dim=1)))
        return self.out(torch.cat([F.relu(self.up2(x)), a], dim=1))


zoo.healthy("stains-u-shape-four-at-the-bottom", lambda s: live(Unet(4), stains(s), lr=3e-3, steps=60))
zoo.healthy("stains-two-at-a-time", lambda s: live(Unet(16), stains(s, batch=2), lr=2e-3, steps=80))


class Head(nn.Module):
    """A body of pictures, the mean over places, a class."""

    def __init__(self, body: nn.Module, size: int, largest: bool = False) -> None:
        super().__init__()
        self.body, self.out, self.largest = body, nn.Linear(size, 6), largest

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.out(x.amax(dim=(2, 3)) if self.largest else x.mean(dim=(2, 3)))


def depthwise(a: int, b: int) -> nn.Sequential:
    return nn.Sequential(
        conv(a, a, groups=a), nn.BatchNorm2d(a), nn.ReLU6(), nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU6()
    )


def signed(seed: int, body: nn.Module, size: int, largest: bool = True, **more):
    return live(Head(body, size, largest), signs(seed), **{"lr": 5e-3, "steps": 80, **more})


zoo.healthy(
    "signs-depthwise", lambda s: signed(s, nn.Sequential(conv(1, 16, 5), depthwise(16, 32), depthwise(32, 32)), 32)
)


class Causal(nn.Module):
    """Dilated layers over time with gates, sums of what each says."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 16, 1)
        self.layers = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2**i) for i in range(4))
        self.says, self.out = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4)), nn.Conv1d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, said = self.enter(x.mT), 0.0
        for i, (layer, say) in enumerate(zip(self.layers, self.says, strict=True)):
            a, b = layer(F.pad(x, (2**i, 0))).chunk(2, dim=1)
            h = say(torch.tanh(a) * torch.sigmoid(b))
            x, said = x + h, said + h
        return self.out(F.relu(said)).mT


zoo.healthy("waves-dilated-with-gates", lambda s: live(Causal(), waves(s), lr=5e-3, steps=60))


class Same(nn.Module):
    """Are two pictures of one kind? One body for both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = (
            Head(nn.Sequential(conv(1, 24, 5), nn.ReLU(), conv(24, 24), nn.ReLU()), 24, True),
            nn.Linear(6, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.out((h[::2] - h[1::2]).abs()).squeeze(1)


def same(z: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, (t[::2] == t[1::2]).float())


zoo.healthy(
    "signs-two-of-a-kind",
    lambda s: live(Same(), signs(s, classes=3, batch=64).with_loss(same), lr=5e-3, steps=90),
    thrives(0.05, idle="body.out.bias"),  # it cancels in the difference
)
