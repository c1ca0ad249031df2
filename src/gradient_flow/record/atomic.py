"""Files that are there as a whole or not at all: written beside the target, then moved over it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

_ENDING: Final = "unfinished"
_NUMBERS: Final = count()
"""Makes names unique: two threads may write the same file."""
_EARLIER_NAME: Final = re.compile(r"[a-z0-9_]{8}")
"""How earlier versions named some of these files: as `tempfile` does."""


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end, and is gone if there is no end.

    Readers of `path` see the old content or the new. What a process left behind that died while it wrote the same
    file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{next(_NUMBERS)}.{_ENDING}")
    try:
        with unfinished.open("wb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once, whole or not at all."""
    with written_whole(path) as file:
        file.write(content)


def _remove_leftovers(path: Path) -> None:
    beginning = f".{path.name}."
    with suppress(OSError):  # a folder that may not be listed may still be written to
        for name in os.listdir(path.parent):
            if name.startswith(beginning) and _is_leftover(name.removeprefix(beginning)):
                with suppress(OSError):
                    os.unlink(path.with_name(name))


def _is_leftover(rest: str) -> bool:
    if rest.endswith(_ENDING):
        writer = rest.partition(".")[0]
        return not (writer.isdecimal() and _is_alive(int(writer)))
    # Eight letters, no more: `.report.html.swp` is what an editor has open.
    return _EARLIER_NAME.fullmatch(rest) is not None


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere there is no harmless way to ask
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    return True
