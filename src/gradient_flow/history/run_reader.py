"""Reading a run back: without torch, also while it is being written and after it was killed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from gradient_flow.errors import RunFileError
from gradient_flow.history.run_writer import COUNT_COLUMNS, FILE_NAME, FLOAT_COLUMNS, FORMAT_VERSION
from gradient_flow.measurement import GradientTable
from gradient_flow.measurement.columns import COLUMNS, INDEX, Thresholds

_LAYERS = b'{"kind":"layers"'
_STEP = b'{"kind":"step"'


class Run:
    """A recorded run: `len(run)` steps, `run.series("norm")`, `run.table(step)`, `run.records`."""

    def __init__(self, path: Path, lines: list[bytes], notes: list[str]) -> None:
        self.path = path
        self._lines = lines
        self.notes = notes
        """What was noticed on reading, such as a torn last line."""
        self.header: dict[str, Any] = orjson.loads(lines[0])

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The step records, without the per-tensor ones."""
        return [orjson.loads(line) for line in self._lines if line.startswith(_STEP)]

    @property
    def records(self) -> Iterator[dict[str, Any]]:
        """Every record in the order it was written, headers and per-tensor records included."""
        return (orjson.loads(line) for line in self._lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Records that are neither steps nor tables: headers of resumed parts, clips, the end."""
        short = (line for line in self._lines[1:] if not line.startswith((_STEP, _LAYERS)))
        return [orjson.loads(line) for line in short]

    @cached_property
    def names(self) -> list[str]:
        """What `series` knows: keys of the step records that hold numbers."""
        found: dict[str, None] = {}
        for record in self.steps:
            found.update(dict.fromkeys(_flat(record)))
        return list(found)

    def series(self, name: str) -> NDArray[np.float64]:
        """One value per step record; NaN where a record does not have it or has null."""
        values = [_number(_lookup(record, name)) for record in self.steps]
        if name not in self.names:
            raise KeyError(f"no series {name!r} in {self.path}: it has {', '.join(self.names)}")
        return np.array(values, dtype=np.float64)

    @cached_property
    def _layers(self) -> dict[int, bytes]:
        return {_step_of(line): line for line in self._lines if line.startswith(_LAYERS)}

    @property
    def table_steps(self) -> list[int]:
        """The steps that have a per-tensor table."""
        return sorted(self._layers)

    def layers(self, step: int) -> dict[str, Any]:
        """The per-tensor record of a step as written, with `names` filled in."""
        if step not in self._layers:
            raise KeyError(f"step {step} has no per-tensor table: {self._table_steps_in_words()}")
        record: dict[str, Any] = orjson.loads(self._layers[step])
        names = [parameter["name"] for parameter in self.parameters]
        record["names"] = names if record["rows"] is None else [names[row] for row in record["rows"]]
        return record

    @cached_property
    def parameters(self) -> list[dict[str, Any]]:
        """Name and shape of every parameter, also of those that joined later."""
        later = (event["parameters"] for event in self.events if event["kind"] == "parameters")
        return [*self.header["parameters"], *(parameter for more in later for parameter in more)]

    def table(self, step: int) -> GradientTable:
        """The table of a step. Its sums carry the seven digits that are kept per tensor."""
        record = self.layers(step)
        sizes = {parameter["name"]: math.prod(parameter["shape"]) for parameter in self.parameters}
        rows = np.zeros((len(record["names"]), len(COLUMNS)))
        for name in FLOAT_COLUMNS:
            values = np.array([_number(x) for x in record[name]], dtype=np.float64)
            rows[:, INDEX["sum_sq" if name == "norm" else name]] = values**2 if name == "norm" else values
        for name in COUNT_COLUMNS:
            rows[:, INDEX[name]] = record[name]
        rows[:, INDEX["count"]] = [sizes[name] for name in record["names"]]
        rows[:, INDEX["parts"]] = rows[:, INDEX["count"]] - rows[:, INDEX["nan"]] - rows[:, INDEX["inf"]]
        rows[:, INDEX["max_abs"]] = np.maximum(np.abs(rows[:, INDEX["min"]]), np.abs(rows[:, INDEX["max"]]))
        settings = self.header.get("settings", {})
        thresholds = Thresholds(settings.get("near_zero", 1e-7), settings.get("very_large", 1e3))
        missing = [name for name in sizes if name not in set(record["names"])]
        return GradientTable(record["names"], rows, missing=missing, thresholds=thresholds)

    def _table_steps_in_words(self) -> str:
        steps = self.table_steps
        return f"there are {len(steps)}, from {steps[0]} to {steps[-1]}" if steps else "there are none"

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self)} steps, {len(self._layers)} tables)"


def load_run(path: str | Path) -> Run:
    """Read a run folder, or its `run.jsonl`. A torn last line is left out, and noted in `run.notes`."""
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    try:
        content = file.read_bytes()
    except OSError as problem:
        raise RunFileError(
            f"`path` must be a run folder or a {FILE_NAME}; {str(path)!r} cannot be read ({problem.strerror})."
        ) from problem
    lines = content.split(b"\n")
    notes = []
    torn = lines.pop()
    if torn:
        notes.append(f"The last line was torn ({len(torn)} bytes) and left out: the run was cut off while writing it.")
    whole = [line for line in lines if line]
    broken = [line for line in whole if not (line.startswith(b"{") and line.endswith(b"}"))]
    if broken:
        notes.append(f"{len(broken)} torn lines within the file were left out: the run was cut off and resumed.")
        whole = [line for line in whole if line.startswith(b"{") and line.endswith(b"}")]
    if not whole:
        raise RunFileError(f"{str(file)!r} holds no complete record yet.")
    header = orjson.loads(whole[0])
    if header.get("kind") != "header":
        raise RunFileError(f"{str(file)!r} is not a run file: its first line is no header.")
    if header["format"] > FORMAT_VERSION:
        raise RunFileError(
            f"{str(file)!r} has format {header['format']}, this version of gradient-flow reads up to {FORMAT_VERSION}. "
            "Upgrade gradient-flow to read it."
        )
    return Run(file, whole, notes)


def _step_of(line: bytes) -> int:
    start = line.index(b'"step":') + 7
    return int(line[start : line.index(b",", start)])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _flat(record: dict[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from (f"{key}/{inner}" for inner in _flat(value))
        elif key != "kind" and not isinstance(value, (str, list)):
            yield key


def _lookup(record: dict[str, Any], name: str) -> Any:
    if name in record:
        return record[name]
    for key, value in record.items():
        if isinstance(value, dict) and name.startswith(f"{key}/"):
            return _lookup(value, name[len(key) + 1 :])
    return None
