"""One cause, one main issue: what follows from another is attached to it.

Issues are ordered by how directly they name a cause. Each takes in those that it explains: a layer that is dead
explains a gradient that vanishes before it, a learning rate that is far too large explains whatever breaks later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.bottleneck import LOW_SCORE
from gradient_flow.diagnosis.network.record import DEFAULTS, AnalysisRecord

_T = IssueType
_DEPTH: Final = frozenset({_T.VANISHING, _T.EXPLODING})
EXPLAINS: Final[dict[IssueType, frozenset[IssueType]]] = {
    _T.NUMERICAL: frozenset({_T.UNSTABLE, _T.DEAD, _T.SATURATION, _T.SLOW, _T.BOTTLENECK, *_DEPTH}),
    _T.DISCONNECTED: frozenset({_T.DEAD, _T.SLOW, _T.VANISHING}),
    _T.SYMMETRY: frozenset({_T.LOW_RANK, _T.BOTTLENECK, _T.DEAD, _T.SATURATION, _T.UNSTABLE, *_DEPTH}),
    _T.DEAD: frozenset({_T.DEAD, _T.BOTTLENECK, _T.SLOW, _T.UNSTABLE, _T.VANISHING}),
    _T.SATURATION: frozenset({_T.BOTTLENECK, _T.SLOW, _T.UNSTABLE, *_DEPTH}),
    _T.ENTROPY_COLLAPSE: frozenset({_T.EXPLODING, _T.SATURATION}),
    _T.EXPLODING: frozenset({_T.UNSTABLE}),
    _T.VANISHING: frozenset({_T.SLOW}),
    _T.SHORT_MEMORY: frozenset({_T.SHORT_MEMORY, _T.SPECTRAL_RADIUS}),
}
"""Which types a cause of the given type can bring about. Earlier entries are the more direct causes."""
_THROWN: Final = frozenset({_T.DEAD, _T.SATURATION, _T.UNSTABLE, *_DEPTH})
"""What steps that are far too large leave behind."""
_FEW_UNITS: Final = 4
_ALL_FLAT, _MOST_FLAT = 0.9, 0.7
"""Shares of values."""
_ORDER: Final = {kind: order for order, kind in enumerate(EXPLAINS)}


def consolidate(issues: Iterable[Issue], record: AnalysisRecord) -> list[Issue]:
    """Main issues, the gravest first, each with what follows from it."""
    left = _without_repeats(issues)
    by_rate = [issue for issue in left if is_by_rate(issue)]
    if by_rate and by_rate[0].evidence.get("update_ratio", math.inf) > 1:
        # It was fine at the first step and broke afterwards: the steps broke it.
        later = [issue for issue in left if issue is not by_rate[0] and _came_later(issue)]
        left = [issue for issue in left if issue not in later]
        left[left.index(by_rate[0])] = with_consequences(by_rate[0], later)
    narrow = next((issue for issue in left if issue.issue_type is _T.BOTTLENECK), None)
    if narrow is not None:
        chance = [issue for issue in left if _dies_of(narrow, issue, record)]
        left = [issue for issue in left if issue not in chance]
        left[left.index(narrow)] = with_consequences(narrow, chance)
    flat = next((issue for issue in left if issue.issue_type is _T.SATURATION and _stops_all(issue)), None)
    if flat is not None:
        stopped = [issue for issue in left if _is_stopped_by(flat, issue, record)]
        left = [issue for issue in left if issue not in stopped]
        left[left.index(flat)] = with_consequences(flat, stopped)
    mains: list[Issue] = []
    for issue in sorted(left, key=lambda issue: _directness(issue, record)):
        cause = next((i for i, main in enumerate(mains) if _explains(main, issue, record)), None)
        if cause is None:
            mains.append(issue)
        else:
            mains[cause] = with_consequences(mains[cause], [issue])
    return sorted(mains, key=lambda issue: (-issue.severity, _ORDER.get(issue.issue_type, len(_ORDER))))


def beside(mains: Sequence[Issue], others: Iterable[Issue]) -> list[Issue]:
    """Main issues, and of the others those whose type none of them is or explains; a remark gives way to an issue."""
    grave = [issue for issue in mains if issue.severity > IssueSeverity.LOW]
    known = {issue.issue_type for issue in grave}
    known |= {kind for issue in grave for kind in EXPLAINS.get(issue.issue_type, ())}
    added = [issue for issue in others if issue.issue_type not in known]
    graver = {issue.issue_type for issue in added if issue.severity > IssueSeverity.LOW}
    kept = [issue for issue in mains if issue.severity > IssueSeverity.LOW or issue.issue_type not in graver]
    remarks = {issue.issue_type for issue in kept if issue.severity == IssueSeverity.LOW}
    return [*kept, *(i for i in added if i.severity > IssueSeverity.LOW or i.issue_type not in remarks)]


def after_nonfinite(issues: Sequence[Issue]) -> list[Issue]:
    """Non-finite gradients take in whatever comes with them or after them."""
    bad = next((issue for issue in issues if issue.issue_type is _T.NUMERICAL), None)
    if bad is None:
        return list(issues)
    follows = [issue for issue in issues if issue is not bad and (issue.step is None or issue.step >= (bad.step or 0))]
    kept = [issue for issue in issues if issue is not bad and issue not in follows]
    return [with_consequences(bad, follows), *kept]


def after_raised_rate(issues: Sequence[Issue]) -> list[Issue]:
    """A rate that was raised and threw the training off takes in what broke with it: one cause, one main issue."""
    thrown = next((issue for issue in issues if "rate_change" in issue.evidence), None)
    if thrown is None:
        return list(issues)
    follows = [
        issue
        for issue in issues
        if issue.issue_type in _THROWN and issue is not thrown and (issue.step or math.inf) >= (thrown.step or 0)
    ]
    kept = [issue for issue in issues if issue is not thrown and issue not in follows]
    return [with_consequences(thrown, follows), *kept]


def _explains(main: Issue, other: Issue, record: AnalysisRecord) -> bool:
    if other.issue_type not in EXPLAINS.get(main.issue_type, frozenset()):
        return False
    if main.severity == IssueSeverity.LOW < other.severity:
        return False  # a remark hides nothing that is graver
    if _is_level(other) and (other.severity > IssueSeverity.LOW or main.issue_type is _T.NUMERICAL):
        return False  # the user's own threshold stands by itself; a level is that of the finite steps
    # What does not move at all has no gradient to move by.
    by_rate = bool(other.evidence.get("update_ratio"))
    if by_rate and main.issue_type is not _T.NUMERICAL:
        return False  # the learning rate has its own cause
    if main.issue_type is _T.DEAD and other.issue_type is _T.VANISHING and main.evidence.get("dead_share", 1.0) < 0.9:
        return other.layer == main.layer  # half a layer lets half of the gradient through
    if main.issue_type is _T.SHORT_MEMORY:
        # One recurrence that forgets: its radius is below 1, and the gradient fades. A radius above 1 is another fault.
        return _module(main.layer) == _module(other.layer) and (
            other.issue_type is _T.SHORT_MEMORY or "effective_memory_length" in other.evidence
        )
    if main.issue_type is _T.ENTROPY_COLLAPSE:
        return other.layer in (main.layer, main.evidence.get("attention"))  # both say that the logits are too large
    if main.issue_type is _T.DISCONNECTED and main.severity < IssueSeverity.HIGH:
        return False  # a layer on the side that gets nothing says nothing about the main path
    if other.issue_type is _T.BOTTLENECK and main.issue_type in (_T.DEAD, _T.SATURATION):
        return abs(record.position(main.layer) - record.position(other.layer)) <= 2
    return True


def _module(layer: str) -> str:
    """The module that a layer of several, as `rnn[l1]`, belongs to."""
    return layer.partition("[")[0]


def is_by_rate(issue: Issue) -> bool:
    """Whether it says that the learning rate is too high for the weights."""
    return issue.issue_type is _T.EXPLODING and not issue.evidence.keys().isdisjoint(("update_ratio", "rate_change"))


def _is_level(issue: Issue) -> bool:
    """Whether it rests on a documented threshold."""
    return any(name in issue.evidence for name in DEFAULTS)


def _dies_of(narrow: Issue, dead: Issue, record: AnalysisRecord) -> bool:
    """Of two units both are dead by chance now and then; units fed by so few numbers often keep their sign.

    So few units that have to tell everything apart are driven into the flat part of their activation.
    """
    if dead.issue_type is _T.SATURATION:
        # Where all that speaks against a layer is that samples get no gradient, the flat activation is the cause.
        if narrow.evidence.get("score", 0.0) >= LOW_SCORE and dead.evidence.get("flat_share", 0.0) > _MOST_FLAT:
            return False
        return dead.layer == narrow.layer and narrow.evidence.get("units", math.inf) <= _FEW_UNITS
    if dead.issue_type is not _T.DEAD:
        return False
    behind = record.position(dead.layer) > record.position(narrow.layer)
    return dead.evidence.get("units", math.inf) <= _FEW_UNITS or (behind and dead.evidence.get("dead_share", 1) < 0.9)


def _stops_all(flat: Issue) -> bool:
    """Whether next to all values of an activation, or of the gates of a cell, are flat."""
    return bool(max(flat.evidence.get("flat_share", 0.0), flat.evidence.get("flat_gates", 0.0)) > _ALL_FLAT)


def _is_stopped_by(flat: Issue, dead: Issue, record: AnalysisRecord) -> bool:
    """Whether no gradient comes to a layer, or samples have one state, because what it feeds is flat for all of them.

    Its units are at their bounds: they fire, and are not dead.
    """
    if dead.issue_type is not _T.DEAD or dead.evidence.keys().isdisjoint(("gradient_here", "sample_rank")):
        return False
    here, there = record.position(dead.layer), record.position(flat.layer)
    between = [layer for layer in record.layers if layer.order is not None and here < layer.order < there]
    return _module(dead.layer) == _module(flat.layer) or (here < there and not between)


def _directness(issue: Issue, record: AnalysisRecord) -> tuple[int, int, int]:
    """Causes first; of dead layers the first in forward order, behind which others fall silent."""
    where = record.position(issue.layer) if issue.issue_type is _T.DEAD else 0
    return _ORDER.get(issue.issue_type, len(_ORDER)), where, -issue.severity


def _came_later(issue: Issue) -> bool:
    return (
        (issue.step is None or issue.step > 1)
        or issue.issue_type in (_T.UNSTABLE, _T.SATURATION, _T.DEAD)
        or is_by_rate(issue)
    )


def with_consequences(main: Issue, others: Sequence[Issue]) -> Issue:
    """The issue with its consequences. What turns a training into NaN is as grave as the NaN."""
    worst = max((issue.severity for issue in others if issue.issue_type is _T.NUMERICAL), default=main.severity)
    return replace(main, severity=max(main.severity, worst), consequences=(*main.consequences, *others))


def _without_repeats(issues: Iterable[Issue]) -> list[Issue]:
    """Of several findings of one type in one layer the gravest; a level that only repeats a profile goes."""
    kept: dict[tuple[IssueType, str], Issue] = {}
    for issue in sorted(issues, key=lambda issue: (-issue.severity, not is_by_rate(issue))):
        kept.setdefault((issue.issue_type, issue.layer), issue)
    grave = {issue.issue_type for issue in kept.values() if issue.severity > IssueSeverity.LOW}
    return [issue for issue in kept.values() if issue.severity > IssueSeverity.LOW or issue.issue_type not in grave]
