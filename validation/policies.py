"""What programs of policies share: the numbers that their trainers log, and a score."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def entropy_of(logp: Tensor) -> Tensor:
    """Mean entropy of choices, from their log-probabilities."""
    return -(logp.exp() * logp).sum(dim=-1).mean()


def of_ratios(ratio: Tensor, entropy: Tensor, reward: Tensor) -> dict[str, float]:
    """What trainers by clipped ratios log."""
    return {
        "entropy": entropy.item(),
        "approx_kl": ((ratio - 1) - ratio.log()).mean().item(),
        "clip_fraction": ((ratio - 1).abs() > 0.2).float().mean().item(),
        "reward": reward.mean().item(),
    }


def of_groups(
    reward: Tensor, spread: Tensor, kl: Tensor, entropy: Tensor, ratio: Tensor, kept: Tensor
) -> dict[str, float]:
    """What a hub's trainer of grouped answers logs; `spread` is that of the rewards of a group, `kept` the ratio."""
    return {
        "reward": reward.mean().item(),
        "reward_std": spread.mean().item(),
        "frac_reward_zero_std": (spread == 0).float().mean().item(),
        "kl": kl.item(),
        "entropy": entropy.item(),
        "clip_ratio/region_mean": (ratio != kept).float().mean().item(),
    }


def wrong_answers(model: nn.Module, questions: Tensor, codes: Tensor) -> Callable[[], float]:
    """Score of a policy by log-probabilities: how often it does not give the answer with the best code."""
    best = (questions @ codes).argmax(1, keepdim=True)

    def score() -> float:
        with torch.no_grad():
            return 1 - model(questions).exp().gather(1, best).mean().item()

    return score
