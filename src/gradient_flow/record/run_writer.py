"""Writing a run: a folder with `run.jsonl`, one JSON line per record, each handed to the system at once.

`docs/run_file.md` describes the format. A record that reached the system survives the death of this process; a line
torn by the death of the machine is skipped on reading. Whatever goes wrong with the disk costs one warning and the rest
of the record, never the training.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gradient_flow.errors import GradientFlowWarning
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import INDEX

FORMAT_VERSION: Final = 1
FILE_NAME: Final = "run.jsonl"

FLOAT_COLUMNS: Final = ("norm", "sum", "sum_abs", "min", "max")
"""Kept per tensor as fp32: seven digits, a quarter of the space. `norm` stands for the sum of squares, which would
leave the range of fp32 first."""
COUNT_COLUMNS: Final = ("zeros", "near_zero", "very_large", "nan", "inf", "neg_inf")
"""Whole numbers per tensor. One that is 0 for all tensors, as most are, stands as a single 0."""
_COUNTS: Final = [INDEX[name] for name in COUNT_COLUMNS]


def encode(record: Mapping[str, Any]) -> bytes:
    """One record as strict JSON: NaN and Inf become null, arrays lists, and what JSON cannot hold its text."""
    try:
        return _json(record)
    except TypeError:  # one odd value, such as an integer beyond 64 bits, must not cost the record
        return _json({key: value if _is_json(value) else ascii(value) for key, value in record.items()})


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _is_json(value: Any) -> bool:
    try:
        _json(value)
    except TypeError:
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):  # those that orjson does not take: strided, of other types
        return value.tolist()
    if isinstance(value, (tuple, set)):
        return list(value)
    return str(value)


class RunWriter:
    """Appends records to the run file of a folder, which is created if need be."""

    def __init__(self, folder: str | Path, header: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        self._file: int | None = None
        self._guarded(self._open)
        self.write({"kind": "header", "format": FORMAT_VERSION, **header})

    @property
    def active(self) -> bool:
        """Whether records still reach the disk."""
        return self._file is not None

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record as one line."""
        if self._file is not None:
            self._guarded(lambda: self._append(encode(record) + b"\n"))

    def close(self) -> None:
        """Release the file; nothing is pending."""
        if self._file is not None:
            file, self._file = self._file, None
            self._guarded(lambda: os.close(file))

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            self._append(b"\n")  # an earlier process died within a line: ours must not be glued to it

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(f"{self.path} was removed")
        while line:
            line = line[os.write(self._file, line) :]

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, ValueError, TypeError) as problem:
            file, self._file = self._file, None
            if file is not None:
                with suppress(OSError):  # a full network disk may say so once more
                    os.close(file)
            warnings.warn(
                f"The run file {self.path} cannot be written any more ({problem}). Training goes on without it.",
                GradientFlowWarning,
                stacklevel=4,
            )


def layers_record(
    step: int, table: GradientTable, known: Sequence[str], extra: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """The per-tensor record of a step. Names and sizes stand once in the file (`known`); `rows` tells which are here,
    null for all of them."""
    rows = table.rows
    record: dict[str, Any] = {"kind": "layers", "step": step, "rows": _places(table.names, known)}
    with np.errstate(over="ignore"):
        columns = rows.T.astype(np.float32, order="C")  # all at once: one by one they cost several times that
        record["norm"] = np.sqrt(rows[:, INDEX["sum_sq"]]).astype(np.float32)
        record |= {name: columns[INDEX[name]] for name in FLOAT_COLUMNS[1:]}
        record |= {name: np.asarray(values, dtype=np.float32) for name, values in extra.items()}
    low, high, magnitude = (columns[INDEX[name]] for name in ("min", "max", "max_abs"))
    if (magnitude > np.maximum(np.abs(low), high)).any():  # complex: it does not follow from the extremes
        record["max_abs"] = magnitude
    for name, most in zip(COUNT_COLUMNS, columns[_COUNTS].max(axis=1, initial=0), strict=True):
        record[name] = _counts(rows[:, INDEX[name]]) if most else 0
    return record


def _counts(values: NDArray[np.float64]) -> NDArray[Any]:
    """As integers, which are shorter, unless a complex infinity counts half."""
    whole = values.astype(np.int64)
    return whole if (whole == values).all() else np.ascontiguousarray(values)


def _places(names: tuple[str, ...], known: Sequence[str]) -> list[int] | None:
    if names == tuple(known):
        return None
    place = {name: position for position, name in enumerate(known)}
    return [place[name] for name in names]
