# ruff: noqa: D102 - a forward is explained by its class
"""Further architectures, for the cases of `unseen_*.py`, that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.nets import Activation, he_, mlp


class Gated(nn.Module):
    """Gated linear units: paths "layers.0" …, "glus.0" …, "head"."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, 2 * b) for a, b in pairwise(sizes[:-1]))
        self.glus = nn.ModuleList(nn.GLU(dim=1) for _ in self.layers)
        self.head = nn.Linear(sizes[-2], sizes[-1])
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer, glu in zip(self.layers, self.glus, strict=True):
            x = glu(layer(x))
        return self.head(x)


class TwoTower(nn.Module):
    """Scores of all queries with all items, as in retrieval: paths "query.0" …, "item.0" …"""

    def __init__(self, query: Sequence[int], item: Sequence[int], act: Activation = nn.ReLU) -> None:
        super().__init__()
        self.query, self.item = he_(mlp(query, act)), he_(mlp(item, act))

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        return self.query(query) @ self.item(item).T / query.shape[1] ** 0.5


class Tabular(nn.Module):
    """Embeds the categories of a row, joins them with its numbers, classifies: "embeddings.0" …, "body.0" …"""

    def __init__(self, sizes: Sequence[int], width: int, numbers: int, body: Sequence[int], act=nn.ReLU, cut=False):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.body = he_(mlp([len(sizes) * width + numbers, *body], act))
        self.cut = cut

    def forward(self, categories: Tensor, values: Tensor) -> Tensor:
        vectors = [embedding(categories[:, i]) for i, embedding in enumerate(self.embeddings)]
        if self.cut:  # through numpy and back, as a hand-written feature cache would
            vectors = [torch.from_numpy(v.detach().numpy().copy()) for v in vectors]
        return self.body(torch.cat([*vectors, values], dim=1))


class DeepSet(nn.Module):
    """Encodes each member of a set, sums, decodes: paths "each.0" …, "joint.0" …"""

    def __init__(self, each: Sequence[int], joint: Sequence[int], act: Activation = nn.ReLU) -> None:
        super().__init__()
        self.each, self.act, self.joint = he_(mlp(each, act)), act(), he_(mlp(joint, act))

    def forward(self, x: Tensor) -> Tensor:
        return self.joint(self.act(self.each(x)).mean(dim=1))


class Signal(nn.Module):
    """One-dimensional convolutions over several channels, largest value over time, head: "convs.0" …, "acts.0" …"""

    def __init__(self, channels: Sequence[int], classes: int = 6, act: Activation = nn.ReLU, kernel: int = 5) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(a, b, kernel, padding=kernel // 2) for a, b in pairwise(channels))
        self.acts = nn.ModuleList(act() for _ in self.convs)
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for conv, act in zip(self.convs, self.acts, strict=True):
            x = act(conv(x))
        return self.head(x.amax(dim=2))


class Mobile(nn.Module):
    """Depthwise and pointwise convolutions without norms: "stem", "depthwise.0", "pointwise.0", … "head"."""

    def __init__(self, widths: Sequence[int], classes: int, act: Activation = nn.SiLU) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        self.depthwise = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1, groups=a) for a in widths[:-1])
        self.pointwise = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairwise(widths))
        self.acts = nn.ModuleList(act() for _ in self.pointwise)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, pointwise, act in zip(self.depthwise, self.pointwise, self.acts, strict=True):
            x = act(pointwise(depthwise(x)))
        return self.head(x.mean(dim=(2, 3)))


class UNet(nn.Module):
    """Two levels down and up with group norms; `cut` detaches what comes from below."""

    def __init__(self, width: int, narrow: int, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.enter, self.down = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1, stride=2)
        self.deep = nn.Conv2d(width, narrow, 3, padding=1, stride=2)
        self.norm, self.deep_act = nn.GroupNorm(1, narrow), nn.ReLU()
        self.up = nn.ConvTranspose2d(narrow, width, 4, stride=4)
        self.merge, self.merge_act = nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU()
        self.out = nn.Conv2d(width, 1, 1)
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.enter(x))
        below = self.up(self.deep_act(self.norm(self.deep(F.relu(self.down(a))))))
        below = below.detach() if self.cut else below
        return self.out(self.merge_act(self.merge(torch.cat([a, below], dim=1))))


class ConvCoder(nn.Module):
    """Strided convolutions to a code of `latent` channels on a 2×2 map, and back."""

    def __init__(self, width: int, latent: int, act: Activation = nn.ELU) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), act(), nn.Conv2d(width, latent, 3, stride=2, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(latent, width, 2, stride=2), act(), nn.ConvTranspose2d(width, 1, 2, stride=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class MixerBlock(nn.Module):
    """Mixes tokens, then channels, each beside a skip."""

    def __init__(self, tokens: int, width: int, norm: bool = True, act: Activation = nn.GELU) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width) if norm else nn.Identity()
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), act(), nn.Linear(2 * tokens, tokens))
        self.norm2 = nn.LayerNorm(width) if norm else nn.Identity()
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), act(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Tokens in, class out: "project", "blocks.0" …, "head"."""

    def __init__(self, blocks: int, width: int, classes: int = 6, **block) -> None:
        super().__init__()
        self.project = nn.Linear(24, width)
        self.blocks = nn.Sequential(*(MixerBlock(10, width, **block) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.project(x))).mean(dim=1))


class Stage(nn.Module):
    """Basic blocks with group norm: "convs.0", "convs.1", … in pairs beside skips."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2 * blocks))
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(2 * blocks))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(0, len(self.convs), 2):
            h = self.acts[i](self.norms[i](self.convs[i](x)))
            x = self.acts[i + 1](x + self.norms[i + 1](self.convs[i + 1](h)))
        return x


class Staged(nn.Module):
    """Two stages with a strided transition between them."""

    def __init__(self, width: int = 16, classes: int = 7) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, width, 3, padding=1), Stage(width, 2)
        self.transition = nn.Conv2d(width, width, 2, stride=2)
        self.second, self.head = Stage(width, 2), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x))
        return self.head(self.second(self.transition(x)).mean(dim=(2, 3)))
