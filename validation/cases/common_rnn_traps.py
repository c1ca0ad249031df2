# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people write them, some of them a little unusual, that train well.

Half: common.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    INVOICE,
    WORDS,
    Each,
    Last,
    alarms,
    dates,
    entities,
    invoices,
    modes,
    motors,
    pulses,
    sentences,
    spam,
    told,
    visits,
)
from validation.evidence import thrives
from validation.nets import Cell, gate_bias_
from validation.setups import frozen, live
from validation.tasks import Task, every, token_loss

zoo = Zoo("rnn", half="common", analyzer="recurrent", proof=thrives(0.15))

# --- words


class Words(nn.Module):
    """An embedding, some recurrent layers with dropout around them, a head that may be the embedding."""

    def __init__(self, rnn: nn.RNNBase, size: int = 32, drop: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.enter, self.rnn, self.drop = nn.Embedding(WORDS, size), rnn, nn.Dropout(drop)
        self.head = nn.Linear(rnn.hidden_size, WORDS)
        if tied:
            nn.init.uniform_(self.enter.weight, -0.2, 0.2)
            self.head.weight = self.enter.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(self.rnn(self.drop(self.enter(tokens)))[0]))


def words(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or sentences(seed), **{"lr": 1e-2, "steps": 60, **more})


def lstm(size: int = 32, width: int = 32, layers: int = 1, **more) -> nn.LSTM:
    return nn.LSTM(size, width, layers, batch_first=True, **more)


zoo.healthy("words-two-lstms-dropout-0.5", lambda s: words(s, Words(lstm(32, 48, 2, dropout=0.5), drop=0.5), steps=80))
zoo.healthy("words-lstm-tied-small-embedding", lambda s: words(s, Words(lstm(), tied=True)))
zoo.healthy("words-gru-rmsprop-clipped", lambda s: words(s, gru_words(), kind="RMSprop", lr=3e-3, clip=1.0))
zoo.healthy("words-gru-adagrad", lambda s: words(s, gru_words(), kind="Adagrad", lr=5e-2))
zoo.healthy("words-gru-label-smoothing", lambda s: words(s, gru_words(), sentences(s).with_loss(smooth)))
zoo.healthy(
    "words-lstm-rate-halved-every-20-steps", lambda s: words(s, Words(lstm()), lr=2e-2, rate=lambda t: 0.5 ** (t // 20))
)
zoo.healthy(
    "words-lstm-one-cycle",
    lambda s: words(s, Words(lstm()), lr=3e-2, rate=lambda t: min((t + 1) / 18, max(0.02, 1 - (t - 18) / 42))),
)
zoo.healthy(
    "words-lstm-tiny-batches-of-2", lambda s: words(s, Words(lstm()), sentences(s, batch=2), lr=5e-3, steps=120)
)
zoo.healthy(
    "words-frozen-embedding-of-random-vectors", lambda s: words(s, frozen(Words(lstm(32, 48)), "enter"), lr=1e-2)
)
zoo.healthy(
    "words-sgd-momentum-nesterov",
    lambda s: words(s, gru_words(), kind="SGD", lr=0.5, momentum=0.9, nesterov=True, clip=1.0),
)


def gru_words() -> Words:
    return Words(nn.GRU(32, 40, batch_first=True))


def smooth(z: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), target.flatten(), label_smoothing=0.1)


class Locked(nn.Module):
    """One mask of dropout for all steps of a sequence, as in AWD-LSTM, and a penalty on the states."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Embedding(WORDS, 32), lstm(32, 48), nn.Linear(48, WORDS)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states = self.rnn(self.enter(tokens))[0]
        mask = F.dropout(torch.ones(len(states), 1, states.shape[-1]), 0.4, self.training)
        return self.head(states * mask), states


def regularised(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, states = output
    return token_loss(logits, target) + 0.2 * states.square().mean() + 0.1 * states.diff(dim=1).square().mean()


zoo.healthy("words-locked-dropout-states-penalised", lambda s: words(s, Locked(), sentences(s).with_loss(regularised)))


class Flow(nn.Module):
    """A long text in parts of ten words: the state goes on, its history does not."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Embedding(WORDS, 24), lstm(24, 40), nn.Linear(40, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        state, said = None, []
        for part in self.enter(tokens).split(10, dim=1):
            states, state = self.rnn(part, state)
            state = tuple(each.detach() for each in state)
            said.append(self.head(states))
        return torch.cat(said, dim=1)


zoo.healthy(
    "words-60-in-parts-of-10-history-cut", lambda s: told(Flow(), sentences(s, 60, 8), 3, lr=1e-2, steps=40, clip=1.0)
)


class Sampled(nn.Module):
    """A GRU cell that is given the true word, or with a chance of a quarter its own guess."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Embedding(WORDS, 24), nn.GRUCell(24, 40), nn.Linear(40, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        state, said = torch.zeros(len(tokens), 40), []
        for now in tokens.unbind(1):
            if said and self.training:
                own = torch.rand(len(now)) < 0.25
                now = torch.where(own, said[-1].argmax(dim=-1), now)
            state = self.cell(self.enter(now), state)
            said.append(self.head(state))
        return torch.stack(said, dim=1)


zoo.healthy("words-scheduled-sampling", lambda s: words(s, Sampled(), sentences(s, 12)))


class Letters(nn.Module):
    """Each word of three pieces is read by a small GRU, the text of words by a larger one."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces, self.inner = nn.Embedding(10, 12), nn.GRU(12, 20, batch_first=True)
        self.outer, self.head = nn.GRU(20, 40, batch_first=True), nn.Linear(40, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        pieces = torch.stack([tokens // 10, tokens % 10, (tokens * 7) % 10], dim=-1)
        word = self.inner(self.pieces(pieces.flatten(0, 1)))[1][0].unflatten(0, tokens.shape)
        return self.head(self.outer(word)[0])


zoo.healthy("words-by-their-pieces-two-levels", lambda s: words(s, Letters()))

# --- marks and mails


def names(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, entities(seed), **{"lr": 5e-3, "steps": 60, **more})


zoo.healthy(
    "names-bigru-two-layers",
    lambda s: names(
        s, Each(nn.Embedding(20, 16), nn.GRU(16, 24, 2, batch_first=True, bidirectional=True, dropout=0.2), 48, 3)
    ),
)
zoo.healthy(
    "names-elman-default", lambda s: names(s, Each(nn.Embedding(20, 16), nn.RNN(16, 32, batch_first=True), 32, 3))
)


class Crf(nn.Module):
    """A BiLSTM scores marks, a table scores which mark follows which; hands on both."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(20, 16), lstm(16, 20, bidirectional=True)
        self.head, self.follow = nn.Linear(40, 3), nn.Parameter(torch.zeros(3, 3))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.rnn(self.enter(tokens))[0]), self.follow


def crf(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Minus the likelihood of the whole row of marks, per mark."""
    scores, follow = output
    true = scores.gather(2, target[..., None]).sum(dim=(1, 2)) + follow[target[:, :-1], target[:, 1:]].sum(dim=1)
    total = scores[:, 0]
    for now in scores[:, 1:].unbind(1):
        total = torch.logsumexp(total[:, :, None] + follow, dim=1) + now
    return (total.logsumexp(dim=1) - true).mean() / target.shape[1]


zoo.healthy("names-bilstm-crf", lambda s: live(Crf(), entities(s).with_loss(crf), lr=1e-2, steps=50))


def focal(z: Tensor, target: Tensor) -> Tensor:
    each = F.cross_entropy(z.flatten(0, 1), target.flatten(), reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


zoo.healthy(
    "names-lstm-focal-loss",
    lambda s: live(Each(nn.Embedding(20, 16), lstm(16), 32, 3), entities(s).with_loss(focal), lr=5e-3, steps=60),
)


class Mails(nn.Module):
    """Packed mails; the last states of both ways, or all states unpacked and pooled by a learned look."""

    def __init__(self, look: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.enter = nn.Embedding(30, 16, padding_idx=0)
        self.rnn = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.look = nn.Linear(48, 1) if look else None
        self.norm, self.head = nn.BatchNorm1d(48) if norm else nn.Identity(), nn.Linear(48, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = pack_padded_sequence(self.enter(tokens), lengths, batch_first=True, enforce_sorted=False)
        states, last = self.rnn(x)
        if self.look is None:
            return self.head(self.norm(torch.cat([last[0], last[1]], dim=1)))
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=tokens.shape[1])
        score = self.look(torch.tanh(states)).masked_fill((tokens == 0)[..., None], -math.inf)
        return self.head(self.norm((score.softmax(dim=1) * states).sum(dim=1)))


def mails(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, spam(seed), **{"lr": 5e-3, "steps": 50, **more})


zoo.healthy("mails-packed-both-ways", lambda s: mails(s, Mails()))
zoo.healthy("mails-packed-learned-look", lambda s: mails(s, Mails(look=True)))
zoo.healthy("mails-packed-batch-norm-before-the-head", lambda s: mails(s, Mails(norm=True)))

# --- memory that is as long as it has to be


def currency(seed: int, rnn: nn.Module, features: int, length: int, **more) -> Setup:
    model = Last(nn.Embedding(INVOICE, 20), rnn, features, 5)
    return told(model, invoices(seed, length), length - 1, **{"lr": 1e-2, "steps": 80, **more})


zoo.healthy("invoices-of-8-default-gru", lambda s: currency(s, nn.GRU(20, 40, batch_first=True), 40, 8))
zoo.healthy(
    "invoices-of-30-lstm-forget-bias-5", lambda s: currency(s, gate_bias_(lstm(20, 40), 1, 5.0), 40, 30, clip=1.0)
)


class Late(nn.Module):
    """The answer stands four steps before the end of forty; a plain recurrence is enough."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(INVOICE, 20), nn.RNN(20, 40, batch_first=True)
        self.head = nn.Linear(40, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.enter(tokens))[0][:, -1])


def late(seed: int) -> Setup:
    def moved(tokens: Tensor) -> Tensor:
        return torch.cat([tokens[:, 1:37], tokens[:, :1], tokens[:, 37:]], dim=1)

    return told(Late(), invoices(seed, 40).mapped(moved), 3, lr=5e-3, steps=80)


zoo.healthy("invoices-of-40-currency-near-the-end-elman", late)


class Recalling(nn.Module):
    """A default LSTM and a look back over all its states, so that nothing has to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Linear(4, 16), lstm(16, 32)
        self.query, self.head = nn.Linear(32, 32), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(self.enter(x))[0]
        weight = (states @ self.query(states[:, -1])[..., None] / 32**0.5).softmax(dim=1)
        return self.head(torch.cat([states[:, -1], (weight * states).sum(dim=1)], dim=1))


zoo.healthy("strengths-of-30-lstm-looks-back", lambda s: told(Recalling(), pulses(s, 30), 29, lr=1e-2, steps=80))


class Diagonal(Cell):
    """A linear recurrence per channel with learned rates, then a dense layer, as in state-space models."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden_size = width
        self.rate, self.inp = nn.Parameter(torch.linspace(-4.6, -1.0, width)), nn.Linear(dim, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keep = torch.exp(-torch.exp(self.rate))
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in self.inp(x).unbind(1):
            state = keep * state + (1 - keep**2).sqrt() * now
            states.append(state)
        states = F.gelu(self.out(torch.stack(states, dim=1)))
        return states, states[:, -1]


zoo.healthy(
    "strengths-of-20-diagonal-state-space",
    lambda s: told(Last(nn.Linear(4, 16), Diagonal(16, 32), 32, 2), pulses(s), 19, lr=1e-2, steps=80),
)


class Unitary(Cell):
    """A recurrence that stays orthogonal: the exponential of an antisymmetric matrix; modReLU-like shrinkage."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden_size = width
        self.inp, self.skew = nn.Linear(dim, width), nn.Parameter(0.3 * torch.randn(width, width))
        self.low = nn.Parameter(torch.full((width,), -0.01))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turn = torch.matrix_exp(self.skew - self.skew.T)
        state, states = x.new_zeros(len(x), self.hidden_size), []
        for now in self.inp(x).unbind(1):
            state = state @ turn + now
            state = state.sign() * F.relu(state.abs() + self.low)
            states.append(state)
        return torch.stack(states, dim=1), state


zoo.healthy(
    "strengths-of-20-orthogonal-by-construction",
    lambda s: told(Last(nn.Linear(4, 16), Unitary(16, 24), 24, 2), pulses(s), 19, lr=5e-3, steps=80, clip=1.0),
)


class Normed(nn.Module):
    """An LSTM cell by hand with layer norms on its gates."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.width, self.xh = width, nn.Linear(dim + width, 4 * width)
        self.n1, self.n2 = nn.LayerNorm(4 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.width)
        states = []
        for now in x.unbind(1):
            i, f, o, g = self.n1(self.xh(torch.cat([now, h], dim=1))).chunk(4, dim=1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(self.n2(c))
            states.append(h)
        return torch.stack(states, dim=1)


zoo.healthy(
    "modes-lstm-with-layer-norms",
    lambda s: told(Each(nn.Embedding(11, 16), Normed(16, 32), 32, 4), modes(s), 19, lr=1e-2, steps=60),
)

# --- readings


def turning(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or motors(seed), **{"lr": 5e-3, "steps": 50, **more})


def reader(rnn: nn.Module, features: int, out: int = 2) -> Each:
    return Each(nn.Linear(2, 16), rnn, features, out)


def pinball(z: Tensor, target: Tensor) -> Tensor:
    share = torch.linspace(0.1, 0.9, 5)
    miss = target[..., :1] - z
    return torch.maximum(share * miss, (share - 1) * miss).mean()


zoo.healthy(
    "motors-lstm-five-quantiles",
    lambda s: turning(s, Each(nn.Linear(2, 16), lstm(16, 40), 40, 5), motors(s).with_loss(pinball)),
)
zoo.healthy(
    "motors-gru-l1-loss",
    lambda s: turning(s, reader(nn.GRU(16, 32, batch_first=True), 32), motors(s).with_loss(F.l1_loss)),
)
zoo.healthy("motors-lstm-projected-to-12", lambda s: turning(s, reader(lstm(16, 48, proj_size=12), 12)))


def noisy(seed: int) -> Setup:
    """A tenth of the readings are wild; a robust loss bears it."""
    now = every(3, 1)

    def change(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        wild = torch.zeros_like(target)
        wild[::5, 4] = 3.0 if now() else -3.0
        return x, target + wild

    task = motors(seed).changed(change).with_loss(lambda z, t: F.huber_loss(z, t, delta=0.3))
    return turning(seed, reader(nn.GRU(16, 32, batch_first=True), 32), task, steps=60)


zoo.healthy("motors-wild-targets-huber", noisy)


class Ahead(nn.Module):
    """Reads sixteen readings, writes the next eight one by one from its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.cell, self.out = nn.GRU(2, 40, batch_first=True), nn.GRUCell(2, 40), nn.Linear(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, now, said = self.reader(x[:, :16])[1][0], x[:, 15], []
        for _ in range(8):
            state = self.cell(now, state)
            now = now + self.out(state)
            said.append(now)
        return torch.stack(said, dim=1)


zoo.healthy(
    "motors-eight-steps-ahead-by-its-own-output",
    lambda s: turning(s, Ahead(), motors(s).with_loss(lambda y, t: F.mse_loss(y, t[:, 15:23])), steps=80),
)


class Vae(nn.Module):
    """A sequence to a Gaussian of six numbers and back; hands on the rebuilt one and the divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self.code = nn.GRU(2, 40, batch_first=True), nn.Linear(40, 12)
        self.begin, self.writer = nn.Linear(6, 40), nn.GRU(2, 40, batch_first=True)
        self.out = nn.Linear(40, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        middle, log = self.code(self.reader(x)[1][0]).chunk(2, dim=1)
        z = middle + torch.randn_like(middle) * torch.exp(0.5 * log)
        states, _ = self.writer(F.pad(x, (0, 0, 1, 0))[:, :-1], torch.tanh(self.begin(z))[None])
        return self.out(states), 0.5 * (middle.square() + log.exp() - 1 - log).sum(dim=1).mean()


def elbo(output: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return F.mse_loss(output[0], x) + 1e-3 * output[1]


zoo.healthy(
    "motors-recurrent-vae",
    lambda s: turning(s, Vae(), motors(s, 14).changed(lambda x, _: (x, x)).with_loss(elbo), steps=80),
)


class Reset(nn.Module):
    """A plain GRU over visits whose gaps enter as a logarithm, and a dense head with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Linear(3, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2))
        self.rnn.bias_hh_l0.data[32:64] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x[..., :2], x[..., 2:].log1p()], dim=-1)
        return self.head(self.rnn(self.enter(x))[0][:, -1])


zoo.healthy("visits-gru-log-of-the-gaps", lambda s: told(Reset(), visits(s, 10), 9, lr=1e-2, steps=80))


class Two(nn.Module):
    """One LSTM, two tasks: which machine, and the next reading."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.kind, self.next = lstm(2, 40), nn.Linear(40, 4), nn.Linear(40, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = self.rnn(x)[0]
        return self.kind(states[:, -1]), self.next(states[:, :-1]), x[:, 1:]


def twofold(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(output[0], target) + 0.5 * F.mse_loss(output[1], output[2])


zoo.healthy("noises-kind-and-next-reading", lambda s: live(Two(), alarms(s).with_loss(twofold), lr=1e-2, steps=60))


class Alike(nn.Module):
    """Unit vectors of noises; those of one machine should lie together (supervised contrast)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 40, batch_first=True), nn.Linear(40, 12)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.head(self.rnn(x)[0].mean(dim=1)), dim=1)


def contrast(z: Tensor, target: Tensor) -> Tensor:
    self_ = torch.eye(len(z)).bool()
    scores = (z @ z.T / 0.2).masked_fill(self_, -1e9).log_softmax(dim=1)
    same = (target[:, None] == target) & ~self_
    return -(scores.masked_fill(~same, 0.0).sum(dim=1) / same.sum(dim=1).clamp_min(1)).mean()


zoo.healthy("noises-supervised-contrast", lambda s: live(Alike(), alarms(s).with_loss(contrast), lr=1e-2, steps=60))
zoo.healthy(
    "noises-three-grus-weight-decay",
    lambda s: live(
        Last(nn.Linear(2, 16), nn.GRU(16, 24, 3, batch_first=True, dropout=0.1), 24, 4),
        alarms(s),
        lr=5e-3,
        steps=60,
        weight_decay=0.05,
    ),
)

# --- two networks


class Dates(nn.Module):
    """An LSTM reads both ways, a bridge, an LSTM cell writes and looks by a dot product; feeds its context on."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(9, 16), nn.Embedding(10, 16)
        self.reader, self.bridge = lstm(16, 20, bidirectional=True), nn.Linear(40, 40)
        self.cell, self.match, self.out = nn.LSTMCell(56, 40), nn.Linear(40, 40, bias=False), nn.Linear(80, 9)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        states = self.reader(self.source(source))[0]
        h = torch.tanh(self.bridge(states[:, -1]))
        c, context, said = torch.zeros_like(h), torch.zeros_like(h), []
        for now in self.target(shifted).unbind(1):
            h, c = self.cell(torch.cat([now, context], dim=1), (h, c))
            weight = (states @ self.match(h)[..., None]).softmax(dim=1)
            context = (weight * states).sum(dim=1)
            said.append(self.out(torch.cat([h, context], dim=1)))
        return torch.stack(said, dim=1)


zoo.healthy("dates-lstm-cell-feeds-its-context-on", lambda s: live(Dates(), dates(s), lr=1e-2, steps=80))


class Conv(nn.Module):
    """Gated convolutions with a short recurrence behind them, as in a quasi-recurrent network; skip and norm."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.conv = nn.Embedding(WORDS, 24), nn.Conv1d(24, 72, 2)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        z, f, o = self.conv(F.pad(x.transpose(1, 2), (1, 0))).transpose(1, 2).chunk(3, dim=-1)
        c, states = torch.zeros_like(x[:, 0]), []
        for now, keep in zip(torch.tanh(z).unbind(1), torch.sigmoid(f).unbind(1), strict=True):
            c = keep * c + (1 - keep) * now
            states.append(c)
        return self.head(self.norm(x + torch.sigmoid(o) * torch.stack(states, dim=1)))


zoo.healthy("words-convolutions-and-a-short-recurrence", lambda s: words(s, Conv()))
