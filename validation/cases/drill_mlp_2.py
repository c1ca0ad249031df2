# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Autoencoders, set nets, graphs, tables, hypernetworks and heads, with one fault each, twins, and healthy ones.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, equal_units, gradient_ratio, no_gradient, rank_at_most
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY
from validation.nets import he_, mlp
from validation.setups import live
from validation.tasks import clicks, every, grains, heaps, molecules, pairings, sensors, spectra, table

zoo = Zoo("mlp", half="drill", proof=thrives())


def kinds(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, grains(seed), **{"lr": 5e-3, "steps": 50, **more})


def read(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, sensors(seed), **{"lr": 5e-3, "steps": 60, **more})


# --- narrow


class Heap(nn.Module):
    """Things of a set, each through a net of `mid` numbers, summed, and read."""

    def __init__(self, mid: int, mean: bool = False) -> None:
        super().__init__()
        self.each, self.mid, self.mean = nn.Linear(6, 32), nn.Linear(32, mid), mean
        self.read, self.out = nn.Linear(mid, 32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mid(F.gelu(self.each(x)))
        h = h.mean(dim=1) if self.mean else h.sum(dim=1) / 3
        return self.out(F.gelu(self.read(h)))


heap = zoo.healthy("heaps-sum-of-24", lambda s: live(Heap(24), heaps(s), lr=1e-2, steps=80))
zoo.sick(
    "heaps-sum-of-1",
    lambda s: live(Heap(1), heaps(s), lr=1e-2, steps=80),
    lags(0.05),
    "BOTTLENECK",
    layer=("mid", "read"),
    also=NARROW,
    control=heap,
)
zoo.healthy("heaps-mean-of-12", lambda s: live(Heap(12, True), heaps(s), lr=1e-2, steps=80))


class Bonds(nn.Module):
    """Messages of `mid` numbers over a matrix of bonds, beside what a node knows itself or without."""

    def __init__(self, mid: int, own: bool) -> None:
        super().__init__()
        self.enter, self.say, self.hear = nn.Linear(8, 32), nn.Linear(32, mid), nn.Linear(mid, 32)
        self.out, self.own = nn.Linear(32, 3), own

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        h = F.silu(self.enter(x))
        heard = F.silu(self.hear(bonds @ self.say(h) / bonds.sum(dim=2, keepdim=True)))
        return self.out(h + heard if self.own else heard)


def bonded(seed: int, mid: int, own: bool = False) -> Setup:
    return live(Bonds(mid, own), molecules(seed), lr=1e-2, steps=70)


bonds = zoo.healthy("molecules-messages-of-24", lambda s: bonded(s, 24))
zoo.healthy("molecules-messages-of-2-beside-themselves", lambda s: bonded(s, 2, True))
zoo.sick(
    "molecules-messages-of-1",
    lambda s: bonded(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("say", "hear"),
    also=NARROW,
    control=bonds,
)


class Heads(nn.Module):
    """Three heads on one trunk; each head may have a neck of `neck` numbers."""

    def __init__(self, trunk: int, neck: int = 16) -> None:
        super().__init__()
        self.enter, self.trunk = nn.Linear(14, 48), nn.Linear(48, trunk)
        self.necks = nn.ModuleList(nn.Linear(trunk, neck) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(neck, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.trunk(F.silu(self.enter(x))))
        return torch.cat([head(F.silu(neck(h))) for neck, head in zip(self.necks, self.heads, strict=True)], dim=1)


heads = zoo.healthy("sensors-three-heads-on-32", lambda s: read(s, Heads(32)))
zoo.sick(
    "sensors-three-heads-on-1",
    lambda s: read(s, Heads(1)),
    lags(0.1),
    "BOTTLENECK",
    layer=("trunk", "necks.0", "necks.1", "necks.2"),
    also={*NARROW, "DEAD"},
    control=heads,
)


class Variational(nn.Module):
    """A code with noise; the loss weighs its size a little."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.enter, self.mean, self.spread = nn.Linear(40, 48), nn.Linear(48, code), nn.Linear(48, code)
        self.grow, self.out = nn.Linear(code, 48), nn.Linear(48, 40)
        nn.init.constant_(self.spread.bias, -3.0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.enter(x))
        mean, spread = self.mean(h), self.spread(h).clamp(-8, 4).exp()
        return self.out(F.gelu(self.grow(mean + spread * torch.randn_like(mean))))


variational = zoo.healthy("spectra-variational-12", lambda s: live(Variational(12), spectra(s), lr=5e-3, steps=80))
zoo.sick(
    "spectra-variational-1",
    lambda s: live(Variational(1), spectra(s), lr=5e-3, steps=80),
    lags(0.1),
    "BOTTLENECK",
    layer=("mean", "spread", "grow"),
    also=NARROW,
    control=variational,
)


class Pairs(nn.Module):
    """Users and things as vectors of `size`; ids may be folded by a mistake in the reader."""

    def __init__(self, size: int, fold: int = 1000, shift: int = 0) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, size), nn.Embedding(24, size)
        self.mix, self.out, self.fold, self.shift = nn.Linear(3 * size, 48), nn.Linear(48, 1), fold, shift

    def forward(self, pair: Tensor) -> Tensor:
        user, item = pair.unbind(dim=1)
        u, v = self.user((user >> self.shift) % self.fold), self.item((item >> self.shift) % self.fold)
        return self.out(F.silu(self.mix(torch.cat([u, v, u * v], dim=1)))).squeeze(1)


def paired(seed: int, *how: int) -> Setup:
    return live(Pairs(*how), pairings(seed), lr=2e-2, steps=90)


pairs = zoo.healthy("pairings-vectors-of-8-joined", lambda s: paired(s, 8))
zoo.sick(
    "pairings-ids-shifted-by-four-bits",
    lambda s: paired(s, 8, 1000, 4),
    both(lasting(rank_at_most("user", 1.01), rank_at_most("item", 1.01)), lags(0.1)),
    *ONE_WAY,
    layer=("user", "item", "mix"),
    also={"DEAD"},
    control=pairs,
)

# --- flat and dead


class Gate(nn.Module):
    """Columns are weighed by a gate before they are read; `heat` multiplies it."""

    def __init__(self, heat: float, bias: float = 0.0) -> None:
        super().__init__()
        self.gate, self.body, self.out = nn.Linear(18, 48), nn.Linear(18, 48), nn.Linear(48, 7)
        self.gate.weight.data *= heat
        self.gate.bias.data += bias

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sigmoid(self.gate(x)) * F.gelu(self.body(x)))


gate = zoo.healthy("grains-columns-weighed", lambda s: kinds(s, Gate(1.0)))
zoo.healthy("grains-gates-shut-at-first", lambda s: kinds(s, Gate(1.0, -6.0)))
zoo.healthy("grains-gates-open-at-first", lambda s: kinds(s, Gate(1.0, 6.0)))
zoo.sick(
    "grains-gate-times-100",
    lambda s: kinds(s, Gate(100.0)),
    lasting(flat_behind("gate", "sigmoid", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="gate",
    also={"DEAD", "EXPLODING", "UNSTABLE"},
    control=gate,
)


class Clamped(nn.Module):
    """Bounds its features by hand."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.a, self.b, self.out, self.bound = nn.Linear(14, 48), nn.Linear(48, 48), nn.Linear(48, 6), bound

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.a(x))
        return self.out(self.b(x).clamp(-self.bound, self.bound) / self.bound)


clamped = zoo.healthy("sensors-clamped-at-5", lambda s: read(s, Clamped(5.0)))
zoo.sick(
    "sensors-clamped-at-a-thousandth",
    lambda s: read(s, Clamped(1e-3)),
    lags(0.05),
    "SATURATION",
    "VANISHING",
    "DEAD",
    layer="b",
    also={"EXPLODING", "UNSTABLE"},
    control=clamped,
)


class Table(nn.Module):
    """Fields as vectors beside numbers, a ReLU net behind them."""

    def __init__(self, low: float = 0.0, copies: bool = False) -> None:
        super().__init__()
        self.place, self.kind = nn.Embedding(40, 8), nn.Embedding(12, 4)
        self.fc1, self.fc2, self.out = nn.Linear(20, 48), nn.Linear(48, 48), nn.Linear(48, 5)
        he_(self)
        self.fc2.bias.data -= low
        if copies:
            nn.init.constant_(self.fc2.weight, 0.03)
            nn.init.zeros_(self.fc2.bias)
            self.out.weight.data = self.out.weight.data[:, :1].expand(5, 48).clone() / 7

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self.place(ids[:, 0]), self.kind(ids[:, 1]), numbers], dim=1)
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x)))))


def filled(seed: int, model: nn.Module, **more) -> Setup:
    return live(model, table(seed), **{"lr": 5e-3, "steps": 70, **more})


rows = zoo.healthy("table-vectors-and-numbers", lambda s: filled(s, Table()))
zoo.sick(
    "table-second-layer-pushed-down",
    lambda s: filled(s, Table(60.0), lr=2e-3),
    lasting(never_fires("fc2", 0.97)),
    "DEAD",
    layer="fc2",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=rows,
)
zoo.sick(
    "table-second-layer-all-alike",
    lambda s: filled(s, Table(copies=True), kind="SGD", lr=0.05, momentum=0.9),
    lasting(equal_units("fc2.weight")),
    "SYMMETRY",
    layer=("fc2", "out"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=rows,
)


class Bare(nn.Module):
    """Weights as parameters of the model itself."""

    def __init__(self, alike: bool) -> None:
        super().__init__()
        self.enter = nn.Parameter(torch.randn(18, 32) / 18**0.5)
        self.mid = nn.Parameter(torch.randn(32, 32) / 32**0.5)
        self.leave = nn.Parameter(torch.randn(32, 7) / 32**0.5)
        if alike:
            self.mid.data = torch.randn(1, 32).expand(32, 32).clone() / 32
            self.enter.data = torch.randn(18, 1).expand(18, 32).clone() / 18**0.5

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ self.enter) @ self.mid) @ self.leave


bare = zoo.healthy("grains-weights-of-the-model-itself", lambda s: kinds(s, Bare(False)))
zoo.sick(
    "grains-first-weights-of-the-model-alike",
    lambda s: kinds(s, Bare(True), kind="SGD", lr=0.05, momentum=0.9),
    lasting(equal_units("mid")),
    "SYMMETRY",
    "LOW_RANK",
    layer=("enter", "mid"),
    also={"BOTTLENECK"},
    control=bare,
)

# --- cut


class Hyper(nn.Module):
    """One net writes the weights of another from the sample; `copied` writes them into a layer's data."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.writer, self.copied = mlp([18, 24, 18 * 7], nn.SiLU), copied
        self.base = nn.Parameter(torch.randn(7, 18) / 6)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.writer(x).view(-1, 7, 18) / 6
        if self.copied:
            weights = weights.data
        return ((self.base + weights) @ x[:, :, None]).squeeze(2)


hyper = zoo.healthy("grains-weights-written-by-a-net", lambda s: kinds(s, Hyper(False)))
zoo.sick(
    "grains-weights-written-as-data",
    lambda s: kinds(s, Hyper(True)),
    lasting(no_gradient("writer.0", "writer.2")),
    "DISCONNECTED",
    layer=("writer.0", "writer.2"),
    also={"DEAD"},
    control=hyper,
)


class Chosen(nn.Module):
    """Takes the column that a scorer likes best: by its place, or by a soft choice."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.score, self.embed, self.out, self.soft = nn.Linear(18, 6), nn.Linear(18, 6 * 8), nn.Linear(8, 7), soft

    def forward(self, x: Tensor) -> Tensor:
        s, h = self.score(x), F.silu(self.embed(x)).view(-1, 6, 8)
        if self.soft:
            return self.out((s.softmax(dim=1)[:, :, None] * h).sum(dim=1))
        return self.out(h[torch.arange(len(x)), s.argmax(dim=1)])


chosen = zoo.healthy("grains-soft-choice", lambda s: kinds(s, Chosen(True), lr=1e-2))
zoo.sick(
    "grains-choice-by-place",
    lambda s: kinds(s, Chosen(False), lr=1e-2),
    lasting(no_gradient("score")),
    "DISCONNECTED",
    layer="score",
    also={"DEAD"},
    control=chosen,
)

# --- growing and dying


class Deep(nn.Module):
    """Layers of one width with a function of one's own between them."""

    def __init__(self, depth: int, gain: float, act, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(18 if i == 0 else width, width) for i in range(depth))
        self.out, self.act = nn.Linear(width, 7), act
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.act(layer(x))
        return self.out(x)


deep = zoo.healthy("grains-mish-4", lambda s: kinds(s, Deep(4, 1.5, F.mish)))
zoo.sick(
    "grains-squares-of-a-sigmoid-10",
    lambda s: kinds(s, Deep(10, 1.0, lambda z: torch.sigmoid(z) ** 2), kind="SGD", lr=0.02, momentum=0.9),
    both(lasting(gradient_ratio("layers.0", "layers.9", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"LOW_RANK", "SLOW"},
    control=deep,
)
zoo.sick(
    "grains-celu-10-gain-5",
    lambda s: kinds(s, Deep(10, 5.0, F.celu), lr=1e-6, steps=40),
    lasting(gradient_ratio("layers.0", "layers.9", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=deep,
)

# --- numbers, jumps, rates


def entropic(seed: int, eps: float) -> Setup:
    """Adds the entropy of the answers to the loss, by hand; a few rows make the net sure."""
    now = every(10, 6)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = z.softmax(dim=1)
        return F.cross_entropy(z, t) - 0.01 * -(p * (p + eps).log()).sum(dim=1).mean()

    def large(x: Tensor) -> Tensor:
        return torch.cat([3000 * x[:1], x[1:]]) if now() else x

    return live(mlp([18, 40, 7], nn.SiLU), grains(seed).mapped(large).with_loss(loss), lr=1e-3, steps=50)


calm = zoo.healthy("grains-no-entropy-by-hand", lambda s: kinds(s, mlp([18, 40, 7], nn.SiLU), lr=3e-3))
zoo.sick("grains-entropy-by-hand", lambda s: entropic(s, 0.0), breaks, "NUMERICAL", also={*JUMPS}, control=calm)


def outliers(seed: int, size: float) -> Setup:
    now = every(9, 4)

    def wrong(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (x, torch.cat([t[:1] * size, t[1:]])) if now() else (x, t)

    return live(Heads(32), sensors(seed).changed(wrong), lr=2e-3, steps=72)


steady = zoo.healthy("sensors-no-outliers", lambda s: outliers(s, 1.0))
zoo.sick(
    "sensors-one-target-times-5000", lambda s: outliers(s, 5000.0), gradient_norms_spread(30), *JUMPS, control=steady
)
zoo.sick(
    "sensors-rate-divided-by-the-number-of-samples",
    lambda s: read(s, Heads(32), lr=1e-9),
    does_not_move(steps=60),
    "SLOW",
    control=heads,
)

# --- odd and healthy


class Machine(nn.Module):
    """Fields as vectors; sums of products of pairs beside a linear part."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.single = nn.Embedding(100, 6), nn.Embedding(100, 1)
        self.net = mlp([30, 24, 1], nn.ReLU)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids + 20 * torch.arange(5)
        v = self.vectors(ids)
        pairs = 0.5 * (v.sum(dim=1).square() - v.square().sum(dim=1)).sum(dim=1)
        return pairs + self.single(ids).sum(dim=(1, 2)) + self.net(v.flatten(1)).squeeze(1)


zoo.healthy("clicks-factorisation-machine", lambda s: live(Machine(), clicks(s), lr=1e-2, steps=80), thrives(0.05))


class Mixture(nn.Module):
    """A soft choice of four nets, with a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.heat = nn.Linear(18, 4), nn.Parameter(torch.ones(()))
        self.nets = nn.ModuleList(mlp([18, 16, 7], nn.GELU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        p = (self.choose(x) / self.heat).softmax(dim=1)
        return sum(p[:, i : i + 1] * net(x) for i, net in enumerate(self.nets))


zoo.healthy("grains-soft-mixture-of-four", lambda s: kinds(s, Mixture()))


class Features(nn.Module):
    """Random waves of the input that are not trained, and a net on them."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.Buffer(torch.randn(18, 32) / 6)
        self.net = mlp([64, 32, 7], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        z = x @ self.waves
        return self.net(torch.cat([z.sin(), z.cos()], dim=1))


zoo.healthy("grains-random-waves", lambda s: kinds(s, Features()))


class Crossed(nn.Module):
    """Products with the input, layer by layer, beside a deep net."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(18, 18) for _ in range(3))
        self.deep, self.out = mlp([18, 32, 32], nn.ReLU), nn.Linear(50, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.cross:
            h = x * layer(h) + h
        return self.out(torch.cat([h, self.deep(x)], dim=1))


zoo.healthy("grains-crossed-and-deep", lambda s: kinds(s, Crossed()))


class Sparse(nn.Module):
    """A wide code of which the largest eight numbers are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(40, 96), nn.Linear(96, 40)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.enter(x))
        least = h.topk(16, dim=1).values[:, -1:]
        return self.out(h * (h >= least))


zoo.healthy("spectra-sparse-code", lambda s: live(Sparse(), spectra(s), lr=5e-3, steps=70))


class Tied(nn.Module):
    """The way back uses the matrix of the way there."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.shift = nn.Linear(40, 16), nn.Parameter(torch.zeros(40))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.there(x)) @ self.there.weight * 2 + self.shift


zoo.healthy("spectra-tied-weights", lambda s: live(Tied(), spectra(s), lr=5e-3, steps=70))
zoo.healthy(
    "grains-batch-norm-and-dropout",
    lambda s: kinds(
        s,
        nn.Sequential(
            nn.Linear(18, 48),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(48, 48),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(48, 7),
        ),
    ),
)


class Swish(nn.Module):
    """Activations written by hand: x times its sigmoid, and a tanh of half."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(14, 48), nn.Linear(48, 48), nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.b(x * torch.sigmoid(1.702 * x))
        return self.c(x * 0.5 * (1 + torch.tanh(0.8 * x)))


zoo.healthy("sensors-handmade-swish", lambda s: read(s, Swish()))
zoo.healthy("table-embeddings-sgd", lambda s: filled(s, Table(), kind="SGD", lr=0.05, momentum=0.9))
