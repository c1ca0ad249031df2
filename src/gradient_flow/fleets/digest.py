"""`digest`: what is kept of a run among many. A pure function of the run's file, wherever it is computed.

Whether a run without an end still trains depends on the clock, so the digest calls it `open`, and who shows it decides.
A file that cannot be read has a digest too: its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gradient_flow.diagnosis.issue import RULE_SET, Diagnosis, Issue
from gradient_flow.diagnosis.registry import registered
from gradient_flow.diagnosis.robust import level_at_end, median_of
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import GradientFlowError
from gradient_flow.record.about import about_facts
from gradient_flow.record.evidence import LayerSeries, RunRecord, evidence_of, last_finite, nonfinite_steps
from gradient_flow.record.run import Run, load_run
from gradient_flow.table.text import shorten

DIGEST: Final = 1
"""Goes up when a digest holds something else; older ones are then made again."""
OPEN: Final = "open"
"""State of a run whose file has no end: it trains, or is silent."""
UNREADABLE: Final = "unreadable"
FAILED_TYPE: Final = "FAILED"
"""In place of an issue's type, of a run that an error ended although no rule found anything."""
MOST_ISSUES: Final = 32
MOST_LAYERS: Final = 512
MOST_SETTINGS: Final = 256
_LONGEST: Final = 300
"""Letters of a text that is kept; the run itself has the whole of it."""

Digest = dict[str, Any]


def digest(file: str | Path) -> Digest:
    """One row on the run, rows on its issues and its layers, as plain values that JSON can hold.

    >>> digest("no/such/run.jsonl")["run"]["problem"]
    "`path` must be a run folder or a run.jsonl; 'no/such/run.jsonl' cannot be read (No such file or directory)."
    """
    try:
        run = load_run(file)
        record = evidence_of(run)
        return _rows(run, record, verdict(run, record))
    except GradientFlowError as problem:
        return unreadable(str(problem), again=isinstance(problem.__cause__, OSError))
    except Exception as problem:  # whatever a file holds, it costs no other run anything
        return unreadable(f"It cannot be read ({type(problem).__name__}: {problem}).")


def unreadable(reason: str, *, again: bool = False) -> Digest:
    """The digest of a file that has none. `again`: it may pass, so the file is read again although it is the same."""
    row = {"problem": shorten(reason, _LONGEST), "state": UNREADABLE, "verdict": UNREADABLE}
    return {"run": row, "issues": [], "layers": {}, "again": again}


def rules_in_force() -> str:
    """What a verdict depends on beside the file: our rules by their version, those of users by their names."""
    return "+".join([str(RULE_SET), *sorted({*registered("run"), *registered("analysis")})])


def cause_of(issue: Issue) -> str:
    """The cause as one word that stays the same; of a type with one cause, the type."""
    return issue.code or issue.issue_type.value.replace(" ", "_")


def _rows(run: Run, record: RunRecord, found: Diagnosis) -> Digest:
    ending = found.ending
    if ending is not None and not ending.ended:
        found.ending = None
    issues = [_issue(place, issue) for place, issue in enumerate(found.issues[:MOST_ISSUES])]
    return {
        "run": {
            "problem": None,
            "state": OPEN if ending is None or not ending.ended else ending.state,
            "error": (ending.error or None) if ending is not None and ending.failed else None,
            **verdict_row(found),
            "issues": len(found.issues),
            **_figures(run, record),
            "notes": " ".join(run.notes) or None,
            "settings": settings_of(run),
        },
        "issues": issues,
        "layers": _layers(record, {issue.layer for issue in found.issues}),
    }


def verdict_row(found: Diagnosis) -> dict[str, Any]:
    """The verdict on a run in a few columns, with its gravest issue."""
    return {
        # A run too short for a verdict is neither sick nor healthy.
        "healthy": None if found.status == "insufficient_data" else found.healthy,
        "verdict": found.status,
        "message": shorten(found.message, _LONGEST),
        **_gravest(found),
    }


def _gravest(found: Diagnosis) -> dict[str, Any]:
    first = found.issues[0] if found.issues and found.status != "failed" else None
    if first is not None:
        issue = _issue(0, first)
        return {name: issue[name] for name in ("type", "cause", "severity", "layer", "since")}
    if not found.failed:
        return {}
    assert found.ending is not None
    return {
        "type": FAILED_TYPE,
        "cause": found.ending.error or "failed",
        "layer": "model",
        "since": found.ending.step,
    }


def _issue(place: int, issue: Issue) -> dict[str, Any]:
    return {
        "place": place,
        "type": issue.issue_type.name,
        "cause": cause_of(issue),
        "severity": issue.severity.name,
        "layer": shorten(issue.layer, _LONGEST),
        "since": issue.step,
        "message": shorten(issue.message, _LONGEST),
        "reason": shorten(issue.cause, _LONGEST) or None,
        "advice": shorten(issue.advice[0], _LONGEST) if issue.advice else None,
        "consequences": len(issue.consequences),
        "rule": issue.origin or None,
    }


def _figures(run: Run, record: RunRecord) -> dict[str, Any]:
    steps = run.columns
    loss, norm, rate = (_finite(steps.get(name)) for name in ("loss", "norm", "lr"))
    sizes = [_elements(parameter) for parameter in run.parameters]
    return {
        "steps": len(run),
        "last_step": run.last_step,
        "looks": record.looks,
        "tables": len(run.tables),
        "tensors": len(sizes),
        "elements": _total(sizes),
        "seconds": _plain(run.seconds),
        "started": None if run.started is None else shorten(run.started, _LONGEST),
        "loss_first": _plain(loss[0]) if len(loss) else None,
        "loss": level_at_end(loss),
        "loss_best": _plain(loss.min()) if len(loss) else None,
        "norm": level_at_end(norm),
        "norm_max": _plain(norm.max()) if len(norm) else None,
        "lr": last_finite(steps.get("lr")),
        "lr_max": _plain(rate.max()) if len(rate) else None,
        "nonfinite_steps": int(nonfinite_steps(steps).sum()) if len(run) else 0,
    }


def settings_of(run: Run) -> dict[str, str]:
    """What the run was, by name and as texts: numbers with all their digits, lists as JSON."""
    facts = {name: value for name, value in about_facts(run.about).items() if value is not None}
    first_rate = _finite(run.columns.get("lr"))
    if len(first_rate):
        facts.setdefault("lr", float(first_rate[0]))  # of a run that was not described
    facts["model tensors"] = len(run.parameters)
    sizes = [_elements(parameter) for parameter in run.parameters]
    if (total := _total(sizes)) is not None:
        facts["model elements"] = total
    return {name: _text(value) for name, value in list(facts.items())[-MOST_SETTINGS:]}


def _layers(record: RunRecord, named: set[str]) -> dict[str, list[Any]]:
    """Columns, a value per layer. Of a model with very many, those that issues name and others at even distances."""
    places = list(range(len(record.layers)))
    if len(places) > MOST_LAYERS:
        wanted = [at for at in places if _is_named(record.layers[at].name, named)][: MOST_LAYERS // 2]
        places = sorted({*wanted, *places[:: math.ceil(len(places) / (MOST_LAYERS - len(wanted)))]})
    rows = [_layer(at, record.layers[at]) for at in places]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _is_named(layer: str, named: set[str]) -> bool:
    return layer in named or layer.rpartition(".")[0] in named


def _layer(place: int, layer: LayerSeries) -> dict[str, Any]:
    norms = [norm for norm in layer.norms if math.isfinite(norm)]
    return {
        "place": place,
        "layer": shorten(layer.name, _LONGEST),
        "elements": layer.elements[0] if layer.elements else None,
        "norm_first": norms[0] if norms else None,
        "norm": norms[-1] if norms else None,
        "norm_median": median_of(norms) if norms else None,
        "norm_max": max(norms) if norms else None,
        "update_ratio": _plain(median_of(layer.update_ratios)) if layer.update_ratios else None,
        "tables": len(layer.norms),
        "nonfinite": len(layer.norms) - len(norms),
    }


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _elements(parameter: Mapping[str, Any]) -> int | None:
    shape: Sequence[int] | None = parameter.get("shape")
    return None if shape is None else math.prod(shape)


def _total(sizes: Sequence[int | None]) -> int | None:
    """Of all tensors together; None where one is not known, or damage makes it more than a column holds."""
    known = [size for size in sizes if size is not None]
    total = sum(known)
    return total if len(known) == len(sizes) and total < 1 << 62 else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return shorten(value, _LONGEST)
    try:
        return shorten(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode(), _LONGEST)
    except (TypeError, ValueError):
        return shorten(str(value), _LONGEST)
