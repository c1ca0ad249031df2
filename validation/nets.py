# ruff: noqa: D102 - a forward is explained by its class
"""The architectures of the zoo, small and plain, with the knobs that the faults turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


def gaussian_(model: nn.Module, gain: float) -> nn.Module:
    """Draw every weight matrix and kernel from N(0, gain²/fan_in), zero the biases: gain √2 is He's."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=gain / math.sqrt(fan_in))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def he_(model: nn.Module) -> nn.Module:
    """Draw weights as He et al. do for ReLU."""
    return gaussian_(model, math.sqrt(2))


def xavier_(model: nn.Module) -> nn.Module:
    """Draw weights as Glorot and Bengio do; all layers here are near enough square."""
    return gaussian_(model, 1.0)


@torch.no_grad()
def scale_(module: nn.Module, factor: float) -> None:
    """Multiply the weight of one layer."""
    module.weight.mul_(factor)


@torch.no_grad()
def constant_(model: nn.Module, value: float) -> nn.Module:
    """Give every parameter the same value."""
    for parameter in model.parameters():
        parameter.fill_(value)
    return model


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


class ConvNet(nn.Module):
    """3×3 convolutions ("convs.0" …), global average, linear head; `pool` halves the image after those layers."""

    def __init__(
        self,
        channels: Sequence[int],
        classes: int = 8,
        act: Activation = nn.ReLU,
        norm: Callable[[int], nn.Module] | None = None,
        pool: Sequence[int] = (),
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.convs, self.norms, self.acts = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.pool = set(pool)
        for fan_in, fan_out in pairwise(channels):
            self.convs.append(nn.Conv2d(fan_in, fan_out, 3, padding=1, stride=stride))
            self.norms.append(norm(fan_out) if norm else nn.Identity())
            self.acts.append(act())
        self.head = nn.Linear(channels[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        for i, (conv, norm, act) in enumerate(zip(self.convs, self.norms, self.acts, strict=True)):
            x = act(norm(conv(x)))
            if i in self.pool:
                x = F.max_pool2d(x, 2)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean(dim=(2, 3)))


class ResidualBlock(nn.Module):
    """x + scale · branch(x); a learned scale starts at `scale` when `learned` is set."""

    def __init__(self, branch: nn.Module, scale: float = 1.0, learned: bool = False, skip: bool = True) -> None:
        super().__init__()
        self.branch = branch
        self.scale = nn.Parameter(torch.tensor(float(scale))) if learned else scale
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        change = self.scale * self.branch(x)
        return x + change if self.skip else change


def dense_branch(width: int, inner: int | None = None, act: Activation = nn.ReLU, norm: bool = False) -> nn.Module:
    """Linear, activation, linear, with a norm in front if asked for."""
    inner = inner or width
    front = [nn.LayerNorm(width)] if norm else []
    return nn.Sequential(*front, nn.Linear(width, inner), act(), nn.Linear(inner, width))


class ResidualNet(nn.Module):
    """Stem, blocks, head: paths "stem", "blocks.0" …, "head"."""

    def __init__(self, stem: nn.Module, blocks: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Attention(nn.Module):
    """Multi-head self-attention or cross-attention with separate projections."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, length, width / heads)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and feed-forward, with the norm before, after or nowhere, and with or without skips."""

    def __init__(
        self,
        width: int,
        heads: int,
        norm: str = "pre",
        causal: bool = False,
        skip: bool = True,
        act: Activation = nn.GELU,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm, self.skip, self.dropout = norm, skip, dropout
        self.norm1 = nn.LayerNorm(width) if norm != "none" else nn.Identity()
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width) if norm != "none" else nn.Identity()
        self.up, self.act, self.down = nn.Linear(width, 2 * width), act(), nn.Linear(2 * width, width)

    def step(self, x: Tensor, branch: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        change = F.dropout(branch(norm(x) if self.norm == "pre" else x), self.dropout, self.training)
        x = x + change if self.skip else change
        return norm(x) if self.norm == "post" else x

    def forward(self, x: Tensor) -> Tensor:
        x = self.step(x, self.attention, self.norm1)
        return self.step(x, lambda h: self.down(self.act(self.up(h))), self.norm2)


class LanguageModel(nn.Module):
    """Token and position embedding, causal blocks, final norm, head that may share the embedding's weight."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, depth: int, length: int = 64, tied: bool = False, **block
    ) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.normal_(self.position.weight, std=0.5)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True, **block) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class SetClassifier(nn.Module):
    """Projects vectors, runs `layers` over them, classifies their mean: a small ViT without pictures."""

    def __init__(self, dim: int, width: int, layers: Sequence[nn.Module], classes: int, length: int = 0) -> None:
        super().__init__()
        self.project = nn.Linear(dim, width)
        self.position = nn.Embedding(length, width) if length else None
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        if self.position is not None:
            x = x + self.position.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


class SequenceModel(nn.Module):
    """A recurrent layer ("rnn") and a head that reads its last state, or every state."""

    def __init__(self, rnn: nn.Module, classes: int, every_step: bool = False, features: int | None = None) -> None:
        super().__init__()
        self.rnn, self.every_step = rnn, every_step
        self.head = nn.Linear(features or rnn.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        return self.head(states if self.every_step else states[:, -1])


@torch.no_grad()
def spectral_(rnn: nn.RNNBase, radius: float, orthogonal: bool = True) -> nn.RNNBase:
    """Give the recurrent matrices of a plain RNN a spectral radius."""
    for name, weight in rnn.named_parameters():
        if name.startswith("weight_hh"):
            if orthogonal:
                nn.init.orthogonal_(weight)
            weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())
        elif name.startswith("bias"):
            weight.zero_()
    return rnn


@torch.no_grad()
def gate_bias_(rnn: nn.RNNBase, gate: int, value: float) -> nn.RNNBase:
    """Set the bias of one gate: LSTM has input 0, forget 1, cell 2, output 3; GRU reset 0, update 1, new 2."""
    size = rnn.hidden_size
    for name, bias in rnn.named_parameters():
        if name.startswith("bias"):
            bias[gate * size : (gate + 1) * size] = value / 2  # the input's and the state's biases add up
    return rnn


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
