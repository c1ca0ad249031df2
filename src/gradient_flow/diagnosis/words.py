"""Numbers as a sentence says them: "145,000 times", "35%", "3 layers". Every message takes them from here."""

from __future__ import annotations

import math

from gradient_flow.table.text import plain as plain


def times(factor: float, digits: int = 3) -> str:
    """How often: "145,000 times".

    >>> times(145_000.0), times(10**3.5, 2), times(1.0), times(float("inf"))
    ('145,000 times', '3,200 times', '1 time', 'infinitely many times')
    """
    if factor == math.inf:
        return "infinitely many times"
    number = plain(factor, digits)
    return f"{number} time{'' if number == '1' else 's'}"


def compared(factor: float, digits: int = 3) -> str:
    """How something multiplied by `factor` compares with what it was.

    >>> compared(1 / 145_000), compared(12.0), compared(0.0)
    ('145,000 times smaller', '12 times larger', 'infinitely many times smaller')
    """
    if factor < 1:
        return f"{times(1 / factor if factor else math.inf, digits)} smaller"
    return f"{times(factor, digits)} larger"


def percent(share: float) -> str:
    """A share in whole percent; never 0% of something, nor 100% of what is not all.

    >>> percent(0.35), percent(0.0), percent(0.002), percent(1e-7), percent(0.999), percent(1.0)
    ('35%', '0%', '0.2%', 'under 0.1%', 'over 99%', '100%')
    """
    if 0 < share < 0.001:
        return "under 0.1%"
    if 0.995 <= share < 1:
        return "over 99%"
    return f"{share:.1%}" if 0 < share < 0.01 else f"{share:.0%}"


def portion(ratio: float) -> str:
    """A ratio to something's own size: percent below 1, times above.

    >>> portion(0.35), portion(2.314)
    ('35% of', '2.31 times')
    """
    return f"{percent(ratio)} of" if ratio < 1 else times(ratio)


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "layer"), count(1200, "step")
    ('1 layer', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
