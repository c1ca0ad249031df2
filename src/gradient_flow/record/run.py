"""`Run`: one reader for a finished file, a file that grows, and a live run. Without torch.

Step records become columns of numbers. Tables and what probes saw are read when they are asked for. Whatever cannot be
read, a torn or damaged line, is left out and counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, overload

import numpy as np
import orjson
from numpy.typing import NDArray

from gradient_flow.errors import RunFileError
from gradient_flow.record import run_lines
from gradient_flow.record.about import ABOUT, merged
from gradient_flow.record.ending import Ending, ending_of
from gradient_flow.record.event import END, LOOKED, RESUMED, Event
from gradient_flow.record.look import BESIDE, COUNT_COLUMNS, ReadTable, Tensors
from gradient_flow.record.run_lines import FileLines, Lines, Span
from gradient_flow.record.step import as_float
from gradient_flow.record.step_columns import StepColumns
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import Thresholds

_BATCH: Final = 256
"""Step lines parsed together. With thousands, their records outlive the young generations of the garbage collector,
and each of its full collections then walks through every object of the process: a quarter of the reading time."""
_PORTION: Final = 1 << 22


class TableSpan(NamedTuple):
    """Where a table stands, and which list of parameters it is about."""

    step: int
    span: Span
    listed: int


class SeenSpan(NamedTuple):
    """Where something stands that a probe saw."""

    step: int
    span: Span


class Run:
    """A recorded run: `len(run)` steps, `run.series("norm")`, `run.table(step)`, `run.events`, `run.records`.

    `update()` takes in what was appended since; a finished run has nothing more.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._forget()

    def _forget(self) -> None:
        self.header: dict[str, Any] = {}
        """The newest header: a run that was resumed has several."""
        self.headers = 0
        self.about: dict[str, Any] = {}
        """What the run was: optimizers, precision, clipping, versions, commit, command line, the user's own settings.

        Of the newest process of the run; empty where it was not to be described."""
        self.end: Event | None = None
        """What closes a run; None while it goes on, and None again once it is resumed."""
        self.events: list[Event] = []
        """What happened beside the steps, in the order it was written."""
        self._earlier_events = 0
        """How many of them stand before the last header, or the last line of a step."""
        self.started: str | None = None
        self.seconds = 0.0
        """From the start to the last step, over all processes of the run."""
        self._seconds_before = 0.0
        self._described: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, str] = {}
        """Parameter → role."""
        self.columns = StepColumns()
        """The step records as columns of numbers."""
        self._step_spans = array("q")
        self.tables: list[TableSpan] = []
        self.tables_unchanged = 0
        """Leading tables that the last `update` left unchanged: a resumed run repeats some."""
        self.seen: dict[str, list[SeenSpan]] = {}
        """Name of a probe → where what it saw stands."""
        self.damaged = 0
        """Lines within the file that are no records."""
        self._lists: list[tuple[list[dict[str, Any]], int]] = []
        self._names_listed: set[str] = set()
        self._tensors: dict[int, Tensors] = {}

    # ---- what a user asks -----------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The run file; of a run in memory there is none."""
        if self._lines.path is None:
            raise RunFileError("This run is live and has no file. Give `watch(run=...)` a folder to keep one.")
        return self._lines.path

    @property
    def in_memory(self) -> bool:
        """Whether the run has no file."""
        return self._lines.path is None

    @property
    def ending(self) -> Ending | None:
        """How the run ended, or that it goes on, or has been silent; None of what is no training."""
        return ending_of(self)

    @property
    def look_steps(self) -> list[int]:
        """Steps at which the model was looked at from inside, by a watch or by an analysis that was added."""
        taken = {event.step for event in self.events if event.kind == LOOKED and event.step is not None}
        added = {each.step for probe, spans in self.seen.items() if probe not in BESIDE for each in spans}
        return sorted(taken | added)

    @property
    def size(self) -> int:
        """Bytes taken in."""
        return self._lines.size

    @property
    def notes(self) -> list[str]:
        """What was noticed on reading, such as a torn last line."""
        notes = run_lines.torn_notes(self._lines.torn_at_end, self.damaged)
        if self.columns.left_out:
            notes.append(f"Only the first {len(self.columns.names):,} series are kept; the file has more.")
        return notes

    @property
    def steps(self) -> Sequence[dict[str, Any]]:
        """The step records. Where a resumed run repeats steps, the repetition counts."""
        return _Steps(self)

    @property
    def last_step(self) -> int | None:
        """The newest recorded step."""
        return int(self.columns["step"][-1]) if len(self.columns) else None

    @property
    def names(self) -> list[str]:
        """What `series` knows: every number of the step records."""
        return self.columns.names if len(self.columns) else []

    def series(self, name: str) -> NDArray[np.float64]:
        """One value per step record; NaN where a record does not have it or has null.

        Nested values are named `outer/inner`; a list gives `name`, `name/1`, `name/2`.
        """
        if not len(self.columns) or name not in self.columns:
            raise KeyError(
                f"no series {name!r} in {self._lines.path}: it has {', '.join(self.names) or 'no steps yet'}"
            )
        return self.columns[name].copy()

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Name and shape of every parameter, in the order they were listed first."""
        return list(self._described.values())

    @property
    def tensor_names(self) -> list[str]:
        """Their names alone."""
        return list(self._described)

    @property
    def table_steps(self) -> list[int]:
        """The steps that have a table of all tensors."""
        return [table.step for table in self.tables]

    def table(self, step: int) -> GradientTable:
        """The table of a step. Its sums carry the seven digits that are kept per tensor."""
        span = self._table_span(step)
        known = self._tensors_of(span.listed)
        settings = self.header.get("settings")
        limits = {
            name: as_float(settings[name])
            for name in Thresholds._fields
            if isinstance(settings, Mapping) and isinstance(settings.get(name), (int, float))
        }
        return self.read_table(span).table(known.names, Thresholds(**limits))

    def exponents(self, step: int) -> dict[str, NDArray[np.int64]]:
        """Name → how many elements of its gradient lie in each of 64 bins of log₂|g|; empty where the look took none.

        [The run file](../run_file.md#a-look) says what each bin holds.
        """
        read = self.read_table(self._table_span(step))
        counts = read.exponents()
        return {} if counts is None else dict(zip(read.names, counts, strict=True))

    def layers(self, step: int) -> dict[str, Any]:
        """The line of a table, every column a list and `names` filled in."""
        span = self._table_span(step)
        line, read = self._line(span.span), self.read_table(span)
        for name in COUNT_COLUMNS:
            line[name] = line[name] or [0] * len(read.names)
        return {**line, "names": read.names}

    @property
    def records(self) -> Iterator[dict[str, Any]]:
        """Every line up to the last `update`, as it was written: headers, tables and repeated steps included."""
        lines = FileLines(self.path)
        lines.restarted()
        for line, span in lines.new():
            if lines.size > self.size:
                return  # appended since
            record = run_lines.whole_record(line if len(line) == span.length else lines.read([span])[0])
            if record is not None:
                yield record

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        where = "in memory" if self.in_memory else repr(str(self.path))
        ending = self.ending
        state = "" if ending is None else f", {ending.state}"
        return f"Run({where}, {len(self)} steps, {len(self.tables)} tables{state})"

    def _repr_html_(self) -> str:
        from gradient_flow.record.notebook import run_html

        return run_html(self)

    # ---- what other rooms ask -------------------------------------------------------------------------------------

    def read_table(self, span: TableSpan) -> ReadTable:
        """The table at a place."""
        return self.read_tables([span])[0]

    def read_tables(self, spans: Sequence[TableSpan]) -> list[ReadTable]:
        """The tables at these places. One that is damaged is a `RunFileError`."""
        lines = self._lines.read(each.span for each in spans)
        return [
            ReadTable(self._parsed(line, each.step), self._tensors_of(each.listed))
            for line, each in zip(lines, spans, strict=True)
        ]

    def intact_tables(self, spans: Sequence[TableSpan]) -> list[tuple[TableSpan, ReadTable]]:
        """Those of the tables that can be read; the others are counted as damaged and left out."""
        found = []
        for portion in _portions(spans):
            for span, line in zip(portion, self._intact_lines(portion), strict=True):
                try:
                    table = ReadTable(self._parsed(line, span.step), self._tensors_of(span.listed))
                except RunFileError:
                    self._discard(span)
                else:
                    found.append((span, table))
        return found

    def _intact_lines(self, spans: Sequence[TableSpan]) -> list[bytes]:
        """The lines there; empty ones where the file is gone."""
        try:
            return self._lines.read(each.span for each in spans)
        except RunFileError:
            return [b""] * len(spans)

    def found(self, probe: str, steps: Container[int] | None = None) -> list[tuple[int, Mapping[str, Any]]]:
        """What a probe saw, with the step of each look; of these steps, where they are given."""
        results: list[tuple[int, Mapping[str, Any]]] = []
        for each in list(self.seen.get(probe, ())):
            if steps is not None and each.step not in steps:
                continue
            record = run_lines.whole_record(self._lines.read([each.span])[0])
            found = None if record is None else record.get("found")
            if isinstance(found, Mapping):
                results.append((each.step, found))
            else:
                self.seen[probe].remove(each)
                self.damaged += 1
        return results

    def newest(self, probe: str) -> tuple[int, Mapping[str, Any]] | None:
        """The newest of what a probe saw, with its step; one that is damaged is counted and left out."""
        for each in reversed(list(self.seen.get(probe, ()))):
            record = run_lines.whole_record(self._lines.read([each.span])[0])
            found = None if record is None else record.get("found")
            if isinstance(found, Mapping):
                return each.step, found
            self.seen[probe].remove(each)
            self.damaged += 1
        return None

    def has_news(self) -> bool:
        """Whether the file has changed since the last `update`, without reading it; also while it has no header."""
        return not self.headers or self._lines.has_news()

    def update(self) -> bool:
        """Take in what was appended; whether there was anything. A file that was replaced is read from its start."""
        try:
            if self._lines.restarted():
                self._forget()
            before, self.tables_unchanged = self.size, len(self.tables)
            self._take_in()
        except RunFileError:
            self._forget()
            if isinstance(self._lines, FileLines):
                self._lines.forget()  # what is wrong with it is said again the next time
            raise
        if not self.headers:
            raise run_lines.no_record_yet(self._lines.path)
        return self.size > before

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        steps: list[tuple[bytes, Span]] = []
        last = self.last_step if self.last_step is not None else -1
        for line, span in self._lines.new():
            if line.startswith(run_lines.STEP):
                steps.append((line, span))
                before, last = last, run_lines.step_of_line(line)
                # Steps that go on are parsed together, over the tables between them. One that goes back, in a run that
                # was resumed, drops tables and looks from there on: it is taken in before those that come after it.
                if last > before and len(steps) < _BATCH:
                    continue
                self._take_steps(steps)
                steps = []
            elif (step := run_lines.step_of_table(line, span)) is not None:
                self._add_table(TableSpan(step, span, len(self._lists) - 1))
            elif line.startswith(run_lines.SEEN):
                self._add_seen(line, span)
            else:
                self._take_steps(steps)
                steps = []
                self._take_other(line)
                last = self.last_step if self.last_step is not None else -1
        self._take_steps(steps)

    def _take_steps(self, lines: list[tuple[bytes, Span]]) -> None:
        if not lines:
            return
        try:
            if any(run_lines.may_be_deep(line) for line, _ in lines):
                raise ValueError("to be looked at one by one")
            records = orjson.loads(b"[" + b",".join([line for line, _ in lines]) + b"]")  # half the time of one by one
            if len(records) != len(lines) or not all(map(run_lines.has_step, records)):
                raise ValueError("a step without a number")
            spans = [span for _, span in lines]
        except ValueError:
            whole = [(run_lines.whole_record(line), span) for line, span in lines]
            whole = [(record if record is not None and record["kind"] == "step" else None, at) for record, at in whole]
            records = [record for record, _ in whole if record is not None]
            spans = [span for record, span in whole if record is not None]
            self.damaged += len(whole) - len(records)
        if not records:
            return
        last, start = self.last_step, 0
        for at, step in enumerate([record["step"] for record in records]):
            if last is not None and step <= last:  # a resumed run does again what it did from there on
                self._add_steps(records[start:at], spans[start:at])
                self._drop_from(step)
                start = at
            last = step
            self._earlier_events = len(self.events)
        self._add_steps(records[start:], spans[start:])
        self.end = None
        self.seconds = self._seconds_before + max(0.0, _number(records[-1].get("time")))

    def _add_steps(self, records: Sequence[Mapping[str, Any]], spans: Sequence[Span]) -> None:
        self.columns.extend(records)
        self._step_spans.extend(chain.from_iterable(spans))

    def _drop_from(self, step: int) -> None:
        """Forget what lies at a step and after it: it belongs to a branch that was abandoned."""
        self.columns.keep_before(step)
        del self._step_spans[3 * len(self.columns) :]
        while self.tables and self.tables[-1].step >= step:
            self.tables.pop()
        self.tables_unchanged = min(self.tables_unchanged, len(self.tables))
        self.seen = {name: [each for each in looks if each.step < step] for name, looks in self.seen.items()}
        # An event of this very step may stand before its line: that one is of the new branch.
        self.events = [
            event
            for at, event in enumerate(self.events)
            if event.step is None or event.step < step or (event.step == step and at >= self._earlier_events)
        ]

    def _add_table(self, table: TableSpan) -> None:
        # A look is completed after its step, so it may stand behind later steps; a second one takes its place.
        while self.tables and self.tables[-1].step >= table.step:
            self.tables.pop()
        self.tables_unchanged = min(self.tables_unchanged, len(self.tables))
        self.tables.append(table)

    def _add_seen(self, line: bytes, span: Span) -> None:
        head, found, rest = line.partition(b',"found":')
        whole = not found or (rest.startswith(b"{") and rest.rstrip(b"\n").endswith(b"}"))
        record = run_lines.whole_record(head + b"}") if whole else None
        if record is None or not run_lines.is_step(record.get("step")):
            self.damaged += 1
            return
        looks = self.seen.setdefault(str(record.get("probe")), [])
        if looks and looks[-1].step == record["step"]:
            looks.pop()  # as with tables: the second takes its place
        looks.append(SeenSpan(record["step"], span))

    def _take_other(self, line: bytes) -> None:
        record = run_lines.whole_record(line)
        if record is None:
            self.damaged += line != b"\n"
            return
        kind = record["kind"]
        if kind == "header":
            self._take_header(record)
        elif kind == "parameters":
            self._list_parameters(run_lines.check_parameters(record.get("parameters")), anew=False)
        elif kind == ABOUT:
            self.about = merged(self.about, record)
        elif kind not in ("step", "look", "layers", "seen"):
            event = Event.from_line(record)
            if event.kind == RESUMED and event.step is not None:
                self._earlier_events = len(self.events)
                self._drop_from(event.step + 1)
            if event.kind == END:
                self.end = event
            self.events.append(event)
        else:
            self.damaged += 1  # of a known kind, yet not as such a line is written

    def _take_header(self, record: dict[str, Any]) -> None:
        run_lines.check_format(self._lines.path, record.get("format"))
        self.header, self.end, self.about = _with_known_types(record), None, {}
        self.headers += 1
        self._earlier_events = len(self.events)
        started = record.get("started")
        self.started = self.started or (started if isinstance(started, str) else None)
        self._seconds_before = self.seconds
        groups = record.get("groups")
        if isinstance(groups, dict):
            self.groups |= {name: str(group) for name, group in groups.items()}
        self._list_parameters(run_lines.check_parameters(record.get("parameters")), anew=True)

    def _list_parameters(self, listed: list[dict[str, Any]], *, anew: bool) -> None:
        # One list that grows, and how much of it was there: an optimizer per parameter may list them one by one.
        if anew or not self._lists:
            self._names_listed = set()
        growing = [] if anew or not self._lists else self._lists[-1][0]
        # A line that stands there twice adds nothing.
        growing += [parameter for parameter in listed if parameter["name"] not in self._names_listed]
        self._names_listed |= {parameter["name"] for parameter in listed}
        self._lists.append((growing, len(growing)))
        for parameter in listed:
            self._described[parameter["name"]] = parameter

    def _tensors_of(self, listed: int) -> Tensors:
        if not 0 <= listed < len(self._lists):
            raise RunFileError("The run file is damaged: a table stands before the header.")
        if listed not in self._tensors:
            order = {name: position for position, name in enumerate(self._described)}
            growing, length = self._lists[listed]
            self._tensors[listed] = Tensors(growing[:length], order)
        return self._tensors[listed]

    def _table_span(self, step: int) -> TableSpan:
        for table in self.tables:
            if table.step == step:
                return table
        steps = self.table_steps
        which = f"there are {len(steps)}, from {steps[0]} to {steps[-1]}" if steps else "there are none"
        raise KeyError(f"step {step} has no table of tensors: {which}")

    def discard_table(self, step: int) -> None:
        """Count the table of a step as damaged and leave it out from now on."""
        self._discard(self._table_span(step))

    def _discard(self, span: TableSpan) -> None:
        if span in self.tables:
            self.tables.remove(span)
            self.tables_unchanged = min(self.tables_unchanged, len(self.tables))
            self.damaged += 1

    def _line(self, span: Span) -> dict[str, Any]:
        return self._parsed(self._lines.read([span])[0], None)

    def _parsed(self, line: bytes, step: int | None) -> dict[str, Any]:
        record = run_lines.whole_record(line)
        if record is None or record["kind"] not in ("look", "layers", "step"):
            what = "A line" if step is None else f"The table of step {step}"
            raise RunFileError(
                f"{what} cannot be read from {str(self._lines.path)!r}. If the file was moved or replaced, load the "
                "run again."
            )
        return record


class _Steps(Sequence[dict[str, Any]]):
    """Step records, read when asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        return len(self._run)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self._run._line(Span(*self._run._step_spans[3 * at : 3 * at + 3]))


def _portions(spans: Sequence[TableSpan]) -> Iterator[list[TableSpan]]:
    """Tables that are read at once: a file is opened for all of them, and memory stays bounded."""
    portion: list[TableSpan] = []
    for span in spans:
        if portion and sum(each.span.length for each in portion) + span.span.length > _PORTION:
            yield portion
            portion = []
        portion.append(span)
    if portion:
        yield portion


def load_run(path: str | Path) -> Run:
    """Read the run at `path`, a run folder or its `run.jsonl`.

    What is torn or damaged is left out, and noted in `run.notes`.
    """
    run = Run(FileLines(path))
    run.update()
    return run


def run_of_lines(lines: Iterable[Mapping[str, Any]]) -> Run:
    """A run from lines in memory, encoded as a file would have them."""
    run = Run(run_lines.MemoryLines([run_lines.encode(line) + b"\n" for line in lines]))
    run.update()
    return run


def _number(value: Any) -> float:
    return as_float(value) if isinstance(value, (int, float)) else 0.0


def _with_known_types(header: dict[str, Any]) -> dict[str, Any]:
    """A header whose settings are a mapping and whose versions are texts, or not there."""
    texts = ("version", "torch", "python", "started", "source")
    wrong = {name for name in texts if not isinstance(header.get(name, ""), str)}
    if not isinstance(header.get("settings", {}), dict):
        wrong.add("settings")
    return {name: value for name, value in header.items() if name not in wrong}
