# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks that people reported because they forget, or because their state runs away, with the fixes.

Half: reported.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, ends_worse, grows, through_time, told
from validation.cases._reported_sequences import (
    OPINION,
    SHOP,
    TICKET,
    blind_to,
    clips,
    curves,
    machines,
    opinions,
    orthogonal,
    products,
    sessions,
    tickets,
)
from validation.evidence import both, lasting, states_flat, thrives
from validation.labels import CHAOTIC, CUT_SHORT, GROWS, SHORT
from validation.setups import live
from validation.tasks import adding

zoo = Zoo("rnn", half="reported", analyzer="recurrent", proof=thrives(0.2))
FORGETS = both(lasting(through_time("enter", below=1e-4)), ends_worse())
WEAK_TOO = {"SLOW", "LOW_RANK", "BOTTLENECK", "loss_stuck"}
WILD_TOO = {*GROWS, "SHORT_MEMORY", "VANISHING", "NUMERICAL", "DEAD", "LOW_RANK", "loss_grows", "first_loss_high"}

# --- the state is lost on the way


class Items(nn.Module):
    """Clicks of a session, one GRU cell by hand, the next item at every step."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Embedding(SHOP, 24), nn.GRUCell(24, 48), nn.Linear(48, SHOP)
        self.kept = kept

    def forward(self, items: Tensor) -> Tensor:
        hidden, out = torch.zeros(len(items), 48), []
        for now in self.enter(items).unbind(1):
            new = self.cell(now, hidden)
            if self.kept:
                hidden = new
            out.append(self.head(new))
        return torch.stack(out, dim=1)


# hungpthanh/GRU4REC-pytorch#1: the new state goes to a name with a typo, so that every click begins a session.
kept = zoo.healthy("sessions-gru-state-kept", lambda s: live(Items(True), sessions(s), "Adam", 1e-2, 110))
zoo.sick(
    "sessions-gru-state-in-a-misspelt-name",
    lambda s: live(Items(False), sessions(s), "Adam", 1e-2, 110),
    both(lasting(blind_to("enter", 0)), ends_worse(1.3)),
    *CUT_SHORT,
    layer=("cell", "enter"),
    also={*WEAK_TOO, "DEAD", "detached", "never_moves"},
    control=kept,
)


class Scorer(nn.Module):
    """An LSTM cell reads a ticket in a loop; it may start from the first state in each round."""

    def __init__(self, fresh: bool) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Embedding(TICKET, 20), nn.LSTMCell(20, 40), nn.Linear(40, 5)
        self.cell.bias_hh.data[40:80] = 3.0
        self.fresh = fresh

    def forward(self, words: Tensor) -> Tensor:
        first = torch.zeros(2, len(words), 40)
        state = (first[0], first[1])
        for now in self.enter(words).unbind(1):
            h, c = self.cell(now, state)
            state = state if self.fresh else (h, c)
        return self.head(h)


# ChenRocks/fast_abs_rl#14 and pytorch/examples#88: the loop hands the first state to the cell at each step.
goes_on = zoo.healthy(
    "tickets-cell-gets-the-last-state", lambda s: told(Scorer(False), tickets(s), 19, lr=1e-2, steps=90)
)
zoo.sick(
    "tickets-cell-gets-the-first-state",
    lambda s: told(Scorer(True), tickets(s), 19, lr=1e-2, steps=90),
    both(lasting(blind_to("enter", *range(19))), ends_worse(1.3)),
    *CUT_SHORT,
    layer=("cell", "enter"),
    also={*WEAK_TOO, "DEAD", "detached", "never_moves"},
    control=goes_on,
)


class Detached(nn.Module):
    """A cell in a loop; its state is cut from its history after every so many steps."""

    def __init__(self, cell: nn.Module, cut: int) -> None:
        super().__init__()
        self.cell, self.cut = cell, cut

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.cell.hidden_size), []
        for t, now in enumerate(x.unbind(1)):
            h = self.cell(now, h)
            out.append(h)
            if (t + 1) % self.cut == 0:
                h = h.detach()
        return torch.stack(out, dim=1)


def elman_cell(dim: int, width: int) -> nn.RNNCell:
    cell = nn.RNNCell(dim, width)
    nn.init.orthogonal_(cell.weight_hh)
    return cell


# FluxML/Flux.jl#1209: back-propagation through time goes one step back and no further.
whole = zoo.healthy("machines-elman-whole-history", lambda s: machines(s, Detached(elman_cell(20, 40), 99), 40, 12))
zoo.sick(
    "machines-elman-history-of-one-step",
    lambda s: machines(s, Detached(elman_cell(20, 40), 1), 40, 12),
    both(lasting(blind_to("enter", *range(11))), ends_worse(1.3)),
    *CUT_SHORT,
    "detached",
    layer=("rnn.cell", "enter"),
    also={*WEAK_TOO, "DEAD", "never_moves"},
    control=whole,
)


def gru_cell(dim: int, width: int) -> nn.GRUCell:
    cell = nn.GRUCell(dim, width)
    cell.bias_hh.data[width : 2 * width] = 2.0
    return cell


# Stack Overflow 53912956 and its many kin: truncated back-propagation, cut every 5 steps, for an answer 15 steps back.
long_cut = zoo.healthy("tickets-gru-cut-every-40-steps", lambda s: products(s, Detached(gru_cell(20, 40), 40), 40, 16))
zoo.sick(
    "tickets-gru-cut-every-5-steps",
    lambda s: products(s, Detached(gru_cell(20, 40), 5), 40, 16),
    both(lasting(blind_to("enter", *range(14))), ends_worse(1.3)),
    *CUT_SHORT,
    "detached",
    layer=("rnn.cell", "enter"),
    also={*WEAK_TOO, "DEAD", "never_moves"},
    control=long_cut,
)


class Film(nn.Module):
    """Features of frames and an LSTM that expects the batch first, or, as is the default, time."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Linear(12, 24), nn.LSTM(24, 40, batch_first=first), nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(F.relu(self.enter(x)))[0][:, -1])


# HHTseng/video-classification#42, pytorch/pytorch#1538: without batch_first the LSTM walks over the films, not frames.
batch_first = zoo.healthy("clips-lstm-batch-first", lambda s: told(Film(True), clips(s), 9, lr=1e-2, steps=90))
zoo.sick(
    "clips-lstm-walks-over-the-batch",
    lambda s: told(Film(False), clips(s), 9, lr=1e-2, steps=90),
    both(lasting(blind_to("enter", *range(9))), ends_worse(1.5)),
    *CUT_SHORT,
    layer=("rnn", "enter"),
    also={*WEAK_TOO, "DEAD", "broadcast"},
    control=batch_first,
)


class Opinion(nn.Module):
    """Words and an LSTM; the answer is read at the last word, or at one place for all."""

    def __init__(self, place: int | None, cell: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(OPINION, 20, padding_idx=0), cell(20, 32, batch_first=True)
        self.head, self.place = nn.Linear(32, 4), place

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        states = self.rnn(self.enter(words))[0]
        at = lengths - 1 if self.place is None else torch.full_like(lengths, self.place)
        return self.head(states[torch.arange(len(words)), at])


# thtrieu/qclass_dl#1 and ray-project/ray#21392: outputs[-1] is what the network says behind a long padding.
at_word = zoo.healthy("opinions-lstm-read-at-the-last-word", lambda s: live(Opinion(None), opinions(s, 40), lr=1e-2))
zoo.sick(
    "opinions-lstm-read-behind-the-padding",
    lambda s: live(Opinion(-1), opinions(s, 40), lr=1e-2),
    both(lasting(through_time("enter", below=1e-4)), ends_worse(1.3)),
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=at_word,
)

# Atcold/NYU-DLSP20#19: rows are padded on the left, and the output is read at an index from the left.
at_end = zoo.healthy(
    "opinions-padded-left-read-at-the-end", lambda s: live(Opinion(-1, nn.GRU), opinions(s, 20, left=True), lr=1e-2)
)
zoo.sick(
    "opinions-padded-left-read-at-the-length",
    lambda s: live(Opinion(None, nn.GRU), opinions(s, 20, left=True), lr=1e-2),
    both(lasting(blind_to("enter", *range(12, 20))), ends_worse(1.5)),
    "DISCONNECTED",
    "SHORT_MEMORY",
    "DEAD",
    layer=("enter", "rnn", "head"),
    also={*WEAK_TOO, "VANISHING", "SPECTRAL_RADIUS", "constant_targets", "padding_labels", "same_batch", "never_moves"},
    control=at_end,
)

# --- it fades


def forget_bias(seed: int, bias: float, length: int = 36) -> Setup:
    rnn = nn.LSTM(20, 40, batch_first=True)
    for name, parameter in rnn.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
    rnn.bias_hh_l0.data[40:80] = bias
    return products(seed, rnn, 40, length, lr=1e-2, steps=70)


# pytorch/pytorch#20102, craffel/nntools#19: the forget gate starts half shut; its bias should be high.
opened = zoo.healthy("tickets-lstm-forget-bias-5", lambda s: forget_bias(s, 5.0))
zoo.sick(
    "tickets-lstm-forget-bias-0",
    lambda s: forget_bias(s, 0.0),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=opened,
)


def shared_bias(seed: int, high: bool) -> Setup:
    """Biases of a GRU, set for the slice of a gate that was thought to be the one that keeps."""
    rnn = nn.GRU(20, 40, batch_first=True)
    rnn.bias_hh_l0.data[40:80] = 4.0 if high else -4.0
    return machines(seed, rnn, 40, 16)


# After kngwyu/Rainy#17 and the dispute in keras-team/keras#14649 whether z keeps or 1 - z does: a bias that was meant
# to keep the state is set by the convention that the library does not have.
keeps = zoo.healthy("machines-gru-gate-bias-keeps", lambda s: shared_bias(s, True))
zoo.sick(
    "machines-gru-gate-bias-of-the-other-convention",
    lambda s: shared_bias(s, False),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=keeps,
)


def small(seed: int, over: float | None) -> Setup:
    rnn = nn.RNN(20, 40, batch_first=True)
    if over is None:
        orthogonal(rnn)
    else:
        nn.init.normal_(rnn.weight_hh_l0, std=1 / over)
        nn.init.normal_(rnn.weight_ih_l0, std=1 / over)
    nn.init.zeros_(rnn.bias_hh_l0)
    nn.init.zeros_(rnn.bias_ih_l0)
    return products(seed, rnn, 40, 10, lr=3e-3)


# victorzhou.com, RNNs for beginners, as in guevara/read-it-later#8634: weights are drawn and divided by 1000.
glorot = zoo.healthy("tickets-elman-orthogonal", lambda s: small(s, None))
zoo.sick(
    "tickets-elman-weights-over-1000",
    lambda s: small(s, 1000.0),
    both(through_time("enter", below=1e-4), ends_worse()),
    *SHORT,
    "SLOW",
    layer=("rnn", "enter"),
    also={*WEAK_TOO, "DISCONNECTED", "DEAD"},
    control=glorot,
)


def drawn(seed: int, gain: float | None) -> Setup:
    rnn = nn.RNN(20, 48, batch_first=True)
    return machines(seed, rnn if gain is None else orthogonal(rnn, gain), 48, 30, lr=3e-3, steps=100)


# pytorch/pytorch#9221: the default draws a third of the variance that keeps a signal, and an Elman layer forgets.
norm_kept = zoo.healthy("machines-elman-30-steps-orthogonal", lambda s: drawn(s, 1.0))
zoo.sick(
    "machines-elman-30-steps-default-init",
    lambda s: drawn(s, None),
    FORGETS,
    *SHORT,
    layer=("rnn", "enter"),
    also=WEAK_TOO,
    control=norm_kept,
)


class OwnElman(nn.Module):
    """An Elman layer as in a course, with any activation."""

    def __init__(self, dim: int, width: int, act, start=nn.init.orthogonal_) -> None:
        super().__init__()
        self.i2h, self.h2h, self.act = nn.Linear(dim, width), nn.Linear(width, width, bias=False), act
        start(self.h2h.weight)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.h2h.in_features), []
        for now in self.i2h(x).unbind(1):
            h = self.act(now + self.h2h(h))
            out.append(h)
        return torch.stack(out, dim=1)


# chenxie95/deeplearning_course_sjtu#31: told to try a sigmoid for the state, which loses three quarters at each step.
tanh = zoo.healthy("machines-own-elman-tanh", lambda s: machines(s, OwnElman(20, 40, torch.tanh), 40, 14, lr=3e-3))
zoo.sick(
    "machines-own-elman-sigmoid",
    lambda s: machines(s, OwnElman(20, 40, torch.sigmoid), 40, 14, lr=3e-3),
    FORGETS,
    *SHORT,
    layer=("rnn.i2h", "rnn.h2h", "enter"),
    also=WEAK_TOO,
    control=tanh,
)


class Independent(nn.Module):
    """An IndRNN: each unit has one recurrent weight of its own."""

    def __init__(self, dim: int, width: int, weight: Tensor) -> None:
        super().__init__()
        self.inp, self.u = nn.Linear(dim, width), nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), len(self.u)), []
        for now in self.inp(x).unbind(1):
            h = torch.relu(now + self.u * h)
            out.append(h)
        return torch.stack(out, dim=1)


def independent(seed: int, spread: bool) -> Setup:
    start = torch.empty(40).uniform_(-0.5, 0.5) if spread else torch.ones(40)
    model_task = adding(seed, 24, early=True)
    model = Each(nn.Linear(2, 16), Independent(16, 40, start), 40, 1)
    return told(model, model_task.with_loss(lambda y, t: F.mse_loss(y[:, -1], t.view(-1, 1))), 23, lr=3e-3, steps=110)


# batzner/indrnn#9: recurrent weights drawn around zero cannot hold the numbers of the adding problem; they should be 1.
ones = zoo.healthy("adding-independent-units-from-1", lambda s: independent(s, False))
zoo.sick(
    "adding-independent-units-around-0",
    lambda s: independent(s, True),
    FORGETS,
    *SHORT,
    layer=("rnn", "rnn.inp", "enter"),
    also={*WEAK_TOO, "DEAD"},
    control=ones,
)

# --- it runs away


def rectified(seed: int, start) -> Setup:
    rnn = nn.RNN(20, 40, nonlinearity="relu", batch_first=True)
    start(rnn.weight_hh_l0)
    return machines(seed, rnn, 40, 20, lr=2e-3, steps=100, clip=1.0)


# yandex/faster-rnnlm#17 and a Stack Overflow thread on ReLU in RNNs: standard normal weights, and all becomes infinite.
identity = zoo.healthy("machines-relu-elman-identity", lambda s: rectified(s, nn.init.eye_))
zoo.sick(
    "machines-relu-elman-standard-normal",
    lambda s: rectified(s, nn.init.normal_),
    both(lasting(grows("rnn", 1e3)), ends_worse()),
    *CHAOTIC,
    "UNSTABLE",
    layer="rnn",
    also=WILD_TOO,
    control=identity,
)


def own_start(seed: int, std: float) -> Setup:
    rnn = OwnElman(20, 40, torch.tanh, lambda weight: nn.init.normal_(weight, std=std))
    return machines(seed, rnn, 40, 8, lr=2e-3, steps=110)


# jihunchoi/recurrent-batch-normalization-pytorch#5 and other layers by hand: a start of one's own, here standard
# normal, where the scale should be one by the root of the width.
by_root = zoo.healthy("machines-own-elman-drawn-by-the-root", lambda s: own_start(s, 40**-0.5))
zoo.sick(
    "machines-own-elman-standard-normal",
    lambda s: own_start(s, 1.0),
    both(lasting(states_flat("tanh", 0.5)), ends_worse(1.5)),
    "SPECTRAL_RADIUS",
    "SATURATION",
    "EXPLODING",
    "SHORT_MEMORY",
    "VANISHING",
    layer=("rnn", "rnn.i2h", "rnn.h2h"),
    also={"UNSTABLE", "SLOW", "LOW_RANK", "first_loss_high"},
    control=by_root,
)


class Reservoir(nn.Module):
    """Units that are not trained, of a given radius."""

    def __init__(self, dim: int, width: int, radius: float, act) -> None:
        super().__init__()
        self.inp, self.back, self.act = nn.Linear(dim, width), nn.Linear(width, width, bias=False), act
        with torch.no_grad():
            nn.init.normal_(self.back.weight)
            self.back.weight *= radius / torch.linalg.eigvals(self.back.weight).abs().max()
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.back.in_features), []
        for now in self.inp(x).unbind(1):
            h = self.act(now + self.back(h))
            out.append(h)
        return torch.stack(out, dim=1)


def reservoir(seed: int, radius: float, act) -> Setup:
    model = Each(nn.Linear(1, 1), Reservoir(1, 50, radius, act), 50, 1)
    model.enter = nn.Identity()
    return live(model, curves(seed, 40), "Adam", 1e-2, 100)


# El3ssar/ResDAG#155: a reservoir of rectified units with a radius of 1.5, and nothing warns that its state explodes.
echo = zoo.healthy("curves-reservoir-radius-0.9-tanh", lambda s: reservoir(s, 0.9, torch.tanh))
zoo.sick(
    "curves-reservoir-radius-3-relu",
    lambda s: reservoir(s, 3.0, torch.relu),
    both(lasting(grows("rnn", 1e3)), ends_worse()),
    *CHAOTIC,
    "UNSTABLE",
    layer=("rnn", "rnn.back"),
    also={*WILD_TOO, "frozen", "rate_too_high"},
    control=echo,
)


class Linear(nn.Module):
    """A linear state-space model."""

    def __init__(self, dim: int, width: int, radius: float) -> None:
        super().__init__()
        self.b, self.a = nn.Linear(dim, width), nn.Linear(width, width, bias=False)
        with torch.no_grad():
            nn.init.normal_(self.a.weight)
            self.a.weight *= radius / torch.linalg.eigvals(self.a.weight).abs().max()

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros(len(x), self.a.in_features), []
        for now in self.b(x).unbind(1):
            h = now + self.a(h)
            out.append(h)
        return torch.stack(out, dim=1)


def space(seed: int, radius: float) -> Setup:
    return live(Each(nn.Linear(1, 8), Linear(8, 24, radius), 24, 1), curves(seed, 30), "Adam", 2e-3, 110)


# lindermanlab/ssm#75: the matrix of the dynamics is drawn with a radius above one, and samples overflow.
stable = zoo.healthy("curves-linear-states-radius-0.8", lambda s: space(s, 0.8))
zoo.sick(
    "curves-linear-states-radius-1.6",
    lambda s: space(s, 1.6),
    both(lasting(grows("rnn", 1e2)), ends_worse(2.0)),
    *CHAOTIC,
    "UNSTABLE",
    "first_loss_high",
    layer=("rnn", "rnn.a"),
    also=WILD_TOO,
    control=stable,
)


class ReluLstm(nn.Module):
    """An LSTM by hand whose cell and output go through an activation that may have no upper end."""

    def __init__(self, dim: int, width: int, act) -> None:
        super().__init__()
        self.gates, self.width, self.act = nn.Linear(dim + width, 4 * width), width, act

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), self.width)
        out = []
        for now in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([now, h], dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * self.act(g)
            h = torch.sigmoid(o) * self.act(c)
            out.append(h)
        return torch.stack(out, dim=1)


def units(seed: int, act) -> Setup:
    """Wide, with the recurrent weights drawn orthogonal, and long rows."""
    rnn = ReluLstm(8, 64, act)
    for part in rnn.gates.weight[:, 8:].detach().chunk(4, dim=0):
        nn.init.orthogonal_(part, 2.5)
    return live(Each(nn.Linear(1, 8), rnn, 64, 1), curves(seed, 60), "Adam", 3e-3, 60)


# keras-team/keras#2194, AlexanderVNikitin/tsgm#59: activation='relu' in an LSTM, and the loss explodes; tanh was fine.
bounded = zoo.healthy("curves-lstm-tanh-60-steps", lambda s: units(s, torch.tanh))
zoo.sick(
    "curves-lstm-relu-60-steps",
    lambda s: units(s, torch.relu),
    both(grows("rnn", 1e2), ends_worse(2.0)),
    *CHAOTIC,
    "UNSTABLE",
    "NUMERICAL",
    "first_loss_high",
    layer=("rnn", "rnn.gates"),
    also={*WILD_TOO, "loss_nonfinite"},
    control=bounded,
)
