"""The list of runs: of each its first and last lines, so that a thousand are listed at once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from gradient_flow.errors import RunFileError
from gradient_flow.fleets.digest import FAILED_TYPE, OPEN
from gradient_flow.fleets.known import known_digests
from gradient_flow.record import run_lines
from gradient_flow.record.ending import FAILED, SILENT, ending
from gradient_flow.record.event import Event
from gradient_flow.record.run_folder import ITSELF, RunFile
from gradient_flow.record.run_lines import newest_part
from gradient_flow.record.step import flat_numbers
from gradient_flow.report.data import readable
from gradient_flow.report.serve.run_ids import RunFolder, path_of

_HEAD: Final = 4096
_TAIL: Final = 1 << 16
_FARTHEST: Final = 1 << 25
"""Per-tensor records of large models are long: so far back the last step is looked for."""
_NO_SETTINGS: Final = ("command", "version of", "uncommitted", "commit", "tensors", "parameters in")
"""Beginnings of what differs between runs and is no choice of their author."""
_MOST_SETTINGS: Final = 16

Judged = tuple[int, Mapping[str, Any]]
"""The size of a run when it was judged, and what was found: a row as `digest` makes it."""


class RunList:
    """Facts of every run in a folder. A run that did not change is not opened again."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._digested: dict[str, dict[str, Any]] | None = None
        """What an earlier `gradient-flow fleet` made of the runs; read with the first list."""

    def facts(self, judged: dict[str, Judged]) -> list[dict[str, Any]]:
        """One entry per run, the newest first. `judged` has the verdicts that are known, and takes in those on file."""
        if self._digested is None:
            self._digested = known_digests(self._folder.root)
        found = {}
        for run_id, run in self._folder.runs():
            state = run.about.st_size, run.about.st_mtime_ns
            known = self._known.get(run_id)
            if known is None or known[0] != state:
                known = state, self._digest_on_file(run_id, run, state, judged) or _facts(Path(run.path))
            found[run_id] = known
        self._known = found
        entries = [
            {"id": run_id, "name": self._name(run_id), **_public(facts), **_verdict(judged.get(run_id))}
            for run_id, (_, facts) in found.items()
        ]
        for entry in entries:
            if entry["status"] == SILENT and entry["level"] == "healthy":
                entry["level"] = "unknown"  # as its page has it
        return sorted(entries, key=lambda entry: str(entry["started"] or ""), reverse=True)

    def _digest_on_file(
        self, run_id: str, run: RunFile, state: tuple[int, int], judged: dict[str, Judged]
    ) -> dict[str, Any] | None:
        """Facts from a digest of this very file, which then need not be opened."""
        row = (self._digested or {}).get(self._folder.root.name if run_id == ITSELF else run.name)
        if row is None or (row["size"], row["changed"]) != state:
            return None
        judged.setdefault(run_id, (state[0], row))
        names = ("last_step", "started", "seconds", "loss", "lr", "problem", "state", "message")
        return {**{name: row[name] for name in names}, "end": None, "file": run.path}

    def changes(self) -> list[tuple[str, int, float]]:
        """Id, size and time of the last change of the runs that were listed, the last changed first."""
        found = [(run_id, size, changed / 1e9) for run_id, ((size, changed), _) in self._known.items()]
        return sorted(found, key=lambda entry: -entry[2])

    def _name(self, run_id: str) -> str:
        return readable(self._folder.root.name if run_id == ITSELF else path_of(run_id))


def varying_settings(judged: Mapping[str, Judged]) -> list[str]:
    """Settings in which the runs differ, those with the fewest values first: a list shows and finds runs by them."""
    values: dict[str, set[str | None]] = {}
    described = [row["settings"] for _, row in judged.values() if row.get("settings")]
    for name in {name for settings in described for name in settings}:
        if not name.startswith(_NO_SETTINGS):
            values[name] = {settings.get(name) for settings in described}
    differ = [name for name, found in values.items() if len(found) > 1]
    return sorted(differ, key=lambda name: (len(values[name]), name))[:_MOST_SETTINGS]


def level_of(row: Mapping[str, Any]) -> str:
    """The level of a verdict, as pages have it, from its row."""
    if row.get("severity"):
        return str(row["severity"]).lower()
    if row.get("type") == FAILED_TYPE:
        return "failed"
    return "healthy" if row.get("healthy") else "unknown"


def _verdict(judged: Judged | None) -> dict[str, Any]:
    """What the list says of the verdict; `level` is null where it is not taken yet."""
    row: Mapping[str, Any] = {} if judged is None else judged[1]
    level = None if judged is None else level_of(row)
    return {"level": level, **{name: row.get(name) for name in ("type", "cause", "layer", "since")}}


def _public(facts: Mapping[str, Any]) -> dict[str, Any]:
    """As the page gets them. Whether a run without an end still runs depends on the time."""
    end = None if facts["end"] is None else Event.from_line(facts["end"])
    if facts["problem"]:
        status, message = "unknown", facts["problem"]
    elif facts.get("state") in (None, OPEN):
        found = ending(end, Path(facts["file"]), facts["last_step"])
        status, message = found.state, found.sentence or None
    else:
        status, message = facts["state"], facts["message"] if facts["state"] == FAILED else None
    plain = {name: facts[name] for name in ("last_step", "started", "seconds", "loss", "lr")}
    return {"status": status, "message": message, "recorded_steps": None, **plain}


def _facts(file: Path) -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(("last_step", "started", "seconds", "loss", "lr", "end", "problem"))
    facts["file"] = str(file)
    try:
        with file.open("rb", buffering=0) as opened:
            run_lines.check_beginning(file, opened)
            header = _header(opened)
            if header is None:
                raise run_lines.no_record_yet(file)
            run_lines.check_format(file, header.get("format"))
            started = header.get("started")
            facts["started"] = started if isinstance(started, str) else None
        with newest_part(file)[1].open("rb", buffering=0) as opened:
            last, facts["end"] = _last_records(opened)
    except (OSError, RunFileError) as problem:
        return facts | {"problem": str(problem)}
    if last is not None:
        seconds = last.get("time")
        facts |= {"last_step": last["step"], "seconds": seconds if isinstance(seconds, (int, float)) else None}
        numbers = dict(flat_numbers({name: last.get(name) for name in ("loss", "lr")}))
        facts |= {name: value for name, value in numbers.items() if name in facts and math.isfinite(value)}
    return facts


def _header(opened: BinaryIO) -> dict[str, Any] | None:
    """What the header says before its settings; the parameters behind them may be long."""
    opened.seek(0)
    head = opened.read(_HEAD)
    cut = head.find(b',"settings":')
    if cut > 0 and b"\n" not in head[:cut]:
        record = run_lines.whole_record(head[:cut] + b"}")
        if record is not None and "parameters" not in record:
            return record
    opened.seek(0)
    with os.fdopen(os.dup(opened.fileno()), "rb") as lines:
        return run_lines.whole_record(lines.readline())


def _last_records(opened: BinaryIO) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The last step record, and the record of the end if nothing came after it."""
    size = opened.seek(0, os.SEEK_END)
    length = _TAIL
    while True:
        opened.seek(max(0, size - length))
        tail = b"\n" + opened.read(length) if size <= length else opened.read(length)
        tail = tail[: tail.rfind(b"\n") + 1]  # a torn last line is no record
        place = tail.rfind(b"\n" + run_lines.STEP)
        if place >= 0 or length >= min(size, _FARTHEST):
            break
        length *= 8
    lines = tail[place + 1 :].splitlines() if place >= 0 else []
    step = run_lines.whole_record(lines[0]) if lines else None
    last = run_lines.whole_record(tail[tail.rfind(b"\n", 0, -1) + 1 :]) if tail else None
    return step, last if last is not None and last.get("kind") == "end" else None
