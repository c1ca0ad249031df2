"""`print(flow.diagnose())` and `gradient-flow diagnose` write the same lines, as wide as the terminal."""

import pytest
from click.testing import CliRunner

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.paragraphs import WIDEST
from recorded_runs import record

SICK = Diagnosis(
    [
        Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.HIGH,
            layer="encoder.\x1b[31mlayers.0",
            message="no gradient arrives in any of the steps that were looked at, and none ever did before them.",
            cause="a layer that is cut off from the loss by a mask that hides each of its outputs from the next one.",
            advice=["Take the mask away and look whether a gradient arrives now.", "Call it by its name."],
            step=3,
        )
    ],
    steps=60,
)


@pytest.mark.parametrize("columns", [40, 80, 120, 300])
def test_print_and_command_write_the_same(tmp_path, monkeypatch, columns):
    record(tmp_path / "run", bad_at=20)
    monkeypatch.setenv("COLUMNS", str(columns))
    said = CliRunner().invoke(main, ["diagnose", str(tmp_path / "run")], catch_exceptions=False).output
    assert [line.rstrip() for line in said.splitlines()] == str(gf.diagnose(tmp_path / "run")).splitlines()


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = str(SICK)  # tests have no terminal
    assert whole.splitlines()[2:] == SICK[0].lines
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = str(SICK).splitlines()
    assert max(map(len, lines)) <= min(columns, WIDEST)
    assert str(SICK).split() == whole.replace("\x1b", "�").split()
    assert str(SICK[0]) in str(SICK)
