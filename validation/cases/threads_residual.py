# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks with mistakes that people told of in threads, and what each thread came to.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he
from validation.cases._plain_nets import BLOWN
from validation.cases._threads_nets import (
    PINCHED,
    QUIET,
    STILL,
    Averaged,
    Sign,
    Skip,
    cereals,
    convs,
    layers,
    leaves,
    paintings,
    turbines,
)
from validation.evidence import (
    activation_growth,
    both,
    breaks,
    diverges,
    does_not_move,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    thrives,
)
from validation.labels import RUNS_AWAY
from validation.setups import live
from validation.tasks import Task, drawn_once

zoo = Zoo("residual", half="threads", proof=thrives(0.2, most_dead=0.5))


def two(width: int, norm: bool = False) -> nn.Sequential:
    """Two convolutions, the branch of a basic block."""
    first, second = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
    if norm:
        return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), first, nn.BatchNorm2d(width), nn.ReLU(), second)
    return nn.Sequential(first, nn.ReLU(), second)


# --- too narrow

# cc-ai/kdb#117: with each further step down the latent gets smaller and what comes back is worse; more channels for the
# latent were the first idea.


class Deeper(nn.Module):
    """Residual blocks and steps down to a latent of one dot, then up again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        down = [part for _ in range(2) for part in (Skip(two(16)), nn.Conv2d(16, 16, 4, 2, 1))]
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), *down)
        self.latent, self.open = nn.Linear(64, channels), nn.Linear(channels, 64)
        up = [part for _ in range(2) for part in (nn.ConvTranspose2d(16, 16, 4, 2, 1), Skip(two(16)))]
        self.up = nn.Sequential(*up, nn.Conv2d(16, 1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.open(self.latent(self.down(x).flatten(1))).unflatten(1, (16, 2, 2)))


def deeper(seed: int, channels: int) -> Setup:
    return live(Deeper(channels), paintings(seed, size=8), "Adam", 3e-3, 80)


wide = zoo.healthy("paintings-residual-latent-of-32", lambda s: deeper(s, 32))
zoo.sick(
    "paintings-residual-latent-of-1",
    lambda s: deeper(s, 1),
    both(lags(0.2), lasting(rank_at_most("latent", 1.01))),
    *NARROW,
    layer=("latent", "open"),
    also=PINCHED,
    control=wide,
)

# makeyourownneuralnetwork/makeyourownneuralnetwork#6 (how many hidden nodes? too few cannot learn the relation):
# the stream of a residual net of rows has a width of one, however wide the branches are.


class Stream(nn.Module):
    """A stream of so many numbers with wide branches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(12, width), nn.Linear(width, 8)
        self.blocks = nn.Sequential(*(Skip(layers([width, 64, width])) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.blocks(self.enter(x)))


def stream(seed: int, width: int) -> Setup:
    return live(Stream(width), turbines(seed), "Adam", 4e-3, 100)


river = zoo.healthy("turbines-stream-of-48", lambda s: stream(s, 48))
zoo.sick(
    "turbines-stream-of-1",
    lambda s: stream(s, 1),
    both(lags(0.2), lasting(rank_at_most("enter", 1.01), rank_at_most("blocks", 1.01))),
    *NARROW,
    layer=("enter", "blocks", "leave", *(f"blocks.{i}{p}" for i in range(3) for p in ("", ".branch", ".branch.2"))),
    also=PINCHED,
    control=river,
)

# --- sizes

# huangleiBuaa/ONI#1: a ResNet on CIFAR without batch norm, its kernels drawn with a gain of the root of two: NaN
# after a few steps; a smaller scale is the answer.


def unnormed(seed: int, gain: float) -> Setup:
    blocks = [Skip(two(16)) for _ in range(12)]
    model = Averaged(nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks), 16, 8)
    he(model)
    with torch.no_grad():
        for block in blocks:
            block.branch[2].weight.mul_(gain)
    return live(model, leaves(seed, noise=0.3), "SGD", 0.002, 80, momentum=0.9)


tame = zoo.healthy("leaves-no-norm-small-last-kernels", lambda s: unnormed(s, 0.1))
zoo.sick(
    "leaves-no-norm-full-gain",
    lambda s: unnormed(s, 1.0),
    both(activation_growth(10), worse(1.5)),
    *RUNS_AWAY,
    "rate_too_high",
    "first_loss_high",
    "loss_nonfinite",
    also={*BLOWN, "SLOW"},
    control=tame,
)

# kekmodel/MPL-pytorch#24: the batch norm behind the last block of a wide resnet was taken out, and at its high rate the
# loss is NaN after few steps.


class Wide(nn.Module):
    """Blocks with the norm first, and a norm behind them all, or none."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 24, 3, 1, 1), nn.Sequential(*(Skip(two(24, True)) for _ in range(5)))
        self.norm, self.fc = nn.BatchNorm2d(24) if last else nn.Identity(), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.blocks(self.stem(x)))).mean(dim=(2, 3)))


def wider(seed: int, last: bool) -> Setup:
    return live(Wide(last), leaves(seed, batch=24), "SGD", 0.3, 50, momentum=0.9)


normed = zoo.healthy("leaves-wide-resnet-last-norm", lambda s: wider(s, True))
zoo.sick(
    "leaves-wide-resnet-last-norm-taken-out",
    lambda s: wider(s, False),
    both(diverges(3), worse(2.0)),
    "UNSTABLE",
    "EXPLODING",
    "NUMERICAL",
    "rate_too_high",
    "loss_nonfinite",
    also={*BLOWN, "SLOW"},
    control=normed,
)

# theorangeduck.com "My Neural Network isn't working!", too deep a network: the sum with the input was forgotten, so
# that it is a plain stack of twenty layers.


def plain(seed: int, skip: bool) -> Setup:
    blocks = [Skip(layers([40, 40, 40], nn.ReLU, nn.ReLU), skip) for _ in range(10)]
    model = nn.Sequential(nn.Linear(16, 40), *blocks, nn.Linear(40, 6))
    return live(model, cereals(seed), "SGD", 0.01, 80, momentum=0.9)


summed = zoo.healthy("cereals-ten-blocks-with-their-sums", lambda s: plain(s, True), thrives(0.2, most_dead=0.7))
zoo.sick(
    "cereals-ten-blocks-sums-forgotten",
    lambda s: plain(s, False),
    both(gradient_ratio("0", "10.branch.2", below=1e-2), lags(0.3)),
    "VANISHING",
    "SLOW",
    also={*QUIET, "SYMMETRY"},
    control=summed,
)

# --- cut off

# AngusG/tensorflow-xnor-bnn#1 and jiecaoyu/XNOR-Net-PyTorch#49: signs of activations in the branches; how does the
# gradient pass? Not at all, if it is not let through by hand.


class Signs(nn.Module):
    """A norm, the sign, a linear layer, twice."""

    def __init__(self, width: int, through: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.sign = nn.BatchNorm1d(width), Sign.apply if through else torch.sign

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.sign(self.norm(self.first(x)))) / 3


def signs(seed: int, through: bool) -> Setup:
    blocks = [Skip(Signs(48, through)) for _ in range(3)]
    return live(nn.Sequential(nn.Linear(12, 48), *blocks, nn.Linear(48, 8)), turbines(seed), "Adam", 5e-3, 110)


passed = zoo.healthy("turbines-binary-branches-straight-through", lambda s: signs(s, True))
zoo.sick(
    "turbines-binary-branches-plain-sign",
    lambda s: signs(s, False),
    both(lasting(no_gradient("1.branch.first", "2.branch.first", "3.branch.first")), worse(1.15)),
    *CUT_OFF,
    "never_moves",
    "detached",
    layer=tuple(f"{i}{p}" for i in (1, 2, 3) for p in ("", ".branch", ".branch.first", ".branch.norm")),
    also={"VANISHING", *STILL},
    control=passed,
)

# --- numbers

# discuss.pytorch.org 9617 "NaN gradient for torch.cos() / torch.acos()": the angle between two directions by `acos`,
# which has no slope at 1; in a few rows the target is the direction that comes in.


def headings(seed: int) -> Task:
    """A direction and some readings, and the direction to take; none is to be changed where the readings are zero."""
    turn = torch.randn(6, 3, generator=drawn_once(seed, 9130)) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at, read = F.normalize(torch.randn(64, 3, generator=random)), torch.randn(64, 6, generator=random)
        calm = torch.rand(64, 1, generator=random) < 0.1
        read = read.masked_fill(calm, 0.0)
        return torch.cat([at, read], dim=1), F.normalize(at + read @ turn)

    return Task(seed, draw, F.mse_loss)


class Pilot(nn.Module):
    """The direction that comes in, and what a branch without biases adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(6, 48, bias=False), nn.Sequential(*(Skip(self.branch()) for _ in range(2)))
        self.leave = nn.Linear(48, 3, bias=False)

    @staticmethod
    def branch() -> nn.Sequential:
        return nn.Sequential(nn.Linear(48, 48, bias=False), nn.Tanh(), nn.Linear(48, 48, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x[:, :3] + self.leave(self.blocks(self.enter(x[:, 3:]))))


def angles(seed: int, by_acos: bool) -> Setup:
    def loss(y: Tensor, target: Tensor) -> Tensor:
        cosine = (y * target).sum(dim=1).clamp(-1, 1)
        return cosine.acos().mean() if by_acos else (1 - cosine).mean()

    return live(Pilot(), headings(seed).with_loss(loss), "Adam", 3e-3, 80)


cosines = zoo.healthy("headings-by-their-cosine", lambda s: angles(s, False))
zoo.sick(
    "headings-by-acos-of-one",
    lambda s: angles(s, True),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={*BLOWN, "UNSTABLE", "EXPLODING"},
    control=cosines,
)

# --- steps

# gcr/torch-residual-networks#10 asks whether the rate of 0.1 is too large; here it was lowered until nothing moves.


def lowered(seed: int, lr: float) -> Setup:
    blocks = [Skip(two(16, True)) for _ in range(2)]
    return live(Averaged(nn.Sequential(convs(3, [16]), *blocks), 16, 8), leaves(seed), "SGD", lr, 60, momentum=0.9)


usual = zoo.healthy("leaves-resnet-sgd-a-twentieth", lambda s: lowered(s, 0.05))
zoo.sick(
    "leaves-resnet-sgd-a-ten-millionth",
    lambda s: lowered(s, 1e-7),
    both(does_not_move(1e-5), lags(0.3)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck", "VANISHING", "zero_rate"},
    control=usual,
)
