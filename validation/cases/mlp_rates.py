# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that run away, stand still, jump or bounce, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases.mlp_nonfinite import safe_softmax
from validation.cases.mlp_twins import adagrad, nesterov
from validation.evidence import both, bounces, diverges, does_not_move, gradient_norms_spread, trains
from validation.labels import JUMPS, RUNS_AWAY
from validation.nets import DeepSet, Tabular, Tower, deep, he_, mlp
from validation.setups import pair, pretrain, rated
from validation.tasks import Task, blobs, every, patches, regression, table

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


# --- runs away, stands still

sgd = zoo.healthy("sgd-0.1-4x64", lambda s: rated(he_(deep(4, 64)), blobs(s), "SGD", 0.1), trains())
zoo.sick(
    "sgd-100-4x64",
    lambda s: rated(he_(deep(4, 64)), blobs(s), "SGD", 100.0),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=sgd,
)
adam = zoo.healthy("adam-1e-3-4x64", lambda s: rated(he_(deep(4, 64)), blobs(s), "Adam", 1e-3, 40), trains(steps=40))
zoo.sick(
    "adam-10-4x64",
    lambda s: rated(he_(deep(4, 64)), blobs(s), "Adam", 10.0),
    diverges(),
    "EXPLODING",
    "UNSTABLE",
    also={"DEAD", "NUMERICAL"},
    control=adam,
)
zoo.sick(
    "adam-1e-8-4x64", lambda s: rated(he_(deep(4, 64)), blobs(s), "Adam", 1e-8), does_not_move(), "SLOW", control=adam
)
zoo.sick(
    "batch-1-momentum-features-times-100",
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
    lambda s: rated(he_(Tower([20, 48, 48, 48, 5])), blobs(s, 20, 5).scaled(1e-6), "Adam", 1e-3, 40, eps=1e-14),
    trains(),
)
zoo.sick(
    "loss-times-1e-6-with-sgd-0.01",
    lambda s: rated(he_(Tower([20, 48, 48, 48, 5])), blobs(s, 20, 5).scaled(1e-6), "SGD", 0.01, 40),
    does_not_move(),
    "SLOW",
    control=small_loss,
)
calm = zoo.healthy(
    "regression-sgd-0.3",
    lambda s: rated(mlp([16, 48, 48, 1], nn.SiLU), regression(s), "SGD", 0.3, 40),
    trains(fall=0.05),
)
zoo.sick(
    "regression-momentum-sgd-4",
    lambda s: rated(mlp([16, 48, 48, 1], nn.SiLU), regression(s), "SGD", 4.0, 30, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    control=calm,
)
zoo.sick(
    "nesterov-15-deep-set",
    lambda s: rated(
        DeepSet([24, 40, 40], [40, 40, 6], nn.GELU), patches(s), "SGD", 15.0, 20, momentum=0.9, nesterov=True
    ),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=nesterov,
)
zoo.sick(
    "rmsprop-2-tabular",
    lambda s: rated(Tabular(), table(s), "RMSprop", 2.0, 20),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD"},
    control=adagrad,
)
zoo.sick(
    "tabular-adagrad-1e-9",
    lambda s: rated(Tabular(), table(s), "Adagrad", 1e-9, 20),
    does_not_move(),
    "SLOW",
    control=adagrad,
)


class Decayed(torch.optim.Adam):
    """A schedule counted in epochs but stepped in batches: the rate halves each step, and training is resumed late."""

    def __init__(self, parameters, lr: float, done: int) -> None:
        super().__init__(parameters, lr=lr * 0.5**done)

    def step(self, closure=None):
        self.param_groups[0]["lr"] *= 0.5
        return super().step(closure)


def decayed(seed: int) -> Setup:
    model, task = he_(mlp([20, 44, 44, 44, 6], nn.GELU)), blobs(seed, 20, 6)
    return Setup(
        model=model, input_fn=task.input_fn, loss_fn=task.loss_fn, optimizer=Decayed(model.parameters(), 1e-3, 30)
    )


zoo.sick("adam-rate-halved-every-batch", decayed, does_not_move(), "SLOW", control=safe_softmax)

# --- jumps


def outliers(seed: int, period: int, size: float, act):
    """Targets of some batches come in another unit."""
    now = every(period, period // 2)
    scale = {"now": 1.0}

    def tick(x: Tensor) -> Tensor:
        scale["now"] = size if now() else 1.0
        return x

    task = regression(seed).mapped(tick).with_loss(lambda y, t: (y - t * scale["now"]).square().mean())
    return pair(mlp([16, 48, 48, 1], act), task, steps=40)


zoo.sick(
    "every-eighth-batch-targets-times-1e3",
    lambda s: outliers(s, 8, 1e3, nn.Tanh),
    gradient_norms_spread(50),
    *JUMPS,
    control=sgd,
)
zoo.sick(
    "every-twelfth-batch-targets-times-300",
    lambda s: outliers(s, 12, 300.0, nn.SiLU),
    gradient_norms_spread(50),
    *JUMPS,
    control=calm,
)


def skewed(seed: int, clipped: bool) -> Setup:
    """Log-normal errors of measurement: most are tiny, a few are thousands, unless they are cut off."""
    noise = torch.Generator().manual_seed(seed)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        wild = t + 0.01 * (4 * torch.randn(t.shape, generator=noise)).exp()
        return F.mse_loss(y, wild.clamp_max(1.5) if clipped else wild)

    return pair(mlp([18, 50, 50, 1], nn.ELU), regression(seed, 18, batch=32).with_loss(loss), steps=60)


clipped = zoo.healthy("log-normal-errors-cut-off", lambda s: skewed(s, True), trains(lr=1e-2, steps=60))
zoo.sick("log-normal-errors", lambda s: skewed(s, False), gradient_norms_spread(30), *JUMPS, control=clipped)


def percentage(seed: int, floor: float) -> Setup:
    """Squared relative error with targets that come near zero."""
    task = regression(seed, 12, batch=16, noise=0.5)
    return pair(
        mlp([12, 40, 40, 40, 1], nn.SiLU),
        task.with_loss(lambda y, t: ((y - t) / t.abs().clamp_min(floor)).square().mean()),
        steps=60,
    )


floored = zoo.healthy("relative-error-with-floor-1", lambda s: percentage(s, 1.0), trains(lr=1e-2, fall=0.05))
zoo.sick(
    "relative-error-of-targets-near-zero",
    lambda s: percentage(s, 0.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=floored,
)

# --- at the edge of stability


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
    "linear-rate-below-the-edge", lambda s: near_the_edge(nn.Linear(12, 1), offset(s), 1.0, 30), trains()
)
zoo.sick(
    "linear-rate-above-the-edge",
    lambda s: near_the_edge(nn.Linear(12, 1), offset(s), 2.15, 30),
    both(bounces, diverges(2)),
    *JUMPS,
    control=below,
)


def learned(seed: int) -> tuple[nn.Module, Task]:
    """A small network near its optimum on one batch, where the loss is a bowl."""
    task = regression(seed, 6, batch=64).mapped(lambda x: x + 1).fixed()
    model = mlp([6, 24, 1], nn.Tanh)
    return pretrain(pair(model, task), 150, 1e-2).model, task


settled = zoo.healthy("learned-rate-below-the-edge", lambda s: near_the_edge(*learned(s), 0.8, 40), trains(fall=0.0))
zoo.sick(
    "learned-rate-above-the-edge", lambda s: near_the_edge(*learned(s), 2.6, 40), diverges(20), *JUMPS, control=settled
)
