# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutions over tiles, coins, quilts and calls: one fault each, their twins, and odd healthy ones.

Half: veiled.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import calls, coins, quilts, tiles
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient, saturated
from validation.evidence.training import gradient_norms_spread
from validation.labels import DEADENS, JUMPS, ONE_WAY
from validation.setups import frozen, live
from validation.tasks import every

zoo = Zoo("cnn", half="veiled", proof=thrives())

# --- narrow


class Coder(nn.Module):
    """Pictures by strides to a code of `size` numbers and back by transposed convolutions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 12, 4, 2, 1), nn.Conv2d(12, 24, 4, 2, 1)
        self.code, self.decode = nn.Linear(96, size), nn.Linear(size, 96)
        self.up1, self.up2 = nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.code(F.silu(self.down2(F.silu(self.down1(x)))).flatten(1))
        return self.up2(F.silu(self.up1(F.silu(self.decode(z)).unflatten(1, (24, 2, 2)))))


def coded(seed: int, size: int) -> Setup:
    return live(Coder(size), quilts(seed), lr=5e-3, steps=80)


coder = zoo.healthy("quilts-code-of-10", lambda s: coded(s, 10))
zoo.healthy("quilts-code-of-6-for-6-pieces", lambda s: coded(s, 6))
zoo.sick(
    "quilts-code-of-1-for-6-pieces",
    lambda s: coded(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("code", "decode"),
    also={"LOW_RANK"},
    control=coder,
)


class Squeezed(nn.Module):
    """Between two stages a convolution of one by one leaves `channels` of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stage1, self.squeeze = nn.Conv1d(2, 24, 7, 2), nn.Conv1d(24, channels, 1)
        self.stage2, self.head = nn.Conv1d(channels, 24, 7, 2), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.squeeze(F.gelu(self.stage1(x)))
        return self.head(F.gelu(self.stage2(h)).amax(dim=2))


def called(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, calls(seed), **{"lr": 5e-3, "steps": 60, **more})


pooled = zoo.healthy("calls-pooled-over-24-channels", lambda s: called(s, Squeezed(16)))


class Averaged(nn.Module):
    """Features averaged over each picture; `all_of_it` averages the channels as well."""

    def __init__(self, all_of_it: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5), nn.Conv2d(16, 24, 3)
        self.fc, self.head, self.all_of_it = nn.Linear(1 if all_of_it else 24, 24), nn.Linear(24, 6), all_of_it

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv2(F.relu(self.conv1(x))))
        h = h.mean(dim=(1, 2, 3))[:, None] if self.all_of_it else h.mean(dim=(2, 3))
        return self.head(F.relu(self.fc(h)))


def tiled(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, tiles(seed), **{"lr": 5e-3, "steps": 60, **more})


by_channel = zoo.healthy("tiles-mean-of-each-channel", lambda s: tiled(s, Averaged(False)))
zoo.sick(
    "tiles-mean-of-everything",
    lambda s: tiled(s, Averaged(True)),
    lags(0.15),
    "BOTTLENECK",
    layer=("conv2", "fc"),
    also={"LOW_RANK", "SYMMETRY"},
    control=by_channel,
)


class Unet(nn.Module):
    """Down, across a bottom of `bottom` channels, up; `beside` joins what was there before."""

    def __init__(self, bottom: int, beside: bool) -> None:
        super().__init__()
        self.beside, self.enter, self.down = beside, nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, bottom, 4, 4)
        self.up, self.out = nn.ConvTranspose2d(bottom, 12, 4, 4), nn.Conv2d(24 if beside else 12, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.enter(x))
        up = F.silu(self.up(F.silu(self.down(h))))
        return self.out(torch.cat([h, up], dim=1) if self.beside else up)


def found(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, coins(seed), **{"lr": 1e-2, "steps": 60, **more})


hourglass = zoo.healthy("coins-bottom-of-16", lambda s: found(s, Unet(16, False)))
zoo.healthy("coins-bottom-of-1-beside-a-skip", lambda s: found(s, Unet(1, True)))
zoo.sick(
    "coins-bottom-of-1",
    lambda s: found(s, Unet(1, False)),
    lags(0.08),
    "BOTTLENECK",
    layer=("down", "up"),
    also={"LOW_RANK"},
    control=hourglass,
)


class Grey(nn.Module):
    """Three channels are mixed to `kept` before anything else; the classes differ in how the channels do."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.mix, self.conv, self.head = nn.Conv2d(3, kept, 1), nn.Conv2d(kept, 24, 3), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.conv(self.mix(x))).mean(dim=(2, 3)))


def coloured(seed: int, kept: int) -> Setup:
    """Which of the three channels carry the stripes is the class."""

    def hide(x: Tensor, _t: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.arange(len(x)) % 8
        on = torch.stack([t % 2, t // 2 % 2, t // 4], dim=1).float()
        return x * on[:, :, None, None], t

    return live(Grey(kept), tiles(seed, channels=3).changed(hide), lr=1e-2, steps=80)


colours = zoo.healthy("tiles-three-channels-kept", lambda s: coloured(s, 3))
zoo.sick(
    "tiles-three-channels-mixed-to-one",
    lambda s: coloured(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("mix", "conv"),
    also={"LOW_RANK"},
    control=colours,
)

# --- dead, flat, cut


def small(bias: float = 0.0, act: type[nn.Module] = nn.ReLU, scale: float = 1.0) -> nn.Sequential:
    """Two convolutions, a mean, a dense layer; the second begins with a bias, the first with a scale."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5), act(), nn.Conv2d(16, 24, 3), act(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 6)
    )
    nn.init.constant_(model[2].bias, bias)
    model[0].weight.data *= scale
    return model


plain = zoo.healthy("tiles-two-convolutions", lambda s: tiled(s, small()))
zoo.sick(
    "tiles-second-convolution-begins-at-minus-9",
    lambda s: tiled(s, small(-9.0)),
    lasting(dead("3", 0.97)),
    "DEAD",
    layer=("2", "6"),
    also={*DEADENS, *ONE_WAY},
    control=plain,
)
bounded = zoo.healthy("tiles-two-tanh-convolutions", lambda s: tiled(s, small(act=nn.Tanh)))
zoo.sick(
    "tiles-tanh-pictures-as-bytes-of-a-camera",
    lambda s: live(small(act=nn.Tanh, scale=2.0), tiles(s).mapped(lambda x: 60 * x), lr=3e-3, steps=60),
    lasting(saturated("1", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="0",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=bounded,
)


class Thresholded(nn.Module):
    """Edges by a convolution, made black and white, then read; `soft` uses a steep sigmoid for it."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.soft, self.edges, self.read, self.out = (
            soft,
            nn.Conv2d(1, 12, 3, padding=1),
            nn.Conv2d(12, 24, 3),
            nn.Linear(24, 6),
        )

    def forward(self, x: Tensor) -> Tensor:
        e = self.edges(x)
        e = torch.sigmoid(3 * e) if self.soft else (e > 0).float()
        return self.out(F.relu(self.read(e)).mean(dim=(2, 3)))


steep = zoo.healthy("tiles-edges-by-a-sigmoid", lambda s: tiled(s, Thresholded(True), lr=1e-2))
zoo.sick(
    "tiles-edges-in-black-and-white",
    lambda s: tiled(s, Thresholded(False), lr=1e-2),
    lasting(no_gradient("edges")),
    "DISCONNECTED",
    layer="edges",
    also={"DEAD", "SATURATION"},
    control=steep,
)

# --- growing and dying


def chain(depth: int, gain: float, act: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(depth):
        conv = nn.Conv1d(2 if i == 0 else 16, 16, 3, padding=1)
        nn.init.normal_(conv.weight, std=gain / math.sqrt(3 * conv.in_channels))
        layers += [conv, act()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 5))


short = zoo.healthy("calls-three-convolutions", lambda s: called(s, chain(3, 1.4, nn.ReLU)), thrives(most_dead=0.4))
zoo.sick(
    "calls-ten-convolutions-gain-4",
    lambda s: called(s, chain(10, 4.0, nn.LeakyReLU), lr=1e-6),
    lasting(gradient_ratio("0", "18", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL"},
    control=short,
)
zoo.sick(
    "calls-nine-tanh-convolutions-gain-0.2",
    lambda s: called(s, chain(9, 0.2, nn.Tanh), kind="SGD", lr=0.05),
    both(lasting(gradient_ratio("0", "16", below=1e-3)), lags(0.08)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=short,
)

# --- numbers and jumps


class Contrast(nn.Module):
    """Pictures divided by their own deviation; `eps` is added to the variance."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.net = eps, small()

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=(1, 2, 3), keepdim=True)
        return self.net(x / (x.square().mean(dim=(1, 2, 3), keepdim=True) + self.eps).sqrt())


def dark(seed: int, eps: float) -> Setup:
    """Now and then the lens cap is on."""
    now = every(15, 9)

    def cap(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x[1:]]) if now() else x

    return live(Contrast(eps), tiles(seed).mapped(cap), lr=5e-3, steps=60)


capped = zoo.healthy("tiles-own-contrast-with-eps", lambda s: dark(s, 1e-3))
zoo.sick("tiles-own-contrast-of-nothing", lambda s: dark(s, 0.0), breaks, "NUMERICAL", control=capped)


def flashed(seed: int, factor: float) -> Setup:
    """Now and then there is a flash."""
    now = every(12, 7)

    def flash(x: Tensor) -> Tensor:
        return torch.cat([factor * x[:3], x[3:]]) if now() else x

    return live(Coder(10), quilts(seed).changed(lambda x, _t: (flash(x),) * 2), lr=2e-3, steps=70)


steady = zoo.healthy("quilts-steady-light", lambda s: flashed(s, 1.0))
zoo.sick("quilts-flashes", lambda s: flashed(s, 3000.0), gradient_norms_spread(30), *JUMPS, control=steady)

# --- healthy, though odd


def separable(norm: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Hardswish(),
        nn.Conv2d(16, 16, 5, groups=16),
        nn.BatchNorm2d(16) if norm else nn.Identity(),
        nn.Hardswish(),
        nn.Conv2d(16, 24, 1),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 6),
    )


zoo.healthy("tiles-depthwise-hard-swish", lambda s: tiled(s, separable(), lr=1e-2))
zoo.healthy(
    "tiles-group-norms",
    lambda s: tiled(
        s,
        nn.Sequential(
            nn.Conv2d(1, 16, 5),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3),
            nn.GroupNorm(1, 24),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(24, 6),
        ),
    ),
)


def spectral(seed: int) -> Setup:
    norm = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(
        norm(nn.Conv2d(1, 16, 5)), nn.LeakyReLU(), norm(nn.Conv2d(16, 24, 3)), nn.Flatten(), nn.Linear(24 * 16, 6)
    )
    return tiled(seed, model)


zoo.healthy("tiles-spectral-norms", spectral)


def edges(seed: int) -> Setup:
    """The first filters are fixed: steps along both axes and their second steps."""
    model = small()
    model[0] = nn.Conv2d(1, 16, 5, bias=False)
    line = torch.linspace(0, 2 * math.pi, 5)
    for i in range(16):
        wave = torch.sin((1 + i // 8) * (line[:, None] * math.cos(i) + line * math.sin(i)) + i)
        model[0].weight.data[i, 0] = wave / 5
    return tiled(seed, frozen(model, "0"))


zoo.healthy("tiles-fixed-first-filters", edges)


class Excited(nn.Module):
    """Channels are weighed by gates that see the whole picture through two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze, self.excite = nn.Conv2d(1, 24, 5), nn.Linear(24, 2), nn.Linear(2, 24)
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.conv(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean(dim=(2, 3))))) + 1)
        return self.head((h * gate[:, :, None, None]).square().mean(dim=(2, 3)))


zoo.healthy("tiles-gates-by-two-numbers", lambda s: tiled(s, Excited(), lr=1e-2))


def dice(z: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


zoo.healthy("coins-by-dice", lambda s: live(Unet(16, True), coins(s).with_loss(dice), lr=1e-2, steps=60))


class Thick(nn.Module):
    """Dilated convolutions with gates, each added to one sum that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 16, 1)
        self.layers = nn.ModuleList(nn.Conv1d(16, 32, 3, dilation=2**i, padding=2**i) for i in range(3))
        self.sums = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.enter(x), 0
        for layer, to_sum in zip(self.layers, self.sums, strict=True):
            a, b = layer(x).chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            x, total = x + h, total + to_sum(h)
        return self.head(F.relu(total).amax(dim=2))


zoo.healthy("calls-dilated-with-gates", lambda s: called(s, Thick()))


class Denoiser(nn.Module):
    """Says the noise that was put on a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(24, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def noised(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 31)

    def spoil(x: Tensor, _t: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(x.shape, generator=random)
        return x + 0.5 * noise, noise

    return live(Denoiser(), quilts(seed).changed(spoil), lr=5e-3, steps=70)


zoo.healthy("quilts-noise-asked-for", noised)


class Matched(nn.Module):
    """Two views of each picture: one shifted, one noisy; matched within the batch by cosines over 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.Flatten(), nn.Linear(24, 12)
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = (F.normalize(self.net(x), dim=1) for x in (a, b))
        return a @ b.T / 0.1


def matched(seed: int) -> Setup:
    def views(x: Tensor, _t: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (x.roll(1, 3), x.flip(2)), torch.arange(len(x))

    return live(Matched(), quilts(seed).changed(views).with_loss(F.cross_entropy), lr=5e-3, steps=60)


zoo.healthy("quilts-views-matched", matched)
zoo.healthy(
    "tiles-dropped-channels-and-decay",
    lambda s: tiled(
        s,
        nn.Sequential(
            nn.Conv2d(1, 24, 5), nn.GELU(), nn.Dropout2d(0.3), nn.Conv2d(24, 24, 3), nn.Flatten(), nn.Linear(384, 6)
        ),
        weight_decay=0.1,
    ),
)
zoo.healthy(
    "tiles-sgd-nesterov-with-warm-up",
    lambda s: tiled(
        s, separable(), kind="SGD", lr=0.2, momentum=0.9, nesterov=True, rate=lambda i: min(1.0, (i + 1) / 20)
    ),
)
