"""When a policy is said to have collapsed, to be collapsing, too deterministic or too random; and when not."""

import math
import random
from dataclasses import replace

import pytest

from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.probes.policy.exploration import ReturnCourse, Trend, return_course
from gradient_flow.probes.policy.rules import policy_issues, summarize_policy
from gradient_flow.probes.policy.stats import PolicyStats
from gradient_flow.probes.policy.step import PolicyStep

LEARNT = [20.0 + 480 * min(1, i / 40) for i in range(80)]
"""Returns that rise and then stay at the top."""
FLAT = [9.4, 9.2, 9.6, 9.3] * 20
FELL = [20.0 + 480 * min(1, i / 30) for i in range(50)] + [9.0] * 30


def discrete(*entropies, certain=None, marginal=1.0):
    return [
        PolicyStep(
            states=32,
            choices=32,
            entropy=entropy,
            entropy_nats=entropy * math.log(4),
            valid_actions=4.0,
            effective_actions=4.0**entropy,
            certain_share=(1.0 if entropy < 0.05 else 0.0) if certain is None else certain,
            mutual_information=(marginal - min(entropy, marginal)) * math.log(4),
            marginal_entropy=marginal,
            factor_entropies=(entropy,),
        )
        for entropy in entropies
    ]


def continuous(*stds, half_range=None, squashed=False, relative=None, saturation=None):
    return [
        PolicyStep(
            states=32,
            std_mean=std,
            std_min=std,
            std_relative=relative if relative is not None else None if half_range is None else std / half_range,
            std_relative_min=relative if relative is not None else None if half_range is None else std / half_range,
            mean_saturation=saturation,
            squashed=squashed,
        )
        for std in stds
    ]


def noisy(values, scale=0.01, seed=0):
    source = random.Random(seed)
    return [value + source.gauss(0, scale) for value in values]


def line(start, stop, count=20):
    return [start + (stop - start) * i / (count - 1) for i in range(count)]


def found(steps, **settings):
    thresholds = {name: value for name, value in settings.items() if name.endswith("threshold")}
    return list(policy_issues(summarize_policy(steps, **thresholds), **settings))


def only(steps, **settings):
    (issue,) = found(steps, **settings)
    return issue


# Levels


@pytest.mark.parametrize("entropy", [0.0, 0.01, 0.04, 0.09])
def test_a_collapsed_policy_is_high(entropy):
    stats = summarize_policy(discrete(*[entropy] * 20))
    assert stats.entropy_collapse_risk == "HIGH"
    assert stats.exploration_adequacy == "TOO_LOW"
    issue = only(discrete(*[entropy] * 20))
    assert (issue.issue_type, issue.severity) == (IssueType.ENTROPY_COLLAPSE, IssueSeverity.HIGH)
    assert "HIGH entropy collapse (agent stopped exploring)" in issue.message
    assert issue.evidence["discrete_entropy_normalized"] == pytest.approx(entropy)


def test_one_step_is_enough_for_a_level():
    assert summarize_policy(discrete(0.02)).entropy_collapse_risk == "HIGH"
    assert summarize_policy(discrete(0.7)).entropy_collapse_risk == "LOW"


def test_a_low_level_alone_is_low():
    issue = only(discrete(*noisy([0.4] * 20)))
    assert (issue.issue_type, issue.severity) == (IssueType.EXPLORATION, IssueSeverity.LOW)
    assert "Insufficient exploration (too deterministic)" in issue.message
    assert summarize_policy(discrete(*[0.4] * 20)).exploration_adequacy == "TOO_LOW"


def test_little_entropy_alone_is_low_and_grave_where_nothing_is_learnt():
    """A network with its logits times 50 and a policy two thirds of the way to its best both have 0.1 to 0.25."""
    steps = discrete(*noisy([0.2] * 20))
    assert summarize_policy(steps).entropy_collapse_risk == "MEDIUM"
    assert only(steps).severity == IssueSeverity.LOW
    assert only(steps, returns=FLAT).severity == IssueSeverity.HIGH
    assert found(steps, returns=LEARNT) == []
    assert only(steps, returns=LEARNT, best_return=1000.0).severity == IssueSeverity.LOW


def test_a_threshold_that_the_user_set_is_taken_at_its_word():
    steps = discrete(*[0.6] * 20)
    assert found(steps) == []
    issue = only(steps, min_entropy_threshold=0.7, explicit={"min_entropy_threshold"})
    assert issue.severity == IssueSeverity.HIGH
    issue = only(steps, min_entropy_threshold=0.7, explicit={"min_entropy_threshold"}, returns=LEARNT)
    assert issue.severity == IssueSeverity.HIGH


def test_a_healthy_policy_is_silent():
    stats = summarize_policy(discrete(*noisy([0.75] * 20)))
    assert (stats.entropy_collapse_risk, stats.exploration_adequacy) == ("LOW", "ADEQUATE")
    assert found(discrete(*noisy([0.75] * 20))) == []


def test_a_fresh_uniform_policy_is_no_alarm():
    stats = summarize_policy(discrete(*[1.0] * 20))
    assert (stats.entropy_collapse_risk, stats.exploration_adequacy) == ("LOW", "TOO_HIGH")
    issue = only(discrete(*[1.0] * 20))
    assert issue.severity == IssueSeverity.LOW
    assert "Excessive exploration (too random)" in issue.message
    assert "start of training" in issue.cause


def test_a_random_policy_is_more_than_fresh_when_it_does_not_learn():
    assert only(discrete(*[0.995] * 60), returns=FLAT).severity == IssueSeverity.MEDIUM
    assert only(discrete(*line(0.7, 1.0, 30)[:-1], *[0.999] * 30)).severity == IssueSeverity.MEDIUM
    assert found(discrete(*[0.995] * 60), returns=LEARNT) == []


@pytest.mark.parametrize(
    ("short", "evenly", "severity"),
    [
        ((1e-8, 2e-8, 4e-8, 1e-7), False, IssueSeverity.MEDIUM),
        ((1e-8, 2e-8, 4e-8, 1e-7), True, IssueSeverity.LOW),  # steps of an analysis need not train
        ((1e-8, 1e-6, 2e-5, 1e-3), False, IssueSeverity.LOW),  # a head of zeros leaves the uniform policy
        ((1e-8, 2e-8), False, IssueSeverity.LOW),
        ((1e-6, 4e-6, 1e-5, 2e-5), False, IssueSeverity.MEDIUM),  # logits of at most a hundredth
        ((0.0117, 0.0144, 0.0072, 0.0064), False, IssueSeverity.MEDIUM),  # a bonus holds it there
        ((0.0120, 0.0138, 0.0135, 0.0164), False, IssueSeverity.LOW),  # it learns slowly
    ],
)
def test_a_policy_that_no_step_moves_away_from_uniform_is_more_than_fresh(short, evenly, severity):
    assert only(discrete(*(1 - each for each in short)), evenly=evenly).severity == severity


def test_a_policy_that_begins_to_leave_uniform_is_silent():
    assert found(discrete(*line(1.0, 0.985))) == []


# Trends


def test_a_fall_that_will_reach_zero_is_medium():
    steps = discrete(*noisy(line(0.95, 0.4)))
    assert summarize_policy(steps).entropy_collapse_risk == "MEDIUM"
    issue = only(steps)
    assert issue.severity == IssueSeverity.MEDIUM
    assert "MEDIUM entropy collapse (exploration declining)" in issue.message
    assert "steps" in issue.message


def test_a_steep_fall_to_little_is_high():
    steps = discrete(*noisy(line(0.95, 0.02)))
    assert summarize_policy(steps).entropy_collapse_risk == "HIGH"
    assert only(steps).severity == IssueSeverity.HIGH


def test_a_slow_fall_is_learning():
    assert found(discrete(*noisy(line(0.95, 0.75)))) == []


def test_a_fall_that_has_settled_is_silent():
    settled = noisy([0.6 + 0.4 * math.exp(-i / 3) for i in range(40)], 0.005)
    assert found(discrete(*settled)) == []


def test_noise_is_no_trend():
    for seed in range(20):
        assert found(discrete(*noisy([0.7] * 20, 0.08, seed))) == []


def test_pace_not_length_decides():
    """The same course watched at a quarter of the steps gives the same verdict."""
    course = noisy(line(0.95, 0.4, 80), 0.005)
    assert [i.severity for i in found(discrete(*course))] == [i.severity for i in found(discrete(*course[::4]))]


def test_the_step_since_which_it_is_collapsed():
    steps = discrete(*[0.8] * 10, *[0.01] * 20)
    assert only(steps).step == 11
    assert only(discrete(*[0.01] * 20)).step is None  # it was so from the start


# Returns


def test_a_certain_policy_at_its_best_return_is_healthy():
    steps = discrete(*[0.02] * 20)
    assert found(steps, returns=LEARNT) == []
    assert found(steps, returns=[value - 500 for value in LEARNT]) == []
    assert found(steps, returns=[1e-3 * value for value in LEARNT]) == []
    assert found(steps, returns=[500.0] * 20, best_return=500.0) == []


def test_a_certain_policy_that_never_learnt_is_not():
    issue = only(discrete(*[0.02] * 20, marginal=0.02), returns=FLAT)
    assert issue.severity == IssueSeverity.HIGH
    assert "never rose" in issue.message
    assert "same action whatever the state" in issue.cause


def test_a_certain_policy_whose_return_fell_is_critical():
    assert only(discrete(*[0.02] * 20), returns=FELL).severity == IssueSeverity.CRITICAL


def test_a_handful_of_returns_says_nothing():
    assert only(discrete(*[0.02] * 20), returns=[1.0, 2.0, 3.0]).severity == IssueSeverity.HIGH


@pytest.mark.parametrize(
    ("returns", "course"),
    [
        (LEARNT, ReturnCourse.AT_BEST),
        (noisy(LEARNT, 30), ReturnCourse.AT_BEST),
        (FLAT, ReturnCourse.FLAT),
        ([0.0] * 20, ReturnCourse.FLAT),
        (FELL, ReturnCourse.FELL),
        (line(100, 10, 40), ReturnCourse.FLAT),
        ([math.nan] * 20, None),
        (None, None),
        (line(0, 100, 40), ReturnCourse.AT_BEST),
    ],
)
def test_courses_of_returns(returns, course):
    assert return_course(returns) is course


def test_below_a_known_best_return_nothing_is_at_its_best():
    assert return_course(LEARNT, best_return=1000.0) is ReturnCourse.BETWEEN
    assert return_course(LEARNT, best_return=505.0) is ReturnCourse.AT_BEST


# Continuous actions


def test_a_tiny_standard_deviation_has_collapsed():
    steps = continuous(*[math.exp(-5)] * 20)
    assert summarize_policy(steps).entropy_collapse_risk == "HIGH"
    assert summarize_policy(steps).exploration_adequacy == "TOO_LOW"
    assert only(steps).severity == IssueSeverity.MEDIUM  # the range is not known
    known = only(continuous(*[math.exp(-5)] * 20, half_range=1.0))
    assert (known.issue_type, known.severity) == (IssueType.ENTROPY_COLLAPSE, IssueSeverity.HIGH)
    assert "low continuous action std" in known.message
    assert found(continuous(*[math.exp(-5)] * 20, half_range=1.0), returns=LEARNT) == []


def test_a_low_standard_deviation_alone_is_low():
    issue = only(continuous(*[0.05] * 20))
    assert (issue.issue_type, issue.severity) == (IssueType.EXPLORATION, IssueSeverity.LOW)
    assert "Low continuous action std" in issue.message


def test_the_range_decides_where_it_is_known():
    assert found(continuous(*[0.05] * 20, half_range=0.1)) == []  # half of its range
    assert only(continuous(*[1.0] * 20, half_range=100.0)).severity == IssueSeverity.HIGH  # a hundredth of it
    explicit = found(continuous(*[0.05] * 20, half_range=0.1), explicit={"min_std_threshold"})
    assert [issue.severity for issue in explicit] == [IssueSeverity.HIGH]


def test_a_large_standard_deviation_is_too_random():
    assert summarize_policy(continuous(*[3.0] * 20)).exploration_adequacy == "TOO_HIGH"
    issue = only(continuous(*[3.0] * 20))
    assert issue.severity == IssueSeverity.LOW
    assert "Excessive exploration (too random)" in issue.message
    assert only(continuous(*[3.0] * 20, half_range=1.0)).severity == IssueSeverity.MEDIUM
    assert only(continuous(*[3.0] * 20, half_range=5.0)).severity == IssueSeverity.LOW  # documented, and within bounds
    assert only(continuous(*[1.5] * 20), max_std_threshold=1.0, explicit={"max_std_threshold"}).severity == 3


@pytest.mark.parametrize(
    ("stds", "severity"),
    [
        ((4.8, 5.2, 6.4, 19.1), IssueSeverity.MEDIUM),
        ((4.8, 5.2, 5.4, 6.1), IssueSeverity.LOW),
        ((4.8, 9.0, 6.4, 19.1), IssueSeverity.LOW),
    ],
)
def test_a_standard_deviation_that_runs_away_is_more_than_a_level(stds, severity):
    assert only(continuous(*stds)).severity == severity
    assert only(continuous(*stds), returns=LEARNT).severity == IssueSeverity.LOW


def test_the_usual_start_of_a_continuous_policy_is_silent():
    for half_range in (None, 1.0, 2.0):
        assert found(continuous(*[1.0] * 20, half_range=half_range)) == []


def test_a_shrinking_standard_deviation_is_medium():
    steps = continuous(*[math.exp(-i / 8) for i in range(20)])
    assert summarize_policy(steps).entropy_collapse_risk == "MEDIUM"
    issue = only(steps)
    assert issue.severity == IssueSeverity.MEDIUM
    assert "exploration declining" in issue.message
    assert found(continuous(*[math.exp(-i / 100) for i in range(20)])) == []


def test_squashed_policies():
    issue = only(continuous(*[1.0] * 9, squashed=True, relative=0.1, saturation=0.95))
    assert (issue.issue_type, issue.severity) == (IssueType.SATURATION, IssueSeverity.MEDIUM)
    collapsed = only(continuous(*[1.0] * 9, squashed=True, relative=0.001, saturation=1.0))
    assert collapsed.issue_type == IssueType.ENTROPY_COLLAPSE
    assert "bound" in collapsed.cause
    assert found(continuous(*[0.5] * 9, squashed=True, relative=0.3, saturation=0.1)) == []


def test_one_forgotten_dimension_is_low():
    steps = [PolicyStep(states=4, std_mean=0.5, std_min=0.001) for _ in range(9)]
    assert only(steps).severity == IssueSeverity.LOW
    assert "one action dimension" in only(steps).message


# Mixed, absent, not finite


def test_absent_distributions_have_no_verdict():
    stats = summarize_policy(continuous(*[0.5] * 9))
    assert stats.discrete_entropy_normalized is None
    assert stats.effective_actions is None
    stats = summarize_policy([PolicyStep(states=3)])
    assert (stats.entropy_collapse_risk, stats.exploration_adequacy) == (None, None)
    assert list(policy_issues(stats)) == []
    assert list(policy_issues(summarize_policy([]))) == []


def test_mixed_policies_report_the_worse_part():
    def both(entropy, std):
        first, second = discrete(entropy)[0], continuous(std)[0]
        return [PolicyStep(**{**vars(first), "std_mean": second.std_mean, "std_min": second.std_min})] * 12

    assert summarize_policy(both(0.7, 0.5)).exploration_adequacy == "ADEQUATE"
    assert summarize_policy(both(0.7, 0.001)).entropy_collapse_risk == "HIGH"
    assert summarize_policy(both(0.01, 5.0)).exploration_adequacy == "TOO_LOW"
    assert len(found(both(0.01, 0.001))) == 2


def test_what_is_not_finite_is_reported():
    steps = [PolicyStep(states=4, nonfinite_states=4)] * 3
    assert (only(steps).issue_type, only(steps).severity) == (IssueType.NUMERICAL, IssueSeverity.CRITICAL)


def test_levels_are_text_and_statistics_print():
    stats = summarize_policy([*discrete(*noisy(line(0.9, 0.4))), *continuous(0.5, half_range=1.0)][:20])
    assert f"{stats.entropy_collapse_risk}" == "MEDIUM"
    assert str(stats.exploration_adequacy) == "TOO_LOW"
    text = str(stats)
    for word in ("20 steps", "640 states", "entropy", "falling", "collapse risk MEDIUM", "exploration TOO_LOW"):
        assert word in text
    assert "of half the action range" in str(summarize_policy(continuous(0.5, half_range=1.0)))


def test_every_issue_is_plain_and_prints():
    for steps in (discrete(*[0.01] * 9), discrete(*[1.0] * 9), continuous(*[0.001] * 9), continuous(*[9.0] * 9)):
        for issue in found(steps):
            assert issue.layer == "policy"
            assert issue.to_dict()["evidence"]
            assert str(issue).startswith("[")


@pytest.mark.parametrize("more", [{"half_range": 5.0}, {}])
def test_a_standard_deviation_above_the_documented_maximum_is_never_silent(more):
    rising = [float(k) for k in range(30)]
    assert only(continuous(*[3.0] * 20, **more), returns=rising).severity == IssueSeverity.LOW


def test_without_a_known_range_a_small_deviation_is_judged_by_how_far_actions_of_states_are_apart():
    steady = Trend(start=-4.6, level=-4.6, steps=3)
    small = PolicyStats(continuous_std_mean=0.01, std_trend=steady, steps=3, states=300)
    (issue,) = policy_issues(replace(small, mean_spread=0.5))
    assert (issue.issue_type, issue.severity) == (IssueType.ENTROPY_COLLAPSE, IssueSeverity.MEDIUM)
    (remark,) = policy_issues(replace(small, mean_spread=0.002))  # actions of that size: it explores
    assert (remark.issue_type, remark.severity) == (IssueType.EXPLORATION, IssueSeverity.LOW)


def test_a_mean_at_the_ends_of_its_tanh_is_saturated_also_without_a_known_range():
    steady = Trend(start=0.0, level=0.0, steps=3)
    wide = PolicyStats(continuous_std_mean=1.0, std_trend=steady, mean_saturation=0.97, steps=3, states=300)
    assert IssueType.SATURATION not in [issue.issue_type for issue in policy_issues(wide)]
    (issue,) = policy_issues(replace(wide, mean_squashed=True))
    assert (issue.issue_type, issue.severity) == (IssueType.SATURATION, IssueSeverity.MEDIUM)


def test_the_pace_of_looks_that_are_further_and_further_apart_is_no_evidence():
    falling = summarize_policy(discrete(*noisy(line(0.95, 0.4))))
    assert [issue.severity for issue in policy_issues(falling)] == [IssueSeverity.MEDIUM]
    assert [issue.severity for issue in policy_issues(falling, evenly=False)] == [IssueSeverity.LOW]


@pytest.mark.parametrize(
    ("short", "severity"),
    [
        ((0.0037, 0.0061, 0.0043, 0.0056), IssueSeverity.MEDIUM),  # a bonus of 5
        ((0.0066, 0.0060, 0.0062, 0.0061), IssueSeverity.LOW),  # as it was drawn: nothing moves it
        ((0.0017, 0.0061, 0.0043, 0.0096), IssueSeverity.LOW),  # on its way
    ],
)
def test_a_policy_that_leaves_the_uniform_one_and_comes_back_is_held_there(short, severity):
    stats = summarize_policy(discrete(*(1 - each for each in short)))
    (issue,) = policy_issues(stats, evenly=False)
    assert (issue.issue_type, issue.severity) == (IssueType.EXPLORATION, severity)


def test_how_much_a_policy_ever_looked_at_its_states_is_kept():
    stats = summarize_policy([*discrete(0.5, marginal=1.0), *discrete(0.0, 0.0, marginal=0.0)])
    assert stats.mutual_information == 0
    assert stats.mutual_information_at_most == pytest.approx(0.5 * math.log(4))


@pytest.mark.parametrize(
    ("entropies", "severity"),
    [
        ((0.991, 0.971, 0.86, 0.93, 1.0), IssueSeverity.MEDIUM),  # a temperature that grows without end
        ((0.978, 0.971, 0.941, 0.999), IssueSeverity.LOW),  # the rewards of its last batches were all alike
    ],
)
def test_a_policy_that_had_left_the_uniform_one_and_is_back_is_too_random(entropies, severity):
    (issue,) = policy_issues(summarize_policy(discrete(*entropies)), evenly=False)
    assert (issue.issue_type, issue.severity) == (IssueType.EXPLORATION, severity)


@pytest.mark.parametrize(
    ("std", "kind"), [(10.1, IssueType.EXPLORATION), (0.5, IssueType.SATURATION), (2.4, IssueType.SATURATION)]
)
def test_noise_that_drowns_every_mean_comes_before_a_mean_at_its_bounds(std, kind):
    stats = summarize_policy(continuous(*[std] * 20, saturation=1.0))
    (issue,) = policy_issues(replace(stats, mean_squashed=True, mean_spread=0.4))
    assert (issue.issue_type, issue.severity) == (kind, IssueSeverity.MEDIUM)
