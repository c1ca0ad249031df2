# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that are not finite, saturate, die, jump, run away or stand still. Set aside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, Setup, Zoo
from validation.evidence import both, dead, judged, no_gradient, not_finite, slope_share
from validation.evidence_training import diverges, does_not_move, gradient_norms_spread, learns_less, trains
from validation.nets import SequenceModel
from validation.setups import pair, rated
from validation.tasks import Task, echo
from validation.tasks_unseen import series
from validation.unseen_rnn_states import default, every_step

zoo = Zoo("rnn", "recurrent", trains(lr=1e-2))

# --- numbers and rates


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


means = zoo.healthy("gru-mean-over-lengths-2-to-10", "tune", lambda s: pooled(s, 2), trains(lr=1e-2))
zoo.sick(
    "gru-mean-over-an-empty-sequence",
    "tune",
    lambda s: pooled(s, 0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("rnn", "head"),
    control=means,
)


def forecaster(kind: str = "GRU") -> SequenceModel:
    return SequenceModel(getattr(nn, kind)(3, 32, batch_first=True), 3, every_step=True)


forecast = zoo.healthy(
    "gru-forecast-adam-3e-3", "tune", lambda s: rated(forecaster(), series(s), "Adam", 3e-3, 30), trains(steps=60)
)
zoo.sick(
    "gru-forecast-sgd-400",
    "tune",
    lambda s: rated(forecaster(), series(s), "SGD", 400.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"SATURATION", "SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK", "VANISHING", "DEAD"},
    control=forecast,
)
zoo.sick(
    "lstm-forecast-adam-3e-9",
    "tune",
    lambda s: rated(forecaster("LSTM"), series(s), "Adam", 3e-9, 20),
    does_not_move(),
    "SLOW",
    control=forecast,
)
zoo.healthy(
    "tanh-rnn-echo-adamax",
    "tune",
    lambda s: rated(
        SequenceModel(nn.RNN(8, 30, batch_first=True), 6, every_step=True), echo(s, 10), "Adamax", 1e-2, 30
    ),
    trains(steps=60),
)

# --- saturated, dead, jumping


def gates_flat(at_least: float) -> Proof:
    """The gates of a GRU sit at 0 or 1 for what the input alone gives them."""

    def proof(case: Case, seed: int) -> Evidence:
        setup = case.make(seed)
        rnn, x = setup.model.rnn, setup.input_fn()
        z = nn.functional.linear(x, rnn.weight_ih_l0, rnn.bias_ih_l0).detach().double()[..., : 2 * rnn.hidden_size]
        share = slope_share(torch.sigmoid(z), "sigmoid")
        return judged(share > at_least, "{:.0%} of the gates flat", share)

    return proof


def forecast(rnn: nn.Module, seed: int, scale: float = 1.0) -> Setup:
    task = series(seed).mapped(lambda x: x * scale)
    return pair(SequenceModel(rnn, 3, every_step=True), task)


sensor = zoo.healthy("gru-sensor-standardised", "tune", lambda s: forecast(nn.GRU(3, 36, batch_first=True), s))
zoo.sick(
    "gru-sensor-in-raw-counts",
    "tune",
    lambda s: forecast(nn.GRU(3, 36, batch_first=True), s, 2e4),
    both(gates_flat(0.95), learns_less(lr=1e-2, steps=60, by=0.1)),
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
    "tune",
    lambda s: every_step(silent_upper(34), s),
    both(dead("rnn", 0.99), no_gradient("rnn")),
    "DEAD",
    "VANISHING",
    "DISCONNECTED",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK"},
    control=default,
)


def spikes(seed: int, size: float) -> Setup:
    """Every fifteenth recording has a fault of the sensor at its end."""
    count = iter(range(10**9))

    def loss(y: Tensor, target: Tensor) -> Tensor:
        jump = size if next(count) % 15 == 7 else 0.0
        return (y - target - jump).square().mean()

    setup = forecast(nn.GRU(3, 30, batch_first=True), seed)
    return pair(setup.model, series(seed).with_loss(loss), steps=45)


zoo.sick(
    "gru-sensor-jumps-in-every-fifteenth-batch",
    "tune",
    lambda s: spikes(s, 400.0),
    gradient_norms_spread(50),
    "UNSTABLE",
    "EXPLODING",
    control=sensor,
)
