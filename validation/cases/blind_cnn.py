# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks of microscopes, scanners and microphones, with one fault each, and their twins.

Half: blind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import cells, gratings, scans, tones
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient, saturated
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW
from validation.nets import he_
from validation.setups import live
from validation.tasks import every

zoo = Zoo("cnn", half="blind", proof=thrives())

# --- narrow


class Cleaner(nn.Module):
    """Down to half the size and back, through `mid` channels."""

    def __init__(self, mid: int) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 24, 3, 2, 1), nn.Conv2d(24, mid, 3, 1, 1)
        self.up1, self.up2 = nn.ConvTranspose2d(mid, 24, 2, 2), nn.Conv2d(24, 2, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.up2(F.gelu(self.up1(self.down2(F.gelu(self.down1(x))))))


def cleaned(seed: int, mid: int) -> Setup:
    return live(Cleaner(mid), scans(seed), lr=8e-3, steps=80)


cleaned_twin = zoo.healthy("scans-cleaned-through-16", lambda s: cleaned(s, 16))
zoo.sick(
    "scans-cleaned-through-1",
    lambda s: cleaned(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("down2", "up1"),
    also=NARROW,
    control=cleaned_twin,
)


class Squeezed(nn.Module):
    """Blocks that divide their channels by a reduction before the wide convolution; no way leads past them."""

    def __init__(self, reduction: int) -> None:
        super().__init__()
        inner = 24 // reduction
        self.stem, self.n0 = nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24)
        self.reduce, self.n1 = nn.Conv2d(24, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.expand, self.n2 = nn.Conv2d(inner, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.n0(self.stem(x)))
        x = F.relu(self.n2(self.expand(F.relu(self.n1(self.reduce(x))))))
        return self.fc(x.mean(dim=(2, 3)))


def squeezed(seed: int, reduction: int) -> Setup:
    return live(Squeezed(reduction), gratings(seed), lr=1e-2, steps=60)


squeezed_twin = zoo.healthy("gratings-reduction-2", lambda s: squeezed(s, 2))
zoo.sick(
    "gratings-reduction-24",
    lambda s: squeezed(s, 24),
    lags(0.1),
    "BOTTLENECK",
    layer=("reduce", "expand"),
    also={*NARROW, "VANISHING"},
    control=squeezed_twin,
)


class Ear(nn.Module):
    """Two convolutions over time, the strongest answers, `hidden` numbers, a class."""

    def __init__(self, hidden: int, act: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(3, 20, 9, 2), nn.Conv1d(20, 28, 5, 2)
        self.fc1, self.fc2, self.act = nn.Linear(28, hidden), nn.Linear(hidden, 6), act

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv2(self.act(self.conv1(x)))).amax(dim=2)
        return self.fc2(self.act(self.fc1(x)))


def ear(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, tones(seed), **{"lr": 5e-3, "steps": 60, **more})


ear_twin = zoo.healthy("tones-hidden-layer-of-24", lambda s: ear(s, Ear(24)))
zoo.sick(
    "tones-hidden-layer-of-1",
    lambda s: ear(s, Ear(1)),
    lags(0.1),
    "BOTTLENECK",
    layer=("fc1", "fc2"),
    also=NARROW,
    control=ear_twin,
)

# --- dead and flat


class Pruned(nn.Module):
    """Channels are kept by their size; `wrong` keeps those that are below the limit."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 32, 3)
        self.act1, self.act2, self.fc = nn.ReLU(), nn.ReLU(), nn.Linear(32, 6)
        he_(self)
        strength = torch.arange(32) / 32
        self.keep = nn.Buffer(((strength < 0.03) if wrong else (strength >= 0.03)).float()[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.keep * self.conv2(self.act1(self.conv1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def pruned(seed: int, wrong: bool) -> Setup:
    return live(Pruned(wrong), gratings(seed), lr=5e-3, steps=60)


pruned_twin = zoo.healthy("gratings-pruned-of-the-weakest", lambda s: pruned(s, False))
zoo.sick(
    "gratings-pruned-of-all-but-the-weakest",
    lambda s: pruned(s, True),
    lasting(dead("act2", 0.95)),
    "DEAD",
    layer="conv2",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=pruned_twin,
)


class Signed(nn.Conv2d):
    """Weights of one sign only, as a model of light that is taken up wants it."""

    sign = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.sign * self.weight.abs(), self.bias)


class Optics(nn.Module):
    """Light through two layers of one sign, then a free one."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.first, self.second = Signed(1, 12, 3, padding=1), Signed(12, 12, 3, padding=1, bias=False)
        self.act, self.out, self.second.sign = nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1), sign

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act(self.second(F.softplus(self.first(x)))))


def optics(seed: int, sign: float) -> Setup:
    return live(Optics(sign), cells(seed), lr=5e-3, steps=80)


optics_twin = zoo.healthy("cells-weights-all-positive", lambda s: optics(s, 1.0))
zoo.sick(
    "cells-weights-all-negative",
    lambda s: optics(s, -1.0),
    lasting(dead("act", 0.99)),
    "DEAD",
    layer="second",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=optics_twin,
)


def loud(seed: int, factor: float) -> Setup:
    """A gain of the pre-amplifier, written into the second convolution."""
    model = nn.Sequential(
        nn.Conv1d(3, 20, 9, 2),
        nn.Tanh(),
        nn.Conv1d(20, 24, 5, 2),
        nn.Tanh(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 6),
    )
    model[2].weight.data *= factor
    return ear(seed, model, lr=3e-3)


loud_twin = zoo.healthy("tones-tanh-as-drawn", lambda s: loud(s, 1.0))
zoo.sick(
    "tones-tanh-second-layer-times-80",
    lambda s: loud(s, 80.0),
    lasting(saturated("3", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="2",
    also={"EXPLODING", "UNSTABLE"},
    control=loud_twin,
)


class Attentive(nn.Module):
    """A map of where to look, by a sigmoid; `heat` makes it sharp."""

    def __init__(self, heat: float) -> None:
        super().__init__()
        self.body, self.gate = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.out, self.fc, self.heat = nn.Conv2d(24, 24, 3, 2), nn.Linear(24, 6), heat
        self.gate.weight.data *= heat

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.body(x))
        h = h * torch.sigmoid(self.gate(h))
        return self.fc(F.silu(self.out(h)).mean(dim=(2, 3)))


attentive_twin = zoo.healthy("gratings-soft-gate", lambda s: live(Attentive(1.0), gratings(s), lr=5e-3, steps=60))
zoo.sick(
    "gratings-gate-that-is-all-or-nothing",
    lambda s: live(Attentive(400.0), gratings(s), lr=1e-3, steps=60),
    lasting(flat_behind("gate", "sigmoid", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="gate",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=attentive_twin,
)

# --- cut


class Quantised(nn.Module):
    """Activations of four bits; `through` lets the gradient pass the rounding."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 24, 3), nn.Conv2d(24, 24, 3, 2), nn.Linear(24, 6)
        self.through = through

    def bits(self, x: Tensor) -> Tensor:
        rounded = torch.round(8 * x) / 8
        return x + (rounded - x).detach() if self.through else rounded

    def forward(self, x: Tensor) -> Tensor:
        x = self.bits(F.relu(self.conv1(x)))
        return self.fc(F.relu(self.conv2(x)).mean(dim=(2, 3)))


quantised_twin = zoo.healthy(
    "gratings-rounded-straight-through", lambda s: live(Quantised(True), gratings(s), lr=5e-3, steps=60)
)
zoo.sick(
    "gratings-rounded",
    lambda s: live(Quantised(False), gratings(s), lr=5e-3, steps=60),
    lasting(no_gradient("conv1")),
    "DISCONNECTED",
    layer="conv1",
    also={"DEAD"},
    control=quantised_twin,
)

# --- growing and dying


class Generator(nn.Module):
    """Grows a small map by transposed convolutions, as many as asked for, to the clean scan."""

    def __init__(self, depth: int, gain: float) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 12, 3, padding=1)
        self.grow = nn.ModuleList(nn.ConvTranspose2d(12, 12, 3, padding=1) for _ in range(depth))
        self.leave = nn.Conv2d(12, 2, 3, padding=1)
        for layer in self.grow:
            nn.init.normal_(layer.weight, std=gain / (12 * 9) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.grow:
            x = F.leaky_relu(layer(x), 0.2)
        return self.leave(x)


def generator(seed: int, depth: int, gain: float, **more) -> Setup:
    return live(Generator(depth, gain), scans(seed, batch=16), **{"lr": 3e-3, "steps": 60, **more})


generator_twin = zoo.healthy("scans-three-transposed-layers", lambda s: generator(s, 3, 1.4))
zoo.sick(
    "scans-seven-transposed-layers-drawn-far-too-wide",
    lambda s: generator(s, 7, 5.0, lr=1e-6, steps=40),
    lasting(gradient_ratio("grow.0", "grow.6", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=generator_twin,
)


class Averaged(nn.Module):
    """Each convolution over time is followed by a running mean and a bounded activation."""

    def __init__(self, depth: int, window: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(3 if i == 0 else 20, 20, 3, padding=1) for i in range(depth))
        self.window, self.act, self.fc = window, act, nn.Linear(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.act(F.avg_pool1d(conv(x), self.window, 1, self.window // 2))
        return self.fc(x.amax(dim=2))


averaged_twin = zoo.healthy("tones-three-layers", lambda s: ear(s, Averaged(3, 1, F.gelu), lr=1e-2))
zoo.sick(
    "tones-twelve-layers-each-with-a-running-mean",
    lambda s: ear(s, Averaged(12, 5, torch.tanh), kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("convs.0", "convs.11", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW"},
    control=averaged_twin,
)


def sigmoids(seed: int, act: type[nn.Module], depth: int, **more) -> Setup:
    body: list[nn.Module] = []
    for i in range(depth):
        body += [nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), act()]
    model = nn.Sequential(*body, nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, 6))
    return live(model, gratings(seed), **{"lr": 3e-3, "steps": 60, **more})


sigmoids_twin = zoo.healthy("gratings-four-silus", lambda s: sigmoids(s, nn.SiLU, 4))
zoo.sick(
    "gratings-six-sigmoids",
    lambda s: sigmoids(s, nn.Sigmoid, 6, lr=1e-3),
    both(lasting(gradient_ratio("0", "10", below=10**-2.5)), lags(0.2)),
    "VANISHING",
    also={"LOW_RANK", "SLOW", "BOTTLENECK"},
    control=sigmoids_twin,
)

# --- numbers, jumps, rates


def overlap(smooth: float) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = torch.sigmoid(z)
        shared = (p * t).sum(dim=(1, 2, 3))
        either = (p + t - p * t).sum(dim=(1, 2, 3))
        return -((shared + smooth) / (either + smooth)).log().mean()

    return loss


def counted(seed: int, smooth: float) -> Setup:
    """The logarithm of an overlap; some slides hold no cell at all."""
    now = every(14, 6)

    def empty(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (x, torch.cat([0 * t[:1], t[1:]])) if now() else (x, t)

    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 1, 1)
    )
    return live(model, cells(seed).changed(empty).with_loss(overlap(smooth)), lr=5e-3, steps=56)


counted_twin = zoo.healthy("cells-log-of-overlap-smoothed", lambda s: counted(s, 1.0))
zoo.sick("cells-log-of-no-overlap", lambda s: counted(s, 0.0), breaks, "NUMERICAL", control=counted_twin)


class Contrast(nn.Module):
    """Divides each picture by its own deviation, by hand."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.body = nn.Sequential(nn.Conv2d(3, 24, 3), nn.SiLU(), nn.Conv2d(24, 24, 3, 2), nn.SiLU())
        self.fc = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=(1, 2, 3), keepdim=True)
        x = x / (x.square().mean(dim=(1, 2, 3), keepdim=True) + self.eps).sqrt()
        return self.fc(self.body(x).mean(dim=(2, 3)))


def frames(seed: int, eps: float) -> Setup:
    """Between two films there is a black frame."""
    now = every(20, 11)
    task = gratings(seed).mapped(lambda x: torch.cat([0 * x[:1], x[1:]]) if now() else x)
    return live(Contrast(eps), task, lr=5e-3, steps=60)


frames_twin = zoo.healthy("gratings-black-frame-with-eps", lambda s: frames(s, 1e-4))
zoo.sick("gratings-black-frame", lambda s: frames(s, 0.0), breaks, "NUMERICAL", control=frames_twin)


def contrasts(seed: int, spread: float) -> Setup:
    """Augmentation by a random contrast whose exponent is too large."""
    random = torch.Generator().manual_seed(seed + 60)
    task = tones(seed).mapped(lambda x: x * torch.exp(spread * torch.randn((), generator=random)))
    return live(Ear(24, F.relu), task, lr=1e-3, steps=80)


contrasts_twin = zoo.healthy("tones-gain-of-a-tenth", lambda s: contrasts(s, 0.1), thrives(0.05))
zoo.sick(
    "tones-gain-of-exp-of-five-deviations",
    lambda s: contrasts(s, 5.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=contrasts_twin,
)


def warming(seed: int, over: float) -> Setup:
    """The rate rises over so many steps; the number was meant for samples."""
    return ear(seed, Ear(24), kind="AdamW", lr=5e-3, steps=60, rate=lambda step: min(1.0, (step + 1) / over))


warming_twin = zoo.healthy("tones-rate-rises-over-20-steps", lambda s: warming(s, 20))
zoo.sick(
    "tones-rate-rises-over-50-million-steps",
    lambda s: warming(s, 5e7),
    does_not_move(steps=60),
    "SLOW",
    control=warming_twin,
)
