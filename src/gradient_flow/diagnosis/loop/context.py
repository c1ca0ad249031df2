"""What rules on the loop are given: looks at the loop, the run, what was seen inside the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.optimizer.record import OptimizerFacts
from gradient_flow.record.evidence import RunRecord, Series

CLASSES: Final = ("cross_entropy", "nll_loss")
REGRESSION: Final = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
"""Loss functions of torch, of labels and of numbers."""
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
    states: OptimizerFacts = field(default_factory=OptimizerFacts)
    """What was seen of the state of optimizers."""

    @property
    def looks(self) -> list[LoopLook]:
        """Looks at the loop; none where there are too few to agree."""
        return self.facts.looks if self.facts.taken >= ENOUGH else []

    @property
    def alone(self) -> Series | None:
        """The steps of the one optimizer that there is."""
        return self.run.totals[0] if len(self.run.totals) == 1 else None

    @cached_property
    def losses(self) -> list[float]:
        """Finite losses of the one optimizer."""
        return [loss for loss in self.alone.losses if math.isfinite(loss)] if self.alone is not None else []

    @cached_property
    def updates(self) -> list[float]:
        """Update ratios of the typical weight matrix, one for each table and each look inside the network."""
        tables = [layer.update_ratios for layer in self.run.layers if layer.is_weight]
        return [*_typical(tables), *self.seen_updates]

    @cached_property
    def seen_updates(self) -> list[float]:
        """The same, of looks alone, from the first on."""
        seen = [] if self.network is None else self.network.layers
        return _typical([layer.update_ratio for layer in seen if not layer.zero_weights])

    @property
    def largest_update(self) -> float:
        """The same in the step that moved it most."""
        return max(self.updates, default=0.0)

    @property
    def typical_update(self) -> float:
        """The same in the typical step."""
        return median(self.updates or [0.0])

    def calls(self, *functions: str) -> list[tuple[LoopLook, LossCall]]:
        """Calls of these loss functions, each with the look it was in; none where not every look has one."""
        found = [(look, call) for look in self.looks for call in look.calls if call.function in functions]
        return found if {look.step for look, _ in found} == {look.step for look in self.looks} else []


def _typical(ratios: Sequence[Sequence[float]]) -> list[float]:
    """Of each table the median over matrices. One that left zero has moved by more than its size: it says nothing."""
    finite = [[ratio for ratio in each if math.isfinite(ratio)] for each in ratios]
    longest = max((len(each) for each in finite), default=0)
    return [median(each[at] for each in finite if at < len(each)) for at in range(longest)]


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
