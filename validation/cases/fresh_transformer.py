# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people train them at work, with one fault each, and their twins.

Half: fresh.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.attention import tokens_alike
from validation.evidence.live import attends_sharply, breaks, heads_agree, lags, lasting, thrives
from validation.evidence.signal import equal_units, no_gradient
from validation.evidence.training import diverges
from validation.labels import ALIKE, LOST, ONE, SHARP
from validation.nets.attention import scaled_dot
from validation.nets.programs import Layer, Reader
from validation.setups import live
from validation.tasks import blanks, glyphs, lookups, majority, patches, sorting, spots

zoo = Zoo("transformer", half="fresh", analyzer="transformer", proof=thrives())


class Mix(nn.Module):
    """Attention by hand: `score` says how queries (batch, heads, i, d) and keys (batch, heads, j, d) meet."""

    def __init__(self, width: int, heads: int, score=None) -> None:
        super().__init__()
        self.heads, self.score = heads, score or scaled_dot
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.to_q, self.to_k, self.to_v))
        return self.to_out((self.score(q, k).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Text(nn.Module):
    """Words and places, any layers, an answer at every place or, when `pool` is set, one for the whole text."""

    def __init__(self, size: int, out: int, layers: list[nn.Module], width: int = 32, pool=False, loud: float = 1.0):
        super().__init__()
        self.words, self.places = nn.Embedding(size, width), nn.Embedding(16, width)
        nn.init.normal_(self.words.weight, std=0.5)
        nn.init.normal_(self.places.weight, std=0.5)
        self.layers, self.norm, self.answer = nn.ModuleList(layers), nn.LayerNorm(width), nn.Linear(width, out)
        self.pool, self.loud = pool, loud

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.loud * (self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.answer(x.mean(dim=1) if self.pool else x)


# --- attention that is too sharp


class Post(nn.Module):
    """The first kind of block: attention and feed-forward, each with the norm behind its sum."""

    def __init__(self, width: int, attn: nn.Module, branch: float = 1.0) -> None:
        super().__init__()
        self.attn, self.n1, self.n2 = attn, nn.LayerNorm(width), nn.LayerNorm(width)
        self.ff1, self.ff2, self.branch = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), branch

    def forward(self, x: Tensor) -> Tensor:
        x = self.n1(x + self.branch * self.attn(x))
        return self.n2(x + self.branch * self.ff2(F.gelu(self.ff1(x))))


def sorter(seed: int, loud: float, **more) -> Setup:
    """Embeddings times the root of the width, once, or twice and more, with no norm in front of the first block."""
    layers = [Post(32, Mix(32, 4)) for _ in range(2)]
    return live(Text(8, 8, layers, loud=loud), sorting(seed), **{"lr": 3e-3, "steps": 50, **more})


sorts = zoo.healthy("sorting-post-norm-2x32", lambda s: sorter(s, 1.0))
zoo.sick(
    "sorting-embeddings-times-the-width-without-a-norm",
    lambda s: sorter(s, 32.0),
    lasting(attends_sharply("layers.0.attn", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer=("layers.0.attn.to_q", "layers.0.attn.to_k"),
    also=SHARP,
    control=sorts,
)


def near(sharpness: float):
    """Queries look at the keys next to them, by a bell of this sharpness."""
    return lambda q, k: -sharpness * torch.cdist(q, k).square()


def bells(seed: int, sharpness: float) -> Setup:
    layers = [Layer(Mix(32, 4, near(sharpness)), 32) for _ in range(2)]
    return live(Text(6, 6, layers, pool=True), majority(seed), lr=3e-3, steps=50)


bell = zoo.healthy("majority-attention-by-distance", lambda s: bells(s, 0.15), thrives(0.05))
zoo.sick(
    "majority-attention-by-distance-bell-far-too-narrow",
    lambda s: bells(s, 300.0),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    also={*SHARP, "VANISHING", "HEAD_DIVERSITY"},
    control=bell,
)


class Relative(nn.Module):
    """Adds a learned number per head and distance to the scores, after T5."""

    def __init__(self, width: int, heads: int, std: float) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Embedding(31, heads)
        nn.init.normal_(self.bias.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        place = torch.arange(x.shape[1])
        bias = self.bias(place[:, None] - place + 15).permute(2, 0, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        return self.out((torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


def relative(seed: int, std: float, at: int = 1) -> Setup:
    layers = [Layer(Relative(32, 4, std if i == at else 0.1), 32) for i in range(3)]
    return live(Text(15, 14, layers), blanks(seed), lr=3e-3, steps=50)


places = zoo.healthy("blanks-bias-by-distance", lambda s: relative(s, 0.1))
zoo.sick(
    "blanks-bias-by-distance-second-drawn-with-deviation-100",
    lambda s: relative(s, 100.0),
    lasting(attends_sharply("layers.1.attn", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer=("layers.1.attn.qkv", "layers.1.attn.bias"),
    also={*SHARP, "VANISHING"},
    control=places,
)


class Captioner(nn.Module):
    """Learned questions read a picture's dots by torch's attention; `raw` leaves the dots as bytes."""

    def __init__(self, raw: float) -> None:
        super().__init__()
        self.dots, self.place = nn.Conv2d(1, 32, 2, stride=2), nn.Parameter(0.3 * torch.randn(1, 36, 32))
        self.ask = nn.Parameter(torch.randn(1, 4, 32))
        self.read = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.out, self.raw = nn.LayerNorm(32), nn.Linear(128, 2), raw

    def forward(self, x: Tensor) -> Tensor:
        memory = self.raw * (self.dots(x).flatten(2).transpose(1, 2) + self.place)
        ask = self.ask.expand(len(x), -1, -1)
        seen = self.read(ask, memory, memory, need_weights=False)[0]
        return self.out(self.norm(ask + seen).flatten(1))


reads = zoo.healthy("spots-four-questions", lambda s: live(Captioner(1.0), spots(s), lr=5e-3, steps=60))
zoo.sick(
    "spots-four-questions-memory-in-bytes",
    lambda s: live(Captioner(255.0), spots(s), lr=1e-3, steps=60),
    lasting(attends_sharply("read")),
    "ENTROPY_COLLAPSE",
    layer="read",
    also=SHARP,
    control=reads,
)


def twice(seed: int, factor: float) -> Setup:
    """A fused checkpoint holds the queries with the root already in them, times a thousand by mistake."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(3)]
    with torch.no_grad():
        layers[2].self_attn.in_proj_weight[:32] *= factor
        layers[2].self_attn.in_proj_bias[:32] *= factor
    return live(Text(15, 14, layers), blanks(seed), lr=2e-3, steps=50)


fused = zoo.healthy("blanks-torch-encoder-3x32", lambda s: twice(s, 1.0))
zoo.sick(
    "blanks-torch-encoder-last-queries-times-1000",
    lambda s: twice(s, 1000.0),
    lasting(attends_sharply("layers.2.self_attn", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer="layers.2.self_attn",
    also=SHARP,
    control=fused,
)

# --- tokens that become one


class Carry(nn.Module):
    """Attention beside a skip; `first` adds the first token to all instead of each to itself."""

    def __init__(self, width: int, first: bool) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.n2, self.feed, self.first = nn.LayerNorm(width), nn.Linear(width, width), first

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        x = (x[:, :1] if self.first else x) + self.attn(h, h, h, need_weights=False)[0]
        return x + F.gelu(self.feed(self.n2(x)))


def carried(seed: int, first: bool) -> Setup:
    return live(Reader(24, 32, [Carry(32, first) for _ in range(4)], 6), patches(seed, batch=16), lr=1e-3, steps=50)


carry = zoo.healthy("patches-skip-of-each-token", lambda s: carried(s, False))
zoo.sick(
    "patches-skip-of-the-first-token-for-all",
    lambda s: carried(s, True),
    lasting(tokens_alike("layers.3")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=carry,
)


def branches(seed: int, branch: float) -> Setup:
    """A constant of deep networks, put on the branch instead of the skip."""
    layers = [Post(32, Mix(32, 4), branch) for _ in range(7)]
    return live(Reader(24, 32, layers, 6), patches(seed, batch=16), lr=5e-4, steps=50)


even = zoo.healthy("patches-post-norm-7x32", lambda s: branches(s, 1.0))
zoo.sick(
    "patches-post-norm-7x32-branches-times-30",
    lambda s: branches(s, 30.0),
    lasting(tokens_alike("layers.6", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "UNSTABLE"},
    control=even,
)


class Typed(nn.Module):
    """A vector for the type of the text is added to each word; there is one type."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.body = Text(8, 8, [Layer(Mix(32, 4), 32) for _ in range(3)])
        self.kind = nn.Parameter(size * torch.randn(32))
        self.body.words.register_forward_hook(lambda _module, _inputs, output: output + self.kind)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)


typed = zoo.healthy("sorting-with-a-type-vector", lambda s: live(Typed(0.5), sorting(s), lr=3e-3, steps=50))
zoo.sick(
    "sorting-type-vector-drowns-the-words",
    lambda s: live(Typed(60.0), sorting(s), lr=1e-3, steps=50),
    lasting(tokens_alike("body.layers.2")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DISCONNECTED"},
    control=typed,
)


class Smooth(nn.Module):
    """Tokens move towards the mean of what they attend to, by a share."""

    def __init__(self, width: int, share: float) -> None:
        super().__init__()
        self.attn, self.share, self.feed = Mix(width, 4), share, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.lerp(x, self.attn(x), self.share)
        return F.layer_norm(x + 0.2 * F.gelu(self.feed(x)), x.shape[-1:])


def smoothed(seed: int, share: float) -> Setup:
    return live(Reader(24, 32, [Smooth(32, share) for _ in range(6)], 6), patches(seed, batch=16), lr=1e-3, steps=50)


little = zoo.healthy("patches-moved-by-a-tenth", lambda s: smoothed(s, 0.1))
zoo.sick(
    "patches-moved-all-the-way",
    lambda s: smoothed(s, 0.98),
    lasting(tokens_alike("layers.5")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=little,
)

# --- heads that are one


class Head(nn.Module):
    """One head: queries, keys and values of a few numbers."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size, bias=False) for _ in range(3))
        nn.init.normal_(self.q.weight, std=2.0 / width**0.5)
        nn.init.normal_(self.k.weight, std=2.0 / width**0.5)


class Heads(nn.Module):
    """Any heads, side by side or, when `mean` is set, averaged; those of a list that repeats one are one."""

    def __init__(self, width: int, heads: list[nn.Module], mean: bool = False) -> None:
        super().__init__()
        self.each, self.mean = nn.ModuleList(heads), mean
        size = heads[0].v.out_features
        self.out = nn.Linear(size if mean else size * len(heads), width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.stack([getattr(h, name)(x) for h in self.each], dim=1) for name in "qkv")
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v
        return self.out(mixed.mean(dim=1) if self.mean else mixed.transpose(1, 2).flatten(2))


def listed(seed: int, make, mean: bool = False, **more) -> Setup:
    layers = [Layer(Heads(32, make(), mean), 32) for _ in range(2)]
    return live(Reader(32, 32, layers, 8, last=True), lookups(seed, batch=24), **{"lr": 2e-3, "steps": 50, **more})


own = zoo.healthy(
    "lookups-four-heads-by-list", lambda s: listed(s, lambda: [Head(32, 8) for _ in range(4)]), thrives(0.02)
)
zoo.sick(
    "lookups-four-times-the-same-head",
    lambda s: listed(s, lambda: [Head(32, 8)] * 4),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    also=ONE,
    control=own,
)


def copies() -> list[nn.Module]:
    one = Head(32, 8)
    return [deepcopy(one) for _ in range(4)]


zoo.sick(
    "lookups-four-copies-of-a-head-averaged",
    lambda s: listed(s, copies, True, kind="SGD", lr=0.05, momentum=0.9),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    also=ONE,
    control=own,
)


def seeded() -> list[nn.Module]:
    """The constructor of a head sets the seed, for the sake of repeatability; keys and queries stay frozen."""
    state, heads = torch.get_rng_state(), []
    for _ in range(4):
        torch.manual_seed(7)
        head = Head(32, 8)
        head.q.requires_grad_(False)
        head.k.requires_grad_(False)
        heads.append(head)
    torch.set_rng_state(state)
    return heads


zoo.sick(
    "lookups-every-head-drawn-from-one-seed",
    lambda s: listed(s, seeded),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    also=ONE,
    control=own,
)


class Cut(nn.Module):
    """Heads are slices of one projection; `wrong` takes the first slice for each."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.size, self.wrong = heads, width // heads, wrong
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        for layer in (self.q, self.k):
            layer.weight.data *= 4

    def slices(self, x: Tensor) -> Tensor:
        at = [0 if self.wrong else i * self.size for i in range(self.heads)]
        return torch.stack([x[..., i : i + self.size] for i in at], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        values = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(self.slices(self.q(x)), self.slices(self.k(x)), values)
        return self.o(mixed.transpose(1, 2).flatten(2))


def sliced(seed: int, wrong: bool) -> Setup:
    layers = [Layer(Cut(32, 4, wrong and i == 1), 32) for i in range(3)]
    return live(Text(6, 6, layers, pool=True), majority(seed), lr=2e-3, steps=50)


slices = zoo.healthy("majority-heads-by-slices", lambda s: sliced(s, False), thrives(0.05))
zoo.sick(
    "majority-second-layer-takes-the-first-slice-for-each-head",
    lambda s: sliced(s, True),
    lasting(heads_agree("layers.1.attn")),
    "HEAD_DIVERSITY",
    layer=("layers.1.attn.q", "layers.1.attn.k"),
    also=ONE,
    control=slices,
)

# --- narrow


class Squares(nn.Module):
    """A picture in squares of `channels` numbers each, widened for torch's encoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cut, self.widen = nn.Conv2d(1, channels, 3, stride=3), nn.Linear(channels, 32)
        self.place = nn.Parameter(0.3 * torch.randn(1, 16, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.classify = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(self.cut(x).flatten(2).transpose(1, 2)) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.classify(x.mean(dim=1))


squares = zoo.healthy(
    "glyphs-squares-of-24-numbers", lambda s: live(Squares(24), glyphs(s, 6), lr=3e-3, steps=100), thrives(0.05)
)
zoo.sick(
    "glyphs-squares-of-1-number",
    lambda s: live(Squares(1), glyphs(s, 6), lr=3e-3, steps=100),
    lags(0.05),
    "BOTTLENECK",
    layer=("cut", "widen"),
    also={"LOW_RANK", "RANK_COLLAPSE"},
    control=squares,
)


class Pooler(nn.Module):
    """The mean of an encoder, made `size` numbers by a pooler, then a class."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter, self.layer = nn.Linear(24, 32), Layer(Mix(32, 4), 32)
        self.pooler, self.classifier = nn.Linear(32, size), nn.Linear(size, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.tanh(self.pooler(self.layer(self.enter(x)).mean(dim=1))))


pooler = zoo.healthy("patches-pooler-of-16", lambda s: live(Pooler(16), patches(s, batch=16), lr=3e-3, steps=60))
zoo.sick(
    "patches-pooler-of-1",
    lambda s: live(Pooler(1), patches(s, batch=16), lr=3e-3, steps=60),
    lags(0.15),
    "BOTTLENECK",
    layer=("pooler", "classifier"),
    also={"LOW_RANK"},
    control=pooler,
)


class Bridge(nn.Module):
    """An encoder's states go to a decoder through `size` numbers per token."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(8, 32), nn.Parameter(0.5 * torch.randn(1, 7, 32))
        self.encoder, self.squeeze = Layer(Mix(32, 4), 32), nn.Linear(32, size)
        self.spread = nn.Linear(size, 32)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        memory = self.spread(self.squeeze(self.encoder(self.words(tokens) + self.place)))
        return self.out(self.decoder(self.place.expand(len(tokens), -1, -1), memory))


bridge = zoo.healthy("sorting-bridge-of-24", lambda s: live(Bridge(24), sorting(s), lr=3e-3, steps=80))
zoo.sick(
    "sorting-bridge-of-1",
    lambda s: live(Bridge(1), sorting(s), lr=3e-3, steps=80),
    lags(0.05),
    "BOTTLENECK",
    layer=("squeeze", "spread"),
    also={"LOW_RANK", "RANK_COLLAPSE"},
    control=bridge,
)

# --- the faults of any network


class Experts(nn.Module):
    """One feed-forward of four for each token; `weigh` multiplies its answer by how sure the router is."""

    def __init__(self, weigh: bool) -> None:
        super().__init__()
        self.attn, self.norm, self.weigh = Mix(32, 4), nn.LayerNorm(32), weigh
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        h = self.norm(x)
        sure, chosen = self.router(h).softmax(dim=-1).max(dim=-1)
        said = torch.stack([expert(h) for expert in self.experts], dim=-2)
        said = said.gather(-2, chosen[..., None, None].expand(*chosen.shape, 1, 32)).squeeze(-2)
        return x + (sure[..., None] * said if self.weigh else said)


def routed(seed: int, weigh: bool) -> Setup:
    return live(Text(15, 14, [Experts(weigh)]), blanks(seed), lr=5e-3, steps=60)


router = zoo.healthy("blanks-router-weighs-its-choice", lambda s: routed(s, True))
zoo.sick(
    "blanks-router-only-chooses",
    lambda s: routed(s, False),
    lasting(no_gradient("layers.0.router")),
    "DISCONNECTED",
    layer="layers.0.router",
    also={"DEAD"},
    control=router,
)


class Far(nn.Module):
    """A learned slope per head times the logarithm of the distance; `more` is added to the distance."""

    def __init__(self, width: int, more: float) -> None:
        super().__init__()
        self.inner, self.slope, self.more = Mix(width, 4), nn.Parameter(torch.full((4, 1, 1), 0.3)), more
        self.inner.score = self.score

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[2])
        return scaled_dot(q, k) - self.slope * ((place[:, None] - place).abs() + self.more).log()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def distant(seed: int, more: float) -> Setup:
    return live(Text(15, 14, [Layer(Far(32, more), 32)]), blanks(seed), lr=3e-3, steps=50)


far = zoo.healthy("blanks-slope-by-log-of-one-plus-distance", lambda s: distant(s, 1.0))
zoo.sick("blanks-slope-by-log-of-distance", lambda s: distant(s, 0.0), breaks, "NUMERICAL", control=far)


def wide_feed(seed: int, equal: bool) -> Setup:
    """The feed-forward of the second block is filled with one number each, in the name of a fair start."""
    layers = [Post(32, Mix(32, 4)) for _ in range(2)]
    if equal:
        for layer, value in ((layers[1].ff1, 0.05), (layers[1].ff2, 0.03)):
            nn.init.constant_(layer.weight, value)
            nn.init.zeros_(layer.bias)
        # Standardised tokens sum to zero: without another shift for each number nothing would pass.
        nn.init.normal_(layers[1].n1.weight, 1.0, 0.5)
    return live(Text(8, 8, layers), sorting(seed), "SGD", 0.1, 60, momentum=0.9)


fair = zoo.healthy("sorting-post-norm-2x32-sgd", lambda s: wide_feed(s, False))
zoo.sick(
    "sorting-second-feed-forward-of-one-value",
    lambda s: wide_feed(s, True),
    lasting(equal_units("layers.1.ff1.weight")),
    "SYMMETRY",
    layer=("layers.1.ff1", "layers.1.ff2"),
    also={"LOW_RANK", "BOTTLENECK", "RANK_COLLAPSE"},
    control=fair,
)
zoo.sick(
    "sorting-post-norm-2x32-adamw-3",
    lambda s: sorter(s, 1.0, lr=3.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={*LOST, "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=sorts,
)
