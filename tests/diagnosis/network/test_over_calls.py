"""A layer that is used again and again: its gradient over the calls, and what training made of a network."""

from dataclasses import replace

import pytest

from gradient_flow.diagnosis.consolidation import consolidate
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.in_training import as_learnt
from gradient_flow.diagnosis.network.over_calls import (
    cut_between_calls,
    fading_over_calls,
    fading_over_positions,
    growing_over_calls,
)
from gradient_flow.diagnosis.network.record import AnalysisRecord, Layer, Place

STUCK = [1.6 + 0.01 * (k % 3) for k in range(40)]
FALLING = [1.6 * 0.95**k for k in range(40)]


def called(factor, calls=20, losses=STUCK, trained=True):
    """A record of one layer whose gradient is `factor` times smaller with each call back."""
    places = [
        Place(
            name="cell",
            role="output",
            call=call,
            kind="Linear",
            layer="cell",
            order=call,
            units=8,
            size=8,
            samples=16,
            positions=1,
            own_weights=True,
            from_data=False,
            gradient=[factor ** (calls - 1 - call)] * 3,
        )
        for call in range(calls)
    ]
    return AnalysisRecord(
        steps=len(losses),
        places=places,
        layers=[Layer(name="cell", kind="Linear", trainable=True)],
        losses=losses,
        trained=trained,
    )


def test_a_recurrence_written_out_that_forgets_is_told_with_its_decay():
    (issue,) = fading_over_calls(called(0.5))
    assert (issue.issue_type, issue.severity, issue.layer) == (IssueType.SHORT_MEMORY, IssueSeverity.HIGH, "cell")
    assert issue.evidence["decay"] == pytest.approx(0.5)
    assert "shrinks to 50%" in issue.message


def test_an_uneven_fall_is_a_fall_and_an_even_scatter_is_none():
    """Dropout in the state passes now more, now less of a gradient."""
    smooth = called(0.5)
    uneven = [replace(p, gradient=[p.gradient[0] * (4.0 if p.call % 4 == 2 else 1.0)] * 3) for p in smooth.places]
    assert len(list(fading_over_calls(replace(smooth, places=uneven)))) == 1
    scattered = [replace(p, gradient=[1e-6 if p.call % 2 else 1.0] * 3) for p in smooth.places]
    assert list(fading_over_calls(replace(smooth, places=scattered))) == []


@pytest.mark.parametrize(
    "record",
    [
        called(0.9),  # 0.9 ** 19: an eighth is left
        called(2.0),  # it grows
        called(0.01, calls=4),
        called(0.5, losses=FALLING),  # it learns all the same
        called(0.5, trained=False),
        called(0.5, losses=[]),
    ],
)
def test_it_is_silent_without_its_evidence(record):
    assert list(fading_over_calls(record)) == []


def heard(last, calls=14, losses=STUCK):
    """A record of one layer of whose calls only the last get a gradient."""
    record = called(1.0, calls, losses)
    places = [replace(p, gradient=p.gradient if p.call >= calls - last else [None, 0.0, None]) for p in record.places]
    return replace(record, places=places)


def test_calls_without_a_gradient_before_the_last_are_a_memory_that_is_cut():
    (issue,) = cut_between_calls(heard(2))
    assert (issue.issue_type, issue.severity, issue.layer) == (IssueType.SHORT_MEMORY, IssueSeverity.HIGH, "cell")
    assert "only the last 2 of its 14 calls" in issue.message


@pytest.mark.parametrize(
    "record",
    [
        heard(14),
        heard(0),  # another rule's matter: no gradient comes at all
        heard(7),  # half of the sequence
        heard(2, calls=6),  # a stack
        heard(2, losses=FALLING),  # a warm-up, or a truncation that does no harm
    ],
)
def test_a_cut_counts_where_it_is_short_and_nothing_is_learnt(record):
    assert list(cut_between_calls(record)) == []


def test_what_came_up_while_the_loss_fell_is_a_remark_and_what_was_there_at_first_is_not():
    flat = Issue(
        issue_type=IssueType.SATURATION, severity=IssueSeverity.HIGH, layer="a", message="", evidence={}, step=51
    )
    at_first = replace(flat, step=3)
    (later,) = as_learnt([flat], FALLING, 3)
    assert later.severity == IssueSeverity.LOW
    assert as_learnt([at_first], FALLING, 3) == [at_first]
    assert as_learnt([flat], STUCK, 3) == [flat]
    dead = replace(flat, issue_type=IssueType.DEAD)
    assert as_learnt([dead], FALLING, 3) == [dead]


@pytest.mark.parametrize("kind", [IssueType.SATURATION, IssueType.ENTROPY_COLLAPSE])
def test_a_policy_that_became_certain_while_it_learnt_is_a_remark_and_one_that_began_so_is_not(kind):
    certain = Issue(issue_type=kind, severity=IssueSeverity.CRITICAL, layer="pi", message="", evidence={}, step=51)
    (later,) = as_learnt([certain], FALLING, 3)
    assert later.severity == IssueSeverity.LOW
    assert as_learnt([certain], STUCK, 3) == [certain]
    assert as_learnt([certain], [loss - 1.0 for loss in FALLING], 3) == [certain]  # a sum of advantages
    at_first = replace(certain, step=6)
    assert as_learnt([at_first], FALLING, 3) == [at_first]


@pytest.mark.parametrize(
    ("kind", "evidence"), [(IssueType.LOW_RANK, {"sample_rank": 1.4}), (IssueType.UNSTABLE, {"growth_power": 1.2})]
)
def test_what_a_task_may_ask_for_is_a_remark_where_it_came_up_while_the_loss_fell(kind, evidence):
    """States of two classes on a line; logits of attention that learns where to look, and are not yet too large."""
    issue = Issue(issue_type=kind, severity=IssueSeverity.MEDIUM, layer="a", message="", evidence=evidence, step=51)
    (later,) = as_learnt([issue], FALLING, 3)
    assert later.severity == IssueSeverity.LOW
    assert as_learnt([issue], STUCK, 3) == [issue]
    for graver in (replace(issue, step=3), replace(issue, severity=IssueSeverity.HIGH)):
        assert as_learnt([graver], FALLING, 3) == [graver]


@pytest.mark.parametrize(
    ("share", "losses", "severity"), [(0.85, FALLING, "LOW"), (0.85, STUCK, "HIGH"), (0.97, FALLING, "HIGH")]
)
def test_units_that_are_left_of_a_layer_do_its_work_in_a_training_that_learns(share, losses, severity):
    dead = Issue(
        issue_type=IssueType.DEAD,
        severity=IssueSeverity.HIGH,
        layer="a",
        message="",
        evidence={"dead_share": share},
        step=3,
    )
    (issue,) = as_learnt([dead], losses, 3)
    assert issue.severity.name == severity


def fed(forth, back, calls=20):
    """A layer that takes in values `forth` times as large with each call; gradients grow `back`-fold on their way."""
    record = called(1.0, calls)
    places = [
        replace(place, role="input", rms=[forth**place.call] * 3, gradient=[back ** (calls - place.call)] * 3)
        for place in record.places
    ]
    return replace(record, places=places)


def test_a_recurrence_written_out_that_runs_away_is_told_with_its_growth():
    (issue,) = growing_over_calls(fed(1.35, 1.35))
    assert (issue.issue_type, issue.severity, issue.layer) == (IssueType.SPECTRAL_RADIUS, IssueSeverity.MEDIUM, "cell")
    assert issue.evidence["growth"] == pytest.approx(1.35)
    assert next(growing_over_calls(fed(2.0, 2.0))).severity == IssueSeverity.HIGH


@pytest.mark.parametrize(
    "record",
    [
        fed(1.6, 0.9),  # values grow, and nothing is amplified on the way back
        fed(1.0, 1.3),  # two decades
        fed(1.1, 1.1),
        fed(3.0, 3.0, calls=6),  # a stack of blocks, not steps of a sequence
    ],
)
def test_growth_of_one_kind_or_over_few_calls_is_none(record):
    assert list(growing_over_calls(record)) == []


def test_a_state_behind_a_bound_is_told_by_its_gradient_and_named_by_the_layer_that_takes_it():
    """`state + dt * (a(tanh(state)) + b(x))`: a takes in at most 1, and its gradient doubles with each step back."""
    bounded = fed(1.0, 2.0)
    state = [replace(place, name="a") for place in bounded.places if place.call > 0]  # the first one is a constant
    drive = [replace(place, name="b") for place in bounded.places]
    layers = [Layer(name=name, kind="Linear", trainable=True) for name in ("b", "a")]
    (issue,) = growing_over_calls(replace(bounded, places=[*drive, *state], layers=layers))
    assert (issue.issue_type, issue.severity, issue.layer) == (IssueType.SPECTRAL_RADIUS, IssueSeverity.HIGH, "a")
    assert "the gradient grows 2-fold with each step back" in issue.message


@pytest.mark.parametrize(("radius", "severity"), [(0.5, "HIGH"), (0.9, "LOW")])
def test_a_memory_that_shrinks_while_the_loss_falls_is_none_that_was_learnt(radius, severity):
    """A penalty on all recurrent weights falls, and the loss with it, while what has to be remembered is lost."""
    short = Issue(
        issue_type=IssueType.SHORT_MEMORY,
        severity=IssueSeverity.HIGH,
        layer="rnn",
        message="",
        evidence={"measured_lag": 22, "spectral_radius": radius, "spectral_radius_at_first": 0.95},
    )
    (issue,) = as_learnt([short], FALLING, 3)
    assert issue.severity.name == severity


def test_a_memory_measured_by_the_loss_is_weighed_by_the_loss():
    short = Issue(
        issue_type=IssueType.SHORT_MEMORY,
        severity=IssueSeverity.HIGH,
        layer="rnn",
        message="",
        evidence={"required_lag": 15, "measured_lag": 15},
    )
    assert as_learnt([short], FALLING, 3)[0].severity == IssueSeverity.LOW
    assert as_learnt([short], STUCK, 3) == [short]
    cut = replace(short, evidence={**short.evidence, "cut_share": 0.3})
    told = replace(short, evidence={"required_lag": 15})
    assert as_learnt([cut, told], FALLING, 3) == [cut, told]
    parts = replace(short, severity=IssueSeverity.LOW, evidence={"steps_per_call": 3}, message="in parts.")
    assert as_learnt([parts], FALLING, 3) == [parts]
    (grave,) = as_learnt([parts], STUCK, 3)
    assert (grave.severity, grave.message) == (IssueSeverity.HIGH, "in parts, and the loss does not fall.")


@pytest.mark.parametrize(("losses", "short"), [(STUCK, True), (STUCK[:30], False), (FALLING, False)])
def test_a_reach_over_the_last_steps_counts_where_there_was_time_to_learn(losses, short):
    """A new cell reaches back a few steps, and learns to reach further."""
    record = called(1.0, calls=1, losses=losses)
    record.places[0] = replace(record.places[0], reach=0.05, positions=20)
    assert bool(list(fading_over_positions(record))) is short


@pytest.mark.parametrize(
    ("layer", "evidence", "takes_in"),
    [
        ("rnn[l0]", {"effective_memory_length": 1.2}, True),
        ("rnn[l0]", {"lyapunov_exponent": 0.3}, False),  # it grows: another fault
        ("other", {"effective_memory_length": 1.2}, False),
    ],
)
def test_one_finding_says_of_a_recurrence_that_it_forgets(layer, evidence, takes_in):
    def said(kind, at, **known):
        return Issue(issue_type=kind, severity=IssueSeverity.HIGH, layer=at, message="", evidence=known)

    issues = [said(IssueType.SPECTRAL_RADIUS, layer, **evidence), said(IssueType.SHORT_MEMORY, "rnn")]
    found = consolidate(issues, AnalysisRecord(steps=1))
    assert [issue.issue_type for issue in found[0].consequences] == [IssueType.SPECTRAL_RADIUS] * takes_in
    assert len(found) == 2 - takes_in
