"""`Recorder`: opens a record at its step, completes it when its numbers have arrived, and hands it on.

A number may arrive after its step: how far the step moved the weights, a loss that a device is still computing. Records
leave in the order of their steps, complete, to the window, the file and the loggers. At most `MOST_OPEN` are open at
once, so a process that dies loses no more than those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from gradient_flow.capture.arrivals import LateNumber, on_device
from gradient_flow.flow.known_parameters import KnownParameters
from gradient_flow.record.about import ABOUT, merged
from gradient_flow.record.event import Event
from gradient_flow.record.evidence import MOST_TABLES
from gradient_flow.record.look import LookRecord
from gradient_flow.record.run import Run, run_of_lines
from gradient_flow.record.run_lines import FORMAT_VERSION, FileLines
from gradient_flow.record.run_writer import RunWriter
from gradient_flow.record.step import StepRecord, plain_value
from gradient_flow.record.window import History

MOST_OPEN: Final = 8
"""Records that may be open at once. One more, and the oldest is completed then and there, waiting if need be."""
_MOST_EVENTS: Final = 1000
MOST_SEEN: Final = 8
"""Looks of a probe that are kept without a file, and up to twice as many."""

Sink = Callable[[StepRecord, LookRecord | None], object]


class Pending(Protocol):
    """A number that is on its way."""

    def ready(self) -> bool:
        """Whether it can be had without waiting."""

    def value(self) -> Any:
        """The number; waits for it."""


class Several:
    """Numbers of which some are on their way."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def ready(self) -> bool:
        """Whether all of them have come."""
        return all(value.ready() for value in self._values if isinstance(value, LateNumber))

    def value(self) -> list[Any]:
        """The numbers."""
        return [value.value() if isinstance(value, LateNumber) else value for value in self._values]


def arriving(value: Any) -> Any:
    """A value as it is recorded, or what will be it."""
    if type(value) is float:
        return value
    late = on_device(value) and not getattr(value, "is_meta", False)  # from the meta device nothing ever comes
    return LateNumber(value) if late else plain_value(value)


def arriving_list(values: Iterable[Any]) -> Any:
    """The same for several."""
    if isinstance(values, list) and len(values) == 1 and type(values[0]) is float:
        return values
    made = [arriving(value) for value in values]
    return Several(made) if any(isinstance(value, LateNumber) for value in made) else made


class Arrival(NamedTuple):
    """What is to be done when numbers have come that are not simply put into the record."""

    ready: Callable[[], bool]
    apply: Callable[[OpenStep], object]


class OpenStep:
    """The record of a step that is not complete yet."""

    def __init__(self, record: StepRecord, look: LookRecord | None) -> None:
        self.record, self.look = record, look
        self.arrivals: list[Arrival] = []
        self.finished = False
        """Whether the optimizer's step is over."""

    def take_in(self, *, wait: bool = False) -> None:
        """Apply what has arrived; with `wait` everything."""
        for arrival in list(self.arrivals) if self.arrivals else ():
            if wait or arrival.ready():
                self.arrivals.remove(arrival)
                arrival.apply(self)

    def complete(self, *, wait: bool) -> bool:
        """Put in what has arrived, with `wait` everything; whether nothing is missing any more."""
        if not self.finished and not wait:
            return False
        self.take_in(wait=wait)
        done = not self.arrivals
        for name, value in self.record.pending():
            if wait or value.ready():
                self.record.put(name, value.value())
            else:
                done = False
        return done


class Recorder:
    """Everything that is recorded of a run passes here."""

    def __init__(
        self, known: KnownParameters, history: History, writer: RunWriter | None, header: Mapping[str, Any]
    ) -> None:
        self.known, self.history, self.writer = known, history, writer
        self.sinks: list[Sink] = []
        self._header = {"kind": "header", "format": FORMAT_VERSION, **header}
        self._open: deque[OpenStep] = deque()
        self._looks: dict[str, list[dict[str, Any]]] = {}
        """Tables under an empty name, and the looks of each probe under its own."""
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self.about: dict[str, Any] = {}
        self._file_run: Run | None = None
        self.before_anything: Callable[[], None] = _nothing_noted
        """Called before anything is recorded or read: hands on the records of steps that were only noted so far."""

    def open(self, record: StepRecord, look: LookRecord | None = None, arrivals: Sequence[Arrival] = ()) -> OpenStep:
        """Begin the record of a step; those before it are over, whatever became of them."""
        self.before_anything()
        for earlier in self._open:
            earlier.finished = True
        opened = OpenStep(record, look)
        opened.arrivals += arrivals
        opened.take_in()
        self._open.append(opened)
        self.move_on()
        return opened

    def move_on(self, *, all_of_them: bool = False) -> None:
        """Hand on what is complete, in order; where too many are open, or all are wanted, wait for the oldest."""
        self.before_anything()
        while self._open:
            first = self._open[0]
            crowded = len(self._open) > MOST_OPEN
            if not first.complete(wait=all_of_them or crowded):
                return
            self._open.popleft()
            self.hand_on([(first.record, first.look)])

    def add_look(self, look: LookRecord) -> None:
        """A look that is complete by itself: one that waited for other ranks, or what a probe saw."""
        self.before_anything()
        self._write(*self._lines_of(look))

    def add_late_look(self, step: int, ready: Callable[[], bool], complete: Callable[[], LookRecord]) -> None:
        """A look that ranks complete together: with the record of its step, where that is still open."""
        for opened in self._open:
            if opened.record.step == step:

                def put(opened: OpenStep) -> None:
                    opened.look = complete()

                opened.arrivals.append(Arrival(ready, put))
                return
        self.add_look(complete())

    def add_event(self, event: Event) -> None:
        """Something that happened beside the steps."""
        self.before_anything()
        self._events.append(event)
        self._write(event.to_line())

    def add_about(self, part: Mapping[str, Any]) -> None:
        """Something that is known of the run as a whole."""
        self.before_anything()
        self.about = merged(self.about, part)
        self._write({"kind": ABOUT, **part})

    def list_parameters(self, described: list[dict[str, Any]]) -> None:
        """Parameters that joined later."""
        if described:
            self.before_anything()
            self._write({"kind": "parameters", "parameters": described})

    @property
    def run(self) -> Run:
        """The run so far, read as a file would be: from the file where there is one, else from the window."""
        self.move_on(all_of_them=False)
        if self.writer is not None and self.writer.active:
            self.writer.flush()
            self._file_run = self._file_run or Run(FileLines(self.writer.path))
        if self._file_run is not None:
            self._file_run.update()
            return self._file_run
        return run_of_lines(self.kept_lines())

    def kept_lines(self) -> list[dict[str, Any]]:
        """What is remembered without a file, as the lines that it would have."""
        self.before_anything()
        looks = sorted((line for lines in self._looks.values() for line in lines), key=lambda line: line["step"])
        header = {**self._header, "parameters": self.known.described}
        events = [event.to_line() for event in self._events]
        about = [{"kind": ABOUT, **self.about}] if self.about else []
        return [header, *about, *map(_step_line, self.history.lines), *looks, *events]

    def close(self) -> None:
        """Write what is open and release the file; `run` stays readable."""
        self.move_on(all_of_them=True)
        if self.writer is not None:
            if self.writer.active:
                self.writer.flush()
                self._file_run = self._file_run or Run(FileLines(self.writer.path))
            self.writer.close()

    def hand_on(self, complete: Sequence[tuple[StepRecord, LookRecord | None]]) -> None:
        """Pass on records that are complete, in order, written in one go."""
        lines: list[Mapping[str, Any]] = []
        for record, look in complete:
            line = record.to_line()
            self.history.append(line)
            lines.append(line)
            if look is not None:
                if look.table is not None and self.known.unknown(look.table.names):
                    self._write(*lines)  # names that are new come after what was before them
                    lines = []
                lines += self._lines_of(look)
        self._write(*lines)
        for record, look in complete if self.sinks else ():
            for sink in self.sinks:
                sink(record, look)

    def _lines_of(self, look: LookRecord) -> list[dict[str, Any]]:
        if look.table is not None:
            # Of other ranks, which do not tell their shapes.
            new = {name: look.table[name].count for name in self.known.unknown(look.table.names)}
            self.list_parameters(self.known.add_names(new))
        lines = look.to_lines(self.known.names)
        if self.writer is None:
            self._remember(lines)
        return lines

    def _remember(self, lines: list[dict[str, Any]]) -> None:
        """Without a file, tables are kept at even distances, and so is what each probe saw; the last ones always."""
        for line in lines:
            kept = self._looks.setdefault(line.get("probe", ""), [])
            kept.append(line)
            if len(kept) > 2 * (MOST_SEEN if "probe" in line else MOST_TABLES):
                kept[:] = [*kept[:-1:2], kept[-1]]

    def _write(self, *lines: Mapping[str, Any]) -> None:
        if self.writer is not None and lines:
            self.writer.write(*lines)


def _nothing_noted() -> None:
    """Every step is recorded as it is taken."""


def _step_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the window; one from a checkpoint has numbers alone."""
    return {"kind": "step", **line, "step": int(line["step"])}
