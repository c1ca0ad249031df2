"""`Diagnosis`: issues as a sequence, with a verdict in a sentence and ways to filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, overload

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType

_STATUS: Final = {IssueType.NUMERICAL: "nan"}
"""Issue types whose status has another word."""


class Diagnosis(Sequence[Issue]):
    """What can be said of a run. A sequence of issues, the gravest first; prints a verdict, then a paragraph for each.

    >>> print(Diagnosis([], steps=200))
    Healthy: no issue found in 200 steps.
    """

    def __init__(self, issues: Iterable[Issue], *, steps: int = 0, enough: bool = True) -> None:
        self.issues = tuple(sorted(issues, key=lambda issue: -issue.severity))
        self.steps = steps
        self._enough = enough

    @property
    def healthy(self) -> bool:
        """Whether nothing of medium severity or above was found. Too little data is no finding."""
        return all(issue.severity < IssueSeverity.MEDIUM for issue in self.issues)

    @property
    def status(self) -> str:
        """`stable`, `insufficient_data`, `nan`, or the type of the gravest issue, such as `vanishing`."""
        if self.healthy:
            return "stable" if self._enough else "insufficient_data"
        first = self.issues[0].issue_type
        return _STATUS.get(first, first.value)

    @property
    def message(self) -> str:
        """The verdict in a sentence."""
        if not self.issues:
            if self._enough:
                return f"Healthy: no issue found in {self.steps} steps."
            return f"Too few steps for a verdict: {self.steps}." if self.steps else "No step has been recorded yet."
        first, more = self.issues[0], len(self.issues) - 1
        also = f" (and {more} more)" if more else ""
        since = f" since step {first.step}" if first.step is not None else ""
        return f"{first.issue_type.name} in `{first.layer}`{since}: {first.message}{also}"

    @property
    def step(self) -> int | None:
        """Since when, of the gravest issue."""
        return self.issues[0].step if self.issues else None

    @property
    def layer(self) -> str | None:
        """Where, of the gravest issue."""
        return self.issues[0].layer if self.issues else None

    def filter(
        self,
        *,
        severity: IssueSeverity | None = None,
        issue_type: IssueType | None = None,
        layer: str | None = None,
    ) -> Diagnosis:
        """Those of at least this severity, of this type, with this text in the name of their layer."""
        kept = [
            issue
            for issue in self.issues
            if (severity is None or issue.severity >= severity)
            and (issue_type is None or issue.issue_type == issue_type)
            and (layer is None or layer.lower() in issue.layer.lower())
        ]
        return Diagnosis(kept, steps=self.steps, enough=self._enough)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values that strict JSON can hold."""
        issues = [issue.to_dict() for issue in self.issues]
        return {"status": self.status, "healthy": self.healthy, "steps": self.steps, "issues": issues}

    @overload
    def __getitem__(self, index: int) -> Issue: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Issue, ...]: ...
    def __getitem__(self, index: int | slice) -> Issue | tuple[Issue, ...]:
        return self.issues[index]

    def __len__(self) -> int:
        return len(self.issues)

    def __bool__(self) -> bool:
        return bool(self.issues)

    def __str__(self) -> str:
        if not self.issues:
            return self.message
        many = "1 issue" if len(self) == 1 else f"{len(self)} issues"
        verdict = "Healthy, with a remark" if self.healthy else f"Not healthy ({self.status})"
        return "\n\n".join([f"{verdict}: {many} in {self.steps} steps.", *map(str, self.issues)])

    def __repr__(self) -> str:
        return f"Diagnosis({self.status!r}, {len(self)} issues, {self.steps} steps)"
