"""From which severity on something counts as failed: said in words, by commands and by the test helper."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gradient_flow.checks import check_choice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity

FAIL_ON: Final = (*(severity.name.lower() for severity in IssueSeverity), "never")


def at_least(issues: Iterable[Issue], fail_on: str) -> list[Issue]:
    """The issues of this severity (`low`, `medium`, `high`, `critical`) or above; none of them for `never`."""
    check_choice("fail_on", fail_on, FAIL_ON)
    return [] if fail_on == "never" else [i for i in issues if i.severity >= IssueSeverity[fail_on.upper()]]
