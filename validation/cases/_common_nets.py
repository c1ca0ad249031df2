"""What the common nets share: data that look like the usual ones, towers of layers, labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, costly
from validation.cases._everyday_nets import mean_loss
from validation.evidence import judged, train
from validation.tasks import Task, drawn_once

SQUEEZED = {"DEAD", "SYMMETRY"}
"""Few units die or agree sooner than many."""

# --- rows


def grades(seed: int, classes: int = 5, dim: int = 11, batch: int = 64) -> Task:
    """Lab values of a wine, which go together, and its grade."""
    fixed = drawn_once(seed, 3100)
    mix = torch.eye(dim) + 0.5 * torch.randn(dim, dim, generator=fixed) / math.sqrt(dim)
    inner, outer = torch.randn(dim, 12, generator=fixed) / math.sqrt(dim), torch.randn(12, classes, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random) @ mix / mix.norm(dim=0)
        return x, (torch.tanh(1.5 * x @ inner) @ outer).argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def energy(seed: int, batch: int = 64, noise: float = 0.1) -> Task:
    """Hour, weekday and weather, and the load of a power grid, of unit scale."""
    strength = 0.5 + torch.rand(5, generator=drawn_once(seed, 3101))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        hour, week = 2 * math.pi * torch.rand(2, batch, generator=random)
        weather = torch.randn(batch, 4, generator=random)
        parts = [hour.sin(), hour.cos() * week.cos(), weather[:, 0] ** 2 / 2 - 0.5]
        parts += [torch.tanh(2 * weather[:, 1]), torch.tanh(weather[:, 2] - weather[:, 3])]
        load = 0.8 * (strength * torch.stack(parts, dim=1)).sum(dim=1, keepdim=True)
        x = torch.cat([torch.stack([hour.sin(), hour.cos(), week.sin(), week.cos()], dim=1), weather], dim=1)
        return x, load + noise * torch.randn(batch, 1, generator=random)

    return Task(seed, draw, F.mse_loss)


def plant(seed: int, inputs: int = 10, outputs: int = 12, batch: int = 64) -> Task:
    """Settings of a plant and what its many gauges show."""
    fixed = drawn_once(seed, 3102)
    inner = torch.randn(inputs, outputs, generator=fixed) / math.sqrt(inputs)
    turn = torch.linalg.qr(torch.randn(outputs, outputs, generator=fixed))[0]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, inputs, generator=random)
        return x, 1.5 * torch.tanh(1.2 * x @ inner) @ turn + 0.05 * torch.randn(batch, outputs, generator=random)

    return Task(seed, draw, F.mse_loss)


def peaks(seed: int, count: int = 9, length: int = 60, noise: float = 0.0, batch: int = 64) -> Task:
    """Spectra of so many lines of any height, to be rebuilt, or freed of noise."""
    centres = torch.linspace(0.05, 0.95, count) + 0.03 * torch.randn(count, generator=drawn_once(seed, 3103))
    lines = torch.exp(-((torch.linspace(0, 1, length) - centres[:, None]) ** 2) / (2 * 0.05**2))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.8 * torch.randn(batch, count, generator=random) @ lines
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def adverts(seed: int, users: int = 50, items: int = 30, factors: int = 5, batch: int = 256) -> Task:
    """A user, an item, and whether the user clicks."""
    fixed = drawn_once(seed, 3104)
    taste, trait = torch.randn(users, factors, generator=fixed), torch.randn(items, factors, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        user = torch.randint(users, (batch,), generator=random)
        item = torch.randint(items, (batch,), generator=random)
        return (user, item), ((taste[user] * trait[item]).sum(dim=1) > 0).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def tags(seed: int, words: int = 120, labels: int = 10, length: int = 10, batch: int = 64) -> Task:
    """Short texts as numbers of words, and which of several tags hold."""
    effect = torch.randn(words, labels, generator=drawn_once(seed, 3105))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(words, (batch, length), generator=random)
        return text, (effect[text].sum(dim=1) > 0).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def bags(seed: int, items: int = 8, dim: int = 6, out: int = 6, batch: int = 48) -> Task:
    """Sets of vectors, and some sums over a bent function of each."""
    fixed = drawn_once(seed, 3106)
    inner, outer = torch.randn(dim, 16, generator=fixed) / math.sqrt(dim), torch.randn(16, out, generator=fixed) / 4

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, items, dim, generator=random)
        return x, torch.sin(1.5 * x @ inner).sum(dim=1) @ outer

    return Task(seed, draw, F.mse_loss)


def twins(seed: int, dim: int = 20, factors: int = 8, batch: int = 48, noise: float = 0.15) -> Task:
    """A picture and its caption, as vectors; which belong together? The loss takes scores of all pairs."""
    fixed = drawn_once(seed, 3107)
    mixes = torch.randn(2, factors, dim, generator=fixed) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        meaning = torch.randn(batch, factors, generator=random)
        seen = [torch.tanh(meaning @ m) + noise * torch.randn(batch, dim, generator=random) for m in mixes]
        return (seen[0], seen[1]), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def tones(seed: int, batch: int = 128) -> Task:
    """A place on a line and the height of a curve of several waves there."""
    fixed = drawn_once(seed, 3108)
    rate, phase = torch.tensor([2.0, 5.0, 9.0]), 2 * math.pi * torch.rand(3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(batch, 1, generator=random) - 1
        return x, torch.sin(rate * x + phase).sum(dim=1, keepdim=True)

    return Task(seed, draw, F.mse_loss)


def islands(seed: int, batch: int = 96) -> Task:
    """Points of eight heaps on a circle. The target is the heap."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        heap = torch.randint(8, (batch,), generator=random)
        angle = heap * math.pi / 4
        xy = 1.5 * torch.stack([angle.cos(), angle.sin()], dim=1)
        return xy + 0.12 * torch.randn(batch, 2, generator=random), heap

    return Task(seed, draw, F.cross_entropy)


# --- pictures and signals


def fabrics(seed: int, classes: int = 8, size: int = 14, batch: int = 32, channels: int = 1) -> Task:
    """Garments: each class has an outline and a weave, and lies a little off."""
    fixed = drawn_once(seed, 3110)
    outline = F.interpolate(torch.randn(classes, 1, 4, 4, generator=fixed), size=(size, size), mode="bicubic") > 0
    way = math.pi * torch.rand(classes, generator=fixed)
    tint = 0.5 + torch.rand(classes, channels, 1, 1, generator=fixed)
    line = torch.arange(size * 1.0)
    wave = torch.sin(1.3 * (way.cos()[:, None, None] * line[:, None] + way.sin()[:, None, None] * line))[:, None]
    cloth = outline * (1 + 0.6 * wave) * tint - 0.5
    shifted = torch.stack([cloth.roll((i, j), (2, 3)) for i in (-1, 0, 1) for j in (-1, 0, 1)], dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = shifted[target, torch.randint(9, (batch,), generator=random)]
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def roads(seed: int, size: int = 16, batch: int = 12) -> Task:
    """A road, its verge and the field from above; every dot has one of three classes."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        angle = math.pi * torch.rand(batch, 1, 1, generator=random)
        off = 0.6 * torch.rand(batch, 1, 1, generator=random) - 0.3
        far = (angle.cos() * line[:, None] + angle.sin() * line - off).abs()
        target = 2 - (far < 0.5).long() - (far < 0.22).long()
        colour = torch.tensor([[1.0, -1, 0], [-1.0, 0.5, 1], [0.0, 1, -1]])[target].permute(0, 3, 1, 2)
        return colour + 0.7 * torch.randn(colour.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def marks(seed: int, count: int = 3, size: int = 14, batch: int = 32) -> Task:
    """Bright blobs, one in each channel of a picture; say where they are, from -1 to 1."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.6 * torch.rand(batch, count, 2, generator=random) - 0.8
        far = (line[:, None] - at[..., :1, None]).square() + (line - at[..., 1:, None]).square()
        x = 2 * torch.exp(-far / 0.08)
        return x + 0.2 * torch.randn(x.shape, generator=random), at.flatten(1)

    return Task(seed, draw, F.mse_loss)


def skies(seed: int, coarse: int = 4, size: int = 12, channels: int = 3, noise: float = 0.0, batch: int = 16) -> Task:
    """Colour gradients to be rebuilt, or freed of noise; neighbouring channels go together a little."""
    mix = torch.eye(channels) + 0.3 * torch.randn(channels, channels, generator=drawn_once(seed, 3113))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rough = torch.einsum("bchw,cd->bdhw", torch.randn(batch, channels, coarse, coarse, generator=random), mix)
        x = 1.3 * F.interpolate(rough, size=(size, size), mode="bilinear", align_corners=True)
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def words(seed: int, classes: int = 7, bands: int = 12, length: int = 20, batch: int = 32) -> Task:
    """Spectrograms of single words: two bands that wander, each word in its way."""
    fixed = drawn_once(seed, 3114)
    ends = torch.rand(classes, 2, 2, 1, generator=fixed) * (bands - 1)
    time, band = torch.linspace(0, 1, length), torch.arange(bands)[:, None]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        ways = ends[target, :, 0] * (1 - time) + ends[target, :, 1] * time
        ways = ways + 0.5 * torch.randn(batch, 2, 1, generator=random)
        x = 2 * torch.exp(-((band - ways[:, :, None]) ** 2) / 2).sum(dim=1) - 0.5
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def engines(seed: int, sensors: int = 4, length: int = 32, batch: int = 24) -> Task:
    """What several sensors of an engine show over time, driven by five rhythms; to be rebuilt."""
    fixed = drawn_once(seed, 3115)
    rate, mix = torch.tensor([0.2, 0.35, 0.55, 0.8, 1.1]), torch.randn(sensors, 5, generator=fixed) / 2
    time = torch.arange(length)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        phase = 2 * math.pi * torch.rand(batch, 5, 1, generator=random)
        strength = torch.randn(batch, 5, 1, generator=random)
        x = torch.einsum("sk,bkt->bst", mix, strength * torch.sin(rate[:, None] * time + phase))
        return 1.5 * x, 1.5 * x

    return Task(seed, draw, F.mse_loss)


# --- nets


def tower(
    widths: Sequence[int], act: type[nn.Module] = nn.ReLU, *, norm: type[nn.Module] | None = None
) -> nn.Sequential:
    """Linear layers with an activation, and perhaps a norm, between them."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        parts += [nn.Linear(a, b), *([norm(b)] if norm else []), act()]
    return nn.Sequential(*parts, nn.Linear(widths[-2], widths[-1]))


def conv(a: int, b: int, stride: int = 1, norm: bool = True, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A convolution, a batch norm, an activation."""
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=not norm), *([nn.BatchNorm2d(b)] if norm else []), act())


class Head(nn.Module):
    """The mean over a picture and a linear layer."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        return self.fc(x.mean(dim=(2, 3)))


class Through(nn.Module):
    """Any function as a module, as `nn.Sequential` wants it."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


# --- proofs


def worse(times: float = 1.5) -> Proof:
    """Each under its own optimizer, the loss ends so many times as high as the twin's."""

    def proof(case: Case, seed: int) -> Evidence:
        ends = []
        for each in (case, case.control):
            setup = each.make(seed)
            train(setup, setup.steps, setup.optimizer)
            ends.append(mean_loss(setup))
        holds = not ends[0] <= times * ends[1]  # what is not a number is worse, too
        return judged(holds and math.isfinite(ends[1]), "ends at a loss of {:.3g}, the twin at {:.3g}", *ends)

    return costly(proof)
