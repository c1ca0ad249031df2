"""A run file read as it grows: each call takes in what is new, and no byte is read twice.

Step records become columns of numbers; of per-tensor records, which are nearly all of the file, only the place is kept.
`load_run` is for looking at one record after another; this is for pages that show a long run again and again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from gradient_flow.errors import RunFileError
from gradient_flow.record import run_lines
from gradient_flow.record.run_writer import FILE_NAME
from gradient_flow.record.step_columns import StepColumns
from gradient_flow.record.table_blocks import Places

_BATCH: Final = 4096


class TablePlace(NamedTuple):
    """Where a per-tensor record stands in the file, and which list of parameters it is about."""

    step: int
    start: int
    length: int
    part: int


class RunFollower:
    """What a run file holds, up to the last whole line that `update` saw."""

    def __init__(self, path: str | Path) -> None:
        given = Path(path)
        self.path = given / FILE_NAME if given.is_dir() else given
        self._forget()

    def _forget(self) -> None:
        self.size = 0
        """Bytes taken in."""
        self.header: dict[str, Any] = {}
        """The newest header: a run that was resumed has several."""
        self.headers = 0
        self.end: dict[str, Any] | None = None
        """The record that closes a run; none while it goes on, and none again once it is resumed."""
        self.resumed: list[int] = []
        """Steps at which the run was taken up again."""
        self.started: str | None = None
        self.seconds = 0.0
        self._seconds_before = 0.0
        self.parameters: dict[str, dict[str, Any]] = {}
        """Every parameter that was ever told, in the order it was told first."""
        self.groups: dict[str, str] = {}
        self.steps = StepColumns()
        self.tables: list[TablePlace] = []
        self.tables_unchanged = 0
        """So many of the first tables are the same as before the last `update`: a resumed run repeats some."""
        self.torn = 0
        """Lines within the file that are no records."""
        self.torn_at_end = 0
        """Bytes of a last line that is not whole, yet."""
        self._parts: list[list[dict[str, Any]]] = []
        self._places: dict[int, Places] = {}
        self._identity: tuple[int, int] | None = None

    @property
    def notes(self) -> list[str]:
        """What was noticed on reading, such as a torn last line."""
        return run_lines.torn_notes(self.torn_at_end, self.torn)

    @property
    def last_step(self) -> int | None:
        """The newest recorded step."""
        return int(self.steps["step"][-1]) if len(self.steps) else None

    def update(self) -> bool:
        """Take in what was appended; whether there was anything. A file that was replaced is read from its start."""
        try:
            with self.path.open("rb", buffering=0) as file:
                about = os.fstat(file.fileno())
                if self._identity != (about.st_dev, about.st_ino) or about.st_size < self.size:
                    self._forget()
                    self._identity = about.st_dev, about.st_ino
                    run_lines.check_beginning(self.path, file)
                before, self.tables_unchanged = self.size, len(self.tables)
                file.seek(self.size)
                self._take_in(file)
        except OSError as problem:
            raise run_lines.cannot_be_read(self.path, problem) from problem
        except RunFileError:
            self._forget()  # what is wrong with it is said again the next time
            raise
        if not self.headers:
            raise run_lines.no_record_yet(self.path)
        return self.size > before

    def read_tables(self, places: Iterable[TablePlace]) -> list[tuple[dict[str, Any], Places]]:
        """The records of these places, each with the list of parameters that it is about."""
        records = []
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place.start)
                try:
                    records.append((orjson.loads(file.read(place.length)), self._places_of(place.part)))
                except orjson.JSONDecodeError as problem:
                    raise RunFileError(
                        f"The table of step {place.step} cannot be read from {str(self.path)!r} any more ({problem}). "
                        "If the file was moved or replaced, open the run again."
                    ) from problem
        return records

    def _places_of(self, part: int) -> Places:
        if part not in self._places:
            order = {name: position for position, name in enumerate(self.parameters)}
            self._places[part] = Places(self._parts[part], order)
        return self._places[part]

    def _take_in(self, file: BinaryIO) -> None:
        steps: list[bytes] = []
        for line, length in run_lines.scan_lines(file):
            start, self.size = self.size, self.size + length
            if line.startswith(run_lines.STEP):
                steps.append(line)
                if len(steps) == _BATCH:
                    self._take_steps(steps)
                    steps = []
            elif (step := run_lines.step_of_layers(line, length)) is not None:
                self._add_table(TablePlace(step, start, length, len(self._parts) - 1))
            else:
                self._take_steps(steps)
                steps = []
                self._take_other(line)
        self._take_steps(steps)
        self.torn_at_end = file.tell() - self.size

    def _take_steps(self, lines: list[bytes]) -> None:
        try:
            records = orjson.loads(b"[" + b",".join(lines) + b"]")  # at once: half the time of one by one
        except orjson.JSONDecodeError:
            whole = [run_lines.whole_record(line) for line in lines]
            records = [record for record in whole if record is not None]
            self.torn += len(whole) - len(records)
        if not records:
            return
        last = self.last_step
        start = 0
        for at, step in enumerate([record["step"] for record in records]):
            if last is not None and step <= last:  # a resumed run: it does again what it did from there on
                self.steps.extend(records[start:at])
                self.steps.keep_before(step)
                start = at
            last = step
        self.steps.extend(records[start:])
        self.end = None
        self.seconds = self._seconds_before + float(records[-1].get("time") or 0.0)

    def _add_table(self, place: TablePlace) -> None:
        while self.tables and self.tables[-1].step >= place.step:
            self.tables.pop()
        self.tables_unchanged = min(self.tables_unchanged, len(self.tables))
        self.tables.append(place)

    def _take_other(self, line: bytes) -> None:
        record = run_lines.whole_record(line)
        if record is None:
            self.torn += line != b"\n"
            return
        kind = record.get("kind")
        if kind == "header":
            run_lines.check_format(self.path, record.get("format"))
            self.header, self.end = record, None
            self.headers += 1
            self.started = self.started or record.get("started")
            self._seconds_before = self.seconds
            self.groups |= record.get("groups") or {}
            self._tell_parameters(record.get("parameters") or [], anew=True)
        elif kind == "parameters":
            self._tell_parameters(record.get("parameters") or [], anew=False)
        elif kind == "resumed":
            self.resumed.append(int(record.get("step") or 0))
        elif kind == "end":
            self.end = record

    def _tell_parameters(self, told: list[dict[str, Any]], *, anew: bool) -> None:
        self._parts.append([*([] if anew or not self._parts else self._parts[-1]), *told])
        for parameter in told:
            self.parameters[parameter["name"]] = parameter
