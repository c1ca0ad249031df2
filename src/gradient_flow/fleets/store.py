"""Digests on disk: Parquet files that are added, never changed, so that a crash costs no more than the last few runs.

A part is three files, `runs`, `issues` and `layers`, and counts once its `runs` is there, which is written last. Of a
run that is in several parts, as it has grown since, the newest counts. Several processes may add parts at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

from gradient_flow.errors import MissingExtraError, RunFileError
from gradient_flow.fleets.digest import DIGEST, Digest
from gradient_flow.fleets.sources import Found, is_remote
from gradient_flow.record.atomic import written_whole

FOLDER: Final = ".gradient-flow"
"""Where the digests of a folder lie, below it."""
TABLES: Final = ("issues", "layers", "runs")
"""The files of a part, in the order in which they are written."""
PART_RUNS: Final = 256
"""Runs after which a part is written: as many digests a crash can cost."""
PART_ROWS: Final = 50_000
"""Rows of layers after which it is written, however few runs they are: what waits takes memory."""
MANY_PARTS: Final = 64
"""With this many parts they are merged into one."""
_LOCK: Final = "lock"
_NUMBERS: Final = count()

_TEXT, _WHOLE, _NUMBER, _FLAG = "string", "int64", "float64", "bool_"
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "runs": {
        "run": _TEXT,
        "state": _TEXT,
        "healthy": _FLAG,
        "verdict": _TEXT,
        "type": _TEXT,
        "cause": _TEXT,
        "severity": _TEXT,
        "layer": _TEXT,
        "since": _WHOLE,
        "issues": _WHOLE,
        "loss_first": _NUMBER,
        "loss": _NUMBER,
        "loss_best": _NUMBER,
        "norm": _NUMBER,
        "norm_max": _NUMBER,
        "lr": _NUMBER,
        "lr_max": _NUMBER,
        "steps": _WHOLE,
        "last_step": _WHOLE,
        "seconds": _NUMBER,
        "started": _TEXT,
        "looks": _WHOLE,
        "tables": _WHOLE,
        "tensors": _WHOLE,
        "elements": _WHOLE,
        "nonfinite_steps": _WHOLE,
        "error": _TEXT,
        "message": _TEXT,
        "problem": _TEXT,
        "notes": _TEXT,
        "settings": "map",
        "size": _WHOLE,
        "changed": _WHOLE,
        "rules": _TEXT,
        "digest": _WHOLE,
        "digested": _WHOLE,
    },
    "issues": {
        "run": _TEXT,
        "place": _WHOLE,
        "type": _TEXT,
        "cause": _TEXT,
        "severity": _TEXT,
        "layer": _TEXT,
        "since": _WHOLE,
        "message": _TEXT,
        "reason": _TEXT,
        "advice": _TEXT,
        "consequences": _WHOLE,
        "rule": _TEXT,
    },
    "layers": {
        "run": _TEXT,
        "place": _WHOLE,
        "layer": _TEXT,
        "elements": _WHOLE,
        "norm_first": _NUMBER,
        "norm": _NUMBER,
        "norm_median": _NUMBER,
        "norm_max": _NUMBER,
        "update_ratio": _NUMBER,
        "tables": _WHOLE,
        "nonfinite": _WHOLE,
    },
}
"""Table → column → type."""


def arrow() -> Any:
    """PyArrow with its Parquet part, or what to install."""
    try:
        import pyarrow  # type: ignore[import-untyped]  # ships no types
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingExtraError("fleet") from missing
    return pyarrow


def home_of(folder: str | Path) -> Path:
    """Where the digests of a folder are kept by default: in it, or, if it cannot be written to, in a cache.

    The cache is `XDG_CACHE_HOME` or `~/.cache`.
    """
    if not is_remote(folder):
        root = Path(folder)
        root = root.parent if root.is_file() else root
        if os.access(root / FOLDER if (root / FOLDER).exists() else root, os.W_OK):
            return root / FOLDER
        folder = root.resolve()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "gradient-flow" / sha256(os.fsencode(str(folder).rstrip("/"))).hexdigest()[:16]


class Store:
    """The digests of a folder of runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._whole: set[str] = set()
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RunFileError(
                f"`digests` must be a folder that can be written to; {str(home)!r} cannot be made ({problem.strerror})."
            ) from problem

    def parts(self) -> list[str]:
        """The parts that are whole, the oldest first. One that the disk has damaged does not count."""
        parquet = arrow().parquet
        found = []
        for name in sorted(os.listdir(self.home)):
            part, dot, rest = name.partition(".")
            if not (part and dot and rest == "runs.parquet"):
                continue
            with suppress(OSError, ValueError, arrow().ArrowException):
                for table in () if part in self._whole else TABLES:  # never changed once written: looked at once
                    parquet.read_metadata(self.path(part, table))
                found.append(part)
        self._whole = set(found)
        return found

    def path(self, part: str, table: str) -> Path:
        """The file of a table."""
        return self.home / f"{part}.{table}.parquet"

    def add(self, rows: Sequence[tuple[Found, Digest]], rules: str) -> None:
        """Write digests as a part."""
        pyarrow, now = arrow(), time.time_ns()
        tables: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
        for found, made in rows:
            size = -1 if made.get("again") else found.size
            beside = {"size": size, "changed": found.changed, "rules": rules, "digest": DIGEST, "digested": now}
            settings = list((made["run"].get("settings") or {}).items())
            tables["runs"].append({**made["run"], "run": found.name, **beside, "settings": settings})
            tables["issues"] += [{"run": found.name, **issue} for issue in made["issues"]]
        try:
            part = f"{now:020d}-{os.getpid()}-{next(_NUMBERS)}"
            for table in TABLES:
                schema = schema_of(table)
                content = (
                    _of_layers(rows, schema)
                    if table == "layers"
                    else pyarrow.Table.from_pylist(tables[table], schema=schema)
                )
                with written_whole(self.path(part, table)) as file:
                    pyarrow.parquet.write_table(content, file, compression="zstd")
        except OSError as problem:
            raise RunFileError(
                f"The digests cannot be written to {str(self.home)!r} ({problem.strerror}). `digests` takes another "
                "folder."
            ) from problem

    def remove(self, parts: Sequence[str]) -> None:
        """Take parts away; first what makes them count."""
        for part in parts:
            for table in reversed(TABLES):
                with suppress(OSError):
                    self.path(part, table).unlink()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process is putting parts together now, for as long as the block lasts."""
        try:
            import fcntl
        except ImportError:  # Windows has no such lock
            yield False
            return
        handle = os.open(self.home / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)


def schema_of(table: str) -> Any:
    """The Arrow schema of a table."""
    pyarrow = arrow()
    kinds = {"map": pyarrow.map_(pyarrow.string(), pyarrow.string())}
    return pyarrow.schema(
        [(name, kinds.get(kind) or getattr(pyarrow, kind)()) for name, kind in COLUMNS[table].items()]
    )


def _of_layers(rows: Sequence[tuple[Found, Digest]], schema: Any) -> Any:
    """Column by column: they are nearly all of the rows."""
    pyarrow = arrow()
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS["layers"]}
    for found, made in rows:
        layers = made["layers"]
        columns["run"] += [found.name] * len(layers.get("layer", ()))
        for name, values in layers.items():
            columns[name] += values
    return pyarrow.table({name: pyarrow.array(columns[name], schema.field(name).type) for name in columns})
