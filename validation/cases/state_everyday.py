# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Ordinary programs whose optimizer is set up wrongly or whose data hold one spoilt row, and settings that are fine.

Half: everyday.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

from validation.case import Program, Zoo
from validation.cases._everyday_loops import LeNet, TextClassifier, Vae, elbo, loader, stored, supervised, train
from validation.evidence import states as facts
from validation.evidence.loops import broken, learns
from validation.labels import LONG_MEMORY, ROUNDED_OFF, SPOILT, UNDERFLOWN
from validation.nets import LanguageModel, SequenceModel, UNet, he_, mlp
from validation.programs import fit, held_out
from validation.states import BROKEN, IDLE, Made, loop
from validation.tasks.everyday import bends, stains
from validation.tasks.sequences import markov, token_loss
from validation.tasks.signals import images
from validation.tasks.task import drawn_once
from validation.tasks.trades import homes, loads, majority
from validation.tasks.vectors import blobs

zoo = Zoo("state", half="everyday", proof=learns())
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
LOST = BROKEN | {"all_masked", "only_decay", "zero_rate"}

# --- what is trained: a network, its task, its loss, a rate for Adam

digits: Made = (lambda: LeNet(3, 8, 8, norm=True), lambda s: images(s, size=8), F.cross_entropy, 2e-3)
plain: Made = (lambda: LeNet(3, 8, 8), lambda s: images(s, size=8), F.cross_entropy, 2e-3)
texts: Made = (lambda: TextClassifier(6, 6), majority, F.cross_entropy, 5e-3)
words: Made = (lambda: LanguageModel(20, 32, 2, 1), lambda s: markov(s, 20, 12, 16), token_loss, 3e-3)
house: Made = (lambda: mlp([9, 48, 48, 1], nn.SiLU), homes, F.mse_loss, 4e-3)
power: Made = (
    lambda: SequenceModel(nn.LSTM(1, 32, batch_first=True), 1, every_step=True),
    loads,
    F.mse_loss,
    5e-3,
)
masks: Made = (lambda: UNet(8, 12), stains, F.binary_cross_entropy_with_logits, 4e-3)

base = {
    name: zoo.healthy(f"everyday-{name}-adam", loop(made, lambda p, r: adam(p, r)))
    for name, made in {"digits": digits, "texts": texts, "words": words, "house": house, "power": power}.items()
}

# --- eps

zoo.sick(
    "everyday-digits-eps-1-from-another-framework",
    loop(digits, lambda p, r: adam(p, r, eps=1.0)),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    "SLOW",
    also=IDLE,
    control=base["digits"],
)
zoo.sick(
    "everyday-texts-eps-0.5",
    loop(texts, lambda p, r: adam(p, r, eps=0.5)),
    broken(facts.eps_above_gradients(), less=0.3),
    "eps_rules",
    "SLOW",
    also=IDLE,
    control=base["texts"],
)
zoo.sick(
    "everyday-power-loss-divided-by-all-hours",
    loop(power, lambda p, r: adam(p, r), scale=1e-8),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    "SLOW",
    also=IDLE,
    control=base["power"],
)
zoo.healthy("everyday-words-eps-1e-6", loop(words, lambda p, r: adamw(p, r, eps=1e-6)))
zoo.healthy("everyday-digits-eps-1e-4", loop(digits, lambda p, r: adam(p, r, eps=1e-4)))
zoo.healthy("everyday-power-loss-times-0.01", loop(power, lambda p, r: adam(p, r), scale=0.01))
zoo.healthy("everyday-house-loss-times-1000", loop(house, lambda p, r: adam(p, r), scale=1000.0))

# --- 16 bits

low = {
    name: zoo.healthy(f"everyday-{name}-all-in-bfloat16", loop(made, lambda p, r: adamw(p, r), dtype=torch.bfloat16))
    for name, made in {"texts": texts, "plain": plain}.items()
}
for name, made, rate in (("texts", texts, 1e-5), ("plain", plain, 5e-6)):
    zoo.sick(
        f"everyday-{name}-all-in-bfloat16-rate-{rate:g}",
        loop(made, lambda p, _, rate=rate: adamw(p, rate), dtype=torch.bfloat16),
        broken(facts.same_bits(), less=0.3),
        *ROUNDED_OFF,
        also=IDLE,
        control=low[name],
    )


def tuned(seed: int, dtype: torch.dtype) -> Program:
    """A trained regressor goes on at 1e-4 with its weights cut to 16 bits, or not."""
    model = mlp([9, 64, 64, 1], nn.SiLU)
    fit(model, homes(seed), adam(model.parameters(), 4e-3), 30, F.mse_loss).run()
    model.zero_grad(set_to_none=True)
    model.to(dtype)
    task = homes(seed + 1).mapped(lambda x: x.to(dtype))
    return fit(model, task, sgd(model.parameters(), 2e-3, momentum=0.9), 100, lambda o, y: F.mse_loss(o.float(), y))


tuned_whole = zoo.healthy("everyday-regressor-goes-on-in-float32", lambda s: tuned(s, torch.float32))
zoo.sick(
    "everyday-regressor-goes-on-in-bfloat16",
    lambda s: tuned(s, torch.bfloat16),
    broken(facts.same_bits(0.6), less=0.9),
    *ROUNDED_OFF,
    also=IDLE,
    control=tuned_whole,
)

for name, made in {"digits": plain, "house": house, "words": words}.items():
    zoo.sick(
        f"everyday-{name}-all-in-float16",
        loop(made, lambda p, r: adam(p, r), dtype=torch.float16),
        broken(facts.no_second_moment(), less=0.2),
        *UNDERFLOWN,
        also=LOST,
        control=base[name],
    )

# --- decay

zoo.healthy("everyday-words-decay-0.1", loop(words, lambda p, r: adamw(p, r, weight_decay=0.1)))
zoo.healthy("everyday-texts-decay-0.01", loop(texts, lambda p, r: adamw(p, r, weight_decay=0.01)))
decayed = zoo.healthy("everyday-digits-sgd-decay-5e-4", loop(plain, lambda p, _: sgd(p, 0.03, 0.9, weight_decay=5e-4)))
zoo.sick(
    "everyday-words-decay-30",
    loop(words, lambda p, r: adamw(p, r, weight_decay=30)),
    broken(facts.shrunk(), less=0.5),
    "decay_dominates",
    also=BROKEN,
    control=base["words"],
)
zoo.sick(
    "everyday-digits-sgd-decay-0.5",
    loop(plain, lambda p, _: sgd(p, 0.03, 0.9, weight_decay=0.5)),
    broken(facts.shrunk(), less=0.5),
    "decay_dominates",
    also=BROKEN,
    control=decayed,
)
zoo.sick(
    "everyday-house-decay-50",
    loop(house, lambda p, r: adamw(p, r, weight_decay=50)),
    broken(facts.shrunk(), less=0.5),
    "decay_dominates",
    also=BROKEN,
    control=base["house"],
)

# --- momentum

pushed = {
    "digits": zoo.healthy("everyday-digits-momentum-0.9", loop(plain, lambda p, _: sgd(p, 0.03, momentum=0.9))),
    "house": zoo.healthy("everyday-house-momentum-0.9", loop(house, lambda p, _: sgd(p, 0.15, momentum=0.9))),
}
for name, made, rate, share in (("digits", plain, 0.03, 0.999), ("house", house, 0.15, 0.999)):
    zoo.sick(
        f"everyday-{name}-momentum-{share}",
        loop(made, lambda p, _, rate=rate, share=share: sgd(p, rate, momentum=share)),
        broken(facts.remembers(), less=0.6),
        *LONG_MEMORY,
        also=BROKEN,
        control=pushed[name],
    )
zoo.healthy("everyday-house-nesterov-0.95", loop(house, lambda p, _: sgd(p, 0.02, momentum=0.95, nesterov=True)))

# --- the state is lost


def restarted(seed: int, every: int, made: Made = texts) -> Program:
    """A job that is preempted often: it saves its weights, and its optimizer starts anew each time."""
    model, task = made[0](), made[1](seed)
    optimizer = adam(model.parameters(), made[3], betas=(0.95, 0.999))
    fresh = copy.deepcopy(optimizer.state_dict())

    def after(step: int) -> None:
        if every and (step + 1) % every == 0:
            optimizer.load_state_dict(fresh)

    score = held_out(model, task, made[2])
    return train(model, task, supervised(model, made[2]), optimizer, score, epochs=1, limit=90, after=after)


def emptied(seed: int, every: int) -> Program:
    """The state is emptied to save memory before each validation, that is, after a few steps."""
    model, task = UNet(8, 12), stains(seed)
    optimizer = adam(model.parameters(), 4e-3)

    def after(step: int) -> None:
        if every and (step + 1) % every == 0:
            optimizer.state.clear()

    bce = F.binary_cross_entropy_with_logits
    return train(
        model, task, supervised(model, bce), optimizer, held_out(model, task, bce), epochs=1, limit=80, after=after
    )


steady = zoo.healthy("everyday-texts-job-goes-through", lambda s: restarted(s, 0))
steady_words = zoo.healthy("everyday-words-job-goes-through", lambda s: restarted(s, 0, words))
kept = zoo.healthy("everyday-masks-state-kept", lambda s: emptied(s, 0))
for name, build, twin in (
    ("texts-state-fresh-every-2", lambda s: restarted(s, 2), steady),
    ("words-state-fresh-every-4", lambda s: restarted(s, 4, words), steady_words),
    ("masks-state-emptied-every-5", lambda s: emptied(s, 5), kept),
):
    zoo.sick(f"everyday-{name}", build, broken(facts.young), "state_reset", also=BROKEN, control=twin)


def resumed(seed: int) -> Program:
    """Goes on in the middle, once, with weights and state as they were saved."""
    model, task = texts[0](), texts[1](seed)
    optimizer = adam(model.parameters(), texts[3])
    saved: dict[str, Any] = {}

    def after(step: int) -> None:
        if step == 40:
            saved.update(copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])

    return train(model, task, supervised(model), optimizer, held_out(model, task), epochs=1, limit=90, after=after)


zoo.healthy("everyday-texts-resumed-once", resumed)

# --- one sample

Spoil = Callable[[Tensor, Tensor, int], None]


def shopped(seed: int, spoil: Spoil | None) -> Program:
    """Prices from a loader; one row may be wrong in the file."""
    x, y = (part.clone() for part in stored(homes(seed, batch=32), 10).tensors)
    if spoil is not None:
        spoil(x, y, int(torch.randint(len(x), (), generator=drawn_once(seed, 61))))
    data = DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    model = mlp([9, 40, 40, 1], nn.SiLU)
    score = held_out(model, homes(seed, batch=256), F.mse_loss)
    return train(model, data, supervised(model, F.mse_loss), adam(model.parameters(), 4e-3), score, epochs=6, clip=1.0)


def in_cents(_x: Tensor, y: Tensor, row: int) -> None:
    y[row] = 40000.0


def no_comma(x: Tensor, _y: Tensor, row: int) -> None:
    x[row] *= 3000.0


clean = zoo.healthy("everyday-shop-clean", lambda s: shopped(s, None))
zoo.sick(
    "everyday-shop-one-price-in-cents",
    lambda s: shopped(s, in_cents),
    broken(facts.spikes()),
    *SPOILT,
    "EXPLODING",
    also=LOST,
    control=clean,
)
zoo.sick(
    "everyday-shop-one-row-without-commas",
    lambda s: shopped(s, no_comma),
    broken(facts.spikes()),
    *SPOILT,
    "EXPLODING",
    also=LOST | {"input_scales"},
    control=clean,
)


def meters(seed: int, spoilt: bool) -> Program:
    """Windows of a meter from a loader; once the meter was reset, and one window ends in a huge value."""
    x, y = (part.clone() for part in stored(loads(seed), 8).tensors)
    if spoilt:
        y[int(torch.randint(len(x), (), generator=drawn_once(seed, 62))), -1] = 2000.0
    data = DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    model = SequenceModel(nn.GRU(1, 24, batch_first=True), 1, every_step=True)
    score = held_out(model, loads(seed, batch=128), F.mse_loss)
    optimizer = adam(model.parameters(), 5e-3)
    return train(model, data, supervised(model, F.mse_loss), optimizer, score, epochs=6, clip=1.0)


meter = zoo.healthy("everyday-meter", lambda s: meters(s, False))
zoo.sick(
    "everyday-meter-reset-once",
    lambda s: meters(s, True),
    broken(facts.spikes()),
    *SPOILT,
    "EXPLODING",
    also=LOST,
    control=meter,
)

# --- healthy: other optimizers and settings

zoo.healthy("everyday-words-beta2-0.95", loop(words, lambda p, r: adamw(p, r, betas=(0.9, 0.95))))
zoo.healthy("everyday-words-amsgrad", loop(words, lambda p, r: adam(p, r, amsgrad=True)))
zoo.healthy("everyday-masks-rmsprop", loop(masks, lambda p, _: torch.optim.RMSprop(p, 1e-3)))
zoo.healthy("everyday-texts-radam", loop(texts, lambda p, r: torch.optim.RAdam(p, r * 2)))
zoo.healthy("everyday-house-adagrad", loop(house, lambda p, _: torch.optim.Adagrad(p, 0.05)))
zoo.healthy("everyday-words-adafactor", loop(words, lambda p, _: torch.optim.Adafactor(p, 0.02)))
zoo.healthy("everyday-power-nadam", loop(power, lambda p, r: torch.optim.NAdam(p, r)))
zoo.healthy("everyday-house-adamax", loop(house, lambda p, r: torch.optim.Adamax(p, r * 2)))
zoo.healthy("everyday-digits-plain-sgd", loop(digits, lambda p, _: sgd(p, 0.1)))


def grouped(seed: int) -> Program:
    """Decay for matrices only, cosine, clipping at 1."""
    model, task = LanguageModel(20, 32, 2, 1, tied=True), markov(seed, 20, 12, 16)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = adamw([{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 3e-3)
    schedule = CosineAnnealingLR(optimizer, 80)
    return train(
        model,
        task,
        supervised(model, token_loss),
        optimizer,
        held_out(model, task, token_loss),
        epochs=1,
        limit=80,
        clip=1.0,
        after=lambda _: schedule.step(),
    )


zoo.healthy("everyday-words-decay-groups-cosine-clip", grouped)


def noisy_rows(seed: int) -> Program:
    """Prices with heavy tails, which a Huber loss takes as they come."""
    heavy = torch.distributions.StudentT(4.0)

    def shake(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y + 0.2 * heavy.sample(y.shape)

    model = mlp([9, 40, 40, 1], nn.SiLU)
    data = loader(homes(seed).changed(shake), seed, 20, 32)
    score = held_out(model, homes(seed, batch=256), F.mse_loss)
    return train(model, data, supervised(model, F.smooth_l1_loss), adam(model.parameters(), 4e-3), score, epochs=3)


zoo.healthy("everyday-prices-with-heavy-tails", noisy_rows)


def compressed(seed: int) -> Program:
    model = Vae(24)
    return fit(model, bends(seed), adamw(model.parameters(), 4e-3), 100, elbo(0.01), lambda o, x: F.mse_loss(o[0], x))


zoo.healthy("everyday-vae-adamw", compressed)


def many_rates(seed: int) -> Program:
    """A rate for each layer, smaller towards the input."""
    model = he_(mlp([20, 48, 48, 5]))
    layers = [model[0], model[2], model[4]]
    optimizer = adamw([{"params": m.parameters(), "lr": 4e-3 * 0.5 ** (2 - i)} for i, m in enumerate(layers)])
    return fit(model, blobs(seed, 20, 5, 64), optimizer, 80)


zoo.healthy("everyday-rates-fall-towards-the-input", many_rates)
