"""`gradient-flow check`: a pre-flight check of a model."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout

import click

from gradient_flow.commands.terminal import console, fail_on_option, json_option, write_json


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=1), help="Steps to run.")
@click.option(
    "--analyzer",
    type=click.Choice(["general", "recurrent", "transformer", "policy"]),
    default="general",
    show_default=True,
    help="What to look at beside the gradients: state dynamics, attention or exploration.",
)
@fail_on_option
@json_option
def check(target: str, steps: int, analyzer: str, fail_on: str, as_json: bool) -> None:
    """Pre-flight check of a model before it is trained.

    FUNCTION takes no arguments and returns (model, input_fn, loss_fn), or those and an optimizer: input_fn() gives a
    batch, loss_fn(output) the loss. With an optimizer the steps train. MODULE is importable from the current folder, or
    a file: train.py:setup.

    \b
    Exit status: 0  healthy, or nothing as grave as --fail-on
                 1  at least one issue of that severity
                 2  wrong usage, or the function failed

    Example: gradient-flow check train:setup --fail-on high --json
    """
    from gradient_flow.preflight import analyze
    from gradient_flow.severities import at_least
    from gradient_flow.show.terminal_text import issues_text, verdict_text
    from gradient_flow.targets import load_target, with_own_traceback

    shown = sys.stderr.isatty()
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what the model prints is no JSON
        setup = load_target(target)
        issues, statistics = with_own_traceback(
            lambda: analyze(*setup, kind=analyzer, steps=steps, progress=shown), "a step of the model failed"
        )
    failed = at_least(issues, fail_on)
    if as_json:
        told = {"target": target, "analyzer": analyzer, "steps": steps, "fail_on": fail_on, "failed": bool(failed)}
        write_json({**told, "issues": [issue.to_dict() for issue in issues]})
    else:
        out = console()
        many = "1 issue" if len(issues) == 1 else f"{len(issues)} issues"
        sentence = f"{many} in {steps} steps." if issues else f"Healthy: no issue found in {steps} steps."
        out.print(verdict_text(not failed, sentence, out.width))
        if issues:
            out.print()
            out.print(issues_text(issues, out.width))
        if statistics is not None:
            out.print()
            out.print(str(statistics))
    sys.exit(1 if failed else 0)
