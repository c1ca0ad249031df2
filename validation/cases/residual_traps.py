# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks that look odd and are healthy.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import converged, trains
from validation.nets.dense import Lora, mlp
from validation.nets.residual import (
    Mixer,
    ResidualBlock,
    ResidualNet,
    Staged,
    dense_branch,
    residual_convs,
    residual_mlp,
)
from validation.nets.weights import he_
from validation.setups import pair, pretrain
from validation.tasks import blobs, images, patches

zoo = Zoo("residual", half="tune", proof=trains(lr=3e-3, steps=30))


# --- branches that start at nothing, or rest


@torch.no_grad()
def silent(model: ResidualNet) -> ResidualNet:
    """Every branch ends with zeros, so at first only its last layer gets a gradient."""
    for block in model.blocks:
        last = [m for m in block.branch.modules() if hasattr(m, "weight")][-1]
        last.weight.zero_()
    return model


class Highway(nn.Module):
    """A learned gate carries most of the input past."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.change = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.tanh(self.change(x)) + (1 - gate) * x


class Skipped(nn.Module):
    """Leaves its branch out at random."""

    def __init__(self, block: ResidualBlock, keep: float, seed: int) -> None:
        super().__init__()
        self.block, self.keep = block, keep
        self.random = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if torch.rand((), generator=self.random) < self.keep else x


def stochastic(seed: int) -> Setup:
    model = residual_mlp(8, 40, 24, 6, scale=0.4)
    model.blocks = nn.ModuleList(Skipped(block, 0.6, seed + i) for i, block in enumerate(model.blocks))
    return pair(model, blobs(seed, 24, 6))


def lora_residual(seed: int) -> Setup:
    model = residual_mlp(5, 40, 24, 6, scale=0.4).requires_grad_(False)
    for block in model.blocks:
        block.branch[0] = Lora(block.branch[0], 4)
    model.head.requires_grad_(True)
    return pair(model, blobs(seed, 24, 6))


def highway(seed: int) -> Setup:
    return pair(ResidualNet(nn.Linear(24, 40), [Highway(40) for _ in range(6)], nn.Linear(40, 6)), blobs(seed, 24, 6))


zoo.healthy("zero-init-branches-12-blocks", lambda s: pair(silent(residual_mlp(12, 48)), blobs(s)), trains())
zoo.healthy("conv-zero-gamma-3-blocks", lambda s: pair(silent(residual_convs(3, 12, True)), images(s, size=8)))
zoo.healthy("rezero-10-blocks", lambda s: pair(residual_mlp(10, 48, scale=0, learned=True), blobs(s)), trains())
zoo.healthy("stochastic-depth-8-blocks", stochastic, trains())
zoo.healthy("highway-6-blocks", highway, trains(lr=3e-3))
zoo.healthy("lora-rank-4-on-branches", lora_residual, trains(lr=3e-3))
zoo.healthy("layer-scale-1e-4", lambda s: pair(layer_scaled(8, 48), blobs(s)), trains())


class LayerScale(nn.Module):
    """A learned factor per channel that starts tiny, as in deep image transformers."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def layer_scaled(blocks: int, width: int) -> ResidualNet:
    model = residual_mlp(blocks, width, norm=True, act=nn.GELU)
    for block in model.blocks:
        block.branch.append(LayerScale(width, 1e-4))
    return model


# --- other kinds of skips


class NextBlock(nn.Module):
    """Large depthwise kernel, norm over channels, wide pointwise pair, a learned factor that starts at 1e-6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.factor = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.factor * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)


class Grows(nn.Module):
    """Each layer adds a few features to all before."""

    def __init__(self, dim: int, growth: int, depth: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim + i * growth, growth) for i in range(depth))
        self.head = nn.Linear(dim + depth * growth, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.elu(layer(x))], dim=1)
        return self.head(x)


class Coupling(nn.Module):
    """Reversible: one half changes by what the other says, starting from no change at all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = mlp([width, 2 * width, width], nn.SiLU), mlp([width, 2 * width, width], nn.SiLU)
        nn.init.zeros_(self.first[-1].weight)
        nn.init.zeros_(self.second[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        a = a + self.first(b)
        return torch.cat([a, b + self.second(a)], dim=1)


class Flow(nn.Module):
    """Euler steps of one shared field: the same weights at every depth."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.stem, self.field, self.head = (
            nn.Linear(20, width),
            mlp([width, width, width], nn.Tanh),
            nn.Linear(width, 5),
        )
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(self.steps):
            x = x + self.field(x) / self.steps
        return self.head(x)


class Spatial(nn.Module):
    """A gate over tokens that starts as one everywhere: weights near zero, biases one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.gate_norm, self.gate = nn.LayerNorm(width), nn.Linear(10, 10)
        nn.init.normal_(self.gate.weight, std=1e-4)
        nn.init.ones_(self.gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.gelu(self.up(self.norm(x))).chunk(2, dim=-1)
        return x + self.down(a * self.gate(self.gate_norm(b).transpose(1, 2)).transpose(1, 2))


class Supervised(nn.Module):
    """A head on every block, all summed in the loss."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.blocks = nn.ModuleList(ResidualBlock(dense_branch(width, width, nn.ELU), 0.5) for _ in range(blocks))
        self.heads = nn.ModuleList(nn.Linear(width, 5) for _ in range(blocks))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, out = self.stem(x), []
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x)
            out.append(head(x))
        return out


def adapters(seed: int) -> Setup:
    """A frozen network with small trained side paths of width 3 that start at zero."""
    blocks: list[nn.Module] = []
    for _ in range(5):
        blocks.append(ResidualBlock(dense_branch(40, 40, nn.GELU), 0.4).requires_grad_(False))
        side = dense_branch(40, 3, nn.GELU)
        nn.init.zeros_(side[-1].weight)
        blocks.append(ResidualBlock(side))
    model = ResidualNet(nn.Linear(20, 40).requires_grad_(False), blocks, nn.Linear(40, 5))
    return pair(model, blobs(seed, 20, 5))


def reduced(width: int, inner: int) -> nn.Module:
    """Three convolutions of which the middle one is narrow."""
    return nn.Sequential(
        nn.Conv2d(width, inner, 1),
        nn.ReLU(),
        nn.Conv2d(inner, inner, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(inner, width, 1),
    )


def bottlenecked(seed: int) -> Setup:
    blocks = [ResidualBlock(reduced(24, 4), 0.5) for _ in range(4)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 6))
    return pair(he_(ResidualNet(nn.Conv2d(3, 24, 3, padding=1), blocks, head)), images(seed, 3, 8, 6, 24))


def convolved(seed: int) -> Setup:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 6))
    return pair(
        ResidualNet(nn.Conv2d(3, 20, 2, stride=2), [NextBlock(20) for _ in range(3)], head), images(seed, 3, 8, 6, 24)
    )


def spatial(seed: int) -> Setup:
    class Pooled(nn.Sequential):
        """Mean over tokens, then classes."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mean(dim=1))

    return pair(
        ResidualNet(nn.Linear(24, 32), [Spatial(32) for _ in range(3)], Pooled(nn.Linear(32, 6))), patches(seed)
    )


def supervised(seed: int) -> Setup:
    task = blobs(seed, 20, 5).with_loss(lambda out, t: sum(F.cross_entropy(z, t) for z in out))
    return pair(he_(Supervised(4, 36)), task)


zoo.healthy("depthwise-next-3-blocks-factor-1e-6", convolved, trains(lr=1e-2))
zoo.healthy("dense-growth-6-8-layers", lambda s: pair(he_(Grows(20, 6, 8, 5)), blobs(s, 20, 5)))
zoo.healthy(
    "reversible-couplings-zero-init",
    lambda s: pair(ResidualNet(nn.Linear(20, 40), [Coupling(20) for _ in range(4)], nn.Linear(40, 5)), blobs(s, 20, 5)),
)
zoo.healthy("shared-field-12-euler-steps", lambda s: pair(Flow(36, 12), blobs(s, 20, 5)))
zoo.healthy("spatial-gates-near-one", spatial, trains(lr=1e-2))
zoo.healthy("head-on-every-block", supervised)
zoo.healthy("adapters-of-width-3-on-frozen-blocks", adapters, trains(lr=1e-2))
zoo.healthy("narrow-middles-4-of-24-channels", bottlenecked, trains(lr=1e-2, most_dead=0.6))
zoo.healthy("mixer-10x24", lambda s: pair(Mixer(10, 24), patches(s)), trains(lr=1e-3, steps=30))
zoo.healthy("mixer-batch-2", lambda s: pair(Mixer(3, 28, 3), patches(s, classes=3, batch=2)), trains(steps=60))
zoo.healthy(
    "two-stages-converged",
    lambda s: pretrain(pair(Staged(12, 3), images(s, 3, 6, 3, 12, 2.0).fixed()), 60, 1e-2),
    converged(0.05),
)
