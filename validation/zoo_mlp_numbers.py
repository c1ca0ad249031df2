# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that are not finite or trained at a wrong rate. Twins share a half."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence import both, not_finite
from validation.evidence_training import bounces, diverges, does_not_move, gradient_norms_spread, trains
from validation.nets import Lambda, Tower, deep, he_, mlp
from validation.setups import pair, pretrain, rated
from validation.tasks import Task, blobs, regression
from validation.zoo_mlp_dead import relu_6, relu_8

zoo = Zoo("mlp")

# --- not finite


def with_last(seed: int, last):
    """A density head: the loss is the mean negative log of the true class's share."""
    task = blobs(seed, 32, 6)
    return pair(
        mlp([32, 48, 48, 6]).append(nn.ReLU()).append(Lambda(last)),
        task.with_loss(lambda log_p, t: F.nll_loss(log_p, t)),
    )


safe_log = zoo.healthy(
    "log-of-relu-plus-eps",
    "tune",
    lambda s: with_last(s, lambda x: torch.log((x + 0.1) / (x + 0.1).sum(1, True))),
    trains(),
)
zoo.sick(
    "log-of-zero",
    "tune",
    lambda s: with_last(s, lambda x: torch.log(x / x.sum(1, True))),
    not_finite(),
    "NUMERICAL",
    layer=("6", "4"),
    also={"DEAD"},
    control=safe_log,
)
zoo.sick(
    "exp-activations-4x64",
    "tune",
    lambda s: pair(he_(mlp([64, 64, 64, 64, 64, 10], lambda: Lambda(torch.exp))), blobs(s)),
    not_finite(),
    "NUMERICAL",
    "EXPLODING",
    layer=("2", "3", "4"),
    also={"UNSTABLE"},
    control=relu_6,
)


class Distance(nn.Module):
    """Euclidean distances to learned prototypes, of which one may coincide with a sample."""

    def __init__(self, dim: int, classes: int, eps: float) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.zeros(classes, dim))
        nn.init.normal_(self.prototypes[1:])
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return -torch.sqrt((x[:, None] - self.prototypes).square().sum(-1) + self.eps)


def prototypes(seed: int, eps: float):
    # ReLU features of an all-zero sample are exactly the first prototype.
    task = blobs(seed, 16, 5).mapped(lambda x: torch.cat([x[:-1], torch.zeros(1, x.shape[1])]))
    body = mlp([16, 32, 32, 8]).append(nn.ReLU())
    for module in body:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return pair(nn.Sequential(body, Distance(8, 5, eps)), task)


safe_root = zoo.healthy("distance-with-eps", "tune", lambda s: prototypes(s, 1e-6), trains(lr=1e-2))
zoo.sick(
    "square-root-at-zero-backward",
    "tune",
    lambda s: prototypes(s, 0),
    not_finite(forward=False),
    "NUMERICAL",
    layer=("1", "0.4"),
    control=safe_root,
)


def bad_batches(seed: int, every: int, value: float):
    count = iter(range(10**9))

    def spoil(x: Tensor) -> Tensor:
        if next(count) % every == every - 1:
            x[3, 5] = value
        return x

    return pair(he_(deep(3, 48, dim=24)), blobs(seed, 24).mapped(spoil))


zoo.sick(
    "nan-in-every-fifth-batch",
    "tune",
    lambda s: bad_batches(s, 5, float("nan")),
    not_finite(),
    "NUMERICAL",
    also={"UNSTABLE"},
    control=relu_6,
)
zoo.sick(
    "infinity-in-every-seventh-batch",
    "tune",
    lambda s: bad_batches(s, 7, float("inf")),
    not_finite(),
    "NUMERICAL",
    also={"UNSTABLE"},
    control=relu_8,
)


def masked(seed: int, safe: bool):
    """Root where positive, 0 elsewhere: the branch that is not taken still sends NaN back, unless its input is safe."""

    def positive_root(x: Tensor) -> Tensor:
        inner = torch.where(x > 0, x, torch.ones_like(x)) if safe else x
        return torch.where(x > 0, torch.sqrt(inner), torch.zeros_like(x))

    model = Tower([20, 40, 40, 40, 5], nn.SiLU, {2: Lambda(positive_root)})
    return pair(model, blobs(seed, 20, 5))


safe_mask = zoo.healthy("where-with-safe-inner", "tune", lambda s: masked(s, True), trains(lr=3e-3))
zoo.sick(
    "where-hides-a-nan-branch-backward",
    "tune",
    lambda s: masked(s, False),
    not_finite(forward=False),
    "NUMERICAL",
    layer=("fc2", "after2"),
    control=safe_mask,
)


def standardised(seed: int, eps: float):
    """Divides by the spread over the batch; one feature is constant."""
    task = regression(seed, 16).mapped(lambda x: torch.cat([x, torch.ones(len(x), 1)], dim=1))
    model = nn.Sequential(
        Lambda(lambda x: (x - x.mean(0)) / (x.std(0) + eps)), nn.Linear(17, 40), nn.Tanh(), nn.Linear(40, 1)
    )
    return pair(model, task)


safe_ratio = zoo.healthy("batch-standardised-with-eps", "tune", lambda s: standardised(s, 1e-5), trains(lr=1e-2))
zoo.sick(
    "zero-by-zero-of-a-constant-feature",
    "tune",
    lambda s: standardised(s, 0),
    not_finite(),
    "NUMERICAL",
    layer=("0", "1"),
    control=safe_ratio,
)


def half_precision(seed: int, dtype: torch.dtype, scale: float):
    """Features in the hundreds squared and summed: beyond 65504, the largest of float16."""
    task = blobs(seed, 32, 6).mapped(lambda x: (x * scale).to(dtype))
    model = he_(mlp([32, 64, 64, 6])).to(dtype)
    model.insert(0, Lambda(lambda x: x * x.square().sum(1, True)))
    model.insert(1, nn.LayerNorm(32, dtype=dtype))
    return pair(model, task.with_loss(lambda y, t: F.cross_entropy(y.float(), t)))


bfloat = zoo.healthy(
    "bfloat16-large-features", "tune", lambda s: half_precision(s, torch.bfloat16, 200.0), trains(lr=1e-3)
)
zoo.sick(
    "float16-overflow-forward",
    "tune",
    lambda s: half_precision(s, torch.float16, 200.0),
    not_finite(),
    "NUMERICAL",
    layer=("0", "1"),
    also={"EXPLODING"},
    control=bfloat,
)

# --- rates


sgd = zoo.healthy("sgd-0.1-4x64", "tune", lambda s: rated(he_(deep(4, 64)), blobs(s), "SGD", 0.1), trains())
zoo.sick(
    "sgd-100-4x64",
    "tune",
    lambda s: rated(he_(deep(4, 64)), blobs(s), "SGD", 100.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    control=sgd,
)
adam = zoo.healthy(
    "adam-1e-3-4x64", "tune", lambda s: rated(he_(deep(4, 64)), blobs(s), "Adam", 1e-3, 40), trains(steps=40)
)
zoo.sick(
    "adam-10-4x64",
    "tune",
    lambda s: rated(he_(deep(4, 64)), blobs(s), "Adam", 10.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={"DEAD", "NUMERICAL"},
    control=adam,
)
zoo.sick(
    "adam-1e-8-4x64",
    "tune",
    lambda s: rated(he_(deep(4, 64)), blobs(s), "Adam", 1e-8),
    does_not_move(),
    "SLOW",
    control=adam,
)
zoo.sick(
    "batch-1-momentum-features-times-100",
    "tune",
    lambda s: rated(he_(deep(3, 64)), blobs(s, batch=1).mapped(lambda x: x * 100), "SGD", 0.01, 40, momentum=0.9),
    diverges(),
    "EXPLODING",  # the notes have this as unstable, but within 40 steps it overflows for every seed
    "UNSTABLE",
    "NUMERICAL",
    also={"DEAD"},
    control=sgd,
)
small_loss = zoo.healthy(
    "loss-times-1e-6-with-adam",
    "tune",
    lambda s: rated(he_(Tower([20, 48, 48, 48, 5])), blobs(s, 20, 5).scaled(1e-6), "Adam", 1e-3, 40, eps=1e-14),
    trains(),
)
zoo.sick(
    "loss-times-1e-6-with-sgd-0.01",
    "tune",
    lambda s: rated(he_(Tower([20, 48, 48, 48, 5])), blobs(s, 20, 5).scaled(1e-6), "SGD", 0.01, 40),
    does_not_move(),
    "SLOW",
    control=small_loss,
)
calm = zoo.healthy(
    "regression-sgd-0.3",
    "tune",
    lambda s: rated(mlp([16, 48, 48, 1], nn.SiLU), regression(s), "SGD", 0.3, 40),
    trains(fall=0.05),
)
zoo.sick(
    "regression-momentum-sgd-4",
    "tune",
    lambda s: rated(mlp([16, 48, 48, 1], nn.SiLU), regression(s), "SGD", 4.0, 30, momentum=0.9),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    "NUMERICAL",
    control=calm,
)


def outliers(seed: int, every: int, size: float, act):
    """Targets of some batches come in another unit."""
    count = iter(range(10**9))
    scale = {"now": 1.0}

    def tick(x: Tensor) -> Tensor:
        scale["now"] = size if next(count) % every == every // 2 else 1.0
        return x

    task = regression(seed).mapped(tick).with_loss(lambda y, t: (y - t * scale["now"]).square().mean())
    return pair(mlp([16, 48, 48, 1], act), task, steps=40)


zoo.sick(
    "every-eighth-batch-targets-times-1e3",
    "tune",
    lambda s: outliers(s, 8, 1e3, nn.Tanh),
    gradient_norms_spread(50),
    "UNSTABLE",
    "EXPLODING",
    control=sgd,
)
zoo.sick(
    "every-twelfth-batch-targets-times-300",
    "tune",
    lambda s: outliers(s, 12, 300.0, nn.SiLU),
    gradient_norms_spread(50),
    "UNSTABLE",
    "EXPLODING",
    control=calm,
)


def sharpness(model: nn.Module, task: Task, rounds: int = 30) -> float:
    """Largest eigenvalue of the loss's Hessian, by power iteration."""
    parameters = list(model.parameters())
    gradient = torch.autograd.grad(task.loss_fn(model(task.input_fn())), parameters, create_graph=True)
    way = [torch.randn_like(p) for p in parameters]
    for _ in range(rounds):
        length = torch.stack([w.norm() for w in way]).norm()
        way = [w / length for w in way]
        way = list(torch.autograd.grad(gradient, parameters, way, retain_graph=True))
    return torch.stack([w.norm() for w in way]).norm().item()


def near_the_edge(model: nn.Module, task: Task, times: float, steps: int) -> Setup:
    """Plain gradient descent at a rate of `times` / sharpness: beyond 2 the loss bounces up along one direction."""
    return rated(model, task, "SGD", times / sharpness(model, task), steps)


def offset(seed: int) -> Task:
    """Features that all have the mean 2: one direction is far steeper than the others."""
    return regression(seed, 12).mapped(lambda x: x + 2).fixed()


below = zoo.healthy(
    "linear-rate-below-the-edge", "tune", lambda s: near_the_edge(nn.Linear(12, 1), offset(s), 1.0, 30), trains()
)
zoo.sick(
    "linear-rate-above-the-edge",
    "tune",
    lambda s: near_the_edge(nn.Linear(12, 1), offset(s), 2.15, 30),
    both(bounces, diverges(2)),
    "UNSTABLE",
    "EXPLODING",
    control=below,
)


def learned(seed: int) -> tuple[nn.Module, Task]:
    """A small network near its optimum on one batch, where the loss is a bowl."""
    task = regression(seed, 6, batch=64).mapped(lambda x: x + 1).fixed()
    model = mlp([6, 24, 1], nn.Tanh)
    return pretrain(pair(model, task), 150, 1e-2).model, task


settled = zoo.healthy(
    "learned-rate-below-the-edge", "tune", lambda s: near_the_edge(*learned(s), 0.8, 40), trains(fall=0.0)
)
zoo.sick(
    "learned-rate-above-the-edge",
    "tune",
    lambda s: near_the_edge(*learned(s), 2.6, 40),
    diverges(20),
    "UNSTABLE",
    "EXPLODING",
    control=settled,
)
