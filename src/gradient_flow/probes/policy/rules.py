"""Verdicts on how a policy explores: collapsed, collapsing, too deterministic, too random.

A policy that is certain of its actions because it has learnt them is healthy, so returns that are at their best
silence every alarm about too little exploration. A level alone is LOW, unless the user set that level.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.probes.policy.continuous import (
    continuous_collapse,
    high_std,
    low_std,
    one_tiny_dimension,
    saturated_mean,
)
from gradient_flow.probes.policy.discrete import discrete_collapse, low_entropy, uniform
from gradient_flow.probes.policy.exploration import Trend, return_course
from gradient_flow.probes.policy.stats import PolicyStats, summarize_policy
from gradient_flow.record.plain import from_plain

__all__ = ["PolicyStats", "policy_issues", "summarize_policy"]


def judge(found: Mapping[str, Any]) -> Iterator[Issue]:
    """The verdict on what the policy probe found, with the settings it was asked with."""
    return policy_issues(from_plain(PolicyStats, found["stats"]), **found.get("settings", {}))


def policy_issues(
    stats: PolicyStats,
    *,
    min_entropy_threshold: float = 0.5,
    min_std_threshold: float = 0.1,
    max_std_threshold: float = 2.0,
    returns: Sequence[float] | None = None,
    best_return: float | None = None,
    explicit: Collection[str] = frozenset(),
    layer: str = "policy",
    evenly: bool = True,
) -> Iterator[Issue]:
    """What is wrong with how a policy explores.

    Args:
        stats: what was measured.
        min_entropy_threshold: least normalised entropy of discrete actions.
        min_std_threshold: least standard deviation of continuous actions within ±1 (see `PolicyStats.threshold_scale`).
        max_std_threshold: largest such.
        returns: of episodes, in the order of time; a policy whose returns are at their best may be as certain as it is.
        best_return: the most that the task gives, which tells level returns at the optimum from level ones far below.
        explicit: names of the thresholds that the user set: those are taken at their word, in the action's own units.
        layer: what the issues name as their place.
        evenly: whether steps were watched at even distances; looks at a training are further and further apart, so that
            their pace tells nothing.
    """
    if not evenly:
        stats = replace(
            stats, entropy_trend=_without_pace(stats.entropy_trend), std_trend=_without_pace(stats.std_trend)
        )
    course = return_course(returns, best_return)
    if stats.nonfinite_states:
        yield _numerical(stats, layer)
    discrete = [
        discrete_collapse(stats, course, layer),
        low_entropy(stats, min_entropy_threshold, "min_entropy_threshold" in explicit, course, layer),
        uniform(stats, course, len(returns or ()), layer, trained=not evenly),
    ]
    continuous = [
        continuous_collapse(stats, course, layer),
        low_std(stats, min_std_threshold, "min_std_threshold" in explicit, course, layer),
        # Noise that drowns every mean gives it no direction: that comes before where the mean drifted to.
        high_std(stats, max_std_threshold, "max_std_threshold" in explicit, course, layer),
        saturated_mean(stats, course, layer),
        one_tiny_dimension(stats, course, layer),
    ]
    for candidates in (discrete, continuous):
        found = [issue for issue in candidates if issue is not None]
        if found:  # one for each kind of action, the strongest: the others would say the same in weaker words
            yield max(found, key=lambda issue: issue.severity)


def _without_pace(trend: Trend | None) -> Trend | None:
    return None if trend is None else replace(trend, steps_to_floor=None)


def _numerical(stats: PolicyStats, layer: str) -> Issue:
    return Issue(
        issue_type=IssueType.NUMERICAL,
        severity=IssueSeverity.CRITICAL,
        layer=layer,
        message=f"The policy's output is NaN or Inf, or masks every action, in {stats.nonfinite_states:,} of "
        f"{stats.states:,} states.",
        evidence={"nonfinite_states": stats.nonfinite_states, "states": stats.states},
        cause="The network diverged, a probability of 0 met a logarithm, or a mask left no action.",
        advice=(
            "Check the loss and the gradients of the steps before.",
            "Let the network output logits and `log_std`: the logarithm of an output of 0 is infinite.",
        ),
    )
