# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual convolutional networks with the mistakes that people make, their twins, and others that train well.

Half: usual.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import SQUEEZED, Head, conv, worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he, start
from validation.cases._plain_nets import BLOWN, COLLAPSED, alike, pooled, with_groups
from validation.cases._usual_nets import UNLEARNED, calls, info_nce, lakes, stamps, veils, weaves
from validation.evidence.live import at_last, breaks, lags, lasting, thrives
from validation.evidence.signal import both, channel_rank, dead, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges
from validation.labels import JUMPS
from validation.setups import frozen, live, pretrain

zoo = Zoo("cnn", half="usual", proof=thrives(0.2))

# --- too narrow


class Fire(nn.Module):
    """Squeeze the channels by one-by-one kernels, then widen them by two kinds of kernels."""

    def __init__(self, a: int, squeeze: int, b: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(a, squeeze, 1), nn.ReLU())
        self.one, self.three = nn.Conv2d(squeeze, b // 2, 1), nn.Conv2d(squeeze, b // 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return F.relu(torch.cat([self.one(x), self.three(x)], dim=1))


def fires(seed: int, squeeze: int) -> Setup:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), Fire(24, squeeze, 32), Fire(32, squeeze, 32), Head(32, 10)
    )
    return live(he(model), stamps(seed), "Adam", 4e-3, 90)


fire = zoo.healthy("stamps-fire-squeeze-of-12", lambda s: fires(s, 12), thrives(0.2, most_dead=0.5))
zoo.sick(
    "stamps-fire-squeeze-of-1",
    lambda s: fires(s, 1),
    both(lags(0.15), lasting(channel_rank("2.squeeze", 1.01))),
    *NARROW,
    layer=("2.squeeze.0", "2.squeeze", "3.squeeze.0", "3.squeeze", "2.one", "2.three", "3.one", "3.three"),
    also={*SQUEEZED, "DISCONNECTED", "VANISHING", *UNLEARNED},
    control=fire,
)


class Painter(nn.Module):
    """An encoder, what lies between, a decoder that makes a map; a mean over the picture may lie between."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.enc = nn.Sequential(conv(2, 16), conv(16, 24, 2))
        self.pool = nn.AdaptiveAvgPool2d(1 if mean else 8)
        self.dec = nn.Sequential(nn.Upsample(size=16, mode="bilinear"), conv(24, 16), nn.Conv2d(16, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.pool(self.enc(x)))


drawn = zoo.healthy("lakes-map-from-8-by-8-places", lambda s: live(Painter(False), lakes(s), "Adam", 5e-3, 70))
zoo.sick(
    "lakes-map-from-the-mean-of-the-picture",
    lambda s: live(Painter(True), lakes(s), "Adam", 5e-3, 70),
    lags(0.2),
    *NARROW,
    layer=("pool", "enc.1", "enc.1.0", "dec.1", "dec.1.0"),
    also={"SLOW", "loss_stuck"},
    control=drawn,
)


def greyed(seed: int, channels: int) -> Setup:
    """A learned mix of the bands comes first, to save time."""
    model = nn.Sequential(
        nn.Conv2d(6, channels, 1), nn.Conv2d(channels, 24, 3, padding=1), nn.SiLU(), nn.Conv2d(24, 6, 3, padding=1)
    )
    return live(model, veils(seed, channels=6), "AdamW", 6e-3, 90)


mixed = zoo.healthy("veils-six-bands-mixed-to-8", lambda s: greyed(s, 8))
zoo.sick(
    "veils-six-bands-mixed-to-1",
    lambda s: greyed(s, 1),
    both(lags(0.2), lasting(channel_rank("0", 1.01))),
    *NARROW,
    layer=("0", "1"),
    also=SQUEEZED,
    control=mixed,
)


def flattened(seed: int, size: int) -> Setup:
    """A signal becomes a few numbers, which are to be plotted, before the classes are told."""
    model = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.BatchNorm1d(24),
        nn.ReLU(), nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(48, size), nn.Linear(size, 48), nn.ReLU(),
        nn.Linear(48, 12),
    )  # fmt: skip
    return live(model, calls(seed, classes=12), "Adam", 5e-3, 90)


plotted = zoo.healthy("calls-twelve-birds-through-16-numbers", lambda s: flattened(s, 16), thrives(0.2, most_dead=0.5))
zoo.sick(
    "calls-twelve-birds-through-1-number",
    lambda s: flattened(s, 1),
    both(lags(0.12), lasting(rank_at_most("8", 1.01))),
    *NARROW,
    layer=("8", "9"),
    also=SQUEEZED,
    control=plotted,
)


class Squares(nn.Module):
    """Convolutions down to a code of some maps and up again."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 24, 4, 2, 1), nn.ELU(), nn.Conv2d(24, maps, 4, 2, 1))
        self.up = nn.Sequential(nn.ConvTranspose2d(maps, 24, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(24, 3, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def coded(seed: int, maps: int) -> Setup:
    return live(Squares(maps), veils(seed, noise=0.1), "Adam", 6e-3, 90)


maps = zoo.healthy("veils-code-of-9-maps", lambda s: coded(s, 9))
zoo.sick(
    "veils-code-of-1-map",
    lambda s: coded(s, 1),
    both(lags(0.2), lasting(channel_rank("down.2", 1.01))),
    *NARROW,
    layer=("down.2", "up.0"),
    also=SQUEEZED,
    control=maps,
)

# --- all alike


class Vector(nn.Module):
    """Strides down to one place, where a group norm has as many groups as channels, or a few."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 5, 2), nn.ELU(), nn.Conv2d(16, 24, 5))
        self.norm, self.out = nn.GroupNorm(groups, 24), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.elu(self.norm(self.stem(x))).flatten(1))


grouped = zoo.healthy("weaves-one-place-groups-of-6", lambda s: live(Vector(4), weaves(s), "Adam", 4e-3, 80))
zoo.sick(
    "weaves-one-place-groups-of-1",
    lambda s: live(Vector(24), weaves(s), "Adam", 4e-3, 80),
    both(at_last(alike("norm", 1e-2)), lags(0.15)),
    *COLLAPSED,
    "DISCONNECTED",
    "DEAD",
    "VANISHING",
    also={"SYMMETRY", "SATURATION", "UNSTABLE", *UNLEARNED},
    control=grouped,
)


def once(seed: int) -> Setup:
    """Bytes are divided by 255, doubled and shifted, as most tutorials do."""
    task = stamps(seed).mapped(lambda x: (128 + 40 * x).clamp(0, 255) / 255 * 2 - 1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    return live(he(model), task, "SGD", 0.02, 80, momentum=0.9)


zoo.healthy("stamps-divided-by-255-once", once, thrives(0.2, most_dead=0.5))

# --- dead and flat


class HardSwish(nn.Module):
    """Written out by hand, with a shift to the right side or to the wrong one."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return x * F.relu6(x + self.shift) / 6


def mobile(seed: int, shift: float) -> Setup:
    def block(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(a, a, 3, 2, 1, groups=a, bias=False), nn.Conv2d(a, b, 1), nn.GroupNorm(4, b), HardSwish(shift)
        )

    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), block(16, 32), block(32, 32), Head(32, 10))
    return live(model, stamps(seed), "Adam", 5e-3, 80)


swish = zoo.healthy("stamps-hard-swish-plus-3", lambda s: mobile(s, 3.0))
zoo.sick(
    "stamps-hard-swish-minus-3",
    lambda s: mobile(s, -3.0),
    both(lasting(dead("2.3", 0.7)), lags(0.2)),
    "DEAD",
    "VANISHING",
    "DISCONNECTED",
    layer=("1.3", "2.3", "1.2", "2.2", "1.1", "2.1"),
    also={"LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=swish,
)


def vgg(seed: int, lr: float) -> Setup:
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    return live(model, stamps(seed), "SGD", lr, 80, momentum=0.9)


steady = zoo.healthy("stamps-vgg-sgd-0.02", lambda s: vgg(s, 0.02), thrives(0.2, most_dead=0.5))
zoo.sick(
    "stamps-vgg-sgd-0.6",
    lambda s: vgg(s, 0.6),
    both(at_last(dead("8", 0.95)), worse(2.0)),
    "DEAD",
    *JUMPS,
    "DISCONNECTED",
    also={*BLOWN, "NUMERICAL"},
    control=steady,
)


class Gates(nn.Module):
    """Channels are weighed by what a small net says of their mean over the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.more = conv(3, 24, 2), conv(24, 24)
        self.down, self.up, self.gate = nn.Linear(24, 12), nn.Linear(12, 24), nn.Sigmoid()
        self.head = Head(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.more(self.stem(x))
        told = self.up(F.relu(self.down(x.mean(dim=(2, 3)))))
        return self.head(x * self.gate(told)[..., None, None])


def lenet(seed: int, scale: float) -> Setup:
    """Grey values as standardised numbers, or as the sixteen bits of the camera."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 5), nn.Tanh(), nn.Flatten(),
        nn.Linear(144, 48), nn.Tanh(), nn.Linear(48, 8),
    )  # fmt: skip
    return live(model, weaves(seed).mapped(lambda x: scale * (x + 6) if scale > 1 else x), "Adam", 4e-3, 80)


bits = zoo.healthy("weaves-lenet-tanh-standardised", lambda s: lenet(s, 1.0))
zoo.sick(
    "weaves-lenet-tanh-sixteen-bits",
    lambda s: lenet(s, 12000.0),
    both(lasting(saturated("1", "tanh", 0.9)), lags(0.12)),
    "SATURATION",
    "VANISHING",
    layer=("0", "1", "3", "4"),
    also={"input_scales", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", *UNLEARNED},
    control=bits,
)


def clipped(seed: int, gain: float) -> Setup:
    """Activations are clipped to ±1 for eight bits; the start has the gain of tanh, or that times ten."""
    parts: list[nn.Module] = []
    for a, b in ((3, 24), (24, 24), (24, 24)):
        parts += [nn.Conv2d(a, b, 3, 2, 1), nn.Hardtanh()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(96, 10))
    return live(start(model, lambda w: nn.init.orthogonal_(w, gain)), stamps(seed), "SGD", 0.02, 80, momentum=0.9)


eight = zoo.healthy("stamps-clipped-activations-gain-1", lambda s: clipped(s, 1.0))
zoo.sick(
    "stamps-clipped-activations-gain-20",
    lambda s: clipped(s, 20.0),
    both(lasting(saturated("1", "hardtanh", 0.7), saturated("5", "hardtanh", 0.7)), worse(2.0)),
    "SATURATION",
    *JUMPS,
    "VANISHING",
    also={"first_loss_high", "loss_stuck", "SLOW"},
    control=eight,
)

# --- starts


def dcgan(seed: int, std: float | None) -> Setup:
    """The start of 0.02 that goes with batch norms, in a net that has none."""
    parts: list[nn.Module] = [nn.Conv2d(1, 24, 3, padding=1), nn.LeakyReLU(0.2)]
    for i in range(7):
        parts += [nn.Conv2d(24, 24, 3, 2 if i in (1, 4) else 1, 1), nn.LeakyReLU(0.2)]
    model = pooled(*parts, width=24, out=8)
    model = he(model) if std is None else start(model, lambda w: nn.init.normal_(w, 0, std))
    return live(model, weaves(seed, batch=24), "SGD", 0.02, 90, momentum=0.9, clip=1.0)


norms = zoo.healthy("weaves-eight-convs-kaiming", lambda s: dcgan(s, None), thrives(0.15))
zoo.sick(
    "weaves-eight-convs-start-of-0.02-without-norms",
    lambda s: dcgan(s, 0.02),
    both(lasting(gradient_ratio("0", "14", below=1e-2)), lags(0.12)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=norms,
)


def by_hand(seed: int, area: bool) -> Setup:
    """Kaiming's start by hand; the fan is channels times the area of the kernel, or channels alone."""
    parts: list[nn.Module] = []
    for a in (1, 16, 16, 16, 16, 16, 16):
        parts += [nn.Conv2d(a, 16, 3, padding=1), nn.LeakyReLU(0.1)]
    model = pooled(*parts, width=16, out=8)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan = module.in_channels * (9 if area else 1)
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan))
            nn.init.zeros_(module.bias)
    return live(model, weaves(seed, batch=24), "SGD", 0.005, 80, momentum=0.9)


area = zoo.healthy("weaves-kaiming-by-hand", lambda s: by_hand(s, True), thrives(0.12, most_dead=0.5))
zoo.sick(
    "weaves-kaiming-by-hand-without-the-kernel",
    lambda s: by_hand(s, False),
    both(gradient_ratio("0", "12", above=30), worse(1.5)),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={*BLOWN},
    control=area,
)

# --- steps


def scaled(seed: int, lr: float) -> Setup:
    model = pooled(conv(3, 16), conv(16, 32, 2), conv(32, 32, 2), width=32, out=10)
    return live(model, stamps(seed), "SGD", lr, 70, momentum=0.9, weight_decay=5e-4)


own = zoo.healthy("stamps-batch-norm-sgd-0.05", lambda s: scaled(s, 0.05), thrives(0.2, most_dead=0.5))
zoo.sick(
    "stamps-batch-norm-rate-of-a-batch-of-8192",
    lambda s: scaled(s, 12.8),
    both(diverges(5), worse(3.0)),
    *JUMPS,
    "NUMERICAL",
    also=BLOWN,
    control=own,
)


def cleared(seed: int, summed: bool) -> Setup:
    """The error is a mean, or a sum over dots and pictures, at the same rate."""
    model = nn.Sequential(conv(3, 16, norm=False), conv(16, 16, norm=False), nn.Conv2d(16, 3, 3, padding=1))
    loss = (lambda y, t: F.mse_loss(y, t, reduction="sum")) if summed else F.mse_loss
    return live(model, veils(seed).with_loss(loss), "SGD", 0.05, 80, momentum=0.9)


mean = zoo.healthy("veils-mean-error-sgd-0.05", lambda s: cleared(s, False), thrives(0.2, most_dead=0.5))
zoo.sick(
    "veils-summed-error-sgd-0.05",
    lambda s: cleared(s, True),
    breaks,
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={*BLOWN, "summed_loss"},
    control=mean,
)

# --- cut off


class Turned(nn.Module):
    """A small net says where to look; the picture is read there between the dots, or at the nearest one."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(288, 6))
        nn.init.normal_(self.where[3].weight, std=1e-3)
        self.where[3].bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])
        self.mode, self.net = mode, nn.Sequential(conv(3, 16, 2), conv(16, 32, 2), Head(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.where(x).view(-1, 2, 3), x.shape, align_corners=False)
        return self.net(F.grid_sample(x, grid, mode=self.mode, align_corners=False))


def turned(seed: int, mode: str) -> Setup:
    return live(Turned(mode), stamps(seed), "Adam", 3e-3, 70)


smooth = zoo.healthy("stamps-looked-at-between-the-dots", lambda s: turned(s, "bilinear"), thrives(0.2, most_dead=0.5))
zoo.sick(
    "stamps-looked-at-by-the-nearest-dot",
    lambda s: turned(s, "nearest"),
    lasting(no_gradient("where")),
    *CUT_OFF,
    layer=("where.3", "where.0", "where"),
    also={"detached", "never_moves"},
    control=smooth,
)


class Masked(nn.Module):
    """A mask chooses what is seen of the picture; it is soft, or cut at a half."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.mask, self.hard = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)), hard
        self.net = nn.Sequential(conv(2, 16), nn.Conv2d(16, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.sigmoid(self.mask(x))
        return self.net(x * ((seen > 0.5).float() if self.hard else seen))


veiled = zoo.healthy("lakes-seen-through-a-soft-mask", lambda s: live(Masked(False), lakes(s), "AdamW", 5e-3, 60))
zoo.sick(
    "lakes-seen-through-a-mask-cut-at-a-half",
    lambda s: live(Masked(True), lakes(s), "AdamW", 5e-3, 60),
    lasting(no_gradient("mask")),
    *CUT_OFF,
    layer=("mask.2", "mask.0", "mask"),
    also={"detached", "never_moves"},
    control=veiled,
)

# --- numbers


def dice(smooth: float):
    """The mean over pictures of one minus the share in common."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = z.sigmoid()
        shared = (p * t).sum(dim=(1, 2, 3))
        return (1 - (2 * shared + smooth) / (p.sum(dim=(1, 2, 3)) + t.sum(dim=(1, 2, 3)) + smooth)).mean()

    return loss


class Contrast(nn.Module):
    """Convolve, then divide every place by the deviation around it; what keeps that from zero may be missing."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.conv1, self.conv2, self.eps = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.Conv2d(16, 24, 3, 2, 1), eps
        self.head = Head(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        mean = F.avg_pool2d(x, 5, 1, 2)
        spread = (x - mean).square()
        x = (x - mean) / (F.avg_pool2d(spread, 5, 1, 2) + self.eps).sqrt().clamp_min(1e-2)
        return self.head(F.relu(self.conv2(F.relu(x))))


def boxed(seed: int, eps: float) -> Setup:
    """Bars of black above and below make the pictures square."""

    def bars(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, :, :6] = 0
        x[:, :, -2:] = 0
        return x

    return live(Contrast(eps), weaves(seed).mapped(bars), "Adam", 5e-3, 70)


local = zoo.healthy("weaves-black-bars-local-contrast-eps-inside", lambda s: boxed(s, 1e-4))
zoo.sick(
    "weaves-black-bars-local-contrast-root-of-zero",
    lambda s: boxed(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite"},
    control=local,
)


def overlap(smooth: float):
    """One minus the share that lakes and the thresholded map have in common, and the entropy; per picture."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        share = (z.sigmoid() * t).sum(dim=(1, 2, 3)) / (t.sum(dim=(1, 2, 3)) + smooth)
        return 0.3 * (1 - share).mean() + F.binary_cross_entropy_with_logits(z, t)

    return loss


def found(seed: int, smooth: float) -> Setup:
    model = nn.Sequential(conv(2, 16), conv(16, 16), nn.Conv2d(16, 1, 1))
    return live(model, lakes(seed, empty=0.02).with_loss(overlap(smooth)), "Adam", 5e-3, 60)


smoothed = zoo.healthy("lakes-some-without-recall-plus-1", lambda s: found(s, 1.0), thrives(0.2, most_dead=0.5))
zoo.sick(
    "lakes-some-without-recall-over-nothing",
    lambda s: found(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "bad_batch"},
    control=smoothed,
)

# --- others that train well


def healthy(name: str, build) -> None:
    zoo.healthy(name, build, thrives(0.15, most_dead=0.5))


def small(out: int = 10, channels: int = 3, act: type[nn.Module] = nn.ReLU, norm: bool = True) -> nn.Sequential:
    return nn.Sequential(conv(channels, 16, norm=norm, act=act), conv(16, 32, 2, norm=norm, act=act), Head(32, out))


healthy("stamps-small-adamw", lambda s: live(small(), stamps(s), "AdamW", 5e-3, 60))
healthy("stamps-small-batches-of-4", lambda s: live(small(), stamps(s, batch=4), "SGD", 0.02, 110, momentum=0.9))
healthy("stamps-gates-of-the-mean", lambda s: live(Gates(), stamps(s), "Adam", 5e-3, 60))
healthy("stamps-much-noise", lambda s: live(small(act=nn.SiLU), stamps(s, noise=1.2), "Adam", 5e-3, 80))
healthy(
    "stamps-step-decay-rmsprop",
    lambda s: live(small(), stamps(s), "RMSprop", 3e-3, 70, rate=lambda t: 0.3 ** (t // 25)),
)
healthy(
    "stamps-label-smoothing-clipped",
    lambda s: live(
        small(norm=False, act=nn.LeakyReLU),
        stamps(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1)),
        "SGD", 0.1, 80, momentum=0.9, clip=1.0,
    ),
)  # fmt: skip
healthy("weaves-wide-kernels-global-max", lambda s: live(
    nn.Sequential(nn.Conv2d(1, 24, 7, padding=3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 8)),
    weaves(s), "Adam", 1e-2, 70,
))  # fmt: skip
healthy("weaves-dropout-of-channels", lambda s: live(
    nn.Sequential(conv(1, 24), nn.Dropout2d(0.2), conv(24, 24, 2), Head(24, 8)), weaves(s), "Adam", 5e-3, 80
))  # fmt: skip


def tuned(seed: int) -> Setup:
    """Trained on other stamps, then all but the last convolution and the head is frozen, its norms too."""
    model = small()
    pretrain(live(model, stamps(seed + 5)), 30)
    nn.init.zeros_(model[2].fc.bias)
    return live(frozen(model, "0"), stamps(seed), "AdamW", 4e-3, 60)


healthy("stamps-first-block-frozen", tuned)


def by_parts(seed: int) -> Setup:
    model = small(act=nn.GELU)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return with_groups(model, stamps(seed), groups, lr=4e-3)


healthy("stamps-no-decay-on-vectors", by_parts)


class Twins(nn.Module):
    """Two noisy looks at one picture; a projector behind the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.projector = small(32), nn.Sequential(nn.GELU(), nn.Linear(32, 24))

    def forward(self, x: Tensor) -> Tensor:
        a, b = (self.projector(self.encoder(x + 0.3 * torch.randn_like(x))) for _ in range(2))
        return info_nce(a, b, 0.2)


healthy(
    "stamps-two-looks-contrasted",
    lambda s: live(Twins(), stamps(s, classes=24, noise=0.8).with_loss(lambda out, _: out), "Adam", 3e-3, 70),
)


class Unet(nn.Module):
    """Down once, up once, with what was seen before put beside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(2, 12), conv(12, 24, 2), conv(36, 12)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        return self.out(self.c(torch.cat([a, F.interpolate(self.b(a), scale_factor=2)], dim=1)))


healthy("lakes-u-net", lambda s: live(Unet(), lakes(s), "Adam", 5e-3, 60))
healthy("lakes-u-net-dice-some-without", lambda s: live(
    Unet(), lakes(s, empty=0.1).with_loss(dice(1.0)), "Adam", 5e-3, 80
))  # fmt: skip
healthy("lakes-u-net-rare-dots-weighted", lambda s: live(
    Unet(),
    lakes(s).with_loss(lambda z, t: F.binary_cross_entropy_with_logits(z, t, pos_weight=torch.tensor(3.0))),
    "SGD", 0.05, 70, momentum=0.9,
))  # fmt: skip


class Clear(nn.Module):
    """The noise is told and taken off; the last convolution starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, 16, act=nn.SiLU), conv(16, 16, act=nn.SiLU), nn.Conv2d(16, 3, 3, padding=1))
        nn.init.zeros_(self.net[2].weight)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.net(x)


healthy("veils-noise-taken-off", lambda s: live(Clear(), veils(s), "Adam", 5e-3, 60))
healthy("veils-absolute-error", lambda s: live(Clear(), veils(s).with_loss(F.l1_loss), "AdamW", 5e-3, 70))


class Bird(nn.Module):
    """Dilated convolutions over a record."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(24 if i else 1, 24, 5, padding=2 * 2**i, dilation=2**i) for i in range(3))
        self.out = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.out(x.amax(dim=2))


healthy("calls-dilated", lambda s: live(Bird(), calls(s), "Adam", 4e-3, 80))
healthy("calls-dilated-one-cycle", lambda s: live(
    Bird(), calls(s), "SGD", 0.1, 90, momentum=0.9, clip=1.0, rate=lambda t: min(0.1 + t / 30, 1.0, (95 - t) / 60)
))  # fmt: skip
