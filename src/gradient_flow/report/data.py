"""From a run folder to everything that the page shows: one dictionary of plain values, thinned, no extreme hidden."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow._version import __version__
from gradient_flow.errors import InputError, check_whole
from gradient_flow.record.about import about_rows
from gradient_flow.record.evidence import bad_losses, clipped_steps, nonfinite_steps
from gradient_flow.record.run import Run
from gradient_flow.record.thinning import LayerColumns, group_starts, merge_neighbours
from gradient_flow.report.cures import cures_data
from gradient_flow.report.events import run_events, skipped_steps
from gradient_flow.report.headline import verdict_data
from gradient_flow.report.live_run import LiveRun
from gradient_flow.report.marks import KINDS, epochs_of, run_marks

FORMAT: Final = 1
_FIRST_LINES: Final = ("norm", "clipped_norm", "clip_threshold", "finite_norm", "loss")
_NO_LINES: Final = ("step", "time", "optimizer")


def page_data(
    run: str | Path | Run | LiveRun, *, columns: int = 1000, cells: int = 400_000, live: bool = False
) -> dict[str, Any]:
    """What the page of a run shows, fit for strict JSON.

    `run` is a run folder, its `run.jsonl`, or what `load_run` made of it. Curves have at most `columns` columns, the
    map of layers at most that and at most `cells` cells in all; a column that stands for several steps keeps their
    smallest and largest values and their counts of non-finite, clipped and skipped steps.

    `live` answers at once: of a long run the map may be a sample and the verdict pending, which `truth` and `verdict`
    then say. A `LiveRun` given again reads only what is new.
    """
    for name, value in (("columns", columns), ("cells", cells)):
        check_whole(name, value, error=InputError)
    digest = run if isinstance(run, LiveRun) else LiveRun(run)
    digest.update()
    verdict = verdict_data(digest.diagnosis(at_once=live))
    with digest.lock:
        layers = digest.layers(at_once=live)
        shown = layers.at_most(min(columns, cells // max(1, len(digest.run.parameters))))
        looks = digest.looks.data(digest.run)
        events, total = run_events(digest.run)
        series = series_data(digest.run, columns)
        return {
            "format": FORMAT,
            "package": __version__,
            "run": run_facts(digest.run),
            "verdict": verdict,
            "series": series,
            "layers": {**_layers_data(digest.run, shown), "exponents": digest.exponents(at_once=live)},
            "looks": looks,
            "marks": run_marks(digest.run, layers, looks),
            "mark_kinds": KINDS,
            "cures": cures_data(digest.run),
            "events": events,
            "events_total": total,
            "truth": _truth(digest, len(series["step"]), shown),
        }


def run_facts(run: Run) -> dict[str, Any]:
    """Name, state, length and settings of a run."""
    steps, header = run.columns["step"], run.header
    status, message = run_status(run)
    return {
        "name": "live run" if run.in_memory else readable(run.path.parent.resolve().name),
        "status": status,
        "message": message,
        "started": run.started,
        "seconds": round(run.seconds, 4) if len(steps) else None,
        "first_step": int(steps[0]) if len(steps) else None,
        "last_step": run.last_step,
        "recorded_steps": len(steps),
        "tensors": len(run.parameters),
        "parameters": sum(math.prod(parameter["shape"] or []) for parameter in run.parameters),
        "versions": {
            "torch": header.get("torch"),
            "python": header.get("python"),
            "gradient_flow": header.get("version"),
        },
        "settings": header.get("settings") or {},
        "about": [list(row) for row in about_rows(run.about)],
        "notes": run.notes,
    }


def readable(name: str) -> str:
    """A file name as text: bytes that are no UTF-8 become question marks, which JSON could not hold."""
    return os.fsencode(name).decode("utf-8", "replace")


def run_status(run: Run) -> tuple[str, str | None]:
    """The state of a run (`record/ending.py`), and a sentence about it where there is one."""
    ending = run.ending
    return ("finished", None) if ending is None else (ending.state, ending.sentence or None)


def series_data(run: Run, columns: int) -> dict[str, Any]:
    """The curves over all recorded steps, in at most `columns` columns."""
    steps = run.columns
    starts = group_starts(len(steps), max(1, -(-len(steps) // columns)))
    if not len(starts):
        empty: dict[str, Any] = {"step": [], "first": [], "lines": {}, "time": [], "epoch": None}
        return {**empty, "nonfinite": [], "bad_loss": [], "clipped": [], "skipped": []}
    numbers = steps["step"].astype(np.int64)
    lines = {}
    for name in _line_names(steps.names):
        high = merge_neighbours(steps[name], starts, "max")
        if not np.isnan(high).all():
            lines[name] = {"max": _plain(high), "min": _plain(merge_neighbours(steps[name], starts, "min"))}
    counts = {
        "nonfinite": nonfinite_steps(steps),
        "bad_loss": bad_losses(steps),
        "clipped": clipped_steps(steps),
        "skipped": skipped_steps(steps),
    }
    ends = np.append(starts[1:], len(numbers)) - 1
    epochs = epochs_of(steps)
    return {
        "step": numbers[ends].tolist(),
        "first": numbers[starts].tolist(),
        "lines": lines,
        "time": _plain(_running_time(steps.get("time"))[ends]),
        "epoch": None if epochs is None else _plain(epochs[ends]),
        **{name: np.add.reduceat(count.astype(np.int64), starts).tolist() for name, count in counts.items()},
    }


def _running_time(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds since the run began, over all its processes: a resumed one counts from 0 again.

    >>> _running_time(np.array([1.0, 2.0, 0.5, np.nan, 1.0])).tolist()
    [1.0, 2.0, 2.5, 2.5, 3.0]
    """
    known = np.isfinite(seconds)
    values = seconds[known]
    forward = np.diff(values, prepend=0.0)
    total = np.cumsum(np.where(forward < 0, values, forward))
    behind = np.cumsum(known) - 1
    return np.where(behind >= 0, total[np.maximum(behind, 0)], 0.0) if len(total) else np.zeros(len(seconds))


def layer_data(digest: LiveRun, name: str, *, columns: int = 1000) -> dict[str, Any]:
    """The statistics of one tensor over time, in at most `columns` columns; `KeyError` if there is no such tensor."""
    with digest.lock:
        names = digest.run.tensor_names
        if name not in names:
            raise KeyError(name)
        place = names.index(name)
        shown = digest.layers(at_once=True).at_most(columns)
        stats = {key: _plain(values[:, place]) for key, values in shown.values.items()}
        return {"name": name, "step": shown.last.tolist(), "first": shown.first.tolist(), "stats": stats}


def _line_names(names: Sequence[str]) -> list[str]:
    """Columns of the steps in the order they are shown: the norm first."""
    first = [name for name in _FIRST_LINES if name in names]
    rates = [name for name in names if name == "lr" or name.startswith("lr/")]
    rest = [name for name in names if name not in {*first, *rates, *_NO_LINES}]
    return [*first, *rates, *rest]


def _layers_data(run: Run, shown: LayerColumns) -> dict[str, Any]:
    parameters = run.parameters
    return {
        "names": run.tensor_names,
        "groups": [run.groups.get(name) for name in run.tensor_names],
        "shapes": [list(parameter["shape"] or []) for parameter in parameters],
        "dtypes": [str(parameter.get("dtype", "")) for parameter in parameters],
        "frozen": (np.isnan(shown.values["nonfinite"]).all(axis=0) & bool(len(shown.first))).tolist(),
        "step": shown.last.tolist(),
        "first": shown.first.tolist(),
        "matrix": {name: _matrix(values.T) for name, values in shown.values.items()},
    }


def _matrix(values: NDArray[np.floating]) -> dict[str, Any]:
    data = np.ascontiguousarray(values, dtype="<f4").tobytes()
    return {"shape": list(values.shape), "dtype": "f4", "data": base64.b64encode(data).decode("ascii")}


def matrix_of(layers: Mapping[str, Any], name: str) -> NDArray[np.float32]:
    """Tensors × columns of one statistic; NaN where there is no record.

    >>> packed = base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()
    >>> matrix_of({"names": ["a"], "step": [1, 2], "matrix": {"norm": {"shape": [1, 2], "data": packed}}}, "norm")
    array([[1., 2.]], dtype=float32)
    """
    packed = (layers.get("matrix") or {}).get(name)
    if packed is None:
        return np.full((len(layers["names"]), len(layers["step"])), np.nan, dtype=np.float32)
    values = np.frombuffer(base64.b64decode(packed["data"]), dtype="<f4")
    return values.reshape(packed["shape"]).astype(np.float32)


def _truth(digest: LiveRun, columns: int, shown: LayerColumns) -> dict[str, Any]:
    """What was thinned out or is still to come, in words."""
    steps, tables = len(digest.run), len(digest.run.tables)
    said = []
    if steps > columns:
        said.append(
            f"The curves show {steps:,} recorded steps in {columns:,} columns, each with its lowest and highest value."
        )
    if digest.pending:
        said.append(
            f"The map of layers shows {len(shown.first):,} of {tables:,} tables, of each stretch the one with the "
            "largest total norm; the others are being read, and the page renews itself."
        )
    elif tables > len(shown.first):
        said.append(
            f"The map of layers shows {tables:,} tables in {len(shown.first):,} columns, each with its extremes."
        )
    if not digest.judged:
        said.append("The verdict is not yet about the newest steps.")
    text = " ".join(said) or "Every recorded step is shown, and every table of layers."
    thinned = steps > columns or tables > len(shown.first)
    return {
        "downsampled": thinned,
        "judged": digest.judged,
        "complete": not digest.pending and digest.judged,
        "text": text,
        "size": digest.run.size,
    }


def _plain(values: NDArray[np.floating]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
