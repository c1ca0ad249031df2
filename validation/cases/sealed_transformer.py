# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Attention over patches, sets, graphs and letters, with one fault each, and the twins.

Half: sealed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import dialects, leftovers, letters, meshes, shoals, stamps
from validation.evidence.attention import tokens_alike
from validation.evidence.live import at_last, attends_sharply, breaks, heads_agree, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, equal_units, gradient_ratio, no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import ALIKE, DEADENS, JUMPS, ONE, SHARP
from validation.setups import live
from validation.tasks import every

zoo = Zoo("transformer", half="sealed", analyzer="transformer", proof=thrives())
WIDTH, HEADS = 24, 3


class Attend(nn.Module):
    """Attention in the manner of vision models: one matrix for queries, keys and values, one behind."""

    def __init__(self, scale: float | None = None, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5 if scale is None else scale
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj((self.weigh(q, k).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and two dense layers, each behind a norm and beside a skip."""

    def __init__(self, attn: nn.Module, skip: float = 1.0, norm: bool = True, width: int = WIDTH) -> None:
        super().__init__()
        self.attn, self.skip = attn, skip
        self.norm1, self.norm2 = (nn.LayerNorm(width) if norm else nn.Identity() for _ in range(2))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip * x + self.attn(self.norm1(x))
        return self.skip * x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Body(nn.Module):
    """Something that enters, places, layers; the mean, or each token, is read."""

    def __init__(
        self, enter: nn.Module, layers: list[nn.Module], out: int, places: int = 0, each: bool = False
    ) -> None:
        super().__init__()
        self.enter, self.layers, self.norm, self.head = (
            enter,
            nn.ModuleList(layers),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, out),
        )
        self.place = nn.Parameter(0.5 * torch.randn(1, places, WIDTH)) if places else None
        self.each = each

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        if self.place is not None:
            x = x + self.place
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x if self.each else x.mean(dim=1))


class Patches(nn.Module):
    """Pictures of twelve by twelve as nine patches."""

    def __init__(self, size: int = WIDTH) -> None:
        super().__init__()
        self.patch, self.widen = nn.Linear(16, size), nn.Identity() if size == WIDTH else nn.Linear(size, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(self.patch(F.unfold(x, 4, stride=4).transpose(1, 2)))


def spelled(seed: int, layers: list[nn.Module], enter: nn.Module | None = None, **more) -> Setup:
    model = Body(enter or nn.Linear(10, WIDTH), layers, 5)
    return live(model, letters(seed), **{"lr": 3e-3, "steps": 50, **more})


def moved(seed: int, layers: list[nn.Module], enter: nn.Module | None = None, **more) -> Setup:
    model = Body(enter or nn.Embedding(8, WIDTH), layers, 8, 8, each=True)
    return live(model, leftovers(seed), **{"lr": 3e-3, "steps": 60, **more})


def seen(seed: int, layers: list[nn.Module], size: int = WIDTH, **more) -> Setup:
    """Stamps at one place, cut into patches."""
    task = stamps(seed, size=5).mapped(lambda x: F.pad(x, (3, 4, 3, 4)))
    return live(Body(Patches(size), layers, 6, 9), task, **{"lr": 3e-3, "steps": 50, **more})


# --- attention that is too sharp


def heat(seed: int, scale: float | None) -> Setup:
    """The temperature of a contrastive loss, in the place of the root."""
    return seen(seed, [Layer(Attend(scale)) for _ in range(2)])


rooted = zoo.healthy("stamps-patches-by-the-root", lambda s: heat(s, None))
zoo.sick(
    "stamps-patches-by-a-contrastive-temperature",
    lambda s: heat(s, 1 / 0.01),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=("layers.0.attn.qkv", "layers.1.attn.qkv"),
    also=SHARP,
    control=rooted,
)


class GraphAttention(nn.Module):
    """A node weighs its neighbours by a learned vector over both; `std` is how that vector is drawn."""

    def __init__(self, std: float, heads: int = 2, one: bool = False) -> None:
        super().__init__()
        self.heads, self.value, self.out = heads, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.left = nn.Parameter(std * torch.randn(1 if one else heads, WIDTH // heads))
        self.right = nn.Parameter(std * torch.randn(1 if one else heads, WIDTH // heads))
        self.one = one

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        v = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, nodes, size)
        judged = v[:, :1].expand_as(v) if self.one else v
        a = torch.einsum("bhnd,hd->bhn", judged, self.left.expand(self.heads, -1))
        b = torch.einsum("bhnd,hd->bhn", judged, self.right.expand(self.heads, -1))
        scores = F.leaky_relu(a[..., :, None] + b[..., None, :], 0.2)
        scores = scores.masked_fill(near[:, None] == 0, -1e9)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class GraphNet(nn.Module):
    """Two rounds of attention over neighbours and oneself, each beside a skip."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 4)
        self.rounds, self.norms = (
            nn.ModuleList(make() for _ in range(2)),
            nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)),
        )

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x, near = self.enter(x), near + torch.eye(near.shape[1])
        for layer, norm in zip(self.rounds, self.norms, strict=True):
            x = x + layer(norm(x), near)
        return self.leave(x.mean(dim=1))


def graph(seed: int, make: Callable[[], nn.Module], **more) -> Setup:
    return live(GraphNet(make), meshes(seed), **{"lr": 3e-3, "steps": 50, **more})


neighbours = zoo.healthy("meshes-graph-attention", lambda s: graph(s, lambda: GraphAttention(0.5)))
zoo.sick(
    "meshes-graph-attention-drawn-with-deviation-80",
    lambda s: graph(s, lambda: GraphAttention(80.0)),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"rounds.{i}{part}" for i in range(2) for part in ("", ".value")),
    also={*SHARP, "HEAD_DIVERSITY", "DEAD"},
    control=neighbours,
)


class Cross(nn.Module):
    """Queries of one sequence over the keys and values of another."""

    def __init__(self, heads: int = HEADS, norm: bool = True) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(WIDTH) if norm else nn.Identity()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ask: Tensor, x: Tensor) -> Tensor:
        q = self.q(self.norm(ask)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """A few learned vectors look at the input, think, and are read; `std` is how they are drawn."""

    def __init__(self, dim: int, out: int, std: float, latents: int = 4, norm: bool = True) -> None:
        super().__init__()
        self.enter, self.latents = nn.Linear(dim, WIDTH), nn.Parameter(std * torch.randn(1, latents, WIDTH))
        self.cross, self.think, self.head = Cross(norm=norm), Layer(Attend()), nn.Linear(WIDTH, out)

    def forward(self, x: Tensor) -> Tensor:
        ask = self.latents.expand(len(x), -1, -1)
        return self.head(self.think(self.cross(ask, self.enter(x))).mean(dim=1))


def perceived(seed: int, std: float, norm: bool) -> Setup:
    return live(Perceiver(10, 5, std, norm=norm), letters(seed), lr=3e-3, steps=60)


latents = zoo.healthy("letters-perceiver", lambda s: perceived(s, 0.5, True))
zoo.sick(
    "letters-perceiver-latents-of-400-without-a-norm",
    lambda s: perceived(s, 400.0, False),
    lasting(attends_sharply("cross", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer=("latents", "cross.q", "cross.kv"),
    also=SHARP,
    control=latents,
)


class Annealed(Attend):
    """The softmax is made harder from call to call; `fall` is what is left of its temperature each time."""

    def __init__(self, fall: float) -> None:
        super().__init__()
        self.fall, self.calls = fall, 0

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        self.calls += self.training
        return super().weigh(q, k) / max(self.fall**self.calls, 2e-3)


slowly = zoo.healthy(
    "letters-annealed-by-a-thousandth", lambda s: spelled(s, [Layer(Annealed(0.999)) for _ in range(2)])
)
zoo.sick(
    "letters-annealed-by-a-fifth-per-step",
    lambda s: spelled(s, [Layer(Annealed(0.8)) for _ in range(2)]),
    at_last(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=("layers.0.attn.qkv", "layers.1.attn.qkv"),
    also={*SHARP, "VANISHING"},
    control=slowly,
)


def raw(seed: int, unit: float, norm: bool) -> Setup:
    """Vectors as they are measured, and no norm before the attention."""
    model = Body(nn.Linear(10, WIDTH), [Layer(Attend(), norm=norm)], 5)
    return live(model, letters(seed).mapped(lambda x: unit * x), lr=2e-3, steps=50)


unit_vectors = zoo.healthy("letters-measured-in-metres", lambda s: raw(s, 1.0, True))
zoo.sick(
    "letters-measured-in-centimetres-without-norms",
    lambda s: raw(s, 100.0, False),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    "EXPLODING",
    layer=("enter", "layers.0.attn.qkv"),
    also={*SHARP, "NUMERICAL", "first_loss_high"},
    control=unit_vectors,
)


class SeedPool(nn.Module):
    """A set transformer: points look at one another, then a seed looks at all."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.enter, self.layer = nn.Linear(3, WIDTH), Layer(Attend())
        self.seed, self.norm = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.LayerNorm(WIDTH)
        self.pool, self.head = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 4)
        self.pool.in_proj_weight.data[:WIDTH] *= factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.layer(self.enter(x)))
        return self.head(self.pool(self.seed.expand(len(x), -1, -1), x, x, need_weights=False)[0][:, 0])


def pooled(seed: int, factor: float) -> Setup:
    return live(SeedPool(factor), shoals(seed, 12), lr=5e-3, steps=80)


seeded = zoo.healthy("shoals-pooled-by-a-seed", lambda s: pooled(s, 1.0), thrives(0.05))
zoo.sick(
    "shoals-pooled-by-a-seed-queries-times-900",
    lambda s: pooled(s, 900.0),
    lasting(attends_sharply("pool", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer="pool",
    also=SHARP,
    control=seeded,
)

# --- tokens that become one


def bare(seed: int, skip: float, depth: int) -> Setup:
    """The way past the layers was lost when the code was tidied."""
    return seen(seed, [Layer(Attend(), skip) for _ in range(depth)], lr=1e-3)


with_skips = zoo.healthy("stamps-five-layers-with-skips", lambda s: bare(s, 1.0, 5))
zoo.sick(
    "stamps-five-layers-without-skips",
    lambda s: bare(s, 0.0, 5),
    lasting(tokens_alike("layers.4", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DEAD", "SLOW"},
    control=with_skips,
)


class Early(nn.Module):
    """Points as vectors, with the mean of all taken off; `wrong` hands on the mean itself."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.fc, self.wrong = nn.Linear(10, WIDTH), wrong

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        mean = x.mean(dim=1, keepdim=True)
        return mean.expand_as(x) if self.wrong else x - 0.3 * mean


unpooled = zoo.healthy(
    "letters-part-of-the-mean-taken-off", lambda s: spelled(s, [Layer(Attend()) for _ in range(2)], Early(False))
)
zoo.sick(
    "letters-averaged-before-the-layers",
    lambda s: spelled(s, [Layer(Attend()) for _ in range(2)], Early(True)),
    lasting(tokens_alike("enter"), tokens_alike("layers.1")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "DISCONNECTED"},
    control=unpooled,
)


class Padded(nn.Module):
    """Words, with a learned vector where one is hidden; `inverted` hides those that are to be seen."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.table, self.hidden, self.inverted = nn.Embedding(32, WIDTH), nn.Parameter(torch.randn(WIDTH)), inverted

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens == 0)[..., None]
        return torch.where(~mask if self.inverted else mask, self.hidden, self.table(tokens.clamp_min(1)))


def hidden(seed: int, inverted: bool) -> Setup:
    task = dialects(seed).mapped(lambda x: x.clamp_min(1))
    return live(Body(Padded(inverted), [Layer(Attend()) for _ in range(2)], 5), task, lr=3e-3, steps=60)


shown = zoo.healthy("dialects-words-shown", lambda s: hidden(s, False), thrives(idle="enter.hidden"))
zoo.sick(
    "dialects-mask-the-wrong-way-round",
    lambda s: hidden(s, True),
    both(lasting(tokens_alike("layers.1")), lags(0.1)),
    "RANK_COLLAPSE",
    "LOW_RANK",
    "BOTTLENECK",
    "DISCONNECTED",
    also={*ALIKE, "HEAD_DIVERSITY", "DEAD", "SLOW"},
    control=shown,
)


class Smoothed(nn.Module):
    """Nodes are smoothed along edges so many times before they look at one another."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.enter, self.layers, self.leave = (
            times,
            nn.Linear(6, WIDTH),
            nn.ModuleList(),
            nn.Linear(WIDTH, 4),
        )
        self.layers = nn.ModuleList(Layer(Attend()) for _ in range(2))

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(self.times):
            x = 0.5 * x + 0.5 * near @ x
        for layer in self.layers:
            x = layer(x)
        return self.leave(x.mean(dim=1))


once = zoo.healthy("meshes-smoothed-once", lambda s: live(Smoothed(1), meshes(s), lr=3e-3, steps=50))
zoo.sick(
    "meshes-smoothed-eighty-times",
    lambda s: live(Smoothed(80), meshes(s), lr=3e-3, steps=50),
    lasting(tokens_alike("layers.1", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "LOW_RANK", "BOTTLENECK"},
    control=once,
)


class Summary(nn.Module):
    """What the whole text says is added to each word; `times` was meant to be a share."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.table, self.whole, self.times = nn.Embedding(8, WIDTH), nn.Linear(WIDTH, WIDTH), times

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return x + self.times * torch.tanh(self.whole(x.mean(dim=1, keepdim=True)) + 1)


told = zoo.healthy("leftovers-summary-times-0.3", lambda s: moved(s, [Layer(Attend()) for _ in range(2)], Summary(0.3)))
zoo.sick(
    "leftovers-summary-times-300",
    lambda s: moved(s, [Layer(Attend()) for _ in range(2)], Summary(300.0)),
    both(lasting(tokens_alike("layers.1")), lags(0.03)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SATURATION"},
    control=told,
)

# --- heads that are one


def lively(layer: nn.Linear, factor: float = 2.5) -> nn.Linear:
    nn.init.normal_(layer.weight, std=factor / layer.in_features**0.5)
    return layer


class Listed(nn.Module):
    """A list of heads, each with its queries and keys; `[head] * n` is one head n times."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        size = WIDTH // HEADS

        def head() -> nn.Linear:
            return lively(nn.Linear(WIDTH, 2 * size))

        self.heads = nn.ModuleList([head()] * HEADS if copies else [head() for _ in range(HEADS)])
        self.value, self.proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        pairs = [head(x).chunk(2, dim=-1) for head in self.heads]
        scores = torch.stack([q @ k.transpose(1, 2) for q, k in pairs], dim=1) * (WIDTH // HEADS) ** -0.5
        v = self.value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


listed = zoo.healthy("letters-a-list-of-heads", lambda s: spelled(s, [Layer(Listed(False)) for _ in range(2)]))
zoo.sick(
    "letters-a-list-of-one-head",
    lambda s: spelled(s, [Layer(Listed(True)) for _ in range(2)]),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layers.{i}.attn.{part}" for i in range(2) for part in ("heads.0", "value")),
    also=ONE,
    control=listed,
)
zoo.sick(
    "meshes-graph-attention-judges-by-one-head",
    lambda s: graph(s, lambda: GraphAttention(2.0, one=True)),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"rounds.{i}{part}" for i in range(2) for part in ("", ".value")),
    also=ONE,
    control=neighbours,
)


class Tied(nn.Module):
    """Queries and keys of a head by a matrix; `shared` has one for all heads, to save memory."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.qk = nn.Parameter(2.5 * torch.randn(2, 1 if shared else HEADS, WIDTH, size) / WIDTH**0.5)
        self.value, self.proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k = torch.einsum("btc,phcd->pbhtd", x, self.qk.expand(-1, HEADS, -1, -1))
        v = self.value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


own = zoo.healthy("leftovers-a-matrix-per-head", lambda s: moved(s, [Layer(Tied(False)) for _ in range(2)]))
zoo.sick(
    "leftovers-one-matrix-for-all-heads",
    lambda s: moved(s, [Layer(Tied(True)) for _ in range(2)]),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layers.{i}.attn{part}" for i in range(2) for part in ("", ".value", ".proj")),
    also=ONE,
    control=own,
)


class Synthetic(nn.Module):
    """Attention by learned numbers of places alone; `one` keeps a single table."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(1.5 * torch.randn(1 if one else HEADS, 9, 9))
        self.value, self.proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        v = self.value(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        p = torch.softmax(self.table.expand(len(x), HEADS, 9, 9), dim=-1)
        return self.proj((p @ v).transpose(1, 2).flatten(2))


tables = zoo.healthy(
    "stamps-a-table-of-places-per-head", lambda s: seen(s, [Layer(Synthetic(False)) for _ in range(2)])
)
zoo.sick(
    "stamps-one-table-of-places",
    lambda s: seen(s, [Layer(Synthetic(True)) for _ in range(2)]),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layers.{i}.attn{part}" for i in range(2) for part in ("", ".value", ".proj")),
    also=ONE,
    control=tables,
)


class Cached(Attend):
    """Scores are kept in a buffer per head; `slot` writes the first head's into every slot."""

    def __init__(self, slot: bool) -> None:
        super().__init__()
        self.slot = slot
        lively(self.qkv, 2.2)

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().weigh(q, k)
        return torch.stack([scores[:, 0 if self.slot else h] for h in range(self.heads)], dim=1)


def kept(seed: int, slot: bool) -> Setup:
    return spelled(seed, [Layer(Attend()), Layer(Cached(slot)), Layer(Attend())])


slots = zoo.healthy("letters-scores-kept-per-head", lambda s: kept(s, False))
zoo.sick(
    "letters-scores-of-the-first-head-kept",
    lambda s: kept(s, True),
    lasting(heads_agree("layers.1.attn")),
    "HEAD_DIVERSITY",
    layer="layers.1.attn.qkv",
    also=ONE,
    control=slots,
)

# --- narrow, dead, cut


zoo.sick(
    "stamps-patches-as-1-number",
    lambda s: seen(s, [Layer(Attend()) for _ in range(2)], 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("enter.patch", "enter.widen"),
    also={"LOW_RANK", "RANK_COLLAPSE", "HEAD_DIVERSITY"},
    control=rooted,
)


class Told(nn.Module):
    """A query asks what was written down of each letter in `size` numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter, self.note, self.recall = nn.Linear(10, WIDTH), nn.Linear(WIDTH, size), nn.Linear(size, WIDTH)
        self.ask, self.cross, self.head = nn.Parameter(0.7 * torch.randn(1, 1, WIDTH)), Cross(), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.recall(self.note(F.gelu(self.enter(x))))
        return self.head(self.cross(self.ask.expand(len(x), -1, -1), memory)[:, 0])


noted = zoo.healthy("letters-noted-in-12-numbers", lambda s: live(Told(12), letters(s, classes=8), lr=5e-3, steps=80))
zoo.sick(
    "letters-noted-in-1-number",
    lambda s: live(Told(1), letters(s, classes=8), lr=5e-3, steps=80),
    lags(0.1),
    "BOTTLENECK",
    layer=("note", "recall"),
    also={"LOW_RANK", "RANK_COLLAPSE", "HEAD_DIVERSITY"},
    control=noted,
)


class Rectified(Layer):
    """The dense layers are rectified; the bias of the first is `bias`."""

    def __init__(self, bias: float) -> None:
        super().__init__(Attend())
        nn.init.constant_(self.fc1.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.relu(self.fc1(self.norm2(x))))


firing = zoo.healthy("letters-rectified-layers", lambda s: spelled(s, [Rectified(0.0) for _ in range(3)]))
zoo.sick(
    "letters-rectified-layers-second-bias-minus-40",
    lambda s: spelled(s, [Rectified(-40.0 if i == 1 else 0.0) for i in range(3)]),
    lasting(never_fires("layers.1.fc1", 0.97)),
    "DEAD",
    layer=("layers.1.fc1", "layers.1.fc2"),
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=firing,
)


class Pick(nn.Module):
    """Takes the letter with the highest score; `hard` by its number, else by a softmax."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.hard, self.enter, self.layer = hard, nn.Linear(10, WIDTH), Layer(Attend())
        self.score, self.head = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.enter(x))
        score = self.score(x).squeeze(2)
        p = F.one_hot(score.argmax(dim=1), score.shape[1]).float() if self.hard else score.softmax(dim=1)
        return self.head(torch.einsum("bt,btd->bd", p, x))


picked = zoo.healthy(
    "letters-picked-by-a-softmax",
    lambda s: live(Pick(False), letters(s), lr=3e-3, steps=60),
    thrives(idle="score.bias"),
)
zoo.sick(
    "letters-picked-by-their-number",
    lambda s: live(Pick(True), letters(s), lr=3e-3, steps=60),
    lasting(no_gradient("score")),
    "DISCONNECTED",
    layer=("score", "head"),
    also={"DEAD"},
    control=picked,
)

# --- growing, equal


def steep(seed: int, gain: float, depth: int, norm: bool, **more) -> Setup:
    """Without norms, what each layer adds is larger than what comes in."""
    layers = [Layer(Attend(), norm=norm) for _ in range(depth)]
    for layer in layers:
        for part in (layer.attn.proj, layer.fc2):
            part.weight.data *= gain
    return moved(seed, layers, **more)


flat = zoo.healthy("leftovers-three-layers-with-norms", lambda s: steep(s, 1.0, 3, True))
zoo.sick(
    "leftovers-eight-layers-without-norms-gain-12",
    lambda s: steep(s, 12.0, 8, False, lr=1e-7, steps=40),
    lasting(gradient_ratio("layers.0.fc2", "layers.7.fc2", above=50)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL", "ENTROPY_COLLAPSE", "first_loss_high", "HEAD_DIVERSITY", "RANK_COLLAPSE"},
    control=flat,
)


def one_unit(seed: int, same: bool) -> Setup:
    """The dense layers begin as one unit, copied."""
    setup = spelled(seed, [Layer(Attend(), norm=True)], kind="SGD", lr=0.1, steps=60, momentum=0.9)
    layer = setup.model.layers[0]
    if same:
        layer.fc1.weight.data = layer.fc1.weight.data[:1].expand_as(layer.fc1.weight).clone()
        layer.fc1.bias.data = layer.fc1.bias.data[:1].expand_as(layer.fc1.bias).clone()
        layer.fc2.weight.data = layer.fc2.weight.data[:, :1].expand_as(layer.fc2.weight).clone()
    return setup


units = zoo.healthy("letters-dense-units-as-drawn", lambda s: one_unit(s, False))
zoo.sick(
    "letters-dense-units-copied",
    lambda s: one_unit(s, True),
    lasting(equal_units("layers.0.fc1.weight")),
    "SYMMETRY",
    layer=("layers.0.fc1", "layers.0.fc2"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=units,
)

# --- numbers, jumps, rates


class Bags(nn.Module):
    """Words, of which word 0 is padding and is not looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.head = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill((tokens == 0)[:, None], -torch.inf)
        return self.head((x + scores.softmax(dim=-1) @ v).mean(dim=1))


def empty(seed: int, words: int) -> Setup:
    """Now and then a text has no words, or one."""
    now = every(12, 7)

    def cut(x: Tensor) -> Tensor:
        x = x.clamp_min(1)
        if now():
            x[0, words:] = 0
        return x

    return live(Bags(), dialects(seed).mapped(cut), lr=5e-3, steps=60)


one_word = zoo.healthy("dialects-texts-of-one-word", lambda s: empty(s, 1))
zoo.sick(
    "dialects-texts-of-no-words",
    lambda s: empty(s, 0),
    breaks,
    "NUMERICAL",
    also={"ENTROPY_COLLAPSE"},
    control=one_word,
)


def rated_by_readers(seed: int, least: float) -> Setup:
    """Samples count by one over how far their readers disagree; some readers agree to the last digit."""
    now = every(12, 7)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        apart = torch.full((len(t),), 0.5)
        if now():
            apart[:2] = 1e-7
        return (F.cross_entropy(z, t, reduction="none") / apart.clamp_min(least)).mean()

    model = Body(nn.Linear(10, WIDTH), [Layer(Attend())], 5)
    return live(model, letters(seed, classes=5).with_loss(loss), lr=2e-3, steps=70)


at_least_half = zoo.healthy("letters-readers-disagree-by-at-least-a-half", lambda s: rated_by_readers(s, 0.5))
zoo.sick(
    "letters-readers-who-agree",
    lambda s: rated_by_readers(s, 0.0),
    gradient_norms_spread(30),
    *JUMPS,
    also={"NUMERICAL"},
    control=at_least_half,
)


def rated(seed: int, lr: float) -> Setup:
    return moved(seed, [Layer(Attend()) for _ in range(2)], kind="NAdam", lr=lr, steps=60)


usual = zoo.healthy("leftovers-nadam", lambda s: rated(s, 8e-3))
zoo.sick("leftovers-nadam-rate-1e-9", lambda s: rated(s, 1e-9), does_not_move(steps=60), "SLOW", control=usual)
