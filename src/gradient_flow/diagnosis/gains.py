"""How a gradient grows or shrinks from block to block, from the norms at their outputs.

Norms are given from the first block to the last; `None` stands for a block that got no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gradient_flow.diagnosis.robust import Slope, slope_with_error

DAMPING: Final = 0.5
"""A gain below this is called damping. A rule of thumb."""
AMPLIFYING: Final = 2.0
"""A gain above this is called amplifying. A rule of thumb."""

Norms = Sequence[float | None]


def gain(earlier: float | None, later: float | None, eps: float) -> float | None:
    """Norm at the earlier block over norm at the later one: how the gradient changed on its way back.

    `inf` if nothing (less than `eps`) arrived at the later block, `None` if one side is missing, NaN if one is not
    finite.
    """
    if earlier is None or later is None:
        return None
    if not (math.isfinite(earlier) and math.isfinite(later)):
        return math.nan
    return math.inf if later < eps else earlier / later


def log_gain(earlier: float | None, later: float | None, eps: float) -> float | None:
    """The natural logarithm of the gain, from the logarithms of the norms so that the quotient cannot overflow."""
    ratio = gain(earlier, later, eps)
    if ratio is None or earlier is None or later is None or not math.isfinite(ratio):
        return ratio
    return -math.inf if earlier == 0 else math.log(earlier) - math.log(later)


def category(ratio: float | None) -> str:
    """`missing`, `nonfinite`, `vanishing` (an infinite gain), `amplifying`, `damping` or `healthy`."""
    if ratio is None:
        return "missing"
    if math.isnan(ratio):
        return "nonfinite"
    if math.isinf(ratio):
        return "vanishing"
    return "amplifying" if ratio > AMPLIFYING else "damping" if ratio < DAMPING else "healthy"


def summary(norms: Norms, eps: float) -> dict[str, float | int]:
    """Counts over all gains, and means over the finite ones (NaN where there are none)."""
    pairs = list(pairwise(norms))
    gains = [gain(earlier, later, eps) for earlier, later in pairs]
    logs = [log_gain(earlier, later, eps) for earlier, later in pairs]
    finite = [ratio for ratio in gains if ratio is not None and math.isfinite(ratio)]
    finite_logs = [value for value in logs if value is not None and math.isfinite(value)]
    categories = [category(ratio) for ratio in gains]
    return {
        "mean_gain": math.fsum(finite) / len(finite) if finite else math.nan,
        "min_gain": min(finite, default=math.nan),
        "max_gain": max(finite, default=math.nan),
        "mean_log_gain": math.fsum(finite_logs) / len(finite_logs) if finite_logs else math.nan,
        **{
            f"num_{name}": categories.count(name)
            for name in ("amplifying", "damping", "healthy", "vanishing", "missing", "nonfinite")
        },
    }


@dataclass(frozen=True)
class GainOverDepth:
    """The gain of a whole stack, in decades (powers of ten). A factor on the loss changes none of it."""

    cumulative: tuple[float | None, ...]
    """For each block: log10 of its norm over that of the last block; `None` where a norm is missing, zero or not
    finite."""
    total: float
    """From the last block to the first: 0 is level, -3 is a thousandfold loss on the way back."""
    slope: Slope
    """Decades per block on the way back (Theil-Sen) with its standard error: the number to compare stacks by."""

    def __str__(self) -> str:
        return f"{self.slope.value:+.3f} ± {self.slope.error:.3f} decades per block, {self.total:+.2f} in all"


def gain_over_depth(norms: Norms) -> GainOverDepth:
    """Sum up the gains of a stack of blocks."""
    logs = [math.log10(norm) if norm is not None and 0 < norm < math.inf else None for norm in norms]
    usable = [(index, value) for index, value in enumerate(logs) if value is not None]
    reference = usable[-1][1] if usable else math.nan
    last = len(norms) - 1
    return GainOverDepth(
        cumulative=tuple(None if value is None else value - reference for value in logs),
        total=usable[0][1] - reference if usable else math.nan,
        slope=slope_with_error([(last - index, value) for index, value in usable]),
    )
