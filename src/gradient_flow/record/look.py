"""`LookRecord`: what is recorded of some steps: the table of all tensors, update ratios, and what probes saw inside.

In the file a look is a line with its table, flat and quick to skip, and one line for each probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.errors import RunFileError
from gradient_flow.table import GradientTable
from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds
from gradient_flow.table.exponents import BINS, spread_out, trimmed

FLOAT_COLUMNS: Final = ("norm", "sum", "sum_abs", "min", "max")
"""Kept per tensor as fp32: seven digits, a quarter of the space. `norm` stands for the sum of squares, which would
leave the range of fp32 first."""
COUNT_COLUMNS: Final = ("zeros", "near_zero", "very_large", "nan", "inf", "neg_inf")
"""Whole numbers per tensor. One that is 0 for all tensors, as most are, stands as a single 0."""
BESIDE: Final = frozenset({"loop", "optimizer"})
"""Probes that show nothing of the inside of a network: what they saw is not counted as a look."""
_COUNTS: Final = [INDEX[name] for name in COUNT_COLUMNS]
_SQUARES: Final = INDEX["sum_sq"]
_FLOATS: Final = [_SQUARES, *(INDEX[name] for name in FLOAT_COLUMNS[1:])]
_EXTREMES: Final = [INDEX[name] for name in ("min", "max", "max_abs")]
_LARGEST: Final = float(np.finfo(np.float32).max)
_LARGEST_COUNT: Final = 2.0**53
_NULL: Final = {"min": math.inf, "max": -math.inf}
"""What null stands for: the extremes of a tensor without a finite element."""


@dataclass(kw_only=True)
class LookRecord:
    """A step seen closely."""

    step: int
    table: GradientTable | None = None
    update_ratio: NDArray[np.float64] | None = None
    """How far the step moved each tensor, relative to its size; NaN where not known. From a sample, up to 2.4 % off."""
    exponents: NDArray[np.float64] | None = None
    """How many elements of each tensor are of which power of two (tensors, 64), in some looks; `table/exponents.py`."""
    seen: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of a probe → what it found, as plain values."""

    def to_lines(self, known: Sequence[str]) -> list[dict[str, Any]]:
        """As lines of the run file. Names stand once in the file (`known`), in the header."""
        lines = [] if self.table is None else [table_line(self.step, self.table, known, self.update_ratio)]
        if lines and self.exponents is not None:
            lines[0]["exponents"] = [trimmed(row) for row in self.exponents]
        return lines + [seen_line(self.step, name, found) for name, found in self.seen.items()]


def seen_line(step: int, probe: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What a probe found, as a line of the run file."""
    return {"kind": "seen", "step": step, "probe": probe, "found": found}


def table_line(
    step: int, table: GradientTable, known: Sequence[str], ratios: NDArray[np.float64] | None
) -> dict[str, Any]:
    """The table of a step as a line. `rows` tells which of the known tensors are in it, null for all of them."""
    rows = table.rows
    line: dict[str, Any] = {"kind": "look", "step": step, "rows": _positions(table.names, known)}
    with np.errstate(over="ignore"):
        columns = rows.T.astype(np.float32, order="C")  # all at once: one by one they cost several times that
        line["norm"] = np.sqrt(rows[:, INDEX["sum_sq"]]).astype(np.float32)
        line |= {name: columns[INDEX[name]] for name in FLOAT_COLUMNS[1:]}
        if ratios is not None:
            line["update_ratio"] = np.asarray(ratios, dtype=np.float32)
    low, high, magnitude = (columns[position] for position in _EXTREMES)
    if (magnitude > np.maximum(np.abs(low), high)).any():  # complex: it does not follow from the extremes
        line["max_abs"] = magnitude
    for name, most in zip(COUNT_COLUMNS, columns[_COUNTS].max(axis=1, initial=0), strict=True):
        line[name] = _counts(rows[:, INDEX[name]]) if most else 0
    return line


def _counts(values: NDArray[np.float64]) -> NDArray[Any]:
    """As integers, which are shorter, unless a complex infinity counts half."""
    whole = values.astype(np.int64)
    return whole if (whole == values).all() else np.ascontiguousarray(values)


def _positions(names: tuple[str, ...], known: Sequence[str]) -> list[int] | None:
    if names == tuple(known):
        return None
    position = {name: at for at, name in enumerate(known)}
    return [position[name] for name in names]


class Tensors:
    """The parameters that a table is about, as one part of a file lists them: a resumed run may list others."""

    def __init__(self, parameters: Sequence[Mapping[str, Any]], order: Mapping[str, int]) -> None:
        self.names = [str(parameter["name"]) for parameter in parameters]
        self.positions = np.array([order[name] for name in self.names], dtype=np.intp)
        self.counts = np.array([_elements(parameter) for parameter in parameters], dtype=np.float64)
        # A complex element is two real numbers.
        self.widths = np.array([1.0 + str(p.get("dtype", "")).startswith("complex") for p in parameters])


def _elements(parameter: Mapping[str, Any]) -> float:
    shape = parameter.get("shape")
    return math.nan if shape is None else float(math.prod(shape))


class ReadTable:
    """A table line read back: `names`, `rows` by `COLUMNS`, `update_ratio`."""

    def __init__(self, line: Mapping[str, Any], tensors: Tensors) -> None:
        here = _here(line.get("rows"), len(tensors.names))
        self.names = tensors.names if here is None else [tensors.names[row] for row in here]
        which = slice(None) if here is None else np.array(here, dtype=np.intp)
        self.positions = tensors.positions[which]
        count = len(self.names)
        rows = self.rows = np.zeros((count, len(COLUMNS)))
        rows[:, _FLOATS] = floats = _floats(line, count).T
        rows[:, _SQUARES] = np.square(floats[:, 0])
        if np.isnan(floats).any():
            for name, null in _NULL.items():
                values = rows[:, INDEX[name]]
                values[np.isnan(values)] = null
        for name in COUNT_COLUMNS:
            if not _is_zero(line.get(name)):
                rows[:, INDEX[name]] = _column(line, name, count)
        rows[:, INDEX["count"]] = tensors.counts[which]
        bad = rows[:, INDEX["nan"]] + rows[:, INDEX["inf"]]
        rows[:, INDEX["parts"]] = (tensors.counts[which] - bad) * tensors.widths[which]
        if line.get("max_abs") is not None:
            rows[:, INDEX["max_abs"]] = _column(line, "max_abs", count)
        else:
            low, high = rows[:, INDEX["min"]], rows[:, INDEX["max"]]
            rows[:, INDEX["max_abs"]] = np.maximum(np.abs(low), np.abs(high))
        empty = rows[:, INDEX["parts"]] == 0
        if empty.any():
            rows[np.ix_(empty, _EXTREMES)] = EMPTY[_EXTREMES]
        self._exponents = line.get("exponents")
        has_ratio = line.get("update_ratio") is not None
        self.update_ratio = _column(line, "update_ratio", count) if has_ratio else np.full(count, np.nan)

    def exponents(self) -> NDArray[np.int64] | None:
        """The histograms of this look (tensors, 64), where it has some."""
        if self._exponents is None:
            return None
        try:
            if not isinstance(self._exponents, list) or len(self._exponents) != len(self.names):
                raise ValueError("not as many as tensors")
            return np.array([spread_out(found) for found in self._exponents]).reshape(-1, BINS)
        except ValueError as problem:
            raise RunFileError(
                f"The run file is damaged: `exponents` of a table must be a list of histograms ({problem})."
            ) from None

    def table(self, known: Sequence[str], thresholds: Thresholds) -> GradientTable:
        """As the table that was recorded. Its sums carry the seven digits that are kept per tensor."""
        present = set(self.names)
        missing = [name for name in known if name not in present]
        return GradientTable(self.names, self.rows, missing=missing, thresholds=thresholds)


def stacked(tables: Sequence[ReadTable], tensors: int) -> tuple[Rows, NDArray[np.float64]]:
    """Rows (tables, tensors, columns) and update ratios (tables, tensors). NaN is an absent tensor."""
    rows = np.full((len(tables), tensors, len(COLUMNS)), np.nan)
    ratios = np.full((len(tables), tensors), np.nan)
    for at, table in enumerate(tables):
        rows[at, table.positions], ratios[at, table.positions] = table.rows, table.update_ratio
    return rows, ratios


def _here(rows: Any, known: int) -> list[int] | None:
    if rows is None:
        return None
    if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < known for row in rows):
        raise RunFileError("The run file is damaged: `rows` of a table names tensors that are not in the header.")
    if len(set(rows)) != len(rows):
        raise RunFileError("The run file is damaged: `rows` of a table names a tensor twice.")
    return rows


def _floats(line: Mapping[str, Any], count: int) -> NDArray[np.float64]:
    """The `FLOAT_COLUMNS`: all at once, or, where something is wrong with one, that one by itself."""
    try:
        values = np.array([line[name] for name in FLOAT_COLUMNS], dtype=np.float64)
        if values.shape == (len(FLOAT_COLUMNS), count) and not (np.abs(values) > _LARGEST).any():
            return values
    except (KeyError, TypeError, ValueError, OverflowError):
        pass
    return np.array([_column(line, name, count) for name in FLOAT_COLUMNS])


def _is_zero(values: Any) -> bool:
    """Whether a single 0 stands for all."""
    return not isinstance(values, list) and bool(values == 0)


def _column(line: Mapping[str, Any], name: str, count: int) -> NDArray[np.float64]:
    """A list with null for NaN, or a single 0 for all; within the range of what is written there."""
    column = _numbers(line, name, count)
    with np.errstate(invalid="ignore"):
        low, high = (0.0, _LARGEST_COUNT) if name in COUNT_COLUMNS else (-_LARGEST, _LARGEST)
        if ((column < low) | (column > high)).any() or (name in COUNT_COLUMNS and np.isnan(column).any()):
            raise RunFileError(f"The run file is damaged: `{name}` of a table is out of range.")
    return column


def _numbers(line: Mapping[str, Any], name: str, count: int) -> NDArray[np.float64]:
    values = line.get(name)
    if _is_zero(values):
        return np.zeros(count)
    try:
        if not isinstance(values, list) or len(values) != count:
            raise ValueError("not as many as tensors")
        try:
            return np.fromiter(values, dtype=np.float64, count=count)  # half the time of `array`, but takes no null
        except TypeError:
            column = np.array(values, dtype=np.float64)
            if column.shape != (count,):
                raise ValueError("not a list of numbers") from None
            return column
    except (TypeError, ValueError, OverflowError) as problem:
        raise RunFileError(
            f"The run file is damaged: `{name}` of a table must be a list of numbers ({problem})."
        ) from None
