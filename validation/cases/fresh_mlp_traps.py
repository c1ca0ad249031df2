# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks as people train them at work, that look odd and are well.

Half: fresh.
"""

from __future__ import annotations

from copy import deepcopy
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from validation.case import Setup, Zoo
from validation.cases.fresh_mlp import Mixture, Painted, Visits, bells
from validation.evidence import thrives
from validation.nets import he_, mlp
from validation.nets.programs import Plain
from validation.setups import live, pretrain
from validation.tasks import Task, bends, blobs, clicks, documents, genres, heaps, homes, scenes, spirals, views

zoo = Zoo("mlp", half="fresh", proof=thrives())


def plain(*widths: int, act=F.silu) -> Plain:
    return he_(Plain(widths, act))


# --- parts that rest, are narrow or nearly zero, and may be so


class Rare(nn.Module):
    """A table of 3,000 words of which a batch holds a few dozen."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.body = nn.EmbeddingBag(3000, 16, mode="mean"), plain(16, 32, 6)

    def forward(self, words: Tensor) -> Tensor:
        return self.body(4 * self.bag(words))


def rare(seed: int) -> Setup:
    fixed = torch.Generator().manual_seed(seed + 40)
    home = torch.randint(6, (3000,), generator=fixed)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        # Word numbers follow a steep law, as in any language.
        words = (3000 * torch.rand(48, 9, generator=random) ** 6).long()
        return words, F.one_hot(home[words], 6).sum(dim=1).argmax(dim=1)

    return live(Rare(), Task(seed, draw, F.cross_entropy), lr=2e-2, steps=80)


zoo.healthy("bag-of-words-most-rows-rest", rare)


def line(seed: int) -> Setup:
    """All columns follow one hidden number: one number between is enough."""
    way = torch.randn(1, 20, generator=torch.Generator().manual_seed(seed + 41))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(64, 1, generator=random) @ way
        return x + 0.05 * torch.randn(64, 20, generator=random), x

    return live(mlp([20, 32, 1, 32, 20], nn.Tanh), Task(seed, draw, F.mse_loss), lr=1e-2, steps=100)


zoo.healthy("autoencoder-one-number-for-one-factor", line, thrives(0.4))


class Sparse(nn.Module):
    """Of 128 units the four largest speak, the others are silent for this row."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(24, 128), nn.Linear(128, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.encode(x))
        top = h.topk(4, dim=1)
        return self.decode(torch.zeros_like(h).scatter(1, top.indices, top.values))


zoo.healthy("sparse-coder-4-of-128-speak", lambda s: live(Sparse(), bends(s, factors=4), lr=5e-3, steps=100))


def pruned(seed: int) -> Setup:
    """Nine weights in ten are masked out for good."""
    model = mlp([20, 128, 128, 10], nn.GELU)
    for i in (0, 2):
        prune.random_unstructured(model[i], "weight", 0.9)
    return live(model, genres(seed), lr=5e-3, steps=80)


zoo.healthy("genres-nine-weights-in-ten-pruned", pruned)


class Features(nn.Module):
    """Frozen random features and a trained answer on top, as in extreme learning machines."""

    def __init__(self) -> None:
        super().__init__()
        self.random, self.out = nn.Linear(20, 256).requires_grad_(False), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(2 * self.random(x)))


zoo.healthy("genres-random-features-frozen", lambda s: live(Features(), genres(s), lr=3e-2, steps=60))


class Monotone(nn.Module):
    """Weights that cannot be negative: the price rises with every column."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(9, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        for layer in (self.a, self.b, self.c):
            nn.init.normal_(layer.weight, -2.0, 0.5)
            parametrize.register_parametrization(layer, "weight", nn.Softplus())

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def rising(seed: int) -> Setup:
    return live(
        Monotone(),
        homes(seed).changed(lambda x, _: (x, torch.tanh(x.mean(dim=1, keepdim=True) * 2))),
        lr=2e-2,
        steps=60,
    )


zoo.healthy("homes-weights-never-negative", rising)


class Committee(nn.Module):
    """Four members with their own heads, each of which sees its quarter of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(plain(20, 40, 10) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([member(part) for member, part in zip(self.members, x.chunk(4), strict=True)])


zoo.healthy("committee-of-four-on-quarters", lambda s: live(Committee(), genres(s), lr=5e-3, steps=80))


class Ranked(nn.Module):
    """A learned matrix beside the identity in the low-rank manner, and a gate that starts shut."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(20, 48), nn.Linear(20, 3, bias=False), nn.Linear(3, 48, bias=False)
        self.gate, self.out = nn.Parameter(torch.zeros(())), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.base(x) + torch.tanh(self.gate) * self.up(self.down(x))))


zoo.healthy("gate-that-starts-shut-beside-a-layer", lambda s: live(Ranked(), genres(s), lr=5e-3, steps=60))


class Turns(nn.Module):
    """Two tasks in turn, on a shared body, the second much rarer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.often, self.seldom = plain(20, 48, 32), nn.Linear(32, 10), nn.Linear(32, 10)
        self.turn = count()

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.body(x))
        return self.seldom(h) if next(self.turn) % 6 == 5 else self.often(h)


zoo.healthy("second-task-in-every-sixth-batch", lambda s: live(Turns(), genres(s), lr=5e-3, steps=90))

# --- losses that are odd


def energies(seed: int) -> Setup:
    """Contrastive divergence by noise: the loss is a difference and goes below zero."""

    class Energy(nn.Module):
        """High where there is no data."""

        def __init__(self) -> None:
            super().__init__()
            self.net = plain(4, 48, 48, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            noise = 1.5 * torch.randn(x.shape, generator=draws)
            return self.net(x), self.net(noise)

    draws = torch.Generator().manual_seed(seed + 42)

    def loss(out: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
        real, noise = out
        return real.mean() - noise.mean() + 0.1 * (real.square().mean() + noise.square().mean())

    return live(Energy(), spirals(seed).with_loss(loss), lr=3e-3, steps=80)


zoo.healthy("energy-of-data-below-that-of-noise", energies)


def focal(z: Tensor, t: Tensor) -> Tensor:
    p = torch.sigmoid(z.flatten())
    p = torch.where(t > 0, p, 1 - p)
    return -((1 - p).square() * p.clamp_min(1e-6).log()).mean()


zoo.healthy("clicks-focal-loss", lambda s: live(Visits(), clicks(s).with_loss(focal), lr=5e-3, steps=80), thrives(0.05))
zoo.healthy(
    "homes-summed-over-the-batch-rate-to-match",
    lambda s: live(
        plain(9, 48, 48, 1), homes(s).with_loss(lambda y, t: F.mse_loss(y, t, reduction="sum")), "SGD", 3e-4, 80
    ),
)


def wild_labels(seed: int) -> Setup:
    """Three prices in a hundred have two digits too many; the loss does not mind them much."""
    random = torch.Generator().manual_seed(seed + 44)

    def spoil(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return x, t * torch.where(torch.rand(t.shape, generator=random) < 0.03, 100.0, 1.0)

    return live(plain(9, 48, 48, 1), homes(seed).changed(spoil).with_loss(F.huber_loss), lr=5e-3, steps=80)


@torch.no_grad()
def typical_error(setup: Setup) -> float:
    """The median error, which a few wild labels do not move."""
    errors = [(setup.model(setup.input_fn()) - setup.loss_fn.__self__.target).abs() for _ in range(6)]
    return torch.cat(errors).median().item()


zoo.healthy("homes-huber-under-wild-labels", wild_labels, thrives(0.1, measure=typical_error))


def mixed_up(seed: int) -> Setup:
    """Pairs of rows are blended, and so are their labels."""
    random = torch.Generator().manual_seed(seed + 43)

    def blend(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.rand(len(x), 1, generator=random)
        goal = F.one_hot(t, 6).float()
        return share * x + (1 - share) * x.flip(0), share * goal + (1 - share) * goal.flip(0)

    return live(plain(20, 64, 64, 6), blobs(seed, 20, 6, 64, 1.2).changed(blend), lr=5e-3, steps=60)


zoo.healthy("rows-and-labels-blended", mixed_up)


def solved(seed: int) -> Setup:
    """Trained until the sigmoids are certain and nearly every gradient is gone, then a little more."""
    return pretrain(live(plain(20, 48, 2), blobs(seed, 20, 2, 64, 2.0), lr=1e-4, steps=40), 150, 1e-2)


@torch.no_grad()
def mistakes(setup: Setup) -> float:
    """Share of the rows that it gets wrong, of some hundred, plus one."""
    wrong = 0.0
    for _ in range(6):
        output = setup.model(setup.input_fn())
        wrong += (output.argmax(dim=1) != setup.loss_fn.__self__.target).float().mean().item() / 6
    return 1 + wrong


zoo.healthy("two-classes-solved-and-certain", solved, thrives(-0.02, measure=mistakes))
zoo.healthy(
    "homes-five-bells-loss-below-zero",
    lambda s: live(Mixture(False), homes(s).with_loss(lambda o, t: bells(o, t) - 2), "Adam", 5e-3, 100),
    thrives(0.2),
)

# --- ways to train


class Penalised(nn.Module):
    """A critic of rows against noise whose slope is held near one, through a second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain(4, 48, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        with torch.enable_grad():
            between = torch.lerp(x, noise, torch.rand(len(x), 1)).requires_grad_()
            (slope,) = torch.autograd.grad(self.net(between).sum(), between, create_graph=True)
        # The last bias cancels in the difference; a pull to zero holds it.
        real, fake = self.net(x), self.net(noise)
        return fake.mean() - real.mean() + 5 * (slope.norm(dim=1) - 1).square().mean() + 1e-3 * real.square().mean()


zoo.healthy(
    "critic-with-a-slope-penalty",
    lambda s: live(Penalised(), spirals(s).with_loss(lambda out, _: out), "Adam", 2e-3, 80, betas=(0.0, 0.9)),
)


class Drifting(nn.Module):
    """Keeps a running average of itself and a running scale of its input, as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain(9, 48, 48, 1)
        self.average = deepcopy(self.net).requires_grad_(False)
        self.scale = nn.Buffer(torch.ones(9))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.scale.lerp_(x.std(dim=0), 0.05)
                for slow, fast in zip(self.average.parameters(), self.net.parameters(), strict=True):
                    slow.lerp_(fast, 0.05)
        return self.net(x / self.scale)


zoo.healthy(
    "homes-own-average-and-running-scale",
    lambda s: live(Drifting(), homes(s).mapped(lambda x: x * torch.logspace(-1, 1, 9)), lr=5e-3, steps=80),
)
zoo.healthy(
    "raw-columns-behind-a-batch-norm",
    lambda s: live(
        nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 1)),
        homes(s).mapped(lambda x: x * torch.logspace(-3, 5, 9) + torch.logspace(5, -3, 9)),
        lr=5e-3,
        steps=80,
    ),
)
zoo.healthy(
    "scene-rates-in-waves",
    lambda s: live(Painted(64, 64), scenes(s), lr=1e-2, steps=100, rate=lambda t: 0.05 + 0.95 * (1 - (t % 25) / 25)),
)
zoo.healthy(
    "documents-adamax-no-hidden-layer",
    lambda s: live(nn.Linear(60, 60), documents(s), "Adamax", 1e-2, 80),
    thrives(0.05),
)
zoo.healthy(
    "homes-nadam-weight-decay-0.1",
    lambda s: live(plain(9, 64, 64, 1), homes(s), "NAdam", 3e-3, 80, weight_decay=0.1, decoupled_weight_decay=True),
)
zoo.healthy(
    "spirals-rprop-large-batches", lambda s: live(plain(4, 32, 32, 3), spirals(s, batch=512), "Rprop", 1e-3, 40)
)


class Max(nn.Module):
    """Maxout: each unit is the largest of four."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(20, 128), nn.Linear(32, 128), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = layer(x).unflatten(1, (32, 4)).amax(dim=2)
        return self.out(x)


zoo.healthy("genres-largest-of-four", lambda s: live(Max(), genres(s), lr=3e-3, steps=60))


class Recurrentless(nn.Module):
    """One layer that runs eight times, with a bound on its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.leave = nn.Linear(20, 40), nn.Linear(40, 40), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        drive, h = self.enter(x), 0.0
        for _ in range(8):
            h = torch.tanh(drive + (self.again(h) if torch.is_tensor(h) else 0.0))
        return self.leave(h)


zoo.healthy("one-layer-eight-times", lambda s: live(Recurrentless(), genres(s), lr=3e-3, steps=60))
zoo.healthy("retrieval-cosines-at-a-low-temperature", lambda s: live(Spheres(), views(s), lr=3e-3, steps=60))


class Spheres(nn.Module):
    """Both towers end on the sphere; scores are cosines times twenty."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.item = plain(24, 48, 12), plain(18, 48, 12)

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        return 20 * F.normalize(self.query(query), dim=1) @ F.normalize(self.item(item), dim=1).T


class Chosen(nn.Module):
    """A straight-through choice of one of four experts: the forward pass is hard, the backward pass soft."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(20, 4), nn.ModuleList(plain(20, 24, 10) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight = F.gumbel_softmax(self.gate(x), tau=1.0, hard=True)
        return torch.einsum("be,beo->bo", weight, torch.stack([expert(x) for expert in self.experts], dim=1))


zoo.healthy("one-expert-chosen-straight-through", lambda s: live(Chosen(), genres(s), lr=1e-2, steps=100))
zoo.healthy(
    "largest-of-a-set-sgd-nesterov", lambda s: live(Sets(), heaps(s), "SGD", 0.02, 80, momentum=0.9, nesterov=True)
)


class Sets(nn.Module):
    """A mean and a largest of the items side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.joint = plain(6, 48, 32), plain(64, 48, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.each(x))
        return self.joint(torch.cat([h.mean(dim=1), h.amax(dim=1)], dim=1))
