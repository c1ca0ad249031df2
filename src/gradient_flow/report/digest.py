"""A run kept ready to be shown: followed as it grows, its tables thinned, its verdict remembered."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from gradient_flow.diagnosis.run_rules import judge_run
from gradient_flow.record.run_follower import RunFollower, TablePlace
from gradient_flow.record.table_blocks import rows_of, statistics_of
from gradient_flow.record.thinning import LayerColumns, LayerThinning, group_starts
from gradient_flow.report.events import nonfinite_steps
from gradient_flow.report.headline import IN_WORK, record_of, verdict_data

KEPT_COLUMNS: Final = 2048
KEPT_CELLS: Final = 1_600_000
"""Tensors times columns that are kept of a run: eight statistics of them are 50 MB, however long it is."""
SAMPLE: Final = 300
"""So many tables are read while a page waits; of more, a sample stands in until the rest is read."""
LONG: Final = 20_000
"""Steps from which on a verdict takes longer than a page may."""
_BLOCK_CELLS: Final = 16_000
_PATIENCE: Final = 20.0
"""A verdict is taken anew once this many times the time has passed that the last one took."""


class RunDigest:
    """Everything that pages of one run are made from. Memory is bounded; several threads may use it."""

    def __init__(self, path: str | Path) -> None:
        self.run = RunFollower(path)
        self.lock = threading.RLock()
        self.thinning = LayerThinning(KEPT_COLUMNS)
        self._sample: LayerColumns | None = None
        self._verdict: dict[str, Any] = IN_WORK
        self._verdict_size = -1
        self._judged_at = self._judging_took = 0.0

    def update(self) -> bool:
        """Take in what was appended to the file; whether there was anything."""
        with self.lock:
            grew = self.run.update()
            self.thinning.keep(self.run.tables_unchanged)
            return grew

    @property
    def pending(self) -> int:
        """Tables that are not read yet."""
        return len(self.run.tables) - self.thinning.tables

    @property
    def judged(self) -> bool:
        """Whether the verdict is about all that was taken in."""
        return self._verdict_size == self.run.size

    @property
    def complete(self) -> bool:
        """Whether all that was taken in is read, and judged."""
        return self.pending == 0 and self.judged

    @property
    def level(self) -> str:
        """Of the last verdict."""
        return str(self._verdict["level"])

    def read_some(self) -> None:
        """Read a block of the tables that are pending; a few milliseconds."""
        with self.lock:
            tensors = max(1, len(self.run.parameters))
            self.thinning.limit = max(1, min(KEPT_COLUMNS, KEPT_CELLS // tensors))
            block = max(1, _BLOCK_CELLS // tensors)
            self._add(self.thinning, self.run.tables[self.thinning.tables : self.thinning.tables + block])

    def read_all(self) -> None:
        """Read every table that is pending."""
        while self.pending:
            self.read_some()

    def layers(self, *, at_once: bool) -> LayerColumns:
        """The tables, thinned. `at_once` reads no more than a sample of them if that were to take long."""
        with self.lock:
            if at_once and self.pending > SAMPLE:
                return self._sampled()
            self._sample = None
            self.read_all()
            return self.thinning.columns.wide(len(self.run.parameters))

    def verdict(self, *, at_once: bool) -> dict[str, Any]:
        """The verdict; `at_once` gives the last one, or none yet, if a new one were to take long."""
        waited = time.monotonic() - self._judged_at >= _PATIENCE * self._judging_took
        quick = len(self.run.steps) < LONG and waited
        if not self.judged and (quick or not at_once):
            self.judge()
        return self._verdict

    def judge(self) -> None:
        """Take the verdict anew. Others may use the digest meanwhile."""
        start = time.monotonic()
        with self.lock:
            size, record = self.run.size, record_of(self.run)
        self._verdict = verdict_data(judge_run(record))
        self._verdict_size, self._judged_at = size, time.monotonic()
        self._judging_took = self._judged_at - start

    def _add(self, thinning: LayerThinning, places: Sequence[TablePlace]) -> None:
        rows, ratios = rows_of(self.run.read_tables(places), len(self.run.parameters))
        thinning.extend(np.array([place.step for place in places]), statistics_of(rows, ratios))

    def _sampled(self) -> LayerColumns:
        """Of each stretch of tables the one with the largest norm in all, or with something non-finite."""
        tables = self.run.tables
        starts = group_starts(len(tables), -(-len(tables) // SAMPLE))
        if self._sample is not None and len(self._sample.first) == len(starts):
            return self._sample.wide(len(self.run.parameters))
        ends = np.append(starts[1:], len(tables))
        steps = np.array([place.step for place in tables])
        weight = self._weights(steps)
        chosen = [low + int(weight[low:high].argmax()) for low, high in zip(starts, ends, strict=True)]
        thinning = LayerThinning(len(chosen))
        for low in range(0, len(chosen), 32):
            self._add(thinning, [tables[at] for at in chosen[low : low + 32]])
        self._sample = thinning.columns._replace(first=steps[starts], last=steps[ends - 1])
        return self._sample

    def _weights(self, table_steps: Any) -> Any:
        """How much each table stands out, as far as the step record tells."""
        steps = self.run.steps
        norms = np.where(nonfinite_steps(steps), np.inf, np.nan_to_num(steps.get("norm")))
        if not len(norms):
            return np.zeros(len(table_steps))
        return norms[np.minimum(np.searchsorted(steps["step"], table_steps), len(norms) - 1)]
