# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers of which people wrote that attention is one-hot, that tokens or heads are all alike; with the fixes.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import (
    Attend,
    Feed,
    Net,
    Patches,
    Pre,
    alike,
    boxes,
    citations,
    ends_worse,
    segments,
    small_gradients,
)
from validation.cases._everyday_sequences import more_than
from validation.cases._reported_sequences import Own, one_head, paths
from validation.cases._threads_sequences import DOUBLE, LOCKER, NOTE, doubles, holes, lockers, melodies, recipes
from validation.evidence import attends_sharply, both, lasting, no_gradient, thrives
from validation.labels import ALIKE, ONE, SHARP
from validation.setups import live

zoo = Zoo("transformer", half="threads", analyzer="transformer", proof=thrives(0.15))
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION", "attention_logits")
SHARP_TOO = {*SHARP, "VANISHING", "HEAD_DIVERSITY", "RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK", "NUMERICAL", "SLOW"}
MERGED = ("RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK")
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SLOW", "DEAD", "DISCONNECTED", "SYMMETRY", "loss_stuck"}
SAME = ("HEAD_DIVERSITY", "SYMMETRY")
ONE_TOO = {*ONE, "ENTROPY_COLLAPSE", "RANK_COLLAPSE"}


def opened(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """What lies in the locker that each token asks for?"""
    model = Net(nn.Linear(LOCKER, width), blocks, 6, width=width, length=0)
    return live(model, lockers(seed), **{"kind": "Adam", "lr": 3e-3, "steps": 100, **more})


def both_opened(seed: int, blocks: list[nn.Module], **more) -> Setup:
    """What lies in both?"""
    model = Net(nn.Linear(DOUBLE, 32), blocks, 9, length=0)
    return live(model, doubles(seed), **{"kind": "Adam", "lr": 1e-2, "steps": 110, **more})


def cooked(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """The word three places on, in another code."""
    model = Net(nn.Embedding(10, width), blocks, 10, width=width, length=7)
    return live(model, recipes(seed), **{"kind": "Adam", "lr": 5e-3, "steps": 90, **more})


# --- attention that is one-hot


class Scaled(Own):
    """Scores times some number, with matrices after Glorot."""

    def __init__(self, scale: float, **more) -> None:
        super().__init__(**more)
        self.scale = scale
        for part in (self.q, self.k):
            nn.init.xavier_uniform_(part.weight)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.scale * (q @ k.transpose(2, 3))


def scaled(seed: int, scale: float) -> Setup:
    """Heads of 128, as in large models."""
    blocks = [Pre(Scaled(scale, width=128, heads=1), 128) for _ in range(2)]
    return opened(seed, blocks, 128, lr=1e-3, steps=40)


# mlc-ai/mlc-llm#3426, PAIR-code/tiny-transformers#71: the scale defaults to 1 where one by the root of d was meant.
by_root = zoo.healthy("lockers-heads-of-128-scale-by-the-root", lambda s: scaled(s, 128**-0.5))
zoo.sick(
    "lockers-heads-of-128-scale-1",
    lambda s: scaled(s, 1.0),
    both(lasting(attends_sharply(below=0.3)), ends_worse(1.2)),
    *ONE_HOT,
    layer=paths(2, "q", "k"),
    also=SHARP_TOO,
    control=by_root,
)


class Fan(Own):
    """Queries and keys drawn by some fan."""

    def __init__(self, fan: int, **more) -> None:
        super().__init__(**more)
        for part in (self.q, self.k):
            nn.init.normal_(part.weight, std=fan**-0.5)


# clankur/einygpt#3: the matrices are scaled by the size of a head, 4, and not by that of the model, 64.
of_model = zoo.healthy("recipes-drawn-by-the-width-of-the-model", lambda s: cooked(
    s, [Pre(Fan(64, width=64, heads=16), 64) for _ in range(2)], 64, lr=2e-3, steps=80
))  # fmt: skip
zoo.sick(
    "recipes-drawn-by-the-size-of-a-head",
    lambda s: cooked(s, [Pre(Fan(4, width=64, heads=16), 64) for _ in range(2)], 64, lr=2e-3, steps=80),
    both(lasting(attends_sharply(below=0.15)), ends_worse(1.2)),
    *ONE_HOT,
    layer=paths(2, "q", "k"),
    also=SHARP_TOO,
    control=of_model,
)


class Slopes(Own):
    """Causal, with a penalty for distance of another slope in each head, and no places else."""

    def __init__(self, sign: int) -> None:
        super().__init__(32, 2, True)
        slope = torch.tensor([2.0 ** (sign * 4 * (i + 1)) for i in range(2)])
        away = (torch.arange(16)[:, None] - torch.arange(16)).clamp(min=0)
        self.register_buffer("penalty", slope[:, None, None] * away)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) - self.penalty[:, : q.shape[2], : q.shape[2]]


def sloped(seed: int, sign: int) -> Setup:
    model = Net(nn.Embedding(NOTE, 32), [Pre(Slopes(sign)) for _ in range(2)], NOTE, length=0)
    return live(model, melodies(seed), "Adam", 5e-3, 110)


# MeryylleA/lunariscodex#76, paiml/aprender#2143: the exponent of the slopes of ALiBi is wrong; here its sign, so that
# each token sees itself only.
falling = zoo.healthy("melodies-alibi-slopes-2-to-minus-8", lambda s: sloped(s, -1))
zoo.sick(
    "melodies-alibi-slopes-2-to-plus-8",
    lambda s: sloped(s, 1),
    both(lasting(attends_sharply(below=0.15)), ends_worse(1.2)),
    *ONE_HOT,
    "HEAD_DIVERSITY",
    layer=paths(2, "q", "k"),
    also={*SHARP_TOO, "DEAD", "DISCONNECTED", "never_moves"},
    control=falling,
)


class Cosine(Own):
    """Cosines of queries and keys, times exp of a learned number, as in the second Swin."""

    def __init__(self, tau: float, **more) -> None:
        super().__init__(**more)
        self.log_scale = nn.Parameter(torch.tensor(1 / tau).log())

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(2, 3) * self.log_scale.exp()


def cosine(seed: int, tau: float) -> Setup:
    return cooked(seed, [Pre(Cosine(tau)) for _ in range(2)], lr=3e-3)


# openai/CLIP#46 on the clipping at 100, microsoft/Swin-Transformer#373 on cosine attention: a temperature far below
# that of the paper, and the largest cosine takes it all.
warm = zoo.healthy("recipes-cosine-attention-temperature-0.1", lambda s: cosine(s, 0.1))
zoo.sick(
    "recipes-cosine-attention-temperature-0.002",
    lambda s: cosine(s, 0.002),
    both(lasting(attends_sharply(below=0.15)), ends_worse(1.2)),
    *ONE_HOT,
    layer=paths(2, "q", "k"),
    also=SHARP_TOO,
    control=warm,
)

# --- tokens that become one


class Reader(nn.Module):
    """An encoder of words, and a question for each place that reads what the encoder said, or its mean alone."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.enter, self.place = nn.Embedding(10, 32), nn.Parameter(0.5 * torch.randn(1, 7, 32))
        self.encoder, self.norm, self.read, self.feed = Pre(Attend()), nn.LayerNorm(32), Attend(), Feed()
        self.ask, self.out, self.pooled = nn.Parameter(0.5 * torch.randn(1, 7, 32)), nn.Linear(32, 10), pooled

    def forward(self, words: Tensor) -> Tensor:
        memory = self.encoder(self.enter(words) + self.place)
        memory = memory.mean(dim=1, keepdim=True) if self.pooled else memory
        said = self.ask + self.read(self.norm(self.ask).expand(len(words), -1, -1), memory)
        return self.out(said + self.feed(said))


READ = tuple(f"read{part}" for part in ("", ".wq", ".wk", ".wv", ".wo"))
# cvlab-columbia/zero123#29, Francis-Rings/StableAnimator#110: the context is one token; all weights are one, queries
# and keys get no gradient, and every place is told the same.
all_tokens = zoo.healthy("recipes-context-of-all-tokens", lambda s: live(Reader(False), recipes(s), "Adam", 5e-3, 100))
zoo.sick(
    "recipes-context-of-one-token",
    lambda s: live(Reader(True), recipes(s), "Adam", 5e-3, 100),
    both(lasting(alike("read", 1e-3), small_gradients(["read.wq", "read.wk"], "read.wv", 1e-5)), ends_worse(1.3)),
    *MERGED,
    "DISCONNECTED",
    "DEAD",
    "HEAD_DIVERSITY",
    "ENTROPY_COLLAPSE",
    layer=READ,
    also={*ALIKE_TOO, "never_moves"},
    control=all_tokens,
)


class Detector(nn.Module):
    """Patches, an encoder, three object queries; the queries may be clones of one."""

    def __init__(self, cloned: bool) -> None:
        super().__init__()
        self.enter, self.place = Patches(), nn.Parameter(0.5 * torch.randn(1, 16, 32))
        self.encoder = Pre(Attend())
        self.query, self.cloned = nn.Parameter(torch.randn(1, 1 if cloned else 3, 32)), cloned
        self.norm0, self.own = nn.LayerNorm(32), Attend()
        self.norm, self.read, self.feed, self.out = nn.LayerNorm(32), Attend(), Feed(), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.encoder(self.enter(x) + self.place)
        q = self.query.expand(len(x), 3, -1)
        q = q + self.own(self.norm0(q))
        q = q + self.read(self.norm(q), memory)
        return self.out(q + self.feed(q))[..., 0]


# ShoufaChen/DiffusionDet#14: queries that are clones give boxes that are clones.
three = zoo.healthy("boxes-three-queries", lambda s: live(Detector(False), boxes(s), "Adam", 3e-3, 110))
zoo.sick(
    "boxes-one-query-cloned",
    lambda s: live(Detector(True), boxes(s), "Adam", 3e-3, 110),
    both(lasting(alike("read", 1e-3)), ends_worse(1.5)),
    *MERGED,
    "SYMMETRY",
    layer=("own", "norm0", "norm", "feed", "feed.up", "out", *READ, *(f"own.{p}" for p in ("wq", "wk", "wv", "wo"))),
    also=ALIKE_TOO,
    control=three,
)


class Masked(nn.Module):
    """What is seen of a picture goes through an encoder; the decoder fills in one token for all that is hidden."""

    def __init__(self, places: bool) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(9, 32), nn.Parameter(0.5 * torch.randn(1, 16, 32))
        self.encoder, self.token = Pre(Attend()), nn.Parameter(0.5 * torch.randn(1, 1, 32))
        self.again = nn.Parameter(0.5 * torch.randn(1, 16, 32)) if places else None
        self.norm, self.read, self.feed, self.out = nn.LayerNorm(32), Attend(), Feed(), nn.Linear(32, 9)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        seen = (~hidden).float().argsort(dim=1, descending=True, stable=True)[:, :8]
        h = (self.enter(x) + self.place).gather(1, seen[..., None].expand(-1, -1, 32))
        memory = self.encoder(h)
        y = self.token.expand(len(x), 16, -1)
        y = y if self.again is None else y + self.again
        y = y + self.read(self.norm(y), memory)
        return self.out(y + self.feed(y))


# lucidrains/vit-pytorch#175, #189: do the tokens of the decoder need places? Mask tokens do; without, all are guessed
# the same.
placed = zoo.healthy("holes-mask-tokens-with-places", lambda s: live(Masked(True), holes(s), "Adam", 5e-3, 110))
zoo.sick(
    "holes-mask-tokens-without-places",
    lambda s: live(Masked(False), holes(s), "Adam", 5e-3, 110),
    both(lasting(alike("read", 1e-3)), ends_worse(1.5)),
    *MERGED,
    layer=("norm", "feed", "feed.up", "out", *READ),
    also=ALIKE_TOO,
    control=placed,
)


class Neighbours(nn.Module):
    """Attention of a paper to those that it is linked with, with a skip or without."""

    def __init__(self, skip: bool, width: int = 32) -> None:
        super().__init__()
        self.attn, self.dense, self.norm, self.skip = Own(width, 4), nn.Linear(width, width), nn.LayerNorm(width), skip

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        self.attn.chances = lambda z: z.masked_fill(~link[:, None], -1e9).softmax(dim=-1)
        said = F.gelu(self.dense(self.attn(self.norm(x) if self.skip else x)))
        return x + said if self.skip else said


class Graph(nn.Module):
    """Several of them."""

    def __init__(self, depth: int, skip: bool) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(12, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList(Neighbours(skip) for _ in range(depth))

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        h = self.enter(x)
        for block in self.blocks:
            h = block(h, link)
        return self.out(h)


# RS-KR/GNN-RS-Beginner#12, kenziyuliu/MS-G3D#53: with more and more layers all nodes become one; skips help.
few = zoo.healthy("citations-10-layers-with-skips", lambda s: live(Graph(10, True), citations(s), "Adam", 3e-3, 60))
zoo.sick(
    "citations-10-layers-without-skips",
    lambda s: live(Graph(10, False), citations(s), "Adam", 3e-3, 60),
    both(lasting(alike("blocks.9", 0.15)), ends_worse(1.3)),
    *MERGED,
    "VANISHING",
    layer=("enter", *(f"blocks.{i}{p}" for i in range(10) for p in ("", ".attn", ".dense", ".attn.v", ".attn.o"))),
    also={*ALIKE_TOO, "ENTROPY_COLLAPSE"},
    control=few,
)


class Bare(nn.Module):
    """A block of a vision transformer; what should be added again is computed and forgotten, or added."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.feed, self.skip = (
            nn.LayerNorm(32),
            Attend(),
            nn.LayerNorm(32),
            Feed(),
            skip,
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = x
        x = self.attn(self.norm1(x))
        x = x + kept if self.skip else x
        kept = x
        x = self.feed(self.norm2(x))
        return x + kept if self.skip else x


def patched(seed: int, skip: bool) -> Setup:
    model = Net(Patches(), [Bare(skip) for _ in range(5)], 8, "mean", length=16)
    return live(model, segments(seed), "Adam", 2e-3, 70)


# lucidrains/vit-pytorch#265: the sum for the skip is kept in a name that is never used again.
added = zoo.healthy("digits-vit-skips-added", lambda s: patched(s, True))
zoo.sick(
    "digits-vit-skips-never-used",
    lambda s: patched(s, False),
    both(lasting(alike("blocks.4.attn", 0.15)), ends_worse(1.3)),
    *MERGED,
    "VANISHING",
    layer=("enter", "enter.proj", *(f"blocks.{i}{p}" for i in range(5) for p in ("", ".attn", ".feed", ".attn.wv"))),
    also=ALIKE_TOO,
    control=added,
)

# --- heads that are one


class Times(Own):
    """torch-like attention with a scale that is used as it is given."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.scale * (q @ k.transpose(2, 3))


# SKaiNET-developers/SKaiNET#860: the scale of 0 that stands for "the default" is multiplied with; every head looks
# at everything evenly.
default = zoo.healthy("lockers-scale-of-the-default", lambda s: opened(s, [Pre(Times(8**-0.5)) for _ in range(2)]))
zoo.sick(
    "lockers-scale-0-taken-literally",
    lambda s: opened(s, [Pre(Times(0.0)) for _ in range(2)]),
    both(lasting(one_head(), no_gradient("blocks.0.attn.q", "blocks.0.attn.k")), ends_worse(1.3)),
    "HEAD_DIVERSITY",
    "RANK_COLLAPSE",
    "DISCONNECTED",
    "DEAD",
    "SYMMETRY",
    layer=paths(2, "q", "k", "v", "o"),
    also={*ONE_TOO, "never_moves", "VANISHING", "SLOW"},
    control=default,
)


class Expanded(nn.Module):
    """Keys and values of one head for all, and the queries as well, or not."""

    def __init__(self, queries: bool, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        size, self.heads = width // heads, heads
        self.q = nn.Linear(width, width if queries else size)
        self.k, self.v, self.o = nn.Linear(width, size), nn.Linear(width, size), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (part(x)[:, None].expand(-1, self.heads, -1, -1) for part in (self.k, self.v))
        q = self.q(x).unflatten(-1, (-1, k.shape[-1])).transpose(1, 2).expand(-1, self.heads, -1, -1)
        p = (q @ k.transpose(2, 3) / k.shape[-1] ** 0.5).softmax(dim=-1)
        return self.o((p @ v).transpose(1, 2).flatten(2))


# wandb/senpai#1325, bigcode-project/transformers#4: keys and values of one head are expanded to all; here the queries
# went the same way, and all heads are one.
per_head = zoo.healthy("doubles-multi-query", lambda s: both_opened(s, [Pre(Expanded(True)) for _ in range(2)]))
zoo.sick(
    "doubles-one-head-expanded-to-four",
    lambda s: both_opened(s, [Pre(Expanded(False)) for _ in range(2)]),
    both(lasting(one_head()), ends_worse(1.2)),
    *SAME,
    layer=paths(2, "q", "k", "v", "o"),
    also=ONE_TOO,
    control=per_head,
)


class Shards(nn.Module):
    """Attention in four shards, as tensor parallelism has it: each has its heads and its part of the output."""

    def __init__(self, seeds: bool, width: int = 32) -> None:
        super().__init__()
        state, parts = torch.get_rng_state(), []
        for _ in range(4):
            if not seeds:
                torch.set_rng_state(state)
            parts.append(Shard(width, 8))
        self.shards = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([shard(x) for shard in self.shards]).sum(dim=0)


class Shard(nn.Module):
    """The head of one rank."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(width, 3 * size), nn.Linear(size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        return self.o(F.scaled_dot_product_attention(q, k, v)[:, 0])


@torch.no_grad()
def shards_same(setup: Setup) -> float:
    """How near the shards of the first block are to one: 1 where all say the same."""
    x = torch.randn(4, 6, 32)
    said = torch.stack([shard(x) for shard in setup.model.blocks[0].attn.shards])
    return 1 - ((said - said[:1]).abs().max() / said.abs().max()).item()


# modelscope/ms-swift#7944, NVIDIA/Megatron-LM#135: each rank draws its shard from the same state of the generator, and
# since their outputs are summed, the shards stay the same.
own_seeds = zoo.healthy("doubles-shards-of-their-own-seeds", lambda s: both_opened(s, [Pre(Shards(True))]))
zoo.sick(
    "doubles-shards-of-the-same-seed",
    lambda s: both_opened(s, [Pre(Shards(False))]),
    both(lasting(more_than(shards_same, 0.9999, "shards agree by")), ends_worse(1.15)),
    *SAME,
    layer=("blocks.0.attn", *(f"blocks.0.attn.shards.{i}{p}" for i in range(4) for p in ("", ".qkv", ".o"))),
    also=ONE_TOO,
    control=own_seeds,
)
