# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily convolutional networks that train well, some of them a little unusual.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import Head, conv
from validation.cases._daily_nets import bearings, bumps, buoys, dials, leaves, shores
from validation.cases._usual_nets import info_nce
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain

zoo = Zoo("cnn", half="daily", proof=thrives(0.2, most_dead=0.5))


def small(out: int = 8, act: type[nn.Module] = nn.ReLU, norm: bool = True) -> nn.Sequential:
    return nn.Sequential(conv(3, 16, norm=norm, act=act), conv(16, 24, 2, norm=norm, act=act), Head(24, out))


zoo.healthy("leaves-small-adam", lambda s: live(small(), leaves(s), "Adam", 4e-3, 50))
zoo.healthy("leaves-batches-of-3", lambda s: live(
    small(act=nn.SiLU), leaves(s, batch=3), "SGD", 0.02, 110, momentum=0.9
))  # fmt: skip
zoo.healthy("leaves-hard-swish-step-decay", lambda s: live(
    small(act=nn.Hardswish), leaves(s), "RMSprop", 3e-3, 60, rate=lambda t: 0.3 ** (t // 20)
))  # fmt: skip
zoo.healthy("leaves-no-norms-clipped", lambda s: live(
    small(norm=False, act=nn.LeakyReLU), leaves(s), "SGD", 0.05, 80, momentum=0.9, clip=0.5
))  # fmt: skip
zoo.healthy("leaves-bce-for-each-kind", lambda s: live(
    small(),
    leaves(s).with_loss(lambda z, t: F.binary_cross_entropy_with_logits(z, F.one_hot(t, 8).float())),
    "AdamW", 4e-3, 60,
))  # fmt: skip


def mixed(seed: int) -> Setup:
    """Pictures and labels are blended with those of another row: the loss stays high, and it learns."""
    random = torch.Generator().manual_seed(seed + 81)

    def blend(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        share = 0.5 + 0.5 * torch.rand(len(x), 1, generator=random)
        other = torch.randperm(len(x), generator=random)
        y = F.one_hot(t, 8).float()
        return share[..., None, None] * x + (1 - share)[..., None, None] * x[other], share * y + (1 - share) * y[other]

    return live(small(act=nn.GELU), leaves(seed).changed(blend), "Adam", 4e-3, 70)


zoo.healthy("leaves-blended-with-others", mixed)


def transferred(seed: int) -> Setup:
    """The body is trained on other leaves; it is frozen up to its last stage, and the head is new."""
    model = nn.Sequential(conv(3, 16), conv(16, 24, 2), conv(24, 24), Head(24, 8))
    pretrain(live(model, leaves(seed + 9)), 40)
    model[3] = Head(24, 8)
    return live(frozen(model, "0", "1"), leaves(seed), "Adam", 4e-3, 60)


zoo.healthy("leaves-two-stages-frozen", transferred)


class Looks(nn.Module):
    """Two noisy looks at a picture, contrasted."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.project = small(32), nn.Sequential(nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        a, b = (self.project(self.body(x + 0.2 * torch.randn_like(x))) for _ in range(2))
        return info_nce(a, b, 0.2)


zoo.healthy("leaves-two-looks-at-each", lambda s: live(
    Looks(), leaves(s, classes=24, noise=0.6).with_loss(lambda out, _: out), "Adam", 3e-3, 50
))  # fmt: skip


class Pair(nn.Module):
    """The kind of a leaf, and the leaf rebuilt, from one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind = nn.Sequential(conv(3, 16, 2), conv(16, 24)), Head(24, 8)
        self.back = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(24, 3, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.kind(h), self.back(h), x


zoo.healthy("leaves-named-and-rebuilt", lambda s: live(
    Pair(),
    leaves(s).with_loss(lambda out, t: F.cross_entropy(out[0], t) + 0.5 * F.mse_loss(*out[1:])), "Adam", 4e-3, 60,
))  # fmt: skip


class Unet(nn.Module):
    """Down twice, up twice, with skips, group norms and two answers that both count."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = self.part(3, 12), self.part(12, 16), self.part(16, 24)
        self.d, self.e = self.part(40, 16), self.part(28, 12)
        self.coarse, self.fine = nn.Conv2d(16, 4, 1), nn.Conv2d(12, 4, 1)

    @staticmethod
    def part(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = F.interpolate(self.c(F.max_pool2d(b, 2)), size=b.shape[2:])
        d = self.d(torch.cat([b, c], dim=1))
        e = self.e(torch.cat([a, F.interpolate(d, size=a.shape[2:])], dim=1))
        return self.fine(e), F.interpolate(self.coarse(d), size=a.shape[2:])


zoo.healthy("shores-u-net-two-answers", lambda s: live(
    Unet(),
    shores(s, batch=6).with_loss(lambda out, t: F.cross_entropy(out[0], t) + 0.4 * F.cross_entropy(out[1], t)),
    "AdamW", 4e-3, 50,
))  # fmt: skip


def sparse(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 83)

    def hide(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, t.masked_fill(torch.rand(t.shape, generator=random) < 0.5, -100)

    model = nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 4, 1))
    return live(model, shores(seed, noise=1.0).changed(hide), "Adam", 4e-3, 50)


zoo.healthy("shores-half-of-the-dots-unlabelled", sparse)


def finer(seed: int) -> Setup:
    """Twice as fine, by shuffled channels."""
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.PReLU(), nn.Conv2d(24, 16, 3, padding=1), nn.PReLU(),
        nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    return live(model, bumps(seed).mapped(lambda x: F.avg_pool2d(x, 2)), "Adam", 4e-3, 70)


zoo.healthy("bumps-twice-as-fine", finer)


class Denoiser(nn.Module):
    """Which noise lies on a picture, given how much of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.time = nn.Conv2d(1, 24, 3, padding=1), nn.Linear(2, 24)
        self.b, self.c = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = F.silu(self.a(x) + self.time(torch.cat([t.sin(), t.cos()], dim=1))[..., None, None])
        return self.c(F.silu(self.b(h)))


def diffused(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 82)

    def change(x: Tensor, _y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        t, noise = math.pi / 2 * torch.rand(len(x), 1, generator=random), torch.randn(x.shape, generator=random)
        way = t[..., None, None]
        return (way.cos() * x + way.sin() * noise, t), noise

    return live(Denoiser(), bumps(seed).changed(change), "AdamW", 4e-3, 70)


zoo.healthy("bumps-diffusion", diffused)
zoo.healthy("dials-strided-flattened", lambda s: live(
    nn.Sequential(conv(2, 16, 2, act=nn.ELU), conv(16, 24, 2, act=nn.ELU), nn.Flatten(), nn.Linear(384, 4)),
    dials(s), "Adam", 3e-3, 60,
))  # fmt: skip
zoo.healthy("dials-smooth-error-nesterov", lambda s: live(
    nn.Sequential(conv(2, 16, 2), nn.Dropout2d(0.05), conv(16, 24, 2), nn.Flatten(), nn.Linear(384, 4)),
    dials(s).with_loss(F.smooth_l1_loss), "SGD", 0.05, 80, momentum=0.9, nesterov=True, weight_decay=1e-4,
))  # fmt: skip


class Wave(nn.Module):
    """Depthwise and pointwise convolutions in time, and a weighted mean over it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv1d(2, 24, 5, 2, 2), nn.Conv1d(24, 24, 7, padding=3, groups=24)
        self.point, self.weigh, self.out = nn.Conv1d(24, 32, 1), nn.Conv1d(32, 1, 1), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.point(self.deep(F.gelu(self.stem(x)))))
        return self.out((h * self.weigh(h).softmax(dim=2)).sum(dim=2))


zoo.healthy("bearings-depthwise-weighted-mean", lambda s: live(Wave(), bearings(s), "Adam", 5e-3, 90))
zoo.healthy("bearings-warm-up-then-cosine", lambda s: live(
    Wave(), bearings(s), "AdamW", 8e-3, 90,
    rate=lambda t: min((t + 1) / 15, 0.51 + 0.49 * math.cos(math.pi * t / 90)),
))  # fmt: skip
zoo.healthy("buoys-convolutions-flattened", lambda s: live(
    nn.Sequential(
        nn.Conv1d(3, 16, 5, 2, 2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(192, 24), nn.Unflatten(1, (3, 8)),
    ),
    buoys(s), "Adam", 4e-3, 70,
))  # fmt: skip
