"""Verdicts on recurrent dynamics: fast forgetting, exploding states, transient growth, short memory, low rank.

A documented threshold crossed alone is LOW: torch's own cells start with a radius of 0.55 to 0.7 and a memory of two or
three steps, and train well. What raises it: growth over the whole sequence (Lyapunov exponent, norms of products), a
memory too short for the lag that the user says the task has, or that the loss's dependence on early inputs shows, or a
threshold that the user set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue
from gradient_flow.probes.recurrent.stats import (
    CRITICAL_BAND,
    OPTIMAL_RADIUS,
    Criticality,
    ModuleDynamics,
    RecurrentDynamics,
)
from gradient_flow.probes.recurrent.unit_rules import (
    Limits,
    cut_between_steps,
    dead_state,
    exploding_states,
    fast_forgetting,
    flat_gates,
    in_parts,
    low_rank,
    short_memory,
    transient_growth,
)
from gradient_flow.record.plain import from_plain

__all__ = ["Criticality", "ModuleDynamics", "RecurrentDynamics", "recurrent_issues"]

_RULES: Final[tuple[tuple[Callable[[ModuleDynamics, Limits], Issue | None], bool], ...]] = (
    (exploding_states, False),
    (transient_growth, False),
    (fast_forgetting, True),
    (short_memory, True),
    (low_rank, False),
    (dead_state, False),
    (flat_gates, False),
    (cut_between_steps, False),
    (in_parts, True),
)
"""Each with whether it needs to hold in every layer and direction."""


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what the recurrent probe found, with the settings it was asked with."""
    return recurrent_issues(from_plain(RecurrentDynamics, found["stats"]), **found.get("settings", {}))


def recurrent_issues(
    dynamics: RecurrentDynamics,
    *,
    optimal_radius: float = OPTIMAL_RADIUS,
    critical_band: float = CRITICAL_BAND,
    required_lag: float | None = None,
    explicit: Collection[str] = frozenset(),
) -> Iterator[Issue]:
    """Findings by module and kind; of a module's layers and directions one speaks for all.

    Growth counts in any of them. Forgetting counts only where all of them forget: one that keeps is enough, as the
    largest radius of stacked layers is that of the stack. `required_lag` is how many steps back the task reaches.
    `explicit` names the settings that the user set: what crosses those is HIGH.
    """
    early = dynamics.early_inputs
    measured = required_lag is None and early is not None and early.needed
    if measured and early is not None:
        required_lag = early.lag
    limits = Limits(
        optimal_radius,
        critical_band,
        required_lag,
        not {"optimal_radius", "critical_band"}.isdisjoint(explicit),
        "required_lag" in explicit,
        measured,
    )
    for _, group in groupby(dynamics.modules.values(), key=lambda unit: unit.module):
        units = list(group)
        for rule, in_all in _RULES:
            found = [issue for unit in units if (issue := rule(unit, limits)) is not None]
            if len(found) == len(units) or (found and not in_all):
                by_severity = sorted(found, key=lambda issue: issue.severity, reverse=not in_all)
                issue = _spoken_for(by_severity)
                unsaid = measured and "required_lag" in issue.evidence and "steps_per_call" not in issue.evidence
                yield _as_measured(issue, dynamics) if unsaid else issue


def _as_measured(issue: Issue, dynamics: RecurrentDynamics) -> Issue:
    lag, first = issue.evidence["required_lag"], dynamics.course[0][1] if dynamics.course else None
    return replace(
        issue,
        message=f"{issue.message} The loss depends on inputs {lag:g} steps back, not on the last ones.",
        evidence={
            **issue.evidence,
            "measured_lag": lag,
            **({} if first is None else {"spectral_radius_at_first": first}),
        },
    )


def _spoken_for(found: list[Issue]) -> Issue:
    """The first of the same finding in several layers, with the names of the others."""
    first, others = found[0], [issue.layer for issue in found[1:]]
    if not others:
        return first
    alike = f" The same in {', '.join(f'`{name}`' for name in others)}."
    return replace(first, message=first.message + alike, evidence={**first.evidence, "also_in": others})
