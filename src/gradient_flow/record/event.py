"""`Event`: something that happened in a run beside its steps: a resume, the end, what forensics found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gradient_flow.record.about import ABOUT
from gradient_flow.record.run_lines import is_step

RESUMED: Final = "resumed"
END: Final = "end"
RESERVED_KINDS: Final = frozenset(("header", "parameters", "step", "look", "layers", "seen", ABOUT, RESUMED, END))
"""Kinds of lines that a user's own event must not take."""
UNSUPPORTED: Final = "unsupported"
"""The gradients cannot be read here, so nothing is judged; `data["reason"]` says why."""
CLIP_BEFORE_UNSCALE: Final = "clip_before_unscale"
"""Gradients were clipped with the loss scale still in them; `data["scale"]` is that scale."""
FORENSICS: Final = "forensics"
"""What `find_nonfinite` found; `data["origin"]` is a `NonFiniteOrigin` as plain values."""

BATCH: Final = "batch"
"""The batch of a step that spiked or turned NaN: `batch`, a salted hash of its inputs; `micro_batches`, that of each
part, and `micro_batch`, the part whose loss stands out; `indices`, what the sampler of a DataLoader drew for it."""

LOOKED: Final = "looked"
"""A step was looked at from inside: `because` says why, `seconds` what it cost, `asked_by` how many ranks asked for it,
`dropped` how many looks before it the budget did not allow, `dropped_steps` the last steps of those."""

LOOKS_DROPPED: Final = "looks_dropped"
"""At the end of the run: `dropped` and `dropped_steps` of the time after the last look."""

LOOKS_ENDED: Final = "looks_ended"
"""No look inside the model comes any more; `reason` says why."""

MODE: Final = "mode"
"""From this step on the model is trained in evaluation mode, or in training mode again: `training`; `resting`, its
dropout and batch norms, where all of them behave as in evaluation."""
MOST_MODES: Final = 32
"""Changes of mode that are recorded. A loop with more of them switches for reasons of its own."""

CURE: Final = "cure"
"""Fixes were tried on the model as it was then; `data["cure"]` is a `Cure` as plain values."""
READ_FROM_GRAPH: Final = "graph"
"""`read_from` of an origin that was read from the graph of the loss: what a replay finds says more."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event: its `kind`, the step it belongs to, and plain values."""

    kind: str
    step: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> dict[str, Any]:
        """As a line of the run file."""
        return {"kind": self.kind, **({} if self.step is None else {"step": self.step}), **self.data}

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Event:
        """From a line of the run file."""
        step = line.get("step")
        data = {name: value for name, value in line.items() if name not in ("kind", "step")}
        return cls(kind=str(line["kind"]), step=step if is_step(step) else None, data=data)
