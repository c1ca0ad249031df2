"""`cure`: try the candidate fixes on the model, each for a short while, and say which one helped beyond noise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import gradient_flow.cures.treatments  # noqa: F401  # registers them
from gradient_flow.analysis.steps import uncompiled
from gradient_flow.capture.losses import unheard
from gradient_flow.capture.random_state import RandomState
from gradient_flow.cures.arms import run_arm
from gradient_flow.cures.batches import KeptBatches
from gradient_flow.cures.choice import DUELS, LOOKED, choose, evident
from gradient_flow.cures.patient import Patient, default_optimizer, unwatched
from gradient_flow.cures.protocol import (
    CONFIRMED,
    KEPT,
    REPEATS,
    examine,
    leave_untreated,
    planned,
    try_all,
    try_longer,
)
from gradient_flow.cures.result import Cure, measured_advice, sorted_trials
from gradient_flow.cures.symptoms import symptoms_of
from gradient_flow.cures.work import EXAMINED, Work
from gradient_flow.errors import InputError, check_flag, check_number, check_whole

LONGEST: Final = 150
SHORTEST: Final = 24
"""Steps of a full trial, where the budget decides."""
HELD_OUT: Final = 8
MOST_BATCHES: Final = 64
"""Batches to train on that are kept: a longer trial goes through them again."""
_TYPICAL: Final = 20
"""Full trials that a cure costs, for planning; 25 is the most."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done and how many there will be at most."""


def cure(
    model: nn.Module,
    input_fn: Callable[[], Any],
    loss_fn: Callable[[Any], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    *,
    steps: int | None = None,
    budget: float = 60.0,
    fresh: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Cure:
    """Try fixes on the model as it is now, and say which one helps, by how much, beyond noise; or that none does.

    `input_fn()` gives a batch and `loss_fn(output)` its loss, as for the analyzers; `input_fn` is called at most 72
    times (144 where it fills the same tensor again and again), and its batches are kept and replayed to every arm.
    `steps` is the length of a full trial, by default what fits into `budget` seconds, from 24 to 150. `fresh=True` says
    that the weights are new: only then are treatments tried that overwrite them. `seed` makes trials repeatable.
    `progress` is told what is being done, and how many steps are done and will be. Model, optimizer and random state
    are afterwards as they were, bit for bit.

    >>> import torch
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=30.0)  # far too large
    >>> def input_fn():
    ...     global target
    ...     x = torch.randn(32, 8)
    ...     target = x[:, :1]
    ...     return x
    >>> found = cure(model, input_fn, lambda output: (output - target).square().mean(), optimizer, steps=8)
    >>> found.best.outcome, found.best.loss < found.first_loss
    ('better', True)
    >>> optimizer = found.best.apply(model, optimizer)  # for real
    """
    _check(model, input_fn, loss_fn, optimizer, steps, budget, fresh, seed)
    started = time.perf_counter()
    random_state = RandomState.capture()
    try:
        with (
            uncompiled(model) as plain,
            unheard(),
            unwatched(plain),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            return _cure(plain, input_fn, loss_fn, optimizer, steps, budget, fresh, seed, progress, started)
    finally:
        random_state.restore()


def _cure(
    model: nn.Module,
    input_fn: Callable[[], Any],
    loss_fn: Callable[[Any], torch.Tensor],
    optimizer: torch.optim.Optimizer | None,
    steps: int | None,
    budget: float,
    fresh: bool,
    seed: int,
    progress: Progress | None,
    started: float,
) -> Cure:
    given = optimizer is not None
    kept = KeptBatches(input_fn, loss_fn)
    most = MOST_BATCHES if steps is None else min(steps, MOST_BATCHES)
    patient = Patient(model, optimizer or default_optimizer(model), kept, [], [], fresh, seed, steps or SHORTEST)
    try:
        with patient.treated(None):
            kept.draw(model, most + HELD_OUT, seed)
        _split(patient)
        if steps is None:
            patient.steps = _affordable(patient, budget - (time.perf_counter() - started))
        work = Work(patient, started + budget)
        work.report = _told(progress, work)
        examine(work)
        leave_untreated(work)
        symptoms = symptoms_of(work)
        with patient.treated(None):  # planning runs the model, which may count its calls
            treatments = planned(patient)
        try_all(work, treatments)
        if symptoms:
            try_longer(work)
            best = choose(work)
        else:
            best, symptoms = evident(work)
    finally:
        kept.put_back()
    trials = sorted_trials(list(work.trials.values()), best)
    return Cure(
        trials=trials,
        best=best,
        issues=measured_advice(patient.issues, trials, best),
        textbook=patient.issues,
        steps=patient.steps,
        batches=kept.calls,
        first_loss=work.first_loss,
        untreated=work.noise[patient.steps],
        steps_taken=work.steps_taken,
        seconds=time.perf_counter() - started,
        fresh=fresh,
        symptoms=symptoms,
        notes=_notes(work, given),
    )


def _split(patient: Patient) -> None:
    """The last batches are held out; one that holds NaN has no loss that could be compared."""
    count = len(patient.batches)
    finite = [at for at in range(count) if patient.batches.finite(at)]
    patient.held_out = (finite or list(range(count)))[-HELD_OUT:]
    patient.training = [at for at in range(count) if at not in patient.held_out] or patient.held_out


def _affordable(patient: Patient, seconds: float) -> int:
    """How long a full trial may be, from the time of a few steps."""
    taken = run_arm(patient, None, [4])
    each = max(taken.seconds / max(taken.steps, 1), 1e-6)
    return int(min(max(seconds / (_TYPICAL * each), SHORTEST), LONGEST))


def most_steps(treatments: int, steps: int) -> int:
    """Training steps that a cure takes at most, about."""
    rungs = treatments * math.ceil(steps / 4) + KEPT[0] * math.ceil(steps / 2) + KEPT[1] * CONFIRMED * steps
    return (REPEATS + DUELS) * steps + rungs + (1 + LOOKED) * EXAMINED


def _told(progress: Progress | None, work: Work) -> Callable[[str, int], None]:
    if progress is None:
        return lambda _text, _steps: None
    return lambda text, _steps: progress(
        text, work.steps_taken, most_steps(max(16, len(work.trials)), work.patient.steps)
    )


def _notes(work: Work, given: bool) -> list[str]:
    notes = []
    if not given:
        notes.append("no optimizer was given: trained with Adam at a rate of 0.001.")
    if not work.patient.fresh:
        notes.append("treatments that overwrite weights were not tried; fresh=True (--fresh) tries them.")
    if work.out_of_time:
        notes.append("the budget ran out before all trials were over.")
    return notes


def _check(
    model: Any, input_fn: Any, loss_fn: Any, optimizer: Any, steps: Any, budget: Any, fresh: Any, seed: Any
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be a module, got {type(model).__name__}.")
    for name, function in (("input_fn", input_fn), ("loss_fn", loss_fn)):
        if not callable(function):
            raise InputError(f"`{name}` must be a function, got {type(function).__name__}.")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"`optimizer` must be a torch optimizer, got {type(optimizer).__name__}.")
    if steps is not None:
        check_whole("steps", steps, 8, InputError, "A shorter trial tells nothing.")
    check_number("budget", budget, "a positive number of seconds", 0, open_ends="l", error=InputError)
    check_flag("fresh", fresh)
    check_whole("seed", seed, 0, InputError)
    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise InputError("`model` must have run once: it has lazy parameters. Call it on a batch first.")
    if not any(parameter.requires_grad for parameter in parameters):
        raise InputError("`model` must have a parameter that is trained; none needs a gradient. Unfreeze some.")
    held = {id(tensor) for group in (optimizer.param_groups if optimizer else ()) for tensor in group["params"]}
    if optimizer is not None and not any(id(parameter) in held for parameter in parameters):
        raise InputError(
            "`optimizer` must hold parameters of the model; it holds none of them. Make it from the parameters of this "
            "model, after a copy or a move to another device."
        )
