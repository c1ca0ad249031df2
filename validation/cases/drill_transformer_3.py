# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Attention that has to be sharp, or need not; kernels, slots, prefixes, stacks; sick in ways that others lack.

Half: drill.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._drill_tasks import drawers, gaps, moods, signs, tunes
from validation.evidence import attends_sharply, heads_agree, lasting, thrives, tokens_alike
from validation.labels import ALIKE, ONE, SHARP
from validation.nets.attention import joined, split
from validation.setups import live

zoo = Zoo("transformer", half="drill", analyzer="transformer", proof=thrives())
WIDTH = 32


class Attend(nn.Module):
    """Attention of four heads; what is peculiar is in `scores`."""

    def __init__(self, causal: bool = False, heads: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.causal, self.heads = causal, heads

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(q.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(f(x), self.heads) for f in (self.q, self.k, self.v))
        scores = self.scores(q, k)
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        return self.o(joined(scores.softmax(dim=-1) @ v))


class Block(nn.Module):
    """Norms before attention and feed-forward part, each beside a skip."""

    def __init__(self, attend: nn.Module, skip: float = 1.0) -> None:
        super().__init__()
        self.first, self.attend, self.second, self.skip = nn.LayerNorm(WIDTH), attend, nn.LayerNorm(WIDTH), skip
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip * x + self.attend(self.first(x))
        return self.skip * x + self.feed(self.second(x))


class Text(nn.Module):
    """Tokens and places, blocks, an answer at each place, or one from the mean."""

    def __init__(self, blocks: list[nn.Module], kinds_: int, out: int | None = None, length: int = 16) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(kinds_, WIDTH), nn.Embedding(length, WIDTH)
        self.blocks, self.norm, self.out = nn.ModuleList(blocks), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, out or kinds_)
        self.each = out is None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.out(x if self.each else x.mean(dim=1))


def hummed(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Text(blocks, 11), tunes(seed), **{"lr": 4e-3, "steps": 70, **more})


def filled(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Text(blocks, 9), gaps(seed), **{"lr": 4e-3, "steps": 80, **more})


def felt(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Text(blocks, 20, 2), moods(seed), **{"lr": 3e-3, "steps": 80, **more})


# --- plain, but otherwise put together

masked = zoo.healthy("gaps-two-blocks", lambda s: filled(s, [Block(Attend()) for _ in range(2)]))


class Sloped(Attend):
    """Far keys count less, at a slope for each head: the steepest looks at itself."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(q.shape[-2])
        slope = 2.0 ** -torch.arange(q.shape[1])[:, None, None]
        return super().scores(q, k) - 3 * slope * (at[:, None] - at).abs()


class Cosine(Attend):
    """Cosines times a learned factor, which begins at ten."""

    def __init__(self, causal: bool = False, start: float = 10.0) -> None:
        super().__init__(causal)
        self.heat = nn.Parameter(torch.full((4, 1, 1), math.log(start)))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.heat.exp()


class Kernel(nn.Module):
    """Linear attention: sums of keys and values, no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(f(x), 4) for f in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        sums = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(dim=2)
        norm = (q * k.cumsum(dim=2)).sum(-1, keepdim=True)
        return self.o(joined(torch.einsum("bhtd,bhtde->bhte", q, sums) / norm))


zoo.healthy("gaps-slopes-over-distance", lambda s: filled(s, [Block(Sloped()) for _ in range(2)]))
zoo.healthy("tunes-without-softmax", lambda s: hummed(s, [Block(Kernel()) for _ in range(2)]))


# --- where one key is the answer


class Asks(nn.Module):
    """A question looks for the drawer of its name; `heat` divides what it scores."""

    def __init__(self, heads: int = 1, heat: float = 1.0, tied: bool = False) -> None:
        super().__init__()
        self.name, self.ask, self.colour = (
            nn.Linear(12, 24, bias=False),
            nn.Linear(12, 24, bias=False),
            nn.Linear(5, 24),
        )
        if tied:
            self.ask = self.name
        self.out, self.heads, self.heat = nn.Linear(24, 5), heads, heat

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        q, k, v = (
            split(self.ask(asked)[:, None], self.heads),
            split(self.name(x[..., :12]), self.heads),
            split(self.colour(x[..., 12:]), self.heads),
        )
        seen = (q @ k.mT / (self.heat * math.sqrt(24 / self.heads))).softmax(dim=-1)
        return self.out(joined(seen @ v)[:, 0])


zoo.healthy("drawers-one-is-the-answer", lambda s: live(Asks(), drawers(s), lr=2e-2, steps=100))


class Slots(nn.Module):
    """A few slots compete for what they see, three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.start = nn.Linear(17, 24), nn.Parameter(torch.randn(1, 5, 24))
        self.q, self.k, self.v, self.cell = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24), nn.GRUCell(24, 24)
        self.norm, self.ask, self.out = nn.LayerNorm(24), nn.Linear(12, 24), nn.Linear(24, 5)

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        x, z = self.enter(x), self.start.expand(len(x), -1, -1)
        for _ in range(3):
            seen = (self.k(x) @ self.q(self.norm(z)).mT / 24**0.5).softmax(dim=-1) + 1e-6  # (batch, things, slots)
            seen = seen / seen.sum(dim=1, keepdim=True)
            z = self.cell((seen.mT @ self.v(x)).flatten(0, 1), z.flatten(0, 1)).view_as(z)
        picked = (z @ self.ask(asked)[:, :, None]).softmax(dim=1)
        return self.out((picked * z).sum(dim=1))


zoo.healthy("drawers-slots-compete", lambda s: live(Slots(), drawers(s), lr=1e-2, steps=100), thrives(0.05))


class Patches(nn.Module):
    """A picture in squares, a token for the class."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.kind = nn.Conv2d(1, WIDTH, 3, 3), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, WIDTH))
        self.blocks, self.norm, self.out = (
            nn.ModuleList(Block(Attend()) for _ in range(2)),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 6),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).mT
        x = torch.cat([self.kind.expand(len(x), -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x[:, 0]))


zoo.healthy("signs-in-squares", lambda s: live(Patches(), signs(s), lr=3e-3, steps=100), thrives(0.05))


# --- sick: sharp

zoo.sick(
    "gaps-cosines-times-three-thousand",
    lambda s: filled(s, [Block(Cosine(start=10.0)), Block(Cosine(start=3000.0))], lr=1e-3),
    lasting(attends_sharply("blocks.1.attend", others_above=0.2)),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"blocks.1.attend{part}" for part in ("", ".q", ".k")),
    also={*SHARP, "VANISHING"},
    control=masked,
)


class Cooled(Attend):
    """A temperature that is annealed by itself, at every call."""

    def __init__(self, causal: bool, by: float) -> None:
        super().__init__(causal)
        self.by, self.heat = by, 1.0

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        self.heat *= self.by
        return super().scores(q, k) / self.heat


zoo.sick(
    "tunes-colder-by-an-eighth-at-every-call",
    lambda s: hummed(s, [Block(Cooled(True, 0.875)) for _ in range(2)], lr=2e-3),
    lasting(attends_sharply(below=2.0)),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"blocks.{i}.attend.{part}" for i in (0, 1) for part in "qk"),
    also={*SHARP, "VANISHING"},
    control=zoo.healthy("tunes-cooled-a-little", lambda s: hummed(s, [Block(Cooled(True, 0.99)) for _ in range(2)])),
)
zoo.sick(
    "drawers-divided-by-a-thousandth",
    lambda s: live(Asks(2, 1e-3), drawers(s), lr=1e-3, steps=80),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=("name", "ask"),
    also={*SHARP, "VANISHING"},
    control=zoo.healthy("drawers-divided-by-one", lambda s: live(Asks(2, 1.0), drawers(s), lr=1e-2, steps=80)),
)


class Packed(nn.Module):
    """Torch's own module, its packed projection of another scale."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        with torch.no_grad():
            self.mha.in_proj_weight[: 2 * WIDTH].mul_(times)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


zoo.sick(
    "moods-packed-projection-forty-times",
    lambda s: felt(s, [Block(Packed(1.0)), Block(Packed(40.0))], lr=1e-3),
    lasting(attends_sharply("blocks.1.attend.mha", others_above=0.2)),
    "ENTROPY_COLLAPSE",
    layer="blocks.1.attend.mha",
    also={*SHARP, "VANISHING"},
    control=zoo.healthy("moods-packed-projection", lambda s: felt(s, [Block(Packed(1.0)) for _ in range(2)])),
)

# --- sick: alike

zoo.sick(
    "gaps-skips-left-out-of-eight",
    lambda s: filled(s, [Block(Attend(), 0.0) for _ in range(8)], lr=1e-3),
    lasting(tokens_alike("blocks.7")),
    "RANK_COLLAPSE",
    also={*ALIKE, "DEAD", "loss_stuck"},
    control=masked,
)


class Smooth(Attend):
    """Attention that is applied many times over, as a walk on a graph."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        q, k = (split(f(x), 4) for f in (self.q, self.k))
        seen = self.scores(q, k).softmax(dim=-1)
        v = split(self.v(x), 4)
        for _ in range(self.times):
            v = seen @ v
        return self.o(joined(v))


class Bare(nn.Module):
    """Attention alone, no skip."""

    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.attend, self.feed = attend, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.feed(self.attend(x))


zoo.sick(
    "gaps-walked-thirty-times",
    lambda s: filled(s, [Block(Attend()), Bare(Smooth(30)), Block(Attend())], lr=1e-3),
    lasting(tokens_alike("blocks.1")),
    "RANK_COLLAPSE",
    also={*ALIKE, "DEAD", "loss_stuck"},
    control=zoo.healthy(
        "gaps-walked-once-with-skips", lambda s: filled(s, [Block(Attend()), Block(Smooth(1)), Block(Attend())])
    ),
)

# --- sick: one head


class Groups(Attend):
    """Keys of one head for all; `same` gives all the queries of the first as well, as a wrong view does."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.same, self.k = same, nn.Linear(WIDTH, WIDTH // 4)
        with torch.no_grad():
            self.q.weight.mul_(3)
            self.k.weight.mul_(3)

    def forward(self, x: Tensor) -> Tensor:
        q, v = split(self.q(x), 4), split(self.v(x), 4)
        k = self.k(x)[:, None].expand(-1, 4, -1, -1)
        q = q[:, :1].expand_as(q) if self.same else q
        return self.o(joined(self.scores(q, k).softmax(-1) @ v))


grouped = zoo.healthy("moods-keys-of-one-head", lambda s: felt(s, [Block(Groups(False)) for _ in range(2)]))
zoo.sick(
    "moods-keys-and-queries-of-one-head",
    lambda s: felt(s, [Block(Groups(False)), Block(Groups(True))]),
    lasting(heads_agree("blocks.1.attend")),
    "HEAD_DIVERSITY",
    layer=("blocks.1.attend.q", "blocks.1.attend.k"),
    also={*ONE, "DEAD", "DISCONNECTED"},
    control=grouped,
)
