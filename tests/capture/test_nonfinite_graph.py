"""Where a loss became NaN or Inf, from its graph alone."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradient_flow as gf
from gradient_flow.capture.nonfinite_graph import nonfinite_origin
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
