# ruff: noqa: D102 - a forward is explained by its class
"""Players whose moves are their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

Rules = Callable[..., tuple[Tensor, ...]]
"""Moves of all players and a batch → the loss of each player."""


class Game(nn.Module):
    """Two players with a vector each; the output holds both losses."""

    def __init__(self, rules: Rules, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.rules = rules

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.rules(self.first, self.second, batch)


class Players(nn.Module):
    """Several players with a vector each; the output holds all losses."""

    def __init__(self, rules: Rules, starts: Sequence[Tensor]) -> None:
        super().__init__()
        self.moves = nn.ParameterList(nn.Parameter(start) for start in starts)
        self.rules = rules

    def forward(self, batch: Tensor) -> tuple[Tensor, ...]:
        return self.rules(*self.moves, batch)


def zero_sum(matrix: Tensor, cost: float) -> Rules:
    """x'Ay for one, -x'Ay for the other, each with a quadratic cost for its own move."""

    def rules(x: Tensor, y: Tensor, _batch: Tensor) -> tuple[Tensor, Tensor]:
        value = x @ matrix @ y
        return value + cost / 2 * x.square().sum(), -value + cost / 2 * y.square().sum()

    return rules
