"""What the reported nets share: rows, ratings, pictures, masks, and the layers that people wrote in their threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof
from validation.evidence import judged, trace
from validation.tasks import Task, drawn_once
from validation.tasks.task import Loss

UNLEARNED = {"SLOW", "loss_stuck", "never_moves", "rate_too_low"}
"""Nothing is learned, for nearly nothing comes back."""
SQUASHED = {"DEAD", "SYMMETRY", "VANISHING", "loss_stuck"}
"""Few units die or agree sooner than many, and what they lose does not come back."""

# --- rows


def penguins(seed: int, classes: int = 8, dim: int = 14, batch: int = 64, apart: float = 1.0) -> Task:
    """Measures of birds in units of their spread; each kind comes in two sizes."""
    centres = apart * torch.randn(classes, 2, dim, generator=drawn_once(seed, 8200))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        size = torch.randint(2, (batch,), generator=random)
        x = centres[kind, size] + 0.8 * torch.randn(batch, dim, generator=random)
        return x / math.sqrt(0.64 + apart**2), kind

    return Task(seed, draw, F.cross_entropy)


def rents(seed: int, dim: int = 9, batch: int = 64, noise: float = 0.1, scale: float = 1.0, base: float = 0.0) -> Task:
    """Standardised columns of a flat and its rent: of unit scale, or in coins above a base."""
    fixed = drawn_once(seed, 8201)
    inner, outer = torch.randn(dim, 8, generator=fixed) / math.sqrt(dim), torch.randn(8, 1, generator=fixed) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        y = torch.tanh(1.6 * x @ inner) @ outer + noise * torch.randn(batch, 1, generator=random)
        return x, base + scale * y

    return Task(seed, draw, F.mse_loss)


def gauges(seed: int, dim: int = 10, out: int = 8, batch: int = 64) -> Task:
    """Settings of a boiler and what eight of its gauges say, of unit scale."""
    fixed = drawn_once(seed, 8202)
    inner, turn = torch.randn(dim, out, generator=fixed) / math.sqrt(dim), torch.randn(out, out, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sin(1.4 * x @ inner) @ torch.linalg.qr(turn)[0] * 1.4

    return Task(seed, draw, F.mse_loss)


def scans(seed: int, factors: int = 9, dim: int = 40, batch: int = 64, noise: float = 0.0) -> Task:
    """Rows of a scanner that a few things decide, to be rebuilt, or freed of noise."""
    ways = torch.randn(factors, dim, generator=drawn_once(seed, 8203)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.5 * torch.tanh(torch.randn(batch, factors, generator=random) @ ways)
        return (x + noise * torch.randn(x.shape, generator=random) if noise else x), x

    return Task(seed, draw, F.mse_loss)


def ratings(seed: int, users: int = 50, items: int = 30, factors: int = 5, batch: int = 256) -> Task:
    """What a user gives to an item, by several tastes."""
    fixed = drawn_once(seed, 8204)
    taste, trait = torch.randn(users, factors, generator=fixed), torch.randn(items, factors, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        user = torch.randint(users, (batch,), generator=random)
        item = torch.randint(items, (batch,), generator=random)
        return (user, item), (taste[user] * trait[item]).sum(dim=1) / math.sqrt(factors)

    return Task(seed, draw, F.mse_loss)


def shopping(
    seed: int, sizes: Sequence[int] = (24, 12, 8), numbers: int = 4, classes: int = 6, batch: int = 96
) -> Task:
    """Kinds and numbers of a basket, and what the customer buys next. Inputs are both."""
    fixed = drawn_once(seed, 8205)
    lean = [torch.randn(n, classes, generator=fixed) for n in sizes]
    slopes = torch.randn(numbers, classes, generator=fixed) / 2

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kinds = torch.stack([torch.randint(n, (batch,), generator=random) for n in sizes], dim=1)
        x = torch.randn(batch, numbers, generator=random)
        level = sum(table[kinds[:, i]] for i, table in enumerate(lean)) + x @ slopes
        return (kinds, x), level.argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def trios(seed: int, classes: int = 10, dim: int = 20, batch: int = 48, noise: float = 0.5) -> Task:
    """Two rows of one kind and one of another. The model says the loss."""
    centres = torch.randn(classes, dim, generator=drawn_once(seed, 8206))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, ...], None]:
        kind = torch.randint(classes, (batch,), generator=random)
        other = (kind + torch.randint(1, classes, (batch,), generator=random)) % classes
        rows = (centres[k] + noise * torch.randn(batch, dim, generator=random) for k in (kind, kind, other))
        return tuple(rows), None

    return Task(seed, draw, lambda out, _: out)


def waves(seed: int, rates: Sequence[float] = (2.0, 4.0, 7.0), batch: int = 96) -> Task:
    """A place on a line and the height of a sum of sines there."""
    phase = 6 * torch.rand(3, generator=drawn_once(seed, 8207))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(batch, 1, generator=random) - 1
        return x, torch.sin(torch.tensor(rates) * x + phase).sum(dim=1, keepdim=True)

    return Task(seed, draw, F.mse_loss)


# --- pictures


def numerals(seed: int, classes: int = 10, size: int = 12, batch: int = 32, noise: float = 0.5) -> Task:
    """Grey signs from -1 to 1, moved by a dot, under noise."""
    coarse = torch.rand(classes, 1, 5, 5, generator=drawn_once(seed, 8210)).round()
    signs = 2 * F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False) - 1
    moved = torch.stack([signs.roll((i, j), (2, 3)) for i in (-1, 0, 1) for j in (-1, 0, 1)], dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        x = moved[kind, torch.randint(9, (batch,), generator=random)]
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def animals(
    seed: int, classes: int = 8, size: int = 12, batch: int = 32, noise: float = 0.5, negatives: bool = False
) -> Task:
    """Colour pictures: a kind has a hue, and stripes of its own direction at any phase; half are negatives if asked."""
    fixed = drawn_once(seed, 8211)
    hue, way = torch.randn(classes, 3, 1, 1, generator=fixed), 1.4 * torch.randn(classes, 2, generator=fixed)
    line = torch.arange(size * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        at = way[kind][..., None, None]
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=random)
        stripes = torch.sin(at[:, 0] * line[:, None] + at[:, 1] * line + phase)[:, None]
        x = stripes * hue[kind] + 0.5 * hue[kind]
        if negatives:
            x = x * (2 * torch.randint(2, (batch, 1, 1, 1), generator=random) - 1)
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def plates(seed: int, factors: int = 10, size: int = 12, batch: int = 32, noise: float = 0.0) -> Task:
    """Grey pictures of hills at fixed places, each of any height; to be rebuilt, or freed of noise."""
    at = 0.8 * (2 * torch.rand(factors, 2, 1, 1, generator=drawn_once(seed, 8212)) - 1)
    line = torch.linspace(-1, 1, size)
    hills = torch.exp(-((line[:, None] - at[:, 0]) ** 2 + (line - at[:, 1]) ** 2) / 0.1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.4 * torch.einsum("bk,khw->bhw", torch.randn(batch, factors, generator=random), hills)[:, None]
        return (x + noise * torch.randn(x.shape, generator=random) if noise else x), x

    return Task(seed, draw, F.mse_loss)


def lesions(seed: int, size: int = 14, batch: int = 12, empty: float = 0.0, noise: float = 0.6) -> Task:
    """A disc on rough ground and its mask; a share of the pictures shows none."""
    line = torch.linspace(-1, 1, size)
    bright = 1.4 + 0.2 * torch.rand((), generator=drawn_once(seed, 8213))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.2 * torch.rand(batch, 2, 1, 1, generator=random) - 0.6
        radius = 0.3 + 0.3 * torch.rand(batch, 1, 1, generator=random)
        mask = ((line[:, None] - at[:, 0]).square() + (line - at[:, 1]).square() < radius.square()).float()[:, None]
        mask = mask * (torch.rand(batch, 1, 1, 1, generator=random) >= empty)
        return bright * mask - 0.3 + noise * torch.randn(mask.shape, generator=random), mask

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def hands(seed: int, count: int = 3, size: int = 12, batch: int = 32) -> Task:
    """A bright dot in each of three channels; where is it, from -1 to 1?"""
    line = torch.linspace(-1, 1, size)
    blur = 0.08 + 0.02 * torch.rand(count, 1, 1, generator=drawn_once(seed, 8214))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.6 * torch.rand(batch, count, 2, generator=random) - 0.8
        far = (line[:, None] - at[..., :1, None]).square() + (line - at[..., 1:, None]).square()
        x = 2 * torch.exp(-far / blur)
        return x + 0.2 * torch.randn(x.shape, generator=random), at.flatten(1)

    return Task(seed, draw, F.mse_loss)


def shots(seed: int, size: int = 12, batch: int = 16) -> Task:
    """Pictures that were made coarse and blown up again, and the fine ones."""
    fine = torch.randn(24, 1, size, size, generator=drawn_once(seed, 8215))
    fine = 2 * F.avg_pool2d(fine, 3, 1, 1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        share = torch.randn(batch, 24, generator=random) / 4
        y = torch.einsum("bk,kchw->bchw", share, fine)
        return F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="nearest"), y

    return Task(seed, draw, F.mse_loss)


def clouds_of_points(seed: int, points: int = 24, factors: int = 8, batch: int = 32) -> Task:
    """Outlines of points whose radius is a sum of harmonics of any strength; to be rebuilt."""
    angle = torch.linspace(0, 2 * math.pi, points + 1)[:-1]
    turn = 6 * torch.rand((), generator=drawn_once(seed, 8216))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        strength = 0.5 * torch.randn(batch, 2, factors // 2, 1, generator=random)
        order = torch.arange(1, factors // 2 + 1)[:, None]
        far = 2 + (strength[:, 0] * torch.cos(order * angle) + strength[:, 1] * torch.sin(order * angle)).sum(dim=1)
        x = torch.stack([far * torch.cos(angle + turn), far * torch.sin(angle + turn)], dim=1)
        return x, x

    return Task(seed, draw, F.mse_loss)


# --- nets


def dense(widths: Sequence[int], act: type[nn.Module] = nn.ReLU, last: type[nn.Module] | None = None) -> nn.Sequential:
    """Linear layers with an activation between them, and perhaps one behind the last."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1], *([last()] if last else []))


class Coder(nn.Module):
    """An encoder, a code, a decoder."""

    def __init__(self, dim: int, code: int, width: int = 64, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.encoder = dense([dim, width, code], act)
        self.decoder = dense([code, width, dim], act)

    def forward(self, x: Tensor) -> Tensor:
        """Rebuild."""
        return self.decoder(self.encoder(x))


def vgg(widths: Sequence[int], channels: int, norm: bool, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Convolutions of three by three with an activation, each with a batch norm or none."""
    parts: list[nn.Module] = []
    for a, b in pairwise([channels, *widths]):
        parts += [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if norm else []), act()]
    return nn.Sequential(*parts)


class Pooled(nn.Module):
    """Features, their mean over the picture, a linear layer."""

    def __init__(self, features: nn.Module, width: int, out: int) -> None:
        super().__init__()
        self.features, self.fc = features, nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.fc(self.features(x).mean(dim=(2, 3)))


class Residual(nn.Module):
    """x + scale · branch(x); `after` scales the sum instead, as a thread had it."""

    def __init__(self, branch: nn.Module, scale: float = 1.0, after: bool = False) -> None:
        super().__init__()
        self.branch, self.scale, self.after = branch, scale, after

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        return self.scale * (x + self.branch(x)) if self.after else x + self.scale * self.branch(x)


def two_convs(
    width: int, norm: bool = False, act: type[nn.Module] = nn.ReLU, inner: int | None = None
) -> nn.Sequential:
    """The branch of a basic block."""
    inner = inner or width
    first, second = nn.Conv2d(width, inner, 3, padding=1), nn.Conv2d(inner, width, 3, padding=1)
    if norm:
        return nn.Sequential(first, nn.BatchNorm2d(inner), act(), second, nn.BatchNorm2d(width))
    return nn.Sequential(first, act(), second)


class Tagger(nn.Module):
    """Kinds as vectors of some size beside numbers, then dense layers."""

    def __init__(self, size: int, sizes: Sequence[int] = (24, 12, 8), numbers: int = 4, classes: int = 6) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, size) for n in sizes)
        self.net = dense([size * len(sizes) + numbers, 48, classes])

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        """Classify."""
        return self.net(torch.cat([*(table(kinds[:, i]) for i, table in enumerate(self.tables)), x], dim=1))


# --- losses


def triplets(hardest: bool, margin: float = 0.5) -> Loss:
    """The triplet loss over a batch: the farthest row of the kind and the nearest other, or the means of both."""

    def loss(z: Tensor, kind: Tensor) -> Tensor:
        far = (z[:, None] - z[None]).square().sum(dim=2)
        same = kind[:, None] == kind[None]
        if hardest:
            near, other = far.masked_fill(~same, 0).amax(dim=1), far.masked_fill(same, 1e9).amin(dim=1)
        else:
            near, other = (far * same).sum(dim=1) / same.sum(dim=1), (far * ~same).sum(dim=1) / (~same).sum(dim=1)
        return F.relu(near - other + margin).mean()

    return loss


# --- proofs


def same_for_all(path: str, below: float = 1e-3) -> Proof:
    """What a module hands on differs by next to nothing between samples, though it is normed."""

    def proof(case: Case, seed: int) -> Evidence:
        spread = trace(case.make(seed)).outputs[path].std(dim=0).mean().item()
        return judged(spread < below, "samples differ by {:.1e}", spread)

    return proof
