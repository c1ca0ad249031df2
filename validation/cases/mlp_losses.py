# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons under unusual losses and inputs, all healthy.

Half: tune.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import trains
from validation.nets import Tower, deep, he_, mlp, xavier_
from validation.setups import pair
from validation.tasks import Task, blobs, manifold, regression

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- pairs, bags and mixtures


class Siamese(nn.Module):
    """Embeds two views with one encoder."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = he_(mlp([dim, 64, 64, 32]))

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.encoder(a), dim=1), F.normalize(self.encoder(b), dim=1)


def contrastive(seed: int) -> Setup:
    def views(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x + 0.7 * x.roll(1, dims=1)

    def info_nce(pairs: tuple[Tensor, Tensor], _target: Tensor) -> Tensor:
        return F.cross_entropy(pairs[0] @ pairs[1].T / 0.2, torch.arange(len(pairs[0])))

    return pair(Siamese(32), blobs(seed, 32, 8, 48).mapped(views).with_loss(info_nce))


def triplet(seed: int) -> Setup:
    def loss(pairs: tuple[Tensor, Tensor], _target: Tensor) -> Tensor:
        near = (pairs[0] - pairs[1]).square().sum(1)
        far = (pairs[0] - pairs[1].roll(1, dims=0)).square().sum(1)
        return F.softplus(near - far + 0.2).mean()

    return pair(Siamese(24), blobs(seed, 24, 8, 64).mapped(lambda x: (x, x * 0.8)).with_loss(loss))


class Vae(nn.Module):
    """Variational autoencoder; draws its noise from a generator of its own."""

    def __init__(self, dim: int, latent: int, seed: int) -> None:
        super().__init__()
        self.encoder = mlp([dim, 48, 2 * latent], nn.SiLU)
        self.decoder = mlp([latent, 48, dim], nn.SiLU)
        self.random = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        noise = torch.randn(mean.shape, generator=self.random)
        return self.decoder(mean + noise * (0.5 * log_var).exp()), mean, log_var


def vae_loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    rebuilt, mean, log_var = out
    divergence = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
    return (rebuilt - x).square().sum(1).mean() + 0.1 * divergence


def mixture_loss(out: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of a mixture of Gaussians, by log-sum-exp."""
    logits, mean, log_std = out.chunk(3, dim=1)
    log_p = -0.5 * ((y - mean) * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
    return -(log_p + logits.log_softmax(1)).logsumexp(1).mean()


class Mixed:
    """Cross-entropy of mixed samples."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.share = 1.0

    def inputs(self, x: Tensor) -> Tensor:
        self.share = 0.5 + 0.5 * torch.rand((), generator=self.random).item()
        return self.share * x + (1 - self.share) * x.roll(1, dims=0)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        other = F.cross_entropy(logits, target.roll(1, dims=0))
        return self.share * F.cross_entropy(logits, target) + (1 - self.share) * other


def mixup(seed: int) -> Setup:
    mixed = Mixed(seed)
    return pair(he_(deep(4, 64, nn.GELU, 32)), blobs(seed, 32).mapped(mixed.inputs).with_loss(mixed.loss))


def bag_of_words(seed: int) -> Setup:
    """Five hundred features of which one in fifty is not zero: most columns of the first gradient are zero."""
    words = torch.randint(0, 500, (8, 40), generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(8, (64,), generator=random)
        picks = words[target].gather(1, torch.randint(40, (64, 10), generator=random))
        return torch.zeros(64, 500).scatter_(1, picks, 1.0), target

    return pair(he_(mlp([500, 32, 32, 8])), Task(seed, draw, F.cross_entropy))


class Bag(nn.Module):
    """Sums word vectors, of which a batch touches few."""

    def __init__(self, words: int, width: int, classes: int, sparse: bool) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, width, mode="mean", sparse=sparse)
        self.body = mlp([width, 32, classes])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.words(tokens))


def word_bag(seed: int, classes: int, sparse: bool) -> Setup:
    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        target = torch.randint(classes, (32,), generator=random)
        return target[:, None] * 100 + torch.randint(100, (32, 12), generator=random), target

    model = Bag(classes * 100, 24, classes, sparse)
    return pair(model, Task(seed, draw, F.cross_entropy))


zoo.healthy("contrastive-siamese", contrastive)
zoo.healthy("triplet-siamese", triplet, trains(lr=3e-3, fall=0.05))
zoo.healthy("variational-autoencoder", lambda s: pair(Vae(24, 6, s), manifold(s, 24, 4).with_loss(vae_loss)))
zoo.healthy("mixture-density", lambda s: pair(mlp([6, 48, 48, 15], nn.Tanh), regression(s, 6).with_loss(mixture_loss)))
zoo.healthy(
    "label-smoothing",
    lambda s: pair(he_(deep(4, 64)), blobs(s).with_loss(lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1))),
)
zoo.healthy("mixup", mixup)
zoo.healthy("sparse-bag-of-words", bag_of_words)
zoo.healthy("embedding-bag", lambda s: word_bag(s, 6, False), trains(lr=1e-2, steps=60))
zoo.healthy("sparse-embedding-bag", lambda s: word_bag(s, 5, True), trains(lr=3.0, steps=150, sgd=True))

# --- losses of classifiers and regressions


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


zoo.healthy("focal-loss", lambda s: classified(s, focal))
zoo.healthy("multi-margin-loss", lambda s: classified(s, F.multi_margin_loss, act=nn.ReLU))
zoo.healthy(
    "three-quantiles",
    lambda s: pair(mlp([15, 44, 44, 3], nn.SiLU), regression(s, 15).with_loss(pinball)),
    trains(lr=1e-2, steps=60),
)
zoo.healthy("ordinal-levels", lambda s: classified(s, ordinal))
zoo.healthy("one-against-all-sigmoids", lambda s: classified(s, multi_label, 10))
zoo.healthy("95-percent-in-one-class", imbalanced, trains(lr=3e-3, steps=60))
zoo.healthy("30-percent-wrong-labels", noisy_labels)
zoo.healthy("gradient-reversal-for-domains", adversarial)
zoo.healthy("input-gradient-penalty", sobolev, trains(lr=1e-2, steps=80, fall=0.05))
zoo.healthy(
    "label-smoothing-0.2-dropout-0.2",
    lambda s: pair(
        he_(deep(3, 90, nn.SiLU, 28, 6, dropout=0.2)),
        blobs(s, 28, 6, 48).with_loss(lambda y, t: F.cross_entropy(y, t, label_smoothing=0.2)),
    ),
    trains(lr=3e-3, fall=0.05),
)
zoo.healthy(
    "targets-of-size-1e-4",
    lambda s: pair(mlp([15, 44, 1], nn.Tanh), regression(s, 15).with_loss(lambda y, t: F.mse_loss(y * 1e-4, t * 1e-4))),
    trains(lr=1e-2, steps=60),
)
zoo.healthy("accumulated-over-16", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) / 16, batch=8))
zoo.healthy(
    "loss-summed-over-500-rows", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t, reduction="sum"), batch=500)
)
zoo.healthy("loss-times-3e7", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) * 3e7, act=nn.Tanh))
zoo.healthy("loss-times-1e-5", lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) * 1e-5, act=nn.ELU))
zoo.healthy(
    "loss-with-a-large-constant",
    lambda s: classified(s, lambda y, t: F.cross_entropy(y, t) * 1.0 + 5.0),
    trains(lr=3e-3, fall=0.05),
)
zoo.healthy(
    "pixels-between-0-and-1",
    lambda s: pair(
        he_(mlp([60, 64, 64, 8], nn.GELU)), blobs(s, 60, 8, 64, 1.0).mapped(lambda x: (0.5 + 0.15 * x).clamp(0, 1))
    ),
)
zoo.healthy(
    "nine-tenths-of-the-input-dropped",
    lambda s: pair(nn.Sequential(nn.Dropout(0.9), *he_(mlp([120, 64, 5], nn.ELU))), blobs(s, 120, 5, 128, 0.8)),
    trains(lr=3e-3, steps=80, fall=0.05),
)
zoo.healthy(
    "batch-of-1-never-the-same",
    lambda s: pair(xavier_(Tower([10, 24, 24, 2], nn.Tanh)), blobs(s, 10, 2, 1, 2.0)),
    trains(lr=3e-3, steps=150, fall=0.2),
)
