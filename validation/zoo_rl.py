# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and value networks, sick and healthy.

The environments are one-step: a state, an action, a reward that is known for every action. So the loss can be the exact
expected return, and "earns too little" can be measured.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import saturated
from validation.evidence_special import explores, stays_even
from validation.evidence_training import trains
from validation.nets import he_, mlp, scale_
from validation.setups import pair, pretrain
from validation.tasks import Task

zoo = Zoo("rl", "policy")


# --- discrete actions


class Actor(nn.Module):
    """Logits of the actions and the value of the state, from separate networks."""

    def __init__(self, dim: int, actions: int, width: int, act=nn.Tanh, temperature: float = 1.0) -> None:
        super().__init__()
        self.policy = mlp([dim, width, width, actions], act)
        self.critic = mlp([dim, width, width, 1], act)
        self.temperature = temperature

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(state) / self.temperature, self.critic(state).squeeze(-1)


def discrete_extractor(output: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    """Logits, no deviation, no mean, value."""
    return output[0], None, None, output[1]


def bandit(seed: int, dim: int, actions: int, batch: int = 128, critic: bool = True) -> Task:
    """Each state has one good action. The loss is one minus the expected reward, and the critic's error."""
    codes = torch.randn(actions, dim, generator=torch.Generator().manual_seed(seed + 7))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, (state @ codes.T).argmax(dim=1)

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        logits, value = output
        reward = logits.softmax(-1).gather(1, best[:, None]).squeeze(1)
        error = (value - reward.detach()).square().mean() if critic else 0.0
        return 1 - reward.mean() + 0.5 * error

    return Task(seed, draw, loss)


def discrete(model: nn.Module, task: Task, **more) -> Setup:
    return pair(model, task, kwargs={"action_extractor": discrete_extractor}, **more)


actor = zoo.healthy(
    "actor-critic-at-init", "tune", lambda s: discrete(Actor(12, 5, 48), bandit(s, 12, 5)), trains(lr=1e-2)
)
wide_actor = zoo.healthy(
    "actor-critic-8-actions-relu",
    "tune",
    lambda s: discrete(Actor(16, 8, 64, nn.ReLU), bandit(s, 16, 8)),
    trains(lr=1e-2),
)


def scaled_head(model: Actor, factor: float) -> Actor:
    scale_(model.policy[-1], factor)
    return model


zoo.sick(
    "logits-times-300-before-learning",
    "tune",
    lambda s: discrete(scaled_head(Actor(12, 5, 48), 300.0), bandit(s, 12, 5)),
    explores(0, 0.1, 0.6),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    layer=("policy.4",),
    also={"SATURATION", "VANISHING"},
    control=actor,
)


def one_action(model: Actor, action: int, lead: float) -> Actor:
    with torch.no_grad():
        model.policy[-1].bias[action] += lead
    return model


zoo.sick(
    "one-action-everywhere",
    "tune",
    lambda s: discrete(one_action(Actor(16, 8, 64, nn.ReLU), 3, 12.0), bandit(s, 16, 8)),
    explores(0, 0.02, 0.6),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    layer=("policy.4",),
    also={"SATURATION", "VANISHING"},
    control=wide_actor,
)


def greedy_too_early(seed: int) -> Setup:
    """Trained fast on a wrong reward until the policy is sure of it, then given the right one."""
    model = Actor(10, 6, 40, nn.SiLU)
    pretrain(pair(model, bandit(seed + 99, 10, 6)), 60, 2e-2)
    scale_(model.policy[-1], 6.0)
    return discrete(model, bandit(seed, 10, 6))


zoo.sick(
    "sure-of-a-wrong-reward",
    "tune",
    greedy_too_early,
    explores(0, 0.1, 0.6),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    layer=("policy.4",),
    also={"SATURATION", "VANISHING"},
    control=wide_actor,
)
zoo.sick(
    "temperature-2000-stays-even",
    "tune",
    lambda s: rated_policy(Actor(12, 5, 48, temperature=2000.0), bandit(s, 12, 5), 1e-3),
    stays_even(60),
    "EXPLORATION",
    "VANISHING",
    "SLOW",
    control=actor,
)


def rated_policy(model: nn.Module, task: Task, lr: float, steps: int = 30) -> Setup:
    return discrete(model, task, optimizer=torch.optim.Adam(model.parameters(), lr=lr), steps=steps)


# --- continuous actions


class GaussianActor(nn.Module):
    """Mean and deviation of the actions; the deviation is a parameter or depends on the state."""

    def __init__(
        self, dim: int, actions: int, width: int, log_std: float, by_state: bool = False, squash: bool = False
    ):
        super().__init__()
        self.body = he_(mlp([dim, width, width])).append(nn.ReLU())
        self.mean = nn.Linear(width, actions)
        self.squash = nn.Tanh() if squash else nn.Identity()
        if by_state:
            self.spread = nn.Linear(width, actions)
            nn.init.constant_(self.spread.bias, log_std)
            scale_(self.spread, 0.3)
        else:
            self.log_std = nn.Parameter(torch.full((actions,), log_std))
        self.by_state = by_state

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        log_std = self.spread(h) if self.by_state else self.log_std.expand(len(state), -1)
        return self.squash(self.mean(h)), log_std.exp()


def gaussian_extractor(output: tuple[Tensor, Tensor]) -> tuple[None, Tensor, Tensor, None]:
    """No logits, deviation, mean, no value."""
    return None, output[1], output[0], None


def reach(seed: int, dim: int, actions: int, batch: int = 128) -> Task:
    """The best action is a smooth function of the state in [-1, 1]; the reward falls with the squared distance.

    A small entropy bonus, as usual, keeps the deviation from zero.
    """
    way = torch.randn(dim, actions, generator=torch.Generator().manual_seed(seed + 7)) / math.sqrt(dim)
    random_noise = torch.Generator().manual_seed(seed + 8)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, torch.tanh(state @ way)

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        mean, std = output
        action = mean + std * torch.randn(mean.shape, generator=random_noise)
        return (action - best).square().sum(-1).mean() - 0.01 * std.log().sum(-1).mean()

    return Task(seed, draw, loss)


def continuous(model: nn.Module, task: Task) -> Setup:
    hints = {"action_range": (-1.0, 1.0)}  # every user of an environment knows it
    return pair(model, task, kwargs={"action_extractor": gaussian_extractor}, hints=hints)


gaussian = zoo.healthy(
    "gaussian-log-std-0", "tune", lambda s: continuous(GaussianActor(10, 2, 48, 0.0), reach(s, 10, 2)), trains(lr=1e-2)
)
narrower = zoo.healthy(
    "gaussian-log-std-minus-1",
    "tune",
    lambda s: continuous(GaussianActor(8, 3, 40, -1.0, by_state=True), reach(s, 8, 3)),
    trains(lr=1e-2),
)
zoo.sick(
    "gaussian-log-std-minus-5",
    "tune",
    lambda s: continuous(GaussianActor(10, 2, 48, -5.0), reach(s, 10, 2)),
    explores(0, 0.02, 0.3),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    control=gaussian,
)
zoo.sick(
    "gaussian-log-std-3",
    "tune",
    lambda s: continuous(GaussianActor(10, 2, 48, 3.0), reach(s, 10, 2)),
    explores(10, 100, 10),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=gaussian,
)
zoo.sick(
    "gaussian-by-state-log-std-minus-4.5",
    "tune",
    lambda s: continuous(GaussianActor(8, 3, 40, -4.5, by_state=True), reach(s, 8, 3)),
    explores(0, 0.03, 0.3),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    control=narrower,
)
zoo.sick(
    "gaussian-by-state-log-std-2.5",
    "tune",
    lambda s: continuous(GaussianActor(8, 3, 40, 2.5, by_state=True), reach(s, 8, 3)),
    explores(6, 100, 10),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=narrower,
)


def bang_bang(seed: int) -> Setup:
    """The squashed mean sits at its ends, where it has no slope."""
    model = GaussianActor(8, 3, 40, -1.0, squash=True)
    scale_(model.mean, 80.0)
    return continuous(model, reach(seed, 8, 3))


squashed = zoo.healthy(
    "squashed-mean",
    "tune",
    lambda s: continuous(GaussianActor(8, 3, 40, -0.7, squash=True), reach(s, 8, 3)),
    trains(lr=1e-2),
)
zoo.sick(
    "squashed-mean-at-its-ends",
    "tune",
    bang_bang,
    saturated("squash", "tanh", 0.8),
    "SATURATION",
    "EXPLORATION",
    "VANISHING",
    layer=("mean", "squash"),
    control=squashed,
)
