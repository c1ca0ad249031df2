# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks whose memory is too short or whose states never settle, and their twins.

Half: tune.
"""

from __future__ import annotations

from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import apart, both, forgets, learns_lag, learns_less, not_finite, time_ratio
from validation.labels import CHAOTIC, GROWS, SHORT
from validation.nets import Leaky, SequenceModel, gate_bias_, identity_rnn, positive, spectral_, wild_
from validation.setups import lagged, pair
from validation.tasks import recall

zoo = Zoo("rnn", half="tune", analyzer="recurrent")


def plain(width: int, radius: float, layers: int = 1, nonlinearity: str = "tanh") -> nn.RNN:
    return spectral_(nn.RNN(8, width, layers, nonlinearity, batch_first=True), radius)


def lstm(width: int, forget: float) -> nn.LSTM:
    return gate_bias_(nn.LSTM(8, width, batch_first=True), 1, forget)


def gru(width: int, update: float) -> nn.GRU:
    return gate_bias_(nn.GRU(8, width, batch_first=True), 1, update)


# --- memory that is too short

FORGETS = forgets(3e-3, 0.2)
orthogonal = zoo.healthy(
    "tanh-radius-1-lag-50", lambda s: lagged(SequenceModel(plain(48, 1.0), 4), s, 50, batch=64), learns_lag(40)
)
zoo.sick(
    "tanh-radius-0.5-lag-50",
    lambda s: lagged(SequenceModel(plain(48, 0.5), 4), s, 50, batch=64),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=orthogonal,
)
remembers = zoo.healthy(
    "lstm-forget-bias-4-lag-40", lambda s: lagged(SequenceModel(lstm(32, 4), 4), s, 40, batch=64), learns_lag(40)
)
zoo.sick(
    "lstm-forget-bias-minus-3-lag-40",
    lambda s: lagged(SequenceModel(lstm(32, -3), 4), s, 40, batch=64),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=remembers,
)
keeps = zoo.healthy(
    "gru-update-bias-4-lag-45", lambda s: lagged(SequenceModel(gru(40, 4), 3), s, 45, 3, batch=64), learns_lag(40, 1e-2)
)
zoo.sick(
    "gru-update-bias-minus-4-lag-45",
    lambda s: lagged(SequenceModel(gru(40, -4), 3), s, 45, 3, batch=64),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=keeps,
)
two_layers = zoo.healthy(
    "relu-identity-lag-35",
    lambda s: lagged(SequenceModel(identity_rnn(36, 1.0), 3), s, 35, 3, batch=64),
    learns_lag(40),
)
zoo.sick(
    "relu-identity-times-0.6-lag-35",
    lambda s: lagged(SequenceModel(identity_rnn(36, 0.6), 3), s, 35, 3, batch=64),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=two_layers,
)


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


looped = zoo.healthy("cell-in-a-loop-lag-20", lambda s: stepwise(s, False), learns_lag(40))
zoo.sick(
    "cell-in-a-loop-detached-between-steps",
    lambda s: stepwise(s, True),
    both(time_ratio(below=1e-12), learns_less(lr=3e-3, steps=40, by=0.05)),
    "DISCONNECTED",
    "SHORT_MEMORY",
    "VANISHING",
    layer="cell",
    control=looped,
)


def two_lstms(forget: float) -> nn.LSTM:
    return gate_bias_(nn.LSTM(6, 28, 2, batch_first=True), 1, forget)


stacked = zoo.healthy(
    "two-lstms-forget-bias-5-lag-30",
    lambda s: lagged(SequenceModel(two_lstms(5.0), 3), s, 30, 3, 6),
    learns_lag(60, 1e-2),
)
zoo.sick(
    "two-lstms-forget-bias-minus-4-lag-30",
    lambda s: lagged(SequenceModel(two_lstms(-4.0), 3), s, 30, 3, 6),
    forgets(),
    *SHORT,
    layer="rnn",
    control=stacked,
)
leaky = zoo.healthy(
    "own-leaky-cell-keeps-0.98-lag-40",
    lambda s: lagged(SequenceModel(Leaky(8, 40, 0.98), 4), s, 40, 4, 8),
    learns_lag(60, 1e-2),
)
zoo.sick(
    "own-leaky-cell-keeps-0.3-lag-40",
    lambda s: lagged(SequenceModel(Leaky(8, 40, 0.3), 4), s, 40, 4, 8),
    forgets(),
    *SHORT,
    layer=("rnn.drive", "rnn.back"),
    control=leaky,
)
zoo.sick(
    "two-tanh-layers-radius-0.25-lag-25",
    lambda s: lagged(SequenceModel(spectral_(nn.RNN(5, 44, 2, batch_first=True), 0.25), 3), s, 25, 3, 5),
    forgets(),
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


lstm_loop = zoo.healthy(
    "lstm-cell-loop-lag-20", lambda s: lagged(CellLoop(32, False), s, 20, 3, 6), learns_lag(60, 1e-2)
)
zoo.sick(
    "lstm-cell-loop-from-copies",
    lambda s: lagged(CellLoop(32, True), s, 20, 3, 6),
    time_ratio(below=1e-12),
    "DISCONNECTED",
    "SHORT_MEMORY",
    "VANISHING",
    layer="cell",
    control=lstm_loop,
)

# --- states that grow or never settle

zoo.sick(
    "relu-identity-times-1.5-length-40",
    lambda s: pair(SequenceModel(identity_rnn(32, 1.5), 4), recall(s, 40)),
    time_ratio(above=1e3),
    *CHAOTIC,
    layer="rnn",
    also={"UNSTABLE"},
    control=remembers,
)
zoo.sick(
    "tanh-random-gain-4-length-40",
    lambda s: pair(SequenceModel(wild_(nn.RNN(8, 64, batch_first=True), 4.0, 0.3), 4), recall(s, 40)),
    apart,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=orthogonal,
)
zoo.sick(
    "relu-random-gain-2.2-length-50",
    lambda s: pair(SequenceModel(wild_(nn.RNN(8, 48, 1, "relu", batch_first=True), 2.2, 0.3), 3), recall(s, 50, 3)),
    time_ratio(above=1e3),
    *CHAOTIC,
    layer="rnn",
    also={"UNSTABLE"},
    control=keeps,
)
zoo.sick(
    "gru-recurrent-gain-5-length-60",
    lambda s: pair(SequenceModel(wild_(nn.GRU(8, 48, batch_first=True), 5.0, 1.0), 3), recall(s, 60, 3)),
    apart,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=keeps,
)
zoo.sick(
    "relu-identity-times-3-length-100-overflows",
    lambda s: pair(SequenceModel(identity_rnn(16, 3.0), 4), recall(s, 100, batch=16)),
    not_finite(batches=2),
    "NUMERICAL",
    "EXPLODING",
    "SPECTRAL_RADIUS",
    layer="rnn",
    also={"UNSTABLE"},
    control=orthogonal,
)
zoo.sick(
    "two-relu-layers-radius-1.4-length-40",
    lambda s: pair(SequenceModel(positive(6, 24, 1.4), 3), recall(s, 40, 3, 6, 32)),
    time_ratio(above=1e3),
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=stacked,
)
zoo.sick(
    "tanh-gain-7-width-96-length-30",
    lambda s: pair(SequenceModel(wild_(nn.RNN(6, 96, batch_first=True), 7.0), 3), recall(s, 30, 3, 6, 32)),
    apart,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=stacked,
)
zoo.sick(
    "lstm-recurrent-gain-14-length-50",
    lambda s: pair(SequenceModel(wild_(nn.LSTM(6, 48, batch_first=True), 14.0), 3), recall(s, 50, 3, 6, 32)),
    apart,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=stacked,
)
