"""Faults that begin right after the learning rate was changed: the change is named as their cause, with its numbers.

A rate that rises more than threefold from one recorded step to the next is no schedule's ordinary course. What breaks
within a few steps of it, and what follows while the rate stays there, has this cause before any other.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import compared, plain
from gradient_flow.record.evidence import RateChange, RunRecord, Series

FEW: Final = 10
"""Recorded steps after a change within which a fault is taken to follow from it."""
LOOKS: Final = 2
"""The same in looks, for what is only seen in them."""
_BEFORE: Final = 64
"""Steps before a change that tell what was usual."""
_LEAST: Final = 5
"""Fewer of them tell nothing."""
_A_SCHEDULE: Final = 3
"""Changes downwards that nobody makes by hand."""
_NORM, _LOSS = 100.0, 10.0
"""Times the usual norm, and the highest loss so far, that no step of a working rate brings about."""
_BY_LOWERING: Final = frozenset((IssueType.VANISHING, IssueType.SLOW))
"""What a rate that is too small can do; anything else it cannot."""
_ON_THE_RATE: Final = "Lower the learning rate"
"""How advice begins that the rate before the change makes needless."""


def raised_too_far(record: RunRecord) -> Iterator[Issue]:
    """A rate that was raised and threw the training off: norm or loss jump within a few steps and stay off.

    From steps alone, so it needs no look at the right moment.
    """
    for change in record.rate_changes:
        series = next((each for each in record.totals if each.name == change.optimizer), None)
        found = None if series is None or change.after < change.before else _thrown_off(record, series, change)
        if found is not None:
            yield found
            return


def _thrown_off(record: RunRecord, series: Series, change: RateChange) -> Issue | None:
    steps, norms = series.finite()
    changed, ended = bisect_right(steps, change.step), bisect_left(steps, _end_of(change, record))
    before = norms[max(0, changed - 1 - _BEFORE) : changed - 1]
    if len(before) < _LEAST or ended <= changed:
        return None
    usual = median(before)
    losses = dict(zip(series.steps, series.losses, strict=False))
    known = [losses.get(step, math.nan) for step in steps]
    earlier = [loss for loss in known[max(0, changed - 1 - _BEFORE) : changed] if math.isfinite(loss)]
    highest = max(earlier, default=math.nan)
    off = (
        at
        for at in range(changed, min(changed + FEW, ended))
        if norms[at] > _NORM * usual or (highest > 0 and known[at] > _LOSS * highest)
    )
    first = next(off, None)
    if first is None:
        return None
    last = [loss for loss in known[first:ended] if math.isfinite(loss)][-_LEAST:]
    norm = median(norms[max(first, ended - _LEAST) : ended])
    if last and earlier:
        if median(last) <= highest:
            return None  # a spike that the training got over
        severe = median(last) > _LOSS * median(earlier) > 0
        course = f"the loss is {plain(median(last))}, and was {plain(median(earlier))}"
    elif usual / _LOSS <= norm <= usual * _LOSS:
        return None
    else:
        severe = True
        course = f"the norm is {plain(norm)}, and was {plain(usual)}"
    jump = max(norms[first : min(first + FEW, ended)]) / usual if usual > 0 else math.inf
    return Issue(
        issue_type=IssueType.EXPLODING,
        severity=IssueSeverity.CRITICAL if severe else IssueSeverity.HIGH,
        layer=_most_grown(record, series, steps[changed - 1]) or series.name,
        step=steps[first],
        message=f"under the raised learning rate gradients became {compared(jump)}; {course}.",
        evidence={"norm_jump": jump, "loss_before": highest, "rate_change": _seen(change)},
        cause=f"{change.sentence}.",
        advice=[],
    )


def _end_of(change: RateChange, record: RunRecord) -> float:
    """The first step at which another rate was in force."""
    later = (other.step for other in record.rate_changes if other.optimizer == change.optimizer)
    return next((step for step in later if step > change.step), math.inf)


def _most_grown(record: RunRecord, series: Series, step: int) -> str | None:
    """The layer whose gradient grew most from the last table before a step to the first one after it."""
    grown = {}
    for layer in record.layers:
        at = bisect_right(layer.steps, step)
        if layer.is_weight and layer.optimizer in ("", series.name) and 0 < at < len(layer.norms):
            was, now = layer.norms[at - 1], layer.norms[at]
            grown[layer.name] = now / was if was > 0 and math.isfinite(now) else 0.0
    best = max(grown, key=lambda name: grown[name], default=None)
    return best if best is not None and grown[best] > 1 else None


def after_rate_change(issues: Sequence[Issue], record: RunRecord) -> list[Issue]:
    """The issues, those that follow from a change of the learning rate with that change as their cause."""
    named = list(issues)
    for change in record.rate_changes:
        if _is_of_schedule(change, record):
            continue
        reach = _reach(record, change)
        follows = [issue for issue in issues if _may_follow(issue, change, record)]
        if any(issue.step is not None and issue.step <= change.step + reach for issue in follows):
            named = [_caused(issue, change) if _is_in(issue, follows) else issue for issue in named]
    return named


def _is_of_schedule(change: RateChange, record: RunRecord) -> bool:
    """Whether a rate was lowered again and again: the rate before the last of these changes is no better."""
    own = [other for other in record.rate_changes if other.optimizer == change.optimizer]
    return change.after < change.before and sum(other.after < other.before for other in own) >= _A_SCHEDULE


def _may_follow(issue: Issue, change: RateChange, record: RunRecord) -> bool:
    if issue.severity < IssueSeverity.MEDIUM or issue.step is None or issue.step < change.step:
        return False
    if change.after < change.before and issue.issue_type not in _BY_LOWERING:
        return False
    later = [other.step for other in record.rate_changes if other.step > change.step]
    if later and issue.step >= later[0]:
        return False  # another rate was in force by then
    whose = next((layer.optimizer for layer in record.layers if layer.name == issue.layer), issue.layer)
    owners = {series.name for series in record.totals}
    return whose not in owners or whose == change.optimizer


def _is_in(issue: Issue, others: Sequence[Issue]) -> bool:
    # By identity of what it says: a change before this one may have given it another cause.
    key = (issue.issue_type, issue.layer, issue.step)
    return any((other.issue_type, other.layer, other.step) == key for other in others)


def _reach(record: RunRecord, change: RateChange) -> float:
    """Steps after a change within which a fault follows from it, as finely as this run was recorded."""
    series = next((each for each in record.totals if each.name == change.optimizer), None)
    gaps = [later - earlier for earlier, later in pairwise(series.steps)] if series is not None else []
    longest = max(record.layers, key=lambda layer: len(layer.steps), default=None)
    looks = [later - earlier for earlier, later in pairwise(longest.steps)] if longest is not None else []
    return max(FEW * median(gaps or [1]), LOOKS * median(looks or [0]))


def _caused(issue: Issue, change: RateChange) -> Issue:
    back = f"Set the learning rate back to {plain(change.before)}, from a checkpoint before step {change.step:,}."
    others = [advice for advice in issue.advice if not advice.startswith(_ON_THE_RATE)]
    if change.after > change.before:
        back += " If you raise it again, do so over a few hundred steps."
    return replace(
        issue,
        cause=f"{change.sentence}.",
        evidence={**issue.evidence, "rate_change": _seen(change)},
        advice=[back, *others],
    )


def _seen(change: RateChange) -> dict[str, float]:
    return {"step": change.step, "from": change.before, "to": change.after}
