# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Residual networks of every day: with the faults that people report, their twins, and others that are fine.

Half: common.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import (
    SQUEEZED,
    Head,
    conv,
    energy,
    engines,
    fabrics,
    grades,
    islands,
    marks,
    peaks,
    plant,
    roads,
    skies,
    tags,
    tower,
    twins,
    words,
    worse,
)
from validation.cases._everyday_nets import CUT_OFF, NARROW, RUINED, he, stands_still
from validation.evidence.live import breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import every

zoo = Zoo("residual", half="common", proof=thrives())

# --- rows


class Block(nn.Module):
    """A norm, two layers, and the sum; `keep` multiplies what is passed by."""

    def __init__(
        self, width: int, act: type[nn.Module] = nn.ReLU, norm: bool = True, keep: float = 1.0, wide: int = 2
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.fc1, self.act, self.fc2 = nn.Linear(width, wide * width), act(), nn.Linear(wide * width, width)
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        return self.keep * x + self.fc2(self.act(self.fc1(self.norm(x))))


class ResMlp(nn.Module):
    """An input layer, blocks, a head."""

    def __init__(self, dim: int, width: int, blocks: list[nn.Module], out: int) -> None:
        super().__init__()
        self.into, self.blocks = nn.Linear(dim, width), nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.into(x))))


def gauged(seed: int, width: int) -> Setup:
    model = ResMlp(10, width, [Block(width, nn.GELU, wide=64 // width) for _ in range(3)], 12)
    return live(model, plant(seed), "AdamW", 5e-3, 80)


stream = zoo.healthy("plant-residual-stream-of-32", lambda s: gauged(s, 32))
zoo.sick(
    "plant-residual-stream-of-2",
    lambda s: gauged(s, 2),
    lags(0.2),
    *NARROW,
    layer=("into", "blocks.0.fc1", "blocks.0.fc2", "blocks.1.fc2", "blocks.2.fc2", "head"),
    also=SQUEEZED,
    control=stream,
)


def kept(seed: int, keep: float, lr: float = 1e-3) -> Setup:
    model = ResMlp(11, 32, [Block(32, norm=False, keep=keep) for _ in range(14)], 5)
    with torch.no_grad():
        for block in model.blocks:
            block.fc2.weight *= 0.2
            block.fc2.bias.zero_()
    model.norm = nn.Identity()
    return live(model, grades(seed), "SGD", lr, 60, momentum=0.9)


identity = zoo.healthy("grades-14-blocks-identity-kept-whole", lambda s: kept(s, 1.0, 0.02))
zoo.sick(
    "grades-14-blocks-identity-times-0.4",
    lambda s: kept(s, 0.4, 0.02),
    both(lasting(gradient_ratio("into", "blocks.13.fc2", below=1e-3)), lags(0.1)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=identity,
)
zoo.sick(
    "grades-14-blocks-input-added-twice",
    lambda s: kept(s, 2.0, 0.02),
    both(gradient_ratio("into", "blocks.13.fc2", above=1000), worse(1.5)),
    *RUNS_AWAY,
    also=RUINED,
    control=identity,
)


class Highway(nn.Module):
    """A gate chooses between a layer and the identity."""

    def __init__(self, width: int, bias: float, act=torch.tanh) -> None:
        super().__init__()
        self.fc, self.gate, self.act = nn.Linear(width, width), nn.Linear(width, width), act
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        g = torch.sigmoid(self.gate(x))
        return g * self.act(self.fc(x)) + (1 - g) * x


def highway(seed: int, bias: float) -> Setup:
    model = ResMlp(8, 32, [Highway(32, bias) for _ in range(8)], 1)
    model.norm = nn.Identity()
    return live(model, energy(seed), "Adam", 5e-3, 70)


open_ways = zoo.healthy("energy-highway-gates-at-minus-1", lambda s: highway(s, -1.0))
zoo.sick(
    "energy-highway-gates-at-minus-30",
    lambda s: highway(s, -30.0),
    both(
        lasting(flat_behind("blocks.0.gate", "sigmoid", 0.99), flat_behind("blocks.7.gate", "sigmoid", 0.99)),
        worse(1.5),
    ),
    "SATURATION",
    "VANISHING",
    "DEAD",
    "DISCONNECTED",
    also={"SLOW"},
    control=open_ways,
)


class Dropped(nn.Module):
    """Stochastic depth: a block is left out by chance; a table of chances may say "always"."""

    def __init__(self, chances: list[float]) -> None:
        super().__init__()
        self.into, self.blocks = nn.Linear(11, 32), nn.ModuleList(Block(32, nn.SiLU) for _ in chances)
        self.head, self.chances = nn.Linear(32, 5), chances

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for block, chance in zip(self.blocks, self.chances, strict=True):
            if torch.rand(()).item() >= chance:
                x = block(x)
        return self.head(x)


def left_out(seed: int, last: float) -> Setup:
    return live(Dropped([0.0, 0.1, 0.2, last]), grades(seed), "AdamW", 5e-3, 60)


chances = zoo.healthy("grades-stochastic-depth-up-to-0.3", lambda s: left_out(s, 0.3))
zoo.sick(
    "grades-stochastic-depth-up-to-1",
    lambda s: left_out(s, 1.0),
    lasting(no_gradient("blocks.3")),
    *CUT_OFF,
    layer=("blocks.3.fc1", "blocks.3.fc2", "blocks.3"),
    control=chances,
)


class Unit(nn.Module):
    """A block whose own norm divides by the deviation of a row."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.eps = nn.Linear(width, 2 * width), nn.Linear(2 * width, width, bias=False), eps

    def forward(self, x: Tensor) -> Tensor:
        h = (x - x.mean(dim=1, keepdim=True)) / (x.var(dim=1, keepdim=True, unbiased=False) + self.eps).sqrt()
        return x + self.fc2(F.relu(self.fc1(h)))


class Counted(nn.Module):
    """Counts of words without a bias in front; a text of unknown words is a row of zeros."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.words, self.blocks = (
            nn.EmbeddingBag(121, 32, mode="mean", padding_idx=120),
            nn.Sequential(Unit(32, eps), Unit(32, eps)),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(text)))


def unknown(seed: int, eps: float) -> Setup:
    now = every(9, 6)
    task = tags(seed).mapped(lambda x: torch.cat([torch.full_like(x[:1], 120), x[1:]]) if now() else x)
    return live(Counted(eps), task, "Adam", 1e-2, 70)


eps = zoo.healthy("tags-own-norm-with-eps-empty-texts", lambda s: unknown(s, 1e-5))
zoo.sick(
    "tags-own-norm-without-eps-empty-texts",
    lambda s: unknown(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=eps,
)

# --- pictures


class Basic(nn.Module):
    """Two convolutions with batch norms and the sum; `zero` starts the branch at nothing."""

    def __init__(self, width: int, zero: bool = False, shift: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu, self.last = nn.ReLU(), nn.ReLU()
        nn.init.constant_(self.bn1.bias, shift)
        if zero:
            nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))


def worn(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, fabrics(seed, 10), *args, **more)


class Embed(nn.Module):
    """A residual net with a projection to `size` numbers before the classes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.stem, self.blocks = conv(1, 16, 2), nn.Sequential(Basic(16), Basic(16))
        self.project, self.classes = nn.Linear(16, size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.project(self.blocks(self.stem(x)).mean(dim=(2, 3))))


sixteen = zoo.healthy("fabrics-resnet-projection-of-16", lambda s: worn(s, Embed(16), "Adam", 5e-3, 60))
zoo.sick(
    "fabrics-resnet-projection-of-1",
    lambda s: worn(s, Embed(1), "Adam", 5e-3, 60),
    lags(0.2),
    *NARROW,
    layer=("project", "classes"),
    control=sixteen,
)


def shifted(seed: int, shift: float) -> Setup:
    """The shifts of all first norms were set for another activation."""
    model = nn.Sequential(conv(1, 16, 2), *[Basic(16, shift=shift) for _ in range(3)], Head(16, 10))
    return worn(seed, model, "Adam", 3e-3, 50)


fine = zoo.healthy("fabrics-resnet-shift-of-0", lambda s: shifted(s, 0.0))
zoo.sick(
    "fabrics-resnet-shift-of-minus-9-in-all-branches",
    lambda s: shifted(s, -9.0),
    both(
        lasting(dead("1.relu", 0.99), dead("3.relu", 0.99), no_gradient("1.conv1", "2.conv1", "3.conv1")),
        worse(1.2),
    ),
    "DEAD",
    "DISCONNECTED",
    layer=tuple(f"{i}.{part}" for i in (1, 2, 3) for part in ("conv1", "bn1", "conv2", "relu")),
    also={"VANISHING"},
    control=fine,
)


class Scaled(nn.Module):
    """A block whose branch is multiplied by a learned number."""

    def __init__(self, width: int, start: float = 0.1, kernel: int = 5) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv1d(width, width, kernel, padding=kernel // 2) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.conv2(F.elu(self.conv1(F.elu(x))))


class Time(nn.Module):
    """Residual blocks over time that rebuild a signal through a neck of channels."""

    def __init__(self, neck: int) -> None:
        super().__init__()
        self.into, self.enc = nn.Conv1d(4, 24, 8, 4, 2), nn.Sequential(Scaled(24), Scaled(24))
        self.neck, self.lift = nn.Conv1d(24, neck, 1), nn.Conv1d(neck, 24, 1)
        self.dec, self.out = nn.Sequential(Scaled(24), Scaled(24)), nn.ConvTranspose1d(24, 4, 8, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.dec(self.lift(self.neck(self.enc(self.into(x))))))


timed = zoo.healthy("engines-residual-autoencoder-neck-of-8", lambda s: live(Time(8), engines(s), "Adam", 5e-3, 60))
zoo.sick(
    "engines-residual-autoencoder-neck-of-1",
    lambda s: live(Time(1), engines(s), "Adam", 5e-3, 60),
    lags(0.15),
    *NARROW,
    layer=("neck", "lift"),
    control=timed,
)


def clipped(seed: int, kind: str, lr: float, steps: int = 50, **more) -> Setup:
    model = he(nn.Sequential(nn.Conv1d(12, 24, 3, padding=1), Scaled(24), Scaled(24), nn.Flatten(), nn.Linear(480, 7)))
    return live(model, words(seed), kind, lr, steps, **more)


paced = zoo.healthy("words-residual-sgd-0.02-clipped-to-1", lambda s: clipped(s, "SGD", 0.02, momentum=0.9, clip=1.0))
zoo.sick(
    "words-residual-sgd-3-momentum",
    lambda s: clipped(s, "SGD", 3.0, momentum=0.9, clip=1.0),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=paced,
)
zoo.sick(
    "words-residual-clipped-to-1e-7-sgd",
    lambda s: clipped(s, "SGD", 0.02, momentum=0.9, clip=1e-7),
    does_not_move(steps=50),
    "SLOW",
    control=paced,
)
stepped = zoo.healthy(
    "words-residual-cubic-decay-over-60-steps",
    lambda s: clipped(s, "Adam", 1e-3, 60, rate=lambda t: max(0.0, 1 - t / 60) ** 3),
)
zoo.sick(
    "words-residual-cubic-decay-over-6-steps-of-60",
    lambda s: clipped(s, "Adam", 1e-3, 60, rate=lambda t: max(0.0, 1 - t / 6) ** 3),
    stands_still(10),
    "SLOW",
    control=stepped,
)


def silent(seed: int, first: bool) -> Setup:
    """The last layer of each branch starts at zero, as it should, or both do."""
    model = ResMlp(8, 32, [Block(32) for _ in range(4)], 1)
    model.norm = nn.Identity()
    for block in model.blocks:
        for layer in (block.fc1, block.fc2) if first else (block.fc2,):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
    return live(model, energy(seed), "Adam", 3e-3, 80)


quiet = zoo.healthy("energy-residual-last-layers-of-branches-at-zero", lambda s: silent(s, False))
zoo.sick(
    "energy-residual-both-layers-of-branches-at-zero",
    lambda s: silent(s, True),
    both(
        lasting(no_gradient("blocks.0.fc1", "blocks.3.fc1", "blocks.0.fc2.weight", "blocks.3.fc2.weight")),
        worse(1.5),
    ),
    *CUT_OFF,
    "SYMMETRY",
    "VANISHING",
    layer=tuple(f"blocks.{i}.{part}" for i in range(4) for part in ("fc1", "act", "fc2")),
    also={"LOW_RANK", "BOTTLENECK"},
    control=quiet,
)


def corrupted(seed: int, value: float) -> Setup:
    """Every tenth batch holds one row whose gauge has failed and shows its largest number."""
    now = every(10, 6)

    def change(x: Tensor) -> Tensor:
        if not now():
            return x
        x = x.clone()
        x[0, 2] = value
        return x

    model = ResMlp(10, 32, [Block(32, nn.SiLU, norm=False) for _ in range(3)], 12)
    model.norm = nn.Identity()
    return live(model, plant(seed).mapped(change), "Adam", 2e-3, 70)


sound = zoo.healthy("plant-residual-failed-gauge-set-to-0", lambda s: corrupted(s, 0.0))
zoo.sick(
    "plant-residual-failed-gauge-of-32767",
    lambda s: corrupted(s, 32767.0),
    gradient_norms_spread(50),
    *JUMPS,
    also={"NUMERICAL"},
    control=sound,
)

# --- fine as they are


def simple(name: str, build, proof=None) -> None:
    zoo.healthy(name, build, proof)


simple(
    "grades-residual-relu-layer-norm",
    lambda s: live(ResMlp(11, 32, [Block(32) for _ in range(4)], 5), grades(s), "AdamW", 3e-3, 50),
)
simple(
    "grades-residual-16-blocks-pre-norm",
    lambda s: live(ResMlp(11, 24, [Block(24, nn.GELU) for _ in range(16)], 5), grades(s), "AdamW", 2e-3, 40),
)
simple(
    "energy-residual-two-blocks",
    lambda s: live(ResMlp(8, 32, [Block(32, nn.Tanh) for _ in range(2)], 1), energy(s), "Adam", 5e-3, 80),
)
simple(
    "spectra-residual-denoiser",
    lambda s: live(ResMlp(60, 48, [Block(48, nn.SiLU) for _ in range(2)], 60), peaks(s, noise=0.3), "AdamW", 3e-3, 60),
)
simple(
    "islands-residual-highway",
    lambda s: live(ResMlp(2, 16, [Highway(16, -2.0) for _ in range(6)], 8), islands(s), "Adam", 5e-3, 60),
)


class ReZero(nn.Module):
    """A branch that starts at nothing and learns how much it counts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.alpha = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.Parameter(torch.zeros(())),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.fc2(F.relu(self.fc1(x)))


simple(
    "grades-rezero-12-blocks",
    lambda s: live(ResMlp(11, 32, [ReZero(32) for _ in range(12)], 5), grades(s), "Adam", 3e-3, 60),
)


class Glu(nn.Module):
    """A gated branch with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc, self.back, self.drop = (
            nn.BatchNorm1d(width),
            nn.Linear(width, 4 * width),
            nn.Linear(2 * width, width),
            nn.Dropout(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.back(F.glu(self.fc(self.norm(x)), dim=1)))


simple(
    "plant-residual-gated-dropout",
    lambda s: live(ResMlp(10, 32, [Glu(32) for _ in range(3)], 12), plant(s), "AdamW", 5e-3, 60),
)


class Post(nn.Module):
    """The norm behind the sum, as in the first transformers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net, self.norm = tower([width, 2 * width, width], nn.GELU), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.net(x))


simple(
    "grades-post-norm-6-blocks-warm-up",
    lambda s: live(
        ResMlp(11, 32, [Post(32) for _ in range(6)], 5),
        grades(s),
        "Adam",
        3e-3,
        60,
        rate=lambda t: min(1, (t + 1) / 15),
    ),
)


class Shared(nn.Module):
    """One block, used six times."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.block, self.head = nn.Linear(11, 32), Block(32, nn.SiLU), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for _ in range(6):
            x = x + 0.2 * (self.block(x) - x)
        return self.head(x)


simple("grades-one-block-six-times", lambda s: live(Shared(), grades(s), "Adam", 5e-3, 60))


class Reversible(nn.Module):
    """Two streams that are added to each other in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(11, 48), nn.Linear(48, 5)
        self.f, self.g = (nn.ModuleList(tower([24, 32, 24], nn.GELU) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.into(x).chunk(2, dim=1)
        for f, g in zip(self.f, self.g, strict=True):
            a = a + f(b)
            b = b + g(a)
        return self.head(torch.cat([a, b], dim=1))


simple("grades-reversible-streams", lambda s: live(Reversible(), grades(s), "AdamW", 3e-3, 50))


class Heads(nn.Module):
    """Two encoders of residual blocks, matched."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (ResMlp(20, 32, [Block(32, nn.GELU)], 16) for _ in range(2))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return 8 * F.normalize(self.a(image), dim=1) @ F.normalize(self.b(text), dim=1).T


simple("captions-residual-contrastive", lambda s: live(Heads(), twins(s), "AdamW", 3e-3, 60))


def pictures(width: int, *blocks: nn.Module, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(conv(1, width, 2), *blocks, Head(width, classes))


simple(
    "fabrics-resnet-zero-start-of-branches",
    lambda s: worn(s, pictures(16, *[Basic(16, zero=True) for _ in range(3)]), "SGD", 0.1, 50, momentum=0.9),
)
simple(
    "fabrics-resnet-cosine-weight-decay",
    lambda s: worn(
        s,
        pictures(16, Basic(16), Basic(16)),
        "SGD",
        0.1,
        60,
        momentum=0.9,
        weight_decay=5e-4,
        rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * t / 60),
    ),
)
simple(
    "fabrics-resnet-batches-of-8",
    lambda s: live(pictures(16, Basic(16), Basic(16), classes=8), fabrics(s, batch=8), "Adam", 2e-3, 80),
)


class Next(nn.Module):
    """A deep kernel per channel, a norm, a wide layer, a scale that starts small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(width, width, 5, padding=2, groups=width), nn.GroupNorm(1, width)
        self.wide, self.back = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.back(F.gelu(self.wide(self.norm(self.deep(x)))))


simple("fabrics-conv-next-layer-scale", lambda s: worn(s, pictures(16, Next(16), Next(16)), "AdamW", 4e-3, 50))


class Inverted(nn.Module):
    """Wide inside, narrow outside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(width, 3 * width, 1, bias=False),
            nn.BatchNorm2d(3 * width),
            nn.ReLU6(),
            nn.Conv2d(3 * width, 3 * width, 3, padding=1, groups=3 * width, bias=False),
            nn.BatchNorm2d(3 * width),
            nn.ReLU6(),
            nn.Conv2d(3 * width, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


simple("fabrics-inverted-blocks", lambda s: worn(s, pictures(12, Inverted(12), Inverted(12)), "Adam", 3e-3, 50))


class Learned(nn.Module):
    """Says what is to be taken away from a noisy picture."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, 16), conv(16, 16), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.net(x)


simple("skies-noise-as-the-residual", lambda s: live(Learned(), skies(s, noise=0.5), "Adam", 3e-3, 60))


class Full(nn.Module):
    """Residual blocks at full size for every dot."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks, self.out = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Sequential(Basic(16), Basic(16)),
            nn.Conv2d(16, 3, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.stem(x)))


simple("roads-residual-full-size", lambda s: live(Full(), roads(s), "Adam", 5e-3, 40))
simple(
    "marks-residual-flattened",
    lambda s: live(
        nn.Sequential(conv(3, 16, 2), Basic(16), nn.Flatten(), nn.Linear(784, 6)), marks(s), "Adam", 2e-3, 60
    ),
)
simple(
    "words-residual-dilations",
    lambda s: live(
        nn.Sequential(nn.Conv1d(12, 24, 1), Scaled(24, 0.3, 3), Scaled(24, 0.3, 7), nn.Flatten(), nn.Linear(480, 7)),
        words(s),
        "RAdam",
        3e-3,
        60,
    ),
)
