# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Convolutional networks of every day that train well, some of them in unusual ways.

Half: common.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import Head, conv, engines, fabrics, marks, roads, skies, tower, words
from validation.cases._everyday_nets import he
from validation.evidence import thrives
from validation.setups import live, pretrain
from validation.tasks import Task

zoo = Zoo("cnn", half="common", proof=thrives())


def worn(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, fabrics(seed), *args, **more)


# --- classifiers

zoo.healthy(
    "fabrics-lenet-tanh-average-pools",
    lambda s: worn(
        s,
        nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            tower([144, 48, 8], nn.Tanh),
        ),
        "SGD",
        0.05,
        60,
        momentum=0.9,
    ),
)
zoo.healthy(
    "fabrics-all-convolutions-global-mean",
    lambda s: worn(
        s,
        nn.Sequential(conv(1, 16), conv(16, 16, 2), conv(16, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "Adam",
        5e-3,
        60,
    ),
)
zoo.healthy(
    "fabrics-instance-norm-leaky",
    lambda s: worn(
        s,
        nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.InstanceNorm2d(16, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 24, 3, 2, 1),
            nn.LeakyReLU(0.2),
            Head(24, 8),
        ),
        "Adam",
        5e-3,
        60,
    ),
)
zoo.healthy(
    "fabrics-batches-of-4-group-norm",
    lambda s: live(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.Conv2d(16, 16, 3, 2, 1),
            nn.SiLU(),
            Head(16, 8),
        ),
        fabrics(s, batch=4),
        "Adam",
        3e-3,
        100,
    ),
)
zoo.healthy(
    "fabrics-label-smoothing-one-cycle",
    lambda s: live(
        nn.Sequential(conv(1, 16, 2), conv(16, 32, 2), Head(32, 8)),
        fabrics(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1)),
        "SGD",
        0.2,
        60,
        momentum=0.9,
        nesterov=True,
        weight_decay=5e-4,
        rate=lambda t: max(0.01, 1 - abs(t - 15) / (15 if t < 15 else 45)),
    ),
)
zoo.healthy(
    "fabrics-dropout-half-before-the-head",
    lambda s: worn(
        s,
        nn.Sequential(conv(1, 16, 2), conv(16, 24, 2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(384, 8)),
        "Adam",
        3e-3,
        60,
    ),
)
zoo.healthy("fabrics-frozen-gabor-stem", lambda s: worn(s, Gabor(), "Adam", 1e-2, 60))


class Gabor(nn.Module):
    """Fixed filters of eight directions, then what learns."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.net = nn.Conv2d(1, 16, 5, padding=2, bias=False), nn.Sequential(conv(16, 24, 2), Head(24, 8))
        way = (torch.arange(16) * math.pi / 8)[:, None, None]
        line = torch.arange(-2.0, 3.0)
        along = way.cos() * line[:, None] + way.sin() * line
        phase = (torch.arange(16) // 8)[:, None, None] * math.pi / 2
        self.stem.weight.data.copy_((torch.cos(1.5 * along + phase) * torch.exp(-(line**2) / 4))[:, None])
        self.stem.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.stem(x))


def tuned(seed: int) -> Setup:
    """A backbone trained on one set of classes, frozen, under a new head for others."""
    backbone = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2))
    first = nn.Sequential(backbone, Head(24, 8))
    pretrain(live(first, fabrics(seed + 50), "Adam"), 25, 5e-3)
    backbone.requires_grad_(False)
    return worn(seed, nn.Sequential(backbone, Head(24, 8)), "Adam", 2e-2, 60)


zoo.healthy("fabrics-new-head-on-a-frozen-backbone", tuned)


class Excited(nn.Module):
    """Channels that are weighed by what the whole picture shows, through a few units."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(conv(1, 16, 2), conv(16, 24))
        self.down, self.up, self.head = nn.Linear(24, 4), nn.Linear(4, 24), Head(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        gate = torch.sigmoid(self.up(F.silu(self.down(x.mean(dim=(2, 3))))))
        return self.head(x * gate[..., None, None])


zoo.healthy("fabrics-squeeze-and-excite-through-4-units", lambda s: worn(s, Excited(), "Adam", 5e-3, 60))


class Dense(nn.Module):
    """Every layer sees all before it."""

    def __init__(self, growth: int = 8, depth: int = 4) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 8, 3, 2, 1), Head(8 + growth * depth, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + growth * i), nn.ReLU(), nn.Conv2d(8 + growth * i, growth, 3, padding=1))
            for i in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return self.head(x)


zoo.healthy("fabrics-dense-net-growth-8", lambda s: worn(s, Dense(), "Adam", 3e-3, 50))


class Siamese(nn.Module):
    """One net for two pictures; are they of one class?"""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.out = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2), Head(24, 16)), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.net(x).chunk(2)
        return self.out((a - b).abs()).flatten()


def same(z: Tensor, t: Tensor) -> Tensor:
    a, b = t.chunk(2)
    return F.binary_cross_entropy_with_logits(z, (a == b).float(), pos_weight=torch.tensor(2.0))


zoo.healthy(
    "fabrics-siamese-pairs", lambda s: live(Siamese(), fabrics(s, 3, batch=64).with_loss(same), "Adam", 5e-3, 80)
)


class Prototypes(nn.Module):
    """A few shots: the first 40 pictures of a batch make a mean per class, the others go to the nearest."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2), nn.Flatten(), nn.Linear(384, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def nearest(z: Tensor, t: Tensor) -> Tensor:
    shown = F.one_hot(t[:40], 5).float()
    means = shown.T @ z[:40] / shown.sum(dim=0).clamp_min(1)[:, None]
    return F.cross_entropy(-torch.cdist(z[40:], means).square() / 16, t[40:])


zoo.healthy(
    "fabrics-prototypes-few-shots",
    lambda s: live(Prototypes(), fabrics(s, 5, batch=64).with_loss(nearest), "Adam", 5e-4, 40),
    thrives(idle="net.3.bias"),
)


class Two(nn.Module):
    """A class and a rotation at once."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.turn = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2)), Head(24, 8), nn.Linear(384, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        turns = torch.arange(len(x)) % 4
        h = self.body(torch.stack([each.rot90(int(k), (1, 2)) for each, k in zip(x, turns, strict=True)]))
        return self.kind(h), self.turn(h.flatten(1)), turns


zoo.healthy(
    "fabrics-class-and-rotation",
    lambda s: live(
        Two(),
        fabrics(s).with_loss(lambda out, t: F.cross_entropy(out[0], t) + 0.5 * F.cross_entropy(out[1], out[2])),
        "AdamW",
        5e-3,
        60,
    ),
)
zoo.healthy("fabrics-classes-as-unit-vectors", lambda s: live(Cosine(), fabrics(s), "Adam", 1e-3, 60))


class Cosine(nn.Module):
    """Classes as unit vectors; the cosine times a scale is the logit."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(1, 16, 2), conv(16, 24, 2), nn.Flatten(), nn.Linear(384, 24))
        self.classes = nn.Parameter(torch.randn(8, 24))

    def forward(self, x: Tensor) -> Tensor:
        return 12 * F.normalize(self.net(x), dim=1) @ F.normalize(self.classes, dim=1).T


# --- signals


class Wave(nn.Module):
    """Dilated, causal convolutions that predict the next value at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(a, 24, 2, dilation=d) for a, d in ((4, 1), (24, 2), (24, 4)))
        self.out = nn.Conv1d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers:
            h = torch.tanh(layer(F.pad(h, (layer.dilation[0], 0))))
        return F.mse_loss(self.out(h)[..., 8:-1], x[..., 9:])


zoo.healthy(
    "engines-causal-dilated", lambda s: live(Wave(), engines(s).with_loss(lambda out, _: out), "Adam", 5e-3, 80)
)
zoo.healthy(
    "engines-autoencoder-by-strides",
    lambda s: live(
        nn.Sequential(
            nn.Conv1d(4, 24, 4, 2, 1),
            nn.ELU(),
            nn.Conv1d(24, 8, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose1d(8, 24, 4, 2, 1),
            nn.ELU(),
            nn.ConvTranspose1d(24, 4, 4, 2, 1),
        ),
        engines(s),
        "AdamW",
        5e-3,
        80,
    ),
)


class Depthwise(nn.Module):
    """Separable convolutions over time with a maximum at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv1d(12, 32, 1)
        self.deep, self.point = nn.Conv1d(32, 32, 7, padding=3, groups=32), nn.Conv1d(32, 32, 1)
        self.norm, self.out = nn.BatchNorm1d(32), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.point(self.deep(self.into(x)))))
        return self.out(x.amax(dim=2))


zoo.healthy("words-separable-maximum", lambda s: live(Depthwise(), words(s), "Adam", 5e-3, 60))


def masked(seed: int) -> Setup:
    """Bands and stretches of time are blanked out at random, as SpecAugment does."""
    random = torch.Generator().manual_seed(seed + 4)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        band, time = (int(torch.randint(9, (1,), generator=random)) for _ in range(2))
        x[:, band : band + 3] = 0
        x[:, :, time : time + 4] = 0
        return x

    net = nn.Sequential(nn.Conv1d(12, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.Flatten(), nn.Linear(640, 7))
    return live(net, words(seed).mapped(change), "AdamW", 3e-3, 60)


zoo.healthy("words-bands-blanked-out", masked)


def ctc(seed: int) -> Setup:
    """Two words said one after the other, aligned by CTC: flat at first, as blanks win, then learned."""
    net = nn.Sequential(nn.Conv1d(6, 48, 5, padding=2), nn.ReLU(), nn.Conv1d(48, 5, 3, padding=1))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        said = torch.randint(4, (32, 3), generator=random)
        x = 0.3 * torch.randn(32, 6, 18, generator=random)
        for i in range(3):
            x[torch.arange(32), said[:, i], 6 * i + 2 : 6 * i + 5] += 2
        return x, said + 1

    def loss(z: Tensor, t: Tensor) -> Tensor:
        chances = z.permute(2, 0, 1).log_softmax(dim=-1)
        return F.ctc_loss(chances, t, torch.full((32,), 18), torch.full((32,), 3))

    return live(net, Task(seed, draw, loss), "Adam", 1e-2, 80)


zoo.healthy("letters-ctc", ctc)

# --- dense outputs


class Small(nn.Module):
    """A U-net of two floors, with skips, transposed convolutions, and a floor of few channels."""

    def __init__(self, out: int = 3, floor: int = 24) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 12), conv(12, 16), conv(16, floor)
        self.up2, self.up1 = nn.ConvTranspose2d(floor, 16, 2, 2), nn.ConvTranspose2d(16, 12, 2, 2)
        self.d2, self.d1, self.out = conv(32, 16), conv(24, 12), nn.Conv2d(12, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        b = self.d2(torch.cat([b, self.up2(c)], dim=1))
        return self.out(self.d1(torch.cat([a, self.up1(b)], dim=1)))


zoo.healthy("roads-u-net-two-floors", lambda s: live(Small(), roads(s), "Adam", 5e-3, 40))
zoo.healthy("roads-u-net-floor-of-4-beside-its-skips", lambda s: live(Small(floor=4), roads(s), "AdamW", 5e-3, 40))


def overlap(z: Tensor, t: Tensor) -> Tensor:
    p, y = z.softmax(dim=1), F.one_hot(t, 3).permute(0, 3, 1, 2)
    return 1 - ((2 * (p * y).sum(dim=(0, 2, 3)) + 1) / ((p + y).sum(dim=(0, 2, 3)) + 1)).mean()


zoo.healthy(
    "roads-soft-dice",
    lambda s: live(
        nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 3, 1)), roads(s).with_loss(overlap), "Adam", 5e-3, 50
    ),
)
zoo.healthy(
    "roads-dilated-full-size",
    lambda s: live(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv2d(16, 3, 3, padding=4, dilation=4),
        ),
        roads(s),
        "Adam",
        5e-3,
        50,
    ),
)
zoo.healthy(
    "roads-most-dots-ignored",
    lambda s: live(
        nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 3, 1)),
        roads(s).changed(lambda x, t: (x, t.masked_fill(torch.arange(256).reshape(16, 16) % 7 != 0, -100))),
        "Adam",
        5e-3,
        50,
    ),
)


class Heat(nn.Module):
    """A map for each mark, and the mean place under its softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))
        self.register_buffer("line", torch.linspace(-1, 1, 14))

    def forward(self, x: Tensor) -> Tensor:
        p = self.net(x).flatten(2).softmax(dim=-1).unflatten(2, (14, 14))
        place = torch.stack([(p.sum(dim=3) * self.line).sum(-1), (p.sum(dim=2) * self.line).sum(-1)], dim=-1)
        return place.flatten(1)


zoo.healthy("marks-soft-argmax", lambda s: live(Heat(), marks(s), "Adam", 1e-2, 60), thrives(idle="net.2.bias"))
zoo.healthy(
    "marks-coordinates-as-channels-huber",
    lambda s: live(Placed(), marks(s).with_loss(F.smooth_l1_loss), "Adam", 5e-3, 80),
)


class Placed(nn.Module):
    """Two more channels say where a dot is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            conv(5, 16, 2, norm=False), conv(16, 24, 2, norm=False), nn.Flatten(), nn.Linear(384, 6)
        )

    def forward(self, x: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, x.shape[-1])
        y, z = torch.meshgrid(line, line, indexing="ij")
        return self.net(torch.cat([x, torch.stack([y, z]).expand(len(x), -1, -1, -1)], dim=1))


def shade(channels: int, code: int) -> nn.Sequential:
    return nn.Sequential(
        conv(channels, 16, 2),
        nn.Conv2d(16, code, 3, 2, 1),
        nn.ConvTranspose2d(code, 16, 2, 2),
        nn.ELU(),
        nn.ConvTranspose2d(16, channels, 2, 2),
    )


zoo.healthy("skies-autoencoder-code-of-8-maps", lambda s: live(shade(3, 8), skies(s), "Adam", 1e-2, 60))
zoo.healthy(
    "skies-autoencoder-of-plain-colours-code-of-3-maps", lambda s: live(shade(3, 3), skies(s, 1), "Adam", 1e-2, 60)
)
zoo.healthy(
    "skies-noise-taken-away-l1",
    lambda s: live(
        nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 3, 3, padding=1)),
        skies(s, noise=0.4).with_loss(F.l1_loss),
        "Adam",
        5e-3,
        60,
    ),
)


class Film(nn.Module):
    """A number says how strongly a picture is to be blurred; it scales and shifts the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.by = (
            nn.Conv2d(3, 24, 5, padding=2),
            nn.Conv2d(24, 3, 3, padding=1),
            tower([1, 32, 48], nn.SiLU),
        )

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        scale, shift = self.by(level)[..., None, None].chunk(2, dim=1)
        return self.out(F.silu(self.into(x) * (1 + scale) + shift))


def blurred(seed: int) -> Task:
    def change(x: Tensor, _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        level = torch.linspace(0, 1, len(x))[:, None]
        smooth = F.avg_pool2d(x, 5, 1, 2, count_include_pad=False)
        return (x, level), x + level[..., None, None] * (smooth - x)

    return skies(seed, 8).changed(change)


zoo.healthy("skies-blurred-as-a-number-says", lambda s: live(Film(), blurred(s), "Adam", 5e-3, 60))


class Noise(nn.Module):
    """Says which noise was added to a picture, for any strength of it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.mid, self.out = (
            nn.Conv2d(4, 24, 3, padding=1),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.Conv2d(24, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        t, noise = torch.rand(len(x), 1, 1, 1), torch.randn_like(x)
        seen = torch.cat([(1 - t).sqrt() * x + t.sqrt() * noise, t.expand(-1, 1, *x.shape[2:])], dim=1)
        return F.mse_loss(self.out(F.silu(self.mid(F.silu(self.into(seen))))), noise)


zoo.healthy("skies-diffusion", lambda s: live(Noise(), skies(s, 3).with_loss(lambda out, _: out), "AdamW", 3e-3, 80))


def three_d(seed: int) -> Setup:
    """Small clips: does the blob move left, right, up or down?"""
    net = he(
        nn.Sequential(
            nn.Conv3d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool3d((1, 2, 2)),
            nn.Conv3d(12, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1024, 4),
        )
    )
    ways = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(4, (24,), generator=random)
        at = torch.randint(3, 6, (24, 2), generator=random)
        x = 0.3 * torch.randn(24, 1, 4, 8, 8, generator=random)
        for t in range(4):
            now = (at + (t - 1) * ways[target]) % 8
            x[torch.arange(24), 0, t, now[:, 0], now[:, 1]] += 2.5
        return x, target

    return live(net, Task(seed, draw, F.cross_entropy), "Adam", 3e-3, 60)


zoo.healthy("clips-conv3d-ways", three_d)
