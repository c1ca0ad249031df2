"""Looks in a running training: what they see, when, and that nothing of the training changes."""

import contextlib
import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import gradient_flow as gf
import ways_of_training
from gradient_flow.report.events import run_events
from ways_of_training import WAYS, Net, batch, loss_of, seeded, sgd

pytestmark = pytest.mark.filterwarnings(  # torch's own
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:Using backward.. with create_graph:UserWarning",
)
STEPS = 7


def looked(flow):
    """The steps looked at."""
    return [event.step for event in flow.run.events if event.kind == "looked"]


def network(flow):
    return flow.run.found("network")[-1][1]


def places(flow):
    return {(place["name"], place["role"], place["call"]): place for place in network(flow)["places"]}


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]


def train(model, optimizer, steps=STEPS, loss=loss_of):
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, batch(step)).backward()
        optimizer.step()


# ---- every way of training ----------------------------------------------------------------------------------------


class Watched:
    """Runs a way with a look at every step, or without a watch, and keeps what became of the weights."""

    def __init__(self, on: bool) -> None:
        self.on, self.flow = on, None

    @contextlib.contextmanager
    def over(self, model, optimizers, scaler=None):
        self.model = model
        watch = gf.watch(model, optimizers or None, scaler=scaler, looks=1) if self.on else contextlib.nullcontext()
        with watch as self.flow:
            yield

    def ready(self) -> None: ...

    def step(self, model, optimizer, scaler=None) -> None:
        if optimizer is None and self.flow is not None:
            self.flow.step()

    def collect(self) -> None: ...

    def state(self):
        tensors = [*self.model.parameters(), *self.model.buffers()]
        gradients = [p.grad.to_dense() for p in self.model.parameters() if p.grad is not None]
        return [*(t.detach().clone() for t in tensors), *gradients, torch.get_rng_state()]


# Compiled code is left alone; inside `torch.func` a tensor stands for many, and no backward pass comes.
NOT_SEEN = {"compiled_model", "functional"}


@pytest.mark.parametrize("way", WAYS)
def test_most_ways_of_training_are_seen_and_no_bit_changes(way, monkeypatch):
    monkeypatch.setattr(ways_of_training, "STEPS", STEPS)
    states = []
    for on in (False, True):
        torch.manual_seed(3)
        face = Watched(on)
        list(WAYS[way](face))
        states.append(face.state())
    assert len(states[0]) == len(states[1])
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
    assert not hooks_of(face.model)
    assert bool(looked(face.flow)) == (way not in NOT_SEEN)


# ---- what is seen -------------------------------------------------------------------------------------------------


def test_what_is_seen_is_what_hooks_of_ones_own_see():
    model = seeded(Net)
    optimizer = sgd(model)
    seen = {}

    def keep(_module, _inputs, output):
        if torch.is_grad_enabled():
            output.retain_grad()
            seen["output"] = output

    with gf.watch(model, optimizer, looks=[4]) as flow:
        for step in range(5):
            handle = model.blocks[1].register_forward_hook(keep) if step == 3 else None
            optimizer.zero_grad()
            loss_of(model, batch(step)).backward()
            optimizer.step()
            if handle is not None:
                handle.remove()
    place = places(flow)["blocks.1", "output", 0]
    values, gradient = seen["output"].detach().double(), seen["output"].grad.double()
    assert looked(flow) == [4]
    assert place["rms"][-1] == pytest.approx(float(values.square().mean().sqrt()), rel=1e-6)
    assert place["gradient"][-1] == pytest.approx(float(gradient.norm()), rel=1e-6)


def test_evaluation_between_steps_does_not_enter_a_look():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow:
        for step in range(4):
            model.eval()
            with torch.no_grad():
                model(1e6 * batch(step))
            model(1e6 * batch(step))  # also without no_grad
            model.train()
            optimizer.zero_grad()
            loss_of(model, batch(step)).backward()
            with torch.inference_mode():
                model(1e6 * batch(step))
            optimizer.step()
    assert {call for _, _, call in places(flow)} == {0}
    assert places(flow)["blocks.0", "output", 0]["rms"][-1] < 10


def test_a_model_that_is_trained_in_evaluation_mode_is_seen_from_the_second_look_on():
    model = seeded(Net).eval()
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow:
        train(model, optimizer, 6)
    assert looked(flow) == [4, 5, 6]


def test_with_accumulation_a_look_is_one_micro_batch():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow:
        for step in range(4):
            optimizer.zero_grad()
            for part in range(3):
                (loss_of(model, batch(3 * step + part)) / 3).backward()
            optimizer.step()
    assert {call for _, _, call in places(flow)} == {0}
    assert looked(flow) == [3, 4]


def test_a_forward_that_came_to_nothing_is_forgotten():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow:
        for step in range(4):
            with contextlib.suppress(ZeroDivisionError):
                model(1e6 * batch(step)).sum() / (1 // 0)
            optimizer.zero_grad()
            loss_of(model, batch(step)).backward()
            optimizer.step()
    assert places(flow)["blocks.0", "output", 0]["rms"][-1] < 10


class Failing(Net):
    def forward(self, x):
        out = super().forward(x)
        if self.training and float(x[0, 0]) > 1e5:
            raise RuntimeError("on purpose")
        return out


def test_an_exception_in_a_forward_is_the_users_and_the_next_look_is_whole():
    model = seeded(Failing)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow:
        train(model, optimizer, 3)
        with pytest.raises(RuntimeError, match="on purpose"):
            model(torch.full((2, 6), 1e6))
        train(model, optimizer, 2)
    assert looked(flow) == [3, 4, 5]
    assert not hooks_of(model)


def test_the_users_device_context_and_modes_survive():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow, torch.device("meta"):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 5, 8, device="cpu")).square().mean().backward()
            optimizer.step()
            assert torch.empty(1).device.type == "meta"
    assert torch.empty(1).device.type == "cpu"
    assert flow.run.found("attention")


# ---- when ---------------------------------------------------------------------------------------------------------


def test_looks_are_switched_off_in_either_way():
    for settings in ({"looks": False}, {"budget": 0}):
        model = seeded(Net)
        optimizer = sgd(model)
        with gf.watch(model, optimizer, **settings) as flow:
            train(model, optimizer)
        assert not looked(flow)
        assert not flow.run.seen


@pytest.mark.parametrize(("looks", "steps"), [(True, [3, 6, 13]), (4, [4, 8, 12]), ([5, 2, 9], [5, 9])])
def test_the_steps_follow_from_the_schedule(looks, steps):
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=looks, budget=1.0) as flow:
        train(model, optimizer, 13)
    assert looked(flow) == steps


@pytest.mark.parametrize("wrong", [0, -3, "often", [0], 2.5])
def test_other_schedules_are_refused(wrong):
    model = seeded(Net)
    with pytest.raises(gf.InputError, match="looks"):
        gf.watch(model, sgd(model), looks=wrong)


def test_the_budget_drops_looks_after_the_third_and_says_so():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1, budget=1e-9) as flow:
        train(model, optimizer, 10)
    assert looked(flow) == [3, 4, 5]
    assert flow.looks.dropped == 6  # also that of step 11, which never came
    (told,) = (event.data for event in flow.run.events if event.kind == "looks_dropped")
    assert told == {"dropped": 6, "dropped_steps": [6, 7, 8, 9, 10, 11]}
    texts = [event["text"] for event in run_events(flow.run)[0]]
    assert "Looks that the budget dropped after the last one: 6." in texts
    assert flow.looks.seconds > 0


def test_a_jump_of_the_learning_rate_asks_for_a_look():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=[3], budget=1.0) as flow:
        train(model, optimizer, 5)
        optimizer.param_groups[0]["lr"] *= 10
        train(model, optimizer, 3)
    told = {event.step: event.data["because"] for event in flow.run.events if event.kind == "looked"}
    assert told == {3: "schedule", 7: "the learning rate changed"}


def test_a_look_that_was_asked_for_comes_however_many_the_schedule_took_before():
    """A slow machine takes more scheduled looks within the budget: what happens later is looked at all the same."""
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=range(3, 12), budget=1.0) as flow:
        train(model, optimizer, 13)
        flow.looks._budget.share = 1e-9
        optimizer.param_groups[0]["lr"] *= 10
        train(model, optimizer, 3)
    assert looked(flow) == [*range(3, 12), 15]


# ---- care ---------------------------------------------------------------------------------------------------------


def test_closing_in_the_middle_of_a_look_leaves_no_hook():
    model = seeded(Net)
    optimizer = sgd(model)
    flow = gf.watch(model, optimizer, looks=1)
    train(model, optimizer, 3)
    assert hooks_of(model)  # the next step is to be looked at
    output = model(batch(0))
    flow.close()
    output.square().mean().backward()
    assert not hooks_of(model)


def test_a_flow_that_is_dropped_takes_its_hooks_along():
    model = seeded(Net)
    optimizer = sgd(model)
    flow = gf.watch(model, optimizer, looks=1)
    train(model, optimizer, 3)
    del flow
    gc.collect()
    assert not hooks_of(model)


def test_a_copy_and_a_pickle_of_the_model_in_a_look_are_whole():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=1) as flow:
        train(model, optimizer, 3)
        twin = copy.deepcopy(model)
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(twin(batch(0)), again(batch(0)))
        train(model, optimizer, 1)
    assert looked(flow) == [3, 4]


def test_what_fails_inside_ends_the_looks_and_not_the_training(monkeypatch):
    from gradient_flow.looks.observer import Observer

    def fail(*_arguments):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(Observer, "on_loss", fail)
    model = seeded(Net)
    optimizer = sgd(model)
    with pytest.warns(gf.GradientFlowWarning, match="broken on purpose"), gf.watch(model, optimizer) as flow:
        train(model, optimizer, 8)
    assert len(flow.history) == 8
    assert not hooks_of(model)


# ---- compiled -----------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def graphs():
    return dict(torch._dynamo.utils.counters["stats"]), dict(torch._dynamo.utils.counters["recompiles"])


def whole(model):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    return compiled, compiled


def raw(model):
    return model, torch.compile(model, backend="eager", fullgraph=True)


def in_place(model):
    model.compile(backend="eager", fullgraph=True)
    return model, model


@pytest.mark.parametrize("how", [whole, raw, in_place])
def test_compiled_models_keep_their_graphs(how, nothing_compiled):
    counts = []
    for watched in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        given, called = how(seeded(Net))
        optimizer = sgd(given)
        watch = gf.watch(given, optimizer, looks=1) if watched else contextlib.nullcontext()
        with watch as flow:
            train(called, optimizer, 6)
        counts.append(graphs())
    assert counts[0] == counts[1]
    assert not looked(flow)
    assert flow.looks.reason
