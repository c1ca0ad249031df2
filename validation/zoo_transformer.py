# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Transformers whose attention is at fault: too sharp, of one rank, with equal heads."""

from __future__ import annotations

import torch
from torch import nn

from validation.case import Setup, Zoo
from validation.evidence_special import equal_heads, sharp_attention, tokens_alike
from validation.evidence_training import trains
from validation.nets import Attention, Block, LanguageModel, SetClassifier
from validation.setups import pair
from validation.tasks import markov, patches

FAST = trains(lr=3e-3, steps=30)
zoo = Zoo("transformer", "transformer", FAST)


def encoder(depth: int, width: int, heads: int, norm_first: bool, dropout: float = 0.0) -> SetClassifier:
    """torch's own encoder layers."""
    layers = [
        nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True, norm_first=norm_first)
        for _ in range(depth)
    ]
    return SetClassifier(24, width, layers, 6)


def own(depth: int, width: int, heads: int, length: int = 0, **block) -> SetClassifier:
    return SetClassifier(24, width, [Block(width, heads, **block) for _ in range(depth)], 6, length)


def language(depth: int, width: int, heads: int, seed: int, **more) -> Setup:
    return pair(LanguageModel(20, width, heads, depth, **more), markov(seed))


# --- attention that is too sharp

pre_norm = zoo.healthy("encoder-pre-norm-3x32", "tune", lambda s: pair(encoder(3, 32, 4, True), patches(s)))


@torch.no_grad()
def sharpen(model: nn.Module, factor: float, *paths: str) -> nn.Module:
    """Multiply queries, and with them the logits, by `factor`."""
    for path, module in model.named_modules():
        if paths and path not in paths:
            continue
        if isinstance(module, Attention):
            module.query.weight *= factor
        elif isinstance(module, nn.MultiheadAttention):
            module.in_proj_weight[: module.embed_dim] *= factor
    return model


zoo.sick(
    "encoder-3x32-queries-times-100",
    "tune",
    lambda s: pair(sharpen(encoder(3, 32, 4, True), 100.0), patches(s)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also={"SATURATION", "EXPLODING", "UNSTABLE"},
    control=pre_norm,
)
lm_4 = zoo.healthy("language-model-4x32", "tune", lambda s: language(4, 32, 4, s))
zoo.sick(
    "language-model-4x32-third-queries-times-200",
    "tune",
    lambda s: pair(sharpen(LanguageModel(20, 32, 4, 4), 200.0, "blocks.2.attention"), markov(s)),
    sharp_attention("blocks.2.attention", others_above=0.5),
    "ENTROPY_COLLAPSE",
    layer=("blocks.2.attention.query", "blocks.2.attention.key"),
    also={"SATURATION", "EXPLODING", "UNSTABLE"},
    control=lm_4,
)
vit = zoo.healthy("patches-with-positions-3x48", "tune", lambda s: pair(own(3, 48, 6, 10), patches(s)))
zoo.sick(
    "patches-3x48-queries-times-150",
    "tune",
    lambda s: pair(sharpen(own(3, 48, 6, 10), 150.0), patches(s)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also={"SATURATION", "EXPLODING", "UNSTABLE"},
    control=vit,
)
post_norm = zoo.healthy("encoder-post-norm-4x40", "tune", lambda s: pair(encoder(4, 40, 2, False), patches(s)))
zoo.sick(
    "encoder-post-norm-4x40-second-queries-times-150",
    "tune",
    lambda s: pair(sharpen(encoder(4, 40, 2, False), 150.0, "layers.1.self_attn"), patches(s)),
    sharp_attention("layers.1.self_attn", others_above=0.5),
    "ENTROPY_COLLAPSE",
    layer="layers.1.self_attn",
    also={"SATURATION", "EXPLODING", "UNSTABLE"},
    control=post_norm,
)

# --- tokens that become one

zoo.sick(
    "attention-only-10x32",
    "tune",
    lambda s: pair(SetClassifier(24, 32, [Attention(32, 4) for _ in range(10)], 6), patches(s)),
    tokens_alike("layers.9"),
    "RANK_COLLAPSE",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=pre_norm,
)
zoo.sick(
    "pre-norm-blocks-without-skips-7x32",
    "tune",
    lambda s: pair(own(7, 32, 4, act=nn.ReLU, skip=False), patches(s)),
    tokens_alike("layers.6"),
    "RANK_COLLAPSE",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "EXPLODING", "DEAD"},
    control=pre_norm,
)
zoo.sick(
    "blocks-without-skips-8x48",
    "tune",
    lambda s: pair(own(8, 48, 4, 10, norm="none", skip=False), patches(s)),
    tokens_alike("layers.7"),
    "RANK_COLLAPSE",
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK"},
    control=vit,
)
zoo.sick(
    "attention-only-with-norm-6x24",
    "tune",
    lambda s: pair(
        SetClassifier(24, 24, [nn.Sequential(Attention(24, 2), nn.LayerNorm(24)) for _ in range(6)], 6), patches(s)
    ),
    tokens_alike("layers.5"),
    "RANK_COLLAPSE",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "EXPLODING"},
    control=vit,
)

# --- heads that are one


@torch.no_grad()
def tie_heads(model: nn.Module, *paths: str) -> nn.Module:
    """Give every head the queries, keys and values of the first, as copying a checkpoint wrongly does."""
    for path, module in model.named_modules():
        if paths and path not in paths:
            continue
        if isinstance(module, Attention):
            weights = [module.query, module.key, module.value]
            for part in weights:
                size = part.out_features // module.heads
                part.weight.copy_(part.weight[:size].repeat(module.heads, 1))
                part.bias.copy_(part.bias[:size].repeat(module.heads))
        elif isinstance(module, nn.MultiheadAttention):
            size = module.embed_dim // module.num_heads
            for part in module.in_proj_weight.chunk(3):
                part.copy_(part[:size].repeat(module.num_heads, 1))
            module.in_proj_bias.zero_()
    return model


focused = zoo.healthy(
    "encoder-3x32-focused-heads", "tune", lambda s: pair(sharpen(encoder(3, 32, 4, True), 5.0), patches(s))
)
zoo.sick(
    "encoder-3x32-heads-tied",
    "tune",
    lambda s: pair(tie_heads(sharpen(encoder(3, 32, 4, True), 5.0)), patches(s)),
    equal_heads(),
    "HEAD_DIVERSITY",
    also={"SYMMETRY", "LOW_RANK", "BOTTLENECK"},
    control=focused,
)
zoo.sick(
    "language-model-4x32-second-heads-tied",
    "tune",
    lambda s: pair(tie_heads(sharpen(LanguageModel(20, 32, 4, 4), 6.0), "blocks.1.attention"), markov(s)),
    equal_heads("blocks.1.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"blocks.1.attention.{part}" for part in ("query", "key", "value")),
    also={"SYMMETRY", "LOW_RANK", "BOTTLENECK"},
    control=lm_4,
)
zoo.sick(
    "patches-4x48-third-heads-tied",
    "tune",
    lambda s: pair(tie_heads(sharpen(own(4, 48, 6, 10), 6.0), "layers.2.attention"), patches(s)),
    equal_heads("layers.2.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"layers.2.attention.{part}" for part in ("query", "key", "value")),
    also={"SYMMETRY", "LOW_RANK", "BOTTLENECK"},
    control=vit,
)
zoo.sick(
    "language-model-3x24-heads-tied",
    "tune",
    lambda s: pair(tie_heads(sharpen(LanguageModel(20, 24, 3, 3), 5.0)), markov(s)),
    equal_heads(),
    "HEAD_DIVERSITY",
    also={"SYMMETRY", "LOW_RANK", "BOTTLENECK"},
    control=vit,
)
