"""Steps of the wrong size: with their cause where a known factor, or a limit, explains them, and not without."""

import math

import pytest

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.data import first_loss
from gradient_flow.diagnosis.loop.order import not_cleared
from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.loop.rules import with_loop
from gradient_flow.diagnosis.loop.sizes import clipped_away, too_large, with_code
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.optimizer.record import OptimizerFacts, StateLook
from gradient_flow.record.evidence import LayerSeries, RunRecord, Series


def run_of(losses, updates, norms=None, clipped=()):
    steps = list(range(1, len(losses) + 1))
    layer = LayerSeries(
        name="fc.weight", steps=steps[: len(updates)], norms=[1.0] * len(updates), update_ratios=updates
    )
    total = Series(
        name="model", steps=steps, norms=norms or [1.0] * len(losses), clipped_norms=list(clipped), losses=losses
    )
    return RunRecord(totals=[total], layers=[layer])


def accumulated(losses, updates, divided=False):
    call = LossCall(function="cross_entropy", value=1.0)
    looks = [LoopLook(step=at, backwards=4, loss=0.25 if divided else 1.0, calls=[call]) for at in (3, 20, 40)]
    return Loop(run_of(losses, updates), LoopFacts(looks=looks, taken=3))


WORSE_THEN_LESS = [2.0 + at for at in range(5)] + [6.0 * 0.93**at for at in range(35)]


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (accumulated(WORSE_THEN_LESS, [0.7, 0.2, 0.2]), ["undivided_accumulation"]),
        (accumulated(WORSE_THEN_LESS, [0.7, 0.01, 0.01]), []),  # large once alone
        (accumulated([2 * 0.97**at for at in range(40)], [0.7, 0.2, 0.2]), []),  # it was never worse
        (accumulated(WORSE_THEN_LESS, [0.7, 0.2, 0.2], divided=True), []),
    ],
)
def test_steps_too_large_by_a_known_factor_are_told_though_the_loss_fell_in_the_end(loop, found):
    assert [issue.code for issue in too_large(loop)] == found


def limited(kind, factor, end):
    losses = [2.0 - (2.0 - end) * at / 59 + 0.005 * (-1) ** at for at in range(60)]
    run = run_of(losses, [4e-4] * 3, norms=[1.0] * 60, clipped=[factor] * 60)
    looks = [LoopLook(step=at) for at in (3, 20, 40)]
    states = OptimizerFacts(looks=[StateLook(step=3, kind=kind)])
    return Loop(run, LoopFacts(looks=looks, taken=3), None, states)


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (limited("momentum", 5e-3, 1.95), ["clip_sets_step"]),
        (limited("adam", 5e-3, 1.95), []),  # its steps do not depend on the length of gradients
        (limited("momentum", 0.2, 1.95), []),
        (limited("momentum", 5e-3, 1.0), []),  # it learns all the same
    ],
)
def test_a_limit_far_below_the_norms_is_the_cause_where_steps_depend_on_it_and_little_is_learned(loop, found):
    assert [issue.code for issue in clipped_away(loop)] == found


@pytest.mark.parametrize(("end", "severity"), [(1.95, "HIGH"), (1.8, "MEDIUM")])
def test_a_limit_that_slows_a_run_down_is_less_grave_than_one_that_stops_it(end, severity):
    (issue,) = clipped_away(limited("momentum", 5e-4, end))
    assert issue.severity.name == severity
    assert ("does not fall" in issue.message) == (severity == "HIGH")


def random_policy(updates, rewards=None):
    """A policy of which four looks saw an entropy of 0.99, in a run of 60 steps."""
    losses = [0.1 * (-1) ** at for at in range(60)]
    loop = Loop(run_of(losses, updates), LoopFacts())
    if rewards is not None:
        loop.run.signals["reward"] = (list(range(60)), rewards)
    issue = Issue(
        issue_type=IssueType.EXPLORATION,
        severity=IssueSeverity.LOW,
        layer="policy",
        message="Too random.",
        evidence={"entropy_at_least": 0.99, "steps": 4},
    )
    return with_loop([issue], [], loop)[0].severity.name


@pytest.mark.parametrize(
    ("updates", "rewards", "severity"),
    [
        ([0.02], None, "MEDIUM"),
        ([0.001], None, "LOW"),  # weights have hardly moved: it is at its start
        ([0.02], [at / 60 + 0.01 * (-1) ** at for at in range(60)], "LOW"),  # it earns more and more
        ([0.02], [0.5 + 0.01 * (-1) ** at for at in range(60)], "MEDIUM"),
    ],
)
def test_a_policy_that_stays_random_while_its_weights_move_far_is_more_than_a_remark(updates, rewards, severity):
    assert random_policy(updates, rewards) == severity


@pytest.mark.parametrize(
    ("times", "end", "severity"), [(9.0, 0.5, "LOW"), (9.0, 1.2, "MEDIUM"), (50.0, 0.02, "MEDIUM"), (2.5, 0.5, "LOW")]
)
def test_a_high_first_loss_is_a_remark_once_it_is_overcome(times, end, severity):
    guess = math.log(6)
    losses = [times * guess * (end / times) ** (at / 49) for at in range(50)]
    calls = [LossCall(function="cross_entropy", classes=6, of_output=True, value=loss) for loss in losses[2::16]]
    looks = [LoopLook(step=3 + at, backwards=1, loss=call.value, calls=[call]) for at, call in enumerate(calls)]
    (issue,) = first_loss(Loop(run_of(losses, [1e-3]), LoopFacts(looks=looks, taken=len(looks))))
    assert (issue.code, issue.severity.name) == ("first_loss_high", severity)


@pytest.mark.parametrize(
    ("seen", "functions", "severity"),
    [
        ([2.0, 1.8, 1.4, 1.1, 0.9], "abcde", "MEDIUM"),  # losses of different things
        ([2.0, 1.8, 1.4, 1.1, 0.9], "aaaaa", "LOW"),
        ([2.0, 2.2, 1.9, 2.1, 2.0], "aaaaa", "MEDIUM"),
        ([2.0, 1.4, 0.9], "aaa", "MEDIUM"),  # too few to tell
    ],
)
def test_with_several_optimizers_looks_tell_whether_the_loss_falls(seen, functions, severity):
    large = Issue(
        issue_type=IssueType.EXPLODING,
        severity=IssueSeverity.MEDIUM,
        layer="say",
        message="one step moves its weights by 28% of their size.",
        evidence={"update_ratio": 0.28},
        code="rate_too_high",
    )
    both = [Series(name=name, steps=[1, 2], norms=[1.0, 1.0]) for name in ("first", "second")]
    looks = [
        LoopLook(step=3 + at, backwards=1, loss=loss, calls=[LossCall(function=functions[at])])
        for at, loss in enumerate(seen)
    ]
    loop = Loop(RunRecord(totals=both), LoopFacts(looks=looks, taken=len(looks), optimizers=2))
    assert [issue.severity.name for issue in with_loop([large], [], loop)] == [severity]


@pytest.mark.parametrize(
    ("agreement", "level", "severity"),
    [
        (2.0, 10.0, "LOW"),  # what is learned hides in the noise of the targets
        (0.2, 10.0, "MEDIUM"),
        (2.0, 14.0, "MEDIUM"),  # predictions that go the right way, and far too far
    ],
)
def test_steps_are_not_too_large_where_predictions_go_with_targets_of_noise(agreement, level, severity):
    call = LossCall(
        function="mse_loss", value=level, of_output=True, variance=10.0, reduction="mean", agreement=agreement
    )
    looks = [LoopLook(step=3 + at, backwards=1, loss=level, calls=[call]) for at in range(10)]
    large = Issue(
        issue_type=IssueType.EXPLODING,
        severity=IssueSeverity.MEDIUM,
        layer="say",
        message="one step moves its weights by 28% of their size.",
        evidence={"update_ratio": 0.28},
    )
    loop = Loop(run_of([level] * 40, [0.1]), LoopFacts(looks=looks, taken=10))
    assert [issue.severity.name for issue in with_loop([large], [], loop)] == [severity]


@pytest.mark.parametrize("kind", [IssueType.DEAD, IssueType.SATURATION])
@pytest.mark.parametrize(
    ("peak", "update", "code"),
    [
        (100.0, 8.0, "rate_too_high"),
        (1.2, 8.0, ""),  # weights that began small
        (100.0, 0.05, ""),  # a loud batch
    ],
)
def test_units_that_a_step_broke_are_named_by_it_though_the_loss_fell_since(kind, peak, update, code):
    losses = [1.0, peak, *(0.4 for _ in range(38))]
    broken = Issue(issue_type=kind, severity=IssueSeverity.HIGH, layer="mid", message="58% of its units are silent.")
    (issue,) = with_loop([broken], [], Loop(run_of(losses, [update, 1e-3, 1e-3]), LoopFacts()))
    assert (issue.issue_type, issue.layer, issue.code) == (kind, "mid", code)


@pytest.mark.parametrize(
    ("cosines", "losses", "first", "code"),
    [
        ([0.98, 0.93, math.nan], [0.67, 0.73, 0.81, 0.96, 1.2, 2.4, 15.0, 590.0], 0.03, "loss_grows"),
        ([0.98, -0.4, math.nan], [0.67, 0.73, 0.81, 0.96, 1.2, 2.4, 15.0, 590.0], 0.03, "rate_too_high"),
        ([0.98, 0.93, math.nan], [0.67, 0.73, 0.70, 0.96, 1.2, 2.4, 15.0, 590.0], 0.03, "rate_too_high"),
        ([0.98, 0.93, math.nan], [0.67, 0.73, 0.81, 0.96, 1.2, 2.4, 15.0, 590.0], 2.0, "rate_too_high"),
    ],
)
def test_a_loss_that_rises_from_the_first_small_step_while_gradients_agree_goes_uphill(cosines, losses, first, code):
    large = Issue(
        issue_type=IssueType.EXPLODING,
        severity=IssueSeverity.CRITICAL,
        layer="out",
        message="one step moves its weights by 1.11 times their size.",
        evidence={"update_ratio": 1.1},
    )
    loop = Loop(run_of(losses, [first, 4.0]), LoopFacts(), AnalysisRecord(steps=8, cosines=cosines))
    assert [issue.code for issue in with_loop([large], [], loop)] == [code]


@pytest.mark.parametrize(
    ("stale", "code"), [(8, "partial_zero_grad"), (10, "missing_zero_grad"), (5, "partial_zero_grad")]
)
def test_a_part_that_is_not_cleared_is_named_however_large_it_is(stale, code):
    looks = [LoopLook(step=at, used=10, given=10, brought=10, stale=stale) for at in (3, 10, 20, 40)]
    facts = LoopFacts(looks=looks, taken=4, partly_cleared=[f"{at}.weight" for at in range(stale)])
    assert [issue.code for issue in not_cleared(Loop(RunRecord(), facts))] == [code]


@pytest.mark.parametrize(
    ("update", "peak", "end", "code"),
    [
        (4.2, 3.6, 0.8, "rate_too_high"),
        (0.3, 3.6, 0.8, ""),  # steps of ordinary size: the attention is at fault itself
        (4.2, 1.0, 0.8, ""),  # no step threw the loss up
        (4.2, 3.6, 0.1, ""),  # it got over it
    ],
)
def test_attention_that_a_step_threw_off_has_the_rate_as_its_cause(update, peak, end, code):
    losses = [1.0, *[peak] * 9, *[end] * 40]
    run = run_of(losses, [update, 0.01, 0.01])
    run.learning_rate = 0.3
    sharp = Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE, severity=IssueSeverity.HIGH, layer="blocks.0", message="", cause=""
    )
    (issue,) = with_loop([sharp], [], Loop(run, LoopFacts()))
    assert issue.code == code
    assert str(issue.advice[0] if issue.advice else "").startswith("Lower the learning rate from 0.3 to ") == bool(code)


@pytest.mark.parametrize(
    ("update", "loss", "code", "first"),
    [
        (2e6, 2.4e11, "rate_too_high", "Standardise inputs and targets: a first loss of 2.4e11"),
        (50.0, 2.3, "rate_too_high", "Lower the learning rate"),
        (0.01, 2.3, "", "Look at the batch"),  # ordinary steps: a batch or an operation did it
    ],
)
def test_what_is_not_finite_after_huge_steps_has_those_as_its_cause(update, loss, code, first):
    run = run_of([loss, math.nan, math.nan], [update])
    run.learning_rate = 0.01
    broken = Issue(
        issue_type=IssueType.NUMERICAL,
        severity=IssueSeverity.CRITICAL,
        layer="4.weight",
        message="",
        advice=["Look at the batch of that step."],
    )
    found = with_code(broken, Loop(run, LoopFacts()))
    assert found.code == code
    assert found.advice[0].startswith(first)
