"""Verdicts on discrete actions: entropy collapsed or collapsing, too low, or that of a random policy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.words import percent
from gradient_flow.probes.policy.exploration import (
    COLLAPSED,
    GONE,
    NEARLY_COLLAPSED,
    UNIFORM,
    CollapseRisk,
    ReturnCourse,
    discrete_risk,
)
from gradient_flow.probes.policy.stats import PolicyStats

DRAWN: Final = 5.0
"""How many times closer to uniform a policy has come, from the first look to the last."""
FLAT: Final = 1e-4
"""What the normalised entropy is short of 1 by where logits differ by a hundredth: a head that starts at zero is above
a thousandth after three steps, and ten thousand of such choices do not tell one action from another."""
WANES: Final = 0.7
"""Share of what a policy was short of uniform by in the earlier looks that is left in the later ones. A policy that
learns slowly gets further from uniform (1.2); one that a bonus of 3 holds there comes back to it (0.5 to 0.6)."""
NEAR: Final = 0.01
"""What the normalised entropy is short of 1 by, at every look, in a policy that is as it was drawn: of a hundred that
learn each is further away by the fourth look."""
_CAME_BACK: Final = 0.075
"""Of ln(actions): by how much more than at some look before. A temperature that is learned towards a target that is out
of reach lets a policy leave the uniform one (0.86 to 0.91) and takes it back (1.000); one whose rewards ran out came
back from 0.94 to 0.97."""
_BACK: Final = 0.75
"""Share of an earlier shortfall to which it comes back. States of another batch change it by a fifth."""
_FEWEST_LOOKS: Final = 3
_ROUNDING: Final = 1e-9
"""Nats."""
NOT_LEARNING: Final = 50
"""As many returns that never rose make a random policy more than a fresh one."""

MORE_ENTROPY: Final = (
    "Raise the entropy bonus (or the target entropy) by factors of 3: it rewards exploring.",
    "Lower the policy's learning rate, or PPO's clip range and epochs per batch: large steps on few samples make a "
    "policy certain before it has compared actions.",
    "Normalise advantages and rewards: a few large ones push the logits far apart in one step.",
    "Check the return: at its best it means that the policy has learnt. Pass `returns` so that this is taken into "
    "account.",
)
LESS_NOISE: Final = (
    "Lower the entropy bonus: it outweighs the return.",
    "Check that the advantages differ: without a signal the entropy bonus alone shapes the policy.",
    "For continuous actions, bound the standard deviation from above (clamp `log_std`).",
)


def discrete_collapse(stats: PolicyStats, course: ReturnCourse | None, layer: str) -> Issue | None:
    """The entropy is near zero, or little, or will be near zero within as many steps as were watched."""
    entropy, trend = stats.discrete_entropy_normalized, stats.entropy_trend
    if entropy is None or trend is None or course is ReturnCourse.AT_BEST:
        return None
    risk = discrete_risk(entropy, trend)
    rising = course is ReturnCourse.BETWEEN  # then a low level that does not fall is a policy that still learns
    if risk is CollapseRisk.LOW or (rising and risk is CollapseRisk.MEDIUM and not trend.collapsing):
        return None
    undecided = course is None and risk is CollapseRisk.MEDIUM and not trend.collapsing
    if undecided and (_depends_on_state(stats) or _has_no_state(stats)):
        return None  # halfway to a policy that has learnt; `low_entropy` reports the level alone
    high, stuck = risk is CollapseRisk.HIGH, course in (ReturnCourse.FLAT, ReturnCourse.FELL)
    severity = IssueSeverity.HIGH if high or (stuck and entropy < NEARLY_COLLAPSED) else IssueSeverity.MEDIUM
    if high and course is ReturnCourse.FELL and (stats.certain_share or 0.0) > 0.9:
        severity = IssueSeverity.CRITICAL
    what = (
        "agent stopped exploring"
        if high
        else "exploration declining"
        if trend.collapsing
        else "little exploration left"
    )
    message = f"{severity} entropy collapse ({what}): normalised entropy {entropy:.3f}"
    if trend.collapsing:
        message += f", down from {trend.start:.3f}; at this pace {GONE} in {trend.steps_to_floor:,.0f} steps"
    message += f"; one action has over 99% probability in {percent(stats.certain_share or 0.0)} of the states"
    message += f"{returns_phrase(course)}."
    return Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE,
        severity=severity,
        layer=layer,
        message=message,
        evidence=policy_evidence(stats, course),
        cause=_why_certain(stats),
        advice=MORE_ENTROPY,
        step=_since(stats.entropy_history, COLLAPSED, stats.first_step),
    )


def low_entropy(
    stats: PolicyStats, threshold: float, explicit: bool, course: ReturnCourse | None, layer: str
) -> Issue | None:
    """The entropy is below the documented threshold, or the user's."""
    entropy = stats.discrete_entropy_normalized
    if entropy is None or entropy >= threshold or (course is ReturnCourse.AT_BEST and not explicit):
        return None
    return Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.HIGH if explicit else IssueSeverity.LOW,
        layer=layer,
        message=f"Insufficient exploration (too deterministic): normalised entropy {entropy:.3f}, below {threshold:g}"
        f"{returns_phrase(course)}.",
        evidence={**policy_evidence(stats, course), "min_entropy_threshold": threshold},
        cause=_why_certain(stats),
        advice=MORE_ENTROPY,
    )


def uniform(
    stats: PolicyStats, course: ReturnCourse | None, returns: int, layer: str, *, trained: bool = False
) -> Issue | None:
    """The policy is as good as random, and not on its way from there; `trained` tells that looks are far apart."""
    entropy, trend = stats.discrete_entropy_normalized, stats.entropy_trend
    if entropy is None or trend is None or entropy <= UNIFORM or course is ReturnCourse.AT_BEST:
        return None
    if trend.significant and trend.slope is not None and trend.slope < 0:
        return None  # it is on its way from random to learnt
    short = [1 - each for each in stats.entropy_history if each is not None]
    drawn = _is_drawn(short)
    watched = trained and len(short) > _FEWEST_LOOKS
    flat = watched and max(short) < FLAT
    held = watched and not flat and (_is_held(short) or (_is_pulled_back(short) and not _has_no_state(stats)))
    low = min((each for each in stats.entropy_history if each is not None), default=entropy)
    rose = entropy - min(low, trend.start) > _CAME_BACK or drawn
    stuck = course is ReturnCourse.FLAT and returns >= NOT_LEARNING
    return Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.MEDIUM if rose or stuck or flat or held else IssueSeverity.LOW,
        layer=layer,
        message=f"Excessive exploration (too random): normalised entropy {entropy:.3f}"
        f"{f', up from {min(low, trend.start):.3f}' if rose and not drawn else ''}"
        f"{', and closer to uniform at every look: nothing pulls it away' if drawn else ''}"
        f"{', at every look of the training, and pulled back to uniform' if held and not drawn else ''}"
        f"{f', short of uniform by less than {FLAT:g} at every look of the training' if flat else ''}"
        f"{returns_phrase(course)}.",
        evidence=policy_evidence(stats, course),
        cause="Logits that hardly differ: a large temperature, or a small factor behind the last layer."
        if flat
        else "An entropy bonus that outweighs the return, or no learning signal."
        if rose or stuck or held
        else "At the start of training this is normal; later it means that nothing has been learnt.",
        advice=LESS_NOISE[:2],
    )


def _is_drawn(short: Sequence[float]) -> bool:
    """Whether a policy is drawn to the uniform one, by what it is short of it: a reward would pull it away."""
    falls = all(later < earlier for earlier, later in pairwise(short))
    return len(short) >= _FEWEST_LOOKS and falls and short[-1] * DRAWN < short[0]


def _is_held(short: Sequence[float]) -> bool:
    """Whether a policy is as good as random at every look, and comes closer to that: something holds it there."""
    half = len(short) // 2
    return max(short) < 1 - UNIFORM and fmean(short[half:]) < WANES * fmean(short[:half])


def _is_pulled_back(short: Sequence[float]) -> bool:
    """Whether a policy is next to uniform at every look, and where it had left that it came back.

    A bonus that outweighs the return does so: 0.0037, 0.0061, 0.0043, 0.0056. One that nothing moves stays where it is.
    """
    returns = any(later < _BACK * earlier for earlier, later in pairwise(short))
    return max(short) < NEAR and returns and short[-1] < 2 * short[0]


def policy_evidence(stats: PolicyStats, course: ReturnCourse | None) -> dict[str, Any]:
    """The numbers that a verdict on this policy rests on."""
    names = (
        *("discrete_entropy_normalized", "effective_actions", "valid_actions", "certain_share", "mutual_information"),
        *("mutual_information_at_most", "marginal_entropy"),
        *("continuous_std_mean", "continuous_std_min", "std_relative", "mean_saturation", "steps"),
    )
    found = {name: value for name in names if (value := getattr(stats, name)) is not None}
    known = [each for each in stats.entropy_history if each is not None]
    found |= {"entropy_at_first": known[0], "entropy_at_least": min(known)} if known else {}
    return found if course is None else {**found, "returns": course.value}


def returns_phrase(course: ReturnCourse | None) -> str:
    """What the returns add to a sentence."""
    return "" if course in (None, ReturnCourse.BETWEEN) else f", and the returns {course}"


def _depends_on_state(stats: PolicyStats) -> bool:
    return stats.marginal_entropy is not None and stats.marginal_entropy > NEARLY_COLLAPSED


def _has_no_state(stats: PolicyStats) -> bool:
    """Whether nothing but rounding depends on the state, as in a bandit: it may learn one arm for all states."""
    return stats.mutual_information is not None and stats.mutual_information < _ROUNDING


def _why_certain(stats: PolicyStats) -> str:
    if stats.marginal_entropy is None or stats.mutual_information is None:
        return "Unknown: a single state does not show whether the choice depends on it."
    if stats.marginal_entropy < COLLAPSED:
        return "The policy takes the same action whatever the state: it ignores its input."
    return (
        f"The policy takes different actions in different states (I(S;A) {stats.mutual_information:.2f} nats): it "
        "became "
        "certain too early, or it has learnt."
    )


def _since(history: Sequence[float | None], limit: float, first_step: int) -> int | None:
    """The step from which on all entries are below the limit; `None` if that was so from the start."""
    above = [index for index, value in enumerate(history) if value is not None and value >= limit]
    return first_step + above[-1] + 1 if above and above[-1] + 1 < len(history) else None
