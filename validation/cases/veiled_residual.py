# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks of minerals, bakeries, tiles and calls: one fault each, their twins, and odd healthy ones.

Half: veiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import bakes, calls, ledgers, minerals, tiles
from validation.evidence.live import breaks, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move
from validation.labels import DEADENS, ONE_WAY, RUNS_AWAY
from validation.nets import Stream
from validation.setups import live
from validation.tasks import every

zoo = Zoo("residual", half="veiled", proof=thrives())
W = 32


class Branch(nn.Module):
    """Two dense layers beside a skip; `skip` and `share` weigh the stream and what is added."""

    def __init__(self, norm: bool = True, skip: float = 1.0, share: float = 1.0, width: int = W) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.fc1, self.fc2, self.skip, self.share = nn.Linear(width, width), nn.Linear(width, width), skip, share

    def forward(self, x: Tensor) -> Tensor:
        return self.skip * x + self.share * self.fc2(F.relu(self.fc1(self.norm(x))))


def stones(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Stream(14, W, 7, blocks), minerals(seed), **{"lr": 3e-3, "steps": 50, **more})


def breads(seed: int, blocks: list[nn.Module], **more) -> Setup:
    return live(Stream(10, W, 1, blocks), bakes(seed), **{"lr": 3e-3, "steps": 60, **more})


# --- narrow


class Transition(nn.Module):
    """Between two stages the stream is projected to `size` numbers and widened."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.shrink, self.widen = nn.Linear(W, size), nn.Linear(size, W)

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(self.shrink(x))


def staged(seed: int, size: int) -> Setup:
    return stones(seed, [Branch(), Transition(size), Branch()])


through = zoo.healthy("minerals-stages-joined-by-16", lambda s: staged(s, 16))
zoo.sick(
    "minerals-stages-joined-by-1-number",
    lambda s: staged(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("blocks.1.shrink", "blocks.1.widen"),
    also={"LOW_RANK"},
    control=through,
)


class Wide(nn.Module):
    """Residual blocks over pictures, a stem of so many channels before them."""

    def __init__(self, stem: int, deep: int = 2) -> None:
        super().__init__()
        self.stem, self.lift = nn.Conv1d(2, stem, 7, 2), nn.Conv1d(stem, 16, 1)
        self.convs = nn.ModuleList(nn.Conv1d(16, 16, 5, padding=2) for _ in range(deep))
        self.norms, self.head = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(deep)), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(self.stem(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        return self.head(x.square().mean(dim=2))


wide_stem = zoo.healthy("calls-stem-of-16-channels", lambda s: live(Wide(16), calls(s), lr=1e-2, steps=60))


class Rows(nn.Module):
    """Rows are encoded by residual blocks, kept as `size` numbers, decoded by others."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enter, self.first, self.code = nn.Linear(28, W), Branch(), nn.Linear(W, size)
        self.decode, self.second, self.leave = nn.Linear(size, W), Branch(), nn.Linear(W, 28)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.second(self.decode(self.code(self.first(self.enter(x))))))


rows = zoo.healthy("ledgers-residual-code-of-8", lambda s: live(Rows(8), ledgers(s), lr=5e-3, steps=80))
zoo.sick(
    "ledgers-residual-code-of-1",
    lambda s: live(Rows(1), ledgers(s), lr=5e-3, steps=80),
    lags(0.15),
    "BOTTLENECK",
    layer=("code", "decode"),
    also={"LOW_RANK"},
    control=rows,
)

# --- growing, dying


calm = zoo.healthy("minerals-8-blocks-with-norms", lambda s: stones(s, [Branch() for _ in range(8)], lr=1e-3))
zoo.sick(
    "minerals-12-skips-times-2",
    lambda s: stones(s, [Branch(skip=2.0) for _ in range(12)], lr=1e-6),
    lasting(gradient_ratio("enter", "blocks.11.fc2", above=1e3)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL"},
    control=calm,
)
zoo.sick(
    "minerals-14-skips-times-0.3",
    lambda s: stones(s, [Branch(False, 0.3, 0.3) for _ in range(14)], kind="SGD", lr=0.05),
    both(lasting(gradient_ratio("enter", "blocks.13.fc2", below=1e-4)), lags(0.1)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=calm,
)
slow_enough = zoo.healthy(
    "bakes-4-branches-adam-rate-0.003", lambda s: breads(s, [Branch(False) for _ in range(4)], kind="Adam")
)
zoo.sick(
    "bakes-4-branches-adam-rate-3",
    lambda s: breads(s, [Branch(False) for _ in range(4)], kind="Adam", lr=3.0, steps=40),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING", "DISCONNECTED"},
    control=slow_enough,
)

# --- dead, cut


def shifted(seed: int, bias: float) -> Setup:
    """The branches of the middle begin with a bias."""
    blocks = [Branch() for _ in range(4)]
    for block in blocks[1:3]:
        nn.init.constant_(block.fc1.bias, bias)
    return stones(seed, blocks)


awake = zoo.healthy("minerals-middle-branches-begin-at-0", lambda s: shifted(s, 0.0))
zoo.sick(
    "minerals-middle-branches-begin-at-minus-14",
    lambda s: shifted(s, -14.0),
    lasting(never_fires("blocks.1.fc1", 0.98), never_fires("blocks.2.fc1", 0.98)),
    "DEAD",
    layer=("blocks.1.fc1", "blocks.2.fc1"),
    also={*DEADENS, *ONE_WAY},
    control=awake,
)


class Scaled(nn.Module):
    """A branch behind a learned factor; `both_zero` begins the factor and the last layer at zero."""

    def __init__(self, both_zero: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.factor = nn.Linear(W, W), nn.Linear(W, W), nn.Parameter(torch.zeros(1))
        if both_zero:
            nn.init.zeros_(self.fc2.weight)
            nn.init.zeros_(self.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.factor * self.fc2(F.silu(self.fc1(x)))


rezero = zoo.healthy("bakes-factors-begin-at-zero", lambda s: breads(s, [Scaled(False) for _ in range(4)], lr=1e-2))
zoo.sick(
    "bakes-factors-and-last-layers-begin-at-zero",
    lambda s: breads(s, [Scaled(True) for _ in range(4)], lr=1e-2),
    lasting(no_gradient("blocks")),
    "DISCONNECTED",
    "DEAD",
    "VANISHING",
    layer=tuple(f"blocks.{i}.{part}" for i in range(4) for part in ("fc1", "fc2")),
    also={*ONE_WAY, "SYMMETRY", "SLOW"},
    control=rezero,
)

# --- numbers and rates


class Ratio(nn.Module):
    """Each block is divided by the length of what it adds; `eps` keeps that from nothing."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.fc1, self.fc2 = eps, nn.Linear(W, W, bias=False), nn.Linear(W, W, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc2(F.relu(self.fc1(x)))
        return x + y / (y.norm(dim=1, keepdim=True) + self.eps)


def blank(seed: int, eps: float) -> Setup:
    """Now and then a form is handed in blank."""
    now = every(13, 8)

    def hand_in(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x[1:]]) if now() else x

    model = Stream(14, W, 7, [Ratio(eps) for _ in range(3)])
    model.enter.bias = None
    return live(model, minerals(seed).mapped(hand_in), lr=3e-3, steps=50)


filled = zoo.healthy("minerals-lengths-with-eps", lambda s: blank(s, 1e-2))
zoo.sick("minerals-lengths-of-blank-forms", lambda s: blank(s, 0.0), breaks, "NUMERICAL", control=filled)
zoo.sick(
    "minerals-8-blocks-rate-1e-10",
    lambda s: stones(s, [Branch() for _ in range(8)], lr=1e-10),
    does_not_move(steps=50),
    "SLOW",
    control=calm,
)

# --- healthy, though odd


class Gate(nn.Module):
    """A highway: the gate begins nearly shut."""

    def __init__(self) -> None:
        super().__init__()
        self.say, self.gate = nn.Linear(W, W), nn.Linear(W, W)
        nn.init.constant_(self.gate.bias, -2.5)

    def forward(self, x: Tensor) -> Tensor:
        g = torch.sigmoid(self.gate(x))
        return x + g * (torch.tanh(self.say(x)) - x)


class Narrow(nn.Module):
    """A branch of three units beside a wide stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.down, self.up = nn.LayerNorm(W), nn.Linear(W, 3), nn.Linear(3, W)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.gelu(self.down(self.norm(x))))


class Dropped(nn.Module):
    """A branch that is left out for a fifth of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = Branch()

    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.rand(len(x), 1) < 0.8).float() if self.training else 1.0
        return x + kept * (self.branch(x) - x)


class Half(nn.Module):
    """Half of the stream is turned by the other half, in turn: nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(W // 2, W // 2), nn.Linear(W // 2, W // 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        a = a + torch.tanh(self.f(b))
        return torch.cat([a, b + torch.tanh(self.g(a))], dim=1)


class Post(nn.Module):
    """The norm stands behind the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(W, 2 * W), nn.Linear(2 * W, W), nn.LayerNorm(W)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.fc2(F.gelu(self.fc1(x))))


def many(make: Callable[[], nn.Module], count: int) -> list[nn.Module]:
    return [make() for _ in range(count)]


zoo.healthy("minerals-highways-nearly-shut", lambda s: stones(s, many(Gate, 5), lr=5e-3))
zoo.healthy("minerals-branches-of-three-units", lambda s: stones(s, many(Narrow, 5)))
zoo.healthy("minerals-branches-left-out-by-chance", lambda s: stones(s, many(Dropped, 5)))
zoo.healthy("bakes-halves-that-turn-each-other", lambda s: breads(s, many(Half, 4), lr=5e-3))
zoo.healthy("minerals-norms-behind-the-sums", lambda s: stones(s, many(Post, 4)))
zoo.healthy("bakes-one-block-five-times", lambda s: breads(s, [Branch()] * 5))


class Euler(nn.Module):
    """A flow in eight small steps of one field, which is told the time."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.fc1, self.fc2, self.leave = (
            nn.Linear(10, W),
            nn.Linear(W + 1, W),
            nn.Linear(W, W),
            nn.Linear(W, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for i in range(8):
            time = torch.full_like(x[:, :1], i / 8)
            x = x + self.fc2(torch.tanh(self.fc1(torch.cat([x, time], dim=1)))) / 8
        return self.leave(x)


zoo.healthy("bakes-flow-in-eight-steps", lambda s: live(Euler(), bakes(s), lr=5e-3, steps=60))


class Dense(nn.Module):
    """Each layer reads all that came before it, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.leave = nn.ModuleList(nn.Linear(14 + 8 * i, 8) for i in range(4)), nn.Linear(14 + 32, 7)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], dim=1)
        return self.leave(x)


zoo.healthy("minerals-all-that-came-before", lambda s: live(Dense(), minerals(s), lr=5e-3, steps=50))


class Pictures(nn.Module):
    """Blocks of two convolutions with batch norms, the last gain of which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4))
        self.norms, self.head = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4)), nn.Linear(16, 6)
        for norm in self.norms[1::2]:
            nn.init.zeros_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for i in (0, 2):
            h = F.relu(self.norms[i](self.convs[i](x)))
            x = F.relu(x + self.norms[i + 1](self.convs[i + 1](h)))
        return self.head(x.mean(dim=(2, 3)))


zoo.healthy("tiles-last-gains-begin-at-zero", lambda s: live(Pictures(), tiles(s), lr=1e-2, steps=60))
