# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks of laboratories and workshops, with one fault each, their twins, and odd healthy ones.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import dead, equal_units, gradient_ratio, lags, lasting, no_gradient, thrives
from validation.labels import DEADENS
from validation.nets import ResidualNet
from validation.setups import live
from validation.tasks import grains, molecules, plates, sensors, spectra, weaves

zoo = Zoo("residual", half="drill", proof=thrives())


class Step(nn.Module):
    """keep · x + share · branch(x), without a norm."""

    def __init__(self, width: int, keep: float = 1.0, share: float = 1.0, act: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, width), act(), nn.Linear(width, width)
        self.keep, self.share = keep, share
        nn.init.orthogonal_(self.up.weight, 1.4)
        nn.init.orthogonal_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + self.share * self.down(self.act(self.up(x)))


def measured(seed: int, blocks: list[nn.Module], width: int = 40, **more) -> Setup:
    net = ResidualNet(nn.Linear(14, width), blocks, nn.Linear(width, 6))
    return live(net, sensors(seed), **{"lr": 2e-3, "steps": 60, **more})


calm = zoo.healthy("sensors-8-steps-of-a-third", lambda s: measured(s, [Step(40, 1.0, 0.3) for _ in range(8)]))
zoo.sick(
    "sensors-16-steps-of-twice-the-branch",
    lambda s: measured(s, [Step(40, 1.0, 2.0) for _ in range(16)], lr=1e-5, steps=40),
    lasting(gradient_ratio("stem", "blocks.15.down", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=calm,
)
zoo.sick(
    "sensors-22-steps-that-keep-a-half",
    lambda s: measured(s, [Step(40, 0.5, 0.1) for _ in range(22)], kind="SGD", lr=0.02, momentum=0.9),
    lasting(gradient_ratio("stem", "blocks.21.down", below=10**-2.5)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "SLOW"},
    control=calm,
)


def stopped(seed: int, shift: float) -> Setup:
    """The bias of one branch is that of a quantised copy, off by its zero point."""
    blocks = [Step(40, 1.0, 0.5, nn.ReLU) for _ in range(4)]
    blocks[2].up.bias.data += shift
    return measured(seed, blocks)


running = zoo.healthy("sensors-4-rectified-steps", lambda s: stopped(s, 0.0))
zoo.sick(
    "sensors-4-rectified-steps-third-off-by-its-zero-point",
    lambda s: stopped(s, -25.0),
    lasting(dead("blocks.2.act", 0.97)),
    "DEAD",
    layer="blocks.2.up",
    also=DEADENS,
    control=running,
)


class Colours(nn.Module):
    """A stem of `channels`, then blocks of sixteen beside their skips."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem, self.widen = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 16, 1)
        self.blocks = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(self.stem(x))
        for block in self.blocks:
            x = x + F.silu(block(x))
        return self.out(x)


colours = zoo.healthy("plates-stem-of-16", lambda s: live(Colours(16), plates(s), lr=5e-3, steps=60))
zoo.sick(
    "plates-stem-of-1",
    lambda s: live(Colours(1), plates(s), lr=5e-3, steps=60),
    lags(0.15),
    "BOTTLENECK",
    layer=("stem", "widen"),
    also={"LOW_RANK"},
    control=colours,
)


class Leaky(nn.Module):
    """A block that keeps its old output for the sum; `fresh` computes with gradients, the other only looks."""

    def __init__(self, width: int, fresh: bool) -> None:
        super().__init__()
        self.branch, self.fresh = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()), fresh

    def forward(self, x: Tensor) -> Tensor:
        change = self.branch(x)
        return x + (change if self.fresh else x.new_tensor(change.detach().numpy()))


def cached(seed: int, fresh: bool) -> Setup:
    blocks = [Leaky(32, fresh or i != 1) for i in range(3)]
    return live(ResidualNet(nn.Linear(18, 32), blocks, nn.Linear(32, 7)), grains(seed), lr=3e-3, steps=60)


fresh = zoo.healthy("grains-three-branches", lambda s: cached(s, True))
zoo.sick(
    "grains-second-branch-through-an-array",
    lambda s: cached(s, False),
    lasting(no_gradient("blocks.1")),
    "DISCONNECTED",
    layer="blocks.1.branch.1",
    also={"DEAD"},
    control=fresh,
)


class Pair(nn.Module):
    """A branch whose first matrix starts at a constant and whose second does too: all its units are one."""

    def __init__(self, width: int, constant: float | None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)
        if constant is not None:
            nn.init.constant_(self.up.weight, constant)
            nn.init.constant_(self.up.bias, 0.0)
            nn.init.constant_(self.down.weight, constant)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def paired(seed: int, constant: float | None) -> Setup:
    blocks = [Pair(28, constant if i == 0 else None) for i in range(2)]
    net = ResidualNet(nn.Linear(14, 28), blocks, nn.Linear(28, 6))
    return live(net, sensors(seed), "SGD", 0.1, 60, momentum=0.8)


drawn = zoo.healthy("sensors-two-branches-drawn", lambda s: paired(s, None))
zoo.sick(
    "sensors-first-branch-of-a-constant",
    lambda s: paired(s, 0.04),
    lasting(equal_units("blocks.0.up.weight")),
    "SYMMETRY",
    layer=("blocks.0.up", "blocks.0.down"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=drawn,
)

# --- odd and healthy


class Zeroed(nn.Module):
    """Each branch is weighed by a number that starts at zero, after ReZero."""

    def __init__(self, width: int, start: float = 0.0) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.weight = nn.Parameter(torch.full((), start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight * self.branch(x)


zoo.healthy("sensors-ten-branches-weighed-by-zero", lambda s: measured(s, [Zeroed(40) for _ in range(10)]))


class Scaled(nn.Module):
    """A weight per channel that starts at a ten thousandth, after CaiT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * F.gelu(self.fc(self.norm(x)))


zoo.healthy("sensors-layer-scale-1e-4", lambda s: measured(s, [Scaled(40) for _ in range(6)], lr=5e-3))


class Highway(nn.Module):
    """A gate that starts nearly shut lets a change in beside what is carried on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.tanh(self.change(x)) + (1 - gate) * x


zoo.healthy("sensors-eight-highways", lambda s: measured(s, [Highway(40) for _ in range(8)], lr=5e-3))


class Thin(nn.Module):
    """A bottleneck block as built on purpose: four numbers inside, and the skip around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.silu(self.down(x)))


zoo.healthy("sensors-adapters-of-4-beside-skips", lambda s: measured(s, [Thin(40) for _ in range(5)], lr=5e-3))


class Scatter(nn.Module):
    """Messages along the edges of a graph, added up at their ends by index."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.own = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        graph, end, start = bonds.nonzero(as_tuple=True)
        count = x.shape[1]
        flat = x.flatten(0, 1)
        sums = torch.zeros_like(flat).index_add(
            0, graph * count + end, F.silu(self.message(flat))[graph * count + start]
        )
        return x + 0.3 * (self.own(flat) + sums).view_as(x)


class Graph(nn.Module):
    """Two rounds of messages and an answer at each node."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.rounds = nn.Linear(8, 32), nn.ModuleList(Scatter(32) for _ in range(2))
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        x = self.enter(x)
        for each in self.rounds:
            x = each(x, bonds)
        return self.out(x)


zoo.healthy("molecules-messages-by-index", lambda s: live(Graph(), molecules(s), lr=5e-3, steps=60))


class Teacher(nn.Module):
    """A student beside a frozen teacher; the answer of both."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = ResidualNet(nn.Linear(18, 32), [Step(32, 1.0, 0.5) for _ in range(3)], nn.Linear(32, 7))
        self.teacher.requires_grad_(False)
        self.teacher.head.weight.data *= 3
        self.student = nn.Sequential(nn.Linear(18, 24), nn.GELU(), nn.Linear(24, 7))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            told = self.teacher(x)
        return self.student(x), told


def distilled(seed: int) -> Setup:
    task = grains(seed).with_loss(
        lambda out, _: F.kl_div(out[0].log_softmax(dim=1), out[1].softmax(dim=1), reduction="batchmean")
    )
    return live(Teacher(), task, lr=1e-2, steps=80)


zoo.healthy("grains-distilled-from-a-frozen-net", distilled)


class Dropped(nn.Module):
    """Blocks that are left out at random, each for single samples."""

    def __init__(self, width: int, chance: float) -> None:
        super().__init__()
        self.norm, self.fc, self.chance = nn.LayerNorm(width), nn.Linear(width, width), chance

    def forward(self, x: Tensor) -> Tensor:
        change = F.silu(self.fc(self.norm(x)))
        if self.training:
            change = change * (torch.rand(len(x), 1) >= self.chance) / (1 - self.chance)
        return x + change


zoo.healthy("sensors-blocks-left-out-for-single-samples", lambda s: measured(s, [Dropped(40, 0.3) for _ in range(5)]))


class Rebuild(nn.Module):
    """A deep coder with a code of six for six lines, residual on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.narrow = nn.Linear(40, 48), nn.Linear(48, 6)
        self.widen, self.leave = nn.Linear(6, 48), nn.Linear(48, 40)
        self.a, self.b = Step(48, 1.0, 0.3), Step(48, 1.0, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.b(self.widen(self.narrow(self.a(self.enter(x))))))


zoo.healthy("spectra-residual-coder-of-6-for-6", lambda s: live(Rebuild(), spectra(s), lr=5e-3, steps=80))


def normed(seed: int) -> Setup:
    """Blocks with batch norms of which the last one starts at zero, after Goyal et al."""
    body: list[nn.Module] = []
    for _ in range(3):
        norm = nn.BatchNorm2d(16)
        nn.init.zeros_(norm.weight)
        convs = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), norm]
        body.append(Beside(nn.Sequential(*convs)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 6))
    return live(ResidualNet(nn.Conv2d(3, 16, 3), body, head), weaves(seed, batch=24), lr=1e-2, steps=40)


class Beside(nn.Module):
    """What goes in, and what a branch makes of it."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x + self.branch(x))


zoo.healthy("weaves-last-norms-start-at-zero", normed)
