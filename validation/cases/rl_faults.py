# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and value networks with the faults that any network may have, and their twins.

Half: tune.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.rl_exploration import actor, shared, wide_actor
from validation.evidence.signal import both, dead, no_gradient, not_finite
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread, trains
from validation.labels import DEADENS, JUMPS, RUNS_AWAY
from validation.nets import Actor, Shared, mlp
from validation.setups import discrete, pair, rated, rated_policy
from validation.tasks import bandit, chain, choices, every

zoo = Zoo("rl", half="tune", analyzer="policy", proof=trains(lr=1e-2))


# --- critics and value networks

zoo.sick(
    "critic-left-out-of-the-loss",
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
    dead_critic,
    both(dead("critic.3", 0.99), no_gradient("critic.0", "critic.2")),
    "DEAD",
    layer="critic.2",
    also=DEADENS,
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


capped = zoo.healthy("importance-weights-capped", lambda s: off_policy(s, 2.0), trains(lr=1e-2, steps=60, fall=0.05))
zoo.sick(
    "importance-weights-without-cap",
    lambda s: off_policy(s, math.inf),
    gradient_norms_spread(40),
    *JUMPS,
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


value_net = zoo.healthy(
    "q-learning-with-frozen-target",
    lambda s: pair(QNetwork(8, 4, 48), chain(s, 8, 4)),
    trains(lr=3e-3),
    analyzer="general",
)
zoo.healthy(
    "dueling-q-learning",
    lambda s: pair(QNetwork(10, 3, 56, dueling=True), chain(s, 10, 3)),
    trains(lr=3e-3),
    analyzer="general",
)
zoo.sick(
    "q-learning-rewards-in-thousands-sgd",
    lambda s: rated(QNetwork(8, 4, 48), chain(s, 8, 4, 1000.0), "SGD", 0.1, 30),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    analyzer="general",
    control=value_net,
)

# --- policies


def ratio(seed: int, clipped: bool) -> Setup:
    """A surrogate with stale probabilities: exp of a difference of logs overflows, unless it is bounded first."""
    old = torch.Generator().manual_seed(seed)

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        best = pay.argmax(dim=1, keepdim=True)
        before = -0.5 - 260.0 * (torch.rand(best.shape, generator=old) < 0.05)
        change = logits.log_softmax(dim=1).gather(1, best) - before
        gain = change.clamp(-1, 1).exp() if clipped else change.exp()
        return -gain.mean() + 0.1 * (value - pay.amax(dim=1)).square().mean()

    return discrete(Shared(14, 10, 56), choices(seed, 14, 10).with_loss(loss))


bounded = zoo.healthy("surrogate-with-bounded-ratio", lambda s: ratio(s, True))
zoo.sick(
    "surrogate-ratio-overflows",
    lambda s: ratio(s, False),
    not_finite(batches=4),
    "NUMERICAL",
    "EXPLODING",
    also={"UNSTABLE"},
    control=bounded,
)


def detached(seed: int) -> Setup:
    """The surrogate is built from probabilities that were stored, so only the critic learns."""

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        stored = logits.detach().softmax(dim=1)
        return 1 - (stored * pay).sum(dim=1).mean() + 0.5 * (value - pay.amax(dim=1)).square().mean()

    return discrete(Shared(14, 10, 56), choices(seed, 14, 10).with_loss(loss))


zoo.sick(
    "policy-head-only-through-stored-probabilities",
    detached,
    no_gradient("logits"),
    "DISCONNECTED",
    layer="logits",
    also={"DEAD"},
    control=shared,
)


def dead_trunk(seed: int) -> Setup:
    model = Shared(14, 10, 56, nn.ReLU)
    nn.init.constant_(model.trunk[2].bias, -25)
    return discrete(model, choices(seed, 14, 10))


zoo.sick(
    "shared-trunk-second-layer-dead",
    dead_trunk,
    both(dead("trunk.3", 0.99), no_gradient("trunk")),
    "DEAD",
    layer="trunk.2",
    also={"DISCONNECTED", "VANISHING", "EXPLORATION"},
    control=shared,
)


def jackpots(seed: int, size: float) -> Setup:
    """In one batch of twenty a single state pays thousands of times as much, and the critic has to follow."""
    now = every(20, 9)

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        prize = torch.ones(len(pay))
        prize[5] += size if now() else 0.0
        earned = (logits.softmax(dim=-1) * pay).sum(dim=1) * prize
        return -earned.mean() + 0.5 * (value - earned.detach()).square().mean()

    return discrete(Shared(14, 10, 56), choices(seed, 14, 10).with_loss(loss), steps=60)


even = zoo.healthy("pay-without-jackpots", lambda s: jackpots(s, 0.0))
zoo.sick("jackpots-in-one-batch-of-twenty", lambda s: jackpots(s, 1e5), gradient_norms_spread(30), *JUMPS, control=even)


def learning(seed: int, kind: str, lr: float) -> Setup:
    return rated_policy(Shared(14, 10, 56), choices(seed, 14, 10), kind, lr)


adam = zoo.healthy("shared-trunk-adam-3e-3", lambda s: learning(s, "Adam", 3e-3), trains(steps=60))
zoo.sick(
    "shared-trunk-adam-20",
    lambda s: learning(s, "Adam", 20.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    also={"DEAD", "SATURATION", "NUMERICAL"},
    control=adam,
)
zoo.sick("shared-trunk-sgd-1e-8", lambda s: learning(s, "SGD", 1e-8), does_not_move(), "SLOW", control=adam)
