"""The demo as a person sees it: progress while models train, then the verdicts, then where to look further."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from gradient_flow.demo.cases import CASES, Case
from gradient_flow.demo.performance import Outcome, train
from gradient_flow.diagnosis.paragraphs import wrapped
from gradient_flow.diagnosis.words import plain
from gradient_flow.errors import InputError
from gradient_flow.record.export import write_json
from gradient_flow.record.run_lines import FILE_NAME
from gradient_flow.report.terminal import issue_text, short_issue, sparkline

MARK: Final = "demo.json"
"""Lies in the folders that the demo wrote, and may write again."""
_INDENT: Final = 4


def perform(names: Sequence[str], folder: Path, *, seed: int, steps: int | None, console: Console) -> list[Outcome]:
    """Train the cases one after the other, show progress and then the verdicts; each has a folder of its own."""
    cases = [CASES[name] for name in names]
    for case in cases:
        _make_room(folder / case.name)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    outcomes = []
    with Progress(*columns, console=console, refresh_per_second=8) as progress:
        tasks = [progress.add_task(f"{case.name:<10}", total=steps or case.steps, loss="") for case in cases]
        for case, task in zip(cases, tasks, strict=True):
            outcomes.append(_train(case, folder / case.name, seed, steps, progress, task))
    for outcome in outcomes:
        console.print()
        console.print(verdict(outcome, console.width))
    return outcomes


def verdict(outcome: Outcome, width: int) -> Text:
    """What was planted, what was found, and whether it is the same."""
    case, main, width = outcome.case, outcome.main, width - _INDENT
    text = Text()
    text.append("✔ " if outcome.right else "✘ ", style="bold green" if outcome.right else "bold red")
    text.append(f"{case.name}", style="bold")
    text.append(f"  {case.title}\n")
    lines = [Text("\n".join(wrapped(_course(outcome), width)), style="dim")]
    if main is None:
        sentence = str(outcome.diagnosis).partition("\n")[0]
        lines.append(Text("\n".join(wrapped(sentence, width)), style="green"))
    else:
        lines.append(issue_text(main, width))
        lines += [line for issue in outcome.diagnosis if issue is not main for line in short_issue(issue, width, 3)]
    if not outcome.right:
        planted = "nothing" if case.expected is None else case.expected.name
        lines.append(Text(f"Planted was {planted}: this verdict is wrong.", style="bold red"))
    body = Text("\n").join(lines)
    return text + Text("\n").join([Text(" " * _INDENT) + line for line in body.split("\n")])


def _course(outcome: Outcome) -> str:
    losses = outcome.losses
    return f"loss {plain(losses[0])} {sparkline(losses, 30)} {plain(losses[-1])}"


def _train(case: Case, folder: Path, seed: int, steps: int | None, progress: Progress, task: TaskID) -> Outcome:
    def tell(step: int, loss: float) -> None:
        progress.update(task, completed=step, loss=f"loss {loss:.3f}")

    outcome = train(case, folder, seed=seed, steps=steps, tell=tell)
    about = {"case": case.name, "seed": seed, "right": outcome.right, "verdict": outcome.diagnosis.to_dict()}
    write_json(folder / MARK, about)
    return outcome


def _make_room(folder: Path) -> None:
    """Take away the run of an earlier demo; refuse to touch anything else."""
    if not (folder / FILE_NAME).exists():
        return
    if not (folder / MARK).exists():
        raise InputError(f"`--out`: {str(folder)!r} holds a run that is not of the demo. Give another folder.")
    (folder / FILE_NAME).unlink()
