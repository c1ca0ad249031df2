"""The rules in force: ours and those that users add. A rule that fails is named once and left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar, overload

from gradient_flow.diagnosis.issue import Issue
from gradient_flow.errors import GradientFlowWarning, InputError

Rule = Callable[[Any], Iterable[Issue]]
"""A pure function of a record that yields issues."""
AnyRule = TypeVar("AnyRule", bound=Rule)

_RULES: Final[dict[str, dict[str, Rule]]] = {"analysis": {}, "run": {}}
_TOLD: Final[set[str]] = set()


@overload
def register_rule(rule: AnyRule, *, of: str = ..., name: str | None = ...) -> AnyRule: ...
@overload
def register_rule(rule: None = None, *, of: str = ..., name: str | None = ...) -> Callable[[AnyRule], AnyRule]: ...
def register_rule(rule: Any = None, *, of: str = "analysis", name: str | None = None) -> Any:
    """Add a rule; usable as a decorator, with or without arguments.

    A rule of the same name takes the place of the earlier one.

    `of="analysis"`: it is given an `AnalysisRecord` by the analyzers. `of="run"`: a `RunRecord` by `diagnose`.

    >>> from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
    >>> @register_rule
    ... def loss_is_negative(record):
    ...     if min(record.losses, default=0.0) < 0:
    ...         yield Issue(issue_type=IssueType.UNSTABLE, severity=IssueSeverity.LOW, layer="model", message="below 0")
    >>> unregister_rule("loss_is_negative")
    """
    if of not in _RULES:
        raise InputError(f"`of` must be one of {', '.join(_RULES)}; got {of!r}.")
    if rule is None:
        return partial(register_rule, of=of, name=name)
    if not callable(rule):
        raise InputError(f"`rule` must be a function of a record that yields issues, got {type(rule).__name__}.")
    _RULES[of][name or str(getattr(rule, "__name__", repr(rule)))] = rule
    return rule


def unregister_rule(name: str) -> None:
    """Take a rule out again."""
    found = [rules for rules in _RULES.values() if name in rules]
    if not found:
        known = ", ".join(name for rules in _RULES.values() for name in rules)
        raise InputError(f"`name` must be that of a registered rule ({known or 'there is none'}); got {name!r}.")
    for rules in found:
        del rules[name]


def apply_rules(record: Any, ours: Iterable[Rule], of: str) -> list[Issue]:
    """What our rules and those of users find in a record."""
    found: list[Issue] = []
    for rule in (*ours, *_RULES[of].values()):
        try:
            found += _checked(rule(record))
        except Exception as problem:  # whatever a rule does, the others go on
            name = getattr(rule, "__name__", repr(rule))
            if name not in _TOLD:
                _TOLD.add(name)
                warnings.warn(
                    f"Rule {name!r} failed and is left out ({type(problem).__name__}: {problem}).",
                    GradientFlowWarning,
                    stacklevel=4,
                )
    return found


def _checked(issues: Iterable[Issue] | None) -> list[Issue]:
    found = list(issues or ())
    for issue in found:
        if not isinstance(issue, Issue):
            raise TypeError(f"a rule must yield issues, this one yielded {type(issue).__name__}")
    return found
