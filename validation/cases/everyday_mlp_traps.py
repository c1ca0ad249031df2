# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Dense networks of ordinary kinds that are fine.

Half: everyday.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Setup, Zoo
from validation.cases._everyday_nets import (
    Net,
    credit,
    faces,
    glorot,
    he,
    housing,
    mails,
    mean_loss,
    orthogonal,
    sorts,
    stars,
    windows,
)
from validation.evidence import thrives
from validation.nets import mlp
from validation.setups import frozen, live, pretrain
from validation.tasks import Task

zoo = Zoo("mlp", half="everyday", proof=thrives())


def block(*widths: int, act=nn.ReLU, norm=None, dropout: float = 0.0) -> nn.Sequential:
    return mlp(widths, act, norm, dropout)


def told(seed: int, model: nn.Module, *args, **more) -> Setup:
    return live(model, sorts(seed), *args, **more)


# --- norms, dropout, activations, starts

zoo.healthy("sorts-batch-norm-dropout-adam", lambda s: told(s, block(16, 128, 64, 6, norm=nn.BatchNorm1d, dropout=0.3)))
zoo.healthy(
    "sorts-layer-norm-6x64-adamw", lambda s: told(s, block(16, *[64] * 6, 6, norm=nn.LayerNorm), "AdamW", 1e-3, 50)
)
zoo.healthy("sorts-selu-alpha-dropout", lambda s: told(s, selfish(), "Adam", 2e-3, 60))


def selfish() -> nn.Sequential:
    drop = nn.AlphaDropout(0.1)
    return nn.Sequential(nn.Linear(16, 64), nn.SELU(), drop, nn.Linear(64, 64), nn.SELU(), drop, nn.Linear(64, 6))


for name, act in {
    "leaky-relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "softplus": nn.Softplus,
}.items():
    zoo.healthy(f"sorts-{name}-2x64-default-adam", lambda s, act=act: told(s, block(16, 64, 64, 6, act=act), "Adam"))
zoo.healthy(
    "sorts-relu-4x96-orthogonal-sgd-nesterov",
    lambda s: told(
        s, orthogonal(Net([16, *[96] * 4, 6])), "SGD", 0.03, 50, momentum=0.9, nesterov=True, weight_decay=5e-4
    ),
)
zoo.healthy("sorts-one-hidden-layer-of-512", lambda s: told(s, block(16, 512, 6), "Adam", 1e-3, 40))
zoo.healthy("sorts-tapering-128-64-32-16", lambda s: told(s, block(16, 128, 64, 32, 16, 6), "Adam", 3e-3, 60))
zoo.healthy("sorts-logistic-regression-sgd", lambda s: told(s, nn.Linear(16, 6), "SGD", 0.3, 60))
zoo.healthy("sorts-hidden-layer-of-8", lambda s: told(s, block(16, 8, 6, act=nn.Tanh), "Adam", 1e-2, 80))


class Maxout(nn.Module):
    """The largest of three linear pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, 3 * 48), nn.Linear(48, 3 * 48), nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = layer(x).unflatten(1, (48, 3)).amax(dim=2)
        return self.out(x)


zoo.healthy("sorts-maxout-of-three", lambda s: told(s, Maxout(), "Adam", 2e-3, 50))

# --- losses

zoo.healthy(
    "sorts-log-softmax-and-nll",
    lambda s: live(
        Net([16, 64, 64, 6], last=lambda z: F.log_softmax(z, dim=1)), sorts(s).with_loss(F.nll_loss), "Adam", 2e-3
    ),
)
zoo.healthy(
    "sorts-label-smoothing-and-class-weights",
    lambda s: live(
        Net([16, 64, 64, 6]),
        sorts(s).with_loss(lambda z, t: F.cross_entropy(z, t, torch.tensor([1.0, 1, 2, 2, 3, 3]), label_smoothing=0.1)),
        "AdamW",
    ),
)
zoo.healthy(
    "sorts-one-against-all-bce",
    lambda s: live(
        Net([16, 64, 64, 6]),
        sorts(s).with_loss(lambda z, t: F.binary_cross_entropy_with_logits(z, F.one_hot(t, 6).float())),
        "Adam",
    ),
)
zoo.healthy(
    "sorts-multi-margin-loss",
    lambda s: live(Net([16, 64, 64, 6]), sorts(s).with_loss(F.multi_margin_loss), "Adam", 2e-3, 50),
)


def focal(z: Tensor, t: Tensor) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(z.flatten(), t, reduction="none")
    return ((1 - (-loss).exp()) ** 2 * loss).mean()


class Form(nn.Module):
    """Embeddings of unlike sizes, dropout on them, numbers beside."""

    def __init__(self, sizes: tuple[int, ...] = (3, 4, 6)) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(12, size) for size in sizes)
        self.drop, self.body = nn.Dropout(0.1), block(sum(sizes) + 8, 64, 32, 1, norm=nn.BatchNorm1d)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        vectors = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([self.drop(torch.cat(vectors, dim=1)), numbers], dim=1))


zoo.healthy("credit-embeddings-batch-norm-dropout", lambda s: live(Form(), credit(s), "AdamW", 5e-3, 60))
zoo.healthy(
    "credit-one-failure-in-twenty-focal-loss",
    lambda s: live(Form(), credit(s, 4.5).with_loss(focal), "AdamW", 5e-3, 80),
    thrives(0.2),
)
zoo.healthy(
    "credit-one-failure-in-twenty-positive-weight-15",
    lambda s: live(
        Form(),
        credit(s, 4.5).with_loss(
            lambda z, t: F.binary_cross_entropy_with_logits(z.flatten(), t, pos_weight=torch.tensor(15.0))
        ),
        "Adam",
        5e-3,
        80,
    ),
    thrives(0.05),
)


def wrong(seed: int, share: float) -> Setup:
    """So many labels are wrong."""
    random = torch.Generator().manual_seed(seed + 9)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        other = torch.randint(6, t.shape, generator=random)
        return F.cross_entropy(z, torch.where(torch.rand(t.shape, generator=random) < share, other, t))

    return live(Net([16, 64, 64, 6]), sorts(seed, apart=1.2).with_loss(loss), "Adam", 3e-3, 60)


zoo.healthy("sorts-a-quarter-of-the-labels-wrong", lambda s: wrong(s, 0.25), thrives(0.05))

for name, loss in {"huber": F.huber_loss, "l1": F.l1_loss}.items():
    zoo.healthy(
        f"housing-{name}-adam",
        lambda s, loss=loss: live(Net([13, 64, 64, 1]), housing(s).with_loss(loss), "Adam", 3e-3, 60),
    )
zoo.healthy(
    "housing-log-cosh-rmsprop",
    lambda s: live(
        Net([13, 64, 64, 1], torch.tanh),
        housing(s).with_loss(lambda y, t: (y - t + F.softplus(-2 * (y - t)) - math.log(2)).mean()),
        "RMSprop",
        2e-3,
        60,
    ),
)


def spread(out: Tensor, t: Tensor) -> Tensor:
    return F.gaussian_nll_loss(out[:, :1], t, F.softplus(out[:, 1:]) + 1e-3)


zoo.healthy(
    "housing-mean-and-variance",
    lambda s: live(Net([13, 64, 64, 2]), housing(s).with_loss(spread), "Adam", 3e-3, 80),
    thrives(0.3),
)


def hundreds(seed: int) -> Setup:
    """Prices around 300 with a spread of 80; Adam gets there by the bias of the head, which starts at the mean."""
    model = Net([13, 64, 64, 1])
    nn.init.constant_(model.fc3.bias, 300.0)
    return live(model, housing(seed).with_loss(lambda y, t: F.mse_loss(y, 300 + 80 * t)), "Adam", 1e-2, 80)


zoo.healthy("housing-prices-in-hundreds-bias-at-the-mean", hundreds)
zoo.healthy(
    "housing-raw-columns-behind-a-batch-norm",
    lambda s: live(
        nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 1)),
        housing(s).mapped(lambda x: x * torch.logspace(-2, 4, 13) + torch.logspace(-1, 4, 13)),
        "Adam",
        5e-3,
        60,
    ),
)
zoo.healthy(
    "housing-batches-of-4", lambda s: live(Net([13, 32, 32, 1]), housing(s, 4), "Adam", 2e-3, 100), thrives(0.05)
)

# --- ways to train

zoo.healthy(
    "sorts-one-cycle-sgd",
    lambda s: told(
        s, he(Net([16, 64, 64, 6])), "SGD", 0.1, 60, momentum=0.9, rate=lambda t: max(0.02, 1 - abs(t - 20) / 40)
    ),
)
zoo.healthy(
    "sorts-warm-up-and-cosine-adamw",
    lambda s: told(
        s,
        block(16, 64, 64, 6, act=nn.GELU),
        "AdamW",
        5e-3,
        70,
        rate=lambda t: min(1.0, (t + 1) / 10) * (0.5 + 0.5 * math.cos(math.pi * min(t, 70) / 70)),
    ),
)
zoo.healthy("sorts-clipped-to-1-adam", lambda s: told(s, he(Net([16, 64, 64, 6])), "Adam", 2e-3, clip=1.0))
zoo.healthy("sorts-weight-decay-0.05", lambda s: told(s, Net([16, 64, 64, 6]), "AdamW", 3e-3, weight_decay=0.05))
for kind, lr in {"Adagrad": 0.03, "NAdam": 2e-3, "Adamax": 5e-3}.items():
    zoo.healthy(f"sorts-{kind.lower()}-{lr}", lambda s, kind=kind, lr=lr: told(s, Net([16, 64, 64, 6]), kind, lr, 50))


def done(seed: int) -> Setup:
    """Trained before; now the last epochs, at a small rate."""
    return pretrain(live(Net([16, 64, 64, 6]), sorts(seed, apart=0.8), "Adam", 1e-4, 50), 200, 3e-3)


zoo.healthy("sorts-last-epochs-of-a-trained-net", done, thrives(-0.3, measure=mean_loss))


def tuned(seed: int, fresh_head: bool = True, freeze: bool = True) -> Setup:
    """A body trained on other sorts, a new head; the body rests or follows."""
    old = live(block(16, 64, 64, 6), sorts(seed + 50))
    body = pretrain(old, 80).model
    if fresh_head:
        body[4] = nn.Linear(64, 6)
    model = frozen(body, "0", "2") if freeze else body
    return live(model, sorts(seed), "Adam", 5e-3 if freeze else 1e-3, 60)


zoo.healthy("sorts-frozen-body-new-head", tuned, thrives(0.05))
zoo.healthy("sorts-all-of-a-trained-body-tuned-further", lambda s: tuned(s, freeze=False))


class Distilled(nn.Module):
    """A student beside its teacher, who rests."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher, self.student = teacher.requires_grad_(False).eval(), Net([16, 32, 6])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            goal = self.teacher(x)
        return self.student(x), goal


def distil(out: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
    soft = F.kl_div(F.log_softmax(out[0] / 2, 1), F.softmax(out[1] / 2, 1), reduction="batchmean")
    return 4 * soft + 0.3 * F.cross_entropy(out[0], t)


def distilled(seed: int) -> Setup:
    teacher = pretrain(live(Net([16, 64, 64, 6]), sorts(seed)), 100).model
    return live(Distilled(deepcopy(teacher)), sorts(seed).with_loss(distil), "Adam", 5e-3, 60)


zoo.healthy("sorts-distilled-from-a-resting-teacher", distilled)

# --- autoencoders, embeddings, metric learning


class Tied(nn.Module):
    """An autoencoder whose decoder is the transpose of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.back = nn.Linear(48, 20), nn.Parameter(torch.zeros(48))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.enc(x)), self.enc.weight.t(), self.back)


zoo.healthy("faces-tied-weights", lambda s: live(Tied(), faces(s), "Adam", 1e-2, 80))
zoo.healthy(
    "faces-code-of-3-for-3-factors", lambda s: live(block(48, 64, 3, 64, 48, act=nn.ELU), faces(s, 3), "Adam", 1e-2, 90)
)
zoo.healthy(
    "faces-noise-taken-away",
    lambda s: live(
        block(48, 96, 16, 96, 48),
        faces(s).changed(lambda x, t: (x + 0.4 * torch.randn(x.shape), t)),
        "Adam",
        5e-3,
        80,
    ),
)


class Sparse(nn.Module):
    """Wider than its input, few units awake: an L1 penalty on the code."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(48, 96), nn.Linear(96, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = F.relu(self.enc(x))
        return self.dec(code), code


zoo.healthy(
    "faces-sparse-code-l1",
    lambda s: live(
        Sparse(),
        faces(s).with_loss(lambda out, x: F.mse_loss(out[0], x) + 1e-2 * out[1].abs().mean()),
        "Adam",
        5e-3,
        80,
    ),
)


class Beta(nn.Module):
    """The usual variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(48, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.fc3, self.fc4 = nn.Linear(8, 64), nn.Linear(64, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.fc4(F.relu(self.fc3(z))), mu, logvar


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    rebuilt, mu, logvar = out
    return F.mse_loss(rebuilt, x) - 0.005 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())


zoo.healthy("faces-vae-small-kl", lambda s: live(Beta(), faces(s).with_loss(elbo), "Adam", 5e-3, 90))


def proxies(z: Tensor, t: Tensor) -> Tensor:
    """Rows of a sort near each other, others apart: supervised contrast within the batch."""
    z = F.normalize(z, dim=1)
    scores = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    same = (t[:, None] == t).float() - torch.eye(len(t))
    return -(scores.log_softmax(dim=1) * same).sum(dim=1).div(same.sum(dim=1).clamp_min(1)).mean()


zoo.healthy(
    "sorts-supervised-contrast-of-16-numbers",
    lambda s: live(block(16, 64, 16), sorts(s, apart=1.2).with_loss(proxies), "Adam", 3e-3, 60),
    thrives(0.05),
)


def triplet(z: Tensor, t: Tensor) -> Tensor:
    """The farthest of the same sort against the nearest of another."""
    z = F.normalize(z, dim=1)
    gap = torch.cdist(z, z)
    same = t[:, None] == t
    far = gap.masked_fill(~same, -1.0).amax(dim=1)
    near = gap.masked_fill(same, 9.0).amin(dim=1)
    return F.softplus(3 * (far - near)).mean()


zoo.healthy(
    "sorts-hardest-triplets",
    lambda s: live(block(16, 64, 24), sorts(s, 4, apart=2.0).with_loss(triplet), "Adam", 3e-3, 60),
)
zoo.healthy("mails-sparse-counts-adam", lambda s: live(block(200, 64, 6), mails(s), "Adam", 3e-3, 50))
zoo.healthy(
    "mails-first-layer-of-16-dropout",
    lambda s: live(nn.Sequential(nn.Dropout(0.2), *block(200, 16, 6)), mails(s), "AdamW", 5e-3, 60),
)


class Neural(nn.Module):
    """Collaborative filtering by a net on two embeddings, sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(60, 16, sparse=True), nn.Embedding(40, 16, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(dim=1)


zoo.healthy("stars-sparse-embeddings-sparse-adam", lambda s: live(Neural(), stars(s), "SparseAdam", 3e-2, 100))
zoo.healthy("windows-linear-forecast", lambda s: live(nn.Linear(32, 8), windows(s), "Adam", 1e-2, 80))
zoo.healthy(
    "windows-dropout-gelu-forecast",
    lambda s: live(block(32, 96, 96, 8, act=nn.GELU, dropout=0.1), windows(s), "AdamW", 3e-3, 80),
)


class Wide(nn.Module):
    """Wide and deep: a linear part beside a deep one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(13, 1), block(13, 64, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.deep(x)


zoo.healthy("housing-wide-and-deep", lambda s: live(Wide(), housing(s), "Adam", 3e-3, 60))


class Experts(nn.Module):
    """Four small nets, mixed by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList(block(16, 32, 6) for _ in range(4)), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        said = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (said * self.gate(x).softmax(dim=1)[..., None]).sum(dim=1)


zoo.healthy("sorts-four-experts-all-heard", lambda s: told(s, Experts(), "Adam", 3e-3, 60))


def spiral_points(seed: int) -> Task:
    """Two arms, two coordinates: what a playground shows."""

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        arm = torch.randint(2, (96,), generator=random)
        turn = 3.5 * torch.rand(96, generator=random)
        place = torch.stack([turn.cos(), turn.sin()], dim=1) * (turn / 2 + 0.3)[:, None] * (1 - 2.0 * arm)[:, None]
        return place + 0.05 * torch.randn(96, 2, generator=random), arm.float()

    return Task(seed, draw, lambda z, t: F.binary_cross_entropy_with_logits(z.flatten(), t))


zoo.healthy(
    "playground-two-arms-tanh-3x16",
    lambda s: live(glorot(Net([2, 16, 16, 16, 1], torch.tanh)), spiral_points(s), "Adam", 1e-2, 100),
)
