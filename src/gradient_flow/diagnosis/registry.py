"""The rules in force: ours and those that users add. A rule that fails is named once and left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar, overload

from gradient_flow.diagnosis.issue import Issue
from gradient_flow.errors import InputError, warn

Rule = Callable[[Any], Iterable[Issue]]
"""A pure function of a record that yields issues."""
AnyRule = TypeVar("AnyRule", bound=Rule)

PROBE_RULES: Final = {
    "recurrent": "gradient_flow.probes.recurrent.rules",
    "attention": "gradient_flow.probes.attention.rules",
    "policy": "gradient_flow.probes.policy.rules",
    "routing": "gradient_flow.probes.routing.rules",
    "embedding": "gradient_flow.probes.embedding.rules",
    "field": "gradient_flow.probes.field.rules",
}
"""Name of a probe → the module whose `judge` knows what to make of what it found. Loaded when a run holds such."""

_RULES: Final[dict[str, dict[str, Rule]]] = {"analysis": {}, "run": {}}
_TOLD: Final[set[str]] = set()


@overload
def register_rule(rule: AnyRule, *, of: str = ..., name: str | None = ...) -> AnyRule: ...
@overload
def register_rule(rule: None = None, *, of: str = ..., name: str | None = ...) -> Callable[[AnyRule], AnyRule]: ...
def register_rule(rule: Any = None, *, of: str = "analysis", name: str | None = None) -> Any:
    """Add a rule; usable as a decorator, with or without arguments.

    A rule of the same name takes the place of the earlier one.

    `of="analysis"`: it is given an `AnalysisRecord`, where the inside of the model was seen. `of="run"`: a
    `RunRecord`. What it finds is kept in the run file under its name, so that a verdict taken without it shows it too.

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
    _RULES[of][name or _name_of(rule)] = rule
    return rule


def unregister_rule(name: str) -> None:
    """Take the rule of this `name` out again."""
    found = [rules for rules in _RULES.values() if name in rules]
    if not found:
        known = ", ".join(name for rules in _RULES.values() for name in rules)
        raise InputError(f"`name` must be that of a registered rule ({known or 'there is none'}); got {name!r}.")
    for rules in found:
        del rules[name]


def registered(of: str) -> dict[str, Rule]:
    """The rules of users, by name."""
    return dict(_RULES[of])


def apply_rules(record: Any, ours: Iterable[Rule], of: str) -> list[Issue]:
    """What our rules and those of users find in a record."""
    found = [issue for rule in ours for issue in _found_by(rule, record, _name_of(rule))]
    for name, rule in _RULES.get(of, {}).items():
        found += [replace(issue, origin=issue.origin or name) for issue in _found_by(rule, record, name)]
    return found


def apply_probe_rules(probe: str, found: Mapping[str, Any]) -> list[Issue]:
    """What the rules beside a probe make of what it found; of a probe that is not known here, nothing."""
    home = PROBE_RULES.get(probe)
    if home is None:
        return []
    return _found_by(lambda plain: import_module(home).judge(plain), found, f"{probe} rules")


def _name_of(rule: Rule) -> str:
    return str(getattr(rule, "__name__", repr(rule)))


def _found_by(rule: Rule, record: Any, name: str) -> list[Issue]:
    try:
        return _checked(rule(record))
    except Exception as problem:  # whatever a rule does, the others go on
        if name not in _TOLD:
            _TOLD.add(name)
            warn(f"Rule {name!r} failed and was skipped ({type(problem).__name__}: {problem}).", stacklevel=5)
        return []


def _checked(issues: Iterable[Issue] | None) -> list[Issue]:
    found = list(issues or ())
    for issue in found:
        if not isinstance(issue, Issue):
            raise TypeError(f"a rule must yield issues, this one yielded {type(issue).__name__}")
    return found
