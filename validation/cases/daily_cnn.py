# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily convolutional networks with the faults that people report, and their twins.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import Head, Through, conv, worse
from validation.cases._daily_nets import SQUASHED, UNLEARNED, bearings, bumps, dials, leaves, shores
from validation.cases._everyday_nets import CUT_OFF, NARROW, he
from validation.cases._plain_nets import BLOWN, COLLAPSED, alike, pooled
from validation.evidence import (
    both,
    breaks,
    channel_rank,
    dead,
    diverges,
    does_not_move,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import JUMPS
from validation.setups import live

zoo = Zoo("cnn", half="daily", proof=thrives(0.2, most_dead=0.5))

# --- too narrow


def read(seed: int, size: int) -> Setup:
    """Two hands of a dial, by way of so many numbers."""
    model = nn.Sequential(
        conv(2, 12, 2), conv(12, 24, 2), nn.Flatten(), nn.Linear(384, size), nn.Linear(size, 32), nn.SiLU(),
        nn.Linear(32, 4),
    )  # fmt: skip
    return live(model, dials(seed), "AdamW", 4e-3, 100)


hands = zoo.healthy("dials-summary-of-24-numbers", lambda s: read(s, 24))
zoo.sick(
    "dials-summary-of-1-number",
    lambda s: read(s, 1),
    both(lags(0.2), lasting(rank_at_most("3", 1.01))),
    *NARROW,
    layer=("3", "4"),
    also=SQUASHED,
    control=hands,
)


class Hills(nn.Module):
    """Strided convolutions to a code, and transposed ones back."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ELU(), nn.Conv2d(12, 24, 4, 2, 1), nn.ELU())
        self.code, self.open = nn.Linear(216, code), nn.Linear(code, 216)
        self.up = nn.Sequential(nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(12, 1, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.open(self.code(self.down(x).flatten(1)))
        return self.up(h.unflatten(1, (24, 3, 3)))


def hills(seed: int, code: int) -> Setup:
    return live(Hills(code), bumps(seed), "Adam", 8e-3, 90)


wide = zoo.healthy("bumps-code-of-16-for-10-hills", lambda s: hills(s, 16))
zoo.sick(
    "bumps-code-of-1-for-10-hills",
    lambda s: hills(s, 1),
    both(lags(0.2), lasting(rank_at_most("code", 1.01))),
    *NARROW,
    layer=("code", "open"),
    also=SQUASHED,
    control=wide,
)


def late(seed: int, waist: int) -> Setup:
    """A search over widths gave the last stage so many channels; the head widens them again."""
    model = nn.Sequential(
        conv(3, 12, 2), conv(12, 24, 2), nn.Conv2d(24, waist, 3, 2, 1), nn.Conv2d(waist, 32, 1), nn.SiLU(), Head(32, 8)
    )
    return live(model, leaves(seed, size=16), "Adam", 4e-3, 70)


channels = zoo.healthy("leaves-last-stage-of-16-channels", lambda s: late(s, 16))
zoo.sick(
    "leaves-last-stage-of-1-channel",
    lambda s: late(s, 1),
    both(worse(3.0), lasting(channel_rank("2", 1.01))),
    *NARROW,
    layer=("2", "3"),
    also=SQUASHED,
    control=channels,
)

# --- size of the signal


def by_fan(seed: int, root: bool) -> Setup:
    """A start written by hand: two over the fan, or the root of it."""
    parts: list[nn.Module] = []
    for i, a in enumerate((3, 16, 16, 16, 16, 16, 16)):
        parts += [nn.Conv2d(a, 16, 3, 2 if i in (2, 5) else 1, 1), nn.ReLU()]
    model = pooled(*parts, width=16, out=8)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            share = 2 / (9 * module.in_channels)
            nn.init.normal_(module.weight, std=math.sqrt(share) if root else share)
            nn.init.zeros_(module.bias)
    return live(model, leaves(seed, batch=24), "SGD", 0.02, 90, momentum=0.9)


rooted = zoo.healthy("leaves-seven-convs-root-of-two-over-the-fan", lambda s: by_fan(s, True))
zoo.sick(
    "leaves-seven-convs-two-over-the-fan",
    lambda s: by_fan(s, False),
    both(lasting(gradient_ratio("0", "12", below=1e-3)), lags(0.3)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=rooted,
)


def gathered(seed: int, whole: bool) -> Setup:
    """The picture's features are averaged, or summed."""
    gather = Through((lambda x: x.sum(dim=(2, 3))) if whole else (lambda x: x.mean(dim=(2, 3))))
    model = nn.Sequential(conv(3, 16, norm=False), conv(16, 32, norm=False), gather, nn.Linear(32, 8))
    return live(he(model), leaves(seed), "SGD", 0.03, 70, momentum=0.9)


average = zoo.healthy("leaves-mean-over-the-picture-sgd-0.03", lambda s: gathered(s, False))
zoo.sick(
    "leaves-sum-over-the-picture-sgd-0.03",
    lambda s: gathered(s, True),
    both(diverges(1.5), worse(3.0)),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    "rate_too_high",
    also={"first_loss_high", *BLOWN, "SLOW"},
    control=average,
)


def cycled(seed: int, peak: float) -> Setup:
    """One cycle: a rise over 30 steps, then down; the peak is a multiple of the rate."""
    model = pooled(conv(3, 16), conv(16, 24, 2), conv(24, 32, 2), width=32, out=8)
    return live(
        model, leaves(seed), "SGD", 0.02, 90, momentum=0.9, weight_decay=1e-4,
        rate=lambda t: 1 + (peak - 1) * (t / 30 if t < 30 else max(0.0, (90 - t) / 60)),
    )  # fmt: skip


cycle = zoo.healthy("leaves-one-cycle-peak-of-4", lambda s: cycled(s, 4.0))
zoo.sick(
    "leaves-one-cycle-peak-of-2000",
    lambda s: cycled(s, 2000.0),
    both(diverges(2), worse(3.0)),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=cycle,
)

# --- dead and flat


def decibels(seed: int, first: bool) -> Setup:
    """Levels in decibels, all below zero; the net begins with an activation, as the blocks behind it do, or not."""
    model = nn.Sequential(
        nn.ReLU() if first else nn.BatchNorm1d(2), nn.Conv1d(2, 24, 7, padding=3), nn.ReLU(),
        nn.Conv1d(24, 32, 7, 2, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 7),
    )  # fmt: skip
    return live(model, bearings(seed).mapped(lambda x: 6 * x - 60), "Adam", 3e-3, 80)


norm_first = zoo.healthy("bearings-decibels-into-a-norm", lambda s: decibels(s, False))
zoo.sick(
    "bearings-decibels-into-a-relu",
    lambda s: decibels(s, True),
    both(lasting(dead("0", 0.99)), lags(0.3)),
    "DEAD",
    "DISCONNECTED",
    *COLLAPSED,
    "input_scales",
    layer=("0", "1", "2", "3", "4"),
    also={"VANISHING", "SYMMETRY", *UNLEARNED},
    control=norm_first,
)


def counted(seed: int, unit: float) -> Setup:
    """Light from 0 to 1 around its middle, or as the counts of the camera."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.Tanh(), nn.Conv2d(16, 24, 3, 2, 1), nn.Tanh(), nn.Flatten(),
        nn.Linear(384, 48), nn.Tanh(), nn.Linear(48, 8),
    )  # fmt: skip
    task = leaves(seed).mapped(lambda x: 4 * (torch.sigmoid(x) - 0.5) if unit == 1 else unit * torch.sigmoid(x))
    return live(model, task, "Adam", 3e-3, 70)


centred = zoo.healthy("leaves-tanh-light-around-its-middle", lambda s: counted(s, 1.0))
zoo.sick(
    "leaves-tanh-light-in-counts",
    lambda s: counted(s, 16384.0),
    both(lasting(saturated("1", "tanh", 0.9)), worse(2.0)),
    "SATURATION",
    "VANISHING",
    "DEAD",
    "input_scales",
    layer=("0", "1", "2", "3"),
    also={"LOW_RANK", "BOTTLENECK", "DISCONNECTED", *UNLEARNED},
    control=centred,
)


def shifted(seed: int, scale: float) -> Setup:
    """Pictures from 0 to 1, less the mean of pictures from 0 to `scale`, over their deviation."""
    model = pooled(
        nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.LeakyReLU(), width=32, out=8
    )
    task = leaves(seed).mapped(lambda x: (torch.sigmoid(x) * 1.0 - 0.45 * scale) / (0.2 * scale))
    return live(model, task, "SGD", 0.02, 90, momentum=0.9)


fitting = zoo.healthy("leaves-from-0-to-1-less-their-mean", lambda s: shifted(s, 1.0))
zoo.sick(
    "leaves-from-0-to-1-less-the-mean-of-bytes",
    lambda s: shifted(s, 255.0),
    both(lasting(alike("0", 0.03)), lags(0.3)),
    *COLLAPSED,
    "VANISHING",
    "input_scales",
    layer=("0", "1", "2"),
    also={"SYMMETRY", "DEAD", *UNLEARNED},
    control=fitting,
)

# --- steps


def lambda_rate(seed: int, factor: bool) -> Setup:
    """The schedule's function gives a factor of the rate, or the rate itself, which is then multiplied with it."""
    model = nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 4, 1))
    return live(
        model, shores(seed), "SGD", 1e-4 if not factor else 0.05, 60, momentum=0.9,
        rate=lambda t: 0.97**t * (1.0 if factor else 1e-4),
    )  # fmt: skip


by_factor = zoo.healthy("shores-schedule-gives-a-factor", lambda s: lambda_rate(s, True))
zoo.sick(
    "shores-schedule-gives-the-rate-itself",
    lambda s: lambda_rate(s, False),
    both(does_not_move(1e-5), lags(0.2)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck"},
    control=by_factor,
)

# --- cut off


class Streams(nn.Module):
    """One net for the first pick-up and one for the second; what they say is put together, one of them twice or not."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Conv1d(1, 16, 7, 2, 3), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU()) for _ in range(2)
        )
        self.twice, self.head = twice, nn.Sequential(nn.Dropout(0.1), nn.Linear(48, 7))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x[:, :1]).amax(dim=2), self.right(x[:, 1:]).amax(dim=2)
        return self.head(torch.cat([a, a] if self.twice else [a, b], dim=1))


def streams(seed: int, twice: bool) -> Setup:
    return live(Streams(twice), bearings(seed), "AdamW", 4e-3, 80)


two = zoo.healthy("bearings-two-streams-put-together", lambda s: streams(s, False))
zoo.sick(
    "bearings-two-streams-the-first-put-twice",
    lambda s: streams(s, True),
    lasting(no_gradient("right")),
    *CUT_OFF,
    "detached",
    layer=("right", "right.0", "right.2", "right.1", "right.3"),
    also={"never_moves", "frozen"},
    control=two,
)


class Counted(nn.Module):
    """A branch counts the bright dots, by a soft step or by a comparison, and scales the channels by it."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.look, self.hard = nn.Conv2d(3, 8, 3, 2, 1), hard
        self.net, self.head = nn.Sequential(conv(3, 16, 2), conv(16, 24, 2)), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.look(x)
        bright = (seen > 0).float() if self.hard else torch.sigmoid(4 * seen)
        return self.head(torch.cat([self.net(x).mean(dim=(2, 3)), bright.mean(dim=(2, 3))], dim=1))


def dots(seed: int, hard: bool) -> Setup:
    return live(Counted(hard), leaves(seed), "Adam", 3e-3, 60)


soft = zoo.healthy("leaves-bright-dots-by-a-soft-step", lambda s: dots(s, False))
zoo.sick(
    "leaves-bright-dots-by-a-comparison",
    lambda s: dots(s, True),
    lasting(no_gradient("look")),
    *CUT_OFF,
    "detached",
    layer="look",
    also={"never_moves", "frozen"},
    control=soft,
)

# --- numbers


def corrected(seed: int, least: float) -> Setup:
    """The picture is made brighter for a screen: the power 1/2.2 of what is positive."""
    model = nn.Sequential(conv(1, 16), conv(16, 16), nn.Conv2d(16, 1, 1))
    task = bumps(seed, noise=0.3).changed(lambda x, y: (x, (y.relu() + 1e-3).pow(1 / 2.2)))
    task.with_loss(lambda z, t: F.l1_loss((z * (z > least) + least).pow(1 / 2.2), t))
    return live(model, task, "Adam", 3e-3, 60)


lifted = zoo.healthy("bumps-brightened-from-0.001-up", lambda s: corrected(s, 1e-3))
zoo.sick(
    "bumps-brightened-from-0-up",
    lambda s: corrected(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    control=lifted,
)


class Spread(nn.Module):
    """The mean and the deviation of every channel, of which some are dropped, are what the head reads."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.a, self.b, self.eps = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 24, 3, 2, 1), eps
        self.drop, self.head = nn.Dropout2d(0.1), nn.Linear(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.b(F.relu(self.a(x))))).flatten(2)
        return self.head(torch.cat([x.mean(dim=2), (x.var(dim=2) + self.eps).sqrt()], dim=1))


def spread(seed: int, eps: float) -> Setup:
    return live(Spread(eps), leaves(seed), "Adam", 4e-3, 60)


kept = zoo.healthy("leaves-mean-and-deviation-with-eps", lambda s: spread(s, 1e-4))
zoo.sick(
    "leaves-mean-and-deviation-of-dropped-channels",
    lambda s: spread(s, 0.0),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    control=kept,
)
