"""Clipping with a `GradScaler`: norms are unscaled in the right order and in the wrong one, which is told."""

import warnings

import pytest
import torch
from torch import nn

import gradient_flow as gf

SCALE = 65536.0


def train(*, order, fused=False, passed=True, limit=1e-2, scaled=True, run=None):
    """A few steps; the watch and the true norms of its gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    true = []
    with gf.watch(model, optimizer, scaler=scaler if passed else None, layers_every=1, run=run) as flow:
        for x in torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(1)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            (scaler.scale(loss) if scaled else loss).backward()
            norm = torch.cat([p.grad.flatten() for p in model.parameters()]).double().norm().item()
            true.append(norm / (scaler.get_scale() if scaled else 1.0))
            if order == "right":
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            if scaled:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
    return flow, true


@pytest.mark.parametrize(("fused", "passed"), [(False, True), (True, True), (True, False), (False, False)])
def test_a_clip_before_unscale_is_recorded_unscaled_and_told_once(fused, passed, tmp_path):
    with pytest.warns(gf.GradientFlowWarning, match=r"unscale_\(optimizer\) before clip_grad_norm_") as warned:
        flow, true = train(order="wrong", fused=fused, passed=passed, run=tmp_path)
    assert len(warned) == 1
    assert flow.history["norm"].tolist() == pytest.approx(true, rel=1e-5)
    assert flow.history["clipped_norm"].tolist() == pytest.approx([1e-2 / SCALE] * 5, rel=1e-3)
    assert flow.run.table(5).total.norm == pytest.approx(true[-1], rel=1e-5)
    (event,) = [event for event in flow.run.events if event.kind == "clip_before_unscale"]
    assert (event.step, event.data["scale"]) == (1, SCALE)
    for diagnosis in (flow.diagnose(), gf.diagnose(tmp_path)):
        (issue,) = [issue for issue in diagnosis if "unscale_" in " ".join(issue.advice)]
        assert (issue.severity.name, issue.step) == ("MEDIUM", 1)


def test_small_and_large_are_counted_without_the_scale():
    with pytest.warns(gf.GradientFlowWarning, match="unscale_"):
        flow, _ = train(order="wrong")
    assert flow.table.very_large.sum() == 0


@pytest.mark.parametrize(("fused", "passed"), [(False, True), (True, True), (False, False), (True, False)])
def test_the_right_order_stays_exact_and_silent(fused, passed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow, true = train(order="right", fused=fused, passed=passed)
    assert flow.history["norm"].tolist() == pytest.approx(true, rel=1e-5)
    assert flow.history["clipped_norm"].tolist() == pytest.approx([1e-2] * 5, rel=1e-3)
    assert not [event for event in flow.run.events if event.kind == "clip_before_unscale"]


def test_an_optimizer_that_the_scaler_has_nothing_to_do_with_is_left_alone():
    flow, true = train(order="plain", scaled=False)
    assert flow.history["norm"].tolist() == pytest.approx(true, rel=1e-5)
    assert not flow.run.events or flow.run.events[-1].kind == "end"


def test_an_infinite_limit_is_no_mistake():
    """The usual way to read a norm."""
    flow, true = train(order="wrong", limit=float("inf"))
    assert flow.history["norm"].tolist() == pytest.approx(true, rel=1e-5)
    assert not [event for event in flow.run.events if event.kind == "clip_before_unscale"]


def test_steps_that_are_too_small_for_it_are_put_down_to_it(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # other than Adam it does not make up for the scale
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)

    def loop():
        with gf.watch(model, optimizer, run=tmp_path, looks=[3, 6], budget=1) as flow:
            for _ in range(12):
                optimizer.zero_grad()
                scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        return flow

    with pytest.warns(gf.GradientFlowWarning):
        (issue,) = loop().diagnose()
    assert issue.issue_type is gf.IssueType.SLOW
    assert issue.advice == ["Call scaler.unscale_(optimizer) before clip_grad_norm_."]
