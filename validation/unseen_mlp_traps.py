# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that look odd and are healthy: shapes, parts that rest, precisions. Set aside."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_training import trains
from validation.nets import Lora, Tower, he_, mlp, xavier_
from validation.nets_unseen import DeepSet, Gated, Tabular, TwoTower
from validation.setups import frozen, pair
from validation.tasks import blobs, manifold, patches, regression
from validation.tasks_unseen import table, views

zoo = Zoo("mlp", proof=trains(lr=3e-3))

# --- shapes that suit their task


def binary(seed: int, model: nn.Module, dim: int) -> Setup:
    task = blobs(seed, dim, 2, 128, 1.0)
    return pair(model, task.with_loss(lambda y, t: F.binary_cross_entropy_with_logits(y.squeeze(1), t.float())))


zoo.healthy("taper-to-one-logit-64-16-4", "tune", lambda s: binary(s, he_(mlp([40, 64, 16, 4, 1], nn.ELU)), 40))
zoo.healthy(
    "narrow-net-width-3-for-2-inputs",
    "tune",
    lambda s: pair(mlp([2, 3, 3, 1], nn.Tanh), regression(s, 2, batch=64)),
    trains(lr=3e-2, steps=150, fall=0.05),
)
zoo.healthy(
    "autoencoder-latent-as-many-as-factors",
    "tune",
    lambda s: pair(mlp([36, 30, 5, 30, 36], nn.ELU), manifold(s, 36, 5)),
    trains(lr=1e-2, steps=60),
)
zoo.healthy(
    "2000-classes-from-width-24",
    "tune",
    lambda s: pair(he_(mlp([30, 48, 24, 2000], nn.GELU)), blobs(s, 30, 2000, 64, 1.5).fixed()),
    trains(lr=1e-2),
)
zoo.healthy(
    "one-wide-hidden-layer-1024",
    "tune",
    lambda s: pair(he_(mlp([12, 1024, 4])), blobs(s, 12, 4, 40, 1.0)),
    trains(lr=1e-3),
)
zoo.healthy(
    "hourglass-wide-in-the-middle",
    "tune",
    lambda s: pair(he_(Tower([10, 20, 160, 20, 6], nn.LeakyReLU)), blobs(s, 10, 6, 64, 1.0)),
)


class Sine(nn.Module):
    """A coordinate network with sines and the initialisation of Sitzmann et al."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 if i == 0 else width, width) for i in range(depth))
        self.head = nn.Linear(width, 1)
        for i, layer in enumerate(self.layers):
            bound = 1 / 2 if i == 0 else math.sqrt(6 / width) / 10
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(10 * layer(x))
        return self.head(x)


zoo.healthy("coordinate-network-of-sines", "tune", lambda s: pair(Sine(48, 3), regression(s, 2)), trains(lr=1e-3))


class Operator(nn.Module):
    """A function's samples and a place give the value there, by a product of two networks."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.trunk = mlp([20, 40, 24], nn.Tanh), mlp([1, 40, 24], nn.Tanh)

    def forward(self, samples: Tensor, place: Tensor) -> Tensor:
        return (self.branch(samples) * self.trunk(place)).sum(dim=1, keepdim=True) / 24**0.5


def operator(seed: int) -> Setup:
    places = torch.linspace(-1, 1, 20)

    def sampled(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(x[:, :1] + 2 * x[:, 1:2] * places), x[:, 2:3]

    inputs: dict[str, Tensor] = {}

    def change(x: Tensor) -> tuple[Tensor, Tensor]:
        inputs["answer"] = torch.sin(x[:, :1] + 2 * x[:, 1:2] * x[:, 2:3])
        return sampled(x)

    return pair(
        Operator(),
        regression(seed, 3, batch=100).mapped(change).with_loss(lambda y, _: F.mse_loss(y, inputs["answer"])),
    )


zoo.healthy("operator-network-branch-and-trunk", "tune", operator, trains(lr=1e-2))
zoo.healthy(
    "glu-deep-10x32",
    "tune",
    lambda s: pair(Gated([16] + [32] * 10 + [4]), blobs(s, 16, 4, 64, 1.0)),
    trains(lr=1e-3),
)
zoo.healthy(
    "deep-set-of-3-members-batch-3",
    "tune",
    lambda s: pair(DeepSet([16, 32, 32], [32, 32, 3], nn.Tanh), patches(s, 3, 16, 3, 3)),
    trains(lr=3e-3, steps=80),
)

# --- parts that rest


def low_rank(seed: int) -> Setup:
    model = xavier_(Tower([24] + [56] * 3 + [8], nn.Tanh)).requires_grad_(False)
    for name in ("fc1", "fc2", "fc3", "head"):
        setattr(model, name, Lora(getattr(model, name), 6))
    return pair(model, blobs(seed, 24, 8))


class Multitask(nn.Module):
    """A trunk with three heads, one of which the user has switched off and frozen for now."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = he_(mlp([22, 48, 48], nn.SiLU)).append(nn.SiLU())
        self.kind, self.amount, self.later = nn.Linear(48, 5), nn.Linear(48, 1), nn.Linear(48, 3)
        self.later.requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(x)
        return self.kind(h), self.amount(h), self.later(h)


def multitask(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        kind, amount, later = out
        return F.cross_entropy(kind, target) + 0.1 * F.mse_loss(amount[:, 0], target / 5) + 0 * later.square().mean()

    return pair(Multitask(), blobs(seed, 22, 5, 80).with_loss(loss))


class Codebook(nn.Module):
    """A vector-quantised autoencoder on a sphere: most codes rest, the gradient passes straight through."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([24, 32, 6], nn.ELU), mlp([6, 32, 24], nn.ELU)
        self.codes = nn.Embedding(codes, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.normalize(self.encoder(x), dim=1)
        code = F.normalize(self.codes(torch.cdist(z, F.normalize(self.codes.weight, dim=1)).argmin(dim=1)), dim=1)
        penalty = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return self.decoder(z + (code - z).detach()), penalty


def quantised(seed: int) -> Setup:
    task = manifold(seed, 24, 4, 96).with_loss(lambda out, x: F.mse_loss(out[0], x) + out[1])
    return pair(Codebook(128), task)


class SelfTaught(nn.Module):
    """Predicts the embedding that a frozen slow copy gives to the clean input."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.predictor = he_(mlp([26, 48, 24])), he_(mlp([24, 32, 24]))
        self.slow = he_(mlp([26, 48, 24])).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            goal = self.slow(x)
        return self.predictor(self.online(x * (torch.arange(26) % 4 != 1))), goal


def self_taught(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor], _target: Tensor) -> Tensor:
        return -F.cosine_similarity(out[0], out[1]).mean()  # negative, down to -1

    return pair(SelfTaught(), blobs(seed, 26, 8, 64).with_loss(loss))


class Rare(nn.Module):
    """A large sparse table of identities of which a batch of 4 touches a handful."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5000, 12, padding_idx=0)
        self.body = mlp([12, 24, 2], nn.ELU)

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.table(ids).sum(dim=1))


def rare(seed: int) -> Setup:
    """Identities above 2500 mean class one; a fixed batch, as they hardly ever come again."""
    task = blobs(seed, 6, 2, 4).mapped(lambda x: (x.abs() * 1e4).long() % 2499 + 1)
    count: dict[str, Tensor] = {}

    def identities(x: Tensor) -> Tensor:
        count["target"] = torch.arange(len(x)) % 2
        x = x + 2500 * count["target"][:, None]
        return torch.where(torch.arange(6) < 3 + torch.arange(len(x))[:, None] % 3, x, 0)

    return pair(Rare(), task.mapped(identities).fixed().with_loss(lambda y, _: F.cross_entropy(y, count["target"])))


zoo.healthy("lora-rank-6-everywhere-even-head", "tune", low_rank, trains(lr=1e-2))
zoo.healthy("third-head-frozen-at-weight-zero", "tune", multitask)
zoo.healthy("vector-quantised-idle-codes", "tune", quantised, trains(lr=3e-3, steps=80))
zoo.healthy("self-taught-negative-cosine", "tune", self_taught)
zoo.healthy("5000-identities-batch-4", "tune", rare, trains(lr=3e-2))
zoo.healthy(
    "frozen-embeddings-tabular",
    "tune",
    lambda s: pair(frozen(Tabular((30, 9), 8, 6, [56, 5], nn.GELU), "embeddings"), table(s, (30, 9), 6)),
    trains(lr=1e-2),
)
zoo.healthy(
    "frozen-item-tower",
    "tune",
    lambda s: pair(frozen(TwoTower([24, 64, 32], [18, 48, 32], nn.Mish), "item"), views(s)),
    trains(lr=1e-2),
)
