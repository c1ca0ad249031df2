# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Ways to attend that differ from the plain one: sets, latents, rotations, gates, kernels, graphs; sick and healthy.

Half: drill.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import attends_sharply, heads_agree, lasting, thrives, tokens_alike
from validation.labels import ALIKE, ONE, SHARP
from validation.nets.attention import joined, split
from validation.setups import live
from validation.tasks import mirrors, orders, songs

zoo = Zoo("transformer", half="drill", analyzer="transformer", proof=thrives())
WIDTH = 32


def times_(factor: float, *layers: nn.Module) -> None:
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(factor)


class Mix(nn.Module):
    """Any attention beside a skip, and a feed-forward part."""

    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.first, self.attend, self.second = nn.LayerNorm(WIDTH), attend, nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.first(x))
        return x + self.feed(self.second(x))


class Bag(nn.Module):
    """Vectors of a bag, layers, and one answer from what `pool` makes of them."""

    def __init__(self, layers: list[nn.Module], pool: nn.Module | None = None) -> None:
        super().__init__()
        self.enter, self.layers = nn.Linear(12, WIDTH), nn.ModuleList(layers)
        self.pool, self.say = pool, nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.say(self.pool(x) if self.pool is not None else x.mean(dim=1))


class Line(nn.Module):
    """Tokens, places unless `placed` is False, layers, an answer at every place."""

    def __init__(self, kinds: int, layers: list[nn.Module], placed: bool = True) -> None:
        super().__init__()
        self.token = nn.Embedding(kinds, WIDTH)
        self.place = nn.Parameter(0.5 * torch.randn(16, WIDTH)) if placed else None
        self.layers, self.last, self.say = nn.ModuleList(layers), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, kinds)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        if self.place is not None:
            x = x + self.place[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.say(self.last(x))


def bagged(seed: int, layers: list[nn.Module], pool: nn.Module | None = None, **more) -> Setup:
    return live(Bag(layers, pool), orders(seed, 5), **{"lr": 3e-3, "steps": 60, **more})


def turned(seed: int, layers: list[nn.Module], placed: bool = True, **more) -> Setup:
    return live(Line(9, layers, placed), mirrors(seed), **{"lr": 4e-3, "steps": 70, **more})


def hummed(seed: int, layers: list[nn.Module], **more) -> Setup:
    return live(Line(12, layers), songs(seed), **{"lr": 4e-3, "steps": 60, **more})


# --- sets: attention to a few learned points and back


class Cross(nn.Module):
    """Queries of one set, keys and values of another."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.fc_q, self.fc_k, self.fc_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.fc_o = nn.Linear(WIDTH, WIDTH)

    def forward(self, asks: Tensor, known: Tensor) -> Tensor:
        q, k, v = (split(f(x), self.heads) for f, x in ((self.fc_q, asks), (self.fc_k, known), (self.fc_v, known)))
        seen = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5, -1)
        return self.fc_o(joined(seen @ v))


class Induced(nn.Module):
    """A set attends to a few points, and the points to the set."""

    def __init__(self, points: int = 6) -> None:
        super().__init__()
        self.points, self.down, self.up = nn.Parameter(torch.randn(1, points, WIDTH)), Cross(), Cross()

    def forward(self, x: Tensor) -> Tensor:
        points = self.points.expand(len(x), -1, -1)
        return x + self.up(x, points + self.down(points, x))


class Seeds(nn.Module):
    """One learned seed reads the set."""

    def __init__(self) -> None:
        super().__init__()
        self.seed, self.read = nn.Parameter(torch.randn(1, 1, WIDTH)), Cross()

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.seed.expand(len(x), -1, -1), x)[:, 0]


def of_sets(seed: int, factor: float, **more) -> Setup:
    layers = [Induced() for _ in range(2)]
    times_(factor, layers[1].down.fc_q, layers[1].down.fc_k)
    return bagged(seed, layers, Seeds(), **more)


sets = zoo.healthy("orders-by-induced-sets", lambda s: of_sets(s, 1.0))
zoo.sick(
    "orders-by-induced-sets-drawn-30-times-too-wide",
    lambda s: of_sets(s, 30.0, lr=1e-3),
    lasting(attends_sharply("layers.1.down", others_above=0.2)),
    "ENTROPY_COLLAPSE",
    layer=("layers.1.down.fc_q", "layers.1.down.fc_k"),
    also={*SHARP, "VANISHING"},
    control=sets,
)


def of_seeds(seed: int, factor: float, **more) -> Setup:
    pool = Seeds()
    times_(factor, pool.read.fc_k)
    return bagged(seed, [Induced()], pool, **more)


zoo.sick(
    "orders-pooled-by-a-seed-keys-of-another-scale",
    lambda s: of_seeds(s, 400.0, lr=1e-3),
    lasting(attends_sharply("pool.read", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer="pool.read.fc_k",
    also={*SHARP, "VANISHING"},
    control=zoo.healthy("orders-pooled-by-a-seed", lambda s: of_seeds(s, 1.0)),
)

# --- latents


class Latents(nn.Module):
    """A few latents look at the input, then at each other, three times; `same` begins with one latent, repeated."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        start = torch.randn(1, 1 if same else 7, WIDTH)
        self.latents = nn.Parameter(start.expand(1, 7, WIDTH).clone())
        self.enter, self.norm = nn.Linear(12, WIDTH), nn.LayerNorm(WIDTH)
        self.read = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.layers = nn.ModuleList(Mix(Own()) for _ in range(3))
        self.say = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, z = self.norm(self.enter(x)), self.latents.expand(len(x), -1, -1)
        z = z + self.read(z, x, x, need_weights=False)[0]
        for layer in self.layers:
            z = layer(z)
        return self.say(z.mean(dim=1))


class Own(nn.Module):
    """Torch's function on projections of its own; `groups` of heads share keys, `causal` hides what comes."""

    def __init__(self, heads: int = 4, groups: int | None = None, causal: bool = False, turn=None, norm=None) -> None:
        super().__init__()
        groups = groups or heads
        self.heads, self.groups, self.causal, self.turn, self.norm = heads, groups, causal, turn, norm
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH * groups // heads, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.q_proj(x), self.heads)
        k, v = split(self.k_proj(x), self.groups), split(self.v_proj(x), self.groups)
        if self.norm is not None:
            q, k = self.norm(q), self.norm(k)
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        k, v = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (k, v))
        return self.o_proj(joined(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))


def latent(seed: int, same: bool, **more) -> Setup:
    return live(Latents(same), orders(seed, 5), **{"lr": 3e-3, "steps": 60, **more})


several = zoo.healthy("orders-by-seven-latents", lambda s: latent(s, False))
zoo.sick(
    "orders-by-one-latent-seven-times",
    lambda s: latent(s, True),
    lasting(tokens_alike("layers.1")),
    "RANK_COLLAPSE",
    "SYMMETRY",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=several,
)

# --- rotations, groups, norms


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


def llama(seed: int, factor: float, which: int = 1, **more) -> Setup:
    layers = [Mix(Own(4, 2, causal=True, turn=rotated)) for _ in range(3)]
    times_(factor, layers[which].attend.k_proj)
    return hummed(seed, layers, **more)


grouped = zoo.healthy("songs-rotated-and-grouped", lambda s: llama(s, 1.0))
zoo.sick(
    "songs-rotated-and-grouped-keys-of-one-layer-600-times",
    lambda s: llama(s, 600.0, lr=1e-3),
    lasting(attends_sharply("layers.1.attend", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer=("layers.1.attend.k_proj", "layers.1.attend.q_proj"),
    also={*SHARP, "VANISHING"},
    control=grouped,
)


class Length(nn.Module):
    """Unit vectors of a head times a learned length."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return self.length * F.normalize(x, dim=-1)


def normed(seed: int, start: float, **more) -> Setup:
    return turned(seed, [Mix(Own(norm=Length(start))) for _ in range(2)], **more)


unit = zoo.healthy("mirrors-heads-of-unit-length-times-4", lambda s: normed(s, 4.0))
zoo.sick(
    "mirrors-heads-of-unit-length-times-120",
    lambda s: normed(s, 120.0, lr=1e-3),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layers.{i}.attend.{part}" for i in (0, 1) for part in ("q_proj", "k_proj", "norm")),
    also={*SHARP, "VANISHING"},
    control=unit,
)

# --- heads that are one


class Packed(nn.Module):
    """Queries, keys and values in one matrix; `copied` repeats the first head's queries and keys, as one converts."""

    def __init__(self, copied: bool, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.in_proj, self.out = heads, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        times_(3.0, self.in_proj)
        if copied:
            with torch.no_grad():
                for part in (self.in_proj.weight, self.in_proj.bias):
                    q, k, _ = part.view(3, heads, WIDTH // heads, *part.shape[1:])
                    q[1:], k[1:] = q[:1].clone(), k[:1].clone()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, self.heads) for part in self.in_proj(x).chunk(3, dim=-1))
        return self.out(joined(F.scaled_dot_product_attention(q, k, v)))


class Tied(Packed):
    """The first head's scores serve all: values alone differ, so that heads stay one whatever is learned."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, self.heads) for part in self.in_proj(x).chunk(3, dim=-1))
        q, k = q[:, :1].expand_as(q), k[:, :1].expand_as(k)
        return self.out(joined(F.scaled_dot_product_attention(q, k, v)))


packed = zoo.healthy("orders-packed-projection", lambda s: bagged(s, [Mix(Packed(False)) for _ in range(3)]))
zoo.sick(
    "orders-packed-projection-first-head-for-all-in-the-middle",
    lambda s: bagged(s, [Mix(Packed(False)), Mix(Tied(False)), Mix(Packed(False))]),
    lasting(heads_agree("layers.1.attend")),
    "HEAD_DIVERSITY",
    layer="layers.1.attend.in_proj",
    also={*ONE, "DEAD", "DISCONNECTED"},
    control=packed,
)


class Talking(nn.Module):
    """Scores of all heads are mixed before the softmax; `even` gives every head their mean."""

    def __init__(self, even: bool) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        times_(3.0, self.to_q, self.to_k)
        self.talk = nn.Conv2d(4, 4, 1, bias=False)
        nn.init.constant_(self.talk.weight, 0.5) if even else nn.init.dirac_(self.talk.weight)
        self.talk.requires_grad_(not even)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(f(x), 4) for f in (self.to_q, self.to_k, self.to_v))
        scores = self.talk(q @ k.mT / math.sqrt(q.shape[-1]))
        return self.out(joined(F.softmax(scores, dim=-1) @ v))


talking = zoo.healthy("mirrors-talking-heads", lambda s: turned(s, [Mix(Talking(False)) for _ in range(2)]))
zoo.sick(
    "mirrors-talking-heads-that-all-say-the-mean",
    lambda s: turned(s, [Mix(Talking(True)) for _ in range(2)]),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    layer=tuple(f"layers.{i}.attend.{part}" for i in (0, 1) for part in ("to_q", "to_k", "talk")),
    also=ONE,
    control=talking,
)

# --- scores by other means than a product


class Judged(nn.Module):
    """A small net scores every pair, for all heads at once."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.ask, self.offer, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.score = nn.Linear(WIDTH, 4, bias=False)
        times_(factor, self.score)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.tanh(self.ask(x).unsqueeze(2) + self.offer(x).unsqueeze(1))  # (batch, i, j, width)
        seen = self.score(pairs).permute(0, 3, 1, 2).softmax(dim=-1)
        return self.out(joined(seen @ split(self.value(x), 4)))


judged = zoo.healthy("orders-pairs-scored-by-a-net", lambda s: bagged(s, [Mix(Judged(2.0)) for _ in range(2)]))
zoo.sick(
    "orders-pairs-scored-by-a-net-900-times",
    lambda s: bagged(s, [Mix(Judged(900.0)) for _ in range(2)], lr=1e-3),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layers.{i}.attend.{part}" for i in (0, 1) for part in ("ask", "offer", "score")),
    also={*SHARP, "VANISHING"},
    control=judged,
)


class Graph(nn.Module):
    """Every vector is a neighbour of every other; a leaky sum of two numbers scores a pair."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, WIDTH, bias=False)
        self.source, self.target = (nn.Linear(WIDTH, 1, bias=False) for _ in range(2))
        times_(factor, self.source, self.target)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        scores = F.leaky_relu(self.source(h) + self.target(h).transpose(1, 2), 0.2)
        return F.elu(scores.softmax(dim=-1) @ h)


zoo.healthy("orders-graph-of-all-with-all", lambda s: bagged(s, [Mix(Graph(1.0)) for _ in range(2)]))


class Windows(nn.Module):
    """Attention with a learned table of what distances are worth."""

    def __init__(self, size: float, places: int = 16) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table, self.places = nn.Parameter(size * torch.randn(2 * places - 1, 4)), places

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, 4) for part in self.qkv(x).chunk(3, dim=-1))
        at = torch.arange(x.shape[1])
        bias = self.table[at[:, None] - at + self.places - 1].permute(2, 0, 1)
        return self.proj(joined((q @ k.mT / math.sqrt(8) + bias).softmax(dim=-1) @ v))


table = zoo.healthy("mirrors-table-of-distances", lambda s: turned(s, [Mix(Windows(0.02)) for _ in range(2)]))
zoo.sick(
    "mirrors-table-of-distances-drawn-at-90",
    lambda s: turned(s, [Mix(Windows(90.0)) for _ in range(2)], lr=2e-3),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layers.{i}.attend{part}" for i in (0, 1) for part in ("", ".qkv")),
    also={*SHARP, "VANISHING"},
    control=table,
)

# --- tokens that become one


class Smooth(nn.Module):
    """Each token becomes a mean over those around it; `reach` of them on either side, without a way past."""

    def __init__(self, reach: int, past: bool) -> None:
        super().__init__()
        self.attend, self.reach, self.past = Mix(Own()), reach, past

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(x).transpose(1, 2)
        smooth = F.avg_pool1d(F.pad(y, (self.reach, self.reach), "circular"), 2 * self.reach + 1, 1).transpose(1, 2)
        return x + smooth if self.past else smooth


smooth = zoo.healthy("mirrors-smoothed-beside-a-skip", lambda s: turned(s, [Smooth(1, True) for _ in range(4)]))
zoo.sick(
    "mirrors-smoothed-and-nothing-else",
    lambda s: turned(s, [Smooth(3, False) for _ in range(4)], lr=1e-3),
    lasting(tokens_alike("layers.3")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "loss_stuck"},
    control=smooth,
)


class Context(nn.Module):
    """A summary of all tokens is added to each, with a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.mix, self.sum, self.weight = Mix(Own()), nn.Linear(WIDTH, WIDTH), weight

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x) + self.weight * self.sum(x.mean(dim=1, keepdim=True))


summed = zoo.healthy("mirrors-a-summary-is-added", lambda s: turned(s, [Mix(Own()), Context(1.0)]))
zoo.sick(
    "mirrors-a-summary-is-added-500-times",
    lambda s: turned(s, [Mix(Own()), Context(500.0)], lr=1e-3),
    lasting(tokens_alike("layers.1", 0.03)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "loss_stuck", "first_loss_high"},
    control=summed,
)

# --- odd and healthy


class Kernel(nn.Module):
    """Linear attention: positive features of queries meet a sum over keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = F.elu(split(self.q(x), 4)) + 1, F.elu(split(self.k(x), 4)) + 1, split(self.v(x), 4)
        return self.o(joined(q @ (k.mT @ v) / (q @ k.sum(dim=2)[..., None] + 1e-6)))


class Gated(nn.Module):
    """What attention brings passes a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate = Own(2), nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(x)) * self.inner(x)


class Shared(nn.Module):
    """One projection for queries and keys, and no place for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q = split(self.both(x), 4)
        scores = q @ F.normalize(q, dim=-1).mT / math.sqrt(8)
        scores = scores - 1e4 * torch.eye(x.shape[1])
        return self.out(joined(scores.softmax(dim=-1) @ split(self.value(x), 4)))


class Best(nn.Module):
    """Only the three best keys count."""

    def __init__(self, keep: int = 3) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(f(x), 4) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(8)
        least = scores.topk(self.keep, dim=-1).values[..., -1:]
        return self.o(joined(scores.masked_fill(scores < least, -math.inf).softmax(dim=-1) @ v))


class Sigmoid(nn.Module):
    """Every key is taken or left for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, 4) for part in self.qkv(x).chunk(3, dim=-1))
        return self.o(joined(torch.sigmoid(q @ k.mT / math.sqrt(8) - math.log(x.shape[1])) @ v))


class Again(nn.Module):
    """One layer, four times."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Mix(Own())

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.one(x)
        return x


class Wide(Own):
    """Drawn two and a half times as wide as usual: heads that know early where to look."""

    def __init__(self) -> None:
        super().__init__()
        times_(4.0, self.q_proj, self.k_proj)


def windowed(x: Tensor, inner: Own, reach: int = 2) -> Tensor:
    near = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs() <= reach
    q, k, v = (split(f(x), inner.heads) for f in (inner.q_proj, inner.k_proj, inner.v_proj))
    return inner.o_proj(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=near)))


class Near(Own):
    """Sees two places to either side."""

    def forward(self, x: Tensor) -> Tensor:
        return windowed(x, self)


class Decoder(nn.Module):
    """torch's decoder, whose queries are the places and whose memory is the tokens."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(kinds, WIDTH), nn.Parameter(0.5 * torch.randn(16, WIDTH))
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder, self.say = nn.TransformerDecoder(layer, 2), nn.Linear(WIDTH, kinds)

    def forward(self, tokens: Tensor) -> Tensor:
        place = self.place[: tokens.shape[1]]
        asks = place.expand(len(tokens), -1, -1)
        return self.say(self.decoder(asks, self.token(tokens) + place))


def decoded(seed: int, factor: float, **more) -> Setup:
    model = Decoder(9)
    with torch.no_grad():
        model.decoder.layers[1].multihead_attn.in_proj_weight[: 2 * WIDTH] *= factor
    return live(model, mirrors(seed), **{"lr": 4e-3, "steps": 70, **more})


decoder = zoo.healthy("mirrors-by-a-decoder-of-places", lambda s: decoded(s, 1.0))
zoo.sick(
    "mirrors-by-a-decoder-memory-of-the-second-40-times",
    lambda s: decoded(s, 40.0, lr=1e-3),
    lasting(attends_sharply("decoder.layers.1.multihead_attn", others_above=0.3)),
    "ENTROPY_COLLAPSE",
    layer="decoder.layers.1.multihead_attn",
    also={*SHARP, "VANISHING"},
    control=decoder,
)

zoo.healthy("orders-linear-attention", lambda s: bagged(s, [Mix(Kernel()) for _ in range(2)]))
zoo.healthy("mirrors-gated-attention", lambda s: turned(s, [Mix(Gated()) for _ in range(3)]))
zoo.healthy("orders-one-projection-for-both", lambda s: bagged(s, [Mix(Shared()) for _ in range(2)]))
zoo.healthy("mirrors-three-best-keys", lambda s: turned(s, [Mix(Best()) for _ in range(2)]))
zoo.healthy("orders-keys-one-by-one", lambda s: bagged(s, [Mix(Sigmoid()) for _ in range(3)]))
zoo.healthy("songs-one-layer-again-and-again", lambda s: hummed(s, [Again()]))
zoo.healthy("mirrors-drawn-wide-and-well", lambda s: turned(s, [Mix(Wide()) for _ in range(2)]))
zoo.healthy("orders-drawn-wide-and-well", lambda s: bagged(s, [Mix(Own()), Mix(Wide()), Mix(Wide())]))
zoo.healthy("songs-a-window-of-five", lambda s: hummed(s, [Mix(Near()) for _ in range(2)]))
zoo.healthy("mirrors-one-head", lambda s: turned(s, [Mix(Own(1)) for _ in range(2)]))
zoo.healthy("mirrors-eight-heads-one-key", lambda s: turned(s, [Mix(Own(8, 1)) for _ in range(2)]))
zoo.healthy(
    "mirrors-rotated-without-places",
    lambda s: turned(s, [Mix(Own(turn=rotated)) for _ in range(3)], placed=False),
    thrives(0.2),
)
zoo.healthy("orders-ten-layers", lambda s: bagged(s, [Mix(Own()) for _ in range(10)], lr=1e-3))
