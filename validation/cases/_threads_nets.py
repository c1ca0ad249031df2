"""What the nets of the half `threads` share: rows, words, pictures, signals, and what their labels hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.tasks import Task, drawn_once

STILL = {"SLOW", "loss_stuck", "never_moves", "rate_too_low"}
"""Nothing is learned, for next to nothing comes back."""
PINCHED = {"DEAD", "SYMMETRY", "VANISHING", "SATURATION", "loss_stuck"}
"""Few units die, agree or fill up sooner than many."""
QUIET = {"DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "SATURATION", *STILL}
"""What a signal that fades brings with it."""

# --- rows


def stamps(seed: int, classes: int = 10, side: int = 10, batch: int = 64, noise: float = 0.6) -> Task:
    """Small grey stamps as rows of dots, under noise."""
    coarse = torch.randn(classes, 1, 4, 4, generator=drawn_once(seed, 9100))
    face = F.interpolate(coarse, size=(side, side), mode="bilinear", align_corners=False).flatten(1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        return face[kind] + noise * torch.randn(batch, side * side, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def turbines(seed: int, dim: int = 12, out: int = 8, batch: int = 64) -> Task:
    """Settings of a turbine and what its meters say, of unit scale."""
    fixed = drawn_once(seed, 9101)
    inner, outer = torch.randn(dim, 24, generator=fixed) / math.sqrt(dim), torch.randn(24, out, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.tanh(1.3 * x @ inner) @ outer / math.sqrt(12)

    return Task(seed, draw, F.mse_loss)


def cereals(seed: int, classes: int = 6, dim: int = 16, batch: int = 64) -> Task:
    """Sorts of grain, each of which comes in three shapes."""
    centres = torch.randn(classes, 3, dim, generator=drawn_once(seed, 9102))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind, shape = torch.randint(classes, (batch,), generator=random), torch.randint(3, (batch,), generator=random)
        return (centres[kind, shape] + 0.6 * torch.randn(batch, dim, generator=random)) / 1.17, kind

    return Task(seed, draw, F.cross_entropy)


def flats(seed: int, dim: int = 7, batch: int = 64) -> Task:
    """What is known of a flat, of unit scale, and its price."""
    fixed = drawn_once(seed, 9103)
    line, bend = torch.randn(dim, 1, generator=fixed) / 2, torch.randn(dim, 4, generator=fixed) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, x @ line + 0.5 * torch.sin(2 * x @ bend).sum(dim=1, keepdim=True)

    return Task(seed, draw, F.mse_loss)


def reviews(seed: int, words: int = 60, classes: int = 6, length: int = 12, batch: int = 64) -> Task:
    """Bags of words, of which each leans to some of the classes."""
    lean = torch.randn(words, classes, generator=drawn_once(seed, 9104))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(words, (batch, length), generator=random)
        return text, lean[text].sum(dim=1).argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def letters(seed: int, count: int = 20, back: int = 3, batch: int = 96) -> Task:
    """Three letters and the next, as in names."""
    score = 2.5 * torch.randn(back, count, count, generator=drawn_once(seed, 9105))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        seen = torch.randint(count, (batch, back), generator=random)
        level = sum(score[i, seen[:, i]] for i in range(back))
        return seen, torch.multinomial(level.softmax(dim=1), 1, generator=random)[:, 0]

    return Task(seed, draw, F.cross_entropy)


def spectra(seed: int, parts: int = 10, dim: int = 48, batch: int = 64) -> Task:
    """Sums of lines, each of any height, to be rebuilt."""
    place = torch.linspace(0, 1, dim)
    at = torch.rand(parts, 1, generator=drawn_once(seed, 9106))
    lines = torch.exp(-((place - at) ** 2) / 0.004)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, parts, generator=random) @ lines
        return x, x

    return Task(seed, draw, F.mse_loss)


# --- pictures


def leaves(seed: int, classes: int = 8, size: int = 12, batch: int = 32, channels: int = 3, noise: float = 0.6) -> Task:
    """Colour pictures whose texture tells the class; it begins anywhere."""
    grain = torch.randn(classes, channels, 5, 5, generator=drawn_once(seed, 9110)).repeat(1, 1, 5, 5)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        row, column = torch.randint(5, (2, batch), generator=random).tolist()
        cut = [grain[k, :, r : r + size, c : c + size] for k, r, c in zip(kind, row, column, strict=True)]
        x = torch.stack(cut)
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def kanji(seed: int, classes: int = 10, size: int = 12, batch: int = 32, noise: float = 0.4) -> Task:
    """Grey signs of unit scale, each a little off its place."""
    coarse = torch.randn(classes, 1, 5, 5, generator=drawn_once(seed, 9111))
    sign = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        moves = torch.randint(-1, 2, (batch, 2), generator=random).tolist()
        x = torch.stack([sign[k].roll(tuple(m), (1, 2)) for k, m in zip(kind, moves, strict=True)])
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def paintings(seed: int, parts: int = 12, size: int = 16, batch: int = 24, channels: int = 1) -> Task:
    """Pictures of several soft shapes, each of any strength, to be rebuilt."""
    coarse = torch.randn(parts, channels, 4, 4, generator=drawn_once(seed, 9112))
    shape = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.einsum("bk,kchw->bchw", torch.randn(batch, parts, generator=random), shape) / math.sqrt(parts / 2)
        return x, x

    return Task(seed, draw, F.mse_loss)


def fields(seed: int, bands: int = 6, out: int = 6, size: int = 10, batch: int = 12) -> Task:
    """Bands of a satellite and as many maps of what grows there."""
    mix = torch.randn(bands, out, generator=drawn_once(seed, 9113)) / math.sqrt(bands)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = F.interpolate(torch.randn(batch, bands, 5, 5, generator=random), size=(size, size), mode="nearest")
        y = torch.einsum("bchw,cd->bdhw", F.avg_pool2d(x, 3, 1, 1), mix)
        return x + 0.1 * torch.randn(x.shape, generator=random), 1.5 * torch.tanh(y)

    return Task(seed, draw, F.mse_loss)


def cells(seed: int, size: int = 16, batch: int = 10) -> Task:
    """Round cells on a rough ground, and their mask."""
    line = torch.linspace(-1, 1, size)
    light = 1.2 + 0.4 * torch.rand((), generator=drawn_once(seed, 9114))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.4 * torch.rand(batch, 3, 2, 1, 1, generator=random) - 0.7
        wide = 0.2 + 0.15 * torch.rand(batch, 3, 1, 1, generator=random)
        near = (line[:, None] - at[:, :, 0]).square() + (line - at[:, :, 1]).square() < wide.square()
        mask = near.any(dim=1, keepdim=True).float()
        return light * mask - 0.4 + 0.6 * torch.randn(mask.shape, generator=random), mask

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def boxes(seed: int, size: int = 12, batch: int = 32) -> Task:
    """A bright box; its edges as shares of the picture."""
    line = torch.linspace(0, 1, size)
    level = 1 + 0.2 * torch.rand((), generator=drawn_once(seed, 9115))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        low = 0.5 * torch.rand(batch, 2, generator=random)
        high = low + 0.25 + 0.25 * torch.rand(batch, 2, generator=random)
        inside = [(line >= low[:, i, None]) & (line <= high[:, i, None]) for i in (0, 1)]
        x = (inside[0][:, :, None] & inside[1][:, None]).float()[:, None]
        return 2 * level * x - 0.5 + 0.2 * torch.randn(x.shape, generator=random), torch.cat([low, high], dim=1)

    return Task(seed, draw, F.mse_loss)


def beats(seed: int, classes: int = 6, length: int = 48, batch: int = 32) -> Task:
    """Heart beats of one lead, (batch, 1, length); the form of the wave tells the class."""
    wave = torch.randn(classes, 1, 12, generator=drawn_once(seed, 9116))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        shift = torch.randint(12, (batch,), generator=random).tolist()
        x = torch.stack([wave[k].repeat(1, 4).roll(s, 1) for k, s in zip(kind, shift, strict=True)])
        return x[..., :length] + 0.4 * torch.randn(batch, 1, length, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


# --- nets


def layers(widths: Sequence[int], act: type[nn.Module] = nn.ReLU, last: type[nn.Module] | None = None) -> nn.Sequential:
    """Linear layers with an activation between them, and perhaps one at the end."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1], *([last()] if last else []))


def convs(
    channels: int, widths: Sequence[int], act: type[nn.Module] = nn.ReLU, norm: bool = False, stride: int = 1
) -> nn.Sequential:
    """Convolutions of three by three with an activation behind each."""
    parts: list[nn.Module] = []
    for a, b in pairwise([channels, *widths]):
        parts += [nn.Conv2d(a, b, 3, stride, 1), *([nn.BatchNorm2d(b)] if norm else []), act()]
    return nn.Sequential(*parts)


class Averaged(nn.Module):
    """A body of convolutions, the mean over the picture, a linear layer."""

    def __init__(self, body: nn.Module, width: int, out: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.head(self.body(x).flatten(2).mean(dim=2))


class Skip(nn.Module):
    """x + branch(x), or the branch alone where somebody forgot the sum."""

    def __init__(self, branch: nn.Module, skip: bool = True) -> None:
        super().__init__()
        self.branch, self.skip = branch, skip

    def forward(self, x: Tensor) -> Tensor:
        """Add."""
        return x + self.branch(x) if self.skip else self.branch(x)


class Sign(torch.autograd.Function):
    """The sign, whose gradient is let through where the input is within ± 1."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        """-1, 0 or 1."""
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        """As hardtanh has it."""
        return grad * (ctx.saved_tensors[0].abs() <= 1)
