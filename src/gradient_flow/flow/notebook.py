"""A watched training in a notebook: as the result of a cell, and live while it runs."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from gradient_flow.diagnosis.notebook import diagnosis_html
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.errors import InputError, MissingExtraError, warn
from gradient_flow.flow.recorder import Recorder
from gradient_flow.record.event import LOOKED
from gradient_flow.record.look import LookRecord
from gradient_flow.record.notebook import box, escaped, facts, run_curves
from gradient_flow.record.run import Run, run_of_lines
from gradient_flow.record.run_lines import FileLines
from gradient_flow.record.step import StepRecord

PATIENCE: Final = 50.0
"""A view is drawn anew once this many times the time has passed that the last one took: at most 2 % of the training."""


def run_state_html(title: str, run: Run) -> str:
    """The state of a training, its curves and the verdict so far."""
    rows = [("recorded steps", f"{len(run):,}")]
    looks = sum(event.kind == LOOKED for event in run.events)
    rows += [("looks inside", f"{looks}")] if looks else []
    rows += [] if run.in_memory else [("run folder", str(run.path.parent))]
    found = diagnosis_html(verdict(run)) if len(run) else "<p>No step has been recorded yet.</p>"
    return box(escaped(title), facts(rows), run_curves(run), found)


class LiveView:
    """The output of a cell that is drawn anew while the training runs.

    It reads the run by itself: it is called while a record is handed on, when the flow's own reader must be left alone.
    """

    def __init__(self, every: float, recorder: Recorder) -> None:
        if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 < every < math.inf:
            raise InputError(f"`every` must be a positive number of seconds, got {every!r}.")
        try:
            from IPython.display import HTML, display
        except ImportError as missing:
            raise MissingExtraError("notebook") from missing
        self._every, self._recorder = float(every), recorder
        self._html: Any = HTML
        self._display: Any = display
        self._handle: Any = None
        self._run: Run | None = None
        self._next = 0.0
        self._failed = False

    def __call__(self, _record: StepRecord, _look: LookRecord | None) -> None:
        """A record is complete: draw, if it is time."""
        if time.monotonic() >= self._next:
            self.draw("Training")

    def draw(self, title: str) -> None:
        """Draw it now; a notebook that is gone costs one warning."""
        if self._failed:
            return
        start = time.monotonic()
        try:
            content = self._html(run_state_html(title, self._read()))
            if self._handle is None:
                self._handle = self._display(content, display_id=True)
            else:
                self._handle.update(content)
        except Exception as problem:  # a view is never worth the training
            self._failed = True
            warn(f"The live view failed ({type(problem).__name__}: {problem}); training continues.", stacklevel=2)
        end = time.monotonic()
        self._next = end + max(self._every, PATIENCE * (end - start))

    def _read(self) -> Run:
        writer = self._recorder.writer
        if writer is None:
            return run_of_lines(self._recorder.kept_lines())
        self._run = self._run or Run(FileLines(writer.path))
        self._run.update()
        return self._run
