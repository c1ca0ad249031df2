# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and values that learn, some with what people in threads took for a fault.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._reported_policies import (
    ActorCritic,
    Climber,
    Gaussian,
    Separate,
    Values,
    a2c,
    bellman,
    climb,
    gripper,
    missed,
    ppo,
    reinforce,
    values,
)
from validation.cases._threads_policies import fixed_deviation, robot
from validation.evidence import thrives
from validation.setups import frozen, pretrain

zoo = Zoo("rl", half="threads", analyzer="policy", proof=thrives(0.3, most_dead=0.4, measure=missed))


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.4), analyzer="general")


# DLR-RM/stable-baselines3#466: should the entropy loss go to zero? The policy becomes certain, for it is right.
zoo.healthy(
    "robot-a2c-becomes-certain", lambda s: robot(s, ActorCritic(8, 5, act=nn.Tanh), a2c(0.0), lr=1e-2, steps=120)
)
# a bonus for entropy that keeps some choice open
zoo.healthy("robot-ppo-bonus-of-a-twentieth", lambda s: robot(s, ActorCritic(8, 5), ppo(bonus=0.05), lr=4e-3))
zoo.healthy("robot-ppo-separate-nets-small-last-layer", lambda s: robot(s, Separate(8, 5), ppo(), lr=3e-3))
zoo.healthy(
    "robot-reinforce-with-baseline-noisy",
    lambda s: robot(s, ActorCritic(8, 5), reinforce(), batch=32, lr=4e-3, steps=110),
)
zoo.healthy(
    "robot-a2c-clipped-rmsprop",
    lambda s: robot(s, ActorCritic(8, 5, act=nn.Tanh), a2c(), kind="RMSprop", lr=3e-3, clip=0.3),
)
zoo.healthy(
    "robot-ppo-eight-hidden-units",
    lambda s: robot(s, ActorCritic(8, 5, width=8, act=nn.Tanh), ppo(), lr=1e-2, steps=110),
)
zoo.healthy(
    "robot-ppo-rate-falls",
    lambda s: robot(s, ActorCritic(8, 5, act=nn.SiLU), ppo(0.1), lr=5e-3, rate=lambda t: 1 - t / 95),
)
zoo.healthy(
    "robot-ppo-rewards-of-a-hundredth", lambda s: robot(s, ActorCritic(8, 5), ppo(bonus=0.003), pay=lambda r: r / 100)
)


def tuned(seed: int) -> Setup:
    model = ActorCritic(8, 5)
    pretrain(robot(seed, model), 40)
    nn.init.normal_(model.pi.weight, std=0.01)
    nn.init.zeros_(model.pi.bias)
    return robot(seed, frozen(model, "fc1", "fc2"), ppo(), lr=1e-2)


zoo.healthy("robot-ppo-frozen-body", tuned)


class Noted(nn.Module):
    """A layer norm behind the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 64)
        self.pi, self.v = nn.Linear(64, 5), nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.fc2(torch.tanh(self.norm(self.fc1(state)))))
        return self.pi(h), self.v(h).squeeze(-1)


zoo.healthy("robot-ppo-layer-norm", lambda s: robot(s, Noted(), ppo(), lr=3e-3))

# nikhilbarhate99/PPO-PyTorch#44: a deviation that does not learn is fine, if it is of the size of the moves.
zoo.healthy("gripper-ppo-fixed-deviation-of-0.3", lambda s: gripper(s, fixed_deviation(0.3), lr=3e-3))
zoo.healthy("gripper-ppo-silu-deviation-learns", lambda s: gripper(s, Gaussian(-0.7, nn.SiLU), lr=4e-3))
# floodsung/DDPG#17: tanh at the end of an actor is no fault by itself.
general("gripper-ddpg-wide-actor", lambda s: climb(s, Climber(width=128), lr=1e-3), thrives(0.3, 0.5, missed))

# tychovdo/PacmanDQN#1: values that rise slowly and are negative at first.
general("lift-q-values-negative-rewards-huber", lambda s: values(s, loss=bellman(F.smooth_l1_loss), less=2.0, lr=3e-3))
general(
    "lift-q-values-tanh-slow-copy", lambda s: values(s, Values(tower([3, 64, 64, 3], nn.Tanh), follow=0.05), lr=4e-3)
)
general("lift-q-values-sixteen-units", lambda s: values(s, Values(tower([3, 16, 16, 3], nn.LeakyReLU)), lr=6e-3))
