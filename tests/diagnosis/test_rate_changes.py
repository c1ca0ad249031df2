"""A fault that begins right after a change of the learning rate names that change; time does not make it smaller."""

import math
import random

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.demo.networks import stack
from gradient_flow.demo.tasks import CLASSES, FEATURES, clusters
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.diagnosis.verdict import verdict
from gradient_flow.looks.triggers import Triggers
from gradient_flow.record.evidence import evidence_of
from gradient_flow.record.run import run_of_lines

HEADER = {"kind": "header", "format": 2, "parameters": [{"name": "w", "shape": [4, 4]}]}


def run_with(norms, rates, losses=None, every=1):
    steps = [
        {
            "kind": "step",
            "step": every * (at + 1),
            "time": float(at),
            "norm": norm,
            "lr": rate if isinstance(rate, list) else [rate],
            **({} if losses is None else {"loss": losses[at]}),
        }
        for at, (norm, rate) in enumerate(zip(norms, rates, strict=True))
    ]
    return run_of_lines([HEADER, *steps])


def noisy(count, seed=0):
    draw = random.Random(seed)
    return [math.exp(draw.gauss(0, 0.1)) for _ in range(count)]


def test_every_change_of_more_than_threefold_is_found_and_no_other():
    rates = [0.1] * 5 + [0.29] * 5 + [0.9] * 5 + [0.2] * 5 + [0.0] * 2 + [0.2] * 3
    changes = evidence_of(run_with(noisy(len(rates)), rates)).rate_changes
    assert [(change.step, change.before, change.after) for change in changes] == [(11, 0.29, 0.9), (16, 0.9, 0.2)]


def test_of_several_groups_the_one_that_changes_most_is_named():
    rates = [[0.1, 0.1]] * 5 + [[0.5, 2.0]] * 5
    (change,) = evidence_of(run_with(noisy(10), rates)).rate_changes
    assert (change.before, change.after) == (0.1, 2.0)


def test_a_linear_warm_up_and_a_cosine_are_no_change():
    warm = [1e-3 * step / 100 for step in range(1, 101)]
    cosine = [1e-3 * (1 + math.cos(math.pi * step / 100)) / 2 for step in range(98)]
    assert evidence_of(run_with(noisy(198), warm + cosine)).rate_changes == []


@pytest.mark.parametrize("every", [1, 10])
def test_spikes_after_a_raise_name_it_and_spikes_elsewhere_do_not(every):
    norms, rates = noisy(300), [0.01] * 150 + [1.0] * 150
    after = [norm * (40 if at in (151, 155) else 1) for at, norm in enumerate(norms)]
    (issue,) = verdict(run_with(after, rates, every=every))
    at = 151 * every
    assert issue.cause == f"the learning rate was raised from 0.01 to 1 (100 times) at step {at:,}."
    assert issue.evidence["rate_change"] == {"step": at, "from": 0.01, "to": 1.0}
    assert issue.advice[0].startswith(f"Set the learning rate back to 0.01, from a checkpoint before step {at:,}.")
    assert issue.cause in verdict(run_with(after, rates, every=every)).message
    for place in (100, 250):  # before it, and long after
        other = [norm * (40 if at in (place, place + 4) else 1) for at, norm in enumerate(norms)]
        (issue,) = verdict(run_with(other, rates, every=every))
        assert "rate_change" not in issue.evidence


def test_a_rate_that_was_lowered_is_not_blamed_for_spikes():
    norms = [norm * (40 if at in (151, 155) else 1) for at, norm in enumerate(noisy(300))]
    (issue,) = verdict(run_with(norms, [1.0] * 150 + [0.01] * 150))
    assert "rate_change" not in issue.evidence


def test_spikes_weigh_as_much_however_long_the_run_goes_on():
    burst = [norm * (20 if 100 <= at < 140 and at % 2 == 0 else 1) for at, norm in enumerate(noisy(200))]
    short = verdict(run_with(burst, [0.1] * 200))
    long = verdict(run_with([*burst, *noisy(5000, 1)], [0.1] * 5200))
    assert short[0].issue_type is long[0].issue_type is IssueType.UNSTABLE
    assert short[0].severity == long[0].severity == IssueSeverity.HIGH


def test_a_norm_that_fell_and_stayed_low_weighs_as_much_however_long_that_lasts():
    def judged(after):
        norms = noisy(400) + [1e-4 * norm for norm in noisy(after, 1)]
        return verdict(run_with(norms, [0.1] * len(norms), losses=[2.0 + norm / 10 for norm in noisy(len(norms), 2)]))

    for after in (400, 1000, 4000, 12_000):
        (issue,) = judged(after)
        assert (issue.issue_type, issue.severity) == (IssueType.VANISHING, IssueSeverity.HIGH)


@pytest.mark.parametrize("settings", [{"budget": 1.0}, {"budget": 1e-12}, {"looks": False}], ids=str)
def test_a_rate_raised_to_3_at_step_401_is_named_with_the_layers_that_died(tmp_path, settings):
    """Whether all looks were taken, as few as can be, or none.

    The layers are proved to be dead by autograd: their gradients are exactly zero at the end.
    """
    torch.manual_seed(1)
    model = stack([FEATURES] + [64] * 4 + [CLASSES], nn.ReLU, nn.init.kaiming_normal_)
    optimizer, task = torch.optim.Adam(model.parameters(), lr=1e-3), clusters(1)
    with gf.watch(model, optimizer, run=tmp_path, **settings) as flow:
        for step in range(1, 601):
            if step == 401:
                optimizer.param_groups[0]["lr"] = 3.0
            loss = task.loss(model(task.next_batch()))
            flow.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    silent = {name for name, parameter in model.named_parameters() if not parameter.grad.any()}
    assert len(silent) == 9
    found = gf.diagnose(tmp_path)
    first = found[0]
    assert (first.issue_type, first.severity, first.step) == (IssueType.EXPLODING, IssueSeverity.CRITICAL, 402)
    dead = [issue for issue in (*found, *first.consequences) if issue.issue_type is IssueType.DEAD]
    assert max(issue.severity for issue in dead) >= IssueSeverity.HIGH
    assert {issue.layer.partition(".")[0] for issue in dead} <= {name.partition(".")[0] for name in silent}
    for told in (found.message, str(first), gf.write_report(tmp_path, format="txt").read_text()):
        assert "raised from 0.001 to 3 (3,000 times) at step 401" in " ".join(told.split())


def test_a_raised_rate_that_throws_a_training_off_is_named_from_steps_alone():
    norms = noisy(100) + [norm * 1e3 for norm in noisy(3, 1)] + [1e-9 * norm for norm in noisy(97, 2)]
    losses = [0.1 * norm for norm in noisy(101, 3)] + [2.3 * norm for norm in noisy(99, 4)]
    rates = [0.01] * 100 + [3.0] * 100
    (issue, *_) = verdict(run_with(norms, rates, losses))
    assert (issue.issue_type, issue.severity, issue.step) == (IssueType.EXPLODING, IssueSeverity.CRITICAL, 102)
    assert issue.evidence["rate_change"] == {"step": 101, "from": 0.01, "to": 3.0}
    assert 500 < issue.evidence["norm_jump"] < 2000
    # One that the training gets over, one that nothing follows, and a warm restart are no such thing.
    healed = losses[:101] + [2.3] * 20 + losses[:79]
    for other in (
        verdict(run_with(norms[:103] + noisy(97, 5), rates, healed)),
        verdict(run_with(noisy(200), rates, noisy(200))),
        verdict(run_with(noisy(100) + [3 * norm for norm in noisy(100, 1)], rates, losses[:100] + [0.3] * 100)),
    ):
        assert not [issue for issue in other if issue.issue_type is IssueType.EXPLODING]


def test_a_change_of_the_rate_asks_for_a_look_also_right_after_another_look_was_asked_for():
    triggers = Triggers()
    asked = [triggers.asked(step, 1.0, None, 0.1) for step in range(1, 30)]
    assert not any(asked)
    assert triggers.asked(30, 1e3, None, 0.1) == "the norm spiked"
    assert triggers.asked(31, 1e3, None, 0.1) == ""  # too soon
    assert triggers.asked(32, 1.0, None, 3.0) == "the learning rate changed"
