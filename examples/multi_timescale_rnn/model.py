"""A recurrent network whose units have different time constants, and its training on path integration."""

import math

import lightning
import torch
from torch import Tensor, nn


class MultiTimescaleRNN(nn.Module):
    """Leaky units h <- (1 - a) h + a tanh(W_in x + W_rec h), each with its own a = dt / tau.

    The time constants `tau` are log-spaced from `tau_min` to `tau_max`, in the unit of `dt`. Small ones follow
    the input, large ones remember it. The first state is read from the initial position by `W_h_init`.
    """

    def __init__(self, input_size=2, hidden_size=64, output_size=2, tau_min=1.0, tau_max=50.0, dt=1.0):
        super().__init__()
        self.dt = dt
        self.W_in = nn.Linear(input_size, hidden_size, bias=False)
        self.W_rec = nn.Linear(hidden_size, hidden_size)
        self.W_out = nn.Linear(hidden_size, output_size)
        self.W_h_init = nn.Linear(output_size, hidden_size)
        self.register_buffer("tau", torch.logspace(math.log10(tau_min), math.log10(tau_max), hidden_size))

    def forward(self, x: Tensor, start: Tensor) -> Tensor:
        """Predicted positions (batch, time, 2) for velocities `x` (batch, time, 2) and `start` (batch, 2)."""
        a = self.dt / self.tau  # (hidden,)
        h = torch.tanh(self.W_h_init(start))  # (batch, hidden)
        states = []
        # The input's share needs no state: one product for all steps is faster than one per step.
        for drive in self.W_in(x).unbind(dim=1):
            h = (1 - a) * h + a * torch.tanh(drive + self.W_rec(h))
            states.append(h)
        return self.W_out(torch.stack(states, dim=1))


def position_error(predicted: Tensor, position: Tensor) -> Tensor:
    """Distance between predicted and true position, averaged over walks and steps."""
    return torch.linalg.vector_norm(predicted - position, dim=-1).mean()


class PathIntegration(lightning.LightningModule):
    """Trains a network to say at each step of a walk where it is."""

    def __init__(self, rnn: nn.Module, learning_rate: float):
        super().__init__()
        self.rnn = rnn
        self.learning_rate = learning_rate

    def forward(self, velocity: Tensor, start: Tensor) -> Tensor:
        return self.rnn(velocity, start)

    def training_step(self, batch, batch_idx):
        velocity, start, position = batch
        loss = nn.functional.mse_loss(self(velocity, start), position)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        velocity, start, position = batch
        self.log("val/error", position_error(self(velocity, start), position), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
