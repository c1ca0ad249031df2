"""Policies that explore too little or too much, and their twins.

Half: tune.
"""

from __future__ import annotations

from torch import nn

from validation.case import Setup, Zoo
from validation.evidence import both, explores, learns_less, saturated, stays_even, trains
from validation.labels import AT_ITS_ENDS, STUCK, SURE
from validation.nets import Actor, GaussianActor, Shared, fond_of, scale_, sure
from validation.setups import continuous, discrete, mover, pair, pretrain, rated_policy
from validation.tasks import bandit, choices, reach

zoo = Zoo("rl", half="tune", analyzer="policy", proof=trains(lr=1e-2))


# --- discrete actions

actor = zoo.healthy("actor-critic-at-init", lambda s: discrete(Actor(12, 5, 48), bandit(s, 12, 5)))
wide_actor = zoo.healthy("actor-critic-8-actions-relu", lambda s: discrete(Actor(16, 8, 64, nn.ReLU), bandit(s, 16, 8)))
zoo.sick(
    "logits-times-300-before-learning",
    lambda s: discrete(sure(Actor(12, 5, 48), 300.0), bandit(s, 12, 5)),
    explores(0, 0.1, 0.6),
    *STUCK,
    layer=("policy.4",),
    also={"SATURATION", "VANISHING"},
    control=actor,
)
zoo.sick(
    "one-action-everywhere",
    lambda s: discrete(fond_of(Actor(16, 8, 64, nn.ReLU), 3, 12.0), bandit(s, 16, 8)),
    explores(0, 0.02, 0.6),
    *STUCK,
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
    greedy_too_early,
    explores(0, 0.1, 0.6),
    *STUCK,
    layer=("policy.4",),
    also={"SATURATION", "VANISHING"},
    control=wide_actor,
)
zoo.sick(
    "temperature-2000-stays-even",
    lambda s: rated_policy(Actor(12, 5, 48, temperature=2000.0), bandit(s, 12, 5), "Adam", 1e-3, 30),
    stays_even(60),
    "EXPLORATION",
    "VANISHING",
    "SLOW",
    control=actor,
)
shared = zoo.healthy("shared-trunk-10-actions", lambda s: discrete(Shared(14, 10, 56), choices(s, 14, 10)))
zoo.sick(
    "shared-trunk-always-does-nothing",
    lambda s: discrete(fond_of(Shared(14, 10, 56), 0, 15.0), choices(s, 14, 10)),
    explores(0, 0.02, 0.6),
    *STUCK,
    layer="logits",
    also=SURE,
    control=shared,
)
masked = zoo.healthy("masked-12-actions", lambda s: discrete(Shared(9, 12, 40, masked=True), choices(s, 9, 12)))
zoo.sick(
    "masked-12-actions-logits-times-400",
    lambda s: discrete(sure(Shared(9, 12, 40, masked=True), 400.0), choices(s, 9, 12)),
    explores(0, 0.05, 0.5),
    *STUCK,
    layer="logits",
    also=SURE,
    control=masked,
)


def hot_trunk(seed: int) -> Setup:
    """Observations in raw units blow up the trunk, and with it the logits."""
    return discrete(Shared(14, 10, 56, nn.LeakyReLU), choices(seed, 14, 10).mapped(lambda x: x * 150))


zoo.sick(
    "shared-trunk-observations-in-raw-units",
    hot_trunk,
    explores(0, 0.05, 0.5),
    *STUCK,
    also=SURE | {"UNSTABLE"},
    control=shared,
)

# --- continuous actions

gaussian = zoo.healthy("gaussian-log-std-0", lambda s: continuous(GaussianActor(10, 2, 48, 0.0), reach(s, 10, 2)))
narrower = zoo.healthy(
    "gaussian-log-std-minus-1", lambda s: continuous(GaussianActor(8, 3, 40, -1.0, by_state=True), reach(s, 8, 3))
)
zoo.sick(
    "gaussian-log-std-minus-5",
    lambda s: continuous(GaussianActor(10, 2, 48, -5.0), reach(s, 10, 2)),
    explores(0, 0.02, 0.3),
    *STUCK,
    control=gaussian,
)
zoo.sick(
    "gaussian-log-std-3",
    lambda s: continuous(GaussianActor(10, 2, 48, 3.0), reach(s, 10, 2)),
    explores(10, 100, 10),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=gaussian,
)
zoo.sick(
    "gaussian-by-state-log-std-minus-4.5",
    lambda s: continuous(GaussianActor(8, 3, 40, -4.5, by_state=True), reach(s, 8, 3)),
    explores(0, 0.03, 0.3),
    *STUCK,
    control=narrower,
)
zoo.sick(
    "gaussian-by-state-log-std-2.5",
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
    "squashed-mean", lambda s: continuous(GaussianActor(8, 3, 40, -0.7, squash=True), reach(s, 8, 3))
)
zoo.sick(
    "squashed-mean-at-its-ends",
    bang_bang,
    saturated("squash", "tanh", 0.8),
    *AT_ITS_ENDS,
    layer=("mean", "squash"),
    control=squashed,
)
small = zoo.healthy("moves-of-a-tenth-deviation-0.05", lambda s: mover(s, 0.1, 0.5))
large = zoo.healthy("moves-of-fifty-deviation-20", lambda s: mover(s, 50.0, 0.4))
zoo.sick("moves-of-fifty-deviation-0.1", lambda s: mover(s, 50.0, 0.002), explores(0, 0.2, 0.5), *STUCK, control=large)
zoo.sick(
    "moves-of-a-tenth-deviation-2",
    lambda s: mover(s, 0.1, 20.0),
    explores(1.5, 2.5, 100),
    "EXPLORATION",
    also={"UNSTABLE", "EXPLODING"},
    control=small,
)
zoo.sick(
    "moves-of-fifty-mean-at-its-ends",
    lambda s: mover(s, 50.0, 0.4, 300.0),
    both(saturated("squash", "tanh", 0.85), learns_less(lr=1e-2, by=0.1)),
    *AT_ITS_ENDS,
    layer=("mean", "squash"),
    also={"EXPLODING"},
    control=large,
)
