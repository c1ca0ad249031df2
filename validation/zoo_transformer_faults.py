# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers with the faults that any network may have."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, dead, no_gradient, not_finite, rank_at_most
from validation.evidence_training import diverges, does_not_move, learns_less, trains
from validation.nets import Attention, Block, LanguageModel
from validation.setups import pair, rated
from validation.tasks import Task, markov, patches
from validation.zoo_transformer import FAST, encoder, own, pre_norm, vit

zoo = Zoo("transformer", "transformer", FAST)

zoo.sick(
    "encoder-post-norm-6x32-sgd-30",
    "tune",
    lambda s: rated(encoder(6, 32, 4, False), patches(s), "SGD", 30.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"ENTROPY_COLLAPSE", "RANK_COLLAPSE", "DEAD", "SATURATION"},
    control=pre_norm,
)
zoo.sick(
    "language-model-adam-1",
    "tune",
    lambda s: rated(LanguageModel(20, 32, 4, 3), markov(s), "Adam", 1.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={"ENTROPY_COLLAPSE", "RANK_COLLAPSE", "DEAD", "SATURATION", "HEAD_DIVERSITY", "NUMERICAL"},
    control=vit,
)
zoo.sick(
    "encoder-adamw-1e-9",
    "tune",
    lambda s: rated(encoder(2, 32, 4, True), patches(s), "AdamW", 1e-9, 20),
    does_not_move(),
    "SLOW",
    control=pre_norm,
)


def dead_feed_forward(seed: int) -> Setup:
    model = own(4, 40, 4, 10, act=nn.ReLU)
    nn.init.constant_(model.layers[1].up.bias, -15)
    return pair(model, patches(seed))


zoo.sick(
    "patches-4x40-second-feed-forward-dead",
    "tune",
    dead_feed_forward,
    both(dead("layers.1.act", 0.99), no_gradient("layers.1.up")),
    "DEAD",
    layer="layers.1.up",
    control=vit,
)


class Padded(nn.Module):
    """Attends where the mask allows; a row without any key gives NaN unless it may see itself."""

    def __init__(self, width: int, safe: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width, padding_idx=0)
        self.first, self.second = Attention(width, 4), Attention(width, 4)
        self.head = nn.Linear(width, 20)
        self.safe = safe

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        allowed = (mask[:, None] & mask[:, :, None])[:, None]  # (batch, 1, queries, keys): padding sees nothing
        if self.safe:
            allowed = allowed | torch.eye(mask.shape[1], dtype=torch.bool)
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
        x = self.embedding(tokens)
        x = x + self.manual(self.first, x, bias)
        return self.head(x + self.manual(self.second, x, bias))

    @staticmethod
    def manual(attention: Attention, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (attention.split(part(x)) for part in (attention.query, attention.key, attention.value))
        p = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias).softmax(-1)
        return attention.out((p @ v).transpose(1, 2).flatten(-2))


def padded(seed: int, width: int, safe: bool) -> Setup:
    def draw(random: torch.Generator) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        lengths = torch.randint(6, 12, (16, 1), generator=random)
        mask = torch.arange(12) < lengths
        tokens = torch.randint(1, 20, (16, 12), generator=random) * mask
        return {"tokens": tokens, "mask": mask}, (tokens, mask)

    def loss(logits: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        tokens, mask = target
        return F.cross_entropy(logits[mask], 19 - tokens[mask])

    return pair(Padded(width, safe), Task(seed, draw, loss))


safe_padding = zoo.healthy("padding-sees-itself", "tune", lambda s: padded(s, 24, True))
zoo.sick(
    "padding-sees-nothing",
    "tune",
    lambda s: padded(s, 24, False),
    not_finite(batches=2),
    "NUMERICAL",
    layer=tuple(f"first.{part}" for part in ("query", "key", "value", "out")),
    control=safe_padding,
)


class Translator(nn.Module):
    """Encoder and decoder under teacher forcing; the encoder's states may lose their history."""

    def __init__(self, width: int, cut: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(20, width), nn.Embedding(21, width)
        self.position = nn.Embedding(12, width)
        self.encoder = Block(width, 4)
        self.decoder, self.norm, self.cross = Block(width, 4, causal=True), nn.LayerNorm(width), Attention(width, 4)
        self.head = nn.Linear(width, 20)
        self.cut = cut

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.source(source) + self.position.weight[: source.shape[1]])
        memory = memory.detach() if self.cut else memory
        x = self.decoder(self.target(target) + self.position.weight[: target.shape[1]])
        return self.head(x + self.cross(self.norm(x), memory))


def translation(seed: int, width: int, cut: bool) -> Setup:
    code = torch.randperm(20, generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        source = torch.randint(20, (24, 8), generator=random)
        answer = code[source]
        return (source, torch.cat([torch.full((24, 1), 20), answer[:, :-1]], dim=1)), answer

    model = Translator(width, cut)
    return pair(model, Task(seed, draw, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten())))


translator = zoo.healthy(
    "translator-with-cross-attention", "tune", lambda s: translation(s, 32, False), trains(lr=1e-2, steps=60, fall=0.05)
)
zoo.sick(
    "translator-encoder-detached",
    "tune",
    lambda s: translation(s, 32, True),
    no_gradient("source", "encoder"),
    "DISCONNECTED",
    layer=("encoder.down", "encoder.up"),
    also={"DEAD"},
    control=translator,
)


def with_waist(seed: int, narrow: int) -> Setup:
    """The sequence is summarised by its mean, so that no position can carry more than the waist lets through."""
    model = own(2, 40, 4, 10)
    model.head = nn.Sequential(nn.Linear(40, narrow), nn.GELU(), nn.Linear(narrow, 40), nn.GELU(), nn.Linear(40, 12))
    return pair(model, patches(seed, classes=12))


zoo.sick(
    "patches-2x40-summary-of-width-1",
    "tune",
    lambda s: with_waist(s, 1),
    both(rank_at_most("head.0", 1), learns_less(lr=3e-3, steps=30, by=0.1)),
    "BOTTLENECK",
    layer="head.0",
    also={"LOW_RANK", "VANISHING"},
    control=vit,
)
