"""Fixes that were tried in a run, as tables for the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gradient_flow.diagnosis.words import plain
from gradient_flow.record.event import CURE
from gradient_flow.record.run import Run
from gradient_flow.table.text import shorten

NEWEST: Final = 5
"""Cures of a run that the page shows."""
_MOST: Final = 60
"""Trials of one."""
_LONGEST: Final = 4000
"""Letters of a text."""
_GONE: Final = {True: "gone", False: "stays"}


def cures_data(run: Run) -> list[dict[str, Any]]:
    """The newest cures of a run, the newest first. A file may hold anything: what is no cure is left out."""
    found = []
    for event in reversed(run.events):
        cure = event.data.get("cure") if event.kind == CURE else None
        if isinstance(cure, Mapping) and isinstance(cure.get("trials"), Sequence):
            trials = [trial for trial in cure["trials"][:_MOST] if isinstance(trial, Mapping)]
            best = next((trial for trial in trials if cure.get("best") and trial.get("name") == cure["best"]), None)
            found.append(
                {
                    "step": event.step or 0,
                    "message": _text(cure.get("message")),
                    "symptoms": _text(cure.get("symptoms")),
                    "trials": [{**_row(trial), "best": trial is best} for trial in trials],
                    "code": "" if best is None else _text(best.get("code")),
                }
            )
    return found[:NEWEST]


def _row(trial: Mapping[str, Any]) -> dict[str, Any]:
    untreated, gone = trial.get("untreated"), trial.get("issue_gone")
    low, high = (_number(untreated.get(end)) for end in ("low", "high")) if isinstance(untreated, Mapping) else ("", "")
    return {
        "outcome": _text(trial.get("outcome")),
        "name": _text(trial.get("name")),
        "loss": _number(trial.get("loss")),
        "untreated": low if low == high else f"{low} to {high}",
        "steps": _number(trial.get("steps")),
        "issue": _GONE.get(gone, "") if isinstance(gone, bool) else "",
        "cost": _number(trial.get("steps_taken")),
        "reason": _text(trial.get("reason")),
    }


def _text(value: Any) -> str:
    return shorten(value, _LONGEST) if isinstance(value, str) else ""


def _number(value: Any) -> str:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return plain(value) if known else "–"
