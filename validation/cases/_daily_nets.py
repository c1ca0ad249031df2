"""What the daily nets share: rows, lists, pictures, signals, texts, and residual rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.tasks import Task, drawn_once, token_loss

UNLEARNED = {"SLOW", "loss_stuck", "never_moves", "rate_too_low"}
"""Nothing is learned, for nearly nothing comes back."""
SQUASHED = {"DEAD", "SYMMETRY", "VANISHING", "loss_stuck"}
"""Few units die or agree sooner than many, and what they lose does not come back."""

# --- rows


def galaxies(seed: int, classes: int = 9, dim: int = 16, batch: int = 64, apart: float = 1.1) -> Task:
    """Colours of galaxies; a kind is bright in some of them, and its light is bent by a lens of its own."""
    fixed = drawn_once(seed, 7100)
    centres = apart * torch.randn(classes, dim, generator=fixed)
    spread = 0.5 + torch.rand(classes, dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        x = centres[kind] + spread[kind] * torch.randn(batch, dim, generator=random)
        return x / math.sqrt(1 + apart**2), kind

    return Task(seed, draw, F.cross_entropy)


def alloys(seed: int, metals: int = 10, out: int = 6, batch: int = 64) -> Task:
    """Shares of the metals of an alloy, centred and scaled, and six of its properties, of unit scale."""
    fixed = drawn_once(seed, 7101)
    first, second = (torch.randn(metals, out, generator=fixed) / math.sqrt(metals) for _ in range(2))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        share = torch.randn(batch, metals, generator=random).mul(1.2).softmax(dim=1)
        x = (share - 1 / metals) * metals
        return x, torch.sin(1.5 * x @ first) + 0.5 * (x @ second)

    return Task(seed, draw, F.mse_loss)


def claims(seed: int, batch: int = 96, noise: float = 0.1) -> Task:
    """A car's make, region and age class as numbers, four measures; the cost of its claims, of unit scale."""
    fixed = drawn_once(seed, 7102)
    make, region, age = (torch.randn(n, generator=fixed) for n in (15, 8, 5))
    slopes = torch.randn(4, generator=fixed) / 2

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kinds = torch.stack([torch.randint(n, (batch,), generator=random) for n in (15, 8, 5)], dim=1)
        x = torch.randn(batch, 4, generator=random)
        cost = make[kinds[:, 0]] * (1 + 0.4 * age[kinds[:, 2]]) + 0.5 * region[kinds[:, 1]] + torch.tanh(x @ slopes)
        return (kinds, x), (0.7 * cost + noise * torch.randn(batch, generator=random))[:, None]

    return Task(seed, draw, F.mse_loss)


def gaits(seed: int, factors: int = 7, dim: int = 36, batch: int = 64, noise: float = 0.0) -> Task:
    """Angles of a walking body that a few motions decide, to be rebuilt, or freed of noise."""
    fixed = drawn_once(seed, 7103)
    ways = torch.randn(factors, dim, generator=fixed) / math.sqrt(factors)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.5 * torch.sin(torch.randn(batch, factors, generator=random) @ ways)
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def playlists(seed: int, songs: int = 50, moods: int = 8, length: int = 6, batch: int = 96) -> Task:
    """Songs of a list, and one more that would fit."""
    lists = (5 * torch.randn(moods, songs, generator=drawn_once(seed, 7104))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        mood = torch.randint(moods, (batch,), generator=random)
        drawn = torch.multinomial(lists[mood], length + 1, replacement=True, generator=random)
        return drawn[:, :-1], drawn[:, -1]

    return Task(seed, draw, F.cross_entropy)


def pendulums(seed: int, batch: int = 64, pace: float = 0.6) -> Task:
    """Two angles and two speeds of coupled pendulums, and the same a moment later."""
    pull = 0.3 + 0.5 * torch.rand(1, generator=drawn_once(seed, 7105))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.2 * torch.randn(batch, 4, generator=random)
        a, v = x[:, :2], x[:, 2:]
        for _ in range(4):
            v = v - pace / 4 * (2 * torch.sin(a) + pull * (a - a.flip(1)))
            a = a + pace / 4 * v
        return x, torch.cat([a, v], dim=1)

    return Task(seed, draw, F.mse_loss)


def fields(seed: int, sensors: int = 12, batch: int = 64) -> Task:
    """What sensors along a rod show, and a place on it: how hot is it there? Inputs are both."""
    rate = 1 + torch.arange(5.0)
    phase = 6 * torch.rand(5, generator=drawn_once(seed, 7106))
    at = torch.linspace(-1, 1, sensors)

    def heat(place: Tensor, strength: Tensor) -> Tensor:
        return (strength[:, None] * torch.sin(rate * place[..., None] + phase)).sum(dim=2)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        strength = torch.randn(batch, 5, generator=random) / 1.6
        place = 2 * torch.rand(batch, 1, generator=random) - 1
        return (heat(at.expand(batch, -1), strength), place), heat(place, strength)

    return Task(seed, draw, F.mse_loss)


def triples(seed: int, classes: int = 10, dim: int = 20, batch: int = 48, noise: float = 0.5) -> Task:
    """Three rows: two of one kind and one of another. The model says the loss."""
    centres = torch.randn(classes, dim, generator=drawn_once(seed, 7107))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, ...], None]:
        kind = torch.randint(classes, (batch,), generator=random)
        other = (kind + torch.randint(1, classes, (batch,), generator=random)) % classes
        rows = (centres[k] + noise * torch.randn(batch, dim, generator=random) for k in (kind, kind, other))
        return tuple(rows), None

    return Task(seed, draw, lambda out, _: out)


def friends(seed: int, nodes: int = 20, dim: int = 8, classes: int = 4, batch: int = 8) -> Task:
    """People who know each other; what they like shows in what their friends are. Inputs: features, links."""
    codes = torch.randn(classes, dim, generator=drawn_once(seed, 7108))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        kind = torch.randint(classes, (batch, nodes), generator=random)
        same = kind[:, :, None] == kind[:, None]
        link = (torch.rand(batch, nodes, nodes, generator=random) < torch.where(same, 0.5, 0.05)).float().triu(1)
        link = link + link.transpose(1, 2) + torch.eye(nodes)
        return (0.7 * codes[kind] + torch.randn(batch, nodes, dim, generator=random), link), kind

    return Task(seed, draw, token_loss)


def bananas(seed: int, batch: int = 96) -> Task:
    """Points of a bent cloud in two directions, nothing to be said of them."""
    turn = torch.linalg.qr(torch.randn(2, 2, generator=drawn_once(seed, 7109)))[0]

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        a, b = torch.randn(2, batch, generator=random)
        x = torch.stack([1.2 * a, 0.7 * (a * a - 1) + 0.25 * b], dim=1) @ turn
        return x, x

    return Task(seed, draw, lambda out, _: out.mean())


# --- pictures and signals


def leaves(
    seed: int, classes: int = 8, size: int = 14, channels: int = 3, batch: int = 32, noise: float = 0.35
) -> Task:
    """A leaf of its kind's outline, colour and veins, turned a little."""
    fixed = drawn_once(seed, 7110)
    lobes, depth = 2 + torch.arange(classes) % 4, 0.15 + 0.3 * torch.rand(classes, generator=fixed)
    colour = torch.randn(classes, channels, generator=fixed)
    veins = 2 + 3 * torch.rand(classes, generator=fixed)
    line = torch.linspace(-1, 1, size)
    far, way = (line[:, None] ** 2 + line**2).sqrt(), torch.atan2(line[:, None].expand(size, size), line)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        turn = 0.5 * torch.randn(batch, 1, 1, generator=random)
        edge = 0.7 + depth[kind, None, None] * torch.cos(lobes[kind, None, None] * (way - turn))
        inside = torch.sigmoid(12 * (edge - far))
        texture = 1 + 0.5 * torch.cos(veins[kind, None, None] * 2 * far)
        x = (inside * texture)[:, None] * (0.6 + colour[kind, :, None, None]) - 0.3
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def dials(seed: int, size: int = 14, batch: int = 32, noise: float = 0.3) -> Task:
    """Pictures of two hands of a dial; the sine and cosine of each is asked for."""
    line = torch.linspace(-1, 1, size)
    y, x = line[:, None].expand(size, size), line.expand(size, size)

    def hand(angle: Tensor, long: float) -> Tensor:
        along = angle.cos() * x + angle.sin() * y
        across = -angle.sin() * x + angle.cos() * y
        return torch.exp(-((across / 0.15) ** 2)) * (along > 0) * (along < long)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        angle = 2 * math.pi * torch.rand(batch, 2, 1, 1, generator=random)
        picture = torch.stack([hand(angle[:, 0], 1.0), hand(angle[:, 1], 0.6)], dim=1)
        said = torch.cat([angle.sin(), angle.cos()], dim=1).flatten(1)
        return 2 * picture + noise * torch.randn(picture.shape, generator=random), said

    return Task(seed, draw, F.mse_loss)


def bumps(seed: int, places: int = 10, size: int = 12, batch: int = 32, noise: float = 0.0) -> Task:
    """Hills at fixed places, each of any height, from above; to be rebuilt, or freed of noise."""
    at = 0.8 * (2 * torch.rand(places, 2, 1, 1, generator=drawn_once(seed, 7111)) - 1)
    line = torch.linspace(-1, 1, size)
    hills = torch.exp(-((line[:, None] - at[:, 0]) ** 2 + (line - at[:, 1]) ** 2) / 0.08)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = 1.5 * torch.einsum("bk,khw->bhw", torch.randn(batch, places, generator=random), hills)[:, None]
        return x + noise * torch.randn(x.shape, generator=random), x

    return Task(seed, draw, F.mse_loss)


def shores(seed: int, size: int = 14, batch: int = 12, noise: float = 0.6) -> Task:
    """Water, beach, grass and wood from above; every dot has one of four classes."""
    line = torch.linspace(-1, 1, size)
    colour = torch.randn(4, 3, generator=drawn_once(seed, 7112))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        angle, off, wave = torch.randn(3, batch, 1, 1, generator=random)
        far = angle.cos() * line[:, None] + angle.sin() * line + 0.3 * off + 0.15 * torch.sin(4 * line + 3 * wave)
        kind = (far > -0.4).long() + (far > 0).long() + (far > 0.4).long()
        x = 1.3 * colour[kind].permute(0, 3, 1, 2)
        return x + noise * torch.randn(x.shape, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def bearings(seed: int, classes: int = 7, length: int = 48, batch: int = 32, noise: float = 0.4) -> Task:
    """Two pick-ups of a machine; each fault knocks at a rate of its own, with a ring of its own."""
    fixed = drawn_once(seed, 7113)
    rate = torch.linspace(4, 11, classes)[torch.randperm(classes, generator=fixed)]
    ring = 0.5 + 1.5 * torch.rand(classes, 2, 1, generator=fixed)
    time = torch.arange(length * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(classes, (batch,), generator=random)
        since = (time + 12 * torch.rand(batch, 1, generator=random)) % rate[kind, None]
        x = 2 * torch.exp(-since / 3)[:, None] * torch.cos(ring[kind] * since[:, None])
        return x + noise * torch.randn(batch, 2, length, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def buoys(seed: int, length: int = 32, ahead: int = 8, count: int = 3, batch: int = 48) -> Task:
    """Heights of some buoys over time, and what comes next: waves that pass one after the other."""
    fixed = drawn_once(seed, 7114)
    rate = 0.25 + 0.2 * torch.arange(4) + 0.1 * torch.rand(4, generator=fixed)
    lag = torch.rand(4, count, generator=fixed)
    time = torch.arange(length + ahead * 1.0)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        strength = torch.randn(batch, 4, 1, 1, generator=random) / 1.4
        phase = 2 * math.pi * torch.rand(batch, 4, 1, 1, generator=random)
        wave = torch.sin(rate[:, None, None] * time + phase + 3 * lag[..., None])
        x = (strength * wave).sum(dim=1)
        x = x + 0.05 * torch.randn(x.shape, generator=random)
        return x[..., :length], x[..., length:]

    return Task(seed, draw, F.mse_loss)


# --- texts


def trips(seed: int, stops: int = 12, lines: int = 3, length: int = 8, batch: int = 24, noise: float = 0.05) -> Task:
    """The number of a line, then its stops, each of which says the next, by the line. Stops come first in the table."""
    follows = torch.stack([torch.randperm(stops, generator=drawn_once(seed, 7120 + i)) for i in range(lines)])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        line = torch.randint(lines, (batch,), generator=random)
        row = [torch.randint(stops, (batch,), generator=random)]
        for _ in range(length):
            free = torch.randint(stops, (batch,), generator=random)
            row.append(torch.where(torch.rand(batch, generator=random) < noise, free, follows[line, row[-1]]))
        text = torch.stack(row, dim=1)
        return torch.cat([stops + line[:, None], text[:, :-1]], dim=1)[:, : length + 1], torch.cat(
            [torch.full((batch, 1), -100), text[:, 1:]], dim=1
        )

    return Task(seed, draw, token_loss)


def accents(seed: int, letters: int = 14, length: int = 11, batch: int = 24) -> Task:
    """Which of three accents each letter of a word bears: by itself and the letter before."""
    table = torch.randn(2, letters, 3, generator=drawn_once(seed, 7130))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        word = torch.randint(letters, (batch, length), generator=random)
        return word, (1.3 * table[0, word] + table[1, word.roll(1, dims=1)]).argmax(dim=2)

    return Task(seed, draw, token_loss)


def menus(seed: int, words: int = 30, kinds: int = 6, length: int = 9, batch: int = 32) -> Task:
    """Dishes of a menu as numbers, and the kind of its kitchen."""
    lists = (2 * torch.randn(kinds, words, generator=drawn_once(seed, 7131))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch,), generator=random)
        return torch.multinomial(lists[kind], length, replacement=True, generator=random), kind

    return Task(seed, draw, F.cross_entropy)


def orders(seed: int, kinds: int = 3, dim: int = 8, length: int = 6, batch: int = 32) -> Task:
    """Each thing on a shelf asks for the kinds of two others, by their tags: nine classes."""
    fixed = drawn_once(seed, 7133)
    codes, tags = torch.randn(kinds, dim, generator=fixed), 1.5 * torch.randn(length, dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch, length), generator=random)
        first, second = torch.rand(2, batch, length, length, generator=random).argmax(dim=3)
        x = torch.cat([codes[kind], tags.expand(batch, -1, -1), tags[first], tags[second]], dim=2)
        return x, kinds * kind.gather(1, first) + kind.gather(1, second)

    return Task(seed, draw, token_loss)


def shelves(seed: int, kinds: int = 6, dim: int = 10, length: int = 8, batch: int = 32) -> Task:
    """Things on a shelf as vectors with a tag; each asks for the kind of the thing that bears its tag, turned."""
    fixed = drawn_once(seed, 7132)
    codes, tags = torch.randn(kinds, dim, generator=fixed), 1.5 * torch.randn(length, dim, generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        kind = torch.randint(kinds, (batch, length), generator=random)
        asks = torch.stack([torch.randperm(length, generator=random) for _ in range(batch)])
        x = torch.cat([codes[kind], tags.expand(batch, -1, -1), tags[asks]], dim=2)
        return x + 0.1 * torch.randn(x.shape, generator=random), kind.gather(1, asks)

    return Task(seed, draw, token_loss)


# --- nets


class Block(nn.Module):
    """Two layers beside a skip; a norm before them, and a factor for what they say, if told."""

    def __init__(self, width: int, act=F.silu, norm: bool = True, scale: float | None = None) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(width) if norm else nn.Identity(), act
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = None if scale is None else nn.Parameter(torch.full((width,), scale))

    def branch(self, x: Tensor) -> Tensor:
        said = self.b(self.act(self.a(self.norm(x))))
        return said if self.scale is None else self.scale * said

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Rows(nn.Module):
    """A stem, blocks, a head."""

    def __init__(self, sizes: Sequence[int], blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(sizes[0], sizes[1]), nn.ModuleList(blocks)
        self.head = nn.Linear(sizes[1], sizes[2])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
