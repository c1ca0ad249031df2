"""What every step records of all gradients, in plain numbers, is what the formulas of the table give, bit for bit."""

import math

import numpy as np
import pytest
import torch

from gradient_flow.record.step import TOTALS
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.columns import EMPTY, STATISTICS, Thresholds, merge_rows, usual_statistics
from gradient_flow.table.kernels import NATIVE

RANDOM = np.random.default_rng(0)
BATCHES = {
    "usual": [RANDOM.standard_normal(size) * 10.0 ** RANDOM.uniform(-8, 8) for size in (7, 1, 300, 64)],
    "zeros": [np.zeros(5), np.zeros(3)],
    "one value": [np.full(1000, 0.1)],
    "an empty tensor": [np.empty(0), np.array([1.0, -2.0])],
    "nothing": [np.empty(0)],
    "tiny": [np.full(9, 1e-160)],
    "huge": [np.full(9, 1e160)],
    "nan": [np.array([1.0, np.nan]), np.ones(3)],
    "inf": [np.array([1.0, -np.inf]), np.ones(3)],
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_row_in_plain_numbers_is_what_the_formulas_give(name):
    with np.errstate(over="ignore"):
        row = merge_rows(measure(BATCHES[name]).rows)
    expected = {each: STATISTICS[each](row).item() for each in TOTALS}
    usual = usual_statistics(row.tolist())
    assert (usual is None) == (name in ("nothing", "huge", "nan", "inf"))
    if usual is not None:
        assert usual == expected
        assert list(usual) == list(TOTALS)


@pytest.mark.parametrize("name", BATCHES)
def test_several_statistics_at_once_are_those_asked_for_one_by_one(name):
    with np.errstate(over="ignore"):
        total = measure(BATCHES[name]).total
    together = total.several((*TOTALS, "std"))
    np.testing.assert_equal(together, [getattr(total, each) for each in (*TOTALS, "std")])


@pytest.mark.skipif(not NATIVE, reason="the C kernel is not built")
@pytest.mark.parametrize("name", BATCHES)
def test_the_kernel_merges_rows_as_numpy_does(name):
    from gradient_flow.table.kernels import native

    tensors = [torch.from_numpy(each) for each in BATCHES[name]]
    rows = native.rows_in_place(tensors, Thresholds())
    with np.errstate(over="ignore"):
        expected = merge_rows(rows())
    np.testing.assert_array_equal(np.array(rows.total()), expected)
    table = GradientTable([str(at) for at in range(len(tensors))], rows)
    assert table.ready
    np.testing.assert_array_equal(table.total._row, expected)
    np.testing.assert_array_equal(table.rows, measure(tensors).rows)


@pytest.mark.skipif(not NATIVE, reason="the C kernel is not built")
def test_many_rows_are_added_in_the_same_order():
    from gradient_flow.table.kernels import native

    tensors = [torch.from_numpy(RANDOM.standard_normal(3) * 10.0 ** RANDOM.uniform(-9, 9)) for _ in range(1000)]
    rows = native.rows_in_place(tensors, Thresholds())
    np.testing.assert_array_equal(np.array(rows.total()), merge_rows(rows()))
    assert native.rows_in_place([], Thresholds()).total() == tuple(EMPTY.tolist())


@pytest.mark.skipif(not NATIVE, reason="the C kernel is not built")
@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(4, 4).t()[:2],
        torch.ones(4).to_sparse(),
        torch.ones(4, dtype=torch.int64),
        torch.ones(4, dtype=torch.complex64),
        torch.ones(4, device="meta"),
        torch._neg_view(torch.ones(4)),
        torch.frombuffer(bytearray(17), dtype=torch.uint8)[1:].view(torch.uint8),
    ],
    ids=["strided", "sparse", "whole", "complex", "meta", "negative", "bytes"],
)
def test_what_does_not_lie_as_the_kernel_reads_it_is_left_to_others(tensor):
    from gradient_flow.table.kernels import native

    assert native.rows_in_place([torch.ones(2), tensor], Thresholds()) is None
    assert native.addresses_of([tensor]) is None


@pytest.mark.skipif(not NATIVE, reason="the C kernel is not built")
def test_a_misaligned_tensor_is_left_to_others():
    from gradient_flow.table.kernels import native

    memory = np.zeros(17, dtype=np.uint8)[1:].view(np.float32)
    assert native.rows_in_place([torch.from_numpy(memory)], Thresholds()) is None
    assert math.isclose(measure([torch.from_numpy(memory)]).total.norm, 0.0)
