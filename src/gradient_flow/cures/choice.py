"""Which treatment is the cure: the lowest loss, unless another one heals the issue and helps comparably."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gradient_flow.cures.meaning import (
    grave_issues,
    is_advised,
    is_against,
    is_at_the_cause,
    is_faster,
    is_higher,
    is_pinned,
    only_faster,
)
from gradient_flow.cures.protocol import holds
from gradient_flow.cures.result import BETTER, Trial
from gradient_flow.cures.symptoms import is_only_slow
from gradient_flow.cures.work import EXAMINED, MARGIN, Work
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.diagnosis.treatment import Treatment

COMPARABLE: Final = 0.5
"""Share of the largest gain from which a treatment that heals the issue is preferred to one that does not."""
NEARLY: Final = 0.8
"""Share from which, of those that heal it, the one that the issue's advice names is preferred."""
LARGE: Final = 0.5
"""Share of the untreated loss that has to go for a claim where nothing is diagnosed: slow starts are no sickness."""
LOOKED: Final = 4
"""Finalists that are examined again."""
DUELS: Final = 2
"""Treatments meant for the issue that are compared with longer steps at the same rate."""
_TOO_FAST: Final = (IssueType.UNSTABLE, IssueType.EXPLODING)
"""Issues that longer steps do not heal, whatever they do to the loss of the next few batches."""
_EVIDENT: Final = {
    "add_parameters": "the optimizer does not hold all parameters that get a gradient.",
    "eps": "`eps` of the optimizer is as large as the gradients, and rules the steps.",
    "scale_outputs": "what the model returns is far larger or smaller than answers usually are.",
    "weight_decay": "weight decay takes more than a thousandth of every weight at each step.",
}
"""Treatments that are only proposed where a setting is wrong, and what is wrong then."""


def evident(work: Work) -> tuple[Trial | None, str]:
    """Where the model learns: a setting that is wrong on the face of it, and whose treatment takes most of the loss."""
    full = [t for t in work.trials.values() if t.outcome == BETTER and t.steps >= work.patient.steps]
    found = [trial for trial in full if trial.treatment.kind in _EVIDENT and _is_large(trial)]
    best = min(found, key=lambda trial: trial.loss, default=None)
    return best, "" if best is None else _EVIDENT[best.treatment.kind]


def choose(work: Work) -> Trial | None:
    """The best of what helped, if it still helps after longer where the model learns without it."""
    best = _best(work)
    if best is None:
        return None
    after = holds(work, best)
    work.trials = {at: after if each is best else each for at, each in work.trials.items()}
    return after if after.outcome == BETTER else None


def _best(work: Work) -> Trial | None:
    """The best of what helped: the lowest loss; one that heals the issue is preferred where it helps comparably.

    Longer steps are no cure for what is unstable. Nor are they where nothing is diagnosed and the loss has only not
    moved yet; there any other treatment has to take away a large part of the loss.
    """
    full = [t for t in work.trials.values() if t.outcome == BETTER and t.steps >= work.patient.steps]
    slow, grave = is_only_slow(work), grave_issues(work.patient)
    if slow:
        full = [trial for trial in full if not is_faster(trial.treatment) and _is_large(trial)]
    if grave and grave[0].issue_type in _TOO_FAST:
        full = [trial for trial in full if not is_higher(trial.treatment)]
    if not full:
        return None
    full.sort(key=lambda trial: trial.loss)
    if not grave or work.out_of_time:
        return full[0]
    comparable = _comparable(work, full, COMPARABLE)
    winners = _duels(work, full)
    finalists = {id(trial): trial for trial in (*comparable[:LOOKED], *winners)}
    looked = [_looked(work, trial) if work.can_afford(EXAMINED) else trial for trial in finalists.values()]
    by_treatment = {id(trial.treatment): trial for trial in looked}
    work.trials = {at: by_treatment.get(id(each.treatment), each) for at, each in work.trials.items()}
    if winners:
        looked = [by_treatment[id(trial.treatment)] for trial in winners]
    healing = [trial for trial in looked if trial.issue_gone]
    healing = [trial for trial in healing if not only_faster(work.patient, trial.treatment)] or healing
    if not healing:
        return looked[0]
    # Of what heals, what mends the cause, whatever its first steps cost; then what the issue's advice names.
    mending = [trial for trial in healing if is_at_the_cause(trial.treatment)]
    advised = [t for t in _comparable(work, healing, NEARLY) if is_advised(work.patient, t.treatment)]
    evidence = [t for t in _comparable(work, healing, NEARLY) if is_pinned(work.patient, t.treatment)]
    return (mending or advised or evidence or healing)[0]


def _duels(work: Work, full: Sequence[Trial]) -> list[Trial]:
    """Where longer steps lead: the treatments meant for the issue that still help when steps are as long.

    A higher rate shows at once; what heals the cause may take longer. At the same rate both have the same time.
    """
    patient, leader = work.patient, full[0]
    if not only_faster(patient, leader.treatment):
        return []
    found = []
    meant = [trial for trial in full if is_against(patient, trial.treatment)]
    for trial in sorted(meant, key=lambda trial: not is_advised(patient, trial.treatment))[:DUELS]:
        if not work.can_afford(patient.steps):
            break
        both = Treatment("together", {"parts": [trial.treatment.to_dict(), leader.treatment.to_dict()]})
        loss = work.arm(both, [patient.steps]).losses[patient.steps]
        if loss < leader.losses[0] - MARGIN * abs(leader.losses[0]):
            found.append(trial)
    return found


def _is_large(trial: Trial) -> bool:
    if trial.untreated is None:
        return False
    low = min(trial.untreated.losses)
    return max(trial.losses) < low - LARGE * abs(low)


def _comparable(work: Work, full: Sequence[Trial], share: float) -> list[Trial]:
    """Those that gain this share of what the best gains, which comes first."""
    best = full[0]
    before = [loss for loss in best.untreated.losses if math.isfinite(loss)] if best.untreated is not None else []
    start = min(before, default=work.first_loss)
    if not math.isfinite(start):
        return list(full)  # anything finite is a gain without measure
    return [trial for trial in full if start - trial.loss >= share * (start - best.loss)]


def _looked(work: Work, trial: Trial) -> Trial:
    """The trial with a second examination: is the gravest issue still found?"""
    before = grave_issues(work.patient)[0]
    issues, record = work.examined(trial.treatment)
    still = any(i.issue_type == before.issue_type and i.severity >= IssueSeverity.MEDIUM for i in issues)
    return replace(trial, issue_gone=not still, steps_taken=trial.steps_taken + record.steps)
