# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs after what users run that look broken and are right.

Half: holdout.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from validation.case import Program, Zoo
from validation.evidence.loops import keeps, learns
from validation.nets import SequenceModel, Signal, Vision, mlp, torch_encoder
from validation.programs import fit, held_out, program, step_from, train_step
from validation.tasks.sequences import echo, token_loss
from validation.tasks.signals import grey, images, pictures, series, waves
from validation.tasks.task import Task, drawn_once
from validation.tasks.vectors import patches, regression

zoo = Zoo("loop", half="holdout", proof=learns())


# --- optimizers and schedules


def closures(seed: int) -> Program:
    """LBFGS calls back for the loss several times in a step."""
    task = regression(seed, 6, batch=128).fixed()
    unseen = regression(seed, 6, batch=256)
    model = mlp([6, 16, 1], nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=6)
    random = torch.Generator().manual_seed(seed)
    x, y = task.aside()
    losses: list[float] = []

    def run() -> None:
        for _ in range(40):
            rows = torch.randperm(128, generator=random)[:112]

            def closure(rows: Tensor = rows) -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x[rows]), y[rows])
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())

    return program(model, optimizer, run, losses, unseen, F.mse_loss)


zoo.healthy("lbfgs-with-a-closure", closures)


def plain(seed: int, model: nn.Module, task: Task, make, steps: int = 80, criterion=F.cross_entropy, schedule=None):
    """The usual loop, with whatever optimizer and schedule."""
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(steps), strict=False):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(loss.item())
            elif scheduler:
                scheduler.step()
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task, criterion)


zoo.healthy(
    "adafactor-0.02", lambda s: plain(s, Vision(24, 4, 1), grey(s), lambda p: torch.optim.Adafactor(p, lr=0.02), 100)
)
zoo.healthy(
    "warm-restarts-every-25-steps",
    lambda s: plain(
        s,
        Signal([4, 16, 24]),
        waves(s),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        100,
        schedule=lambda o: CosineAnnealingWarmRestarts(o, 25, eta_min=0.0),
    ),
)
zoo.healthy(
    "rate-falls-on-a-plateau",
    lambda s: plain(
        s,
        mlp([16, 48, 48, 1], nn.SiLU),
        regression(s),
        lambda p: torch.optim.Adam(p, lr=1e-2),
        150,
        F.mse_loss,
        lambda o: ReduceLROnPlateau(o, factor=0.5, patience=10),
    ),
)


def deep_rates(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Each tensor further down has 0.8 of the rate of the one above."""
    params = list(params)
    groups = [{"params": [p], "lr": 5e-3 * 0.8 ** (len(params) - 1 - i)} for i, p in enumerate(params)]
    return torch.optim.AdamW(groups)


zoo.healthy("rates-fall-by-0.8-per-tensor", lambda s: plain(s, torch_encoder(1, 24, 4), patches(s), deep_rates))

# --- accumulation and mixed precision


def mixed(seed: int, scale: float, micro: int) -> Program:
    """Scaled gradients, accumulated; a scale that is too high at first makes the scaler skip some steps."""
    task = patches(seed)
    model = torch_encoder(1, 24, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    losses: list[float] = []

    def run() -> None:
        batches = iter(task)
        for _ in range(60):
            for _ in range(micro):
                x, y = next(batches)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = F.cross_entropy(model(x), y) / micro
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item() * micro)

    return program(model, optimizer, run, losses, task, scaler=scaler)


zoo.healthy("mixed-precision-accumulates-2", lambda s: mixed(s, 2.0**16, 2))
zoo.healthy("mixed-precision-skips-its-first-steps", lambda s: mixed(s, 2.0**127, 1))

# --- gradients that are stopped on purpose


class SimSiam(nn.Module):
    """Two views predict each other, with the target's gradient stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.encoder(a), self.encoder(b)
        pa, pb = self.predictor(za), self.predictor(zb)
        return 1 - 0.5 * (F.cosine_similarity(pa, zb.detach()) + F.cosine_similarity(pb, za.detach())).mean()


def siamese(seed: int) -> Program:
    mix = torch.randn(6, 20, generator=drawn_once(seed, 21))

    def draw(random: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        shared = torch.randn(48, 6, generator=random) @ mix
        views = [shared + 0.8 * torch.randn(48, 20, generator=random) for _ in range(2)]
        return (views[0], views[1]), torch.zeros(48)

    model, task = SimSiam(), Task(seed, draw, F.cross_entropy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    losses: list[float] = []

    def run() -> None:
        for ((a, b), _), _ in zip(task, range(80), strict=False):
            loss = model(a, b)
            losses.append(step_from(loss, optimizer))

    return program(model, optimizer, run, losses, task, lambda out, _: out)


zoo.healthy("stop-gradient-between-views", siamese)


class Teaching(nn.Module):
    """A student, and a teacher that is a moving average of it."""

    def __init__(self) -> None:
        super().__init__()
        self.student = mlp([64, 48, 6], nn.GELU)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x.flatten(1))


def mean_teacher(seed: int) -> Program:
    model, task = Teaching(), grey(seed)
    optimizer = torch.optim.Adam(model.student.parameters(), lr=3e-3)
    noise = drawn_once(seed, 22)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            x = x.flatten(1)
            with torch.no_grad():
                goal = model.teacher(x + 0.1 * torch.randn(x.shape, generator=noise)).softmax(-1)
            out = model(x)
            loss = F.cross_entropy(out, y) + 0.3 * F.mse_loss(out.softmax(-1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                    slow.mul_(0.95).add_(fast, alpha=0.05)
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task)


zoo.healthy("teacher-follows-student", mean_teacher)


def truncated(seed: int) -> Program:
    """A long series in pieces; the state goes on and its gradient stops."""
    task = series(seed, length=48)
    model = SequenceModel(nn.LSTM(3, 24, batch_first=True), 3, every_step=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(20), strict=False):
            state = None
            for i in range(0, 48, 12):
                out, state = model.rnn(x[:, i : i + 12], state)
                state = tuple(part.detach() for part in state)
                loss = F.mse_loss(model.head(out), y[:, i : i + 12])
                losses.append(step_from(loss, optimizer))

    return program(model, optimizer, run, losses, task, F.mse_loss)


zoo.healthy("truncated-through-time", truncated)

# --- several losses, several players


class Multi(nn.Module):
    """A class, a picture and a number from shared features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.SiLU())
        self.kind, self.image, self.mass = nn.Linear(64, 6), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.kind(h), self.image(h), self.mass(h).squeeze(-1)


def unequal(seed: int) -> Program:
    """Three losses, of which one is a thousand times smaller than another."""
    task = grey(seed).changed(lambda x, y: (x, (y, x.flatten(1))))

    def loss(out: tuple[Tensor, Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        y, image = target
        mass = F.mse_loss(out[2], image.mean(1))
        return 10 * F.cross_entropy(out[0], y) + F.mse_loss(out[1], image) + 0.01 * mass

    return plain(seed, Multi(), task, lambda p: torch.optim.Adam(p, lr=2e-3), 80, loss)


zoo.healthy("losses-a-thousand-times-apart", unequal)


class Vae(nn.Module):
    """A small variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ELU(), nn.Linear(48, 12))
        self.decode = nn.Sequential(nn.Linear(6, 48), nn.ELU(), nn.Linear(48, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encode(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp() if self.training else mean
        return self.decode(code).view_as(x), mean, spread


def vae(seed: int) -> Program:
    """The prior's weight rises from 0: its share of the loss grows while the rest falls."""
    model, task = Vae(), pictures(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, _) in zip(range(120), task, strict=False):
            image, mean, spread = model(x)
            prior = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
            loss = F.mse_loss(image, x) + min(1.0, step / 100) * 0.005 * prior
            losses.append(step_from(loss, optimizer))

    return program(model, optimizer, run, losses, task, lambda out, x: F.mse_loss(out[0], x))


zoo.healthy("vae-prior-warms-up", vae)


class Wgan(nn.Module):
    """Generator and critic."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp([3, 32, 2], nn.ReLU), mlp([2, 32, 32, 1], nn.LeakyReLU)


def clamped(seed: int) -> Program:
    """The critic's weights are clamped after each of its steps, and it has several for one of the generator."""
    model = Wgan()
    g_opt = torch.optim.RMSprop(model.generator.parameters(), lr=1e-3)
    c_opt = torch.optim.RMSprop(model.critic.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(seed + 70)
    centre, losses = torch.tensor([1.5, -1.0]), []

    def run() -> None:
        for _ in range(50):
            for _ in range(3):
                real = centre + 0.3 * torch.randn(48, 2, generator=random)
                with torch.no_grad():
                    fake = model.generator(torch.randn(48, 3, generator=random))
                loss = model.critic(fake).mean() - model.critic(real).mean()
                c_opt.zero_grad()
                loss.backward()
                c_opt.step()
                for parameter in model.critic.parameters():
                    parameter.data.clamp_(-0.3, 0.3)
            g_loss = -model.critic(model.generator(torch.randn(48, 3, generator=random))).mean()
            g_opt.zero_grad()
            g_loss.backward()
            g_opt.step()
            losses.append(-loss.item())

    def score() -> float:
        with torch.no_grad():
            points = model.generator(torch.randn(256, 3, generator=drawn_once(seed, 71)))
        return (points.mean(0) - centre).norm().item()

    return Program(model=model, optimizer=[g_opt, c_opt], run=run, losses=losses, score=score)


# The last bias shifts both means alike: its gradient is zero.
zoo.healthy("wgan-clamps-its-critic", clamped, learns(idle=("critic.4.bias",)))


def every_other(seed: int) -> Program:
    """The encoder steps at every fourth batch, over all four; the head at each."""
    task = echo(seed, 8, 5, 8, 24, 1)
    model = SequenceModel(nn.GRU(8, 24, batch_first=True), 5, every_step=True)
    slow = torch.optim.Adam(model.rnn.parameters(), lr=5e-3)
    fast = torch.optim.Adam(model.head.parameters(), lr=5e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(120), task, strict=False):
            loss = token_loss(model(x)[:, 1:], y[:, 1:])
            loss.backward()
            fast.step()
            fast.zero_grad()
            if step % 4 == 3:
                slow.step()
                slow.zero_grad()
            losses.append(loss.item())

    score = held_out(model, task, lambda out, y: token_loss(out[:, 1:], y[:, 1:]))
    return Program(model=model, optimizer=[slow, fast], run=run, losses=losses, score=score)


zoo.healthy("encoder-steps-every-fourth-batch", every_other)

# --- rewards, labels, averages


def sparse(seed: int) -> Program:
    """Rewards are rare: in some batches nobody earns anything."""
    model = mlp([6, 32, 4], nn.Tanh)
    codes = torch.randn(4, 6, generator=drawn_once(seed, 7))
    random = torch.Generator().manual_seed(seed + 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []

    def run() -> None:
        for _ in range(150):
            state = torch.randn(24, 6, generator=random)
            logp = model(state).log_softmax(-1)
            action = torch.multinomial(logp.exp().detach(), 1, generator=random)
            pays = torch.rand(24, generator=random) < 0.15
            reward = ((action.squeeze(1) == (state @ codes.T).argmax(1)) & pays).float()
            loss = -(logp.gather(1, action).squeeze(1) * (reward - reward.mean())).mean()
            losses.append(step_from(loss, optimizer))

    def score() -> float:
        state = torch.randn(512, 6, generator=drawn_once(seed, 900))
        with torch.no_grad():
            return 1 - model(state).softmax(-1).gather(1, (state @ codes.T).argmax(1)[:, None]).mean().item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("rewards-are-rare", sparse)


def mostly_masked(seed: int) -> Program:
    """One position in twelve has a label, as in masked language modelling."""
    task = echo(seed, 12, 6, 8, 32, 1)
    chosen = drawn_once(seed, 23)

    def hide(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.rand(y.shape, generator=chosen) > 1 / 12
        hidden[:, 0] = True
        return x, y.masked_fill(hidden, -100)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)

    model = SequenceModel(nn.LSTM(8, 24, batch_first=True), 6, every_step=True)
    return plain(seed, model, task.changed(hide), lambda p: torch.optim.Adam(p, lr=1e-2), 100, loss)


zoo.healthy("one-label-in-twelve", mostly_masked)


def averaging(seed: int) -> Program:
    """Averages its weights beside the training, by torch's own class."""
    model, task = Signal([4, 16, 16], 6, nn.SiLU), waves(seed)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)

    def after(step: int) -> None:
        if step > 40:
            average.update_parameters(model)

    return fit(model, task, optimizer, 80, after=after)


zoo.healthy("averaged-model-beside", averaging)


def fixed_words(seed: int) -> Program:
    """Positions are fixed waves and words are frozen; the optimizer was given everything."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(18, 24).requires_grad_(False)
            angle = torch.arange(10)[:, None] / 10 ** torch.linspace(0, 2, 12)
            self.places = nn.Parameter(torch.cat([angle.sin(), angle.cos()], 1), requires_grad=False)
            self.layer = nn.TransformerEncoderLayer(24, 4, 48, 0.0, batch_first=True)
            self.head = nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(self.words(x) + self.places).mean(1))

    values = torch.randn(18, 5, generator=drawn_once(seed, 24))

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(18, (32, 10), generator=random)
        return x, values[x].mean(1).argmax(1)

    return plain(seed, Reader(), Task(seed, draw, F.cross_entropy), lambda p: torch.optim.AdamW(p, lr=3e-3), 80)


zoo.healthy("words-frozen-and-given-to-the-optimizer", fixed_words)


def resumed(seed: int) -> Program:
    """Weights of another run are loaded once, at the tenth step, and it converges on."""
    task = images(seed, 1, 8, 5, 32, 2.0)
    body = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 5)]
    model = nn.Sequential(*body)
    first = copy.deepcopy(model)
    plain(seed, first, images(seed, 1, 8, 5, 32, 2.0), lambda p: torch.optim.Adam(p, lr=3e-3), 100).run()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(60), task, strict=False):
            if step == 10:
                model.load_state_dict(first.state_dict())
            losses.append(train_step(model, optimizer, x, y))

    return program(model, optimizer, run, losses, images(seed, 1, 8, 5, 128, 2.0))


zoo.healthy("checkpoint-loaded-at-step-10", resumed)


def easy(seed: int) -> Program:
    """Solved after a few steps: the loss is next to nothing for most of the run."""
    codes = 3 * torch.eye(4, 12)

    def draw(random: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(4, (32,), generator=random)
        return codes[y] + 0.1 * torch.randn(32, 12, generator=random), y

    model = mlp([12, 32, 4], nn.ReLU)
    return plain(seed, model, Task(seed, draw, F.cross_entropy), lambda p: torch.optim.Adam(p, lr=1e-2), 120)


zoo.healthy("solved-after-a-few-steps", easy, keeps(math.log(4) / 100))
