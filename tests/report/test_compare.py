"""What differs between runs, in words."""

import math

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import gradient_flow as gf
from gradient_flow.cli.main import main
from recorded_runs import record


def trained(folder, optimizer_class, rate, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = optimizer_class(model.parameters(), lr=rate)
    with gf.watch(model, optimizer, run=folder, **settings) as flow:
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            flow.log(loss=loss)
            loss.backward()
            optimizer.step()
    return folder


def said(*runs):
    result = CliRunner().invoke(main, ["compare", *map(str, runs)], env={"COLUMNS": "100"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_another_optimizer_and_rate_are_named(tmp_path):
    first = trained(tmp_path / "a", torch.optim.AdamW, 1e-3)
    second = trained(tmp_path / "b", torch.optim.SGD, 10.0)
    found = gf.compare(first, second)
    assert found.differs == [["optimizer: AdamW → SGD", "lr: 0.001 → 10", "weight_decay: 0.01 → 0"]]
    assert found.facts["optimizer"] == ["AdamW", "SGD"]
    assert found.facts["lr"] == [1e-3, 10.0]
    text = said(first, second)
    assert "are the same" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["optimizer", "AdamW", "SGD"] in rows
    # Of two runs each setting is told once: the table has both values beside each other.
    assert sum("AdamW" in line for line in text.splitlines()) == 1
    assert "→" not in text


def test_of_three_runs_each_is_said_to_differ_from_the_first(tmp_path):
    first = trained(tmp_path / "a", torch.optim.AdamW, 1e-3)
    second = trained(tmp_path / "b", torch.optim.SGD, 10.0)
    third = trained(tmp_path / "c", torch.optim.AdamW, 1e-2)
    text = said(first, second, third)
    assert "optimizer: AdamW → SGD, lr: 0.001 → 10" in text
    assert "lr: 0.001 → 0.01." in text


def test_the_same_twice_is_the_same(tmp_path):
    first, second = (trained(tmp_path / name, torch.optim.SGD, 0.1) for name in "ab")
    found = gf.compare(first, second)
    assert found.differs == [[]]
    assert "Optimizer, settings, versions and number of parameters are the same." in said(first, second)


def test_a_run_that_does_not_say_what_it_was_is_not_called_the_same(tmp_path):
    first = trained(tmp_path / "a", torch.optim.SGD, 0.1, describe=False)
    second = trained(tmp_path / "b", torch.optim.SGD, 0.1)
    found = gf.compare(first, second)
    assert found.undescribed == [str(first)]
    text = said(first, second)
    assert "not record its optimizer and settings: a." in text
    assert "are the same" not in text


def test_no_layer_is_apart_before_the_first_look_at_which_it_differs(tmp_path):
    for name, at in (("a", None), ("b", 10)):
        record(tmp_path / name, steps=40, factor_from=at)
    (layers,) = gf.compare(tmp_path / "a", tmp_path / "b").layers
    looks = gf.load_run(tmp_path / "a").table_steps
    for part in layers.values():
        assert part.first_unequal == 10
        assert part.first_unequal in looks
        assert part.parts is None or part.parts >= 10
    assert "first unequal table" in said(tmp_path / "a", tmp_path / "b")


def test_the_state_of_each_run_is_shown(tmp_path):
    first = trained(tmp_path / "a", torch.optim.SGD, 0.1)

    def crash():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gf.watch(model, optimizer, run=tmp_path / "b"):
            for _ in range(5):
                model(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        crash()
    found = gf.compare(first, tmp_path / "b")
    assert [each["state"] for each in found.overview] == ["finished", "failed"]
    assert "The run failed at step 5 with ValueError: boom" in " ".join(said(first, tmp_path / "b").split())


def test_a_run_that_ended_in_nan_is_not_shown_at_its_last_finite_values(tmp_path):
    first = trained(tmp_path / "a", torch.optim.SGD, 0.1)
    second = trained(tmp_path / "b", torch.optim.SGD, 1e30)
    ours, theirs = gf.compare(first, second).overview
    assert math.isfinite(ours["norm"])
    assert math.isfinite(ours["loss"])
    assert math.isnan(theirs["norm"])
    assert math.isnan(theirs["loss"])
    row = next(line for line in said(first, second).splitlines() if line.startswith("b  "))
    assert row.split()[3:5] == ["NaN", "NaN"]


def test_it_prints_as_the_command_does(tmp_path):
    runs = [trained(tmp_path / name, torch.optim.SGD, rate) for name, rate in (("a", 0.1), ("b", 0.2))]
    printed = CliRunner().invoke(main, ["compare", *map(str, runs)], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    assert str(gf.compare(*runs)).split() == printed.split()
