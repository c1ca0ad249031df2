# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Healthy dense networks that look as if something were wrong with them.

Half: blind.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import clouds, nodes, orders, plants, spectra, states, twins
from validation.evidence import thrives
from validation.nets import mlp
from validation.setups import frozen, live
from validation.tasks import drawn_once

zoo = Zoo("mlp", half="blind", proof=thrives())

# --- narrow, and enough


class Tapering(nn.Module):
    """From wide to narrow, as a classifier of few classes does."""

    def __init__(self) -> None:
        super().__init__()
        widths = (18, 96, 48, 24, 12, 7)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.elu(layer(x))
        return self.layers[-1](x)


zoo.healthy("engine-tapering-to-seven", lambda s: live(Tapering(), states(s), lr=3e-3, steps=60))


class Variational(nn.Module):
    """A code of five numbers with noise, and what it costs."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([40, 48, 10], nn.GELU), mlp([5, 48, 40], nn.GELU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
        return self.decoder(code), mean, log_var


def bound(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    rebuilt, mean, log_var = out
    cost = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(dim=1).mean()
    return 20 * F.mse_loss(rebuilt, x) + 0.2 * cost


zoo.healthy(
    "spectra-variational-code-of-5", lambda s: live(Variational(), spectra(s).with_loss(bound), lr=5e-3, steps=80)
)
zoo.healthy(
    "plants-one-line-is-enough",
    lambda s: live(
        mlp([14, 32, 1, 16, 1], nn.Tanh),
        plants(s).changed(lambda x, _t: (x, torch.tanh(x[:, :1] - x[:, 1:2]))),
        lr=1e-2,
        steps=80,
    ),
)


def screened(seed: int) -> Setup:
    """Of sixty columns three count; the first weights of the others go to nothing."""
    random = drawn_once(seed, 90)

    def widen(x: Tensor, _t: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(x), 46, generator=random)
        return torch.cat([x, noise], dim=1), x[:, :1] * x[:, 1:2] + x[:, 2:3]

    return live(mlp([60, 32, 1], nn.SiLU), plants(seed).changed(widen), lr=5e-3, steps=100, weight_decay=0.5)


zoo.healthy("plants-three-of-sixty-columns", screened)

# --- frozen, adapted, tied


class Low(nn.Module):
    """A frozen layer with a low-rank change that starts at nothing."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.base = nn.Linear(fan_in, fan_out).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(fan_in, 4, bias=False), nn.Linear(4, fan_out, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 4 * self.lora_b(self.lora_a(x))


zoo.healthy(
    "engine-low-rank-changes-of-a-frozen-net",
    lambda s: live(
        nn.Sequential(Low(18, 64), nn.GELU(), Low(64, 64), nn.GELU(), nn.Linear(64, 7)), states(s), lr=5e-3, steps=60
    ),
)
zoo.healthy(
    "engine-frozen-backbone",
    lambda s: live(
        frozen(nn.Sequential(nn.Linear(18, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 7)), "0", "2"),
        states(s),
        lr=1e-2,
        steps=60,
    ),
)
zoo.healthy(
    "engine-only-biases-are-tuned",
    lambda s: live(only_biases(mlp([18, 64, 64, 7], nn.GELU)), states(s), lr=3e-2, steps=80),
    thrives(0.05),
)


def only_biases(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias") or name.startswith("4")
    return model


class Mirrored(nn.Module):
    """A coder whose way back is its way in, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(40, 24), nn.Linear(24, 8)
        self.back = nn.Parameter(torch.zeros(40))

    def forward(self, x: Tensor) -> Tensor:
        code = self.second(torch.tanh(self.first(x)))
        return F.linear(torch.tanh(F.linear(code, self.second.weight.T)), self.first.weight.T, self.back)


zoo.healthy("spectra-tied-coder", lambda s: live(Mirrored(), spectra(s), lr=5e-3, steps=100))

# --- chosen, sparse, several


class Mixture(nn.Module):
    """Two of six experts for each row, weighed by the router, and a price for using few."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.out = nn.Linear(18, 6), nn.Linear(32, 7)
        self.experts = nn.ModuleList(mlp([18, 24, 32], nn.GELU) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p = self.router(x).softmax(dim=1)
        best, at = p.topk(2, dim=1)
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        said = said.gather(1, at[..., None].expand(-1, -1, 32))
        return self.out((best[..., None] * said).sum(dim=1)), p.mean(dim=0)


def balanced(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
    return F.cross_entropy(out[0], t) + 0.1 * (6 * out[1].square().sum() - 1)


zoo.healthy("engine-two-of-six-experts", lambda s: live(Mixture(), states(s).with_loss(balanced), lr=5e-3, steps=60))


class Large(nn.Module):
    """Tables of which most rows are never asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.good = nn.Embedding(5000, 12), nn.Embedding(5000, 12)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.good.weight, std=0.3)
        self.net = mlp([36, 48, 1], nn.SiLU)

    def forward(self, user: Tensor, good: Tensor) -> Tensor:
        u, v = self.user(user), self.good(good)
        return self.net(torch.cat([u, v, u * v], dim=1)).squeeze(1)


zoo.healthy("orders-tables-of-5000-rows", lambda s: live(Large(), orders(s), "Adam", 1e-2, 100))


class Siamese(nn.Module):
    """One net for both sides; a product of what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp([20, 48, 24], nn.ReLU), nn.Linear(24, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.body(a) * self.body(b))


zoo.healthy("twins-siamese", lambda s: live(Siamese(), twins(s), lr=5e-3, steps=80), thrives(most_dead=0.5))


class Stopped(nn.Module):
    """Guesses one view from the other; the other side gets no gradient from it, in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.guess = mlp([20, 48, 16], nn.SiLU), mlp([16, 16, 16], nn.SiLU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.body(a), self.body(b)
        near = F.cosine_similarity(self.guess(za), zb.detach(), dim=1)
        return near + F.cosine_similarity(self.guess(zb), za.detach(), dim=1)


def views(seed: int) -> Setup:
    task = twins(seed).changed(lambda x, _t: ((x[0], x[0] + 0.3 * x[1]), torch.zeros(len(x[0]), 1)))
    return live(Stopped(), task.with_loss(lambda near, _t: 2 - near.mean()), lr=2e-3, steps=60)


zoo.healthy("twins-views-with-a-stop", views)


class Neighbours(nn.Module):
    """Two rounds over edges by scatter, with a way past each."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(10, 24), nn.Linear(24, 4)
        self.rounds = nn.ModuleList(nn.Linear(48, 24) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.rounds:
            count = torch.bincount(edges[1], minlength=len(x)).clamp(min=1)[:, None]
            heard = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / count
            x = x + F.relu(layer(torch.cat([x, heard], dim=1)))
        return self.leave(x)


zoo.healthy("nodes-scatter-mean", lambda s: live(Neighbours(), nodes(s), lr=5e-3, steps=60))


class Couplings(nn.Module):
    """A density by six couplings that start as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp([2, 32, 4], nn.SiLU) for _ in range(6))
        for net in self.nets:
            nn.init.zeros_(net[2].weight)
            nn.init.zeros_(net[2].bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            s, t = net(a).chunk(2, dim=1)
            x, total = torch.cat([b * s.tanh().exp() + t, a], dim=1), total + s.tanh().sum(dim=1)
        return x, total


zoo.healthy(
    "clouds-couplings-that-start-as-nothing",
    lambda s: live(
        Couplings(),
        clouds(s).with_loss(lambda out, _t: 8 + 0.5 * out[0].square().sum(dim=1).mean() - out[1].mean()),
        lr=5e-3,
        steps=80,
    ),
)

# --- rates, noise, sizes

zoo.healthy(
    "engine-dropout-0.6-and-decay",
    lambda s: live(
        nn.Sequential(nn.Linear(18, 128), nn.ReLU(), nn.Dropout(0.6), nn.Linear(128, 7)),
        states(s),
        lr=5e-3,
        steps=80,
        weight_decay=0.3,
    ),
)
zoo.healthy(
    "engine-warm-up-then-cosine-under-a-limit",
    lambda s: live(
        mlp([18, 64, 64, 7], nn.GELU),
        states(s),
        lr=1e-2,
        steps=100,
        clip=0.3,
        rate=lambda t: min((t + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * min(1.0, t / 100))),
    ),
)
zoo.healthy(
    "plants-targets-of-a-thousand-that-train",
    lambda s: live(
        nn.Sequential(mlp([14, 64, 64, 1], nn.SiLU), Unit(300.0, 1000.0)),
        plants(s).changed(lambda x, t: (x, 1000 + 300 * t)),
        lr=5e-3,
        steps=80,
    ),
)


class Unit(nn.Module):
    """Puts the unit of the targets back."""

    def __init__(self, spread: float, level: float) -> None:
        super().__init__()
        self.spread, self.level = spread, level

    def forward(self, x: Tensor) -> Tensor:
        return self.level + self.spread * x


zoo.healthy(
    "plants-loss-of-a-millionth",
    lambda s: live(mlp([14, 48, 48, 1], nn.SiLU), plants(s).scaled(1e-6), "Adam", 5e-3, 80),
)
zoo.healthy(
    "engine-labels-smoothed",
    lambda s: live(
        mlp([18, 64, 7], nn.GELU),
        states(s).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.2)),
        lr=5e-3,
        steps=60,
    ),
)
zoo.healthy(
    "engine-batches-of-2",
    lambda s: live(mlp([18, 48, 7], nn.Tanh), states(s, batch=2), lr=3e-3, steps=100),
    thrives(0.1),
)


class Max(nn.Module):
    """Each unit is the largest of four lines; the others rest."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self.out = nn.Linear(18, 160), nn.Linear(40, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lines(x).unflatten(1, (40, 4)).amax(dim=2))


zoo.healthy("engine-largest-of-four-lines", lambda s: live(Max(), states(s), lr=5e-3, steps=60))
