"""Some elements of many tensors at once, in double precision: what is compared before and after a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.sharding import local_part
from gradient_flow.table import kernels

Floats = NDArray[np.float64]


class Elements(NamedTuple):
    """Elements of several tensors, one tensor after the other."""

    values: Floats
    counts: list[int]
    """How many there are of each tensor."""

    def parts(self) -> list[Floats]:
        """Those of each tensor by itself."""
        parts, at = [], 0
        for count in self.counts:
            parts.append(self.values[at : at + count])
            at += count
        return parts


def some_elements(tensors: Sequence[torch.Tensor], most: int, run: int = 1) -> Elements:
    """Up to `most` elements of each tensor, which must be strided, from all over it: of a small one all.

    They are the same each time, whatever kernel reads them. Runs of neighbours cost less memory traffic than single
    elements, and tell less of a tensor whose rows differ. Of a sharded tensor each rank reads its own part; a complex
    element counts as two numbers.

    >>> some_elements([torch.arange(3.0), torch.ones(100)], most=4).parts()
    [array([0., 1., 2.]), array([1., 1., 1., 1.])]
    """
    given = list(tensors)
    if kernels.NATIVE and kernels.forced() is None:
        found = kernels.native.some_elements(given, most, run)
        if found is not None:
            return Elements(*found)
    return _by_torch([local_part(tensor) for tensor in given], most, run)


def _by_torch(tensors: list[Any], most: int, run: int) -> Elements:
    """With one wait for each device and type."""
    parts = []
    for tensor in tensors:
        flat = tensor.reshape(-1)
        part = flat if flat.numel() <= most else flat[_places_on(flat.device, flat.numel(), most, run)]
        parts.append(torch.view_as_real(part.resolve_conj()).flatten() if part.is_complex() else part)
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, part in enumerate(parts):
        alike.setdefault((part.device, part.dtype), []).append(at)
    counts = [part.numel() for part in parts]
    found: list[Floats] = [np.empty(0)] * len(parts)
    for members in alike.values():
        joined = torch.cat([parts[at] for at in members]).detach()
        wide = joined if joined.dtype is torch.float64 else joined.float()
        values = wide.cpu().numpy().astype(np.float64)
        for at, own in zip(members, np.split(values, np.cumsum([counts[at] for at in members])[:-1]), strict=True):
            found[at] = own
    return Elements(np.concatenate(found) if found else np.empty(0), counts)


def places_of(count: int, most: int, run: int) -> NDArray[np.int64]:
    """Which elements of a large tensor are taken, as `gf_sample` of the C kernel does: a run from each of many equal
    stretches, at another place in each, so that no column of a matrix stands for all of them.

    >>> places_of(100, 4, 2).tolist()
    [0, 1, 98, 99]
    """
    which = np.arange(most // run, dtype=np.uint64)
    stretch = count // len(which)
    within = ((which * np.uint64(2654435761)) >> np.uint64(7)) % np.uint64(stretch - run + 1)
    first = (which * np.uint64(stretch) + within).astype(np.int64)
    return np.asarray((first[:, None] + np.arange(run)).reshape(-1))


@lru_cache(maxsize=256)
def _places_on(device: torch.device, count: int, most: int, run: int) -> torch.Tensor:
    """Kept there: to bring them to a device takes longer than to read what is there."""
    return torch.from_numpy(places_of(count, most, run)).to(device)
