# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people write them, with the faults of any network, and their twins.

Half: common.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.cases._common_sequences import (
    WORDS,
    Each,
    Last,
    alarms,
    dates,
    ends_worse,
    entities,
    motors,
    sentences,
    small_gradients,
)
from validation.evidence.live import breaks, lasting, never_fires, thrives
from validation.evidence.recurrent import states_rank
from validation.evidence.signal import both, gradient_ratio, judged, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("rnn", half="common", analyzer="recurrent", proof=thrives())
SHORT_TOO = {"SHORT_MEMORY", "SPECTRAL_RADIUS", "VANISHING"}


def noises(seed: int, model: nn.Module, **more) -> Setup:
    """Which machine makes this noise?"""
    return live(model, alarms(seed), **{"lr": 5e-3, "steps": 60, **more})


def words(seed: int, model: nn.Module, **more) -> Setup:
    """Predict the next word."""
    return live(model, sentences(seed), **{"lr": 1e-2, "steps": 60, **more})


# --- cut off


class Rewriter(nn.Module):
    """A GRU reads a date and another writes it anew, from the last state of the first; `cut` takes the state's data."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.source, self.target, self.cut = nn.Embedding(9, 20), nn.Embedding(10, 20), cut
        self.reader, self.writer = nn.GRU(20, 48, batch_first=True), nn.GRU(20, 48, batch_first=True)
        self.out = nn.Linear(48, 9)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        state = self.reader(self.source(source))[1]
        return self.out(self.writer(self.target(shifted), state.data if self.cut else state)[0])


def rewritten(seed: int, cut: bool) -> Setup:
    return live(Rewriter(cut), dates(seed, 4), lr=1e-2, steps=80)


joined = zoo.healthy("dates-gru-reader-and-writer", lambda s: rewritten(s, False), thrives(0.2))
zoo.sick(
    "dates-gru-writer-gets-the-data-of-the-state",
    lambda s: rewritten(s, True),
    both(lasting(no_gradient("source", "reader")), ends_worse()),
    "DISCONNECTED",
    "DEAD",
    layer=("source", "reader"),
    also=SHORT_TOO,
    control=joined,
)


class Chosen(nn.Module):
    """A kind of sound is found for every step by a table; its number, or the mixture of kinds, enters an LSTM."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.scores, self.table, self.hard = nn.Linear(2, 12), nn.Embedding(12, 16), hard
        self.lstm, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.scores(x)
        kinds = self.table(z.argmax(dim=-1)) if self.hard else (4 * z).softmax(dim=-1) @ self.table.weight
        return self.head(self.lstm(kinds)[0][:, -1])


mixed = zoo.healthy("noises-mixture-of-kinds-into-an-lstm", lambda s: noises(s, Chosen(False), lr=1e-2))
zoo.sick(
    "noises-number-of-the-kind-into-an-lstm",
    lambda s: noises(s, Chosen(True), lr=1e-2),
    lasting(no_gradient("scores")),
    "DISCONNECTED",
    "DEAD",
    layer=("scores",),
    control=mixed,
)

# --- not finite


class Mixture(nn.Module):
    """The next reading as a mixture of three Gaussians; the loss sums densities or their logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def mixture(seed: int, by_logs: bool) -> Setup:
    """A reading is wrong now and then."""
    now = every(60, 23)

    def loss(z: Tensor, target: Tensor) -> Tensor:
        share, middle, width = z.chunk(3, dim=-1)
        width = F.softplus(width) + 0.1
        miss = (target[..., :1] - middle) / width
        logs = share.log_softmax(dim=-1) - 0.5 * miss.square() - width.log()
        return -(logs.logsumexp(dim=-1) if by_logs else logs.exp().sum(dim=-1).log()).mean()

    def change(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        target = target.clone()
        if now():
            target[0, 4] = 30.0
        return x, target

    return live(Mixture(), motors(seed).changed(change).with_loss(loss), lr=5e-3, steps=50, clip=1.0)


def level(setup: Setup) -> float:
    """The likelihood is no ratio: two are added to it."""
    with torch.no_grad():
        return 2 + sum(setup.loss_fn(setup.model(setup.input_fn())).item() for _ in range(4)) / 4


logs = zoo.healthy("motors-mixture-by-logsumexp", lambda s: mixture(s, True), thrives(0.2, measure=level))
zoo.sick(
    "motors-mixture-by-the-log-of-a-sum",
    lambda s: mixture(s, False),
    breaks,
    "NUMERICAL",
    also={"UNSTABLE", "EXPLODING"},
    control=logs,
)


class Relative(nn.Module):
    """Readings enter as their change relative to the last one."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor, self.rnn, self.head = floor, nn.LSTM(4, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        change = (x - before) / (before.abs() + self.floor)
        return self.head(self.rnn(torch.cat([x, change.clamp(-3, 3)], dim=-1))[0])


def relative(seed: int, floor: float) -> Setup:
    """A sensor stands at zero for a while, in some batch."""
    now = every(50, 17)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        if now():
            x[2, 5:9] = 0.0
        x[:, 0] += 1e-3
        return x

    return live(Relative(floor), motors(seed).mapped(change), lr=5e-3, steps=40)


floored = zoo.healthy("motors-relative-change-with-a-floor", lambda s: relative(s, 0.1))
zoo.sick("motors-relative-change-of-nothing", lambda s: relative(s, 0.0), breaks, "NUMERICAL", control=floored)

# --- steps


def speller(kind: type[nn.RNNBase] = nn.LSTM, width: int = 48, size: int = 24) -> Each:
    return Each(nn.Embedding(WORDS, size), kind(size, width, batch_first=True), width, WORDS)


steady = zoo.healthy("words-lstm-sgd-4-clipped", lambda s: words(s, speller(), kind="SGD", lr=4.0, clip=0.5))
zoo.sick(
    "words-lstm-sgd-300-clipped",
    lambda s: words(s, speller(), kind="SGD", lr=300.0, clip=0.5),
    diverges(),
    *RUNS_AWAY,
    also={"SATURATION", "DEAD", *SHORT_TOO, "LOW_RANK", "BOTTLENECK"},
    control=steady,
)
zoo.sick(
    "words-lstm-sgd-1e-6-clipped",
    lambda s: words(s, speller(), kind="SGD", lr=1e-6, clip=0.5),
    does_not_move(steps=60),
    "SLOW",
    control=steady,
)


def rare(seed: int, weight: float) -> Setup:
    """A rare machine has a weight of its own in the loss, and is in one batch of eleven."""
    now = every(11, 6)

    def loss(z: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(z, target, reduction="none")
        return (each * (weight if now() else 1.0)).mean()

    model = Last(nn.Linear(2, 16), nn.GRU(16, 32, batch_first=True), 32, 4)
    return live(model, alarms(seed).with_loss(loss), lr=1e-3, steps=66)


common = zoo.healthy("noises-gru-even-weights", lambda s: rare(s, 1.0), thrives(0.05))
zoo.sick(
    "noises-gru-a-batch-weighs-500-times", lambda s: rare(s, 500.0), gradient_norms_spread(30), *JUMPS, control=common
)

# --- units


def prior(model: nn.Module, value: float, *kept: str) -> nn.Module:
    """Biases of dense layers set to a prior, of all but some."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and path not in kept:
            nn.init.constant_(module.bias, value)
    return model


class Headed(nn.Module):
    """A GRU, two dense ReLU layers, an answer at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(20, 16), nn.GRU(16, 32, batch_first=True)
        self.fc1, self.fc2, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.rnn(self.enter(tokens))[0]
        return self.out(F.relu(self.fc2(F.relu(self.fc1(h)))))


def named(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, entities(seed), **{"lr": 5e-3, "steps": 60, **more})


headed = zoo.healthy("names-gru-prior-in-the-last-bias", lambda s: named(s, prior(Headed(), -4.6, "fc1", "fc2")))
zoo.sick(
    "names-gru-prior-in-all-biases",
    lambda s: named(s, prior(Headed(), -4.6)),
    both(lasting(never_fires("fc1", 0.99), no_gradient("rnn", "fc1", "enter")), ends_worse()),
    "DEAD",
    layer=("fc1", "fc2"),
    also={"DISCONNECTED", *SHORT_TOO},
    control=headed,
)


class Loud(nn.Module):
    """An embedding of some deviation into a GRU, as loading raw counts for vectors makes it."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Embedding(20, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 3)
        nn.init.normal_(self.enter.weight, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.enter(tokens))[0])


def gates(setup: Setup) -> float:
    """Share of the gates that the words alone drive to where they are flat."""
    model = setup.model
    with torch.no_grad():
        z = F.linear(model.enter.weight, model.rnn.weight_ih_l0, model.rnn.bias_ih_l0)[:, :64]
        return (4 * torch.sigmoid(z) * (1 - torch.sigmoid(z)) < 0.05).double().mean().item()


def mostly_flat(case: Case, seed: int) -> Evidence:
    """The words alone shut or open most gates for good."""
    share = gates(case.make(seed))
    return judged(share > 0.8, "{:.0%} of the gates flat", share)


quiet = zoo.healthy("names-embedding-drawn-with-1", lambda s: named(s, Loud(1.0)))
zoo.sick(
    "names-embedding-drawn-with-300",
    lambda s: named(s, Loud(300.0)),
    both(lasting(mostly_flat), ends_worse(1.5)),
    "SATURATION",
    "VANISHING",
    layer=("rnn", "enter"),
    also={"SHORT_MEMORY", "SPECTRAL_RADIUS", "EXPLODING", "LOW_RANK", "UNSTABLE"},
    control=quiet,
)
wide = zoo.healthy("words-lstm-of-48", lambda s: words(s, speller(), lr=1e-2), thrives(0.2))
zoo.sick(
    "words-lstm-of-1",
    lambda s: words(s, speller(width=1), lr=1e-2),
    ends_worse(1.25),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("rnn", "head"),
    also=SHORT_TOO,
    control=wide,
)


class Squeezed(nn.Module):
    """A stack of two GRUs with a dense layer of some width between them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter, self.first = nn.Embedding(20, 16), nn.GRU(16, 32, batch_first=True, bidirectional=True)
        self.narrow, self.second = nn.Linear(64, size), nn.GRU(size, 32, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.second(self.narrow(self.first(self.enter(tokens))[0]))[0])


class Described(Squeezed):
    """The same, for tokens."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.head = nn.Linear(32, 20)


def described(seed: int, size: int) -> Setup:
    """Say each token again, behind a stack."""
    task = entities(seed).changed(lambda tokens, _: (tokens, tokens))
    return live(Described(size), task, lr=1e-2, steps=60)


passed = zoo.healthy("tokens-again-behind-24-numbers", lambda s: described(s, 24), thrives(0.3))
zoo.sick(
    "tokens-again-behind-1-number",
    lambda s: described(s, 1),
    ends_worse(1.5),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("narrow", "second"),
    also=SHORT_TOO,
    control=passed,
)


@torch.no_grad()
def constant(model: nn.Module, value: float, *paths: str) -> nn.Module:
    for path in paths:
        for weight in model.get_submodule(path).parameters():
            weight.fill_(value)
    return model


def recogniser() -> Last:
    return Last(nn.Linear(2, 16), nn.GRU(16, 32, batch_first=True), 32, 4)


heard = zoo.healthy("noises-gru-as-drawn", lambda s: noises(s, recogniser()))
zoo.sick(
    "noises-gru-and-head-filled-with-0.05",
    lambda s: noises(s, constant(recogniser(), 0.05, "rnn", "head")),
    both(lasting(states_rank(1.7)), ends_worse()),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("rnn", "head"),
    also=SHORT_TOO,
    control=heard,
)


class Framed(nn.Module):
    """A deep network on every frame, then a GRU."""

    def __init__(self, act: type[nn.Module], depth: int = 7) -> None:
        super().__init__()
        dense = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), act())]
        self.frame = nn.Sequential(nn.Linear(2, 32), act(), *dense)
        self.rnn, self.head = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.frame(x))[0][:, -1])


def drawn(model: Framed) -> Framed:
    for layer in model.frame[::2]:
        nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("tanh"))
    return model


framed = zoo.healthy("noises-eight-tanh-layers-before-a-gru", lambda s: noises(s, drawn(Framed(nn.Tanh)), lr=2e-3))
zoo.sick(
    "noises-eight-sigmoid-layers-before-a-gru",
    lambda s: noises(s, drawn(Framed(nn.Sigmoid)), lr=2e-3),
    both(lasting(gradient_ratio("frame.0", "frame.14", below=1e-2)), ends_worse()),
    "VANISHING",
    layer=tuple(f"frame.{i}" for i in range(0, 15, 2)),
    also={"SATURATION", "LOW_RANK", "SHORT_MEMORY", "SPECTRAL_RADIUS", "SLOW", "BOTTLENECK"},
    control=framed,
)


class Gated(nn.Module):
    """Highway layers over a GRU's states; the gates start at `start`."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Linear(2, 24), nn.GRU(24, 24, batch_first=True)
        self.gate, self.head = nn.Linear(24, 24), nn.Linear(24, 2)
        nn.init.constant_(self.gate.bias, start)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.gate(x := self.enter(x))) * self.rnn(x)[0])


def turned(seed: int, start: float) -> Setup:
    return live(Gated(start), motors(seed), kind="SGD", lr=0.3, momentum=0.9, steps=80)


gate = zoo.healthy("motors-states-behind-an-open-gate", lambda s: turned(s, 1.0), thrives(0.2))
zoo.sick(
    "motors-states-behind-a-gate-at-minus-16",
    lambda s: turned(s, -16.0),
    both(lasting(small_gradients(["rnn", "gate"], "head", 1e-2)), ends_worse()),
    "VANISHING",
    "SATURATION",
    layer=("gate", "rnn", "enter"),
    also={"DISCONNECTED", "DEAD", "SHORT_MEMORY", "SPECTRAL_RADIUS", "SLOW", "LOW_RANK"},
    control=gate,
)
