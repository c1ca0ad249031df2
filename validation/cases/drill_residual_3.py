# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual nets in other clothes: scales that begin at nothing, dense sums, reversible halves, mixers, adapters.

Half: drill.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._drill_tasks import bent, kinds, signs
from validation.evidence import thrives
from validation.nets import mlp
from validation.setups import live

zoo = Zoo("residual", half="drill", proof=thrives())


class Stack(nn.Module):
    """Blocks of one width between two layers."""

    def __init__(self, blocks: list[nn.Module], dim: int = 12, width: int = 32, out: int = 6) -> None:
        super().__init__()
        self.enter, self.blocks, self.out = nn.Linear(dim, width), nn.ModuleList(blocks), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Scaled(nn.Module):
    """A branch times a number that begins at `start`."""

    def __init__(self, start: float, width: int = 32) -> None:
        super().__init__()
        self.body, self.scale = mlp([width, width, width], nn.GELU), nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.body(x)


class Dropped(nn.Module):
    """A branch that is left out at times, for each sample."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.norm, self.body, self.share = nn.LayerNorm(32), mlp([32, 48, 32], nn.ReLU), share

    def forward(self, x: Tensor) -> Tensor:
        keep = (torch.rand(len(x), 1) >= self.share).float() / (1 - self.share)
        return x + keep * self.body(self.norm(x))


def sorted_(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Stack(blocks), kinds(seed), **{"lr": 3e-3, "steps": 60, **more})


zoo.healthy("kinds-branches-from-nothing", lambda s: sorted_(s, [Scaled(0.0) for _ in range(8)]))
zoo.healthy("kinds-branches-dropped-at-times", lambda s: sorted_(s, [Dropped(0.3) for _ in range(6)]))


class Equilibrium(nn.Module):
    """The same layer until little changes."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 2)
        with torch.no_grad():
            self.again.weight.mul_(0.7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        h = torch.zeros_like(x)
        for _ in range(12):
            h = torch.tanh(x + self.again(h))
        return self.out(h)


class Mixer(nn.Module):
    """Squares of a picture, mixed over places and over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.out = nn.Conv2d(1, 32, 3, 3), nn.Linear(32, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        self.places, self.channels = (
            nn.ModuleList(mlp([16, 32, 16], nn.GELU) for _ in range(2)),
            nn.ModuleList(mlp([32, 64, 32], nn.GELU) for _ in range(2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).mT
        for i, (place, channel) in enumerate(zip(self.places, self.channels, strict=True)):
            x = x + place(self.norms[2 * i](x).mT).mT
            x = x + channel(self.norms[2 * i + 1](x))
        return self.out(x.mean(dim=1))


zoo.healthy("bent-until-it-rests", lambda s: live(Equilibrium(), bent(s), lr=5e-3, steps=80))
zoo.healthy("signs-mixed-over-places", lambda s: live(Mixer(), signs(s, batch=48), lr=3e-3, steps=100), thrives(0.05))
