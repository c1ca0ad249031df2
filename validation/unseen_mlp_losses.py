# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons under unusual losses, inputs, optimizers and precisions, all healthy. Set aside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_training import converged, trains
from validation.nets import Tower, deep, he_, mlp, xavier_
from validation.nets_unseen import Gated
from validation.setups import pair, pretrain, rated
from validation.tasks import blobs, manifold, regression

zoo = Zoo("mlp", proof=trains(lr=3e-3))


def classified(seed: int, loss, classes: int = 6, batch: int = 96, act=nn.GELU) -> Setup:
    return pair(he_(mlp([28, 52, 52, classes], act)), blobs(seed, 28, classes, batch).with_loss(loss))


def focal(logits: Tensor, target: Tensor) -> Tensor:
    log_p = logits.log_softmax(1).gather(1, target[:, None])
    return -((1 - log_p.exp()).square() * log_p).mean()


def pinball(y: Tensor, t: Tensor) -> Tensor:
    """Three quantiles at once."""
    levels = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(levels * (t - y), (levels - 1) * (t - y)).mean()


def ordinal(logits: Tensor, target: Tensor) -> Tensor:
    """Is the class above k, for each k."""
    above = (target[:, None] > torch.arange(logits.shape[1])).float()
    return F.binary_cross_entropy_with_logits(logits, above)


def multi_label(logits: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, F.one_hot(target, logits.shape[1]).float())


def imbalanced(seed: int) -> Setup:
    """Ninety-five in a hundred belong to the first class."""
    return pair(
        he_(mlp([24, 40, 40, 2])),
        blobs(seed, 24, 20, 128, 1.2).with_loss(lambda y, t: F.cross_entropy(y, (t == 7).long())),
    )


def noisy_labels(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        wrong = torch.rand(target.shape, generator=random) < 0.3
        other = torch.randint(6, target.shape, generator=random)
        return F.cross_entropy(logits, torch.where(wrong, other, target))

    return classified(seed, loss)


class Reverse(torch.autograd.Function):
    """Passes on, and turns the gradient round."""

    @staticmethod
    def forward(_ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, gradient: Tensor) -> Tensor:
        return -0.1 * gradient


class Adversarial(nn.Module):
    """Tells the class and hides the domain."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = he_(mlp([28, 48, 48], nn.SiLU)).append(nn.SiLU())
        self.kind, self.domain = nn.Linear(48, 6), mlp([48, 24, 2], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.kind(h), self.domain(Reverse.apply(h))


def adversarial(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(out[0], target) + 0.3 * F.cross_entropy(out[1], torch.arange(len(target)) % 2)

    return pair(Adversarial(), blobs(seed, 28, 6).with_loss(loss))


class Penalty(nn.Module):
    """The gradient with respect to the input is part of the output, so the loss needs second derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp([9, 40, 40, 1], nn.Softplus)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.requires_grad_()
            y = self.body(x)
            slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        return y, slope


def sobolev(seed: int) -> Setup:
    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.mse_loss(out[0], target) + 0.01 * out[1].square().sum(dim=1).mean()

    return pair(Penalty(), regression(seed, 9).with_loss(loss))


zoo.healthy("focal-loss", "tune", lambda s: classified(s, focal))
zoo.healthy("multi-margin-loss", "tune", lambda s: classified(s, F.multi_margin_loss, act=nn.ReLU))
zoo.healthy(
    "three-quantiles",
    "tune",
    lambda s: pair(mlp([15, 44, 44, 3], nn.SiLU), regression(s, 15).with_loss(pinball)),
    trains(lr=1e-2, steps=60),
)
zoo.healthy("ordinal-levels", "tune", lambda s: classified(s, ordinal))
zoo.healthy("one-against-all-sigmoids", "tune", lambda s: classified(s, multi_label, 10))
zoo.healthy("95-percent-in-one-class", "tune", imbalanced, trains(lr=3e-3, steps=60))
zoo.healthy("30-percent-wrong-labels", "tune", noisy_labels)
zoo.healthy("gradient-reversal-for-domains", "tune", adversarial)
zoo.healthy("input-gradient-penalty", "tune", sobolev, trains(lr=1e-2, steps=80, fall=0.05))
zoo.healthy(
    "label-smoothing-0.2-dropout-0.2",
    "tune",
    lambda s: pair(
        he_(deep(3, 90, nn.SiLU, 28, 6, dropout=0.2)),
        blobs(s, 28, 6, 48).with_loss(lambda y, t: F.cross_entropy(y, t, label_smoothing=0.2)),
    ),
    trains(lr=3e-3, fall=0.05),
)
zoo.healthy(
    "targets-of-size-1e-4",
    "tune",
    lambda s: pair(mlp([15, 44, 1], nn.Tanh), regression(s, 15).with_loss(lambda y, t: F.mse_loss(y * 1e-4, t * 1e-4))),
    trains(lr=1e-2, steps=60),
)
zoo.healthy("accumulated-over-16", "tune", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) / 16, batch=8))
zoo.healthy(
    "loss-summed-over-500-rows",
    "tune",
    lambda s: classified(s, lambda y, t: F.cross_entropy(y, t, reduction="sum"), batch=500),
)
zoo.healthy("loss-times-3e7", "tune", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) * 3e7, act=nn.Tanh))
zoo.healthy("loss-times-1e-5", "tune", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) * 1e-5, act=nn.ELU))
zoo.healthy(
    "loss-with-a-large-constant",
    "tune",
    lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) * 1.0 + 5.0),
    trains(lr=3e-3, fall=0.05),
)
zoo.healthy(
    "pixels-between-0-and-1",
    "tune",
    lambda s: pair(
        he_(mlp([60, 64, 64, 8], nn.GELU)), blobs(s, 60, 8, 64, 1.0).mapped(lambda x: (0.5 + 0.15 * x).clamp(0, 1))
    ),
)
zoo.healthy(
    "nine-tenths-of-the-input-dropped",
    "tune",
    lambda s: pair(nn.Sequential(nn.Dropout(0.9), *he_(mlp([120, 64, 5], nn.ELU))), blobs(s, 120, 5, 128, 0.8)),
    trains(lr=3e-3, steps=80, fall=0.05),
)
zoo.healthy(
    "batch-of-1-never-the-same",
    "tune",
    lambda s: pair(xavier_(Tower([10, 24, 24, 2], nn.Tanh)), blobs(s, 10, 2, 1, 2.0)),
    trains(lr=3e-3, steps=150, fall=0.2),
)

# --- optimizers

zoo.healthy(
    "adamw-decay-0.3",
    "tune",
    lambda s: rated(he_(deep(3, 60, nn.GELU, 30, 8)), blobs(s, 30, 8), "AdamW", 2e-3, 30, weight_decay=0.3),
    trains(steps=40),
)
zoo.healthy(
    "rmsprop-1e-3",
    "tune",
    lambda s: rated(he_(Tower([30, 60, 60, 8])), blobs(s, 30, 8), "RMSprop", 1e-3, 30),
    trains(steps=40),
)
zoo.healthy(
    "nadam-2e-3-batch-16",
    "tune",
    lambda s: rated(he_(mlp([18, 48, 48, 4], nn.Mish)), blobs(s, 18, 4, 16, 1.0), "NAdam", 2e-3, 30),
    trains(steps=60),
)
zoo.healthy(
    "sgd-0.03-plain",
    "tune",
    lambda s: rated(he_(mlp([18, 64, 64, 4], nn.ReLU)), blobs(s, 18, 4, 64, 1.0), "SGD", 3e-2, 30),
    trains(steps=60),
)

# --- late, or in another precision

zoo.healthy(
    "converged-autoencoder",
    "tune",
    lambda s: pretrain(pair(mlp([20, 24, 6, 24, 20], nn.Tanh), manifold(s, 20, 3, 48).fixed()), 300, 1e-2),
    converged(0.03),
)
zoo.healthy(
    "converged-glu",
    "tune",
    lambda s: pretrain(pair(Gated([20, 40, 40, 5]), blobs(s, 20, 5, 64, 1.0).fixed()), 150, 5e-3),
    converged(0.02),
)
zoo.healthy(
    "bfloat16-5x72",
    "tune",
    lambda s: pair(he_(deep(5, 72, nn.SiLU, 24, 6)).bfloat16(), blobs(s, 24, 6).mapped(Tensor.bfloat16)),
    trains(lr=1e-3, steps=60),
)
zoo.healthy(
    "deep-narrow-tanh-orthogonal-10x20",
    "tune",
    lambda s: pair(orthogonal(Tower([12] + [20] * 10 + [3], nn.Tanh)), blobs(s, 12, 3, 64, 1.0)),
)


def orthogonal(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=1.1)
            nn.init.zeros_(module.bias)
    return model
