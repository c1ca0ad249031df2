# ruff: noqa: D103 - a case is explained by its name
"""Programs from threads with a fault of their calls or of the size of their steps, each beside what helped.

Half: threads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import at_least, study
from validation.cases._everyday_loops import supervised, train
from validation.cases._plain_loops import harmed
from validation.cases._threads_loops import KINDS, Bert, Vgg, concrete, dense, garments, posts, rate_of, spectra, square
from validation.evidence.loops import (
    clipped_by,
    evaluating,
    learns,
    old_in,
    rate_below,
    repeats,
    stale,
    steps_above,
    steps_below,
    wiped,
)
from validation.labels import (
    CRAWLS,
    EARLY,
    ENDED,
    FAST,
    HEAPED,
    IDLE,
    LEARNS_NOTHING,
    NO_RATE,
    SUMMED,
    THROWN_OFF,
    TIGHT,
    UNDIVIDED,
    WIPED,
    WRECKED,
    WRONG_MODE,
)
from validation.programs import adam, held_out, sgd

zoo = Zoo("loop", half="threads", proof=learns(0.25))
adamw = torch.optim.AdamW
Body = Callable[[torch.optim.Optimizer, Tensor, int], None]


def bare(
    name: str, optimizer: Callable[[nn.Module], torch.optim.Optimizer], body: Body, steps: int
) -> Callable[[int], Program]:
    """A loop whose `body` gets the optimizer, the loss and the number of the step, and makes all calls."""

    def build(seed: int) -> Program:
        model, task, criterion = KINDS[name](seed)
        moves, losses = optimizer(model), []
        score = held_out(model, task, criterion)

        def run() -> None:
            for step, (x, y) in zip(range(steps), task, strict=False):
                loss = criterion(model(*x) if isinstance(x, tuple) else model(x), y)
                body(moves, loss, step)
                losses.append(loss.item())

        return Program(model=model, optimizer=moves, run=run, losses=losses, score=score)

    return build


def in_order(optimizer: torch.optim.Optimizer, loss: Tensor, _: int) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def never_cleared(optimizer: torch.optim.Optimizer, loss: Tensor, _: int) -> None:
    loss.backward()
    optimizer.step()


def cleared_too_soon(optimizer: torch.optim.Optimizer, loss: Tensor, _: int) -> None:
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()


def stepped_too_soon(optimizer: torch.optim.Optimizer, loss: Tensor, _: int) -> None:
    optimizer.zero_grad()
    optimizer.step()
    loss.backward()


# --- gradients that are not cleared, are gone, or come too late

for name, optimizer, steps in (
    # IBM/aihwkit#446: the first examples, SGD at 0.1 and a mean squared error, without zero_grad.
    ("concrete", lambda m: sgd(m, 0.1), 60),
    # FreedomIntelligence/TextClassificationBenchmark#20: a text classifier that never clears.
    ("posts", lambda m: adam(m, 5e-3), 60),
    # Threads on own character models in which zero_grad was lost: here of a GRU under SGD.
    ("poems", lambda m: sgd(m, 1.0), 80),
):
    zoo.sick(
        f"threads-{name}-never-cleared",
        bare(name, optimizer, never_cleared, steps),
        harmed(stale()),
        "missing_zero_grad",
        also={*HEAPED, *WRECKED, "SLOW", "NUMERICAL", "ENTROPY_COLLAPSE", "RANK_COLLAPSE", "momentum_too_long"},
        control=zoo.healthy(f"threads-{name}-cleared", bare(name, optimizer, in_order, steps)),
    )
for name, body, label, optimizer in (
    # Stack Overflow and discuss.pytorch.org, "loss does not change at all": zero_grad between backward and step.
    ("loads", cleared_too_soon, WIPED, lambda m: adam(m, 1e-2)),
    ("captions", cleared_too_soon, WIPED, lambda m: adam(m, 5e-3)),
    # The same threads: step stands before backward, after a zero_grad.
    ("beats", stepped_too_soon, EARLY, lambda m: adam(m, 5e-3)),
):
    zoo.sick(
        f"threads-{name}-{'cleared' if body is cleared_too_soon else 'stepped'}-too-soon",
        bare(name, optimizer, body, 60),
        harmed(wiped),
        *label,
        "never_moves",
        "missing_zero_grad",
        also={*IDLE, "zero_rate", "detached"},
        control=zoo.healthy(f"threads-{name}-calls-in-order", bare(name, optimizer, in_order, 60)),
    )


# Trainers with an optimizer for each part: only the first is cleared.
def halves(seed: int, fault: bool) -> Program:
    model = nn.ModuleDict({"encoder": dense(20, 40, 6), "decoder": dense(6, 40, 20)})
    first, second = (adam(part, 1e-2) for part in model.values())
    task, losses = spectra(seed), []

    def run() -> None:
        for _, (x, y) in zip(range(100), task, strict=False):
            first.zero_grad()
            if not fault:
                second.zero_grad()
            loss = F.mse_loss(model["decoder"](model["encoder"](x)), y)
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    def score() -> float:
        x, y = task.aside()
        with torch.no_grad():
            return F.mse_loss(model["decoder"](model["encoder"](x)), y).item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


zoo.beside(
    "spectra-both-parts-cleared",
    "spectra-decoder-never-cleared",
    halves,
    harmed(old_in("decoder")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("decoder", "decoder.0", "decoder.2"),
    also={*HEAPED, *WRECKED, "SLOW", "NUMERICAL"},
)

# --- schedules


def scheduled(
    name: str, made: Callable[[torch.optim.Optimizer], Any], per_batch: bool, steps: int = 80, every: int = 10
) -> Callable[[int], Program]:
    """Epochs of ten batches; a schedule that is moved on by the epoch or by the batch."""

    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = adam(model, rate_of(name))
        schedule = made(optimizer)
        seen: list[float] = []

        def loss_of(batch: tuple[Any, Any]) -> Tensor:
            value = supervised(model, loss)(batch)
            seen.append(value.item())
            return value

        def after(step: int) -> None:
            if per_batch or step % every == every - 1:
                plateau = isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
                schedule.step(*([sum(seen[-every:]) / every] if plateau else []))

        return study(model, task, optimizer, loss, steps, loss_of=loss_of, after=after)

    return build


kinds = torch.optim.lr_scheduler
for name, sound, fault, good, bad, limit, label in (
    # ivadomed/ivadomed#55: the schedule of a segmentation is moved in the loop over batches.
    (
        "vessels",
        "decay-by-epochs",
        "decay-by-batches",
        (lambda o: kinds.ExponentialLR(o, 0.7), False),
        (lambda o: kinds.ExponentialLR(o, 0.7), True),
        1e-5,
        (*ENDED, "rate_too_low", "zero_rate"),
    ),
    # FunctionLab/selene#115, RMeli/gnina-torch#57: the loss is watched with mode="max", so the rate falls each time it
    # improves.
    (
        "books",
        "plateau-of-a-falling-loss",
        "plateau-watched-as-a-maximum",
        (lambda o: kinds.ReduceLROnPlateau(o, "min", 0.1, 0), False),
        (lambda o: kinds.ReduceLROnPlateau(o, "max", 0.1, 0), False),
        1e-4,
        (*ENDED, "rate_too_low", "zero_rate"),
    ),
    # Threads on own warm-up lambdas: a whole-number division, which is zero until the warm-up ends.
    (
        "posts",
        "warm-up-by-division",
        "warm-up-by-whole-division",
        (lambda o: kinds.LambdaLR(o, lambda i: min(1.0, (i + 1) / 20)), True),
        (lambda o: kinds.LambdaLR(o, lambda i: min(1, i // 200)), True),
        1e-9,
        (*NO_RATE, "schedule_ended", "rate_too_low", "never_moves"),
    ),
    # discuss.pytorch.org, "LambdaLR sets my rate far too low": the function gives the rate itself, and it is multiplied
    # by the rate once more.
    (
        "rivers",
        "factor-of-the-rate",
        "rate-times-itself",
        (lambda o: kinds.LambdaLR(o, lambda i: 0.98**i), True),
        (lambda o: kinds.LambdaLR(o, lambda i: 2e-3 * 0.98**i), True),
        1e-4,
        (*CRAWLS, "schedule_ended", "zero_rate"),
    ),
):
    zoo.sick(
        f"threads-{name}-{fault}",
        scheduled(name, *bad),
        harmed(rate_below(limit)),
        *label,
        also={*IDLE, "first_loss_high", "VANISHING"},
        control=zoo.healthy(f"threads-{name}-{sound}", scheduled(name, *good)),
    )

# --- clipping


def clipped(name: str, limit: float, optimizer: Callable[[nn.Module], Any], steps: int = 80):
    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, optimizer(model), loss, steps, clip=limit)

    return build


for name, limit, rate, steps in (
    # Threads on "gradient clipping makes my LSTM stop learning": the norm is held at 0.001 under SGD.
    ("loads", 1e-3, 0.2, 90),
    # The limit is given the rate by mistake, and the gradient of a regression is cut to a thousandth.
    ("concrete", 1e-3, 0.05, 80),
):
    zoo.sick(
        f"threads-{name}-clipped-at-{limit:g}",
        clipped(name, limit, lambda m, r=rate: sgd(m, r), steps),
        harmed(clipped_by(20)),
        *TIGHT,
        "rate_too_low",
        also=IDLE,
        control=zoo.healthy(f"threads-{name}-clipped-at-1", clipped(name, 1.0, lambda m, r=rate: sgd(m, r), steps)),
    )

# --- modes and weights


# optuna/optuna#1725: eval() at the end of each epoch, train() only before the first. Here a check of the untrained
# network comes first, as sanity checks do, and the pictures are not centred.
def mode_lost(seed: int, fault: bool) -> Program:
    model, task = Vgg(p=0.2), garments(seed).mapped(lambda x: 25 * x + 60)
    model.train()

    def before(_: int) -> None:
        if not fault:
            model.train()

    def after(step: int) -> None:
        if step % 10 == 0:
            model.eval()

    model.eval()
    return study(model, task, sgd(model, 0.02, momentum=0.9), steps=110, before=before, after=after)


zoo.beside(
    "garments-train-in-every-epoch",
    "garments-train-only-before-the-first-check",
    mode_lost,
    harmed(evaluating),
    "evaluation_mode",
    also=WRONG_MODE,
)


# PKU-YuanGroup/Open-Sora-Plan#186, aqlaboratory/openfold#90, harubaru/waifu-diffusion#31: averaged weights are put in
# for validation, and what was trained is not put back.
def averaged(seed: int, fault: bool, name: str) -> Program:
    model, task, loss = KINDS[name](seed)
    average = copy.deepcopy(model)

    def after(step: int) -> None:
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.002)
        if step % 4 == 3:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.state_dict())
            if not fault:
                model.load_state_dict(kept)

    return study(model, task, adam(model, rate_of(name)), loss, 80, after=after)


for name in ("verses", "concrete"):
    zoo.beside(
        f"{name}-weights-put-back-after-validation",
        f"{name}-average-left-in-after-validation",
        lambda s, f, name=name: averaged(s, f, name),
        harmed(at_least(10, "overwritten")),
        "weights_overwritten",
        also={*LEARNS_NOTHING, "UNSTABLE", "same_batch", "rate_too_low", "schedule_ended"},
    )

# --- the same batch


# Threads on own data sets: __getitem__ forgets its index, so that every batch is the first one.
def first_rows(seed: int, fault: bool) -> Program:
    model, task = Bert(), posts(seed)
    data = [next(iter(task)) for _ in range(20)]
    batches = [data[0] if fault else batch for batch in data]
    score = held_out(model, task)
    return train(model, batches, supervised(model), adam(model, 5e-3), score, epochs=3)


# Threads on own diffusion models and augmentations: the seed is set inside the function that draws the data.
def seeded_inside(seed: int, fault: bool) -> Program:
    model, task = dense(7, 32, 32, 1), concrete(seed, batch=24)
    random = torch.Generator().manual_seed(seed)
    data = [next(iter(task)) for _ in range(10)]
    x, y = torch.cat([a for a, _ in data]), torch.cat([b for _, b in data])

    def drawn() -> tuple[Tensor, Tensor]:
        if fault:
            random.manual_seed(0)
        rows = torch.randint(len(x), (24,), generator=random)
        return x[rows], y[rows]

    score = held_out(model, concrete(seed, batch=256), square)
    batches = (drawn() for _ in range(80))
    return train(model, batches, supervised(model, square), adam(model, 5e-3), score, epochs=1)


for sound, fault_name, build in (
    ("posts-rows-by-index", "posts-first-rows-each-time", first_rows),
    ("concrete-seed-set-once", "concrete-seed-set-in-each-draw", seeded_inside),
):
    zoo.beside(sound, fault_name, build, harmed(repeats), "same_batch", also={"constant_targets", "batch_size"})

# --- sizes of steps


def sized(name: str, optimizer: Callable[[nn.Module], Any], steps: int, loss: Any = None) -> Callable[[int], Program]:
    def build(seed: int) -> Program:
        model, task, meant = KINDS[name](seed)
        return study(model, task, optimizer(model), loss or meant, steps, meant)

    return build


for name, bad, good, level, what in (
    # Threads on small transformers "predicting the same class": Adam at 0.2, and a fortieth of it helps.
    ("posts", lambda m: adam(m, 0.2), lambda m: adam(m, 5e-3), 0.3, "adam-at-0.2"),
    # Threads on regressions "loss goes to NaN after a few steps": SGD with momentum at 1.
    ("concrete", lambda m: sgd(m, 1.0, momentum=0.9), lambda m: sgd(m, 0.02, momentum=0.9), 0.5, "sgd-at-1"),
    # Threads on networks that do not learn, RMSprop at a rate of 0.5 after its decay was mistaken for its rate.
    (
        "beats",
        lambda m: torch.optim.RMSprop(m.parameters(), lr=0.5),
        lambda m: torch.optim.RMSprop(m.parameters(), lr=2e-3),
        0.5,
        "rmsprop-at-0.5",
    ),
):
    zoo.sick(
        f"threads-{name}-{what}",
        sized(name, bad, 70),
        harmed(steps_above(level)),
        *FAST,
        "loss_nonfinite",
        also={*THROWN_OFF, "first_loss_high", "SLOW"},
        control=zoo.healthy(f"threads-{name}-at-a-rate-that-suits-{what}", sized(name, good, 70)),
    )
for name, bad, good, level, what in (
    # Threads with the title "loss decreases extremely slowly": Adam at 1e-6 from scratch, as for fine-tuning.
    ("vessels", lambda m: adam(m, 1e-6), lambda m: adam(m, 5e-3), 1e-4, "adam-at-1e-6"),
    # "Adam works, SGD does not learn anything": the rate of Adam was kept for plain SGD.
    ("captions", lambda m: sgd(m, 1e-4), lambda m: sgd(m, 0.1, momentum=0.9), 1e-4, "sgd-at-the-rate-of-adam"),
):
    zoo.sick(
        f"threads-{name}-{what}",
        sized(name, bad, 80),
        harmed(steps_below(level)),
        *CRAWLS,
        also={*IDLE, "VANISHING"},
        control=zoo.healthy(f"threads-{name}-at-a-rate-that-suits", sized(name, good, 80)),
    )


def summed_tokens(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")


def summed_square(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out, y, reduction="sum")


for name, rate, wrong in (
    # Threads on own matrix factorization and autoencoders: reduction="sum" with the rate for a mean.
    ("books", 1.0, summed_square),
    ("poems", 0.5, summed_tokens),
):
    zoo.sick(
        f"threads-{name}-summed",
        sized(name, lambda m, r=rate: sgd(m, r), 90, wrong),
        harmed(steps_above(3.0)),
        *SUMMED,
        "loss_nonfinite",
        also={*THROWN_OFF, "first_loss_high"},
        control=zoo.healthy(f"threads-{name}-averaged", sized(name, lambda m, r=rate: sgd(m, r), 90)),
    )


# chrischoy/SpatioTemporalSegmentation#46 and threads on accumulation: the gradients of all parts add up, and the loss
# is not divided by their number.
def accumulated(seed: int, fault: bool, name: str, rate: float, parts: int) -> Program:
    model, task, loss = KINDS[name](seed)
    optimizer, losses = sgd(model, rate, momentum=0.9), []

    def run() -> None:
        for step, (x, y) in zip(range(30 * parts), task, strict=False):
            value = loss(model(x), y)
            (value if fault else value / parts).backward()
            if step % parts == parts - 1:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(value.item())

    score = held_out(model, task, loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


for name, rate, parts in (("posts", 0.2, 8), ("concrete", 0.05, 16)):
    zoo.beside(
        f"{name}-{parts}-parts-divided",
        f"{name}-{parts}-parts-not-divided",
        lambda s, f, name=name, rate=rate, parts=parts: accumulated(s, f, name, rate, parts),
        harmed(steps_above(2.0)),
        *UNDIVIDED,
        "summed_loss",
        "loss_nonfinite",
        also={*THROWN_OFF, "missing_zero_grad"},
    )
