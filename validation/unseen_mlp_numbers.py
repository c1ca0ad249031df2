# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons that are not finite, jump or stand still, with their twins. Set aside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.evidence import not_finite
from validation.evidence_training import does_not_move, gradient_norms_spread, train, trains
from validation.nets import Lambda, he_, mlp
from validation.nets_unseen import TwoTower
from validation.setups import pair, rated
from validation.tasks import blobs, regression
from validation.tasks_unseen import table, views
from validation.unseen_mlp import adagrad, tabular

zoo = Zoo("mlp", proof=trains(lr=3e-3))

# --- not finite


def unit_length(seed: int, eps: float) -> Setup:
    """Rows are brought to length one; some users have no history at all, so their row is zero."""

    def gap(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.cat([batch[0][:-2], torch.zeros(2, batch[0].shape[1])]), batch[1]

    model = TwoTower([24, 48, 16], [18, 40, 16])
    model.query.insert(0, Lambda(lambda x: x / (x.norm(dim=1, keepdim=True) + eps)))
    return pair(model, views(seed).mapped(gap))


safe_length = zoo.healthy("rows-to-unit-length-with-eps", "tune", lambda s: unit_length(s, 1e-8), trains(lr=1e-2))
zoo.sick(
    "rows-to-unit-length-some-are-zero",
    "tune",
    lambda s: unit_length(s, 0.0),
    not_finite(batches=2),
    "NUMERICAL",
    layer=("query.0", "query.1"),
    control=safe_length,
)


def softmax_by_hand(seed: int, shift: bool) -> Setup:
    """exp of large logits overflows unless their largest is taken away first."""

    def log_share(z: Tensor) -> Tensor:
        z = z - z.amax(dim=1, keepdim=True) if shift else z
        return torch.log(z.exp() / z.exp().sum(dim=1, keepdim=True) + 1e-20)

    model = he_(mlp([32, 44, 44, 7], nn.GELU))
    with torch.no_grad():
        model[4].weight.mul_(60 if not shift else 1)
    return pair(model.append(Lambda(log_share)), blobs(seed, 32, 7).with_loss(F.nll_loss))


safe_softmax = zoo.healthy("softmax-by-hand-shifted", "tune", lambda s: softmax_by_hand(s, True))
zoo.sick(
    "softmax-by-hand-overflows",
    "tune",
    lambda s: softmax_by_hand(s, False),
    not_finite(),
    "NUMERICAL",
    "EXPLODING",
    layer=("5", "4"),
    also={"UNSTABLE"},
    control=safe_softmax,
)


def uncertain(seed: int, positive: nn.Module) -> Setup:
    """Mean and variance of a Gaussian; a variance of exactly zero is possible with ReLU."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        mean, variance = out[:, :1], positive(out[:, 1:])
        return (variance.log() + (y - mean).square() / variance).mean() / 2

    return pair(mlp([10, 32, 32, 2], nn.Tanh), regression(seed, 10, batch=64).with_loss(loss))


softplus = zoo.healthy("gaussian-likelihood-softplus", "tune", lambda s: uncertain(s, nn.Softplus()), trains(lr=1e-2))
zoo.sick(
    "gaussian-likelihood-variance-by-relu",
    "tune",
    lambda s: uncertain(s, nn.ReLU()),
    not_finite(),
    "NUMERICAL",
    layer="4",
    also={"UNSTABLE", "EXPLODING"},
    control=softplus,
)


class Angle(nn.Module):
    """Angles to learned directions, of which the last starts out as a sample that comes in every batch."""

    def __init__(self, dim: int, classes: int, margin: float) -> None:
        super().__init__()
        self.ways, self.margin = nn.Parameter(F.normalize(torch.randn(classes, dim), dim=1)), margin
        with torch.no_grad():
            self.ways[-1] = 0
            self.ways[-1, 0] = 1

    def forward(self, x: Tensor) -> Tensor:
        cosine = F.normalize(x, dim=1) @ F.normalize(self.ways, dim=1).T
        return -3 * torch.acos(cosine.clamp(-1 + self.margin, 1 - self.margin) if self.margin else cosine)


def angles(seed: int, margin: float) -> Setup:
    def with_known(x: Tensor) -> Tensor:
        x[0] = 0
        x[0, 0] = 2.0
        return x

    return pair(Angle(14, 5, margin), blobs(seed, 14, 5, 64, 1.0).mapped(with_known))


safe_angle = zoo.healthy("angles-with-margin", "tune", lambda s: angles(s, 1e-4), trains(lr=3e-2))
zoo.sick(
    "arc-cosine-at-one-backward",
    "tune",
    lambda s: angles(s, 0.0),
    not_finite(forward=False, batches=2),
    "NUMERICAL",
    control=safe_angle,
)


def half_adam(seed: int, eps: float) -> Setup:
    """All of it in float16, where an eps of 1e-8 is zero: Adam divides zero by zero where no gradient came."""

    def halved(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0], batch[1].half()

    task = table(seed).mapped(halved).with_loss(lambda y, t: F.cross_entropy(y.float(), t))
    return rated(tabular().half(), task, "Adam", 3e-3, 30, eps=eps)


def blows_up(case: Case, seed: int) -> Evidence:
    setup = case.make(seed)
    run = train(setup, 5, setup.optimizer)
    return Evidence(not run.finite, f"losses {run.losses}")


safe_half = zoo.healthy("float16-adam-eps-1e-4", "tune", lambda s: half_adam(s, 1e-4), trains())
zoo.sick(
    "float16-adam-eps-1e-8",
    "tune",
    lambda s: half_adam(s, 1e-8),
    blows_up,
    "NUMERICAL",
    "EXPLODING",
    "UNSTABLE",
    control=safe_half,
)

# --- jumps


def skewed(seed: int, clipped: bool) -> Setup:
    """Log-normal errors of measurement: most are tiny, a few are thousands, unless they are cut off."""
    noise = torch.Generator().manual_seed(seed)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        wild = t + 0.01 * (4 * torch.randn(t.shape, generator=noise)).exp()
        return F.mse_loss(y, wild.clamp_max(1.5) if clipped else wild)

    return pair(mlp([18, 50, 50, 1], nn.ELU), regression(seed, 18, batch=32).with_loss(loss), steps=60)


clipped = zoo.healthy("log-normal-errors-cut-off", "tune", lambda s: skewed(s, True), trains(lr=1e-2, steps=60))
zoo.sick(
    "log-normal-errors",
    "tune",
    lambda s: skewed(s, False),
    gradient_norms_spread(30),
    "UNSTABLE",
    "EXPLODING",
    control=clipped,
)


def percentage(seed: int, floor: float) -> Setup:
    """Squared relative error with targets that come near zero."""
    task = regression(seed, 12, batch=16, noise=0.5)
    return pair(
        mlp([12, 40, 40, 40, 1], nn.SiLU),
        task.with_loss(lambda y, t: ((y - t) / t.abs().clamp_min(floor)).square().mean()),
        steps=60,
    )


floored = zoo.healthy("relative-error-with-floor-1", "tune", lambda s: percentage(s, 1.0), trains(lr=1e-2, fall=0.05))
zoo.sick(
    "relative-error-of-targets-near-zero",
    "tune",
    lambda s: percentage(s, 0.0),
    gradient_norms_spread(30),
    "UNSTABLE",
    "EXPLODING",
    control=floored,
)

# --- stands still

zoo.sick(
    "tabular-adagrad-1e-9",
    "tune",
    lambda s: rated(tabular(), table(s), "Adagrad", 1e-9, 20),
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


zoo.sick("adam-rate-halved-every-batch", "tune", decayed, does_not_move(), "SLOW", control=safe_softmax)
