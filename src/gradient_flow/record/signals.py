"""Numbers of reinforcement learning that trainers log by themselves, under one name each."""

from __future__ import annotations

from typing import Final

_KL: Final = "kl approx_kl approxkl mean_kl kl_mean kl_div kl_divergence approxkl_avg ppo_kl kl_loss old_approx_kl"
_CLIPPED: Final = "clip_fraction clipfrac clip_frac clip_ratio clip_ratio/region_mean clipfrac_avg pg_clipfrac"
_REWARD: Final = "reward rewards mean_reward reward_mean rewards/mean episode_reward scores ep_rew_mean"
_RETURN: Final = "episode_return episodic_return mean_return return returns"
SIGNALS: Final = {
    "entropy": ("entropy", "mean_entropy", "policy_entropy", "entropy_mean", "entropy_avg"),
    "negative_entropy": ("entropy_loss",),
    "kl": tuple(_KL.split()),
    "zero_std": ("frac_reward_zero_std", "frac_zero_std", "zero_std_fraction"),
    "reward_std": ("reward_std", "rewards_std", "std_reward", "group_reward_std"),
    "clip_fraction": tuple(_CLIPPED.split()),
    "reward": (*_REWARD.split(), *_RETURN.split()),
}
"""What it is → the names it has in TRL, verl, Stable-Baselines3, CleanRL, RLlib and plain loops."""
_BEFORE: Final = (
    "",
    "train/",
    "metrics/",
    "policy/",
    "actor/",
    "objective/",
    "losses/",
    "loss/",
    "rollout/",
    "charts/",
)
_BEFORE_TOO: Final = ("critic/rewards/", "train/policy/", "ppo/", "grpo/", "rl/", "agent/", "env/", "info/learner/")
"""What may come before each. Not any word: `attention/entropy` is another matter."""
NAMES: Final = {
    f"{before}{alias}": name
    for name, aliases in SIGNALS.items()
    for alias in aliases
    for before in (*_BEFORE, *_BEFORE_TOO)
} | {"critic/rewards/mean": "reward"}
