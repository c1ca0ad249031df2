# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks of cues, voltages, tides and moods, with one fault each, and their twins.

Half: blind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import cues, moods, reviews, tides, voltages
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.recurrent import BURSTS, FORGETS, states_flat
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient
from validation.evidence.training import gradient_norms_spread
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, JUMPS, SHORT
from validation.nets import Cell, gate_bias_
from validation.nets.programs import Tagger
from validation.setups import live
from validation.tasks import every

zoo = Zoo("rnn", half="blind", analyzer="recurrent", proof=thrives())


def cued(seed: int, rnn: nn.Module, length: int = 22, **more) -> Setup:
    """Which cue was given first, asked at the end."""
    model = Tagger(nn.Identity(), rnn, 5, rnn.hidden_size, last=True)
    return live(model, cues(seed, length), hints={"required_lag": length - 1}, **{"lr": 1e-2, "steps": 60, **more})


def metered(seed: int, rnn: nn.Module, length: int = 22, **more) -> Setup:
    """Three voltages of the first step, asked for at the end."""
    model = Tagger(nn.Identity(), rnn, 3, rnn.hidden_size, last=True)
    return live(model, voltages(seed, length), hints={"required_lag": length - 1}, **{"lr": 1e-2, "steps": 60, **more})


# --- memory that is too short

gru = zoo.healthy("cues-gru-30-update-bias-4", lambda s: cued(s, gate_bias_(nn.GRU(7, 30, batch_first=True), 1, 4.0)))
zoo.sick(
    "cues-gru-30-update-bias-minus-6",
    lambda s: cued(s, gate_bias_(nn.GRU(7, 30, batch_first=True), 1, -6.0), lr=3e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=gru,
)
lstm = zoo.healthy(
    "voltages-lstm-26-forget-bias-4", lambda s: metered(s, gate_bias_(nn.LSTM(4, 26, batch_first=True), 1, 4.0))
)
zoo.sick(
    "voltages-lstm-26-forget-bias-minus-4",
    lambda s: metered(s, gate_bias_(nn.LSTM(4, 26, batch_first=True), 1, -4.0), lr=3e-3),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=lstm,
)


class Minimal(Cell):
    """One gate says how much of the state is new; `turned` takes the gate for its opposite."""

    def __init__(self, dim: int, width: int, turned: bool) -> None:
        super().__init__()
        self.hidden_size, self.turned = width, turned
        self.gate, self.new = nn.Linear(dim + width, width), nn.Linear(dim + width, width)
        nn.init.constant_(self.gate.bias, -3.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        f = torch.sigmoid(self.gate(torch.cat([x, state], dim=1)))
        f = 1 - f if self.turned else f
        return f * torch.tanh(self.new(torch.cat([x, f * state], dim=1))) + (1 - f) * state


minimal = zoo.healthy("cues-minimal-gate", lambda s: cued(s, Minimal(7, 28, False), 16))
zoo.sick(
    "cues-minimal-gate-taken-for-its-opposite",
    lambda s: cued(s, Minimal(7, 28, True), 26, lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.gate", "rnn.new"),
    control=minimal,
)


class Leak(Cell):
    """A leaky integrator: `keep` of the state stays."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size, self.keep = width, keep
        self.push, self.back = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.back.weight, std=0.2 / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.keep * state + (1 - self.keep) * torch.tanh(self.push(x) + self.back(state))


leak = zoo.healthy("voltages-leaky-keeps-0.97", lambda s: metered(s, Leak(4, 40, 0.97)))
zoo.sick(
    "voltages-leaky-keeps-0.2",
    lambda s: metered(s, Leak(4, 40, 0.2), lr=2e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.push", "rnn.back"),
    control=leak,
)


class Truncated(nn.Module):
    """Walks a GRU step by step and takes the state out of the graph every `period` steps."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.hidden_size, self.period = 28, period
        self.cell = nn.GRUCell(7, 28)
        self.cell.bias_ih.data[28:56] = 3.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, states = x.new_zeros(len(x), 28), []
        for t, now in enumerate(x.unbind(1)):
            h = self.cell(now, h.detach() if t and t % self.period == 0 else h)
            states.append(h)
        return torch.stack(states, dim=1), h


walked = zoo.healthy("cues-walked-in-one-graph", lambda s: cued(s, Truncated(100), 14))
zoo.sick(
    "cues-state-out-of-the-graph-every-third-step",
    lambda s: cued(s, Truncated(3), 14),
    FORGETS,
    *CUT_SHORT,
    layer="rnn.cell",
    control=walked,
)


class Retention(nn.Module):
    """A matrix of keys and values as memory, which fades by a fixed factor in every step."""

    def __init__(self, dim: int, width: int, fade: float) -> None:
        super().__init__()
        self.hidden_size, self.fade = width, fade
        self.q, self.k, self.v = nn.Linear(dim, 12), nn.Linear(dim, 12), nn.Linear(dim, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        memory, states = x.new_zeros(len(x), 12, self.hidden_size), []
        for q, k, v in zip(self.q(x).unbind(1), self.k(x).unbind(1), self.v(x).unbind(1), strict=True):
            memory = self.fade * memory + k[:, :, None] * v[:, None]
            states.append(torch.einsum("bk,bkv->bv", q, memory))
        return torch.stack(states, dim=1), memory


retention = zoo.healthy("voltages-retention-fades-by-0.98", lambda s: metered(s, Retention(4, 24, 0.98), steps=80))
zoo.sick(
    "voltages-retention-fades-by-0.3",
    lambda s: metered(s, Retention(4, 24, 0.3), lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.q", "rnn.k", "rnn.v"),
    control=retention,
)

# --- states that grow or never settle


def grown(seed: int, rnn: nn.Module, length: int = 22, **more) -> Setup:
    return metered(seed, rnn, length, **{"lr": 1e-4, "steps": 40, "clip": 1.0, **more})


zoo.sick(
    "voltages-leaky-keeps-1.6",
    lambda s: grown(s, Leak(4, 40, 1.6)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.push", "rnn.back"),
    also=GROWS,
    control=leak,
)


class Turn(Cell):
    """A linear recurrence that turns the state, and stretches it by `stretch`."""

    def __init__(self, dim: int, width: int, stretch: float) -> None:
        super().__init__()
        self.hidden_size, self.into, self.turn = width, nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.turn.weight, stretch)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.into(x) + self.turn(state)


turn = zoo.healthy("voltages-turned-by-a-rotation", lambda s: metered(s, Turn(4, 24, 0.98), 14, lr=2e-3, clip=1.0))
zoo.sick(
    "voltages-turned-and-stretched-by-1.6",
    lambda s: grown(s, Turn(4, 24, 1.6)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.turn"),
    also=GROWS,
    control=turn,
)


class Filter(nn.Module):
    """A filter of second order in every channel, whose coefficients are learned."""

    def __init__(self, dim: int, width: int, first: float, second: float) -> None:
        super().__init__()
        self.hidden_size, self.into = width, nn.Linear(dim, width)
        self.first, self.second = nn.Parameter(torch.full((width,), first)), nn.Parameter(torch.full((width,), second))
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = before = x.new_zeros(len(x), self.hidden_size)
        states = []
        for now in self.into(x).unbind(1):
            y, before = self.first * y + self.second * before + now, y
            states.append(y)
        return self.mix(torch.stack(states, dim=1)), y


filters = zoo.healthy("voltages-filter-poles-inside", lambda s: metered(s, Filter(4, 24, 0.9, 0.05), lr=3e-3))
zoo.sick(
    "voltages-filter-pole-at-1.7",
    lambda s: grown(s, Filter(4, 24, 1.6, 0.2)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.mix"),
    also=GROWS,
    control=filters,
)


class Fading(nn.Module):
    """Channels that fade at a learned pace, an exponential with a sign, and are mixed at the end."""

    def __init__(self, dim: int, width: int, sign: float) -> None:
        super().__init__()
        self.hidden_size, self.sign, self.pace = width, sign, nn.Parameter(torch.linspace(-4.0, -0.2, width))
        self.into, self.mix = nn.Linear(dim, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keep, state, states = (self.sign * F.softplus(self.pace)).exp(), x.new_zeros(len(x), self.hidden_size), []
        for now in torch.tanh(self.into(x)).unbind(1):
            state = keep * state + now
            states.append(state)
        return self.mix(torch.stack(states, dim=1)), state


fading = zoo.healthy("voltages-channels-that-fade", lambda s: metered(s, Fading(4, 32, -1.0)))
zoo.sick(
    "voltages-channels-that-fade-without-the-minus",
    lambda s: grown(s, Fading(4, 32, 1.0)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.mix"),
    also=GROWS,
    control=fading,
)


class Swirl(Cell):
    """An antisymmetric flow, taken in steps of this width."""

    def __init__(self, dim: int, width: int, pace: float) -> None:
        super().__init__()
        self.hidden_size, self.pace, self.into = width, pace, nn.Linear(dim, width)
        self.flow = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.flow.weight, std=1 / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        flow = self.flow.weight - self.flow.weight.T
        return state + self.pace * (state @ flow + self.into(x) - 0.01 * state)


swirl = zoo.healthy("voltages-antisymmetric-small-steps", lambda s: metered(s, Swirl(4, 24, 0.05), lr=5e-3))
zoo.sick(
    "voltages-antisymmetric-steps-of-1",
    lambda s: grown(s, Swirl(4, 24, 1.0)),
    BURSTS,
    *CHAOTIC,
    layer=("rnn.into", "rnn.flow"),
    also=GROWS,
    control=swirl,
)


def drawn(width: int, mean: float, std: float) -> nn.RNN:
    """A ReLU recurrence whose weights have a mean of their own."""
    rnn = nn.RNN(4, width, nonlinearity="relu", batch_first=True)
    nn.init.normal_(rnn.weight_hh_l0, mean / width, std / width**0.5)
    return rnn


relu = zoo.healthy("voltages-relu-drawn-about-zero", lambda s: metered(s, drawn(40, 0.0, 1.0), 8, lr=3e-3, clip=1.0))
zoo.sick(
    "voltages-relu-drawn-about-a-positive-mean",
    lambda s: grown(s, drawn(40, 2.2, 0.6)),
    BURSTS,
    *CHAOTIC,
    layer="rnn",
    also=GROWS,
    control=relu,
)

# --- narrow, flat, dead, dying, cut


class Moods(nn.Module):
    """Each step as `size` numbers, a GRU, the mean of its states."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter, self.rnn, self.fc = nn.Linear(5, size), nn.GRU(size, 24, batch_first=True), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(self.enter(x))[0].mean(dim=1))


mood = zoo.healthy("moods-steps-of-8-numbers", lambda s: live(Moods(8), moods(s, classes=6), lr=1e-2, steps=60))
zoo.sick(
    "moods-steps-of-1-number",
    lambda s: live(Moods(1), moods(s, classes=6), lr=1e-2, steps=60),
    lags(0.08),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("enter", "rnn"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=mood,
)


class Translator(nn.Module):
    """An encoder hands `size` numbers to a decoder, which says all that was said."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder, self.thought = nn.LSTM(2, 28, batch_first=True), nn.Linear(28, size)
        self.start, self.decoder, self.out = nn.Linear(size, 28), nn.GRU(2, 28, batch_first=True), nn.Linear(28, 2)

    def forward(self, x: Tensor) -> Tensor:
        thought = self.thought(self.encoder(x)[1][0][-1])
        return self.out(self.decoder(torch.ones_like(x), torch.tanh(self.start(thought))[None])[0])


def retold(seed: int, size: int) -> Setup:
    task = tides(seed, 6).changed(lambda x, _t: (x, x))
    return live(Translator(size), task, lr=1e-2, steps=100)


thought = zoo.healthy("tides-retold-from-16-numbers", lambda s: retold(s, 16))
zoo.sick(
    "tides-retold-from-1-number",
    lambda s: retold(s, 1),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("thought", "start"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"},
    control=thought,
)


def millivolts(seed: int, factor: float) -> Setup:
    task = tides(seed).changed(lambda x, t: (factor * x, t))
    model = Tagger(nn.Identity(), nn.RNN(2, 28, batch_first=True), 2, 28)
    return live(model, task, lr=5e-3, steps=60)


volts = zoo.healthy("tides-elman-in-metres", lambda s: millivolts(s, 1.0))
zoo.sick(
    "tides-elman-in-millimetres",
    lambda s: millivolts(s, 1000.0),
    lasting(states_flat("tanh", 0.9)),
    "SATURATION",
    "SHORT_MEMORY",
    "VANISHING",
    layer="rnn",
    also={"EXPLODING", "UNSTABLE", "SPECTRAL_RADIUS", "DEAD"},
    control=volts,
)


def resting(seed: int, bias: float) -> Setup:
    rnn = nn.RNN(5, 32, nonlinearity="relu", batch_first=True)
    rnn.bias_ih_l0.data += bias
    return live(Tagger(nn.Identity(), rnn, 4, 32, last=True), moods(seed), lr=5e-3, steps=60)


awake = zoo.healthy("moods-relu-elman", lambda s: resting(s, 0.0))
zoo.sick(
    "moods-relu-elman-bias-minus-12",
    lambda s: resting(s, -12.0),
    lasting(dead("rnn", 0.97)),
    "DEAD",
    layer="rnn",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK", *SHORT},
    control=awake,
)


class Tower(nn.Module):
    """Recurrent layers on top of one another, without skips."""

    def __init__(self, depth: int, gain: float) -> None:
        super().__init__()
        self.floors = nn.ModuleList(nn.RNN(5 if i == 0 else 20, 20, batch_first=True) for i in range(depth))
        self.fc = nn.Linear(20, 4)
        for floor in self.floors:
            nn.init.orthogonal_(floor.weight_ih_l0, gain)

    def forward(self, x: Tensor) -> Tensor:
        for floor in self.floors:
            x = floor(x)[0]
        return self.fc(x.mean(dim=1))


tower = zoo.healthy("moods-tower-of-3", lambda s: live(Tower(3, 1.2), moods(s), lr=5e-3, steps=60))
zoo.sick(
    "moods-tower-of-8-drawn-small",
    lambda s: live(Tower(8, 0.3), moods(s), "SGD", 0.02, 50, momentum=0.9),
    both(lasting(gradient_ratio("floors.0", "floors.7", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW", "SHORT_MEMORY", "SPECTRAL_RADIUS"},
    control=tower,
)


class Mixed(nn.Module):
    """Two recurrent layers; `wrong` gives the second the words instead of what the first says."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(40, 20), nn.GRU(20, 20, batch_first=True)
        self.second, self.fc, self.wrong = nn.GRU(20, 24, batch_first=True), nn.Linear(24, 5), wrong

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        states = self.first(x)[0]
        return self.fc(self.second(x if self.wrong else states)[0].mean(dim=1))


mixed = zoo.healthy("reviews-second-layer-reads-the-first", lambda s: live(Mixed(False), reviews(s), lr=1e-2, steps=60))
zoo.sick(
    "reviews-second-layer-reads-the-words",
    lambda s: live(Mixed(True), reviews(s), lr=1e-2, steps=60),
    lasting(no_gradient("first")),
    "DISCONNECTED",
    layer="first",
    also={"DEAD"},
    control=mixed,
)

# --- numbers and jumps


class Own(nn.Module):
    """Forecasts a series in units of its own deviation."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.inner, self.eps = Tagger(nn.Identity(), nn.GRU(2, 24, batch_first=True), 2, 24), eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        std = (x - mean).square().mean(dim=1, keepdim=True).sqrt() + self.eps
        return self.inner((x - mean) / std) * std + mean


def becalmed(seed: int, eps: float) -> Setup:
    """On some days there is no tide at all."""
    now = every(17, 8)
    task = tides(seed).mapped(lambda x: torch.cat([0 * x[:1], x[1:]]) if now() else x)
    return live(Own(eps), task, lr=5e-3, steps=51)


calm = zoo.healthy("tides-deviation-with-eps", lambda s: becalmed(s, 1e-3))
zoo.sick("tides-deviation-of-no-tide", lambda s: becalmed(s, 0.0), breaks, "NUMERICAL", control=calm)


def floods(seed: int, size: float) -> Setup:
    """A gauge that sends feet instead of metres, then raw counts, on some days."""
    now = every(9, 5)
    model = Tagger(nn.Identity(), nn.GRU(2, 24, batch_first=True), 2, 24)
    task = tides(seed).changed(lambda x, t: (x, torch.cat([size * t[:2], t[2:]])) if now() else (x, t))
    return live(model, task, lr=3e-3, steps=72)


gauge = zoo.healthy("tides-gauge-in-order", lambda s: floods(s, 1.0))
zoo.sick("tides-gauge-sends-counts", lambda s: floods(s, 500.0), gradient_norms_spread(30), *JUMPS, control=gauge)
