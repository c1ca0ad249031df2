# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Ordinary loops with a line missing, misplaced or miscounted, steps of a wrong size, and loops that only look so.

Half: everyday.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, Dataset

from validation import labels
from validation.case import Program, Zoo, call
from validation.cases._everyday_loops import (
    LeNet,
    Seq2Seq,
    TextClassifier,
    Vae,
    elbo,
    loader,
    stored,
    supervised,
    train,
)
from validation.evidence import loops as facts
from validation.evidence.loops import Played, broken, learns
from validation.nets import ConvNet, LanguageModel, SequenceModel, UNet, Vision, he_, mlp
from validation.programs import adam, fit, fit_by_closure, held_out, sgd, step_from, train_step
from validation.tasks.everyday import bends, spirals, stains, strokes
from validation.tasks.rewards import chain
from validation.tasks.sequences import ciphers, markov, token_loss
from validation.tasks.signals import grey, images, series
from validation.tasks.task import drawn_once
from validation.tasks.trades import genres, homes, loads, majority, paints, pulses
from validation.tasks.vectors import blobs

zoo = Zoo("loop", half="everyday", proof=learns())

# --- zero_grad


def forecast(seed: int, clear: bool) -> Program:
    """The load of the next hour from an LSTM."""
    task = loads(seed)
    model = SequenceModel(nn.LSTM(1, 32, batch_first=True), 1, every_step=True)
    optimizer = adam(model, 5e-3)
    criterion = nn.MSELoss()
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            if clear:
                optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, criterion))


forecast_clear = zoo.healthy("everyday-forecast-lstm", lambda s: forecast(s, True))
zoo.sick(
    "everyday-forecast-lstm-no-zero-grad",
    lambda s: forecast(s, False),
    broken(facts.stale()),
    "missing_zero_grad",
    also=labels.HEAPED,
    control=forecast_clear,
)


def digits(seed: int, called: bool) -> Program:
    """`optimizer.zero_grad` without its parentheses does nothing."""
    model = LeNet(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    data = loader(images(seed, 1, classes=10), seed, 24)
    losses: list[float] = []

    def run() -> None:
        for _epoch in range(4):
            for x, y in data:
                optimizer.zero_grad() if called else optimizer.zero_grad
                loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

    return Program(
        model=model,
        optimizer=optimizer,
        run=run,
        losses=losses,
        score=held_out(model, images(seed, 1, classes=10, batch=256)),
    )


digits_clear = zoo.healthy("everyday-digits", lambda s: digits(s, True))
zoo.sick(
    "everyday-digits-zero-grad-without-parentheses",
    lambda s: digits(s, False),
    broken(facts.stale(), less=0.9),
    "missing_zero_grad",
    also=labels.HEAPED | labels.WRECKED,
    control=digits_clear,
)


def tidy(seed: int, order: str) -> Program:
    """An update in a function of its own, with the lines in this order: Zero, Backward, Step."""
    model, task = ConvNet([3, 16, 24], 8, norm=nn.BatchNorm2d, pool=(0,)), images(seed, size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []

    def update(loss: Tensor) -> None:
        lines: dict[str, Callable[[], Any]] = {"Z": optimizer.zero_grad, "B": loss.backward, "S": optimizer.step}
        for line in order:
            lines[line]()

    def run() -> None:
        model.train()
        for (x, y), _ in zip(task, range(60), strict=False):
            loss = F.cross_entropy(model(x), y)
            update(loss)
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))


tidied = zoo.healthy("everyday-update-function", lambda s: tidy(s, "ZBS"))
zoo.sick(
    "everyday-update-function-clears-before-step",
    lambda s: tidy(s, "BZS"),
    broken(facts.wiped, less=0.3),
    *labels.WIPED,
    "never_moves",
    also={*labels.IDLE, "only_decay"},
    control=tidied,
)


def micro(seed: int, wrong: bool) -> Program:
    """Four micro-batches; the gradients are cleared at the turn of a group, after or before the step."""
    model, task = TextClassifier(6, 6), majority(seed, batch=16)
    optimizer = adam(model, 5e-3)
    losses: list[float] = []

    def run() -> None:
        for i, (x, y) in zip(range(240), task, strict=False):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            turn = (i + 1) % 4 == 0
            if turn and wrong:
                optimizer.zero_grad()
            if turn:
                optimizer.step()
            if turn and not wrong:
                optimizer.zero_grad()
            losses.append(4 * loss.item())

    score = held_out(model, majority(seed, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


micro_right = zoo.healthy("everyday-micro-batches-cleared-after-step", lambda s: micro(s, False))
zoo.sick(
    "everyday-micro-batches-cleared-before-step",
    lambda s: micro(s, True),
    broken(facts.wiped, less=0.01),
    *labels.WIPED,
    "never_moves",
    also=labels.IDLE,
    control=micro_right,
)


def two_optimizers(seed: int, both: bool) -> Program:
    """Encoder and decoder of a translator have an optimizer each."""
    model, task = Seq2Seq(14), ciphers(seed)
    first = torch.optim.Adam(model.encoder.parameters(), lr=4e-3)
    second = torch.optim.Adam(model.decoder.parameters(), lr=4e-3)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            first.zero_grad()
            if both:
                second.zero_grad()
            loss = token_loss(call(model, x), y)
            loss.backward()
            first.step()
            second.step()
            losses.append(loss.item())

    score = held_out(model, task, token_loss)
    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


both_cleared = zoo.healthy("everyday-two-optimizers-both-cleared", lambda s: two_optimizers(s, True))
zoo.sick(
    "everyday-two-optimizers-one-cleared",
    lambda s: two_optimizers(s, False),
    broken(lambda p: facts.stale("decoder")(Only(p, "decoder"))),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("decoder.words", "decoder.gru", "decoder.out"),
    also=labels.HEAPED,
    control=both_cleared,
)


def Only(played: Played, path: str) -> Played:
    """The steps of the optimizer that holds a part."""
    steps = [s for s in played.steps if any(name.startswith(path) for name in s.held)]
    return Played(played.program, played.start, played.end, steps, played.inputs, played.distance, played.trainable)


def segments(seed: int, order: str) -> Program:
    """A small U-Net, and a loop typed from memory."""
    model, task = UNet(8, 12), stains(seed)
    optimizer = adam(model, 4e-3)
    criterion = nn.BCEWithLogitsLoss()
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(60), strict=False):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            if order == "step first":
                optimizer.step()
            loss.backward()
            if order == "backward first":
                optimizer.step()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, criterion))


segmented = zoo.healthy("everyday-segmentation", lambda s: segments(s, "backward first"))
zoo.sick(
    "everyday-segmentation-steps-before-backward",
    lambda s: segments(s, "step first"),
    broken(facts.wiped, less=0.01),
    *labels.EARLY,
    "never_moves",
    also=labels.IDLE,
    control=segmented,
)

# --- the loss is cut off


def predicted(seed: int, argmax: bool) -> Program:
    """The loss of the predicted class numbers, made to require a gradient as the error message asked."""
    model, task = he_(mlp([4, 48, 48, 3])), spirals(seed)
    optimizer = adam(model, 5e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        if argmax:
            return F.mse_loss(out.argmax(dim=1).float(), batch[1].float()).requires_grad_()
        return F.cross_entropy(out, batch[1])

    return train(model, task, loss_of, optimizer, held_out(model, task), epochs=1, limit=100)


by_logits = zoo.healthy("everyday-spirals-loss-of-logits", lambda s: predicted(s, False))
zoo.sick(
    "everyday-spirals-loss-of-argmax",
    lambda s: predicted(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    "never_moves",
    also=labels.IDLE,
    control=by_logits,
)


def summed_items(seed: int, item: bool) -> Program:
    """The losses of four tasks are added up and their mean goes backward."""
    model = nn.ModuleDict({"body": mlp([20, 48], nn.ReLU).append(nn.ReLU()), "out": nn.Linear(48, 10)})
    task = genres(seed)
    optimizer = adam(model, 3e-3)

    def out_of(x: Tensor) -> Tensor:
        return model["out"](model["body"](x))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logits, total = out_of(batch[0]), torch.zeros(())
        for part in range(0, 10, 2):
            loss = F.binary_cross_entropy_with_logits(logits[:, part : part + 2], batch[1][:, part : part + 2])
            total = total + (loss.item() if item else loss)
        return (total / 5).requires_grad_() if item else total / 5

    def score() -> float:
        x, y = task.aside()
        with torch.no_grad():
            return F.binary_cross_entropy_with_logits(out_of(x), y).item()

    return train(model, task, loss_of, optimizer, score, epochs=1, limit=80)


summed_whole = zoo.healthy("everyday-labels-loss-summed", lambda s: summed_items(s, False))
zoo.sick(
    "everyday-labels-loss-summed-by-item",
    lambda s: summed_items(s, True),
    broken(facts.nothing_comes(), less=0.01),
    *labels.UNBOUND,
    "never_moves",
    also=labels.IDLE,
    control=summed_whole,
)

# --- rates and schedules


def configured(seed: int, lr: float) -> Program:
    """The rate comes from a form that makes whole numbers of what is typed."""
    model = LeNet(3, 8, 8, norm=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    score = held_out(model, paints(seed, batch=256))
    return train(model, loader(paints(seed), seed), supervised(model), optimizer, score)


typed = zoo.healthy("everyday-rate-as-typed", lambda s: configured(s, 1e-3))
zoo.sick(
    "everyday-rate-as-whole-number",
    lambda s: configured(s, int(1e-3)),
    broken(facts.rate_below(1e-12), less=0.15),  # batch norms still gather their averages
    *labels.NO_RATE,
    "never_moves",
    also=labels.IDLE,
    control=typed,
)


def linear(warm: int, whole: int) -> Callable[[int], float]:
    """The usual factor: up over `warm` steps, then down to zero at `whole`."""

    def factor(step: int) -> float:
        return step / max(1, warm) if step < warm else max(0.0, (whole - step) / max(1, whole - warm))

    return factor


def scheduled(
    seed: int,
    make: Callable[[torch.optim.Optimizer], Any],
    per_epoch: bool = False,
    measure: bool = False,
    lr: float = 3e-3,
    kind: str = "AdamW",
    **more: Any,
) -> Program:
    """Next words over six epochs of 16 batches, with a scheduler per batch or per epoch."""
    task = markov(seed, 20, 12, 16)
    model = LanguageModel(20, 32, 2, 1)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr, **more)
    scheduler = make(optimizer)
    score = held_out(model, task, token_loss)

    def after(_: int) -> None:
        if not per_epoch:
            scheduler.step()

    def between(_: int) -> None:
        if per_epoch:
            scheduler.step(score()) if measure else scheduler.step()

    return train(
        model, task, supervised(model, token_loss), optimizer, score, epochs=6, limit=16, after=after, between=between
    )


linear_right = zoo.healthy("everyday-linear-schedule", lambda s: scheduled(s, lambda o: LambdaLR(o, linear(10, 96))))
zoo.sick(
    "everyday-linear-schedule-for-no-steps",
    lambda s: scheduled(s, lambda o: LambdaLR(o, linear(0, 0))),
    broken(facts.rate_below(1e-12), less=0.2),
    *labels.NO_RATE,
    "schedule_ended",
    "never_moves",
    also=labels.IDLE,
    control=linear_right,
)
zoo.sick(
    "everyday-linear-schedule-for-one-epoch-of-six",
    lambda s: scheduled(s, lambda o: LambdaLR(o, linear(2, 16))),
    broken(facts.rate_below(1e-12), less=0.8),
    *labels.ENDED,
    "zero_rate",
    also=labels.IDLE,
    control=linear_right,
)
per_epoch = zoo.healthy(
    "everyday-exponential-per-epoch", lambda s: scheduled(s, lambda o: ExponentialLR(o, 0.7), per_epoch=True)
)
zoo.sick(
    "everyday-exponential-per-batch",
    lambda s: scheduled(s, lambda o: ExponentialLR(o, 0.7)),
    broken(facts.rate_below(1e-6), less=0.8),
    *labels.ENDED,
    "rate_too_low",
    also={*labels.IDLE, "zero_rate"},
    control=per_epoch,
)
plateau = zoo.healthy(
    "everyday-plateau-of-the-loss",
    lambda s: scheduled(s, lambda o: ReduceLROnPlateau(o, "min", patience=1), per_epoch=True, measure=True),
)
warm_steps = zoo.healthy(
    "everyday-warm-up-counted-per-batch",
    lambda s: scheduled(s, lambda o: LambdaLR(o, lambda i: min(1.0, (i + 1) / 30))),
)
zoo.sick(
    "everyday-warm-up-of-3000-steps-per-epoch",
    lambda s: scheduled(s, lambda o: LambdaLR(o, lambda i: min(1.0, (i + 1) / 3000)), per_epoch=True),
    broken(facts.steps_below(1e-4), less=0.1),
    *labels.CRAWLS,
    also={*labels.IDLE, "zero_rate"},
    control=warm_steps,
)


def plateaus(seed: int, mode: str) -> Program:
    """Twenty short epochs; the rate falls when the validation loss no longer improves."""
    model, task = he_(mlp([20, 48, 48, 5])), blobs(seed, 20, 5, 64)
    optimizer = adam(model, 1e-3)
    scheduler = ReduceLROnPlateau(optimizer, mode, factor=0.1, patience=0, eps=0)
    score = held_out(model, task)
    return train(
        model, task, supervised(model), optimizer, score, epochs=20, limit=5, between=lambda _: scheduler.step(score())
    )


plateau_min = zoo.healthy("everyday-plateau-mode-min", lambda s: plateaus(s, "min"))
zoo.sick(
    "everyday-plateau-mode-max-of-a-loss",
    lambda s: plateaus(s, "max"),
    broken(facts.rate_below(1e-8), less=0.8),
    *labels.ENDED,
    "rate_too_low",
    also={*labels.IDLE, "zero_rate"},
    control=plateau_min,
)

# --- clipping


def clipped(seed: int, largest: float) -> Program:
    """`max_norm` gets the number that was meant for the rate."""
    model, task = ConvNet([2, 16, 16], 5), pulses(seed).mapped(lambda x: x.unflatten(2, (8, 6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return train(model, task, supervised(model), optimizer, held_out(model, task), epochs=1, limit=100, clip=largest)


clip_5 = zoo.healthy("everyday-heartbeats-clip-5", lambda s: clipped(s, 5.0))
zoo.sick(
    "everyday-heartbeats-clip-at-the-rate",
    lambda s: clipped(s, 1e-4),
    broken(facts.clipped_by(100), less=0.2),
    *labels.TIGHT,
    "rate_too_low",
    also=labels.IDLE,
    control=clip_5,
)


def scaled_up(seed: int, unscale: bool) -> Program:
    """Mixed precision with a scaler; clipping has to come after unscaling."""
    model, task = LeNet(1, 10, 8), strokes(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    losses: list[float] = []

    def run() -> None:
        for (x, y), _ in zip(task, range(80), strict=False):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, scaler=scaler, score=held_out(model, task))


unscaled = zoo.healthy("everyday-scaler-unscale-then-clip", lambda s: scaled_up(s, True))
zoo.sick(
    "everyday-scaler-clip-without-unscale",
    lambda s: scaled_up(s, False),
    broken(facts.steps_below(1e-4), less=0.1),
    *labels.TIGHT,
    "rate_too_low",
    also=labels.IDLE,
    control=unscaled,
)

# --- modes


def validated(seed: int, back: bool) -> Program:
    """Validation after each epoch."""
    model, task = LeNet(3, 8, 8, norm=True, p=0.3), images(seed, size=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data, held = loader(task, seed), loader(images(seed + 1, size=8), seed, 4)

    def validate(_: int) -> None:
        model.eval()
        with torch.no_grad():
            for x, y in held:
                F.cross_entropy(model(x), y)
        if back:
            model.train()

    score = held_out(model, images(seed, size=8, batch=256))
    return train(model, data, supervised(model), optimizer, score, epochs=6, between=validate)


validated_back = zoo.healthy("everyday-validates-and-goes-back", lambda s: validated(s, True))
zoo.sick(
    "everyday-validates-and-stays",
    lambda s: validated(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=validated_back,
)


def downloaded(seed: int, mode: bool) -> Program:
    """A model from a hub arrives in evaluation mode; to fine-tune it one has to say so."""
    model = nn.Sequential(
        nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)
    ).append(nn.Linear(64, 10))
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = loader(genres(seed), seed, 10, 64)
    bce = F.binary_cross_entropy_with_logits

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        if mode:
            model.train()
        return bce(model(batch[0]), batch[1])

    return train(model, data, loss_of, optimizer, held_out(model, genres(seed, batch=256), bce), epochs=8)


said = zoo.healthy("everyday-hub-model-put-to-training", lambda s: downloaded(s, True))
zoo.sick(
    "everyday-hub-model-left-in-evaluation",
    lambda s: downloaded(s, False),
    broken(facts.evaluating),
    "evaluation_mode",
    control=said,
)

# --- weights overwritten


class Learner(nn.Module):
    """Values of the actions, and a target network that follows them slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.online = mlp([8, 48, 48, 4])
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, state: Tensor) -> Tensor:
        return self.online(state)


def dqn(seed: int, reversed_: bool = False, keep: bool = False) -> Program:
    """Q-learning with a target network, from a stream of transitions or from a buffer of them."""
    model, task = Learner(), chain(seed, 8, 4)
    optimizer = torch.optim.Adam(model.online.parameters(), lr=2e-3)
    buffer: list[Any] = []
    pick = torch.Generator().manual_seed(seed + 4)

    def loss_of(batch: Any) -> Tensor:
        if keep:
            buffer.append(batch)
            batch = buffer[int(torch.randint(len(buffer), (), generator=pick))]
        (state, following), (action, reward) = batch
        with torch.no_grad():
            goal = reward + 0.5 * model.target(following).amax(dim=1)
        return F.smooth_l1_loss(model(state).gather(1, action[:, None]).squeeze(1), goal)

    @torch.no_grad()
    def follow(_: int) -> None:
        for slow, fast in zip(model.target.parameters(), model.online.parameters(), strict=True):
            if reversed_:
                fast.lerp_(slow, 0.5)
            else:
                slow.lerp_(fast, 0.05)

    codes = torch.randn(4, 8, generator=drawn_once(seed, 7)) / math.sqrt(8)

    def score() -> float:
        (state, _), _ = task.aside()
        pay = state @ codes.T
        with torch.no_grad():
            return (pay.amax(dim=1) - (model(state).softmax(dim=1) * pay).sum(dim=1)).mean().item()

    return train(model, task, loss_of, optimizer, score, epochs=1, limit=150, after=follow)


following = zoo.healthy("everyday-dqn-target-follows", lambda s: dqn(s))
zoo.healthy("everyday-dqn-replay-buffer", lambda s: dqn(s, keep=True))
zoo.sick(
    "everyday-dqn-online-follows-target",
    lambda s: dqn(s, reversed_=True),
    broken(facts.overwritten, less=0.7),
    "weights_overwritten",
    also={*labels.LEARNS_NOTHING, "rate_too_low"},
    control=following,
)


def drawn_again(seed: int, every_epoch: bool) -> Program:
    """`model.apply(init_weights)` stands inside of the function that trains an epoch."""
    model, task = LeNet(1, 8, 6), grey(seed)
    optimizer = adam(model, 2e-3)

    def init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)

    def before(step: int) -> None:
        if step == 0 or (every_epoch and step % 8 == 0):
            model.apply(init)

    data = loader(task, seed, 8, 20)
    score = held_out(model, images(seed, 1, 8, 6, 256, 1.5))
    return train(model, data, supervised(model), optimizer, score, epochs=12, before=before)


def overwritten_often(played: Played) -> tuple[bool, str]:
    times = sum(step.overwritten for step in played.steps)
    return times >= 8, f"weights are overwritten {times} times"


drawn_first = zoo.healthy("everyday-weights-drawn-once", lambda s: drawn_again(s, False))
zoo.sick(
    "everyday-weights-drawn-in-every-epoch",
    lambda s: drawn_again(s, True),
    broken(overwritten_often, less=0.8),
    "weights_overwritten",
    also={*labels.LEARNS_NOTHING, "UNSTABLE", "EXPLODING", "loss_grows"},
    control=drawn_first,
)

# --- the same batch


def windows(seed: int, anew: bool) -> Program:
    """Asks the loader for its next batch, with an iterator that is made anew each time."""
    model = SequenceModel(nn.GRU(3, 32, batch_first=True), 3, every_step=True)
    data = DataLoader(stored(series(seed, batch=8), 20), 8)
    optimizer = adam(model, 5e-3)
    losses: list[float] = []

    def run() -> None:
        batches = iter(data)
        for step in range(100):
            if anew or step % len(data) == 0:
                batches = iter(data)
            x, y = next(batches)
            losses.append(train_step(model, optimizer, x, y, F.mse_loss))

    score = held_out(model, series(seed, batch=64), F.mse_loss)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


windows_all = zoo.healthy("everyday-series-iterator-goes-on", lambda s: windows(s, False))
zoo.sick(
    "everyday-series-iterator-made-anew",
    lambda s: windows(s, True),
    broken(facts.repeats),
    "same_batch",
    also={"VANISHING", "SLOW"},
    control=windows_all,
)


class Folder(Dataset):
    """Pictures by their number; with `path` left over from a test, always the same one."""

    def __init__(self, seed: int, fixed: int | None) -> None:
        self.x, self.y = stored(paints(seed), 12).tensors
        self.fixed = fixed

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        at = index if self.fixed is None else self.fixed
        return self.x[at], self.y[at]


def folder(seed: int, fixed: int | None) -> Program:
    model = ConvNet([3, 16, 16], 8, norm=lambda c: nn.GroupNorm(4, c), pool=(0,))
    data = DataLoader(Folder(seed, fixed), 32, shuffle=True, generator=torch.Generator().manual_seed(seed))
    score = held_out(model, paints(seed, batch=256))
    return train(model, data, supervised(model), adam(model, 3e-3), score, epochs=6)


folder_all = zoo.healthy("everyday-folder-of-pictures", lambda s: folder(s, None))
zoo.sick(
    "everyday-folder-gives-one-picture",
    lambda s: folder(s, 5),
    broken(facts.repeats, less=0),
    "same_batch",
    "constant_targets",
    also={"VANISHING", "SLOW", "LOW_RANK", "BOTTLENECK", "SATURATION"},
    control=folder_all,
)

# --- sizes of steps


def vision(seed: int, kind: str, lr: float) -> Program:
    """A small vision transformer under one optimizer or another, with the rate of one or another."""
    model, task = Vision(32, 2, 2), grey(seed)
    return fit(model, task, getattr(torch.optim, kind)(model.parameters(), lr=lr), 60)


vision_adam = zoo.healthy("everyday-vision-adam-1e-3", lambda s: vision(s, "Adam", 1e-3))
zoo.sick(
    "everyday-vision-adam-with-rate-of-adadelta",
    lambda s: vision(s, "Adam", 1.0),
    broken(facts.steps_above(3), less=0.3),
    *labels.FAST,
    "loss_grows",
    also=labels.THROWN_OFF,
    control=vision_adam,
)
zoo.sick(
    "everyday-vision-rate-for-fine-tuning-from-scratch",
    lambda s: vision(s, "Adam", 1e-6),
    broken(facts.steps_below(1e-4), less=0.1),
    *labels.CRAWLS,
    also=labels.IDLE,
    control=vision_adam,
)


def tuned(seed: int, lr: float) -> Program:
    """A trained tagger goes on with new data, at a rate that is gentle or that was meant for its head."""
    model, task = LanguageModel(20, 32, 2, 1), markov(seed, 20, 12, 16)
    fit(model, markov(seed, 20, 12, 16), adam(model, 3e-3), 20, token_loss).run()
    model.zero_grad(set_to_none=True)
    return fit(model, task, torch.optim.AdamW(model.parameters(), lr=lr), 60, token_loss)


gentle = zoo.healthy("everyday-tagger-goes-on-1e-3", lambda s: tuned(s, 1e-3))
zoo.sick(
    "everyday-tagger-goes-on-0.5",
    lambda s: tuned(s, 0.5),
    broken(facts.steps_above(1), less=0),
    *labels.FAST,
    "loss_grows",
    also=labels.THROWN_OFF,
    control=gentle,
)


def vae(seed: int, reduction: str) -> Program:
    """The sum of the paper's formula, or the mean, under SGD."""
    model, task = Vae(24), bends(seed)
    return fit(
        model, task, sgd(model, 0.05, momentum=0.9), 120, elbo(0.002, reduction), elbo(0.002), unseen=bends(seed)
    )


vae_mean = zoo.healthy("everyday-vae-mean-sgd", lambda s: vae(s, "mean"))
zoo.sick(
    "everyday-vae-sum-sgd",
    lambda s: vae(s, "sum"),
    broken(facts.steps_above(1), less=0.5),
    *labels.SUMMED,
    "loss_grows",
    also=labels.THROWN_OFF,
    control=vae_mean,
)


def over_time(seed: int, divide: bool) -> Program:
    """Adds up the loss of each of 24 hours and of each row."""
    model, task = SequenceModel(nn.GRU(1, 32, batch_first=True), 1, every_step=True), loads(seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for t in range(y.shape[1]):
            total = total + F.mse_loss(out[:, t], y[:, t], reduction="sum")
        return total / y.numel() if divide else total

    return fit(model, task, sgd(model, 0.1, momentum=0.9), 60, loss, F.mse_loss)


over_time_mean = zoo.healthy("everyday-hours-mean-sgd", lambda s: over_time(s, True))
zoo.sick(
    "everyday-hours-sum-sgd",
    lambda s: over_time(s, False),
    broken(facts.steps_above(1), less=0.5),
    *labels.SUMMED,
    "loss_grows",
    also=labels.THROWN_OFF,
    control=over_time_mean,
)


def accumulated(
    seed: int, divide: bool, kind: str = "SGD", lr: float = 0.1, steps: int = 40, parts: int = 16
) -> Program:
    """Small micro-batches, since the memory is small."""
    model, task = ConvNet([3, 16, 16], 8, norm=lambda c: nn.GroupNorm(4, c), pool=(0,)), images(seed, size=8, batch=4)
    more = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr, **more)
    losses: list[float] = []

    def run() -> None:
        for i, (x, y) in zip(range(steps * parts), task, strict=False):
            loss = F.cross_entropy(model(x), y)
            (loss / parts if divide else loss).backward()
            losses.append(loss.item())
            if (i + 1) % parts == 0:
                optimizer.step()
                optimizer.zero_grad()

    score = held_out(model, images(seed, size=8, batch=256))
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


divided = zoo.healthy("everyday-16-micro-batches-divided", lambda s: accumulated(s, True))
zoo.healthy("everyday-8-micro-batches-divided-adamw", lambda s: accumulated(s, True, "AdamW", 3e-3, 40, 8))
zoo.sick(
    "everyday-16-micro-batches-not-divided",
    lambda s: accumulated(s, False),
    broken(facts.steps_above(0.5), less=0.7),
    *labels.UNDIVIDED,
    "loss_grows",
    also={*labels.THROWN_OFF, "summed_loss"},
    control=divided,
)

# --- healthy: schedules, optimizers, averages

zoo.healthy("everyday-cosine", lambda s: scheduled(s, lambda o: CosineAnnealingLR(o, 96)))
zoo.healthy("everyday-one-cycle", lambda s: scheduled(s, lambda o: OneCycleLR(o, 5e-3, total_steps=97)))
zoo.healthy("everyday-milestones", lambda s: scheduled(s, lambda o: MultiStepLR(o, [3, 5], 0.1), per_epoch=True))
zoo.healthy(
    "everyday-decay-0.1-beta2-0.95",
    lambda s: scheduled(s, lambda o: LambdaLR(o, linear(10, 96)), betas=(0.9, 0.95), weight_decay=0.1),
)
zoo.healthy("everyday-eps-1e-6", lambda s: scheduled(s, lambda o: LambdaLR(o, lambda _: 1.0), eps=1e-6))
zoo.healthy("everyday-nadam", lambda s: scheduled(s, lambda o: LambdaLR(o, lambda _: 1.0), kind="NAdam"))
zoo.healthy("everyday-adagrad", lambda s: scheduled(s, lambda o: LambdaLR(o, lambda _: 1.0), kind="Adagrad", lr=0.03))
zoo.healthy(
    "everyday-warm-restarts",
    lambda s: scheduled(s, lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 24)),
)


def averaged(seed: int, swa: bool) -> Program:
    """The average of the weights is kept beside them: from the second half on, or all along and moving."""
    model, task = ConvNet([3, 16, 16], 8, norm=nn.BatchNorm2d, pool=(0,)), images(seed, size=8)
    optimizer = sgd(model, 0.05, momentum=0.9)
    mean = (
        AveragedModel(model)
        if swa
        else AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    )
    slow = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    data = loader(task, seed)

    def after(_: int) -> None:
        if not swa:
            mean.update_parameters(model)

    def between(epoch: int) -> None:
        if swa and epoch >= 2:
            mean.update_parameters(model)
            slow.step()

    score = held_out(model, images(seed, size=8, batch=256))
    return train(model, data, supervised(model), optimizer, score, epochs=5, after=after, between=between)


zoo.healthy("everyday-swa", lambda s: averaged(s, True))
zoo.healthy("everyday-moving-average", lambda s: averaged(s, False))


def with_closure(seed: int) -> Program:
    model, task = mlp([9, 40, 40, 1], nn.Tanh), homes(seed)
    optimizer = sgd(model, 0.1, momentum=0.9, nesterov=True)
    return fit_by_closure(model, task, optimizer, 90, F.mse_loss)


zoo.healthy("everyday-closure", with_closure)


def half_cast(seed: int) -> Program:
    """Weights in float32, the forward in bfloat16."""
    model, task = LanguageModel(20, 32, 2, 2), markov(seed, 20, 12, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return token_loss(model(batch[0]), batch[1])

    return train(model, task, loss_of, optimizer, held_out(model, task, token_loss), epochs=1, limit=70, clip=1.0)


zoo.healthy("everyday-autocast-bfloat16-clip-1", half_cast)


def rarely_clipped(seed: int) -> Program:
    model, task = SequenceModel(nn.LSTM(1, 32, batch_first=True), 1, every_step=True), loads(seed)
    return train(
        model,
        task,
        supervised(model, F.mse_loss),
        adam(model, 5e-3),
        held_out(model, task, F.mse_loss),
        epochs=1,
        limit=80,
        clip=10.0,
    )


zoo.healthy("everyday-clipping-that-hardly-acts", rarely_clipped)


class Gan(nn.Module):
    """A generator and a discriminator of points on a curve."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = mlp([4, 32, 32, 2]), mlp([2, 32, 32, 1], lambda: nn.LeakyReLU(0.2))


def gan(seed: int) -> Program:
    """Takes turns; each optimizer clears its own part."""
    model = Gan()
    first = torch.optim.Adam(model.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    second = torch.optim.Adam(model.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    random = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    bce = F.binary_cross_entropy_with_logits

    def real(count: int, source: torch.Generator) -> Tensor:
        return torch.tensor([2.0, -1.0]) + 0.3 * torch.randn(count, 2, generator=source)

    def run() -> None:
        one, zero = torch.ones(64, 1), torch.zeros(64, 1)
        for _ in range(120):
            fake = model.generator(torch.randn(64, 4, generator=random))
            second.zero_grad()
            loss = bce(model.discriminator(real(64, random)), one) + bce(model.discriminator(fake.detach()), zero)
            loss.backward()
            second.step()
            first.zero_grad()
            fooled = bce(model.discriminator(fake), one)
            fooled.backward()
            first.step()
            losses.append(fooled.item())

    def score() -> float:
        with torch.no_grad():
            made = model.generator(torch.randn(256, 4, generator=drawn_once(seed, 3)))
        return (made.mean(dim=0) - torch.tensor([2.0, -1.0])).norm().item()

    return Program(model=model, optimizer=[first, second], run=run, losses=losses, score=score)


zoo.healthy("everyday-gan", gan)


def tiny_batches(seed: int) -> Program:
    model = LeNet(1, 8, 6)
    task = images(seed, 1, 8, 6, 4, 1.5)
    return fit(model, task, sgd(model, 0.01, momentum=0.9), 180, unseen=images(seed, 1, 8, 6, 256, 1.5))


zoo.healthy("everyday-batches-of-four", tiny_batches)


def carried(seed: int) -> Program:
    """Truncated backpropagation: the state goes on from window to window, detached."""
    rnn, head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)
    model = nn.ModuleDict({"rnn": rnn, "head": head})
    optimizer = adam(model, 5e-3)
    wave = torch.sin(0.4 * torch.arange(3000.0)).view(10, 300, 1) + 0.05 * torch.randn(10, 300, 1)
    losses: list[float] = []

    def run() -> None:
        for _epoch in range(6):
            state = None
            for start in range(0, 280, 20):
                x, y = wave[:, start : start + 20], wave[:, start + 1 : start + 21]
                out, state = rnn(x, state)
                state = state.detach()
                loss = F.mse_loss(head(out), y)
                losses.append(step_from(loss, optimizer))

    def score() -> float:
        with torch.no_grad():
            return F.mse_loss(head(rnn(wave[:, :100])[0]), wave[:, 1:101]).item()

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.healthy("everyday-truncated-backpropagation", carried)


def tested_first(seed: int) -> Program:
    """Early stopping with the best weights put back at the end, and a check of the loss before training."""
    model, task = mlp([20, 48, 48, 5], nn.ReLU, nn.BatchNorm1d, 0.1), blobs(seed, 20, 5, 64)
    optimizer = adam(model, 2e-3)
    score = held_out(model, task)
    best: list[Any] = [math.inf, None]

    def keep(_: int) -> None:
        if score() < best[0]:
            best[:] = [score(), copy.deepcopy(model.state_dict())]

    program = train(model, task, supervised(model), optimizer, score, epochs=8, limit=12, between=keep)

    def run() -> None:
        program.run()
        model.load_state_dict(best[1])

    return Program(model=model, optimizer=optimizer, run=run, losses=program.losses, score=score)


zoo.healthy("everyday-best-weights-at-the-end", tested_first)
