"""The cases of the demo: a healthy training and faults planted into others, each with what has to be found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradient_flow.diagnosis.issue import IssueType


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training to be watched; `setups.py` builds it."""

    name: str
    title: str
    """What is trained and what is wrong with it, in a few words."""
    expected: IssueType | None
    """What has to be found; None for a healthy one."""
    steps: int
    analyzer: str = "general"


CASES: Final = {
    case.name: case
    for case in (
        Case(
            name="healthy",
            title="transformer, 3 blocks, AdamW: nothing wrong",
            expected=None,
            steps=80,
            analyzer="transformer",
        ),
        Case(
            name="vanishing",
            title="10 layers with sigmoids: gradients vanish on the way back",
            expected=IssueType.VANISHING,
            steps=120,
        ),
        Case(
            name="nan",
            title="a sensor sticks, its spread is 0: the loss turns NaN",
            expected=IssueType.NUMERICAL,
            steps=120,
        ),
        Case(
            name="attention",
            title="transformer whose attention sharpens without end",
            expected=IssueType.ENTROPY_COLLAPSE,
            steps=80,
            analyzer="transformer",
        ),
        Case(
            name="exploding",
            title="10 layers, initial weights twice too large",
            expected=IssueType.EXPLODING,
            steps=100,
        ),
        Case(
            name="dead",
            title="a layer of ReLUs that never fire",
            expected=IssueType.DEAD,
            steps=100,
        ),
        Case(
            name="spike",
            title="one batch in the wrong unit",
            expected=IssueType.UNSTABLE,
            steps=100,
        ),
        Case(
            name="slow",
            title="a learning rate far too small",
            expected=IssueType.SLOW,
            steps=100,
        ),
    )
}
SHOWN: Final = ("healthy", "vanishing", "nan", "attention")
"""What `gradient-flow demo` trains by default."""
