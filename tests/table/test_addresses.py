"""Where tensors lie: what torch tells through DLPack is what it tells when asked question by question."""

import warnings

import pytest
import torch

import gradient_flow as gf
from gradient_flow.table.kernels import native

READ_IN_PLACE = {
    "plain": lambda: torch.randn(6, 4),
    "parameter": lambda: torch.nn.Parameter(torch.randn(6, 4)),
    "of no dimension": lambda: torch.tensor(1.0),
    "empty": lambda: torch.zeros(3, 0, 2),
    "empty and transposed": lambda: torch.zeros(3, 0, 2).permute(2, 1, 0),
    "a slice": lambda: torch.randn(24)[3:9],
    "one row with a stride that nobody takes": lambda: torch.randn(90).as_strided((1, 5), (77, 1)),
    "made in inference mode": lambda: torch.inference_mode()(torch.randn)(3),
    "bf16": lambda: torch.randn(5).bfloat16(),
    "fp16": lambda: torch.randn(5).half(),
    "fp64": lambda: torch.randn(5).double(),
}
NOT_READ_IN_PLACE = {
    "transposed": lambda: torch.randn(6, 4).T,
    "expanded": lambda: torch.randn(6, 1).expand(6, 5),
    "every second": lambda: torch.randn(10)[::2],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "negated on reading": lambda: torch._neg_view(torch.randn(6, 4)),
    "imaginary part of a conjugate": lambda: torch.tensor([1 + 2j]).conj().imag,
    "zeros without memory": lambda: torch._efficientzerotensor((5,)),
    "on a device": lambda: torch.zeros(3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "in the layout of oneDNN": lambda: torch.randn(6, 4).to_mkldnn(),
    "complex": lambda: torch.tensor([1 + 2j]),
    "whole numbers": lambda: torch.arange(3),
    "fp8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "misaligned": lambda: torch.frombuffer(bytearray(41), dtype=torch.float32, offset=1, count=10),
    "a subclass": lambda: torch.randn(3).as_subclass(type("Mine", (torch.Tensor,), {})),
}


def question_by_question(monkeypatch):
    """As with a torch that does not speak DLPack in C."""
    types, _ = native._torch_types()
    monkeypatch.setattr(native, "_torch_types", lambda: (types, None))


def made(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # compressed layouts are beta
        return make()


def test_this_torch_tells_through_dlpack():
    assert native._torch_types()[1] is not None


@pytest.mark.parametrize("kind", READ_IN_PLACE)
def test_dense_tensors_are_read_where_they_lie(kind, monkeypatch):
    tensor = made(READ_IN_PLACE[kind])
    one, two = native.addresses_of([tensor]), native.addresses_of([tensor, torch.ones(2), tensor])
    assert one is not None
    assert two is not None
    address, count = (int.from_bytes(each, "little") for each in one[:2])
    assert (address, count) == (tensor.data_ptr(), tensor.numel())
    question_by_question(monkeypatch)
    assert native.addresses_of([tensor]) == one
    assert native.addresses_of([tensor, torch.ones(2), tensor])[1:] == two[1:]


@pytest.mark.parametrize("kind", NOT_READ_IN_PLACE)
def test_others_are_not(kind, monkeypatch):
    tensor = made(NOT_READ_IN_PLACE[kind])
    assert native.addresses_of([tensor]) is None
    assert native.addresses_of([torch.ones(2), tensor]) is None
    question_by_question(monkeypatch)
    assert native.addresses_of([tensor]) is None
    assert native.addresses_of([torch.ones(2), tensor]) is None


def test_inside_a_transform_a_tensor_has_no_memory():
    seen = []

    def look(x):
        seen.append(native.addresses_of([x]))
        return x.sum()

    torch.vmap(look)(torch.randn(3, 4))
    torch.func.grad(look)(torch.randn(3))
    assert seen == [None, None]


def test_arrays_and_tensors_mixed_are_measured_one_by_one():
    ones = torch.ones(4)
    assert native.addresses_of([ones, ones.numpy()]) is None
    assert native.addresses_of([ones.numpy(), ones]) is None
    assert gf.measure([ones, ones.numpy(), 2.0]).l1.tolist() == [4, 4, 2]
