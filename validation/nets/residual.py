# ruff: noqa: D102 - a forward is explained by its class
"""Networks with skips."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.nets.dense import Activation
from validation.nets.weights import he_


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


class Stream(nn.Module):
    """Enters a stream, passes blocks, leaves it."""

    def __init__(self, dim: int, width: int, out: int, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.enter, self.blocks, self.leave = nn.Linear(dim, width), nn.ModuleList(blocks), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


class Reversible(nn.Module):
    """Two halves of a stream in turn, each changed by the other, so that it could be computed backwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(width // 2, width // 2), nn.Linear(width // 2, width // 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        a = a + F.silu(self.f(b))
        return torch.cat([a, b + F.silu(self.g(a))], dim=1)


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


def residual_mlp(
    blocks: int, width: int, dim: int = 64, classes: int = 10, scale: float = 1.0, learned: bool = False, **branch
) -> ResidualNet:
    """Dense branches without a norm, drawn as He et al. do."""
    body = [ResidualBlock(dense_branch(width, **branch), scale, learned) for _ in range(blocks)]
    return he_(ResidualNet(nn.Linear(dim, width), body, nn.Linear(width, classes)))


def conv_branch(width: int, norm: bool) -> nn.Module:
    """Two convolutions, each with a batch norm if asked for."""

    def layer() -> list[nn.Module]:
        return [nn.Conv2d(width, width, 3, padding=1)] + ([nn.BatchNorm2d(width)] if norm else [])

    return nn.Sequential(*layer(), nn.ReLU(), *layer())


class Head(nn.Sequential):
    """Global average and a linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def residual_convs(blocks: int, width: int, norm: bool, scale: float = 1.0) -> ResidualNet:
    """Convolutional branches over three channels, eight classes."""
    body = [ResidualBlock(conv_branch(width, norm), scale) for _ in range(blocks)]
    return he_(ResidualNet(nn.Conv2d(3, width, 3, padding=1), body, Head(width, 8)))
