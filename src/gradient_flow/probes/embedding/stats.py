"""What was seen of the gradients of embeddings, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class EmbeddingRows:
    """The gradient of one embedding, look by look."""

    name: str
    rows: int
    """Of the table."""
    used: Sequence[int]
    """Rows with a gradient."""
    top_row: Sequence[int]
    """The row with the largest gradient."""
    top_share: Sequence[float]
    """Its share of the squared norm of the table's gradient."""
    top_asked: Sequence[float | None] = field(default_factory=list)
    """Its share of the look-ups; None where these were not seen."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingStats:
    """All embeddings of a model."""

    tables: Sequence[EmbeddingRows]
