"""Being sure is an issue only where it is not earned."""

import pytest
import torch
from test_treatments import patient_of
from torch import nn

import gradient_flow as gf
from gradient_flow.cures.certainty import _entropy, too_sure


def policy_task(actions=6):
    """The pay of an action is its share of a softmax over the state's codes; loss is what is not earned."""
    generator = torch.Generator().manual_seed(3)
    codes, pay = torch.randn(actions, 8, generator=generator), torch.zeros(1)

    def input_fn():
        nonlocal pay
        x = torch.randn(32, 8, generator=generator)
        pay = (4 * x @ codes.T).softmax(dim=1)
        return x

    return codes, input_fn, lambda logits: 1 - (logits.softmax(dim=-1) * pay).sum(dim=1).mean()


def policy(scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 6))
    with torch.no_grad():
        model[2].weight.mul_(scale)
    return model


def test_entropy_is_a_share_of_the_largest_and_masks_do_not_count():
    even = torch.zeros(3, 4)
    assert _entropy(even, -1) == pytest.approx(1)
    even[:, 2:] = -1e9
    assert _entropy(even, -1) == pytest.approx(1)
    assert _entropy(torch.tensor([[50.0, 0.0]]), 1) == pytest.approx(0, abs=1e-9)
    p = torch.tensor([[0.9, 0.1]]).double()
    assert _entropy(p.log(), 1) == pytest.approx(float(-(p * p.log()).sum() / torch.log(torch.tensor(2.0))))


def test_a_policy_that_is_sure_before_it_has_learnt_is_an_issue():
    codes, *task = policy_task()
    wrong = nn.Linear(8, 6, bias=False)
    with torch.no_grad():
        wrong.weight.copy_(-50 * codes)
    issue = too_sure(patient_of(wrong, data=task))
    assert issue.issue_type is gf.IssueType.EXPLORATION
    assert issue.evidence["entropy"] < 0.1


def test_one_that_is_not_sure_or_that_is_right_is_none():
    codes, *task = policy_task()
    assert too_sure(patient_of(policy(), data=task)) is None
    knows = nn.Linear(8, 6, bias=False)
    with torch.no_grad():
        knows.weight.copy_(50 * codes)
    assert too_sure(patient_of(knows, data=task)) is None


def test_a_loss_without_probabilities_says_nothing():
    assert too_sure(patient_of(nn.Linear(8, 1))) is None


def test_the_cure_of_a_policy_that_is_sure_lets_it_explore():
    _, *task = policy_task()
    model = policy(1000.0)
    found = gf.cure(model, *task, torch.optim.Adam(model.parameters(), lr=1e-3), steps=24)
    assert found.best.outcome == "better"
    assert found.best.issue_gone
