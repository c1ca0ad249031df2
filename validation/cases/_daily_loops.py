"""What the programs of the half `daily` share: their data, their networks, and how a fault stands beside its twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Build, Case, Program, Proof, Zoo
from validation.nets import mlp
from validation.tasks import Task, drawn_once, token_loss

bce = F.binary_cross_entropy_with_logits
Made = Callable[[int], tuple[nn.Module, Task, Callable[..., Tensor]]]

# --- data


def yields(seed: int, batch: int = 64) -> Task:
    """The yield of a field by eight numbers between -1.7 and 1.7, some of which say nothing; given as (N,)."""
    sign = torch.randn(2, generator=drawn_once(seed, 9100)).sign()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 3.4 * torch.rand(batch, 8, generator=random) - 1.7
        y = torch.sin(1.2 * x[:, 0] * x[:, 1]) + 0.6 * x[:, 2].square() + sign[0] * x[:, 3] + 0.5 * sign[1] * x[:, 4]
        return x, y - 0.6 + 0.05 * torch.randn(batch, generator=random)

    return Task(seed, draw, F.mse_loss)


def defaults(seed: int, kinds: int = 10, batch: int = 96) -> Task:
    """Whether a loan is paid back: three kinds, six numbers."""
    fixed = drawn_once(seed, 9101)
    lean, way = torch.randn(3, kinds, generator=fixed), torch.randn(6, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(kinds, (batch, 3), generator=random)
        x = torch.randn(batch, 6, generator=random)
        level = sum(lean[i, kind[:, i]] for i in range(3)) + x @ way + x[:, 0] * x[:, 1]
        return (kind, x), (level > 0).float()

    return Task(seed, draw, bce)


def shells(seed: int, classes: int = 6, size: int = 12, batch: int = 32) -> Task:
    """Ribs at an angle and a width of their own, grey."""
    fixed = drawn_once(seed, 9102)
    angle = math.pi * (torch.arange(classes) + torch.rand(1, generator=fixed)) / classes
    width = 0.7 + 0.8 * torch.rand(classes, generator=fixed)
    line = torch.arange(size).float() - size / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        a, phase = angle[y, None, None], 6.28 * torch.rand(batch, 1, 1, generator=random)
        x = torch.sin(width[y, None, None] * (a.cos() * line[:, None] + a.sin() * line) + phase)
        return (x + 0.4 * torch.randn(batch, size, size, generator=random))[:, None], y

    return Task(seed, draw, F.cross_entropy)


def moths(seed: int, classes: int = 5, batch: int = 32) -> Task:
    """Wings of 8 by 8 in three colours."""
    wing = F.interpolate(torch.randn(classes, 3, 4, 4, generator=drawn_once(seed, 9103)), size=8)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        light = 0.7 + 0.6 * torch.rand(batch, 1, 1, 1, generator=random)
        return light * wing[y] + 0.8 * torch.randn(batch, 3, 8, 8, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def sirens(seed: int, length: int = 48, batch: int = 32) -> Task:
    """Tones that rise, fall, stay or wobble."""
    speed = 0.5 + 0.2 * torch.rand(1, generator=drawn_once(seed, 9104))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (batch,), generator=random)
        t = torch.linspace(0, 1, length)
        ways = torch.stack([0.4 + 0.8 * t, 1.2 - 0.8 * t, 0.8 + 0 * t, 0.8 + 0.4 * torch.sin(20 * t)])
        phase = 6.28 * torch.rand(batch, 1, generator=random)
        x = torch.sin((speed * ways[y]).cumsum(dim=1) * 2 + phase)
        return (x + 0.1 * torch.randn(batch, length, generator=random))[:, None], y

    return Task(seed, draw, F.cross_entropy)


def buses(seed: int, length: int = 16, batch: int = 40) -> Task:
    """Passengers of the next three hours after those of 16, with the day's rhythm and a level of its own."""
    rhythm = 6.28 / (6 + 3 * torch.rand(1, generator=drawn_once(seed, 9105)))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.arange(length + 3).float()
        phase, level = 6.28 * torch.rand(batch, 1, generator=random), torch.randn(batch, 1, generator=random)
        x = torch.sin(rhythm * t + phase) + 0.5 * level + 0.1 * torch.randn(batch, length + 3, generator=random)
        return x[:, :length, None], x[:, length:]

    return Task(seed, draw, F.mse_loss)


def tweets(seed: int, words: int = 50, kinds: int = 5, length: int = 10, batch: int = 48) -> Task:
    """Subjects by votes of the words."""
    topic = torch.randperm(words, generator=drawn_once(seed, 9106)) % kinds

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        votes = F.one_hot(topic[x], kinds).sum(dim=1) + 0.1 * torch.rand(batch, kinds, generator=random)
        return x, votes.argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def diary(seed: int, count: int = 14, length: int = 12, batch: int = 24) -> Task:
    """The next sign, by the last one and by whether a switch was seen."""
    rule = torch.stack([torch.randperm(count, generator=drawn_once(seed, 9107 + i)) for i in range(2)])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(count, (batch, length + 1), generator=random)
        odd = torch.rand(batch, length + 1, generator=random) < 0.08
        for t in range(1, length + 1):
            follow = rule[text[:, max(0, t - 2)] % 2, text[:, t - 1]]
            text[:, t] = torch.where(odd[:, t], text[:, t], follow)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def plurals(seed: int, signs: int = 8, length: int = 5, batch: int = 32) -> Task:
    """A word of five signs, written with the next sign of the alphabet each; the answer so far is given."""
    other = torch.randperm(signs, generator=drawn_once(seed, 9109))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(signs, (batch, length), generator=random)
        y = other[source]
        return (source, F.pad(y[:, :-1], (1, 0), value=signs)), y

    return Task(seed, draw, token_loss)


def rooms(seed: int, nodes: int = 16, batch: int = 8) -> Task:
    """Uses of rooms, by their own five numbers and by those of the rooms next door."""
    way = torch.randn(10, 4, generator=drawn_once(seed, 9110))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        place = torch.rand(batch, nodes, 2, generator=random)
        link = torch.cdist(place, place) < 0.35
        x = torch.randn(batch, nodes, 5, generator=random)
        near = link.float() @ x / link.float().sum(dim=2, keepdim=True)
        return (x, link), (torch.cat([x, 1.5 * near], dim=2) @ way).argmax(dim=2)

    return Task(seed, draw, token_loss)


def lungs(seed: int, size: int = 12, batch: int = 8) -> Task:
    """Which pixels lie in a bright ellipse."""
    glow = 1.2 + 0.6 * torch.rand(1, generator=drawn_once(seed, 9111))
    line = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = 3 + (size - 6) * torch.rand(batch, 2, 1, 1, generator=random)
        wide = 2 + 2 * torch.rand(batch, 2, 1, 1, generator=random)
        far = ((line[:, None] - at[:, 0]) / wide[:, 0]).square() + ((line - at[:, 1]) / wide[:, 1]).square()
        inside = (far < 1).float()[:, None]
        return glow * inside + 0.6 * torch.randn(batch, 1, size, size, generator=random), inside

    return Task(seed, draw, bce)


def petals(seed: int, dim: int = 24, factors: int = 4, batch: int = 48) -> Task:
    """Measurements that four factors make, to be given back."""
    mix = torch.randn(2, factors, dim, generator=drawn_once(seed, 9112)) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        z = torch.randn(batch, factors, generator=random)
        x = z @ mix[0] + torch.tanh(z @ mix[1])
        return x, x

    return Task(seed, draw, F.mse_loss)


def wells(seed: int, size: int = 8, batch: int = 48) -> Task:
    """Whether a bag of eight samples holds at least one of the rare kind."""
    rare = 1.5 * F.normalize(torch.randn(6, generator=drawn_once(seed, 9113)), dim=0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = (torch.rand(batch, generator=random) < 0.5).float()
        x = 0.6 * torch.randn(batch, size, 6, generator=random)
        at = torch.randint(size, (batch,), generator=random)
        x[torch.arange(batch), at] += 1.5 * y[:, None] * rare
        return x, y

    return Task(seed, draw, bce)


def rides(seed: int, people: int = 24, places: int = 30, batch: int = 128) -> Task:
    """Which of two places a person likes better: person, liked, other."""
    fixed = drawn_once(seed, 9114)
    taste, style = torch.randn(people, 3, generator=fixed), torch.randn(places, 3, generator=fixed)
    like = taste @ style.T

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        i = torch.randint(people, (batch,), generator=random)
        a, b = torch.randint(places, (2, batch), generator=random)
        swap = like[i, a] < like[i, b]
        return (i, torch.where(swap, b, a), torch.where(swap, a, b)), torch.ones(batch)

    return Task(seed, draw, ranked)


def ranked(out: Tensor, _y: Tensor) -> Tensor:
    """The liked one above the other."""
    return -F.logsigmoid(out).mean()


def poles(seed: int, batch: int = 64) -> Task:
    """The next state of a swing by its state and the push: four numbers, one number."""
    gain = 0.6 + 0.4 * torch.rand(1, generator=drawn_once(seed, 9115))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        s, push = torch.randn(batch, 4, generator=random), 2 * torch.rand(batch, 1, generator=random) - 1
        pull = torch.cat([s[:, 2:], -gain * torch.sin(s[:, :1]) + push, -torch.sin(s[:, 1:2]) + s[:, :1]], dim=1)
        return (s, push), s + 0.5 * pull

    return Task(seed, draw, F.mse_loss)


def crates(seed: int, labels: int = 6, batch: int = 64) -> Task:
    """Which of six goods are in a crate, by twelve sensors; several may be."""
    way = torch.randn(12, labels, generator=drawn_once(seed, 9116)) / 1.5

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 12, generator=random)
        return x, ((torch.tanh(x) @ way + 0.2 * x[:, :6] * x[:, 6:]) > 0.3).float()

    return Task(seed, draw, bce)


# --- networks


def field(hidden: int = 32) -> nn.Sequential:
    """Linear layers with batch norm and SiLU; one number for each row, as (N, 1)."""
    return nn.Sequential(
        nn.Linear(8, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.SiLU(),
        nn.Linear(hidden, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.SiLU(),
        nn.Linear(hidden, 1),
    )


def of_row(out: Tensor, y: Tensor) -> Tensor:
    """The squared error of (N, 1) against (N,), with the shapes made alike."""
    return F.mse_loss(out.squeeze(1), y)


class Cross(nn.Module):
    """Tables of vectors, two layers that multiply by the input, a deep part beside them."""

    def __init__(self, kinds: int = 10, width: int = 4, hidden: int = 32) -> None:
        super().__init__()
        dim = 3 * width + 6
        self.tables = nn.ModuleList(nn.Embedding(kinds, width) for _ in range(3))
        self.cross = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden))
        self.out = nn.Linear(dim + hidden, 1)

    def features(self, kind: Tensor, x: Tensor) -> Tensor:
        """What the last layer gets."""
        x0 = torch.cat([*(table(kind[:, i]) for i, table in enumerate(self.tables)), x], dim=1)
        h = x0
        for layer in self.cross:
            h = x0 * layer(h) / 2 + h
        return torch.cat([h, F.relu(self.deep(x0))], dim=1)

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        return self.out(self.features(kind, x)).squeeze(1)


class Separable(nn.Module):
    """A stem, then convolutions by channel and by place, with group norm and hard swish."""

    def __init__(self, classes: int = 6, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 1, 1)
        self.norm0, self.norm1 = nn.GroupNorm(4, width), nn.GroupNorm(4, 2 * width)
        self.depth, self.point = nn.Conv2d(width, width, 3, 2, 1, groups=width), nn.Conv2d(width, 2 * width, 1)
        self.mix, self.fc = nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.Linear(2 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        """What the head gets."""
        h = F.hardswish(self.norm0(self.stem(x)))
        h = F.hardswish(self.norm1(self.point(self.depth(h))))
        return F.hardswish(self.mix(h)).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class SmallVit(nn.Module):
    """Patches of two by two, a token for the class, one layer of torch's encoder."""

    def __init__(self, classes: int = 5, width: int = 32, p: float = 0.0) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, width, 2, 2), nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, 17, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, p, "gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """The token of the class at the end."""
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], dim=1) + self.places
        return self.norm(self.layer(h)[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Causal(nn.Module):
    """Dilated convolutions that look back, each beside a shortcut."""

    def __init__(self, classes: int = 4, width: int = 16) -> None:
        super().__init__()
        self.enter, self.fc = nn.Conv1d(1, width, 1), nn.Linear(width, classes)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = h + F.relu(norm(conv(F.pad(h, (2 * 2**i, 0)))))
        return self.fc(h.mean(dim=2))


class Hours(nn.Module):
    """Two layers of LSTM and a head for three hours."""

    def __init__(self, width: int = 24, dims: int = 1, p: float = 0.0) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(dims, width, 2, batch_first=True, dropout=p), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class FastText(nn.Module):
    """The mean of the vectors of all words, two layers with dropout."""

    def __init__(self, words: int = 50, kinds: int = 5, width: int = 16, p: float = 0.1) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, width, mode="mean")
        self.fc1, self.drop, self.fc2 = nn.Linear(width, 32), nn.Dropout(p), nn.Linear(32, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(torch.tanh(self.fc1(self.words(x)))))


class Writer(nn.Module):
    """A GRU over signs; its head is tied to the table of signs."""

    def __init__(self, count: int = 14, width: int = 32, p: float = 0.0) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(count, width), nn.GRU(width, width, batch_first=True)
        self.drop, self.head = nn.Dropout(p), nn.Linear(width, count)
        nn.init.normal_(self.words.weight, std=0.2)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.gru(self.words(x))[0]))


class Swish(nn.Module):
    """A decoder block with RMS norm, rotated queries and keys, and a gated branch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.RMSNorm(width), nn.RMSNorm(width), heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def turn(self, x: Tensor) -> Tensor:
        """Rotate pairs by their place."""
        x = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        a, b = x.chunk(2, dim=-1)
        angle = torch.arange(x.shape[2])[:, None] * 100 ** -torch.linspace(0, 1, a.shape[-1])
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of what comes in."""
        h = self.norm1(x)
        return self.turn(self.q(h)), self.turn(self.k(h))

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.logits(x)
        v = self.v(self.norm1(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Signs, blocks, a last norm, a head of its own."""

    def __init__(self, count: int = 14, width: int = 32, depth: int = 1, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(count, width)
        self.blocks = nn.ModuleList(Swish(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, count, bias=False)
        nn.init.normal_(self.words.weight, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Attender(nn.Module):
    """A GRU reads both ways, another writes and looks back by additive attention."""

    def __init__(self, signs: int = 8, width: int = 24) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(signs, width), nn.Embedding(signs + 1, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.keys, self.query, self.score = nn.Linear(2 * width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.out = nn.Linear(3 * width, signs)

    def memory(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """States of the reader, and where the writer begins."""
        states, last = self.encoder(self.source(source))
        return states, last.mean(dim=0, keepdim=True)

    def write(self, states: Tensor, first: Tensor, shifted: Tensor) -> Tensor:
        """Logits at each place."""
        h = self.decoder(self.target(shifted), first)[0]
        match = self.score(torch.tanh(self.query(h)[:, :, None] + self.keys(states)[:, None])).squeeze(-1)
        return self.out(torch.cat([h, match.softmax(dim=-1) @ states], dim=-1))

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        return self.write(*self.memory(source), shifted)


class Gat(nn.Module):
    """Two rounds of attention over neighbours, two heads each."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.turn1 = nn.ModuleList(nn.Linear(5, width) for _ in range(heads))
        self.turn2 = nn.ModuleList(nn.Linear(heads * width, width) for _ in range(heads))
        self.pull = nn.ParameterList(nn.Parameter(0.3 * torch.randn(4, width)) for _ in range(heads))
        self.own, self.norm = nn.Linear(5, heads * width), nn.LayerNorm(heads * width)
        self.out = nn.Linear(heads * width, 4)

    def look(self, turn: nn.ModuleList, at: int, x: Tensor, link: Tensor) -> Tensor:
        """What the heads bring from the neighbours."""
        parts = []
        for one, pull in zip(turn, self.pull, strict=True):
            h = one(x)
            score = F.leaky_relu(h @ pull[at][:, None] + (h @ pull[at + 1][:, None]).transpose(1, 2), 0.2)
            parts.append(score.masked_fill(~link, -1e9).softmax(dim=-1) @ h)
        return torch.cat(parts, dim=-1)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = F.elu(self.norm(self.look(self.turn1, 0, x, link) + self.own(x)))
        return self.out(h + F.elu(self.look(self.turn2, 2, h, link)))


class Lung(nn.Module):
    """A small U with batch norm: down, across, up, and a bridge."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down, self.bn1 = nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.across, self.bn2 = nn.Conv2d(width, 2 * width, 3, 1, 1, bias=False), nn.BatchNorm2d(2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join, self.out = nn.Conv2d(2 * width, width, 3, 1, 1), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.bn1(self.down(x)))
        b = F.relu(self.bn2(self.across(F.max_pool2d(a, 2))))
        return self.out(F.relu(self.join(torch.cat([a, self.up(b)], dim=1))))


class Petal(nn.Module):
    """An autoencoder of linear layers with layer norm; its code has eight numbers."""

    def __init__(self, dim: int = 24, code: int = 8, hidden: int = 40) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.ELU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ELU(), nn.Linear(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Instances(nn.Module):
    """Samples of a bag are weighed by gated attention, their mean is judged."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.body, self.a, self.b = mlp([6, width, width]), nn.Linear(width, 12), nn.Linear(width, 12)
        self.weigh, self.head = nn.Linear(12, 1), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        w = self.weigh(torch.tanh(self.a(h)) * torch.sigmoid(self.b(h))).softmax(dim=1)
        return self.head((w * h).sum(dim=1)).squeeze(1)


class Ranker(nn.Module):
    """Vectors of people and places; how much better one place is liked than the other."""

    def __init__(self, people: int = 24, places: int = 30, width: int = 6, std: float = 0.3) -> None:
        super().__init__()
        self.person, self.place, self.bias = (
            nn.Embedding(people, width),
            nn.Embedding(places, width),
            nn.Embedding(places, 1),
        )
        for table in (self.person, self.place):
            nn.init.normal_(table.weight, std=std)
        nn.init.zeros_(self.bias.weight)

    def like(self, i: Tensor, j: Tensor) -> Tensor:
        """How much."""
        return (self.person(i) * self.place(j)).sum(dim=1) + self.bias(j).squeeze(1)

    def forward(self, i: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return self.like(i, a) - self.like(i, b)


class Dynamics(nn.Module):
    """The change of a state by two residual blocks with layer norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(5, width), nn.Linear(width, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.blocks = nn.ModuleList(mlp([width, 2 * width, width], nn.GELU) for _ in range(2))

    def forward(self, s: Tensor, push: Tensor) -> Tensor:
        h = self.enter(torch.cat([s, push], dim=1))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            h = h + block(norm(h))
        return s + self.out(h)


KINDS: dict[str, Made] = {
    "yields": lambda s: (field(), yields(s), of_row),
    "defaults": lambda s: (Cross(), defaults(s), bce),
    "shells": lambda s: (Separable(), shells(s), F.cross_entropy),
    "moths": lambda s: (SmallVit(), moths(s), F.cross_entropy),
    "sirens": lambda s: (Causal(), sirens(s), F.cross_entropy),
    "buses": lambda s: (Hours(), buses(s), F.mse_loss),
    "tweets": lambda s: (FastText(), tweets(s), F.cross_entropy),
    "diary": lambda s: (Writer(), diary(s), token_loss),
    "verses": lambda s: (Llama(), diary(s), token_loss),
    "plurals": lambda s: (Attender(), plurals(s), token_loss),
    "rooms": lambda s: (Gat(), rooms(s), token_loss),
    "lungs": lambda s: (Lung(), lungs(s), bce),
    "petals": lambda s: (Petal(), petals(s), F.mse_loss),
    "wells": lambda s: (Instances(), wells(s), bce),
    "rides": lambda s: (Ranker(), rides(s), ranked),
    "poles": lambda s: (Dynamics(), poles(s), F.mse_loss),
    "crates": lambda s: (mlp([12, 40, 40, 6], nn.LeakyReLU), crates(s), bce),
}
"""What is trained, by the name of its data."""
RATES = {
    "tweets": 2e-2,
    "sirens": 1e-2,
    "diary": 1e-2,
    "buses": 1e-2,
    "plurals": 1e-2,
    "rides": 3e-2,
    "yields": 1e-2,
    "wells": 6e-3,
}
"""Rates of Adam with which they learn, where it is not 4e-3."""


def rate_of(name: str) -> float:
    """The rate of Adam that suits."""
    return RATES.get(name, 4e-3)


def beside(
    zoo: Zoo, sound: str, fault: str, build: Callable[[int, bool], Program], proof: Proof, *types: str, **more: Any
) -> Case:
    """Add a sound program and the same with its fault; `build` is told the seed and whether it has the fault."""
    proof_of_twin = more.pop("twin_proof", None)
    healthy: Build = lambda s: build(s, False)  # noqa: E731
    twin = zoo.healthy(f"daily-{sound}", healthy, proof_of_twin)
    return zoo.sick(f"daily-{fault}", lambda s: build(s, True), proof, *types, control=twin, **more)
