"""What a terminal shows of a run: `RunView`."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.record.ending import Ending
from gradient_flow.record.run import Run
from gradient_flow.report.live_run import LiveRun


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What is shown. In series NaN means that there is nothing, Inf that it was not finite."""

    name: str
    step: int | None
    steps_per_second: float
    series: dict[str, list[float]] = field(default_factory=dict)
    """`norm`, and `loss` and `lr` where recorded."""
    steps: list[int] = field(default_factory=list)
    groups: dict[str, list[float]] = field(default_factory=dict)
    """Norms of groups of layers over the tables, from input to output."""
    looks: dict[str, Any] = field(default_factory=dict)
    """What looks inside the model saw, as `LookCurves` gives it."""
    diagnosis: Diagnosis | None = None
    """None until it is first computed."""
    ending: Ending | None = None
    """How the run ended, or that it goes on."""
    idle: float = 0.0
    """Seconds since the file grew last."""


def view_of(live: LiveRun, name: str) -> RunView:
    """What the run holds so far."""
    run = live.run
    steps = run.columns
    norm = np.where(np.isnan(steps.get("norm")), np.inf, steps.get("norm"))
    series = {"norm": norm}
    for column in ("loss", "lr"):
        if column in steps.names:
            values = steps[column]
            # A loss that is missing where the gradients are bad was not finite itself.
            bad = np.isinf(norm) | np.isin(steps["step"], steps.bad_losses)
            series[column] = np.where(np.isnan(values) & bad, np.inf, values) if column == "loss" else values
    return RunView(
        name=name,
        step=run.last_step,
        steps_per_second=_speed(run),
        steps=[int(step) for step in steps["step"]],
        series={column: values.tolist() for column, values in series.items()},
        groups=live.group_norms(),
        looks=live.looks.data(run),
        diagnosis=live.last_diagnosis,
        ending=run.ending,
        idle=max(0.0, time.time() - live.written_at),
    )


def _speed(run: Run) -> float:
    """Steps per second over the last hundred records."""
    steps, seconds = run.columns["step"][-100:], run.columns.get("time")[-100:]
    if len(steps) < 2 or not seconds[-1] > seconds[0]:
        return math.nan
    return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))
