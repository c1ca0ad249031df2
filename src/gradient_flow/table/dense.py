"""Any gradient as a dense block of numbers that a kernel can read, and what that leaves to correct in its row."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradient_flow.errors import InputError
from gradient_flow.table import kernels

if TYPE_CHECKING:
    import torch


class Correction(NamedTuple):
    """How the row of the dense block becomes the row of the gradient."""

    repeat: int = 1
    """How often each number of the block occurs in the gradient (expanded dimensions)."""
    implicit_zeros: int = 0
    """Zeros that a sparse layout does not store."""
    parts: int = 1
    """Real numbers in one element."""


NONE = Correction()


def simplify(gradient: Any, name: str) -> tuple[Any, Correction]:
    """A dense array or tensor with the elements of `gradient`, copied only where its memory cannot be read in order."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(gradient, torch.Tensor):
        return _simplify_tensor(gradient.detach(), name)
    return _simplify_array(np.asanyarray(gradient), name)


def _simplify_array(array: np.ndarray, name: str) -> tuple[np.ndarray, Correction]:
    if array.dtype.kind not in "fciu":
        raise InputError(f"Gradient `{name}` must hold real or complex numbers, got an array of {array.dtype}.")
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(f"Gradient `{name}` is a masked array. Pass `.compressed()`, or `.filled(0)`.")
    repeat = 1
    if array.size and 0 in array.strides:
        repeat = int(np.prod([n for n, stride in zip(array.shape, array.strides, strict=True) if stride == 0]))
        array = array[tuple(slice(1) if stride == 0 else slice(None) for stride in array.strides)]
    if array.dtype not in (np.float64, np.float32, np.float16, np.complex128):
        with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN or a longdouble out of range is data
            array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    # Order "K" keeps transposed and Fortran-ordered arrays as they lie; only gaps and misalignment cost a copy.
    array = np.require(array.ravel(order="K"), requirements="A")
    return array, Correction(repeat=repeat) if repeat != 1 else NONE


def _simplify_tensor(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, Correction]:
    import torch

    if tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta" or tensor.dtype == torch.bool:
        kind = "nested" if tensor.is_nested else f"{tensor.device.type} {tensor.dtype}"
        raise InputError(f"Gradient `{name}` must be a tensor of real or complex numbers with data, got a {kind} one.")
    implicit = 0
    if tensor.layout == torch.sparse_coo:
        values = tensor.coalesce().values()
        tensor, implicit = values, tensor.numel() - values.numel()
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        values = tensor.values()
        tensor, implicit = values, tensor.numel() - values.numel()
    elif tensor.layout != torch.strided:
        tensor = tensor.to_dense()

    repeat = 1
    if tensor.numel() and 0 in tensor.stride():
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0:
                repeat *= tensor.shape[dimension]
                tensor = tensor.narrow(dimension, 0, 1)
    if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        tensor = tensor.resolve_conj().resolve_neg().clone()
    known = tensor.is_complex() or tensor.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    if not known and not kernels.reads_float8(tensor):
        tensor = tensor.to(torch.float64 if tensor.device.type == "cpu" else torch.float32)
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    parts = 2 if tensor.is_complex() else 1
    correction = Correction(repeat, implicit, parts) if repeat != 1 or implicit else NONE
    return _in_memory_order(tensor), correction


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order they lie in: transposed and channels-last tensors are read without a copy."""
    if tensor.is_contiguous():
        return tensor.reshape(-1)
    order = sorted(range(tensor.dim()), key=lambda d: tensor.stride(d), reverse=True)
    return tensor.permute(order).reshape(-1).contiguous()  # of one dimension, reshaping leaves gaps as they are
