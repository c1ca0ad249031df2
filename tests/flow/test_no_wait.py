"""A recorded step never waits for a device. The device is made up: CPU tensors whose copies come when they are told."""

import numpy as np
import pytest
import torch
from torch import nn

import gradient_flow as gf
from gradient_flow.capture import arrivals
from gradient_flow.flow.recorder import MOST_OPEN
from gradient_flow.record.step import flat_numbers
from made_up_device import make_up, note_reads


@pytest.fixture
def device(monkeypatch):
    return make_up(monkeypatch)


@pytest.fixture
def reads(monkeypatch):
    return note_reads(monkeypatch)


def setup(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=torch.tensor(0.05), **settings)


def train(model, optimizer, flow, steps, scaler=None, clip=True, bad=()):
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 4, generator=generator)).square().mean()
        if step in bad:
            loss = loss * torch.tensor(float("inf"))
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        flow.log(accuracy=loss.detach() * 2, epoch=step)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def numbers(flow):
    return [{name: value for name, value in line.items() if name != "time"} for line in flow.history.lines]


def make_scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


@pytest.mark.parametrize("with_scaler", [False, True])
def test_a_step_reads_nothing_from_the_device(device, reads, with_scaler):
    model, optimizer = setup()
    scaler = make_scaler() if with_scaler else None
    with gf.watch(model, optimizer, looks=False, scaler=scaler) as flow:
        device.catch_up()
        reads.clear()
        train(model, optimizer, flow, MOST_OPEN, scaler)
        assert reads == []
        assert device.synchronized == 0
        assert len(flow.history) == 0  # all of them are open
        device.catch_up()
        train(model, optimizer, flow, 1, scaler)
        assert len(flow.history) == MOST_OPEN
        assert device.synchronized == 0


def test_the_counter_of_reads_can_fail(device, reads):
    model, _ = setup()
    model(torch.ones(1, 4)).sum().backward()
    gf.measure(model)
    assert reads == []
    gf.GradientClipper().clip_gradients(model)
    before = arrivals.WAITS.count
    _ = gf.measure(model).total.norm
    assert arrivals.WAITS.count == before + 1
    assert device.synchronized >= 1


@pytest.mark.parametrize("bad", [(), (4,)])
@pytest.mark.parametrize("kind", ["plain", "scaler", "fused"])
def test_what_arrives_late_is_what_would_have_been_read_at_once(kind, bad, monkeypatch, request):
    def run():
        model, _ = setup()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=kind == "fused")
        scaler = None if kind == "plain" else make_scaler()
        with gf.watch(model, optimizer, looks=False, layers_every=3, scaler=scaler) as flow:
            if kind == "fused":
                scaled_training(model, optimizer, flow, scaler, bad)
            else:
                train(model, optimizer, flow, 12, scaler, bad=bad)
        read = [flow.run.read_table(span) for span in flow.run.tables]
        looks = [(step, t.rows, t.update_ratio) for step, t in zip(flow.run.table_steps, read, strict=True)]
        return numbers(flow), looks, flow.first_nonfinite, flow.skipped_steps

    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    at_once = run()
    request.getfixturevalue("device")
    late = run()
    assert len(late[0]) == len(at_once[0]) > 5
    for ours, theirs in zip(late[0], at_once[0], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours.get("nonfinite_layers") == theirs.get("nonfinite_layers")
        assert dict(flat_numbers(ours)) == pytest.approx(dict(flat_numbers(theirs)), rel=1e-6, nan_ok=True)
    assert len(late[1]) == len(at_once[1]) >= 4
    for (step, rows, ratios), (same_step, same_rows, same_ratios) in zip(late[1], at_once[1], strict=True):
        assert step == same_step
        np.testing.assert_allclose(rows, same_rows, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(ratios, same_ratios, rtol=1e-6)
    assert late[2:] == at_once[2:]


def scaled_training(model, optimizer, flow, scaler, bad):
    """A fused optimizer divides by the scale inside its step: gradients carry it until then."""
    generator = torch.Generator().manual_seed(1)
    for step in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 4, generator=generator)).square().mean()
        scaler.scale(loss * (float("inf") if step in bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def test_only_the_oldest_record_is_waited_for(device):
    model, optimizer = setup()
    with gf.watch(model, optimizer, looks=False, layers_every=10_000) as flow:
        device.catch_up()
        train(model, optimizer, flow, MOST_OPEN + 3, clip=False)
        assert len(flow.history) == 3
        assert flow.history["step"].tolist() == [1, 2, 3]


def test_the_ring_is_bounded(device):
    before = arrivals.WAITS.count
    copies = [arrivals.Copy(torch.ones(2)) for _ in range(arrivals.MOST_UNDER_WAY)]
    assert arrivals.WAITS.count == before
    copies.append(arrivals.Copy(torch.ones(2)))
    assert arrivals.WAITS.count == before + 1
    assert len(arrivals._under_way) == arrivals.MOST_UNDER_WAY
    assert copies[0].ready()
    device.catch_up()
    arrivals.Copy(torch.ones(2))
    assert len(arrivals._under_way) == 1  # what has come makes room without a wait
    assert arrivals.WAITS.count == before + 1
    assert all(copy.values().tolist() == [1, 1] for copy in copies)


def test_a_copy_holds_what_was_there_when_it_was_made(device):
    tensor = torch.ones(2)
    copy = arrivals.Copy(tensor)
    tensor.zero_()
    assert copy.values().tolist() == [1, 1]


def test_a_device_fault_loses_at_most_the_open_records(device):
    model, optimizer = setup()
    flow = gf.watch(model, optimizer, looks=False)
    device.catch_up()
    train(model, optimizer, flow, 3, clip=False)
    device.catch_up()
    train(model, optimizer, flow, 2, clip=False)
    device.fault = RuntimeError("an illegal memory access was encountered")
    with pytest.warns(gf.GradientFlowWarning, match="illegal memory access"):
        train(model, optimizer, flow, 3, clip=False)  # training continues
    flow.close()
    assert flow.steps - MOST_OPEN <= len(flow.history) <= 5
    assert flow.history["step"].tolist()[:3] == [1, 2, 3]


def test_nothing_is_launched_into_a_capture(monkeypatch):
    model, optimizer = setup()
    with gf.watch(model, optimizer, looks=False) as flow:
        monkeypatch.setattr("gradient_flow.flow.steps.is_capturing", lambda: True)
        train(model, optimizer, flow, 2)
        assert (flow.steps, len(flow.history)) == (0, 0)
        monkeypatch.undo()
        train(model, optimizer, flow, 2)
    assert len(flow.history) == 2


def test_an_accelerator_is_a_device_and_a_number_is_not():
    assert arrivals.on_device(torch.empty(1, device="meta"))
    assert not arrivals.on_device(torch.ones(1))
    assert not arrivals.on_device(1.0)
    assert not arrivals.on_device(None)
