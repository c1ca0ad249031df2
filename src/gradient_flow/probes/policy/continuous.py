"""Verdicts on continuous actions: standard deviation collapsed or collapsing, too low, too high; saturated means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent, plain, times
from gradient_flow.probes.policy.discrete import LESS_NOISE, MORE_ENTROPY, policy_evidence, returns_phrase
from gradient_flow.probes.policy.exploration import TINY_STD, ReturnCourse
from gradient_flow.probes.policy.stats import PolicyStats

SMALL_BESIDE: Final = 0.3
"""A small standard deviation that is also this much smaller than the differences between states is no exploration."""
FAR_ABOVE, DROWNS = 4.0, 5.0
"""Times the largest standard deviation, and times the differences between states: noise is all there is then. Policies
that learn have 2.4 at most, and 0.04 to 1.4 times those differences; lost ones 10 and more, and 76 times."""
GROWS, _FEWEST_LOOKS = 3.0, 4
"""Times the first standard deviation that the last is, with each look above the one before: nothing holds it."""
MORE_STD: Final = (
    "Put a floor under the standard deviation (clamp `log_std`), or start it higher.",
    *MORE_ENTROPY[:3],
)


def continuous_collapse(stats: PolicyStats, course: ReturnCourse | None, layer: str) -> Issue | None:
    """The standard deviation is no exploration any more, or will not be within as many steps as were watched."""
    std, trend = stats.action_scale, stats.std_trend
    if std is None or trend is None or course is ReturnCourse.AT_BEST:
        return None
    known, spread = stats.std_relative is not None, stats.mean_spread
    tiny = std < TINY_STD
    if not known and spread is not None:  # actions of different states tell on what scale they are
        tiny = std < TINY_STD * spread or std < min(TINY_STD, SMALL_BESIDE * spread)
    if not (tiny or trend.collapsing):
        return None
    severity = IssueSeverity.HIGH if tiny and known else IssueSeverity.MEDIUM
    what = "agent stopped exploring" if tiny else "exploration declining"
    message = f"{severity} entropy collapse ({what}): low continuous action std, {_std_text(stats)}"
    if trend.collapsing:
        message += f", {times(math.exp(trend.start - trend.level), 2)} smaller than {trend.steps:,} steps ago"
    return Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE,
        severity=severity,
        layer=layer,
        message=f"{message}{returns_phrase(course)}.",
        evidence=policy_evidence(stats, course),
        cause="The mean action is at its bound, where squashing leaves no room for noise."
        if stats.squashed and (stats.mean_saturation or 0.0) > 0.5
        else "Noise lowers the return near an action that already pays, so without a bonus the policy unlearns it.",
        advice=MORE_STD,
    )


def low_std(
    stats: PolicyStats, threshold: float, explicit: bool, course: ReturnCourse | None, layer: str
) -> Issue | None:
    """The standard deviation is below the documented threshold, or the user's."""
    std = stats.continuous_std_mean if explicit else stats.threshold_scale
    if std is None or std >= threshold or (course is ReturnCourse.AT_BEST and not explicit):
        return None
    return Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.HIGH if explicit else IssueSeverity.LOW,
        layer=layer,
        message=f"Low continuous action std (insufficient exploration): {_std_text(stats)}, below {threshold:g}"
        f"{returns_phrase(course)}.",
        evidence={**policy_evidence(stats, course), "min_std_threshold": threshold},
        advice=MORE_STD,
    )


def high_std(
    stats: PolicyStats, threshold: float, explicit: bool, course: ReturnCourse | None, layer: str
) -> Issue | None:
    """The standard deviation is above the documented threshold, or the user's."""
    std, scaled = stats.continuous_std_mean, stats.threshold_scale
    if std is None or scaled is None or max(std, std if explicit else scaled) <= threshold:
        return None
    # Beyond the range most actions are cut off at its bounds: that needs no absolute number.
    cut_off = stats.std_relative is not None and scaled > threshold and course is not ReturnCourse.AT_BEST
    # Where the range is not known, the mean actions of different states tell the scale.
    lost = stats.std_relative is None and std > max(FAR_ABOVE * threshold, DROWNS * (stats.mean_spread or math.inf))
    first = next((each for each in stats.std_history if each is not None), None)
    grows = std > threshold and _runs_away([each for each in stats.std_history if each is not None])
    cut_off |= (lost or grows) and course is not ReturnCourse.AT_BEST
    return Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.HIGH if explicit else IssueSeverity.MEDIUM if cut_off else IssueSeverity.LOW,
        layer=layer,
        message=f"Excessive exploration (too random): {_std_text(stats)}, above {threshold:g}"
        f"{f', {times(std / first, 2)} that of the first look' if grows and first else ''}{returns_phrase(course)}.",
        evidence={**policy_evidence(stats, course), "max_std_threshold": threshold},
        advice=LESS_NOISE,
    )


def _runs_away(stds: Sequence[float]) -> bool:
    """Whether a standard deviation grows from look to look, and several times over: a bonus outweighs the return."""
    rises = all(later > earlier for earlier, later in pairwise(stds))
    return len(stds) >= _FEWEST_LOOKS and rises and stds[-1] > GROWS * stds[0]


def saturated_mean(stats: PolicyStats, course: ReturnCourse | None, layer: str) -> Issue | None:
    """Squashing holds nearly every mean action at its bound."""
    share = stats.mean_saturation
    if not (stats.squashed or stats.mean_squashed) or share is None or share <= 0.9 or course is ReturnCourse.AT_BEST:
        return None
    return Issue(
        issue_type=IssueType.SATURATION,
        severity=IssueSeverity.MEDIUM,
        layer=layer,
        message=f"The squashed mean action is at its bound in {percent(share)} of cases, where the gradient is below "
        "2% of "
        f"its maximum{returns_phrase(course)}.",
        evidence=policy_evidence(stats, course),
        cause="Nothing keeps the mean before squashing from growing.",
        advice=(
            "Penalise the mean before squashing (0.001 times its square): tanh alone does not bound it.",
            "Initialise the last layer small (gain 0.01), and lower its learning rate.",
        ),
    )


def one_tiny_dimension(stats: PolicyStats, course: ReturnCourse | None, layer: str) -> Issue | None:
    """One action dimension is not explored, while the others are."""
    least = stats.continuous_std_min if stats.std_relative is None else stats.std_relative_min
    if least is None or least >= TINY_STD or course is ReturnCourse.AT_BEST:
        return None
    return Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.LOW,
        layer=layer,
        message=f"Low continuous action std in one action dimension: {plain(least)}; the mean over all dimensions is "
        f"{plain(stats.action_scale or 0.0)}.",
        evidence=policy_evidence(stats, course),
        advice=MORE_STD[:1],
    )


def _std_text(stats: PolicyStats) -> str:
    if stats.std_relative is None or stats.continuous_std_mean is None:
        return plain(stats.continuous_std_mean or 0.0)
    before = " before squashing" if stats.squashed else ""
    return f"{plain(stats.continuous_std_mean)}{before}, {percent(stats.std_relative)} of half the action range"
