"""What a treatment is meant for: an issue that was found, another length of steps, the cause itself."""

from __future__ import annotations

from typing import Final

from gradient_flow.cures.patient import Patient
from gradient_flow.cures.registry import meant_for
from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.treatment import Treatment, treatment_of

_AT_THE_CAUSE: Final = ("safe_math", "reattach", "add_parameters")
"""Kinds that are only proposed where the very line or setting at fault is known."""
_BY_EVIDENCE: Final = (
    *_AT_THE_CAUSE,
    *("bypass", "way_around", "standardise", "level_samples", "scale_outputs", "skip_spikes"),
)
"""Kinds that are only proposed where what they are for was seen: in inputs, outputs, widths or steps."""


def grave_issues(patient: Patient) -> list[Issue]:
    """What was diagnosed, the gravest first."""
    found = [issue for issue in patient.issues if issue.severity >= IssueSeverity.MEDIUM]
    return sorted(found, key=lambda issue: -issue.severity)


def is_slower(treatment: Treatment) -> bool:
    """Whether it lowers the rate, which short trials favour (arXiv 1803.02021)."""
    return treatment.kind == "warm_up" or (treatment.kind == "learning_rate" and treatment.settings["factor"] < 1)


def is_higher(treatment: Treatment) -> bool:
    """Whether it raises the rate."""
    return treatment.kind == "learning_rate" and treatment.settings["factor"] > 1


def is_faster(treatment: Treatment) -> bool:
    """Whether it may do no more than take longer steps."""
    return treatment.kind == "optimizer" or is_higher(treatment)


def is_advised(patient: Patient, treatment: Treatment) -> bool:
    """Whether an advice of an issue that was found says so."""
    advised = (treatment_of(advice) for issue in grave_issues(patient) for advice in issue.advice)
    return any(wanted is not None and wanted.covers(treatment) for wanted in advised)


def is_against(patient: Patient, treatment: Treatment) -> bool:
    """Whether it is meant for an issue that was found, or advised for it."""
    types = meant_for(treatment.kind)
    if treatment.kind == "learning_rate":
        types = frozenset({"SLOW"} if is_higher(treatment) else {"UNSTABLE", "EXPLODING"})
    meant = any(issue.issue_type.name in types for issue in grave_issues(patient))
    return meant or is_advised(patient, treatment)


def is_at_the_cause(treatment: Treatment) -> bool:
    """Whether it changes what was found to be at fault, and nothing else."""
    return treatment.kind in _AT_THE_CAUSE


def is_pinned(patient: Patient, treatment: Treatment) -> bool:
    """Whether it is meant for the issue and something was seen that asks for it: it gets a full trial."""
    return treatment.kind in _BY_EVIDENCE and is_against(patient, treatment)


def only_faster(patient: Patient, treatment: Treatment) -> bool:
    """Whether it does no more than take longer steps, and the issue is not that they are short."""
    return is_faster(treatment) and not is_against(patient, treatment)
