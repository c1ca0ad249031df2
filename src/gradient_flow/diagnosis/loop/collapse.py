"""A loss that is the same for every batch: the output no longer depends on the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop, issue
from gradient_flow.diagnosis.words import compared, plain

_LEAST: Final = 45
"""Losses: each third of them is judged by itself."""
_SAME: Final = 1e-3
"""By which the losses of batches in a row differ, of their size: triplets that all lie near one point have a loss of
the margin, to 1e-5 or 4e-4."""
_CALMER: Final = 10.0
"""Times that the first losses, and their gradients, differ more than the last."""
_LEFT: Final = 0.1
"""Of the first loss: below it a run has learned what there is."""
_FADED: Final = 0.2
"""Of the first gradients."""
_RATE_LEFT: Final = 0.1
_OTHERS: Final = 3


def same_for_all(loop: Loop) -> Iterator[Issue]:
    """Batches differ, and their losses do not: a network that gives one answer to everything."""
    series, losses = loop.alone, loop.losses
    if series is None or len(losses) < _LEAST or loop.facts.optimizers > 1 or not losses[0] > 0:
        return
    batches = {look.batch for look in loop.looks if look.batch is not None}
    rates = [rate for rate in series.rates if rate > 0]
    if len(batches) < _OTHERS or not rates or median(rates[-len(rates) // 3 :]) < _RATE_LEFT * max(rates):
        return
    third = len(losses) // 3
    first, last = losses[:third], losses[-third:]
    level = median(last)
    if level < _LEFT * median(first[:5]) or not _spread(last) < _SAME * level:
        return
    norms = [norm for norm in series.norms if norm >= 0]
    before, after = median(norms[: len(norms) // 3]), median(norms[-len(norms) // 3 :])
    if _spread(first) < _CALMER * _spread(last) or not after < _FADED * before:
        return
    found = issue(
        "collapsed",
        IssueSeverity.MEDIUM,
        f"the last {third} losses are all near {plain(level)}, though each batch is another one, and gradients are "
        f"{compared(after / before)} than at first: every sample gets the same output.",
        "the loss is lowest for one output for all samples, as that of the hardest triplets is at its margin; or "
        "negatives, or a term that keeps samples apart, are missing.",
        [
            "Look at the spread of the outputs over a batch: it should not shrink.",
            "Lower the learning rate, and begin with all or semi-hard triplets before the hardest ones.",
            "Add what keeps samples apart: negatives, a term on the variance, or a stop of the gradient on one side.",
        ],
        step=series.steps[-third],
        level=level,
        spread=_spread(last),
    )
    yield replace(found, issue_type=IssueType.LOW_RANK)


def _spread(values: Sequence[float]) -> float:
    """By how much the losses of two batches in a row differ, usually: a slow fall does not count."""
    return median(abs(after - before) for before, after in pairwise(values))
