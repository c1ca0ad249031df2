"""When a game is called rotating, and how sure that has to be."""

import pytest

from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.probes.field.field import FieldStats
from gradient_flow.probes.field.rules import field_issues


def field(rotation, error=0.0, players=2, divergence=0.0, **more):
    return FieldStats(
        players=players,
        parameters=1000,
        exact=error == 0.0,
        probes=16,
        divergence=divergence,
        divergence_error=0.01,
        symmetric_norm=(1 - rotation) ** 0.5,
        antisymmetric_norm=rotation**0.5,
        rotation=rotation,
        rotation_error=error,
        gradient_norm=1.0,
        **more,
    )


def severity(stats):
    issues = list(field_issues(stats))
    assert len(issues) <= 1
    return issues[0].severity if issues else None


def test_severity_follows_the_share_of_rotation():
    assert severity(field(0.0)) is None
    assert severity(field(0.4)) is None
    assert severity(field(0.6)) == IssueSeverity.MEDIUM
    assert severity(field(1.0)) == IssueSeverity.HIGH


def test_doubt_lowers_severity():
    assert severity(field(0.95, error=0.01)) == IssueSeverity.HIGH
    assert severity(field(0.95, error=0.1)) == IssueSeverity.MEDIUM
    assert severity(field(0.95, error=0.3)) is None


def test_an_expanding_rotation_is_worse():
    assert severity(field(0.6, divergence=-1.0)) == IssueSeverity.HIGH
    assert severity(field(0.95, divergence=-1.0)) == IssueSeverity.CRITICAL
    assert severity(field(1.0, divergence=-1e-12)) == IssueSeverity.HIGH  # rounding is no expansion


def test_a_rotation_known_to_be_damped_is_no_alarm():
    """A Dirac-GAN with R1 0.3: 85 % rotation, and it converges at any learning rate below 1.2."""
    stats = field(0.85, divergence=0.3, eigenvalues=(0.15 + 0.477j, 0.15 - 0.477j))
    (issue,) = field_issues(stats)
    assert issue.severity == IssueSeverity.LOW
    assert "settles at learning rates below 1.2" in issue.message
    stats = field(1.0, eigenvalues=(0.5j, -0.5j))
    assert severity(stats) == IssueSeverity.HIGH


def test_silent_on_one_loss_and_without_a_jacobian():
    assert severity(field(0.0, players=1)) is None
    assert severity(field(float("nan"))) is None


def test_the_issue_says_what_to_do_and_rests_on_numbers():
    (issue,) = field_issues(field(0.95, error=0.01, coherence=0.02), layer="gan")
    assert issue.issue_type == IssueType.ROTATION
    assert issue.layer == "gan"
    assert issue.evidence["rotation"] == pytest.approx(0.95)
    assert issue.evidence["coherence"] == pytest.approx(0.02)
    text = str(issue)
    for word in ("xtra-gradient", "optimistic", "R1", "two time scales", "EMA", "otation"):
        assert word in text
