# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks as people train them at work, with one fault each, and their twins.

Half: fresh.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import dead, equal_units, gradient_ratio, no_gradient, rank_at_most
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import DEADENS, JUMPS, NARROW, ONE_WAY, RUNS_AWAY
from validation.nets import gaussian_, he_, mlp
from validation.nets.programs import Plain
from validation.setups import live
from validation.tasks import Task, bends, blobs, clicks, documents, every, genres, homes, scenes, views

zoo = Zoo("mlp", half="fresh", proof=thrives())

# --- dying and growing


class Sine(nn.Module):
    """A picture as a function of its coordinates; `pace` multiplies what goes into each sine."""

    def __init__(self, depth: int, width: int, pace: float) -> None:
        super().__init__()
        self.pace = pace
        self.net = nn.ModuleList(nn.Linear(2 if i == 0 else width, width) for i in range(depth))
        self.rgb = nn.Linear(width, 3)
        for layer in self.net[1:]:
            nn.init.uniform_(layer.weight, -math.sqrt(6 / width) / 30, math.sqrt(6 / width) / 30)
        nn.init.uniform_(self.net[0].weight, -0.4, 0.4)

    def forward(self, place: Tensor) -> Tensor:
        for layer in self.net:
            place = torch.sin(self.pace * layer(place))
        return self.rgb(place)


siren = zoo.healthy("scene-sines-4x48", lambda s: live(Sine(4, 48, 30.0), scenes(s), lr=1e-3, steps=80))
zoo.sick(
    "scene-sines-6x48-without-their-frequency",
    lambda s: live(Sine(6, 48, 1.0), scenes(s), lr=1e-4, steps=60),
    lasting(gradient_ratio("net.0", "net.5", below=10**-2.5)),
    "VANISHING",
    control=siren,
)


class Valves(nn.Module):
    """Every layer passes a valve of its own, a number that is learned through a sigmoid."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(20 if i == 0 else 40, 40) for i in range(5))
        self.valves, self.out = nn.Parameter(torch.full((5,), start)), nn.Linear(40, 10)
        he_(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer, valve in zip(self.layers, torch.sigmoid(self.valves), strict=True):
            x = valve * F.softplus(layer(x))
        return self.out(x)


valves = zoo.healthy("genres-valves-open", lambda s: live(Valves(3.0), genres(s), lr=3e-3, steps=60))
zoo.sick(
    "genres-valves-nearly-shut",
    lambda s: live(Valves(-3.5), genres(s), lr=1e-3, steps=60),
    lasting(gradient_ratio("layers.0", "layers.4", below=10**-2.5)),
    "VANISHING",
    also={"SLOW", "LOW_RANK"},
    control=valves,
)


class Visits(nn.Module):
    """Embeddings of all fields side by side, then a tower; `through` changes what goes into the tower."""

    def __init__(self, size: int = 6, depth: int = 3, width: int = 48, std: float | None = None, through=None) -> None:
        super().__init__()
        self.table = nn.Embedding(100, size)
        self.tower = Plain([5 * size, *[width] * depth, 1], torch.relu)
        self.through = through
        he_(self.tower)
        if std is not None:
            for layer in self.tower.layers[:-1]:
                nn.init.normal_(layer.weight, std=std)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids + 20 * torch.arange(5)).flatten(1)
        return self.tower(self.through(x) if self.through else x)


visits = zoo.healthy("clicks-tower-6x64", lambda s: live(Visits(depth=6, width=64), clicks(s), lr=3e-3, steps=80))
zoo.sick(
    "clicks-tower-6x64-drawn-with-deviation-0.8",
    lambda s: live(Visits(depth=6, width=64, std=0.8), clicks(s), lr=1e-4, steps=40),
    lasting(gradient_ratio("tower.layers.0", "tower.layers.5", above=100)),
    "EXPLODING",
    also={"UNSTABLE"},
    control=visits,
)

# --- dead and flat


def normed(seed: int, shift: float) -> Setup:
    """Standardised within the batch, then shifted: the shift comes from a checkpoint of another network."""
    model = nn.Sequential(
        nn.Linear(9, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )
    model[4].bias.data += shift
    return live(model, homes(seed), lr=5e-3, steps=60)


normal = zoo.healthy("homes-batch-norm-2x64", lambda s: normed(s, 0.0))
zoo.sick(
    "homes-batch-norm-2x64-second-shift-minus-9",
    lambda s: normed(s, -9.0),
    lasting(dead("5", 0.97)),
    "DEAD",
    layer="3",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=normal,
)


def logged(seed: int, sign: float) -> Setup:
    """Word shares as logarithms, which are all negative, into weights that are all positive."""
    model = Plain([60, 64, 60], torch.relu)
    if sign:
        nn.init.uniform_(model.layers[0].weight, 0.0, 0.1)
    task = documents(seed).mapped(lambda x: (x + 0.05).log() - 3.5)
    return live(he_(model) if not sign else model, task, lr=3e-3, steps=60)


logs = zoo.healthy("documents-logarithms-drawn-both-ways", lambda s: logged(s, 0.0), thrives(0.05))
zoo.sick(
    "documents-logarithms-into-positive-weights",
    lambda s: logged(s, 1.0),
    lasting(never_fires("layers.0", 0.95)),
    "DEAD",
    layer="layers.0",
    also={*DEADENS, "LOW_RANK", "BOTTLENECK"},
    control=logs,
)


class Price(nn.Module):
    """The price as a share of `most`, by a sigmoid."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(9, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        return self.most * torch.sigmoid(self.out(F.gelu(self.fc2(F.gelu(self.fc1(x))))))


def priced(seed: int, most: float) -> Setup:
    task = homes(seed).with_loss(lambda y, t: F.mse_loss(y, t + 5))
    return live(Price(most), task, lr=3e-3, steps=100)


share = zoo.healthy("homes-share-of-10-by-sigmoid", lambda s: priced(s, 10.0))
zoo.sick(
    "homes-of-5-by-a-sigmoid-that-ends-at-1",
    lambda s: priced(s, 1.0),
    at_last(flat_behind("out", "sigmoid", 0.95)),
    "SATURATION",
    "VANISHING",
    layer="out",
    also={"LOW_RANK", "DEAD", "SLOW", "BOTTLENECK"},
    control=share,
)


class Codes(nn.Module):
    """Bits by tanh between encoder and decoder; `heat` sharpens them on the way to hard bits."""

    def __init__(self, heat: float) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(24, 48), nn.Linear(48, 16)
        self.dec1, self.dec2, self.heat = nn.Linear(16, 48), nn.Linear(48, 24), heat

    def forward(self, x: Tensor) -> Tensor:
        bits = torch.tanh(self.heat * self.enc2(F.silu(self.enc1(x))))
        return self.dec2(F.silu(self.dec1(bits)))


soft = zoo.healthy("hashing-soft-bits", lambda s: live(Codes(1.0), bends(s), lr=5e-3, steps=80))


def hashed(seed: int) -> Setup:
    model = Codes(1.0)
    model.enc2.weight.data *= 300
    return live(model, bends(seed), lr=1e-3, steps=60)


zoo.sick(
    "hashing-bits-hard-from-the-start",
    hashed,
    lasting(flat_behind("enc2", "tanh", 0.85)),
    "SATURATION",
    "VANISHING",
    layer="enc2",
    also={"EXPLODING", "UNSTABLE"},
    control=soft,
)

# --- narrow


class Towers(nn.Module):
    """Queries and items meet in a space of `size` numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.item = mlp([24, 48, size], nn.GELU), mlp([18, 48, size], nn.GELU)

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        return self.query(query) @ self.item(item).T


met = zoo.healthy("retrieval-in-16-numbers", lambda s: live(Towers(16), views(s), lr=5e-3, steps=60))
zoo.sick(
    "retrieval-in-1-number",
    lambda s: live(Towers(1), views(s), lr=5e-3, steps=60),
    lags(0.15),
    "BOTTLENECK",
    layer=("query.2", "item.2"),
    also=NARROW,
    control=met,
)


class Painted(nn.Module):
    """Coordinates as waves, then layers of these widths, then a colour."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.ways = nn.Buffer(3 * torch.randn(2, 24))
        self.body = mlp([48, *widths, 3], nn.SiLU)

    def forward(self, place: Tensor) -> Tensor:
        angle = place @ self.ways
        return self.body(torch.cat([angle.sin(), angle.cos()], dim=1))


waves = zoo.healthy("scene-waves-64-24-64", lambda s: live(Painted(64, 24, 64), scenes(s), lr=5e-3, steps=80))
zoo.sick(
    "scene-waves-64-1-64",
    lambda s: live(Painted(64, 1, 64), scenes(s), lr=5e-3, steps=80),
    lags(0.15),
    "BOTTLENECK",
    layer=("body.2", "body.4"),
    also=NARROW,
    control=waves,
)


class Topics(nn.Module):
    """Texts as shares of topics, words as logits of those."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(60, 64), nn.Softplus(), nn.Linear(64, count))
        self.words = nn.Linear(count, 60)

    def forward(self, shares: Tensor) -> Tensor:
        return self.words(3 * self.encoder(shares).softmax(dim=1))


def topical(seed: int, count: int) -> Setup:
    """The divergence from the words of a text: what no model could know is taken off."""
    task = documents(seed).with_loss(lambda z, t: F.kl_div(z.log_softmax(dim=1), t, reduction="batchmean"))
    return live(Topics(count), task, lr=2e-2, steps=100)


eight = zoo.healthy("documents-10-topics", lambda s: topical(s, 10))
zoo.sick(
    "documents-2-topics-of-8",
    lambda s: topical(s, 2),
    lags(0.1),
    "BOTTLENECK",
    layer=("encoder.2", "words"),
    also=NARROW,
    control=eight,
)


def tagged(seed: int, hidden: int) -> Setup:
    """The second argument was meant as the number of layers."""
    return live(mlp([20, 48, hidden, 10], nn.LeakyReLU), genres(seed), lr=5e-3, steps=80)


labels = zoo.healthy("genres-hidden-layer-of-32", lambda s: tagged(s, 32))
zoo.sick(
    "genres-hidden-layer-of-1",
    lambda s: tagged(s, 1),
    lags(0.15),
    "BOTTLENECK",
    layer=("2", "4"),
    also=NARROW,
    control=labels,
)


def pooled(seed: int, over: int | None) -> Setup:
    """A mean that was meant for the fields of a visit goes over its numbers."""

    def mean(x: Tensor) -> Tensor:
        return x if over is None else x.mean(dim=over, keepdim=True).expand_as(x)

    return live(Visits(through=mean), clicks(seed), lr=5e-3, steps=60)


unpooled = zoo.healthy("clicks-all-numbers", lambda s: pooled(s, None), thrives(0.05))
zoo.sick(
    "clicks-mean-over-all-numbers",
    lambda s: pooled(s, 1),
    lasting(rank_at_most("tower.layers.0", 1.01)),
    *ONE_WAY,
    layer=("tower.layers.0", "table"),
    control=unpooled,
)

# --- equal and cut


class Mixture(nn.Module):
    """A density of several bells for each row; `equal` starts them all at the same place."""

    def __init__(self, equal: bool) -> None:
        super().__init__()
        self.body = mlp([9, 48, 48], nn.SiLU).append(nn.SiLU())
        self.share, self.mean, self.spread = (nn.Linear(48, 5) for _ in range(3))
        if equal:
            for head in (self.share, self.mean, self.spread):
                nn.init.zeros_(head.weight)
                nn.init.zeros_(head.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.share(h).log_softmax(dim=1), self.mean(h), F.softplus(self.spread(h)) + 0.05


def bells(out: tuple[Tensor, Tensor, Tensor], t: Tensor) -> Tensor:
    share, mean, spread = out
    log_p = -0.5 * ((t - mean) / spread).square() - spread.log()
    return 2 - (share + log_p).logsumexp(dim=1).mean()


def blended(seed: int, equal: bool) -> Setup:
    # Plain descent: Adam would blow rounding errors up until the bells come apart.
    return live(Mixture(equal), homes(seed).with_loss(bells), "SGD", 0.03, 80, momentum=0.9)


mixture = zoo.healthy("homes-five-bells", lambda s: blended(s, False))
zoo.sick(
    "homes-five-bells-that-start-as-one",
    lambda s: blended(s, True),
    lasting(equal_units("mean.weight"), equal_units("spread.weight")),
    "SYMMETRY",
    layer=("mean", "spread", "share"),
    also={"LOW_RANK", "BOTTLENECK", "DISCONNECTED", "VANISHING", "DEAD"},
    control=mixture,
)


class Quantised(nn.Module):
    """Each row becomes the nearest of 24 learned codes; `through` lets the gradient pass the choice."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([24, 48, 8], nn.GELU), mlp([8, 48, 24], nn.GELU)
        self.codes, self.through = nn.Embedding(24, 8), through
        nn.init.normal_(self.codes.weight, std=0.3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.encoder(x)
        code = self.codes(torch.cdist(z, self.codes.weight).argmin(dim=1))
        return self.decoder(z + (code - z).detach() if self.through else code), z, code


def quantised(through: bool):
    def loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        rebuilt, z, code = out
        near = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return F.mse_loss(rebuilt, x) + (near if through else 0.0)

    return loss


def coded(seed: int, through: bool) -> Setup:
    return live(Quantised(through), bends(seed, factors=3).with_loss(quantised(through)), lr=5e-3, steps=80)


@torch.no_grad()
def rebuilt_error(setup: Setup) -> float:
    """How far what is rebuilt is from what came, without the terms that only move the codes."""
    rows = torch.cat([setup.input_fn() for _ in range(4)])
    return F.mse_loss(setup.model(rows)[0], rows).item()


straight = zoo.healthy(
    "codes-gradient-passes-the-choice", lambda s: coded(s, True), thrives(0.1, measure=rebuilt_error)
)
zoo.sick(
    "codes-gradient-stops-at-the-choice",
    lambda s: coded(s, False),
    lasting(no_gradient("encoder")),
    "DISCONNECTED",
    layer=("encoder.2", "encoder.0", "codes"),
    also={"DEAD"},
    control=straight,
)


class Banded(nn.Module):
    """A score is cut into bands, and each band has a vector; `soft` mixes the two nearest."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.scorer, self.soft = mlp([9, 32, 1], nn.Tanh), soft
        self.bands, self.rest, self.out = nn.Embedding(11, 16), nn.Linear(9, 32), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        score = 10 * torch.sigmoid(self.scorer(x)).squeeze(1)
        low = score.long().clamp_max(9)
        band = self.bands(low)
        if self.soft:
            band = torch.lerp(band, self.bands(low + 1), (score - low)[:, None])
        return self.out(torch.cat([band, F.silu(self.rest(x))], dim=1))


banded = zoo.healthy("homes-score-between-bands", lambda s: live(Banded(True), homes(s), lr=1e-2, steps=60))
zoo.sick(
    "homes-score-cast-to-a-band",
    lambda s: live(Banded(False), homes(s), lr=1e-2, steps=60),
    lasting(no_gradient("scorer")),
    "DISCONNECTED",
    layer=("scorer.2", "scorer.0"),
    also={"DEAD"},
    control=banded,
)

# --- numbers, jumps, rates


class Cosines(nn.Module):
    """Rows on the unit sphere against learned directions; `eps` keeps the length from zero."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.body, self.ways, self.eps = mlp([20, 48, 24], nn.SiLU), nn.Linear(24, 6, bias=False), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x / (x.square().sum(dim=1, keepdim=True) + self.eps).sqrt() * 4
        return 4 * self.ways(self.body(x))


def empty_rows(seed: int, eps: float) -> Setup:
    """Now and then a visitor without any history: a row of zeros."""
    now = every(20, 6)

    def change(x: Tensor) -> Tensor:
        return torch.cat([0 * x[:1], x[1:]]) if now() else x

    return live(Cosines(eps), blobs(seed, 20, 6, 64, 0.8).mapped(change), lr=3e-3)


lengths = zoo.healthy("rows-on-the-sphere-with-eps", lambda s: empty_rows(s, 1e-6))
zoo.sick("rows-on-the-sphere-one-is-empty", lambda s: empty_rows(s, 0.0), breaks, "NUMERICAL", control=lengths)


def counted(seed: int, soft: bool) -> Setup:
    """Counts by their rate; a rate of zero has no logarithm."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        rate = F.softplus(z) if soft else F.relu(z)
        counts = (2 * t.exp()).round()
        return (rate - counts * rate.log()).mean() + 6

    return live(he_(Plain([9, 48, 48, 1], F.gelu)), homes(seed).with_loss(loss), lr=3e-3, steps=50)


rates = zoo.healthy("counts-rate-by-softplus", lambda s: counted(s, True))
zoo.sick(
    "counts-rate-by-relu",
    lambda s: counted(s, False),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE", "DEAD"},
    control=rates,
)


def percent(seed: int, least: float) -> Setup:
    """The error as a share of the price, and now and then a price of next to nothing."""
    now = every(9, 4)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        price = t.abs() + 0.5
        if now():
            price = torch.cat([1e-4 * price[:1], price[1:]])
        return ((y - t.abs() - 0.5).abs() / price.clamp_min(least)).mean()

    return live(he_(Plain([9, 48, 48, 1], F.silu)), homes(seed).with_loss(loss), lr=2e-3, steps=72)


floored = zoo.healthy("homes-error-in-percent-with-floor", lambda s: percent(s, 0.5))
zoo.sick(
    "homes-error-in-percent-of-next-to-nothing",
    lambda s: percent(s, 0.0),
    gradient_norms_spread(30),
    *JUMPS,
    control=floored,
)


def paced(seed: int, kind: str, lr: float, **more) -> Setup:
    return live(gaussian_(Plain([20, 56, 56, 10], F.mish), 1.4), genres(seed), kind, lr, 50, **more)


steady = zoo.healthy("genres-mish-sgd-momentum-0.9", lambda s: paced(s, "SGD", 0.3, momentum=0.9))
zoo.sick(
    "genres-mish-sgd-momentum-above-1",
    lambda s: paced(s, "SGD", 0.3, momentum=1.3),
    diverges(),
    *RUNS_AWAY,
    also={"DEAD", "SATURATION", "LOW_RANK", "BOTTLENECK", "VANISHING"},
    control=steady,
)
zoo.sick(
    "genres-mish-adam-rate-and-eps-exchanged",
    lambda s: paced(s, "Adam", 1e-8, eps=3e-3),
    does_not_move(steps=50),
    "SLOW",
    control=steady,
)


def bernoulli(seed: int, times: float) -> Task:
    """Weights of rare visits that were computed with the wrong total, in one batch of twelve."""
    now = every(12, 7)
    return clicks(seed).with_loss(
        lambda z, t: F.binary_cross_entropy_with_logits(z.flatten(), t) * (times if now() else 1.0)
    )


weighed = zoo.healthy("clicks-weights-even", lambda s: live(Visits(), bernoulli(s, 1.0), lr=5e-3, steps=72))
zoo.sick(
    "clicks-weights-wrong-in-every-twelfth-batch",
    lambda s: live(Visits(), bernoulli(s, 600.0), lr=1e-3, steps=72),
    gradient_norms_spread(30),
    *JUMPS,
    control=weighed,
)
