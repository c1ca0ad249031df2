"""The C kernel: addresses in, rows out."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gradient_flow.table.columns import COLUMNS, Rows, Thresholds
from gradient_flow.table.exponents import BINS, Counts
from gradient_flow.table.kernels._native import exponents as exponents_at
from gradient_flow.table.kernels._native import locate
from gradient_flow.table.kernels._native import measure as measure_at
from gradient_flow.table.kernels._native import total as total_of

_NUMPY_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 3}
"""Codes of `enum gf_kind` by dtype."""


_forked = False


def _is_forked() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    # A child has none of its parent's threads, but the pool that it inherits counts on them and would wait for ever.
    os.register_at_fork(after_in_child=_is_forked)


class Addresses(NamedTuple):
    """Where dense arrays lie in host memory: 64-bit integers, and a byte for each kind. Keeps no array alive."""

    addresses: bytes
    counts: bytes
    kinds: bytes


def addresses_of(arrays: list[Any]) -> Addresses | None:
    """Where the elements lie, or None if any array is not a dense block in host memory of a known kind."""
    types = set(map(type, arrays))
    if types <= {np.ndarray}:
        if not all(map(_readable, arrays)):
            return None
        addresses = np.array([array.ctypes.data for array in arrays], dtype=np.int64)
        counts = np.array([array.size for array in arrays], dtype=np.int64)
        kinds = bytes([_NUMPY_KINDS[array.dtype] for array in arrays])
        return Addresses(addresses.tobytes(), counts.tobytes(), kinds)
    torch = sys.modules.get("torch")
    if torch is None or not types <= {torch.Tensor, torch.nn.Parameter}:
        return None
    where = locate(arrays, _questions())
    return None if where is None else Addresses(*where)


def _readable(array: np.ndarray) -> bool:
    flags = array.flags
    return array.dtype in _NUMPY_KINDS and flags.aligned and (flags.c_contiguous or flags.f_contiguous)


@cache
def _questions() -> tuple[Any, ...]:
    """What `locate` asks of a tensor: types and dtypes, these in the order of `enum gf_kind`, a layout, and methods."""
    torch = sys.modules["torch"]
    tensor = torch.Tensor
    dtypes = torch.float32, torch.float64, torch.bfloat16, torch.float16
    methods = tensor.is_contiguous, tensor.is_neg, tensor.data_ptr, tensor.numel
    return (tensor, torch.nn.Parameter), dtypes, torch.strided, *methods


def rows(where: Addresses, thresholds: Thresholds, *, sizes_only: bool = False) -> Rows:
    """Measure all arrays in one call, with the interpreter lock released.

    `sizes_only`: norms, to the seven digits of fp32, and what is not finite, in a third of the time; all other columns
    are NaN.
    """
    filled = measure_at(where.addresses, where.counts, where.kinds, *thresholds, _threads(), sizes_only)
    return np.frombuffer(filled).reshape(-1, len(COLUMNS))


class InPlace:
    """Rows of tensors in host memory as the kernel left them; a call gives them as an array."""

    __slots__ = ("_filled",)

    def __init__(self, filled: bytearray) -> None:
        self._filled = filled

    def __call__(self) -> Rows:
        """The rows."""
        return np.frombuffer(self._filled).reshape(-1, len(COLUMNS))

    def ready(self) -> bool:
        """Always: they are here."""
        return True

    def total(self) -> tuple[float, ...]:
        """All rows as one, the same as `columns.merge_rows` gives."""
        return total_of(self._filled)


def rows_in_place(tensors: list[Any], thresholds: Thresholds) -> InPlace | None:
    """The rows of tensors that all lie in host memory, in as few steps as can be: this is every step of a training."""
    where = locate(tensors, _questions())
    return None if where is None else InPlace(measure_at(*where, *thresholds, _threads()))


def exponents(where: Addresses, shift: int) -> Counts:
    """Histograms of all arrays, whose elements are divided by 2^shift."""
    filled = exponents_at(where.addresses, where.counts, where.kinds, shift, _threads())
    return np.frombuffer(filled, dtype=np.int64).reshape(-1, BINS).astype(np.float64)


def _threads() -> int:
    torch = sys.modules.get("torch")
    return 1 if _forked else torch.get_num_threads() if torch is not None else len(os.sched_getaffinity(0))
