# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Densities, rankings, splines, waves, counts, distillation, memories: odd nets and losses that train well.

Half: drill.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._drill_tasks import bent, couples, forks, kinds, moons, relief, triples, visitors
from validation.evidence import thrives
from validation.nets import mlp
from validation.setups import live

zoo = Zoo("mlp", half="drill", proof=thrives())


# --- densities


class Bells(nn.Module):
    """Weights, places and logarithms of widths of a few bells."""

    def __init__(self, count: int, act=nn.Tanh, width: int = 32) -> None:
        super().__init__()
        self.body, self.count = mlp([1, width, 3 * count], act), count

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.body(x).chunk(3, dim=1)


def under_bells(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    weight, place, width = out
    logs = weight.log_softmax(1) - width - (y - place).square() / (2 * (2 * width).exp())
    return -logs.logsumexp(dim=1).mean()


def belled(seed: int, count: int, **more) -> Setup:
    return live(Bells(count), forks(seed).with_loss(under_bells), **{"lr": 1e-2, "steps": 90, **more})


zoo.healthy("forks-under-five-bells", lambda s: belled(s, 5))


class Own(nn.Module):
    """A mean and a logarithm of the variance, clamped or not."""

    def __init__(self, low: float | None) -> None:
        super().__init__()
        self.body, self.low = mlp([8, 40, 4], nn.SiLU), low

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.body(x).chunk(2, dim=1)
        return mean, spread if self.low is None else spread.clamp(self.low, 4.0)


def gaussian(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    mean, spread = out
    return (spread + (y - mean).square() * (-spread).exp()).mean() / 2


zoo.healthy("bent-with-a-clamped-spread", lambda s: live(Own(-3.0), bent(s).with_loss(gaussian), lr=1e-2, steps=80))


class Coupling(nn.Module):
    """Points are bent to a normal cloud, one coordinate by the other; gives what a point costs."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp([1, 24, 2], nn.Tanh) for _ in range(layers))
        for net in self.nets:
            nn.init.zeros_(net[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        cost = x.new_zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            scale, shift = net(a).chunk(2, dim=1)
            scale = torch.tanh(scale)
            x, cost = torch.cat([b * scale.exp() + shift, a], dim=1), cost - scale.squeeze(1)
        return (cost + x.square().sum(dim=1) / 2 + math.log(2 * math.pi)).mean()


zoo.healthy("moons-bent-to-a-cloud", lambda s: live(Coupling(6), moons(s), lr=1e-2, steps=80))


# --- comparisons


class Twins(nn.Module):
    """One net for both views; similarities of all pairs, by a temperature."""

    def __init__(self, heat: float, learned: bool = False) -> None:
        super().__init__()
        self.body = mlp([20, 48, 16], nn.GELU)
        self.heat = nn.Parameter(torch.tensor(math.log(heat)), requires_grad=learned)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = (F.normalize(self.body(x), dim=1) for x in (a, b))
        return a @ b.T * self.heat.exp()


zoo.healthy("couples-by-a-learned-temperature", lambda s: live(Twins(14.3, True), couples(s), lr=3e-3, steps=60))


class Places(nn.Module):
    """Things of a triple, each as a place."""

    def __init__(self, unit: bool) -> None:
        super().__init__()
        self.body, self.unit = mlp([16, 40, 8], nn.ReLU), unit

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return F.normalize(h, dim=-1) if self.unit else h


def better(z: Tensor, _: Tensor) -> Tensor:
    """Bayesian personalised ranking: the nearer one wins."""
    a, p, n = z.unbind(1)
    return -F.logsigmoid((a * p).sum(1) - (a * n).sum(1)).mean()


zoo.healthy("triples-who-wins", lambda s: live(Places(False), triples(s).with_loss(better), lr=2e-3, steps=60))


# --- functions of their own


class Sines(nn.Module):
    """Sines all along, as drawn for them."""

    def __init__(self, omega: float = 20.0) -> None:
        super().__init__()
        self.layers, self.out, self.omega = (
            nn.ModuleList([nn.Linear(2, 48), nn.Linear(48, 48)]),
            nn.Linear(48, 1),
            omega,
        )
        nn.init.uniform_(self.layers[0].weight, -0.5, 0.5)
        for layer in (self.layers[1], self.out):
            nn.init.uniform_(layer.weight, -((6 / 48) ** 0.5) / omega, (6 / 48) ** 0.5 / omega)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(self.omega * layer(x))
        return self.out(x)


class Bumps(nn.Module):
    """Every edge has a curve of its own, a sum of bumps, beside a plain way."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 8))
        pairs = list(pairwise(sizes))
        self.base = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)
        self.curves = nn.ParameterList(0.1 * torch.randn(a * 8, b) / a**0.5 for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for base, curve in zip(self.base, self.curves, strict=True):
            bumps = (-(2 * (x[..., None] - self.grid)).square()).exp().flatten(1)
            x = base(F.silu(x)) + bumps @ curve
        return x


zoo.healthy("relief-by-sines", lambda s: live(Sines(), relief(s), lr=1e-3, steps=90))
zoo.healthy("bent-by-curves-on-edges", lambda s: live(Bumps((8, 12, 2)), bent(s), lr=1e-2, steps=80))


class Named(nn.Module):
    """A class in a table of codes and answers that it looks up by distance."""

    def __init__(self, heat: float) -> None:
        super().__init__()
        self.body, self.heat = mlp([12, 32, 10], nn.Tanh), heat
        self.keys, self.values = nn.Parameter(torch.randn(24, 10)), nn.Parameter(torch.randn(24, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (self.heat * self.body(x) @ self.keys.T).softmax(dim=1) @ self.values


zoo.healthy("kinds-looked-up-in-a-sharp-memory", lambda s: live(Named(3.0), kinds(s), lr=5e-3, steps=80))


# --- losses


def plain_net(out: int = 6, dim: int = 12, act=nn.ReLU) -> nn.Module:
    return mlp([dim, 48, 48, out], act)


zoo.healthy("visitors-counted", lambda s: live(plain_net(1, 8, nn.Tanh), visitors(s), lr=5e-3, steps=80))
zoo.healthy(
    "kinds-two-at-a-time-by-sgd", lambda s: live(plain_net(), kinds(s, batch=2), kind="SGD", lr=0.03, steps=100)
)


# --- with a teacher, a body that stays, codes, norms


def distilled(seed: int, heat: float) -> Setup:
    teacher = mlp([12, 64, 6], nn.ReLU).requires_grad_(False)
    teacher[0].weight.mul_(2)
    teacher[2].weight.mul_(6)
    student = mlp([12, 24, 6], nn.ReLU)

    def taught(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, teacher(x)

    def loss(z: Tensor, wanted: Tensor) -> Tensor:
        return F.kl_div((z / heat).log_softmax(1), (wanted / heat).softmax(1), reduction="batchmean") * heat**2

    return live(student, kinds(seed).changed(taught).with_loss(loss), lr=5e-3, steps=80)


zoo.healthy("kinds-from-a-teacher", lambda s: distilled(s, 3.0))


class Gates(nn.Module):
    """Highway layers whose gates start far on one side, as their authors advise."""

    def __init__(self, depth: int, bias: float) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(12, 32), nn.Linear(32, 6)
        self.new = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        for gate in self.gate:
            nn.init.constant_(gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for new, gate in zip(self.new, self.gate, strict=True):
            open_ = torch.sigmoid(gate(x))
            x = open_ * torch.tanh(new(x)) + (1 - open_) * x
        return self.out(x)


zoo.healthy("kinds-highway-of-8", lambda s: live(Gates(8, -3.0), kinds(s), lr=5e-3, steps=70))
