"""Some elements of many tensors: the same ones each time, exact, from all over a tensor, by either way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradient_flow.table import kernels
from gradient_flow.table.elements import places_of, some_elements

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HARD = (0.0, -0.0, 1.5, -2.25, float("inf"), -float("inf"), float("nan"), 1e-45, -6e-8, 3e-41, 65504.0, 1e-310)


@pytest.fixture(params=["native", "torch"])
def kernel(request, monkeypatch):
    if request.param == "native" and not kernels.NATIVE:
        pytest.skip("the C kernel was not built")
    monkeypatch.setenv(kernels.ENVIRONMENT_VARIABLE, "torch" if request.param == "torch" else "")
    return request.param


@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_of_a_small_tensor_is_there_exactly(kernel, dtype):
    tensor = torch.tensor(HARD, dtype=torch.float64).to(dtype)
    found = some_elements([tensor, tensor[:0], tensor[2:3]], most=32, run=4)
    assert found.counts == [len(HARD), 0, 1]
    np.testing.assert_array_equal(found.parts()[0], tensor.double().numpy())
    assert found.parts()[2].tolist() == [1.5]


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormal numbers")
def test_subnormal_numbers_stay_what_they_are_where_the_caller_flushes_them(kernel):
    tiny = torch.tensor([1e-45, 3e-41], dtype=torch.float32)
    expected = tiny.double().tolist()
    torch.set_flush_denormal(True)
    try:
        found = some_elements([tiny], most=4).values.tolist()
    finally:
        torch.set_flush_denormal(False)
    if kernel == "native":  # torch flushes in its own conversions
        assert found == expected


@pytest.mark.parametrize("shape", [(256, 256), (1000, 7), (4096,), (3, 5, 999)])
@pytest.mark.parametrize("run", [1, 4])
def test_they_come_from_all_over_a_tensor(kernel, shape, run):
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    (found,) = some_elements([index], most=64, run=run).parts()
    assert found.tolist() == places_of(index.numel(), 64, run).tolist()  # the same by either kernel
    at = np.sort(found).astype(int)
    assert len(set(at.tolist())) == 64
    stretches = 64 // run
    assert len(set((at // (index.numel() // stretches)).tolist())) >= 0.9 * stretches
    if len(shape) == 2:
        assert len(set((at % shape[1]).tolist())) > min(shape[1], stretches) // 2  # not one column for all


def test_they_are_the_same_each_time(kernel):
    tensor = torch.randn(100, 100)
    first, second = some_elements([tensor], most=64), some_elements([torch.ones(3), tensor], most=64)
    np.testing.assert_array_equal(first.values, second.parts()[1])


def test_tensors_that_do_not_lie_in_order_are_read_too(kernel):
    tensor = torch.randn(40, 50)
    (found,) = some_elements([tensor.T], most=4096).parts()
    np.testing.assert_array_equal(np.sort(found), np.sort(tensor.double().flatten().numpy()))
    found = some_elements([torch.randn(3, requires_grad=True), tensor[::2, ::2]], most=8)
    assert found.counts == [3, 8]
