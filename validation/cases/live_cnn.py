# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks with one fault each, trained under watch, their twins, and odd healthy ones.

Half: live.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import channel_rank, equal_units, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, RUNS_AWAY
from validation.nets import gaussian_, he_
from validation.setups import live
from validation.tasks import Task, every, pictures, stains, strokes

zoo = Zoo("cnn", half="live", proof=thrives())


class Net(nn.Module):
    """Convolutions with a function between them, as in a first tutorial; the mean of the squares of what is left."""

    def __init__(self, widths: list[int], act=torch.relu, classes: int = 8, stride: int = 1, units: float = 1.0):
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv2d(a, b, 3, stride=stride, padding=1) for a, b in pairwise(widths))
        self.fc, self.act, self.units = nn.Linear(widths[-1], classes), act, units

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.units
        for conv in self.conv:
            x = self.act(conv(x))
        return self.fc(x.mean(dim=(2, 3)))


def simple(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, strokes(seed, 8, 8, 20), **{"lr": 3e-3, "steps": 50, **more})


def even_task(seed: int) -> Task:
    return strokes(seed, 8, 8, 20)


# --- dying, growing, dead, flat, equal

relu = zoo.healthy("strokes-functional-relu-4x16", lambda s: simple(s, he_(Net([1, 16, 16, 16, 16]))))
zoo.sick(
    "strokes-functional-sigmoid-8x12",
    lambda s: simple(s, Net([1, *[12] * 8], torch.sigmoid), kind="SGD", lr=0.05, momentum=0.9),
    lasting(gradient_ratio("conv.0", "conv.7", below=10**-2.5)),
    "VANISHING",
    control=relu,
)
silu = zoo.healthy("strokes-functional-silu-8x12", lambda s: simple(s, he_(Net([1, *[12] * 8], F.silu)), steps=60))
zoo.sick(
    "strokes-functional-silu-8x12-gain-6",
    lambda s: simple(s, gaussian_(Net([1, *[12] * 8], F.silu), 6.0), lr=1e-3, steps=40),
    lasting(gradient_ratio("conv.0", "conv.7", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=silu,
)


def lowered(seed: int, share: float) -> Setup:
    model = he_(Net([1, 20, 20, 20]))
    model.conv[1].bias.data[: round(20 * share)] = -30
    return simple(seed, model)


three = zoo.healthy("strokes-functional-relu-3x20", lambda s: lowered(s, 0.0))
zoo.sick(
    "strokes-functional-relu-3x20-second-dead",
    lambda s: lowered(s, 1.0),
    lasting(never_fires("conv.1", 0.99), no_gradient("conv.0", "conv.1")),
    "DEAD",
    layer="conv.1",
    also=DEADENS,
    control=three,
)
zoo.sick(
    "strokes-functional-relu-3x20-most-of-second-dead",
    lambda s: lowered(s, 0.8),
    lasting(never_fires("conv.1", 0.79)),
    "DEAD",
    layer="conv.1",
    control=three,
)
tanh = zoo.healthy(
    "strokes-functional-tanh-3x16",
    lambda s: simple(s, gaussian_(Net([1, 16, 16, 16], torch.tanh), 1.2), lr=1e-2, steps=80),
)
zoo.sick(
    "strokes-functional-tanh-3x16-bytes-times-255",
    lambda s: simple(s, gaussian_(Net([1, 16, 16, 16], torch.tanh, units=255.0), 1.2), lr=1e-3),
    lasting(flat_behind("conv.0", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="conv.0",
    also={"EXPLODING", "UNSTABLE"},
    control=tanh,
)


@torch.no_grad()
def one_kernel(seed: int) -> Setup:
    model = gaussian_(Net([1, 16, 16, 16], F.softplus), 1.0)
    model.conv[1].weight.copy_(model.conv[1].weight[:1].expand(16, -1, -1, -1).clone())
    model.conv[2].weight.copy_(model.conv[2].weight[:, :1].expand(-1, 16, -1, -1).clone() / 4)
    return simple(seed, model)


softplus = zoo.healthy(
    "strokes-functional-softplus-3x16",
    lambda s: simple(s, gaussian_(Net([1, 16, 16, 16], F.softplus), 1.0), lr=1e-2, steps=100),
)
zoo.sick(
    "strokes-functional-softplus-3x16-second-of-one-kernel",
    one_kernel,
    lasting(equal_units("conv.1.weight")),
    "SYMMETRY",
    layer="conv.1",
    also={"LOW_RANK", "BOTTLENECK"},
    control=softplus,
)

# --- narrow and cut


class Segment(nn.Module):
    """A U-Net of two levels by interpolation; the skip may be missing, the floor narrow, the deep path cut."""

    def __init__(self, floor: int = 24, skip: bool = True, cut: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.inc, self.down = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.floor, self.up = nn.Conv2d(24, floor, 3, padding=1), nn.Conv2d(floor, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12) if norm else nn.Identity()
        self.outc, self.skip, self.cut = nn.Conv2d(24 if skip else 12, 1, 1), skip, cut

    def forward(self, x: Tensor) -> Tensor:
        top = F.relu(self.bn(self.inc(x)))
        deep = F.relu(self.floor(F.max_pool2d(F.relu(self.down(F.max_pool2d(top, 2))), 2)))
        deep = F.interpolate(F.relu(self.up(F.interpolate(deep, scale_factor=2))), scale_factor=2)
        deep = deep.detach() if self.cut else deep
        return self.outc(torch.cat([top, deep], dim=1) if self.skip else deep)


segment = zoo.healthy("stains-u-net", lambda s: live(Segment(), stains(s), lr=5e-3))
zoo.sick(
    "stains-u-net-deep-path-cut",
    lambda s: live(Segment(cut=True), stains(s), lr=5e-3),
    lasting(no_gradient("down", "floor", "up")),
    "DISCONNECTED",
    layer=("up", "floor", "down"),
    also={"DEAD"},
    control=segment,
)


class Rebuild(nn.Module):
    """Strided encoder, a map of `code` channels, transposed decoder."""

    def __init__(self, code: int, act=F.gelu) -> None:
        super().__init__()
        self.e1, self.e2 = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.code, self.back = nn.Conv2d(24, code, 1), nn.Conv2d(code, 24, 1)
        self.d1, self.d2 = nn.ConvTranspose2d(24, 16, 2, stride=2), nn.ConvTranspose2d(16, 1, 2, stride=2)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.back(self.code(self.act(self.e2(self.act(self.e1(x)))))))
        return self.d2(self.act(self.d1(h)))


rebuilt = zoo.healthy(
    "pictures-rebuilt-from-8-channels", lambda s: live(Rebuild(8), pictures(s, 14), lr=1e-2, steps=80)
)
zoo.sick(
    "pictures-rebuilt-from-1-channel-of-14-factors",
    lambda s: live(Rebuild(1), pictures(s, 14), lr=1e-2, steps=80),
    lags(0.15),
    "BOTTLENECK",
    layer=("code", "back"),
    also=NARROW,
    control=rebuilt,
)


class Depthwise(nn.Module):
    """Depthwise and pointwise by turns, squeeze and excite, a waist of `narrow` channels."""

    def __init__(self, narrow: int, squeeze: int = 4, pinned: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.dw1, self.pw1 = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, narrow, 1)
        self.dw2, self.pw2 = nn.Conv2d(narrow, narrow, 3, padding=1, groups=narrow), nn.Conv2d(narrow, 32, 1)
        self.less, self.more = nn.Linear(32, squeeze), nn.Linear(squeeze, 32)
        self.fc = nn.Linear(32, 8)
        if pinned:
            self.more.bias.data = pinned * torch.randn(32).sign()

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.pw1(self.dw1(F.silu(self.stem(x)))))
        x = F.silu(self.pw2(self.dw2(x)))
        scale = torch.sigmoid(self.more(F.relu(self.less(x.mean(dim=(2, 3))))))
        return self.fc((x * scale[..., None, None]).square().mean(dim=(2, 3)))


depthwise = zoo.healthy("strokes-depthwise-squeeze-excite", lambda s: simple(s, Depthwise(24), lr=1e-2, steps=80))
zoo.sick(
    "strokes-depthwise-waist-of-1-channel",
    lambda s: simple(s, Depthwise(1), lr=1e-2, steps=80),
    lasting(channel_rank("pw1", 1.01)),
    "BOTTLENECK",
    layer=("pw1", "dw2"),
    also={"LOW_RANK", "VANISHING"},
    control=depthwise,
)
zoo.sick(
    "strokes-squeeze-excite-gate-pinned",
    lambda s: simple(s, Depthwise(24, pinned=25.0), lr=1e-2, steps=60),
    lasting(flat_behind("more", "sigmoid", 0.95)),
    "SATURATION",
    "DEAD",
    "VANISHING",
    layer="more",
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=depthwise,
)


class Summary(nn.Module):
    """A picture as so many numbers, then as a class."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
        )
        self.project, self.classify = nn.Linear(128, numbers), nn.Linear(numbers, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(F.elu(self.project(self.features(x).flatten(1))))


summary = zoo.healthy(
    "strokes-summary-of-24-numbers", lambda s: simple(s, Summary(24), steps=60), thrives(most_dead=0.5)
)
zoo.sick(
    "strokes-summary-of-1-number-for-8-classes",
    lambda s: simple(s, Summary(1), steps=60),
    lags(0.15),
    "BOTTLENECK",
    layer=("project", "classify"),
    also=NARROW,
    control=summary,
)

# --- numbers and rates


class Own(nn.Module):
    """Standardises each channel of each picture by hand."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.conv, self.then = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3)
        self.fc, self.eps = nn.Linear(16, 8), eps

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        spread = (h - h.mean(dim=(2, 3), keepdim=True)).square().mean(dim=(2, 3), keepdim=True)
        h = (h - h.mean(dim=(2, 3), keepdim=True)) / (spread + self.eps).sqrt()
        return self.fc(F.relu(self.then(F.relu(h))).mean(dim=(2, 3)))


def black(seed: int, eps: float) -> Setup:
    """In the eighth batch one picture is black."""
    now = every(40, 7)

    def change(x: Tensor) -> Tensor:
        return torch.cat([0 * x[:1], x[1:]]) if now() else x

    return live(Own(eps), even_task(seed).mapped(change), lr=1e-2)


lit = zoo.healthy("strokes-own-norm-black-picture-with-eps", lambda s: black(s, 1e-5))
zoo.sick("strokes-own-norm-black-picture", lambda s: black(s, 0.0), breaks, "NUMERICAL", control=lit)


def weighed(seed: int, times: float) -> Setup:
    """Every tenth batch has its loss summed, not averaged, and more."""
    now = every(10, 5)
    task = even_task(seed).with_loss(lambda z, t: F.cross_entropy(z, t) * (times if now() else 1.0))
    return live(he_(Net([1, 16, 16, 16])), task, lr=2e-3, steps=70)


level = zoo.healthy("strokes-every-batch-averaged", lambda s: weighed(s, 1.0))
zoo.sick(
    "strokes-every-tenth-batch-times-400", lambda s: weighed(s, 400.0), gradient_norms_spread(30), *JUMPS, control=level
)
zoo.sick(
    "strokes-functional-relu-3x20-adamw-2e-9",
    lambda s: simple(s, he_(Net([1, 20, 20, 20])), lr=2e-9),
    does_not_move(steps=50),
    "SLOW",
    control=three,
)
zoo.sick(
    "stains-u-net-sgd-300",
    lambda s: live(Segment(norm=False), stains(s), "SGD", 300.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "VANISHING", "LOW_RANK", "BOTTLENECK", "DISCONNECTED"},
    control=segment,
)

# --- odd and healthy

zoo.healthy("stains-u-net-without-skip", lambda s: live(Segment(skip=False), stains(s), lr=5e-3, steps=80))
zoo.healthy(
    "stains-few-dots-in-the-loss-times-1e4", lambda s: live(Segment(), stains(s).scaled(1e4), lr=3e-3, steps=50)
)
zoo.healthy("pictures-rebuilt-from-2-factors", lambda s: live(Rebuild(2), pictures(s, 2), lr=1e-2, steps=80))


class Dropped(nn.Module):
    """Whole channels are dropped, by halves."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.5), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
        )
        self.fc = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.fc(self.body(x).mean(dim=(2, 3))).float()


zoo.healthy("strokes-channels-dropped-autocast", lambda s: simple(s, Dropped(), steps=80, lr=5e-3), thrives(0.05))


class Frozen(nn.Module):
    """A frozen body in evaluation mode, a trained head of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.body.requires_grad_(False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(512, 48), nn.GELU(), nn.Linear(48, 8))

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


zoo.healthy("strokes-frozen-body-trained-head", lambda s: simple(s, Frozen(), lr=2e-3), thrives(most_dead=0.5))


class Lines(nn.Module):
    """Causal convolutions of growing reach over a line of dots, read at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(c, 20, 2, dilation=d) for c, d in ((8, 1), (20, 2), (20, 4)))
        self.fc = nn.Linear(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        for conv in self.convs:
            x = F.gelu(conv(F.pad(x, (conv.dilation[0], 0))))
        return self.fc(x[..., -1])


zoo.healthy("strokes-causal-convolutions", lambda s: simple(s, Lines(), lr=5e-3, steps=80), thrives(0.05))


class Adversary(nn.Module):
    """Makes pictures against a convolutional critic; each sees the other as fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.Linear(8, 128),
            nn.SiLU(),
            nn.Unflatten(1, (8, 4, 4)),
            nn.ConvTranspose2d(8, 8, 2, stride=2),
            nn.SiLU(),
            nn.Conv2d(8, 1, 3, padding=1),
        )
        self.judge = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        fake = self.make(torch.randn(len(x), 8))
        still = {name: p.detach() for name, p in self.judge.named_parameters()}
        return self.judge(x), self.judge(fake.detach()), torch.func.functional_call(self.judge, still, fake), fake


def hinge(out: tuple[Tensor, ...], _: Tensor) -> Tensor:
    return F.relu(1 - out[0]).mean() + F.relu(1 + out[1]).mean() - out[2].mean()


@torch.no_grad()
def away(setup: Setup) -> float:
    """Distance between the spreads of made and real pictures, dot by dot."""
    real = torch.cat([setup.input_fn() for _ in range(6)])
    return (setup.model(real)[3].std(dim=0) - real.std(dim=0)).norm().item()


zoo.healthy(
    "gan-of-pictures-hinge-loss",
    lambda s: live(Adversary(), pictures(s, 6).with_loss(hinge), "Adam", 2e-3, 100, betas=(0.0, 0.9)),
    thrives(0.1, measure=away),
)
