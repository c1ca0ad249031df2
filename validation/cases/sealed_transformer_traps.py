# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Transformers that look odd and are well.

Half: sealed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import dialects, leftovers, letters, meshes, scrolls, shoals, stamps
from validation.evidence import thrives
from validation.setups import live
from validation.tasks import token_loss

zoo = Zoo("transformer", half="sealed", analyzer="transformer", proof=thrives())
WIDTH, HEADS = 24, 3


class Multi(nn.Module):
    """Many queries, one key and one value; `bias` is added to the scores, causal or not."""

    def __init__(self, causal: bool = False, window: int | None = None) -> None:
        super().__init__()
        self.q, self.kv, self.out = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH // HEADS),
            nn.Linear(WIDTH, WIDTH),
        )
        self.causal, self.window = causal, window

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = self.kv(x)[:, None].expand(-1, HEADS, -1, -1).chunk(2, dim=-1)
        place = torch.arange(x.shape[1])
        away = place[:, None] - place
        mask = (away >= 0) if self.causal else torch.ones_like(away, dtype=torch.bool)
        if self.window:
            mask = mask & (away.abs() <= self.window)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a gated dense part, behind norms and beside skips."""

    def __init__(self, attn: nn.Module, drop: float = 0.0) -> None:
        super().__init__()
        self.attn, self.norm1, self.norm2 = attn, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.gate, self.down, self.drop = nn.Linear(WIDTH, 64), nn.Linear(32, WIDTH), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        a, b = self.gate(self.norm2(x)).chunk(2, dim=-1)
        return x + self.drop(self.down(F.silu(a) * b))


class Scribe(nn.Module):
    """Words with waves for places; the head shares the table's weights."""

    def __init__(self, words: int, layers: list[nn.Module], repeats: int = 1) -> None:
        super().__init__()
        self.table, self.layers, self.norm = nn.Embedding(words, WIDTH), nn.ModuleList(layers), nn.LayerNorm(WIDTH)
        nn.init.normal_(self.table.weight, std=0.5)
        pace = torch.exp(-math.log(100.0) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        angle = torch.arange(16)[:, None] * pace
        self.register_buffer("place", torch.cat([angle.sin(), angle.cos()], dim=1))
        self.repeats = repeats

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.place[: tokens.shape[1]]
        for _ in range(self.repeats):
            for layer in self.layers:
                x = layer(x)
        return F.linear(self.norm(x), self.table.weight)


def writes(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, scrolls(seed), **{"lr": 5e-3, "steps": 70, **more})


zoo.healthy("scrolls-many-queries-one-key", lambda s: writes(s, Scribe(14, [Layer(Multi(True)) for _ in range(2)])))
zoo.healthy("scrolls-window-of-two", lambda s: writes(s, Scribe(14, [Layer(Multi(True, 2)) for _ in range(2)])))
zoo.healthy("scrolls-one-layer-three-times", lambda s: writes(s, Scribe(14, [Layer(Multi(True))], 3)))
zoo.healthy("scrolls-dropout-0.3", lambda s: writes(s, Scribe(14, [Layer(Multi(True), 0.3) for _ in range(2)])))
zoo.healthy(
    "scrolls-warm-up-and-limit",
    lambda s: writes(s, Scribe(14, [Layer(Multi(True))]), rate=lambda t: min(1.0, (t + 1) / 20), clip=0.5),
)
zoo.healthy(
    "leftovers-until-attention-is-sharp", lambda s: live(Scribe(8, [Layer(Multi())]), leftovers(s), lr=1e-2, steps=100)
)


class Even(nn.Module):
    """Words of a dialect: order does not matter, and attention stays next to even by right."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(32, WIDTH), Layer(Multi()), nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.table(tokens)).mean(dim=1))


zoo.healthy("dialects-attention-next-to-even", lambda s: live(Even(), dialects(s), lr=5e-3, steps=60))


class First(nn.Module):
    """A first token that asks all patches; the other tokens' last states are not read."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(1, WIDTH, 3, 3), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.place = nn.Parameter(0.3 * torch.randn(1, 17, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 48, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(x), -1, -1), self.patch(x).flatten(2).transpose(1, 2)], dim=1) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


def still_stamps(seed: int) -> Setup:
    return live(First(), stamps(seed, size=5).mapped(lambda x: F.pad(x, (3, 4, 3, 4))), lr=5e-3, steps=60)


zoo.healthy("stamps-a-first-token-asks", still_stamps)


class Induced(nn.Module):
    """Points look at four learned vectors, which look at the points: a narrow way, beside the wide one."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.few = nn.Linear(3, WIDTH), nn.Parameter(torch.randn(1, 4, WIDTH))
        self.gather, self.spread = (nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.enter(x))
        few = self.gather(self.few.expand(len(x), -1, -1), x, x, need_weights=False)[0]
        x = x + self.spread(x, few, few, need_weights=False)[0]
        return self.head(F.gelu(self.body(x)).mean(dim=1))


zoo.healthy("shoals-by-four-vectors", lambda s: live(Induced(), shoals(s, 14), lr=5e-3, steps=80))


class Prefix(nn.Module):
    """A frozen layer with learned vectors in front, and a learned head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.prefix = nn.Linear(10, WIDTH), nn.Parameter(0.3 * torch.randn(1, 3, WIDTH))
        self.layer, self.head = Layer(Multi()).requires_grad_(False), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.prefix.expand(len(x), -1, -1), self.enter(x)], dim=1)
        return self.head(self.layer(x).mean(dim=1))


zoo.healthy("letters-prefix-before-a-frozen-layer", lambda s: live(Prefix(), letters(s), lr=1e-2, steps=60))


class Dot(nn.Module):
    """Attention over a graph: only neighbours are seen, some nodes have one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.qkv, self.out = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = F.gelu(self.enter(x))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill(near + torch.eye(x.shape[1]) == 0, -1e9)
        return self.out((x + scores.softmax(dim=-1) @ v).mean(dim=1))


zoo.healthy("meshes-neighbours-only", lambda s: live(Dot(), meshes(s), lr=5e-3, steps=50), thrives(idle="qkv.bias"))


class Linear(nn.Module):
    """Attention without a softmax, causal, by running sums."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = (k[..., :, None] * v[..., None, :]).cumsum(dim=1)
        total = (q * k.cumsum(dim=1)).sum(dim=-1, keepdim=True)
        return self.out(torch.einsum("btk,btkv->btv", q, memory) / total)


zoo.healthy("scrolls-linear-attention", lambda s: writes(s, Scribe(14, [Layer(Linear()) for _ in range(2)])))


def blanks(seed: int) -> Setup:
    """Words are blanked out and asked for; most places have no label."""
    random = torch.Generator().manual_seed(seed + 70)

    def blank(x: Tensor, _y: Tensor) -> tuple[Tensor, Tensor]:
        gone = torch.rand(x.shape, generator=random) < 0.3
        gone[:, 1] = True
        return x.masked_fill(gone, 13), x.masked_fill(~gone, -100)

    task = scrolls(seed, 13).changed(blank).with_loss(token_loss)
    return live(Scribe(14, [Layer(Multi()) for _ in range(2)]), task, lr=5e-3, steps=80)


zoo.healthy("scrolls-words-blanked-out", blanks)
