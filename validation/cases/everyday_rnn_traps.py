# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Recurrent networks as people write them, that train well.

Half: everyday.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from validation.case import Setup, Zoo
from validation.cases._everyday_sequences import (
    LETTERS,
    chars,
    first_word,
    motions,
    reversal,
    reviews,
    sales,
    stream,
    tags,
    weather,
)
from validation.evidence import thrives
from validation.nets import gate_bias_
from validation.nets.programs import Tagger
from validation.setups import frozen, live, told
from validation.tasks import Task

zoo = Zoo("rnn", half="everyday", analyzer="recurrent", proof=thrives())

# --- texts of unlike length


class Packed(nn.Module):
    """Packs padded texts and classifies by the last state, of one direction or both."""

    def __init__(self, kind: type[nn.RNNBase], both: bool = False, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 24, padding_idx=0)
        self.rnn = kind(24, 32, layers, batch_first=True, bidirectional=both, dropout=dropout)
        self.drop, self.fc = nn.Dropout(dropout), nn.Linear(64 if both else 32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, state = self.rnn(packed)
        state = state[0] if isinstance(state, tuple) else state
        last = torch.cat([state[-2], state[-1]], dim=1) if self.rnn.bidirectional else state[-1]
        return self.fc(self.drop(last))


def judged(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, reviews(seed), **{"lr": 1e-2, "steps": 80, **more})


zoo.healthy("reviews-lstm-packed", lambda s: judged(s, Packed(nn.LSTM)))
zoo.healthy("reviews-gru-packed-both-directions", lambda s: judged(s, Packed(nn.GRU, both=True)))
zoo.healthy("reviews-two-lstms-packed-dropout-0.5", lambda s: judged(s, Packed(nn.LSTM, True, 2, 0.5)))


class Pooled(nn.Module):
    """A bidirectional LSTM whose states are averaged where there are words."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding, self.how = nn.Embedding(40, 24, padding_idx=0), how
        self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.score, self.fc = nn.Linear(48, 1) if how == "attention" else None, nn.Linear(48, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        blank = (tokens == 0)[..., None]
        states = self.lstm(self.embedding(tokens))[0]
        if self.how == "max":
            return self.fc(states.masked_fill(blank, -1e4).amax(dim=1))
        if self.how == "mean":
            return self.fc(states.masked_fill(blank, 0.0).sum(dim=1) / lengths[:, None])
        weight = self.score(states).masked_fill(blank, -math.inf).softmax(dim=1)
        return self.fc((weight * states).sum(dim=1))


zoo.healthy("reviews-bilstm-mean-of-words", lambda s: judged(s, Pooled("mean")))
zoo.healthy("reviews-bilstm-largest-of-words", lambda s: judged(s, Pooled("max")))
zoo.healthy("reviews-bilstm-attention-pooling", lambda s: judged(s, Pooled("attention")))
zoo.healthy(
    "reviews-lstm-imbalanced-class-weights",
    lambda s: live(
        Packed(nn.LSTM),
        reviews(s).with_loss(lambda z, t: F.cross_entropy(z, t, weight=torch.tensor([1.0, 1.5]))),
        lr=1e-2,
        steps=80,
    ),
)


class Crop(nn.Module):
    """Tags of padded texts, through a packed LSTM and back."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(24, 20), nn.Linear(48, 5)
        self.rnn = nn.LSTM(20, 24, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = torch.full((len(tokens),), tokens.shape[1])
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True)
        return self.fc(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])


zoo.healthy("tags-bilstm-packed", lambda s: live(Crop(), tags(s), lr=1e-2, steps=50), thrives(0.2))

# --- language


class Speller(nn.Module):
    """Letters by an LSTM of two layers; the head may share the embedding."""

    def __init__(self, tied: bool, dropout: float = 0.0, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.emb, self.drop = nn.Embedding(len(LETTERS), 40), nn.Dropout(dropout)
        self.rnn = kind(40, 40, 2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(40, len(LETTERS))
        if tied:
            nn.init.uniform_(self.emb.weight, -0.1, 0.1)
            self.head.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.drop(self.rnn(self.drop(self.emb(tokens)))[0]))


def spells(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or chars(seed), **{"lr": 1e-2, "steps": 60, **more})


zoo.healthy("letters-two-lstms-clipped", lambda s: spells(s, Speller(False), clip=0.5))
zoo.healthy("letters-two-lstms-tied-dropout-0.3", lambda s: spells(s, Speller(True, 0.3)))
zoo.healthy(
    "letters-two-grus-sgd-clipped", lambda s: spells(s, Speller(False, kind=nn.GRU), kind="SGD", lr=4.0, clip=0.25)
)
zoo.healthy(
    "letters-two-lstms-cosine-from-warm-up",
    lambda s: spells(
        s, Speller(False), rate=lambda t: min(1, (t + 1) / 10) * 0.5 * (1 + math.cos(math.pi * min(t, 60) / 60))
    ),
)
zoo.healthy(
    "letters-plain-rnn-64",
    lambda s: spells(
        s, Tagger(nn.Embedding(len(LETTERS), 24), nn.RNN(24, 64, batch_first=True), len(LETTERS), 64), lr=3e-3
    ),
)


class Stateful(nn.Module):
    """Keeps its state from batch to batch and forgets the history, as language models are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn = nn.Embedding(len(LETTERS), 24), nn.LSTM(24, 48, batch_first=True)
        self.head, self.state = nn.Linear(48, len(LETTERS)), None

    def forward(self, tokens: Tensor) -> Tensor:
        out, state = self.rnn(self.emb(tokens), self.state)
        if self.training:
            self.state = tuple(part.detach() for part in state)
        return self.head(out)


zoo.healthy("letters-state-kept-between-batches", lambda s: spells(s, Stateful(), stream(s)))

# --- two networks


class Translator(nn.Module):
    """A GRU reads, a GRU writes from its last state, under teacher forcing."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 24), nn.Embedding(11, 24)
        self.reader, self.writer = nn.GRU(24, 48, batch_first=True), nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(96 if attention else 48, 10)
        self.match = nn.Linear(48, 48) if attention else None

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        states, last = self.reader(self.source(source))
        said, _ = self.writer(self.target(shifted), last)
        if self.match is not None:
            weight = (self.match(said) @ states.transpose(1, 2)).softmax(dim=-1)
            said = torch.cat([said, weight @ states], dim=-1)
        return self.out(said)


zoo.healthy(
    "reversal-gru-reader-and-writer", lambda s: live(Translator(False), reversal(s, length=4), lr=1e-2, steps=80)
)
zoo.healthy("reversal-gru-with-luong-attention", lambda s: live(Translator(True), reversal(s), lr=1e-2, steps=80))


class Additive(nn.Module):
    """A cell writes, and scores what was read by v·tanh(W s + U h), as Bahdanau did."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 16), nn.Embedding(11, 16)
        self.reader = nn.GRU(16, 20, batch_first=True, bidirectional=True)
        self.cell, self.bridge = nn.GRUCell(56, 40), nn.Linear(40, 40)
        self.w, self.u, self.v = nn.Linear(40, 32), nn.Linear(40, 32, bias=False), nn.Linear(32, 1, bias=False)
        self.out = nn.Linear(80, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        states, _ = self.reader(self.source(source))
        state, keys, said = torch.tanh(self.bridge(states.mean(dim=1))), self.u(states), []
        for now in self.target(shifted).unbind(1):
            weight = self.v(torch.tanh(self.w(state)[:, None] + keys)).softmax(dim=1)
            context = (weight * states).sum(dim=1)
            state = self.cell(torch.cat([now, context], dim=1), state)
            said.append(self.out(torch.cat([state, context], dim=1)))
        return torch.stack(said, dim=1)


zoo.healthy("reversal-bahdanau-cell-by-hand", lambda s: live(Additive(), reversal(s), lr=1e-2, steps=60))


class Speech(nn.Module):
    """Frames of sounds to letters without an alignment, by CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.LSTM(8, 32, batch_first=True, bidirectional=True), nn.Linear(64, 6)

    def forward(self, frames: Tensor) -> Tensor:
        return self.fc(self.rnn(frames)[0]).log_softmax(dim=-1)


def heard(seed: int) -> Setup:
    codes = 2 * torch.randn(6, 8, generator=torch.Generator().manual_seed(seed + 77))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        letters = torch.randint(1, 6, (16, 4), generator=random)
        frames = codes[letters.repeat_interleave(4, dim=1)]
        return frames + 0.3 * torch.randn(frames.shape, generator=random), letters

    def loss(out: Tensor, letters: Tensor) -> Tensor:
        lengths = torch.full((len(out),), out.shape[1]), torch.full((len(out),), letters.shape[1])
        return F.ctc_loss(out.transpose(0, 1), letters, *lengths, zero_infinity=True)

    return live(Speech(), Task(seed, draw, loss), lr=5e-3, steps=60)


zoo.healthy("sounds-bilstm-ctc", heard)

# --- forecasts and readings


def forecast(seed: int, rnn: nn.Module, features: int, task: Task | None = None, **more) -> Setup:
    model = Tagger(nn.Linear(3, 16), rnn, 3, features)
    return live(model, task or weather(seed), **{"lr": 5e-3, "steps": 50, **more})


zoo.healthy("weather-default-lstm-64", lambda s: forecast(s, nn.LSTM(16, 64, batch_first=True), 64))
zoo.healthy("weather-default-plain-rnn-24", lambda s: forecast(s, nn.RNN(16, 24, batch_first=True), 24))
zoo.healthy(
    "weather-lstm-64-projected-to-16", lambda s: forecast(s, nn.LSTM(16, 64, batch_first=True, proj_size=16), 16)
)
zoo.healthy(
    "weather-gru-32-orthogonal-sgd-momentum",
    lambda s: forecast(s, orthogonal(nn.GRU(16, 32, batch_first=True)), 32, kind="SGD", lr=0.1, momentum=0.9, steps=80),
)
zoo.healthy(
    "weather-gru-32-huber-adamw-decay",
    lambda s: forecast(
        s, nn.GRU(16, 32, batch_first=True), 32, weather(s).with_loss(F.smooth_l1_loss), weight_decay=0.1
    ),
)


@torch.no_grad()
def orthogonal(rnn: nn.RNNBase) -> nn.RNNBase:
    for name, weight in rnn.named_parameters():
        if "weight_hh" in name:
            for part in weight.split(rnn.hidden_size):
                nn.init.orthogonal_(part)
    return rnn


class Conv(nn.Module):
    """A convolution over time, a GRU, a dense ReLU layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.gru = nn.Conv1d(3, 24, 5, 2, 2), nn.BatchNorm1d(24), nn.GRU(24, 32, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)
        return self.head(self.gru(h)[0][:, -1])


zoo.healthy("wrist-band-conv-then-gru", lambda s: live(Conv(), motions(s), lr=3e-3, steps=60))
zoo.healthy(
    "wrist-band-lstm-16-default",
    lambda s: live(
        Tagger(nn.Identity(), nn.LSTM(3, 16, batch_first=True), 4, 16, last=True), motions(s), lr=2e-2, steps=80
    ),
)


class Normed(nn.Module):
    """Cells in a loop with a layer norm on the state between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRUCell(3, 24), nn.GRUCell(24, 24)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = b = x.new_zeros(len(x), 24)
        said = []
        for now in x.unbind(1):
            a = self.first(now, a)
            b = self.second(self.norm(a), b)
            said.append(now + self.out(b))
        return torch.stack(said, dim=1)


zoo.healthy("weather-two-cells-predict-the-change", lambda s: live(Normed(), weather(s, 16), lr=5e-3))


class Truncated(nn.Module):
    """Detaches its state every ten steps, which the task does not mind."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.fc = nn.GRU(20, 32, batch_first=True), nn.Linear(32, 5)
        self.words = nn.Embedding(24, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        state, said = None, []
        for part in self.words(tokens).split(10, dim=1):
            out, state = self.rnn(part, state)
            state = state.detach()
            said.append(self.fc(out))
        return torch.cat(said, dim=1)


zoo.healthy("tags-truncated-every-ten-words", lambda s: told(Truncated(), tags(s, length=30), 1, lr=1e-2, steps=50))
zoo.healthy(
    "tags-plain-rnn-needs-one-word-back",
    lambda s: told(
        Tagger(nn.Embedding(24, 20), nn.RNN(20, 40, batch_first=True), 5, 40), tags(s), 1, lr=5e-3, steps=60
    ),
)
zoo.healthy(
    "sales-every-three-days-gru-48",
    lambda s: told(
        Tagger(nn.Linear(1, 16), nn.GRU(16, 48, batch_first=True), 1, 48), sales(s, 3, 5), 3, lr=1e-2, steps=80
    ),
)
zoo.healthy(
    "first-word-lstm-forget-bias-1-over-12-words",
    lambda s: told(
        Tagger(nn.Embedding(20, 16), gate_bias_(nn.LSTM(16, 48, batch_first=True), 1, 1.0), 4, 48, last=True),
        first_word(s, 12),
        11,
        lr=1e-2,
        steps=100,
    ),
)
zoo.healthy(
    "tags-frozen-embedding-gru",
    lambda s: live(
        frozen(Tagger(nn.Embedding(24, 32), nn.GRU(32, 40, batch_first=True), 5, 40), "enter"),
        tags(s),
        lr=1e-2,
        steps=50,
    ),
)


class Quantiles(nn.Module):
    """Three quantiles of the next reading."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 40, batch_first=True), nn.Linear(40, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0]).unflatten(-1, (3, 3))


def pinball(y: Tensor, target: Tensor) -> Tensor:
    level = torch.tensor([0.1, 0.5, 0.9])[:, None]
    miss = target[..., None, :] - y
    return torch.maximum(level * miss, (level - 1) * miss).mean()


zoo.healthy("weather-lstm-quantiles", lambda s: live(Quantiles(), weather(s).with_loss(pinball), lr=5e-3, steps=60))


class Density(nn.Module):
    """Mean and deviation of the next reading, by the likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 32, batch_first=True), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.head(self.gru(x)[0]).chunk(2, dim=-1)
        return mean, F.softplus(spread) + 1e-3


zoo.healthy(
    "weather-gru-likelihood",
    lambda s: live(
        Density(),
        weather(s, noise=0.2).with_loss(lambda y, t: 2 + F.gaussian_nll_loss(y[0], t, y[1] ** 2)),
        lr=5e-3,
        steps=60,
    ),
)
