# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily residual networks with the faults that people report, and their twins.

Half: daily.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from validation.case import Setup, Zoo
from validation.cases._common_nets import Head, conv, worse
from validation.cases._daily_nets import (
    SQUASHED,
    UNLEARNED,
    Block,
    Rows,
    alloys,
    bumps,
    buoys,
    gaits,
    galaxies,
    leaves,
    pendulums,
)
from validation.cases._everyday_nets import CUT_OFF, NARROW
from validation.cases._plain_nets import BLOWN
from validation.evidence import (
    both,
    breaks,
    dead,
    diverges,
    equal_units,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live

zoo = Zoo("residual", half="daily", proof=thrives(0.2, most_dead=0.5))

# --- too narrow


class Latent(nn.Module):
    """A state is encoded, moves by small steps of a learned field, and is decoded."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, size))
        self.field = nn.Sequential(nn.Linear(size, 48), nn.SiLU(), nn.Linear(48, size))
        self.leave = nn.Sequential(nn.Linear(size, 48), nn.SiLU(), nn.Linear(48, 4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.enter(x)
        for _ in range(5):
            z = z + 0.2 * self.field(z)
        return self.leave(z)


def moved(seed: int, size: int) -> Setup:
    return live(Latent(size), pendulums(seed), "AdamW", 5e-3, 100)


state = zoo.healthy("pendulums-latent-state-of-12", lambda s: moved(s, 12))
zoo.sick(
    "pendulums-latent-state-of-1",
    lambda s: moved(s, 1),
    both(lags(0.2), lasting(rank_at_most("enter.2", 1.01))),
    *NARROW,
    layer=("enter.2", "field.0", "field.2", "leave.0"),
    also=SQUASHED,
    control=state,
)


class Tcn(nn.Module):
    """Dilated convolutions beside skips; the last state, through so many numbers, says what is ahead."""

    def __init__(self, said: int, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, width, 1)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i, padding=2**i) for i in range(4))
        self.said, self.out = nn.Linear(2 * width, said), nn.Linear(said, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.convs:
            x = x + F.gelu(layer(x))
        return self.out(self.said(torch.cat([x[..., -1], x[..., -5]], dim=1))).unflatten(1, (3, 8))


def coming(seed: int, said: int) -> Setup:
    return live(Tcn(said), buoys(seed), "Adam", 5e-3, 90)


numbers = zoo.healthy("buoys-dilated-future-of-16-numbers", lambda s: coming(s, 16))
zoo.sick(
    "buoys-dilated-future-of-1-number",
    lambda s: coming(s, 1),
    both(lags(0.2), lasting(rank_at_most("said", 1.01))),
    *NARROW,
    layer=("said", "out"),
    also=SQUASHED,
    control=numbers,
)


class Named(nn.Module):
    """Blocks, an embedding of a given size that others search in, and a linear layer that names the kind."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.net, self.kinds = Rows((16, 48, size), [Block(48, F.relu) for _ in range(3)]), nn.Linear(size, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.kinds(self.net(x))


def named(seed: int, size: int) -> Setup:
    return live(Named(size), galaxies(seed), "Adam", 4e-3, 80)


embedded = zoo.healthy("galaxies-embedding-of-16", lambda s: named(s, 16))
zoo.sick(
    "galaxies-embedding-of-1",
    lambda s: named(s, 1),
    both(lags(0.15), lasting(rank_at_most("net.head", 1.01))),
    *NARROW,
    layer=("net.head", "kinds"),
    also=SQUASHED,
    control=embedded,
)

# --- size of the signal


class Gated(nn.Module):
    """The skip is multiplied by the sigmoid of a learned number for each unit; where that starts is given."""

    def __init__(self, start: float, width: int = 40) -> None:
        super().__init__()
        self.layer, self.keep = nn.Linear(width, width), nn.Parameter(torch.full((width,), start))
        nn.init.normal_(self.layer.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.keep) * x + torch.tanh(self.layer(x))


def kept(seed: int, start: float) -> Setup:
    return live(Rows((16, 40, 9), [Gated(start) for _ in range(10)]), galaxies(seed), "SGD", 0.03, 80, momentum=0.9)


open_ = zoo.healthy("galaxies-skips-kept-from-0.95", lambda s: kept(s, 3.0))
zoo.sick(
    "galaxies-skips-kept-from-0.05",
    lambda s: kept(s, -3.0),
    both(lasting(gradient_ratio("stem", "blocks.9.layer", below=1e-3)), lags(0.3)),
    "VANISHING",
    also={"SATURATION", "LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=open_,
)


class Summed(nn.Module):
    """Each layer reads the sum, or the mean, of all that was said before it."""

    def __init__(self, mean: bool, depth: int = 14, width: int = 40) -> None:
        super().__init__()
        self.stem, self.mean = nn.Linear(10, width), mean
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        said = [self.stem(x)]
        for layer in self.layers:
            all_ = torch.stack(said)
            all_ = all_.mean(dim=0) if self.mean else all_.sum(dim=0)
            said.append(all_ + 0.5 * F.relu(layer(all_)))
        return self.head(said[-1])


def gathered(seed: int, mean: bool) -> Setup:
    return live(Summed(mean), alloys(seed), "SGD", 0.02, 70, momentum=0.9)


means = zoo.healthy("alloys-each-layer-reads-the-mean-of-all", lambda s: gathered(s, True))
zoo.sick(
    "alloys-each-layer-reads-the-sum-of-all",
    lambda s: gathered(s, False),
    both(gradient_ratio("stem", "layers.13", above=100), worse(3.0)),
    *RUNS_AWAY,
    also={*BLOWN, "SLOW"},
    control=means,
)


def scaled(seed: int, scale: float) -> Setup:
    """A factor on every branch, from a recipe for a hundred layers and AdamW, under SGD."""
    blocks = [Block(48, scale=scale) for _ in range(4)]
    return live(Rows((10, 48, 6), blocks), alloys(seed), "SGD", 0.05, 100, momentum=0.9)


tenth = zoo.healthy("alloys-branches-from-a-half-sgd", lambda s: scaled(s, 0.5))
zoo.sick(
    "alloys-branches-from-1e-7-sgd",
    lambda s: scaled(s, 1e-7),
    lags(0.12),
    "VANISHING",
    "SLOW",
    "never_moves",
    "rate_too_low",
    layer=tuple(f"blocks.{i}{part}" for i in range(4) for part in ("", ".a", ".b", ".norm")),
    also={"DISCONNECTED", "DEAD", "loss_stuck"},
    control=tenth,
)

# --- dead and flat


class Lista(nn.Module):
    """A sparse code by unrolled steps, each with a threshold, and the pose rebuilt from the code."""

    def __init__(self, threshold: float, steps: int = 3) -> None:
        super().__init__()
        self.enter, self.shrink = nn.Linear(36, 64), nn.Softshrink(threshold)
        self.steps, self.out = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(steps)), nn.Linear(64, 36)

    def forward(self, x: Tensor) -> Tensor:
        b = self.enter(x)
        z = self.shrink(b)
        for step in self.steps:
            z = self.shrink(z + step(z) + b)
        return self.out(z)


def sparse(seed: int, threshold: float) -> Setup:
    return live(Lista(threshold), gaits(seed), "Adam", 4e-3, 80)


low = zoo.healthy("gaits-unrolled-steps-threshold-0.05", lambda s: sparse(s, 0.05))
zoo.sick(
    "gaits-unrolled-steps-threshold-20",
    lambda s: sparse(s, 20.0),
    both(lasting(dead("shrink", 0.99)), lags(0.3)),
    "DEAD",
    "DISCONNECTED",
    layer=("enter", "shrink", "steps.0", "steps.1", "steps.2"),
    also={"VANISHING", "SATURATION", "LOW_RANK", "BOTTLENECK", "SYMMETRY", *UNLEARNED},
    control=low,
)


class Excited(nn.Module):
    """A convolution whose channels are weighed by gates of their means, beside a skip that only pools."""

    def __init__(self, bias: float, width: int = 16) -> None:
        super().__init__()
        self.conv, self.down, self.up = conv(width, width, 2), nn.Linear(width, 8), nn.Linear(8, width)
        self.gate = nn.Sigmoid()
        nn.init.constant_(self.up.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        gate = self.gate(self.up(F.relu(self.down(h.mean(dim=(2, 3))))))
        return F.avg_pool2d(x, 2, ceil_mode=True) + 3 * h * gate[..., None, None]


def excited(seed: int, bias: float) -> Setup:
    model = nn.Sequential(nn.Conv2d(3, 16, 1), Excited(bias), Excited(bias), Head(16, 8))
    return live(model, leaves(seed), "SGD", 0.05, 80, momentum=0.9)


ajar = zoo.healthy("leaves-gated-channels-from-a-half", lambda s: excited(s, 0.0))
zoo.sick(
    "leaves-gated-channels-from-bias-minus-18",
    lambda s: excited(s, -18.0),
    both(lasting(saturated("1.gate", "sigmoid", 0.95), saturated("2.gate", "sigmoid", 0.95)), lags(0.15)),
    "SATURATION",
    "VANISHING",
    "SLOW",
    "never_moves",
    layer=tuple(f"{i}{part}" for i in (1, 2) for part in ("", ".up", ".down", ".gate", ".conv", ".conv.0")),
    also={"DEAD", "DISCONNECTED", "LOW_RANK", "BOTTLENECK", "loss_stuck"},
    control=ajar,
)

# --- steps


def summed_squares(seed: int, lr: float) -> Setup:
    blocks = [Block(40, torch.relu, norm=False) for _ in range(3)]
    return live(Rows((4, 40, 4), blocks), pendulums(seed), "Adagrad", lr, 80)


small = zoo.healthy("pendulums-residual-adagrad-0.03", lambda s: summed_squares(s, 0.03))
zoo.sick(
    "pendulums-residual-adagrad-3",
    lambda s: summed_squares(s, 3.0),
    both(diverges(20), worse(5.0)),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=small,
)


# --- cut off, alike, not a number


class Recomputed(nn.Module):
    """The first stage is computed anew in the backward pass to save memory, by the old way or by the new one."""

    def __init__(self, old: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 16, 3, padding=1))
        self.old = old
        self.blocks = nn.ModuleList(conv(16, 16, act=nn.ELU) for _ in range(2))
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the old way says that no input has a gradient, and goes on
            h = checkpoint(self.first, x, use_reentrant=self.old)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


def recomputed(seed: int, old: bool) -> Setup:
    return live(Recomputed(old), bumps(seed, noise=0.5), "Adam", 4e-3, 50)


new = zoo.healthy("bumps-first-stage-checkpointed-the-new-way", lambda s: recomputed(s, False))
zoo.sick(
    "bumps-first-stage-checkpointed-the-old-way",
    lambda s: recomputed(s, True),
    lasting(no_gradient("first")),
    *CUT_OFF,
    "detached",
    layer=("first", "first.0", "first.2", "first.1"),
    also={"never_moves", "frozen"},
    control=new,
)


def filled(seed: int, value: float | None) -> Setup:
    """The layers of all branches start as one number, or as torch draws them."""
    blocks = [Block(40, torch.tanh, norm=False) for _ in range(2)]
    for block in blocks:
        if value is not None:
            for layer in (block.a, block.b):
                nn.init.constant_(layer.weight, value)
                nn.init.zeros_(layer.bias)
    return live(Rows((10, 40, 6), blocks), alloys(seed), "Adam", 4e-3, 110)


drawn = zoo.healthy("alloys-branches-as-torch-draws-them", lambda s: filled(s, None))
zoo.sick(
    "alloys-branches-filled-with-0.02",
    lambda s: filled(s, 0.02),
    both(lasting(equal_units("blocks.0.a.weight")), worse(1.4)),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=tuple(f"blocks.{i}{part}" for i in range(2) for part in ("", ".a", ".b")),
    also={"VANISHING", "SLOW", "loss_stuck"},
    control=drawn,
)


class Present(nn.Module):
    """Vectors of the meters that are there are averaged; blocks read the mean."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.meters, self.least = nn.Parameter(torch.randn(10, 40)), least
        self.net = Rows((40, 40, 6), [Block(40) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        there = x.isfinite()
        total = torch.where(there, x, 0.0) @ self.meters
        return self.net(total / there.sum(dim=1, keepdim=True).clamp_min(self.least))


def missing(seed: int, least: float) -> Setup:
    random = torch.Generator().manual_seed(seed + 61)

    def lose(x: Tensor) -> Tensor:
        share = 0.05 + 0.6 * torch.rand(len(x), 1, generator=random) ** 3
        return x.masked_fill(torch.rand(x.shape, generator=random) < share, torch.nan)

    return live(Present(least), alloys(seed).mapped(lose), "Adam", 4e-3, 80)


some = zoo.healthy("alloys-some-meters-missing-mean-over-at-least-1", lambda s: missing(s, 1.0))
zoo.sick(
    "alloys-some-meters-missing-mean-over-none",
    lambda s: missing(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "all_masked",
    also={"bad_batch"},
    control=some,
)
