# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers with one fault each, trained under watch, and their twins.

Half: live.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.attention import tokens_alike
from validation.evidence.live import attends_sharply, breaks, heads_agree, lags, lasting, never_fires, thrives
from validation.evidence.signal import equal_units, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import ALIKE, JUMPS, LOST, ONE, SHARP
from validation.nets.attention import torch_layers
from validation.nets.programs import Einsum, Gpt, Layer, Output, Reader, of_object
from validation.setups import live
from validation.tasks import brackets, every, heaps, lookups, markov, patches, strokes, token_loss

zoo = Zoo("transformer", half="live", analyzer="transformer", proof=thrives())


def gpt(
    seed: int, depth: int = 3, at: int | None = None, width: int = 32, lr: float = 2e-3, vocabulary: int = 16, **fault
) -> Setup:
    """Attention by einsum over a small language; `at` says which layer has the fault, by default all."""
    layers = [Layer(Einsum(width, 4, causal=True, **(fault if at in (None, i) else {})), width) for i in range(depth)]
    task = markov(seed, vocabulary, 12, 12).with_loss(of_object(token_loss))
    return live(Gpt(vocabulary, width, layers), task, lr=lr)


# --- attention that is too sharp

small_gpt = zoo.healthy("gpt-tied-einsum-3x32", gpt)
zoo.sick(
    "gpt-einsum-3x32-scores-times-the-width-squared",
    lambda s: gpt(s, scale=1024.0),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=small_gpt,
)
zoo.sick(
    "gpt-einsum-3x32-second-scores-times-500",
    lambda s: gpt(s, at=1, scale=500.0),
    lasting(attends_sharply("h.1.attn", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer="h.1.attn.qkv",
    also=SHARP,
    control=small_gpt,
)


class Induced(nn.Module):
    """A set transformer: a few learned points read the set, and the set reads them."""

    def __init__(self, width: int, points: int = 8, factor: float = 1.0) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, width), nn.Linear(width, 6)
        self.points = nn.Parameter(torch.randn(1, points, width))
        self.gather = nn.MultiheadAttention(width, 4, batch_first=True)
        self.spread = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm, self.feed = nn.LayerNorm(width), nn.Linear(width, width)
        for attention in (self.gather, self.spread):
            attention.in_proj_weight.data[:width] *= factor

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        points = self.points.expand(len(x), -1, -1)
        points = points + self.gather(points, x, x, need_weights=False)[0]
        x = self.norm(x + self.spread(x, points, points, need_weights=False)[0])
        return self.leave((x + F.relu(self.feed(x))).amax(dim=1))


induced = zoo.healthy("set-transformer-8-points", lambda s: live(Induced(32), heaps(s), lr=3e-3, steps=50))
zoo.sick(
    "set-transformer-8-points-queries-times-400",
    lambda s: live(Induced(32, factor=400.0), heaps(s), lr=3e-3, steps=50),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=induced,
)


class Fused(nn.Module):
    """Attention by torch's fused function, with its own projections.

    `scale` goes to the function. `shared` repeats one query and one key for all heads. `slope` lowers the score by the
    distance, as ALiBi does.
    """

    def __init__(self, width: int, heads: int, scale=None, shared=False, slope: float = 0.0, groups=None) -> None:
        super().__init__()
        self.heads, self.size, self.scale, self.slope = heads, width // heads, scale, slope
        self.groups, self.queries = groups or (1 if shared else heads), 1 if shared else heads
        self.q_proj, self.o_proj = nn.Linear(width, self.queries * self.size), nn.Linear(width, width)
        self.k_proj = nn.Linear(width, self.groups * self.size)
        self.v_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (t.repeat_interleave(self.heads // t.shape[1], dim=1) for t in (q, k))
        bias = None
        if self.slope:
            place = torch.arange(x.shape[1])
            bias = -self.slope * (place[:, None] - place).abs().float()
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, bias, scale=self.scale).transpose(1, 2).flatten(2))


def reader(seed: int, depth: int = 3, at: int | None = None, skip: float = 1.0, lr: float = 2e-3, **fault) -> Setup:
    layers = [Layer(Fused(36, 6, **(fault if at in (None, i) else {})), 36, F.silu, skip) for i in range(depth)]
    return live(Reader(24, 36, layers, 6, length=10), patches(seed, batch=16), lr=lr)


fused = zoo.healthy("reader-fused-attention-3x36", reader)
zoo.sick(
    "reader-fused-attention-last-scale-200",
    lambda s: reader(s, at=2, scale=200.0),
    lasting(attends_sharply("layers.2.attn", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer=tuple(f"layers.2.attn.{part}_proj" for part in "qk"),
    also=SHARP,
    control=fused,
)
near = zoo.healthy("reader-slope-0.3-by-distance", lambda s: reader(s, slope=0.3))
zoo.sick(
    "reader-slope-30-by-distance-sees-itself-alone",
    lambda s: reader(s, slope=30.0),
    lasting(attends_sharply(below=0.01)),
    "ENTROPY_COLLAPSE",
    also={*SHARP, "VANISHING", "DISCONNECTED", "DEAD", "HEAD_DIVERSITY"},
    control=near,
)


class Cosine(nn.Module):
    """Attention of unit queries and keys with a learned temperature, as in the second Swin."""

    def __init__(self, width: int, heads: int, log_scale: float) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.log_scale = nn.Parameter(torch.full((heads, 1, 1), log_scale))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2) * self.log_scale.exp()
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Patches(nn.Module):
    """A small ViT: patches by unfold, a class token, any layers."""

    def __init__(self, width: int, layers: list[nn.Module], classes: int = 8, side: int = 10) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(4, width), nn.ModuleList(layers)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.pos = nn.Parameter(0.2 * torch.randn(1, (side // 2) ** 2 + 1, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(F.unfold(x, 2, stride=2).transpose(1, 2))
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def vit(seed: int, layers: list[nn.Module], width: int = 32, **more) -> Setup:
    return live(Patches(width, layers), strokes(seed, batch=12), **{"lr": 3e-3, "steps": 60, **more})


cosine = zoo.healthy(
    "vit-cosine-attention-temperature-2", lambda s: vit(s, [Layer(Cosine(32, 4, 2.0), 32) for _ in range(2)])
)
zoo.sick(
    "vit-cosine-attention-temperature-e-to-the-8",
    lambda s: vit(s, [Layer(Cosine(32, 4, 8.0), 32) for _ in range(2)]),
    lasting(attends_sharply()),
    "ENTROPY_COLLAPSE",
    also=SHARP,
    control=cosine,
)


def torch_stack(seed: int, layers: list[nn.Module], lr: float = 2e-3, **more) -> Setup:
    return live(Reader(32, 32, layers, 8, last=True), lookups(seed, batch=24), lr=lr, steps=50, **more)


@torch.no_grad()
def loud_keys(layers: list[nn.Module], at: int, factor: float) -> list[nn.Module]:
    layers[at].self_attn.in_proj_weight[32:64] *= factor
    return layers


post = zoo.healthy("lookups-encoder-post-norm-3x32", lambda s: torch_stack(s, torch_layers(3)), thrives(0.02))
zoo.sick(
    "lookups-encoder-post-norm-3x32-first-keys-times-300",
    lambda s: torch_stack(s, loud_keys(torch_layers(3), 0, 300.0)),
    lasting(attends_sharply("layers.0.self_attn", others_above=0.4)),
    "ENTROPY_COLLAPSE",
    layer=("layers.0.self_attn",),
    also=SHARP,
    control=post,
)

# --- tokens that become one

zoo.sick(
    "gpt-less-reader-8x36-skips-forgotten",
    lambda s: reader(s, depth=8, skip=0.0, lr=1e-3),
    lasting(tokens_alike("layers.7")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=fused,
)
zoo.sick(
    "reader-9x36-skips-of-one-in-thirty",
    lambda s: reader(s, depth=9, skip=1 / 30, lr=1e-3),
    lasting(tokens_alike("layers.8", 0.1)),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=fused,
)


class Replaced(nn.Module):
    """Attention and norm, without the sum in front that somebody lost in a merge."""

    def __init__(self, width: int, keep: bool) -> None:
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(width, 4, batch_first=True), nn.LayerNorm(width)
        self.feed, self.keep = nn.Linear(width, width), keep

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attn(x, x, x, need_weights=False)[0]
        x = self.norm(x + mixed if self.keep else mixed)
        return x + F.gelu(self.feed(x)) if self.keep else F.gelu(self.feed(x))


merged = zoo.healthy("vit-6x32-attention-and-norm", lambda s: vit(s, [Replaced(32, True) for _ in range(6)], lr=1e-3))
zoo.sick(
    "vit-6x32-sum-lost-in-a-merge",
    lambda s: vit(s, [Replaced(32, False) for _ in range(6)], lr=1e-3),
    lasting(tokens_alike("layers.5")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=merged,
)


class Bare(nn.Module):
    """Attention and a norm, and nothing beside them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn, self.ln = nn.MultiheadAttention(width, 2, batch_first=True), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(self.attn(x, x, x)[0])


zoo.sick(
    "heaps-seven-attentions-in-a-row",
    lambda s: live(Reader(6, 32, [Bare(32) for _ in range(7)], 6), heaps(s), lr=1e-3, steps=50),
    lasting(tokens_alike("layers.6")),
    "RANK_COLLAPSE",
    also={*ALIKE, "HEAD_DIVERSITY"},
    control=induced,
)

# --- heads that are one

focused = zoo.healthy("gpt-einsum-3x32-scores-times-4", lambda s: gpt(s, scale=1.5))
zoo.sick(
    "gpt-einsum-3x32-all-heads-use-the-first",
    lambda s: gpt(s, scale=1.5, one_head=True),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    also=ONE,
    control=focused,
)
zoo.sick(
    "gpt-einsum-4x32-third-heads-use-the-first",
    lambda s: gpt(s, 4, at=2, scale=2.5, one_head=True),
    lasting(heads_agree("h.2.attn")),
    "HEAD_DIVERSITY",
    layer="h.2.attn.qkv",
    also=ONE,
    control=focused,
)
zoo.sick(
    "reader-fused-attention-one-query-and-key-repeated",
    lambda s: reader(s, shared=True, scale=1.5),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    also=ONE,
    control=fused,
)


@torch.no_grad()
def copied(layers: list[nn.Module], *at: int, heads: int = 4) -> list[nn.Module]:
    """The first head of a checkpoint was copied to all, and the projections stay frozen."""
    for i in at:
        attention = layers[i].self_attn
        for part in attention.in_proj_weight.chunk(3)[:2]:
            size = len(part) // heads
            part.copy_(4 * part[:size].repeat(heads, 1))
        attention.in_proj_bias.zero_()
        attention.in_proj_weight.requires_grad_(False)
        attention.in_proj_bias.requires_grad_(False)
    return layers


thawed = zoo.healthy(
    "heaps-encoder-pre-norm-2x32",
    lambda s: live(Reader(6, 32, torch_layers(2, norm_first=True), 6), heaps(s), steps=50),
)
zoo.sick(
    "heaps-encoder-pre-norm-2x32-heads-copied-and-frozen",
    lambda s: live(Reader(6, 32, copied(torch_layers(2, norm_first=True), 0, 1), 6), heaps(s), steps=50),
    lasting(heads_agree()),
    "HEAD_DIVERSITY",
    also=ONE,
    control=thawed,
)

# --- narrow


class Albert(nn.Module):
    """Words are `narrow` numbers before they are widened, as in ALBERT, but fewer."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.words, self.widen = nn.Embedding(40, narrow), nn.Linear(narrow, 32)
        self.body = nn.TransformerEncoder(torch_layers(1, norm_first=True)[0], 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 40)

    def forward(self, tokens: Tensor) -> Output:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return Output(self.head(self.body(self.widen(self.words(tokens)), mask=mask, is_causal=True)))


def albert(seed: int, narrow: int) -> Setup:
    task = markov(seed, 40, 12, 16).with_loss(of_object(token_loss))
    return live(Albert(narrow), task, lr=1e-2, steps=60)


words = zoo.healthy("albert-words-of-16-numbers", lambda s: albert(s, 16))
zoo.sick(
    "albert-words-of-1-number",
    lambda s: albert(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("words", "widen"),
    also={"LOW_RANK", "RANK_COLLAPSE"},
    control=words,
)


class Waist(nn.Module):
    """Down and up again between two layers, with no way around."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, narrow), nn.Linear(narrow, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.gelu(self.down(x)))


def waisted(seed: int, narrow: int) -> Setup:
    layers = [Layer(Einsum(32, 4, causal=True), 32), Waist(32, narrow), Layer(Einsum(32, 4, causal=True), 32)]
    task = markov(seed, 30, 10, 16).with_loss(of_object(token_loss))
    return live(Gpt(30, 32, layers, tied=False), task, lr=5e-3, steps=80)


open_waist = zoo.healthy("gpt-waist-of-24-between-layers", lambda s: waisted(s, 24))
zoo.sick(
    "gpt-waist-of-1-between-layers",
    lambda s: waisted(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("h.1.down", "h.1.up"),
    also={"LOW_RANK", "RANK_COLLAPSE"},
    control=open_waist,
)

# --- the faults of any network


def fed(seed: int, low: float = 0.0, equal: bool = False) -> Setup:
    """Torch's encoder with ReLU; the second feed-forward may lie too low, or have equal units."""
    layers = torch_layers(3, norm_first=True)
    with torch.no_grad():
        layers[1].linear1.bias -= low
        if equal:
            layers[1].linear1.weight.copy_(layers[1].linear1.weight[:1].expand(64, -1).clone())
            layers[1].linear1.bias.fill_(0.2)
            layers[1].linear2.weight.copy_(layers[1].linear2.weight[:, :1].expand(-1, 64).clone() / 4)
    return live(Reader(24, 32, layers, 6), patches(seed, batch=16), lr=1e-3)


feed = zoo.healthy("patches-encoder-pre-norm-relu-3x32", fed)
zoo.sick(
    "patches-encoder-relu-3x32-second-feed-forward-dead",
    lambda s: fed(s, 30.0),
    lasting(never_fires("layers.1.linear1", 0.99), no_gradient("layers.1.linear1")),
    "DEAD",
    layer="layers.1.linear1",
    also={"DISCONNECTED", "VANISHING"},
    control=feed,
)
zoo.sick(
    "patches-encoder-relu-3x32-second-feed-forward-of-equal-units",
    lambda s: fed(s, equal=True),
    lasting(equal_units("layers.1.linear1.weight")),
    "SYMMETRY",
    layer=("layers.1.linear1", "layers.1.linear2"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=feed,
)


class Translator(nn.Module):
    """Torch's decoder reads what an encoder says; `cut` takes the memory out of the graph."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(6, 24), nn.Embedding(6, 24)
        self.place = nn.Parameter(0.3 * torch.randn(1, 14, 24))
        self.encoder = nn.TransformerEncoderLayer(24, 3, 48, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(24, 3, 48, 0.0, batch_first=True)
        self.out, self.cut = nn.Linear(24, 4), cut

    def forward(self, tokens: Tensor) -> Tensor:
        memory = self.encoder(self.source(tokens) + self.place)
        return self.out(self.decoder(self.target(tokens) + self.place, memory.detach() if self.cut else memory))


translator = zoo.healthy("brackets-encoder-and-decoder", lambda s: live(Translator(False), brackets(s), lr=3e-3))
zoo.sick(
    "brackets-memory-out-of-the-graph",
    lambda s: live(Translator(True), brackets(s), lr=3e-3),
    lasting(no_gradient("source", "encoder")),
    "DISCONNECTED",
    layer=("encoder.linear2", "encoder.linear1", "source"),
    also={"DEAD"},
    control=translator,
)


class Padded(nn.Module):
    """Reads texts of unlike length with a mask; of an empty text every key is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.attn = nn.Linear(24, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.leave = nn.Linear(32, 6)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        h = self.enter(x)
        blank = torch.arange(x.shape[1]) >= lengths[:, None]
        h = h + self.attn(h, h, h, key_padding_mask=blank)[0]
        return self.leave(h.masked_fill(blank[..., None], 0.0).sum(dim=1) / lengths.clamp_min(1)[:, None])


def padded(seed: int, shortest: int) -> Setup:
    now = every(25, 12)

    def cut_off(x: Tensor) -> tuple[Tensor, Tensor]:
        lengths = torch.randint(4, x.shape[1] + 1, (len(x),))
        lengths[0] = shortest if now() else 4
        return x, lengths

    return live(Padded(), patches(seed, batch=16).mapped(cut_off), lr=3e-3)


full = zoo.healthy("texts-of-unlike-length", lambda s: padded(s, 1))
zoo.sick("texts-of-unlike-length-one-is-empty", lambda s: padded(s, 0), breaks, "NUMERICAL", control=full)


def bursts(seed: int, times: float) -> Setup:
    now = every(12, 7)
    setup = reader(seed, 2, lr=1e-3)
    task = patches(seed, batch=16).with_loss(lambda z, t: F.cross_entropy(z, t) * (times if now() else 1.0))
    return live(setup.model, task, lr=1e-3, steps=72)


even = zoo.healthy("reader-2x36-even-weights", lambda s: bursts(s, 1.0))
zoo.sick(
    "reader-2x36-every-twelfth-batch-times-500",
    lambda s: bursts(s, 500.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=even,
)
zoo.sick("gpt-einsum-3x32-adamw-3e-9", lambda s: gpt(s, lr=3e-9), does_not_move(steps=40), "SLOW", control=small_gpt)
zoo.sick(
    "gpt-einsum-3x32-adamw-2",
    lambda s: gpt(s, lr=2.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={*LOST, "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=small_gpt,
)
