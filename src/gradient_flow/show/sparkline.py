"""A series as one line of text: as wide as there is room for, on a log scale, no extreme lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.-~=+*#"
"""For terminals that know only ASCII."""
LEAST_SPAN: Final = 0.5
"""Decades from bottom to top at least: noise of a few percent should look flat."""


def sparkline(values: Sequence[float], width: int, *, log: bool = True, ascii_only: bool = False) -> str:
    """`values` in at most `width` letters. Of neighbours that share a letter the largest is drawn.

    NaN is a gap, infinite values are drawn as `×` (something was not finite there) and 0 on a log scale at the bottom.

    >>> sparkline([1, 10, 100, 1000], 4)
    '▁▃▆█'
    >>> sparkline([1, math.nan, math.inf, 1.01], 4)
    '▁ ×▁'
    >>> sparkline([1, 1, 1, 1000, 1, 1], 3)
    '▁█▁'
    """
    letters = PLAIN if ascii_only else BLOCKS
    kept = _thinned(values, width)
    drawn = {i: _height(value, log) for i, value in enumerate(kept) if math.isfinite(value)}
    heights = [height for height in drawn.values() if math.isfinite(height)]
    low, high = min(heights, default=0.0), max(heights, default=0.0)
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
