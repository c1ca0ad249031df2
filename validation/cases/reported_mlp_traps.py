# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks that made people worry in threads and were sound, and plain ones as good tutorials write them.

Half: reported.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import start
from validation.cases._plain_nets import flat, with_groups
from validation.cases._reported_nets import (
    Coder,
    Tagger,
    dense,
    gauges,
    penguins,
    ratings,
    rents,
    scans,
    shopping,
    trios,
    waves,
)
from validation.evidence import converged, thrives
from validation.setups import frozen, live, pair, pretrain

zoo = Zoo("mlp", half="reported", proof=thrives(0.2, most_dead=0.5))

# --- noise that is no fault

# vitoralbiero/img2pose#46: the curve has spikes; that is the small batch, and the trend is down.
zoo.healthy(
    "penguins-batches-of-8-noisy-loss",
    lambda s: live(dense([14, 48, 48, 8]), penguins(s, batch=8), "Adam", 3e-3, 120),
)


# facebookresearch/vggt#441: the peaks are hard samples that come at random.
def hard_rows(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 81)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        odd = (torch.rand(len(y), 1, generator=random) < 0.03).float()
        return x, y + 6 * odd * torch.randn(y.shape, generator=random)

    return live(
        dense([9, 48, 48, 1], nn.SiLU), rents(seed).changed(change).with_loss(F.smooth_l1_loss), "Adam", 4e-3, 110
    )


zoo.healthy("rents-three-in-a-hundred-are-far-off", hard_rows)

# AlexeyAB/darknet#4316: "do you use warm restarts? then it is normal".
zoo.healthy(
    "gauges-rate-with-warm-restarts",
    lambda s: live(
        dense([10, 64, 64, 8], nn.GELU),
        gauges(s),
        "AdamW",
        6e-3,
        120,
        rate=lambda t: 0.5 * (1 + math.cos(math.pi * (t % 40) / 40)) + 0.01,
    ),
)


# --- narrow and right

# mattragoza/LiGAN#18, the other half of the answer: a code as large as the manifold is enough.
zoo.healthy(
    "scans-of-three-things-code-of-4",
    lambda s: live(Coder(40, 4, act=nn.SiLU), scans(s, factors=3), "Adam", 6e-3, 110),
)
zoo.healthy(
    "scans-of-nine-things-code-of-9",
    lambda s: live(Coder(40, 9, width=96, act=nn.SiLU), scans(s), "Adam", 5e-3, 110),
)


def binary(seed: int) -> Setup:
    task = penguins(seed, classes=6).changed(lambda x, kind: (x, (kind < 3).float())).with_loss(flat)
    return live(dense([14, 64, 32, 1]), task, "Adam", 4e-3, 100)


# one unit at the end is what two classes need.
zoo.healthy("penguins-two-groups-by-one-logit", binary)


def low_rank_target(seed: int) -> Setup:
    """Eight gauges that two things move: a middle of three units is wide enough."""
    ways = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed + 82))

    def change(x: Tensor, _y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.tanh(x[:, :2]) @ ways

    return live(dense([10, 48, 3, 48, 8], nn.Tanh), gauges(seed).changed(change), "Adam", 8e-3, 110)


zoo.healthy("gauges-moved-by-two-things-middle-of-3", low_rank_target)

# --- parts that rest, or move little


def fine_tuned(seed: int) -> Setup:
    """A net that has learned other kinds; its first layers are frozen, as is meant, and the head is new."""
    model = dense([14, 64, 64, 8])
    pretrain(pair(model, penguins(seed + 40)), 60)
    model[4] = nn.Linear(64, 8)
    return live(frozen(model, "0"), penguins(seed), "Adam", 4e-3, 90)


zoo.healthy("penguins-first-layer-frozen-on-purpose", fine_tuned)


def slower(seed: int) -> Setup:
    """Old layers at a tenth of the rate of the new one."""
    model = dense([14, 64, 64, 8])
    pretrain(pair(model, penguins(seed + 40)), 60)
    model[4] = nn.Linear(64, 8)
    old = [p for at in (0, 2) for p in model[at].parameters()]
    groups = [{"params": old, "lr": 5e-4}, {"params": list(model[4].parameters()), "lr": 5e-3}]
    return with_groups(model, penguins(seed), groups, steps=90, lr=5e-4)


zoo.healthy("penguins-old-layers-at-a-tenth-of-the-rate", slower)


def finished(seed: int) -> Setup:
    """Small gradients of a net that has converged: the question comes up under most "vanishing gradient" threads."""
    model, task = dense([9, 64, 1], nn.Tanh), rents(seed, noise=0.02)
    pretrain(pair(model, task), 500, 5e-3)
    return live(model, task, "Adam", 1e-4, 40)


zoo.healthy("rents-converged-small-gradients", finished, converged(0.08))


class Sparse(nn.Module):
    """A big table of which each batch sees a few rows."""

    def __init__(self, rows: int = 1500) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(rows, 8), nn.Linear(8, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids).mean(dim=1))


def big_table(seed: int) -> Setup:
    """Most of the ids of the dictionary are rare; a few say the class."""
    random = torch.Generator().manual_seed(seed + 83)

    def change(x: tuple[Tensor, Tensor], kind: Tensor) -> tuple[Tensor, Tensor]:
        rare = torch.randint(200, 1500, (len(kind), 3), generator=random)
        tell = (kind[:, None] * 4 + torch.randint(4, (len(kind), 5), generator=random)).clamp(max=199)
        return torch.cat([tell, rare], dim=1), kind

    return live(Sparse(), shopping(seed).changed(change), "Adam", 2e-2, 90)


zoo.healthy("shopping-big-table-rare-rows", big_table)

# --- steps that look odd

zoo.healthy(
    "gauges-clipping-at-nearly-every-step",
    lambda s: live(dense([10, 64, 64, 8]), gauges(s), "SGD", 0.5, 110, momentum=0.9, clip=0.2),
)
zoo.healthy(
    "penguins-warm-up-then-cosine",
    lambda s: live(
        dense([14, 64, 64, 8], nn.GELU),
        penguins(s),
        "AdamW",
        8e-3,
        110,
        rate=lambda t: min(1.0, (t + 1) / 25) * 0.5 * (1 + math.cos(math.pi * min(t, 110) / 110)) + 0.01,
        weight_decay=0.05,
    ),
)
zoo.healthy(
    "shopping-plain-sgd-a-tenth", lambda s: live(Tagger(6), shopping(s), "SGD", 0.3, 120, momentum=0.9), thrives(0.15)
)
zoo.healthy(
    "gauges-one-batch-over-and-over-on-purpose",
    lambda s: live(dense([10, 96, 96, 8]), gauges(s, batch=32).fixed(), "Adam", 4e-3, 100),
)

# --- losses that look odd


def smooth(z: Tensor, kind: Tensor) -> Tensor:
    return F.cross_entropy(z, kind, label_smoothing=0.1)


# the floor of a smoothed loss is far above zero.
zoo.healthy(
    "penguins-label-smoothing",
    lambda s: live(dense([14, 64, 64, 8], nn.GELU), penguins(s, apart=1.4).with_loss(smooth), "Adam", 5e-3, 100),
)


def likelihood(out: Tensor, y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(out[:, :1], y, F.softplus(out[:, 1:]) + 1e-3) + 1.5


# below-zero losses are right for densities (a question under most Gaussian heads); shifted so that its fall has a
# share.
zoo.healthy(
    "rents-gaussian-likelihood-below-its-start",
    lambda s: live(dense([9, 64, 64, 2], nn.SiLU), rents(s, noise=0.05).with_loss(likelihood), "Adam", 5e-3, 110),
)


class Triple(nn.Module):
    """Embeddings of unit length under a triplet loss; soon most triples are far enough apart and give nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense([20, 64, 16])

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a, b, c = (F.normalize(self.net(x), dim=1) for x in (a, b, c))
        return F.triplet_margin_loss(a, b, c, margin=0.8)


# omoindrot/tensorflow-triplet-loss#27: "the loss goes to 0 after 100 steps": most triples are easy.
zoo.healthy("trios-most-triples-are-easy", lambda s: live(Triple(), trios(s), "Adam", 3e-3, 90))

# --- starts


def zero_last(model: nn.Sequential) -> nn.Sequential:
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return model


zoo.healthy(
    "penguins-last-layer-starts-at-zero",
    lambda s: live(zero_last(dense([14, 64, 64, 8])), penguins(s), "Adam", 4e-3, 90),
)


def selu(seed: int) -> Setup:
    """Eight layers that keep their size by themselves."""
    model = dense([14, *[48] * 7, 8], nn.SELU)
    start(model, lambda w: nn.init.normal_(w, std=w.shape[1] ** -0.5))
    return live(model, penguins(seed), "SGD", 0.02, 90, momentum=0.9)


zoo.healthy("penguins-eight-selu-layers", selu)


class Fourier(nn.Module):
    """Sines and cosines of a place, then layers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rate", torch.linspace(0.5, 8, 12))
        self.net = dense([24, 64, 64, 1])

    def forward(self, x: Tensor) -> Tensor:
        turned = x * self.rate
        return self.net(torch.cat([turned.sin(), turned.cos()], dim=1))


zoo.healthy("waves-fourier-features", lambda s: live(Fourier(), waves(s), "Adam", 5e-3, 90))


class Dropped(nn.Module):
    """Half of the units are dropped at each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Linear(14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(128, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


# the training loss is above that of validation: dropout.
zoo.healthy("penguins-dropout-of-a-half", lambda s: live(Dropped(), penguins(s), "Adam", 4e-3, 100))


class Dot(nn.Module):
    """Products of tables that start small: flat for some steps, then quick."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(30, 8)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(dim=1)


zoo.healthy("ratings-products-that-start-small", lambda s: live(Dot(), ratings(s), "Adam", 3e-2, 110))
