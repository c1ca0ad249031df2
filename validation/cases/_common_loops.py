"""What the programs of the half `common` share: their data, their networks, and how a fault stands beside its twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program
from validation.cases._everyday_loops import train
from validation.evidence.loops import Fact, Played
from validation.nets import mlp
from validation.programs import held_out
from validation.tasks import Task, drawn_once, token_loss

bce = F.binary_cross_entropy_with_logits

# --- rows


def wines(seed: int, dim: int = 13, classes: int = 5, batch: int = 64) -> Task:
    """Sorts of wine by their measures; each sort comes from two regions."""
    places = torch.randn(classes, 2, dim, generator=drawn_once(seed, 6100))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        region = torch.randint(2, (batch,), generator=random)
        return places[y, region] + 0.6 * torch.randn(batch, dim, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def bikes(seed: int, batch: int = 64) -> Task:
    """How many bikes are lent out: the hour, the day, the weather."""
    way = torch.randn(4, generator=drawn_once(seed, 6101)) / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        hour = 2 * math.pi * torch.rand(batch, generator=random)
        rest = torch.randn(batch, 5, generator=random)
        x = torch.cat([hour.sin()[:, None], hour.cos()[:, None], rest], dim=1)
        y = torch.sin(2 * hour) + torch.tanh(rest[:, :4] @ way) + 0.3 * rest[:, 0] * rest[:, 1]
        return x, (y + 0.05 * torch.randn(batch, generator=random))[:, None]

    return Task(seed, draw, F.mse_loss)


def loans(seed: int, kinds: int = 15, batch: int = 64) -> Task:
    """Whether a loan is paid back: two kinds and four numbers."""
    fixed = drawn_once(seed, 6102)
    lean, way = 1.5 * torch.randn(2, kinds, generator=fixed), torch.randn(4, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(kinds, (batch, 2), generator=random)
        x = torch.randn(batch, 4, generator=random)
        level = lean[0, kind[:, 0]] + lean[1, kind[:, 1]] + x @ way
        return (kind, x), (level > 0.5).float()

    return Task(seed, draw, bce)


def films(seed: int, people: int = 40, count: int = 30, batch: int = 96) -> Task:
    """Stars that a person gives to a film."""
    fixed = drawn_once(seed, 6103)
    taste, style = torch.randn(people, 2, generator=fixed), torch.randn(count, 2, generator=fixed)
    mood = 0.5 * torch.randn(count, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        i = torch.randint(people, (batch,), generator=random)
        j = torch.randint(count, (batch,), generator=random)
        return (i, j), (taste[i] * style[j]).sum(dim=1) + mood[j]

    return Task(seed, draw, F.mse_loss)


def faces(seed: int, dim: int = 30, factors: int = 5, batch: int = 48) -> Task:
    """Rows that a few factors make, to be given back."""
    mix = torch.randn(factors, dim, generator=drawn_once(seed, 6104)) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.tanh(1.2 * torch.randn(batch, factors, generator=random) @ mix)
        return x, x

    return Task(seed, draw, F.mse_loss)


def captions(seed: int, batch: int = 32) -> Task:
    """A picture's features and its caption's; the answer is the place of the caption in the batch."""
    left, right = torch.randn(2, 5, 16, generator=drawn_once(seed, 6105)) / 1.5

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        z = torch.randn(batch, 5, generator=random)
        a = torch.tanh(z @ left) + 0.1 * torch.randn(batch, 16, generator=random)
        return (a, z @ right), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


# --- pictures and signals


def fonts(seed: int, classes: int = 6, size: int = 10, batch: int = 32) -> Task:
    """Letters of seven by seven dots, moved by a pixel or two, on noisy paper."""
    letters = (torch.rand(classes, 7, 7, generator=drawn_once(seed, 6110)) < 0.45).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        x = 0.25 * torch.randn(batch, 1, size, size, generator=random)
        for i, (r, c) in enumerate(torch.randint(size - 6, (batch, 2), generator=random).tolist()):
            x[i, 0, r : r + 7, c : c + 7] += letters[y[i]]
        return x, y

    return Task(seed, draw, F.cross_entropy)


def leaves(seed: int, classes: int = 6, size: int = 8, batch: int = 32) -> Task:
    """Leaves by the direction of their veins and their tint."""
    tint = torch.randn(classes, 3, generator=drawn_once(seed, 6111))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        angle = math.pi * y / classes
        i, j = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        along = angle.cos()[:, None, None] * i + angle.sin()[:, None, None] * j
        vein = torch.sin(1.5 * along + 6 * torch.rand(batch, 1, 1, generator=random))
        x = vein[:, None] * (0.5 + 0.5 * tint[y][..., None, None])
        return x + 0.3 * torch.randn(batch, 3, size, size, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def cells(seed: int, size: int = 10, batch: int = 12) -> Task:
    """Which pixels belong to a round cell."""
    dark = 0.8 + 0.4 * torch.rand((), generator=drawn_once(seed, 6112))
    line = torch.arange(size, dtype=torch.float32)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        at = size * (0.25 + 0.5 * torch.rand(batch, 2, generator=random))
        width = 1.5 + 1.5 * torch.rand(batch, 1, 1, generator=random)
        far = ((line[:, None] - at[:, 0, None, None]) ** 2 + (line - at[:, 1, None, None]) ** 2).sqrt()
        inside = (far < width).float()[:, None]
        return dark * inside + 0.4 * torch.randn(inside.shape, generator=random), inside

    return Task(seed, draw, bce)


def gaits(seed: int, classes: int = 5, length: int = 32, batch: int = 32) -> Task:
    """Three axes of a phone in a pocket: which gait is it?"""
    fixed = drawn_once(seed, 6113)
    pace, mix = 0.3 + 0.25 * torch.arange(classes), torch.randn(classes, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        at = torch.arange(length) * pace[y, None] + 6.3 * torch.rand(batch, 1, generator=random)
        x = mix[y][..., None] * torch.sin(at)[:, None]
        return x + 0.3 * torch.randn(batch, 3, length, generator=random), y

    return Task(seed, draw, F.cross_entropy)


# --- sequences and tokens


def quakes(seed: int, length: int = 20, batch: int = 24) -> Task:
    """A ground that swings and is pushed; every step asks for the next."""
    pace = 0.5 + 0.3 * torch.rand((), generator=drawn_once(seed, 6120))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        swing, rows = torch.randn(2, batch, generator=random), []
        for _ in range(length + 1):
            rows.append(swing[0])
            push = 0.05 * torch.randn(batch, generator=random)
            a, b = swing
            swing = torch.stack([pace.cos() * a - pace.sin() * b + push, pace.sin() * a + pace.cos() * b])
        x = torch.stack(rows, dim=1)[..., None]
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def recipes(seed: int, words: int = 30, kinds: int = 5, length: int = 12, batch: int = 48) -> Task:
    """The cuisine of a list of ingredients of unlike length; 0 is padding."""
    lists = (2 * torch.randn(kinds, words - 1, generator=drawn_once(seed, 6121))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(kinds, (batch,), generator=random)
        text = 1 + torch.multinomial(lists[y], length, replacement=True, generator=random)
        size = torch.randint(length // 2, length + 1, (batch, 1), generator=random)
        return text.masked_fill(torch.arange(length) >= size, 0), y

    return Task(seed, draw, F.cross_entropy)


def prose(seed: int, words: int = 18, length: int = 10, batch: int = 24, clear: float = 0.85) -> Task:
    """Text of which the next word mostly follows from the last."""
    after = torch.randperm(words, generator=drawn_once(seed, 6122))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = [torch.randint(words, (batch,), generator=random)]
        for _ in range(length):
            chance = torch.randint(words, (batch,), generator=random)
            rows.append(torch.where(torch.rand(batch, generator=random) < clear, after[rows[-1]], chance))
        text = torch.stack(rows, dim=1)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def names(seed: int, words: int = 20, kinds: int = 4, length: int = 9, batch: int = 24) -> Task:
    """A tag for every word, by the word and by whether the one before is even."""
    tags = torch.randint(kinds, (2, words), generator=drawn_once(seed, 6123))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(words, (batch, length), generator=random)
        before = F.pad(x[:, :-1], (1, 0)) % 2
        return x, tags[before, x]

    return Task(seed, draw, token_loss)


def offers(seed: int, dim: int = 6, actions: int = 4, batch: int = 64) -> Task:
    """What each of four offers would earn from a visitor, from 0 to 1."""
    way = torch.randn(dim, actions, generator=drawn_once(seed, 6124)) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sigmoid(4 * x @ way)

    return Task(seed, draw, lambda z, pay: 1 - (z.softmax(dim=1) * pay).sum(dim=1).mean())


# --- networks


class ResNet(nn.Module):
    """A stem, two residual blocks with batch norm, global average, head: "stem", "block1.conv1" …, "fc"."""

    def __init__(self, channels: int = 3, classes: int = 6, width: int = 12) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.block1, self.block2 = Residual(width, width), Residual(width, 2 * width)
        self.fc = nn.Linear(2 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        return self.block2(F.max_pool2d(self.block1(x), 2)).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(fan_out), nn.BatchNorm2d(fan_out)
        self.shortcut = nn.Identity() if fan_in == fan_out else nn.Conv2d(fan_in, fan_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.shortcut(x))


class TextCnn(nn.Module):
    """Embedding, convolutions of two and three words, the largest of each, dropout, head."""

    def __init__(self, words: int = 30, classes: int = 5, width: int = 16, p: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(width, 16, k, padding=1) for k in (2, 3))
        self.drop, self.fc = nn.Dropout(p), nn.Linear(32, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        return self.fc(self.drop(torch.cat([F.relu(conv(x)).amax(dim=2) for conv in self.convs], dim=1)))


class WideDeep(nn.Module):
    """A linear part over kinds and a deep part over their vectors and the numbers."""

    def __init__(self, kinds: int = 15, numbers: int = 4) -> None:
        super().__init__()
        self.wide, self.embed = nn.Embedding(kinds, 1), nn.Embedding(kinds, 6)
        self.deep = mlp([12 + numbers, 32, 16, 1])

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        deep = self.deep(torch.cat([self.embed(kind).flatten(1), x], dim=1))
        return (self.wide(kind).sum(dim=1) + deep).squeeze(1)


class Decoder(nn.Module):
    """A decoder of torch's own layers with a causal mask, as in the tutorial."""

    def __init__(self, words: int = 18, width: int = 32, depth: int = 2, p: float = 0.0, length: int = 32) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(words, width), nn.Embedding(length, width)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, p, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.lm_head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        size = tokens.shape[1]
        x = self.tok(tokens) + self.pos.weight[:size]
        return self.lm_head(self.layers(x, nn.Transformer.generate_square_subsequent_mask(size), is_causal=True))


class Factors(nn.Module):
    """Vectors and leanings of persons and films."""

    def __init__(self, people: int = 40, count: int = 30, width: int = 6, sparse: bool = False) -> None:
        super().__init__()
        self.person, self.film = nn.Embedding(people, width, sparse=sparse), nn.Embedding(count, width, sparse=sparse)
        self.bias = nn.Embedding(count, 1, sparse=sparse)
        for part in (self.person, self.film):
            nn.init.normal_(part.weight, std=0.4)
        nn.init.zeros_(self.bias.weight)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        return (self.person(i) * self.film(j)).sum(dim=1) + self.bias(j).squeeze(1)


class Tagger(nn.Module):
    """Words, an LSTM both ways, a tag for each."""

    def __init__(self, words: int = 20, kinds: int = 4, width: int = 20) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, kinds)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(tokens))[0])


class Forecaster(nn.Module):
    """A recurrence that answers at every step."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU, width: int = 24, dim: int = 1) -> None:
        super().__init__()
        self.rnn, self.out = kind(dim, width, batch_first=True), nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


class Pocket(nn.Module):
    """Convolutions over time with batch norm and dropout."""

    def __init__(self, classes: int = 5, p: float = 0.1) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(3, 16, 5, 2), nn.Conv1d(16, 24, 5, 2)
        self.bn1, self.bn2 = nn.BatchNorm1d(16), nn.BatchNorm1d(24)
        self.drop, self.fc = nn.Dropout(p), nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(self.drop(x.amax(dim=2)))


class SmallCnn(nn.Module):
    """Two strided convolutions without norm and two linear layers."""

    def __init__(self, channels: int = 1, classes: int = 6, size: int = 10) -> None:
        super().__init__()
        side = (size + 3) // 4
        self.conv1 = nn.Conv2d(channels, 12, 3, 2, 1)
        self.conv2 = nn.Conv2d(12, 16, 3, 2, 1)
        self.fc1, self.fc2 = nn.Linear(16 * side * side, 32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Segmenter(nn.Module):
    """Three convolutions of one size."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.enter, self.mid = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 5, padding=2)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.mid(F.relu(self.enter(x)))))


class Coder(nn.Module):
    """An autoencoder of rows."""

    def __init__(self, dim: int = 30, code: int = 6, width: int = 40) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([dim, width, code], nn.SiLU), mlp([code, width, dim], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Clip(nn.Module):
    """Two towers that meet in a cosine, with a temperature that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = mlp([16, 32, 12], nn.GELU), mlp([16, 32, 12], nn.GELU)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.scale.exp() * F.normalize(self.image(a), dim=1) @ F.normalize(self.text(b), dim=1).T


# --- programs


def study(
    model: nn.Module,
    task: Task,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy,
    steps: int = 80,
    meant: Callable[[Any, Any], Tensor] | None = None,
    loss_of: Callable[[Any], Tensor] | None = None,
    score: Callable[[], float] | None = None,
    **more: Any,
) -> Program:
    """One epoch of so many steps; `loss_of` a batch where it is more than `loss` of output and target."""

    def plain(batch: Any) -> Tensor:
        x, y = batch
        return loss(model(*x) if isinstance(x, tuple) else model(x), y)

    score = score or held_out(model, task, meant or loss)
    return train(model, task, loss_of or plain, optimizer, score, epochs=1, limit=steps, **more)


def lowest_above(level: float) -> Fact:
    """No loss is ever below this."""

    def fact(played: Played) -> tuple[bool, str]:
        least = min(played.program.losses)
        return least > level, f"lowest loss {least:.3g}"

    return fact


def at_least(count: int, what: str) -> Fact:
    """So many steps have a property by its name: `overwritten` or `evaluating`."""

    def fact(played: Played) -> tuple[bool, str]:
        times = sum(getattr(step, what) for step in played.steps)
        return times >= count, f"{what} {times} times"

    return fact


def ends_at(level: float) -> Fact:
    """The score is no better than this at the end."""
    return lambda played: (not played.end < level, f"ends at {played.end:.3g}")
