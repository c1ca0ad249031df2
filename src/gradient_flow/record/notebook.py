"""Pieces of HTML for notebooks: curves, bars, facts, and a run made of them. Nothing in it is loaded or run.

Colours follow the notebook's theme: text takes the colour around it, and lines have contrast with light and dark.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gradient_flow.table.text import number, shorten

if TYPE_CHECKING:
    from gradient_flow.record.run import Run

COLOURS: Final = {
    "CRITICAL": "#d13438",
    "HIGH": "#c4621a",
    "MEDIUM": "#a17a00",
    "LOW": "#6b7785",
    "healthy": "#1a8754",
    "unknown": "#6b7785",
}
_LINE: Final = "#3b82c4"
_WIDTH: Final = 260
_HEIGHT: Final = 44
_MOST: Final = 400
"""Points of a curve: more have no pixel of their own."""
_SERIES: Final = ("norm", "loss", "lr")


def escaped(text: str) -> str:
    """Text in which nothing is markup.

    >>> escaped("<b>`a`</b>")
    '&lt;b&gt;`a`&lt;/b&gt;'
    """
    return html.escape(str(text))


def prose(text: str) -> str:
    """A sentence whose names in backticks are set as code.

    >>> prose("NaN in `0.weight`")
    'NaN in <code>0.weight</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))


def box(title: str, *parts: str, colour: str = COLOURS["unknown"]) -> str:
    """A part of its own, with a line in a colour at its left. `title` and `parts` are HTML."""
    inner = "".join(part for part in parts if part)
    return (
        f'<div style="border-left:4px solid {colour};padding:2px 12px;margin:6px 0;max-width:60rem">'
        f'<div style="font-weight:600">{title}</div>{inner}</div>'
    )


def badge(word: str) -> str:
    """A word on its colour."""
    colour = COLOURS.get(word, COLOURS["unknown"])
    style = f"background:{colour};color:#fff;border-radius:8px;padding:1px 8px;font-size:85%"
    return f'<span style="{style}">{escaped(word.lower())}</span>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as a small table; both are text."""
    cells = "".join(
        f'<tr><th style="text-align:left;font-weight:400;opacity:.75;padding:0 14px 0 0">{escaped(name)}</th>'
        f'<td style="text-align:left;padding:0">{prose(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>" if cells else ""


def curve(name: str, steps: Sequence[float], values: Sequence[float], *, log: bool = False) -> str:
    """A curve with its name, its ends and its last value. Where a value is not finite the line has a gap."""
    shown = _thinned(values)
    heights = [_height(value, log) for value in shown]
    finite = [height for height in heights if math.isfinite(height)]
    last = next((value for value in reversed(values) if math.isfinite(value)), math.nan)
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = high - low if high - low > 1e-9 * max(abs(low), abs(high), 1e-300) else 1.0
    place = _WIDTH / max(1, len(shown) - 1)
    lines: list[list[str]] = [[]]
    for at, height in enumerate(heights):
        if math.isfinite(height):
            lines[-1].append(f"{at * place:.1f},{_HEIGHT - 3 - (height - low) / span * (_HEIGHT - 6):.1f}")
        elif lines[-1]:
            lines.append([])
    drawn = "".join(
        f'<polyline points="{" ".join(line)}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>'
        for line in lines
        if line
    )
    ends = (
        f"{number(min(v for v in values if math.isfinite(v)))} to {number(max(v for v in values if math.isfinite(v)))}"
    )
    where = f"steps {steps[0]:,.0f} to {steps[-1]:,.0f}" if len(steps) else ""
    label = f"{name}, {where}: {ends}, last {number(last)}{', log scale' if log else ''}"
    return (
        '<div style="display:inline-block;margin:4px 20px 4px 0;vertical-align:top">'
        f'<div style="font-size:85%">{escaped(name)} <b>{number(last)}</b> '
        f'<span style="opacity:.7">{ends}{", log" if log else ""}</span></div>'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escaped(label)}">{drawn}</svg>'
        f'<div style="font-size:75%;opacity:.7">{escaped(where)}</div></div>'
    )


def bars(rows: Sequence[tuple[str, float | None, str]], *, log: bool = False) -> str:
    """Horizontal bars: name, length, and the text behind it; None is said and not drawn."""
    heights = [math.nan if value is None else _height(value, log) for _, value, _ in rows]
    finite = [height for height in heights if math.isfinite(height)]
    low = (min(finite, default=0.0) - 0.3) if log else 0.0
    span = max((height - low for height in finite), default=1.0) or 1.0
    cells = []
    for (name, _, text), height in zip(rows, heights, strict=True):
        share = max(0.0, (height - low) / span) if math.isfinite(height) else 0.0
        bar = f'<div style="background:{_LINE};height:9px;width:{140 * share:.0f}px"></div>'
        cells.append(
            f'<tr><td style="text-align:right;padding:0 8px"><code>{escaped(shorten(name, 40))}</code></td>'
            f'<td style="text-align:left;padding:0 8px">{bar}</td>'
            f'<td style="text-align:left;padding:0">{escaped(text)}</td></tr>'
        )
    return f"<table>{''.join(cells)}</table>"


def run_curves(run: Run) -> str:
    """Norm, loss and learning rate of a run."""
    if not len(run):
        return ""
    steps = run.columns["step"].tolist()
    drawn = [
        curve(name, steps, run.columns[name].tolist(), log=name == "norm")
        for name in _SERIES
        if name in run.columns.names
    ]
    return "".join(drawn)


def run_html(run: Run) -> str:
    """A run for a notebook: where it is, how far it went, its curves. The verdict is `gf.diagnose(run)`."""
    ending = run.ending
    where = "run in memory" if run.in_memory else run.path.parent.name
    span = "no steps yet" if run.last_step is None else f"{len(run):,} recorded steps, up to {run.last_step:,}"
    elements = sum(math.prod(parameter["shape"] or []) for parameter in run.parameters)
    rows = [("steps", span), ("tensors", f"{len(run.parameters):,} with {elements:,} parameters")]
    rows += [] if ending is None else [("state", f"{ending.state}. {ending.sentence}".rstrip(". ") + ".")]
    looks = run.look_steps
    rows += [
        ("looks inside", f"{len(looks)}, at steps {', '.join(map(str, looks[:8]))}{' …' * (len(looks) > 8)}")
    ] * bool(looks)
    return box(f"Run {escaped(where)}", facts(rows), run_curves(run))


def _thinned(values: Sequence[float]) -> list[float]:
    """At most `_MOST` values; of neighbours the largest, and one that is not finite hides none that is."""
    if len(values) <= _MOST:
        return list(values)
    groups = (values[at * len(values) // _MOST : (at + 1) * len(values) // _MOST] for at in range(_MOST))
    return [max((value for value in group if math.isfinite(value)), default=math.nan) for group in groups]


def _height(value: float, log: bool) -> float:
    if not log or not math.isfinite(value):
        return value
    return math.log10(value) if value > 0 else math.nan
