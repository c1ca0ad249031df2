"""What happened in a run, as a list for a person: stretches of steps, not one line for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.diagnosis.issue import IssueType
from gradient_flow.diagnosis.verdict import origin_sentence
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.event import (
    BATCH,
    CLIP_BEFORE_UNSCALE,
    CURE,
    END,
    FORENSICS,
    LOOKED,
    LOOKS_DROPPED,
    LOOKS_ENDED,
    MODE,
    RESUMED,
)
from gradient_flow.record.evidence import bad_losses, clipped_steps, nonfinite_steps
from gradient_flow.record.run import Run
from gradient_flow.record.run_lines import is_step
from gradient_flow.record.step import SKIPPED_LOSSES
from gradient_flow.record.step_columns import StepColumns
from gradient_flow.table.text import shorten

NEWEST: Final = 1000
_LONGEST: Final = 120
"""Letters of a value that is shown."""
_GAP: Final = 10
"""Largest gap, in steps, within one stretch of clipped steps."""
_ACTIONS: Final = {
    "replace": "replace",
    "zero": "zero",
    "skip": "skip",
    "rollback": "rollback",
    "observe": "observe",
    "left to GradScaler": "scaler",
}
_DONE: Final = {
    "replace": "the guard replaced the bad elements",
    "zero": "the guard set the gradients to zero",
    "skip": "the guard skipped the step",
    "rollback": "the guard restored an earlier state",
    "observe": "the guard only observed",
    "scaler": "left to the GradScaler, which skips the step and lowers its scale",
}

Mask = NDArray[np.bool_]


def skipped_steps(steps: StepColumns) -> NDArray[np.int64]:
    """Steps that did not happen, by the recorded step at which that is known: by guard, GradScaler or loop."""
    skipped = np.maximum.accumulate(np.nan_to_num(steps.get("skipped_steps")))
    by_scaler = np.diff(skipped, prepend=0.0).astype(np.int64)
    withheld = [step for step, (guard, _) in steps.remarks.items() if guard in ("skip", "rollback")]
    by_loop = np.nan_to_num(steps.get(SKIPPED_LOSSES)).astype(np.int64)
    return np.maximum(by_scaler, by_loop) + np.isin(steps["step"], withheld)


def run_events(run: Run) -> tuple[list[dict[str, Any]], int]:
    """The newest events in the order of steps, and how many there are in all."""
    found = [
        *_clips(run.columns),
        *_nonfinite(run.columns),
        *_bad_losses(run.columns),
        *_guarded(run.columns),
        *_scaler_skips(run.columns),
        *_loop_skips(run.columns),
        *_told(run),
    ]
    found.sort(key=lambda event: event["step"])
    if run.end is not None:
        last = run.end.data.get("steps")
        step = last if is_step(last) else run.last_step or 0
        how = run.ending
        text = "" if how is None else how.sentence
        found.append(_event(step, "end", text or f"Finished after {step:,} steps. {_verdict(run.end.data)}".rstrip()))
    return found[-NEWEST:], len(found)


def _told(run: Run) -> Iterator[dict[str, Any]]:
    """Events that the run itself recorded."""
    told = {event.step for event in run.events if event.kind == LOOKED}
    for step in run.look_steps:
        if step not in told:
            yield _event(step, "look", "An analysis looked inside the model.")
    for event in run.events:
        step = event.step or 0
        if event.kind == RESUMED:
            yield _event(step, "resumed", f"Resumed after step {step:,}.")
        elif event.kind == FORENSICS and isinstance(event.data.get("origin"), Mapping):
            yield _event(step, "forensics", origin_sentence(event.data["origin"]) or "A step was replayed.")
        elif event.kind == CURE and isinstance(event.data.get("cure"), Mapping):
            yield _event(step, "cure", f"Fixes tried. {shorten(str(event.data['cure'].get('message')), 4 * _LONGEST)}")
        elif event.kind == LOOKED:
            because = shorten(str(event.data.get("because")), _LONGEST)
            yield _event(step, "look", f"Looked inside the model{'' if because == 'schedule' else f': {because}'}.")
        elif event.kind == MODE:
            mode = "training" if event.data.get("training") else "evaluation"
            yield _event(step, "noted", f"The model is trained in {mode} mode from here on.")
        elif event.kind == LOOKS_DROPPED:
            many = event.data.get("dropped")
            yield _event(
                step, "noted", f"Looks that the budget dropped after the last one: {shorten(str(many), _LONGEST)}."
            )
        elif event.kind == LOOKS_ENDED:
            yield _event(step, "look", f"No further look inside: {shorten(str(event.data.get('reason')), _LONGEST)}")
        elif event.kind == BATCH:
            yield _event(step, "batch", _batch(event.data))
        elif event.kind == CLIP_BEFORE_UNSCALE:
            yield _event(step, "clip", "Gradients were clipped with the loss scale still in them.")
        elif event.kind != END:
            values = ", ".join(shorten(f"{name} {value}", _LONGEST) for name, value in list(event.data.items())[:8])
            yield _event(step, "noted", f"{shorten(event.kind, _LONGEST)}{': ' if values else ''}{values}.")


def _batch(data: Mapping[str, Any]) -> str:
    """The batch of a step that stands out, by its fingerprint and the samples in it where they are known."""
    indices = data.get("indices")
    of = f", samples {', '.join(map(str, indices[:8]))}" if isinstance(indices, list) and indices else ""
    more = f" and {len(indices) - 8:,} more" if isinstance(indices, list) and len(indices) > 8 else ""
    return f"The step stands out. Its batch: {shorten(str(data.get('batch')), _LONGEST)}{of}{more}."


def _clips(steps: StepColumns) -> Iterator[dict[str, Any]]:
    mask, numbers = clipped_steps(steps), steps["step"]
    norms, after = steps.get("norm"), steps.get("clipped_norm")
    for low, high in stretches(mask, _GAP):
        many, all_here = int(mask[low:high].sum()), high - low
        peak = low + int(np.nanargmax(np.where(mask[low:high], norms[low:high], np.nan)))
        what = f"norm {plain(norms[peak])} cut to {plain(after[peak])}"
        first, last = int(numbers[low]), int(numbers[high - 1])
        if many == 1:
            yield _event(first, "clip", f"Clipped: {what}.", last)
        else:
            share = f"{many:,} steps" if many == all_here else f"{many:,} of {all_here:,} steps"
            yield _event(first, "clip", f"Clipped {share} up to step {last:,}: at most {what}.", last)


def _nonfinite(steps: StepColumns) -> Iterator[dict[str, Any]]:
    numbers, nan, inf = steps["step"], steps.get("nan_count"), steps.get("inf_count")
    for low, high in stretches(nonfinite_steps(steps)):
        first, last = int(numbers[low]), int(numbers[high - 1])
        layers = steps.remarks.get(first, (None, []))[1]
        counts = f"{np.nan_to_num(nan[low]):,.0f} NaN and {np.nan_to_num(inf[low]):,.0f} Inf"
        until = "" if high - low == 1 else f", and so on for {high - low:,} recorded steps, up to {last:,}"
        yield _event(first, "nonfinite", f"{counts} in the gradients{_where(layers)}{until}.", last, layers)


def _bad_losses(steps: StepColumns) -> Iterator[dict[str, Any]]:
    for low, high in stretches(bad_losses(steps)):
        first, last = int(steps["step"][low]), int(steps["step"][high - 1])
        until = "" if high - low == 1 else f", and so on for {high - low:,} recorded steps, up to {last:,}"
        yield _event(first, "nonfinite", f"The loss was NaN or Inf, the gradients were finite{until}.", last)


def _guarded(steps: StepColumns) -> Iterator[dict[str, Any]]:
    acted = [(step, guard) for step, (guard, _) in steps.remarks.items() if guard is not None]
    place = {int(step): at for at, step in enumerate(steps["step"].tolist())} if acted else {}
    start = 0
    for at in range(1, len(acted) + 1):
        (step, guard), before = acted[start], acted[at - 1][0]
        if at < len(acted) and acted[at][1] == guard and place[acted[at][0]] == place[before] + 1:
            continue
        kind = _ACTIONS.get(guard, guard)
        many = "" if at - start == 1 else f" {at - start:,} recorded steps in a row, up to {before:,}"
        done = _DONE.get(kind, f"the guard: {guard}")
        yield _event(step, kind, f"{done[0].upper()}{done[1:]}{many}.", before, steps.remarks[step][1])
        start = at


def _scaler_skips(steps: StepColumns) -> Iterator[dict[str, Any]]:
    skipped, scale = np.nan_to_num(steps.get("skipped_steps")), steps.get("amp_scale")
    for at in np.flatnonzero(np.diff(np.maximum.accumulate(skipped), prepend=0.0) > 0).tolist():
        many = int(skipped[at] - (skipped[at - 1] if at else 0.0))
        before = f"The GradScaler skipped {'a step' if many == 1 else f'{many:,} steps'} before this one"
        now = f"; its scale is {scale[at]:g}" if np.isfinite(scale[at]) else ""
        yield _event(int(steps["step"][at]), "skip", f"{before}{now}.")


def _loop_skips(steps: StepColumns) -> Iterator[dict[str, Any]]:
    counts = np.nan_to_num(steps.get(SKIPPED_LOSSES)).astype(np.int64)
    for at in np.flatnonzero(counts > 0).tolist():
        lost = "A loss was" if counts[at] == 1 else f"{counts[at]:,} losses were"
        yield _event(int(steps["step"][at]), "skip", f"{lost} NaN or Inf before this step, and went without a step.")


def stretches(mask: Mask, gap: int = 0) -> list[tuple[int, int]]:
    """From-to of the stretches of True, where up to `gap` others in between do not end one.

    >>> stretches(np.array([True, False, True, False, False, False, True]), gap=1)
    [(0, 3), (6, 7)]
    """
    places = np.flatnonzero(mask)
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > gap + 1)
    starts, ends = places[np.concatenate([[0], breaks + 1])], places[np.append(breaks, len(places) - 1)] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _event(step: int, kind: str, text: str, last: int | None = None, layers: Sequence[str] = ()) -> dict[str, Any]:
    return {"step": step, "last_step": step if last is None else last, "kind": kind, "text": text, "layers": [*layers]}


def _where(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return f" of `{layers[0]}`{more}" if layers else ""


def _verdict(end: Mapping[str, Any]) -> str:
    """What was said then; a verdict taken now stands at the top of the page."""
    message = end.get("message")
    if not isinstance(message, str) or not message:
        return ""
    # It begins with the name of the type, as the terminal has it; a page says that in words.
    word = message.partition(" ")[0].rstrip(",:")
    name = IssueType[word].value.capitalize() if word in IssueType.__members__ else word
    return f"The verdict then: {name}{message[len(word) :]}"
