"""The way from a case to the tool and back, with a tool made by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from validation.adapter import findings
from validation.score import Finding
from validation.zoo import CASES

import gradient_flow
from gradient_flow import Issue, IssueSeverity, IssueType
from validation import runner

ISSUE = Issue(
    issue_type=IssueType.DEAD,
    severity=IssueSeverity.HIGH,
    layer="net.3",
    message="dead",
    consequences=[
        Issue(issue_type=IssueType.SLOW, severity=IssueSeverity.HIGH, layer="net.1", message="follows from it")
    ],
)


class Tool:
    """Notes what it is given and reports one issue."""

    with_statistics = False
    seen: dict

    def __init__(self, model, enable_vector_analysis=False):
        Tool.seen = {"model": model, "vector": enable_vector_analysis}

    def analyze(self, input_fn, loss_fn, steps=20, optimizer=None, action_extractor=None, players=None, returns=None):
        Tool.seen |= {"steps": steps, "optimizer": optimizer, "players": players, "returns": returns}
        Tool.seen |= {"extractor": action_extractor}
        return ([ISSUE], object()) if self.with_statistics else [ISSUE]


class ToolWithStatistics(Tool):
    with_statistics = True


@pytest.fixture(autouse=True)
def _tool(monkeypatch):
    monkeypatch.setattr(gradient_flow, "GradientFlowAnalyzer", Tool, raising=False)
    for name in ("RecurrentAnalyzer", "TransformerAnalyzer", "RLPolicyAnalyzer"):
        monkeypatch.setattr(gradient_flow, name, ToolWithStatistics, raising=False)


@pytest.mark.parametrize(
    "name", ["mlp/relu-he-6x64", "rnn/lstm-next-token", "transformer/language-model-4x32", "rl/masked-actions"]
)
def test_issues_come_back_without_their_consequences(name):
    case = CASES[name]
    assert findings(case, case.make(0)) == [Finding("DEAD", "HIGH", "net.3", "dead")]


def test_optimizer_and_steps_are_passed_on():
    case = CASES["mlp/adam-1e-8-4x64"]
    setup = replace(case.make(0), steps=7)
    findings(case, setup)
    assert Tool.seen["optimizer"] is setup.optimizer
    assert Tool.seen["steps"] == 7


def test_a_game_is_analysed_with_its_players():
    case = CASES["game/bilinear"]
    findings(case, case.make(0))
    assert Tool.seen["vector"] is True
    assert len(Tool.seen["players"]) == 2


def test_hints_are_passed_on_where_they_are_taken():
    findings(CASES["rl/finished-policy-with-returns"], CASES["rl/finished-policy-with-returns"].make(0))
    assert Tool.seen["returns"]
    findings(CASES["rnn/tanh-radius-0.5-lag-50"], CASES["rnn/tanh-radius-0.5-lag-50"].make(0))  # takes no such hint


class Flow:
    """Notes that a program ran between its start and its end, and says why it failed."""

    def __init__(self, model, optimizer, *, scaler=None):
        Tool.seen = {"model": model, "optimizer": optimizer, "scaler": scaler, "open": False}

    def __enter__(self):
        Tool.seen["open"] = True
        return self

    def __exit__(self, *_):
        Tool.seen["open"] = False

    def diagnose(self):
        issue = SimpleNamespace(**{**vars(ISSUE), "code": "zero_rate"})
        return [] if Tool.seen["open"] else [issue]


@pytest.mark.parametrize("name", ["loop/in-order-adam", "loop/gan-takes-turns", "loop/mixed-precision-accumulates-2"])
def test_a_program_runs_under_watch_and_its_cause_comes_back(name, monkeypatch):
    monkeypatch.setattr(gradient_flow, "watch", Flow)
    program = CASES[name].make(0)
    assert findings(CASES[name], program) == [Finding("DEAD", "HIGH", "net.3", "dead", "zero_rate")]
    assert Tool.seen["model"] is program.model
    assert Tool.seen["optimizer"] is program.optimizer
    assert Tool.seen["scaler"] is program.scaler
    assert program.losses


def test_a_run_is_recorded_with_its_layers():
    record = runner.measure(("mlp/relu-6x64-third-bias-minus-10", 2))
    assert record.error is None
    assert record.seed == 2
    assert record.answer is not None
    assert ("4", "5") in record.layers


def test_a_crash_is_recorded_and_not_raised(monkeypatch):
    def boom(*_args, **_more):
        raise RuntimeError("boom")

    monkeypatch.setattr(Tool, "analyze", boom)
    record = runner.measure(("mlp/relu-he-6x64", 0))
    assert record.error is not None
    assert "boom" in record.error
