# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks with faults, and their twins: mixers, stages, gates, couplings. Set aside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import (
    both,
    dead,
    gradient_ratio,
    no_gradient,
    rank_at_most,
    saturated,
)
from validation.evidence_training import learns_less, trains
from validation.nets import ResidualBlock, ResidualNet, dense_branch, he_
from validation.nets_unseen import Mixer, Staged
from validation.setups import pair, partly_dead
from validation.tasks import blobs, images, patches

zoo = Zoo("residual", proof=trains(lr=3e-3, steps=30))


# --- growing and dying with depth

mixer = zoo.healthy("mixer-4x28", "tune", lambda s: pair(Mixer(4, 28), patches(s)))
zoo.sick(
    "mixer-14x28-without-norms-he",
    "tune",
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


kept = zoo.healthy("10-blocks-skip-of-1", "tune", lambda s: fading(s, 1.0))
zoo.sick(
    "10-blocks-skip-of-0.2",
    "tune",
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


carried = zoo.healthy("18-gates-that-carry-most", "tune", lambda s: gated(s, -3.0, 18))
zoo.sick(
    "18-gates-that-carry-nothing",
    "tune",
    lambda s: gated(s, 7.0, 18),
    both(gradient_ratio("stem", "blocks.17.change", below=10**-2.5), saturated("blocks.9.squash", "sigmoid", 0.95)),
    "VANISHING",
    "SATURATION",
    control=carried,
)
zoo.sick(
    "6-gates-shut-for-good",
    "tune",
    lambda s: gated(s, -30.0, 6),
    saturated("blocks.3.squash", "sigmoid", 0.99),
    "SATURATION",
    "DEAD",
    "VANISHING",
    also={"DISCONNECTED"},
    control=carried,
)

# --- a dead, cut or narrow place


staged = zoo.healthy("two-stages-group-norm", "tune", lambda s: pair(Staged(), images(s, 3, 8, 7, 24)))


def shifted(model: nn.Module, path: str, value: float, task) -> Setup:
    nn.init.constant_(model.get_submodule(path).bias, value)
    return pair(model, task)


zoo.sick(
    "two-stages-dead-branch-in-the-second",
    "tune",
    lambda s: shifted(Staged(), "second.norms.2", -8, images(s, 3, 8, 7, 24)),
    both(dead("second.acts.2", 0.99), no_gradient("second.convs.2")),
    "DEAD",
    layer=("second.convs.2", "second.norms.2"),
    also={"DISCONNECTED"},
    control=staged,
)
zoo.sick(
    "mixer-5x28-85-percent-of-a-channel-mix-dead",
    "tune",
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
    "tune",
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


factors = zoo.healthy("3-blocks-head-of-rank-18", "tune", lambda s: factorised(s, 18))
zoo.sick(
    "3-blocks-head-of-rank-1-for-20-classes",
    "tune",
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


full_stem = zoo.healthy("5-blocks-stem-of-30", "tune", lambda s: stemmed(s, 30))
zoo.sick(
    "5-blocks-stem-of-2",
    "tune",
    lambda s: stemmed(s, 2),
    both(rank_at_most("stem.1", 2), learns_less(by=0.15)),
    "BOTTLENECK",
    layer=("stem.0", "stem.1"),
    also={"LOW_RANK"},
    control=full_stem,
)
