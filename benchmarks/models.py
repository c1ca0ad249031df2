"""Models and gradients that the benchmarks share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder-only transformer with a tied head; 14 M parameters as given."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 6, vocabulary: int = 8192, length: int = 256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def gpt_loss(model: nn.Module, batch: int = 4, length: int = 128, vocabulary: int = 8192) -> torch.Tensor:
    """The loss on random tokens."""
    tokens = torch.randint(vocabulary, (batch, length + 1))
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def transformer_gradients(scale: float = 1e-3) -> list[torch.Tensor]:
    """33.9 M fp32 gradients in 98 tensors: eight blocks of width 512, token and position embedding."""
    width = 512
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,)]
    block += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    shapes = block * 8 + [(16_700, width), (256, width)]
    return [torch.randn(shape) * scale for shape in shapes]
