# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual and highway networks of engines, scans and tones, with one fault each, their twins, and odd healthy ones.

Half: blind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import gratings, plants, scans, states, tones
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS
from validation.nets import Reversible
from validation.setups import live
from validation.tasks import every

zoo = Zoo("residual", half="blind", proof=thrives())


class Step(nn.Module):
    """A row and `share` of what two layers make of it; learned in the manner of ReZero when `learned` is set."""

    def __init__(self, width: int, share: float = 1.0, learned: bool = False, hidden: int = 0) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, hidden or width), nn.Linear(hidden or width, width)
        self.share = nn.Parameter(torch.tensor(share)) if learned else share

    def forward(self, x: Tensor) -> Tensor:
        return x + self.share * self.b(F.silu(self.a(x)))


def rows(seed: int, blocks: list[nn.Module], width: int = 32, **more) -> Setup:
    model = nn.Sequential(nn.Linear(18, width), *blocks, nn.Linear(width, 7))
    return live(model, states(seed), **{"lr": 3e-3, "steps": 50, **more})


rezero = zoo.healthy("engine-12-learned-shares-from-0.1", lambda s: rows(s, [Step(32, 0.1, True) for _ in range(12)]))
zoo.sick(
    "engine-18-shares-of-9",
    lambda s: rows(s, [Step(32, 9.0) for _ in range(18)], lr=1e-6),
    lasting(gradient_ratio("0", "18.b", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=rezero,
)


class Waves(nn.Module):
    """A convolution over time beside a skip; `doubled` adds the skip twice, once in the branch."""

    def __init__(self, width: int, doubled: bool) -> None:
        super().__init__()
        self.conv, self.doubled = nn.Conv1d(width, width, 5, padding=2), doubled

    def forward(self, x: Tensor) -> Tensor:
        change = F.gelu(self.conv(x)) + (x if self.doubled else 0)
        return x + change


def heard(seed: int, depth: int, doubled: bool, **more) -> Setup:
    blocks = [Waves(16, doubled) for _ in range(depth)]
    model = nn.Sequential(nn.Conv1d(3, 16, 5, 2), *blocks, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 6))
    return live(model, tones(seed), **{"lr": 3e-3, "steps": 50, **more})


heard_twin = zoo.healthy("tones-8-skips", lambda s: heard(s, 8, False))
zoo.sick(
    "tones-10-skips-added-twice",
    lambda s: heard(s, 10, True, lr=1e-6, steps=40),
    lasting(gradient_ratio("0", "10.conv", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=heard_twin,
)


class Highway(nn.Module):
    """How much of a row is changed is learned; `start` is where its bias begins."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.change, self.carry = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.carry.bias, start)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.sigmoid(self.carry(x))
        return t * torch.tanh(self.change(x)) + (1 - t) * x


def highway(seed: int, depth: int, start: float, **more) -> Setup:
    return rows(seed, [Highway(32, start) for _ in range(depth)], **more)


highway_twin = zoo.healthy("engine-highway-12-carry-at-first", lambda s: highway(s, 12, -2.0))
zoo.sick(
    "engine-highway-16-change-at-first",
    lambda s: highway(s, 16, 5.0, kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("0", "16.change", below=10**-2.5)), lags(0.2)),
    "VANISHING",
    also={"LOW_RANK", "SLOW", "SATURATION"},
    control=highway_twin,
)


class Stem(nn.Module):
    """A stem of `first` channels, then stages with skips."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.stem, self.widen = nn.Conv2d(3, first, 3, padding=1), nn.Conv2d(first, 24, 1)
        self.blocks = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(3))
        self.norms, self.fc = nn.ModuleList(nn.GroupNorm(4, 24) for _ in range(3)), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.widen(self.stem(x))
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + F.silu(conv(norm(x)))
        return self.fc(x.mean(dim=(2, 3)))


class Stages(nn.Module):
    """Rows pass two stages of blocks and `between` numbers in between."""

    def __init__(self, between: int) -> None:
        super().__init__()
        self.enter, self.one = nn.Linear(14, 40), nn.Sequential(Step(40), Step(40))
        self.down, self.up = nn.Linear(40, between), nn.Linear(between, 40)
        self.two, self.out = nn.Sequential(Step(40), Step(40)), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.two(self.up(self.down(self.one(self.enter(x))))))


def stages(seed: int, between: int) -> Setup:
    return live(Stages(between), plants(seed, out=3), lr=5e-3, steps=70)


stages_twin = zoo.healthy("plants-two-stages-through-30", lambda s: stages(s, 30))
zoo.sick(
    "plants-two-stages-through-1",
    lambda s: stages(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("down", "up"),
    also={"LOW_RANK"},
    control=stages_twin,
)


def codec(seed: int, channels: int) -> Setup:
    """A scan at a quarter of its dots, in `channels`, between blocks with skips."""
    model = nn.Sequential(
        nn.Conv2d(2, 24, 3, 1, 1),
        Conv(24),
        nn.Conv2d(24, channels, 2, 2),
        nn.ConvTranspose2d(channels, 24, 2, 2),
        Conv(24),
        nn.Conv2d(24, 2, 3, 1, 1),
    )
    return live(model, scans(seed), lr=5e-3, steps=60)


class Conv(nn.Module):
    """A convolution beside a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.conv(x))


codec_twin = zoo.healthy("scans-codec-of-8-channels", lambda s: codec(s, 8))
zoo.sick(
    "scans-codec-of-1-channel",
    lambda s: codec(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("2", "3"),
    also={"LOW_RANK"},
    control=codec_twin,
)
zoo.healthy("gratings-stem-of-6-channels", lambda s: live(Stem(6), gratings(s), lr=3e-3, steps=60))


class Behind(nn.Module):
    """The first kind of residual block: the ReLU stands behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(width, width), nn.Linear(width, width), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.b(F.relu(self.a(x))))


def behind(seed: int, low: float, at: int) -> Setup:
    """The third block was saved with the mean of its input taken off the wrong way."""
    blocks = [Behind(32) for _ in range(4)]
    blocks[at].b.bias.data -= low
    return rows(seed, blocks)


behind_twin = zoo.healthy("engine-relu-behind-the-sum", lambda s: behind(s, 0.0, 2), thrives(most_dead=0.6))
zoo.sick(
    "engine-relu-behind-the-sum-pushed-down",
    lambda s: behind(s, 25.0, 2),
    lasting(dead("3.act", 0.97)),
    "DEAD",
    layer="3.b",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=behind_twin,
)


class Branched(nn.Module):
    """Two branches beside the skip; one may run without a graph to save memory."""

    def __init__(self, frugal: bool) -> None:
        super().__init__()
        self.left, self.right, self.frugal = nn.Linear(32, 32), nn.Linear(32, 32), frugal

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frugal):
            right = F.gelu(self.right(x))
        return x + F.gelu(self.left(x)) + right


def branched(seed: int, frugal: bool) -> Setup:
    return rows(seed, [Branched(False), Branched(frugal), Branched(False)])


branched_twin = zoo.healthy("engine-two-branches", lambda s: branched(s, False))
zoo.sick(
    "engine-one-branch-without-a-graph",
    lambda s: branched(s, True),
    lasting(no_gradient("2.right")),
    "DISCONNECTED",
    layer="2.right",
    also={"DEAD"},
    control=branched_twin,
)


class Squashed(nn.Module):
    """The sum goes through a tanh; `heat` multiplies it first."""

    def __init__(self, width: int, heat: float) -> None:
        super().__init__()
        self.fc, self.heat = nn.Linear(width, width), heat
        self.fc.weight.data *= heat
        self.fc.bias.data *= heat

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + torch.tanh(self.fc(x))


def squashed(seed: int, heat: float) -> Setup:
    return rows(seed, [Squashed(32, 1.0), Squashed(32, heat), Squashed(32, 1.0)])


squashed_twin = zoo.healthy("engine-tanh-branches", lambda s: squashed(s, 1.0))
zoo.sick(
    "engine-second-tanh-branch-times-300",
    lambda s: squashed(s, 300.0),
    lasting(flat_behind("2.fc", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="2.fc",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=squashed_twin,
)


class Sized(nn.Module):
    """Rows are brought to one size before each branch, by hand."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.fc, self.eps = nn.Linear(width, width, bias=False), eps

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.fc(x / (x.square().mean(dim=1, keepdim=True) + self.eps).sqrt()))


def sized(seed: int, eps: float) -> Setup:
    """A sensor that is switched off sends zeros, and the first layer has no bias."""
    now = every(18, 8)
    model = nn.Sequential(nn.Linear(18, 32, bias=False), Sized(32, eps), Sized(32, eps), nn.Linear(32, 7))
    return live(model, states(seed).mapped(lambda x: torch.cat([0 * x[:2], x[2:]]) if now() else x), lr=3e-3, steps=54)


sized_twin = zoo.healthy("engine-size-with-eps", lambda s: sized(s, 1e-5))
zoo.sick("engine-size-of-a-silent-sensor", lambda s: sized(s, 0.0), breaks, "NUMERICAL", control=sized_twin)


def cautious(seed: int, eps: float) -> Setup:
    return rows(seed, [Step(32) for _ in range(3)], kind="RMSprop", lr=2e-3, steps=60, eps=eps)


cautious_twin = zoo.healthy("engine-rmsprop-eps-1e-8", lambda s: cautious(s, 1e-8))
zoo.sick(
    "engine-rmsprop-eps-of-10000", lambda s: cautious(s, 1e4), does_not_move(steps=60), "SLOW", control=cautious_twin
)


def bumps(seed: int, size: float) -> Setup:
    """A knock on the sensor's housing, in one batch of ten."""
    now = every(10, 6)

    def knock(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (x, torch.cat([size + t[:3], t[3:]])) if now() else (x, t)

    model = nn.Sequential(nn.Linear(14, 40), Step(40), Step(40), nn.Linear(40, 1))
    return live(model, plants(seed).changed(knock), lr=2e-3, steps=70)


bumps_twin = zoo.healthy("plants-no-knocks", lambda s: bumps(s, 0.0))
zoo.sick("plants-knocks-of-900", lambda s: bumps(s, 900.0), gradient_norms_spread(30), *JUMPS, control=bumps_twin)

# --- odd and healthy


class Zeroed(nn.Module):
    """The last layer of each branch starts at zero, so that the net begins as its skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.relu(self.a(self.norm(x))))


zoo.healthy("engine-branches-start-at-zero", lambda s: rows(s, [Zeroed(32) for _ in range(10)]))
zoo.healthy("engine-narrow-branches-of-4", lambda s: rows(s, [Step(32, 0.5, hidden=4) for _ in range(6)]))


zoo.healthy("engine-reversible-halves", lambda s: rows(s, [Reversible(32) for _ in range(6)]))


class Dense(nn.Module):
    """Every layer reads all that came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(14 + 12 * i, 12) for i in range(5))
        self.out = nn.Linear(14 + 60, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.elu(layer(x))], dim=1)
        return self.out(x)


zoo.healthy("plants-every-layer-reads-all", lambda s: live(Dense(), plants(s), lr=5e-3, steps=60))
zoo.healthy(
    "engine-20-blocks-warm-up-and-limit",
    lambda s: rows(
        s,
        [Zeroed(32) for _ in range(20)],
        steps=80,
        clip=1.0,
        weight_decay=0.1,
        rate=lambda step: min(1.0, (step + 1) / 20),
    ),
)


class Shared(nn.Module):
    """One block, applied again and again."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.norm, self.block, self.times = nn.LayerNorm(32), nn.Linear(32, 32), times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = x + 0.4 * F.gelu(self.block(self.norm(x)))
        return x


zoo.healthy("engine-one-block-six-times", lambda s: rows(s, [Shared(6)]))
