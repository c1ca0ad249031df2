"""Tasks of the programs that train: what people write their first loops for."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.sequences import token_loss
from validation.tasks.task import Task, drawn_once

# --- vectors, tables, graphs


def spirals(seed: int, arms: int = 3, batch: int = 96, noise: float = 0.1) -> Task:
    """Tell the arms of a spiral apart, from two coordinates and their sines."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        arm = torch.randint(arms, (batch,), generator=random)
        way = torch.rand(batch, generator=random)
        angle = 2.5 * way + 2 * math.pi * arm / arms + noise * torch.randn(batch, generator=random)
        xy = (0.3 + way)[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
        return torch.cat([2 * xy, (3 * xy).sin()], dim=1), arm

    return Task(seed, draw, F.cross_entropy)


def bends(seed: int, dim: int = 24, factors: int = 5, batch: int = 64) -> Task:
    """Points of a curved surface of few factors, to be reconstructed."""
    fixed = drawn_once(seed, 910)
    mix, turn = torch.randn(factors, dim, generator=fixed), torch.randn(dim, dim, generator=fixed) / math.sqrt(dim)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.tanh(torch.randn(batch, factors, generator=random) @ mix / math.sqrt(factors)) @ turn * 1.6
        return x, x

    return Task(seed, draw, F.mse_loss)


def ratings(seed: int, users: int = 400, items: int = 120, batch: int = 64) -> Task:
    """What a user thinks of an item, from their numbers."""
    fixed = drawn_once(seed, 911)
    taste, style = torch.randn(users, 3, generator=fixed), torch.randn(items, 3, generator=fixed)
    fame = torch.randn(items, generator=fixed)

    def draw(random: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        user = torch.randint(users, (batch,), generator=random)
        item = (torch.rand(batch, generator=random) ** 2 * items).long()
        score = (taste[user] * style[item]).sum(dim=1) * 0.4 + fame[item] + 3
        return {"user": user, "item": item}, score + 0.1 * torch.randn(batch, generator=random)

    return Task(seed, draw, F.mse_loss)


def communities(seed: int, nodes: int = 24, dim: int = 10, classes: int = 4, batch: int = 8) -> Task:
    """Nodes of a dense graph whose neighbours are mostly of their class; each shows its class faintly."""
    codes = torch.randn(classes, dim, generator=drawn_once(seed, 912))

    def draw(random: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        target = torch.randint(classes, (batch, nodes), generator=random)
        same = target[:, :, None] == target[:, None]
        edge = (torch.rand(batch, nodes, nodes, generator=random) < torch.where(same, 0.5, 0.05)).float().triu(1)
        adjacency = edge + edge.transpose(1, 2) + torch.eye(nodes)
        x = codes[target] * 0.6 + torch.randn(batch, nodes, dim, generator=random)
        return {"x": x, "adjacency": adjacency / adjacency.sum(dim=-1, keepdim=True)}, target

    return Task(seed, draw, token_loss)


def likeness(seed: int, dim: int = 20, classes: int = 7, batch: int = 64) -> Task:
    """Two rows each: are they of one kind?"""
    centres = torch.randn(classes, dim, generator=drawn_once(seed, 913))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        first = torch.randint(classes, (batch,), generator=random)
        same = torch.rand(batch, generator=random) < 0.5
        second = torch.where(same, first, torch.randint(classes, (batch,), generator=random))
        noise = 0.5 * torch.randn(2, batch, dim, generator=random)
        return (centres[first] + noise[0], centres[second] + noise[1]), (first == second).float()

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def crescents(seed: int, batch: int = 128) -> Task:
    """Points of two crescents, whose density is wanted. The output is minus the log-likelihood."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        angle = math.pi * torch.rand(batch, generator=random)
        up = (torch.rand(batch, generator=random) < 0.5).float()
        sign = 2 * up - 1
        xy = torch.stack([sign * angle.cos() + up - 0.5, sign * angle.sin() - up / 2 + 0.25], dim=1)
        return 1.5 * xy + 0.1 * torch.randn(batch, 2, generator=random), up

    return Task(seed, draw, lambda output, _: output.mean())


def parity(seed: int, bits: int = 5, dim: int = 12, batch: int = 128) -> Task:
    """Whether an odd number of the first bits is set: flat for a while, then learned."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(2, (batch, dim), generator=random).float()
        return 2 * x - 1, (x[:, :bits].sum(dim=1) % 2).long()

    return Task(seed, draw, F.cross_entropy)


# --- pictures


def stains(seed: int, size: int = 12, batch: int = 12) -> Task:
    """Mark the bright rectangle in a noisy picture, dot by dot."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        corner = torch.randint(1, size // 2, (batch, 2), generator=random)
        side = torch.randint(3, size // 2, (batch, 2), generator=random)
        place = torch.arange(size)
        inside = [(place >= corner[:, i, None]) & (place < (corner + side)[:, i, None]) for i in range(2)]
        mask = (inside[0][:, :, None] & inside[1][:, None]).float()[:, None]
        return 1.5 * mask - 0.5 + 0.6 * torch.randn(mask.shape, generator=random), mask

    return Task(seed, draw, F.binary_cross_entropy_with_logits)


def strokes(seed: int, classes: int = 8, size: int = 10, batch: int = 24, channels: int = 1) -> Task:
    """Gratings of several directions and widths, with random phase."""
    fixed = drawn_once(seed, 914)
    way = math.pi * torch.arange(classes) / classes
    pace = 0.8 + 0.6 * torch.rand(classes, generator=fixed)
    tint = torch.rand(classes, channels, 1, 1, generator=fixed) + 0.5
    y, x = torch.meshgrid(torch.arange(size * 1.0), torch.arange(size * 1.0), indexing="ij")

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        a, p = way[target, None, None], pace[target, None, None]
        phase = 2 * math.pi * torch.rand(batch, 1, 1, generator=random)
        wave = torch.sin(p * (x * a.cos() + y * a.sin()) + phase)[:, None] * tint[target]
        return 1.3 * wave + 0.3 * torch.randn(wave.shape, generator=random), target

    return Task(seed, draw, F.cross_entropy)


# --- sequences


def copying(seed: int, vocabulary: int = 10, length: int = 6, batch: int = 32) -> Task:
    """Random tokens, a bar, and the same tokens again, which are to be predicted."""
    bar = vocabulary

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=random)
        whole = torch.cat([tokens, torch.full((batch, 1), bar), tokens], dim=1)
        return whole[:, :-1], whole[:, 1:]

    return Task(seed, draw, lambda logits, target: token_loss(logits[:, length:], target[:, length:]))


def lookups(seed: int, pairs: int = 6, kinds: int = 8, dim: int = 16, batch: int = 32) -> Task:
    """Tokens of a key and a value each, and last a key alone: say its value. One place is worth looking at."""
    fixed = drawn_once(seed, 915)
    keys, values = (torch.randn(kinds, dim, generator=fixed) for _ in range(2))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        key = torch.stack([torch.randperm(kinds, generator=random)[:pairs] for _ in range(batch)])
        value = torch.randint(kinds, (batch, pairs), generator=random)
        asked = torch.randint(pairs, (batch, 1), generator=random)
        shown = torch.cat([keys[key], values[value]], dim=-1)
        query = torch.cat([keys[key.gather(1, asked)], torch.zeros(batch, 1, dim)], dim=-1)
        return torch.cat([shown, query], dim=1), value.gather(1, asked).squeeze(1)

    return Task(seed, draw, F.cross_entropy)


def brackets(seed: int, kinds: int = 3, length: int = 14, batch: int = 24) -> Task:
    """At each place of a random text of brackets, which kind is open; the last kind means none."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(2 * kinds, (batch, length), generator=random)
        target = torch.empty_like(tokens)
        state = torch.full((batch,), kinds)
        for t in range(length):
            opened = tokens[:, t] < kinds
            state = torch.where(opened, tokens[:, t], torch.where(tokens[:, t] - kinds == state, kinds, state))
            target[:, t] = state
        return tokens, target

    return Task(seed, draw, token_loss)


def adding(seed: int, length: int = 20, batch: int = 48, early: bool = False) -> Task:
    """Two of many numbers are marked; say their sum at the end. `early` marks the first two."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(batch, length, generator=random)
        mark = torch.zeros(batch, length)
        if early:
            mark[:, :2] = 1
        else:
            half = length // 2
            mark.scatter_(1, torch.randint(half, (batch, 1), generator=random), 1.0)
            mark.scatter_(1, half + torch.randint(half, (batch, 1), generator=random), 1.0)
        return torch.stack([2 * x - 1, mark], dim=-1), ((2 * x - 1) * mark).sum(dim=1, keepdim=True)

    return Task(seed, draw, F.mse_loss)


def tanks(seed: int, length: int = 30, kinds: int = 5, batch: int = 32) -> Task:
    """A one-hot sign at the start, then faint signs of other kinds; at the end, which was it?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        sign = torch.randint(kinds, (batch,), generator=random)
        rest = kinds + torch.randint(3, (batch, length - 1), generator=random)
        x = F.one_hot(torch.cat([sign[:, None], rest], dim=1), kinds + 3).float()
        x[:, 0] *= 4
        x[:, 1:] *= 0.3
        return x, sign

    return Task(seed, draw, F.cross_entropy)


def swings(seed: int, length: int = 20, batch: int = 24, dim: int = 2) -> Task:
    """Damped pendulums of random rate; every step predicts the next."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        rate = 0.3 + 0.6 * torch.rand(batch, 1, dim, generator=random)
        phase = 2 * math.pi * torch.rand(batch, 1, dim, generator=random)
        time = torch.arange(length + 1.0)[None, :, None]
        x = torch.sin(rate * time + phase) * torch.exp(-0.03 * time)
        return x[:, :-1], x[:, 1:]

    return Task(seed, draw, F.mse_loss)


def heaps(seed: int, items: int = 9, dim: int = 6, batch: int = 32) -> Task:
    """Of a set of vectors: the largest entry of each coordinate."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(batch, items, dim, generator=random)
        return x, x.amax(dim=1)

    return Task(seed, draw, F.mse_loss)
