"""What rules on the loop are given: looks at the loop, the run, what was seen inside the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.record.evidence import RunRecord, Series

ENOUGH: Final = 3
"""Looks that have to agree."""
LARGE: Final = 1.0
"""A step that moves the typical weight matrix by its own size."""


@dataclass(frozen=True)
class Loop:
    """A run, and what is known of the loop that made it."""

    run: RunRecord
    facts: LoopFacts
    network: AnalysisRecord | None = None

    @property
    def looks(self) -> list[LoopLook]:
        """Looks at the loop; none where there are too few to agree."""
        return self.facts.looks if self.facts.taken >= ENOUGH else []

    @property
    def alone(self) -> Series | None:
        """The steps of the one optimizer that there is."""
        return self.run.totals[0] if len(self.run.totals) == 1 else None

    @property
    def losses(self) -> list[float]:
        """Finite losses of the one optimizer."""
        return [loss for loss in self.alone.losses if math.isfinite(loss)] if self.alone is not None else []

    @property
    def largest_update(self) -> float:
        """Of the typical weight matrix, in the table or look where steps were largest."""
        weights = [[r for r in layer.update_ratios if math.isfinite(r)] for layer in self.run.layers if layer.is_weight]
        tables = max((len(ratios) for ratios in weights), default=0)
        found = [median(r[at] for r in weights if at < len(r)) for at in range(tables)]
        seen = [] if self.network is None else [layer for layer in self.network.layers if not layer.zero_weights]
        inside = [[r for r in layer.update_ratio if math.isfinite(r)] for layer in seen]
        looks = max((len(ratios) for ratios in inside), default=0)
        found += [median(r[at] for r in inside if at < len(r)) for at in range(looks)]
        return max(found, default=0.0)

    def calls(self, *functions: str) -> list[tuple[LoopLook, LossCall]]:
        """Calls of these loss functions, each with the look it was in; none where not every look has one."""
        found = [(look, call) for look in self.looks for call in look.calls if call.function in functions]
        return found if {look.step for look, _ in found} == {look.step for look in self.looks} else []


def issue(code: str, severity: IssueSeverity, message: str, cause: str, advice: Sequence[str], **more: Any) -> Issue:
    """An issue of the loop."""
    layer, step, evidence = more.pop("layer", "model"), more.pop("step", None), more.pop("evidence", more)
    return Issue(
        issue_type=IssueType.LOOP,
        severity=severity,
        layer=layer,
        message=message,
        evidence=evidence,
        cause=cause,
        advice=list(advice),
        step=step,
        code=code,
    )


def module_of(parameter: str) -> str:
    """The module that has a parameter; the parameter itself where that is the model.

    >>> module_of("encoder.0.weight"), module_of("scale")
    ('encoder.0', 'scale')
    """
    return parameter.rpartition(".")[0] or parameter


def some(names: Sequence[str]) -> str:
    """Some names, in words.

    >>> some(["a", "b", "c", "d"])
    '`a`, `b`, `c` and 1 more'
    """
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
