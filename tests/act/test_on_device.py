"""Guard and clip on a device that is made up: decisions, weights and records of the host path, and no wait."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradient_flow as gf
from gradient_flow.act.late_steps import MOST_OPEN
from gradient_flow.act.on_device import DeviceAction
from gradient_flow.capture import arrivals
from made_up_device import make_up, note_reads

STEPS = 14
CLIPS = {
    "norm": {"max_grad_norm": 0.4},
    "value": {"clip_type": "value", "max_grad_norm": 0.05},
    "per_group": {"clip_type": "per_group", "group_max_norms": {"0.*": 0.1, "*.bias": 0.05}, "max_grad_norm": 0.3},
    "adaptive": {"clip_type": "adaptive", "adaptive_min_history": 3, "adaptive_percentile": 40.0},
    "zclip": {"clip_type": "zclip", "zclip_warmup": 4, "zclip_threshold": 0.5, "max_grad_norm": 9.0},
    "off": {"enable_gradient_clipping": False},
}
OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.02),
    "fused": lambda ps: torch.optim.AdamW(ps, lr=0.02, fused=True),
    "fused_sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, fused=True),
}
NUMBERS = {"norm", "clipped_norm", "clip_threshold", "loss"}


@pytest.fixture
def device(monkeypatch):
    return make_up(monkeypatch)


@pytest.fixture
def reads(monkeypatch):
    return note_reads(monkeypatch)


def make_model(dtype=torch.float32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1)).to(dtype)


def poison(model, step, bad):
    """NaN, Inf and -Inf in several gradients."""
    if step in bad:
        gradients = [p.grad for p in model.parameters()]
        gradients[0].view(-1)[3] = math.nan
        gradients[0].view(-1)[4] = math.inf
        gradients[3].view(-1)[1] = -math.inf


def train(manager, *, optimizer, dtype=torch.float32, bad=(), watched=False, run=None, steps=STEPS, seen=None):
    """The weights after each step, and the flow where the run is watched."""
    model = make_model(dtype)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    generator = torch.Generator().manual_seed(1)
    weights, gradients = [], []
    watching = (
        gf.watch(model, optimizer, manager=manager, looks=False, run=run, layers_every=3)
        if watched
        else manager.attach(model, optimizer)
    )
    with watching as flow:
        for step in range(steps):
            optimizer.zero_grad()
            x = torch.randn(16, 6, generator=generator).to(dtype)
            loss = model(x).square().mean() * 10.0 ** (step % 3)
            loss.backward()
            poison(model, step, bad)
            before = [p.grad for p in model.parameters()]
            optimizer.step()
            weights.append([p.detach().clone() for p in model.parameters()])
            gradients.append([g.clone() for g in before])
            if seen is not None:
                seen(step)
    return weights, gradients, flow, optimizer


def manager_of(clip, policy, **settings):
    return gf.create_gradient_manager(**CLIPS[clip], nonfinite=policy, **settings)


def same_bits(ours, theirs):
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for x, y in zip(a, b, strict=True):
            assert torch.allclose(x, y, rtol=0, atol=0, equal_nan=True), step
            assert torch.equal(x.signbit() & ~x.isnan(), y.signbit() & ~y.isnan()), step


def assert_alike(ours, theirs, path=""):
    """Nested values are equal, and numbers equal to fp64's last digits."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), path
        for name in ours:
            assert_alike(ours[name], theirs[name], f"{path}/{name}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), path
        for at, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(*pair, f"{path}/{at}")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12, nan_ok=True), path
    else:
        assert ours == theirs, path


def acted_on_device(manager):
    """How many steps were concluded late."""
    steps = []
    original = manager._conclude_late

    def noted(step):
        steps.append(step.number)
        original(step)

    manager._conclude_late = noted
    return steps


@pytest.mark.parametrize("bad", [(), (2, 5, 6)])
@pytest.mark.parametrize("policy", ["replace", "zero", "observe"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(
    ("optimizer", "dtype"), [("sgd", torch.float32), ("fused", torch.float32), ("sgd", torch.bfloat16)]
)
def test_the_device_does_what_the_host_does(optimizer, dtype, clip, policy, bad, monkeypatch, request):
    if policy == "observe" and bad:
        bad = (STEPS - 1,)  # the weights are lost from then on
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    settings = {"replace_inf_with": 0.5, "replace_nan_with": 0.25}
    host = manager_of(clip, policy, **settings)
    expected = train(host, optimizer=optimizer, dtype=dtype, bad=bad)
    device = request.getfixturevalue("device")
    ours = manager_of(clip, policy, **settings)
    late = acted_on_device(ours)
    found = train(ours, optimizer=optimizer, dtype=dtype, bad=bad, seen=lambda _: device.catch_up())
    assert late == list(range(1, STEPS + 1))
    same_bits(found[0], expected[0])
    same_bits(found[1], expected[1])
    assert_alike(ours.state_dict(), host.state_dict())
    assert ours.last_step.keys() == host.last_step.keys()
    assert_alike(ours.last_step["clipping"], host.last_step["clipping"])
    if clip != "off":
        assert host.clipped_steps > 0
    assert len(ours.events) == len(bad)


@pytest.mark.parametrize("optimizer", ["fused", "fused_sgd"])
@pytest.mark.parametrize("clip", CLIPS)
def test_a_fused_optimizer_skips_on_the_device(optimizer, clip, monkeypatch, request):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    bad = (0, 2, 5, 6)
    host = manager_of(clip, "skip")
    expected = train(host, optimizer=optimizer, bad=bad)
    device = request.getfixturevalue("device")
    ours = manager_of(clip, "skip")
    late = acted_on_device(ours)
    found = train(ours, optimizer=optimizer, bad=bad, seen=lambda _: device.catch_up())
    assert late == list(range(3, STEPS + 1))  # the first makes the optimizer's state, the second fills it
    same_bits(found[0], expected[0])
    assert_alike(ours.state_dict(), host.state_dict())
    for p, q in zip(expected[3].state, found[3].state, strict=True):
        for name, value in expected[3].state[p].items():
            assert torch.equal(value, found[3].state[q][name]), name
    assert not {"grad_scale", "found_inf"} & vars(found[3]).keys()


def test_a_skipped_step_changes_no_bit_of_weights_state_and_optimizer(device):
    model = make_model()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    manager = manager_of("norm", "skip")
    with manager.attach(model, optimizer):
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            poison(model, step, (3,))
            if step == 3:
                before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), sorted(vars(optimizer))))
            optimizer.step()
        after = model.state_dict(), optimizer.state_dict(), sorted(vars(optimizer))
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name])
    for key, state in before[1]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, after[1]["state"][key][name]), name
    assert before[1]["param_groups"] == after[1]["param_groups"]
    assert before[2] == after[2]
    assert [(event.step, event.action) for event in manager.events] == [(4, "skip")]


def test_a_bad_loss_alone_is_skipped_too(device):
    model = make_model()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    manager = manager_of("norm", "skip")
    with gf.watch(model, optimizer, manager=manager, looks=False) as flow:
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 6)).sum()
            loss.backward()
            flow.log(loss=loss.detach() * (math.nan if step == 3 else 1.0))
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            same = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
            assert all(same) == (step == 3)
    assert [(event.step, event.action) for event in manager.events] == [(4, "skip")]


NO_WAIT = [
    *(
        ("sgd", clip, policy)
        for clip in ("norm", "value", "per_group", "off")
        for policy in ("replace", "zero", "observe")
    ),
    *(("fused", clip, "skip") for clip in ("norm", "value", "per_group")),
    ("fused", "norm", "replace"),
]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("optimizer", "clip", "policy"), NO_WAIT)
def test_a_step_that_is_acted_on_reads_nothing(optimizer, clip, policy, watched, device, reads):
    manager = manager_of(clip, policy)
    counts = []

    def note(step):
        if step == 1:  # the first steps make the optimizer's state
            device.catch_up()
            reads.clear()
        counts.append((device.synchronized, arrivals.WAITS.count, len(reads)))

    # The table of layers is sent every third step. At most 8 records may be open.
    train(
        manager,
        optimizer=optimizer,
        bad=(4,) if policy != "observe" else (),
        watched=watched,
        seen=note,
        steps=MOST_OPEN,
    )
    assert counts[1:] == [counts[1]] * len(counts[1:]), reads
    assert manager.total_steps == MOST_OPEN
    assert len(manager.events) == (policy != "observe")


@pytest.mark.parametrize("watched", [False, True])
def test_a_device_that_lags_behind_is_never_waited_for(watched, device, reads):
    """Copies come two steps later, for as many steps as one likes."""
    sent, counts = [], []
    manager = manager_of("norm", "zero")

    def lag(step):
        sent.append(len(device.events))
        for event in device.events[: sent[step - 2]] if step >= 2 else ():
            event.come = True
        counts.append((device.synchronized, arrivals.WAITS.count, len(reads)))

    train(manager, optimizer="sgd", watched=watched, seen=lag, bad=(4, 9), steps=3 * MOST_OPEN)
    assert counts[2:] == [counts[2]] * len(counts[2:]), reads
    assert [event.step for event in manager.events] == [5, 10]


@pytest.mark.parametrize("clip", ["adaptive", "zclip"])
def test_a_limit_that_follows_the_norms_waits_for_the_step_before_and_no_other(clip, device):
    waits = []

    def note(_step):
        waits.append(arrivals.WAITS.count)
        assert len(manager._late) == 1  # its own numbers are still to come

    manager = manager_of(clip, "replace")
    train(manager, optimizer="sgd", seen=note)
    assert np.diff(waits).max() <= 1


@pytest.mark.parametrize(
    ("optimizer", "settings", "why"),
    [
        ("adamw", {"nonfinite": "skip"}, "fused=True"),
        ("sgd", {"nonfinite": "rollback"}, "rollback"),
        ("sgd", {"nonfinite": "raise"}, "raise"),
        ("sgd", {"clip_type": "agc"}, "agc"),
    ],
)
def test_what_the_host_decides_waits_once_and_says_so(optimizer, settings, why, device, caplog):
    manager = gf.create_gradient_manager(**settings)
    waits = []
    with caplog.at_level("INFO", logger="gradient_flow"):
        train(manager, optimizer=optimizer, seen=lambda _: waits.append(arrivals.WAITS.count), steps=4)
    told = [line for line in caplog.messages if "waits for the device" in line]
    assert len(told) == 1
    assert why in told[0]
    if settings.get("nonfinite") == "skip":
        assert np.diff(waits).tolist() == [1, 1, 1]


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_a_step_that_returns_what_was_done_waits_once(policy, device, reads):
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    manager = manager_of("norm", policy)
    waits = []
    for _ in range(4):
        optimizer.zero_grad()
        manager.step(model, optimizer, loss=1e3 * model(torch.ones(2, 6)).square().mean())
        optimizer.step()
        waits.append(arrivals.WAITS.count)
    assert np.diff(waits).tolist() == [1, 1, 1]
    assert reads == []
    assert manager.clipped_steps > 0


def test_clipping_by_unit_waits_for_no_single_tensor(monkeypatch, request):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    settings = {"clip_type": "agc", "agc_clip_factor": 0.05}
    host = gf.create_gradient_manager(**settings)
    expected = train(host, optimizer="sgd")
    request.getfixturevalue("device")
    reads = request.getfixturevalue("reads")
    ours, waits = gf.create_gradient_manager(**settings), []
    found = train(ours, optimizer="sgd", seen=lambda _: waits.append(arrivals.WAITS.count))
    same_bits(found[0], expected[0])
    assert_alike(ours.state_dict(), host.state_dict())
    assert host.clipped_steps > 0
    assert reads == []
    assert np.diff(waits).max() <= 3


def test_running_statistics_are_restored_by_the_host(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = OPTIMIZERS["fused"](model.parameters())
    manager = manager_of("norm", "skip")
    late = acted_on_device(manager)
    with manager.attach(model, optimizer):
        for step in range(5):
            optimizer.zero_grad()
            x = torch.randn(16, 6)
            x[0, 0] = math.nan if step == 3 else 0.0
            model(x).square().mean().backward()
            optimizer.step()
    assert late == []
    assert model[1].running_mean.isfinite().all()
    assert model[1].num_batches_tracked == 4


def test_buffers_that_do_not_change_need_no_host(device, reads):
    model = make_model()
    model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    optimizer = OPTIMIZERS["fused"](model.parameters())
    manager = manager_of("norm", "skip")
    late = acted_on_device(manager)
    with manager.attach(model, optimizer):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
    assert late == [2, 3, 4, 5, 6]


def test_bad_buffers_are_reported_when_they_have_come(device):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    manager = manager_of("norm", "zero")
    late = acted_on_device(manager)
    with manager.attach(model, optimizer):
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(16, 6)
            x[0, 0] = math.nan if step == 2 else 0.0
            model(x).square().mean().backward()
            optimizer.step()
    assert late == [1, 2, 3]
    assert manager.last_step["nan_inf"]["bad_buffers"].keys() == {"1.running_mean", "1.running_var"}
    assert manager.events[-1].buffers == ("1.running_mean", "1.running_var")
    assert not manager.healthy(model)


@pytest.mark.parametrize("limit", [{"max_consecutive_skips": 2}, {"max_total_skips": 2}])
@pytest.mark.parametrize("optimizer", ["fused", "adamw"])
def test_limits_of_skips_are_kept_to_the_step(optimizer, limit, device):
    manager = manager_of("norm", "skip", **limit)
    done = []
    bad = range(4, STEPS) if "max_consecutive_skips" in limit else (3, 6, 9)
    with pytest.raises(gf.NonFiniteGradientError, match=f"`{next(iter(limit))}`=2"):
        train(manager, optimizer=optimizer, bad=bad, seen=done.append)
    assert done[-1] == (5 if "max_consecutive_skips" in limit else 8)
    assert [event.action for event in manager.events] == ["skip", "skip", "raise"]


def test_health_waits_for_what_is_under_way(device):
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    manager = manager_of("norm", "zero")
    with manager.attach(model, optimizer):
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            poison(model, step, (1,))
            optimizer.step()
            assert len(manager._late) == 1
            assert manager.healthy(model) == (step != 1)
            assert not len(manager._late)


def test_a_run_file_says_what_was_done_as_the_host_would(tmp_path, monkeypatch, request):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    lines = {}
    for name in ("host", "device"):
        if name == "device":
            request.getfixturevalue("device")
        for policy, optimizer in (("skip", "fused"), ("replace", "sgd")):
            manager = manager_of("norm", policy, replace_inf_with=0.5)
            train(manager, optimizer=optimizer, bad=(2, 7), watched=True, run=tmp_path / f"{name}_{policy}")
            run = gf.load_run(tmp_path / f"{name}_{policy}")
            lines[name, policy] = {key: run.series(key) for key in ("norm", "clipped_norm", "clip_threshold")}
            text = (tmp_path / f"{name}_{policy}" / "run.jsonl").read_text()
            assert text.count(f'"guard":"{policy}"') == 2
    for policy in ("skip", "replace"):
        for key, values in lines["host", policy].items():
            np.testing.assert_allclose(lines["device", policy][key], values, rtol=1e-6, err_msg=key)


def test_a_manager_is_saved_with_all_its_steps(device):
    import pickle

    manager, states = manager_of("adaptive", "replace"), []
    train(manager, optimizer="sgd", seen=lambda step: step == 5 and states.append(manager.state_dict()))
    assert states[0]["total_steps"] == 6
    assert len(states[0]["clipper"]["percentile"]["norms"]) == 6
    assert pickle.loads(pickle.dumps(manager)).clipped_steps == manager.clipped_steps


def test_a_device_fault_loses_open_steps_with_one_warning(device):
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    manager = manager_of("norm", "replace")
    with manager.attach(model, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        device.fault = RuntimeError("an illegal memory access was encountered")
        optimizer.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
        with pytest.warns(gf.GradientFlowWarning, match="3 steps from step 1 on cannot be accounted for"):
            optimizer.step()  # training is not stopped by us
        device.fault = None
    assert manager.total_steps == 3


def scaled_run(manager, *, bad=(), seen=None, steps=STEPS):
    """A fused optimizer under a `GradScaler`: gradients carry the scale until the step divides by it."""
    model = make_model()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4)
    generator = torch.Generator().manual_seed(1)
    weights, scales = [], []
    with manager.attach(model, optimizer, scaler=scaler):
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 6, generator=generator)).square().mean() * 10.0 ** (step % 3)
            scaler.scale(loss * (math.inf if step in bad else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            weights.append([p.detach().clone() for p in model.parameters()])
            scales.append(scaler.get_scale())
            assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()
            if seen is not None:
                seen(step)
    return weights, scales


@pytest.mark.parametrize("bad", [(), (3, 8)])
@pytest.mark.parametrize("policy", ["replace", "skip", "observe"])
@pytest.mark.parametrize("clip", ["norm", "value", "per_group"])
def test_under_a_scaler_the_device_does_what_the_host_does(clip, policy, bad, monkeypatch, request):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    host = manager_of(clip, policy)
    expected = scaled_run(host, bad=bad)
    device = request.getfixturevalue("device")
    ours = manager_of(clip, policy)
    late = acted_on_device(ours)
    found = scaled_run(ours, bad=bad, seen=lambda _: device.catch_up())
    assert late == list(range(1 + (policy == "skip"), STEPS + 1))
    same_bits(found[0], expected[0])
    assert found[1] == expected[1]
    assert host.clipped_steps > 0
    assert [event.action for event in ours.events] == ["left to GradScaler"] * len(bad)
    assert_alike(ours.state_dict(), host.state_dict())


def test_under_a_scaler_nothing_is_read(device, reads):
    counts = []

    def note(step):
        if step == 1:
            device.catch_up()
            reads.clear()
        counts.append((device.synchronized, arrivals.WAITS.count, len(reads)))

    scaled_run(manager_of("norm", "skip"), bad=(4,), seen=note, steps=MOST_OPEN)
    assert counts[1:] == [counts[1]] * len(counts[1:]), reads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_triton_replaces_what_torch_does_in_one_launch(dtype, monkeypatch):
    from gradient_flow.act import device_replace
    from gradient_flow.table.kernels import triton_ops
    from interpreter import quick_interpreter

    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "triton")
    monkeypatch.setattr(triton_ops, "CHUNK", 2048)
    triton_ops._tables.clear()
    generator = torch.Generator().manual_seed(0)
    shapes = [(5000,), (3,), (), (0,), (40, 50), (2, 3, 4)]
    tensors = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator).to(dtype)
    tensors[4].grad = tensors[4].grad.t().contiguous().t()
    tensors[5].grad = (
        torch.randn(4, 3, 2, generator=generator).to(dtype).permute(2, 1, 0)
    )  # read as it lies by torch ops
    for at, values in ((0, [math.nan, math.inf, -math.inf, -math.nan]), (4, [math.inf]), (5, [math.nan])):
        places = torch.randperm(tensors[at].grad.numel(), generator=generator)[: len(values)]
        grad = tensors[at].grad
        for place, value in zip(places.tolist(), values, strict=True):
            grad[tuple(np.unravel_index(place, grad.shape))] = value
    tensors[1].grad[0] = math.nan  # but said to be finite: it is not looked at
    untouched = tensors[1].grad.clone()
    expected = [tensor.grad.clone() for tensor in tensors]
    for at, gradient in enumerate(expected):
        if at != 1:
            gradient.copy_(gradient.nan_to_num(nan=0.5, posinf=1e4, neginf=-1e4))
    bad = torch.tensor([4.0, 0.0, 0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    before = triton_ops.LAUNCHES.count
    with quick_interpreter():
        device_replace.replace_nonfinite_there_(tensors, bad, 0.5, 1e4)
    assert triton_ops.LAUNCHES.count == before + 1
    assert torch.equal(tensors[1].grad.isnan(), untouched.isnan())
    for at, (tensor, gradient) in enumerate(zip(tensors, expected, strict=True)):
        if at != 1:
            assert torch.equal(tensor.grad, gradient), at


class Operations(TorchDispatchMode):
    """What is launched, and what makes the host wait for a device: scalars read, sizes that depend on numbers, and
    lists of positions, which are sent to the device and waited for."""

    WAITS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "index", "index_put_", "item")

    def __init__(self):
        super().__init__()
        self.launched, self.waits = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.launched += not func.is_view and name not in ("detach", "alias")
        self.waits += [name] if name in self.WAITS else []
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("clip", "policy"), [("norm", "observe"), ("norm", "skip"), ("value", "skip"), ("per_group", "skip")]
)
def test_acting_launches_a_few_operations_for_any_number_of_tensors(clip, policy, device, monkeypatch):
    counts = {}
    for tensors in (98, 2000):
        parameters = nn.ParameterList([nn.Parameter(torch.full((4,), 0.5)) for _ in range(tensors)])
        optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1, fused=True)
        manager = manager_of(clip, policy)
        with manager.attach(parameters, optimizer):
            for _ in range(4):
                for parameter in parameters:
                    parameter.grad = torch.ones(4)
                with monkeypatch.context() as patch:
                    act, operations = DeviceAction.__init__, Operations()

                    def counted(*args, act=act, operations=operations, **kwargs):
                        with operations:
                            act(*args, **kwargs)

                    patch.setattr(DeviceAction, "__init__", counted)
                    optimizer.step()
                    assert operations.waits == []
                    counts.setdefault(tensors, []).append(operations.launched)
        assert manager.clipped_steps == 4
    assert counts[98][1:] == counts[2000][1:]
    assert 0 < counts[98][-1] <= 80
