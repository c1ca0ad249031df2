"""Verdicts as paragraphs, wrapped to the terminal, names made harmless: `print` and the commands write the same."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

WIDEST: Final = 100
"""Longer lines are hard to read."""
_NARROWEST: Final = 20
"""In fewer columns a paragraph would be a column of words."""


def harmless(text: str) -> str:
    """`text` without what a terminal would obey: escape sequences, carriage returns, marks that turn the direction.

    >>> harmless("layer\\x1b[31m.weight")
    'layer�[31m.weight'
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in text)


def wrapped(text: str, width: int, first: str = "", later: str | None = None) -> list[str]:
    """Lines of at most `width` columns; `first` stands before the first, `later` before the others."""
    later = " " * len(first) if later is None else later
    lines = textwrap.wrap(harmless(text), width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines or [first.rstrip()]


def paragraph(lines: Sequence[str], width: int) -> list[str]:
    """The lines of an issue (a heading, then a cause and numbered advice) in at most `width` columns.

    >>> paragraph(["[LOW] DEAD: no gradient.", "  1. Try another seed."], 20)
    ['[LOW] DEAD: no', '  gradient.', '  1. Try another', '     seed.']
    """
    width = min(width, WIDEST)
    found = wrapped(lines[0], width, later="  ")
    for line in lines[1:]:
        words = line.strip()
        number, dot, advice = words.partition(". ")
        if dot and number.isdigit():
            found += wrapped(advice, width, first=f"  {number}. ")
        else:
            found += wrapped(words, width, first="  ")
    return found


def sentence(text: str, width: int) -> list[str]:
    """The lines of a verdict in at most `width` columns."""
    return wrapped(text, min(width, WIDEST))


def printed(verdict: str, issues: Iterable[Sequence[str]]) -> str:
    """A verdict, where there is one, and the lines of each issue, for `print`: as wide as the terminal.

    Where there is none, each line is as long as it is.
    """
    width = shutil.get_terminal_size((0, 0)).columns
    wraps = width >= _NARROWEST
    found = [sentence(verdict, width) if wraps else [verdict]] if verdict else []
    found += [paragraph(lines, width) if wraps else list(lines) for lines in issues]
    return "\n\n".join("\n".join(lines) for lines in found)
