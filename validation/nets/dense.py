# ruff: noqa: D102 - a forward is explained by its class
"""Networks of linear layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from validation.nets.weights import he_

Activation = Callable[[], nn.Module]


def mlp(
    sizes: Sequence[int], act: Activation = nn.ReLU, norm: Callable[[int], nn.Module] | None = None, dropout: float = 0
) -> nn.Sequential:
    """Linear layers with activations between them: paths "0", "2", "4" … without norm and dropout."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(fan_in, fan_out))
        if i < len(sizes) - 2:
            layers += [norm(fan_out)] if norm else []
            layers.append(act())
            layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


class Autoencoder(nn.Module):
    """A code of some numbers, and back: paths "encoder.0", "encoder.2", "decoder.0", "decoder.2"."""

    def __init__(self, dim: int, hidden: int, code: int, act: Activation = nn.ReLU) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([dim, hidden, code], act), mlp([code, hidden, dim], act)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def deep(depth: int, width: int, act: Activation = nn.ReLU, dim: int = 64, classes: int = 10, **more) -> nn.Sequential:
    """`depth` hidden layers of the same width, then a head."""
    return mlp([dim] + [width] * depth + [classes], act, **more)


class Tower(nn.Module):
    """The same as `mlp` the way people write it by hand: paths "fc1" … "fcN", "act1" …, "head"."""

    def __init__(self, sizes: Sequence[int], act: Activation = nn.ReLU, between: dict[int, nn.Module] | None = None):
        super().__init__()
        self.depth = len(sizes) - 2
        for i in range(1, self.depth + 1):
            self.add_module(f"fc{i}", nn.Linear(sizes[i - 1], sizes[i]))
            self.add_module(f"act{i}", act())
            if between and i in between:
                self.add_module(f"after{i}", between[i])
        self.head = nn.Linear(sizes[-2], sizes[-1])

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


class Lambda(nn.Module):
    """A function with a place in the model."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OwnNorm(nn.Module):
    """Standardises over some dimensions by hand; without `eps`, what is constant there divides zero by zero."""

    def __init__(self, eps: float, dims: int | tuple[int, ...]) -> None:
        super().__init__()
        self.eps, self.dims = eps, dims

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=self.dims, keepdim=True)
        return centred / (centred.square().mean(dim=self.dims, keepdim=True) + self.eps).sqrt()


class Lora(nn.Module):
    """A frozen linear layer with a low-rank change that starts at zero: at step 0 the first factor's gradient is 0."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


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

    def __init__(
        self,
        sizes: Sequence[int] = (40, 12),
        width: int = 10,
        numbers: int = 8,
        body: Sequence[int] = (64, 48, 5),
        act: Activation = nn.ReLU,
        cut: bool = False,
    ) -> None:
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
