import sys
import threading

import pytest
import torch
from torch import nn

from gradient_flow.capture.model_state import left_as_found
from gradient_flow.probes.nonfinite import attribution
from gradient_flow.probes.nonfinite import calls as operator_calls
from gradient_flow.probes.nonfinite.find import find_nonfinite
from gradient_flow.probes.nonfinite.operators import operator_of
from gradient_flow.probes.nonfinite.origins import Regions
from gradient_flow.probes.nonfinite.tensor_range import has_nonfinite, range_of
from gradient_flow.probes.nonfinite.trace import OperationTrace
from gradient_flow.probes.nonfinite.where import frame_kind, place_of_call
from planted_faults import Net, Part, batch, custom_forward_unseen

INF, NAN = float("inf"), float("nan")


# Labels on memory ----------------------------------------------------------------------------------------------------
def test_views_find_the_labels_of_what_they_look_at():
    labels: Regions[str] = Regions()
    whole = torch.zeros(4, 3)
    labels.put(whole[1], "row")
    assert labels.find(whole) == ["row"]
    assert labels.find(whole.T) == ["row"]
    assert labels.find(whole[1, 2:]) == ["row"]
    assert labels.find(whole[2:]) == []
    assert labels.find(whole.clone()) == []


def test_writing_over_a_label_takes_it_away():
    labels: Regions[str] = Regions()
    whole = torch.zeros(4, 3)
    labels.put(whole[1], "row")
    labels.clear(whole[2])
    labels.clear(whole[:, 0])  # a column runs past the row without covering it
    assert labels.find(whole) == ["row"]
    labels.put(whole[:3], "rows")
    assert labels.find(whole) == ["rows"]
    labels.clear(whole)
    assert labels.find(whole) == []


def test_labels_keep_no_tensor_alive_and_are_not_inherited():
    labels: Regions[str] = Regions()
    for _ in range(50):  # an allocator gives the same address again soon
        tensor = torch.zeros(1000)
        assert labels.find(tensor) == []
        labels.put(tensor, "bad")
        del tensor


# Ranges --------------------------------------------------------------------------------------------------------------
def test_a_range_counts_and_finds_the_first_bad_element():
    extent = range_of("x", torch.tensor([[0.0, 2.0, -3.0], [NAN, -INF, INF]]))
    assert (extent.count, extent.nan, extent.inf, extent.negative_inf, extent.zeros) == (6, 1, 2, 1, 1)
    assert (extent.minimum, extent.maximum, extent.first_bad) == (-3.0, 2.0, (1, 0))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0),
        torch.tensor([True]),
        torch.tensor([3]),
        torch.tensor(2.0, device="meta"),
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, dtype=torch.float8_e4m3fn),
        torch.tensor([1 + 2j]),
    ],
)
def test_every_kind_of_tensor_has_a_range(tensor):
    assert range_of("x", tensor).bad == 0
    assert not has_nonfinite(tensor)


def test_bad_elements_are_seen_in_every_kind_of_tensor():
    for tensor in (
        torch.tensor([1.0, NAN]).half(),
        torch.tensor([[0.0, INF]]).to_sparse(),
        torch.tensor([complex(NAN, 1)]),
        torch.tensor([NAN]).to(torch.float8_e5m2),
    ):
        assert has_nonfinite(tensor)
        assert range_of("x", tensor).bad == 1


# Operators -----------------------------------------------------------------------------------------------------------
def test_schemas_tell_views_writes_and_what_is_not_read():
    aten = torch.ops.aten
    assert operator_of(aten.t.default).is_view
    assert not operator_of(aten.log.default).is_view
    assert not operator_of(aten.lift_fresh.default).is_view
    assert operator_of(aten.log_.default).written == {"self"}
    assert operator_of(aten.log_.default).unread == frozenset()
    assert operator_of(aten.copy_.default).unread == {"self"}
    assert operator_of(aten.log.out).unread == {"out"}
    assert operator_of(aten.addmm.default).name == "linear"


# Places --------------------------------------------------------------------------------------------------------------
def test_frames_are_told_apart():
    assert frame_kind(__file__, "test") == "user"
    assert frame_kind("<stdin>", "<module>") == "user"
    assert frame_kind(threading.__file__, "run") == "inner"
    assert frame_kind(torch.nn.functional.__file__, "relu") == "inner"
    assert frame_kind(torch.nn.modules.module.__file__, "_call_impl") == "module"
    assert frame_kind(pytest.__file__, "raises") == "library"
    assert frame_kind(sys.modules[OperationTrace.__module__].__file__, "x") == "inner"


def test_the_way_up_ends_where_it_is_told_to():
    here = sys._getframe()
    assert place_of_call(here, None, lambda module: None).function == here.f_code.co_name
    assert place_of_call(here, here, lambda module: None).file is None


def test_code_of_a_package_is_told_beside_the_users_line():
    source = "def normalise(x):\n    return x / x.sum()\n"
    package: dict = {}
    exec(compile(source, "/opt/lib/site-packages/some_package/layers.py", "exec"), package)
    model = nn.Linear(2, 1)
    origin = find_nonfinite(lambda: package["normalise"](model(torch.ones(3, 2)) * 0).mean(), model)
    assert origin.library == "some_package/layers.py:2"
    assert origin.code.startswith("origin = find_nonfinite(lambda: package")


def test_places_survive_writing_into_views():
    model = nn.Linear(2, 2)

    def step():
        y = model(torch.ones(3, 2)) * 0
        y[0] = y[0] * 2
        y[1:] += 1
        flag = y > 0
        root = torch.sqrt(y)
        return root.sum() + flag.sum() * 0

    origin = find_nonfinite(step, model)
    assert (origin.operator, origin.code) == ("sqrt backward", "root = torch.sqrt(y)")


def test_nodes_made_after_an_operator_belong_to_it():
    def step():
        y = torch.ones(3, requires_grad=True) * 2
        view = y[:2]
        view.mul_(3)
        _ = y > 0  # makes no node
        z = y + 1
        return y, view, z

    trace = OperationTrace(nn.Linear(1, 1))
    with trace:
        results = step()
    assert [trace._places.made(t.grad_fn).place.code for t in results] == ["view.mul_(3)", "view.mul_(3)", "z = y + 1"]


# The trace by itself -------------------------------------------------------------------------------------------------
def test_the_trace_changes_no_number():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    x, results = torch.randn(3, 4), []
    for watched in (False, True):
        torch.manual_seed(1)
        model.zero_grad()
        trace = OperationTrace(model)
        if watched:
            with trace:
                model(x).sum().backward()
            assert (trace.trouble, trace.saw_backward, trace.bad_gradients) == (None, True, [])
        else:
            model(x).sum().backward()
        results.append([p.grad.numpy().tobytes() for p in model.parameters()])
    assert results[0] == results[1]


def test_a_failure_of_the_instruments_does_not_stop_the_step_or_hide_the_finding(monkeypatch):
    model = nn.Linear(2, 1)
    original = operator_calls.OperatorCall.before

    def fails_for_sum(func, args, kwargs):
        if "sum" in str(func):
            raise MemoryError("no room for a copy")
        return original(func, args, kwargs)

    monkeypatch.setattr(operator_calls.OperatorCall, "before", staticmethod(fails_for_sum))
    origin = find_nonfinite(lambda: ((model(torch.ones(3, 2)) * 0).log() * torch.ones(2).sum()).mean(), model)
    assert (origin.operator, origin.trouble) == ("log", "MemoryError: no room for a copy")
    assert "trouble  MemoryError" in str(origin)


def test_a_tensor_that_cannot_be_described_is_still_named(monkeypatch):
    model = nn.Linear(2, 1)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "isinf", None)
        patch.setattr(torch, "isnan", lambda x: (_ for _ in ()).throw(RuntimeError("not here")))
        extent = range_of("x", torch.tensor([NAN]))
    assert (extent.name, extent.shape, extent.bad) == ("x", (1,), 0)
    assert attribution.Attribution(model, None) is not None


@pytest.fixture
def nan_in_empty_memory(monkeypatch):
    """What lies in memory is up to chance; torch's deterministic mode fills it with NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("nan_in_empty_memory")
def test_uninitialised_memory_is_blamed_only_when_it_is_used():
    model = nn.Linear(2, 2)
    used = find_nonfinite(lambda: (model(torch.ones(2, 2)) + torch.empty(2, 2)).sum(), model)
    filled = find_nonfinite(lambda: (model(torch.ones(2, 2)) + torch.empty(2, 2).zero_()).sum(), model)
    assert (used.kind, used.operator) == ("constant", "empty")
    assert "left memory uninitialised" in used.message
    assert not filled.found


@pytest.mark.usefixtures("nan_in_empty_memory")
def test_what_a_kernel_of_ones_own_writes_into_empty_memory_is_its_doing():
    net = Net(Part(custom_forward_unseen))
    origin = find_nonfinite(lambda: net(batch()).mean(), net)
    assert (origin.kind, origin.operator) == ("operation", "BehindTorchsBack")


def test_a_model_is_left_as_found_also_when_its_parts_are_replaced():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    first, weight, negative_zero = model[0], model[0].weight, torch.tensor([-0.0, 1.0])
    model[1].running_mean = negative_zero
    with left_as_found(model):
        model[0] = nn.Identity()
        first.weight = nn.Parameter(torch.zeros(2, 2))
        first.extra = 1
        del first.bias
        model[1].running_mean.add_(0.0)  # turns -0.0 into 0.0, which is equal
    assert model[0] is first
    assert first.weight is weight
    assert first.bias is not None
    assert not hasattr(first, "extra")
    assert model[1].running_mean is negative_zero
    assert negative_zero.signbit().tolist() == [True, False]
