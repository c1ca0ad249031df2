"""Verdicts and issues for a terminal: wrapped to its width, coloured by severity, names made harmless."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.measurement.display import shorten

COLOURS: Final = {
    IssueSeverity.LOW: "cyan",
    IssueSeverity.MEDIUM: "yellow",
    IssueSeverity.HIGH: "red",
    IssueSeverity.CRITICAL: "bold red",
}
WIDEST: Final = 100
"""Longer lines are hard to read."""
_NARROWEST: Final = 8
"""Columns that a shortened line takes at least; in a narrower terminal its end is cut off."""


def harmless(text: str) -> str:
    """`text` without what a terminal would obey: escape sequences, carriage returns, marks that turn the direction.

    >>> harmless("layer\\x1b[31m.weight")
    'layer�[31m.weight'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text)


def one_line(name: str) -> str:
    """A name for a cell of a table: harmless, and without line ends, which would tear the row apart.

    >>> one_line("a\\nb")
    'a�b'
    """
    return harmless(name).replace("\n", "�")


def wrapped(text: str, width: int, first: str = "", later: str | None = None) -> list[str]:
    """Lines of at most `width` columns; `first` stands before the first, `later` before the others."""
    later = " " * len(first) if later is None else later
    lines = textwrap.wrap(harmless(text), width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines or [first.rstrip()]


def issue_text(issue: Issue, width: int) -> Text:
    """The paragraph of an issue."""
    width = min(width, WIDEST)
    heading, *rest = str(issue).split("\n")
    mark = f"[{issue.severity}]"
    lines = wrapped(heading, width, later="  ")
    for line in rest:
        told = line.strip()
        number, dot, advice = told.partition(". ")
        if dot and number.isdigit():
            lines += wrapped(advice, width, first=f"  {number}. ")
        else:
            lines += wrapped(told, width, first="  ")
    text = Text("\n".join(lines))
    text.stylize(COLOURS[issue.severity], 0, len(mark))
    return text


def verdict_text(healthy: bool, sentence: str, width: int) -> Text:
    """A verdict in a sentence."""
    lines = wrapped(sentence, min(width, WIDEST))
    return Text("\n".join(lines), style="bold green" if healthy else "bold red")


def issues_text(issues: Iterable[Issue], width: int) -> Text:
    """Paragraphs with an empty line between them."""
    return Text("\n\n").join([issue_text(issue, width) for issue in issues])


def short_issue(issue: Issue, width: int, most: int = 1) -> list[Text]:
    """An issue in at most `most` lines: severity, type, layer, since when, and as much of the message as fits."""
    since = f" since step {issue.step}" if issue.step is not None else ""
    layer = shorten(one_line(issue.layer), max(20, width // 2))  # a long name leaves room for what is wrong
    told = f"[{issue.severity}] {issue.issue_type.name} in {layer}{since}: {issue.message}"
    width = max(width, _NARROWEST)
    lines = textwrap.wrap(
        harmless(told), width, subsequent_indent="  ", max_lines=most, placeholder=" …", break_on_hyphens=False
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
