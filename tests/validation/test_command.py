"""The command: what it chooses and what it writes."""

import json

import pytest
from click.testing import CliRunner
from validation.case import Evidence
from validation.score import Finding

from validation import __main__ as command


@pytest.fixture(autouse=True)
def _tool(monkeypatch, tmp_path):
    monkeypatch.setattr("validation.runner.findings", lambda case, _setup: [Finding("DEAD", "HIGH", "4")])
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.md")


def run(*arguments):
    result = CliRunner().invoke(command.main, ["--workers", "1", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_a_half_holds_only_its_own_cases():
    assert {case.half for case in command.chosen("tune", None)} == {"tune"}
    assert {case.half for case in command.chosen("holdout", None)} == {"holdout"}
    assert {case.half for case in command.chosen("live", None)} == {"live"}
    assert {case.half for case in command.chosen("fresh", None)} == {"fresh"}
    assert {case.half for case in command.chosen("drill", None)} == {"drill"}
    assert {case.half for case in command.chosen("blind", None)} == {"blind"}
    assert {case.half for case in command.chosen("sealed", None)} == {"sealed"}
    both = command.chosen("both", None)
    assert len(both) == sum(len(command.chosen(half, None)) for half in ("tune", "holdout"))


def test_a_pattern_fits_names_and_classes():
    assert {case.family for case in command.chosen("both", "cnn/*")} == {"cnn"}
    assert {case.fault for case in command.chosen("both", "bottleneck")} == {"BOTTLENECK"}


def test_a_part_of_the_zoo_does_not_take_the_place_of_the_whole(tmp_path):
    run("--only", "mlp/relu-6x64-third-bias-minus-10", "--seeds", "1")
    assert not command.RESULTS.exists()
    run("--only", "mlp/relu-6x64-third-bias-minus-10", "--seeds", "2", "--output", str(tmp_path / "part.md"))
    assert "100.0 % (2/2)" in (tmp_path / "part.md").read_text()


def test_every_run_can_be_kept_as_json(tmp_path):
    run("--only", "mlp/relu-he-6x64", "--seeds", "2", "--json", str(tmp_path / "runs.json"))
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert [entry["seed"] for entry in runs] == [0, 1]
    assert runs[0]["findings"][0]["issue_type"] == "DEAD"


def test_a_pattern_that_fits_nothing_says_so():
    result = CliRunner().invoke(command.main, ["--only", "nothing-like-this"])
    assert result.exit_code == 2
    assert "--list" in result.output


def test_verification_names_the_label_that_does_not_hold(monkeypatch):
    monkeypatch.setattr(command, "verify", lambda job: (job, Evidence(False, "measured otherwise")))
    result = CliRunner().invoke(
        command.main, ["--workers", "1", "--verify", "--seeds", "1", "--only", "game/common-bowl"]
    )
    assert result.exit_code == 1
    assert "0 of 1 labels hold" in result.output
