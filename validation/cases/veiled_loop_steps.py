# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Scripts whose loop is out of order or whose steps have the wrong size, their twins, and loops that are only unusual.

Half: veiled.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

from validation import labels
from validation.case import Program, Zoo
from validation.cases._veiled_loops import (
    Bills,
    Buoy,
    Choir,
    Hum,
    Mosaic,
    Shelf,
    Twins,
    Verse,
    chants,
    drifts,
    engines,
    finches,
    honeys,
    islands,
    ledgers,
    mottos,
    readers,
    rhymes,
    tiles,
    wardrobes,
)
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.nets import mlp
from validation.programs import adam, descend, fit, fit_by_closure, held_out, learn, plainly, script, sgd, train_step
from validation.tasks import token_loss

zoo = Zoo("loop", half="veiled", proof=learns())
Loss = Callable[[], Tensor]

# --- gradients that stay, or go too early


def by_epoch(seed: int, every: int) -> Program:
    """Gradients are cleared at the head of an epoch, which has more than one batch."""
    model = Mosaic()
    optimizer = sgd(model, 0.05, momentum=0.5)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        if i % every == 0:
            optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, tiles(seed), F.cross_entropy, body, 75)


each_batch = zoo.healthy("veiled-cleared-for-each-batch", lambda s: by_epoch(s, 1), learns(0.05))
zoo.sick(
    "veiled-cleared-for-each-epoch",
    lambda s: by_epoch(s, 25),
    broken(facts.stale()),
    "missing_zero_grad",
    also={*labels.HEAPED, *labels.WRECKED, "undivided_accumulation", "NUMERICAL"},
    control=each_batch,
)


def remainder(seed: int, wanted: int) -> Program:
    """The condition under which gradients are cleared asks for a remainder that there is not."""
    model, often = Buoy(), 2
    optimizer = adam(model, 1e-2)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        loss = loss_of()
        (loss / often).backward()
        if i % often == often - 1:
            optimizer.step()
        if i % often == wanted:
            optimizer.zero_grad()
        return loss

    return script(model, optimizer, drifts(seed), F.mse_loss, body, 120)


second_of_two = zoo.healthy("veiled-cleared-after-the-second-of-two", lambda s: remainder(s, 1))
zoo.sick(
    "veiled-cleared-after-a-second-that-never-is",
    lambda s: remainder(s, 2),
    broken(facts.stale()),
    "missing_zero_grad",
    also={*labels.HEAPED, *labels.WRECKED, "undivided_accumulation"},
    control=second_of_two,
)


def callback(seed: int, clears: bool) -> Program:
    """What is called behind `backward` is to free memory, and frees the gradients."""
    model = Hum()
    optimizer = adam(model, 8e-3)

    def free(_i: int) -> None:
        if clears:
            for p in model.parameters():
                p.grad = None

    return script(model, optimizer, engines(seed), F.cross_entropy, plainly(optimizer, before=free), 60)


kept_for_step = zoo.healthy("veiled-gradients-kept-for-the-step", lambda s: callback(s, False))
zoo.sick(
    "veiled-gradients-freed-behind-backward",
    lambda s: callback(s, True),
    broken(facts.wiped),
    *labels.WIPED,
    also={*labels.IDLE, "zero_rate", "detached"},
    control=kept_for_step,
)


def head_only(seed: int, whole: bool) -> Program:
    """Only the head's gradients are cleared, from the days when only the head was trained."""
    model = mlp([28, 40, 8, 40, 28], nn.GELU)
    optimizer = sgd(model, 0.3, momentum=0.5)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        (model if whole else model[6]).zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, wardrobes(seed), F.mse_loss, body, 80)


all_cleared = zoo.healthy("veiled-all-layers-cleared", lambda s: head_only(s, True), learns(0.05))
zoo.sick(
    "veiled-head-alone-cleared",
    lambda s: head_only(s, False),
    broken(facts.stale("0", "2", "4")),
    "partial_zero_grad",
    "missing_zero_grad",
    also={*labels.HEAPED, *labels.WRECKED, "undivided_accumulation"},
    control=all_cleared,
)


def of_two(seed: int, both: bool) -> Program:
    """Two optimizers step, one of them clears."""
    model = nn.ModuleDict({"twins": Twins()})
    first, second = sgd(model["twins"].one, 0.1, momentum=0.9), sgd(model["twins"].two, 0.1, momentum=0.9)
    task, losses = rhymes(seed), []

    def run() -> None:
        for ((a, b), t), _ in zip(task, range(70), strict=False):
            first.zero_grad()
            if both:
                second.zero_grad()
            loss = F.cross_entropy(model["twins"](a, b), t)
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    return Program(
        model=model, optimizer=[first, second], run=run, losses=losses, score=held_out(model["twins"], rhymes(seed))
    )


both_clear = zoo.healthy("veiled-both-optimizers-clear", lambda s: of_two(s, True))
zoo.sick(
    "veiled-one-optimizer-of-two-clears",
    lambda s: of_two(s, False),
    broken(facts.old_in("twins.two")),
    "partial_zero_grad",
    "missing_zero_grad",
    also={*labels.HEAPED, *labels.WRECKED, "undivided_accumulation"},
    control=both_clear,
)


def order(seed: int, late: bool) -> Program:
    """The step stands where the loss is computed, before the way back."""
    model = Bills()
    optimizer = adam(model, 8e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        if late:
            optimizer.step()
            loss.backward()
        else:
            loss.backward()
            optimizer.step()
        return loss

    return script(model, optimizer, ledgers(seed), F.binary_cross_entropy_with_logits, body, 90)


back_then_step = zoo.healthy("veiled-back-then-step", lambda s: order(s, False), learns(0.05))
zoo.sick(
    "veiled-step-then-back",
    lambda s: order(s, True),
    broken(facts.wiped),
    *labels.EARLY,
    also={*labels.IDLE, "detached"},
    control=back_then_step,
)

# --- a loss that leads nowhere


def hits(seed: int, hard: bool) -> Program:
    """The share of misses is what counts, so it is what is trained on; torch asks for a gradient and gets one."""
    model = mlp([20, 40, 7], nn.SiLU)
    optimizer = adam(model, 5e-3)

    def body(_i: int, x: Any, y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x).argmax(dim=1) != y).float().mean().requires_grad_() if hard else loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, finches(seed), F.cross_entropy, body, 60)


soft_hits = zoo.healthy("veiled-trains-on-logarithms-of-chances", lambda s: hits(s, False))
zoo.sick(
    "veiled-trains-on-the-share-of-misses",
    lambda s: hits(s, True),
    broken(facts.nothing_comes(), less=0.05),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=soft_hits,
)


def stored(seed: int, numbers: bool) -> Program:
    """The parts of a loss are kept as numbers and put together again."""
    model = Choir()
    optimizer = adam(model, 5e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        parts = {"words": loss_of()}
        if numbers:
            parts = {name: torch.tensor(part.item(), requires_grad=True) for name, part in parts.items()}
        loss = sum(parts.values())
        loss.backward()
        optimizer.step()
        return loss

    return script(model, optimizer, chants(seed), token_loss, body, 50)


as_tensors = zoo.healthy("veiled-parts-of-the-loss-as-tensors", lambda s: stored(s, False))
zoo.sick(
    "veiled-parts-of-the-loss-as-numbers",
    lambda s: stored(s, True),
    broken(facts.nothing_comes(), less=0.05),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=as_tensors,
)

# --- rates


def warm(seed: int, whole: bool) -> Program:
    """Warm-up by a share of the steps that is computed by whole numbers: it is 0 until it is 1."""
    model = Hum()
    optimizer = adam(model, 8e-3)
    schedule = LambdaLR(optimizer, lambda t: (t + 1) // 200 if whole else min(1.0, (t + 1) / 20))
    return script(model, optimizer, engines(seed), F.cross_entropy, plainly(optimizer, lambda _i: schedule.step()), 60)


by_fractions = zoo.healthy("veiled-warm-up-by-fractions", lambda s: warm(s, False))
zoo.sick(
    "veiled-warm-up-by-whole-numbers",
    lambda s: warm(s, True),
    broken(facts.rate_below(1e-12), less=0.01),
    *labels.NO_RATE,
    "schedule_ended",
    "rate_too_low",
    also=labels.IDLE,
    control=by_fractions,
)


def polynomial(seed: int, per: int) -> Program:
    """A rate that falls to nothing over eight epochs, and is told of each batch."""
    model = Bills()
    optimizer = adam(model, 1e-2)
    schedule = PolynomialLR(optimizer, total_iters=8)

    def after(i: int) -> None:
        if i % per == per - 1:
            schedule.step()

    loss = F.binary_cross_entropy_with_logits
    return script(model, optimizer, ledgers(seed), loss, plainly(optimizer, after), 96)


told_of_epochs = zoo.healthy("veiled-eight-epochs-told-of-epochs", lambda s: polynomial(s, 12), learns(0.05))
zoo.sick(
    "veiled-eight-epochs-told-of-batches",
    lambda s: polynomial(s, 1),
    broken(facts.rate_below(1e-12), less=0.8),
    *labels.ENDED,
    "zero_rate",
    also={*labels.IDLE, "rate_too_low"},
    control=told_of_epochs,
)


def halved(seed: int, factor: float) -> Program:
    """The rate is multiplied in each step by what was meant for an epoch."""
    model = Buoy(nn.LSTM)
    optimizer = adam(model, 1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)
    return script(model, optimizer, drifts(seed), F.mse_loss, plainly(optimizer, lambda _i: schedule.step()), 80)


slowly = zoo.healthy("veiled-rate-times-0.98-per-step", lambda s: halved(s, 0.98))
zoo.sick(
    "veiled-rate-times-0.4-per-step",
    lambda s: halved(s, 0.4),
    broken(facts.rate_below(1e-8), less=0.6),
    *labels.ENDED,
    "zero_rate",
    also={*labels.IDLE, "rate_too_low"},
    control=slowly,
)

# --- limits


def norm_limit(seed: int, limit: float) -> Program:
    model = Mosaic()
    optimizer = sgd(model, 0.1, momentum=0.9)
    before = lambda _i: nn.utils.clip_grad_norm_(model.parameters(), limit)  # noqa: E731
    return script(model, optimizer, tiles(seed), F.cross_entropy, plainly(optimizer, before=before), 70)


limit_two = zoo.healthy("veiled-norm-limit-2", lambda s: norm_limit(s, 2.0))
zoo.sick(
    "veiled-norm-limit-0.0002",
    lambda s: norm_limit(s, 2e-4),
    broken(facts.clipped_by(20), less=0.2),
    *labels.TIGHT,
    "rate_too_low",
    also=labels.IDLE,
    control=limit_two,
)


def value_limit(seed: int, limit: float) -> Program:
    """Each number is limited by itself; the limit was meant for the norm of unscaled gradients."""
    model = mlp([10, 36, 36, 1], nn.Tanh)
    optimizer = sgd(model, 0.1, momentum=0.9)
    before = lambda _i: nn.utils.clip_grad_value_(model.parameters(), limit)  # noqa: E731
    return script(model, optimizer, honeys(seed), F.mse_loss, plainly(optimizer, before=before), 80)


each_half = zoo.healthy("veiled-each-number-at-most-0.5", lambda s: value_limit(s, 0.5))
zoo.sick(
    "veiled-each-number-at-most-1e-6",
    lambda s: value_limit(s, 1e-6),
    broken(facts.clipped_by(20), less=0.2),
    *labels.TIGHT,
    "rate_too_low",
    also=labels.IDLE,
    control=each_half,
)

# --- modes and weights


def never_back(seed: int, back: bool) -> Program:
    """A look at unseen data after the fifth step; nobody goes back to training mode."""
    model, task = Hum(norm=True, drop=0.2), engines(seed)
    optimizer, (vx, vy) = adam(model, 8e-3), task.aside()

    def after(i: int) -> None:
        if i % 5 == 4:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(vx), vy)
            if back:
                model.train()

    return script(model, optimizer, task, F.cross_entropy, plainly(optimizer, after), 60)


goes_back = zoo.healthy("veiled-a-look-and-back-to-training", lambda s: never_back(s, True))
zoo.sick(
    "veiled-a-look-and-never-back",
    lambda s: never_back(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    also={"SLOW", "UNSTABLE", "EXPLODING"},
    control=goes_back,
)


def copied_back(seed: int, back: bool) -> Program:
    """The mean of weights over time is loaded into the model after each step, not only to be looked at."""
    model = mlp([20, 40, 40, 7], nn.SiLU)
    optimizer, mean = adam(model, 5e-3), copy.deepcopy(model)

    def after(_i: int) -> None:
        with torch.no_grad():
            for slow, fast in zip(mean.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.002)
        if back:
            model.load_state_dict(mean.state_dict())

    return script(model, optimizer, finches(seed), F.cross_entropy, plainly(optimizer, after), 60)


looked_at = zoo.healthy("veiled-mean-of-weights-kept-apart", lambda s: copied_back(s, False))
zoo.sick(
    "veiled-mean-of-weights-loaded-each-step",
    lambda s: copied_back(s, True),
    broken(facts.overwritten, less=0.3),
    "weights_overwritten",
    also={*labels.IDLE, "rate_too_low"},
    control=looked_at,
)


def rounded(seed: int, grid: float) -> Program:
    """Weights are rounded after each step, for a chip; smaller steps than half the grid are undone."""
    model = mlp([28, 40, 10, 40, 28], nn.ReLU)
    optimizer = adam(model, 4e-3)

    def after(_i: int) -> None:
        if grid:
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_((p / grid).round() * grid)

    return script(model, optimizer, wardrobes(seed), F.mse_loss, plainly(optimizer, after), 80)


not_rounded = zoo.healthy("veiled-weights-not-rounded", lambda s: rounded(s, 0.0))
zoo.sick(
    "veiled-weights-rounded-each-step",
    lambda s: rounded(s, 0.0625),
    broken(facts.overwritten, less=0.6),
    "weights_overwritten",
    also={*labels.IDLE, "DEAD", "lost_updates", "VANISHING"},
    control=not_rounded,
)


def first_again(seed: int, anew: bool) -> Program:
    """The loader is asked for its first batch in each step, without a shuffle."""
    x, y = next(iter(finches(seed, batch=560, noise=1.4)))
    model, losses = mlp([20, 64, 7], nn.ReLU), []
    optimizer, loader = adam(model, 8e-3), DataLoader(TensorDataset(x, y), 56)

    def run() -> None:
        batches = iter(loader)
        for _ in range(60):
            if anew:
                batches = iter(loader)
            rows, targets = next(batches, (None, None))
            if rows is None:
                batches = iter(loader)
                rows, targets = next(batches)
            losses.append(train_step(model, optimizer, rows, targets))

    score = held_out(model, finches(seed, batch=256, noise=1.4))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


in_turn = zoo.healthy("veiled-batches-in-turn", lambda s: first_again(s, False))
zoo.sick(
    "veiled-first-batch-of-the-loader-again",
    lambda s: first_again(s, True),
    broken(facts.repeats, less=0.95),
    "same_batch",
    also={"LOW_RANK", "VANISHING", "SLOW", "BOTTLENECK", "DEAD"},
    control=in_turn,
)


def buffer(seed: int, filled: bool) -> Program:
    """Batches are copied into a buffer; the copy stands outside of the loop."""
    model, task = Mosaic(), tiles(seed, noise=1.3)
    optimizer, losses = adam(model, 8e-3), []

    def run() -> None:
        batches = iter(task)
        x, y = (each.clone() for each in next(batches))
        for _ in range(60):
            if filled:
                new, targets = next(batches)
                x.copy_(new)
                y.copy_(targets)
            losses.append(train_step(model, optimizer, x, y))

    return Program(
        model=model,
        optimizer=optimizer,
        run=run,
        losses=losses,
        score=held_out(model, tiles(seed, batch=128, noise=1.3)),
    )


filled_anew = zoo.healthy("veiled-buffer-filled-for-each-step", lambda s: buffer(s, True))
zoo.sick(
    "veiled-buffer-filled-once",
    lambda s: buffer(s, False),
    broken(facts.repeats, less=0.9),
    "same_batch",
    also={"LOW_RANK", "VANISHING", "SLOW", "BOTTLENECK", "DEAD"},
    control=filled_anew,
)

# --- steps that are too large or too small


def choir_rate(seed: int, lr: float) -> Program:
    model = Choir()
    return fit(model, chants(seed), torch.optim.AdamW(model.parameters(), lr), 60, token_loss)


choir_right = zoo.healthy("veiled-choir-adamw-0.005", lambda s: choir_rate(s, 5e-3))
zoo.sick(
    "veiled-choir-adamw-2",
    lambda s: choir_rate(s, 2.0),
    broken(facts.steps_above(1), less=0.5),
    *labels.FAST,
    also={*labels.LOST, *labels.WRECKED, "decay_dominates"},
    control=choir_right,
)


def shelf_rate(seed: int, lr: float) -> Program:
    model = mlp([10, 40, 40, 1], nn.ReLU)
    return fit(model, honeys(seed), sgd(model, lr, nesterov=True, momentum=0.9), 60, F.mse_loss)


honey_right = zoo.healthy("veiled-honey-nesterov-0.02", lambda s: shelf_rate(s, 0.02), learns(0.05))
zoo.sick(
    "veiled-honey-nesterov-4",
    lambda s: shelf_rate(s, 4.0),
    broken(facts.steps_above(1), less=0.3),
    *labels.FAST,
    "loss_nonfinite",
    also={*labels.LOST, *labels.WRECKED},
    control=honey_right,
)


def hum_rate(seed: int, lr: float) -> Program:
    model = Hum()
    return fit(model, engines(seed), torch.optim.RMSprop(model.parameters(), lr), 60)


hum_right = zoo.healthy("veiled-hum-rmsprop-0.003", lambda s: hum_rate(s, 3e-3))
zoo.sick(
    "veiled-hum-rmsprop-3e-9",
    lambda s: hum_rate(s, 3e-9),
    broken(facts.steps_below(3e-6), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=hum_right,
)


def buoy_rate(seed: int, lr: float) -> Program:
    model = Buoy()
    return fit(model, drifts(seed), sgd(model, lr), 80, F.mse_loss)


buoy_right = zoo.healthy("veiled-buoy-sgd-0.5", lambda s: buoy_rate(s, 0.5))
zoo.sick(
    "veiled-buoy-sgd-5e-6",
    lambda s: buoy_rate(s, 5e-6),
    broken(facts.steps_below(3e-6), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=buoy_right,
)


def syllables(seed: int, reduction: str) -> Program:
    """The loss of 320 syllables is added up."""
    model = nn.Sequential(nn.Embedding(15, 20), nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 15))

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), t.flatten(), reduction=reduction)

    return fit(model, chants(seed), sgd(model, 0.5, momentum=0.9), 60, loss, token_loss)


syllable_mean = zoo.healthy("veiled-mean-over-syllables", lambda s: syllables(s, "mean"))
zoo.sick(
    "veiled-sum-over-syllables",
    lambda s: syllables(s, "sum"),
    broken(facts.steps_above(1), less=0.6),
    *labels.SUMMED,
    also={*labels.LOST, *labels.WRECKED},
    control=syllable_mean,
)


def parts(seed: int, divide: bool) -> Program:
    """Twenty parts of a batch per step."""
    model, count = mlp([20, 40, 7], nn.ReLU), 20
    optimizer = sgd(model, 0.5, momentum=0.9)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        loss = loss_of()
        (loss / count if divide else loss).backward()
        if (i + 1) % count == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    task = finches(seed, batch=8, noise=1.5)
    return script(model, optimizer, task, F.cross_entropy, body, 30 * count, unseen=finches(seed, batch=256, noise=1.5))


twentieths = zoo.healthy("veiled-twenty-parts-divided", lambda s: parts(s, True))
zoo.sick(
    "veiled-twenty-parts-undivided",
    lambda s: parts(s, False),
    broken(facts.steps_above(1), less=0.7),
    *labels.UNDIVIDED,
    also={*labels.LOST, *labels.WRECKED, "summed_loss"},
    control=twentieths,
)

# --- look alike and are right


def summed_few(seed: int) -> Program:
    """A sum over two numbers per sample, a mean over samples, and a rate that suits it."""
    model = Buoy()
    loss = lambda y, t: (y - t).square().sum(dim=2).mean()  # noqa: E731
    return fit(model, drifts(seed), adam(model, 1e-2), 60, loss)


zoo.healthy("veiled-sum-over-two-numbers", summed_few)


def undivided_on_purpose(seed: int) -> Program:
    """Four parts are added up, and the rate is a quarter of the usual one."""
    model, count = mlp([20, 40, 7], nn.GELU), 4
    optimizer = sgd(model, 0.02, momentum=0.9)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        loss = loss_of()
        loss.backward()
        if (i + 1) % count == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        return loss

    return script(
        model, optimizer, finches(seed, batch=16), F.cross_entropy, body, 240, unseen=finches(seed, batch=256)
    )


zoo.healthy("veiled-four-parts-added-at-a-quarter-of-the-rate", undivided_on_purpose)


def restarts(seed: int) -> Program:
    """The rate falls to nothing and starts anew three times."""
    model = Mosaic()
    optimizer = sgd(model, 0.1, momentum=0.9)
    schedule = CosineAnnealingWarmRestarts(optimizer, 25)
    return script(model, optimizer, tiles(seed), F.cross_entropy, plainly(optimizer, lambda _i: schedule.step()), 75)


zoo.healthy("veiled-three-warm-restarts", restarts)


def one_cycle(seed: int) -> Program:
    """Up, down, and far below the start, by one cycle of rate and momentum."""
    model = Hum(norm=True)
    optimizer = sgd(model, 0.05, momentum=0.9)
    schedule = OneCycleLR(optimizer, 0.1, total_steps=61)
    return script(model, optimizer, engines(seed), F.cross_entropy, plainly(optimizer, lambda _i: schedule.step()), 60)


zoo.healthy("veiled-one-cycle", one_cycle)


def from_nothing(seed: int) -> Program:
    """Warm-up that starts at exactly 0, then a fall to exactly 0 at the last step."""
    model, steps = Choir(), 70
    optimizer = torch.optim.AdamW(model.parameters(), 8e-3, weight_decay=0.01)
    schedule = LambdaLR(optimizer, lambda t: t / 10 if t < 10 else (steps - t) / (steps - 10))
    return script(model, optimizer, chants(seed), token_loss, plainly(optimizer, lambda _i: schedule.step()), steps)


zoo.healthy("veiled-from-0-up-and-back-to-0", from_nothing)


def in_sequence(seed: int) -> Program:
    """A tenth of the rate, a line up, then half a cosine, by schedules in a row."""
    model = Verse()
    optimizer = torch.optim.NAdam(model.parameters(), 1e-2)
    schedule = SequentialLR(
        optimizer,
        [ConstantLR(optimizer, 0.1, 8), LinearLR(optimizer, 0.1, total_iters=8), CosineAnnealingLR(optimizer, 60)],
        [8, 16],
    )
    return script(model, optimizer, mottos(seed), F.cross_entropy, plainly(optimizer, lambda _i: schedule.step()), 76)


zoo.healthy("veiled-three-schedules-in-a-row", in_sequence)


def plateau(seed: int) -> Program:
    """The rate is cut where unseen data does not improve, and training goes on."""
    model, task = mlp([10, 40, 1], nn.Tanh), honeys(seed, noise=0.5)
    optimizer, (vx, vy) = adam(model, 3e-2), honeys(seed).aside()
    schedule = ReduceLROnPlateau(optimizer, patience=2, factor=0.5)

    def after(i: int) -> None:
        if i % 10 == 9:
            model.eval()
            with torch.no_grad():
                schedule.step(F.mse_loss(model(vx), vy))
            model.train()

    return script(model, optimizer, task, F.mse_loss, plainly(optimizer, after), 100, unseen=honeys(seed))


zoo.healthy("veiled-rate-cut-on-a-plateau", plateau)


def often_limited(seed: int) -> Program:
    """A limit that is hit in nearly every early step and more rarely later."""
    model = Buoy(nn.RNN)
    optimizer = adam(model, 8e-3)
    before = lambda _i: nn.utils.clip_grad_norm_(model.parameters(), 0.3)  # noqa: E731
    return script(model, optimizer, drifts(seed), F.mse_loss, plainly(optimizer, before=before), 70)


zoo.healthy("veiled-norm-limit-0.3-with-adam", often_limited)


def mean_of_weights(seed: int) -> Program:
    """A mean over time answers the look at unseen data: it is swapped in and the weights are put back."""
    model, task = mlp([20, 40, 7], nn.GELU), finches(seed)
    optimizer, (vx, vy), losses = adam(model, 5e-3), task.aside(), []
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def run() -> None:
        for (x, y), i in zip(task, range(65), strict=False):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            mean.update_parameters(model)
            losses.append(loss.item())
            if i % 20 == 19:
                own = copy.deepcopy(model.state_dict())
                model.load_state_dict(mean.module.state_dict())
                with torch.no_grad():
                    F.cross_entropy(model(vx), vy)
                model.load_state_dict(own)

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, finches(seed)))


zoo.healthy("veiled-mean-of-weights-swapped-in-for-a-look", mean_of_weights)


def resumes(seed: int) -> Program:
    """Halfway, everything is written to a file and read again, into the same objects."""
    model = Bills()
    optimizer = torch.optim.AdamW(model.parameters(), 8e-3)
    schedule = CosineAnnealingLR(optimizer, 90)

    def after(i: int) -> None:
        schedule.step()
        if i == 44:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            read = torch.load(file, weights_only=True)
            model.load_state_dict(read["model"])
            optimizer.load_state_dict(read["optimizer"])

    loss = F.binary_cross_entropy_with_logits
    return script(model, optimizer, ledgers(seed), loss, plainly(optimizer, after), 90)


zoo.healthy("veiled-written-and-read-halfway", resumes, learns(0.05))


def autocast(seed: int) -> Program:
    """The forward pass in bfloat16, with a limit on the norm."""
    model = Mosaic(norm=True)
    optimizer = adam(model, 8e-3)

    def body(_i: int, x: Any, y: Any, _loss_of: Loss) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return script(model, optimizer, tiles(seed), F.cross_entropy, body, 60)


zoo.healthy("veiled-tiles-by-autocast", autocast)


def scaled(seed: int) -> Program:
    """Losses are multiplied by a scaler, which divides before the step."""
    model = mlp([28, 40, 8, 40, 28], nn.SiLU)
    optimizer, scaler = adam(model, 5e-3), torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=30)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return script(model, optimizer, wardrobes(seed), F.mse_loss, body, 60, scaler=scaler)


zoo.healthy("veiled-losses-scaled-and-unscaled", scaled)


def by_closure(seed: int) -> Program:
    """A method of second order, which asks for the loss several times per step."""
    model, task = mlp([10, 24, 1], nn.Tanh), honeys(seed, batch=256)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe")
    return fit_by_closure(model, task, optimizer, 30, F.mse_loss, honeys(seed))


zoo.healthy("veiled-a-method-of-second-order", by_closure)


def alternating(seed: int) -> Program:
    """Tables of people and of books are trained in turn, five steps each."""
    model = Shelf()
    turns = [adam(model.person, 4e-2), adam(model.book, 4e-2)]

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer = turns[i // 5 % 2]
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return script(model, turns, readers(seed), F.mse_loss, body, 100)


zoo.healthy("veiled-people-and-books-in-turn", alternating)


def two_losses(seed: int) -> Program:
    """Two ways back into the same gradients before one step."""
    model = nn.ModuleDict({"body": mlp([28, 36, 12], nn.GELU), "back": nn.Linear(12, 28), "sum": nn.Linear(12, 1)})
    optimizer, task, losses = torch.optim.RAdam(model.parameters(), 2e-2), wardrobes(seed), []

    def run() -> None:
        for (x, _), _ in zip(task, range(70), strict=False):
            optimizer.zero_grad()
            h = F.gelu(model["body"](x))
            first = F.mse_loss(model["back"](h), x)
            first.backward(retain_graph=True)
            (0.1 * F.mse_loss(model["sum"](h), x.mean(dim=1, keepdim=True))).backward()
            optimizer.step()
            losses.append(first.item())

    x, _ = task.aside()
    score = lambda: F.mse_loss(model["back"](F.gelu(model["body"](x))), x).item()  # noqa: E731
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-two-ways-back-before-a-step", two_losses)


def noisy_gradients(seed: int) -> Program:
    """Gradients are limited and made noisy, for privacy."""
    model = mlp([20, 40, 7], nn.Tanh)
    optimizer, random = sgd(model, 0.1, momentum=0.9), torch.Generator().manual_seed(seed + 71)

    def before(_i: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            p.grad.add_(0.01 * torch.randn(p.shape, generator=random))

    return script(model, optimizer, finches(seed), F.cross_entropy, plainly(optimizer, before=before), 70)


zoo.healthy("veiled-gradients-limited-and-made-noisy", noisy_gradients)


def skipped(seed: int) -> Program:
    """Every fifth batch serves for the look at unseen data only: there is no step."""
    model = Hum()
    optimizer = adam(model, 8e-3, fused=True)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor | None:
        if i % 5 == 4:
            with torch.no_grad():
                loss_of()
            return None
        return descend(optimizer, loss_of)

    return script(model, optimizer, engines(seed), F.cross_entropy, body, 75)


zoo.healthy("veiled-every-fifth-batch-only-looked-at", skipped)


def lookahead(seed: int) -> Program:
    """Every sixth step the weights go halfway back to slow ones: a known method."""
    model = mlp([20, 40, 40, 7], nn.ReLU)
    optimizer, slow = adam(model, 8e-3), [p.detach().clone() for p in model.parameters()]

    def after(i: int) -> None:
        if i % 6 == 5:
            with torch.no_grad():
                for p, s in zip(model.parameters(), slow, strict=True):
                    s.lerp_(p, 0.5)
                    p.copy_(s)

    return script(model, optimizer, finches(seed), F.cross_entropy, plainly(optimizer, after), 72)


zoo.healthy("veiled-halfway-back-every-sixth-step", lookahead)


def unit_rows(seed: int) -> Program:
    """A table's rows are brought to length one after each step, as some recommenders do."""
    model = nn.ModuleDict({"table": nn.Embedding(40, 12), "read": nn.Linear(12, 5)})
    optimizer, task = adam(model, 2e-2), mottos(seed)

    def after(i: int) -> None:
        if i % 10 == 9:
            with torch.no_grad():
                model["table"].weight.copy_(F.normalize(model["table"].weight, dim=1))

    def error(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model["read"](4 * model["table"](x).mean(dim=1)), y)

    x, y = task.aside()
    return learn(model, optimizer, task, error, lambda: error(x, y).item(), 80, after=after)


zoo.healthy("veiled-rows-of-length-one-now-and-then", unit_rows)


def tiny_batches(seed: int) -> Program:
    """Four pictures per step, at a small rate."""
    model = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 1, 3, padding=1))
    loss = F.binary_cross_entropy_with_logits
    return fit(model, islands(seed, batch=4), adam(model, 1e-2), 100, loss, unseen=islands(seed, batch=48))


zoo.healthy("veiled-four-pictures-per-step", tiny_batches)


def small_set(seed: int) -> Program:
    """Two hundred rows, shuffled, read eight times over with dropout and decay."""
    x, y = next(iter(finches(seed, batch=200)))
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(TensorDataset(x, y), 20, shuffle=True, generator=order)
    model, losses = mlp([20, 64, 7], nn.ReLU, dropout=0.3), []
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=0.05)

    def run() -> None:
        for _ in range(8):
            for rows, targets in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(rows), targets, label_smoothing=0.1)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

    score = held_out(model, finches(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("veiled-two-hundred-rows-eight-times", small_set)


def frozen_statistics(seed: int) -> Program:
    """Fine-tuning with norms in evaluation mode, as is usual for small batches; all else trains."""
    model, task = Hum(norm=True), engines(seed, batch=8)
    with torch.no_grad():
        for (x, _), _ in zip(engines(seed + 1), range(10), strict=False):
            model(x)
    optimizer = adam(model, 4e-3)
    model.norm.eval()
    return fit(model, task, optimizer, 90, unseen=engines(seed, batch=128))


# The dropout stays in training mode, so this is not evaluation mode.
zoo.healthy("veiled-norms-keep-their-statistics", frozen_statistics)
