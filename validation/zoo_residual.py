# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks, sick and healthy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import activation_growth, both, dead, gradient_ratio, no_gradient, not_finite, rank_at_most
from validation.evidence_training import diverges, learns_less, trains
from validation.nets import Lambda, Lora, ResidualBlock, ResidualNet, dense_branch, he_
from validation.setups import pair, rated
from validation.tasks import Task, blobs, images

zoo = Zoo("residual")


def dense(
    blocks: int, width: int, dim: int = 64, classes: int = 10, scale: float = 1.0, learned: bool = False, **branch
) -> ResidualNet:
    body = [ResidualBlock(dense_branch(width, **branch), scale, learned) for _ in range(blocks)]
    return he_(ResidualNet(nn.Linear(dim, width), body, nn.Linear(width, classes)))


def conv_branch(width: int, norm: bool) -> nn.Module:
    def layer() -> list[nn.Module]:
        return [nn.Conv2d(width, width, 3, padding=1)] + ([nn.BatchNorm2d(width)] if norm else [])

    return nn.Sequential(*layer(), nn.ReLU(), *layer())


class Head(nn.Sequential):
    """Global average and a linear layer."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def conv(blocks: int, width: int, norm: bool, scale: float = 1.0) -> ResidualNet:
    body = [ResidualBlock(conv_branch(width, norm), scale) for _ in range(blocks)]
    return he_(ResidualNet(nn.Conv2d(3, width, 3, padding=1), body, Head(width, 8)))


# --- growing without norms

scaled_24 = zoo.healthy(
    "24-blocks-branch-over-root-24", "tune", lambda s: pair(dense(24, 48, scale=1 / math.sqrt(24)), blobs(s)), trains()
)
zoo.sick(
    "24-blocks-without-norm",
    "tune",
    lambda s: pair(dense(24, 48), blobs(s)),
    both(gradient_ratio("stem", "blocks.23.branch.2", above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE", "DEAD"},
    control=scaled_24,
)
normed_4 = zoo.healthy(
    "conv-4-blocks-batch-norm",
    "tune",
    lambda s: pair(conv(4, 12, True), images(s, size=8)),
    trains(lr=3e-3, steps=30),
)
zoo.sick(
    "conv-16-blocks-without-norm",
    "tune",
    lambda s: pair(conv(16, 12, False), images(s, size=8)),
    both(gradient_ratio("stem", "blocks.15.branch.2", above=100), activation_growth(30)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=normed_4,
)
pre_norm = zoo.healthy(
    "pre-norm-12-blocks-gelu",
    "tune",
    lambda s: pair(dense(12, 40, 24, 6, act=nn.GELU, norm=True), blobs(s, 24, 6)),
    trains(),
)

# --- a dead, cut or narrow place


def with_bias(model: ResidualNet, block: int, value: float, task: Task) -> Setup:
    branch = model.blocks[block].branch
    first = next(m for m in branch if isinstance(m, (nn.Linear, nn.Conv2d)))
    nn.init.constant_(first.bias, value)
    return pair(model, task)


zoo.sick(
    "8-blocks-dead-branch-in-fifth",
    "tune",
    lambda s: with_bias(dense(8, 48, scale=0.35), 4, -20, blobs(s)),
    both(dead("blocks.4.branch.1", 0.99), no_gradient("blocks.4.branch.0")),
    "DEAD",
    layer="blocks.4.branch.0",
    control=scaled_24,
)
zoo.sick(
    "conv-6-blocks-dead-branch-in-second",
    "tune",
    lambda s: with_bias(conv(6, 12, False, 0.4), 1, -40, images(s, size=8)),
    both(dead("blocks.1.branch.1", 0.99), no_gradient("blocks.1.branch.0")),
    "DEAD",
    layer="blocks.1.branch.0",
    control=normed_4,
)


class Lost(nn.Module):
    """A branch that is computed without a graph, skip and all."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.block(x)


def no_graph(model: ResidualNet, block: int, task: Task) -> Setup:
    model.blocks[block] = Lost(model.blocks[block])
    return pair(model, task)


zoo.sick(
    "6-blocks-fourth-under-no-grad",
    "tune",
    lambda s: no_graph(dense(6, 48, scale=0.4), 3, blobs(s)),
    no_gradient("stem", "blocks.0", "blocks.2", "blocks.3"),
    "DISCONNECTED",
    layer=("blocks.3.block.branch.0", "blocks.3.block.branch.2"),
    also={"DEAD"},
    control=scaled_24,
)
zoo.sick(
    "10-blocks-branch-output-detached-in-third",
    "tune",
    lambda s: cut_branch(dense(10, 40, 24, 6, act=nn.GELU, norm=True), 2, blobs(s, 24, 6)),
    no_gradient("blocks.2.branch.1", "blocks.2.branch.3"),
    "DISCONNECTED",
    layer=("blocks.2.branch.1", "blocks.2.branch.3"),
    also={"DEAD"},
    control=pre_norm,
)


def cut_branch(model: ResidualNet, block: int, task: Task) -> Setup:
    model.blocks[block].branch.append(Lambda(Tensor.detach))
    return pair(model, task)


around = zoo.healthy(
    "width-2-branches-with-skip", "tune", lambda s: pair(dense(6, 48, inner=2, scale=0.5), blobs(s)), trains()
)
zoo.sick(
    "width-2-branch-without-skip",
    "tune",
    lambda s: pair(skipless(dense(6, 48, inner=2, scale=0.5), 2), blobs(s)),
    both(rank_at_most("blocks.2.branch.0", 2), learns_less(by=0.1)),
    "BOTTLENECK",
    layer=("blocks.2.branch.0", "blocks.2.branch.2"),
    also={"LOW_RANK", "DEAD"},
    control=around,
)
zoo.sick(
    "10-blocks-between-them-width-2",
    "tune",
    lambda s: pair(waist(dense(10, 40, 24, 8, act=nn.GELU, norm=True), 5, 40), blobs(s, 24, 8)),
    both(rank_at_most("blocks.5.0", 2), learns_less(steps=40, by=0.1)),
    "BOTTLENECK",
    layer=("blocks.5.0", "blocks.5.1"),
    also={"LOW_RANK"},
    control=pre_norm,
)


def skipless(model: ResidualNet, block: int) -> ResidualNet:
    model.blocks[block].skip = False
    return model


def waist(model: ResidualNet, at: int, width: int) -> ResidualNet:
    model.blocks.insert(at, nn.Sequential(nn.Linear(width, 2), nn.Linear(2, width)))
    return model


# --- not finite, wrong rates


def overflow(model: ResidualNet, block: int, task: Task) -> Setup:
    model.blocks[block].branch.insert(1, Lambda(lambda x: torch.exp(x * 60)))
    return pair(model, task)


zoo.sick(
    "8-blocks-exp-in-sixth",
    "tune",
    lambda s: overflow(dense(8, 40, 24, 6, scale=0.4), 5, blobs(s, 24, 6)),
    not_finite(),
    "NUMERICAL",
    layer=("blocks.5.branch.0", "blocks.5.branch.3"),
    also={"EXPLODING"},
    control=pre_norm,
)
zoo.sick(
    "conv-4-blocks-momentum-sgd-20",
    "tune",
    lambda s: rated(conv(4, 12, False, 0.5), images(s, size=8), "SGD", 20.0, 20, momentum=0.9),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    control=scaled_24,
)

# --- healthy


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
    model = dense(8, 40, 24, 6, scale=0.4)
    model.blocks = nn.ModuleList(Skipped(block, 0.6, seed + i) for i, block in enumerate(model.blocks))
    return pair(model, blobs(seed, 24, 6))


def lora_residual(seed: int) -> Setup:
    model = dense(5, 40, 24, 6, scale=0.4).requires_grad_(False)
    for block in model.blocks:
        block.branch[0] = Lora(block.branch[0], 4)
    model.head.requires_grad_(True)
    return pair(model, blobs(seed, 24, 6))


def highway(seed: int) -> Setup:
    return pair(ResidualNet(nn.Linear(24, 40), [Highway(40) for _ in range(6)], nn.Linear(40, 6)), blobs(seed, 24, 6))


zoo.healthy("zero-init-branches-12-blocks", "tune", lambda s: pair(silent(dense(12, 48)), blobs(s)), trains())
zoo.healthy(
    "conv-zero-gamma-3-blocks",
    "tune",
    lambda s: pair(silent(conv(3, 12, True)), images(s, size=8)),
    trains(lr=3e-3, steps=30),
)
zoo.healthy("rezero-10-blocks", "tune", lambda s: pair(dense(10, 48, scale=0, learned=True), blobs(s)), trains())
zoo.healthy("stochastic-depth-8-blocks", "tune", stochastic, trains())
zoo.healthy("highway-6-blocks", "tune", highway, trains(lr=3e-3))
zoo.healthy("lora-rank-4-on-branches", "tune", lora_residual, trains(lr=3e-3))
zoo.healthy("layer-scale-1e-4", "tune", lambda s: pair(layer_scaled(8, 48), blobs(s)), trains())


class LayerScale(nn.Module):
    """A learned factor per channel that starts tiny, as in deep image transformers."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def layer_scaled(blocks: int, width: int) -> ResidualNet:
    model = dense(blocks, width, norm=True, act=nn.GELU)
    for block in model.blocks:
        block.branch.append(LayerScale(width, 1e-4))
    return model
