"""`ClipAdvice`: whether a clip limit fits the norms of a run, and which one would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradient_flow.table.text import plain

GOOD_RATE: Final = 0.10
"""Share of steps that a limit against spikes touches."""
TOO_OFTEN: Final = 0.5
_LEAST_STEPS: Final = 20
PERCENTILES: Final = (5, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True)
class ClipAdvice:
    """How often steps were clipped, how the norms lie, and what to do. Prints as a sentence or two."""

    steps: int
    clip_rate: float
    """Share of all steps that were clipped."""
    percentiles: dict[str, float]
    """Of the norms before clipping that are remembered: `p50` and so on."""
    suggested_limit: float | None
    """The limit that would have clipped a tenth of those steps."""
    message: str

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "steps": self.steps,
            "clip_rate": self.clip_rate,
            "norm_percentiles": self.percentiles,
            "suggested_max_grad_norm": self.suggested_limit,
            "message": self.message,
        }


def advise_on_clipping(
    steps: int, clipped: int, norms: Sequence[float], limit: float | None, *, by_norm: bool = True
) -> ClipAdvice:
    """Advice from how many steps were clipped and from the norms before clipping (finite ones, the newest).

    Not `by_norm`: single elements or units are clipped. That some are in every step says nothing of the whole.
    """
    rate = clipped / steps if steps else 0.0
    if not len(norms):
        return ClipAdvice(steps, rate, {}, None, "No finite norm was recorded yet.")
    values = np.percentile(norms, PERCENTILES).tolist()
    percentiles = {f"p{rank}": value for rank, value in zip(PERCENTILES, values, strict=True)}
    suggested = float(np.percentile(norms, 100 * (1 - GOOD_RATE)))
    seen = f"{clipped:,} of {steps:,} steps ({rate:.0%}) were clipped; the median norm is {plain(percentiles['p50'])}."
    if len(norms) < _LEAST_STEPS:
        return ClipAdvice(steps, rate, percentiles, None, f"{seen} Too few steps for advice.")
    would = f"A limit of {plain(suggested)} would affect 10% of the last {len(norms):,} steps."
    if not by_norm:
        message = f"{seen} Single elements or units were clipped, not the norm."
    elif rate > TOO_OFTEN:
        at = "" if limit is None else f" at {plain(limit)}"
        message = (
            f"{seen} Clipping{at} acts on more than half of the steps, so it sets the step size instead of catching "
            "spikes: "
            f"lower the learning rate, or raise the limit. {would}"
        )
    elif rate < 0.001 and steps >= 1000:
        message = f"{seen} The limit hardly ever acts. {would}"
    else:
        message = f"{seen} {would}"
    return ClipAdvice(steps, rate, percentiles, suggested, message)
