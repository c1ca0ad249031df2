"""The sums of one attention layer as plain numbers, and every statistic that follows from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HEAD_COLUMNS: Final = ("rows", "entropy", "nats", "near_zero", "freezing", "nonfinite", "no_choice")
"""Sums over sampled rows, per head. Of the rows that count: how many, their entropy as a share of ln(keys) and in nats,
the share of their weights that are near zero, and the standard deviation of their logits over sqrt(2 ln(keys)). Beyond
1 for the last, a softmax over normal logits freezes onto a few of them, however many there are (Derrida's random energy
model); one key that stands out, a sink, hardly raises it. Then the rows left out because they are not finite, or
because a mask leaves them one of several keys."""
DIVERSITY_COLUMNS: Final = (
    *("rows", "share", "divergence", "expected"),
    *("rows_beyond", "divergence_beyond", "expected_beyond"),
)
"""Sums over rows, for all heads together: how many; divergence of the heads as a share of ln(heads); divergence; what
independent heads would show. Then all but the share once more beyond the sink, that is without the key that the heads
together attend to most: in trained models most heads of a layer may share one, and still differ in the rest."""
TOKEN_COLUMNS: Final = ("samples", "spread", "similarity")
"""Sums over samples: how many, the spread of their tokens, and the mean cosine between two different tokens."""

UNFOCUSED: Final = 1e-9
"""Nats from uniform attention below which heads cannot be told apart."""


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One layer over one step or more. Rows merge by adding up."""

    heads: Sequence[Sequence[float]]
    """One sequence by `HEAD_COLUMNS` for each head."""
    peaks: Sequence[float]
    """Largest magnitude of a logit, for each head."""
    diversity: Sequence[float]
    """By `DIVERSITY_COLUMNS`."""

    @classmethod
    def from_flat(cls, numbers: Sequence[float], heads: int) -> AttentionRow:
        """Read what `AttentionSums.flat` wrote."""
        width = len(HEAD_COLUMNS)
        per_head = [tuple(numbers[width * head : width * (head + 1)]) for head in range(heads)]
        rest = numbers[width * heads :]
        return cls(per_head, tuple(rest[:heads]), tuple(rest[heads:]))

    def merge(self, other: AttentionRow) -> AttentionRow:
        """The rows of both, which have the same number of heads."""
        heads = [_added(mine, its) for mine, its in zip(self.heads, other.heads, strict=True)]
        peaks = tuple(map(max, self.peaks, other.peaks))
        return AttentionRow(heads, peaks, _added(self.diversity, other.diversity))

    @property
    def entropy(self) -> tuple[float, ...]:
        """Per head, as a share of ln(keys); NaN where no row counts."""
        return tuple(_ratio(head[1], head[0]) for head in self.heads)

    @property
    def nats(self) -> tuple[float, ...]:
        """Per head, the entropy in nats; NaN where no row counts."""
        return tuple(_ratio(head[2], head[0]) for head in self.heads)

    @property
    def sparsity(self) -> tuple[float, ...]:
        """Per head, the share of weights that are near zero; NaN where no row counts."""
        return tuple(_ratio(head[3], head[0]) for head in self.heads)

    @property
    def freezing(self) -> tuple[float, ...]:
        """Per head, the spread of logits in relation to where a softmax over this many keys freezes."""
        return tuple(_ratio(head[4], head[0]) for head in self.heads)

    @property
    def nonfinite(self) -> float:
        """Share of rows that are not finite, of those with a choice."""
        bad, good = sum(head[5] for head in self.heads), sum(head[0] for head in self.heads)
        return bad / (bad + good) if bad else 0.0

    @property
    def without_choice(self) -> float:
        """Share of rows that a mask leaves one key of several, of those that have one or more."""
        alone, others = sum(head[6] for head in self.heads), sum(head[0] + head[5] for head in self.heads)
        return alone / (alone + others) if alone else 0.0

    @property
    def head_diversity(self) -> float | None:
        """0 for equal heads, 1 for heads as different as independent ones; `None` for one head or no rows.

        The larger of the two: with all keys, and beyond the sink.
        """
        rows, _, *every = self.diversity[:4]
        return min(1.0, max(_share(rows, *every), _share(*self.diversity[4:]))) if rows else None

    @property
    def head_divergence(self) -> float | None:
        """Generalised Jensen-Shannon divergence of the heads, as a share of ln(heads)."""
        return self.diversity[1] / self.diversity[0] if self.diversity[0] else None

    @property
    def head_focus(self) -> float:
        """Divergence in nats that independent heads as focused as these would show; 0 for uniform attention."""
        return self.diversity[3] / self.diversity[0] if self.diversity[0] else 0.0


def _added(mine: Sequence[float], its: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(mine, its, strict=True))


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan


def _share(rows: float, divergence: float, expected: float) -> float:
    return divergence / expected if expected > UNFOCUSED * rows else 0.0
