"""`gradient-flow compare`: what differs between runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gradient_flow.cli.run_path import RunPath
from gradient_flow.cli.terminal import console, json_option, write_json, write_notes


@click.command()
@click.argument("runs", metavar="RUN RUN...", type=RunPath(only_runs=True), nargs=-1)
@click.option("--layers", default=8, show_default=True, type=click.IntRange(min=1), help="Layers to list.")
@json_option
def compare(runs: tuple[Path, ...], layers: int, as_json: bool) -> None:
    """Say what differs between runs: settings, since which step, which layers, verdicts.

    All runs are compared with the first. Two series differ from the first step after which their ratio, smoothed by a
    running median of nine records, stays beyond six standard errors and 25% for four fifths of the rest. That does not
    depend on the scale of the loss, and another seed alone does not count. "first unequal" is the first step whose
    numbers differ at all.

    \b
    Exit status: 0  compared
                 2  a run cannot be read, or fewer than two were given

    Example: gradient-flow compare runs/before runs/after
    """
    from gradient_flow.errors import RunFileError
    from gradient_flow.record.run import load_run
    from gradient_flow.report.compare import compare_runs
    from gradient_flow.report.compare_text import comparison_tables
    from gradient_flow.report.data import readable

    if len(runs) < 2 or len({path.resolve() for path in runs}) < len(runs):
        raise click.UsageError("give two or more different runs: gradient-flow compare runs/before runs/after")
    read = {str(path): load_run(path) for path in runs}
    for name, run in read.items():
        if not len(run):
            raise RunFileError(f"{name!r} has no steps yet: there is nothing to compare.")
    found = compare_runs(read)
    if as_json:
        write_json(replace(found, names=[readable(name) for name in found.names]).to_dict())
    else:
        out = console()
        for part in comparison_tables(found, out.width, layers):
            out.print(part)
    write_notes(f"{name}: {note}" for name, run in read.items() for note in run.notes)
