# ruff: noqa: D103 - a case is explained by its name, a forward by its class
"""Faults of the optimizer's memory and of single samples: networks, optimizers and ways that no other half has.

Half: veiled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from validation.evidence import states as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import SPOILT, TOO_LATE, UNDERFLOWN
from validation.nets import mlp
from validation.programs import clips, held_out, learn, nothing, shuffled, train_step
from validation.states import BROKEN, IDLE, clears, loop, zeroes
from validation.tasks import token_loss

zoo = Zoo("state", half="veiled", proof=learns())
Optimizer = torch.optim.Optimizer
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
low, lower = torch.bfloat16, torch.float16

HUMS = (Hum, engines, F.cross_entropy, 8e-3)
TILES = (Mosaic, lambda s: tiles(s, noise=1.0), F.cross_entropy, 5e-3)
BUOYS = (Buoy, drifts, F.mse_loss, 1e-2)
CHOIRS = (Choir, chants, token_loss, 5e-3)
VERSES = (Verse, mottos, F.cross_entropy, 1e-2)
TWINS = (Twins, rhymes, F.cross_entropy, 8e-3)
BILLS = (Bills, lambda s: ledgers(s, batch=128), F.binary_cross_entropy_with_logits, 1e-2)
ROWS = (lambda: mlp([28, 40, 10, 40, 28], nn.GELU), wardrobes, F.mse_loss, 5e-3)
FINCHES = (lambda: mlp([20, 48, 48, 7], nn.SiLU), lambda s: finches(s, noise=1.2), F.cross_entropy, 4e-3)
ISLES = (
    lambda: nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 1, 3, padding=1)),
    islands,
    F.binary_cross_entropy_with_logits,
    1e-2,
)

# --- eps

choirs = zoo.healthy("veiled-choirs-adamw", loop(CHOIRS, lambda p, r: adamw(p, r), steps=70))
zoo.sick(
    "veiled-choirs-adamw-eps-0.5",
    loop(CHOIRS, lambda p, r: adamw(p, r, eps=0.5), steps=70),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=choirs,
)
tiny = zoo.healthy(
    "veiled-buoys-loss-over-1e8-eps-1e-16", loop(BUOYS, lambda p, r: adam(p, r, eps=1e-16), scale=1e-8, steps=80)
)
zoo.sick(
    "veiled-buoys-loss-over-1e8-eps-1e-7",
    loop(BUOYS, lambda p, r: adam(p, r, eps=1e-7), scale=1e-8, steps=80),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=tiny,
)
twins = zoo.healthy("veiled-twins-nadam", loop(TWINS, lambda p, r: torch.optim.NAdam(p, r)))
zoo.sick(
    "veiled-twins-nadam-eps-40",
    loop(TWINS, lambda p, r: torch.optim.NAdam(p, r, eps=40.0)),
    broken(facts.eps_above_gradients(), less=0.6),
    "eps_rules",
    also=IDLE,
    control=twins,
)

# --- precision

verses_low = zoo.healthy("veiled-verses-bfloat16", loop(VERSES, lambda p, r: adam(p, r), dtype=low))
zoo.sick(
    "veiled-verses-bfloat16-rate-2e-6",
    loop(VERSES, lambda p, r: adam(p, 2e-6), dtype=low),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=verses_low,
)
tiles_low = zoo.healthy("veiled-tiles-bfloat16-adamw", loop(TILES, lambda p, r: adamw(p, r), dtype=low, steps=70))
zoo.sick(
    "veiled-tiles-bfloat16-adamw-rate-4e-6",
    loop(TILES, lambda p, r: adamw(p, 4e-6), dtype=low, steps=70),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=tiles_low,
)
rows_low = zoo.healthy(
    "veiled-rows-bfloat16-nesterov", loop(ROWS, lambda p, r: sgd(p, 0.5, momentum=0.9, nesterov=True), dtype=low)
)
zoo.sick(
    "veiled-rows-bfloat16-nesterov-rate-1e-5",
    loop(ROWS, lambda p, r: sgd(p, 1e-5, momentum=0.9, nesterov=True), dtype=low),
    broken(facts.same_bits(0.9), less=0.5),
    "lost_updates",
    also=IDLE,
    control=rows_low,
)
hums = zoo.healthy("veiled-hums-adam", loop(HUMS, lambda p, r: adam(p, r), steps=70))
rows = zoo.healthy("veiled-rows-adam", loop(ROWS, lambda p, r: adam(p, r)))
zoo.sick(
    "veiled-hums-float16",
    loop(HUMS, lambda p, r: adam(p, r), dtype=lower, steps=70),
    broken(facts.no_second_moment(), less=0.3),
    *UNDERFLOWN,
    also=BROKEN,
    control=hums,
)
zoo.sick(
    "veiled-rows-float16-eps-3e-4",
    loop(ROWS, lambda p, r: adam(p, r, eps=3e-4), dtype=lower, scale=1e-2),
    broken(facts.no_second_moment()),
    "second_moment_underflow",
    also={*BROKEN, "eps_rules"},
    control=rows,
)

# --- decay

isles = zoo.healthy("veiled-isles-adamw-decay-0.05", loop(ISLES, lambda p, r: adamw(p, r, weight_decay=0.05)))
zoo.sick(
    "veiled-isles-adamw-decay-20",
    loop(ISLES, lambda p, r: adamw(p, r, weight_decay=20.0)),
    broken(facts.shrunk(), less=0.7),
    "decay_dominates",
    also=BROKEN,
    control=isles,
)
finches_sgd = zoo.healthy(
    "veiled-finches-nesterov-decay-5e-4",
    loop(FINCHES, lambda p, r: sgd(p, 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)),
)
zoo.sick(
    "veiled-finches-nesterov-decay-0.6",
    loop(FINCHES, lambda p, r: sgd(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.6)),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=finches_sgd,
)
verses_decay = zoo.healthy("veiled-verses-adamw-decay-0.1", loop(VERSES, lambda p, r: adamw(p, r, weight_decay=0.1)))
zoo.sick(
    "veiled-verses-adamw-decay-10",
    loop(VERSES, lambda p, r: adamw(p, r, weight_decay=10.0)),
    broken(facts.shrunk(), less=0.7),
    "decay_dominates",
    also=BROKEN,
    control=verses_decay,
)

# --- momentum

buoys_sgd = zoo.healthy("veiled-buoys-sgd-momentum-0.9", loop(BUOYS, lambda p, r: sgd(p, 0.1, momentum=0.9), steps=100))
zoo.sick(
    "veiled-buoys-sgd-momentum-0.998",
    loop(BUOYS, lambda p, r: sgd(p, 0.5, momentum=0.998), steps=100),
    broken(facts.remembers(), less=0.85),
    "momentum_too_long",
    also=BROKEN,
    control=buoys_sgd,
)
twins_sgd = zoo.healthy("veiled-twins-sgd-momentum-0.8", loop(TWINS, lambda p, r: sgd(p, 0.3, momentum=0.8), steps=100))
zoo.sick(
    "veiled-twins-sgd-momentum-0.999",
    loop(TWINS, lambda p, r: sgd(p, 0.5, momentum=0.999), steps=100),
    broken(facts.remembers(), less=0.85),
    "momentum_too_long",
    also=BROKEN,
    control=twins_sgd,
)

# --- state


tiles_adam = zoo.healthy("veiled-tiles-adam", loop(TILES, lambda p, r: adam(p, r), steps=75))
bills_adam = zoo.healthy("veiled-bills-adam", loop(BILLS, lambda p, r: adam(p, r)), learns(0.05))
zoo.sick(
    "veiled-tiles-state-anew-every-4",
    loop(TILES, lambda p, r: adam(p, r), after=clears(4), steps=75),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=tiles_adam,
)
zoo.sick(
    "veiled-bills-state-anew-every-step",
    loop(BILLS, lambda p, r: adam(p, r), after=clears(1)),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=bills_adam,
)
zoo.sick(
    "veiled-rows-state-emptied-every-6",
    loop(ROWS, lambda p, r: adam(p, r), after=zeroes(6)),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=rows,
)

# --- batches that are not like the others


def loader(spoil: Callable[[Tensor, Tensor], None] | None, limit: float | None = 1.0, batch: int = 15):
    """A table of 300 rows from a loader that shuffles, read seven times; `spoil` changes it before."""

    def build(seed: int) -> Program:
        task = honeys(seed, batch=300)
        x, y = (each.clone() for each in next(iter(task)))
        if spoil is not None:
            spoil(x, y)
        model = mlp([10, 30, 1], nn.Tanh)
        optimizer, score = adam(model.parameters(), 6e-3), held_out(model, task, F.mse_loss)
        rows, before = shuffled(x, y, batch, 7, seed), nothing if limit is None else clips(model, limit)
        return learn(model, optimizer, rows, lambda x, y: F.mse_loss(model(x), y), score, before=before)

    return build


def misplaced_point(_x: Tensor, y: Tensor) -> None:
    y[123] = 2500.0


def missing_value(_x: Tensor, y: Tensor) -> None:
    y[[5, 250]] = -9999.0


clean = zoo.healthy("veiled-loader-clean", loader(None))
zoo.sick(
    "veiled-loader-a-misplaced-point",
    loader(misplaced_point),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=clean,
)
zoo.sick(
    "veiled-loader-minus-9999-for-missing",
    loader(missing_value),
    broken(facts.spikes(4)),
    *SPOILT,
    also=BROKEN,
    control=clean,
)


def shards(gain: float, every: int) -> Callable[[int], Program]:
    """Recordings by shard; in some of them the gain is far too high and the labels are another list's."""

    def build(seed: int) -> Program:
        task, model, losses = engines(seed), Hum(), []
        optimizer = sgd(model.parameters(), 0.1, momentum=0.5)
        random = torch.Generator().manual_seed(seed + 31)

        def run() -> None:
            for step, (x, y) in zip(range(100), task, strict=False):
                odd = step % every == every - 1
                if odd:
                    x, y = gain * x, torch.randint(5, y.shape, generator=random)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, engines(seed)))

    return build


zoo.sick(
    "veiled-shards-gain-12-every-14th",
    shards(12.0, 14),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=zoo.healthy("veiled-shards-one-gain", shards(1.0, 1000)),
)

# --- a second moment that comes too late


def storms(beta2: float, storm: bool) -> Callable[[int], Program]:
    """Calm steps, then a few with targets of another size and no meaning, again and again."""

    def build(seed: int) -> Program:
        task, model, losses = drifts(seed), Buoy(width=16), []
        optimizer = adam(model.parameters(), 1e-2, betas=(0.5, beta2))
        random = torch.Generator().manual_seed(seed + 32)

        def run() -> None:
            for step, (x, y) in zip(range(120), task, strict=False):
                if storm and step % 30 >= 25:
                    y = 25 * torch.randn(y.shape, generator=random)
                losses.append(train_step(model, optimizer, x, y, F.mse_loss))

        score = held_out(model, task, F.mse_loss)
        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=score)

    return build


def bursts(beta2: float, growth: float) -> Callable[[int], Program]:
    """Calm steps, and three in twenty that are loud and teach nothing; a long memory of squares learns of it late."""

    def build(seed: int) -> Program:
        task, model, losses = finches(seed), mlp([20, 40, 7], nn.Tanh), []
        optimizer = adam(model.parameters(), 4e-3, betas=(0.0, beta2))
        random = torch.Generator().manual_seed(seed + 33)

        def run() -> None:
            for step, (x, y) in zip(range(120), task, strict=False):
                burst = growth > 1 and step % 20 >= 17
                if burst:
                    y = torch.randint(7, y.shape, generator=random)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y) * (growth if burst else 1.0)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, finches(seed)))

    return build


zoo.sick(
    "veiled-storms-beta2-0.9999",
    storms(0.9999, True),
    broken(all_of(facts.jumps(), facts.spikes(3, 5.0)), less=0.9),
    *TOO_LATE,
    also=BROKEN,
    control=zoo.healthy("veiled-no-storms-beta2-0.98", storms(0.98, False)),
)
zoo.sick(
    "veiled-bursts-beta2-0.9995",
    bursts(0.9995, 30.0),
    broken(all_of(facts.jumps(), facts.spikes(3, 5.0)), less=0.9),
    *TOO_LATE,
    also=BROKEN,
    control=zoo.healthy("veiled-no-bursts-beta2-0.95", bursts(0.95, 1.0)),
)

# --- only look like it


zoo.healthy("veiled-hums-large-eps-and-its-rate", loop(HUMS, lambda p, r: adam(p, 0.1, eps=0.05), steps=80))
zoo.healthy("veiled-finches-adam-eps-1e-4", loop(FINCHES, lambda p, r: adam(p, r, eps=1e-4)))
zoo.healthy("veiled-choirs-beta2-0.9", loop(CHOIRS, lambda p, r: adamw(p, r, betas=(0.9, 0.9)), steps=70))
zoo.healthy("veiled-rows-decay-0.3", loop(ROWS, lambda p, r: adamw(p, r, weight_decay=0.3)))
zoo.healthy("veiled-choirs-bfloat16", loop(CHOIRS, lambda p, r: adamw(p, r), dtype=low, steps=70))
zoo.healthy("veiled-buoys-one-fresh-state", loop(BUOYS, lambda p, r: adam(p, r), after=clears(50), steps=85))
zoo.healthy("veiled-verses-rmsprop-centered", loop(VERSES, lambda p, r: torch.optim.RMSprop(p, r / 2, centered=True)))
zoo.healthy("veiled-bills-adagrad", loop(BILLS, lambda p, r: torch.optim.Adagrad(p, 5 * r)), learns(0.05))
zoo.healthy("veiled-isles-adadelta", loop(ISLES, lambda p, r: torch.optim.Adadelta(p, 1.0)))
zoo.healthy("veiled-tiles-adafactor", loop(TILES, lambda p, r: torch.optim.Adafactor(p, 4 * r), steps=80))
zoo.healthy("veiled-finches-sgd-momentum-0.97", loop(FINCHES, lambda p, r: sgd(p, 0.01, momentum=0.97), steps=110))
zoo.healthy("veiled-twins-loss-times-4096", loop(TWINS, lambda p, r: adam(p, r), scale=4096.0))
zoo.healthy("veiled-hums-loss-over-1000", loop(HUMS, lambda p, r: adam(p, r, eps=1e-12), scale=1e-3, steps=70))
zoo.healthy("veiled-finches-asgd", loop(FINCHES, lambda p, r: torch.optim.ASGD(p, 0.2)))
zoo.healthy("veiled-rows-adam-beta2-0.9", loop(ROWS, lambda p, r: adam(p, r / 3, betas=(0.9, 0.9), eps=1e-12)))
zoo.healthy(
    "veiled-shelves-adam-without-first-moment",
    loop((Shelf, readers, F.mse_loss, 3e-2), lambda p, r: adam(p, r, betas=(0.0, 0.99))),
)
zoo.healthy("veiled-loader-small-batches-no-limit", loader(None, None, 6))
