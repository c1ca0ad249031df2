"""`gradient-flow diagnose`: the verdict on a recorded run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gradient_flow.cli.run_path import RunPath
from gradient_flow.cli.terminal import console, fail_on_option, json_option, write_json, write_notes


@click.command()
@click.argument("run", type=RunPath())
@json_option
@fail_on_option
def diagnose(run: Path, as_json: bool, fail_on: str) -> None:
    """Say what is wrong with a run, since when, where, and what to do.

    RUN is a run folder, its run.jsonl, or a gradient_statistics.json of the Lightning callback. It may still be
    training.

    \b
    Exit status: 0  healthy, or no issue as severe as --fail-on
                 1  at least one issue of that severity, or an error ended the run
                 2  the run cannot be read, or holds no step

    Example: gradient-flow diagnose runs/exp1 --fail-on high
    """
    from gradient_flow.diagnosis.issue import at_least
    from gradient_flow.diagnosis.paragraphs import WIDEST, wrapped
    from gradient_flow.diagnosis.sources import as_run
    from gradient_flow.diagnosis.verdict import verdict
    from gradient_flow.errors import RunFileError
    from gradient_flow.report.data import readable
    from gradient_flow.report.terminal import issues_text, verdict_text

    recorded = as_run(run)
    found = verdict(recorded)
    if not found.steps:
        raise RunFileError(f"{str(run)!r} has no steps yet: there is nothing to diagnose.")
    failed = bool(at_least(found.issues, fail_on)) or (found.failed and fail_on != "never")
    notes = recorded.notes
    if as_json:
        ending = {} if found.ending is None else {"ending": found.ending.to_dict()}
        summary = {"run": readable(str(run)), "message": found.message, **ending, **found.to_dict()}
        write_json({**summary, "fail_on": fail_on, "failed": failed, "notes": notes})
    else:
        out = console()
        out.print(verdict_text(found.healthy, found.sentence, out.width))
        if found.stored_message is not None:
            out.print("\n".join(wrapped(found.stored_message, min(out.width, WIDEST))))
        if found.issues:
            out.print()
            out.print(issues_text(found.issues, out.width))
        write_notes(notes)
    sys.exit(1 if failed else 0)
