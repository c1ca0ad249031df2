"""`gradient-flow sql`: the runs of a folder, asked with SQL."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gradient_flow.cli.fleet import digests_option, read_fleet
from gradient_flow.cli.terminal import console
from gradient_flow.record.run_tables import csv_cell

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("query")
@click.argument("folder", default=".")
@click.option(
    "--to",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows to print.")
@click.option("--no-update", is_flag=True, help="Query the known digests; read no new runs.")
@digests_option
def sql(query: str, folder: str, to: str, limit: int, no_update: bool, digests: str | None) -> None:
    """Query the runs of a folder with SQL (DuckDB's dialect).

    FOLDER is the current one unless given. New and grown runs are read first.

    \b
    Tables: runs      a row per run: verdict, cause, loss, lr, settings
            issues    a row per issue
            layers    a row per run and layer: norms, update ratio
            settings  run, name, value, number

    \b
    Exit status: 0  answered
                 2  the query or the folder is wrong

    \b
    Example: gradient-flow sql "SELECT cause, count(*) FROM runs GROUP BY 1"
    """
    with read_fleet(folder, digests=digests, update=not no_update) as found:
        answer = found.sql(query)
    if to == "csv":
        _write_csv(answer)
    elif to == "json":
        _write_json(answer)
    else:
        _write_table(answer, limit)


def _write_csv(answer: Any) -> None:
    from pyarrow import csv  # type: ignore[import-untyped]  # ships no types

    csv.write_csv(_flat(answer), sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _write_json(answer: Any) -> None:
    """A list of objects, in portions: an answer may have a row per layer of very many runs."""
    import orjson

    out, first = sys.stdout.buffer, True
    out.write(b"[")
    for batch in answer.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            out.write((b"\n" if first else b",\n") + orjson.dumps(row, default=str))
            first = False
    out.write(b"\n]\n")
    out.flush()


def _write_table(answer: Any, limit: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from gradient_flow.report.terminal import one_line

    names = [one_line(field.name) for field in answer.schema]
    rows = [[_cell(v) for v in row.values()] for row in answer.slice(0, limit).to_pylist(maps_as_pydicts="lossy")]
    out = console()
    if _columns_fit(names, rows, out.width):
        table = Table(box=None, pad_edge=False, header_style="dim")
        for field, name in zip(answer.schema, names, strict=True):
            numeric = str(field.type).startswith(("int", "uint", "double", "float", "decimal"))
            table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        out.print(table)
    else:
        _write_records(names, rows, out)
    if answer.num_rows > limit:
        out.print(f"… {answer.num_rows - limit:,} more rows; --limit shows more, --to csv all.")


_NARROW: Final = 12
"""Columns below which a wrapped text is unreadable."""


def _columns_fit(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether each column is wide enough to be read; `SELECT * FROM runs` has over thirty."""
    from rich.cells import cell_len

    widest = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    return sum(min(each, _NARROW) + 1 for each in widest) - 1 <= width


def _write_records(names: Sequence[str], rows: Sequence[Sequence[str]], out: Console) -> None:
    """A line per value, an empty line between rows: for answers with more columns than the terminal holds."""
    from rich.table import Table
    from rich.text import Text

    for place, row in enumerate(rows):
        if place:
            out.print()
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, value in zip(names, row, strict=True):
            table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
        out.print(table)


def _cell(value: Any) -> str:
    from gradient_flow.report.terminal import one_line

    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


def _flat(answer: Any) -> Any:
    """Lists and maps as text, which CSV can hold; no text is a formula to a spreadsheet."""
    import pyarrow

    for at, field in enumerate(answer.schema):
        kind = field.type
        if pyarrow.types.is_nested(kind) or pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            texts = [None if value is None else csv_cell(str(value)) for value in answer.column(at).to_pylist()]
            answer = answer.set_column(at, field.name, pyarrow.array(texts, "large_string"))
    return answer.rename_columns([csv_cell(field.name) for field in answer.schema])
