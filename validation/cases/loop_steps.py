# ruff: noqa: D103 - a case is explained by its name
"""Programs whose loop does things in the wrong order, too often or not at all, and their repaired twins.

Half: tune.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, Zoo
from validation.evidence import loops as facts
from validation.evidence.loops import broken, learns
from validation.labels import EARLY, ENDED, HEAPED, IDLE, LEARNS_NOTHING, NO_RATE, TIGHT, UNBOUND, WIPED
from validation.nets import ConvNet, LanguageModel, SequenceModel, he_, mlp
from validation.programs import adam, fit, held_out, learn, sgd, step_from, train_step
from validation.tasks import blobs, echo, images, markov, regression, token_loss

zoo = Zoo("loop", half="tune", proof=learns())

# --- the order of zero_grad, backward and step


def ordered(seed: int, order: str, optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam) -> Program:
    """A loop whose lines run in this order: Zero, Forward, Backward, Step."""
    model, task = he_(mlp([24, 64, 64, 6])), blobs(seed, 24, 6, 64, 0.7)
    opt = optimizer(model)
    losses: list[float] = []

    def run() -> None:
        loss = torch.zeros((), requires_grad=True)
        for (x, y), _ in zip(task, range(100), strict=False):
            for line in order:
                if line == "Z":
                    opt.zero_grad()
                elif line == "F":
                    loss = F.cross_entropy(model(x), y)
                elif line == "B":
                    loss.backward()
                else:
                    opt.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=opt, run=run, losses=losses, score=held_out(model, task))


in_order = zoo.healthy("in-order-adam", lambda s: ordered(s, "ZFBS"))
zoo.healthy("in-order-zero-grad-last", lambda s: ordered(s, "FBSZ", sgd))
zoo.sick(
    "no-zero-grad-adam",
    lambda s: ordered(s, "FBS"),
    broken(facts.stale()),
    "missing_zero_grad",
    also=HEAPED,
    control=in_order,
)
zoo.sick(
    "zero-grad-between-backward-and-step",
    lambda s: ordered(s, "FBZS"),
    broken(facts.wiped, less=0.01),
    *WIPED,
    also=IDLE,
    control=in_order,
)
zoo.sick(
    "step-before-backward",
    lambda s: ordered(s, "ZFSB"),
    broken(facts.wiped, less=0.01),
    *EARLY,
    also=IDLE,
    control=in_order,
)


def convolve(seed: int, clear: bool) -> Program:
    """Epochs over a loader, SGD with momentum."""
    task = images(seed, size=8)
    data = [next(iter(task)) for _ in range(20)]
    loader = DataLoader(
        TensorDataset(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])), 32, shuffle=True
    )
    model = ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    losses: list[float] = []

    def run() -> None:
        for _epoch in range(4):
            model.train()
            for x, y in loader:
                if clear:
                    optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


cleared = zoo.healthy("convolutions-epochs-momentum", lambda s: convolve(s, True))
zoo.sick(
    "convolutions-no-zero-grad-momentum",
    lambda s: convolve(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also=HEAPED,
    control=cleared,
)


def two_parts(seed: int, everything: bool) -> Program:
    """An encoder and a head; `zero_grad` of the head alone was there first."""
    task = echo(seed, 10, 5, 8, 24)
    model = SequenceModel(nn.GRU(8, 32, batch_first=True), 5, every_step=True)
    optimizer = torch.optim.Adam(
        [{"params": model.rnn.parameters(), "lr": 3e-3}, {"params": model.head.parameters(), "lr": 1e-2}]
    )
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            model.head.zero_grad()
            if everything:
                model.rnn.zero_grad()
            loss = token_loss(model(x)[:, 1:], y[:, 1:])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    score = held_out(model, task, lambda out, y: token_loss(out[:, 1:], y[:, 1:]))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


both_cleared = zoo.healthy("gru-both-parts-cleared", lambda s: two_parts(s, True))
zoo.sick(
    "gru-only-head-cleared",
    lambda s: two_parts(s, False),
    broken(facts.stale("rnn")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer="rnn",
    also=HEAPED,
    control=both_cleared,
)

# --- the loss is cut off


def rewrapped(seed: int, wrap: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    task = regression(seed, 12, batch=64)
    model = mlp([12, 48, 48, 1], nn.SiLU)
    optimizer = adam(model)
    return learn(
        model, optimizer, task, lambda x, y: wrap(F.mse_loss(model(x), y)), held_out(model, task, F.mse_loss), 100
    )


kept = zoo.healthy("regression-loss-as-it-is", lambda s: rewrapped(s, lambda loss: loss))
zoo.sick(
    "loss-made-new-from-its-item",
    lambda s: rewrapped(s, lambda loss: torch.tensor(loss.item(), requires_grad=True)),
    broken(facts.nothing_comes(), less=0.01),
    *UNBOUND,
    also=IDLE,
    control=kept,
)
zoo.sick(
    "loss-detached-and-marked-again",
    lambda s: rewrapped(s, lambda loss: loss.detach().requires_grad_(True)),
    broken(facts.nothing_comes(), less=0.01),
    *UNBOUND,
    also=IDLE,
    control=kept,
)

# --- schedules


def scheduled(
    seed: int, make: Callable[[torch.optim.Optimizer], object], lr: float = 3e-3, advance: bool = True
) -> Program:
    """Next tokens, with a scheduler that steps once per batch."""
    task = markov(seed, 20, 12, 16)
    model = LanguageModel(20, 32, 2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = make(optimizer)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(120), strict=False):
            optimizer.zero_grad(set_to_none=True)
            loss = token_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if advance:
                scheduler.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


def warm(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: min(1.0, step / 40))


warmed = zoo.healthy("warm-up-from-zero", lambda s: scheduled(s, warm))
zoo.sick(
    "warm-up-with-integer-division",
    lambda s: scheduled(s, lambda o: LambdaLR(o, lambda step: min(1, step // 400))),
    broken(facts.rate_below(1e-12), less=0.01),
    *NO_RATE,
    also=IDLE,
    control=warmed,
)
zoo.sick(
    "warm-up-that-never-advances",
    lambda s: scheduled(s, warm, advance=False),
    broken(facts.rate_below(1e-12), less=0.01),
    *NO_RATE,
    also=IDLE,
    control=warmed,
)
falling = zoo.healthy("linear-decay-over-the-run", lambda s: scheduled(s, lambda o: LinearLR(o, 1.0, 0.0, 120)))
zoo.sick(
    "linear-decay-over-epochs-stepped-per-batch",
    lambda s: scheduled(s, lambda o: LinearLR(o, 1.0, 0.0, 8)),
    broken(facts.rate_below(1e-12, 0.8), less=0.6),
    *ENDED,
    "zero_rate",
    also=IDLE,
    control=falling,
)
stepped = zoo.healthy("step-decay-after-40-and-80", lambda s: scheduled(s, lambda o: StepLR(o, 40, 0.3)))
zoo.sick(
    "step-decay-per-batch-instead-of-epoch",
    lambda s: scheduled(s, lambda o: StepLR(o, 2, 0.1)),
    broken(facts.rate_below(1e-8, 0.8), less=0.6),
    *ENDED,
    also={*IDLE, "rate_too_low"},
    control=stepped,
)

# --- clipping that sets the step


def clipping(seed: int, clip: Callable[[nn.Module], object]) -> Program:
    task = images(seed, 1, 8, 5, 32, 1.5)
    model = ConvNet([1, 12, 12], 5, norm=lambda c: nn.GroupNorm(3, c), pool=(0,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return fit(model, task, optimizer, 80, before=lambda _: clip(model))


loose = zoo.healthy("clip-norm-1-sgd", lambda s: clipping(s, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1.0)))
zoo.sick(
    "clip-norm-1e-6-sgd",
    lambda s: clipping(s, lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1e-6)),
    broken(facts.clipped_by(1e3), less=0.01),
    *TIGHT,
    also={*IDLE, "rate_too_low"},
    control=loose,
)
zoo.sick(
    "clip-value-1e-7-sgd",
    lambda s: clipping(s, lambda m: nn.utils.clip_grad_value_(m.parameters(), 1e-7)),
    broken(facts.clipped_by(1e3), less=0.01),
    *TIGHT,
    also={*IDLE, "rate_too_low"},
    control=loose,
)

# --- evaluation mode


def validated(seed: int, back: bool, dropout: bool = False) -> Program:
    """Validation after each epoch of ten steps; the model has to go back to training mode."""
    task = images(seed, size=8) if not dropout else blobs(seed, 24, 6, 48)
    if dropout:
        model: nn.Module = mlp([24, 96, 96, 6], nn.ReLU, nn.BatchNorm1d, 0.3)
    else:
        model = ConvNet([3, 16, 24], 8, norm=nn.BatchNorm2d, pool=(0,))
    optimizer = adam(model, 2e-3)
    x_val, y_val = task.aside()
    best, losses = [float("inf")], []

    def validate() -> float:
        model.eval()
        with torch.no_grad():
            return F.cross_entropy(model(x_val), y_val).item()

    def run() -> None:
        batches = iter(task)
        best[0] = validate()
        for _epoch in range(8):
            if back:
                model.train()
            for _ in range(10):
                x, y = next(batches)
                losses.append(train_step(model, optimizer, x, y))
            best[0] = min(best[0], validate())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


and_back = zoo.healthy("validates-and-trains-again", lambda s: validated(s, True))
zoo.sick(
    "validates-and-stays-in-eval-batchnorm",
    lambda s: validated(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=and_back,
)
and_back_dense = zoo.healthy("validates-and-trains-again-dropout", lambda s: validated(s, True, True))
zoo.sick(
    "validates-and-stays-in-eval-dropout",
    lambda s: validated(s, False, True),
    broken(facts.evaluating),
    "evaluation_mode",
    control=and_back_dense,
)

# --- weights that are overwritten, batches that repeat


def averaged(seed: int, back: bool) -> Program:
    """Keeps a moving average of the weights; copying it back undoes the steps."""
    task = blobs(seed, 24, 6, 64)
    model = he_(mlp([24, 64, 64, 6]))
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = adam(model)

    def after(_: int) -> None:
        with torch.no_grad():
            for average, weight in zip(ema.parameters(), model.parameters(), strict=True):
                average.lerp_(weight, 0.01)
                if back:
                    weight.copy_(average)

    return fit(model, task, optimizer, 100, after=after)


beside = zoo.healthy("average-kept-beside", lambda s: averaged(s, False))
zoo.sick(
    "average-copied-back-each-step",
    lambda s: averaged(s, True),
    broken(facts.overwritten, less=0.7),
    "weights_overwritten",
    also={*LEARNS_NOTHING, "rate_too_low"},
    control=beside,
)


def restored(seed: int, each_step: bool) -> Program:
    """Loads a checkpoint, once or in every step."""
    task = markov(seed, 16, 10, 16)
    model = LanguageModel(16, 24, 2, 1)
    checkpoint = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []

    def run() -> None:
        for step, (x, y) in zip(range(80), task, strict=False):
            if each_step or step == 0:
                model.load_state_dict(checkpoint)
            losses.append(train_step(model, optimizer, x, y, token_loss))

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, token_loss))


once = zoo.healthy("checkpoint-loaded-once", lambda s: restored(s, False))
zoo.sick(
    "checkpoint-loaded-in-every-step",
    lambda s: restored(s, True),
    broken(facts.overwritten, less=0.2),
    "weights_overwritten",
    also=LEARNS_NOTHING,
    control=once,
)


def loaded(seed: int, anew: bool) -> Program:
    """Takes its batches from a loader, by an iterator that is made once per epoch or once per step."""
    task = blobs(seed, 32, 8, 16, 0.6)
    data = [next(iter(task)) for _ in range(40)]
    loader = DataLoader(TensorDataset(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])), 16)
    model = he_(mlp([32, 64, 8]))
    optimizer = adam(model)
    losses: list[float] = []

    def run() -> None:
        batches = iter(loader)
        for step in range(120):
            if anew or step % len(loader) == 0:
                batches = iter(loader)
            x, y = next(batches)
            losses.append(train_step(model, optimizer, x, y))

    return Program(
        model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, blobs(seed, 32, 8, 512, 0.6))
    )


through = zoo.healthy("iterator-per-epoch", lambda s: loaded(s, False))
zoo.sick(
    "iterator-made-anew-in-every-step",
    lambda s: loaded(s, True),
    broken(lambda p: (len(set(p.inputs)) == 1, f"{len(set(p.inputs))} batches"), less=0.7),
    "same_batch",
    also={"VANISHING", "SLOW"},
    control=through,
)


def sampled(seed: int, reseed: bool) -> Program:
    """Cuts windows out of a text; a seed set inside of the function gives the same ones each time."""
    text = markov(seed, 20, 600, 1).aside()[0][0]
    model = LanguageModel(20, 32, 2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random = torch.Generator().manual_seed(seed)
    losses: list[float] = []

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        if reseed:
            random.manual_seed(1337)
        starts = torch.randint(len(text) - 13, (12,), generator=random)
        return torch.stack([text[i : i + 12] for i in starts]), torch.stack([text[i + 1 : i + 13] for i in starts])

    def run() -> None:
        for _ in range(100):
            x, y = get_batch()
            loss = token_loss(model(x), y)
            losses.append(step_from(loss, optimizer))

    score = held_out(model, markov(seed, 20, 12, 64), token_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


random_windows = zoo.healthy("windows-of-a-text", lambda s: sampled(s, False))
zoo.sick(
    "windows-of-a-text-seeded-anew",
    lambda s: sampled(s, True),
    broken(facts.repeats, less=0.9),
    "same_batch",
    control=random_windows,
)
