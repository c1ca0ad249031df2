# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks: mixers, flows in small steps, denoisers; one fault each, their twins, and odd healthy ones.

Half: sealed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import meshes, mists, pulses, rosters, soils, stamps, stars
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient, saturated
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, ONE_WAY
from validation.nets import Reversible, Stream
from validation.setups import live
from validation.tasks import every

zoo = Zoo("residual", half="sealed", proof=thrives())


class Block(nn.Module):
    """Norm, up, down, beside a way past them: `keep` of the stream and `give` of the branch."""

    def __init__(self, width: int, keep: float = 1.0, give: float = 1.0, norm: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.keep, self.give = keep, give

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + self.give * self.down(F.gelu(self.up(self.norm(x))))


def stellar(seed: int, blocks: list[nn.Module], width: int = 24, **more) -> Setup:
    return live(Stream(16, width, 6, blocks), stars(seed), **{"lr": 3e-3, "steps": 60, **more})


def farmed(seed: int, blocks: list[nn.Module], width: int = 24, **more) -> Setup:
    return live(Stream(12, width, 1, blocks), soils(seed), **{"lr": 3e-3, "steps": 70, **more})


# --- narrow


class Transition(nn.Module):
    """Between two stages the stream is squeezed and widened."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.squeeze, self.widen = nn.Linear(width, size), nn.Linear(size, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.widen(self.squeeze(x))


def staged(seed: int, size: int) -> Setup:
    model = Stream(32, 24, 32, [Block(24), Transition(24, size), Block(24)])
    return live(model, rosters(seed), lr=5e-3, steps=90)


stages = zoo.healthy("rosters-stages-joined-by-12", lambda s: staged(s, 12))
zoo.sick(
    "rosters-stages-joined-by-1",
    lambda s: staged(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("blocks.1.squeeze", "blocks.1.widen"),
    also={"LOW_RANK"},
    control=stages,
)


class MixerBlock(nn.Module):
    """Mixes places, then channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places, self.channels = nn.Linear(places, places), Block(width, norm=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.places(self.norm1(x).transpose(1, 2))).transpose(1, 2)
        return self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Patches of four by four as `size` numbers, widened, mixed, averaged."""

    def __init__(self, size: int, blocks: int = 2) -> None:
        super().__init__()
        self.patch, self.widen = nn.Linear(16, size), nn.Linear(size, 24)
        self.blocks, self.head = nn.ModuleList(MixerBlock(9, 24) for _ in range(blocks)), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = F.unfold(x, 4, stride=4).transpose(1, 2)
        x = self.widen(self.patch(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def centred(seed: int, size: int) -> Setup:
    """Stamps at one place, so that patches tell them."""
    task = stamps(seed, 12, size=5, batch=48).mapped(lambda x: F.pad(x, (3, 4, 3, 4)))
    return live(Mixer(size), task, lr=3e-3, steps=45)


mixer = zoo.healthy("stamps-mixer-patches-of-12", lambda s: centred(s, 12))
zoo.sick(
    "stamps-mixer-patches-of-1",
    lambda s: centred(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("patch", "widen"),
    also={"LOW_RANK"},
    control=mixer,
)

# --- dead, flat, cut


class Rectified(nn.Module):
    """As in the first residual nets: the sum itself is rectified; `bias` is where the branch begins."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Linear(width, width), nn.Linear(width, width)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        nn.init.constant_(self.conv2.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu2(x + self.conv2(self.relu1(self.conv1(x))))


def rectified(seed: int, bias: float) -> Setup:
    return stellar(seed, [Rectified(24, bias if i == 1 else 0.0) for i in range(3)])


sums = zoo.healthy("stars-rectified-sums", lambda s: rectified(s, 0.0), thrives(most_dead=0.5))
zoo.sick(
    "stars-rectified-sums-second-branch-begins-at-minus-60",
    lambda s: rectified(s, -60.0),
    lasting(dead("blocks.1.relu2", 0.97)),
    "DEAD",
    layer="blocks.1.conv2",
    also={*DEADENS, *ONE_WAY},
    control=sums,
)


class Bounded(nn.Module):
    """The stream is bounded behind every sum; `gain` multiplies what is bounded."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.fc, self.act, self.gain = nn.Linear(width, width), nn.Tanh(), gain

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.gain * (x + self.fc(x)))


bounded = zoo.healthy("soils-bounded-stream", lambda s: farmed(s, [Bounded(24, 0.8) for _ in range(3)]))
zoo.sick(
    "soils-bounded-stream-times-60",
    lambda s: farmed(s, [Bounded(24, 60.0) for _ in range(3)]),
    lasting(saturated("blocks.1.act", "tanh", 0.8), saturated("blocks.2.act", "tanh", 0.8)),
    "SATURATION",
    "VANISHING",
    "EXPLODING",
    layer=("blocks.0.fc", "blocks.1.fc", "blocks.2.fc"),
    also={"UNSTABLE", "DEAD"},
    control=bounded,
)


class Chance(nn.Module):
    """A branch that is dropped by chance, for the whole batch."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.block, self.drop = Block(width), drop

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if torch.rand(()) >= self.drop else x


def by_chance(seed: int, most: float) -> Setup:
    """The chance grows with depth up to `most`, which was meant to be the chance to stay."""
    return stellar(seed, [Chance(24, most * (i + 1) / 4) for i in range(4)])


dropped = zoo.healthy("stars-branches-dropped-up-to-0.2", lambda s: by_chance(s, 0.2))
zoo.sick(
    "stars-branches-dropped-up-to-1",
    lambda s: by_chance(s, 1.0),
    lasting(no_gradient("blocks.3", batches=12)),
    "DISCONNECTED",
    layer=("blocks.3.block.up", "blocks.3.block.down"),
    also={"DEAD", "UNSTABLE", "SLOW"},
    control=dropped,
)

# --- growing and dying

calm = zoo.healthy("stars-6-branches-as-they-are", lambda s: stellar(s, [Block(24) for _ in range(6)]))
zoo.sick(
    "stars-10-branches-times-6-without-norms",
    lambda s: stellar(s, [Block(24, give=6.0, norm=False) for _ in range(10)], lr=1e-6, steps=40),
    lasting(gradient_ratio("blocks.0.down", "blocks.9.down", above=50)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL", "first_loss_high"},
    control=calm,
)


class Euler(nn.Module):
    """One step of a flow: `pace` says how far."""

    def __init__(self, width: int, pace: float) -> None:
        super().__init__()
        self.field, self.pace = nn.Linear(width, width), pace
        nn.init.orthogonal_(self.field.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pace * F.elu(self.field(x))


small_steps = zoo.healthy(
    "soils-flow-in-8-steps-of-an-eighth", lambda s: farmed(s, [Euler(24, 0.125) for _ in range(8)])
)
zoo.sick(
    "soils-flow-in-8-steps-of-8",
    lambda s: farmed(s, [Euler(24, 8.0) for _ in range(8)], lr=1e-7, steps=40),
    lasting(gradient_ratio("blocks.0", "blocks.7", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL", "first_loss_high"},
    control=small_steps,
)
zoo.sick(
    "stars-10-skips-times-0.25",
    lambda s: stellar(s, [Block(24, 0.25, 0.25, norm=False) for _ in range(10)], kind="SGD", lr=0.02, steps=60),
    both(lasting(gradient_ratio("blocks.0.down", "blocks.9.down", below=1e-3)), lags(0.2)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=calm,
)

# --- numbers, jumps, rates


class Scaled(nn.Module):
    """A norm by the root of the mean square, with or without an eps."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x * (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()


class Nodes(nn.Module):
    """Rounds of messages beside a stream; nodes that are only there to fill up a graph are all zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 24, bias=False), nn.Linear(24, 4)
        self.norms = nn.ModuleList(Scaled(24, eps) for _ in range(2))
        self.rounds = nn.ModuleList(nn.Linear(24, 24, bias=False) for _ in range(2))

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = self.enter(x)
        for norm, layer in zip(self.norms, self.rounds, strict=True):
            x = x + F.silu(layer(near @ norm(x)))
        return self.leave(x.mean(dim=1))


def filled(seed: int, eps: float) -> Setup:
    """Graphs of fewer nodes come now and then, and are filled up."""
    now = every(12, 9)

    def fill(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        nodes, near = x
        if now():
            nodes, near = nodes.clone(), near.clone()
            nodes[:, -2:], near[:, -2:], near[:, :, -2:] = 0.0, 0.0, 0.0
        return nodes, near

    return live(Nodes(eps), meshes(seed).mapped(fill), lr=5e-3, steps=60)


guarded = zoo.healthy("meshes-filled-up-norms-with-eps", lambda s: filled(s, 1e-5))
zoo.sick("meshes-filled-up-norms-without-eps", lambda s: filled(s, 0.0), breaks, "NUMERICAL", control=guarded)


class Fog(nn.Module):
    """Residual convolutions that are told how thick the mist is, and hand that on for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.level, self.out = nn.Conv2d(1, 12, 3, 1, 1), nn.Linear(1, 12), nn.Conv2d(12, 1, 3, 1, 1)
        self.blocks = nn.ModuleList(nn.Conv2d(12, 12, 3, 1, 1) for _ in range(2))

    def forward(self, x: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        h = self.enter(x) + self.level(level)[:, :, None, None]
        for block in self.blocks:
            h = h + block(F.silu(h))
        return self.out(h), level


def ratio_weighted(seed: int, most: float) -> Setup:
    """Samples count by their ratio of picture to mist, which has no bound where there is hardly any mist."""
    random = torch.Generator().manual_seed(seed + 30)

    def loss(out: tuple[Tensor, Tensor], mist: Tensor) -> Tensor:
        weight = torch.rand(len(mist), generator=random).pow(-2.5).clamp_max(most)
        return (weight * (out[0] - mist).square().mean(dim=(1, 2, 3))).mean()

    return live(Fog(), mists(seed, batch=24).with_loss(loss), lr=2e-3, steps=60)


bounded_ratio = zoo.healthy("mists-ratios-of-at-most-5", lambda s: ratio_weighted(s, 5.0))
zoo.sick(
    "mists-ratios-without-bound",
    lambda s: ratio_weighted(s, 1e30),
    gradient_norms_spread(30),
    *JUMPS,
    control=bounded_ratio,
)


def hertz(seed: int, lr: float) -> Setup:
    """Sounds; the rate is divided by the sampling rate twice."""

    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.head = nn.Conv1d(2, 16, 7, 2), nn.Linear(16, 5)
            self.blocks = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.enter(x)
            for block in self.blocks:
                x = x + block(F.gelu(x))
            return self.head(x.amax(dim=2))

    return live(Sound(), pulses(seed), "RMSprop", lr, 50)


undivided = zoo.healthy("pulses-residual-rmsprop", lambda s: hertz(s, 1e-3))
zoo.sick(
    "pulses-residual-rmsprop-rate-1e-9", lambda s: hertz(s, 1e-9), does_not_move(steps=50), "SLOW", control=undivided
)

# --- odd and well


class Zeroed(Block):
    """The branch begins at zero: at first a block is nothing but its skip."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)


zoo.healthy("stars-branches-begin-at-zero", lambda s: stellar(s, [Zeroed(24) for _ in range(6)]))


class Gain(nn.Module):
    """ReZero: one learned number per branch, which begins at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.gain = nn.Linear(width, width), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * F.relu(self.fc(x))


zoo.healthy("soils-twelve-branches-rezero", lambda s: farmed(s, [Gain(24) for _ in range(12)], lr=1e-2))
zoo.healthy("stars-mixed-widths-16-blocks", lambda s: stellar(s, [Block(16) for _ in range(16)], 16, steps=40))
zoo.healthy("soils-skips-times-0.8", lambda s: farmed(s, [Block(24, 0.8) for _ in range(4)]))


class Highway(nn.Module):
    """A gate shares between the layer and its input; it begins nearly shut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        g = torch.sigmoid(self.gate(x))
        return g * torch.relu(self.fc(x)) + (1 - g) * x


zoo.healthy("stars-highway-gates-nearly-shut", lambda s: stellar(s, [Highway(24) for _ in range(6)], lr=5e-3))


zoo.healthy("stars-reversible-halves", lambda s: stellar(s, [Reversible(24) for _ in range(4)]))


class Narrowed(nn.Module):
    """Bottleneck blocks: each branch is four wide, the stream is not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.down, self.up = nn.LayerNorm(width), nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(F.silu(self.down(self.norm(x))))


zoo.healthy(
    "stars-narrow-branches-beside-a-wide-stream", lambda s: stellar(s, [Narrowed(24) for _ in range(5)], lr=5e-3)
)


class Recycled(nn.Module):
    """One block, six times."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.block, self.leave = nn.Linear(16, 24), Block(24, give=0.3), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(6):
            x = self.block(x)
        return self.leave(x)


zoo.healthy("stars-one-block-six-times", lambda s: live(Recycled(), stars(s), lr=3e-3, steps=60))


def sandwiched(act: Callable[[Tensor], Tensor]) -> nn.Module:
    """A norm behind the sum, as the first transformers had it."""

    class PostNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(24, 24), nn.LayerNorm(24)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x + act(self.fc(x)))

    return PostNorm()


zoo.healthy("stars-norms-behind-the-sums", lambda s: stellar(s, [sandwiched(F.mish) for _ in range(4)]))
zoo.healthy(
    "stars-mixer-large-rate-with-warm-up",
    lambda s: stellar(s, [Block(24) for _ in range(3)], lr=1e-2, rate=lambda t: min(1.0, (t + 1) / 15)),
)
