# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Usual dense networks with the mistakes that people make, their twins, and others that train well.

Half: usual.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import SQUEEZED, Through, tower, worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, he, start
from validation.cases._plain_nets import BLOWN, COLLAPSED, alike, ends_flat, with_groups
from validation.cases._usual_nets import (
    UNLEARNED,
    baskets,
    bikes,
    doubles,
    falls_behind,
    info_nce,
    mixtures,
    motors,
    pixels,
    rebuilt,
    species,
)
from validation.evidence.live import at_last, breaks, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import frozen, live, pretrain
from validation.tasks import every

zoo = Zoo("mlp", half="usual", proof=thrives(0.2))

# --- too narrow


def funnel(seed: int, least: int) -> Setup:
    """Each layer has half the width of the one before, down to `least`."""
    widths = [18, *(max(64 // 2**i, least) for i in range(7)), 12]
    return live(tower(widths, nn.LeakyReLU), species(seed), "Adam", 5e-3, 110)


halves = zoo.healthy("species-widths-halved-down-to-16", lambda s: funnel(s, 16))
zoo.sick(
    "species-widths-halved-down-to-1",
    lambda s: funnel(s, 1),
    both(lags(0.15), lasting(rank_at_most("12", 1.01))),
    *NARROW,
    layer=("10", "12", "14"),
    also={*SQUEEZED, "VANISHING", *UNLEARNED},
    control=halves,
)


class Heads(nn.Module):
    """A trunk that was written for one number, then eight heads upon what it says."""

    def __init__(self, said: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, said))
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(said, 16), nn.SiLU(), nn.Linear(16, 1)) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], dim=1)


trunk = zoo.healthy("motors-eight-heads-on-24-numbers", lambda s: live(Heads(24), motors(s), "AdamW", 5e-3, 80))
zoo.sick(
    "motors-eight-heads-on-one-number",
    lambda s: live(Heads(1), motors(s), "AdamW", 5e-3, 80),
    both(lags(0.2), lasting(rank_at_most("trunk.4", 1.01))),
    *NARROW,
    layer=("trunk.4", *(f"heads.{i}.0" for i in range(8))),
    also=SQUEEZED,
    control=trunk,
)


class Views(nn.Module):
    """An encoder and a projector; the loss contrasts what it says of two views."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
        self.projector = nn.Linear(48, size)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return info_nce(self.projector(self.encoder(a)), self.projector(self.encoder(b)))


def contrasted(seed: int, size: int) -> Setup:
    return live(Views(size), doubles(seed), "Adam", 3e-3, 100)


pairs = zoo.healthy("doubles-contrast-in-24-directions", lambda s: contrasted(s, 24))
zoo.sick(
    "doubles-contrast-in-2-directions",
    lambda s: contrasted(s, 2),
    both(worse(1.5), lasting(rank_at_most("projector", 2.01))),
    *NARROW,
    layer="projector",
    also=SQUEEZED,
    control=pairs,
)


class Set(nn.Module):
    """Goods of a basket have vectors, which are summed; a config says how long they are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.goods = nn.Linear(60, size, bias=False)
        self.rho = nn.Sequential(
            nn.BatchNorm1d(size), nn.Linear(size, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.goods(x))


goods = zoo.healthy("baskets-vectors-of-16", lambda s: live(Set(16), baskets(s), "AdamW", 5e-3, 80))
zoo.sick(
    "baskets-vectors-of-1",
    lambda s: live(Set(1), baskets(s), "AdamW", 5e-3, 80),
    both(lags(0.2), lasting(rank_at_most("goods", 1.01))),
    *NARROW,
    layer=("goods", "rho.0", "rho.1"),
    also=SQUEEZED,
    control=goods,
)

# --- all alike


class Pulled(nn.Module):
    """Two views are pulled together; what keeps the columns wide apart may be left out."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.encoder, self.spread = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32)), spread

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.encoder(a), self.encoder(b)
        wide = sum(F.relu(1 - (z.var(dim=0) + 1e-4).sqrt()).mean() for z in (za, zb))
        mixed = sum((torch.cov(z.T) - torch.diag(z.var(dim=0))).square().sum() / 32 for z in (za, zb))
        return F.mse_loss(za, zb) + self.spread * (wide + 0.05 * mixed)


vicreg = zoo.healthy("doubles-pulled-together-kept-wide", lambda s: live(Pulled(1.0), doubles(s), "Adam", 3e-3, 90))
zoo.sick(
    "doubles-pulled-together-nothing-keeps-them-wide",
    lambda s: live(Pulled(0.0), doubles(s), "Adam", 3e-3, 90),
    ends_flat("encoder", 0.12),
    *COLLAPSED,
    "DEAD",
    "VANISHING",
    also={"SYMMETRY", "SLOW", "loss_stuck", "DISCONNECTED"},
    control=vicreg,
)


class Tokens(nn.Module):
    """Every column is a token with a vector of its own; the norm stands before or behind that vector."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(1 if first else 12), first
        self.lift, self.place = nn.Linear(1, 12), nn.Parameter(0.3 * torch.randn(18, 12))
        self.out = nn.Sequential(nn.Linear(18 * 12, 64), nn.GELU(), nn.Linear(64, 12))

    def forward(self, x: Tensor) -> Tensor:
        x = x[..., None]
        x = self.lift(self.norm(x)) + self.place if self.first else self.norm(self.lift(x) + self.place)
        return self.out(x.flatten(1))


tokens = zoo.healthy(
    "species-columns-as-tokens-norm-of-12", lambda s: live(Tokens(False), species(s), "AdamW", 3e-3, 70)
)
zoo.sick(
    "species-columns-as-tokens-norm-of-1",
    lambda s: live(Tokens(True), species(s), "AdamW", 3e-3, 70),
    both(lasting(alike("norm")), lags(0.3)),
    *COLLAPSED,
    "DISCONNECTED",
    "DEAD",
    "VANISHING",
    also={"SYMMETRY", "SATURATION", *UNLEARNED},
    control=tokens,
)

# --- dead and flat


class Sparse(nn.Module):
    """A wide code that is to be sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.act, self.dec = nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.act(self.enc(x))
        return self.dec(code), code


def sparse(seed: int, weight: float) -> Setup:
    task = mixtures(seed).with_loss(lambda out, x: F.mse_loss(out[0], x) + weight * out[1].abs().sum(dim=1).mean())
    return live(Sparse(), task, "Adam", 5e-3, 110)


lean = zoo.healthy("mixtures-sparse-code-penalty-1e-4", lambda s: sparse(s, 1e-4), thrives(0.2, most_dead=0.5))
zoo.sick(
    "mixtures-sparse-code-penalty-0.3",
    lambda s: sparse(s, 0.3),
    both(at_last(dead("act", 0.95)), falls_behind(rebuilt, 2.0, "error")),
    "DEAD",
    "DISCONNECTED",
    layer=("enc", "act"),
    also={"VANISHING", "SLOW", "loss_stuck", "LOW_RANK", "BOTTLENECK", "never_moves", "first_loss_high"},
    control=lean,
)


def loud(seed: int, raw: bool) -> Setup:
    """Levels in decibels, which lie around minus 80, as they are or standardised."""
    task = species(seed).mapped(lambda x: 10 * x - 80 if raw else x)
    return live(tower([18, 64, 64, 12], nn.ReLU), task, "SGD", 0.05, 90, momentum=0.9)


levels = zoo.healthy("species-levels-standardised", lambda s: loud(s, False))
zoo.sick(
    "species-levels-in-decibels",
    lambda s: loud(s, True),
    both(at_last(dead("3", 0.8)), worse(3.0)),
    "DEAD",
    *JUMPS,
    "DISCONNECTED",
    also={"input_scales", "first_loss_high", "VANISHING", "LOW_RANK", "BOTTLENECK", "rate_too_high", *UNLEARNED},
    control=levels,
)


def minus(seed: int, sign: float) -> Setup:
    """The start is drawn from 0 to a bound, on the wrong side of zero, or on both sides."""
    model = tower([60, 64, 64, 8], nn.ReLU)
    for layer in (model[0], model[2]):
        bound = (3 / layer.in_features) ** 0.5
        nn.init.uniform_(layer.weight, -bound, sign * bound)
    return live(model, baskets(seed), "Adam", 2e-3, 80)


sided = zoo.healthy("baskets-start-on-both-sides-of-0", lambda s: minus(s, 1.0))
zoo.sick(
    "baskets-start-below-0-alone",
    lambda s: minus(s, 0.0),
    both(lasting(dead("1", 0.9)), lags(0.3)),
    "DEAD",
    "DISCONNECTED",
    layer=("0", "1", "2", "3"),
    also={"VANISHING", "LOW_RANK", "BOTTLENECK", *UNLEARNED},
    control=sided,
)


def grey(seed: int) -> Setup:
    model = start(tower([64, 48, 48, 10], nn.Sigmoid), nn.init.xavier_normal_)
    return live(model, pixels(seed), "Adam", 1e-2, 70)


zoo.healthy("pixels-sigmoid-from-0-to-1", grey)


class Hour(nn.Module):
    """Kinds as vectors beside the numbers, two layers of tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in (24, 7, 4))
        self.fc1, self.act1, self.fc2, self.act2 = nn.Linear(23, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh()
        self.out = nn.Linear(32, 1)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.out(self.act2(self.fc2(self.act1(self.fc1(torch.cat([*parts, x], dim=1))))))


def stamped(seed: int, factor: float) -> Setup:
    """One column says when; it is counted in days from the middle, or in thousands of seconds since 1970."""

    def change(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        kinds, x = batch
        return kinds, torch.cat([x[:, :4], x[:, 4:] if factor == 1 else 1.7e6 + factor * x[:, 4:]], dim=1)

    return live(Hour(), bikes(seed).mapped(change), "Adam", 5e-3, 90)


dated = zoo.healthy("bikes-tanh-time-in-days", lambda s: stamped(s, 1.0))
zoo.sick(
    "bikes-tanh-time-since-1970",
    lambda s: stamped(s, 2600.0),
    both(lasting(saturated("act1", "tanh", 0.95)), lags(0.2)),
    "SATURATION",
    "VANISHING",
    layer=("fc1", "act1"),
    also={"input_scales", "LOW_RANK", "BOTTLENECK", "DISCONNECTED", *UNLEARNED},
    control=dated,
)

# --- starts


def bert(seed: int, std: float | None) -> Setup:
    model = tower([18, *[48] * 10, 12], nn.GELU)
    model = he(model) if std is None else start(model, lambda w: nn.init.trunc_normal_(w, std=std))
    return live(model, species(seed), "SGD", 0.03, 80, momentum=0.9)


kind = zoo.healthy("species-gelu-10x48-kaiming", lambda s: bert(s, None))
zoo.sick(
    "species-gelu-10x48-start-of-0.02-from-a-language-model",
    lambda s: bert(s, 0.02),
    both(lasting(gradient_ratio("0", "18", below=1e-3)), lags(0.3)),
    "VANISHING",
    also={"LOW_RANK", "BOTTLENECK", "DEAD", "DISCONNECTED", *UNLEARNED},
    control=kind,
)


def powers(seed: int, cubic: bool) -> Setup:
    """The activation is a polynomial with the cube in it, or one that is bent back."""
    act = (lambda x: x + 0.5 * x**2 + 0.3 * x**3) if cubic else (lambda x: x + 0.5 * torch.sin(x) ** 2)
    parts: list[nn.Module] = []
    for a in (8, 48, 48, 48):
        parts += [nn.Linear(a, 48), Through(act)]
    model = start(nn.Sequential(*parts, nn.Linear(48, 8)), nn.init.xavier_normal_)
    return live(model, motors(seed), "SGD", 0.02, 60, momentum=0.9)


bent = zoo.healthy("motors-activation-of-a-sine", lambda s: powers(s, False))
zoo.sick("motors-activation-of-a-cube", lambda s: powers(s, True), breaks, *RUNS_AWAY, also=BLOWN, control=bent)

# --- jumps


class Bikes(nn.Module):
    """Kinds as vectors beside the numbers, batch norm, ReLU, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in (24, 7, 4))
        self.net = nn.Sequential(nn.BatchNorm1d(23), nn.Linear(23, 64), nn.ReLU(), nn.Dropout(0.05), nn.Linear(64, 1))

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.net(torch.cat([*parts, x], dim=1))


def glitch(seed: int, limit: float) -> Setup:
    """Now and then the counter writes its largest number; targets beyond a limit are cut, or not."""
    struck = every(12, 5)

    def change(x: tuple[Tensor, Tensor], y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        if struck():
            y = y.clone()
            y[:2] = 650.0
        return x, y.clamp(max=limit)

    return live(Bikes(), bikes(seed).changed(change), "Adam", 1e-2, 90)


counted = zoo.healthy("bikes-counter-cut-at-3", lambda s: glitch(s, 3.0))
zoo.sick(
    "bikes-counter-writes-its-largest-number",
    lambda s: glitch(s, 1e9),
    both(gradient_norms_spread(20), worse(2.0)),
    *JUMPS,
    also={*BLOWN, "bad_batch", "NUMERICAL"},
    control=counted,
)
cycle = zoo.healthy(
    "mixtures-autoencoder-adam-3e-3", lambda s: live(tower([48, 64, 16, 64, 48], nn.ELU), mixtures(s), "Adam", 3e-3, 80)
)
zoo.sick(
    "mixtures-autoencoder-adam-3",
    lambda s: live(tower([48, 64, 16, 64, 48], nn.ELU), mixtures(s), "Adam", 3.0, 80),
    both(diverges(20), worse(5.0)),
    *JUMPS,
    "NUMERICAL",
    also=BLOWN,
    control=cycle,
)

# --- cut off


class Routed(nn.Module):
    """Each row goes to the expert that a router likes best; its share multiplies what comes out, or is forgotten."""

    def __init__(self, weighed: bool) -> None:
        super().__init__()
        self.router, self.weighed = nn.Linear(8, 4), weighed
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share, best = self.router(x).softmax(dim=1).max(dim=1, keepdim=True)
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        said = said.gather(1, best[..., None].expand(-1, 1, said.shape[-1])).squeeze(1)
        return said * share if self.weighed else said


routed = zoo.healthy("motors-router-share-multiplies", lambda s: live(Routed(True), motors(s), "Adam", 5e-3, 90))
zoo.sick(
    "motors-router-share-forgotten",
    lambda s: live(Routed(False), motors(s), "Adam", 5e-3, 90),
    lasting(no_gradient("router")),
    *CUT_OFF,
    layer="router",
    also={"detached", "never_moves"},
    control=routed,
)


class Arrays(nn.Module):
    """A feature in the middle is computed by torch, or by numpy and put back into a tensor."""

    def __init__(self, arrays: bool) -> None:
        super().__init__()
        self.front, self.arrays = nn.Sequential(nn.Linear(48, 32), nn.Tanh()), arrays
        self.back = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 48))

    def forward(self, x: Tensor) -> Tensor:
        h = self.front(x)
        h = torch.from_numpy(h.detach().cpu().numpy().cumsum(axis=1)) if self.arrays else h.cumsum(dim=1)
        return self.back(h / 4)


summed = zoo.healthy("mixtures-running-sum-by-torch", lambda s: live(Arrays(False), mixtures(s), "AdamW", 4e-3, 80))
zoo.sick(
    "mixtures-running-sum-by-numpy",
    lambda s: live(Arrays(True), mixtures(s), "AdamW", 4e-3, 80),
    lasting(no_gradient("front")),
    *CUT_OFF,
    layer=("front.0", "front"),
    also={"detached", "never_moves"},
    control=summed,
)

# --- numbers


class Unit(nn.Module):
    """Baskets are brought to length one, by torch or by hand."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand, self.net = by_hand, tower([60, 64, 8], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(4 * (x / x.norm(dim=1, keepdim=True) if self.by_hand else F.normalize(x, dim=1)))


def length(seed: int, by_hand: bool) -> Setup:
    return live(Unit(by_hand), baskets(seed, empty=0.004), "Adam", 5e-3, 80)


safe = zoo.healthy("baskets-some-empty-length-by-torch", lambda s: length(s, False))
zoo.sick(
    "baskets-some-empty-length-by-hand",
    lambda s: length(s, True),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "bad_batch"},
    control=safe,
)


class Scored(nn.Module):
    """Every batch is standardised by its own mean and deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([18, 64, 12], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - x.mean(dim=0)) / (x.std(dim=0) + 1e-6))


def epochs(seed: int, last: int) -> Setup:
    """The last batch of an epoch is what is left of the data, which may be one row."""
    end = every(25, 24)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        keep = last if end() else len(x)
        return x[:keep], y[:keep]

    return live(Scored(), species(seed).changed(change), "Adam", 5e-3, 80)


whole = zoo.healthy("species-last-batch-of-20-rows", lambda s: epochs(s, 20))
zoo.sick(
    "species-last-batch-of-one-row",
    lambda s: epochs(s, 1),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "bad_batch", "batch_size"},
    control=whole,
)

# --- others that train well

zoo.healthy("bikes-tables-batch-norm-dropout", lambda s: live(Bikes(), bikes(s), "AdamW", 1e-2, 80))
zoo.healthy(
    "bikes-tables-cosine-warm-up-clipped",
    lambda s: live(
        Bikes(), bikes(s), "AdamW", 2e-2, 90, clip=1.0, rate=lambda t: min((t + 1) / 10, 1.0, (95 - t) / 60)
    ),
)
zoo.healthy("bikes-noise-as-large-as-the-signal", lambda s: live(Bikes(), bikes(s, noise=0.7), "Adam", 1e-2, 90))
zoo.healthy("species-batches-of-4", lambda s: live(tower([18, 48, 12], nn.ReLU), species(s, batch=4), "SGD", 0.05, 120))
zoo.healthy(
    "species-swish-layer-norm-nesterov",
    lambda s: live(
        tower([18, 64, 64, 12], nn.SiLU, norm=nn.LayerNorm), species(s), "SGD", 0.05, 60, momentum=0.9, nesterov=True
    ),
)
zoo.healthy(
    "species-weight-decay-0.1",
    lambda s: live(tower([18, 96, 12], nn.ReLU), species(s), "AdamW", 5e-3, 70, weight_decay=0.1),
)
zoo.healthy(
    "species-selu-six-layers-nadam",
    lambda s: live(
        start(tower([18, *[40] * 6, 12], nn.SELU), lambda w: nn.init.kaiming_normal_(w, nonlinearity="linear")),
        species(s),
        "NAdam",
        2e-3,
        70,
    ),
)
zoo.healthy(
    "species-waist-of-8-for-12-kinds",
    lambda s: live(tower([18, 64, 8, 64, 12], nn.ELU), species(s, apart=1.5), "Adam", 5e-3, 90),
)
zoo.healthy("species-adagrad", lambda s: live(tower([18, 64, 12], nn.Tanh), species(s), "Adagrad", 0.05, 70))
zoo.healthy("motors-huge-width-small-rate", lambda s: live(tower([8, 600, 8], nn.ReLU), motors(s), "Adam", 2e-3, 60))
zoo.healthy(
    "motors-target-of-a-twentieth",
    lambda s: live(tower([8, 64, 64, 8], nn.GELU), motors(s).changed(lambda x, y: (x, y * 0.05)), "Adam", 3e-3, 90),
)
zoo.healthy(
    "mixtures-code-of-8-for-8-substances",
    lambda s: live(tower([48, 64, 8, 64, 48], nn.GELU), mixtures(s), "Adam", 5e-3, 110),
)
zoo.healthy(
    "mixtures-linear-code-of-8",
    lambda s: live(nn.Sequential(nn.Linear(48, 8), nn.Linear(8, 48)), mixtures(s), "Adam", 1e-2, 100),
)
zoo.healthy(
    "mixtures-half-of-it-dropped",
    lambda s: live(nn.Sequential(nn.Dropout(0.3), *tower([48, 96, 48], nn.ReLU)), mixtures(s), "Adam", 4e-3, 90),
)


def margins(out: Tensor, y: Tensor) -> Tensor:
    """A hinge for each wrong class."""
    return F.multi_margin_loss(out, y)


zoo.healthy(
    "pixels-hinge-linear-classifier",
    lambda s: live(nn.Linear(64, 10), pixels(s).with_loss(margins), "SGD", 0.1, 80, momentum=0.9),
)


class Tuned(nn.Module):
    """A body that was trained on other kinds before, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*tower([18, 64, 64]), nn.ReLU()), nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def tuned(seed: int) -> Setup:
    model = Tuned()
    pretrain(live(model, species(seed + 7)), 40)
    nn.init.normal_(model.head.weight, std=0.02)
    return live(frozen(model, "body"), species(seed), "Adam", 2e-2, 70)


zoo.healthy("species-new-head-on-a-frozen-body", tuned)


def two_rates(seed: int) -> Setup:
    model = Tuned()
    pretrain(live(model, species(seed + 7)), 40)
    groups = [{"params": model.body.parameters(), "lr": 2e-4}, {"params": model.head.parameters(), "lr": 5e-3}]
    return with_groups(model, species(seed), groups, steps=70)


zoo.healthy("species-body-at-a-tenth-of-the-rate", two_rates)


class Density(nn.Module):
    """Four bells for each row: weights, places, widths."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(8, 64), nn.Tanh()), nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


def bells(out: Tensor, y: Tensor) -> Tensor:
    weight, place, width = out.chunk(3, dim=1)
    width = F.softplus(width) + 0.05
    chance = -0.5 * ((y[:, :1] - place) / width) ** 2 - width.log()
    return 3 - (chance + weight.log_softmax(dim=1)).logsumexp(dim=1).mean()


zoo.healthy("motors-four-bells", lambda s: live(Density(), motors(s).with_loss(bells), "Adam", 5e-3, 90), thrives(0.1))


def pinball(out: Tensor, y: Tensor) -> Tensor:
    gap = y[:, :1] - out
    level = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(level * gap, (level - 1) * gap).mean()


zoo.healthy(
    "motors-quantiles-10-50-90",
    lambda s: live(tower([8, 64, 64, 3], nn.GELU), motors(s).with_loss(pinball), "AdamW", 5e-3, 90),
)


class Triple(nn.Module):
    """Rows of one kind are drawn near, others pushed off; after a while many triples cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([18, 64, 16], nn.ReLU)

    def forward(self, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
        return F.triplet_margin_loss(self.net(a), self.net(p), self.net(n), margin=0.5)


def triples(seed: int) -> Setup:
    def change(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        x, y = x[y.argsort()], y.sort().values
        near = torch.where((y == y.roll(-1))[:, None], x.roll(-1, 0), x + 0.1)
        return (x, near, x.roll(23, 0)), y

    return live(Triple(), species(seed).changed(change).with_loss(lambda out, _: out), "Adam", 2e-3, 70)


zoo.healthy("species-triples-with-a-margin", triples)


class Vae(nn.Module):
    """A variational auto-encoder whose divergence counts for little."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = tower([48, 64, 24], nn.SiLU), tower([12, 64, 48], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.enc(x).chunk(2, dim=1)
        return self.dec(mu + (0.5 * logvar).exp() * torch.randn_like(mu)), mu, logvar


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    kl = 0.5 * (out[1] ** 2 + out[2].exp() - 1 - out[2]).sum(dim=1).mean()
    return F.mse_loss(out[0], x, reduction="none").sum(dim=1).mean() + 0.05 * kl


zoo.healthy("mixtures-vae-summed-error", lambda s: live(Vae(), mixtures(s).with_loss(elbo), "Adam", 4e-3, 100))


class Steps(nn.Module):
    """What noise is in a noisy row, for any strength of the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.net = nn.Linear(1, 32), tower([48 + 32, 128, 128, 48], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        mixed = (1 - t).sqrt() * x + t.sqrt() * noise
        return F.mse_loss(self.net(torch.cat([mixed, torch.sin(6 * self.time(t))], dim=1)), noise)


zoo.healthy("mixtures-diffusion", lambda s: live(Steps(), mixtures(s).with_loss(lambda out, _: out), "Adam", 3e-3, 100))


class Tied(nn.Module):
    """The table of goods reads the basket and names what is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mid = nn.Parameter(0.2 * torch.randn(60, 24)), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mid(x @ self.table)) @ self.table.T


zoo.healthy(
    "baskets-tied-table-names-the-goods",
    lambda s: live(
        Tied(),
        baskets(s).changed(lambda x, _: (x, x / 12)).with_loss(lambda z, t: -(t * z.log_softmax(1)).sum(1).mean()),
        "Adam",
        1e-2,
        90,
    ),
    thrives(0.1),
)
