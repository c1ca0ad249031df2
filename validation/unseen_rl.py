# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies with faults, and their twins: shared trunks, masks, other action ranges. Set aside.

As in the other files on policies the environments have one step, so that what a policy earns can be measured.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, saturated
from validation.evidence_special import explores
from validation.evidence_training import learns_less, trains
from validation.nets import Activation, he_, mlp, scale_
from validation.setups import pair
from validation.tasks import Task

zoo = Zoo("rl", "policy", trains(lr=1e-2))

# --- discrete actions


class Shared(nn.Module):
    """One trunk, a head for the logits, a head for the value; some actions may be forbidden by the state."""

    def __init__(self, dim: int, actions: int, width: int, act: Activation = nn.ELU, masked: bool = False) -> None:
        super().__init__()
        self.trunk = he_(mlp([dim, width, width], act)).append(act())
        self.logits, self.value, self.masked = nn.Linear(width, actions), nn.Linear(width, 1), masked

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(state)
        logits = self.logits(h)
        if self.masked:
            blocked = (torch.arange(logits.shape[1]) + (state[:, :1] > 0).long()) % 3 == 0
            logits = logits.masked_fill(blocked, -1e9)
        return logits, self.value(h).squeeze(-1)


def of_logits(output: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    """Logits, no deviation, no mean, value."""
    return output[0], None, None, output[1]


def choices(seed: int, dim: int, actions: int, batch: int = 96) -> Task:
    """Each state pays more for some actions than for others, from 0 to 1; loss is 1 - expected pay + critic's error."""
    codes = torch.randn(actions, dim, generator=torch.Generator().manual_seed(seed + 11))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, (2 * state @ codes.T).softmax(dim=1)

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        earned = (logits.softmax(dim=-1) * pay / pay.amax(dim=1, keepdim=True)).sum(dim=1)
        return 1 - earned.mean() + 0.25 * (value - earned.detach()).square().mean()

    return Task(seed, draw, loss)


def discrete(model: nn.Module, task: Task, **more) -> Setup:
    return pair(model, task, kwargs={"action_extractor": of_logits}, **more)


STUCK = ("EXPLORATION", "ENTROPY_COLLAPSE")
ALSO = {"SATURATION", "VANISHING", "EXPLODING"}
shared = zoo.healthy("shared-trunk-10-actions", "tune", lambda s: discrete(Shared(14, 10, 56), choices(s, 14, 10)))


@torch.no_grad()
def fond_of(model: Shared, action: int, lead: float) -> Shared:
    model.logits.bias[action] += lead
    return model


zoo.sick(
    "shared-trunk-always-does-nothing",
    "tune",
    lambda s: discrete(fond_of(Shared(14, 10, 56), 0, 15.0), choices(s, 14, 10)),
    explores(0, 0.02, 0.6),
    *STUCK,
    layer="logits",
    also=ALSO,
    control=shared,
)


def scaled(model: Shared, factor: float) -> Shared:
    scale_(model.logits, factor)
    return model


masked = zoo.healthy("masked-12-actions", "tune", lambda s: discrete(Shared(9, 12, 40, masked=True), choices(s, 9, 12)))
zoo.sick(
    "masked-12-actions-logits-times-400",
    "tune",
    lambda s: discrete(scaled(Shared(9, 12, 40, masked=True), 400.0), choices(s, 9, 12)),
    explores(0, 0.05, 0.5),
    *STUCK,
    layer="logits",
    also=ALSO,
    control=masked,
)


def hot_trunk(seed: int) -> Setup:
    """Observations in raw units blow up the trunk, and with it the logits."""
    return discrete(Shared(14, 10, 56, nn.LeakyReLU), choices(seed, 14, 10).mapped(lambda x: x * 150))


zoo.sick(
    "shared-trunk-observations-in-raw-units",
    "tune",
    hot_trunk,
    explores(0, 0.05, 0.5),
    *STUCK,
    also=ALSO | {"UNSTABLE"},
    control=shared,
)

# --- continuous actions


class Mover(nn.Module):
    """Mean and deviation of a Gaussian over moves, the mean bounded by `reach`."""

    def __init__(self, dim: int, moves: int, reach: float, std: float) -> None:
        super().__init__()
        self.body = mlp([dim, 44, 44], nn.SiLU).append(nn.SiLU())
        self.mean, self.squash = nn.Linear(44, moves), nn.Tanh()
        self.log_std, self.reach = nn.Parameter(torch.full((moves,), math.log(std))), reach

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.reach * self.squash(self.mean(self.body(state)))
        return mean, self.log_std.exp().expand_as(mean)


def of_moves(output: tuple[Tensor, Tensor]) -> tuple[None, Tensor, Tensor, None]:
    """No logits, deviation, mean, no value."""
    return None, output[1], output[0], None


def moves(seed: int, dim: int, count: int, reach: float) -> Task:
    """The best move is a bounded function of the state; the loss is the squared distance in units of the range."""
    way = torch.randn(dim, count, generator=torch.Generator().manual_seed(seed + 12)) / math.sqrt(dim)
    noise = torch.Generator().manual_seed(seed + 13)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(96, dim, generator=random)
        return state, reach * torch.tanh(1.5 * state @ way)

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        mean, std = output
        action = mean + std * torch.randn(mean.shape, generator=noise)
        return ((action - best) / reach).square().sum(dim=-1).mean() - 0.01 * (std / reach).log().sum(dim=-1).mean()

    return Task(seed, draw, loss)


def mover(seed: int, reach: float, share: float, factor: float = 1.0) -> Setup:
    """`share` is the deviation in units of the range."""
    model = Mover(11, 4, reach, share * reach)
    scale_(model.mean, factor)
    hints = {"action_range": (-reach, reach)}
    return pair(model, moves(seed, 11, 4, reach), kwargs={"action_extractor": of_moves}, hints=hints)


small = zoo.healthy("moves-of-a-tenth-deviation-0.05", "tune", lambda s: mover(s, 0.1, 0.5))
large = zoo.healthy("moves-of-fifty-deviation-20", "tune", lambda s: mover(s, 50.0, 0.4))
zoo.sick(
    "moves-of-fifty-deviation-0.1",
    "tune",
    lambda s: mover(s, 50.0, 0.002),
    explores(0, 0.2, 0.5),
    *STUCK,
    control=large,
)
zoo.sick(
    "moves-of-a-tenth-deviation-2",
    "tune",
    lambda s: mover(s, 0.1, 20.0),
    explores(1.5, 2.5, 100),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=small,
)
zoo.sick(
    "moves-of-fifty-mean-at-its-ends",
    "tune",
    lambda s: mover(s, 50.0, 0.4, 300.0),
    both(saturated("squash", "tanh", 0.85), learns_less(lr=1e-2, by=0.1)),
    "SATURATION",
    "EXPLORATION",
    "VANISHING",
    layer=("mean", "squash"),
    also={"EXPLODING"},
    control=large,
)
