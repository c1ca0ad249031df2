# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain convolutional networks with the mistakes that people make, and their twins.

Half: plain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import SQUEEZED, worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he, start
from validation.cases._plain_nets import (
    BLOWN,
    COLLAPSED,
    alike,
    bands,
    block,
    coins,
    dunes,
    pooled,
    scans,
    shapes,
    tiles,
    tracks,
)
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import both, channel_rank, dead, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("cnn", half="plain", proof=thrives())

# --- too narrow


class Slim(nn.Module):
    """Widths times a factor, rounded down but never below one."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        a, b, c = (max(1, int(factor * width)) for width in (16, 24, 32))
        self.conv1, self.bn1 = nn.Conv2d(3, a, 3, 2, 1, bias=False), nn.BatchNorm2d(a)
        self.conv2, self.bn2 = nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b)
        self.conv3, self.bn3 = nn.Conv2d(b, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.fc = nn.Linear(c, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.bn1(self.conv1(x)))
        x = F.silu(self.bn2(self.conv2(x)))
        return self.fc(F.silu(self.bn3(self.conv3(x))).mean(dim=(2, 3)))


def slim(seed: int, factor: float) -> Setup:
    return live(Slim(factor), shapes(seed), "AdamW", 6e-3, 80)


widths = zoo.healthy("shapes-width-multiplier-1", lambda s: slim(s, 1.0))
zoo.sick(
    "shapes-width-multiplier-0.05",
    lambda s: slim(s, 0.05),
    lags(0.2),
    *NARROW,
    layer=("conv1", "conv2", "conv3", "fc", "bn1", "bn2", "bn3"),
    also=SQUEEZED,
    control=widths,
)


class Mapper(nn.Module):
    """Maps from bands, through a neck of so many channels."""

    def __init__(self, neck: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(6, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.GELU())
        self.neck, self.outer = nn.Conv2d(32, neck, 1), nn.Conv2d(neck, 32, 3, padding=1)
        self.maps = nn.Conv2d(32, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(F.gelu(self.outer(self.neck(self.inner(x)))))


def mapped(seed: int, neck: int) -> Setup:
    return live(Mapper(neck), bands(seed), "Adam", 4e-3, 70)


maps = zoo.healthy("bands-neck-of-12-channels", lambda s: mapped(s, 12))
zoo.sick(
    "bands-neck-of-1-channel",
    lambda s: mapped(s, 1),
    both(lags(0.2), lasting(channel_rank("neck", 1.01))),
    *NARROW,
    layer=("neck", "outer"),
    control=maps,
)


class Dune(nn.Module):
    """Strides down to a code, and back."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 4, 2, 1), nn.Conv2d(12, 24, 3, 1, 1)
        self.code, self.wide = nn.Linear(864, code), nn.Linear(code, 864)
        self.back2, self.back1 = nn.Conv2d(24, 12, 3, 1, 1), nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x))), 0.2)
        x = F.leaky_relu(self.wide(self.code(x.flatten(1))), 0.2).unflatten(1, (24, 6, 6))
        return self.back1(F.leaky_relu(self.back2(x), 0.2))


def duned(seed: int, code: int) -> Setup:
    return live(Dune(code), dunes(seed), "Adam", 3e-3, 90)


dune = zoo.healthy("dunes-conv-autoencoder-code-16-of-8-waves", lambda s: duned(s, 16))
zoo.sick(
    "dunes-conv-autoencoder-code-1-of-8-waves",
    lambda s: duned(s, 1),
    both(lags(0.2), lasting(rank_at_most("code", 1.01))),
    *NARROW,
    layer=("code", "wide"),
    control=dune,
)


class Wrist(nn.Module):
    """Convolutions over time whose last features are so few before the head."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(3, 24, 7, 2, 3), nn.BatchNorm1d(24)
        self.conv2, self.bn2 = nn.Conv1d(24, 48, 5, 2, 2), nn.BatchNorm1d(48)
        self.embed, self.fc = nn.Linear(48, last), nn.Linear(last, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x))).amax(dim=2)
        return self.fc(F.elu(self.embed(x)))


wrist = zoo.healthy("tracks-embedding-of-32", lambda s: live(Wrist(32), tracks(s), "Adam", 3e-3, 60))
zoo.sick(
    "tracks-embedding-of-1",
    lambda s: live(Wrist(1), tracks(s), "Adam", 3e-3, 60),
    lags(0.2),
    *NARROW,
    layer=("embed", "fc"),
    also=SQUEEZED,
    control=wrist,
)

# --- all alike


def aliased(seed: int, same: bool) -> Setup:
    """The loader fills one buffer again and again, so that every place of the batch shows its last picture."""
    model = pooled(block(1, 16, pool=True), block(16, 24), width=24, out=8)
    task = tiles(seed).mapped(lambda x: x[-1:].expand_as(x).contiguous() if same else x)
    return live(model, task, "Adam", 4e-3, 60)


loader = zoo.healthy("tiles-a-buffer-for-every-picture", lambda s: aliased(s, False))
zoo.sick(
    "tiles-one-buffer-for-the-whole-batch",
    lambda s: aliased(s, True),
    both(lasting(alike("0.0")), lags(0.3)),
    *COLLAPSED,
    also={"loss_stuck", "SYMMETRY", "SLOW", "VANISHING", "DEAD", "NUMERICAL"},
    control=loader,
)

# --- dying, growing, flat


def plain(depth: int, act: type[nn.Module], width: int = 16, classes: int = 6, channels: int = 3) -> nn.Sequential:
    blocks = [block(channels if i == 0 else width, width, act, norm=False, pool=i in (1, 3)) for i in range(depth)]
    return pooled(*blocks, width=width, out=classes)


zoo.healthy("shapes-relu-4-convs-torch-default", lambda s: live(plain(4, nn.ReLU), shapes(s), "Adam", 4e-3, 80))
kaiming = zoo.healthy(
    "tiles-relu-12-convs-kaiming",
    lambda s: live(he(plain(12, nn.ReLU, 12, 8, 1)), tiles(s), "SGD", 0.02, 90, momentum=0.9),
)
zoo.sick(
    "tiles-relu-12-convs-torch-default",
    lambda s: live(plain(12, nn.ReLU, 12, 8, 1), tiles(s), "SGD", 0.02, 90, momentum=0.9),
    both(lasting(gradient_ratio("0.0", "11.0", below=1e-3)), lags(0.08)),
    "VANISHING",
    also={"SLOW", "loss_stuck", "never_moves", "rate_too_low", "LOW_RANK", "BOTTLENECK", "DEAD"},
    control=kaiming,
)
elu = zoo.healthy("tiles-elu-7-convs", lambda s: live(plain(7, nn.ELU, 16, 8, 1), tiles(s), "Adam", 2e-3, 80))
zoo.sick(
    "tiles-sigmoid-7-convs",
    lambda s: live(plain(7, nn.Sigmoid, 16, 8, 1), tiles(s), "Adam", 2e-3, 80),
    both(lasting(gradient_ratio("0.0", "6.0", below=1e-3)), lags(0.15)),
    "VANISHING",
    also={"SLOW", "loss_stuck", "never_moves", "rate_too_low", "LOW_RANK", "BOTTLENECK", "SATURATION"},
    control=elu,
)
drawn = zoo.healthy(
    "tiles-relu-5-convs-kaiming", lambda s: live(he(plain(5, nn.ReLU, 16, 8, 1)), tiles(s), "Adam", 3e-3, 80)
)
zoo.sick(
    "tiles-relu-5-convs-uniform-with-its-default-of-0-to-1",
    lambda s: live(start(plain(5, nn.ReLU, 16, 8, 1), nn.init.uniform_), tiles(s), "Adam", 3e-3, 80),
    both(lasting(gradient_ratio("0.0", "4.0", above=100)), worse(2.0)),
    "EXPLODING",
    "UNSTABLE",
    also={"first_loss_high", "LOW_RANK", "BOTTLENECK", "SYMMETRY", "DEAD", "NUMERICAL"},
    control=drawn,
)


def summed(seed: int, reduction: str) -> Setup:
    model = nn.Sequential(block(1, 16, nn.ELU), block(16, 16, nn.ELU), nn.Conv2d(16, 1, 3, padding=1))
    task = dunes(seed, noise=0.5).with_loss(lambda y, t: F.mse_loss(y, t, reduction=reduction))
    return live(model, task, "SGD", 0.01, 60, momentum=0.9)


mean = zoo.healthy("dunes-noise-removed-mean-error", lambda s: summed(s, "mean"))
zoo.sick(
    "dunes-noise-removed-summed-error",
    lambda s: summed(s, "sum"),
    diverges(),
    *RUNS_AWAY,
    also={*BLOWN, "summed_loss"},
    control=mean,
)
calm = zoo.healthy(
    "tiles-relu-5-convs-sgd-0.03",
    lambda s: live(he(plain(5, nn.ReLU, 16, 8, 1)), tiles(s), "SGD", 0.03, 80, momentum=0.9),
)
zoo.sick(
    "tiles-relu-5-convs-sgd-5",
    lambda s: live(he(plain(5, nn.ReLU, 16, 8, 1)), tiles(s), "SGD", 5.0, 80, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also=BLOWN,
    control=calm,
)


class Bytes(nn.Module):
    """An auto-encoder whose picture ends in a sigmoid, which says 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 1, 1), nn.ReLU())
        self.dec, self.last = nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.Conv2d(12, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.last(F.relu(self.dec(self.enc(x)))))


def painted(seed: int, top: float) -> Setup:
    """The target is the picture between 0 and 1, or as bytes."""
    task = dunes(seed).with_loss(lambda y, t: F.mse_loss(y, top * torch.sigmoid(t)))
    return live(Bytes(), task, "Adam", 5e-3, 90)


painter = zoo.healthy("dunes-sigmoid-picture-targets-to-1", lambda s: painted(s, 1.0))
zoo.sick(
    "dunes-sigmoid-picture-targets-to-255",
    lambda s: painted(s, 255.0),
    both(at_last(flat_behind("last", "sigmoid", 0.9)), lags(0.3)),
    "SATURATION",
    "VANISHING",
    layer=("last",),
    also={"loss_stuck", "first_loss_high", "UNSTABLE", "EXPLODING", "SLOW", "DEAD"},
    control=painter,
)


class Slices(nn.Module):
    """Tanh convolutions at full size, a class for every dot."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(1, 16, 3, padding=1), nn.Tanh()
        self.conv2, self.act2 = nn.Conv2d(16, 16, 3, padding=1), nn.Tanh()
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.act2(self.conv2(self.act1(self.conv1(x)))))


def sliced(seed: int, factor: float) -> Setup:
    return live(Slices(), scans(seed).mapped(lambda x: factor * x), "Adam", 3e-3, 60)


unit = zoo.healthy("scans-tanh-standardised", lambda s: sliced(s, 1.0))
zoo.sick(
    "scans-tanh-in-hounsfield-units",
    lambda s: sliced(s, 1000.0),
    both(lasting(saturated("act1", "tanh", 0.9)), worse(1.15)),
    "SATURATION",
    "VANISHING",
    layer=("conv1", "act1"),
    also={"input_scales", "UNSTABLE", "EXPLODING"},
    control=unit,
)


class Detector(nn.Module):
    """A map of coins; the bias of the prior may be given to every convolution."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.conv1, self.relu1 = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()
        self.conv2, self.relu2 = nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        self.heat = nn.Conv2d(16, 1, 3, padding=1)
        for conv in (self.conv1, self.conv2):
            nn.init.constant_(conv.bias, bias)
        nn.init.constant_(self.heat.bias, -2.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.heat(self.relu2(self.conv2(self.relu1(self.conv1(x)))))


def focal(z: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    weight = (t - p).abs() ** 2
    return 10 * (weight * F.binary_cross_entropy_with_logits(z, t, reduction="none")).mean()


def detected(seed: int, bias: float) -> Setup:
    return live(Detector(bias), coins(seed).with_loss(focal), "Adam", 5e-3, 70)


detector = zoo.healthy("coins-focal-loss-prior-at-the-last", lambda s: detected(s, 0.0))
zoo.sick(
    "coins-focal-loss-prior-at-every-convolution",
    lambda s: detected(s, -4.6),
    both(lasting(dead("relu1", 0.95)), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=("conv1", "relu1", "conv2", "relu2"),
    also={"loss_stuck", "never_moves", "VANISHING", "LOW_RANK", "BOTTLENECK", "SLOW"},
    control=detector,
)


def zeroed(seed: int, gamma: float) -> Setup:
    """Scales of norms that start at zero are for branches beside a skip; this net has none."""
    model = pooled(block(1, 16, pool=True), block(16, 24), block(24, 24), width=24, out=8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, gamma)
    return live(model, tiles(seed), "SGD", 0.05, 60, momentum=0.9)


gammas = zoo.healthy("tiles-batch-norm-scales-at-1", lambda s: zeroed(s, 1.0))
zoo.sick(
    "tiles-batch-norm-scales-at-0-without-skips",
    lambda s: zeroed(s, 0.0),
    both(lasting(dead("0.2", 0.99), no_gradient("0", "1", "2")), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=tuple(f"{i}.{part}" for i in (0, 1, 2) for part in (0, 1, 2)),
    also={"loss_stuck", "never_moves", "VANISHING", "LOW_RANK", "BOTTLENECK", "SLOW", "SYMMETRY"},
    control=gammas,
)

# --- cut off


class Tuned(nn.Module):
    """A backbone and a head; the backbone may run without gradients, though it is to be trained."""

    def __init__(self, still: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(block(3, 16, pool=True), block(16, 32, pool=True))
        self.head, self.still = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 6)), still

    def forward(self, x: Tensor) -> Tensor:
        if self.still:
            with torch.no_grad():
                features = self.backbone(x)
        else:
            features = self.backbone(x)
        return self.head(features.mean(dim=(2, 3)))


def tuned(seed: int, still: bool) -> Setup:
    return live(Tuned(still), shapes(seed), "AdamW", 4e-3, 60)


backbone = zoo.healthy("shapes-backbone-and-head-trained", lambda s: tuned(s, False))
zoo.sick(
    "shapes-backbone-to-be-trained-under-no-grad",
    lambda s: tuned(s, True),
    both(lasting(no_gradient("backbone")), lags(0.15)),
    *CUT_OFF,
    layer=("backbone.1.0", "backbone.0.0", "backbone"),
    also={"detached", "never_moves", "SLOW"},
    control=backbone,
)


class Pyramid(nn.Module):
    """Two levels of features for a fine map; the fine level is built, and then left out of the sum."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.fine, self.coarse = block(1, 12), block(12, 16)
        self.side1, self.side2, self.used = nn.Conv2d(12, 16, 1), nn.Conv2d(16, 16, 1), used
        self.out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.fine(x)
        b = self.coarse(F.max_pool2d(a, 2))
        p1, p2 = self.side1(a), self.side2(b)
        top = F.interpolate(p2, scale_factor=2)
        return self.out(F.relu(p1 + top if self.used else top))


def levels(seed: int, used: bool) -> Setup:
    return live(Pyramid(used), scans(seed), "Adam", 4e-3, 60)


pyramid = zoo.healthy("scans-pyramid-of-two-levels", lambda s: levels(s, True))
zoo.sick(
    "scans-pyramid-fine-level-not-in-the-sum",
    lambda s: levels(s, False),
    lasting(no_gradient("side1")),
    *CUT_OFF,
    layer=("side1",),
    also={"detached", "never_moves"},
    control=pyramid,
)


class Rounded(nn.Module):
    """Activations are rounded to a few levels, as they will be on the chip."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 24, 3, 2, 1)
        self.fc, self.straight = nn.Linear(24, 8), straight

    def chip(self, x: Tensor) -> Tensor:
        x = F.relu(x).clamp_max(3)
        q = torch.round(4 * x) / 4
        return x + (q - x).detach() if self.straight else q

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.chip(self.conv2(self.chip(self.conv1(x)))).mean(dim=(2, 3)))


def rounded(seed: int, straight: bool) -> Setup:
    return live(Rounded(straight), tiles(seed), "Adam", 5e-3, 80)


chips = zoo.healthy("tiles-rounded-activations-straight-through", lambda s: rounded(s, True))
zoo.sick(
    "tiles-rounded-activations-without-straight-through",
    lambda s: rounded(s, False),
    both(lasting(no_gradient("conv1", "conv2")), lags(0.2)),
    *CUT_OFF,
    "VANISHING",
    layer=("conv1", "conv2"),
    also={"detached", "never_moves", "SLOW"},
    control=chips,
)

# --- spikes and numbers


class Depth(nn.Module):
    """How far every dot is, above zero by softplus or ReLU."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.net, self.act = nn.Sequential(block(6, 16), block(16, 16), nn.Conv2d(16, 1, 3, padding=1)), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.net(x))


def far(seed: int, act: nn.Module, loss) -> Setup:
    task = bands(seed, out=1).with_loss(lambda y, t: loss(y, 1.5 + t))
    return live(Depth(act), task, "Adam", 4e-3, 70)


def inverse(least: float):
    return lambda y, t: (1 / y.clamp_min(least) - 1 / t).abs().mean()


near = zoo.healthy("bands-inverse-depth-at-least-0.3", lambda s: far(s, nn.Softplus(), inverse(0.3)))
zoo.sick(
    "bands-inverse-depth-of-relu",
    lambda s: far(s, nn.ReLU(), inverse(1e-6)),
    gradient_norms_spread(30),
    *JUMPS,
    "NUMERICAL",
    also={"loss_stuck", "first_loss_high", "DEAD", "DISCONNECTED", "VANISHING"},
    control=near,
)


def logs(eps: float):
    return lambda y, t: ((y + eps).log() - t.log()).square().mean()


log = zoo.healthy("bands-log-depth-of-relu-with-eps", lambda s: far(s, nn.ReLU(), logs(0.1)), thrives(0.1, most_dead=1))
zoo.sick(
    "bands-log-depth-of-relu",
    lambda s: far(s, nn.ReLU(), logs(0.0)),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "DEAD"},
    control=log,
)


def mixed(seed: int, factor: float) -> Setup:
    """One picture in a few batches comes from a camera that writes twelve bits."""
    now = every(9, 6)

    def change(x: Tensor) -> Tensor:
        return torch.cat([factor * x[:1], x[1:]]) if now() else x

    return live(plain(3, nn.ELU, 16, 8, 1), tiles(seed).mapped(change), "Adam", 3e-3, 80)


cameras = zoo.healthy("tiles-two-cameras-of-one-scale", lambda s: mixed(s, 1.0))
zoo.sick(
    "tiles-second-camera-writes-twelve-bits",
    lambda s: mixed(s, 4095.0),
    gradient_norms_spread(50),
    *JUMPS,
    also={"bad_batch", "input_scales", "loss_grows", "NUMERICAL", "DEAD"},
    control=cameras,
)


class Pointing(nn.Module):
    """Where the brightest coin lies: the mean place under a softmax of a map, which may be taken by hand."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.map, self.by_hand = nn.Sequential(block(1, 16), nn.Conv2d(16, 1, 3, padding=1)), by_hand
        self.register_buffer("line", torch.linspace(-1, 1, 14))

    def forward(self, x: Tensor) -> Tensor:
        z = 100 * self.map(x).flatten(1)
        p = z.exp() / z.exp().sum(dim=1, keepdim=True) if self.by_hand else z.softmax(dim=1)
        p = p.view(-1, 14, 14)
        return torch.stack([(p.sum(dim=2) * self.line).sum(dim=1), (p.sum(dim=1) * self.line).sum(dim=1)], dim=1)


def pointed(seed: int, by_hand: bool) -> Setup:
    line = torch.linspace(-1, 1, 14)

    def change(x: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        p = (heat / heat.sum(dim=(2, 3), keepdim=True).clamp_min(1e-6))[:, 0]
        return x, torch.stack([(p.sum(dim=2) * line).sum(dim=1), (p.sum(dim=1) * line).sum(dim=1)], dim=1)

    return live(Pointing(by_hand), coins(seed, 1).changed(change).with_loss(F.mse_loss), "Adam", 3e-3, 70)


pointer = zoo.healthy("coins-place-by-softmax", lambda s: pointed(s, False))
zoo.sick(
    "coins-place-by-exp-over-its-sum",
    lambda s: pointed(s, True),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "SATURATION", "EXPLODING", "UNSTABLE"},
    control=pointer,
)


class Energy(nn.Module):
    """The energy of each band of features, added up in half precision or in single."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.conv, self.fc, self.half_sum = nn.Conv1d(3, 32, 9, padding=4), nn.Linear(32, 6), half

    def forward(self, x: Tensor) -> Tensor:
        h = 40 * self.conv(x)
        e = (h.half() if self.half_sum else h).square().sum(dim=2).float()
        return self.fc((e + 1).log() - 8)


def energies(seed: int, half: bool) -> Setup:
    return live(Energy(half), tracks(seed), "Adam", 1e-2, 60)


single = zoo.healthy("tracks-energies-in-single-precision", lambda s: energies(s, False))
zoo.sick(
    "tracks-energies-in-half-precision",
    lambda s: energies(s, True),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "EXPLODING", "UNSTABLE"},
    control=single,
)
