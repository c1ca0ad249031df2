# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Games of several players, each with a loss of its own: those that circle and those that settle."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_special import circles, settles

zoo = Zoo("game", "game", settles)
Outcome = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Game(nn.Module):
    """Two players with a vector each; the output holds both losses."""

    def __init__(self, outcome: Outcome, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.outcome = outcome

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.outcome(self.first, self.second, batch)


def game(seed: int, dims: tuple[int, int], outcome: Outcome, spread: float = 1.0) -> Setup:
    random = torch.Generator().manual_seed(seed)
    model = Game(outcome, *(spread * torch.randn(d, generator=random) for d in dims))

    def input_fn() -> Tensor:
        return torch.randn(64, dims[1], generator=random)

    players = [(lambda out: out[0], [model.first]), (lambda out: out[1], [model.second])]
    return Setup(model=model, input_fn=input_fn, loss_fn=lambda out: out[0], kwargs={"players": players})


def bilinear(size: int, regular: float) -> Outcome:
    """x'Ay for one, −x'Ay for the other, each with a quadratic cost for its own move."""
    matrix = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(3)))[0]

    def outcome(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        value = x @ matrix @ y
        return value + regular / 2 * x.square().sum(), -value + regular / 2 * y.square().sum()

    return outcome


def pennies(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
    """Matching pennies with mixed strategies as softmax of logits."""
    payoff = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    value = x.softmax(0) @ payoff @ y.softmax(0)
    return -value, value


def dirac(penalty: float) -> Outcome:
    """Dirac-GAN of Mescheder et al.: data at 0, a generator's point, a linear discriminator, and R1."""

    def outcome(theta: Tensor, psi: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        fake = (psi * theta).sum()
        generator = F.softplus(-fake)
        discriminator = F.softplus(fake) + penalty / 2 * psi.square().sum()
        return generator, discriminator

    return outcome


def critic(penalty: float) -> Outcome:
    """A Wasserstein GAN with a linear critic: the generator shifts noise towards data around (1, -1, …)."""

    def outcome(shift: Tensor, weight: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tensor([1.0, -1.0] * len(shift))[: len(shift)]
        real, fake = (mean + 0.1 * noise.flip(0)) @ weight, (shift + 0.1 * noise) @ weight
        return -fake.mean(), fake.mean() - real.mean() + penalty / 2 * weight.square().sum()

    return outcome


def bowl(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
    """Both want the same: a single loss."""
    value = (x - 1).square().sum() + (y + 1).square().sum() + 0.5 * (x.sum() * y.sum()) / len(x)
    return value, value


def apart(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
    """Neither cares for the other."""
    return (x - 2).square().sum(), 0.7 * (y + 1).square().sum()


def pull(x: Tensor, y: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Both are drawn to the data and to each other."""
    centre = 1 + 0.1 * batch.mean(0)
    tie = 0.3 * (x - y).square().sum()
    return (x - centre).square().sum() + tie, (y - centre).square().sum() + tie


damped = zoo.healthy("bilinear-with-cost-2", "tune", lambda s: game(s, (4, 4), bilinear(4, 2.0)))
zoo.sick(
    "bilinear",
    "tune",
    lambda s: game(s, (4, 4), bilinear(4, 0.0)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=damped,
)
common = zoo.healthy("common-bowl", "tune", lambda s: game(s, (3, 3), bowl))
zoo.sick(
    "matching-pennies",
    "tune",
    lambda s: game(s, (2, 2), pennies, 0.3),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=common,
)
zoo.healthy("independent-players", "tune", lambda s: game(s, (3, 5), apart))
penalised = zoo.healthy("dirac-gan-with-r1", "tune", lambda s: game(s, (1, 1), dirac(2.0)))
zoo.sick(
    "dirac-gan",
    "tune",
    lambda s: game(s, (1, 1), dirac(0.0), 0.25),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=penalised,
)
bounded = zoo.healthy("linear-critic-gan-with-penalty", "tune", lambda s: game(s, (2, 2), critic(2.0)))
zoo.sick(
    "linear-critic-gan",
    "tune",
    lambda s: game(s, (2, 2), critic(0.0)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=bounded,
)
zoo.sick(
    "bilinear-with-cost-0.05",
    "tune",
    lambda s: game(s, (6, 6), bilinear(6, 0.05)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=bounded,
)
zoo.healthy("drawn-to-data-and-each-other", "tune", lambda s: game(s, (4, 4), pull))
