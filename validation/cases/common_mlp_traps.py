# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of every day that train well, some of them in unusual ways.

Half: common.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._common_nets import (
    Through,
    adverts,
    bags,
    energy,
    grades,
    islands,
    peaks,
    plant,
    tags,
    tones,
    tower,
    twins,
)
from validation.cases._everyday_nets import he
from validation.evidence import thrives
from validation.setups import frozen, live
from validation.tasks import Task, communities, crescents, drawn_once

zoo = Zoo("mlp", half="common", proof=thrives())

# --- classifiers


def graded(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, grades(seed), *args, **more)


zoo.healthy("grades-softmax-regression", lambda s: graded(s, nn.Linear(11, 5), "SGD", 0.3, 60))
zoo.healthy("grades-one-hidden-layer-of-256", lambda s: graded(s, tower([11, 256, 5]), "Adam", 3e-3, 60))
zoo.healthy(
    "grades-selu-alpha-dropout",
    lambda s: graded(
        s,
        nn.Sequential(
            nn.Linear(11, 64), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 5)
        ),
        "NAdam",
        3e-3,
        60,
    ),
)
zoo.healthy(
    "grades-weight-norm",
    lambda s: graded(
        s,
        nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(11, 48)),
            nn.Mish(),
            nn.utils.parametrizations.weight_norm(nn.Linear(48, 48)),
            nn.Mish(),
            nn.Linear(48, 5),
        ),
        "Adam",
        5e-3,
        60,
    ),
)
zoo.healthy("grades-prelu-adamax", lambda s: graded(s, tower([11, 64, 32, 5], nn.PReLU), "Adamax", 1e-2, 60))
zoo.healthy(
    "grades-hard-swish-cosine-to-zero",
    lambda s: graded(
        s,
        tower([11, 64, 64, 5], nn.Hardswish),
        "AdamW",
        5e-3,
        80,
        rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * t / 80),
    ),
)
zoo.healthy(
    "grades-clipped-at-half-warm-up",
    lambda s: graded(
        s, he(tower([11, 64, 64, 64, 5])), "SGD", 0.1, 80, momentum=0.9, clip=0.5, rate=lambda t: min(1.0, (t + 1) / 20)
    ),
)
zoo.healthy(
    "grades-strong-weight-decay",
    lambda s: graded(s, tower([11, 64, 64, 5], nn.GELU), "AdamW", 5e-3, 60, weight_decay=0.3),
)
zoo.healthy("grades-batches-of-6", lambda s: live(tower([11, 32, 5], nn.ELU), grades(s, batch=6), "Adam", 3e-3, 120))
zoo.healthy("grades-one-batch-overfitted", lambda s: live(tower([11, 64, 5]), grades(s).fixed(), "Adam", 1e-2, 60))


def ordinal(z: Tensor, t: Tensor) -> Tensor:
    """Is the grade above 0, above 1 …"""
    return F.binary_cross_entropy_with_logits(z, (t[:, None] > torch.arange(4)).float())


zoo.healthy(
    "grades-ordinal-thresholds", lambda s: live(tower([11, 48, 4]), grades(s).with_loss(ordinal), lr=5e-3, steps=60)
)


def rdrop(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
    a, b = out
    kl = F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean") + F.kl_div(
        b.log_softmax(1), a.softmax(1), reduction="batchmean"
    )
    return (F.cross_entropy(a, t) + F.cross_entropy(b, t)) / 2 + 0.25 * kl


class Twice(nn.Module):
    """Calls a net with dropout twice."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(11, 96), nn.GELU(), nn.Dropout(0.3), nn.Linear(96, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.net(x)


zoo.healthy("grades-r-drop", lambda s: live(Twice(), grades(s).with_loss(rdrop), "AdamW", 1e-2, 70))


class MixUp(nn.Module):
    """Mixes the rows of a batch with others, and says which."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([11, 64, 64, 5], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, float]:
        order = torch.randperm(len(x))
        share = torch.distributions.Beta(0.4, 0.4).sample().item()
        return self.net(share * x + (1 - share) * x[order]), order, share


def mixed(out: tuple[Tensor, Tensor, float], t: Tensor) -> Tensor:
    z, order, share = out
    return share * F.cross_entropy(z, t) + (1 - share) * F.cross_entropy(z, t[order])


zoo.healthy("grades-mix-up", lambda s: live(MixUp(), grades(s).with_loss(mixed), "Adam", 5e-3, 90), thrives(0.08))


class Distilled(nn.Module):
    """A frozen teacher, made by hand from the task, and a student that is to say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = frozen(nn.Sequential(tower([11, 64, 5], nn.Tanh)), "0")
        self.student = tower([11, 48, 5])
        with torch.no_grad():
            self.teacher[0][2].weight.mul_(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(x), self.teacher(x)


def distill(out: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
    return F.kl_div((out[0] / 2).log_softmax(1), (out[1] / 2).softmax(1), reduction="batchmean") * 4


zoo.healthy(
    "grades-distillation-frozen-teacher", lambda s: live(Distilled(), grades(s).with_loss(distill), lr=5e-3, steps=60)
)


class Gated(nn.Module):
    """Experts of which a router picks the best two for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(11, 4), nn.ModuleList(tower([11, 24, 5], nn.GELU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        score, chosen = self.router(x).topk(2, dim=1)
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        picked = said.gather(1, chosen[..., None].expand(-1, -1, 5))
        return (score.softmax(dim=1)[..., None] * picked).sum(dim=1)


zoo.healthy("grades-top-two-of-four-experts", lambda s: graded(s, Gated(), "Adam", 1e-2, 70))


class Exits(nn.Module):
    """A head behind every layer, all in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, 48) for a in (11, 48, 48))
        self.heads = nn.ModuleList(nn.Linear(48, 5) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        said = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = F.relu(layer(x))
            said.append(head(x))
        return said


zoo.healthy(
    "grades-early-exits",
    lambda s: live(
        Exits(), grades(s).with_loss(lambda out, t: sum(F.cross_entropy(z, t) for z in out) / 3), lr=5e-3, steps=60
    ),
)


class Late(nn.Module):
    """A head that starts at zero behind a body that is drawn: nothing reaches the body in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = (
            nn.Sequential(nn.Linear(11, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
            nn.Linear(64, 5),
        )
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


zoo.healthy("grades-head-of-zeros", lambda s: graded(s, Late(), "Adam", 3e-3, 60))


class Probed(nn.Module):
    """A frozen, random body of many features, and a head that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(11, 256), nn.Tanh()).requires_grad_(False), nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(x)
        return self.head(features)


zoo.healthy("grades-random-features-frozen", lambda s: graded(s, Probed(), "Adam", 1e-2, 60))


class Adapted(nn.Module):
    """A frozen layer with a low-rank update beside it; the task is what the layer did, turned a little."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(11, 64).requires_grad_(False), nn.Linear(64, 5)
        self.a, self.b = nn.Linear(11, rank, bias=False), nn.Linear(rank, 64, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.base(x) + 2 * self.b(self.a(x))))


zoo.healthy("grades-lora-beside-a-frozen-layer", lambda s: graded(s, Adapted(), "AdamW", 1e-2, 60))

# --- tables, texts, recommenders


class Bag(nn.Module):
    """Mean of word vectors, most of which no batch touches."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words, self.out = nn.EmbeddingBag(120, 32, mode="mean", sparse=sparse), nn.Linear(32, 10)
        nn.init.normal_(self.words.weight, std=0.5)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.words(text))


zoo.healthy("tags-embedding-bag-adam", lambda s: live(Bag(), tags(s, batch=128), "Adam", 2e-2, 90))
zoo.healthy("tags-embedding-bag-adagrad", lambda s: live(Bag(), tags(s, batch=128), "Adagrad", 0.2, 90))


class Tied(nn.Module):
    """Guesses a missing word of a text from the others by the same table that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(40, 24), nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, text: Tensor) -> Tensor:
        return self.mix(self.words(text).mean(dim=1)) @ self.words.weight.T


def missing(seed: int) -> Task:
    """Texts of one of five topics with eight words each; one word is hidden."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        topic = torch.randint(5, (96, 1), generator=random)
        text = 8 * topic + torch.randint(8, (96, 9), generator=random)
        return text[:, 1:], text[:, 0]

    return Task(seed, draw, F.cross_entropy)


zoo.healthy("words-cbow-tied-table", lambda s: live(Tied(), missing(s), "Adam", 1e-2, 80))


class Skip(nn.Module):
    """Word vectors by negative sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Embedding(40, 16), nn.Embedding(40, 16)
        nn.init.normal_(self.inside.weight, std=0.3)
        nn.init.normal_(self.outside.weight, std=0.3)

    def forward(self, text: Tensor) -> Tensor:
        near = (self.inside(text[:, 0]) * self.outside(text[:, 1])).sum(dim=1)
        far = torch.einsum("bd,bkd->bk", self.inside(text[:, 0]), self.outside(torch.randint(40, (len(text), 5))))
        return F.softplus(-near).mean() + F.softplus(far).mean()


zoo.healthy(
    "words-skip-gram-negative-samples",
    lambda s: live(Skip(), missing(s).with_loss(lambda out, _: out), "Adam", 2e-2, 100),
)


class Machine(nn.Module):
    """A factorisation machine: biases and products of the vectors of what holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = nn.Embedding(80, 1), nn.Embedding(80, 12)
        self.bias = nn.Parameter(torch.zeros(()))
        nn.init.normal_(self.factors.weight, std=0.3)
        nn.init.zeros_(self.linear.weight)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        held = torch.stack([user, item + 50], dim=1)
        v = self.factors(held)
        pairs = 0.5 * (v.sum(dim=1) ** 2 - (v**2).sum(dim=1)).sum(dim=1)
        return self.bias + self.linear(held).sum(dim=(1, 2)) + pairs


zoo.healthy("adverts-factorisation-machine", lambda s: live(Machine(), adverts(s), "Adam", 3e-2, 80))


class Ranked(nn.Module):
    """Bayesian personalised ranking: an item that was clicked before one that was not."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 12), nn.Embedding(30, 12)
        nn.init.normal_(self.users.weight, std=0.4)
        nn.init.normal_(self.items.weight, std=0.4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.users(user) @ self.items.weight.T, item


def ranking(out: tuple[Tensor, Tensor], click: Tensor) -> Tensor:
    """Compare with another item at random; a click wants it lower, a pass wants it higher."""
    scores, item = out
    other = torch.randint(30, item.shape)
    gap = scores.gather(1, item[:, None]) - scores.gather(1, other[:, None])
    return F.softplus(-(2 * click - 1) * gap.flatten()).mean()


zoo.healthy("adverts-bpr", lambda s: live(Ranked(), adverts(s, factors=3).with_loss(ranking), "Adam", 3e-2, 90))

# --- regressions


def loaded(seed: int, model: nn.Module, *args, loss=F.mse_loss, **more) -> Setup:
    return live(model, energy(seed).with_loss(loss), *args, **more)


def quantiles(y: Tensor, t: Tensor) -> Tensor:
    at = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(at * (t - y), (at - 1) * (t - y)).mean()


zoo.healthy(
    "energy-three-quantiles", lambda s: loaded(s, tower([8, 64, 64, 3], nn.SiLU), "Adam", 5e-3, 80, loss=quantiles)
)
zoo.healthy(
    "energy-student-t-likelihood",
    lambda s: loaded(
        s,
        tower([8, 64, 64, 3]),
        "Adam",
        5e-3,
        80,
        loss=lambda y, t: (
            -torch.distributions.StudentT(2 + F.softplus(y[:, 2]), y[:, 0], F.softplus(y[:, 1]) + 0.05)
            .log_prob(t.flatten())
            .mean()
        ),
    ),
)


def components(y: Tensor, t: Tensor) -> Tensor:
    weight, mean, spread = y.chunk(3, dim=1)
    normal = torch.distributions.Normal(mean, F.softplus(spread) + 0.05)
    return -(weight.log_softmax(dim=1) + normal.log_prob(t)).logsumexp(dim=1).mean()


zoo.healthy(
    "energy-mixture-of-four-normals",
    lambda s: loaded(s, tower([8, 64, 12], nn.Tanh), "Adam", 1e-2, 80, loss=components),
)
zoo.healthy(
    "energy-rprop-whole-batches", lambda s: live(tower([8, 32, 1], nn.Tanh), energy(s, 256).fixed(), "Rprop", 1e-3, 60)
)
zoo.healthy(
    "energy-sgd-decaying-rate",
    lambda s: loaded(s, tower([8, 64, 64, 1], nn.Tanh), "SGD", 0.1, 90, momentum=0.9, rate=lambda t: 1 / (1 + t / 30)),
)


class Wide(nn.Module):
    """A linear part and a deep part, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(8, 1), tower([8, 64, 32, 1], norm=nn.BatchNorm1d)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.deep(x)


zoo.healthy("energy-wide-and-deep", lambda s: loaded(s, Wide(), "AdamW", 5e-3, 80))


class Additive(nn.Module):
    """A small net for each column, their sum: a neural additive model."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(tower([1, 16, 1], nn.Tanh) for _ in range(8))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return sum(net(x[:, i : i + 1]) for i, net in enumerate(self.nets)) + self.bias


zoo.healthy("energy-neural-additive-model", lambda s: loaded(s, Additive(), "Adam", 1e-2, 80))
zoo.healthy(
    "energy-layer-norm-first-radam",
    lambda s: loaded(s, nn.Sequential(nn.LayerNorm(8), tower([8, 64, 64, 1], nn.GELU)), "RAdam", 1e-2, 80),
)
zoo.healthy(
    "plant-linear-waist-as-wide-as-the-outputs",
    lambda s: live(tower([10, 64, 12, 12], nn.Tanh), plant(s), lr=1e-2, steps=80),
)
zoo.healthy("plant-asgd", lambda s: live(tower([10, 64, 12], nn.Tanh), plant(s), "ASGD", 0.5, 80))


class Uncertain(nn.Module):
    """Three losses whose weights are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = (
            nn.Sequential(nn.Linear(10, 64), nn.SiLU()),
            nn.ModuleList(nn.Linear(64, 4) for _ in range(3)),
        )
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        h = self.body(x)
        return [head(h) for head in self.heads], self.log_var


def weighed(out: tuple[list[Tensor], Tensor], t: Tensor) -> Tensor:
    losses = torch.stack([F.mse_loss(y, t[:, 4 * i : 4 * i + 4] * 3**i) for i, y in enumerate(out[0])])
    return (losses * (-out[1]).exp() + out[1]).sum() + 3


zoo.healthy(
    "plant-three-losses-of-learned-weight", lambda s: live(Uncertain(), plant(s).with_loss(weighed), "Adam", 2e-2, 90)
)

# --- codes and densities

zoo.healthy(
    "spectra-linear-autoencoder-code-9-of-9",
    lambda s: live(nn.Sequential(nn.Linear(60, 9), nn.Linear(9, 60)), peaks(s), lr=1e-2, steps=80),
)
zoo.healthy(
    "spectra-autoencoder-code-6-of-3-lines",
    lambda s: live(tower([60, 64, 6, 64, 60], nn.SiLU), peaks(s, 3), "Adam", 5e-3, 80),
)


class Own(nn.Module):
    """An auto-encoder whose decoder is the encoder turned round."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.bias = nn.Linear(60, 20), nn.Parameter(torch.zeros(60))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.leaky_relu(self.enc(x), 0.2), self.enc.weight.T, self.bias)


zoo.healthy("spectra-autoencoder-tied-weights", lambda s: live(Own(), peaks(s), "Adam", 1e-2, 70))


class Masked(nn.Module):
    """Rebuilds what it does not see: half of the spectrum is set to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([60, 96, 96, 60], nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * (torch.rand_like(x) < 0.5))


zoo.healthy("spectra-masked-halves", lambda s: live(Masked(), peaks(s), "AdamW", 5e-3, 80))


class Coupling(nn.Module):
    """A flow of four affine couplings; the output is minus the log-likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(tower([1, 32, 2], nn.Tanh) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for i, net in enumerate(self.nets):
            kept, moved = x[:, i % 2 : i % 2 + 1], x[:, 1 - i % 2 : 2 - i % 2]
            scale, shift = net(kept).chunk(2, dim=1)
            scale = torch.tanh(scale)
            moved = moved * scale.exp() + shift
            total = total + scale[:, 0]
            x = torch.cat([kept, moved] if i % 2 == 0 else [moved, kept], dim=1)
        return 0.5 * (x**2).sum(dim=1) + math.log(2 * math.pi) - total


zoo.healthy(
    "crescents-four-affine-couplings", lambda s: live(Coupling(), crescents(s), "Adam", 1e-2, 90), thrives(0.05)
)


class Diffusion(nn.Module):
    """Says which noise was added to a point, from the noisy point and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.net = tower([16, 32], nn.SiLU), tower([34, 96, 96, 2], nn.SiLU)
        self.register_buffer("rate", torch.logspace(0, 2, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        t, noise = torch.rand(len(x), 1), torch.randn_like(x)
        angle = t * self.rate
        noisy = (t * math.pi / 2).cos() * x + (t * math.pi / 2).sin() * noise
        wave = F.silu(self.time(torch.cat([angle.sin(), angle.cos()], dim=1)))
        return self.net(torch.cat([noisy, wave], dim=1)), noise


zoo.healthy(
    "islands-diffusion",
    lambda s: live(Diffusion(), islands(s, 128).with_loss(lambda out, _: F.mse_loss(*out)), "AdamW", 3e-3, 100),
)


class Adversaries(nn.Module):
    """A generator and a critic, in one loss; a still copy of the critic passes its slope to the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = tower([4, 48, 48, 2], nn.LeakyReLU), tower([2, 48, 48, 1], nn.LeakyReLU)

    def forward(self, x: Tensor) -> Tensor:
        fake = self.generator(torch.randn(len(x), 4))
        judged = F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(fake.detach())).mean()
        still = {name: p.detach() for name, p in self.critic.named_parameters()}
        fooled = F.softplus(-torch.func.functional_call(self.critic, still, fake)).mean()
        return judged + fooled


def far(setup: Setup) -> float:
    """How far the spread of the generated points is from that of the data."""
    with torch.no_grad():
        points = setup.model.generator(torch.randn(2000, 4, generator=torch.Generator().manual_seed(5)))
    return (points.std(dim=0) - 1.07).abs().mean().item()


zoo.healthy(
    "islands-gan",
    lambda s: live(Adversaries(), islands(s, 128).with_loss(lambda out, _: out), "Adam", 2e-3, 100, betas=(0.5, 0.9)),
    thrives(0.3, measure=far),
)


class Energy(nn.Module):
    """Score matching by noise: the slope of an energy points back from where noise has put a point."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tower([2, 64, 64, 1], nn.Softplus)

    def forward(self, x: Tensor) -> Tensor:
        noise = 0.4 * torch.randn_like(x)
        place = (x + noise).requires_grad_()
        slope = torch.autograd.grad(self.net(place).sum(), place, create_graph=True)[0]
        return ((slope - noise / 0.4) ** 2).mean()


zoo.healthy(
    "islands-denoising-score-of-an-energy",
    lambda s: live(Energy(), islands(s, 128).with_loss(lambda out, _: out), "Adam", 1e-2, 100),
    thrives(idle="net.4.bias"),
)

# --- sets, graphs, pairs, coordinates


class Largest(nn.Module):
    """Deep sets with a maximum and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.out = tower([6, 48, 32], nn.ReLU), tower([64, 48, 6], nn.ELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.each(x)
        return self.out(torch.cat([h.amax(dim=1), 3 * h.mean(dim=1)], dim=1))


zoo.healthy("bags-maximum-and-mean", lambda s: live(Largest(), bags(s), "Adam", 5e-3, 80))


class Relations(nn.Module):
    """A net over all pairs of a set."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.out = tower([12, 48, 32], nn.SiLU), tower([32, 32, 6], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        pairs = torch.cat([x[:, :, None].expand(-1, -1, n, -1), x[:, None].expand(-1, n, -1, -1)], dim=-1)
        return self.out(3 * self.pair(pairs).mean(dim=(1, 2)))


zoo.healthy("bags-relation-net", lambda s: live(Relations(), bags(s, batch=24), "Adam", 1e-2, 80))


class Graph(nn.Module):
    """Two rounds of messages, each node's own state beside the mean of its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(10, 32), nn.Linear(10, 32)
        self.own2, self.near2, self.drop = nn.Linear(32, 4), nn.Linear(32, 4), nn.Dropout(0.2)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.drop(F.relu(self.own(x) + self.near(adjacency @ x)))
        return self.own2(x) + self.near2(adjacency @ x)


zoo.healthy("communities-graph-sage-dropout", lambda s: live(Graph(), communities(s), "Adam", 1e-2, 60))


class Triplet(nn.Module):
    """Embeds an anchor and its partner; the partner of the next row is the stranger."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(tower([20, 64, 16], nn.ReLU), Through(lambda z: F.normalize(z, dim=1)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.net(a), self.net(b)
        return F.triplet_margin_loss(a, b, b.roll(1, 0), margin=0.5)


def alike(seed: int) -> Task:
    return twins(seed).changed(lambda x, t: ((x[0], x[0] + 0.4 * x[1]), t))


zoo.healthy(
    "captions-triplets-most-of-them-easy-in-the-end",
    lambda s: live(Triplet(), alike(s).with_loss(lambda out, _: out), "Adam", 3e-3, 60),
)


class Barlow(nn.Module):
    """Two views whose features should correlate one by one, and not across."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 12))
        self.norm = nn.BatchNorm1d(12, affine=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        c = self.norm(self.net(a)).T @ self.norm(self.net(b)) / len(a)
        return (c.diagonal() - 1).square().sum() + 0.05 * (c - torch.diag(c.diagonal())).square().sum()


zoo.healthy(
    "captions-barlow-twins",
    lambda s: live(Barlow(), alike(s).with_loss(lambda out, _: out), "Adam", 3e-3, 60),
    thrives(idle="net.3.bias"),
)


class Fourier(nn.Module):
    """Fixed random waves of a place, then a plain net."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", 6 * torch.randn(1, 32, generator=drawn_once(0, 5)))
        self.net = tower([64, 64, 1])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.cat([(x @ self.waves).sin(), (x @ self.waves).cos()], dim=1))


zoo.healthy("tones-fourier-features", lambda s: live(Fourier(), tones(s), "Adam", 5e-3, 60))


class Radial(nn.Module):
    """Bumps of learned place and width."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.width = nn.Parameter(torch.linspace(-1, 1, 24)), nn.Parameter(torch.full((24,), 2.0))
        self.out = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.exp(-(((x - self.place) * self.width.exp()) ** 2)))


zoo.healthy("tones-radial-bumps", lambda s: live(Radial(), tones(s), "Adam", 3e-2, 90))


class Hyper(nn.Module):
    """A net writes the weights of another: a curve from a few of its points."""

    def __init__(self) -> None:
        super().__init__()
        self.write = tower([8, 64, 16 * 3 + 1], nn.SiLU)

    def forward(self, given: Tensor, x: Tensor) -> Tensor:
        w = self.write(given)
        hidden = torch.tanh(2 * x[..., None] * w[:, None, :16] + w[:, None, 16:32])
        return (hidden * w[:, None, 32:48]).sum(dim=-1) + w[:, 48:]


def curves(seed: int) -> Task:
    """Sines of any phase and strength, shown at eight places, asked for at five others."""
    places = torch.linspace(-1, 1, 8)

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        strength, phase = torch.rand(2, 64, 1, generator=random)
        x = 2 * torch.rand(64, 5, generator=random) - 1
        curve = [(0.5 + strength) * torch.sin(2.5 * at + 6 * phase) for at in (places, x)]
        return (curve[0], x), curve[1]

    return Task(seed, draw, F.mse_loss)


zoo.healthy("curves-hyper-net", lambda s: live(Hyper(), curves(s), "Adam", 5e-3, 80))


class Ode(nn.Module):
    """One small net applied ten times over, as Euler's rule does, then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.flow, self.head = nn.Linear(2, 16), tower([16, 32, 16], nn.Tanh), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for _ in range(10):
            x = x + 0.1 * self.flow(x)
        return self.head(x)


zoo.healthy("islands-neural-ode-by-euler", lambda s: live(Ode(), islands(s), "Adam", 1e-2, 60))
