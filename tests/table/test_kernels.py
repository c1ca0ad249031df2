import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradient_flow as gf
from gradient_flow.table import kernels
from gradient_flow.table.columns import COLUMNS
from gradient_flow.table.kernels import torch_ops

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
    with pytest.raises(gf.KernelError, match="must be one of native, torch, numpy; got 'cuda'"):
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


@pytest.mark.parametrize("gradient", [torch.randn(100_000), torch.tensor([1.0, torch.nan, torch.inf])])
def test_the_torch_kernel_reads_no_scalar_before_its_one_transfer(gradient):
    with CountHostReads() as counter:
        wait = torch_ops.rows([gradient, gradient.to(torch.bfloat16)], gf.GradientTable((), np.empty(0)).thresholds)
    assert counter.reads == 0
    with CountHostReads() as counter:
        rows = wait()
    assert counter.reads == 0  # `.to("cpu")` of one stacked matrix
    assert rows.shape == (2, len(COLUMNS))


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
    np.testing.assert_allclose(np.array(eval(run.stdout)), here.rows, rtol=1e-12, atol=1e-9)


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
