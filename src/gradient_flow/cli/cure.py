"""`gradient-flow cure`: fixes tried on a model before they are advised."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout

import click

from gradient_flow.cli.check import load_target, with_own_traceback
from gradient_flow.cli.terminal import console, json_option, write_json


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--steps", type=click.IntRange(min=8), help="Steps of a full trial. [default: what fits the budget]")
@click.option(
    "--budget",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Time limit in seconds.",
)
@click.option("--fresh", is_flag=True, help="The weights are new: also try treatments that overwrite them.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Random seed.")
@json_option
def cure(target: str, steps: int | None, budget: float, fresh: bool, seed: int, as_json: bool) -> None:
    """Try fixes on a model, and say which one helps beyond noise.

    FUNCTION is that of `gradient-flow check`: it takes no arguments and returns (model, input_fn, loss_fn), or those
    and an optimizer. Every fix trains the model for a short while on the same batches; its loss on other batches is
    compared with that of no treatment, which is repeated for the noise.

    \b
    Exit status: 0  a fix helped, or there is nothing to cure but the speed
                 1  the model is sick and nothing helped
                 2  wrong usage, or the function failed

    Example: gradient-flow cure train:setup --fresh
    """
    from gradient_flow.cures.cure import cure as try_fixes
    from gradient_flow.diagnosis.paragraphs import harmless
    from gradient_flow.report.terminal import issues_text

    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what the model prints is no JSON
        model, input_fn, loss_fn, *more = load_target(target)
        optimizer = more[0] if more else None
        with _progress() as progress:
            found = with_own_traceback(
                lambda: try_fixes(
                    model,
                    input_fn,
                    loss_fn,
                    optimizer,
                    steps=steps,
                    budget=budget,
                    fresh=fresh,
                    seed=seed,
                    progress=progress,
                ),
                "a step of the model failed",
            )
    if as_json:
        write_json({"target": target, **found.to_dict()})
    else:
        out = console()
        out.print(harmless(str(found)), soft_wrap=True)
        if found.issues:
            out.print()
            out.print(issues_text(found.issues, out.width))
    sys.exit(1 if found.symptoms and found.best is None and found.remark is None else 0)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bars:
        bar = bars.add_task("drawing batches", total=None)
        yield lambda what, done, most: bars.update(bar, description=what, completed=done, total=most)
