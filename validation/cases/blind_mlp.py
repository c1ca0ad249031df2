# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of plants, laboratories and shops, with one fault each, and their twins.

Half: blind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from validation.case import Setup, Zoo
from validation.cases._blind_tasks import nodes, orders, plants, spectra, states, twins
from validation.evidence.live import breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, dead, equal_units, gradient_ratio, no_gradient, rank_at_most
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY
from validation.nets import he_, mlp
from validation.nets.programs import Plain
from validation.setups import live
from validation.tasks import every

zoo = Zoo("mlp", half="blind", proof=thrives())

# --- narrow


class Lines(nn.Module):
    """A spectrum as a few numbers and back."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.reads, self.code = nn.Linear(40, 40), nn.Linear(40, code)
        self.grows, self.writes = nn.Linear(code, 40), nn.Linear(40, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.writes(F.gelu(self.grows(self.code(F.gelu(self.reads(x))))))


def lines(seed: int, code: int) -> Setup:
    return live(Lines(code), spectra(seed), lr=5e-3, steps=90)


lines_twin = zoo.healthy("spectra-code-of-8", lambda s: lines(s, 8))
zoo.healthy("spectra-code-of-5-for-5-lines", lambda s: lines(s, 5))
zoo.sick(
    "spectra-code-of-1-for-5-lines",
    lambda s: lines(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("code", "grows"),
    also=NARROW,
    control=lines_twin,
)


class Shop(nn.Module):
    """Users and articles as vectors; a net over both. `users` of the table may be folded onto a few rows."""

    def __init__(self, size: int, fold: int = 1000) -> None:
        super().__init__()
        self.user, self.good = nn.Embedding(30, size), nn.Embedding(40, size)
        self.fc1, self.fc2, self.out = nn.Linear(3 * size, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.fold = fold

    def forward(self, user: Tensor, good: Tensor) -> Tensor:
        u, v = self.user(user % self.fold), self.good(good % self.fold)
        h = F.silu(self.fc1(torch.cat([u, v, u * v], dim=1)))
        return self.out(F.silu(self.fc2(h))).squeeze(1)


def shop(seed: int, size: int, fold: int = 1000) -> Setup:
    return live(Shop(size, fold), orders(seed), lr=1e-2, steps=100)


shop_twin = zoo.healthy("orders-vectors-of-8", lambda s: shop(s, 8))
zoo.sick(
    "orders-vectors-of-1",
    lambda s: shop(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("user", "good", "fc1"),
    also=NARROW,
    control=shop_twin,
)
zoo.sick(
    "orders-ids-hashed-into-two-buckets",
    lambda s: shop(s, 8, 2),
    both(lasting(rank_at_most("good", 1.01), rank_at_most("user", 1.01)), lags(0.1)),
    *ONE_WAY,
    layer=("user", "good", "fc1"),
    also={"DEAD"},
    control=shop_twin,
)


class Trunk(nn.Module):
    """One trunk, four heads with a layer each."""

    def __init__(self, shared: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(14, 64), nn.SiLU(), nn.Linear(64, shared))
        self.heads = nn.ModuleList(mlp([shared, 24, 1], nn.SiLU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], dim=1)


def trunk(seed: int, shared: int) -> Setup:
    return live(Trunk(shared), plants(seed, out=4), lr=1e-2, steps=90)


trunk_twin = zoo.healthy("plants-four-heads-on-32", lambda s: trunk(s, 32))
zoo.sick(
    "plants-four-heads-on-1",
    lambda s: trunk(s, 1),
    lags(0.1),
    "BOTTLENECK",
    layer=("trunk.2", *(f"heads.{i}.0" for i in range(4))),
    also=NARROW,
    control=trunk_twin,
)


class Factored(nn.Module):
    """A compressed layer: the product of two thin ones."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.enter = nn.Linear(18, 48)
        self.thin, self.wide, self.out = nn.Linear(48, rank, bias=False), nn.Linear(rank, 48), nn.Linear(48, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.wide(self.thin(F.relu(self.enter(x))))))


def compressed(seed: int, rank: int) -> Setup:
    return live(Factored(rank), states(seed), lr=1e-2, steps=80)


compressed_twin = zoo.healthy("engine-layer-compressed-to-rank-16", lambda s: compressed(s, 16), thrives(most_dead=0.5))
zoo.sick(
    "engine-layer-compressed-to-rank-1",
    lambda s: compressed(s, 1),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("thin", "wide"),
    control=compressed_twin,
)


class Graph(nn.Module):
    """Rounds of messages along edges, summed or averaged at each node, with or without a way past them."""

    def __init__(self, message: int, rounds: int = 2, mean: bool = True, own: float = 0.0, gain: float = 1.0) -> None:
        super().__init__()
        self.mean, self.own = mean, own
        self.enter, self.leave = nn.Linear(10, 24), nn.Linear(24, 4)
        self.send = nn.ModuleList(nn.Linear(24, message) for _ in range(rounds))
        self.take = nn.ModuleList(nn.Linear(message, 24) for _ in range(rounds))
        for layer in (*self.send, *self.take):
            nn.init.orthogonal_(layer.weight, gain)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enter(x)
        source, to = edges
        for send, take in zip(self.send, self.take, strict=True):
            said = send(x)
            heard = torch.zeros_like(said).index_add(0, to, said[source])
            if self.mean:
                heard = heard / torch.bincount(to, minlength=len(x)).clamp_min(1)[:, None]
            x = self.own * x + F.leaky_relu(take(heard), 0.3)
        return self.leave(x)


def graph(seed: int, model: Graph, **more) -> Setup:
    return live(model, nodes(seed), **{"lr": 5e-3, "steps": 60, **more})


graph_twin = zoo.healthy("nodes-messages-of-16", lambda s: graph(s, Graph(16)))
zoo.sick(
    "nodes-messages-of-1",
    lambda s: graph(s, Graph(1)),
    lags(0.1),
    "BOTTLENECK",
    layer=("send.0", "take.0", "send.1", "take.1"),
    also=NARROW,
    control=graph_twin,
)

# --- dead and flat


def prior(seed: int, at: int, value: float) -> Setup:
    """The logarithm of how rare the classes are belongs to the last layer."""
    model = he_(Plain([18, 56, 56, 7], torch.relu))
    model.layers[at].bias.data += value
    return live(model, states(seed), lr=3e-3, steps=60)


prior_twin = zoo.healthy("engine-prior-in-the-last-layer", lambda s: prior(s, 2, -4.0))
zoo.sick(
    "engine-prior-in-a-hidden-layer",
    lambda s: prior(s, 1, -40.0),
    lasting(never_fires("layers.1", 0.97)),
    "DEAD",
    layer="layers.1",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=prior_twin,
)


def gated(seed: int, threshold: float) -> Setup:
    """What is below a threshold is taken for noise; the threshold is in another unit."""
    model = nn.Sequential(
        nn.Linear(14, 48), nn.SiLU(), nn.Linear(48, 48), nn.Threshold(threshold, 0.0), nn.Linear(48, 1)
    )
    return live(he_(model), plants(seed), lr=5e-3, steps=60)


gated_twin = zoo.healthy("plants-threshold-0.05", lambda s: gated(s, 0.05))
zoo.sick(
    "plants-threshold-50",
    lambda s: gated(s, 50.0),
    lasting(dead("3", 0.99), no_gradient("0", "2")),
    "DEAD",
    layer="2",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=gated_twin,
)


def kelvin(seed: int, level: float, spread: float) -> Setup:
    """Temperatures as they are measured."""
    task = plants(seed).mapped(lambda x: level + spread * x)
    return live(Plain([14, 48, 48, 1], torch.tanh), task, lr=1e-2, steps=90)


kelvin_twin = zoo.healthy("plants-temperatures-standardised", lambda s: kelvin(s, 0.0, 1.0))
zoo.sick(
    "plants-temperatures-in-kelvin",
    lambda s: kelvin(s, 300.0, 8.0),
    lasting(flat_behind("layers.0", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    "DEAD",
    layer="layers.0",
    also={"EXPLODING", "UNSTABLE", "LOW_RANK", "BOTTLENECK", "DISCONNECTED"},
    control=kelvin_twin,
)


def wide_draw(seed: int, std: float) -> Setup:
    """A coder of sigmoids; `std` was meant to be divided by the root of the width."""
    model = nn.Sequential(nn.Linear(40, 48), nn.Sigmoid(), nn.Linear(48, 48), nn.Sigmoid(), nn.Linear(48, 40))
    nn.init.normal_(model[2].weight, std=std)
    return live(model, spectra(seed), lr=5e-3, steps=80)


wide_twin = zoo.healthy("spectra-sigmoids-drawn-small", lambda s: wide_draw(s, 0.3))
zoo.sick(
    "spectra-sigmoids-drawn-with-deviation-12",
    lambda s: wide_draw(s, 12.0),
    lasting(flat_behind("2", "sigmoid", 0.8)),
    "SATURATION",
    "VANISHING",
    layer="2",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=wide_twin,
)

# --- cut


class Experts(nn.Module):
    """A gate chooses one of three experts; `hard` makes the choice a vector of zeros and a one."""

    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.gate, self.hard = nn.Linear(18, 3), hard
        self.experts = nn.ModuleList(mlp([18, 32, 7], nn.GELU) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        p = self.gate(x).softmax(dim=1)
        if self.hard:
            p = F.one_hot(p.argmax(dim=1), 3).float()
        return torch.einsum("be,bec->bc", p, torch.stack([expert(x) for expert in self.experts], dim=1))


experts_twin = zoo.healthy("engine-three-experts-mixed", lambda s: live(Experts(False), states(s), lr=5e-3, steps=60))
zoo.sick(
    "engine-three-experts-by-argmax",
    lambda s: live(Experts(True), states(s), lr=5e-3, steps=60),
    lasting(no_gradient("gate")),
    "DISCONNECTED",
    layer="gate",
    also={"DEAD"},
    control=experts_twin,
)


class Foreign(nn.Module):
    """Smooths its features, in torch or through a library that knows arrays only."""

    def __init__(self, arrays: bool) -> None:
        super().__init__()
        self.enter, self.mid, self.out, self.arrays = nn.Linear(40, 48), nn.Linear(48, 48), nn.Linear(48, 40), arrays

    def smooth(self, h: Tensor) -> Tensor:
        if self.arrays:
            values = h.detach().numpy()
            return torch.from_numpy((values[:, :-1] + values[:, 1:]) / 2)
        return (h[:, :-1] + h[:, 1:]) / 2

    def forward(self, x: Tensor) -> Tensor:
        h = F.pad(self.smooth(F.gelu(self.enter(x))), (0, 1))
        return self.out(F.gelu(self.mid(h)))


foreign_twin = zoo.healthy("spectra-smoothed-in-torch", lambda s: live(Foreign(False), spectra(s), lr=5e-3, steps=60))
zoo.sick(
    "spectra-smoothed-in-arrays",
    lambda s: live(Foreign(True), spectra(s), lr=5e-3, steps=60),
    lasting(no_gradient("enter")),
    "DISCONNECTED",
    layer="enter",
    also={"DEAD"},
    control=foreign_twin,
)

# --- growing and dying

zoo.sick(
    "nodes-six-rounds-of-sums",
    lambda s: graph(s, Graph(24, 6, mean=False, gain=1.2), lr=1e-5, steps=40),
    lasting(gradient_ratio("take.0", "take.5", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=graph_twin,
)


def stacked(seed: int, depth: int, gain: float, act=torch.tanh, **more) -> Setup:
    model = Plain([18, *[48] * depth, 7], act)
    for layer in model.layers:
        nn.init.orthogonal_(layer.weight, gain)
    return live(model, states(seed), **{"lr": 2e-3, "steps": 50, **more})


stacked_twin = zoo.healthy("engine-orthogonal-4-layers", lambda s: stacked(s, 4, 1.2))
zoo.sick(
    "engine-orthogonal-10-layers-gain-2.8",
    lambda s: stacked(s, 10, 2.8, F.leaky_relu, lr=1e-6),
    lasting(gradient_ratio("layers.0", "layers.9", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL"},
    control=stacked_twin,
)


def softsigns(seed: int, depth: int, drawn: bool, **more) -> Setup:
    model = Plain([18, *[40] * depth, 7], F.softsign)
    if drawn:
        for layer in model.layers:
            nn.init.orthogonal_(layer.weight, 1.5)
    return live(model, states(seed), **{"lr": 5e-3, "steps": 60, **more})


softsign_twin = zoo.healthy("engine-softsign-4-layers-drawn-well", lambda s: softsigns(s, 4, True))
zoo.sick(
    "engine-softsign-12-layers-default-draw",
    lambda s: softsigns(s, 12, False, kind="SGD", lr=0.05, momentum=0.9),
    both(lasting(gradient_ratio("layers.0", "layers.11", below=10**-2.5)), lags(0.2)),
    "VANISHING",
    also={"LOW_RANK", "SLOW"},
    control=softsign_twin,
)


def lengths(seed: int, depth: int, length: float, **more) -> Setup:
    """Weights as a direction and a length of each row; the length was copied from a much wider net."""
    model = nn.Sequential()
    for i in range(depth):
        layer = weight_norm(nn.Linear(14 if i == 0 else 40, 40))
        layer.parametrizations.weight.original0.data.fill_(length)
        model.append(layer).append(nn.ELU())
    return live(model.append(nn.Linear(40, 1)), plants(seed), **{"lr": 3e-3, "steps": 60, **more})


length_twin = zoo.healthy("plants-rows-of-length-1.3", lambda s: lengths(s, 4, 1.3))
zoo.sick(
    "plants-rows-of-length-0.08",
    lambda s: lengths(s, 5, 0.08, lr=3e-4),
    both(lasting(gradient_ratio("0", "8", below=10**-2.5)), lags(0.1)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=length_twin,
)

# --- equal


def even_start(seed: int, even: bool) -> Setup:
    """Every unit begins as the mean of what comes in, and counts alike for each class."""
    model = Plain([18, 48, 32, 7], torch.tanh)
    if even:
        nn.init.constant_(model.layers[1].weight, 1 / 7)
        nn.init.zeros_(model.layers[1].bias)
        model.layers[2].weight.data = torch.randn(7, 1).expand(7, 32).clone() / 6
    return live(model, states(seed), "SGD", 0.1, 60, momentum=0.9)


even_twin = zoo.healthy("engine-tanh-48-32-sgd", lambda s: even_start(s, False))
zoo.sick(
    "engine-second-layer-starts-as-means",
    lambda s: even_start(s, True),
    both(lasting(equal_units("layers.1.weight")), lags(0.1)),
    "SYMMETRY",
    layer=("layers.1", "layers.2"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=even_twin,
)


class Crowd(nn.Module):
    """Eight small nets in one tensor each, whose answers are averaged."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1 if copies else 8, 18, 2).repeat(8 if copies else 1, 1, 1) / 18**0.5)
        self.last = nn.Parameter(torch.randn(1 if copies else 8, 2, 7).repeat(8 if copies else 1, 1, 1) / 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(torch.einsum("bi,eij->ebj", x, self.first))
        return torch.einsum("ebj,ejk->bk", h, self.last)


def crowd(seed: int, copies: bool) -> Setup:
    return live(Crowd(copies), states(seed), "SGD", 0.05, 80, momentum=0.9)


crowd_twin = zoo.healthy("engine-eight-small-nets", lambda s: crowd(s, False))
zoo.sick(
    "engine-eight-copies-of-a-small-net",
    lambda s: crowd(s, True),
    both(lasting(equal_units("first"), equal_units("last")), lags(0.1)),
    "SYMMETRY",
    layer=("first", "last"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=crowd_twin,
)

# --- numbers


class Distance(nn.Module):
    """How far two measurements are apart behind a net; `eps` keeps the root from zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.Linear(48, 16, bias=False))
        self.scale, self.eps = nn.Linear(1, 1), eps
        nn.init.constant_(self.scale.weight, -1.0)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        away = ((self.body(a) - self.body(b)).square().sum(dim=1, keepdim=True) + self.eps).sqrt()
        return self.scale(away)


def pairs(seed: int, eps: float) -> Setup:
    """Now and then somebody is compared with the very same measurement."""
    now = every(16, 7)

    def same(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (x[0], torch.cat([x[0][:2], x[1][2:]])) if now() else x

    return live(Distance(eps), twins(seed).mapped(same), lr=1e-2, steps=90)


pairs_twin = zoo.healthy("twins-distance-with-eps", lambda s: pairs(s, 1e-8))
zoo.sick("twins-distance-of-the-very-same", lambda s: pairs(s, 0.0), breaks, "NUMERICAL", control=pairs_twin)


def by_hand(seed: int, shift: bool) -> Setup:
    """A softmax by hand in half precision, with the largest logit taken off or not."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        z = 3 * z.half()
        e = (z - z.amax(dim=1, keepdim=True)).exp() if shift else z.exp()
        p = e.gather(1, t[:, None]).squeeze(1) / e.sum(dim=1)
        return -(p.float() + 1e-6).log().mean()

    return live(mlp([18, 64, 7], nn.ReLU), states(seed).with_loss(loss), lr=1e-2, steps=90)


by_hand_twin = zoo.healthy("engine-own-softmax-largest-taken-off", lambda s: by_hand(s, True))
zoo.sick(
    "engine-own-softmax-overflows",
    lambda s: by_hand(s, False),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE"},
    control=by_hand_twin,
)

# --- jumps and rates


def weighed(seed: int, tail: float) -> Setup:
    """Samples count by one over the chance that they were drawn with; some chances are tiny."""
    random = torch.Generator().manual_seed(seed + 40)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        chance = torch.rand(len(t), 1, generator=random) ** tail
        return ((y - t).square() / chance).mean()

    return live(mlp([14, 48, 48, 1], nn.SiLU), plants(seed).with_loss(loss), lr=2e-3, steps=70)


weighed_twin = zoo.healthy("plants-weights-of-one", lambda s: weighed(s, 0.0))
zoo.sick(
    "plants-weights-by-one-over-tiny-chances",
    lambda s: weighed(s, 2.5),
    gradient_norms_spread(30),
    *JUMPS,
    control=weighed_twin,
)


def z_scores(seed: int, least: float) -> Setup:
    """Readings in units of the batch's deviation; for a while a meter stands almost still."""
    now = every(12, 6)

    def standardise(x: Tensor) -> Tensor:
        std = torch.full((14,), 1.0)
        if now():
            std[3] = 2e-4
        return x / std.clamp_min(least)

    return live(mlp([14, 48, 48, 1], nn.SiLU), plants(seed).mapped(standardise), lr=3e-3, steps=72)


z_twin = zoo.healthy("plants-deviation-at-least-a-half", lambda s: z_scores(s, 0.5))
zoo.sick(
    "plants-divided-by-the-deviation-of-a-still-meter",
    lambda s: z_scores(s, 0.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=z_twin,
)


def adagrad(seed: int, start: float) -> Setup:
    return live(mlp([18, 48, 48, 7], nn.GELU), states(seed), "Adagrad", 0.02, 50, initial_accumulator_value=start)


adagrad_twin = zoo.healthy("engine-adagrad-from-zero", lambda s: adagrad(s, 0.0))
zoo.sick(
    "engine-adagrad-from-an-old-sum", lambda s: adagrad(s, 1e9), does_not_move(steps=50), "SLOW", control=adagrad_twin
)
