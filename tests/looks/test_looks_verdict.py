"""What the verdict on a watched training says of the looks it rests on."""

import pytest
import torch
from torch import nn

import gradient_flow as gf
from ways_of_training import Net, batch, loss_of, seeded, sgd


def train(model, optimizer, steps, loss=loss_of):
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, batch(step)).backward()
        optimizer.step()


@pytest.mark.parametrize(("steps", "looks", "words"), [(13, 3, "13 steps and 3 looks"), (4, 1, "4 steps and 1 look")])
def test_the_verdict_says_how_many_looks_it_rests_on(tmp_path, steps, looks, words):
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, run=tmp_path / "run", budget=1.0) as flow:
        train(model, optimizer, steps)
    live, again = flow.diagnose(), gf.diagnose(tmp_path / "run")
    assert live.looks == again.looks == looks
    assert words in str(live)
    assert str(live) == str(again)
    assert again.to_dict()["looks"] == looks


def test_without_a_look_it_says_what_is_not_judged(tmp_path):
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, run=tmp_path / "run") as flow:
        train(model, optimizer, 2)
    live = flow.diagnose()
    assert "No look inside yet: bottlenecks, dead units, attention and recurrence are not judged." in live.message
    assert gf.diagnose(tmp_path / "run").message == live.message


def test_where_looks_are_switched_off_nothing_is_said_of_them():
    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, looks=False) as flow:
        train(model, optimizer, 4)
    assert "look" not in flow.diagnose().message


def test_looks_that_end_early_are_told_of_with_the_reason(tmp_path):
    model = seeded(Net)
    optimizer = sgd(model)
    compiled = torch.compile(model, backend="eager")
    with gf.watch(compiled, optimizer, run=tmp_path / "run") as flow:
        train(model, optimizer, 5)
    assert "No look inside, the model is compiled: bottlenecks" in flow.diagnose().message
    assert gf.diagnose(tmp_path / "run").message == flow.diagnose().message
    assert [event.data for event in flow.run.events if event.kind == "looks_ended"] == [
        {"reason": "the model is compiled."}
    ]


def test_an_issue_dates_from_the_first_look_that_shows_it():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh(), nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 8)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gf.watch(model, optimizer, looks=[7, 20, 40], budget=1.0) as flow:
        for _ in range(45):
            optimizer.zero_grad()
            x = torch.randn(32, 16)
            (model(x) - x[:, :8]).square().mean().backward()
            optimizer.step()
    (issue,) = (issue for issue in flow.diagnose() if issue.issue_type is gf.IssueType.BOTTLENECK)
    assert (issue.layer, issue.step) == ("2", 7)


def test_the_summary_of_a_script_tells_of_looks(tmp_path):
    from gradient_flow.flow.script import _looks

    model = seeded(Net)
    optimizer = sgd(model)
    with gf.watch(model, optimizer, budget=1.0) as flow:
        train(model, optimizer, 30)
    (line,) = _looks(flow)
    assert line.startswith(f"  looks inside: {flow.looks.taken} (the first 3 took ")
