"""What looks saw inside a model, as curves over the steps: one point per look, so that a reader sees how few there are.

A look that comes with a training stands for its own step. An analysis that drove the training itself, from its first
step to the look's, has a point for every step that it watched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from gradient_flow.diagnosis.network.depth import EXPLODED, VANISHED
from gradient_flow.diagnosis.network.in_training import is_of_training
from gradient_flow.diagnosis.network.profile import depth_profiles
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.words import percent, plain
from gradient_flow.errors import RunFileError
from gradient_flow.probes.recurrent.stats import CRITICAL_BAND, OPTIMAL_RADIUS
from gradient_flow.record.event import LOOKED
from gradient_flow.record.plain import from_plain
from gradient_flow.record.run import Run, SeenSpan

MOST_LOOKS: Final = 200
"""Looks that are drawn; of more, those at even distances, the first and the last."""
MOST_LINES: Final = 6
"""Lines that can be told apart; beyond that the layers that stand out, in the band of all of them."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something that looks see, as it is drawn."""

    key: str
    title: str
    axis: str
    """Title of the y axis, with the unit."""
    short: str
    """For the terminal."""
    hint: str
    """How to read it, in a sentence."""
    log: bool = False
    percent: bool = False
    span: tuple[float, float] | None = None
    """All that is possible, where that is known."""
    healthy: tuple[float, float] | None = None
    worst: Callable[[float], float] = abs
    """Larger for values that deserve more attention: picks the lines that are drawn."""


QUANTITIES: Final = (
    Quantity(
        key="gain",
        title="Gain over depth",
        axis="first layer / last hidden",
        short="gain over depth",
        hint="Gradient at the first layer over that at the last hidden one. 1 is level; far below 1 it vanishes on its "
        "way back, far above 1 it explodes.",
        log=True,
        healthy=(10**VANISHED, 10**EXPLODED),
        worst=lambda gain: abs(math.log10(gain)) if gain > 0 else math.inf,
    ),
    Quantity(
        key="dead",
        title="Dead units",
        axis="share of units",
        short="dead units",
        hint="Share of units in a layer that never fire and get no gradient.",
        percent=True,
        span=(0.0, 1.0),
    ),
    Quantity(
        key="slope",
        title="Slope of activations",
        axis="share of the steepest",
        short="activation slope",
        hint="Mean slope of a bounded activation (sigmoid, tanh), as a share of its steepest. Near 0% it is saturated "
        "and passes no gradient.",
        percent=True,
        span=(0.0, 1.0),
        worst=lambda slope: -slope,
    ),
    Quantity(
        key="entropy",
        title="Attention entropy",
        axis="share of ln(keys)",
        short="attention entropy",
        hint="1: looks at all positions alike. 0: at a single one.",
        span=(0.0, 1.0),
        worst=lambda entropy: -entropy,
    ),
    Quantity(
        key="logit",
        title="Largest attention logit",
        axis="magnitude",
        short="largest attention logit",
        hint="Before the softmax. Below 10 is usual; beyond 50 a softmax looks at single positions.",
        log=True,
        worst=lambda logit: logit,
    ),
    Quantity(
        key="load",
        title="Busiest expert",
        axis="share of tokens",
        short="share of the busiest expert",
        hint="Share of all routed tokens that go to one expert. An even share is 1 / experts.",
        percent=True,
        span=(0.0, 1.0),
        worst=lambda share: share,
    ),
    Quantity(
        key="radius",
        title="Spectral radius",
        axis="largest |eigenvalue|",
        short="spectral radius",
        hint="Of the step from one recurrent state to the next. Far below 1 the network forgets, above 1 states grow "
        "apart.",
        healthy=(OPTIMAL_RADIUS - CRITICAL_BAND, OPTIMAL_RADIUS + CRITICAL_BAND),
        worst=lambda radius: abs(radius - OPTIMAL_RADIUS),
    ),
)

_BY_KEY: Final = {quantity.key: quantity for quantity in QUANTITIES}


class Point(NamedTuple):
    """One value of one quantity."""

    quantity: str
    line: str
    """The layer, or for the gain the stretch."""
    step: int
    value: float


class LookCurves:
    """The points of a run's looks. Each look is read once, also as the run grows."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, SeenSpan], tuple[Point, ...]] = {}

    def data(self, run: Run) -> dict[str, Any]:
        """`steps` that were looked at and why, and the `curves` with their lines; plain values."""
        taken = {event.step: event.data for event in run.events if event.kind == LOOKED and event.step is not None}
        points = list(self._points(run))
        steps = run.look_steps
        curves = [curve for quantity in QUANTITIES if (curve := _curve(quantity, points)) is not None]
        return {
            "steps": steps,
            "because": [_because(taken.get(step)) for step in steps],
            "curves": curves,
        }

    def _points(self, run: Run) -> Iterator[Point]:
        known = {}
        for probe, spans in _spans(run).items():
            for span in spans:
                found = self._known.get((probe, span))
                if found is None:
                    found = tuple(_points_of(run, probe, span))
                known[probe, span] = found
                yield from found
        self._known = known


def newest(curve: Mapping[str, Any]) -> tuple[str, float] | None:
    """The line of a curve that deserves most attention at its last look, and its value there."""
    ends = [
        (line["label"], value)
        for line in curve["lines"]
        if (value := next((each for each in reversed(line["values"]) if each is not None), None)) is not None
    ]
    worst = _BY_KEY[curve["key"]].worst
    return max(ends, key=lambda end: worst(end[1]), default=None)


def value_text(curve: Mapping[str, Any], value: float) -> str:
    """A value of a curve as a person writes it.

    >>> value_text({"percent": True}, 0.125)
    '12%'
    """
    return percent(value) if curve["percent"] else plain(value)


def look_sentences(looks: Mapping[str, Any]) -> list[str]:
    """What the looks saw last, a line for each quantity, for reports in words."""
    lines = []
    for curve in looks["curves"]:
        end = newest(curve)
        if end is None:
            continue
        layer, value = end
        steps = sorted({step for line in curve["lines"] for step in line["step"]})
        first = next((line for line in curve["lines"] if line["label"] == layer), None)
        began = None if first is None else next((each for each in first["values"] if each is not None), None)
        before = "" if began is None or len(steps) < 2 else f"{value_text(curve, began)} at step {steps[0]:,}, "
        of = layer if curve["key"] == "gain" else f"`{layer}`"
        lines.append(f"{curve['title']}, {of}: {before}{value_text(curve, value)} at step {steps[-1]:,}.")
    return lines


def _because(look: Mapping[str, Any] | None) -> str:
    if look is None:
        return "analysis"
    return str(look.get("because") or "schedule")


def _spans(run: Run) -> dict[str, list[SeenSpan]]:
    """The looks that are drawn, by probe."""
    return {probe: _some(run.seen[probe]) for probe in _READERS if run.seen.get(probe)}


def _some(spans: Sequence[SeenSpan]) -> list[SeenSpan]:
    # By powers of two: as a run grows the looks that are left are among those that were read before.
    stride = 1 << max(0, math.ceil(math.log2(len(spans) / MOST_LOOKS))) if len(spans) > MOST_LOOKS else 1
    return [*spans[:-1:stride], spans[-1]]


def _points_of(run: Run, probe: str, span: SeenSpan) -> Iterator[Point]:
    for step, found in run.found(probe, steps=(span.step,)):
        try:
            yield from (point for point in _READERS[probe](step, found) if math.isfinite(point.value))
        except (RunFileError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue  # of another version, or damaged: the verdict says so, a curve leaves it out


def _network(step: int, found: Mapping[str, Any]) -> Iterator[Point]:
    record = from_plain(AnalysisRecord, found)
    for at, position in _moments(record, step):
        yield from _gains(record, at, position)
    for place in record.places:
        if place.own_weights and place.dead_share is not None and place.call == 0 and place.units > 1:
            yield Point("dead", place.name, step, place.dead_share)
    for activation in sorted(record.activations, key=lambda each: record.position(each.layer)):
        if not activation.in_branch:  # a layer may feed a gate beside it: one curve per layer
            yield Point("slope", activation.layer, step, activation.mean_slope)


def _moments(record: AnalysisRecord, step: int) -> list[tuple[int, int]]:
    """Steps that the newest values of a record are of, and where they stand in its lists."""
    last = len(record.watched) - 1
    if last < 0:
        return []
    if not is_of_training(record) and record.trained and record.steps == step:
        return [(watched + 1, position) for position, watched in enumerate(record.watched)]
    return [(step, last)]


def _gains(record: AnalysisRecord, step: int, position: int) -> Iterator[Point]:
    """The gain of each chain at one watched step alone."""
    places = [
        replace(place, gradient=place.gradient[position : position + 1], rms=place.rms[position : position + 1])
        for place in record.places
    ]
    for profile in depth_profiles(replace(record, places=places)):
        if profile.parts:
            line = f"{profile.first} → {profile.parts[-1].layer}"
            yield Point("gain", line, step, 10.0 ** max(-300.0, min(300.0, profile.gain)))


def _attention(step: int, found: Mapping[str, Any]) -> Iterator[Point]:
    stats = found["stats"]
    for layer in stats["layers"]:
        for quantity, key in (("entropy", "entropy_by_step"), ("logit", "max_logit_by_step")):
            by_step = [_float(value) for value in layer.get(key) or ()]
            if by_step and stats["steps"] == step == len(by_step):
                yield from (Point(quantity, layer["name"], at, value) for at, value in enumerate(by_step, start=1))
            elif by_step:
                yield Point(quantity, layer["name"], step, by_step[-1])


def _recurrent(step: int, found: Mapping[str, Any]) -> Iterator[Point]:
    for name, module in found["stats"]["modules"].items():
        if module.get("spectral_radius") is not None:
            yield Point("radius", str(name), step, _float(module["spectral_radius"]))


def _routing(step: int, found: Mapping[str, Any]) -> Iterator[Point]:
    for router in found["stats"]["routers"]:
        yield Point("load", str(router["name"]), step, _float(router["busiest_by_look"][-1]))


def _float(value: Any) -> float:
    return float(value)  # also of "NaN", as probes write it


_READERS: Final[dict[str, Callable[[int, Mapping[str, Any]], Iterator[Point]]]] = {
    "network": _network,
    "attention": _attention,
    "recurrent": _recurrent,
    "routing": _routing,
}


def _curve(quantity: Quantity, points: Sequence[Point]) -> dict[str, Any] | None:
    lines: dict[str, dict[int, float]] = {}
    for point in points:
        if point.quantity == quantity.key:
            lines.setdefault(point.line, {})[point.step] = point.value  # a later look at the same step counts
    if not lines or (quantity.key == "dead" and not any(max(line.values()) > 0 for line in lines.values())):
        return None
    return {
        "key": quantity.key,
        "title": quantity.title,
        "axis": quantity.axis,
        "short": quantity.short,
        "hint": quantity.hint,
        "log": quantity.log,
        "percent": quantity.percent,
        "span": None if quantity.span is None else list(quantity.span),
        "healthy": None if quantity.healthy is None else list(quantity.healthy),
        "of": len(lines),
        "band": _band(lines) if len(lines) > MOST_LINES else None,
        "lines": [
            {"label": name, "step": sorted(line), "values": [line[step] for step in sorted(line)]}
            for name, line in _shown(quantity, lines)
        ],
    }


def _shown(quantity: Quantity, lines: Mapping[str, Mapping[int, float]]) -> list[tuple[str, Mapping[int, float]]]:
    """In the order of the model; of many those that deserve most attention at their last look."""
    if len(lines) <= MOST_LINES:
        return list(lines.items())
    ranked = sorted(lines, key=lambda name: -quantity.worst(lines[name][max(lines[name])]))[:MOST_LINES]
    return [(name, line) for name, line in lines.items() if name in ranked]


def _band(lines: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    steps = sorted({step for line in lines.values() for step in line})
    here = [[line[step] for line in lines.values() if step in line] for step in steps]
    return {"step": steps, "low": [min(values) for values in here], "high": [max(values) for values in here]}
