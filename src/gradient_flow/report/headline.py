"""The verdict in the words of a page: the headline, and each issue with its evidence and advice."""

from __future__ import annotations

from typing import Any, Final

from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueType

_TITLES: Final = {
    IssueType.VANISHING: "Gradients vanish",
    IssueType.EXPLODING: "Gradients explode",
    IssueType.DEAD: "No gradient arrives",
    IssueType.UNSTABLE: "Gradients are unstable",
    IssueType.NUMERICAL: "NaN or Inf",
    IssueType.SLOW: "Weights hardly move",
    IssueType.BOTTLENECK: "Gradients get stuck",
    IssueType.DISCONNECTED: "Cut off from the loss",
    IssueType.LOOP: "The loop is at fault",
}
IN_WORK: Final[dict[str, Any]] = {
    "sentence": "Verdict pending: the run is long, and its verdict follows in a moment.",
    "level": "unknown",
    "issues": [],
    "then": None,
}
"""What stands in place of a verdict that takes longer than a page may."""


def verdict_data(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """A diagnosis as a page shows it; None while it is still being computed."""
    if diagnosis is None:
        return IN_WORK
    level = str(diagnosis[0].severity).lower() if diagnosis else "healthy"
    if not diagnosis and diagnosis.status == "insufficient_data":
        level = "unknown"
    if diagnosis.status == "failed":  # nothing was found, and it did not end well all the same
        level = "failed"
    issues = [_issue(place, issue) for place, issue in enumerate(diagnosis.issues)]
    sentence, then = verdict_sentence(diagnosis), diagnosis.stored_message
    return {"sentence": sentence, "level": level, "issues": issues, "then": then}


def verdict_sentence(diagnosis: Diagnosis) -> str:
    """What, where, since when: the gravest issue in a sentence."""
    if not diagnosis or diagnosis.status == "failed":
        return diagnosis.message
    first, more = diagnosis[0], len(diagnosis) - 1
    since = "" if first.step is None else f" since step {first.step:,}"
    also = f" ({more} more {'issue' if more == 1 else 'issues'} below.)" if more else ""
    if diagnosis.healthy:
        return diagnosis.with_ending(f"Healthy, with a remark: {first.message}{also}")
    return diagnosis.with_ending(f"{_title(first)}{since}: {first.message}{also}")


def _title(issue: Issue) -> str:
    what = _TITLES.get(issue.issue_type, issue.issue_type.value.capitalize())
    return what if issue.layer == "model" else f"{what} in `{issue.layer}`"


def _issue(place: int, issue: Issue) -> dict[str, Any]:
    plain = issue.to_dict()
    evidence = plain["evidence"]
    layers = evidence.get("layers") if isinstance(evidence.get("layers"), list) else []
    layer = None if issue.layer == "model" else issue.layer
    named = [str(name) for name in layers or []]
    return {
        "id": f"i{place}",
        "type": plain["issue_type"],
        "severity": plain["severity"],
        "layer": layer,
        "layers": list(dict.fromkeys([*([] if layer is None else [layer]), *named])),
        "first_step": issue.step,
        "last_step": None,
        "title": _title(issue),
        "text": issue.message,
        "cause": issue.cause or None,
        "evidence": [[_words(name), _shown(value)] for name, value in evidence.items()],
        "advice": [{"text": text, "reason": None} for text in issue.advice],
        "consequences": [str(each).split("\n", 1)[0] for each in issue.consequences],
        "rule_url": None,
    }


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: Any) -> str | float | int:
    """A number, or a text for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if value is None:
        return "not finite"
    if isinstance(value, list):
        shown = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in value[:20]]
        more = f" and {len(value) - 20} more" if len(value) > 20 else ""
        return (", ".join(shown) or "none") + more
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(item)}" for name, item in list(value.items())[:20])
    return str(value)
