"""The C kernel: addresses in, rows out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradient_flow.table.columns import COLUMNS, Rows, Thresholds
from gradient_flow.table.exponents import BINS, Counts
from gradient_flow.table.kernels._native import exponents as exponents_at
from gradient_flow.table.kernels._native import locate, measure_tensors, sample_tensors, spaced, spread
from gradient_flow.table.kernels._native import measure as measure_at
from gradient_flow.table.kernels._native import total as total_of

_NUMPY_KINDS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 3}
"""Codes of `enum gf_kind` by dtype."""
_UNKNOWN = 255
_ITEM_SIZES = np.array([4, 8, 2, 2])
"""Bytes by code."""


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
    torch = sys.modules.get("torch")
    if torch is not None and arrays and type(arrays[0]) is not np.ndarray:
        return _addresses_of_tensors(arrays, torch)
    if not all(type(array) is np.ndarray and _readable(array) for array in arrays):
        return None
    addresses = np.array([array.ctypes.data for array in arrays], dtype=np.int64)
    counts = np.array([array.size for array in arrays], dtype=np.int64)
    kinds = bytes([_NUMPY_KINDS[array.dtype] for array in arrays])
    return Addresses(addresses.tobytes(), counts.tobytes(), kinds)


def _addresses_of_tensors(tensors: list[Any], torch: Any) -> Addresses | None:
    types, exchange_api = _torch_types()
    if exchange_api is not None:
        found = locate(tensors, types, exchange_api)
        return None if found is None or _any_negated(tensors) else Addresses(*found)
    if len(tensors) == 1 and type(tensors[0]) in types:
        return _address_of_tensor(tensors[0], torch.strided)
    if not set(map(type, tensors)).issubset(types):
        return None
    # Each question goes to all tensors at once, without a Python frame per tensor: ten thousand are not rare.
    kinds = bytes(map(_torch_kinds().get, map(attrgetter("dtype"), tensors), repeat(_UNKNOWN)))
    if (
        _UNKNOWN in kinds
        or set(map(attrgetter("layout"), tensors)) != {torch.strided}
        or not all(map(attrgetter("is_cpu"), tensors))
        or not all(map(torch.Tensor.is_contiguous, tensors))
        or any(map(torch.Tensor.is_neg, tensors))
    ):
        return None
    addresses = np.array(list(map(torch.Tensor.data_ptr, tensors)), dtype=np.int64)
    counts = np.array(list(map(torch.Tensor.numel, tensors)), dtype=np.int64)
    without_memory = (addresses == 0) & (counts > 0)
    misaligned = addresses & (_ITEM_SIZES[np.frombuffer(kinds, dtype=np.uint8)] - 1)
    if without_memory.any() or misaligned.any():
        return None
    return Addresses(addresses.tobytes(), counts.tobytes(), kinds)


def _any_negated(tensors: list[Any]) -> bool:
    """Whether one has a sign that is applied on reading: the one thing that DLPack does not tell."""
    return any(map(type(tensors[0]).is_neg, tensors))


def _address_of_tensor(tensor: Any, strided: Any) -> Addresses | None:
    """The same for one tensor, which is what a hook has: there, microseconds count."""
    kind = _torch_kinds().get(tensor.dtype, -1)
    if kind < 0 or tensor.layout is not strided or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return None
    address, count = tensor.data_ptr(), tensor.numel()
    if (address == 0 and count > 0) or address % tensor.element_size():
        return None
    return Addresses(address.to_bytes(8, sys.byteorder), count.to_bytes(8, sys.byteorder), bytes([kind]))


def _readable(array: np.ndarray) -> bool:
    flags = array.flags
    return array.dtype in _NUMPY_KINDS and flags.aligned and (flags.c_contiguous or flags.f_contiguous)


@cache
def _torch_types() -> tuple[tuple[type, ...], Any]:
    """What lies in memory as it looks (subclasses need not), and how torch tells where; None before torch 2.10."""
    torch = sys.modules["torch"]
    return (torch.Tensor, torch.nn.Parameter), getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


@cache
def _torch_kinds() -> dict[Any, int]:
    torch = sys.modules["torch"]
    return {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def reader(thresholds: Thresholds, *, sizes_only: bool = False) -> Callable[[list[Any]], Rows | None]:
    """A function that gives what `rows` does of arrays that can all be read where they lie, else None.

    What does not depend on the arrays is settled here: in a hook, microseconds count.
    """
    near, large = thresholds
    types, exchange_api = _torch_types() if "torch" in sys.modules else ((), None)

    def read(arrays: list[Any]) -> Rows | None:
        if exchange_api is None or not arrays or type(arrays[0]) not in types:
            filled = _filled(arrays, thresholds, sizes_only=sizes_only)
        else:
            filled = measure_tensors(arrays, types, exchange_api, near, large, _threads(), sizes_only)
            if filled is None or (not sizes_only and _any_negated(arrays)):  # of sizes a sign changes nothing
                return None
        return None if filled is None else np.ndarray((len(arrays), len(COLUMNS)), np.float64, filled)

    return read


def rows(where: Addresses, thresholds: Thresholds, *, sizes_only: bool = False) -> Rows:
    """Measure all arrays in one call, with the interpreter lock released.

    `sizes_only`: norms, to the seven digits of fp32, and what is not finite, in a third of the time; all other columns
    are NaN.
    """
    filled = measure_at(where.addresses, where.counts, where.kinds, *thresholds, _threads(), sizes_only)
    return np.frombuffer(filled).reshape(-1, len(COLUMNS))


def rows_of_parts(array: np.ndarray, sizes: list[int], thresholds: Thresholds) -> Rows:
    """The rows of the parts of a flat array, fp32 or fp64, that lie one after the other in it."""
    counts = np.array(sizes, dtype=np.int64)
    addresses = array.__array_interface__["data"][0] + (np.cumsum(counts) - counts) * array.itemsize
    kinds = bytes([_NUMPY_KINDS[array.dtype]]) * len(sizes)
    return rows(Addresses(addresses.tobytes(), counts.tobytes(), kinds), thresholds)


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
    filled = _filled(tensors, thresholds, sizes_only=False)
    return None if filled is None else InPlace(filled)


def _filled(tensors: list[Any], thresholds: Thresholds, *, sizes_only: bool) -> bytearray | None:
    """What the kernel makes of arrays that can all be read where they lie, else None."""
    types, exchange_api = _torch_types() if "torch" in sys.modules else ((), None)
    if exchange_api is None or not tensors or type(tensors[0]) not in types:
        where = addresses_of(tensors)
        return None if where is None else measure_at(*where, *thresholds, _threads(), sizes_only)
    filled = measure_tensors(tensors, types, exchange_api, *thresholds, _threads(), sizes_only)
    return None if filled is None or _any_negated(tensors) else filled


def some_elements(tensors: list[Any], most: int, run: int) -> tuple[NDArray[np.float64], list[int]] | None:
    """Elements of tensors that all lie in host memory, one tensor after the other, and how many of each; else None."""
    types, exchange_api = _torch_types() if "torch" in sys.modules else ((), None)
    found = sample_tensors(tensors, types, exchange_api, most, run) if exchange_api is not None and tensors else None
    if found is None or _any_negated(tensors):
        return None
    return np.frombuffer(found[0]), found[1]


def spaced_elements(tensors: list[Any], most: int) -> tuple[NDArray[Any], list[int]] | None:
    """Evenly spaced elements of tensors in host memory, all fp32 or all fp64, and how many of each; else None."""
    types, exchange_api = _torch_types() if "torch" in sys.modules else ((), None)
    found = spaced(tensors, types, exchange_api, most) if exchange_api is not None and tensors else None
    if found is None or _any_negated(tensors):
        return None
    return np.frombuffer(found[0], np.float64 if tensors[0].element_size() == 8 else np.float32), found[1]


def spreader(most: int, step: float) -> Callable[[Any], bytes | None] | None:
    """A function that gives elements of a tensor as they lie, or None where it is not a dense block in host memory.

    They are spread over it by multiples of `step`. None where torch does not tell where tensors lie.
    """
    types, exchange_api = _torch_types()
    if exchange_api is None:
        return None

    def elements(tensor: Any) -> bytes | None:
        found = spread(tensor, types, exchange_api, most, step)
        return None if found is None or tensor.is_neg() else found

    return elements


def exponents(where: Addresses, shift: int) -> Counts:
    """Histograms of all arrays, whose elements are divided by 2^shift."""
    filled = exponents_at(where.addresses, where.counts, where.kinds, shift, _threads())
    return np.frombuffer(filled, dtype=np.int64).reshape(-1, BINS).astype(np.float64)


def _threads() -> int:
    torch = sys.modules.get("torch")
    return 1 if _forked else torch.get_num_threads() if torch is not None else len(os.sched_getaffinity(0))
