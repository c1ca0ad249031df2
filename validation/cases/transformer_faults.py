# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers with the faults that any network may have, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.transformer_attention import encoder, picture, pre_norm, vit
from validation.evidence.signal import both, dead, equal_units, no_gradient, not_finite, rank_at_most
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread, learns_less, trains
from validation.labels import JUMPS, LOST, RUNS_AWAY
from validation.nets import Attention, Block, LanguageModel, SetClassifier, Vision, block_encoder, torch_encoder
from validation.setups import biased, pair, partly_dead, rated, vision
from validation.tasks import Task, ciphers, grey, markov, patches, token_loss

FAST = trains(lr=3e-3, steps=30)
zoo = Zoo("transformer", half="tune", analyzer="transformer", proof=FAST)


# --- dead, equal, cut


zoo.sick(
    "patches-4x40-second-feed-forward-dead",
    lambda s: biased(block_encoder(4, 40, 4, 10, act=nn.ReLU), "layers.1.up", -15, patches(s)),
    both(dead("layers.1.act", 0.99), no_gradient("layers.1.up")),
    "DEAD",
    layer="layers.1.up",
    control=vit,
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


translator = zoo.healthy(
    "translator-with-cross-attention",
    lambda s: pair(Translator(32, False), ciphers(s, 20, 8, 24, offset=0)),
    trains(lr=1e-2, steps=60, fall=0.05),
)
zoo.sick(
    "translator-encoder-detached",
    lambda s: pair(Translator(32, True), ciphers(s, 20, 8, 24, offset=0)),
    no_gradient("source", "encoder"),
    "DISCONNECTED",
    layer=("encoder.down", "encoder.up"),
    also={"DEAD"},
    control=translator,
)


relu_picture = zoo.healthy("vision-relu-4x28", lambda s: vision(s, Vision(28, 4, 4, act=nn.ReLU)))
zoo.sick(
    "vision-relu-4x28-last-feed-forward-dead",
    lambda s: biased(Vision(28, 4, 4, act=nn.ReLU), "blocks.3.up", -25, grey(s)),
    both(dead("blocks.3.act", 0.99), no_gradient("blocks.3.up")),
    "DEAD",
    layer="blocks.3.up",
    control=relu_picture,
)
zoo.sick(
    "language-model-relu-3x32-70-percent-of-first-feed-forward-dead",
    lambda s: partly_dead(LanguageModel(20, 32, 4, 3, act=nn.ReLU), "blocks.0.up", 0.7, markov(s)),
    dead("blocks.0.act", 0.68),
    "DEAD",
    layer="blocks.0.up",
    control=relu_picture,
)


@torch.no_grad()
def uniform_feed_forward(seed: int) -> Setup:
    """One block's feed-forward starts with the same number everywhere."""
    model = Vision(28, 4, 3)
    for layer in (model.blocks[1].up, model.blocks[1].down):
        layer.weight.fill_(0.03)
        layer.weight.add_(torch.linspace(-0.03, 0.03, layer.in_features) if layer is model.blocks[1].up else 0)
        layer.bias.zero_()
    return vision(seed, model)


zoo.sick(
    "vision-3x28-second-feed-forward-of-equal-units",
    uniform_feed_forward,
    equal_units("blocks.1.up.weight"),
    "SYMMETRY",
    layer=("blocks.1.up", "blocks.1.down"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=picture,
)


class Seq2Seq(nn.Module):
    """torch's own encoder and decoder with shared positions; the encoder's output may be computed without a graph."""

    def __init__(self, width: int, graph: bool, narrow: int = 0) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(14, width), nn.Embedding(15, width)
        self.position = nn.Parameter(torch.randn(6, width) * 0.5)
        self.encoder = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.squeeze = nn.Sequential(nn.Linear(width, narrow), nn.Linear(narrow, width)) if narrow else nn.Identity()
        self.decoder = nn.TransformerDecoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.head, self.graph = nn.Linear(width, 14), graph

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.graph and torch.is_grad_enabled()):
            memory = self.encoder(self.source(source) + self.position)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        seen = self.target(target) + self.position
        return self.head(self.decoder(seen, self.squeeze(memory), tgt_mask=mask, tgt_is_causal=True))


SLOWER = trains(lr=1e-2, steps=60, fall=0.1)
whole = zoo.healthy("seq2seq-torch-decoder", lambda s: pair(Seq2Seq(32, True), ciphers(s)), SLOWER)
zoo.sick(
    "seq2seq-encoder-under-no-grad",
    lambda s: pair(Seq2Seq(32, False), ciphers(s)),
    no_gradient("source", "encoder"),
    "DISCONNECTED",
    layer=("encoder.linear2", "encoder.linear1", "encoder.self_attn", "source"),
    also={"DEAD"},
    control=whole,
)


class Unplaced(Vision):
    """Owns an embedding of positions and forgets to add it, so that tokens have no place."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__(width, heads, depth)
        self.row = nn.Embedding(17, width)


zoo.sick(
    "vision-row-embedding-never-added",
    lambda s: vision(s, Unplaced(24, 4, 2)),
    no_gradient("row"),
    "DISCONNECTED",
    layer="row",
    also={"DEAD"},
    control=picture,
)

# --- narrow


def with_waist(seed: int, narrow: int) -> Setup:
    """The sequence is summarised by its mean, so that no position can carry more than the waist lets through."""
    model = block_encoder(2, 40, 4, 10)
    model.head = nn.Sequential(nn.Linear(40, narrow), nn.GELU(), nn.Linear(narrow, 40), nn.GELU(), nn.Linear(40, 12))
    return pair(model, patches(seed, classes=12))


zoo.sick(
    "patches-2x40-summary-of-width-1",
    lambda s: with_waist(s, 1),
    both(rank_at_most("head.0", 1), learns_less(lr=3e-3, steps=30, by=0.1)),
    "BOTTLENECK",
    layer="head.0",
    also={"LOW_RANK", "VANISHING"},
    control=vit,
)
zoo.sick(
    "seq2seq-memory-through-width-1",
    lambda s: pair(Seq2Seq(32, True, 1), ciphers(s)),
    both(rank_at_most("squeeze.0", 6), learns_less(lr=1e-2, steps=100, by=0.1)),
    "BOTTLENECK",
    layer=("squeeze.0", "squeeze.1"),
    also={"LOW_RANK"},
    control=whole,
)


class Waist(nn.Sequential):
    """Every token through a few numbers."""


def waisted(seed: int, narrow: int) -> Setup:
    layers = [Block(36, 6), Waist(nn.Linear(36, narrow), nn.Linear(narrow, 36)), Block(36, 6)]
    return pair(SetClassifier(24, 36, layers, 14, 2), patches(seed, 2, 24, 14, 64))


roomy = zoo.healthy("two-tokens-waist-of-30", lambda s: waisted(s, 30))
zoo.sick(
    "two-tokens-waist-of-1-for-14-classes",
    lambda s: waisted(s, 1),
    both(rank_at_most("layers.1.0", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer=("layers.1.0", "layers.1.1"),
    also={"LOW_RANK"},
    control=roomy,
)

# --- not finite


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


safe_padding = zoo.healthy("padding-sees-itself", lambda s: padded(s, 24, True))
zoo.sick(
    "padding-sees-nothing",
    lambda s: padded(s, 24, False),
    not_finite(batches=2),
    "NUMERICAL",
    layer=tuple(f"first.{part}" for part in ("query", "key", "value", "out")),
    control=safe_padding,
)


class Ragged(nn.Module):
    """Sequences with padding; one that is all padding leaves attention without a key."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.attention, self.norm = nn.MultiheadAttention(width, 4, batch_first=True), nn.LayerNorm(width)
        self.head = nn.Linear(width, 16)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        x = self.embedding(tokens)
        mixed, _ = self.attention(self.norm(x), self.norm(x), self.norm(x), key_padding_mask=padding)
        return self.head(x + mixed)


def ragged(seed: int, shortest: int) -> Setup:
    def draw(random: torch.Generator) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        lengths = torch.randint(shortest, 9, (24, 1), generator=random)
        lengths[0] = shortest
        tokens = torch.randint(16, (24, 8), generator=random)
        padding = torch.arange(8) >= lengths
        return {"tokens": tokens, "padding": padding}, (15 - tokens, padding)

    def loss(logits: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(logits[~target[1]], target[0][~target[1]])

    return pair(Ragged(24), Task(seed, draw, loss))


some = zoo.healthy("ragged-sequences-of-1-to-8", lambda s: ragged(s, 1))
zoo.sick(
    "ragged-sequences-one-is-empty",
    lambda s: ragged(s, 0),
    not_finite(batches=2),
    "NUMERICAL",
    layer="attention",
    control=some,
)

# --- runs away, stands still, jumps

zoo.sick(
    "encoder-post-norm-6x32-sgd-30",
    lambda s: rated(torch_encoder(6, 32, 4, norm_first=False), patches(s), "SGD", 30.0, 20),
    diverges(),
    *RUNS_AWAY,
    also={"ENTROPY_COLLAPSE", "RANK_COLLAPSE", "DEAD", "SATURATION"},
    control=pre_norm,
)
zoo.sick(
    "language-model-adam-1",
    lambda s: rated(LanguageModel(20, 32, 4, 3), markov(s), "Adam", 1.0, 20),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also=LOST,
    control=vit,
)
zoo.sick(
    "encoder-adamw-1e-9",
    lambda s: rated(torch_encoder(2, 32, 4), patches(s), "AdamW", 1e-9, 20),
    does_not_move(),
    "SLOW",
    control=pre_norm,
)
zoo.sick(
    "encoder-gelu-3x36-adam-5",
    lambda s: rated(torch_encoder(3, 36, 6, 72, "gelu"), patches(s, 14), "Adam", 5.0, 15),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also=LOST,
    control=encoder,
)
zoo.sick(
    "language-model-warm-up-that-never-ends",
    lambda s: rated(LanguageModel(20, 32, 4, 2), markov(s), "AdamW", 2e-10, 20),
    does_not_move(),
    "SLOW",
    control=some,
)


def weighed(seed: int, spread: float) -> Setup:
    """Documents weigh by how often they were read, and a few were read by everybody."""
    random = torch.Generator().manual_seed(seed)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        each = torch.stack([token_loss(z[None], t[None]) for z, t in zip(logits, target, strict=True)])
        return (each * (spread * torch.randn(len(each), generator=random)).exp()).mean()

    return pair(LanguageModel(20, 28, 4, 2), markov(seed, batch=8).with_loss(loss), steps=60)


weights = zoo.healthy("documents-weigh-nearly-alike", lambda s: weighed(s, 0.2))
zoo.sick(
    "documents-weigh-by-their-readers", lambda s: weighed(s, 5.0), gradient_norms_spread(30), *JUMPS, control=weights
)
