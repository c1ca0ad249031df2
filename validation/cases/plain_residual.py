# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain residual networks: with the mistakes that people make, their twins, and others that train well.

Half: plain.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he
from validation.cases._plain_nets import (
    BLOWN,
    arm,
    bands,
    block,
    coins,
    crops,
    dunes,
    flights,
    pooled,
    recipes,
    rings,
    scans,
    shapes,
    survey,
    tiles,
    tracks,
    with_groups,
)
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.signal import both, channel_rank, dead, gradient_ratio, no_gradient, saturated
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import frozen, live, pair, pretrain
from validation.tasks import every

zoo = Zoo("residual", half="plain", proof=thrives())

# --- rows


class Layer(nn.Module):
    """A branch of two layers and the sum; `skip` may be forgotten."""

    def __init__(self, width: int, act: type[nn.Module] = nn.ReLU, norm: bool = True, skip: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.fc1, self.act, self.fc2 = nn.Linear(width, width), act(), nn.Linear(width, width)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc2(self.act(self.fc1(self.norm(x))))
        return x + h if self.skip else h


class Rows(nn.Module):
    """A layer in, blocks, a layer out."""

    def __init__(self, dim: int, width: int, blocks: list[nn.Module], out: int) -> None:
        super().__init__()
        self.into, self.blocks, self.head = nn.Linear(dim, width), nn.ModuleList(blocks), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for each in self.blocks:
            x = each(x)
        return self.head(x)


def sown(seed: int, blocks: list[nn.Module], *args, width: int = 32, **more) -> Setup:
    return live(Rows(14, width, blocks, 6), crops(seed), *args, **more)


def tanhs(skip: bool) -> list[nn.Module]:
    return [Layer(32, nn.Tanh, norm=False, skip=skip) for _ in range(10)]


skips = zoo.healthy("crops-ten-tanh-blocks", lambda s: sown(s, tanhs(True), "SGD", 0.03, 70, momentum=0.9))
zoo.sick(
    "crops-ten-tanh-blocks-skip-forgotten",
    lambda s: sown(s, tanhs(False), "SGD", 0.03, 70, momentum=0.9),
    both(lasting(gradient_ratio("into", "blocks.9.fc2", below=1e-3)), lags(0.2)),
    "VANISHING",
    also={"SLOW", "loss_stuck", "never_moves", "rate_too_low", "LOW_RANK", "BOTTLENECK"},
    control=skips,
)


def unnormed(seed: int, factor: float) -> Setup:
    """Twenty branches without a norm; each of them should start small."""
    model = he(Rows(14, 32, [Layer(32, norm=False) for _ in range(20)], 6))
    for each in model.blocks:
        each.fc2.weight.data *= factor
    return live(model, crops(seed), "SGD", 0.01, 70, momentum=0.9)


fixup = zoo.healthy("crops-twenty-blocks-branches-start-small", lambda s: unnormed(s, 0.1))
zoo.sick(
    "crops-twenty-blocks-branches-start-whole",
    lambda s: unnormed(s, 1.0),
    both(gradient_ratio("into", "blocks.19.fc2", above=100), worse(1.5)),
    *RUNS_AWAY,
    also=BLOWN,
    control=fixup,
)


class Scaled(nn.Module):
    """A branch times a number that starts at zero and is learned; or that is a plain tensor and is not."""

    def __init__(self, width: int, learned: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        if learned:
            self.alpha = nn.Parameter(torch.zeros(()))
        else:
            self.register_buffer("alpha", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.fc2(F.gelu(self.fc1(x)))


def rezero(seed: int, learned: bool) -> Setup:
    return live(Rows(10, 48, [Scaled(48, learned) for _ in range(6)], 1), flights(seed), "Adam", 5e-3, 90)


learned = zoo.healthy("flights-six-branches-times-a-learned-zero", lambda s: rezero(s, True))
zoo.sick(
    "flights-six-branches-times-a-zero-that-stays",
    lambda s: rezero(s, False),
    both(lasting(no_gradient("blocks")), lags(0.1)),
    *CUT_OFF,
    layer=tuple(f"blocks.{i}.{part}" for i in range(6) for part in ("fc1", "fc2")),
    also={"detached", "never_moves", "VANISHING", "SLOW"},
    control=learned,
)


class Gate(nn.Module):
    """A sigmoid gate on the branch, from the stream, which is multiplied first."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.fc, self.gate, self.sigmoid, self.factor = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Sigmoid(),
            factor,
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * self.sigmoid(self.factor * self.gate(x)) * torch.tanh(self.fc(x))


def gated(seed: int, factor: float) -> Setup:
    return live(Rows(10, 48, [Gate(48, factor) for _ in range(4)], 1), flights(seed), "Adam", 4e-3, 80)


zoo.healthy("flights-four-gated-branches", lambda s: gated(s, 1.0))


class Thin(nn.Module):
    """Two widths of a stream; what leads from one to the other may be far too thin."""

    def __init__(self, thin: int) -> None:
        super().__init__()
        self.into, self.first = nn.Linear(6, 48), nn.Sequential(Layer(48, nn.SiLU), Layer(48, nn.SiLU))
        self.change, self.lift = nn.Linear(48, thin), nn.Linear(thin, 64)
        self.second, self.head = nn.Sequential(Layer(64, nn.SiLU), Layer(64, nn.SiLU)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.lift(self.change(self.first(self.into(x))))))


broad = zoo.healthy("arm-residual-24-between-two-stages", lambda s: live(Thin(24), arm(s), "AdamW", 4e-3, 70))
zoo.sick(
    "arm-residual-1-between-two-stages",
    lambda s: live(Thin(1), arm(s), "AdamW", 4e-3, 70),
    lags(0.2),
    *NARROW,
    layer=("change", "lift"),
    control=broad,
)


def spoilt(seed: int, fill: float) -> Setup:
    """A value that is missing is written as a large number in one row of some batches."""
    now = every(8, 5)

    def change(x: Tensor) -> Tensor:
        if not now():
            return x
        x = x.clone()
        x[0, 2] = fill
        return x

    model = Rows(10, 48, [Layer(48, nn.ReLU, norm=False) for _ in range(3)], 1)
    return live(model, flights(seed).mapped(change), "Adam", 2e-3, 80)


filled = zoo.healthy("flights-residual-missing-as-0", lambda s: spoilt(s, 0.0))
zoo.sick(
    "flights-residual-missing-as-minus-9999",
    lambda s: spoilt(s, -9999.0),
    gradient_norms_spread(50),
    *JUMPS,
    also={"bad_batch", "input_scales", "loss_grows", "NUMERICAL", "DEAD"},
    control=filled,
)

# --- pictures


class Basic(nn.Module):
    """Two convolutions with batch norms and the sum."""

    def __init__(self, width: int, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.act1, self.act2 = act(), act()

    def forward(self, x: Tensor) -> Tensor:
        return self.act2(x + self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))


class Mixer(nn.Module):
    """Patches become vectors, which are mixed over places and over channels, each beside a skip."""

    def __init__(self, first: int, width: int = 24) -> None:
        super().__init__()
        self.patches, self.lift = nn.Conv2d(1, first, 3, 3), nn.Conv2d(first, width, 1)
        self.places = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(2))
        self.points = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.norms, self.fc = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2)), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(self.patches(x))
        for place, point, norm in zip(self.places, self.points, self.norms, strict=True):
            x = x + F.gelu(place(x))
            x = norm(x + F.gelu(point(x)))
        return self.fc(x.mean(dim=(2, 3)))


patches = zoo.healthy("tiles-patches-as-vectors-of-16", lambda s: live(Mixer(16), tiles(s), "AdamW", 5e-3, 70))
zoo.sick(
    "tiles-patches-as-one-number",
    lambda s: live(Mixer(1), tiles(s), "AdamW", 5e-3, 70),
    both(lags(0.1), lasting(channel_rank("patches", 1.01))),
    *NARROW,
    layer=("patches", "lift"),
    control=patches,
)


class Weighed(nn.Module):
    """Weight norm by hand; the last convolution of a branch starts at zero, so that it has no direction."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.g = nn.Parameter(torch.full((width, 1, 1, 1), 0.3))
        self.conv2.weight.data *= start

    def forward(self, x: Tensor) -> Tensor:
        v = self.conv2.weight
        w = self.g * v / v.flatten(1).norm(dim=1)[:, None, None, None]
        return x + F.conv2d(F.relu(self.conv1(x)), w, self.conv2.bias, padding=1)


def weighed(seed: int, start: float) -> Setup:
    model = pooled(block(1, 16, pool=True), Weighed(16, start), Weighed(16, start), width=16, out=8)
    return live(model, tiles(seed), "Adam", 4e-3, 60)


directed = zoo.healthy("tiles-weight-norm-by-hand", lambda s: weighed(s, 1.0))
zoo.sick(
    "tiles-weight-norm-by-hand-of-zeros",
    lambda s: weighed(s, 0.0),
    breaks,
    "NUMERICAL",
    layer=("1.conv2", "1", "2.conv2", "2"),
    also={"loss_nonfinite"},
    control=directed,
)


def quick(seed: int, lr: float) -> Setup:
    model = nn.Sequential(nn.Conv1d(3, 24, 5, padding=2), Track(24), Track(24), nn.Flatten(), nn.Linear(960, 6))
    return live(model, tracks(seed), "Adam", lr, 60)


class Track(nn.Module):
    """A branch over time."""

    def __init__(self, width: int, kernel: int = 5) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv1d(width, width, kernel, padding=kernel // 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.conv2(F.relu(self.conv1(x)))


rate = zoo.healthy("tracks-residual-adam-2e-3", lambda s: quick(s, 2e-3))
zoo.sick("tracks-residual-adam-1", lambda s: quick(s, 1.0), diverges(10), *RUNS_AWAY, also=BLOWN, control=rate)


class Bounded(nn.Module):
    """A block that ends in a bounded activation; what goes in may be far beyond its bounds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(width, width, 3, padding=1), nn.Hardtanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.conv(x))


def bounded(seed: int, factor: float) -> Setup:
    model = nn.Sequential(nn.Conv2d(6, 16, 3, padding=1), Bounded(16), Bounded(16), nn.Conv2d(16, 5, 1))
    return live(model, bands(seed).mapped(lambda x: factor * x), "Adam", 3e-3, 60)


within = zoo.healthy("bands-bounded-blocks-unit-inputs", lambda s: bounded(s, 1.0))
zoo.sick(
    "bands-bounded-blocks-raw-counts",
    lambda s: bounded(s, 1000.0),
    both(lasting(saturated("1.act", "hardtanh", 0.9)), worse(1.5)),
    "SATURATION",
    "VANISHING",
    "DEAD",
    layer=("0", "1.conv", "1.act"),
    also={"input_scales", "DISCONNECTED", "UNSTABLE", "EXPLODING", "SLOW"},
    control=within,
)


def shut(seed: int, bias: float) -> Setup:
    """The first norm of the stem and of each branch is loaded with a shift that keeps the units quiet."""
    model = pooled(block(3, 16, pool=True), Basic(16), Basic(16), width=16, out=6)
    for each in (model[0][1], model[1].bn1, model[2].bn1):
        nn.init.constant_(each.bias, bias)
    return live(model, shapes(seed), "SGD", 0.02, 60, momentum=0.9)


open_ = zoo.healthy("shapes-resnet-sgd", lambda s: shut(s, 0.0))
zoo.sick(
    "shapes-resnet-stem-and-branches-shifted-by-minus-8",
    lambda s: shut(s, -8.0),
    both(lasting(dead("0.2", 0.99), dead("1.act1", 0.99)), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=("0.0", "0.1", "0.2", "1.conv1", "1.bn1", "1.act1", "2.conv1", "2.bn1", "2.act1", "1.conv2", "2.conv2"),
    also={"loss_stuck", "never_moves", "VANISHING", "LOW_RANK", "BOTTLENECK", "SLOW"},
    control=open_,
)

# --- others that train well


zoo.healthy("crops-four-blocks-pre-norm", lambda s: sown(s, [Layer(32) for _ in range(4)], "AdamW", 4e-3, 60))
zoo.healthy(
    "crops-twelve-blocks-pre-norm-clipped",
    lambda s: sown(s, [Layer(32, nn.GELU) for _ in range(12)], "Adam", 2e-3, 50, clip=1.0),
)
zoo.healthy(
    "crops-blocks-sgd-one-cycle",
    lambda s: sown(
        s,
        [Layer(32, nn.SiLU) for _ in range(4)],
        "SGD",
        0.15,
        80,
        momentum=0.9,
        rate=lambda t: (t + 1) / 20 if t < 20 else 1 - (t - 20) / 61,
    ),
)


class Post(nn.Module):
    """The norm comes after the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(width, 64), nn.Linear(64, width), nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.drop(self.fc2(F.relu(self.fc1(x)))))


zoo.healthy(
    "crops-post-norm-warm-up",
    lambda s: sown(s, [Post(32) for _ in range(4)], "Adam", 3e-3, 70, rate=lambda t: min(1.0, (t + 1) / 20)),
)


class Shared(nn.Module):
    """One block, used five times."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.block, self.head = nn.Linear(2, 24), Layer(24, nn.Tanh, norm=False), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for _ in range(5):
            x = self.block(x)
        return self.head(x)


zoo.healthy("rings-one-block-five-times", lambda s: live(Shared(), rings(s), "Adam", 1e-2, 70))


class Half(nn.Module):
    """Coupling: one half of the stream is moved by what the other says."""

    def __init__(self, width: int, flip: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width // 2, 48), nn.SiLU(), nn.Linear(48, width // 2))
        self.flip = flip

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        return torch.cat([a, b + self.net(a)] if self.flip else [a + self.net(b), b], dim=1)


zoo.healthy(
    "arm-four-couplings",
    lambda s: live(Rows(6, 48, [Half(48, i % 2 == 0) for i in range(4)], 10), arm(s), "Adam", 5e-3, 60),
)


class Words(nn.Module):
    """Vectors of ingredients, their mean, residual layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rest = nn.Embedding(80, 32), Rows(32, 32, [Layer(32), Layer(32)], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.table(x).mean(dim=1))


zoo.healthy("recipes-residual-over-a-mean", lambda s: live(Words(), recipes(s), "AdamW", 6e-3, 70))


def residual_code(seed: int) -> Setup:
    """An auto-encoder with blocks on both sides of a code that is wide enough."""
    model = nn.Sequential(
        nn.Linear(40, 48), Layer(48, nn.ELU), nn.Linear(48, 10), nn.Linear(10, 48), Layer(48, nn.ELU), nn.Linear(48, 40)
    )
    return live(model, survey(seed), "Adam", 4e-3, 80)


zoo.healthy("survey-residual-autoencoder-code-10-of-7", residual_code)


def half_frozen(seed: int) -> Setup:
    """Blocks trained on another task; the first ones are kept, the last one and the head are tuned."""
    model = Rows(14, 32, [Layer(32) for _ in range(4)], 6)
    pretrain(pair(model, crops(seed + 70)), 50)
    model.head = nn.Linear(32, 6)
    frozen(model, "into", "blocks.0", "blocks.1", "blocks.2")
    return live(model, crops(seed), "AdamW", 5e-3, 70)


zoo.healthy("crops-last-block-and-head-tuned", half_frozen)


class Adapter(nn.Module):
    """A frozen block with a small trained branch beside it that starts at zero."""

    def __init__(self, old: nn.Module, width: int) -> None:
        super().__init__()
        self.old = old.requires_grad_(False)
        self.down, self.up = nn.Linear(width, 6), nn.Linear(6, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.old(x)
        return x + self.up(F.gelu(self.down(x)))


def adapted(seed: int) -> Setup:
    model = Rows(14, 32, [Layer(32) for _ in range(3)], 6)
    pretrain(pair(model, crops(seed + 70)), 50)
    model.blocks = nn.ModuleList(Adapter(each, 32) for each in model.blocks)
    model.into.requires_grad_(False)
    model.head = nn.Linear(32, 6)
    return live(model, crops(seed), "Adam", 1e-2, 70)


zoo.healthy("crops-adapters-of-6-beside-frozen-blocks", adapted)

zoo.healthy(
    "tiles-resnet-nesterov",
    lambda s: live(
        pooled(block(1, 16, pool=True), Basic(16), Basic(16), width=16, out=8),
        tiles(s),
        "SGD",
        0.05,
        50,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-4,
    ),
)
zoo.healthy(
    "shapes-resnet-elu-adamw",
    lambda s: live(
        pooled(block(3, 16, nn.ELU, pool=True), Basic(16, nn.ELU), Basic(16, nn.ELU), width=16, out=6),
        shapes(s),
        "AdamW",
        3e-3,
        50,
    ),
)


class Wider(nn.Module):
    """A block that halves the picture and doubles the width; the skip is a strided convolution."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.short = nn.BatchNorm2d(b), nn.BatchNorm2d(b), nn.Conv2d(a, b, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.short(x))


zoo.healthy(
    "shapes-resnet-widening",
    lambda s: live(pooled(block(3, 12), Wider(12, 24), Wider(24, 32), width=32, out=6), shapes(s), "Adam", 3e-3, 50),
)


class Blended(nn.Module):
    """A learned share of the new and of the old, for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width)
        self.share = nn.Parameter(torch.full((width, 1, 1), -1.0))

    def forward(self, x: Tensor) -> Tensor:
        g = torch.sigmoid(self.share)
        return (1 - g) * x + g * F.silu(self.norm(self.conv(x)))


zoo.healthy(
    "tiles-blended-blocks",
    lambda s: live(
        pooled(block(1, 16, pool=True), Blended(16), Blended(16), Blended(16), width=16, out=8),
        tiles(s),
        "Adam",
        4e-3,
        60,
    ),
)


class Growing(nn.Module):
    """Every layer sees all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(1 + 8 * i, 8, 3, padding=1) for i in range(4))
        self.norms, self.fc = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4)), nn.Linear(33, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.cat([x, F.relu(norm(layer(x)))], dim=1)
        return self.fc(x.mean(dim=(2, 3)))


zoo.healthy("tiles-dense-net-growth-of-8", lambda s: live(Growing(), tiles(s), "Adam", 4e-3, 50))


class Denoise(nn.Module):
    """What is to be taken away is told by blocks at full size; the last layer starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.blocks, self.out = nn.Conv2d(1, 16, 3, padding=1), Basic(16), nn.Conv2d(16, 1, 3, padding=1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.out(self.blocks(self.into(x)))


zoo.healthy("dunes-noise-by-a-residual-of-zero", lambda s: live(Denoise(), dunes(s, noise=0.7), "Adam", 4e-3, 60))
zoo.healthy("scans-residual-dots", lambda s: live(dots(1, 3), scans(s), "Adam", 4e-3, 40))
zoo.healthy("coins-residual-map-sgd", lambda s: live(dots(1, 1), coins(s), "SGD", 0.1, 60, momentum=0.9))
zoo.healthy("bands-residual-maps-rmsprop", lambda s: live(dots(6, 5), bands(s), "RMSprop", 2e-3, 60))


def dots(a: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, 16, 3, padding=1), Basic(16), Basic(16), nn.Conv2d(16, out, 1))


def no_decay(seed: int) -> Setup:
    """Norms and biases are kept from decay, as recipes have it."""
    model = pooled(block(1, 16, pool=True), Basic(16), Basic(16), width=16, out=8)
    flat = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2]}, {"params": flat, "weight_decay": 0.0}]
    return with_groups(model, tiles(seed), groups, lr=3e-3, weight_decay=0.1, steps=50)


zoo.healthy("tiles-resnet-no-decay-on-norms", no_decay)


class Tcn(nn.Module):
    """Dilated residual layers over time, the mean of the end."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv1d(3, 24, 1)
        self.layers = nn.ModuleList(nn.Conv1d(24, 24, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.norms, self.fc = nn.ModuleList(nn.BatchNorm1d(24) for _ in range(3)), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.relu(norm(layer(x)))
        return self.fc(x.abs().mean(dim=2))


zoo.healthy("tracks-residual-dilated", lambda s: live(Tcn(), tracks(s), "NAdam", 3e-3, 50))
zoo.healthy(
    "tracks-residual-cosine",
    lambda s: live(Tcn(), tracks(s), "AdamW", 5e-3, 60, rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * t / 60)),
)
