# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Everyday transformers, some of them a little unusual, that train well.

Half: plain.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._plain_sequences import (
    Fused,
    Mlp,
    Residual,
    Stack,
    ahead,
    bearings,
    commands,
    heads_of,
    loans,
    orders,
    playlists,
    pointed,
    rides,
    shards,
    stamps,
    surnames,
    swaps,
    tickets,
    tokens_of,
    verses,
)
from validation.evidence import thrives
from validation.setups import frozen, live
from validation.tasks import Task, token_loss

zoo = Zoo("transformer", half="plain", analyzer="transformer", proof=thrives(0.15))


def blocks(depth: int = 2, width: int = 32, heads: int = 4, causal: bool = False, act=F.gelu) -> list[nn.Module]:
    return [Residual(Fused(width, heads, causal), Mlp(width, 2 * width, act), width) for _ in range(depth)]


def gpt(words: int = 12, depth: int = 2, width: int = 32, **more) -> Stack:
    return Stack(nn.Embedding(words, width), blocks(depth, width, causal=True, **more), width, words, length=16)


def versed(seed: int, model: nn.Module, task: Task | None = None, **more) -> Setup:
    return live(model, task or verses(seed), **{"lr": 3e-3, "steps": 60, **more})


def songs(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, playlists(seed), **{"lr": 3e-3, "steps": 60, **more})


# --- language models

zoo.healthy("verses-gpt-of-40-five-heads", lambda s: versed(s, gpt(width=40, heads=5)))
zoo.healthy("verses-gpt-one-block-relu", lambda s: versed(s, gpt(depth=1, act=F.relu)))
zoo.healthy("verses-gpt-four-blocks-clipped", lambda s: versed(s, gpt(depth=4), lr=2e-3, clip=1.0))
zoo.healthy("verses-gpt-batches-of-2", lambda s: versed(s, gpt(), verses(s, batch=2), steps=100))
zoo.healthy("verses-gpt-sgd-momentum", lambda s: versed(s, gpt(), kind="SGD", lr=0.1, momentum=0.9))
zoo.healthy("verses-gpt-adamw-decay-0.3", lambda s: versed(s, gpt(), weight_decay=0.3))
zoo.healthy("verses-gpt-beta2-0.95-cosine", lambda s: versed(s, gpt(), betas=(0.9, 0.95), rate=cosine))
zoo.healthy("verses-gpt-loss-halved", lambda s: versed(s, gpt(), verses(s).scaled(0.5)))
zoo.healthy("verses-gpt-narrow-residual-drawn-for-depth", lambda s: versed(s, scaled_down(gpt(depth=4))))
zoo.healthy("verses-gpt-frozen-table", lambda s: versed(s, frozen(gpt(), "enter"), lr=5e-3))
zoo.healthy(
    "verses-gpt-last-block-only", lambda s: versed(s, frozen(gpt(depth=3), "enter", "wpe", "blocks.0"), lr=5e-3)
)


def cosine(step: int, warm: int = 8, total: int = 60) -> float:
    return min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * step / total))


@torch.no_grad()
def scaled_down(model: Stack) -> Stack:
    """Weights of 0.05; what ends a branch is smaller by the root of twice the depth, as GPT-2 draws it."""
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.normal_(std=0.05)
            if name.endswith(("proj.weight", "fc2.weight")):
                weight.div_((2 * len(model.blocks)) ** 0.5)
    return model


class Rotary(nn.Module):
    """Queries and keys turned by their place, with norms on both."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.qn, self.kn = nn.LayerNorm(size), nn.LayerNorm(size)
        angle = torch.arange(32.0)[:, None] * 10.0 ** (-torch.arange(0, size // 2) * 4 / size)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def turn(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        c, s = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        return torch.cat([a * c - b * s, a * s + b * c], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = self.turn(self.qn(q)), self.turn(self.kn(k))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A gated dense half without biases."""

    def __init__(self, width: int = 32, hidden: int = 48) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
            nn.Linear(width, hidden, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """Three dense halves, of which a router chooses two for each token and weighs them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, 3), nn.ModuleList(Mlp(width, 48) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(dim=-1)
        best = share.topk(2, dim=-1)
        kept = torch.zeros_like(share).scatter(-1, best.indices, best.values)
        return sum(kept[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Slope(nn.Module):
    """Causal attention with a gentle slope per head."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.slope = nn.Parameter(torch.tensor([0.5, 0.25, 0.1, 0.02])[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        place = torch.arange(x.shape[1] * 1.0)
        far = (place[:, None] - place).clamp_min(0)
        bias = (-self.slope.abs() * far).masked_fill(ahead(x.shape[1]), -math.inf)
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + bias
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def own(attn: type[nn.Module], mlp: type[nn.Module] | None = None, depth: int = 2, length: int = 0) -> Stack:
    layers = [Residual(attn(), mlp() if mlp else Mlp(32, 64), 32) for _ in range(depth)]
    return Stack(nn.Embedding(12, 32), layers, 32, 12, length=length)


zoo.healthy("verses-rotary-normed-queries-gated", lambda s: versed(s, own(Rotary, Gated)))
zoo.healthy("verses-slopes-learned", lambda s: versed(s, own(Slope)))
zoo.healthy("verses-two-of-three-experts", lambda s: versed(s, own(Rotary, Experts)))


class Universal(nn.Module):
    """One block, four times, with a vector for every time."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.wpe, self.times = nn.Embedding(12, 32), nn.Embedding(16, 32), nn.Embedding(4, 32)
        self.block, self.ln, self.head = blocks(1, causal=True)[0], nn.LayerNorm(32), nn.Linear(32, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens) + self.wpe.weight[: tokens.shape[1]]
        for time in self.times.weight:
            x = self.block(x + time)
        return self.head(self.ln(x))


class Several(nn.Module):
    """Says the next word and the one after it, by two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = gpt(), nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        h = F.gelu(self.body(tokens))
        return self.one(h), self.two(h)


def two_ahead(z: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return token_loss(z[0], target) + 0.3 * token_loss(z[1][:, :-1], target[:, 1:])


zoo.healthy("verses-one-block-four-times", lambda s: versed(s, Universal()))
zoo.healthy("verses-two-words-ahead", lambda s: versed(s, Several(), verses(s).with_loss(two_ahead), lr=5e-3))
zoo.healthy("songs-torch-layers-causal-dropout", lambda s: songs(s, Songs(0.2), lr=3e-3, steps=80))
zoo.healthy("songs-tied-table-scaled", lambda s: songs(s, SharedTable()))


class Songs(nn.Module):
    """torch's own layers under a causal mask, with dropout everywhere."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.enter, self.place, self.drop = nn.Embedding(24, 32), nn.Embedding(12, 32), nn.Dropout(drop)
        layer = nn.TransformerEncoderLayer(32, 2, 64, drop, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.enter(tokens) + self.place.weight)
        return self.head(self.body(x, mask=ahead(12)))


class SharedTable(nn.Module):
    """The table is the head; the states are divided by the root of the width before."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.blocks, self.ln = nn.Embedding(24, 32), nn.ModuleList(blocks(causal=True)), nn.LayerNorm(32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.ln(x), self.wte.weight) / 32**0.5


def hidden(seed: int) -> Task:
    """Words hidden at random, to be guessed from both sides; those that show do not count."""
    random = torch.Generator().manual_seed(seed + 11)

    def hide(tokens: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.rand(tokens.shape, generator=random) < 0.2
        mask[:, 3] = True
        return tokens.masked_fill(mask, 12), tokens.masked_fill(~mask, -100)

    return (
        verses(seed, noise=0.05)
        .changed(hide)
        .with_loss(lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten(), ignore_index=-100))
    )


def bert() -> Stack:
    return Stack(nn.Embedding(13, 32), blocks(2), 32, 12, length=16)


zoo.healthy("verses-hidden-words-both-sides", lambda s: versed(s, bert(), hidden(s), lr=5e-3, steps=120), thrives(0.1))

# --- classes of texts


class Cls(nn.Module):
    """A first token reads a name under the mask of its padding."""

    def __init__(self, letters: int, out: int, longest: int, drop: float = 0.0) -> None:
        super().__init__()
        self.words, self.cls = nn.Embedding(letters, 32, padding_idx=0), nn.Parameter(0.1 * torch.randn(1, 1, 32))
        self.place = nn.Parameter(0.1 * torch.randn(1, longest + 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, drop, "gelu", batch_first=True)
        self.body, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, out)

    def forward(self, tokens: Tensor, extra: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(tokens), -1, -1), self.words(tokens)], dim=1) + self.place
        blank = F.pad(tokens == 0, (1, 0))
        return self.out(self.body(x, src_key_padding_mask=blank)[:, 0])


zoo.healthy(
    "surnames-first-token-of-torch", lambda s: live(Cls(17, 5, 10), surnames(s), lr=2e-3, steps=80), thrives(0.1)
)
zoo.healthy("tickets-first-token-dropout", lambda s: live(Cls(30, 2, 12, 0.1), tickets(s), lr=1e-3, steps=80))


class Prompted(nn.Module):
    """Only four learned vectors before the text, the norm and the head learn; the body is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.prompt = nn.Embedding(16, 32), nn.Parameter(torch.randn(1, 4, 32))
        self.blocks, self.ln, self.head = nn.ModuleList(blocks()), nn.LayerNorm(32), nn.Linear(32, 8)
        self.words.requires_grad_(False)
        self.blocks.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.prompt.expand(len(tokens), -1, -1), self.words(tokens)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x).mean(dim=1))


class Lora(nn.Module):
    """A frozen matrix and a correction of rank 4 that starts at nothing."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) / inner.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 2 * x @ self.a.T @ self.b.T


def corrected(seed: int) -> Setup:
    model = Stack(nn.Embedding(16, 32), blocks(), 32, 8, "mean", 12)
    for block in model.blocks:
        block.mlp.requires_grad_(False)
        block.attn.proj.requires_grad_(False)
        block.attn.qkv = Lora(block.attn.qkv)
    return live(model, pointed(seed), lr=1e-2, steps=60)


def row(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, pointed(seed), **{"lr": 5e-3, "steps": 80, **more})


zoo.healthy("underlined-learned-prompt-frozen-body", lambda s: row(s, Prompted(), lr=2e-2), thrives(0.1))
zoo.healthy("underlined-corrections-of-rank-4", corrected)
zoo.healthy("underlined-one-head-becomes-sharp", lambda s: row(s, finder(), lr=1e-2, steps=100), thrives(0.5))
zoo.healthy("underlined-last-token-asks", lambda s: row(s, Stack(nn.Embedding(16, 32), blocks(), 32, 8, "last", 12)))
zoo.healthy(
    "underlined-adagrad",
    lambda s: row(s, Stack(nn.Embedding(16, 32), blocks(), 32, 8, "mean", 12), kind="Adagrad", lr=3e-2),
)
zoo.healthy(
    "orders-slots-two-blocks",
    lambda s: live(Stack(nn.Embedding(18, 32), blocks(), 32, 4, length=10), orders(s), lr=3e-3, steps=60),
)


def finder() -> Stack:
    return Stack(nn.Embedding(16, 24), blocks(1, 24, 1), 24, 8, "last", 12)


# --- translation


class Whole(nn.Module):
    """torch's transformer with a table of sines for places."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(10, 32), nn.Embedding(11, 32)
        place = torch.arange(6.0)[:, None] * 10.0 ** (-torch.arange(16) / 8)
        self.register_buffer("place", torch.cat([place.sin(), place.cos()], dim=1))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        memory = self.encoder(self.source(source) + self.place)
        return self.out(self.decoder(self.target(shifted) + self.place, memory, tgt_mask=ahead(6)))


class Prefix(nn.Module):
    """One stack reads source and answer in a row; the source sees itself whole, the answer only what came."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(11, 32), nn.Parameter(0.5 * torch.randn(1, 12, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.out = nn.Linear(32, 10)
        mask = ahead(12)
        mask[:6, :6] = False
        self.register_buffer("mask", mask)

    def forward(self, source: Tensor, shifted: Tensor) -> Tensor:
        x = self.words(torch.cat([source, shifted], dim=1)) + self.place
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.out(x[:, 6:])


zoo.healthy("swaps-torch-layers-places-by-sines", lambda s: live(Whole(), swaps(s), lr=3e-3, steps=100))
zoo.healthy("swaps-source-and-answer-in-a-row", lambda s: live(Prefix(), swaps(s), lr=3e-3, steps=100))

# --- pictures, sounds, tables, sets, readings


class Vit(nn.Module):
    """Squares of a picture, a first token, learned places, blocks, the head at the first token."""

    def __init__(self, depth: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.lin, self.cls = nn.Linear(9, 32), nn.Parameter(torch.zeros(1, 1, 32))
        self.place, self.drop = nn.Parameter(0.1 * torch.randn(1, 17, 32)), drop
        self.blocks, self.ln, self.head = nn.ModuleList(blocks(depth)), nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lin(tokens_of(x))
        if self.drop and self.training:  # some squares are not looked at
            x = x[:, torch.rand(16).argsort()[: round(16 * (1 - self.drop))].sort().values]
            place = self.place[:, 1 : x.shape[1] + 1]
        else:
            place = self.place[:, 1:]
        x = torch.cat([self.cls.expand(len(x), -1, -1) + self.place[:, :1], x + place], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x)[:, 0])


class Seen(nn.Module):
    """A convolutional stem with batch norm, a block of attention over what it gives, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.bn, self.c2 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3, 3)
        self.block, self.head = blocks(1)[0], nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c2(F.gelu(self.bn(self.c1(x)))).flatten(2).transpose(1, 2)
        return self.head(self.block(x).mean(dim=1))


def pictures(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, stamps(seed), **{"lr": 2e-3, "steps": 60, **more})


zoo.healthy("stamps-first-token-vit", lambda s: pictures(s, Vit()))
zoo.healthy("stamps-vit-a-quarter-of-the-squares-hidden", lambda s: pictures(s, Vit(drop=0.25)))
zoo.healthy(
    "stamps-vit-rate-falls-to-nothing", lambda s: pictures(s, Vit(), lr=4e-3, rate=lambda t: max(0.0, 1 - t / 60))
)
zoo.healthy("stamps-convolutional-stem", lambda s: pictures(s, Seen()))
zoo.healthy("stamps-vit-six-blocks", lambda s: pictures(s, Vit(6), lr=1e-3, steps=50))


class Painted(nn.Module):
    """Half of the squares are hidden and painted anew."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.blank = nn.Linear(9, 32), nn.Parameter(torch.zeros(32))
        self.place, self.blocks = nn.Parameter(0.3 * torch.randn(1, 16, 32)), nn.ModuleList(blocks())
        self.out = nn.Linear(32, 9)

    def forward(self, tiles: Tensor) -> Tensor:
        x = torch.where((torch.arange(16) % 2 == 0)[:, None], self.lin(tiles), self.blank) + self.place
        for block in self.blocks:
            x = block(x)
        return self.out(x)[:, 1::2]


def painted(seed: int) -> Setup:
    task = stamps(seed, noise=0.1).changed(lambda x, _: (tokens_of(x), tokens_of(x)[:, 1::2]))
    return live(Painted(), task.with_loss(F.mse_loss), lr=3e-3, steps=80)


zoo.healthy("stamps-half-of-the-squares-painted", painted)


class Columns(nn.Module):
    """Columns as tokens, a first token, torch layers with a norm before."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(8, 32)), nn.Parameter(torch.randn(8, 32))
        self.cls = nn.Parameter(torch.randn(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        self.out = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(x), -1, -1), x[..., None] * self.scale + self.shift], dim=1)
        return self.out(self.body(x)[:, 0])


zoo.healthy("loans-columns-and-a-first-token", lambda s: live(Columns(), loans(s), lr=2e-3, steps=80))


class Sets(nn.Module):
    """Shards, blocks without places, gathered by their largest entries."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.blocks, self.out = nn.Linear(10, 32), nn.ModuleList(blocks()), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x.amax(dim=1))


class Latent(nn.Module):
    """Four learned vectors read the shards by torch's cross-attention, then talk."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.latent = nn.Linear(10, 32), nn.Parameter(torch.randn(1, 4, 32))
        self.read, self.block = nn.MultiheadAttention(32, 4, batch_first=True), blocks(1)[0]
        self.out = nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, z = self.enter(x), self.latent.expand(len(x), -1, -1)
        return self.out(self.block(z + self.read(z, x, x, need_weights=False)[0]).flatten(1))


zoo.healthy("shards-largest-entries", lambda s: live(Sets(), shards(s), lr=3e-3, steps=50))
zoo.healthy("shards-four-latents-read", lambda s: live(Latent(), shards(s), lr=3e-3, steps=60))


class Conformer(nn.Module):
    """Attention, then a depthwise convolution over time, each added."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.ln1, self.attn = nn.Linear(8, 32), nn.LayerNorm(32), Fused(32, 4)
        self.ln2, self.conv, self.point = (
            nn.LayerNorm(32),
            nn.Conv1d(32, 32, 3, padding=1, groups=32),
            nn.Linear(32, 32),
        )
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        x = x + self.attn(self.ln1(x))
        h = self.conv(self.ln2(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.point(F.silu(h))).mean(dim=1))


zoo.healthy("commands-attention-and-convolution", lambda s: live(Conformer(), commands(s), lr=3e-3, steps=50))


class Clip(nn.Module):
    """Two halves of a command, each by its own encoder; halves of one command find each other in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (Stack(nn.Linear(8, 32), blocks(1), 32, 16, "mean", 8) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.normalize(self.one(x[:, :8]), dim=-1), F.normalize(self.two(x[:, 8:]), dim=-1)
        return a @ b.T * self.scale.exp()


def paired(z: Tensor, target: Tensor) -> Tensor:
    same = (target[:, None] == target).float()
    same = same / same.sum(dim=1, keepdim=True)
    return (F.cross_entropy(z, same) + F.cross_entropy(z.T, same)) / 2


zoo.healthy(
    "commands-halves-find-each-other",
    lambda s: live(Clip(), commands(s).with_loss(paired), lr=3e-3, steps=80),
    thrives(0.1),
)


class Hours(nn.Module):
    """Patches of four hours as tokens; each says the next four."""

    def __init__(self, out: int = 1) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(8, 32), nn.Parameter(0.1 * torch.randn(1, 6, 32))
        self.blocks, self.head = nn.ModuleList(blocks(causal=True)), nn.Linear(32, 8 * out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.unflatten(1, (-1, 4)).flatten(2)) + self.place[:, : x.shape[1] // 4]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def next_four(y: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(y[:, :-1], target[:, 3:-1].unflatten(1, (-1, 4)).flatten(2))


def readings(seed: int) -> Task:
    return rides(seed).with_loss(next_four)


def quantiles(y: Tensor, target: Tensor) -> Tensor:
    q = torch.tensor([0.1, 0.5, 0.9])
    miss = target[:, 3:-1].unflatten(1, (-1, 4)).flatten(2)[..., None] - y[:, :-1].unflatten(-1, (8, 3))
    return torch.maximum(q * miss, (q - 1) * miss).mean()


zoo.healthy("rides-patches-of-four-hours", lambda s: live(Hours(), readings(s), lr=3e-3, steps=60))
zoo.healthy("rides-patches-three-quantiles", lambda s: live(Hours(3), rides(s).with_loss(quantiles), lr=3e-3, steps=60))


class Steps(nn.Module):
    """Causal blocks over single hours."""

    def __init__(self, dim: int, out: int, causal: bool = True) -> None:
        super().__init__()
        self.net = Stack(nn.Linear(dim, 32), blocks(causal=causal), 32, out, "each" if causal else "mean", 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


zoo.healthy("rides-hours-one-by-one-l1", lambda s: live(Steps(2, 2), rides(s).with_loss(F.l1_loss), lr=3e-3, steps=50))
zoo.healthy("rides-hours-noisy", lambda s: live(Steps(2, 2), rides(s, noise=0.4), lr=3e-3, steps=50))
zoo.healthy("bearings-mean-of-blocks", lambda s: live(Steps(4, 1, False), bearings(s), lr=2e-3, steps=60))
