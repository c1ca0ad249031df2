"""A fleet for a terminal: how many runs are sick, of what, which settings go with it, and which runs they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.diagnosis.paragraphs import wrapped
from gradient_flow.fleets.association import FEWEST, SICK, Association
from gradient_flow.fleets.causes import Cause
from gradient_flow.fleets.fleet import Fleet
from gradient_flow.report.terminal import COLOURS, one_line
from gradient_flow.table.text import number, shorten

_SETTINGS: Final = 8
"""Settings that are listed at most; `--json` has more."""
_PROBLEMS: Final = 10


def fleet_text(
    fleet: Fleet, width: int, *, find: str = "", sort: str = "verdict", limit: int = 20
) -> Iterator[RenderableType]:
    """What `gradient-flow fleet` prints."""
    counts = fleet.counts
    yield Text(fleet.sentence, style="bold red" if counts["sick"] else "bold green")
    if counts["sick"]:
        yield _title("\nCauses")
        yield _causes(fleet.causes)
        yield from _settings(fleet, width)
    listed = fleet.runs(find=find or ("" if sort != "verdict" else "healthy=false"), sort=sort, limit=limit)
    matching = fleet.count(find) if find or sort != "verdict" else counts["sick"]
    if listed:
        which = "Runs" if find or sort != "verdict" else "Sick runs"
        more = f" ({len(listed):,} of {matching:,}; --limit shows more)" if matching > len(listed) else ""
        yield _title(f"\n{which}{more}")
        yield _runs(listed, width)
    elif find:
        yield Text(f"\nNo run matches {find!r}.")
    if counts["unreadable"]:
        yield from _unreadable(fleet, width)


def _title(words: str) -> Text:
    return Text(words, style="bold")


def _table(*headings: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True, overflow="ellipsis")
    return table


def _causes(causes: Sequence[Cause]) -> Table:
    table = _table("runs", "cause", "type", "mostly in", "since step", right=("runs", "since step"))
    for cause in causes:
        where = Text(shorten(one_line(cause.layers[0][0]), 24) if cause.layers else "–")
        name = Text(one_line(cause.cause), style=_colour(cause.severity))
        table.add_row(f"{cause.runs:,}", name, cause.type, where, _since(cause))
    return table


def _since(cause: Cause) -> str:
    if cause.since_first is None or cause.since_last is None:
        return "–"
    if cause.since_first == cause.since_last:
        return f"{cause.since_first:,}"
    return f"{cause.since_first:,} … {cause.since_last:,}"


def _settings(fleet: Fleet, width: int) -> Iterator[RenderableType]:
    yield _title("\nSettings that go with it")
    found = fleet.settings
    beyond = [each for each in found if each.significant]
    if not found:
        why = f"Settings are compared from {FEWEST} sick and {FEWEST} healthy runs on, where a setting differs."
        yield Text("\n".join(wrapped(why, width)))
        return
    tried = f"{found[0].comparisons:,} {'comparison' if found[0].comparisons == 1 else 'comparisons'}"
    if not beyond:
        yield Text("\n".join(wrapped(f"None beyond chance: {tried}, the clearest with p = {found[0].p:.2g}.", width)))
        return
    for each in beyond[:_SETTINGS]:
        yield Text("\n".join(wrapped(_told(each), width, later="  ")))
    if len(beyond) > _SETTINGS:
        yield Text(f"… and {len(beyond) - _SETTINGS} more, with --json.")
    note = f"Fisher's exact test, corrected for {tried} (Holm). What goes together need not be the cause."
    yield Text("\n".join(wrapped(note, width)), style="dim")


def _told(found: Association) -> str:
    """What goes with which cause, in how many runs, and how sure that is."""
    what = "sick" if found.cause == SICK else found.cause
    where = f"; {found.in_layer:,} of them in `{found.layer}`" if found.layer else ""
    odds = (
        f"Odds {_times(found.odds_low)} to {_times(found.odds_high)} times higher (95 %), p = {found.p_adjusted:.1g}."
    )
    also = (
        f" The same runs differ in {', '.join(found.also[:3])}{' …' if len(found.also) > 3 else ''}."
        if found.also
        else ""
    )
    return f"{what}: {found.sentence}{where}. {odds}{also}"


def _times(value: float) -> str:
    return f"{value:,.2g}" if value < 100 else f"{value:,.0f}" if value < 1e6 else f"{value:.0e}"


def _runs(rows: Sequence[dict[str, Any]], width: int) -> Table:
    table = _table("run", "cause", "in", "since", "loss", "lr", "state", right=("since", "loss", "lr"))
    room = max(10, width - 57)
    for row in rows:
        verdict = row["cause"] if row["cause"] else ("healthy" if row["healthy"] else row["verdict"])
        table.add_row(
            Text(shorten(one_line(row["run"]), room)),
            Text(shorten(one_line(verdict or "–"), 18), style=_colour(row["severity"])),
            Text(shorten(one_line(row["layer"] or "–"), 10)),
            "–" if row["since"] is None else f"{row['since']:,}",
            _number(row["loss"]),
            _number(row["lr"]),
            row["state"],
        )
    return table


def _unreadable(fleet: Fleet, width: int) -> Iterator[RenderableType]:
    rows = fleet.runs(find="state=unreadable", sort="run", limit=_PROBLEMS)
    yield _title("\nUnreadable")
    for row in rows:
        yield Text("\n".join(wrapped(f"{row['run']}: {row['problem']}", width, later="  ")))
    if fleet.counts["unreadable"] > len(rows):
        yield Text(f"… and {fleet.counts['unreadable'] - len(rows):,} more, with --find state=unreadable.")


def _number(value: float | None) -> str:
    return "–" if value is None else number(value)


def _colour(severity: str | None) -> str:
    return COLOURS[IssueSeverity[severity]] if severity else ""
