# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Policies, critics and values with mistakes that people reported, and what their threads arrived at.

Half: reported.
"""

from __future__ import annotations

from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._plain_nets import BLOWN
from validation.cases._reported_policies import (
    ActorCritic,
    Climber,
    Gaussian,
    Target,
    Values,
    a2c,
    adverts,
    best_grip,
    by_density,
    climb,
    earns_less,
    errs_more,
    finite,
    gains,
    gripper,
    lift,
    missed,
    of_gaussian,
    policy_of,
    ppo,
    reinforce,
    values,
)
from validation.evidence import (
    at_last,
    both,
    breaks,
    dead,
    diverges,
    explores,
    gradient_ratio,
    lags,
    lasting,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import RUNS_AWAY, STUCK, SURE
from validation.setups import live
from validation.tasks import Task

zoo = Zoo("rl", half="reported", analyzer="policy", proof=thrives(0.3, most_dead=0.5, measure=missed))
EVEN_TOO = {"SLOW", "VANISHING", "loss_stuck", "no_reward_variance", "ENTROPY_COLLAPSE"}
LOST = {*BLOWN, *STUCK, "UNSTABLE", "EXPLODING", "ENTROPY_COLLAPSE", "policy_entropy_collapse"}


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


# --- actions that stick to their bounds

# ZhihanLee/DDPG_Learning#2: states are fed as they are measured, in metres and degrees; they are to be normalised.
UNITS = torch.tensor([400.0, 90.0, 180.0, 30.0, 250.0])
scaled = general("gripper-ddpg-states-normalised", lambda s: climb(s), thrives(0.3, 0.6, missed))
zoo.sick(
    "gripper-ddpg-states-in-metres-and-degrees",
    lambda s: climb(s, see=lambda state: state * UNITS),
    both(at_last(saturated("squash", "tanh", 0.8)), earns_less),
    "SATURATION",
    "input_scales",
    "EXPLODING",
    "UNSTABLE",
    layer=("actor", "actor.4", "actor.0", "squash", "critic", "critic.0"),
    also={*BLOWN, "VANISHING", "SLOW", "EXPLORATION", "first_loss_high"},
    control=scaled,
    analyzer="general",
)


# floodsung/DDPG#6: what enters the last tanh is far too large, so every action is 1; all is drawn from N(0, 1).
def unbounded(seed: int) -> Setup:
    model = Climber(last=None)
    for i in (0, 2, 4):
        nn.init.normal_(model.actor[i].weight)
    return climb(seed, model)


zoo.sick(
    "gripper-ddpg-actor-drawn-from-a-unit-normal",
    unbounded,
    both(lasting(saturated("squash", "tanh", 0.7)), earns_less),
    "SATURATION",
    "EXPLODING",
    "VANISHING",
    layer=("actor", "actor.0", "actor.2", "actor.4", "squash"),
    also={*BLOWN, "UNSTABLE", "SLOW", "EXPLORATION", "first_loss_high"},
    control=scaled,
    analyzer="general",
)

# --- exploration

# MrSyee/pg-is-all-you-need#37, Kaixhin/ACER#2: the entropy is added to the loss with the sign that makes it fall.
right_sign = zoo.healthy("adverts-a2c-entropy-rewarded", lambda s: adverts(s, loss=a2c(0.05)))
zoo.sick(
    "adverts-a2c-entropy-of-the-wrong-sign",
    lambda s: adverts(s, loss=a2c(-1.0)),
    both(at_last(explores(0, 0.2)), earns_less),
    "ENTROPY_COLLAPSE",
    "EXPLORATION",
    "policy_entropy_collapse",
    also={*SURE, "UNSTABLE", "LOW_RANK", "BOTTLENECK", "DEAD", "loss_grows"},
    control=right_sign,
)

# openai/baselines#371 and #470: actions are cut off by the environment, and a bonus lets the deviation grow.
small_bonus = zoo.healthy("gripper-ppo-no-bonus", lambda s: gripper(s, limit=1.0))
zoo.sick(
    "gripper-ppo-bonus-lets-the-deviation-grow",
    lambda s: gripper(s, loss=by_density(1.0), limit=1.0, lr=2e-2),
    both(at_last(explores(2.5, 1e9)), earns_less),
    "EXPLORATION",
    "UNSTABLE",
    "EXPLODING",
    also={"SLOW", "VANISHING", "loss_stuck", "loss_grows", "no_reward_variance", "kl_runaway"},
    control=small_bonus,
)


# p-christ/Deep-Reinforcement-Learning-Algorithms-with-PyTorch#54, rail-berkeley/rlkit#75: the target is 0.98 of the
# largest entropy, so that the temperature grows for ever and the policy stays even.
class Soft(ActorCritic):
    """With a temperature that follows a target entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return *super().forward(state), (10 * self.log_alpha).exp()


def soft(seed: int, share: float) -> Setup:
    wanted = share * torch.tensor(6.0).log()

    def loss(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
        policy, alpha = policy_of(output[:2]), output[2]
        entropy = policy.entropy().mean()
        told = (policy.log_prob(target[0]) * (target[1] - output[1].detach())).mean()
        held = alpha * (entropy.detach() - wanted)
        return 0.5 * F.mse_loss(output[1], target[1]) - told - alpha.detach() * entropy + held

    setup = adverts(seed, Soft(), loss, lr=5e-3, steps=110)
    setup.kwargs["action_extractor"] = lambda out: (out[0], None, None, out[1])
    return setup


half_target = zoo.healthy("adverts-soft-target-of-0.3", lambda s: soft(s, 0.3))
zoo.sick(
    "adverts-soft-target-of-0.98",
    lambda s: soft(s, 0.98),
    both(at_last(explores(0.9, 1.0)), earns_less),
    "EXPLORATION",
    also={*EVEN_TOO, "EXPLODING", "UNSTABLE", "loss_grows"},
    control=half_target,
)


# rlworkgroup/garage#1357, tristandeleu/pytorch-maml-rl#32: probabilities are handed over as logits.
class Twice(ActorCritic):
    """A softmax at the end of the actor, before the one of the distribution."""

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = super().forward(state)
        return logits.softmax(dim=-1), value


once = zoo.healthy("adverts-ppo-logits", lambda s: adverts(s, loss=ppo()))
zoo.sick(
    "adverts-ppo-probabilities-as-logits",
    lambda s: adverts(s, Twice(), ppo()),
    both(lasting(explores(0.85, 1.0)), earns_less),
    "EXPLORATION",
    "double_softmax",
    "SATURATION",
    also={*EVEN_TOO, "DEAD", "BOTTLENECK", "LOW_RANK"},
    control=once,
)

# ai.stackexchange 41279 and many: all returns are positive and there is no baseline, so what is tried is learned.
centred = zoo.healthy("adverts-reinforce-returns-less-their-mean", lambda s: adverts(s, loss=reinforce(), lr=1e-2))
zoo.sick(
    "adverts-reinforce-returns-all-positive",
    lambda s: adverts(s, loss=reinforce(False), lr=1e-2, pay=lambda r: r + 10.0),
    both(at_last(explores(0, 0.3)), earns_less),
    "ENTROPY_COLLAPSE",
    "EXPLORATION",
    "policy_entropy_collapse",
    also={*SURE, "UNSTABLE", "LOW_RANK", "BOTTLENECK", "DEAD", "loss_grows", "no_reward_variance"},
    control=centred,
)

# --- numbers


# cpnota/autonomous-learning-library#139, philtabor/Actor-Critic-Methods-Paper-To-Code#7: the correction for tanh is
# computed from the action after it was multiplied by its bound, and the logarithm gets a negative number.
class Squashed(nn.Module):
    """A Gaussian through a tanh, times the bound of the action; a critic of states and actions."""

    def __init__(self, wrong: bool, clamp: bool = True, bound: float = 1.5, offset: float = -1.0) -> None:
        super().__init__()
        self.body = nn.Sequential(tower([5, 64, 64], nn.LeakyReLU), nn.LeakyReLU())
        self.mu, self.log_std, self.critic = nn.Linear(64, 2), nn.Linear(64, 2), tower([7, 64, 64, 1], nn.LeakyReLU)
        self.wrong, self.clamp, self.bound, self.offset = wrong, clamp, bound, offset

    def heads(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        log_std = self.log_std(h) + self.offset
        return self.mu(h), (log_std.clamp(-20, 2) if self.clamp else log_std).exp()

    def move(self, state: Tensor) -> Tensor:
        return self.bound * torch.tanh(self.mu(self.body(state)))

    def forward(self, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        told = self.critic(torch.cat([state, action], dim=1)).squeeze(1)
        mean, std = self.heads(state)
        raw = mean + std * torch.randn_like(mean)
        move = self.bound * torch.tanh(raw)
        inside = 1 - (move if self.wrong else torch.tanh(raw)).square() + 1e-6
        logp = (Normal(mean, std, validate_args=False).log_prob(raw) - inside.log()).sum(dim=1)
        self.critic.requires_grad_(False)
        liked = self.critic(torch.cat([state, move], dim=1)).squeeze(1)
        self.critic.requires_grad_(True)
        return F.mse_loss(told, reward) + (0.05 * logp - liked).mean()


right_log = general(
    "gripper-sac-correction-of-the-tanh", lambda s: climb(s, Squashed(False)), thrives(0.3, 0.5, missed)
)
zoo.sick(
    "gripper-sac-correction-of-the-scaled-action",
    lambda s: climb(s, Squashed(True), lr=4e-3),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    layer=("mu", "log_std", "body"),
    also=LOST,
    control=right_log,
    analyzer="general",
)

# timoklein/car_racer#8, leggedrobotics/rsl_rl#67: the logarithm of a deviation that depends on the state has no bounds,
# and states come as they are measured.
zoo.sick(
    "gripper-sac-log-deviation-unbounded",
    lambda s: climb(s, Squashed(False, clamp=False), see=lambda state: state * UNITS, lr=4e-3),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "EXPLODING",
    "input_scales",
    layer=("log_std", "body", "mu"),
    also={*LOST, "input_scales"},
    control=right_log,
    analyzer="general",
)


# amazon-far/holosoma#25, leggedrobotics/rsl_rl#190: the deviation itself is the parameter, and falls below zero.
class Raw(Gaussian):
    """The deviation is a parameter as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((2,), 0.3))

    def deviation(self, _h: Tensor) -> Tensor:
        return self.log_std


by_log = zoo.healthy("gripper-ppo-log-deviation", lambda s: gripper(s, Gaussian(-1.2), lr=2e-2))
zoo.sick(
    "gripper-ppo-deviation-below-zero",
    lambda s: gripper(s, Raw(), lr=2e-2),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "ENTROPY_COLLAPSE",
    "EXPLORATION",
    also={*LOST, "SATURATION"},
    control=by_log,
)


# tensorflow/agents#562: barred actions have a logit of minus infinity, and the entropy multiplies it by zero.
class Barred(ActorCritic):
    """What is not allowed gets a logit that is very low, or minus infinity."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = level

    def forward(self, state: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        logits, value = super().forward(state)
        return logits.masked_fill(~allowed, self.level), value


def with_entropy(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    logp = output[0].log_softmax(dim=-1)
    entropy = -(logp.exp() * logp).sum(dim=-1).mean()
    told = logp.gather(1, target[0][:, None])[:, 0] * (target[1] - output[1].detach())
    return 0.5 * F.mse_loss(output[1], target[1]) - told.mean() - 0.01 * entropy


low = zoo.healthy("adverts-barred-by-minus-1e9", lambda s: adverts(s, Barred(-1e9), with_entropy, allowed=True))
zoo.sick(
    "adverts-barred-by-minus-infinity",
    lambda s: adverts(s, Barred(-float("inf")), with_entropy, allowed=True),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also=LOST,
    control=low,
)


# DLR-RM/stable-baselines3#325, jolibrain/wheatley#93: the last minibatch has one row, whose deviation is undefined.
def leftovers(seed: int, guarded: bool) -> Setup:
    turn = count()

    def loss(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
        policy, gain = policy_of(output), target[1] - output[1].detach()
        if not guarded or len(gain) > 1:
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        ratio = (policy.log_prob(target[0]) - target[2]).exp()
        told = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return 0.5 * F.mse_loss(output[1], target[1]) - told - 0.01 * policy.entropy().mean()

    return adverts(seed, loss=loss, batch=lambda: 1 if next(turn) % 17 == 16 else 64)


guarded = zoo.healthy("adverts-ppo-one-row-not-normalised", lambda s: leftovers(s, True))
zoo.sick(
    "adverts-ppo-one-row-normalised",
    lambda s: leftovers(s, False),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={*LOST, "batch_size", "bad_batch"},
    control=guarded,
)


# ShangtongZhang/DeepRL#35, Unity-Technologies/ml-agents#4664: probabilities are computed first, their logarithm after.
def by_log_of_softmax(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    p = output[0].softmax(dim=-1)
    entropy = -(p * p.log()).sum(dim=-1).mean()
    told = p.gather(1, target[0][:, None])[:, 0].log() * (target[1] - output[1].detach())
    return 0.5 * F.mse_loss(output[1], target[1]) - told.mean() - 0.01 * entropy


zoo.sick(
    "adverts-log-of-a-softmax-that-is-zero",
    lambda s: adverts(s, loss=by_log_of_softmax, see=lambda x: 500 * x),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    "input_scales",
    also={*LOST, "SATURATION", "first_loss_high"},
    control=zoo.healthy("adverts-a2c-log-softmax", lambda s: adverts(s, loss=with_entropy)),
)

# --- values that run away, units that die


def in_thousands(output: tuple[Tensor, Tensor], target: Target) -> Tensor:
    return a2c(0.01)(output, (target[0], 3000 * target[1], target[2]))


# openai/baselines#362: returns of thousands are neither normalised nor clipped, and the critic shares its body.
shared = zoo.healthy(
    "lift-a2c-returns-normalised", lambda s: lift(s, ActorCritic(3, 3, act=nn.ELU), a2c(0.01), lr=3e-3)
)
zoo.sick(
    "lift-a2c-returns-in-thousands-sgd",
    lambda s: lift(s, ActorCritic(3, 3, act=nn.ELU), in_thousands, kind="SGD", lr=7e-4, momentum=0.9),
    breaks,
    *RUNS_AWAY,
    "loss_grows",
    "loss_nonfinite",
    also={*LOST, "rate_too_high", "input_scales", "first_loss_high"},
    control=shared,
)

# IDSIA/hhmarl_2D#15: logits of a categorical policy become not finite or random; the learning rate was far too high.
zoo.sick(
    "adverts-ppo-rate-3",
    lambda s: adverts(s, loss=ppo(), lr=3.0),
    both(diverges(3.0), earns_less),
    *RUNS_AWAY,
    "rate_too_high",
    also={*LOST, "clip_fraction_high", "kl_runaway"},
    control=once,
)

# meltycriss.com, "Dying ReLU" of a policy: its entropy stays that of an even choice, for nothing fires any more.
alive = zoo.healthy("lift-ppo-relu-rate-0.002", lambda s: lift(s, ActorCritic(3, 3, 32), lr=2e-3, steps=110))
zoo.sick(
    "lift-ppo-relu-rate-0.7",
    lambda s: lift(s, ActorCritic(3, 3, 32), lr=0.7, steps=110),
    both(at_last(dead("act2", 0.9)), earns_less),
    "DEAD",
    "DISCONNECTED",
    "rate_too_high",
    "UNSTABLE",
    "EXPLODING",
    layer=("fc1", "act1", "fc2", "act2", "pi", "v"),
    also={*LOST, "SLOW", "NUMERICAL"},
    control=alive,
)

# Stack Overflow 41722336 and stats.stackexchange 126994: a sigmoid ends the values, though rewards are negative.
free = general("lift-q-values-linear-end", lambda s: values(s))
zoo.sick(
    "lift-q-values-sigmoid-end",
    lambda s: values(s, Values(tower([3, 48, 48, 3]).append(nn.Sigmoid()))),
    both(at_last(saturated("net.5", "sigmoid", 0.7)), lags(0.2)),
    "SATURATION",
    "VANISHING",
    "DEAD",
    layer=("net.4", "net.5"),
    also={"SLOW", "loss_stuck", "DISCONNECTED", "LOW_RANK", "BOTTLENECK", "never_moves"},
    control=free,
    analyzer="general",
)

# datascience.stackexchange 62167: the values are the same whatever the state is; the learning rate was 1.0.
zoo.sick(
    "lift-q-values-rate-1",
    lambda s: values(s, lr=1.0),
    both(at_last(dead("net.3", 0.9)), errs_more),
    "DEAD",
    "UNSTABLE",
    "EXPLODING",
    "rate_too_high",
    "DISCONNECTED",
    layer=("net.0", "net.1", "net.2", "net.3", "net.4"),
    also={*LOST, "SLOW", "NUMERICAL"},
    control=free,
    analyzer="general",
)


# Stack Exchange, "Simple problem: agent not learning": the state of a DQN is a time from 0 to 700, fed as it is.
def tanh_values() -> Values:
    return Values(tower([3, 48, 48, 3], nn.Tanh))


calm = general("lift-q-values-tanh-states-of-unit-size", lambda s: values(s, tanh_values(), lr=1e-2))
zoo.sick(
    "lift-q-values-tanh-states-up-to-700",
    lambda s: values(s, tanh_values(), see=lambda x: 350 + 120 * x, lr=1e-2),
    both(lasting(saturated("net.1", "tanh", 0.9)), errs_more),
    "SATURATION",
    "VANISHING",
    "input_scales",
    layer=("net.0", "net.1"),
    also={"SLOW", "loss_stuck", "DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED"},
    control=calm,
    analyzer="general",
)


# stats.stackexchange 126994: values by N hidden layers of sigmoids, which hardly learn; a few ReLU layers do.
zoo.sick(
    "lift-q-values-six-sigmoid-layers",
    lambda s: values(s, Values(tower([3, 48, 48, 48, 48, 48, 48, 3], nn.Sigmoid)), kind="SGD", lr=0.02, momentum=0.9),
    both(gradient_ratio("net.0", "net.10", below=1e-2), errs_more),
    "VANISHING",
    "SLOW",
    layer=("net.0", "net.2", "net.4", "net.6", "net.8"),
    also={"loss_stuck", "LOW_RANK", "BOTTLENECK", "SATURATION", "DEAD", "rate_too_low", "DISCONNECTED"},
    control=general("lift-q-values-sgd", lambda s: values(s, kind="SGD", lr=0.02, momentum=0.9)),
    analyzer="general",
)


# ray-project/ray#14878: the density of a squashed action is computed from the action itself by the inverse of tanh,
# which is infinite once the action was rounded to 1.
def squashed(seed: int, inverse: bool) -> Setup:
    model, best = Gaussian(0.8), best_grip(seed)

    def density(output: tuple[Tensor, Tensor, Tensor], raw: Tensor) -> Tensor:
        inside = (1 - raw.tanh().square() + 1e-6).log()
        return (Normal(output[0], output[1], validate_args=False).log_prob(raw) - inside).sum(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Target]:
        state = torch.randn(128, 5, generator=random)
        with torch.no_grad():
            out = tuple(map(finite, model(state)))
            raw = out[0] + out[1] * torch.randn(128, 2, generator=random)
            action = raw.tanh()
            kept = action.atanh() if inverse else raw
            old = density(out, kept)
        return state, (kept, -(action - best(state)).square().sum(dim=1), old)

    def loss(output: tuple[Tensor, Tensor, Tensor], target: Target) -> Tensor:
        gain, ratio = gains(target, output[2]), (density(output, target[0]) - target[2]).exp()
        told = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return 0.5 * F.mse_loss(output[2], target[1]) - told

    def judge(_setup: Setup) -> float:
        state = torch.randn(500, 5, generator=torch.Generator().manual_seed(25))
        with torch.no_grad():
            return (torch.tanh(model(state)[0]) - best(state)).square().sum(dim=1).mean().item()

    task = Task(seed, draw, loss)
    task.judge = judge
    options = {"kwargs": {"action_extractor": of_gaussian}, "hints": {"action_range": (-1.0, 1.0)}}
    return live(model, task, "Adam", 1e-2, 100, **options)


zoo.sick(
    "gripper-ppo-inverse-tanh-of-a-full-move",
    lambda s: squashed(s, True),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also=LOST,
    control=zoo.healthy("gripper-ppo-move-kept-before-the-tanh", lambda s: squashed(s, False)),
)


# facebookresearch/drqv2#15: features narrower than what they are made from are fine, until they are narrower than the
# state that lies behind the readings (its humanoid needed more).
class Trunk(nn.Module):
    """Forty readings, a trunk of so many features, then wide heads."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mix", 0.4 * torch.randn(6, 40, generator=torch.Generator().manual_seed(5)))
        self.trunk, self.squash = nn.Linear(40, features), nn.Tanh()
        self.pi, self.v = tower([features, 64, 6], nn.Tanh), tower([features, 64, 1], nn.Tanh)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.squash(self.trunk(state @ self.mix))
        return self.pi(h), self.v(h).squeeze(-1)


zoo.sick(
    "adverts-ppo-forty-readings-to-one-feature",
    lambda s: adverts(s, Trunk(1), ppo(), lr=5e-3),
    both(lasting(rank_at_most("trunk", 1.1)), earns_less),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("trunk", "squash"),
    also={"SLOW", "loss_stuck", "VANISHING", "SATURATION", *STUCK},
    control=zoo.healthy("adverts-ppo-forty-readings-to-ten-features", lambda s: adverts(s, Trunk(10), ppo(), lr=5e-3)),
)
