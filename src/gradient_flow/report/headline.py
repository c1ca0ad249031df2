"""The verdict of a page: the rules of `gf.diagnose`, on what a `RunFollower` holds."""

from __future__ import annotations

import math
from typing import Any, Final

from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueType
from gradient_flow.diagnosis.run_record import LayerSeries, RunRecord
from gradient_flow.diagnosis.run_rules import judge_run
from gradient_flow.diagnosis.verdict import MOST_TABLES, clipped, last_finite, totals
from gradient_flow.record.run_follower import RunFollower
from gradient_flow.record.table_blocks import rows_of
from gradient_flow.report.events import nonfinite_steps
from gradient_flow.table.columns import INDEX, STATISTICS

_TITLES: Final = {
    IssueType.VANISHING: "Gradients vanish",
    IssueType.EXPLODING: "Gradients explode",
    IssueType.DEAD: "No gradient arrives",
    IssueType.UNSTABLE: "Gradients are unstable",
    IssueType.NUMERICAL: "NaN or Inf",
    IssueType.SLOW: "Weights hardly move",
    IssueType.BOTTLENECK: "Gradients get stuck",
    IssueType.DISCONNECTED: "Cut off from the loss",
}
IN_WORK: Final = {
    "sentence": "Verdict pending: the run is long, and its verdict follows in a moment.",
    "level": "unknown",
    "issues": [],
}
"""What stands in place of a verdict that takes longer than a page may."""


def diagnose_followed(run: RunFollower) -> Diagnosis:
    """The same as `gf.diagnose` of the run's folder, without reading the file again."""
    return judge_run(record_of(run))


def record_of(run: RunFollower) -> RunRecord:
    """What the rules are given of a run."""
    steps = run.steps
    told = {"step": "step", "norm": "norm", "loss": "loss", "clipped_norm": "clipped_norm", "lr/0": "lr"}
    told |= {"lr": "lr", "loss/0": "loss", "optimizer": "optimizer"}
    names = set(steps.names)
    series = {name: steps[key].tolist() for key, name in told.items() if key in names}
    record = RunRecord(totals=totals(series), losses=series.get("loss", []), clipped=clipped(series))
    record.learning_rate = last_finite(series.get("lr", []))
    record.layers = _layers(run)
    bad = nonfinite_steps(steps)
    if bad.any():
        at = int(bad.argmax())
        record.bad_step = int(steps["step"][at])
        record.bad_layers = tuple(steps.remarks.get(record.bad_step, (None, []))[1])
        nan, inf = (float(steps.get(name)[at]) for name in ("nan_count", "inf_count"))
        record.bad_counts = int(nan) if math.isfinite(nan) else 0, int(inf) if math.isfinite(inf) else 0
    return record


def _layers(run: RunFollower) -> list[LayerSeries]:
    chosen = run.tables[:: max(1, math.ceil(len(run.tables) / MOST_TABLES))]
    rows, ratios = rows_of(run.read_tables(chosen), len(run.parameters))
    norms, counts = STATISTICS["norm"](rows), rows[..., INDEX["count"]]
    layers: list[tuple[int, LayerSeries]] = []
    for at, (name, parameter) in enumerate(run.parameters.items()):
        here = [k for k in range(len(chosen)) if not math.isnan(counts[k, at])]
        if here:
            layer = LayerSeries(name=name, steps=[chosen[k].step for k in here], norms=norms[here, at].tolist())
            layer.is_weight = len(parameter["shape"]) > 1
            layer.elements = [int(counts[k, at]) for k in here]
            layer.update_ratios = [float(ratios[k, at]) for k in here if not math.isnan(ratios[k, at])]
            layers.append((here[0], layer))
    return [layer for _, layer in sorted(layers, key=lambda item: item[0])]  # those of a later optimizer come later


def verdict_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as a page shows it."""
    level = str(diagnosis[0].severity).lower() if diagnosis else "healthy"
    if not diagnosis and diagnosis.status == "insufficient_data":
        level = "unknown"
    issues = [_issue(place, issue) for place, issue in enumerate(diagnosis.issues)]
    return {"sentence": verdict_sentence(diagnosis), "level": level, "issues": issues}


def verdict_sentence(diagnosis: Diagnosis) -> str:
    """What, where, since when: the gravest issue in a sentence."""
    if not diagnosis:
        return diagnosis.message
    first, more = diagnosis[0], len(diagnosis) - 1
    since = "" if first.step is None else f" since step {first.step:,}"
    also = f" ({more} more {'issue' if more == 1 else 'issues'} below.)" if more else ""
    healthy = "Healthy, with a remark: " if diagnosis.healthy else ""
    return f"{healthy}{_title(first)}{since}: {first.message}{also}"


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
