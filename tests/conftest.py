import pytest

KERNELS = ("native", "torch", "numpy")


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    """Each test that asks for this runs once with each kernel."""
    monkeypatch.setenv("GRADIENT_FLOW_KERNEL", request.param)
    return request.param
