"""A loss whose weight is changed on purpose is one loss on two scales."""

from dataclasses import replace

import pytest

from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.loop.scale import on_one_scale
from gradient_flow.diagnosis.verdict import judge
from gradient_flow.record.evidence import RunRecord, Series
from gradient_flow.record.plain import to_plain


def run(weight, seen=None, steps=100):
    """The same losses and norms throughout, with `weight` at a step; `seen` is what looks tell of it."""
    at = list(range(1, steps + 1))
    losses = [weight(step) * (1 + 0.1 * (step % 3)) for step in at]
    norms = [weight(step) * (0.3 + 0.02 * (step % 5)) for step in at]
    looks = [
        LoopLook(
            step=step,
            backwards=1,
            loss=losses[step - 1],
            used=4,
            calls=[LossCall(function="cross_entropy", value=losses[step - 1] / (seen or weight)(step))],
        )
        for step in (3, 10, 30, 60, 100)
    ]
    facts = LoopFacts(looks=looks, taken=len(looks), held=4, tensors=4)
    record = RunRecord(totals=[Series(name="model", steps=at, norms=norms, losses=losses)], losses=losses)
    record.seen["loop"] = to_plain(facts)
    return record, facts


def raised(step):
    return 0.01 if step <= 40 else 1.0


@pytest.mark.parametrize("weight", [raised, lambda step: 1.0 if step <= 40 else 0.01])
def test_a_weight_that_is_changed_leaves_the_run_as_it_would_be_without(weight):
    record, facts = run(weight)
    plain, _ = run(lambda step: weight(100))
    scaled = on_one_scale(record, facts)
    assert scaled.losses == pytest.approx(plain.losses)
    assert scaled.totals[0].norms == pytest.approx(plain.totals[0].norms)
    assert scaled.totals[0].losses == pytest.approx(plain.totals[0].losses)
    assert not judge(record)


def test_a_loss_that_jumps_by_itself_stays_as_it_is():
    record, facts = run(raised, seen=lambda step: 1.0)
    assert on_one_scale(record, facts) is record
    assert next(issue.severity.name for issue in judge(record)) == "HIGH"


def test_a_weight_that_grows_step_by_step_is_left_alone():
    record, facts = run(lambda step: min(1.0, step / 50))
    assert on_one_scale(record, facts) is record


def test_one_loud_batch_at_the_change_does_not_hide_it():
    record, facts = run(raised)
    losses = [3 * loss if at == 40 else loss for at, loss in enumerate(record.losses)]
    loud = replace(record, losses=losses, totals=[replace(record.totals[0], losses=losses)])
    assert on_one_scale(loud, facts).totals[0].norms == on_one_scale(record, facts).totals[0].norms
    assert not judge(loud)
