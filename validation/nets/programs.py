# ruff: noqa: D102 - a forward is explained by its class
"""Networks as people write them in a first program: activations as functions, outputs as objects, parts by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
    """What stands where a fault may stand."""
    return x


@dataclass
class Output:
    """What a model hands back in the manner of a model hub."""

    logits: Tensor
    hidden: Tensor | None = None


def of_object(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Output, Tensor], Tensor]:
    """Read the logits of an output object."""
    return lambda output, target: loss(output.logits, target)


class Plain(nn.Module):
    """Linear layers "layers.0" … with a function between them; `at` changes what some layers hand on."""

    def __init__(self, widths: Sequence[int], act: Function = torch.relu, at: dict[int, Function] | None = None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.act, self.at = act, at or {}

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers[:-1]):
            x = self.at.get(i, same)(self.act(layer(x)))
        return self.layers[-1](x)


class RankOne(nn.Module):
    """A layer whose matrix is the product of a column and a row, whatever training does."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, fan_in) / fan_in**0.5)
        self.column = nn.Parameter(torch.randn(fan_out, 1))
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.column @ self.row, self.bias)


class Einsum(nn.Module):
    """Attention by hand: one matrix for queries, keys and values, einsum for the rest.

    `scale` multiplies the scores; `one_head` lets all heads use the queries and keys of the first.
    """

    def __init__(self, width: int, heads: int, scale: float | None = None, causal=False, one_head=False) -> None:
        super().__init__()
        self.heads, self.causal, self.one_head = heads, causal, one_head
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.scale = (width // heads) ** -0.5 if scale is None else scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # (batch, length, heads, width / heads)
        if self.one_head:
            q, k = q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -1e9)
        return self.proj(torch.einsum("bhij,bjhd->bihd", torch.softmax(scores, -1), v).flatten(2))


class Layer(nn.Module):
    """Pre-norm block around any attention; feed-forward with a function."""

    def __init__(self, attn: nn.Module, width: int, act: Function = F.gelu, skip: float = 1.0, ratio: int = 2) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), attn
        self.ln_2, self.c_fc = nn.LayerNorm(width), nn.Linear(width, ratio * width)
        self.c_proj = nn.Linear(ratio * width, width)
        self.act, self.skip = act, skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip * x + self.attn(self.ln_1(x))
        return self.skip * x + self.c_proj(self.act(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    """Embeddings, blocks, norm and a head that shares the embedding's weight, as in nanoGPT; gives an `Output`."""

    def __init__(self, vocabulary: int, width: int, layers: Sequence[nn.Module], length: int = 32, tied=True) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h, self.ln_f = nn.ModuleList(layers), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.wte.weight, std=0.2)
        nn.init.normal_(self.wpe.weight, std=0.2)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Output:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for layer in self.h:
            x = layer(x)
        return Output(self.lm_head(self.ln_f(x)), x)


class Reader(nn.Module):
    """Projects vectors, adds positions, runs layers, answers from the last token or from the mean."""

    def __init__(
        self, dim: int, width: int, layers: Sequence[nn.Module], out: int, last=False, length: int = 0
    ) -> None:
        super().__init__()
        self.inp, self.layers, self.out = nn.Linear(dim, width), nn.ModuleList(layers), nn.Linear(width, out)
        self.pos = nn.Parameter(0.1 * torch.randn(1, length, width)) if length else None
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        if self.pos is not None:
            x = x + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.out(x[:, -1] if self.last else x.mean(dim=1))


class Tagger(nn.Module):
    """An embedding or a projection, any recurrent layer, and an answer at every step or at the last."""

    def __init__(self, enter: nn.Module, rnn: nn.Module, out: int, features: int, last: bool = False) -> None:
        super().__init__()
        self.enter, self.rnn, self.fc, self.last = enter, rnn, nn.Linear(features, out), last

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(self.enter(x))
        return self.fc(states[:, -1] if self.last else states)
