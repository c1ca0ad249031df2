# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of laboratories and workshops, with one fault each, and their twins.

Half: drill.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import dead, equal_units, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY, RUNS_AWAY
from validation.nets import Autoencoder, he_, mlp
from validation.setups import live
from validation.tasks import every, grains, pairings, sensors, spectra

zoo = Zoo("mlp", half="drill", proof=thrives())
THROWN = {"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING", "DISCONNECTED"}
"""What steps that are too large leave behind."""

# --- narrow


def lines(seed: int, size: int) -> Setup:
    return live(Autoencoder(40, 56, size, nn.ELU), spectra(seed), lr=5e-3, steps=80)


six = zoo.healthy("spectra-code-of-8-for-6-lines", lambda s: lines(s, 8))
for count in (1, 2):
    zoo.sick(
        f"spectra-code-of-{count}-for-6-lines",
        lambda s, count=count: lines(s, count),
        lags(0.15),
        "BOTTLENECK",
        layer=("encoder.2", "decoder.0"),
        also=NARROW,
        control=six,
    )


class Factored(nn.Module):
    """A wide head made of two thin matrices, of a rank of one's choice."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(18, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish())
        self.thin, self.head = nn.Linear(64, rank, bias=False), nn.Linear(rank, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.thin(self.body(x)))


full = zoo.healthy("grains-head-of-rank-7", lambda s: live(Factored(7), grains(s), lr=5e-3, steps=70))
zoo.sick(
    "grains-head-of-rank-1",
    lambda s: live(Factored(1), grains(s), lr=5e-3, steps=70),
    lags(0.15),
    "BOTTLENECK",
    layer=("thin", "head"),
    also=NARROW,
    control=full,
)


class Product(nn.Module):
    """A layer whose matrix is a product of two factors that are parameters, not modules."""

    def __init__(self, fan_in: int, fan_out: int, rank: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.randn(fan_out, rank) / rank**0.5)
        self.v = nn.Parameter(torch.randn(rank, fan_in) / fan_in**0.5)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.u @ self.v, self.bias)


def compressed(seed: int, rank: int) -> Setup:
    """All but the first and last layer are compressed; the rank comes from a rule that rounds down."""
    model = nn.Sequential(nn.Linear(14, 48), nn.SiLU(), Product(48, 48, rank), nn.SiLU(), nn.Linear(48, 6))
    return live(model, sensors(seed), lr=5e-3, steps=80)


rank12 = zoo.healthy("sensors-compressed-to-rank-12", lambda s: compressed(s, 12))
zoo.sick(
    "sensors-compressed-to-rank-1",
    lambda s: compressed(s, 1),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer="2",
    control=rank12,
)


class Pairs(nn.Module):
    """Users and items as vectors of `size` numbers each, joined by a tower."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(30, size), nn.Embedding(24, size)
        self.join, self.out = nn.Linear(2 * size, 64), nn.Linear(64, 1)

    def forward(self, ids: Tensor) -> Tensor:
        both = torch.cat([self.user(ids[:, 0]), self.item(ids[:, 1])], dim=1)
        return self.out(F.gelu(self.join(both)))


def matched(seed: int, size: int) -> Setup:
    return live(Pairs(size), pairings(seed), lr=1.5e-2, steps=100)


matching = zoo.healthy("pairings-vectors-of-12", lambda s: matched(s, 12))
zoo.sick(
    "pairings-vectors-of-1",
    lambda s: matched(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("user", "item", "join"),
    also=NARROW,
    control=matching,
)


class Gauged(nn.Module):
    """Each instrument reads a summary of the state: its mean, or the state itself."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.state, self.mean = nn.Sequential(nn.Linear(14, 40), nn.GELU(), nn.Linear(40, 40)), mean
        self.read = nn.Sequential(nn.Linear(1 if mean else 40, 40), nn.GELU(), nn.Linear(40, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.state(x)
        return self.read(h.mean(dim=1, keepdim=True) if self.mean else h)


gauged = zoo.healthy("sensors-read-the-state", lambda s: live(Gauged(False), sensors(s), lr=5e-3, steps=70))
zoo.sick(
    "sensors-read-the-mean-of-the-state",
    lambda s: live(Gauged(True), sensors(s), lr=5e-3, steps=70),
    lags(0.15),
    "BOTTLENECK",
    "LOW_RANK",
    layer=("read.0", "state.2"),
    control=gauged,
)
zoo.sick(
    "grains-columns-are-all-the-same-one",
    lambda s: live(mlp([18, 48, 48, 7], nn.GELU), grains(s).mapped(lambda x: x[:, :1].expand(-1, 18)), lr=5e-3),
    lasting(rank_at_most("0", 1.01)),
    *ONE_WAY,
    layer="0",
    control=zoo.healthy("grains-columns-18", lambda s: live(mlp([18, 48, 48, 7], nn.GELU), grains(s), lr=5e-3)),
)

# --- dead and flat


def sudden(seed: int, first: float) -> Setup:
    """The schedule starts with its peak, a factor too high, and comes down after three steps."""
    model = he_(mlp([18, 48, 48, 7], nn.ReLU))
    return live(model, grains(seed), "SGD", 0.05, 70, rate=lambda i: first if i < 3 else 1.0)


warm = zoo.healthy("grains-relu-even-rate", lambda s: sudden(s, 1.0))
zoo.sick(
    "grains-relu-first-three-steps-far-too-long",
    lambda s: sudden(s, 200.0),
    at_last(dead("3", 0.9)),
    "DEAD",
    "EXPLODING",
    "UNSTABLE",
    layer="2",
    also={*DEADENS, *THROWN, "NUMERICAL", "SLOW"},
    control=warm,
)


class Signed(nn.Module):
    """Concentrations cannot be negative, so they are rectified; `sign` is that of what is rectified."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.enter, self.amount, self.out = nn.Linear(14, 40), nn.Linear(40, 40), nn.Linear(40, 6)
        self.sign = sign

    def forward(self, x: Tensor) -> Tensor:
        amount = F.softplus(self.amount(F.silu(self.enter(x))))
        return self.out(F.relu(self.sign * amount))


signed = zoo.healthy("sensors-amounts-rectified", lambda s: live(Signed(1.0), sensors(s), lr=5e-3, steps=60))
zoo.sick(
    "sensors-amounts-negated-then-rectified",
    lambda s: live(Signed(-1.0), sensors(s), lr=5e-3, steps=60),
    lasting(no_gradient("amount", "enter")),
    "DEAD",
    "DISCONNECTED",
    layer=("amount", "enter"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK"},
    control=signed,
)


class Centred(nn.Module):
    """A norm with a learned shift before each rectifier; `shift` is where the second one starts."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.fc1, self.ln1 = nn.Linear(40, 56), nn.LayerNorm(56)
        self.fc2, self.ln2 = nn.Linear(56, 56), nn.LayerNorm(56)
        self.out = nn.Linear(56, 40)
        nn.init.constant_(self.ln2.bias, shift)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.ln1(self.fc1(x)))
        return self.out(F.relu(self.ln2(self.fc2(x))))


centred = zoo.healthy("spectra-norms-before-rectifiers", lambda s: live(Centred(0.0), spectra(s), lr=3e-3, steps=70))
zoo.sick(
    "spectra-second-norm-shifted-below-zero",
    lambda s: live(Centred(-8.0), spectra(s), lr=3e-3, steps=70),
    lasting(never_fires("ln2", 0.95)),
    "DEAD",
    layer="fc2",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=centred,
)


def settings(seed: int, factor: float) -> Setup:
    """Settings in revolutions per minute, into a tanh."""
    model = mlp([14, 48, 48, 6], nn.Tanh)
    return live(model, sensors(seed).mapped(lambda x: factor * x), lr=3e-3, steps=60)


scaled = zoo.healthy("sensors-tanh-standardised", lambda s: settings(s, 1.0))
zoo.sick(
    "sensors-tanh-revolutions-per-minute",
    lambda s: settings(s, 400.0),
    lasting(saturated("1", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="0",
    also={"EXPLODING", "UNSTABLE"},
    control=scaled,
)


class Switched(nn.Module):
    """A gate for each hidden number, by a sigmoid of the settings; `bias` is where the gates start."""

    def __init__(self, bias: float, spread: float = 1.0) -> None:
        super().__init__()
        self.value, self.gate, self.out = nn.Linear(14, 48), nn.Linear(14, 48), nn.Linear(48, 6)
        self.gate.weight.data *= spread
        nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x)))


gates = zoo.healthy("sensors-gates-half-open", lambda s: live(Switched(0.0), sensors(s), lr=5e-3, steps=60))
zoo.sick(
    "sensors-gates-drawn-a-hundred-times-too-large",
    lambda s: live(Switched(0.0, 200.0), sensors(s), lr=2e-3, steps=60),
    lasting(flat_behind("gate", "sigmoid", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="gate",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=gates,
)

# --- cut and equal


class Rounded(nn.Module):
    """A code of whole numbers between encoder and decoder; `through` lets the gradient pass the rounding."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([40, 48, 12], nn.GELU), mlp([12, 48, 40], nn.GELU)
        self.through = through

    def forward(self, x: Tensor) -> Tensor:
        code = 3 * self.encoder(x)
        whole = code.round()
        return self.decoder(code + (whole - code).detach() if self.through else whole)


def rounded(seed: int, through: bool) -> Setup:
    return live(Rounded(through), spectra(seed), lr=5e-3, steps=70)


passing = zoo.healthy("spectra-rounded-gradient-passes", lambda s: rounded(s, True))
zoo.sick(
    "spectra-rounded-gradient-stops",
    lambda s: rounded(s, False),
    lasting(no_gradient("encoder")),
    "DISCONNECTED",
    layer=("encoder.2", "encoder.0"),
    also={"DEAD", "VANISHING"},
    control=passing,
)


class Twins(nn.Module):
    """Two encoders of their own that are to agree on what they see; `stop` is for the side that must not learn."""

    def __init__(self, stop: bool) -> None:
        super().__init__()
        self.left, self.right, self.stop = mlp([20, 48, 10], nn.SiLU), mlp([20, 48, 10], nn.SiLU), stop

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x[:, :20]), self.right(x[:, 20:])
        return F.normalize(a, dim=1) @ F.normalize(b.detach() if self.stop else b, dim=1).T / 0.2


def agreeing(seed: int, stop: bool) -> Setup:
    task = spectra(seed, batch=48).changed(lambda x, _: (x, torch.arange(len(x))))
    return live(Twins(stop), task.with_loss(F.cross_entropy), lr=3e-3, steps=60)


agree = zoo.healthy("halves-of-spectra-agree", lambda s: agreeing(s, False))
zoo.sick(
    "halves-of-spectra-one-side-detached",
    lambda s: agreeing(s, True),
    lasting(no_gradient("right")),
    "DISCONNECTED",
    layer=("right.2", "right.0"),
    also={"DEAD"},
    control=agree,
)


def even(seed: int, value: float | None) -> Setup:
    """Somebody makes a network reproducible by giving every weight of its first layers the same value."""
    model = mlp([14, 40, 40, 6], nn.Tanh)
    if value is not None:
        for layer in (model[0], model[2]):
            nn.init.constant_(layer.weight, value)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(model[4].weight, value)
    return live(model, sensors(seed), "SGD", 0.1, 60, momentum=0.8)


drawn = zoo.healthy("sensors-weights-drawn", lambda s: even(s, None))
zoo.sick(
    "sensors-weights-all-0.05",
    lambda s: even(s, 0.05),
    lasting(equal_units("0.weight"), equal_units("2.weight")),
    "SYMMETRY",
    layer=("0", "2"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=drawn,
)


class Ensemble(nn.Module):
    """The mean of four small nets; `same` starts all of them as copies of one."""

    def __init__(self, same: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp([18, 24, 7], nn.Tanh) for _ in range(4))
        if same:
            for member in self.members[1:]:
                member.load_state_dict(self.members[0].state_dict())
            for member in self.members:  # within a member, too, all units are one
                nn.init.constant_(member[0].weight, 0.1)
                nn.init.constant_(member[2].weight, 0.1)
                nn.init.zeros_(member[0].bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(dim=0)


team = zoo.healthy("grains-four-members", lambda s: live(Ensemble(False), grains(s), "SGD", 0.5, 60, momentum=0.9))
zoo.sick(
    "grains-four-members-constant-and-copied",
    lambda s: live(Ensemble(True), grains(s), "SGD", 0.5, 60, momentum=0.9),
    lasting(*(equal_units(f"members.{i}.0.weight") for i in range(4))),
    "SYMMETRY",
    layer=("members.0.0", "members.1.0", "members.2.0", "members.3.0"),
    also={"LOW_RANK", "BOTTLENECK"},
    control=team,
)

# --- dying and growing


def stacked(seed: int, depth: int, act: type[nn.Module], **more) -> Setup:
    model = mlp([18, *[40] * depth, 7], act)
    return live(model, grains(seed), **{"lr": 3e-3, "steps": 60, **more})


shallow = zoo.healthy("grains-sigmoid-2x40", lambda s: stacked(s, 2, nn.Sigmoid, lr=1e-2, steps=80))
zoo.sick(
    "grains-sigmoid-9x40",
    lambda s: stacked(s, 9, nn.Sigmoid, kind="SGD", lr=0.1, momentum=0.9),
    lasting(gradient_ratio(below=10**-2.5)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "SLOW"},
    control=shallow,
)


def tempered(seed: int, gain: float, **more) -> Setup:
    """The gain of the initialisation is that of another activation, or a number from a forum."""
    model = mlp([14, *[48] * 7, 6], nn.LeakyReLU)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, gain)
    return live(model, sensors(seed), **{"lr": 1e-3, "steps": 60, **more})


sound = zoo.healthy("sensors-leaky-7x48-gain-1.4", lambda s: tempered(s, 1.4))
zoo.sick(
    "sensors-leaky-7x48-gain-5",
    lambda s: tempered(s, 5.0, lr=1e-4, steps=50),
    lasting(gradient_ratio(above=100)),
    "EXPLODING",
    also={"UNSTABLE", "BOTTLENECK", "LOW_RANK"},
    control=sound,
)
zoo.sick(
    "sensors-leaky-7x48-gain-0.3",
    lambda s: tempered(s, 0.3, kind="SGD", lr=0.05, momentum=0.9),
    lasting(gradient_ratio(below=10**-2.5)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "SLOW"},
    control=sound,
)


def pushed(seed: int, lr: float, momentum: float = 0.9) -> Setup:
    return live(mlp([14, 64, 64, 6], nn.GELU), sensors(seed), "SGD", lr, 50, momentum=momentum)


pace = zoo.healthy("sensors-gelu-sgd-0.05", lambda s: pushed(s, 0.05))
zoo.sick("sensors-gelu-sgd-rate-of-9", lambda s: pushed(s, 9.0), diverges(), *RUNS_AWAY, also=THROWN, control=pace)
zoo.sick(
    "sensors-gelu-sgd-momentum-1.12", lambda s: pushed(s, 0.1, 1.12), diverges(), *RUNS_AWAY, also=THROWN, control=pace
)
zoo.sick(
    "sensors-gelu-sgd-rate-in-the-wrong-unit", lambda s: pushed(s, 1e-8), does_not_move(steps=50), "SLOW", control=pace
)

# --- numbers and jumps


class Radius(nn.Module):
    """The distance of each row from the origin as a further column; its slope at the origin has no value."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.shift, self.body, self.eps = nn.Linear(14, 6, bias=False), mlp([20, 48, 6], nn.SiLU), eps

    def forward(self, x: Tensor) -> Tensor:
        place = self.shift(x)
        length = (place.square().unflatten(1, (2, 3)).sum(dim=2) + self.eps).sqrt().repeat(1, 3)
        return self.body(torch.cat([x, length], dim=1))


def idling(seed: int, eps: float) -> Setup:
    """Now and then the machine stands still, and all its settings are zero."""
    now = every(18, 7)
    task = sensors(seed).mapped(lambda x: torch.cat([torch.zeros_like(x[:2]), x[2:]]) if now() else x)
    return live(Radius(eps), task, lr=3e-3, steps=40)


moving = zoo.healthy("sensors-distance-with-eps", lambda s: idling(s, 1e-8))
zoo.sick(
    "sensors-distance-of-a-machine-that-stands-still",
    lambda s: idling(s, 0.0),
    breaks,
    "NUMERICAL",
    layer="shift",
    also={"UNSTABLE", "EXPLODING"},
    control=moving,
)


def likely(seed: int, eps: float, size: float) -> Setup:
    """Probabilities by hand and their logarithm by hand, from logits that are large."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = torch.softmax(size * z, dim=1) + eps
        return -p.gather(1, t[:, None]).log().mean()

    model = mlp([18, 48, 7], nn.SiLU)
    return live(model, grains(seed).with_loss(loss), lr=1e-2, steps=60)


careful = zoo.healthy("grains-own-logarithm-with-eps", lambda s: likely(s, 1e-6, 1.0))
zoo.sick(
    "grains-own-logarithm-of-zero",
    lambda s: likely(s, 0.0, 300.0),
    breaks,
    "NUMERICAL",
    also={"SATURATION", "EXPLODING", "UNSTABLE"},
    control=careful,
)


def faulty(seed: int, size: float) -> Setup:
    """A gauge that sends an overflow code instead of a value, once in a while."""
    now = every(13, 6)

    def spoil(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if not now():
            return x, t
        return x, torch.cat([t[:1] + size, t[1:]])

    return live(mlp([14, 48, 6], nn.SiLU), sensors(seed).changed(spoil), lr=1e-3, steps=65)


gauge = zoo.healthy("sensors-no-overflow-codes", lambda s: faulty(s, 0.0))
zoo.sick(
    "sensors-overflow-code-9999-now-and-then",
    lambda s: faulty(s, 9999.0),
    gradient_norms_spread(30),
    *JUMPS,
    also={"NUMERICAL"},
    control=gauge,
)
