"""A run kept ready to be shown: followed as it grows, its tables thinned, its verdict taken in good time."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.issue import Diagnosis
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import GradientFlowError
from gradient_flow.record.evidence import nonfinite_steps
from gradient_flow.record.look import stacked
from gradient_flow.record.run import Run, TableSpan
from gradient_flow.record.run_lines import FileLines
from gradient_flow.record.thinning import LayerColumns, LayerThinning, group_starts, statistics_of
from gradient_flow.report.exponents import exponents_data
from gradient_flow.report.look_curves import LookCurves

KEPT_COLUMNS: Final = 2048
KEPT_CELLS: Final = 1_600_000
"""Tensors times columns that are kept of a run: eight statistics of them are 50 MB, however long it is."""
SAMPLE: Final = 300
"""Most tables read while a request waits; beyond that a sample stands in until all are read."""
LONG: Final = 20_000
"""Steps from which on a verdict takes longer than a page may."""
_BLOCK_CELLS: Final = 16_000
_PATIENCE: Final = 20.0
"""A verdict is taken anew once this many times the time has passed that the last one took."""


class LiveRun:
    """What pages and terminals show of one run. Memory is bounded; several threads may use it."""

    def __init__(self, source: str | Path | Run) -> None:
        self.run = source if isinstance(source, Run) else Run(FileLines(source))
        self.lock = threading.RLock()
        self.thinning = LayerThinning(KEPT_COLUMNS)
        self.looks = LookCurves()
        self.written_at = time.time()
        """When the file grew last."""
        self._sample: LayerColumns | None = None
        self._diagnosis: Diagnosis | None = None
        self._judged_size = -1
        self._judged_at, self._took = -math.inf, 0.0
        self._failed_size = -1
        """Size of the run when its verdict could not be taken: it is not tried again before there is more."""
        self._refused: tuple[tuple[int, ...], GradientFlowError] | None = None
        """State of a file that cannot be read, and why: it is not read again before it changes."""
        self._worker: threading.Thread | None = None
        self._exponents: tuple[int, dict[str, Any] | None] | None = None
        """How many tables there were, and the histograms of exponents among them."""

    def update(self) -> bool:
        """Take in what was appended to the file; whether there was anything."""
        with self.lock:
            state = self._state_of_file()
            if self._refused is not None and state == self._refused[0]:
                raise self._refused[1]
            try:
                grew = self.run.update()
            except GradientFlowError as problem:
                self._refused = None if state is None else (state, problem)
                raise
            self._refused = None
            self.thinning.keep(self.run.tables_unchanged)
            if grew and not self.run.in_memory:
                with suppress(OSError):
                    self.written_at = self.run.path.stat().st_mtime
            return grew

    def _state_of_file(self) -> tuple[int, ...] | None:
        if self.run.in_memory:
            return None
        try:
            about = self.run.path.stat()
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns

    # ---- verdict --------------------------------------------------------------------------------------------------

    @property
    def judged(self) -> bool:
        """Whether the verdict is about all that was taken in."""
        return self._judged_size == self.run.size

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """The last verdict; None before there was one."""
        if self._diagnosis is not None and not self.run.in_memory and self.run.end is None:
            self._diagnosis.ending = self.run.ending  # a run falls silent without any news
        return self._diagnosis

    def diagnosis(self, *, at_once: bool) -> Diagnosis | None:
        """The verdict; `at_once` gives the last one, or None yet, if a new one were to take long."""
        quick = len(self.run) < LONG and self._waited()
        if not self.judged and (quick or not at_once):
            self.judge()
        return self.last_diagnosis

    def judge(self) -> None:
        """Take the verdict anew."""
        start = time.monotonic()
        with self.lock:
            size, found = self.run.size, verdict(self.run)
        self._diagnosis, self._judged_size = found, size
        self._judged_at = time.monotonic()
        self._took = self._judged_at - start

    def judge_beside(self) -> None:
        """Take the verdict in a thread, if there is something new and the last one was not just now."""
        busy = self._worker is not None and self._worker.is_alive()
        due = not self.judged and self._failed_size != self.run.size
        if len(self.run) and not busy and due and self._waited(least=1.0):
            self._worker = threading.Thread(target=self._judge_quietly, daemon=True)
            self._worker.start()

    def _judge_quietly(self) -> None:
        size = self.run.size
        try:
            self.judge()
        except (GradientFlowError, OSError):  # a file that is gone: `update` says so, where it is heard
            self._failed_size = size
        except Exception:  # a thread has nobody to raise it to
            self._failed_size = size
            logging.getLogger("gradient_flow").exception("The verdict on a run failed.")

    def _waited(self, least: float = 0.0) -> bool:
        return time.monotonic() - self._judged_at >= max(least, _PATIENCE * self._took)

    # ---- tables ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Tables that are not read yet."""
        return len(self.run.tables) - self.thinning.tables

    @property
    def complete(self) -> bool:
        """Whether all that was taken in is read, and judged."""
        return self.pending == 0 and self.judged

    def read_some(self) -> None:
        """Read a block of the tables that are pending; a few milliseconds."""
        with self.lock:
            tensors = max(1, len(self.run.parameters))
            self.thinning.limit = max(1, min(KEPT_COLUMNS, KEPT_CELLS // tensors))
            block = max(1, _BLOCK_CELLS // tensors)
            self._add(self.thinning, self.run.tables[self.thinning.tables : self.thinning.tables + block])

    def layers(self, *, at_once: bool) -> LayerColumns:
        """The tables, thinned. `at_once` reads no more than a sample of them if that were to take long."""
        with self.lock:
            if at_once and self.pending > SAMPLE:
                return self._sampled()
            self._sample = None
            while self.pending > 0:
                self.read_some()
            return self.thinning.columns.wide(len(self.run.parameters))

    def exponents(self, *, at_once: bool) -> dict[str, Any] | None:
        """Histograms of exponents, as a page has them; `at_once` none yet of a run with very many tables to read."""
        with self.lock:
            if at_once and self.pending > SAMPLE:
                return None
            tables, (before, found) = len(self.run.tables), self._exponents or (0, None)
            # They become ever fewer, so while a run goes on they are looked for when it has grown by a tenth.
            grown = tables >= 1.1 * before or tables < before
            if self._exponents is None or grown or (self.run.end is not None and tables != before):
                found = exponents_data(self.run)
                self._exponents = tables, found
            return found

    def group_norms(self) -> dict[str, list[float]]:
        """Norms of groups of layers over the tables, from input to output; NaN: no gradient, Inf: not finite."""
        shown = self.layers(at_once=True)
        members: dict[str, list[int]] = {}
        for position, name in enumerate(self.run.tensor_names):
            members.setdefault(self.run.groups.get(name, name), []).append(position)
        if not len(shown.first):  # a group without any number would be an empty line
            return {}
        norms, bad = shown.values["norm"].astype(np.float64), shown.values["nonfinite"]
        return {name: _together(norms[:, at], bad[:, at]).tolist() for name, at in members.items()}

    def _add(self, thinning: LayerThinning, spans: Sequence[TableSpan]) -> None:
        tables = self.run.intact_tables(spans)  # a damaged one is left out, and the run counts it
        if not tables:
            return
        rows, ratios = stacked([table for _, table in tables], len(self.run.parameters))
        thinning.extend(np.array([span.step for span, _ in tables]), statistics_of(rows, ratios))

    def _sampled(self) -> LayerColumns:
        """Of each stretch of tables the one with the largest norm in all, or with something non-finite."""
        tables = list(self.run.tables)
        starts = group_starts(len(tables), -(-len(tables) // SAMPLE))
        if self._sample is not None and len(self._sample.first) == len(starts):
            return self._sample.wide(len(self.run.parameters))
        ends = np.append(starts[1:], len(tables))
        steps = np.array([span.step for span in tables])
        weight = self._weights(steps)
        chosen = [low + int(weight[low:high].argmax()) for low, high in zip(starts, ends, strict=True)]
        thinning = LayerThinning(len(chosen))
        for low in range(0, len(chosen), 32):
            self._add(thinning, [tables[at] for at in chosen[low : low + 32]])
        if thinning.tables < len(chosen):  # some were damaged: the next look samples what is left
            return thinning.columns
        self._sample = thinning.columns._replace(first=steps[starts], last=steps[ends - 1])
        return self._sample

    def _weights(self, table_steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """How much each table stands out, as far as the step record tells."""
        steps = self.run.columns
        norms = np.where(nonfinite_steps(steps), np.inf, np.nan_to_num(steps.get("norm")))
        if not len(norms):
            return np.zeros(len(table_steps))
        return np.asarray(norms[np.minimum(np.searchsorted(steps["step"], table_steps), len(norms) - 1)])


def _together(norms: NDArray[np.float64], bad: Any) -> NDArray[np.float64]:
    """The norm of several tensors (columns, tensors) together."""
    present = ~np.isnan(bad)
    total = np.sqrt(np.nansum(np.square(norms), axis=1))
    total[(np.nan_to_num(bad) > 0).any(axis=1)] = np.inf
    return np.where(present.any(axis=1), total, np.nan)
