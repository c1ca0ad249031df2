# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""U-Nets, mixers, temporal and grouped convolutions, denoisers and gates, with one fault each, twins, and healthy ones.

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
from validation.labels import DEADENS, JUMPS, NARROW
from validation.setups import live
from validation.tasks import every, pictures, plates, pulses, waves, weaves

zoo = Zoo("cnn", half="drill", proof=thrives())


def told(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, weaves(seed), **{"lr": 5e-3, "steps": 50, **more})


def mixed(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, plates(seed), **{"lr": 8e-3, "steps": 60, **more})


def heard(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, waves(seed), **{"lr": 5e-3, "steps": 50, **more})


# --- narrow


class Cells(nn.Module):
    """An hourglass: halves the picture twice, `mid` channels at the bottom, and back; skips if wanted."""

    def __init__(self, mid: int, skips: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 24, 2, 2), nn.Conv2d(24, mid, 2, 2)
        self.d, self.e = nn.ConvTranspose2d(mid, 24, 2, 2), nn.ConvTranspose2d(24, 16, 2, 2)
        self.out, self.skips = nn.Conv2d(16, 3, 3, 1, 1), skips

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.a(x))
        b = F.silu(self.b(a))
        d = F.silu(self.d(F.silu(self.c(b)))) + (b if self.skips else 0)
        return self.out(F.silu(self.e(d)) + (a if self.skips else 0))


hour = zoo.healthy("plates-hourglass-of-24", lambda s: mixed(s, Cells(24)))
zoo.healthy("plates-unet-of-1-with-skips", lambda s: mixed(s, Cells(1, True)))
zoo.healthy("plates-hourglass-of-12", lambda s: mixed(s, Cells(12)))
zoo.sick(
    "plates-hourglass-of-1",
    lambda s: mixed(s, Cells(1)),
    lags(0.1),
    "BOTTLENECK",
    layer=("c", "d"),
    also=NARROW,
    control=hour,
)


class Wavelets(nn.Module):
    """A codec of signals: `mid` channels at a quarter of the rate."""

    def __init__(self, mid: int) -> None:
        super().__init__()
        self.down, self.code = nn.Conv1d(4, 24, 4, 2, 1), nn.Conv1d(24, mid, 4, 2, 1)
        self.up, self.out = nn.ConvTranspose1d(mid, 24, 4, 2, 1), nn.ConvTranspose1d(24, 4, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.up(self.code(F.gelu(self.down(x))))))


def coded(seed: int, mid: int) -> Setup:
    task = waves(seed).changed(lambda x, _: (x, x)).with_loss(F.mse_loss)
    return live(Wavelets(mid), task, lr=8e-3, steps=60)


coded_twin = zoo.healthy("waves-codec-of-12", lambda s: coded(s, 12))
zoo.sick(
    "waves-codec-of-1",
    lambda s: coded(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("code", "up"),
    also=NARROW,
    control=coded_twin,
)


class Separable(nn.Module):
    """Depthwise and pointwise convolutions; the first pointwise one gives `mid` channels."""

    def __init__(self, mid: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.deep1, self.point1 = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, mid, 1)
        self.deep2, self.point2 = nn.Conv2d(mid, mid, 3, padding=1, groups=mid), nn.Conv2d(mid, 32, 1)
        self.fc = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.point1(self.deep1(F.relu6(self.stem(x)))))
        return self.fc(F.relu6(self.point2(self.deep2(x))).mean(dim=(2, 3)))


separable = zoo.healthy("weaves-separable-24", lambda s: told(s, Separable(24), lr=1e-2))
zoo.sick(
    "weaves-separable-1",
    lambda s: told(s, Separable(1), lr=1e-2),
    lags(0.1),
    "BOTTLENECK",
    layer=("point1", "deep2", "point2"),
    also={*NARROW, "DEAD", "VANISHING"},
    control=separable,
)


class Pooled(nn.Module):
    """Temporal convolutions with growing gaps, then `hidden` numbers for the class."""

    def __init__(self, hidden: int, skip: bool = True) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(4 if i == 0 else 20, 20, 3, padding=2**i, dilation=2**i) for i in range(4))
        self.squeeze, self.out, self.skip = nn.Linear(20, hidden), nn.Linear(hidden, 6), skip

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            new = F.gelu(conv(x))
            x = x + new if i and self.skip else new
        return self.out(torch.tanh(self.squeeze(x.mean(dim=2))))


pooled = zoo.healthy("waves-temporal-hidden-20", lambda s: heard(s, Pooled(20)))
zoo.sick(
    "waves-temporal-hidden-1",
    lambda s: heard(s, Pooled(1)),
    lags(0.1),
    "BOTTLENECK",
    layer=("squeeze", "out"),
    also={*NARROW, "SATURATION"},
    control=pooled,
)

# --- flat gates and dead channels


class Excited(nn.Module):
    """Squeeze and excite: channels are weighed by a sigmoid of their means; `heat` multiplies its weights."""

    def __init__(self, heat: float, hard: bool = False, bias: float = 0.0) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = nn.Conv2d(3, 24, 3), nn.Linear(24, 12), nn.Linear(12, 24)
        self.conv2, self.out = nn.Conv2d(24, 24, 3, 2), nn.Linear(24, 6)
        self.gate = F.hardsigmoid if hard else torch.sigmoid
        self.fc2.weight.data *= heat
        self.fc2.bias.data.mul_(heat).add_(bias)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.conv(x))
        h = h * self.gate(self.fc2(F.silu(self.fc1(h.mean(dim=(2, 3))))))[:, :, None, None]
        return self.out(F.silu(self.conv2(h)).mean(dim=(2, 3)))


excited = zoo.healthy("weaves-excited", lambda s: told(s, Excited(1.0)))
zoo.healthy("weaves-excited-open-at-first", lambda s: told(s, Excited(1.0, bias=4.0)))
zoo.healthy("weaves-excited-hard-sigmoid", lambda s: told(s, Excited(1.0, hard=True)))
zoo.sick(
    "weaves-excited-times-300",
    lambda s: told(s, Excited(300.0), lr=2e-3),
    lasting(flat_behind("fc2", "sigmoid", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="fc2",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=excited,
)


class Gated(nn.Module):
    """Stacked temporal convolutions in the manner of WaveNet: tanh times sigmoid, beside a skip."""

    def __init__(self, heat: float, which: str = "value") -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, 16, 1)
        self.value = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=1) for _ in range(3))
        self.gate = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=1) for _ in range(3))
        self.out = nn.Linear(16, 6)
        getattr(self, which)[1].weight.data *= heat

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for value, gate in zip(self.value, self.gate, strict=True):
            x = x + value(x).tanh() * gate(x).sigmoid()
        return self.out(x.amax(dim=2))


gated = zoo.healthy("waves-gated-stack", lambda s: heard(s, Gated(1.0)))
zoo.sick(
    "waves-gated-value-times-200",
    lambda s: heard(s, Gated(200.0), lr=2e-3),
    lasting(flat_behind("value.1", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="value.1",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=gated,
)
zoo.sick(
    "waves-gated-gate-times-400",
    lambda s: heard(s, Gated(400.0, "gate"), lr=2e-3),
    lasting(flat_behind("gate.1", "sigmoid", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="gate.1",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=gated,
)


class Sliced(nn.Module):
    """Keeps the first channels of a wide layer; `kept` was meant to be what is left out."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.wide, self.kept, self.next = nn.Conv2d(3, 40, 3), kept, nn.Conv2d(kept, 16, 3, 2)
        self.out = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.wide(x))[:, : self.kept]
        return self.out(F.relu(self.next(x)).mean(dim=(2, 3)))


sliced = zoo.healthy("weaves-36-of-40-channels", lambda s: told(s, Sliced(36)))
zoo.sick(
    "weaves-2-of-40-channels",
    lambda s: told(s, Sliced(2)),
    lags(0.05),
    "DEAD",
    "BOTTLENECK",
    "DISCONNECTED",
    layer=("wide", "next"),
    also=NARROW,
    control=sliced,
)


class Normed(nn.Module):
    """Norms with learned shifts in front of ReLUs; `low` is what the second shift begins at."""

    def __init__(self, low: float) -> None:
        super().__init__()
        self.c1, self.n1, self.c2, self.n2 = (
            nn.Conv2d(3, 20, 3),
            nn.BatchNorm2d(20),
            nn.Conv2d(20, 20, 3),
            nn.GroupNorm(4, 20),
        )
        self.act, self.c3, self.out = nn.ReLU(), nn.Conv2d(20, 20, 3), nn.Linear(20, 6)
        self.n2.bias.data += low

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.n2(self.c2(F.relu(self.n1(self.c1(x))))))
        return self.out(F.relu(self.c3(x)).mean(dim=(2, 3)))


normed = zoo.healthy("weaves-norms-as-drawn", lambda s: told(s, Normed(0.0)))
zoo.sick(
    "weaves-second-norm-shifted-down",
    lambda s: told(s, Normed(-12.0)),
    lasting(dead("act", 0.95)),
    "DEAD",
    layer=("n2", "c2"),
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=normed,
)

# --- cut, growing, dying


class Routed(nn.Module):
    """Weighs two branches by a learned gate; `as_list` takes the gate's numbers out of the graph."""

    def __init__(self, as_list: bool) -> None:
        super().__init__()
        self.gate, self.left, self.right = nn.Linear(3, 2), nn.Conv2d(3, 20, 3), nn.Conv2d(3, 20, 5, padding=1)
        self.out, self.as_list = nn.Linear(20, 6), as_list

    def forward(self, x: Tensor) -> Tensor:
        g = self.gate(x.abs().mean(dim=(2, 3))).softmax(dim=1)
        if self.as_list:
            g = torch.tensor(g.tolist())
        h = g[:, :1, None, None] * F.silu(self.left(x)) + g[:, 1:, None, None] * F.silu(self.right(x))
        return self.out(h.mean(dim=(2, 3)))


routed = zoo.healthy("weaves-two-branches-by-a-gate", lambda s: told(s, Routed(False)))
zoo.sick(
    "weaves-gate-as-a-list",
    lambda s: told(s, Routed(True)),
    lasting(no_gradient("gate")),
    "DISCONNECTED",
    layer="gate",
    also={"DEAD"},
    control=routed,
)


class Tower(nn.Module):
    """Plain convolutions one after another, each followed by `act` and, if wanted, a mean over neighbours."""

    def __init__(self, depth: int, act, gain: float, blur: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else 12, 12, 3, padding=1) for i in range(depth))
        self.act, self.blur, self.out = act, blur, nn.Linear(12, 6)
        for conv in self.convs:
            nn.init.normal_(conv.weight, std=gain / (conv.in_channels * 9) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.act(F.avg_pool2d(conv(x), 3, 1, 1) if self.blur else conv(x))
        return self.out(x.amax(dim=(2, 3)))


tower = zoo.healthy("weaves-tower-of-4", lambda s: told(s, Tower(4, F.gelu, 1.5)))
zoo.healthy("weaves-tower-of-3-blurred", lambda s: told(s, Tower(3, F.gelu, 2.0, True), lr=1e-2))
zoo.sick(
    "weaves-tower-of-9-drawn-small",
    lambda s: told(s, Tower(9, F.elu, 0.35), kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("convs.0", "convs.8", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW"},
    control=tower,
)
zoo.sick(
    "weaves-tower-of-9-blurred-tanh",
    lambda s: told(s, Tower(9, torch.tanh, 0.3, True), kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("convs.0", "convs.8", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW"},
    control=tower,
)
zoo.sick(
    "weaves-tower-of-9-drawn-wide",
    lambda s: told(s, Tower(9, F.leaky_relu, 4.0), lr=1e-6, steps=40),
    lasting(gradient_ratio("convs.0", "convs.8", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=tower,
)

# --- numbers, jumps, rates


def scored(seed: int, eps: float) -> Setup:
    """A loss by the angle between the plates; a plate may be blank."""
    now = every(12, 7)

    def blank(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.cat([0 * x[:1], x[1:]]), t) if now() else (x, t)

    def angle(y: Tensor, t: Tensor) -> Tensor:
        y, t = y.flatten(1), t.flatten(1)
        size = (y.square().sum(dim=1) + eps).sqrt() * (t.square().sum(dim=1) + eps).sqrt()
        return (1 - (y * t).sum(dim=1) / size).mean()

    model = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.SiLU(), nn.Conv2d(16, 3, 3, 1, 1, bias=False))
    return live(model, plates(seed).changed(blank).with_loss(angle), lr=8e-3, steps=48)


scored_twin = zoo.healthy("plates-angle-with-eps", lambda s: scored(s, 1e-6))
zoo.sick("plates-angle-of-a-blank", lambda s: scored(s, 0.0), breaks, "NUMERICAL", control=scored_twin)


def burnt(seed: int, value: float) -> Setup:
    """A dead pixel in some pictures."""
    now = every(8, 5)

    def pixel(x: Tensor) -> Tensor:
        if now():
            x = x.clone()
            x[:2, :, 0, 0] = value
        return x

    return live(Tower(3, F.relu, 1.4), weaves(seed).mapped(pixel), lr=1e-3, steps=72)


burnt_twin = zoo.healthy("weaves-dead-pixel-of-1", lambda s: burnt(s, 1.0))
zoo.sick(
    "weaves-burnt-pixel-of-65535",
    lambda s: burnt(s, 65535.0),
    gradient_norms_spread(30),
    *JUMPS,
    also={"DEAD", "NUMERICAL"},
    control=burnt_twin,
)
zoo.sick(
    "weaves-tower-rate-in-millionths",
    lambda s: told(s, Tower(4, F.gelu, 1.5), lr=1e-9),
    does_not_move(steps=50),
    "SLOW",
    control=tower,
)

# --- odd and healthy


class Mixer(nn.Module):
    """Squares of a picture as tokens; mixes over tokens, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm1, self.norm2 = nn.Conv2d(3, 24, 2, 2), nn.LayerNorm(24), nn.LayerNorm(24)
        self.tokens, self.channels, self.out = nn.Linear(25, 25), nn.Linear(24, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = x + F.gelu(self.tokens(self.norm1(x).transpose(1, 2))).transpose(1, 2)
        x = x + F.gelu(self.channels(self.norm2(x)))
        return self.out(x.mean(dim=1))


zoo.healthy("weaves-mixer", lambda s: told(s, Mixer()))


class Grown(nn.Module):
    """Every convolution reads all channels before it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 8 * i, 8, 3, padding=1) for i in range(4))
        self.shrink, self.out = nn.Conv2d(35, 12, 1), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], dim=1)
        return self.out(F.relu(self.shrink(x)).mean(dim=(2, 3)))


zoo.healthy("weaves-dense-growth-of-8", lambda s: told(s, Grown()))
zoo.healthy(
    "weaves-grouped-and-shuffled",
    lambda s: told(
        s,
        nn.Sequential(
            nn.Conv2d(3, 24, 3),
            nn.GroupNorm(4, 24),
            nn.SiLU(),
            nn.Conv2d(24, 24, 3, groups=4),
            nn.ChannelShuffle(4),
            nn.SiLU(),
            nn.Conv2d(24, 24, 3, groups=4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(24, 6),
        ),
    ),
)


class Spatial(nn.Module):
    """A map of one channel says where to look."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.look, self.out = nn.Conv2d(3, 24, 3), nn.Conv2d(2, 1, 3, padding=1), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.body(x))
        where = self.look(torch.stack([h.mean(dim=1), h.amax(dim=1)], dim=1))
        return self.out((h * torch.sigmoid(where)).mean(dim=(2, 3)))


zoo.healthy("weaves-attention-map-of-one-channel", lambda s: told(s, Spatial()))


class Inverted(nn.Module):
    """Narrow between blocks, wide inside, with a skip from narrow to narrow."""

    def __init__(self, narrow: int = 6) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, narrow, 3, padding=1), nn.Linear(24, 6)
        self.widen = nn.ModuleList(nn.Conv2d(narrow, 24, 1) for _ in range(3))
        self.deep = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1, groups=24) for _ in range(3))
        self.narrow, self.last = nn.ModuleList(nn.Conv2d(24, narrow, 1) for _ in range(3)), nn.Conv2d(narrow, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for widen, deep, narrow in zip(self.widen, self.deep, self.narrow, strict=True):
            x = x + narrow(F.relu6(deep(F.relu6(widen(x)))))
        return self.out(F.relu6(self.last(x)).mean(dim=(2, 3)))


zoo.healthy("weaves-inverted-blocks-of-6", lambda s: told(s, Inverted(), lr=1e-2))


class Super(nn.Module):
    """Twice the size by a shuffle of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.body, self.up = nn.AvgPool2d(2), nn.Conv2d(3, 24, 3, 1, 1), nn.Conv2d(24, 12, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.up(F.gelu(self.body(self.down(x)))), 2)


zoo.healthy("plates-super-resolution", lambda s: mixed(s, Super()))


def small_code(seed: int, mid: int) -> Setup:
    """Pictures of a few factors: a code of few numbers is enough."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(256, mid),
        nn.Linear(mid, 256),
        nn.SiLU(),
        nn.Unflatten(1, (16, 4, 4)),
        nn.ConvTranspose2d(16, 1, 2, 2),
    )
    task = pictures(seed).changed(lambda x, _: (x, x)).with_loss(F.mse_loss)
    return live(model, task, lr=5e-3, steps=60)


code = zoo.healthy("pictures-code-of-12-for-6-factors", lambda s: small_code(s, 12))
zoo.sick(
    "pictures-code-of-1-for-6-factors",
    lambda s: small_code(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("3", "4"),
    also=NARROW,
    control=code,
)


class Steps(nn.Module):
    """Grows a signal's context by strides, with norms of each channel and a head on the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 12, 5, 2), nn.InstanceNorm1d(12, affine=True), nn.ELU(), nn.Conv1d(12, 16, 5, 2), nn.ELU()
        )
        self.out = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x).mean(dim=2))


zoo.healthy("pulses-strided-with-instance-norm", lambda s: live(Steps(), pulses(s), lr=1e-2, steps=60))
