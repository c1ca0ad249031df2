# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks of odd shapes, all healthy.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import converged, trains
from validation.nets import deep_conv, he_
from validation.setups import frozen, pair, pretrain
from validation.tasks import images, pictures

FASTER = trains(lr=1e-2, steps=30)
zoo = Zoo("cnn", half="tune", proof=trains(lr=3e-3, steps=30))


# --- whole architectures


class UNet(nn.Module):
    """Down and up again, with skips around a narrow middle."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1, stride=2)
        self.middle = nn.Conv2d(width, narrow, 3, padding=1, stride=2)
        self.up2 = nn.ConvTranspose2d(narrow, width, 2, stride=2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(a))
        c = F.relu(self.up2(F.relu(self.middle(b))))
        d = F.relu(self.up1(torch.cat([b, c], dim=1)))
        return self.out(torch.cat([a, d], dim=1))


def denoising(seed: int, model: nn.Module) -> Setup:
    task = images(seed, 1, 12, 6, 16, 1.5)
    clean: dict[str, Tensor] = {}

    def blur(x: Tensor) -> Tensor:
        clean["x"] = F.avg_pool2d(x, 3, 1, 1)
        return x

    return pair(model, task.mapped(blur).with_loss(lambda y, _: F.mse_loss(y, clean["x"])))


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with ReLU6, as in mobile nets."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.depthwise = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(depth))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(depth))
        self.acts = nn.ModuleList(nn.ReLU6() for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, pointwise, norm, act in zip(self.depthwise, self.pointwise, self.norms, self.acts, strict=True):
            x = act(norm(pointwise(depthwise(x))))
        return self.head(x.mean(dim=(2, 3)))


class Dense(nn.Module):
    """Each layer sees all before it."""

    def __init__(self, growth: int, depth: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + i * growth, growth, 3, padding=1) for i in range(depth))
        self.head = nn.Linear(3 + depth * growth, classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], dim=1)
        return self.head(x.mean(dim=(2, 3)))


class Waves(nn.Module):
    """One-dimensional dilated convolutions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.Sequential()
        for i in range(4):
            self.convs.append(nn.Conv1d(3 if i == 0 else width, width, 3, padding=2**i, dilation=2**i))
            self.convs.append(nn.SiLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convs(x.flatten(2)).amax(dim=2))


zoo.healthy("u-net-narrow-middle", lambda s: denoising(s, he_(UNet(12, 3))))
zoo.healthy("depthwise-separable-4x24", lambda s: pair(Separable(24, 4, 8), images(s)))
zoo.healthy("densely-connected-5x8", lambda s: pair(he_(Dense(8, 5, 8)), images(s, size=8)))
zoo.healthy("dilated-1d-4x24", lambda s: pair(he_(Waves(24, 8)), images(s, size=6)))


class Inception(nn.Module):
    """Branches with kernels of several sizes side by side, then a narrow mix."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(3, width, k, padding=k // 2) for k in (1, 3, 5))
        self.mix, self.act = nn.Conv2d(3 * width, width, 1), nn.ReLU()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(branch(x)) for branch in self.branches], dim=1)
        return self.head(self.act(self.mix(x)).mean(dim=(2, 3)))


class Excite(nn.Module):
    """Weighs channels by a gate that passes through two numbers, beside the main path."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.squeeze, self.excite = nn.Linear(width, 2), nn.Linear(2, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(x))))
        gate = torch.sigmoid(self.excite(F.elu(self.squeeze(x.mean(dim=(2, 3))))))
        return self.head((x * gate[..., None, None]).mean(dim=(2, 3)))


class Upscale(nn.Module):
    """Twice the size by rearranging channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.PReLU(), nn.Conv2d(24, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.body(F.avg_pool2d(x, 2)), 2)


class Flattened(nn.Module):
    """One convolution, then a large linear layer, as in the first of such networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide, self.head = nn.Conv2d(1, 8, 5), nn.Linear(8 * 64, 400), nn.Linear(400, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.wide(torch.tanh(self.conv(x)).flatten(1))))


zoo.healthy("inception-1-3-5", lambda s: pair(he_(Inception(12, 7)), images(s, 3, 8, 7, 24)), FASTER)
zoo.healthy("squeeze-and-excite-through-2", lambda s: pair(he_(Excite(20, 6)), images(s, 3, 8, 6, 24)), FASTER)
zoo.healthy("upscale-by-shuffled-channels", lambda s: pair(Upscale(), pictures(s, 6, 12, 1, 8)), FASTER)
zoo.healthy("flatten-and-wide-linear", lambda s: pair(Flattened(), images(s, 1, 12, 9, 16)), trains(lr=1e-3))

# --- norms, strides, pools

zoo.healthy(
    "group-norm-4x16", lambda s: pair(deep_conv(4, 16, nn.SiLU, norm=lambda n: nn.GroupNorm(4, n), stride=2), images(s))
)
zoo.healthy("batch-norm-6x16", lambda s: pair(deep_conv(6, 16, norm=nn.BatchNorm2d), images(s, size=8)))
zoo.healthy("strided-gelu-3x24", lambda s: pair(he_(deep_conv(3, 24, nn.GELU, stride=2)), images(s)))
zoo.healthy("max-pool-4x16", lambda s: pair(he_(deep_conv(4, 16, pool=(0, 1))), images(s, size=16)))

# --- scaled, frozen, finished

zoo.healthy("loss-times-1e4", lambda s: pair(he_(deep_conv(4, 16, nn.SiLU)), images(s).scaled(1e4)))
zoo.healthy(
    "frozen-trunk-new-head",
    lambda s: pair(frozen(he_(deep_conv(4, 24)), "convs"), images(s, size=8)),
    trains(lr=3e-2, steps=40, fall=0.05),
)
zoo.healthy(
    "frozen-batch-norm", lambda s: pair(frozen(deep_conv(4, 16, norm=nn.BatchNorm2d), "norms"), images(s, size=8))
)
zoo.healthy(
    "converged",
    lambda s: pretrain(pair(he_(deep_conv(2, 24, pool=(0,))), images(s, size=8, batch=16).fixed()), 80, 1e-2),
    converged(0.1),
)
