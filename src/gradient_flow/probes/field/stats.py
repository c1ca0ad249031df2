"""`FieldStats`: what was seen of a gradient field, as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradient_flow.table.text import plain


@dataclass(frozen=True, kw_only=True)
class FieldStats:
    """The Jacobian of a gradient field in numbers, each with its standard error (0 when exact)."""

    players: int
    parameters: int
    exact: bool
    probes: int
    divergence: float
    """tr J: above 0 training contracts, below 0 it expands."""
    divergence_error: float
    symmetric_norm: float
    """||S||, Frobenius."""
    antisymmetric_norm: float
    """||A||, Frobenius."""
    rotation: float
    """||A||² / (||A||² + ||S||²): 0 pure descent, 1 pure rotation; NaN where J is zero."""
    rotation_error: float
    gradient_norm: float
    """||ξ||."""
    eigenvalues: tuple[complex, ...] | None = None
    """Of J, only when exact; training contracts along those with a positive real part."""
    coherence: float | None = None
    """||mean ξ||² / mean ||ξ||² over steps, where those were collected: 1 the same direction at every step."""
    note: str = ""

    @property
    def largest_stable_step(self) -> float | None:
        """The learning rate below which plain simultaneous descent contracts here: min 2 Re λ / |λ|².

        `None` without eigenvalues; 0 if there is none, as on a pure rotation.
        """
        if self.eigenvalues is None:
            return None
        limits = [2 * value.real / abs(value) ** 2 for value in self.eigenvalues if abs(value) > 0]
        return max(0.0, min(limits)) if limits else math.inf

    def __str__(self) -> str:
        how = "exact" if self.exact else f"{self.probes} probes"
        losses = "1 loss" if self.players == 1 else f"{self.players} losses"
        lines = [
            f"Gradient field of {losses}, {self.parameters} parameters ({how})",
            f"  rotation {self.rotation:.3f} ± {plain(self.rotation_error, 2)} (0 descent, 1 pure rotation)",
            f"  divergence {plain(self.divergence, 4)} ± {plain(self.divergence_error, 2)}, "
            f"symmetric part {plain(self.symmetric_norm, 4)}, antisymmetric part {plain(self.antisymmetric_norm, 4)}",
        ]
        if self.coherence is not None:
            lines.append(f"  flow coherence {self.coherence:.3f}")
        if self.largest_stable_step is not None:
            lines.append(f"  largest stable step {plain(self.largest_stable_step)}")
        return "\n".join([*lines, f"  {self.note}"] if self.note else lines)
