# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Common programs with a fault of the loop: its order, what is cleared, schedules, clipping, modes, copies.

Half: common.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    LambdaLR,
    LinearLR,
    PolynomialLR,
    ReduceLROnPlateau,
    StepLR,
)

from validation.case import Program, Zoo
from validation.cases._common_loops import (
    Clip,
    Coder,
    Decoder,
    Factors,
    Forecaster,
    Pocket,
    ResNet,
    Segmenter,
    SmallCnn,
    Tagger,
    TextCnn,
    WideDeep,
    bce,
    bikes,
    captions,
    cells,
    ends_at,
    faces,
    films,
    fonts,
    gaits,
    leaves,
    loans,
    names,
    offers,
    prose,
    quakes,
    recipes,
    study,
    wines,
)
from validation.cases._everyday_loops import loader, stored, supervised, train
from validation.cases._mistakes import clipped, ordered, scheduled
from validation.evidence import loops as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import EARLY, ENDED, HEAPED, IDLE, LEARNS_NOTHING, NO_RATE, TIGHT, UNBOUND, WIPED, WRECKED
from validation.nets import Actor, mlp
from validation.programs import adam, held_out, script, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="common", proof=learns())
adamw = torch.optim.AdamW

# --- gradients that are never cleared, or not all


def once_per_epoch(seed: int, fault: bool) -> Program:
    """`zero_grad` stands one indentation too far to the left."""
    model = Segmenter()
    optimizer = sgd(model, 0.3, momentum=0.9)
    data, losses = loader(cells(seed), seed, 16, 12), []

    def run() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            for x, y in data:
                if not fault:
                    optimizer.zero_grad()
                loss = bce(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

    score = held_out(model, cells(seed, batch=64), bce)
    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)


zoo.beside(
    "cells-cleared-per-batch",
    "cells-cleared-per-epoch",
    once_per_epoch,
    broken(facts.stale(), less=0.9),
    "missing_zero_grad",
    also={*HEAPED, *WRECKED},
)


def never_cleared(kind: Callable[[int], tuple[nn.Module, object, Callable]], rate: float, steps: int = 70):
    def build(seed: int, fault: bool) -> Program:
        model, task, loss = kind(seed)
        optimizer = adamw(model.parameters(), lr=rate)

        def body(_i: int, _x: object, _y: object, loss_of: Callable[[], Tensor]) -> Tensor:
            if not fault:
                model.zero_grad()
            value = loss_of()
            value.backward()
            optimizer.step()
            return value

        return script(model, optimizer, task, loss, body, steps)

    return build


zoo.beside(
    "decoder-cleared",
    "decoder-never-cleared",
    never_cleared(lambda s: (Decoder(), prose(s), token_loss), 3e-3),
    broken(facts.stale()),
    "missing_zero_grad",
    also={*HEAPED, *WRECKED},
)
zoo.beside(
    "films-cleared",
    "films-never-cleared",
    never_cleared(lambda s: (Factors(), films(s), F.mse_loss), 2e-2, 90),
    broken(facts.stale()),
    "missing_zero_grad",
    also={*HEAPED, *WRECKED},
)


def head_cleared(seed: int, fault: bool) -> Program:
    """Clears the head only, a line from the days when only the head was trained."""
    model = Pocket()
    optimizer = sgd(model, 0.05, momentum=0.9)

    def body(_i: int, _x: Tensor, _y: Tensor, loss_of: Callable[[], Tensor]) -> Tensor:
        (model.fc if fault else model).zero_grad()
        value = loss_of()
        value.backward()
        optimizer.step()
        return value

    return script(model, optimizer, gaits(seed), F.cross_entropy, body, 70)


zoo.beside(
    "gaits-all-cleared",
    "gaits-only-head-cleared",
    head_cleared,
    broken(facts.stale("conv1", "conv2", "bn1", "bn2")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("conv1", "conv2", "bn1", "bn2"),
    also={*HEAPED, *WRECKED},
)


def actor_critic(seed: int, fault: bool) -> Program:
    """An actor and a critic with an optimizer each; the critic's is not cleared."""
    model, task = Actor(6, 4, 32), offers(seed)
    acts = torch.optim.Adam(model.policy.parameters(), lr=5e-3)
    judges = torch.optim.Adam(model.critic.parameters(), lr=5e-3)
    losses: list[float] = []
    random = torch.Generator().manual_seed(seed)

    def run() -> None:
        for _, (state, pay) in zip(range(100), task, strict=False):
            logits, value = model(state)
            logp = logits.log_softmax(dim=1)
            action = torch.multinomial(logp.detach().exp(), 1, generator=random)
            reward = pay.gather(1, action).squeeze(1)
            acts.zero_grad()
            loss = -(logp.gather(1, action).squeeze(1) * (reward - value.detach())).mean()
            loss.backward()
            acts.step()
            if not fault:
                judges.zero_grad()
            wrong = F.mse_loss(value, reward)
            wrong.backward()
            judges.step()
            losses.append(wrong.item())

    score = held_out(model, offers(seed, batch=256), lambda o, pay: 1 - (o[0].softmax(1) * pay).sum(1).mean())
    return Program(model=model, optimizer=[acts, judges], run=run, losses=losses, score=score)


zoo.beside(
    "offers-actor-and-critic",
    "offers-critic-never-cleared",
    actor_critic,
    broken(facts.old_in("critic")),
    "partial_zero_grad",
    "missing_zero_grad",
    layer=("critic.0", "critic.2", "critic.4"),
    also={*HEAPED, *WRECKED},
)

# --- gradients that are gone, steps that come too early


zoo.beside(
    "faces-coder-backward-then-step",
    "faces-coder-cleared-between-backward-and-step",
    ordered("BZS", lambda s: (Coder(), faces(s), F.mse_loss), 5e-3),
    broken(facts.wiped, less=0.01),
    *WIPED,
    also=IDLE,
)


def logged_norms(seed: int, fault: bool) -> Program:
    """A function that logs the norms of the gradients, and clears them when it has seen them."""
    model = WideDeep()
    norms: list[float] = []

    def log(_: int) -> None:
        for p in model.parameters():
            norms.append(p.grad.norm().item())
            if fault:
                p.grad = None

    return study(model, loans(seed), adam(model, 5e-3), bce, 80, ready=log)


zoo.beside(
    "loans-norms-logged",
    "loans-norms-logged-and-cleared",
    logged_norms,
    broken(facts.wiped, less=0.01),
    *WIPED,
    "never_moves",
    also=IDLE,
)
zoo.beside(
    "names-tagger-step-last",
    "names-tagger-step-before-backward",
    ordered("ZSB", lambda s: (Tagger(), names(s), token_loss), 8e-3),
    broken(less=0.01),
    *EARLY,
    also=IDLE,
)


def callbacks(seed: int, fault: bool) -> Program:
    """A trainer with callbacks: one clears and one steps, both at the start of a batch or where they belong."""
    model = Segmenter()
    optimizer = sgd(model, 0.3, momentum=0.9)
    at_start = [optimizer.zero_grad, optimizer.step] if fault else [optimizer.zero_grad]
    at_end = [] if fault else [optimizer.step]

    def body(_i: int, _x: Tensor, _y: Tensor, loss_of: Callable[[], Tensor]) -> Tensor:
        for callback in at_start:
            callback()
        value = loss_of()
        value.backward()
        for callback in at_end:
            callback()
        return value

    return script(model, optimizer, cells(seed), bce, body, 70)


zoo.beside(
    "cells-callback-steps-at-the-end",
    "cells-callback-steps-at-the-start",
    callbacks,
    broken(less=0.01),
    *EARLY,
    also=IDLE,
)

# --- the loss has no way back


def rewrapped(seed: int, fault: bool) -> Program:
    """The loss is made a tensor anew, since a mean of numbers has no backward."""
    model = mlp([7, 40, 40, 1], nn.Tanh)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        each = (model(batch[0]) - batch[1]).square().flatten()
        return torch.tensor([e.item() for e in each], requires_grad=True).mean() if fault else each.mean()

    return study(model, bikes(seed), adam(model, 5e-3), F.mse_loss, 90, loss_of=loss_of)


zoo.beside(
    "bikes-loss-of-tensors",
    "bikes-loss-of-numbers",
    rewrapped,
    broken(facts.nothing_comes(), less=0.01),
    *UNBOUND,
    also={*IDLE, "VANISHING", "DEAD"},
)


def thresholded(seed: int, fault: bool) -> Program:
    """Yes or no is decided before the loss, with `requires_grad_` to silence torch."""
    model = WideDeep()

    def loss_of(batch: tuple) -> Tensor:
        out = model(*batch[0])
        if fault:
            return F.mse_loss((out > 0).float().requires_grad_(), batch[1])
        return F.mse_loss(out.sigmoid(), batch[1])

    return study(model, loans(seed), adam(model, 5e-3), bce, 90, loss_of=loss_of)


zoo.beside(
    "loans-loss-of-probabilities",
    "loans-loss-of-decisions",
    thresholded,
    broken(facts.nothing_comes(), less=0.01),
    *UNBOUND,
    also={*IDLE, "VANISHING", "DEAD"},
)

# --- rates


decoder = lambda s: (Decoder(), prose(s), token_loss)  # noqa: E731
resnet = lambda s: (ResNet(), leaves(s), F.cross_entropy)  # noqa: E731
text = lambda s: (TextCnn(), recipes(s), F.cross_entropy)  # noqa: E731
gru = lambda s: (Forecaster(), quakes(s), F.mse_loss)  # noqa: E731
wide = lambda s: (WideDeep(), loans(s), bce)  # noqa: E731
clip = lambda s: (Clip(), captions(s), F.cross_entropy)  # noqa: E731

zoo.beside(
    "decoder-warm-up-of-20-steps",
    "decoder-warm-up-by-whole-division",
    scheduled(
        decoder,
        3e-3,
        lambda o: LambdaLR(o, lambda i: min(1.0, (i + 1) / 20)),
        lambda o: LambdaLR(o, lambda i: min(1, i // 2000)),
    ),
    broken(facts.rate_below(1e-12), less=0.01),
    *NO_RATE,
    "never_moves",
    also={*IDLE, "rate_too_low", "schedule_ended"},
)


def searched(seed: int, fault: bool) -> Program:
    """A search for the rate sets it to zero before it begins, and the best rate is put back, or not."""
    model = Segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for group in optimizer.param_groups:
        group["lr"] = 0.0 if fault else 0.3
    return study(model, cells(seed), optimizer, bce, 70)


zoo.beside(
    "cells-rate-put-back-after-search",
    "cells-rate-left-at-zero-after-search",
    searched,
    broken(facts.rate_below(1e-12), less=0.01),
    *NO_RATE,
    "never_moves",
    also={*IDLE, "rate_too_low", "schedule_ended"},
)
zoo.beside(
    "leaves-step-lr-every-20",
    "leaves-step-lr-every-batch",
    scheduled(resnet, 3e-3, lambda o: StepLR(o, 20, 0.5), lambda o: StepLR(o, 1, 0.3)),
    broken(facts.rate_below(1e-6), less=0.9),
    *ENDED,
    "rate_too_low",
    also=IDLE,
)
zoo.beside(
    "recipes-polynomial-over-all-steps",
    "recipes-polynomial-over-five-steps",
    scheduled(text, 4e-3, lambda o: PolynomialLR(o, 90), lambda o: PolynomialLR(o, 5)),
    broken(facts.rate_below(1e-9), less=0.6),
    *ENDED,
    "zero_rate",
    "rate_too_low",
    also={*IDLE, "only_decay"},
)
zoo.beside(
    "quakes-linear-to-a-tenth",
    "quakes-linear-to-zero-in-eight-steps",
    scheduled(gru, 5e-3, lambda o: LinearLR(o, 1.0, 0.1, 80), lambda o: LinearLR(o, 1.0, 0.0, 8)),
    broken(facts.rate_below(1e-9), less=0.6),
    *ENDED,
    "zero_rate",
    "rate_too_low",
    also={*IDLE, "only_decay"},
)


def patience(seed: int, fault: bool) -> Program:
    """Lowers the rate when the loss of a batch has not fallen for two steps; patience was meant in epochs."""
    model = WideDeep()
    optimizer = adam(model, 5e-3)
    schedule = ReduceLROnPlateau(optimizer, factor=0.3, patience=0 if fault else 15, min_lr=0.0, threshold=0.02)
    seen: list[float] = []

    def loss_of(batch: tuple) -> Tensor:
        loss = bce(model(*batch[0]), batch[1])
        seen.append(loss.item())
        return loss

    return study(model, loans(seed), optimizer, bce, 120, loss_of=loss_of, after=lambda _: schedule.step(seen[-1]))


zoo.beside(
    "loans-plateau-patience-15",
    "loans-plateau-no-patience",
    patience,
    broken(facts.rate_below(1e-5), less=0.8),
    *ENDED,
    "rate_too_low",
    also={*IDLE, "zero_rate"},
)

# --- clipping


zoo.beside(
    "captions-clip-norm-1",
    "captions-clip-norm-0.001",
    clipped(clip, 0.05, 1.0, 1e-3),
    broken(facts.clipped_by(50), less=0.3),
    *TIGHT,
    "rate_too_low",
    also=IDLE,
)
zoo.beside(
    "leaves-clip-value-0.5",
    "leaves-clip-value-1e-5",
    clipped(resnet, 0.05, 0.5, 1e-5, by_value=True),
    broken(facts.clipped_by(50), less=0.3),
    *TIGHT,
    "rate_too_low",
    also=IDLE,
)

# --- modes


def moded(make: Callable[[int], tuple], rate: float, when: str):
    """A network that comes in evaluation mode from the function that loads it, or is put there by a validation."""

    def build(seed: int, fault: bool) -> Program:
        model, task, loss = make(seed)
        if when == "loaded":
            model.eval()
            if not fault:
                model.train()

        def check(step: int) -> None:
            if when == "checked" and step % 10 == 0:
                model.eval()
                with torch.no_grad():
                    loss(model(task.aside()[0]), task.aside()[1])
                if not fault:
                    model.train()

        return study(model, task, adam(model, rate), loss, 70, before=check)

    return build


pixels = lambda s: (ResNet(), leaves(s).mapped(lambda x: 60 * x + 120), F.cross_entropy)  # noqa: E731
zoo.beside(
    "pixels-checked-and-back-to-training",
    "pixels-checked-and-left-in-evaluation",
    moded(pixels, 3e-3, "checked"),
    broken(facts.evaluating, less=0.95),
    "evaluation_mode",
    also={"first_loss_high", "input_scales", "rate_too_high", *WRECKED, "UNSTABLE", "EXPLODING", "SLOW"},
)


counts = lambda s: (Pocket(), gaits(s).mapped(lambda x: 60 * x + 500), F.cross_entropy)  # noqa: E731
zoo.beside(
    "gaits-loaded-and-back-to-training",
    "gaits-loaded-and-left-in-evaluation",
    moded(counts, 3e-3, "loaded"),
    broken(all_of(facts.evaluating, ends_at(0.3))),
    "evaluation_mode",
    also={"first_loss_high", "input_scales", "rate_too_high", *WRECKED, "UNSTABLE", "EXPLODING", "SLOW"},
)

# --- weights that somebody else sets


def shadowed(seed: int, fault: bool) -> Program:
    """A slow average of the weights; for each validation it is put in, and the own weights are not put back."""
    model = TextCnn()
    slow = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def after(step: int) -> None:
        for name, value in model.state_dict().items():
            slow[name].lerp_(value, 0.01)
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(slow)
        if not fault:
            model.load_state_dict(own)

    return study(model, recipes(seed), adam(model, 4e-3), steps=80, after=after)


zoo.beside(
    "recipes-average-put-in-and-out",
    "recipes-average-left-in",
    shadowed,
    broken(facts.overwritten, less=0.5),
    "weights_overwritten",
    also={*LEARNS_NOTHING, "rate_too_low"},
)


def best_kept(seed: int, fault: bool) -> Program:
    """Keeps the best weights by the loss of one batch and goes back to them whenever a batch is worse."""
    model, task = mlp([13, 40, 40, 5]), wines(seed)
    best: list = [9.0, copy.deepcopy(model.state_dict())]
    losses: list[float] = []

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        losses.append(loss.item())
        return loss

    def after(_: int) -> None:
        if losses[-1] < best[0]:
            best[:] = [losses[-1], copy.deepcopy(model.state_dict())]
        elif fault:
            model.load_state_dict(best[1])

    return study(model, task, sgd(model, 0.1), steps=90, loss_of=loss_of, after=after)


zoo.beside(
    "wines-best-weights-kept",
    "wines-goes-back-to-best-at-every-batch",
    best_kept,
    broken(facts.overwritten, less=0.8),
    "weights_overwritten",
    also={*LEARNS_NOTHING, "rate_too_low"},
)

# --- the same batch


def one_batch(seed: int, fault: bool) -> Program:
    """A batch was taken out of the loader to see whether the network can learn it, and it stayed so."""
    model, data = SmallCnn(), loader(fonts(seed), seed, 10)
    first = [next(iter(data))]
    score = held_out(model, fonts(seed, batch=256))
    return train(
        model, first if fault else data, supervised(model), adam(model, 3e-3), score, epochs=80 if fault else 8
    )


zoo.beside(
    "fonts-all-batches",
    "fonts-one-batch-left-from-a-test",
    one_batch,
    broken(facts.repeats),
    "same_batch",
    also={"VANISHING", "SLOW", "DEAD"},
)


def reseeded(seed: int, fault: bool) -> Program:
    """Draws each batch by a generator that is made inside the function."""
    model = mlp([13, 40, 40, 5])
    x, y = stored(wines(seed), 12).tensors
    random = torch.Generator().manual_seed(seed)

    def sample() -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(42) if fault else random
        rows = torch.randint(len(x), (16,), generator=source)
        return x[rows], y[rows]

    class Batches:
        def __iter__(self):
            while True:
                yield sample()

    score = held_out(model, wines(seed, batch=256))
    return train(model, Batches(), supervised(model), adam(model, 5e-3), score, epochs=1, limit=90)


zoo.beside(
    "wines-generator-made-once",
    "wines-generator-made-for-each-batch",
    reseeded,
    broken(facts.repeats),
    "same_batch",
    also={"VANISHING", "SLOW"},
)
