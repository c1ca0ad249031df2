# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks as people train them at work, with one fault each, their twins, and odd healthy ones.

Half: fresh.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.signal import channel_rank, dead, gradient_ratio, no_gradient, saturated
from validation.evidence.training import gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW
from validation.nets import he_
from validation.setups import live
from validation.tasks import Task, every, glyphs, paints, pictures, pulses, spots, stains

zoo = Zoo("cnn", half="fresh", proof=thrives())

# --- dying, dead, flat


class Dilated(nn.Module):
    """Convolutions over time that reach further and further, with an activation of one's own choice."""

    def __init__(self, depth: int, width: int = 16, act: type[nn.Module] = nn.ReLU, drawn: bool = True) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(2 if i == 0 else width, width, 3, dilation=2 ** (i % 3), padding=2 ** (i % 3))
            for i in range(depth)
        )
        self.acts, self.fc = nn.ModuleList(act() for _ in self.convs), nn.Linear(width, 5)
        if drawn:
            he_(self)

    def forward(self, x: Tensor) -> Tensor:
        for conv, act in zip(self.convs, self.acts, strict=True):
            x = act(conv(x))
        return self.fc(x.amax(dim=2))


def beats(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, pulses(seed), **{"lr": 5e-3, "steps": 60, **more})


dilated = zoo.healthy("pulses-dilated-5-layers", lambda s: beats(s, Dilated(5)), thrives(most_dead=0.5))
zoo.sick(
    "pulses-dilated-14-layers-default-draw",
    lambda s: beats(s, Dilated(14, drawn=False), kind="SGD", lr=0.02, momentum=0.9),
    lasting(gradient_ratio("convs.0", "convs.13", below=10**-2.5)),
    "VANISHING",
    also={"LOW_RANK", "DEAD"},
    control=dilated,
)


class Coding(nn.Module):
    """Sparse coding of pictures: what is below a threshold is nothing."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.enter, self.code = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.shrink, self.back = nn.Hardshrink(threshold), nn.Conv2d(32, 1, 3, padding=1)
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(self.shrink(self.code(F.gelu(self.enter(x)))))


def sparse(seed: int, threshold: float) -> Setup:
    return live(Coding(threshold), pictures(seed, 10), lr=3e-3, steps=60)


coding = zoo.healthy("pictures-sparse-code-threshold-0.1", lambda s: sparse(s, 0.1))
zoo.sick(
    "pictures-sparse-code-threshold-30",
    lambda s: sparse(s, 30.0),
    lasting(dead("shrink", 0.99), no_gradient("code", "enter")),
    "DEAD",
    layer="code",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=coding,
)


def volts(seed: int, factor: float) -> Setup:
    """Microvolts instead of millivolts, into a hard bound."""
    task = pulses(seed).mapped(lambda x: factor * x)
    return live(Dilated(3, act=nn.Hardtanh), task, lr=5e-3 if factor == 1 else 1e-3, steps=60)


bounded = zoo.healthy("pulses-hard-bound-millivolts", lambda s: volts(s, 1.0))
zoo.sick(
    "pulses-hard-bound-microvolts",
    lambda s: volts(s, 1000.0),
    lasting(saturated("acts.0", "hardtanh", 0.9)),
    "SATURATION",
    "VANISHING",
    "DEAD",
    layer="convs.0",
    also={"EXPLODING", "UNSTABLE"},
    control=bounded,
)

# --- narrow


class Hues(nn.Module):
    """A first convolution of one dot and `colours` channels, then a small net."""

    def __init__(self, colours: int) -> None:
        super().__init__()
        self.colour, self.conv1 = nn.Conv2d(3, colours, 1), nn.Conv2d(colours, 24, 3, padding=1)
        self.conv2, self.fc = nn.Conv2d(24, 24, 3, stride=2), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv2(F.silu(self.conv1(self.colour(x)))))
        return self.fc(x.mean(dim=(2, 3)))


hues = zoo.healthy("paints-three-colours", lambda s: live(Hues(3), paints(s), lr=1e-2, steps=60))
zoo.sick(
    "paints-turned-grey-by-the-first-convolution",
    lambda s: live(Hues(1), paints(s), lr=1e-2, steps=60),
    lags(0.1),
    "BOTTLENECK",
    layer=("colour", "conv1"),
    also=NARROW,
    control=hues,
)


class Upscale(nn.Module):
    """Twice the size by shuffling channels into dots; `narrow` channels lie in between."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.enter, self.mid = nn.Conv2d(2, 24, 3, padding=1), nn.Conv2d(24, narrow, 3, padding=1)
        self.grow, self.shuffle = nn.Conv2d(narrow, 8, 3, padding=1), nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.shuffle(self.grow(F.gelu(self.mid(F.gelu(self.enter(x))))))


def upscaled(seed: int, narrow: int) -> Setup:
    task = pictures(seed, 14, channels=2).mapped(lambda x: F.avg_pool2d(x, 2))
    return live(Upscale(narrow), task, lr=1e-2, steps=80)


upscale = zoo.healthy("upscaling-24-channels", lambda s: upscaled(s, 24))
zoo.sick(
    "upscaling-1-channel",
    lambda s: upscaled(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("mid", "grow"),
    also=NARROW,
    control=upscale,
)


class Stages(nn.Module):
    """Three stages with batch norms, as a list of channels says; a zero was lost in the list."""

    def __init__(self, *channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise((1, *channels)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in channels)
        self.fc = nn.Linear(channels[-1], 6)

    def forward(self, x: Tensor) -> Tensor:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = F.relu(norm(conv(x)))
            x = F.max_pool2d(x, 2) if i < 2 else x
        return self.fc(x.amax(dim=(2, 3)))


def staged(seed: int, *channels: int) -> Setup:
    return live(Stages(*channels), glyphs(seed, 6), lr=1e-2, steps=60)


stages = zoo.healthy("glyphs-stages-16-20-32", lambda s: staged(s, 16, 20, 32))
zoo.sick(
    "glyphs-stages-16-1-32",
    lambda s: staged(s, 16, 1, 32),
    lasting(channel_rank("convs.1", 1.01)),
    "BOTTLENECK",
    layer=("convs.1", "convs.2"),
    also={"LOW_RANK", "VANISHING"},
    control=stages,
)

# --- cut


class Glimpse(nn.Module):
    """Finds a place, cuts a window out there and reads it; `soft` cuts by a grid that can be moved."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2), nn.Tanh())
        self.what = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))
        self.soft = soft

    def window(self, x: Tensor, at: Tensor) -> Tensor:
        if self.soft:
            line = torch.linspace(-0.5, 0.5, 6)
            grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1) + at[:, None, None]
            return F.grid_sample(x, grid, align_corners=False, padding_mode="border")
        corner = (3 * at + 3).long().clamp(0, 6).tolist()
        return torch.stack(
            [image[:, row : row + 6, left : left + 6] for image, (left, row) in zip(x, corner, strict=True)]
        )

    def forward(self, x: Tensor) -> Tensor:
        at = self.where(x)
        return self.what(self.window(x, at))


glimpse = zoo.healthy(
    "spots-window-by-a-grid", lambda s: live(Glimpse(True), spots(s), lr=3e-3, steps=60), thrives(most_dead=0.5)
)
zoo.sick(
    "spots-window-by-whole-numbers",
    lambda s: live(Glimpse(False), spots(s), lr=3e-3, steps=60),
    lasting(no_gradient("where")),
    "DISCONNECTED",
    layer=("where.3", "where.0"),
    also={"DEAD"},
    control=glimpse,
)

# --- numbers


class Whitened(nn.Module):
    """Standardises features over the batch by hand, with the deviation of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mid, self.fc = nn.Conv2d(3, 16, 3, stride=2), nn.Linear(144, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mid(F.silu(self.conv(x)).flatten(1))
        return self.fc(F.silu((h - h.mean(dim=0)) / (h.std(dim=0) + 1e-5)))


def remainders(seed: int, least: int) -> Setup:
    """The last batch of an epoch holds what is left over."""
    now = every(12, 11)
    task = paints(seed).changed(lambda x, t: (x[:least], t[:least]) if now() else (x, t))
    return live(Whitened(), task, lr=5e-3, steps=50)


rest = zoo.healthy("paints-last-batch-of-9", lambda s: remainders(s, 9))
zoo.sick("paints-last-batch-of-1", lambda s: remainders(s, 1), breaks, "NUMERICAL", control=rest)


def bytes_now(seed: int, factor: float) -> Setup:
    """One of eight files was not divided by 255."""
    now = every(8, 5)
    task = glyphs(seed, 6).mapped(lambda x: factor * x if now() else x)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ELU(), nn.Conv2d(16, 24, 3), nn.ELU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )
    return live(model.append(nn.Linear(24, 6)), task, lr=5e-3, steps=64)


files = zoo.healthy("glyphs-all-files-divided", lambda s: bytes_now(s, 1.0))
zoo.sick(
    "glyphs-one-file-in-eight-in-bytes", lambda s: bytes_now(s, 255.0), gradient_norms_spread(30), *JUMPS, control=files
)

# --- odd and healthy

zoo.healthy("pulses-one-channel-per-lead", lambda s: beats(s, Leads(), lr=1e-2, steps=80))


class Leads(nn.Module):
    """Each lead has kernels of its own, and they meet at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.meet = nn.Conv1d(2, 32, 12, groups=2), nn.Conv1d(32, 24, 1)
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.meet(F.gelu(self.own(x)))).amax(dim=2))


class Fixed(nn.Module):
    """A frozen bank of edges in front, and the picture beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.Conv2d(1, 4, 3, padding=1, bias=False).requires_grad_(False)
        self.body = nn.Sequential(nn.Conv2d(5, 24, 3, 2), nn.SiLU(), nn.Conv2d(24, 24, 3), nn.SiLU())
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(torch.cat([x, self.edges(x)], dim=1)).amax(dim=(2, 3)))


zoo.healthy("glyphs-frozen-edges-in-front", lambda s: live(Fixed(), glyphs(s, 6), lr=1e-2, steps=80))


class Heat(nn.Module):
    """Where the spot is, as the mean place under a softmax over all dots."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        p = (3 * self.body(x)).flatten(1).softmax(dim=1).view_as(x)
        line = torch.linspace(-1, 1, x.shape[-1])
        return torch.stack([(p.sum(dim=(1, 3)) * line).sum(dim=1), (p.sum(dim=(1, 2)) * line).sum(dim=1)], dim=1)


# A shift of all dots alike leaves the softmax as it is: the last bias has no gradient to speak of.
zoo.healthy(
    "spots-mean-place-under-a-softmax", lambda s: live(Heat(), spots(s), lr=1e-2, steps=60), thrives(idle="body.2.bias")
)


def dice(z: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    shared, total = (p * t).sum(dim=(1, 2, 3)), (p + t).sum(dim=(1, 2, 3))
    return (1 - (2 * shared + 1) / (total + 1)).mean()


def overlap(seed: int, batch: int = 12) -> Setup:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(16, 1, 1),
    )
    return live(model, stains(seed, batch=batch).with_loss(dice), lr=3e-3, steps=60)


zoo.healthy("stains-overlap-loss-group-norm", overlap)
zoo.healthy("stains-overlap-loss-batches-of-1", lambda s: overlap(s, 1), thrives(0.1))
zoo.healthy(
    "paints-one-colour-is-enough-for-light",
    lambda s: live(
        Light(),
        paints(s).changed(lambda x, t: (x.abs(), x.abs().mean(dim=(1, 2, 3))[:, None])).with_loss(F.mse_loss),
        lr=1e-2,
        steps=60,
    ),
)


class Light(nn.Module):
    """How light a picture is, through one channel: no more is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.grey, self.conv, self.fc = nn.Conv2d(3, 1, 1), nn.Conv2d(1, 12, 3), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.silu(self.conv(self.grey(x))).mean(dim=(2, 3)))


class Rotated(nn.Module):
    """The same kernels at four turns; the largest answer counts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.then, self.fc = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 24, 3), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.stack([F.conv2d(x, self.conv.weight.rot90(k, (2, 3)), self.conv.bias) for k in range(4)])
        return self.fc(F.relu(self.then(F.relu(turned.amax(dim=0)))).amax(dim=(2, 3)))


zoo.healthy("glyphs-kernels-at-four-turns", lambda s: live(Rotated(), glyphs(s, 6), lr=5e-3, steps=80))


class Blinded(nn.Module):
    """Three dots in four are hidden and have to be guessed from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 24, 5, padding=2), nn.GELU(), nn.Conv2d(24, 24, 5, padding=2), nn.GELU(), nn.Conv2d(24, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = (torch.rand(x.shape) < 0.25).float()
        return (1 - seen) * self.body(torch.cat([x * seen, seen], dim=1)) + seen * x


zoo.healthy("pictures-three-dots-in-four-hidden", lambda s: live(Blinded(), pictures(s), lr=5e-3, steps=60))


class Long(nn.Module):
    """Nine thin layers behind batch norms, on eight channels."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(9):
            layers += [nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.1)]
        self.body, self.fc = nn.Sequential(*layers), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean(dim=(2, 3)))


zoo.healthy("paints-nine-thin-layers", lambda s: live(Long(), paints(s), lr=5e-3, steps=50))


def labelled(seed: int) -> Task:
    """Half of the labels are missing."""
    random = torch.Generator().manual_seed(seed + 50)
    return paints(seed).changed(lambda x, t: (x, t.masked_fill(torch.rand(t.shape, generator=random) < 0.5, -100)))


zoo.healthy("paints-half-of-the-labels-missing", lambda s: live(Hues(6), labelled(s), lr=1e-2, steps=60))
