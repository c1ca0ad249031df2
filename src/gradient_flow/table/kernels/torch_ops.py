"""The torch kernel: for devices without Triton, tensor subclasses and installations without the C kernel.

Operations are launched by the megabyte, not by the tensor: tensors are gathered in a matrix whose lines belong to one
tensor each, every operation reduces all lines at once, and lines are merged into rows once they have come. No host
sync until then. Sums are in fp64; on a device that has none (MPS) a line is summed in fp32, and lines in fp64.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import torch

from gradient_flow.table.columns import COLUMNS, INDEX, Rows, Thresholds, merge_by_owner
from gradient_flow.table.kernels.pending import Copy, PendingRows

SHORT: Final = 256
"""Elements of a line of small tensors: a tensor is filled up to a multiple of it."""
LONG: Final = 1 << 14
"""Elements of a line of large tensors."""
_LARGE: Final = 1 << 16
"""From so many elements on a tensor is large. Its last elements, which fill no line, go with the small ones."""
CAPACITY: Final = {"cpu": 1 << 16}
"""Elements of a bucket. On the CPU its temporaries stay in the cache."""
DEVICE_CAPACITY: Final = 1 << 21
"""On a device only their memory is bounded: at most 30 bytes per element, 60 MiB."""
_EXACT_IN_FLOAT32: Final = (torch.float32, torch.bfloat16, torch.float16)


class _Piece(NamedTuple):
    """Some elements of one tensor."""

    owner: int
    elements: torch.Tensor


@torch.no_grad()
def rows(tensors: list[torch.Tensor], thresholds: Thresholds, capacity: int | None = None) -> PendingRows:
    """Start measuring dense tensors; their rows arrive later."""
    groups: dict[tuple[torch.device, torch.dtype], list[_Piece]] = {}
    for owner, tensor in enumerate(tensors):
        # fp32 holds all narrower numbers exactly, so one bucket takes them all.
        common = torch.float32 if tensor.dtype in _EXACT_IN_FLOAT32 else tensor.dtype
        groups.setdefault((tensor.device, common), []).append(_Piece(owner, tensor.detach().reshape(-1)))
    lines: dict[torch.device, list[torch.Tensor]] = {}
    owners: dict[torch.device, list[np.ndarray]] = {}
    filled: dict[torch.device, list[np.ndarray]] = {}
    for (device, dtype), pieces in groups.items():
        most = capacity or CAPACITY.get(device.type, DEVICE_CAPACITY)
        for bucket, width in _buckets(pieces, most):
            matrix = _matrix(bucket, width, dtype)
            lengths = np.array([len(piece.elements) for piece in bucket])
            per_piece = -(-lengths // width)
            padding = np.zeros(len(matrix))
            padding[np.cumsum(per_piece) - 1] = per_piece * width - lengths
            lines.setdefault(device, []).append(_columns(matrix, thresholds))
            owners.setdefault(device, []).append(np.repeat([piece.owner for piece in bucket], per_piece))
            filled.setdefault(device, []).append(padding)
    every_owner = np.concatenate([each for parts in owners.values() for each in parts] or [np.zeros(0, np.int64)])
    every_padding = np.concatenate([each for parts in filled.values() for each in parts] or [np.zeros(0)])

    def finish(arrived: list[np.ndarray]) -> Rows:
        measured = np.concatenate([*arrived, np.empty((0, len(COLUMNS)))])
        measured[:, INDEX["count"]] -= every_padding
        measured[:, INDEX["nan"]] -= every_padding
        return merge_by_owner(measured, every_owner, len(tensors))

    return PendingRows([Copy(torch.cat(parts)) for parts in lines.values()], finish)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a kind that these operations know."""
    return tensor.float() if tensor.dtype.is_floating_point and tensor.element_size() == 1 else tensor


def _buckets(pieces: list[_Piece], most: int) -> Iterator[tuple[list[_Piece], int]]:
    """Pieces that are measured together, none of them longer than `most`, and the width of their lines."""
    small: list[_Piece] = []
    large: list[_Piece] = []
    for owner, elements in pieces:
        body = len(elements) // LONG * LONG if len(elements) >= _LARGE else 0
        large += [_Piece(owner, elements[at : min(at + most, body)]) for at in range(0, body, most)]
        if body < len(elements):
            small.append(_Piece(owner, elements[body:] if body else elements))
    for kind, width in ((large, LONG), (small, SHORT)):
        bucket: list[_Piece] = []
        taken = 0
        for piece in kind:
            size = -(-len(piece.elements) // width) * width
            if bucket and taken + size > most:
                yield bucket, width
                bucket, taken = [], 0
            bucket.append(piece)
            taken += size
        if bucket:
            yield bucket, width


def _matrix(bucket: list[_Piece], width: int, dtype: torch.dtype) -> torch.Tensor:
    """All pieces as lines, the last of each filled up with NaN."""
    parts: list[torch.Tensor] = []
    for _, elements in bucket:
        parts.append(elements)
        if len(elements) % width:
            parts.append(_padding(elements.device, dtype)[len(elements) % width])
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole.to(dtype).reshape(-1, width)


@cache
def _padding(device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    """By how many elements a line has: what fills it up. Made once, so that filling up launches nothing."""
    line = torch.full((SHORT,), torch.nan, dtype=dtype, device=device)
    return [line[taken:] for taken in range(SHORT)]


def _columns(lines: torch.Tensor, thresholds: Thresholds) -> torch.Tensor:
    """All columns of each line, on its device. Elsewhere than on the CPU nothing may depend on what they are."""
    if lines.is_complex():
        return _complex_columns(lines, thresholds)
    if lines.device.type == "cpu":
        quick = _finite_columns(lines, thresholds)
        if quick is not None:
            return quick
    wide = torch.float32 if lines.device.type == "mps" else torch.float64  # MPS has no fp64
    sizes = lines.abs()
    finite = sizes < torch.inf
    values = torch.where(finite, lines, 0.0)
    column = {
        "parts": finite.sum(1),
        "min": torch.where(finite, lines, torch.inf).amin(1),
        "max": torch.where(finite, lines, -torch.inf).amax(1),
        "zeros": (sizes == 0).sum(1),
        "near_zero": (sizes < thresholds.near_zero).sum(1),
        "very_large": ((sizes > thresholds.very_large) & finite).sum(1),
        "nan": (lines != lines).sum(1),
        "neg_inf": (lines == -torch.inf).sum(1),
    }
    del sizes, finite
    values = values.to(wide)
    column |= {"sum": values.sum(1), "sum_abs": values.abs().sum(1)}
    if wide is torch.float32:
        # Of fp32 the squares would leave its range: each line is brought to a largest element of one.
        largest = torch.maximum(column["max"], -column["min"]).clamp(min=torch.finfo(wide).tiny)[:, None]
        column["sum_sq"] = (values / largest).square_().sum(1) * largest[:, 0].square()
    else:
        column["sum_sq"] = values.square_().sum(1)
    column["max_abs"] = torch.maximum(column["max"], -column["min"]).clamp(min=0.0)
    column["count"] = torch.full_like(column["sum"], lines.shape[1])
    column["inf"] = column["count"] - column["parts"] - column["nan"]
    return _stacked(column, wide)


def _stacked(column: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([column[name].to(dtype) for name in INDEX], dim=1)


def _finite_columns(lines: torch.Tensor, thresholds: Thresholds) -> torch.Tensor | None:
    """The same on the CPU, where counts that are mostly 0 need not be taken; None where an element is not finite."""
    wide = lines.to(torch.float64)
    column = {"sum": wide.sum(1), "min": lines.amin(1), "max": lines.amax(1)}
    if not bool(torch.isfinite(column["sum"]).all()):
        return None  # filled up with NaN, most often
    column["sum_sq"] = torch.linalg.vector_norm(wide, dim=1).square_()
    sizes = lines.abs()
    column["sum_abs"] = wide.abs_().sum(1)
    nothing = torch.zeros_like(column["sum"])
    column["count"] = column["parts"] = torch.full_like(nothing, lines.shape[1])
    column["max_abs"] = torch.maximum(column["max"], -column["min"])
    smallest = float(sizes.amin())
    column["zeros"] = (sizes == 0).sum(1) if smallest == 0 else nothing
    column["near_zero"] = (sizes < thresholds.near_zero).sum(1) if smallest < thresholds.near_zero else nothing
    is_large = float(column["max_abs"].max()) > thresholds.very_large
    column["very_large"] = (sizes > thresholds.very_large).sum(1) if is_large else nothing
    column["nan"] = column["inf"] = column["neg_inf"] = nothing
    return _stacked(column, torch.float64)


def _complex_columns(lines: torch.Tensor, thresholds: Thresholds) -> torch.Tensor:
    lines = lines.to(torch.complex128)
    parts = torch.view_as_real(lines)  # (lines, width, 2)
    nan = torch.isnan(parts).any(-1)
    up, down = (parts == torch.inf).any(-1) & ~nan, (parts == -torch.inf).any(-1) & ~nan
    finite = ~(nan | up | down)
    values = torch.where(finite[..., None], parts, 0.0).flatten(1)
    sizes = torch.where(finite, lines, 0.0).abs()
    column = {
        "count": torch.full(lines.shape[:1], lines.shape[1], device=lines.device),
        "parts": 2 * finite.sum(1),
        "sum": values.sum(1),
        "sum_sq": values.square().sum(1),
        "sum_abs": sizes.sum(1),
        "min": torch.where(finite[..., None], parts, torch.inf).flatten(1).amin(1),
        "max": torch.where(finite[..., None], parts, -torch.inf).flatten(1).amax(1),
        "max_abs": sizes.amax(1),
        "zeros": ((sizes == 0) & finite).sum(1),
        "near_zero": ((sizes < thresholds.near_zero) & finite).sum(1),
        "very_large": ((sizes > thresholds.very_large) & finite).sum(1),
        "nan": nan.sum(1),
        "inf": (up | down).sum(1),
        "neg_inf": down.sum(1) - 0.5 * (up & down).sum(1),
    }
    return _stacked(column, torch.float64)
