# ruff: noqa: D103 - a case is explained by its name
"""Sound programs: what threads worried about and what turned out normal, and plain ones of good tutorials.

Half: threads.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._common_loops import study
from validation.cases._everyday_loops import loader, supervised, train
from validation.cases._threads_loops import (
    KINDS,
    Bert,
    CharRnn,
    Ecg,
    Fcn,
    Forecast,
    MiniGpt,
    Vgg,
    bce,
    beats,
    concrete,
    dense,
    garments,
    loads,
    posts,
    rate_of,
    spectra,
    square,
    verses,
    vessels,
    wines,
)
from validation.evidence.loops import keeps, learns
from validation.programs import adam, clips, fit, fit_by_closure, held_out, sgd
from validation.tasks import token_loss

zoo = Zoo("loop", half="threads", proof=learns(0.25))
adamw = torch.optim.AdamW
kinds = torch.optim.lr_scheduler

# --- plain programs


def plain(name: str, steps: int = 70, **more: Any):
    def build(seed: int) -> Program:
        model, task, loss = KINDS[name](seed)
        return study(model, task, adam(model, rate_of(name)), loss, steps, **more)

    return build


for name in KINDS:
    zoo.healthy(f"threads-{name}-adam", plain(name))

# --- the order of calls, steps, schedules

# patrickloeber/pytorchTutorial#19, rll/deepul#12: where zero_grad stands does not matter as long as it is not between.
# marrrcin/pytorch-resnet-mnist#2: model.zero_grad() in place of optimizer.zero_grad() is the same here.


def cleared_by_model(seed: int) -> Program:
    model, task, loss = KINDS["garments"](seed)
    optimizer, losses = sgd(model, 0.02, momentum=0.9), []

    def run() -> None:
        for _, (x, y) in zip(range(60), task, strict=False):
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            model.zero_grad()
            losses.append(value.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss))


def cycle(seed: int) -> Program:
    """One cycle of the rate, moved by the batch as it must be: A4Bio/PiFold#6."""
    model, task, loss = KINDS["beats"](seed)
    optimizer = adam(model, 1e-3)
    schedule = kinds.OneCycleLR(optimizer, 1e-2, total_steps=71)
    return study(model, task, optimizer, loss, 70, after=lambda _: schedule.step())


def restarts(seed: int) -> Program:
    """Cosine with warm restarts: the rate comes near zero and jumps up again."""
    model, task, loss = KINDS["wines"](seed)
    optimizer = adam(model, 1e-2)
    schedule = kinds.CosineAnnealingWarmRestarts(optimizer, 20)
    return study(model, task, optimizer, loss, 80, after=lambda _: schedule.step())


def at_last_small(seed: int) -> Program:
    """The rate ends at zero with the training, as a linear schedule should."""
    model, task, loss = KINDS["posts"](seed)
    optimizer = adamw(model.parameters(), lr=5e-3)
    schedule = kinds.LambdaLR(optimizer, lambda i: min((i + 1) / 8, max(0.0, (80 - i) / 72)))
    return study(model, task, optimizer, loss, 80, clip=1.0, after=lambda _: schedule.step())


def by_closure(seed: int) -> Program:
    model, task, loss = KINDS["concrete"](seed)
    data = next(iter(concrete(seed, batch=256)))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    return fit_by_closure(model, task.changed(lambda _x, _y: data), optimizer, 25, loss, concrete(seed, batch=128))


def gathered(seed: int) -> Program:
    """Eight parts make a step, each divided: chrischoy/SpatioTemporalSegmentation#46 as it was meant."""
    model, task, loss = KINDS["loads"](seed)
    optimizer, losses = adam(model, 1e-2), []

    def run() -> None:
        for step, (x, y) in zip(range(160), task, strict=False):
            value = loss(model(x), y)
            (value / 4).backward()
            if (step + 1) % 4 == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(value.item())

    return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, loss))


def always_clipped(seed: int) -> Program:
    """Every step is clipped, hard, and Adam does not mind."""
    model, task, loss = KINDS["verses"](seed)
    return fit(model, task, adam(model, 4e-3), 70, loss, before=clips(model, 0.05))


def two_rates(seed: int) -> Program:
    """The body at a tenth of the rate of the head."""
    model = Vgg(p=0.0)
    groups = [{"params": model.features.parameters(), "lr": 5e-4}, {"params": model.classifier.parameters()}]
    return study(model, garments(seed), torch.optim.Adam(groups, lr=5e-3), steps=70)


def summed_by_adam(seed: int) -> Program:
    """A sum over all dots, which Adam does not see."""
    model = Fcn()
    loss = lambda out, y: bce(out, y, reduction="sum")  # noqa: E731
    return study(model, vessels(seed), adam(model, 5e-3), loss, 60, bce)


def low_rate_tuning(seed: int) -> Program:
    """A trained network goes on at a hundredth of its rate, with recordings of another device."""
    model = Ecg()
    fit(model, beats(seed), adam(model, 5e-3), 50).run()
    model.zero_grad(set_to_none=True)
    task = beats(seed).mapped(lambda x: 0.4 * x + 0.8)
    return study(model, task, adam(model, 3e-4), steps=90)


for name, build in (
    ("garments-cleared-by-the-model-after-the-step", cleared_by_model),
    ("beats-one-cycle", cycle),
    ("wines-warm-restarts", restarts),
    ("posts-linear-to-zero", at_last_small),
    ("concrete-lbfgs", by_closure),
    ("loads-four-parts-a-step", gathered),
    ("verses-every-step-clipped", always_clipped),
    ("garments-body-slower-than-head", two_rates),
    ("vessels-summed-under-adam", summed_by_adam),
    ("beats-tuned-at-a-low-rate", low_rate_tuning),
):
    zoo.healthy(f"threads-{name}", build)

# --- what is not trained, and is not meant to be


def frozen_features(seed: int) -> Program:
    """CSCYQJ/MICCAI23-ProtoContra-SFDA#18: what is frozen is frozen by its parameters; the features were trained."""
    model = Vgg(p=0.0)
    fit(model, garments(seed), adam(model, 5e-3), 50).run()
    model.zero_grad(set_to_none=True)
    model.features.requires_grad_(False)
    model.classifier = dense(80, 24, 6)
    return study(model, garments(seed), adam(model.classifier, 5e-3), steps=50)


def taught(seed: int) -> Program:
    """A student follows a teacher, which is frozen and in evaluation mode, and the labels."""
    teacher, model = dense(9, 64, 64, 4), dense(9, 24, 4)
    fit(teacher, wines(seed), adam(teacher, 5e-3), 60).run()
    teacher.eval().requires_grad_(False)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        soft = F.kl_div((out / 3).log_softmax(1), (teacher(batch[0]) / 3).softmax(1), reduction="batchmean")
        return F.cross_entropy(out, batch[1]) + 9 * soft

    return study(model, wines(seed), adam(model, 5e-3), steps=80, loss_of=loss_of)


def averaged(seed: int) -> Program:
    """aqlaboratory/openfold#90 as it was repaired: averaged weights are put in for a look, and taken out again."""
    model = CharRnn()
    average = copy.deepcopy(model)

    def after(step: int) -> None:
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.1)
        if step % 10 == 9:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.state_dict())
            model.load_state_dict(kept)

    return study(model, verses(seed), adam(model, 1e-2), token_loss, 60, after=after)


def shared_twice(seed: int) -> Program:
    """The head is the table of signs: one tensor, of two names."""
    model = MiniGpt()
    model.lm_head.weight = model.wte.weight
    return study(model, verses(seed), adam(model, 4e-3), token_loss, 80)


def detached_state(seed: int) -> Program:
    """The state of an RNN is carried over and detached, which is how it is done."""
    model, kept = CharRnn(), []

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        out, state = model.gru(model.signs(batch[0]), kept[-1] if kept else None)
        kept.append(state.detach())
        return token_loss(model.head(out), batch[1])

    return study(model, verses(seed), adam(model, 1e-2), token_loss, 60, loss_of=loss_of, clip=1.0)


def large_table(seed: int) -> Program:
    """A table of three thousand words of which a few dozen occur."""
    model = Bert(words=3000)
    return study(model, posts(seed).mapped(lambda x: 83 * x), adam(model, 5e-3), steps=60)


for name, build in (
    ("garments-trained-features-frozen", frozen_features),
    ("wines-student-of-a-frozen-teacher", taught),
    ("poems-average-kept-aside", averaged),
    ("verses-tied-head", shared_twice),
    ("poems-state-detached", detached_state),
    ("posts-table-of-3000-words", large_table),
):
    zoo.healthy(f"threads-{name}", build)

# --- losses that look odd


def smoothed(seed: int) -> Program:
    """Smoothed labels: the loss stays well above zero."""
    model = Vgg()
    loss = lambda out, y: F.cross_entropy(out, y, label_smoothing=0.2)  # noqa: E731
    return study(model, garments(seed), adam(model, 5e-3), loss, 60)


def noisy_labels(seed: int) -> Program:
    """A third of the labels is chance; the loss is high and jumps about."""
    random = torch.Generator().manual_seed(seed + 5)

    def chance(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wrong = torch.rand(y.shape, generator=random) < 0.33
        return x, torch.where(wrong, torch.randint(4, y.shape, generator=random), y)

    model = dense(9, 32, 4)
    return study(model, wines(seed).changed(chance), adam(model, 5e-3), steps=90, score=held_out(model, wines(seed)))


def logarithms(seed: int) -> Program:
    """log_softmax and nll_loss, over the classes."""
    model = Ecg()
    loss = lambda out, y: F.nll_loss(out.log_softmax(dim=1), y)  # noqa: E731
    return study(model, beats(seed), adam(model, 5e-3), loss, 60)


def below_zero(seed: int) -> Program:
    """A likelihood of a normal distribution: the loss goes below zero, which is right."""
    model = dense(7, 32, 32, 2)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        spread = F.softplus(out[:, 1]) + 0.02
        return ((y - out[:, 0]).square() / (2 * spread.square()) + spread.log()).mean()

    score = held_out(model, concrete(seed), lambda out, y: F.mse_loss(out[:, 0], y))
    return study(model, concrete(seed), adam(model, 5e-3), loss, 100, score=score)


def rare(seed: int) -> Program:
    """One row in ten is positive, with a weight for it."""
    model = dense(9, 32, 1)
    task = wines(seed, batch=96).changed(lambda x, y: (x, ((y == 0) & (x[:, 0] > 0)).float()))
    loss = lambda out, y: bce(out.squeeze(1), y, pos_weight=torch.tensor(5.0))  # noqa: E731
    return study(model, task, adam(model, 5e-3), loss, 90)


def finished(seed: int) -> Program:
    """A trained network goes on: small gradients, and a loss that does not fall any more."""
    model = Vgg(p=0.0)
    fit(model, garments(seed), adam(model, 5e-3), 90).run()
    model.zero_grad(set_to_none=True)
    return study(model, garments(seed), adam(model, 1e-4), steps=50)


def overfit(seed: int) -> Program:
    """Few rows, read again and again in small batches; the loss is near zero."""
    model = dense(9, 48, 4)
    return train(
        model,
        loader(wines(seed), seed, 4, 16),
        supervised(model),
        adam(model, 3e-3),
        held_out(model, wines(seed)),
        epochs=8,
    )


def sparse_codes(seed: int) -> Program:
    """A wide layer whose units are mostly zero, by a penalty that wants it so."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 20))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        code = model[1](model[0](batch[0]))
        return F.mse_loss(model[2](code), batch[1]) + 0.02 * code.abs().mean()

    return study(model, spectra(seed), adam(model, 5e-3), F.mse_loss, 90, loss_of=loss_of)


def dropped(seed: int) -> Program:
    """Half of everything is dropped: a training loss above the one that counts."""
    model = Bert(p=0.4)
    return study(model, posts(seed), adam(model, 5e-3), steps=80)


def far_targets(seed: int) -> Program:
    """Targets are scaled for training, and the answer is scaled back."""
    model = Forecast(kind=nn.LSTM)
    task = loads(seed).changed(lambda x, y: (x, (300 * y + 50 - 50) / 300))
    return study(model, task, adam(model, 1e-2), square, 80)


for name, build in (
    ("garments-labels-smoothed", smoothed),
    ("wines-a-third-of-the-labels-is-chance", noisy_labels),
    ("beats-log-softmax-and-nll", logarithms),
    ("concrete-likelihood-below-zero", below_zero),
    ("wines-rare-and-weighted", rare),
    ("wines-few-rows-many-epochs", overfit),
    ("spectra-sparse-codes", sparse_codes),
    ("posts-dropout-0.4", dropped),
    ("loads-lstm-scaled-targets", far_targets),
):
    zoo.healthy(f"threads-{name}", build)
zoo.healthy("threads-garments-goes-on-when-done", finished, keeps(0.1))
