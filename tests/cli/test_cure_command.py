"""`gradient-flow cure`: what it prints, what it returns, what it refuses."""

import json
import os
import sys

import pytest
from click.testing import CliRunner

from gradient_flow.cli.main import main

SETUP = """
import torch
from torch import nn

def task(model, lr):
    random = torch.Generator().manual_seed(0)
    target = torch.zeros(16, 1)

    def input_fn():
        nonlocal target
        x = torch.randn(16, 8, generator=random)
        target = x[:, :1]
        print("drawn")
        return x

    return model, input_fn, lambda y: (y - target).square().mean(), torch.optim.SGD(model.parameters(), lr=lr)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

def sick():
    return task(net(), 50.0)

def hopeless():
    model, input_fn, _, optimizer = task(net(), 0.1)
    return model, input_fn, lambda y: (0 * y).sum() + 1, optimizer

def broken():
    return nn.Linear(2, 1), lambda: torch.randn(3, 5), lambda y: y.mean()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    name = f"project_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(SETUP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def command(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_cure_names_what_helped_and_the_lines_to_write(project):
    found = command("cure", f"{project}:sick", "--steps", "8")
    assert found.exit_code == 0, found.output
    assert "Best of " in found.output
    assert "In your script:" in found.output
    assert "Tried: loss" in found.output


def test_cure_for_machines(project):
    found = command("cure", f"{project}.py:sick", "--steps", "8", "--json")
    plain = json.loads(found.stdout)
    assert plain["target"] == f"{project}.py:sick"
    assert plain["best"] in [trial["name"] for trial in plain["trials"]]
    assert plain["batches"] == 16


def test_a_sick_model_that_nothing_helps_ends_with_status_1(project):
    found = command("cure", f"{project}:hopeless", "--steps", "8")
    assert found.exit_code == 1, found.output
    assert "Nothing helped beyond noise" in found.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}:broken"], "mat1 and mat2 shapes"),
        (["{}:nothing"], "there is no function 'nothing'"),
        (["{}:sick", "--steps", "3"], "3 is not in the range x>=8"),
        (["{}:sick", "--budget", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_what_cannot_be_tried_is_wrong_usage(project, arguments, words):
    found = command("cure", *(each.format(project) for each in arguments))
    assert found.exit_code == 2
    assert words in found.output


def test_check_offers_it(project):
    found = command("check", f"{project}:sick", "--steps", "5")
    assert found.exit_code == 1
    assert f"gradient-flow cure {project}:sick" in found.output
