"""A run as a table of rows, written as CSV, JSON or Parquet: row by row, and whole or not at all."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from gradient_flow.errors import InputError, MissingExtraError, RunFileError, check_choice
from gradient_flow.record.atomic import written_whole
from gradient_flow.record.look import COUNT_COLUMNS, FLOAT_COLUMNS
from gradient_flow.record.run import Run

FORMATS: Final = ("csv", "parquet", "json")
TABLES: Final = ("steps", "layers")
_BATCH: Final = 10_000
"""Rows per row group of a Parquet file."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First letters that make a spreadsheet evaluate a cell: the name of a layer could run a command."""

Row = dict[str, Any]


def columns_of(run: Run, what: str) -> list[str]:
    """The names of the columns: of steps whatever was recorded, of layers the statistics of a tensor."""
    check_choice("what", what, TABLES)
    if what == "steps":
        return list(run.names)
    first = next(_tables(run), {})
    extra = ["update_ratio"] if "update_ratio" in first else []
    return ["step", "layer", *FLOAT_COLUMNS, *COUNT_COLUMNS, *extra]


def rows_of(run: Run, what: str) -> Iterator[list[Row]]:
    """The rows, in portions: all steps of a thousand, or the layers of one table."""
    names = columns_of(run, what)
    if what == "layers":
        for record in _tables(run):
            columns = [record.get(name) or [None] * len(record["names"]) for name in names[2:]]
            yield [
                dict(zip(names, (record["step"], layer, *values), strict=True))
                for layer, *values in zip(record["names"], *columns, strict=True)
            ]
        return
    series = {name: run.series(name).tolist() for name in names}
    whole = {name for name, values in series.items() if all(map(_is_whole, values))}
    for start in range(0, len(run), 1000):
        part = {name: values[start : start + 1000] for name, values in series.items()}
        yield [
            {name: _plain(value, name in whole) for name, value in zip(names, values, strict=True)}
            for values in zip(*part.values(), strict=True)
        ]


def _tables(run: Run) -> Iterator[dict[str, Any]]:
    """The tables that can be read; the others are counted, as what is noted of the run then says."""
    for step in run.table_steps:
        try:
            yield run.layers(step)
        except RunFileError:
            run.discard_table(step)


def portions(run: Run, what: str) -> int:
    """How many portions `rows_of` gives."""
    return len(run.table_steps) if what == "layers" else math.ceil(len(run) / 1000)


def write_table(portions: Iterable[list[Row]], columns: list[str], to: str, out: Path | None) -> int:
    """Write rows as `csv`, `json` or `parquet` to a file, or with `out=None` to standard output; how many they were."""
    check_choice("to", to, FORMATS)
    if out is None and to == "parquet":
        raise InputError("`out` must be a file for Parquet, which cannot be written to a terminal or a pipe.")
    writer = {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet}[to]
    if out is None:
        return writer(portions, columns, sys.stdout.buffer)
    with written_whole(out) as file:
        return writer(portions, columns, file)


def _write_csv(portions: Iterable[list[Row]], columns: list[str], file: BinaryIO) -> int:
    count = 0
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({name: csv_cell(name) for name in columns})
    for rows in portions:
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
        count += len(rows)
    text.detach()
    return count


def csv_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula gets a quote in front; numbers are left alone."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _write_json(portions: Iterable[list[Row]], _columns: list[str], file: BinaryIO) -> int:
    count = 0
    file.write(b"[")
    for rows in portions:
        for row in rows:
            file.write((b",\n" if count else b"\n") + orjson.dumps(row))
            count += 1
    file.write(b"\n]\n")
    file.flush()
    return count


def _write_parquet(portions: Iterable[list[Row]], columns: list[str], file: BinaryIO) -> int:
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]  # ships no types
        from pyarrow import parquet
    except ImportError as problem:
        raise MissingExtraError("parquet") from problem
    kinds = {"step": arrow.int64(), "layer": arrow.string()}
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in columns])
    count, waiting = 0, list[Row]()
    with parquet.ParquetWriter(file, schema) as writer:
        for rows in portions:
            waiting += rows
            count += len(rows)
            if len(waiting) >= _BATCH:
                writer.write_table(arrow.Table.from_pylist(waiting, schema=schema))
                waiting = []
        writer.write_table(arrow.Table.from_pylist(waiting, schema=schema))
    return count


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and value == int(value) and abs(value) < 2**53


def _plain(value: float, whole: bool) -> float | int | None:
    return None if not math.isfinite(value) else int(value) if whole else value
