"""What the programs of the half `threads` share: small data of the tasks that people ask about, and their networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.tasks import Task, drawn_once, token_loss

bce = F.binary_cross_entropy_with_logits


def square(out: Tensor, y: Tensor) -> Tensor:
    """The squared error of (N, 1) against (N,), with the shapes made alike."""
    return F.mse_loss(out.squeeze(-1), y)


# --- data


def wines(seed: int, batch: int = 48) -> Task:
    """Which of four growers, by nine measurements; each has two ways to make it."""
    centre = 1.2 * torch.randn(4, 2, 9, generator=drawn_once(seed, 15001))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (batch,), generator=random)
        way = torch.randint(2, (batch,), generator=random)
        return centre[y, way] + 0.9 * torch.randn(batch, 9, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def concrete(seed: int, batch: int = 48) -> Task:
    """The strength of concrete by seven columns, as (N,)."""
    way = torch.randn(7, 3, generator=drawn_once(seed, 15002)) / 1.6

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 7, generator=random)
        h = x @ way
        y = 1.2 * h[:, 0].tanh() + h[:, 1] * (h[:, 2] > 0) + 0.05 * torch.randn(batch, generator=random)
        return x, y

    return Task(seed, draw, square)


def garments(seed: int, classes: int = 6, size: int = 10, batch: int = 32, channels: int = 1) -> Task:
    """Small pictures of garments, shifted by a dot or two, in noise."""
    shape = torch.randn(classes, channels, size, size, generator=drawn_once(seed, 15003))
    shape = F.avg_pool2d(shape, 3, 1, 1) * 2.2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        moves = torch.randint(-1, 2, (batch, 2), generator=random).tolist()
        x = torch.stack([shape[c].roll(tuple(m), (1, 2)) for c, m in zip(y.tolist(), moves, strict=True)])
        return x + 0.5 * torch.randn(x.shape, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def vessels(seed: int, size: int = 12, batch: int = 12) -> Task:
    """A bright stripe in noise, to be marked dot by dot: (N, 1, size, size)."""
    step = torch.arange(size).float()

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        slope = 2 * torch.rand(batch, 1, 1, generator=random) - 1
        start = 3 + (size - 6) * torch.rand(batch, 1, 1, generator=random)
        y = ((step[:, None] - start - slope * (step - size / 2)).abs() < 1.5).float()[:, None]
        return y + 0.6 * torch.randn(y.shape, generator=random), y

    return Task(seed, draw, bce)


def beats(seed: int, length: int = 32, classes: int = 4, batch: int = 32) -> Task:
    """Two leads of a heart, of four kinds of beats, at any phase: (N, 2, length)."""
    fixed = drawn_once(seed, 15004)
    wave = F.avg_pool1d(torch.randn(classes, 2, length + 4, generator=fixed), 5, 1) * 2.2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (batch,), generator=random)
        at = torch.randint(length, (batch,), generator=random).tolist()
        x = torch.stack([wave[c].roll(a, 1) for c, a in zip(y.tolist(), at, strict=True)])
        return x + 0.4 * torch.randn(x.shape, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def posts(seed: int, words: int = 36, kinds: int = 3, length: int = 10, batch: int = 32) -> Task:
    """The mood of a post, by words of which a third is typical of it; word 0 never occurs."""
    topic = 1 + torch.randperm(words - 3, generator=drawn_once(seed, 15005))[: (words - 3) // kinds * kinds]
    topic = topic.view(kinds, -1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(kinds, (batch,), generator=random)
        x = 1 + torch.randint(words - 1, (batch, length), generator=random)
        typical = topic[y[:, None], torch.randint(topic.shape[1], (batch, length), generator=random)]
        return torch.where(torch.rand(batch, length, generator=random) < 0.35, typical, x), y

    return Task(seed, draw, F.cross_entropy)


def verses(seed: int, signs: int = 14, length: int = 12, batch: int = 24) -> Task:
    """Text whose next sign mostly follows from the last one and from whether the one before was even."""
    rule = torch.randint(signs, (signs, 2), generator=drawn_once(seed, 15006))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(signs, (batch, length + 1), generator=random)
        odd = torch.rand(batch, length + 1, generator=random) < 0.1
        for t in range(2, length + 1):
            text[:, t] = torch.where(odd[:, t], text[:, t], rule[text[:, t - 1], text[:, t - 2] % 2])
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def loads(seed: int, length: int = 20, batch: int = 32) -> Task:
    """The next value of a load that swings in two paces: (N, length, 1) and (N,)."""
    pace = 0.3 + 0.5 * torch.rand(2, generator=drawn_once(seed, 15007))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.arange(length + 1).float()
        phase, size = (torch.rand(2, batch, 1, generator=random) for _ in range(2))
        x = sum((0.4 + size[i]) * torch.sin(pace[i] * t + 6.28 * phase[i]) for i in range(2))
        x = x + 0.05 * torch.randn(batch, length + 1, generator=random)
        return x[:, :-1, None], x[:, -1]

    return Task(seed, draw, square)


def books(seed: int, users: int = 30, items: int = 24, batch: int = 96) -> Task:
    """What a reader gives a book, around zero: ids of both, and (N,)."""
    fixed = drawn_once(seed, 15008)
    taste, kind = torch.randn(users, 3, generator=fixed), torch.randn(items, 3, generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        u, i = torch.randint(users, (batch,), generator=random), torch.randint(items, (batch,), generator=random)
        return (u, i), (taste[u] * kind[i]).sum(dim=1) + 0.2 * torch.randn(batch, generator=random)

    return Task(seed, draw, F.mse_loss)


def spectra(seed: int, dim: int = 20, factors: int = 3, batch: int = 48) -> Task:
    """Rows that three factors make, to be given back."""
    blend = torch.randn(2, factors, dim, generator=drawn_once(seed, 15009)) / 1.5

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        z = torch.randn(batch, factors, generator=random)
        x = z @ blend[0] + torch.tanh(2 * z @ blend[1])
        return x, x

    return Task(seed, draw, F.mse_loss)


def captions(seed: int, batch: int = 32) -> Task:
    """Pairs of a picture's features and of a caption's words, which tell the same three things; nothing to aim at."""
    fixed = drawn_once(seed, 15010)
    seen, said = torch.randn(2, 4, 3, 16, generator=fixed)[0], torch.randint(30, (4, 3, 2), generator=fixed)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        thing = torch.randint(4, (batch, 3), generator=random)
        place = torch.arange(3)
        picture = seen[thing, place].sum(dim=1) + 0.2 * torch.randn(batch, 16, generator=random)
        return (picture, said[thing, place].flatten(1) + 30 * place.repeat_interleave(2)), torch.arange(batch)

    return Task(seed, draw, F.cross_entropy)


def rivers(seed: int, nodes: int = 16, dim: int = 5, batch: int = 8) -> Task:
    """Classes of the stations of a river net, by their own readings and by those upstream."""
    code = torch.randn(3, dim, generator=drawn_once(seed, 15011))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        y = torch.randint(3, (batch, nodes), generator=random)
        likely = torch.where(y[:, :, None] == y[:, None], 0.5, 0.05)
        link = (torch.rand(batch, nodes, nodes, generator=random) < likely).float() + torch.eye(nodes)
        link = (link > 0).float()
        x = 0.8 * code[y] + torch.randn(batch, nodes, dim, generator=random)
        return (x, link / link.sum(dim=2, keepdim=True)), y

    return Task(seed, draw, token_loss)


# --- networks


def dense(*widths: int, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Linear layers, a norm if asked for, an activation between them."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        parts += [nn.Linear(a, b, bias=not norm), *([nn.BatchNorm1d(b)] if norm else []), act()]
    return nn.Sequential(*parts, nn.Linear(widths[-2], widths[-1]))


class Vgg(nn.Module):
    """Two blocks of a convolution, a norm and pooling; two linear layers with dropout."""

    def __init__(self, classes: int = 6, width: int = 10, size: int = 10, norm: bool = True, p: float = 0.1) -> None:
        super().__init__()
        make: Any = nn.BatchNorm2d if norm else (lambda _: nn.Identity())
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=not norm),
            make(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=not norm),
            make(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.drop, self.classifier = nn.Dropout(p), dense(2 * width * (size // 4) ** 2, 40, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.features(x).flatten(1)))


class Fcn(nn.Module):
    """Convolutions that keep the size, one logit for each dot."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=2, dilation=2, bias=False)
        self.bn1, self.bn2, self.out = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))))


class Ecg(nn.Module):
    """Convolutions over time, the maximum over it, a head."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(2, width, 7, padding=3), nn.Conv1d(width, 2 * width, 5, padding=2)
        self.norm, self.head = nn.GroupNorm(4, width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv2(F.relu(self.norm(self.conv1(x))))).amax(dim=2))


class Bert(nn.Module):
    """Words and places, a layer of torch's encoder, a mean, a head; word 0 is filling."""

    def __init__(self, words: int = 36, kinds: int = 3, width: int = 24, length: int = 24, p: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 48, p, "gelu", batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.layer(self.words(x) + self.places[: x.shape[1]], src_key_padding_mask=mask)
        return self.head(self.norm(h).mean(dim=1))


class CharRnn(nn.Module):
    """Signs, a GRU, a head at every place."""

    def __init__(self, signs: int = 14, width: int = 32) -> None:
        super().__init__()
        self.signs, self.gru = nn.Embedding(signs, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, signs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.signs(x))[0])


class Block(nn.Module):
    """Causal attention and two layers, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).flatten(2))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class MiniGpt(nn.Module):
    """Signs and places, some blocks, a norm, a head."""

    def __init__(self, signs: int = 14, width: int = 24, depth: int = 2, length: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(signs, width), nn.Embedding(length, width)
        self.h, self.ln_f = nn.ModuleList(Block(width, 4) for _ in range(depth)), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, signs, bias=False)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            h = block(h)
        return self.lm_head(self.ln_f(h))


class Forecast(nn.Module):
    """A GRU over a series, and the next value as (N, 1)."""

    def __init__(self, width: int = 24, kind: type[nn.Module] = nn.GRU) -> None:
        super().__init__()
        self.rnn, self.fc = kind(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


class Factors(nn.Module):
    """The product of a reader's and a book's vector, with a bias of each."""

    def __init__(self, users: int = 30, items: int = 24, width: int = 6) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, u: Tensor, i: Tensor) -> Tensor:
        return (self.user(u) * self.item(i)).sum(dim=1) + (self.user_bias(u) + self.item_bias(i)).squeeze(1)


class Clip(nn.Module):
    """A tower for pictures, one for words; how well each picture goes with each caption."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.visual = dense(16, 48, width)
        self.text = nn.ModuleDict({"words": nn.Embedding(90, 16), "mix": dense(16, 32, 16)})
        self.text_projection, self.logit_scale = nn.Linear(16, width), nn.Parameter(torch.tensor(math.log(8.0)))

    def forward(self, picture: Tensor, text: Tensor) -> Tensor:
        a = F.normalize(self.visual(picture), dim=1)
        b = F.normalize(self.text_projection(self.text["mix"](self.text["words"](text).mean(dim=1))), dim=1)
        return self.logit_scale.exp() * a @ b.T


class Graph(nn.Module):
    """Two rounds over neighbours, beside the node itself."""

    def __init__(self, dim: int = 5, classes: int = 3, width: int = 20) -> None:
        super().__init__()
        self.near1, self.own1 = nn.Linear(dim, width), nn.Linear(dim, width)
        self.near2, self.own2, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = F.relu(self.near1(link @ x) + self.own1(x))
        return self.out(F.relu(self.near2(link @ h) + self.own2(h)))


class Adapter(nn.Module):
    """A frozen layer and a change of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(base.in_features, rank, False), nn.Linear(rank, base.out_features, False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))


Made = tuple[nn.Module, Task, Callable[[Any, Any], Tensor]]
KINDS: dict[str, Callable[[int], Made]] = {
    "wines": lambda s: (dense(9, 32, 32, 4, norm=True), wines(s), F.cross_entropy),
    "concrete": lambda s: (dense(7, 32, 32, 1, act=nn.SiLU), concrete(s), square),
    "garments": lambda s: (Vgg(), garments(s), F.cross_entropy),
    "vessels": lambda s: (Fcn(), vessels(s), bce),
    "beats": lambda s: (Ecg(), beats(s), F.cross_entropy),
    "posts": lambda s: (Bert(), posts(s), F.cross_entropy),
    "verses": lambda s: (MiniGpt(), verses(s), token_loss),
    "poems": lambda s: (CharRnn(), verses(s), token_loss),
    "loads": lambda s: (Forecast(), loads(s), square),
    "books": lambda s: (Factors(), books(s), F.mse_loss),
    "spectra": lambda s: (dense(20, 32, 4, 32, 20, act=nn.GELU), spectra(s), F.mse_loss),
    "captions": lambda s: (Clip(), captions(s), F.cross_entropy),
    "rivers": lambda s: (Graph(), rivers(s), token_loss),
}
"""What is trained, by the name of its data."""
RATES = {"posts": 5e-3, "verses": 4e-3, "poems": 1e-2, "loads": 1e-2, "books": 3e-2, "spectra": 1e-2, "rivers": 1e-2}
"""Rates of Adam with which they learn, where it is not 5e-3."""


def rate_of(name: str) -> float:
    """The rate of Adam that suits."""
    return RATES.get(name, 5e-3)
