# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers that look odd and are healthy.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import converged, trains
from validation.nets.attention import (
    Attention,
    Block,
    LanguageModel,
    Latents,
    SetClassifier,
    Vision,
    block_encoder,
    refit,
    torch_encoder,
)
from validation.nets.dense import Lora
from validation.setups import frozen, pair, pretrain, vision
from validation.tasks import markov, patches

FAST = trains(lr=3e-3, steps=30)
zoo = Zoo("transformer", half="tune", analyzer="transformer", proof=FAST)


# --- norms, starts, sinks, gates

zoo.healthy("encoder-pre-norm-10x32", lambda s: pair(torch_encoder(10, 32, 4), patches(s)), trains(lr=1e-3, steps=20))
zoo.healthy(
    "encoder-post-norm-12x32-at-init",
    lambda s: pair(torch_encoder(12, 32, 4, norm_first=False), patches(s)),
    trains(lr=3e-4, steps=40, fall=0.05),
)
zoo.healthy(
    "own-post-norm-6x32-at-init",
    lambda s: pair(block_encoder(6, 32, 4, 10, norm="post"), patches(s)),
    trains(lr=1e-3, steps=30),
)
zoo.healthy("language-model-tied-head-3x32", lambda s: pair(LanguageModel(20, 32, 4, 3, tied=True), markov(s)))
zoo.healthy("encoder-dropout-0.3", lambda s: pair(torch_encoder(2, 32, 4, dropout=0.3), patches(s)))


@torch.no_grad()
def gpt_(model: nn.Module) -> nn.Module:
    """Weights of deviation 0.02: attention is as good as even at first, and heads alike in that."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(std=0.02)
            module.bias.zero_()
    return model


@torch.no_grad()
def quiet_(model: nn.Module) -> nn.Module:
    """Branches end with zeros."""
    for block in model.layers:
        block.attention.out.weight.zero_()
        block.down.weight.zero_()
    return model


class Sink(Attention):
    """Some heads look at the first token nearly always, as in trained language models."""

    def __init__(self, width: int, heads: int, sinks: int) -> None:
        super().__init__(width, heads, causal=False)
        self.sinks = sinks

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        bias = torch.zeros(self.heads, length, length)
        bias[: self.sinks, :, 0] = 8.0
        return super().forward(x, mask=bias.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf))


def sinks(depth: int, width: int, heads: int, count: int, seed: int) -> Setup:
    return pair(refit(LanguageModel(20, width, heads, depth), lambda: Sink(width, heads, count)), markov(seed))


class Gated(nn.Module):
    """Root-mean-square norms and a gated feed-forward without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.norm2, self.gate = nn.RMSNorm(width), nn.Linear(width, 2 * width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def lora(seed: int) -> Setup:
    model = block_encoder(3, 32, 4, 10).requires_grad_(False)
    for block in model.layers:
        block.attention.query = Lora(block.attention.query, 4)
        block.attention.value = Lora(block.attention.value, 4)
    model.head.requires_grad_(True)
    return pair(model, patches(seed))


zoo.healthy("gpt-init-even-attention-4x32", lambda s: pair(gpt_(LanguageModel(20, 32, 4, 4)), markov(s)))
zoo.healthy("gpt-init-even-attention-2x64", lambda s: pair(gpt_(block_encoder(2, 64, 8, 10)), patches(s)))
zoo.healthy("zero-init-branches-4x32", lambda s: pair(quiet_(block_encoder(4, 32, 4, 10)), patches(s)))
zoo.healthy("one-sink-head-of-4", lambda s: sinks(3, 32, 4, 1, s))
zoo.healthy("two-sink-heads-of-6", lambda s: sinks(2, 48, 6, 2, s))
zoo.healthy(
    "rms-norm-gated-3x32", lambda s: pair(SetClassifier(24, 32, [Gated(32, 4) for _ in range(3)], 6, 10), patches(s))
)
zoo.healthy("lora-on-queries-and-values", lora, trains(lr=1e-2, steps=30, fall=0.05))
zoo.healthy("silu-blocks-2x32", lambda s: pair(block_encoder(2, 32, 4, 10, act=nn.SiLU), patches(s)))

# --- other attention, shared and frozen parts


class Near(Attention):
    """Scores fall with distance, each head at its own rate, so some heads see next to nothing but themselves."""

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        place = torch.arange(x.shape[1])
        slopes = 2.0 ** -torch.arange(self.heads)
        bias = -slopes[:, None, None] * (place[:, None] - place).abs()
        return super().forward(x, mask=bias.masked_fill(place > place[:, None], -torch.inf))


def with_distances(seed: int) -> Setup:
    return pair(refit(LanguageModel(20, 32, 4, 2), lambda: Near(32, 4)), markov(seed))


class Windowed(Attention):
    """Each token sees itself and two before."""

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        place = torch.arange(x.shape[1])
        back = place[:, None] - place
        return super().forward(x, mask=(back >= 0) & (back <= 2))


def windowed(seed: int) -> Setup:
    return pair(refit(LanguageModel(20, 36, 3, 3), lambda: Windowed(36, 3)), markov(seed))


class OneKey(nn.Module):
    """Many query heads share one head of keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.query, self.shared = nn.Linear(width, width), nn.Linear(width, 2 * width // heads)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q = self.query(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t[:, None].expand_as(q) for t in self.shared(h).chunk(2, dim=-1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Parallel(nn.Module):
    """Attention and feed-forward side by side under one norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.attention(h) + self.down(F.silu(self.up(h)))


class Switch(nn.Module):
    """Sends each token to one of six feed-forwards: in a small batch some rest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, 4), nn.LayerNorm(width), nn.LayerNorm(width)
        self.router = nn.Linear(width, 6)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        flat = self.norm2(x).flatten(0, 1)
        share, chosen = self.router(flat).softmax(dim=-1).max(dim=-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * share[rows, None])
        return x + out.view_as(x)


class Shared(nn.Module):
    """One block, used six times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.block, self.head = nn.Linear(24, width), Block(width, 4), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        for _ in range(6):
            x = self.block(x)
        return self.head(x.mean(dim=1))


class Prompted(nn.Module):
    """A frozen body with learned prompts in front and a new head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, width), Block(width, 4), Block(width, 4)).requires_grad_(False)
        self.prompts, self.head = nn.Parameter(torch.randn(1, 4, width) * 0.3), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.prompts.expand(len(x), -1, -1), self.body[0](x)], dim=1)
        return self.head(self.body[2](self.body[1](x)).mean(dim=1))


class Rotary(Attention):
    """Queries and keys turn with their place."""

    def turn(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] / 100 ** (torch.arange(half) / half)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.turn(self.split(self.query(x))), self.turn(self.split(self.key(x))), self.split(self.value(x))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def rotary(seed: int) -> Setup:
    model = refit(LanguageModel(20, 40, 5, 2), lambda: Rotary(40, 5))
    nn.init.zeros_(model.position.weight)
    return pair(model, markov(seed))


def lora_feed_forward(seed: int) -> Setup:
    model = Vision(28, 4, 2).requires_grad_(False)
    for block in model.blocks:
        block.up, block.down = Lora(block.up, 3), Lora(block.down, 3)
    model.head.requires_grad_(True)
    return vision(seed, model)


zoo.healthy("distance-biases-per-head", with_distances)
zoo.healthy("window-of-three-tokens", windowed)
zoo.healthy(
    "one-key-head-for-6-queries",
    lambda s: pair(SetClassifier(24, 36, [OneKey(36, 6) for _ in range(3)], 6, 10), patches(s)),
)
zoo.healthy(
    "parallel-blocks-3x32",
    lambda s: pair(SetClassifier(24, 32, [Parallel(32, 4) for _ in range(3)], 6, 10), patches(s)),
)
zoo.healthy(
    "switch-of-6-experts-batch-2",
    lambda s: pair(SetClassifier(24, 32, [Switch(32), Switch(32)], 4, 6), patches(s, 6, 24, 4, 2)),
    trains(lr=3e-3, steps=80, fall=0.05),
)
zoo.healthy("one-block-six-times", lambda s: pair(Shared(32), patches(s)))
zoo.healthy("learned-prompts-frozen-body", lambda s: pair(Prompted(32), patches(s)), trains(lr=1e-2))
zoo.healthy("rotary-places-2x40", rotary)
zoo.healthy("lora-rank-3-on-feed-forwards", lora_feed_forward, trains(lr=1e-2, steps=60, fall=0.05))
zoo.healthy(
    "vision-post-norm-7x24-at-init",
    lambda s: vision(s, Vision(24, 3, 7, norm="post")),
    trains(lr=1e-3, steps=40, fall=0.05),
)
zoo.healthy(
    "encoder-pre-norm-14x24",
    lambda s: pair(torch_encoder(14, 24, 2, 48, "gelu"), patches(s)),
    trains(lr=1e-3, steps=30),
)
zoo.healthy(
    "language-model-batch-1-length-40",
    lambda s: pair(LanguageModel(20, 28, 4, 2), markov(s, 20, 40, 1)),
    trains(lr=3e-3, steps=60),
)
zoo.healthy(
    "language-model-tied-loss-times-1e4",
    lambda s: pair(LanguageModel(30, 40, 4, 2, tied=True), markov(s, 30).scaled(1e4)),
    trains(lr=3e-3, steps=60),
)
zoo.healthy(
    "language-model-frozen-embedding",
    lambda s: pair(frozen(LanguageModel(20, 32, 4, 3), "embedding", "position"), markov(s)),
)
zoo.healthy(
    "latents-2-rounds-dropped-tokens",
    lambda s: pair(nn.Sequential(nn.Dropout1d(0.3), Latents(28, 4, 2)), patches(s, 30)),
)
zoo.healthy("encoder-that-knows-its-batch", lambda s: learned(s), converged(0.05))


def learned(seed: int) -> Setup:
    setup = pair(SetClassifier(24, 24, [Block(24, 4), Block(24, 4)], 6, 10), patches(seed, batch=16).fixed())
    return pretrain(setup, 60, 3e-3)
