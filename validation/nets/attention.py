# ruff: noqa: D102 - a forward is explained by its class
"""Transformers, and what faults do to their heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.nets.dense import Activation


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, length, width) → (batch, heads, length, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """The way back."""
    return x.transpose(1, 2).flatten(2)


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """The usual scores."""
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def torch_layers(depth: int, width: int = 32, heads: int = 4, **more: Any) -> list[nn.Module]:
    """Layers of torch, batch first, without dropout unless told."""
    settings = {"dropout": 0.0, "batch_first": True, **more}
    return [nn.TransformerEncoderLayer(width, heads, 2 * width, **settings) for _ in range(depth)]


class Attention(nn.Module):
    """Multi-head self-attention or cross-attention with separate projections."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, length, width / heads)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class OneLayer(nn.Module):
    """One layer of torch's own encoder over tokens and their places, with an answer at every place."""

    def __init__(self, vocabulary: int = 8, length: int = 8, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(vocabulary, width), nn.Parameter(0.5 * torch.randn(1, length, width))
        self.layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.table(tokens) + self.place))


class Block(nn.Module):
    """Attention and feed-forward, with the norm before, after or nowhere, and with or without skips."""

    def __init__(
        self,
        width: int,
        heads: int,
        norm: str = "pre",
        causal: bool = False,
        skip: bool = True,
        act: Activation = nn.GELU,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm, self.skip, self.dropout = norm, skip, dropout
        self.norm1 = nn.LayerNorm(width) if norm != "none" else nn.Identity()
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width) if norm != "none" else nn.Identity()
        self.up, self.act, self.down = nn.Linear(width, 2 * width), act(), nn.Linear(2 * width, width)

    def step(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        change = F.dropout(branch(norm(x) if self.norm == "pre" else x), self.dropout, self.training)
        x = x + change if self.skip else change
        return norm(x) if self.norm == "post" else x

    def forward(self, x: Tensor) -> Tensor:
        x = self.step(x, self.attention, self.norm1)
        return self.step(x, lambda h: self.down(self.act(self.up(h))), self.norm2)


class LanguageModel(nn.Module):
    """Token and position embedding, causal blocks, final norm, head that may share the embedding's weight."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, depth: int, length: int = 64, tied: bool = False, **block
    ) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.normal_(self.position.weight, std=0.5)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True, **block) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def refit(model: LanguageModel, make: Callable[[], Attention]) -> LanguageModel:
    """Give every block an attention of another kind."""
    for block in model.blocks:
        block.attention = make()
    return model


class SetClassifier(nn.Module):
    """Projects vectors, runs `layers` over them, classifies their mean: a small ViT without pictures."""

    def __init__(self, dim: int, width: int, layers: Sequence[nn.Module], classes: int, length: int = 0) -> None:
        super().__init__()
        self.project = nn.Linear(dim, width)
        self.position = nn.Embedding(length, width) if length else None
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        if self.position is not None:
            x = x + self.position.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class Vision(nn.Module):
    """Cuts a picture into squares of 2×2, adds a class token and positions, classifies by that token."""

    def __init__(self, width: int, heads: int, depth: int, classes: int = 6, channels: int = 1, **block) -> None:
        super().__init__()
        self.patch = nn.Conv2d(channels, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.5)
        self.position = nn.Parameter(torch.randn(1, 17, width) * 0.5)
        self.blocks = nn.Sequential(*(Block(width, heads, **block) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Latents(nn.Module):
    """A few learned vectors read a long set by cross-attention, again and again."""

    def __init__(self, width: int, heads: int, rounds: int, skip: bool = True, count: int = 5) -> None:
        super().__init__()
        self.project = nn.Linear(24, width)
        self.latent = nn.Parameter(torch.randn(1, count, width))
        self.read = nn.ModuleList(Attention(width, heads) for _ in range(rounds))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(rounds))
        self.think = nn.ModuleList(Block(width, heads, skip=skip) for _ in range(rounds))
        self.head, self.skip = nn.Linear(width, 6), skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        z = self.latent.expand(len(x), -1, -1)
        for read, norm, think in zip(self.read, self.norms, self.think, strict=True):
            news = read(norm(z), x)
            z = think(z + news if self.skip else news)
        return self.head(z.mean(dim=1))


def torch_encoder(
    depth: int,
    width: int,
    heads: int,
    feed: int = 0,
    act: str = "relu",
    dropout: float = 0.0,
    norm_first: bool = True,
) -> SetClassifier:
    """Stack torch's own encoder layers; the feed-forward is `feed` wide, by default twice the width."""
    layers = [
        nn.TransformerEncoderLayer(
            width, heads, feed or 2 * width, dropout, act, batch_first=True, norm_first=norm_first
        )
        for _ in range(depth)
    ]
    return SetClassifier(24, width, layers, 6)


def attentions(model: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """The attention modules at these paths, or all of them."""
    kinds = (Attention, nn.MultiheadAttention)
    return [m for path, m in model.named_modules() if isinstance(m, kinds) and (not paths or path in paths)]


@torch.no_grad()
def sharpen(model: nn.Module, factor: float, *paths: str, part: str = "query") -> nn.Module:
    """Multiply the queries or the keys, and with them the logits."""
    for module in attentions(model, paths):
        if isinstance(module, Attention):
            getattr(module, part).weight.mul_(factor)
        else:
            module.in_proj_weight.chunk(3)[("query", "key").index(part)].mul_(factor)
    return model


@torch.no_grad()
def tie_heads(model: nn.Module, *paths: str) -> nn.Module:
    """Give every head the queries, keys and values of the first, as copying a checkpoint wrongly does."""
    for module in attentions(model, paths):
        if isinstance(module, Attention):
            for part in (module.query, module.key, module.value):
                size = part.out_features // module.heads
                part.weight.copy_(part.weight[:size].repeat(module.heads, 1))
                part.bias.copy_(part.bias[:size].repeat(module.heads))
        else:
            size = module.embed_dim // module.num_heads
            for part in module.in_proj_weight.chunk(3):
                part.copy_(part[:size].repeat(module.num_heads, 1))
            module.in_proj_bias.zero_()
    return model


def block_encoder(depth: int, width: int, heads: int, length: int = 0, **block) -> SetClassifier:
    """Stack blocks of this library over sets of vectors."""
    return SetClassifier(24, width, [Block(width, heads, **block) for _ in range(depth)], 6, length)
