"""Histograms of exponents: every kernel against `frexp`, in launches, and through the run file."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradient_flow as gf
from gradient_flow.table import exponents
from gradient_flow.table.kernels import _native, triton_ops
from interpreter import quick_interpreter

KERNELS = ("native", "numpy", "torch", "triton")
LARGEST = float(np.finfo(np.float32).max)


def expected(gradient, scale=1.0):
    """From the definition alone, element by element."""
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    counts = [0] * exponents.BINS
    for element in gradient.detach().resolve_conj().to(wide).flatten().tolist():
        size = abs(element)
        if size == 0 or not math.isfinite(size) or (isinstance(element, complex) and not np.isfinite(element)):
            continue
        power = math.frexp(min(size, LARGEST))[1] - 1 - round(math.log2(scale))  # 2^power ≤ size < 2^(power + 1)
        if size < 2.0**-126 or power < -126:
            counts[0] += 1
        elif power < -45:
            counts[1] += 1
        else:
            counts[min(power + 47, 63)] += 1
    return counts


def counted(kernel, gradients, monkeypatch, scale=1.0):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", kernel)
    with quick_interpreter():
        found = exponents.exponent_counts(gradients, scale)
    return (found() if callable(found) else found).tolist()


HARD = (
    torch.randn(2000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-44, 37, 2000),
    torch.tensor(
        [0.0, -0.0, math.nan, math.inf, -math.inf, 2.0**-126, 2.0**-127, 2.0**-149, 2.0**-45, 65535.0, 65536.0]
    ),
    torch.tensor([]),
    torch.tensor(-3.0),
    torch.tensor([1e-320, 1e-200, -1e300, 1.0], dtype=torch.float64),
    torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)[::7],
    torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)[::7],
    torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn),
    torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2),
    torch.tensor([3 + 4j, complex(math.nan, 1), complex(1, math.inf), complex(math.inf, math.nan), 0j]),
    torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).T,
    torch.tensor([[0.1, 4.0]]).expand(3, 2),
)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_counts_what_frexp_says(kernel, monkeypatch):
    assert counted(kernel, HARD, monkeypatch) == [expected(gradient) for gradient in HARD]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [2.0**16, 2.0**-3, torch.tensor(2.0**10)], ids=["2^16", "2^-3", "a tensor"])
def test_a_loss_scale_is_taken_off(kernel, scale, monkeypatch):
    assert counted(kernel, HARD[:4], monkeypatch, scale) == [expected(each, float(scale)) for each in HARD[:4]]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60))
def test_any_bits(bits):
    gradient = torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())
    with pytest.MonkeyPatch.context() as monkeypatch:
        for kernel in ("native", "numpy", "torch"):
            assert counted(kernel, [gradient], monkeypatch) == [expected(gradient)]


def test_every_finite_element_but_zeros_is_in_one_bin():
    gradients = list(HARD)
    table = gf.measure(gradients)
    inside = exponents.exponent_counts(gradients).sum(axis=1)
    assert (
        inside.tolist() == (table.column("count") - table.column("zeros") - table.nan_count - table.inf_count).tolist()
    )


def test_borders_and_bins_say_the_same():
    bins = exponents.bins_of_fields(0)
    for field in range(1, 255):
        below = exponents.lower_border(int(bins[field]))
        above = exponents.lower_border(int(bins[field]) + 1) if bins[field] < 63 else math.inf
        assert below <= field - 127 < above
    assert _native.BIN_COUNT == exponents.BINS == len({*bins.tolist()} - {exponents.LEFT_OUT})


def test_triton_launches_once_per_dtype(monkeypatch):
    for tensors in (1, 9):
        before = triton_ops.LAUNCHES.count
        counted(
            "triton",
            [torch.ones(3, dtype=d) for d in (torch.float32, torch.float16) for _ in range(tensors)],
            monkeypatch,
        )
        assert triton_ops.LAUNCHES.count - before == 2


def test_a_file_gives_back_what_was_recorded():
    for row in ([0] * 64, [0] * 63 + [5], [1] + [0] * 63, [0, 0, 3, 0, 2**40] + [0] * 59):
        assert exponents.spread_out(exponents.trimmed(np.array(row))).tolist() == row
    assert exponents.trimmed(np.array([0] * 40 + [2, 0, 1] + [0] * 21)) == [40, 2, 0, 1]


@pytest.mark.parametrize("damaged", [[60, 1, 2, 3, 4, 5], [-1, 2], [1.5], "abc", None, [3, True]])
def test_damage_is_refused(damaged):
    with pytest.raises(ValueError, match=r"bins|counts"):
        exponents.spread_out(damaged)
