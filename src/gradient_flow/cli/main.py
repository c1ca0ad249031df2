"""The `gradient-flow` command: a group whose commands are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Final

import click

from gradient_flow._version import __version__
from gradient_flow.errors import GradientFlowError

COMMANDS: Final = {
    "demo": "Train small models, healthy and sick, and diagnose them live.",
    "run": "Run an unmodified training script and watch every optimizer in it.",
    "check": "Check a model before you train it.",
    "cure": "Try fixes on a model, and say which one helps beyond noise.",
    "diagnose": "Say what is wrong with a run, since when, where, and what to do.",
    "report": "Write a run as one page: verdict, gradient map, curves.",
    "serve": "Show runs in the browser, live while they train.",
    "tail": "Follow a run in the terminal.",
    "compare": "Say what differs between runs, and since which step.",
    "fleet": "Find the sick runs of a folder, what ails them, and which settings go with it.",
    "sql": "Query the runs of a folder with SQL.",
    "export": "Write a run as a table: CSV, Parquet or JSON.",
    "completion": "Print the completion script for a shell.",
}
"""Name → what it does. Known here so that listing them imports none of them."""

_EPILOG: Final = """\b
Start with:  gradient-flow demo
Then:        gradient-flow run train.py

Exit status: 0 for success and for a healthy verdict, 1 where `diagnose`, `check` or `fleet` found issues or `cure` no
fix, 2 for wrong usage and for a run that cannot be read, 130 after Ctrl-C. NO_COLOR=1 switches colours off.
"""


INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, as shells have it."""


class LazyGroup(click.Group):
    """Imports `gradient_flow.cli.<name>` when the command of that name is used."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """In the order in which one needs them."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """The command, imported now."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"gradient_flow.cli.{name}"), name)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """As click does, and with the nearest name for one that does not exist."""
        near = list(_near(args[0]))
        if args[0] not in COMMANDS and near:
            context.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        """Run the command; what this package raises on purpose is a message, not a traceback."""
        try:
            return super().invoke(context)
        except GradientFlowError as problem:
            raise Unusable(str(problem)) from problem
        except KeyboardInterrupt:  # click would leave with 1, which here means that issues were found
            click.echo("\nAborted.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


class Unusable(click.ClickException):
    """What was given cannot be worked with."""

    exit_code = 2


def _near(name: str) -> Iterator[str]:
    from difflib import get_close_matches

    yield from (repr(each) for each in get_close_matches(name, COMMANDS, n=2))


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from gradient_flow.table import kernels

    click.echo(f"gradient-flow {__version__} (kernel: {kernels.describe()})")
    context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the kernel in use, and exit.",
)
def main() -> None:
    """Say which layer, since when, why and what to change when a training run goes wrong."""
