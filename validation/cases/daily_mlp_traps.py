# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily dense networks that train well, some of them a little unusual.

Half: daily.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo, call
from validation.cases._common_nets import tower
from validation.cases._daily_nets import (
    alloys,
    bananas,
    claims,
    fields,
    friends,
    gaits,
    galaxies,
    pendulums,
    playlists,
    triples,
)
from validation.cases._everyday_nets import start
from validation.cases._plain_nets import with_groups
from validation.cases._usual_nets import info_nce
from validation.evidence import thrives
from validation.setups import frozen, live, pretrain

zoo = Zoo("mlp", half="daily", proof=thrives(0.2, most_dead=0.5))

# --- densities


class Mixture(nn.Module):
    """A mixture of bells over the cost of a claim."""

    def __init__(self, bells: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 6) for n in (15, 8, 5))
        self.net = tower([22, 64, 64, 3 * bells], nn.SiLU)

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        parts = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.net(torch.cat([*parts, x], dim=1))


def density(z: Tensor, t: Tensor) -> Tensor:
    share, middle, width = z.chunk(3, dim=1)
    width = F.softplus(width) + 0.05
    log = share.log_softmax(dim=1) - 0.5 * ((t - middle) / width).square() - width.log()
    return -log.logsumexp(dim=1).mean()


zoo.healthy("claims-mixture-density", lambda s: live(Mixture(), claims(s).with_loss(density), "Adam", 5e-3, 100))


def pinball(z: Tensor, t: Tensor) -> Tensor:
    share = torch.tensor([0.1, 0.5, 0.9])
    off = t - z
    return torch.maximum(share * off, (share - 1) * off).mean()


zoo.healthy("claims-three-quantiles", lambda s: live(Mixture(1), claims(s).with_loss(pinball), "AdamW", 5e-3, 100))


class Flow(nn.Module):
    """Two coordinates change each other in turn, by bounded scales and shifts; the output is minus the likelihood."""

    def __init__(self, steps: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(tower([1, 32, 2], nn.Tanh) for _ in range(steps))

    def forward(self, x: Tensor) -> Tensor:
        log = torch.zeros(len(x))
        for net in self.nets:
            a, b = x.flip(1).chunk(2, dim=1)
            s, t = net(a).chunk(2, dim=1)
            s = torch.tanh(s)
            x, log = torch.cat([a, b * s.exp() + t], dim=1), log + s[:, 0]
        return 0.5 * x.square().sum(dim=1) - log


zoo.healthy("bananas-couplings", lambda s: live(Flow(), bananas(s), "Adam", 5e-3, 100), thrives(0.15))


class Score(nn.Module):
    """Which noise lies on a point, given how much of it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([4, 64, 64, 2], nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.net(torch.cat([x, t.sin(), t.cos()], dim=1))


def noised(seed: int) -> Setup:
    random = torch.Generator().manual_seed(seed + 71)

    def change(x: Tensor, _y: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        t, noise = 1.5 * torch.rand(len(x), 1, generator=random), torch.randn(x.shape, generator=random)
        return (t.cos() * x + t.sin() * noise, t), noise

    return live(Score(), bananas(seed).changed(change).with_loss(F.mse_loss), "Adam", 5e-3, 110)


zoo.healthy("bananas-diffusion", noised)


class Vae(nn.Module):
    """A variational code; hands out the pose and what the code costs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.code = nn.Sequential(nn.Linear(36, 64), nn.SiLU()), nn.Linear(64, 20)
        self.out = tower([10, 64, 36], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = self.code(self.enter(x)).chunk(2, dim=1)
        z = mean + (log / 2).exp() * torch.randn_like(mean)
        return self.out(z), 0.5 * (mean.square() + log.exp() - 1 - log).sum(dim=1).mean()


zoo.healthy("gaits-variational-code-of-10", lambda s: live(
    Vae(), gaits(s).with_loss(lambda out, x: F.mse_loss(out[0], x) + 1e-3 * out[1]), "Adam", 4e-3, 100
))  # fmt: skip
zoo.healthy(
    "gaits-linear-code-of-14",
    lambda s: live(nn.Sequential(nn.Linear(36, 14), nn.Linear(14, 36)), gaits(s), "Adam", 1e-2, 90),
)
zoo.healthy(
    "gaits-code-as-wide-as-the-motions",
    lambda s: live(tower([36, 64, 7, 64, 36], nn.Mish), gaits(s), "NAdam", 3e-3, 100),
)

# --- pairs and graphs


class Contrast(nn.Module):
    """Rows of one kind find each other among those of the batch; the third row is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.projector = tower([20, 64, 48], nn.ReLU), nn.Sequential(nn.ReLU(), nn.Linear(48, 16))

    def forward(self, a: Tensor, b: Tensor, _c: Tensor) -> Tensor:
        return info_nce(*(self.projector(self.encoder(x)) for x in (a, b)), 0.3)


zoo.healthy("triples-contrast-at-0.3", lambda s: live(
    Contrast(), triples(s, classes=60), "Adam", 3e-3, 90
))  # fmt: skip


class Margins(nn.Module):
    """torch's own triplet loss on unit vectors: most triples fall silent as it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = tower([20, 48, 16], nn.GELU), nn.TripletMarginLoss(0.5)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.loss(*(F.normalize(self.net(x), dim=1) for x in (a, b, c)))


zoo.healthy("triples-most-of-them-silent", lambda s: live(Margins(), triples(s), "Adam", 3e-3, 70))


class Gcn(nn.Module):
    """Two rounds of means over friends."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 32), nn.Linear(64, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, link: Tensor) -> Tensor:
        link = link / link.sum(dim=2, keepdim=True)
        h = F.relu(link @ self.a(x))
        h = F.relu(self.b(torch.cat([h, link @ h], dim=2)))
        return self.out(F.dropout(h, 0.2, self.training))


zoo.healthy("friends-two-rounds", lambda s: live(Gcn(), friends(s), "Adam", 1e-2, 60, weight_decay=5e-4))

# --- tables


class Bag(nn.Module):
    """torch's bag of vectors with sparse gradients, under plain SGD."""

    def __init__(self) -> None:
        super().__init__()
        self.songs, self.out = nn.EmbeddingBag(50, 24, mode="mean", sparse=True), nn.Linear(24, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.songs(ids))


zoo.healthy("playlists-sparse-bag-sgd", lambda s: live(Bag(), playlists(s), "SGD", 3.0, 120), thrives(0.15))


class Tied(nn.Module):
    """The table that reads the songs names them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.songs, self.mix = nn.Embedding(50, 32), nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        nn.init.normal_(self.songs.weight, std=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.songs(ids).mean(dim=1)) @ self.songs.weight.T


zoo.healthy("playlists-tied-table", lambda s: live(Tied(), playlists(s), "AdamW", 1e-2, 100))


class Wide(nn.Module):
    """A linear part over kinds beside a deep part."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.tables = nn.Embedding(28, 1), nn.Embedding(28, 8)
        self.deep = nn.Sequential(
            nn.BatchNorm1d(28),
            nn.Linear(28, 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, kinds: Tensor, x: Tensor) -> Tensor:
        kinds = kinds + torch.tensor([0, 15, 23])
        return self.wide(kinds).sum(dim=1) + self.deep(torch.cat([self.tables(kinds).flatten(1), x], dim=1))


def cosine(t: int, total: int = 90) -> float:
    return min((t + 1) / 10, 0.52 + 0.48 * math.cos(math.pi * t / total))


zoo.healthy("claims-wide-and-deep-cosine", lambda s: live(Wide(), claims(s), "AdamW", 8e-3, 90, rate=cosine))
zoo.healthy("claims-wide-and-deep-huber-noisy", lambda s: live(
    Wide(), claims(s, noise=0.6).with_loss(F.huber_loss), "RMSprop", 3e-3, 100
))  # fmt: skip
zoo.healthy("claims-wide-and-deep-batches-of-8", lambda s: live(Wide(), claims(s, batch=8), "Adam", 3e-3, 120))

# --- classes


def noisy(seed: int) -> Setup:
    """Three labels in ten are wrong."""
    random = torch.Generator().manual_seed(seed + 72)

    def wrong(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        other = torch.randint(9, t.shape, generator=random)
        return x, torch.where(torch.rand(len(t), generator=random) < 0.3, other, t)

    return live(tower([16, 64, 64, 9], nn.ReLU), galaxies(seed).changed(wrong), "SGD", 0.1, 90, momentum=0.9)


zoo.healthy("galaxies-three-labels-in-ten-wrong", noisy)
zoo.healthy(
    "galaxies-batches-of-2-sgd", lambda s: live(tower([16, 48, 9], nn.GELU), galaxies(s, batch=2), "SGD", 0.03, 120)
)
zoo.healthy("galaxies-margins-over-all-kinds", lambda s: live(
    tower([16, 64, 9], nn.ReLU), galaxies(s).with_loss(F.multi_margin_loss), "Adam", 5e-3, 80
))  # fmt: skip
zoo.healthy("galaxies-dropout-0.5-decay-0.1", lambda s: live(
    nn.Sequential(
        nn.Linear(16, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 9)
    ),
    galaxies(s), "AdamW", 4e-3, 90, weight_decay=0.1,
))  # fmt: skip
zoo.healthy("galaxies-loss-times-0.001-adam", lambda s: live(
    tower([16, 64, 9], nn.SiLU), galaxies(s).scaled(1e-3), "Adam", 4e-3, 70
))  # fmt: skip
zoo.healthy("galaxies-logistic-regression", lambda s: live(nn.Linear(16, 9), galaxies(s), "SGD", 0.3, 60))
zoo.healthy("galaxies-selu-alpha-dropout-decaying-rate", lambda s: live(
    nn.Sequential(nn.Linear(16, 48), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(48, 48), nn.SELU(), nn.Linear(48, 9)),
    galaxies(s), "Adamax", 1e-2, 80, rate=lambda t: 0.97**t,
))  # fmt: skip


def head_alone(seed: int) -> Setup:
    """A body trained on other galaxies is frozen; a new head starts at zero."""
    model = tower([16, 96, 64, 9], nn.ReLU)
    pretrain(live(model, galaxies(seed + 7)), 60)
    nn.init.zeros_(model[4].weight)
    return live(frozen(model, "0"), galaxies(seed), "AdamW", 5e-3, 80)


zoo.healthy("galaxies-first-layer-frozen-head-from-zero", head_alone)


class Low(nn.Module):
    """A frozen layer with a low-rank change beside it that starts at nothing."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, False), nn.Linear(rank, base.out_features, False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted(seed: int) -> Setup:
    model = tower([16, 64, 64, 9], nn.GELU)
    pretrain(live(model, galaxies(seed + 8)), 60)
    for i in (0, 2, 4):
        model[i] = Low(model[i])
    return live(model, galaxies(seed), "AdamW", 1e-2, 100)


zoo.healthy("galaxies-low-rank-changes", adapted)


def chosen(z: Tensor, kind: Tensor) -> Tensor:
    """A reward of one for the right kind, by a sampled action and a baseline."""
    policy = torch.distributions.Categorical(logits=z)
    action = policy.sample()
    reward = (action == kind).float()
    return -(policy.log_prob(action) * (reward - reward.mean())).mean() - 0.01 * policy.entropy().mean()


@torch.no_grad()
def mistaken(setup: Setup) -> float:
    """The share of rows whose best action is wrong."""
    shares = [
        (call(setup.model, setup.input_fn()).argmax(dim=1) != setup.loss_fn.__self__.target).float().mean().item()
        for _ in range(8)
    ]
    return sum(shares) / len(shares)


zoo.healthy(
    "galaxies-sampled-kind-rewarded",
    lambda s: live(tower([16, 64, 9], nn.Tanh), galaxies(s, batch=256).with_loss(chosen), "Adam", 2e-2, 110),
    thrives(0.3, measure=mistaken),
)

# --- numbers


class Energy(nn.Module):
    """How the state changes is read from the slope of a learned energy, in two small steps."""

    def __init__(self) -> None:
        super().__init__()
        hidden = tower([4, 64, 64], nn.Softplus)
        self.energy = nn.Sequential(hidden, nn.Softplus(), nn.Linear(64, 1, bias=False))
        self.pace = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            with torch.enable_grad():
                y = x if x.requires_grad else x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.energy(y).sum(), y, create_graph=True)
            x = y + self.pace * torch.cat([slope[:, 2:], -slope[:, :2]], dim=1)
        return x


zoo.healthy("pendulums-slope-of-an-energy", lambda s: live(Energy(), pendulums(s), "Adam", 1e-2, 100))


class Sines(nn.Module):
    """Sines of the place and of what the sensors show, drawn once."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ways", 2 * torch.randn(1, 24))
        self.net = tower([60, 64, 64, 1], nn.GELU)

    def forward(self, seen: Tensor, place: Tensor) -> Tensor:
        turned = place @ self.ways
        return self.net(torch.cat([seen, turned.sin(), turned.cos()], dim=1))


zoo.healthy("rod-fixed-sines", lambda s: live(Sines(), fields(s), "Adam", 5e-3, 110))


def small_start(seed: int) -> Setup:
    """Small weights: flat for a while, then it learns."""
    model = start(tower([10, 48, 48, 6], nn.Tanh), lambda w: nn.init.normal_(w, std=0.08))
    return live(model, alloys(seed), "Adam", 3e-3, 110)


zoo.healthy("alloys-small-start-flat-at-first", small_start)


class Tasks(nn.Module):
    """A body, a head for three properties and one for the others that starts at zero and counts a tenth."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.late = tower([10, 64, 48], nn.SiLU), nn.Linear(48, 3), nn.Linear(48, 3)
        nn.init.zeros_(self.late.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.body(x))
        return torch.cat([self.first(h), self.late(h)], dim=1)


zoo.healthy("alloys-late-head-counts-a-tenth", lambda s: live(
    Tasks(),
    alloys(s).with_loss(lambda z, t: F.mse_loss(z[:, :3], t[:, :3]) + 0.1 * F.mse_loss(z[:, 3:], t[:, 3:])),
    "Adam", 5e-3, 90,
))  # fmt: skip


def parts(seed: int) -> Setup:
    """The last layer has a tenth of the rate, and vectors do not decay."""
    model = tower([10, 64, 64, 6], nn.GELU)
    groups = [
        {"params": [model[0].weight, model[2].weight], "weight_decay": 0.05},
        {"params": [model[0].bias, model[2].bias], "weight_decay": 0.0},
        {"params": model[4].parameters(), "lr": 1e-3},
    ]
    return with_groups(model, alloys(seed), groups, lr=8e-3, steps=90)


zoo.healthy("alloys-three-groups-of-parameters", parts)


class Experts(nn.Module):
    """Four experts, weighed by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(tower([10, 24, 6], nn.ReLU) for _ in range(4))
        self.gate = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (self.gate(x).softmax(dim=1)[..., None] * said).sum(dim=1)


zoo.healthy("alloys-four-soft-experts-sgd-clipped", lambda s: live(
    Experts(), alloys(s), "SGD", 0.1, 90, momentum=0.9, clip=1.0
))  # fmt: skip
