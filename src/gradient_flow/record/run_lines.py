"""The lines of a run file: how they begin, how they are encoded, and where they come from.

A run is `run.jsonl` in a folder; a very long one goes on in `run.2.jsonl`, `run.3.jsonl` and is still one run. Lines
are read once, in order. Of tables, which are nearly all of a file, only the beginning is looked at; they are read when
they are asked for. The same lines may also lie in memory: a live run without a file is read by the same code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeGuard

import numpy as np
import orjson

from gradient_flow.errors import RunFileError

FORMAT_VERSION: Final = 2
"""The major version. It goes up when an older reader would misread a file; unknown kinds of lines are ignored."""
FILE_NAME: Final = "run.jsonl"

_HEADER: Final = b'{"kind":"header"'
STEP: Final = b'{"kind":"step","step":'
"""How the line of a step begins."""
_STEP_AT: Final = len(STEP)
_TABLES: Final = (b'{"kind":"look","step":', b'{"kind":"layers","step":')
"""How the line of a table begins; format 1 called it `layers`."""
SEEN: Final = b'{"kind":"seen","step":'
_ENOUGH: Final = max(map(len, _TABLES)) + 24
"""Leading bytes of a table that contain its step; every table is longer."""
_CLOSING: Final = ord("}")
_BLOCK: Final = 1 << 20
DEEPEST: Final = 32
"""Levels of nesting that a record may have: beyond some hundred it could be neither walked through nor written."""
_DEEPEST_VALUE: Final = 24
"""The same for a value in a record that has to be put into words; deeper parts become texts."""
_LONG: Final = frozenset(("header", "parameters", "look", "seen"))
"""Kinds of lines with many brackets and no value of the user's: how deep they are need not be asked."""
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
LARGEST_SIZE: Final = 1 << 53
"""Elements that a tensor may have: beyond it counts are no longer exact."""
LONGEST_LINE: Final = 1 << 28
"""A longer line is damage: a table of a million tensors has a quarter of that."""


class Span(NamedTuple):
    """Where a line stands: in which file of the run, from which byte on, how long."""

    part: int
    start: int
    length: int


class Lines(Protocol):
    """Where the lines of a run come from."""

    path: Path | None
    size: int
    torn_at_end: int

    def restarted(self) -> bool:
        """Open what is there; whether everything read before must be forgotten."""

    def has_news(self) -> bool:
        """Whether there may be lines that were not given before."""

    def new(self) -> Iterator[tuple[bytes, Span]]:
        """Whole lines that were not given before. Of a table only the beginning is given."""

    def read(self, spans: Iterable[Span]) -> list[bytes]:
        """The whole lines there."""


# ---- encoding ---------------------------------------------------------------------------------------------------


def encode(record: Mapping[str, Any]) -> bytes:
    """One record as strict JSON: NaN and Inf become null, arrays lists, and what JSON cannot hold its text.

    A value that cannot be written at all costs that value, not the record.
    """
    try:
        line = orjson.dumps(record, default=_default, option=_OPTIONS)
        if record.get("kind") in _LONG or not may_be_deep(line) or whole_record(line) is not None:
            return line
    except Exception:  # an integer beyond 64 bits, a lone surrogate, a `__str__` that raises
        pass
    return _json({_safe_key(key): _safe(value) for key, value in record.items()})


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_default, option=_OPTIONS)


def _default(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):  # those that orjson does not take: strided, of other types
        return value.tolist()
    if isinstance(value, (tuple, set)):
        return list(value)
    return str(value)


def _safe_key(key: Any) -> Any:
    try:
        _json({key: None})
    except Exception:
        return ascii(key) if isinstance(key, str) else f"<{type(key).__name__}>"
    return key


def _safe(value: Any, depth: int = 0) -> Any:
    """The value if it can be written, else its text in ASCII, else the name of its type; of a mapping, of each part."""
    if depth < _DEEPEST_VALUE and isinstance(value, dict):
        return {_safe_key(key): _safe(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST_VALUE and isinstance(value, (list, tuple)):
        return [_safe(item, depth + 1) for item in value]
    for attempt in (lambda: value, lambda: ascii(value)):
        try:
            made = attempt()
            _json(made)
        except Exception:  # each attempt may fail in its own way
            continue
        return made
    return f"<{type(value).__name__}>"


# ---- single lines -----------------------------------------------------------------------------------------------


def step_of_table(line: bytes, span: Span) -> int | None:
    """The step of a table as `Lines.new` gives it; none for any other line."""
    if len(line) == span.length:
        return None
    start = next((len(prefix) for prefix in _TABLES if line.startswith(prefix)), None)
    if start is None:
        return None
    digits = line[start : line.find(b",", start)]
    step = int(digits) if digits.isdigit() and len(digits) < _ENOUGH else None
    return step if is_step(step) else None


def step_of_line(line: bytes) -> int:
    """The number in the line of a step as it begins; -1 where there is none that can be a step."""
    digits = line[_STEP_AT : line.find(b",", _STEP_AT, _STEP_AT + 17)]  # 2 ** 53 has 16
    return int(digits) if digits.isdigit() else -1


def whole_record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; none if the line is torn or damaged."""
    if not line.startswith(b"{") or len(line) > LONGEST_LINE:
        return None
    try:
        record = orjson.loads(line)
    except (orjson.JSONDecodeError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    if may_be_deep(line) and not _is_shallow(record):
        return None
    if record["kind"] == "step" and not is_step(record.get("step")):
        return None
    return record


def may_be_deep(line: bytes) -> bool:
    """Whether a line has enough brackets to be nested too deeply."""
    return line.count(b"[") + line.count(b"{") > DEEPEST


def _is_shallow(record: Any) -> bool:
    level = [record]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False


def is_step(value: Any) -> TypeGuard[int]:
    """Whether it can be the number of a step."""
    return type(value) is int and 0 <= value < 1 << 53


def has_step(record: Any) -> bool:
    """Whether it is a record with the number of a step."""
    return type(record) is dict and is_step(record.get("step"))


def header_of(line: bytes) -> dict[str, Any] | None:
    """The header that a line is; none for any other line."""
    return whole_record(line) if line.startswith(_HEADER) else None


def check_parameters(parameters: Any) -> list[dict[str, Any]]:
    """Refuse descriptions of tensors that nothing could be done with."""
    listed = [] if parameters is None else parameters
    names = set()
    for parameter in listed if isinstance(listed, list) else [listed]:
        known = isinstance(parameter, dict) and isinstance(parameter.get("name"), str)
        if not known or not _is_shape(parameter.get("shape")):
            raise RunFileError(
                "The run file is damaged: `parameters` must have a name and a shape each, got "
                f"{str(parameter)[:80]}. Restore the file from a copy."
            )
        if parameter["name"] in names:
            raise RunFileError(
                f"The run file is damaged: `parameters` names {parameter['name'][:80]!r} twice. Restore the file from "
                "a copy."
            )
        names.add(parameter["name"])
    return listed if isinstance(listed, list) else []


def _is_shape(shape: Any) -> bool:
    """Whether it can be the shape of a tensor, or stands for one that is not known."""
    if shape is None:
        return True
    if not isinstance(shape, list) or len(shape) > DEEPEST or not all(type(size) is int for size in shape):
        return False
    return all(0 <= size <= LARGEST_SIZE for size in shape) and math.prod(shape) <= LARGEST_SIZE


# ---- where lines come from --------------------------------------------------------------------------------------


class MemoryLines:
    """Lines of a run that lie in memory."""

    path: Path | None = None

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = list(lines)
        self._given = 0
        self.size, self.torn_at_end = 0, 0

    def restarted(self) -> bool:
        """Never: what was given stays."""
        return False

    def has_news(self) -> bool:
        """Whether there are lines that were not given before."""
        return self._given < len(self._lines)

    def new(self) -> Iterator[tuple[bytes, Span]]:
        """What was not given before."""
        while self._given < len(self._lines):
            line, at = self._lines[self._given], self._given
            self._given, self.size = at + 1, self.size + len(line)
            span = Span(0, at, len(line))
            yield (line[:_ENOUGH] if is_whole_table(line) else line), span

    def read(self, spans: Iterable[Span]) -> list[bytes]:
        """The lines there."""
        return [self._lines[span.start] for span in spans]


class FileLines:
    """Lines of a run folder or a `run.jsonl`, and of the files that it goes on in."""

    def __init__(self, path: str | Path) -> None:
        given = Path(path)
        self.path: Path | None = given / FILE_NAME if given.is_dir() else given
        self._first = self.path
        self._forget()

    def _forget(self) -> None:
        self.size = 0
        """Bytes taken in, over all files."""
        self.torn_at_end = 0
        self._identity: tuple[int, int] | None = None
        self._ends: list[int] = []
        """Bytes taken in of each file."""

    def restarted(self) -> bool:
        """Whether the file was replaced, or is shorter than what was read of it."""
        try:
            with self._first.open("rb", buffering=0) as file:
                about = os.fstat(file.fileno())
                if self._identity == (about.st_dev, about.st_ino) and about.st_size >= self._ends[0]:
                    return False
                self._forget()
                self._identity, self._ends = (about.st_dev, about.st_ino), [0]
                check_beginning(self._first, file)
        except OSError as problem:
            raise cannot_be_read(self._first, problem) from problem
        return True

    def has_news(self) -> bool:
        """Whether the last file has another size than when it was read, or another file follows it."""
        last = max(0, len(self._ends) - 1)
        known = self._ends[-1] + self.torn_at_end if self._ends else -1
        return part_path(self._first, last).stat().st_size != known or part_path(self._first, last + 1).exists()

    def forget(self) -> None:
        """What is wrong with the file is said again the next time."""
        self._forget()

    def new(self) -> Iterator[tuple[bytes, Span]]:
        """Whole lines that were appended since the last call."""
        part = len(self._ends) - 1
        while True:
            try:
                with part_path(self._first, part).open("rb", buffering=0) as file:
                    yield from self._scan(file, part)
            except OSError as problem:
                raise cannot_be_read(part_path(self._first, part), problem) from problem
            if not part_path(self._first, part + 1).exists():
                return
            part += 1
            self._ends.append(0)

    def _scan(self, file: BinaryIO, part: int) -> Iterator[tuple[bytes, Span]]:
        file.seek(self._ends[part])
        start = self._ends[part]
        for line, length in scan_lines(file):
            self._ends[part] = start + length
            self.size += length
            yield line, Span(part, start, length)
            start += length
        self.torn_at_end = file.tell() - self._ends[part]

    def read(self, spans: Iterable[Span]) -> list[bytes]:
        """The whole lines there."""
        lines: list[bytes] = []
        opened: tuple[int, BinaryIO] | None = None
        try:
            for span in spans:
                if opened is None or opened[0] != span.part:
                    if opened is not None:
                        opened[1].close()
                    opened = span.part, part_path(self._first, span.part).open("rb")
                opened[1].seek(span.start)
                lines.append(opened[1].read(span.length))
        except OSError as problem:
            raise RunFileError(
                f"{str(self._first)!r} cannot be read any more ({problem.strerror}). If it was moved or replaced, load "
                "the run again."
            ) from problem
        finally:
            if opened is not None:
                opened[1].close()
        return lines


def part_path(first: Path, part: int) -> Path:
    """The file in which a run goes on: `run.jsonl`, `run.2.jsonl`, `run.3.jsonl`."""
    return first if part == 0 else first.with_name(f"{first.stem}.{part + 1}{first.suffix}")


def newest_part(first: Path) -> tuple[int, Path]:
    """The file of a run that is written to."""
    part = 0
    while part_path(first, part + 1).exists():
        part += 1
    return part, part_path(first, part)


def scan_lines(opened: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Whole lines from where the file stands, each with its length; what comes after the last line end is left out."""
    rest = b""
    while block := opened.read(_BLOCK):
        start, unseen, block = 0, len(rest), rest + block
        while (end := block.find(b"\n", unseen)) >= 0:
            length = end + 1 - start
            # A table holds no inner }, so one at the end of the line is its own: it is whole.
            if length > _ENOUGH and block.startswith(_TABLES, start) and block[end - 1] == _CLOSING:
                yield block[start : start + _ENOUGH], length
            else:
                yield block[start : end + 1], length
            start = unseen = end + 1
        rest = block[start:]
        if len(rest) > LONGEST_LINE:
            raise RunFileError("The run file is damaged: it has a line that never ends. Restore it from a copy.")


def is_whole_table(line: bytes) -> bool:
    """Whether a line is a table that nothing cut off."""
    return len(line) > _ENOUGH and line.startswith(_TABLES) and line.rstrip(b"\n").endswith(b"}")


# ---- what is said of a file that is none ------------------------------------------------------------------------


def check_beginning(file: Path, opened: BinaryIO) -> None:
    """Refuse a file that does not begin as a run file does. An empty one or a torn header is a beginning of it."""
    if not _HEADER.startswith(opened.readline(len(_HEADER)).rstrip(b"\n")):
        raise not_a_run_file(file)


def check_format(file: Path | None, version: Any) -> None:
    """Refuse a major version that is newer than this package."""
    if type(version) is not int or version < 1:
        raise not_a_run_file(file)
    if version > FORMAT_VERSION:
        raise RunFileError(
            f"{str(file)!r} has format {version}; this version of gradient-flow reads up to {FORMAT_VERSION}. "
            "Upgrade gradient-flow to read it."
        )


def torn_notes(bytes_at_end: int, lines_within: int) -> list[str]:
    """What to say of lines that were left out."""
    notes = []
    if bytes_at_end:
        notes.append(
            f"The last line is torn ({bytes_at_end} bytes) and left out: the run was cut off while writing it."
        )
    if lines_within:
        many, were = ("line", "is") if lines_within == 1 else ("lines", "are")
        notes.append(f"{lines_within} torn or damaged {many} within the file {were} left out.")
    return notes


def not_a_run_file(file: Path | None) -> RunFileError:
    """The error for a file that is no run file."""
    return RunFileError(
        f"{str(file)!r} is not a run file: it does not begin with a header. Pass the folder given to `watch(run=...)`."
    )


def cannot_be_read(file: Path, problem: OSError) -> RunFileError:
    """The error for a file that cannot be opened."""
    return RunFileError(
        f"`path` must be a run folder or a {FILE_NAME}; {str(file)!r} cannot be read ({problem.strerror})."
    )


def no_record_yet(file: Path | None) -> RunFileError:
    """The error for a file without a complete line."""
    return RunFileError(
        f"{str(file)!r} holds no complete record yet: the run has just begun or was cut off at its very start, or "
        "this is not a run file."
    )
