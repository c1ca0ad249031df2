"""What a rule yields: an `Issue` with type, severity, place, evidence and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any


class IssueType(str, Enum):
    """What is wrong."""

    VANISHING = "vanishing"
    EXPLODING = "exploding"
    DEAD = "dead"
    UNSTABLE = "unstable"
    NUMERICAL = "numerical"
    SATURATION = "saturation"
    BOTTLENECK = "bottleneck"
    DISCONNECTED = "disconnected"
    SYMMETRY = "symmetry"
    SLOW = "slow"
    ROTATION = "rotation"
    SPECTRAL_RADIUS = "spectral radius"
    SHORT_MEMORY = "short memory"
    LOW_RANK = "low rank"
    ENTROPY_COLLAPSE = "entropy collapse"
    RANK_COLLAPSE = "rank collapse"
    HEAD_DIVERSITY = "head diversity"
    EXPLORATION = "exploration"

    def __str__(self) -> str:
        return self.value


class IssueSeverity(IntEnum):
    """How strong the evidence is that this harms the run. Ordered: `issue.severity >= IssueSeverity.HIGH` works."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Issue:
    """One finding. It prints as a paragraph: what, where, since when, the numbers, the likely cause, ranked advice."""

    issue_type: IssueType
    severity: IssueSeverity
    layer: str
    """Path of the module or parameter where it begins; `"model"` when it concerns all of it."""
    message: str
    """What was seen, in one sentence with its numbers."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that the finding rests on, by name; plain values only."""
    cause: str = ""
    """The likely reason, in one sentence."""
    advice: Sequence[str] = ()
    """What to do, the most promising first."""
    step: int | None = None
    """Since which step, where that is known."""
    consequences: Sequence[Issue] = ()
    """What follows from it, such as the layers behind the one where it begins."""

    @property
    def type(self) -> IssueType:
        """The same as `issue_type`."""
        return self.issue_type

    def __str__(self) -> str:
        since = "" if self.step is None else f", since step {self.step}"
        lines = [f"[{self.severity}] {self.issue_type.name} in `{self.layer}`{since}: {self.message}"]
        if self.cause:
            lines.append(f"  Likely cause: {self.cause}")
        for rank, advice in enumerate(self.advice, start=1):
            lines.append(f"  {rank}. {advice}")
        if self.consequences:
            seen = ", ".join(dict.fromkeys(f"{issue.issue_type} in `{issue.layer}`" for issue in self.consequences[:3]))
            more = f" and {len(self.consequences) - 3} more" if len(self.consequences) > 3 else ""
            lines.append(f"  Follows from it: {seen}{more}.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold: what is not finite becomes `None`."""
        return {
            "issue_type": self.issue_type.name,
            "severity": self.severity.name,
            "layer": self.layer,
            "message": self.message,
            "evidence": {name: _plain(value) for name, value in self.evidence.items()},
            "cause": self.cause,
            "advice": list(self.advice),
            "step": self.step,
            "consequences": [issue.to_dict() for issue in self.consequences],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
