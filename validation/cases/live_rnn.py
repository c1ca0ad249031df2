# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks with one fault each, trained under watch, and their twins.

Half: live.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, lags, lasting, never_fires, thrives
from validation.evidence.recurrent import FORGETS, gates_flat, states_rank, time_ratio
from validation.evidence.signal import no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import CHAOTIC, GROWS, JUMPS, ONE_WAY, RUNS_AWAY, SHORT
from validation.nets import Cell, gate_bias_, spectral_, wild_
from validation.nets.programs import Tagger
from validation.setups import live, told
from validation.tasks import adding, brackets, every, markov, swings, tanks

zoo = Zoo("rnn", half="live", analyzer="recurrent", proof=thrives())


def signs(seed: int, rnn: nn.Module, length: int = 30, features: int | None = None, **more) -> Setup:
    """Say at the end which sign came first."""
    model = Tagger(nn.Linear(8, 12), rnn, 5, features or rnn.hidden_size, last=True)
    return told(model, tanks(seed, length), length - 1, **{"lr": 1e-2, "steps": 60, **more})


def lstm(width: int, forget: float, layers: int = 1, **more) -> nn.LSTM:
    return gate_bias_(nn.LSTM(12, width, layers, batch_first=True, **more), 1, forget)


# --- memory that is too short

keeps = zoo.healthy("signs-lstm-28-forget-bias-5", lambda s: signs(s, lstm(28, 5.0)))
zoo.sick(
    "signs-lstm-28-forget-bias-minus-3", lambda s: signs(s, lstm(28, -3.0)), FORGETS, *SHORT, layer="rnn", control=keeps
)
zoo.sick(
    "signs-two-lstms-22-forget-bias-minus-4",
    lambda s: signs(s, lstm(22, -4.0, 2), lr=5e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=keeps,
)
gru = zoo.healthy(
    "signs-gru-32-update-bias-4", lambda s: signs(s, gate_bias_(nn.GRU(12, 32, batch_first=True), 1, 4.0))
)


@torch.no_grad()
def weak_gru(width: int) -> nn.GRU:
    rnn = gate_bias_(nn.GRU(12, width, batch_first=True), 1, -5.0)
    rnn.weight_hh_l0 *= 0.3
    return rnn


zoo.sick(
    "signs-gru-32-update-bias-minus-5",
    lambda s: signs(s, weak_gru(32), lr=3e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=gru,
)
zoo.sick(
    "signs-tanh-40-radius-0.35",
    lambda s: signs(s, spectral_(nn.RNN(12, 40, batch_first=True), 0.35), lr=1e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=gru,
)


class Loop(nn.Module):
    """A cell of torch in a Python loop, read at the end; `leak` multiplies the state between steps."""

    def __init__(self, cell: nn.Module, out: int, leak: float = 1.0, window: int | None = None) -> None:
        super().__init__()
        self.cell, self.fc, self.leak, self.window = cell, nn.Linear(cell.hidden_size, out), leak, window

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), self.cell.hidden_size)
        for t, now in enumerate(x.unbind(1)):
            if self.window and t % self.window == 0:
                h = h.detach()
            h = self.cell(now, self.leak * h)
        return self.fc(h)


def gru_cell(dim: int, width: int) -> nn.GRUCell:
    cell = nn.GRUCell(dim, width)
    cell.bias_hh.data[width : 2 * width] = 4.0
    return cell


def early_sum(seed: int, leak: float, length: int = 24, window: int | None = None) -> Setup:
    """The first two of many numbers are to be added."""
    return told(Loop(gru_cell(2, 30), 1, leak, window), adding(seed, length, early=True), length - 1, lr=1e-2, steps=60)


adds = zoo.healthy("early-sum-gru-cell-in-a-loop", lambda s: early_sum(s, 1.0), thrives(0.3))
zoo.sick(
    "early-sum-gru-cell-state-halved-every-step",
    lambda s: early_sum(s, 0.5),
    FORGETS,
    *SHORT,
    layer="cell",
    control=adds,
)


class Decay(Cell):
    """Own cell: a share of the state stays, the rest is new."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size, self.keep = width, keep
        self.w, self.u = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        self.u.weight.data *= 0.2

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.keep * state + (1 - self.keep) * F.softsign(self.w(x) + self.u(state)) * 2


decay = zoo.healthy("signs-own-decay-0.96", lambda s: signs(s, Decay(12, 36, 0.96), 24))
zoo.sick(
    "signs-own-decay-0.3",
    lambda s: signs(s, Decay(12, 36, 0.3), 24, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.w", "rnn.u"),
    control=decay,
)
zoo.sick(
    "early-sum-history-cut-every-eight-steps",
    lambda s: early_sum(s, 1.0, window=8),
    lasting(time_ratio(below=1e-12)),
    "DISCONNECTED",
    "SHORT_MEMORY",
    "VANISHING",
    layer="cell",
    control=adds,
)


class Gated(nn.Module):
    """A minimal gated unit by hand: one gate says how much of the state is new."""

    def __init__(self, dim: int, width: int, bias: float) -> None:
        super().__init__()
        self.hidden_size, self.f, self.h = width, nn.Linear(dim + width, width), nn.Linear(dim + width, width)
        nn.init.constant_(self.f.bias, bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in x.unbind(1):
            gate = torch.sigmoid(self.f(torch.cat([now, state], dim=1)))
            state = (1 - gate) * state + gate * torch.tanh(self.h(torch.cat([now, gate * state], dim=1)))
            states.append(state)
        return torch.stack(states, dim=1), state


gated = zoo.healthy("signs-own-gated-unit-keeps", lambda s: signs(s, Gated(12, 28, -3.5), 24, lr=5e-3), thrives(0.3))
zoo.sick(
    "signs-own-gated-unit-overwrites",
    lambda s: signs(s, Gated(12, 28, 6.0), 24, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.f", "rnn.h"),
    control=gated,
)

# --- states that grow or never settle


def grown(seed: int, rnn: nn.Module, length: int = 30, lr: float = 1e-4, **more) -> Setup:
    return signs(seed, rnn, length, lr=lr, steps=40, clip=1.0, **more)


@torch.no_grad()
def relu_rnn(width: int, radius: float, layers: int = 1) -> nn.RNN:
    rnn = nn.RNN(12, width, layers, "relu", batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            weight.copy_(radius * torch.eye(width) + 0.01 * torch.randn(width, width).abs())
    return rnn


identity = zoo.healthy("signs-relu-identity-clipped", lambda s: signs(s, relu_rnn(24, 0.97), 20, lr=1e-3, clip=1.0))
zoo.sick(
    "signs-relu-identity-times-1.5-clipped",
    lambda s: grown(s, relu_rnn(24, 1.5)),
    lasting(time_ratio(above=1e3)),
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=identity,
)
zoo.sick(
    "signs-two-relu-layers-times-1.35-clipped",
    lambda s: grown(s, relu_rnn(20, 1.35, 2)),
    lasting(time_ratio(above=1e3)),
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=identity,
)
zoo.sick(
    "signs-tanh-72-gain-8-clipped",
    lambda s: grown(s, wild_(nn.RNN(12, 72, batch_first=True), 8.0), lr=1e-3),
    lasting(time_ratio(above=1e3)),
    *CHAOTIC,
    layer="rnn",
    also={*GROWS, "SHORT_MEMORY"},
    control=gru,
)


class Affine(Cell):
    """Own cell without any activation, its recurrence a scaled rotation."""

    def __init__(self, dim: int, width: int, radius: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.w, self.u = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.u.weight, gain=radius)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.w(x) + self.u(state)


turning = zoo.healthy("signs-own-rotation-of-radius-1", lambda s: signs(s, Affine(12, 24, 1.0), 20, lr=3e-3))
zoo.sick(
    "signs-own-rotation-of-radius-1.4-clipped",
    lambda s: grown(s, Affine(12, 24, 1.4)),
    lasting(time_ratio(above=1e3)),
    *CHAOTIC,
    layer=("rnn.w", "rnn.u"),
    also=GROWS,
    control=turning,
)


def wild_cell(width: int, gain: float) -> nn.RNNCell:
    cell = nn.RNNCell(2, width, nonlinearity="relu")
    cell.weight_hh.data = gain * (torch.eye(width) + 0.02 * torch.rand(width, width))
    return cell


calm_cell = zoo.healthy(
    "early-sum-relu-cell-of-radius-1",
    lambda s: told(Loop(wild_cell(24, 0.8), 1), adding(s, 12, early=True), 11, lr=3e-3, steps=60, clip=1.0),
)
zoo.sick(
    "early-sum-relu-cell-times-1.6-clipped",
    lambda s: told(Loop(wild_cell(24, 1.6), 1), adding(s, 24, early=True), 23, lr=1e-4, steps=40, clip=1.0),
    lasting(time_ratio(above=1e3)),
    *CHAOTIC,
    layer="cell",
    also=GROWS,
    control=calm_cell,
)
zoo.sick(
    "signs-gru-40-gain-30-clipped",
    lambda s: grown(s, wild_(nn.GRU(12, 40, batch_first=True), 30.0, 1.0), 40, lr=1e-3),
    lasting(time_ratio(above=1e3)),
    *CHAOTIC,
    layer="rnn",
    also={*GROWS, "SHORT_MEMORY"},
    control=gru,
)

# --- narrow, flat, dead, cut


class Between(nn.Module):
    """Two LSTMs with `narrow` numbers per step between them; `cut` takes those out of the graph."""

    def __init__(self, narrow: int, cut: bool = False) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(30, 16), nn.LSTM(16, 28, batch_first=True)
        self.squeeze, self.second = nn.Linear(28, narrow), nn.LSTM(narrow, 28, batch_first=True)
        self.tag, self.cut = nn.Linear(28, 30), cut

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.squeeze(self.first(self.words(tokens))[0])
        return self.tag(self.second(h.detach() if self.cut else h)[0])


def between(seed: int, narrow: int, cut: bool = False) -> Setup:
    return live(Between(narrow, cut), markov(seed, 30, 12, 24), lr=1e-2, steps=60)


wide = zoo.healthy("words-two-lstms-20-between", lambda s: between(s, 20))
zoo.sick(
    "words-two-lstms-1-between",
    lambda s: between(s, 1),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("squeeze", "second"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=wide,
)
zoo.sick(
    "words-two-lstms-cut-between",
    lambda s: between(s, 20, True),
    lasting(no_gradient("words", "first", "squeeze")),
    "DISCONNECTED",
    layer=("squeeze", "first"),
    also={"DEAD"},
    control=wide,
)


def thin(seed: int, size: int) -> Setup:
    """Six brackets as so many numbers, and a state as thin."""
    model = Tagger(nn.Embedding(6, 8), nn.GRU(8, size, batch_first=True), 4, size)
    return live(model, brackets(seed), lr=2e-2, steps=80)


thick = zoo.healthy("brackets-gru-of-32", lambda s: thin(s, 32))
zoo.sick(
    "brackets-gru-of-1",
    lambda s: thin(s, 1),
    lags(0.12),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("rnn", "fc"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=thick,
)


class OneWay(nn.Module):
    """A projection whose matrix is a product of two vectors, in front of a recurrence that reads nothing back."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden_size = width
        self.row, self.column = nn.Parameter(torch.randn(1, dim)), nn.Parameter(torch.randn(width, 1))
        self.keep = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        drive, state, states = F.linear(x, self.column @ self.row), 0.0, []
        for now in drive.unbind(1):
            state = 0.3 * torch.tanh(now) + torch.sigmoid(self.keep) * state
            states.append(state)
        return torch.stack(states, dim=1), None


zoo.sick(
    "brackets-own-cell-driven-along-one-direction",
    lambda s: live(Tagger(nn.Embedding(6, 8), OneWay(8, 32), 4, 32), brackets(s), lr=1e-2, steps=60),
    lasting(states_rank(2.5)),
    *ONE_WAY,
    layer=("rnn",),
    also={*SHORT, "SYMMETRY", "SATURATION"},
    control=thick,
)


def raw(seed: int, factor: float) -> Setup:
    """A forecast of counts that nobody scaled; the loss is scaled."""
    task = swings(seed).mapped(lambda x: factor * x)
    return live(Tagger(nn.Identity(), nn.LSTM(2, 24, batch_first=True), 2, 24), task, lr=5e-3, steps=60)


swinging = zoo.healthy("swings-lstm-24", lambda s: raw(s, 1.0))
zoo.sick(
    "swings-lstm-24-raw-counts",
    lambda s: raw(s, 3000.0),
    lasting(gates_flat(0.9, 2)),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "EXPLODING"},
    control=swinging,
)


class Read(nn.Module):
    """An LSTM, then a dense layer with torch.relu before the answer; `low` pushes that layer under."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.rnn, self.dense, self.out = nn.LSTM(2, 24, batch_first=True), nn.Linear(24, 40), nn.Linear(40, 2)
        self.dense.bias.data -= low

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.dense(self.rnn(x)[0])))


dense = zoo.healthy("swings-lstm-and-dense-relu", lambda s: live(Read(0.0), swings(s), lr=5e-3, steps=50))
zoo.sick(
    "swings-lstm-and-dense-relu-dead",
    lambda s: live(Read(15.0), swings(s), lr=5e-3, steps=50),
    lasting(never_fires("dense", 0.99), no_gradient("rnn", "dense")),
    "DEAD",
    layer="dense",
    also={"DISCONNECTED", "VANISHING", *SHORT},
    control=dense,
)

# --- numbers and rates


def holes(seed: int, filled: bool) -> Setup:
    now = every(30, 9)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        if now():
            x[2, 4] = 0.0 if filled else float("nan")
        return x

    return live(Tagger(nn.Identity(), nn.GRU(2, 20, batch_first=True), 2, 20), swings(seed).mapped(change), lr=5e-3)


filled = zoo.healthy("swings-gru-holes-filled", lambda s: holes(s, True))
zoo.sick("swings-gru-a-hole-in-the-tenth-batch", lambda s: holes(s, False), breaks, "NUMERICAL", control=filled)


def bursts(seed: int, times: float) -> Setup:
    now = every(11, 6)
    task = swings(seed).with_loss(lambda y, t: F.mse_loss(y, t) * (times if now() else 1.0))
    return live(Tagger(nn.Identity(), nn.GRU(2, 20, batch_first=True), 2, 20), task, lr=3e-3, steps=66)


even = zoo.healthy("swings-gru-even-weights", lambda s: bursts(s, 1.0))
zoo.sick(
    "swings-gru-every-eleventh-batch-times-400",
    lambda s: bursts(s, 400.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)


def pace(seed: int, kind: str, lr: float) -> Setup:
    return live(Tagger(nn.Linear(2, 8), nn.LSTM(8, 20, batch_first=True), 2, 20), swings(seed), kind, lr, 50)


paced = zoo.healthy("swings-lstm-20-rmsprop-3e-3", lambda s: pace(s, "RMSprop", 3e-3))
zoo.sick("swings-lstm-20-adamw-1e-9", lambda s: pace(s, "AdamW", 1e-9), does_not_move(steps=50), "SLOW", control=paced)
zoo.sick(
    "swings-lstm-20-rmsprop-5",
    lambda s: pace(s, "RMSprop", 5.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", *SHORT},
    control=paced,
)
