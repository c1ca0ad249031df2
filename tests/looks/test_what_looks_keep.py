"""Which looks a budget never drops, and what stays told of a training that has done its work."""

import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.diagnosis.issue import IssueSeverity, IssueType
from gradient_flow.looks.schedule import Schedule


def trained(model, steps, scale=1.0, **settings):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    centres = 3 * torch.randn(3, 4)
    with gf.watch(model, optimizer, **settings) as flow:
        for _ in range(steps):
            y = torch.randint(3, (32,))
            optimizer.zero_grad()
            F.cross_entropy(model(scale * (centres[y] + 0.1 * torch.randn(32, 4))), y).backward()
            optimizer.step()
    return flow


def looked_at(flow):
    return [event.step for event in flow.run.events if event.kind == "looked" and event.data["because"] == "schedule"]


def test_a_small_fast_model_is_seen_after_its_first_steps_on_any_machine():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    assert looked_at(trained(model, 60, budget=1e-12)) == [3, 6, 13, 51]
    assert looked_at(trained(model, 60, budget=1e-12, looks=10)) == [10, 20, 30]


def test_a_kept_step_that_was_passed_over_is_kept_at_the_next_one():
    assert Schedule().is_kept(50, 51)
    assert Schedule().is_kept(40, 60)
    assert not Schedule().is_kept(51, 60)
    assert not Schedule([51]).is_kept(50, 51)


def test_a_layer_that_never_worked_is_told_of_although_the_task_is_solved():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    flow = trained(model, 40, scale=1e3)
    assert flow.run.columns["loss"][-1] < 0.1 * flow.run.columns["loss"][0]
    found = [issue for issue in flow.diagnose() if issue.issue_type is IssueType.SATURATION]
    assert [(issue.layer, issue.severity) for issue in found] == [("0", IssueSeverity.CRITICAL)]
