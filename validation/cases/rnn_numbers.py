# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that saturate, die, are not finite, jump, run away or stand still, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.rnn_states import default, default_gru, default_lstm
from validation.evidence.recurrent import gates_flat, states_flat
from validation.evidence.signal import both, dead, no_gradient, not_finite
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread, learns_less, trains
from validation.labels import JUMPS, RUNS_AWAY
from validation.nets import SequenceModel, identity_rnn, spectral_
from validation.setups import every_step, pair, rated
from validation.tasks import Task, echo, every, series

zoo = Zoo("rnn", half="tune", analyzer="recurrent", proof=trains(lr=1e-2))


# --- saturated and dead

zoo.sick(
    "tanh-inputs-times-1e3",
    lambda s: pair(
        SequenceModel(spectral_(nn.RNN(8, 32, batch_first=True), 0.9), 6, every_step=True),
        echo(s, 14).mapped(lambda x: x * 1e3),
    ),
    states_flat("tanh", 0.9),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_lstm,
)
zoo.sick(
    "lstm-inputs-times-1e3",
    lambda s: pair(
        SequenceModel(nn.LSTM(8, 40, batch_first=True), 6, every_step=True), echo(s, 12).mapped(lambda x: x * 1e3)
    ),
    gates_flat(0.9, 4),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_gru,
)


@torch.no_grad()
def silent_rnn(width: int) -> nn.RNN:
    rnn = identity_rnn(width, 1.0)
    rnn.bias_ih_l0.fill_(-30)
    return rnn


zoo.sick(
    "relu-bias-minus-30",
    lambda s: pair(SequenceModel(silent_rnn(32), 6, every_step=True), echo(s, 12)),
    dead("rnn", 0.99),
    "DEAD",
    "VANISHING",
    "DISCONNECTED",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK"},
    control=default_gru,
)


def forecast(rnn: nn.Module, seed: int, scale: float = 1.0) -> Setup:
    task = series(seed).mapped(lambda x: x * scale)
    return pair(SequenceModel(rnn, 3, every_step=True), task)


sensor = zoo.healthy("gru-sensor-standardised", lambda s: forecast(nn.GRU(3, 36, batch_first=True), s))
zoo.sick(
    "gru-sensor-in-raw-counts",
    lambda s: forecast(nn.GRU(3, 36, batch_first=True), s, 2e4),
    both(gates_flat(0.95, 2), learns_less(lr=1e-2, steps=60, by=0.1)),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=sensor,
)


@torch.no_grad()
def silent_upper(width: int) -> nn.RNN:
    rnn = nn.RNN(8, width, 2, "relu", batch_first=True)
    rnn.bias_ih_l1.fill_(-40)
    return rnn


zoo.sick(
    "two-relu-layers-upper-bias-minus-40",
    lambda s: every_step(silent_upper(34), s),
    both(dead("rnn", 0.99), no_gradient("rnn")),
    "DEAD",
    "VANISHING",
    "DISCONNECTED",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK"},
    control=default,
)

# --- not finite, runs away, stands still, jumps


class Pooled(nn.Module):
    """The mean of the states of each sequence, over as many steps as it has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(6, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        states = self.rnn(x)[0] * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]
        return self.head(states.sum(dim=1) / lengths[:, None])


def pooled(seed: int, shortest: int) -> Setup:
    codes = 2 * torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        target = torch.randint(4, (24,), generator=random)
        lengths = torch.randint(2, 11, (24,), generator=random)
        lengths[3] = shortest
        return (codes[target][:, None] + torch.randn(24, 10, 6, generator=random), lengths), target

    return pair(Pooled(28), Task(seed, draw, F.cross_entropy))


means = zoo.healthy("gru-mean-over-lengths-2-to-10", lambda s: pooled(s, 2))
zoo.sick(
    "gru-mean-over-an-empty-sequence",
    lambda s: pooled(s, 0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("rnn", "head"),
    control=means,
)


def forecaster(kind: str = "GRU") -> SequenceModel:
    return SequenceModel(getattr(nn, kind)(3, 32, batch_first=True), 3, every_step=True)


paced = zoo.healthy(
    "gru-forecast-adam-3e-3", lambda s: rated(forecaster(), series(s), "Adam", 3e-3, 30), trains(steps=60)
)
zoo.sick(
    "gru-forecast-sgd-400",
    lambda s: rated(forecaster(), series(s), "SGD", 400.0, 20),
    diverges(),
    *RUNS_AWAY,
    also={"SATURATION", "SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK", "VANISHING", "DEAD"},
    control=paced,
)
zoo.sick(
    "lstm-forecast-adam-3e-9",
    lambda s: rated(forecaster("LSTM"), series(s), "Adam", 3e-9, 20),
    does_not_move(),
    "SLOW",
    control=paced,
)
zoo.healthy(
    "tanh-rnn-echo-adamax",
    lambda s: rated(
        SequenceModel(nn.RNN(8, 30, batch_first=True), 6, every_step=True), echo(s, 10), "Adamax", 1e-2, 30
    ),
    trains(steps=60),
)


def spikes(seed: int, size: float) -> Setup:
    """Every fifteenth recording has a fault of the sensor at its end."""
    now = every(15, 7)

    def loss(y: Tensor, target: Tensor) -> Tensor:
        jump = size if now() else 0.0
        return (y - target - jump).square().mean()

    setup = forecast(nn.GRU(3, 30, batch_first=True), seed)
    return pair(setup.model, series(seed).with_loss(loss), steps=45)


zoo.sick(
    "gru-sensor-jumps-in-every-fifteenth-batch",
    lambda s: spikes(s, 400.0),
    gradient_norms_spread(50),
    *JUMPS,
    control=sensor,
)
