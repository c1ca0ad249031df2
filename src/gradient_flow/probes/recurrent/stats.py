"""How a recurrent network moves through time, in numbers: `RecurrentDynamics` and its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from gradient_flow.diagnosis.robust import slope_with_error
from gradient_flow.record.plain import to_json
from gradient_flow.table.text import known_number

OPTIMAL_RADIUS: Final = 0.9
CRITICAL_BAND: Final = 0.15


class Criticality(str, Enum):
    """Where the spectral radius lies: below, within or above `optimal_radius ± critical_band`."""

    SUBCRITICAL = "SUBCRITICAL"
    CRITICAL = "CRITICAL"
    SUPERCRITICAL = "SUPERCRITICAL"

    def __str__(self) -> str:
        return self.value


def criticality_of(radius: float, optimal_radius: float, critical_band: float) -> Criticality:
    """The side of the band that a radius lies on; its edges belong to it."""
    if radius < optimal_radius - critical_band:
        return Criticality.SUBCRITICAL
    return Criticality.SUPERCRITICAL if radius > optimal_radius + critical_band else Criticality.CRITICAL


def decay_per_step(logarithms: Sequence[float]) -> tuple[float, float] | None:
    """The factor of the gradient norm per step back, and the error of its logarithm; None for fewer than two states.

    From ln ||dL/ds|| at lag 0, 1, 2, …: the median slope. A gradient that is gone at once has factor 0.

    >>> factor, error = decay_per_step([lag * math.log(0.9) for lag in range(20)])
    >>> round(factor, 6)
    0.9
    """
    finite = [(float(lag), value) for lag, value in enumerate(logarithms) if math.isfinite(value)]
    if len(finite) < len(logarithms) and len(finite) < 3:
        return 0.0, 0.0
    if len(finite) < 2:
        return None
    slope = slope_with_error(finite)
    return math.exp(min(slope.value, 700.0)), slope.error


def memory_length(decay_rate: float) -> float:
    """Steps back until the gradient has fallen to 1/e: -1 / ln r; infinite where it does not fall.

    >>> round(memory_length(0.9), 2), memory_length(1.0), memory_length(0.0)
    (9.49, inf, 0.0)
    """
    if decay_rate <= 0:
        return 0.0
    return math.inf if decay_rate >= 1 else -1.0 / math.log(decay_rate)


SURE: Final = 8.0
"""Standard errors of a correlation: far beyond the largest by chance of all those that are looked at."""


@dataclass(frozen=True, kw_only=True)
class EarlyInputs:
    """The input in the first half of a sequence that the loss depends on most, against the last inputs."""

    lag: int
    """How many steps before the end it lies."""
    early: float
    """Correlation with the gradient of the loss, in standard errors: the largest over features and outputs."""
    late: float
    """The same of the last inputs."""

    @property
    def needed(self) -> bool:
        """Whether the loss surely depends on that input, and far more than on the last ones."""
        return self.early > SURE and self.early > 2 * self.late


@dataclass(frozen=True, kw_only=True)
class ModuleDynamics:
    """One layer in one direction, or one cell. What could not be measured is None and leads to no verdict."""

    name: str
    """Path of the module, with layer and direction where it has several: `encoder.rnn[l1_reverse]`."""
    module: str
    """Path of the module."""
    kind: str
    """`RNN`, `GRU`, `LSTM`, or the class of the cell."""
    state_size: int
    sequence_length: int
    """Steps that the module made."""
    steps: int
    """Steps that were looked at."""
    recurrent_weight: str = ""
    """Name of the weight that multiplies the state, where there is one such weight."""
    spectral_radius: float | None = None
    lyapunov_exponents: tuple[float, ...] = ()
    """The largest ones per step, largest first."""
    product_norms: Mapping[int, float] = field(default_factory=dict)
    """The largest norm found of a product of that many consecutive Jacobians."""
    temporal_decay_rate: float | None = None
    decay_error: float | None = None
    """Standard error of ln(temporal_decay_rate)."""
    true_gradient: bool = False
    """Whether the decay is that of the loss's own gradient; else of random directions."""
    effective_rank: float | None = None
    """Of h over all steps and samples, centred."""
    sample_rank: float | None = None
    """Of h as it differs between samples at the same step: a course that all samples share does not count."""
    input_rank: float | None = None
    """The same of what the cell was fed."""
    flat_gates: float | None = None
    """Share of gates, over steps and samples, whose slope is below a twentieth of the largest."""
    cut_share: float = 0.0
    """Share of the steps that took the state of the step before detached."""
    nonfinite_at: int | None = None
    """First step whose state was NaN or Inf although its input was not."""

    @property
    def lyapunov_exponent(self) -> float | None:
        """The largest."""
        return self.lyapunov_exponents[0] if self.lyapunov_exponents else None

    @property
    def product_norm(self) -> float | None:
        """The largest over all lengths."""
        return max(self.product_norms.values(), default=None)

    @property
    def effective_memory_length(self) -> float | None:
        """-1 / ln of the decay rate, in steps."""
        return None if self.temporal_decay_rate is None else memory_length(self.temporal_decay_rate)

    def __str__(self) -> str:
        memory, exponent = self.effective_memory_length, self.lyapunov_exponent
        parts = [
            f"radius {known_number(self.spectral_radius)}",
            f"memory {known_number(memory)} steps (gradient × {known_number(self.temporal_decay_rate)} per step)",
            f"Lyapunov {'–' if exponent is None else f'{exponent:+.3f}'}",
            f"product norm {known_number(self.product_norm)}",
            f"effective rank {known_number(self.effective_rank)}",
        ]
        return f"{self.name}  {self.kind}({self.state_size}): {', '.join(parts)}"


@dataclass(frozen=True, kw_only=True)
class RecurrentDynamics:
    """The whole network's dynamics: of its parts the one that keeps longest, grows most, or is narrowest.

    Stacked layers have a block-triangular Jacobian, so the largest radius of a layer is the radius of the stack.
    """

    modules: Mapping[str, ModuleDynamics]
    optimal_radius: float = OPTIMAL_RADIUS
    critical_band: float = CRITICAL_BAND
    course: tuple[tuple[int, float], ...] = ()
    """Spectral radius by analysis step, for the steps that were measured."""
    notes: tuple[str, ...] = ()
    early_inputs: EarlyInputs | None = None
    """Whether the loss depends on inputs of long ago; None where it has one at every step, or too little was seen."""

    @property
    def spectral_radius(self) -> float | None:
        """The largest eigenvalue magnitude of the state-transition Jacobian."""
        return _largest(m.spectral_radius for m in self.modules.values())

    @property
    def criticality(self) -> Criticality | None:
        """The radius against `optimal_radius ± critical_band`; equal to its text."""
        radius = self.spectral_radius
        return None if radius is None else criticality_of(radius, self.optimal_radius, self.critical_band)

    @property
    def temporal_decay_rate(self) -> float | None:
        """The factor of the gradient norm per step back in time."""
        return _largest(m.temporal_decay_rate for m in self.modules.values())

    @property
    def effective_memory_length(self) -> float | None:
        """Steps back until the gradient has fallen to 1/e; infinite where it does not fall."""
        return _largest(m.effective_memory_length for m in self.modules.values())

    @property
    def lyapunov_exponent(self) -> float | None:
        """The largest; above 0 neighbouring states part exponentially."""
        return _largest(m.lyapunov_exponent for m in self.modules.values())

    @property
    def product_norm(self) -> float | None:
        """The largest norm of a product of consecutive Jacobians."""
        return _largest(m.product_norm for m in self.modules.values())

    @property
    def effective_rank(self) -> float | None:
        """Of the hidden states, centred; the smallest over the parts."""
        ranks = [m.effective_rank for m in self.modules.values() if m.effective_rank is not None]
        return min(ranks, default=None)

    @property
    def sequence_length(self) -> int:
        """Steps of the longest sequence."""
        return max((m.sequence_length for m in self.modules.values()), default=0)

    def judged_by(self, optimal_radius: float, critical_band: float) -> RecurrentDynamics:
        """The same numbers against another band."""
        return replace(self, optimal_radius=optimal_radius, critical_band=critical_band)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold: what is not finite becomes None."""
        whole = {name: to_json(getattr(self, name)) for name in _DOCUMENTED}
        level = None if self.criticality is None else str(self.criticality)
        parts = {name: to_json(unit) for name, unit in self.modules.items()}
        return {
            **whole,
            "criticality": level,
            "course": to_json(self.course),
            "notes": list(self.notes),
            "modules": parts,
        }

    def __str__(self) -> str:
        radius, level = self.spectral_radius, self.criticality
        lines = [f"Recurrent dynamics over {self.sequence_length} steps"]
        if radius is not None:
            band = f"optimal {self.optimal_radius:g} ± {self.critical_band:g}"
            lines.append(f"  spectral radius          {known_number(radius)} ({level}; {band})")
        if self.temporal_decay_rate is not None:
            lines.append(f"  temporal decay rate      {known_number(self.temporal_decay_rate)} per step")
            lines.append(f"  effective memory length  {known_number(self.effective_memory_length)} steps")
        if self.lyapunov_exponent is not None:
            lines.append(f"  Lyapunov exponent        {self.lyapunov_exponent:+.3f} per step")
            lines.append(f"  largest product norm     {known_number(self.product_norm)}")
        if self.effective_rank is not None:
            lines.append(f"  effective rank           {known_number(self.effective_rank)}")
        if len(self.modules) > 1:
            lines += [f"  {module}" for module in self.modules.values()]
        return "\n".join([*lines, *(f"  Note: {note}" for note in self.notes)])


_DOCUMENTED: Final = (
    "spectral_radius",
    "effective_memory_length",
    "temporal_decay_rate",
    "lyapunov_exponent",
    "product_norm",
    "effective_rank",
    "sequence_length",
    "optimal_radius",
    "critical_band",
)


def _largest(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return max(found, default=None)
