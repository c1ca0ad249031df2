"""Tasks, networks and the loop that the programs of the half `veiled` share: none of them occurs in another half."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.nets import mlp
from validation.tasks.sequences import leanings, token_loss
from validation.tasks.task import Task, drawn_once
from validation.tasks.vectors import at_two_places

# --- rows


def honeys(seed: int, dim: int = 10, out: int = 1, batch: int = 48, noise: float = 0.0) -> Task:
    """How sweet a honey is: what two flowers do together, and a wave along a third direction."""
    a, b, c = torch.randn(3, dim, out, generator=drawn_once(seed, 5200)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        y = 0.7 * (x @ a) * (x @ b) + torch.sin(1.5 * x @ c) + 0.4 * x @ a
        return x, y + noise * torch.randn(y.shape, generator=random)

    return Task(seed, draw, F.mse_loss)


def finches(seed: int, dim: int = 20, classes: int = 7, batch: int = 56, noise: float = 0.7) -> Task:
    """Kinds of finches by their measures: each kind has males and females."""
    return at_two_places(seed, 5201, 1.1, dim, classes, batch, noise)


def ledgers(seed: int, kinds: int = 20, dim: int = 5, batch: int = 64) -> Task:
    """Whether a bill is disputed: three kinds and some numbers."""
    fixed = drawn_once(seed, 5202)
    worth, way = 1.2 * torch.randn(3, kinds, generator=fixed), torch.randn(dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(kinds, (batch, 3), generator=random)
        x = torch.randn(batch, dim, generator=random)
        level = sum(worth[i, kind[:, i]] for i in range(3)) + torch.tanh(x @ way)
        return (kind, x), (torch.rand(batch, generator=random) < torch.sigmoid(2 * level)).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def wardrobes(seed: int, dim: int = 28, factors: int = 5, batch: int = 48) -> Task:
    """Rows made of a few hidden tastes, to be given back."""
    mix = 1.4 * torch.randn(factors, dim, generator=drawn_once(seed, 5203)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.sin(torch.randn(batch, factors, generator=random) @ mix)
        x = x + 0.05 * torch.randn(batch, dim, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


def rhymes(seed: int, dim: int = 18, batch: int = 32) -> Task:
    """Two looks at one thing; the answer is its place in the batch."""
    left, right = torch.randn(2, 6, dim, generator=drawn_once(seed, 5204))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        z = torch.randn(batch, 6, generator=random)
        a, b = torch.tanh(z @ left / 2), torch.tanh(z @ right / 2)
        a = a + 0.1 * torch.randn(a.shape, generator=random)
        return (a, b), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def readers(seed: int, people: int = 30, books: int = 40, batch: int = 96) -> Task:
    """How a person likes a book: a product of hidden tastes."""
    fixed = drawn_once(seed, 5205)
    p, b = torch.randn(people, 3, generator=fixed), torch.randn(books, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        i = torch.randint(people, (batch,), generator=random)
        j = torch.randint(books, (batch,), generator=random)
        return (i, j), (p[i] * b[j]).sum(dim=1)

    return Task(seed, draw, F.mse_loss)


def stalls(seed: int, dim: int = 8, goods: int = 6, batch: int = 64) -> Task:
    """What each of some goods would earn from a passer-by; the target holds all earnings."""
    way = torch.randn(dim, goods, generator=drawn_once(seed, 5206)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sigmoid(3 * x @ way)

    return Task(seed, draw, F.mse_loss)


# --- signals and pictures


def engines(seed: int, classes: int = 5, length: int = 48, batch: int = 32) -> Task:
    """Kinds of engines by their hum: each has a tone and an overtone."""
    fixed = drawn_once(seed, 5210)
    tone = torch.linspace(2, 9, classes) + 0.4 * torch.rand(classes, generator=fixed)
    over = 0.3 + torch.rand(classes, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        at = torch.linspace(0, 2 * math.pi, length)[None] + 6 * torch.rand(batch, 1, generator=random)
        x = torch.sin(tone[t, None] * at) + over[t, None] * torch.sin(2 * tone[t, None] * at)
        return (x + 0.3 * torch.randn(x.shape, generator=random))[:, None], t

    return Task(seed, draw, F.cross_entropy)


def tiles(seed: int, classes: int = 5, size: int = 10, batch: int = 32, noise: float = 0.4) -> Task:
    """Patterns of tiles: stripes of one direction each, shifted at will, under noise."""
    turn = 2 * math.pi * torch.rand((), generator=drawn_once(seed, 5211))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.randint(classes, (batch,), generator=random)
        angle = turn + math.pi * t / classes
        i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        along = angle.cos()[:, None, None] * i + angle.sin()[:, None, None] * j
        x = torch.sin(1.4 * along + 6.3 * torch.rand(batch, 1, 1, generator=random))
        return (x + noise * torch.randn(x.shape, generator=random))[:, None], t

    return Task(seed, draw, F.cross_entropy)


def islands(seed: int, size: int = 10, batch: int = 12) -> Task:
    """Which pixel lies above the sea: a smooth height seen through two instruments."""
    bend = 0.5 + torch.rand(2, generator=drawn_once(seed, 5212))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        height = F.avg_pool2d(torch.randn(batch, 1, size + 4, size + 4, generator=random), 5, 1) * 5
        x = torch.cat([torch.tanh(bend[0] * height), height.abs() * bend[1]], dim=1)
        return x + 0.4 * torch.randn(x.shape, generator=random), (height > 0.3).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


# --- sequences


def drifts(seed: int, length: int = 14, dim: int = 3, batch: int = 32) -> Task:
    """Where a buoy is, from how it was pushed: a sum that leaks."""
    way = torch.randn(dim, 2, generator=drawn_once(seed, 5220)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x, at, path = torch.randn(batch, length, dim, generator=random), torch.zeros(batch, 2), []
        for push in (x @ way).unbind(1):
            at = 0.8 * at + push
            path.append(torch.tanh(at))
        return x, torch.stack(path, dim=1)

    return Task(seed, draw, F.mse_loss)


def chants(seed: int, tokens: int = 15, length: int = 10, batch: int = 32) -> Task:
    """Next syllable: mostly given by the last one, now and then by chance."""
    after = torch.randint(tokens, (tokens,), generator=drawn_once(seed, 5221))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = [torch.randint(tokens, (batch,), generator=random)]
        for _ in range(length):
            chance = torch.randint(tokens, (batch,), generator=random)
            rows.append(torch.where(torch.rand(batch, generator=random) < 0.8, after[rows[-1]], chance))
        text = torch.stack(rows, dim=1)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def mottos(seed: int, words: int = 40, topics: int = 5, length: int = 7, batch: int = 48) -> Task:
    """The house that a motto belongs to, by its words."""
    return leanings(seed, 5222, 1.8, words, length, topics, batch)


# --- networks


class Hum(nn.Module):
    """Strided convolutions over a hum, with an optional norm and dropout."""

    def __init__(self, classes: int = 5, norm: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, 12, 9, 2), nn.Conv1d(12, 20, 5, 2)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.drop, self.fc = nn.Dropout(drop), nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.norm(self.conv1(x)))))
        return self.fc(self.drop(x.square().mean(dim=2)))


class Mosaic(nn.Module):
    """Two convolutions over tiles; the strongest answer of each channel is read."""

    def __init__(self, classes: int = 5, norm: bool = False) -> None:
        super().__init__()
        self.low, self.high = nn.Conv2d(1, 12, 5), nn.Conv2d(12, 20, 3)
        self.norm = nn.BatchNorm2d(12) if norm else nn.Identity()
        self.read = nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(F.silu(self.high(F.silu(self.norm(self.low(x))))).amax(dim=(2, 3)))


class Buoy(nn.Module):
    """A recurrence read at every step."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU, dim: int = 3, width: int = 20, out: int = 2) -> None:
        super().__init__()
        self.memory, self.place = kind(dim, width, batch_first=True), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.place(self.memory(x)[0])


class Bills(nn.Module):
    """Kinds as vectors beside numbers."""

    def __init__(self, kinds: int = 20, dim: int = 5) -> None:
        super().__init__()
        self.kind, self.body = nn.Embedding(kinds, 5), mlp([15 + dim, 36, 1], nn.SiLU)

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        return self.body(torch.cat([self.kind(kind).flatten(1), x], dim=1)).squeeze(1)


class Choir(nn.Module):
    """Syllables, places, causal attention of two heads, a layer behind, an answer at every place."""

    def __init__(self, tokens: int = 15, width: int = 20, length: int = 10) -> None:
        super().__init__()
        self.syllable, self.beat = nn.Embedding(tokens, width), nn.Parameter(0.2 * torch.randn(length, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.slim, self.say = nn.Linear(width, 40), nn.Linear(40, width), nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.syllable(tokens) + self.beat
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.back(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.slim(F.gelu(self.wide(self.norm2(x))))
        return self.say(x)


class Verse(nn.Module):
    """The mean of words, and a net."""

    def __init__(self, words: int = 40, topics: int = 5) -> None:
        super().__init__()
        self.word, self.body = nn.Embedding(words, 16), mlp([16, 32, topics], nn.Tanh)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.word(tokens).mean(dim=1))


class Shelf(nn.Module):
    """The product of a person's and a book's vector."""

    def __init__(self, width: int = 6, sparse: bool = False) -> None:
        super().__init__()
        self.person, self.book = nn.Embedding(30, width, sparse=sparse), nn.Embedding(40, width, sparse=sparse)
        for table in (self.person, self.book):
            nn.init.normal_(table.weight, std=0.5)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        return (self.person(i) * self.book(j)).sum(dim=1)


class Twins(nn.Module):
    """Two towers that meet in a cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = mlp([18, 32, 10], nn.GELU), mlp([18, 32, 10], nn.GELU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 6 * F.normalize(self.one(a), dim=1) @ F.normalize(self.two(b), dim=1).T
