# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of every day with the faults that any network may have, and their twins.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last, ends_worse, small_gradients
from validation.cases._daily_recurrent import (
    INTENT,
    SIGNS,
    activities,
    chords,
    elman,
    gru,
    intents,
    lstm,
    sayings,
    solar,
    strips,
    turned,
)
from validation.cases._everyday_nets import CUT_OFF, NARROW
from validation.cases._everyday_sequences import more_than
from validation.cases._plain_nets import BLOWN
from validation.cases._usual_nets import falls_behind
from validation.evidence import both, breaks, dead, gradient_norms_spread, lasting, no_gradient, states_rank, thrives
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every, token_loss

zoo = Zoo("rnn", half="daily", analyzer="recurrent", proof=thrives(0.2))
SHORT_TOO = {"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"}
LOST_TOO = {*SHORT_TOO, "SLOW", "LOW_RANK", "BOTTLENECK"}

# --- no gradient, no signal


class Writer(nn.Module):
    """A reader and a writer; the writer starts at the last state of the reader, or at zeros."""

    def __init__(self, starts: bool) -> None:
        super().__init__()
        self.source, self.reader = nn.Embedding(8, 20), lstm(20, 40)
        self.target, self.writer, self.head = nn.Embedding(9, 20), lstm(20, 40), nn.Linear(40, 8)
        self.starts = starts

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        state = self.reader(self.source(source))[1]
        return self.head(self.writer(self.target(shifted), state if self.starts else None)[0])


def written(seed: int, starts: bool) -> Setup:
    return live(Writer(starts), turned(seed, length=4), lr=1e-2, steps=120)


handed = zoo.healthy("numbers-writer-starts-at-the-reader", lambda s: written(s, True))
zoo.sick(
    "numbers-writer-starts-at-zeros",
    lambda s: written(s, False),
    both(lasting(no_gradient("source", "reader")), ends_worse()),
    *CUT_OFF,
    layer=("source", "reader"),
    also={"detached", "never_moves", "SLOW"},
    control=handed,
)


class Picks(nn.Module):
    """Three words are picked by their scores and read by a GRU; what is picked may be weighed by its score."""

    def __init__(self, weighed: bool) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(INTENT, 20, padding_idx=0), nn.Linear(20, 1)
        self.rnn, self.head, self.weighed = gru(20, 32), nn.Linear(32, 4), weighed

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        x = self.words(words)
        score = self.score(x)[..., 0].masked_fill(words == 0, -1e4)
        top, place = score.topk(3, dim=1)
        picked = x.gather(1, place[..., None].expand(-1, -1, x.shape[-1]))
        if self.weighed:
            picked = picked * torch.sigmoid(top)[..., None]
        return self.head(self.rnn(picked)[0][:, -1])


def picks(seed: int, weighed: bool) -> Setup:
    return live(Picks(weighed), intents(seed, batch=64), lr=1e-2, steps=120)


weighed = zoo.healthy("requests-picked-words-weighed-by-their-score", lambda s: picks(s, True))
zoo.sick(
    "requests-picked-words-by-number-alone",
    lambda s: picks(s, False),
    both(lasting(no_gradient("score")), ends_worse(1.5)),
    *CUT_OFF,
    layer="score",
    also={"detached", "never_moves", "SLOW"},
    control=weighed,
)


def powers(seed: int, shifted: bool) -> Setup:
    """Logarithms of small powers, all below zero, into a rectifier; or standardised first."""

    def logs(x: Tensor) -> Tensor:
        x = -5 + 1.2 * x.clamp(-3, 3)
        return (x + 5) / 1.2 if shifted else x

    enter = nn.Sequential(nn.ReLU(), nn.Linear(3, 24))
    return live(Last(enter, gru(24, 40), 40, 5), activities(seed).mapped(logs), lr=1e-2, steps=70)


standard = zoo.healthy("wrist-log-powers-standardised-before-relu", lambda s: powers(s, True))
zoo.sick(
    "wrist-log-powers-below-zero-before-relu",
    lambda s: powers(s, False),
    both(lasting(dead("enter.0", 0.99)), ends_worse()),
    "DEAD",
    "DISCONNECTED",
    "input_scales",
    layer=("enter.0", "enter.1", "enter"),
    also=LOST_TOO,
    control=standard,
)


class Shrunk(nn.Module):
    """States behind a soft threshold, for a sparse code; an LSTM never hands on more than one."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.enter, self.rnn, self.shrink = nn.Linear(3, 20), lstm(20, 40), nn.Softshrink(limit)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shrink(self.rnn(self.enter(x))[0]).mean(dim=1))


def shrunk(seed: int, limit: float) -> Setup:
    return live(Shrunk(limit), activities(seed), lr=1e-2, steps=80)


through = zoo.healthy("wrist-lstm-soft-threshold-0.02", lambda s: shrunk(s, 0.02))
zoo.sick(
    "wrist-lstm-soft-threshold-1",
    lambda s: shrunk(s, 1.0),
    both(lasting(dead("shrink", 0.99), no_gradient("rnn", "enter")), ends_worse()),
    "DEAD",
    "DISCONNECTED",
    layer=("shrink", "rnn", "enter"),
    also=LOST_TOO,
    control=through,
)

# --- flat parts


def at_bounds(setup: Setup) -> float:
    """Share of states that are at the bounds of tanh."""
    with torch.no_grad():
        states = setup.model.rnn(setup.model.enter(setup.input_fn()))[0]
    return (1 - states.square() < 0.05).double().mean().item()


def bytes_(seed: int, scale: float) -> Setup:
    """Pixels from 0 to 255, or from 0 to 1."""
    task = strips(seed, length=16).mapped(lambda x: scale * (0.5 + x / 5).clamp(0, 1))
    return live(Last(nn.Linear(1, 24), elman(24, 40, 0.9), 40, 5), task, lr=3e-3, steps=120)


ones = zoo.healthy("strips-pixels-from-0-to-1", lambda s: bytes_(s, 1.0))
zoo.sick(
    "strips-pixels-from-0-to-255",
    lambda s: bytes_(s, 255.0),
    both(lasting(more_than(at_bounds, 0.7, "share of states at their bounds")), ends_worse()),
    "SATURATION",
    "VANISHING",
    "SHORT_MEMORY",
    "input_scales",
    "EXPLODING",
    layer=("rnn", "enter"),
    also={"UNSTABLE", "SPECTRAL_RADIUS", "LOW_RANK", "BOTTLENECK", "first_loss_high"},
    control=ones,
)


def deep_head(seed: int, act: type[nn.Module]) -> Setup:
    """A GRU and seven dense layers behind it."""
    model = Last(nn.Linear(3, 20), gru(20, 32), 32, 32)
    layers = [part for _ in range(6) for part in (nn.Linear(32, 32), act())]
    model.head = nn.Sequential(*layers, nn.Linear(32, 5))
    return live(model, activities(seed), lr=3e-3, steps=110)


elu = zoo.healthy("wrist-gru-six-elu-layers-behind", lambda s: deep_head(s, nn.ELU))
zoo.sick(
    "wrist-gru-six-sigmoid-layers-behind",
    lambda s: deep_head(s, nn.Sigmoid),
    both(lasting(small_gradients(["rnn", "enter"], "head.12", 1e-2)), ends_worse()),
    "VANISHING",
    layer=("rnn", "enter", "head", *(f"head.{i}" for i in range(12))),
    also={*LOST_TOO, "DEAD", "DISCONNECTED", "SATURATION"},
    control=elu,
)


class Front(nn.Module):
    """Six convolutions over time, each with a tanh; their weights may be drawn as those of a large language model."""

    def __init__(self, std: float | None) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(24 if i else 3, 24, 3, padding=1) for i in range(6))
        for conv in self.convs:
            if std is None:
                nn.init.xavier_uniform_(conv.weight, 5 / 3)
            else:
                nn.init.normal_(conv.weight, std=std)
            nn.init.zeros_(conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for conv in self.convs:
            x = torch.tanh(conv(x))
        return x.transpose(1, 2)


def fronted(seed: int, std: float | None) -> Setup:
    return live(Last(Front(std), gru(24, 32), 32, 5), activities(seed), lr=3e-3, steps=80)


glorot = zoo.healthy("wrist-six-convolutions-glorot", lambda s: fronted(s, None))
zoo.sick(
    "wrist-six-convolutions-normal-0.003",
    lambda s: fronted(s, 0.003),
    both(small_gradients(["enter.convs.0", "enter.convs.1"], "head", 1e-4), ends_worse(1.5)),
    "VANISHING",
    layer=("enter", *(f"enter.convs.{i}" for i in range(6))),
    also={*LOST_TOO, "DEAD", "DISCONNECTED"},
    control=glorot,
)

# --- too narrow


def factorised(seed: int, rank: int) -> Setup:
    """The next letter; the head is a product of two matrices."""
    model = Each(nn.Embedding(len(SIGNS), 24), gru(24, 48), 48, len(SIGNS))
    model.head = nn.Sequential(nn.Linear(48, rank, bias=False), nn.Linear(rank, len(SIGNS)))
    return live(model, sayings(seed), lr=1e-2, steps=90)


wide = zoo.healthy("sayings-gru-factorised-head-of-16", lambda s: factorised(s, 16))
zoo.sick(
    "sayings-gru-factorised-head-of-1",
    lambda s: factorised(s, 1),
    both(lasting(states_rank(1.01, "head.0")), ends_worse()),
    *NARROW,
    layer=("head", "head.0", "head.1"),
    also={"SLOW", *SHORT_TOO},
    control=wide,
)


class Hashed(nn.Module):
    """Pairs of letters, hashed to a number of buckets."""

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.buckets, self.enter = buckets, nn.Embedding(buckets, 32)
        self.rnn, self.head = lstm(32, 48), nn.Linear(48, len(SIGNS))

    def forward(self, signs: Tensor) -> Tensor:
        pairs = 31 * F.pad(signs[:, :-1], (1, 0)) + signs
        return self.head(self.rnn(self.enter(pairs * 7919 % self.buckets))[0])


def code_rank(setup: Setup) -> float:
    """One by the number of directions that the codes of a batch take."""
    with torch.no_grad():
        codes = setup.model.enter.weight - setup.model.enter.weight.mean(dim=0)
    return 1 / max(1, int(torch.linalg.matrix_rank(codes)))


def hashed(seed: int, buckets: int) -> Setup:
    return live(Hashed(buckets), sayings(seed), lr=1e-2, steps=100)


many = zoo.healthy("sayings-pairs-in-500-buckets", lambda s: hashed(s, 500))
zoo.sick(
    "sayings-pairs-in-2-buckets",
    lambda s: hashed(s, 2),
    both(lasting(more_than(code_rank, 0.9, "one by the rank of the codes")), ends_worse(1.5)),
    "LOW_RANK",
    "BOTTLENECK",
    layer=("enter", "rnn"),
    also={"SLOW", *SHORT_TOO, "SYMMETRY"},
    control=many,
)

# --- steps and numbers


def summed(seed: int, reduction: str) -> Setup:
    """A label for every note, by SGD with momentum; the loss is a mean, or a sum over the whole batch."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z[:, 1:].flatten(0, 1), t[:, 1:].flatten(), reduction=reduction)

    model = Each(nn.Embedding(10, 24), gru(24, 48, bidirectional=True), 96, 5)
    return live(model, chords(seed).with_loss(loss), "SGD", 0.3, 100, momentum=0.9)


def each_loss(setup: Setup) -> float:
    """The mean over places, whatever trained it."""
    with torch.no_grad():
        z = setup.model(setup.input_fn())
    return token_loss(z[:, 1:], setup.loss_fn.__self__.target[:, 1:]).item()


mean = zoo.healthy("chords-sgd-mean-loss", lambda s: summed(s, "mean"))
zoo.sick(
    "chords-sgd-summed-loss",
    lambda s: summed(s, "sum"),
    falls_behind(each_loss, 2.0, "loss per place"),
    *RUNS_AWAY,
    "summed_loss",
    "rate_too_high",
    also={*BLOWN, *SHORT_TOO},
    control=mean,
)


class Counts(nn.Module):
    """Orders of the next hour, all above zero, by an LSTM whose answer is exponentiated, or taken as a logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Linear(3, 20), lstm(20, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.enter(x))[0])


def counted(seed: int, logs: bool) -> Setup:
    """Targets are counts up to some hundreds; the squared error is one of counts, or of their logarithms."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(z, t) if logs else F.mse_loss(z.exp(), (3 + 2 * t).exp())

    task = solar(seed).with_loss(loss)
    task.logs = logs
    return live(Counts(), task, "SGD", 0.1, 80, momentum=0.9)


def log_error(setup: Setup) -> float:
    """The error of logarithms, whatever trained it."""
    with torch.no_grad():
        z = setup.model(setup.input_fn())
    target = setup.loss_fn.__self__.target
    return F.mse_loss(z if setup.loss_fn.__self__.logs else (z - 3) / 2, target).item()


logs = zoo.healthy("orders-error-of-logarithms", lambda s: counted(s, True))
zoo.sick(
    "orders-error-of-exponentials",
    lambda s: counted(s, False),
    falls_behind(log_error, 3.0, "error of logarithms"),
    *RUNS_AWAY,
    also={*BLOWN, *SHORT_TOO},
    control=logs,
)


def missing(seed: int, code: float) -> Setup:
    """Now and then a panel has no reading, which the file marks by a number."""
    now = every(12, 7)

    def marked(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if now():
            x, t = x.clone(), t.clone()
            x[2, 5:9, 1], t[2, 4:8, 1] = code, code
        return x, t

    model = Each(nn.Linear(3, 20), gru(20, 40), 40, 3)
    return live(model, solar(seed).changed(marked), lr=1e-2, steps=90)


zeros = zoo.healthy("panels-missing-readings-as-0", lambda s: missing(s, 0.0))
zoo.sick(
    "panels-missing-readings-as-minus-999",
    lambda s: missing(s, -999.0),
    gradient_norms_spread(30),
    *JUMPS,
    "bad_batch",
    also={*BLOWN, *SHORT_TOO, "NUMERICAL", "input_scales"},
    control=zeros,
)


class Looks(nn.Module):
    """A GRU over a request and weights over its words that leave the padding out."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(INTENT, 20, padding_idx=0), gru(20, 24, bidirectional=True)
        self.score, self.head, self.low = nn.Linear(48, 1), nn.Linear(48, 4), low

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        states = self.rnn(self.words(words))[0]
        weight = self.score(states)[..., 0].masked_fill(words == 0, self.low).softmax(dim=1)
        return self.head((weight[..., None] * states).sum(dim=1))


def empty(seed: int, low: float) -> Setup:
    """Now and then a request has no word at all."""
    now = every(60, 31)

    def emptied(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if now():
            x[0][3], x[1][3] = 0, 0
        return x

    return live(Looks(low), intents(seed).mapped(emptied), lr=1e-2, steps=90)


low = zoo.healthy("requests-empty-one-weighed-by-minus-1e9", lambda s: empty(s, -1e9))
zoo.sick(
    "requests-empty-one-weighed-by-minus-infinity",
    lambda s: empty(s, -math.inf),
    breaks,
    "NUMERICAL",
    "all_masked",
    "loss_nonfinite",
    also={"bad_batch"},
    control=low,
)
