"""Games of two and three players that circle, and games that settle.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.case import Setup, Zoo
from validation.evidence import circles, settles
from validation.nets import Game, Rules, zero_sum
from validation.setups import play, played

zoo = Zoo("game", half="tune", analyzer="game", proof=settles)


# --- two players with a name


def game(seed: int, dims: tuple[int, int], rules: Rules, spread: float = 1.0) -> Setup:
    """Two players whose moves have names, `first` and `second`."""
    random = torch.Generator().manual_seed(seed)
    return played(Game(rules, *(spread * torch.randn(dim, generator=random) for dim in dims)), random, 64)


def bilinear(size: int, cost: float) -> Rules:
    """A zero-sum game over a turned space."""
    return zero_sum(torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(3)))[0], cost)


def pennies(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
    """Matching pennies with mixed strategies as softmax of logits."""
    payoff = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    value = x.softmax(0) @ payoff @ y.softmax(0)
    return -value, value


def dirac(penalty: float) -> Rules:
    """Dirac-GAN of Mescheder et al.: data at 0, a generator's point, a linear discriminator, and R1."""

    def outcome(theta: Tensor, psi: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        fake = (psi * theta).sum()
        generator = F.softplus(-fake)
        discriminator = F.softplus(fake) + penalty / 2 * psi.square().sum()
        return generator, discriminator

    return outcome


def critic(penalty: float) -> Rules:
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


damped = zoo.healthy("bilinear-with-cost-2", lambda s: game(s, (4, 4), bilinear(4, 2.0)))
zoo.sick(
    "bilinear", lambda s: game(s, (4, 4), bilinear(4, 0.0)), circles, "ROTATION", also={"UNSTABLE"}, control=damped
)
common = zoo.healthy("common-bowl", lambda s: game(s, (3, 3), bowl))
zoo.sick(
    "matching-pennies", lambda s: game(s, (2, 2), pennies, 0.3), circles, "ROTATION", also={"UNSTABLE"}, control=common
)
zoo.healthy("independent-players", lambda s: game(s, (3, 5), apart))
penalised = zoo.healthy("dirac-gan-with-r1", lambda s: game(s, (1, 1), dirac(2.0)))
zoo.sick(
    "dirac-gan", lambda s: game(s, (1, 1), dirac(0.0), 0.25), circles, "ROTATION", also={"UNSTABLE"}, control=penalised
)
bounded = zoo.healthy("linear-critic-gan-with-penalty", lambda s: game(s, (2, 2), critic(2.0)))
zoo.sick(
    "linear-critic-gan", lambda s: game(s, (2, 2), critic(0.0)), circles, "ROTATION", also={"UNSTABLE"}, control=bounded
)
zoo.sick(
    "bilinear-with-cost-0.05",
    lambda s: game(s, (6, 6), bilinear(6, 0.05)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=bounded,
)
zoo.healthy("drawn-to-data-and-each-other", lambda s: game(s, (4, 4), pull))

# --- any number of players: circling

CYCLE = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def rock_paper_scissors(cost: float):
    """Mixed strategies as softmax of logits, with a pull to even play."""

    def rules(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        value = 3 * x.softmax(0) @ CYCLE @ y.softmax(0)
        return -value + cost * x.square().sum(), value + cost * y.square().sum()

    return rules


def round_table(cost: float):
    """Three players, each of whom gains what the next loses."""

    def rules(x: Tensor, y: Tensor, z: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = x @ y, y @ z, z @ x
        return tuple(v + cost / 2 * p.square().sum() for v, p in ((a - c, x), (b - a, y), (c - b, z)))

    return rules


def oblong(cost: float, rows: int, columns: int):
    """A zero-sum game with more moves on one side, each tied to some of the other's."""
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))
    return zero_sum(matrix / torch.linalg.matrix_norm(matrix, 2), cost)


def moments(cost: float):
    """A generator shifts and stretches noise, a critic with weights on x and x² tells it from data; R1 by `cost`."""

    def rules(make: Tensor, judge: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        real, fake = 0.5 + 0.5 * noise[:, 0], make[0] + (1 + make[1]) * 0.5 * noise[:, 0]
        score_real = (judge[0] * real + judge[1] * real.square()).mean()
        score_fake = (judge[0] * fake + judge[1] * fake.square()).mean()
        return -score_fake, score_fake - score_real + cost / 2 * judge.square().sum()

    return rules


def pursuit(cost: float):
    """One wants to be where the other is, the other wants to be a quarter turn away."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])

    def rules(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        return -x @ (turn @ y) * 0.8 + cost * x.square().sum(), -y @ (turn.T @ x) * -0.8 + cost * y.square().sum()

    return rules


calm_hands = zoo.healthy("rock-paper-scissors-drawn-to-even", lambda s: play(s, (3, 3), rock_paper_scissors(0.5)))
zoo.sick(
    "rock-paper-scissors",
    lambda s: play(s, (3, 3), rock_paper_scissors(0.0), 0.3),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_hands,
)
calm_table = zoo.healthy("round-table-of-3-with-cost-3", lambda s: play(s, (3, 3, 3), round_table(3.0)))
zoo.sick(
    "round-table-of-3",
    lambda s: play(s, (3, 3, 3), round_table(0.0)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_table,
)
calm_oblong = zoo.healthy("oblong-3-by-7-with-cost-1.5", lambda s: play(s, (3, 7), oblong(1.5, 3, 7)))
zoo.sick(
    "oblong-3-by-7",
    lambda s: play(s, (3, 7), oblong(0.0, 3, 7)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_oblong,
)
zoo.sick(
    "pursuit-by-a-quarter-turn",
    lambda s: play(s, (2, 2), pursuit(0.0)),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_oblong,
)
calm_moments = zoo.healthy("generator-and-critic-of-moments-with-penalty", lambda s: play(s, (2, 2), moments(2.0), 0.3))
zoo.sick(
    "generator-and-critic-of-moments",
    lambda s: play(s, (2, 2), moments(0.0), 0.3),
    circles,
    "ROTATION",
    also={"UNSTABLE"},
    control=calm_moments,
)

# --- settling


def markets(x: Tensor, y: Tensor, z: Tensor, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three firms choose amounts; the price falls with their sum, and costs rise with each own amount."""
    price = 4 + 0.05 * batch.mean() - 0.5 * (x + y + z).sum()
    return tuple(-p.sum() * price + 0.8 * p.square().sum() for p in (x, y, z))


def consensus(x: Tensor, y: Tensor, z: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All want to agree, each with a taste of its own."""
    middle = (x + y + z) / 3
    return tuple(
        (p - middle).square().sum() + 0.6 * (p - taste).square().sum() for p, taste in ((x, 1), (y, 0), (z, -2))
    )


def robust(x: Tensor, y: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """A fit against a disturbance that is dear to its owner."""
    error = (x - 1).square().sum() + (0.3 * (x * (y + 1)).sum()).square()  # expectation over white inputs
    return error + 0.01 * batch.mean() * x.sum(), 4 * y.square().sum() - error


def together(x: Tensor, y: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Encoder and decoder of one number share the error."""
    error = F.mse_loss(x.sum() * y.sum() / len(x) * 0.5, 1 + 0 * batch.mean())
    return error + 0.3 * x.square().mean(), error + 0.3 * y.square().mean()


zoo.healthy("three-firms-on-a-market", lambda s: play(s, (1, 1, 1), markets))
zoo.healthy("three-who-want-to-agree", lambda s: play(s, (4, 4, 4), consensus))
zoo.healthy("fit-against-a-dear-disturbance", lambda s: play(s, (5, 5), robust))
zoo.healthy("two-who-share-an-error", lambda s: play(s, (4, 4), together))
