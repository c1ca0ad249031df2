"""`gradient-flow check`: a pre-flight check of a model."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from gradient_flow.cli.terminal import console, fail_on_option, json_option, write_json
from gradient_flow.errors import GradientFlowError, InputError


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option("--steps", default=20, show_default=True, type=click.IntRange(min=1), help="Steps to run.")
@click.option(
    "--analyzer",
    type=click.Choice(["general", "recurrent", "transformer", "policy"]),
    default="general",
    show_default=True,
    help="What to examine besides gradients: state dynamics, attention or exploration.",
)
@fail_on_option
@json_option
def check(target: str, steps: int, analyzer: str, fail_on: str, as_json: bool) -> None:
    """Check a model before you train it.

    FUNCTION takes no arguments and returns (model, input_fn, loss_fn), or those and an optimizer: input_fn() gives a
    batch, loss_fn(output) the loss. With an optimizer the steps train. MODULE is importable from the current folder, or
    a file: train.py:setup.

    \b
    Exit status: 0  healthy, or no issue as severe as --fail-on
                 1  at least one issue of that severity
                 2  wrong usage, or the function failed

    Example: gradient-flow check train:setup --fail-on high --json
    """
    from rich.text import Text

    from gradient_flow.diagnosis.issue import Diagnosis, at_least
    from gradient_flow.diagnosis.paragraphs import WIDEST, wrapped
    from gradient_flow.faces.preflight import analyze
    from gradient_flow.report.terminal import issues_text, verdict_text

    shown = sys.stderr.isatty()
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what the model prints is no JSON
        setup = load_target(target)
        issues, statistics = with_own_traceback(
            lambda: analyze(*setup, kind=analyzer, steps=steps, progress=shown), "a step of the model failed"
        )
    failed = at_least(issues, fail_on)
    if as_json:
        summary = {"target": target, "analyzer": analyzer, "steps": steps, "fail_on": fail_on, "failed": bool(failed)}
        unseen = {"not_judged": statistics} if isinstance(statistics, str) else {}
        write_json({**summary, **unseen, "issues": [issue.to_dict() for issue in issues]})
    else:
        out = console()
        out.print(verdict_text(not failed, Diagnosis(issues, steps=steps).in_short, out.width))
        if issues:
            out.print()
            out.print(issues_text(issues, out.width))
            out.print()
            out.print(f"To see which fix helps: gradient-flow cure {target}", soft_wrap=True)
        if isinstance(statistics, str):  # nothing of the kind was seen: silence would read as healthy
            out.print()
            reason = f"Not judged, {analyzer}: {statistics[:1].lower()}{statistics[1:]}"
            out.print(Text("\n".join(wrapped(reason, min(out.width, WIDEST))), style="yellow"))
        elif statistics is not None:
            out.print()
            out.print(str(statistics))
    sys.exit(1 if failed else 0)


_OURSELVES = str(Path(__file__).resolve().parents[1]) + os.sep
_IMPORTLIB = os.path.dirname(os.path.abspath(importlib.__file__)) + os.sep
_FORM = "`(model, input_fn, loss_fn)` or `(model, input_fn, loss_fn, optimizer)`"


def load_target(target: str) -> tuple[Any, ...]:
    """Import the module with the current folder first on the path, call the function, and check what it returns."""
    where, colon, name = target.rpartition(":")
    if not (colon and where and name):
        raise InputError(
            f"`MODULE:FUNCTION` must name both, such as `train:setup` or `train.py:setup`; got {target!r}."
        )
    function = getattr(_imported(where), name, None)
    if not callable(function):
        raise InputError(f"`MODULE:FUNCTION`: there is no function {name!r} in {where!r}.")
    return _checked(with_own_traceback(function, f"{target} failed"), target)


def _imported(where: str) -> Any:
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise InputError(f"`MODULE:FUNCTION`: there is no file {where!r} in {os.getcwd()!r}.")
        sys.path.insert(0, str(path.parent))  # as `python file.py` does
        return with_own_traceback(lambda: _from_file(path), f"{where} cannot be imported")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(where)
    except ImportError:  # of the package around it
        found = None
    if found is None:
        raise InputError(
            f"`MODULE:FUNCTION`: there is no module {where!r}, neither installed nor in {os.getcwd()!r}. "
            "For a file elsewhere give its path: path/to/file.py:function."
        )
    return with_own_traceback(lambda: importlib.import_module(where), f"{where} cannot be imported")


def _from_file(path: Path) -> Any:
    """The module of a file, also where another one of its name is loaded already: `json.py` beside Python's own."""
    loaded = sys.modules.get(path.stem)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if loaded is None or getattr(loaded, "__file__", None) == str(path) or spec is None or spec.loader is None:
        return importlib.import_module(path.stem)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_own_traceback(function: Callable[[], Any], what: str) -> Any:
    """What the function returns; if it fails, `InputError` with the user's frames of the traceback, without ours."""
    try:
        return function()
    except GradientFlowError:
        raise
    except (Exception, SystemExit) as problem:  # one that leaves with status 0 has not been found healthy
        frames = traceback.extract_tb(problem.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith((_OURSELVES, "<frozen", _IMPORTLIB))]
        lines = traceback.format_list(own) + traceback.format_exception_only(problem)
        raise InputError(f"{what}:\n{''.join(lines).rstrip()}") from problem


def _checked(found: Any, target: str) -> tuple[Any, ...]:
    if not isinstance(found, (tuple, list)) or len(found) not in (3, 4):
        came = f"{len(found)} values" if isinstance(found, (tuple, list)) else type(found).__name__
        raise InputError(f"{target} must return {_FORM}; got {came}.")
    return tuple(found)
