# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers that people reported because of their attention: one-hot, alike, or of one head; with the fixes.

Half: reported.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import Attend, Feed, Net, Patches, Post, Pre, alike, ends_worse, small_gradients
from validation.cases._everyday_sequences import more_than
from validation.cases._reported_sequences import (
    OPINION,
    PAPER,
    Own,
    abstracts,
    directory,
    horizons,
    one_head,
    opinions,
    pairs,
    paths,
    stamps,
    swaps,
)
from validation.evidence import at_last, attends_sharply, both, lasting, no_gradient, thrives
from validation.labels import ALIKE, ONE, SHARP
from validation.setups import live

zoo = Zoo("transformer", half="reported", analyzer="transformer", proof=thrives(0.15))
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION", "attention_logits")
SHARP_TOO = {*SHARP, "VANISHING", "HEAD_DIVERSITY", "RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK", "NUMERICAL", "SLOW"}
MERGED = ("RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK")
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SLOW", "DEAD", "DISCONNECTED", "SYMMETRY", "loss_stuck"}
SAME = ("HEAD_DIVERSITY", "SYMMETRY")
ONE_TOO = {*ONE, "ENTROPY_COLLAPSE", "RANK_COLLAPSE"}


def found(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """Whose number is asked for?"""
    model = Net(nn.Linear(16, width), blocks, 8, "last", width, length=0)
    return live(model, directory(seed), **{"kind": "Adam", "lr": 3e-3, "steps": 100, **more})


def turned(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """Words from the last to the first, in another code."""
    return live(
        Net(nn.Embedding(9, 32), blocks, 9, length=8), swaps(seed), **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more}
    )


def teams(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """The colours of two others each."""
    model = Net(nn.Linear(32, 32), blocks, 9, length=0)
    return live(model, pairs(seed), **{"kind": "Adam", "lr": 1e-2, "steps": 110, **more})


# --- attention that is one-hot


class Normed(Own):
    """Queries and keys are normed to unit entries; their products are scaled, or not."""

    def __init__(self, scale: float | None, size: int | None = None, **more) -> None:
        super().__init__(**more)
        self.scale = scale
        if size is not None:
            self.q, self.k = (nn.Linear(32, self.heads * size) for _ in range(2))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        size = q.shape[-1]
        q, k = F.rms_norm(q, (size,)), F.rms_norm(k, (size,))
        return q @ k.transpose(2, 3) * (size**-0.5 if self.scale is None else self.scale)


def normed(seed: int, scale: float | None) -> Setup:
    """Two heads, as large as they are in the thread."""
    return turned(seed, [Pre(Normed(scale, 256, heads=2))], lr=3e-3)


# huggingface/transformers#45676: queries and keys are normed and the scaling is 1, so that logits have a spread of √d.
scaled = zoo.healthy("words-qk-norm-over-root-of-256", lambda s: normed(s, None))
zoo.sick(
    "words-qk-norm-with-scaling-1",
    lambda s: normed(s, 1.0),
    both(lasting(attends_sharply(below=0.15)), ends_worse(1.2)),
    *ONE_HOT,
    layer=paths(1, "q", "k"),
    also=SHARP_TOO,
    control=scaled,
)


class Drawn(Own):
    """Matrices of the heads as tensors, drawn standard normal, or divided by the root of the width."""

    def __init__(self, over: float, **more) -> None:
        super().__init__(**more)
        for part in (self.q, self.k):
            nn.init.normal_(part.weight, std=1 / over)


# TransformerLensOrg/TransformerLens#518 and much code from scratch: weights as torch gives them, here standard normal,
# so that the largest score takes it all.
kaiming = zoo.healthy(
    "directory-queries-drawn-over-root-of-32", lambda s: found(s, [Pre(Drawn(32**0.5)) for _ in range(2)])
)
zoo.sick(
    "directory-queries-standard-normal",
    lambda s: found(s, [Pre(Drawn(1.0)) for _ in range(2)]),
    both(lasting(attends_sharply()), ends_worse(1.2)),
    *ONE_HOT,
    layer=paths(2, "q", "k"),
    also=SHARP_TOO,
    control=kaiming,
)


class Times(Own):
    """Scores divided by the scale, which already is one by the root."""

    def __init__(self, power: float, **more) -> None:
        super().__init__(**more)
        self.power = power
        for part in (self.q, self.k):
            nn.init.xavier_uniform_(part.weight)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(2, 3) / q.shape[-1] ** self.power


def times(seed: int, power: float) -> Setup:
    enter = Patches(64)
    return live(
        Net(enter, [Pre(Times(power, width=64, heads=1), 64) for _ in range(2)], 6, "mean", 64, 16),
        stamps(seed, noise=0.9),
        "Adam",
        2e-3,
        60,
    )


# esceptico/perceiver-io#9, rasbt/LLMs-from-scratch#856: scores are divided by d ** -0.5, the wrong way round.
divided = zoo.healthy("stamps-scores-over-the-root", lambda s: times(s, 0.5))
zoo.sick(
    "stamps-scores-over-one-by-the-root",
    lambda s: times(s, -0.5),
    both(lasting(attends_sharply(below=0.2)), ends_worse(1.15)),
    *ONE_HOT,
    layer=paths(2, "q", "k"),
    also=SHARP_TOO,
    control=divided,
)


class Emoji(nn.Module):
    """Words, and a learned vector that says where to look; the vector may have been left as memory had it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.enter, self.attn = nn.Embedding(PAPER, 32), Look(scale)
        self.head = nn.Linear(32, 6)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.attn(self.enter(words)))


class Look(nn.Module):
    """Attention by one vector."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.vector = nn.Linear(32, 1, bias=False)
        nn.init.uniform_(self.vector.weight, -scale, scale)

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.vector(x).transpose(1, 2), dim=-1)
        return (p @ x)[:, 0]


# huggingface/torchMoji#11: the attention vector was never initialised and holds huge values; it should be within 0.05.
small = zoo.healthy(
    "abstracts-attention-vector-within-0.05", lambda s: live(Emoji(0.05), abstracts(s), "Adam", 1e-2, 80)
)
zoo.sick(
    "abstracts-attention-vector-of-huge-values",
    lambda s: live(Emoji(1e3), abstracts(s), "Adam", 1e-2, 80),
    both(lasting(attends_sharply()), ends_worse(1.3)),
    *ONE_HOT,
    layer=("attn", "attn.vector", "enter"),
    also=SHARP_TOO,
    control=small,
)


class Cached(nn.Module):
    """The last token asks all of them, with torch's own function."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(y).unflatten(-1, (4, 8)).transpose(1, 2) for part, y in ((self.q, x[:, -1:]), (self.k, x), (self.v, x))
        )
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Asker(nn.Module):
    """One block over the entries, then the last one asks."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.enter, self.attn, self.feed, self.norm = nn.Linear(16, 32), Cached(causal), Feed(), nn.LayerNorm(32)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        said = x[:, -1:] + self.attn(x)
        return self.head(self.norm(said + self.feed(said))[:, 0])


# pytorch/pytorch#144858, #115111: is_causal with one query and a cache of keys lets it see the very first key only.
all_keys = zoo.healthy(
    "directory-one-query-sees-all-keys", lambda s: live(Asker(False), directory(s), "Adam", 5e-3, 110)
)
zoo.sick(
    "directory-one-query-is-causal",
    lambda s: live(Asker(True), directory(s), "Adam", 5e-3, 110),
    both(lasting(small_gradients(["attn.q", "attn.k"], "attn.v", 1e-5)), ends_worse(1.3)),
    "ENTROPY_COLLAPSE",
    "DISCONNECTED",
    "DEAD",
    "HEAD_DIVERSITY",
    layer=("attn", "attn.q", "attn.k", "attn.v", "attn.o"),
    also={*SHARP_TOO, "never_moves", "all_masked"},
    control=all_keys,
)


def grown(seed: int, norm: bool) -> Setup:
    """A high rate, with and without norms of queries and keys."""
    kind = Normed if norm else Plain
    return turned(seed, [Pre(kind(None, width=32, heads=2)) for _ in range(2)], lr=6e-2, steps=100)


class Plain(Own):
    """Without norms."""

    def __init__(self, _scale: float | None, **more) -> None:
        super().__init__(**more)


# BoyuanJiang/FitDiT#30, NVlabs/PixelDiT#14: logits grow until attention is one-hot, and all is lost; qk-norm helps.
held = zoo.healthy("words-rate-0.06-with-qk-norm", lambda s: grown(s, True))
zoo.sick(
    "words-rate-0.06-without-qk-norm",
    lambda s: grown(s, False),
    both(at_last(attends_sharply(below=0.2)), ends_worse(1.3)),
    *ONE_HOT,
    "EXPLODING",
    "UNSTABLE",
    "rate_too_high",
    also={*SHARP_TOO, "DEAD", "DISCONNECTED", "loss_stuck", "loss_grows"},
    control=held,
)


def pixels(seed: int, scale: float) -> Setup:
    """Blocks without a norm before attention, as they were in 2017, on pixels."""
    return live(
        Net(Patches(), [Post(Attend()) for _ in range(2)], 6, "mean", length=16),
        stamps(seed, scale=scale),
        "Adam",
        2e-3,
        80,
    )


# ASCIIJK/MiN-NeurIPS2025#6 and others: pixels are not normed as the transformer needs them, here as they come.
unit = zoo.healthy("stamps-pixels-normed", lambda s: pixels(s, 1.0))
zoo.sick(
    "stamps-pixels-up-to-255",
    lambda s: pixels(s, 100.0),
    both(lasting(attends_sharply("blocks.0.attn")), ends_worse(1.2)),
    *ONE_HOT,
    "input_scales",
    "EXPLODING",
    layer=("enter", "enter.proj", "blocks.0", *paths(1, "wq", "wk", "wv")),
    also=SHARP_TOO,
    control=unit,
)

# --- masks


class Encoder(nn.Module):
    """Words with a mask of the padding, which may be the wrong way round, and the mean of the words."""

    def __init__(self, inverted: bool, depth: int = 2) -> None:
        super().__init__()
        self.enter, self.inverted = nn.Embedding(OPINION, 32), inverted
        self.blocks = nn.ModuleList(Layer() for _ in range(depth))
        self.head = nn.Linear(32, 4)

    def forward(self, words: Tensor, _lengths: Tensor) -> Tensor:
        x = self.enter(words)
        mask = (words != 0) if self.inverted else (words == 0)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x[:, 0])


class Layer(nn.Module):
    """torch's attention, sum, norm, dense, sum, norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.feed = nn.MultiheadAttention(32, 4, batch_first=True), Feed()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x, x, x, key_padding_mask=mask, need_weights=False)[0])
        return self.norm2(x + self.feed(x))


# pytorch/pytorch#27968, mlwithme/TransformerTranslation#2: True means "hide" in torch; here only padding is looked at.
right_way = zoo.healthy("opinions-padding-hidden", lambda s: live(Encoder(False), opinions(s, 14), "Adam", 3e-3, 90))
zoo.sick(
    "opinions-words-hidden",
    lambda s: live(Encoder(True), opinions(s, 14), "Adam", 3e-3, 90),
    both(lasting(alike("blocks.0.attn", 1e-3)), ends_worse(1.5)),
    "RANK_COLLAPSE",
    "ENTROPY_COLLAPSE",
    "HEAD_DIVERSITY",
    "DISCONNECTED",
    "all_masked",
    layer=("enter", *paths(2, "out_proj"), "blocks.0", "blocks.1"),
    also={*SHARP_TOO, *ALIKE_TOO},
    control=right_way,
)


class Convention(Own):
    """A mask that one side writes as minus infinity and the other reads as one and zero."""

    def __init__(self, both_same: bool, **more) -> None:
        super().__init__(**more)
        self.both_same = both_same

    def chances(self, scores: Tensor) -> Tensor:
        seen = torch.ones(scores.shape[-2:]).tril()
        if not self.both_same:
            seen = torch.zeros(scores.shape[-2:]).masked_fill(seen == 0, -math.inf)
        hidden = torch.where(seen == 1, 0.0, -1e9)
        hidden = hidden.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
        return (scores + hidden).softmax(dim=-1)


def convention(seed: int, both_same: bool) -> Setup:
    return found(seed, [Pre(Convention(both_same)) for _ in range(2)], lr=2e-3, steps=110)


# harvard-edge/cs249r_book#1785: what may be seen gets -1e9 as well, in which the scores are lost; attention is even.
agreed = zoo.healthy("directory-mask-of-one-convention", lambda s: convention(s, True))
zoo.sick(
    "directory-mask-of-two-conventions",
    lambda s: convention(s, False),
    both(one_head(), ends_worse(1.5)),
    "HEAD_DIVERSITY",
    "ENTROPY_COLLAPSE",
    "RANK_COLLAPSE",
    "NUMERICAL",
    "all_masked",
    "attention_logits",
    "SYMMETRY",
    layer=paths(2, "q", "k", "v", "o"),
    also={*ONE_TOO, "DEAD", "DISCONNECTED", "SLOW", "never_moves", "VANISHING"},
    control=agreed,
)

# --- tokens that become one


class Doubled(nn.Module):
    """Attention, and its output added to itself where its input was meant; then a dense half with a skip."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.attn, self.feed, self.norm, self.skip = Attend(), Feed(), nn.LayerNorm(32), skip

    def forward(self, x: Tensor) -> Tensor:
        said = self.attn(self.norm(x))
        x = x + said if self.skip else said + said
        return x + self.feed(x)


# kyegomez/BitNet#32: x = attn(x), then x + x, so that the skip around attention is none.
skips = zoo.healthy("words-skip-around-attention", lambda s: turned(s, [Doubled(True) for _ in range(4)], lr=3e-3))
zoo.sick(
    "words-output-of-attention-doubled",
    lambda s: turned(s, [Doubled(False) for _ in range(4)], lr=3e-3),
    both(lasting(alike("blocks.3", 0.1)), ends_worse(1.2)),
    *MERGED,
    layer=("blocks.0", "blocks.1", *paths(4, "wq", "wk", "wv", "wo")),
    also=ALIKE_TOO,
    control=skips,
)


class Zeros(nn.Module):
    """A past, an encoder, and a decoder whose input is zeros for each coming step, with their places or without."""

    def __init__(self, places: bool) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(1, 32), nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.when = nn.Parameter(0.3 * torch.randn(1, 6, 32)) if places else None
        self.encoder, self.own, self.read = Pre(Attend()), Attend(), Attend()
        self.norm1, self.norm2, self.feed, self.out = nn.LayerNorm(32), nn.LayerNorm(32), Feed(), nn.Linear(32, 1)
        self.start = nn.Parameter(0.3 * torch.randn(1, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.encoder(self.enter(x) + self.place)
        y = torch.zeros(len(x), 6, 32) + self.start
        y = y if self.when is None else y + self.when
        y = y + self.own(self.norm1(y))
        y = y + self.read(self.norm2(y), memory)
        return self.out(y + self.feed(y))


# openillumi.com on nn.Transformer whose outputs are all the same (thuml/Nonstationary_Transformers#28): zeros go in.
timed = zoo.healthy("horizons-zeros-with-places", lambda s: live(Zeros(True), horizons(s), "Adam", 3e-3, 100))
zoo.sick(
    "horizons-zeros-without-places",
    lambda s: live(Zeros(False), horizons(s), "Adam", 3e-3, 100),
    both(lasting(alike("read", 1e-3)), ends_worse(1.5)),
    *MERGED,
    layer=(
        "own",
        "read",
        "feed",
        "norm1",
        "norm2",
        "out",
        *(f"{m}.{p}" for m in ("own", "read") for p in ("wq", "wk", "wv", "wo")),
    ),
    also=ALIKE_TOO,
    control=timed,
)


class Alone(Own):
    """One head, and a softmax over some dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__(heads=1)
        self.dim = dim

    def chances(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=self.dim)


# PetrochukM/PyTorch-NLP#2, catalyst-team/catalyst#285: a softmax over a dimension of one, so that each weight is 1.
last_dim = zoo.healthy("words-softmax-over-the-keys", lambda s: turned(s, [Pre(Alone(-1)) for _ in range(2)]))
zoo.sick(
    "words-softmax-over-the-only-head",
    lambda s: turned(s, [Pre(Alone(1)) for _ in range(2)]),
    both(lasting(alike("blocks.0.attn", 1e-3), no_gradient("blocks.0.attn.q", "blocks.0.attn.k")), ends_worse(1.2)),
    *MERGED,
    "DISCONNECTED",
    "DEAD",
    layer=paths(2, "q", "k", "v", "o"),
    also={*ALIKE_TOO, "never_moves", "ENTROPY_COLLAPSE"},
    control=last_dim,
)


class Batchwise(nn.Module):
    """Question marks for all words of an answer, with places by their own number or by that of the row in the batch."""

    def __init__(self, by_row: bool) -> None:
        super().__init__()
        self.source, self.enter = nn.Embedding(9, 32), nn.Embedding(1, 32)
        self.place, self.by_row = nn.Parameter(0.5 * torch.randn(24, 32)), by_row
        self.encoder, self.read, self.norm, self.feed = Pre(Attend()), Attend(), nn.LayerNorm(32), Feed()
        self.out = nn.Linear(32, 9)

    def forward(self, words: Tensor) -> Tensor:
        memory = self.encoder(self.source(words) + self.place[: words.shape[1]])
        ask = self.enter(torch.zeros_like(words))
        ask = ask + (self.place[: len(words), None] if self.by_row else self.place[None, : words.shape[1]])
        said = ask + self.read(self.norm(ask), memory)
        return self.out(said + self.feed(said))


# songyangco/GETNext#2: the place of a token is taken along the batch, so that all steps of a row have the same.
by_step = zoo.healthy("words-places-along-the-steps", lambda s: live(Batchwise(False), swaps(s), "Adam", 5e-3, 110))
zoo.sick(
    "words-places-along-the-batch",
    lambda s: live(Batchwise(True), swaps(s), "Adam", 5e-3, 110),
    both(lasting(alike("read", 1e-3)), ends_worse(1.2)),
    *MERGED,
    layer=("enter", "read", "feed", "norm", "out", "read.wq", "read.wk", "read.wv", "read.wo"),
    also=ALIKE_TOO,
    control=by_step,
)

# --- heads that are one


class Head(nn.Module):
    """One head."""

    def __init__(self, width: int = 32, size: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x)[:, None], self.k(x)[:, None], self.v(x)[:, None])[:, 0]


class Heads(nn.Module):
    """Heads in a list, side by side."""

    def __init__(self, heads: list[nn.Module]) -> None:
        super().__init__()
        self.heads, self.o = nn.ModuleList(heads), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.cat([head(x) for head in self.heads], dim=-1))


@torch.no_grad()
def heads_same(setup: Setup) -> float:
    """How near what the heads of the first block say is to one answer: 1 where all say the same."""
    x = torch.randn(4, 6, 32)
    said = torch.stack([head(x) for head in setup.model.blocks[0].attn.heads])
    return 1 - ((said - said[:1]).abs().max() / said.abs().max()).item()


def listed(seed: int, shared: bool) -> Setup:
    def heads() -> list[nn.Module]:
        return [Head()] * 4 if shared else [Head() for _ in range(4)]

    return teams(seed, [Pre(Heads(heads()))])


# IDEA-Research/DAB-DETR#17: a list of one and the same module, several times, shares its weights.
several = zoo.healthy("players-four-heads", lambda s: listed(s, False))
zoo.sick(
    "players-one-head-four-times-in-the-list",
    lambda s: listed(s, True),
    both(lasting(more_than(heads_same, 0.9999, "heads agree by")), ends_worse(1.2)),
    *SAME,
    layer=("blocks.0.attn", "blocks.0.attn.heads", *(f"blocks.0.attn.heads.0{p}" for p in ("", ".q", ".k", ".v"))),
    also=ONE_TOO,
    control=several,
)


class Averaged(nn.Module):
    """The mean of some heads of full size, as in graph attention; they may be copies of the first."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        first = Head(32, 32)
        self.heads = nn.ModuleList(copy.deepcopy(first) if copied else Head(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x) for head in self.heads]).mean(dim=0)


# pytorch/pytorch#86274, harvardnlp/annotated-transformer#9: deepcopy gives each the same start; their mean keeps it.
own_start = zoo.healthy("players-mean-of-heads", lambda s: teams(s, [Pre(Averaged(False))]))
zoo.sick(
    "players-mean-of-copied-heads",
    lambda s: teams(s, [Pre(Averaged(True))]),
    both(lasting(more_than(heads_same, 0.9999, "heads agree by")), ends_worse(1.15)),
    *SAME,
    layer=("blocks.0.attn", *(f"blocks.0.attn.heads.{i}{p}" for i in range(4) for p in ("", ".q", ".k", ".v"))),
    also=ONE_TOO,
    control=own_start,
)


class Zeroed(Own):
    """Queries, and maybe keys as well, that start at zero."""

    def __init__(self, keys: bool) -> None:
        super().__init__()
        for part in (self.q, self.k) if keys else (self.q,):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)


# microsoft/mup#36 zeroes the queries, which is sound; with two such layers, as in yz93/LAVT-RIS#25, none moves.
queries = zoo.healthy("words-queries-from-zero", lambda s: turned(s, [Pre(Zeroed(False)) for _ in range(2)], steps=110))
zoo.sick(
    "words-queries-and-keys-from-zero",
    lambda s: turned(s, [Pre(Zeroed(True)) for _ in range(2)], steps=110),
    both(lasting(one_head(), no_gradient("blocks.0.attn.q", "blocks.0.attn.k")), ends_worse(1.2)),
    "HEAD_DIVERSITY",
    "DISCONNECTED",
    "DEAD",
    "RANK_COLLAPSE",
    "SYMMETRY",
    layer=paths(2, "q", "k"),
    also={*ONE_TOO, "never_moves", "VANISHING", "SLOW"},
    control=queries,
)


def constant(seed: int, value: float | None) -> Setup:
    """All matrices of the blocks at one value."""
    block = Post(Attend())
    for part in block.attn.children():
        nn.init.zeros_(part.bias)
        if value is not None:
            nn.init.constant_(part.weight, value)
    return teams(seed, [block])


# ai.stackexchange 25148, stats.stackexchange 373850: heads differ because they are drawn; of one constant they do not.
drawn = zoo.healthy("players-attention-weights-drawn", lambda s: constant(s, None))
zoo.sick(
    "players-attention-weights-constant",
    lambda s: constant(s, 0.05),
    both(lasting(one_head(below=1e-3)), ends_worse(1.15)),
    *SAME,
    "LOW_RANK",
    "RANK_COLLAPSE",
    layer=paths(1, "wq", "wk", "wv", "wo"),
    also={*ONE_TOO, "SLOW", "VANISHING", "DEAD"},
    control=drawn,
)
