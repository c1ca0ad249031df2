# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Multi-layer perceptrons whose numbers are not finite, and their twins.

Half: tune.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo
from validation.cases.mlp_twins import relu_6, relu_8
from validation.evidence import not_finite, train, trains
from validation.nets import Lambda, Tabular, Tower, TwoTower, deep, he_, mlp
from validation.setups import pair, rated
from validation.tasks import blobs, every, regression, table, views

zoo = Zoo("mlp", half="tune", proof=trains(lr=3e-3))


def with_last(seed: int, last):
    """A density head: the loss is the mean negative log of the true class's share."""
    task = blobs(seed, 32, 6)
    return pair(
        mlp([32, 48, 48, 6]).append(nn.ReLU()).append(Lambda(last)),
        task.with_loss(lambda log_p, t: F.nll_loss(log_p, t)),
    )


safe_log = zoo.healthy(
    "log-of-relu-plus-eps", lambda s: with_last(s, lambda x: torch.log((x + 0.1) / (x + 0.1).sum(1, True))), trains()
)
zoo.sick(
    "log-of-zero",
    lambda s: with_last(s, lambda x: torch.log(x / x.sum(1, True))),
    not_finite(),
    "NUMERICAL",
    layer=("6", "4"),
    also={"DEAD"},
    control=safe_log,
)
zoo.sick(
    "exp-activations-4x64",
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


safe_root = zoo.healthy("distance-with-eps", lambda s: prototypes(s, 1e-6), trains(lr=1e-2))
zoo.sick(
    "square-root-at-zero-backward",
    lambda s: prototypes(s, 0),
    not_finite(forward=False),
    "NUMERICAL",
    layer=("1", "0.4"),
    control=safe_root,
)


def bad_batches(seed: int, period: int, value: float):
    now = every(period, period - 1)

    def spoil(x: Tensor) -> Tensor:
        if now():
            x[3, 5] = value
        return x

    return pair(he_(deep(3, 48, dim=24)), blobs(seed, 24).mapped(spoil))


zoo.sick(
    "nan-in-every-fifth-batch",
    lambda s: bad_batches(s, 5, float("nan")),
    not_finite(),
    "NUMERICAL",
    also={"UNSTABLE"},
    control=relu_6,
)
zoo.sick(
    "infinity-in-every-seventh-batch",
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


safe_mask = zoo.healthy("where-with-safe-inner", lambda s: masked(s, True))
zoo.sick(
    "where-hides-a-nan-branch-backward",
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


safe_ratio = zoo.healthy("batch-standardised-with-eps", lambda s: standardised(s, 1e-5), trains(lr=1e-2))
zoo.sick(
    "zero-by-zero-of-a-constant-feature",
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


bfloat = zoo.healthy("bfloat16-large-features", lambda s: half_precision(s, torch.bfloat16, 200.0), trains(lr=1e-3))
zoo.sick(
    "float16-overflow-forward",
    lambda s: half_precision(s, torch.float16, 200.0),
    not_finite(),
    "NUMERICAL",
    layer=("0", "1"),
    also={"EXPLODING"},
    control=bfloat,
)


def unit_length(seed: int, eps: float) -> Setup:
    """Rows are brought to length one; some users have no history at all, so their row is zero."""

    def gap(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.cat([batch[0][:-2], torch.zeros(2, batch[0].shape[1])]), batch[1]

    model = TwoTower([24, 48, 16], [18, 40, 16])
    model.query.insert(0, Lambda(lambda x: x / (x.norm(dim=1, keepdim=True) + eps)))
    return pair(model, views(seed).mapped(gap))


safe_length = zoo.healthy("rows-to-unit-length-with-eps", lambda s: unit_length(s, 1e-8), trains(lr=1e-2))
zoo.sick(
    "rows-to-unit-length-some-are-zero",
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


safe_softmax = zoo.healthy("softmax-by-hand-shifted", lambda s: softmax_by_hand(s, True))
zoo.sick(
    "softmax-by-hand-overflows",
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


softplus = zoo.healthy("gaussian-likelihood-softplus", lambda s: uncertain(s, nn.Softplus()), trains(lr=1e-2))
zoo.sick(
    "gaussian-likelihood-variance-by-relu",
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


safe_angle = zoo.healthy("angles-with-margin", lambda s: angles(s, 1e-4), trains(lr=3e-2))
zoo.sick(
    "arc-cosine-at-one-backward",
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
    return rated(Tabular().half(), task, "Adam", 3e-3, 30, eps=eps)


def blows_up(case: Case, seed: int) -> Evidence:
    setup = case.make(seed)
    run = train(setup, 5, setup.optimizer)
    return Evidence(not run.finite, f"losses {run.losses}")


safe_half = zoo.healthy("float16-adam-eps-1e-4", lambda s: half_adam(s, 1e-4), trains())
zoo.sick(
    "float16-adam-eps-1e-8",
    lambda s: half_adam(s, 1e-8),
    blows_up,
    "NUMERICAL",
    "EXPLODING",
    "UNSTABLE",
    control=safe_half,
)
