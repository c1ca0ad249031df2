# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks of laboratories and workshops, with one fault each, their twins, and odd healthy ones.

Half: drill.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import dead, gradient_ratio, no_gradient
from validation.evidence.training import diverges
from validation.labels import NARROW, RUNS_AWAY
from validation.nets import he_
from validation.setups import live
from validation.tasks import every, gestures, pictures, plates, weaves

zoo = Zoo("cnn", half="drill", proof=thrives())

# --- narrow


class Fire(nn.Module):
    """Squeeze to few channels, expand by two kinds of kernels."""

    def __init__(self, width: int, squeeze: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, width // 2, 1), nn.Conv2d(squeeze, width // 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return F.relu(torch.cat([self.one(x), self.three(x)], dim=1))


class Fires(nn.Module):
    """A stem, fire modules, largest value over the picture."""

    def __init__(self, *squeeze: int, width: int = 24) -> None:
        super().__init__()
        self.stem, self.fires = nn.Conv2d(3, width, 3), nn.ModuleList(Fire(width, each) for each in squeeze)
        self.fc = nn.Linear(width, 6)
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for fire in self.fires:
            x = fire(x)
        return self.fc(x.mean(dim=(2, 3)))


def cloth(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, weaves(seed), **{"lr": 5e-3, "steps": 60, **more})


fires = zoo.healthy("weaves-squeezed-to-8-and-8", lambda s: cloth(s, Fires(8, 8)))
zoo.sick(
    "weaves-squeezed-to-8-and-1",
    lambda s: cloth(s, Fires(8, 1)),
    lags(0.15),
    "BOTTLENECK",
    layer=("fires.1.squeeze", "fires.1.one", "fires.1.three"),
    also={*NARROW, "DEAD"},
    control=fires,
)


class Brightness(nn.Module):
    """A picture is told by the features of its dots; `over` are the dimensions that the mean goes over."""

    def __init__(self, over: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 28, 3)
        self.over, self.fc1, self.fc2 = over, nn.Linear(1 if 1 in over else 28, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv2(F.silu(self.conv1(x))))
        x = x.mean(dim=self.over, keepdim=True).flatten(1)
        return self.fc2(F.silu(self.fc1(x)))


bright = zoo.healthy("weaves-mean-over-the-picture", lambda s: cloth(s, Brightness((2, 3)), lr=1e-2))
zoo.sick(
    "weaves-mean-over-picture-and-channels",
    lambda s: cloth(s, Brightness((1, 2, 3)), lr=1e-2),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("fc1", "conv2"),
    control=bright,
)


class Painter(nn.Module):
    """Mixes the colours of a plate; `middle` channels lie between the two halves."""

    def __init__(self, middle: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 20, 3, padding=1), nn.GELU(), nn.Conv2d(20, middle, 3, padding=1))
        self.up = nn.Sequential(nn.Conv2d(middle, 20, 3, padding=1), nn.GELU(), nn.Conv2d(20, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def painted(seed: int, middle: int) -> Setup:
    return live(Painter(middle), plates(seed), lr=5e-3, steps=60)


painter = zoo.healthy("plates-12-channels-between", lambda s: painted(s, 12))
zoo.sick(
    "plates-1-channel-between",
    lambda s: painted(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("down.2", "up.0"),
    also=NARROW,
    control=painter,
)


class Album(nn.Module):
    """Pictures as a vector of `size` numbers, and back, by strided convolutions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 12, 4, 2, 1), nn.Conv2d(12, 24, 4, 2, 1)
        self.code, self.open = nn.Linear(96, size), nn.Linear(size, 96)
        self.d1, self.d2 = nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.code(F.silu(self.c2(F.silu(self.c1(x)))).flatten(1))
        return self.d2(F.silu(self.d1(F.silu(self.open(z)).unflatten(1, (24, 2, 2)))))


def album(seed: int, size: int, factors: int = 8) -> Setup:
    return live(Album(size), pictures(seed, factors), lr=5e-3, steps=90)


albums = zoo.healthy("album-16-numbers-for-8-factors", lambda s: album(s, 16))
zoo.sick(
    "album-2-numbers-for-8-factors",
    lambda s: album(s, 2),
    lags(0.12),
    "BOTTLENECK",
    layer=("code", "open"),
    also=NARROW,
    control=albums,
)


class Pen(nn.Module):
    """Convolutions over the path of a pen; `width` of the second one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(2, 24, 5, padding=2), nn.Conv1d(24, width, 3, padding=1)
        self.c, self.fc = nn.Conv1d(width, 32, 3, padding=1), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.b(F.gelu(self.a(x.transpose(1, 2)))))
        return self.fc(F.gelu(self.c(x)).mean(dim=2))


def written(seed: int, width: int) -> Setup:
    return live(Pen(width), gestures(seed), lr=5e-3, steps=60)


pen = zoo.healthy("gestures-second-convolution-of-20", lambda s: written(s, 20))
zoo.sick(
    "gestures-second-convolution-of-1",
    lambda s: written(s, 1),
    lags(0.12),
    "BOTTLENECK",
    layer=("b", "c"),
    also=NARROW,
    control=pen,
)

# --- dead and flat


class Threshold(nn.Module):
    """Edges below a threshold are noise and count as zero; `least` was meant for bytes."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.conv1, self.cut1 = nn.Conv2d(3, 20, 3), nn.Threshold(least, 0.0)
        self.conv2, self.act2, self.fc = nn.Conv2d(20, 24, 3), nn.GELU(), nn.Linear(24, 6)
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.conv2(self.cut1(self.conv1(x))))
        return self.fc(x.mean(dim=(2, 3)))


edges = zoo.healthy("weaves-threshold-of-0.2", lambda s: cloth(s, Threshold(0.2)))
zoo.sick(
    "weaves-threshold-of-25",
    lambda s: cloth(s, Threshold(25.0)),
    lasting(dead("cut1", 0.99), no_gradient("conv1")),
    "DEAD",
    "DISCONNECTED",
    layer="conv1",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=edges,
)


class Bytes(nn.Module):
    """Takes a level off that is that of bytes, in a convolution whose weights are positive at first."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, 2), nn.Conv2d(16, 24, 3)
        self.fc, self.level = nn.Linear(24, 6), level
        if level:
            self.conv1.weight.data.abs_()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x - self.level))))
        return self.fc(x.amax(dim=(2, 3)))


levels = zoo.healthy("weaves-no-level-taken-off", lambda s: cloth(s, Bytes(0.0)))
zoo.sick(
    "weaves-level-of-bytes-taken-off",
    lambda s: cloth(s, Bytes(127.0)),
    lasting(never_fires("conv1", 0.97)),
    "DEAD",
    "DISCONNECTED",
    layer="conv1",
    also={"VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=levels,
)


class Excited(nn.Module):
    """Each channel is weighed by a sigmoid of the picture's summary; `bias` is where the weights start."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 24, 3), nn.Conv2d(24, 24, 3)
        self.shrink, self.grow, self.fc = nn.Linear(24, 8), nn.Linear(8, 24), nn.Linear(24, 6)
        nn.init.constant_(self.grow.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv1(x))
        weight = torch.sigmoid(self.grow(F.silu(self.shrink(x.mean(dim=(2, 3))))))
        return self.fc(F.silu(self.conv2(x * weight[..., None, None])).mean(dim=(2, 3)))


excited = zoo.healthy("weaves-channels-weighed", lambda s: cloth(s, Excited(0.0), lr=1e-2))
zoo.sick(
    "weaves-channels-weighed-by-next-to-nothing",
    lambda s: cloth(s, Excited(-14.0), lr=3e-3),
    lasting(flat_behind("grow", "sigmoid", 0.97)),
    "SATURATION",
    "VANISHING",
    "DEAD",
    layer=("grow", "conv1", "conv2"),
    also={"DISCONNECTED", "LOW_RANK", "BOTTLENECK"},
    control=excited,
)

# --- cut


class Frames(nn.Module):
    """A stem makes features that the rest reads; `cached` keeps them under no_grad, to save memory."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 24, 3)
        self.fc, self.cached = nn.Linear(24, 6), cached

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cached):
            x = F.silu(self.stem(x))
        return self.fc(F.silu(self.mix(x)).mean(dim=(2, 3)))


frames = zoo.healthy("weaves-stem-with-gradients", lambda s: cloth(s, Frames(False), lr=1e-2))
zoo.sick(
    "weaves-stem-under-no-grad",
    lambda s: cloth(s, Frames(True), lr=1e-2),
    lasting(no_gradient("stem")),
    "DISCONNECTED",
    layer="stem",
    also={"DEAD"},
    control=frames,
)

# --- dying and growing


def deep(seed: int, depth: int, gain: float, act: type[nn.Module] = nn.Tanh, **more) -> Setup:
    body: list[nn.Module] = []
    for i in range(depth):
        conv = nn.Conv1d(2 if i == 0 else 20, 20, 3, padding=1)
        nn.init.normal_(conv.weight, std=gain / (3 * conv.in_channels) ** 0.5)
        body += [conv, act()]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(20, 6))
    task = gestures(seed).mapped(lambda x: x.transpose(1, 2))
    return live(model, task, **{"lr": 3e-3, "steps": 60, **more})


tanhs = zoo.healthy("gestures-tanh-5-convolutions", lambda s: deep(s, 5, 1.2))
zoo.sick(
    "gestures-tanh-9-convolutions-drawn-small",
    lambda s: deep(s, 9, 0.35, kind="SGD", lr=0.05, momentum=0.9),
    lasting(gradient_ratio("0", "16", below=10**-2.5)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "SLOW"},
    control=tanhs,
)
relus = zoo.healthy("gestures-softplus-like-6-convolutions", lambda s: deep(s, 6, 1.3, nn.SiLU))
zoo.sick(
    "gestures-8-convolutions-drawn-with-gain-5",
    lambda s: deep(s, 8, 5.0, nn.SiLU, lr=1e-4, steps=50),
    lasting(gradient_ratio("0", "14", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=relus,
)
zoo.sick(
    "plates-rate-of-adam-for-plain-descent-with-summed-channels",
    lambda s: live(Painter(12), plates(s).scaled(192.0), "SGD", 0.3, 40),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING", "DISCONNECTED"},
    control=painter,
)

# --- numbers


class Contrast(nn.Module):
    """Takes each picture in units of its own deviation; a blank one has none."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.conv1, self.conv2, self.eps = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 24, 3), eps
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        spread = x.flatten(1).std(dim=1)[:, None, None, None]
        x = (x - x.mean(dim=(1, 2, 3), keepdim=True)) / (spread + self.eps)
        return self.fc(F.silu(self.conv2(F.silu(self.conv1(x)))).mean(dim=(2, 3)))


def blank(seed: int, eps: float) -> Setup:
    """The lid is on, once in a while."""
    now = every(16, 9)
    task = weaves(seed).mapped(lambda x: torch.cat([torch.zeros_like(x[:1]), x[1:]]) if now() else x)
    return live(Contrast(eps), task, lr=5e-3, steps=50)


lidless = zoo.healthy("weaves-contrast-with-eps", lambda s: blank(s, 1e-4))
zoo.sick("weaves-contrast-of-a-blank-picture", lambda s: blank(s, 0.0), breaks, "NUMERICAL", control=lidless)

# --- odd and healthy


class Unet(nn.Module):
    """Down to two channels and up again, with all that matters beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 2, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(2, 16, 2, 2), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.enter(x))
        return self.out(torch.cat([a, F.silu(self.up(F.silu(self.down(a))))], dim=1))


zoo.healthy("plates-u-net-with-two-channels-below", lambda s: live(Unet(), plates(s), lr=5e-3, steps=60))
zoo.healthy("album-3-numbers-for-3-factors", lambda s: album(s, 3, 3))


class Taper(nn.Module):
    """64, 32, 16, 8 channels, then six classes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 48, 24, 12, 8)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in pairwise(widths))
        self.fc = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = F.gelu(conv(x))
        return self.fc(x.mean(dim=(2, 3)))


zoo.healthy("weaves-tapering-48-24-12-8", lambda s: cloth(s, Taper(), lr=1e-2, steps=80))


def square(seed: int) -> Setup:
    """Eight channels, eight rows, eight columns, and a batch of eight pictures."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1))
    return live(model, plates(seed, batch=8), lr=1e-2, steps=60)


zoo.healthy("plates-eight-of-everything", square)


class Separable(nn.Module):
    """Each channel by itself, then all together, with batch norms; relu6."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.point = nn.Conv2d(3, 24, 1), nn.Conv2d(24, 24, 3, groups=24), nn.Conv2d(24, 32, 1)
        self.n1, self.n2, self.a1, self.a2 = nn.BatchNorm2d(24), nn.BatchNorm2d(32), nn.ReLU6(), nn.ReLU6()
        self.fc = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a1(self.n1(self.deep(self.stem(x))))
        return self.fc(self.a2(self.n2(self.point(x))).mean(dim=(2, 3)))


zoo.healthy("weaves-separable-batch-norm", lambda s: cloth(s, Separable(), lr=1e-2))


class Probe(nn.Module):
    """A frozen random body whose head is trained, with a first loss that is high because features are large."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
        self.body.requires_grad_(False)
        self.fc = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(20 * self.body(x).mean(dim=(2, 3)))


zoo.healthy("weaves-frozen-body-loud-features", lambda s: cloth(s, Probe(), lr=1e-2, steps=80), thrives(most_dead=1.0))


class Pairwise(nn.Module):
    """Two halves of a batch through one encoder: are they of one cloth?"""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4), nn.SiLU(), nn.Conv2d(24, 32, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.proj = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.proj(self.encoder(x)), dim=1)


def contrastive(z: Tensor, target: Tensor) -> Tensor:
    """Those of one class are to be near one another, after Khosla et al."""
    scores = (z @ z.T / 0.2).fill_diagonal_(-1e4)
    same = (target[:, None] == target).float().fill_diagonal_(0.0)
    return -(scores.log_softmax(dim=1) * same).sum(dim=1).div(same.sum(dim=1).clamp_min(1)).mean()


zoo.healthy(
    "weaves-siamese-by-class",
    lambda s: live(Pairwise(), weaves(s).with_loss(contrastive), lr=3e-3, steps=60),
    thrives(0.05),
)


def warmed(seed: int) -> Setup:
    """Twenty steps of warm-up, then a cosine."""
    return cloth(seed, Brightness((2, 3)), lr=2e-2, rate=lambda i: min(1.0, (i + 1) / 20), steps=70)


zoo.healthy("weaves-warm-up-over-20-steps", warmed)


def killed(seed: int) -> Setup:
    """A quarter of the channels is pruned for good, as users do to make a net smaller."""
    model = Brightness((2, 3))
    keep = torch.ones(20, 1, 1, 1)
    keep[::4] = 0
    nn.utils.parametrize.register_parametrization(model.conv1, "weight", Masked(keep))
    return cloth(seed, model, lr=1e-2)


class Masked(nn.Module):
    """Weights that are held at zero."""

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.keep = nn.Buffer(keep)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.keep


zoo.healthy("weaves-a-quarter-of-the-channels-pruned", killed)
