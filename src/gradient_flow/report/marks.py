"""Moments of a run that are marked on its curves: what happened there, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.robust import FLOOR, SPIKE, spikes
from gradient_flow.record.evidence import clipped_steps, rate_changes
from gradient_flow.record.run import Run
from gradient_flow.record.step_columns import StepColumns
from gradient_flow.record.thinning import LayerColumns
from gradient_flow.report.events import skipped_steps, stretches
from gradient_flow.table.text import number

KINDS: Final = {
    "rate": "learning rate changed",
    "zero": "a layer's gradient became exactly zero",
    "spike": "spike of the norm",
    "clip": "clipped",
    "skip": "step skipped",
    "look": "look inside the model",
    "epoch": "new epoch",
}
"""Kinds of marks, in the order of their importance."""
MOST: Final = 200
"""Marks of a kind; of more, the first ones."""
_WINDOW: Final = 64
_SEARCHED: Final = 5_000
"""Steps up to which each is compared with those before it; of a longer run only those that are tallest among their
neighbours, which are found in a moment."""


def run_marks(run: Run, layers: LayerColumns, looks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Marks with `step`, `last`, `kind` and `text`, in the order of steps."""
    steps = run.columns
    found: list[dict[str, Any]] = []
    for marks in (
        _rates(run),
        _first_zeros(layers, run.tensor_names),
        _spikes(steps),
        _stretched("clip", steps, clipped_steps(steps)),
        _stretched("skip", steps, skipped_steps(steps) > 0),
        _looks(looks),
        _epochs(steps),
    ):
        found += list(marks)[:MOST]
    return sorted(found, key=lambda mark: mark["step"])


def _rates(run: Run) -> Iterator[dict[str, Any]]:
    for change in rate_changes(run.columns):
        yield _mark("rate", change.step, change.sentence[:1].upper() + change.sentence[1:])


def _first_zeros(layers: LayerColumns, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Tables at which gradients of tensors that had one are exactly zero for the first time."""
    if len(layers.first) < 2:
        return
    norms, bad = layers.values["norm"], layers.values["nonfinite"]
    zero = (norms == 0) & (bad == 0)
    before = np.maximum.accumulate(norms > 0, axis=0)
    began = zero[1:] & before[:-1]
    first = np.where(began.any(axis=0), began.argmax(axis=0) + 1, -1)
    for at in sorted({int(each) for each in first if each >= 0}):
        where = [names[tensor] for tensor in np.flatnonzero(first == at).tolist() if tensor < len(names)]
        if where:
            more = f" and {len(where) - 1} more" if len(where) > 1 else ""
            yield _mark("zero", int(layers.first[at]), f"The gradient of `{where[0]}`{more} became exactly zero")


def _spikes(steps: StepColumns) -> Iterator[dict[str, Any]]:
    norms, numbers = steps.get("norm"), steps["step"]
    finite = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    values = norms[finite]
    if len(values) <= _SEARCHED:
        found = spikes(values.tolist(), window=_WINDOW)
    else:
        found = [at for at in _tallest(values) if _spikes_at(values, at)]
    for at in found:
        yield _mark("spike", int(numbers[finite[at]]), f"The norm spiked to {number(float(values[at]))}")


def _tallest(norms: NDArray[np.float64]) -> list[int]:
    """Those that stand highest above the median of their stretch of the run; in the order of steps."""
    whole = len(norms) // _WINDOW * _WINDOW
    logs = np.log(norms)
    medians = np.median(logs[:whole].reshape(-1, _WINDOW), axis=1).repeat(_WINDOW)
    heights = logs - np.append(medians, np.full(len(norms) - whole, np.median(logs[-_WINDOW:])))
    tall = np.flatnonzero(heights > SPIKE * FLOOR)
    return sorted(tall[np.argsort(heights[tall])[-MOST:]].tolist())


def _spikes_at(norms: NDArray[np.float64], at: int) -> bool:
    """Whether a norm stands out from those before it: several windows of them, some of which may be spikes as well."""
    low = max(0, at - 4 * _WINDOW)
    return at - low in spikes(norms[low : at + 1].tolist(), window=_WINDOW)


def _stretched(kind: str, steps: StepColumns, mask: Any) -> Iterator[dict[str, Any]]:
    for low, high in stretches(np.asarray(mask, dtype=bool), 10):
        first, last, many = int(steps["step"][low]), int(steps["step"][high - 1]), int(mask[low:high].sum())
        what = "Clipped" if kind == "clip" else "Skipped"
        yield _mark(kind, first, what if many == 1 else f"{what}: {many:,} steps up to {last:,}", last)


def _looks(looks: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for step, because in zip(looks["steps"], looks["because"], strict=True):
        why = "" if because == "schedule" else f": {because}"
        yield _mark("look", step, f"Looked inside the model{why}")


def _epochs(steps: StepColumns) -> Iterator[dict[str, Any]]:
    epochs = epochs_of(steps)
    if epochs is None:
        return
    whole = np.floor(epochs)
    for at in (np.flatnonzero(np.diff(whole) > 0) + 1).tolist():
        yield _mark("epoch", int(steps["step"][at]), f"Epoch {whole[at]:g} began")


def epochs_of(steps: StepColumns) -> Any:
    """The epoch of each step, where one was logged and it never falls; else None."""
    name = next((name for name in ("epoch", "metrics/epoch") if name in steps.names), None)
    if name is None or not len(steps):
        return None
    known = np.flatnonzero(np.isfinite(steps[name]))
    if not len(known) or (np.diff(steps[name][known]) < 0).any():
        return None
    return np.interp(np.arange(len(steps)), known, steps[name][known])


def _mark(kind: str, step: int, text: str, last: int | None = None) -> dict[str, Any]:
    return {"step": step, "last": step if last is None else last, "kind": kind, "text": f"{text}."}
