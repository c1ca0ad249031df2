# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks under unusual losses, norms and batches, all healthy.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import converged, trains
from validation.nets import ConvCoder, ConvNet, Signal, UNet, he_
from validation.setups import frozen, pair, pretrain
from validation.tasks import Task, images, pictures, waves

zoo = Zoo("cnn", half="tune", proof=trains(lr=1e-2, steps=30))


# --- losses


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


zoo.healthy("siamese-distances-with-margin", same_or_not)
zoo.healthy(
    "convolutional-variational-autoencoder",
    lambda s: pair(Variational(6, s), pictures(s, 5, 8, 1, 24).with_loss(evidence_bound)),
)
zoo.healthy("u-net-dice-overlap", lambda s: pair(UNet(12, 24), pictures(s, 6, 12, 1, 8).with_loss(overlap)))
zoo.healthy("two-scales-two-heads", two_scales)

# --- norms, batches, scales


def patched(task: Task) -> Task:
    """A square of every picture is black."""

    def black(x: Tensor) -> Tensor:
        x[:, :, 2:6, 2:6] = 0
        return x

    return task.mapped(black)


def net(channels: list[int], classes: int = 6, act=nn.SiLU, **more) -> ConvNet:
    return he_(ConvNet(channels, classes, act, **more))


zoo.healthy(
    "instance-norm-batch-1",
    lambda s: pair(
        net([1, 16, 16, 16], 2, norm=lambda n: nn.InstanceNorm2d(n, affine=True)), images(s, 1, 8, 2, 1).fixed()
    ),
)
zoo.healthy(
    "group-norm-batch-3",
    lambda s: pair(net([3, 24, 24, 24], 3, norm=lambda n: nn.GroupNorm(6, n)), images(s, 3, 8, 3, 3, 2.0)),
    trains(lr=3e-3, steps=60),
)
zoo.healthy(
    "signal-strided-dropout",
    lambda s: pair(nn.Sequential(nn.Dropout1d(0.3), he_(Signal([4, 28, 28], act=nn.Mish, kernel=9))), waves(s)),
)
zoo.healthy(
    "black-square-in-every-picture",
    lambda s: pair(net([3, 16, 16], act=nn.ReLU), patched(images(s, 3, 10, 6, 24, 1.5))),
)
zoo.healthy("frozen-first-convolution", lambda s: pair(frozen(net([3, 20, 20, 20]), "convs.0"), images(s, 3, 8, 6, 24)))
zoo.healthy(
    "loss-times-1e-7",
    lambda s: pair(net([3, 18, 18], act=nn.ELU), images(s, 3, 8, 6, 24).scaled(1e-7)),
    trains(lr=3e5, steps=60, sgd=True),
)
zoo.healthy(
    "batch-norm-gelu-10x12",
    lambda s: pair(net([3] + [12] * 10, act=nn.GELU, norm=nn.BatchNorm2d), images(s, 3, 6, 6, 32)),
    trains(lr=3e-3, steps=40),
)
zoo.healthy(
    "average-pool-leaky-5x24",
    lambda s: pair(
        net([3] + [24] * 5, 12, lambda: nn.Sequential(nn.LeakyReLU(0.1), nn.AvgPool2d(3, 1, 1))),
        images(s, 3, 8, 12, 48),
    ),
)
zoo.healthy(
    "converged-conv-autoencoder",
    lambda s: pretrain(pair(ConvCoder(20, 12, nn.Tanh), pictures(s, 3, 8, 1, 16).fixed()), 250, 1e-2),
    converged(0.02),
)
