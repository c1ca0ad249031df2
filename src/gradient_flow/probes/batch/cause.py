"""`BatchCause`: the samples that make a batch bad, as plain numbers and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradient_flow.record.plain import to_plain

NONFINITE = "non-finite"
SPIKE = "spike"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCause:
    """What `find_batch` found. Prints as a sentence or two; `to_dict()` is ready for JSON."""

    indices: tuple[int, ...]
    """Positions in the batch of the samples that cause it; empty where no few samples do."""
    kind: str
    """`non-finite`, `spike`, or `nothing` where the batch is sound in this replay."""
    samples: int
    """How many samples the batch has."""
    replays: int
    """How often `step_fn` ran."""
    message: str
    """What was found, in a sentence or two."""
    coupled: str = ""
    """Why a sample cannot be judged by itself, where that is so: a batch norm, a contrastive loss. Else empty."""
    loss: float | None = None
    """Of the whole batch."""
    norm: float | None = None
    """Of the whole batch's gradients; None where the loss was not finite, so that no backward pass was run."""
    loss_without: float | None = None
    """The same without these samples; None where that was not replayed."""
    norm_without: float | None = None

    @property
    def found(self) -> bool:
        """Whether there are samples to blame."""
        return bool(self.indices)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def __str__(self) -> str:
        return f"{self.message} {self.coupled}".rstrip()
