# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Games of two and three players that circle, and games that settle. Set aside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_special import circles, settles

zoo = Zoo("game", "game", settles)


class Players(nn.Module):
    """Several players with a vector each; the output holds all losses."""

    def __init__(self, rules, starts: list[Tensor]) -> None:
        super().__init__()
        self.moves = nn.ParameterList(nn.Parameter(start) for start in starts)
        self.rules = rules

    def forward(self, batch: Tensor) -> tuple[Tensor, ...]:
        return self.rules(*self.moves, batch)


def play(seed: int, dims: tuple[int, ...], rules, spread: float = 1.0) -> Setup:
    random = torch.Generator().manual_seed(seed + 20)
    model = Players(rules, [spread * torch.randn(d, generator=random) for d in dims])

    def of(i: int):
        return lambda out: out[i]

    players = [(of(i), [move]) for i, move in enumerate(model.moves)]
    return Setup(
        model=model,
        input_fn=lambda: torch.randn(48, dims[-1], generator=random),
        loss_fn=lambda out: out[0],
        kwargs={"players": players},
    )


# --- circling

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
    matrix = matrix / torch.linalg.matrix_norm(matrix, 2)

    def rules(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        value = x @ matrix @ y
        return value + cost / 2 * x.square().sum(), cost / 2 * y.square().sum() - value

    return rules


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


RUNS = {"UNSTABLE"}
calm_hands = zoo.healthy(
    "rock-paper-scissors-drawn-to-even", "tune", lambda s: play(s, (3, 3), rock_paper_scissors(0.5))
)
zoo.sick(
    "rock-paper-scissors",
    "tune",
    lambda s: play(s, (3, 3), rock_paper_scissors(0.0), 0.3),
    circles,
    "ROTATION",
    also=RUNS,
    control=calm_hands,
)
calm_table = zoo.healthy("round-table-of-3-with-cost-3", "tune", lambda s: play(s, (3, 3, 3), round_table(3.0)))
zoo.sick(
    "round-table-of-3",
    "tune",
    lambda s: play(s, (3, 3, 3), round_table(0.0)),
    circles,
    "ROTATION",
    also=RUNS,
    control=calm_table,
)
calm_oblong = zoo.healthy("oblong-3-by-7-with-cost-1.5", "tune", lambda s: play(s, (3, 7), oblong(1.5, 3, 7)))
zoo.sick(
    "oblong-3-by-7",
    "tune",
    lambda s: play(s, (3, 7), oblong(0.0, 3, 7)),
    circles,
    "ROTATION",
    also=RUNS,
    control=calm_oblong,
)
zoo.sick(
    "pursuit-by-a-quarter-turn",
    "tune",
    lambda s: play(s, (2, 2), pursuit(0.0)),
    circles,
    "ROTATION",
    also=RUNS,
    control=calm_oblong,
)
calm_moments = zoo.healthy(
    "generator-and-critic-of-moments-with-penalty", "tune", lambda s: play(s, (2, 2), moments(2.0), 0.3)
)

zoo.sick(
    "generator-and-critic-of-moments",
    "tune",
    lambda s: play(s, (2, 2), moments(0.0), 0.3),
    circles,
    "ROTATION",
    also=RUNS,
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


zoo.healthy("three-firms-on-a-market", "tune", lambda s: play(s, (1, 1, 1), markets))
zoo.healthy("three-who-want-to-agree", "tune", lambda s: play(s, (4, 4, 4), consensus))
zoo.healthy("fit-against-a-dear-disturbance", "tune", lambda s: play(s, (5, 5), robust))
zoo.healthy("two-who-share-an-error", "tune", lambda s: play(s, (4, 4), together))
