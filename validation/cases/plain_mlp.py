# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain dense networks with the mistakes that people make, and their twins.

Half: plain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Evidence, Setup, Zoo, costly
from validation.cases._common_nets import SQUEEZED, tower, worse
from validation.cases._everyday_nets import CUT_OFF, NARROW, Net, he, start
from validation.cases._plain_nets import (
    BLOWN,
    COLLAPSED,
    alike,
    arm,
    crops,
    ends_flat,
    flat,
    flights,
    fraud,
    recipes,
    rings,
    sales,
    survey,
)
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, thrives
from validation.evidence.signal import both, dead, gradient_ratio, judged, no_gradient, rank_at_most, saturated
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread, train
from validation.labels import JUMPS, RUNS_AWAY
from validation.setups import live
from validation.tasks import clicks, every, views

zoo = Zoo("mlp", half="plain", proof=thrives())

# --- too narrow


class Coder(nn.Module):
    """The auto-encoder of a tutorial; its code may be of two numbers, to be plotted."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 40))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def coded(seed: int, code: int) -> Setup:
    return live(Coder(code), survey(seed), "Adam", 4e-3, 100)


coder = zoo.healthy("survey-autoencoder-code-10-of-7-traits", lambda s: coded(s, 10))
zoo.sick(
    "survey-autoencoder-code-2-to-be-plotted",
    lambda s: coded(s, 2),
    both(lags(0.12), lasting(rank_at_most("encoder.4", 2.01))),
    *NARROW,
    layer=("encoder.4", "decoder.0"),
    also=SQUEEZED,
    control=coder,
)


class Arm(nn.Module):
    """Widths come from a config; a layer in the middle may be far too narrow."""

    def __init__(self, middle: int) -> None:
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(6, 96), nn.BatchNorm1d(96)
        self.fc2, self.bn2 = nn.Linear(96, middle), nn.BatchNorm1d(middle)
        self.fc3, self.out = nn.Linear(middle, 96), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.bn1(self.fc1(x)))
        x = F.gelu(self.bn2(self.fc2(x)))
        return self.out(F.gelu(self.fc3(x)))


reach = zoo.healthy("arm-gelu-batch-norm-96-48-96", lambda s: live(Arm(48), arm(s), "AdamW", 5e-3, 70))
zoo.sick(
    "arm-gelu-batch-norm-96-2-96",
    lambda s: live(Arm(2), arm(s), "AdamW", 5e-3, 70),
    lags(0.2),
    *NARROW,
    layer=("fc2", "bn2", "fc3"),
    also=SQUEEZED,
    control=reach,
)


class Factored(nn.Module):
    """Every matrix is a product of two, to save weights; their rank may be chosen too low."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.into = nn.Linear(6, 64)
        self.down1, self.up1 = nn.Linear(64, rank, bias=False), nn.Linear(rank, 64)
        self.down2, self.up2 = nn.Linear(64, rank, bias=False), nn.Linear(rank, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.into(x))
        x = torch.tanh(self.up1(self.down1(x)))
        x = torch.tanh(self.up2(self.down2(x)))
        return self.out(x)


def factored(seed: int, rank: int) -> Setup:
    return live(Factored(rank), arm(seed), "Adam", 5e-3, 80)


rank = zoo.healthy("arm-factored-matrices-of-rank-16", lambda s: factored(s, 16))
zoo.sick(
    "arm-factored-matrices-of-rank-1",
    lambda s: factored(s, 1),
    both(lags(0.2), lasting(rank_at_most("down1", 1.01))),
    *NARROW,
    layer=("down1", "up1", "down2", "up2"),
    control=rank,
)


class Dish(nn.Module):
    """Ingredients as vectors, their mean, two layers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(80, size), nn.Dropout(0.1)
        self.fc1, self.fc2 = nn.Linear(size, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(self.drop(self.table(x)).mean(dim=1))))


def cooked(seed: int, size: int) -> Setup:
    return live(Dish(size), recipes(seed), "AdamW", 1e-2, 80)


dish = zoo.healthy("recipes-vectors-of-24", lambda s: cooked(s, 24))
zoo.sick(
    "recipes-vectors-of-1",
    lambda s: cooked(s, 1),
    both(lags(0.2), lasting(rank_at_most("fc1", 1.01))),
    *NARROW,
    layer=("table", "fc1"),
    control=dish,
)


class Hashed(nn.Module):
    """Five fields of a visit, each hashed into so many rows of a table."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.tables = nn.ModuleList(nn.Embedding(rows, 8) for _ in range(5))
        self.net = nn.Sequential(nn.Linear(40, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, ids: Tensor) -> Tensor:
        parts = [table((7 * ids[:, i] + i) % self.rows) for i, table in enumerate(self.tables)]
        return self.net(torch.cat(parts, dim=1))


def hashed(seed: int, rows: int) -> Setup:
    return live(Hashed(rows), clicks(seed, batch=192), "Adam", 1e-2, 90)


wide = zoo.healthy("clicks-hashed-into-50-rows", lambda s: hashed(s, 50))
zoo.sick(
    "clicks-hashed-into-2-rows",
    lambda s: hashed(s, 2),
    both(lags(0.15), lasting(rank_at_most("tables.0", 1.01))),
    *NARROW,
    layer=("tables.0", "tables.1", "tables.2", "tables.3", "tables.4", "net.0"),
    control=wide,
)


class Quantised(nn.Module):
    """A code is replaced by the nearest of a book; the gradient goes straight through, or nowhere."""

    def __init__(self, codes: int, straight: bool = True) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(40, 48), nn.ELU(), nn.Linear(48, 24))
        self.book = nn.Parameter(0.5 * torch.randn(codes, 4))
        self.dec, self.straight = nn.Sequential(nn.Linear(24, 48), nn.ELU(), nn.Linear(48, 40)), straight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.enc(x)
        parts = z.unflatten(1, (6, 4))
        near = self.book[torch.cdist(parts.detach(), self.book).argmin(dim=-1)]
        pull = (near - parts.detach()).square().mean() + 0.25 * (parts - near.detach()).square().mean()
        q = near.flatten(1)
        if self.straight:
            return self.dec(z + (q - z).detach()), pull
        return self.dec(q), 0 * pull.detach()


def quantised(seed: int, codes: int, straight: bool = True) -> Setup:
    task = survey(seed).with_loss(lambda out, t: F.mse_loss(out[0], t) + out[1])
    return live(Quantised(codes, straight), task, "Adam", 5e-3, 100)


def rebuilds_worse(case: Case, seed: int) -> Evidence:
    """The error of what is rebuilt, without the pull to the book, ends half as high again as the twin's."""
    errors = []
    for each in (case, case.control):
        setup = each.make(seed)
        train(setup, setup.steps, setup.optimizer)
        with torch.no_grad():
            errors.append(F.mse_loss(setup.model(setup.input_fn())[0], setup.loss_fn.__self__.target).item())
    return judged(errors[0] > 1.5 * errors[1], "rebuilt with an error of {:.3g}, the twin's {:.3g}", *errors)


book = zoo.healthy("survey-vector-quantised-book-of-32", lambda s: quantised(s, 32))
zoo.sick(
    "survey-vector-quantised-without-straight-through",
    lambda s: quantised(s, 32, False),
    both(lasting(no_gradient("enc")), costly(rebuilds_worse)),
    *CUT_OFF,
    layer=("enc.2", "enc.0"),
    also={"detached", "never_moves", "VANISHING", "SLOW"},
    control=book,
)


class Fused(nn.Module):
    """Three sensors have a small net each; what they say is put side by side."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, size)) for _ in range(3))
        self.join = nn.Sequential(nn.LayerNorm(3 * size), nn.Linear(3 * size, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat([part(each) for part, each in zip(self.parts, x.chunk(3, 1), strict=True)], dim=1))


def fused(seed: int, size: int) -> Setup:
    return live(Fused(size), crops(seed, 12, 24, 96), "AdamW", 5e-3, 90)


fusion = zoo.healthy("crops-three-sensors-16-numbers-each", lambda s: fused(s, 16))
zoo.sick(
    "crops-three-sensors-one-number-each",
    lambda s: fused(s, 1),
    lags(0.12),
    *NARROW,
    layer=("parts.0.2", "parts.1.2", "parts.2.2", "join.1"),
    also=SQUEEZED,
    control=fusion,
)

# --- all alike


class Generator(nn.Module):
    """Makes points from noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([8, 48, 48, 2], nn.LeakyReLU)

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        far = (a[:, None] - b).square().sum(dim=-1)
        return sum(torch.exp(-far / (2 * w * w)) for w in (0.2, 0.5, 1.5)).mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def generated(seed: int, each: bool) -> Setup:
    """Noise is drawn for each row, or once and repeated."""
    noise = torch.Generator().manual_seed(seed + 5)

    def change(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.randn(len(x) if each else 1, 8, generator=noise)
        return z.expand(len(x), -1).contiguous(), x

    return live(Generator(), rings(seed).changed(change).with_loss(mmd), "Adam", 3e-3, 80)


noisy = zoo.healthy("rings-generator-noise-for-each-row", lambda s: generated(s, True))
zoo.sick(
    "rings-generator-one-noise-for-the-batch",
    lambda s: generated(s, False),
    both(lags(0.2), lasting(alike("net"))),
    *COLLAPSED,
    also={"SYMMETRY", "SLOW", "VANISHING", "loss_stuck"},
    control=noisy,
)


class Vae(nn.Module):
    """A variational auto-encoder of a survey."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(40, 64), nn.SiLU())
        self.mu, self.logvar = nn.Linear(64, 12), nn.Linear(64, 12)
        self.dec = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 40))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)), mu, logvar


def varied(seed: int, beta: float) -> Setup:
    """The error is a mean over the questions, the divergence a sum; their weight has to make up for that."""

    def loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        kl = -0.5 * (1 + out[2] - out[1] ** 2 - out[2].exp()).sum(dim=1).mean()
        return F.mse_loss(out[0], x) + beta * kl

    return live(Vae(), survey(seed).with_loss(loss), "Adam", 5e-3, 90)


vae = zoo.healthy("survey-vae-divergence-times-0.003", lambda s: varied(s, 0.003))
zoo.sick(
    "survey-vae-divergence-summed-error-averaged",
    lambda s: varied(s, 1.0),
    ends_flat("mu", 0.2),
    *COLLAPSED,
    "VANISHING",
    "DISCONNECTED",
    layer=("mu", "dec.0", "logvar"),
    also={"DEAD", "SYMMETRY", "SLOW", "loss_stuck"},
    control=vae,
)

# --- starts


def sown(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, crops(seed), *args, **more)


class SoftHidden(nn.Module):
    """Softmax stands between the layers, where an activation should be."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((14, 64), (64, 64), (64, 64), (64, 64), (64, 6)))
        self.soft = soft

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).softmax(dim=1) if self.soft else F.relu(layer(x))
        return self.layers[-1](x)


plus = zoo.healthy("crops-relu-between-the-layers", lambda s: sown(s, SoftHidden(False), "SGD", 0.1, 90, momentum=0.9))
zoo.sick(
    "crops-softmax-between-the-layers",
    lambda s: sown(s, SoftHidden(True), "SGD", 0.1, 90, momentum=0.9),
    both(lasting(gradient_ratio("layers.0", "layers.3", below=1e-3)), lags(0.15)),
    "VANISHING",
    also={"SLOW", "loss_stuck", "never_moves", "rate_too_low", "LOW_RANK", "BOTTLENECK", "SATURATION"},
    control=plus,
)


class Ntk(nn.Module):
    """Every layer divides by the root of its width; the weights should then start at a deviation of one."""

    def __init__(self, unit: bool, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64 if i else 14, 64) for i in range(depth))
        self.head = nn.Linear(64, 6)
        if unit:
            for layer in self.layers:
                nn.init.normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x) * (2 / layer.in_features) ** 0.5)
        return self.head(x)


ntk = zoo.healthy("crops-ntk-unit-normal-start", lambda s: sown(s, Ntk(True), "SGD", 0.2, 70, momentum=0.9))
zoo.sick(
    "crops-ntk-torch-default-start",
    lambda s: sown(s, Ntk(False), "SGD", 0.2, 70, momentum=0.9),
    both(lasting(gradient_ratio("layers.0", "layers.5", below=1e-3)), lags(0.15)),
    "VANISHING",
    also={"SLOW", "loss_stuck", "never_moves", "rate_too_low", "LOW_RANK", "BOTTLENECK", "DEAD"},
    control=ntk,
)


def normal(act: type[nn.Module], std: float | None, depth: int = 5, width: int = 96) -> nn.Module:
    model = tower([14, *[width] * depth, 6], act)
    return he(model) if std is None else start(model, lambda w: nn.init.normal_(w, std=std))


drawn = zoo.healthy("crops-relu-5x96-kaiming-adam", lambda s: sown(s, normal(nn.ReLU, None), "Adam", 2e-3, 60))
zoo.sick(
    "crops-relu-5x96-normal-with-its-default-of-1",
    lambda s: sown(s, normal(nn.ReLU, 1.0), "Adam", 2e-3, 60),
    both(lasting(gradient_ratio("0", "8", above=100)), worse(3.0)),
    "EXPLODING",
    "UNSTABLE",
    also={"first_loss_high", "DEAD"},
    control=drawn,
)
tanh = zoo.healthy(
    "crops-tanh-5x96-xavier",
    lambda s: sown(s, start(tower([14, *[96] * 5, 6], nn.Tanh), nn.init.xavier_normal_), "Adam", 2e-3, 60),
)
zoo.sick(
    "crops-tanh-5x96-normal-with-its-default-of-1",
    lambda s: sown(s, normal(nn.Tanh, 1.0), "Adam", 2e-3, 60),
    both(lasting(saturated("3", "tanh", 0.6), saturated("9", "tanh", 0.6)), worse(1.3)),
    "SATURATION",
    "EXPLODING",
    also={"VANISHING", "UNSTABLE"},
    control=tanh,
)
small = zoo.healthy(
    "crops-net-of-zero-biases",
    lambda s: sown(s, start(Net([14, 64, 64, 6]), nn.init.xavier_uniform_), "SGD", 0.1, 60, momentum=0.9),
)
zoo.sick(
    "crops-net-of-zeros",
    lambda s: sown(s, start(Net([14, 64, 64, 6]), nn.init.zeros_), "SGD", 0.1, 60, momentum=0.9),
    both(lasting(no_gradient("fc1", "fc2")), lags(0.2)),
    "SYMMETRY",
    "DISCONNECTED",
    "DEAD",
    "VANISHING",
    also={"SLOW", "loss_stuck", "never_moves", "LOW_RANK", "BOTTLENECK"},
    control=small,
)

# --- flat and dead


def late(seed: int, scale: float, tanh: bool = True) -> Setup:
    """The delay is given in minutes, or in units of half an hour, which a tanh at the end can say."""
    model = Net([10, 64, 64, 1], torch.relu, torch.tanh if tanh else None)
    task = flights(seed).with_loss(lambda y, t: F.smooth_l1_loss(y, scale * t))
    return live(model, task, "Adam", 5e-3, 80)


bounded = zoo.healthy("flights-tanh-at-the-end-targets-within-1", lambda s: late(s, 0.3))
zoo.sick(
    "flights-tanh-at-the-end-targets-in-minutes",
    lambda s: late(s, 30.0),
    both(at_last(flat_behind("fc3", "tanh", 0.6)), lags(0.2)),
    "SATURATION",
    "VANISHING",
    layer=("fc3",),
    also={"SLOW", "UNSTABLE", "EXPLODING", "loss_stuck", "first_loss_high"},
    control=bounded,
)


class Alarm(nn.Module):
    """One logit; an activation is put behind every layer, the last one too."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.fc1, self.act1, self.fc2, self.act2 = nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU()
        self.out, self.last = nn.Linear(48, 1), nn.ReLU() if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.out(self.act2(self.fc2(self.act1(self.fc1(x))))))


def alarmed(seed: int, last: bool) -> Setup:
    return live(Alarm(last), fraud(seed, 0.1), "Adam", 5e-3, 80)


alarm = zoo.healthy("fraud-one-logit", lambda s: alarmed(s, False))
zoo.sick(
    "fraud-relu-behind-the-logit",
    lambda s: alarmed(s, True),
    both(at_last(dead("last", 1.0), no_gradient("out", "fc1")), lags(0.2)),
    "DEAD",
    "DISCONNECTED",
    layer=("out", "last"),
    also={"VANISHING", "SLOW", "loss_stuck", "never_moves", "LOW_RANK", "BOTTLENECK"},
    control=alarm,
)


class Spikes(nn.Module):
    """Hidden units are on or off; a surrogate slope is used for the way back, or forgotten."""

    def __init__(self, surrogate: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(14, 96), nn.Linear(96, 96), nn.Linear(96, 6)
        self.surrogate = surrogate

    def fire(self, x: Tensor) -> Tensor:
        on = (x > 0).float()
        soft = torch.sigmoid(2 * x)
        return on + soft - soft.detach() if self.surrogate else on

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fire(self.fc2(self.fire(self.fc1(x)))))


spiking = zoo.healthy("crops-on-off-units-surrogate-slope", lambda s: sown(s, Spikes(True), "Adam", 3e-3, 70))
zoo.sick(
    "crops-on-off-units-without-a-slope",
    lambda s: sown(s, Spikes(False), "Adam", 3e-3, 70),
    lasting(no_gradient("fc1", "fc2")),
    *CUT_OFF,
    "VANISHING",
    layer=("fc1", "fc2"),
    also={"detached", "never_moves", "SLOW", "SATURATION"},
    control=spiking,
)


def low(seed: int, bias: float) -> Setup:
    """The bias that the rare class wants at the last layer is given to all of them."""
    model = tower([12, 64, 64, 64, 1], nn.ReLU)
    for layer in (model[0], model[2], model[4]):
        nn.init.constant_(layer.bias, bias)
    nn.init.constant_(model[6].bias, -3.0)
    return live(model, fraud(seed).with_loss(flat), "Adam", 2e-3, 80)


prior = zoo.healthy("fraud-prior-as-the-last-bias", lambda s: low(s, 0.0))
zoo.sick(
    "fraud-prior-as-every-bias",
    lambda s: low(s, -4.6),
    both(lasting(dead("1", 0.95), dead("5", 0.99)), lags(0.1)),
    "DEAD",
    "DISCONNECTED",
    layer=("0", "1", "2", "3", "4", "5"),
    also={"loss_stuck", "never_moves", "VANISHING", "LOW_RANK", "BOTTLENECK", "SLOW"},
    control=prior,
)

# --- cut off


class Lessons(nn.Module):
    """A class and a number from one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(14, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.kind, self.amount = nn.Linear(64, 6), nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.kind(h), self.amount(h), x


def taught(seed: int, added: bool) -> Setup:
    """The second loss is added to the first, or takes its place by a slip of `=` for `+=`."""

    def loss(out: tuple[Tensor, Tensor, Tensor], t: Tensor) -> Tensor:
        total = F.mse_loss(out[1].flatten(), torch.tanh(out[2][:, :3].sum(dim=1)))
        other = F.cross_entropy(out[0], t)
        return total + other if added else other

    return live(Lessons(), crops(seed).with_loss(loss), "AdamW", 4e-3, 60)


lessons = zoo.healthy("crops-class-and-amount", lambda s: taught(s, True))
zoo.sick(
    "crops-second-loss-takes-the-place-of-the-first",
    lambda s: taught(s, False),
    lasting(no_gradient("amount")),
    *CUT_OFF,
    layer=("amount.0", "amount.2", "amount"),
    also={"detached", "never_moves"},
    control=lessons,
)


class Binned(nn.Module):
    """A learned score is cut into bins, which have vectors; or is used as it is, by soft bins."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 4))
        self.table, self.soft = nn.Embedding(48, 8), soft
        self.out = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 1))
        self.register_buffer("edges", torch.linspace(-1, 1, 11))

    def forward(self, x: Tensor) -> Tensor:
        z = self.score(x)
        if self.soft:
            near = (-((z[..., None] - torch.linspace(-1.1, 1.1, 12)) ** 2) / 0.02).softmax(dim=-1)
            h = torch.einsum("bkn,knd->bkd", near, self.table.weight.view(4, 12, 8))
        else:
            h = self.table(torch.bucketize(z, self.edges) + 12 * torch.arange(4))
        return self.out(h.flatten(1))


def binned(seed: int, soft: bool) -> Setup:
    return live(Binned(soft), flights(seed), "Adam", 1e-2, 90)


bins = zoo.healthy("flights-learned-score-in-soft-bins", lambda s: binned(s, True))
zoo.sick(
    "flights-learned-score-in-hard-bins",
    lambda s: binned(s, False),
    lasting(no_gradient("score")),
    *CUT_OFF,
    layer=("score.2", "score.0", "score"),
    also={"detached", "never_moves", "SLOW"},
    control=bins,
)

# --- too large, and jumps


def priced(seed: int, scale: float, **more) -> Setup:
    """The target in its raw unit, or standardised."""
    task = flights(seed).with_loss(lambda y, t: F.mse_loss(y, scale * t))
    return live(tower([10, 64, 64, 1], nn.ReLU), task, "SGD", 0.03, 80, momentum=0.9, **more)


unit = zoo.healthy("flights-standardised-target-sgd-0.03", lambda s: priced(s, 1.0))
zoo.sick(
    "flights-target-in-seconds-sgd-0.03", lambda s: priced(s, 1800.0), diverges(), *RUNS_AWAY, also=BLOWN, control=unit
)


class Cross(nn.Module):
    """A cross network: each layer multiplies the input by a score of the state."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(9, 9) for _ in range(layers))
        self.deep, self.out = nn.Sequential(nn.Linear(9, 48), nn.ReLU()), nn.Linear(57, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = x
        for layer in self.cross:
            state = x * layer(state) + state
        return self.out(torch.cat([state, self.deep(x)], dim=1))


def crossed(seed: int, factor: float) -> Setup:
    task = flights(seed, 9).mapped(lambda x: factor * x)
    return live(Cross(), task, "Adam", 2e-3, 80)


cross = zoo.healthy("flights-cross-network-of-six-layers", lambda s: crossed(s, 0.5))
zoo.sick(
    "flights-cross-network-of-six-layers-raw-columns",
    lambda s: crossed(s, 30.0),
    both(lasting(gradient_ratio("cross.0", "cross.5", above=100)), worse(10)),
    *RUNS_AWAY,
    also={"first_loss_high", "input_scales", "rate_too_high", "DEAD", "SLOW", "loss_grows", "loss_stuck"},
    control=cross,
)


def heavy(seed: int, logged: bool) -> Setup:
    """Two columns are amounts of money, whose tail is long; their logarithm is not."""

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        money = x[:, :2] if logged else (3.5 * x[:, :2]).exp()
        return torch.cat([money, x[:, 2:]], dim=1), t

    return live(tower([10, 64, 64, 1], nn.LeakyReLU), flights(seed, batch=32).changed(change), "Adam", 3e-3, 80)


logs = zoo.healthy("flights-two-columns-of-money-logged", lambda s: heavy(s, True))
zoo.sick(
    "flights-two-columns-of-money-as-they-are",
    lambda s: heavy(s, False),
    both(gradient_norms_spread(50), worse(2.0)),
    *JUMPS,
    "NUMERICAL",
    also={"input_scales", "DEAD", "first_loss_high", "loss_stuck", "loss_grows", "rate_too_high"},
    control=logs,
)


def weighted(seed: int, weight: float) -> Setup:
    """One payment in 250 is fraud, and counts the more for it."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z.flatten(), t, pos_weight=torch.tensor(weight))

    return live(tower([12, 64, 1], nn.ReLU), fraud(seed, 0.004, batch=64).with_loss(loss), "Adam", 3e-3, 100)


mild = zoo.healthy("fraud-one-in-250-weight-10", lambda s: weighted(s, 10.0), thrives(0.1))
zoo.sick(
    "fraud-one-in-250-weight-a-million",
    lambda s: weighted(s, 1e6),
    gradient_norms_spread(300),
    *JUMPS,
    also={"NUMERICAL", "first_loss_high", "loss_grows"},
    control=mild,
)

# --- numbers


class Angle(nn.Module):
    """Embeds two rows; the angle between them."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.net, self.safe = tower([24, 48, 12], nn.ReLU), safe

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        near = F.cosine_similarity(self.net(a), self.net(b[:, :24]))
        return torch.acos(near.clamp(-0.999, 0.999) if self.safe else near)


def turned(seed: int, safe: bool) -> Setup:
    """Half of the pairs belong together; now and then one is a row beside itself."""
    now = every(8, 5)

    def change(x: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        a = x[0]
        same = torch.arange(len(a)) % 2 == 0
        b = torch.where(same[:, None], a + 0.3 * a.roll(3, 1), a.roll(1, 0))
        return (a, torch.cat([a[:1], b[1:]]) if now() else b), same.float()

    def loss(angle: Tensor, same: Tensor) -> Tensor:
        return (same * angle + (1 - same) * (1.5 - angle).clamp_min(0)).mean()

    return live(Angle(safe), views(seed, (24, 24)).changed(change).with_loss(loss), "Adam", 3e-3, 70)


angle = zoo.healthy("pairs-angle-of-a-clamped-cosine", lambda s: turned(s, True))
zoo.sick(
    "pairs-angle-of-a-row-to-itself",
    lambda s: turned(s, False),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite"},
    control=angle,
)


def by_hand(seed: int, safe: bool) -> Setup:
    """Cross-entropy from its formula, over logits that a scale of 120 makes large."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        z = 120 * z
        chance = z.softmax(dim=1) if safe else z.exp() / z.exp().sum(dim=1, keepdim=True)
        return -(chance + 1e-7).log()[torch.arange(len(t)), t].mean()

    model = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 6))
    return live(model, crops(seed).with_loss(loss), "Adam", 2e-3, 60)


hand = zoo.healthy("crops-softmax-of-scaled-logits", lambda s: by_hand(s, True))
zoo.sick(
    "crops-softmax-of-scaled-logits-by-exp",
    lambda s: by_hand(s, False),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite", "EXPLODING", "UNSTABLE"},
    control=hand,
)


def logged(seed: int, add: float) -> Setup:
    """Counts are taken as logarithms; some of them are zero."""

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        counts = (2.5 * x[:, :3] + 6).round().clamp_min(0)
        return torch.cat([(counts + add).log() - 1.5, x[:, 3:]], dim=1), t

    return live(tower([8, 48, 48, 1], nn.SiLU), sales(seed).changed(change), "Adam", 3e-3, 80)


plus_one = zoo.healthy("sales-log-of-one-plus-counts", lambda s: logged(s, 1.0))
zoo.sick(
    "sales-log-of-counts-some-of-them-zero",
    lambda s: logged(s, 0.0),
    breaks,
    "NUMERICAL",
    also={"loss_nonfinite"},
    control=plus_one,
)


def spread(seed: int, least: float) -> Setup:
    """A likelihood whose deviation is learned; half of the targets are zero."""

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, t * (x[:, :1] > 0)

    def loss(out: Tensor, t: Tensor) -> Tensor:
        mean, std = out[:, :1], out[:, 1:].exp() + least
        return (((t - mean) / std).square() / 2 + std.log()).mean()

    task = flights(seed, noise=0.0, batch=32).changed(change).with_loss(loss)
    return live(tower([10, 64, 64, 2], nn.SiLU), task, "Adam", 2e-2, 120)


zoo.healthy("flights-likelihood-deviation-at-least-0.3", lambda s: spread(s, 0.3))
# --- rates


def divided(seed: int, by: float) -> Setup:
    """The mean over a batch is divided by the number of rows once more, and by that of the data set."""
    task = flights(seed).scaled(1 / by)
    return live(tower([10, 64, 64, 1], nn.Tanh), task, "SGD", 0.05, 70, momentum=0.9)


whole = zoo.healthy("flights-mean-error-sgd-0.05", lambda s: divided(s, 1.0))
zoo.sick(
    "flights-error-divided-by-the-size-of-the-data-set",
    lambda s: divided(s, 64 * 60000.0),
    both(does_not_move(steps=70), lags(0.2)),
    "SLOW",
    also={"never_moves", "rate_too_low", "VANISHING", "loss_stuck"},
    control=whole,
)


def momentous(seed: int, lr: float, momentum: float) -> Setup:
    return live(tower([6, 64, 64, 10], nn.ReLU), arm(seed), "SGD", lr, 80, momentum=momentum, nesterov=True)


swing = zoo.healthy("arm-nesterov-0.1-momentum-0.9", lambda s: momentous(s, 0.1, 0.9))
zoo.sick(
    "arm-nesterov-3-momentum-0.99", lambda s: momentous(s, 3.0, 0.99), diverges(), *RUNS_AWAY, also=BLOWN, control=swing
)
