# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Policies with the faults that any network may have, and their twins. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, dead, no_gradient, not_finite
from validation.evidence_training import diverges, does_not_move, gradient_norms_spread, trains
from validation.unseen_rl import Shared, choices, discrete, shared

zoo = Zoo("rl", "policy", trains(lr=1e-2))

# --- other faults of policies


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


bounded = zoo.healthy("surrogate-with-bounded-ratio", "tune", lambda s: ratio(s, True))
zoo.sick(
    "surrogate-ratio-overflows",
    "tune",
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
    "tune",
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
    "tune",
    dead_trunk,
    both(dead("trunk.3", 0.99), no_gradient("trunk")),
    "DEAD",
    layer="trunk.2",
    also={"DISCONNECTED", "VANISHING", "EXPLORATION"},
    control=shared,
)


def jackpots(seed: int, size: float) -> Setup:
    """In one batch of twenty a single state pays thousands of times as much, and the critic has to follow."""
    count = iter(range(10**9))

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        prize = torch.ones(len(pay))
        prize[5] += size if next(count) % 20 == 9 else 0.0
        earned = (logits.softmax(dim=-1) * pay).sum(dim=1) * prize
        return -earned.mean() + 0.5 * (value - earned.detach()).square().mean()

    return discrete(Shared(14, 10, 56), choices(seed, 14, 10).with_loss(loss), steps=60)


even = zoo.healthy("pay-without-jackpots", "tune", lambda s: jackpots(s, 0.0))
zoo.sick(
    "jackpots-in-one-batch-of-twenty",
    "tune",
    lambda s: jackpots(s, 1e5),
    gradient_norms_spread(30),
    "UNSTABLE",
    "EXPLODING",
    control=even,
)


def learning(seed: int, kind: str, lr: float) -> Setup:
    model = Shared(14, 10, 56)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
    return discrete(model, choices(seed, 14, 10), optimizer=optimizer)


adam = zoo.healthy("shared-trunk-adam-3e-3", "tune", lambda s: learning(s, "Adam", 3e-3), trains(steps=60))
zoo.sick(
    "shared-trunk-adam-20",
    "tune",
    lambda s: learning(s, "Adam", 20.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "EXPLORATION",
    "ENTROPY_COLLAPSE",
    also={"DEAD", "SATURATION", "NUMERICAL"},
    control=adam,
)
zoo.sick(
    "shared-trunk-sgd-1e-8",
    "tune",
    lambda s: learning(s, "SGD", 1e-8),
    does_not_move(),
    "SLOW",
    control=adam,
)
