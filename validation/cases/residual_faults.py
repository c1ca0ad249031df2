# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks whose signal grows, dies, stops or narrows, and their twins.

Half: tune.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.signal import (
    activation_growth,
    both,
    dead,
    gradient_ratio,
    no_gradient,
    rank_at_most,
    saturated,
)
from validation.evidence.training import learns_less, trains
from validation.nets.dense import Lambda
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
from validation.setups import biased, pair, partly_dead
from validation.tasks import Task, blobs, images, patches

zoo = Zoo("residual", half="tune", proof=trains(lr=3e-3, steps=30))


# --- growing and dying with depth

scaled_24 = zoo.healthy(
    "24-blocks-branch-over-root-24", lambda s: pair(residual_mlp(24, 48, scale=1 / math.sqrt(24)), blobs(s)), trains()
)
zoo.sick(
    "24-blocks-without-norm",
    lambda s: pair(residual_mlp(24, 48), blobs(s)),
    both(gradient_ratio("stem", "blocks.23.branch.2", above=100), activation_growth(100)),
    "EXPLODING",
    also={"UNSTABLE", "DEAD"},
    control=scaled_24,
)
normed_4 = zoo.healthy("conv-4-blocks-batch-norm", lambda s: pair(residual_convs(4, 12, True), images(s, size=8)))
zoo.sick(
    "conv-16-blocks-without-norm",
    lambda s: pair(residual_convs(16, 12, False), images(s, size=8)),
    both(gradient_ratio("stem", "blocks.15.branch.2", above=100), activation_growth(30)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=normed_4,
)
pre_norm = zoo.healthy(
    "pre-norm-12-blocks-gelu",
    lambda s: pair(residual_mlp(12, 40, 24, 6, act=nn.GELU, norm=True), blobs(s, 24, 6)),
    trains(),
)
mixer = zoo.healthy("mixer-4x28", lambda s: pair(Mixer(4, 28), patches(s)))
zoo.sick(
    "mixer-14x28-without-norms-he",
    lambda s: pair(he_(Mixer(14, 28, norm=False, act=nn.ReLU)), patches(s)),
    both(gradient_ratio("project", "blocks.13.channels.2", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=mixer,
)


class Fading(nn.Module):
    """Keeps only a part of its input: `keep` · x + branch."""

    def __init__(self, branch: nn.Module, keep: float) -> None:
        super().__init__()
        self.branch, self.keep = branch, keep

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + 0.1 * self.branch(x)


def fading(seed: int, keep: float) -> Setup:
    blocks = [Fading(dense_branch(42, 42, nn.SiLU), keep) for _ in range(10)]
    return pair(he_(ResidualNet(nn.Linear(20, 42), blocks, nn.Linear(42, 5))), blobs(seed, 20, 5))


kept = zoo.healthy("10-blocks-skip-of-1", lambda s: fading(s, 1.0))
zoo.sick(
    "10-blocks-skip-of-0.2",
    lambda s: fading(s, 0.2),
    gradient_ratio("stem", "blocks.9.branch.2", below=10**-2.5),
    "VANISHING",
    control=kept,
)


class Gate(nn.Module):
    """A learned share of change and of carry-over."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.gate, self.squash, self.change = nn.Linear(width, width), nn.Sigmoid(), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        share = self.squash(self.gate(x))
        return share * torch.tanh(self.change(x)) + (1 - share) * x


def gated(seed: int, bias: float, blocks: int) -> Setup:
    body = [Gate(36, bias) for _ in range(blocks)]
    return pair(ResidualNet(nn.Linear(20, 36), body, nn.Linear(36, 5)), blobs(seed, 20, 5))


carried = zoo.healthy("18-gates-that-carry-most", lambda s: gated(s, -3.0, 18))
zoo.sick(
    "18-gates-that-carry-nothing",
    lambda s: gated(s, 7.0, 18),
    both(gradient_ratio("stem", "blocks.17.change", below=10**-2.5), saturated("blocks.9.squash", "sigmoid", 0.95)),
    "VANISHING",
    "SATURATION",
    control=carried,
)
zoo.sick(
    "6-gates-shut-for-good",
    lambda s: gated(s, -30.0, 6),
    saturated("blocks.3.squash", "sigmoid", 0.99),
    "SATURATION",
    "DEAD",
    "VANISHING",
    also={"DISCONNECTED"},
    control=carried,
)

# --- a dead, cut or narrow place


def with_bias(model: ResidualNet, block: int, value: float, task: Task) -> Setup:
    branch = model.blocks[block].branch
    first = next(m for m in branch if isinstance(m, (nn.Linear, nn.Conv2d)))
    nn.init.constant_(first.bias, value)
    return pair(model, task)


zoo.sick(
    "8-blocks-dead-branch-in-fifth",
    lambda s: with_bias(residual_mlp(8, 48, scale=0.35), 4, -20, blobs(s)),
    both(dead("blocks.4.branch.1", 0.99), no_gradient("blocks.4.branch.0")),
    "DEAD",
    layer="blocks.4.branch.0",
    control=scaled_24,
)
zoo.sick(
    "conv-6-blocks-dead-branch-in-second",
    lambda s: with_bias(residual_convs(6, 12, False, 0.4), 1, -40, images(s, size=8)),
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
    lambda s: no_graph(residual_mlp(6, 48, scale=0.4), 3, blobs(s)),
    no_gradient("stem", "blocks.0", "blocks.2", "blocks.3"),
    "DISCONNECTED",
    layer=("blocks.3.block.branch.0", "blocks.3.block.branch.2"),
    also={"DEAD"},
    control=scaled_24,
)
zoo.sick(
    "10-blocks-branch-output-detached-in-third",
    lambda s: cut_branch(residual_mlp(10, 40, 24, 6, act=nn.GELU, norm=True), 2, blobs(s, 24, 6)),
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
    "width-2-branches-with-skip", lambda s: pair(residual_mlp(6, 48, inner=2, scale=0.5), blobs(s)), trains()
)
zoo.sick(
    "width-2-branch-without-skip",
    lambda s: pair(skipless(residual_mlp(6, 48, inner=2, scale=0.5), 2), blobs(s)),
    both(rank_at_most("blocks.2.branch.0", 2), learns_less(by=0.1)),
    "BOTTLENECK",
    layer=("blocks.2.branch.0", "blocks.2.branch.2"),
    also={"LOW_RANK", "DEAD"},
    control=around,
)
zoo.sick(
    "10-blocks-between-them-width-2",
    lambda s: pair(waist(residual_mlp(10, 40, 24, 8, act=nn.GELU, norm=True), 5, 40), blobs(s, 24, 8)),
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


staged = zoo.healthy("two-stages-group-norm", lambda s: pair(Staged(), images(s, 3, 8, 7, 24)))
zoo.sick(
    "two-stages-dead-branch-in-the-second",
    lambda s: biased(Staged(), "second.norms.2", -8, images(s, 3, 8, 7, 24)),
    both(dead("second.acts.2", 0.99), no_gradient("second.convs.2")),
    "DEAD",
    layer=("second.convs.2", "second.norms.2"),
    also={"DISCONNECTED"},
    control=staged,
)
zoo.sick(
    "mixer-5x28-85-percent-of-a-channel-mix-dead",
    lambda s: partly_dead(Mixer(5, 28, act=nn.ReLU), "blocks.1.channels.0", 0.85, patches(s)),
    dead("blocks.1.channels.1", 0.83),
    "DEAD",
    layer="blocks.1.channels.0",
    control=mixer,
)


class Memory(nn.Module):
    """Keeps a running copy of its output and goes on with the copy, which has no history."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.block(x).data.clone()
        return self.last


def remembered(seed: int) -> Setup:
    model = Mixer(5, 28)
    model.blocks[1] = Memory(model.blocks[1])
    return pair(model, patches(seed))


zoo.sick(
    "mixer-5x28-second-block-goes-on-with-a-copy",
    remembered,
    no_gradient("project", "blocks.0", "blocks.1"),
    "DISCONNECTED",
    layer=("blocks.1.block.channels.2", "blocks.1.block.channels.0"),
    also={"DEAD"},
    control=mixer,
)


def factorised(seed: int, rank: int) -> Setup:
    """The head is a product of two matrices, as one does for many classes."""
    blocks = [ResidualBlock(dense_branch(38, 76, nn.SiLU, norm=True)) for _ in range(3)]
    head = nn.Sequential(nn.Linear(38, rank), nn.Linear(rank, 20))
    return pair(ResidualNet(nn.Linear(30, 38), blocks, head), blobs(seed, 30, 20, 160))


factors = zoo.healthy("3-blocks-head-of-rank-18", lambda s: factorised(s, 18))
zoo.sick(
    "3-blocks-head-of-rank-1-for-20-classes",
    lambda s: factorised(s, 1),
    both(rank_at_most("head.1", 1.01), learns_less(by=0.15)),
    "BOTTLENECK",
    layer=("head.0", "head.1"),
    also={"LOW_RANK"},
    control=factors,
)


def stemmed(seed: int, narrow: int) -> Setup:
    """The input passes a few numbers before the blocks see it."""
    stem = nn.Sequential(nn.Linear(36, narrow), nn.Linear(narrow, 44))
    blocks = [ResidualBlock(dense_branch(44, 88, nn.GELU, norm=True)) for _ in range(5)]
    return pair(ResidualNet(stem, blocks, nn.Linear(44, 12)), blobs(seed, 36, 12, 96))


full_stem = zoo.healthy("5-blocks-stem-of-30", lambda s: stemmed(s, 30))
zoo.sick(
    "5-blocks-stem-of-2",
    lambda s: stemmed(s, 2),
    both(rank_at_most("stem.1", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer=("stem.0", "stem.1"),
    also={"LOW_RANK"},
    control=full_stem,
)
