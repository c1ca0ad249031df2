"""How far a step moved weights: weights that NumPy reads in place, and all others, against fp64."""

import pytest
import torch
from torch import nn

from gradient_flow.table import kernels
from gradient_flow.table.updates import SAMPLE, WeightSample, sample_weights


def mixed(parameters):
    return [*parameters, ("half", nn.Parameter(torch.randn(5).to(torch.bfloat16)))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("others", [list, mixed], ids=["in place", "by torch"])
def test_ratios_are_those_of_the_sampled_elements(dtype, others):
    torch.manual_seed(0)
    named = [
        ("small", nn.Parameter(torch.randn(7, 9, dtype=dtype))),
        ("large", nn.Parameter(torch.randn(80, 64, dtype=dtype))),
    ]
    parameters = others(named)
    before = {name: p.detach().double().reshape(-1) for name, p in named}
    before = {name: flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].clone() for name, flat in before.items()}
    sample = WeightSample(parameters)
    with torch.no_grad():
        for _, p in parameters:
            p.add_(0.01 * torch.randn_like(p))
    found = sample.ratios()
    for name, p in named:
        flat = p.detach().double().reshape(-1)
        moved = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE] - before[name]
        assert found[name] == pytest.approx(float(moved.norm() / before[name].norm()), rel=1e-5)


def test_weights_that_become_of_another_type_within_the_step():
    layer = nn.Linear(4, 4)
    sample = WeightSample(list(layer.named_parameters()))
    layer.double()
    assert sample.ratios() == {"weight": 0.0, "bias": 0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.skipif(not kernels.NATIVE, reason="the C kernel was not built")
def test_the_kernel_takes_the_same_elements_as_a_slice(dtype):
    shapes = ((5,), (SAMPLE,), (SAMPLE + 1,), (2 * SAMPLE - 1,), (2 * SAMPLE,), (300, 77), (1,), (0,), ())
    weights = [torch.randn(shape, dtype=dtype) for shape in shapes]
    expected = sample_weights(weights)
    found, sizes = kernels.native.spaced_elements(weights, SAMPLE)
    assert sizes == [len(each) for each in expected]
    assert torch.equal(torch.from_numpy(found.copy()), torch.cat(expected))


@pytest.mark.skipif(not kernels.NATIVE, reason="the C kernel was not built")
def test_of_tensors_of_several_kinds_it_takes_none():
    for given in ([torch.ones(3), torch.ones(3).double()], [torch.ones(3).half()], [torch.ones(3, 4).t()], []):
        assert kernels.native.spaced_elements(given, SAMPLE) is None


def test_what_is_left_for_later_is_what_is_measured_at_once():
    weights = [("a", torch.randn(3000)), ("b", torch.randn(7))]
    first, second = WeightSample(weights), WeightSample(weights)
    for _, weight in weights:
        weight.mul_(1.01)
    later = first.moved_later()
    expected = second.ratios()
    for _, weight in weights:
        weight.zero_()
    assert later().ratios() == expected
