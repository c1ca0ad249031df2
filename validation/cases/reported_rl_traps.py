# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and values that learn, some with what people in threads took for a fault.

Half: reported.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._reported_policies import (
    ActorCritic,
    Climber,
    Gaussian,
    Separate,
    Target,
    Values,
    a2c,
    adverts,
    bellman,
    best_grip,
    by_density,
    climb,
    gripper,
    lift,
    missed,
    policy_of,
    ppo,
    reinforce,
    values,
)
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain
from validation.tasks import Task

zoo = Zoo("rl", half="reported", analyzer="policy", proof=thrives(0.3, most_dead=0.4, measure=missed))


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.4), analyzer="general")


# --- a few actions

# tensorforce/tensorforce#581: at the start all actions are alike, which a small last layer is meant to do.
zoo.healthy("adverts-ppo-separate-nets-small-last-layer", lambda s: adverts(s, Separate(), ppo()))
zoo.healthy("lift-ppo-separate-nets-orthogonal", lambda s: lift(s, Separate(3, 3)))
# ai.stackexchange 41279: with a baseline the loss is close to zero all the time.
zoo.healthy("lift-reinforce-loss-around-zero", lambda s: lift(s, loss=reinforce(), lr=8e-3, steps=90))
# Unity-Technologies/ml-agents#281 read the other way: the entropy goes to zero because the choice is clear.
zoo.healthy("adverts-a2c-becomes-certain", lambda s: adverts(s, ActorCritic(act=nn.Tanh), a2c(0.0), lr=1e-2, steps=120))
zoo.healthy("lift-a2c-rmsprop-clipped-at-0.5", lambda s: lift(s, loss=a2c(), kind="RMSprop", lr=3e-3, clip=0.5))
zoo.healthy("adverts-ppo-rate-falls-to-zero", lambda s: adverts(s, loss=ppo(0.1), rate=lambda t: 1 - t / 91))
zoo.healthy("adverts-a2c-batches-of-12", lambda s: adverts(s, loss=a2c(0.02), batch=12, lr=2e-3, steps=120))
# DLR-RM/stable-baselines3#1533: the loss of the critic is far above that of the actor.
zoo.healthy(
    "lift-ppo-critic-rules-the-loss",
    lambda s: lift(s, Separate(3, 3), lambda o, t: ppo()(o, (t[0], 8 * t[1], t[2])), steps=90),
)


class Embedded(nn.Module):
    """Two kinds beside four numbers; a norm behind the body."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.norm = nn.Embedding(8, 4), nn.LayerNorm(64)
        self.fc, self.pi, self.v = nn.Linear(14, 64), nn.Linear(64, 6), nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        kind = ((state[:, :2] + 2).clamp(0, 3.99) * 2).long()
        h = torch.cat([self.kinds(kind).flatten(1), state], dim=1)
        h = F.gelu(self.norm(self.fc(h)))
        return self.pi(h), self.v(h).squeeze(-1)


zoo.healthy("adverts-ppo-embeddings-layer-norm", lambda s: adverts(s, Embedded(), ppo()))


class Wide(ActorCritic):
    """Rotated states, a wide body."""

    def __init__(self) -> None:
        super().__init__(width=160, act=nn.LeakyReLU)


zoo.healthy("adverts-ppo-wide-leaky", lambda s: adverts(s, Wide(), ppo(), kind="AdamW", lr=2e-3))


def kept_body(seed: int) -> Setup:
    """The body comes from an earlier job and is frozen."""
    model = ActorCritic()
    pretrain(adverts(seed, model), 50)
    nn.init.normal_(model.pi.weight, std=0.01)
    return adverts(seed, frozen(model, "fc1", "fc2"), lr=1e-2)


zoo.healthy("adverts-a2c-frozen-body", kept_body)


def imitate(seed: int) -> Setup:
    """Learns what a rule does."""

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        gain = (target[1] > target[1].mean()).float()
        told = -policy_of(output).log_prob(target[0]) * gain
        return told.mean() + 0.5 * F.mse_loss(output[1], target[1])

    return adverts(seed, loss=loss, lr=5e-3, steps=110)


zoo.healthy("adverts-imitates-its-better-half", imitate)

# --- moves


# nikhilbarhate99/PPO-PyTorch#44 and #23: the deviation is no parameter and is lowered by and by.
class Lowered(Gaussian):
    """A deviation that is set from outside."""

    def __init__(self) -> None:
        super().__init__()
        del self.log_std
        self.level = 0.6

    def deviation(self, _h: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.level = max(0.1, self.level - 0.005)
        return torch.full((2,), self.level)


zoo.healthy("gripper-ppo-deviation-lowered", lambda s: gripper(s, Lowered()))
# Unity-Technologies/ml-agents#4901: the logarithm begins at zero, which is a deviation of one.
zoo.healthy("gripper-ppo-log-deviation-of-zero", lambda s: gripper(s, Gaussian(0.0), lr=8e-3, steps=110))


# denisyarats/pytorch_sac#7: a tanh holds the logarithm between two bounds.
class Between(Gaussian):
    """The deviation depends on the state."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Linear(48, 2)

    def deviation(self, h: Tensor) -> Tensor:
        return (-2.0 + 1.5 * torch.tanh(self.spread(h) + self.log_std + 0.8)).exp()


zoo.healthy("gripper-ppo-deviation-by-state", lambda s: gripper(s, Between()))
zoo.healthy("gripper-policy-gradient-clipped", lambda s: gripper(s, loss=by_density(0.001, None), clip=0.5))
zoo.healthy("gripper-ppo-elu-nadam", lambda s: gripper(s, Gaussian(act=nn.ELU), kind="NAdam", lr=3e-3))


# kvfrans.com, tanh with DDPG: the best moves lie at the bounds, and the actor is right to go there.
def bounds(seed: int) -> Setup:
    way = torch.randn(5, 2, generator=torch.Generator().manual_seed(seed + 400))
    return climb(seed, best=lambda state: (3 * state @ way).tanh(), lr=2e-3)


general("gripper-ddpg-best-moves-near-the-bounds", bounds, thrives(0.3, 0.5, missed))


class Pair(Climber):
    """Two critics, of which the actor climbs the lower one."""

    def __init__(self) -> None:
        super().__init__()
        self.other = tower([7, 64, 64, 1])

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        done, move = torch.cat([state, action], dim=1), torch.cat([state, self.move(state)], dim=1)
        told = sum(F.mse_loss(critic(done).squeeze(1), reward) for critic in (self.critic, self.other))
        for critic in (self.critic, self.other):
            critic.requires_grad_(False)
        liked = torch.min(self.critic(move), self.other(move)).mean()
        for critic in (self.critic, self.other):
            critic.requires_grad_(True)
        return told - 0.3 * liked


general("gripper-td3-two-critics", lambda s: climb(s, Pair()), thrives(0.3, 0.5, missed))

# --- values

general("lift-q-values-huber-slow-copy", lambda s: values(s, Values(follow=0.03), bellman(F.smooth_l1_loss)))
general("lift-q-values-clipped-at-1", lambda s: values(s, clip=1.0, kind="AdamW"))
general(
    "lift-q-values-discount-0.5-silu",
    lambda s: values(s, Values(tower([3, 64, 64, 3], nn.SiLU)), bellman(discount=0.5)),
)


class Duel(nn.Module):
    """A value and what each move adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.v, self.a = (
            nn.Sequential(tower([3, 64, 48]), nn.LeakyReLU()),
            nn.Linear(48, 1),
            nn.Linear(48, 3),
        )

    def forward(self, state: Tensor) -> Tensor:
        h = self.body(state)
        more = self.a(h)
        return self.v(h) + more - more.mean(dim=1, keepdim=True)


general("lift-q-values-dueling", lambda s: values(s, Values(Duel())))


# stats.stackexchange 315978: most rewards are zero, so most values are small.
def rare(seed: int) -> Setup:
    setup = values(seed, loss=bellman(scale=1.0), less=1.0, lr=3e-3)
    draw = setup.loss_fn.__self__._draw

    def seldom(random: torch.Generator):
        states, (action, reward) = draw(random)
        return states, (action, (reward > -0.1).float())

    setup.loss_fn.__self__._draw = seldom
    return setup


general("lift-q-values-rewards-mostly-zero", rare, thrives(0.2, most_dead=0.5))


def critic_alone(seed: int) -> Setup:
    """A critic learns what random moves of the gripper earn."""
    best = best_grip(seed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state, action = torch.randn(96, 5, generator=random), 2 * torch.rand(96, 2, generator=random) - 1
        return torch.cat([state, action], dim=1), -(action - best(state)).square().sum(dim=1, keepdim=True)

    return live(tower([7, 64, 64, 1], nn.Tanh), Task(seed, draw, F.mse_loss), "Adam", 5e-3, 100)


general("gripper-critic-alone", critic_alone)


def cloned(seed: int) -> Setup:
    """The density of shown moves is raised."""
    best = best_grip(seed)
    model = Gaussian(-0.5, nn.SiLU)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(96, 5, generator=random)
        return state, best(state) + 0.1 * torch.randn(96, 2, generator=random)

    def loss(output: tuple[Tensor, Tensor, Tensor], action: Tensor) -> Tensor:
        value = F.mse_loss(output[2], action.sum(dim=1))
        return 3 - Normal(output[0], output[1]).log_prob(action).mean() + value

    return live(model, Task(seed, draw, loss), "Adam", 5e-3, 100)


general("gripper-cloned-from-shown-moves", cloned)
