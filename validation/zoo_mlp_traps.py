# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that look odd and are healthy."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from validation.case import Setup, Zoo
from validation.evidence_training import converged, trains
from validation.nets import Lora, Tower, deep, he_, mlp, xavier_
from validation.setups import frozen, pair, pretrain
from validation.tasks import blobs, manifold, regression

zoo = Zoo("mlp", proof=trains(lr=3e-3))


# --- widths, activations, norms

zoo.healthy("leaky-relu-he-12x16", "tune", lambda s: pair(he_(deep(12, 16, nn.LeakyReLU, 16, 4)), blobs(s, 16, 4)))
zoo.healthy("relu-he-6x512", "tune", lambda s: pair(he_(deep(6, 512)), blobs(s, batch=64)), trains(lr=3e-4, steps=20))
zoo.healthy("uniform-5x16", "tune", lambda s: pair(he_(deep(5, 16, dim=16)), blobs(s, 16)))
zoo.healthy("taper-64-to-10", "tune", lambda s: pair(he_(mlp([64, 64, 48, 32, 24, 16, 10])), blobs(s)))
zoo.healthy("funnel-256-to-10", "tune", lambda s: pair(he_(mlp([256, 64, 16, 10])), blobs(s, 256)))
zoo.healthy("expanding-12-to-96", "tune", lambda s: pair(he_(Tower([12, 24, 48, 96, 8], nn.ELU)), blobs(s, 12, 8)))
zoo.healthy("silu-default-5x48", "tune", lambda s: pair(deep(5, 48, nn.SiLU, 32, 6), blobs(s, 32, 6)))
zoo.healthy("prelu-6x64", "tune", lambda s: pair(he_(deep(6, 64, nn.PReLU)), blobs(s)))
zoo.healthy("elu-8x40", "tune", lambda s: pair(xavier_(Tower([20] + [40] * 8 + [5], nn.ELU)), blobs(s, 20, 5)))
zoo.healthy("maxout-3x32", "tune", lambda s: pair(Maxout(24, 32, 3, 6), blobs(s, 24, 6)))
zoo.healthy(
    "weight-norm-4x64",
    "tune",
    lambda s: pair(mlp([64] * 5 + [10]).apply(normed(parametrizations.weight_norm)), blobs(s)),
)
zoo.healthy(
    "spectral-norm-4x48",
    "tune",
    lambda s: pair(
        Tower([20] + [48] * 4 + [5], lambda: nn.LeakyReLU(0.2)).apply(normed(parametrizations.spectral_norm)),
        blobs(s, 20, 5),
    ),
    trains(lr=1e-2),
)
zoo.healthy("without-biases-5x64", "tune", lambda s: pair(he_(unbiased(deep(5, 64))), blobs(s)))
zoo.healthy("dropout-0.5-3x128", "tune", lambda s: pair(he_(deep(3, 128, dropout=0.5)), blobs(s)))
zoo.healthy(
    "dropout-0.3-batch-norm",
    "tune",
    lambda s: pair(deep(4, 96, nn.GELU, norm=nn.BatchNorm1d, dropout=0.3), blobs(s)),
)


class Maxout(nn.Module):
    """Takes the larger of two linear pieces: half of the gradient's entries are zero."""

    def __init__(self, dim: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        sizes = [dim] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, 2 * b) for a, b in pairwise(sizes))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).unflatten(1, (-1, 2)).amax(dim=2)
        return self.head(x)


def normed(wrap):
    def apply(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            wrap(module)

    return apply


def unbiased(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_parameter("bias", None)
    return model


# --- scales, precisions, batches

zoo.healthy("loss-times-1e4", "tune", lambda s: pair(he_(deep(5, 64)), blobs(s).scaled(1e4)))
zoo.healthy("loss-scaled-by-65536", "tune", lambda s: pair(he_(deep(4, 64, nn.GELU)), blobs(s).scaled(65536.0)))
zoo.healthy(
    "loss-times-1e-6",
    "tune",
    lambda s: pair(xavier_(Tower([20] + [64] * 5 + [6], nn.Tanh)), blobs(s, 20, 6).scaled(1e-6)),
    trains(lr=2e5, sgd=True),
)
zoo.healthy("sum-instead-of-mean", "tune", lambda s: pair(he_(deep(4, 56, nn.SiLU)), blobs(s).scaled(256.0)))
zoo.healthy("batch-of-1", "tune", lambda s: pair(he_(deep(3, 48)), blobs(s, batch=1).fixed()), trains(most_dead=1))
zoo.healthy(
    "batch-of-2",
    "tune",
    lambda s: pair(he_(Tower([16, 40, 40, 3], nn.Tanh)), blobs(s, 16, 3, 2, 2.0)),
    trains(steps=80),
)
zoo.healthy("double-precision", "tune", lambda s: pair(he_(deep(4, 48)).double(), blobs(s).mapped(Tensor.double)))


# --- late in training

zoo.healthy(
    "converged-classifier", "tune", lambda s: pretrain(pair(he_(deep(3, 64)), blobs(s).fixed()), 120), converged(0.02)
)
zoo.healthy(
    "converged-regression",
    "tune",
    lambda s: pretrain(pair(mlp([8, 64, 64, 1], nn.Tanh), regression(s, 8, batch=32, noise=0).fixed()), 300, 5e-3),
    converged(0.02),
)
zoo.healthy(
    "trained-to-the-noise-floor",
    "tune",
    lambda s: pretrain(pair(mlp([8, 32, 3], nn.SiLU), blobs(s, 8, 3, 128)), 200, 1e-2),
    converged(0.9),  # ln 3 = 1.1 by chance; the clusters overlap
)
zoo.healthy(
    "tiny-regression-1x8", "tune", lambda s: pair(mlp([3, 8, 1], nn.Tanh), regression(s, 3)), trains(lr=3e-2, steps=100)
)
zoo.healthy("linear-model", "tune", lambda s: pair(nn.Linear(64, 10), blobs(s)), trains(lr=1e-2))


# --- parts that rest


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
    count = iter(range(10**9))

    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        if next(count) % 4 == 3:
            return (out[1].squeeze(1) - (target > 2).float()).square().mean()
        return F.cross_entropy(out[0], target)

    return pair(TwoTasks(24, 48), blobs(seed, 24, 5).with_loss(loss))


def summed(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(out[0], target) + 0.5 * (out[1].squeeze(1) - (target > 2).float()).square().mean()

    return pair(TwoTasks(32, 64), blobs(seed, 32, 5).with_loss(loss))


zoo.healthy("frozen-first-half-6x64", "tune", lambda s: pair(frozen(he_(deep(6, 64)), "0", "2", "4"), blobs(s)))
zoo.healthy(
    "frozen-in-the-middle-5x48",
    "tune",
    lambda s: pair(frozen(he_(Tower([20] + [48] * 5 + [5], nn.GELU)), "fc3"), blobs(s, 20, 5)),
)
zoo.healthy("lora-rank-2-at-step-0", "tune", lora_mlp)
zoo.healthy("distillation-from-frozen-teacher", "tune", distilled)
zoo.healthy(
    "idle-experts-top-1-of-8",
    "tune",
    lambda s: pair(Experts(16, 8, 24, 6, 1), blobs(s, 16, 6, 8, 1.0)),
    trains(lr=3e-3, steps=60, most_dead=0.5),
)
zoo.healthy(
    "idle-experts-top-2-of-12",
    "tune",
    lambda s: pair(Experts(20, 12, 16, 6, 2), blobs(s, 20, 6, 6, 1.0)),
    trains(lr=3e-3, steps=80, most_dead=0.5),
)
zoo.healthy("head-unused-on-most-batches", "tune", alternating, trains(lr=3e-3, steps=60))
zoo.healthy("two-heads-summed", "tune", summed)


class Checkpointed(nn.Module):
    """Recomputes its activations in the backward pass."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False))


zoo.healthy(
    "gradient-checkpointing",
    "tune",
    lambda s: pair(Checkpointed(he_(mlp([64, 64, 64, 64])), he_(mlp([64, 64, 10]))), blobs(s)),
)


class TiedAutoencoder(nn.Module):
    """Decodes with the transposed weight of the encoder."""

    def __init__(self, dim: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim, latent)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias)


zoo.healthy("tied-autoencoder", "tune", lambda s: pair(TiedAutoencoder(24, 12), manifold(s, 24, 3)), trains(lr=1e-2))
