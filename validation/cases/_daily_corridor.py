"""What the policies of the half `daily` play: a corridor to be walked to its end, and questions with five answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.tasks import Task, drawn_once

LENGTH = 8
"""Places of the corridor; a walk begins in its left half."""
STEPS = 12


def walk(
    model: nn.Module, random: torch.Generator, batch: int, logits: Callable[[Any], Tensor] = lambda out: out
) -> tuple[Tensor, Tensor, Tensor]:
    """Play so many walks side by side: states, actions and rewards, each by time and walk.

    Action 1 goes right, 0 goes left, and one in ten goes astray. At the right end every step pays one.
    """
    place = torch.randint(LENGTH // 2, (batch,), generator=random)
    states, actions, rewards = [], [], []
    for _ in range(STEPS):
        state = F.one_hot(place, LENGTH).float()
        with torch.no_grad():
            p = logits(model(state)).softmax(dim=1)
        action = torch.multinomial(p, 1, generator=random).squeeze(1)
        astray = torch.rand(batch, generator=random) < 0.1
        move = torch.where(astray, 1 - action, action) * 2 - 1
        place = (place + move).clamp(0, LENGTH - 1)
        states.append(state)
        actions.append(action)
        rewards.append((place == LENGTH - 1).float())
    return torch.stack(states), torch.stack(actions), torch.stack(rewards)


def far_from_goal(
    model: nn.Module, seed: int, logits: Callable[[Any], Tensor] = lambda out: out
) -> Callable[[], float]:
    """Score: the share of steps that a policy does not spend at the end."""

    def score() -> float:
        random = torch.Generator().manual_seed(seed + 99)
        return 1 - walk(model, random, 256, logits)[2].mean().item()

    return score


def questions(seed: int, answers: int = 5, batch: int = 48) -> Task:
    """Questions of eight numbers, and what each of the answers would earn, between 0 and 1."""
    way = torch.randn(8, answers, generator=drawn_once(seed, 9120))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 8, generator=random)
        return x, torch.sigmoid(1.2 * x @ way)

    return Task(seed, draw, F.mse_loss)
