"""Writing a run: a folder with `run.jsonl`, one JSON line per record, each handed to the system at once.

`docs/run_file.md` describes the format. A line that reached the system survives the death of this process; a line torn
by the death of the machine is skipped on reading. Whatever goes wrong with the disk costs one warning and the rest of
the file, never the training. Where the file system is slow, a thread writes behind the training.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from gradient_flow.errors import warn
from gradient_flow.record.run_lines import FILE_NAME, FORMAT_VERSION, encode, newest_part, part_path

Given = TypeVar("Given")

SPLIT: Final = 1 << 30
"""Bytes after which a run goes on in another file."""
SLOW: Final = 0.02
"""Seconds: a write that takes longer moves writing into a thread, so that no further step waits for the disk."""
_CHECK_EVERY: Final = 0.1
"""Seconds after which it is asked again whether the file is still there: to ask costs as much as to write a line."""
_MOST_WAITING: Final = 1 << 26
"""Bytes that may wait for a slow disk; beyond that a step waits, so that memory stays bounded."""
MOST_NUMBERED: Final = 10_000
_TRIES: Final = 3
_A_MOMENT: Final = 0.005
"""Seconds between two tries to take the lock of a run."""


class RunWriter:
    """Appends records to the run file of a folder, which is created if need be.

    Args:
        again: what to do with a folder that has a run already: `"append"` goes on in it, `"number"` writes to
            `folder-2`, `folder-3`. A folder that another process is writing to is always numbered.
        split: bytes after which the run goes on in another file of the folder.
    """

    def __init__(
        self, folder: str | Path, header: Mapping[str, Any], *, again: str = "append", split: int = SPLIT
    ) -> None:
        self.wanted = Path(folder).absolute()
        self.folder = self.wanted
        self._split, self._part, self._written = split, 0, 0
        self._checked = -math.inf
        self._file: int | None = None
        self._lock: int | None = None
        self._pid = os.getpid()
        self._behind: _Behind | None = None
        self._guarded(self._open, again)
        self.write({"kind": "header", "format": FORMAT_VERSION, **header})

    @property
    def path(self) -> Path:
        """The first file of the run."""
        return self.folder / FILE_NAME

    @property
    def active(self) -> bool:
        """Whether records still reach the disk."""
        if self._file is not None and os.getpid() == self._pid:
            self._guarded(self._check, self._file)
        return self._file is not None

    def write(self, *records: Mapping[str, Any]) -> None:
        """Append records, a line each, handed to the system together."""
        if self._file is None or os.getpid() != self._pid:  # a forked child must not write into its parent's run
            return
        line = b"\n".join([*map(encode, records), b""])
        if self._behind is not None:
            self._behind.put(line)
            return
        start = time.monotonic()
        self._guarded(self._append, line)
        if time.monotonic() - start > SLOW and self._file is not None:
            self._behind = _Behind(partial(self._guarded, self._append))

    def flush(self) -> None:
        """Wait until every line has been handed to the system."""
        if self._behind is not None and os.getpid() == self._pid:
            self._behind.wait()

    def close(self) -> None:
        """Write what is waiting and release the file."""
        if os.getpid() == self._pid:
            if self._behind is not None:
                self._behind.close()
            if self._file is not None:
                self._guarded(self._check, self._file)  # said now, or never
        self._behind = None
        for name in ("_file", "_lock"):
            handle = getattr(self, name)
            setattr(self, name, None)
            if handle is not None:
                with suppress(OSError):
                    os.close(handle)

    def __del__(self) -> None:
        with suppress(Exception):  # a run that was dropped without `close()`: its lock must not outlive it
            self.close()

    def _open(self, again: str) -> None:
        for folder in _numbered(self.wanted):
            folder.mkdir(parents=True, exist_ok=True)
            # Only the folder that was asked for is continued; one that was numbered belongs to another run.
            continued = again == "append" and folder == self.wanted
            if not continued and _holds_a_run(folder):
                continue
            lock = _locked(folder)
            if lock is None:
                continue
            if not continued and _holds_a_run(folder):  # another process was quicker
                os.close(lock)
                continue
            self.folder, self._lock = folder, lock if lock >= 0 else None
            break
        if self.folder != self.wanted:
            warn(f"{self.wanted} is taken; this run is written to {self.folder}.", stacklevel=6)
        self._part, newest = newest_part(self.path)
        self._take(newest)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            self._append(b"\n")  # an earlier process died within a line: ours must not be glued to it

    @property
    def _handle(self) -> int:
        assert self._file is not None
        return self._file

    def _take(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._written = os.fstat(self._file).st_size

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        if time.monotonic() - self._checked > _CHECK_EVERY:
            self._check(self._file)
        if self._written + len(line) > self._split and self._written:
            os.close(self._file)
            self._part += 1
            self._take(part_path(self.path, self._part))
        self._written += len(line)
        while line:
            written = os.write(self._file, line)
            line = line[written:] if written < len(line) else b""

    def _check(self, file: int) -> None:
        self._checked = time.monotonic()
        if os.fstat(file).st_nlink == 0:
            raise FileNotFoundError(f"{self.path} was removed")

    def _guarded(self, action: Callable[[Given], None], given: Given) -> None:
        try:
            action(given)
        except (OSError, ValueError, TypeError) as problem:
            file, self._file = self._file, None
            if file is not None:
                with suppress(OSError):  # closing a file on a full network disk may raise again
                    os.close(file)
            warn(f"gradient_flow cannot write {self.path} any more ({problem}); training continues.", stacklevel=5)


class _Behind:
    """A thread that writes what waits; it ends when the writer closes."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._write = write
        self._waiting = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="gradient_flow writer", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Leave a line to the thread; waits only where too much is waiting already."""
        with self._changed:
            while self._waiting > _MOST_WAITING:
                self._changed.wait()
            self._waiting += len(line)
        self._queue.put(line)

    def wait(self) -> None:
        """Wait until the queue is empty."""
        with self._changed:
            while self._waiting:
                self._changed.wait()

    def close(self) -> None:
        """Write the rest and end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._write(line)
            finally:
                with self._changed:
                    self._waiting -= len(line)
                    self._changed.notify_all()


def _numbered(folder: Path) -> Iterator[Path]:
    """One by one: the first is nearly always free, and ten thousand paths take longer to make than all the rest."""
    yield folder
    for number in range(2, MOST_NUMBERED):
        yield folder.with_name(f"{folder.name}-{number}")


def _holds_a_run(folder: Path) -> bool:
    file = folder / FILE_NAME
    return file.exists() and file.stat().st_size > 0


def _locked(folder: Path) -> int | None:
    """A lock that the system releases when this process dies; None if another writer has it, -1 without locks."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return -1
    handle = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    for again in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if again + 1 < _TRIES:
                time.sleep(_A_MOMENT)  # a reader may just be asking whether there is a writer
        except OSError:  # a file system without locks: two writers cannot be told apart there
            os.close(handle)
            return -1
        else:
            return handle
    os.close(handle)
    return None
