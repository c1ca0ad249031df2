# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks that learn, some with what people in threads took for a fault.

Half: threads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._threads_nets import (
    Averaged,
    Skip,
    beats,
    cereals,
    fields,
    flats,
    layers,
    leaves,
    spectra,
    turbines,
)
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain

zoo = Zoo("residual", half="threads", proof=thrives(0.2, most_dead=0.5))


def basic(width: int, inner: int | None = None) -> nn.Sequential:
    """Two convolutions with batch norms."""
    inner = inner or width
    first, second = nn.Conv2d(width, inner, 3, 1, 1, bias=False), nn.Conv2d(inner, width, 3, 1, 1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(inner), nn.ReLU(), second, nn.BatchNorm2d(width))


def resnet(*branches: nn.Module, width: int = 16) -> Averaged:
    return Averaged(nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *(Skip(each) for each in branches)), width, 8)


# google-deepmind/sonnet#185 "BatchNorm of ResNet implementation initialized as zero": looks strange, eases the start.
def zeroed(seed: int) -> Setup:
    branches = [basic(16) for _ in range(3)]
    for branch in branches:
        nn.init.zeros_(branch[4].weight)
    return live(resnet(*branches), leaves(seed), "SGD", 0.05, 70, momentum=0.9)


zoo.healthy("leaves-last-norm-starts-at-zero", zeroed)
# carpedm20/simulated-unsupervised-tensorflow#10: no batch norm in the blocks; not needed at this depth.


def bare(seed: int) -> Setup:
    branches = [nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1)) for _ in range(3)]
    return live(resnet(*branches), leaves(seed), "Adam", 3e-3, 80)


zoo.healthy("leaves-three-blocks-without-norm", bare)
# branches of two channels: narrow, but the stream beside them is not.
zoo.healthy(
    "leaves-branches-of-2-channels",
    lambda s: live(resnet(basic(24, 2), basic(24, 2), width=24), leaves(s), "Adam", 8e-3, 80),
)


class Rezero(nn.Module):
    """Branches that count for nothing at first."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(12, 48), nn.Linear(48, 8)
        self.branches = nn.ModuleList(layers([48, 48, 48], nn.GELU) for _ in range(6))
        self.shares = nn.ParameterList(torch.zeros(1) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for branch, share in zip(self.branches, self.shares, strict=True):
            x = x + share * branch(x)
        return self.leave(x)


zoo.healthy("turbines-shares-start-at-zero", lambda s: live(Rezero(), turbines(s), "Adam", 4e-3, 100))


class Highway(nn.Module):
    """Gates that mostly carry at first."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 40), nn.Linear(40, 6)
        self.ways, self.gates = (nn.ModuleList(nn.Linear(40, 40) for _ in range(5)) for _ in range(2))
        for gate in self.gates:
            nn.init.constant_(gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for way, gate in zip(self.ways, self.gates, strict=True):
            share = torch.sigmoid(gate(x))
            x = share * F.relu(way(x)) + (1 - share) * x
        return self.leave(x)


zoo.healthy("cereals-highway-carries-at-first", lambda s: live(Highway(), cereals(s), "Adam", 4e-3, 80))


class Pre(nn.Module):
    """A layer norm before each branch, dropout behind it."""

    def __init__(self, dim: int, out: int, depth: int = 8) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(dim, 48), nn.LayerNorm(48), nn.Linear(48, out)
        self.blocks = nn.Sequential(*(Skip(self.branch()) for _ in range(depth)))

    @staticmethod
    def branch() -> nn.Sequential:
        return nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 48))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.norm(self.blocks(self.enter(x))))


zoo.healthy("flats-eight-normed-blocks-clipped", lambda s: live(Pre(7, 1), flats(s), "AdamW", 2e-3, 90, clip=0.5))
zoo.healthy(
    "spectra-normed-blocks-warm-up",
    lambda s: live(Pre(48, 48, 3), spectra(s), "AdamW", 3e-3, 100, rate=lambda t: min(1.0, (t + 1) / 15)),
)


class Dense(nn.Module):
    """Every convolution sees all that came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fc = nn.Conv2d(6, 12, 3, 1, 1), nn.Conv2d(36, 6, 1)
        self.grow = nn.ModuleList(nn.Conv2d(12 + 8 * i, 8, 3, 1, 1) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv in self.grow:
            x = torch.cat([x, F.relu(conv(x))], dim=1)
        return self.fc(x)


zoo.healthy("fields-dense-net", lambda s: live(Dense(), fields(s), "Adam", 4e-3, 70))


def kept(seed: int) -> Setup:
    model = resnet(basic(16), basic(16))
    pretrain(live(model, leaves(seed)), 40)
    nn.init.normal_(model.head.weight, std=0.01)
    return live(frozen(model, "body"), leaves(seed), "Adam", 2e-2, 50)


zoo.healthy("leaves-resnet-frozen-backbone", kept)


class Wave(nn.Module):
    """Residual convolutions over a lead."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fc = nn.Conv1d(1, 16, 7, padding=3), nn.Linear(16, 6)
        self.blocks = nn.Sequential(*(Skip(self.branch()) for _ in range(2)))

    @staticmethod
    def branch() -> nn.Sequential:
        first, second = nn.Conv1d(16, 16, 5, padding=2), nn.Conv1d(16, 16, 5, padding=2)
        return nn.Sequential(nn.BatchNorm1d(16), nn.ReLU(), first, nn.BatchNorm1d(16), nn.ReLU(), second)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.blocks(self.stem(x))).mean(dim=2))


zoo.healthy("beats-residual-batches-of-12", lambda s: live(Wave(), beats(s, batch=12), "Adam", 4e-3, 90))
