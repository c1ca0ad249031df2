import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # The cores are taken by other tests: threads of torch would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before anything imports Triton: its kernels then run on the CPU. They are compiled in processes of their own.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

KERNELS = ("native", "torch", "numpy")


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    """Each test that asks for this runs once with each kernel."""
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", request.param)
    return request.param
