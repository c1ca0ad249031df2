"""Training that goes on in evaluation mode is found at the very step, also where no look is taken."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradient_flow as gf
from gradient_flow.record.event import MODE, MOST_MODES
from gradient_flow.record.run import load_run


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(216, 4)
    )


def trained(model, folder, before_step, steps=48, optimizer=None, **settings):
    """Cross entropy on patterns with noise; `before_step(step, x)` runs before the forward of each step."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    patterns = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(2)
    with gf.watch(model, optimizer, run=folder, **settings) as flow:
        for step in range(1, steps + 1):
            labels = torch.randint(4, (16,), generator=draw)
            x = patterns[labels] + torch.randn(16, 1, 8, 8, generator=draw)
            before_step(step, x)
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    return flow


def found(flow):
    return [(issue.step, issue.layer) for issue in flow.diagnose() if issue.code == "evaluation_mode"]


# Looks at steps 2 and 3 alone stand for a budget that allows no more; 210 is among steps that are noted, not recorded.
@pytest.mark.parametrize(("since", "steps"), [(1, 48), (17, 48), (210, 400)])
def test_finds_the_step_from_which_on_the_model_is_in_evaluation_mode(tmp_path, since, steps):
    model = network()
    flow = trained(
        model, tmp_path / "run", lambda step, _: model.eval() if step == since else None, steps, looks=[2, 3]
    )
    assert found(flow) == [(since, "model")]
    (issue,) = (issue for issue in flow.diagnose() if issue.code == "evaluation_mode")
    assert issue.evidence["modules"] == ["1", "4"]
    assert gf.diagnose(tmp_path / "run").to_dict() == flow.diagnose().to_dict()


def test_a_model_that_is_switched_back_after_each_validation_is_healthy(tmp_path):
    model = network()

    def validate(step, x):
        if step % 16 == 0:
            model.eval()
            model(x)  # with gradients, as who forgets `no_grad` does
            model.train()

    flow = trained(model, tmp_path / "run", validate)
    assert not found(flow)
    assert not [event for event in load_run(tmp_path / "run").events if event.kind == MODE]


def test_a_loop_that_computes_attacks_in_evaluation_mode_is_healthy(tmp_path):
    model = network()

    def attack(_, x):
        model.eval()
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().mean(), x)
        x.detach_().add_(0.01 * gradient.sign())
        model.train()

    assert not found(trained(model, tmp_path / "run", attack, looks=[2, 3]))


def test_a_model_without_dropout_and_batch_norms_works_the_same_in_both_modes(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 4)).eval()
    assert not found(trained(model, tmp_path / "run", lambda *_: None))


def test_a_loop_that_goes_to_and_fro_is_asked_no_more_after_a_while(tmp_path):
    model = network()
    flow = trained(model, tmp_path / "run", lambda step, _: model.train(step % 2 == 0), 120, looks=[2, 3])
    assert not found(flow)
    assert sum(event.kind == MODE for event in load_run(tmp_path / "run").events) == MOST_MODES


def test_back_in_training_mode_is_told(tmp_path):
    model = network()
    flow = trained(model, tmp_path / "run", lambda step, _: model.train(not 10 < step < 15), looks=[2, 3])
    assert not found(flow)
    told = [(event.step, event.data["training"]) for event in load_run(tmp_path / "run").events if event.kind == MODE]
    assert told == [(11, False), (15, True)]


def test_numbers_are_those_of_the_training_without_us(tmp_path):
    """Reading the mode changes nothing: the same weights, bit by bit."""
    weights = []
    for watched in (True, False):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        torch.manual_seed(3)
        switch = lambda step, _, model=model: model.eval() if step == 20 else None  # noqa: E731
        settings = {} if watched else {"looks": False, "batches": False}
        trained(model, tmp_path / str(watched), switch, optimizer=optimizer, **settings)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
