# ruff: noqa: D102 - a case is explained by its name, a forward by its class
"""Transformers whose attention is at fault: too sharp, of one rank, with equal heads. With their twins.

Half: tune.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, equal_heads, heads_differ, sharp_attention, tokens_alike, trains
from validation.labels import ALIKE, ONE, SHARP
from validation.nets.attention import (
    Attention,
    LanguageModel,
    Latents,
    SetClassifier,
    Vision,
    block_encoder,
    sharpen,
    tie_heads,
    torch_encoder,
)
from validation.setups import pair, vision
from validation.tasks import markov, patches

FAST = trains(lr=3e-3, steps=30)
zoo = Zoo("transformer", half="tune", analyzer="transformer", proof=FAST)


# --- attention that is too sharp

pre_norm = zoo.healthy("encoder-pre-norm-3x32", lambda s: pair(torch_encoder(3, 32, 4), patches(s)))
zoo.sick(
    "encoder-3x32-queries-times-100",
    lambda s: pair(sharpen(torch_encoder(3, 32, 4), 100.0), patches(s)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=pre_norm,
)
lm_4 = zoo.healthy("language-model-4x32", lambda s: pair(LanguageModel(20, 32, 4, 4), markov(s)))
zoo.sick(
    "language-model-4x32-third-queries-times-200",
    lambda s: pair(sharpen(LanguageModel(20, 32, 4, 4), 200.0, "blocks.2.attention"), markov(s)),
    sharp_attention("blocks.2.attention", others_above=0.5),
    "ENTROPY_COLLAPSE",
    layer=("blocks.2.attention.query", "blocks.2.attention.key"),
    also=SHARP,
    control=lm_4,
)
vit = zoo.healthy("patches-with-positions-3x48", lambda s: pair(block_encoder(3, 48, 6, 10), patches(s)))
zoo.sick(
    "patches-3x48-queries-times-150",
    lambda s: pair(sharpen(block_encoder(3, 48, 6, 10), 150.0), patches(s)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=vit,
)
post_norm = zoo.healthy("encoder-post-norm-4x40", lambda s: pair(torch_encoder(4, 40, 2, norm_first=False), patches(s)))
zoo.sick(
    "encoder-post-norm-4x40-second-queries-times-150",
    lambda s: pair(sharpen(torch_encoder(4, 40, 2, norm_first=False), 150.0, "layers.1.self_attn"), patches(s)),
    sharp_attention("layers.1.self_attn", others_above=0.5),
    "ENTROPY_COLLAPSE",
    layer="layers.1.self_attn",
    also=SHARP,
    control=post_norm,
)
picture = zoo.healthy("vision-class-token-3x24", lambda s: vision(s, Vision(24, 3, 3)))
zoo.sick(
    "vision-3x24-last-keys-times-250",
    lambda s: vision(s, sharpen(Vision(24, 3, 3), 250.0, "blocks.2.attention", part="key")),
    sharp_attention("blocks.2.attention", others_above=0.4),
    "ENTROPY_COLLAPSE",
    layer=("blocks.2.attention.key", "blocks.2.attention.query"),
    also=SHARP,
    control=picture,
)
encoder = zoo.healthy("encoder-gelu-2x36", lambda s: pair(torch_encoder(2, 36, 6, 100, "gelu"), patches(s, 14)))
zoo.sick(
    "encoder-gelu-5x36-first-keys-times-200",
    lambda s: pair(
        sharpen(torch_encoder(5, 36, 6, 100, "gelu"), 200.0, "layers.0.self_attn", part="key"), patches(s, 14)
    ),
    sharp_attention("layers.0.self_attn", others_above=0.4),
    "ENTROPY_COLLAPSE",
    layer="layers.0.self_attn",
    also=SHARP,
    control=encoder,
)


@torch.no_grad()
def loud(seed: int, size: float) -> Setup:
    """Without norms, embeddings of large numbers make logits of their square."""
    model = LanguageModel(20, 40, 4, 2, norm="none")
    model.embedding.weight.normal_(std=size)
    return pair(model, markov(seed))


quiet = zoo.healthy("language-model-without-norms-2x40", lambda s: loud(s, 0.5))
zoo.sick(
    "language-model-2x40-embeddings-of-size-40",
    lambda s: loud(s, 40.0),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    "EXPLODING",
    also={"SATURATION", "UNSTABLE"},
    control=quiet,
)
latents = zoo.healthy("latents-read-a-set-3-rounds", lambda s: pair(Latents(32, 4, 3), patches(s, 24)))
zoo.sick(
    "latents-3-rounds-all-keys-times-300",
    lambda s: pair(sharpen(Latents(32, 4, 3), 300.0, part="key"), patches(s, 24)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=latents,
)

# --- tokens that become one

zoo.sick(
    "attention-only-10x32",
    lambda s: pair(SetClassifier(24, 32, [Attention(32, 4) for _ in range(10)], 6), patches(s)),
    tokens_alike("layers.9"),
    "RANK_COLLAPSE",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=pre_norm,
)
zoo.sick(
    "pre-norm-blocks-without-skips-7x32",
    lambda s: pair(block_encoder(7, 32, 4, act=nn.ReLU, skip=False), patches(s)),
    tokens_alike("layers.6"),
    "RANK_COLLAPSE",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "EXPLODING", "DEAD"},
    control=pre_norm,
)
zoo.sick(
    "blocks-without-skips-8x48",
    lambda s: pair(block_encoder(8, 48, 4, 10, norm="none", skip=False), patches(s)),
    tokens_alike("layers.7"),
    "RANK_COLLAPSE",
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK"},
    control=vit,
)
zoo.sick(
    "attention-only-with-norm-6x24",
    lambda s: pair(
        SetClassifier(24, 24, [nn.Sequential(Attention(24, 2), nn.LayerNorm(24)) for _ in range(6)], 6), patches(s)
    ),
    tokens_alike("layers.5"),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=vit,
)
zoo.sick(
    "latents-8-rounds-without-skips",
    lambda s: pair(Latents(32, 4, 8, skip=False), patches(s, 24)),
    tokens_alike("think.7"),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=latents,
)
zoo.sick(
    "vision-9x24-without-skips",
    lambda s: vision(s, Vision(24, 3, 9, skip=False)),
    tokens_alike("blocks.8"),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=picture,
)


class FaintSkip(nn.Module):
    """Attention, nearly even at first, beside a skip of one twentieth."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm = Attention(width, heads), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(0.05 * x + self.attention(x))


zoo.sick(
    "encoder-8x36-skips-of-a-twentieth",
    lambda s: pair(SetClassifier(24, 36, [FaintSkip(36, 6) for _ in range(8)], 6), patches(s, 14)),
    tokens_alike("layers.7", 0.1),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=encoder,
)

# --- heads that are one

focused = zoo.healthy("encoder-3x32-focused-heads", lambda s: pair(sharpen(torch_encoder(3, 32, 4), 5.0), patches(s)))
zoo.sick(
    "encoder-3x32-heads-tied",
    lambda s: pair(tie_heads(sharpen(torch_encoder(3, 32, 4), 5.0)), patches(s)),
    equal_heads(),
    "HEAD_DIVERSITY",
    also=ONE,
    control=focused,
)
zoo.sick(
    "language-model-4x32-second-heads-tied",
    lambda s: pair(tie_heads(sharpen(LanguageModel(20, 32, 4, 4), 6.0), "blocks.1.attention"), markov(s)),
    equal_heads("blocks.1.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"blocks.1.attention.{part}" for part in ("query", "key", "value")),
    also=ONE,
    control=lm_4,
)
zoo.sick(
    "patches-4x48-third-heads-tied",
    lambda s: pair(tie_heads(sharpen(block_encoder(4, 48, 6, 10), 6.0), "layers.2.attention"), patches(s)),
    equal_heads("layers.2.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"layers.2.attention.{part}" for part in ("query", "key", "value")),
    also=ONE,
    control=vit,
)
zoo.sick(
    "language-model-3x24-heads-tied",
    lambda s: pair(tie_heads(sharpen(LanguageModel(20, 24, 3, 3), 5.0)), markov(s)),
    equal_heads(),
    "HEAD_DIVERSITY",
    also=ONE,
    control=vit,
)
varied = zoo.healthy(
    "encoder-gelu-3x40-keys-times-6",
    lambda s: pair(sharpen(torch_encoder(3, 40, 5, 64, "gelu"), 6.0, part="key"), patches(s, 14)),
    both(FAST, heads_differ),
)
varied_words = zoo.healthy(
    "language-model-5x30-keys-times-6",
    lambda s: pair(sharpen(LanguageModel(20, 30, 3, 5), 6.0, part="key"), markov(s)),
    both(FAST, heads_differ),
)
zoo.sick(
    "encoder-gelu-3x40-last-heads-cloned",
    lambda s: pair(
        tie_heads(sharpen(torch_encoder(3, 40, 5, 64, "gelu"), 6.0, part="key"), "layers.2.self_attn"), patches(s, 14)
    ),
    equal_heads("layers.2.self_attn"),
    "HEAD_DIVERSITY",
    layer="layers.2.self_attn",
    also=ONE,
    control=varied,
)
zoo.sick(
    "vision-2x32-8-heads-cloned",
    lambda s: vision(
        s, tie_heads(sharpen(Vision(32, 8, 2), 8.0, part="key"), "blocks.0.attention", "blocks.1.attention")
    ),
    equal_heads(),
    "HEAD_DIVERSITY",
    also=ONE,
    control=picture,
)
zoo.sick(
    "language-model-5x30-first-heads-cloned",
    lambda s: pair(tie_heads(sharpen(LanguageModel(20, 30, 3, 5), 6.0, part="key"), "blocks.0.attention"), markov(s)),
    equal_heads("blocks.0.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"blocks.0.attention.{part}" for part in ("query", "key", "value")),
    also=ONE,
    control=varied_words,
)
