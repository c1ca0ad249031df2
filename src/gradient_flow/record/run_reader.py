"""Reading a run back: without torch, also while it is being written and after it was killed.

The file is read once, line by line. Step records are kept; of per-tensor records, which are nearly all of it, only the
place, and they are read when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from gradient_flow.errors import RunFileError
from gradient_flow.record import run_lines
from gradient_flow.record.run_writer import COUNT_COLUMNS, FILE_NAME, FLOAT_COLUMNS
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Thresholds

Item = TypeVar("Item")


class _Layers(NamedTuple):
    """Where a per-tensor record stands, and what held there: a resumed run may know other parameters."""

    step: int
    start: int
    length: int
    parameters: list[dict[str, Any]]
    settings: dict[str, Any]


class Run:
    """A recorded run: `len(run)` steps, `run.series("norm")`, `run.table(step)`, `run.records`."""

    def __init__(self, path: Path, entries: list[dict[str, Any] | _Layers], notes: list[str]) -> None:
        self.path = path
        self._entries = entries
        self.notes = notes
        """What was noticed on reading, such as a torn last line."""
        short = [entry for entry in entries if not isinstance(entry, _Layers)]
        self.header = short[0]
        self.steps = _newest([record for record in short if record.get("kind") == "step"], lambda step: step["step"])
        """The step records, without the per-tensor ones. Where a resumed run repeats steps, the repetition counts."""
        self.events = [record for record in short[1:] if record.get("kind") != "step"]
        """Records that are neither steps nor tables: headers of resumed parts, later parameters, the end."""
        tables = _newest([entry for entry in entries if isinstance(entry, _Layers)], lambda entry: entry.step)
        self._layers = {entry.step: entry for entry in tables}

    @property
    def records(self) -> Iterator[dict[str, Any]]:
        """Every record in the order it was written, headers and per-tensor records included."""
        return (self._read(entry) if isinstance(entry, _Layers) else entry for entry in self._entries)

    @cached_property
    def names(self) -> list[str]:
        """What `series` knows: keys of the step records that hold numbers."""
        found: dict[str, None] = {}
        for record in self.steps:
            found.update(dict.fromkeys(_flat(record)))
        return list(found)

    def series(self, name: str) -> NDArray[np.float64]:
        """One value per step record; NaN where a record does not have it or has null.

        Nested values are named `outer/inner`; of a list `name` is the first number, `name1` the second.
        """
        values = np.array([_number(_lookup(record, name)) for record in self.steps], dtype=np.float64)
        if np.isnan(values).all() and name not in self.names:
            raise KeyError(f"no series {name!r} in {self.path}: it has {', '.join(self.names) or 'no steps yet'}")
        return values

    @property
    def table_steps(self) -> list[int]:
        """The steps that have a per-tensor table."""
        return sorted(self._layers)

    def layers(self, step: int) -> dict[str, Any]:
        """The per-tensor record of a step, every column a list and `names` filled in."""
        place = self._place(step)
        record = self._read(place)
        names = [parameter["name"] for parameter in place.parameters]
        record["names"] = names if record["rows"] is None else [names[row] for row in record["rows"]]
        for name in COUNT_COLUMNS:
            record[name] = record[name] or [0] * len(record["names"])
        return record

    @cached_property
    def parameters(self) -> list[dict[str, Any]]:
        """Name and shape of every parameter, also of those that joined later."""
        told = [record.get("parameters", []) for record in [self.header, *self.events]]
        return list({parameter["name"]: parameter for part in told for parameter in part}.values())

    def table(self, step: int) -> GradientTable:
        """The table of a step. Its sums carry the seven digits that are kept per tensor."""
        place, record = self._place(step), self.layers(step)
        known = {parameter["name"]: parameter for parameter in place.parameters}
        here = [known[name] for name in record["names"]]
        column = {name: np.array(record[name], dtype=np.float64) for name in (*FLOAT_COLUMNS, *COUNT_COLUMNS)}
        column["sum_sq"] = column.pop("norm") ** 2
        column["count"] = np.array([math.prod(parameter["shape"]) for parameter in here], dtype=np.float64)
        width = np.array([1 + parameter.get("dtype", "").startswith("complex") for parameter in here])
        column["parts"] = (column["count"] - column["nan"] - column["inf"]) * width
        if "max_abs" in record:
            column["max_abs"] = np.array(record["max_abs"], dtype=np.float64)
        else:
            column["max_abs"] = np.maximum(np.abs(column["min"]), np.abs(column["max"]))
        rows = np.stack([column[name] for name in COLUMNS], axis=1)
        extremes = [INDEX[name] for name in ("min", "max", "max_abs")]
        rows[np.ix_(column["parts"] == 0, extremes)] = EMPTY[extremes]  # infinite there, which the file holds as null
        limits = {name: place.settings[name] for name in Thresholds._fields if name in place.settings}
        present = set(record["names"])
        missing = [name for name in known if name not in present]
        return GradientTable(record["names"], rows, missing=missing, thresholds=Thresholds(**limits))

    def _place(self, step: int) -> _Layers:
        if step not in self._layers:
            steps = self.table_steps
            which = f"there are {len(steps)}, from {steps[0]} to {steps[-1]}" if steps else "there are none"
            raise KeyError(f"step {step} has no per-tensor table: {which}")
        return self._layers[step]

    def _read(self, place: _Layers) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                file.seek(place.start)
                record: dict[str, Any] = orjson.loads(file.read(place.length))
        except (OSError, ValueError) as problem:
            raise RunFileError(
                f"The table of step {place.step} cannot be read from {str(self.path)!r} any more ({problem}). "
                "If the file was moved or replaced, load the run again."
            ) from problem
        return record

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self)} steps, {len(self._layers)} tables)"


def _newest(items: list[Item], step_of: Callable[[Item], int]) -> list[Item]:
    """Items with growing steps: one that goes back in time takes the place of all from its step on."""
    kept: list[Item] = []
    for item in items:
        while kept and step_of(kept[-1]) >= step_of(item):
            kept.pop()
        kept.append(item)
    return kept


def load_run(path: str | Path) -> Run:
    """Read a run folder, or its `run.jsonl`. A torn last line is left out, and noted in `run.notes`."""
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    try:
        entries, notes = _scan(file)
    except OSError as problem:
        raise run_lines.cannot_be_read(file, problem) from problem
    if not entries:
        raise run_lines.no_record_yet(file)
    if isinstance(entries[0], _Layers) or entries[0].get("kind") != "header":
        raise run_lines.not_a_run_file(file)
    return Run(file, entries, notes)


def _scan(file: Path) -> tuple[list[dict[str, Any] | _Layers], list[str]]:
    """Every whole record, in order, and what was noticed about the others."""
    entries: list[dict[str, Any] | _Layers] = []
    parameters: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    position = torn_within = 0
    with file.open("rb", buffering=0) as opened:
        run_lines.check_beginning(file, opened)
        opened.seek(0)
        for line, length in run_lines.scan_lines(opened):
            start, position = position, position + length
            if (step := run_lines.step_of_layers(line, length)) is not None:
                entries.append(_Layers(step, start, length, parameters, settings))
            elif record := run_lines.whole_record(line):
                if record.get("kind") == "header":
                    run_lines.check_format(file, record.get("format"))
                    parameters, settings = record.get("parameters", []), record.get("settings", {})
                elif record.get("kind") == "parameters":
                    parameters = [*parameters, *record["parameters"]]
                entries.append(record)
            else:
                torn_within += line != b"\n"
        return entries, run_lines.torn_notes(opened.tell() - position, torn_within)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _flat(record: dict[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from (f"{key}/{inner}" for inner in _flat(value))
        elif isinstance(value, list):
            numbers = [place for place, item in enumerate(value) if isinstance(item, (int, float))]
            yield from (f"{key}{place or ''}" for place in numbers)
        elif key != "kind" and not isinstance(value, str):
            yield key


def _lookup(record: dict[str, Any], name: str) -> Any:
    if name in record:
        value = record[name]
        return value[0] if isinstance(value, list) and value else value
    if "/" in name:
        for key, value in record.items():
            if isinstance(value, dict) and name.startswith(f"{key}/"):
                return _lookup(value, name[len(key) + 1 :])
    key = name.rstrip("0123456789")
    items = record.get(key) if key != name else None
    place = int(name[len(key) :]) if isinstance(items, list) else 0
    return items[place] if isinstance(items, list) and place < len(items) else None
