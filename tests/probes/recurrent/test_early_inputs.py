"""Whether the task reaches back further than the net remembers is measured, not only said by the user."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.probes.recurrent.early_inputs import EarlyDependence
from gradient_flow.probes.recurrent.rules import RecurrentDynamics
from gradient_flow.record.plain import from_plain, to_plain

STEPS = 30


class Reader(nn.Module):
    def __init__(self, kind, words):
        super().__init__()
        self.embed = nn.Embedding(10, 8) if words else nn.Identity()
        self.rnn, self.head = kind(8, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0][:, -1])


TARGETS = {
    "first": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "mean": lambda x: x.sum(dim=1),
    "nothing": lambda x: torch.randint(4, (len(x),)),
}


def analysed(target, kind=nn.LSTM, words=False, **more):
    """The issues of a fresh net on a task that asks for the given part of its input."""
    torch.manual_seed(0)
    model, labels = Reader(kind, words), None

    def batch():
        nonlocal labels
        x = torch.randint(10, (64, STEPS)) if words else torch.randn(64, STEPS, 8)
        asked = TARGETS[target](x)
        labels = asked % 4 if asked.dim() == 1 else asked[:, :4].argmax(dim=-1)
        return x

    return gf.RecurrentAnalyzer(model).analyze(batch, lambda output: F.cross_entropy(output, labels), **more)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.RNN])
@pytest.mark.parametrize("words", [False, True])
def test_a_net_that_forgets_what_the_loss_asks_for_is_more_than_a_remark(kind, words):
    issues, dynamics = analysed("first", kind, words)
    assert dynamics.early_inputs.needed
    assert dynamics.early_inputs.lag == STEPS
    worst = max(issues, key=lambda issue: issue.severity)
    assert worst.severity == IssueSeverity.HIGH
    assert worst.issue_type in (IssueType.SPECTRAL_RADIUS, IssueType.SHORT_MEMORY)
    assert "The loss depends on inputs 30 steps back" in worst.message


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("target", ["last", "mean", "nothing"])
def test_a_short_memory_is_a_remark_where_the_loss_asks_for_no_more(target, words):
    issues, dynamics = analysed(target, words=words)
    assert not dynamics.early_inputs.needed
    assert max(issue.severity for issue in issues) == IssueSeverity.LOW


def test_a_lag_that_the_user_gives_counts_instead():
    issues, _ = analysed("first", required_lag=4)
    assert not any("steps back" in issue.message for issue in issues)


def test_waves_tell_by_their_end_what_comes_next():
    torch.manual_seed(0)
    model, labels = Reader(nn.RNN, words=False), None

    def batch():
        nonlocal labels
        phase = 6.28 * torch.rand(64, 1, 8)
        labels = torch.sin(0.3 * STEPS + phase[:, 0, :4]).argmax(dim=-1)
        return torch.sin(0.3 * torch.arange(STEPS)[None, :, None] + phase)

    issues, dynamics = gf.RecurrentAnalyzer(model).analyze(batch, lambda output: F.cross_entropy(output, labels))
    assert not dynamics.early_inputs.needed
    assert max(issue.severity for issue in issues) == IssueSeverity.LOW


def test_what_was_measured_survives_the_file():
    _, dynamics = analysed("first")
    assert from_plain(RecurrentDynamics, to_plain(dynamics)).early_inputs == dynamics.early_inputs


def test_the_same_batch_again_is_no_more_evidence_and_no_hook_remains():
    model, early = Reader(nn.RNN, words=False), EarlyDependence()
    x = torch.randn(70, STEPS, 8)
    early.attach(model)
    for _ in range(3):
        model(x).square().mean().backward()
        early.add(x)
    pickle.loads(pickle.dumps(model))  # the hook goes along and does nothing
    early.detach()
    assert not model._forward_hooks
    once = EarlyDependence()
    once.attach(model)
    model(x).square().mean().backward()
    once.add(x)
    once.detach()
    assert early.result() == once.result()
