"""A loss of several terms: one that outweighs another keeps the model from learning that one."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.loop.context import Loop, issue
from gradient_flow.diagnosis.loop.record import LoopLook, LossCall
from gradient_flow.diagnosis.words import plain

_LEAST_LOOKS, _LATE = 6, 50
"""Looks, and the step of the last of them: at first no term has been learnt."""
_AT_FIRST: Final = 3
"""Looks in which the other terms have to be the larger part."""
_OUTWEIGHS: Final = 2.0
_GUESS: Final = 0.95
"""Of the variance of the targets: no better than always the mean."""
_CHANCE: Final = 3.0
"""Standard errors of the agreement of predictions with their own targets."""
_FALLEN, _END = 0.5, 20
"""Of the very first loss, at the last steps: as a whole it is learnt well."""


def outweighed(loop: Loop) -> Iterator[Issue]:
    """Predictions that never have to do with their targets, while the loss as a whole falls: another term decides.

    As of a VAE whose divergence is summed and whose error is a mean: the loss fell to 1 % of its first, and what was
    decoded stayed the same for all samples, with agreements of -1.0 to 1.2 over ten looks.
    """
    calls = loop.calls("mse_loss")
    if len(calls) < _LEAST_LOOKS or len(calls) != len(loop.looks) or loop.facts.optimizers > 1:
        return
    losses = loop.losses
    if calls[-1][0].step < _LATE or not losses or not median(losses[-_END:]) < _FALLEN * losses[0]:
        return
    outweighs = all(_is_outweighed(*each) for each in calls[:_AT_FIRST])
    if not outweighs or any(_is_learnt(call) for _, call in calls[_AT_FIRST:]):
        return
    (first, begun), (last, term) = calls[0], calls[-1]
    times = (first.loss or 0.0) / (begun.value or 1.0) - 1
    yield issue(
        "outweighed",
        IssueSeverity.MEDIUM,
        f"`mse_loss` is {plain(term.value or 0.0, 2)} at step {last.step}, no better than that of always the mean "
        f"({plain(term.variance or 0.0, 2)}), and what it judges has nothing to do with its targets, while the loss as "
        f"a whole falls: the other terms were {plain(times, 2)} times as large.",
        "another term of the loss outweighs this one: a penalty or a divergence that is summed where this one is a "
        "mean (in a VAE: posterior collapse), or a task on another scale.",
        [
            "Reduce all terms alike: sums over what belongs to a sample, means over samples.",
            "Give the other term a small weight, and raise it over the first thousand steps.",
        ],
        step=first.step,
        value=term.value,
        variance=term.variance,
    )


def _is_outweighed(look: LoopLook, call: LossCall) -> bool:
    known = look.loss is not None and call.value is not None and call.of_output and call.reduction == "mean"
    return known and (look.loss or 0.0) > _OUTWEIGHS * (call.value or 0.0) > 0


def _is_learnt(call: LossCall) -> bool:
    """Whether predictions go with their targets, or it is not known."""
    if call.agreement is None or call.variance is None or call.value is None:
        return True
    return abs(call.agreement) > _CHANCE or call.value < _GUESS * call.variance
