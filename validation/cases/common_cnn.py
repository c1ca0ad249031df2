# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks of every day, with the faults that people report, and their twins.

Half: common.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import SQUEEZED, Head, conv, engines, fabrics, marks, roads, skies, words, worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, RUINED, gaussian, glorot, he, stands_still, start
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import (
    both,
    channel_rank,
    dead,
    equal_units,
    gradient_ratio,
    no_gradient,
    rank_at_most,
    saturated,
)
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("cnn", half="common", proof=thrives())


# --- too narrow


class Fire(nn.Module):
    """Squeezes to a few channels and expands by two kinds of kernels, as SqueezeNet does."""

    def __init__(self, a: int, squeeze: int, b: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(a, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, b, 1), nn.Conv2d(squeeze, b, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.squeeze(x))
        return F.elu(torch.cat([self.one(x), self.three(x)], dim=1))


def fired(seed: int, squeeze: int) -> Setup:
    model = nn.Sequential(conv(3, 24, 2), Fire(24, squeeze, 16), nn.MaxPool2d(2), Fire(32, squeeze, 16), Head(32, 10))
    return live(model, fabrics(seed, 10, channels=3), "Adam", 5e-3, 70)


fires = zoo.healthy("fabrics-squeeze-net-squeeze-of-10", lambda s: fired(s, 10), thrives(0.2))
zoo.sick(
    "fabrics-squeeze-net-squeeze-of-1",
    lambda s: fired(s, 1),
    lags(0.2),
    *NARROW,
    layer=("1.squeeze", "3.squeeze", "1.one", "1.three"),
    also={*SQUEEZED, "DISCONNECTED", "VANISHING"},
    control=fires,
)


class Unet(nn.Module):
    """Down, a floor, up; the skip may be left out to save memory."""

    def __init__(self, floor: int, skip: bool = True, classes: int = 3) -> None:
        super().__init__()
        self.down1, self.down2 = conv(3, 16), conv(16, 24)
        self.floor, self.lift = nn.Conv2d(24, floor, 3, padding=1), nn.Conv2d(floor, 24, 3, padding=1)
        self.up = conv(40 if skip else 24, 16)
        self.out, self.skip = nn.Conv2d(16, classes, 1), skip

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        b = F.elu(self.lift(F.elu(self.floor(b))))
        b = F.interpolate(b, scale_factor=2)
        return self.out(self.up(torch.cat([a, b], dim=1) if self.skip else b))


zoo.healthy("roads-u-net-floor-of-16", lambda s: live(Unet(16), roads(s), "Adam", 5e-3, 40))
floored = zoo.healthy(
    "skies-u-net-without-skips-floor-of-12", lambda s: live(Unet(12, False), skies(s, 6), "Adam", 5e-3, 60)
)
zoo.sick(
    "skies-u-net-without-skips-floor-of-1",
    lambda s: live(Unet(1, False), skies(s, 6), "Adam", 5e-3, 60),
    both(lags(0.15), lasting(channel_rank("floor", 1.01))),
    *NARROW,
    layer=("floor", "lift"),
    control=floored,
)


class Rhythm(nn.Module):
    """An auto-encoder over time: strides, a code of so many numbers, strides back."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(4, 16, 5, 2, 2), nn.SiLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.SiLU(), nn.Flatten()
        )
        self.code, self.wide = nn.Linear(192, code), nn.Linear(code, 192)
        self.dec = nn.Sequential(nn.ConvTranspose1d(24, 16, 4, 2, 1), nn.SiLU(), nn.ConvTranspose1d(16, 4, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(F.silu(self.wide(self.code(self.enc(x)))).unflatten(1, (24, 8)))


rhythm = zoo.healthy("engines-conv1d-autoencoder-code-16", lambda s: live(Rhythm(16), engines(s), "AdamW", 5e-3, 90))
zoo.sick(
    "engines-conv1d-autoencoder-code-1",
    lambda s: live(Rhythm(1), engines(s), "AdamW", 5e-3, 90),
    both(lags(0.15), lasting(rank_at_most("code", 1.01))),
    *NARROW,
    layer=("code", "wide"),
    control=rhythm,
)


class Pointer(nn.Module):
    """Says where three marks are, from the features of a small net through a layer of `neck` units."""

    def __init__(self, neck: int) -> None:
        super().__init__()
        self.features = nn.Sequential(conv(3, 12, 2, norm=False), conv(12, 16, 2, norm=False), nn.Flatten())
        self.neck, self.norm, self.out = nn.Linear(256, neck), nn.LayerNorm(neck), nn.Linear(neck, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.neck(self.features(x))))


def pointed(seed: int, neck: int) -> Setup:
    return live(Pointer(neck), marks(seed), "Adam", 2e-3, 80)


pointer = zoo.healthy("marks-neck-of-32", lambda s: pointed(s, 32))
zoo.sick("marks-neck-of-2", lambda s: pointed(s, 2), lags(0.2), *NARROW, layer=("neck", "out"), control=pointer)


class Mobile(nn.Module):
    """Depth-wise and point-wise convolutions; the first point-wise one hands on `narrow` channels."""

    def __init__(self, narrow: int) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.deep1, self.point1 = nn.Conv2d(16, 16, 3, 2, 1, groups=16), nn.Conv2d(16, narrow, 1)
        self.deep2, self.point2 = nn.Conv2d(narrow, narrow, 3, 1, 1, groups=narrow), nn.Conv2d(narrow, 32, 1)
        self.bn1, self.bn2, self.head = nn.BatchNorm2d(narrow), nn.BatchNorm2d(32), Head(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.bn1(self.point1(self.deep1(self.stem(x)))))
        return self.head(F.hardswish(self.bn2(self.point2(self.deep2(x)))))


def mobile(seed: int, narrow: int) -> Setup:
    return live(Mobile(narrow), fabrics(seed, 10, channels=3), "Adam", 5e-3, 70)


mobiles = zoo.healthy("fabrics-mobile-net-of-24-channels", lambda s: mobile(s, 24))
zoo.sick(
    "fabrics-mobile-net-of-1-channel",
    lambda s: mobile(s, 1),
    lags(0.15),
    *NARROW,
    layer=("point1", "deep2", "point2"),
    control=mobiles,
)


class Upscale(nn.Module):
    """Makes a picture twice as fine: features, a neck, a shuffle of dots."""

    def __init__(self, neck: int) -> None:
        super().__init__()
        self.into, self.neck = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, neck, 1)
        self.out = nn.Conv2d(neck, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.out(self.neck(F.relu(self.into(x)))), 2)


def upscaled(seed: int, neck: int) -> Setup:
    return live(Upscale(neck), skies(seed).mapped(lambda x: F.avg_pool2d(x, 2)), "Adam", 1e-2, 60)


fine = zoo.healthy("skies-twice-as-fine-neck-of-12", lambda s: upscaled(s, 12))
zoo.sick(
    "skies-twice-as-fine-neck-of-1",
    lambda s: upscaled(s, 1),
    both(worse(2.0), lasting(channel_rank("neck", 1.01))),
    *NARROW,
    layer=("neck", "out"),
    control=fine,
)

# --- dying, growing, flat


def stack(depth: int, act: type[nn.Module], width: int = 12, norm: bool = False, classes: int = 8) -> nn.Sequential:
    layers = [conv(1 if i == 0 else width, width, 2 if i in (2, 5) else 1, norm, act) for i in range(depth)]
    return nn.Sequential(*layers, Head(width, classes))


def worn(seed: int, model: nn.Module, *args, factor: float = 1.0, **more) -> Setup:
    return live(model, fabrics(seed).mapped(lambda x: factor * x), *args, **more)


zoo.healthy(
    "fabrics-tanh-10x12-batch-norm", lambda s: worn(s, stack(10, nn.Tanh, norm=True), "SGD", 0.05, 50, momentum=0.9)
)
drawn = zoo.healthy(
    "fabrics-tanh-10x12-xavier", lambda s: worn(s, glorot(stack(10, nn.Tanh)), "SGD", 0.05, 50, momentum=0.9)
)
zoo.sick(
    "fabrics-tanh-10x12-normal-0.02",
    lambda s: worn(s, gaussian(stack(10, nn.Tanh), 0.02), "SGD", 0.05, 50, momentum=0.9),
    both(lasting(gradient_ratio("0.0", "9.0", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=drawn,
)
six = zoo.healthy("fabrics-relu-6x12-kaiming", lambda s: worn(s, he(stack(6, nn.ReLU)), "Adam", 3e-3, 60))
zoo.sick(
    "fabrics-relu-6x12-uniform-1",
    lambda s: worn(s, start(stack(6, nn.ReLU), lambda w: nn.init.uniform_(w, -1, 1)), "Adam", 3e-3, 60),
    both(lasting(gradient_ratio("0.0", "5.0", above=100)), worse(1.5)),
    "EXPLODING",
    "UNSTABLE",
    control=six,
)
slow = zoo.healthy(
    "fabrics-relu-6x12-kaiming-rmsprop-1e-3", lambda s: worn(s, he(stack(6, nn.ReLU)), "RMSprop", 1e-3, 50)
)
zoo.sick(
    "fabrics-relu-6x12-kaiming-rmsprop-0.3",
    lambda s: worn(s, he(stack(6, nn.ReLU)), "RMSprop", 0.3, 50),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=slow,
)
capped = zoo.healthy("fabrics-relu6-4x12-unit-inputs", lambda s: worn(s, he(stack(4, nn.ReLU6)), "Adam", 5e-3, 60))
zoo.sick(
    "fabrics-relu6-4x12-bytes",
    lambda s: worn(s, he(stack(4, nn.ReLU6)), "Adam", 5e-3, 60, factor=255.0),
    both(lasting(saturated("0.1", "relu6", 0.85)), worse(1.2)),
    "SATURATION",
    "VANISHING",
    layer=("0.0", "0.1"),
    also={"EXPLODING", "UNSTABLE"},
    control=capped,
)


class Painter(nn.Module):
    """From a blurred picture to a clear one that tanh bounds; the last convolution may start far too large."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.body, self.last = nn.Sequential(conv(3, 16), conv(16, 16)), nn.Conv2d(16, 3, 3, padding=1)
        self.last.weight.data *= gain

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(self.body(x)))


def painted(seed: int, gain: float) -> Setup:
    task = skies(seed, noise=0.3).with_loss(lambda y, t: F.mse_loss(y, torch.tanh(t / 2)))
    return live(Painter(gain), task, "Adam", 2e-3, 60)


painter = zoo.healthy("skies-tanh-picture", lambda s: painted(s, 1.0))
zoo.sick(
    "skies-tanh-picture-last-layer-times-100",
    lambda s: painted(s, 100.0),
    both(lasting(flat_behind("last", "tanh", 0.8)), worse(2)),
    "SATURATION",
    "VANISHING",
    layer=("last",),
    also={"EXPLODING", "UNSTABLE"},
    control=painter,
)


def dropped(seed: int, chance: float) -> Setup:
    """A chance to keep is given where torch wants a chance to drop."""
    model = nn.Sequential(conv(1, 16, 2), nn.Dropout2d(chance), conv(16, 24, 2, norm=False), Head(24, 8))
    return worn(seed, model, "Adam", 5e-3, 60)


dropout = zoo.healthy("fabrics-dropout-of-channels-0.1", lambda s: dropped(s, 0.1))
zoo.sick(
    "fabrics-dropout-of-channels-1.0",
    lambda s: dropped(s, 1.0),
    both(lasting(dead("1", 0.99), no_gradient("0")), worse(1.5)),
    "DEAD",
    "DISCONNECTED",
    layer=("0.0", "1", "2.0"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", "SLOW"},
    control=dropout,
)


def inflated(seed: int, same: bool) -> Setup:
    """A pretrained filter is copied to every channel of the new, wider layers."""
    model = nn.Sequential(conv(1, 16, 2, norm=False), conv(16, 16, 2, norm=False), Head(16, 8))
    if same:
        for layer in (model[0][0], model[1][0]):
            layer.weight.data.copy_(layer.weight[:1, :1].abs().expand_as(layer.weight) / layer.in_channels**0.5)
            nn.init.constant_(layer.bias, 0.1)
        nn.init.constant_(model[2].fc.weight, 0.1)
    return worn(seed, model, "Adam", 5e-3, 60)


apart = zoo.healthy("fabrics-two-layers-drawn-apart", lambda s: inflated(s, False))
zoo.sick(
    "fabrics-one-filter-copied-to-all-channels",
    lambda s: inflated(s, True),
    both(lasting(equal_units("0.0.weight"), equal_units("1.0.weight")), worse(1.2)),
    "SYMMETRY",
    "LOW_RANK",
    also={"BOTTLENECK", "DEAD"},
    control=apart,
)

# --- cut off


class Inception(nn.Module):
    """Two branches, and a head on the way that helps while training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(1, 16, 2)
        self.one, self.three = nn.Conv2d(16, 12, 1), nn.Conv2d(16, 12, 3, padding=1)
        self.helper, self.head = Head(16, 8), Head(24, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        return self.head(F.relu(torch.cat([self.one(x), self.three(x)], dim=1))), self.helper(x)


def inception(seed: int, help_: bool) -> Setup:
    def loss(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
        return F.cross_entropy(out[0], t) + (0.3 * F.cross_entropy(out[1], t) if help_ else 0.0)

    return live(Inception(), fabrics(seed).with_loss(loss), "AdamW", 5e-3, 60)


helper = zoo.healthy("fabrics-inception-with-its-helper", lambda s: inception(s, True))
zoo.sick(
    "fabrics-inception-helper-not-in-the-loss",
    lambda s: inception(s, False),
    lasting(no_gradient("helper")),
    *CUT_OFF,
    layer=("helper.fc",),
    control=helper,
)


class Turned(nn.Module):
    """A small net shifts the picture before it is classified; its grid may be made without a gradient."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.where = nn.Sequential(conv(1, 8, 2), conv(8, 8, 2), nn.Flatten(), nn.Linear(128, 6))
        self.net, self.cut = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2), Head(24, 8)), cut
        nn.init.normal_(self.where[3].weight, std=0.01)
        self.where[3].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.cut):
            grid = F.affine_grid(self.where(x).unflatten(1, (2, 3)), list(x.shape), align_corners=False)
        return self.net(F.grid_sample(x, grid, align_corners=False))


turned = zoo.healthy("fabrics-spatial-transformer", lambda s: worn(s, Turned(False), "Adam", 3e-3, 60))
zoo.sick(
    "fabrics-spatial-transformer-grid-without-gradient",
    lambda s: worn(s, Turned(True), "Adam", 3e-3, 60),
    lasting(no_gradient("where")),
    *CUT_OFF,
    layer=("where.3", "where.0.0", "where.1.0"),
    control=turned,
)


class Streams(nn.Module):
    """Two streams, for the picture and for its edges; what joins them may lose the graph of the second."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.look, self.edge = conv(1, 12, 2), conv(2, 12, 2)
        self.join, self.head, self.cut = conv(24, 24, 2), Head(24, 8), cut

    def forward(self, x: Tensor) -> Tensor:
        edges = torch.cat([x - x.roll(1, 2), x - x.roll(1, 3)], dim=1)
        e = self.edge(edges)
        if self.cut:
            e = torch.from_numpy(e.detach().numpy())
        return self.head(self.join(torch.cat([self.look(x), e], dim=1)))


streams = zoo.healthy("fabrics-two-streams-joined", lambda s: worn(s, Streams(False), "Adam", 3e-3, 60))
zoo.sick(
    "fabrics-two-streams-second-through-numpy",
    lambda s: worn(s, Streams(True), "Adam", 3e-3, 60),
    lasting(no_gradient("edge")),
    *CUT_OFF,
    layer=("edge.0", "edge"),
    control=streams,
)

# --- spikes, numbers, rates


def found(seed: int, floor: float) -> Setup:
    """The loss is divided by the number of dots of the rare class, of which some batches have none."""
    now = every(10, 7)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.zeros_like(t) if now() else (t == 1).long()

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z, t, reduction="sum") / t.sum().clamp_min(floor)

    model = nn.Sequential(conv(3, 12), conv(12, 12), nn.Conv2d(12, 2, 1))
    return live(model, roads(seed).changed(change).with_loss(loss), "Adam", 3e-3, 70)


found_all = zoo.healthy("roads-loss-by-the-number-of-finds-floor-500", lambda s: found(s, 500.0))
zoo.sick(
    "roads-loss-by-the-number-of-finds-floor-0.01",
    lambda s: found(s, 0.01),
    gradient_norms_spread(50),
    *JUMPS,
    also={"NUMERICAL"},
    control=found_all,
)


def rare(seed: int, least: float) -> Setup:
    """Positives count by how much rarer they are in their batch; some batches have none."""
    now = every(10, 7)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.zeros(t.shape) if now() else (t == 0).float()

    def loss(z: Tensor, t: Tensor) -> Tensor:
        weight = (1 - t).sum() / t.sum().clamp_min(least)
        return F.binary_cross_entropy_with_logits(z[:, 0], t, pos_weight=weight)

    model = nn.Sequential(conv(3, 12), conv(12, 12), nn.Conv2d(12, 1, 1))
    return live(model, roads(seed).changed(change).with_loss(loss), "Adam", 5e-3, 60)


balanced = zoo.healthy("roads-weight-by-rarity-in-the-batch-at-least-one", lambda s: rare(s, 1.0))
zoo.sick("roads-weight-by-rarity-in-a-batch-without-any", lambda s: rare(s, 0.0), breaks, "NUMERICAL", control=balanced)


class Contrast(nn.Module):
    """Takes the mean from every picture and divides by its deviation, by hand."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.net, self.eps = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2), Head(24, 8)), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=(1, 2, 3), keepdim=True)
        return self.net(x / (x.pow(2).mean(dim=(1, 2, 3), keepdim=True).sqrt() + self.eps))


def blank(seed: int, eps: float) -> Setup:
    """One picture of every eighth batch failed to load and is black."""
    now = every(8, 5)
    task = fabrics(seed).mapped(lambda x: torch.cat([0 * x[:1], x[1:]]) if now() else x)
    return live(Contrast(eps), task, "Adam", 5e-3, 60)


guarded = zoo.healthy("fabrics-contrast-by-hand-with-eps", lambda s: blank(s, 1e-4))
zoo.sick("fabrics-contrast-by-hand-of-a-black-picture", lambda s: blank(s, 0.0), breaks, "NUMERICAL", control=guarded)


class Speech(nn.Module):
    """Convolutions over time with group norm, the mean, a head."""

    def __init__(self, narrow: int = 32) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(12, 32, 5, padding=2), nn.Conv1d(32, narrow, 5, padding=2)
        self.norm1, self.fc = nn.GroupNorm(4, 32), nn.Linear(narrow, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.norm1(self.conv1(x)))))
        return self.fc(torch.cat([x.mean(dim=2)], dim=1))


def spoken(seed: int, *args, narrow: int = 32, **more) -> Setup:
    return live(Speech(narrow), words(seed), *args, **more)


speech = zoo.healthy("words-conv1d-adam-3e-3", lambda s: spoken(s, "Adam", 3e-3, 60))
zoo.sick(
    "words-conv1d-adam-3e-9", lambda s: spoken(s, "Adam", 3e-9, 60), does_not_move(steps=60), "SLOW", control=speech
)
zoo.sick(
    "words-conv1d-last-features-of-1",
    lambda s: spoken(s, "Adam", 3e-3, 60, narrow=1),
    lags(0.2),
    *NARROW,
    layer=("conv2", "fc"),
    also=SQUEEZED,
    control=speech,
)
plateau = zoo.healthy(
    "words-rate-cut-after-a-long-plateau", lambda s: spoken(s, "Adam", 5e-3, 70, rate=lambda t: 0.3 ** (t // 35))
)
zoo.sick(
    "words-rate-cut-at-every-step-without-patience",
    lambda s: spoken(s, "Adam", 5e-3, 70, rate=lambda t: 0.3**t),
    stands_still(20),
    "SLOW",
    control=plateau,
)
