"""The report as text: verdict, issues and a table of layers, plain within 80 columns or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.paragraphs import harmless, wrapped
from gradient_flow.diagnosis.words import plain
from gradient_flow.report.data import matrix_of
from gradient_flow.report.look_curves import look_sentences
from gradient_flow.report.terminal import one_line
from gradient_flow.table.text import shorten

WIDTH: Final = 80
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|#&])")
_HEADINGS: Final = ("layer", "last norm", "smallest", "largest", "update", "NaN/Inf")


def plain_report(data: Mapping[str, Any]) -> str:
    """The report for a terminal or a mail: no line is wider than 80 columns."""
    run, verdict = data["run"], data["verdict"]
    lines = [*wrapped(verdict["sentence"], WIDTH), ""]
    lines += [*wrapped(verdict["then"], WIDTH), ""] if verdict["then"] else []
    lines += [*wrapped(f"{run['name']}: {_facts(run)}", WIDTH)]
    if run["about"]:
        lines += ["", "What this run was"]
        for name, value in run["about"]:
            lines += wrapped(f"{name}: {value}", WIDTH, first="  ", later="    ")
    for issue in verdict["issues"]:
        lines += ["", *wrapped(f"[{issue['severity']}] {issue['title']}{_since(issue)}", WIDTH, later="  ")]
        lines += wrapped(_sentence(issue["text"]), WIDTH, first="  ") if issue["text"] else []
        lines += wrapped(f"Likely cause: {issue['cause']}", WIDTH, first="  ") if issue["cause"] else []
        for number, advice in enumerate(issue["advice"], start=1):
            lines += wrapped(_advice(advice), WIDTH, first=f"  {number}. ")
        for name, value in issue["evidence"]:
            lines += wrapped(f"{name}: {value}", WIDTH, first="  - ")
        lines += wrapped(f"Follows from it: {issue['followers']}.", WIDTH, first="  ") if issue["followers"] else []
    seen = look_sentences(data["looks"])
    if seen:
        lines += ["", *wrapped(_looked(data["looks"]), WIDTH)]
        for sentence in seen:
            lines += wrapped(sentence, WIDTH, first="  - ")
    rows = list(_layer_rows(data))
    if rows:
        lines += ["", f"{'layer':<34}" + "".join(f"{heading:>9}" for heading in ("norm", *_HEADINGS[2:]))]
        lines += [f"{shorten(row[0], 33):<34}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]
        lines += ["", "norm: at the last record. smallest, largest: over the run. update: ‖ΔW‖ / ‖W‖."]
    else:
        lines += ["", "No per-layer record in this run."]
    return "\n".join([*lines, "", *wrapped(data["truth"]["text"], WIDTH)]) + "\n"


def markdown_report(data: Mapping[str, Any]) -> str:
    """The report as Markdown; what a name holds that Markdown or HTML would obey is escaped."""
    run, verdict = data["run"], data["verdict"]
    lines = [f"# {_escaped(verdict['sentence'])}", "", f"**{_escaped(run['name'])}**: {_escaped(_facts(run))}", ""]
    lines += [_escaped(verdict["then"]), ""] if verdict["then"] else []
    for issue in verdict["issues"]:
        lines += [f"## {issue['severity']}: {_escaped(issue['title'] + _since(issue))}", ""]
        lines += [_escaped(_sentence(issue["text"])), ""] if issue["text"] else []
        lines += [f"Likely cause: {_escaped(issue['cause'])}", ""] if issue["cause"] else []
        lines += [f"{number}. {_escaped(_advice(one))}" for number, one in enumerate(issue["advice"], start=1)]
        lines += [""] if issue["advice"] else []
        lines += [f"- {_escaped(str(name))}: {_escaped(value)}" for name, value in issue["evidence"]]
        lines += [""] if issue["evidence"] else []
        lines += [f"Follows from it: {_escaped(issue['followers'])}.", ""] if issue["followers"] else []
    if run["about"]:
        lines += ["## What this run was", ""]
        lines += [f"- {_escaped(name)}: {_escaped(value)}" for name, value in run["about"]]
        lines += [""]
    seen = look_sentences(data["looks"])
    if seen:
        lines += ["## Inside the model", "", _escaped(_looked(data["looks"])), ""]
        lines += [f"- {_escaped(sentence)}" for sentence in seen]
        lines += [""]
    rows = list(_layer_rows(data))
    lines += ["## Layers", ""]
    if rows:
        lines += [f"| {' | '.join(_HEADINGS)} |", "|---|--:|--:|--:|--:|--:|"]
        lines += [f"| {_escaped(row[0])} | {' | '.join(row[1:])} |" for row in rows]
    else:
        lines += ["No per-layer record in this run."]
    return "\n".join([*lines, "", _escaped(data["truth"]["text"])]) + "\n"


def _layer_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    layers = data["layers"]
    norms, ratios, bad = (matrix_of(layers, name) for name in ("norm", "update_ratio", "nonfinite"))
    if not norms.size:
        return
    for row, name in enumerate(layers["names"]):
        finite = norms[row][np.isfinite(norms[row])]
        least, most = (finite.min(), finite.max()) if finite.size else (None, None)
        cells = [_short(value) for value in (_last(norms[row]), least, most, _last(ratios[row]))]
        yield one_line(name), *cells, f"{int(np.nansum(bad[row]))}"


def _looked(looks: Mapping[str, Any]) -> str:
    steps = [f"{step:,}" for step in looks["steps"]]
    shown = ", ".join(steps if len(steps) <= 12 else [*steps[:6], "…", *steps[-3:]])
    word, where = ("look", "step") if len(steps) == 1 else ("looks", "steps")
    return f"{len(steps)} {word} inside the model, at {where} {shown}. The layer that stands out most:"


def _last(values: NDArray[np.float32]) -> Any:
    finite = values[np.isfinite(values)]
    return finite[-1] if finite.size else None


def _short(value: Any) -> str:
    return "-" if value is None else plain(float(value), 2)


def _facts(run: Mapping[str, Any]) -> str:
    steps = "no steps" if run["last_step"] is None else f"steps {run['first_step']:,} to {run['last_step']:,}"
    return f"{run['status']}, {steps}, {run['tensors']} tensors, {run['parameters']:,} parameters"


def _since(issue: Mapping[str, Any]) -> str:
    return "" if issue["first_step"] is None else f", since step {issue['first_step']:,}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _advice(advice: Mapping[str, Any]) -> str:
    return f"{advice['text']} {advice['reason']}" if advice.get("reason") else str(advice["text"])


def _escaped(text: str) -> str:
    """What Markdown would obey is escaped; names in backticks stay code, which obeys nothing."""
    parts = re.split(r"(`[^`]+`)", " ".join(harmless(text).split()))
    return "".join(part if odd else _SPECIAL.sub(r"\\\1", part) for part, odd in zip(parts, cycle((False, True))))
