"""Faults of the optimizer that were set aside: other networks, other optimizers, other ways to the same fault.

Half: holdout.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from validation.case import Program, Zoo
from validation.evidence import states as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import SPOILT, TOO_LATE
from validation.nets import SequenceModel, Tabular, Words, torch_encoder
from validation.programs import held_out
from validation.states import BROKEN, IDLE, loop, zeroes
from validation.tasks import blobs, markov, patches, recall, series, table, token_loss

zoo = Zoo("state", half="holdout", proof=learns())
Optimizer = torch.optim.Optimizer
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
half = torch.bfloat16

WORDS = (lambda: Words(16), lambda s: markov(s, 24, 14, 20), token_loss, 4e-3)
ROWS = (Tabular, table, F.cross_entropy, 4e-3)
WAVES = (
    lambda: SequenceModel(nn.LSTM(3, 40, batch_first=True), 3, every_step=True),
    series,
    F.mse_loss,
    5e-3,
)
SETS = (lambda: torch_encoder(2, 32, 4), patches, F.cross_entropy, 2e-3)
MEMORY = (lambda: SequenceModel(nn.GRU(8, 32, batch_first=True), 4), lambda s: recall(s, 10), F.cross_entropy, 5e-3)


# --- eps

words = zoo.healthy("blind-words-adamw", loop(WORDS, lambda p, r: adamw(p, r), steps=110))
zoo.sick(
    "blind-words-adamw-eps-0.03",
    loop(WORDS, lambda p, r: adamw(p, r, eps=0.03), steps=110),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=words,
)
rows = zoo.healthy("blind-rows-adam", loop(ROWS, lambda p, r: adam(p, r), steps=110))
zoo.sick(
    "blind-rows-adam-eps-1-foreach-off",
    loop(ROWS, lambda p, r: adam(p, r, eps=1.0, foreach=False), steps=110),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=rows,
)

# --- precision

waves_half = zoo.healthy("blind-sets-bfloat16", loop(SETS, lambda p, r: adamw(p, r), dtype=half, steps=110))
zoo.sick(
    "blind-sets-bfloat16-fine-tuning-rate",
    loop(SETS, lambda p, r: adamw(p, 2e-6), dtype=half, steps=110),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=waves_half,
)
rows_half = zoo.healthy(
    "blind-rows-bfloat16-sgd", loop(ROWS, lambda p, r: sgd(p, 0.05, momentum=0.9), dtype=half, steps=110)
)
zoo.sick(
    "blind-rows-bfloat16-sgd-rate-1e-5",
    loop(ROWS, lambda p, r: sgd(p, 1e-5, momentum=0.9), dtype=half, steps=110),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=rows_half,
)
zoo.sick(
    "blind-rows-float16",
    loop(ROWS, lambda p, r: adam(p, r), dtype=torch.float16, steps=110),
    broken(facts.no_second_moment(), less=0.3),
    "second_moment_underflow",
    also=BROKEN,
    control=rows,
)

# --- decay

memory = zoo.healthy("blind-memory-adamw", loop(MEMORY, lambda p, r: adamw(p, r), steps=120))
zoo.sick(
    "blind-memory-adamw-decay-15",
    loop(MEMORY, lambda p, r: adamw(p, r, weight_decay=15.0), steps=120),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=memory,
)
rows_sgd = zoo.healthy(
    "blind-rows-sgd-decay-1e-4", loop(ROWS, lambda p, r: sgd(p, 0.05, momentum=0.9, weight_decay=1e-4), steps=120)
)
zoo.sick(
    "blind-rows-sgd-decay-0.2",
    loop(ROWS, lambda p, r: sgd(p, 0.05, momentum=0.9, weight_decay=0.2), steps=120),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=rows_sgd,
)

# --- momentum

zoo.sick(
    "blind-rows-nesterov-0.998",
    loop(ROWS, lambda p, r: sgd(p, 0.3, momentum=0.998, nesterov=True), steps=120),
    broken(facts.remembers(), less=0.8),
    "momentum_too_long",
    also=BROKEN,
    control=rows_sgd,
)
zoo.healthy("blind-waves-adam-beta1-0.998", loop(WAVES, lambda p, r: adam(p, r, betas=(0.998, 0.999)), steps=120))

# --- state


def reloads(every: int) -> Callable[[Optimizer, int], None]:
    """Load the state dict of the first step again, as a loop that restores the wrong checkpoint does."""
    kept: list[dict] = []

    def after(optimizer: Optimizer, step: int) -> None:
        if step == 0:
            kept[:] = [copy.deepcopy(optimizer.state_dict())]
        elif step % every == 0:
            optimizer.load_state_dict(copy.deepcopy(kept[0]))

    return after


zoo.sick(
    "blind-words-old-state-every-step",
    loop(WORDS, lambda p, r: adamw(p, r), after=reloads(1), steps=110),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=words,
)
zoo.sick(
    "blind-memory-state-zeroed-every-4",
    loop(MEMORY, lambda p, r: adamw(p, r), after=zeroes(4), steps=120),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=memory,
)

# --- a second moment that is too slow, and a batch that is not like the others


def bursts(beta2: float, noisy: bool) -> Callable[[int], Program]:
    """Quiet data with five loud steps in every thirty: what is loud is no signal."""

    def build(seed: int) -> Program:
        task = blobs(seed, 20, 5, 48, 0.7)
        model = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 5))
        optimizer = adam(model.parameters(), 6e-3, betas=(0.5, beta2))
        losses: list[float] = []

        def run() -> None:
            for step, (x, y) in zip(range(150), task, strict=False):
                loud = noisy and step % 30 >= 25
                optimizer.zero_grad()
                target = torch.randint(5, y.shape) if loud else y
                loss = F.cross_entropy(model(x * 30 if loud else x), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))

    return build


def weighted(weight: float, every: int) -> Callable[[int], Program]:
    """Sequences with a weight each; now and then one has a weight that somebody forgot to bound."""

    def build(seed: int) -> Program:
        task, model = markov(seed, 24, 14, 20), Words(12)
        optimizer = adam(model.parameters(), 4e-3)
        losses: list[float] = []
        draws = torch.Generator().manual_seed(seed)

        def run() -> None:
            for step, (x, y) in zip(range(120), task, strict=False):
                weights = torch.ones(len(x))
                if step % every == every - 1:
                    weights[int(torch.randint(len(x), (), generator=draws))] = weight
                optimizer.zero_grad()
                each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)
                loss = (each * weights).mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

        x, y = task.aside()
        return Program(
            model=model, optimizer=optimizer, run=run, losses=losses, score=lambda: token_loss(model(x), y).item()
        )

    return build


zoo.sick(
    "blind-bursts-beta2-0.9999",
    bursts(0.9999, True),
    broken(all_of(facts.jumps(), facts.spikes(3, 5.0)), less=0.9),
    *TOO_LATE,
    also=BROKEN,
    control=zoo.healthy("blind-no-bursts-beta2-0.99", bursts(0.99, False)),
)
zoo.sick(
    "blind-words-weight-3000",
    weighted(3000.0, 23),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=zoo.healthy("blind-words-weight-1", weighted(1.0, 23)),
)

# --- only look like it

zoo.healthy("blind-words-eps-1e-4", loop(WORDS, lambda p, r: adam(p, r, eps=1e-4), steps=110))
zoo.healthy("blind-memory-amsgrad", loop(MEMORY, lambda p, r: adam(p, r, amsgrad=True), steps=110))
zoo.healthy("blind-waves-radam", loop(WAVES, lambda p, r: torch.optim.RAdam(p, r), steps=110))
zoo.healthy("blind-sets-adamw-decay-1", loop(SETS, lambda p, r: adamw(p, r, weight_decay=1.0), steps=110))
zoo.healthy("blind-words-bfloat16", loop(WORDS, lambda p, r: adamw(p, r), dtype=half, steps=110))
zoo.healthy("blind-memory-one-reset", loop(MEMORY, lambda p, r: adamw(p, r), after=zeroes(60), steps=110))
zoo.healthy("blind-words-sgd-momentum-0.95", loop(WORDS, lambda p, r: sgd(p, 0.1, momentum=0.95), steps=150))
