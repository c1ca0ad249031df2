"""What the usual nets share: rows, baskets, pictures and signals, and proofs by a score that the task keeps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.case import Case, Evidence, Proof, Setup, call, costly
from validation.evidence import judged, train
from validation.tasks import Task, drawn_once

UNLEARNED = {"SLOW", "loss_stuck", "never_moves", "rate_too_low"}
"""Nothing is learned, for nearly nothing comes back."""

# --- rows


def species(seed: int, classes: int = 12, dim: int = 18, batch: int = 64, apart: float = 1.2) -> Task:
    """Measures of plants; each kind has a mean of its own."""
    means = apart * torch.randn(classes, dim, generator=drawn_once(seed, 5100))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        return (means[kind] + torch.randn(batch, dim, generator=random)) / math.sqrt(1 + apart**2), kind

    return Task(seed, draw, F.cross_entropy)


def motors(seed: int, dim: int = 8, out: int = 8, batch: int = 64) -> Task:
    """Currents of several motors, and the forces that they make together."""
    fixed = drawn_once(seed, 5101)
    mix, turn = (torch.randn(dim, out, generator=fixed) / math.sqrt(dim) for _ in range(2))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.tanh(1.3 * x @ mix) + 0.4 * (x @ turn).abs() - 0.3

    return Task(seed, draw, F.mse_loss)


def bikes(seed: int, batch: int = 96, noise: float = 0.1) -> Task:
    """Hour, weekday and weather as numbers of kinds, five measures; how many bikes are out, of unit scale."""
    fixed = drawn_once(seed, 5102)
    daily = torch.sin(torch.arange(24) * 2 * math.pi / 12 + 6 * torch.rand(1, generator=fixed))
    day, sky, slopes = (
        torch.randn(7, generator=fixed) / 2,
        torch.randn(4, generator=fixed),
        torch.randn(5, generator=fixed),
    )

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kinds = torch.stack([torch.randint(n, (batch,), generator=random) for n in (24, 7, 4)], dim=1)
        x = torch.randn(batch, 5, generator=random)
        out = daily[kinds[:, 0]] * (1 + 0.5 * sky[kinds[:, 2]]) + day[kinds[:, 1]] + 0.5 * torch.tanh(x @ slopes)
        return (kinds, x), (out + noise * torch.randn(batch, generator=random))[:, None]

    return Task(seed, draw, F.mse_loss)


def mixtures(seed: int, parts: int = 8, length: int = 48, batch: int = 64, noise: float = 0.03) -> Task:
    """Spectra of several substances of any amount, to be rebuilt; `target` holds the spectrum without noise."""
    fixed = drawn_once(seed, 5103)
    at, wide = length * torch.rand(parts, 2, 1, generator=fixed), 1.5 + 2 * torch.rand(parts, 2, 1, generator=fixed)
    lines = torch.exp(-(((torch.arange(length) - at) / wide) ** 2)).sum(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 2.5 * torch.rand(batch, parts, generator=random) @ lines - 1
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def baskets(seed: int, goods: int = 60, kinds: int = 8, empty: float = 0.0, batch: int = 64) -> Task:
    """What is in the baskets of a shop as counts, and the kind of customer; a share of them may be empty."""
    lists = (2 * torch.randn(kinds, goods, generator=drawn_once(seed, 5104))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        drawn = torch.multinomial(lists[kind], 12, replacement=True, generator=random)
        x = torch.zeros(batch, goods).scatter_add_(1, drawn, torch.ones(batch, 12))
        return x * (torch.rand(batch, 1, generator=random) >= empty), kind

    return Task(seed, draw, F.cross_entropy)


def doubles(seed: int, dim: int = 24, factors: int = 10, batch: int = 64, noise: float = 0.4) -> Task:
    """Two noisy views of the same thing."""
    ways = torch.randn(factors, dim, generator=drawn_once(seed, 5105)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], None]:
        x = torch.randn(batch, factors, generator=random) @ ways
        return tuple(x + noise * torch.randn(x.shape, generator=random) for _ in range(2)), None

    return Task(seed, draw, lambda out, _: out)


def pixels(seed: int, classes: int = 10, batch: int = 48, scale: float = 1.0) -> Task:
    """Small grey pictures as rows of 64 numbers from 0 to `scale`."""
    signs = (torch.rand(classes, 64, generator=drawn_once(seed, 5106)) < 0.4).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        flip = torch.rand(batch, 64, generator=random) < 0.1
        light = 0.6 + 0.4 * torch.rand(batch, 64, generator=random)
        return scale * light * (signs[kind] - flip.float()).abs(), kind

    return Task(seed, draw, F.cross_entropy)


# --- pictures and signals


def stamps(seed: int, classes: int = 10, size: int = 16, batch: int = 24, noise: float = 0.5) -> Task:
    """Coloured stamps of smooth patterns, moved by some dots, under noise."""
    coarse = torch.randn(classes, 3, 5, 5, generator=drawn_once(seed, 5110))
    signs = 1.3 * F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        shift = torch.randint(-2, 3, (2,), generator=random).tolist()
        x = signs[kind].roll(shift, (2, 3))
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def weaves(seed: int, classes: int = 8, size: int = 14, batch: int = 32, channels: int = 1) -> Task:
    """Cloths whose threads have a direction and a distance of their own, and begin anywhere."""
    fixed = drawn_once(seed, 5111)
    angle = math.pi * (torch.arange(classes) + 0.3 * torch.rand(classes, generator=fixed)) / classes
    rate = 0.7 + 1.2 * torch.rand(classes, generator=fixed)
    line = torch.arange(size * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        phase = 2 * math.pi * torch.rand(batch, 1, 1, 1, generator=random)
        up, side = ((rate * f(angle))[kind][:, None, None, None] for f in (torch.sin, torch.cos))
        x = 1.3 * torch.sin(up * line[:, None] + side * line + phase).expand(-1, channels, -1, -1)
        return x + 0.4 * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def lakes(seed: int, size: int = 16, batch: int = 12, empty: float = 0.0) -> Task:
    """Pictures from above and a mask of the lakes in them; a share of the pictures may have none."""
    line = torch.linspace(-1, 1, size)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 1.2 * torch.rand(batch, 2, 2, 1, 1, generator=random) - 0.6
        wide = 0.3 + 0.3 * torch.rand(batch, 2, 1, 1, generator=random)
        far = (line[:, None] - at[:, :, 0]).square() + (line - at[:, :, 1]).square()
        mask = (far < wide.square()).any(dim=1, keepdim=True).float()
        mask = mask * (torch.rand(batch, 1, 1, 1, generator=random) >= empty)
        x = torch.cat([1.5 * mask - 0.5, 0.5 - mask], dim=1)
        return x + 0.6 * torch.randn(x.shape, generator=random), mask

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def veils(seed: int, size: int = 12, batch: int = 16, channels: int = 3, noise: float = 0.5) -> Task:
    """Smooth colour pictures behind noise, to be cleared."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rough = torch.randn(batch, channels, 4, 4, generator=random)
        x = 1.3 * F.interpolate(rough, size=(size, size), mode="bilinear", align_corners=True)
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def calls(seed: int, classes: int = 8, length: int = 64, batch: int = 32) -> Task:
    """Calls of birds: a tone that rises or falls from its own height, somewhere in the record."""
    fixed = drawn_once(seed, 5112)
    rate, slope = 0.3 + 1.2 * torch.rand(classes, generator=fixed), 0.02 * torch.randn(classes, generator=fixed)
    time = torch.arange(length * 1.0) - length / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        t = time - 12 * (torch.rand(batch, 1, generator=random) - 0.5)
        phase = 2 * math.pi * torch.rand(batch, 1, generator=random)
        x = 1.6 * torch.sin(rate[kind, None] * t + slope[kind, None] * t * t + phase) * torch.exp(-((t / 20) ** 2))
        return (x + 0.25 * torch.randn(x.shape, generator=random))[:, None], kind

    return Task(seed, draw, F.cross_entropy)


def rhythms(seed: int, length: int = 30, ahead: int = 10, batch: int = 64) -> Task:
    """A window of a series of five rhythms of any strength and phase, and what follows it."""
    rate = 0.2 + 0.25 * torch.arange(5) + 0.1 * torch.rand(5, generator=drawn_once(seed, 5113))
    time = torch.arange(length + ahead * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        strength = torch.randn(batch, 5, 1, generator=random) / 1.5
        phase = 2 * math.pi * torch.rand(batch, 5, 1, generator=random)
        x = (strength * torch.sin(rate[:, None] * time + phase)).sum(dim=1)
        return x[:, :length], x[:, length:]

    return Task(seed, draw, F.mse_loss)


# --- losses and proofs


def info_nce(a: Tensor, b: Tensor, heat: float = 0.1) -> Tensor:
    """Each view has to find its other among those of the batch."""
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    return F.cross_entropy(a @ b.T / heat, torch.arange(len(a)))


def falls_behind(measure: Callable[[Setup], float], times: float, what: str) -> Proof:
    """Each under its own optimizer, what `measure` reads ends so many times as high as the twin's."""

    def proof(case: Case, seed: int) -> Evidence:
        ends = []
        for each in (case, case.control):
            setup = each.make(seed)
            train(setup, setup.steps, setup.optimizer)
            ends.append(measure(setup))
        holds = not ends[0] <= times * ends[1]
        return judged(holds and math.isfinite(ends[1]), what + " {:.3g}, the twin's {:.3g}", *ends)

    return costly(proof)


@torch.no_grad()
def rebuilt(setup: Setup) -> float:
    """The mean squared error of the first thing that the model hands out, without what else the loss holds."""
    output = call(setup.model, setup.input_fn())
    output = output[0] if isinstance(output, tuple) else output
    return F.mse_loss(output, setup.loss_fn.__self__.target).item()
