"""Looks at a training: what they leave to the run, which knows every step, is put in here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network import levels, stability
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.network.rules import NETWORK_RULES
from gradient_flow.diagnosis.network.updates import has_converged
from gradient_flow.diagnosis.robust import fell_to, is_solved, loss_change
from gradient_flow.record.evidence import RunRecord, Series

_SETTLING: Final = 5
"""First steps, whose norms are larger in most trainings."""
_WINDOW: Final = 64
_KNOWS: Final = 0.3
"""Share of the loss of a guess."""
_SMALL: Final = 0.1
"""A loss of targets of ordinary size."""
_LASTING: Final = frozenset({IssueType.NUMERICAL, IssueType.DISCONNECTED, IssueType.SYMMETRY, IssueType.HEAD_DIVERSITY})
"""A fault whatever the loss is."""
_LEARNT: Final = frozenset({IssueType.SATURATION, IssueType.SPECTRAL_RADIUS})
_LEARNS: Final = 0.7
"""Share of the first loss."""
_FALLS: Final = 0.97
"""The same, of a training that attention which is sharp, but passes a gradient, does not stop."""
_FROM_THEN_ON: Final = 10
"""Steps after which what comes up was not there from the start, as good as."""
_A_FEW: Final = 4
"""Units of a narrow layer up to which it counts although the training learns."""
_NEARLY_ALL: Final = 0.9
"""Share of dead units up to which the others do the work of a layer, in a training that learns."""
_HOT, _ONE_KEY = 40.0, 0.15
"""A logit, and entropy as a share of ln(keys), at the first look: a softmax that picked single keys before anything was
learnt has not learnt where to look. Queries and keys drawn as usual come to 28, with an entropy of 0.26."""
_ONE_ACTION: Final = 1e-3
"""Entropy of a policy, as a share of ln(actions), at the first look and over all states: it never tried anything, and
what falls is the loss of its critic."""
_ONE_FOR_ALL: Final = 0.1
"""Entropy over all states, as a share of ln(actions), below which a policy takes one action. Policies that learnt their
task are at 0.45 or more, those that rewards without a baseline or a wrong sign drove there at 0.09 or less."""
_SURE: Final = 0.1
_FEW_ACTIONS: Final = 0.65
_SOON: Final = 500
"""Entropy of a policy in a state and over all states, each as a share of ln(actions), and steps: a policy that is sure
of few of its actions so soon did not try the others. Of a hundred that learn none is below 0.11 in 120 steps, and over
all states they keep 0.76; those that a wrong sign or their own choice drove there are at 0.06 to 0.09, and 0.4 to 0.5.
"""
_LOOKED: Final = 1e-6
"""Nats by which actions depend on states at some look, beyond rounding: a new policy has a hundredth."""
_SAME: Final = 1e-4
"""Spread of tokens that differ by rounding alone."""
_FLAT_FROM_THE_START: Final = 0.8
"""Share of the values of an activation in its flat part at the first look."""
_DONE: Final = 0.1
"""The same, of a training that has done its work."""
_SHRINKS: Final = 0.7
"""Share of the first spectral radius that is left. A healthy recurrence keeps 0.82 of it or more, 0.94 where the task
reaches back; a penalty on all of its weights leaves 0.5 to 0.6."""
_THRIVES: Final = 0.35
"""The same, of a training that gradients which grow a little do no harm."""
_LEAST_LOSSES: Final = 10
_LEAST_TO_BE_STUCK: Final = 20
_FROM_THE_START: Final = frozenset({IssueType.DEAD, IssueType.SATURATION})
"""Units that a training ends with in this state have done their work; those that began in it never did any."""


def unstable_norm(network: AnalysisRecord) -> Iterator[Issue]:
    """Spikes and noise in the last steps. In a long training norms far apart have nothing to do with each other."""
    first = max(_SETTLING, len(network.norms) - _WINDOW)
    for issue in stability.unstable_norm(replace(network, norms=network.norms[first:])):
        yield replace(issue, step=None if issue.step is None else issue.step + first)


RULES: Final = tuple(
    unstable_norm if rule is stability.unstable_norm else rule
    for rule in NETWORK_RULES
    if rule is not levels.coefficient_of_variation
)


def is_of_training(network: AnalysisRecord) -> bool:
    """Whether it comes from looks at a training; an analysis brings the norms of its own steps."""
    return network.trained and not network.norms and bool(network.watched)


def with_steps(network: AnalysisRecord, record: RunRecord) -> tuple[AnalysisRecord, list[int]]:
    """The network with losses and norms of the run, and the steps that their positions stand for."""
    # With several optimizers norms and losses of different things alternate: rules on steps judge each by itself.
    series = record.totals[0] if len(record.totals) == 1 else Series(name="", steps=[], norms=[])
    graded = {layer.name for layer in record.layers}
    layers = [
        replace(
            layer,
            gradient_seen=layer.gradient_seen or not graded.isdisjoint(layer.parameters),
            update_ratio=[ratio for ratio in layer.update_ratio if record.nonfinite is None or math.isfinite(ratio)],
        )
        for layer in network.layers
    ]
    steps = series.steps or network.watched
    broke = record.nonfinite.step if record.nonfinite is not None else math.inf
    whole = bisect_left(series.steps, broke) if broke < math.inf else len(series.steps)
    return (
        replace(
            network,
            steps=record.steps,
            # After a step that was not finite there is nothing left to judge; rules on steps name it.
            norms=series.norms[:whole],
            losses=_losses(series)[:whole],
            watched=[min(bisect_left(steps, step), len(steps) - 1) for step in network.watched],
            layers=layers,
        ),
        steps,
    )


def without_settled(issues: Sequence[Issue], network: AnalysisRecord) -> list[Issue]:
    """What counts in a training that has done its work: units may saturate, gradients be small, updates be noise."""
    if _has_solved_it(network):
        return [issue for issue in issues if issue.issue_type in _LASTING or _never_worked(issue)]
    if network.losses and has_converged(network):
        return [issue for issue in issues if issue.severity > IssueSeverity.LOW or issue.issue_type in _LASTING]
    return list(issues)


def as_learnt(issues: Sequence[Issue], losses: Sequence[float], first: int | None) -> list[Issue]:
    """What came up after the first look, at step `first`, in a training whose loss falls is what it learnt: a remark.

    A tanh that learns leaves its linear part, a policy becomes certain, a recurrence that has to remember gets a radius
    above 1, and attention that learns where to look may be sharp. A memory that the loss does not miss is long enough,
    and so are the units that are left of a layer.
    """
    change = loss_change(losses, _LEAST_LOSSES)
    if first is None or not fell_to(losses, _FALLS, _LEAST_LOSSES):
        return [_out_of_reach(issue, losses) for issue in issues]
    issues = [
        replace(issue, severity=IssueSeverity.LOW)
        if (_looks_sharply(issue) and (issue.severity < IssueSeverity.HIGH or _found_where_to_look(issue, change)))
        or _remembers(issue)
        else issue
        for issue in issues
    ]
    if not change < _LEARNS:
        return issues
    return [
        replace(issue, severity=min(issue.severity, IssueSeverity.MEDIUM))
        if _is_sure_of_few(issue) and len(losses) <= _SOON
        else replace(issue, severity=IssueSeverity.LOW)
        if (issue.issue_type in _LEARNT and issue.severity < IssueSeverity.CRITICAL and (issue.step or 0) > first)
        # Below zero a loss is a sum of advantages, which falls whatever a policy does.
        or (_may_be_certain(issue) and (issue.step or 0) > max(first, _FROM_THEN_ON) and change > 0)
        or _has_enough_left(issue)
        or (_is_of_its_task(issue) and (issue.step or 0) > first)
        or (issue.issue_type is IssueType.SPECTRAL_RADIUS and issue.severity < IssueSeverity.HIGH and change < _THRIVES)
        else issue
        for issue in issues
    ]


def _is_of_its_task(issue: Issue) -> bool:
    """Whether it may be what a task asks for, where it was not there before.

    States of a classifier of two kinds come to lie on a line, and attention that learns where to look has logits that
    grow: what is told is how large they would get.
    """
    growing = issue.issue_type is IssueType.UNSTABLE and "growth_power" in issue.evidence
    return (issue.issue_type is IssueType.LOW_RANK or growing) and issue.severity < IssueSeverity.HIGH


def _may_be_certain(issue: Issue) -> bool:
    """Whether it says that outputs are certain, of a policy, say: that is what training leads to."""
    if issue.evidence.get("flat_share_at_first", 0.0) > _FLAT_FROM_THE_START:
        return False  # no training led there
    if _fell_blind(issue):
        return False  # what falls is the loss of a critic, or a bonus of the wrong sign
    return issue.issue_type in (IssueType.SATURATION, IssueType.ENTROPY_COLLAPSE) and not _looks_sharply(issue)


def _is_sure_of_few(issue: Issue) -> bool:
    """Whether a policy that has states takes few of its actions, and is sure of them."""
    if issue.issue_type is not IssueType.ENTROPY_COLLAPSE or _looks_sharply(issue) or _fell_blind(issue):
        return False
    known = issue.evidence
    sure = known.get("discrete_entropy_normalized", 1.0) < _SURE and known.get("marginal_entropy", 1.0) < _FEW_ACTIONS
    return bool(sure and known.get("mutual_information_at_most", 0.0) > _LOOKED)


def _has_enough_left(issue: Issue) -> bool:
    """Whether units of a layer are dead, and others do its work; or a layer is narrow, and not down to a few units."""
    if issue.issue_type is IssueType.BOTTLENECK and issue.severity < IssueSeverity.HIGH:
        return bool(issue.evidence.get("units", 0) > _A_FEW)
    share, at_first = issue.evidence.get("dead_share", 1.0), issue.evidence.get("dead_share_at_first") or 0.0
    # Units that never fired from the start on were not made needless by others.
    return issue.issue_type is IssueType.DEAD and share < _NEARLY_ALL and at_first < _NEARLY_ALL * share


def _remembers(issue: Issue) -> bool:
    """Whether it says that a memory is too short for what the loss depends on: a loss that falls says otherwise.

    A state that is cut from the graph is cut whatever is learnt meanwhile. And a memory that gets shorter is not what a
    training leads to that has to remember: another term of the loss falls, at its cost.
    """
    radius, first = issue.evidence.get("spectral_radius"), issue.evidence.get("spectral_radius_at_first")
    if radius is not None and first is not None and radius < _SHRINKS * first:
        return False
    return "measured_lag" in issue.evidence and "cut_share" not in issue.evidence


def _out_of_reach(issue: Issue, losses: Sequence[float]) -> Issue:
    """A recurrence that is called on parts of a sequence may hand its state on; if nothing is learnt, it does not."""
    if "steps_per_call" in issue.evidence and len(losses) >= _LEAST_TO_BE_STUCK and all(map(math.isfinite, losses)):
        message = f"{issue.message.removesuffix('.')}, and the loss does not fall."
        return replace(issue, severity=IssueSeverity.HIGH, message=message)
    return issue


def _looks_sharply(issue: Issue) -> bool:
    """Whether it is about attention: a policy that is sure too early lowers its loss as well."""
    return issue.issue_type is IssueType.ENTROPY_COLLAPSE and "frozen_heads" in issue.evidence


def _found_where_to_look(issue: Issue, change: float) -> bool:
    """Whether attention became sharp while the task was solved by it, but for a batch now and then.

    One head that finds the fact that is asked for ends at 0.01 of ln(keys) and a thousandth of the first loss, with a
    wrong answer in one of ten batches.
    """
    return 0 <= change < _DONE and not _never_worked(issue)


def _never_worked(issue: Issue) -> bool:
    """Whether nothing of a layer passes a gradient, and that from the first look on; or its softmax none, by far.

    Tokens that are the same from the start on are one token, and nothing will tell them apart. And where samples come
    together the loss is next to nothing because of that.
    """
    if issue.issue_type is IssueType.LOW_RANK:
        return "spread_at_first" in issue.evidence
    if issue.issue_type is IssueType.RANK_COLLAPSE:
        return issue.severity >= IssueSeverity.HIGH and issue.evidence.get("token_spread_at_start", 1.0) < _SAME
    if issue.issue_type is IssueType.ENTROPY_COLLAPSE:
        logit, start = issue.evidence.get("max_logit_at_start", 0.0), issue.evidence.get("entropy_at_start", 1.0)
        frozen = bool(issue.evidence.get("far_beyond")) or (logit > _HOT and start < _ONE_KEY)
        return issue.severity >= IssueSeverity.HIGH and (frozen or _never_tried(issue) or _fell_blind(issue))
    return issue.issue_type in _FROM_THE_START and issue.severity == IssueSeverity.CRITICAL and issue.step == 1


def _never_tried(issue: Issue) -> bool:
    """Whether a policy takes one action whatever the state, and did so at the first look: no training led there."""
    first, overall = issue.evidence.get("entropy_at_first", 1.0), issue.evidence.get("marginal_entropy", 1.0)
    return bool(max(first, overall) < _ONE_ACTION)


def _fell_blind(issue: Issue) -> bool:
    """Whether a policy that looked at its states came to take one action whatever they are.

    Of a bandit, which has no states, one arm is all there is to learn.
    """
    if issue.issue_type is not IssueType.ENTROPY_COLLAPSE or _looks_sharply(issue):
        return False
    overall, looked = issue.evidence.get("marginal_entropy", 1.0), issue.evidence.get("mutual_information_at_most", 0.0)
    return bool(overall < _ONE_FOR_ALL and looked > _LOOKED)


def _has_solved_it(network: AnalysisRecord) -> bool:
    """Whether the loss is next to nothing, and not only far below a first one that was far too high."""
    if not is_solved(network.losses):
        return False
    if network.optimizer == "LBFGS":
        return True  # with a line search it takes no step that does not lower the loss
    most = _KNOWS * math.log(max(2, network.classes)) if network.classes is not None else _SMALL
    return max(loss for loss in network.losses[-3:] if math.isfinite(loss)) < most


def _losses(series: Series) -> list[float]:
    """One per step; where none was recorded, the one before. A loss that is not finite comes with a bad gradient."""
    known: list[float] = []
    for loss, norm in zip(series.losses, series.norms, strict=False):
        missing = math.isnan(loss) and math.isfinite(norm)
        known.append(known[-1] if missing and known else loss)
    return known if all(not math.isnan(loss) for loss in known[:1]) else []
