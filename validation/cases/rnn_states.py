# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks whose states have no room or are all alike, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, learns_less, no_gradient, rank_at_most, states_rank, trains
from validation.labels import ONE_WAY
from validation.nets import Words
from validation.setups import every_step, pair
from validation.tasks import ciphers, echo, markov, recall

zoo = Zoo("rnn", half="tune", analyzer="recurrent", proof=trains(lr=1e-2))


# --- one layer

default_lstm = zoo.healthy("default-lstm-every-step", lambda s: every_step(nn.LSTM(8, 32, batch_first=True), s, 14))
default_gru = zoo.healthy("default-gru-every-step", lambda s: every_step(nn.GRU(8, 40, batch_first=True), s, 18))


@torch.no_grad()
def one_direction(width: int) -> nn.RNN:
    """Input and recurrence both write along one direction only."""
    rnn = nn.RNN(8, width, batch_first=True)
    way = torch.randn(width, 1) / width**0.5
    rnn.weight_ih_l0.copy_(way @ torch.randn(1, 8))
    rnn.weight_hh_l0.copy_(0.9 * way @ way.T / way.square().sum())
    rnn.bias_ih_l0.zero_()
    rnn.bias_hh_l0.zero_()
    return rnn


zoo.sick(
    "tanh-states-along-one-direction",
    lambda s: every_step(one_direction(48), s, 14),
    states_rank(2),
    *ONE_WAY,
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "SYMMETRY"},
    control=default_lstm,
)


@torch.no_grad()
def narrow_lstm(width: int) -> nn.LSTM:
    """Gates stand still; what is written into the cells is one number of the input."""
    rnn = nn.LSTM(8, width, batch_first=True)
    for name, weight in rnn.named_parameters():
        weight.zero_()
        if name == "weight_ih_l0":
            weight[2 * width : 3 * width] = torch.randn(width, 1) @ torch.randn(1, 8) * 0.3
    return rnn


zoo.sick(
    "lstm-cells-written-along-one-direction",
    lambda s: every_step(narrow_lstm(40), s, 12),
    states_rank(2),
    *ONE_WAY,
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "SYMMETRY", "VANISHING"},
    control=default_lstm,
)


@torch.no_grad()
def two_directions(width: int) -> nn.RNN:
    """Input and recurrence write into a plane."""
    rnn = nn.RNN(8, width, 1, "relu", batch_first=True)
    plane = torch.linalg.qr(torch.randn(width, 2))[0].abs()
    rnn.weight_ih_l0.copy_(plane @ torch.randn(2, 8))
    rnn.weight_hh_l0.copy_(0.6 * plane @ plane.T / torch.linalg.matrix_norm(plane @ plane.T, 2))
    rnn.bias_ih_l0.fill_(0.2)
    rnn.bias_hh_l0.zero_()
    return rnn


zoo.sick(
    "relu-states-in-a-plane",
    lambda s: every_step(two_directions(64), s, 16),
    states_rank(4),
    *ONE_WAY,
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "DEAD"},
    control=default_gru,
)


@torch.no_grad()
def equal_gru(width: int) -> nn.GRU:
    """All units start alike."""
    rnn = nn.GRU(8, width, batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("weight"):
            parts = weight.view(3, width, -1)
            parts.copy_(parts[:, :1].expand_as(parts).clone())
            if "hh" in name:
                weight.copy_(weight.mean(1, keepdim=True).expand_as(weight))
        else:
            weight.zero_()
    return rnn


zoo.sick(
    "gru-equal-units",
    lambda s: every_step(equal_gru(40), s, 18),
    states_rank(1.2),
    "LOW_RANK",
    "SYMMETRY",
    "BOTTLENECK",
    layer="rnn",
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_gru,
)


class Squeezed(nn.Module):
    """The input passes through a few numbers before the recurrent layer sees it."""

    def __init__(self, narrow: int, width: int, classes: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(8, narrow)
        self.rnn = nn.LSTM(narrow, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.squeeze(x))[0])


zoo.sick(
    "lstm-input-squeezed-to-1",
    lambda s: pair(Squeezed(1, 40, 6), echo(s, 14)),
    both(states_rank(6), learns_less(lr=1e-2, steps=60, by=0.15)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("squeeze", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=default_gru,
)


class LastStateThroughOne(nn.Module):
    """The last state reaches the classifier through one number."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, width, batch_first=True)
        self.narrow, self.wide = nn.Linear(width, 1), nn.Linear(1, width)
        self.act, self.head = nn.Tanh(), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.wide(self.narrow(self.rnn(x)[0][:, -1]))))


zoo.sick(
    "gru-summary-of-width-1",
    lambda s: pair(LastStateThroughOne(32, 8), recall(s, 8, 8, where=5)),
    both(rank_at_most("narrow", 1), learns_less(lr=1e-2, steps=60, by=0.15)),
    "BOTTLENECK",
    layer=("narrow", "wide"),
    also={"LOW_RANK"},
    control=default_lstm,
)

# --- stacks and translators


class Stacked(nn.Module):
    """Three recurrent layers, of which the middle one may be narrow."""

    def __init__(self, narrow: int, width: int = 30) -> None:
        super().__init__()
        self.low = nn.LSTM(8, width, batch_first=True)
        self.middle = nn.LSTM(width, narrow, batch_first=True)
        self.high = nn.LSTM(narrow, width, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.high(self.middle(self.low(x)[0])[0])[0])


SLOWER = trains(lr=1e-2, steps=80)
three = zoo.healthy("three-lstms-of-30", lambda s: pair(Stacked(30), echo(s, 12, 12)), SLOWER)
zoo.sick(
    "three-lstms-middle-of-width-1",
    lambda s: pair(Stacked(1), echo(s, 12, 12)),
    both(states_rank(1.01, "middle"), learns_less(lr=1e-2, steps=120, by=0.15)),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("middle", "high"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=three,
)
words = zoo.healthy("gru-words-of-16-numbers", lambda s: pair(Words(16), markov(s, 24)))
zoo.sick(
    "gru-words-of-1-number",
    lambda s: pair(Words(1), markov(s, 24)),
    learns_less(lr=1e-2, steps=80, by=0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("embedding", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=words,
)


class Translator(nn.Module):
    """Reads with one GRU, hands its last state to another that writes; the state may be squeezed or cut."""

    def __init__(self, width: int = 40, narrow: int = 0, cut: bool = False) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(14, 12), nn.Embedding(15, 12)
        self.encoder = nn.GRU(12, width, batch_first=True)
        self.context = nn.Sequential(nn.Linear(width, narrow or width), nn.Tanh(), nn.Linear(narrow or width, width))
        self.decoder, self.head, self.cut = nn.GRU(12, width, batch_first=True), nn.Linear(width, 14), cut

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = self.context(self.encoder(self.source(source))[1])
        return self.head(self.decoder(self.target(target), state.detach() if self.cut else state)[0])


def translated(seed: int, **more) -> Setup:
    return pair(Translator(**more), ciphers(seed, length=2, batch=48))


translator = zoo.healthy("gru-translator-of-2-tokens", translated, trains(lr=1e-2, steps=60))
zoo.sick(
    "gru-translator-context-of-width-1",
    lambda s: translated(s, narrow=1),
    both(rank_at_most("context.0", 1.01), learns_less(lr=1e-2, steps=150, by=0.15)),
    "BOTTLENECK",
    layer=("context.0", "context.2"),
    also={"LOW_RANK"},
    control=translator,
)
zoo.sick(
    "gru-translator-context-detached",
    lambda s: translated(s, cut=True),
    no_gradient("source", "encoder", "context"),
    "DISCONNECTED",
    layer=("context.2", "context.0", "encoder"),
    also={"DEAD"},
    control=translator,
)
FLAT = {"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"}


@torch.no_grad()
def equal_lstm(width: int) -> nn.LSTM:
    """Within each gate all units start alike."""
    rnn = nn.LSTM(8, width, batch_first=True)
    for name, weight in rnn.named_parameters():
        if name.startswith("bias"):
            weight.zero_()
            continue
        gates = weight.view(4, width, -1)
        gates.copy_(gates[:, :1].expand_as(gates).clone())
        if "hh" in name:
            weight.copy_(weight.mean(dim=1, keepdim=True).expand_as(weight))
    return rnn


default = zoo.healthy("default-lstm-width-56", lambda s: every_step(nn.LSTM(8, 56, batch_first=True), s))
zoo.sick(
    "lstm-units-alike-width-56",
    lambda s: every_step(equal_lstm(56), s),
    states_rank(1.2),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer="rnn",
    also=FLAT,
    control=default,
)


@torch.no_grad()
def flat_gru(width: int) -> nn.GRU:
    """The candidate state is written along one direction and reads nothing back."""
    rnn = nn.GRU(8, width, batch_first=True)
    way = torch.randn(width, 1) / 2
    rnn.weight_ih_l0[2 * width :] = way @ torch.randn(1, 8)
    rnn.weight_ih_l0[: 2 * width] = 0
    rnn.weight_hh_l0.zero_()
    rnn.bias_ih_l0.zero_()
    rnn.bias_hh_l0.zero_()
    return rnn


zoo.sick(
    "gru-candidates-along-one-direction",
    lambda s: every_step(flat_gru(50), s),
    states_rank(3),
    *ONE_WAY,
    layer="rnn",
    also={*FLAT, "SYMMETRY"},
    control=default,
)


@torch.no_grad()
def flat_second(width: int) -> nn.RNN:
    """The upper of two layers sees only one mix of the lower's states and forgets its own."""
    rnn = nn.RNN(8, width, 2, batch_first=True)
    rnn.weight_ih_l1.copy_(torch.randn(width, 1) @ torch.randn(1, width) / width**0.5)
    rnn.weight_hh_l1.zero_()
    rnn.bias_ih_l1.zero_()
    rnn.bias_hh_l1.zero_()
    return rnn


zoo.sick(
    "two-tanh-layers-upper-of-one-direction",
    lambda s: every_step(flat_second(40), s),
    states_rank(3),
    *ONE_WAY,
    layer="rnn",
    also={*FLAT, "SYMMETRY", "SATURATION"},
    control=default,
)
