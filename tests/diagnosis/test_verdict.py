"""`diagnose`: the same rules for a live watch, a run folder and the documented JSON files."""

import json
import math

import pytest
import torch
from torch import nn

from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.registry import register_rule, unregister_rule
from gradient_flow.diagnosis.robust import spikes
from gradient_flow.diagnosis.sources import diagnose
from gradient_flow.diagnosis.verdict import judge
from gradient_flow.errors import InputError, RunFileError
from gradient_flow.flow.watch import watch
from gradient_flow.record.evidence import LayerSeries, NonFinite, RunRecord, Series
from gradient_flow.record.run import load_run


def record(norms, **more):
    return RunRecord(totals=[Series(name="model", steps=list(range(1, len(norms) + 1)), norms=list(norms))], **more)


def noisy(length, level=1.0, spread=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [level * math.exp(spread * float(torch.randn((), generator=generator))) for _ in range(length)]


def kinds(diagnosis):
    return [issue.issue_type.name for issue in diagnosis]


def layer(name, norms, **more):
    return LayerSeries(
        name=name, steps=[10 * k for k in range(len(norms))], norms=list(norms), elements=[100] * len(norms), **more
    )


# ---- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e8])
def test_healthy_runs_have_no_issue_at_any_scale(scale):
    converging = [scale * norm * 0.995**k for k, norm in enumerate(noisy(400))]
    assert kinds(judge(record(converging))) == []
    assert kinds(judge(record([scale * norm for norm in noisy(400)]))) == []


def test_a_constant_norm_has_no_spikes():
    assert spikes([1.0] * 50 + [1.2] + [1.0] * 50, window=64) == []


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e8])
def test_a_spike_is_found_at_any_scale(scale):
    norms = [scale * norm for norm in noisy(200)]
    norms[120] *= 100
    (issue,) = judge(record(norms))
    assert (issue.issue_type, issue.step) == (IssueType.UNSTABLE, 121)
    assert "Clip the norm at" in issue.advice[0]


def test_rise_and_fall():
    assert kinds(judge(record([1.3**k for k in range(60)]))) == ["EXPLODING"]
    falling = [0.8**k for k in range(60)]
    assert kinds(judge(record(falling))) == ["VANISHING"]
    assert kinds(judge(record(falling, losses=[0.9**k for k in range(60)]))) == []  # it converged
    assert kinds(judge(record(falling, losses=[2.3] * 60))) == ["VANISHING"]


def test_nonfinite_takes_in_what_it_brings_about():
    norms = [*noisy(30), math.nan, math.nan]
    (issue,) = judge(
        record(norms, nonfinite=NonFinite(31, ("a", "b"), 2, 0), layers=[layer("a", [1.0]), layer("b", [1.0])])
    )
    assert (issue.issue_type, issue.step, issue.layer) == (IssueType.NUMERICAL, 31, "b")  # nearest to the output


def test_update_ratios():
    healthy = [layer("a", [1.0] * 5, update_ratios=[1e-3] * 5)]
    fast = [layer("a", [1.0] * 5, update_ratios=[3.0] * 5)]
    slow = [layer("a", [1.0] * 5, update_ratios=[1e-7] * 5)]
    assert kinds(judge(record(noisy(40), layers=healthy))) == []
    assert kinds(judge(record(noisy(40), layers=fast, learning_rate=0.1))) == ["EXPLODING"]
    assert kinds(judge(record(noisy(40), layers=slow, losses=[2.3] * 40))) == ["SLOW"]
    assert kinds(judge(record(noisy(40), layers=slow, losses=[2.3 * 0.9**k for k in range(40)]))) == []


@pytest.mark.parametrize(
    ("largest", "typical", "kind"), [(1.2e-5, 8e-6, ["SLOW"]), (1.2e-5, 1.2e-5, []), (1e-3, 8e-6, [])]
)
def test_the_typical_matrix_may_not_move_while_another_moves_a_little_more(largest, typical, kind):
    moved = {"a": largest, "b": typical, "c": typical}
    slow = [layer(name, [1.0] * 5, update_ratios=[ratio] * 5) for name, ratio in moved.items()]
    assert kinds(judge(record(noisy(40), layers=slow, losses=[2.3] * 40))) == kind


def test_a_layer_that_goes_quiet():
    layers = [layer("a", [1.0, 1.0, 0.0, 0.0, 0.0]), layer("b", [1.0] * 5)]
    (issue,) = judge(record(noisy(40), layers=layers))
    assert (issue.issue_type, issue.layer, issue.step) == (IssueType.DEAD, "a", 20)


def test_gradients_lost_over_depth():
    layers = [layer(f"{k}.weight", [10.0 ** (k - 8)] * 3) for k in range(8)]
    (issue,) = judge(record(noisy(40), layers=layers))
    assert (issue.issue_type, issue.layer) == (IssueType.VANISHING, "0.weight")


def test_clipping_most_steps_is_a_remark():
    def clipped(*after):
        series = Series(name="model", steps=list(range(40)), norms=[2.0] * 40, clipped_norms=list(after))
        return judge(RunRecord(totals=[series]))

    assert clipped(*[1.0] * 40).healthy
    assert kinds(clipped(*[1.0] * 40)) == ["UNSTABLE"]
    assert kinds(clipped(*[2.0] * 40)) == []
    assert kinds(clipped(*[1.0, math.nan] * 20)) == []  # a step without a clip is one that was not clipped
    assert "55% of the steps" in clipped(*[1.0] * 22, *[math.nan] * 18)[0].message


def test_rules_of_ones_own_over_time():
    def short(run):
        if run.steps < 100:
            yield Issue(issue_type=IssueType.SLOW, severity=IssueSeverity.LOW, layer="model", message="short")

    register_rule(short, of="run")
    try:
        assert [issue.message for issue in judge(record(noisy(40)))] == ["short"]
    finally:
        unregister_rule("short")


# ---- sources --------------------------------------------------------------------------------------------------------


def train(folder=None, *, steps=60, bad_at=None, rate=0.01):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x = torch.randn(64, 8)
    with watch(model, optimizer, run=folder, layers_every=5) as flow:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = (model(x) - x[:, :1]).square().mean()
            loss.backward()
            if step == bad_at:
                model[0].weight.grad[0, 0] = math.nan
            flow.log(loss=loss)
            if bad_at is None or step < bad_at:
                optimizer.step()
            else:
                flow.step()
                break
    return flow


def test_a_flow_and_its_run_folder_agree(tmp_path):
    flow = train(tmp_path / "run")
    for source in (flow, tmp_path / "run", str(tmp_path / "run"), load_run(tmp_path / "run")):
        diagnosis = diagnose(source)
        assert diagnosis.healthy, str(diagnosis)
        assert diagnosis.status == "stable"
        assert len(diagnosis) == 0
        assert "Healthy" in str(diagnosis)


def test_nan_is_found_with_its_step_and_layer(tmp_path):
    flow = train(tmp_path / "run", bad_at=12)
    for source in (flow, tmp_path / "run"):
        diagnosis = diagnose(source)
        assert diagnosis.status == "nan"
        assert (diagnosis.step, diagnosis.layer) == (12, "0.weight")


def test_a_rate_far_too_high_is_named(tmp_path):
    train(tmp_path / "run", rate=50.0, steps=20)
    diagnosis = diagnose(tmp_path / "run")
    assert not diagnosis.healthy
    assert diagnosis.filter(issue_type=IssueType.EXPLODING) or diagnosis.status in ("nan", "unstable")


def write(path, norms):
    steps = [100 * (k + 1) for k in range(len(norms))]
    blank = {key: [0.0] * len(norms) for key in ("grad_variance", "grad_mean", "grad_max", "grad_min")}
    path.write_text(json.dumps({"step": steps, "epoch": [0] * len(norms), "grad_norm": norms, **blank}))


def test_documented_json(tmp_path):
    path = tmp_path / "gradient_statistics.json"
    write(path, noisy(40))
    assert diagnose(path).healthy
    assert diagnose(tmp_path).healthy
    write(path, [0.5**k for k in range(40)])
    assert diagnose(path).status == "vanishing"
    write(path, [*noisy(20), None, 1.0])
    assert (diagnose(path).status, diagnose(path).step) == ("nan", 2100)


def test_documented_json_per_matrix(tmp_path):
    steps = list(range(100, 4100, 100))
    matrices = {name: {"step": steps, "norm": noisy(40), "variance": noisy(40)} for name in ("W_in", "W_rec", "biases")}
    matrices["W_rec"]["norm"][20] = None
    (tmp_path / "gradient_statistics_weight_matrices.json").write_text(json.dumps(matrices))
    diagnosis = diagnose(tmp_path / "gradient_statistics_weight_matrices.json")
    assert (diagnosis.status, diagnosis.layer, diagnosis.step) == ("nan", "W_rec", 2100)


def test_bad_sources_are_named(tmp_path):
    with pytest.raises(InputError, match="`source`"):
        diagnose(42)
    with pytest.raises(RunFileError):
        diagnose(tmp_path / "nothing")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(RunFileError, match="not JSON"):
        diagnose(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(RunFileError, match="grad_norm"):
        diagnose(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("statistics", "matrices"),
    [
        ({"grad_norm": [1.0, 2.0]}, "{}"),
        ({"grad_norm": [1.0, 2.0], "step": [1]}, "{}"),
        ({"grad_norm": ["one"], "step": [1]}, "{}"),
        ({"grad_norm": 1.0, "step": 1}, "{}"),
        ({"grad_norm": [1.0], "step": [1]}, "{oops"),
        ({"grad_norm": [1.0], "step": [1]}, '{"W_in": 3}'),
        ({"grad_norm": [1.0], "step": [1]}, '{"W_in": {"step": [1], "norm": []}}'),
    ],
)
def test_a_json_file_that_is_not_as_documented_is_named(tmp_path, statistics, matrices):
    (tmp_path / "gradient_statistics.json").write_text(json.dumps(statistics))
    (tmp_path / "gradient_statistics_weight_matrices.json").write_text(matrices)
    with pytest.raises(RunFileError, match="gradient_statistics"):
        diagnose(tmp_path)


def test_too_little_data_is_no_finding():
    diagnosis = judge(record([1.0]))
    assert diagnosis.healthy
    assert diagnosis.status == "insufficient_data"
    assert judge(RunRecord()).status == "insufficient_data"


def test_a_diagnosis_is_a_sequence_that_filters_and_prints():
    issues = [
        Issue(issue_type=IssueType.DEAD, severity=IssueSeverity.MEDIUM, layer="encoder.0", message="a."),
        Issue(issue_type=IssueType.VANISHING, severity=IssueSeverity.CRITICAL, layer="head", message="b.", step=3),
    ]
    diagnosis = Diagnosis(issues, steps=10)
    assert [issue.layer for issue in diagnosis] == ["head", "encoder.0"]
    assert diagnosis.status == "vanishing"
    assert not diagnosis.healthy
    assert len(diagnosis.filter(severity=IssueSeverity.HIGH)) == 1
    assert diagnosis.filter(layer="Encoder")[0].issue_type is IssueType.DEAD
    assert diagnosis.filter(issue_type=IssueType.SLOW).healthy
    assert str(diagnosis).startswith("Not healthy (vanishing): 2 issues in 10 steps.")
    assert json.dumps(diagnosis.to_dict(), allow_nan=False)


def test_an_issue_and_a_verdict_are_short_among_others():
    issue = Issue(issue_type=IssueType.DEAD, severity=IssueSeverity.HIGH, layer="fc1", message="m " * 99, step=3)
    assert repr([issue]) == "[Issue(DEAD, HIGH, 'fc1', step=3)]"
    assert repr(Issue(issue_type=IssueType.SLOW, severity=IssueSeverity.LOW, layer="a", message="")).endswith("'a')")
    assert repr(Diagnosis([issue], steps=7)).endswith("1 issue, 7 steps)")
    assert repr(Diagnosis([], steps=7)).endswith("0 issues, 7 steps)")
