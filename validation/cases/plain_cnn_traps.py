# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain convolutional networks that train well, some of them a little unusual.

Half: plain.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import he
from validation.cases._plain_nets import (
    bands,
    block,
    coins,
    dunes,
    pooled,
    scans,
    shapes,
    tiles,
    tracks,
    with_groups,
)
from validation.evidence import thrives
from validation.setups import frozen, live, pair, pretrain

zoo = Zoo("cnn", half="plain", proof=thrives())

# --- classes


class LeNet(nn.Module):
    """Two convolutions with pools, three layers: the first net of every course."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 16, 3, padding=1)
        self.fc1, self.fc2, self.fc3 = nn.Linear(144, 60), nn.Linear(60, 40), nn.Linear(40, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


zoo.healthy("tiles-lenet-adam", lambda s: live(LeNet(), tiles(s), "Adam", 3e-3, 90))
zoo.healthy(
    "tiles-lenet-kaiming-sgd-cosine",
    lambda s: live(
        he(LeNet()), tiles(s), "SGD", 0.03, 90, momentum=0.9, rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * t / 90)
    ),
)


def vgg(act: type[nn.Module] = nn.ReLU, channels: int = 3, out: int = 6) -> nn.Sequential:
    return pooled(
        block(channels, 12, act),
        block(12, 12, act, pool=True),
        block(12, 24, act),
        block(24, 24, act),
        width=24,
        out=out,
    )


zoo.healthy("shapes-vgg-batch-norm", lambda s: live(vgg(), shapes(s), "AdamW", 4e-3, 50))
zoo.healthy(
    "shapes-vgg-batch-norm-sgd-decay",
    lambda s: live(vgg(), shapes(s), "SGD", 0.05, 60, momentum=0.9, weight_decay=5e-3, nesterov=True),
)
zoo.healthy("shapes-vgg-batches-of-6", lambda s: live(vgg(), shapes(s, batch=6), "Adam", 2e-3, 110))


class AllConv(nn.Module):
    """Strides in place of pools, classes from one-by-one convolutions, group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.GELU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.GELU(),
            nn.Conv2d(32, 6, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean(dim=(2, 3))


zoo.healthy("shapes-strides-group-norm", lambda s: live(AllConv(), shapes(s), "AdamW", 5e-3, 80))


class Separable(nn.Module):
    """A kernel per channel, then one-by-one, with batch norms and hard swish."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = block(1, 16, nn.Hardswish)
        self.deep, self.point = nn.Conv2d(16, 16, 3, 2, 1, groups=16, bias=False), nn.Conv2d(16, 32, 1, bias=False)
        self.bn1, self.bn2, self.fc = nn.BatchNorm2d(16), nn.BatchNorm2d(32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.bn1(self.deep(self.stem(x))))
        return self.fc(F.hardswish(self.bn2(self.point(x))).mean(dim=(2, 3)))


zoo.healthy("tiles-separable-hard-swish", lambda s: live(Separable(), tiles(s), "RMSprop", 3e-3, 60))


class Excite(nn.Module):
    """Channels are weighed by what the picture holds as a whole; two units decide it for sixteen channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = block(3, 16, pool=True), block(16, 24)
        self.down, self.up, self.fc = nn.Linear(16, 2), nn.Linear(2, 16), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        gate = torch.sigmoid(self.up(F.silu(self.down(x.mean(dim=(2, 3))))))
        return self.fc(self.conv2(x * gate[..., None, None]).mean(dim=(2, 3)))


zoo.healthy("shapes-channels-weighed-through-2-units", lambda s: live(Excite(), shapes(s), "Adam", 4e-3, 60))


class Branches(nn.Module):
    """Three kernels side by side, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(nn.Conv2d(1, 8, k, padding=k // 2) for k in (1, 3, 5))
        self.norm, self.join, self.fc = nn.BatchNorm2d(24), block(24, 32, nn.ELU), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([kernel(x) for kernel in self.kernels], dim=1)
        return self.fc(self.join(F.elu(self.norm(x))).mean(dim=(2, 3)))


zoo.healthy("tiles-three-kernels-side-by-side", lambda s: live(Branches(), tiles(s), "AdamW", 4e-3, 50))


class Largest(nn.Module):
    """The largest value over the picture: few places get a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = block(3, 16), block(16, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv2(self.conv1(x)).amax(dim=(2, 3)))


zoo.healthy("shapes-largest-over-the-picture", lambda s: live(Largest(), shapes(s), "Adam", 3e-3, 60))


class Fixed(nn.Module):
    """The first filters are known ones and stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        line = torch.arange(-2.0, 3)
        angle = math.pi * torch.arange(8) / 8
        wave = angle.cos()[:, None, None] * line[:, None] + angle.sin()[:, None, None] * line
        self.register_buffer("filters", torch.stack([wave.sin(), (2 * wave).cos()], dim=1).flatten(0, 1)[:, None] / 3)
        self.net = pooled(block(16, 24), block(24, 24), width=24, out=8)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(F.conv2d(x, self.filters, padding=2).abs())


zoo.healthy("tiles-known-filters-in-a-buffer", lambda s: live(Fixed(), tiles(s), "Adam", 4e-3, 60))


def transferred(seed: int) -> Setup:
    """A backbone from pictures of another seed is kept; its norms and a new head are trained."""
    model = vgg(channels=1, out=8)
    pretrain(pair(model, tiles(seed + 50)), 40)
    frozen(model, "0.0", "1.0", "2.0", "3.0")
    model[6] = nn.Linear(24, 8)
    return live(model, tiles(seed), "Adam", 1e-2, 70)


zoo.healthy("tiles-norms-and-head-tuned", transferred)


def layered(seed: int) -> Setup:
    """Earlier layers have smaller rates."""
    model = vgg(nn.SiLU)
    pretrain(pair(model, shapes(seed + 50)), 20)
    model[6] = nn.Linear(24, 6)
    groups = [{"params": model[i].parameters(), "lr": 5e-3 * 0.5 ** (4 - i)} for i in range(4)]
    groups.append({"params": model[6].parameters(), "lr": 1e-2})
    return with_groups(model, shapes(seed), groups, lr=1e-3, weight_decay=0.02, steps=50)


zoo.healthy("shapes-rates-by-layer", layered)


def mixed(seed: int) -> Setup:
    """Two pictures are blended, and so are their labels."""
    random = torch.Generator().manual_seed(seed + 3)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        share = 0.6 + 0.4 * torch.rand((), generator=random)
        labels = F.one_hot(t, 8).float()
        return share * x + (1 - share) * x.flip(0), share * labels + (1 - share) * labels.flip(0)

    return live(vgg(channels=1, out=8), tiles(seed).changed(change), "Adam", 4e-3, 60)


zoo.healthy("tiles-blended-in-pairs", mixed)


def erased(seed: int) -> Setup:
    """A square of every picture is blanked out."""
    random = torch.Generator().manual_seed(seed + 3)

    def change(x: Tensor) -> Tensor:
        i, j = torch.randint(8, (2,), generator=random).tolist()
        x = x.clone()
        x[:, :, i : i + 5, j : j + 5] = 0
        return x

    return live(vgg(), shapes(seed).mapped(change), "AdamW", 4e-3, 60)


zoo.healthy("shapes-squares-blanked-out", erased)


class Cosine(nn.Module):
    """Classes are unit vectors, scores are cosines times a scale, the right one has a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(1, 16, pool=True), block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.embed, self.classes = nn.Linear(32, 16), nn.Parameter(torch.randn(8, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.embed(self.net(x)), dim=1) @ F.normalize(self.classes, dim=1).T


def margin(z: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(12 * (z - 0.2 * F.one_hot(t, 8)), t)


zoo.healthy("tiles-cosine-margin", lambda s: live(Cosine(), tiles(s).with_loss(margin), "Adam", 5e-3, 60))


class Twice(nn.Module):
    """Two crops of one picture are near each other, those of others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(1, 16, pool=True), block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        a, b = (F.normalize(self.head(self.net(x + 0.2 * torch.randn_like(x))), dim=1) for _ in range(2))
        return a @ b.T / 0.2


def simclr(seed: int) -> Setup:
    task = tiles(seed).with_loss(lambda z, t: F.cross_entropy(z, torch.arange(len(t))))
    return live(Twice(), task, "Adam", 3e-3, 50)


zoo.healthy("tiles-two-noisy-looks-contrasted", simclr)


class Rotated(nn.Module):
    """The turn of a picture is told, as a task without labels; beside it the class."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(1, 16, pool=True), block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.kind, self.mirrored = nn.Linear(32, 8), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.net(x)
        return self.kind(h), self.mirrored(h)


def two_tasks(seed: int) -> Setup:
    def change(x: Tensor, t: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        flipped = torch.arange(len(x)) % 2
        return torch.where(flipped[:, None, None, None] == 1, x.flip(3).transpose(2, 3), x), (t, flipped)

    def loss(out: tuple[Tensor, Tensor], t: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(out[0], t[0]) + 0.5 * F.cross_entropy(out[1], t[1])

    return live(Rotated(), tiles(seed).changed(change).with_loss(loss), "AdamW", 4e-3, 60)


zoo.healthy("tiles-class-and-turn", two_tasks)

# --- dot by dot


class UNet(nn.Module):
    """Down, up by a transposed convolution, a skip between."""

    def __init__(self, a: int = 1, out: int = 3, floor: int = 24) -> None:
        super().__init__()
        self.down, self.floor = block(a, 12), block(12, floor)
        self.up, self.join, self.out = nn.ConvTranspose2d(floor, 12, 2, 2), block(24, 12), nn.Conv2d(12, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.up(self.floor(F.max_pool2d(a, 2)))
        return self.out(self.join(torch.cat([a, b], dim=1)))


def overlap(z: Tensor, t: Tensor) -> Tensor:
    p, y = z.softmax(dim=1), F.one_hot(t, 3).permute(0, 3, 1, 2).float()
    dice = (2 * (p * y).sum(dim=(0, 2, 3)) + 1) / (p.sum(dim=(0, 2, 3)) + y.sum(dim=(0, 2, 3)) + 1)
    return F.cross_entropy(z, t) + 1 - dice.mean()


zoo.healthy("scans-u-net", lambda s: live(UNet(), scans(s), "Adam", 4e-3, 40))
zoo.healthy("scans-u-net-dice-and-entropy", lambda s: live(UNet(), scans(s).with_loss(overlap), "AdamW", 4e-3, 50))
zoo.healthy("scans-u-net-floor-of-2-beside-its-skip", lambda s: live(UNet(floor=2), scans(s), "Adam", 4e-3, 50))
zoo.healthy(
    "scans-lump-weighted-by-rarity",
    lambda s: live(
        UNet(),
        scans(s).with_loss(lambda z, t: F.cross_entropy(z, t, torch.tensor([0.5, 1.0, 6.0]))),
        "Adam",
        4e-3,
        50,
    ),
)
zoo.healthy("coins-map-by-u-net", lambda s: live(UNet(out=1), coins(s), "Adam", 4e-3, 50))


class Count(nn.Module):
    """How many coins: a map above zero, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(block(1, 16), block(16, 16), nn.Conv2d(16, 1, 1), nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean(dim=(1, 2, 3)) * 4


def counted(seed: int) -> Setup:
    return live(Count(), coins(seed).changed(lambda x, h: (x, h.sum(dim=(1, 2, 3)) / 6)), "Adam", 3e-3, 60)


zoo.healthy("coins-counted-by-a-map", counted)


class Dilated(nn.Module):
    """Holes in the kernels instead of pools."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(6 if d == 1 else 16, 16, 3, padding=d, dilation=d) for d in (1, 2, 3))
        self.norms, self.out = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(3)), nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.silu(norm(layer(x)))
        return self.out(x)


zoo.healthy("bands-dilated-group-norm", lambda s: live(Dilated(), bands(s), "Adam", 5e-3, 60))
zoo.healthy("bands-one-by-one-kernels", lambda s: live(pointwise(), bands(s), "AdamW", 1e-2, 60))


def pointwise() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(6, 48, 1), nn.Tanh(), nn.Conv2d(48, 5, 1))


class Conditioned(nn.Module):
    """A number says how much noise there is; it scales and shifts the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.out = (nn.Conv2d(a, b, 3, padding=1) for a, b in ((1, 16), (16, 16), (16, 1)))
        self.film = nn.Sequential(nn.Linear(1, 24), nn.SiLU(), nn.Linear(24, 32))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        scale, shift = self.film(level)[..., None, None].chunk(2, dim=1)
        h = F.silu(self.conv1(x))
        return self.out(F.silu((1 + scale) * self.conv2(h) + shift))


def diffused(seed: int) -> Setup:
    """Noise of any strength is added, and is to be told."""
    random = torch.Generator().manual_seed(seed + 4)

    def change(x: Tensor, _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        level = 0.2 + 0.7 * torch.rand(len(x), 1, generator=random)
        noise = torch.randn(x.shape, generator=random)
        a = level[..., None, None]
        return ((1 - a * a).sqrt() * x + a * noise, level), noise

    return live(Conditioned(), dunes(seed, size=10).changed(change), "Adam", 5e-3, 70)


zoo.healthy("dunes-noise-told-at-any-strength", diffused)


class Coder(nn.Module):
    """An auto-encoder of maps, without a dense layer; its code has as many channels as asked for."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ELU(), nn.Conv2d(16, maps, 3, 1, 1))
        self.dec = nn.Sequential(nn.Conv2d(maps, 16, 3, 1, 1), nn.ELU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.enc(x))


zoo.healthy("dunes-code-of-4-maps", lambda s: live(Coder(4), dunes(s), "Adam", 5e-3, 70))
zoo.healthy("dunes-of-3-waves-code-of-4-numbers", lambda s: live(Dense(4), dunes(s, 3), "Adam", 4e-3, 80))


class Dense(nn.Module):
    """An auto-encoder with a code of a few numbers for pictures of fewer factors."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(432, code))
        self.wide = nn.Linear(code, 432)
        self.dec = nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(F.silu(self.wide(self.enc(x))).unflatten(1, (12, 6, 6)))


class Vae(nn.Module):
    """A variational auto-encoder of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 12, 4, 2, 1), nn.ELU(), nn.Flatten())
        self.mu, self.logvar, self.wide = nn.Linear(432, 12), nn.Linear(432, 12), nn.Linear(12, 432)
        self.dec = nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h) - 2
        z = mu + (logvar / 2).exp() * torch.randn_like(mu)
        return self.dec(F.elu(self.wide(z)).unflatten(1, (12, 6, 6))), mu, logvar


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    kl = 0.5 * (out[1] ** 2 + out[2].exp() - out[2] - 1).sum(dim=1).mean()
    return F.mse_loss(out[0], x) + 0.002 * kl


zoo.healthy("dunes-vae-of-12-numbers", lambda s: live(Vae(), dunes(s).with_loss(elbo), "Adam", 4e-3, 80))


def shuffled(seed: int) -> Setup:
    """Twice as fine by a shuffle of channels."""
    model = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2))
    return live(model, dunes(seed).mapped(lambda x: F.avg_pool2d(x, 2)), "Adam", 5e-3, 70)


zoo.healthy("dunes-twice-as-fine", shuffled)

# --- time


class Wavelet(nn.Module):
    """Causal dilated convolutions that say the next value at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(3 if d == 1 else 24, 24, 2, dilation=d) for d in (1, 2, 4, 8))
        self.out = nn.Conv1d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(F.pad(x, (layer.dilation[0], 0))))
        return self.out(x)


def next_value(seed: int) -> Setup:
    task = tracks(seed).changed(lambda x, _: (x[..., :-1], x[..., 1:])).with_loss(F.mse_loss)
    return live(Wavelet(), task, "Adam", 5e-3, 60)


zoo.healthy("tracks-next-value-causal", next_value)
zoo.healthy("tracks-conv1d-batch-norm-mean", lambda s: live(Motion(), tracks(s), "AdamW", 3e-3, 60))
zoo.healthy(
    "tracks-conv1d-clipped-warm-up",
    lambda s: live(Motion(), tracks(s), "Adam", 5e-3, 60, clip=0.5, rate=lambda t: min(1.0, (t + 1) / 15)),
)


class Motion(nn.Module):
    """Three convolutions over time and the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, 16, 7, 2, 3),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Conv1d(16, 32, 5, 2, 2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
        )
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.net(x).mean(dim=2)))


class Film(nn.Module):
    """Frames share a small net; what it says is joined over time."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 12, 3, 2, 1), nn.GELU())
        self.time, self.fc = nn.Conv1d(12 * 9, 32, 3), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape[:2]
        h = self.frame(x.flatten(0, 1)).flatten(1).unflatten(0, (b, t))
        return self.fc(F.relu(self.time(h.transpose(1, 2))).mean(dim=2))


def filmed(seed: int) -> Setup:
    """A bright dot wanders up, down, left or right."""
    ways = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    line = torch.arange(12)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        way = t % 4
        start = torch.randint(12, (len(x), 2))
        at = (start[:, None] + torch.arange(6)[:, None] * ways[way][:, None]) % 12
        dot = ((line[:, None] - at[..., :1, None]).abs() <= 1) & ((line - at[..., 1:, None]).abs() <= 1)
        return (2.0 * dot + 0.2 * torch.randn(dot.shape))[:, :, None], way

    return live(Film(), tiles(seed).changed(change), "Adam", 4e-3, 90)


zoo.healthy("films-of-a-wandering-dot", filmed)
