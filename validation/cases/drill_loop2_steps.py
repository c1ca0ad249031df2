# ruff: noqa: D103 - a case is explained by its name
"""Orders, sizes, losses and data that are wrong, in loops of other shapes, and what only looks like it.

Half: drill.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation import labels
from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import Played, broken, keeps, learns
from validation.nets import DeepSet, SequenceModel, mlp
from validation.programs import adam, fit, held_out, sgd, train_step
from validation.tasks.bench import grains, sensors, songs, tides
from validation.tasks.everyday import heaps
from validation.tasks.sequences import token_loss
from validation.tasks.task import drawn_once
from validation.tasks.trades import documents, genres, homes, loads, paints, pulses, spots
from validation.tasks.vectors import regression

zoo = Zoo("loop", half="drill", proof=learns())


# --- the order of the loop


def ordered(seed: int, how: str) -> Program:
    """Recurrent, with clipping; zero_grad stands where `how` says."""
    model = SequenceModel(nn.LSTM(1, 24, batch_first=True), 1, every_step=True)
    task, optimizer, losses = loads(seed), adam(model, 1e-2), []

    def run() -> None:
        for (x, y), _ in zip(task, range(70), strict=False):
            if how == "first":
                optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if how == "before step":
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


in_order = zoo.healthy("loads-cleared-first", lambda s: ordered(s, "first"))
zoo.sick(
    "loads-set-to-zero-after-the-limit",
    lambda s: ordered(s, "before step"),
    broken(facts.wiped, less=0.02),
    *labels.WIPED,
    also=labels.IDLE,
    control=in_order,
)
zoo.sick(
    "loads-never-cleared-under-a-limit",
    lambda s: ordered(s, "never"),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=in_order,
)


def detached(seed: int, number: bool) -> Program:
    """A loss in parts that are logged; their sum is made of what was logged, or of the parts."""
    model = mlp([20, 48, 10], nn.GELU)
    task, optimizer, losses = genres(seed), adam(model, 5e-3), []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            optimizer.zero_grad()
            out = model(x)
            parts = {"fit": F.binary_cross_entropy_with_logits(out, y), "size": 1e-4 * out.square().mean()}
            kept = {name: part.detach() for name, part in parts.items()}
            loss = sum(kept.values()) if number else sum(parts.values())
            if number:
                loss.requires_grad_()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))

    score = held_out(model, task, F.binary_cross_entropy_with_logits)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.sick(
    "genres-sum-of-what-was-logged",
    lambda s: detached(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=zoo.healthy("genres-sum-of-the-parts", lambda s: detached(s, False)),
)


def moded(seed: int, left: bool) -> Program:
    """Every ten steps a score is taken; whether the mode comes back depends on an `if` that is never true."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Flatten())
    model.extend([nn.Linear(16 * 36, 8)])
    task = paints(seed)
    x, y = task.aside()

    def check(step: int) -> None:
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(x), y)
            if not left:
                model.train()

    return fit(model, task, adam(model, 2e-3), 90, after=check)


zoo.sick(
    "paints-scored-and-left-in-evaluation",
    lambda s: moded(s, True),
    broken(facts.evaluating),
    "evaluation_mode",
    control=zoo.healthy("paints-scored-and-back", lambda s: moded(s, False)),
)


def averaged(seed: int, swap: bool) -> Program:
    """Weights averaged over time, as in Polyak's; swapped in for each check, and swapped back or not."""
    model, task = mlp([9, 48, 1], nn.SiLU), homes(seed)
    slow = copy.deepcopy(model)

    def follow(_: int) -> None:
        with torch.no_grad():
            for p, q in zip(slow.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.01)
                if swap:
                    q.copy_(p)

    return fit(model, task, adam(model, 5e-3), 90, F.mse_loss, after=follow)


zoo.sick(
    "homes-slow-weights-take-over",
    lambda s: averaged(s, True),
    broken(facts.overwritten, less=0.5),
    "weights_overwritten",
    also={"SLOW", "loss_stuck", "rate_too_low"},
    control=zoo.healthy("homes-slow-weights-beside", lambda s: averaged(s, False)),
)


def same(seed: int, once: bool) -> Program:
    """A data set draws with a generator that it seeds for each item."""
    model, task, losses = mlp([18, 64, 7], nn.ReLU), grains(seed, batch=12), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        batches = iter(task)
        for _ in range(90):
            x, y = next(iter(grains(seed, batch=12))) if once else next(batches)
            losses.append(train_step(model, optimizer, x, y))

    score = held_out(model, grains(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.sick(
    "grains-a-generator-seeded-for-each-batch",
    lambda s: same(s, True),
    broken(facts.repeats, less=0.9),
    "same_batch",
    also={"VANISHING", "SLOW"},
    control=zoo.healthy("grains-one-generator", lambda s: same(s, False)),
)

# --- sizes


def rated(seed: int, lr: float, kind: str) -> Program:
    model = DeepSet([6, 48, 32], [32, 48, 6])
    kinds = {
        "sgd": lambda: sgd(model, lr, momentum=0.9),
        "adam": lambda: adam(model, lr),
        "radam": lambda: torch.optim.RAdam(model.parameters(), lr=lr),
        "adagrad": lambda: torch.optim.Adagrad(model.parameters(), lr=lr),
    }
    return fit(model, heaps(seed), kinds[kind](), 90, F.mse_loss)


gentle = zoo.healthy("heaps-adam-3e-3", lambda s: rated(s, 3e-3, "adam"))
zoo.sick(
    "heaps-adam-3",
    lambda s: rated(s, 3.0, "adam"),
    broken(facts.steps_above(1), less=0.5),
    *labels.FAST,
    also={*labels.WRECKED, "BOTTLENECK"},
    control=gentle,
)
zoo.sick(
    "heaps-radam-1e-8",
    lambda s: rated(s, 1e-8, "radam"),
    broken(facts.steps_below(1e-5), less=0.1),
    *labels.CRAWLS,
    also=labels.LEARNS_NOTHING,
    control=zoo.healthy("heaps-radam-1e-2", lambda s: rated(s, 1e-2, "radam")),
)
zoo.healthy("heaps-adagrad-0.02", lambda s: rated(s, 0.02, "adagrad"))


def scheduled(seed: int, kind: str) -> Program:
    """Warm-up and decay, by number of steps or of epochs."""
    model = nn.Sequential(nn.Conv1d(3, 24, 5), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 3))
    optimizer = adam(model, 3e-3)
    lambdas: dict[str, Callable[[int], float]] = {
        "right": lambda i: min((i + 1) / 10, (91 - i) / 80),
        "epochs": lambda i: max(0.0, 1 - i / 9),
        "never": lambda i: (i // 1000) / 10,
        "fast": lambda i: 0.5**i,
    }
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambdas[kind])
    task = tides(seed, 20).changed(lambda x, t: (x.transpose(1, 2), t[:, -1]))
    return fit(model, task, optimizer, 90, F.mse_loss, after=lambda _: schedule.step())


by_steps = zoo.healthy("tides-warm-up-and-decay", lambda s: scheduled(s, "right"))
zoo.sick(
    "tides-halved-in-each-step",
    lambda s: scheduled(s, "fast"),
    broken(facts.rate_below(1e-5), less=0.7),
    *labels.ENDED,
    "rate_too_low",
    "zero_rate",
    also=labels.IDLE,
    control=by_steps,
)
zoo.sick(
    "tides-warm-up-in-thousands",
    lambda s: scheduled(s, "never"),
    broken(facts.rate_below(1e-12), less=0.1),
    *labels.NO_RATE,
    "schedule_ended",
    also=labels.IDLE,
    control=by_steps,
)


def limited(seed: int, limit: float) -> Program:
    model = mlp([60, 64, 60], nn.Tanh)
    task = documents(seed)

    def clip(_: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), limit)

    return fit(model, task, sgd(model, 0.5), 90, task._loss, before=clip)


zoo.sick(
    "documents-limit-of-1e-5",
    lambda s: limited(s, 1e-5),
    broken(facts.clipped_by(100), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=zoo.healthy("documents-limit-of-1", lambda s: limited(s, 1.0)),
)


def collected(seed: int, divide: bool) -> Program:
    """Twenty-four small batches per step."""
    model, task, losses = mlp([14, 48, 6], nn.SiLU), sensors(seed, batch=8), []
    optimizer = sgd(model, 0.2, momentum=0.9)

    def run() -> None:
        batches = iter(task)
        for _ in range(40):
            optimizer.zero_grad()
            for _ in range(24):
                x, y = next(batches)
                loss = F.mse_loss(model(x), y)
                (loss / 24 if divide else loss).backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.sick(
    "sensors-24-small-batches-undivided",
    lambda s: collected(s, False),
    broken(facts.steps_above(1), less=0.3),
    *labels.UNDIVIDED,
    also={*labels.WRECKED, "BOTTLENECK", "NUMERICAL"},
    control=zoo.healthy("sensors-24-small-batches-divided", lambda s: collected(s, True)),
)

# --- the loss and the data


def priced(seed: int, keep: bool) -> Program:
    """Losses per sample, weighed by what each sample costs: a column against a row."""
    model, random = mlp([14, 48, 6], nn.SiLU), drawn_once(seed, 91)

    def weigh(x: Tensor, t: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        broken_sensor = torch.rand(len(t), 1, generator=random) < 0.5
        return x, (torch.where(broken_sensor, 3 * torch.randn(t.shape, generator=random), t), (~broken_sensor).float())

    def loss(z: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        each = (z - target[0]).square().mean(dim=1)
        return (each * (target[1].squeeze(1) if keep else target[1])).mean()

    def meant(z: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        return ((z - target[0]).square().mean(dim=1) * target[1].squeeze(1)).mean()

    return fit(model, sensors(seed).changed(weigh), adam(model, 1e-2), 90, loss, meant)


zoo.sick(
    "sensors-each-error-by-all-costs",
    lambda s: priced(s, False),
    broken(less=0.85),
    "broadcast",
    also=labels.LEARNS_NOTHING,
    control=zoo.healthy("sensors-each-error-by-its-cost", lambda s: priced(s, True)),
)


def spotted(seed: int, transposed: bool) -> Program:
    """Places (N, 2) against places with a dimension of one in between."""
    convs = [nn.Conv2d(1, 12, 3), nn.SiLU(), nn.Conv2d(12, 12, 3), nn.SiLU(), nn.Flatten(), nn.Linear(12 * 64, 2)]
    model = nn.Sequential(*convs)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return (z - (t[:, None] if transposed else t)).abs().mean()

    return fit(model, spots(seed), adam(model, 1e-3), 70, loss, F.l1_loss)


zoo.sick(
    "spots-with-a-dimension-in-between",
    lambda s: spotted(s, True),
    broken(less=0.5),
    "broadcast",
    also={*labels.LEARNS_NOTHING, "BOTTLENECK"},
    control=zoo.healthy("spots-of-one-shape", lambda s: spotted(s, False)),
)


def noted(seed: int, softened: bool) -> Program:
    """A model that answers with probabilities, for a loss that takes logits."""
    model = SequenceModel(nn.GRU(16, 32, batch_first=True), 12, every_step=True)
    table = nn.Embedding(12, 16)
    model = nn.Sequential(table, model, *([nn.Softmax(dim=-1)] if softened else []))
    return fit(model, songs(seed), adam(model, 1e-2), 90, token_loss)


zoo.sick(
    "songs-probabilities-for-logits",
    lambda s: noted(s, True),
    broken(facts.floor_above(1.5)),
    "double_softmax",
    also={"SATURATION", "VANISHING", *labels.LEARNS_NOTHING},
    control=zoo.healthy("songs-logits", lambda s: noted(s, False)),
)


def shuffled(seed: int, apart: bool) -> Program:
    """Targets drawn in another order than inputs."""
    model = nn.Sequential(nn.Conv1d(2, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 22, 5))
    task = pulses(seed)
    if apart:
        task = task.changed(lambda x, y: (x, y[torch.randperm(len(y))]))
    return fit(model, task, adam(model, 1e-3), 140, unseen=pulses(seed))


zoo.sick(
    "pulses-labels-in-another-order",
    lambda s: shuffled(s, True),
    broken(less=0.2),
    "loss_stuck",
    also={"SLOW", "UNSTABLE", "batch_size"},
    control=zoo.healthy("pulses-labels-in-order", lambda s: shuffled(s, False)),
)


def climbed(seed: int, sign: float) -> Program:
    """A score is to rise, and the sign of the loss was forgotten."""
    model = mlp([20, 48, 10], nn.SiLU)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return sign * (t * F.logsigmoid(z) + (1 - t) * F.logsigmoid(-z)).mean()

    return fit(model, genres(seed), adam(model, 1e-2), 70, loss, F.binary_cross_entropy_with_logits)


def grows_in_truth(played: Played) -> tuple[bool, str]:
    return not played.end < 2 * played.start, f"from {played.start:.3g} to {played.end:.3g}"


zoo.sick(
    "genres-likelihood-without-its-minus",
    lambda s: climbed(s, 1.0),
    broken(grows_in_truth),
    "loss_grows",
    "UNSTABLE",
    "EXPLODING",
    "rate_too_high",
    also={*labels.WRECKED, "first_loss_high"},
    control=zoo.healthy("genres-likelihood-with-its-minus", lambda s: climbed(s, -1.0)),
)


def scaled(seed: int, factor: float) -> Program:
    """One column is a time in milliseconds since 1970."""
    model, task = mlp([9, 48, 48, 1], nn.GELU), homes(seed)
    factors = torch.ones(9)
    factors[2] = factor
    shift = torch.zeros(9)
    shift[2] = factor if factor > 1 else 0.0
    return fit(model, task.mapped(lambda x: x * factors + shift), adam(model, 3e-3), 90, F.mse_loss)


zoo.sick(
    "homes-a-time-in-milliseconds",
    lambda s: scaled(s, 1e9),
    broken(lambda p: (not p.end < 0.7, f"ends at {p.end:.3g}")),
    "input_scales",
    also={"first_loss_high", "EXPLODING", "UNSTABLE", "NUMERICAL", "rate_too_high", *labels.WRECKED, "BOTTLENECK"},
    control=zoo.healthy("homes-a-time-in-years", lambda s: scaled(s, 1.0)),
)


def emptied(seed: int, right: bool) -> Program:
    """Labels below zero are left out, and numbering from minus one to minus seven leaves out all."""
    model = mlp([18, 48, 7], nn.GELU)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z, t if right else torch.full_like(t, -100), ignore_index=-100)

    return fit(model, grains(seed), adam(model, 5e-3), 60, loss, F.cross_entropy)


zoo.sick(
    "grains-all-labels-left-out",
    lambda s: emptied(s, False),
    broken(lambda p: (not math.isfinite(p.program.losses[0]), f"first loss {p.program.losses[0]:.3g}")),
    "all_masked",
    "NUMERICAL",
    "loss_nonfinite",
    also=labels.IDLE,
    control=zoo.healthy("grains-labels-counted", lambda s: emptied(s, True)),
)

# --- at the edge, and right


def faint(seed: int) -> Program:
    """A weak signal under noise ten times as strong: the loss hardly falls, what is meant does."""
    task = regression(seed, 12, 1, 64, noise=3.0)
    model = mlp([12, 32, 1], nn.Tanh)
    return fit(model, task, adam(model, 5e-3), 160, F.mse_loss, unseen=regression(seed, 12, 1, 512, noise=0.0))


zoo.healthy("regression-under-strong-noise", faint)


def floored(seed: int) -> Program:
    """Trained to the floor of the noise in the first third, and on."""
    task = regression(seed, 8, 1, 64, noise=0.7)
    model = mlp([8, 32, 1], nn.SiLU)
    return fit(model, task, adam(model, 2e-2), 240, F.mse_loss)


zoo.healthy("regression-at-the-floor-of-its-noise", floored)


def rarely_right(seed: int) -> Program:
    """Half of the labels are wrong."""
    random = drawn_once(seed, 12)

    def confuse(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape, generator=random) < 0.5
        return x, torch.where(wrong, torch.randint(5, y.shape, generator=random), y)

    model = nn.Sequential(nn.Conv1d(2, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 22, 5))
    return fit(model, pulses(seed).changed(confuse), adam(model, 1e-3), 140, unseen=pulses(seed))


zoo.healthy("pulses-half-of-the-labels-wrong", rarely_right)


def swa(seed: int) -> Program:
    """A mean of weights by torch's own class, beside the model, and a rate that stays high."""
    model, task = mlp([20, 48, 10], nn.GELU), genres(seed)
    mean = torch.optim.swa_utils.AveragedModel(model)
    return fit(
        model,
        task,
        sgd(model, 0.5, momentum=0.9),
        100,
        F.binary_cross_entropy_with_logits,
        after=lambda i: mean.update_parameters(model) if i > 50 else None,
    )


zoo.healthy("genres-mean-of-weights-by-torch", swa)


def scaled_up(seed: int) -> Program:
    """Loss scaling by hand: times 1024 before, gradients divided after."""
    model, task, losses = mlp([14, 48, 6], nn.SiLU), sensors(seed), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            (1024 * loss).backward()
            for p in model.parameters():
                p.grad.div_(1024)
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("sensors-loss-scaled-by-hand", scaled_up)


def fine(seed: int) -> Program:
    """Trained before, and tuned with a rate of 1e-5: little is left to learn."""
    model, task = mlp([18, 64, 7], nn.GELU), grains(seed)
    first = adam(model, 5e-3)
    for (x, y), _ in zip(task, range(200), strict=False):
        first.zero_grad()
        F.cross_entropy(model(x), y).backward()
        first.step()
    return fit(model, task, torch.optim.AdamW(model.parameters(), lr=1e-5), 80)


zoo.healthy("grains-tuned-with-1e-5", fine, keeps(0.6))


def sharpened(seed: int) -> Program:
    """Sharpness-aware: up the hill, a second gradient, back, and a step."""
    model, task, losses = mlp([18, 48, 7], nn.GELU), grains(seed), []
    optimizer = sgd(model, 0.2, momentum=0.9)

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
                away = [0.05 * p.grad / norm for p in model.parameters()]
                for p, a in zip(model.parameters(), away, strict=True):
                    p.add_(a)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, a in zip(model.parameters(), away, strict=True):
                    p.sub_(a)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


zoo.healthy("grains-sharpness-aware", sharpened)


def closure(seed: int) -> Program:
    """L-BFGS on one large batch, as it is meant to be used."""
    model, losses = mlp([9, 24, 1], nn.Tanh), []
    task = homes(seed, batch=256)
    x, y = next(iter(task))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    def run() -> None:
        for _ in range(25):
            losses.append(float(optimizer.step(step)))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("homes-lbfgs-on-all-data", closure)
