"""What the programs of the half `reported` share in the family `state`: data, networks, loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program
from validation.cases._everyday_loops import stored, supervised, train
from validation.programs import held_out
from validation.states import Made
from validation.tasks import Task, drawn_once, token_loss
from validation.tasks.trades import paints

adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD

# --- data


def faults(seed: int, batch: int = 64) -> Task:
    """Which of five faults a machine has, by twelve readings; each fault shows in two ways."""
    places = 1.3 * torch.randn(5, 2, 12, generator=drawn_once(seed, 13000))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(5, (batch,), generator=random)
        way = torch.randint(2, (batch,), generator=random)
        return places[y, way] + torch.randn(batch, 12, generator=random), y

    return Task(seed, draw, F.cross_entropy)


def rents(seed: int, batch: int = 64) -> Task:
    """The rent of a flat by six columns, as (N, 1)."""
    way = torch.randn(3, generator=drawn_once(seed, 13001))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, 6, generator=random)
        y = x[:, :3] @ way + torch.sin(2 * x[:, 3]) * x[:, 4].tanh() + 0.3 * x[:, 5].square()
        return x, (y + 0.05 * torch.randn(batch, generator=random))[:, None]

    return Task(seed, draw, F.mse_loss)


def mails(seed: int, words: int = 40, length: int = 12, batch: int = 48) -> Task:
    """The department a mail belongs to, by the words that occur; word 0 is padding and occurs at the end."""
    topic = (2.5 * torch.randn(5, words - 1, generator=drawn_once(seed, 13002))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(5, (batch,), generator=random)
        text = 1 + torch.multinomial(topic[y], length, replacement=True, generator=random)
        size = torch.randint(length // 2, length + 1, (batch, 1), generator=random)
        return text.masked_fill(torch.arange(length) >= size, 0), y

    return Task(seed, draw, F.cross_entropy)


def letters(seed: int, count: int = 16, length: int = 14, batch: int = 24) -> Task:
    """Text whose next letter mostly follows from the last two."""
    rule = torch.randint(count, (count, 4), generator=drawn_once(seed, 13003))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(count, (batch, length + 1), generator=random)
        odd = torch.rand(batch, length + 1, generator=random) < 0.1
        for t in range(2, length + 1):
            follow = rule[text[:, t - 1], text[:, t - 2] % 4]
            text[:, t] = torch.where(odd[:, t], text[:, t], follow)
        return text[:, :-1], text[:, 1:]

    return Task(seed, draw, token_loss)


def tremors(seed: int, length: int = 18, batch: int = 32) -> Task:
    """The next value of a damped swing at every step."""
    pace = 0.5 + 0.4 * torch.rand((), generator=drawn_once(seed, 13004))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        t = torch.arange(length + 1).float()
        size, phase = 0.5 + torch.rand(batch, 1, generator=random), 6.28 * torch.rand(batch, 1, generator=random)
        x = size * torch.exp(-0.03 * t) * torch.sin(pace * t + phase)
        x = (x + 0.03 * torch.randn(batch, length + 1, generator=random))[..., None]
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


# --- networks


def dense(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts, nn.Linear(widths[-2], widths[-1]))


class Paint(nn.Module):
    """Two convolutions with norms, a mean over places, a head."""

    def __init__(self, width: int = 16, norm: bool = True, channels: int = 3, classes: int = 8) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, width, 3, 1, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norm1, self.norm2 = (nn.BatchNorm2d(c) if norm else nn.Identity() for c in (width, 2 * width))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return self.head(h.mean(dim=(2, 3)))


class Mailman(nn.Module):
    """Words, a GRU, the mean over time, a head."""

    def __init__(self, words: int = 40, width: int = 24) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(words, width), nn.GRU(width, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.gru(self.words(x))[0].mean(dim=1))


class Look(nn.Module):
    """Causal attention written out; `scale` is what the logits are multiplied by."""

    def __init__(self, width: int, heads: int, scale: float | None = None, norm: bool = False) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale or (width // heads) ** -0.5
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.qn, self.kn = (nn.LayerNorm(width // heads) if norm else nn.Identity() for _ in range(2))

    def logits(self, x: Tensor) -> Tensor:
        """What the softmax gets, before the mask."""
        q, k = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k))
        return self.scale * self.qn(q) @ self.kn(k).transpose(-1, -2)

    def forward(self, x: Tensor) -> Tensor:
        """Mixed values."""
        scores = self.logits(x)
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.o((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Nano(nn.Module):
    """A small decoder of letters."""

    def __init__(self, count: int = 16, width: int = 32, depth: int = 1, heads: int = 4, **look: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(count, width), nn.Parameter(0.1 * torch.randn(32, width))
        self.norms, self.looks = (
            nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth)),
            nn.ModuleList(Look(width, heads, **look) for _ in range(depth)),
        )
        self.mlps = nn.ModuleList(dense(width, 2 * width, width, act=nn.GELU) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, count)

    def states(self, x: Tensor) -> Tensor:
        """What the head gets."""
        h = self.words(x) + self.places[: x.shape[1]]
        for i, (look, mlp) in enumerate(zip(self.looks, self.mlps, strict=True)):
            h = h + look(self.norms[2 * i](h))
            h = h + mlp(self.norms[2 * i + 1](h))
        return self.norm(h)

    def forward(self, x: Tensor) -> Tensor:
        """Logits at every place."""
        return self.head(self.states(x))


class Swing(nn.Module):
    """An LSTM that says the next value."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The next value at every step."""
        return self.head(self.lstm(x)[0])


MADE: dict[str, Made] = {
    "faults": (lambda: dense(12, 48, 48, 5), faults, F.cross_entropy, 4e-3),
    "rents": (lambda: dense(6, 48, 48, 1, act=nn.GELU), rents, F.mse_loss, 5e-3),
    "paints": (lambda: Paint(), paints, F.cross_entropy, 5e-3),
    "mails": (lambda: Mailman(), mails, F.cross_entropy, 8e-3),
    "letters": (lambda: Nano(), letters, token_loss, 5e-3),
    "heights": (lambda: dense(6, 40, 40, 1, act=nn.SiLU), rents, F.mse_loss, 5e-3),
    "tremors": (lambda: Swing(), tremors, F.mse_loss, 8e-3),
}
"""A network, its task, its loss and a rate for Adam, by the name of the data."""


def from_file(
    name: str,
    spoil: Callable[[Tensor, Tensor, int], None] | None = None,
    *,
    batches: int = 8,
    size: int = 32,
    epochs: int = 6,
    clip: float | None = None,
    loss: Callable[..., Tensor] | None = None,
    between: Callable[[torch.optim.Optimizer, int], None] = lambda _optimizer, _epoch: None,
    optimizer: Callable[[Any, float], torch.optim.Optimizer] = adam,
) -> Callable[[int], Program]:
    """Epochs over a small data set, of which one row may be wrong; `between` is done after each epoch."""

    def build(seed: int) -> Program:
        network, task_of, loss_fn, rate = MADE[name]
        model, task = network(), task_of(seed)
        x, y = (part.clone() for part in stored(task, batches).tensors)
        if spoil is not None:
            spoil(x, y, int(torch.randint(len(x), (), generator=drawn_once(seed, 13100))))
        order = torch.Generator().manual_seed(seed)
        data = DataLoader(TensorDataset(x, y), size, shuffle=True, generator=order)
        moves, score = optimizer(model.parameters(), rate), held_out(model, task, loss_fn)
        return train(
            model,
            data,
            supervised(model, loss or loss_fn),
            moves,
            score,
            epochs=epochs,
            clip=clip,
            between=lambda epoch: between(moves, epoch),
        )

    return build
