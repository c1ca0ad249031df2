"""Tasks of policies.

The environments are one-step: a state, an action, a reward that is known for every action. So the loss can be the exact
expected return, and "earns too little" can be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical

from validation.tasks.task import Task, drawn_once


def unpaid(logits: Tensor, pay: Tensor) -> Tensor:
    """One minus what a policy earns, where every action pays from 0 to 1."""
    return 1 - (logits.softmax(dim=1) * pay).sum(dim=1).mean()


def short_of_best(logits: Tensor, pay: Tensor) -> Tensor:
    """How much less than the best action a policy earns."""
    return (pay.amax(dim=1) - (logits.softmax(dim=1) * pay).sum(dim=1)).mean()


def off_course(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
    """Squared distance of a Gaussian policy from the best move, with a small bonus for its entropy."""
    mean, std = output
    return (mean - best).square().mean() + std.square().mean() - 0.02 * std.log().mean() + 0.1


def by_clipped_ratios(of_value: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """PPO of logits and values, with `of_value` for the critic; a target is actions, returns, old log-probabilities."""

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        actions, returns, old = target
        policy = Categorical(logits=output[0])
        ratio, gain = (policy.log_prob(actions) - old).exp(), returns - output[1].detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        told = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        return 0.5 * of_value(output[1], returns) - told - 0.01 * policy.entropy().mean()

    return loss


def bandit(seed: int, dim: int, actions: int, batch: int = 128, critic: bool = True) -> Task:
    """Each state has one good action. The loss is one minus the expected reward, and the critic's error."""
    codes = torch.randn(actions, dim, generator=drawn_once(seed, 7))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, (state @ codes.T).argmax(dim=1)

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        logits, value = output
        reward = logits.softmax(-1).gather(1, best[:, None]).squeeze(1)
        error = (value - reward.detach()).square().mean() if critic else 0.0
        return 1 - reward.mean() + 0.5 * error

    return Task(seed, draw, loss)


def choices(seed: int, dim: int, actions: int, batch: int = 96) -> Task:
    """Each state pays more for some actions than for others, from 0 to 1; loss is 1 - expected pay + critic's error."""
    codes = torch.randn(actions, dim, generator=drawn_once(seed, 11))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, (2 * state @ codes.T).softmax(dim=1)

    def loss(output: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        logits, value = output
        earned = (logits.softmax(dim=-1) * pay / pay.amax(dim=1, keepdim=True)).sum(dim=1)
        return 1 - earned.mean() + 0.25 * (value - earned.detach()).square().mean()

    return Task(seed, draw, loss)


def reach(seed: int, dim: int, actions: int, batch: int = 128) -> Task:
    """The best action is a smooth function of the state in [-1, 1]; the reward falls with the squared distance.

    A small entropy bonus, as usual, keeps the deviation from zero.
    """
    way = torch.randn(dim, actions, generator=drawn_once(seed, 7)) / math.sqrt(dim)
    random_noise = drawn_once(seed, 8)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, torch.tanh(state @ way)

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        mean, std = output
        action = mean + std * torch.randn(mean.shape, generator=random_noise)
        return (action - best).square().sum(-1).mean() - 0.01 * std.log().sum(-1).mean()

    return Task(seed, draw, loss)


def moves(seed: int, dim: int, count: int, reach: float) -> Task:
    """The best move is a bounded function of the state; the loss is the squared distance in units of the range."""
    way = torch.randn(dim, count, generator=drawn_once(seed, 12)) / math.sqrt(dim)
    noise = drawn_once(seed, 13)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(96, dim, generator=random)
        return state, reach * torch.tanh(1.5 * state @ way)

    def loss(output: tuple[Tensor, Tensor], best: Tensor) -> Tensor:
        mean, std = output
        action = mean + std * torch.randn(mean.shape, generator=noise)
        return ((action - best) / reach).square().sum(dim=-1).mean() - 0.01 * (std / reach).log().sum(dim=-1).mean()

    return Task(seed, draw, loss)


def chain(seed: int, dim: int, actions: int, scale: float = 1.0, batch: int = 64) -> Task:
    """Random transitions with a reward that depends on state and action."""
    codes = torch.randn(actions, dim, generator=drawn_once(seed, 7)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        state = torch.randn(batch, dim, generator=random)
        following = 0.9 * state + 0.4 * torch.randn(batch, dim, generator=random)
        action = torch.randint(actions, (batch,), generator=random)
        return (state, following), (action, scale * (state @ codes.T).gather(1, action[:, None]).squeeze(1))

    def loss(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        values, ahead = output
        action, reward = target
        chosen = values.gather(1, action[:, None]).squeeze(1)
        return F.mse_loss(chosen, reward + 0.9 * ahead.amax(dim=1))

    return Task(seed, draw, loss)


def offers(seed: int, offset: int, steep: float, dim: int, actions: int, batch: int) -> Task:
    """What each action pays, from 0 to 1, by the state. The loss is one minus what is earned."""
    codes = torch.randn(actions, dim, generator=drawn_once(seed, offset)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, torch.sigmoid(steep * state @ codes.T)

    return Task(seed, draw, unpaid)


def steering(seed: int, offset: int, dim: int, count: int, batch: int) -> Task:
    """The best moves, within -1 and 1; the loss takes mean and deviation."""
    way = torch.randn(dim, count, generator=drawn_once(seed, offset)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        state = torch.randn(batch, dim, generator=random)
        return state, torch.tanh(1.5 * state @ way)

    return Task(seed, draw, off_course)
