# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and value networks, sick and healthy.

The environments are one-step: a state, an action, a reward that is known for every action. So the loss can be the exact
expected return, and "earns too little" can be measured.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo, costly
from validation.evidence import both, dead, judged, no_gradient
from validation.evidence_special import explores
from validation.evidence_training import diverges, gradient_norms_spread, trains
from validation.nets import mlp
from validation.setups import pair, pretrain, rated
from validation.tasks import Task
from validation.zoo_rl import Actor, actor, bandit, discrete, wide_actor

zoo = Zoo("rl", "policy")

# --- critics and value networks

zoo.sick(
    "critic-left-out-of-the-loss",
    "tune",
    lambda s: discrete(Actor(12, 5, 48), bandit(s, 12, 5, critic=False)),
    no_gradient("critic"),
    "DISCONNECTED",
    layer=("critic.0", "critic.2", "critic.4"),
    also={"DEAD"},
    control=actor,
)


def dead_critic(seed: int) -> Setup:
    model = Actor(16, 8, 64, nn.ReLU)
    nn.init.constant_(model.critic[2].bias, -10)
    return discrete(model, bandit(seed, 16, 8))


zoo.sick(
    "critic-with-a-dead-second-layer",
    "tune",
    dead_critic,
    both(dead("critic.3", 0.99), no_gradient("critic.0", "critic.2")),
    "DEAD",
    layer="critic.2",
    also={"DISCONNECTED", "VANISHING"},
    control=wide_actor,
)


class Importance:
    """Off-policy weights, with and without the cap that keeps their variance finite."""

    def __init__(self, seed: int, spread: float, cap: float) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.spread, self.cap = spread, cap

    def loss(self, output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        logits, value = output
        reward = logits.softmax(-1).gather(1, best[:, None]).squeeze(1)
        weight = (self.spread * torch.randn(len(best), generator=self.random)).exp().clamp_max(self.cap)
        return (weight * (1 - reward)).mean() + 0.5 * (weight * (value - reward.detach()).square()).mean()


def off_policy(seed: int, cap: float) -> Setup:
    task = bandit(seed, 16, 8, 64).with_loss(Importance(seed, 5.0, cap).loss)
    return discrete(Actor(16, 8, 64, nn.ReLU), task, steps=60)


capped = zoo.healthy(
    "importance-weights-capped", "tune", lambda s: off_policy(s, 2.0), trains(lr=1e-2, steps=60, fall=0.05)
)
zoo.sick(
    "importance-weights-without-cap",
    "tune",
    lambda s: off_policy(s, math.inf),
    gradient_norms_spread(40),
    "UNSTABLE",
    "EXPLODING",
    control=capped,
)


class QNetwork(nn.Module):
    """Values of the actions in a state and the next, the latter by a frozen copy."""

    def __init__(self, dim: int, actions: int, width: int, frozen: bool = True, dueling: bool = False) -> None:
        super().__init__()
        self.frozen = frozen
        self.online = mlp([dim, width, width, actions + int(dueling)])
        self.target = mlp([dim, width, width, actions + int(dueling)]).requires_grad_(False)
        self.target.load_state_dict(self.online.state_dict())
        self.dueling = dueling

    def values(self, net: nn.Module, state: Tensor) -> Tensor:
        out = net(state)
        if not self.dueling:
            return out
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)

    def forward(self, state: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            ahead = self.values(self.target if self.frozen else self.online, following)
        return self.values(self.online, state), ahead


def chain(seed: int, dim: int, actions: int, scale: float = 1.0, batch: int = 64) -> Task:
    """Random transitions with a reward that depends on state and action."""
    codes = torch.randn(actions, dim, generator=torch.Generator().manual_seed(seed + 7)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state = torch.randn(batch, dim, generator=random)
        following = 0.9 * state + 0.4 * torch.randn(batch, dim, generator=random)
        action = torch.randint(actions, (batch,), generator=random)
        return (state, following), (action, scale * (state @ codes.T).gather(1, action[:, None]).squeeze(1))

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        values, ahead = output
        action, reward = target
        chosen = values.gather(1, action[:, None]).squeeze(1)
        return F.mse_loss(chosen, reward + 0.9 * ahead.amax(dim=1))

    return Task(seed, draw, loss)


value_net = zoo.healthy(
    "q-learning-with-frozen-target",
    "tune",
    lambda s: pair(QNetwork(8, 4, 48), chain(s, 8, 4)),
    trains(lr=3e-3),
    analyzer="general",
)
zoo.healthy(
    "dueling-q-learning",
    "tune",
    lambda s: pair(QNetwork(10, 3, 56, dueling=True), chain(s, 10, 3)),
    trains(lr=3e-3),
    analyzer="general",
)
zoo.sick(
    "q-learning-rewards-in-thousands-sgd",
    "tune",
    lambda s: rated(QNetwork(8, 4, 48), chain(s, 8, 4, 1000.0), "SGD", 0.1, 30),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    analyzer="general",
    control=value_net,
)

# --- healthy policies that know something


def half_sure(seed: int, dim: int, actions: int, steps: int) -> Setup:
    """Half-way through training: sure in clear states, undecided in others."""
    setup = discrete(Actor(dim, actions, 48), bandit(seed, dim, actions))
    return pretrain(setup, steps, 1e-2)


class Masked(nn.Module):
    """Forbids half of the actions, by state."""

    def __init__(self, dim: int, actions: int) -> None:
        super().__init__()
        self.actor = Actor(dim, actions, 48)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = self.actor(state)
        forbidden = torch.arange(logits.shape[1]) % 2 == (state[:, :1] > 0).long()
        return logits.masked_fill(forbidden, -1e9), value


def masked(seed: int) -> Setup:
    return discrete(Masked(12, 8), bandit(seed, 12, 8))


def finished(seed: int) -> Setup:
    """Nearly deterministic and right: the return is at its best, and the user reports it."""
    setup = pretrain(half_sure(seed, 4, 3, 150), 80, 3e-3)
    return replace(setup, hints={"returns": [mean_reward(setup) for _ in range(20)], "max_return": 1.0})


def mean_reward(setup: Setup) -> float:
    """How often the good action is taken in one batch."""
    with torch.no_grad():
        return 1 - setup.loss_fn(setup.model(setup.input_fn())).item()


def earns(at_least: float) -> Proof:
    """The policy takes the good action nearly always."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        reward = sum(mean_reward(setup) for _ in range(10)) / 10
        return judged(reward >= at_least, "mean reward {:.3f}", reward)

    return costly(proof)


IMPROVES = trains(lr=1e-3, fall=0.02)
zoo.healthy("policy-half-way", "tune", lambda s: half_sure(s, 12, 5, 15), both(explores(0.2, 0.9), IMPROVES))
zoo.healthy(
    "policy-two-thirds-of-the-way", "tune", lambda s: half_sure(s, 10, 6, 25), both(explores(0.1, 0.9), IMPROVES)
)
zoo.healthy("masked-actions", "tune", masked, trains(lr=1e-2, fall=0.05))
zoo.healthy("finished-policy-with-returns", "tune", finished, earns(0.93))
