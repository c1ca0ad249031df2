# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers that look odd and are healthy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_training import trains
from validation.nets import Attention, LanguageModel, Lora, SetClassifier
from validation.setups import pair
from validation.tasks import markov, patches
from validation.zoo_transformer import FAST, encoder, language, own

zoo = Zoo("transformer", "transformer", FAST)

zoo.healthy(
    "encoder-pre-norm-10x32", "tune", lambda s: pair(encoder(10, 32, 4, True), patches(s)), trains(lr=1e-3, steps=20)
)
zoo.healthy(
    "encoder-post-norm-12x32-at-init",
    "tune",
    lambda s: pair(encoder(12, 32, 4, False), patches(s)),
    trains(lr=3e-4, steps=40, fall=0.05),
)
zoo.healthy(
    "own-post-norm-6x32-at-init",
    "tune",
    lambda s: pair(own(6, 32, 4, 10, norm="post"), patches(s)),
    trains(lr=1e-3, steps=30),
)
zoo.healthy("language-model-tied-head-3x32", "tune", lambda s: language(3, 32, 4, s, tied=True))
zoo.healthy("encoder-dropout-0.3", "tune", lambda s: pair(encoder(2, 32, 4, True, 0.3), patches(s)))


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
    model = LanguageModel(20, width, heads, depth)
    for block in model.blocks:
        block.attention = Sink(width, heads, count)
    return pair(model, markov(seed))


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
    model = own(3, 32, 4, 10).requires_grad_(False)
    for block in model.layers:
        block.attention.query = Lora(block.attention.query, 4)
        block.attention.value = Lora(block.attention.value, 4)
    model.head.requires_grad_(True)
    return pair(model, patches(seed))


zoo.healthy("gpt-init-even-attention-4x32", "tune", lambda s: pair(gpt_(LanguageModel(20, 32, 4, 4)), markov(s)))
zoo.healthy("gpt-init-even-attention-2x64", "tune", lambda s: pair(gpt_(own(2, 64, 8, 10)), patches(s)))
zoo.healthy("zero-init-branches-4x32", "tune", lambda s: pair(quiet_(own(4, 32, 4, 10)), patches(s)))
zoo.healthy("one-sink-head-of-4", "tune", lambda s: sinks(3, 32, 4, 1, s))
zoo.healthy("two-sink-heads-of-6", "tune", lambda s: sinks(2, 48, 6, 2, s))
zoo.healthy(
    "rms-norm-gated-3x32",
    "tune",
    lambda s: pair(SetClassifier(24, 32, [Gated(32, 4) for _ in range(3)], 6, 10), patches(s)),
)
zoo.healthy("lora-on-queries-and-values", "tune", lora, trains(lr=1e-2, steps=30, fall=0.05))
zoo.healthy("silu-blocks-2x32", "tune", lambda s: pair(own(2, 32, 4, 10, act=nn.SiLU), patches(s)))
