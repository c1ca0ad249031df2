"""What can be said of a run so far: non-finite gradients first, then the trend of the norm, then its course over
depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradient_flow.diagnosis.trend import norm_trend


@dataclass(frozen=True)
class NonFinite:
    """The first step with NaN or Inf in a gradient, and the layers that had them."""

    step: int
    layers: tuple[str, ...]
    nan: int
    inf: int


@dataclass(frozen=True)
class Verdict:
    """A judgement with the evidence it rests on; prints as a sentence or two."""

    status: str
    """`nan`, `vanishing`, `exploding`, `stable` or `insufficient_data`."""
    message: str
    step: int | None = None
    """Since when."""
    layer: str | None = None
    """Where it was seen first."""

    @property
    def healthy(self) -> bool:
        """Whether nothing was found. Too little data is no finding."""
        return self.status in ("stable", "insufficient_data")

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


def judge(steps: Sequence[int], norms: Sequence[float], nonfinite: NonFinite | None) -> Verdict:
    """The verdict on a run from its norms and its first non-finite gradient, if there was one."""
    if nonfinite is not None:
        where = nonfinite.layers[0] if nonfinite.layers else None
        more = f" and {len(nonfinite.layers) - 1} more" if len(nonfinite.layers) > 1 else ""
        message = (
            f"step {nonfinite.step} was the first with non-finite gradients ({nonfinite.nan} NaN, "
            f"{nonfinite.inf} Inf), in `{where}`{more}."
        )
        return Verdict("nan", message, nonfinite.step, where)
    found = norm_trend(norms)
    since = steps[found.indices[0]] if found.indices else None
    return Verdict(found.status, found.message.replace("entry", "recorded step"), since)
