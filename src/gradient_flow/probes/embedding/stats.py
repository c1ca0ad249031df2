"""What was seen of the gradients of embeddings, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


@dataclass(frozen=True, kw_only=True)
class EmbeddingStats:
    """All embeddings of a model."""

    tables: Sequence[EmbeddingRows]
