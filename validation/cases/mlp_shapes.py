# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons of odd shapes, activations and norms, all healthy.

Half: tune.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from validation.case import Setup, Zoo
from validation.evidence import trains
from validation.nets import DeepSet, Gated, Tower, deep, he_, mlp, xavier_
from validation.setups import pair
from validation.tasks import blobs, manifold, patches, regression

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- widths, activations, norms

zoo.healthy("leaky-relu-he-12x16", lambda s: pair(he_(deep(12, 16, nn.LeakyReLU, 16, 4)), blobs(s, 16, 4)))
zoo.healthy("relu-he-6x512", lambda s: pair(he_(deep(6, 512)), blobs(s, batch=64)), trains(lr=3e-4, steps=20))
zoo.healthy("uniform-5x16", lambda s: pair(he_(deep(5, 16, dim=16)), blobs(s, 16)))
zoo.healthy("taper-64-to-10", lambda s: pair(he_(mlp([64, 64, 48, 32, 24, 16, 10])), blobs(s)))
zoo.healthy("funnel-256-to-10", lambda s: pair(he_(mlp([256, 64, 16, 10])), blobs(s, 256)))
zoo.healthy("expanding-12-to-96", lambda s: pair(he_(Tower([12, 24, 48, 96, 8], nn.ELU)), blobs(s, 12, 8)))
zoo.healthy("silu-default-5x48", lambda s: pair(deep(5, 48, nn.SiLU, 32, 6), blobs(s, 32, 6)))
zoo.healthy("prelu-6x64", lambda s: pair(he_(deep(6, 64, nn.PReLU)), blobs(s)))
zoo.healthy("elu-8x40", lambda s: pair(xavier_(Tower([20] + [40] * 8 + [5], nn.ELU)), blobs(s, 20, 5)))
zoo.healthy("maxout-3x32", lambda s: pair(Maxout(24, 32, 3, 6), blobs(s, 24, 6)))
zoo.healthy(
    "weight-norm-4x64", lambda s: pair(mlp([64] * 5 + [10]).apply(normed(parametrizations.weight_norm)), blobs(s))
)
zoo.healthy(
    "spectral-norm-4x48",
    lambda s: pair(
        Tower([20] + [48] * 4 + [5], lambda: nn.LeakyReLU(0.2)).apply(normed(parametrizations.spectral_norm)),
        blobs(s, 20, 5),
    ),
    trains(lr=1e-2),
)
zoo.healthy("without-biases-5x64", lambda s: pair(he_(unbiased(deep(5, 64))), blobs(s)))
zoo.healthy("dropout-0.5-3x128", lambda s: pair(he_(deep(3, 128, dropout=0.5)), blobs(s)))
zoo.healthy("dropout-0.3-batch-norm", lambda s: pair(deep(4, 96, nn.GELU, norm=nn.BatchNorm1d, dropout=0.3), blobs(s)))


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


# --- shapes that suit their task


def binary(seed: int, model: nn.Module, dim: int) -> Setup:
    task = blobs(seed, dim, 2, 128, 1.0)
    return pair(model, task.with_loss(lambda y, t: F.binary_cross_entropy_with_logits(y.squeeze(1), t.float())))


zoo.healthy("taper-to-one-logit-64-16-4", lambda s: binary(s, he_(mlp([40, 64, 16, 4, 1], nn.ELU)), 40))
zoo.healthy(
    "narrow-net-width-3-for-2-inputs",
    lambda s: pair(mlp([2, 3, 3, 1], nn.Tanh), regression(s, 2, batch=64)),
    trains(lr=3e-2, steps=150, fall=0.05),
)
zoo.healthy(
    "autoencoder-latent-as-many-as-factors",
    lambda s: pair(mlp([36, 30, 5, 30, 36], nn.ELU), manifold(s, 36, 5)),
    trains(lr=1e-2, steps=60),
)
zoo.healthy(
    "2000-classes-from-width-24",
    lambda s: pair(he_(mlp([30, 48, 24, 2000], nn.GELU)), blobs(s, 30, 2000, 64, 1.5).fixed()),
    trains(lr=1e-2),
)
zoo.healthy(
    "one-wide-hidden-layer-1024", lambda s: pair(he_(mlp([12, 1024, 4])), blobs(s, 12, 4, 40, 1.0)), trains(lr=1e-3)
)
zoo.healthy(
    "hourglass-wide-in-the-middle",
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


zoo.healthy("coordinate-network-of-sines", lambda s: pair(Sine(48, 3), regression(s, 2)), trains(lr=1e-3))


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


zoo.healthy("operator-network-branch-and-trunk", operator, trains(lr=1e-2))
zoo.healthy("glu-deep-10x32", lambda s: pair(Gated([16] + [32] * 10 + [4]), blobs(s, 16, 4, 64, 1.0)), trains(lr=1e-3))
zoo.healthy(
    "deep-set-of-3-members-batch-3",
    lambda s: pair(DeepSet([16, 32, 32], [32, 32, 3], nn.Tanh), patches(s, 3, 16, 3, 3)),
    trains(lr=3e-3, steps=80),
)
