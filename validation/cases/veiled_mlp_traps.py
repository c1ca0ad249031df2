# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks that only look odd: other losses, other units, other schedules.

Half: veiled.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from validation.case import Setup, Zoo
from validation.cases._veiled_tasks import (
    atlases,
    bakes,
    fares,
    grades,
    halves,
    ledgers,
    minerals,
    recipes,
    villages,
)
from validation.evidence import thrives
from validation.nets import mlp
from validation.nets.programs import Plain
from validation.setups import frozen, live, pretrain

zoo = Zoo("mlp", half="veiled", proof=thrives())

# --- other losses


class Densities(nn.Module):
    """Three bells of a price: their chances, places and widths."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp([7, 40, 40], nn.Tanh), nn.Linear(40, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.heads(torch.tanh(self.body(x))).chunk(3, dim=1)


def mixture(out: tuple[Tensor, Tensor, Tensor], t: Tensor) -> Tensor:
    chance, place, width = out
    bells = torch.distributions.Normal(place, F.softplus(width) + 1e-2).log_prob(t.log()[:, None])
    return 2 - torch.logsumexp(chance.log_softmax(dim=1) + bells, dim=1).mean()


zoo.healthy("fares-mixture-of-bells", lambda s: live(Densities(), fares(s).with_loss(mixture), lr=5e-3, steps=60))


def ordinal(z: Tensor, t: Tensor) -> Tensor:
    above = (t[:, None] > torch.arange(4)).float()
    return F.binary_cross_entropy_with_logits(z, above)


class Ranked(nn.Module):
    """One score and four learned steps: a mark is how many steps the score has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score = mlp([9, 32, 32], nn.SiLU), nn.Linear(32, 1)
        self.first, self.gaps = nn.Parameter(torch.tensor([-1.5])), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.cat([self.first, self.first + F.softplus(self.gaps).cumsum(dim=0)])
        return self.score(F.silu(self.body(x))) - steps


zoo.healthy("grades-one-score-four-steps", lambda s: live(Ranked(), grades(s).with_loss(ordinal), lr=1e-2, steps=60))


def counts(z: Tensor, t: Tensor) -> Tensor:
    return F.poisson_nll_loss(z.squeeze(1), t.round(), log_input=True, full=True)


zoo.healthy(
    "fares-rounded-by-poisson", lambda s: live(mlp([7, 32, 32, 1], nn.ELU), fares(s).with_loss(counts), steps=60)
)


def gamma(z: Tensor, t: Tensor) -> Tensor:
    return (z.squeeze(1) + t * (-z.squeeze(1)).exp()).mean()


zoo.healthy(
    "fares-by-the-gamma-law", lambda s: live(mlp([7, 32, 32, 1], nn.SiLU), fares(s).with_loss(gamma), lr=5e-3, steps=60)
)


def pinball(z: Tensor, t: Tensor) -> Tensor:
    share = torch.tensor([0.05, 0.5, 0.95])
    miss = t.log()[:, None] - z
    return torch.maximum(share * miss, (share - 1) * miss).mean()


zoo.healthy(
    "fares-rare-and-common-quantiles",
    lambda s: live(Plain([7, 32, 32, 3], F.mish), fares(s).with_loss(pinball), lr=1e-2, steps=60),
)


class Twins(nn.Module):
    """Both halves of a ticket on a sphere; a learned temperature divides what they have in common."""

    def __init__(self, heat: float = 0.07) -> None:
        super().__init__()
        self.left, self.right = mlp([20, 40, 12], nn.GELU), mlp([20, 40, 12], nn.GELU)
        self.heat = nn.Parameter(torch.tensor(math.log(1 / heat)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)
        return self.heat.exp() * a @ b.T


def two_ways(z: Tensor, t: Tensor) -> Tensor:
    return (F.cross_entropy(z, t) + F.cross_entropy(z.T, t)) / 2


zoo.healthy("halves-contrastive-both-ways", lambda s: live(Twins(), halves(s).with_loss(two_ways), steps=60))


def signs(z: Tensor, t: Tensor) -> Tensor:
    return -F.logsigmoid((2 * torch.eye(len(t)) - 1) * (z - 4)).sum() / len(t)


zoo.healthy("halves-each-pair-by-a-sigmoid", lambda s: live(Twins(0.15), halves(s).with_loss(signs), steps=60))


def margin(z: Tensor, t: Tensor) -> Tensor:
    return F.multi_margin_loss(z, t, margin=1.0)


zoo.healthy(
    "minerals-multi-margin", lambda s: live(mlp([14, 40, 7], nn.ReLU), minerals(s).with_loss(margin), "SGD", 0.3, 60)
)


def listwise(z: Tensor, t: Tensor) -> Tensor:
    """Twelve lists of eight rides: the dearest first."""
    return -(t.view(12, 8).log().softmax(dim=1) * z.view(12, 8).log_softmax(dim=1)).sum(dim=1).mean()


zoo.healthy(
    "fares-ranked-by-lists",
    lambda s: live(mlp([7, 32, 1], nn.Tanh), fares(s).with_loss(listwise), lr=1e-2, steps=60),
    thrives(0.05, idle="2.bias"),
)


def teacher(seed: int) -> Setup:
    """A large net that is done teaches a small one by soft answers."""
    wise = pretrain(live(mlp([14, 64, 7], nn.GELU), minerals(seed)), 40).model.requires_grad_(False)

    def distil(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
        z, x = out
        soft = (wise(x) / 3).softmax(dim=1)
        return 0.5 * F.cross_entropy(z, t) + 4.5 * F.kl_div((z / 3).log_softmax(dim=1), soft, reduction="batchmean")

    class Pupil(nn.Module):
        """Hands back what it was asked, for the teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(14, 16), nn.Linear(16, 7)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.fc2(torch.tanh(self.fc1(x))), x

    return live(Pupil(), minerals(seed).with_loss(distil), lr=1e-2, steps=50)


zoo.healthy("minerals-taught-by-a-large-net", teacher)

# --- other units


class Sine(nn.Module):
    """Sines all the way, drawn as their authors say."""

    def __init__(self, first: float = 8.0) -> None:
        super().__init__()
        self.layers, self.out, self.first = (
            nn.ModuleList([nn.Linear(2, 48), nn.Linear(48, 48)]),
            nn.Linear(48, 3),
            first,
        )
        nn.init.uniform_(self.layers[0].weight, -0.5, 0.5)
        nn.init.uniform_(self.layers[1].weight, -0.06, 0.06)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.first * self.layers[0](x))
        return self.out(torch.sin(6 * self.layers[1](x)))


zoo.healthy("atlases-sines", lambda s: live(Sine(), atlases(s), lr=2e-3, steps=80))


class Splines(nn.Module):
    """Each edge has a curve of its own: bells on a grid, beside a plain slope."""

    def __init__(self, sizes: tuple[int, ...], bells: int = 6) -> None:
        super().__init__()
        self.curves = nn.ParameterList([0.3 * torch.randn(a, b, bells) / math.sqrt(a) for a, b in pairwise(sizes)])
        self.slopes = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.register_buffer("grid", torch.linspace(-2, 2, bells))

    def forward(self, x: Tensor) -> Tensor:
        for curve, slope in zip(self.curves, self.slopes, strict=True):
            bells = torch.exp(-(2 * (x[..., None] - self.grid)).square())
            x = slope(F.silu(x)) + torch.einsum("big,iog->bo", bells, curve)
        return x


zoo.healthy("bakes-curves-on-edges", lambda s: live(Splines((10, 8, 1)), bakes(s), lr=1e-2, steps=60))


class Coupled(nn.Module):
    """A normalising flow: four couplings, each of which turns one half by the other; gives the surprise of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp([4, 32, 8], nn.Tanh) for _ in range(4))
        for net in self.nets:
            net[-1].weight.data *= 0.1

    def forward(self, x: Tensor) -> Tensor:
        x, grown = x[:, :8], 0.0
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            scale, shift = net(a).chunk(2, dim=1)
            scale = torch.tanh(scale)
            x, grown = torch.cat([b * scale.exp() + shift, a], dim=1), grown + scale.sum(dim=1)
        return (x.square().sum(dim=1) / 2 - grown).mean()


zoo.healthy(
    "ledgers-normalising-flow", lambda s: live(Coupled(), ledgers(s).with_loss(lambda z, _t: z), lr=5e-3, steps=80)
)


class Experts(nn.Module):
    """Four small nets; a router says by a softmax how much each counts."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.nets = nn.Linear(14, 4), nn.ModuleList(mlp([14, 16, 7], nn.ReLU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(dim=1)
        return torch.einsum("be,beo->bo", share, torch.stack([net(x) for net in self.nets], dim=1))


zoo.healthy("minerals-four-experts", lambda s: live(Experts(), minerals(s), lr=1e-2, steps=50), thrives(most_dead=0.5))


class Bells(nn.Module):
    """Distances from learned centres."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.out = nn.Parameter(1.4 * torch.randn(40, 14)), nn.Linear(40, 7)
        self.wide = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(10 * torch.exp(-torch.cdist(x, self.centres).square() / (30 * self.wide.exp())))


zoo.healthy("minerals-bells-around-forty-centres", lambda s: live(Bells(), minerals(s), lr=2e-2, steps=60))


class Written(nn.Module):
    """A net whose weights another net writes, by which quarter of the chart a row lies in."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.write, self.out = nn.Embedding(4, 6), nn.Linear(6, 10 * 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        which = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        weight = self.write(self.table(which)).unflatten(1, (10, 12))
        return self.out(torch.tanh(torch.einsum("bi,bio->bo", x, weight)))


zoo.healthy("bakes-weights-written-by-a-table", lambda s: live(Written(), bakes(s), lr=1e-2, steps=80))


class Graph(nn.Module):
    """Two rounds of neighbours' means, then a class for each house."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(5, 32), nn.Linear(5, 32)
        self.own2, self.near2, self.out = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        h = F.relu(self.own(x) + self.near(near @ x))
        return self.out(F.relu(self.own2(h) + self.near2(near @ h)))


zoo.healthy("villages-means-of-neighbours", lambda s: live(Graph(), villages(s), lr=5e-3, steps=50))


class Bag(nn.Module):
    """The mean of what stands in a table for the ingredients, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(60, 24, mode="mean", sparse=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x + 15 * torch.arange(4)))


zoo.healthy("recipes-sparse-bag", lambda s: live(Bag(), recipes(s), "SGD", 3.0, 80))


class Machine(nn.Module):
    """A factorisation machine: single effects and products of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.single, self.vectors, self.out = nn.Embedding(60, 5), nn.Embedding(60, 16), nn.Linear(16, 5)
        self.vectors.weight.data *= 0.3

    def forward(self, x: Tensor) -> Tensor:
        x = x + 15 * torch.arange(4)
        v = self.vectors(x)
        pairs = (v.sum(dim=1).square() - v.square().sum(dim=1)) / 2
        return self.single(x).sum(dim=1) + self.out(pairs)


zoo.healthy("recipes-factorisation-machine", lambda s: live(Machine(), recipes(s), lr=2e-2, steps=80))

# --- frozen, sparse, normed


def frozen_body(seed: int) -> Setup:
    body = pretrain(live(mlp([14, 40, 40, 7], nn.GELU), minerals(seed, noise=1.0)), 40).model
    body[4] = nn.Linear(40, 7)
    return live(frozen(body, "0", "2"), minerals(seed), lr=1e-2, steps=40)


zoo.healthy("minerals-frozen-body-new-head", frozen_body)


def random_features(seed: int) -> Setup:
    model = mlp([10, 200, 1], nn.ReLU)
    return live(frozen(model, "0"), bakes(seed), lr=2e-2, steps=60)


zoo.healthy("bakes-two-hundred-fixed-features", random_features)


def pruned(seed: int) -> Setup:
    """Four fifths of the weights are masked away."""
    model = mlp([14, 64, 64, 7], nn.ReLU)
    for at in (0, 2):
        prune.random_unstructured(model[at], "weight", amount=0.8)
    return live(model, minerals(seed), lr=1e-2, steps=60)


zoo.healthy("minerals-four-fifths-pruned", pruned, thrives(most_dead=0.4))
zoo.healthy(
    "minerals-weight-norms",
    lambda s: live(
        nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(14, 40)),
            nn.Softplus(),
            nn.utils.parametrizations.weight_norm(nn.Linear(40, 7)),
        ),
        minerals(s),
        lr=1e-2,
    ),
)
zoo.healthy(
    "minerals-batch-norm-dropout-0.5",
    lambda s: live(mlp([14, 64, 64, 7], nn.ReLU, nn.BatchNorm1d, 0.5), minerals(s), lr=1e-2, steps=60),
)


def lopsided(seed: int) -> Setup:
    """One kind in twenty is rare, and it is often asked for nothing else."""

    def rare(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, (t == 0).float() * (torch.arange(len(t)) % 3 == 0)

    def weighted(z: Tensor, t: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z.view_as(t), t, pos_weight=torch.tensor(10.0))

    return live(mlp([14, 32, 1], nn.GELU), minerals(seed).changed(rare).with_loss(weighted), lr=5e-3, steps=60)


zoo.healthy("minerals-one-in-twenty", lopsided, thrives(0.05))

# --- other sizes and schedules

zoo.healthy("ledgers-loss-in-millionths", lambda s: live(mlp([28, 40, 28], nn.Tanh), ledgers(s).scaled(1e-6), lr=5e-3))
zoo.healthy("ledgers-loss-times-65536", lambda s: live(mlp([28, 40, 28], nn.Tanh), ledgers(s).scaled(65536.0), lr=5e-3))
zoo.healthy(
    "minerals-warm-up-from-zero",
    lambda s: live(
        mlp([14, 40, 40, 7], nn.SiLU, nn.LayerNorm), minerals(s), lr=1e-2, steps=80, rate=lambda i: min(1.0, i / 30)
    ),
)
zoo.healthy(
    "bakes-cosine-to-zero",
    lambda s: live(
        mlp([10, 48, 48, 1], nn.GELU), bakes(s), steps=80, lr=1e-2, rate=lambda i: (1 + math.cos(math.pi * i / 80)) / 2
    ),
)
zoo.healthy(
    "minerals-decay-of-0.3", lambda s: live(mlp([14, 40, 7], nn.GELU), minerals(s), lr=1e-2, steps=60, weight_decay=0.3)
)
zoo.healthy(
    "bakes-gradients-within-0.1", lambda s: live(mlp([10, 40, 1], nn.Tanh), bakes(s), lr=1e-2, steps=70, clip=0.1)
)
zoo.healthy("minerals-adagrad-0.1", lambda s: live(mlp([14, 40, 40, 7], nn.LeakyReLU), minerals(s), "Adagrad", 0.1, 50))


def done(seed: int) -> Setup:
    """A net that has learned nearly all there is, at the end of its schedule."""
    setup = pretrain(live(mlp([28, 64, 28], nn.Tanh), ledgers(seed)), 150, 1e-2)
    return live(setup.model, ledgers(seed), "Adam", 3e-3, 60, rate=lambda i: 1 - i / 60)


zoo.healthy("ledgers-nearly-done", done, thrives(0.02))


class Imputed(nn.Module):
    """A fifth of the columns is blank; a mask says which, and the blanks are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = mlp([56, 64, 28], nn.SELU), torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        blank = (torch.rand(x.shape, generator=self.calls) < 0.2).float()
        return self.net(torch.cat([x * (1 - blank), blank], dim=1)), blank


def blanks(out: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    y, blank = out
    return ((y - x).square() * blank).sum() / blank.sum()


zoo.healthy("ledgers-blank-columns", lambda s: live(Imputed(), ledgers(s).with_loss(blanks), lr=5e-3, steps=80))
