"""When a step with NaN or Inf is looked at although its turn has not come, so that a map shows them where they were."""

from __future__ import annotations

from typing import Final

from gradient_flow.record.look import LookRecord
from gradient_flow.table import GradientTable

MOST_NONFINITE: Final = 100
"""Such looks in a run. After that only a set of bad tensors that was not seen before is worth one."""
MOST_SETS: Final = 1000
"""Sets that are remembered; a run that has more of them has been looked at often enough."""


class NonFiniteLooks:
    """Decides about each step with NaN or Inf; what was measured anyway is all that such a look holds."""

    def __init__(self) -> None:
        self._looks = 0
        self._seen: set[int] = set()

    def look(self, step: int, table: GradientTable) -> LookRecord | None:
        """The look at a step whose turn has not come; None where its gradients are finite, or were seen to be bad."""
        if table.total.finite:
            return None
        bad = hash(tuple(name for name, finite in zip(table.names, table.finite, strict=True) if not finite))
        is_new = bad not in self._seen and len(self._seen) < MOST_SETS
        if self._looks >= MOST_NONFINITE and not is_new:
            return None
        self._seen.add(bad)
        self._looks += 1
        return LookRecord(step=step, table=table)
