"""Which batch, and which sample: spikes and NaN with what was recorded of the batches of their steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueType
from gradient_flow.diagnosis.run_rules import LOUD_BATCHES, are_batches, spikes_in
from gradient_flow.record.event import BATCH
from gradient_flow.record.evidence import RunRecord

_SHOWN: Final = 8
_BY_CHANCE: Final = 0.1
"""Samples that batches would share if they were drawn at random: with fewer than this, it is no chance."""
_FEW: Final = 4
"""Samples that are named as the ones that all spikes have in common."""


def with_batches(issues: Sequence[Issue], record: RunRecord) -> list[Issue]:
    """The issues, those about spikes and NaN with the batches of their steps."""
    issues = [_of_loud_batches(issue, record) for issue in issues]
    known = {event.step: event.data for event in record.events if event.kind == BATCH and event.step is not None}
    if not known:
        return issues
    finite = [series.finite() for series in record.totals]
    spikes = sorted(steps[at] for steps, norms in finite for at in spikes_in(norms)[0])
    return [_named(issue, known, spikes) for issue in issues]


def _of_loud_batches(issue: Issue, record: RunRecord) -> Issue:
    """Spikes, whoever counted them, with their cause where the losses show that single batches are at fault."""
    if issue.issue_type is not IssueType.UNSTABLE or issue.code or "largest_over_median" not in issue.evidence:
        return issue
    for series in record.totals:
        steps, norms = series.finite()
        at = spikes_in(norms)[0]
        if at and are_batches(series, [steps[k] for k in at]):
            return replace(issue, code="bad_batch", cause=LOUD_BATCHES)
    return issue


def _named(issue: Issue, known: Mapping[int, Mapping[str, Any]], spikes: Sequence[int]) -> Issue:
    if issue.issue_type not in (IssueType.UNSTABLE, IssueType.NUMERICAL):
        return issue
    steps: Sequence[int | None] = [issue.step]
    if issue.issue_type is IssueType.UNSTABLE and spikes:
        # A rule that counts spikes by another measure names the batches of those that it counted.
        own = issue.evidence.get("spikes_at", ())
        steps = [step for step in spikes if step in own] or spikes
    named = [(step, known[step]) for step in steps if step is not None and step in known]
    here = [(step, data) for step, data in named if isinstance(data.get("batch"), str)]
    if not here:
        return issue
    step, data = here[0]
    message = f"{issue.message} {_sentence(step, data, len(here))}"
    evidence: dict[str, Any] = {**issue.evidence, "batches": {str(at): each["batch"] for at, each in here[:_SHOWN]}}
    advice = [*issue.advice]
    advice.append("Replay that batch with `gf.find_batch(step_fn, batch, model)`: it names the samples that cause it.")
    code, cause = issue.code, issue.cause
    again = Counter(each["batch"] for _, each in here).most_common(1)[0]
    shared = _shared([each["indices"] for _, each in here if _is_list(each.get("indices"))])
    if shared:
        evidence["samples"] = shared
        who = f"sample{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
        cause = f"{who} of the dataset: every batch that spiked contains {'them' if len(shared) > 1 else 'it'}."
        advice.insert(0, f"Look at {who} of the dataset: label, scale, length.")
        code = code or "bad_batch"
    elif again[1] > 1:
        cause = f"the batch {again[0]}: it was used {again[1]} times and spiked each time."
        advice.insert(0, "Look at the data of that batch: labels, scale, length.")
        code = code or "bad_batch"
    return replace(issue, message=message, evidence=evidence, cause=cause, advice=advice, code=code)


def _sentence(step: int, data: Mapping[str, Any], count: int) -> str:
    part = ""
    if isinstance(data.get("micro_batch"), int) and _is_list(data.get("micro_batches")):
        part = f"; micro-batch {data['micro_batch'] + 1} of {len(data['micro_batches'])} stands out"
    indices = data.get("indices")
    drawn = ""
    if isinstance(indices, list) and _is_list(indices):
        more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
        drawn = f" (samples {', '.join(map(str, indices[:_SHOWN]))}{more})"
    others = {1: "", 2: "; the evidence lists that of one more spike"}.get(
        count, f"; the evidence lists those of {count - 1} more spikes"
    )
    return f"Step {step} used batch {data['batch']}{part}{drawn}{others}."


def _shared(batches: Sequence[Sequence[int]]) -> list[int]:
    """The few samples that all these batches have, where chance would not bring that about."""
    if len(batches) < 2:
        return []
    common = set(batches[0]).intersection(*batches[1:])
    size = 1 + max(index for batch in batches for index in batch)
    expected = float(size)
    for batch in batches:
        expected *= len(batch) / size
    return sorted(common) if 0 < len(common) <= _FEW and expected < _BY_CHANCE else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, (int, str)) for each in value)
