"""What a training has learnt to do is a remark; what it began with is not."""

import pytest

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.in_training import as_learnt, without_settled
from gradient_flow.diagnosis.network.record import AnalysisRecord

SOLVED = [1.8, 1.8, 1.7, 1.6, 1.0, 0.4, 0.1, *[0.002] * 30, 0.5, 0.3, 0.001]
"""With a wrong answer in a batch or two at its end."""


def severity_after(issue, losses):
    (judged,) = as_learnt([issue], losses, 3)
    return judged.severity


def attention(**evidence):
    return Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE,
        severity=IssueSeverity.CRITICAL,
        layer="look",
        message="sharp",
        evidence={"frozen_heads": 1.0, "max_logit": 28.0, "entropy_at_start": 0.99, **evidence},
        step=30,
    )


@pytest.mark.parametrize(
    ("evidence", "losses", "expected"),
    [
        ({}, SOLVED, IssueSeverity.LOW),
        ({}, [1.8 - 0.02 * k for k in range(40)], IssueSeverity.CRITICAL),  # it falls, and is far from done
        ({"max_logit": 900.0, "far_beyond": True}, SOLVED, IssueSeverity.CRITICAL),
        ({"max_logit": 200.0, "max_logit_at_start": 60.0, "entropy_at_start": 0.08}, SOLVED, IssueSeverity.CRITICAL),
        ({"max_logit": 35.0, "max_logit_at_start": 28.0, "entropy_at_start": 0.26}, SOLVED, IssueSeverity.LOW),
    ],
)
def test_attention_that_became_sharp_as_the_task_was_solved_found_where_to_look(evidence, losses, expected):
    assert severity_after(attention(**evidence), losses) == expected


@pytest.mark.parametrize(("at_first", "expected"), [(0.95, IssueSeverity.CRITICAL), (0.1, IssueSeverity.LOW)])
def test_values_that_were_flat_from_the_first_look_on_were_not_made_so_by_learning(at_first, expected):
    issue = Issue(
        issue_type=IssueType.SATURATION,
        severity=IssueSeverity.CRITICAL,
        layer="last",
        message="flat",
        evidence={"flat_share": 0.96, "flat_share_at_first": at_first},
        step=13,
    )
    assert severity_after(issue, [1.2 * 0.97**k for k in range(60)]) == expected


@pytest.mark.parametrize(("at_first", "kept"), [(1e-7, True), (0.97, False)])
def test_a_policy_that_never_tried_a_second_action_has_not_learnt_it(at_first, kept):
    """The loss that fell is that of its critic; one that was led to its action by its pay has done its work."""
    issue = Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE,
        severity=IssueSeverity.HIGH,
        layer="policy",
        message="certain",
        evidence={"marginal_entropy": 1e-7, "entropy_at_first": at_first},
    )
    losses = [0.05, 0.03, *[0.001] * 30]
    assert bool(without_settled([issue], AnalysisRecord(steps=32, losses=losses))) is kept


@pytest.mark.parametrize(
    ("overall", "looked", "expected"),
    [
        (0.03, 1e-2, IssueSeverity.HIGH),
        (0.6, 1e-2, IssueSeverity.LOW),
        (0.03, 0.0, IssueSeverity.LOW),
    ],  # one action; learnt; a bandit
)
def test_a_policy_that_no_longer_looks_at_its_states_has_not_learnt(overall, looked, expected):
    issue = Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE,
        severity=IssueSeverity.HIGH,
        layer="policy",
        message="certain",
        evidence={"marginal_entropy": overall, "mutual_information_at_most": looked},
        step=51,
    )
    assert severity_after(issue, [240.0 * 0.95**k for k in range(70)]) == expected
    solved = AnalysisRecord(steps=32, losses=[0.05, 0.03, *[0.001] * 30])
    assert bool(without_settled([issue], solved)) is (expected == IssueSeverity.HIGH)


@pytest.mark.parametrize(
    ("entropy", "overall", "steps", "expected"),
    [
        (0.07, 0.5, 70, IssueSeverity.MEDIUM),
        (0.07, 0.8, 70, IssueSeverity.LOW),  # it takes all of its actions
        (0.2, 0.5, 70, IssueSeverity.LOW),  # it still tries
        (0.07, 0.5, 2000, IssueSeverity.LOW),  # there was time to try the others
    ],
)
def test_a_policy_that_is_soon_sure_of_few_actions_did_not_try_the_others(entropy, overall, steps, expected):
    known = {"discrete_entropy_normalized": entropy, "marginal_entropy": overall, "mutual_information_at_most": 0.6}
    issue = Issue(
        issue_type=IssueType.ENTROPY_COLLAPSE,
        severity=IssueSeverity.HIGH,
        layer="policy",
        message="certain",
        evidence=known,
        step=51,
    )
    assert severity_after(issue, [2.0 * 0.95 ** (70 * k / steps) for k in range(steps)]) == expected
