# ruff: noqa: D102 - a forward is explained by its class
"""Policies: what they return is described in `validation.tasks.rewards`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from validation.nets.dense import Activation, mlp
from validation.nets.weights import he_, scale_


class Actor(nn.Module):
    """Logits of the actions and the value of the state, from separate networks."""

    def __init__(self, dim: int, actions: int, width: int, act: Activation = nn.Tanh, temperature: float = 1.0) -> None:
        super().__init__()
        self.policy = mlp([dim, width, width, actions], act)
        self.critic = mlp([dim, width, width, 1], act)
        self.temperature = temperature

    @property
    def logits(self) -> nn.Linear:
        """The layer that says what to do, as `Shared` has it."""
        return self.policy[-1]

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(state) / self.temperature, self.critic(state).squeeze(-1)


class Shared(nn.Module):
    """One trunk, a head for the logits, a head for the value; some actions may be forbidden by the state."""

    def __init__(self, dim: int, actions: int, width: int, act: Activation = nn.ELU, masked: bool = False) -> None:
        super().__init__()
        self.trunk = he_(mlp([dim, width, width], act)).append(act())
        self.logits, self.value, self.masked = nn.Linear(width, actions), nn.Linear(width, 1), masked

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(state)
        logits = self.logits(h)
        if self.masked:
            blocked = (torch.arange(logits.shape[1]) + (state[:, :1] > 0).long()) % 3 == 0
            logits = logits.masked_fill(blocked, -1e9)
        return logits, self.value(h).squeeze(-1)


@torch.no_grad()
def fond_of(model: nn.Module, action: int, lead: float) -> nn.Module:
    """Put one action ahead in every state."""
    model.logits.bias[action] += lead
    return model


def sure(model: nn.Module, factor: float) -> nn.Module:
    """Multiply the logits."""
    scale_(model.logits, factor)
    return model


class GaussianActor(nn.Module):
    """Mean and deviation of the actions; the deviation is a parameter or depends on the state."""

    def __init__(
        self, dim: int, actions: int, width: int, log_std: float, by_state: bool = False, squash: bool = False
    ):
        super().__init__()
        self.body = he_(mlp([dim, width, width])).append(nn.ReLU())
        self.mean = nn.Linear(width, actions)
        self.squash = nn.Tanh() if squash else nn.Identity()
        if by_state:
            self.spread = nn.Linear(width, actions)
            nn.init.constant_(self.spread.bias, log_std)
            scale_(self.spread, 0.3)
        else:
            self.log_std = nn.Parameter(torch.full((actions,), log_std))
        self.by_state = by_state

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        log_std = self.spread(h) if self.by_state else self.log_std.expand(len(state), -1)
        return self.squash(self.mean(h)), log_std.exp()


class Mover(nn.Module):
    """Mean and deviation of a Gaussian over moves, the mean bounded by `reach`."""

    def __init__(self, dim: int, moves: int, reach: float, std: float) -> None:
        super().__init__()
        self.body = mlp([dim, 44, 44], nn.SiLU).append(nn.SiLU())
        self.mean, self.squash = nn.Linear(44, moves), nn.Tanh()
        self.log_std, self.reach = nn.Parameter(torch.full((moves,), math.log(std))), reach

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.reach * self.squash(self.mean(self.body(state)))
        return mean, self.log_std.exp().expand_as(mean)
