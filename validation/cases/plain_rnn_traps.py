# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Everyday recurrent networks, some of them a little unusual, that train well.

Half: plain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Each, Last, told
from validation.cases._plain_sequences import (
    VISIT,
    bearings,
    campaigns,
    commands,
    orders,
    playlists,
    rides,
    surnames,
    swaps,
    switches,
    verses,
    warmups,
)
from validation.evidence import thrives
from validation.nets import gate_bias_
from validation.setups import frozen, live
from validation.tasks import Task, every, token_loss

zoo = Zoo("rnn", half="plain", analyzer="recurrent", proof=thrives(0.15))


def gru(size: int, width: int, layers: int = 1, **more) -> nn.GRU:
    return nn.GRU(size, width, layers, batch_first=True, **more)


def lstm(size: int, width: int, layers: int = 1, **more) -> nn.LSTM:
    return nn.LSTM(size, width, layers, batch_first=True, **more)


# --- texts


def versed(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or verses(seed), **{"lr": 1e-2, "steps": 60, **more})


def speller(rnn: nn.Module, width: int, size: int = 24, drop: float = 0.0) -> Each:
    return Each(nn.Embedding(12, size), rnn, width, 12, drop)


zoo.healthy("verses-two-grus-dropout", lambda s: versed(s, speller(gru(24, 40, 2, dropout=0.3), 40, drop=0.3)))
zoo.healthy("verses-lstm-adamax", lambda s: versed(s, speller(lstm(24, 40), 40), kind="Adamax", lr=2e-2))
zoo.healthy("verses-elman-48-adamw-decay-0.1", lambda s: versed(s, elman(), lr=5e-3, weight_decay=0.1))
zoo.healthy("verses-gru-batches-of-3", lambda s: versed(s, speller(gru(24, 40), 40), verses(s, batch=3), lr=5e-3))
zoo.healthy(
    "verses-lstm-cosine-after-ten-steps-of-warm-up",
    lambda s: versed(s, speller(lstm(24, 40), 40), lr=2e-2, rate=lambda t: min((t + 1) / 10, 1 - 0.9 * t / 60)),
)
zoo.healthy(
    "verses-gru-sgd-momentum-clipped",
    lambda s: versed(s, speller(gru(24, 40), 40), kind="SGD", lr=0.3, momentum=0.9, clip=1.0),
)
zoo.healthy(
    "verses-noisy-language", lambda s: versed(s, speller(gru(24, 40), 40), verses(s, noise=0.4), steps=80), thrives(0.1)
)


def elman() -> Each:
    return speller(nn.RNN(24, 48, batch_first=True), 48)


def sampled(z: Tensor, target: Tensor) -> Tensor:
    """Only one place of three is asked, at random."""
    asked = torch.rand(target.shape) < 0.34
    asked[0, 0] = True
    return F.cross_entropy(z[asked], target[asked])


zoo.healthy("verses-lstm-a-third-of-the-places-asked", lambda s: versed(s, speller(lstm(24, 40), 40), asked(s)))
zoo.healthy("verses-lstm-frozen-first-floor", lambda s: versed(s, frozen(Floors(), "first")))
zoo.healthy("verses-gru-tied-through-a-projection", lambda s: versed(s, Projected()))
zoo.healthy("verses-words-dropped-whole", lambda s: versed(s, WordDrop()))
zoo.healthy("verses-both-directions-predict", lambda s: versed(s, BothPredict(), both_predict(s)))
zoo.healthy("verses-mixture-of-three-softmaxes", lambda s: versed(s, Mixture(), verses(s).with_loss(mixed)))


def asked(seed: int) -> Task:
    return verses(seed).with_loss(sampled)


class Floors(nn.Module):
    """A first floor that stays as it was drawn, a second that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.first, self.second = nn.Embedding(12, 24), lstm(24, 48), lstm(72, 40)
        self.head = nn.Linear(40, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        return self.head(self.second(torch.cat([x, self.first(x)[0]], dim=-1))[0])


class Projected(nn.Module):
    """The state is projected to the size of the embedding, whose table is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.back = nn.Embedding(12, 20), gru(20, 48), nn.Linear(48, 20)
        self.bias = nn.Parameter(torch.zeros(12))
        nn.init.normal_(self.enter.weight, std=0.3)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.back(self.rnn(self.enter(tokens))[0]), self.enter.weight, self.bias)


class WordDrop(nn.Module):
    """Whole words are left out of the table for a batch, as in AWD-LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.head = nn.Embedding(12, 24), lstm(24, 48), nn.Linear(48, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = F.dropout(torch.ones(12, 1), 0.1, self.training)
        return self.head(self.rnn(F.embedding(tokens, self.enter.weight * mask))[0])


class BothPredict(nn.Module):
    """One GRU says the next word, another from the end says the one before, as in ELMo."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.fore, self.back = nn.Embedding(12, 24), gru(24, 32), gru(24, 32)
        self.head = nn.Linear(32, 12)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enter(tokens)
        return self.head(self.fore(x)[0]), self.head(self.back(x.flip(1))[0].flip(1))


def both_predict(seed: int) -> Task:
    task = verses(seed, noise=0.05).changed(lambda x, y: (x, (x, y)))
    return task.with_loss(
        lambda z, t: token_loss(z[0], t[1]) + 0.5 * token_loss(z[1][:, 1:], t[0][:, :-1]),
    )


class Mixture(nn.Module):
    """Three softmaxes, mixed by learned shares; hands on log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(12, 24), gru(24, 40)
        self.share, self.heads = nn.Linear(40, 3), nn.Linear(40, 36)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.rnn(self.enter(tokens))[0]
        each = self.heads(h).unflatten(-1, (3, 12)).log_softmax(dim=-1)
        return torch.logsumexp(self.share(h).log_softmax(dim=-1)[..., None] + each, dim=-2)


def mixed(z: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(z.flatten(0, 1), target.flatten())


zoo.healthy(
    "songs-gru-next-item",
    lambda s: live(Each(nn.Embedding(24, 24), gru(24, 40), 40, 24), playlists(s), lr=1e-2, steps=60),
)


class Negatives(nn.Module):
    """The next song is told from eight others drawn at random, by dot products, as GRU4Rec does."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn, self.songs = nn.Embedding(24, 24), gru(24, 32), nn.Embedding(24, 32)
        nn.init.normal_(self.songs.weight, std=0.1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.rnn(self.enter(tokens))[0], self.songs.weight


def ranked(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    h, table = output
    others = torch.randint(24, (*target.shape, 8))
    true = (h * table[target]).sum(dim=-1, keepdim=True)
    return F.softplus((h[:, :, None] * table[others]).sum(dim=-1) - true).mean()


zoo.healthy(
    "songs-gru-ranked-against-random-others",
    lambda s: live(Negatives(), playlists(s).with_loss(ranked), lr=1e-2, steps=80),
)

# --- names and requests


class Packed(nn.Module):
    """Letters packed by length; the last states of all floors and ways, through a small dense network."""

    def __init__(self, rnn: nn.RNNBase, features: int, norm: bool = False) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(17, 20, padding_idx=0), rnn
        self.norm = nn.LayerNorm(features) if norm else nn.Identity()
        self.fc, self.head = nn.Linear(features, 32), nn.Linear(32, 5)

    def forward(self, letters: Tensor, lengths: Tensor) -> Tensor:
        x = pack_padded_sequence(self.enter(letters), lengths, batch_first=True, enforce_sorted=False)
        last = self.rnn(x)[1]
        last = last[0] if isinstance(last, tuple) else last
        return self.head(F.silu(self.fc(self.norm(last.transpose(0, 1).flatten(1)))))


def names(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, surnames(seed), **{"lr": 5e-3, "steps": 80, **more})


zoo.healthy("surnames-packed-gru", lambda s: names(s, Packed(gru(20, 40), 40)))
zoo.healthy("surnames-packed-lstm-both-ways", lambda s: names(s, Packed(lstm(20, 24, bidirectional=True), 48)))
zoo.healthy("surnames-packed-two-grus-norm", lambda s: names(s, Packed(gru(20, 32, 2), 64, norm=True)))
zoo.healthy(
    "surnames-packed-elman-radam",
    lambda s: names(s, Packed(nn.RNN(20, 40, batch_first=True), 40), kind="RAdam", lr=3e-2),
)
zoo.healthy(
    "surnames-four-in-a-batch", lambda s: live(Packed(gru(20, 40), 40), surnames(s, batch=4), lr=5e-3, steps=120)
)


def smoothed(z: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(z, target, label_smoothing=0.2)


zoo.healthy(
    "surnames-smoothed-labels",
    lambda s: live(Packed(gru(20, 40), 40), surnames(s).with_loss(smoothed), lr=5e-3, steps=80),
    thrives(0.1),
)


class Request(nn.Module):
    """Slots at every word and one intent, from the same two-way GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(18, 20), gru(20, 24, bidirectional=True)
        self.slots, self.intent = nn.Linear(48, 4), nn.Linear(48, 2)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = self.rnn(self.enter(tokens))[0]
        return self.slots(h), self.intent(h.amax(dim=1))


zoo.healthy("orders-slots-and-intent", lambda s: live(Request(), orders(s), lr=5e-3, steps=60))
zoo.healthy(
    "orders-lstm-asgd",
    lambda s: live(Each(nn.Embedding(18, 20), lstm(20, 32), 32, 4), orders(s), kind="ASGD", lr=3.0, steps=80, clip=1.0),
    thrives(0.1),
)


class Late(nn.Module):
    """A second head, of harder states, starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rnn = nn.Embedding(18, 20), gru(20, 32)
        self.slots, self.more = nn.Linear(32, 4), nn.Linear(32, 4)
        nn.init.zeros_(self.more.weight)
        nn.init.zeros_(self.more.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        h = self.rnn(x)[0]
        return self.slots(h) + self.more(torch.tanh(h * 3))


zoo.healthy("orders-second-head-starts-at-zero", lambda s: live(Late(), orders(s), lr=5e-3, steps=60))

# --- readings


def riding(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or rides(seed), **{"lr": 5e-3, "steps": 50, **more})


def reader(rnn: nn.Module, width: int, out: int = 2) -> Each:
    return Each(nn.Linear(2, 16), rnn, width, out)


def quantiles(z: Tensor, target: Tensor) -> Tensor:
    q = torch.tensor([0.1, 0.5, 0.9])
    miss = target[..., None] - z.unflatten(-1, (2, 3))
    return torch.maximum(q * miss, (q - 1) * miss).mean()


def gaussian(z: Tensor, target: Tensor) -> Tensor:
    middle, width = z.chunk(2, dim=-1)
    width = F.softplus(width) + 0.05
    return 4 + (0.5 * ((target - middle) / width).square() + width.log()).mean()


zoo.healthy("rides-gru-smooth-l1", lambda s: riding(s, reader(gru(16, 32), 32), rides(s).with_loss(F.smooth_l1_loss)))
zoo.healthy("rides-gru-three-quantiles", lambda s: riding(s, reader(gru(16, 32), 32, 6), rides(s).with_loss(quantiles)))
zoo.healthy("rides-lstm-likelihood", lambda s: riding(s, reader(lstm(16, 32), 32, 4), rides(s).with_loss(gaussian)))
zoo.healthy(
    "rides-lstm-sgd-decaying",
    lambda s: riding(s, reader(lstm(16, 32), 32), kind="SGD", lr=0.5, momentum=0.9, rate=lambda t: 0.97**t),
)
zoo.healthy("rides-noisy-meters", lambda s: riding(s, reader(gru(16, 32), 32), rides(s, noise=0.4), lr=1e-2))
zoo.healthy("rides-gru-nadam-three-floors", lambda s: riding(s, reader(gru(16, 24, 3), 24), kind="NAdam", lr=1e-2))


class Differences(nn.Module):
    """What changes is predicted and added to the last reading."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = gru(4, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        change = F.pad(x, (0, 0, 1, 0))[:, :-1]
        return x + self.head(self.rnn(torch.cat([x, x - change], dim=-1))[0])


class SelfFed(nn.Module):
    """An LSTM cell reads half a day, then goes on by its own outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(2, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(2, len(x), 32)
        out = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t] if t < 16 else out[-1], (h, c))
            out.append(self.head(h))
        return torch.stack(out, dim=1)


class ConvGru(nn.Module):
    """Two causal convolutions with batch norm, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(2, 16, 3), nn.Conv1d(16, 16, 3)
        self.bn, self.rnn, self.head = nn.BatchNorm1d(16), gru(16, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.bn(self.c1(F.pad(x.transpose(1, 2), (2, 0)))))
        return self.head(self.rnn(self.c2(F.pad(h, (2, 0))).transpose(1, 2))[0])


zoo.healthy("rides-changes-added-to-the-last-reading", lambda s: riding(s, Differences()))
zoo.healthy("rides-goes-on-by-its-own-outputs", lambda s: riding(s, SelfFed(), lr=1e-2))
zoo.healthy("rides-convolutions-and-gru", lambda s: riding(s, ConvGru()))


class Rebuilt(nn.Module):
    """An LSTM makes a code of 12 numbers of a day, another rebuilds the day from it, backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.code, self.writer, self.head = lstm(2, 32), nn.Linear(32, 12), lstm(12, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        code = self.code(self.rnn(x)[0][:, -1])
        return self.head(self.writer(code[:, None].expand(-1, x.shape[1], -1))[0])


zoo.healthy(
    "rides-rebuilt-from-a-code-of-12",
    lambda s: riding(s, Rebuilt(), rides(s, 16).changed(lambda x, _: (x, x.flip(1))), lr=1e-2, steps=120),
    thrives(0.1),
)


def left(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, bearings(seed), **{"lr": 5e-3, "steps": 60, **more})


zoo.healthy("bearings-gru-sigmoid-at-the-end", lambda s: left(s, Sure(), lr=1e-2))
zoo.healthy("bearings-elman-small-recurrence-enough", lambda s: left(s, small()))
zoo.healthy("bearings-six-units", lambda s: left(s, Last(nn.Identity(), gru(4, 6), 6, 1), lr=2e-2))


class Sure(nn.Module):
    """A share between 0 and 1 by a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = gru(4, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.head(self.rnn(x)[0][:, -1]))


def small() -> Last:
    """A recurrence drawn with 0.05: the last readings say nearly all."""
    model = Last(nn.Linear(4, 16), nn.RNN(16, 24, batch_first=True), 24, 1)
    nn.init.normal_(model.rnn.weight_hh_l0, std=0.05)
    return model


# --- commands


def spoken(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, commands(seed), **{"lr": 5e-3, "steps": 50, **more})


class Looked(nn.Module):
    """States of a two-way GRU, gathered by a learned look."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.look, self.head = gru(8, 20, bidirectional=True), nn.Linear(40, 1), nn.Linear(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.rnn(x)[0]
        return self.head((self.look(torch.tanh(h)).softmax(dim=1) * h).sum(dim=1))


class Ctc(nn.Module):
    """Log-probabilities of six sounds and a blank at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = lstm(8, 32, bidirectional=True), nn.Linear(64, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0]).log_softmax(dim=-1).transpose(0, 1)


def ctc(z: Tensor, target: Tensor) -> Tensor:
    lengths = torch.full((len(target),), len(z))
    return F.ctc_loss(z, target[:, None] + 1, lengths, torch.ones(len(target)).long(), reduction="mean")


class Voices(nn.Module):
    """A command becomes a vector of length one; equal commands of a batch should be near."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = gru(8, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.out(self.rnn(x)[0].mean(dim=1)), dim=-1)


def near(z: Tensor, target: Tensor) -> Tensor:
    scores = (z @ z.T / 0.2).masked_fill(torch.eye(len(z)).bool(), -1e9)
    same = (target[:, None] == target).float() - torch.eye(len(z))
    return -((scores.log_softmax(dim=1) * same).sum(dim=1) / same.sum(dim=1).clamp_min(1)).mean()


zoo.healthy("commands-two-ways-learned-look", lambda s: spoken(s, Looked()))
zoo.healthy("commands-ctc", lambda s: live(Ctc(), commands(s).with_loss(ctc), lr=1e-2, steps=60))
zoo.healthy(
    "commands-contrastive-vectors",
    lambda s: live(Voices(), commands(s).with_loss(near), lr=5e-3, steps=60),
    thrives(0.1),
)
zoo.healthy("commands-lstm-frames-batch-normed", lambda s: spoken(s, FrameNorm()))
zoo.healthy("commands-sgd-clipped-tightly", lambda s: spoken(s, plain_gru(), kind="SGD", lr=1.0, clip=0.3, steps=80))
zoo.healthy(
    "commands-rare-kind-weighs-more", lambda s: live(plain_gru(), commands(s).with_loss(weighed), lr=5e-3, steps=50)
)


class FrameNorm(nn.Module):
    """Frames under batch norm, an LSTM, the mean of its states, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.rnn, self.drop, self.head = nn.BatchNorm1d(8), lstm(8, 32), nn.Dropout(0.4), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.rnn(self.bn(x.transpose(1, 2)).transpose(1, 2))[0].mean(dim=1)))


def plain_gru() -> Last:
    return Last(nn.Linear(8, 16), gru(16, 32), 32, 6)


def weighed(z: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(z, target, weight=torch.tensor([4.0, 1, 1, 1, 1, 0.5]))


# --- memory as long as it has to be


def adverts(seed: int, rnn: nn.Module, width: int, length: int, **more) -> Setup:
    model = Last(nn.Embedding(VISIT, 24), rnn, width, 6)
    return told(model, campaigns(seed, length), length - 1, **{"lr": 1e-2, "steps": 80, **more})


zoo.healthy("adverts-of-six-pages-default-gru", lambda s: adverts(s, gru(24, 40), 40, 6))
zoo.healthy(
    "adverts-of-thirty-gru-update-bias-4", lambda s: adverts(s, gate_bias_(gru(24, 40), 1, 4.0), 40, 30, clip=1.0)
)
zoo.healthy("levels-of-twelve-lstm-forget-bias-3", lambda s: shown(s, gate_bias_(lstm(16, 32), 1, 3.0), 32, 12))
zoo.healthy("switches-gru", lambda s: kicked(s, gru(16, 40), 40))
zoo.healthy("switches-lstm-two-floors", lambda s: kicked(s, lstm(16, 32, 2), 32))


def shown(seed: int, rnn: nn.Module, width: int, length: int) -> Setup:
    return told(Last(nn.Linear(3, 16), rnn, width, 2), warmups(seed, length), length - 3, lr=1e-2, steps=80)


def kicked(seed: int, rnn: nn.Module, width: int) -> Setup:
    return told(Each(nn.Linear(3, 16), rnn, width, 3), switches(seed, chance=0.4), 5, lr=1e-2, steps=80)


# --- readers and writers


class Attending(nn.Module):
    """A GRU cell writes, and looks at all states of the reader by additive attention at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 20), nn.Embedding(11, 20)
        self.reader, self.cell = gru(20, 20, bidirectional=True), nn.GRUCell(60, 40)
        self.wa, self.ua, self.va = nn.Linear(40, 24), nn.Linear(40, 24), nn.Linear(24, 1)
        self.out = nn.Linear(80, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        states, last = self.reader(self.source(source))
        h, said = torch.cat([last[0], last[1]], dim=1), []
        for now in self.target(shifted).unbind(1):
            weight = self.va(torch.tanh(self.wa(h)[:, None] + self.ua(states))).softmax(dim=1)
            context = (weight * states).sum(dim=1)
            h = self.cell(torch.cat([now, context], dim=1), h)
            said.append(self.out(torch.cat([h, context], dim=1)))
        return torch.stack(said, dim=1)


zoo.healthy("swaps-additive-attention", lambda s: live(Attending(), swaps(s), lr=1e-2, steps=80))


class Forgiving(nn.Module):
    """Reader and writer share a table; half of the words that the writer sees are hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader, self.writer = nn.Embedding(11, 24), lstm(24, 48), lstm(24, 48)
        self.out = nn.Linear(48, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        _, state = self.reader(self.words(source))
        kept = F.dropout(torch.ones(*shifted.shape, 1), 0.5, self.training) / 2
        return self.out(self.writer(self.words(shifted) * kept, state)[0])


zoo.healthy("swaps-of-four-writer-half-blind", lambda s: live(Forgiving(), swaps(s, length=4), lr=1e-2, steps=100))


def spiky(seed: int) -> Setup:
    """A meter glitches now and then; gradients are clipped and the loss is linear far out."""
    now = every(8, 3)

    def glitch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y.clone()
        if now():
            y[0, 5] += 5.0
        return x, y

    task = rides(seed).changed(glitch).with_loss(F.smooth_l1_loss)
    return riding(seed, reader(gru(16, 32), 32), task, clip=0.5, lr=1e-2)


zoo.healthy("rides-glitches-clipped", spiky)


class Bandit(nn.Module):
    """A GRU policy over commands: it is paid for the right key, and learns by REINFORCE with a baseline."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.actor, self.critic = gru(8, 32), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.rnn(x)[0].mean(dim=1)
        return self.actor(h), self.critic(h)[:, 0]


def reinforced(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    logits, value = output
    chosen = torch.distributions.Categorical(logits=logits)
    action = chosen.sample()
    paid = (action == target).float()
    gain = -(chosen.log_prob(action) * (paid - value.detach())).mean() - 0.01 * chosen.entropy().mean()
    return gain + 0.5 * (value - paid).square().mean()


@torch.no_grad()
def missed(setup: Setup) -> float:
    """One minus the chance of the right key."""
    logits = setup.model(setup.input_fn())[0]
    return 1 - logits.softmax(dim=-1).gather(1, setup.loss_fn.__self__.target[:, None]).mean().item()


zoo.healthy(
    "commands-policy-paid-for-the-right-key",
    lambda s: live(Bandit(), commands(s, 4, batch=64, noise=0.3).with_loss(reinforced), lr=1e-2, steps=100),
    thrives(0.2, measure=missed),
)
