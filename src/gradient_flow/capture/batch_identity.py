"""What tells one batch from another: a few elements of each tensor, and a salted hash of them.

Taking the elements is one small gather per tensor and waits for no device; the hash is computed on demand. Each process
draws its own salt, so that a hash does not reveal what was in a batch.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.sharding import local_part

ELEMENTS: Final = 64
"""Of each tensor."""
_MOST_TENSORS: Final = 4
STEP: Final = 0.6180339887498949
"""Multiples of the golden ratio are spread evenly, and along no row or column."""

_OF_NUMPY: Final = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8))


class Lying(NamedTuple):
    """Elements as they lay in memory: `ELEMENTS` of a flat tensor, where multiples of `STEP` fall in it."""

    elements: bytes
    dtype: torch.dtype


Sample = tuple[tuple[int, ...], torch.Tensor | Lying]
"""Shape of a tensor, and some of its elements."""


def sample_of(tensors: Iterable[torch.Tensor]) -> list[Sample]:
    """Some elements of the first tensors. No wait for a device."""
    found: list[Sample] = []
    for tensor in tensors:
        if len(found) == _MOST_TENSORS:
            break
        if _is_plain(tensor):
            # A gather of a few elements takes NumPy a fraction of what it takes torch to get going.
            flat = tensor.detach().numpy().reshape(-1)
            if len(flat):
                found.append((tuple(tensor.shape), torch.from_numpy(flat[_flat_places(len(flat))])))
            continue
        own = local_part(tensor)
        if own.layout is torch.strided and own.numel() and not own.is_meta:
            shape = tuple(own.shape)
            places = _places(shape, own.device)
            found.append((shape, own[places] if places else own.reshape(1).clone()))
    return found


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether NumPy reads the memory of a tensor as it lies."""
    known = type(tensor) is torch.Tensor and tensor.dtype in _OF_NUMPY and tensor.is_cpu
    return known and tensor.is_contiguous() and not tensor.is_neg()


@cache
def process_salt() -> bytes:
    """The same for all runs of a process, so that they can be compared."""
    return secrets.token_bytes(16)  # from the system, not from a generator that a training draws from


@lru_cache(maxsize=64)
def _places(shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Where in a tensor of this shape: by an index, since to flatten a tensor may copy it."""
    if not shape:
        return ()
    elements = 1
    for size in shape:
        elements *= size
    return tuple(index.to(device) for index in torch.unravel_index(torch.from_numpy(_flat_places(elements)), shape))


@lru_cache(maxsize=64)
def _flat_places(elements: int) -> NDArray[np.int64]:
    """The same in a tensor that is laid out flat."""
    count = min(ELEMENTS, elements)
    first = np.arange(count)
    return first if count == elements else (first * STEP % 1 * elements).astype(np.int64)


def same_tensor(one: Sample, other: Sample) -> bool:
    """Whether two samples are of equal tensors, as far as they tell; devices and types of numbers do not matter."""
    return one[0] == other[0] and torch.equal(_numbers(one[1]), _numbers(other[1]))


def hash_of(samples: Iterable[Sample], salt: bytes) -> str:
    """Twelve hexadecimal digits. Waits for a device."""
    digest = hashlib.blake2b(key=salt, digest_size=6)
    for shape, elements in samples:
        digest.update(repr(tuple(shape)).encode())
        digest.update(_numbers(elements).numpy().tobytes())
    return digest.hexdigest()


def _numbers(elements: torch.Tensor | Lying) -> torch.Tensor:
    if isinstance(elements, Lying):
        elements = torch.frombuffer(bytearray(elements.elements), dtype=elements.dtype)
    plain: Any = torch.view_as_real(elements) if elements.is_complex() else elements
    return torch.nan_to_num(plain.detach().cpu().double(), nan=-1.5e300)
