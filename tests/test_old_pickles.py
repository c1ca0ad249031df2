"""Pickles of public objects that version 0.1 wrote, before the modules moved, still load and still work."""

import base64
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradient_flow as gf

PICKLES = {
    name: base64.b64decode(text)
    for name, text in json.loads((Path(__file__).parent / "old_pickles.json").read_text()).items()
}


@pytest.mark.parametrize("name", PICKLES)
def test_an_old_pickle_gives_an_object_of_the_present_class(name):
    loaded = pickle.loads(PICKLES[name])
    assert type(loaded) is getattr(gf, name)
    assert repr(loaded)
    again = pickle.loads(pickle.dumps(loaded))
    assert type(again) is type(loaded)


def test_values_survive():
    assert pickle.loads(PICKLES["GradientTable"])["a"].norm == 5.0
    assert pickle.loads(PICKLES["Diagnosis"]).status == "dead"
    assert pickle.loads(PICKLES["GradientConfig"]).max_grad_norm == 0.5


def test_an_old_manager_goes_on_managing():
    manager = pickle.loads(PICKLES["GradientManager"])
    assert manager.total_steps == 1
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager.step(model, optimizer, loss=model(torch.ones(1, 1)).sum())
    assert manager.total_steps == 2
    assert manager.get_training_summary()["total_steps"] == 2


def test_old_names_are_found_only_when_asked_for_and_hide_nothing():
    code = (
        "import sys, importlib.util, gradient_flow\n"
        "assert not any('measurement' in name for name in sys.modules)\n"
        "assert importlib.util.find_spec('gradient_flow.nothing_like_this') is None\n"
        "import gradient_flow.measurement.table as old, gradient_flow.table.table as new\n"
        "assert old.GradientTable is new.GradientTable\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
