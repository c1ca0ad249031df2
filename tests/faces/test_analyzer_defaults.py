"""What the documented defaults of the analyzers mean, from a model to its issues."""

import inspect
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType

LOW, HIGH = IssueSeverity.LOW, IssueSeverity.HIGH
LABELS = torch.arange(64) % 4


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def net():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def batch():
    return torch.randn(64, 16)


def times(factor):
    return lambda output: factor * F.cross_entropy(output, LABELS)


def told(issues):
    return [(issue.issue_type.name, issue.severity, issue.layer) for issue in issues]


def of_type(issues, kind):
    return [issue for issue in issues if issue.issue_type is kind]


# ---- levels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "kind"), [(2e-6, IssueType.VANISHING), (300.0, IssueType.EXPLODING)])
def test_a_level_beyond_the_documented_default_is_a_remark_at_its_layer(factor, kind):
    (issue,) = gf.GradientFlowAnalyzer(net()).analyze(batch, times(factor))
    assert (issue.issue_type, issue.severity) == (kind, LOW)
    assert issue.layer in ("0", "2", "4")
    assert "scaled" in issue.cause


def test_one_nan_step_does_not_hide_a_level():
    count = itertools.count()

    def loss(output):
        return times(300.0)(output) * (float("nan") if next(count) == 6 else 1.0)

    issues = gf.GradientFlowAnalyzer(net()).analyze(batch, loss)
    assert [kind for kind, *_ in told(issues)] == ["NUMERICAL", "EXPLODING"]


def test_a_threshold_that_is_passed_decides_also_when_it_equals_the_default():
    (issue,) = gf.GradientFlowAnalyzer(net(), exploding_threshold=10.0).analyze(batch, times(300.0))
    assert (issue.issue_type, issue.severity) == (IssueType.EXPLODING, HIGH)
    (issue,) = gf.GradientFlowAnalyzer(net(), vanishing_threshold=1e-6).analyze(batch, times(2e-6))
    assert (issue.issue_type, issue.severity) == (IssueType.VANISHING, HIGH)


def test_the_signature_shows_the_documented_numbers_and_attributes_are_plain():
    default = inspect.signature(gf.GradientFlowAnalyzer).parameters["vanishing_threshold"].default
    assert default == 1e-6
    assert repr(default) == "1e-06"
    assert type(gf.GradientFlowAnalyzer(net()).vanishing_threshold) is float
    analyzer = gf.RecurrentAnalyzer(nn.RNN(3, 4), dead_threshold=0.9)
    assert type(analyzer.optimal_radius) is float
    assert analyzer.passed == ("dead_threshold",)


class Branches(nn.Module):
    """Two layers side by side, one of them enlarged; with or without layers around them."""

    def __init__(self, around):
        super().__init__()
        self.body, self.branch = nn.Linear(16, 16), nn.Linear(16, 16)
        self.first, self.last = (nn.Linear(16, 16), nn.Linear(16, 4)) if around else (None, None)

    def forward(self, x):
        x = x if self.first is None else torch.relu(self.first(x))
        x = self.body(x) + 1e4 * self.branch(x)
        return x if self.last is None else self.last(x)


@pytest.mark.parametrize("around", [False, True])
def test_an_enlarged_branch_is_named(around):
    issues = gf.GradientFlowAnalyzer(Branches(around)).analyze(batch, lambda output: output.square().mean())
    assert {issue.layer for issue in of_type(issues, IssueType.EXPLODING)} == {"branch"}


def test_settings_of_the_special_analyzers_are_known_by_being_passed():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.RNN(8, 32, batch_first=True), nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    def radius(**settings):
        issues, _ = gf.RecurrentAnalyzer(Reader(), **settings).analyze(lambda: torch.randn(64, 20, 8), times(1.0))
        # What says the same of the memory takes in a remark on the radius.
        every = [each for issue in issues for each in (issue, *issue.consequences)]
        return [issue.severity for issue in of_type(every, IssueType.SPECTRAL_RADIUS)]

    assert radius() == [LOW]
    assert radius(optimal_radius=0.9) == [HIGH]


# ---- dead units -----------------------------------------------------------------------------------------------------


class PartlyDead(nn.Module):
    def __init__(self, functional):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(16, 100), nn.ReLU(), nn.Linear(100, 4)
        self.functional = functional
        with torch.no_grad():
            self.fc1.bias[:95] = -100.0

    def forward(self, x):
        x = self.fc1(x)
        return self.fc2(torch.relu(x) if self.functional else self.act(x))


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("rows", [8, 64])
def test_units_that_are_dead_at_every_step(functional, rows):
    issues = gf.GradientFlowAnalyzer(PartlyDead(functional)).analyze(
        lambda: torch.randn(rows, 16), lambda output: F.cross_entropy(output, LABELS[:rows])
    )
    assert ("DEAD", HIGH, "fc1") in told(issues)


def test_outputs_that_the_loss_never_uses_are_a_remark():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 100))
    issues = gf.GradientFlowAnalyzer(model).analyze(batch, lambda output: output[:, :4].square().mean())
    assert told(of_type(issues, IssueType.DEAD)) == [("DEAD", LOW, "2")]


def words(rows=64, vocabulary=2000):
    """Bags of few words, as a wide vector of counts."""
    return torch.zeros(rows, vocabulary).scatter_(1, torch.randint(vocabulary, (rows, 2)), 1.0)


def pruned():
    model = net()
    prune.random_unstructured(model[2], "weight", 0.95)
    return model


SPARSE = {
    "bag of words": (lambda: nn.Sequential(nn.Linear(2000, 32), nn.ReLU(), nn.Linear(32, 4)), words),
    "pruned": (pruned, batch),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(16, 100), nn.ReLU(), nn.Dropout(0.95), nn.Linear(100, 4)),
        batch,
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(5000, 16), nn.Flatten(), nn.Linear(64, 4)),
        lambda: torch.randint(5000, (64, 4)),
    ),
}


@pytest.mark.parametrize("name", SPARSE)
def test_what_is_sparse_by_design_is_not_dead(name):
    make, inputs = SPARSE[name]
    assert of_type(gf.GradientFlowAnalyzer(make()).analyze(inputs, times(1.0)), IssueType.DEAD) == []


class Experts(nn.Module):
    """Only two of the experts get work; the others are called with no rows, or not at all."""

    def __init__(self, call_all):
        super().__init__()
        self.call_all = call_all
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(6))

    def forward(self, x):
        where = torch.arange(len(x)) % 2
        out = torch.zeros(len(x), 4)
        for number, expert in enumerate(self.experts if self.call_all else self.experts[:2]):
            out = out.index_put((torch.nonzero(where == number).squeeze(1),), expert(x[where == number]))
        return out


@pytest.mark.parametrize("call_all", [False, True])
def test_idle_experts_are_not_dead(call_all):
    assert of_type(gf.GradientFlowAnalyzer(Experts(call_all)).analyze(batch, times(1.0)), IssueType.DEAD) == []
