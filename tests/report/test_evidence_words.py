"""Evidence is a phrase or a chart: no raw name, no truth value, no wall of numbers."""

import re

import pytest

import gradient_flow as gf
from gradient_flow.diagnosis.issue import Diagnosis, Issue, IssueSeverity, IssueType
from gradient_flow.report.evidence_words import MOST_BARS, evidence_data
from gradient_flow.report.headline import verdict_data


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("decades", -3.0, ["Gradient", "1,000 times smaller"]),
        ("gain_per_layer", 4.0, ["Gradient per layer", "4 times larger"]),
        ("flat_share", 0.25, ["Values in the flat part", "25%"]),
        ("falling", True, ["Entropy over the steps", "falling"]),
        ("my_own_number", 0.5, ["My own number", "0.5"]),
        ("my_own_flag", True, ["My own flag", "yes"]),
        ("spikes", [3, 1000, 7], ["Spikes at steps", "3, 1,000, 7"]),
        ("rate_change", {"step": 401, "from": 0.05, "to": 3.0}, ["Learning rate", "0.05 → 3 at step 401"]),
        ("code", "x / 0.00001234", ["Code", "x / 0.00001234"]),
        ("names", list("abcdefgh"), ["Names", "a, b, c, d, e, f and 2 more"]),
    ],
)
def test_a_number_is_a_phrase(name, value, said):
    assert evidence_data({name: value}) == ([said], [])


@pytest.mark.parametrize("nothing", [{"flag": False}, {"missing": None}, {"layers": ["a", "b"]}])
def test_what_says_nothing_is_left_out(nothing):
    assert evidence_data(nothing) == ([], [])


def test_many_numbers_are_a_chart_with_a_label_for_each():
    pairs, [chart] = evidence_data({"profile": {"0": -0.6, "2": -1.0, "4": 0.0}})
    assert pairs == []
    assert chart["labels"] == ["0", "2", "4"]
    assert chart["texts"] == ["3.98 times smaller", "10 times smaller", "unchanged"]
    _, [long] = evidence_data({"losses": [float(i) for i in range(100)]})
    assert len(long["values"]) == MOST_BARS
    assert long["left_out"] == 100 - MOST_BARS


def test_consequences_have_no_raw_names_either():
    follows = Issue(
        issue_type=gf.IssueType.ENTROPY_COLLAPSE, severity=gf.IssueSeverity.HIGH, layer="b", message="entropy 0.01."
    )
    issue = Issue(
        issue_type=gf.IssueType.ENTROPY_COLLAPSE,
        severity=gf.IssueSeverity.CRITICAL,
        layer="a",
        message="low.",
        consequences=[follows],
    )
    [data] = verdict_data(Diagnosis([issue], steps=9))["issues"]
    assert data["consequences"] == ["Entropy collapse in `b`: entropy 0.01."]
    assert not re.search(r"[A-Z]+_[A-Z]+", str(data["consequences"]))
    assert data["curve"] == "entropy"


def test_every_type_of_issue_leads_to_a_curve():
    for kind in gf.IssueType:
        issue = Issue(issue_type=kind, severity=gf.IssueSeverity.HIGH, layer="a", message="m")
        [data] = verdict_data(Diagnosis([issue], steps=9))["issues"]
        assert data["curve"] in {"depth", "norm", "loss", "updates", "dead", "slope", "entropy", "radius"}


@pytest.mark.parametrize(
    ("evidence", "curve"), [({"decades_per_step": 0.1}, "norm"), ({"gain_over_depth": 1e-6}, "depth"), ({}, "depth")]
)
def test_what_explodes_over_time_shows_in_the_norm(evidence, curve):
    issue = Issue(issue_type=IssueType.EXPLODING, severity=IssueSeverity.HIGH, layer="0", message="", evidence=evidence)
    assert verdict_data(Diagnosis([issue], steps=9))["issues"][0]["curve"] == curve
