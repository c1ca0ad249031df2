"""Norms over depth: where, seen from the output, they vanish, explode or stop being numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

VANISHED: Final = -2.5
"""Decades below the output's norm from which on a layer counts as vanishing."""
EXPLODED: Final = 2.0
"""Decades above the output's norm from which on a layer counts as exploding."""


def layer_status(norm: float, reference: float) -> str:
    """`healthy`, `vanishing`, `exploding`, `zero` or `nan` of one layer, against the norm nearest the output."""
    if not math.isfinite(norm):
        return "nan"
    if norm == 0:
        return "zero"
    decades = math.log10(norm / reference)
    return "vanishing" if decades <= VANISHED else "exploding" if decades >= EXPLODED else "healthy"


def depth_statuses(norms: Sequence[float]) -> tuple[str, list[str]]:
    """The verdict over all layers and the status of each, for norms from the input to the output."""
    usable = [norm for norm in norms if math.isfinite(norm) and norm > 0]
    reference = usable[-1] if usable else 1.0
    statuses = [layer_status(norm, reference) for norm in norms]
    if not statuses:
        return "insufficient_data", statuses
    if "nan" in statuses:
        return "nan", statuses
    if not usable:
        return "vanishing", statuses
    if "exploding" in statuses and "vanishing" not in statuses:
        return "exploding", statuses
    # A single zero layer between healthy ones is a layer without gradient, not a gradient that fades with depth.
    reaches_input = statuses[0] in ("vanishing", "zero")
    return ("vanishing" if "vanishing" in statuses or reaches_input else "stable"), statuses
