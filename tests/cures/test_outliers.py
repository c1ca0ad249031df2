"""Samples in another unit, steps that spike, outputs of the wrong size."""

import math

import pytest
import torch
from sick_models import batches, mlp
from test_treatments import heals, patient_of, proposed, sgd
from torch import nn

from gradient_flow.cures.registry import do
from gradient_flow.diagnosis.treatment import Treatment


def another_unit(factor=300.0):
    """One sample of each batch is in another unit."""
    input_fn, loss_fn = batches()

    def given():
        x = input_fn()
        x[3] *= factor
        return x

    return given, loss_fn


def test_samples_of_another_unit_are_scaled_to_the_usual_size():
    treatment = heals(mlp(), "level_samples", data=another_unit(), factor=0.1, fresh=False)
    assert treatment.settings["restore"] is False
    assert proposed(patient_of(mlp()), "level_samples") == []


@pytest.mark.parametrize("restore", [False, True])
def test_only_samples_beyond_the_limit_are_changed(restore):
    model, x = nn.Linear(8, 2, bias=False), torch.randn(5, 8)
    x[2] *= 1000
    wanted = model(x).detach()
    do(Treatment("level_samples", {"usual": 1.0, "limit": 10.0, "restore": restore}), model, sgd(model, 1.0))
    size = float(x[2].square().mean().sqrt())
    wanted[2] /= 1.0 if restore else size  # a linear map: what is scaled down and back is as it was
    torch.testing.assert_close(model(x).detach(), wanted)


def test_steps_with_a_spike_change_nothing():
    model = nn.Linear(2, 1, bias=False)
    optimizer = sgd(model, 1.0)
    do(Treatment("skip_spikes", {"norm": 1.0}), model, optimizer)
    before = model.weight.detach().clone()
    for gradient, moved in ((0.3, True), (3.0, False), (math.nan, False), (0.3, True)):
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.step()
        assert bool((model.weight != before).any()) is moved
        before = model.weight.detach().clone()


class Two(nn.Module):
    """Returns a mean and a deviation."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.deviation = nn.Linear(8, 1), nn.Parameter(torch.tensor([[deviation]]))

    def forward(self, x):
        return {"mean": self.mean(x), "deviation": self.deviation.expand(len(x), 1)}


def test_an_output_far_from_the_usual_size_is_scaled_and_the_other_is_not():
    input_fn, loss_fn = batches()
    data = (input_fn, lambda y: loss_fn(y["mean"]) + (y["deviation"] - 0.5).square().mean())
    treatment = heals(Two(500.0), "scale_outputs", data=data, factor=0.01, fresh=False)
    assert treatment.settings["factors"] == {"1": 0.002}
    assert proposed(patient_of(Two(1.0), data=data), "scale_outputs") == []
