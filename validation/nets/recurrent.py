# ruff: noqa: D102 - a forward is explained by its class
"""Recurrent networks, and how their recurrence starts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SequenceModel(nn.Module):
    """A recurrent layer ("rnn") and a head that reads its last state, or every state."""

    def __init__(self, rnn: nn.Module, classes: int, every_step: bool = False, features: int | None = None) -> None:
        super().__init__()
        self.rnn, self.every_step = rnn, every_step
        self.head = nn.Linear(features or rnn.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        return self.head(states if self.every_step else states[:, -1])


@torch.no_grad()
def spectral_(rnn: nn.RNNBase, radius: float, orthogonal: bool = True) -> nn.RNNBase:
    """Give the recurrent matrices of a plain RNN a spectral radius."""
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            if orthogonal:
                nn.init.orthogonal_(weight)
            weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())
        elif name.startswith("bias"):
            weight.zero_()
    return rnn


@torch.no_grad()
def gate_bias_(rnn: nn.RNNBase, gate: int, value: float) -> nn.RNNBase:
    """Set the bias of one gate: LSTM has input 0, forget 1, cell 2, output 3; GRU reset 0, update 1, new 2."""
    size = rnn.hidden_size
    for name, bias in rnn.named_parameters():
        if name.startswith("bias"):
            bias[gate * size : (gate + 1) * size] = value / 2  # the input's and the state's biases add up
    return rnn


@torch.no_grad()
def wild_(rnn: nn.RNNBase, gain: float, drive: float = 0.5) -> nn.RNNBase:
    """Draw the recurrence with a gain that makes it chaotic, and weaken the input."""
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            weight.normal_(std=gain / rnn.hidden_size**0.5)
        elif name.startswith("weight_ih"):
            weight.mul_(drive)
    return rnn


@torch.no_grad()
def positive(dim: int, width: int, radius: float) -> nn.RNN:
    """ReLU layers with recurrent weights that are not negative, so that nothing ever shrinks a state."""
    rnn = nn.RNN(dim, width, 2, "relu", batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            weight.abs_()
            weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())
    return rnn


class Cell(nn.Module):
    """Base of own cells: `step` over time, from a state of zeros, gives all states and the last."""

    hidden_size: int

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for t in range(x.shape[1]):
            state = self.step(x[:, t], state)
            states.append(state)
        return torch.stack(states, dim=1), state


class Leaky(Cell):
    """Own cell: a leaky integrator of a driven tanh; `keep` is what stays of the state per step."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size, self.keep = width, keep
        self.drive, self.back = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.back.weight, std=0.1 / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.keep * state + torch.tanh(self.drive(x) + self.back(state)) * (1 - 0.5 * self.keep)


@torch.no_grad()
def identity_rnn(width: int, radius: float) -> nn.RNN:
    """A ReLU network that starts as a scaled identity, after Le, Jaitly and Hinton."""
    rnn = nn.RNN(8, width, 1, "relu", batch_first=True)
    rnn.weight_hh_l0.copy_(radius * torch.eye(width))
    rnn.bias_hh_l0.zero_()
    rnn.bias_ih_l0.zero_()
    return rnn


class Words(nn.Module):
    """Next token from an embedding of few or many numbers."""

    def __init__(self, size: int, width: int = 36) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(24, size), nn.GRU(size, width, batch_first=True)
        self.head = nn.Linear(width, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])
