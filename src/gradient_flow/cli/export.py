"""`gradient-flow export`: a run as a table for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from gradient_flow.cli.run_path import RunPath
from gradient_flow.cli.terminal import console, write_notes


@click.command()
@click.argument("run", type=RunPath(only_runs=True))
@click.option("--to", type=click.Choice(["csv", "parquet", "json"]), required=True, help="File format.")
@click.option(
    "--what",
    type=click.Choice(["steps", "layers"]),
    default="steps",
    show_default=True,
    help="One row per step, or one per tensor and recorded table.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="File, or - for standard output.  [default: RUN/<what>.<to>]"
)
def export(run: Path, to: str, what: str, out: str | None) -> None:
    """Write a run as a table: CSV, Parquet or JSON.

    Non-finite values are empty in CSV and null elsewhere. The file is replaced as a whole or not at all. Parquet needs
    the package pyarrow.

    \b
    Exit status: 0  written
                 2  the run cannot be read, or the file cannot be written

    Example: gradient-flow export runs/exp1 --to csv --what layers --out layers.csv
    """
    from rich.progress import track

    from gradient_flow.errors import RunFileError
    from gradient_flow.record.run import load_run
    from gradient_flow.record.run_tables import columns_of, portions, rows_of, write_table

    recorded = load_run(run)
    many = portions(recorded, what)
    if not many:
        missing = "steps" if what == "steps" else "per-tensor tables"
        raise RunFileError(f"{str(run)!r} has no {missing} yet: there is nothing to export.")
    target = None if out == "-" else Path(out) if out else recorded.path.parent / f"{what}.{to}"
    err = console(err=True)
    rows = track(rows_of(recorded, what), "Writing", many, console=err, transient=True, disable=not err.is_terminal)
    try:
        count = write_table(rows, columns_of(recorded, what), to, target)
    except BrokenPipeError:
        raise
    except OSError as problem:
        where = "standard output" if target is None else repr(str(target))
        raise RunFileError(f"{where} cannot be written ({problem.strerror}).") from problem
    if target is not None:
        click.echo(f"{count:,} rows in {click.format_filename(target)}")
    write_notes(recorded.notes)
