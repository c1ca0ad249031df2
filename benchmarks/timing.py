"""Candidates timed in turn, round after round, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from random import Random
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


def wake_threads() -> None:
    """A few milliseconds of parallel work: in training the workers have just run a backward and are awake."""
    import torch

    for _ in range(4):
        torch.ones(1 << 20).mul_(1.5)


def interleaved_medians(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 31, before: Callable[[], object] = wake_threads
) -> dict[str, float]:
    """Median seconds of each candidate over `rounds` rounds; the first, unmeasured round warms up.

    `before` runs before each measurement, so that none pays for what the one before it left behind: sleeping workers,
    a cache full of other data.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for round_index in range(rounds + 1):
        for name, run in candidates.items():
            before()
            start = time.perf_counter()
            run()
            if round_index:
                times[name].append(time.perf_counter() - start)
        if sys.stderr.isatty():
            print(f"\r  round {round_index}/{rounds} ", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 24 + "\r", end="", file=sys.stderr)
    return {name: statistics.median(values) for name, values in times.items()}


class Interval(NamedTuple):
    """A median, and between which values it lies in 95 of 100 resamplings."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float], resamplings: int = 2000) -> Interval:
    """The median with its bootstrap interval. The same values give the same interval."""
    random = Random(0)
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(resamplings))
    return Interval(statistics.median(values), medians[resamplings // 40], medians[-1 - resamplings // 40])


class Clock(NamedTuple):
    """Seconds on the wall, and of all threads of this process on a processor."""

    wall: float
    cpu: float


def timed(run: Callable[[], object]) -> Clock:
    """What a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Clock(time.perf_counter() - wall, time.process_time() - cpu)


def show_help() -> None:
    """With `--help`: what the script that runs says of itself, no more. Each begins with this or with a `Report`."""
    script = sys.modules["__main__"]
    ours = Path(getattr(script, "__file__", "")).resolve().parent == Path(__file__).resolve().parent
    if not ours or not {"--help", "-h"} & {*sys.argv[1:]}:
        return
    about = (script.__doc__ or "").strip()
    print(about)
    if "--save" in about:
        print(f"\n--save keeps what is printed in {RESULTS.name}/, beside the script.")
    if "--small" in about:
        print("--small shows in a moment that everything runs; its figures mean nothing.")
    raise SystemExit


class Report:
    """Lines printed as they come and, with `--save`, kept beside the benchmark."""

    def __init__(self, name: str) -> None:
        show_help()
        import torch

        self.name = name
        self.lines: list[str] = []
        self.failed = self.figures = 0
        self.say(
            f"{name}, {date.today().isoformat()}: torch {torch.__version__}, Python {platform.python_version()}, "
            f"{torch.get_num_threads()} threads of {os.cpu_count()}"
        )

    def say(self, line: str = "") -> None:
        self.lines.append(line)
        print(line, flush=True)

    def figure(self, what: str, value: float, goal: float, *, at_least: bool = False, unit: str = "") -> None:
        """One figure against its goal."""
        reached = value >= goal if at_least else value <= goal
        self.failed += not reached
        self.figures += 1
        relation = "≥" if at_least else "≤"
        verdict = "reached" if reached else "NOT reached"
        self.say(f"  {what:<66} {value:>10.4g}{unit}   goal {relation} {goal:g}{unit}   {verdict}")

    def close(self) -> None:
        if self.figures:
            self.say(f"{self.failed} figures not reached" if self.failed else "all figures reached")
        if "--save" in sys.argv:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{self.name}.txt").write_text("\n".join(self.lines) + "\n")
