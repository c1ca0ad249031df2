# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks with faults of memory and of dynamics, and their twins: stacks, own cells. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.evidence import both
from validation.evidence_special import learns_lag, time_ratio
from validation.evidence_training import learns_less
from validation.nets import SequenceModel, gate_bias_, spectral_
from validation.setups import pair
from validation.tasks import recall

zoo = Zoo("rnn", "recurrent")


def lagged(model: nn.Module, seed: int, lag: int, classes: int, dim: int, batch: int = 48) -> Setup:
    """A task whose answer lies `lag` steps back, and a user who knows it."""
    return pair(model, recall(seed, lag, classes, dim, batch), hints={"required_lag": lag})


# --- memory that is too short

FORGETS = both(time_ratio(below=1e-4), learns_less(lr=5e-3, steps=40, by=0.1))
SHORT = ("SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING")


def two_lstms(forget: float) -> nn.LSTM:
    return gate_bias_(nn.LSTM(6, 28, 2, batch_first=True), 1, forget)


stacked = zoo.healthy(
    "two-lstms-forget-bias-5-lag-30",
    "tune",
    lambda s: lagged(SequenceModel(two_lstms(5.0), 3), s, 30, 3, 6),
    learns_lag(60, 1e-2),
)
zoo.sick(
    "two-lstms-forget-bias-minus-4-lag-30",
    "tune",
    lambda s: lagged(SequenceModel(two_lstms(-4.0), 3), s, 30, 3, 6),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=stacked,
)


class Leaky(nn.Module):
    """Own cell: a leaky integrator of a driven tanh; `keep` is what stays of the state per step."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size, self.keep = width, keep
        self.drive, self.back = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.back.weight, std=0.1 / width**0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(len(x), self.hidden_size)
        states = []
        for t in range(x.shape[1]):
            state = self.keep * state + torch.tanh(self.drive(x[:, t]) + self.back(state)) * (1 - 0.5 * self.keep)
            states.append(state)
        return torch.stack(states, dim=1), state


keeps = zoo.healthy(
    "own-leaky-cell-keeps-0.98-lag-40",
    "tune",
    lambda s: lagged(SequenceModel(Leaky(8, 40, 0.98), 4), s, 40, 4, 8),
    learns_lag(60, 1e-2),
)
zoo.sick(
    "own-leaky-cell-keeps-0.3-lag-40",
    "tune",
    lambda s: lagged(SequenceModel(Leaky(8, 40, 0.3), 4), s, 40, 4, 8),
    FORGETS,
    *SHORT,
    layer=("rnn.drive", "rnn.back"),
    control=keeps,
)
zoo.sick(
    "two-tanh-layers-radius-0.25-lag-25",
    "tune",
    lambda s: lagged(SequenceModel(spectral_(nn.RNN(5, 44, 2, batch_first=True), 0.25), 3), s, 25, 3, 5),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=stacked,
)


class CellLoop(nn.Module):
    """An LSTM cell in a loop; `fresh` starts every step from a copy of the state without history."""

    def __init__(self, width: int, fresh: bool) -> None:
        super().__init__()
        self.cell, self.head, self.fresh = nn.LSTMCell(6, width), nn.Linear(width, 3), fresh
        nn.init.constant_(self.cell.bias_ih[width : 2 * width], 4.0)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.cell.hidden_size)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h.clone().detach(), c.clone().detach()) if self.fresh else (h, c))
        return self.head(h)


looped = zoo.healthy(
    "lstm-cell-loop-lag-20", "tune", lambda s: lagged(CellLoop(32, False), s, 20, 3, 6), learns_lag(60, 1e-2)
)
zoo.sick(
    "lstm-cell-loop-from-copies",
    "tune",
    lambda s: lagged(CellLoop(32, True), s, 20, 3, 6),
    time_ratio(below=1e-12),
    "DISCONNECTED",
    "SHORT_MEMORY",
    "VANISHING",
    layer="cell",
    control=looped,
)

# --- states that grow or never settle


def apart(case: Case, seed: int) -> Evidence:
    """Two runs whose first input differs by next to nothing come apart."""
    setup = case.make(seed)
    x = setup.input_fn().double()
    rnn = setup.model.rnn.double()
    nudged = x.clone()
    nudged[:, 0] += 1e-9
    with torch.no_grad():
        difference = (rnn(x)[0] - rnn(nudged)[0]).norm(dim=2).mean(dim=0)
    growth = (difference[-1] / difference[0]).item()
    return Evidence(growth > 100, f"a small difference grows {growth:.1e} times")


@torch.no_grad()
def wild(rnn: nn.RNNBase, gain: float) -> nn.RNNBase:
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            weight.normal_(std=gain / rnn.hidden_size**0.5)
        elif name.startswith("weight_ih"):
            weight.mul_(0.5)
    return rnn


GROWS = {"UNSTABLE", "SATURATION"}
zoo.sick(
    "two-relu-layers-radius-1.4-length-40",
    "tune",
    lambda s: pair(SequenceModel(positive(6, 24, 1.4), 3), recall(s, 40, 3, 6, 32)),
    time_ratio(above=1e3),
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also=GROWS,
    control=stacked,
)


@torch.no_grad()
def positive(dim: int, width: int, radius: float) -> nn.RNN:
    """ReLU layers with recurrent weights that are not negative, so that nothing ever shrinks a state."""
    rnn = nn.RNN(dim, width, 2, "relu", batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            weight.abs_()
            weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())
    return rnn


zoo.sick(
    "tanh-gain-7-width-96-length-30",
    "tune",
    lambda s: pair(SequenceModel(wild(nn.RNN(6, 96, batch_first=True), 7.0), 3), recall(s, 30, 3, 6, 32)),
    apart,
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also=GROWS,
    control=stacked,
)
zoo.sick(
    "lstm-recurrent-gain-14-length-50",
    "tune",
    lambda s: pair(SequenceModel(wild(nn.LSTM(6, 48, batch_first=True), 14.0), 3), recall(s, 50, 3, 6, 32)),
    apart,
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also=GROWS,
    control=stacked,
)
