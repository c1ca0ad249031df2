# ruff: noqa: D102, D103 - a case is explained by its name, a forward by its class
"""Faults of the optimizer that were set aside last: other networks, other optimizers, other ways to the same fault.

Half: sealed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Program, Zoo
from validation.cases._sealed_tasks import (
    dialects,
    gaits,
    leftovers,
    meshes,
    pulses,
    rosters,
    soils,
    stars,
    swells,
)
from validation.evidence import states as facts
from validation.evidence.loops import all_of, broken, learns
from validation.labels import SPOILT, TOO_LATE, UNDERFLOWN
from validation.nets import OneLayer, mlp
from validation.programs import clips, held_out, learn, shuffled, train_step
from validation.states import BROKEN, IDLE, clears, loop
from validation.tasks import token_loss

zoo = Zoo("state", half="sealed", proof=learns())
Optimizer = torch.optim.Optimizer
adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
half = torch.bfloat16


class Sound(nn.Module):
    """Two convolutions over a heartbeat."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv1d(2, 16, 7, 2), nn.Conv1d(16, 24, 5, 2), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.silu(self.conv2(F.silu(self.conv1(x)))).amax(dim=2))


class Graph(nn.Module):
    """Two rounds of messages, beside a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 24), nn.Linear(24, 4)
        self.rounds = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.rounds:
            x = x + F.silu(layer(near @ x))
        return self.leave(x.mean(dim=1))


class Walk(nn.Module):
    """A GRU; the mean of its states, or each of them, is read."""

    def __init__(self, dim: int = 4, out: int = 5, each: bool = False) -> None:
        super().__init__()
        self.rnn, self.head, self.each = nn.GRU(dim, 24, batch_first=True), nn.Linear(24, out), each

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.head(states if self.each else states.mean(dim=1))


class Bag(nn.Module):
    """The mean of words, and a net."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(32, 24), mlp([24, 40, 5], nn.GELU)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(self.table(tokens).mean(dim=1))


SOUNDS = (Sound, lambda s: pulses(s, batch=24), F.cross_entropy, 4e-3)
GRAPHS = (Graph, meshes, F.cross_entropy, 5e-3)
GAITS = (Walk, gaits, F.cross_entropy, 8e-3)
SWELLS = (lambda: Walk(2, 2, True), swells, F.mse_loss, 8e-3)
SHIFTS = (OneLayer, leftovers, token_loss, 4e-3)
BAGS = (Bag, dialects, F.cross_entropy, 8e-3)
CODES = (lambda: mlp([32, 48, 10, 48, 32], nn.SiLU), rosters, F.mse_loss, 4e-3)
STARS = (lambda: mlp([16, 48, 48, 6], nn.GELU), stars, F.cross_entropy, 4e-3)
HAZY = (lambda: mlp([16, 48, 48, 6], nn.GELU), lambda s: stars(s, noise=1.5), F.cross_entropy, 4e-3)

# --- eps

sounds = zoo.healthy("sealed-sounds-adam", loop(SOUNDS, lambda p, r: adam(p, r), steps=80))
zoo.sick(
    "sealed-sounds-adam-eps-1",
    loop(SOUNDS, lambda p, r: adam(p, r, eps=1.0), steps=80),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also=IDLE,
    control=sounds,
)
small_loss = zoo.healthy("sealed-codes-loss-over-1e7", loop(CODES, lambda p, r: adamw(p, r, eps=1e-15), scale=1e-7))
zoo.sick(
    "sealed-codes-loss-over-1e7-eps-1e-6",
    loop(CODES, lambda p, r: adamw(p, r, eps=1e-6), scale=1e-7),
    broken(facts.eps_above_gradients(), less=0.5),
    "eps_rules",
    also={*IDLE, "decay_dominates"},
    control=small_loss,
)
graphs = zoo.healthy("sealed-graphs-amsgrad", loop(GRAPHS, lambda p, r: torch.optim.AdamW(p, r, amsgrad=True)))
zoo.sick(
    "sealed-graphs-amsgrad-eps-3",
    loop(GRAPHS, lambda p, r: torch.optim.AdamW(p, r, amsgrad=True, eps=3.0)),
    broken(facts.eps_above_gradients(), less=0.6),
    "eps_rules",
    also=IDLE,
    control=graphs,
)

# --- precision

shifts_half = zoo.healthy("sealed-shifts-bfloat16", loop(SHIFTS, lambda p, r: adamw(p, r), dtype=half))
zoo.sick(
    "sealed-shifts-bfloat16-rate-1e-6",
    loop(SHIFTS, lambda p, r: adamw(p, 1e-6), dtype=half),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=shifts_half,
)
codes_half = zoo.healthy("sealed-codes-bfloat16-adam", loop(CODES, lambda p, r: adam(p, r), dtype=half))
zoo.sick(
    "sealed-codes-bfloat16-adam-rate-3e-6",
    loop(CODES, lambda p, r: adam(p, 3e-6), dtype=half),
    broken(facts.same_bits(), less=0.5),
    "lost_updates",
    also=IDLE,
    control=codes_half,
)
stars_half = zoo.healthy(
    "sealed-hazy-stars-bfloat16-sgd", loop(HAZY, lambda p, r: sgd(p, 0.1, momentum=0.9), dtype=half)
)
zoo.sick(
    "sealed-hazy-stars-bfloat16-sgd-rate-2e-5",
    loop(HAZY, lambda p, r: sgd(p, 2e-5, momentum=0.9), dtype=half),
    broken(facts.same_bits(0.9), less=0.5),
    "lost_updates",
    also=IDLE,
    control=stars_half,
)
stars_adam = zoo.healthy("sealed-stars-adam", loop(STARS, lambda p, r: adam(p, r)))
codes_adam = zoo.healthy("sealed-codes-adam", loop(CODES, lambda p, r: adam(p, r)))
zoo.sick(
    "sealed-stars-float16",
    loop(STARS, lambda p, r: adam(p, r), dtype=torch.float16),
    broken(facts.no_second_moment(), less=0.3),
    *UNDERFLOWN,
    also=BROKEN,
    control=stars_adam,
)
zoo.sick(
    "sealed-codes-float16-eps-1e-4",
    loop(CODES, lambda p, r: adam(p, r, eps=1e-4), dtype=torch.float16, scale=1e-2),
    broken(facts.no_second_moment()),
    "second_moment_underflow",
    also={*BROKEN, "eps_rules"},
    control=codes_adam,
)

# --- decay

gaits_adamw = zoo.healthy("sealed-gaits-adamw", loop(GAITS, lambda p, r: adamw(p, r)))
zoo.sick(
    "sealed-gaits-adamw-decay-12",
    loop(GAITS, lambda p, r: adamw(p, r, weight_decay=12.0)),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also={*BROKEN, "SHORT_MEMORY"},
    control=gaits_adamw,
)
stars_sgd = zoo.healthy(
    "sealed-stars-sgd-decay-1e-3", loop(STARS, lambda p, r: sgd(p, 0.05, momentum=0.9, weight_decay=1e-3))
)
zoo.sick(
    "sealed-stars-sgd-decay-0.5",
    loop(STARS, lambda p, r: sgd(p, 0.05, momentum=0.9, weight_decay=0.5)),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=stars_sgd,
)
sounds_adamw = zoo.healthy(
    "sealed-sounds-adamw-decay-0.1", loop(SOUNDS, lambda p, r: adamw(p, r, weight_decay=0.1), steps=80)
)
zoo.sick(
    "sealed-sounds-adamw-decay-30",
    loop(SOUNDS, lambda p, r: adamw(p, r, weight_decay=30.0), steps=80),
    broken(facts.shrunk(), less=0.6),
    "decay_dominates",
    also=BROKEN,
    control=sounds_adamw,
)

# --- momentum

swells_sgd = zoo.healthy(
    "sealed-swells-sgd-momentum-0.9", loop(SWELLS, lambda p, r: sgd(p, 0.1, momentum=0.9), steps=100)
)
zoo.sick(
    "sealed-swells-sgd-momentum-0.999",
    loop(SWELLS, lambda p, r: sgd(p, 0.5, momentum=0.999), steps=100),
    broken(facts.remembers(), less=0.8),
    "momentum_too_long",
    also=BROKEN,
    control=swells_sgd,
)
bags_sgd = zoo.healthy("sealed-bags-sgd-momentum-0.9", loop(BAGS, lambda p, r: sgd(p, 0.5, momentum=0.9), steps=100))
zoo.sick(
    "sealed-bags-nesterov-0.997",
    loop(BAGS, lambda p, r: sgd(p, 1.0, momentum=0.997, nesterov=True), steps=100),
    broken(facts.remembers(), less=0.8),
    "momentum_too_long",
    also=BROKEN,
    control=bags_sgd,
)

# --- state


def from_disk(every: int) -> Callable[[Optimizer, int], None]:
    """State of the start is loaded from a file that nobody writes any more."""

    def after(optimizer: Optimizer, step: int) -> None:
        if step % every == every - 1:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    for key in state:
                        state[key] = torch.zeros_like(state[key])

    return after


graphs_adam = zoo.healthy("sealed-graphs-adam", loop(GRAPHS, lambda p, r: adam(p, r)))
zoo.sick(
    "sealed-graphs-state-emptied-every-step",
    loop(GRAPHS, lambda p, r: adam(p, r), after=clears(1)),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=graphs_adam,
)
zoo.sick(
    "sealed-gaits-state-emptied-every-5",
    loop(GAITS, lambda p, r: adamw(p, r), after=clears(5)),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=gaits_adamw,
)
zoo.sick(
    "sealed-stars-state-from-disk-every-3",
    loop(STARS, lambda p, r: adam(p, r), after=from_disk(3)),
    broken(facts.young),
    "state_reset",
    also=BROKEN,
    control=stars_adam,
)

# --- batches that are not like the others


def loader(spoil: Callable[[Tensor, Tensor], None] | None, loss_of: Callable[..., Tensor]) -> Callable[[int], Program]:
    """A table of 320 rows from a loader that shuffles, read six times; `spoil` changes it before."""

    def build(seed: int) -> Program:
        task = soils(seed, batch=320)
        x, y = (each.clone() for each in next(iter(task)))
        if spoil is not None:
            spoil(x, y)
        model = mlp([12, 32, 1], nn.Tanh)
        optimizer, score = adam(model.parameters(), 5e-3), held_out(model, task, F.mse_loss)
        rows = shuffled(x, y, 16, 6, seed)
        return learn(model, optimizer, rows, lambda x, y: loss_of(model(x), y), score, before=clips(model, 1.0))

    return build


def far_out(_x: Tensor, y: Tensor) -> None:
    y[17] = 4e3


def two_far_out(_x: Tensor, y: Tensor) -> None:
    y[[40, 200]] = -900.0


tidy = zoo.healthy("sealed-loader-tidy", loader(None, F.mse_loss))
zoo.sick(
    "sealed-loader-one-target-of-4000",
    loader(far_out, F.mse_loss),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=tidy,
)
zoo.sick(
    "sealed-loader-two-targets-of-minus-900",
    loader(two_far_out, F.mse_loss),
    broken(facts.spikes(4)),
    *SPOILT,
    also=BROKEN,
    control=tidy,
)
zoo.healthy("sealed-loader-one-target-of-4000-robust", loader(far_out, F.smooth_l1_loss))


def files(factor: float, every: int) -> Callable[[int], Program]:
    """Recordings by file; every so often a file is of another gain, and its labels are of no use."""

    def build(seed: int) -> Program:
        task, model, losses = gaits(seed), Walk(), []
        optimizer = sgd(model.parameters(), 0.2, momentum=0.5)
        random = torch.Generator().manual_seed(seed + 6)

        def run() -> None:
            for step, (x, y) in zip(range(100), task, strict=False):
                odd = step % every == every - 1
                loss = F.cross_entropy(model(x), torch.randint(5, y.shape, generator=random) if odd else y)
                optimizer.zero_grad()
                (loss * factor if odd else loss).backward()
                optimizer.step()
                losses.append((loss * factor if odd else loss).item())

        return Program(model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task))

    return build


zoo.sick(
    "sealed-files-weighed-200-every-17th",
    files(200.0, 17),
    broken(facts.spikes(3)),
    *SPOILT,
    also=BROKEN,
    control=zoo.healthy("sealed-files-weighed-1", files(1.0, 1000)),
)


def bursts(beta2: float, loud: bool) -> Callable[[int], Program]:
    """Quiet steps with a few loud ones in every twenty-five; what is loud has random targets."""

    def build(seed: int) -> Program:
        task, model, losses = soils(seed), mlp([12, 40, 1], nn.Tanh), []
        optimizer = adam(model.parameters(), 8e-3, betas=(0.5, beta2))
        random = torch.Generator().manual_seed(seed + 12)

        def run() -> None:
            for step, (x, y) in zip(range(120), task, strict=False):
                if loud and step % 25 >= 21:
                    y = 30 * torch.randn(y.shape, generator=random)
                losses.append(train_step(model, optimizer, x, y, F.mse_loss))

        return Program(
            model=model, optimizer=optimizer, run=run, losses=losses, score=held_out(model, task, F.mse_loss)
        )

    return build


zoo.sick(
    "sealed-bursts-beta2-0.9999",
    bursts(0.9999, True),
    broken(all_of(facts.jumps(), facts.spikes(3, 5.0)), less=0.9),
    *TOO_LATE,
    also=BROKEN,
    control=zoo.healthy("sealed-no-bursts-beta2-0.99", bursts(0.99, False)),
)

# --- only look like it

zoo.healthy("sealed-bags-adam-eps-1e-5", loop(BAGS, lambda p, r: adam(p, r, eps=1e-5)))
zoo.healthy("sealed-swells-adam-beta1-0.5-beta2-0.9", loop(SWELLS, lambda p, r: adam(p, r, betas=(0.5, 0.9))))
zoo.healthy("sealed-graphs-adamw-decay-0.5", loop(GRAPHS, lambda p, r: adamw(p, r, weight_decay=0.5)))
zoo.healthy("sealed-gaits-one-reset-in-the-middle", loop(GAITS, lambda p, r: adam(p, r), after=clears(60), steps=90))
zoo.healthy("sealed-bags-bfloat16", loop(BAGS, lambda p, r: adamw(p, r), dtype=half))
zoo.healthy("sealed-stars-sgd-momentum-0.95", loop(STARS, lambda p, r: sgd(p, 0.03, momentum=0.95), steps=100))
zoo.healthy("sealed-codes-adamax", loop(CODES, lambda p, r: torch.optim.Adamax(p, 2 * r)))
zoo.healthy("sealed-shifts-radam", loop(SHIFTS, lambda p, r: torch.optim.RAdam(p, 3 * r), steps=100))
zoo.healthy("sealed-stars-loss-times-1024", loop(STARS, lambda p, r: adam(p, r), scale=1024.0))
zoo.healthy(
    "sealed-sounds-rmsprop-momentum", loop(SOUNDS, lambda p, r: torch.optim.RMSprop(p, r / 8, momentum=0.9), steps=80)
)
