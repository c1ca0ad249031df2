# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Daily programs that are sound, some of them in an unusual way.

Half: daily.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR
from torch.utils.checkpoint import checkpoint

from validation.case import Log, Program, Zoo
from validation.cases._common_loops import study
from validation.cases._daily_corridor import LENGTH, far_from_goal, walk
from validation.cases._daily_loops import (
    KINDS,
    Attender,
    Dynamics,
    FastText,
    Gat,
    Llama,
    Lung,
    Petal,
    Ranker,
    Separable,
    SmallVit,
    Writer,
    bce,
    buses,
    crates,
    diary,
    lungs,
    moths,
    petals,
    plurals,
    poles,
    ranked,
    rides,
    rooms,
    shells,
    tweets,
    wells,
    yields,
)
from validation.evidence.loops import learns
from validation.nets import mlp
from validation.programs import adam, fit, held_out, script, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="daily", proof=learns(0.25))
adamw = torch.optim.AdamW
Loss = Callable[[], Tensor]

# --- schedules and steps


def restarts(seed: int) -> Program:
    model, task, loss = KINDS["moths"](seed)
    optimizer = adamw(model.parameters(), lr=4e-3)
    schedule = CosineAnnealingWarmRestarts(optimizer, 20)
    return study(model, task, optimizer, loss, 60, after=lambda _: schedule.step())


def one_cycle(seed: int) -> Program:
    model, task, loss = KINDS["lungs"](seed)
    optimizer = sgd(model, 0.02, momentum=0.9, nesterov=True)
    schedule = OneCycleLR(optimizer, 0.15, total_steps=62)
    return study(model, task, optimizer, loss, 60, after=lambda _: schedule.step())


def long_warm_up(seed: int) -> Program:
    """The rate rises over half of the steps."""
    model, task, loss = KINDS["verses"](seed)
    optimizer = adamw(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 30))
    return study(model, task, optimizer, loss, 60, clip=1.0, after=lambda _: schedule.step())


def flat_minima(seed: int) -> Program:
    """Two passes for a step: a look at the steepest neighbour, then the gradient from there."""
    model, task, loss = KINDS["crates"](seed)
    optimizer = sgd(model, 0.3, momentum=0.9)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        value = loss_of()
        value.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            away = [0.05 * p.grad / norm for p in model.parameters()]
            for p, off in zip(model.parameters(), away, strict=True):
                p += off
        optimizer.zero_grad()
        loss_of().backward()
        with torch.no_grad():
            for p, off in zip(model.parameters(), away, strict=True):
                p -= off
        optimizer.step()
        return value

    return script(model, optimizer, task, loss, body, 100)


def eight_parts(seed: int) -> Program:
    """Eight parts of four rows make a step, the last ones of the epoch fewer."""
    model, task, loss = Dynamics(), poles(seed, batch=4), F.mse_loss
    optimizer = adamw(model.parameters(), lr=4e-3)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        value = loss_of()
        (value / 8).backward()
        if i % 8 == 7 or i == 299:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return value

    return script(model, optimizer, task, loss, body, 300, poles(seed))


def two_rows(seed: int) -> Program:
    net = mlp([5, 32, 4], nn.Tanh)

    def error(batch: Any) -> Tensor:
        (s, push), y = batch
        return F.mse_loss(s + net(torch.cat([s, push], dim=1)), y)

    aside = poles(seed, 256).aside()

    def score() -> float:
        with torch.no_grad():
            return error(aside).item()

    return study(net, poles(seed, 2), adam(net, 3e-3), steps=220, loss_of=error, score=score)


# --- losses


def mixed_up(seed: int) -> Program:
    """Pictures and labels are mixed in pairs."""
    model, random = SmallVit(p=0.1), torch.Generator().manual_seed(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        share, other = float(torch.rand(1, generator=random)), torch.randperm(len(y), generator=random)
        out = model(share * x + (1 - share) * x[other])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[other])

    return study(model, moths(seed), adamw(model.parameters(), lr=3e-3), steps=60, loss_of=loss_of)


def focal(out: Tensor, y: Tensor) -> Tensor:
    """Pixels that are sure count less."""
    each = bce(out, y, reduction="none")
    return ((1 - (-each).exp()).square() * each).mean()


def three_quantiles(out: Tensor, y: Tensor) -> Tensor:
    off = y[:, None] - out
    level = torch.tensor([0.1, 0.5, 0.9])
    return torch.max(level * off, (level - 1) * off).mean()


def hardest(seed: int) -> Program:
    """Only the worse half of a batch counts."""
    model = Separable()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        each = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return each.topk(16).values.mean()

    return study(model, shells(seed), adam(model, 3e-3), steps=60, loss_of=loss_of)


def margin(out: Tensor, _y: Tensor) -> Tensor:
    return F.relu(1.0 - out).mean()


def mixture(out: Tensor, y: Tensor) -> Tensor:
    """Three normal distributions over the yield."""
    share, mean, spread = out.chunk(3, dim=1)
    spread = F.softplus(spread) + 0.05
    logp = share.log_softmax(dim=1) - 0.5 * ((y[:, None] - mean) / spread).square() - spread.log()
    return 2 - logp.logsumexp(dim=1).mean()


def counted(seed: int) -> Program:
    """How many goods a crate holds, as a Poisson rate."""
    model, task = mlp([12, 32, 1], nn.Softplus), crates(seed).changed(lambda x, y: (x, y.sum(dim=1)))
    loss = lambda o, y: 2 + F.poisson_nll_loss(o.squeeze(1), y)  # noqa: E731
    return study(model, task, adam(model, 8e-3), loss, 90)


def attacked(seed: int) -> Program:
    """Each batch is first pushed the way that hurts most, by a little."""
    model = mlp([12, 48, 6], nn.GELU)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = batch[0].clone().requires_grad_()
        (way,) = torch.autograd.grad(bce(model(x), batch[1]), x)
        return bce(model(batch[0] + 0.1 * way.sign()), batch[1])

    return study(model, crates(seed), adam(model, 8e-3), bce, 80, loss_of=loss_of)


def late_head(seed: int) -> Program:
    """The loss of the second head counts more and more, from nothing."""
    model = nn.ModuleDict({"body": mlp([12, 40, 40], nn.GELU), "what": nn.Linear(40, 6), "many": nn.Linear(40, 1)})
    task, now = crates(seed), [0]
    aside = task.aside()

    def parts(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = F.gelu(model["body"](batch[0]))
        return bce(model["what"](h), batch[1]), F.mse_loss(model["many"](h).squeeze(1), batch[1].sum(dim=1) - 3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        first, second = parts(batch)
        now[0] += 1
        return first + min(1.0, now[0] / 60) * second

    def score() -> float:
        with torch.no_grad():
            return sum(parts(aside)).item()

    return study(model, task, adamw(model.parameters(), lr=5e-3), steps=90, loss_of=loss_of, score=score)


# --- coders, pairs, players


class Tied(nn.Module):
    """An autoencoder whose way back is the way there, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 8)
        self.back = nn.ParameterList([nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(24))])

    def forward(self, x: Tensor) -> Tensor:
        z = self.second(F.elu(self.first(x)))
        h = F.elu(F.linear(z, self.second.weight.T, self.back[0]))
        return F.linear(h, self.first.weight.T, self.back[1])


class Bounded(Petal):
    """A variational one: the code has a mean and a spread."""

    def __init__(self) -> None:
        super().__init__(code=12)
        self.decoder[0] = nn.Linear(6, 40)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encoder(x).chunk(2, dim=1)
        logvar = logvar - 2
        z = mean + torch.randn_like(mean) * (logvar / 2).exp() if self.training else mean
        return self.decoder(z), mean, logvar


def bound(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    kl = -0.5 * (1 + out[2] - out[1].square() - out[2].exp()).sum(dim=1).mean()
    return F.mse_loss(out[0], x) + 5e-3 * kl


def noisy_rows(seed: int) -> Program:
    """Rows are to be cleaned of noise and of gaps."""
    model, random = Petal(), torch.Generator().manual_seed(seed)

    def spoil(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gone = torch.rand(x.shape, generator=random) < 0.2
        return (x + 0.2 * torch.randn(x.shape, generator=random)).masked_fill(gone, 0.0), y

    return study(model, petals(seed).changed(spoil), adam(model, 6e-3), F.mse_loss, 80)


def two_views(seed: int) -> Program:
    """Two noisy views of one row are to be near, those of others far; the head is thrown away later."""
    model = nn.ModuleDict({"net": mlp([24, 48, 16], nn.GELU), "head": mlp([16, 16, 8], nn.GELU)})
    random, task = torch.Generator().manual_seed(seed), petals(seed, batch=32)
    aside = task.aside()[0]

    def error(x: Tensor, source: torch.Generator) -> Tensor:
        views = (x + 0.3 * torch.randn(x.shape, generator=source) for _ in range(2))
        a, b = (F.normalize(model["head"](F.gelu(model["net"](v))), dim=1) for v in views)
        likeness = a @ b.T / 0.2
        at = torch.arange(len(x))
        return (F.cross_entropy(likeness, at) + F.cross_entropy(likeness.T, at)) / 2

    def score() -> float:
        with torch.no_grad():
            return error(aside, torch.Generator().manual_seed(seed + 1)).item()

    loss_of = lambda batch: error(batch[0], random)  # noqa: E731
    return study(model, task, adamw(model.parameters(), lr=4e-3), steps=80, loss_of=loss_of, score=score)


def maker_and_critic(seed: int) -> Program:
    """Hinge losses, a critic under spectral norm that learns twice for each step of the maker."""
    critic = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(3, 32)),
        nn.LeakyReLU(0.2),
        parametrizations.spectral_norm(nn.Linear(32, 1)),
    )
    model = nn.ModuleDict({"maker": mlp([4, 32, 3], nn.ReLU), "critic": critic})
    first = torch.optim.Adam(model["maker"].parameters(), lr=5e-3, betas=(0.0, 0.9))
    second = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))
    random, losses = torch.Generator().manual_seed(seed), []
    centre = torch.tensor([1.5, -1.0, 0.5])

    def run() -> None:
        for _ in range(80):
            for _turn in range(2):
                real = centre + 0.4 * torch.randn(48, 3, generator=random)
                made = model["maker"](torch.randn(48, 4, generator=random)).detach()
                second.zero_grad()
                loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(made)).mean()
                loss.backward()
                second.step()
            first.zero_grad()
            (-critic(model["maker"](torch.randn(48, 4, generator=random))).mean()).backward()
            first.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            made = model["maker"](torch.randn(512, 4, generator=torch.Generator().manual_seed(seed + 9)))
            return (made.mean(dim=0) - centre).norm().item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


def velocities(seed: int) -> Program:
    """Flow matching: which way from noise to a point of a ring."""
    model = mlp([3, 64, 64, 2], nn.SiLU)

    def error(random: torch.Generator) -> Tensor:
        angle, t = 6.28 * torch.rand(96, 1, generator=random), torch.rand(96, 1, generator=random)
        goal, noise = 2 * torch.cat([angle.cos(), angle.sin()], dim=1), torch.randn(96, 2, generator=random)
        at = (1 - t) * noise + t * goal
        return F.mse_loss(model(torch.cat([at, t], dim=1)), goal - noise)

    random, losses, optimizer = torch.Generator().manual_seed(seed), [], adam(model, 4e-3)

    def run() -> None:
        for _ in range(110):
            optimizer.zero_grad()
            loss = error(random)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return error(torch.Generator().manual_seed(seed + 9)).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


# --- policies


def q_values(seed: int) -> Program:
    """Values of actions in a corridor from a memory of walks, with a copy that follows every ten steps."""
    model = mlp([LENGTH, 32, 2])
    goal = copy.deepcopy(model).requires_grad_(False)
    random, losses, optimizer = torch.Generator().manual_seed(seed), [], adam(model, 5e-3)
    state, action, reward = walk(lambda x: torch.zeros(len(x), 2), random, 256)  # type: ignore[arg-type]
    now, after = state[:-1].flatten(0, 1), state[1:].flatten(0, 1)
    taken, paid = action[:-1].flatten(), reward[:-1].flatten()

    def run() -> None:
        for i in range(120):
            rows = torch.randint(len(now), (96,), generator=random)
            with torch.no_grad():
                later = paid[rows] + 0.8 * goal(after[rows]).max(dim=1).values
            loss = F.smooth_l1_loss(model(now[rows]).gather(1, taken[rows, None]).squeeze(1), later)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if i % 10 == 9:
                goal.load_state_dict(model.state_dict())

    true = torch.zeros(LENGTH, 2)
    places = torch.arange(LENGTH)
    for _ in range(60):  # what an action is worth, by the rules of the corridor
        best = (places == LENGTH - 1).float() + 0.8 * true.max(dim=1).values
        left, right = best[(places - 1).clamp(min=0)], best[(places + 1).clamp(max=LENGTH - 1)]
        true = torch.stack([0.9 * left + 0.1 * right, 0.1 * left + 0.9 * right], dim=1)

    def score() -> float:
        with torch.no_grad():
            return (model(torch.eye(LENGTH)) - true).abs().mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def with_value(seed: int) -> Program:
    """A policy gradient in a corridor with a critic of its own and a bonus for entropy."""
    model = nn.ModuleDict({"actor": mlp([LENGTH, 32, 2], nn.Tanh), "critic": mlp([LENGTH, 32, 1], nn.Tanh)})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    random, losses, log = torch.Generator().manual_seed(seed), [], Log()

    def run() -> None:
        for _ in range(60):
            state, action, reward = walk(model["actor"], random, 32)
            to_come = reward.flip(0).cumsum(dim=0).flip(0)
            value, logp = model["critic"](state).squeeze(-1), model["actor"](state).log_softmax(dim=-1)
            gain = (to_come - value).detach()
            entropy = -(logp.exp() * logp).sum(dim=-1).mean()
            log(entropy=entropy.item(), reward=reward.sum(dim=0).mean().item())
            actor = -(gain * logp.gather(-1, action[..., None]).squeeze(-1)).mean()
            loss = actor + 0.1 * F.mse_loss(value, to_come) - 0.02 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    score = far_from_goal(model["actor"], seed)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score, log=log)


# --- parts that rest or follow


def reservoir(seed: int) -> Program:
    """A recurrent network that rests as it was drawn; a reader of all its last states learns."""
    model = nn.ModuleDict({"pool": nn.RNN(1, 80, batch_first=True), "read": nn.Linear(240, 3)})
    with torch.no_grad():
        weight = model["pool"].weight_hh_l0
        weight.copy_(0.9 * nn.init.orthogonal_(torch.empty(80, 80)))
        model["pool"].weight_ih_l0.mul_(3)
    model["pool"].requires_grad_(False)

    def out(x: Tensor) -> Tensor:
        return model["read"](model["pool"](x)[0][:, -3:].flatten(1))

    task = buses(seed)
    x, y = task.aside()

    def score() -> float:
        with torch.no_grad():
            return F.mse_loss(out(x), y).item()

    loss_of = lambda batch: F.mse_loss(out(batch[0]), batch[1])  # noqa: E731
    return study(model, task, adam(model["read"], 3e-3), steps=90, loss_of=loss_of, score=score)


def old_norms(seed: int) -> Program:
    """A trained network is tuned with the means of its norms held, as for small batches."""
    model = Lung()
    fit(model, lungs(seed + 1, batch=16), adam(model, 5e-3), 40, bce).run()
    model.zero_grad(set_to_none=True)

    def hold(_: int) -> None:
        model.train()
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()

    task = lungs(seed, batch=4).mapped(lambda x: 0.6 - x)
    return study(model, task, adam(model, 3e-3), bce, 60, score=held_out(model, task, bce), before=hold)


def prefix(seed: int) -> Program:
    """A model of other texts rests; vectors put before the text and a new head learn."""
    model = Llama()
    fit(model, diary(seed), adam(model, 5e-3), 50, token_loss).run()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    model.prefix = nn.Parameter(0.3 * torch.randn(4, 32))
    model.head = nn.Linear(32, 14, bias=False)
    task = diary(seed)
    x, y = task.aside()

    def out(x: Tensor) -> Tensor:
        h = torch.cat([model.prefix.expand(len(x), -1, -1), model.words(x)], dim=1)
        for block in model.blocks:
            h = block(h)
        return model.head(model.norm(h))[:, 4:]

    def score() -> float:
        with torch.no_grad():
            return token_loss(out(x), y).item()

    optimizer = torch.optim.Adam([model.prefix, model.head.weight], lr=1e-2)
    loss_of = lambda batch: token_loss(out(batch[0]), batch[1])  # noqa: E731
    return study(model, task, optimizer, steps=60, loss_of=loss_of, score=score)


def thawed(seed: int) -> Program:
    """Head, middle, first layer: one after the other is freed, each with its own rate."""
    model = mlp([12, 40, 40, 6], nn.GELU)
    fit(model, crates(seed + 1), adam(model, 6e-3), 50, bce).run()
    model.zero_grad(set_to_none=True)
    model[4] = nn.Linear(40, 6)
    rates = {4: 8e-3, 2: 4e-3, 0: 4e-3}
    model[:4].requires_grad_(False)
    optimizer = torch.optim.AdamW([{"params": list(model[at].parameters()), "lr": r} for at, r in rates.items()])

    def free(step: int) -> None:
        if step in (15, 30):
            model[2 if step == 15 else 0].requires_grad_(True)

    return study(model, crates(seed), optimizer, bce, 100, before=free)


def mean_teacher(seed: int) -> Program:
    """Most rows have no label; there the model is to agree with the mean of its own past."""
    model = mlp([12, 48, 6], nn.GELU, dropout=0.1)
    slow = copy.deepcopy(model).requires_grad_(False).eval()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return bce(out[:24], batch[1][:24]) + F.mse_loss(out[24:].sigmoid(), slow(batch[0][24:]).sigmoid())

    @torch.no_grad()
    def follow(_: int) -> None:
        for a, b in zip(slow.parameters(), model.parameters(), strict=True):
            a.lerp_(b, 0.1)

    return study(model, crates(seed), adam(model, 8e-3), bce, 90, loss_of=loss_of, after=follow)


# --- unusual shapes


class Repeated(nn.Module):
    """One block, used five times with the same weights, each under a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.block = nn.Linear(5, 32), nn.LayerNorm(32), mlp([32, 48, 32], nn.GELU)
        self.out = nn.Linear(32, 4)

    def forward(self, s: Tensor, push: Tensor) -> Tensor:
        h = self.enter(torch.cat([s, push], dim=1))
        for _ in range(5):
            h = h + 0.5 * checkpoint(lambda h: self.block(self.norm(h)), h, use_reentrant=False)
        return s + self.out(h)


class Waves(nn.Module):
    """Sines of sines over places, as for pictures that are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(2, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        with torch.no_grad():
            self.first.weight.uniform_(-0.5, 0.5)
            self.second.weight.uniform_(-(6**0.5) / 48**0.5 / 3, 6**0.5 / 48**0.5 / 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sin(3 * self.second(torch.sin(8 * self.first(x))))).squeeze(1)


def picture(seed: int) -> Program:
    """Random places of one picture."""
    model, random = Waves(), torch.Generator().manual_seed(seed)
    losses, optimizer = [], adam(model, 2e-3)

    def error(source: torch.Generator) -> Tensor:
        at = 2 * torch.rand(256, 2, generator=source) - 1
        return F.mse_loss(model(at), torch.sin(4 * at[:, 0] + seed) * torch.cos(5 * at[:, 1]))

    def run() -> None:
        for _ in range(110):
            optimizer.zero_grad()
            loss = error(random)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return error(torch.Generator().manual_seed(seed + 9)).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def equation(seed: int) -> Program:
    """A network that is to solve y' = -2 y with y(0) = 1, by its own slope."""
    model, random = mlp([1, 24, 24, 1], nn.Tanh), torch.Generator().manual_seed(seed)
    losses, optimizer = [], adam(model, 5e-3)

    def run() -> None:
        for _ in range(150):
            t = 2 * torch.rand(48, 1, generator=random)
            t.requires_grad_()
            y = model(t)
            (slope,) = torch.autograd.grad(y.sum(), t, create_graph=True)
            loss = (slope + 2 * y).square().mean() + 5 * (model(torch.zeros(1, 1)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        t = torch.linspace(0, 2, 60)[:, None]
        with torch.no_grad():
            return F.mse_loss(model(t), (-2 * t).exp()).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def one_house(seed: int) -> Program:
    """One graph in each step; labels of half of its rooms are known, the others are asked for."""
    model = Gat()
    (x, link), y = rooms(seed, nodes=160, batch=1).aside()
    known = torch.rand(160, generator=torch.Generator().manual_seed(seed)) < 0.6
    losses, optimizer = [], adamw(model.parameters(), lr=6e-3, weight_decay=0.05)

    def run() -> None:
        for _ in range(60):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(F.dropout(x, 0.2), link)[0, known], y[0, known])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        with torch.no_grad():
            return F.cross_entropy(model(x, link)[0, ~known], y[0, ~known]).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


def own_words(seed: int) -> Program:
    """The writer sees its own last sign instead of the right one, three times in ten."""
    model, random = Attender(), torch.Generator().manual_seed(seed)

    def loss_of(batch: Any) -> Tensor:
        (source, shifted), y = batch
        with torch.no_grad():
            guess = F.pad(model(source, shifted).argmax(dim=-1)[:, :-1], (1, 0), value=8)
        own = (torch.rand(shifted.shape, generator=random) < 0.3) & (shifted != 8)
        return token_loss(model(source, torch.where(own, guess, shifted)), y)

    return study(model, plurals(seed), adam(model, 1e-2), token_loss, 60, loss_of=loss_of)


def longer(seed: int) -> Program:
    """Texts grow from four signs to twelve."""
    model, now = Writer(p=0.1), [0]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        now[0] += 1
        size = min(12, 4 + now[0] // 6)
        return token_loss(model(batch[0][:, :size]), batch[1][:, :size])

    return study(model, diary(seed), adam(model, 1e-2), token_loss, 60, loss_of=loss_of, clip=1.0)


def sparse_words(seed: int) -> Program:
    """Sparse gradients of a bag of words under plain descent, Adam for the rest."""
    model = FastText()
    model.words = nn.EmbeddingBag(50, 16, mode="mean", sparse=True)
    words, rest = sgd(model.words, 5.0), torch.optim.Adam([*model.fc1.parameters(), *model.fc2.parameters()], 1e-2)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        words.zero_grad()
        rest.zero_grad()
        value = loss_of()
        value.backward()
        words.step()
        rest.step()
        return value

    return script(model, [words, rest], tweets(seed), F.cross_entropy, body, 90)


def rare_wells(seed: int) -> Program:
    """One bag in eight is positive, and counts more."""
    model, loss = KINDS["wells"](seed)[0], lambda o, y: bce(o, y, pos_weight=torch.tensor(4.0))
    random = torch.Generator().manual_seed(seed)

    def thin(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        keep = (y == 0) | (torch.rand(len(y), generator=random) < 0.15)
        return x[keep], y[keep]

    return study(model, wells(seed, batch=160).changed(thin), adam(model, 8e-3), loss, 100)


def by_metric_of_pairs(seed: int) -> Program:
    """Pictures of one sort near, of others at least one apart."""
    model = Separable()

    def pairs(h: Tensor, y: Tensor) -> Tensor:
        far = (h[:, None] - h[None]).square().sum(dim=2).add(1e-6).sqrt()
        same = y[:, None] == y[None]
        return torch.where(same, far.square(), F.relu(1.5 - far).square()).mean()

    return study(model, shells(seed), adam(model, 3e-3), pairs, 60)


def mlp3(seed: int, out: int, loss: Callable[..., Tensor], rate: float = 8e-3) -> Program:
    model = mlp([8, 40, 40, out], nn.SiLU)
    return study(model, yields(seed), adam(model, rate), loss, 100)


for name, build in (
    ("moths-warm-restarts", restarts),
    ("lungs-one-cycle", one_cycle),
    ("verses-long-warm-up", long_warm_up),
    ("crates-steepest-neighbour", flat_minima),
    ("poles-eight-parts-of-four-rows", eight_parts),
    ("poles-two-rows-at-a-time", two_rows),
    ("moths-mixed-in-pairs", mixed_up),
    ("lungs-focal-loss", lambda s: study(m := Lung(), lungs(s), adam(m, 4e-3), focal, 60, bce)),
    ("yields-three-quantiles", lambda s: mlp3(s, 3, three_quantiles)),
    ("yields-mixture-of-three", lambda s: mlp3(s, 9, mixture, 5e-3)),
    ("shells-worse-half-counts", hardest),
    ("rides-hinge-loss", lambda s: study(m := Ranker(), rides(s), adam(m, 3e-2), margin, 80)),
    ("crates-goods-counted", counted),
    ("crates-pushed-the-way-that-hurts", attacked),
    ("crates-second-head-comes-late", late_head),
    ("petals-tied-way-back", lambda s: study(m := Tied(), petals(s), adam(m, 6e-3), F.mse_loss, 90)),
    ("petals-variational", lambda s: study(m := Bounded(), petals(s), adam(m, 6e-3), bound, 90)),
    ("petals-noise-and-gaps", noisy_rows),
    ("petals-two-views", two_views),
    ("points-maker-and-hinge-critic", maker_and_critic),
    ("corridor-values-of-actions", q_values),
    ("corridor-policy-with-critic", with_value),
    ("buses-reservoir-that-rests", reservoir),
    ("lungs-old-norms-held", old_norms),
    ("verses-prefix-and-new-head", prefix),
    ("crates-thawed-from-the-head", thawed),
    ("crates-mean-teacher", mean_teacher),
    ("poles-one-block-five-times", lambda s: study(m := Repeated(), poles(s), adam(m, 3e-3), F.mse_loss, 60)),
    ("picture-of-sines", picture),
    ("equation-by-its-slope", equation),
    ("rooms-one-house-half-known", one_house),
    ("plurals-own-words-at-times", own_words),
    ("diary-longer-texts-later", longer),
    ("tweets-sparse-bag", sparse_words),
    ("wells-rare-ones-count-more", rare_wells),
    ("shells-pairs-near-and-far", by_metric_of_pairs),
    ("rides-small-start-plateau", lambda s: study(m := Ranker(std=0.05), rides(s), adam(m, 2e-2), ranked, 110)),
    (
        "tweets-dropout-half",
        lambda s: study(m := FastText(p=0.5), tweets(s), adamw(m.parameters(), lr=2e-2), steps=110),
    ),
):
    zoo.healthy(f"daily-{name}", build)
zoo.healthy("daily-ring-velocities", velocities, learns(0.15))  # most of its loss cannot be known
