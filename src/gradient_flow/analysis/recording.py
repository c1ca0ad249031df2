"""An analysis as a run: the same lines, the same reader and the same verdict as a training that was watched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.record.evidence import ANALYSIS
from gradient_flow.record.look import seen_line
from gradient_flow.record.run import Run, run_of_lines
from gradient_flow.record.run_lines import FORMAT_VERSION


def analysis_run(record: AnalysisRecord, seen: Mapping[str, Mapping[str, Any]]) -> Run:
    """The run of an analysis: its steps, and one look with what was seen inside and what probes found."""
    return run_of_lines(_lines(record, seen))


def _lines(record: AnalysisRecord, seen: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    yield {"kind": "header", "format": FORMAT_VERSION, "source": ANALYSIS, "settings": {}, "parameters": []}
    for at, norm in enumerate(record.norms):
        loss = record.losses[at] if at < len(record.losses) else None
        yield {"kind": "step", "step": at + 1, "norm": norm, "loss": loss}
    for probe, found in seen.items():
        yield seen_line(record.steps, probe, found)
