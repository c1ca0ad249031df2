# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutions over stamps, fields, mists and heartbeats, with one fault each, their twins, and odd healthy ones.

Half: sealed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import fields, mists, mixtures, pulses, stamps
from validation.evidence.live import breaks, lags, lasting, thrives
from validation.evidence.signal import both, dead, equal_units, gradient_ratio, no_gradient, saturated
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("cnn", half="sealed", proof=thrives())


def conv(a: int, b: int, size: int = 3, **more) -> nn.Conv2d:
    return nn.Conv2d(a, b, size, padding=size // 2, **more)


# --- narrow


class Coder(nn.Module):
    """A picture as `size` numbers, and back by transposed convolutions."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 16, 4, 2, 1), nn.GELU(), nn.Conv2d(16, 24, 4, 2, 1), nn.GELU())
        self.code, self.grow = nn.Linear(96, size), nn.Linear(size, 96)
        self.up = nn.Sequential(nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(16, 2, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        z = self.code(self.down(x).flatten(1))
        return self.up(F.gelu(self.grow(z)).unflatten(1, (24, 2, 2)))


coder = zoo.healthy("mixtures-code-of-12", lambda s: live(Coder(12), mixtures(s), lr=5e-3, steps=90))
zoo.healthy("mixtures-code-of-6-for-6-parts", lambda s: live(Coder(6), mixtures(s), lr=5e-3, steps=90))
zoo.sick(
    "mixtures-code-of-1-for-6-parts",
    lambda s: live(Coder(1), mixtures(s), lr=5e-3, steps=90),
    lags(0.15),
    "BOTTLENECK",
    layer=("code", "grow"),
    also=NARROW,
    control=coder,
)


class Stem(nn.Module):
    """A stem that squeezes the colours before anything else is read."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem, self.conv1 = nn.Conv2d(4, channels, 1, bias=False), nn.Conv2d(channels, 24, 5, 2)
        self.conv2, self.fc = nn.Conv2d(24, 24, 3), nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv2(F.relu(self.conv1(self.stem(x)))))
        return self.fc(h.amax(dim=(2, 3)))


def stem(seed: int, channels: int) -> Setup:
    """What tells the stamps apart is the colour of an even square."""
    colours = 2.0 * torch.randn(8, 4, 1, 1, generator=torch.Generator().manual_seed(seed + 60))

    def tint(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return 0.25 * x + colours[t], t

    return live(Stem(channels), stamps(seed, 8, channels=4).changed(tint), lr=3e-3, steps=60)


wide_stem = zoo.healthy("stamps-stem-of-8-channels", lambda s: stem(s, 8))
zoo.sick(
    "stamps-stem-of-1-channel",
    lambda s: stem(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("stem", "conv1"),
    also=NARROW,
    control=wide_stem,
)


class Hourglass(nn.Module):
    """Goes down and up again; `skip` hands the pictures over the bottom."""

    def __init__(self, bottom: int, skip: bool) -> None:
        super().__init__()
        self.skip, self.enter, self.down = skip, conv(2, 16), conv(16, 24, stride=2)
        self.bottom, self.up = conv(24, bottom, 1), conv(bottom, 16)
        self.out = conv(32 if skip else 16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.silu(self.enter(x))
        low = self.bottom(F.silu(self.down(first)))
        h = F.interpolate(F.silu(self.up(low)), scale_factor=2)
        return self.out(torch.cat([h, first], dim=1) if self.skip else h)


def farms(seed: int, bottom: int, skip: bool) -> Setup:
    return live(Hourglass(bottom, skip), fields(seed, classes=4), lr=1e-2, steps=70)


hourglass = zoo.healthy("fields-hourglass-bottom-of-12", lambda s: farms(s, 12, False))
zoo.healthy("fields-hourglass-bottom-of-2-beside-a-skip", lambda s: farms(s, 2, True))
zoo.sick(
    "fields-hourglass-bottom-of-1",
    lambda s: farms(s, 1, False),
    lags(0.08),
    "BOTTLENECK",
    layer=("bottom", "up"),
    also=NARROW,
    control=hourglass,
)

# --- dead and flat


def classifier(channels: int = 1, classes: int = 6, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Three convolutions with norms: 0, 3, 6; the head is 11."""
    model = nn.Sequential()
    for a, b, stride in ((channels, 16, 1), (16, 24, 2), (24, 24, 1)):
        model.extend([conv(a, b, stride=stride), nn.BatchNorm2d(b), act()])
    return model.append(nn.AdaptiveMaxPool2d(1)).append(nn.Flatten()).append(nn.Linear(24, classes))


def prior(seed: int, at: int, value: float) -> Setup:
    """A detector's prior in the bias of a norm: the norm of the last convolution, where a head was meant."""
    model = classifier()
    nn.init.constant_(model[at].bias, value)
    return live(model, stamps(seed), lr=5e-3, steps=50)


no_prior = zoo.healthy("stamps-norms-as-they-begin", lambda s: prior(s, 7, 0.0))
zoo.sick(
    "stamps-prior-in-the-last-norm",
    lambda s: prior(s, 7, -25.0),
    lasting(dead("8", 0.97)),
    "DEAD",
    layer="6",
    also={*DEADENS, *ONE_WAY},
    control=no_prior,
)


def positive(seed: int, sign: float) -> Setup:
    """Weights of one sign over rectified signals: of the wrong sign, nothing ever passes."""
    model = nn.Sequential(nn.Conv1d(2, 16, 7), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU())
    with torch.no_grad():
        model[2].weight.copy_(sign * model[2].weight.abs())
        model[2].bias.fill_(-0.05)
    return live(
        model.extend([nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5)]), pulses(seed), lr=1e-2, steps=50
    )


upwards = zoo.healthy("pulses-weights-that-add", lambda s: positive(s, 1.0))
zoo.sick(
    "pulses-weights-that-subtract",
    lambda s: positive(s, -1.0),
    lasting(dead("3", 0.97)),
    "DEAD",
    layer="2",
    also={*DEADENS, *ONE_WAY},
    control=upwards,
)


class Spotlight(nn.Module):
    """A map of the picture weighs its places; `scale` stretches the map."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.conv1, self.look, self.conv2 = conv(1, 16, 5), conv(1, 16, 5), nn.Conv2d(16, 24, 3, 2)
        self.sigmoid, self.scale, self.fc = nn.Sigmoid(), scale, nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.conv1(x)) * self.sigmoid(self.scale * self.look(x))
        return self.fc(F.gelu(self.conv2(h)).amax(dim=(2, 3)))


spot = zoo.healthy("stamps-spotlight-scale-1", lambda s: live(Spotlight(1.0), stamps(s), lr=3e-3, steps=60))
zoo.sick(
    "stamps-spotlight-scale-2000",
    lambda s: live(Spotlight(2000.0), stamps(s), lr=3e-3, steps=60),
    lasting(saturated("sigmoid", "sigmoid", 0.85)),
    "SATURATION",
    "VANISHING",
    layer=("look", "conv2"),
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=spot,
)


def drawn(seed: int, std: float) -> Setup:
    """Bounded units; the deviation of the draw was given without the root of what goes in."""
    model = nn.Sequential(nn.Conv1d(2, 16, 7), nn.Tanh(), nn.Conv1d(16, 24, 7, 2), nn.Tanh())
    nn.init.normal_(model[2].weight, std=std)
    return live(
        model.extend([nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5)]), pulses(seed), lr=5e-3, steps=60
    )


small_draw = zoo.healthy("pulses-tanh-drawn-by-the-root", lambda s: drawn(s, 0.1))
zoo.sick(
    "pulses-tanh-drawn-with-deviation-8",
    lambda s: drawn(s, 8.0),
    lasting(saturated("3", "tanh", 0.8)),
    "SATURATION",
    "VANISHING",
    layer="2",
    also={"EXPLODING", "UNSTABLE"},
    control=small_draw,
)

# --- cut


class Points(nn.Module):
    """Where each of eight maps is brightest; `hard` takes the place itself, else a mean by brightness."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.maps, self.read = nn.Sequential(conv(2, 16), nn.SiLU(), conv(16, 8)), nn.Sequential()
        self.read = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 2))
        self.hard = hard

    def forward(self, x: Tensor) -> Tensor:
        maps = self.maps(x).flatten(2)
        if self.hard:
            at = maps.argmax(dim=2)
            place = torch.stack([at // 12, at % 12], dim=2).float()
        else:
            line = torch.arange(12).float()
            grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=2).flatten(0, 1)
            place = maps.softmax(dim=2) @ grid
        return self.read(place.flatten(1) / 6 - 1)


def points(seed: int, hard: bool) -> Setup:
    """Where the first crop's middle lies."""
    line = torch.linspace(-1, 1, 12)

    def middle(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        here = (t == 0).float() + 1e-3
        row = (here.sum(dim=2) * line).sum(dim=1) / here.sum(dim=(1, 2))
        column = (here.sum(dim=1) * line).sum(dim=1) / here.sum(dim=(1, 2))
        return x, torch.stack([row, column], dim=1)

    task = fields(seed, batch=32).changed(middle).with_loss(F.mse_loss)
    return live(Points(hard), task, lr=1e-2, steps=60)


soft = zoo.healthy("fields-places-by-a-mean", lambda s: points(s, False), thrives(idle="maps.2.bias"))
zoo.sick(
    "fields-places-by-argmax",
    lambda s: points(s, True),
    lasting(no_gradient("maps")),
    "DISCONNECTED",
    layer=("maps.0", "maps.2"),
    also={"DEAD"},
    control=soft,
)

# --- growing and dying


def plain_stack(depth: int, std=None) -> nn.Sequential:
    model = nn.Sequential(conv(1, 12), nn.ReLU())
    for _ in range(depth):
        model.extend([conv(12, 12), nn.ReLU()])
    for layer in model:
        if std is not None and isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, std=std)
            nn.init.zeros_(layer.bias)
    return model.append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten()).append(nn.Linear(12, 6))


ROOT = (2 / 108) ** 0.5
by_kernel = zoo.healthy(
    "stamps-4-convolutions-root-of-kernel-and-channels",
    lambda s: live(plain_stack(4, ROOT), stamps(s), lr=3e-3, steps=60),
    thrives(0.05),
)
zoo.sick(
    "stamps-9-convolutions-root-of-channels-alone",
    lambda s: live(plain_stack(9, (2 / 12) ** 0.5), stamps(s), lr=1e-7, steps=40),
    lasting(gradient_ratio("0", "18", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL", "first_loss_high"},
    control=by_kernel,
)
zoo.sick(
    "stamps-12-convolutions-default-draw",
    lambda s: live(plain_stack(12), stamps(s), "SGD", 0.05, 50, momentum=0.9),
    both(lasting(gradient_ratio("0", "24", below=10**-2.5)), lags(0.04)),
    "VANISHING",
    also={"SLOW", *ONE_WAY, "DEAD"},
    control=by_kernel,
)


def squashed(seed: int, act: type[nn.Module], depth: int, **more) -> Setup:
    """Sounds through bounded units that all lie above zero."""
    model = nn.Sequential(nn.Conv1d(2, 12, 5), act())
    for _ in range(depth):
        model.extend([nn.Conv1d(12, 12, 3, padding=1), act()])
    model.extend([nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(12, 5)])
    return live(model, pulses(seed), **{"lr": 5e-3, "steps": 60, **more})


tanh_sounds = zoo.healthy("pulses-two-tanh-convolutions", lambda s: squashed(s, nn.Tanh, 2))
zoo.sick(
    "pulses-six-sigmoid-convolutions",
    lambda s: squashed(s, nn.Sigmoid, 6, kind="SGD", lr=0.05),
    both(lasting(gradient_ratio("0", "12", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=tanh_sounds,
)

# --- equal


def filters(seed: int, same: bool) -> Setup:
    """Edge filters by hand, one copied to all channels, and a head that weighs all of them alike."""
    model = nn.Sequential(conv(1, 12, 5), nn.GELU(), conv(12, 16, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1))
    model.append(nn.Flatten()).append(nn.Linear(16, 6))
    if same:
        for at in (0, 2):
            model[at].weight.data = model[at].weight.data[:1].expand_as(model[at].weight).clone()
            model[at].bias.data.zero_()
        model[2].weight.data = model[2].weight.data[:, :1].expand_as(model[2].weight).clone()
        model[6].weight.data = model[6].weight.data[:, :1].expand_as(model[6].weight).clone()
    return live(model, stamps(seed, size=8), "SGD", 0.1, 60, momentum=0.9)


apart = zoo.healthy("stamps-filters-as-drawn", lambda s: filters(s, False))
zoo.sick(
    "stamps-one-filter-for-all-channels",
    lambda s: filters(s, True),
    both(lasting(equal_units("0.weight"), equal_units("2.weight")), lags(0.05)),
    "SYMMETRY",
    layer=("0", "2", "6"),
    also=ONE_WAY,
    control=apart,
)

# --- numbers


class Whitened(nn.Module):
    """Takes each picture's mean off and divides by its deviation, with or without an eps."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.conv1, self.conv2, self.fc = eps, nn.Conv2d(1, 16, 5), nn.Conv2d(16, 24, 3, 2), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x)
        mean = h.mean(dim=(2, 3), keepdim=True)
        h = (h - mean) / ((h - mean).square().mean(dim=(2, 3), keepdim=True) + self.eps).sqrt()
        return self.fc(F.silu(self.conv2(F.silu(h))).amax(dim=(2, 3)))


def blanks(seed: int, eps: float) -> Setup:
    """Now and then the camera is covered."""
    now = every(13, 8)

    def cover(x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x[1:]]) if now() else x

    return live(Whitened(eps), stamps(seed).mapped(cover), lr=3e-3, steps=60)


with_eps = zoo.healthy("stamps-covered-camera-with-eps", lambda s: blanks(s, 1e-3), thrives(idle="conv1.bias"))
zoo.sick("stamps-covered-camera-without-eps", lambda s: blanks(s, 0.0), breaks, "NUMERICAL", control=with_eps)


def logs(seed: int, floor: float) -> Setup:
    """Spectra as logarithms of their power; silence has none."""
    now = every(10, 6)

    def power(x: Tensor) -> Tensor:
        if now():
            x = torch.cat([torch.zeros_like(x[:1]), x[1:]])
        return torch.cat([x, (x.square() + floor).log()], dim=1)

    model = nn.Sequential(nn.Conv1d(4, 24, 7, 2), nn.GELU(), nn.Conv1d(24, 24, 5, 2), nn.GELU())
    model.extend([nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 5)])
    return live(model, pulses(seed).mapped(power), lr=3e-3, steps=60)


floored = zoo.healthy("pulses-logarithms-with-a-floor", lambda s: logs(s, 1e-3))
zoo.sick(
    "pulses-logarithms-of-silence",
    lambda s: logs(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"UNSTABLE", "EXPLODING"},
    control=floored,
)

# --- jumps and rates


def bytes_(seed: int, factor: float) -> Setup:
    """Files of one camera come as bytes and are not divided by 255."""
    now = every(10, 4)
    model = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 24, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    task = stamps(seed).mapped(lambda x: factor * x if now() else x)
    return live(model.append(nn.Flatten()).append(nn.Linear(24, 6)), task, lr=1e-3, steps=70)


divided = zoo.healthy("stamps-all-divided-by-255", lambda s: bytes_(s, 1.0), thrives(0.03))
zoo.sick("stamps-some-as-bytes", lambda s: bytes_(s, 255.0), gradient_norms_spread(30), *JUMPS, control=divided)


def crawls(seed: int, kind: str, lr: float) -> Setup:
    return live(
        classifier(2, 3, nn.SiLU)[:9].append(conv(24, 3, 1)).append(nn.Upsample(scale_factor=2)),
        fields(seed),
        kind,
        lr,
        50,
    )


walks = zoo.healthy("fields-adamax", lambda s: crawls(s, "Adamax", 5e-3))
zoo.sick("fields-adamax-rate-5e-9", lambda s: crawls(s, "Adamax", 5e-9), does_not_move(steps=50), "SLOW", control=walks)

# --- odd and well


class Separable(nn.Module):
    """Depthwise and pointwise layers, widened in between, as on telephones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up, self.norm1 = conv(1, 8, 5), conv(8, 32, 1), nn.BatchNorm2d(32)
        self.each, self.norm2 = conv(32, 32, 5, groups=32), nn.BatchNorm2d(32)
        self.down, self.fc = conv(32, 8, 1), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.down(F.hardswish(self.norm2(self.each(F.hardswish(self.norm1(self.up(h)))))))
        return self.fc(h.amax(dim=(2, 3)))


zoo.healthy("stamps-depthwise", lambda s: live(Separable(), stamps(s), lr=1e-2, steps=70), thrives(idle="stem.bias"))


class Dilated(nn.Module):
    """Gated temporal convolutions whose holes double from layer to layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.fc = nn.Conv1d(2, 16, 1), nn.Linear(16, 5)
        self.layers = nn.ModuleList(nn.Conv1d(16, 32, 3, padding=2**i, dilation=2**i) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            a, b = layer(x).chunk(2, dim=1)
            x = x + torch.tanh(a) * torch.sigmoid(b)
        return self.fc(x.amax(dim=2))


zoo.healthy("pulses-dilated-gates", lambda s: live(Dilated(), pulses(s), lr=5e-3, steps=60))


class Denoiser(nn.Module):
    """Tells the mist from the picture, and is told how thick it is."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.level, self.mid, self.out = conv(1, 16), nn.Linear(1, 16), conv(16, 16), conv(16, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = F.silu(self.enter(x) + self.level(level)[:, :, None, None])
        return self.out(h + F.silu(self.mid(h)))


zoo.healthy("mists-denoiser", lambda s: live(Denoiser(), mists(s), lr=5e-3, steps=60))


class Blurred(nn.Module):
    """A fixed blur before each stride, against aliases; it has weights that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("blur", (line[:, None] * line).expand(16, 1, 3, 3).clone())
        self.conv1, self.conv2, self.fc = conv(1, 16, 5), conv(16, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.conv2d(F.relu(self.conv1(x)), self.blur, stride=2, groups=16)
        return self.fc(F.relu(self.conv2(h)).amax(dim=(2, 3)))


zoo.healthy("stamps-fixed-blur", lambda s: live(Blurred(), stamps(s), lr=5e-3, steps=60))


class Excited(nn.Module):
    """Each channel is weighed by one hidden number of the whole picture: narrow, and beside the main way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.squeeze, self.excite = conv(2, 16), nn.Linear(16, 1), nn.Linear(1, 16)
        self.conv2 = conv(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.conv1(x))
        return self.conv2(h * torch.sigmoid(self.excite(F.silu(self.squeeze(h.mean(dim=(2, 3))))))[:, :, None, None])


zoo.healthy("fields-channels-weighed-by-one-number", lambda s: live(Excited(), fields(s), lr=1e-2, steps=60))


class Sub(nn.Module):
    """Colours become places by a pixel shuffle; coordinates come in as two more channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.up = nn.Conv2d(4, 24, 4, 2, 1), conv(24, 24), conv(24, 8)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, 8).expand(len(x), 1, 8, 8)
        h = F.gelu(self.down(torch.cat([x, line, line.transpose(2, 3)], dim=1)))
        return self.shuffle(self.up(h + F.gelu(self.mid(h))))


zoo.healthy("mixtures-pixel-shuffle", lambda s: live(Sub(), mixtures(s), lr=5e-3, steps=60))


def weighted(seed: int) -> Setup:
    """One crop counts ten times; borders do not count."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        t = t.clone()
        t[:, 0], t[:, -1] = -100, -100
        return F.cross_entropy(z, t, weight=torch.tensor([10.0, 1.0, 1.0]), ignore_index=-100)

    model = nn.Sequential(conv(2, 16, 5), nn.GroupNorm(4, 16), nn.ReLU(), conv(16, 16), nn.ReLU(), conv(16, 3, 1))
    return live(model, fields(seed).with_loss(loss), lr=5e-3, steps=60)


zoo.healthy("fields-weighted-classes", weighted)


def frozen_half(seed: int) -> Setup:
    """A stem from elsewhere that is not trained, with norms in evaluation mode."""
    model = classifier()
    model[:3].requires_grad_(False)
    model[1].eval()
    return live(model, stamps(seed), lr=1e-2, steps=60)


zoo.healthy("stamps-frozen-stem", frozen_half)


def two_dropped(seed: int) -> Setup:
    model = nn.Sequential(nn.Conv1d(2, 32, 7, 2), nn.ReLU(), nn.Dropout1d(0.3), nn.Conv1d(32, 32, 5, 2), nn.ReLU())
    model.extend([nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 5)])
    return live(model, pulses(seed), lr=5e-3, steps=70)


zoo.healthy("pulses-channels-and-features-dropped", two_dropped)
zoo.healthy(
    "stamps-sgd-nesterov-with-decay",
    lambda s: live(classifier(), stamps(s), "SGD", 0.05, 60, momentum=0.9, nesterov=True, weight_decay=5e-4),
)
