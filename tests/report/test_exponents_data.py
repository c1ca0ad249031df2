"""The histograms of exponents that a page has are those of the run file."""

import base64

import numpy as np
import pytest
import torch

import gradient_flow as gf
from gradient_flow.report import exponents
from gradient_flow.report.data import page_data
from gradient_flow.report.exponents import exponents_data
from gradient_flow.table.exponents import BINS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exponents") / "run"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gf.watch(model, optimizer, run=folder, layers_every=1, looks=False, describe=False):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
    return gf.load_run(folder)


def unpacked(data, tensors):
    shares = np.frombuffer(base64.b64decode(data["data"]), np.uint8)
    whole = np.zeros((tensors, len(data["step"]), BINS))
    whole[:, :, data["first"] : data["first"] + data["bins"]] = shares.reshape(tensors, len(data["step"]), data["bins"])
    return whole / 255


def test_shares_are_those_of_the_file(run):
    data = exponents_data(run)
    assert data["step"] == [table.step for table in run.tables if run.exponents(table.step)]
    assert len(data["step"]) > 2
    shares = unpacked(data, len(run.tensor_names))
    for at, step in enumerate(data["step"]):
        for name, counts in run.exponents(step).items():
            expected = counts / max(1, counts.sum())
            found = shares[run.tensor_names.index(name), at]
            assert np.abs(found - expected).max() <= 1 / 255
            assert ((found > 0) == (counts > 0)).all()


def test_a_page_has_them_within_bounds(run, monkeypatch):
    assert page_data(run)["layers"]["exponents"] == exponents_data(run)
    monkeypatch.setattr(exponents, "MOST_LOOKS", 2)
    steps = exponents_data(run)["step"]
    assert len(steps) == 2
    monkeypatch.setattr(exponents, "MOST_BYTES", 1)
    assert exponents_data(run) is None


def test_in_a_longer_run_they_are_found_by_their_schedule(run, monkeypatch):
    every = exponents_data(run)
    monkeypatch.setattr(exponents, "_ALL", 0)
    assert exponents_data(run) == every
