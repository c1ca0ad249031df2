# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people write them whose memory is too short or whose recurrence runs away, and their twins.

Half: common.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    INVOICE,
    Each,
    Last,
    ends_worse,
    grows,
    invoices,
    modes,
    pulses,
    spam,
    through_time,
    told,
    visits,
)
from validation.cases._everyday_sequences import back
from validation.evidence import at_last, both, lasting, thrives
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, SHORT
from validation.nets import Cell
from validation.tasks import Task

zoo = Zoo("rnn", half="common", analyzer="recurrent", proof=thrives())
FORGETS = both(lasting(through_time("enter", below=1e-4)), ends_worse())
FORGETS_ALL = both(lasting(through_time("enter", below=1e-12)), ends_worse())
RUNS = both(lasting(through_time("enter", above=1e3)), ends_worse())
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL"}


def currency(seed: int, rnn: nn.Module, features: int, length: int = 24, **more) -> Setup:
    """Name the currency that an invoice begins with."""
    model = Last(nn.Embedding(INVOICE, 20), rnn, features, 5)
    return told(model, invoices(seed, length), length - 1, **{"lr": 5e-3, "steps": 80, **more})


def strengths(seed: int, rnn: nn.Module, features: int, length: int = 20, **more) -> Setup:
    """Say at the end what the first step showed."""
    model = Last(nn.Linear(4, 16), rnn, features, 2)
    return told(model, pulses(seed, length), length - 1, **{"lr": 5e-3, "steps": 80, **more})


# --- memory that is too short


@torch.no_grad()
def chrono(rnn: nn.LSTM, longest: int, swapped: bool = False) -> nn.LSTM:
    """Biases of the gates drawn for memories of up to `longest` steps; `swapped` mistakes the two gates."""
    size = rnn.hidden_size
    for name, bias in rnn.named_parameters():
        if name.startswith("bias_ih"):
            span = torch.log(torch.empty(size).uniform_(longest / 3, longest - 1))
            bias.zero_()
            bias[:size] = span if swapped else -span
            bias[size : 2 * size] = -span if swapped else span
        elif name.startswith("bias_hh"):
            bias.zero_()
    return rnn


timed = zoo.healthy(
    "invoices-lstm-40-chrono-biases",
    lambda s: currency(s, chrono(nn.LSTM(20, 40, batch_first=True), 40), 40, lr=1e-2),
    thrives(0.2),
)
zoo.sick(
    "invoices-lstm-40-chrono-biases-of-the-wrong-gates",
    lambda s: currency(s, chrono(nn.LSTM(20, 40, batch_first=True), 40, swapped=True), 40, lr=1e-2),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=timed,
)
double = zoo.healthy(
    "invoices-two-lstms-chrono-biases",
    lambda s: currency(s, chrono(nn.LSTM(20, 32, 2, batch_first=True), 40), 32, lr=1e-2),
    thrives(0.2),
)
zoo.sick(
    "invoices-two-lstms-chrono-biases-of-the-wrong-gates",
    lambda s: currency(s, chrono(nn.LSTM(20, 32, 2, batch_first=True), 40, swapped=True), 32, lr=1e-2),
    FORGETS,
    *SHORT,
    layer="rnn",
    control=double,
)


class OwnGru(Cell):
    """A GRU from its equations; papers differ in which of the two shares the update gate is."""

    def __init__(self, dim: int, width: int, keeps: bool = True, update: float = 3.0) -> None:
        super().__init__()
        self.hidden_size, self.keeps = width, keeps
        self.gates, self.new = nn.Linear(dim + width, 2 * width), nn.Linear(dim + width, width)
        self.gates.bias.data[:width] = update

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        update, reset = torch.sigmoid(self.gates(torch.cat([x, state], dim=1))).chunk(2, dim=1)
        new = torch.tanh(self.new(torch.cat([x, reset * state], dim=1)))
        return update * state + (1 - update) * new if self.keeps else (1 - update) * state + update * new


own = zoo.healthy("invoices-own-gru-update-keeps", lambda s: currency(s, OwnGru(20, 32), 32, lr=1e-2), thrives(0.2))
zoo.sick(
    "invoices-own-gru-update-replaces-bias-of-the-other-paper",
    lambda s: currency(s, OwnGru(20, 32, keeps=False), 32, lr=1e-2),
    FORGETS,
    *SHORT,
    layer=("rnn.gates", "rnn.new"),
    control=own,
)


@torch.no_grad()
def orthogonal(rnn: nn.RNNBase, gain: float = 1.0) -> nn.RNNBase:
    """Orthogonal recurrences times a gain, biases of zero."""
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            for part in weight.split(rnn.hidden_size):
                nn.init.orthogonal_(part, gain)
        elif name.startswith("bias"):
            weight.zero_()
    return rnn


def penalised(seed: int, factor: float) -> Setup:
    """A penalty on the recurrence is part of the loss."""
    setup = strengths(seed, orthogonal(nn.RNN(16, 40, batch_first=True)), 40, 24, lr=3e-3, steps=120)
    plain, weight = setup.loss_fn, setup.model.rnn.weight_hh_l0
    return told_again(setup, lambda out: plain(out) + factor * weight.square().sum())


def told_again(setup: Setup, loss) -> Setup:
    return Setup(
        model=setup.model,
        input_fn=setup.input_fn,
        loss_fn=loss,
        optimizer=setup.optimizer,
        steps=setup.steps,
        hints=setup.hints,
    )


light = zoo.healthy("strengths-elman-orthogonal-light-penalty", lambda s: penalised(s, 1e-5), thrives(0.2))
zoo.sick(
    "strengths-elman-orthogonal-penalty-of-1",
    lambda s: penalised(s, 1.0),
    both(at_last(through_time("enter", below=1e-3)), ends_worse()),
    *SHORT,
    layer="rnn",
    control=light,
)


class Unrolled(nn.Module):
    """An LSTM cell in a loop; its states may be detached (`cut`), dropped (`drop`) or forgotten (`fresh`)."""

    def __init__(self, dim: int, width: int, cut: bool = False, drop: float = 0.0, fresh: bool = False) -> None:
        super().__init__()
        self.cell, self.cut, self.drop, self.fresh = nn.LSTMCell(dim, width), cut, drop, fresh
        self.cell.bias_hh.data[width : 2 * width] = 3.0

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.cell.hidden_size)
        states = []
        for now in x.unbind(1):
            if self.cut:
                h, c = h.detach(), c.detach()
            h, c = self.cell(now, None if self.fresh else (h, c))
            c = F.dropout(c, self.drop, self.training)
            states.append(h)
        return torch.stack(states, dim=1)


def labelled(seed: int, rnn: nn.Module, features: int, **more) -> Setup:
    """Label every token by the table that the first one names."""
    model = Each(nn.Embedding(11, 16), rnn, features, 4)
    return told(model, modes(seed), 19, **{"lr": 1e-2, "steps": 80, **more})


unrolled = zoo.healthy("modes-lstm-cell-unrolled", lambda s: labelled(s, Unrolled(16, 40), 40), thrives(0.15))
zoo.sick(
    "modes-lstm-cell-detached-at-every-step",
    lambda s: labelled(s, Unrolled(16, 40, cut=True), 40),
    FORGETS_ALL,
    *CUT_SHORT,
    layer=("rnn.cell", "enter"),
    control=unrolled,
)
zoo.sick(
    "modes-lstm-cell-called-without-its-state",
    lambda s: labelled(s, Unrolled(16, 40, fresh=True), 40),
    FORGETS_ALL,
    *CUT_SHORT,
    layer=("rnn.cell", "enter"),
    control=unrolled,
)
zoo.sick(
    "invoices-lstm-cell-dropout-0.5-on-its-memory",
    lambda s: currency(s, Unrolled(20, 40, drop=0.5), 40, lr=1e-2),
    both(at_last(through_time("enter", below=5e-3)), ends_worse()),
    *SHORT,
    layer="rnn.cell",
    also={"UNSTABLE"},
    control=zoo.healthy(
        "invoices-lstm-cell-no-dropout", lambda s: currency(s, Unrolled(20, 40), 40, lr=1e-2), thrives(0.2)
    ),
)


class Seconds(nn.Module):
    """A GRU over batch and time in the order that its `batch_first` says."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 40, batch_first=first)
        self.gru.bias_hh_l0.data[40:80] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


first = zoo.healthy("modes-gru-batch-first", lambda s: labelled(s, Seconds(True), 40), thrives(0.15))
zoo.sick(
    "modes-gru-batch-first-forgotten",
    lambda s: labelled(s, Seconds(False), 40),
    FORGETS_ALL,
    *CUT_SHORT,
    layer=("rnn.gru", "enter"),
    control=first,
)


class Textbook(Cell):
    """An Elman cell with an activation of one's choice; the recurrence starts orthogonal."""

    def __init__(self, dim: int, width: int, act=torch.tanh, gain: float = 1.0) -> None:
        super().__init__()
        self.hidden_size, self.act = width, act
        self.wx, self.wh = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.wh.weight, gain)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return self.act(self.wx(x) + self.wh(state))


tanh = zoo.healthy("strengths-elman-by-hand-tanh", lambda s: strengths(s, Textbook(16, 40), 40), thrives(0.2))
zoo.sick(
    "strengths-elman-by-hand-sigmoid",
    lambda s: strengths(s, Textbook(16, 40, torch.sigmoid), 40),
    FORGETS,
    *SHORT,
    layer=("rnn.wx", "rnn.wh"),
    control=tanh,
)


class Faded(nn.Module):
    """A GRU cell whose state fades between visits by exp(-rate · gap), as in GRU-D; a gap of 1 is `unit` days."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit, self.enter, self.cell = unit, nn.Linear(3, 16), nn.GRUCell(16, 40)
        self.rate, self.head = nn.Parameter(torch.full((40,), -1.0)), nn.Linear(40, 2)
        self.cell.bias_hh.data[40:80] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        inside, gap = self.enter(x), x[..., 2:] / self.unit
        state = x.new_zeros(len(x), 40)
        for t in range(x.shape[1]):
            state = self.cell(inside[:, t], state * torch.exp(-F.softplus(self.rate) * gap[:, t]))
        return self.head(state)


def patients(seed: int, unit: float) -> Setup:
    return told(Faded(unit), visits(seed), 13, lr=1e-2, steps=80)


weeks = zoo.healthy("visits-gru-fades-by-gaps-in-months", lambda s: patients(s, 30.0), thrives(0.2))
zoo.sick(
    "visits-gru-fades-by-gaps-in-hours",
    lambda s: patients(s, 1 / 24),
    FORGETS,
    *CUT_SHORT,
    layer=("cell", "enter"),
    control=weeks,
)


class Independent(Cell):
    """Every unit has its own recurrent weight, after Li and others; they start at `keep`."""

    def __init__(self, dim: int, width: int, keep: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.inp, self.u = nn.Linear(dim, width), nn.Parameter(torch.full((width,), keep))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return F.relu(self.inp(x) + self.u * state)


alone = zoo.healthy("strengths-independent-units-keep-1", lambda s: strengths(s, Independent(16, 40, 1.0), 40))
zoo.sick(
    "strengths-independent-units-keep-0.2",
    lambda s: strengths(s, Independent(16, 40, 0.2), 40),
    FORGETS,
    *SHORT,
    layer=("rnn.inp", "rnn"),
    control=alone,
)


class Mailbox(nn.Module):
    """Reads mails padded at their end; packed, or to the end of the padding."""

    def __init__(self, packed: bool, words: int = 30) -> None:
        super().__init__()
        self.enter, self.packed = nn.Embedding(words, 16, padding_idx=0), packed
        self.lstm, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = self.enter(tokens)
        if self.packed:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(x)[1][0][-1])


def mails(seed: int, packed: bool) -> Setup:
    """Short mails in windows of forty words."""
    task = spam(seed, length=40, shortest=3).changed(shortened)
    return told(Mailbox(packed), task, 38, lr=1e-2, steps=60)


def shortened(batch: tuple[Tensor, Tensor], target: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    tokens, lengths = batch
    lengths = 3 + lengths % 5
    return (tokens.masked_fill(torch.arange(tokens.shape[1]) >= lengths[:, None], 0), lengths), target


packed = zoo.healthy("mails-of-few-words-packed", lambda s: mails(s, True), thrives(0.2))
zoo.sick(
    "mails-of-few-words-read-to-the-end-of-the-padding",
    lambda s: mails(s, False),
    both(lasting(through_time("enter", below=1e-3)), ends_worse()),
    *SHORT,
    layer=("lstm", "enter"),
    control=packed,
)


class BothWays(nn.Module):
    """Two plain recurrences, one from each end; the answer reads the last state of either."""

    def __init__(self, gain: float, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Embedding(INVOICE, 20)
        self.rnn = orthogonal(nn.RNN(20, width, batch_first=True, bidirectional=True), gain)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.rnn(self.enter(tokens))[0]
        width = states.shape[-1] // 2
        return self.head(torch.cat([states[:, -1, :width], states[:, 0, width:]], dim=1))


def middle(seed: int, length: int = 24) -> Task:
    """The currency stands in the middle, between digits."""

    def centre(tokens: Tensor) -> Tensor:
        place = tokens.shape[1] // 2
        return torch.cat([tokens[:, 1 : place + 1], tokens[:, :1], tokens[:, place + 1 :]], dim=1)

    return invoices(seed, length).mapped(centre)


def both_ways(seed: int, gain: float, length: int = 24) -> Setup:
    return told(BothWays(gain), middle(seed, length), length // 2, lr=5e-3, steps=100, clip=1.0)


ways = zoo.healthy("middle-currency-both-ways-orthogonal", lambda s: both_ways(s, 1.0), thrives(0.2))


zoo.sick(
    "middle-currency-both-ways-gain-6",
    lambda s: both_ways(s, 6.0),
    # What enters last has the longest way to the state of the other direction.
    both(lasting(through_time("enter", below=0.1, first=12)), ends_worse()),
    *CHAOTIC,
    layer="rnn",
    also=WILD_TOO,
    control=ways,
)

# --- recurrences that run away


class Positive(Cell):
    """An ELU cell with matrices from torch.rand or, as was meant, from torch.randn."""

    def __init__(self, dim: int, width: int, draw) -> None:
        super().__init__()
        self.hidden_size = width
        self.w = nn.Parameter(draw(dim, width) / dim**0.5)
        self.u = nn.Parameter(draw(width, width) / width**0.5)
        self.b = nn.Parameter(torch.zeros(width))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return F.elu(x @ self.w + state @ self.u + self.b)


signed = zoo.healthy(
    "strengths-elu-cell-from-randn", lambda s: strengths(s, Positive(16, 40, torch.randn), 40, clip=1.0), thrives(0.2)
)
zoo.sick(
    "strengths-elu-cell-from-rand",
    lambda s: strengths(s, Positive(16, 40, torch.rand), 40, clip=1.0),
    both(through_time("enter", above=1e3), ends_worse()),
    *CHAOTIC,
    layer="rnn",
    also=WILD_TOO,
    control=signed,
)


class ConvLstm(nn.Module):
    """An LSTM of convolutions over small frames; the forget gate starts at `bias`."""

    def __init__(self, bias: float = 4.0) -> None:
        super().__init__()
        self.enter, self.conv = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(12, 32, 3, padding=1)
        self.head = nn.Linear(8 * 16, 2)
        self.conv.bias.data[8:16] = bias

    def forward(self, frames: Tensor) -> Tensor:
        n, length = frames.shape[:2]
        x = self.enter(frames.flatten(0, 1)).unflatten(0, (n, length))
        h = c = x.new_zeros(n, 8, *x.shape[-2:])
        for now in x.unbind(1):
            i, f, o, g = self.conv(torch.cat([now, h], dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h.flatten(1))


def films(seed: int, **fault) -> Setup:
    """Films of 4×4 dots whose first frame is brighter on some side."""

    def frames(x: Tensor) -> Tensor:
        field = x[:, :, None, :1, None] * torch.linspace(-1, 1, 4)[:, None]
        field = field + x[:, :, None, 1:2, None] * torch.linspace(-1, 1, 4)
        return field + x[:, :, None, 2:3, None]

    return told(ConvLstm(**fault), pulses(seed, 14).mapped(frames), 13, lr=1e-2, steps=50, clip=1.0)


frames = zoo.healthy("films-convolutional-lstm", films, thrives(0.2))
zoo.sick(
    "films-convolutional-lstm-forget-bias-minus-5",
    lambda s: films(s, bias=-5.0),
    both(lasting(back(below=5e-3)), ends_worse()),
    *SHORT,
    layer="conv",
    control=frames,
)


class TwoBack(Cell):
    """A cell with skips from the last two states: their sum, or their mean."""

    def __init__(self, dim: int, width: int, share: float) -> None:
        super().__init__()
        self.hidden_size, self.share = width, share
        self.inp, self.rec = nn.Linear(dim, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = state = x.new_zeros(len(x), self.hidden_size)
        states = []
        for now in x.unbind(1):
            news = torch.tanh(self.inp(now) + self.rec(state))
            before, state = state, self.share * (state + before) + news
            states.append(state)
        return torch.stack(states, dim=1), state


mean = zoo.healthy("strengths-mean-of-the-last-two-states", lambda s: strengths(s, TwoBack(16, 32, 0.5), 32, clip=1.0))
zoo.sick(
    "strengths-sum-of-the-last-two-states",
    lambda s: strengths(s, TwoBack(16, 32, 1.0), 32, clip=1.0),
    RUNS,
    *CHAOTIC,
    layer=("rnn.inp", "rnn.rec"),
    also=WILD_TOO,
    control=mean,
)


class Rollout(nn.Module):
    """A linear system, x' = A x + B u, rolled out over the inputs; A is what is to be found."""

    def __init__(self, size: int, radius: float | None) -> None:
        super().__init__()
        a = torch.randn(size, size)
        self.a = nn.Parameter(a if radius is None else radius * torch.linalg.qr(a)[0])
        self.hidden_size = size
        self.b = nn.Linear(16, size, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        inside, state, states = self.b(u), u.new_zeros(len(u), self.hidden_size), []
        for now in inside.unbind(1):
            state = state @ self.a + now
            states.append(state)
        return torch.stack(states, dim=1)


linear = zoo.healthy("strengths-linear-system-a-rotation", lambda s: strengths(s, Rollout(12, 0.98), 12), thrives(0.3))
zoo.sick(
    "strengths-linear-system-a-from-randn",
    lambda s: strengths(s, Rollout(12, None), 12),
    RUNS,
    *CHAOTIC,
    layer=("rnn", "rnn.b"),
    also=WILD_TOO,
    control=linear,
)


class Reservoir(nn.Module):
    """An echo state network: a fixed recurrence of some radius, of which only the head learns."""

    def __init__(self, radius: float, width: int = 100) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Linear(4, width), nn.RNN(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)
        with torch.no_grad():
            for name, weight in self.rnn.named_parameters():
                if name.startswith("bias"):
                    weight.zero_()
            self.rnn.weight_ih_l0.copy_(torch.eye(width))
            weight = torch.randn(width, width)
            self.rnn.weight_hh_l0.copy_(radius * weight / torch.linalg.eigvals(weight).abs().max())
        self.rnn.requires_grad_(False)
        self.enter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.enter(x))[0][:, -1])


def echoes(seed: int, radius: float) -> Setup:
    """Two strengths are shown ten steps before the end."""
    task = pulses(seed, 40).mapped(lambda x: torch.cat([x[:, 1:31], 2 * x[:, :1], x[:, 31:]], dim=1))
    return told(Reservoir(radius), task, 9, lr=1e-2, steps=80)


echo = zoo.healthy("strengths-reservoir-radius-0.95", lambda s: echoes(s, 0.95), thrives(0.2))
zoo.sick(
    "strengths-reservoir-radius-4",
    lambda s: echoes(s, 4.0),
    both(lasting(back(above=1e3)), ends_worse()),
    *CHAOTIC,
    "SATURATION",
    layer=("rnn",),
    also=WILD_TOO,
    control=echo,
)


class ReluGru(Cell):
    """A GRU with a ReLU for the new state, as `activation="relu"` makes it; `gain` draws its recurrence."""

    def __init__(self, dim: int, width: int, gain: float) -> None:
        super().__init__()
        self.hidden_size = width
        self.xg, self.hg = nn.Linear(dim, 2 * width), nn.Linear(width, 2 * width)
        self.xn, self.hn = nn.Linear(dim, width), nn.Linear(width, width)
        nn.init.normal_(self.hn.weight, std=gain / width**0.5)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        update, reset = torch.sigmoid(self.xg(x) + self.hg(state)).chunk(2, dim=1)
        return update * state + (1 - update) * F.relu(self.xn(x) + reset * self.hn(state))


calm = zoo.healthy(
    "invoices-relu-gru-drawn-by-the-root",
    lambda s: currency(s, ReluGru(20, 40, 1.0), 40, 14, clip=1.0, steps=120),
    thrives(0.15),
)
zoo.sick(
    "invoices-relu-gru-drawn-by-ten-times-the-root",
    lambda s: currency(s, ReluGru(20, 40, 10.0), 40, 14, clip=1.0, steps=120),
    both(lasting(grows("rnn", 1e3)), ends_worse()),
    *CHAOTIC,
    layer=("rnn.hn", "rnn.xn", "rnn.xg", "rnn.hg"),
    also=WILD_TOO,
    control=calm,
)
storeys = zoo.healthy(
    "invoices-two-elmans-orthogonal",
    lambda s: currency(s, orthogonal(nn.RNN(20, 48, 2, batch_first=True)), 48, 16, lr=3e-3),
    thrives(0.15),
)
zoo.sick(
    "invoices-two-elmans-orthogonal-gain-6",
    lambda s: currency(s, orthogonal(nn.RNN(20, 48, 2, batch_first=True), 6.0), 48, 16, lr=3e-3),
    RUNS,
    *CHAOTIC,
    "SATURATION",
    layer="rnn",
    also=WILD_TOO,
    control=storeys,
)


class Writer(nn.Module):
    """Reads readings with one relu recurrence and writes them in their order with another, from its last state."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 16)
        self.reader, self.writer = (
            orthogonal(nn.RNN(16, 40, nonlinearity="relu", batch_first=True), gain) for _ in range(2)
        )
        self.place, self.head = nn.Parameter(0.3 * torch.randn(1, 16, 16)), nn.Linear(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.reader(self.enter(x))
        return self.head(self.writer(self.place.expand(len(x), -1, -1), state)[0])


def copied(seed: int, gain: float) -> Setup:
    """A constant pair of readings under noise."""

    def same(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return target[:, None] + 0.3 * x[:, :16, :2], target[:, None].expand(-1, 16, -1)

    return told(Writer(gain), pulses(seed, 16).changed(same), 16, lr=2e-3, steps=60, clip=1.0)


written = zoo.healthy("readings-written-again-relu-orthogonal", lambda s: copied(s, 1.0), thrives(0.2))
zoo.sick(
    "readings-written-again-relu-orthogonal-times-3",
    lambda s: copied(s, 3.0),
    both(grows("reader", 1e2), ends_worse()),
    *CHAOTIC,
    layer=("reader", "writer"),
    also=WILD_TOO,
    control=written,
)
