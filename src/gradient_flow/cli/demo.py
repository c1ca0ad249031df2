"""`gradient-flow demo`: models that train well or go wrong in a known way."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gradient_flow.cli.terminal import console
from gradient_flow.demo.cases import CASES, SHOWN


def _list(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    for case in CASES.values():
        click.echo(f"{'*' if case.name in SHOWN else ' '} {case.name:<12}{case.title}")
    click.echo("\nWithout --fault, the cases marked * are trained.")
    context.exit()


@click.command()
@click.option(
    "--fault", "faults", multiple=True, type=click.Choice(list(CASES)), help="Train this case; can be repeated."
)
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List all cases.")
@click.option("--steps", type=click.IntRange(min=30), help="Training steps per case.  [default: 80 to 120]")
@click.option("--seed", default=0, show_default=True, help="Seed for data and initial weights.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gradient-flow-demo"),
    show_default=True,
    help="Folder for the runs and their reports.",
)
def demo(faults: tuple[str, ...], steps: int | None, seed: int, out: Path) -> None:
    """Train small models, healthy and sick, and diagnose them live.

    Four of them, in well under a minute: a healthy transformer, a deep stack of sigmoids, a loss that turns NaN at a
    planted operation, and attention whose entropy collapses. Each is really trained and watched, and judged by
    the same rules as your own runs.

    \b
    Exit status: 0  all verdicts are correct
                 1  one is wrong
                 2  wrong usage

    Example: gradient-flow demo --fault nan --fault spike --seed 3
    """
    from gradient_flow.demo.show import perform
    from gradient_flow.report.write import write_report

    screen = console()
    names = tuple(dict.fromkeys(faults)) or SHOWN
    outcomes = perform(names, out, seed=seed, steps=steps, console=screen)
    wrong = [outcome.case.name for outcome in outcomes if not outcome.right]
    screen.print()
    if wrong:
        screen.print(f"Wrong verdicts: {', '.join(wrong)}.", style="bold red")
    else:
        many = f"All {len(outcomes)} verdicts are" if len(outcomes) > 1 else "The verdict is"
        screen.print(f"{many} correct.", style="bold green")
    screen.print("\nOpen the reports in a browser:")
    for outcome in outcomes:
        screen.print(f"  {write_report(outcome.folder)}", soft_wrap=True)
    sick = next((outcome for outcome in outcomes if outcome.main is not None), outcomes[-1])
    screen.print(f"Next:\n  gradient-flow tail --once {sick.folder}", soft_wrap=True)
    screen.print(f"  gradient-flow diagnose {sick.folder}", soft_wrap=True)
    if {"healthy", "attention"} <= {*names}:  # the same network and data, but for the fault
        screen.print(f"  gradient-flow compare {out / 'healthy'} {out / 'attention'}", soft_wrap=True)
    sys.exit(1 if wrong else 0)
