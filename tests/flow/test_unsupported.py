"""Gradients that are not in `.grad`: one warning, an event, no verdict; never "no gradient", never "healthy"."""

import contextlib
import sys
import types

import pytest
import torch
from torch import nn

import gradient_flow as gf


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


class DeepSpeedEngine(nn.Module):
    """Named as DeepSpeed's own; ZeRO 1 and 2 leave no mark on parameters."""

    def __init__(self):
        super().__init__()
        self.module = net()


class FlatParameter(nn.Parameter):
    """Named as torch's own."""


def engine():
    return DeepSpeedEngine()


def zero_3():
    model = net()
    for number, p in enumerate(model.parameters()):
        p.ds_id, p.ds_tensor = number, p.detach().flatten()
    return model


def flat():
    model = nn.Module()
    model.flat = FlatParameter(torch.zeros(8))
    return model


def megatron():
    model = net()
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
    return model


class Subclassed(DeepSpeedEngine):
    """A class of the user's own on top of it."""


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (engine, "DeepSpeed"),
        (Subclassed, "DeepSpeed"),
        (zero_3, "DeepSpeed"),
        (flat, "FSDP2"),
        (megatron, "main_grad"),
    ],
)
def test_nothing_is_judged_and_the_verdict_says_why(make, word, tmp_path):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(gf.GradientFlowWarning, match=word) as warned:
        flow = gf.watch(model, optimizer, run=tmp_path)
    with flow:
        for _ in range(20):
            optimizer.step()  # without a gradient in `.grad`
    assert len(warned) == 1
    assert len(flow.history) == 0
    for diagnosis in (flow.diagnose(), gf.diagnose(tmp_path)):
        assert not diagnosis.issues
        assert diagnosis.status == "insufficient_data"
        assert diagnosis.message.startswith("Not supported: nothing is judged.")
        assert word in diagnosis.message
        assert "Healthy" not in str(diagnosis)
    assert [event.kind for event in gf.load_run(tmp_path).events] == ["unsupported", "end"]


def test_an_optimizer_of_their_own_is_no_error_there():
    with pytest.warns(gf.GradientFlowWarning, match="DeepSpeed"):
        flow = gf.watch(engine(), object())
    assert "not supported" in repr(flow)
    flow.step()  # told by hand: nothing to read either
    flow.close()
    assert len(flow.history) == 0


def test_gradients_that_turn_out_to_be_elsewhere_at_the_first_step():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        for p in model.parameters():
            p.main_grad = torch.zeros_like(p)
        with pytest.warns(gf.GradientFlowWarning, match="main_grad") as warned:
            optimizer.step()
        optimizer.step()  # a second warning would be an error
    assert len(warned) == 1
    assert flow.diagnose().status == "insufficient_data"
    assert len(flow.history) == 0


def test_a_stage_of_a_pipeline_needs_the_group_of_all_stages(monkeypatch):
    class _PipelineStageBase:
        def __init__(self, submod, num_stages):
            self.submod, self.num_stages = submod, num_stages

    module = types.ModuleType("torch.distributed.pipelining.stage")
    module._PipelineStageBase = _PipelineStageBase
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model, alone = net(), net()
    stages = [_PipelineStageBase(model, 2), _PipelineStageBase(alone, 1)]
    with pytest.warns(gf.GradientFlowWarning, match="process_group"):
        flow = gf.watch(nn.ModuleList([model]))
    flow.close()
    assert "one stage of a pipeline" in flow.diagnose().message
    for supported in (alone, net()):
        with gf.watch(supported) as flow:
            assert "not supported" not in repr(flow)
    assert len(stages) == 2


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # torch's own, of the older API
@pytest.mark.parametrize("original", [False, True])
def test_a_real_fsdp1_training(tmp_path, original):
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"), use_orig_params=original)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.warns(gf.GradientFlowWarning, match="FSDP2"):
            flow = gf.watch(model, optimizer)
        with flow:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
        assert flow.diagnose().status == "insufficient_data"
        assert "FullyShardedDataParallel" in flow.diagnose().message
    finally:
        dist.destroy_process_group()


# ---- no optimizer ---------------------------------------------------------------------------------------------------


def test_without_an_optimizer_the_watch_says_what_it_waits_for(tmp_path):
    model = net()
    with gf.watch(model, run=tmp_path) as flow:
        assert "waiting for flow.step()" in repr(flow)
        assert "flow.step()" in flow.diagnose().message
    assert flow.diagnose().status == "insufficient_data"
    assert "flow.step()" in gf.diagnose(tmp_path).message


def test_once_a_step_was_told_nobody_waits():
    model = net()
    with gf.watch(model) as flow:
        model(torch.ones(2, 4)).sum().backward()
        flow.step()
        assert "waiting" not in repr(flow)
        assert "flow.step()" not in flow.diagnose().message
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        assert "waiting" not in repr(flow)


@pytest.mark.parametrize("way", ["step", "attach"])
def test_a_manager_that_sees_no_gradient_does_not_call_the_step_healthy(way):
    model, manager = megatron(), gf.create_gradient_manager()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        attached = manager.attach(model, optimizer) if way == "attach" else contextlib.nullcontext()
        with attached:
            for _ in range(2):
                if way == "step":
                    manager.step(model, optimizer, torch.tensor(1.0), backward=False)
                optimizer.step()

    with pytest.warns(gf.GradientFlowWarning, match="cannot guard and clip") as warned:
        loop()
    assert len(warned) == 1
    health = manager.last_step["health"]
    assert not health["healthy"]
    assert health["warnings"][0].startswith("Not supported: nothing is judged.")
