# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual residual networks with the mistakes that people make, their twins, and others that train well.

Half: usual.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import SQUEEZED, Head, conv, worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he
from validation.cases._plain_nets import BLOWN, with_groups
from validation.cases._usual_nets import (
    UNLEARNED,
    baskets,
    bikes,
    calls,
    lakes,
    mixtures,
    motors,
    rhythms,
    species,
    stamps,
    veils,
    weaves,
)
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.signal import both, channel_rank, dead, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import frozen, live, pretrain

zoo = Zoo("residual", half="usual", proof=thrives(0.2, most_dead=0.5))

# --- too narrow


class Beats(nn.Module):
    """Blocks explain the window bit by bit, each by some numbers that a basis turns into a past and a future."""

    def __init__(self, size: int, blocks: int = 3) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, size))
            for _ in range(blocks)
        )
        self.past = nn.ModuleList(nn.Linear(size, 30, bias=False) for _ in range(blocks - 1))
        self.future = nn.ModuleList(nn.Linear(size, 10, bias=False) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        said = x.new_zeros(len(x), 10)
        for net, past, future in zip(self.nets, [*self.past, None], self.future, strict=True):
            theta = net(x)
            x, said = x - past(theta) if past else x, said + future(theta)
        return said


class Basis(nn.Module):
    """One such block, with layers around it that keep what they add to."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(30, 64), nn.GELU(), nn.Linear(64, 30)) for _ in range(2))
        self.theta, self.basis = nn.Linear(30, size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.basis(self.theta(x))


basis = zoo.healthy("rhythms-future-of-12-curves", lambda s: live(Basis(12), rhythms(s), "Adam", 3e-3, 80))
zoo.sick(
    "rhythms-future-of-1-curve",
    lambda s: live(Basis(1), rhythms(s), "Adam", 3e-3, 80),
    both(lags(0.2), lasting(rank_at_most("theta", 1.01))),
    *NARROW,
    layer=("theta", "basis"),
    also=SQUEEZED,
    control=basis,
)


class Dense(nn.Module):
    """What was seen is put beside; between two stages a one-by-one kernel brings the channels down."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.stem = conv(3, 16, 2)
        self.first = nn.ModuleList([conv(16, 8), conv(24, 8)])
        self.between = nn.Sequential(nn.Conv2d(32, kept, 1), nn.AvgPool2d(2))
        self.second = nn.ModuleList([conv(kept, 8), conv(kept + 8, 8)])
        self.head = Head(kept + 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.first:
            x = torch.cat([x, layer(x)], dim=1)
        x = self.between(x)
        for layer in self.second:
            x = torch.cat([x, layer(x)], dim=1)
        return self.head(x)


dense = zoo.healthy("stamps-dense-between-stages-16", lambda s: live(Dense(16), stamps(s), "Adam", 3e-3, 60))
zoo.sick(
    "stamps-dense-between-stages-1",
    lambda s: live(Dense(1), stamps(s), "Adam", 3e-3, 60),
    both(lags(0.12), lasting(channel_rank("between.0", 1.01))),
    *NARROW,
    layer=("between.0", "between", "second.0", "second.0.0"),
    also=SQUEEZED,
    control=dense,
)


class Block(nn.Module):
    """Norm, two layers, a skip; what the branch says may be scaled."""

    def __init__(self, width: int, act: type[nn.Module] = nn.ReLU, norm: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.a, self.act, self.b = nn.Linear(width, width), act(), nn.Linear(width, width)

    def branch(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Rows(nn.Module):
    """A stem, blocks, a head; the stem may lead through a waist, and a config says how the blocks are joined."""

    def __init__(self, sizes: Sequence[int], blocks: int = 4, waist: int = 0, join: str = "add", **more) -> None:
        super().__init__()
        width = sizes[1]
        stem = [nn.Linear(sizes[0], waist), nn.Linear(waist, width)] if waist else [nn.Linear(sizes[0], width)]
        self.stem, self.join = nn.Sequential(*stem), join
        self.blocks = nn.ModuleList(Block(width, **more) for _ in range(blocks))
        self.head = nn.Linear(width, sizes[2])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.join == "add":
                x = block(x)
            elif self.join == "twice":  # the block has its own skip already
                x = x + block(x)
            else:  # the mean of the skip and the branch
                x = block(x) * 0.5
        return self.head(x)


def forces(seed: int, waist: int) -> Setup:
    return live(Rows((8, 48, 8), waist=waist, act=nn.SiLU), motors(seed), "AdamW", 4e-3, 70)


wide = zoo.healthy("motors-residual-currents-as-8-numbers", lambda s: forces(s, 8))
zoo.sick(
    "motors-residual-currents-as-1-number",
    lambda s: forces(s, 1),
    both(lags(0.2), lasting(rank_at_most("stem.0", 1.01))),
    *NARROW,
    layer=("stem.0", "stem.1", "stem"),
    also=SQUEEZED,
    control=wide,
)

# --- size of the signal


def joined(seed: int, join: str, blocks: int = 14) -> Setup:
    model = Rows((18, 40, 12), blocks, join=join, act=nn.ReLU, norm=False)
    for block in model.blocks:
        nn.init.normal_(block.b.weight, std=0.02)
    return live(model, species(seed), "SGD", 0.02, 80, momentum=0.9)


added = zoo.healthy("species-14-blocks-skip-added-once", lambda s: joined(s, "add"))
zoo.sick(
    "species-14-blocks-skip-added-twice",
    lambda s: joined(s, "twice"),
    both(gradient_ratio("stem.0", "blocks.13.b", above=100), worse(3.0)),
    *RUNS_AWAY,
    also=BLOWN,
    control=added,
)
zoo.sick(
    "species-14-blocks-mean-of-skip-and-branch",
    lambda s: joined(s, "mean"),
    both(lasting(gradient_ratio("stem.0", "blocks.13.b", below=1e-2)), lags(0.2)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", *UNLEARNED},
    control=added,
)


class Highway(nn.Module):
    """Gates choose between a layer and what comes in; their bias says which of them at first."""

    def __init__(self, bias: float, depth: int = 12, width: int = 40) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(18, width), nn.Linear(width, 12)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        for gate in self.gates:
            nn.init.constant_(gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            t = torch.sigmoid(gate(x))
            x = t * torch.tanh(layer(x)) + (1 - t) * x
        return self.head(x)


def highway(seed: int, bias: float) -> Setup:
    return live(Highway(bias), species(seed), "SGD", 0.05, 80, momentum=0.9)


carry = zoo.healthy("species-highway-gates-carry-at-first", lambda s: highway(s, -2.0))
zoo.sick(
    "species-highway-gates-forget-at-first",
    lambda s: highway(s, 5.0),
    both(gradient_ratio("stem", "layers.11", below=1e-2), lags(0.2)),
    "VANISHING",
    "SATURATION",
    also={"LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=carry,
)


class Glu(nn.Module):
    """Gated branches beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 64), nn.Linear(64, 8)
        self.value = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.gate = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for value, gate in zip(self.value, self.gate, strict=True):
            x = x + value(x) * gate(x)
        return self.head(x)


def fused(seed: int, scale: float) -> Setup:
    """Tanh between blocks, upon millivolts or volts."""
    parts = nn.ModuleList(nn.Linear(40, 40) for _ in range(4))
    model = Bounded(parts)
    return live(model, motors(seed).mapped(lambda x: scale * x), "Adam", 4e-3, 80)


class Bounded(nn.Module):
    """A bounded stem, and blocks whose sum is bounded again."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.stem, self.first, self.layers, self.head = nn.Linear(8, 40), nn.Tanh(), layers, nn.Linear(40, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x))
        for layer in self.layers:
            x = torch.tanh(x + layer(x))
        return self.head(x)


volts = zoo.healthy("motors-bounded-sums-in-amperes", lambda s: fused(s, 1.0))
zoo.sick(
    "motors-bounded-sums-in-milliamperes",
    lambda s: fused(s, 1000.0),
    both(lasting(saturated("first", "tanh", 0.9)), worse(1.5)),
    "SATURATION",
    "VANISHING",
    layer=("stem", "first"),
    also={"input_scales", "LOW_RANK", "BOTTLENECK", "SLOW", "loss_stuck"},
    control=volts,
)

# --- steps


def warmed(seed: int, capped: bool) -> Setup:
    """The rate is warmed up over five steps; what ends the warm-up may be missing."""
    model = nn.Sequential(conv(1, 16), Pair(16), Pair(16), nn.AvgPool2d(2), Head(16, 8))
    return live(
        model,
        weaves(seed, batch=24),
        "Adam",
        5e-3,
        80,
        rate=lambda t: min(1.0, (t + 1) / 5) if capped else (t + 1) ** 2,
    )


class Pair(nn.Module):
    """Two convolutions and a skip."""

    def __init__(self, width: int, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.a, self.b = conv(width, width, stride, act=act), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm, self.act = nn.BatchNorm2d(width), act()
        self.skip = nn.AvgPool2d(2) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.skip(x) + self.norm(self.b(self.a(x))))


capped = zoo.healthy("weaves-resnet-warm-up-ends", lambda s: warmed(s, True))
zoo.sick(
    "weaves-resnet-warm-up-grows-on",
    lambda s: warmed(s, False),
    both(diverges(3), worse(3.0)),
    *JUMPS,
    "NUMERICAL",
    also=BLOWN,
    control=capped,
)


class Counter(nn.Module):
    """Vectors of kinds beside numbers, then blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in (24, 7, 4))
        self.net = Rows((23, 48, 1), 3)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        return self.net(torch.cat([*(table(kinds[:, i]) for i, table in enumerate(self.tables)), x], dim=1))


zoo.healthy("bikes-residual-adamw-3e-3", lambda s: live(Counter(), bikes(s), "AdamW", 3e-3, 80))

# --- cut off and dead


class Dropped(nn.Module):
    """Whole branches are left out at random, the later the oftener; the chance of the last is given."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(18, 48), nn.Linear(48, 12)
        self.blocks, self.chances = nn.ModuleList(Block(48) for _ in range(5)), torch.linspace(0, most, 5).tolist()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, chance in zip(self.blocks, self.chances, strict=True):
            keep = (torch.rand(len(x), 1) >= chance).float()
            x = x + keep * block.branch(x) / max(1 - chance, 0.1)
        return self.head(x)


depth = zoo.healthy("species-stochastic-depth-to-0.3", lambda s: live(Dropped(0.3), species(s), "Adam", 3e-3, 70))
zoo.sick(
    "species-stochastic-depth-to-1",
    lambda s: live(Dropped(1.0), species(s), "Adam", 3e-3, 70),
    lasting(no_gradient("blocks.4")),
    *CUT_OFF,
    layer=("blocks.4.a", "blocks.4.b", "blocks.4", "blocks.4.norm"),
    also={"detached", "never_moves"},
    control=depth,
)


class Frozen(nn.Module):
    """A trained body gives features, new blocks learn on top; the input of the adapters may be cut by `.data`."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.stem, self.lift, self.cut = nn.Linear(48, 64), nn.Linear(64, 64), cut
        self.blocks, self.head = nn.ModuleList(Block(64, nn.GELU) for _ in range(2)), nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.lift(torch.tanh(self.stem(x))))
        if self.cut:
            x = x.data
        for block in self.blocks:
            x = block(x)
        return self.head(x)


linked = zoo.healthy("mixtures-residual-stem-learns", lambda s: live(Frozen(False), mixtures(s), "Adam", 3e-3, 70))
zoo.sick(
    "mixtures-residual-stem-cut-by-data",
    lambda s: live(Frozen(True), mixtures(s), "Adam", 3e-3, 70),
    lasting(no_gradient("stem", "lift")),
    *CUT_OFF,
    layer=("lift", "stem"),
    also={"detached", "never_moves"},
    control=linked,
)


class Plain(nn.Module):
    """Two convolutions without norms and a skip, small at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.2 * self.b(self.act(self.a(x)))


def lowered(seed: int, bias: float) -> Setup:
    """The bias of a detector's head is given to the stem, from which the skips take all that they carry."""
    model = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), Plain(24), nn.AvgPool2d(2), Plain(24), Head(24, 10))
    nn.init.constant_(he(model)[0].bias, bias)
    return live(model, stamps(seed), "Adam", 3e-3, 70)


stem = zoo.healthy("stamps-plain-skips-stem-bias-0", lambda s: lowered(s, 0.0))
zoo.sick(
    "stamps-plain-skips-stem-bias-minus-9",
    lambda s: lowered(s, -9.0),
    both(lasting(dead("1", 0.9)), lags(0.3)),
    "DEAD",
    "DISCONNECTED",
    layer=("0", "1"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=stem,
)

# --- numbers


class Root(nn.Module):
    """Norms by the root of the mean square, written by hand; no layer has a bias."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.stem, self.head, self.eps = nn.Linear(60, 48, bias=False), nn.Linear(48, 8), eps
        self.blocks = nn.ModuleList(nn.Linear(48, 48, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + F.silu(block(x / (x.square().mean(dim=1, keepdim=True) + self.eps).sqrt()))
        return self.head(x)


def rooted(seed: int, eps: float) -> Setup:
    return live(Root(eps), baskets(seed, empty=0.004), "Adam", 3e-3, 70)


eps = zoo.healthy("baskets-some-empty-root-norm-eps", lambda s: rooted(s, 1e-6))
zoo.sick(
    "baskets-some-empty-root-norm-without-eps",
    lambda s: rooted(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "bad_batch"},
    control=eps,
)

# --- others that train well

zoo.healthy("rhythms-three-blocks-explain-in-turn", lambda s: live(Beats(8), rhythms(s), "Adam", 2e-3, 80))
zoo.healthy("motors-gated-branches", lambda s: live(Glu(), motors(s), "Adam", 3e-3, 70))
zoo.healthy("species-rows-pre-norm", lambda s: live(Rows((18, 48, 12)), species(s), "AdamW", 3e-3, 60))
zoo.healthy("species-rows-8-blocks-gelu-clipped", lambda s: live(
    Rows((18, 48, 12), 8, act=nn.GELU), species(s), "AdamW", 3e-3, 60, clip=1.0, rate=lambda t: min(1.0, (t + 1) / 10)
))  # fmt: skip
zoo.healthy("species-rows-batches-of-4", lambda s: live(Rows((18, 48, 12), 2), species(s, batch=4), "Adam", 2e-3, 110))
zoo.healthy("motors-rows-tanh-sgd", lambda s: live(
    Rows((8, 48, 8), 3, act=nn.Tanh), motors(s), "SGD", 0.05, 80, momentum=0.9
))  # fmt: skip


def zeroed(seed: int) -> Setup:
    """Every branch starts at nothing, so that the net is its stem and its head at first."""
    model = Rows((18, 48, 12), 6)
    for block in model.blocks:
        nn.init.zeros_(block.b.weight)
        nn.init.zeros_(block.b.bias)
    return live(model, species(seed), "Adam", 3e-3, 70)


zoo.healthy("species-branches-start-at-nothing", zeroed)


def resumed(seed: int) -> Setup:
    model = Rows((18, 48, 12), 3)
    pretrain(live(model, species(seed + 9)), 40)
    return live(frozen(model, "stem", "blocks.0"), species(seed), "AdamW", 3e-3, 70)


zoo.healthy("species-stem-and-first-block-frozen", resumed)


def grouped(seed: int) -> Setup:
    model = Rows((18, 48, 12), 3)
    flat = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05}, {"params": flat}]
    return with_groups(model, species(seed), groups, lr=3e-3, weight_decay=0.0)


zoo.healthy("species-rows-decay-on-matrices-alone", grouped)


def resnet(out: int = 10, channels: int = 3, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(conv(channels, 16, 2, act=act), Pair(16, act=act), Pair(16, 2, act), Head(16, out))


zoo.healthy("stamps-resnet-sgd-cosine", lambda s: live(
    resnet(), stamps(s), "SGD", 0.1, 70, momentum=0.9, weight_decay=5e-4, rate=lambda t: 1 - t / 75
))  # fmt: skip
zoo.healthy("stamps-resnet-silu-adamw", lambda s: live(resnet(act=nn.SiLU), stamps(s), "AdamW", 4e-3, 60))
zoo.healthy("stamps-resnet-batches-of-8", lambda s: live(resnet(), stamps(s, batch=8), "Adam", 3e-3, 80))
zoo.healthy("weaves-resnet-label-smoothing", lambda s: live(
    resnet(8, 1),
    weaves(s, size=16).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.2)),
    "Adam", 5e-3, 70,
))  # fmt: skip


class Clear(nn.Module):
    """Blocks at full size that take the noise off."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 16, 3, padding=1), nn.Sequential(Pair(16), Pair(16))
        self.out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.blocks(self.stem(x)))


zoo.healthy("veils-residual-noise", lambda s: live(Clear(), veils(s), "Adam", 3e-3, 60))
zoo.healthy("lakes-residual-map", lambda s: live(
    nn.Sequential(conv(2, 12), Pair(12), nn.Conv2d(12, 1, 1)), lakes(s), "AdamW", 5e-3, 60
))  # fmt: skip


class Waves(nn.Module):
    """Gated dilated convolutions over a record, each with a skip to the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv1d(1, 16, 3, padding=1), nn.Linear(16, 8)
        self.layers = nn.ModuleList(nn.Conv1d(16, 32, 3, padding=2**i, dilation=2**i) for i in range(4))
        self.outs = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.stem(x), 0
        for layer, out in zip(self.layers, self.outs, strict=True):
            a, b = layer(x).chunk(2, dim=1)
            said = out(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + said, total + said
        return self.head(total.amax(dim=2))


zoo.healthy("calls-gated-dilated-skips", lambda s: live(Waves(), calls(s), "Adam", 6e-3, 90))
