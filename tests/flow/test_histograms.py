"""Histograms of exponents in looks: what is recorded, when, and what a reader gets back."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import gradient_flow as gf
from gradient_flow.table.exponents import exponent_counts


def trained(steps, **settings):
    """A watched training, and the gradients of each step as they were when the optimizer got them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = {}
    with gf.watch(model, optimizer, looks=False, layers_every=1, **settings) as flow:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            gradients[step] = {name: p.grad.clone() for name, p in model.named_parameters()}
            optimizer.step()
    return flow, gradients


def test_a_look_has_the_histogram_of_its_gradients(tmp_path):
    _, gradients = trained(3, run=tmp_path)
    run = gf.load_run(tmp_path)
    for step, of_step in gradients.items():
        found = run.exponents(step)
        assert list(found) == list(of_step)
        np.testing.assert_array_equal(list(found.values()), exponent_counts(list(of_step.values())))


def test_they_become_rare_as_a_run_goes_on():
    flow, _ = trained(40)
    run = flow.run
    taken = [step for step in run.table_steps if run.exponents(step)]
    assert taken == [1, 2, 3, 5, 8, 12, 18, 27]
    assert all(b >= 1.5 * a for a, b in pairwise(taken))


def test_a_damaged_histogram_is_told(tmp_path):
    trained(1, run=tmp_path)
    file = tmp_path / "run.jsonl"
    file.write_text(file.read_text().replace('"exponents":[[', '"exponents":[[-'))
    run = gf.load_run(tmp_path)
    assert run.table(1).total.finite  # the table itself is readable
    with pytest.raises(gf.RunFileError, match="`exponents`"):
        run.exponents(1)


def test_watching_with_histograms_changes_no_bit():
    weights = []
    for watched in (True, False):
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        flow = gf.watch(model, optimizer, looks=False, layers_every=1) if watched else None
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
        if flow is not None:
            flow.close()
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)
