"""Games of two to four players that circle, and games that settle.

Half: holdout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.case import Zoo
from validation.evidence import circles, settles
from validation.nets import zero_sum
from validation.setups import play

zoo = Zoo("game", half="holdout", analyzer="game", proof=settles)


def coins(cost: float):
    """Matching pennies over logits: one wants to be equal, the other wants to differ."""

    def rules(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        value = 4 * ((x.sigmoid() - 0.5) * (y.sigmoid() - 0.5)).sum()
        return -value + cost * x.square().sum(), value + cost * y.square().sum()

    return rules


def coupled(cost: float, dim: int):
    """A skew field: each player's gain is the other's loss along turned axes of unlike strength."""
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(8)))[0]
    return zero_sum(turn @ torch.diag(torch.linspace(0.4, 1.0, dim)), cost)


def chase(cost: float):
    """Four in a ring, each of whom runs after the next and from the one behind."""

    def rules(a: Tensor, b: Tensor, c: Tensor, d: Tensor, _batch: Tensor) -> tuple[Tensor, ...]:
        ring = (a, b, c, d)
        pulls = [0.6 * (ring[i] @ ring[(i + 1) % 4] - ring[i] @ ring[i - 1]) for i in range(4)]
        return tuple(pull + cost / 2 * p.square().sum() for pull, p in zip(pulls, ring, strict=True))

    return rules


def means(cost: float):
    """A generator of a mean in five dimensions against a linear critic, with a penalty on the critic."""

    def rules(make: Tensor, judge: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        gap = (make + 0.1 * noise).mean(dim=0) - (0.5 + 0.1 * noise).mean(dim=0)
        return -(judge @ gap), judge @ gap + cost / 2 * judge.square().sum()

    return rules


calm_coins = zoo.healthy("matching-coins-drawn-to-even", lambda s: play(s, (2, 2), coins(0.4)))
zoo.sick(
    "matching-coins-over-logits",
    lambda s: play(s, (2, 2), coins(0.0), 0.4),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_coins,
)
calm_axes = zoo.healthy("turned-axes-6-with-cost-1.8", lambda s: play(s, (6, 6), coupled(1.8, 6)))
zoo.sick(
    "turned-axes-6",
    lambda s: play(s, (6, 6), coupled(0.0, 6)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_axes,
)
calm_ring = zoo.healthy("ring-of-4-with-cost-3", lambda s: play(s, (3, 3, 3, 3), chase(3.0)))
zoo.sick(
    "ring-of-4", lambda s: play(s, (3, 3, 3, 3), chase(0.0)), circles, "ROTATION", also={"UNSTABLE"}, control=calm_ring
)
calm_means = zoo.healthy("mean-and-critic-with-penalty-2.5", lambda s: play(s, (5, 5), means(2.5)))
zoo.sick(
    "mean-and-critic-without-penalty",
    lambda s: play(s, (5, 5), means(0.0)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_means,
)


def bargain(x: Tensor, y: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Both lose by distance, and each has a price of its own."""
    distance = (x - y).square().sum()
    return distance + 0.5 * (x - 1).square().sum(), distance + 0.7 * (y + 1).square().sum() + 0.0 * batch.mean()


def commons(x: Tensor, y: Tensor, z: Tensor, _batch: Tensor) -> tuple[Tensor, ...]:
    """Three use one good; use pays, and the sum of all use costs everybody."""
    load = (x + y + z).sum()
    return tuple(0.2 * load.square() - 2 * p.sum() + 0.5 * p.square().sum() for p in (x, y, z))


zoo.healthy("two-who-bargain", lambda s: play(s, (3, 3), bargain))
zoo.healthy("three-on-the-commons", lambda s: play(s, (2, 2, 2), commons))
