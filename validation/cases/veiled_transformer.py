# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Attention over menus, flocks, tiles and lockers, with one fault each, and the twins.

Half: veiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import flocks, lockers, menus, reels, turns
from validation.evidence.attention import tokens_alike
from validation.evidence.live import attends_sharply, breaks, heads_agree, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, gradient_ratio, no_gradient
from validation.evidence.training import does_not_move
from validation.labels import ALIKE, DEADENS, ONE, ONE_WAY, SHARP
from validation.setups import live

zoo = Zoo("transformer", half="veiled", analyzer="transformer", proof=thrives())
D, H = 32, 4


def lively(layer: nn.Linear, factor: float = 2.0) -> nn.Linear:
    nn.init.normal_(layer.weight, std=factor / layer.in_features**0.5)
    return layer


class Einsum(nn.Module):
    """Attention by einsum: four linear layers, heads as an axis of their own behind the places."""

    def __init__(self, scale: float = (D // H) ** -0.5) -> None:
        super().__init__()
        self.scale = scale
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(D, D) for _ in range(4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bqhd,bkhd->bhqk", q, k) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (H, -1)) for layer in (self.to_q, self.to_k, self.to_v))
        p = torch.softmax(self.score(q, k), dim=-1)
        return self.to_out(torch.einsum("bhqk,bkhd->bqhd", p, v).flatten(2))


class Fused(nn.Module):
    """Attention by torch's fused call, keys and values from one matrix."""

    def __init__(self, scale: float | None = None, causal: bool = False) -> None:
        super().__init__()
        self.scale, self.causal = scale, causal
        self.wq, self.wkv, self.wo = nn.Linear(D, D, bias=False), nn.Linear(D, 2 * D, bias=False), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q = self.wq(x).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.wkv(x).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Something that mixes the places, then a net for each, both behind norms and beside skips of a weight."""

    def __init__(self, mix: nn.Module, skip: float = 1.0, norms: bool = True) -> None:
        super().__init__()
        self.mix, self.skip = mix, skip
        self.ln_a, self.ln_b = (nn.LayerNorm(D) if norms else nn.Identity() for _ in range(2))
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip * x + self.mix(self.ln_a(x))
        return self.skip * x + self.down(F.silu(self.up(self.ln_b(x))))


class Net(nn.Module):
    """A stem, places, blocks; the mean or each place is read."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], out: int, length: int = 0, each: bool = False) -> None:
        super().__init__()
        self.stem, self.blocks, self.each = stem, nn.ModuleList(blocks), each
        self.pos = nn.Embedding(length, D) if length else None
        self.ln, self.head = nn.LayerNorm(D), nn.Linear(D, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.pos is not None:
            x = x + self.pos(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.ln(x)
        return self.head(x if self.each else x.mean(dim=1))


def flock(seed: int, blocks: list[nn.Module], stem: nn.Module | None = None, **more) -> Setup:
    return live(Net(stem or nn.Linear(8, D), blocks, 5), flocks(seed), **{"lr": 3e-3, "steps": 40, **more})


def turned(seed: int, blocks: list[nn.Module], words: int = 8, **more) -> Setup:
    model = Net(nn.Embedding(words, D), blocks, words, 8, each=True)
    return live(model, turns(seed, words), **{"lr": 3e-3, "steps": 60, **more})


def menu(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Net(nn.Embedding(30, D), blocks, 5, 10), menus(seed), **{"lr": 3e-3, "steps": 40, **more})


def parts(*names: str, count: int = 2) -> tuple[str, ...]:
    """Paths of what stands in the attention of each block."""
    return tuple(f"blocks.{i}.mix{name}" for i in range(count) for name in names)


# --- attention that is too sharp


divided = zoo.healthy("flocks-einsum-by-the-root", lambda s: flock(s, [Block(Einsum()) for _ in range(2)]))
zoo.sick(
    "flocks-einsum-times-the-square-of-the-size",
    lambda s: flock(s, [Block(Einsum((D // H) ** 2.0)) for _ in range(2)]),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=parts(".to_q", ".to_k"),
    also=SHARP,
    control=divided,
)


fused = zoo.healthy("turns-fused", lambda s: turned(s, [Block(Fused()) for _ in range(2)]))
zoo.sick(
    "turns-fused-scale-given-as-its-inverse-squared",
    lambda s: turned(s, [Block(Fused(64.0)), Block(Fused(64.0))]),
    both(lasting(attends_sharply()), lags(0.05)),
    "ENTROPY_COLLAPSE",
    layer=parts(".wq", ".wkv"),
    also=SHARP,
    control=fused,
)


def library(seed: int, factor: float) -> Setup:
    """Layers of torch; the queries and keys of the second one come from weights kept in other units."""
    blocks = [nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
    blocks[1].self_attn.in_proj_weight.data[: 2 * D] *= factor
    return menu(seed, blocks)


of_torch = zoo.healthy("menus-layers-of-torch", lambda s: library(s, 1.0))
zoo.sick(
    "menus-layers-of-torch-second-queries-and-keys-times-25",
    lambda s: library(s, 25.0),
    lasting(attends_sharply("blocks.1.self_attn", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer="blocks.1.self_attn",
    also=SHARP,
    control=of_torch,
)


class Bahdanau(nn.Module):
    """A decoder of one step weighs what it was shown by a small net; `std` is how its last vector is drawn."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.read = nn.GRU(17, D, batch_first=True, bidirectional=True)
        self.ask, self.key, self.vote = nn.Linear(17, D), nn.Linear(2 * D, D), nn.Linear(D, 1, bias=False)
        self.out = nn.Linear(2 * D + 17, 5)
        nn.init.normal_(self.vote.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.read(x[:, :-1])[0], x[:, -1]
        scores = self.vote(torch.tanh(self.key(states) + self.ask(last)[:, None])).transpose(1, 2)
        return self.out(torch.cat([(scores.softmax(dim=-1) @ states)[:, 0], last], dim=1))


def locked(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, lockers(seed), **{"lr": 1e-2, "steps": 90, **more})


voted = zoo.healthy("lockers-additive", lambda s: locked(s, Bahdanau(0.2)), thrives(0.05))
zoo.sick(
    "lockers-additive-last-vector-drawn-with-deviation-150",
    lambda s: locked(s, Bahdanau(150.0)),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=("ask", "key", "vote"),
    also={*SHARP, "VANISHING"},
    control=voted,
)


class Cosine(Einsum):
    """Queries and keys of length one, times a learned factor that is kept as its logarithm."""

    def __init__(self, log_scale: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((H, 1, 1), log_scale))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return torch.einsum("bqhd,bkhd->bhqk", q, k) * self.log_scale.exp()


cosine = zoo.healthy("turns-cosines-times-10", lambda s: turned(s, [Block(Cosine(math.log(10))) for _ in range(2)]))
zoo.sick(
    "turns-cosines-times-the-exponential-of-10",
    lambda s: turned(s, [Block(Cosine(10.0)) for _ in range(2)]),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=parts("", ".to_q", ".to_k"),
    also=SHARP,
    control=cosine,
)


def gained(seed: int, gain: float) -> Setup:
    """The norm before the first attention begins with a gain."""
    blocks = [Block(Fused()) for _ in range(2)]
    nn.init.constant_(blocks[0].ln_a.weight, gain)
    return menu(seed, blocks)


plain_gain = zoo.healthy("menus-norm-before-attention-gain-1", lambda s: gained(s, 1.0))
zoo.sick(
    "menus-norm-before-attention-gain-40",
    lambda s: gained(s, 40.0),
    lasting(attends_sharply("blocks.0.mix", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer=("blocks.0.ln_a", "blocks.0.mix.wq", "blocks.0.mix.wkv"),
    also=SHARP,
    control=plain_gain,
)


class Latents(nn.Module):
    """Learned vectors look at the input by torch's cross-attention; `times` multiplies what looks."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.enter, self.times = nn.Linear(8, D), times
        self.latents = nn.Parameter(torch.randn(3, D))
        self.cross, self.ln, self.head = (
            nn.MultiheadAttention(D, H, batch_first=True),
            nn.LayerNorm(D),
            nn.Linear(3 * D, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        x, ask = self.enter(x), self.times * self.latents.expand(len(x), -1, -1)
        return self.head(self.ln(self.cross(ask, x, x)[0]).flatten(1))


asked = zoo.healthy("flocks-three-latents-look", lambda s: live(Latents(1.0), flocks(s), lr=3e-3, steps=50))
zoo.sick(
    "flocks-three-latents-look-times-500",
    lambda s: live(Latents(500.0), flocks(s), lr=3e-3, steps=50),
    lasting(attends_sharply("cross")),
    "ENTROPY_COLLAPSE",
    layer=("cross", "latents", "enter"),
    also=SHARP,
    control=asked,
)

# --- tokens that become one


class Bare(nn.Module):
    """Attention of torch upon attention, as a first attempt writes it; `skip` is the way past it."""

    def __init__(self, depth: int, skip: bool) -> None:
        super().__init__()
        self.skip, self.enter, self.pos = skip, nn.Embedding(8, D), nn.Parameter(torch.randn(8, D))
        self.attns = nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(depth))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(D) for _ in range(depth)), nn.Linear(D, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens) + self.pos
        for attn, norm in zip(self.attns, self.norms, strict=True):
            y = attn(x, x, x, need_weights=False)[0]
            x = norm(x + y if self.skip else y)
        return self.head(x)


past = zoo.healthy("turns-four-attentions-with-skips", lambda s: live(Bare(4, True), turns(s), lr=3e-3, steps=70))
zoo.sick(
    "turns-six-attentions-without-skips",
    lambda s: live(Bare(6, False), turns(s), lr=1e-3, steps=50),
    both(lasting(tokens_alike("attns.5")), lags(0.03)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DEAD", "SLOW", "SYMMETRY"},
    control=past,
)


class Universal(nn.Module):
    """One attention, over and over; what stays of the input in each round is `keep`."""

    def __init__(self, rounds: int, keep: float) -> None:
        super().__init__()
        self.rounds, self.keep, self.table, self.pos = rounds, keep, nn.Embedding(8, D), nn.Parameter(torch.randn(8, D))
        self.mix, self.ln, self.end, self.head = Einsum(), nn.LayerNorm(D), nn.LayerNorm(D), nn.Linear(D, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.pos
        for _ in range(self.rounds):
            x = self.keep * x + self.mix(self.ln(x))
        return self.head(self.end(x))


rounds = zoo.healthy("turns-one-attention-five-times", lambda s: live(Universal(5, 1.0), turns(s), lr=3e-3, steps=60))
zoo.sick(
    "turns-one-attention-five-times-nothing-kept",
    lambda s: live(Universal(5, 0.0), turns(s), lr=1e-3, steps=60),
    both(lasting(tokens_alike("end")), lags(0.05)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DEAD", "SLOW"},
    control=rounds,
)


def leaning(seed: int, bias: float) -> Setup:
    """What the first attention adds has a constant part."""
    blocks = [Block(Einsum()) for _ in range(2)]
    nn.init.normal_(blocks[0].mix.to_out.bias, std=bias)
    return turned(seed, blocks)


upright = zoo.healthy("turns-no-constant-part", lambda s: leaning(s, 0.01))
zoo.sick(
    "turns-first-attention-adds-a-constant-of-300",
    lambda s: leaning(s, 300.0),
    both(lasting(tokens_alike("blocks.0"), tokens_alike("blocks.1")), lags(0.05)),
    "RANK_COLLAPSE",
    layer=None,
    also={*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SATURATION", "SLOW"},
    control=upright,
)


def faint(seed: int, scale: float, skip: float, depth: int = 3) -> Setup:
    """Scores that hardly differ, and no way past."""
    return turned(seed, [Block(Einsum(scale), skip) for _ in range(depth)], lr=2e-3)


clear = zoo.healthy("turns-three-blocks-with-skips", lambda s: faint(s, 8**-0.5, 1.0))
zoo.sick(
    "turns-scores-over-10000-without-skips",
    lambda s: faint(s, 1e-4, 0.0),
    both(lasting(tokens_alike("blocks.0"), tokens_alike("blocks.2")), lags(0.05)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DEAD", "SLOW", "DISCONNECTED"},
    control=clear,
)


class Station(nn.Module):
    """Birds as vectors, relative to where the observer stands; `unit` is that of the observer's place."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.fc, self.norm, self.unit = nn.Linear(8, D), nn.LayerNorm(D), unit
        self.place = nn.Parameter(torch.randn(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(x) + self.unit * self.place)


station = zoo.healthy(
    "flocks-observer-in-kilometres", lambda s: flock(s, [Block(Fused()) for _ in range(2)], Station(0.5))
)
zoo.sick(
    "flocks-observer-in-metres",
    lambda s: flock(s, [Block(Fused()) for _ in range(2)], Station(500.0), lr=1e-3),
    both(lasting(tokens_alike("stem"), tokens_alike("blocks.1")), lags(0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "SLOW", "UNSTABLE"},
    control=station,
)

# --- heads that are one


class Looped(nn.Module):
    """Heads in a loop; `stuck` reads the first one's queries and keys each time."""

    def __init__(self, stuck: bool) -> None:
        super().__init__()
        self.stuck = stuck
        self.q, self.k, self.v, self.o = (
            lively(nn.Linear(D, D)),
            lively(nn.Linear(D, D)),
            nn.Linear(D, D),
            nn.Linear(D, D),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).chunk(H, dim=-1) for layer in (self.q, self.k, self.v))
        which = [0 if self.stuck else i for i in range(H)]
        scores = torch.stack([q[i] @ k[i].transpose(1, 2) for i in which], dim=1) / math.sqrt(D // H)
        p = F.softmax(scores, dim=-1)
        return self.o(torch.cat([p[:, i] @ v[i] for i in range(H)], dim=-1))


looped = zoo.healthy("flocks-heads-in-a-loop", lambda s: flock(s, [Block(Looped(False)) for _ in range(2)]))
zoo.sick(
    "flocks-heads-in-a-loop-that-stays-at-the-first",
    lambda s: flock(s, [Block(Looped(True)) for _ in range(2)]),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=parts(".q", ".k"),
    also={*ONE, "DISCONNECTED", "DEAD"},
    control=looped,
)


class Summed(Einsum):
    """The axis of the heads is missing on the right of the arrow, and comes back by broadcasting."""

    def __init__(self) -> None:
        super().__init__()
        lively(self.to_q), lively(self.to_k)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (torch.einsum("bqhd,bkhd->bqk", q, k)[:, None] * D**-0.5).expand(-1, H, -1, -1)


zoo.sick(
    "menus-einsum-without-the-axis-of-the-heads",
    lambda s: menu(s, [Block(Summed()) for _ in range(2)]),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=parts(".to_q", ".to_k"),
    also=ONE,
    control=plain_gain,
)


class Together(nn.Module):
    """Queries and keys of all heads are held at their mean."""

    def forward(self, weight: Tensor) -> Tensor:
        if len(weight) != 3 * D:
            return weight
        q, k, v = (part.unflatten(0, (H, -1)) for part in weight.chunk(3))
        return torch.cat([part.mean(dim=0, keepdim=True).expand_as(part) for part in (q, k)] + [v]).flatten(0, 1)


def held(seed: int, together: bool) -> Setup:
    blocks = [nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
    for block in blocks:
        block.self_attn.in_proj_weight.data[: 2 * D] *= 6 if together else 2
        if together:
            parametrize.register_parametrization(block.self_attn, "in_proj_weight", Together())
            block.self_attn.in_proj_bias.requires_grad_(False)
    return turned(seed, blocks)


apart = zoo.healthy("turns-layers-of-torch-heads-of-their-own", lambda s: held(s, False))
zoo.sick(
    "turns-layers-of-torch-heads-held-together",
    lambda s: held(s, True),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"blocks.{i}.self_attn{part}" for i in range(2) for part in ("", ".parametrizations.in_proj_weight")),
    also=ONE,
    control=apart,
)


def borrowed(seed: int, copied: bool) -> Setup:
    """Scores come from a frozen matrix of an old model that had one head of this size."""
    blocks = [Block(Looped(False)) for _ in range(2)]
    for block in blocks:
        for layer in (block.mix.q, block.mix.k):
            if copied:
                layer.weight.data = layer.weight.data[: D // H].repeat(H, 1)
                layer.bias.data = layer.bias.data[: D // H].repeat(H)
            layer.requires_grad_(False)
    return menu(seed, blocks)


old = zoo.healthy("menus-frozen-scores-of-four-heads", lambda s: borrowed(s, False))
zoo.sick(
    "menus-frozen-scores-of-one-head-four-times",
    lambda s: borrowed(s, True),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=parts(".q", ".k"),
    also=ONE,
    control=old,
)


class Pooler(nn.Module):
    """Learned queries, one per head, look at all places; `one` is the same query for each."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        self.enter, self.key, self.value = nn.Linear(8, D), lively(nn.Linear(D, D // H)), nn.Linear(D, D)
        self.query, self.head = nn.Parameter(4 * torch.randn(1 if one else H, 1, D // H)), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.enter(x))
        k = self.key(x)[:, None].expand(-1, H, -1, -1)
        v = self.value(x).unflatten(-1, (H, -1)).transpose(1, 2)
        q = self.query.expand(len(x), H, -1, -1) if len(self.query) > 1 else self.query[None].expand(len(x), H, -1, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v).flatten(1))


pooler = zoo.healthy("flocks-four-queries-pool", lambda s: live(Pooler(False), flocks(s), lr=2e-3, steps=50))
zoo.sick(
    "flocks-one-query-pools-four-times",
    lambda s: live(Pooler(True), flocks(s), lr=2e-3, steps=50),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=("query", "key"),
    also=ONE,
    control=pooler,
)

# --- narrow


class Compressed(nn.Module):
    """Keys see all; values pass through a latent of `size` numbers, as caches are made small."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(D, D), nn.Linear(D, D)
        self.latent, self.widen, self.o = nn.Linear(D, size), nn.Linear(size, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in (self.q(x), self.k(x), self.widen(self.latent(x))))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def cached(seed: int, size: int) -> Setup:
    return turned(seed, [Block(Compressed(size))], 40, lr=5e-3, steps=90)


roomy = zoo.healthy("turns-values-by-a-latent-of-12", lambda s: cached(s, 12))
zoo.sick(
    "turns-values-by-a-latent-of-1",
    lambda s: cached(s, 1),
    lags(0.08),
    "BOTTLENECK",
    layer=("blocks.0.mix.latent", "blocks.0.mix.widen"),
    also={"LOW_RANK", "RANK_COLLAPSE", "HEAD_DIVERSITY"},
    control=roomy,
)


class Reader(nn.Module):
    """An encoder of torch, a summary of `size` numbers for each place, and a decoder that asks it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table, self.pos = nn.Embedding(40, D), nn.Parameter(torch.randn(8, D))
        self.encoder = nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True, norm_first=True)
        self.summary, self.spread = nn.Linear(D, size), nn.Linear(size, D)
        self.asks, self.cross = nn.Parameter(torch.randn(8, D)), nn.MultiheadAttention(D, H, batch_first=True)
        self.out = nn.Linear(D, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        memory = self.spread(self.summary(self.encoder(self.table(tokens) + self.pos)))
        return self.out(self.cross(self.asks.expand(len(tokens), -1, -1), memory + self.pos, memory)[0])


def read(seed: int, size: int) -> Setup:
    return live(Reader(size), turns(seed, 40), lr=5e-3, steps=100)


summary = zoo.healthy("turns-memory-of-16", lambda s: read(s, 16), thrives(0.05))
zoo.sick(
    "turns-memory-of-1",
    lambda s: read(s, 1),
    lags(0.04),
    "BOTTLENECK",
    layer=("summary", "spread"),
    also={"LOW_RANK", "RANK_COLLAPSE", "HEAD_DIVERSITY"},
    control=summary,
)


class Pooled(nn.Module):
    """Blocks over words, their mean squeezed to `size` numbers, a small net behind."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table, self.block = nn.Embedding(30, D), Block(Fused())
        self.squeeze, self.fc, self.head = nn.Linear(D, size), nn.Linear(size, D), nn.Linear(D, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.relu(self.fc(self.squeeze(self.block(self.table(tokens)).mean(dim=1)))))


wide = zoo.healthy("menus-squeezed-to-12", lambda s: live(Pooled(12), menus(s), lr=3e-3, steps=60))
zoo.sick(
    "menus-squeezed-to-1",
    lambda s: live(Pooled(1), menus(s), lr=3e-3, steps=60),
    lags(0.15),
    "BOTTLENECK",
    layer=("squeeze", "fc"),
    also={"LOW_RANK"},
    control=wide,
)

# --- numbers, cuts, dead, sizes, rates


class Linear(nn.Module):
    """Attention without a softmax: rectified features, divided by their sum and `eps`."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.q, self.k, self.v, self.o = eps, *(nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (H, -1)) for layer in (self.q, self.k, self.v))
        q, k = F.relu(q), F.relu(k)
        what = torch.einsum("bkhd,bkhe->bhde", k, v)
        total = torch.einsum("bqhd,bhd->bqh", q, k.sum(dim=1))
        return self.o((torch.einsum("bqhd,bhde->bqhe", q, what) / (total + self.eps)[..., None]).flatten(2))


safe = zoo.healthy("flocks-linear-attention-with-eps", lambda s: flock(s, [Block(Linear(1e-2)) for _ in range(2)]))
zoo.sick(
    "flocks-linear-attention-without-eps",
    lambda s: flock(s, [Block(Linear(0.0)) for _ in range(2)]),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=safe,
)


class Hard(Einsum):
    """Each place takes what it likes best, by the largest score alone."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (H, -1)) for layer in (self.to_q, self.to_k, self.to_v))
        p = F.one_hot(self.score(q, k).argmax(dim=-1), x.shape[1]).float()
        return self.to_out(torch.einsum("bhqk,bkhd->bqhd", p, v).flatten(2))


zoo.sick(
    "flocks-hard-choice-of-places",
    lambda s: flock(s, [Block(Hard()) for _ in range(2)]),
    lasting(no_gradient(*parts(".to_q", ".to_k"))),
    "DISCONNECTED",
    layer=parts(".to_q", ".to_k"),
    also={"DEAD", "ENTROPY_COLLAPSE"},
    control=divided,
)


def rectified(seed: int, bias: float) -> Setup:
    """Layers of torch whose inner rectifiers begin with a bias."""
    blocks = [nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
    for block in blocks:
        nn.init.constant_(block.linear1.bias, bias)
    return menu(seed, blocks)


awake = zoo.healthy("menus-rectifiers-begin-at-0", lambda s: rectified(s, 0.0))
zoo.sick(
    "menus-rectifiers-begin-at-minus-15",
    lambda s: rectified(s, -15.0),
    lasting(never_fires("blocks.0.linear1", 0.98), never_fires("blocks.1.linear1", 0.98)),
    "DEAD",
    layer=("blocks.0.linear1", "blocks.1.linear1"),
    also={*DEADENS, *ONE_WAY},
    control=awake,
)


def towered(seed: int, skip: float, depth: int, norms: bool, std: float | None = None, **more) -> Setup:
    blocks = [Block(Fused(), skip, norms) for _ in range(depth)]
    if std is not None:
        for module in nn.ModuleList(blocks).modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)
    return flock(seed, blocks, **more)


tower = zoo.healthy("flocks-five-blocks-pre-norm", lambda s: towered(s, 1.0, 5, True, lr=1e-3, steps=50))
zoo.sick(
    "flocks-eight-blocks-skips-times-4-without-norms",
    lambda s: towered(s, 4.0, 8, False, lr=1e-6),
    lasting(gradient_ratio("stem", "blocks.7.down", above=1e3)),
    "EXPLODING",
    also={"UNSTABLE", "ENTROPY_COLLAPSE", "NUMERICAL", "SATURATION"},
    control=tower,
)
zoo.sick(
    "flocks-five-blocks-drawn-with-0.02-without-skips-or-norms",
    lambda s: towered(s, 0.0, 5, False, 0.02, kind="SGD", lr=0.05),
    both(lasting(gradient_ratio("stem", "blocks.4.down", below=1e-4)), lags(0.1)),
    "VANISHING",
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "SLOW", "DEAD", "DISCONNECTED"},
    control=tower,
)


def causal(seed: int, lr: float, make: Callable[[], nn.Module] = lambda: Fused(causal=True)) -> Setup:
    model = Net(nn.Embedding(12, D), [Block(make()) for _ in range(2)], 12, 12, each=True)
    return live(model, reels(seed), lr=lr, steps=60)


model_of_tunes = zoo.healthy("reels-causal", lambda s: causal(s, 3e-3))
zoo.sick("reels-causal-rate-3e-10", lambda s: causal(s, 3e-10), does_not_move(steps=60), "SLOW", control=model_of_tunes)
