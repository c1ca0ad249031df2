# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks as people write them, with the faults that people have, and their twins.

Half: everyday.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import (
    CUT_OFF,
    NARROW,
    RUINED,
    Net,
    credit,
    faces,
    gaussian,
    glorot,
    he,
    housing,
    mails,
    sorts,
    stands_still,
    stars,
    start,
    windows,
)
from validation.evidence.live import at_last, breaks, flat_behind, lags, lasting, never_fires, thrives
from validation.evidence.signal import both, equal_units, gradient_ratio, no_gradient, rank_at_most
from validation.evidence.training import diverges, does_not_move, gradient_norms_spread
from validation.labels import JUMPS, RUNS_AWAY
from validation.nets import Autoencoder
from validation.setups import live
from validation.tasks import every

zoo = Zoo("mlp", half="everyday", proof=thrives())

# --- starts and activations


def classifier(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, sorts(seed), *args, **more)


def stack(depth: int, width: int, act=torch.relu, out: int = 6) -> Net:
    return Net([16, *[width] * depth, out], act)


stacked = zoo.healthy("sorts-net-relu-8x64-kaiming-adam", lambda s: classifier(s, he(stack(8, 64)), "Adam", 1e-3))
zoo.sick(
    "sorts-net-sigmoid-8x64-torch-default-sgd",
    lambda s: classifier(s, stack(8, 64, torch.sigmoid), "SGD", 0.01, 50, momentum=0.9),
    lasting(gradient_ratio("fc1", "fc8", below=1e-3)),
    "VANISHING",
    also={"SLOW", "LOW_RANK"},
    control=stacked,
)
zoo.sick(
    "sorts-net-relu-8x64-normal-0.01-sgd",
    lambda s: classifier(s, gaussian(stack(8, 64), 0.01), "SGD", 0.01, 50, momentum=0.9),
    lasting(gradient_ratio("fc1", "fc8", below=1e-3)),
    "VANISHING",
    also={"SLOW", "LOW_RANK", "BOTTLENECK"},
    control=stacked,
)
zoo.sick(
    "sorts-net-relu-8x64-normal-1-adam",
    lambda s: classifier(s, gaussian(stack(8, 64), 1.0), "Adam", 1e-3, 50),
    lasting(gradient_ratio("fc1", "fc8", above=100)),
    "EXPLODING",
    "UNSTABLE",
    also={"SATURATION"},
    control=stacked,
)
tanh = zoo.healthy(
    "sorts-net-tanh-4x128-xavier-adam", lambda s: classifier(s, glorot(stack(4, 128, torch.tanh)), "Adam", 1e-3)
)
zoo.sick(
    "sorts-net-tanh-4x128-normal-1-adam",
    lambda s: classifier(s, gaussian(stack(4, 128, torch.tanh), 1.0), "Adam", 1e-3),
    lasting(flat_behind("fc2", "tanh", 0.6), flat_behind("fc3", "tanh", 0.6)),
    "SATURATION",
    also={"EXPLODING", "UNSTABLE"},
    control=tanh,
)


def all_of(seed: int, weight, bias: float = 0.0, act=torch.sigmoid, kind: str = "Adam", lr: float = 1e-2) -> Setup:
    return classifier(seed, start(stack(2, 32, act), weight, bias), kind, lr, 60)


drawn = zoo.healthy("sorts-net-sigmoid-2x32-xavier-adam", lambda s: all_of(s, nn.init.xavier_uniform_))
zoo.sick(
    "sorts-net-sigmoid-2x32-zeros-adam",
    lambda s: all_of(s, nn.init.zeros_),
    lasting(equal_units("fc1.weight"), equal_units("fc2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "VANISHING", "DEAD", "DISCONNECTED"},
    control=drawn,
)
zoo.sick(
    "sorts-net-relu-2x32-constant-0.05-adam",
    lambda s: all_of(s, lambda w: nn.init.constant_(w, 0.05), 0.05, torch.relu, lr=2e-3),
    lasting(equal_units("fc1.weight"), equal_units("fc2.weight")),
    "SYMMETRY",
    also={"LOW_RANK", "BOTTLENECK", "DEAD"},
    control=drawn,
)

# --- data nobody scaled

SCALES = torch.tensor([1.0, 1.0, 5e4, 1.0, 10.0, 1.0, 3e3, 1.0, 1.0, 400.0, 1.0, 20.0, 1.0])
MEANS = torch.tensor([0.0, 0.0, 6e4, 0.0, 30.0, 0.0, 8e3, 0.0, 0.0, 900.0, 0.0, 50.0, 0.0])


def raw(x: Tensor) -> Tensor:
    return x * SCALES + MEANS


def prices(seed: int, model: nn.Module, *args, change=None, **more) -> Setup:
    task = housing(seed)
    return live(model, task.mapped(change) if change else task, *args, **more)


priced = zoo.healthy(
    "housing-net-relu-2x64-sgd-0.01", lambda s: prices(s, Net([13, 64, 64, 1]), "SGD", 0.01, 60, momentum=0.9)
)
zoo.sick(
    "housing-columns-in-dollars-and-feet-sgd-0.01",
    lambda s: prices(s, Net([13, 64, 64, 1]), "SGD", 0.01, 60, change=raw, momentum=0.9),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=priced,
)
scaled = zoo.healthy(
    "housing-net-tanh-2x64-adam", lambda s: prices(s, Net([13, 64, 64, 1], torch.tanh), "Adam", 3e-3, 60)
)
zoo.sick(
    "housing-columns-in-dollars-and-feet-tanh",
    lambda s: prices(s, Net([13, 64, 64, 1], torch.tanh), "Adam", 1e-3, 60, change=raw),
    lasting(flat_behind("fc1", "tanh", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="fc1",
    also={"EXPLODING", "UNSTABLE", "LOW_RANK", "BOTTLENECK"},
    control=scaled,
)


def thousands(seed: int, model: nn.Module, factor: float, *args, **more) -> Setup:
    """The price in thousands."""
    task = housing(seed).with_loss(lambda y, t: F.mse_loss(y, factor * (1.5 + 0.5 * t)))
    return live(model, task, *args, **more)


unit = zoo.healthy(
    "housing-sigmoid-head-prices-from-0-to-1",
    lambda s: live(
        Net([13, 64, 64, 1], last=torch.sigmoid),
        housing(s).with_loss(lambda y, t: F.mse_loss(y, torch.sigmoid(2 * t))),
        "Adam",
        3e-3,
        60,
    ),
)
zoo.sick(
    "housing-sigmoid-head-prices-in-thousands",
    lambda s: thousands(s, Net([13, 64, 64, 1], last=torch.sigmoid), 100.0, "Adam", 1e-2, 80),
    at_last(flat_behind("fc3", "sigmoid", 0.9)),
    "SATURATION",
    "VANISHING",
    layer="fc3",
    also={"SLOW", "DEAD"},
    control=unit,
)
zoo.sick(
    "housing-prices-in-dollars-summed-loss-sgd",
    lambda s: live(
        Net([13, 64, 64, 1]),
        housing(s).with_loss(lambda y, t: F.mse_loss(y, 200 * (1.5 + 0.5 * t), reduction="sum")),
        "SGD",
        0.01,
        40,
    ),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=priced,
)


def missing(value: float, period: int = 8):
    """Now and then a row lacks two of its columns, and a number stands there for it."""
    now = every(period, 5)

    def change(x: Tensor) -> Tensor:
        if not now():
            return x
        x = x.clone()
        x[0, 3:5] = value
        return x

    return change


def lacking(seed: int, value: float, **more) -> Setup:
    return prices(seed, Net([13, 64, 64, 1], F.silu), "Adam", 2e-3, 70, change=missing(value), **more)


filled = zoo.healthy("housing-missing-values-filled-with-the-mean", lambda s: lacking(s, 0.0))
zoo.sick(
    "housing-missing-values-as-minus-9999",
    lambda s: lacking(s, -9999.0),
    gradient_norms_spread(30),
    *JUMPS,
    also={"NUMERICAL"},
    control=filled,
)
zoo.sick("housing-missing-values-as-nan", lambda s: lacking(s, float("nan")), breaks, "NUMERICAL", control=filled)


def costs(seed: int, log: bool) -> Setup:
    """What a repair costs: mostly little, seldom thousands of times as much."""
    random = torch.Generator().manual_seed(seed + 3)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        cost = 1.5 * t + 1.7 * torch.distributions.Exponential(1.0).icdf(torch.rand(t.shape, generator=random))
        return F.mse_loss(y, cost if log else cost.exp())

    return live(Net([13, 64, 64, 1]), housing(seed, 32).with_loss(loss), "Adam", 2e-3, 90)


logged = zoo.healthy("repairs-logarithm-of-the-cost", lambda s: costs(s, True))
zoo.sick(
    "repairs-heavy-tailed-cost-by-mse", lambda s: costs(s, False), gradient_norms_spread(30), *JUMPS, control=logged
)

# --- dead and cut


def degrees(seed: int, model: nn.Module, *args, shift: float = -2.0, **more) -> Setup:
    """Temperatures of a cold place."""
    return live(model, housing(seed).with_loss(lambda y, t: F.mse_loss(y, t + shift)), *args, **more)


linear_head = zoo.healthy(
    "degrees-below-zero-linear-head", lambda s: degrees(s, Net([13, 64, 64, 1]), "Adam", 2e-3, 80)
)
zoo.sick(
    "degrees-below-zero-relu-head",
    lambda s: degrees(s, Net([13, 64, 64, 1], last=torch.relu), "Adam", 3e-3, 80),
    at_last(never_fires("fc3", 1.0), no_gradient("fc1", "fc2", "fc3")),
    "DEAD",
    "DISCONNECTED",
    layer="fc3",
    also={"VANISHING", "SLOW"},
    control=linear_head,
)
zoo.sick(
    "degrees-below-zero-adam-0.5-kills-the-units",
    lambda s: degrees(s, Net([13, 64, 64, 1]), "Adam", 0.5, 60, shift=-20.0),
    at_last(never_fires("fc2", 0.9)),
    "DEAD",
    "EXPLODING",
    "UNSTABLE",
    also={*RUINED, "NUMERICAL"},
    control=linear_head,
)


class Applicant(nn.Module):
    """Embeds categories, joins the numbers, one logit. `head` makes a probability of it."""

    def __init__(self, size: int = 6, head=None, through=None) -> None:
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(12, size) for _ in range(3))
        self.bn = nn.BatchNorm1d(8)
        self.fc1, self.fc2, self.out = nn.Linear(3 * size + 8, 64), nn.Linear(64, 32), nn.Linear(32, 1)
        self.head, self.through = head, through

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        e = torch.cat([emb(kinds[:, i]) for i, emb in enumerate(self.emb)], dim=1)
        if self.through:
            e = self.through(e)
        x = F.relu(self.fc1(torch.cat([e, self.bn(numbers)], dim=1)))
        x = self.out(F.relu(self.fc2(x)))
        return self.head(x) if self.head else x


def bce(p: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy(p.flatten(), t)


applicant = zoo.healthy(
    "credit-embeddings-sigmoid-bce",
    lambda s: live(Applicant(head=torch.sigmoid), credit(s).with_loss(bce), "Adam", 3e-3, 60),
)
zoo.sick(
    "credit-softmax-over-one-unit",
    lambda s: live(Applicant(head=lambda z: F.softmax(z, dim=1)), credit(s).with_loss(bce), "Adam", 3e-3, 60),
    lasting(no_gradient("emb", "fc1", "fc2", "out")),
    *CUT_OFF,
    "VANISHING",
    "SATURATION",
    layer="out",
    also={"SLOW"},
    control=applicant,
)
zoo.sick(
    "credit-embeddings-through-a-new-tensor",
    lambda s: live(
        Applicant(head=torch.sigmoid, through=lambda e: torch.tensor(e.tolist())),
        credit(s).with_loss(bce),
        "Adam",
        3e-3,
        60,
    ),
    lasting(no_gradient("emb")),
    *CUT_OFF,
    layer=("emb.0", "emb.1", "emb.2", "fc1"),
    control=applicant,
)


class Copied(nn.Module):
    """Three hidden layers by copy and paste; the third line of `forward` may call the second layer again."""

    def __init__(self, slip: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.out, self.slip = nn.Linear(64, 6), slip

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc2(x) if self.slip else self.fc3(x))
        return self.out(x)


careful = zoo.healthy("sorts-three-layers-by-hand", lambda s: classifier(s, Copied(False), "Adam", 2e-3, 50))
zoo.sick(
    "sorts-three-layers-second-called-twice",
    lambda s: classifier(s, Copied(True), "Adam", 2e-3, 50),
    lasting(no_gradient("fc3")),
    *CUT_OFF,
    layer="fc3",
    control=careful,
)


class Shop(nn.Module):
    """One trunk of `width`, heads for the sort, its group, and a rough size."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, width), nn.GELU())
        self.sort, self.group, self.size = nn.Linear(width, 12), nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(x)
        return self.sort(h), self.group(h), self.size(h).flatten()


def shop_loss(parts: int = 3):
    def loss(out: tuple[Tensor, Tensor, Tensor], t: Tensor) -> Tensor:
        losses = [F.cross_entropy(out[0], t), F.cross_entropy(out[1], t // 3), F.mse_loss(out[2], t / 6 - 1)]
        return sum(losses[:parts])

    return loss


def shop(seed: int, width: int = 32, parts: int = 3) -> Setup:
    return live(Shop(width), sorts(seed, 12, batch=96, apart=1.2).with_loss(shop_loss(parts)), "Adam", 5e-3, 70)


three = zoo.healthy("shop-three-heads-trunk-of-32", shop)
zoo.sick(
    "shop-loss-of-the-third-head-forgotten",
    lambda s: shop(s, parts=2),
    lasting(no_gradient("size")),
    *CUT_OFF,
    layer="size",
    control=three,
)

# --- narrow

zoo.sick(
    "shop-three-heads-trunk-of-2", lambda s: shop(s, 2), lags(0.15), *NARROW, layer=("trunk.2", "sort"), control=three
)


def waist(seed: int, width: int) -> Setup:
    model = nn.Sequential(
        nn.Linear(16, 128),
        nn.GELU(),
        nn.Linear(128, width),
        nn.GELU(),
        nn.Linear(width, 64),
        nn.GELU(),
        nn.Linear(64, 12),
    )
    return live(model, sorts(seed, 12, batch=96, apart=1.2), "AdamW", 5e-3, 70)


wide = zoo.healthy("sorts-12-gelu-128-64-64", lambda s: waist(s, 64))
zoo.sick("sorts-12-gelu-128-2-64", lambda s: waist(s, 2), lags(0.15), *NARROW, layer=("2", "4"), control=wide)


def coded(seed: int, code: int, factors: int, kind: str = "Adam", lr: float = 5e-3, steps: int = 90, **more) -> Setup:
    return live(Autoencoder(48, 64, code), faces(seed, factors), kind, lr, steps, **more)


coder = zoo.healthy("faces-autoencoder-code-16-of-10-factors", lambda s: coded(s, 16, 10))
zoo.sick(
    "faces-autoencoder-code-3-of-10-factors",
    lambda s: coded(s, 3, 10),
    both(lags(0.15), lasting(rank_at_most("encoder.2", 3))),
    *NARROW,
    layer=("encoder.2", "decoder.0"),
    control=coder,
)


class Forecast(nn.Module):
    """Reads a window, sums it up in so many numbers, says what follows."""

    def __init__(self, summary: int) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, summary))
        self.tell = nn.Sequential(nn.Linear(summary, 64), nn.Tanh(), nn.Linear(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.tell(self.read(x))


def forecast(seed: int, summary: int) -> Setup:
    return live(Forecast(summary), windows(seed), "Adam", 5e-3, 90)


twelve = zoo.healthy("windows-summary-of-12-numbers", lambda s: forecast(s, 12))
zoo.sick(
    "windows-summary-of-2-numbers",
    lambda s: forecast(s, 2),
    lags(0.15),
    *NARROW,
    layer=("read.2", "tell.0"),
    control=twelve,
)


class Taste(nn.Module):
    """Users and items as vectors, their product the rating."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(60, size), nn.Embedding(40, size)
        self.user_bias, self.item_bias = nn.Embedding(60, 1), nn.Embedding(40, 1)
        for table in (self.users, self.items, self.user_bias, self.item_bias):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        product = (self.users(user) * self.items(item)).sum(dim=1, keepdim=True)
        return (product + self.user_bias(user) + self.item_bias(item)).flatten()


tastes = zoo.healthy("stars-factors-of-12", lambda s: live(Taste(12), stars(s), "Adam", 3e-2, 100))
zoo.sick(
    "stars-factors-of-2-for-6-tastes",
    lambda s: live(Taste(2), stars(s), "Adam", 3e-2, 100),
    lags(0.15),
    *NARROW,
    layer=("users", "items"),
    control=tastes,
)


class Squeezed(nn.Linear):
    """A layer that a compression tool has left with so many of its directions."""

    def __init__(self, fan_in: int, fan_out: int, rank: int) -> None:
        super().__init__(fan_in, fan_out)
        u, s, v = torch.linalg.svd(self.weight.detach(), full_matrices=False)
        del self.weight
        self.left, self.right = nn.Parameter(u[:, :rank] * s[:rank]), nn.Parameter(v[:rank])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.left @ self.right, self.bias)


def squeezed(seed: int, rank: int) -> Setup:
    model = nn.Sequential(nn.Linear(200, 64), nn.ReLU(), Squeezed(64, 64, rank), nn.ReLU(), nn.Linear(64, 6))
    return live(model, mails(seed), "Adam", 5e-3, 60)


compressed = zoo.healthy("mails-second-layer-compressed-to-rank-24", lambda s: squeezed(s, 24), thrives(most_dead=0.5))
zoo.sick(
    "mails-second-layer-compressed-to-rank-1",
    lambda s: squeezed(s, 1),
    both(lags(0.1), lasting(rank_at_most("2", 1.01))),
    "LOW_RANK",
    "BOTTLENECK",
    layer="2",
    also={"SYMMETRY", "DEAD"},
    control=compressed,
)

# --- numbers


def own_loss(safe: bool):
    """Cross entropy by hand, from probabilities."""

    def loss(z: Tensor, t: Tensor) -> Tensor:
        p = torch.softmax(z, dim=1)
        p = p.clamp(1e-7, 1) if safe else p
        return -torch.log(p.gather(1, t[:, None])).mean()

    return loss


def by_hand(seed: int, safe: bool) -> Setup:
    task = sorts(seed).mapped(lambda x: 50 * x if not safe else x).with_loss(own_loss(safe))
    return live(he(Net([16, 64, 64, 6])), task, "Adam", 3e-3, 50)


clamped = zoo.healthy("sorts-cross-entropy-by-hand-clamped", lambda s: by_hand(s, True))
zoo.sick(
    "sorts-cross-entropy-by-hand-raw-inputs",
    lambda s: by_hand(s, False),
    breaks,
    "NUMERICAL",
    also={"EXPLODING", "UNSTABLE", "SATURATION"},
    control=clamped,
)


class Standard(nn.Module):
    """Standardises its columns by the batch, by hand; some flag is the same in a whole batch now and then."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.net, self.eps = Net([13, 64, 64, 1]), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - x.mean(dim=0)) / (x.std(dim=0) + self.eps))


def flagged(x: Tensor) -> Tensor:
    return torch.cat([x[:, :12], (x[:, 12:] > 2.0).float()], dim=1)


def standard(seed: int, eps: float) -> Setup:
    return live(Standard(eps), housing(seed).mapped(flagged), "Adam", 3e-3, 60)


guarded = zoo.healthy("housing-own-standardising-with-eps", lambda s: standard(s, 1e-6))
zoo.sick(
    "housing-own-standardising-of-a-rare-flag",
    lambda s: standard(s, 0.0),
    breaks,
    "NUMERICAL",
    layer=("net.fc1",),
    control=guarded,
)


def counts(seed: int, factor: float) -> Setup:
    """How often a customer comes: Poisson, with the logarithm of the rate as output."""
    random = torch.Generator().manual_seed(seed + 3)

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return F.poisson_nll_loss(y, torch.poisson((0.5 + t).exp(), generator=random), full=True)

    return live(Net([13, 64, 64, 1]), housing(seed).mapped(lambda x: factor * x).with_loss(loss), "Adam", 3e-3, 60)


poisson = zoo.healthy("visits-poisson-log-rate", lambda s: counts(s, 1.0))
zoo.sick(
    "visits-poisson-raw-columns-overflow",
    lambda s: counts(s, 3000.0),
    breaks,
    "NUMERICAL",
    "EXPLODING",
    "UNSTABLE",
    also=RUINED,
    control=poisson,
)

# --- rates

paced = zoo.healthy("faces-autoencoder-adam-1e-3", lambda s: coded(s, 12, 6, lr=1e-3, steps=80))
zoo.sick(
    "faces-autoencoder-adam-1e-8",
    lambda s: coded(s, 12, 6, lr=1e-8, steps=80),
    does_not_move(steps=80),
    "SLOW",
    control=paced,
)
zoo.sick(
    "faces-autoencoder-adam-1",
    lambda s: coded(s, 12, 6, lr=1.0, steps=60),
    diverges(),
    *RUNS_AWAY,
    also=RUINED,
    control=paced,
)
stepped = zoo.healthy(
    "sorts-step-schedule-by-epoch",
    lambda s: classifier(s, he(Net([16, 64, 64, 6])), "Adam", 3e-3, 60, rate=lambda t: 0.1 ** (t // 30)),
)
zoo.sick(
    "sorts-step-schedule-by-batch",
    lambda s: classifier(s, he(Net([16, 64, 64, 6])), "Adam", 3e-3, 60, rate=lambda t: 0.1 ** (t // 2)),
    stands_still(10),
    "SLOW",
    control=stepped,
)


def divided(seed: int, by: float) -> Setup:
    """The mean is divided by the size of the batch and of the data set once more."""
    return live(Net([13, 64, 64, 1]), housing(seed).scaled(1 / by), "SGD", 0.02, 60, momentum=0.9)


once = zoo.healthy("housing-loss-divided-once", lambda s: divided(s, 1.0))
zoo.sick(
    "housing-loss-divided-again-by-batch-and-data-sgd",
    lambda s: divided(s, 64 * 50000.0),
    does_not_move(steps=60),
    "SLOW",
    "VANISHING",
    control=once,
)
