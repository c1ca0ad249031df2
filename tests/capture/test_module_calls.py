"""What passes between modules, and the graph of gradients between them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradient_flow.capture.autograd_graph import Graph, averaging, slopes
from gradient_flow.capture.main_path import main_path
from gradient_flow.capture.module_calls import ModuleCalls, tensors_in


def watch(model):
    return ModuleCalls(model, lambda passage, tensor: tensor.clone(), lambda passage, gradient: gradient.clone())


def names(passages):
    return [(passage.path, passage.role) for passage in passages]


class Residual(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

    def forward(self, x):
        return x + self.branch(x)


def run(model, batch, calls):
    with calls.watching():
        loss = model(batch).square().mean()
        found = main_path(loss.grad_fn, calls.passages, set(filter(_weighted, model.modules())))
        loss.backward()
    return found


def _weighted(module):
    return any(True for _ in module.parameters(recurse=False))


def test_outputs_and_their_gradients_are_those_of_autograd():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    calls = watch(model)
    batch = torch.randn(5, 4)
    run(model, batch, calls)
    hidden = model[0](batch).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model[1:](hidden).square().mean(), hidden)
    first = calls.passages[0]
    assert torch.equal(first.forward, hidden)
    assert torch.allclose(first.backward, expected)


def test_main_path_goes_around_residual_branches():
    model = nn.Sequential(nn.Linear(4, 8), Residual(), Residual(), nn.Linear(8, 2))
    found = run(model, torch.randn(5, 4), watch(model))
    assert [passage.path for passage in found.chains[0]] == ["0", "1", "2", "3"]


def test_a_sum_made_by_hand_is_the_input_of_what_follows():
    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.branches = nn.Linear(4, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            x = self.first(x)
            for branch in self.branches:
                x = x + branch(x)
            return x

    model = ByHand()
    found = run(model, torch.randn(5, 4), watch(model))
    expected = [("first", "output"), ("branches.1", "input"), ("branches.2", "input"), ("", "output")]
    assert names(found.chains[0]) == expected


def test_operations_in_place_keep_the_values_before_and_after():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    calls = watch(model)
    run(model, torch.randn(64, 4), calls)
    before, after = calls.passages[:2]
    assert (before.forward < 0).any()
    assert (after.forward >= 0).all()
    assert torch.equal(before.backward, after.backward * (before.forward > 0))


def test_of_a_cell_through_time_only_the_last_call_is_on_the_path():
    class Unrolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.RNNCell(3, 6), nn.Linear(6, 1)

        def forward(self, x):
            state = torch.zeros(x.shape[0], 6)
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
            return self.head(state)

    model = Unrolled()
    calls = watch(model)
    found = run(model, torch.randn(2, 5, 3), calls)
    assert sum(passage.path == "cell" for passage in calls.passages) == 5
    assert [passage.path for passage in found.chains[0]] == ["cell", "head"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_arrive_under_checkpointing(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    model = Checkpointed()
    calls = watch(model)
    with calls.watching():
        model(torch.randn(3, 4)).sum().backward()
    inner = [passage for passage in calls.passages if passage.path == "inner"]
    assert len(inner) == 1
    assert torch.equal(inner[0].backward, torch.ones(3, 4))


def test_outputs_of_all_shapes():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            out, _ = self.rnn(x)
            return {"logits": out, "aux": None}

    model = Several()
    calls = watch(model)
    with calls.watching():
        model(torch.randn(2, 5, 3))["logits"].sum().backward()
    assert names(calls.passages)[0] == ("rnn", "output")
    assert calls.passages[0].backward.shape == (2, 5, 4)


def test_frozen_and_no_grad_parts_are_seen_without_gradient():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher, self.student = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

        def forward(self, x):
            return self.student(x) - self.teacher(x)

    model = Frozen()
    calls = watch(model)
    run(model, torch.randn(3, 4), calls)
    seen = {passage.path: passage.backward is not None for passage in calls.passages}
    assert seen == {"student": True, "teacher": False, "": True}


def test_hooks_are_gone_after_an_exception_and_in_copies():
    import copy

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    calls = watch(model)
    with pytest.raises(RuntimeError), calls.watching():
        model(torch.randn(2, 5))
    assert not any(module._forward_hooks for module in model.modules())
    with calls.watching():
        twin = copy.deepcopy(model)
        twin(torch.randn(2, 4))
        assert calls.passages == []


def test_tensors_of_a_batch_however_packed():
    a, b = torch.ones(1), torch.ones(2)
    assert [len(t) for t in tensors_in({"x": a, "y": [b, "text", None]})] == [1, 2]
    assert tensors_in("text") == []


def test_dominators_against_removal_of_each_node():
    """A node dominates another if without it the other cannot be reached: the definition, tried out."""
    x = torch.randn(3, requires_grad=True)
    a = x * 2
    b, c = a.sin(), a.cos()
    loss = (b + c * b.exp()).sum()
    graph = Graph(loss.grad_fn)
    for node in graph.nodes:
        dominators = set(graph.dominators(node))
        for other in graph.nodes:
            reachable = _reachable(loss.grad_fn, without=other)
            assert (other in dominators) == (other is node or node not in reachable)


def _reachable(root, without):
    seen, stack = set(), [root]
    while stack:
        node = stack.pop()
        if node is None or node is without or node in seen:
            continue
        seen.add(node)
        stack += [child for child, _ in node.next_functions]
    return seen


@pytest.mark.parametrize(
    "average", [lambda x: x.mean((2, 3)), lambda x: F.avg_pool2d(x, 8), lambda x: x.mean((-1, -2))]
)
def test_averages_lower_the_norm_by_the_root_of_the_positions(average):
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    y = average(x)
    y.retain_grad()
    (y * torch.randn_like(y)).sum().backward()
    measured = math.log10(float(y.grad.norm() / x.grad.norm()))
    assert averaging([y.grad_fn]) == pytest.approx(measured, abs=1e-5)


@pytest.mark.parametrize(
    ("activation", "largest"), [(torch.tanh, 1.0), (torch.sigmoid, 0.25), (F.hardtanh, 1.0), (F.hardsigmoid, 1 / 6)]
)
def test_slopes_are_derivatives_over_the_largest(activation, largest):
    x = torch.linspace(-6.05, 6.05, 101, requires_grad=True)
    y = activation(x)
    (expected,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.allclose(slopes(y.grad_fn), expected / largest, atol=1e-5)
