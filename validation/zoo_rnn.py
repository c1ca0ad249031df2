# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks, sick and healthy. Tasks that need a memory say so in their hints."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.evidence import both, not_finite
from validation.evidence_special import learns_lag, time_ratio
from validation.evidence_training import learns_less
from validation.nets import SequenceModel, gate_bias_, spectral_
from validation.setups import pair
from validation.tasks import Task, recall

zoo = Zoo("rnn", "recurrent")


def lagged(rnn: nn.Module, task: Task, lag: int, classes: int = 4) -> Setup:
    """A task whose answer lies `lag` steps back, and a user who knows it."""
    return pair(SequenceModel(rnn, classes), task, hints={"required_lag": lag})


def plain(width: int, radius: float, layers: int = 1, nonlinearity: str = "tanh") -> nn.RNN:
    return spectral_(nn.RNN(8, width, layers, nonlinearity, batch_first=True), radius)


def lstm(width: int, forget: float) -> nn.LSTM:
    return gate_bias_(nn.LSTM(8, width, batch_first=True), 1, forget)


def gru(width: int, update: float) -> nn.GRU:
    return gate_bias_(nn.GRU(8, width, batch_first=True), 1, update)


# --- memory that is too short

FORGETS = both(time_ratio(below=1e-4), learns_less(lr=3e-3, steps=40, by=0.2))
orthogonal = zoo.healthy(
    "tanh-radius-1-lag-50", "tune", lambda s: lagged(plain(48, 1.0), recall(s, 50), 50), learns_lag(40)
)
zoo.sick(
    "tanh-radius-0.5-lag-50",
    "tune",
    lambda s: lagged(plain(48, 0.5), recall(s, 50), 50),
    FORGETS,
    "SHORT_MEMORY",
    "SPECTRAL_RADIUS",
    "VANISHING",
    layer="rnn",
    control=orthogonal,
)
remembers = zoo.healthy(
    "lstm-forget-bias-4-lag-40", "tune", lambda s: lagged(lstm(32, 4), recall(s, 40), 40), learns_lag(40)
)
zoo.sick(
    "lstm-forget-bias-minus-3-lag-40",
    "tune",
    lambda s: lagged(lstm(32, -3), recall(s, 40), 40),
    FORGETS,
    "SHORT_MEMORY",
    "SPECTRAL_RADIUS",
    "VANISHING",
    layer="rnn",
    control=remembers,
)
keeps = zoo.healthy(
    "gru-update-bias-4-lag-45", "tune", lambda s: lagged(gru(40, 4), recall(s, 45, 3), 45, 3), learns_lag(40, 1e-2)
)
zoo.sick(
    "gru-update-bias-minus-4-lag-45",
    "tune",
    lambda s: lagged(gru(40, -4), recall(s, 45, 3), 45, 3),
    FORGETS,
    "SHORT_MEMORY",
    "SPECTRAL_RADIUS",
    "VANISHING",
    layer="rnn",
    control=keeps,
)
two_layers = zoo.healthy(
    "relu-identity-lag-35", "tune", lambda s: lagged(identity(36, 1.0), recall(s, 35, 3), 35, 3), learns_lag(40)
)
zoo.sick(
    "relu-identity-times-0.6-lag-35",
    "tune",
    lambda s: lagged(identity(36, 0.6), recall(s, 35, 3), 35, 3),
    FORGETS,
    "SHORT_MEMORY",
    "SPECTRAL_RADIUS",
    "VANISHING",
    layer="rnn",
    control=two_layers,
)


@torch.no_grad()
def identity(width: int, radius: float) -> nn.RNN:
    """A ReLU network that starts as a scaled identity, after Le, Jaitly and Hinton."""
    rnn = nn.RNN(8, width, 1, "relu", batch_first=True)
    rnn.weight_hh_l0.copy_(radius * torch.eye(width))
    rnn.bias_hh_l0.zero_()
    rnn.bias_ih_l0.zero_()
    return rnn


class Stepwise(nn.Module):
    """A cell in a loop, the way people write it; `cut` loses the history between steps."""

    def __init__(self, width: int, classes: int, cut: bool) -> None:
        super().__init__()
        self.cell, self.head, self.cut = nn.RNNCell(8, width), nn.Linear(width, classes), cut
        nn.init.orthogonal_(self.cell.weight_hh)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.cell.hidden_size)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state.detach() if self.cut else state)
        return self.head(state)


def stepwise(seed: int, cut: bool) -> Setup:
    return pair(Stepwise(40, 3, cut), recall(seed, 20, 3), hints={"required_lag": 20})


looped = zoo.healthy("cell-in-a-loop-lag-20", "tune", lambda s: stepwise(s, False), learns_lag(40))
zoo.sick(
    "cell-in-a-loop-detached-between-steps",
    "tune",
    lambda s: stepwise(s, True),
    both(time_ratio(below=1e-12), learns_less(lr=3e-3, steps=40, by=0.05)),
    "DISCONNECTED",
    "SHORT_MEMORY",
    "VANISHING",
    layer="cell",
    control=looped,
)

# --- states that grow or never settle

zoo.sick(
    "relu-identity-times-1.5-length-40",
    "tune",
    lambda s: pair(SequenceModel(identity(32, 1.5), 4), recall(s, 40)),
    time_ratio(above=1e3),
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also={"UNSTABLE"},
    control=remembers,
)


@torch.no_grad()
def random_recurrence(width: int, gain: float, bound: str = "tanh") -> nn.RNN:
    rnn = nn.RNN(8, width, 1, bound, batch_first=True)
    rnn.weight_hh_l0.normal_(std=gain / width**0.5)
    rnn.weight_ih_l0.mul_(0.3)
    return rnn


def chaos(case: Case, seed: int) -> Evidence:
    """Two states that differ by next to nothing come apart, so that the gradient through time grows."""
    setup = case.make(seed)
    x = setup.input_fn()
    rnn = setup.model.rnn
    with torch.no_grad():
        start = torch.zeros(rnn.num_layers, len(x), rnn.hidden_size)
        a, b = rnn(x, start)[0], rnn(x, start + 1e-5)[0]
    growth = ((a - b)[:, -1].norm() / (a - b)[:, 0].norm()).item()
    return Evidence(growth > 100, f"a small difference grows {growth:.1e} times")


zoo.sick(
    "tanh-random-gain-4-length-40",
    "tune",
    lambda s: pair(SequenceModel(random_recurrence(64, 4.0), 4), recall(s, 40)),
    chaos,
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also={"SATURATION", "UNSTABLE"},
    control=orthogonal,
)
zoo.sick(
    "relu-random-gain-2.2-length-50",
    "tune",
    lambda s: pair(SequenceModel(random_recurrence(48, 2.2, "relu"), 3), recall(s, 50, 3)),
    time_ratio(above=1e3),
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also={"UNSTABLE"},
    control=keeps,
)


@torch.no_grad()
def wild_gru(width: int, gain: float) -> nn.GRU:
    rnn = nn.GRU(8, width, batch_first=True)
    rnn.weight_hh_l0.normal_(std=gain / width**0.5)
    return rnn


zoo.sick(
    "gru-recurrent-gain-5-length-60",
    "tune",
    lambda s: pair(SequenceModel(wild_gru(48, 5.0), 3), recall(s, 60, 3)),
    chaos,
    "SPECTRAL_RADIUS",
    "EXPLODING",
    layer="rnn",
    also={"SATURATION", "UNSTABLE"},
    control=keeps,
)
zoo.sick(
    "relu-identity-times-3-length-100-overflows",
    "tune",
    lambda s: pair(SequenceModel(identity(16, 3.0), 4), recall(s, 100, batch=16)),
    not_finite(batches=2),
    "NUMERICAL",
    "EXPLODING",
    "SPECTRAL_RADIUS",
    layer="rnn",
    also={"UNSTABLE"},
    control=orthogonal,
)
