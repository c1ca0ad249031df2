"""Plain programs with a fault of the loop: order, clearing, rates, clipping, modes, sums, copies; and their twins.

Half: plain.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from validation import labels
from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import loader, stored, supervised, train
from validation.cases._mistakes import (
    Loss,
    Schedule,
    cleared_when,
    clipped,
    in_parts,
    ordered,
    rated,
    scheduled,
    summed,
)
from validation.cases._plain_loops import (
    KINDS,
    Desk,
    Heart,
    Mail,
    NeuMf,
    Rows,
    SmallUnet,
    Spectral,
    TwoTasks,
    Vgg,
    bce,
    beats,
    digits,
    doses,
    harmed,
    mails,
    rate_of,
    rents,
    scans,
    shops,
    soils,
    spectra_of,
    tickets,
    tunes,
    two_losses,
)
from validation.evidence import loops as facts
from validation.evidence.loops import learns
from validation.nets import mlp
from validation.programs import adam, held_out, script, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="plain", proof=learns())
adamw = torch.optim.AdamW
PILED = {*labels.HEAPED, *labels.WRECKED, "UNSTABLE", "NUMERICAL", "momentum_too_long"}
THROWN = {*labels.THROWN_OFF, "first_loss_high", "momentum_too_long", "NUMERICAL"}

# --- gradients that are never cleared, or not all


zoo.beside(
    "crops-cleared-at-every-step",
    "crops-cleared-when-it-logs",
    cleared_when(lambda i: i % 25 == 0, KINDS["crops"], 0.1),
    harmed(facts.stale()),
    "missing_zero_grad",
    also=PILED,
)
zoo.beside(
    "glosses-cleared-at-every-step",
    "glosses-never-cleared",
    cleared_when(lambda i: False, KINDS["glosses"], 0.3),
    harmed(facts.stale()),
    "missing_zero_grad",
    also=PILED,
)


def micro(seed: int, fault: bool) -> Program:
    """Four parts to a step; the line that clears was lost when the loop was rewritten for parts."""
    model, task = mlp([9, 32, 32, 1]), rents(seed, 16)
    optimizer = sgd(model, 0.05, momentum=0.9)

    def body(i: int, _x: Tensor, _y: Tensor, loss_of: Loss) -> Tensor:
        value = loss_of()
        (value / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            if not fault:
                optimizer.zero_grad()
        return value

    return script(model, optimizer, task, F.mse_loss, body, 160)


zoo.beside(
    "rents-four-parts-then-cleared",
    "rents-four-parts-never-cleared",
    micro,
    harmed(facts.stale()),
    "missing_zero_grad",
    "undivided_accumulation",
    also=PILED,
)


def two_optimizers(seed: int, fault: bool) -> Program:
    """An optimizer for each half of an autoencoder; only the encoder's is cleared."""
    model = Spectral()
    first, second = sgd(model.encoder, 0.1, momentum=0.9), sgd(model.decoder, 0.1)

    def body(_i: int, _x: Tensor, _y: Tensor, loss_of: Loss) -> Tensor:
        first.zero_grad()
        if not fault:
            second.zero_grad()
        value = loss_of()
        value.backward()
        first.step()
        second.step()
        return value

    return script(model, [first, second], spectra_of(seed), F.mse_loss, body, 90)


zoo.beside(
    "spectra-both-optimizers-cleared",
    "spectra-decoder-never-cleared",
    two_optimizers,
    harmed(facts.old_in("decoder")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("decoder.0", "decoder.1", "decoder.3"),
    also=PILED,
)


def trunk_cleared(seed: int, fault: bool) -> Program:
    """Clears the trunk by name; the heads came later."""
    model = TwoTasks()
    optimizer = sgd(model, 0.03, momentum=0.9)

    def body(_i: int, _x: Tensor, _y: Any, loss_of: Loss) -> Tensor:
        (model.trunk if fault else model).zero_grad()
        value = loss_of()
        value.backward()
        optimizer.step()
        return value

    return script(model, optimizer, doses(seed), two_losses, body, 80)


zoo.beside(
    "doses-trunk-and-heads-cleared",
    "doses-heads-never-cleared",
    trunk_cleared,
    harmed(facts.stale("amount", "kind")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("amount", "kind"),
    also=PILED,
)

# --- gradients that are gone, steps that come too early


zoo.beside(
    "friends-backward-step",
    "friends-backward-clear-step",
    ordered("BZS", KINDS["friends"], 5e-3, "AdamW", weight_decay=0.0),
    harmed(facts.wiped),
    *labels.WIPED,
    "never_moves",
    also=labels.IDLE,
)


def finite_ones(seed: int, fault: bool) -> Program:
    """Gradients that are not finite are thrown away; the test is the wrong way round."""
    model, task, loss = KINDS["tunes"](seed)

    def check(_: int) -> None:
        for p in model.parameters():
            if bool(p.grad.isfinite().all()) == fault:
                p.grad = None

    return study(model, task, adam(model, 4e-3), loss, 60, ready=check)


zoo.beside(
    "tunes-broken-gradients-thrown-away",
    "tunes-finite-gradients-thrown-away",
    finite_ones,
    harmed(facts.wiped),
    *labels.WIPED,
    "never_moves",
    also=labels.IDLE,
)
zoo.beside(
    "tickets-step-at-the-end",
    "tickets-clear-step-backward",
    ordered("ZSB", KINDS["tickets"], 1e-2, "AdamW", weight_decay=0.0),
    harmed(),
    *labels.EARLY,
    "never_moves",
    also=labels.IDLE,
)


def trainer(seed: int, fault: bool) -> Program:
    """A class with `update` and `losses`; `update` is called first, right after it has cleared."""
    model, task = NeuMf(), shops(seed)
    optimizer = adam(model, 2e-2)

    def update() -> None:
        optimizer.step()

    def body(_i: int, _x: Any, _y: Tensor, loss_of: Loss) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        if fault:
            update()
        value = loss_of()
        value.backward()
        if not fault:
            update()
        return value

    return script(model, optimizer, task, bce, body, 80)


zoo.beside(
    "shops-trainer-updates-last",
    "shops-trainer-updates-first",
    trainer,
    harmed(),
    *labels.EARLY,
    "never_moves",
    also=labels.IDLE,
)

# --- the loss has no way back


def accuracy_loss(seed: int, fault: bool) -> Program:
    """One minus the accuracy as a loss, with `requires_grad_` since torch complained."""
    model, task = Vgg(norm=False), digits(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        if fault:
            return (1 - (out.argmax(dim=1) == batch[1]).float().mean()).requires_grad_()
        return F.cross_entropy(out, batch[1])

    return study(model, task, adam(model, 3e-3), steps=60, loss_of=loss_of)


def no_grad_forward(seed: int, fault: bool) -> Program:
    """The forward was copied from the function that evaluates, with its `no_grad`."""
    model, task = Mail(), mails(seed)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.set_grad_enabled(not fault):
            out = model(batch[0])
        return bce(out.requires_grad_() if fault else out, batch[1])

    return study(model, task, adam(model, 6e-3), bce, 70, loss_of=loss_of)


for sound, name, build in (
    ("digits-cross-entropy-as-loss", "digits-accuracy-as-loss", accuracy_loss),
    ("mails-forward-with-gradients", "mails-forward-under-no-grad", no_grad_forward),
):
    zoo.beside(sound, name, build, harmed(facts.nothing_comes()), *labels.UNBOUND, also=labels.NO_WAY_BACK)

# --- rates

zoo.beside(
    "reviews-warm-up-stepped",
    "reviews-warm-up-never-stepped",
    scheduled(
        KINDS["reviews"],
        4e-3,
        lambda o: LambdaLR(o, lambda i: min(1.0, i / 10)),
        lambda o: LambdaLR(o, lambda i: min(1.0, i / 10)),
        stepped=False,
    ),
    harmed(facts.rate_below(1e-12), worse=1.2),
    *labels.NO_RATE,
    "never_moves",
    also={*labels.IDLE, "rate_too_low", "schedule_ended"},
)


def by_batch(seed: int, fault: bool) -> Program:
    """The rate is that for 256 rows, times the rows, divided by 256 as whole numbers."""
    model = Desk()
    rate = 0.02 * 128 // 256 if fault else 0.02 * 128 / 256
    return study(model, tickets(seed, batch=128), adam(model, rate), steps=70)


zoo.beside(
    "tickets-rate-by-batch",
    "tickets-rate-by-batch-whole-division",
    by_batch,
    harmed(facts.rate_below(1e-12)),
    *labels.NO_RATE,
    "never_moves",
    also={*labels.IDLE, "rate_too_low", "schedule_ended"},
)
zoo.beside(
    "spectra-exponential-0.98",
    "spectra-exponential-0.7-at-every-batch",
    scheduled(KINDS["spectra"], 4e-3, lambda o: ExponentialLR(o, 0.98), lambda o: ExponentialLR(o, 0.7)),
    harmed(facts.rate_below(1e-6)),
    *labels.ENDED,
    "rate_too_low",
    also=labels.IDLE,
)
zoo.beside(
    "speech-milestones-in-batches",
    "speech-milestones-in-epochs",
    scheduled(
        KINDS["speech"], 1e-2, lambda o: MultiStepLR(o, [50, 70], 0.1), lambda o: MultiStepLR(o, [4, 8, 10], 0.05)
    ),
    harmed(facts.rate_below(1e-5)),
    *labels.ENDED,
    "rate_too_low",
    also=labels.IDLE,
)


def plateau(seed: int, fault: bool) -> Program:
    """The rate falls when accuracy stops rising; the schedule thinks that it should fall."""
    model, task, loss = KINDS["digits"](seed)
    optimizer = sgd(model, 0.02, momentum=0.9)
    schedule = ReduceLROnPlateau(optimizer, "min" if fault else "max", 0.1, 2 if fault else 10)
    seen: list[float] = []

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        seen.append((out.argmax(dim=1) == batch[1]).float().mean().item())
        return loss(out, batch[1])

    return study(model, task, optimizer, steps=60, loss_of=loss_of, after=lambda _: schedule.step(seen[-1]))


zoo.beside(
    "digits-plateau-of-accuracy-by-max",
    "digits-plateau-of-accuracy-by-min",
    plateau,
    harmed(facts.rate_below(1e-5)),
    *labels.ENDED,
    "rate_too_low",
    also=labels.IDLE,
)

# --- clipping


for name, rate, good, bad, by_value in (
    ("beats", 0.1, 2.0, 1e-3, False),
    ("friends", 0.3, 1.0, 2e-4, False),
    ("rents", 0.05, 1.0, 1e-5, True),
):
    way = "value" if by_value else "norm"
    zoo.beside(
        f"{name}-clip-{way}-{good:g}",
        f"{name}-clip-{way}-{bad:g}",
        clipped(KINDS[name], rate, good, bad, by_value=by_value),
        harmed(facts.clipped_by(30)),
        *labels.TIGHT,
        "rate_too_low",
        also=labels.IDLE,
    )

# --- modes


def from_a_file(seed: int, fault: bool) -> Program:
    """A function that loads the weights gives the model in evaluation mode; columns are as they were measured."""
    model = Rows(p=0.0).eval()
    if not fault:
        model.train()
    return study(model, soils(seed).mapped(lambda x: 40 * x + 300), adam(model, 3e-3), steps=80)


def after_each_epoch(seed: int, fault: bool) -> Program:
    """`train` is called once before the epochs, `eval` after each."""
    model = Vgg(p=0.0)
    task = digits(seed).mapped(lambda x: 60 * x + 128)
    unseen = held_out(model, digits(seed, batch=64).mapped(lambda x: 60 * x + 128))
    model.train()

    def check(_: int) -> None:
        model.eval()
        unseen()
        if not fault:
            model.train()

    check(0)
    return train(
        model, loader(task, seed, 12), supervised(model), sgd(model, 0.02, momentum=0.9), unseen, between=check
    )


zoo.beside(
    "soils-from-a-file-and-train",
    "soils-from-a-file-without-train",
    from_a_file,
    harmed(facts.evaluating),
    "evaluation_mode",
    also=labels.WRONG_MODE,
)
zoo.beside(
    "digits-train-in-every-epoch",
    "digits-train-before-the-epochs",
    after_each_epoch,
    harmed(facts.evaluating),
    "evaluation_mode",
    also=labels.WRONG_MODE,
    twin_proof=learns(idle=("features.0.bias", "features.4.bias")),  # a norm takes them out
)

# --- weights that somebody else sets


def soft_update(seed: int, fault: bool) -> Program:
    """A slow copy follows the model; the arguments are swapped, and the model follows the copy."""
    model = SmallUnet()
    slow = copy.deepcopy(model)

    @torch.no_grad()
    def follow(_: int) -> None:
        for mine, own in zip(slow.parameters(), model.parameters(), strict=True):
            to, of = (own, mine) if fault else (mine, own)
            to.lerp_(of, 0.5)

    return study(model, scans(seed), adam(model, 4e-3), steps=60, after=follow)


def clamped(seed: int, fault: bool) -> Program:
    """Weights are clamped as in a Wasserstein critic, a line that came with the loop."""
    model = Heart()

    @torch.no_grad()
    def clamp(_: int) -> None:
        for p in model.parameters():
            p.clamp_(-0.01 if fault else -5, 0.01 if fault else 5)

    return study(model, beats(seed), adam(model, 4e-3), steps=60, after=clamp)


for sound, name, build in (
    ("scans-copy-follows-the-model", "scans-model-follows-the-copy", soft_update),
    ("beats-weights-below-5", "beats-weights-below-0.01", clamped),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(facts.overwritten),
        "weights_overwritten",
        also={*labels.LEARNS_NOTHING, "rate_too_low", "VANISHING", "DEAD", "LOW_RANK", "BOTTLENECK", "decay_dominates"},
    )

# --- the same batch


def next_iter(seed: int, fault: bool) -> Program:
    """`next(iter(loader))` at every step of a loader that does not shuffle."""
    model = Rows(p=0.0)
    data = loader(soils(seed), seed, 10, 24, shuffle=False)

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            once = iter(data)
            for _ in range(20):
                yield next(iter(data)) if fault else next(once)

    score = held_out(model, soils(seed, batch=256))
    return train(model, Batches(), supervised(model), adam(model, 4e-3), score, epochs=4)


def seeded(seed: int, fault: bool) -> Program:
    """The seed is set inside the loop, for results that can be repeated."""
    model = mlp([9, 40, 40, 1], nn.SiLU)
    x, y = stored(rents(seed), 10).tensors
    random = torch.Generator().manual_seed(seed)

    class Batches:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            while True:
                if fault:
                    random.manual_seed(0)
                rows = torch.randperm(len(x), generator=random)[:24]
                yield x[rows], y[rows]

    score = held_out(model, rents(seed, batch=256), F.mse_loss)
    return train(model, Batches(), supervised(model, F.mse_loss), adam(model, 5e-3), score, epochs=1, limit=110)


for sound, name, build in (
    ("soils-loader-goes-on", "soils-loader-begins-anew-at-every-step", next_iter),
    ("rents-seed-set-once", "rents-seed-set-in-the-loop", seeded),
):
    zoo.beside(sound, name, build, harmed(facts.repeats), "same_batch", also={"VANISHING", "SLOW", "DEAD", "LOW_RANK"})

# --- sizes of steps


for name, kind, good, bad, options in (
    ("reviews", "AdamW", 4e-3, 0.5, {}),
    ("friends", "SGD", 0.3, 100.0, {"momentum": 0.9}),
    ("power", "RMSprop", 3e-3, 0.5, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(KINDS[name], kind, good, bad, **options),
        harmed(facts.steps_above(2), worse=1.2),
        *labels.FAST,
        "loss_grows",
        also=THROWN,
    )
for name, kind, good, bad, options in (
    ("fabrics", "SGD", 0.1, 1e-5, {"momentum": 0.9}),
    ("glosses", "AdamW", 1e-2, 1e-6, {}),
    ("crops", "Adam", 4e-3, 1e-6, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(KINDS[name], kind, good, bad, 80, **options),
        harmed(facts.steps_below(1e-4)),
        *labels.CRAWLS,
        also=labels.IDLE,
    )


for name, whole, rate in (
    ("scans", lambda o, y: F.cross_entropy(o, y, reduction="sum"), 0.1),
    ("rents", lambda o, y: (o - y).square().sum(), 0.05),
):
    zoo.beside(
        f"{name}-mean-over-the-batch",
        f"{name}-sum-over-the-batch",
        summed(KINDS[name], whole, rate, 70),
        harmed(facts.steps_above(2)),
        *labels.SUMMED,
        "loss_grows",
        also=THROWN,
    )


for name, made, parts, rate in (
    ("rents", lambda s: (mlp([9, 32, 32, 1]), rents(s, 8), F.mse_loss), 16, 0.03),
    ("soils", lambda s: (mlp([11, 32, 32, 6]), soils(s, batch=6), F.cross_entropy), 32, 0.2),
):
    zoo.beside(
        f"{name}-{parts}-parts-each-divided",
        f"{name}-{parts}-parts-as-they-are",
        in_parts(made, parts, rate, 30),
        harmed(),
        *labels.UNDIVIDED,
        "loss_grows",
        also={*THROWN, "summed_loss"},
    )

# --- healthy: schedules, optimizers and orders that are fine

FINE: dict[str, tuple[str, Schedule]] = {
    "cosine": ("glosses", lambda o: CosineAnnealingLR(o, 80)),
    "warm-restarts": ("soils", lambda o: CosineAnnealingWarmRestarts(o, 20)),
    "one-cycle": ("reviews", lambda o: OneCycleLR(o, 6e-3, total_steps=82)),
    "polynomial": ("fabrics", lambda o: PolynomialLR(o, 90, 2.0)),
    "warm-up-then-constant": ("tunes", lambda o: LinearLR(o, 0.01, 1.0, 15)),
    "warm-up-then-cosine": (
        "tickets",
        lambda o: SequentialLR(o, [LinearLR(o, 0.05, 1.0, 10), CosineAnnealingLR(o, 70)], [10]),
    ),
    "triangles": ("crops", lambda o: CyclicLR(o, 1e-3, 6e-3, 10, cycle_momentum=False)),
    "exponential-0.96": ("digits", lambda o: ExponentialLR(o, 0.96)),
    "inverse-root": ("friends", lambda o: LambdaLR(o, lambda i: (1 + i / 5) ** -0.5)),
    "halved-twice": ("power", lambda o: MultiStepLR(o, [40, 60], 0.5)),
}
for what, (name, schedule) in FINE.items():
    zoo.healthy(f"plain-{name}-{what}", lambda s, n=name, c=schedule: scheduled(KINDS[n], rate_of(n), c, c)(s, False))
for name, kind, rate, options in (
    ("rents", "NAdam", 4e-3, {}),
    ("soils", "SGD", 0.1, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
    ("shops", "Adagrad", 0.1, {}),
    ("beats", "RAdam", 8e-3, {}),
    ("crops", "Adamax", 8e-3, {}),
    ("spectra", "Adafactor", 0.02, {}),
    ("friends", "RMSprop", 3e-3, {"momentum": 0.5}),
    ("mails", "Rprop", 3e-3, {}),
    ("tunes", "AdamW", 4e-3, {"betas": (0.9, 0.95), "weight_decay": 0.1}),
    ("digits", "SGD", 0.05, {}),
    ("baskets", "Adam", 5e-3, {"amsgrad": True}),
):
    build = rated(KINDS[name], kind, rate, rate, 90, **options)
    zoo.healthy(f"plain-{name}-{kind.lower()}", lambda s, b=build: b(s, False))
for name, made, parts, rate in (
    ("fabrics", KINDS["fabrics"], 3, 0.1),
    ("power", KINDS["power"], 2, 0.2),
):
    zoo.healthy(f"plain-{name}-{parts}-parts", lambda s, m=made, p=parts, r=rate: in_parts(m, p, r, 50)(s, False))
zoo.healthy("plain-tunes-clip-norm-1", lambda s: clipped(KINDS["tunes"], 0.2, 1.0, 1.0)(s, False))
zoo.healthy("plain-speech-clip-norm-0.5", lambda s: clipped(KINDS["speech"], 0.4, 0.5, 0.5, 100)(s, False))


def at_the_end(seed: int) -> Program:
    """Forward, backward, step, clear."""
    model, task, loss = KINDS["crops"](seed)
    optimizer = adam(model, 4e-3)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        value = loss_of()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return script(model, optimizer, task, loss, body, 80)


def summed_under_adam(seed: int) -> Program:
    """A sum over the tokens under Adam, which takes no notice of the factor."""
    model, task, _ = KINDS["glosses"](seed)

    def whole(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")

    return study(model, task, adam(model, 1e-2), whole, 80, token_loss)


def small_batches(seed: int) -> Program:
    """Four rows at a time and a small rate."""
    model = mlp([11, 32, 32, 6])
    score = held_out(model, soils(seed, batch=256))
    return study(model, soils(seed, batch=4), adam(model, 2e-3), steps=150, score=score)


def few_data(seed: int) -> Program:
    """Ten epochs over little data with dropout and decay; the last batch is smaller."""
    model = Vgg(p=0.3)
    data = torch.utils.data.DataLoader(
        stored(digits(seed), 5), 24, shuffle=True, generator=torch.Generator().manual_seed(seed)
    )
    optimizer = adamw(model.parameters(), lr=3e-3, weight_decay=0.05)
    return train(model, data, supervised(model), optimizer, held_out(model, digits(seed, batch=128)), epochs=8)


def backward_twice(seed: int) -> Program:
    """Two losses, each with its own backward, before one step."""
    model, task = TwoTasks(), doses(seed)
    optimizer = adam(model, 5e-3)

    def body(_i: int, x: Tensor, y: tuple[Tensor, Tensor], _: Loss) -> Tensor:
        optimizer.zero_grad()
        amount, kind = model(x)
        first, second = F.mse_loss(amount, y[0]), F.cross_entropy(kind, y[1])
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return first + second

    return script(model, optimizer, task, two_losses, body, 80)


def closure(seed: int) -> Program:
    """Adam with a closure, as LBFGS wants it."""
    model, task, loss = KINDS["rents"](seed)
    optimizer, losses = adam(model, 5e-3), []

    def run() -> None:
        for _, (x, y) in zip(range(80), task, strict=False):

            def again(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                value = loss(model(x), y)
                value.backward()
                return value

            losses.append(optimizer.step(again).item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss))


def curriculum(seed: int) -> Program:
    """Short tunes first, then long ones."""
    model, step = KINDS["tunes"](seed)[0], [0]

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        step[0] += 1
        size = min(12, 3 + step[0] // 6)
        return x[:, :size], y[:, :size]

    score = held_out(model, tunes(seed, batch=64), token_loss)
    return study(model, tunes(seed).changed(cut), adam(model, 4e-3), token_loss, 80, score=score)


for name, build in (
    ("crops-cleared-at-the-end", at_the_end),
    ("glosses-sum-under-adam", summed_under_adam),
    ("soils-four-rows-at-a-time", small_batches),
    ("digits-eight-epochs-over-little-data", few_data),
    ("doses-two-backwards-one-step", backward_twice),
    ("rents-adam-with-closure", closure),
    ("tunes-short-ones-first", curriculum),
):
    zoo.healthy(f"plain-{name}", build)
