"""The documented levels as pure rules: a LOW remark by default, HIGH at the user's word."""

import math

import pytest

from gradient_flow.diagnosis.consolidation import beside, consolidate
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.levels import coefficient_of_variation, gradient_levels, zero_gradients
from gradient_flow.diagnosis.network.record import DEFAULTS, AnalysisRecord, Layer
from gradient_flow.record.plain import from_plain, to_plain

LOW, HIGH = IssueSeverity.LOW, IssueSeverity.HIGH


def record(*layers, **more):
    settings = {"steps": 20, "watched": [0, 10, 19], "norms": [1.0] * 20, "losses": [2.3] * 20, **more}
    return AnalysisRecord(layers=list(layers), **settings)


def layer(name="a", gradient=(1.0, 1.0, 1.0), **more):
    return Layer(name=name, kind="Linear", trainable=True, order=0, gradient_seen=True, gradient=list(gradient), **more)


def told(issues):
    return [(issue.issue_type, issue.severity, issue.layer) for issue in issues]


@pytest.mark.parametrize(("norm", "kind"), [(8e-7, IssueType.VANISHING), (80.0, IssueType.EXPLODING)])
def test_beyond_a_default_is_a_remark_and_beyond_a_passed_threshold_is_high(norm, kind):
    layers = layer(), layer("b", [norm] * 3)
    (remark,) = gradient_levels(record(*layers))
    assert told([remark]) == [(kind, LOW, "b")]
    assert "scaled" in remark.cause
    assert told(gradient_levels(record(*layers, passed=(f"{kind}_threshold",)))) == [(kind, HIGH, "b")]


def test_which_thresholds_were_passed_survives_the_file():
    kept = from_plain(AnalysisRecord, to_plain(record(passed=("dead_threshold",))))
    assert kept.explicit == {"dead_threshold"}
    assert kept.thresholds == DEFAULTS


def test_another_value_than_the_default_was_passed():
    assert record(thresholds={**DEFAULTS, "dead_threshold": 0.95}).explicit == {"dead_threshold"}


def test_levels_are_of_the_finite_steps():
    broken = record(layer(gradient=[80.0, math.nan, 80.0]), norms=[80.0] * 10 + [math.nan] + [80.0] * 9)
    assert told(gradient_levels(broken)) == [(IssueType.EXPLODING, LOW, "a")]
    assert list(gradient_levels(record(layer(gradient=[math.nan] * 3), norms=[math.nan] * 20))) == []


@pytest.mark.parametrize(
    "more",
    [{"masked": True}, {"is_embedding": True}, {"idle_units": 0.0}, {"used_by_sibling": True}],
    ids=["masked", "embedding", "sparse inputs", "idle expert"],
)
def test_a_gradient_that_is_sparse_by_design_is_not_dead(more):
    usual = {"zero_share": [0.95] * 3, "idle_units": 0.95}
    assert list(zero_gradients(record(layer(**usual | more)))) == []
    assert told(zero_gradients(record(layer(**usual)))) == [(IssueType.DEAD, LOW, "a")]


def test_a_share_of_zeros_counts_at_every_step():
    assert list(zero_gradients(record(layer(zero_share=[0.95, 0.95, 0.5], idle_units=0.5)))) == []


def test_an_expert_without_work_and_a_branch_behind_zeros_are_not_dead():
    nothing = {"gradient": [0.0] * 3, "zero_share": [1.0] * 3, "idle_units": 1.0}
    assert list(zero_gradients(record(layer("experts.0"), layer("experts.1", **nothing)))) == []
    assert list(zero_gradients(record(layer("down", **nothing), layer("up", zero_weights=True)))) == []
    assert told(zero_gradients(record(layer("down", **nothing), layer("up")))) == [(IssueType.DEAD, LOW, "down")]


def norms_with_a_variation_of(ratio, steps=20):
    """One norm above equal ones, so that the deviation over the mean is as given."""
    tall = next(t / 100 for t in range(100, 10**6) if _variation([1.0] * (steps - 1) + [t / 100]) >= ratio)
    return [1.0] * (steps - 1) + [tall]


def _variation(norms):
    mean = sum(norms) / len(norms)
    return math.sqrt(sum((norm - mean) ** 2 for norm in norms) / len(norms)) / mean


def test_the_coefficient_of_variation():
    below, above = (record(norms=norms_with_a_variation_of(ratio)) for ratio in (2.5, 3.2))
    assert list(coefficient_of_variation(below)) == []
    assert told(coefficient_of_variation(above)) == [(IssueType.UNSTABLE, LOW, "model")]
    for each in (below, above):
        each.passed = ("unstable_cv_threshold",)
    assert list(coefficient_of_variation(below)) == []
    assert told(coefficient_of_variation(above)) == [(IssueType.UNSTABLE, HIGH, "model")]


# ---- beside other findings ------------------------------------------------------------------------------------------


def issue(kind, severity, layer="a", **evidence):
    return Issue(issue_type=kind, severity=severity, layer=layer, message="", evidence=evidence)


def test_a_remark_hides_no_issue():
    remark, grave = issue(IssueType.EXPLODING, LOW), issue(IssueType.UNSTABLE, HIGH, "model")
    assert told(consolidate([remark, grave], record())) == told([grave, remark])
    assert told(beside([remark], [grave])) == told([remark, grave])
    assert told(beside([remark], [issue(IssueType.EXPLODING, HIGH)])) == told([issue(IssueType.EXPLODING, HIGH)])


def test_nan_takes_in_neither_a_level_nor_the_users_threshold():
    bad = issue(IssueType.NUMERICAL, IssueSeverity.CRITICAL)
    low = issue(IssueType.EXPLODING, LOW, exploding_threshold=10.0)
    assert told(consolidate([low, bad], record())) == told([bad, low])
    dead, own = issue(IssueType.DEAD, HIGH), issue(IssueType.VANISHING, HIGH, vanishing_threshold=1e-6)
    assert told(consolidate([own, dead], record())) == told([dead, own])
