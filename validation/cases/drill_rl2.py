# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Agents of other kinds: bandits, a body that actor and critic share, squashed moves, values; sick and healthy.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.drill_rl import poorer
from validation.evidence import at_last, both, explores, flat_behind, lags, lasting, regret, thrives
from validation.labels import STUCK, SURE
from validation.nets import mlp
from validation.setups import choosing, live, of_logits, of_moves
from validation.tasks import moves, routes

zoo = Zoo("rl", half="drill", analyzer="policy", proof=thrives())


class Shared(nn.Module):
    """Actor and critic on one body; `cold` multiplies the logits, `cut` keeps the actor's gradient from the body."""

    def __init__(self, cold: float = 1.0, cut: bool = False, size: int = 48) -> None:
        super().__init__()
        self.body = mlp([10, size, size], nn.Tanh).append(nn.Tanh())
        self.actor, self.critic, self.cold, self.cut = nn.Linear(size, 6), nn.Linear(size, 1), cold, cut

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.cold * self.actor(h), self.critic(h).squeeze(1)


def advantage(bonus: float = 0.0):
    """What was earned beyond what the critic expected, the critic's error, and a bonus for entropy."""

    def loss(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        policy, value = torch.distributions.Categorical(logits=out[0]), out[1]
        action = policy.sample()
        earned = pay.gather(1, action[:, None]).squeeze(1)
        gain = (earned - value).detach()
        learned = (policy.log_prob(action) * gain).mean() + bonus * policy.entropy().mean()
        return 2 - learned + (earned - value).square().mean()

    return loss


def acted(seed: int, agent: nn.Module, loss=None, **more) -> Setup:
    task = routes(seed).with_loss(loss or advantage())
    return live(agent, task, kwargs={"action_extractor": of_logits}, **{"lr": 5e-3, "steps": 90, **more})


both_learn = zoo.healthy("roads-actor-and-critic", lambda s: acted(s, Shared()), thrives(0.1, measure=regret))
zoo.sick(
    "roads-actor-and-critic-bonus-of-25",
    lambda s: acted(s, Shared(), advantage(25.0), lr=2e-3),
    at_last(explores(0.99, 1.01)),
    "EXPLORATION",
    layer="actor",
    also={"VANISHING", "SLOW", "LOW_RANK", "BOTTLENECK"},
    control=both_learn,
)
zoo.sick(
    "roads-actor-and-critic-logits-times-900",
    lambda s: acted(s, Shared(900.0), lr=1e-3),
    both(lasting(explores(0, 0.06)), poorer(0.05, regret)),
    *STUCK,
    layer="actor",
    also={*SURE, "UNSTABLE", "DEAD"},
    control=both_learn,
)


class Values(nn.Module):
    """A value for every route; `narrow` numbers in the middle."""

    def __init__(self, narrow: int = 40, bias: float = 0.0) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(10, 40), nn.Linear(40, narrow), nn.Linear(narrow, 6)
        nn.init.constant_(self.middle.bias, bias)

    def forward(self, state: Tensor) -> Tensor:
        return self.last(F.relu(self.middle(F.relu(self.first(state)))))


def squared(values: Tensor, pay: Tensor) -> Tensor:
    """The value of one route that was tried at random."""
    action = torch.randint(6, (len(pay), 1))
    return F.smooth_l1_loss(values.gather(1, action), 3 * pay.gather(1, action))


def valued(seed: int, net: nn.Module, **more) -> Setup:
    return live(net, routes(seed).with_loss(squared), **{"lr": 5e-3, "steps": 80, **more})


values = zoo.healthy("roads-values-of-tried-routes", lambda s: valued(s, Values()))
zoo.sick(
    "roads-values-through-1-number",
    lambda s: valued(s, Values(1, 1.0)),
    lags(0.1),
    "BOTTLENECK",
    layer=("middle", "last"),
    also={"LOW_RANK"},
    control=values,
)


class Squashed(nn.Module):
    """A Gaussian behind a tanh; mean and deviation from one head; `low` is the least logarithm of the deviation."""

    def __init__(self, low: float = -3.0, start: float = 0.0, factor: float = 1.0) -> None:
        super().__init__()
        self.body, self.head, self.low = mlp([10, 48, 48], nn.SiLU).append(nn.SiLU()), nn.Linear(48, 6), low
        with torch.no_grad():
            self.head.bias[3:] = start
            self.head.weight[:3] *= factor

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.head(self.body(state)).chunk(2, dim=1)
        return 2 * torch.tanh(mean), log_std.clamp(self.low, 1.0).exp()


def steered(seed: int, pilot: nn.Module, **more) -> Setup:
    return live(
        pilot,
        moves(seed, 10, 3, 2.0),
        kwargs={"action_extractor": of_moves},
        hints={"action_range": (-2.0, 2.0)},
        **{"lr": 3e-3, "steps": 70, **more},
    )


pilot = zoo.healthy("wings-squashed-moves", lambda s: steered(s, Squashed(start=-1.0)))
zoo.sick(
    "wings-squashed-moves-mean-400-times",
    lambda s: steered(s, Squashed(start=-1.0, factor=400.0), lr=5e-4),
    lasting(flat_behind("head", "tanh", 0.4)),
    "SATURATION",
    "VANISHING",
    "EXPLORATION",
    layer="head",
    also={"EXPLODING", "UNSTABLE", "ENTROPY_COLLAPSE"},
    control=pilot,
)


class Bandit(nn.Module):
    """One number for each arm, whatever the state."""

    def __init__(self) -> None:
        super().__init__()
        self.arms = nn.Parameter(torch.zeros(6))

    def forward(self, state: Tensor) -> Tensor:
        return self.arms.expand(len(state), -1)


def paid(logits: Tensor, pay: Tensor) -> Tensor:
    """Arms that differ: the third is worth most."""
    worth = torch.tensor([0.1, 0.2, 0.9, 0.3, 0.2, 0.1]) + 0.1 * (pay - 0.5)
    policy = torch.distributions.Categorical(logits=logits)
    arm = policy.sample()
    got = worth.gather(1, arm[:, None]).squeeze(1)
    return 1 - got.mean() - (policy.log_prob(arm) * (got - got.mean())).mean()


def driven(seed: int, net: nn.Module, loss=None, **more) -> Setup:
    return choosing(net, routes(seed), loss, **{"steps": 70, **more})


def trusted(epsilon: float):
    """A clipped ratio to the policy of a moment ago."""

    def loss(logits: Tensor, pay: Tensor) -> Tensor:
        new = logits.log_softmax(dim=1)
        old = new.detach()
        action = torch.distributions.Categorical(logits=old).sample()[:, None]
        gain = pay.gather(1, action) - (old.exp() * pay).sum(dim=1, keepdim=True)
        ratio = (new - old).gather(1, action).exp()
        return 1 - torch.minimum(ratio * gain, ratio.clamp(1 - epsilon, 1 + epsilon) * gain).mean()

    return loss


class Gate(nn.Module):
    """Attention of a policy over its six offers."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.offers = mlp([10, 32, 16], nn.ELU), nn.Parameter(0.3 * torch.randn(6, 16))

    def forward(self, state: Tensor) -> Tensor:
        return self.ask(state) @ self.offers.T


def soft(logits: Tensor, pay: Tensor) -> Tensor:
    """Soft values: the entropy counts a tenth of what is earned."""
    p, log_p = logits.softmax(dim=1), logits.log_softmax(dim=1)
    return 1 + (p * (0.1 * log_p - pay)).sum(dim=1).mean()


zoo.healthy("arms-one-is-best", lambda s: driven(s, Bandit(), paid, lr=5e-2, steps=80), thrives(0.05))
zoo.healthy(
    "roads-clipped-ratio",
    lambda s: driven(s, mlp([10, 40, 40, 6], nn.Tanh), trusted(0.2)),
    thrives(0.05, measure=regret),
)
zoo.healthy("roads-offers-attended", lambda s: driven(s, Gate(), steps=80))
zoo.healthy("roads-soft-values", lambda s: driven(s, mlp([10, 40, 40, 6], nn.SiLU), soft), thrives(0.05))
zoo.healthy("roads-slow-start", lambda s: driven(s, mlp([10, 40, 6], nn.Tanh), lr=5e-4, steps=60), thrives(0.01))
zoo.healthy("roads-sgd", lambda s: driven(s, mlp([10, 40, 6], nn.Tanh), kind="SGD", lr=0.5, steps=80), thrives(0.03))
zoo.healthy("wings-narrow-at-the-end", lambda s: steered(s, Squashed(low=-2.5, start=-2.0)))
zoo.healthy(
    "roads-actor-and-critic-small-bonus", lambda s: acted(s, Shared(), advantage(0.01)), thrives(0.05, measure=regret)
)
