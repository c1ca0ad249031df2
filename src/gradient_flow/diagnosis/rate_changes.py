"""Faults that begin right after the learning rate was changed: the change is named as their cause, with its numbers.

A rate that rises more than threefold from one recorded step to the next is no schedule's ordinary course. What breaks
within a few steps of it, and what follows while the rate stays there, has this cause before any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.evidence import RateChange, RunRecord

FEW: Final = 10
"""Recorded steps after a change within which a fault is taken to follow from it."""
LOOKS: Final = 2
"""The same in looks, for what is only seen in them."""
_BY_LOWERING: Final = frozenset((IssueType.VANISHING, IssueType.SLOW))
"""What a rate that is too small can do; anything else it cannot."""
_ON_THE_RATE: Final = ("Lower the learning rate", "Learning rate at most")
"""How advice begins that the rate before the change makes needless."""


def after_rate_change(issues: Sequence[Issue], record: RunRecord) -> list[Issue]:
    """The issues, those that follow from a change of the learning rate with that change as their cause."""
    named = list(issues)
    for change in record.rate_changes:
        reach = _reach(record, change)
        follows = [issue for issue in issues if _may_follow(issue, change, record)]
        if any(issue.step is not None and issue.step <= change.step + reach for issue in follows):
            named = [_caused(issue, change) if _is_in(issue, follows) else issue for issue in named]
    return named


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
    seen = {"step": change.step, "from": change.before, "to": change.after}
    return replace(
        issue,
        cause=f"{change.sentence}.",
        evidence={**issue.evidence, "rate_change": seen},
        advice=[back, *others],
    )
