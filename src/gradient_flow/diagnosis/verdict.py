"""`verdict`: the only way from a run to its issues. It is the same for a live run and for its file, on every surface.

A run holds steps, tables, what probes saw, and events. Rules are applied to each; where the inside of the network was
seen, that is the closer look, and rules on steps and tables add only what it neither names nor explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gradient_flow.diagnosis.batches import with_batches
from gradient_flow.diagnosis.consolidation import after_nonfinite, after_raised_rate, beside, consolidate, is_by_rate
from gradient_flow.diagnosis.issue import RULE_SET, Diagnosis, Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.record import LoopFacts
from gradient_flow.diagnosis.loop.rules import LOOP_RULES, SIZES, with_loop
from gradient_flow.diagnosis.loop.scale import on_one_scale
from gradient_flow.diagnosis.network.in_training import RULES as TRAINING_RULES
from gradient_flow.diagnosis.network.in_training import as_learnt, is_of_training, with_steps, without_settled
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.network.rules import NETWORK_RULES
from gradient_flow.diagnosis.optimizer.all_rules import OPTIMIZER_RULES
from gradient_flow.diagnosis.optimizer.record import OPTIMIZER, OptimizerFacts
from gradient_flow.diagnosis.rate_changes import after_rate_change
from gradient_flow.diagnosis.registry import apply_probe_rules, apply_rules, registered
from gradient_flow.diagnosis.run_rules import DIVERGED, ENOUGH, KEEP_OUT, RUN_RULES
from gradient_flow.errors import RunFileError
from gradient_flow.record.event import FORENSICS, LOOKS_ENDED, READ_FROM_GRAPH, UNSUPPORTED, Event
from gradient_flow.record.evidence import ANALYSIS, RunRecord, evidence_of
from gradient_flow.record.look import BESIDE
from gradient_flow.record.plain import from_plain
from gradient_flow.record.run import Run

NETWORK: Final = "network"
"""The name under which a look keeps what was seen inside the network: an `AnalysisRecord`."""
LOOP: Final = "loop"
"""The name under which a look keeps what was seen of the loop: `LoopFacts`."""
NOT_SUPPORTED: Final = "Not supported: nothing is judged."
NOT_JUDGED: Final = "bottlenecks, dead units, attention and recurrence are not judged."
WAITS: Final = "No step has been recorded yet: without an optimizer, call flow.step() before each step of your own."


def verdict(run: Run, evidence: RunRecord | None = None) -> Diagnosis:
    """What is wrong with a run, since when, where, and what to do. `evidence` is that of the run, if it is at hand."""
    found = judge(evidence_of(run) if evidence is None else evidence)
    elsewhere = _of_rules_elsewhere(run)
    if elsewhere:
        found = Diagnosis([*found, *elsewhere], steps=found.steps, looks=found.looks, unseen=found.unseen)
    found.ending = run.ending
    stored = _stored(run)
    if stored is not None and stored.get("rule_set") != RULE_SET:
        found.stored = stored
    return found


def judge(record: RunRecord) -> Diagnosis:
    """What the rules in force here make of what was recorded."""
    unsupported = [event for event in record.events if event.kind == UNSUPPORTED]
    if unsupported:
        why = unsupported[-1].data.get("reason")
        return Diagnosis([], steps=record.steps, enough=False, reason=f"{NOT_SUPPORTED} {why}")
    analysed = record.source == ANALYSIS
    record = on_one_scale(record, _facts_of(record))
    over_time = [] if analysed else after_nonfinite(apply_rules(record, RUN_RULES, "run"))
    network = _intact_network(record)
    seen = _seen_inside(record, over_time, network)
    issues = after_raised_rate(over_time) if seen is None else beside(_naming_tensors(seen, over_time), over_time)
    if not analysed:
        loop = _loop_of(record, network)
        found = [*apply_rules(loop, OPTIMIZER_RULES, "optimizer"), *apply_rules(loop, LOOP_RULES, "loop")]
        issues = with_loop(issues, found, loop)
        issues = sorted(issues, key=_order)
    issues = with_batches(_with_origin(after_rate_change(issues, record), record.events), record)
    reason = WAITS if record.by_hand and not record.steps else ""
    enough = analysed or record.steps >= ENOUGH
    unseen = "" if reason else _unseen(record)
    return Diagnosis(
        issues, steps=record.steps, enough=enough, reason=reason, looks=record.looks, unseen=unseen if enough else ""
    )


def _order(issue: Issue) -> tuple[int, bool, bool]:
    """The gravest first. Among equals, NaN first, and a high first loss after whatever makes it high."""
    return -issue.severity, issue.issue_type is not IssueType.NUMERICAL, issue.code == "first_loss_high"


def _unseen(record: RunRecord) -> str:
    """What is not judged although looks were wanted, and why."""
    ended = next((e.data.get("reason") for e in reversed(record.events) if e.kind == LOOKS_ENDED), None)
    if record.looks:
        return f"Looks ended after {record.looks}: {ended}" if isinstance(ended, str) else ""
    if isinstance(ended, str):
        return f"No look inside, {ended.rstrip('.')}: {NOT_JUDGED}"
    return f"No look inside yet: {NOT_JUDGED}" if record.looks_wanted and not record.seen else ""


def network_of(record: RunRecord) -> AnalysisRecord | None:
    """What was seen inside the network, where that was looked at."""
    plain = record.seen.get(NETWORK)
    return None if plain is None else from_plain(AnalysisRecord, plain)


def _intact_network(record: RunRecord) -> AnalysisRecord | None:
    """The same; what is damaged counts as not seen, and what else was seen still counts."""
    try:
        return network_of(record)
    except RunFileError:
        return None


def _loop_of(record: RunRecord, network: AnalysisRecord | None) -> Loop:
    """What is known of the loop."""
    return Loop(record, _facts_of(record), network, _states_of(record))


def _facts_of(record: RunRecord) -> LoopFacts:
    """What looks saw of the loop; what is damaged in the file counts as not seen."""
    plain = record.seen.get(LOOP)
    try:
        return LoopFacts() if plain is None else from_plain(LoopFacts, plain)
    except RunFileError:
        return LoopFacts()


def _states_of(record: RunRecord) -> OptimizerFacts:
    plain = record.seen.get(OPTIMIZER)
    try:
        return OptimizerFacts() if plain is None else from_plain(OptimizerFacts, plain)
    except RunFileError:
        return OptimizerFacts()


def _seen_inside(record: RunRecord, over_time: Sequence[Issue], network: AnalysisRecord | None) -> list[Issue] | None:
    """What rules on the network and the rules of probes find; None where nothing inside was seen."""
    if not record.seen.keys() - BESIDE:
        return None
    special = [issue for probe, found in record.seen.items() for issue in apply_probe_rules(probe, found)]
    if network is None:
        return consolidate(special, AnalysisRecord(steps=record.steps))
    if record.source != ANALYSIS and is_of_training(network):
        first = min(network.watched)
        network, steps = with_steps(network, record)
        inside = apply_rules(network, TRAINING_RULES, "analysis")
        known = {_same(issue) for issue in inside if issue.step is not None and issue.step > 1}
        inside = [_at_step(issue, steps) for issue in inside]
        # A rate that is far too high may have done its work before the first look.
        found_over_time = [issue for main in over_time for issue in (main, *main.consequences)]
        by_rate = [] if any(map(is_by_rate, inside)) else list(filter(is_by_rate, found_over_time))
        known |= set(map(_same, by_rate))
        found = without_settled(consolidate([*by_rate, *inside, *special], network), network)
        found = [issue if _same(issue) in known else replace(issue, step=None) for issue in found]
        return as_learnt(_since_looks(found, record), network.losses, first)
    found = consolidate([*apply_rules(network, NETWORK_RULES, "analysis"), *special], network)
    return found if record.source == ANALYSIS else _in_steps_of_the_run(found, network, record.seen_at.get(NETWORK))


def _naming_tensors(seen: Sequence[Issue], over_time: Sequence[Issue]) -> list[Issue]:
    """A look names the module in which a gradient was not finite; the tables of a run, the tensor of that module."""
    bad = next((issue.layer for issue in over_time if issue.issue_type is IssueType.NUMERICAL), "")
    return [
        replace(issue, layer=bad)
        if issue.issue_type is IssueType.NUMERICAL and bad.rpartition(".")[0] == issue.layer
        else issue
        for issue in seen
    ]


def _since_looks(issues: list[Issue], record: RunRecord) -> list[Issue]:
    """Where a rule does not tell since when: since the first of the looks up to now that all show the issue."""
    asked = {_same(issue): issue for issue in issues if issue.step is None}
    since = dict.fromkeys(asked, record.seen_at.get(NETWORK))
    for step, seen in reversed(record.earlier_looks() if asked else []):
        if not seen.keys() - BESIDE:
            continue  # a look at the loop alone shows nothing of the network
        then = _shown_at(seen, record)
        asked = {key: issue for key, issue in asked.items() if key in then}
        since |= dict.fromkeys(asked, step)
        if not asked:
            break
    return [replace(issue, step=since[_same(issue)]) if issue.step is None else issue for issue in issues]


def _shown_at(seen: Mapping[str, Mapping[str, Any]], record: RunRecord) -> set[tuple[IssueType, str]]:
    """What the rules find with this look as the last. Losses and norms are those of the whole run: with hindsight."""
    found = [issue for probe, each in seen.items() for issue in apply_probe_rules(probe, each)]
    try:
        network = from_plain(AnalysisRecord, seen[NETWORK])
    except (KeyError, RunFileError):
        network = None
    if network is not None:
        network, _ = with_steps(network, record)
        found += apply_rules(network, TRAINING_RULES, "analysis")
    return {_same(issue) for issue in found}


def _same(issue: Issue) -> tuple[IssueType, str]:
    return issue.issue_type, issue.layer


def _at_step(issue: Issue, steps: Sequence[int]) -> Issue:
    """Rules count the steps that were recorded, from 1."""
    if issue.step is None or not 0 < issue.step <= len(steps):
        return issue
    return replace(issue, step=steps[issue.step - 1])


def _in_steps_of_the_run(issues: Sequence[Issue], network: AnalysisRecord, looked_at: int | None) -> list[Issue]:
    """An analysis counts its own steps from 1. Those that trained are the last of the run; others fell into one."""
    if looked_at is None:
        return list(issues)
    before = max(0, looked_at - network.steps)

    def step_of(issue: Issue) -> int | None:
        if issue.step is None:
            return None
        return issue.step + before if network.trained else looked_at

    return [replace(issue, step=step_of(issue)) for issue in issues]


def _with_origin(issues: Sequence[Issue], events: Sequence[Event]) -> list[Issue]:
    """What forensics found about the first NaN says more than any rule: operation, line, cause and remedy."""
    replayed = [(event.data.get("origin"), event.step) for event in events if event.kind == FORENSICS]
    found = [(origin, step) for origin, step in replayed if isinstance(origin, Mapping) and origin.get("found")]
    if not found:
        return list(issues)
    origin, step = min(found, key=lambda pair: pair[0].get("read_from") == READ_FROM_GRAPH)
    bad = next((issue for issue in issues if issue.issue_type is IssueType.NUMERICAL), None)
    if bad is not None and bad.code == "all_masked":
        return list(issues)  # a mean over no label is NaN, whichever operation takes it
    if origin.get("read_from") == READ_FROM_GRAPH and (bad is None or bad.cause == DIVERGED or bad.code in SIZES):
        return list(issues)  # a cause is known, and where numbers ended matters less
    if bad is None:  # it was kept from the record: a manager skipped the step, or replaced what was bad
        bad = Issue(issue_type=IssueType.NUMERICAL, severity=IssueSeverity.HIGH, layer="model", message="", step=step)
        issues = [bad, *issues]
    where = {
        "operation": _text(origin, "operator"),
        "line": _line_of(origin),
        "code": _text(origin, "code"),
        "function": _text(origin, "function"),
    }
    better = replace(
        bad,
        layer=_text(origin, "module") or bad.layer,
        message=origin_sentence(origin),
        evidence={**{name: text for name, text in where.items() if text}, **bad.evidence},
        cause=_text(origin, "why") or bad.cause,
        advice=[text for text in (_text(origin, "advice"), KEEP_OUT) if text],
    )
    return [better if issue is bad else issue for issue in issues]


def _text(origin: Mapping[str, Any], name: str) -> str:
    value = origin.get(name)
    return value if isinstance(value, str) else ""


def _line_of(origin: Mapping[str, Any]) -> str:
    file = _text(origin, "file").replace("\\", "/").rpartition("/")[2]
    return f"{file}:{origin.get('line')}" if file else ""


def origin_sentence(origin: Mapping[str, Any]) -> str:
    """What forensics found, with the file, line and code where that is known."""
    line, code = _line_of(origin), _text(origin, "code")
    where = f" {line}{f': `{code}`' if code else ''}." if line else ""
    return f"{_text(origin, 'message')}{where}"


def _stored(run: Run) -> Mapping[str, Any] | None:
    """What the run said of itself at its end."""
    if run.end is None:
        return None
    stored, message = run.end.data.get("verdict"), run.end.data.get("message")
    if isinstance(stored, Mapping):
        return stored
    if run.header.get("format") == 1 and isinstance(message, str):
        return {"rule_set": 1, "message": message}  # files of that format keep the sentence alone
    return None


def _of_rules_elsewhere(run: Run) -> list[Issue]:
    """What the author's own rules found, where they are not registered here."""
    known = {*registered("run"), *registered("analysis")}
    found = []
    issues = (_stored(run) or {}).get("issues")
    for plain in issues if isinstance(issues, list) else ():
        origin = plain.get("origin") if isinstance(plain, Mapping) else None
        if isinstance(origin, str) and origin and origin not in known:
            try:
                found.append(Issue.from_dict(plain))
            except RunFileError:
                continue  # damaged: the verdict stands without it
    return found
