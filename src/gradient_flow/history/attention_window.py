"""What is remembered of one attention layer: the last steps in full, a longer stretch as one number a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import reduce
from typing import Final

from gradient_flow.measurement.attention_row import AttentionRow

RECENT: Final = 5
"""Statistics are taken over so many last steps: of a run that trains, the state it is in now."""
STEPS: Final = 512


class AttentionWindow:
    """One layer. Memory is bounded however long the run."""

    def __init__(self, block: str) -> None:
        self.block = block
        self._rows: deque[AttentionRow] = deque(maxlen=RECENT)
        self._tokens: dict[bool, deque[Sequence[float]]] = {False: deque(maxlen=RECENT), True: deque(maxlen=RECENT)}
        self._entropies: deque[float] = deque(maxlen=STEPS)
        self._peaks: deque[float] = deque(maxlen=STEPS)

    def add(self, row: AttentionRow) -> None:
        """One step."""
        if self._rows and len(self._rows[-1].heads) != len(row.heads):
            self._rows.clear()  # heads were pruned or added: the old ones are no longer these
        self._rows.append(row)
        entropies = [entropy for entropy in row.entropy if math.isfinite(entropy)]
        if entropies:  # a step of non-finite rows has none, and its absence is no trend
            self._entropies.append(sum(entropies) / len(entropies))
            self._peaks.append(max(row.peaks))

    def add_tokens(self, after: bool, sums: Sequence[float]) -> None:
        """The tokens before or after the layer's block, by `TOKEN_COLUMNS`."""
        self._tokens[after].append(sums)

    @property
    def row(self) -> AttentionRow:
        """The last steps as one."""
        return reduce(AttentionRow.merge, self._rows)

    def tokens(self, after: bool) -> tuple[float, float] | None:
        """Mean spread and similarity over the last steps; `None` where none were seen."""
        samples, spread, similarity = (sum(column) for column in zip((0.0,) * 3, *self._tokens[after], strict=True))
        return (spread / samples, similarity / samples) if samples else None

    @property
    def entropy_by_step(self) -> tuple[float, ...]:
        """Mean entropy of the heads in each step that had a finite one."""
        return tuple(self._entropies)

    @property
    def max_logit_by_step(self) -> tuple[float, ...]:
        """Largest magnitude of a logit in the same steps."""
        return tuple(self._peaks)
