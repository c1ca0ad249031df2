# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons under unusual losses, inputs and schedules, all healthy."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence_training import trains
from validation.nets import Tower, deep, he_, mlp
from validation.setups import pair, pretrain
from validation.tasks import Task, blobs, manifold, regression

zoo = Zoo("mlp", proof=trains(lr=3e-3))


# --- losses and inputs


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


zoo.healthy("contrastive-siamese", "tune", contrastive)
zoo.healthy("triplet-siamese", "tune", triplet, trains(lr=3e-3, fall=0.05))
zoo.healthy("variational-autoencoder", "tune", lambda s: pair(Vae(24, 6, s), manifold(s, 24, 4).with_loss(vae_loss)))
zoo.healthy(
    "mixture-density", "tune", lambda s: pair(mlp([6, 48, 48, 15], nn.Tanh), regression(s, 6).with_loss(mixture_loss))
)
zoo.healthy(
    "label-smoothing",
    "tune",
    lambda s: pair(he_(deep(4, 64)), blobs(s).with_loss(lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1))),
)
zoo.healthy("mixup", "tune", mixup)
zoo.healthy("sparse-bag-of-words", "tune", bag_of_words)
zoo.healthy("embedding-bag", "tune", lambda s: word_bag(s, 6, False), trains(lr=1e-2, steps=60))
zoo.healthy("sparse-embedding-bag", "tune", lambda s: word_bag(s, 5, True), trains(lr=3.0, steps=150, sgd=True))

# --- rates and schedules that are right


def stepping(model: nn.Module, task: Task, make, steps: int = 30) -> Setup:
    return pair(model, task, optimizer=make(model.parameters()), steps=steps)


class Clipped(torch.optim.SGD):
    """Clips to norm 1 before each step, as most training loops do."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


class WarmedUp(torch.optim.Adam):
    """Raises its rate from nearly nothing over the first steps."""

    def step(self, closure=None):
        count = self.state.setdefault("warm-up", {"step": 0})
        count["step"] += 1
        self.param_groups[0]["lr"] = 3e-3 * min(1.0, count["step"] / 20)
        return super().step(closure)


zoo.healthy(
    "adam-0.03-easy-task",
    "tune",
    lambda s: stepping(mlp([10, 32, 3], nn.Tanh), blobs(s, 10, 3, 64, 1.5), lambda p: torch.optim.Adam(p, lr=0.03)),
    trains(),
)
zoo.healthy(
    "clipped-sgd",
    "tune",
    lambda s: stepping(he_(deep(4, 64)), blobs(s), lambda p: Clipped(p, lr=0.1, momentum=0.9)),
    trains(steps=30),
)
zoo.healthy(
    "adam-with-warm-up",
    "tune",
    lambda s: stepping(he_(deep(4, 48, nn.SiLU)), blobs(s), lambda p: WarmedUp(p)),
    trains(steps=50),
)
zoo.healthy("fine-tuning-adamw-1e-4", "tune", lambda s: fine_tuned(s), trains(steps=60, fall=0.02))


def fine_tuned(seed: int) -> Setup:
    """A trained model on slightly moved data, at a small rate."""
    task = blobs(seed, 32, 8, 512, 0.5)
    model = copy.deepcopy(pretrain(pair(he_(Tower([32, 64, 64, 8], nn.GELU)), task), 60).model)
    moved = blobs(seed, 32, 8, 512, 0.5).mapped(lambda x: x + x.roll(1, dims=1))
    return stepping(model, moved, lambda p: torch.optim.AdamW(p, lr=1e-4))
