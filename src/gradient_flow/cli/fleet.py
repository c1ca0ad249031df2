"""`gradient-flow fleet`: all runs of a folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gradient_flow.cli.terminal import console, fail_on_option, json_option, write_json

if TYPE_CHECKING:
    from gradient_flow.fleets.fleet import Fleet

digests_option = click.option(
    "--digests", metavar="FOLDER", help="Where digests are kept.  [default: FOLDER/.gradient-flow]"
)


@click.command()
@click.argument("folder")
@click.option(
    "--find", default="", metavar="TEXT", help='List only runs that match: words, or conditions such as "lr > 0.003".'
)
@click.option(
    "--sort",
    type=click.Choice(["verdict", "run", "since", "loss", "lr", "steps", "seconds", "started", "state"]),
    default="verdict",
    show_default=True,
    metavar="COLUMN",
    help="verdict, run, since, loss, lr, steps, seconds, started or state.",
)
@click.option("--limit", type=click.IntRange(min=0), help="Runs to list.  [default: 20; with --json 1000]")
@json_option
@fail_on_option
@click.option("--workers", type=click.IntRange(min=0), help="Worker processes.  [default: one per core]")
@click.option("--ray", is_flag=True, help="Read on a Ray cluster: that of RAY_ADDRESS, or a local one.")
@click.option("--shard", metavar="I/N", help="Read only this share of the runs, for job arrays: 2/8.")
@digests_option
def fleet(
    folder: str,
    find: str,
    sort: str,
    limit: int | None,
    as_json: bool,
    fail_on: str,
    workers: int | None,
    ray: bool,
    shard: str | None,
    digests: str | None,
) -> None:
    """Find the sick runs of a folder: what ails them, where, since when, and which settings go with it.

    FOLDER has runs at any depth; it may be an address such as s3://bucket/runs. Only files that are new or have grown
    since the last time are read. Files that are not runs are listed with the reason.

    \b
    Exit status: 0  no run is as sick as --fail-on
                 1  at least one is, or ended with an error
                 2  wrong usage, or the folder holds no run

    Example: gradient-flow fleet runs --find "vanish" --fail-on high
    """
    from gradient_flow.errors import RunFileError
    from gradient_flow.fleets.fleet import MOST_LISTED

    with read_fleet(folder, digests=digests, workers=workers, ray=ray, shard=shard) as found:
        if not len(found) and shard is None:
            raise RunFileError(f"There is no run in {folder!r}: no folder in it has a run.jsonl.")
        failing = found.failing(fail_on)
        if as_json:
            most = MOST_LISTED if limit is None else limit
            write_json(found.to_dict(limit=most, find=find, sort=sort, fail_on=fail_on))
        else:
            from gradient_flow.report.fleet_text import fleet_text

            out = console()
            for part in fleet_text(found, out.width, find=find, sort=sort, limit=20 if limit is None else limit):
                out.print(part)
    sys.exit(1 if failing else 0)


def read_fleet(
    folder: str,
    *,
    digests: str | None,
    workers: int | None = None,
    ray: bool = False,
    shard: str | None = None,
    update: bool = True,
) -> Fleet:
    """The fleet of a folder, with a bar on standard error while runs are read."""
    from gradient_flow.fleets.fleet import fleet as of_folder

    if not sys.stderr.isatty():
        return of_folder(folder, digests=digests, workers=workers, ray=ray, shard=shard, update=update)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Reading runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return of_folder(
            folder, digests=digests, workers=workers, ray=ray, shard=shard, update=update, progress=report_progress
        )
