"""Where a NaN comes into being inside a `forward` that is written by hand: a module with a name, never ''."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueType

LABELS = torch.arange(64) % 4
BIRTHS = {"forward": torch.log, "backward": lambda x: torch.sqrt(0 * x)}


class Net(nn.Module):
    """Three layers; the operation stands behind the one of this name."""

    def __init__(self, function, behind):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.function, self.behind = function, behind

    def forward(self, x):
        for name in ("first", "middle", "last"):
            x = getattr(self, name)(x)
            x = self.function(x) if name == self.behind else x
        return x


class Shape(nn.Module):
    """No weights of its own."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) + x


def numerical(model, loss=lambda output: F.cross_entropy(output, LABELS)):
    torch.manual_seed(0)
    issues = gf.GradientFlowAnalyzer(model).analyze(lambda: torch.randn(64, 16), loss, steps=3)
    (issue,) = [issue for issue in issues if issue.issue_type is IssueType.NUMERICAL]
    return issue


@pytest.mark.parametrize("birth", BIRTHS)
@pytest.mark.parametrize("behind", ["first", "middle", "last"])
def test_between_two_layers_it_is_the_layer_before(behind, birth):
    issue = numerical(Net(BIRTHS[birth], behind))
    assert issue.layer == behind
    assert "``" not in issue.message


def test_inside_a_module_it_is_that_module():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), Shape(torch.log), nn.Linear(32, 4))
    assert numerical(model).layer == "2"


def test_in_the_loss_it_is_the_layer_that_made_the_output():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def forward(self, x):
            return 2 * self.layer(x)

    issue = numerical(Doubled(), lambda output: torch.sqrt(0 * output).sum())
    assert issue.layer == "layer"
    assert "``" not in issue.message
