"""Steps of the wrong size: with their cause where a known factor, or a limit, explains them, and not without."""

import math

import pytest

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.data import first_loss
from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.loop.rules import with_loop
from gradient_flow.diagnosis.loop.sizes import clipped_away, too_large
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
