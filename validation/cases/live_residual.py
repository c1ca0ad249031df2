# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks with one fault each, trained under watch, their twins, and odd healthy ones.

Half: live.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import lags, lasting, never_fires, thrives
from validation.evidence.signal import gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move
from validation.labels import DEADENS, RUNS_AWAY
from validation.setups import live
from validation.tasks import blobs, patches, strokes

zoo = Zoo("residual", half="live", proof=thrives())


class Pre(nn.Module):
    """Norm, ReLU, convolution, twice, and the sum: the second kind of residual block."""

    def __init__(self, width: int, zero: bool = False) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        if zero:
            nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(torch.relu(self.bn1(x)))
        return x + self.conv2(torch.relu(self.bn2(h)))


class ResNet(nn.Module):
    """A stem, pre-activated blocks, perhaps something between them, the mean, a head."""

    def __init__(self, blocks: list[nn.Module], width: int = 16) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(1, width, 3, padding=1), nn.ModuleList(blocks)
        self.norm, self.fc = nn.BatchNorm2d(width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(torch.relu(self.norm(x)).mean(dim=(2, 3)))


def pictures(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(ResNet(blocks), strokes(seed, 8, 8, 16), **{"lr": 3e-3, "steps": 40, **more})


class Waist(nn.Module):
    """A transition without a way around, through `narrow` channels; `cut` takes it out of the graph."""

    def __init__(self, narrow: int, cut: bool = False) -> None:
        super().__init__()
        self.into, self.out, self.cut = nn.Conv2d(16, narrow, 1), nn.Conv2d(narrow, 16, 1), cut

    def forward(self, x: Tensor) -> Tensor:
        x = self.out(self.into(x))
        return x.detach() if self.cut else x


calm = zoo.healthy("strokes-pre-activated-4x16", lambda s: pictures(s, [Pre(16) for _ in range(4)]))
open_waist = zoo.healthy(
    "strokes-pre-activated-transition-of-16", lambda s: pictures(s, [Pre(16), Waist(16), Pre(16)], steps=80)
)
zoo.sick(
    "strokes-pre-activated-transition-of-1",
    lambda s: pictures(s, [Pre(16), Waist(1), Pre(16)], steps=80),
    lags(0.1),
    "BOTTLENECK",
    layer=("blocks.1.into", "blocks.1.out"),
    also={"LOW_RANK"},
    control=open_waist,
)
zoo.sick(
    "strokes-pre-activated-transition-cut",
    lambda s: pictures(s, [Pre(16), Waist(16, cut=True), Pre(16)], steps=80),
    lasting(no_gradient("stem", "blocks.0", "blocks.1")),
    "DISCONNECTED",
    layer=("blocks.1.out", "blocks.1.into"),
    also={"DEAD"},
    control=open_waist,
)
zoo.sick(
    "strokes-pre-activated-sgd-1e-9",
    lambda s: pictures(s, [Pre(16) for _ in range(3)], kind="SGD", lr=1e-9),
    does_not_move(steps=40),
    "SLOW",
    control=calm,
)


class Step(nn.Module):
    """A dense branch beside a skip of any weight, with a function inside."""

    def __init__(self, width: int, act=torch.relu, skip: float = 1.0, norm: bool = True, low: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.a, self.b, self.act, self.skip = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), act, skip
        self.a.bias.data -= low

    def forward(self, x: Tensor) -> Tensor:
        return self.skip * x + self.b(self.act(self.a(self.norm(x))))


def dense(seed: int, body: list[nn.Module], width: int = 40, **more) -> Setup:
    model = nn.Sequential(nn.Linear(22, width), *body, nn.Linear(width, 7))
    return live(model, blobs(seed, 22, 7, 72, 0.8), **{"lr": 2e-3, "steps": 40, **more})


steps = zoo.healthy("blobs-6-dense-steps", lambda s: dense(s, [Step(40) for _ in range(6)]))
zoo.sick(
    "blobs-6-dense-steps-fourth-branch-dead",
    lambda s: dense(s, [Step(40, low=25.0 if i == 3 else 0.0) for i in range(6)]),
    lasting(never_fires("4.a", 0.99), no_gradient("4.a")),
    "DEAD",
    layer=("4.a", "4.b"),
    also=DEADENS,
    control=steps,
)
zoo.sick(
    "blobs-12-dense-steps-skip-forgotten-sigmoid",
    lambda s: dense(s, [Step(40, torch.sigmoid, 0.0, False) for _ in range(12)], kind="SGD", lr=0.05, momentum=0.9),
    lasting(gradient_ratio("0", "12.b", below=10**-2.5)),
    "VANISHING",
    control=steps,
)
zoo.sick(
    "blobs-14-dense-steps-skip-doubled",
    lambda s: dense(s, [Step(40, F.silu, 2.0, False) for _ in range(14)], lr=1e-4),
    lasting(gradient_ratio("0", "14.b", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=steps,
)
zoo.sick(
    "blobs-6-dense-steps-without-norm-sgd-50",
    lambda s: dense(s, [Step(40, norm=False) for _ in range(6)], kind="SGD", lr=50.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=steps,
)

# --- odd and healthy

zoo.healthy("strokes-pre-activated-branches-from-zero", lambda s: pictures(s, [Pre(16, True) for _ in range(4)]))
zoo.healthy(
    "strokes-pre-activated-batches-of-4",
    lambda s: live(ResNet([Pre(16) for _ in range(2)]), strokes(s, 8, 8, 4), lr=2e-3, steps=100),
    thrives(0.05),
)
zoo.healthy(
    "blobs-24-dense-steps-small-gradients", lambda s: dense(s, [Step(24, F.gelu) for _ in range(24)], 24, lr=1e-3)
)


class Rezero(nn.Module):
    """One learned number in front of each branch, zero at first."""

    def __init__(self, width: int, start: float = 0.0) -> None:
        super().__init__()
        self.fc, self.alpha = nn.Linear(width, width), nn.Parameter(torch.full((), start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * torch.relu(self.fc(x))


zoo.healthy("blobs-10-branches-from-nothing", lambda s: dense(s, [Rezero(40) for _ in range(10)], lr=3e-3))
zoo.healthy("blobs-10-branches-from-1e-6", lambda s: dense(s, [Rezero(40, 1e-6) for _ in range(10)], lr=3e-3))


class Depth(nn.Module):
    """Each block is skipped now and then, the deeper the more often."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Step(width, F.gelu) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for i, step in enumerate(self.steps):
            if not self.training or torch.rand(()) > 0.4 * (i + 1) / len(self.steps):
                x = step(x)
        return x


zoo.healthy("blobs-6-steps-left-out-at-random", lambda s: dense(s, [Depth(40, 6)], lr=3e-3, steps=60))


class MixTokens(nn.Module):
    """MLP-Mixer: across tokens, then across channels, by einsum."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Parameter(torch.randn(tokens, tokens) / tokens**0.5)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.einsum("ij,bjd->bid", self.across, self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Mixed(nn.Module):
    """Tokens enter, are mixed, and are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.mix = nn.Linear(24, 28), nn.Sequential(*(MixTokens(10, 28) for _ in range(3)))
        self.leave = nn.Linear(28, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.mix(self.enter(x)).mean(dim=1))


zoo.healthy("patches-mixer-by-einsum", lambda s: live(Mixed(), patches(s, batch=16), lr=2e-3))


class Densely(nn.Module):
    """Every layer reads all before it, eight new channels at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1 + 8 * i, 8, 3, padding=1) for i in range(4))
        self.fc = nn.Linear(33, 8)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], dim=1)
        return self.fc(x.square().mean(dim=(2, 3)))


zoo.healthy("strokes-every-layer-reads-all-before", lambda s: live(Densely(), strokes(s, 8, 8, 16), lr=1e-2, steps=60))
