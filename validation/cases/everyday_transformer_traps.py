# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers as people write them, that train well.

Half: everyday.
"""

from __future__ import annotations

import math

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
    clouds,
    gaps,
    glyphs,
    reviews,
    sales,
    topics,
    weather,
)
from validation.cases.everyday_transformer import letters, tagger, translates, vit
from validation.evidence import thrives
from validation.nets.attention import torch_layers
from validation.setups import live
from validation.tasks import Task, copying

zoo = Zoo("transformer", half="everyday", analyzer="transformer", proof=thrives())


def hand(depth: int, width: int = 32, heads: int = 4, causal: bool = False, **more) -> list[nn.Module]:
    return [PreNorm(SelfAttention(width, heads, causal), width, **more) for _ in range(depth)]


# --- texts


class Classifier(nn.Module):
    """torch's encoder under a padding mask; the mean of the words, or a token in front, is classified."""

    def __init__(self, layers: list[nn.Module], first: bool = False, sinus: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(41, 32, padding_idx=0)
        self.layers, self.fc, self.first = nn.ModuleList(layers), nn.Linear(32, 2), first
        place, rate = torch.arange(20)[:, None], torch.exp(-math.log(1e4) * torch.arange(0, 32, 2) / 32)
        waves = torch.stack([torch.sin(place * rate), torch.cos(place * rate)], dim=-1).flatten(1)
        self.register_buffer("pe", waves if sinus else torch.zeros(20, 32))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.first:
            tokens = torch.cat([torch.full((len(tokens), 1), 40), tokens], dim=1)
        blank = tokens == 0
        x = self.embedding(tokens) + self.pe[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=blank)
        if self.first:
            return self.fc(x[:, 0])
        return self.fc(x.masked_fill(blank[..., None], 0.0).sum(dim=1) / lengths[:, None])


def judged(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or reviews(seed), **{"lr": 2e-3, "steps": 60, **more})


zoo.healthy("reviews-post-norm-padded", lambda s: judged(s, Classifier(torch_layers(2))))
zoo.healthy(
    "reviews-pre-norm-padded-dropout-0.1",
    lambda s: judged(s, Classifier(torch_layers(2, norm_first=True, dropout=0.1))),
)
zoo.healthy(
    "reviews-class-token-sinusoids", lambda s: judged(s, Classifier(torch_layers(2), True, True), lr=3e-3, steps=80)
)
zoo.healthy(
    "reviews-warm-up-and-label-smoothing",
    lambda s: judged(
        s,
        Classifier(torch_layers(2, activation="gelu")),
        reviews(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1)),
        rate=lambda t: min(1, (t + 1) / 15),
        lr=4e-3,
    ),
)
zoo.healthy(
    "gaps-masked-words-2x32",
    lambda s: live(Model(nn.Embedding(17, 32), torch_layers(2), 16), gaps(s), lr=3e-3, steps=80),
)
zoo.healthy("letters-gpt-4x32-clipped", lambda s: letters(s, hand(4, causal=True), clip=1.0, steps=40))
zoo.healthy("letters-gpt-8-heads-of-4", lambda s: letters(s, hand(2, heads=8, causal=True)))


class Tied(nn.Module):
    """Letters in and out by one matrix, in torch's encoder with a causal mask."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(LETTERS), 32), nn.Embedding(24, 32)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        self.body = nn.TransformerEncoder(
            torch_layers(1, norm_first=True, dropout=dropout)[0], 2, nn.LayerNorm(32), enable_nested_tensor=False
        )
        self.head = nn.Linear(32, len(LETTERS), bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.body(self.wte(tokens) + self.wpe.weight, mask=mask, is_causal=True))


zoo.healthy("letters-tied-small-start", lambda s: live(Tied(), chars(s), lr=5e-3, steps=60))
zoo.healthy("letters-tied-dropout-0.2", lambda s: live(Tied(0.2), chars(s), lr=5e-3, steps=60))


class Grouped(nn.Module):
    """Rotary positions, two groups of keys for four heads, norms of queries and keys."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.size, self.share = width // heads, heads // groups
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.qn, self.kn = nn.RMSNorm(self.size), nn.RMSNorm(self.size)

    def turn(self, x: Tensor) -> Tensor:
        half = self.size // 2
        angle = torch.arange(x.shape[2])[:, None] * 0.3 ** torch.arange(half)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for p in (self.wq, self.wk, self.wv))
        q, k = self.turn(self.qn(q)), self.turn(self.kn(k)).repeat_interleave(self.share, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v.repeat_interleave(self.share, dim=1), is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


zoo.healthy(
    "letters-rotary-grouped-keys-rms",
    lambda s: letters(s, [PreNorm(Grouped(), act=F.silu, norm=nn.RMSNorm) for _ in range(2)]),
)


class Sloped(SelfAttention):
    """Looks nearer rather than farther, by a slope per head, as ALiBi does."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        place = torch.arange(x.shape[1])
        far = (place[:, None] - place).float()
        bias = -far * torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None]
        bias = bias.masked_fill(far < 0, -math.inf)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


zoo.healthy("letters-slopes-by-distance", lambda s: letters(s, [PreNorm(Sloped(32, 4, True)) for _ in range(2)]))
zoo.healthy("letters-sgd-momentum", lambda s: letters(s, hand(2, causal=True), kind="SGD", lr=0.1, momentum=0.9))
zoo.healthy("tags-torch-encoder-1x32-rmsprop", lambda s: tagger(s, torch_layers(1), kind="RMSprop", lr=1e-3))

# --- attention that is sharp because the task wants it


class Back(nn.Module):
    """Queries and keys of positions alone: each place looks a fixed number of places back, and learns to do so."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.pq, self.pk = (nn.Parameter(torch.randn(length, width) * 0.3) for _ in range(2))
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        scores = (self.pq[:n] @ self.pk[:n].T).masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        return self.o(scores.softmax(dim=-1).expand(len(x), -1, -1) @ self.v(x))


zoo.healthy(
    "copies-by-position-and-becomes-sharp",
    lambda s: live(Model(nn.Embedding(11, 32), [PreNorm(Back(32, 16))], 11), copying(s), lr=1e-2, steps=100),
    thrives(0.3),
)
zoo.healthy(
    "reversal-torch-transformer-sharp-at-last", lambda s: translates(s, lr=5e-3, steps=100, clip=1.0), thrives(0.5)
)

# --- pictures, points, series


class Vit(nn.Module):
    """A class token, learned positions, torch's encoder."""

    def __init__(self, layers: list[nn.Module], registers: int = 0) -> None:
        super().__init__()
        self.patch, self.layers = Patch(32), nn.ModuleList(layers)
        self.cls = nn.Parameter(torch.zeros(1, 1 + registers, 32))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17 + registers, 32))
        nn.init.trunc_normal_(self.cls, std=0.02)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(x)], dim=1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def pictures(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, glyphs(seed), **{"lr": 2e-3, "steps": 60, **more})


zoo.healthy(
    "vit-class-token-pre-norm-3x32", lambda s: pictures(s, Vit(torch_layers(3, norm_first=True, activation="gelu")))
)
zoo.healthy("vit-class-token-and-registers", lambda s: pictures(s, Vit(torch_layers(2), registers=3)))
zoo.healthy(
    "vit-frozen-encoder-new-head",
    lambda s: pictures(s, headed(Vit(torch_layers(2, norm_first=True))), lr=1e-2),
    thrives(0.1),
)


def headed(model: Vit) -> Vit:
    model.requires_grad_(False)
    model.norm.requires_grad_(True)
    model.head.requires_grad_(True)
    return model


class Lora(nn.Module):
    """A frozen dense layer with a thin pair beside it, of which one starts at zero."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a, self.b = nn.Linear(inner.in_features, rank, bias=False), nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 2.0 * self.b(self.a(x))


def adapted(blocks: list[nn.Module]) -> list[nn.Module]:
    for block in blocks:
        block.requires_grad_(False)
        block.attn.q, block.attn.v = Lora(block.attn.q), Lora(block.attn.v)
    return blocks


zoo.healthy("vit-lora-of-rank-4-on-queries-and-values", lambda s: vit(s, adapted(hand(3)), lr=5e-3, steps=60))


class Points(nn.Module):
    """A set of points, encoded without positions; a learned query gathers them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(3, 32), nn.ModuleList(hand(2))
        self.seed, self.gather = nn.Parameter(torch.randn(1, 1, 32)), nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.out(self.gather(self.seed.expand(len(x), -1, -1), x, x)[0][:, 0])


zoo.healthy("clouds-gathered-by-a-learned-query", lambda s: live(Points(), clouds(s), lr=3e-3, steps=60))


class Latents(nn.Module):
    """Six learned vectors read the patches and think, twice, as in a Perceiver."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.z = Patch(32), nn.Parameter(0.5 * torch.randn(1, 6, 32))
        self.read = nn.ModuleList(nn.MultiheadAttention(32, 1, batch_first=True) for _ in range(2))
        self.think, self.out = nn.ModuleList(hand(2)), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x, z = self.patch(x), self.z.expand(len(x), -1, -1)
        for read, think in zip(self.read, self.think, strict=True):
            z = think(z + read(z, x, x, need_weights=False)[0])
        return self.out(z.mean(dim=1))


zoo.healthy("six-latents-read-patches", lambda s: pictures(s, Latents()))


class Clip(nn.Module):
    """Two texts, unit vectors, and a learned scale of their products that starts at 14."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(48, 32), nn.ModuleList(torch_layers(1))
        self.left, self.right = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(14.0)))

    def embed(self, tokens: Tensor, project: nn.Linear) -> Tensor:
        return F.normalize(project(self.body[0](self.words(tokens)).mean(dim=1)), dim=-1)

    def forward(self, question: Tensor, document: Tensor) -> Tensor:
        return self.embed(question, self.left) @ self.embed(document, self.right).T * self.scale.exp()


zoo.healthy("retrieval-unit-vectors-learned-scale", lambda s: live(Clip(), topics(s), lr=3e-3, steps=80))


class Forecaster(nn.Module):
    """A causal encoder predicts how the next reading differs from the last."""

    def __init__(self, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(dim, 32), nn.Linear(32, dim)
        self.pos = nn.Parameter(0.1 * torch.randn(1, 32, 32))
        self.layers = nn.ModuleList(torch_layers(2, norm_first=True, dropout=dropout))

    def forward(self, x: Tensor) -> Tensor:
        h, n = self.enter(x) + self.pos[:, : x.shape[1]], x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return x + self.out(h)


zoo.healthy("weather-causal-encoder", lambda s: live(Forecaster(3), weather(s), lr=3e-3, steps=50))
zoo.healthy("sales-causal-encoder", lambda s: live(Forecaster(1), sales(s), lr=5e-3, steps=80))


class Routed(nn.Module):
    """A feed-forward of three experts, mixed by a soft gate."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm, self.gate = SelfAttention(32, 4), nn.LayerNorm(32), nn.Linear(32, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.attn(x))
        share = self.gate(x).softmax(dim=-1)
        return x + sum(share[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


zoo.healthy("tags-three-soft-experts", lambda s: tagger(s, [Routed() for _ in range(2)]))
zoo.healthy("tags-deep-pre-norm-8x32", lambda s: tagger(s, hand(8), lr=2e-3, steps=30), thrives(0.08))


class Local(nn.Module):
    """A depthwise convolution beside attention, as in a conformer."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attn = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.wide, self.conv, self.out = (
            nn.Linear(32, 64),
            nn.Conv1d(32, 32, 3, padding=1, groups=32),
            nn.Linear(32, 32),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        h = F.glu(self.wide(self.n2(x)))
        return x + self.out(F.silu(self.conv(h.transpose(1, 2)).transpose(1, 2)))


zoo.healthy("tags-convolution-beside-attention", lambda s: tagger(s, [Local() for _ in range(2)]), thrives(0.3))


class Shopper(nn.Module):
    """What is bought next, by the product with one of the items that is right and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.pos = nn.Embedding(len(LETTERS), 32), nn.Embedding(24, 32)
        self.layer = torch_layers(1, dropout=0.1)[0]

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        h = self.layer(self.items(tokens) * 0.2 + self.pos.weight * 0.2, src_mask=mask, is_causal=True)
        return h @ self.items.weight.T


def ranked(scores: Tensor, bought: Tensor) -> Tensor:
    """The pairwise loss of Rendle, against an item a few places on in the list."""
    other = (bought + 7) % scores.shape[-1]
    good, bad = (scores.gather(-1, item[..., None]) for item in (bought, other))
    return -F.logsigmoid(good - bad).mean()


zoo.healthy(
    "next-item-by-pairs", lambda s: live(Shopper(), chars(s).with_loss(ranked), lr=3e-3, steps=60), thrives(0.1)
)
