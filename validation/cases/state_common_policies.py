"""Common programs of policies whose own logged numbers tell what goes wrong, and some that learn.

Half: common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import offers, study
from validation.evidence.loops import broken, learns
from validation.evidence.states import logged
from validation.labels import COLLAPSED
from validation.nets import Actor, mlp
from validation.policies import entropy_of, of_ratios
from validation.programs import held_out, step_from
from validation.states import BROKEN

zoo = Zoo("state", half="common", proof=learns())


def earned(seed: int, model: nn.Module, pick: Callable[[Any], Tensor] = lambda out: out) -> Callable[[], float]:
    """What is left to earn, on unseen visitors."""
    task = offers(seed, batch=256)
    return held_out(model, task, lambda out, pay: 1 - (pick(out).softmax(dim=1) * pay).sum(dim=1).mean())


def ppo(
    seed: int,
    *,
    epochs: int = 4,
    rollouts: int = 24,
    rate: float = 3e-3,
    bonus: float = 0.01,
    gain: float = 1.0,
    batch: int = 96,
    stale: bool = False,
) -> Program:
    """Separate actor and critic; the log-probabilities of old come from the policy that plays, or from the first."""
    model, task, log = Actor(6, 4, 32), offers(seed, batch=batch), Log()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    random, losses = torch.Generator().manual_seed(seed + 1), []
    first = copy.deepcopy(model).requires_grad_(False)

    def run() -> None:
        for _, (state, pay) in zip(range(rollouts), task, strict=False):
            with torch.no_grad():
                logits, value = model(state)
                action = torch.multinomial(logits.softmax(dim=1), 1, generator=random)
                old = (first(state)[0] if stale else logits).log_softmax(dim=1).gather(1, action)
                reward = pay.gather(1, action).squeeze(1)
                advantage = reward - value
                advantage = gain * (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            for _epoch in range(epochs):
                logits, value = model(state)
                logp = logits.log_softmax(dim=1)
                ratio = (logp.gather(1, action) - old).squeeze(1).exp()
                entropy = entropy_of(logp)
                clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                loss = -clipped.mean() + 0.5 * F.mse_loss(value, reward) - bonus * entropy
                log(**of_ratios(ratio, entropy, reward))
                losses.append(step_from(loss, optimizer))

    score = earned(seed, model, lambda out: out[0])
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, log=log, score=score)


usual = zoo.healthy("common-ppo-offers", lambda s: ppo(s))
zoo.healthy("common-ppo-offers-one-epoch", lambda s: ppo(s, epochs=1, rollouts=80, rate=5e-3))
zoo.healthy("common-ppo-offers-eight-epochs-small-rate", lambda s: ppo(s, epochs=8, rollouts=14, rate=1e-3, batch=256))
zoo.healthy("common-ppo-offers-bonus-0.03", lambda s: ppo(s, bonus=0.03))
zoo.healthy("common-ppo-offers-no-bonus", lambda s: ppo(s, bonus=0.0))
zoo.sick(
    "common-ppo-offers-entropy-is-punished",
    lambda s: ppo(s, bonus=-3.0),
    broken(logged("entropy", below=0.15), less=0.8),
    *COLLAPSED,
    also={*BROKEN, "clip_fraction_high"},
    control=usual,
)
zoo.sick(
    "common-ppo-offers-old-log-probabilities-never-renewed",
    lambda s: ppo(s, stale=True),
    broken(logged("clip_fraction", above=0.4)),
    "clip_fraction_high",
    also={*BROKEN, "kl_runaway", *COLLAPSED},
    control=usual,
)
zoo.sick(
    "common-ppo-offers-fifty-epochs-at-0.05",
    lambda s: ppo(s, epochs=50, rollouts=3, rate=0.05),
    broken(logged("clip_fraction", above=0.35), less=0.95),
    "clip_fraction_high",
    "kl_runaway",
    also={*BROKEN, "rate_too_high", "same_batch", *COLLAPSED},
    control=usual,
)


def group_policy(
    seed: int,
    *,
    weight: float = 0.3,
    rate: float = 4e-3,
    bonus: float = 0.0,
    fond: float = 0.0,
    centred: bool = True,
    steps: int = 110,
) -> Program:
    """Groups of six answers, compared within the group, and held near a reference by its divergence."""
    model, task, log = mlp([6, 32, 32, 4], nn.Tanh), offers(seed), Log()
    reference = copy.deepcopy(model).requires_grad_(False)
    random = torch.Generator().manual_seed(seed + 2)

    def parts(state: Tensor) -> tuple[Tensor, Tensor]:
        logp, ref = model(state).log_softmax(dim=1), reference(state).log_softmax(dim=1)
        return logp, (logp.exp() * (logp - ref)).sum(dim=1).mean()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp, kl = parts(batch[0])
        action = torch.multinomial(logp.detach().exp(), 6, replacement=True, generator=random)
        reward = batch[1].gather(1, action) + fond * (action == 0)
        log(
            kl=kl.item(),
            entropy=entropy_of(logp.detach()).item(),
            reward=reward.mean().item(),
            reward_std=reward.std(dim=1).mean().item(),
        )
        advantage = (reward - reward.mean(dim=1, keepdim=True)) if centred else reward
        return -(4 * advantage * logp.gather(1, action)).mean() + weight * kl - bonus * entropy_of(logp)

    base = earned(seed, model)

    def score() -> float:
        with torch.no_grad():
            return base() + 0.2 * float(parts(task.aside()[0])[1])

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    return study(model, task, optimizer, steps=steps, loss_of=loss_of, score=score, log=log)


zoo.healthy("common-groups-held-near", lambda s: group_policy(s), learns(0.05))
zoo.healthy("common-groups-held-near-small-rate", lambda s: group_policy(s, rate=2e-3), learns(0.05))
zoo.healthy("common-groups-bonus-0.05", lambda s: group_policy(s, bonus=0.05), learns(0.05))
free = zoo.healthy("common-groups-held-by-nothing", lambda s: group_policy(s, weight=0.0), learns(0.05))
zoo.healthy("common-groups-held-closer", lambda s: group_policy(s, weight=0.6), learns(0.03))
for name, weight in (("wrong-sign", 1.0), ("wrong-sign-and-weight-2", 2.0)):
    held = zoo.healthy(
        f"common-groups-divergence-{weight:g}", lambda s, w=weight: group_policy(s, weight=w), learns(0.03)
    )
    zoo.sick(
        f"common-groups-divergence-with-{name}",
        lambda s, w=weight: group_policy(s, weight=-w),
        broken(logged("kl", above=1.0)),
        "kl_runaway",
        "policy_entropy_collapse",
        also={*BROKEN, *COLLAPSED},
        control=held,
    )
for name, options in (
    ("one-answer-is-paid-too-much", {"weight": 0.0, "fond": 3.0}),
    ("entropy-is-punished", {"weight": 0.0, "bonus": -2.0}),
):
    zoo.sick(
        f"common-groups-{name}",
        lambda s, options=options: group_policy(s, **options),
        broken(logged("entropy", below=0.1)),
        *COLLAPSED,
        also={*BROKEN, "kl_runaway", "no_reward_variance"},
        control=free,
    )
