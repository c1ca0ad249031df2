"""Tasks on tokens, and on sequences that ask for a memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from validation.tasks.task import Task, drawn_once


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def markov(seed: int, vocabulary: int = 20, length: int = 16, batch: int = 16) -> Task:
    """Next-token prediction on a noisy permutation chain. The loss takes logits (batch, length, vocabulary)."""
    follows = torch.randperm(vocabulary, generator=drawn_once(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length + 1), generator=random)
        jump = torch.rand(batch, length, generator=random) < 0.2
        for t in range(length):
            tokens[:, t + 1] = torch.where(jump[:, t], tokens[:, t + 1], follows[tokens[:, t]])
        return tokens[:, :-1], tokens[:, 1:]

    return Task(seed, draw, token_loss)


def ciphers(seed: int, vocabulary: int = 14, length: int = 6, batch: int = 32, offset: int = 700) -> Task:
    """Translate tokens by a fixed code, under teacher forcing: inputs are the source and the shifted answer."""
    code = torch.randperm(vocabulary, generator=drawn_once(seed, offset))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(vocabulary, (batch, length), generator=random)
        answer = code[source]
        return (source, torch.cat([torch.full((batch, 1), vocabulary), answer[:, :-1]], dim=1)), answer

    return Task(seed, draw, token_loss)


def recall(seed: int, length: int, classes: int = 4, dim: int = 8, batch: int = 64, where: int = 0) -> Task:
    """Say at the end which class was shown at step `where`; the rest is noise. Needs a lag of length - where."""
    codes = torch.randn(classes, dim, generator=drawn_once(seed)) * 2

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        x = torch.randn(batch, length, dim, generator=random) * 0.3
        x[:, where] = codes[target]
        return x, target

    return Task(seed, draw, F.cross_entropy)


def echo(seed: int, length: int, classes: int = 6, dim: int = 8, batch: int = 32, lag: int = 1) -> Task:
    """Say at every step which class was shown `lag` steps before."""
    codes = torch.randn(classes, dim, generator=drawn_once(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        shown = torch.randint(classes, (batch, length), generator=random)
        return codes[shown], shown.roll(lag, dims=1)

    return Task(seed, draw, lambda logits, target: token_loss(logits[:, lag:], target[:, lag:]))


def leanings(seed: int, offset: int, spread: float, words: int, length: int, classes: int, batch: int) -> Task:
    """Texts whose words lean towards those of their class."""
    lists = (spread * torch.randn(classes, words, generator=drawn_once(seed, offset))).softmax(dim=1)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (batch,), generator=random)
        return torch.multinomial(lists[target], length, replacement=True, generator=random), target

    return Task(seed, draw, F.cross_entropy)


def told_at_first(seed: int, count: int, length: int, batch: int) -> Task:
    """Some numbers at the first step, silence with noise afterwards; at the end they are asked for."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = 2 * torch.rand(batch, count, generator=random) - 1
        x = 0.1 * torch.randn(batch, length, count + 1, generator=random)
        x[:, 0] = torch.cat([target, torch.ones(batch, 1)], dim=1)
        return x, target

    return Task(seed, draw, F.mse_loss)
