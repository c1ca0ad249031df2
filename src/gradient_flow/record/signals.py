"""Numbers of reinforcement learning that trainers log by themselves, under one name each."""

from __future__ import annotations

from typing import Final

SIGNALS: Final = {
    "entropy": ("entropy", "policy_entropy", "policy/entropy", "policy/entropy_avg", "actor/entropy"),
    "kl": ("kl", "approx_kl", "mean_kl", "objective/kl", "policy/approxkl_avg", "actor/ppo_kl", "actor/kl_loss"),
    "zero_std": ("frac_reward_zero_std",),
    "clip_fraction": (
        "clip_fraction",
        "clipfrac",
        "clip_ratio",
        "clip_ratio/region_mean",
        "policy/clipfrac_avg",
        "actor/pg_clipfrac",
    ),
    "reward": ("reward", "mean_reward", "episode_reward", "objective/scores", "critic/rewards/mean", "ep_rew_mean"),
}
"""What it is → the names it has in TRL, verl, Stable-Baselines3 and plain loops."""
_BEFORE: Final = ("", "train/", "metrics/")
"""What may come before each."""
NAMES: Final = {
    f"{before}{alias}": name for name, aliases in SIGNALS.items() for alias in aliases for before in _BEFORE
}
