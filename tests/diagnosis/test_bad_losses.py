"""A loss of NaN or Inf beside finite gradients: every surface names the very steps in which it was planted."""

import math

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import gradient_flow as gf
from gradient_flow.cli.main import main
from gradient_flow.diagnosis.titles import title_of
from gradient_flow.record.run import load_run
from gradient_flow.record.step_columns import StepColumns
from gradient_flow.report.data import series_data
from gradient_flow.report.events import run_events

STEPS = 60


def trained(folder, planted=(), value=math.nan, *, skips=False, micro_batches=1):
    """A regression; at planted steps a constant that is not finite is added to the loss, or the batch is bad."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gf.watch(model, optimizer, run=folder) as flow:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                x = torch.randn(32, 8)
                if skips and step in planted:
                    x[0, 0] = value
                loss = (model(x) - x.nan_to_num(0, 0, 0).sum(1, keepdim=True)).square().mean() / micro_batches
                if step in planted and not skips:
                    loss = loss + value
                loss.backward()
            if skips and not torch.isfinite(loss):
                continue
            optimizer.step()
    return flow


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize(("planted", "severity"), [((37,), "MEDIUM"), ((5, 37, 38, 59), "HIGH")])
def test_names_the_steps_of_bad_losses_live_and_from_the_file(tmp_path, planted, severity, value, micro_batches):
    flow = trained(tmp_path / "run", planted, value, micro_batches=micro_batches)
    live, read = flow.diagnose(), gf.diagnose(tmp_path / "run")
    assert live.to_dict() == read.to_dict()
    (issue,) = live
    assert (issue.code, issue.issue_type.name, issue.severity.name) == ("loss_nonfinite", "NUMERICAL", severity)
    assert (issue.step, issue.evidence["steps"]) == (planted[0], list(planted))
    assert title_of(issue) == "The loss is not finite"


def test_its_twin_with_finite_losses_is_healthy(tmp_path):
    flow = trained(tmp_path / "run")
    assert not flow.diagnose().issues
    assert load_run(tmp_path / "run").columns.bad_losses == []


def test_every_surface_marks_those_steps(tmp_path):
    planted = (20, 58)
    trained(tmp_path / "run", planted)
    run = load_run(tmp_path / "run")
    series = series_data(run, 1000)
    assert [step for step, bad in zip(series["step"], series["bad_loss"], strict=True) if bad] == list(planted)
    assert not any(series["nonfinite"])
    assert [event["step"] for event in run_events(run)[0] if event["kind"] == "nonfinite"] == list(planted)
    lines = CliRunner().invoke(main, ["tail", str(tmp_path / "run")]).output.splitlines()
    assert [line.split()[1] for line in lines if "loss NaN/Inf" in line] == ["58"]  # of the last ten steps
    assert "×" in CliRunner().invoke(main, ["tail", "--once", str(tmp_path / "run")]).output


def test_a_step_that_the_loop_skips_is_a_remark_and_often_more(tmp_path):
    once = trained(tmp_path / "once", (30,), skips=True).diagnose()
    assert once.healthy
    assert [(issue.code, issue.severity.name, issue.step) for issue in once] == [("loss_nonfinite", "LOW", 30)]
    often = trained(tmp_path / "often", (10, 20, 30), skips=True).diagnose()
    assert [(issue.severity.name, issue.evidence["steps"]) for issue in often] == [("MEDIUM", [10, 19, 28])]
    run = load_run(tmp_path / "often")
    assert series_data(run, 1000)["skipped"] == [int(step in (10, 19, 28)) for step in range(1, STEPS - 2)]
    assert [event["step"] for event in run_events(run)[0] if event["kind"] == "skip"] == [10, 19, 28]


def test_a_loss_that_nobody_knows_is_not_a_bad_one(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gf.watch(model, optimizer, run=tmp_path / "run") as flow:
        for step in range(40):
            output = model(torch.randn(16, 4))
            optimizer.zero_grad()
            if step % 2:  # a pass from several numbers has no loss
                output.backward(torch.ones_like(output))
            else:
                output.square().mean().backward()
            optimizer.step()
    assert load_run(tmp_path / "run").columns.bad_losses == []
    assert all(issue.code != "loss_nonfinite" for issue in flow.diagnose())


def test_steps_done_again_after_a_resume_are_forgotten():
    columns = StepColumns()
    columns.extend([{"step": step, "norm": 1.0, "loss": None if step in (3, 8) else 1.0} for step in range(1, 10)])
    assert columns.bad_losses == [3, 8]
    columns.keep_before(5)
    assert columns.bad_losses == [3]
