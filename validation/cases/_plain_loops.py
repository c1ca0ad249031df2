"""What the programs of the half `plain` share: their data, their networks, and how harm is measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Proof, costly
from validation.evidence.loops import Fact, play
from validation.nets import mlp
from validation.tasks import Task, drawn_once, token_loss

bce = F.binary_cross_entropy_with_logits
Made = Callable[[int], tuple[nn.Module, Task, Callable[..., Tensor]]]
"""A seed gives a network, its task, its loss."""

# --- rows


def rents(seed: int, batch: int = 64) -> Task:
    """Rents by size, age, height, place: a smooth function of nine numbers."""
    fixed = drawn_once(seed, 7100)
    way, bend = torch.randn(9, 3, generator=fixed) / 3, torch.randn(3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 9, generator=random)
        y = torch.tanh(2 * x @ way) @ bend + 0.5 * x[:, 0] * x[:, 1]
        return x, (y + 0.05 * torch.randn(batch, generator=random))[:, None]

    return Task(seed, draw, F.mse_loss)


def mails(seed: int, batch: int = 64, words: int = 24) -> Task:
    """Spam or not, by which of 24 words a mail holds."""
    lean = 1.5 * torch.randn(words, generator=drawn_once(seed, 7101))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = (torch.rand(batch, words, generator=random) < 0.3).float()
        pairs = 3 * x[:, 0] * x[:, 1] - 3 * x[:, 2] * x[:, 3]
        return x, (x @ lean + pairs > 0.3 * lean.sum()).float()

    return Task(seed, draw, bce)


def soils(seed: int, classes: int = 6, batch: int = 48) -> Task:
    """Kinds of soil by eleven measures: rings around centres, so that a line does not do."""
    centres = 1.1 * torch.randn(classes, 11, generator=drawn_once(seed, 7102))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        side = torch.randint(2, (batch, 1), generator=random) * 2 - 1
        return side * centres[y] + 0.5 * torch.randn(batch, 11, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def crops(seed: int, labels: int = 7, batch: int = 48) -> Task:
    """Several labels for each field."""
    way = torch.randn(14, labels, generator=drawn_once(seed, 7103))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 14, generator=random)
        return x, (torch.tanh(x) @ way > 0).float()

    return Task(seed, draw, bce)


def doses(seed: int, batch: int = 48) -> Task:
    """How much, and whether at all: a number and a class."""
    fixed = drawn_once(seed, 7104)
    way, other = torch.randn(2, 10, generator=fixed) / 3, torch.randn(10, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = torch.randn(batch, 10, generator=random)
        return x, (torch.sin(2 * x @ way[0]) + x @ way[1], (x.abs() @ other).argmax(dim=1))

    return Task(seed, draw, two_losses)


def two_losses(out: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Tensor:
    """Of the number and of the class."""
    return F.mse_loss(out[0], y[0]) + F.cross_entropy(out[1], y[1])


def shops(seed: int, people: int = 24, goods: int = 20, batch: int = 128) -> Task:
    """Whether a person buys a thing: people and things are of three hidden kinds."""
    fixed = drawn_once(seed, 7105)
    kind, sort = torch.randint(3, (people,), generator=fixed), torch.randint(3, (goods,), generator=fixed)
    likes = torch.tensor([[4.0, -4.0, -4.0], [-4.0, 4.0, -4.0], [-4.0, -4.0, 4.0]])
    mood = torch.randn(goods, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        i = torch.randint(people, (batch,), generator=random)
        j = torch.randint(goods, (batch,), generator=random)
        chance = torch.sigmoid(likes[kind[i], sort[j]] + mood[j])
        return (i, j), (torch.rand(batch, generator=random) < chance).float()

    return Task(seed, draw, bce)


def spectra_of(seed: int, dim: int = 36, factors: int = 4, batch: int = 48) -> Task:
    """Spectra of mixtures of four substances, to be given back."""
    line = torch.arange(dim, dtype=torch.float32)
    fixed = drawn_once(seed, 7106)
    at, width = dim * torch.rand(factors, 3, generator=fixed), 1.5 + 2 * torch.rand(factors, 3, generator=fixed)
    peaks = torch.exp(-(((line - at[..., None]) / width[..., None]) ** 2)).sum(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(batch, factors, generator=random) @ peaks
        x = x - x.mean(dim=1, keepdim=True) + 0.02 * torch.randn(batch, dim, generator=random)
        return x, x

    return Task(seed, draw, F.mse_loss)


def photos(seed: int, batch: int = 32) -> Task:
    """Two photos of each thing; the answer is the place of the second in the batch."""
    mix = torch.randn(2, 6, 20, generator=drawn_once(seed, 7107)) / 2

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        z = torch.randn(batch, 6, generator=random)
        a = z @ mix[0] + 0.2 * torch.randn(batch, 20, generator=random)
        return (a, torch.relu(z @ mix[1])), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def baskets(seed: int, size: int = 7, batch: int = 48) -> Task:
    """The price of a basket: a sum over the things in it, each by its own rule."""
    way = F.normalize(torch.randn(5, generator=drawn_once(seed, 7108)), dim=0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, size, 5, generator=random)
        return x, (torch.sin(x @ way).sum(dim=1) / 2)[:, None]

    return Task(seed, draw, F.mse_loss)


# --- pictures and signals


def digits(seed: int, classes: int = 8, size: int = 12, batch: int = 32) -> Task:
    """Strokes of three random lines for each class, moved about and noisy."""
    fixed = drawn_once(seed, 7110)
    shapes = F.interpolate(torch.randn(classes, 1, 4, 4, generator=fixed), 9, mode="bilinear").squeeze(1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        x = torch.zeros(batch, 1, size, size)
        at = torch.randint(size - 8, (batch, 2), generator=random)
        for row, (i, j) in enumerate(at.tolist()):
            x[row, 0, i : i + 9, j : j + 9] = shapes[y[row]]
        return x + 0.3 * torch.randn(x.shape, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def fabrics(seed: int, classes: int = 5, size: int = 8, batch: int = 32) -> Task:
    """Colour pictures of woven stuff: each class has its own stripes in each channel."""
    fixed = drawn_once(seed, 7111)
    turn, pace = 3.1 * torch.rand(classes, 3, generator=fixed), 0.6 + 1.2 * torch.rand(classes, 3, generator=fixed)
    i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        angle, speed = turn[y][..., None, None], pace[y][..., None, None]
        at = speed * (angle.cos() * i + angle.sin() * j) + 6.3 * torch.rand(batch, 3, 1, 1, generator=random)
        return at.sin() + 0.4 * torch.randn(batch, 3, size, size, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def scans(seed: int, size: int = 12, batch: int = 8) -> Task:
    """Each pixel is background, a disc or a bar."""
    light = torch.tensor([0.0, 1.0, -1.0]) * (1 + 0.3 * torch.rand((), generator=drawn_once(seed, 7112)))
    line = torch.arange(size, dtype=torch.float32)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = size * (0.2 + 0.6 * torch.rand(batch, 2, 1, 1, generator=random))
        disc = (line[:, None] - at[:, 0]) ** 2 + (line - at[:, 1]) ** 2 < 8
        bar = (line - size * torch.rand(batch, 1, 1, generator=random)).abs() < 1.5
        y = torch.where(disc, 1, torch.where(bar.expand_as(disc), 2, 0))
        return (light[y] + 0.5 * torch.randn(y.shape, generator=random))[:, None], y

    return Task(seed, draw, F.cross_entropy)


def beats(seed: int, classes: int = 4, length: int = 48, batch: int = 32) -> Task:
    """Heart beats: the shape of a pulse that comes again and again."""
    shapes = torch.randn(classes, 8, generator=drawn_once(seed, 7113))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        x = 0.3 * torch.randn(batch, 1, length, generator=random)
        for row, start in enumerate(torch.randint(8, (batch,), generator=random).tolist()):
            for at in range(start, length - 8, 16):
                x[row, 0, at : at + 8] += shapes[y[row]]
        return x, y

    return Task(seed, draw, F.cross_entropy)


def power(seed: int, length: int = 16, batch: int = 32) -> Task:
    """Load, sun and wind of the past hours; the load of the next is asked for."""
    pace = 0.4 + 0.4 * torch.rand(3, generator=drawn_once(seed, 7114))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        start = 6.3 * torch.rand(batch, 1, 3, generator=random)
        at = torch.arange(length + 1)[:, None] * pace
        x = torch.sin(start + at) * (0.5 + torch.rand(batch, 1, 3, generator=random))
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[:, :-1], x[:, -1, :1] + 0.5 * x[:, -1, 1:2] * x[:, -1, 2:]

    return Task(seed, draw, F.mse_loss)


# --- tokens


def tickets(seed: int, words: int = 60, kinds: int = 6, length: int = 10, batch: int = 48) -> Task:
    """The department for a question of ten words."""
    speech = (1.8 * torch.randn(kinds, words, generator=drawn_once(seed, 7120))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(kinds, (batch,), generator=random)
        return torch.multinomial(speech[y], length, replacement=True, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def reviews(seed: int, words: int = 24, length: int = 10, batch: int = 32) -> Task:
    """Good or bad, of unlike length, where the word 1 turns the meaning of the next; 0 is padding."""
    mood = torch.randint(3, (words,), generator=drawn_once(seed, 7121)).float() - 1
    mood[:2] = 0.0

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(1, words, (batch, length), generator=random)
        size = torch.randint(length // 2, length + 1, (batch, 1), generator=random)
        x = x.masked_fill(torch.arange(length) >= size, 0)
        turned = 1 - 2 * F.pad(x[:, :-1] == 1, (1, 0)).float()
        return x, ((mood[x] * turned).sum(dim=1) > 0).long()

    return Task(seed, draw, F.cross_entropy)


def tunes(seed: int, notes: int = 14, length: int = 12, batch: int = 24, clear: float = 0.9) -> Task:
    """Melodies: the next note follows from the last, in one of two keys that the first note tells."""
    after = torch.stack([torch.randperm(notes, generator=drawn_once(seed, 7122 + i)) for i in range(2)])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = [torch.randint(notes, (batch,), generator=random)]
        key = rows[0] % 2
        for _ in range(length):
            chance = torch.randint(notes, (batch,), generator=random)
            rows.append(torch.where(torch.rand(batch, generator=random) < clear, after[key, rows[-1]], chance))
        text = torch.stack(rows, dim=1)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def glosses(seed: int, words: int = 9, length: int = 5, batch: int = 32) -> Task:
    """A text and its translation, word by word, in the opposite order, with the word before for the decoder."""
    lexicon = torch.randperm(words, generator=drawn_once(seed, 7124))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        y = lexicon[x].flip(1)
        return (x, F.pad(y[:, :-1], (1, 0), value=words)), y

    return Task(seed, draw, token_loss)


def parts_of_speech(seed: int, words: int = 30, kinds: int = 5, length: int = 8, batch: int = 24) -> Task:
    """A tag for each word; some words are read by their neighbour to the right."""
    tags = torch.randint(kinds, (2, words), generator=drawn_once(seed, 7125))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        return x, tags[F.pad(x[:, 1:], (0, 1)) % 2, x]

    return Task(seed, draw, token_loss)


def friends(seed: int, people: int = 24, batch: int = 8) -> Task:
    """Groups in a net of friends: who knows whom, and what each likes; the group of each is asked for."""
    taste = torch.randn(3, 8, generator=drawn_once(seed, 7126))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        y = torch.randint(3, (batch, people), generator=random)
        chance = torch.where(y[:, :, None] == y[:, None], 0.35, 0.05)
        link = (torch.rand(chance.shape, generator=random) < chance).float().triu(1)
        link = link + link.transpose(1, 2) + torch.eye(people)
        x = taste[y] + 1.2 * torch.randn(batch, people, 8, generator=random)
        return (x, link / link.sum(dim=2, keepdim=True)), y

    return Task(seed, draw, token_loss)


def visitors(seed: int, dim: int = 8, actions: int = 5, batch: int = 64) -> Task:
    """What each of five adverts would earn from a visitor, from 0 to 1."""
    way = torch.randn(dim, actions, generator=drawn_once(seed, 7127)) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sigmoid(3 * x @ way)

    return Task(seed, draw, unearned)


def unearned(logits: Tensor, pay: Tensor) -> Tensor:
    """What a policy leaves on the table."""
    return 1 - (logits.softmax(dim=1) * pay).sum(dim=1).mean()


# --- networks


class Rows(nn.Module):
    """Linear layers with batch norm and dropout, as for every table: "fc1", "bn1", "fc2", "bn2", "head"."""

    def __init__(self, dim: int = 11, out: int = 6, width: int = 32, p: float = 0.1) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(dim, width), nn.Linear(width, width), nn.Linear(width, out)
        self.bn1, self.bn2, self.drop = nn.BatchNorm1d(width), nn.BatchNorm1d(width), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.relu(self.bn1(self.fc1(x))))
        return self.head(self.drop(F.relu(self.bn2(self.fc2(x)))))


class TwoTasks(nn.Module):
    """A trunk and two heads: a number and a class."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.amount, self.kind = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.amount(h).squeeze(1), self.kind(h)


class NeuMf(nn.Module):
    """Vectors of people and goods, a product and a small network beside it."""

    def __init__(self, people: int = 24, goods: int = 20, width: int = 8) -> None:
        super().__init__()
        self.person, self.thing = nn.Embedding(people, width), nn.Embedding(goods, width)
        self.deep, self.head = mlp([2 * width, 24, 8]), nn.Linear(width + 8, 1)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        a, b = self.person(i), self.thing(j)
        deep = F.relu(self.deep(torch.cat([a, b], dim=1)))
        return self.head(torch.cat([a * b, deep], dim=1)).squeeze(1)


class Spectral(nn.Module):
    """An autoencoder of spectra with layer norm in the middle of its halves."""

    def __init__(self, dim: int = 36, code: int = 6, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Towers(nn.Module):
    """Two towers that meet in a cosine with a fixed temperature."""

    def __init__(self, width: int = 32, code: int = 12) -> None:
        super().__init__()
        self.left, self.right = mlp([20, width, code]), mlp([20, width, code])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 10 * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T


class Basket(nn.Module):
    """A network for each thing, a sum, a network for the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = mlp([5, 32, 32], nn.SiLU), mlp([32, 32, 1], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).sum(dim=1) / 3)


class Vgg(nn.Module):
    """Two stages of convolution, batch norm, ReLU and pooling; a classifier with dropout."""

    def __init__(self, channels: int = 1, classes: int = 8, size: int = 12, norm: bool = True, p: float = 0.1) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for fan_in, fan_out in ((channels, 10), (10, 20)):
            stages += [nn.Conv2d(fan_in, fan_out, 3, padding=1)]
            stages += [nn.BatchNorm2d(fan_out)] if norm else []
            stages += [nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*stages)
        flat = 20 * (size // 4) ** 2
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(flat, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class SmallUnet(nn.Module):
    """Down once, up once by a transposed convolution, and a shortcut between."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join, self.out = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        return self.out(F.relu(self.join(torch.cat([a, F.relu(self.up(b))], dim=1))))


class Heart(nn.Module):
    """Convolutions over time beside a shortcut, group norm, global average."""

    def __init__(self, classes: int = 4, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 9, 2, 4)
        self.conv1, self.conv2 = nn.Conv1d(width, width, 5, padding=2), nn.Conv1d(width, width, 5, padding=2)
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enter(x))
        x = x + F.relu(self.norm1(self.conv1(x)))
        x = x + F.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean(dim=2))


class Load(nn.Module):
    """An LSTM of two layers with dropout, and an answer from its last state."""

    def __init__(self, width: int = 20, layers: int = 2, p: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, width, layers, batch_first=True, dropout=p)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Desk(nn.Module):
    """The mean of the vectors of the words, and two layers."""

    def __init__(self, words: int = 60, kinds: int = 6, width: int = 16, **options: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean", **options)
        nn.init.normal_(self.bag.weight, std=0.5)
        self.fc, self.head = nn.Linear(width, 24), nn.Linear(24, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.fc(self.bag(x))))


class Critic(nn.Module):
    """A transformer of torch with a token for the class and a mask for the padding."""

    def __init__(self, words: int = 24, width: int = 24, classes: int = 2, p: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Parameter(0.1 * torch.randn(16, width))
        self.cls = nn.Parameter(0.1 * torch.randn(width))
        layer = nn.TransformerEncoderLayer(width, 2, 48, p, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places[: x.shape[1]]
        h = torch.cat([self.cls.expand(len(x), 1, -1), h], dim=1)
        h = self.encoder(h, src_key_padding_mask=F.pad(x == 0, (1, 0)))
        return self.head(self.norm(h[:, 0]))


class RmsNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()


class Music(nn.Module):
    """A small decoder in the manner of Llama: RMS norm, attention of torch, a gated feed-forward, no biases."""

    def __init__(self, notes: int = 14, width: int = 32, depth: int = 1, heads: int = 2, length: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(notes, width), nn.Embedding(length, width)
        for part in (self.words, self.places):
            nn.init.normal_(part.weight, std=0.2)
        self.blocks = nn.ModuleList(MusicBlock(width, heads) for _ in range(depth))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, notes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class MusicBlock(nn.Module):
    """Attention, then a gated feed-forward, each behind a norm; `scale` of the scores as torch takes it."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads, self.scale = RmsNorm(width), RmsNorm(width), heads, scale
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Translator(nn.Module):
    """A GRU reads, another writes and looks back by attention."""

    def __init__(self, words: int = 9, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words + 1, width)
        self.reads, self.writes = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)
        self.look, self.head = nn.Linear(width, width), nn.Linear(2 * width, words)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory, state = self.reads(self.source(source))
        h, _ = self.writes(self.target(shifted), state)
        weights = (self.look(h) @ memory.transpose(1, 2)).softmax(dim=-1)
        return self.head(torch.cat([h, weights @ memory], dim=-1))


class Speech(nn.Module):
    """Vectors, a GRU both ways, a tag for each word."""

    def __init__(self, words: int = 30, kinds: int = 5, width: int = 16) -> None:
        super().__init__()
        self.vectors, self.gru = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.tag(self.gru(self.vectors(x))[0])


class Gcn(nn.Module):
    """Two graph convolutions and a head."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = F.relu(self.conv1(link @ x))
        return self.head(F.relu(self.conv2(link @ h)))


KINDS: dict[str, Made] = {
    "rents": lambda s: (mlp([9, 40, 40, 1], nn.SiLU), rents(s), F.mse_loss),
    "mails": lambda s: (Mail(), mails(s), bce),
    "soils": lambda s: (Rows(), soils(s), F.cross_entropy),
    "crops": lambda s: (mlp([14, 40, 40, 7], nn.ELU, nn.LayerNorm), crops(s), bce),
    "doses": lambda s: (TwoTasks(), doses(s), two_losses),
    "shops": lambda s: (NeuMf(), shops(s), bce),
    "spectra": lambda s: (Spectral(), spectra_of(s), F.mse_loss),
    "photos": lambda s: (Towers(), photos(s), F.cross_entropy),
    "baskets": lambda s: (Basket(), baskets(s), F.mse_loss),
    "digits": lambda s: (Vgg(), digits(s), F.cross_entropy),
    "fabrics": lambda s: (Vgg(3, 5, 8, norm=False), fabrics(s), F.cross_entropy),
    "scans": lambda s: (SmallUnet(), scans(s), F.cross_entropy),
    "beats": lambda s: (Heart(), beats(s), F.cross_entropy),
    "power": lambda s: (Load(), power(s), F.mse_loss),
    "tickets": lambda s: (Desk(), tickets(s), F.cross_entropy),
    "reviews": lambda s: (Critic(), reviews(s), F.cross_entropy),
    "tunes": lambda s: (Music(), tunes(s), token_loss),
    "glosses": lambda s: (Translator(), glosses(s), token_loss),
    "speech": lambda s: (Speech(), parts_of_speech(s), token_loss),
    "friends": lambda s: (Gcn(), friends(s), token_loss),
}
"""What is trained, by the name of its data."""
RATES = {"shops": 2e-2, "photos": 5e-3, "power": 1e-2, "tickets": 1e-2, "speech": 1e-2, "glosses": 1e-2, "mails": 6e-3}
"""Rates of Adam with which they learn, where it is not 4e-3."""


class Mail(nn.Module):
    """Two layers, and one number for each mail."""

    def __init__(self, words: int = 24, width: int = 32) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(words, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x))).squeeze(1)


def rate_of(name: str) -> float:
    """The rate of Adam that suits."""
    return RATES.get(name, 4e-3)


# --- proofs

WORSE = 1.3
"""Harm: the loss that was meant ends at so many times that of the twin, on unseen data."""


def harmed(fact: Fact | None = None, worse: float = WORSE) -> Proof:
    """Sick: the fact holds here and not for the twin, and the score ends clearly worse than the twin's."""

    def proof(case: Case, seed: int) -> Evidence:
        assert case.control is not None
        sick, twin = play(case, seed), play(case.control, seed)
        holds = math.isfinite(twin.end) and twin.learned > 0 and not sick.end < worse * twin.end
        text = f"ends at {sick.end:.3g}, the twin at {twin.end:.3g}"
        if fact is not None:
            (here, about), (there, of_twin) = fact(sick), fact(twin)
            holds, text = holds and here and not there, f"{about}; the twin: {of_twin}; {text}"
        return Evidence(holds, text)

    return costly(proof)
