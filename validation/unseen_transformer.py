# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers with faults of attention, and their twins: image tokens, latents, decoders. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.evidence import both
from validation.evidence_special import attention_maps, entropy, equal_heads, sharp_attention, tokens_alike
from validation.evidence_training import trains
from validation.nets import Attention, Block, LanguageModel, SetClassifier
from validation.setups import pair
from validation.tasks import images, markov, patches

FAST = trains(lr=3e-3, steps=30)
zoo = Zoo("transformer", "transformer", FAST)


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


def vision(seed: int, model: nn.Module) -> Setup:
    return pair(model, images(seed, 1, 8, 6, 20, 1.5))


def stack(depth: int, width: int, heads: int, feed: int, norm_first: bool = True) -> SetClassifier:
    """torch's layers with GELU and their own feed-forward width."""
    layers = [
        nn.TransformerEncoderLayer(width, heads, feed, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        for _ in range(depth)
    ]
    return SetClassifier(24, width, layers, 6)


@torch.no_grad()
def pointed(model: nn.Module, factor: float, *paths: str) -> nn.Module:
    """Multiply the keys, and with them the logits."""
    for path, module in model.named_modules():
        if paths and path not in paths:
            continue
        if isinstance(module, Attention):
            module.key.weight *= factor
        elif isinstance(module, nn.MultiheadAttention):
            module.in_proj_weight[module.embed_dim : 2 * module.embed_dim] *= factor
    return model


# --- attention that is too sharp

SHARP = {"SATURATION", "EXPLODING", "UNSTABLE"}
picture = zoo.healthy("vision-class-token-3x24", "tune", lambda s: vision(s, Vision(24, 3, 3)))
zoo.sick(
    "vision-3x24-last-keys-times-250",
    "tune",
    lambda s: vision(s, pointed(Vision(24, 3, 3), 250.0, "blocks.2.attention")),
    sharp_attention("blocks.2.attention", others_above=0.4),
    "ENTROPY_COLLAPSE",
    layer=("blocks.2.attention.key", "blocks.2.attention.query"),
    also=SHARP,
    control=picture,
)
encoder = zoo.healthy("encoder-gelu-2x36", "tune", lambda s: pair(stack(2, 36, 6, 100), patches(s, 14)))
zoo.sick(
    "encoder-gelu-5x36-first-keys-times-200",
    "tune",
    lambda s: pair(pointed(stack(5, 36, 6, 100), 200.0, "layers.0.self_attn"), patches(s, 14)),
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


quiet = zoo.healthy("language-model-without-norms-2x40", "tune", lambda s: loud(s, 0.5))
zoo.sick(
    "language-model-2x40-embeddings-of-size-40",
    "tune",
    lambda s: loud(s, 40.0),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    "EXPLODING",
    also={"SATURATION", "UNSTABLE"},
    control=quiet,
)
latents = zoo.healthy("latents-read-a-set-3-rounds", "tune", lambda s: pair(Latents(32, 4, 3), patches(s, 24)))
zoo.sick(
    "latents-3-rounds-all-keys-times-300",
    "tune",
    lambda s: pair(pointed(Latents(32, 4, 3), 300.0), patches(s, 24)),
    sharp_attention(),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=latents,
)

# --- tokens that become one

ALIKE = {"VANISHING", "LOW_RANK", "BOTTLENECK", "EXPLODING"}
zoo.sick(
    "latents-8-rounds-without-skips",
    "tune",
    lambda s: pair(Latents(32, 4, 8, skip=False), patches(s, 24)),
    tokens_alike("think.7"),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=latents,
)
zoo.sick(
    "vision-9x24-without-skips",
    "tune",
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
    "tune",
    lambda s: pair(SetClassifier(24, 36, [FaintSkip(36, 6) for _ in range(8)], 6), patches(s, 14)),
    tokens_alike("layers.7", 0.1),
    "RANK_COLLAPSE",
    also=ALIKE,
    control=encoder,
)

# --- heads that are one


@torch.no_grad()
def cloned(model: nn.Module, *paths: str) -> nn.Module:
    """Copy the first head's queries, keys and values to all others."""
    for path in paths:
        module = model.get_submodule(path)
        if isinstance(module, Attention):
            parts, heads = [module.query, module.key, module.value], module.heads
            for part in parts:
                size = part.out_features // heads
                part.weight.copy_(part.weight[:size].repeat(heads, 1))
                part.bias.copy_(part.bias[:size].repeat(heads))
        else:
            size = module.embed_dim // module.num_heads
            for part in module.in_proj_weight.chunk(3):
                part.copy_(part[:size].repeat(module.num_heads, 1))
            module.in_proj_bias.zero_()
    return model


def heads_differ(case: Case, seed: int) -> Evidence:
    """Attention is not even, and heads look at different things."""
    maps = attention_maps(case.make(seed))
    apart = min((p[:, 1:] - p[:, :1]).abs().mean().item() for p in maps.values())
    level = max(entropy(p) for p in maps.values())
    return Evidence(apart > 0.01 and level < 0.97, f"heads differ by {apart:.3f} on average, entropy up to {level:.2f}")


ONE = {"SYMMETRY", "LOW_RANK", "BOTTLENECK"}
varied = zoo.healthy(
    "encoder-gelu-3x40-keys-times-6",
    "tune",
    lambda s: pair(pointed(stack(3, 40, 5, 64), 6.0), patches(s, 14)),
    both(FAST, heads_differ),
)
varied_words = zoo.healthy(
    "language-model-5x30-keys-times-6",
    "tune",
    lambda s: pair(pointed(LanguageModel(20, 30, 3, 5), 6.0), markov(s)),
    both(FAST, heads_differ),
)
zoo.sick(
    "encoder-gelu-3x40-last-heads-cloned",
    "tune",
    lambda s: pair(cloned(pointed(stack(3, 40, 5, 64), 6.0), "layers.2.self_attn"), patches(s, 14)),
    equal_heads("layers.2.self_attn"),
    "HEAD_DIVERSITY",
    layer="layers.2.self_attn",
    also=ONE,
    control=varied,
)
zoo.sick(
    "vision-2x32-8-heads-cloned",
    "tune",
    lambda s: vision(s, cloned(pointed(Vision(32, 8, 2), 8.0), "blocks.0.attention", "blocks.1.attention")),
    equal_heads(),
    "HEAD_DIVERSITY",
    also=ONE,
    control=picture,
)
zoo.sick(
    "language-model-5x30-first-heads-cloned",
    "tune",
    lambda s: pair(cloned(pointed(LanguageModel(20, 30, 3, 5), 6.0), "blocks.0.attention"), markov(s)),
    equal_heads("blocks.0.attention"),
    "HEAD_DIVERSITY",
    layer=tuple(f"blocks.0.attention.{part}" for part in ("query", "key", "value")),
    also=ONE,
    control=varied_words,
)
