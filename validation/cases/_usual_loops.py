"""What the programs of the half `usual` share: their data, their networks, their rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.nets import mlp
from validation.tasks import Task, drawn_once, token_loss

bce = F.binary_cross_entropy_with_logits
Made = Callable[[int], tuple[nn.Module, Task, Callable[..., Tensor]]]

# --- data


def cars(seed: int, batch: int = 48) -> Task:
    """Prices of used cars by eight numbers."""
    fixed = drawn_once(seed, 8100)
    way, bend = torch.randn(8, 3, generator=fixed) / 2, torch.randn(3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 8, generator=random)
        y = torch.tanh(x @ way) @ bend + 0.3 * x[:, 0] * x[:, 1]
        return x, (y + 0.05 * torch.randn(batch, generator=random))[:, None]

    return Task(seed, draw, F.mse_loss)


def claims(seed: int, kinds: int = 12, batch: int = 64) -> Task:
    """What becomes of an insurance claim: two kinds, five numbers, four outcomes."""
    fixed = drawn_once(seed, 8101)
    lean = 1.2 * torch.randn(2, kinds, 4, generator=fixed)
    way = torch.randn(5, 4, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(kinds, (batch, 2), generator=random)
        x = torch.randn(batch, 5, generator=random)
        level = lean[0, kind[:, 0]] + lean[1, kind[:, 1]] + torch.tanh(x) @ way
        return (kind, x), level.argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def birds(seed: int, classes: int = 5, size: int = 10, batch: int = 32) -> Task:
    """Coloured patterns of five by five at a random place."""
    marks = torch.randn(classes, 3, 5, 5, generator=drawn_once(seed, 8102))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        x = 0.4 * torch.randn(batch, 3, size, size, generator=random)
        for i, (r, c) in enumerate(torch.randint(size - 4, (batch, 2), generator=random).tolist()):
            x[i, :, r : r + 5, c : c + 5] += marks[y[i]]
        return x, y

    return Task(seed, draw, F.cross_entropy)


def drums(seed: int, classes: int = 5, length: int = 40, batch: int = 32) -> Task:
    """Strokes that decay at a pitch and a speed of their own."""
    fixed = drawn_once(seed, 8103)
    pitch = 0.4 + 1.6 * torch.rand(classes, generator=fixed)
    fade = 0.02 + 0.15 * torch.rand(classes, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        t, phase = torch.arange(length).float(), 6.28 * torch.rand(batch, 1, generator=random)
        x = torch.sin(pitch[y, None] * t + phase) * torch.exp(-fade[y, None] * t)
        return (x + 0.15 * torch.randn(batch, length, generator=random))[:, None], y

    return Task(seed, draw, F.cross_entropy)


def weather(seed: int, length: int = 14, batch: int = 40) -> Task:
    """Tomorrow's temperature after two weeks of four numbers a day; it is given as (N, 1)."""
    way = torch.randn(4, generator=drawn_once(seed, 8104))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, length, 4, generator=random)
        recent = (x * 0.7 ** torch.arange(length - 1, -1, -1)[:, None]).sum(dim=1)
        return x, torch.tanh(recent @ way / 2)[:, None] + 0.3 * recent[:, :1]

    return Task(seed, draw, F.mse_loss)


def posts(seed: int, words: int = 40, kinds: int = 4, length: int = 12, batch: int = 48) -> Task:
    """Subjects of posts by their words; 0 fills short ones up."""
    topic = torch.randperm(words, generator=drawn_once(seed, 8105)) % kinds

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(1, words, (batch, length), generator=random)
        size = torch.randint(5, length + 1, (batch, 1), generator=random)
        x = x.masked_fill(torch.arange(length) >= size, 0)
        votes = F.one_hot(topic[x], kinds) * (x > 0)[..., None]
        return x, (votes.sum(dim=1) + 0.1 * torch.rand(batch, kinds, generator=random)).argmax(dim=1)

    return Task(seed, draw, F.cross_entropy)


def letters(seed: int, count: int = 12, length: int = 14, batch: int = 24) -> Task:
    """The next letter, which the two before it mostly fix."""
    rule = torch.randint(count, (count, count), generator=drawn_once(seed, 8106))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(count, (batch, length + 1), generator=random)
        odd = torch.rand(batch, length + 1, generator=random) < 0.1
        for t in range(2, length + 1):
            follow = rule[text[:, t - 1], text[:, t - 2] // 6]
            text[:, t] = torch.where(odd[:, t], text[:, t], follow)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def dates(seed: int, count: int = 10, length: int = 6, batch: int = 32) -> Task:
    """A row of signs, to be written in another alphabet and backwards; the answer so far is given."""
    other = torch.randperm(count, generator=drawn_once(seed, 8107))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(count, (batch, length), generator=random)
        y = other[source].flip(1)
        return (source, F.pad(y[:, :-1], (1, 0), value=count)), y

    return Task(seed, draw, token_loss)


def streets(seed: int, nodes: int = 20, batch: int = 8) -> Task:
    """Kinds of corners in a street map: by their own six numbers and those of their neighbours."""
    way = torch.randn(6, 4, generator=drawn_once(seed, 8108))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        link = (torch.rand(batch, nodes, nodes, generator=random) < 0.12).float()
        link = ((link + link.transpose(1, 2)) > 0).float() + torch.eye(nodes)
        link = link.clamp(max=1) / link.clamp(max=1).sum(dim=2, keepdim=True)
        x = torch.randn(batch, nodes, 6, generator=random)
        return (x, link), (link @ x @ way).argmax(dim=2)

    return Task(seed, draw, token_loss)


def quotes(seed: int, batch: int = 32) -> Task:
    """Two views of one thing; the answer is its place in the batch."""
    left, right = torch.randn(2, 6, 18, generator=drawn_once(seed, 8109)) / 2

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        z = torch.randn(batch, 6, generator=random)
        a, b = torch.tanh(z @ left), torch.sin(z @ right)
        return (a + 0.1 * torch.randn(a.shape, generator=random), b), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def roads(seed: int, size: int = 12, batch: int = 10) -> Task:
    """Which pixels belong to a bright band across a picture of two channels."""
    tint = 1.0 + torch.rand(2, generator=drawn_once(seed, 8110))
    line = torch.arange(size).float() - size / 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        angle, off = math.pi * torch.rand(batch, 1, 1, generator=random), torch.randn(batch, 1, 1, generator=random)
        far = (angle.cos() * line[:, None] + angle.sin() * line + 2 * off).abs()
        inside = (far < 1.7).float()[:, None]
        return tint[:, None, None] * inside + 0.7 * torch.randn(batch, 2, size, size, generator=random), inside

    return Task(seed, draw, bce)


def stones(seed: int, points: int = 16, batch: int = 32) -> Task:
    """Sorts of stones by a cloud of points from their surface."""
    shape = 0.4 + 1.2 * torch.rand(5, 3, generator=drawn_once(seed, 8111))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(5, (batch,), generator=random)
        x = F.normalize(torch.randn(batch, points, 3, generator=random), dim=2) * shape[y, None]
        return x + 0.03 * torch.randn(x.shape, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def adverts(seed: int, people: int = 30, things: int = 25, batch: int = 96) -> Task:
    """Whether a person clicks on a thing, at an hour."""
    fixed = drawn_once(seed, 8112)
    taste, style = torch.randn(people, 2, generator=fixed), torch.randn(things, 2, generator=fixed)
    hour = torch.randn(6, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        i, j, k = (torch.randint(n, (batch,), generator=random) for n in (people, things, 6))
        level = 1.5 * (taste[i] * style[j]).sum(dim=1) + hour[k]
        return torch.stack([i, people + j, people + things + k], dim=1), (level > 0).float()

    return Task(seed, draw, bce)


def tiles(seed: int, size: int = 8, batch: int = 32) -> Task:
    """Small pictures that five factors make, to be given back."""
    fixed = drawn_once(seed, 8113)
    parts = torch.randn(5, size, 1, generator=fixed) * torch.randn(5, 1, size, generator=fixed) / 1.5

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.tanh(torch.einsum("bf,fij->bij", torch.randn(batch, 5, generator=random), parts))[:, None]
        return x, x

    return Task(seed, draw, F.mse_loss)


def dishes(seed: int, actions: int = 6, dim: int = 7, batch: int = 64) -> Task:
    """What each dish of a menu would please a guest, between 0 and 1."""
    way = torch.randn(dim, actions, generator=drawn_once(seed, 8114))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, dim, generator=random)
        return x, torch.sigmoid(1.5 * torch.tanh(x) @ way)

    return Task(seed, draw, missed)


def missed(logits: Tensor, pay: Tensor) -> Tensor:
    """How much less than the best dish the policy gets on average."""
    return (pay.max(dim=1).values - (logits.softmax(dim=1) * pay).sum(dim=1)).mean()


# --- networks


class Entities(nn.Module):
    """A table of vectors for each kind, batch norm and dropout, as for every table of rows."""

    def __init__(self, kinds: int = 12, width: int = 6, hidden: int = 40, p: float = 0.1) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(kinds, width) for _ in range(2))
        self.norm = nn.BatchNorm1d(5)
        self.fc1, self.bn1, self.drop = nn.Linear(2 * width + 5, hidden), nn.BatchNorm1d(hidden), nn.Dropout(p)
        self.fc2 = nn.Linear(hidden, 4)

    def forward(self, kind: Tensor, x: Tensor) -> Tensor:
        """Logits."""
        parts = [table(kind[:, i]) for i, table in enumerate(self.tables)]
        h = torch.cat([*parts, self.norm(x)], dim=1)
        return self.fc2(self.drop(F.relu(self.bn1(self.fc1(h)))))


class BasicBlock(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False),
            nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False),
        )
        self.bn1, self.bn2 = nn.BatchNorm2d(fan_out), nn.BatchNorm2d(fan_out)
        self.short = nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Sum, then ReLU."""
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.short(x))


class SmallResNet(nn.Module):
    """A stem, two blocks, a global average, a head."""

    def __init__(self, channels: int = 3, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1, self.layer2 = BasicBlock(width, width, 1), BasicBlock(width, 2 * width, 2)
        self.fc = nn.Linear(2 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        """What the head gets."""
        return self.layer2(self.layer1(F.relu(self.bn(self.stem(x))))).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.features(x))


class PlainConv(nn.Module):
    """Three convolutions without norm, two linear layers."""

    def __init__(self, channels: int = 3, classes: int = 5, size: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 12, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 20, 3, padding=1),
            nn.LeakyReLU(0.1),
        )
        self.fc1, self.fc2 = nn.Linear(20 * (size // 2) ** 2, 32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc2(F.relu(self.fc1(self.body(x).flatten(1))))


class Drum(nn.Module):
    """Strided convolutions over time with batch norm."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, 12, 7, 2, 3), nn.Conv1d(12, 24, 5, 2, 2)
        self.bn1, self.bn2, self.fc = nn.BatchNorm1d(12), nn.BatchNorm1d(24), nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(F.relu(self.bn2(self.conv2(x))).amax(dim=2))


class Forecast(nn.Module):
    """A GRU over days and a head on its last state."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.gru, self.fc = nn.GRU(4, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A number for each row, as (N, 1)."""
        return self.fc(self.gru(x)[1][-1])


class Reader(nn.Module):
    """Words, an LSTM, the mean of its states over words that are there."""

    def __init__(self, words: int = 40, kinds: int = 4, width: int = 16, p: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.lstm, self.drop, self.fc = nn.LSTM(width, 20, batch_first=True), nn.Dropout(p), nn.Linear(20, kinds)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        there = (x > 0).float()[..., None]
        h = self.lstm(self.words(x))[0] * there
        return self.fc(self.drop(h.sum(dim=1) / there.sum(dim=1).clamp(min=1)))


class GptBlock(nn.Module):
    """Attention of one matrix for queries, keys and values; GELU; norms before."""

    def __init__(self, width: int, heads: int, p: float = 0.0) -> None:
        super().__init__()
        self.ln1, self.ln2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(p)
        self.scale: float | None = None

    def split(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values by head, of what comes in."""
        parts = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        return [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        q, k, v = self.split(x)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        x = x + self.drop(self.proj(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)))))


class Gpt(nn.Module):
    """Learned places, blocks, a last norm; the head is tied to the words, which are drawn small."""

    def __init__(
        self, words: int = 12, width: int = 32, depth: int = 1, heads: int = 4, std: float = 0.05, p: float = 0.0
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads, p) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        nn.init.normal_(self.words.weight, std=std)
        nn.init.normal_(self.places.weight, std=0.05)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits at each place."""
        h = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Rewriter(nn.Module):
    """The transformer of torch with an encoder and a decoder."""

    def __init__(self, signs: int = 10, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(signs, width), nn.Embedding(signs + 1, width)
        self.places = nn.Parameter(0.3 * torch.randn(8, width))
        self.core = nn.Transformer(width, 2, 1, 1, 64, 0.0, batch_first=True)
        self.out = nn.Linear(width, signs)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        """Logits at each place."""
        n = shifted.shape[1]
        mask = torch.ones(n, n).triu(1).bool()
        a, b = self.source(source) + self.places[:n], self.target(shifted) + self.places[:n]
        return self.out(self.core(a, b, tgt_mask=mask))


class Corners(nn.Module):
    """Two steps of messages: own numbers and the mean of the neighbours'."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.own1, self.near1 = nn.Linear(6, width), nn.Linear(6, width, bias=False)
        self.own2, self.near2 = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        """Logits of each corner."""
        h = F.relu(self.own1(x) + self.near1(link @ x))
        return self.out(self.norm(F.relu(self.own2(h) + self.near2(link @ h))))


class Pairs(nn.Module):
    """Two towers, unit vectors, and a temperature that is learned."""

    def __init__(self, width: int = 40, code: int = 12) -> None:
        super().__init__()
        self.left, self.right = mlp([18, width, code], nn.GELU), mlp([18, width, code], nn.GELU)
        self.warmth = nn.Parameter(torch.tensor(math.log(5.0)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Likeness of each pair."""
        return self.warmth.exp() * F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T


class Road(nn.Module):
    """Convolutions at full size, one of them dilated, with group norm."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=2, dilation=2)
        self.norm1, self.norm2, self.out = nn.GroupNorm(3, width), nn.GroupNorm(3, width), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A logit for each pixel."""
        h = F.silu(self.norm1(self.conv1(x)))
        return self.out(F.silu(self.norm2(self.conv2(h))))


class PointNet(nn.Module):
    """One network for all points, the largest of each feature, a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.point, self.head = mlp([3, width, width]), mlp([width, width, 5])

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.point(x).amax(dim=1))


class DeepFm(nn.Module):
    """A factorisation machine with a network beside it."""

    def __init__(self, rows: int = 61, width: int = 8) -> None:
        super().__init__()
        self.vectors, self.line = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        nn.init.normal_(self.vectors.weight, std=0.3)
        nn.init.zeros_(self.line.weight)
        self.deep = mlp([3 * width, 24, 1])

    def forward(self, x: Tensor) -> Tensor:
        """One logit for each row."""
        v = self.vectors(x)
        pairs = (v.sum(dim=1).square() - v.square().sum(dim=1)).sum(dim=1) / 2
        return pairs + self.line(x).sum(dim=(1, 2)) + self.deep(v.flatten(1)).squeeze(1)


class TileCoder(nn.Module):
    """A strided convolution, a code of ten numbers, and back by a transposed one."""

    def __init__(self, code: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(192, code))
        self.decoder = nn.Sequential(
            nn.Linear(code, 192), nn.GELU(), nn.Unflatten(1, (12, 4, 4)), nn.ConvTranspose2d(12, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The picture again."""
        return self.decoder(self.encoder(x))


KINDS: dict[str, Made] = {
    "cars": lambda s: (mlp([8, 40, 40, 1], nn.GELU, nn.LayerNorm), cars(s), F.mse_loss),
    "claims": lambda s: (Entities(), claims(s), F.cross_entropy),
    "birds": lambda s: (SmallResNet(), birds(s), F.cross_entropy),
    "nests": lambda s: (PlainConv(), birds(s), F.cross_entropy),
    "drums": lambda s: (Drum(), drums(s), F.cross_entropy),
    "weather": lambda s: (Forecast(), weather(s), F.mse_loss),
    "posts": lambda s: (Reader(), posts(s), F.cross_entropy),
    "letters": lambda s: (Gpt(), letters(s), token_loss),
    "dates": lambda s: (Rewriter(), dates(s), token_loss),
    "streets": lambda s: (Corners(), streets(s), token_loss),
    "quotes": lambda s: (Pairs(), quotes(s), F.cross_entropy),
    "roads": lambda s: (Road(), roads(s), bce),
    "stones": lambda s: (PointNet(), stones(s), F.cross_entropy),
    "adverts": lambda s: (DeepFm(), adverts(s), bce),
    "tiles": lambda s: (TileCoder(), tiles(s), F.mse_loss),
}
"""What is trained, by the name of its data."""
RATES = {"weather": 1e-2, "posts": 1e-2, "adverts": 1e-2, "tiles": 5e-3, "cars": 6e-3}
"""Rates of Adam with which they learn, where it is not 4e-3."""


def rate_of(name: str) -> float:
    """The rate of Adam that suits."""
    return RATES.get(name, 4e-3)
