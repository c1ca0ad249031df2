# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain dense networks that train well, some of them a little unusual.

Half: plain.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import tower
from validation.cases._everyday_nets import Net, he, orthogonal
from validation.cases._plain_nets import (
    arm,
    crops,
    flights,
    fraud,
    outlines,
    recipes,
    rings,
    sales,
    survey,
    with_groups,
)
from validation.evidence import thrives
from validation.setups import frozen, live, pair, pretrain
from validation.tasks import Task, clicks, communities, documents, genres, homes, parity, ratings, scenes, views

zoo = Zoo("mlp", half="plain", proof=thrives())

# --- classes


def sown(seed: int, model: nn.Module, *args, batch: int = 64, **more) -> Setup:
    return live(model, crops(seed, batch=batch), *args, **more)


zoo.healthy("crops-logistic-regression", lambda s: sown(s, nn.Linear(14, 6), "SGD", 0.3, 80, momentum=0.9))
zoo.healthy("crops-batch-norm-dropout-0.4", lambda s: sown(s, Dropping(0.4), "AdamW", 5e-3, 90, weight_decay=0.05))


class Dropping(nn.Module):
    """Linear, norm, activation, dropout, twice."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(14, 96),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Dropout(chance),
            nn.Linear(96, 96),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Dropout(chance),
        )
        self.head = nn.Linear(96, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Maxout(nn.Module):
    """Each unit is the largest of three."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(14, 96), nn.Linear(32, 96), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x).unflatten(1, (32, 3)).amax(dim=2)
        return self.out(self.fc2(x).unflatten(1, (32, 3)).amax(dim=2))


zoo.healthy("crops-maxout", lambda s: sown(s, Maxout(), "Adam", 5e-3, 60))


class Glu(nn.Module):
    """Gated layers, as in language models, on rows."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(14, 32), nn.LayerNorm(32)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.into(x))
        return self.head(h + self.down(F.silu(self.gate(h)) * self.up(h)))


zoo.healthy("crops-swiglu", lambda s: sown(s, Glu(), "AdamW", 5e-3, 60, clip=1.0))
zoo.healthy(
    "crops-mish-six-layers-orthogonal",
    lambda s: sown(s, orthogonal(tower([14, *[48] * 6, 6], nn.Mish), 1.2), "NAdam", 2e-3, 60),
)
zoo.healthy(
    "crops-step-decay-sgd",
    lambda s: sown(
        s, he(tower([14, 64, 64, 6])), "SGD", 0.1, 90, momentum=0.9, rate=lambda t: 0.3 ** (t // 30), weight_decay=1e-4
    ),
)
zoo.healthy("crops-batches-of-3-sgd", lambda s: sown(s, tower([14, 48, 6]), "SGD", 0.05, 120, batch=3))
zoo.healthy("crops-whole-batches-of-1024", lambda s: sown(s, tower([14, 64, 64, 6]), "Adam", 5e-3, 40, batch=1024))


def noisy_labels(seed: int) -> Setup:
    """A third of the labels is wrong."""
    random = torch.Generator().manual_seed(seed + 4)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(t.shape, generator=random) < 0.3
        return x, torch.where(wrong, torch.randint(6, t.shape, generator=random), t)

    return live(tower([14, 64, 6]), crops(seed, batch=128).changed(change), "Adam", 5e-3, 80)


zoo.healthy("crops-three-tenths-of-the-labels-wrong", noisy_labels)


def smoothed(seed: int) -> Setup:
    task = crops(seed).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1))
    return live(tower([14, 64, 64, 6], nn.GELU), task, "AdamW", 4e-3, 60, rate=lambda t: min(1, (t + 1) / 10))


zoo.healthy("crops-label-smoothing-warm-up", smoothed)


class Committee(nn.Module):
    """Five small nets vote."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(tower([14, 24, 6], nn.ELU) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(dim=0)


zoo.healthy("crops-committee-of-five", lambda s: sown(s, Committee(), "Adam", 1e-2, 60))


class Tree(nn.Module):
    """A soft tree of depth three: gates send a row to leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.leaves = nn.Linear(14, 7), nn.Parameter(0.1 * torch.randn(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        g = torch.sigmoid(2 * self.gates(x))
        chance = torch.ones(len(x), 1)
        for depth in range(3):
            here = g[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            chance = torch.stack([chance * here, chance * (1 - here)], dim=2).flatten(1)
        return chance @ self.leaves * 4


zoo.healthy("crops-soft-tree", lambda s: sown(s, Tree(), "Adam", 5e-2, 90))


def fine_tuned(seed: int) -> Setup:
    """A body from another task of the same kind is frozen but for its last layer; the head is new."""
    model = tower([14, 64, 64, 6])
    pretrain(pair(model, crops(seed + 100)), 60)
    model[4] = nn.Linear(64, 6)
    return live(frozen(model, "0"), crops(seed), "Adam", 5e-3, 70)


zoo.healthy("crops-fine-tuned-first-layer-frozen", fine_tuned)


def two_rates(seed: int) -> Setup:
    """The body that was trained before gets a tenth of the rate of the head, and no decay on biases."""
    model = tower([14, 64, 64, 6], nn.ELU)
    pretrain(pair(model, crops(seed + 100)), 40)
    model[4] = nn.Linear(64, 6)
    groups = [
        {"params": [model[0].weight, model[2].weight], "lr": 1e-3},
        {"params": [model[0].bias, model[2].bias], "lr": 1e-3, "weight_decay": 0.0},
        {"params": model[4].parameters()},
    ]
    return with_groups(model, crops(seed), groups, lr=1e-2, weight_decay=1e-2, steps=70)


zoo.healthy("crops-fine-tuned-with-two-rates", two_rates)
zoo.healthy("parity-of-three-bits-plateau-first", lambda s: live(tower([12, 96, 2]), parity(s, 3), "Adam", 1e-2, 120))
zoo.healthy("rings-tanh-two-layers", lambda s: live(Net([2, 32, 32, 2], torch.tanh), rings(s), "Adam", 1e-2, 80))
zoo.healthy("genres-many-labels-relu", lambda s: live(tower([20, 64, 10]), genres(s), "RMSprop", 3e-3, 60))

# --- words and categories


class Bag(nn.Module):
    """A sparse bag of words: only the rows that occur get a gradient."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(80, 24, mode="mean", sparse=sparse), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bag(x))


zoo.healthy("recipes-bag-sparse-gradients-sgd", lambda s: live(Bag(True), recipes(s), "SGD", 4.0, 100))
zoo.healthy("recipes-bag-few-of-2000-words-occur", lambda s: live(Rare(), recipes(s), "Adam", 2e-2, 70))


class Rare(nn.Module):
    """A table that is far larger than what is used of it, from a vocabulary of another data set."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(2000, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.table(x).mean(dim=1))


class Attended(nn.Module):
    """Ingredients are weighed before their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.score = nn.Embedding(80, 24), nn.Linear(24, 1)
        self.fc = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        return self.fc((self.score(h).softmax(dim=1) * h).sum(dim=1))


zoo.healthy("recipes-weighed-ingredients", lambda s: live(Attended(), recipes(s), "AdamW", 1e-2, 70))


class Field(nn.Module):
    """Wide and deep: a table of single weights beside a net over vectors of fields."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.table = nn.Embedding(100, 1), nn.Embedding(100, 6)
        self.deep = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))
        self.register_buffer("offset", 20 * torch.arange(5))
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids + self.offset
        return self.wide(ids).sum(dim=1) + self.deep(self.table(ids).flatten(1))


zoo.healthy("clicks-wide-and-deep-one-table", lambda s: live(Field(), clicks(s, batch=192), "Adam", 1e-2, 90))


class Taste(nn.Module):
    """Matrix factorisation with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(400, 6), nn.Embedding(120, 6)
        self.user_bias, self.item_bias = nn.Embedding(400, 1), nn.Embedding(120, 1)
        self.mean = nn.Parameter(torch.tensor(2.0))
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        score = (self.user(user) * self.item(item)).sum(dim=1)
        return score + (self.user_bias(user) + self.item_bias(item)).squeeze(1) + self.mean


zoo.healthy("ratings-factorised-with-biases", lambda s: live(Taste(), ratings(s, batch=256), "Adam", 3e-2, 90))


class Topics(nn.Module):
    """A topic model: a code in the simplex, a tied table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.topics = tower([60, 64, 12], nn.Softplus), nn.Parameter(0.3 * torch.randn(12, 60))

    def forward(self, x: Tensor) -> Tensor:
        return self.enc(torch.log1p(x)).softmax(dim=1) @ self.topics * 3


zoo.healthy("documents-topics-in-a-simplex", lambda s: live(Topics(), documents(s), "Adam", 1e-2, 90), thrives(0.05))

# --- numbers


def late(seed: int, loss, out: int = 1, **more) -> Setup:
    more = {"kind": "Adam", "lr": 4e-3, "steps": 80, **more}
    return live(tower([10, 64, 64, out], nn.ReLU), flights(seed, noise=0.2).with_loss(loss), **more)


def pinball(y: Tensor, t: Tensor) -> Tensor:
    q = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(q * (t - y), (q - 1) * (t - y)).mean()


def density(out: Tensor, t: Tensor) -> Tensor:
    weight, mean, spread = out.unflatten(1, (3, 5)).unbind(dim=1)
    part = weight.log_softmax(dim=1) - F.softplus(spread).add(0.1).log()
    part = part - 0.5 * ((t - mean) / F.softplus(spread).add(0.1)).square()
    return 2 - part.logsumexp(dim=1).mean()


def evidential(out: Tensor, t: Tensor) -> Tensor:
    return F.gaussian_nll_loss(out[:, :1], t, F.softplus(out[:, 1:]) + 0.05) + 1


def histogram(out: Tensor, t: Tensor) -> Tensor:
    """The number as soft bins, learned by cross-entropy."""
    centres = torch.linspace(-4, 4, 24)
    return F.cross_entropy(out, (-((t - centres) ** 2) / 0.2).softmax(dim=1))


zoo.healthy("flights-three-quantiles-at-once", lambda s: late(s, pinball, 3))
zoo.healthy("flights-mixture-of-five-softplus-spreads", lambda s: late(s, density, 15))
zoo.healthy("flights-mean-and-variance", lambda s: late(s, evidential, 2))
zoo.healthy("flights-number-as-a-histogram", lambda s: late(s, histogram, 24))
zoo.healthy("flights-log-cosh", lambda s: late(s, lambda y, t: (y - t).cosh().log().mean(), kind="Adamax", lr=1e-2))
zoo.healthy(
    "flights-noise-of-half-the-target-l1",
    lambda s: late(s, lambda y, t: (y - t - 0.5 * torch.randn_like(t)).abs().mean(), kind="RMSprop", lr=2e-3),
)
zoo.healthy("sales-poisson-counts", lambda s: live(tower([8, 48, 48, 1], nn.Tanh), sales(s), "Adam", 5e-3, 80))


def two_part(out: Tensor, n: Tensor) -> Tensor:
    """Whether anything is sold, and how much if so: the second head sees a part of the rows."""
    some = (n > 0).float()
    amount = (some * (out[:, 1] - (n + 1).log()) ** 2).sum() / some.sum().clamp_min(1)
    return F.binary_cross_entropy_with_logits(out[:, 0], some) + amount


zoo.healthy(
    "sales-hurdle-of-two-heads", lambda s: live(tower([8, 48, 2]), sales(s).with_loss(two_part), "Adam", 5e-3, 80)
)


def cox(seed: int) -> Setup:
    """Times until a failure, some of them cut short; only their order counts."""
    random = torch.Generator().manual_seed(seed + 6)

    def change(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        time = torch.empty(len(x)).exponential_(generator=random) * (-2.5 * t[:, 0]).exp()
        return x, torch.stack([time, (torch.rand(len(x), generator=random) < 0.7).float()])

    def loss(z: Tensor, t: Tensor) -> Tensor:
        order = t[0].argsort(descending=True)
        z, event = z[order, 0], t[1][order]
        return -((z - z.logcumsumexp(dim=0)) * event).sum() / event.sum()

    return live(tower([10, 32, 1], nn.SELU), flights(seed, batch=128).changed(change).with_loss(loss), "Adam", 1e-2, 90)


zoo.healthy("flights-cox-partial-likelihood", cox, thrives(0.05))
zoo.healthy(
    "homes-weight-decay-0.1-adamw", lambda s: live(tower([9, 64, 1]), homes(s), "AdamW", 5e-3, 70, weight_decay=0.1)
)


def penalised(seed: int) -> Setup:
    """A penalty on absolute weights keeps most of a wide layer near zero."""
    model = tower([9, 128, 1])
    task = homes(seed).with_loss(lambda y, t: F.mse_loss(y, t) + 2e-4 * sum(p.abs().sum() for p in model.parameters()))
    return live(model, task, "Adam", 5e-3, 90)


zoo.healthy("homes-l1-penalty", penalised)
zoo.healthy("arm-one-wide-layer", lambda s: live(tower([6, 256, 10], nn.Tanh), arm(s), "Adam", 5e-3, 60))
zoo.healthy("arm-waist-of-10-for-10-outputs", lambda s: live(Waist(), arm(s), "AdamW", 8e-3, 80))


class Waist(nn.Module):
    """A linear layer as narrow as the answer, which costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.waist, self.fc2, self.out = (
            nn.Linear(6, 96),
            nn.Linear(96, 10),
            nn.Linear(10, 64),
            nn.Linear(64, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.elu(self.fc2(self.waist(F.elu(self.fc1(x))))))


class Fourier(nn.Module):
    """Fixed random waves of the place, then layers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ways", 3 * torch.randn(2, 32))
        self.net = tower([64, 64, 64, 3], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        a = x @ self.ways
        return self.net(torch.cat([a.sin(), a.cos()], dim=1))


zoo.healthy("scenes-fourier-features-colour", lambda s: live(Fourier(), scenes(s), "Adam", 5e-3, 80))


class Process(nn.Module):
    """A neural process: a set of known points becomes a vector, from which others are told."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.tell = tower([2, 48, 32], nn.ReLU), tower([33, 64, 1], nn.ReLU)

    def forward(self, known: Tensor, x: Tensor) -> Tensor:
        r = self.each(known).mean(dim=1)
        return self.tell(torch.cat([r[:, None].expand(-1, x.shape[1], -1), x], dim=2)).squeeze(2)


def curves(seed: int) -> Task:
    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        strength, slope = torch.randn(2, 48, 1, generator=random)
        x = 2 * torch.rand(48, 14, generator=random) - 1
        y = strength * torch.sin(2 * x) + slope * x.abs()
        return (torch.stack([x[:, :8], y[:, :8]], dim=2), x[:, 8:, None]), y[:, 8:]

    return Task(seed, draw, F.mse_loss)


zoo.healthy("curves-neural-process", lambda s: live(Process(), curves(s), "Adam", 5e-3, 90))

# --- codes, pairs, sets, graphs


class Tied(nn.Module):
    """An auto-encoder whose decoder is the transpose of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, 40) / 40**0.5)
        self.shift, self.back = nn.Parameter(torch.zeros(9)), nn.Parameter(torch.zeros(40))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight.T + self.shift) @ self.weight * 2 + self.back


zoo.healthy("survey-tied-autoencoder-code-9-of-7", lambda s: live(Tied(), survey(s), "Adam", 1e-2, 90))


class Masked(nn.Module):
    """Rebuilds the answers from a part of them; a learned vector stands for what is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.blank = nn.Parameter(torch.zeros(40))
        self.net = nn.Sequential(nn.Linear(80, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 40))

    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.rand_like(x) > 0.3).float()
        return self.net(torch.cat([kept * x + (1 - kept) * self.blank, kept], dim=1))


zoo.healthy("survey-masked-answers", lambda s: live(Masked(), survey(s), "AdamW", 5e-3, 80))


def principal(seed: int) -> Setup:
    """Data of two traits have a code of two numbers, and that is enough."""
    model = nn.Sequential(nn.Linear(40, 48), nn.ELU(), nn.Linear(48, 2), nn.Linear(2, 48), nn.ELU(), nn.Linear(48, 40))
    return live(model, survey(seed, 2), "Adam", 5e-3, 90)


zoo.healthy("survey-of-2-traits-code-of-2", principal)


class Contrast(nn.Module):
    """Two encoders and scores of all pairs, cooled."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = tower([24, 64, 24], nn.ReLU), tower([18, 64, 24], nn.ReLU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T / 0.1


def symmetric(z: Tensor, t: Tensor) -> Tensor:
    return (F.cross_entropy(z, t) + F.cross_entropy(z.T, t)) / 2


zoo.healthy(
    "views-contrast-both-ways-temperature-0.1",
    lambda s: live(Contrast(), views(s).with_loss(symmetric), "AdamW", 4e-3, 70),
)


class Byol(nn.Module):
    """A net, a predictor, and a slow copy of the net that gives the goal."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.slow = nn.Sequential(nn.Linear(24, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        self.slow.load_state_dict(self.net.state_dict())
        self.slow.requires_grad_(False)
        self.predict = tower([16, 32, 16], nn.ReLU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            for mine, own in zip(self.slow.parameters(), self.net.parameters(), strict=True):
                mine.data.lerp_(own.data, 0.05)
        with torch.no_grad():
            goal = self.slow(b)
        return 1 - F.cosine_similarity(self.predict(self.net(a)), goal).mean()


def bootstrapped(seed: int) -> Setup:
    task = views(seed, (24, 24)).changed(lambda x, t: ((x[0], x[0] + 0.3 * x[1]), t)).with_loss(lambda out, _: out)
    return live(Byol(), task, "Adam", 3e-3, 60)


zoo.healthy("views-byol-slow-copy", bootstrapped)


class PointNet(nn.Module):
    """A net for every point, the largest of each feature, a net for the set."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(2, 48), nn.GELU(), nn.Linear(48, 64), nn.GELU())
        self.all = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.point(x).amax(dim=1))


zoo.healthy("outlines-point-net", lambda s: live(PointNet(), outlines(s), "Adam", 5e-3, 90))


class Pairs(nn.Module):
    """Every point looks at the distances to the others, sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 32))
        self.out = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.net(torch.cdist(x, x).sort(dim=2).values)
        return self.out(torch.cat([h.mean(dim=1), h.amax(dim=1)], dim=1))


zoo.healthy("outlines-sorted-distances", lambda s: live(Pairs(), outlines(s), "Adam", 5e-3, 80))


class Gat(nn.Module):
    """Neighbours are weighed by attention; two rounds, each beside what the node knows."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(10, 24)
        self.rounds = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
        self.scores = nn.ModuleList(nn.Linear(24, 2) for _ in range(2))
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.elu(self.into(x))
        for layer, score in zip(self.rounds, self.scores, strict=True):
            a = score(x)
            z = F.leaky_relu(a[..., :1] + a[..., 1:].transpose(1, 2), 0.2)
            weight = z.masked_fill(adjacency == 0, -1e9).softmax(dim=2)
            x = x + F.elu(layer(weight @ x))
        return self.head(x)


zoo.healthy("communities-graph-attention", lambda s: live(Gat(), communities(s), "Adam", 1e-2, 60))


class Critic(nn.Module):
    """A generator and a critic with spectral norm in one program: the critic's loss, or the generator's in turn."""

    def __init__(self) -> None:
        super().__init__()
        spectral = nn.utils.parametrizations.spectral_norm
        self.make = tower([4, 48, 2], nn.ReLU)
        self.critic = nn.Sequential(spectral(nn.Linear(2, 48)), nn.LeakyReLU(0.2), spectral(nn.Linear(48, 1)))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        fake = self.make(z)
        real, false = self.critic(x), self.critic(fake.detach())
        for p in self.critic.parameters():
            p.requires_grad_(False)
        fool = self.critic(fake)
        for p in self.critic.parameters():
            p.requires_grad_(True)
        return F.relu(1 - real).mean() + F.relu(1 + false).mean() - fool.mean()


def gan(seed: int) -> Setup:
    noise = torch.Generator().manual_seed(seed + 7)
    task = rings(seed).changed(lambda x, t: ((x + 2, torch.randn(len(x), 4, generator=noise)), t))
    return live(Critic(), task.with_loss(lambda out, _: out), "Adam", 2e-3, 80, betas=(0.5, 0.9))


def distance(setup: Setup) -> float:
    """How far the mean of what is made lies from that of the data."""
    with torch.no_grad():
        x, z = setup.input_fn()
        return (setup.model.make(z).mean(dim=0) - x.mean(dim=0)).norm().item()


zoo.healthy("rings-gan-hinge-spectral-norm", gan, thrives(0.3, measure=distance))


class Flow(nn.Module):
    """Flow matching: the way from noise to data, learned at random times."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([4, 96, 96, 2], nn.SiLU)

    def forward(self, x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
        at = time * x + (1 - time) * noise
        wave = torch.cat([(math.pi * time).sin(), (math.pi * time).cos()], dim=1)
        return (self.net(torch.cat([at, wave], dim=1)) - (x - noise)).square().mean()


def flow(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 8)

    def change(x: Tensor, t: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        return (x, torch.randn(x.shape, generator=random), torch.rand(len(x), 1, generator=random)), t

    return live(Flow(), rings(seed).changed(change).with_loss(lambda out, _: out), "Adam", 4e-3, 80)


zoo.healthy("rings-flow-matching", flow)


def balanced(z: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z.flatten(), t, pos_weight=torch.tensor(8.0))


zoo.healthy(
    "fraud-one-in-twenty-weighted", lambda s: live(tower([12, 48, 1]), fraud(s).with_loss(balanced), "Adam", 5e-3, 80)
)
