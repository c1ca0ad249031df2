# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks that train well and look odd.

Half: live.
"""

from __future__ import annotations

import math
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from validation.case import Setup, Zoo, call
from validation.cases.live_mlp import Coder, Factors, Vae
from validation.evidence import thrives
from validation.nets import he_
from validation.nets.programs import Plain
from validation.setups import live, pretrain
from validation.tasks import Task, bends, blobs, crescents, heaps, likeness, parity, ratings, regression, spirals

zoo = Zoo("mlp", half="live", proof=thrives())


def small(*widths: int, act=F.gelu) -> Plain:
    return he_(Plain(widths, act))


# --- losses that are small, large, noisy, one-sided or flat

for factor in (1e-4, 1e4):
    zoo.healthy(
        f"loss-times-{factor:.0e}-adamw",
        lambda s, factor=factor: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8).scaled(factor)),
    )
zoo.healthy(
    "loss-times-1e-4-sgd-with-the-rate-to-match",
    lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8).scaled(1e-4), "SGD", 1e3),
)


def noisy(seed: int, share: float) -> Setup:
    """A share of the labels is drawn at random."""
    random = torch.Generator().manual_seed(seed + 5)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        other = torch.randint(6, t.shape, generator=random)
        return F.cross_entropy(z, torch.where(torch.rand(t.shape, generator=random) < share, other, t))

    return live(small(20, 48, 48, 6), blobs(seed, 20, 6, 64, 1.0).with_loss(loss), steps=60)


zoo.healthy("labels-four-in-ten-wrong", lambda s: noisy(s, 0.4), thrives(0.03))


def imbalanced(seed: int) -> Setup:
    """One class in thirty rows."""
    way = torch.randn(16, generator=torch.Generator().manual_seed(seed))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(96, 16, generator=random)
        return x, ((x @ way) / way.norm() > 1.85).float()

    task = Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.squeeze(1), t))
    return live(small(16, 40, 40, 1), task, steps=60)


zoo.healthy("one-class-in-thirty-rows", imbalanced, thrives(0.2))
zoo.healthy(
    "parity-of-3-bits-flat-at-first",
    lambda s: live(small(12, 96, 96, 2), parity(s, 3), lr=3e-3, steps=100),
    thrives(0.2),
)


def finished(seed: int) -> Setup:
    """Trained to the noise of its targets before anybody watches."""
    return pretrain(live(small(8, 48, 48, 1), regression(seed, 8, 1, 96, 0.5), lr=3e-4, steps=50), 250, 5e-3)


@torch.no_grad()
def mean_loss(setup: Setup) -> float:
    """The loss over several batches."""
    losses = [setup.loss_fn(call(setup.model, setup.input_fn())).item() for _ in range(8)]
    return sum(losses) / len(losses)


zoo.healthy("regression-finished-at-its-noise", finished, thrives(-0.15, measure=mean_loss))


def uncertain(out: Tensor, t: Tensor) -> Tensor:
    mean, log_var = out.chunk(2, dim=1)
    return 0.5 * (log_var + (t - mean).square() / log_var.exp()).mean()


zoo.healthy(
    "mean-and-variance-loss-below-zero",
    lambda s: live(small(8, 48, 48, 2), regression(s, 8, 1, 96).with_loss(uncertain), lr=5e-3, steps=80),
    thrives(0.3),
)
zoo.healthy(
    "quantiles-by-pinball-loss",
    lambda s: live(
        small(8, 48, 48, 3),
        regression(s, 8, 1, 96).with_loss(
            lambda y, t: sum(
                torch.maximum(q * (t[:, 0] - y[:, i]), (q - 1) * (t[:, 0] - y[:, i])).mean()
                for i, q in enumerate((0.1, 0.5, 0.9))
            )
        ),
        lr=5e-3,
        steps=60,
    ),
    thrives(0.3),
)
zoo.healthy(
    "label-smoothing-0.2",
    lambda s: live(
        small(20, 48, 48, 6),
        blobs(s, 20, 6, 64, 0.8).with_loss(lambda z, t: F.cross_entropy(z, t, label_smoothing=0.2)),
    ),
)

# --- ways to train

zoo.healthy("clipped-to-0.05-adamw", lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8), clip=0.05))
zoo.healthy(
    "clipped-to-0.5-sgd",
    lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8), "SGD", 0.2, clip=0.5, momentum=0.9),
)
zoo.healthy(
    "warm-up-over-30-steps",
    lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8), lr=5e-3, steps=60, rate=lambda t: min(1, t / 30)),
)
zoo.healthy(
    "cosine-to-nothing",
    lambda s: live(
        small(4, 40, 40, 3),
        spirals(s),
        lr=5e-3,
        steps=60,
        rate=lambda t: 0.5 + 0.5 * math.cos(math.pi * min(t, 60) / 60),
    ),
)
zoo.healthy(
    "batches-of-3", lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 3, 1.2), lr=2e-3, steps=100), thrives(0.1)
)
zoo.healthy("adagrad-0.05", lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8), "Adagrad", 0.05))
zoo.healthy("gelu-2x48-rmsprop-1e-3", lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8), "RMSprop", 1e-3))
zoo.healthy("weight-decay-0.1-adamw", lambda s: live(small(20, 48, 48, 6), blobs(s, 20, 6, 64, 0.8), weight_decay=0.1))
zoo.healthy("ratings-sparse-embeddings-adagrad", lambda s: live(Factors(sparse=True), ratings(s), "Adagrad", 0.2, 60))


class Switching(nn.Module):
    """A head per task, and only one task at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads = small(20, 64, 64, 32), nn.ModuleList(nn.Linear(32, 6) for _ in range(3))
        self.turn = count()

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[next(self.turn) % 3](F.gelu(self.trunk(x)))


zoo.healthy("three-heads-in-turn", lambda s: live(Switching(), blobs(s, 20, 6, 64, 0.8), steps=60))


class Mixed(nn.Module):
    """bfloat16 inside of autocast, in the checkpointed second half too."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.low, self.high, self.again = small(20, 48, 48), small(48, 48, 6), again

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.again):
            h = F.gelu(self.low(x))
            return (checkpoint(self.high, h, use_reentrant=False) if self.again else self.high(h)).float()


zoo.healthy("autocast-bfloat16", lambda s: live(Mixed(), blobs(s, 20, 6, 64, 0.8)))
zoo.healthy("checkpointed-second-half", lambda s: live(Mixed(again=True), blobs(s, 20, 6, 64, 0.8)))

# --- nets with parts that rest, are shared, start at zero or are dropped


def modules(*parts: nn.Module, task: Task, **more) -> Setup:
    return live(nn.Sequential(*parts), task, **more)


zoo.healthy(
    "dropout-0.5-twice",
    lambda s: modules(
        nn.Linear(20, 96),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(96, 96),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(96, 6),
        task=blobs(s, 20, 6, 64, 0.8),
    ),
)
zoo.healthy(
    "batch-norm-in-batches-of-6",
    lambda s: modules(
        nn.Linear(20, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, 6),
        task=blobs(s, 20, 6, 6, 1.0),
        steps=80,
    ),
)


def resting(seed: int, share: float) -> Setup:
    """So many units of a layer with room to spare never fire."""
    model = nn.Sequential(nn.Linear(20, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 6))
    model[2].bias.data[: round(160 * share)] = -25
    return live(model, blobs(seed, 20, 6, 96, 0.8))


zoo.healthy("relu-2x160-four-in-ten-never-fire", lambda s: resting(s, 0.4), thrives(0.3, most_dead=0.45))


class Adapted(nn.Module):
    """Frozen layers with a trained product of two thin matrices beside them, of which one starts at zero."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        self.base = small(20, 64, 64, 64).requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(layer.in_features, rank, bias=False) for layer in self.base.layers)
        self.up = nn.ModuleList(nn.Linear(rank, layer.out_features, bias=False) for layer in self.base.layers)
        for layer in self.up:
            nn.init.zeros_(layer.weight)
        self.head = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        for base, down, up in zip(self.base.layers, self.down, self.up, strict=True):
            x = F.gelu(base(x) + up(down(x)))
        return self.head(x)


zoo.healthy("adapters-of-rank-4-beside-frozen-layers", lambda s: live(Adapted(), blobs(s, 20, 6, 64, 0.8)))


class Probe(nn.Module):
    """A trained head on a frozen body that runs under `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = small(20, 96, 96, 64).requires_grad_(False), small(64, 32, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.body(x)
        return self.head(F.gelu(h))


zoo.healthy("frozen-body-trained-head", lambda s: live(Probe(), blobs(s, 20, 6, 64, 0.8)))


class Mirror(nn.Module):
    """The decoder reads the encoder's matrices backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(24, 32), nn.Linear(32, 6)
        self.shift = nn.Parameter(torch.zeros(24))

    def forward(self, x: Tensor) -> Tensor:
        code = self.b(torch.tanh(self.a(x)))
        return F.linear(torch.tanh(F.linear(code, self.b.weight.T)), self.a.weight.T, self.shift)


zoo.healthy("autoencoder-tied-backwards", lambda s: live(Mirror(), bends(s), lr=1e-2, steps=80))
zoo.healthy(
    "autoencoder-code-3-of-3-factors",
    lambda s: live(
        Coder(3, act=nn.Identity), bends(s, 24, 3).with_loss(lambda o, x: F.mse_loss(o["x"], x)), lr=5e-3, steps=80
    ),
    thrives(0.4),
)
zoo.healthy(
    "autoencoder-code-2-of-2-factors-under-noise",
    lambda s: live(
        Coder(2),
        bends(s, 24, 2).mapped(lambda x: x + 0.3 * torch.randn_like(x)).with_loss(lambda o, x: F.mse_loss(o["x"], x)),
        lr=5e-3,
        steps=100,
    ),
    thrives(0.4),
)
zoo.healthy(
    "two-classes-through-one-logit",
    lambda s: live(
        small(20, 48, 8, 1),
        blobs(s, 20, 2, 64, 0.5).with_loss(lambda z, t: F.binary_cross_entropy_with_logits(z.squeeze(1), t.float())),
    ),
)


def warmed(seed: int, period: int = 60) -> Setup:
    """The divergence comes in step by step."""
    turn = count()

    def loss(out: dict[str, Tensor], x: Tensor) -> Tensor:
        kl = 0.5 * (out["mu"] ** 2 + out["logvar"].exp() - 1 - out["logvar"]).sum(dim=1).mean()
        return F.mse_loss(out["x"], x) + 0.01 * min(1, next(turn) / period) * kl

    return live(Vae(8), bends(seed, 24, 3).with_loss(loss), lr=5e-3, steps=80)


zoo.healthy("vae-divergence-warmed-up-room-for-8-of-3", warmed)


class Gan(nn.Module):
    """Generator and critic of points in the plane; each is judged by the other as it is, not as it could be."""

    def __init__(self) -> None:
        super().__init__()
        self.make = small(4, 48, 48, 2, act=F.silu)
        self.judge = small(2, 48, 48, 1, act=F.leaky_relu)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fake = self.make(torch.randn(len(x), 4))
        still = {name: p.detach() for name, p in self.judge.named_parameters()}
        seen = torch.func.functional_call(self.judge, still, fake)
        return {"real": self.judge(x), "fake": self.judge(fake.detach()), "seen": seen, "points": fake}


def adversarial(out: dict[str, Tensor], _: Tensor) -> Tensor:
    judged = F.softplus(-out["real"]).mean() + F.softplus(out["fake"]).mean()
    return judged + F.softplus(-out["seen"]).mean()


@torch.no_grad()
def away(setup: Setup) -> float:
    """Distance of the generated points' mean and spread from the real ones'."""
    real = torch.cat([setup.input_fn() for _ in range(8)])
    fake = setup.model(real)["points"]
    return ((real.mean(0) - fake.mean(0)).norm() + (real.std(0) - fake.std(0)).norm()).item()


zoo.healthy(
    "gan-of-two-crescents",
    lambda s: live(
        Gan(),
        crescents(s).mapped(lambda x: x + torch.tensor([3.0, 2.0])).with_loss(adversarial),
        "Adam",
        2e-3,
        100,
        betas=(0.5, 0.99),
    ),
    thrives(0.1, measure=away),
)


class Byol(nn.Module):
    """Predicts what a slow copy of itself says about another view; the copy gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.predict = small(20, 48, 24), small(24, 32, 24)
        self.slow = small(20, 48, 24).requires_grad_(False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
            goal = F.normalize(self.slow(b), dim=1)
        return 1 - (F.normalize(self.predict(self.online(a)), dim=1) * goal).sum(dim=1)


zoo.healthy(
    "own-slow-copy-as-teacher",
    lambda s: live(Byol(), likeness(s).with_loss(lambda gap, _: gap.mean()), lr=1e-3, steps=60),
)


class Contrast(nn.Module):
    """Embeddings on the sphere with a learned temperature; the batch holds the negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.heat = small(20, 64, 16), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        views = [F.normalize(self.net(x + 0.4 * torch.randn_like(x)), dim=1) for _ in range(2)]
        return views[0] @ views[1].T * self.heat.exp()


zoo.healthy(
    "contrast-of-two-noisy-views",
    lambda s: live(
        Contrast(),
        blobs(s, 20, 6, 48).with_loss(lambda z, t: F.cross_entropy(z, torch.arange(len(z)))),
        lr=5e-3,
        steps=60,
    ),
)


class Experts(nn.Module):
    """A soft choice among five experts, with a penalty for choosing one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(20, 5), nn.ModuleList(small(20, 24, 6) for _ in range(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.gate(x).softmax(dim=1)
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (weight[..., None] * said).sum(dim=1), weight.mean(dim=0)


zoo.healthy(
    "five-experts-with-balance",
    lambda s: live(
        Experts(),
        blobs(s, 20, 6, 64, 0.8).with_loss(
            lambda o, t: F.cross_entropy(o[0], t) + 0.05 * (5 * o[1].square().sum() - 1)
        ),
    ),
)


class Euler(nn.Module):
    """The same small field followed for twelve steps, as an ordinary differential equation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.field, self.leave = nn.Linear(4, 24), small(24, 48, 24, act=torch.tanh), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(12):
            x = x + self.field(x) / 12
        return self.leave(x)


zoo.healthy("field-followed-for-12-steps", lambda s: live(Euler(), spirals(s)))


class Physics(nn.Module):
    """A function whose second derivative has to be minus itself: the output is what is missing to that."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small(1, 40, 40, 1, act=torch.tanh)

    def forward(self, t: Tensor) -> Tensor:
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            y = self.net(t)
            (slope,) = torch.autograd.grad(y.sum(), t, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), t, create_graph=True)
        start = self.net(torch.zeros(1, 1))
        return (bend + y).square().mean() + 3 * (start - 1).square().sum()


def equation(seed: int) -> Setup:
    task = Task(seed, lambda random: (4 * torch.rand(64, 1, generator=random), None), lambda out, _: out)
    return live(Physics(), task, lr=5e-3, steps=80)


zoo.healthy("equation-solved-by-its-residual", equation, thrives(0.4))


class Hyper(nn.Module):
    """One net writes the weights of another, from the condition."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.inner, self.leave = small(10, 32, 10 * 16), nn.Parameter(torch.zeros(16)), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        thing, condition = x.chunk(2, dim=1)
        weight = self.write(condition).unflatten(1, (16, 10)) / 10**0.5
        return self.leave(F.gelu(torch.einsum("boi,bi->bo", weight, thing) + self.inner))


zoo.healthy("weights-written-by-a-net", lambda s: live(Hyper(), blobs(s, 20, 6, 64, 0.9)))


class Sets(nn.Module):
    """Each item alone, the largest over the set, then an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = small(6, 64, 64), small(64, 64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(F.gelu(self.phi(x)).amax(dim=1))


zoo.healthy("largest-of-a-set", lambda s: live(Sets(), heaps(s), lr=5e-3, steps=80))
zoo.healthy(
    "spectral-and-weight-norm",
    lambda s: modules(
        parametrizations.spectral_norm(nn.Linear(20, 48)),
        nn.GELU(),
        parametrizations.weight_norm(nn.Linear(48, 48)),
        nn.GELU(),
        nn.Linear(48, 6),
        task=blobs(s, 20, 6, 64, 0.8),
        lr=1e-2,
    ),
)


class Student(nn.Module):
    """Learns from a frozen teacher that lives inside of the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = small(20, 64, 64, 6).requires_grad_(False), small(20, 24, 24, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(x), self.teacher(x)


zoo.healthy(
    "student-of-a-frozen-teacher",
    lambda s: live(
        Student(),
        blobs(s, 20, 6, 64).with_loss(
            lambda o, _: F.kl_div(o[0].log_softmax(1), o[1].log_softmax(1), reduction="batchmean", log_target=True)
        ),
        lr=5e-3,
        steps=60,
    ),
)


class Score(nn.Module):
    """Says which noise was added, at a level that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.net = nn.Embedding(10, 16), small(18, 64, 64, 2, act=F.silu)

    def forward(self, x: Tensor) -> Tensor:
        level = torch.randint(10, (len(x),))
        noise, share = torch.randn_like(x), (level + 1)[:, None] / 11
        seen = (1 - share).sqrt() * x + share.sqrt() * noise
        return (self.net(torch.cat([seen, self.time(level)], dim=1)) - noise).square().mean(dim=1)


zoo.healthy("denoiser-of-two-crescents", lambda s: live(Score(), crescents(s), lr=5e-3, steps=80))
zoo.healthy(
    "linear-regression-sgd-0.1", lambda s: live(nn.Linear(12, 2), regression(s, 12, 2), "SGD", 0.1, 60), thrives(0.1)
)
