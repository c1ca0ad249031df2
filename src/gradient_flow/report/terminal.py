"""Verdicts and issues for a terminal: wrapped to its width, coloured by severity, names made harmless."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rich.text import Text

from gradient_flow.diagnosis import paragraphs
from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.paragraphs import harmless, paragraph
from gradient_flow.table.text import shorten

COLOURS: Final = {
    IssueSeverity.LOW: "cyan",
    IssueSeverity.MEDIUM: "yellow",
    IssueSeverity.HIGH: "red",
    IssueSeverity.CRITICAL: "bold red",
}
_NARROWEST: Final = 8
"""Columns that a shortened line takes at least; in a narrower terminal its end is cut off."""


def one_line(name: str) -> str:
    """A name for a cell of a table: harmless, and without line ends, which would tear the row apart.

    >>> one_line("a\\nb")
    'a�b'
    """
    return harmless(name).replace("\n", "�")


def issue_text(issue: Issue, width: int) -> Text:
    """The paragraph of an issue."""
    text = Text("\n".join(paragraph(issue.lines, width)))
    text.stylize(COLOURS[issue.severity], 0, len(f"[{issue.severity}]"))
    return text


def verdict_text(healthy: bool, sentence: str, width: int) -> Text:
    """A verdict in a sentence."""
    return Text("\n".join(paragraphs.sentence(sentence, width)), style="bold green" if healthy else "bold red")


def issues_text(issues: Iterable[Issue], width: int) -> Text:
    """Paragraphs with an empty line between them."""
    return Text("\n\n").join([issue_text(issue, width) for issue in issues])


def short_issue(issue: Issue, width: int, most: int = 1) -> list[Text]:
    """An issue in at most `most` lines: severity, type, layer, since when, and as much of the message as fits."""
    layer = shorten(one_line(issue.layer), max(20, width // 2))  # a long name leaves room for what is wrong
    sentence = f"[{issue.severity}] {replace(issue, layer=layer).heading}: {issue.message}"
    width = max(width, _NARROWEST)
    lines = textwrap.wrap(
        harmless(sentence), width, subsequent_indent="  ", max_lines=most, placeholder=" …", break_on_hyphens=False
    )
    texts = [Text(line) for line in lines]
    texts[0].stylize(COLOURS[issue.severity], 0, len(f"[{issue.severity}]"))
    return texts


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Some names, and how many more there are.

    >>> listed(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(one_line, names[:shown])) + more


BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.-~=+*#"
"""For terminals that know only ASCII."""
LEAST_SPAN: Final = 0.5
"""Decades from bottom to top at least: noise of a few percent should look flat."""


def sparkline(
    values: Sequence[float],
    width: int,
    *,
    log: bool = True,
    ascii_only: bool = False,
    ends: Sequence[float] | None = None,
) -> str:
    """`values` in at most `width` letters. Of neighbours that share a letter the largest is drawn.

    `ends`: the values of the lowest and the highest letter, where they are not those that occur.

    NaN is a gap, infinite values are drawn as `×` (something was not finite there) and 0 on a log scale at the bottom.

    >>> sparkline([1, 10, 100, 1000], 4)
    '▁▃▆█'
    >>> sparkline([1, math.nan, math.inf, 1.01], 4)
    '▁ ×▁'
    >>> sparkline([1, 1, 1, 1000, 1, 1], 3)
    '▁█▁'
    >>> sparkline([0.5, 0.51], 2, log=False, ends=(0, 1))
    '▅▅'
    """
    letters = PLAIN if ascii_only else BLOCKS
    kept = _thinned(values, width)
    drawn = {i: _height(value, log) for i, value in enumerate(kept) if math.isfinite(value)}
    heights = [height for height in drawn.values() if math.isfinite(height)]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    if ends is not None:
        low, high = (_height(end, log) for end in ends)
    span = max(high - low, LEAST_SPAN if log else 1e-3 * max(abs(high), abs(low), 1e-300))
    line = []
    for i, value in enumerate(kept):
        if i in drawn:
            share = (drawn[i] - low) / span if math.isfinite(drawn[i]) else 0.0
            line.append(letters[min(len(letters) - 1, math.floor(share * (len(letters) - 1) + 0.5))])
        else:
            line.append(" " if math.isnan(value) else "x" if ascii_only else "×")
    return "".join(line)


def _thinned(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, each the largest of its neighbours; infinite ones win, NaN never does."""
    width, count = max(width, 1), len(values)
    if count <= width:
        return [math.inf if math.isinf(value) else value for value in values]
    kept = []
    for place in range(width):
        part = [v for v in values[place * count // width : (place + 1) * count // width] if not math.isnan(v)]
        kept.append(max((abs(v) if math.isinf(v) else v for v in part), default=math.nan))
    return kept


def _height(value: float, log: bool) -> float:
    if not log:
        return value
    return math.log10(value) if value > 0 else -math.inf
