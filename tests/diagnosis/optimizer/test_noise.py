"""The gradient noise scale: unbiased by a closed form, and measured in a real loop with micro-batches."""

import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity
from gradient_flow.diagnosis.loop.context import Loop
from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook, LossCall
from gradient_flow.diagnosis.optimizer.noise import Noise, batch_size, noise_of, together
from gradient_flow.diagnosis.optimizer.record import NoiseLook, OptimizerFacts, StateLook
from gradient_flow.record.evidence import RunRecord, Series
from gradient_flow.record.plain import from_plain


@pytest.mark.parametrize(("few", "many"), [(1, 2), (4, 32), (16, 1024)])
def test_two_equations_have_one_solution(few, many):
    covariance, squared = 37.0, 0.25
    found = noise_of(squared + covariance / few, squared + covariance / many, few, many)
    assert found.covariance == pytest.approx(covariance)
    assert found.squared == pytest.approx(squared)
    assert found.scale == pytest.approx(148)


def looks_of(flow):
    return from_plain(OptimizerFacts, flow.run.found("optimizer")[-1][1]).noise


def trained(mean, spread, parts, samples, divided=True, steps=40):
    """The gradient of each sample is drawn from N(mean, spread²) in 1,000 dimensions: noise scale = spread² / mean²."""
    torch.manual_seed(0)
    model = nn.Linear(1000, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.1)
    with gf.watch(model, optimizer, looks=1, budget=1, describe=False) as flow:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(parts):
                loss = model(mean + spread * torch.randn(samples, 1000)).mean()
                (loss / parts if divided else loss).backward()
            optimizer.step()
    return flow


@pytest.mark.parametrize("divided", [True, False])
def test_micro_batches_of_a_loop_give_the_closed_form(divided):
    looks = looks_of(trained(1.0, 8.0, 4, 8, divided))
    assert {(look.few, look.many) for look in looks} == {(8, 32)}
    assert together(looks).scale == pytest.approx(64, rel=0.25)


@pytest.mark.parametrize(
    ("mean", "spread", "words"), [(1.0, 22.0, "mostly noise"), (3.0, 0.3, "repeat what the others say")]
)
def test_a_batch_far_off_is_worth_a_remark(mean, spread, words):
    found = [issue for issue in trained(mean, spread, 4, 8).diagnose() if issue.code == "batch_size"]
    assert [issue.severity for issue in found] == [IssueSeverity.LOW]
    assert words in found[0].message


def test_a_batch_of_about_that_size_is_not():
    assert not [issue for issue in trained(1.0, 6.0, 4, 8).diagnose() if issue.code == "batch_size"]


@pytest.mark.parametrize(
    ("small", "many", "losses", "severity"),
    [
        (4.0, 4, [1.0] * 40, ["MEDIUM"]),  # no direction in common, and nothing is learned
        (4.0, 4, [0.9**at for at in range(40)], []),
        (4.0, 400, [1.0] * 40, []),  # a large batch: the loss may have come to its floor
        (1.8, 4, [1.0] * 40, []),  # half of it is signal
    ],
)
def test_samples_without_a_direction_in_common_count_where_nothing_is_learned(small, many, losses, severity):
    looks = [NoiseLook(step=at, small=small, large=1, few=many // 2, many=many) for at in range(8)]
    series = Series(name="model", steps=list(range(len(losses))), norms=[1.0] * len(losses), losses=losses)
    loop = Loop(RunRecord(totals=[series], losses=losses), LoopFacts(), states=OptimizerFacts(noise=looks))
    assert [issue.severity.name for issue in batch_size(loop)] == severity


def test_without_micro_batches_there_is_none():
    assert looks_of(trained(1.0, 8.0, 1, 8)) == []


def test_few_looks_say_nothing():
    assert together([NoiseLook(step=1, small=2, large=1, few=1, many=2)] * 4) is None
    assert Noise(1.0, 0.0).scale == float("inf")


@pytest.mark.parametrize(
    ("samples", "cosine", "end", "codes"),
    [
        (2, 0.03, 2.2, ["batch_size"]),
        (64, 0.03, 2.2, []),
        (2, 0.03, 0.7, []),  # it learns
        (2, 0.5, 2.2, []),  # gradients agree: something else is wrong
        (2, -0.6, 2.2, []),  # back and forth: steps are too long
    ],
)
def test_steps_of_two_samples_that_learn_nothing_are_too_small(samples, cosine, end, codes):
    call = LossCall(function="cross_entropy", classes=4, of_output=True, value=1.4)
    looks = [LoopLook(step=at, backwards=1, loss=1.4, samples=samples, calls=[call]) for at in range(3, 11)]
    states = [
        StateLook(step=at, kind="momentum", cosine=cosine * (-1) ** (at % 2 if abs(cosine) < 0.1 else 0))
        for at in range(8)
    ]
    losses = [1.4 + (end - 1.4) * at / 59 for at in range(60)]
    series = Series(name="model", steps=list(range(60)), norms=[1.0] * 60, losses=losses)
    loop = Loop(
        RunRecord(totals=[series], losses=losses), LoopFacts(looks=looks, taken=8), states=OptimizerFacts(looks=states)
    )
    assert [issue.code for issue in batch_size(loop)] == codes


@pytest.mark.parametrize(
    ("call", "end", "codes"),
    [
        (LossCall(function="mse_loss", of_output=True, value=9.0, variance=9.0), 9.5, ["batch_size"]),
        (LossCall(function="mse_loss", of_output=True, value=9.0, variance=9.0), 2.0, []),  # it learns
        (
            LossCall(function="mse_loss", of_output=True, value=9.0, variance=90.0),
            9.5,
            [],
        ),  # it knew the targets before
        (LossCall(function="cross_entropy", classes=4, labels=2000, of_output=True, value=9.0), 9.5, []),  # two texts
        (LossCall(function="mse_loss", of_output=False, value=9.0, variance=9.0), 9.5, []),  # values of actions, say
    ],
)
def test_a_loss_of_targets_that_two_samples_do_not_lower_is_noise_too(call, end, codes):
    looks = [LoopLook(step=at, backwards=1, loss=9.0, samples=2, calls=[call]) for at in range(3, 11)]
    states = [StateLook(step=at, kind="momentum", cosine=0.2 * (-1) ** at - 0.05) for at in range(8)]
    losses = [9.0 + (end - 9.0) * at / 59 for at in range(60)]
    series = Series(name="model", steps=list(range(60)), norms=[1.0] * 60, losses=losses)
    loop = Loop(
        RunRecord(totals=[series], losses=losses), LoopFacts(looks=looks, taken=8), states=OptimizerFacts(looks=states)
    )
    assert [issue.code for issue in batch_size(loop)] == codes
