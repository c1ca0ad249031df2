# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of farms, stars, loans and portraits, with one fault each, and their twins.

Half: sealed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._sealed_tasks import gusts, loans, meshes, portraits, races, rosters, shoals, soils, stars
from validation.evidence.live import breaks, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, dead, equal_units, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY
from validation.nets import he_, mlp
from validation.nets.programs import Plain
from validation.setups import live
from validation.tasks import every

zoo = Zoo("mlp", half="sealed", proof=thrives())

# --- narrow


class Variational(nn.Module):
    """A row as a mean and a deviation of a few numbers, one draw of which is read back."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.enc, self.mu, self.log_var = nn.Linear(32, 48), nn.Linear(48, size), nn.Linear(48, size)
        self.dec, self.out = nn.Linear(size, 48), nn.Linear(48, 32)
        nn.init.constant_(self.log_var.bias, -4.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.silu(self.enc(x))
        mu, log_var = self.mu(h), self.log_var(h)
        z = mu + (log_var / 2).exp() * torch.randn_like(mu)
        return self.out(F.silu(self.dec(z))), mu, log_var


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    y, mu, log_var = out
    kl = 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(dim=1).mean()
    return F.mse_loss(y, x) + 1e-4 * kl


def variational(seed: int, size: int) -> Setup:
    return live(Variational(size), rosters(seed).with_loss(elbo), lr=5e-3, steps=80)


vae = zoo.healthy("rosters-variational-10", lambda s: variational(s, 10))
zoo.healthy("rosters-variational-6-for-6-needs", lambda s: variational(s, 6))
zoo.sick(
    "rosters-variational-1-for-6-needs",
    lambda s: variational(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("mu", "dec", "log_var"),
    also=NARROW,
    control=vae,
)


class Lender(nn.Module):
    """Vectors of two kinds beside numbers, then a net."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(24, size) for _ in range(2))
        self.fc1, self.fc2, self.out = nn.Linear(2 * size + 6, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        first, second = (table(kinds[:, i]) for i, table in enumerate(self.tables))
        h = F.gelu(self.fc1(torch.cat([first, second, x], dim=1)))
        return self.out(F.gelu(self.fc2(h))).squeeze(1)


lender = zoo.healthy("loans-kinds-of-8", lambda s: live(Lender(8), loans(s), lr=1e-2, steps=100))
zoo.sick(
    "loans-kinds-of-1",
    lambda s: live(Lender(1), loans(s), lr=1e-2, steps=100),
    lags(0.1),
    "BOTTLENECK",
    layer=("tables.0", "tables.1", "fc1"),
    also=NARROW,
    control=lender,
)


class Matcher(nn.Module):
    """Photographs as vectors of a common space, compared within the batch."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.left, self.right = mlp([24, 40, size], nn.GELU), mlp([24, 40, size], nn.GELU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return -torch.cdist(self.left(a), self.right(b)).square()


matcher = zoo.healthy("portraits-space-of-12", lambda s: live(Matcher(12), portraits(s), lr=5e-3, steps=80))
zoo.sick(
    "portraits-space-of-1",
    lambda s: live(Matcher(1), portraits(s), lr=5e-3, steps=80),
    lags(0.15),
    "BOTTLENECK",
    layer=("left.2", "right.2"),
    also={*NARROW, "EXPLODING"},
    control=matcher,
)


class Sets(nn.Module):
    """Each point through a net, their mean through another one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.phi, self.rho = mlp([3, 40, 40, size], nn.SiLU), mlp([size, 32, 8], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).mean(dim=1))


sets = zoo.healthy("shoals-sets-of-24", lambda s: live(Sets(24), shoals(s, 24, 8), lr=1e-2, steps=100))
zoo.sick(
    "shoals-sets-of-1",
    lambda s: live(Sets(1), shoals(s, 24, 8), lr=1e-2, steps=100),
    lags(0.08),
    "BOTTLENECK",
    layer=("phi.4", "rho.0"),
    also=NARROW,
    control=sets,
)


class Hyper(nn.Module):
    """A small net says, from a summary of the row, by which weights another one reads it."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.look, self.code, self.write = nn.Linear(16, 32), nn.Linear(32, code), nn.Linear(code, 16 * 6)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.write(torch.tanh(self.code(torch.tanh(self.look(x)))))
        return torch.einsum("bi,bio->bo", x, weights.unflatten(1, (16, 6))) / 4


hyper = zoo.healthy("stars-weights-from-a-code-of-12", lambda s: live(Hyper(12), stars(s), lr=3e-3, steps=60))
zoo.sick(
    "stars-weights-from-a-code-of-1",
    lambda s: live(Hyper(1), stars(s), lr=3e-3, steps=60),
    lags(0.08),
    "BOTTLENECK",
    layer=("code", "write"),
    also={*NARROW, "SATURATION"},
    control=hyper,
)


class Standardised(nn.Module):
    """Takes the mean over each row off its features; `wrong` keeps the mean and drops the row."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.enter, self.mid, self.out = wrong, nn.Linear(16, 40), nn.Linear(40, 40), nn.Linear(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        x = mean.expand_as(x) if self.wrong else x - mean
        return self.out(F.silu(self.mid(F.silu(self.enter(x)))))


centred = zoo.healthy("stars-rows-without-their-mean", lambda s: live(Standardised(False), stars(s), lr=5e-3, steps=60))
zoo.sick(
    "stars-rows-as-their-mean",
    lambda s: live(Standardised(True), stars(s), lr=5e-3, steps=60),
    both(lasting(rank_at_most("enter", 1.05)), lags(0.15)),
    *ONE_WAY,
    layer=("enter", "mid"),
    also={"SYMMETRY"},
    control=centred,
)

# --- dead and flat


class Amounts(nn.Module):
    """Amounts are positive by a softplus; `sign` turns them before the next rectifier."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.sign = nn.Linear(12, 40), nn.Linear(40, 40), nn.Linear(40, 1), sign
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.relu(self.sign * F.softplus(self.fc2(F.silu(self.fc1(x))))))


amounts = zoo.healthy("soils-positive-amounts", lambda s: live(Amounts(1.0), soils(s), lr=5e-3, steps=60))
zoo.sick(
    "soils-negative-amounts-rectified",
    lambda s: live(Amounts(-1.0), soils(s), lr=5e-3, steps=60),
    lasting(dead("relu", 0.99), no_gradient("fc1", "fc2")),
    "DEAD",
    layer=("fc2", "fc3"),
    also={*DEADENS, *ONE_WAY},
    control=amounts,
)


def percent(seed: int, shift: float) -> Setup:
    """Weights that count only upwards, for readings that were shifted by the mean of another instrument."""
    model = Plain([12, 48, 32, 1], torch.relu)
    nn.init.uniform_(model.layers[0].weight, 0.0, 0.4)
    return live(model, soils(seed).mapped(lambda x: x + shift), lr=3e-3, steps=60)


own_mean = zoo.healthy("soils-positive-weights-own-mean", lambda s: percent(s, 0.0))
zoo.sick(
    "soils-positive-weights-mean-of-another-meter",
    lambda s: percent(s, -40.0),
    lasting(never_fires("layers.0", 0.97)),
    "DEAD",
    layer="layers.0",
    also={*DEADENS, *ONE_WAY},
    control=own_mean,
)


class Hardened(nn.Module):
    """A gate that is made harder by a temperature."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.body, self.choose, self.out = nn.Linear(16, 40), nn.Linear(16, 40), nn.Linear(40, 6)
        self.sigmoid, self.temperature = nn.Sigmoid(), temperature

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.body(x)) * self.sigmoid(self.choose(x) / self.temperature))


gate = zoo.healthy("stars-gates-temperature-1", lambda s: live(Hardened(1.0), stars(s), lr=5e-3, steps=60))
zoo.sick(
    "stars-gates-temperature-0.002",
    lambda s: live(Hardened(0.002), stars(s), lr=5e-3, steps=60),
    lasting(saturated("sigmoid", "sigmoid", 0.9)),
    "SATURATION",
    "VANISHING",
    layer=("choose", "out"),
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=gate,
)


class Factors(nn.Module):
    """Features of second order: products of all pairs of columns, then bounded units."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit, self.fc1, self.fc2, self.act = unit, nn.Linear(12 + 144, 40), nn.Linear(40, 1), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = self.unit * x
        crossed = (x[:, :, None] * x[:, None]).flatten(1)
        return self.fc2(self.act(self.fc1(torch.cat([x, crossed], dim=1))))


crossed = zoo.healthy(
    "soils-products-of-standardised-columns", lambda s: live(Factors(0.7), soils(s), lr=5e-3, steps=80)
)
zoo.sick(
    "soils-products-of-raw-columns",
    lambda s: live(Factors(40.0), soils(s), lr=5e-3, steps=80),
    lasting(saturated("act", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="fc1",
    also={"EXPLODING", "UNSTABLE", "DEAD", "DISCONNECTED", *ONE_WAY},
    control=crossed,
)

# --- cut


class Coded(nn.Module):
    """Codes of whole numbers between two nets; `through` lets the gradient pass by the rounding."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.enc, self.dec, self.through = mlp([32, 40, 16], nn.GELU), mlp([16, 40, 32], nn.GELU), through

    def forward(self, x: Tensor) -> Tensor:
        z = 3 * self.enc(x)
        whole = z.round()
        return self.dec((z + (whole - z).detach() if self.through else whole) / 3)


through = zoo.healthy(
    "rosters-rounded-codes-straight-through", lambda s: live(Coded(True), rosters(s), lr=5e-3, steps=60)
)
zoo.sick(
    "rosters-rounded-codes",
    lambda s: live(Coded(False), rosters(s), lr=5e-3, steps=60),
    lasting(no_gradient("enc")),
    "DISCONNECTED",
    layer=("enc.2", "enc.0", "dec.0"),
    also={"DEAD", "VANISHING"},
    control=through,
)


class Scorer(nn.Module):
    """Scores both runners; a list of numbers becomes a tensor again, or stays one."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.embed, self.score, self.listed = mlp([12, 40, 16], nn.SiLU), nn.Linear(16, 1), listed

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        ha, hb = self.embed(a), self.embed(b)
        if self.listed:
            ha, hb = torch.tensor(ha.tolist()), torch.tensor(hb.tolist())
        return (self.score(F.silu(ha)) - self.score(F.silu(hb))).squeeze(1)


scorer = zoo.healthy(
    "races-scores-of-tensors", lambda s: live(Scorer(False), races(s), lr=1e-2, steps=60), thrives(idle="score.bias")
)
zoo.sick(
    "races-scores-of-lists",
    lambda s: live(Scorer(True), races(s), lr=1e-2, steps=60),
    lasting(no_gradient("embed")),
    "DISCONNECTED",
    layer=("embed.0", "embed.2"),
    also={"DEAD"},
    control=scorer,
)

# --- growing and dying


def stacked(seed: int, fan: float, depth: int, act=F.leaky_relu, **more) -> Setup:
    """Weights by LeCun's rule; `fan` is what the root is taken of."""
    model = Plain([16, *[40] * depth, 6], act)
    for layer in model.layers:
        nn.init.normal_(layer.weight, std=1 / math.sqrt(fan))
        nn.init.zeros_(layer.bias)
    return live(model, stars(seed), **{"lr": 2e-3, "steps": 50, **more})


by_width = zoo.healthy("stars-4-layers-root-of-the-width", lambda s: stacked(s, 24.0, 4))
zoo.sick(
    "stars-12-layers-root-of-the-number-of-classes",
    lambda s: stacked(s, 6.0, 12, lr=1e-6),
    lasting(gradient_ratio("layers.0", "layers.11", above=100)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL"},
    control=by_width,
)


class Dense(nn.Module):
    """Every layer reads the sum, or the mean, of all before it."""

    def __init__(self, depth: int, mean: bool) -> None:
        super().__init__()
        self.mean, self.enter, self.out = mean, nn.Linear(12, 32), nn.Linear(32, 1)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        past = [self.enter(x)]
        for layer in self.layers:
            said = torch.stack(past).sum(dim=0)
            past.append(F.relu(layer(said / len(past) if self.mean else said)))
        return self.out(past[-1])


dense = zoo.healthy("soils-each-layer-reads-the-mean", lambda s: live(Dense(4, True), soils(s), lr=3e-3, steps=60))
zoo.sick(
    "soils-each-layer-reads-the-sum",
    lambda s: live(Dense(14, False), soils(s), lr=1e-6, steps=50),
    lasting(gradient_ratio("enter", "layers.13", above=30)),
    "EXPLODING",
    also={"UNSTABLE", "NUMERICAL", "first_loss_high"},
    control=dense,
)


def sigmoids(seed: int, depth: int, act, **more) -> Setup:
    model = Plain([16, *[32] * depth, 6], act)
    for layer in model.layers:
        nn.init.xavier_uniform_(layer.weight)
    return live(model, stars(seed), **{"lr": 5e-3, "steps": 60, **more})


tanhs = zoo.healthy("stars-tanh-5-layers-glorot", lambda s: sigmoids(s, 5, torch.tanh))
zoo.sick(
    "stars-sigmoid-8-layers-glorot",
    lambda s: sigmoids(s, 8, torch.sigmoid, kind="SGD", lr=0.1),
    both(lasting(gradient_ratio("layers.0", "layers.7", below=1e-3)), lags(0.3)),
    "VANISHING",
    also={"SLOW", *ONE_WAY},
    control=tanhs,
)


class Gates(nn.Module):
    """Each layer lets a part of the last one through; the gates begin open or nearly closed."""

    def __init__(self, bias: float, depth: int = 5) -> None:
        super().__init__()
        self.enter, self.out = nn.Linear(12, 32), nn.Linear(32, 1)
        self.gates = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        for gate in self.gates:
            nn.init.constant_(gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        for gate in self.gates:
            h = h * torch.sigmoid(gate(h))
        return self.out(h)


open_gates = zoo.healthy("soils-gates-begin-open", lambda s: live(Gates(2.0), soils(s), lr=1e-2, steps=80))
zoo.sick(
    "soils-gates-begin-nearly-closed",
    lambda s: live(Gates(-4.0, 6), soils(s), "SGD", lr=0.05, steps=80),
    both(lasting(gradient_ratio("enter", "out", below=1e-4)), lags(0.1)),
    "VANISHING",
    also={"SLOW", "SATURATION", "DEAD", *ONE_WAY},
    control=open_gates,
)

# --- equal


class Density(nn.Module):
    """A mixture of four bells; the heads begin at zero, or as drawn."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.body = mlp([8, 40, 40], nn.SiLU)
        self.weight, self.mean, self.spread = nn.Linear(40, 4), nn.Linear(40, 4), nn.Linear(40, 4)
        if zero:
            for head in (self.weight, self.mean, self.spread):
                nn.init.zeros_(head.weight)
                nn.init.zeros_(head.bias)
        else:
            self.mean.bias.data = torch.tensor([-2.0, -0.7, 0.7, 2.0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.silu(self.body(x))
        return self.weight(h).log_softmax(dim=1), self.mean(h), self.spread(h).clamp(-4, 4)


def likelihood(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    log_w, mean, log_s = out
    log_p = -0.5 * ((y[:, None] - mean) / log_s.exp()).square() - log_s
    return 3 - torch.logsumexp(log_w + log_p, dim=1).mean()


def bells(seed: int, zero: bool) -> Setup:
    """Wind from one of two sides: one bell is not enough."""
    side = torch.Generator().manual_seed(seed + 5)

    def split(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, 0.15 * y + 3 * (2 * (torch.rand(len(y), generator=side) < 0.5) - 1)

    return live(
        Density(zero), gusts(seed).changed(split).with_loss(likelihood), "SGD", 0.05, 80, momentum=0.9, clip=5.0
    )


drawn_bells = zoo.healthy("gusts-four-bells-as-drawn", lambda s: bells(s, False))
zoo.sick(
    "gusts-four-bells-begin-at-zero",
    lambda s: bells(s, True),
    both(lasting(equal_units("mean.weight"), equal_units("spread.weight")), lags(0.1)),
    "SYMMETRY",
    layer=("mean", "spread", "weight"),
    also=ONE_WAY,
    control=drawn_bells,
)


class Parts(nn.Module):
    """The same start for each of eight parts of a hidden layer, as a loop over one checkpoint gives them."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 6)
        if same:
            for layer in (self.fc1, self.fc2):
                layer.weight.data = layer.weight.data[:1].expand_as(layer.weight).clone()
                layer.bias.data = layer.bias.data[:1].expand_as(layer.bias).clone()
            self.fc2.weight.data.fill_(0.05)
            self.out.weight.data = self.out.weight.data[:, :1].expand_as(self.out.weight).clone()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


parts = zoo.healthy("stars-units-as-drawn", lambda s: live(Parts(False), stars(s), "SGD", 0.1, 60, momentum=0.9))
zoo.sick(
    "stars-units-from-one-row",
    lambda s: live(Parts(True), stars(s), "SGD", 0.1, 60, momentum=0.9),
    both(lasting(equal_units("fc1.weight"), equal_units("fc2.weight")), lags(0.2)),
    "SYMMETRY",
    layer=("fc1", "fc2", "out"),
    also=ONE_WAY,
    control=parts,
)

# --- numbers


class Angle(nn.Module):
    """The angle between two vectors; `inside` keeps the cosine from the ends of its range."""

    def __init__(self, inside: float) -> None:
        super().__init__()
        self.body, self.scale, self.inside = mlp([24, 40, 12], nn.SiLU), nn.Linear(1, 1), inside

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        cosine = F.cosine_similarity(self.body(a), self.body(b), dim=1)
        return self.scale(torch.acos(cosine.clamp(-self.inside, self.inside))[:, None]).squeeze(1)


def angles(seed: int, inside: float) -> Setup:
    """Half of the pairs are of one person; now and then one photograph is there twice."""
    now = every(14, 6)

    def pairs(x: tuple[Tensor, Tensor], _t: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a, b = x
        a = a + 0 * b
        b = torch.cat([0.9 * a[:24] + 0.3 * b[:24], b[24:].roll(1, 0)])
        if now():
            b[:3] = a[:3]
        return (a, b), (torch.arange(len(a)) < 24).float()

    task = portraits(seed).changed(pairs).with_loss(F.binary_cross_entropy_with_logits)
    return live(Angle(inside), task, lr=1e-2, steps=80)


kept_inside = zoo.healthy("portraits-angles-kept-inside", lambda s: angles(s, 0.999))
zoo.sick("portraits-angles-of-the-same-photograph", lambda s: angles(s, 1.0), breaks, "NUMERICAL", control=kept_inside)


def own_bce(seed: int, eps: float) -> Setup:
    """The cross-entropy by hand: logarithms of a probability that may be 1."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = torch.sigmoid(12 * z.view_as(t)).clamp(eps, 1 - eps)
        return -(t * p.log() + (1 - t) * (1 - p).log()).mean()

    return live(Scorer(False), races(seed).with_loss(loss), lr=1e-2, steps=90)


clamped = zoo.healthy("races-own-loss-clamped", lambda s: own_bce(s, 1e-6), thrives(idle="score.bias"))
zoo.sick(
    "races-own-loss-of-a-probability-of-1",
    lambda s: own_bce(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"SATURATION", "UNSTABLE", "EXPLODING"},
    control=clamped,
)

# --- jumps and rates


def relative(seed: int, least: float) -> Setup:
    """The error as a share of the harvest, which may be next to nothing."""

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return ((y - t) / t.abs().clamp_min(least)).square().mean()

    return live(mlp([12, 40, 40, 1], nn.SiLU), soils(seed).with_loss(loss), lr=1e-3, steps=70)


least = zoo.healthy("soils-shares-of-at-least-1", lambda s: relative(s, 1.0))
zoo.sick(
    "soils-shares-of-next-to-nothing", lambda s: relative(s, 0.0), gradient_norms_spread(30), *JUMPS, control=least
)


def slips(seed: int, factor: float) -> Setup:
    """Every now and then a comma of the targets slipped."""
    now = every(11, 5)

    def slip(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.cat([y[:2] * factor, y[2:]]) if now() else y

    return live(mlp([8, 40, 1], nn.GELU).append(nn.Flatten(0)), gusts(seed).changed(slip), lr=3e-3, steps=80)


right_commas = zoo.healthy("gusts-commas-in-place", lambda s: slips(s, 1.0))
zoo.sick("gusts-commas-that-slipped", lambda s: slips(s, 3e4), gradient_norms_spread(30), *JUMPS, control=right_commas)


def warmup(seed: int, over: float) -> Setup:
    """The warm-up is counted in samples of the whole corpus."""
    return live(mlp([16, 40, 6], nn.ReLU), stars(seed), rate=lambda t: min(1.0, (t + 1) / over), lr=5e-3, steps=50)


short_warmup = zoo.healthy("stars-warm-up-of-10-steps", lambda s: warmup(s, 10))
zoo.sick(
    "stars-warm-up-of-a-billion-steps", lambda s: warmup(s, 1e9), does_not_move(steps=50), "SLOW", control=short_warmup
)


class Graph(nn.Module):
    """Two rounds of messages over dense graphs, and a readout."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 24), nn.Linear(24, 4)
        self.rounds = nn.ModuleList(nn.Linear(48, 24) for _ in range(2))

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = F.silu(self.enter(x))
        for layer in self.rounds:
            x = F.silu(layer(torch.cat([x, near @ x], dim=2)))
        return self.leave(x.mean(dim=1))


def pinned(seed: int, limit: float) -> Setup:
    """The limit of the gradient's norm is given as the rate."""
    return live(Graph(), meshes(seed), "SGD", 0.1, 50, momentum=0.9, clip=limit)


loose = zoo.healthy("meshes-limit-of-1", lambda s: pinned(s, 1.0))
zoo.sick("meshes-limit-of-1e-6", lambda s: pinned(s, 1e-6), does_not_move(steps=50), "SLOW", control=loose)
