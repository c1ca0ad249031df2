# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily dense networks with the faults that people report, and their twins.

Half: daily.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import tower, worse
from validation.cases._daily_nets import (
    SQUASHED,
    UNLEARNED,
    alloys,
    claims,
    fields,
    gaits,
    galaxies,
    pendulums,
    playlists,
    triples,
)
from validation.cases._everyday_nets import CUT_OFF, NARROW, he, start
from validation.cases._plain_nets import BLOWN, COLLAPSED, alike, ends_flat
from validation.evidence import (
    both,
    breaks,
    dead,
    diverges,
    does_not_move,
    equal_units,
    gradient_ratio,
    lags,
    lasting,
    no_gradient,
    rank_at_most,
    saturated,
    thrives,
)
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live

zoo = Zoo("mlp", half="daily", proof=thrives(0.2, most_dead=0.5))

# --- too narrow


class Coder(nn.Module):
    """A denoiser with batch norm and dropout around a code whose size comes from the command line."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(36, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, code))
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.SiLU(), nn.Dropout(0.05), nn.Linear(64, 36))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def coded(seed: int, size: int) -> Setup:
    return live(Coder(size), gaits(seed, noise=0.2), "AdamW", 4e-3, 90)


code = zoo.healthy("gaits-denoiser-code-of-12", lambda s: coded(s, 12))
zoo.sick(
    "gaits-denoiser-code-of-1",
    lambda s: coded(s, 1),
    both(lags(0.2), lasting(rank_at_most("encoder.3", 1.01))),
    *NARROW,
    layer=("encoder.3", "decoder.0"),
    also=SQUASHED,
    control=code,
)


class Cbow(nn.Module):
    """The mean of the songs' vectors names one more song."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.songs, self.out = nn.Embedding(50, size), nn.Linear(size, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.songs(ids).mean(dim=1))


def listed(seed: int, size: int) -> Setup:
    return live(Cbow(size), playlists(seed), "Adam", 2e-2, 110)


songs = zoo.healthy("playlists-vectors-of-24", lambda s: listed(s, 24), thrives(0.15))
zoo.sick(
    "playlists-vectors-of-1",
    lambda s: listed(s, 1),
    lags(0.15),
    *NARROW,
    layer=("songs", "out"),
    also=SQUASHED,
    control=songs,
)


class Operator(nn.Module):
    """A branch reads the sensors, a trunk the place; the answer is the product of their so many numbers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, count))
        self.trunk = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, count))

    def forward(self, seen: Tensor, place: Tensor) -> Tensor:
        return (self.branch(seen) * self.trunk(3 * place)).sum(dim=1, keepdim=True)


def operator(seed: int, count: int) -> Setup:
    return live(Operator(count), fields(seed), "Adam", 8e-3, 110)


basis = zoo.healthy("rod-operator-of-24-products", lambda s: operator(s, 24))
zoo.sick(
    "rod-operator-of-1-product",
    lambda s: operator(s, 1),
    both(lags(0.2), lasting(rank_at_most("branch.2", 1.01))),
    *NARROW,
    layer=("branch.2", "trunk.4"),
    also=SQUASHED,
    control=basis,
)


class Student(nn.Module):
    """A pruned net: the last hidden layer keeps so many of its units."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, kept), nn.GELU())
        self.head = nn.Linear(kept, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def pruned(seed: int, kept: int) -> Setup:
    return live(Student(kept), galaxies(seed), "SGD", 0.1, 90, momentum=0.9, nesterov=True)


whole = zoo.healthy("galaxies-last-hidden-layer-of-32", lambda s: pruned(s, 32))
zoo.sick(
    "galaxies-last-hidden-layer-pruned-to-1",
    lambda s: pruned(s, 1),
    both(lags(0.2), lasting(rank_at_most("body.3", 1.01))),
    *NARROW,
    layer=("body.3", "body.4", "head"),
    also=SQUASHED,
    control=whole,
)

# --- alike


class Bells(nn.Module):
    """Bells around points of the data, of a width that is given, and a linear layer upon them."""

    def __init__(self, width: float, count: int = 96) -> None:
        super().__init__()
        self.middle, self.width = nn.Parameter(torch.randn(count, 16)), width
        self.bells, self.out = nn.Identity(), nn.Linear(count, 9)

    def forward(self, x: Tensor) -> Tensor:
        far = torch.cdist(x, self.middle).square()
        return self.out(self.bells(torch.exp(-far / (2 * self.width**2))))


def belled(seed: int, width: float) -> Setup:
    return live(Bells(width), galaxies(seed), "Adam", 2e-2, 90)


fitting = zoo.healthy("galaxies-bells-of-width-4", lambda s: belled(s, 4.0))
zoo.sick(
    "galaxies-bells-of-width-2000",
    lambda s: belled(s, 2000.0),
    both(lasting(alike("bells")), lags(0.3)),
    *COLLAPSED,
    "SATURATION",
    "VANISHING",
    layer=("middle", "bells", "out"),
    also={"DEAD", "SYMMETRY", "DISCONNECTED", *UNLEARNED},
    control=fitting,
)


class Triplet(nn.Module):
    """Rows of one kind are pulled together, others pushed beyond a margin."""

    def __init__(self, margin: float, push: float) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 24))
        self.margin, self.push = margin, push

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        a, b, c = self.net(a), self.net(b), self.net(c)
        near, far = (a - b).square().sum(dim=1), (a - c).square().sum(dim=1)
        return (near + self.push * F.relu(self.margin - far)).mean()


def pulled(seed: int, margin: float) -> Setup:
    return live(Triplet(margin, 1.0), triples(seed), "Adam", 3e-3, 110)


margin = zoo.healthy("triples-pushed-beyond-a-margin-of-5", lambda s: pulled(s, 5.0))
zoo.sick(
    "triples-pushed-beyond-a-margin-of-0",
    lambda s: pulled(s, 0.0),
    ends_flat("net", 0.15),
    *COLLAPSED,
    "DEAD",
    "VANISHING",
    also={"SYMMETRY", "SLOW", "loss_stuck", "DISCONNECTED"},
    control=margin,
)

# --- size of the signal


class Mean(nn.Module):
    """A linear layer by an einsum that is divided by its fan, or by the root of it."""

    def __init__(self, a: int, b: int, power: float) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(1.5 * torch.randn(b, a)), nn.Parameter(torch.zeros(b))
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,oi->bo", x, self.weight) / x.shape[1] ** self.power + self.bias


def parametrised(seed: int, power: float) -> Setup:
    parts: list[nn.Module] = [Mean(16, 48, power), nn.Tanh()]
    for _ in range(6):
        parts += [Mean(48, 48, power), nn.Tanh()]
    return live(nn.Sequential(*parts, Mean(48, 9, power)), galaxies(seed), "SGD", 0.3, 80, momentum=0.9)


root = zoo.healthy("galaxies-eight-layers-by-the-root-of-the-fan", lambda s: parametrised(s, 0.5))
zoo.sick(
    "galaxies-eight-layers-by-the-fan",
    lambda s: parametrised(s, 1.0),
    both(lasting(gradient_ratio("0", "12", below=1e-2)), lags(0.3)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=root,
)


def powers(seed: int, scaled: bool) -> Setup:
    """Columns and their powers up to the fourth; scaled, or as they are, in tens."""

    def change(x: Tensor) -> Tensor:
        x = torch.cat([x**k for k in range(1, 5)], dim=1)
        return x / x.std(dim=0, keepdim=True) if scaled else 10 * x

    return live(tower([40, 48, 6], nn.LeakyReLU), alloys(seed).mapped(change), "SGD", 0.02, 80, momentum=0.9)


scaled = zoo.healthy("alloys-four-powers-scaled", lambda s: powers(s, True))
zoo.sick(
    "alloys-four-powers-as-they-are",
    lambda s: powers(s, False),
    both(diverges(3), worse(3.0)),
    *RUNS_AWAY,
    "input_scales",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    layer=("0", "2"),
    control=scaled,
)


class Ode(nn.Module):
    """A net says how the state changes, and a number of small steps, or of whole ones, is taken."""

    def __init__(self, step: float, count: int = 24) -> None:
        super().__init__()
        self.net, self.step, self.count = tower([4, 48, 48, 4], nn.SiLU), step, count
        start(self.net, lambda w: nn.init.xavier_normal_(w, 1.5))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = x + self.step * self.net(x)
        return x


def rolled(seed: int, step: float) -> Setup:
    return live(Ode(step), pendulums(seed), "SGD", 0.02, 60, momentum=0.9)


small = zoo.healthy("pendulums-24-steps-of-a-24th", lambda s: rolled(s, 1 / 24))
zoo.sick(
    "pendulums-24-steps-of-1",
    lambda s: rolled(s, 1.0),
    both(diverges(1.5), worse(5.0)),
    *RUNS_AWAY,
    "SPECTRAL_RADIUS",
    also={*BLOWN, "SLOW"},
    control=small,
)

# --- dead and flat


def logged(seed: int, last: bool) -> Setup:
    """A log-softmax, copied from the end of another net, before the ReLU of the second layer; or a norm there."""
    odd = nn.LogSoftmax(dim=1) if last else nn.LayerNorm(48)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48), odd, nn.ReLU(), nn.Linear(48, 9))
    return live(model, galaxies(seed), "Adam", 5e-3, 70)


normed = zoo.healthy("galaxies-norm-before-the-second-relu", lambda s: logged(s, False))
zoo.sick(
    "galaxies-log-softmax-before-the-second-relu",
    lambda s: logged(s, True),
    both(lasting(dead("4", 0.99)), lags(0.3)),
    *("DEAD", "DISCONNECTED"),
    layer=("2", "3", "4"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=normed,
)


class Costs(nn.Module):
    """Kinds as vectors beside numbers; tanh layers."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 5) for n in (15, 8, 5))
        for table in self.tables:
            nn.init.uniform_(table.weight, -spread, spread)
        self.fc1, self.act1, self.fc2, self.act2 = nn.Linear(19, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh()
        self.out = nn.Linear(32, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.out(self.act2(self.fc2(self.act1(self.fc1(torch.cat([*parts, x], dim=1))))))


def spread(seed: int, bound: float) -> Setup:
    return live(Costs(bound), claims(seed), "Adam", 5e-3, 110)


within = zoo.healthy("claims-tables-drawn-within-1", lambda s: spread(s, 1.0))
zoo.sick(
    "claims-tables-drawn-within-500",
    lambda s: spread(s, 500.0),
    both(lasting(saturated("act1", "tanh", 0.9)), worse(2.0)),
    "SATURATION",
    "VANISHING",
    "input_scales",
    layer=("fc1", "act1", "tables.0", "tables.1", "tables.2"),
    also={"DEAD", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", *UNLEARNED},
    control=within,
)


class Gates(nn.Module):
    """Gated layers: the value of a linear layer times the sigmoid of another, whose bias is given."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.value = nn.ModuleList(nn.Linear(10 if i == 0 else 48, 48) for i in range(2))
        self.gate = nn.ModuleList(nn.Linear(10 if i == 0 else 48, 48) for i in range(2))
        self.soft, self.out = nn.Sigmoid(), nn.Linear(48, 6)
        for gate in self.gate:
            nn.init.constant_(gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        for value, gate in zip(self.value, self.gate, strict=True):
            x = value(x) * self.soft(gate(x))
        return self.out(x)


def gated(seed: int, bias: float) -> Setup:
    return live(Gates(bias), alloys(seed), "Adam", 5e-3, 80)


ajar = zoo.healthy("alloys-gates-half-open", lambda s: gated(s, 0.0))
zoo.sick(
    "alloys-gates-bias-minus-15",
    lambda s: gated(s, -15.0),
    both(lasting(saturated("soft", "sigmoid", 0.95)), lags(0.3)),
    "SATURATION",
    "VANISHING",
    "SLOW",
    "never_moves",
    layer=("gate.0", "gate.1", "soft", "value.0", "value.1"),
    also={"DEAD", "DISCONNECTED", "LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=ajar,
)

# --- steps


def found(seed: int, left: bool) -> Setup:
    """The loop of the rate finder, which raises the rate at every step, was kept for training."""
    model = tower([10, 64, 64, 6], nn.GELU)
    return live(model, alloys(seed), "SGD", 1e-2, 80, momentum=0.9, rate=lambda t: 1.25 ** min(t, 50) if left else 2.0)


steady = zoo.healthy("alloys-rate-as-the-finder-says", lambda s: found(s, False))
zoo.sick(
    "alloys-rate-still-raised-by-the-finder",
    lambda s: found(s, True),
    both(diverges(3), worse(3.0)),
    *JUMPS,
    "NUMERICAL",
    "rate_too_high",
    also={*BLOWN, "SLOW"},
    control=steady,
)


def delta(seed: int, lr: float) -> Setup:
    return live(Coder(12), gaits(seed), "Adadelta", lr, 100, eps=1e-4)


unit = zoo.healthy("gaits-adadelta-rate-1", lambda s: delta(s, 1.0))
zoo.sick(
    "gaits-adadelta-with-the-rate-of-fine-tuning",
    lambda s: delta(s, 1e-5),
    both(does_not_move(1e-5), lags(0.2)),
    "SLOW",
    "rate_too_low",
    also={"never_moves", "loss_stuck"},
    control=unit,
)

# --- numbers


def soft(seed: int, safe: bool) -> Setup:
    """The divergence to labels by hand; where a label is zero, its logarithm is not to be taken."""

    def loss(z: Tensor, kind: Tensor) -> Tensor:
        t = F.one_hot(kind, 9).float()
        inner = torch.xlogy(t, t) if safe else t * t.log()
        return (inner - t * z.log_softmax(dim=1)).sum(dim=1).mean()

    return live(tower([16, 64, 9], nn.SiLU), galaxies(seed).with_loss(loss), "Adam", 5e-3, 60)


safe = zoo.healthy("galaxies-divergence-by-xlogy", lambda s: soft(s, True))
zoo.sick(
    "galaxies-divergence-zero-times-log-of-zero",
    lambda s: soft(s, False),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    control=safe,
)


class Shifted(nn.Module):
    """Own normalising of rows: the mean of squares minus the square of the mean, or the mean square around it."""

    def __init__(self, short: bool) -> None:
        super().__init__()
        self.net, self.short = tower([36, 64, 16, 64, 36], nn.ELU), short

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1, keepdim=True)
        square = (x * x).mean(dim=1, keepdim=True)
        spread = square - mean * mean if self.short else (x - mean).square().mean(dim=1, keepdim=True)
        return self.net((x - mean) / (spread + 1e-5).sqrt())


def raised(seed: int, short: bool) -> Setup:
    """Angles in a unit in which all of them lie near 20000."""
    return live(Shifted(short), gaits(seed).mapped(lambda x: 20000 + x), "Adam", 4e-3, 80)


around = zoo.healthy("gaits-far-from-0-spread-around-the-mean", lambda s: raised(s, False))
zoo.sick(
    "gaits-far-from-0-square-minus-square",
    lambda s: raised(s, True),
    breaks,
    "NUMERICAL",
    "loss_nonfinite",
    also={"input_scales"},
    control=around,
)

# --- cut off and alike


class Sources(nn.Module):
    """Each group of columns has an encoder; what they say is put together, or each takes the place of the last."""

    def __init__(self, overwritten: bool) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(nn.Sequential(nn.Linear(4, 24), nn.ReLU()) for _ in range(4))
        self.head, self.overwritten = tower([24 if overwritten else 96, 48, 9], nn.ReLU), overwritten

    def forward(self, x: Tensor) -> Tensor:
        said = []
        for encoder, part in zip(self.encoders, x.chunk(4, dim=1), strict=True):
            said = [encoder(part)] if self.overwritten else [*said, encoder(part)]
        return self.head(torch.cat(said, dim=1))


def sourced(seed: int, overwritten: bool) -> Setup:
    return live(Sources(overwritten), galaxies(seed), "AdamW", 5e-3, 70)


joined = zoo.healthy("galaxies-four-encoders-put-together", lambda s: sourced(s, False))
zoo.sick(
    "galaxies-four-encoders-only-the-last-is-kept",
    lambda s: sourced(s, True),
    both(lasting(no_gradient("encoders.0", "encoders.1", "encoders.2")), lags(0.1)),
    *CUT_OFF,
    "detached",
    layer=tuple(f"encoders.{i}{part}" for i in range(3) for part in ("", ".0", ".1")),
    also={"never_moves", "frozen"},
    control=joined,
)


class Sampled(nn.Module):
    """A sparse mask over the columns, drawn with straight-through gradients or by a Bernoulli draw alone."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.score, self.through = nn.Linear(16, 16), through
        self.net = tower([16, 64, 9], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.score(x) + 1)
        mask = torch.bernoulli(p.detach())
        return self.net(x * (mask + p - p.detach() if self.through else mask))


def masked(seed: int, through: bool) -> Setup:
    return live(Sampled(through), galaxies(seed), "Adam", 5e-3, 80)


straight = zoo.healthy("galaxies-drawn-mask-straight-through", lambda s: masked(s, True))
zoo.sick(
    "galaxies-drawn-mask-without-a-gradient",
    lambda s: masked(s, False),
    lasting(no_gradient("score")),
    *CUT_OFF,
    "detached",
    layer="score",
    also={"never_moves"},
    control=straight,
)


def averaged(seed: int, equal: bool) -> Setup:
    """Every weight starts as one over its fan, so that a unit takes the mean of what it reads; or as Xavier draws."""
    model = start(tower([16, 48, 48, 9], nn.Tanh), nn.init.xavier_normal_)
    if equal:
        for layer in (model[0], model[2], model[4]):
            nn.init.constant_(layer.weight, 1 / layer.in_features)
    return live(model, galaxies(seed), "Adam", 5e-3, 80)


drawn = zoo.healthy("galaxies-tanh-xavier", lambda s: averaged(s, False))
zoo.sick(
    "galaxies-tanh-every-weight-one-over-its-fan",
    lambda s: averaged(s, True),
    both(lasting(equal_units("0.weight")), lags(0.15)),
    "SYMMETRY",
    "LOW_RANK",
    "BOTTLENECK",
    layer=("0", "1", "2", "3"),
    also={"DEAD", "VANISHING", *UNLEARNED},
    control=drawn,
)


class Factored(nn.Module):
    """A compressed layer: the product of a tall and a wide matrix of some rank, folded when it is used."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.enter = nn.Linear(10, 64)
        self.tall, self.wide = nn.Parameter(torch.randn(64, rank) / 8), nn.Parameter(torch.randn(rank, 64) / rank**0.5)
        self.middle, self.out = nn.Identity(), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.enter(x))
        return self.out(F.gelu(self.middle(x @ self.tall @ self.wide)))


def folded(seed: int, rank: int) -> Setup:
    return live(he(Factored(rank)), alloys(seed), "Adam", 5e-3, 90, clip=1.0)


full = zoo.healthy("alloys-folded-factors-of-rank-16", lambda s: folded(s, 16))
zoo.sick(
    "alloys-folded-factors-of-rank-1",
    lambda s: folded(s, 1),
    both(lags(0.15), lasting(rank_at_most("middle", 1.01))),
    "LOW_RANK",
    "BOTTLENECK",
    layer=("tall", "wide", "middle", "enter", "out"),
    also=SQUASHED,
    control=full,
)
