"""What other tools say of the same loops: `python -m validation.peers [--half holdout] [--only 'loop/*']`.

A loop counts as found if a tool says anything of the weight of a warning about it, whatever that is: peers name no
causes of this kind, so more cannot be asked of them. The same counts as a false alarm on a healthy loop.
"""

from __future__ import annotations

import contextlib
import io
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from rich.progress import track

from validation.__main__ import chosen
from validation.adapter import as_program, watched
from validation.case import HALVES, Program
from validation.report import table
from validation.runner import Job, run
from validation.zoo import CASES

Told = bool
OFTEN = 0.5
"""A tool that judges single steps has spoken if it does so in this share of them."""


def ours(program: Program) -> Told:
    """`gradient_flow.watch`: an issue of MEDIUM or above."""
    return any(issue.severity.name != "LOW" for issue in watched(program))


def torchmortem(program: Program) -> Told:
    """`torchmortem.Autopsy` around the loop, told of each step and its loss."""
    from torchmortem import Autopsy, Severity

    autopsy = Autopsy(program.model, optimizer=_optimizers(program)[0])
    with (
        autopsy,
        _last_loss() as loss,
        _at_each_step(program, "register_step_post_hook", lambda: autopsy.step(loss=loss())),
    ):
        program.run()
    report = autopsy.get_report()
    return report is not None and any(finding.severity >= Severity.WARNING for finding in report.findings)


def torchdiag(program: Program) -> Told:
    """`torchdiag.check_gradients` before each step, as its page says."""
    import torchdiag as tool

    steps: list[bool] = []

    def look() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            found = tool.check_gradients(program.model)
        steps.append(any(layer["status"] != "OK" for layer in found.values()))

    with _at_each_step(program, "register_step_pre_hook", look):
        program.run()
    return bool(steps) and statistics.fmean(steps) >= OFTEN


Tool = Callable[[Program], Told]
TOOLS: dict[str, Tool] = {"gradient_flow": ours, "torchmortem": torchmortem, "torchdiag": torchdiag}


def _optimizers(program: Program) -> list[torch.optim.Optimizer]:
    given = program.optimizer
    return [given] if isinstance(given, torch.optim.Optimizer) else list(given or ())


@contextlib.contextmanager
def _at_each_step(program: Program, register: str, act: Callable[[], None]) -> Iterator[None]:
    hooks = [getattr(optimizer, register)(lambda *_: act()) for optimizer in _optimizers(program)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _last_loss() -> Iterator[Callable[[], float]]:
    """What `backward` was last called on: a user hands it over by hand."""
    last = [float("nan")]
    backward = torch.Tensor.backward

    def noted(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.numel() == 1:
            last[0] = float(self.detach())
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = noted  # type: ignore[method-assign]
    try:
        yield lambda: last[0]
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def judged(job: Job) -> tuple[str, dict[str, Told | None]]:
    """What each tool says of a loop; None where it ends it."""
    case, told = CASES[job[0]], dict[str, Told | None]()
    for name, tool in TOOLS.items():
        torch.manual_seed(job[1])
        made = case.make(job[1])
        try:
            told[name] = tool(made if isinstance(made, Program) else as_program(made))
        except ImportError:
            raise
        except Exception:  # a tool that ends the user's loop has told nothing
            told[name] = None
    return case.name, told


def summary(results: dict[str, dict[str, Told | None]]) -> str:
    """One row per tool."""
    sick = [name for name in results if CASES[name].sick]
    well = [name for name in results if not CASES[name].sick]

    def share(tool: str, names: list[str]) -> str:
        count = sum(bool(results[name][tool]) for name in names)
        return f"{100 * count / len(names):.1f} % ({count}/{len(names)})" if names else "–"

    rows = [
        [tool, share(tool, sick), share(tool, well), str(sum(results[name][tool] is None for name in results))]
        for tool in TOOLS
    ]
    return table(["", "Sick loops: says something", "Healthy loops: says something", "Ends the loop"], rows)


@click.command(help=__doc__)
@click.option("--half", type=click.Choice(HALVES), default="holdout", show_default=True)
@click.option("--only", default="loop/*", show_default=True, help="Names that fit this pattern.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--save", type=click.Path(path_type=Path), help="Also write the table to this file.")
def main(half: str, only: str, workers: int, save: Path | None) -> None:
    """Run every loop under every tool and print one table."""
    cases = chosen(half, only)
    if not cases:
        raise click.UsageError(f"no case of {half!r} fits {only!r}; python -m validation --list shows their names")
    jobs = [(case.name, 0) for case in cases]
    results = dict(track(run(judged, jobs, workers), "Peers", total=len(jobs)))
    text = f"{len(jobs)} loops of the half `{half}`, one seed\n\n{summary(results)}"
    click.echo(text)
    if save:
        save.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
