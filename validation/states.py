"""Programs whose optimizer is at fault, built from an architecture, a task and the settings that break it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from validation.case import Case, Program, Zoo, call
from validation.evidence.loops import broken, learns
from validation.evidence.states import (
    eps_above_gradients,
    no_second_moment,
    remembers,
    same_bits,
    shrunk,
    spikes,
    young,
)
from validation.programs import clips, learn, shuffled
from validation.tasks import Task

Model = Callable[[], nn.Module]
Loss = Callable[[Any, Any], Tensor]
Made = tuple[Model, Callable[[int], Task], Loss, float]
"""A network, its task, its loss, and a learning rate for Adam with which it learns."""
IDLE = frozenset(
    {"SLOW", "VANISHING", "DEAD", "LOW_RANK", "UNSTABLE", "SATURATION", "loss_stuck", "never_moves", "rate_too_low"}
)
BROKEN = IDLE | {"EXPLODING", "NUMERICAL", "rate_too_high", "loss_grows", "loss_nonfinite", "ENTROPY_COLLAPSE"}
BROKEN |= {"RANK_COLLAPSE", "HEAD_DIVERSITY", "BOTTLENECK"}


def loop(
    made: Made,
    optimizer: Callable[[Any, float], torch.optim.Optimizer],
    *,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    after: Callable[[torch.optim.Optimizer, int], None] = lambda _optimizer, _step: None,
    steps: int = 90,
) -> Callable[[int], Program]:
    """A plain loop; `optimizer` is made from the parameters and the rate that suits the network."""

    def build(seed: int) -> Program:
        network, task_of, loss_of, rate = made
        task, model = task_of(seed), network().to(dtype)
        stepping = optimizer(model.parameters(), rate)
        losses: list[float] = []

        def cast(x: Any) -> Any:
            if isinstance(x, tuple):
                return tuple(map(cast, x))
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        def loss_on(x: Any, y: Any) -> Tensor:
            return loss_of(call(model, cast(x)).float(), y)

        def run() -> None:
            for step, (x, y) in zip(range(steps), task, strict=False):
                stepping.zero_grad()
                loss = loss_on(x, y) * scale
                loss.backward()
                stepping.step()
                after(stepping, step)
                losses.append(loss.item() / scale)

        x, y = task.aside()

        def score() -> float:
            model.eval()
            with torch.no_grad():
                value = loss_on(x, y).item()
            model.train()
            return value

        return Program(model=model, optimizer=stepping, run=run, losses=losses, score=score)

    return build


def from_loader(width: int, hidden: int, rows: int, batch: int, spoilt: Callable[[Tensor, Tensor, int], None] | None):
    """Regression from a `DataLoader` that shuffles, clipped at 1; `spoilt` changes the row of one sample."""

    def build(seed: int) -> Program:
        numbers = torch.Generator().manual_seed(seed + 77)
        x = torch.randn(rows, width, generator=numbers)
        y = torch.tanh(x[:, :3].sum(1, keepdim=True))
        clean = x.clone(), y.clone()
        if spoilt is not None:
            spoilt(x, y, int(torch.randint(rows, (), generator=numbers)))
        model = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(model(x), y)

        def score() -> float:
            with torch.no_grad():
                return loss_of(*clean).item()

        return learn(model, optimizer, shuffled(x, y, batch, 5, seed), loss_of, score, before=clips(model, 1.0))

    return build


def clears(every: int) -> Callable[[torch.optim.Optimizer, int], None]:
    """Clear the state at every Nth step."""

    def after(optimizer: torch.optim.Optimizer, step: int) -> None:
        if (step + 1) % every == 0:
            optimizer.state.clear()

    return after


def zeroes(every: int) -> Callable[[torch.optim.Optimizer, int], None]:
    """Set what the state holds to zero in place, its count too, at every Nth step."""

    def after(optimizer: torch.optim.Optimizer, step: int) -> None:
        if (step + 1) % every == 0:
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()

    return after


def reloads(when: Callable[[int], bool]) -> Callable[[torch.optim.Optimizer, int], None]:
    """The state goes through a file at some steps, as at the end of a job."""

    def after(optimizer: torch.optim.Optimizer, step: int) -> None:
        if when(step):
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    return after


def add_all(zoo: Zoo, made: dict[str, Made], numbers: dict[str, Any]) -> None:
    """Every fault in every architecture, each beside its twin, and loops that only look like it."""
    adam, adamw, sgd = torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD
    half = torch.bfloat16
    momentum = numbers["sgd"]
    for name, each in made.items():
        whole = zoo.healthy(f"{name}-adam", loop(each, lambda p, r: adam(p, r)))
        low = zoo.healthy(f"{name}-bfloat16", loop(each, lambda p, r: adamw(p, r), dtype=half))
        decayed = zoo.healthy(f"{name}-decay-0.1", loop(each, lambda p, r: adamw(p, r, weight_decay=0.1)))
        plain = zoo.healthy(
            f"{name}-momentum-0.9", loop(each, lambda p, r: sgd(p, r * momentum, momentum=0.9)), learns(fall=0.03)
        )
        zoo.sick(
            f"{name}-eps-{numbers['eps']:g}",
            loop(each, lambda p, r: adam(p, r, eps=numbers["eps"])),
            broken(eps_above_gradients(), less=0.5),
            "eps_rules",
            also=IDLE,
            control=whole,
        )
        zoo.sick(
            f"{name}-loss-times-{numbers['scale']:g}",
            loop(each, lambda p, r: adam(p, r), scale=numbers["scale"]),
            broken(eps_above_gradients(), less=0.5),
            "eps_rules",
            also=IDLE,
            control=whole,
        )
        zoo.sick(
            f"{name}-bfloat16-rate-times-{numbers['low']:g}",
            loop(each, lambda p, r: adamw(p, r * numbers["low"]), dtype=half),
            broken(same_bits(), less=0.5),
            "lost_updates",
            also=IDLE,
            control=low,
        )
        zoo.sick(
            f"{name}-decay-{numbers['decay']:g}",
            loop(each, lambda p, r: adamw(p, r, weight_decay=numbers["decay"] / r * 1e-3)),
            broken(shrunk(), less=0.5),
            "decay_dominates",
            also=BROKEN,
            control=decayed,
        )
        zoo.sick(
            f"{name}-momentum-{numbers['momentum']:g}",
            loop(each, lambda p, r: sgd(p, r * momentum * 10, momentum=numbers["momentum"])),
            broken(remembers(), less=0.6),
            "momentum_too_long",
            also=BROKEN,
            control=plain,
        )
        zoo.sick(
            f"{name}-state-cleared-every-{numbers['every']}",
            loop(each, lambda p, r: adam(p, r), after=clears(numbers["every"])),
            broken(young),
            "state_reset",
            also=BROKEN,
            control=whole,
        )
        zoo.sick(
            f"{name}-float16",
            loop(each, lambda p, r: adam(p, r), dtype=torch.float16),
            broken(no_second_moment(), less=0.2),
            "second_moment_underflow",
            also=BROKEN,
            control=whole,
        )
    for name, (width, hidden, rows, batch, spoilt) in numbers["spoilt"].items():
        clean = zoo.healthy(f"{name}-clean", from_loader(width, hidden, rows, batch, None))
        zoo.sick(
            f"{name}-spoilt",
            from_loader(width, hidden, rows, batch, spoilt),
            broken(spikes()),
            "bad_batch",
            "UNSTABLE",
            also=BROKEN,
            control=clean,
        )
    first: Case = zoo.cases[0]
    assert not first.sick
    name, each = next(iter(made.items()))
    zoo.healthy(f"{name}-large-eps-and-its-rate", loop(each, lambda p, r: adam(p, r * 100, eps=0.1)))
    zoo.healthy(f"{name}-beta2-0.95", loop(each, lambda p, r: adamw(p, r, betas=(0.9, 0.95))))
    zoo.healthy(f"{name}-nadam", loop(each, lambda p, r: torch.optim.NAdam(p, r)))
    zoo.healthy(f"{name}-adafactor", loop(each, lambda p, r: torch.optim.Adafactor(p, r * 5)))
    zoo.healthy(f"{name}-rmsprop", loop(each, lambda p, r: torch.optim.RMSprop(p, r)))
    zoo.healthy(f"{name}-small-eps-small-loss", loop(each, lambda p, r: adam(p, r, eps=1e-16), scale=1e-6))
