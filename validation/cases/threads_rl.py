# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Policies, critics and values with mistakes that people told of in threads, and what each thread came to.

Half: threads.
"""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Case, Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._plain_nets import BLOWN
from validation.cases._reported_policies import (
    ActorCritic,
    Climber,
    Values,
    a2c,
    adverts,
    bellman,
    climb,
    earns_less,
    errs_more,
    gripper,
    missed,
    ppo,
    reinforce,
    values,
)
from validation.cases._threads_policies import collapsed, fixed_deviation, robot, timid
from validation.evidence import (
    at_last,
    both,
    dead,
    diverges,
    equal_units,
    lasting,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import RUNS_AWAY, STUCK, SURE

zoo = Zoo("rl", half="threads", analyzer="policy", proof=thrives(0.3, most_dead=0.5, measure=missed))
LOST = {*BLOWN, *STUCK, "UNSTABLE", "EXPLODING", "policy_entropy_collapse"}


def general(name: str, build, proof=None) -> Case:
    return zoo.healthy(name, build, proof or thrives(0.2, most_dead=0.5), analyzer="general")


# --- nothing is tried

# openai/baselines#280: a robot with five moves, from hard left to hard right, turns in circles whatever is charged for
# it; its probabilities lean to one move from the start.


def turtle(seed: int, lean: float) -> Setup:
    model = ActorCritic(8, 5, act=nn.Tanh)
    with torch.no_grad():
        model.pi.weight.mul_(0.1)
        model.pi.bias.zero_()[0] = lean
    return robot(seed, model, ppo(bonus=0.01), lr=3e-3)


zoo.sick(
    "robot-ppo-leans-to-hard-left",
    lambda s: turtle(s, 14.0),
    both(lasting(collapsed(0.1)), earns_less),
    *STUCK,
    "policy_entropy_collapse",
    layer="pi",
    also={*SURE, "SLOW", "loss_stuck", "no_reward_variance", "LOW_RANK", "BOTTLENECK"},
    control=zoo.healthy("robot-ppo-even-at-first", lambda s: turtle(s, 0.0)),
)

# godka/Pensieve-PPO#11 and uidilr/gail_ppo_tf#16: without a weight for the entropy the choice of bit rates becomes
# certain within a few steps, and wrong; returns are large and have no baseline.


def bitrates(seed: int, times: float, bonus: float) -> Setup:
    loss = a2c(bonus) if bonus else reinforce(baseline=False)
    return robot(seed, ActorCritic(8, 5), loss, pay=lambda reward: times * (reward + 3), lr=1e-2, steps=80)


zoo.sick(
    "robot-reinforce-large-returns-no-entropy",
    lambda s: bitrates(s, 20.0, 0.0),
    both(at_last(collapsed(0.2)), earns_less),
    "ENTROPY_COLLAPSE",
    "EXPLORATION",
    "policy_entropy_collapse",
    "UNSTABLE",
    "rate_too_high",
    also={*SURE, *LOST, "SLOW"},
    control=zoo.healthy("robot-a2c-with-entropy", lambda s: bitrates(s, 1.0, 0.02)),
)

# nikhilbarhate99/PPO-PyTorch#44: the deviation of the moves is a setting that is lowered by and by; here it is next to
# nothing from the start, so that no other move is ever tried.
zoo.sick(
    "gripper-ppo-fixed-deviation-of-a-thousandth",
    lambda s: gripper(s, fixed_deviation(0.001), lr=1e-3),
    both(lasting(timid(0.01)), earns_less),
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    "policy_entropy_collapse",
    layer=("mu", "body"),
    also={*SURE, "SLOW", "UNSTABLE", "loss_stuck", "clip_fraction_high", "kl_runaway", "rate_too_high"},
    control=zoo.healthy("gripper-ppo-fixed-deviation-of-a-half", lambda s: gripper(s, fixed_deviation(0.5), lr=3e-3)),
)

# --- too narrow

# Unity-Technologies/ml-agents#78: how many hidden units? 64 may be too few for complex problems; here it is one.
zoo.sick(
    "robot-ppo-one-hidden-unit",
    lambda s: robot(s, ActorCritic(8, 5, width=1, act=nn.Tanh), ppo(), lr=5e-3),
    both(lasting(rank_at_most("fc1", 1.01)), earns_less),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("fc1", "act1", "fc2", "act2", "pi"),
    also={"SLOW", "loss_stuck", "VANISHING", "SATURATION", "SYMMETRY", *STUCK},
    control=zoo.healthy(
        "robot-ppo-64-hidden-units", lambda s: robot(s, ActorCritic(8, 5, act=nn.Tanh), ppo(), lr=5e-3)
    ),
)

# theorangeduck.com "My Neural Network isn't working!", too few hidden units: fewer than the numbers that must pass.
zoo.sick(
    "lift-q-values-one-number-in-the-midst",
    lambda s: values(s, Values(tower([3, 64, 1, 64, 3], nn.ELU)), lr=5e-3),
    both(lasting(rank_at_most("net.2", 1.01)), errs_more),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("net.2", "net.3", "net.4"),
    also={"SLOW", "loss_stuck", "VANISHING", "SATURATION", "DEAD"},
    control=general(
        "lift-q-values-even-widths", lambda s: values(s, Values(tower([3, 64, 64, 64, 3], nn.ELU)), lr=5e-3)
    ),
    analyzer="general",
)

# --- actions at their bounds

# rmst/ddpg#9, apoorv2904/DDPG-Torcs-Tensorflow#2: the actor's tanh is at -1 or 1 for good; its last layer starts far
# too large.


def driven(seed: int, last: float) -> Setup:
    model = Climber(last=last)
    return climb(seed, model, lr=2e-3)


zoo.sick(
    "gripper-ddpg-last-layer-drawn-wide",
    lambda s: driven(s, 8.0),
    both(lasting(saturated("squash", "tanh", 0.7)), earns_less),
    "SATURATION",
    "VANISHING",
    "EXPLORATION",
    layer=("actor.4", "squash"),
    also={"SLOW", "loss_stuck", "DEAD", "EXPLODING", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", "UNSTABLE"},
    control=general("gripper-ddpg-last-layer-small", lambda s: driven(s, 3e-3), thrives(0.3, 0.5, missed)),
    analyzer="general",
)

# --- values

# facebookresearch/ReAgent#189 and keras-rl/keras-rl#28: the loss of the values doubles again and again; the copy that
# gives the targets follows far too quickly, with a discount near one.


def chased(seed: int, follow: float, lr: float) -> Setup:
    model = Values(tower([3, 48, 48, 3]), follow=follow)
    return values(seed, model, bellman(discount=0.99), kind="SGD", lr=lr, momentum=0.9)


zoo.sick(
    "lift-q-values-copy-follows-at-once",
    lambda s: chased(s, 1.0, 0.2),
    both(diverges(3), errs_more),
    *RUNS_AWAY,
    "rate_too_high",
    "loss_nonfinite",
    "loss_grows",
    also={*LOST, "SLOW"},
    control=general("lift-q-values-copy-follows-slowly", lambda s: chased(s, 0.05, 0.01)),
    analyzer="general",
)

# google-deepmind/open_spiel#742: the rewards of solitaire are in the thousands and the values become NaN; scaled to
# [0, 1] they learn.
zoo.sick(
    "lift-q-values-rewards-in-thousands",
    lambda s: values(s, loss=bellman(scale=3000.0), kind="SGD", lr=0.02, momentum=0.9),
    both(diverges(3), errs_more),
    *RUNS_AWAY,
    "rate_too_high",
    "loss_nonfinite",
    "loss_grows",
    "first_loss_high",
    also={*LOST, "SLOW", "input_scales"},
    control=general("lift-q-values-rewards-of-unit-size", lambda s: values(s, kind="SGD", lr=0.02, momentum=0.9)),
    analyzer="general",
)

# keras-team/keras#3687 "Predictions are all zero", in a DQN: the layer of values has a ReLU like the others, and
# rewards are below zero.
zoo.sick(
    "lift-q-values-relu-end-rewards-below-zero",
    lambda s: values(s, Values(tower([3, 48, 48, 3]).append(nn.ReLU())), less=2.0),
    both(at_last(dead("net.5", 0.99)), errs_more),
    "DEAD",
    "DISCONNECTED",
    "output_range",
    layer=("net.4", "net.5"),
    also={"SLOW", "loss_stuck", "VANISHING", "never_moves", "LOW_RANK", "BOTTLENECK", "SATURATION"},
    control=general("lift-q-values-linear-end-rewards-below-zero", lambda s: values(s, less=2.0)),
    analyzer="general",
)

# --- alike

# Stack Overflow 58193471 for a policy: all weights start at one value, and the hidden units stay one unit.


def alike(seed: int, same: bool) -> Setup:
    model = ActorCritic(act=nn.Tanh)
    if same:
        for part in (model.fc1, model.fc2, model.pi):
            nn.init.constant_(part.weight, 0.05)
            nn.init.zeros_(part.bias)
        nn.init.constant_(model.v.weight, 0.05)
    return adverts(seed, model, ppo(), kind="SGD", lr=0.1, steps=90)


zoo.sick(
    "adverts-ppo-all-weights-alike",
    lambda s: alike(s, True),
    both(at_last(equal_units("fc1.weight")), earns_less),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("fc1", "act1", "fc2", "act2", "pi"),
    also={"VANISHING", "SLOW", "loss_stuck", "DEAD", "SATURATION", *STUCK},
    control=zoo.healthy("adverts-ppo-sgd-random-start", lambda s: alike(s, False)),
)
