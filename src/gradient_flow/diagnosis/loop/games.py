"""Two players, each with an optimizer of its own: a game that one of them has won teaches the other nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.loop.context import Loop, issue
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.evidence import Series

_JUDGES: Final = ("binary_cross_entropy_with_logits", "binary_cross_entropy")
_LEAST: Final = 60
"""Losses of each player; an early lead is soon lost again."""
_FIRST: Final = 5
_SURE: Final = 0.03
"""A critic's loss, and what is left of its first. A guess costs 1.39 for real and made ones together; in games that go
on it stays above 0.1."""
_FOOLED: Final = 4.0
"""A generator's loss: the critic takes at most one in fifty of its samples for real. A guess costs 0.69."""
_GROWN: Final = 4.0
"""Times its first."""
_MOSTLY: Final = 0.8


def outplayed(loop: Loop) -> Iterator[Issue]:
    """A critic that is certain of all that is real and all that is made, and a generator whose loss keeps rising."""
    if len(loop.run.totals) != 2 or not _is_game(loop):
        return
    for critic, generator in permutations(loop.run.totals):
        sure, beaten = _finite(critic), _finite(generator)
        if min(len(sure), len(beaten)) < _LEAST or not (_has_won(sure) and _is_beaten(beaten)):
            continue
        last, worst = _last_third(sure), _last_third(beaten)
        yield issue(
            "critic_wins",
            IssueSeverity.HIGH,
            f"the loss of {critic.name} has fallen from {plain(_first(sure))} to {plain(last)}, that of "
            f"{generator.name} has risen from {plain(_first(beaten))} to {plain(worst)}: one player of the game has "
            "won, and the other cannot catch up.",
            "the critic is too strong for the generator: a higher learning rate, more steps, or more units.",
            [
                "Lower the critic's learning rate or its steps per step of the generator, or raise the generator's.",
                "Hold the critic back: spectral normalisation, a gradient penalty, noise on its inputs.",
            ],
            step=_since(critic),
            critic_loss=last,
            generator_loss=worst,
        )


def _is_game(loop: Loop) -> bool:
    """Whether every look has a loss that asks for one answer alone: real, or made."""
    asked = [[call for call in look.calls if call.function in _JUDGES] for look in loop.looks]
    return bool(asked) and all(calls and all(call.distinct == 1 for call in calls) for calls in asked)


def _has_won(losses: Sequence[float]) -> bool:
    last = _last_third(losses)
    return 0 <= last < _SURE and last < _SURE * _first(losses)


def _is_beaten(losses: Sequence[float]) -> bool:
    third = len(losses) // 3
    middle, last = median(losses[third : 2 * third]), _last_third(losses)
    return last > _FOOLED and last > _GROWN * _first(losses) > 0 and last >= middle > _first(losses)


def _since(critic: Series) -> int:
    """The first step from which on the critic is nearly always sure."""
    steps = [
        (step, loss < _SURE) for step, loss in zip(critic.steps, critic.losses, strict=True) if math.isfinite(loss)
    ]
    found, sure = steps[-1][0], 0
    for count, (step, is_sure) in enumerate(reversed(steps), start=1):
        sure += is_sure
        if is_sure and sure >= _MOSTLY * count:
            found = step
    return found


def _finite(series: Series) -> list[float]:
    return [loss for loss in series.losses if math.isfinite(loss)]


def _first(losses: Sequence[float]) -> float:
    return median(losses[:_FIRST])


def _last_third(losses: Sequence[float]) -> float:
    return median(losses[-(len(losses) // 3) :])
