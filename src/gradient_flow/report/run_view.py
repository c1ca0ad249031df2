"""A run as a terminal shows it: followed while it grows, its layers by groups."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.verdict import diagnose
from gradient_flow.errors import GradientFlowError
from gradient_flow.record.run_follower import RunFollower, TablePlace
from gradient_flow.record.run_lines import cannot_be_read
from gradient_flow.record.table_blocks import rows_of
from gradient_flow.table.columns import INDEX, STATISTICS, Rows

TABLES: Final = 160
"""So many tables at most, evenly over the run: more than a terminal has columns for."""
PATIENCE: Final = 20.0
"""A verdict is taken anew once this many times the time has passed that the last one took."""


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
    diagnosis: Diagnosis | None = None
    """None while it is being worked out for the first time."""
    ended: str | None = None
    """What the run said at its end; None while it goes on."""
    idle: float = 0.0
    """Seconds since the file grew last."""


class RunMonitor:
    """Follows a run file; `view()` is what to show of it now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = RunFollower(path)
        self._norms: dict[TablePlace, NDArray[np.float64]] = {}
        self._diagnosis: Diagnosis | None = None
        self._worker: threading.Thread | None = None
        self._written_at = time.time()
        self._judged_size = -1
        self._judged_at, self._took = -math.inf, 0.0

    def update(self) -> bool:
        """Take in what is new; whether there was anything."""
        grew = self.run.update()
        if grew:
            with suppress(OSError):
                self._written_at = self.run.path.stat().st_mtime
        return grew

    def judge(self) -> None:
        """Take the verdict now."""
        size, start = self.run.size, time.monotonic()
        self._diagnosis = diagnose(self.path)
        self._judged_size, self._judged_at, self._took = size, start, time.monotonic() - start

    def judge_beside(self) -> None:
        """Take the verdict in a thread, if there is something new and the last one was not just now."""
        busy = self._worker is not None and self._worker.is_alive()
        due = time.monotonic() - self._judged_at > max(1.0, PATIENCE * self._took)
        if len(self.run.steps) and not busy and due and self.run.size != self._judged_size:
            self._worker = threading.Thread(target=self._judge_quietly, daemon=True)
            self._worker.start()

    def _judge_quietly(self) -> None:
        with suppress(GradientFlowError, OSError):  # a file that is gone: `update` says so, where it is heard
            self.judge()

    def view(self) -> RunView:
        """What the run holds so far."""
        steps = self.run.steps
        norm = np.where(np.isnan(steps.get("norm")), np.inf, steps.get("norm"))
        told = {"norm": norm}
        for name, columns_of_it in {"loss": ("loss", "loss/0"), "lr": ("lr", "lr/0")}.items():
            known = next((column for column in columns_of_it if column in steps.names), None)
            if known is not None:
                values = steps[known]
                # A loss that is missing where the gradients are bad was not finite itself.
                told[name] = np.where(np.isnan(values) & np.isinf(norm), np.inf, values) if name == "loss" else values
        return RunView(
            name=str(self.path),
            step=self.run.last_step,
            steps_per_second=self._speed(),
            steps=[int(step) for step in steps["step"]],
            series={name: values.tolist() for name, values in told.items()},
            groups=self._groups(),
            diagnosis=self._diagnosis,
            ended=None if self.run.end is None else str(self.run.end.get("status") or "ended"),
            idle=max(0.0, time.time() - self._written_at),
        )

    def _speed(self) -> float:
        """Steps per second over the last hundred records."""
        steps, seconds = self.run.steps["step"][-100:], self.run.steps.get("time")[-100:]
        if len(steps) < 2 or not seconds[-1] > seconds[0]:
            return math.nan
        return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))

    def _groups(self) -> dict[str, list[float]]:
        members: dict[str, list[int]] = {}
        for position, name in enumerate(self.run.parameters):
            members.setdefault(self.run.groups.get(name, name), []).append(position)
        if not members or not self.run.tables:  # a group without any number would be an empty line
            return {}
        chosen = self.run.tables[:: math.ceil(len(self.run.tables) / TABLES) or 1]
        missing = [place for place in chosen if place not in self._norms]
        try:
            records = self.run.read_tables(missing)
        except OSError as problem:
            raise cannot_be_read(self.run.path, problem) from problem
        rows, _ = rows_of(records, len(self.run.parameters))
        norms = np.stack([_merged(rows[:, places]) for places in members.values()], axis=1)  # (tables, groups)
        self._norms |= dict(zip(missing, norms, strict=True))
        tables = [self._norms[place] for place in chosen]
        return {
            name: [float(table[at]) if at < len(table) else math.nan for table in tables]
            for at, name in enumerate(members)
        }


def _merged(rows: Rows) -> NDArray[np.float64]:
    """The norm of several tensors (tables, tensors, columns) together. NaN: none had a gradient. Inf: not finite."""
    present = np.isfinite(rows[..., INDEX["count"]])
    norms = STATISTICS["norm"](np.where(present[..., None], rows, 0.0).sum(axis=1))
    return np.where(present.any(axis=1), np.where(np.isfinite(norms), norms, np.inf), np.nan)
