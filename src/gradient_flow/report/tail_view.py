"""A live run in a terminal: curves as sparklines, one for each group of layers, and the latest issues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gradient_flow.diagnosis.paragraphs import wrapped
from gradient_flow.report.look_curves import newest, value_text
from gradient_flow.report.terminal import one_line, short_issue, sparkline
from gradient_flow.table.text import number, shorten

if TYPE_CHECKING:
    from gradient_flow.diagnosis.issue import Diagnosis

_NAME: Final = 18
"""Columns for a name, at least; at most a third of the terminal."""
_VALUE: Final = 11
_QUIET: Final = 60.0
"""Seconds without a record after which that is said."""
_ISSUES: Final = 4
_GROUPS: Final = 4
"""Rows of layers that are left, where there is room for any."""
_LEAST_INSIDE: Final = 4
"""Rows that what looks saw takes at least: with fewer there is no curve among them."""


def view_text(view: Any, width: int, height: int, *, ascii_only: bool = False) -> Text:
    """A `RunView` in at most `width` columns and `height` lines."""
    lines = [_title(view, width, ascii_only), Text("")]
    names = _name_columns(view.groups, width)
    for name, values in view.series.items():
        lines.append(_curve(name, values, width, names, log=name != "lr", ascii_only=ascii_only, style="bold"))
    issues = _issues(view.diagnosis, width, max(1, height - len(lines) - 4))
    room = max(1, height - len(lines) - len(issues) - 3)
    if view.looks.get("curves"):  # what looks saw comes first: there are a few such rows, of groups there may be many
        inside = _inside(view, width, names, ascii_only)[: max(0, room - min(len(view.groups), _GROUPS) - 2)]
        if len(inside) >= _LEAST_INSIDE:
            lines += inside
            room = max(1, room - len(inside))
    if view.groups:
        lines += [Text(""), Text("gradient norm of each group, log scale, from input to output", style="dim")]
        for name, values in fitting(view.groups, room - 1).items():
            none = "no gradient" if all(map(math.isnan, values)) else None
            lines.append(_curve(name, values, width, names, log=True, ascii_only=ascii_only, shown=none))
    lines += [Text(""), *issues]
    for line in lines:
        line.truncate(width, overflow="crop")
    return Text("\n").join(lines[:height])


def fitting(groups: Mapping[str, Sequence[float]], rows: int) -> dict[str, list[float]]:
    """The groups in at most `rows` rows: neighbours share one, drawn with the largest norm of them.

    >>> fitting({"a": [1.0], "b": [3.0], "c": [2.0]}, 2)
    {'a': [1.0], 'b … c': [3.0]}
    """
    names, rows = list(groups), max(rows, 1)
    if len(names) <= rows:
        return {name: list(values) for name, values in groups.items()}
    merged = {}
    for row in range(rows):
        part = names[row * len(names) // rows : (row + 1) * len(names) // rows]
        label = part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}"
        merged[label] = [_largest(values) for values in zip(*(groups[name] for name in part), strict=True)]
    return merged


def stretched(values: Sequence[float], width: int) -> Sequence[float]:
    """Repeat values until they fill the columns: all curves of a view share one time axis.

    >>> stretched([1.0, 2.0], 4)
    [1.0, 1.0, 2.0, 2.0]
    """
    if not 0 < len(values) < width:
        return values
    return [values[place * len(values) // width] for place in range(width)]


def step_line(view: Any, at: int) -> str:
    """One recorded step as a line, for output that is not a terminal."""
    parts = [f"step {view.steps[at]:<8}"]
    parts += [f"{name} {_number(values[at]):<10}" for name, values in view.series.items()]
    return "  ".join(parts).rstrip()


def _title(view: Any, width: int, ascii_only: bool) -> Text:
    speed = f"{view.steps_per_second:.3g} steps/s" if math.isfinite(view.steps_per_second) else ""
    if view.ending is not None and view.ending.ended:
        well = view.diagnosis is not None and view.diagnosis.healthy
        state, style = view.ending.state, "green" if well else "red"
    elif view.idle > _QUIET:
        state, style = f"no record for {_duration(view.idle)}", "yellow"
    else:
        state, style = "live" if ascii_only else "● live", "green"
    right = "   ".join(part for part in (f"step {view.step:,}" if view.step is not None else "", speed, state) if part)
    left = shorten(one_line(view.name), max(8, width - len(right) - 2))
    text = Text(f"{set_cell_size(left, max(width - len(right), cell_len(left) + 1))}{right}")
    text.stylize("bold", 0, len(left))
    text.stylize(style, len(text) - len(state), len(text))
    return text


def _name_columns(groups: Mapping[str, Sequence[float]], width: int) -> int:
    longest = max((cell_len(one_line(name)) for name in groups), default=0)
    return max(_NAME, min(longest + 1, width // 3))


def _room(width: int, names: int) -> int:
    """Columns for a curve, between its name and its value."""
    return max(4, width - names - _VALUE - 1)


def _curve(
    name: str,
    values: Sequence[float],
    width: int,
    names: int,
    *,
    log: bool,
    ascii_only: bool,
    style: str = "",
    shown: str | None = None,
    ends: Sequence[float] | None = None,
) -> Text:
    room = _room(width, names)
    last = next((value for value in reversed(values) if not math.isnan(value)), math.nan)
    label = set_cell_size(shorten(one_line(name), names - 1), names - 1)  # not by `<`: some letters take two columns
    text = Text(f"{label} ", style=style)
    line = sparkline(stretched(values, room), room, log=log, ascii_only=ascii_only, ends=ends)
    text.append(f"{line:<{room}}", style="cyan")
    number_text = _number(last) if shown is None else shown
    text.append(f"{number_text:>{_VALUE}}", style="" if math.isfinite(last) else "dim" if shown else "bold red")
    for place, letter in enumerate(line):
        if letter in "×x":
            text.stylize("bold red", len(label) + 1 + place, len(label) + 2 + place)
    return text


def _inside(view: Any, width: int, names: int, ascii_only: bool) -> list[Text]:
    """What looks saw: a row with a dot for each, and a curve for each quantity that holds a value until the next."""
    curves, first, last = view.looks["curves"], view.steps[0] if view.steps else 0, view.step or 0
    room = _room(width, names)

    def column(step: int) -> int:
        return min(room - 1, max(0, (step - first) * room // max(1, last - first + 1)))

    dots = [" "] * room
    for step in view.looks["steps"]:
        dots[column(step)] = "o" if ascii_only else "•"
    many = len(view.looks["steps"])
    heading = f"inside the model, {many} look{'' if many == 1 else 's'}; the layer that stands out most"
    lines = [Text(""), Text(heading, style="dim"), Text(f"{'looks':<{names}}{''.join(dots)}", style="dim")]
    for curve in curves:
        end = newest(curve)
        if end is None:
            continue
        line = next(each for each in curve["lines"] if each["label"] == end[0])
        held, at = [math.nan] * room, -1
        for step, value in zip(line["step"], line["values"], strict=True):
            at = column(step)
            held[at:] = [value] * (room - at)
        lines.append(
            _curve(
                curve["short"],
                held,
                width,
                names,
                log=curve["log"],
                ascii_only=ascii_only,
                shown=value_text(curve, end[1]),
                ends=curve["span"],
            )
        )
    return lines


def _issues(diagnosis: Diagnosis | None, width: int, most: int) -> list[Text]:
    if diagnosis is None:
        return [Text("verdict: in preparation", style="dim")]
    if not diagnosis.issues:
        style = {"stable": "green", "failed": "bold red"}.get(diagnosis.status, "dim")
        return [Text(line, style=style) for line in wrapped(diagnosis.message, width)]
    shown = diagnosis.issues[: max(1, min(most // 2, _ISSUES))]
    more = len(diagnosis.issues) - len(shown)
    ended = "" if diagnosis.ending is None else diagnosis.ending.sentence
    lines = [Text(line, style="bold red" if diagnosis.failed else "yellow") for line in wrapped(ended, width) if line]
    lines += [line for issue in shown for line in short_issue(issue, width, 2 if most > 3 else 1)]
    return [*lines, Text(f"and {more} more: gradient-flow diagnose", style="dim")] if more else lines


def _number(value: float) -> str:
    return "NaN/Inf" if math.isinf(value) else "" if math.isnan(value) else number(value)


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds > 5400 else f"{seconds / 60:.0f} min"
