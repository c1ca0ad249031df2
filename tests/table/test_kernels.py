import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradient_flow as gf
from gradient_flow.table import kernels
from gradient_flow.table.columns import COLUMNS, INDEX, Thresholds
from gradient_flow.table.exponents import exponent_counts
from gradient_flow.table.kernels import numpy_ops, torch_ops

ROOT = Path(__file__).parents[2]
HOST_READS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal")


def test_the_c_kernel_is_built_here():
    """Everything else falls back without it, so its absence must not go unnoticed."""
    assert kernels.NATIVE


def test_c_and_python_agree_on_the_columns():
    from gradient_flow.table.kernels import _native

    assert len(COLUMNS) == _native.COLUMN_COUNT
    header = (ROOT / "src/gradient_flow/table/kernels/native/kernel.h").read_text()
    enum = header[header.index("enum gf_column {") : header.index("GF_COLUMNS")]
    names = [word.strip(" ,\n").removeprefix("GF_").lower() for word in enum.split("{")[1].split(",")]
    assert tuple(filter(None, names)) == COLUMNS


def test_an_unknown_kernel_is_refused(monkeypatch):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "cuda")
    with pytest.raises(gf.KernelError, match="must be one of native, triton, torch, numpy; got 'cuda'"):
        gf.measure([np.ones(1)])


def test_a_kernel_that_was_not_built_is_refused(monkeypatch):
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", "native")
    monkeypatch.setattr(kernels, "NATIVE", False)
    with pytest.raises(gf.KernelError, match="not built"):
        gf.measure([np.ones(1)])


class CountHostReads(TorchDispatchMode):
    """Counts what would make a device wait: scalars read, tensors brought to the host."""

    reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.reads += name in HOST_READS
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Tensors in host memory are measured as those on a device are: in large buckets, without looking at a number."""
    monkeypatch.setattr(torch_ops, "on_device", lambda tensor: True)


@pytest.mark.parametrize("gradient", [torch.randn(100_000), torch.tensor([1.0, torch.nan, torch.inf])])
def test_the_torch_kernel_reads_no_scalar_before_its_one_transfer(gradient, as_on_a_device):
    with CountHostReads() as counter:
        wait = torch_ops.rows([gradient, gradient.to(torch.bfloat16)], gf.GradientTable((), np.empty(0)).thresholds)
    assert counter.reads == 0
    with CountHostReads() as counter:
        rows = wait()
    assert counter.reads == 0  # `.to("cpu")` of one stacked matrix
    assert rows.shape == (2, len(COLUMNS))


class CountLaunches(TorchDispatchMode):
    """Counts operations that compute: views launch nothing. And the largest sum of memory that they made and kept."""

    def __init__(self):
        super().__init__()
        self.launches, self.most_bytes, self._made = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in ("detach", "alias"):
            self.launches += 1
            self._note(result)
        return result

    def _note(self, result):
        for tensor in [result] if isinstance(result, torch.Tensor) else result:
            storage = tensor.untyped_storage()
            self._made[storage.data_ptr()] = weakref.ref(storage), storage.nbytes()
        self._made = {key: value for key, value in self._made.items() if value[0]() is not None}
        self.most_bytes = max(self.most_bytes, sum(size for _, size in self._made.values()))


@pytest.mark.parametrize("tensors", [98, 2000])
@pytest.mark.parametrize("elements", [400_000, 3_000_000])
def test_torch_ops_are_launched_by_the_megabyte(tensors, elements, as_on_a_device):
    sizes = np.random.default_rng(0).dirichlet(np.full(tensors, 0.3)) * elements
    gradients = [torch.randn(int(size)) for size in sizes]
    torch_ops.rows(gradients, Thresholds())  # what fills up lines is made once
    with CountLaunches() as counter:
        rows = torch_ops.rows(gradients, Thresholds())
    assert counter.launches <= 64
    np.testing.assert_allclose(rows(), gf.measure(gradients).rows, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tensors", [98, 2000])
def test_so_are_those_of_a_histogram(tensors, as_on_a_device):
    gradients = [torch.randn(3_000_000 // tensors) for _ in range(tensors)]
    torch_ops.exponents(gradients, 0)
    with CountLaunches() as counter, CountHostReads() as reads:
        counts = torch_ops.exponents(gradients, torch.tensor(0))
    assert counter.launches <= 64
    assert reads.reads == 0
    np.testing.assert_array_equal(counts(), exponent_counts(gradients))


@pytest.mark.parametrize("start", [torch_ops.rows, torch_ops.exponents])
def test_temporaries_of_torch_ops_are_bounded(start, as_on_a_device):
    gradients = [torch.randn(6_000_000), *(torch.randn(3000) for _ in range(1000))]
    with CountLaunches() as counter:
        start(gradients, Thresholds() if start is torch_ops.rows else 0)
    assert counter.most_bytes <= 64 * 2**20
    assert counter.most_bytes >= 8 * 2**20  # the counter sees them


HARD = [
    torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, 0.0, 1e-9, 1e9]),
    torch.randn(70_001).to(torch.bfloat16),
    torch.randn(300, dtype=torch.float64) * 1e-30,
    torch.randn(300) * 1e38,
    torch.randn(300, dtype=torch.complex64),
    torch.tensor([complex(-np.inf, np.inf), complex(np.nan, np.inf), 0j]),
    torch.full((257,), torch.nan),
    torch.zeros(0),
    torch.tensor(2.0),
]


def test_buckets_of_a_device_give_what_the_c_kernel_gives(as_on_a_device):
    rows = torch_ops.rows(HARD, Thresholds())()
    np.testing.assert_allclose(rows, gf.measure(HARD).rows, rtol=1e-12, atol=1e-9)


def test_where_there_is_no_fp64_lines_are_summed_in_fp32(as_on_a_device, monkeypatch):
    """As on MPS, whose squares would leave the range of fp32."""
    monkeypatch.setattr(torch_ops, "_sum_dtype", lambda device: torch.float32)
    gradients = [torch.randn(70_001) * scale for scale in (1e-30, 1.0, 1e30)] + [torch.zeros(300)]
    rows = torch_ops.rows(gradients, Thresholds())()
    want = gf.measure(gradients).rows
    ours, theirs = gf.GradientTable(range(4), rows), gf.GradientTable(range(4), want)
    np.testing.assert_allclose(ours.norm, theirs.norm, rtol=1e-6)
    np.testing.assert_allclose(ours.l1, theirs.l1, rtol=1e-6)
    np.testing.assert_array_equal(rows[:, 5:], want[:, 5:])


@pytest.mark.parametrize("on_device", [False, True])
def test_measuring_changes_no_bit(kernel, on_device, monkeypatch):
    monkeypatch.setattr(torch_ops, "on_device", lambda tensor: on_device)
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
    gradients = [torch.randn(size).to(kind) for kind in kinds for size in (5, 256, 70_000)] + HARD
    before = [gradient.clone() for gradient in gradients]
    gf.measure(gradients)
    for gradient, copy in zip(gradients, before, strict=True):
        assert gradient.reshape(-1).view(torch.uint8).equal(copy.reshape(-1).view(torch.uint8))


def test_the_host_read_counter_can_fail():
    with CountHostReads() as counter:
        torch.ones(3).sum().item()
    assert counter.reads == 1


def test_rows_on_a_device_are_fetched_when_read():
    calls = []
    table = gf.GradientTable(("w",), lambda: calls.append(1) or np.zeros((1, len(COLUMNS))))
    assert calls == []
    assert table.norm.tolist() == [0]
    assert table.l1.tolist() == [0]
    assert calls == [1]


def test_tensor_subclasses_are_not_read_by_address():
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    assert gf.measure([torch.tensor([3.0, 4.0]).as_subclass(Doubled)]).total.norm == 5


def test_tensors_without_memory_are_zeros():
    zeros = torch._efficientzerotensor((5,))
    assert gf.measure([zeros])["0"].zero_fraction == 1


def test_without_a_compiler_it_installs_and_gives_the_same_answers(tmp_path):
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("*.so", "build", "*.egg-info", ".git", ".venv*", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, source, ignore=ignored)
    target = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    environment = {**os.environ, "CC": "false"}
    install = [*command, "--target", str(target), str(source)]
    subprocess.run(install, check=True, env=environment, capture_output=True)
    assert not list(target.rglob("*.so"))

    code = (
        "import numpy as np, torch, gradient_flow as gf\n"
        "from gradient_flow.table import kernels\n"
        "assert not kernels.NATIVE and 'installed' in gf.__file__\n"
        "x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)\n"
        "table = gf.measure({'numpy': x, 'torch': torch.from_numpy(x), 'half': torch.from_numpy(x).bfloat16()})\n"
        "print(table.rows.tolist())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    run = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    here = gf.measure({"numpy": x, "torch": torch.from_numpy(x), "half": torch.from_numpy(x).bfloat16()})
    without, rows = np.array(eval(run.stdout)), here.rows
    sums = [INDEX["sum"], INDEX["sum_sq"], INDEX["sum_abs"]]  # NumPy takes them in runs of fp32
    allowed = 1e-7 * rows[:, [INDEX["sum_abs"], INDEX["sum_sq"], INDEX["sum_abs"]]]
    assert (abs(without[:, sums] - rows[:, sums]) <= allowed).all()
    assert (np.delete(without, sums, axis=1) == np.delete(rows, sums, axis=1)).all()


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
def test_the_number_of_threads_changes_nothing(count):
    gradients = [torch.randn(100 + 1000 * i) for i in range(count % 50)] + [torch.randn(10**6)]
    before = torch.get_num_threads()
    try:
        tables = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            tables.append(gf.measure(gradients))
    finally:
        torch.set_num_threads(before)
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_thresholds_between_two_numbers_of_a_narrow_type_are_kept_by_numpy(dtype):
    """1 is not above a limit that fp32 would round to 1 from below or above."""
    array = np.array([1.0, -1.0, 0.25, 0.0], dtype)
    for limit, large in ((1.0 - 1e-12, 2), (1.0, 0), (1.0 + 1e-12, 0)):
        row = numpy_ops.rows([array], Thresholds(near_zero=limit, very_large=limit))[0]
        assert row[COLUMNS.index("very_large")] == large
        assert row[COLUMNS.index("near_zero")] == (4 if limit > 1.0 else 2)


@pytest.mark.parametrize("zeros", [0, 3])
@pytest.mark.parametrize("tiny", [0, 2, 1000])
@pytest.mark.parametrize("near_zero", [0.0, 1e-7])
def test_zeros_among_few_or_many_elements_near_zero_are_counted(zeros, tiny, near_zero):
    array = np.full(5000, 0.5, np.float32)
    array[:zeros], array[zeros : zeros + tiny] = 0.0, -1e-9
    (row,) = numpy_ops.rows([array], Thresholds(near_zero, 1e3))
    assert row[INDEX["zeros"]] == zeros
    assert row[INDEX["near_zero"]] == (zeros + tiny if near_zero else 0)
