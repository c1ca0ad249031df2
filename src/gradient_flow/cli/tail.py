"""`gradient-flow tail`: a run in the terminal, while it trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradient_flow.cli.run_path import RunPath
from gradient_flow.cli.terminal import console, write_notes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradient_flow.report.live_run import LiveRun

_OLD_LINES = 10
_TICK = 0.1


@click.command()
@click.argument("run", type=RunPath(only_runs=True))
@click.option("--once", is_flag=True, help="Show the run once and exit.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds between updates."
)
def tail(run: Path, once: bool, interval: float) -> None:
    """Follow a run in the terminal: norm, loss and learning rate, layers by groups, latest issues.

    It works in any terminal, also over ssh, and adapts to its size. If the output is not a terminal, each step
    is one line. It ends with the run, or with Ctrl-C, which leaves the training alone.

    \b
    Exit status: 0    the run has ended, or --once
                 2    the run cannot be read
                 130  Ctrl-C

    Example: gradient-flow tail runs/exp1
    """
    from gradient_flow.report.live_run import LiveRun

    monitor, out = LiveRun(run), console()
    monitor.update()
    try:
        if once:
            monitor.judge()
            _print_whole(monitor, out)
        elif out.is_terminal and not out.is_dumb_terminal:
            _follow_live(monitor, out, interval)
        else:
            _follow_lines(monitor, interval)
    except KeyboardInterrupt:
        sys.exit(130)
    write_notes(monitor.run.notes)


def _picture(monitor: LiveRun, out: Console, height: int) -> Text:
    from gradient_flow.report.tail_data import view_of
    from gradient_flow.report.tail_view import view_text

    plain = not out.encoding.lower().startswith("utf")
    return view_text(view_of(monitor, str(monitor.run.path.parent)), out.width, height, ascii_only=plain)


def _print_whole(monitor: LiveRun, out: Console) -> None:
    out.print(_picture(monitor, out, 200), soft_wrap=True)


def _follow_live(monitor: LiveRun, out: Console, interval: float) -> None:
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while monitor.run.end is None:
            monitor.judge_beside()
            size = out.size
            live.update(_picture(monitor, out, size.height), refresh=True)
            until = time.monotonic() + interval
            while time.monotonic() < until and out.size == size:  # a new size is drawn at once
                time.sleep(_TICK)
            monitor.update()
    monitor.judge()
    _print_whole(monitor, out)


def _follow_lines(monitor: LiveRun, interval: float) -> None:
    from gradient_flow.report.tail_data import view_of
    from gradient_flow.report.tail_view import step_line

    shown, printed = None, set[str]()
    while True:
        view = view_of(monitor, "")
        after = [at for at, step in enumerate(view.steps) if shown is None or step > shown]
        for at in after[-_OLD_LINES:] if shown is None else after:
            click.echo(step_line(view, at))
        shown = view.steps[-1] if view.steps else shown
        ended = monitor.run.end is not None
        if ended:
            monitor.judge()
        else:
            monitor.judge_beside()
        _tell_issues(monitor, printed)
        if ended:
            return
        time.sleep(interval)
        monitor.update()


def _tell_issues(monitor: LiveRun, printed: set[str]) -> None:
    from gradient_flow.report.terminal import short_issue

    diagnosis = monitor.last_diagnosis
    for issue in diagnosis.issues if diagnosis is not None else ():
        which = f"{issue.issue_type} {issue.severity} {issue.layer}"
        if which not in printed:
            printed.add(which)
            click.echo(short_issue(issue, 200)[0].plain)
    if monitor.run.end is not None and diagnosis is not None:
        click.echo(diagnosis.sentence)
