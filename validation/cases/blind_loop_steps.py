# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Scripts whose loop goes wrong, or steps too far or not far enough, and their repaired twins.

Half: blind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, PolynomialLR
from torch.utils.data import DataLoader, TensorDataset

from validation import labels
from validation.case import Program, Zoo
from validation.cases._blind_tasks import (
    cells,
    clauses,
    gratings,
    moods,
    plants,
    reversals,
    rhymes,
    scans,
    spectra,
    states,
    tides,
    tones,
    twins,
)
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.nets import mlp
from validation.nets.programs import Tagger
from validation.programs import adam, fit, fit_by_closure, held_out, sgd, step_from, train_step
from validation.tasks import Task, token_loss

zoo = Zoo("loop", half="blind", proof=learns())


class Runner:
    """Runs callbacks around the parts of a step; what they do is up to the script."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, loss: Callable[..., Tensor]):
        self.model, self.optimizer, self.task, self.loss = model, optimizer, task, loss
        self.callbacks: dict[str, list[Callable[[], Any]]] = {}
        self.history: list[float] = []

    def on(self, event: str, callback: Callable[[], Any]) -> Runner:
        self.callbacks.setdefault(event, []).append(callback)
        return self

    def emit(self, event: str) -> None:
        for callback in self.callbacks.get(event, ()):
            callback()

    def run(self, epochs: int, batches: int) -> None:
        stream = iter(self.task)
        for _ in range(epochs):
            self.emit("epoch_begin")
            for _ in range(batches):
                x, y = next(stream)
                self.emit("batch_begin")
                loss = self.loss(self.model(*x) if isinstance(x, tuple) else self.model(x), y)
                loss.backward()
                self.emit("before_step")
                self.optimizer.step()
                self.emit("after_step")
                self.history.append(loss.item())
            self.emit("epoch_end")

    def program(self, epochs: int = 4, batches: int = 20) -> Program:
        return Program(
            model=self.model,
            optimizer=self.optimizer,
            run=lambda: self.run(epochs, batches),
            losses=self.history,
            score=held_out(self.model, self.task, self.loss),
        )


# --- gradients that are not cleared, or at the wrong time


def hears() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(3, 16, 9, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    ).append(nn.Linear(24, 6))


def cleared(seed: int, event: str) -> Program:
    """The callback that clears gradients hangs on the epoch."""
    model = hears()
    runner = Runner(model, adam(model, 3e-3), tones(seed), F.cross_entropy)
    return runner.on(event, runner.optimizer.zero_grad).program()


each_batch = zoo.healthy("callback-clears-each-batch", lambda s: cleared(s, "batch_begin"))
zoo.sick(
    "callback-clears-each-epoch",
    lambda s: cleared(s, "epoch_begin"),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=each_batch,
)


def skipped(seed: int, nested: bool) -> Program:
    """`zero_grad` stands in the branch that prints, every tenth step."""
    model, task, losses = mlp([14, 48, 48, 1], nn.SiLU), plants(seed), []
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def run() -> None:
        for step, (x, y) in zip(range(100), task, strict=False):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if not nested:
                optimizer.zero_grad()
            if step % 10 == 0:
                losses.append(loss.item())
                if nested:
                    optimizer.zero_grad()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


unnested = zoo.healthy("cleared-beside-the-print", lambda s: skipped(s, False))
zoo.sick(
    "cleared-only-where-it-prints",
    lambda s: skipped(s, True),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=unnested,
)


def tidied(seed: int, event: str) -> Program:
    """A callback frees memory, gradients included; it hangs before or behind the step."""
    model = nn.Sequential(nn.Conv2d(3, 20, 3, 2), nn.SiLU(), nn.Conv2d(20, 24, 3), nn.SiLU(), nn.Flatten())
    model.append(nn.Linear(96, 6))
    runner = Runner(model, sgd(model, 0.1, momentum=0.9), gratings(seed), F.cross_entropy)

    def free() -> None:
        for parameter in model.parameters():
            parameter.grad = None

    return runner.on(event, free).program(4, 15)


behind = zoo.healthy("memory-freed-behind-the-step", lambda s: tidied(s, "after_step"))
zoo.sick(
    "memory-freed-before-the-step",
    lambda s: tidied(s, "before_step"),
    broken(facts.wiped, less=0.01),
    *labels.WIPED,
    also=labels.IDLE,
    control=behind,
)


class Sides(nn.Module):
    """A body for both of two measurements, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp([20, 48, 16], nn.SiLU), mlp([16, 24, 1], nn.SiLU)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.body(a) * self.body(b))


def partly(seed: int, whole: bool) -> Program:
    """The gradients of the body are cleared, where those of the model were meant."""
    model = Sides()
    runner = Runner(model, adam(model, 2e-3), twins(seed), lambda z, y: F.binary_cross_entropy_with_logits(z, y))
    return runner.on("batch_begin", (model if whole else model.body).zero_grad).program(4, 20)


whole = zoo.healthy("gradients-of-the-model-cleared", lambda s: partly(s, True), learns(0.05))
zoo.sick(
    "gradients-of-the-body-cleared",
    lambda s: partly(s, False),
    broken(facts.stale("head")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("head.0", "head.2"),
    also=labels.HEAPED,
    control=whole,
)


def train_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, early: bool) -> float:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    if early:
        optimizer.step()
        loss.backward()
    else:
        loss.backward()
        optimizer.step()
    return loss.item()


def stepped(seed: int, early: bool) -> Program:
    model, task, losses = mlp([40, 48, 8, 48, 40], nn.GELU), spectra(seed), []
    optimizer = adam(model, 5e-3)

    def run() -> None:
        for (x, y), _ in zip(task, range(70), strict=False):
            losses.append(train_batch(model, optimizer, x, y, early))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


late = zoo.healthy("spectra-backward-then-step", lambda s: stepped(s, False))
zoo.sick(
    "spectra-step-then-backward",
    lambda s: stepped(s, True),
    broken(facts.unmoved("0", "2", "4", "6"), less=0.01),
    *labels.EARLY,
    also=labels.IDLE,
    control=late,
)


def averaged(seed: int, numbers: bool) -> Program:
    """The mean over four small batches is taken of numbers, and made a tensor again."""
    model, losses = Tagger(nn.Embedding(12, 24), nn.GRU(24, 32, batch_first=True), 12, 32), []
    optimizer, task = adam(model, 1e-2), rhymes(seed, batch=8)

    def run() -> None:
        batches = iter(task)
        for _ in range(40):
            parts = [token_loss(model(x), y) for x, y in (next(batches) for _ in range(4))]
            if numbers:
                loss = torch.tensor(sum(part.item() for part in parts) / 4, requires_grad=True)
            else:
                loss = torch.stack(parts).mean()
            losses.append(step_from(loss, optimizer))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


of_tensors = zoo.healthy("mean-of-four-losses", lambda s: averaged(s, False))
zoo.sick(
    "mean-of-four-numbers",
    lambda s: averaged(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    also=labels.IDLE,
    control=of_tensors,
)

# --- rates and limits


def warmed(seed: int, whole_numbers: bool) -> Program:
    """The share of the warm-up that is done, by a division that keeps whole numbers only."""
    model, warmup = mlp([18, 56, 7], nn.ReLU), 500 if whole_numbers else 20
    optimizer = adam(model, 5e-3)
    scheduler = LambdaLR(optimizer, lambda t: min(1, (t + 1) // warmup if whole_numbers else (t + 1) / warmup))
    runner = Runner(model, optimizer, states(seed), F.cross_entropy)
    return runner.on("batch_begin", optimizer.zero_grad).on("after_step", scheduler.step).program(4, 20)


shares = zoo.healthy("warm-up-by-shares", lambda s: warmed(s, False))
zoo.sick(
    "warm-up-by-whole-numbers",
    lambda s: warmed(s, True),
    broken(facts.rate_below(1e-12), less=0.01),
    *labels.NO_RATE,
    also=labels.IDLE,
    control=shares,
)


def falling(seed: int, total: int) -> Program:
    """The rate falls to zero over so many steps; the number is that of the epochs."""
    model = nn.Sequential(
        nn.Conv2d(2, 20, 3, padding=1), nn.GELU(), nn.Conv2d(20, 20, 3, padding=1), nn.GELU(), nn.Conv2d(20, 2, 1)
    )
    optimizer = adam(model, 3e-3)
    scheduler = PolynomialLR(optimizer, total_iters=total, power=1.0)
    runner = Runner(model, optimizer, scans(seed, batch=16), F.mse_loss)
    return runner.on("batch_begin", optimizer.zero_grad).on("after_step", scheduler.step).program(5, 12)


per_step = zoo.healthy("rate-falls-over-all-steps", lambda s: falling(s, 60))
zoo.sick(
    "rate-falls-over-as-many-steps-as-epochs",
    lambda s: falling(s, 5),
    broken(facts.rate_below(1e-9, 0.6), less=0.7),
    *labels.ENDED,
    "zero_rate",
    also={*labels.IDLE, "rate_too_low"},
    control=per_step,
)


def limited(seed: int, limit: float) -> Program:
    """A limit for each number of the gradient, with a typing error in its exponent."""
    model = Tagger(nn.Identity(), nn.LSTM(2, 24, batch_first=True), 2, 24)
    runner = Runner(model, sgd(model, 0.3, momentum=0.9), tides(seed), F.mse_loss)
    runner.on("batch_begin", runner.optimizer.zero_grad)
    return runner.on("before_step", lambda: nn.utils.clip_grad_value_(model.parameters(), limit)).program(4, 18)


loose = zoo.healthy("limit-of-0.5-per-number", lambda s: limited(s, 0.5))
zoo.sick(
    "limit-of-5e-7-per-number",
    lambda s: limited(s, 5e-7),
    broken(facts.clipped_by(1e3), less=0.1),
    *labels.TIGHT,
    also={*labels.IDLE, "rate_too_low"},
    control=loose,
)

# --- modes, weights, batches


class Normed(nn.Module):
    """Clauses by their mean, with a batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.drop = nn.Linear(16, 48), nn.BatchNorm1d(48), nn.Dropout(0.3)
        self.mid, self.out = nn.Linear(48, 48), nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.mid(self.drop(F.gelu(self.norm(self.enter(x.mean(dim=1))))))))


def evaluated(seed: int, back: bool) -> Program:
    """Validation at the start of each epoch switches the mode, and nobody switches it back."""
    model, task = Normed(), clauses(seed)
    runner, (x, y) = Runner(model, adam(model, 3e-3), task, F.cross_entropy), task.aside()

    @torch.no_grad()
    def validate() -> None:
        model.eval()
        F.cross_entropy(model(x), y)
        if back:
            model.train()

    return runner.on("batch_begin", runner.optimizer.zero_grad).on("epoch_begin", validate).program(4, 20)


back = zoo.healthy("validation-and-back", lambda s: evaluated(s, True))
zoo.sick(
    "validation-and-no-way-back",
    lambda s: evaluated(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=back,
)


class Average:
    """A moving mean of the weights that can take their place."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.mean = model, {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.mean[name].lerp_(parameter, 0.02)

    @torch.no_grad()
    def take_over(self) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.mean[name])


def moving(seed: int, event: str | None) -> Program:
    """The moving mean takes the place of the weights after each step instead of at the end."""
    model = mlp([14, 64, 64, 1], nn.Tanh)
    runner, mean = Runner(model, adam(model, 3e-3), plants(seed), F.mse_loss), Average(model)
    runner.on("batch_begin", runner.optimizer.zero_grad).on("after_step", mean.update)
    return (runner.on(event, mean.take_over) if event else runner).program(5, 20)


aside = zoo.healthy("moving-mean-kept-aside", lambda s: moving(s, None))
zoo.sick(
    "moving-mean-takes-over-in-each-step",
    lambda s: moving(s, "after_step"),
    broken(facts.overwritten, less=0.7),
    "weights_overwritten",
    also={*labels.LEARNS_NOTHING, "rate_too_low"},
    control=aside,
)


def loaded(seed: int, anew: bool) -> Program:
    """`next(iter(loader))` in every step gives the first batch of a loader that does not shuffle."""
    x, y = next(iter(states(seed, batch=960)))
    loader = DataLoader(TensorDataset(x, y), batch_size=16)
    model, losses = mlp([18, 64, 64, 7], nn.ReLU), []
    optimizer = adam(model, 3e-3)

    def run() -> None:
        batches = iter(loader)
        for _ in range(60):
            rows, targets = next(iter(loader)) if anew else next(batches)
            losses.append(train_step(model, optimizer, rows, targets))

    score = held_out(model, states(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


streamed = zoo.healthy("loader-read-through", lambda s: loaded(s, False))
zoo.sick(
    "loader-begun-anew-in-each-step",
    lambda s: loaded(s, True),
    broken(facts.repeats, less=0.9),
    "same_batch",
    also={"LOW_RANK", "VANISHING", "SLOW", "BOTTLENECK", "DEAD"},
    control=streamed,
)

# --- steps that are too large or too small


def scaled(seed: int, devices: int) -> Program:
    """The rate grows with the batch over all devices, by a rule for another optimizer."""
    model = Normed()
    return fit(model, clauses(seed), adam(model, 3e-3 * devices), 60)


one_device = zoo.healthy("rate-for-one-device", lambda s: scaled(s, 1))
zoo.sick(
    "rate-for-1024-devices",
    lambda s: scaled(s, 1024),
    broken(facts.steps_above(3), less=0.5),
    *labels.FAST,
    also=labels.THROWN_OFF,
    control=one_device,
)


def cycled(seed: int, peak: float) -> Program:
    """One cycle of the rate, whose peak was read off the wrong axis."""
    model = Tagger(nn.Identity(), nn.GRU(5, 24, batch_first=True), 4, 24, last=True)
    optimizer = adam(model, 1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=peak, total_steps=81)
    runner = Runner(model, optimizer, moods(seed), F.cross_entropy)
    return runner.on("batch_begin", optimizer.zero_grad).on("after_step", scheduler.step).program(4, 20)


cycle = zoo.healthy("cycle-with-a-peak-of-0.02", lambda s: cycled(s, 0.02))
zoo.sick(
    "cycle-with-a-peak-of-20",
    lambda s: cycled(s, 20.0),
    broken(facts.steps_above(3), less=0.7),
    *labels.FAST,
    also=labels.THROWN_OFF,
    control=cycle,
)


def crawling(seed: int, lr: float) -> Program:
    """The rate of a fine-tuning recipe, for a net that starts from nothing."""
    model = nn.Sequential(nn.Conv2d(1, 12, 3, 1, 1), nn.SiLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.SiLU())
    model.append(nn.Conv2d(12, 1, 1))
    runner = Runner(model, sgd(model, lr, momentum=0.9), cells(seed), F.binary_cross_entropy_with_logits)
    return runner.on("batch_begin", runner.optimizer.zero_grad).program(3, 20)


walking = zoo.healthy("cells-sgd-0.3", lambda s: crawling(s, 0.3))
zoo.sick(
    "cells-sgd-2e-7",
    lambda s: crawling(s, 2e-7),
    broken(facts.steps_below(1e-6), less=0.05),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=walking,
)


def added(seed: int, reduction: str) -> Program:
    """A loss per token, added up over tokens and rows."""
    model = nn.Sequential(nn.Embedding(9, 24), nn.Flatten(1), mlp([192, 64, 72], nn.GELU), nn.Unflatten(1, (8, 9)))

    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction=reduction)

    return fit(model, reversals(seed), sgd(model, 0.5, momentum=0.9), 70, loss, token_loss)


token_mean = zoo.healthy("tokens-mean", lambda s: added(s, "mean"))
zoo.sick(
    "tokens-sum",
    lambda s: added(s, "sum"),
    broken(facts.steps_above(1), less=0.5),
    *labels.SUMMED,
    also=labels.THROWN_OFF,
    control=token_mean,
)


def accumulated(seed: int, divide: bool) -> Program:
    """`gradient_accumulation_steps` small batches per step; the loss has to be divided by hand."""
    model, steps, losses = hears(), 16, []
    optimizer, task = sgd(model, 0.2, momentum=0.9), tones(seed, batch=4)

    def run() -> None:
        batches = iter(task)
        for step in range(30 * steps):
            x, y = next(batches)
            loss = F.cross_entropy(model(x), y)
            (loss / steps if divide else loss).backward()
            losses.append(loss.item())
            if (step + 1) % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    score = held_out(model, tones(seed, batch=128))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


divided = zoo.healthy("16-small-batches-divided", lambda s: accumulated(s, True))
zoo.sick(
    "16-small-batches-undivided",
    lambda s: accumulated(s, False),
    broken(facts.steps_above(1), less=0.6),
    *labels.UNDIVIDED,
    also={*labels.THROWN_OFF, "summed_loss"},
    control=divided,
)

# --- look alike and are right


def accumulates(seed: int) -> Program:
    """Gradients of eight batches, divided, cleared with the step, under a limit."""
    model, task, losses = Tagger(nn.Identity(), nn.LSTM(2, 20, batch_first=True), 2, 20), tides(seed, batch=6), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run() -> None:
        batches = iter(task)
        for step in range(240):
            x, y = next(batches)
            loss = F.mse_loss(model(x), y)
            (loss / 8).backward()
            losses.append(loss.item())
            if step % 8 == 7:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss))


zoo.healthy("tides-eight-batches-per-step", accumulates)


def restarts(seed: int) -> Program:
    """The rate goes down to nothing and up again, four times."""
    model = mlp([18, 48, 48, 7], nn.GELU)
    optimizer = adam(model, 1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20)
    runner = Runner(model, optimizer, states(seed), F.cross_entropy)
    return runner.on("batch_begin", optimizer.zero_grad).on("after_step", scheduler.step).program(4, 20)


zoo.healthy("rate-restarts-four-times", restarts)


def lbfgs(seed: int) -> Program:
    """Several evaluations per step, by a closure, on one batch at a time."""
    model, task = mlp([14, 32, 1], nn.Tanh), plants(seed, batch=256)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    return fit_by_closure(model, task, optimizer, 30, F.mse_loss)


zoo.healthy("lbfgs-by-a-closure", lbfgs)


def looks_ahead(seed: int) -> Program:
    """Every fifth step the weights go half-way back to where slow ones are, as Lookahead does."""
    model = mlp([18, 48, 48, 7], nn.SiLU)
    slow = copy.deepcopy(model)
    runner, count = Runner(model, adam(model, 5e-3), states(seed), F.cross_entropy), iter(range(10**6))

    @torch.no_grad()
    def merge() -> None:
        if next(count) % 5 == 4:
            for here, there in zip(model.parameters(), slow.parameters(), strict=True):
                there.lerp_(here, 0.5)
                here.copy_(there)

    return runner.on("batch_begin", runner.optimizer.zero_grad).on("after_step", merge).program(4, 20)


zoo.healthy("weights-half-way-back-every-fifth-step", looks_ahead)
