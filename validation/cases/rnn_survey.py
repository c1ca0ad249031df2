# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks with one fault of each kind, their twins, and odd healthy ones.

Half: holdout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.evidence.recurrent import apart, forgets, learns_lag, states_rank, time_ratio
from validation.evidence.signal import both, no_gradient, not_finite
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread, learns_less, trains
from validation.labels import CHAOTIC, GROWS, JUMPS, ONE_WAY, RUNS_AWAY, SHORT
from validation.nets import Cell, Leaky, SequenceModel, gate_bias_, positive, spectral_, wild_
from validation.setups import every_step, lagged, pair, rated
from validation.tasks import echo, every, recall, series

zoo = Zoo("rnn", half="holdout", analyzer="recurrent", proof=trains(lr=1e-2))


# --- memory that is too short

lstm = zoo.healthy(
    "lstm-44-forget-bias-6-lag-35",
    lambda s: lagged(SequenceModel(gate_bias_(nn.LSTM(7, 44, batch_first=True), 1, 6.0), 3), s, 35, 3, 7),
    learns_lag(80, 1e-2),
)
zoo.sick(
    "lstm-44-forget-bias-minus-3-lag-35",
    lambda s: lagged(SequenceModel(gate_bias_(nn.LSTM(7, 44, batch_first=True), 1, -3.0), 3), s, 35, 3, 7),
    forgets(),
    *SHORT,
    layer="rnn",
    control=lstm,
)
gru = zoo.healthy(
    "gru-36-update-bias-5-lag-28",
    lambda s: lagged(SequenceModel(gate_bias_(nn.GRU(6, 36, batch_first=True), 1, 5.0), 4), s, 28, 4, 6),
    learns_lag(80, 1e-2),
)
zoo.sick(
    "gru-36-update-bias-minus-5-lag-28",
    lambda s: lagged(SequenceModel(small_gru(36, -5.0), 4), s, 28, 4, 6),
    forgets(),
    *SHORT,
    layer="rnn",
    control=gru,
)


@torch.no_grad()
def small_gru(width: int, update: float) -> nn.GRU:
    """Overwrites its state at every step, and reads little of the old one."""
    rnn = gate_bias_(nn.GRU(6, width, batch_first=True), 1, update)
    rnn.weight_hh_l0 *= 0.3
    return rnn


zoo.sick(
    "tanh-52-radius-0.3-lag-22",
    lambda s: lagged(SequenceModel(spectral_(nn.RNN(6, 52, batch_first=True), 0.3), 4), s, 22, 4, 6),
    forgets(),
    *SHORT,
    layer="rnn",
    control=gru,
)
keeps = zoo.healthy(
    "own-leaky-cell-keeps-0.97-lag-24",
    lambda s: lagged(SequenceModel(Leaky(5, 30, 0.97), 3), s, 24, 3, 5),
    learns_lag(60, 1e-2),
)
zoo.sick(
    "own-leaky-cell-keeps-0.45-lag-24",
    lambda s: lagged(SequenceModel(Leaky(5, 30, 0.45), 3), s, 24, 3, 5),
    forgets(),
    *SHORT,
    layer=("rnn.drive", "rnn.back"),
    control=keeps,
)

# --- states that grow or never settle

zoo.sick(
    "two-relu-layers-radius-1.6-length-28",
    lambda s: pair(SequenceModel(positive(7, 32, 1.6), 3), recall(s, 28, 3, 7, 40)),
    time_ratio(above=1e3),
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=lstm,
)
zoo.sick(
    "tanh-gain-9-width-64-length-26",
    lambda s: pair(SequenceModel(wild_(nn.RNN(7, 64, batch_first=True), 9.0), 3), recall(s, 26, 3, 7, 40)),
    apart,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=lstm,
)


class Linear(Cell):
    """Own cell without any activation: state ← x W + state R."""

    def __init__(self, dim: int, width: int, radius: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.drive, self.back = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.back.weight, gain=radius)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.drive(x) + self.back(state)


zoo.sick(
    "own-linear-cell-radius-1.5-length-30",
    lambda s: pair(SequenceModel(Linear(5, 30, 1.5), 3), recall(s, 30, 3, 5, 40)),
    time_ratio(above=1e3),
    *CHAOTIC,
    layer=("rnn.drive", "rnn.back"),
    also=GROWS,
    control=keeps,
)

# --- narrow, flat, equal, cut

plain = zoo.healthy("gru-48-echo-of-9", lambda s: every_step(nn.GRU(8, 48, batch_first=True), s, 14, 9, batch=40))


@torch.no_grad()
def one_way(rnn: nn.RNNBase) -> nn.RNNBase:
    """Input enters along one direction, and the state is not read back."""
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_ih"):
            way = torch.randn(weight.shape[0], 1) @ torch.randn(1, weight.shape[1]) / weight.shape[1]
            weight.copy_(way)
        else:
            weight.zero_()
    return rnn


LOW = {*SHORT, "SYMMETRY", "SATURATION"}
zoo.sick(
    "tanh-60-input-along-one-direction",
    lambda s: every_step(one_way(nn.RNN(8, 60, batch_first=True)), s, 14, 9, batch=40),
    states_rank(2.5),
    *ONE_WAY,
    layer="rnn",
    also=LOW,
    control=plain,
)
zoo.sick(
    "lstm-40-input-along-one-direction",
    lambda s: every_step(one_way(nn.LSTM(8, 40, batch_first=True)), s, 14, 9, batch=40),
    states_rank(3),
    *ONE_WAY,
    layer="rnn",
    also=LOW,
    control=plain,
)


class Compressed(nn.Module):
    """Two GRUs with a summary of `narrow` numbers per step between them; `cut` takes it out of the graph."""

    def __init__(self, narrow: int, cut: bool = False) -> None:
        super().__init__()
        self.low, self.squeeze = nn.GRU(8, 32, batch_first=True), nn.Linear(32, narrow)
        self.high, self.head = nn.GRU(narrow, 32, batch_first=True), nn.Linear(32, 11)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        summary = self.squeeze(self.low(x)[0])
        return self.head(self.high(summary.detach() if self.cut else summary)[0])


def compressed(seed: int, narrow: int, cut: bool = False) -> Setup:
    return pair(Compressed(narrow, cut), echo(seed, 10, 11, 8, 40))


wide = zoo.healthy("two-grus-summary-of-24", lambda s: compressed(s, 24), trains(lr=1e-2, steps=60))
zoo.sick(
    "two-grus-summary-of-1-for-11-classes",
    lambda s: compressed(s, 1),
    learns_less(lr=1e-2, steps=100, by=0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("squeeze", "high"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=wide,
)
zoo.sick(
    "two-grus-summary-detached",
    lambda s: compressed(s, 24, True),
    no_gradient("low", "squeeze"),
    "DISCONNECTED",
    layer=("squeeze", "low"),
    also={"DEAD"},
    control=wide,
)

# --- numbers and rates


def forecast(seed: int, kind: str, lr: float) -> Setup:
    return rated(SequenceModel(nn.GRU(3, 26, batch_first=True), 3, every_step=True), series(seed), kind, lr, 20)


paced = zoo.healthy("gru-26-forecast-adam-1e-2", lambda s: forecast(s, "Adam", 1e-2), trains(steps=50))
zoo.sick("gru-26-forecast-sgd-2e-8", lambda s: forecast(s, "SGD", 2e-8), does_not_move(), "SLOW", control=paced)
zoo.sick(
    "gru-26-forecast-rmsprop-9",
    lambda s: forecast(s, "RMSprop", 9.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=paced,
)


def changed(seed: int, change) -> Setup:
    model = SequenceModel(nn.LSTM(3, 26, batch_first=True), 3, every_step=True)
    return pair(model, series(seed).mapped(change), steps=48)


def gap(x: Tensor) -> Tensor:
    x = x.clone()
    x[1, 5] = float("nan")
    return x


@torch.no_grad()
def gates_beyond_3(case: Case, seed: int) -> Evidence:
    """Most gates are past ±3 by what the input and the biases say, whatever the bounded state adds."""
    setup = case.make(seed)
    rnn = setup.model.rnn
    driven = (setup.input_fn() @ rnn.weight_ih_l0.T + rnn.bias_ih_l0 + rnn.bias_hh_l0).abs()
    share = (driven - rnn.weight_hh_l0.abs().sum(dim=1) > 3).float().mean().item()
    return Evidence(share > 0.9, f"{share:.0%} of the gates are saturated")


whole = zoo.healthy("lstm-26-forecast", lambda s: changed(s, lambda x: x), trains(lr=1e-2, steps=60))
zoo.sick(
    "lstm-26-forecast-with-a-gap-in-the-record",
    lambda s: changed(s, gap),
    not_finite(batches=2),
    "NUMERICAL",
    layer="rnn",
    control=whole,
)
zoo.sick(
    "lstm-26-forecast-in-raw-counts",
    lambda s: changed(s, lambda x: 2000 * x),
    both(gates_beyond_3, learns_less(lr=1e-2, by=0.1)),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "EXPLODING"},
    control=whole,
)


def bursts(seed: int, times: float) -> Setup:
    """Every twelfth batch has errors that many times as dear."""
    now = every(12, 6)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return (y - t).square().mean() * (times if now() else 1.0)

    model = SequenceModel(nn.LSTM(3, 22, batch_first=True), 3, every_step=True)
    return pair(model, series(seed).with_loss(loss), steps=60)


level = zoo.healthy("lstm-22-forecast-even-weights", lambda s: bursts(s, 1.0), trains(lr=1e-2, steps=60))
zoo.sick(
    "lstm-22-forecast-every-twelfth-batch-times-300",
    lambda s: bursts(s, 300.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=level,
)

# --- odd and healthy

zoo.healthy(
    "bidirectional-gru-20-echo-of-9",
    lambda s: pair(
        SequenceModel(nn.GRU(8, 20, batch_first=True, bidirectional=True), 9, every_step=True, features=40),
        echo(s, 14, 9, 8, 40),
    ),
)
zoo.healthy("tanh-40-echo-of-9", lambda s: every_step(nn.RNN(8, 40, batch_first=True), s, 14, 9, batch=40))
zoo.healthy(
    "gru-60-echo-of-lag-2",
    lambda s: pair(SequenceModel(nn.GRU(8, 60, batch_first=True), 5, every_step=True), echo(s, 10, 5, 8, 48, lag=2)),
    trains(lr=1e-2, steps=80),
)
