"""`python -m validation`: run the zoo through the tool, or verify its labels without the tool."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from validation.case import HALVES, PROGRAMS, TRAINING, Case
from validation.report import goals, listed, markdown
from validation.runner import Job, measure, measure_in_training, run, verify
from validation.score import Record, crashes, false_alarms, misplaced, misses, unexplained
from validation.zoo import CASES

RESULTS = Path(__file__).parent / "VALIDATION_RESULTS.md"
WAYS = ("analyzers", "watch")
"""Through which the zoo is run."""
console = Console()


def chosen(half: str, only: str | None) -> list[Case]:
    """Cases of a half whose name or class fits a pattern; a word without wildcards fits anywhere.

    "both" leaves out the programs that train: they are not for the analyzers, and are looked at once.
    """
    pattern = "*" if only is None else only if set("*?[") & set(only) else f"*{only}*"
    mine = (c for c in CASES.values() if c.half in (("tune", "holdout") if half == "both" else (half,)))
    return [c for c in mine if any(fnmatch.fnmatchcase(text, pattern.lower()) for text in (c.name, c.fault.lower()))]


def with_progress(title: str, work: Any, jobs: list[Job], workers: int) -> list[Any]:
    """Run jobs under a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(title, total=len(jobs))
        results = []
        for result in run(work, jobs, workers):
            results.append(result)
            progress.advance(bar)
    return results


def plain(record: Record) -> dict[str, Any]:
    """Turn a record into what JSON can hold."""
    fields = dataclasses.asdict(record)
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in fields.items() if k != "layers"}


def validate(
    jobs: list[Job], workers: int, json_path: Path | None, output: Path | None, through: str, longer: int = 1
) -> None:
    """Run the tool, print what went wrong, write the report."""
    started = time.perf_counter()
    runs = {way: run_through(way, jobs, workers, longer) for way in (WAYS if through == "both" else (through,))}
    seconds = time.perf_counter() - started
    sections = (
        ("Misses", misses),
        ("No cause", unexplained),
        ("Wrong layer", misplaced),
        ("False alarms", false_alarms),
        ("Crashes", crashes),
    )
    for way, records in runs.items():
        console.print(goals(records, way), markup=False, soft_wrap=True)
        for title, read in sections:
            console.print(listed(title, read(records)), markup=False, soft_wrap=True)
    if json_path:
        json_path.write_text(json.dumps([plain(r) for records in runs.values() for r in records], indent=1))
    if output:
        first, *others = runs.values()
        watched = others[0] if others else ()
        output.write_text(markdown(first, seconds, next(iter(runs)), watched))
        console.print(f"Written: {output}")


def run_through(way: str, jobs: list[Job], workers: int, longer: int = 1) -> list[Record]:
    """What the tool says of each case: through an analyzer, or as a training loop under watch."""
    # The rotation of a game's field takes passes of its own: it is measured on demand.
    jobs = [job for job in jobs if way != "watch" or CASES[job[0]].analyzer != "game"]
    work = partial(measure_in_training, longer=longer) if way == "watch" else measure
    records: list[Record] = with_progress(f"Validation, {way}", work, jobs, workers)
    return sorted(records, key=lambda record: jobs.index((record.case, record.seed)))


def verify_labels(jobs: list[Job], workers: int) -> bool:
    """Measure every label without the tool and name those that do not hold."""
    results = dict(with_progress("Verification", verify, jobs, workers))
    wrong = [(job, results[job]) for job in jobs if not results[job].holds]
    for (name, seed), evidence in wrong:
        console.print(f"{name}, seed {seed}: {evidence.text}", markup=False, soft_wrap=True)
    console.print(f"{len(jobs) - len(wrong)} of {len(jobs)} labels hold.")
    return not wrong


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--half",
    type=click.Choice([*HALVES, "both"]),
    default="both",
    help=f"Tune on one, report both; {', '.join(TRAINING)}: training loops.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=5, help="Seeds per case.")
@click.option("--only", metavar="PATTERN", help="Cases whose name or class fits: 'cnn/*', lstm, bottleneck.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Processes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Keep every run here.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Where the report goes.")
@click.option("--verify", "verifying", is_flag=True, help="Measure that the labels are true; does not use the tool.")
@click.option(
    "--through",
    type=click.Choice([*WAYS, "both"]),
    default="analyzers",
    help="Through the analyzers, as training loops under gf.watch, or both.",
)
@click.option(
    "--longer",
    type=click.IntRange(min=1),
    default=1,
    help="Under watch, train healthy set-ups for so many times their steps: what is said of runs that have converged.",
)
@click.option("--list", "listing", is_flag=True, help="List the cases and stop.")
def main(
    half: str,
    seeds: int,
    only: str | None,
    workers: int,
    json_path: Path | None,
    output: Path | None,
    verifying: bool,
    through: str,
    longer: int,
    listing: bool,
) -> None:
    """Run labelled training set-ups through the diagnosis and score what it says."""
    if longer > 1 and through != "watch":
        raise click.UsageError("--longer is for training loops; add --through watch")
    cases = chosen(half, only)
    if longer > 1:  # what a label says of a fault is true of the steps that its proof was made for
        cases = [case for case in cases if not case.sick and case.family not in PROGRAMS]
    if not cases:
        raise click.UsageError(f"no case of {half!r} fits {only!r}; --list shows their names")
    if listing:
        for case in cases:
            console.print(f"{case.half:8} {case.fault:22} {case.name}", markup=False, highlight=False, soft_wrap=True)
        return
    jobs = [(case.name, seed) for case in cases for seed in range(seeds)]
    if verifying:
        raise SystemExit(0 if verify_labels(jobs, workers) else 1)
    # A part of the zoo must not take the place of the whole in the record.
    whole = half == "both" and only is None and seeds >= 5 and through != "watch"
    validate(jobs, workers, json_path, output or (RESULTS if whole else None), through, longer)


if __name__ == "__main__":
    main()
