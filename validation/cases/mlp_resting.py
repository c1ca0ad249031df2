# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons of which parts rest: frozen, shared, switched off or seldom used. All healthy.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from validation.case import Setup, Zoo
from validation.evidence import trains
from validation.nets import Lora, Tabular, Tower, TwoTower, deep, he_, mlp, xavier_
from validation.setups import frozen, pair, pretrain
from validation.tasks import blobs, every, manifold, table, views

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- frozen, idle, recomputed


def lora_mlp(seed: int) -> Setup:
    model = he_(deep(4, 64))
    for i in (0, 2, 4, 6):
        model[i] = Lora(model[i], 2)
    return pair(model, blobs(seed))


class Teaching(nn.Module):
    """A student learns the outputs of a frozen teacher."""

    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher, self.student = teacher.requires_grad_(False), student

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            taught = self.teacher(x)
        return self.student(x), taught


def distilled(seed: int) -> Setup:
    task = blobs(seed, 32)
    teacher = pretrain(pair(he_(deep(3, 64, dim=32)), task), 30).model
    task.with_loss(lambda out, _: F.kl_div(out[0].log_softmax(1), out[1].softmax(1), reduction="batchmean"))
    return pair(Teaching(he_(mlp([32, 24, 24, 10])), teacher), task)


class Experts(nn.Module):
    """Sends each sample to its best expert: in a small batch most experts rest."""

    def __init__(self, dim: int, count: int, width: int, classes: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.gate = nn.Linear(dim, count)
        self.experts = nn.ModuleList(mlp([dim, width, classes]) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.gate(x).softmax(1).topk(self.k, dim=1)
        out = 0.0
        for i, expert in enumerate(self.experts):
            rows, slot = (chosen == i).nonzero(as_tuple=True)
            if len(rows):
                out = out + torch.zeros(len(x), 6).index_add(0, rows, expert(x[rows]) * share[rows, slot, None])
        return out


class TwoTasks(nn.Module):
    """A trunk with two heads of which a batch trains one."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.trunk = he_(mlp([dim, width, width])).append(nn.ReLU())
        self.first, self.second = nn.Linear(width, 5), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.first(h), self.second(h)


def alternating(seed: int) -> Setup:
    now = every(4, 3)

    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        if now():
            return (out[1].squeeze(1) - (target > 2).float()).square().mean()
        return F.cross_entropy(out[0], target)

    return pair(TwoTasks(24, 48), blobs(seed, 24, 5).with_loss(loss))


def summed(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(out[0], target) + 0.5 * (out[1].squeeze(1) - (target > 2).float()).square().mean()

    return pair(TwoTasks(32, 64), blobs(seed, 32, 5).with_loss(loss))


zoo.healthy("frozen-first-half-6x64", lambda s: pair(frozen(he_(deep(6, 64)), "0", "2", "4"), blobs(s)))
zoo.healthy(
    "frozen-in-the-middle-5x48",
    lambda s: pair(frozen(he_(Tower([20] + [48] * 5 + [5], nn.GELU)), "fc3"), blobs(s, 20, 5)),
)
zoo.healthy("lora-rank-2-at-step-0", lora_mlp)
zoo.healthy("distillation-from-frozen-teacher", distilled)
zoo.healthy(
    "idle-experts-top-1-of-8",
    lambda s: pair(Experts(16, 8, 24, 6, 1), blobs(s, 16, 6, 8, 1.0)),
    trains(lr=3e-3, steps=60, most_dead=0.5),
)
zoo.healthy(
    "idle-experts-top-2-of-12",
    lambda s: pair(Experts(20, 12, 16, 6, 2), blobs(s, 20, 6, 6, 1.0)),
    trains(lr=3e-3, steps=80, most_dead=0.5),
)
zoo.healthy("head-unused-on-most-batches", alternating, trains(lr=3e-3, steps=60))
zoo.healthy("two-heads-summed", summed)


class Checkpointed(nn.Module):
    """Recomputes its activations in the backward pass."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False))


zoo.healthy(
    "gradient-checkpointing", lambda s: pair(Checkpointed(he_(mlp([64, 64, 64, 64])), he_(mlp([64, 64, 10]))), blobs(s))
)


class TiedAutoencoder(nn.Module):
    """Decodes with the transposed weight of the encoder."""

    def __init__(self, dim: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim, latent)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias)


zoo.healthy("tied-autoencoder", lambda s: pair(TiedAutoencoder(24, 12), manifold(s, 24, 3)), trains(lr=1e-2))

# --- codes, tables, teachers


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


def codes(seed: int) -> Setup:
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


zoo.healthy("lora-rank-6-everywhere-even-head", low_rank, trains(lr=1e-2))
zoo.healthy("third-head-frozen-at-weight-zero", multitask)
zoo.healthy("vector-quantised-idle-codes", codes, trains(lr=3e-3, steps=80))
zoo.healthy("self-taught-negative-cosine", self_taught)
zoo.healthy("5000-identities-batch-4", rare, trains(lr=3e-2))
zoo.healthy(
    "frozen-embeddings-tabular",
    lambda s: pair(frozen(Tabular((30, 9), 8, 6, [56, 5], nn.GELU), "embeddings"), table(s, (30, 9), 6)),
    trains(lr=1e-2),
)
zoo.healthy(
    "frozen-item-tower",
    lambda s: pair(frozen(TwoTower([24, 64, 32], [18, 48, 32], nn.Mish), "item"), views(s)),
    trains(lr=1e-2),
)
