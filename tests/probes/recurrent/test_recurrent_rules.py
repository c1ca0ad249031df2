"""Verdicts on recurrent dynamics: silent or LOW where nothing is proven, HIGH where growth or a lag says so."""

import json
import math
import subprocess
import sys

import pytest

from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.probes.recurrent.rules import Criticality, ModuleDynamics, RecurrentDynamics, recurrent_issues
from gradient_flow.probes.recurrent.stats import EarlyInputs, criticality_of, decay_per_step

LOW, MEDIUM, HIGH, CRITICAL = IssueSeverity


def linear(rho, length=50, name="rnn", kind="RNN", **changes):
    """What a linear map with eigenvalues of magnitude rho measures."""
    numbers = {
        "name": name,
        "module": name.split("[")[0],
        "kind": kind,
        "state_size": 16,
        "sequence_length": length,
        "steps": length,
        "recurrent_weight": f"{name}.weight_hh_l0",
        "spectral_radius": rho,
        "lyapunov_exponents": (math.log(rho),),
        "product_norms": {k: rho**k for k in (1, 2, 4, 8, 16, 32)},
        "temporal_decay_rate": rho,
        "decay_error": 0.001,
        "effective_rank": 8.0,
        "sample_rank": 8.0,
        "input_rank": 8.0,
    }
    return ModuleDynamics(**{**numbers, **changes})


def issues_of(*units, **settings):
    return list(recurrent_issues(RecurrentDynamics(modules={unit.name: unit for unit in units}), **settings))


def severities(issues):
    return {issue.issue_type: issue.severity for issue in issues}


@pytest.mark.parametrize("rho", [0.76, 0.9, 0.95, 1.0, 1.04])
def test_a_critical_network_has_no_issues(rho):
    assert issues_of(linear(rho)) == []


def test_a_memory_far_below_what_its_radius_promises_is_low():
    assert severities(issues_of(linear(0.8, temporal_decay_rate=0.6))) == {IssueType.SHORT_MEMORY: LOW}


@pytest.mark.parametrize("rho", [0.45, 0.55, 0.6, 0.7])
@pytest.mark.parametrize("length", [5, 50, 5000])
def test_forgetting_without_a_required_lag_is_never_more_than_low(rho, length):
    issues = issues_of(linear(rho, length))
    assert severities(issues) == {IssueType.SPECTRAL_RADIUS: LOW, IssueType.SHORT_MEMORY: LOW}
    assert "spectral radius too low (fast forgetting)" in issues[0].message
    assert "effective memory" in issues[1].message


def test_forgetting_what_the_task_needs_is_high():
    issues = issues_of(linear(0.5), required_lag=50)
    assert severities(issues) == {IssueType.SPECTRAL_RADIUS: HIGH, IssueType.SHORT_MEMORY: HIGH}
    assert "rnn.weight_hh_l0` by 1.8 (= optimal radius 0.9 / measured 0.5)" in issues[0].advice[0]


def test_a_long_enough_memory_is_fine_also_for_a_long_lag():
    assert issues_of(linear(0.99), required_lag=50) == []
    assert severities(issues_of(linear(0.88), required_lag=50)) == {IssueType.SHORT_MEMORY: MEDIUM}


def test_a_short_lag_replaces_the_ten_steps_of_the_document():
    assert severities(issues_of(linear(0.6), required_lag=4)) == {IssueType.SPECTRAL_RADIUS: LOW}


def test_a_decay_that_may_be_none_is_no_short_memory():
    unsure = linear(0.9, decay_error=0.2)
    assert issues_of(unsure, required_lag=100) == []
    assert severities(issues_of(linear(0.9), required_lag=100)) == {IssueType.SHORT_MEMORY: MEDIUM}


def test_settings_of_the_user_are_taken_at_their_word():
    assert severities(issues_of(linear(0.6), explicit={"optimal_radius"}))[IssueType.SPECTRAL_RADIUS] is HIGH
    issues = issues_of(linear(0.95), optimal_radius=0.5, critical_band=0.1, explicit={"critical_band"})
    assert severities(issues)[IssueType.SPECTRAL_RADIUS] is HIGH
    lag = issues_of(linear(0.88), required_lag=50, explicit={"required_lag"})
    assert severities(lag) == {IssueType.SHORT_MEMORY: HIGH}


@pytest.mark.parametrize(("rho", "length", "severity"), [(1.1, 50, MEDIUM), (1.5, 10, HIGH), (1.5, 50, CRITICAL)])
def test_exploding_states_by_how_much_they_grow(rho, length, severity):
    (issue,) = issues_of(linear(rho, length))
    assert (issue.issue_type, issue.severity) == (IssueType.SPECTRAL_RADIUS, severity)
    assert "spectral radius too high (exploding states)" in issue.message
    assert issue.evidence["lyapunov_exponent"] == pytest.approx(math.log(rho))


def test_exploding_advice_has_values():
    (issue,) = issues_of(linear(1.5))
    assert "by 0.6 (= optimal radius 0.9 / measured 1.5)" in issue.advice[0]
    assert "BPTT to 11 steps" in issue.advice[2]
    assert 1.5**11 < 100 < 1.5**12


def test_a_high_radius_without_growth_is_only_a_warning():
    bounded = linear(1.3, lyapunov_exponents=(-0.01,), product_norms={1: 1.5, 32: 0.9}, temporal_decay_rate=0.99)
    (issue,) = issues_of(bounded)
    assert issue.severity is LOW
    assert "nothing grows" in issue.message


def test_states_that_are_no_numbers_are_critical():
    unit = linear(0.9, nonfinite_at=17, spectral_radius=None, lyapunov_exponents=(), product_norms={}, kind="Cell")
    issue = issues_of(unit)[0]
    assert (issue.issue_type, issue.severity) == (IssueType.EXPLODING, CRITICAL)
    assert "step 17" in issue.message


@pytest.mark.parametrize(("norm", "severity"), [(10.02, LOW), (150.0, MEDIUM), (1e5, HIGH)])
def test_transient_growth_is_exploding_by_the_product_norm_and_not_by_the_radius(norm, severity):
    found = severities(issues_of(linear(0.5, product_norms={1: norm, 2: norm / 2, 32: 1e-6})))
    assert found[IssueType.EXPLODING] is severity
    assert found[IssueType.SPECTRAL_RADIUS] is LOW


def test_slow_growth_at_the_edge_of_chaos_is_healthy():
    open_gates = linear(1.02, lyapunov_exponents=(0.03,), product_norms={1: 1.1, 8: 2.0, 32: 12.0, 60: 55.0})
    assert issues_of(open_gates) == []


RANKS = [(1.05, 8, MEDIUM), (1.4, 4, MEDIUM), (2.0, 8, LOW), (0.9, 2.4, LOW)]


@pytest.mark.parametrize(("rank", "fed", "severity"), RANKS)
def test_states_narrower_than_their_inputs(rank, fed, severity):
    (issue,) = issues_of(linear(0.95, sample_rank=rank, input_rank=fed))
    assert (issue.issue_type, issue.severity) == (IssueType.LOW_RANK, severity)
    assert "low effective rank (insufficient capacity)" in issue.message


def test_a_state_that_nothing_changes_is_dead():
    (issue,) = issues_of(linear(0.95, sample_rank=0.0, input_rank=8))
    assert (issue.issue_type, issue.severity) == (IssueType.DEAD, IssueSeverity.CRITICAL)


@pytest.mark.parametrize(("share", "severity"), [(0.79, None), (0.85, HIGH), (0.97, IssueSeverity.CRITICAL)])
def test_gates_at_the_ends_of_their_range_are_saturated(share, severity):
    found = severities(issues_of(linear(0.95, flat_gates=share)))
    assert found.get(IssueType.SATURATION) is severity


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, {}), (0.2, {IssueType.SHORT_MEMORY: LOW}), (1.0, {IssueType.DISCONNECTED: HIGH})],
)
def test_a_state_detached_at_every_step_is_disconnected_and_now_and_then_its_memory_is_short(share, expected):
    assert severities(issues_of(linear(0.95, cut_share=share))) == expected


@pytest.mark.parametrize(("rank", "fed"), [(1.1, 1.0), (4.0, 8.0), (3.0, None), (None, 8.0)])
def test_narrow_inputs_make_narrow_states_and_that_is_healthy(rank, fed):
    assert issues_of(linear(0.95, sample_rank=rank, input_rank=fed)) == []


def test_one_layer_that_keeps_is_enough_for_the_stack_and_one_that_explodes_is_too_many():
    forgetting, keeping, growing = (
        linear(0.5, name="rnn[l0]"),
        linear(0.95, name="rnn[l1]"),
        linear(1.5, name="rnn[l2]"),
    )
    assert issues_of(forgetting, keeping) == []
    (issue,) = issues_of(forgetting, keeping, growing)
    assert issue.layer == "rnn[l2]"
    both = issues_of(forgetting, linear(0.6, name="rnn[l1]"))
    assert [issue.evidence["also_in"] for issue in both] == [["rnn[l1]"], ["rnn[l1]"]]
    other_module = issues_of(forgetting, linear(0.95, name="decoder"))
    assert {issue.layer for issue in other_module} == {"rnn[l0]"}


@pytest.mark.parametrize(("kind", "gate"), [("LSTM", "forget"), ("GRU", "update")])
def test_gates_are_set_for_the_lag(kind, gate):
    (issue, _) = issues_of(linear(0.5, kind=kind), required_lag=50)
    assert f"{gate}-gate bias to +3.9" in issue.advice[0]
    kept_per_step = 1 / (1 + math.exp(-3.9))
    assert -1 / math.log(kept_per_step) == pytest.approx(50, rel=0.05)


def test_what_was_not_measured_leads_to_no_verdict():
    bare = ModuleDynamics(name="rnn", module="rnn", kind="RNN", state_size=4, sequence_length=9, steps=9)
    assert issues_of(bare, required_lag=50, explicit={"optimal_radius", "required_lag"}) == []
    dynamics = RecurrentDynamics(modules={"rnn": bare})
    assert dynamics.spectral_radius is dynamics.criticality is dynamics.effective_memory_length is None
    assert "Recurrent dynamics over 9 steps" in str(dynamics)


def test_criticality_is_its_text_and_the_band_has_its_edges():
    assert Criticality.SUBCRITICAL == "SUBCRITICAL"
    assert f"{Criticality.CRITICAL}" == "CRITICAL"
    levels = [criticality_of(radius, 1.0, 0.25) for radius in (0.74, 0.75, 1.25, 1.26)]
    assert levels == ["SUBCRITICAL", "CRITICAL", "CRITICAL", "SUPERCRITICAL"]


def test_the_whole_is_its_longest_memory_its_largest_radius_and_its_smallest_rank():
    dynamics = RecurrentDynamics(
        modules={"a": linear(0.5, name="a", effective_rank=3.0), "b": linear(0.9, length=70, name="b")}
    )
    assert dynamics.spectral_radius == dynamics.temporal_decay_rate == 0.9
    assert dynamics.effective_memory_length == pytest.approx(-1 / math.log(0.9))
    assert dynamics.effective_rank == 3
    assert dynamics.sequence_length == 70
    assert dynamics.criticality == "CRITICAL"
    assert dynamics.judged_by(0.5, 0.1).criticality == "SUPERCRITICAL"
    assert "memory 9.49 steps" in str(dynamics)


def test_dynamics_are_strict_json():
    text = json.dumps(RecurrentDynamics(modules={"rnn": linear(1.5)}, course=((1, 1.5),)).to_dict(), allow_nan=False)
    found = json.loads(text)
    assert (found["criticality"], found["effective_memory_length"], found["spectral_radius"]) == (
        "SUPERCRITICAL",
        None,
        1.5,
    )
    assert found["modules"]["rnn"]["product_norms"]["4"] == 1.5**4


def test_decay_ignores_one_odd_step_and_a_gradient_gone_at_the_end():
    logarithms = [-0.1 * lag for lag in range(30)]
    logarithms[7] = 5.0
    assert decay_per_step(logarithms)[0] == pytest.approx(math.exp(-0.1), rel=1e-3)
    assert decay_per_step([*logarithms, -math.inf])[0] == pytest.approx(math.exp(-0.1), rel=1e-3)
    assert decay_per_step([]) is None


def test_issues_are_plain_data_and_need_no_torch():
    for issue in issues_of(linear(1.5), linear(0.5, name="b", sample_rank=0.5), required_lag=50):
        assert issue.to_dict()["severity"]
        assert str(issue)
    code = "import gradient_flow.probes.recurrent.rules, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.parametrize(
    "early", [EarlyInputs(lag=20, early=9.0, late=2.0), EarlyInputs(lag=20, early=9.0, late=8.0), None]
)
def test_calls_on_parts_of_a_sequence_are_a_remark_where_the_loss_depends_on_more(early):
    unit = linear(0.95, length=5)
    found = list(recurrent_issues(RecurrentDynamics(modules={unit.name: unit}, early_inputs=early)))
    if early is None or not early.needed:
        assert found == []
        return
    (issue,) = found
    assert (issue.issue_type, issue.severity) == (IssueType.SHORT_MEMORY, LOW)
    assert (issue.evidence["steps_per_call"], issue.evidence["required_lag"]) == (5, 20)
