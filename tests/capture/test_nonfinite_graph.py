"""Where a loss became NaN or Inf, from its graph alone."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradient_flow as gf
from gradient_flow.capture.nonfinite_graph import nonfinite_origin, steep_operations
from gradient_flow.diagnosis.issue import IssueType


class Net(nn.Module):
    """Three layers, and something between the first two."""

    def __init__(self, between):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.third(torch.relu(self.second(self.between(self.first(x)))))


def batch(bad=False):
    x = torch.randn(16, 6)
    if bad:
        x[3, 2] = torch.nan
    return x, torch.randint(3, (16,))


def origin_of(model, x, y):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return nonfinite_origin(F.cross_entropy(model(x), y), lambda parameter: names.get(id(parameter)))


def test_a_bad_batch_is_told_from_a_bad_operation_and_each_has_its_layer():
    torch.manual_seed(0)
    of_data = origin_of(Net(torch.relu), *batch(bad=True))
    assert (of_data.own.partition(".")[0], of_data.before) == ("first", None)
    of_operation = origin_of(Net(lambda x: x / (x - x)), *batch())
    assert of_operation.before.startswith("first.") or of_operation.own.startswith("second.")
    assert origin_of(Net(torch.relu), *batch()) is None


def test_the_infinities_of_a_mask_are_not_blamed():
    model = Net(lambda x: F.softplus(x.masked_fill(x > 0.5, -torch.inf)))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    x, y = batch()
    loss = F.cross_entropy(model(x), y) * math.inf  # the loss alone is not finite
    assert nonfinite_origin(loss, lambda parameter: names.get(id(parameter))) is None


def test_what_a_checkpoint_saved_is_not_read():
    runs = []

    def counted(x):
        runs.append(1)
        return x / (x - x)

    model = Net(lambda x: checkpoint(counted, x, use_reentrant=False))
    origin_of(model, *batch())
    assert len(runs) == 1  # a second one would be a forward pass of ours


@pytest.mark.parametrize(
    ("between", "bad", "layers"), [(torch.relu, True, {"first"}), (lambda x: x / (x - x), False, {"first", "second"})]
)
def test_a_watched_training_that_is_nan_from_its_first_step_on_names_the_layer(between, bad, layers):
    torch.manual_seed(0)
    model = Net(between)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        for _ in range(3):
            x, y = batch(bad)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    issue = next(issue for issue in flow.diagnose() if issue.issue_type is IssueType.NUMERICAL)
    assert issue.layer in layers
    assert issue.step == 1
    assert ("data" in issue.cause) is bad


def test_what_a_replay_found_says_more_than_the_graph():
    torch.manual_seed(0)
    model = Net(torch.relu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer) as flow:
        for _ in range(2):
            x, y = batch(bad=True)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        flow.add_origin({"found": True, "message": "Found by a replay.", "why": "so.", "module": "third"})
    issue = next(issue for issue in flow.diagnose() if issue.issue_type is IssueType.NUMERICAL)
    assert issue.layer == "third"
    assert "Found by a replay." in issue.message


def trained_until(model, loss_of, steps=3, **more):
    """The NUMERICAL issue of a watched training whose loss is computed from output, input and targets."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gf.watch(model, optimizer, **more) as flow:
        for step in range(steps):
            x, y = batch()
            optimizer.zero_grad()
            loss = loss_of(model(x), y, step)
            loss.backward()
            optimizer.step()
    return next(issue for issue in flow.diagnose() if issue.issue_type is IssueType.NUMERICAL)


@pytest.mark.parametrize(
    ("of_output", "operation", "says"),
    [
        (lambda out: (out - out).sqrt(), "sqrt", "infinite at 0"),
        (lambda out: (out - out).pow(0.5), "pow", "infinite at 0"),
        (lambda out: torch.where(out > 9, (out - out).log(), out), "log", "logarithm"),
        (lambda out: (out / out.detach()).acos(), "acos", "infinite at -1 and 1"),
    ],
)
@pytest.mark.parametrize("at", [0, 40], ids=["first step", "ordinary step"])
def test_an_infinite_slope_under_a_finite_loss_is_named(of_output, operation, says, at):
    torch.manual_seed(0)

    def loss_of(out, y, step):
        return F.cross_entropy(out, y) + 0.1 * (of_output(out).mean() if step == at else 0)

    issue = trained_until(Net(torch.relu), loss_of, steps=at + 2)
    assert issue.step == at + 1
    assert issue.evidence["operation"] == operation
    assert "the loss was finite" in issue.message
    assert issue.layer == "third"
    assert says in issue.cause


def test_a_slope_is_not_blamed_for_weights_that_it_does_not_lie_behind():
    """NaN in the first layer alone cannot come from a root behind all of them."""
    torch.manual_seed(0)
    model = Net(torch.relu)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    x, y = batch()
    loss = (F.cross_entropy(model(x), y) + 1).sqrt()

    def steep(bad):
        return steep_operations(loss.grad_fn, lambda parameter: names.get(id(parameter)), frozenset(bad))

    assert [each.operation for each in steep(names.values())] == ["SqrtBackward0"]
    assert steep(["first.weight", "first.bias"]) == []
    assert steep([]) == []


@pytest.mark.parametrize(
    ("of_output", "operation", "says"),
    [
        (lambda p: -(p * 0).log().mean(), "log", "of 0 is -Inf"),
        (lambda p: (p / (p * 0)).mean(), "div", "division by 0"),
        (lambda p: (p + 2).acos().mean(), "acos", "between -1 and 1"),
    ],
)
def test_an_operation_without_a_finite_result_is_named(of_output, operation, says):
    torch.manual_seed(0)
    issue = trained_until(Net(torch.relu), lambda out, _y, _step: of_output(out.softmax(1)))
    assert issue.evidence["operation"] == operation
    assert says in issue.cause
    assert issue.layer == "third"


def test_a_logarithm_of_zero_that_a_mask_hides_is_not_blamed_for_another_fault():
    torch.manual_seed(0)

    def loss_of(out, y, _step):
        hidden = torch.where(out > 9, (out.detach() * 0 + 0 * out).log(), 0.0).sum()
        return F.cross_entropy(out / (out - out), y) + hidden

    issue = trained_until(Net(torch.relu), loss_of)
    assert issue.evidence["operation"] != "log"


def test_the_slope_of_an_overflow_that_a_scaler_made_is_not_named():
    torch.manual_seed(0)
    model = Net(torch.relu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with gf.watch(model, optimizer, scaler=scaler) as flow:
        for _ in range(4):
            x, y = batch()
            optimizer.zero_grad()
            scaler.scale(100 * (F.cross_entropy(model(x), y) + 1).sqrt()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert not [issue for issue in flow.diagnose() if "operation" in issue.evidence]
