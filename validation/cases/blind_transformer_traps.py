# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Healthy transformers that look as if something were wrong with them.

Half: blind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import clauses, flags, reversals, reviews, rhymes
from validation.evidence import thrives
from validation.nets.programs import Einsum, Gpt, Layer, Reader, of_object
from validation.setups import live

zoo = Zoo("transformer", half="blind", analyzer="transformer", proof=thrives())


def torch_layers(count: int, dropout: float = 0.0, width: int = 32, feed: int = 48) -> list[nn.Module]:
    return [
        nn.TransformerEncoderLayer(width, 4, feed, dropout, "gelu", batch_first=True, norm_first=True)
        for _ in range(count)
    ]


def tied(seed: int) -> Setup:
    model = Gpt(12, 32, [Layer(Einsum(32, 4, causal=True), 32) for _ in range(2)])
    task = rhymes(seed)
    inner = task._loss
    return live(model, task.with_loss(of_object(inner)), lr=5e-3, steps=80, weight_decay=0.1, clip=1.0)


zoo.healthy("rhymes-tied-gpt-under-a-limit", tied)
zoo.healthy(
    "clauses-dropout-0.3", lambda s: live(Reader(16, 32, torch_layers(2, 0.3), 6), clauses(s), lr=3e-3, steps=60)
)
zoo.healthy(
    "clauses-warm-up-of-post-norm",
    lambda s: live(
        Reader(16, 32, [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(4)], 6),
        clauses(s),
        lr=2e-3,
        steps=80,
        rate=lambda t: min(1.0, (t + 1) / 25),
    ),
)


class Adapted(nn.Module):
    """A frozen encoder with small adapters behind its layers, beside their skips, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.layers = nn.Linear(16, 32), nn.ModuleList(torch_layers(2))
        self.requires_grad_(False)
        self.down, self.up = (nn.ModuleList(nn.Linear(*size) for _ in range(2)) for size in ((32, 6), (6, 32)))
        self.head = nn.Linear(32, 6)
        for layer in self.up:
            nn.init.zeros_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer, down, up in zip(self.layers, self.down, self.up, strict=True):
            x = layer(x)
            x = x + up(F.gelu(down(x)))
        return self.head(x.mean(dim=1))


zoo.healthy("clauses-adapters-in-a-frozen-encoder", lambda s: live(Adapted(), clauses(s), lr=5e-3, steps=60))


class Prefix(nn.Module):
    """A frozen encoder with four learned tokens in front."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.layers = nn.Linear(16, 32), nn.ModuleList(torch_layers(2))
        self.requires_grad_(False)
        self.prefix, self.head = nn.Parameter(0.5 * torch.randn(1, 4, 32)), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.prefix.expand(len(x), -1, -1), self.enter(x)], dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


zoo.healthy("clauses-learned-prefix", lambda s: live(Prefix(), clauses(s), lr=1e-2, steps=80))


class Near(nn.Module):
    """Each token sees its neighbours only, by a mask, and skips carry the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(40, 32), nn.Parameter(0.3 * torch.randn(1, 12, 32))
        self.layers, self.head = nn.ModuleList(torch_layers(2)), nn.Linear(32, 5)
        line = torch.arange(12)
        self.mask = nn.Buffer((line[:, None] - line).abs() > 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.place
        for layer in self.layers:
            x = layer(x, src_mask=self.mask)
        return self.head(x.mean(dim=1))


zoo.healthy("reviews-neighbours-only", lambda s: live(Near(), reviews(s), lr=3e-3, steps=60))


class Even(nn.Module):
    """Reads a bag of words: next to even attention is what the task wants."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.ask = nn.Embedding(40, 32), nn.Parameter(torch.zeros(1, 1, 32))
        self.attn, self.norm, self.head = (
            nn.MultiheadAttention(32, 4, batch_first=True),
            nn.LayerNorm(32),
            nn.Linear(32, 5),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        said, _ = self.attn(self.ask.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.head(self.norm(said[:, 0]))


zoo.healthy("reviews-pooled-next-to-evenly", lambda s: live(Even(), reviews(s), lr=5e-3, steps=60))


class Router(nn.Module):
    """Two of four experts per token, weighed, beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(32), nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        best, at = self.gate(h).softmax(dim=-1).topk(2, dim=-1)
        share = torch.zeros(*x.shape[:-1], 4).scatter(-1, at, best)
        return x + sum(share[..., i : i + 1] * expert(h) for i, expert in enumerate(self.experts))


zoo.healthy(
    "clauses-two-of-four-experts",
    lambda s: live(Reader(16, 32, [torch_layers(1)[0], Router()], 6), clauses(s), lr=3e-3, steps=60),
)
zoo.healthy(
    "flags-sharp-because-it-has-learned",
    lambda s: live(Reader(12, 32, torch_layers(2), 5), flags(s), lr=5e-3, steps=100),
)


class Recycled(nn.Module):
    """One layer, four times, as a universal transformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(9, 32), nn.Parameter(0.5 * torch.randn(1, 8, 32))
        self.layer, self.head = torch_layers(1)[0], nn.Linear(32, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.place
        for _ in range(4):
            x = self.layer(x)
        return self.head(x)


zoo.healthy("reversals-one-layer-four-times", lambda s: live(Recycled(), reversals(s), lr=3e-3, steps=60))
