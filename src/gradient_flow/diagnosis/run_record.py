"""What a run recorded, as plain numbers: the only thing that rules over time are given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Series:
    """Norms over time of all gradients that one optimizer steps, or of one layer. NaN where not finite."""

    name: str
    steps: list[int]
    norms: list[float]

    def finite(self) -> tuple[list[int], list[float]]:
        """The steps whose norm is finite, and those norms."""
        kept = [(step, norm) for step, norm in zip(self.steps, self.norms, strict=True) if math.isfinite(norm)]
        return [step for step, _ in kept], [norm for _, norm in kept]


@dataclass(kw_only=True)
class LayerSeries(Series):
    """One parameter tensor, at the steps that have a table."""

    elements: list[int] = field(default_factory=list)
    update_ratios: list[float] = field(default_factory=list)
    is_weight: bool = True
    """A matrix: not a bias, not the scale of a normalisation."""


@dataclass(frozen=True)
class NonFinite:
    """The first step with NaN or Inf in a gradient, and the layers that had them."""

    step: int
    layers: tuple[str, ...]
    nan: int
    inf: int


@dataclass(kw_only=True)
class RunRecord:
    """All that rules over time are given. Plain numbers and names; no torch."""

    totals: list[Series] = field(default_factory=list)
    """One per optimizer."""
    losses: list[float] = field(default_factory=list)
    """Empty where none were recorded."""
    clipped: list[tuple[float, float]] = field(default_factory=list)
    """Norm before and after clipping, of the steps that have both."""
    layers: list[LayerSeries] = field(default_factory=list)
    """From the input to the output, as far as the order of parameters tells."""
    bad_step: int | None = None
    """The first step with NaN or Inf."""
    bad_layers: tuple[str, ...] = ()
    bad_counts: tuple[int, int] = (0, 0)
    learning_rate: float | None = None

    @property
    def steps(self) -> int:
        """Steps that were recorded, over all optimizers."""
        return sum(len(series.steps) for series in self.totals)

    @property
    def loss_change(self) -> float:
        """Median of the last fifth of the losses over that of the first; NaN where not recorded."""
        finite = _finite(self.losses)
        few = len(finite) // 5
        if few < 1:
            return math.nan
        first, last = _middle(finite[:few]), _middle(finite[-few:])
        return last / first if first > 0 else math.nan


def _finite(values: list[float]) -> list[float]:
    """The finite values, in the order of time."""
    return [value for value in values if math.isfinite(value)]


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
