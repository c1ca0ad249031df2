"""The verdict in the words of a page: the headline, and each issue with its evidence and advice."""

from __future__ import annotations

from typing import Any, Final

from gradient_flow.diagnosis.issue import WHOLE, Diagnosis, Issue, IssueType
from gradient_flow.diagnosis.titles import title_of
from gradient_flow.record.ending import SILENT
from gradient_flow.report.evidence_words import evidence_data

_CURVES: Final = {
    IssueType.VANISHING: "depth",
    IssueType.EXPLODING: "depth",
    IssueType.BOTTLENECK: "depth",
    IssueType.DISCONNECTED: "depth",
    IssueType.SYMMETRY: "depth",
    IssueType.DEAD: "dead",
    IssueType.SATURATION: "slope",
    IssueType.SLOW: "updates",
    IssueType.LOOP: "loss",
    IssueType.EXPLORATION: "loss",
    IssueType.SPECTRAL_RADIUS: "radius",
    IssueType.SHORT_MEMORY: "radius",
    IssueType.LOW_RANK: "radius",
    IssueType.ENTROPY_COLLAPSE: "entropy",
    IssueType.HEAD_DIVERSITY: "entropy",
    IssueType.RANK_COLLAPSE: "entropy",
}
"""The curve that shows an issue; the page takes the next best where a run has none such. Others show in the norm."""
IN_WORK: Final[dict[str, Any]] = {
    "sentence": "Verdict pending: the run is long, and its verdict follows in a moment.",
    "level": "unknown",
    "issues": [],
    "then": None,
}
"""Shown while a verdict takes longer than a page may wait."""


def verdict_data(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """A diagnosis as a page shows it; None while it is still being computed."""
    if diagnosis is None:
        return IN_WORK
    level = str(diagnosis[0].severity).lower() if diagnosis else "healthy"
    silent = diagnosis.ending is not None and diagnosis.ending.state == SILENT
    if not diagnosis and (silent or diagnosis.status == "insufficient_data"):
        level = "unknown"  # nobody knows how a silent run ended: no green badge
    if diagnosis.status == "failed":  # no issue, but an error ended the run
        level = "failed"
    issues = [_issue(place, issue) for place, issue in enumerate(diagnosis.issues)]
    sentence, then = verdict_sentence(diagnosis), diagnosis.stored_message
    return {"sentence": sentence, "level": level, "issues": issues, "then": then}


def verdict_sentence(diagnosis: Diagnosis) -> str:
    """What, where, since when: the gravest issue in a sentence."""
    if not diagnosis or diagnosis.status == "failed":
        return diagnosis.message
    first, more = diagnosis[0], len(diagnosis) - 1
    since = "" if first.step is None else f", since step {first.step:,}"
    also = f" ({more} more {'issue' if more == 1 else 'issues'} below.)" if more else ""
    if diagnosis.healthy:
        return diagnosis.with_ending(f"Healthy, with a remark: {first.message}{also}")
    return diagnosis.with_ending(f"{title_of(first)}{since}: {first.message}{also}")


def _issue(place: int, issue: Issue) -> dict[str, Any]:
    plain = issue.to_dict()
    evidence = plain["evidence"]
    pairs, charts = evidence_data(evidence)
    layers = evidence.get("layers") if isinstance(evidence.get("layers"), list) else []
    layer = None if issue.layer == WHOLE else issue.layer
    named = [str(name) for name in layers or []]
    return {
        "id": f"i{place}",
        "type": plain["issue_type"],
        "severity": plain["severity"],
        "layer": layer,
        "layers": list(dict.fromkeys([*([] if layer is None else [layer]), *named])),
        "first_step": issue.step,
        "last_step": None,
        "title": title_of(issue),
        "text": issue.message,
        "cause": issue.cause or None,
        "evidence": pairs,
        "charts": charts,
        "curve": _curve(issue),
        "advice": [{"text": text, "reason": None} for text in issue.advice],
        "consequences": [f"{title_of(each)}: {each.message}" for each in issue.consequences],
        "followers": issue.followers,
        "rule_url": None,
    }


def _curve(issue: Issue) -> str:
    """Gradients that vanish or explode in the course of the steps, and not from layer to layer, show in the norm."""
    curve = _CURVES.get(issue.issue_type, "norm")
    over_time = "decades_per_step" in issue.evidence or "rate_change" in issue.evidence
    return "norm" if curve == "depth" and over_time and "gain_over_depth" not in issue.evidence else curve
