# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks as people write them: with the faults that people have, their twins, and others that are fine.

Half: everyday.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import (
    CUT_OFF,
    NARROW,
    RUINED,
    beats,
    clouds,
    digits,
    he,
    housing,
    photos,
    sorts,
    start,
    windows,
)
from validation.evidence.live import breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import equal_units, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("residual", half="everyday", proof=thrives())


class Basic(nn.Module):
    """Two convolutions with norms and the sum; a point-wise convolution where the shape changes."""

    def __init__(self, a: int, b: int | None = None, stride: int = 1, skip: bool = True, norm: bool = True) -> None:
        super().__init__()
        b = b or a
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, stride, 1, bias=not norm), nn.Conv2d(b, b, 3, 1, 1, bias=not norm)
        self.bn1, self.bn2 = (nn.BatchNorm2d(b) if norm else nn.Identity() for _ in range(2))
        self.down = nn.Identity() if a == b and stride == 1 else nn.Conv2d(a, b, 1, stride)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.down(x) if self.skip else h)


class ResNet(nn.Module):
    """Stem, blocks, mean, head."""

    def __init__(
        self, blocks: list[nn.Module], stem: int = 16, out: int = 16, channels: int = 3, classes: int = 8
    ) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(channels, stem, 3, padding=1), nn.Sequential(*blocks)
        self.fc = nn.Linear(out, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def seen(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, photos(seed, batch=24), *args, **more)


# --- pictures with a fault

eight = zoo.healthy(
    "photos-resnet-8-blocks-no-norm-default",
    lambda s: seen(s, ResNet([Basic(16, norm=False) for _ in range(8)]), "Adam", 1e-3, 50),
)
zoo.sick(
    "photos-resnet-8-blocks-skips-forgotten",
    lambda s: seen(s, ResNet([Basic(16, norm=False, skip=False) for _ in range(8)]), "SGD", 0.01, 50, momentum=0.9),
    lasting(gradient_ratio("stem", "blocks.7.conv2", below=10**-2.5)),
    "VANISHING",
    also={"SLOW", "LOW_RANK"},
    control=eight,
)


class Plus(nn.Module):
    """Two convolutions and the sum, no norm, nothing behind the sum."""

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.conv2(F.relu(self.conv1(F.relu(x))))


def sums(seed: int, scale: float, lr: float) -> Setup:
    """Twenty sums from Kaiming's start; a branch counts in full, or by one over the root of their number."""
    return seen(seed, he(ResNet([Plus(16, scale) for _ in range(20)])), "Adam", lr, 40)


scaled = zoo.healthy("photos-20-sums-kaiming-branches-by-0.22", lambda s: sums(s, 0.22, 1e-3))
zoo.sick(
    "photos-20-sums-kaiming-branches-in-full",
    lambda s: sums(s, 1.0, 1e-5),
    lasting(gradient_ratio("stem", "blocks.19.conv2", above=100)),
    "EXPLODING",
    "UNSTABLE",
    control=scaled,
)
normed = zoo.healthy(
    "photos-resnet-3-blocks-batch-norm-adam",
    lambda s: seen(s, ResNet([Basic(16), Basic(16, 32, 2), Basic(32)], out=32), "Adam", 3e-3, 40),
)
zoo.sick(
    "photos-resnet-8-blocks-no-norm-adam-1",
    lambda s: seen(s, ResNet([Basic(16, norm=False) for _ in range(8)]), "Adam", 1.0, 40),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=eight,
)


def loaded(seed: int, low: float) -> Setup:
    """The norm's shift in the second block comes from the wrong key of a checkpoint."""
    model = ResNet([Basic(16) for _ in range(3)])
    model.blocks[1].bn1.bias.data -= low
    return seen(seed, model, "Adam", 2e-3, 40)


right = zoo.healthy("photos-resnet-checkpoint-by-the-right-keys", lambda s: loaded(s, 0.0))
zoo.sick(
    "photos-resnet-shift-of-a-norm-from-the-wrong-key",
    lambda s: loaded(s, 12.0),
    lasting(never_fires("blocks.1.bn1", 0.99), no_gradient("blocks.1.conv1")),
    "DEAD",
    "DISCONNECTED",
    layer=("blocks.1.conv1", "blocks.1.conv2"),
    also={"VANISHING"},
    control=right,
)


class Transition(nn.Module):
    """Between two stages: a point-wise convolution to `narrow` channels and one back, with nothing around them."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(16, narrow, 1), nn.Conv2d(narrow, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.avg_pool2d(self.into(x), 2))


def stages(seed: int, narrow: int) -> Setup:
    return seen(seed, ResNet([Basic(16), Transition(narrow), Basic(32)], out=32), "Adam", 3e-3, 50)


half = zoo.healthy("photos-resnet-transition-of-12-channels", lambda s: stages(s, 12))
zoo.sick(
    "photos-resnet-transition-of-1-channel",
    lambda s: stages(s, 1),
    lags(0.1),
    *NARROW,
    layer=("blocks.1.into", "blocks.1.out"),
    control=half,
)


class Saving(nn.Module):
    """Two blocks; to save memory, somebody detaches what goes between them."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), Basic(16), Basic(16)
        self.fc, self.cut = nn.Linear(16, 8), cut

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.stem(x))
        x = self.two(x.detach() if self.cut else x)
        return self.fc(x.mean(dim=(2, 3)))


whole = zoo.healthy("photos-two-blocks-all-attached", lambda s: seen(s, Saving(False), "AdamW", 3e-3, 50))
zoo.sick(
    "photos-two-blocks-detached-to-save-memory",
    lambda s: seen(s, Saving(True), "AdamW", 3e-3, 50),
    lasting(no_gradient("stem", "one")),
    *CUT_OFF,
    layer=("one.conv2", "one.conv1", "stem", "two.conv1"),
    control=whole,
)
zoo.sick(
    "photos-resnet-warm-up-by-whole-division",
    lambda s: seen(
        s, ResNet([Basic(16), Basic(16, 32, 2), Basic(32)], out=32), "Adam", 3e-3, 40, rate=lambda t: (t + 1) // 500
    ),
    does_not_move(steps=40),
    "SLOW",
    control=normed,
)
zoo.sick(
    "photos-resnet-all-kernels-constant",
    lambda s: seen(s, start(ResNet([Basic(16), Basic(16)]), lambda w: nn.init.constant_(w, 0.01)), "Adam", 3e-3, 40),
    lasting(equal_units("blocks.0.conv1.weight"), equal_units("blocks.1.conv2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK"},
    control=normed,
)

# --- rows with a fault


class Softplus(nn.Module):
    """log(1 + exp(x)), by hand: infinite above 88."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(1 + torch.exp(x))


class Dense(nn.Module):
    """Norm, linear, activation, dropout, linear, and the sum: a residual net for tables."""

    def __init__(self, width: int, act: nn.Module | None = None, norm: bool = True, drop: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act, self.drop = act or nn.ReLU(), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.drop(self.act(self.fc1(self.norm(x)))))


def table(seed: int, blocks: list[nn.Module], *args, width: int = 32, change=None, **more) -> Setup:
    model = nn.Sequential(nn.Linear(13, width), *blocks, nn.Linear(width, 1))
    task = housing(seed)
    return live(model, task.mapped(change) if change else task, *args, **more)


def softplus(seed: int, unit: float) -> Setup:
    """One column has a unit of its own."""
    scale = torch.tensor([1.0, 1.0, unit, *[1.0] * 10])
    return table(
        seed, [Dense(32, Softplus(), norm=False) for _ in range(2)], "Adam", 1e-3, 90, change=lambda x: x * scale
    )


safe = zoo.healthy("housing-residual-softplus-by-hand", lambda s: softplus(s, 1.0))
zoo.sick(
    "housing-residual-softplus-by-hand-of-a-raw-column",
    lambda s: softplus(s, 300.0),
    breaks,
    "NUMERICAL",
    "EXPLODING",
    also={"UNSTABLE"},
    layer=("1.fc1", "2.fc1"),
    control=safe,
)


def weathered(seed: int, size: float) -> Setup:
    """A sensor breaks every ninth batch: its column of one row is thousands of times too large."""
    now = every(9, 5)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        if now():
            x[3, 2] = size
        return x

    return table(seed, [Dense(32, nn.GELU(), norm=False) for _ in range(3)], "Adam", 1e-3, 70, change=change)


sound = zoo.healthy("housing-residual-sensor-sound", lambda s: weathered(s, 1.0))
zoo.sick(
    "housing-residual-sensor-breaks-at-times",
    lambda s: weathered(s, 2e4),
    gradient_norms_spread(30),
    *JUMPS,
    control=sound,
)


def squashed(seed: int, factor: float) -> Setup:
    """Counts go straight into a stem with tanh."""
    model = nn.Sequential(
        nn.Linear(16, 48),
        nn.Tanh(),
        Dense(48, nn.Tanh(), norm=False),
        Dense(48, nn.Tanh(), norm=False),
        nn.Linear(48, 6),
    )
    return live(model, sorts(seed).mapped(lambda x: factor * x), "Adam", 2e-3, 50)


small = zoo.healthy("sorts-residual-tanh-stem", lambda s: squashed(s, 1.0))
zoo.sick(
    "sorts-residual-tanh-stem-raw-counts",
    lambda s: squashed(s, 300.0),
    lasting(flat_behind("0", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="0",
    also={"EXPLODING", "UNSTABLE"},
    control=small,
)


def trunk(seed: int, width: int) -> Setup:
    model = nn.Sequential(nn.Linear(16, width), *(Dense(width, norm=False) for _ in range(3)), nn.Linear(width, 12))
    return live(model, sorts(seed, 12, batch=96, apart=1.2), "Adam", 5e-3, 70)


stream = zoo.healthy("sorts-12-residual-stream-of-32", lambda s: trunk(s, 32))
zoo.sick(
    "sorts-12-residual-stream-of-2",
    lambda s: trunk(s, 2),
    lags(0.15),
    *NARROW,
    layer=("0", "1.fc1", "4"),
    also={"DEAD"},
    control=stream,
)

# --- fine

zoo.healthy("housing-residual-table-batch-norm-dropout", lambda s: table(s, [Dense(32, drop=0.1) for _ in range(3)]))
zoo.healthy(
    "photos-resnet-last-norms-from-zero",
    lambda s: seen(s, from_zero(ResNet([Basic(16) for _ in range(3)])), "SGD", 0.05, 50, momentum=0.9),
)


def from_zero(model: ResNet) -> ResNet:
    """As the recipe says: each branch starts silent."""
    for block in model.blocks:
        nn.init.zeros_(block.bn2.weight)
    return model


class Neck(nn.Module):
    """Down to a quarter of the channels, across, and up, beside the skip."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        inner = width // 4
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


zoo.healthy("photos-bottleneck-blocks-4x16", lambda s: seen(s, ResNet([Neck(16) for _ in range(4)]), "Adam", 3e-3, 40))
zoo.healthy(
    "photos-grouped-bottleneck-blocks",
    lambda s: seen(s, ResNet([Neck(32, 4) for _ in range(2)], 32, 32), "Adam", 3e-3, 40),
)


class ConvNext(nn.Module):
    """A wide depth-wise kernel, layer norm, four times the channels, a small scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(h)))).permute(0, 3, 1, 2)


zoo.healthy(
    "photos-convnext-layer-scale", lambda s: seen(s, ResNet([ConvNext(16) for _ in range(3)]), "AdamW", 5e-3, 60)
)


class Grown(nn.Module):
    """Each layer adds eight channels to what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 8 * i, 8, 3, padding=1) for i in range(5))
        self.fc = nn.Linear(43, 8)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], dim=1)
        return self.fc(x.mean(dim=(2, 3)))


zoo.healthy("photos-dense-net-growth-8", lambda s: seen(s, Grown(), "Adam", 5e-3, 60), thrives(most_dead=0.5))
zoo.healthy("photos-resnet-frozen-stem", lambda s: seen(s, still(ResNet([Basic(16), Basic(16)])), "Adam", 3e-3, 50))


def still(model: ResNet) -> ResNet:
    """The stem stays as it is."""
    model.stem.requires_grad_(False)
    return model


class Wave(nn.Module):
    """Gated dilated convolutions over time; skips are summed, as in WaveNet."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, width, 1)
        self.both = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.enter(x), 0
        for both, skip in zip(self.both, self.skips, strict=True):
            a, b = both(x).chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            x, total = x + h, total + skip(h)
        return self.fc(F.relu(total).amax(dim=2))


zoo.healthy("beats-gated-dilated-skips", lambda s: live(Wave(), beats(s), "Adam", 5e-3, 50))


class Beats(nn.Module):
    """Each block explains a part of the window and hands on the rest; forecasts are summed, as in N-BEATS."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()) for _ in range(blocks)
        )
        # What is left behind the last block goes nowhere, so the last block explains nothing.
        self.back = nn.ModuleList(nn.Linear(64, 32) for _ in range(blocks - 1))
        self.ahead = nn.ModuleList(nn.Linear(64, 8) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        total = 0
        for i, body in enumerate(self.bodies):
            h = body(x)
            total = total + self.ahead[i](h)
            x = x - self.back[i](h) if i < len(self.back) else x
        return total


zoo.healthy("windows-explained-part-by-part", lambda s: live(Beats(), windows(s), "Adam", 2e-3, 70))


class Shared(nn.Module):
    """One block again and again, as in a solver of an equation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.block, self.leave = nn.Linear(13, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(6):
            x = x + torch.tanh(self.block(x)) / 6
        return self.leave(x)


zoo.healthy("housing-one-block-six-times", lambda s: live(Shared(), housing(s), "Adam", 5e-3, 60))


class Gated(nn.Module):
    """A gated residual unit for tables, normed behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + F.glu(self.fc2(F.elu(self.fc1(x))), dim=1))


zoo.healthy("housing-gated-residual-units", lambda s: table(s, [Gated(32) for _ in range(3)], "Adam", 3e-3, 60))


class Dropped(Dense):
    """The branch is left out now and then."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) < 0.3:
            return x
        return super().forward(x)


zoo.healthy(
    "housing-branches-left-out-at-random", lambda s: table(s, [Dropped(32) for _ in range(4)], "Adam", 3e-3, 80)
)


class Clean(nn.Module):
    """Blocks at full size that take noise away, with a skip over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1)
        self.blocks = nn.Sequential(*(Plus(16, 0.5) for _ in range(3)))
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.leave(self.blocks(self.enter(x)))


zoo.healthy("clouds-blocks-with-a-skip-over-all", lambda s: live(Clean(), clouds(s, noise=0.5), "Adam", 3e-3, 60))
zoo.healthy(
    "digits-resnet-batches-of-4",
    lambda s: live(
        ResNet([Basic(12), Basic(12)], 12, 12, channels=1, classes=10), digits(s, batch=4), "Adam", 3e-3, 100
    ),
    thrives(0.05),
)
zoo.healthy(
    "photos-resnet-sgd-warm-up-clipped",
    lambda s: seen(
        s,
        ResNet([Basic(16) for _ in range(3)]),
        "SGD",
        0.1,
        50,
        momentum=0.9,
        weight_decay=1e-4,
        clip=1.0,
        rate=lambda t: min(1.0, (t + 1) / 15),
    ),
)
