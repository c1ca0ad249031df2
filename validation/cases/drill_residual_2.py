# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Gated, dense, highway and convolutional residual nets, with one fault each, their twins, and odd healthy ones.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS
from validation.setups import live
from validation.tasks import every, grains, plates, sensors, waves, weaves

zoo = Zoo("residual", half="drill", proof=thrives())


def stack(seed: int, blocks: list[nn.Module], width: int = 28, **more) -> Setup:
    model = nn.Sequential(nn.Linear(18, width), *blocks, nn.Linear(width, 7))
    return live(model, grains(seed), **{"lr": 4e-3, "steps": 50, **more})


# --- flat


class Valve(nn.Module):
    """A branch behind a learned valve: x + sigmoid(v(x)) * f(x)."""

    def __init__(self, heat: float = 1.0, bias: float = 0.0, width: int = 28) -> None:
        super().__init__()
        self.body, self.valve, self.act = nn.Linear(width, width), nn.Linear(width, width), nn.Sigmoid()
        self.valve.weight.data *= heat
        self.valve.bias.data += bias

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.valve(x)) * F.silu(self.body(x))


valves = zoo.healthy("grains-valves", lambda s: stack(s, [Valve() for _ in range(4)]))
zoo.healthy("grains-valves-nearly-shut-at-first", lambda s: stack(s, [Valve(bias=-5.0) for _ in range(6)]))
zoo.sick(
    "grains-third-valve-times-200",
    lambda s: stack(s, [Valve(), Valve(), Valve(200.0), Valve()]),
    lasting(flat_behind("3.valve", "sigmoid", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="3.valve",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=valves,
)


class Tanned(nn.Module):
    """A row and the tanh of two layers of it."""

    def __init__(self, heat: float = 1.0, width: int = 28) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.a.weight.data *= heat

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.tanh(self.a(self.norm(x))))


tanned = zoo.healthy("grains-tanh-inside", lambda s: stack(s, [Tanned() for _ in range(4)]))
zoo.sick(
    "grains-tanh-inside-first-times-150",
    lambda s: stack(s, [Tanned(150.0), *(Tanned() for _ in range(3))]),
    lasting(flat_behind("1.a", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="1.a",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=tanned,
)

# --- narrow


class Unit(nn.Module):
    """Two convolutions beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.b(F.silu(self.a(F.silu(x))))


def painted(seed: int, mid: int) -> Setup:
    """Two stages of blocks with `mid` channels at half the size in between."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        Unit(16),
        nn.Conv2d(16, mid, 2, 2),
        nn.ConvTranspose2d(mid, 16, 2, 2),
        Unit(16),
        nn.Conv2d(16, 3, 3, 1, 1),
    )
    return live(model, plates(seed), lr=5e-3, steps=50)


painted_twin = zoo.healthy("plates-two-stages-through-12", lambda s: painted(s, 12))
zoo.healthy("plates-two-stages-through-6", lambda s: painted(s, 6))
zoo.sick(
    "plates-two-stages-through-1",
    lambda s: painted(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("2", "3"),
    also={"LOW_RANK"},
    control=painted_twin,
)


class Between(nn.Module):
    """Gated blocks before and behind a projection of `mid` numbers."""

    def __init__(self, mid: int) -> None:
        super().__init__()
        self.enter, self.before = nn.Linear(14, 32), nn.ModuleList(Valve(width=32) for _ in range(2))
        self.down, self.up = nn.Linear(32, mid, bias=False), nn.Linear(mid, 32)
        self.behind, self.out = nn.ModuleList(Valve(width=32) for _ in range(2)), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.before:
            x = block(x)
        x = self.up(self.down(x))
        for block in self.behind:
            x = block(x)
        return self.out(x)


between = zoo.healthy("sensors-projection-of-24", lambda s: live(Between(24), sensors(s), lr=5e-3, steps=60))
zoo.sick(
    "sensors-projection-of-1",
    lambda s: live(Between(1), sensors(s), lr=5e-3, steps=60),
    lags(0.1),
    "BOTTLENECK",
    layer=("down", "up"),
    also={"LOW_RANK"},
    control=between,
)

# --- dead and cut


class Post(nn.Module):
    """Norm and ReLU behind the sum, as the first of these nets had it."""

    def __init__(self, width: int = 16, low: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        self.norm.bias.data -= low

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x + self.conv(x)))


def posts(seed: int, low: float) -> Setup:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), Post(), Post(low=low), Post(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6)
    )
    return live(model, weaves(seed), lr=4e-3, steps=50)


posts_twin = zoo.healthy("weaves-norm-behind-the-sum", lambda s: posts(s, 0.0))
zoo.sick(
    "weaves-norm-behind-the-sum-pushed-down",
    lambda s: posts(s, 15.0),
    lasting(dead("2.act", 0.95)),
    "DEAD",
    layer=("2.norm", "2.conv"),
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=posts_twin,
)


class Frozen(nn.Module):
    """A branch whose output is taken as data, to save memory."""

    def __init__(self, cut: bool, width: int = 28) -> None:
        super().__init__()
        self.norm, self.body, self.cut = nn.LayerNorm(width), nn.Linear(width, width), cut

    def forward(self, x: Tensor) -> Tensor:
        change = F.gelu(self.body(self.norm(x)))
        return x + (change.detach() if self.cut else change)


cut_twin = zoo.healthy("grains-branches-in-the-graph", lambda s: stack(s, [Frozen(False) for _ in range(3)]))
zoo.sick(
    "grains-second-branch-as-data",
    lambda s: stack(s, [Frozen(False), Frozen(True), Frozen(False)]),
    lasting(no_gradient("2.body")),
    "DISCONNECTED",
    layer="2.body",
    also={"DEAD"},
    control=cut_twin,
)

# --- growing and dying


class Summed(nn.Module):
    """A row and `share` of a layer of it; `keep` of the row."""

    def __init__(self, share: float, keep: float = 1.0, width: int = 28) -> None:
        super().__init__()
        self.fc, self.share, self.keep = nn.Linear(width, width), share, keep

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + self.share * torch.tanh(self.fc(x))


summed = zoo.healthy("grains-10-sums", lambda s: stack(s, [Summed(0.5) for _ in range(10)]))
zoo.sick(
    "grains-14-sums-that-keep-a-fifth",
    lambda s: stack(s, [Summed(0.2, 0.2) for _ in range(14)], kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("0", "14.fc", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW"},
    control=summed,
)


class Blown(nn.Module):
    """A row and a linear change of it, drawn too wide."""

    def __init__(self, gain: float, width: int = 28) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        nn.init.normal_(self.fc.weight, std=gain / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.leaky_relu(self.fc(x), 0.1)


blown = zoo.healthy("grains-6-wide-sums", lambda s: stack(s, [Blown(0.5) for _ in range(6)]))
zoo.sick(
    "grains-12-sums-of-gain-3",
    lambda s: stack(s, [Blown(3.0) for _ in range(12)], lr=1e-6, steps=40),
    lasting(gradient_ratio("0", "12.fc", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=blown,
)

# --- numbers, jumps, rates


class Rooted(nn.Module):
    """Divides each row by the root of its sum of squares."""

    def __init__(self, eps: float, width: int = 28) -> None:
        super().__init__()
        self.fc, self.eps = nn.Linear(width, width), eps

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.fc(x / (x.square().sum(dim=1, keepdim=True) + self.eps).sqrt()))


def rooted(seed: int, eps: float) -> Setup:
    now = every(14, 8)
    model = nn.Sequential(nn.Linear(18, 28, bias=False), Rooted(eps), Rooted(eps), nn.Linear(28, 7))
    return live(model, grains(seed).mapped(lambda x: torch.cat([0 * x[:1], x[1:]]) if now() else x), lr=4e-3, steps=42)


rooted_twin = zoo.healthy("grains-rows-of-size-one-with-eps", lambda s: rooted(s, 1e-5))
zoo.sick("grains-rows-of-size-zero", lambda s: rooted(s, 0.0), breaks, "NUMERICAL", control=rooted_twin)


def knocked(seed: int, size: float) -> Setup:
    now = every(9, 5)
    model = nn.Sequential(nn.Linear(14, 28), Blown(0.5), Blown(0.5), nn.Linear(28, 6))
    task = sensors(seed).mapped(lambda x: torch.cat([size * x[:2], x[2:]]) if now() else x)
    return live(model, task, lr=1e-3, steps=72)


knocked_twin = zoo.healthy("sensors-rows-as-they-are", lambda s: knocked(s, 1.0))
zoo.sick(
    "sensors-two-rows-times-800", lambda s: knocked(s, 800.0), gradient_norms_spread(30), *JUMPS, control=knocked_twin
)
zoo.sick(
    "grains-sums-rate-of-1e-10",
    lambda s: stack(s, [Summed(0.5) for _ in range(10)], lr=1e-10),
    does_not_move(steps=50),
    "SLOW",
    control=summed,
)

# --- odd and healthy


class Learned(nn.Module):
    """A share of each branch that is learned and begins at zero."""

    def __init__(self, width: int = 28) -> None:
        super().__init__()
        self.fc, self.share = nn.Linear(width, width), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.share * torch.tanh(self.fc(x))


zoo.healthy("grains-shares-from-zero", lambda s: stack(s, [Learned() for _ in range(8)], lr=1e-2))


class Wave(nn.Module):
    """Temporal blocks with gaps, gated, and a skip to the head from each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, 16, 1)
        self.both = nn.ModuleList(nn.Conv1d(16, 32, 3, padding=2**i, dilation=2**i) for i in range(4))
        self.mix, self.out = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(4)), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x, said = self.enter(x), 0
        for both_, mix in zip(self.both, self.mix, strict=True):
            a, b = both_(x).chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            x, said = x + mix(h), said + h
        return self.out(torch.cat([x, said], dim=1).mean(dim=2))


zoo.healthy("waves-gated-with-skips-to-the-head", lambda s: live(Wave(), waves(s), lr=5e-3, steps=50))


class Steered(nn.Module):
    """What a sample looks like scales and shifts each block."""

    def __init__(self, width: int = 28) -> None:
        super().__init__()
        self.enter, self.steer = nn.Linear(18, width), nn.Linear(18, 4 * width)
        self.fc, self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2)), nn.Linear(width, 7)
        nn.init.zeros_(self.steer.weight)
        nn.init.zeros_(self.steer.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        a, b, c, d = self.steer(x).chunk(4, dim=1)
        h = h + F.silu(self.fc[0](h) * (1 + a) + b)
        return self.out(h + F.silu(self.fc[1](h) * (1 + c) + d))


zoo.healthy("grains-blocks-steered-by-the-sample", lambda s: live(Steered(), grains(s), lr=4e-3, steps=50))


class Thin(nn.Module):
    """A wide stream with branches of two numbers."""

    def __init__(self, width: int = 28) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, 2), nn.Linear(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(torch.sigmoid(self.down(x)))


zoo.healthy("grains-branches-of-two-numbers", lambda s: stack(s, [Thin() for _ in range(5)]))


class Early(nn.Module):
    """A head behind each block; the mean of their answers counts."""

    def __init__(self, width: int = 28) -> None:
        super().__init__()
        self.enter, self.blocks = nn.Linear(18, width), nn.ModuleList(Blown(0.5) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(width, 7) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, answers = self.enter(x), []
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x)
            answers.append(head(x))
        return torch.stack(answers).mean(dim=0)


zoo.healthy("grains-a-head-behind-each-block", lambda s: live(Early(), grains(s), lr=4e-3, steps=50))
