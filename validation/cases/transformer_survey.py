# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Transformers with one fault of each kind, their twins, and odd healthy ones.

Half: holdout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.attention import equal_heads, heads_differ, sharp_attention, tokens_alike
from validation.evidence.signal import both, dead, equal_units, no_gradient, not_finite
from validation.evidence.training import diverges, does_not_move, learns_less, trains
from validation.labels import ALIKE, LOST, ONE, SHARP
from validation.nets.attention import (
    Attention,
    Block,
    LanguageModel,
    Latents,
    SetClassifier,
    Vision,
    sharpen,
    tie_heads,
    torch_encoder,
)
from validation.nets.dense import Lambda, OwnNorm
from validation.setups import biased, pair, rated, vision
from validation.tasks import markov, patches

FAST = trains(lr=3e-3, steps=30)
zoo = Zoo("transformer", half="holdout", analyzer="transformer", proof=FAST)


FAST = trains(lr=3e-3, steps=30)


def words(seed: int, depth: int = 3, heads: int = 3, **more) -> Setup:
    """A language model of width 36 over 17 tokens."""
    return pair(LanguageModel(17, 36, heads, depth, **more), markov(seed, 17, 12, 20))


# --- attention that is too sharp

language = zoo.healthy("language-model-gelu-3x36", words)
zoo.sick(
    "language-model-3x36-second-keys-times-300",
    lambda s: sharpened(words(s), 300.0, "blocks.1.attention"),
    sharp_attention("blocks.1.attention", others_above=0.4),
    "ENTROPY_COLLAPSE",
    layer=("blocks.1.attention.key", "blocks.1.attention.query"),
    also=SHARP,
    control=language,
)


def sharpened(setup: Setup, factor: float, *paths: str) -> Setup:
    sharpen(setup.model, factor, *paths, part="key")
    return setup


encoder = zoo.healthy("encoder-torch-4x32", lambda s: pair(torch_encoder(4, 32, 4, 48, "gelu"), patches(s, 12)))
zoo.sick(
    "encoder-torch-4x32-all-keys-times-400",
    lambda s: pair(sharpen(torch_encoder(4, 32, 4, 48, "gelu"), 400.0, part="key"), patches(s, 12)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=encoder,
)


@torch.no_grad()
def unscaled(seed: int, temperature: float) -> Setup:
    """Queries of the third block come without the division by the root of the width, and more."""
    model = Vision(30, 5, 4)
    model.blocks[2].attention.query.weight /= temperature
    return vision(seed, model)


picture = zoo.healthy("vision-4x30-5-heads", lambda s: unscaled(s, 1.0))
zoo.sick(
    "vision-4x30-third-temperature-1-in-300",
    lambda s: unscaled(s, 1 / 300),
    sharp_attention("blocks.2.attention", others_above=0.4),
    "ENTROPY_COLLAPSE",
    layer=("blocks.2.attention.key", "blocks.2.attention.query"),
    also=SHARP,
    control=picture,
)

# --- tokens that become one, heads that are one


def bare(depth: int) -> SetClassifier:
    """Attention after attention, with nothing beside it."""
    return SetClassifier(24, 32, [Attention(32, 2) for _ in range(depth)], 6)


zoo.sick(
    "six-attentions-with-nothing-beside",
    lambda s: pair(bare(6), patches(s, 16)),
    tokens_alike("layers.5"),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=encoder,
)
zoo.sick(
    "language-less-encoder-10x40-skips-off",
    lambda s: pair(SetClassifier(24, 40, [Block(40, 4, skip=False) for _ in range(10)], 6), patches(s, 12)),
    tokens_alike("layers.9"),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=encoder,
)
varied = zoo.healthy(
    "vision-3x32-4-heads-keys-times-7",
    lambda s: vision(s, sharpen(Vision(32, 4, 3), 7.0, part="key")),
    both(FAST, heads_differ),
)
zoo.sick(
    "vision-3x32-second-heads-cloned",
    lambda s: vision(s, tie_heads(sharpen(Vision(32, 4, 3), 7.0, part="key"), "blocks.1.attention")),
    equal_heads("blocks.1.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"blocks.1.attention.{part}" for part in ("query", "key", "value")),
    also=ONE,
    control=varied,
)
zoo.sick(
    "encoder-torch-2x48-all-heads-cloned",
    lambda s: pair(
        tie_heads(
            sharpen(torch_encoder(2, 48, 6, 60, "gelu"), 8.0, part="key"), "layers.0.self_attn", "layers.1.self_attn"
        ),
        patches(s),
    ),
    equal_heads(),
    "HEAD_DIVERSITY",
    also=ONE,
    control=encoder,
)

# --- the faults of any network


relu = zoo.healthy("language-model-relu-3x36", lambda s: words(s, act=nn.ReLU))
zoo.sick(
    "language-model-relu-3x36-second-feed-forward-dead",
    lambda s: biased(LanguageModel(17, 36, 3, 3, act=nn.ReLU), "blocks.1.up", -28, markov(s, 17, 12, 20)),
    both(dead("blocks.1.act", 0.99), no_gradient("blocks.1.up")),
    "DEAD",
    layer="blocks.1.up",
    also={"DISCONNECTED"},
    control=relu,
)


def cut(seed: int) -> Setup:
    """The second of four layers hands on a detached copy."""
    layers = [Block(32, 4), Block(32, 4), Lambda(Tensor.detach), Block(32, 4)]
    return pair(SetClassifier(24, 32, layers, 6), patches(seed, 12))


zoo.sick(
    "encoder-3x32-detached-behind-second",
    cut,
    no_gradient("project", "layers.0", "layers.1"),
    "DISCONNECTED",
    layer=("layers.1.down", "layers.1.up", "layers.2"),
    also={"DEAD"},
    control=encoder,
)


@torch.no_grad()
def same_units(seed: int) -> Setup:
    setup = words(seed, 2)
    block = setup.model.blocks[0]
    block.up.weight.copy_(block.up.weight[:1].expand_as(block.up.weight).clone())
    block.down.weight.copy_(block.down.weight[:, :1].expand_as(block.down.weight).clone() / 4)
    block.up.bias.zero_()
    return setup


zoo.sick(
    "language-model-2x36-first-feed-forward-of-equal-units",
    same_units,
    equal_units("blocks.0.up.weight"),
    "SYMMETRY",
    layer=("blocks.0.up", "blocks.0.down"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=language,
)


class Factorised(LanguageModel):
    """The head reads the last state through a few numbers."""

    def __init__(self, narrow: int) -> None:
        super().__init__(30, 36, 4, 2)
        self.head = nn.Sequential(nn.Linear(36, narrow), nn.Linear(narrow, 30))


tokens = zoo.healthy("language-model-2x36-head-through-28", lambda s: pair(Factorised(28), markov(s, 30, 12, 24)))
zoo.sick(
    "language-model-2x36-head-through-1-for-30-tokens",
    lambda s: pair(Factorised(1), markov(s, 30, 12, 24)),
    learns_less(steps=80, lr=5e-3, by=0.12),
    "BOTTLENECK",
    layer=("head.0", "head.1"),
    also={"LOW_RANK"},
    control=tokens,
)


def padded(seed: int, eps: float) -> Setup:
    """The last token is padding; the projection has no bias, so it stays zero."""
    model = SetClassifier(24, 32, [OwnNorm(eps, -1), Block(32, 4), Block(32, 4)], 6)
    nn.init.zeros_(model.project.bias)
    return pair(model, patches(seed, 9).mapped(lambda x: torch.cat([x[:, :-1], 0 * x[:, -1:]], dim=1)))


safe = zoo.healthy("own-norm-of-padding-with-eps", lambda s: padded(s, 1e-5))
zoo.sick(
    "own-norm-of-padding-without-eps",
    lambda s: padded(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("project", "layers.0"),
    control=safe,
)
zoo.sick(
    "language-model-2x36-sgd-1e-8",
    lambda s: rated(LanguageModel(17, 36, 3, 2), markov(s, 17, 12, 20), "SGD", 1e-8, 20),
    does_not_move(),
    "SLOW",
    control=language,
)
zoo.sick(
    "language-model-3x36-adamw-4",
    lambda s: rated(LanguageModel(17, 36, 3, 3), markov(s, 17, 12, 20), "AdamW", 4.0, 15),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also=LOST,
    control=language,
)

# --- odd and healthy

zoo.healthy("language-model-one-head-2x36", lambda s: words(s, 2, 1))
zoo.healthy("language-model-post-norm-3x36", lambda s: words(s, norm="post"))
zoo.healthy("language-model-tied-4x36", lambda s: words(s, 4, tied=True))
zoo.healthy("latents-8-of-width-24-2-rounds", lambda s: pair(Latents(24, 3, 2, count=8), patches(s, 30)))
zoo.healthy(
    "encoder-torch-post-norm-2x40",
    lambda s: pair(torch_encoder(2, 40, 5, 160, "gelu", norm_first=False), patches(s, 6, batch=40)),
)
zoo.healthy("vision-dropout-0.2-2x28", lambda s: vision(s, Vision(28, 4, 2, dropout=0.2)))
