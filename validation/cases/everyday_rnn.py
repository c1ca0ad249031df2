# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people write them, with one fault each, and their twins.

Half: everyday.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_sequences import LETTERS, back, chars, first_word, motions, sales, tags, weather
from validation.evidence.live import breaks, lags, lasting, never_fires, thrives
from validation.evidence.recurrent import gates_flat, states_rank
from validation.evidence.signal import both, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, ONE_WAY, RUNS_AWAY, SHORT
from validation.nets import Cell, constant_, gate_bias_
from validation.nets.programs import RankOne, Tagger
from validation.setups import live, told
from validation.tasks import adding, every

zoo = Zoo("rnn", half="everyday", analyzer="recurrent", proof=thrives())
FORGETS = both(lasting(back("enter", below=1e-4)), lags(0.1))
FORGETS_INPUT = both(lasting(back(below=1e-4)), lags(0.1))
RUNS = lasting(back("enter", above=1e3))
LOST_TOO = {"SATURATION", "UNSTABLE", "SHORT_MEMORY", "VANISHING"}

# --- memory that is too short


def subject(seed: int, rnn: nn.Module, length: int = 30, **more) -> Setup:
    """Classify a text by the word that it begins with."""
    model = Tagger(nn.Embedding(20, 16), rnn, 4, rnn.hidden_size, last=True)
    return told(model, first_word(seed, length), length - 1, **{"lr": 5e-3, "steps": 60, **more})


def lstm(forget: float, width: int = 32, **more) -> nn.LSTM:
    return gate_bias_(nn.LSTM(16, width, batch_first=True, **more), 1, forget)


def gru(update: float, width: int = 32) -> nn.GRU:
    return gate_bias_(nn.GRU(16, width, batch_first=True), 1, update)


keeps = zoo.healthy("first-word-lstm-32-forget-bias-4", lambda s: subject(s, lstm(4.0)), thrives(0.2))
updates = zoo.healthy("first-word-gru-32-update-bias-4", lambda s: subject(s, gru(4.0)), thrives(0.2))
zoo.sick(
    "first-word-lstm-32-forget-bias-of-wrong-sign",
    lambda s: subject(s, lstm(-4.0)),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=keeps,
)
zoo.sick(
    "first-word-gru-32-update-bias-of-wrong-sign",
    lambda s: subject(s, gru(-4.0)),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=updates,
)
zoo.sick(
    "first-word-plain-rnn-over-40-words",
    lambda s: subject(s, nn.RNN(16, 32, batch_first=True), 40, lr=2e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=zoo.healthy("first-word-gru-over-40-words", lambda s: subject(s, gru(4.0), 40, lr=5e-3), thrives(0.1)),
)


@torch.no_grad()
def small(rnn: nn.RNN, std: float) -> nn.RNN:
    """All weights by hand from a narrow Gaussian."""
    for weight in rnn.parameters():
        weight.normal_(std=std)
    return rnn


zoo.sick(
    "first-word-plain-rnn-all-weights-std-0.05",
    lambda s: subject(s, small(nn.RNN(16, 32, batch_first=True), 0.05), 24, lr=1e-3),
    both(lasting(back("enter", below=1e-4)), lags(0.05)),
    *SHORT,
    layer="rnn",
    control=updates,
)


class Chunked(nn.Module):
    """Reads a long sequence in chunks; the state is carried on, carried without its history, or forgotten."""

    def __init__(self, enter: nn.Module, rnn: nn.RNNBase, out: int, size: int, carry: bool = True, cut=False) -> None:
        super().__init__()
        self.enter, self.rnn, self.fc = enter, rnn, nn.Linear(rnn.hidden_size, out)
        self.size, self.carry, self.cut = size, carry, cut

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for chunk in self.enter(x).split(self.size, dim=1):
            if self.cut and state is not None:
                state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
            out, state = self.rnn(chunk, state if self.carry else None)
        return self.fc(out[:, -1])


def chunked(seed: int, rnn: nn.RNNBase, **how) -> Setup:
    return told(Chunked(nn.Embedding(20, 16), rnn, 4, 8, **how), first_word(seed, 24), 23, lr=5e-3, steps=60)


whole = zoo.healthy("first-word-in-chunks-of-8-state-carried", lambda s: chunked(s, gru(4.0)), thrives(0.2))
zoo.sick(
    "first-word-in-chunks-of-8-state-forgotten",
    lambda s: chunked(s, gru(4.0), carry=False),
    both(lasting(back("enter", below=1e-12)), lags(0.1)),
    *CUT_SHORT,
    layer="rnn",
    control=whole,
)
zoo.sick(
    "first-word-in-chunks-of-8-history-detached",
    lambda s: chunked(s, gru(4.0), cut=True),
    both(lasting(back("enter", below=1e-12)), lags(0.1)),
    *CUT_SHORT,
    layer="rnn",
    control=whole,
)


class Stepwise(nn.Module):
    """An LSTM cell in a loop over readings; `drop` falls on the cell's memory at every step."""

    def __init__(self, dim: int, width: int, out: int, drop: float = 0.0, fresh: int = 0) -> None:
        super().__init__()
        self.cell, self.out, self.drop, self.fresh = nn.LSTMCell(dim, width), nn.Linear(width, out), drop, fresh
        self.cell.bias_hh.data[width : 2 * width] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.cell.hidden_size)
        for t, now in enumerate(x.unbind(1)):
            if self.fresh and t % self.fresh == 0:
                h = c = torch.zeros_like(h)
            h, c = self.cell(now, (h, F.dropout(c, self.drop)))
        return self.out(h)


def early_sum(seed: int, length: int = 24, **fault) -> Setup:
    """Add the first two of many numbers."""
    return told(Stepwise(2, 32, 1, **fault), adding(seed, length, early=True), length - 1, lr=1e-2, steps=60)


adds = zoo.healthy("early-sum-lstm-cell-by-hand", early_sum, thrives(0.2))
zoo.sick(
    "early-sum-lstm-cell-hidden-made-anew-in-the-loop",
    lambda s: early_sum(s, fresh=10),
    both(lasting(back(below=1e-12)), lags(0.1)),
    *CUT_SHORT,
    layer="cell",
    control=adds,
)


class Smooth(Cell):
    """Own cell: a moving average of what a dense layer says."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size, self.keep = width, keep
        self.inp, self.rec = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.rec.weight, gain=0.1)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.keep * state + torch.tanh(self.inp(x) + self.rec(state)) * (1 - self.keep) ** 0.5


smooth = zoo.healthy("first-word-moving-average-0.97", lambda s: subject(s, Smooth(16, 32, 0.97), 24), thrives(0.1))
zoo.sick(
    "first-word-moving-average-0.4",
    lambda s: subject(s, Smooth(16, 32, 0.4), 24, lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.inp", "rnn.rec"),
    control=smooth,
)


def shop(seed: int, rnn: nn.Module, season: int = 7, **more) -> Setup:
    """Forecast sales whose pattern repeats after a season."""
    model = Tagger(nn.Linear(1, 16), rnn, 1, rnn.hidden_size)
    return told(model, sales(seed, season), season, **{"lr": 1e-2, "steps": 100, **more})


class Windowed(nn.Module):
    """An LSTM that begins anew every few days, as a loader of short windows makes it."""

    def __init__(self, size: int | None, width: int = 48) -> None:
        super().__init__()
        self.hidden_size, self.size = width, size
        self.lstm = gate_bias_(nn.LSTM(16, width, batch_first=True), 1, 2.0)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        parts = x.split(self.size, dim=1) if self.size else [x]
        return torch.cat([self.lstm(part)[0] for part in parts], dim=1), None


season = zoo.healthy("sales-weekly-lstm-48-whole-series", lambda s: shop(s, Windowed(None)), thrives(0.1))
zoo.sick(
    "sales-weekly-lstm-48-windows-of-three-days",
    lambda s: shop(s, Windowed(3)),
    both(lasting(back("enter", below=1e-12)), lags(0.08)),
    *CUT_SHORT,
    layer="rnn.lstm",
    control=season,
)

# --- recurrences that run away


@torch.no_grad()
def drawn(rnn: nn.RNNBase, std: float = 1.0) -> nn.RNNBase:
    """Every matrix from a Gaussian of this deviation, as `for p in parameters: normal_(p)` does."""
    for name, weight in rnn.named_parameters():
        if "weight" in name:
            weight.normal_(std=std)
    return rnn


def calmly(seed: int, rnn: nn.Module, length: int = 30, **more) -> Setup:
    return subject(seed, rnn, length, **{"lr": 1e-3, "steps": 40, "clip": 1.0, **more})


@torch.no_grad()
def relu_rnn(gain: float, width: int = 32, layers: int = 1) -> nn.RNN:
    """ReLU with a scaled identity as its recurrence."""
    rnn = nn.RNN(16, width, layers, "relu", batch_first=True)
    for name, weight in rnn.named_parameters():
        if "weight_hh" in name:
            weight.copy_(gain * torch.eye(width))
    return rnn


irnn = zoo.healthy(
    "first-word-relu-identity", lambda s: subject(s, relu_rnn(1.0), 20, lr=2e-3, clip=1.0, steps=80), thrives(0.1)
)
zoo.sick(
    "first-word-relu-identity-times-1.6",
    lambda s: calmly(s, relu_rnn(1.6), lr=1e-4),
    RUNS,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=irnn,
)
zoo.sick(
    "first-word-plain-rnn-96-all-weights-std-1",
    lambda s: calmly(s, drawn(nn.RNN(16, 96, batch_first=True)), 40),
    RUNS,
    *CHAOTIC,
    "SATURATION",
    layer="rnn",
    also=LOST_TOO,
    control=updates,
)


class Linear(nn.Module):
    """A recurrence by hand from a first course: h = x W + h U, no activation."""

    def __init__(self, dim: int, width: int, scale: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.w = nn.Parameter(torch.randn(dim, width) * dim**-0.5)
        self.u = nn.Parameter(torch.linalg.qr(torch.randn(width, width))[0] * scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in x.unbind(1):
            state = now @ self.w + state @ self.u
            states.append(state)
        return torch.stack(states, dim=1), state


turns = zoo.healthy("first-word-linear-recurrence-orthogonal", lambda s: subject(s, Linear(16, 32, 1.0), 16, lr=3e-3))
zoo.sick(
    "first-word-linear-recurrence-times-1.5",
    lambda s: calmly(s, Linear(16, 32, 1.5), 24, lr=1e-4),
    RUNS,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=turns,
)


class Adder(Cell):
    """Own cell: each step adds to the state what a ReLU layer makes of it."""

    def __init__(self, dim: int, width: int, share: float) -> None:
        super().__init__()
        self.hidden_size, self.share = width, share
        self.inp, self.rec = nn.Linear(dim, width), nn.Linear(width, width)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return state + self.share * torch.relu(self.inp(x) + self.rec(state))


gently = zoo.healthy(
    "first-word-residual-steps-of-0.05", lambda s: subject(s, Adder(16, 32, 0.05), 16, lr=1e-2, clip=1.0, steps=80)
)


def steep(share: float) -> Adder:
    cell = Adder(16, 32, share)
    cell.rec.weight.data.abs_()
    return cell


zoo.sick(
    "first-word-residual-steps-of-1-positive-weights",
    lambda s: calmly(s, steep(1.0), 20, lr=1e-4),
    RUNS,
    *CHAOTIC,
    layer=("rnn.inp", "rnn.rec"),
    also=GROWS,
    control=gently,
)
zoo.sick(
    "first-word-lstm-64-recurrence-std-2",
    lambda s: calmly(s, wild_lstm(64, 2.0), 48),
    RUNS,
    *CHAOTIC,
    "SATURATION",
    layer="rnn",
    also=LOST_TOO,
    control=keeps,
)


@torch.no_grad()
def wild_lstm(width: int, std: float) -> nn.LSTM:
    rnn = nn.LSTM(16, width, batch_first=True)
    rnn.weight_hh_l0.normal_(std=std)
    return rnn


# --- narrow and of one direction


def letters(seed: int, enter: nn.Module, rnn: nn.Module, **more) -> Setup:
    return live(Tagger(enter, rnn, len(LETTERS), rnn.hidden_size), chars(seed), **{"lr": 1e-2, "steps": 80, **more})


def embedded(size: int) -> nn.Embedding:
    return nn.Embedding(len(LETTERS), size)


wide = zoo.healthy(
    "letters-embedding-of-24", lambda s: letters(s, embedded(24), nn.GRU(24, 48, batch_first=True)), thrives(0.2)
)
zoo.sick(
    "letters-embedding-of-1",
    lambda s: letters(s, embedded(1), nn.GRU(1, 48, batch_first=True)),
    lags(0.06),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("enter", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=wide,
)


class Summary(nn.Module):
    """An LSTM reads, a context of some numbers is handed to an LSTM that writes the readings again."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.reader, self.writer = nn.GRU(3, 48, batch_first=True), nn.GRU(48, 48, batch_first=True)
        self.squeeze, self.widen, self.out = nn.Linear(48, context), nn.Linear(context, 48), nn.Linear(48, 3)
        self.place = nn.Parameter(torch.randn(1, 6, 48) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        context = self.widen(self.squeeze(self.reader(x)[1][0]))
        return self.out(self.writer(context[:, None] + self.place)[0])


def autoencoded(seed: int, context: int) -> Setup:
    task = weather(seed, 6).changed(lambda x, _: (x, x))
    return live(Summary(context), task, lr=1e-2, steps=100)


summary = zoo.healthy("autoencoder-gru-context-of-24", lambda s: autoencoded(s, 24), thrives(0.2))
zoo.sick(
    "autoencoder-gru-context-of-1",
    lambda s: autoencoded(s, 1),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("squeeze", "widen"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=summary,
)
tagged = zoo.healthy(
    "tags-lstm-40-dense-before",
    lambda s: live(
        Tagger(nn.Sequential(nn.Embedding(24, 24), nn.Linear(24, 24)), nn.LSTM(24, 40, batch_first=True), 5, 40),
        tags(s),
        lr=1e-2,
        steps=60,
    ),
    thrives(0.2),
)
zoo.sick(
    "tags-lstm-40-factorised-input-of-rank-1",
    lambda s: live(
        Tagger(nn.Sequential(nn.Embedding(24, 24), RankOne(24, 24)), nn.LSTM(24, 40, batch_first=True), 5, 40),
        tags(s),
        lr=1e-2,
        steps=60,
    ),
    both(lags(0.08), lasting(states_rank(1.2, "enter.1"))),
    *ONE_WAY,
    layer="enter.1",
    also=SHORT,
    control=tagged,
)


def wrist(seed: int, rnn: nn.Module, **more) -> Setup:
    model = Tagger(nn.Linear(3, 12), rnn, 4, rnn.hidden_size, last=True)
    return live(model, motions(seed), **{"lr": 1e-2, "steps": 60, **more})


bands = zoo.healthy("wrist-band-lstm-32", lambda s: wrist(s, nn.LSTM(12, 32, batch_first=True)), thrives(0.15))


def of_one_value(seed: int) -> Setup:
    """The recurrent layer and the head start with the same number everywhere."""
    setup = wrist(seed, constant_(nn.LSTM(12, 32, batch_first=True), 0.1), lr=5e-3)
    constant_(setup.model.fc, 0.1)
    return setup


zoo.sick(
    "wrist-band-lstm-32-all-weights-0.1",
    of_one_value,
    both(lasting(states_rank(1.7)), lags(0.05)),
    "LOW_RANK",
    "SYMMETRY",
    "BOTTLENECK",
    layer=("rnn", "fc"),
    also=SHORT,
    control=bands,
)

# --- the faults of any network


class Deep(nn.Module):
    """LSTMs on top of each other, each a module; `skip` adds what came in."""

    def __init__(self, depth: int, skip: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 32)
        self.stack = nn.ModuleList(nn.LSTM(32, 32, batch_first=True) for _ in range(depth))
        self.out, self.skip = nn.Linear(32, 4), skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for rnn in self.stack:
            x = x + rnn(x)[0] if self.skip else rnn(x)[0]
        return self.out(x[:, -1])


residual = zoo.healthy(
    "wrist-band-seven-lstms-with-skips", lambda s: live(Deep(7, True), motions(s, length=10), lr=3e-3), thrives(0.1)
)
zoo.sick(
    "wrist-band-seven-lstms-on-top-of-each-other",
    lambda s: live(Deep(7, False), motions(s, length=10), lr=3e-4),
    both(lasting(gradient_ratio("enter", "stack.6", below=1e-3)), lags(0.1)),
    "VANISHING",
    layer=("enter", *(f"stack.{i}" for i in range(6))),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "LOW_RANK", "SLOW"},
    control=residual,
)


def raw(seed: int, factor: float, offset: float = 0.0) -> Setup:
    """A forecast of readings in their own unit; the targets are scaled."""
    model = Tagger(nn.Identity(), nn.GRU(3, 32, batch_first=True), 3, 32)
    return live(model, weather(seed).mapped(lambda x: factor * x + offset), lr=5e-3, steps=60)


scaled = zoo.healthy("weather-gru-32-scaled", lambda s: raw(s, 1.0), thrives(0.2))
zoo.sick(
    "weather-gru-32-pressure-in-pascal",
    lambda s: raw(s, 1500.0, 1e5),
    both(lasting(gates_flat(0.9, 2)), lags(0.1)),
    "SATURATION",
    "VANISHING",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "EXPLODING", "LOW_RANK"},
    control=scaled,
)


class Dense(nn.Module):
    """An LSTM, a dense ReLU layer, an answer; `low` is a bias that some constant initialisation left there."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.rnn, self.fc1, self.fc2 = nn.LSTM(3, 32, batch_first=True), nn.Linear(32, 48), nn.Linear(48, 3)
        self.fc1.bias.data -= low

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(self.rnn(x)[0])))


dense = zoo.healthy("weather-lstm-dense-relu", lambda s: live(Dense(0.0), weather(s), lr=5e-3, steps=60), thrives(0.2))
zoo.sick(
    "weather-lstm-dense-relu-bias-minus-8",
    lambda s: live(Dense(8.0), weather(s), lr=5e-3, steps=60),
    lasting(never_fires("fc1", 0.99), no_gradient("rnn", "fc1")),
    "DEAD",
    layer="fc1",
    also={"DISCONNECTED", *SHORT},
    control=dense,
)


def standard(seed: int, floor: float) -> Setup:
    """Every series is divided by its own deviation; now and then a sensor stands still."""
    now = every(30, 11)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        if now():
            x[3, :, 1] = 2.0
        middle, spread = x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True)
        return (x - middle) / (spread + floor)

    model = Tagger(nn.Linear(3, 16), nn.LSTM(16, 32, batch_first=True), 3, 32)
    return live(model, weather(seed).mapped(change), lr=5e-3)


careful = zoo.healthy("weather-lstm-standardised-with-floor", lambda s: standard(s, 1e-5))
zoo.sick(
    "weather-lstm-standardised-a-sensor-stands-still", lambda s: standard(s, 0.0), breaks, "NUMERICAL", control=careful
)


def glitches(seed: int, size: float) -> Setup:
    """The target of one series now and then is a reading error."""
    now = every(12, 7)

    def change(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        target = target.clone()
        if now():
            target[0, 5] = size
        return x, target

    return live(
        Tagger(nn.Linear(3, 16), nn.GRU(16, 32, batch_first=True), 3, 32),
        weather(seed).changed(change),
        lr=1e-3,
        steps=72,
    )


steady = zoo.healthy("weather-gru-no-reading-errors", lambda s: glitches(s, 0.0))
zoo.sick(
    "weather-gru-reading-errors-of-3000",
    lambda s: glitches(s, 3000.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=steady,
)


def spelled(seed: int, kind: str, lr: float, **more) -> Setup:
    return letters(seed, embedded(24), nn.LSTM(24, 48, batch_first=True), kind=kind, lr=lr, **more)


paced = zoo.healthy("letters-lstm-48-adam-1e-2", lambda s: spelled(s, "Adam", 1e-2), thrives(0.2))
zoo.sick(
    "letters-lstm-48-adam-1e-9", lambda s: spelled(s, "Adam", 1e-9), does_not_move(steps=80), "SLOW", control=paced
)
zoo.sick(
    "letters-lstm-48-adam-3",
    lambda s: spelled(s, "Adam", 3.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", *SHORT},
    control=paced,
)
