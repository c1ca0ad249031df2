# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks of ordinary kinds that are fine.

Half: everyday.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import beats, cells, clouds, digits, he, mean_loss, photos
from validation.evidence import thrives
from validation.setups import live, pretrain

zoo = Zoo("cnn", half="everyday", proof=thrives())


def conv(
    a: int, b: int, kernel: int = 3, act: nn.Module | None = None, norm: nn.Module | None = None, **more
) -> list[nn.Module]:
    """A convolution with what follows it."""
    layer = nn.Conv2d(a, b, kernel, padding=kernel // 2, bias=norm is None, **more)
    return [layer, *([norm] if norm else []), act or nn.ReLU()]


def pooled(*layers: nn.Module, features: int, classes: int = 8) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


def seen(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, photos(seed), *args, **more)


def read(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, digits(seed), *args, **more)


# --- classifiers


def vgg(norm=nn.BatchNorm2d, act=nn.ReLU, drop: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        *conv(3, 16, act=act(), norm=norm(16)),
        nn.MaxPool2d(2),
        *conv(16, 32, act=act(), norm=norm(32)),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(drop),
        nn.Linear(288, 64),
        act(),
        nn.Linear(64, 8),
    )


zoo.healthy("photos-small-vgg-batch-norm-dropout", lambda s: seen(s, vgg(drop=0.4), "Adam", 2e-3, 50))
zoo.healthy(
    "photos-small-vgg-group-norm-batches-of-6",
    lambda s: live(vgg(lambda n: nn.GroupNorm(4, n)), photos(s, batch=6), "AdamW", 1e-3, 80),
)
zoo.healthy(
    "photos-small-vgg-instance-norm",
    lambda s: seen(s, vgg(lambda n: nn.InstanceNorm2d(n, affine=True), nn.LeakyReLU), "Adam", 2e-3, 50),
)
zoo.healthy("photos-small-vgg-silu-sgd", lambda s: seen(s, vgg(act=nn.SiLU), "SGD", 0.05, 50, momentum=0.9))
zoo.healthy(
    "photos-small-vgg-label-smoothing-cosine",
    lambda s: live(
        vgg(),
        photos(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1)),
        "AdamW",
        5e-3,
        60,
        rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * min(t, 60) / 60),
    ),
)


def mixup(seed: int) -> Setup:
    """Two pictures in one, and their labels in the same shares."""
    random = torch.Generator().manual_seed(seed + 7)

    def mix(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        share = 0.6 + 0.4 * torch.rand((), generator=random)
        order = torch.randperm(len(x), generator=random)
        hot = F.one_hot(t, 8).float()
        return share * x + (1 - share) * x[order], share * hot + (1 - share) * hot[order]

    return live(vgg(), photos(seed).changed(mix), "Adam", 2e-3, 60)


zoo.healthy("photos-mixup", mixup)


def erased(x: Tensor) -> Tensor:
    """A square of each picture is blank, half of them are turned around."""
    x = x.clone()
    x[:, :, 3:7, 5:9] = 0
    x[::2] = x[::2].flip(3)
    return x


zoo.healthy("photos-flips-and-a-blank-square", lambda s: live(vgg(), photos(s).mapped(erased), "Adam", 2e-3, 60))
zoo.healthy(
    "photos-all-convolutions-with-strides",
    lambda s: seen(
        s, pooled(*conv(3, 16, stride=2), *conv(16, 32, stride=2), *conv(32, 32), features=32), "Adam", 3e-3, 60
    ),
)
zoo.healthy(
    "photos-kernel-7-then-3-leaky",
    lambda s: seen(
        s,
        pooled(
            *conv(3, 24, 7, act=nn.LeakyReLU(0.1)), nn.AvgPool2d(2), *conv(24, 32, act=nn.LeakyReLU(0.1)), features=32
        ),
        "RMSprop",
        1e-3,
        60,
    ),
)


class Fire(nn.Module):
    """Squeeze to a few channels, spread by two kernels."""

    def __init__(self, a: int, squeeze: int, b: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(a, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, b // 2, 1), nn.Conv2d(squeeze, b // 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], dim=1)


zoo.healthy(
    "photos-squeeze-net",
    lambda s: seen(
        s, he(pooled(*conv(3, 24), Fire(24, 8, 32), nn.MaxPool2d(2), Fire(32, 10, 48), features=48)), "Adam", 3e-3, 70
    ),
)


class Separable(nn.Module):
    """Depth-wise, then point-wise, with norms, as on a phone."""

    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.dw, self.bn1 = nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a)
        self.pw, self.bn2 = nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(self.bn2(self.pw(F.relu6(self.bn1(self.dw(x))))))


zoo.healthy(
    "photos-separable-convolutions",
    lambda s: seen(s, pooled(*conv(3, 16), Separable(16, 32, 2), Separable(32, 48), features=48), "Adam", 5e-3, 60),
)


class Inception(nn.Module):
    """Four ways beside each other."""

    def __init__(self, a: int) -> None:
        super().__init__()
        self.one, self.three = nn.Conv2d(a, 8, 1), nn.Sequential(*conv(a, 8, 1), *conv(8, 12))
        self.five, self.pool = nn.Sequential(*conv(a, 4, 1), *conv(4, 8, 5)), nn.Conv2d(a, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        pool = F.max_pool2d(x, 3, 1, 1)
        return F.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pool(pool)], dim=1))


zoo.healthy(
    "photos-inception-of-four-ways",
    lambda s: seen(
        s, pooled(*conv(3, 16), Inception(16), nn.MaxPool2d(2), *conv(36, 32), features=32), "Adam", 3e-3, 60
    ),
)


class Attended(nn.Module):
    """Channels weighed by what the whole picture shows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.down, self.up, self.fc = nn.Linear(24, 6), nn.Linear(6, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        weight = torch.sigmoid(self.up(F.relu(self.down(x.mean(dim=(2, 3))))))
        return self.fc((x * weight[..., None, None]).mean(dim=(2, 3)))


zoo.healthy("photos-channels-weighed", lambda s: seen(s, Attended(), "Adam", 5e-3, 60), thrives(most_dead=0.5))
zoo.healthy(
    "photos-dilated-convolutions-elu",
    lambda s: seen(
        s,
        pooled(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ELU(),
            nn.Conv2d(16, 24, 3, padding=2, dilation=2),
            nn.ELU(),
            nn.Conv2d(24, 24, 3, padding=4, dilation=4),
            nn.ELU(),
            features=24,
        ),
        "Adam",
        3e-3,
        60,
    ),
)
zoo.healthy(
    "digits-lenet-5-tanh-average-pools",
    lambda s: read(
        s,
        nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(144, 48),
            nn.Tanh(),
            nn.Linear(48, 10),
        ),
        "SGD",
        0.1,
        80,
        momentum=0.9,
    ),
)
zoo.healthy(
    "digits-dropout-2d-and-clipping",
    lambda s: read(
        s,
        nn.Sequential(
            *conv(1, 16), nn.Dropout2d(0.2), nn.MaxPool2d(2), *conv(16, 16), nn.Flatten(), nn.Linear(576, 10)
        ),
        "Adam",
        3e-3,
        60,
        clip=0.5,
    ),
)
zoo.healthy(
    "digits-one-convolution-of-6-kernels",
    lambda s: read(
        s,
        nn.Sequential(*conv(1, 6, act=nn.LeakyReLU(0.01)), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10)),
        "Adam",
        5e-3,
        60,
    ),
)
zoo.healthy(
    "digits-dense-net-on-flat-pictures",
    lambda s: read(
        s, nn.Sequential(nn.Flatten(), nn.Linear(144, 128), nn.ReLU(), nn.Linear(128, 10)), "Adam", 2e-3, 50
    ),
)
zoo.healthy(
    "digits-weight-norm-sgd",
    lambda s: read(
        s,
        nn.Sequential(
            parametrizations.weight_norm(nn.Conv2d(1, 16, 3, padding=1)),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            parametrizations.weight_norm(nn.Linear(576, 10)),
        ),
        "SGD",
        0.05,
        60,
        momentum=0.9,
    ),
)
zoo.healthy(
    "digits-bytes-behind-a-batch-norm",
    lambda s: live(
        nn.Sequential(
            nn.BatchNorm2d(1), *conv(1, 16), nn.MaxPool2d(2), *conv(16, 16), nn.Flatten(), nn.Linear(576, 10)
        ),
        digits(s).mapped(lambda x: 255 * x),
        "Adam",
        2e-3,
        50,
    ),
)
zoo.healthy(
    "digits-mostly-black-pictures",
    lambda s: live(
        nn.Sequential(*conv(1, 16), nn.MaxPool2d(2), *conv(16, 24), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(216, 10)),
        digits(s).mapped(lambda x: F.relu(x - 0.6)),
        "Adam",
        5e-3,
        80,
    ),
)


def finetuned(seed: int, freeze: bool) -> Setup:
    """A body trained on other photos; a new head, and the body rests with its norms in evaluation mode, or follows."""
    model = pretrain(live(vgg(), photos(seed + 30)), 60).model
    model[-1] = nn.Linear(64, 8)
    if freeze:
        for module in model[:8]:
            module.requires_grad_(False).eval()
    return live(model, photos(seed), "Adam", 5e-3 if freeze else 1e-3, 60)


zoo.healthy("photos-trained-body-frozen-new-head", lambda s: finetuned(s, True), thrives(most_dead=0.5))
zoo.healthy("photos-trained-body-tuned-with-its-new-head", lambda s: finetuned(s, False), thrives(most_dead=0.5))


def finished(seed: int) -> Setup:
    """Trained to the noise of its pictures; the last epochs."""
    model = nn.Sequential(*conv(1, 12), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(432, 10))
    return pretrain(live(model, digits(seed, noise=1.2), "Adam", 1e-4, 40), 200, 2e-3)


zoo.healthy("digits-last-epochs-of-a-trained-net", finished, thrives(-0.3, measure=mean_loss))


class Half(nn.Module):
    """bfloat16 by autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.net = vgg()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x).float()


zoo.healthy("photos-autocast-bfloat16", lambda s: seen(s, Half(), "AdamW", 2e-3, 40))

# --- pictures out


class UNet(nn.Module):
    """Two levels with skips by concatenation."""

    def __init__(self, out: int = 1, channels: int = 1) -> None:
        super().__init__()
        self.d1 = nn.Sequential(*conv(channels, 12, norm=nn.BatchNorm2d(12)))
        self.d2 = nn.Sequential(*conv(12, 24, norm=nn.BatchNorm2d(24)))
        self.floor = nn.Sequential(*conv(24, 32, norm=nn.BatchNorm2d(32)))
        self.u2, self.c2 = nn.ConvTranspose2d(32, 24, 2, 2), nn.Sequential(*conv(48, 24, norm=nn.BatchNorm2d(24)))
        self.u1, self.c1 = nn.ConvTranspose2d(24, 12, 2, 2), nn.Sequential(*conv(24, 12, norm=nn.BatchNorm2d(12)))
        self.out = nn.Conv2d(12, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.floor(F.max_pool2d(b, 2))
        b = self.c2(torch.cat([self.u2(c), b], dim=1))
        return self.out(self.c1(torch.cat([self.u1(b), a], dim=1)))


def soft_dice(z: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    return 1 - (2 * (p * t).sum() + 1) / ((p + t).sum() + 1)


zoo.healthy("cells-u-net-bce", lambda s: live(UNet(), cells(s), "Adam", 3e-3, 50))
zoo.healthy("cells-u-net-soft-dice", lambda s: live(UNet(), cells(s).with_loss(soft_dice), "Adam", 3e-3, 50))
zoo.healthy(
    "cells-u-net-bce-and-dice-times-1000",
    lambda s: live(
        UNet(),
        cells(s).with_loss(lambda z, t: 1e3 * (F.binary_cross_entropy_with_logits(z, t) + soft_dice(z, t))),
        "AdamW",
        2e-3,
        60,
    ),
)


class Denoiser(nn.Module):
    """Says what the noise is, and takes it away."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv(1, 24), *conv(24, 24, norm=nn.BatchNorm2d(24)), nn.Conv2d(24, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.body(x)


zoo.healthy("clouds-the-noise-is-learned", lambda s: live(Denoiser(), clouds(s, noise=0.5), "Adam", 3e-3, 60))


class Sharper(nn.Module):
    """Four times the dots, by shuffling channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv(1, 24, act=nn.PReLU()), *conv(24, 24, act=nn.PReLU()), nn.Conv2d(24, 4, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.body(F.avg_pool2d(x, 2)), 2)


zoo.healthy("clouds-super-resolution-l1", lambda s: live(Sharper(), clouds(s).with_loss(F.l1_loss), "Adam", 3e-3, 60))


class Paint(nn.Module):
    """A convolutional variational autoencoder."""

    def __init__(self, code: int = 16) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            *conv(1, 12, act=nn.LeakyReLU(), stride=2), *conv(12, 24, act=nn.LeakyReLU(), stride=2), nn.Flatten()
        )
        self.mu, self.logvar, self.back = nn.Linear(216, code), nn.Linear(216, code), nn.Linear(code, 216)
        self.dec = nn.Sequential(nn.ConvTranspose2d(24, 12, 2, 2), nn.LeakyReLU(), nn.ConvTranspose2d(12, 1, 2, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(F.relu(self.back(z)).unflatten(1, (24, 3, 3))), mu, logvar


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    kl = 0.5 * (out[1] ** 2 + out[2].exp() - 1 - out[2]).sum(dim=1).mean()
    return F.mse_loss(out[0], x) + 3e-3 * kl


zoo.healthy("clouds-convolutional-vae", lambda s: live(Paint(), clouds(s).with_loss(elbo), "Adam", 5e-3, 80))
zoo.healthy(
    "clouds-of-4-factors-code-of-6",
    lambda s: live(
        nn.Sequential(
            *conv(1, 12, stride=2),
            *conv(12, 16, stride=2),
            nn.Flatten(),
            nn.Linear(144, 6),
            nn.Linear(6, 144),
            nn.ReLU(),
            nn.Unflatten(1, (16, 3, 3)),
            nn.ConvTranspose2d(16, 12, 2, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 2, 2),
        ),
        clouds(s, coarse=2),
        "Adam",
        5e-3,
        90,
    ),
)


class Twice(nn.Module):
    """Class and brightness of a picture, weighed by learned uncertainties."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv(3, 24), nn.MaxPool2d(2), *conv(24, 32))
        self.kind, self.light, self.log_var = nn.Linear(32, 8), nn.Linear(32, 1), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = self.body(x).mean(dim=(2, 3))
        return self.kind(h), self.light(h).flatten(), self.log_var, x.mean(dim=(1, 2, 3))


def weighed(out: tuple[Tensor, ...], t: Tensor) -> Tensor:
    losses = torch.stack([F.cross_entropy(out[0], t), F.mse_loss(out[1], out[3])])
    return (losses * (-out[2]).exp() + 0.5 * out[2]).sum()


zoo.healthy("photos-two-heads-learned-weights", lambda s: live(Twice(), photos(s).with_loss(weighed), "Adam", 5e-3, 60))

# --- signals

zoo.healthy(
    "beats-conv1d-batch-norm-pools",
    lambda s: live(
        nn.Sequential(
            nn.Conv1d(2, 16, 7, padding=3),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 5, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(32, 5),
        ),
        beats(s),
        "Adam",
        3e-3,
        50,
    ),
)
zoo.healthy(
    "beats-dilated-causal-gelu",
    lambda s: live(
        nn.Sequential(
            nn.Conv1d(2, 24, 3, dilation=1),
            nn.GELU(),
            nn.Conv1d(24, 24, 3, dilation=2),
            nn.GELU(),
            nn.Conv1d(24, 24, 3, dilation=4),
            nn.GELU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(24, 5),
        ),
        beats(s),
        "AdamW",
        5e-3,
        60,
    ),
)
