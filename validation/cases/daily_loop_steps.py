# ruff: noqa: D103 - a case is explained by its name
"""Daily programs whose loop is in a wrong order, undoes what it does, or takes steps of a wrong size; and their twins.

Half: daily.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler, PolynomialLR, ReduceLROnPlateau

from validation.case import Program, Zoo
from validation.cases._common_loops import at_least, study
from validation.cases._daily_loops import (
    KINDS,
    Dynamics,
    Hours,
    Made,
    Separable,
    bce,
    beside,
    buses,
    crates,
    field,
    lungs,
    of_row,
    poles,
    rate_of,
    shells,
    tweets,
    yields,
)
from validation.cases._everyday_loops import loader, stored, supervised, train
from validation.cases._plain_loops import harmed
from validation.evidence.loops import (
    clipped_by,
    evaluating,
    learns,
    nothing_comes,
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
    UNBOUND,
    UNDIVIDED,
    WIPED,
    WRECKED,
)
from validation.nets import mlp
from validation.programs import adam, held_out, script, sgd

zoo = Zoo("loop", half="daily", proof=learns(0.25))
adamw = torch.optim.AdamW
PILED = {*HEAPED, *WRECKED, "NUMERICAL", "momentum_too_long"}
THROWN = {*THROWN_OFF, "first_loss_high", "momentum_too_long", "NUMERICAL", "SLOW"}
Loss = Callable[[], Tensor]

# --- gradients that are not cleared, are gone, or come too late


def no_call(seed: int, fault: bool) -> Program:
    """`optimizer.zero_grad` without its brackets."""
    model, task, loss = KINDS["lungs"](seed)
    optimizer = sgd(model, 0.1, momentum=0.9)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        clear = optimizer.zero_grad
        if not fault:
            clear()
        value = loss_of()
        value.backward()
        optimizer.step()
        return value

    return script(model, optimizer, task, loss, body, 60)


def only_if_logged(seed: int, fault: bool) -> Program:
    """The line that clears slipped into the branch that prints, every fifty steps."""
    model, task, loss = KINDS["crates"](seed)
    optimizer = sgd(model, 0.3, momentum=0.9)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        value = loss_of()
        value.backward()
        optimizer.step()
        if not fault or i % 50 == 49:
            optimizer.zero_grad()
        return value

    return script(model, optimizer, task, loss, body, 100)


def head_alone(seed: int, fault: bool) -> Program:
    """`model.out.zero_grad()` instead of `model.zero_grad()`."""
    model, task, loss = KINDS["rooms"](seed)
    optimizer = sgd(model, 0.2, momentum=0.9)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        (model.out if fault else model).zero_grad()
        value = loss_of()
        value.backward()
        optimizer.step()
        return value

    return script(model, optimizer, task, loss, body, 80)


def reader_and_writer(seed: int, fault: bool) -> Program:
    """An optimizer of the encoder and one of the decoder; the line for the encoder clears the decoder again."""
    model, task, loss = KINDS["petals"](seed)
    first, second = sgd(model.encoder, 0.03, momentum=0.9), sgd(model.decoder, 0.03, momentum=0.9)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        (second if fault else first).zero_grad()
        second.zero_grad()
        value = loss_of()
        value.backward()
        first.step()
        second.step()
        return value

    return script(model, [first, second], task, loss, body, 80)


for sound, name, build, fact in (
    ("lungs-clear-is-called", "lungs-clear-is-only-named", no_call, stale()),
    ("crates-cleared-at-each-step", "crates-cleared-when-it-prints", only_if_logged, stale()),
):
    beside(zoo, sound, name, build, harmed(fact), "missing_zero_grad", also=PILED)
for sound, name, build, path, layer in (
    ("rooms-all-cleared", "rooms-only-the-head-cleared", head_alone, "turn1", None),
    (
        "petals-encoder-and-decoder-cleared",
        "petals-decoder-cleared-twice",
        reader_and_writer,
        "encoder",
        ("encoder.0", "encoder.3"),
    ),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(old_in(path)),
        "partial_zero_grad",
        "missing_zero_grad",
        layer=layer,
        also=PILED,
    )


def clears_late(seed: int, fault: bool) -> Program:
    """The line that clears stands below `backward`."""
    model, task, loss = KINDS["tweets"](seed)
    optimizer = adamw(model.parameters(), lr=2e-2, weight_decay=0.0)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        if not fault:
            optimizer.zero_grad()
        value = loss_of()
        value.backward()
        if fault:
            optimizer.zero_grad()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value

    return script(model, optimizer, task, loss, body, 70)


def clears_then_steps(seed: int, fault: bool) -> Program:
    """Four parts make a step; at the fourth the gradients are cleared and then used."""
    model, task, loss = KINDS["defaults"](seed)
    optimizer = adam(model, 4e-3)

    def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        value = loss_of()
        (value / 4).backward()
        if i % 4 == 3:
            if fault:
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
        return value

    return script(model, optimizer, task, loss, body, 240)


def in_order(name: str, order: str, steps: int):
    """Each letter is a line of the loop: zero_grad, forward, backward, step; right is ZFBS."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = adam(model, rate_of(name))

        def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            for line in order if fault else "ZFBS":
                if line == "Z":
                    optimizer.zero_grad()
                elif line == "F":
                    value = loss_of()
                elif line == "B":
                    value.backward()
                else:
                    optimizer.step()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


for sound, name, build in (
    ("tweets-clear-above-backward", "tweets-clear-below-backward", clears_late),
    ("defaults-four-parts-stepped-then-cleared", "defaults-four-parts-cleared-then-stepped", clears_then_steps),
):
    beside(zoo, sound, name, build, harmed(wiped), *WIPED, "never_moves", also=IDLE)
for sound, name, build in (
    ("rides-step-after-backward", "rides-step-before-forward", in_order("rides", "ZSFB", 70)),
    ("buses-step-after-backward", "buses-step-before-backward", in_order("buses", "FZSB", 60)),
):
    beside(zoo, sound, name, build, harmed(), *EARLY, "never_moves", also=IDLE)

# --- the loss has no way back


def by_accuracy(seed: int, fault: bool) -> Program:
    """The share of wrong answers is the loss, for it is what one wants to be small."""
    model = Separable()

    def wrong(out: Tensor, y: Tensor) -> Tensor:
        return (out.argmax(dim=1) != y).float().mean().requires_grad_()

    return study(model, shells(seed), adam(model, 4e-3), wrong if fault else F.cross_entropy, 50, F.cross_entropy)


def by_metric(seed: int, fault: bool) -> Program:
    """The error comes from a helper for the log, which gives back numbers without their graph."""
    model = Hours()

    def helper(out: Tensor, y: Tensor) -> Tensor:
        rows = [sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) / 3 for p, q in zip(out.tolist(), y, strict=True)]
        return torch.stack([torch.as_tensor(row) for row in rows]).mean().requires_grad_()

    return study(model, buses(seed), adam(model, 1e-2), helper if fault else F.mse_loss, 60, F.mse_loss)


for sound, name, build in (
    ("shells-loss-of-logits", "shells-loss-is-the-share-of-wrong-answers", by_accuracy),
    ("buses-error-of-tensors", "buses-error-from-a-helper-for-the-log", by_metric),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(nothing_comes()),
        *UNBOUND,
        also={*IDLE, "VANISHING", "DEAD", "only_decay", "constant_targets"},
    )

# --- rates

Schedule = Callable[[torch.optim.Optimizer], LRScheduler]


def epoch_warm_up(seed: int, fault: bool) -> Program:
    """A warm-up from zero over ten steps; the line that moves it on stands below the epoch, of which there is one."""
    model, task, loss = KINDS["verses"](seed)
    optimizer = adamw(model.parameters(), lr=4e-3)
    schedule = LambdaLR(optimizer, lambda i: min(1.0, i / 10))

    def move(_: int) -> None:
        schedule.step()

    hooks = {"between": move} if fault else {"after": move}
    return study(model, task, optimizer, loss, 60, **hooks)


def whole_number(seed: int, fault: bool) -> Program:
    """A setting from the command line with `type=int`."""
    model, task, loss = KINDS["crates"](seed)
    rate = 0.006
    optimizer = torch.optim.NAdam(model.parameters(), lr=int(rate) if fault else rate)
    return study(model, task, optimizer, loss, 80)


for sound, name, build in (
    ("verses-warm-up-by-steps", "verses-warm-up-by-epochs-of-which-there-is-one", epoch_warm_up),
    ("crates-rate-as-given", "crates-rate-as-a-whole-number", whole_number),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(rate_below(1e-12)),
        *NO_RATE,
        "never_moves",
        also={*IDLE, "rate_too_low", "schedule_ended"},
    )


def scheduled(name: str, good: Schedule, bad: Schedule, steps: int = 70):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = adamw(model.parameters(), lr=rate_of(name))
        schedule = (bad if fault else good)(optimizer)
        return study(model, task, optimizer, loss, steps, after=lambda _: schedule.step())

    return build


def on_plateau(seed: int, fault: bool) -> Program:
    """The rate falls when the loss no longer does; with `mode="max"` it falls while the loss does."""
    model, task, loss = KINDS["petals"](seed)
    optimizer = adam(model, 5e-3)
    schedule = ReduceLROnPlateau(optimizer, "max" if fault else "min", factor=0.1 if fault else 0.5, patience=3)
    unseen = held_out(model, task, loss)
    return study(model, task, optimizer, loss, 80, after=lambda _: schedule.step(unseen()))


for sound, name, build in (
    (
        "diary-polynomial-over-all-steps",
        "diary-polynomial-over-the-epochs",
        scheduled("diary", lambda o: PolynomialLR(o, 80), lambda o: PolynomialLR(o, 5)),
    ),
    (
        "lungs-exponential-0.98-by-steps",
        "lungs-exponential-0.5-by-steps",
        scheduled("lungs", lambda o: ExponentialLR(o, 0.98), lambda o: ExponentialLR(o, 0.5), 60),
    ),
    ("petals-rate-falls-on-a-plateau", "petals-rate-falls-while-the-loss-does", on_plateau),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(rate_below(1e-5)),
        *ENDED,
        "zero_rate",
        "rate_too_low",
        also=IDLE,
    )

# --- clipping


def clipped(name: str, rate: float, how: Callable[..., Any], good: float, bad: float, steps: int = 70):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        limit = bad if fault else good
        optimizer = sgd(model, rate, momentum=0.9)
        return study(model, task, optimizer, loss, steps, ready=lambda _: how(model.parameters(), limit))

    return build


for sound, name, build in (
    (
        "rooms-clip-norm-5",
        "rooms-clip-norm-0.0005",
        clipped("rooms", 0.2, nn.utils.clip_grad_norm_, 5.0, 5e-4),
    ),
    (
        "poles-clip-value-0.5",
        "poles-clip-value-0.000001",
        clipped("poles", 0.1, nn.utils.clip_grad_value_, 0.5, 1e-6),
    ),
):
    beside(zoo, sound, name, build, harmed(clipped_by(20)), *TIGHT, "rate_too_low", also=IDLE)

# --- modes and weights

MODE = {"first_loss_high", "input_scales", "rate_too_high", *WRECKED, "UNSTABLE", "EXPLODING", "SLOW", "NUMERICAL"}


def validated(make: Made, rate: float, steps: int):
    """A first look at the validation data puts the model into evaluation mode."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = make(seed)
        x, y = task.aside()

        def look(step: int) -> None:
            if step % 20:
                return
            model.eval()
            with torch.no_grad():
                loss(model(x), y)
            if not fault:
                model.train()

        return study(model, task, adam(model, rate), loss, steps, before=look)

    return build


for sound, name, build in (
    (
        "yields-train-after-validation",
        "yields-eval-left-on-after-validation",
        validated(lambda s: (field(), yields(s).mapped(lambda x: 40 * x + 100), of_row), 1e-2, 80),
    ),
    (
        "lungs-train-after-validation",
        "lungs-eval-left-on-after-validation",
        validated(lambda s: (KINDS["lungs"](s)[0], lungs(s).mapped(lambda x: 60 * x + 90), bce), 4e-3, 60),
    ),
):
    beside(zoo, sound, name, build, harmed(evaluating), "evaluation_mode", also=MODE)


def target_wins(seed: int, fault: bool) -> Program:
    """A slow copy is to follow every four steps; the names of the two are swapped."""
    model = Dynamics()
    slow = copy.deepcopy(model)

    def follow(step: int) -> None:
        if step % 4 == 3:
            if fault:
                model.load_state_dict(slow.state_dict())
            else:
                slow.load_state_dict(model.state_dict())

    return study(model, poles(seed), adam(model, 4e-3), F.mse_loss, 60, after=follow)


def resumed(seed: int, fault: bool) -> Program:
    """The lines that load a checkpoint stand in the loop over epochs."""
    model, task, loss = KINDS["tweets"](seed)
    saved = copy.deepcopy(model.state_dict())

    def load(step: int) -> None:
        if step == 0 or (fault and step % 8 == 0):
            model.load_state_dict(saved)

    return study(model, task, adam(model, 1e-2), loss, 80, before=load)


for sound, name, build, count in (
    ("poles-copy-follows-the-model", "poles-model-follows-the-copy", target_wins, 10),
    ("tweets-checkpoint-loaded-once", "tweets-checkpoint-loaded-in-each-epoch", resumed, 6),
):
    beside(
        zoo,
        sound,
        name,
        build,
        harmed(at_least(count, "overwritten")),
        "weights_overwritten",
        also={*LEARNS_NOTHING, "rate_too_low", "VANISHING", "DEAD", "LOW_RANK", "BOTTLENECK", "UNSTABLE"},
    )

# --- the same batch


def first_of_loader(seed: int, fault: bool) -> Program:
    """`next(iter(loader))` at each step, of a loader that does not shuffle."""
    model, _, loss = KINDS["tweets"](seed)
    data = loader(tweets(seed), seed, 18, 32, shuffle=False)

    class First:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(80):
                yield next(iter(data))

    batches: Any = First() if fault else data
    score = held_out(model, tweets(seed, batch=256))
    return train(model, batches, supervised(model, loss), adam(model, 2e-2), score, epochs=1 if fault else 3)


def seeded_sampler(seed: int, fault: bool) -> Program:
    """The generator of the sampler is made anew, with the same seed, for each batch."""
    model = mlp([12, 40, 6], nn.GELU)
    x, y = stored(crates(seed), 12).tensors
    random = torch.Generator().manual_seed(seed)

    class Rows:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            while True:
                if fault:
                    random.manual_seed(seed)
                rows = torch.randint(len(x), (32,), generator=random)
                yield x[rows], y[rows]

    score = held_out(model, crates(seed, batch=256), bce)
    return train(model, Rows(), supervised(model, bce), adam(model, 1e-2), score, epochs=1, limit=120)


for sound, name, build in (
    ("tweets-loader-read-to-its-end", "tweets-first-batch-of-the-loader-each-time", first_of_loader),
    ("crates-sampler-seeded-once", "crates-sampler-seeded-for-each-batch", seeded_sampler),
):
    beside(zoo, sound, name, build, harmed(repeats), "same_batch", also={"VANISHING", "SLOW", "DEAD", "LOW_RANK"})

# --- sizes of steps


def rated(name: str, kind: str, good: float, bad: float, steps: int = 70, **options: Any):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=bad if fault else good, **options)
        return study(model, task, optimizer, loss, steps)

    return build


for name, kind, good, bad, steps, options in (
    ("verses", "AdamW", 4e-3, 0.3, 60, {"betas": (0.9, 0.98)}),
    ("petals", "SGD", 0.1, 5.0, 60, {"momentum": 0.9}),
    ("moths", "Adam", 2e-3, 0.2, 50, {}),
    ("buses", "RMSprop", 3e-3, 0.5, 60, {}),
):
    beside(
        zoo,
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(name, kind, good, bad, steps, **options),
        harmed(steps_above(1), worse=1.2),
        *FAST,
        "loss_grows",
        also=THROWN,
    )
for name, kind, good, bad, steps, options in (
    ("defaults", "AdamW", 6e-3, 2e-6, 80, {}),
    ("shells", "SGD", 0.1, 1e-5, 60, {"momentum": 0.9, "nesterov": True}),
    ("poles", "Adam", 4e-3, 1e-6, 60, {}),
):
    beside(
        zoo,
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(name, kind, good, bad, steps, **options),
        harmed(steps_below(1e-4)),
        *CRAWLS,
        also=IDLE,
    )


def summed(name: str, whole: Callable[[Any, Any], Tensor], rate: float, steps: int = 60):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, sgd(model, rate, momentum=0.9), whole if fault else loss, steps, loss)

    return build


for name, whole, rate in (
    ("lungs", lambda o, y: bce(o, y, reduction="sum"), 0.05),
    ("petals", lambda o, y: (o - y).square().sum(), 0.05),
    ("rooms", lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten(), reduction="sum"), 0.2),
):
    beside(
        zoo,
        f"{name}-loss-is-a-mean",
        f"{name}-loss-is-a-sum",
        summed(name, whole, rate),
        harmed(steps_above(1)),
        *SUMMED,
        "loss_grows",
        also=THROWN,
    )


def in_parts(made: Made, parts: int, rate: float, steps: int):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = made(seed)
        optimizer = sgd(model, rate, momentum=0.9)

        def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            value = loss_of()
            (value if fault else value / parts).backward()
            if (i + 1) % parts == 0:
                optimizer.step()
                optimizer.zero_grad()
            return value

        return script(model, optimizer, task, loss, body, steps * parts)

    return build


for sound, name, build in (
    (
        "yields-16-parts-each-divided",
        "yields-16-parts-as-they-are",
        in_parts(lambda s: (mlp([8, 32, 1], nn.Tanh), yields(s, 8), of_row), 16, 0.1, 30),
    ),
    (
        "rooms-12-parts-each-divided",
        "rooms-12-parts-as-they-are",
        in_parts(KINDS["rooms"], 12, 0.2, 25),
    ),
):
    beside(zoo, sound, name, build, harmed(), *UNDIVIDED, "loss_grows", also={*THROWN, "summed_loss"})
