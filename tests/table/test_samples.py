"""Statistics of a few rows, against closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gradient_flow.table import measure, samples
from gradient_flow.table.sums import Sums


@pytest.mark.parametrize("shape", [(5,), (300, 7), (9, 11, 700), (4, 3, 8, 8), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("second", [False, True])
def test_samples_are_bounded_and_copies(shape, second):
    tensor = torch.randn(shape)
    rows = samples.sample(tensor, second and len(shape) > 2)
    assert rows.shape[0] * rows.shape[1] <= 2 * samples.ROWS
    assert rows.shape[2] <= samples.UNITS
    assert rows.numel() > 0
    kept = rows.clone()
    tensor.zero_()
    assert torch.equal(rows, kept)


@pytest.mark.parametrize("shape", [(5,), (300, 7), (9, 11, 700), (4, 3, 8, 8), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("change", [lambda t: t, torch.Tensor.bfloat16, lambda t: t.mT if t.dim() > 1 else t])
@pytest.mark.parametrize("most", [4, samples.ROWS])
def test_rows_on_the_host_are_those_of_the_sample(shape, second, change, most):
    tensor = change(torch.randn(shape))
    second = second and len(shape) > 2
    found, expected = samples.rows_on_host(tensor, second, most), samples.sample(tensor, second, most)
    assert torch.equal(torch.from_numpy(found.copy()), expected)
    assert samples.never_positive(found).tolist() == samples.never_positive(expected).tolist()
    assert samples.any_nonzero(found).tolist() == samples.any_nonzero(expected).tolist()


def test_what_is_no_number_is_neither_silent_nor_zero():
    rows = torch.full((2, 2, 1), math.nan)
    for each in (rows, rows.numpy()):
        assert not samples.never_positive(each).any()
        assert samples.any_nonzero(each).all()


def test_units_of_convolutions_come_second():
    assert samples.units_come_second(nn.Conv2d(3, 4, 3), (2, 4, 8, 8))
    assert not samples.units_come_second(nn.Linear(3, 4), (2, 5, 4))
    assert samples.sample(torch.randn(2, 4, 8, 8), True).shape[2] == 4


def test_a_unit_that_never_fires_is_seen():
    rows = torch.rand(16, 2, 3)
    rows[..., 1] = 0.0
    assert samples.any_nonzero(rows).tolist() == [True, False, True]
    assert samples.never_positive(rows).tolist() == [False, True, False]


def test_samples_without_gradient():
    rows = torch.ones(8, 2, 3)
    rows[:2] = 0
    assert samples.empty_samples(rows) == pytest.approx(0.25)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_of_equal_singular_values(rank, scale):
    left, right = torch.linalg.qr(torch.randn(40, rank))[0], torch.linalg.qr(torch.randn(20, rank))[0]
    assert samples.effective_rank(scale * left @ right.T, centred=False) == pytest.approx(rank, rel=1e-4)


def test_effective_rank_of_nothing_is_not_a_number():
    assert math.isnan(samples.effective_rank(torch.zeros(4, 3), centred=False))
    assert math.isnan(samples.effective_rank(torch.full((4, 3), float("nan")), centred=True))


def test_equal_rows():
    assert samples.equal_rows(torch.full((4, 3), 0.1))
    assert not samples.equal_rows(torch.zeros(4, 3))
    assert not samples.equal_rows(torch.randn(4, 3))
    nearly = torch.full((4, 3), 0.1)
    nearly[3, 2] = 0.2
    assert not samples.equal_rows(nearly)


def test_cosine():
    one = [np.array([1.0, 0.0]), np.array([2.0])]
    assert samples.cosine(one, one) == pytest.approx(1.0)
    assert samples.cosine(one, [-each for each in one]) == pytest.approx(-1.0)
    assert math.isnan(samples.cosine(one, [0 * each for each in one]))


def test_a_quick_norm_is_the_norm_where_the_c_kernel_reads(monkeypatch):
    tensors = [torch.randn(3000, 7), torch.randn(5)]
    exact = math.hypot(*(float(tensor.double().norm()) for tensor in tensors))
    assert samples.quick_norm(tensors) == pytest.approx(exact, rel=1e-6)
    assert samples.quick_norm([]) == 0
    assert math.isnan(samples.quick_norm([*tensors, torch.tensor([torch.nan])]))
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "torch")
    assert samples.quick_norm(tensors) == samples.estimated_norm(tensors) != pytest.approx(exact, rel=1e-6)


def test_ranks_of_many_matrices_are_those_of_each():
    torch.manual_seed(0)
    many = [torch.randn(16, 1, 8), torch.randn(16, 1, 8) * 1e-30, torch.randn(4, 3, 20), torch.zeros(16, 1, 8)]
    many += [torch.full((16, 1, 8), math.nan), torch.empty(0, 1, 8), torch.randn(16, 1, 2) @ torch.randn(2, 8)]
    for centred in (False, True):
        for rank, rows in zip(samples.effective_ranks([(each, centred) for each in many]), many, strict=True):
            flat = rows.reshape(-1, rows.shape[-1]).double()
            flat = flat - flat.mean(dim=0) if centred else flat
            if not flat.numel() or not bool(flat.abs().sum() > 0):
                assert math.isnan(rank)
                continue
            shares = torch.linalg.svdvals(flat / flat.abs().amax()).square()
            assert rank == pytest.approx(float(torch.special.entr(shares / shares.sum()).sum().exp()), rel=1e-6)


def test_the_cosine_of_what_is_not_finite_is_unknown_and_warns_of_nothing():
    finite, bad = np.ones(4), np.array([1.0, np.inf, -np.inf, np.nan])
    assert math.isnan(samples.cosine([finite, bad], [finite, finite]))


@pytest.mark.parametrize("shape", [(4, 512, 96), (4096, 64), (2, 3, 512, 64)])
def test_the_size_of_a_large_tensor_is_told_by_some_of_its_rows(shape):
    values = torch.randn(shape)
    row = samples.size_by_rows(values, units_second=False)
    assert Sums(row).rms[0] == pytest.approx(Sums(measure([values]).rows).rms[0], rel=0.05)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_rows_that_are_not_finite_do_not_tell_a_size(bad):
    values = torch.full((512, 512), bad)
    assert samples.size_by_rows(values, units_second=False) is None


def test_rows_that_differ_by_rounding_alone_are_on_no_line():
    rows = torch.randn(16).repeat(20, 1)
    rows[3, 5] = torch.nextafter(rows[3, 5], torch.tensor(math.inf))
    assert not samples.are_on_a_line(rows)
    rows[3, 5] += 0.01
    assert samples.are_on_a_line(rows)


def test_positions_of_one_plain_sample_say_nothing_of_the_others():
    colours = torch.randn(16, 1, 12, generator=torch.Generator().manual_seed(0))
    assert not samples.are_on_a_line(colours.expand(16, 36, 12))
    assert samples.are_on_a_line((colours[:1] * torch.arange(1.0, 17)[:, None, None]).expand(16, 36, 12))
