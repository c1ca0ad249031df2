# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Plain programs that are sound, though they are noisy, start late, have several losses or look odd.

Half: plain.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._plain_loops import (
    KINDS,
    Basket,
    Heart,
    Load,
    Music,
    SmallUnet,
    Translator,
    TwoTasks,
    Vgg,
    bce,
    beats,
    digits,
    doses,
    fabrics,
    glosses,
    photos,
    power,
    rents,
    scans,
    soils,
    spectra_of,
    two_losses,
    unearned,
    visitors,
)
from validation.evidence.loops import learns
from validation.nets import mlp
from validation.programs import adam, fit, held_out, sgd, step_from
from validation.tasks import drawn_once, token_loss

zoo = Zoo("loop", half="plain", proof=learns())
adamw = torch.optim.AdamW

# --- what makes data


class Gan(nn.Module):
    """A maker of points and a judge of them."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = mlp([3, 32, 2]), mlp([2, 32, 32, 1], lambda: nn.LeakyReLU(0.2))


def gan(seed: int, hinge: bool) -> Program:
    """Two optimizers take turns; the score is how far the mean of what is made lies off."""
    model, random, losses = Gan(), torch.Generator().manual_seed(seed), []
    makes = torch.optim.Adam(model.maker.parameters(), lr=3e-3, betas=(0.5, 0.9))
    judges = torch.optim.Adam(model.judge.parameters(), lr=3e-3, betas=(0.5, 0.9))
    goal, one, zero = torch.tensor([1.2, -1.0]), torch.ones(48, 1), torch.zeros(48, 1)

    def run() -> None:
        for _ in range(100):
            made = model.maker(torch.randn(48, 3, generator=random))
            real = goal + 0.4 * torch.randn(48, 2, generator=random)
            judges.zero_grad()
            yes, no = model.judge(real), model.judge(made.detach())
            (F.relu(1 - yes) + F.relu(1 + no) if hinge else bce(yes, one) + bce(no, zero)).mean().backward()
            judges.step()
            makes.zero_grad()
            loss = -model.judge(made).mean() if hinge else bce(model.judge(made), one)
            loss.backward()
            makes.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            made = model.maker(torch.randn(256, 3, generator=torch.Generator().manual_seed(seed + 5)))
        return (made.mean(dim=0) - goal).norm().item()

    return Program(model=model, optimizer=[makes, judges], run=run, losses=losses, score=score)


def diffusion(seed: int) -> Program:
    """Learns the noise in noisy soils at any level."""
    model, random = mlp([12, 64, 64, 11], nn.SiLU), torch.Generator().manual_seed(seed)

    def noisy(x: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
        level = torch.rand(len(x), 1, generator=source)
        noise = torch.randn(x.shape, generator=source)
        return torch.cat([(1 - level).sqrt() * x + level.sqrt() * noise, level], dim=1), noise

    task = soils(seed, 3, 64).changed(lambda x, _: noisy(2 * x, random))
    return study(model, task, adam(model, 4e-3), F.mse_loss, 110)


class Flow(nn.Module):
    """Two affine couplings; gives the negative log-likelihood of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp([2, 32, 4], nn.Tanh) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, dim=1)
            scale, shift = net(a).chunk(2, dim=1)
            scale = torch.tanh(scale)
            x, total = torch.cat([b * scale.exp() + shift, a], dim=1), total + scale.sum(dim=1)
        return 0.5 * x.square().sum(dim=1) - total + 2 * math.log(2 * math.pi)


def flow(seed: int) -> Program:
    """The loss goes below zero, as that of a density may."""
    model, mix = Flow(), 0.3 * torch.randn(2, 4, generator=drawn_once(seed, 7180))
    task = rents(seed).changed(lambda x, _: (0.1 * x[:, :4] + torch.tanh(x[:, 4:6]) @ mix, None))
    return study(model, task, adam(model, 5e-3), lambda nll, _: 5 + nll.mean(), 90)


class Vae(nn.Module):
    """A variational autoencoder of spectra."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([36, 40, 12], nn.SiLU), mlp([6, 40, 36], nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean) if self.training else mean
        return self.decoder(z), 0.5 * (mean.square() + log_var.exp() - 1 - log_var).mean()


def vae(seed: int, warm: bool) -> Program:
    """The divergence counts little, or more and more."""
    model, step = Vae(), [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        step[0] += 1
        out, far = model(batch[0])
        return F.mse_loss(out, batch[1]) + (0.01 * min(1.0, step[0] / 50) if warm else 0.005) * far

    meant = lambda out, y: F.mse_loss(out[0], y)  # noqa: E731
    return study(model, spectra_of(seed), adam(model, 5e-3), meant, 100, loss_of=loss_of)


class Mixture(nn.Module):
    """Three bells for each flat."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = mlp([9, 40, 40], nn.Tanh), nn.Linear(40, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.body(x)))


def mixture(out: Tensor, y: Tensor) -> Tensor:
    share, mean, log_width = out.chunk(3, dim=1)
    each = -0.5 * ((y - mean) / log_width.exp()).square() - log_width
    return 3 - (share.log_softmax(dim=1) + each).logsumexp(dim=1).mean()


def denoised(seed: int) -> Program:
    model, random = mlp([36, 48, 10, 48, 36], nn.GELU), torch.Generator().manual_seed(seed)
    task = spectra_of(seed).mapped(lambda x: x + 0.3 * torch.randn(x.shape, generator=random))
    return study(model, task, adam(model, 4e-3), F.mse_loss, 100)


def sparse_code(seed: int) -> Program:
    """A wide code of which few units may be awake."""

    class Code(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(36, 64), nn.Linear(64, 36)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            code = F.relu(self.encoder(x))
            return self.decoder(code), code.abs().mean()

    model = Code()
    loss = lambda out, y: F.mse_loss(out[0], y) + 0.02 * out[1]  # noqa: E731
    return study(model, spectra_of(seed), adam(model, 5e-3), loss, 90)


for name, build in (
    ("points-gan", lambda s: gan(s, False)),
    ("points-gan-hinge", lambda s: gan(s, True)),
    ("soils-diffusion", diffusion),
    ("rows-flow-loss-below-zero", flow),
    ("spectra-vae", lambda s: vae(s, False)),
    ("spectra-vae-divergence-rises", lambda s: vae(s, True)),
    ("rents-mixture-density", lambda s: study(m := Mixture(), rents(s), adam(m, 5e-3), mixture, 90)),
    ("spectra-denoised", denoised),
    ("spectra-sparse-code", sparse_code),
):
    zoo.healthy(f"plain-{name}", build)

# --- learning without labels


class Siamese(nn.Module):
    """An encoder and a predictor; the other view is held still, as in SimSiam."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        self.predictor = mlp([16, 16, 16])

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.encoder(a), self.encoder(b)
        first = F.cosine_similarity(self.predictor(za), zb.detach()).mean()
        return 2 - first - F.cosine_similarity(self.predictor(zb), za.detach()).mean()


def siamese(seed: int) -> Program:
    model, random = Siamese(), torch.Generator().manual_seed(seed)

    def two_views(x: tuple[Tensor, Tensor], _: Tensor) -> tuple[tuple[Tensor, Tensor], Any]:
        return (x[0] + 0.2 * torch.randn(x[0].shape, generator=random), x[0]), None

    return study(model, photos(seed).changed(two_views), sgd(model, 0.05, momentum=0.9), lambda o, _: o, 80)


def triplets(seed: int) -> Program:
    """The next row of the batch is the stranger; many triplets are done early and give nothing."""
    model = mlp([20, 32, 8])

    def loss_of(batch: Any) -> Tensor:
        z = model(batch[0][0])
        twin = model(batch[0][0] + 0.2)
        return F.triplet_margin_loss(z, twin, twin.roll(1, 0), margin=2.0)

    task = photos(seed)

    def score() -> float:
        with torch.no_grad():
            return loss_of(task.aside()).item()

    return study(model, task, adam(model, 4e-3), steps=60, loss_of=loss_of, score=score)


def masked_rows(seed: int) -> Program:
    """A third of each spectrum is hidden and must be told from the rest; only the hidden part counts."""
    model, random = mlp([72, 64, 64, 36], nn.GELU), torch.Generator().manual_seed(seed)

    def hide(x: Tensor, _: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mask = (torch.rand(x.shape, generator=random) < 0.33).float()
        return torch.cat([x * (1 - mask), mask], dim=1), (x, mask)

    def loss(out: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        return ((out - y[0]).square() * y[1]).sum() / y[1].sum()

    return study(model, spectra_of(seed).changed(hide), adam(model, 3e-3), loss, 110)


def bootstrapped(seed: int) -> Program:
    """A slow copy gives the goals, as in BYOL."""
    model = nn.ModuleDict({"online": mlp([20, 32, 12]), "head": mlp([12, 16, 12])})
    slow = copy.deepcopy(model["online"]).requires_grad_(False)

    def loss_of(batch: Any) -> Tensor:
        a = batch[0][0]
        goal = slow(a + 0.2)
        return 1 - F.cosine_similarity(model["head"](model["online"](a)), goal).mean()

    @torch.no_grad()
    def follow(_: int) -> None:
        for mine, own in zip(slow.parameters(), model["online"].parameters(), strict=True):
            mine.lerp_(own, 0.02)

    task = photos(seed)

    def score() -> float:
        with torch.no_grad():
            return loss_of(task.aside()).item()

    return study(model, task, adam(model, 4e-3), steps=80, loss_of=loss_of, score=score, after=follow)


for name, build in (
    ("photos-triplets", triplets),
    ("spectra-hidden-third", masked_rows),
    ("photos-slow-copy-gives-goals", bootstrapped),
):
    zoo.healthy(f"plain-{name}", build)

zoo.healthy("plain-photos-siamese-other-view-held", siamese, learns(idle=("encoder.0.bias",)))  # a norm takes it out

# --- policies and values


def bandit(seed: int) -> Program:
    """A policy gradient with the mean reward as its baseline: a noisy loss around zero."""
    model, random, log = mlp([8, 32, 5]), torch.Generator().manual_seed(seed), Log()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logp = model(batch[0]).log_softmax(dim=1)
        action = torch.multinomial(logp.detach().exp(), 1, generator=random)
        reward = batch[1].gather(1, action)
        log(reward=reward.mean().item())
        return -((reward - reward.mean()) * logp.gather(1, action)).mean()

    return study(model, visitors(seed), adam(model, 8e-3), unearned, 110, loss_of=loss_of, log=log)


def q_learning(seed: int) -> Program:
    """A walk on a line of eight places with a prize at its end; a target network is copied every ten steps."""
    model = mlp([8, 32, 2])
    target = copy.deepcopy(model).requires_grad_(False)
    random, losses = torch.Generator().manual_seed(seed), []
    optimizer, places = adam(model, 5e-3), torch.eye(8)
    worth = 0.8 ** (6 - torch.arange(8).float())

    def run() -> None:
        for step in range(110):
            at = torch.randint(7, (64,), generator=random)
            move = torch.randint(2, (64,), generator=random)
            to = (at + 2 * move - 1).clamp(min=0)
            done = (to == 7).float()
            with torch.no_grad():
                goal = done + 0.8 * (1 - done) * target(places[to]).amax(dim=1)
            loss = F.smooth_l1_loss(model(places[at]).gather(1, move[:, None]).squeeze(1), goal)
            losses.append(step_from(loss, optimizer))
            if step % 10 == 9:
                target.load_state_dict(model.state_dict())

    def score() -> float:
        with torch.no_grad():
            return (model(places[1:7])[:, 1] - worth[1:7]).square().mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


class Gauss(nn.Module):
    """A mean for each of two joints, and one width for all states."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_std = mlp([9, 32, 32, 2], nn.Tanh), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.mean(x), self.log_std.exp())


def cloned(seed: int) -> Program:
    """Behaviour cloning by the likelihood of what the expert did."""
    model, way = Gauss(), torch.randn(9, 2, generator=drawn_once(seed, 7181)) / 2
    random = torch.Generator().manual_seed(seed)

    def expert(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.tanh(x @ way) + 0.1 * torch.randn(len(x), 2, generator=random)

    return study(model, rents(seed).changed(expert), adam(model, 6e-3), lambda d, y: 3 - d.log_prob(y).mean(), 90)


def preferences(seed: int) -> Program:
    """A model of rewards from pairs of which one was liked better."""
    model, way = mlp([9, 32, 1]), torch.randn(9, generator=drawn_once(seed, 7182))
    model[2].bias = None

    def pairs(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2)
        first = (torch.tanh(a) @ way > torch.tanh(b) @ way)[:, None]
        return torch.cat([torch.where(first, a, b), torch.where(first, b, a)]), torch.zeros(())

    def loss(out: Tensor, _: Tensor) -> Tensor:
        good, bad = out.chunk(2)
        return -F.logsigmoid(good - bad).mean()

    return study(model, rents(seed).changed(pairs), adam(model, 5e-3), loss, 90)


for name, build in (
    ("visitors-policy-gradient", bandit),
    ("line-q-learning", q_learning),
    ("joints-cloned", cloned),
    ("rewards-from-pairs", preferences),
):
    zoo.healthy(f"plain-{name}", build)

# --- several losses, several passes


class Weighed(TwoTasks):
    """Learns how much each task counts."""

    def __init__(self) -> None:
        super().__init__()
        self.doubt = nn.Parameter(torch.zeros(2))


def weighed(seed: int) -> Program:
    model = Weighed()

    def loss_of(batch: Any) -> Tensor:
        amount, kind = model(batch[0])
        parts = torch.stack([F.mse_loss(amount, batch[1][0]), F.cross_entropy(kind, batch[1][1])])
        return ((-model.doubt).exp() * parts + model.doubt).sum()

    return study(model, doses(seed), adam(model, 5e-3), two_losses, 90, loss_of=loss_of)


def attacked(seed: int) -> Program:
    """Rows are pushed against the gradient of the loss before the step, as in adversarial training."""
    model = mlp([11, 40, 40, 6])

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (push,) = torch.autograd.grad(F.cross_entropy(model(x), batch[1]), x)
        return F.cross_entropy(model(batch[0] + 0.1 * push.sign()), batch[1])

    return study(model, soils(seed), adam(model, 4e-3), steps=80, loss_of=loss_of)


def flat_minimum(seed: int) -> Program:
    """Two gradients to a step: the second from where the first leads, as in SAM."""
    model, task, losses = mlp([14, 40, 7]), KINDS["crops"](seed)[1], []
    optimizer = sgd(model, 0.1, momentum=0.9)

    def run() -> None:
        for _, (x, y) in zip(range(70), task, strict=False):
            optimizer.zero_grad()
            loss = bce(model(x), y)
            loss.backward()
            ps = list(model.parameters())
            norm = torch.stack([p.grad.norm() for p in ps]).norm()
            push = [0.05 * p.grad / norm for p in ps]
            with torch.no_grad():
                torch._foreach_add_(ps, push)
            optimizer.zero_grad()
            bce(model(x), y).backward()
            with torch.no_grad():
                torch._foreach_sub_(ps, push)
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, bce))


def slope_held(seed: int) -> Program:
    """The slope of the output counts too: a gradient of a gradient."""
    model = mlp([9, 40, 40, 1], nn.Softplus)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = batch[0].clone().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.mse_loss(out, batch[1]) + 1e-3 * slope.square().sum(dim=1).mean()

    return study(model, rents(seed), adam(model, 1e-2), F.mse_loss, 100, loss_of=loss_of)


def equation(seed: int) -> Program:
    """A network learns to solve u' = -u, u(0) = 1, from the equation alone."""
    model = mlp([1, 24, 24, 1], nn.Tanh)
    task = rents(seed).changed(lambda x, _: (2 * torch.sigmoid(x[:, :1]), torch.exp(-2 * torch.sigmoid(x[:, :1]))))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        t = batch[0].clone().requires_grad_()
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        return (slope + u).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()

    return study(model, task, adam(model, 5e-3), F.mse_loss, 90, loss_of=loss_of)


class Early(Vgg):
    """A second head behind the first stage helps."""

    def __init__(self) -> None:
        super().__init__(3, 5, 8)
        self.aux = nn.Linear(10 * 16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = self.features[:4](x)
        return self.classifier(self.features[4:](low)), self.aux(low.flatten(1))


def early(seed: int) -> Program:
    model = Early()

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out[0], y) + 0.3 * F.cross_entropy(out[1], y)

    return study(model, fabrics(seed), adam(model, 3e-3), loss, 60)


def scheduled_sampling(seed: int) -> Program:
    """The decoder reads its own words more and more often."""
    model, step, random = Translator(), [0], torch.Generator().manual_seed(seed)

    def loss_of(batch: Any) -> Tensor:
        (source, shifted), y = batch
        step[0] += 1
        with torch.no_grad():
            own = F.pad(model(source, shifted).argmax(dim=-1)[:, :-1], (1, 0), value=9)
        use = torch.rand(shifted.shape, generator=random) < min(0.3, step[0] / 200)
        return token_loss(model(source, torch.where(use, own, shifted)), y)

    return study(model, glosses(seed), adam(model, 1e-2), token_loss, 80, loss_of=loss_of)


def reversed_domain(seed: int) -> Program:
    """Domains are not to be told apart: their head learns, and the trunk goes against it by a little."""

    class Turn(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(_ctx: Any, gradient: Tensor) -> Tensor:
            return -0.1 * gradient

    model = nn.ModuleDict({"trunk": mlp([11, 40, 24]), "kind": nn.Linear(24, 6), "domain": mlp([24, 16, 2])})

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        h = F.relu(model["trunk"](batch[0]))
        where = (batch[0][:, 0] > 0).long()
        return F.cross_entropy(model["kind"](h), batch[1]) + F.cross_entropy(model["domain"](Turn.apply(h)), where)

    task = soils(seed)

    def score() -> float:
        x, y = task.aside()
        with torch.no_grad():
            return F.cross_entropy(model["kind"](F.relu(model["trunk"](x))), y).item()

    return study(model, task, adam(model, 4e-3), steps=80, loss_of=loss_of, score=score)


for name, build in (
    ("doses-weights-of-losses-learned", weighed),
    ("soils-attacked", attacked),
    ("crops-two-gradients-to-a-step", flat_minimum),
    ("rents-slope-held-small", slope_held),
    ("equation-solved", equation),
    ("fabrics-early-head-helps", early),
    ("glosses-reads-its-own-words", scheduled_sampling),
    ("soils-domain-reversed", reversed_domain),
):
    zoo.healthy(f"plain-{name}", build)

# --- networks that look odd


class Deep(nn.Module):
    """Eight residual layers of which each may be skipped in training."""

    def __init__(self, skip: float) -> None:
        super().__init__()
        self.enter, self.leave, self.skip = nn.Linear(11, 32), nn.Linear(32, 6), skip
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            if not self.training or torch.rand(()) >= self.skip:
                x = x + 0.5 * layer(x)
        return self.leave(x)


class Binary(nn.Module):
    """A code of bits; the gradient passes the threshold as if it were a line."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([36, 40, 12], nn.SiLU), mlp([12, 40, 36], nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.encoder(x))
        return self.decoder(z + (z.sign() - z).detach())


class Pooled(nn.Module):
    """Attention over the things in a bag of which one decides."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.look, self.out = mlp([5, 32, 32]), mlp([32, 16, 1], nn.Tanh), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.each(x))
        return self.out((self.look(h).softmax(dim=1) * h).sum(dim=1))


def bags(seed: int) -> Program:
    model = Pooled()
    task = KINDS["baskets"](seed)[1].changed(lambda x, _: (x, x[..., 0].amax(dim=1, keepdim=True)))
    return study(model, task, adam(model, 6e-3), F.mse_loss, 90)


class Fourier(nn.Module):
    """Fixed random waves, then a network: a buffer does the work of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", torch.randn(9, 32))
        self.body = mlp([64, 40, 1])

    def forward(self, x: Tensor) -> Tensor:
        z = 0.5 * x @ self.waves
        return self.body(torch.cat([z.sin(), z.cos()], dim=1))


class Hyper(nn.Module):
    """A network makes the weights of the layer that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.makes, self.bend = mlp([4, 24, 5 * 8 + 8]), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.makes(x[:, :4])
        return self.bend(torch.tanh(torch.einsum("nij,nj->ni", made[:, :40].view(-1, 8, 5), x[:, 4:]) + made[:, 40:]))


class Shared(nn.Module):
    """One layer used six times."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.leave = nn.Linear(14, 40), nn.Linear(40, 40), nn.Linear(40, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        for _ in range(6):
            h = h + 0.3 * torch.tanh(self.again(h))
        return self.leave(h)


def ensemble(seed: int) -> Program:
    """Three networks in one optimizer, each with its own loss."""
    model = nn.ModuleList(mlp([9, 24, 1], nn.SiLU) for _ in range(3))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return sum(F.mse_loss(part(batch[0]), batch[1]) for part in model)

    task = rents(seed)

    def score() -> float:
        x, y = task.aside()
        with torch.no_grad():
            return F.mse_loss(sum(part(x) for part in model) / 3, y).item()

    return study(model, task, adam(model, 6e-3), steps=90, loss_of=loss_of, score=score)


def averaged(seed: int) -> Program:
    """Weights are averaged over the last half, in a model of its own."""
    model, task, loss = KINDS["beats"](seed)
    mean = AveragedModel(model)
    optimizer = sgd(model, 0.05, momentum=0.9)
    return study(model, task, optimizer, loss, 70, after=lambda i: mean.update_parameters(model) if i > 35 else None)


def one_step_functional(seed: int) -> Program:
    """No modules: parameters in a list, `F.linear`, an optimizer over the list."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterList([torch.randn(32, 11) / 4, torch.randn(32, 32) / 6, torch.randn(6, 32) / 6])
            self.b = nn.ParameterList([torch.zeros(32), torch.zeros(32), torch.zeros(6)])

        def forward(self, x: Tensor) -> Tensor:
            for i in range(3):
                x = F.linear(x if i == 0 else F.relu(x), self.w[i], self.b[i])
            return x

    model = Bag()
    return study(model, soils(seed), adam(model, 5e-3), steps=80)


def zero_start(seed: int) -> Program:
    """The last layer begins at zero: in the first step nothing behind it gets a gradient."""
    model = mlp([9, 40, 40, 1], nn.SiLU)
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    return study(model, rents(seed), adam(model, 5e-3), F.mse_loss, 90)


def truncated(seed: int) -> Program:
    """A long series in pieces; the state goes on and its gradient does not."""
    model, losses, task = nn.GRU(1, 24, batch_first=True), [], power(seed, length=16)
    head = nn.Linear(24, 1)
    both = nn.ModuleDict({"gru": model, "head": head})
    optimizer = adam(both, 6e-3)

    def run() -> None:
        for _, (x, _y) in zip(range(40), task, strict=False):
            state = None
            for piece in range(2):
                part = x[:, 8 * piece : 8 * piece + 8, :1]
                out, state = model(part[:, :-1], state)
                state = state.detach()
                loss = F.mse_loss(head(out), part[:, 1:])
                losses.append(step_from(loss, optimizer))

    def score() -> float:
        x = task.aside()[0][..., :1]
        with torch.no_grad():
            return F.mse_loss(head(model(x[:, :-1])[0]), x[:, 1:]).item()

    return Program(model=both, optimizer=optimizer, run=run, losses=losses, score=score)


def with_net(make: Callable[[], nn.Module], name: str, rate: float = 5e-3, steps: int = 90) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model = make()
        _, task, loss = KINDS[name](seed)
        return study(model, task, adam(model, rate), loss, steps)

    return build


for name, build in (
    ("soils-layers-skipped-by-chance", with_net(lambda: Deep(0.2), "soils")),
    ("spectra-code-of-bits", with_net(Binary, "spectra")),
    ("bags-the-largest-decides", bags),
    ("rents-fixed-waves", with_net(Fourier, "rents")),
    ("rents-weights-made-by-a-network", with_net(Hyper, "rents")),
    ("crops-one-layer-six-times", with_net(Shared, "crops")),
    ("rents-three-networks", ensemble),
    ("beats-weights-averaged", averaged),
    ("soils-parameters-in-lists", one_step_functional),
    ("rents-last-layer-begins-at-zero", zero_start),
    ("power-in-pieces", truncated),
    ("digits-half-dropped", with_net(lambda: Vgg(p=0.5), "digits", 4e-3, 60)),
    ("power-lstm-with-dropout", with_net(lambda: Load(p=0.2), "power", 1e-2)),
    ("scans-wide-unet", with_net(lambda: SmallUnet(width=12), "scans", 3e-3, 40)),
    ("tunes-two-blocks", with_net(lambda: Music(depth=2), "tunes", 3e-3, 60)),
    ("baskets-larger-rate", with_net(Basket, "baskets", 1e-2, 80)),
    ("beats-wide", with_net(lambda: Heart(width=24), "beats", 3e-3, 50)),
):
    zoo.healthy(f"plain-{name}", build)


def converged(seed: int) -> Program:
    """A trained network goes on at a small rate for other noise; there is little left to gain."""
    model = Vgg(p=0.0)
    fit(model, digits(seed), adam(model, 3e-3), 15).run()
    model.zero_grad(set_to_none=True)
    return study(model, digits(seed), adam(model, 1e-3), steps=50)


def moved_on(seed: int) -> Program:
    """A trained network gets data from another scanner."""
    model = SmallUnet()
    fit(model, scans(seed), adam(model, 4e-3), 40).run()
    model.zero_grad(set_to_none=True)
    return study(model, scans(seed).mapped(lambda x: 0.5 * x + 0.3), adam(model, 2e-3), steps=50)


zoo.healthy("plain-digits-goes-on-at-a-small-rate", converged)
zoo.healthy("plain-scans-of-another-scanner", moved_on)
zoo.healthy(
    "plain-beats-label-of-rare-kind",
    lambda s: study(
        m := Heart(2), beats(s).changed(lambda x, y: (x, (y == 0).long())), adam(m, 4e-3), F.cross_entropy, 70
    ),
)
