"""Reinforcement learning, from what the trainer itself logs: entropy, KL, rewards without variance, clipped ratios."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import mean, median, pstdev
from typing import Final

from gradient_flow.diagnosis.issue import Issue, IssueSeverity
from gradient_flow.diagnosis.loop.context import Loop, issue
from gradient_flow.diagnosis.robust import median_error
from gradient_flow.diagnosis.words import plain

LEAST: Final = 20
"""Logged values without which nothing is said."""
COLLAPSED: Final = 0.1
"""Of the entropy at the start. Policies that learn as they should keep a quarter of it; those that gave up exploring, a
sixteenth or less."""
NO_VARIANCE: Final = 0.8
"""Share of groups of samples whose rewards are all the same."""
CLIPPED: Final = 0.25
"""Share of ratios outside the clip range, in the mean of the later half: it begins at zero with each batch of samples
and grows from pass to pass. 0.1 to 0.2 is usual; loops that learn measured 0.11 at most, those that go too far 0.26 and
more, while the rewards of most of them still rose.
"""
SURE: Final = 0.15
AS_UNEVEN: Final = 0.65
GAINED: Final = 0.65
"""Of the entropy, of the deviation of rewards, and the rise of rewards in deviations at the start: a policy that is
sure and still meets good and bad by chance has not learned what it is sure of. Who became sure by learning kept a
deviation of 0.6 or less and gained 0.74 deviations or more; the others kept 0.66 to 1 and gained 0.2 to 0.55."""
RUNAWAY: Final = 10.0
KL_HIGH: Final = 0.5
KL_FAR: Final = 10.0
"""Nats from which on a policy has nothing to do with its reference, whatever its reward says."""
KL_SPENT: Final = 2.0
HALF: Final = 0.5
"""Nats that are as far, where less than this share of the entropy is left. Rewards paid for them: policies that learn
spend 1.8 at most, and those that nothing holds near their reference 2.1 to 5. A KL that is summed over whole answers is
larger, but then the entropy is still there."""
KL_LOST: Final = 1.0
"""Nats from which on a policy is lost that was already there in the first fifth, where its reward does not rise; and
one that has no entropy left, whatever its reward does."""
NOTHING: Final = 1e-4
"""Of the largest reward: a deviation that is none."""
DIFFERS: Final = 0.005
"""Of the mean reward: how much batches differ while there is something left to learn."""
_YES_OR_NO: Final = 0.1
"""How far the variance of rewards of 0 and 1 is from that of their mean, as a share of it."""
_FELL: Final = 0.15
"""Of its rise: by how much less a reward is still at its best."""
_CLEARLY: Final = 3.0
"""Standard errors beyond which a reward has risen, or fallen again, by more than chance."""


def entropy(loop: Loop) -> Iterator[Issue]:
    """A policy that has become certain, and not because it is as good as it ever was."""
    since, far, by_chance = _certain_since(loop), _is_far(loop), _met_by_chance(loop)
    if since is None or (does_well(loop) and not far and not by_chance):
        return
    values = _signal(loop, "entropy")[1]
    start, end = _start(values), _last(values)
    yield issue(
        "policy_entropy_collapse",
        IssueSeverity.MEDIUM,
        f"the entropy of the policy fell from {plain(start)} to {plain(end)}"
        + (
            ", and it gives the same answer each time, whatever the reward"
            if _always_the_same(loop)
            else f", {plain(_last(_signal(loop, 'kl')[1]), 2)} nats from its reference"
            if far
            else ", and it still meets good and bad rewards as if by chance"
            if by_chance
            else ", and the reward does not rise"
            if _signal(loop, "reward")[1]
            else ""
        )
        + ": it has stopped exploring.",
        "updates keep making what was once rewarded more likely.",
        [
            "Add an entropy bonus, or raise its weight, so that entropy falls over the whole run.",
            "Lower the learning rate to a third; clip ratios higher above than below (0.28 and 0.2, as DAPO does).",
            "Restart from a checkpoint before that step: a policy without entropy does not recover.",
        ],
        step=since,
        first=start,
        last=end,
    )


def kl(loop: Loop) -> Iterator[Issue]:
    """A policy that runs away from its reference."""
    steps, values = _signal(loop, "kl")
    if len(values) < LEAST:
        return
    early, end = median(values[len(values) // 5 : 2 * len(values) // 5] or values), _last(values)
    away = next((step for step, value in zip(steps, values, strict=True) if value >= KL_LOST), None)
    certain = _certain_since(loop)
    # A policy that was far away before it became certain was not held: that is said beside what became of its entropy,
    # since a reward that can be cheated, a sign that is wrong and a penalty that is missing all take this way.
    ends_there = away is not None and certain is not None and away <= certain
    spent = end >= KL_SPENT and _entropy_left(loop) <= HALF
    runs = end >= KL_HIGH and end >= RUNAWAY * max(early, 1e-9)
    if not runs and not spent and not (end >= KL_LOST and (_earns_less(loop) or ends_there)):
        return
    since = next(step for step, value in zip(steps, values, strict=True) if value >= KL_HIGH)
    yield issue(
        "kl_runaway",
        # A policy that learns leaves its reference: what it earns tells whether it runs away, and what is left of it.
        IssueSeverity.LOW
        if does_well(loop) and end < KL_FAR and not spent and not ends_there
        else IssueSeverity.MEDIUM,
        f"the KL divergence from the reference rose from {plain(min(early, values[0]), 2)} to {plain(end, 2)}: the "
        "policy drifts away from it.",
        "a learning rate that is too high, a KL penalty that is too small, or a reward that can be gamed.",
        [
            "Lower the learning rate to a third, or end an update when KL exceeds 0.02.",
            "Raise the weight of the KL penalty tenfold; read some samples of what is rewarded.",
        ],
        step=since,
        early=early,
        last=end,
    )


def _certain_since(loop: Loop) -> int | None:
    """The step from which on no entropy is left; None where there is some."""
    steps, values = _signal(loop, "entropy")
    left = SURE if _met_by_chance(loop) else COLLAPSED
    if not _entropy_left(loop) <= left:
        return None
    return next((s for s, value in zip(steps, values, strict=True) if value <= left * _start(values)), steps[-1])


def _entropy_left(loop: Loop) -> float:
    """The share of the entropy at the start; infinite where it is unknown."""
    values = _signal(loop, "entropy")[1]
    return _last(values) / _start(values) if len(values) >= LEAST and _start(values) > 0 else math.inf


def _met_by_chance(loop: Loop) -> bool:
    """Whether rewards differ as at the start, and have hardly risen by the measure of how they differ.

    Of rewards that are 0 or 1 the deviation follows from the mean, and tells nothing by itself.
    """
    rewards, within = _signal(loop, "reward")[1], _signal(loop, "reward_std")[1]
    if min(len(rewards), len(within)) < LEAST:
        return False
    first = max(3, len(within) // 10)
    before, now, start, end = median(within[:first]), _last(within), median(rewards[:first]), _last(rewards)
    if 0 < end < 1 and abs(now**2 / (end * (1 - end)) - 1) <= _YES_OR_NO:
        return False
    return before > 0 and now >= AS_UNEVEN * before and end - start <= GAINED * before


def zero_variance(loop: Loop) -> Iterator[Issue]:
    """Groups whose rewards are all the same, which teach nothing."""
    steps, values = _without_variance(loop)
    if len(values) < LEAST or median(values[len(values) // 2 :]) < NO_VARIANCE:
        return
    share = median(values[len(values) // 2 :])
    since = next(step for step, value in zip(steps, values, strict=True) if value >= NO_VARIANCE)
    yield issue(
        "no_reward_variance",
        IssueSeverity.LOW if does_well(loop) else IssueSeverity.MEDIUM,
        f"in {share:.0%} of the groups all rewards are the same: their advantages are zero, and they teach nothing.",
        "tasks that are all too easy or all too hard, or an all-or-nothing reward.",
        [
            "Use tasks of mixed difficulty, and drop groups without variance (dynamic sampling).",
            "Use larger groups, a higher sampling temperature, or a graded reward.",
        ],
        step=since,
        share=share,
    )


def clip_fraction(loop: Loop) -> Iterator[Issue]:
    """Most ratios are outside the clip range: updates go further than the data allows."""
    steps, values = _signal(loop, "clip_fraction")
    if len(values) < LEAST:
        return
    share = mean(values[len(values) // 2 :])
    if share < CLIPPED:
        return
    since = next(step for step, value in zip(steps, values, strict=True) if value >= CLIPPED)
    yield issue(
        "clip_fraction_high",
        IssueSeverity.MEDIUM,
        f"{share:.0%} of the ratios are clipped (10 to 20 % is usual): the policy moves further than its samples "
        "support.",
        "too many epochs over the same samples, or a learning rate that is too high.",
        ["Lower the learning rate to a third.", "Use fewer epochs per batch of samples, or larger batches."],
        step=since,
        share=share,
    )


def _signal(loop: Loop, name: str) -> tuple[list[int], list[float]]:
    return loop.run.signals.get(name, ([], []))


def _start(values: Sequence[float]) -> float:
    """The largest of the first ones: a collapse may take a few steps."""
    return max(values[: max(3, len(values) // 10)])


def _last(values: Sequence[float]) -> float:
    return median(values[-max(3, len(values) // 5) :])


def lacks_variance(loop: Loop) -> bool:
    """Whether the rewards within nearly all groups are the same by now, so that no gradient comes of them."""
    values = _without_variance(loop)[1]
    return len(values) >= LEAST and _last(values) >= NO_VARIANCE


def _without_variance(loop: Loop) -> tuple[list[int], list[float]]:
    """The share of groups whose rewards are all the same; of a logged deviation, 1 where it is zero."""
    steps, values = _signal(loop, "zero_std")
    if values:
        return steps, values
    steps, values = _signal(loop, "reward_std")
    usual = max((abs(value) for value in _signal(loop, "reward")[1]), default=1.0)
    return steps, [float(abs(value) <= NOTHING * max(usual, 1e-12)) for value in values]


def _always_the_same(loop: Loop) -> bool:
    """Whether rewards differ more from batch to batch than within a group: what is asked decides, not the answer."""
    rewards, within = _signal(loop, "reward")[1], _signal(loop, "reward_std")[1]
    if len(rewards) < LEAST:
        return False
    last = rewards[-max(5, len(rewards) // 5) :]
    between = pstdev(last)
    same = lacks_variance(loop) or (len(within) >= LEAST and between > _last(within))
    return same and between > DIFFERS * max(abs(mean(last)), 1e-12)


def _is_far(loop: Loop) -> bool:
    """Whether a policy has left its reference: where it has no entropy left either, a reward may be cheated."""
    values = _signal(loop, "kl")[1]
    return len(values) >= LEAST and _last(values) >= KL_LOST


def _earns_less(loop: Loop) -> bool:
    """Whether a reward is logged, and is not at its best now."""
    return len(_signal(loop, "reward")[1]) >= LEAST and not does_well(loop)


def does_well(loop: Loop) -> bool:
    """Whether the reward has risen and is at its best now, and answers still decide it. Unknown is no."""
    return has_risen(loop) and not _always_the_same(loop)


def has_risen(loop: Loop) -> bool:
    """Whether the reward has risen and is at its best now, as far as chance lets one say.

    Who has solved a task may be certain. Unknown is no.
    """
    _, values = _signal(loop, "reward")
    if len(values) < LEAST:
        return False
    fifth = len(values) // 5
    levels = [median(values[at * fifth : (at + 1) * fifth]) for at in range(5)]
    best, rose = max(levels), max(levels) - levels[0]
    chance = _CLEARLY * median_error(values) * math.sqrt(len(values) / fifth)
    return rose > chance and levels[-1] >= best - max(_FELL * rose, chance)
