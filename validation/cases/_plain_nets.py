"""What the plain nets share: rows, sets, pictures and signals, towers of layers, a few proofs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup
from validation.cases._everyday_nets import RUINED
from validation.evidence import judged, trace
from validation.evidence.live import trained
from validation.setups import pair
from validation.tasks import Task, drawn_once

COLLAPSED = ("LOW_RANK", "BOTTLENECK")
"""All samples look alike, by either name."""
BLOWN = {*RUINED, "rate_too_high", "loss_grows", "loss_nonfinite", "loss_stuck", "first_loss_high"}
"""What is true of steps that are far too large, and what they leave behind."""

# --- rows


def crops(seed: int, classes: int = 6, dim: int = 14, batch: int = 64) -> Task:
    """Values of soil and weather, and the crop that does best."""
    fixed = drawn_once(seed, 4100)
    inner, outer = torch.randn(dim, 20, generator=fixed) / math.sqrt(dim), torch.randn(20, classes, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, (torch.relu(1.5 * x @ inner) @ (outer - outer.mean(dim=0))).argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def flights(seed: int, dim: int = 10, batch: int = 64, noise: float = 0.1) -> Task:
    """Rows of a timetable and how late the plane is, of unit scale."""
    ways = torch.randn(3, dim, generator=drawn_once(seed, 4101)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        a, b, c = (x @ ways.T).unbind(dim=1)
        late = (1.2 * torch.tanh(2 * a) + 0.8 * b * c + 0.4 * b)[:, None]
        return x, late + noise * torch.randn(batch, 1, generator=random)

    return Task(seed, draw, F.mse_loss)


def arm(seed: int, joints: int = 6, out: int = 10, batch: int = 64) -> Task:
    """Angles of the joints of an arm, and where its parts are."""
    mix = 1.2 * torch.randn(joints, out, generator=drawn_once(seed, 4102)) / math.sqrt(joints)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        angle = 3 * torch.rand(batch, joints, generator=random) - 1.5
        turned = angle @ mix
        return angle, 1.4 * torch.sin(turned) + 0.3 * torch.cos(turned.roll(1, 1))

    return Task(seed, draw, F.mse_loss)


def survey(seed: int, traits: int = 7, dim: int = 40, noise: float = 0.05, batch: int = 64) -> Task:
    """Answers to many questions that a few traits decide, to be rebuilt."""
    ways = torch.randn(traits, dim, generator=drawn_once(seed, 4103)) / math.sqrt(traits)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.6 * torch.tanh(torch.randn(batch, traits, generator=random) @ ways)
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def recipes(seed: int, words: int = 80, kinds: int = 10, length: int = 8, batch: int = 64) -> Task:
    """Numbers of the ingredients of a dish, and its cuisine."""
    lists = (2 * torch.randn(kinds, words, generator=drawn_once(seed, 4104))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        return torch.multinomial(lists[kind], length, replacement=True, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def fraud(seed: int, share: float = 0.05, dim: int = 12, batch: int = 128) -> Task:
    """Payments, of which a small share is fraud."""
    way = torch.randn(dim, generator=drawn_once(seed, 4105))
    way = way / way.norm()
    bar = math.sqrt(2) * torch.erfinv(torch.tensor(1 - 2 * share)).item()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, (x @ way > bar).float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.flatten(), t))


def sales(seed: int, dim: int = 8, batch: int = 64) -> Task:
    """A shop's day in numbers, and how many things are sold."""
    ways = torch.randn(dim, 2, generator=drawn_once(seed, 4106)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        a, b = (x @ ways).unbind(dim=1)
        return x, torch.poisson((1 + 0.9 * torch.tanh(1.5 * a) + 0.5 * b.clamp(-1.5, 1.5)).exp(), generator=random)

    return Task(seed, draw, lambda z, n: F.poisson_nll_loss(z.flatten(), n))


def rings(seed: int, batch: int = 96) -> Task:
    """Points of two rings, one in the other. The target is the ring."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        ring = torch.randint(2, (batch,), generator=random)
        angle = 2 * math.pi * torch.rand(batch, generator=random)
        radius = 0.7 + 0.9 * ring + 0.08 * torch.randn(batch, generator=random)
        return radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1), ring

    return Task(seed, draw, F.cross_entropy)


def outlines(seed: int, count: int = 16, batch: int = 48) -> Task:
    """Sets of points on a circle, a square, a cross, a line or two heaps, turned and shifted."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(5, (batch,), generator=random)
        t = 2 * torch.rand(batch, count, generator=random) - 1
        side = torch.randint(2, (batch, count), generator=random).float() * 2 - 1
        swap = torch.rand(batch, count, generator=random) < 0.5
        circle = torch.stack([(math.pi * t).cos(), (math.pi * t).sin()], dim=-1)
        square = torch.where(swap[..., None], torch.stack([t, side], dim=-1), torch.stack([side, t], dim=-1))
        zero = torch.zeros_like(t)
        cross = torch.where(swap[..., None], torch.stack([t, zero], dim=-1), torch.stack([zero, t], dim=-1))
        line, heaps = torch.stack([t, 0.3 * t], dim=-1), torch.stack([side, 0.15 * t], dim=-1)
        x = torch.stack([circle, square, cross, line, heaps], dim=1)[torch.arange(batch), kind]
        angle = 0.6 * torch.randn(batch, generator=random)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(batch, 2, 2)
        return x @ turn + 0.06 * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


# --- pictures and signals


def shapes(seed: int, size: int = 14, channels: int = 3, batch: int = 32, noise: float = 0.3) -> Task:
    """A disc, a square, a ring, a cross, a bar or a checked patch, of any colour, somewhere in the picture."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(6, (batch,), generator=random)
        at = 0.6 * torch.rand(batch, 2, 1, 1, generator=random) - 0.3
        wide = 0.45 + 0.2 * torch.rand(batch, 1, 1, generator=random)
        y, x = (line[:, None] - at[:, 0]) / wide, (line - at[:, 1]) / wide
        far, box = (y**2 + x**2).sqrt(), torch.maximum(y.abs() + 0 * x, x.abs() + 0 * y)
        masks = [far < 1, box < 0.9, (far < 1.1) & (far > 0.6), (box < 1) & ((y.abs() < 0.3) | (x.abs() < 0.3))]
        masks += [(y.abs() < 0.35) & (x.abs() < 1.2), (box < 1) & ((4 * y).sin() * (4 * x).sin() > 0)]
        mask = torch.stack(masks, dim=1)[torch.arange(batch), kind].float()[:, None]
        colour = 1 + 0.5 * torch.randn(batch, channels, 1, 1, generator=random)
        picture = 2 * mask * colour - 0.5
        return picture + noise * torch.randn(picture.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def tiles(seed: int, classes: int = 8, size: int = 12, batch: int = 32, channels: int = 1) -> Task:
    """Walls of tiles; each class has its pattern of four by four dots, which begins anywhere."""
    pattern = torch.randn(classes, channels, 4, 4, generator=drawn_once(seed, 4110))
    wall = pattern.repeat(1, 1, size // 4 + 1, size // 4 + 1)[..., :size, :size]
    rolled = [pattern.roll((i, j), (2, 3)) for i in range(4) for j in range(4)]
    walls = torch.stack([p.repeat(1, 1, size // 4 + 1, size // 4 + 1)[..., :size, :size] for p in rolled], dim=1)
    assert walls.shape[2:] == wall.shape[1:]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = walls[target, torch.randint(16, (batch,), generator=random)]
        return x + 0.5 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def bands(seed: int, bands: int = 6, out: int = 5, size: int = 10, batch: int = 16) -> Task:
    """Bands of a satellite's picture, and several maps of what is on the ground."""
    mix = torch.randn(bands, out, generator=drawn_once(seed, 4111)) / math.sqrt(bands)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rough = torch.randn(batch, bands, 5, 5, generator=random)
        x = 1.4 * F.interpolate(rough, size=(size, size), mode="bilinear", align_corners=True)
        return x + 0.1 * torch.randn(x.shape, generator=random), torch.tanh(1.5 * torch.einsum("bchw,cd->bdhw", x, mix))

    return Task(seed, draw, F.mse_loss)


def dunes(seed: int, factors: int = 8, size: int = 12, batch: int = 32, noise: float = 0.0) -> Task:
    """Pictures of a few waves, each of its own height, to be rebuilt."""
    fixed = drawn_once(seed, 4112)
    ways, phase = 0.9 * torch.randn(factors, 2, 1, 1, generator=fixed), 6 * torch.rand(factors, 1, 1, generator=fixed)
    line = torch.arange(size * 1.0)
    waves = torch.sin(ways[:, 0] * line[:, None] + ways[:, 1] * line + phase)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.einsum("bk,khw->bhw", torch.randn(batch, factors, generator=random), waves)[:, None]
        x = x * 2 / math.sqrt(factors)
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def coins(seed: int, most: int = 4, size: int = 14, batch: int = 24) -> Task:
    """Some coins on a table; the target is a map that is high where they lie."""
    line = torch.arange(size * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 2 + (size - 5) * torch.rand(batch, most, 2, generator=random)
        there = (torch.rand(batch, most, 1, 1, generator=random) < 0.6).float()
        far = (line[:, None] - at[..., :1, None]) ** 2 + (line - at[..., 1:, None]) ** 2
        x = (there * (far < 5).float()).amax(dim=1, keepdim=True)
        heat = (there * torch.exp(-far / 2)).amax(dim=1, keepdim=True)
        return 1.5 * x + 0.3 * torch.randn(x.shape, generator=random), heat

    return Task(seed, draw, F.mse_loss)


def scans(seed: int, size: int = 14, batch: int = 12) -> Task:
    """Slices of a body: ground, organ, and a brighter lump in it; every dot has one of three classes."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 0.6 * torch.rand(batch, 2, 1, 1, generator=random) - 0.3
        off = 0.5 * torch.rand(batch, 2, 1, 1, generator=random) - 0.25
        far = [(line[:, None] - a[:, 0]) ** 2 + (line - a[:, 1]) ** 2 for a in (at, at + off)]
        target = (far[0] < 0.45).long() + ((far[1] < 0.07) & (far[0] < 0.45)).long()
        x = torch.tensor([-0.8, 0.3, 1.6])[target][:, None]
        return x + 0.5 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def tracks(seed: int, classes: int = 6, length: int = 40, batch: int = 32) -> Task:
    """Three axes of a wrist band; the motion has a rate and a shape of its own."""
    fixed = drawn_once(seed, 4113)
    rate = torch.linspace(0.25, 1.3, classes)[torch.randperm(classes, generator=fixed)][:, None, None]
    strength = 0.4 + torch.rand(classes, 3, 1, generator=fixed)
    time = torch.arange(length * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        phase = 6 * torch.rand(batch, 3, 1, generator=random)
        x = 1.5 * strength[target] * torch.sin(rate[target] * time + phase)
        return x + 0.4 * torch.randn(x.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


# --- nets


def flat(z: Tensor, t: Tensor) -> Tensor:
    """Binary cross-entropy of one logit per row."""
    return F.binary_cross_entropy_with_logits(z.flatten(), t)


def block(a: int, b: int, act: Callable[[], nn.Module] = nn.ReLU, norm: bool = True, pool: bool = False) -> nn.Module:
    """A convolution of three by three, perhaps a batch norm, an activation, perhaps a pool."""
    parts: list[nn.Module] = [nn.Conv2d(a, b, 3, padding=1)]
    parts += [nn.BatchNorm2d(b)] if norm else []
    return nn.Sequential(*parts, act(), *([nn.MaxPool2d(2)] if pool else []))


def pooled(*blocks: nn.Module, width: int, out: int) -> nn.Sequential:
    """Blocks, the mean over the picture, a linear layer."""
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, out))


def with_groups(model: nn.Module, task: Task, groups: Iterable[dict[str, Any]], kind: str = "AdamW", **more) -> Setup:
    """Real training where parts of the model have rates or decays of their own."""
    steps = more.pop("steps", 60)
    return pair(model, task, optimizer=getattr(torch.optim, kind)(list(groups), **more), steps=steps)


# --- proofs


def ends_flat(path: str, below: float = 0.1) -> Proof:
    """After training, what differs between samples in the output of a module is small beside what it was, or in all."""

    def proof(case: Case, seed: int) -> Evidence:
        before, after = (
            trace(each.make(seed)).outputs[path].std(dim=0).mean().item() for each in (case, trained(case))
        )
        return judged(after < below * max(before, 1e-12), "samples differ by {:.3g}, before by {:.3g}", after, before)

    proof.costly = True  # type: ignore[attr-defined]
    return proof


def alike(path: str, below: float = 1e-4) -> Proof:
    """What a module hands on is the same for all samples of a batch."""

    def proof(case: Case, seed: int) -> Evidence:
        x = trace(case.make(seed), 1).outputs[path]
        share = ((x - x.mean(dim=0)).norm() / x.norm().clamp_min(1e-12)).item()
        return judged(share < below, "samples differ by {:.1e} of their size", share)

    return proof
