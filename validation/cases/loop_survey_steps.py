# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Programs after what users reported whose loop goes wrong, or steps too far or not far enough; their repaired twins.

Half: holdout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from validation import labels
from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import Played, broken, learns
from validation.nets.attention import LanguageModel, Vision, torch_encoder
from validation.nets.conv import Signal
from validation.nets.dense import Tabular, mlp
from validation.nets.policy import Shared
from validation.nets.recurrent import SequenceModel
from validation.nets.residual import Mixer
from validation.programs import clips, fit, held_out, program, step_from, train_step
from validation.tasks.rewards import chain, choices
from validation.tasks.sequences import markov, recall, token_loss
from validation.tasks.signals import grey, series, waves
from validation.tasks.task import Task, drawn_once
from validation.tasks.vectors import patches, table

zoo = Zoo("loop", half="holdout", proof=learns())
LOST = {*labels.THROWN_OFF, "EXPLORATION"}


# --- gradients that are not cleared, or at the wrong time


def remembering(seed: int, per_batch: bool) -> Program:
    """`zero_grad` stands one level further out than it should."""
    task = recall(seed, 8, 4, 8, 32)
    model = SequenceModel(nn.LSTM(8, 24, batch_first=True), 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses: list[float] = []

    def run() -> None:
        batches = iter(task)
        for _epoch in range(3):
            optimizer.zero_grad()
            for _ in range(30):
                x, y = next(batches)
                if per_batch:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

    return program(model, optimizer, run, losses, task)


lstm = zoo.healthy("lstm-cleared-per-batch", lambda s: remembering(s, True))
zoo.sick(
    "lstm-cleared-per-epoch",
    lambda s: remembering(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=lstm,
)


def dqn_like(seed: int, cleared: bool) -> Program:
    """Values of actions, smooth loss; the line that clears was lost in a merge."""
    task = chain(seed, 8, 4)
    model = mlp([8, 48, 48, 4], nn.ReLU)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses: list[float] = []

    def run() -> None:
        for (states, (action, reward)), _ in zip(task, range(150), strict=False):
            value = model(states[0]).gather(1, action[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(value, reward)
            if cleared:
                model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def score() -> float:
        (state, _), (action, reward) = task.aside()
        with torch.no_grad():
            return F.mse_loss(model(state).gather(1, action[:, None]).squeeze(1), reward).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


values = zoo.healthy("action-values-cleared", lambda s: dqn_like(s, True))
zoo.sick(
    "action-values-never-cleared",
    lambda s: dqn_like(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=values,
)


def scaled(seed: int, order: str) -> Program:
    """Mixed precision with a scaler; "clip" before "unscale" clips what is still scaled."""
    task = waves(seed)
    model = Signal([4, 16, 24])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if order == "clip first":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif order == "unscale first":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif order == "zero first":
                optimizer.zero_grad(set_to_none=False)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task, scaler=scaler)


mixed = zoo.healthy("mixed-precision-unscale-then-clip", lambda s: scaled(s, "unscale first"))
zoo.sick(
    "mixed-precision-clip-then-unscale",
    lambda s: scaled(s, "clip first"),
    broken(lambda p: facts.steps_below(1e-4)(p), less=0.2),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=mixed,
)
zoo.sick(
    "mixed-precision-zero-grad-before-step",
    lambda s: scaled(s, "zero first"),
    broken(facts.wiped, less=0.05),
    *labels.WIPED,
    also=labels.IDLE,
    control=mixed,
)


def limited(seed: int, limit: float) -> Program:
    """The limit is written in a file of settings, of another model."""
    task = series(seed)
    model = SequenceModel(nn.GRU(3, 24, batch_first=True), 3, every_step=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return fit(model, task, optimizer, 80, F.mse_loss, before=clips(model, limit))


limit_twin = zoo.healthy("series-clip-5", lambda s: limited(s, 5.0))
zoo.sick(
    "series-clip-3e-5",
    lambda s: limited(s, 3e-5),
    broken(facts.clipped_by(1e3), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=limit_twin,
)


class Pair(nn.Module):
    """Generator and critic of a small WGAN."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp([3, 24, 2], nn.Tanh), mlp([2, 24, 24, 1], nn.LeakyReLU)


def adversaries(seed: int, clear_critic: bool) -> Program:
    """The generator's pass leaves gradients in the critic, which have to be cleared before its own."""
    model = Pair()
    g_opt = torch.optim.Adam(model.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    c_opt = torch.optim.Adam(model.critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    random = torch.Generator().manual_seed(seed + 70)
    bce = nn.BCEWithLogitsLoss()
    centre, losses = torch.tensor([2.0, -1.0]), []

    def run() -> None:
        for _ in range(120):
            real = centre + 0.3 * torch.randn(48, 2, generator=random)
            fake = model.generator(torch.randn(48, 3, generator=random))
            if clear_critic:
                c_opt.zero_grad()
            c_loss = bce(model.critic(real), torch.ones(48, 1)) + bce(model.critic(fake.detach()), torch.zeros(48, 1))
            c_loss.backward()
            c_opt.step()
            g_opt.zero_grad()
            g_loss = bce(model.critic(fake), torch.ones(48, 1))
            g_loss.backward()
            g_opt.step()
            losses.append(c_loss.item())

    def score() -> float:
        with torch.no_grad():
            points = model.generator(torch.randn(256, 3, generator=drawn_once(seed, 71)))
        return (points.mean(0) - centre).norm().item()

    return Program(model=model, optimizer=[g_opt, c_opt], run=run, losses=losses, score=score)


def piles_up(played: Played) -> tuple[bool, str]:
    """At a step of the critic, `.grad` is not what its own pass alone has brought: that of old passes is in it."""
    steps = [s for s in played.steps if "critic.0.weight" in s.held]
    late = [s.held["critic.0.weight"] for s in steps[-20:]]
    early = [s.held["critic.0.weight"] for s in steps[:5]]
    ratio = sum(late) / 20 / (sum(early) / 5)
    return ratio > 3, f"gradients of the critic grow by {ratio:.2g}"


wgan = zoo.healthy("adversaries-both-cleared", lambda s: adversaries(s, True))
zoo.sick(
    "adversaries-critic-never-cleared",
    lambda s: adversaries(s, False),
    broken(piles_up),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("critic.0", "critic.2", "critic.4"),
    also=labels.HEAPED,
    control=wgan,
)


def frozen_order(seed: int, right: bool) -> Program:
    """Step and backward were exchanged when a scheduler was added."""
    task = patches(seed)
    model = Mixer(1, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    scheduler = CosineAnnealingLR(optimizer, 80, eta_min=3e-4)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if right:
                loss.backward()
            optimizer.step()
            scheduler.step()
            if not right:
                loss.backward()
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task)


mixer = zoo.healthy("mixer-backward-step-schedule", lambda s: frozen_order(s, True))
zoo.sick(
    "mixer-step-schedule-backward",
    lambda s: frozen_order(s, False),
    broken(facts.wiped, less=0.01),
    *labels.EARLY,
    also=labels.IDLE,
    control=mixer,
)


def collected(seed: int, as_numbers: bool) -> Program:
    """The losses of four micro-batches are collected and their mean goes back."""
    task = table(seed, batch=32)
    model = Tabular((40, 12), 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses: list[float] = []

    def run() -> None:
        batches = iter(task)
        for _ in range(50):
            parts = []
            for _ in range(4):
                x, y = next(batches)
                loss = F.cross_entropy(model(*x), y)
                parts.append(loss.item() if as_numbers else loss)
            total = torch.tensor(parts, requires_grad=True).mean() if as_numbers else torch.stack(parts).mean()
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            losses.append(total.item())

    return program(model, optimizer, run, losses, task)


stacked = zoo.healthy("micro-batch-losses-stacked", lambda s: collected(s, False))
zoo.sick(
    "micro-batch-losses-as-numbers",
    lambda s: collected(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=stacked,
)

# --- schedules


def fine_tuning(seed: int, total: int) -> Program:
    """Warm-up and linear decay over `total` steps, which is computed from the length of the data."""
    task = patches(seed, 8)
    model = torch_encoder(1, 24, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def rate(step: int) -> float:
        return min((step + 1) / max(1, min(10, total)), max(0.0, (total - step) / max(1, total)))

    scheduler = LambdaLR(optimizer, rate)
    losses: list[float] = []

    def run() -> None:
        model.train()
        for (x, y), _ in zip(task, range(80), strict=False):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task)


fine = zoo.healthy("fine-tuning-80-steps", lambda s: fine_tuning(s, 81))
zoo.sick(
    "fine-tuning-0-steps-in-the-schedule",
    lambda s: fine_tuning(s, 0),
    broken(facts.rate_below(1e-12), less=0.01),
    *labels.NO_RATE,
    "schedule_ended",
    also=labels.IDLE,
    control=fine,
)
zoo.sick(
    "fine-tuning-5-steps-in-the-schedule",
    lambda s: fine_tuning(s, 5),
    broken(facts.rate_below(1e-12, 0.8), less=0.6),
    *labels.ENDED,
    "zero_rate",
    also=labels.IDLE,
    control=fine,
)


def one_cycle(seed: int, length: int) -> Program:
    """The cycle is as long as the run, or ends long before it."""
    task = grey(seed)
    model = Vision(24, 4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=4e-3, total_steps=length, final_div_factor=1e5)

    def after(step: int) -> None:
        if step + 1 < length:
            scheduler.step()

    return fit(model, task, optimizer, 120, after=after)


cycle = zoo.healthy("one-cycle-over-the-run", lambda s: one_cycle(s, 120))
zoo.sick(
    "one-cycle-over-15-steps",
    lambda s: one_cycle(s, 15),
    broken(facts.rate_below(1e-7, 0.8), less=0.8),
    *labels.ENDED,
    also={*labels.IDLE, "rate_too_low"},
    control=cycle,
)

# --- modes


def epochs(seed: int, back: bool) -> Program:
    """`evaluate` switches to evaluation, and the loop never switches back."""
    task = patches(seed, 8)
    model = torch_encoder(1, 32, 4)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses: list[float] = []

    def evaluate() -> float:
        model.eval()
        x, y = task.aside()
        with torch.inference_mode():
            return (model(x).argmax(1) == y).float().mean().item()

    def run() -> None:
        model.train()
        batches, accuracy = iter(task), []
        for _epoch in range(6):
            if back:
                model.train()
            for _ in range(12):
                x, y = next(batches)
                loss = F.cross_entropy(model(x), y)
                losses.append(step_from(loss, optimizer))
            accuracy.append(evaluate())

    return program(model, optimizer, run, losses, task)


encoder = zoo.healthy("encoder-evaluates-and-trains-again", lambda s: epochs(s, True))
zoo.sick(
    "encoder-stays-in-evaluation-from-the-second-epoch",
    lambda s: epochs(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=encoder,
)


class Normed(nn.Module):
    """One-dimensional convolutions with batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(4, 16, 5, 2, 2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.BatchNorm1d(24)
        )
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(x)).mean(-1))


def pretrained(seed: int, train: bool) -> Program:
    """A model that a hub returns in evaluation mode."""
    task = waves(seed)
    model = Normed().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []

    def run() -> None:
        if train:
            model.train()
        for (x, y), _ in zip(task, range(80), strict=False):
            losses.append(train_step(model, optimizer, x, y))

    return program(model, optimizer, run, losses, task)


hub = zoo.healthy("from-a-hub-then-train", lambda s: pretrained(s, True))
zoo.sick(
    "from-a-hub-in-evaluation-mode",
    lambda s: pretrained(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=hub,
)

# --- weights that are overwritten, batches that repeat


def targets(seed: int, right: bool) -> Program:
    """Values against a slow target network; the copy between them goes the wrong way."""
    task = chain(seed, 8, 4)
    model = mlp([8, 48, 48, 4], nn.ReLU)
    slow = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses: list[float] = []

    def run() -> None:
        for step, ((state, following), (action, reward)) in zip(range(120), task, strict=False):
            with torch.no_grad():
                goal = reward + 0.5 * slow(following).amax(1)
            loss = F.smooth_l1_loss(model(state).gather(1, action[:, None]).squeeze(1), goal)
            losses.append(step_from(loss, optimizer))
            if step % 2 == 1:
                if right:
                    slow.load_state_dict(model.state_dict())
                else:
                    model.load_state_dict(slow.state_dict())

    def score() -> float:
        (state, following), (action, reward) = task.aside()
        with torch.no_grad():
            goal = reward + 0.5 * model(following).amax(1)
            return F.mse_loss(model(state).gather(1, action[:, None]).squeeze(1), goal).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


q_twin = zoo.healthy("target-follows-values", lambda s: targets(s, True))
zoo.sick(
    "values-follow-target",
    lambda s: targets(s, False),
    broken(
        lambda p: (sum(s.overwritten for s in p.steps) > 40, f"{sum(s.overwritten for s in p.steps)} times"), less=0.3
    ),
    "weights_overwritten",
    also=labels.LEARNS_NOTHING,
    control=q_twin,
)


def projected(seed: int, reset: bool) -> Program:
    """A penalty towards the old weights, written as a pull on the weights themselves, and far too strong."""
    task = markov(seed, 16, 10, 24)
    model = LanguageModel(16, 24, 2, 1)
    backup = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(90), strict=False):
            loss = token_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if reset:
                        parameter.mul_(0.5).add_(backup[name], alpha=0.5)
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task, token_loss)


free = zoo.healthy("weights-left-alone", lambda s: projected(s, False))
zoo.sick(
    "weights-pulled-back-after-each-step",
    lambda s: projected(s, True),
    broken(facts.overwritten, less=0.5),
    "weights_overwritten",
    also=labels.LEARNS_NOTHING,
    control=free,
)


def sliced(seed: int, moves: bool) -> Program:
    """Batches are cut by index, and the index does not move."""
    task = waves(seed, batch=640)
    x_all, y_all = next(iter(task))
    model = Signal([4, 12, 16], 6, nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses: list[float] = []

    def run() -> None:
        for step in range(120):
            i = (step % 40 if moves else 0) * 16
            xb, yb = x_all[i : i + 16], y_all[i : i + 16]
            losses.append(train_step(model, optimizer, xb, yb))

    return program(model, optimizer, run, losses, waves(seed, batch=256))


slices = zoo.healthy("slices-that-move", lambda s: sliced(s, True))
zoo.sick(
    "slices-that-stay",
    lambda s: sliced(s, False),
    broken(lambda p: (len(set(p.inputs)) == 1, f"{len(set(p.inputs))} batches"), less=0.95),
    "same_batch",
    control=slices,
)


def streamed(seed: int, anew: bool) -> Program:
    """A generator of batches that is called anew in every step; the first batch comes each time."""
    task = table(seed, batch=24)
    stored = [next(iter(task)) for _ in range(30)]
    model = Tabular((40, 12), 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses: list[float] = []

    def batches() -> Iterator:
        yield from stored

    def run() -> None:
        for _epoch in range(4):
            stream = batches()
            for _ in range(30):
                x, y = next(batches() if anew else stream)
                loss = F.cross_entropy(model(*x), y)
                losses.append(step_from(loss, optimizer))

    return program(model, optimizer, run, losses, table(seed, batch=256))


stream = zoo.healthy("stream-goes-on", lambda s: streamed(s, False))
zoo.sick(
    "stream-begins-anew-each-step",
    lambda s: streamed(s, True),
    broken(lambda p: (len(set(p.inputs)) == 1, f"{len(set(p.inputs))} batches"), less=0.8),
    "same_batch",
    control=stream,
)

# --- steps that are too large or too small


def rated(
    seed: int, model: nn.Module, task: Task, make: Callable, steps: int = 70, criterion=F.cross_entropy
) -> Program:
    """A loop by epochs with the loss averaged for the log."""
    optimizer = make(model.parameters())
    losses: list[float] = []

    def run() -> None:
        batches, done = iter(task), 0
        while done < steps:
            x, y = next(batches)
            model.zero_grad()
            out = model(*x) if isinstance(x, tuple) else model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            done += 1
            losses.append(loss.item())

    return program(model, optimizer, run, losses, task, criterion)


def seen(seed: int, lr: float) -> Program:
    return rated(seed, Vision(24, 4, 2), grey(seed), lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=0.05))


vision = zoo.healthy("vision-adamw-1e-3", lambda s: seen(s, 1e-3))
zoo.sick(
    "vision-adamw-2",
    lambda s: seen(s, 2.0),
    broken(facts.steps_above(3), less=0.3),
    *labels.FAST,
    also=LOST,
    control=vision,
)


def predicted(seed: int, lr: float) -> Program:
    model = SequenceModel(nn.LSTM(3, 24, batch_first=True), 3, every_step=True)
    return rated(seed, model, series(seed), lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9), 60, F.mse_loss)


lstm_series = zoo.healthy("series-lstm-sgd-0.1", lambda s: predicted(s, 0.1))
zoo.sick(
    "series-lstm-sgd-100",
    lambda s: predicted(s, 100.0),
    broken(facts.steps_above(3), less=0),
    *labels.FAST,
    also=LOST,
    control=lstm_series,
)
zoo.sick(
    "series-lstm-sgd-1e-6",
    lambda s: predicted(s, 1e-6),
    broken(facts.steps_below(1e-5), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=lstm_series,
)


def tabled(seed: int, lr: float) -> Program:
    return rated(seed, Tabular((40, 12), 8), table(seed), lambda p: torch.optim.Adam(p, lr=lr))


rows = zoo.healthy("table-adam-5e-3", lambda s: tabled(s, 5e-3))
zoo.sick(
    "table-adam-1e-9",
    lambda s: tabled(s, 1e-9),
    broken(facts.steps_below(1e-6), less=0.01),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=rows,
)


def policy(seed: int, lr: float) -> Program:
    """Advantage actor-critic on one-step episodes."""
    task = choices(seed, 8, 4)
    model = Shared(8, 4, 32)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=lr, alpha=0.99, eps=1e-5)
    random = torch.Generator().manual_seed(seed + 4)
    losses: list[float] = []

    def run() -> None:
        for (state, pay), _ in zip(task, range(120), strict=False):
            logits, value = model(state)
            logp = logits.log_softmax(-1)
            action = torch.multinomial(logp.exp().detach(), 1, generator=random)
            reward = (pay / pay.amax(1, keepdim=True)).gather(1, action).squeeze(1)
            advantage = reward - value.detach()
            loss = -(logp.gather(1, action).squeeze(1) * advantage).mean() + 0.5 * F.mse_loss(value, reward)
            loss = loss - 0.01 * -(logp.exp() * logp).sum(-1).mean()
            losses.append(step_from(loss, optimizer, model, 0.5))

    def lost(out: tuple[Tensor, Tensor], pay: Tensor) -> Tensor:
        return 1 - (out[0].softmax(-1) * pay / pay.amax(1, keepdim=True)).sum(1).mean()

    return program(model, optimizer, run, losses, task, lost)


a2c = zoo.healthy("actor-critic-2e-3", lambda s: policy(s, 2e-3))
zoo.sick(
    "actor-critic-3",
    lambda s: policy(s, 3.0),
    broken(facts.steps_above(3), less=0.5),
    *labels.FAST,
    also=LOST,
    control=a2c,
)


def summed(seed: int, reduction: str) -> Program:
    model = Signal([4, 16, 24])
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    program = rated(
        seed, model, waves(seed, batch=64), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9), 70, criterion
    )
    score = held_out(model, waves(seed, batch=64))
    return Program(model=model, optimizer=program.optimizer, run=program.run, losses=program.losses, score=score)


meaned = zoo.healthy("signal-sgd-mean", lambda s: summed(s, "mean"))
zoo.sick(
    "signal-sgd-sum",
    lambda s: summed(s, "sum"),
    broken(facts.steps_above(1), less=0.3),
    *labels.SUMMED,
    also=LOST,
    control=meaned,
)


def forecast(seed: int, total: bool) -> Program:
    """Errors are added up over samples and steps by hand."""
    model = SequenceModel(nn.GRU(3, 24, batch_first=True), 3, every_step=True)

    def own(out: Tensor, y: Tensor) -> Tensor:
        error = (out - y).square()
        return error.sum() if total else error.mean()

    program = rated(seed, model, series(seed), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8), 60, own)
    score = held_out(model, series(seed), F.mse_loss)
    return Program(model=model, optimizer=program.optimizer, run=program.run, losses=program.losses, score=score)


gru_mean = zoo.healthy("forecast-mean-by-hand", lambda s: forecast(s, False))
zoo.sick(
    "forecast-sum-by-hand",
    lambda s: forecast(s, True),
    broken(facts.steps_above(1), less=0.3),
    *labels.SUMMED,
    also=LOST,
    control=gru_mean,
)


def micro(seed: int, divide: bool) -> Program:
    """A language model with 32 micro-batches per step, after an example that had one."""
    task = markov(seed, 16, 8, 4)
    model = LanguageModel(16, 24, 2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses: list[float] = []

    def run() -> None:
        batches = iter(task)
        for _ in range(20):
            total = 0.0
            for _ in range(32):
                x, y = next(batches)
                loss = token_loss(model(x), y)
                if divide:
                    loss = loss / 32
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(total)

    return program(model, optimizer, run, losses, markov(seed, 16, 8, 64), token_loss)


micro_twin = zoo.healthy("language-model-32-micro-batches-divided", lambda s: micro(s, True))
zoo.sick(
    "language-model-32-micro-batches-undivided",
    lambda s: micro(s, False),
    broken(facts.steps_above(1), less=0.5),
    *labels.UNDIVIDED,
    also={*LOST, "summed_loss"},
    control=micro_twin,
)
