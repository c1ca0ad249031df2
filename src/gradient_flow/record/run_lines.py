"""What the lines of a run file look like, and what is said of a file that is none: for every reader of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from gradient_flow.errors import RunFileError
from gradient_flow.record.run_writer import FILE_NAME, FORMAT_VERSION

_HEADER: Final = b'{"kind":"header"'
STEP: Final = b'{"kind":"step","step":'
"""How the line of a step begins."""
_LAYERS: Final = b'{"kind":"layers","step":'
_ENOUGH: Final = len(_LAYERS) + 24
"""Of a per-tensor record so many bytes tell its step; it is always longer."""
_CLOSING: Final = ord("}")
_BLOCK: Final = 1 << 20


def check_beginning(file: Path, opened: BinaryIO) -> None:
    """Refuse a file that does not begin as a run file does. An empty one or a torn header is a beginning of it."""
    if not _HEADER.startswith(opened.readline(len(_HEADER)).rstrip(b"\n")):
        raise not_a_run_file(file)


def scan_lines(opened: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Whole lines from where the file stands, each with its length; what comes after the last line end is left out.

    Of a per-tensor record only the beginning is given, enough for its step: these lines are long and nearly all of the
    file, and are read when they are asked for.
    """
    rest = b""
    while block := opened.read(_BLOCK):
        start, unseen, block = 0, len(rest), rest + block
        while (end := block.find(b"\n", unseen)) >= 0:
            length = end + 1 - start
            # A per-tensor record holds no inner }, so one at the end of the line is its own: it is whole.
            if length > _ENOUGH and block.startswith(_LAYERS, start) and block[end - 1] == _CLOSING:
                yield block[start : start + _ENOUGH], length
            else:
                yield block[start : end + 1], length
            start = unseen = end + 1
        rest = block[start:]


def step_of_layers(line: bytes, length: int) -> int | None:
    """The step of a whole per-tensor record as `scan_lines` gives it; none for any other line."""
    if len(line) == length or not line.startswith(_LAYERS):
        return None
    return int(line[len(_LAYERS) : line.index(b",", len(_LAYERS))])


def whole_record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; none if the line is torn, or a step without a number."""
    if not line.startswith(b"{"):
        return None
    try:
        record: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if record.get("kind") == "step" and not isinstance(record.get("step"), int):
        return None
    for parameter in record.get("parameters") or ():
        _check_parameter(parameter)
    return record


def _check_parameter(parameter: Any) -> None:
    """Refuse a description of a tensor that nothing could be done with."""
    known = isinstance(parameter, dict) and isinstance(parameter.get("name"), str)
    shape = parameter.get("shape") if known else None
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        raise RunFileError(
            f"The run file is damaged: `parameters` must have a name and a shape each, got {str(parameter)[:80]}. "
            "Restore the file from a copy."
        )


def check_format(file: Path, version: Any) -> None:
    """Refuse a format that is newer than this package."""
    if not isinstance(version, int):
        raise not_a_run_file(file)
    if version > FORMAT_VERSION:
        raise RunFileError(
            f"{str(file)!r} has format {version}, this version of gradient-flow reads up to {FORMAT_VERSION}. "
            "Upgrade gradient-flow to read it."
        )


def torn_notes(bytes_at_end: int, lines_within: int) -> list[str]:
    """What to tell of lines that were left out."""
    notes = []
    if bytes_at_end:
        notes.append(
            f"The last line was torn ({bytes_at_end} bytes) and left out: the run was cut off while writing it."
        )
    if lines_within:
        many, were = ("line", "was") if lines_within == 1 else ("lines", "were")
        notes.append(f"{lines_within} torn {many} within the file {were} left out: the run was cut off and resumed.")
    return notes


def not_a_run_file(file: Path) -> RunFileError:
    """For a file of another kind."""
    return RunFileError(
        f"{str(file)!r} is not a run file: it does not begin with a header. Pass the folder given to `watch(run=...)`."
    )


def cannot_be_read(file: Path, problem: OSError) -> RunFileError:
    """For a file that the system does not give."""
    return RunFileError(
        f"`path` must be a run folder or a {FILE_NAME}; {str(file)!r} cannot be read ({problem.strerror})."
    )


def no_record_yet(file: Path) -> RunFileError:
    """For a file without a single whole line."""
    return RunFileError(
        f"{str(file)!r} holds no complete record yet: the run has just begun or was cut off at its very start, or "
        "this is not a run file."
    )
