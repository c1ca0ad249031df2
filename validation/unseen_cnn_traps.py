# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks that look odd and are healthy. Set aside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_training import converged, trains
from validation.nets import ConvNet, he_
from validation.nets_unseen import ConvCoder, Signal, UNet
from validation.setups import frozen, pair, pretrain
from validation.tasks import Task, images
from validation.tasks_unseen import pictures, waves

FAST = trains(lr=1e-2, steps=30)
zoo = Zoo("cnn", proof=FAST)


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


class Twins(nn.Module):
    """Embeds two pictures with the same convolutions and tells how far they are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.net = he_(ConvNet([1, 16, 24], 12, nn.ELU, stride=2))
        self.net.head.register_parameter("bias", None)  # would cancel out of every difference

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.net(x[:, :1]), self.net(x[:, 1:])
        return (a - b).square().sum(dim=1)


def same_or_not(seed: int) -> Setup:
    """Pairs of pictures of the same class, or of two."""

    def loss(distance: Tensor, target: Tensor) -> Tensor:
        alike = (target == target.roll(1)).float()
        return (alike * distance + (1 - alike) * F.relu(4 - distance)).mean()

    return pair(
        Twins(), images(seed, 1, 8, 4, 32, 2.0).mapped(lambda x: torch.cat([x, x.roll(1, 0)], 1)).with_loss(loss)
    )


class Upscale(nn.Module):
    """Twice the size by rearranging channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.PReLU(), nn.Conv2d(24, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.body(F.avg_pool2d(x, 2)), 2)


class Variational(nn.Module):
    """Convolutional encoder to a Gaussian code, transposed convolutions back."""

    def __init__(self, latent: int, seed: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten())
        self.to_code = nn.Linear(192, 2 * latent)
        self.from_code = nn.Linear(latent, 192)
        self.decoder = nn.ConvTranspose2d(12, 1, 2, stride=2)
        self.random = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.to_code(self.encoder(x)).chunk(2, dim=1)
        z = mean + (log_var / 2).exp() * torch.randn(mean.shape, generator=self.random)
        return self.decoder(F.silu(self.from_code(z)).view(-1, 12, 4, 4)), mean, log_var


def evidence_bound(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    y, mean, log_var = out
    divergence = (mean.square() + log_var.exp() - 1 - log_var).sum(dim=1).mean() / 2
    return (y - x).square().flatten(1).sum(dim=1).mean() + 0.5 * divergence


def overlap(z: Tensor, x: Tensor) -> Tensor:
    """One minus the soft Dice overlap with the bright tenth of the pixels."""
    p, bright = torch.sigmoid(z), (x > 1.0).float()
    return 1 - (2 * (p * bright).sum() + 1) / (p.sum() + bright.sum() + 1)


class TwoScales(nn.Module):
    """Heads on two depths, both trained."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 16, 3, padding=1, stride=2), nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.low_head, self.high_head = nn.Linear(16, 6), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = F.silu(self.low(x))
        return self.low_head(low.mean(dim=(2, 3))), self.high_head(F.silu(self.high(low)).mean(dim=(2, 3)))


def two_scales(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(out[1], target) + 0.3 * F.cross_entropy(out[0], target)

    return pair(he_(TwoScales()), images(seed, 3, 8, 6, 24, 1.5).with_loss(loss))


class Flattened(nn.Module):
    """One convolution, then a large linear layer, as in the first of such networks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide, self.head = nn.Conv2d(1, 8, 5), nn.Linear(8 * 64, 400), nn.Linear(400, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.wide(torch.tanh(self.conv(x)).flatten(1))))


def patched(task: Task) -> Task:
    """A square of every picture is black."""

    def black(x: Tensor) -> Tensor:
        x[:, :, 2:6, 2:6] = 0
        return x

    return task.mapped(black)


def net(channels: list[int], classes: int = 6, act=nn.SiLU, **more) -> ConvNet:
    return he_(ConvNet(channels, classes, act, **more))


zoo.healthy("inception-1-3-5", "tune", lambda s: pair(he_(Inception(12, 7)), images(s, 3, 8, 7, 24)))
zoo.healthy("squeeze-and-excite-through-2", "tune", lambda s: pair(he_(Excite(20, 6)), images(s, 3, 8, 6, 24)))
zoo.healthy("siamese-distances-with-margin", "tune", same_or_not)
zoo.healthy("upscale-by-shuffled-channels", "tune", lambda s: pair(Upscale(), pictures(s, 6, 12, 1, 8)))
zoo.healthy(
    "convolutional-variational-autoencoder",
    "tune",
    lambda s: pair(Variational(6, s), pictures(s, 5, 8, 1, 24).with_loss(evidence_bound)),
)
zoo.healthy("u-net-dice-overlap", "tune", lambda s: pair(UNet(12, 24), pictures(s, 6, 12, 1, 8).with_loss(overlap)))
zoo.healthy("two-scales-two-heads", "tune", two_scales)
zoo.healthy("flatten-and-wide-linear", "tune", lambda s: pair(Flattened(), images(s, 1, 12, 9, 16)), trains(lr=1e-3))
zoo.healthy(
    "instance-norm-batch-1",
    "tune",
    lambda s: pair(
        net([1, 16, 16, 16], 2, norm=lambda n: nn.InstanceNorm2d(n, affine=True)), images(s, 1, 8, 2, 1).fixed()
    ),
)
zoo.healthy(
    "group-norm-batch-3",
    "tune",
    lambda s: pair(net([3, 24, 24, 24], 3, norm=lambda n: nn.GroupNorm(6, n)), images(s, 3, 8, 3, 3, 2.0)),
    trains(lr=3e-3, steps=60),
)
zoo.healthy(
    "signal-strided-dropout",
    "tune",
    lambda s: pair(nn.Sequential(nn.Dropout1d(0.3), he_(Signal([4, 28, 28], act=nn.Mish, kernel=9))), waves(s)),
)
zoo.healthy(
    "black-square-in-every-picture",
    "tune",
    lambda s: pair(net([3, 16, 16], act=nn.ReLU), patched(images(s, 3, 10, 6, 24, 1.5))),
)
zoo.healthy(
    "frozen-first-convolution",
    "tune",
    lambda s: pair(frozen(net([3, 20, 20, 20]), "convs.0"), images(s, 3, 8, 6, 24)),
)
zoo.healthy(
    "loss-times-1e-7",
    "tune",
    lambda s: pair(net([3, 18, 18], act=nn.ELU), images(s, 3, 8, 6, 24).scaled(1e-7)),
    trains(lr=3e5, steps=60, sgd=True),
)
zoo.healthy(
    "batch-norm-gelu-10x12",
    "tune",
    lambda s: pair(net([3] + [12] * 10, act=nn.GELU, norm=nn.BatchNorm2d), images(s, 3, 6, 6, 32)),
    trains(lr=3e-3, steps=40),
)
zoo.healthy(
    "average-pool-leaky-5x24",
    "tune",
    lambda s: pair(
        net([3] + [24] * 5, 12, lambda: nn.Sequential(nn.LeakyReLU(0.1), nn.AvgPool2d(3, 1, 1))),
        images(s, 3, 8, 12, 48),
    ),
)
zoo.healthy(
    "converged-conv-autoencoder",
    "tune",
    lambda s: pretrain(pair(ConvCoder(20, 12, nn.Tanh), pictures(s, 3, 8, 1, 16).fixed()), 250, 1e-2),
    converged(0.02),
)
