# ruff: noqa: D102 - a case is explained by its name
"""Attention whose queries and keys grow without bound, beside twins with QK-norm or a usual rate.

Half: tune.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.evidence.loops import Fact, Played, broken, learns
from validation.programs import held_out
from validation.states import BROKEN
from validation.tasks import markov, token_loss

zoo = Zoo("state", half="tune", proof=learns(fall=0.1, idle=("attention.key.bias",)))
WIDTH, TOKENS, LENGTH, HEADS = 32, 24, 16, 4


class Reader(nn.Module):
    """One attention between an embedding and a head, with or without QK-norm."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(TOKENS, WIDTH), nn.Parameter(0.3 * torch.randn(LENGTH, WIDTH))
        self.attention = nn.ModuleDict({part: nn.Linear(WIDTH, WIDTH) for part in ("query", "key", "value")})
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.norm = norm

    def parts(self, x: Tensor) -> list[Tensor]:
        query, key, value = (
            self.attention[part](x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.attention
        )
        if self.norm:
            query, key = (F.normalize(each, dim=-1) * (WIDTH // HEADS) ** 0.5 for each in (query, key))
        return [query, key, value]

    def largest_logit(self, tokens: Tensor) -> float:
        query, key, _ = self.parts(self.embedding(tokens) + self.place)
        return float((query @ key.transpose(-2, -1)).abs().max()) / (WIDTH // HEADS) ** 0.5

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.place
        read = F.scaled_dot_product_attention(*self.parts(x), is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x + self.out(read))


def reading(rate: float, *, norm: bool = False, scale: float = 1.0) -> Callable[[int], Program]:
    """A rate of its own for queries and keys."""

    def build(seed: int) -> Program:
        task, model = markov(seed, TOKENS, LENGTH, 16), Reader(norm)
        fast = [*model.attention["query"].parameters(), *model.attention["key"].parameters()]
        rest = [p for p in model.parameters() if all(p is not one for one in fast)]
        optimizer = torch.optim.AdamW([{"params": fast, "lr": rate}, {"params": rest, "lr": 2e-3}])
        losses: list[float] = []

        def run() -> None:
            for _, (x, y) in zip(range(230), task, strict=False):
                optimizer.zero_grad()
                loss = token_loss(model(x), y)
                (loss * scale).backward()
                optimizer.step()
                losses.append(loss.item())

        return Program(
            model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss)
        )

    return build


def large_logits(level: float = 20.0) -> Fact:
    """The largest logit is above a level at the end."""

    def fact(played: Played) -> tuple[bool, str]:
        tokens = torch.randint(TOKENS, (32, LENGTH), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            reached = played.program.model.largest_logit(tokens)
        return reached > level, f"the largest logit is {reached:.3g}"

    return fact


usual = zoo.healthy("reader-usual-rate", reading(2e-3))
bounded = zoo.healthy("reader-fast-qk-norm", reading(0.05, norm=True))
for name, how in {"fast": {}, "fast-loss-times-1e4": {"scale": 1e4}}.items():
    zoo.sick(
        f"reader-{name}-queries-and-keys",
        reading(0.05, **how),
        broken(large_logits()),
        "attention_logits",
        also={*BROKEN, "ENTROPY_COLLAPSE"},
        control=bounded,
    )
