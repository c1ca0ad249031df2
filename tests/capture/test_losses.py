"""Each loss is heard of before its backward pass, and torch is left as it was."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gradient_flow.capture import losses


@pytest.fixture
def heard():
    """Told of so far: a loss by its value, an unclear pass as ("unclear", value), an end as "end"."""
    told = []

    def before(loss):
        assert loss.grad_fn is not None
        value = losses.value_of(loss)
        told.append(None if value is None else float(value))
        return lambda: told.append("end")

    def unclear(loss):
        told.append(("unclear", None if loss is None else float(loss.detach())))
        return lambda: told.append("end")

    end = losses.listen(before, unclear)
    yield told
    end()


def weight():
    return torch.nn.Parameter(torch.tensor([3.0]))


PLAIN = {
    "a scalar": lambda w: (w * 2).sum().backward(),
    "one element": lambda w: (w * 2).backward(),
    "by the function": lambda w: torch.autograd.backward((w * 2).sum()),
    "in a list": lambda w: torch.autograd.backward([(w * 2).sum()], [None]),
    "with its graph kept": lambda w: (w * 2).sum().backward(retain_graph=True),
}
UNCLEAR = {
    "inputs": (lambda w: (w * 2).sum().backward(inputs=[w]), 6.0),
    "a graph of the graph": (lambda w: torch.autograd.backward((w * 2).sum(), create_graph=True), 6.0),
    "two roots": (lambda w: torch.autograd.backward([(w * 2).sum(), (w * 3).sum()]), None),
    "a gradient to start from": (lambda w: (w * 2).sum().backward(torch.tensor(0.5)), None),
}


@pytest.mark.parametrize("run", PLAIN.values(), ids=PLAIN)
def test_the_loss_is_told_of_and_then_the_end(heard, run):
    run(w := weight())
    assert heard == [6.0, "end"]
    assert w.grad.item() == 2.0


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
@pytest.mark.parametrize(("run", "value"), UNCLEAR.values(), ids=UNCLEAR)
def test_what_may_not_be_a_loss_is_told_of_apart(heard, run, value):
    run(weight())
    assert heard == [("unclear", value), "end"]


def test_a_pass_that_starts_from_a_vector_is_none_of_a_loss(heard):
    (weight() * torch.ones(4)).backward(torch.ones(4))
    assert heard == []


def test_neither_is_autograd_grad(heard):
    w = weight()
    torch.autograd.grad((w * 2).sum(), w)
    assert heard == []


def test_a_pass_inside_a_pass_is_part_of_it(heard):
    w = weight()
    checkpoint(lambda x: (x * w).square(), torch.ones(1, requires_grad=True), use_reentrant=True).sum().backward()
    assert heard == [9.0, "end"]


def test_a_pass_that_fails_has_no_end_and_raises_what_torch_raises(heard):
    loss = (weight() * 2).square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert heard == [36.0, "end", 36.0]


def test_nobody_hears_what_is_undone(heard):
    with losses.unheard():
        (weight() * 2).backward()
    assert heard == []


class Own(torch.amp.GradScaler):
    """Scales by a function of its own, as that of FSDP does."""

    def scale(self, outputs):
        return outputs * torch.tensor(7.0) if isinstance(outputs, torch.Tensor) else super().scale(outputs)


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Own])
def test_a_scaled_loss_is_known_without_its_scale(heard, kind):
    scaler = kind("cpu", init_scale=1024.0)
    scaler.scale((weight() * 2).sum()).backward()
    assert heard == [6.0, "end"]


def test_so_is_each_of_several_and_one_in_half_precision_that_overflowed(heard):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    first, second = scaler.scale([(weight() * 2).sum(), (weight() * 5).sum()])
    second.backward()
    first.backward()
    scaler.scale((weight() * 4).half().sum()).backward()
    assert heard == [15.0, "end", 6.0, "end", 12.0, "end"]


def test_a_scaled_loss_that_was_changed_is_not_known_and_the_next_one_is(heard):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    (scaler.scale((weight() * 2).sum()) / 4).backward()
    (weight() * 2).sum().backward()
    loss = (weight() * 2).sum()
    scaled = scaler.scale(loss)
    loss.detach().mul_(2)
    scaled.backward()
    assert heard == [None, "end", 6.0, "end", None, "end"]


def test_a_scaler_that_is_off_changes_nothing(heard):
    torch.amp.GradScaler("cpu", enabled=False).scale((weight() * 2).sum()).backward()
    assert heard == [6.0, "end"]


def test_a_class_of_scalers_that_comes_later_is_not_trusted_once_and_then_known(heard):
    class Later(torch.amp.GradScaler):
        def scale(self, outputs):
            return outputs * 5.0

    Later("cpu").scale((weight() * 2).sum()).backward()
    Later("cpu").scale((weight() * 2).sum()).backward()
    assert heard == [None, "end", 6.0, "end"]


def test_torch_is_as_it_was_when_the_last_one_stops_listening():
    def state():
        scalers = [torch.amp.GradScaler, torch.cuda.amp.GradScaler, Own]
        return [torch.autograd.backward, torch.Tensor.backward, *(vars(each).get("scale") for each in scalers)]

    before = state()
    ends = [losses.listen(lambda loss: lambda: None) for _ in range(2)]
    for end in (*ends, ends[0]):
        end()
    assert all(a is b for a, b in zip(before, state(), strict=True))


def test_one_that_joins_while_a_loss_is_told_of_hears_it_too(heard):
    ends = []

    def first(loss):
        if len(ends) == 1:
            ends.append(losses.listen(lambda loss: lambda: heard.append("joined")))
        return lambda: None

    ends.append(losses.listen(first))
    (weight() * 2).backward()
    for end in ends:
        end()
    assert heard == [6.0, "end", "joined"]


def test_a_compiled_step_neither_breaks_nor_compiles_again(heard):
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    w = weight()
    forward = torch.compile(lambda x: (w * x).square().sum(), backend=backend, fullgraph=True)
    for _ in range(3):
        forward(torch.ones(1)).backward()
    assert len(compiled) == 1
    assert heard == [9.0, "end"] * 3


def test_the_parameter_next_to_the_loss_is_found():
    layers = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(40)))
    loss = layers(torch.ones(1, 2)).square().mean()
    known = {id(p) for p in layers.parameters()}
    assert losses.reached(loss, lambda p: id(p) in known) is layers[-1].weight
    assert losses.reached(loss, lambda p: False) is None
