"""Numbers and names as a person reads them; a table as text of at most 80 columns and as HTML for notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gradient_flow.table.table import GradientTable

SHOWN_ROWS = 24
_NAME_WIDTH = 32
_HEADINGS = ("gradient", "elements", "norm", "mean", "std", "max |g|", "zeros")


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` columns, with the middle left out: both ends of a parameter's name matter."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"


def shorten_list(names: Sequence[str], shown: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return (", ".join(map(repr, names[:shown])) or "no rows") + more


_READABLE: Final = (1e-4, 1e9)
"""Outside of this range digits have to be counted, and a power of ten reads better."""


def plain(value: float, digits: int = 3, below: float = _READABLE[1]) -> str:
    """A number with `digits` significant digits, commas, and an exponent only where it helps: from `below` on.

    >>> plain(145_213.0), plain(0.7031), plain(19.0), plain(2.3e-09), plain(1e12), plain(float("inf"))
    ('145,000', '0.703', '19', '2.3e-9', '1e12', 'Inf')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    rounded, exponent = float(f"{mantissa}e{power}"), int(power)
    if not _READABLE[0] <= abs(rounded) < below:
        return f"{_without_zeros(mantissa)}e{exponent}"
    return _without_zeros(f"{rounded:,.{max(0, digits - 1 - exponent)}f}")


def number(value: float) -> str:
    """The same for a cell of a table: never wider than ten columns."""
    return plain(value, below=1e6)


def known_number(value: float | None, absent: str = "–") -> str:
    """Three significant digits, or what stands for a number that is not known."""
    if value is None:
        return absent
    return "infinite" if math.isinf(value) else plain(value)


def _without_zeros(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


def _line(name: str, stats: Any) -> tuple[str, ...]:
    numbers = (number(value) for value in (stats.norm, stats.mean, stats.std, stats.linf))
    return (name, f"{stats.count:,}", *numbers, f"{100 * stats.zero_fraction:.1f}%")


def _note(stats: Any) -> str:
    return "" if stats.finite else f"  {stats.nan_count} NaN, {stats.inf_count} Inf"


def _visible(table: GradientTable) -> tuple[list[int], int]:
    if len(table) <= SHOWN_ROWS:
        return list(range(len(table))), 0
    half = SHOWN_ROWS // 2
    return [*range(half), *range(len(table) - half, len(table))], len(table) - 2 * half


def _title(table: GradientTable) -> str:
    tensors = f"{len(table)} gradient{'s' * (len(table) != 1)}"
    return f"GradientTable: {tensors}, {table.total.count:,} elements, norm {number(table.total.norm)}"


def as_text(table: GradientTable) -> str:
    """The table for a terminal."""
    if not len(table):
        return _title(table) + _missing(table)
    positions, hidden = _visible(table)
    lines = [_line(shorten(table.names[i], _NAME_WIDTH), table[i]) for i in positions]
    lines.append(_line("total", table.total))
    notes = [_note(table[i]) for i in positions] + [_note(table.total)]
    widths = [max(map(len, cells)) for cells in zip(_HEADINGS, *lines, strict=True)]

    def aligned(cells: Sequence[str]) -> str:
        numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"{cells[0]:<{widths[0]}}{numbers}"

    body = [(aligned(cells) + note).rstrip() for cells, note in zip(lines, notes, strict=True)]
    if hidden:
        body.insert(SHOWN_ROWS // 2, f"… {hidden} more")
    return "\n".join([_title(table), aligned(_HEADINGS).rstrip(), *body]) + _missing(table)


def _missing(table: GradientTable) -> str:
    return f"\nwithout gradient: {shorten_list(table.missing, 3)}" if table.missing else ""


def as_html(table: GradientTable) -> str:
    """The table for a notebook; names are data and are escaped."""
    from html import escape

    positions, hidden = _visible(table)
    rows = [(_line(table.names[i], table[i]), _note(table[i])) for i in positions]
    rows.append((_line("total", table.total), _note(table.total)))

    def cells(values: Sequence[str], tag: str) -> str:
        first, *rest = values
        aligned = (f'<{tag} style="text-align:right">{escape(value)}</{tag}>' for value in rest)
        return f'<{tag} style="text-align:left">{escape(first)}</{tag}>' + "".join(aligned)

    body = [f"<tr>{cells(values, 'td')}<td>{escape(note.strip())}</td></tr>" for values, note in rows]
    if hidden:
        body.insert(SHOWN_ROWS // 2, f'<tr><td colspan="{len(_HEADINGS) + 1}">… {hidden} more</td></tr>')
    return (
        f"<div><p>{escape(_title(table))}</p><table><thead><tr>{cells(_HEADINGS, 'th')}<th></th></tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table><p>{escape(_missing(table).strip())}</p></div>"
    )
