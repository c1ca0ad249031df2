# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks that look odd and are well.

Half: sealed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import gusts, loans, portraits, races, rosters, shoals, soils, stars
from validation.evidence import thrives
from validation.nets import mlp
from validation.setups import live

zoo = Zoo("mlp", half="sealed", proof=thrives())


# --- losses that are unlike the usual ones


def quantiles(seed: int) -> Setup:
    """Three quantiles at once, by the pinball loss."""
    level = torch.tensor([0.1, 0.5, 0.9])

    def pinball(q: Tensor, y: Tensor) -> Tensor:
        over = y[:, None] - q
        return torch.maximum(level * over, (level - 1) * over).mean()

    return live(mlp([8, 40, 40, 3], nn.SiLU), gusts(seed).with_loss(pinball), lr=5e-3, steps=70)


zoo.healthy("gusts-three-quantiles", quantiles)


class Triplet(nn.Module):
    """Vectors of unit length of two photographs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([24, 40, 10], nn.ReLU)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.body(a), dim=1), F.normalize(self.body(b), dim=1)


def triplets(seed: int) -> Setup:
    """The wrong photograph has to be farther than the right one by a margin; many triplets are easy and silent."""

    def loss(out: tuple[Tensor, Tensor], _t: Tensor) -> Tensor:
        a, b = out
        return F.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.5)

    task = portraits(seed).changed(lambda x, t: ((x[0], 0.8 * x[0] + 0.6 * x[1]), t))
    return live(Triplet(), task.with_loss(loss), lr=3e-3, steps=60)


zoo.healthy("portraits-triplets", triplets, thrives(most_dead=0.5))


def focal(seed: int) -> Setup:
    """What is known already counts less and less."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        each = F.cross_entropy(z, t, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return live(mlp([16, 40, 40, 6], nn.GELU), stars(seed).with_loss(loss), lr=5e-3, steps=60)


zoo.healthy("stars-focal", focal)


def smoothed(seed: int) -> Setup:
    task = stars(seed).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.3))
    return live(mlp([16, 40, 6], nn.ReLU), task, lr=5e-3, steps=60)


zoo.healthy("stars-smoothed-labels", smoothed)


def mixup(seed: int) -> Setup:
    """Rows are mixed with one another, and so are their labels."""
    random = torch.Generator().manual_seed(seed + 3)

    def mix(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.rand(len(x), 1, generator=random)
        y = F.one_hot(t, 6).float()
        return share * x + (1 - share) * x.roll(1, 0), share * y + (1 - share) * y.roll(1, 0)

    return live(mlp([16, 48, 6], nn.SiLU), stars(seed).changed(mix), lr=1e-2, steps=70)


zoo.healthy("stars-mixed-with-one-another", mixup)


def counts(seed: int) -> Setup:
    """Counts by a Poisson likelihood; the net gives the logarithm of the rate."""
    task = soils(seed).changed(lambda x, y: (x, torch.round(4 * torch.exp(0.7 * y).clamp_max(30))))
    task = task.with_loss(lambda z, n: F.poisson_nll_loss(z, n, full=True))
    return live(mlp([12, 40, 40, 1], nn.Tanh), task, lr=5e-3, steps=80)


zoo.healthy("soils-counts-by-poisson", counts)


class Twins(nn.Module):
    """Two views through one net, standardised over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([24, 48, 12], nn.GELU)
        self.norm = nn.BatchNorm1d(12, affine=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.norm(self.body(a)).T @ self.norm(self.body(b)) / len(a)


def decorrelated(seed: int) -> Setup:
    """Features of both views agree, and no two features say the same; labels are not used."""

    def loss(c: Tensor, _t: Tensor) -> Tensor:
        diagonal = torch.diagonal(c)
        return (1 - diagonal).square().sum() + 0.05 * (c.square().sum() - diagonal.square().sum())

    task = portraits(seed).changed(lambda x, t: ((x[0], x[0] + 0.5 * torch.randn_like(x[0])), t))
    return live(Twins(), task.with_loss(loss), lr=3e-3, steps=60)


zoo.healthy("portraits-decorrelated-views", decorrelated, thrives(idle="body.2.bias"))


def uncertain(seed: int) -> Setup:
    """Three tasks whose weights are learned beside them."""

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = mlp([12, 40, 32], nn.SiLU), nn.ModuleList(nn.Linear(32, 1) for _ in range(3))
            self.log_var = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.silu(self.body(x))
            return torch.cat([head(h) for head in self.heads], dim=1), self.log_var

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        error = (out[0] - y * torch.tensor([1.0, 3.0, 0.3])).square().mean(dim=0)
        return ((-out[1]).exp() * error + out[1]).sum() / 3 + 3

    return live(Tasks(), soils(seed, out=3).with_loss(loss), lr=5e-3, steps=70)


zoo.healthy("soils-three-tasks-learned-weights", uncertain)


def hinge(seed: int) -> Setup:
    """A ranking by a hinge: pairs that are right by a margin are silent."""

    class Rank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp([12, 40, 1], nn.SiLU)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.body(a), self.body(b)

    def loss(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
        return F.margin_ranking_loss(*(each.squeeze(1) for each in out), 2 * t - 1, margin=1.0)

    return live(Rank(), races(seed).with_loss(loss), lr=1e-2, steps=70)


zoo.healthy("races-ranked-by-a-hinge", hinge, thrives(idle="body.2.bias"))


# --- shapes and starts that are unlike the usual ones


class Waves(nn.Module):
    """Sines as activations, drawn as their inventors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((12, 40), (40, 40), (40, 1)))
        nn.init.uniform_(self.layers[1].weight, -((6 / 40) ** 0.5), (6 / 40) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(1.5 * layer(x))
        return self.layers[-1](x)


zoo.healthy("soils-sines", lambda s: live(Waves(), soils(s), lr=5e-3, steps=70))


class Fourier(nn.Module):
    """Random waves of the columns, which are not learned, and a net on top."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ways", 0.5 * torch.randn(12, 24))
        self.body = mlp([48, 40, 1], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.ways
        return self.body(torch.cat([z.sin(), z.cos()], dim=1))


zoo.healthy("soils-random-waves", lambda s: live(Fourier(), soils(s), lr=5e-3, steps=80), thrives(most_dead=0.5))


class Extreme(nn.Module):
    """A wide layer stays as drawn; the last one is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn, self.out = nn.Linear(16, 96).requires_grad_(False), nn.Linear(96, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.drawn(x)))


zoo.healthy("stars-random-features", lambda s: live(Extreme(), stars(s), lr=1e-2, steps=60))


class Fold(nn.Module):
    """Units that give the larger of three."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(16, 96), nn.Linear(32, 96), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.fc1, self.fc2):
            x = layer(x).unflatten(1, (32, 3)).amax(dim=2)
        return self.out(x)


zoo.healthy("stars-largest-of-three", lambda s: live(Fold(), stars(s), lr=3e-3, steps=60))


class Centres(nn.Module):
    """Bells around learned centres: far from its centre a unit is silent."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.centres = nn.Linear(16, 4), nn.Parameter(1.5 * torch.randn(40, 4))
        self.out = nn.Linear(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.exp(-0.5 * torch.cdist(self.enter(x), self.centres).square()))


zoo.healthy("stars-bells-around-centres", lambda s: live(Centres(), stars(s), lr=2e-2, steps=80))


def simple(seed: int) -> Setup:
    """One number decides: two hidden units are plenty."""
    task = soils(seed).changed(lambda x, _y: (x, torch.tanh(1.5 * x[:, :3].sum(dim=1, keepdim=True))))
    return live(mlp([12, 2, 1], nn.Tanh), task, lr=3e-2, steps=80)


zoo.healthy("soils-two-units-for-one-number", simple)


def sparse(seed: int) -> Setup:
    """Columns that are nearly always zero, beside four that never change."""
    random = torch.Generator().manual_seed(seed + 8)

    def thin(x: Tensor) -> Tensor:
        rare = (torch.rand(len(x), 60, generator=random) < 0.05).float()
        return torch.cat([x, rare, torch.ones(len(x), 4)], dim=1)

    return live(mlp([80, 48, 6], nn.ReLU), stars(seed).mapped(thin), lr=5e-3, steps=60)


zoo.healthy("stars-among-rare-columns", sparse)


def last_zero(seed: int) -> Setup:
    """The last layer begins at zero: in the first step only it has a gradient."""
    model = mlp([16, 48, 48, 6], nn.GELU)
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    return live(model, stars(seed), lr=5e-3, steps=60)


zoo.healthy("stars-last-layer-begins-at-zero", last_zero)


def bounded(seed: int) -> Setup:
    """Every matrix has its largest stretch at one, kept so while it learns."""
    model = nn.Sequential(spectral_norm(nn.Linear(16, 40)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(40, 40)))
    return live(model.append(nn.LeakyReLU(0.2)).append(nn.Linear(40, 6)), stars(seed), lr=5e-3, steps=60)


zoo.healthy("stars-spectral-norms", bounded)


def turned(seed: int) -> Setup:
    model = nn.Sequential(orthogonal(nn.Linear(16, 16)), nn.Softplus(), orthogonal(nn.Linear(16, 16)), nn.Softplus())
    return live(model.append(nn.Linear(16, 6)), stars(seed), lr=1e-2, steps=60)


zoo.healthy("stars-orthogonal-layers", turned)


def self_normal(seed: int) -> Setup:
    model = mlp([16, *[32] * 7, 6], nn.SELU)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    return live(model, stars(seed), lr=2e-3, steps=60)


zoo.healthy("stars-eight-layers-of-selu", self_normal)


class Film(nn.Module):
    """The kinds scale and shift what is read off the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.film = nn.Embedding(24, 8), nn.Linear(16, 64)
        self.body, self.out = nn.Linear(6, 32), nn.Linear(32, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        scale, shift = self.film(self.table(kinds).flatten(1)).chunk(2, dim=1)
        return self.out(F.silu(self.body(x) * (1 + scale) + shift)).squeeze(1)


zoo.healthy("loans-kinds-scale-and-shift", lambda s: live(Film(), loans(s), lr=1e-2, steps=100))


class Largest(nn.Module):
    """The largest of each feature over the points: most points pass nothing back."""

    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = mlp([3, 40, 40], nn.ReLU), mlp([40, 32, 4], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).amax(dim=1))


zoo.healthy(
    "shoals-largest-over-points", lambda s: live(Largest(), shoals(s, 16), lr=5e-3, steps=80), thrives(most_dead=0.5)
)


# --- optimizers and noise


def dropped(seed: int) -> Setup:
    model = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Dropout(0.6), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.6))
    return live(model.append(nn.Linear(96, 6)), stars(seed), lr=5e-3, steps=70)


zoo.healthy("stars-dropout-0.6", dropped)


def noisy_labels(seed: int) -> Setup:
    """A third of the labels is wrong, so that the loss stays high."""
    random = torch.Generator().manual_seed(seed + 9)

    def spoil(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(len(t), generator=random) < 0.35
        return x, torch.where(wrong, torch.randint(6, t.shape, generator=random), t)

    return live(mlp([16, 48, 6], nn.GELU), stars(seed).changed(spoil), lr=5e-3, steps=70)


zoo.healthy("stars-a-third-of-the-labels-wrong", noisy_labels)


def denoised(seed: int) -> Setup:
    """Rows with a third of their columns blanked, to be filled in."""
    random = torch.Generator().manual_seed(seed + 10)

    def blank(x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=random) > 0.33)

    return live(mlp([32, 64, 64, 32], nn.GELU), rosters(seed).mapped(blank), lr=5e-3, steps=80)


zoo.healthy("rosters-blanks-filled-in", denoised)
zoo.healthy("soils-nadam", lambda s: live(mlp([12, 40, 40, 1], nn.SiLU), soils(s), "NAdam", 4e-3, 60))
zoo.healthy(
    "stars-rprop-large-batch", lambda s: live(mlp([16, 32, 6], nn.Tanh), stars(s, batch=512), "Rprop", 2e-3, 50)
)
zoo.healthy(
    "rosters-cosine-to-zero",
    lambda s: live(
        mlp([32, 48, 10, 48, 32], nn.GELU),
        rosters(s),
        lr=1e-2,
        steps=80,
        rate=lambda t: 0.5 * (1 + torch.cos(torch.tensor(torch.pi * t / 80)).item()) + 1e-3,
    ),
)
