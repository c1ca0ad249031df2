# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Everyday transformers with the faults that people report: attention, tokens, heads, and those of any network.

Half: plain.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_sequences import alike, ends_worse, small_gradients
from validation.cases._plain_sequences import (
    Fused,
    Mlp,
    Residual,
    Stack,
    ahead,
    commands,
    heads_of,
    loans,
    playlists,
    pointed,
    rides,
    shards,
    stamps,
    swaps,
    tickets,
    tokens_of,
    verses,
)
from validation.evidence.live import at_last, attends_sharply, breaks, heads_agree, lasting, thrives
from validation.evidence.signal import both, no_gradient
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import ALIKE, JUMPS, LOST, ONE, RUNS_AWAY, SHARP
from validation.setups import live
from validation.tasks import Task, every, token_loss

zoo = Zoo("transformer", half="plain", analyzer="transformer", proof=thrives(0.15))
ONE_HOT = ("ENTROPY_COLLAPSE", "SATURATION")
SHARP_TOO = {*SHARP, "VANISHING", "HEAD_DIVERSITY", "RANK_COLLAPSE", "LOW_RANK"}
ALIKE_TOO = {*ALIKE, "HEAD_DIVERSITY", "UNSTABLE", "SLOW", "DEAD", "DISCONNECTED"}
SAME = ("HEAD_DIVERSITY", "SYMMETRY")


def sharp(*paths: str, worse: float = 1.15):
    """Attention is one-hot from first to last, and the twin ends better."""
    return both(lasting(attends_sharply(*paths)), ends_worse(worse))


# --- attention that is one-hot


class Encoder(nn.Module):
    """torch's own encoder over requests for help with their mask; read at the mean."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(30, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 2)

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        h = self.body(self.words(tokens), src_key_padding_mask=~there)
        return self.out((h * there[..., None]).sum(dim=1) / there.sum(dim=1, keepdim=True))


class Underlined(nn.Module):
    """torch's own encoder over the words of a row and their places; read at the last."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(16, width), nn.Parameter(0.5 * torch.randn(1, 12, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.body(self.words(tokens) + self.place)[:, -1])


def underlined(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, pointed(seed), **{"lr": 3e-3, "steps": 100, **more})


def drawn(seed: int, init) -> Setup:
    """`for p in model.parameters(): if p.dim() > 1: init(p)`."""
    model = Underlined()
    for weight in model.body.parameters():
        if weight.dim() > 1:
            init(weight)
    return underlined(seed, model)


xavier = zoo.healthy("underlined-torch-encoder-every-matrix-xavier", lambda s: drawn(s, nn.init.xavier_uniform_))
zoo.sick(
    "underlined-torch-encoder-every-matrix-normal",
    lambda s: drawn(s, nn.init.normal_),
    sharp(),
    *ONE_HOT,
    layer=tuple(f"body.layers.{i}{part}" for i in range(2) for part in ("", ".self_attn", ".linear1", ".linear2")),
    also=SHARP_TOO,
    control=xavier,
)


class Cosine(nn.Module):
    """Attention by cosines times a learned scale, which is kept as its logarithm."""

    def __init__(self, width: int, heads: int, start: float) -> None:
        super().__init__()
        self.heads, self.logit_scale = heads, nn.Parameter(torch.full((heads, 1, 1), start))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        weight = (scores * self.logit_scale.exp()).softmax(dim=-1)
        return self.proj((weight @ v).transpose(1, 2).flatten(2))


class Squares(nn.Module):
    """Squares of a picture, projected."""

    def __init__(self, width: int, size: int = 3) -> None:
        super().__init__()
        self.size, self.lin = size, nn.Linear(size * size, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(tokens_of(x, self.size))


def pictures(seed: int, blocks: list[nn.Module], width: int = 36, read: str = "mean", **more) -> Setup:
    model = Stack(Squares(width), blocks, width, 6, read, 16)
    return live(model, stamps(seed), **{"lr": 2e-3, "steps": 60, **more})


class Pooled(nn.Module):
    """A block over the words of a row; the last word says which was underlined."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(16, 32), Residual(Cosine(32, 4, start), Mlp(32, 64), 32)
        self.ln, self.out = nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.ln(self.block(self.words(tokens)))[:, -1])


logarithm = zoo.healthy("underlined-cosines-log-of-ten", lambda s: underlined(s, Pooled(math.log(10.0))), thrives(0.1))
zoo.sick(
    "underlined-cosines-ten-taken-for-its-logarithm",
    lambda s: underlined(s, Pooled(10.0)),
    both(lasting(attends_sharply("block.attn", below=0.25)), ends_worse(1.5)),  # equal words share the look
    *ONE_HOT,
    layer=("block.attn", "block.attn.qkv", "block.attn.proj"),
    also=SHARP_TOO,
    control=logarithm,
)


class Columns(nn.Module):
    """Every column of a table becomes a token: its value times a vector, plus another; a post-norm layer of torch."""

    def __init__(self, columns: int = 8, width: int = 32) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(columns, width)), nn.Parameter(torch.randn(columns, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(columns * width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x[..., None] * self.scale + self.shift))


def lent(seed: int, raw: bool) -> Setup:
    """Columns as they are in the file: years, euros, cents; or standardised."""
    unit = 10.0 ** torch.arange(8) if raw else torch.ones(8)
    middle = 3 * unit if raw else torch.zeros(8)
    return live(Columns(), loans(seed).mapped(lambda x: x * unit + middle), lr=2e-3, steps=80)


standardised = zoo.healthy("loans-columns-standardised", lambda s: lent(s, False))
zoo.sick(
    "loans-columns-as-they-are-in-the-file",
    lambda s: lent(s, True),
    sharp("layer.self_attn"),
    *ONE_HOT,
    "EXPLODING",
    layer=("layer", "layer.self_attn", "scale", "shift"),
    also=SHARP_TOO,
    control=standardised,
)


class Modulated(nn.Module):
    """A block whose norms are scaled and shifted by what the time of diffusion says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attn, self.mlp, self.ada = Fused(width, 4), Mlp(width, 2 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        a, b, c, d = self.ada(time)[:, None].chunk(4, dim=-1)
        x = x + self.attn(self.ln1(x) * (1 + a) + b)
        return x + self.mlp(self.ln2(x) * (1 + c) + d)


class Denoiser(nn.Module):
    """A transformer that says which noise was added to a picture; time enters as a share of 1000 or as its number."""

    def __init__(self, by: float, width: int = 32) -> None:
        super().__init__()
        self.by, self.enter, self.time = by, nn.Linear(9, width), nn.Linear(1, width)
        self.place = nn.Parameter(0.3 * torch.randn(1, 16, width))
        self.blocks = nn.ModuleList(Modulated(width) for _ in range(2))
        self.out = nn.Linear(width, 9)

    def forward(self, tiles: Tensor, time: Tensor) -> Tensor:
        t = F.silu(self.time(time[:, None] / self.by))
        x = self.enter(tiles) + self.place
        for block in self.blocks:
            x = block(x, t)
        return self.out(x)


def noised(seed: int) -> Task:
    """Pictures under noise of a strength that grows with time, and that noise."""
    random = torch.Generator().manual_seed(seed + 77)

    def change(x: Tensor, _target: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        tiles = tokens_of(x)
        time = torch.randint(1000, (len(x),), generator=random).float()
        noise = torch.randn(tiles.shape, generator=random)
        share = (time / 1000)[:, None, None]
        return ((1 - share).sqrt() * tiles + share.sqrt() * noise, time), noise

    return stamps(seed, noise=0.05).changed(change).with_loss(F.mse_loss)


shared_time = zoo.healthy(
    "diffusion-time-as-a-share", lambda s: live(Denoiser(1000.0), noised(s), lr=2e-3, steps=80), thrives(0.2)
)
zoo.sick(
    "diffusion-time-as-its-number",
    lambda s: live(Denoiser(1.0), noised(s), lr=2e-3, steps=80),
    sharp(),
    *ONE_HOT,
    "EXPLODING",
    layer=tuple(f"blocks.{i}{part}" for i in range(2) for part in ("", ".attn", ".ada", ".attn.qkv")),
    also={*SHARP_TOO, "NUMERICAL"},
    control=shared_time,
)


class Hourly(nn.Module):
    """Readings with the time of each, by causal post-norm layers of torch."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True) for _ in range(2))
        self.out = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = layer(h, src_mask=ahead(x.shape[1]))
        return self.out(h)


def hours(seed: int, unit: float, begin: float) -> Setup:
    """The time is that of the day in minutes, or in days from the first reading."""

    def dated(x: Tensor) -> Tensor:
        time = begin + unit * torch.arange(x.shape[1] * 1.0)
        return torch.cat([x, time[None, :, None].expand(len(x), -1, -1)], dim=-1)

    return live(Hourly(), rides(seed, 16).mapped(dated), lr=2e-3, steps=60)


days = zoo.healthy("rides-time-in-days", lambda s: hours(s, 1 / 24, 0.0))
zoo.sick(
    "rides-time-in-minutes-of-the-day",
    lambda s: hours(s, 60.0, 480.0),
    both(lasting(attends_sharply("layers.0.self_attn")), ends_worse(1.3)),
    *ONE_HOT,
    "RANK_COLLAPSE",
    "LOW_RANK",
    layer=("enter", "layers.0", "layers.0.self_attn", "layers.1", "layers.1.self_attn"),
    also=SHARP_TOO | ALIKE_TOO,
    control=days,
)


class Bag(nn.Module):
    """Shards gathered by the scores of a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.score = nn.Linear(10, 32), nn.Linear(32, 1)
        self.value, self.out = nn.Linear(32, 32), nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.enter(x))
        weight = self.score(h).transpose(1, 2).softmax(dim=-1)
        return self.out((weight @ self.value(h))[:, 0])


def weighed(seed: int, unit: float) -> Setup:
    return live(Bag(), shards(seed).mapped(lambda x: unit * x), lr=5e-3, steps=80)


kilos = zoo.healthy("shards-gathered-in-kilograms", lambda s: weighed(s, 1.0))
zoo.sick(
    "shards-gathered-in-grams",
    lambda s: weighed(s, 1000.0),
    sharp(worse=1.3),
    *ONE_HOT,
    layer=("score", "enter", "value"),
    also=SHARP_TOO,
    control=kilos,
)


class Stations(nn.Module):
    """Weather stations look at each other, less at those far away: minus the distance is added to the scores."""

    def __init__(self, unit: float, width: int = 32) -> None:
        super().__init__()
        self.unit, self.enter, self.out = unit, nn.Linear(3, width), nn.Linear(width, 1)
        self.ln, self.q, self.k, self.v, self.o = (nn.LayerNorm(width), *(nn.Linear(width, width) for _ in range(4)))
        self.mlp = Mlp(width, 64)

    def forward(self, x: Tensor) -> Tensor:
        far = torch.cdist(x[..., :2], x[..., :2])[:, None] * self.unit
        h = self.enter(x)
        n = self.ln(h)
        q, k, v = (heads_of(part(n), 4) for part in (self.q, self.k, self.v))
        h = h + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=-far).transpose(1, 2).flatten(2))
        return self.out(h + self.mlp(h))[..., 0]


def weather(seed: int, batch: int = 24, count: int = 12) -> Task:
    """Stations at random places of which each measures something; what do its neighbours measure on average?"""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        place = 3 * torch.randn(batch, count, 2, generator=random)
        value = torch.randn(batch, count, generator=random)
        near = torch.exp(-torch.cdist(place, place)) * (1 - torch.eye(count))
        mean = (near @ value[..., None])[..., 0] / (near.sum(dim=-1) + 0.1)
        return torch.cat([place, value[..., None]], dim=-1), mean

    return Task(seed, draw, F.mse_loss)


kilometres = zoo.healthy(
    "stations-distances-in-kilometres", lambda s: live(Stations(1.0), weather(s), lr=5e-3, steps=80), thrives(0.3)
)
zoo.sick(
    "stations-distances-in-metres",
    lambda s: live(Stations(1000.0), weather(s), lr=5e-3, steps=80),
    sharp("", worse=1.3),
    *ONE_HOT,
    layer=("q", "k", "v", "o"),
    also=SHARP_TOO,
    control=kilometres,
)

# --- tokens that become one


class Histogram(nn.Module):
    """Shares between 0 and 1 as tokens of 32 bins; whoever forgets to multiply has one bin for all."""

    def __init__(self, bins: int, width: int = 32) -> None:
        super().__init__()
        self.bins, self.table = bins, nn.Embedding(32, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x * self.bins).long())


def shares(seed: int, bins: int) -> Setup:
    """The largest and the smallest share of a set."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(32, 10, generator=random) ** (3 * torch.rand(32, 1, generator=random))
        return x, torch.stack([x.amax(dim=1), x.amin(dim=1)], dim=1)

    blocks = [Residual(Fused(32, 4), Mlp(32, 64), 32) for _ in range(2)]
    model = Stack(Histogram(bins), blocks, 32, 2, "mean")
    return live(model, Task(seed, draw, F.mse_loss), lr=3e-3, steps=80)


binned = zoo.healthy("shares-in-32-bins", lambda s: shares(s, 32), thrives(0.4))
zoo.sick(
    "shares-cut-to-whole-numbers",
    lambda s: shares(s, 1),
    both(lasting(alike("enter", 1e-3)), ends_worse(1.5)),
    "RANK_COLLAPSE",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("enter.table", "enter"),
    also={*ALIKE_TOO, "SYMMETRY"},
    control=binned,
)


class Highway(nn.Module):
    """A block that takes a share of the new and keeps the rest; the gate begins closed, or by a lost minus open."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.attn, self.gate, self.ln = Fused(width, 4), nn.Linear(width, width), nn.LayerNorm(width)
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.gate(x))
        return (1 - share) * x + share * self.attn(self.ln(x))


def song(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, playlists(seed), **{"lr": 3e-3, "steps": 60, **more})


def said_again(seed: int) -> Task:
    """Which song was each?"""
    return playlists(seed, length=10).changed(lambda x, _: (x, x))


def highways(seed: int, bias: float) -> Setup:
    model = Stack(nn.Embedding(24, 32), [Highway(32, bias) for _ in range(8)], 32, 24, length=10)
    return live(model, said_again(seed), lr=2e-3, steps=50)


carried = zoo.healthy("songs-highway-gates-begin-at-minus-5", lambda s: highways(s, -5.0))
zoo.sick(
    "songs-highway-gates-begin-at-5",
    lambda s: highways(s, 5.0),
    both(lasting(alike("blocks.7", 0.15)), ends_worse()),
    "RANK_COLLAPSE",
    also={*ALIKE_TOO, "SATURATION"},
    control=carried,
)


def normed(seed: int, reverse: bool) -> Setup:
    """A loop sets the norms to ones and zeros, and takes weight and bias for each other."""
    model = Encoder(32, 3)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 0.0 if reverse else 1.0)
            nn.init.constant_(module.bias, 1.0 if reverse else 0.0)
    return live(model, tickets(seed), lr=1e-3, steps=60)


proper = zoo.healthy("tickets-norms-of-weight-1-and-bias-0", lambda s: normed(s, False))
zoo.sick(
    "tickets-norms-of-weight-0-and-bias-1",
    lambda s: normed(s, True),
    both(alike("body.layers.0.norm2", 1e-3), at_last(alike("body.layers.0", 0.2)), ends_worse()),
    "RANK_COLLAPSE",
    "VANISHING",
    "DISCONNECTED",
    "DEAD",
    "LOW_RANK",
    also={*ALIKE_TOO, "SATURATION", "SYMMETRY"},
    control=proper,
)


class AtOnce(nn.Module):
    """A text is translated at once: every place of the answer is one mask token, with a place of its own or not."""

    def __init__(self, places: bool, width: int = 32) -> None:
        super().__init__()
        self.words, self.mask = nn.Embedding(10, width), nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 6, width))
        self.encoder = nn.TransformerEncoderLayer(width, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(width, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.out, self.places = nn.Linear(width, 10), places

    def forward(self, source: Tensor, _shifted: Tensor) -> Tensor:
        memory = self.encoder(self.words(source) + self.place)
        slots = self.mask.expand(len(source), 6, -1)
        return self.out(self.decoder(slots + self.place if self.places else slots, memory))


def at_once(seed: int, places: bool) -> Setup:
    return live(AtOnce(places), swaps(seed), lr=5e-3, steps=100)


placed = zoo.healthy("translation-at-once-from-places", lambda s: at_once(s, True))
zoo.sick(
    "translation-at-once-places-forgotten",
    lambda s: at_once(s, False),
    both(lasting(alike("decoder", 1e-3)), ends_worse()),
    "RANK_COLLAPSE",
    "LOW_RANK",
    "BOTTLENECK",
    "SYMMETRY",
    layer=("decoder", "mask", "out"),
    also=ALIKE_TOO,
    control=placed,
)


class Acoustic(nn.Module):
    """torch's attention, a dense layer, a norm; what came in is added, or not."""

    def __init__(self, add: bool, width: int = 32) -> None:
        super().__init__()
        self.mha, self.fc = nn.MultiheadAttention(width, 4, batch_first=True), nn.Linear(width, width)
        self.ln, self.add = nn.LayerNorm(width), add

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.fc(self.mha(x, x, x, need_weights=False)[0]))
        return self.ln(x + h if self.add else h)


def heard(seed: int, add: bool) -> Setup:
    """Mark which bands are loud at each step of a command."""
    task = commands(seed).changed(lambda x, _: (x, (x > 0.6).float())).with_loss(F.binary_cross_entropy_with_logits)
    return live(Stack(nn.Linear(8, 32), [Acoustic(add) for _ in range(7)], 32, 8), task, lr=2e-3, steps=50)


loud = zoo.healthy("loud-bands-seven-attentions-added", lambda s: heard(s, True))
zoo.sick(
    "loud-bands-seven-attentions-each-in-place-of-the-last",
    lambda s: heard(s, False),
    both(lasting(alike("blocks.6.mha", 0.2)), ends_worse()),
    "RANK_COLLAPSE",
    also=ALIKE_TOO,
    control=loud,
)

# --- heads that are one


class Grouped(nn.Module):
    """One key and value for all heads; the line that shares them may share the queries too."""

    def __init__(self, width: int, heads: int, share_queries: bool) -> None:
        super().__init__()
        self.heads, self.size, self.share_queries = heads, width // heads, share_queries
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, 2 * self.size), nn.Linear(width, width)
        nn.init.xavier_uniform_(self.q.weight, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        q = heads_of(self.q(x), self.heads)
        k, v = (part[:, None].expand(-1, self.heads, -1, -1) for part in self.kv(x).chunk(2, dim=-1))
        if self.share_queries:
            q = q[:, :1].expand(-1, self.heads, -1, -1)
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def versed(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    model = Stack(nn.Embedding(12, width), blocks, width, 12, length=16)
    return live(model, verses(seed), **{"lr": 3e-3, "steps": 60, **more})


def grouped(share_queries: bool) -> list[nn.Module]:
    return [Residual(Grouped(32, 4, share_queries), Mlp(32, 64), 32) for _ in range(2)]


one_key = zoo.healthy("verses-one-key-many-queries", lambda s: versed(s, grouped(False)))
zoo.sick(
    "verses-one-key-and-one-query",
    lambda s: versed(s, grouped(True)),
    at_last(heads_agree()),
    *SAME,
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".q", ".kv", ".o")),
    also={*ONE, "DEAD", "DISCONNECTED"},
    control=one_key,
)


class Seeds(nn.Module):
    """Shards gathered by four learned seeds, whose findings are averaged; the seeds begin as noise or as ones."""

    def __init__(self, seeds: Tensor) -> None:
        super().__init__()
        self.enter, self.seeds = nn.Linear(10, 32), nn.Parameter(seeds)
        self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32)
        nn.init.xavier_uniform_(self.key.weight, 2.0)
        self.out = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.enter(x))
        scores = torch.einsum("hd,bnd->bhn", self.seeds, self.key(h)) / 32**0.5
        found = scores.softmax(dim=-1)[:, :, None] @ self.value(h)[:, None]
        return self.out(found.mean(dim=1)[:, 0])


def gathered(seed: int, make) -> Setup:
    return live(Seeds(make(4, 32)), shards(seed), lr=5e-3, steps=60)


random_seeds = zoo.healthy("shards-four-seeds-of-noise", lambda s: gathered(s, torch.randn))
zoo.sick(
    "shards-four-seeds-of-ones",
    lambda s: gathered(s, torch.ones),
    at_last(heads_agree()),
    *SAME,
    layer=("seeds", "key", "value"),
    also=ONE,
    control=random_seeds,
)


class PerHead(nn.Module):
    """A matrix per head for queries, keys and values, by einsum, heads averaged; drawn each, or once and repeated."""

    def __init__(self, width: int, heads: int, repeated: bool) -> None:
        super().__init__()

        def draw() -> nn.Parameter:
            one = [1.5 * torch.randn(width, 12) / width**0.5 for _ in range(1 if repeated else heads)]
            return nn.Parameter(torch.stack(one).expand(heads, -1, -1).clone())

        self.wq, self.wk, self.wv, self.wo = draw(), draw(), draw(), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("btd,hdk->bhtk", x, w) for w in (self.wq, self.wk, self.wv))
        weight = torch.softmax(q @ k.transpose(2, 3) / 12**0.5, dim=-1)
        return self.wo((weight @ v).mean(dim=1))


def per_head(repeated: bool) -> list[nn.Module]:
    return [Residual(PerHead(36, 3, repeated), Mlp(36, 72), 36) for _ in range(2)]


each_drawn = zoo.healthy("stamps-matrices-per-head-drawn-each", lambda s: pictures(s, per_head(False)))
zoo.sick(
    "stamps-matrices-per-head-drawn-once-and-repeated",
    lambda s: pictures(s, per_head(True)),
    at_last(heads_agree()),
    *SAME,
    layer=("blocks.0.attn", "blocks.1.attn", "blocks.0.attn.wo", "blocks.1.attn.wo"),
    also=ONE,
    control=each_drawn,
)

# --- the faults of any network


class ByHand(nn.Module):
    """A block with attention by hand; what `hides` says of the mask, 1 for a word, gets minus infinity."""

    def __init__(self, hides: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.hides = nn.Embedding(30, width, padding_idx=0), hides
        self.qkv, self.proj, self.ln = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.mlp, self.out = Mlp(width, 64), nn.Linear(width, 2)

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        x = self.words(tokens)
        q, k, v = (heads_of(part, 4) for part in self.qkv(self.ln(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        scores = scores.masked_fill((there.long() == self.hides)[:, None, None], float("-inf"))
        x = x + self.proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))
        x = x + self.mlp(x)
        return self.out((x * there[..., None]).sum(dim=1) / there.sum(dim=1, keepdim=True))


def by_hand(seed: int, hides: int) -> Setup:
    return live(ByHand(hides), tickets(seed), lr=2e-3, steps=50)


right_mask = zoo.healthy("tickets-mask-fills-where-it-is-0", lambda s: by_hand(s, 0))
zoo.sick("tickets-mask-fills-where-it-is-1", lambda s: by_hand(s, 1), breaks, "NUMERICAL", control=right_mask)


def distilled(seed: int, by_hand: bool) -> Setup:
    """A small transformer learns from a teacher that is sure of itself; the divergence by hand, or by torch."""
    teacher = 200.0 * torch.randn(12, 12, generator=torch.Generator().manual_seed(seed + 5))

    def loss(z: Tensor, target: Tensor) -> Tensor:
        p, q = teacher[target].softmax(dim=-1), z.log_softmax(dim=-1)
        soft = (p * (p.log() - q)).sum(dim=-1).mean() if by_hand else F.kl_div(q, p, reduction="none").sum(-1).mean()
        return token_loss(z, target) + soft

    blocks = [Residual(Fused(32, 4, causal=True), Mlp(32, 64), 32)]
    model = Stack(nn.Embedding(12, 32), blocks, 32, 12, length=16)
    return live(model, verses(seed).with_loss(loss), lr=3e-3, steps=50)


by_torch = zoo.healthy("verses-distilled-divergence-by-torch", lambda s: distilled(s, False), thrives(0.1))
zoo.sick("verses-distilled-divergence-by-hand", lambda s: distilled(s, True), breaks, "NUMERICAL", control=by_torch)


class Adapted(nn.Module):
    """A frozen encoder layer with an adapter in it; all of it may be run under no_grad, as frozen parts are."""

    def __init__(self, no_grad: bool) -> None:
        super().__init__()
        self.words, self.no_grad = nn.Embedding(16, 32), no_grad
        self.attn, self.mlp, self.ln = Fused(32, 4), Mlp(32, 64), nn.LayerNorm(32)
        self.down, self.up, self.head = nn.Linear(32, 12), nn.Linear(12, 32), nn.Linear(32, 8)
        for part in (self.words, self.attn, self.mlp, self.ln):
            part.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.no_grad):
            h = self.words(tokens)
            h = h + self.up(F.gelu(self.down(h)))
            h = h + 4 * self.attn(self.ln(h))
            h = h + self.mlp(self.ln(h))
        return self.head(h.mean(dim=1))


def adapted(seed: int, no_grad: bool) -> Setup:
    return underlined(seed, Adapted(no_grad), lr=1e-2, steps=100)


adapters = zoo.healthy("underlined-adapter-in-a-frozen-layer", lambda s: adapted(s, False))
zoo.sick(
    "underlined-adapter-under-no-grad-with-the-frozen-layer",
    lambda s: adapted(s, True),
    both(lasting(no_gradient("down", "up")), ends_worse()),
    "DISCONNECTED",
    "DEAD",
    layer=("down", "up"),
    control=adapters,
)


class Codes(nn.Module):
    """Squares of a picture become the nearest of 24 codes, which a transformer reads, straight-through."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.enter, self.book = nn.Linear(9, width), nn.Embedding(24, width)
        self.place = nn.Parameter(0.3 * torch.randn(1, 16, width))
        self.block, self.out = Residual(Fused(width, 4), Mlp(width, 48), width), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.enter(tokens_of(x))
        near = self.book(torch.cdist(z.detach(), self.book.weight.detach()[None]).argmin(dim=-1))
        code = near + (z - z.detach())
        return self.out(self.block(code + self.place).mean(dim=1)), near


def coded(seed: int) -> Setup:
    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(output[0], target) + 0.01 * output[1].square().mean()

    return live(Codes(), stamps(seed).with_loss(loss), lr=3e-3, steps=80)


zoo.healthy("stamps-by-codes-straight-through", coded)


class ReluAttention(nn.Module):
    """Attention by rectified scores, divided by the length; a threshold is taken off before."""

    def __init__(self, width: int, heads: int, threshold: float) -> None:
        super().__init__()
        self.heads, self.threshold, self.act = heads, threshold, nn.ReLU()
        self.qk, self.v, self.o = nn.Linear(width, 2 * width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (heads_of(part, self.heads) for part in self.qk(x).chunk(2, dim=-1))
        weight = self.act(q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 - self.threshold) / x.shape[1]
        return self.o((weight @ heads_of(self.v(x), self.heads)).transpose(1, 2).flatten(2))


def rectified(seed: int, threshold: float) -> Setup:
    blocks = [Residual(ReluAttention(32, 4, threshold), Mlp(32, 64), 32) for _ in range(2)]
    return underlined(seed, Stack(nn.Embedding(16, 32), blocks, 32, 8, "last", 12), lr=5e-3, steps=80)


low = zoo.healthy("underlined-rectified-attention", lambda s: rectified(s, 0.0), thrives(0.15, most_dead=1.0))
zoo.sick(
    "underlined-rectified-attention-threshold-of-12",
    lambda s: rectified(s, 12.0),
    both(lasting(no_gradient(*(f"blocks.{i}.attn.{part}" for i in range(2) for part in ("qk", "v")))), ends_worse()),
    "DEAD",
    "DISCONNECTED",
    "ENTROPY_COLLAPSE",
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".act", ".qk", ".v")),
    also={"VANISHING", "HEAD_DIVERSITY", "LOW_RANK"},
    control=low,
)


class SigmoidAttention(nn.Module):
    """Attention by sigmoids of scores and a bias: minus the logarithm of the length, or minus its square."""

    def __init__(self, width: int, heads: int, bias: float) -> None:
        super().__init__()
        self.heads, self.bias = heads, bias
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        weight = torch.sigmoid(q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + self.bias)
        return self.o((weight @ v).transpose(1, 2).flatten(2))


def sigmoids(seed: int, bias: float) -> Setup:
    blocks = [Residual(SigmoidAttention(32, 4, bias), Mlp(32, 64), 32) for _ in range(2)]
    return underlined(seed, Stack(nn.Embedding(16, 32), blocks, 32, 8, "last", 12), lr=5e-3, steps=80)


log_length = zoo.healthy("underlined-sigmoid-attention-minus-log-length", lambda s: sigmoids(s, -math.log(12)))
zoo.sick(
    "underlined-sigmoid-attention-minus-the-square-of-the-length",
    lambda s: sigmoids(s, -144.0),
    both(lasting(small_gradients([f"blocks.{i}.attn.qkv" for i in range(2)], "head", 1e-6)), ends_worse()),
    "SATURATION",
    "VANISHING",
    "DEAD",
    "DISCONNECTED",
    layer=tuple(f"blocks.{i}.attn{part}" for i in range(2) for part in ("", ".qkv", ".o")),
    also={"HEAD_DIVERSITY", "ENTROPY_COLLAPSE", "LOW_RANK", "SLOW"},
    control=log_length,
)


class Halved(nn.Module):
    """A block without norms whose sums are multiplied by `factor`, to keep their size."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.attn, self.mlp, self.factor = Fused(width, 4, causal=True), Mlp(width, 2 * width), factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.factor * (x + self.attn(x))
        return self.factor * (x + self.mlp(x))


class Bare(nn.Module):
    """Such blocks, no norm at the end either."""

    def __init__(self, depth: int, factor: float) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Embedding(24, 32), nn.ModuleList(Halved(32, factor) for _ in range(depth))
        self.head = nn.Linear(32, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


whole_sums = zoo.healthy("songs-eight-blocks-sums-times-0.95", lambda s: song(s, Bare(8, 0.95), lr=2e-3))
zoo.sick(
    "songs-eight-blocks-sums-times-a-third",
    lambda s: song(s, Bare(8, 1 / 3), lr=2e-3),
    both(small_gradients(["enter", "blocks.0"], "head", 1e-3), ends_worse()),
    "VANISHING",
    layer=("enter", "head", *(f"blocks.{i}" for i in range(8))),
    also={"SLOW", "DISCONNECTED", "HEAD_DIVERSITY", "LOW_RANK", "DEAD", "RANK_COLLAPSE"},
    control=whole_sums,
)


class Tied(nn.Module):
    """The head is the embedding, which is drawn with some deviation; no scale, no bias."""

    def __init__(self, std: float, width: int = 96) -> None:
        super().__init__()
        self.wte, self.ln = nn.Embedding(24, width), nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=std)
        self.block = Residual(Fused(width, 4, causal=True), Mlp(width, width), width)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.ln(self.block(self.wte(tokens))), self.wte.weight)


small_table = zoo.healthy("songs-tied-table-drawn-with-0.05", lambda s: song(s, Tied(0.05), lr=2e-3))
zoo.sick(
    "songs-tied-table-drawn-with-1-times-root",
    lambda s: song(s, Tied(96**0.5), lr=2e-3),
    ends_worse(3.0),
    "EXPLODING",
    "SATURATION",
    "UNSTABLE",
    layer=("wte", "block", "block.attn", "block.mlp"),
    also={*LOST, "VANISHING", "SLOW", "LOW_RANK"},
    control=small_table,
)


class Narrow(nn.Module):
    """The memory of an encoder is projected to `size` numbers before a decoder reads it."""

    def __init__(self, size: int, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, width), nn.Embedding(11, width)
        self.place = nn.Parameter(0.5 * torch.randn(1, 6, width))
        self.encoder = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.narrow, self.widen = nn.Linear(width, size), nn.Linear(size, width)
        self.decoder = nn.TransformerDecoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory = self.widen(self.narrow(self.encoder(self.source(source) + self.place)))
        return self.out(self.decoder(self.target(shifted) + self.place, memory, tgt_mask=ahead(6)))


def translated(seed: int, size: int) -> Setup:
    return live(Narrow(size), swaps(seed), lr=5e-3, steps=100)


roomy = zoo.healthy("translation-memory-of-20-numbers", lambda s: translated(s, 20))
zoo.sick(
    "translation-memory-of-1-number",
    lambda s: translated(s, 1),
    ends_worse(1.3),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("narrow", "widen"),
    also={"RANK_COLLAPSE", "HEAD_DIVERSITY", "ENTROPY_COLLAPSE"},
    control=roomy,
)


def noam(seed: int, base: float, warm: int = 20) -> Setup:
    """The schedule of 2017: up to `warm` steps, then by the root; its base should be the root of the width."""
    blocks = [Residual(Fused(32, 4, causal=True), Mlp(32, 64), 32) for _ in range(2)]
    return versed(seed, blocks, lr=base, steps=80, rate=lambda t: min((t + 1) ** -0.5, (t + 1) * warm**-1.5))


warmed = zoo.healthy("verses-warm-up-and-root-base-0.02", lambda s: noam(s, 0.02))
zoo.sick(
    "verses-warm-up-and-root-base-20",
    lambda s: noam(s, 20.0),
    both(diverges(), ends_worse(2.0)),
    *RUNS_AWAY,
    also={*LOST, "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=warmed,
)


def unbiased(seed: int, limit: float) -> Setup:
    """Clicks are weighed by one over their chance to be seen; a few were next to impossible."""
    now = every(9, 6)

    def loss(z: Tensor, target: Tensor) -> Tensor:
        weight = torch.ones(target.shape)
        if now():
            weight[0, :3] = 1 / 5e-5
        each = F.cross_entropy(z.flatten(0, 1), target.flatten(), reduction="none")
        return (weight.clamp(max=limit).flatten() * each).mean()

    blocks = [Residual(Fused(32, 4, causal=True), Mlp(32, 64), 32) for _ in range(2)]
    model = Stack(nn.Embedding(24, 32), blocks, 32, 24, length=12)
    return live(model, playlists(seed).with_loss(loss), lr=2e-3, steps=63)


clamped = zoo.healthy("songs-weights-of-chance-clamped", lambda s: unbiased(s, 5.0))
zoo.sick(
    "songs-weights-of-chance-unbounded", lambda s: unbiased(s, 1e9), gradient_norms_spread(30), *JUMPS, control=clamped
)
