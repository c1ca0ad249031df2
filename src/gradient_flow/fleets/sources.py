"""Where the runs of a fleet lie: a folder of this machine or its network, or anything that fsspec can open."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from gradient_flow.errors import InputError, MissingExtraError, RunFileError
from gradient_flow.fleets.digest import Digest, digest, unreadable
from gradient_flow.record.run_folder import ITSELF, RunFile, run_files
from gradient_flow.record.run_lines import FILE_NAME, part_path

_REMOTE: Final = "://"


class Found(NamedTuple):
    """A run file that lies there, and what tells whether it has changed."""

    name: str
    """Path below the folder."""
    file: str
    size: int
    """Bytes, over all files of the run."""
    changed: int
    """When it changed last, in nanoseconds; of a bucket that does not tell, a number that changes with the content."""


def is_remote(folder: str | Path) -> bool:
    """Whether it is an address rather than a path: `s3://bucket/runs`."""
    return _REMOTE in str(folder)


def find_runs(folder: str | Path) -> Iterator[Found]:
    """Every run below a folder or an address."""
    if is_remote(folder):
        yield from _find_remote(str(folder))
        return
    root = Path(folder)
    if root.name == FILE_NAME and root.is_file():
        root = root.parent
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise RunFileError(f"`folder` must be a folder of runs, or an address such as s3://…; {str(folder)!r} {what}.")
    for run in run_files(root):
        size, changed = _state(run)
        yield Found(_text(root.resolve().name if run.name == ITSELF else run.name), run.path, size, changed)


def digest_of(file: str) -> Digest:
    """The digest of a run file, wherever it lies. A remote one is fetched, read and dropped."""
    if not is_remote(file):
        return digest(file)
    with tempfile.TemporaryDirectory(prefix="gradient-flow-") as folder:
        first = Path(folder, FILE_NAME)
        try:
            system, path = _system(file)
            for part in range(_parts(system, path)):
                system.get_file(_part(path, part), str(part_path(first, part)))
        except Exception as problem:  # each file system has errors of its own
            return unreadable(f"{file!r} cannot be fetched ({type(problem).__name__}: {problem}).", again=True)
        found = digest(first)
    if found["run"]["problem"]:
        found["run"]["problem"] = found["run"]["problem"].replace(str(first), file)
    return found


def of_shard(name: str, shard: tuple[int, int]) -> bool:
    """Whether a run is in the share `i` of `n`: the same on every machine and in every order.

    >>> sum(of_shard("runs/a", (i, 3)) for i in (1, 2, 3))
    1
    """
    return zlib.crc32(name.encode()) % shard[1] == shard[0] - 1


def parse_shard(text: str) -> tuple[int, int]:
    """`2/8` as numbers.

    >>> parse_shard("2/8")
    (2, 8)
    """
    first, slash, second = text.partition("/")
    digits = first.isascii() and first.isdigit() and second.isascii() and second.isdigit()
    if not (slash and digits and len(text) < 20 and 1 <= int(first) <= int(second)):
        raise InputError(f"`shard` must be i/n with 1 ≤ i ≤ n, such as 2/8 for the second of eight; got {text!r}.")
    return int(first), int(second)


def _state(run: RunFile) -> tuple[int, int]:
    """Bytes and time of the last change, over all files of a run."""
    size, changed, part = run.about.st_size, run.about.st_mtime_ns, 1
    while True:
        try:
            about = os.stat(_part(run.path, part))
        except OSError:
            return size, changed
        size, changed, part = size + about.st_size, max(changed, about.st_mtime_ns), part + 1


def _text(name: str) -> str:
    """A file name that UTF-8 can hold: other bytes as `\\udcff`, so that two names stay two."""
    return name.encode("utf-8", "backslashreplace").decode()


# ---- addresses --------------------------------------------------------------------------------------------------


def _system(address: str) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-untyped]  # ships no types
    except ImportError as missing:
        raise MissingExtraError("fleet") from missing
    system, path = fsspec.core.url_to_fs(address)
    return system, str(path)


def _find_remote(address: str) -> Iterator[Found]:
    try:
        system, root = _system(address)
        listed: dict[str, Any] = system.find(root, detail=True)
    except MissingExtraError:
        raise
    except ImportError as missing:  # fsspec names the package that a protocol needs
        raise RunFileError(f"`folder` {address!r} cannot be opened: {missing}.") from missing
    except Exception as problem:
        raise RunFileError(
            f"`folder` {address!r} cannot be listed ({type(problem).__name__}: {problem}). Check the address and the "
            "credentials of that service."
        ) from problem
    root = root.rstrip("/")
    for path in sorted(listed):
        if path.rpartition("/")[2] != FILE_NAME:
            continue
        parts = [listed[path]]
        while (more := _part(path, len(parts))) in listed:
            parts.append(listed[more])
        name = path.removeprefix(root).strip("/").removesuffix(FILE_NAME).rstrip("/")
        size = sum(int(part.get("size") or 0) for part in parts)
        last = root.rpartition("/")[2]
        yield Found(_text(name or last), system.unstrip_protocol(path), size, max(map(_changed, parts)))


def _changed(about: dict[str, Any]) -> int:
    for name in ("mtime", "LastModified", "last_modified", "updated", "modified", "created"):
        value = about.get(name)
        if isinstance(value, datetime):
            return int(value.timestamp() * 1e9)
        if isinstance(value, (int, float)):
            return int(value * 1e9)
    mark = about.get("ETag") or about.get("etag") or about.get("md5Hash") or ""
    return zlib.crc32(str(mark).encode())


def _part(path: str, part: int) -> str:
    return path if part == 0 else f"{path.removesuffix('.jsonl')}.{part + 1}.jsonl"


def _parts(system: Any, path: str) -> int:
    part = 1
    while system.exists(_part(path, part)):
        part += 1
    return part
