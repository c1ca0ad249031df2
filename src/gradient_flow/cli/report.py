"""`gradient-flow report`: a run as one page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gradient_flow.cli.run_path import RunPath


@click.command()
@click.argument("run", type=RunPath(only_runs=True))
@click.option("--out", type=click.Path(), help="File or folder.  [default: RUN/report.<format>]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "json", "png", "txt"]),
    help="A page with charts (html), text (md, txt), data (json) or an overview (png).  "
    "[default: as --out ends, else html]",
)
@click.option("--open", "then_open", is_flag=True, help="Open the report when it is written.")
def report(run: Path, out: str | None, kind: str | None, then_open: bool) -> None:
    """Write a run as one page: verdict, issues with advice, gradient map, curves.

    The page is complete in itself: it opens from the file system and loads nothing from the network. RUN may still be
    training; the report then shows what is there.

    \b
    Exit status: 0  written
                 2  the run cannot be read, or the file cannot be written

    Example: gradient-flow report runs/exp1 --open
    """
    from gradient_flow.report.write import FORMATS, write_report

    ending = Path(out).suffix.lstrip(".").lower() if out is not None and not os.path.isdir(out) else ""
    if kind is None and ending and ending not in FORMATS:
        known = ", ".join(f".{each}" for each in FORMATS)
        raise click.BadParameter(f"must end in {known}; got {out!r}. Or say which with --format.", param_hint="'--out'")
    path = write_report(run, out, kind or ending or "html")
    click.echo(os.fsencode(path))  # as it is on the disk, for the next command: a path need not be text
    if then_open:
        click.launch(str(path))
