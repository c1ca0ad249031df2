"""A forked child has none of its parent's threads: it measures with its own one, without hanging."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import gradient_flow as gf
from gradient_flow.table import kernels

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.skipif(not kernels.NATIVE, reason="the native kernel was not built"),
]

SCRIPT = """
import os, signal, sys
import torch
import gradient_flow as gf
torch.set_num_threads(4)
gradient = torch.ones(1 << 22)
whole = gf.measure([gradient]).total.norm  # the pool of the parent is up
child = os.fork()
if child == 0:
    signal.alarm(50)  # one that hangs ends by itself
    before = len(os.listdir("/proc/self/task"))
    norm = gf.measure([gradient]).total.norm
    os._exit(0 if norm == whole and len(os.listdir("/proc/self/task")) == before else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_a_forked_child_measures_with_its_one_thread():
    """In a process of its own, whose pool is its own too."""
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, timeout=60, check=False)
    assert done.returncode == 0


class Measured(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return gf.measure([torch.full((1 << 20,), float(at))]).total.norm


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of fork beside threads; few cores
def test_workers_of_a_data_loader_measure():
    gf.measure([torch.ones(1 << 20)])

    def give_up(*_):
        raise TimeoutError("a worker hangs")

    before, start = signal.signal(signal.SIGALRM, give_up), time.time()
    signal.alarm(60)
    try:
        loader = torch.utils.data.DataLoader(Measured(), batch_size=None, num_workers=1, multiprocessing_context="fork")
        assert list(loader) == pytest.approx([at * 1024.0 for at in range(4)])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert time.time() - start < 60


def test_rows_do_not_depend_on_it(monkeypatch):
    from gradient_flow.table.kernels import native

    gradient = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0))
    whole = gf.measure([gradient]).rows
    monkeypatch.setattr(native, "_forked", True)
    assert np.array_equal(gf.measure([gradient]).rows, whole)
