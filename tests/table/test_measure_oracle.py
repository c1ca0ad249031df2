"""Every kernel of `gf.measure` against the oracle, against the others, and against the laws of the table."""

import math
import os
import random
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import assert_agree, assert_matches, expected, read

import gradient_flow as gf
from gradient_flow.table.kernels import numpy_ops

KERNELS = ("native", "torch", "numpy")
# What the C kernel reads itself. Complex gradients go through torch ops or NumPy, whose sums follow the number of
# threads and whose comparisons follow the caller's float mode.
NATIVE_DTYPES = ("float64", "float32", "float16", "bfloat16")
TORCH_DTYPES = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NUMPY_DTYPES = ("float64", "float32", "float16", "longdouble", "complex64", "complex128", *INTEGERS)
LARGE_SIZES = (1023, 1024, 1025, 1_000_000, 65535, 65536, 65537)
# fp64 squares stay finite: beyond this the table's own sum of squares would overflow.
LARGEST = {"float64": 1e38, "longdouble": 1e38, "float16": 65504.0}
THRESHOLDS = (1e-7, 1e3)
LANES = 4 * 2.0**-24
"""The relative error of a sum that NumPy takes of 64 elements in fp32 at a time."""


def examples(count):
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.data_too_large]
    )


# --- kernels and process-wide switches ---


@contextmanager
def forced(kernel):
    """Force a kernel; `None` leaves the choice to the package."""
    before = os.environ.pop("GRADIENT_FLOW_KERNEL", None)
    if kernel is not None:
        os.environ["GRADIENT_FLOW_KERNEL"] = kernel
    try:
        yield
    finally:
        os.environ.pop("GRADIENT_FLOW_KERNEL", None)
        if before is not None:
            os.environ["GRADIENT_FLOW_KERNEL"] = before


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals():
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def row(gradient, kernel=None, **thresholds):
    with forced(kernel):
        return gf.measure({"g": gradient}, **thresholds)["g"]


def check(gradient, truth=None, **thresholds):
    """Each kernel and the automatic choice match the oracle, and the kernels match one another."""
    want = expected(plain(gradient) if truth is None else truth, **thresholds)
    rows = {kernel: read(row(gradient, kernel, **thresholds)) for kernel in (*KERNELS, None)}
    for kernel, got in rows.items():
        assert_matches(got, want, f"kernel {kernel}", lanes=LANES if kernel == "numpy" and in_lanes(gradient) else 0.0)
    assert_agree(rows["native"], rows["torch"], want, "native against torch")
    if not in_lanes(gradient):
        assert_agree(rows["native"], rows["numpy"], want, "native against numpy")


def in_lanes(gradient):
    """Whether NumPy sums runs of it in fp32."""
    narrow = str(gradient.dtype).removeprefix("torch.") in ("float32", "float16", "bfloat16")
    return narrow and math.prod(gradient.shape) >= numpy_ops._LONG


def plain(gradient):
    """The elements as a dense NumPy array; widening keeps every value as it is."""
    if isinstance(gradient, np.ndarray):
        return gradient
    dense = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    wide = torch.complex128 if dense.is_complex() else torch.float64
    return dense.to(wide).resolve_conj().resolve_neg().numpy()


# --- elements ---


def part_of(name):
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def cast(values, name):
    """A real array of that dtype; bfloat16 is carried as the fp32 numbers that have its bits."""
    if name != "bfloat16":
        return np.asarray(values, dtype=name)
    bits = np.asarray(values, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def neighbours(value, name):
    """The number of that dtype next to `value`, and those one ulp below and above it."""
    if name == "bfloat16":
        bits = cast([value], name).view(np.uint32) + np.array([-0x10000, 0, 0x10000]).astype(np.uint32)
        return bits.view(np.float32)
    middle = cast(value, name)
    return np.array([np.nextafter(middle, cast(0, name)), middle, np.nextafter(middle, cast(np.inf, name))])


def edges(name, thresholds=THRESHOLDS):
    """Finite numbers at which a kernel may go wrong: zeros, subnormals, extremes and the thresholds."""
    limits = np.finfo(np.float32 if name == "bfloat16" else name)
    smallest = float(limits.smallest_subnormal) * (2**16 if name == "bfloat16" else 1)
    tiny = [smallest, 3 * smallest, float(limits.tiny) - smallest, float(limits.tiny)]
    if name == "longdouble":
        tiny = []  # Below fp64 there is no number left to compare with.
    largest = LARGEST.get(name, float(limits.max))
    near = np.concatenate([neighbours(value, name) for value in thresholds])
    positive = np.concatenate([cast([0.0, 1.0, *tiny, largest], name), near])
    return np.concatenate([positive, -positive])


def nonfinite(name):
    return cast([np.nan, np.inf, -np.inf], name)


def combined(reals, name, thresholds=THRESHOLDS):
    """`reals` as they are, or two by two as complex numbers."""
    if not name.startswith("complex"):
        return reals
    pairs = reals[: len(reals) // 2 * 2].astype(part_of(name)).view(name)
    with np.errstate(invalid="ignore"):
        magnitude = np.hypot(pairs.real.astype(np.float64), pairs.imag.astype(np.float64))
    # An irrational magnitude within rounding of a threshold may fall on either side of it: keep such off.
    doubtful = sum(np.abs(magnitude - value) <= 4 * np.spacing(value) for value in thresholds).astype(bool)
    pairs.imag[doubtful] = 0
    return pairs


@st.composite
def small_arrays(draw, name, max_size=24, thresholds=THRESHOLDS):
    """Few elements, each one drawn: any float and the edges, half of the arrays with NaN and Inf."""
    if name in INTEGERS:
        limits = np.iinfo(name)
        numbers = st.integers(limits.min, limits.max) | st.sampled_from([limits.min, limits.max, 0, 1])
        return np.array(draw(st.lists(numbers, max_size=max_size)), dtype=name)
    part = part_of(name)
    width = {"float16": 16, "float32": 32, "bfloat16": 32}.get(part, 64)
    bound = {"float16": 65504.0, "float32": 2.0**127, "bfloat16": 2.0**127}.get(part, 2.0**126)
    floats = st.floats(-bound, bound, width=width)
    numbers = floats | st.sampled_from(edges(part, thresholds).tolist())
    if draw(st.booleans()):
        numbers = numbers | st.sampled_from(nonfinite(part).tolist())
    count = max_size * (2 if name.startswith("complex") else 1)
    return combined(cast(draw(st.lists(numbers, max_size=count)), part), name, thresholds)


def random_array(name, size, seed, shape="spread", planted=False):
    """Many elements from a seed, over the magnitudes that the dtype can hold."""
    rng = np.random.default_rng(seed)
    part = part_of(name)
    count = size * (2 if name.startswith("complex") else 1)
    low, high = (-8, 4.8) if part == "float16" else (-40, 38)
    exponents = rng.uniform(low, high, count if shape == "spread" else 1)
    signs = rng.choice([-1.0, 1.0], count)
    values = (
        10.0**exponents
        * {
            "spread": signs,
            "alike": rng.standard_normal(count) / 8,
            "constant": np.ones(count),
            "offset": 1 + rng.standard_normal(count) / 64,
        }[shape]
    )
    bound = LARGEST.get(part, 3.38e38)
    values = cast(np.clip(values, -bound, bound), part)
    if planted and count:
        pool = np.concatenate([edges(part), nonfinite(part)[rng.random(3) < 0.4]])
        values[rng.integers(count, size=1 + count // 16)] = rng.choice(pool, 1 + count // 16)
    return combined(values, name)


SHAPES = ("alike", "spread", "constant", "offset")


# What `random_array` needs beside the dtype: a failure then prints four values and not three thousand.
recipes = st.tuples(st.integers(0, 3000), st.integers(0, 2**32 - 1), st.sampled_from(SHAPES), st.booleans())


def tensor_of(array, name):
    return torch.from_numpy(np.array(array)).to(getattr(torch, name))


@st.composite
def tensors(draw, max_size=24, names=TORCH_DTYPES):
    name = draw(st.sampled_from(names))
    return tensor_of(draw(small_arrays(name, max_size)), name)


# --- dtypes and sizes ---


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_kernels_match_the_oracle_on_every_torch_dtype(name):
    @examples(120)
    @given(small_arrays(name))
    def matches(array):
        check(tensor_of(array, name))

    matches()


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_kernels_match_the_oracle_on_every_numpy_dtype(name):
    @examples(70)
    @given(small_arrays(name))
    def matches(array):
        check(array)

    matches()


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_kernels_match_the_oracle_over_magnitudes_and_sizes(name):
    @examples(50)
    @given(recipes)
    def matches(recipe):
        check(tensor_of(random_array(name, *recipe), name))

    matches()


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_kernels_match_the_oracle_around_block_boundaries(name):
    for size in LARGE_SIZES[:3]:
        for shape in SHAPES:
            check(tensor_of(random_array(name, size, size, shape), name))
    for size, shape in zip(LARGE_SIZES[3:], SHAPES, strict=True):
        check(tensor_of(random_array(name, size, size, shape), name))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_a_million_equal_elements_do_not_drift(name):
    check(tensor_of(cast(np.full(1_000_000, 0.1), name), name))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_pattern_is_counted_as_what_it_is(name):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    check(bits.view(getattr(torch, name)))


@pytest.mark.parametrize("near_zero", [1e-7, 0.0, -1.0, 1e-45, 3.3e38, 1e300])
@pytest.mark.parametrize("very_large", [1e3, 0.0, -1.0, 1e-45, 3.3e38, 1e300])
def test_finite_bfloat16_is_counted_by_its_bits(near_zero, very_large):
    """In blocks of the C kernel that have nothing else in them, from the smallest magnitude to the largest."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.bfloat16)
    for part in every[every.isfinite()].split(4096)[::3]:
        got = gf.measure([part], near_zero=near_zero, very_large=very_large)["0"]
        assert_matches(got, expected(plain(part), near_zero=near_zero, very_large=very_large))


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_measured_together_stays_apart(kernel):
    """Torch ops gather small tensors: NaN in one, or in what fills up its last line, tells nothing of the others."""
    gradients = [torch.ones(300), torch.zeros(256), torch.full((256,), 1e6), torch.tensor([1.0, torch.nan])]
    with forced(kernel):
        table = gf.measure(gradients)
    for row_number, gradient in enumerate(gradients):
        assert_matches(table[row_number], expected(plain(gradient)), f"gradient {row_number}")


@pytest.mark.parametrize("planted", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_one_nonfinite_element_is_seen_wherever_it_is(name, kernel, planted):
    gradients = {}
    for size in (1, 7, 1023, 1024, 1025, 65537):
        for position in {0, 1 % size, size // 2, size - 1}:
            gradients[size, position] = torch.ones(size, dtype=getattr(torch, name))
            gradients[size, position][position] = planted
    with forced(kernel):
        table = gf.measure(list(gradients.values()))
    for row_number, (size, position) in enumerate(gradients):
        stats = table[row_number]
        found = stats.nan_count, stats.inf_count, stats.finite, stats.finite_part.l1
        assert found == (np.isnan(planted), np.isinf(planted), False, size - 1), (size, position)


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128"])
def test_a_signalling_nan_is_counted_without_a_warning(name):
    pattern = np.array([0x7F800001], np.uint32) if part_of(name) == "float32" else np.array([0x7FF0000000000001])
    numbers = np.concatenate([pattern, pattern * 0]).view(part_of(name)).view(name)
    for kernel in KERNELS:
        assert row(numbers, kernel).nan_count == 1
        assert row(torch.from_numpy(numbers), kernel).nan_count == 1


def test_a_nan_part_beside_an_infinite_part_counts_as_nan_once():
    check(torch.tensor([complex(np.nan, np.inf), complex(-np.inf, np.nan), complex(np.inf, -np.inf), 1 + 2j]))
    check(np.array([complex(np.inf, 1), complex(0, -np.inf)]))


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_both_infinities_of_one_complex_element_are_seen(name):
    for element in (complex(np.inf, -np.inf), complex(-np.inf, np.inf), complex(np.inf, np.inf), complex(3, -np.inf)):
        check(np.array([1 + 2j, element], dtype=name))


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_a_complex_magnitude_on_the_threshold_is_not_above_it(name):
    part = getattr(np, part_of(name))
    beyond = np.nextafter(part(800), part(900))
    check(np.array([600 + 800j, complex(-600, beyond), 1000, 1000j, -999j], dtype=name))


@examples(250)
@given(st.data(), st.sampled_from(TORCH_DTYPES), st.floats(1e-30, 1e-2), st.floats(1e-1, 1e4))
def test_thresholds_compare_the_exact_magnitude(data, name, near_zero, very_large):
    array = data.draw(small_arrays(name, 12, (near_zero, very_large)))
    check(tensor_of(array, name), near_zero=near_zero, very_large=very_large)


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_one_ulp_decides_at_the_default_thresholds(name):
    part = part_of(name)
    for value in THRESHOLDS:
        for number in neighbours(value, part).tolist():
            check(tensor_of(np.array([number, -number], dtype="complex128" if name[0] == "c" else "float64"), name))


# --- layouts ---


def grid(flat, *fixed):
    """`flat` folded into rows of the fixed sizes; what does not fill a row is dropped."""
    unit = int(np.prod(fixed))
    return flat[: len(flat) // unit * unit].reshape(-1, *fixed)


TORCH_LAYOUTS = {
    "contiguous": lambda flat: flat,
    "every second": lambda flat: flat[::2],
    "every third from the second": lambda flat: flat[1::3],
    "columns": lambda flat: grid(flat, 4)[:, 1::2],
    "rows and columns": lambda flat: grid(flat, 3)[1::2, ::2],
    "transposed": lambda flat: grid(flat, 3).T,
    "permuted": lambda flat: grid(flat, 2, 3).permute(2, 0, 1),
    "expanded": lambda flat: flat[:, None].expand(-1, 5),
    "expanded in front": lambda flat: flat[::2].expand(3, -1),
    "overlapping": lambda flat: torch.cat([flat, flat.new_zeros(4)]).unfold(0, 4, 2),
    "channels last": lambda flat: grid(flat, 2, 3, 2).contiguous(memory_format=torch.channels_last),
    "channels last 3d": lambda flat: grid(flat, 2, 1, 2, 2).contiguous(memory_format=torch.channels_last_3d),
    "zero-dim": lambda flat: torch.cat([flat, flat.new_ones(1)])[0],
    "empty": lambda flat: flat.new_empty(3, 0, 2),
    "real part of a complex tensor": lambda flat: torch.complex(flat.double(), flat.double()).real,
    "lazily negated": lambda flat: torch.complex(flat.double(), flat.double()).conj().imag,
    "requires grad": lambda flat: flat.clone().requires_grad_(),
}


@pytest.mark.parametrize("layout", TORCH_LAYOUTS)
def test_kernels_match_the_oracle_on_every_torch_layout(layout):
    names = TORCH_DTYPES[:4] if "real" in layout or "negated" in layout else TORCH_DTYPES

    @examples(40)
    @given(tensors(60, names))
    def matches(flat):
        check(TORCH_LAYOUTS[layout](flat))

    matches()


@examples(60)
@given(tensors(40, TORCH_DTYPES[4:]))
def test_kernels_match_the_oracle_on_lazily_conjugated_tensors(flat):
    check(flat.conj())
    check(grid(flat, 3).mH)


def unaligned(flat):
    packed = np.zeros(len(flat), dtype=[("before", "u1"), ("value", flat.dtype)])
    packed["value"] = flat
    return packed["value"]


NUMPY_LAYOUTS = {
    "reversed": lambda flat: flat[::-1],
    "reversed by threes": lambda flat: flat[::-3],
    "reversed rows and columns": lambda flat: grid(flat, 4)[::-1, ::-2],
    "transposed": lambda flat: grid(flat, 3).T,
    "Fortran order": lambda flat: np.asfortranarray(grid(flat, 2, 3)),
    "broadcast": lambda flat: np.broadcast_to(flat, (3, len(flat))),
    "zero-dim": lambda flat: np.append(flat, flat.dtype.type(1))[:1].reshape(()),
    "empty": lambda flat: flat[:0].reshape(3, 0, 2),
    "unaligned": unaligned,
    "other byte order": lambda flat: flat.astype(flat.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", NUMPY_LAYOUTS)
def test_kernels_match_the_oracle_on_every_numpy_layout(layout):
    @examples(60)
    @given(st.data(), st.sampled_from(NUMPY_DTYPES))
    def matches(data, name):
        check(NUMPY_LAYOUTS[layout](data.draw(small_arrays(name, 40))))

    matches()


def test_large_strided_views_match_the_oracle():
    base = tensor_of(random_array("float32", 4 * 65537, 3, "alike"), "float32")
    for view in (base[::4], base.view(-1, 2)[:65537].T, base.view(4, -1)[:2, 5:-3], base[:40000].expand(2, -1)):
        check(view)
    check(base.numpy()[::-4])


# --- sparse ---


@contextmanager
def quiet_sparse():
    """Torch calls its compressed layouts beta; that is no matter of what is measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def as_uncoalesced(dense):
    """Each element stored as two entries of one place: itself and a zero, which adds up without rounding."""
    sparse = dense.to_sparse()
    indices = torch.cat([sparse.indices(), sparse.indices()], dim=1)
    values = torch.cat([sparse.values(), torch.zeros_like(sparse.values())])
    return torch.sparse_coo_tensor(indices, values, dense.shape, check_invariants=True)


SPARSE_LAYOUTS = {
    "COO": lambda dense: dense.to_sparse(),
    "COO with dense rows": lambda dense: dense.to_sparse(sparse_dim=1),
    "uncoalesced COO": as_uncoalesced,
    "CSR": lambda dense: dense.to_sparse_csr(),
}


@pytest.mark.parametrize("layout", SPARSE_LAYOUTS)
def test_implicit_zeros_of_sparse_gradients_count(layout):
    @examples(60)
    @given(tensors(30), st.integers(0, 2**32 - 1))
    def matches(flat, seed):
        hidden = torch.from_numpy(np.random.default_rng(seed).random(len(flat)) < 0.6)
        dense = grid(flat.masked_fill(hidden, 0), 3)
        with quiet_sparse():
            sparse = SPARSE_LAYOUTS[layout](dense)
        check(sparse, plain(dense))

    matches()


@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_repeated_sparse_entries_add_up_before_they_are_measured(name):
    @examples(40)
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(-8, 8)), max_size=20))
    def matches(entries):
        # Small integers add exactly in every dtype; some places cancel to an explicit zero.
        truth = np.zeros(6)
        for place, value in entries:
            truth[place] += value
        indices = torch.tensor([[place for place, _ in entries]], dtype=torch.long).reshape(1, -1)
        values = torch.tensor([value for _, value in entries], dtype=getattr(torch, name))
        sparse = torch.sparse_coo_tensor(indices, values, (6,), check_invariants=True)
        check(sparse, truth.astype("complex128" if name[0] == "c" else "float64"))

    matches()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sparse_gradient_is_never_made_dense(kernel):
    # 8 TB as a dense tensor.
    sparse = torch.sparse_coo_tensor([[0, 7], [0, 9]], [3.0, -4.0], (10**6, 10**6), check_invariants=True)
    stats = row(sparse, kernel)
    assert (stats.count, stats.norm, stats.min, stats.max) == (10**12, 5.0, -4.0, 3.0)
    assert stats.zero_fraction == (10**12 - 2) / 10**12
    assert stats.mean == -1 / 10**12


# --- laws of the table ---


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_norms_scale_exactly_with_powers_of_two(kernel, name):
    reach = 8 if name == "float16" else 60

    @examples(25)
    @given(st.integers(0, 2**32 - 1), st.integers(0, 3000), st.integers(-reach, reach), st.sampled_from([-1, 1]))
    def scales(seed, size, exponent, sign):
        # From 1/16 to 16, so that no product leaves the normal numbers of its dtype.
        rng = np.random.default_rng(seed)
        reals = cast(2.0 ** rng.uniform(-4, 4, 2 * size) * rng.choice([-1, 1], 2 * size), part_of(name))
        gradient = tensor_of(combined(reals, name), name)
        factor = sign * 2.0**exponent
        plain_row, scaled = row(gradient, kernel), row(gradient * factor, kernel)
        for statistic in ("norm", "l1", "linf"):
            assert getattr(scaled, statistic) == abs(factor) * getattr(plain_row, statistic), statistic
        if size:
            assert scaled.mean == factor * plain_row.mean

    scales()


@examples(250)
@given(
    tensors(),
    tensors(),
    st.sampled_from((*KERNELS, None)),
    st.sampled_from((*KERNELS, None)),
)
def test_merge_is_concatenation(first, second, kernel, other):
    with forced(kernel):
        table = gf.measure({"g": first})
    with forced(other):
        more = gf.measure({"g": second, "h": first})
    merged = table.merge(more)
    assert list(merged) == ["g", "h"]
    assert_matches(merged["g"], expected(plain(first), plain(second)), "rows of one name")
    assert_matches(merged["h"], expected(plain(first)), "a row of one table")
    assert_matches(merged.total, expected(plain(first), plain(second), plain(first)), "total")


@examples(60)
@given(tensors())
def test_merging_with_nothing_changes_nothing(gradient):
    table = gf.measure({"g": gradient})
    nothing = gf.measure({})
    for merged in (table.merge(nothing), nothing.merge(table), table.merge(gf.measure({"g": gradient[:0]}))):
        assert repr(merged.to_dict()) == repr(table.to_dict())


@pytest.mark.parametrize("kernel", KERNELS)
def test_groups_and_total_are_the_merge_of_their_rows(kernel):
    @examples(80)
    @given(st.lists(st.tuples(st.sampled_from("xyz"), tensors(12)), max_size=6))
    def merges(labelled):
        gradients = {f"{label}.{place}": gradient for place, (label, gradient) in enumerate(labelled)}
        with forced(kernel):
            table = gf.measure(gradients)
        members = {}
        for name, gradient in gradients.items():
            members.setdefault(name[0], []).append(plain(gradient))
        everything = expected(*(plain(gradient) for gradient in gradients.values()))
        assert_matches(table.total, everything, "total")
        for groups in (lambda name: name[0], {name: name[0] for name in gradients}, {g: f"{g}.*" for g in members}):
            grouped = table.group(groups)
            assert list(grouped) == list(members)
            for label, arrays in members.items():
                assert_matches(grouped[label], expected(*arrays), f"group {label}")
            assert_matches(grouped.total, everything, "total of groups")

    merges()


@examples(60)
@given(st.lists(tensors(12), max_size=5))
def test_columns_of_the_table_are_the_statistics_of_its_rows(gradients):
    table = gf.measure(gradients)
    for statistic in ("norm", "l1", "linf", "mean", "mean_abs", "variance", "std", "min", "max", "finite", "count"):
        column = getattr(table, statistic)
        np.testing.assert_array_equal(column, [getattr(table[place], statistic) for place in range(len(gradients))])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TORCH_DTYPES)
def test_zeros_never_give_nan(kernel, name):
    @examples(15)
    @given(st.integers(1, 3000), st.booleans())
    def never(size, negative):
        zeros = torch.zeros(size, dtype=getattr(torch, name))
        stats = row(-zeros if negative else zeros, kernel)
        zero = (stats.norm, stats.l1, stats.linf, stats.mean, stats.mean_abs, stats.variance, stats.std)
        assert zero == (0,) * 7
        assert (stats.min, stats.max, stats.finite, stats.count) == (0, 0, True, size)
        assert (stats.zero_fraction, stats.near_zero_percent, stats.very_large_percent) == (1, 100, 0)

    never()


@pytest.mark.parametrize("kernel", KERNELS)
@examples(60)
@given(st.floats(2.0**-100, 2.0**100), st.integers(1, 3000), st.sampled_from(["float64", "float32", "bfloat16"]))
def test_equal_elements_never_give_a_negative_variance(kernel, value, size, name):
    stats = row(tensor_of(cast(np.full(size, value), name), name), kernel)
    assert stats.variance >= 0
    assert stats.std >= 0


@pytest.mark.parametrize("kernel", ["native", "numpy", None])
@pytest.mark.parametrize("name", NATIVE_DTYPES)
def test_the_number_of_threads_changes_no_bit(kernel, name):
    gradients = {
        **{str(size): tensor_of(random_array(name, size, size, "alike"), name) for size in LARGE_SIZES},
        **{f"small {size}": tensor_of(random_array(name, size, size), name) for size in range(0, 300, 7)},
    }
    gradients["strided"] = gradients["1000000"].view(1000, 1000).T[:, ::3]
    tables = []
    for number in (1, 2):
        with threads(number), forced(kernel):
            table = gf.measure(gradients)
            tables.append({**table, "total": table.total})
    # `repr` tells every two numbers apart, and no NaN from another.
    one, two = ({name: repr(stats.to_dict()) for name, stats in table.items()} for table in tables)
    assert [name for name in one if one[name] != two[name]] == []


# --- do no harm ---


def bits(gradient):
    copy = gradient.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes()


@examples(150)
@given(tensors(60), st.sampled_from(sorted(TORCH_LAYOUTS)), st.sampled_from((*KERNELS, None)))
def test_measuring_leaves_gradients_bit_identical(flat, layout, kernel):
    gradient = TORCH_LAYOUTS[layout](flat) if not flat.is_complex() else flat
    # The tensor beneath a view as well: nothing may be written between its elements.
    before, version = (bits(gradient), bits(flat)), gradient._version
    row(gradient, kernel)
    assert (bits(gradient), bits(flat)) == before
    assert gradient._version == version


@pytest.mark.parametrize("kernel", KERNELS)
def test_measuring_leaves_large_gradients_of_a_model_bit_identical(kernel):
    model = torch.nn.Linear(256, 257)
    model.weight.grad = tensor_of(random_array("float32", 256 * 257, 5, planted=True), "float32").view(257, 256)
    before = bits(model.weight.grad)
    with forced(kernel):
        assert gf.measure(model)["weight"].count == 256 * 257
    assert bits(model.weight.grad) == before
    assert model.bias.grad is None


@pytest.mark.parametrize("kernel", KERNELS)
@examples(40)
@given(tensors())
def test_measuring_leaves_the_random_number_generators_alone(kernel, gradient):
    def states():
        legacy = np.random.get_state()  # noqa: NPY002, the global generator is the one to leave alone
        return random.getstate(), repr(legacy), legacy[1].tobytes(), torch.get_rng_state().numpy().tobytes()

    before = states()
    with forced(kernel):
        gf.measure({"g": gradient, "array": plain(gradient)}).total.to_dict()
    assert states() == before


@pytest.mark.parametrize("kernel", [*KERNELS, None])
@pytest.mark.parametrize("size", [3, 65537])
def test_a_table_keeps_its_numbers_when_the_gradient_changes_later(kernel, size):
    gradient = torch.ones(size)
    with forced(kernel):
        table = gf.measure({"g": gradient})
    gradient.fill_(2)
    assert table["g"].l1 == size


@pytest.mark.parametrize("name", NATIVE_DTYPES)
def test_flushing_denormals_changes_no_count(name):
    @examples(60)
    @given(small_arrays(name) | recipes)
    def unchanged(given_array):
        array = random_array(name, *given_array) if isinstance(given_array, tuple) else given_array
        gradient = tensor_of(array, name)
        want = expected(plain(gradient))
        for kernel in ("native", None):
            with flushed_denormals():
                stats = row(gradient, kernel)
                seen = {key: getattr(stats, key) for key in ("count", "nan_count", "inf_count", "finite")}
                shares = {key: getattr(stats, key) for key in ("zero_fraction", "near_zero_percent")}
                shares["very_large_percent"] = stats.very_large_percent
            assert seen == {key: want[key] for key in seen}, kernel
            assert shares == pytest.approx({key: want[key] for key in shares}, rel=1e-12, abs=0), kernel

    unchanged()


@pytest.mark.parametrize("kernel", ["native", None])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_flushing_denormals_makes_no_zeros_of_a_large_gradient_on_any_thread(kernel, name):
    smallest = edges(part_of(name))[2]
    gradient = tensor_of(np.full(1_000_000, smallest), name)
    for number in (1, 2):
        with threads(number), flushed_denormals():
            stats = row(gradient, kernel)
        assert (stats.zero_fraction, stats.near_zero_percent) == (0, 100)
