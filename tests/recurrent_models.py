"""Small recurrent models, and what a probe says about them."""

import torch
from torch import nn

from gradient_flow.probes.recurrent.probe import RecurrentProbe

HIDDEN = 12


class LastOutput(nn.Module):
    """A recurrent module and a head on its last output."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        width = getattr(rnn, "proj_size", 0) or rnn.hidden_size
        self.head = nn.Linear(width * (2 if rnn.bidirectional else 1), 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Loop(nn.Module):
    """A cell in a Python loop and a head on its last state."""

    def __init__(self, cell, start=None):
        super().__init__()
        self.cell, self.head, self.start = cell, nn.Linear(HIDDEN, 2), start

    def forward(self, x):
        state = None if self.start is None else self.start(x)
        for step in x.unbind(1):
            result = self.cell(step, state)
            state = result[1] if isinstance(result, tuple) and len(result) == 2 and self.start == zeros_out else result
        return self.head(state[0] if isinstance(state, tuple) else state)


def zeros(x):
    return torch.zeros(len(x), HIDDEN, dtype=x.dtype)


def zeros_out(x):
    return zeros(x)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.input, self.state = nn.Linear(3, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, h):
        return torch.tanh(self.input(x) + self.state(h))


class CellWithOutput(Cell):
    def forward(self, x, h):
        h = super().forward(x, h)
        return h.sum(dim=-1, keepdim=True), h


def probed(model, *inputs, steps=1, loss=lambda output: output.square().mean(), **settings):
    with RecurrentProbe(model, **settings) as probe:
        for _ in range(steps):
            output = model(*inputs)
            loss(output).backward()
            probe.after_step(inputs, output)
    return probe


def dynamics_of(*args, **settings):
    probe = probed(*args, **settings)
    result = probe.result()
    assert result is not None, probe.reason
    return result


class Reservoir(nn.Module):
    """An echo-state network: a frozen matrix in a loop, and no module for a step."""

    def __init__(self, matrix, leak=1.0):
        super().__init__()
        self.register_buffer("reservoir", matrix)
        self.inputs, self.readout, self.leak = nn.Linear(3, len(matrix), bias=False), nn.Linear(len(matrix), 2), leak

    def forward(self, x):
        h = torch.zeros(len(x), len(self.reservoir), dtype=x.dtype)
        for step in x.unbind(1):
            h = (1 - self.leak) * h + self.leak * (self.inputs(step) + h @ self.reservoir.T)
        return self.readout(h)
