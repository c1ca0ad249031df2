# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people write them, with one fault each, and their twins.

Half: everyday.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_sequences import (
    LETTERS,
    Model,
    Patch,
    PreNorm,
    SelfAttention,
    chars,
    glyphs,
    more_than,
    reversal,
    same_outputs,
    tags,
    topics,
)
from validation.evidence.attention import tokens_alike
from validation.evidence.live import (
    at_last,
    attends_sharply,
    breaks,
    flat_behind,
    heads_agree,
    lags,
    lasting,
    never_fires,
    thrives,
)
from validation.evidence.recurrent import states_rank
from validation.evidence.signal import both, gradient_ratio, no_gradient, size, trace
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import ALIKE, JUMPS, LOST, ONE, ONE_WAY, SHARP
from validation.nets.attention import torch_layers
from validation.nets.programs import RankOne
from validation.setups import live
from validation.tasks import Task, every

zoo = Zoo("transformer", half="everyday", analyzer="transformer", proof=thrives())
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION")
SHARP_TOO = {*SHARP, "VANISHING", "HEAD_DIVERSITY"}
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY"}


def inside(path: str, *parts: str) -> tuple[str, ...]:
    """Where an engineer may point: the projections of an attention."""
    return tuple(f"{path}.{part}" for part in parts)


def letters(seed: int, blocks: list[nn.Module], width: int = 32, head: nn.Module | None = None, **more) -> Setup:
    """A small language model on letters."""
    model = Model(nn.Embedding(len(LETTERS), width), blocks, len(LETTERS), width)
    if head is not None:
        model.head = head
    return live(model, chars(seed, batch=12), **{"lr": 3e-3, "steps": 60, **more})


def tagger(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    """Tag every word."""
    return live(Model(nn.Embedding(24, width), blocks, 5, width), tags(seed), **{"lr": 3e-3, "steps": 60, **more})


def vit(seed: int, blocks: list[nn.Module], narrow: int | None = None, task: Task | None = None, **more) -> Setup:
    """Tell pictures apart by their patches."""
    model = Model(Patch(32, narrow), blocks, 12, pool=True, length=16)
    return live(model, task or glyphs(seed), **{"lr": 2e-3, "steps": 40, **more})


# --- attention that is one-hot

gpt = zoo.healthy(
    "letters-attention-by-hand-2x64",
    lambda s: letters(s, [PreNorm(SelfAttention(64, 1, True), 64) for _ in range(2)], 64),
)
zoo.sick(
    "letters-scores-times-root-of-the-width",
    lambda s: letters(s, [PreNorm(SelfAttention(64, 1, True, factor=64**0.5), 64) for _ in range(2)], 64),
    lasting(attends_sharply(below=0.2)),
    *ONE_HOT,
    layer=tuple(f"blocks.{i}.attn.{part}" for i in range(2) for part in "qkv"),
    also=SHARP_TOO,
    control=gpt,
)


class Course(nn.Module):
    """Attention of one head from a first course: three matrices from torch.randn, scaled by `std`."""

    def __init__(self, width: int, std: float) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Parameter(std * torch.randn(width, width)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x @ self.wq, x @ self.wk, x @ self.wv
        return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v


course = zoo.healthy("tags-attention-from-randn-over-root", lambda s: tagger(s, [PreNorm(Course(32, 32**-0.5))]))
zoo.sick(
    "tags-attention-from-plain-randn",
    lambda s: tagger(s, [PreNorm(Course(32, 1.0)) for _ in range(2)]),
    both(lasting(attends_sharply()), lags(0.1)),
    *ONE_HOT,
    layer=("blocks.0.attn", "blocks.1.attn"),
    also=SHARP_TOO,
    control=course,
)


class Caption(nn.Module):
    """Words read the features of a picture by cross-attention."""

    def __init__(self, blind: bool = False, copied: bool = False) -> None:
        super().__init__()
        self.patch, self.words = nn.Conv2d(1, 32, 3, stride=3), nn.Embedding(4, 32)
        self.cross = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.fc, self.out = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 6)
        self.blind = blind
        if copied:
            with torch.no_grad():
                for part in self.cross.in_proj_weight.chunk(3)[:2]:
                    part.copy_(4 * part[:8].repeat(4, 1))
            self.cross.in_proj_weight.requires_grad_(False)
            self.cross.in_proj_bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.blind):
            features = self.patch(x).flatten(2).transpose(1, 2)
        words = self.words.weight.expand(len(x), -1, -1)
        h = self.norm(words + self.cross(words, features, features, need_weights=False)[0])
        return self.out(F.gelu(self.fc(h.mean(dim=1))))


def caption(seed: int, **fault) -> Setup:
    return live(Caption(**fault), glyphs(seed), lr=3e-3, steps=60)


captions = zoo.healthy("words-read-a-picture", caption)


class Lookup(nn.Module):
    """Translates by one look at the source: cross-attention by hand; the scores are divided by a temperature."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 32), nn.Embedding(11, 32)
        self.place, self.temperature = nn.Parameter(0.5 * torch.randn(1, 6, 32)), temperature
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory, x = self.source(source) + self.place, self.target(shifted) + self.place
        scores = self.q(x) @ self.k(memory).transpose(1, 2) / (32**0.5 * self.temperature)
        return self.out(self.norm(x + torch.softmax(scores, dim=-1) @ self.v(memory)))


def lookup(seed: int, temperature: float) -> Setup:
    return live(Lookup(temperature), reversal(seed), lr=1e-2, steps=80)


once = zoo.healthy("reversal-one-look-at-the-source", lambda s: lookup(s, 1.0))
zoo.sick(
    "reversal-one-look-at-temperature-0.001",
    lambda s: lookup(s, 0.001),
    both(lasting(attends_sharply(below=0.15)), lags(0.1)),
    *ONE_HOT,
    layer=("q", "k", "v"),
    also=SHARP_TOO,
    control=once,
)


@torch.no_grad()
def all_normal(layers: list[nn.Module], std: float) -> list[nn.Module]:
    """Every matrix by `normal_`, where xavier_uniform_ was meant."""
    for layer in layers:
        for p in layer.self_attn.parameters():
            if p.dim() > 1:
                p.normal_(std=std)
    return layers


posted = zoo.healthy("tags-torch-encoder-post-norm-2x32", lambda s: tagger(s, torch_layers(2)))
zoo.sick(
    "tags-torch-encoder-attention-weights-std-1",
    lambda s: tagger(s, all_normal(torch_layers(2), 1.0), lr=1e-3),
    both(lasting(attends_sharply()), lags(0.1)),
    *ONE_HOT,
    layer=("blocks.0.self_attn", "blocks.1.self_attn"),
    also=SHARP_TOO,
    control=posted,
)


class Pooling(nn.Module):
    """One learned query gathers a text; it starts `size` large."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.words, self.query = nn.Embedding(48, 32), nn.Parameter(size * torch.randn(1, 1, 32))
        self.attn = nn.MultiheadAttention(32, 2, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, question: Tensor, document: Tensor) -> Tensor:
        words = self.words(torch.cat([question, document], dim=1))
        return self.out(self.attn(self.query.expand(len(words), -1, -1), words, words, need_weights=False)[0][:, 0])


def pooling(seed: int, size: float) -> Setup:
    return live(Pooling(size), topics(seed).with_loss(F.cross_entropy), lr=5e-3, steps=60)


pooled = zoo.healthy("topics-pooling-query-of-1", lambda s: pooling(s, 1.0))
zoo.sick(
    "topics-pooling-query-of-400",
    lambda s: pooling(s, 400.0),
    both(lasting(attends_sharply(below=0.25)), lags(0.1)),  # words that occur twice share their weight
    *ONE_HOT,
    layer="attn",
    also=SHARP_TOO,
    control=pooled,
)


class Counted(nn.Module):
    """Positions are added as the plain numbers 0, 1, 2 …, or as these divided by their count."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(24, 32), scale
        self.q, self.k, self.v = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.fc, self.out = nn.Linear(32, 64), nn.Linear(64, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = x + self.scale * torch.arange(x.shape[1])[:, None]
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32**0.5
        return self.out(F.gelu(self.fc(x + torch.softmax(scores, dim=-1) @ self.v(x))))


@torch.no_grad()
def level(setup: Setup) -> float:
    """The loss over some batches; guessing costs 1.6, the twin ends at half of that."""
    return sum(setup.loss_fn(setup.model(setup.input_fn())).item() for _ in range(8)) / 8


counted = zoo.healthy(
    "tags-positions-from-0-to-1", lambda s: live(Counted(1 / 20), tags(s, length=20), lr=5e-3, steps=60)
)
zoo.sick(
    "tags-positions-from-0-to-400",
    lambda s: live(Counted(20.0), tags(s, length=20), lr=1e-3, steps=60),
    both(lasting(attends_sharply(below=0.15)), at_last(more_than(level, 1.2, "the loss ends at"))),
    *ONE_HOT,
    layer=("q", "k", "v", "words"),
    also={*SHARP_TOO, "RANK_COLLAPSE", "LOW_RANK", "BOTTLENECK"},
    control=counted,
)

# --- tokens that become one

tagging = zoo.healthy(
    "tags-attention-by-hand-3x32", lambda s: tagger(s, [PreNorm(SelfAttention(32, 4)) for _ in range(3)])
)
zoo.sick(
    "tags-attention-by-hand-6x32-no-skips",
    lambda s: tagger(s, [PreNorm(SelfAttention(32, 4), skip=False) for _ in range(6)], lr=1e-3),
    both(lasting(tokens_alike("blocks.5", 0.1)), lags(0.1)),
    "RANK_COLLAPSE",
    also=ALIKE_TOO,
    control=tagging,
)


class PostNorm(nn.Module):
    """x = norm(attention(x)), with or without the sum."""

    def __init__(self, add: bool) -> None:
        super().__init__()
        self.attn, self.norm, self.add = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32), add

    def forward(self, x: Tensor) -> Tensor:
        h = self.attn(x, x, x, need_weights=False)[0]
        return self.norm(x + h if self.add else h)


summed = zoo.healthy("tags-post-norm-attention-5x32", lambda s: tagger(s, [PostNorm(True) for _ in range(5)]))
zoo.sick(
    "tags-post-norm-attention-8x32-nothing-added",
    lambda s: tagger(s, [PostNorm(False) for _ in range(8)], lr=1e-3),
    both(lasting(tokens_alike("blocks.7")), lags(0.1)),
    "RANK_COLLAPSE",
    also=ALIKE_TOO,
    control=summed,
)


class Again(nn.Module):
    """One block, used many times over."""

    def __init__(self, block: nn.Module, times: int) -> None:
        super().__init__()
        self.block, self.times = block, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.block(x)
        return x


shared = zoo.healthy(
    "letters-one-block-six-times", lambda s: letters(s, [Again(PreNorm(SelfAttention(32, 4, True)), 6)])
)
zoo.sick(
    "tags-one-block-ten-times-no-skips",
    lambda s: tagger(s, [Again(PreNorm(SelfAttention(32, 4), skip=False), 10)], lr=5e-4),
    lasting(tokens_alike("blocks.0")),
    "RANK_COLLAPSE",
    layer=("blocks.0.block.fc2", "blocks.0.block.fc1", *inside("blocks.0.block.attn", "q", "k", "v", "o")),
    also=ALIKE_TOO,
    control=tagging,
)


class Graph(nn.Module):
    """Graph attention after Velickovic: a node looks at its neighbours; `keep` adds what it was."""

    def __init__(self, depth: int, keep: bool) -> None:
        super().__init__()
        self.enter, self.keep = nn.Embedding(24, 32), keep
        self.lins = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.sides = nn.ModuleList(nn.Linear(32, 2, bias=False) for _ in range(depth))
        self.out = nn.Linear(32, 5)

    def forward(self, nodes: Tensor) -> Tensor:
        x, place = self.enter(nodes), torch.arange(nodes.shape[1])
        far = (place[:, None] - place).abs() > 3
        for lin, side in zip(self.lins, self.sides, strict=True):
            h = lin(x)
            a, b = side(h).unbind(-1)
            scores = F.leaky_relu(a[:, :, None] + b[:, None], 0.2).masked_fill(far, float("-inf"))
            h = F.elu(scores.softmax(dim=-1) @ h)
            x = x + h if self.keep else h
        return self.out(x)


graph = zoo.healthy("graph-attention-3-layers-with-skips", lambda s: live(Graph(3, True), tags(s), lr=5e-3, steps=60))
zoo.sick(
    "graph-attention-12-layers-no-skips",
    lambda s: live(Graph(12, False), tags(s), lr=1e-3, steps=60),
    both(lasting(tokens_alike("lins.11", 0.1)), lags(0.1)),
    "RANK_COLLAPSE",
    also=ALIKE_TOO,
    control=graph,
)

# --- heads that are one


class Head(nn.Module):
    """One head."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        ahead = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return torch.softmax(scores.masked_fill(ahead, float("-inf")), dim=-1) @ v


class Listed(nn.Module):
    """Heads side by side: a list of modules, or by mistake one module in a list four times."""

    def __init__(self, width: int, heads: int, one: bool) -> None:
        super().__init__()
        size = width // heads
        self.heads = nn.ModuleList([Head(width, size)] * heads if one else [Head(width, size) for _ in range(heads)])
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


listed = zoo.healthy(
    "letters-four-heads-in-a-list", lambda s: letters(s, [PreNorm(Listed(32, 4, False)) for _ in range(2)])
)
zoo.sick(
    "letters-one-head-four-times-in-a-list",
    lambda s: letters(s, [PreNorm(Listed(32, 4, True)) for _ in range(2)]),
    lasting(same_outputs("blocks.0.attn.heads.0"), same_outputs("blocks.1.attn.heads.0")),
    "HEAD_DIVERSITY",
    "SYMMETRY",
    layer=tuple(
        f"blocks.{i}.attn.{part}" for i in range(2) for part in ("heads.0.q", "heads.0.k", "heads.0.v", "proj")
    ),
    also={"LOW_RANK", "BOTTLENECK"},
    control=listed,
)


class Sliced(nn.Module):
    """Heads by slices of the projections; in the loop the slice should move from head to head."""

    def __init__(self, width: int, heads: int, moves: bool) -> None:
        super().__init__()
        self.heads, self.size, self.moves = heads, width // heads, moves
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        parts = [slice(i * self.size, (i + 1) * self.size) for i in range(self.heads)]
        looked = parts if self.moves else parts[:1] * self.heads
        scores = torch.stack([q[..., part] @ k[..., part].transpose(1, 2) for part in looked], dim=1)
        weight = F.softmax(scores, dim=-1)
        return self.proj(torch.cat([weight[:, i] @ v[..., part] for i, part in enumerate(parts)], dim=-1))


sliced = zoo.healthy("tags-heads-by-slices", lambda s: tagger(s, [PreNorm(Sliced(32, 4, True)) for _ in range(2)]))
zoo.sick(
    "tags-heads-by-a-slice-that-never-moves",
    lambda s: tagger(s, [PreNorm(Sliced(32, 4, False)) for _ in range(2)], lr=5e-3),
    at_last(heads_agree()),
    "HEAD_DIVERSITY",
    "SYMMETRY",
    layer=("blocks.0.attn.qkv", "blocks.1.attn.qkv"),
    also={*ONE, "DISCONNECTED", "DEAD"},
    control=sliced,
)


class Expanded(nn.Module):
    """Queries and keys of one head, expanded to all: the projections are too small by the number of heads."""

    def __init__(self, width: int, heads: int, own: bool) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q, self.k = (nn.Linear(width, width if own else self.size) for _ in range(2))
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = q.expand(-1, self.heads, -1, -1), k.expand(-1, self.heads, -1, -1)
        return self.o(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))


own = zoo.healthy(
    "vit-own-queries-and-keys-per-head", lambda s: vit(s, [PreNorm(Expanded(32, 4, True)) for _ in range(3)])
)
zoo.sick(
    "vit-second-expands-one-query-and-key",
    lambda s: vit(s, [PreNorm(Expanded(32, 4, i != 1)) for i in range(3)]),
    at_last(heads_agree("blocks.1.attn")),
    "HEAD_DIVERSITY",
    "SYMMETRY",
    layer=inside("blocks.1.attn", "q", "k", "v"),
    also=ONE,
    control=own,
)
zoo.sick(
    "words-read-a-picture-by-a-head-copied-four-times",
    lambda s: caption(s, copied=True),
    lasting(heads_agree("cross")),
    "HEAD_DIVERSITY",
    "SYMMETRY",
    layer="cross",
    also=ONE,
    control=captions,
)

# --- narrow and of one direction


class Towers(nn.Module):
    """Question and document become a vector each; the score is their product."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(48, 32)
        self.body = nn.TransformerEncoder(torch_layers(1)[0], 1, enable_nested_tensor=False)
        self.project, self.widen = nn.Linear(32, size), nn.Linear(size, 32)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.widen(torch.tanh(self.project(self.body(self.words(tokens)).mean(dim=1))))

    def forward(self, question: Tensor, document: Tensor) -> Tensor:
        return self.embed(question) @ self.embed(document).T


def towers(seed: int, size: int) -> Setup:
    return live(Towers(size), topics(seed), lr=3e-3, steps=80)


retrieval = zoo.healthy("retrieval-vectors-of-24", lambda s: towers(s, 24))
zoo.sick(
    "retrieval-vectors-of-1",
    lambda s: towers(s, 1),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("project", "widen"),
    also={"RANK_COLLAPSE", "SATURATION"},
    control=retrieval,
)
seen = zoo.healthy("vit-patches-of-16-numbers", lambda s: vit(s, torch_layers(2), 16, glyphs(s, 12), steps=80))
zoo.sick(
    "vit-patches-of-1-number",
    lambda s: vit(s, torch_layers(2), 1, glyphs(s, 12), steps=80),
    lags(0.1),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("enter.conv", "enter.widen"),
    also={"RANK_COLLAPSE"},
    control=seen,
)
zoo.sick(
    "letters-head-factorised-to-rank-1",
    lambda s: letters(s, [PreNorm(SelfAttention(64, 1, True), 64) for _ in range(2)], 64, RankOne(64, len(LETTERS))),
    both(lags(0.1), lasting(states_rank(1.2, "head"))),
    *ONE_WAY,
    layer="head",
    control=gpt,
)

# --- the faults of any network


class FeedForward(nn.Module):
    """The dense half of a block, with a ReLU module."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.ln, self.fc1, self.act, self.fc2 = nn.LayerNorm(32), nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 32)
        self.fc1.bias.data -= low

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.act(self.fc1(self.ln(x))))


relu = zoo.healthy("vit-relu-feed-forward", lambda s: vit(s, [PreNorm(SelfAttention(32, 4)), FeedForward(0.0)]))
zoo.sick(
    "vit-relu-feed-forward-bias-minus-12",
    lambda s: vit(s, [PreNorm(SelfAttention(32, 4)), FeedForward(12.0)]),
    lasting(never_fires("blocks.1.fc1", 0.99), no_gradient("blocks.1.fc1", "blocks.1.ln")),
    "DEAD",
    layer=("blocks.1.fc1", "blocks.1.act"),
    also={"DISCONNECTED", "VANISHING"},
    control=relu,
)
zoo.sick(
    "words-read-a-picture-made-under-no-grad",
    lambda s: caption(s, blind=True),
    lasting(no_gradient("patch")),
    "DISCONNECTED",
    "DEAD",
    layer=("patch",),
    control=captions,
)


class Pooler(nn.Module):
    """Tokens of an encoder, a tanh pooler on the first as in BERT, an answer; `std` draws the pooler."""

    def __init__(self, std: float | None = None) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(49, 32), nn.ModuleList(torch_layers(2))
        self.pooler, self.out = nn.Linear(32, 32), nn.Linear(32, 8)
        if std is not None:
            nn.init.normal_(self.pooler.weight, std=std)

    def forward(self, question: Tensor, document: Tensor) -> Tensor:
        first = torch.full((len(question), 1), 48)
        x = self.words(torch.cat([first, question, document], dim=1))
        for layer in self.body:
            x = layer(x)
        return self.out(torch.tanh(self.pooler(x[:, 0])))


def bert(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, topics(seed).with_loss(F.cross_entropy), **{"lr": 2e-3, "steps": 60, **more})


pooler = zoo.healthy("topics-tanh-pooler", lambda s: bert(s, Pooler()))
zoo.sick(
    "topics-tanh-pooler-weights-std-8",
    lambda s: bert(s, Pooler(8.0)),
    lasting(flat_behind("pooler", "tanh", 0.8)),
    "SATURATION",
    "VANISHING",
    layer=("pooler",),
    also={"EXPLODING", "UNSTABLE"},
    control=pooler,
)


class Tall(nn.Module):
    """Attention, then a deep classifier of sigmoids or of GELUs."""

    def __init__(self, act: type[nn.Module], depth: int = 8) -> None:
        super().__init__()
        self.patch, self.attn = Patch(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        dense = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), act())]
        for layer in dense[::2]:
            nn.init.kaiming_normal_(layer.weight)
        self.classifier = nn.Sequential(*dense, nn.Linear(32, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x)
        x = self.norm(x + self.attn(x, x, x, need_weights=False)[0])
        return self.classifier(x.mean(dim=1))


tall = zoo.healthy("vit-deep-gelu-classifier", lambda s: live(Tall(nn.GELU), glyphs(s), lr=2e-3, steps=60))
zoo.sick(
    "vit-deep-sigmoid-classifier",
    lambda s: live(Tall(nn.Sigmoid), glyphs(s), lr=1e-3, steps=60),
    both(lasting(gradient_ratio("patch.conv", "classifier.14", below=1e-3)), lags(0.1)),
    "VANISHING",
    layer=("patch.conv", "attn", *(f"classifier.{i}" for i in range(0, 14, 2))),
    also={"SATURATION", "LOW_RANK", "SLOW", "RANK_COLLAPSE"},
    control=tall,
)


class Bare(nn.Module):
    """A residual block without any norm; `gain` multiplies its matrices."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.attn, self.fc1, self.fc2 = SelfAttention(32, 4, True), nn.Linear(32, 64), nn.Linear(64, 32)
        for part in (self.attn.v, self.attn.o, self.fc1, self.fc2):
            part.weight.data *= gain

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.fc2(F.relu(self.fc1(x)))


def growth(setup: Setup) -> float:
    """How much larger the tokens are behind the last block than in front of the first."""
    seen = trace(setup).outputs
    return size(seen["blocks.9"]) / size(seen["enter"])


bare = zoo.healthy("letters-blocks-without-norm-2x32", lambda s: letters(s, [Bare(1.0) for _ in range(2)]))
zoo.sick(
    "letters-blocks-without-norm-10x32-gain-4",
    lambda s: letters(s, [Bare(4.0) for _ in range(10)], lr=1e-5, clip=1.0, steps=30),
    lasting(more_than(growth, 1e3, "the last block hands on, times what enters,")),
    "EXPLODING",
    "UNSTABLE",
    also={*LOST, "VANISHING", "LOW_RANK"},
    control=bare,
)


class Masked(nn.Module):
    """Attention by hand under padding; `how` says how the mask and the softmax are written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.words = how, nn.Embedding(24, 32, padding_idx=0)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 5)

    def forward(self, tokens: Tensor, volume: float) -> Tensor:
        x = self.words(tokens) * volume
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / 32**0.5
        blank = (tokens == 0)[:, None]
        if self.how == "product":
            scores = scores + blank.float() * float("-inf")
        else:
            scores = scores.masked_fill(blank, -1e9)
        weight = scores.exp() / scores.exp().sum(dim=-1, keepdim=True) if self.how == "exp" else scores.softmax(dim=-1)
        return self.out(x + weight @ v)


def masked(seed: int, how: str) -> Setup:
    """Now and then a batch is louder than the others."""
    now = every(40, 13)
    return live(Masked(how), tags(seed).mapped(lambda t: (t, 25.0 if now() else 1.0)), lr=3e-3)


filled = zoo.healthy("tags-mask-filled-torch-softmax", lambda s: masked(s, "fill"))
zoo.sick("tags-mask-times-minus-infinity", lambda s: masked(s, "product"), breaks, "NUMERICAL", control=filled)
zoo.sick("tags-softmax-by-hand-overflows", lambda s: masked(s, "exp"), breaks, "NUMERICAL", control=filled)


def bursts(seed: int, times: float) -> Setup:
    """A batch now and then is summed where the others are averaged."""
    now = every(13, 8)
    task = glyphs(seed).with_loss(lambda z, t: F.cross_entropy(z, t) * (times if now() else 1.0))
    return vit(seed, torch_layers(2), task=task, lr=5e-4, steps=65)


even = zoo.healthy("vit-even-losses", lambda s: bursts(s, 1.0))
zoo.sick(
    "vit-one-batch-in-thirteen-weighs-300-times",
    lambda s: bursts(s, 300.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)
zoo.sick(
    "tags-torch-encoder-sgd-1e-8",
    lambda s: tagger(s, torch_layers(2), kind="SGD", lr=1e-8),
    does_not_move(steps=60),
    "SLOW",
    control=posted,
)
zoo.sick(
    "tags-torch-encoder-adamw-1",
    lambda s: tagger(s, torch_layers(2), lr=1.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={*LOST, "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=posted,
)


class Seq2Seq(nn.Module):
    """torch's own transformer translates; `loud` multiplies the keys of the source."""

    def __init__(self, loud: float = 1.0) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 32), nn.Embedding(11, 32)
        self.place = nn.Parameter(0.3 * torch.randn(1, 6, 32))
        self.body = nn.Transformer(32, 4, 1, 1, 64, 0.0, batch_first=True)
        self.out = nn.Linear(32, 10)
        self.body.decoder.layers[0].multihead_attn.in_proj_weight.data[32:64] *= loud

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(shifted.shape[1])
        return self.out(self.body(self.source(source) + self.place, self.target(shifted) + self.place, tgt_mask=mask))


def translates(seed: int, loud: float = 1.0, **more) -> Setup:
    return live(Seq2Seq(loud), reversal(seed), **{"lr": 3e-3, "steps": 80, **more})


translator = zoo.healthy("reversal-torch-transformer", translates)
zoo.sick(
    "reversal-torch-transformer-keys-of-the-source-times-300",
    lambda s: translates(s, 300.0),
    lasting(attends_sharply("body.decoder.layers.0.multihead_attn", others_above=0.3)),
    *ONE_HOT,
    layer="body.decoder.layers.0.multihead_attn",
    also=SHARP_TOO,
    control=translator,
)
