# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of laboratories and workshops that look odd and are well.

Half: drill.
"""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import thrives
from validation.nets import mlp
from validation.setups import live
from validation.tasks import grains, pairings, sensors, spectra

zoo = Zoo("mlp", half="drill", proof=thrives())

# --- narrow, and wide enough

zoo.healthy(
    "spectra-code-of-3-for-3-lines", lambda s: live(mlp([40, 56, 3, 56, 40], nn.ELU), spectra(s, 3), lr=5e-3, steps=80)
)
zoo.healthy(
    "spectra-linear-code-of-4-for-4-lines",
    lambda s: live(nn.Sequential(nn.Linear(40, 4), nn.Linear(4, 40)), spectra(s, 4), lr=1e-2, steps=80),
)
zoo.healthy(
    "sensors-tapering-64-24-10", lambda s: live(mlp([14, 64, 24, 10, 6], nn.GELU), sensors(s), lr=5e-3, steps=60)
)
zoo.healthy(
    "sensors-one-answer-from-one-number",
    lambda s: live(mlp([14, 40, 1, 16, 1], nn.SiLU), sensors(s).changed(lambda x, t: (x, t[:, :1])), lr=1e-2, steps=90),
)
zoo.healthy(
    "grains-two-kinds-by-two-logits", lambda s: live(mlp([18, 32, 2], nn.ReLU), grains(s, classes=2), lr=5e-3, steps=60)
)
zoo.healthy("pairings-two-factors-of-two-numbers", lambda s: live(Dot(2), pairings(s, factors=2), lr=3e-2, steps=100))


class Dot(nn.Module):
    """Likes as the product of two short vectors."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, size), nn.Embedding(24, size)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.user(ids[:, 0]) * self.item(ids[:, 1])).sum(dim=1)


def square(seed: int) -> Setup:
    """As many rows as columns as hidden numbers."""
    return live(mlp([14, 14, 14, 6], nn.Tanh), sensors(seed, batch=14), lr=1e-2, steps=80)


zoo.healthy("sensors-fourteen-of-everything", square)

# --- units


class Affine(nn.Module):
    """Puts the mean and the deviation of the targets behind a network."""

    def __init__(self, mean: float, spread: float) -> None:
        super().__init__()
        self.inner, self.mean, self.spread = mlp([14, 48, 6], nn.SiLU), mean, spread

    def forward(self, x: Tensor) -> Tensor:
        return self.mean + self.spread * self.inner(x)


zoo.healthy(
    "sensors-in-kelvin-put-back-at-the-end",
    lambda s: live(Affine(293.0, 15.0), sensors(s).changed(lambda x, t: (x, 293 + 15 * t)), lr=5e-3, steps=60),
)
zoo.healthy(
    "sensors-in-percent-as-they-are",
    lambda s: live(mlp([14, 64, 6], nn.GELU), sensors(s).changed(lambda x, t: (x, 50 + 10 * t)), lr=5e-2, steps=100),
)


def standardised(seed: int) -> Setup:
    """Raw columns of all sizes into a batch norm."""
    scale, level = 10 ** torch.linspace(-3, 4, 14), 5 * 10 ** torch.linspace(-3, 4, 14)
    model = nn.Sequential(nn.BatchNorm1d(14, eps=1e-9), *mlp([14, 48, 6], nn.SiLU))
    return live(model, sensors(seed).mapped(lambda x: level + scale * x), lr=1e-2, steps=60)


zoo.healthy("sensors-raw-columns-into-a-norm", standardised)

# --- parts that rest, share or start at zero


class Adapted(nn.Module):
    """A frozen net with changes of low rank beside each matrix, which start at zero."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.base = mlp([18, 64, 64, 7], nn.Tanh).requires_grad_(False)
        linear = [layer for layer in self.base if isinstance(layer, nn.Linear)]
        self.a = nn.ParameterList(torch.randn(rank, m.in_features) / m.in_features**0.5 for m in linear)
        self.b = nn.ParameterList(torch.zeros(m.out_features, rank) for m in linear)

    def forward(self, x: Tensor) -> Tensor:
        index = 0
        for layer in self.base:
            if isinstance(layer, nn.Linear):
                x = layer(x) + 2 * F.linear(F.linear(x, self.a[index]), self.b[index])
                index += 1
            else:
                x = layer(x)
        return x


zoo.healthy("grains-changes-of-rank-4-by-hand", lambda s: live(Adapted(4), grains(s), lr=1e-2, steps=70))


class Mirror(nn.Module):
    """A coder whose decoder is the encoder turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 24), nn.Linear(24, 8)
        self.bias = nn.Parameter(torch.zeros(40))

    def forward(self, x: Tensor) -> Tensor:
        z = self.second(torch.tanh(self.first(x)))
        return torch.tanh(z @ self.second.weight) @ self.first.weight + self.bias


zoo.healthy("spectra-coder-with-tied-weights", lambda s: live(Mirror(), spectra(s), lr=1e-2, steps=80))


class Experts(nn.Module):
    """Three experts, weighed by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(14, 3), nn.ModuleList(mlp([14, 24, 6], nn.ReLU) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (self.gate(x).softmax(dim=1)[..., None] * answers).sum(dim=1)


zoo.healthy("sensors-three-experts", lambda s: live(Experts(), sensors(s), lr=1e-2, steps=60))


class Momentum(nn.Module):
    """A net and a slow copy of it, which follows by a hook of the forward pass and is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = mlp([40, 48, 12], nn.GELU)
        self.slow = deepcopy(self.fast).requires_grad_(False)
        self.guess = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for old, new in zip(self.slow.parameters(), self.fast.parameters(), strict=True):
                old.lerp_(new, 0.02)
            seen = F.normalize(self.slow(x), dim=1)
        noisy = x + 0.1 * torch.randn_like(x)
        return 2 - 2 * (F.normalize(self.guess(self.fast(noisy)), dim=1) * seen).sum(dim=1)


zoo.healthy(
    "spectra-own-slow-copy-guessed",
    lambda s: live(Momentum(), spectra(s).with_loss(lambda out, _: out.mean()), lr=5e-3, steps=60),
)


def headed(seed: int) -> Setup:
    """The last layer starts at zero, so that the first step moves nothing but it."""
    model = mlp([18, 48, 48, 7], nn.SiLU)
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    return live(model, grains(seed), lr=5e-3, steps=60)


zoo.healthy("grains-head-starts-at-zero", headed)
zoo.healthy(
    "grains-half-dropped", lambda s: live(mlp([18, 96, 96, 7], nn.ReLU, dropout=0.5), grains(s), lr=5e-3, steps=70)
)


class Triplet(nn.Module):
    """Rows as vectors on a sphere, near those of their own kind."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp([18, 48, 16], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.net(x), dim=1)


def triplets(z: Tensor, kind: Tensor) -> Tensor:
    """The farthest of one's own kind is to be nearer than the nearest of another."""
    away, same = torch.cdist(z, z), kind[:, None] == kind
    return F.softplus(4 * (away.masked_fill(~same, 0).amax(dim=1) - away.masked_fill(same, 9).amin(dim=1))).mean()


zoo.healthy(
    "grains-triplets", lambda s: live(Triplet(), grains(s).with_loss(triplets), lr=5e-3, steps=80), thrives(0.05)
)


class Normal(nn.Module):
    """Mean and logarithmic variance of a code, drawn anew each time; the loss keeps both."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([40, 48, 12], nn.SiLU), mlp([6, 48, 40], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + (0.5 * log_var).exp() * torch.randn_like(mean)), mean, log_var


def bound(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    rebuilt, mean, log_var = out
    divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(dim=1).mean()
    return F.mse_loss(rebuilt, x) + 0.002 * divergence


zoo.healthy("spectra-variational-code-of-6", lambda s: live(Normal(), spectra(s).with_loss(bound), lr=5e-3, steps=90))
