"""What the commands write with: text for a person, JSON for a machine, notes beside both."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


def console(*, err: bool = False) -> Console:
    """A console that neither highlights nor reads markup in data. It honours NO_COLOR and COLUMNS."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # a terminal that knows only ASCII gets a question mark, not a traceback

    return Console(stderr=err, highlight=False, markup=False, emoji=False)


def write_json(data: Mapping[str, Any]) -> None:
    """One object as strict JSON on standard output: what is not finite is null."""
    import orjson

    click.echo(orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())


def write_notes(notes: Iterable[str]) -> None:
    """What was noticed on reading, on standard error."""
    for note in notes:
        click.echo(f"note: {note}", err=True)


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["low", "medium", "high", "critical", "never"]),
    default="medium",
    show_default=True,
    help="Lowest severity that makes the exit status 1.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
