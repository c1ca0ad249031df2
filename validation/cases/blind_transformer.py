# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers over texts, flags and clauses, with one fault each, and their twins.

Half: blind.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import clauses, flags, reversals, reviews
from validation.evidence.attention import tokens_alike
from validation.evidence.live import attends_sharply, breaks, heads_agree, lags, lasting, thrives
from validation.evidence.signal import both, equal_units, gradient_ratio, no_gradient
from validation.labels import ALIKE, ONE, SHARP
from validation.setups import live
from validation.tasks import every

zoo = Zoo("transformer", half="blind", analyzer="transformer", proof=thrives())
Scores = Callable[[Tensor, Tensor], Tensor]


def plain(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


class SelfAttention(nn.Module):
    """Attention as in a hub's model: query, key, value, dense."""

    def __init__(self, width: int, heads: int, scores: Scores = plain) -> None:
        super().__init__()
        self.heads, self.scores = heads, scores
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        p = torch.softmax(self.scores(q, k), dim=-1)
        return self.dense((p @ v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """Pre-norm: attention, then two dense layers; `keep` weighs the skips."""

    def __init__(self, attention: nn.Module, width: int, keep: float = 1.0) -> None:
        super().__init__()
        self.attention, self.keep = attention, keep
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wi, self.wo = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.keep * x + self.attention(self.norm_a(x))
        return self.keep * x + self.wo(F.relu(self.wi(self.norm_b(x))))


class Encoder(nn.Module):
    """Tokens or vectors, places, layers, a norm; an answer at every place, from the mean or from the first token."""

    def __init__(self, enter: nn.Module, layers: list[nn.Module], out: int, width: int = 32, read: str = "all") -> None:
        super().__init__()
        self.enter, self.layer, self.norm = enter, nn.ModuleList(layers), nn.LayerNorm(width)
        self.place, self.head, self.read = nn.Parameter(0.4 * torch.randn(1, 16, width)), nn.Linear(width, out), read

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.place[:, : x.shape[1]]
        for layer in self.layer:
            x = layer(x)
        x = self.norm(x)
        return self.head(x if self.read == "all" else x.mean(dim=1) if self.read == "mean" else x[:, 0])


def words(count: int = 9, width: int = 32) -> nn.Embedding:
    table = nn.Embedding(count, width)
    nn.init.normal_(table.weight, std=0.6)
    return table


def reversing(seed: int, layers: list[nn.Module], **more) -> Setup:
    return live(Encoder(words(), layers, 9), reversals(seed), **{"lr": 3e-3, "steps": 60, **more})


def flagged(seed: int, layers: list[nn.Module], **more) -> Setup:
    model = Encoder(nn.Linear(12, 32), layers, 5, read="mean")
    return live(model, flags(seed), **{"lr": 3e-3, "steps": 60, **more})


def parsed(seed: int, layers: list[nn.Module], **more) -> Setup:
    model = Encoder(nn.Linear(16, 32), layers, 6, read="mean")
    return live(model, clauses(seed), **{"lr": 2e-3, "steps": 50, **more})


def layers_of(count: int, scores: Scores = plain, heads: int = 4) -> list[nn.Module]:
    return [EncoderLayer(SelfAttention(32, heads, scores), 32) for _ in range(count)]


# --- attention that is too sharp


class Learned(SelfAttention):
    """The temperature is learned as a logarithm, for queries and keys of length one."""

    def __init__(self, width: int, heads: int, start: float) -> None:
        super().__init__(width, heads, self.tempered)
        self.log_heat = nn.Parameter(torch.full((heads, 1, 1), start))

    def tempered(self, q: Tensor, k: Tensor) -> Tensor:
        return self.log_heat.exp() * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)


def tempered(seed: int, start: float, at: int) -> Setup:
    layers = [EncoderLayer(Learned(32, 4, start if i == at else 1.0), 32) for i in range(3)]
    return parsed(seed, layers)


warm = zoo.healthy("clauses-learned-temperature", lambda s: tempered(s, 1.0, 0))
zoo.sick(
    "clauses-learned-temperature-of-the-last-layer-given-as-itself",
    lambda s: tempered(s, 7.0, 2),
    lasting(attends_sharply("layer.2.attention", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer=("layer.2.attention.query", "layer.2.attention.key", "layer.2.attention"),
    also=SHARP,
    control=warm,
)


def sloped(slope: float) -> Scores:
    """The farther a key is, the less it counts."""

    def scores(q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[2])
        slopes = slope / torch.arange(1, 5)[:, None, None]
        return plain(q, k) - slopes * (place[:, None] - place).abs()

    return scores


near = zoo.healthy("reversals-slopes-of-a-quarter", lambda s: reversing(s, layers_of(2, sloped(0.25))))
zoo.sick(
    "reversals-slopes-of-80",
    lambda s: reversing(s, layers_of(2, sloped(80.0))),
    both(lasting(attends_sharply()), lags(0.2)),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layer.{i}.attention.{part}" for i in range(2) for part in ("query", "key")),
    also={*SHARP, "HEAD_DIVERSITY", "DISCONNECTED", "VANISHING", "DEAD"},
    control=near,
)


def unscaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1)


def single(seed: int, std: float, scores: Scores) -> Setup:
    """One head of 32; weights drawn by a bell of deviation 1 without the root anywhere."""
    layers = layers_of(2, scores, heads=1)
    for layer in layers:
        nn.init.normal_(layer.attention.query.weight, std=std)
        nn.init.normal_(layer.attention.key.weight, std=std)
    return reversing(seed, layers, lr=2e-3)


rooted = zoo.healthy("reversals-one-head-with-the-root", lambda s: single(s, 0.15, plain))
zoo.sick(
    "reversals-one-head-without-any-root",
    lambda s: single(s, 1.0, unscaled),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layer.{i}.attention.{part}" for i in range(2) for part in ("query", "key")),
    also=SHARP,
    control=rooted,
)


class Relative(SelfAttention):
    """A learned number for each distance and head is added to the scores."""

    def __init__(self, width: int, heads: int, std: float) -> None:
        super().__init__(width, heads, self.biased)
        self.table = nn.Embedding(31, heads)
        nn.init.normal_(self.table.weight, std=std)

    def biased(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(q.shape[2])
        return plain(q, k) + self.table(place[:, None] - place + 15).permute(2, 0, 1)


def relative(seed: int, std: float) -> Setup:
    layers = [EncoderLayer(Relative(32, 4, std if i == 0 else 0.1), 32) for i in range(2)]
    return reversing(seed, layers, lr=2e-3)


distances = zoo.healthy("reversals-numbers-for-distances", lambda s: relative(s, 0.1))
zoo.sick(
    "reversals-numbers-for-distances-drawn-with-deviation-90",
    lambda s: relative(s, 90.0),
    lasting(attends_sharply("layer.0.attention", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer=("layer.0.attention.table", "layer.0.attention.query", "layer.0.attention.key"),
    also={*SHARP, "VANISHING", "DEAD"},
    control=distances,
)


class Pooled(nn.Module):
    """A learned query looks at all vectors of an encoder and answers."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.enter, self.body = nn.Linear(12, 32), EncoderLayer(SelfAttention(32, 4), 32)
        self.ask, self.norm = nn.Parameter(torch.randn(1, 1, 32)), nn.LayerNorm(32)
        self.pool, self.head = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, 5)
        self.pool.in_proj_weight.data[32:64] *= factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.body(self.enter(x)))
        said, _ = self.pool(self.ask.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.head(said[:, 0])


def pooled(seed: int, factor: float) -> Setup:
    return live(Pooled(factor), flags(seed), lr=2e-3, steps=80)


asked = zoo.healthy("flags-pooled-by-a-query", lambda s: pooled(s, 1.0), thrives(0.05))
zoo.sick(
    "flags-pooled-by-a-query-keys-times-500",
    lambda s: pooled(s, 500.0),
    lasting(attends_sharply("pool", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer="pool",
    also=SHARP,
    control=asked,
)


def squared(seed: int, power: float) -> Setup:
    """Scores grow by a power that was meant to make them positive."""

    def scores(q: Tensor, k: Tensor) -> Tensor:
        s = 4 * plain(q, k)
        return s if power == 1 else s.sign() * (3 * s.abs()) ** power

    layers = layers_of(2, scores)
    for layer in layers:
        for part in (layer.attention.query, layer.attention.key):
            nn.init.orthogonal_(part.weight)
    return parsed(seed, layers, lr=1e-3)


first_power = zoo.healthy("clauses-scores-as-they-are", lambda s: squared(s, 1.0))
zoo.sick(
    "clauses-scores-to-the-third-power",
    lambda s: squared(s, 3.0),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layer.{i}.attention.{part}" for i in range(2) for part in ("query", "key")),
    also=SHARP,
    control=first_power,
)

# --- tokens that become one


class Global(nn.Module):
    """What all tokens have in common is added to each, so many times."""

    def __init__(self, width: int, times: float) -> None:
        super().__init__()
        self.inner, self.times = EncoderLayer(SelfAttention(width, 4), width), times

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.times * x.mean(dim=1, keepdim=True)


alone = zoo.healthy("reversals-common-part-once", lambda s: reversing(s, [Global(32, 0.5) for _ in range(2)]))
zoo.sick(
    "reversals-common-part-sixty-times",
    lambda s: reversing(s, [Global(32, 60.0) for _ in range(2)]),
    both(lasting(tokens_alike("layer.1")), lags(0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "UNSTABLE"},
    control=alone,
)


class Pool(nn.Module):
    """Tokens are mixed by a mean over a window, beside a skip."""

    def __init__(self, width: int, window: int, skip: float) -> None:
        super().__init__()
        self.window, self.skip = window, skip
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.attention = SelfAttention(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.avg_pool1d(x.transpose(1, 2), self.window, 1, self.window // 2, count_include_pad=False)
        x = self.skip * x + mixed.transpose(1, 2)
        x = x + 0.3 * self.attention(self.norm(x))
        return x + 0.3 * self.down(F.gelu(self.up(self.norm(x))))


def mixing(seed: int, window: int, skip: float) -> Setup:
    return reversing(seed, [Pool(32, window, skip) for _ in range(3)])


window = zoo.healthy("reversals-mean-over-three-beside-a-skip", lambda s: mixing(s, 3, 1.0))
zoo.sick(
    "reversals-mean-over-all-without-a-skip",
    lambda s: mixing(s, 17, 0.0),
    both(lasting(tokens_alike("layer.2", 0.15)), lags(0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=window,
)


def faint(seed: int, keep: float, depth: int) -> Setup:
    """The skip is weighed by a constant that belongs to the branch, and scores are next to even."""
    layers = [EncoderLayer(SelfAttention(32, 4), 32, keep) for _ in range(depth)]
    return parsed(seed, layers, lr=1e-3)


strong = zoo.healthy("clauses-6-layers-skips-of-1", lambda s: faint(s, 1.0, 6))
zoo.sick(
    "clauses-6-layers-skips-of-0.01",
    lambda s: faint(s, 0.01, 6),
    lasting(tokens_alike("layer.5", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DEAD", "SLOW"},
    control=strong,
)


class Drowned(nn.Module):
    """Words beside what the file says of its author, one vector per text, in its own unit."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.table, self.author, self.unit = words(), nn.Linear(1, 32), unit

    def forward(self, tokens: Tensor) -> Tensor:
        age = self.unit * torch.ones(len(tokens), 1, 1)
        return self.table(tokens) + self.author(age)


def drowned(seed: int, unit: float) -> Setup:
    return live(Encoder(Drowned(unit), layers_of(2), 9), reversals(seed), lr=1e-3 if unit > 1 else 3e-3, steps=60)


aged = zoo.healthy("reversals-age-in-centuries", lambda s: drowned(s, 0.4))
zoo.sick(
    "reversals-age-in-hours",
    lambda s: drowned(s, 3.5e5),
    both(lasting(tokens_alike("layer.1")), lags(0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DISCONNECTED", "UNSTABLE"},
    control=aged,
)


class Shift(nn.Module):
    """Looks words up; `wrong` divides where it should take the rest, and every word becomes the first."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.table, self.wrong = words(), wrong

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens // 9 if self.wrong else tokens % 9)


class Bare(nn.Module):
    """An encoder without places, whose first token is asked for the most frequent word."""

    def __init__(self, enter: nn.Module) -> None:
        super().__init__()
        self.enter, self.layer, self.head = enter, nn.ModuleList(layers_of(2)), nn.Linear(32, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for layer in self.layer:
            x = layer(x)
        return self.head(x)


def copied(seed: int, wrong: bool) -> Setup:
    task = reversals(seed).changed(lambda x, _t: (x, (x + 3) % 9))
    return live(Bare(Shift(wrong)), task, lr=3e-3, steps=50)


rest = zoo.healthy("shifted-words-by-their-rest", lambda s: copied(s, False))
zoo.sick(
    "shifted-words-all-the-first",
    lambda s: copied(s, True),
    both(lasting(tokens_alike("layer.1")), lags(0.3)),
    "RANK_COLLAPSE",
    "LOW_RANK",
    "BOTTLENECK",
    also={*ALIKE, "HEAD_DIVERSITY", "DISCONNECTED"},
    control=rest,
)

# --- heads that are one


class Talking(SelfAttention):
    """Heads talk to one another before the softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, self.talked)
        for part in (self.query, self.key):
            nn.init.normal_(part.weight, std=2.5 / width**0.5)
        self.mix = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))

    def talked(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("gh,bhij->bgij", self.mix, plain(q, k))


talks = zoo.healthy(
    "flags-heads-that-talk",
    lambda s: flagged(s, [EncoderLayer(Talking(32, 4), 32) for _ in range(2)], lr=2e-3),
    thrives(0.05),
)


class MeanScores(SelfAttention):
    """The mean over heads is taken in the wrong place, before the softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, lambda q, k: plain(q, k).mean(dim=1, keepdim=True).expand(-1, heads, -1, -1))
        for part in (self.query, self.key):
            nn.init.normal_(part.weight, std=3.5 / width**0.5)


zoo.sick(
    "flags-scores-averaged-over-heads",
    lambda s: flagged(s, [EncoderLayer(MeanScores(32, 4), 32) for _ in range(2)], lr=2e-3),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layer.{i}.attention.{part}" for i in range(2) for part in ("query", "key")),
    also=ONE,
    control=talks,
)


class Grouped(nn.Module):
    """Keys and values of fewer heads, shared in groups; `wrong` shares the queries of the first head as well."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.heads, self.size, self.wrong = heads, width // heads, wrong
        self.q_proj, self.k_proj = nn.Linear(width, width, bias=False), nn.Linear(width, self.size, bias=False)
        self.v_proj, self.o_proj = nn.Linear(width, self.size, bias=False), nn.Linear(width, width, bias=False)
        nn.init.normal_(self.q_proj.weight, std=2.0 / width**0.5)
        nn.init.normal_(self.k_proj.weight, std=2.0 / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = q[:, :1].expand(-1, self.heads, -1, -1) if self.wrong else q
        k, v = (p(x)[:, None].expand(-1, self.heads, -1, -1) for p in (self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def grouped(seed: int, wrong: bool) -> Setup:
    return reversing(seed, [EncoderLayer(Grouped(32, 4, wrong), 32) for _ in range(2)])


shared_keys = zoo.healthy("reversals-one-key-head-for-four-queries", lambda s: grouped(s, False))
zoo.sick(
    "reversals-one-key-head-and-one-query-for-four",
    lambda s: grouped(s, True),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layer.{i}.attention.{part}" for i in range(2) for part in ("q_proj", "k_proj")),
    also=ONE,
    control=shared_keys,
)


class Tiled(nn.Module):
    """A checkpoint of one head, tiled to four, with queries and keys frozen as they came."""

    def __init__(self, width: int, tiled: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, bias=False, batch_first=True)
        weight = self.attention.in_proj_weight.data
        if tiled:
            for part in weight[: 2 * width].chunk(2):
                part.copy_(3 * part[: width // 4].repeat(4, 1))
            self.attention.in_proj_weight.register_hook(lambda g: torch.cat([0 * g[: 2 * width], g[2 * width :]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def tiled(seed: int, copies: bool) -> Setup:
    layers = [EncoderLayer(Tiled(32, copies and i == 0), 32) for i in range(2)]
    return reversing(seed, layers, kind="Adam", lr=2e-3)


untiled = zoo.healthy("reversals-torch-attention-2x32", lambda s: tiled(s, False))
zoo.sick(
    "reversals-first-layer-tiled-from-one-head",
    lambda s: tiled(s, True),
    lasting(heads_agree("layer.0.attention.attention")),
    "HEAD_DIVERSITY",
    layer="layer.0.attention.attention",
    also=ONE,
    control=untiled,
)


class Additive(nn.Module):
    """Scores by a small net over query and key; `one` has a single score vector for all heads."""

    def __init__(self, width: int, heads: int, one: bool) -> None:
        super().__init__()
        self.heads, self.one = heads, one
        self.wq, self.wk, self.wv = (nn.Linear(width, width) for _ in range(3))
        self.score, self.out = nn.Parameter(2 * torch.randn(1 if one else heads, width)), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        both_of = torch.tanh(self.wq(x)[:, :, None] + self.wk(x)[:, None])  # (batch, i, j, width)
        scores = torch.einsum("bijd,hd->bhij", both_of, self.score.expand(self.heads, -1)) / 2
        v = self.wv(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def additive(seed: int, one: bool) -> Setup:
    return parsed(seed, [EncoderLayer(Additive(32, 4, one), 32) for _ in range(2)])


each = zoo.healthy("clauses-a-score-vector-per-head", lambda s: additive(s, False))
zoo.sick(
    "clauses-one-score-vector-for-all-heads",
    lambda s: additive(s, True),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layer.{i}.attention{part}" for i in range(2) for part in ("", ".wq", ".wk")),
    also=ONE,
    control=each,
)


class Strided(SelfAttention):
    """Heads are cut out by a stride that is zero, so that each is the first."""

    def split_wrong(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        return x.contiguous().as_strided((batch, self.heads, length, size), (length * width, 0, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_wrong(self.query(x)), self.split_wrong(self.key(x)), self.split(self.value(x))
        return self.dense((torch.softmax(plain(q, k), dim=-1) @ v).transpose(1, 2).flatten(2))


def strided(seed: int, wrong: bool) -> Setup:
    layers = [EncoderLayer((Strided if wrong and i == 2 else SelfAttention)(32, 4), 32) for i in range(3)]
    for part in (layers[2].attention.query, layers[2].attention.key):
        nn.init.normal_(part.weight, std=2.5 / 32**0.5)
    return reversing(seed, layers)


stride = zoo.healthy("reversals-heads-by-their-stride", lambda s: strided(s, False))
zoo.sick(
    "reversals-last-layer-heads-by-a-stride-of-zero",
    lambda s: strided(s, True),
    lasting(heads_agree("layer.2.attention")),
    "HEAD_DIVERSITY",
    layer=("layer.2.attention.query", "layer.2.attention.key"),
    also=ONE,
    control=stride,
)

# --- narrow


class Thin(nn.Module):
    """Words as `size` numbers, widened for the encoder."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.table, self.widen = nn.Embedding(count, size), nn.Linear(size, 32, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.widen(self.table(tokens))


def thin(seed: int, size: int) -> Setup:
    return live(Encoder(Thin(40, size), layers_of(2), 5, read="mean"), reviews(seed), lr=3e-3, steps=80)


thin_twin = zoo.healthy("reviews-words-of-16-numbers", lambda s: thin(s, 16))
zoo.sick(
    "reviews-words-of-1-number",
    lambda s: thin(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("enter.table", "enter.widen"),
    also={"LOW_RANK", "RANK_COLLAPSE"},
    control=thin_twin,
)


class Between(nn.Module):
    """An adapter that every token has to pass, without a way around it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(32, size), nn.Linear(size, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.gelu(self.down(x)))


def adapter(seed: int, size: int) -> Setup:
    first, last = layers_of(2)
    return reversing(seed, [first, Between(size), last], steps=80)


adapter_twin = zoo.healthy("reversals-adapter-of-24", lambda s: adapter(s, 24))
zoo.sick(
    "reversals-adapter-of-1",
    lambda s: adapter(s, 1),
    lags(0.08),
    "BOTTLENECK",
    layer=("layer.1.down", "layer.1.up"),
    also={"LOW_RANK", "RANK_COLLAPSE"},
    control=adapter_twin,
)

# --- the faults of any network


class Seq2Seq(nn.Module):
    """An encoder and a decoder; `deaf` lets the decoder look at its own states instead of the encoder's."""

    def __init__(self, deaf: bool) -> None:
        super().__init__()
        self.words, self.place = words(), nn.Parameter(0.4 * torch.randn(1, 8, 32))
        self.encoder, self.deaf = EncoderLayer(SelfAttention(32, 4), 32), deaf
        self.cross, self.norm, self.head = (
            nn.MultiheadAttention(32, 4, batch_first=True),
            nn.LayerNorm(32),
            nn.Linear(32, 9),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        memory = self.encoder(self.words(tokens) + self.place)
        asked = self.place.expand(len(tokens), -1, -1) + self.words(tokens).cumsum(dim=1) / 8
        seen = asked if self.deaf else memory
        return self.head(self.norm(asked + self.cross(asked, seen, seen, need_weights=False)[0]))


def seq2seq(seed: int, deaf: bool) -> Setup:
    return live(Seq2Seq(deaf), reversals(seed), lr=3e-3, steps=60)


hears = zoo.healthy("reversals-decoder-hears-the-encoder", lambda s: seq2seq(s, False))
zoo.sick(
    "reversals-decoder-hears-itself",
    lambda s: seq2seq(s, True),
    lasting(no_gradient("encoder")),
    "DISCONNECTED",
    layer=tuple(f"encoder.{part}" for part in ("attention.query", "attention.value", "attention.dense", "wi", "wo")),
    also={"DEAD"},
    control=hears,
)


class Masked(nn.Module):
    """Reads texts of any length; places behind the end are masked by minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = words(40), nn.Linear(32, 5)
        self.layers = nn.ModuleList(layers_of(2))

    def forward(self, tokens: Tensor, beyond: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            layer.attention.scores = lambda q, k: plain(q, k).masked_fill(beyond[:, None, None], -math.inf)
            x = layer(x)
        keep = (~beyond).float()[..., None]
        return self.head((x * keep).sum(dim=1) / keep.sum(dim=1).clamp_min(1))


def empty(seed: int, least: int) -> Setup:
    """Now and then a review has no words."""
    now, random = every(14, 9), torch.Generator().manual_seed(seed + 70)

    def mask(tokens: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.randint(4, 13, (len(tokens), 1), generator=random)
        if now():
            length[0] = least
        return tokens, torch.arange(12)[None] >= length

    return live(Masked(), reviews(seed).mapped(mask), lr=3e-3, steps=56)


some = zoo.healthy("reviews-of-at-least-one-word", lambda s: empty(s, 1))
zoo.sick("reviews-of-no-word", lambda s: empty(s, 0), breaks, "NUMERICAL", control=some)


class Unnormed(nn.Module):
    """A block without norms."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.attention, self.wi, self.wo = SelfAttention(32, 4), nn.Linear(32, 64), nn.Linear(64, 32)
        for layer in (self.attention.value, self.attention.dense, self.wi, self.wo):
            nn.init.orthogonal_(layer.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.wo(F.gelu(self.wi(x)))


bare = zoo.healthy("clauses-2-blocks-without-norms", lambda s: parsed(s, [Unnormed(0.7) for _ in range(2)]))
zoo.sick(
    "clauses-8-blocks-without-norms-drawn-wide",
    lambda s: parsed(s, [Unnormed(2.2) for _ in range(8)], lr=1e-6, steps=40),
    lasting(gradient_ratio("layer.0.wo", "layer.7.wo", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "ENTROPY_COLLAPSE", "SATURATION", "NUMERICAL"},
    control=bare,
)


class Copies(nn.Module):
    """Six experts in one tensor each, all of which every token asks; they start as one when `same` is set."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.attention, self.norm = SelfAttention(32, 4), nn.LayerNorm(32)
        draw = (lambda a, b: torch.randn(1, a, b).repeat(6, 1, 1)) if same else (lambda a, b: torch.randn(6, a, b))
        self.up, self.down = nn.Parameter(draw(32, 4) / 32**0.5), nn.Parameter(draw(4, 32) / 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        h = F.gelu(torch.einsum("bti,eij->ebtj", self.norm(x), self.up))
        return x + torch.einsum("ebtj,ejk->btk", h, self.down)


def copies(seed: int, same: bool) -> Setup:
    return parsed(seed, [Copies(same)], kind="SGD", lr=0.05, steps=60, momentum=0.9)


various = zoo.healthy("clauses-six-experts", lambda s: copies(s, False))
zoo.sick(
    "clauses-six-experts-that-start-as-one",
    lambda s: copies(s, True),
    lasting(equal_units("layer.0.up"), equal_units("layer.0.down")),
    "SYMMETRY",
    layer="layer.0",
    also={"LOW_RANK", "BOTTLENECK"},
    control=various,
)
