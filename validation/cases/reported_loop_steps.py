# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Reported loops in a wrong order, that undo what they do, or whose steps have a wrong size, each beside its repair.

Half: reported.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, StepLR

from validation.case import Program, Zoo
from validation.cases._common_loops import at_least, study
from validation.cases._everyday_loops import loader, supervised, train
from validation.cases._plain_loops import harmed
from validation.cases._reported_loop_nets import Gpt, Lstm, Unet, Waves
from validation.cases._reported_loops import (
    KINDS,
    Loss,
    adversaries,
    bce,
    gan,
    letters,
    motions,
    rate_of,
    scans,
    square,
    ticks,
)
from validation.evidence.loops import (
    Played,
    clipped_by,
    evaluating,
    learns,
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
from validation.programs import adam, held_out, script, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="reported", proof=learns(0.25))
adamw = torch.optim.AdamW
PILED = {*HEAPED, *WRECKED, "NUMERICAL", "momentum_too_long", "SLOW"}
THROWN = {*THROWN_OFF, "first_loss_high", "momentum_too_long", "NUMERICAL", "SLOW"}

# --- gradients that are not cleared


def uncleared(name: str, make: Callable[[nn.Module], torch.optim.Optimizer], steps: int, every: int = 0):
    """`zero_grad` is missing, or is called once in so many steps, which are an epoch."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = make(model)

        def body(i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
            if not fault or (every and i % every == 0):
                optimizer.zero_grad()
            value = loss_of()
            value.backward()
            optimizer.step()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


for sound, name, build in (
    # wenet-e2e/wekws#72: a keyword spotter whose executor steps and never clears.
    (
        "motions-cleared-before-backward",
        "motions-never-cleared",
        uncleared("motions", lambda m: sgd(m, 0.05, momentum=0.9), 80),
    ),
    # pytorch/pytorch#47175: the gradients are cleared at the beginning of each epoch and not of each step.
    (
        "houses-cleared-at-each-step",
        "houses-cleared-at-each-epoch",
        uncleared("houses", lambda m: sgd(m, 0.05), 120, 40),
    ),
    # yastrebksv/TennisCourtDetector#7: a network of heat maps, with Adam, without zero_grad.
    ("courts-cleared-at-each-step", "courts-never-cleared", uncleared("courts", lambda m: adam(m, 5e-3), 80)),
    # huggingface/transformers#340: fine-tuning a GPT, without zero_grad after the step.
    (
        "letters-cleared-after-the-step",
        "letters-never-cleared",
        uncleared("letters", lambda m: adamw(m.parameters(), lr=4e-3), 70),
    ),
):
    zoo.beside(sound, name, build, harmed(stale()), "missing_zero_grad", also=PILED)


def players(model: nn.ModuleDict) -> list[torch.optim.Optimizer]:
    parts = (model["generator"], model["discriminator"])
    return [torch.optim.Adam(part.parameters(), lr=4e-3, betas=(0.5, 0.99)) for part in parts]


def piled(played: Played) -> tuple[bool, str]:
    """The discriminator's gradients are many times what came since its last step."""
    mine = [step for step in played.steps if any(n.startswith("discriminator") for n in step.held)]
    ratios = sorted(math.hypot(*s.held.values()) / max(math.hypot(*s.brought.values()), 1e-12) for s in mine)
    return ratios[len(ratios) // 2] > 3, f"gradients are {ratios[len(ratios) // 2]:.3g} times what came"


# Hsintien-Ng/idinvert_pytorch-reproduced#1, Adversarial-Deep-Learning/code-soup#69: the discriminator is never cleared.
zoo.beside(
    "cloud-both-cleared",
    "cloud-discriminator-never-cleared",
    lambda s, fault: adversaries(s, m := gan(), players(m), steps=180, cleared=(True, not fault)),
    harmed(piled),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("discriminator", "discriminator.0", "discriminator.2", "discriminator.4"),
    also=PILED,
)

# --- gradients that are gone, or come too late


def in_order(name: str, order: str, steps: int, make: Callable[[nn.Module], torch.optim.Optimizer], cosine: int = 0):
    """Each letter is a line of the loop: zero_grad, forward, backward, step."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = make(model)
        schedule = CosineAnnealingLR(optimizer, cosine) if cosine else None

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
            if schedule is not None:
                schedule.step()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


for sound, name, build in (
    # Tony-Y/pytorch_warmup#12: backward, zero_grad, step, and a question about the schedule.
    (
        "digits-clear-then-backward",
        "digits-backward-then-clear",
        in_order("digits", "FBZS", 60, lambda m: adamw(m.parameters(), lr=4e-3, weight_decay=0.0), 80),
    ),
    # sacmehta/EdgeNets#14: the same in a network for segmentation; moving the line above backward helped.
    (
        "scans-clear-above-backward",
        "scans-clear-below-backward",
        in_order("scans", "FBZS", 60, lambda m: sgd(m, 0.1, momentum=0.9)),
    ),
):
    zoo.beside(sound, name, build, harmed(wiped), *WIPED, "never_moves", also=IDLE)
# Stack Overflow 53975717, on what backward and step have to do with each other: the step comes first.
zoo.beside(
    "flowers-step-after-backward",
    "flowers-step-before-backward",
    in_order("flowers", "ZFSB", 80, lambda m: adam(m, 1e-2)),
    harmed(wiped),
    *EARLY,
    "never_moves",
    also=IDLE,
)

# --- rates that are nothing, or end


# Lightning-AI/litgpt#779: the rate is warmed up by a counter that a branch moves on which is never reached.
def counted(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["letters"](seed)
    optimizer, count = adamw(model.parameters(), lr=4e-3), [0]
    batch, part = (1 if fault else 4), 4
    parts = batch // part  # of which a step is made: none, when the batch is smaller than its parts

    def warm(_: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, count[0] / 10)

    def move(_: int) -> None:
        if parts > 0:
            count[0] += 1

    return study(model, task, optimizer, loss, 60, before=warm, after=move)


zoo.beside(
    "letters-warm-up-counts-its-steps",
    "letters-warm-up-never-counts",
    counted,
    harmed(rate_below(1e-12)),
    *NO_RATE,
    "never_moves",
    also={*IDLE, "rate_too_low", "schedule_ended"},
)


def scheduled(
    name: str,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    plan: Callable[..., LRScheduler],
    steps: int,
    epoch: int,
):
    """A schedule in epochs is moved on at each step, or after each epoch of so many steps."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = make(model)
        schedule = plan(optimizer)

        def move(i: int) -> None:
            if fault or i % epoch == epoch - 1:
                schedule.step()

        return study(model, task, optimizer, loss, steps, after=move)

    return build


def linear_to(end: int) -> Callable[[torch.optim.Optimizer], LRScheduler]:
    return lambda optimizer: LambdaLR(optimizer, lambda i: min((i + 1) / 3, max(0.0, (end - i) / end)))


def short_total(seed: int, fault: bool) -> Program:
    """The number of all steps forgets the epochs."""
    model, task, loss = KINDS["reviews"](seed)
    optimizer = adamw(model.parameters(), lr=1e-2)
    schedule = linear_to(10 if fault else 90)(optimizer)
    return study(model, task, optimizer, loss, 80, after=lambda _: schedule.step())


for sound, name, build in (
    # leftthomas/SRGAN#94: StepLR with half of the epochs as its size, moved on at each step.
    (
        "courts-schedule-moves-by-epochs",
        "courts-schedule-moves-by-steps",
        scheduled("courts", lambda m: adam(m, 5e-3), lambda o: StepLR(o, 4, 0.1), 72, 9),
    ),
    # pytorch/tutorials#640: the schedule of a tutorial on transfer learning, 0.1 every seven epochs, moved by batches.
    (
        "photos-schedule-moves-by-epochs",
        "photos-schedule-moves-by-batches",
        scheduled("photos", lambda m: sgd(m, 0.05, momentum=0.9), lambda o: StepLR(o, 7, 0.1), 70, 10),
    ),
    # huggingface/transformers#5316: a linear schedule for too few steps ends at zero long before the training does.
    ("reviews-linear-over-all-steps", "reviews-linear-over-too-few-steps", short_total),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(rate_below(5e-5)),
        *ENDED,
        "zero_rate",
        "rate_too_low",
        also=IDLE,
    )

# --- clipping


# harubaru/waifu-diffusion#64: gradients are clipped while they are still scaled for half precision.
def clipped_scaled(seed: int, fault: bool) -> Program:
    model, task, loss = KINDS["scans"](seed)
    optimizer = sgd(model, 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)

    def body(_i: int, _x: Any, _y: Any, loss_of: Loss) -> Tensor:
        optimizer.zero_grad()
        value = loss_of()
        scaler.scale(value).backward()
        if not fault:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return value

    return script(model, optimizer, task, loss, body, 60, scaler=scaler)


# facebookresearch/detr#198, wandb/senpai#978: the norm of the gradients is 10 to 100, and is clipped at 0.1.
def clipped_at(limit: float):
    def build(seed: int, fault: bool) -> Program:
        model, task, _ = KINDS["courts"](seed)

        def heavy(out: Tensor, y: Tensor) -> Tensor:  # the weights of a detector's parts
            return 50 * F.mse_loss(out, y) + 20 * F.l1_loss(out, y)

        optimizer = sgd(model, 2e-3, momentum=0.9)
        return study(model, task, optimizer, heavy, 80, F.mse_loss, clip=limit if fault else 20.0)

    return build


zoo.beside(
    "scans-clipped-after-unscaling",
    "scans-clipped-while-scaled",
    clipped_scaled,
    harmed(steps_below(1e-4)),
    *TIGHT,
    "rate_too_low",
    also=IDLE,
)
zoo.beside(
    "courts-clipped-at-20",
    "courts-clipped-at-0.1",
    clipped_at(0.1),
    harmed(clipped_by(20)),
    *TIGHT,
    "rate_too_low",
    also=IDLE,
)

# --- modes and weights


def looked_at(make: Callable[[int], Any], rate: float, steps: int, every: int):
    """A look at the validation data, every so many steps, puts the model into evaluation mode."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = make(seed)
        x, y = task.aside()

        def look(step: int) -> None:
            if step % every:
                return
            model.eval()
            with torch.no_grad():
                loss(model(x), y)
            if not fault:
                model.train()

        return study(model, task, sgd(model, rate, momentum=0.9), loss, steps, before=look)

    return build


for sound, name, build in (
    # wkentaro/pytorch-fcn#57: pixels less their mean, and no train() after validate().
    (
        "scans-train-after-validate",
        "scans-no-train-after-validate",
        looked_at(lambda s: (Unet(), scans(s).mapped(lambda x: 110 * x + 40), bce), 0.1, 60, 30),
    ),
    # facebookresearch/clevr-iep#22, fartashf/vsepp#4: the accuracy is checked now and then, the mode is not set back.
    (
        "motions-mode-set-back",
        "motions-mode-not-set-back",
        looked_at(lambda s: (Waves(), motions(s).mapped(lambda x: 60 * x + 100), F.cross_entropy), 0.03, 80, 20),
    ),
):
    zoo.beside(sound, name, build, harmed(evaluating), "evaluation_mode", also=WRONG_MODE)


def begins_anew(name: str, epoch: int, steps: int, rate: float):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        saved = copy.deepcopy(model.state_dict())

        def load(step: int) -> None:
            if step == 0 or (fault and step % epoch == 0):
                model.load_state_dict(saved)

        return study(model, task, adam(model, rate), loss, steps, before=load)

    return build


for sound, name, build, count in (
    # flairNLP/flair#1899, tensorflow/models#3568: each epoch begins from the first weights.
    ("news-weights-kept-between-epochs", "news-weights-loaded-at-each-epoch", begins_anew("news", 6, 90, 5e-3), 10),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(at_least(count, "overwritten")),
        "weights_overwritten",
        also={
            *LEARNS_NOTHING,
            "rate_too_low",
            "VANISHING",
            "DEAD",
            "LOW_RANK",
            "BOTTLENECK",
            "UNSTABLE",
            "state_reset",
        },
    )

# --- the same batch


def first_batch(name: str, seed: int, fault: bool, batches: int, steps: int) -> Program:
    """`next(iter(loader))` in the loop, of a loader that does not shuffle."""
    model, task, loss = KINDS[name](seed)
    data = loader(task, seed, batches, 32, shuffle=False)

    class First:
        def __iter__(self) -> Iterator[Any]:
            for _ in range(steps):
                yield next(iter(data))

    score = held_out(model, KINDS[name](seed)[1], loss)
    rows: Any = First() if fault else data
    return train(
        model,
        rows,
        supervised(model, loss),
        adam(model, rate_of(name)),
        score,
        epochs=1 if fault else max(1, steps // len(data)),
    )


for sound, name, build in (
    # ZhaoJ9014/face.evoLVe#39: the iterator is made within the loop, so the first batch comes each time.
    (
        "faces-iterator-before-the-loop",
        "faces-iterator-within-the-loop",
        lambda s, fault: first_batch("faces", s, fault, 20, 90),
    ),
    # TRAIS-Lab/dattri#188, wandb/examples#444: the same with a loader that does not shuffle.
    (
        "motions-loader-read-to-its-end",
        "motions-first-batch-each-time",
        lambda s, fault: first_batch("motions", s, fault, 16, 64),
    ),
):
    zoo.beside(
        sound,
        name,
        build,
        harmed(repeats),
        "same_batch",
        also={"VANISHING", "SLOW", "DEAD", "LOW_RANK", "rate_too_low", "loss_stuck"},
    )

# --- sizes of steps


def rated(name: str, kind: str, good: float, bad: float, steps: int = 70, **options: Any):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=bad if fault else good, **options)
        return study(model, task, optimizer, loss, steps)

    return build


for name, kind, good, bad, steps, options in (
    # OpenNMT/OpenNMT-tf#744: 2.0, of a schedule that multiplies it, as the plain rate of a GPT.
    ("letters", "Adam", 2.5e-3, 2.0, 60, {"betas": (0.9, 0.998)}),
    # thtrieu/darkflow#1059: Adam at 0.3 and a convolutional network; the loss is lost in early steps.
    ("digits", "Adam", 3e-3, 0.3, 60, {}),
    # flashlight/wav2letter#334: the rate of SGD was kept when the optimizer was changed to Adam.
    ("motions", "Adam", 5e-3, 5.6, 60, {}),
    # facebookresearch/maskrcnn-benchmark#295: the rate of many workers with the batch of one.
    ("houses", "SGD", 0.05, 0.4, 80, {"momentum": 0.9}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(name, kind, good, bad, steps, **options),
        harmed(steps_above(1), worse=1.2),
        *FAST,
        "loss_grows",
        also=THROWN,
    )

for name, kind, good, bad, steps, options in (
    # AmingWu/Single-DGOD#21: lowered to 1e-5 against NaN, and then it does not converge.
    ("photos", "SGD", 0.05, 1e-5, 60, {"momentum": 0.9}),
    # TheLastBen/fast-stable-diffusion#2608: 3e-8 for fine-tuning.
    ("phrases", "AdamW", 8e-3, 3e-8, 80, {}),
):
    zoo.beside(
        f"{name}-{kind.lower()}-at-{good:g}",
        f"{name}-{kind.lower()}-at-{bad:g}",
        rated(name, kind, good, bad, steps, **options),
        harmed(steps_below(1e-4)),
        *CRAWLS,
        also={*IDLE, "lost_updates"},
    )


# jfzhang95/pytorch-deeplab-xception#55: the loss is a mean already, and is divided by the batch once more.
def averaged_twice(seed: int, fault: bool) -> Program:
    model = Unet()
    task = scans(seed, batch=48)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        mean = bce(out, y)
        return mean / len(out) if fault else mean

    return study(model, task, sgd(model, 0.03, momentum=0.9), loss, 40, bce)


zoo.beside(
    "scans-loss-averaged-once",
    "scans-loss-averaged-twice",
    averaged_twice,
    harmed(steps_below(1e-3)),
    *CRAWLS,
    also=IDLE,
)


def summed(name: str, whole: Callable[[Any, Any], Tensor], rate: float, steps: int = 60):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, sgd(model, rate, momentum=0.9), whole if fault else loss, steps, loss)

    return build


for name, whole, rate in (
    # ai-safety-foundation/sparse_autoencoder#63: a sum over the batch.
    ("codes", lambda out, y: (out - y).square().sum(), 0.05),
    # shubham-goel/4D-Humans#85: the loss is summed over all dimensions and not divided by the batch.
    ("traffic", lambda out, y: (out.squeeze(-1) - y).square().sum(), 0.05),
    # pytorch/tutorials#187: size_average=False, which changes the rate as well.
    ("photos", lambda out, y: F.cross_entropy(out, y, reduction="sum"), 0.05),
):
    zoo.beside(
        f"{name}-loss-is-a-mean",
        f"{name}-loss-is-a-sum",
        summed(name, whole, rate),
        harmed(steps_above(1)),
        *SUMMED,
        "loss_grows",
        also=THROWN,
    )


def in_parts(make: Callable[[int], Any], parts: int, rate: float, steps: int):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = make(seed)
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
    # karpathy/nanoGPT#206, fastai/fastai#3023: the loss of each part is not divided by the number of parts.
    (
        "letters-parts-divided",
        "letters-parts-not-divided",
        in_parts(lambda s: (Gpt(width=16, depth=1), letters(s, batch=4), token_loss), 32, 0.3, 24),
    ),
    # hirofumi0810/neural_sp#168: the same in a recurrent network.
    (
        "ticks-parts-divided",
        "ticks-parts-not-divided",
        in_parts(lambda s: (Lstm(), ticks(s, batch=8), square), 24, 0.1, 30),
    ),
):
    zoo.beside(sound, name, build, harmed(), *UNDIVIDED, "loss_grows", also={*THROWN, "summed_loss"})
