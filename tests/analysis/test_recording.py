"""An analysis is a run: same lines, same reader, same verdict."""

import math

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.analysis.recording import analysis_run
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.verdict import NETWORK, verdict
from gradient_flow.record.plain import from_plain, to_plain


def sigmoids(depth=8):
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(depth) for part in (nn.Linear(16, 16), nn.Sigmoid())])


def loss_of(output):
    return (output - 1).square().mean()


@pytest.fixture(scope="module")
def analyzer():
    found = gf.GradientFlowAnalyzer(sigmoids(), enable_vector_analysis=True)
    found.issues = found.analyze(lambda: torch.randn(64, 16), loss_of, steps=5)
    return found


def test_the_verdict_on_its_run_is_what_the_analyzer_says(analyzer):
    run = analysis_run(analyzer.record, analyzer.seen)
    assert [str(issue) for issue in verdict(run)] == [str(issue) for issue in analyzer.issues]
    assert [issue.issue_type for issue in analyzer.issues] == [gf.IssueType.VANISHING]
    assert len(run) == 5
    assert run.series("norm").tolist() == pytest.approx(analyzer.record.norms)


def test_a_record_survives_its_plain_form_bit_by_bit(analyzer):
    back = from_plain(AnalysisRecord, to_plain(analyzer.record))
    assert repr(to_plain(back)) == repr(to_plain(analyzer.record))
    assert back.places[0].gradient == analyzer.record.places[0].gradient


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-310, 0.1, -0.0])
def test_numbers_survive_whatever_they_are(value):
    back = from_plain(AnalysisRecord, to_plain(AnalysisRecord(steps=1, losses=[value], input_rms=value)))
    assert repr(back.losses) == repr([value])
    assert repr(back.input_rms) == repr(value)


def test_what_is_not_measured_stays_apart_from_what_is_not_finite():
    place = {"rms": ["NaN"], "gradient": [None, "Infinity", 2.0]}
    about = {
        "name": "a",
        "role": "output",
        "call": 0,
        "kind": "Linear",
        "layer": "a",
        "order": 0,
        "units": 1,
        "size": 1,
    }
    about |= {"units": 1, "size": 1, "samples": 1, "positions": 1, "own_weights": True, "from_data": False}
    back = from_plain(AnalysisRecord, {"steps": 1, "places": [about | place]})
    assert back.places[0].gradient == [None, math.inf, 2.0]


@pytest.mark.parametrize("damage", [{"steps": "many"}, {}, {"steps": 1, "places": 3}, {"steps": 1, "losses": ["x"]}, 7])
def test_a_damaged_record_is_refused_in_words(damage):
    with pytest.raises(gf.RunFileError, match="damaged: this is no AnalysisRecord"):
        from_plain(AnalysisRecord, damage)


def test_fields_of_a_newer_version_are_left_out():
    assert from_plain(AnalysisRecord, {"steps": 3, "colour": "blue"}).steps == 3


def test_vector_analysis_reports_the_coherence_of_the_flow(analyzer):
    """One batch again and again points one way; fresh noise as target points anywhere."""
    assert 0 < analyzer.field.coherence <= 1
    assert analyzer.seen["field"]["stats"]["coherence"] == analyzer.field.coherence
    batch = torch.randn(64, 16)
    same = gf.GradientFlowAnalyzer(sigmoids(2), enable_vector_analysis=True)
    same.analyze(lambda: batch, loss_of, steps=6)
    noise = gf.GradientFlowAnalyzer(sigmoids(2), enable_vector_analysis=True)
    noise.analyze(lambda: torch.randn(64, 16), lambda output: (output * torch.randn_like(output)).mean(), steps=6)
    assert same.field.coherence == pytest.approx(1.0)
    assert noise.field.coherence < 0.6
    assert "flow coherence 1.000" in str(same.field)


def test_a_look_puts_what_an_analyzer_saw_into_a_watched_run(tmp_path, analyzer):
    model = sigmoids()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model(torch.randn(8, 16))).backward()
            optimizer.step()
        flow.add_look(analyzer.seen)
    assert flow.run.found(NETWORK)[-1][0] == 3
    assert gf.diagnose(tmp_path)[0].message == analyzer.issues[0].message


def test_a_probe_that_nobody_knows_here_is_ignored(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=tmp_path) as flow:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        flow.add_look({"telepathy": {"stats": {"waves": 3}}})
    assert list(gf.diagnose(tmp_path)) == list(flow.diagnose())


def test_a_failing_probe_rule_does_not_end_an_analysis(monkeypatch):
    """One rule that fails is named once and left out; the others speak."""
    from gradient_flow.probes.attention import rules

    monkeypatch.setattr(rules, "attention_issues", lambda *a, **k: 1 / 0)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    analyzer = gf.TransformerAnalyzer(layer)
    with pytest.warns(gf.GradientFlowWarning, match="attention rules.*failed and was skipped"):
        issues, stats = analyzer.analyze(lambda: torch.randn(4, 6, 16), lambda output: output.square().mean(), steps=2)
    assert stats is not None
    assert isinstance(issues, list)
