"""The Triton kernel in its interpreter: against the fp64 oracle, the C kernel, and in launches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_agree, assert_matches, expected, read

import gradient_flow as gf
from gradient_flow.table import kernels
from gradient_flow.table.columns import INDEX, Thresholds
from gradient_flow.table.kernels import triton_ops
from interpreter import quick_interpreter

LANES = 3 * 2.0**-24
"""Four elements are added in fp32: three roundings, each half an ulp; squares bring one more, a root takes half."""
TILE = triton_ops.NARROW.steps * triton_ops.NARROW.lanes
CHUNK = 2 * TILE
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
COMPLEX = (torch.complex64, torch.complex128)
NONFINITE = (math.nan, math.inf, -math.inf)


@pytest.fixture(scope="module", autouse=True)
def quick():
    with quick_interpreter():
        yield


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Sizes around a border are then small enough for the interpreter."""
    monkeypatch.setattr(triton_ops, "CHUNK", CHUNK)
    triton_ops._tables.clear()


def by(kernel, gradients, monkeypatch, **thresholds):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", kernel)
    return gf.measure(gradients, **thresholds)


def plain(gradient):
    dense = gradient.to(torch.complex128 if gradient.is_complex() else torch.float64)
    return dense.resolve_conj().resolve_neg().numpy()


def check(gradients, monkeypatch, **thresholds):
    """Every gradient matches the oracle, and the C kernel (fp8 and complex: what stands in for it)."""
    ours = by("triton", gradients, monkeypatch, **thresholds)
    native = by("native", gradients, monkeypatch, **thresholds)
    for name, gradient in gradients.items():
        want = expected(plain(gradient), **thresholds)
        narrow = gradient.dtype not in (torch.float64, *COMPLEX)
        assert_matches(ours[name], want, name, lanes=LANES if narrow else 0.0)
        assert_matches(native[name], want, name)
        if not narrow:
            assert_agree(read(ours[name]), read(native[name]), want, name)
    counts = [kernels.COLUMNS.index(name) for name in ("count", "parts", "zeros", "near_zero", "very_large")]
    extremes = [kernels.COLUMNS.index(name) for name in ("min", "max", "nan", "inf", "neg_inf")]
    np.testing.assert_array_equal(ours.rows[:, counts + extremes], native.rows[:, counts + extremes])


def random_gradient(dtype, size, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype in COMPLEX else torch.float64
    return (torch.randn(size, generator=generator, dtype=wide) * scale).to(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8, torch.complex64], ids=str)
def test_sizes_around_tiles_and_chunks(dtype, monkeypatch):
    sizes = [0, 1, 3, TILE - 1, TILE, TILE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5]
    gradients = {str(size): random_gradient(dtype, size, size) for size in sizes}
    check(gradients | {"a number": random_gradient(dtype, 1, 7).reshape(())}, monkeypatch)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_nan_and_inf_anywhere(dtype, monkeypatch):
    gradients = {}
    for bad in NONFINITE:
        for place in (0, TILE - 1, TILE, TILE + 99):
            gradient = random_gradient(dtype, TILE + 100, place)
            gradient[place] = complex(1.0, bad) if dtype in COMPLEX else bad
            gradients[f"{bad} at {place}"] = gradient
    mixed = random_gradient(dtype, 600, 0)
    mixed[::7], mixed[1::7], mixed[2::7], mixed[3::7] = math.nan, math.inf, -math.inf, 0.0
    if dtype in COMPLEX:
        mixed[4::7] = complex(-math.inf, math.inf)
        mixed[5::7] = complex(math.nan, math.inf)
    check(gradients | {"mixed": mixed, "all nan": torch.full_like(mixed, math.nan)}, monkeypatch)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_number_of_fp8(dtype, monkeypatch):
    check({"all": torch.arange(256, dtype=torch.uint8).view(dtype)}, monkeypatch)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-20, 1e-12, 1e-7, 1.0, 1e3, 1e12, 1e18, 1e30, 1e38])
def test_magnitudes_from_1e_minus_40_to_1e38(scale, monkeypatch):
    size = TILE + 17
    flat = {str(dtype): torch.rand(size, dtype=torch.float64).mul_(scale).to(dtype) for dtype in FLOATS[:3]}
    # One element of another magnitude in a tile must not spoil the rest, nor be lost.
    uneven = torch.rand(TILE, dtype=torch.float64).mul_(scale)
    uneven[5] = 1.0
    check(flat | {"uneven": uneven.float()}, monkeypatch)


def test_equal_elements_do_not_drift(monkeypatch):
    check({str(value): torch.full((CHUNK,), value) for value in (0.1, 1 / 3, 1.0)}, monkeypatch)


def test_any_layout(monkeypatch):
    base = random_gradient(torch.float32, 60 * 70, 0).reshape(60, 70)
    image = random_gradient(torch.float32, 2 * 3 * 5 * 7, 1).reshape(2, 3, 5, 7)
    gradients = {
        "transposed": base.T,
        "gaps": base[::2, ::3],
        "gaps in one dimension": base[0][::3],
        "columns": base[:, 1:5],
        "channels last": image.contiguous(memory_format=torch.channels_last),
        "expanded": base[:1].expand(50, 70),
        "misaligned": random_gradient(torch.float32, CHUNK + 9, 2)[1:],
        "misaligned by a half": random_gradient(torch.float16, TILE + 9, 2)[3:],
        "conjugate": random_gradient(torch.complex64, 30, 3).conj(),
        "negative": random_gradient(torch.complex64, 30, 3).conj().imag,
    }
    check(gradients, monkeypatch)


@pytest.mark.parametrize(("near_zero", "very_large"), [(0.5, 1.5), (0.1, 0.7), (1e-50, 1e39), (-1.0, -1.0)])
def test_thresholds_are_compared_as_in_fp64(near_zero, very_large, monkeypatch):
    around = torch.tensor([near_zero, very_large], dtype=torch.float64).float()
    close = torch.cat([around, around.nextafter(torch.tensor(9.0)), around.nextafter(torch.tensor(-9.0))])
    gradients = {"close": close, "wide": close.double(), "many": random_gradient(torch.float32, TILE + 3, 4)}
    check(gradients, monkeypatch, near_zero=near_zero, very_large=very_large)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    times=st.sampled_from([1, 60]),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "float64", "complex64"]),
)
def test_any_bits(bits, times, dtype):
    raw = np.array(bits * times, dtype=np.uint32)
    if dtype in ("float16", "bfloat16"):
        gradient = torch.from_numpy((raw >> 16).astype(np.uint16).view(np.int16)).view(getattr(torch, dtype))
    elif dtype == "complex64":
        gradient = torch.from_numpy(np.concatenate([raw, raw]).view(np.complex64))
    else:
        gradient = torch.from_numpy(raw.view(np.float32).copy()).to(getattr(torch, dtype))
    with pytest.MonkeyPatch.context() as monkeypatch:
        check({"bits": gradient}, monkeypatch)


def test_thresholds_are_meant_without_a_scale_that_only_the_device_knows(monkeypatch):
    gradient = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0])
    scale = torch.tensor(2.0**10)
    [row] = triton_ops.rows([gradient * scale], Thresholds(0.6, 1.5), scale)()
    assert (row[INDEX["near_zero"]], row[INDEX["very_large"]]) == (2, 2)


# --- launches ---


def test_two_launches_per_dtype_for_any_number_of_tensors(monkeypatch):
    for tensors in (1, 9):
        before = triton_ops.LAUNCHES.count
        by("triton", [torch.ones(3, dtype=dtype) for dtype in FLOATS[:2] for _ in range(tensors)], monkeypatch)
        assert triton_ops.LAUNCHES.count - before == 2 * 2


def test_a_table_of_addresses_is_sent_once(monkeypatch):
    gradients = [torch.ones(3), torch.ones(4)]
    made = []
    original = triton_ops.chunks_of
    monkeypatch.setattr(triton_ops, "chunks_of", lambda *given: made.append(1) or original(*given))
    first = by("triton", gradients, monkeypatch).rows
    gradients[0].mul_(2)  # what they hold may change, where they lie does not
    second = by("triton", gradients, monkeypatch).rows
    assert made == [1]
    assert (first[0] != second[0]).any()
    assert (first[1] == second[1]).all()
    by("triton", [torch.ones(5)], monkeypatch)
    assert made == [1, 1]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    tensors=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**36)), min_size=1, max_size=6),
    item_size=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_chunks_cover_every_element_once(tensors, item_size):
    """Also beyond 2³¹ elements: 2³⁶ are cut into chunks here, and none of them is read."""
    chunk = 1 << 30
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(triton_ops, "CHUNK", chunk)
        addresses = np.array([where * item_size for where, _ in tensors], dtype=np.int64)
        counts = np.array([count for _, count in tensors], dtype=np.int64)
        packed, chunk_count, row_count = triton_ops.chunks_of(addresses, counts, item_size)
    starts, lengths = packed[:chunk_count], packed[chunk_count : 2 * chunk_count]
    bounds = packed[2 * chunk_count :][: row_count + 1]
    assert packed[2 * chunk_count + row_count + 1 :][:row_count].tolist() == counts.tolist()
    owners = packed[2 * chunk_count + 2 * row_count + 1 :]
    assert owners.tolist() == np.repeat(np.arange(row_count), np.diff(bounds)).tolist()
    assert (lengths > 0).all()
    assert (lengths <= chunk).all()
    for row in range(row_count):
        at = int(addresses[row])
        for index in range(bounds[row], bounds[row + 1]):
            assert starts[index] == at
            # What is read without a mask, four elements at once, lies at a multiple of 16 bytes.
            assert at % 16 == 0 or lengths[index] < 16
            at += int(lengths[index]) * item_size
        assert at == addresses[row] + counts[row] * item_size


# --- when it is used ---


def test_it_reads_devices_that_triton_knows(monkeypatch):
    monkeypatch.delenv("GRADIENT_FLOW_KERNEL", raising=False)
    monkeypatch.setattr(kernels, "_failed", [])
    assert kernels._by_triton("cuda", None)
    assert not kernels._by_triton("cpu", None)
    assert not kernels._by_triton("mps", None)
    assert not kernels._by_triton("cuda", "torch")
    assert kernels._by_triton("cpu", "triton")


def test_without_triton_the_wish_for_it_is_refused(monkeypatch):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "triton")
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    with pytest.raises(gf.KernelError, match="pip install triton"):
        gf.measure([np.ones(1)])


def test_outside_the_interpreter_host_memory_is_refused(monkeypatch):
    monkeypatch.setattr(triton_ops, "interpreted", lambda: False)
    with pytest.raises(gf.KernelError, match="TRITON_INTERPRET=1"):
        by("triton", [torch.ones(1)], monkeypatch)


def test_where_triton_fails_torch_ops_serve_from_then_on(monkeypatch):
    def broken(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(kernels, "_failed", [])
    monkeypatch.setattr(kernels, "_by_triton", lambda device, name: not kernels._failed)
    monkeypatch.setattr(triton_ops, "rows", broken)
    monkeypatch.setattr(kernels, "NATIVE", False)
    with pytest.warns(gf.GradientFlowWarning, match="no C compiler"):
        assert gf.measure([torch.tensor([3.0, 4.0])]).total.norm == 5
    assert gf.measure([torch.tensor([6.0, 8.0])]).total.norm == 10  # without a second warning
