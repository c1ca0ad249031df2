"""The small networks of the demo, each written as people write them, faults included."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY: Final = 20
LENGTH: Final = 16


class Attention(nn.Module):
    """Causal self-attention. `annealing` below 1 is a bug: a temperature that falls with every step, without end."""

    def __init__(self, width: int, heads: int, annealing: float = 1.0) -> None:
        super().__init__()
        self.heads, self.annealing = heads, annealing
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("temperature", torch.ones(()))
        self.temperature: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens of `x` (batch, tokens, width)."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q / self.temperature, k, v, is_causal=True)
        if self.training:
            self.temperature = self.temperature * self.annealing
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]  # modules


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, annealing: float = 1.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, annealing)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention and a feed-forward part, each beside a skip connection."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]  # modules return Any


class LanguageModel(nn.Module):
    """A causal transformer over tokens."""

    def __init__(self, depth: int = 3, width: int = 32, heads: int = 4, annealing: float = 1.0) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width, heads, annealing) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every place."""
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]  # modules return Any


def stack(sizes: list[int], activation: type[nn.Module], initialise: Callable[[Tensor], object]) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        initialise(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])
