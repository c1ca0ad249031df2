"""A comparison of runs as tables for a terminal."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gradient_flow.diagnosis.paragraphs import harmless, wrapped
from gradient_flow.diagnosis.words import plain
from gradient_flow.record.about import shown
from gradient_flow.report.parting import Parting
from gradient_flow.report.terminal import COLOURS, listed, one_line
from gradient_flow.table.text import number

_DIFFERENCES: Final = 6
"""Most layers named in the sentence on two runs; the table lists all."""
LAYERS: Final = 8
"""Layers that are listed unless another number is asked for."""
_KINDS: Final = {
    "only_in_first": "only in the first",
    "only_in_this": "only in this",
    "other_shape": "of another shape",
}


def comparison_tables(found: Any, width: int, layers: int) -> Iterator[RenderableType]:
    """A `Comparison`: runs, settings that differ, since when series part, layers, verdicts."""
    names = short_names(found.names)
    yield _title("Runs (medians of the last tenth)")
    yield _runs(names, found.overview)
    yield from _facts(
        names, found.facts, [name for name, path in zip(names, found.names, strict=True) if path in found.undescribed]
    )
    others = zip(names[1:], found.differs, found.series, found.parameters, found.layers, strict=True)
    for name, differs, series, parameters, parts in others:
        yield Text(f"\n{name} compared with {names[0]}", style="bold")
        if differs and len(names) > 2:  # of two, the table above shows all of it
            more = f" and {len(differs) - _DIFFERENCES} more above" if len(differs) > _DIFFERENCES else ""
            yield Text("\n".join(wrapped(f"{', '.join(differs[:_DIFFERENCES])}{more}.", width)))
        yield from _others(parameters, width)
        yield _partings(series)
        if parts:
            yield from _layers(parts, layers)
    yield _title("\nVerdicts")
    yield _verdicts(names, found.verdicts)


def comparison_text(found: Any, width: int = 80, layers: int = LAYERS) -> str:
    """The same tables as plain text, for `print`."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for part in comparison_tables(found, width, layers):
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def short_names(paths: Sequence[str]) -> list[str]:
    """The paths without their common prefix.

    >>> short_names(["runs/a", "runs/b"]), short_names(["a/x", "b/x"])
    (['a', 'b'], ['a/x', 'b/x'])
    """
    folders = [os.path.dirname(path) for path in paths]
    shared = folders[0] if len(set(folders)) == 1 else ""
    return [one_line(os.path.basename(path) if shared else path) for path in paths]


def _title(words: str) -> Text:
    """Above a table, not its own title: that would be wrapped to a narrow table."""
    return Text(words, style="bold")


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    return table


def _runs(names: Sequence[str], overview: Sequence[dict[str, Any]]) -> Table:
    table = _table("run", "state", "steps", "norm", "loss", "lr")
    for name, last in zip(names, overview, strict=True):
        state = last["state"] or "-"
        table.add_row(Text(name), state, f"{last['steps']:,}", *(_value(last[key]) for key in ("norm", "loss", "lr")))
    return table


def _facts(names: Sequence[str], facts: dict[str, list[Any]], undescribed: Sequence[str]) -> Iterator[RenderableType]:
    if undescribed:
        which = "This run does not record its" if len(undescribed) == 1 else "These runs do not record their"
        yield Text(f"\n{which} optimizer and settings: {listed(undescribed)}.")
    if not facts and not undescribed:
        yield Text("\nOptimizer, settings, versions and number of parameters are the same.")
    if not facts:
        return
    yield _title("\nSettings and versions that differ")
    table = _table("", *names)
    for key, values in facts.items():
        table.add_row(one_line(key), *(one_line("" if value is None else shown(value)) for value in values))
    yield table


def _others(parameters: dict[str, list[str]], width: int) -> Iterator[Text]:
    for kind, words in _KINDS.items():
        if parameters[kind]:
            many = len(parameters[kind])
            sentence = f"{many} parameter{'s' * (many > 1)} {words}: {listed(parameters[kind])}"
            yield Text("\n".join(wrapped(sentence, width, later="  ")))


def _partings(series: dict[str, Parting]) -> RenderableType:
    if not series:
        return Text("They have no recorded step in common.")
    table = _table("series", "first unequal", "apart since", "at the end")
    for name, part in series.items():
        table.add_row(name, *_cells(part))
    return table


def _layers(parts: dict[str, Parting], most: int) -> Iterator[RenderableType]:
    different = [(name, part) for name, part in parts.items() if part.first_unequal is not None]
    if not different:
        yield Text(f"All {len(parts)} layers have the same gradients.")
        return
    shown = different[:most]
    yield _title(f"\nLayers that differ most ({len(shown)} of {len(parts)})")
    # Tables are recorded every few steps: a layer may have parted at any step since the table before.
    table = _table("layer", "first unequal table", "apart since", "at the end")
    for name, part in shown:
        table.add_row(Text(one_line(name)), *_cells(part))
    yield table


def _verdicts(names: Sequence[str], verdicts: Sequence[Any]) -> Table:
    table = _table("run", "verdict")
    table.columns[1].justify = "left"
    for name, verdict in zip(names, verdicts, strict=True):
        grave = COLOURS[verdict.issues[0].severity] if verdict.issues else "bold red"
        style = "green" if verdict.healthy else str(grave)
        table.add_row(Text(name), Text(harmless(verdict.message), style=style))
    return table


def _cells(part: Parting) -> tuple[str, str, str]:
    if part.first_unequal is None:
        return "-", "-", "the same"
    apart = "only briefly" if part.parts is None else f"step {part.parts}"
    return f"step {part.first_unequal}", apart, f"×{plain(part.ratio)}" if math.isfinite(part.ratio) else "not finite"


def _value(value: float | None) -> str:
    return "-" if value is None else number(value)
