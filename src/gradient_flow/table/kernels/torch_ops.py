"""The torch kernel: for devices without Triton and for tensor subclasses.

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
from numpy.typing import NDArray

from gradient_flow.capture.arrivals import Copy, on_device
from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows, Thresholds, limits_in_float32, merge_by_owner
from gradient_flow.table.exponents import BIAS, BINS, FIELDS, LEFT_OUT, LOWEST, SMALLEST_NORMAL
from gradient_flow.table.kernels.pending import LateRows

SHORT: Final = 256
"""Elements of a line of small tensors: a tensor is filled up to a multiple of it."""
LONG: Final = 1 << 14
"""Elements of a line of large tensors."""
_LARGE: Final = 1 << 16
"""Elements from which on a tensor is large. Its last elements, which fill no line, go with the small ones."""
HOST_CAPACITY: Final = 1 << 19
"""Elements of a bucket. On the CPU its temporaries (4 MiB) stay in the cache that all cores share."""
DEVICE_CAPACITY: Final = 12 << 20
"""Bytes of a bucket on a device, where only memory is bounded: temporaries take up to five times as much, 60 MiB."""
_EXACT_IN_FLOAT32: Final = (torch.float32, torch.bfloat16, torch.float16)


Limit = float | torch.Tensor


class _Piece(NamedTuple):
    """Some elements of one tensor."""

    owner: int
    elements: torch.Tensor


class _Lines:
    """What the lines of one device are, as far as the host knows, and their columns."""

    def __init__(self) -> None:
        self.columns: list[torch.Tensor] = []
        # Of each piece, not yet of each line: a bucket is to cost the host as little as may be.
        self._owners: list[int] = []
        self._lengths: list[int] = []
        self._widths: list[int] = []
        self._raw: list[bool] = []

    def add(self, bucket: list[_Piece], width: int, dtype: torch.dtype, near: Limit, large: Limit) -> None:
        """Measure some pieces."""
        lines, is_raw = _matrix(bucket, width, dtype), not dtype.is_complex
        columns = _raw_columns(lines, near, large) if is_raw else _complex_columns(lines, near, large)
        self.columns.append(columns)
        self._owners += [piece.owner for piece in bucket]
        self._lengths += [piece.elements.numel() for piece in bucket]
        self._widths += [width] * len(bucket)
        self._raw += [is_raw] * len(bucket)

    def merged(self, lines: torch.Tensor, count: int) -> torch.Tensor:
        """The rows of `count` tensors, merged where the lines are: what `owned` and `merge_by_owner` do on the host."""
        known = torch.from_numpy(np.stack(self._by_line())).to(lines.device, non_blocking=True)
        lines = _merged_lines(lines, known[0], known[1])
        index = known[2].long()
        rows = torch.from_numpy(np.tile(EMPTY, (count, 1))).to(lines.device, non_blocking=True)
        merged = rows.index_add(0, index, lines)
        for name, way in (("min", "amin"), ("max", "amax"), ("max_abs", "amax")):
            at = INDEX[name]
            merged[:, at] = rows[:, at].scatter_reduce(0, index, lines[:, at], way)
        return merged

    def owned(self, lines: Rows) -> tuple[Rows, np.ndarray]:
        """The columns of lines as they have come, made complete; and whose they are."""
        widths, padding, owners = self._by_line()
        raw = np.repeat(self._raw, self._lines_per_piece())
        if raw.any():
            lines[raw] = _completed(lines[raw], widths[raw])
        lines[:, INDEX["count"]] -= padding
        lines[:, INDEX["nan"]] -= padding
        return lines, owners.astype(np.int64)

    def _lines_per_piece(self) -> NDArray[np.int64]:
        lines: NDArray[np.int64] = -(-np.array(self._lengths) // np.array(self._widths))
        return lines

    def _by_line(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Of each line: its width, how much of it is padding, whose it is."""
        per_piece = self._lines_per_piece()
        widths = np.repeat(self._widths, per_piece).astype(np.float64)
        padding = np.zeros(len(widths))
        padding[np.cumsum(per_piece) - 1] = per_piece * np.array(self._widths) - np.array(self._lengths)
        return widths, padding, np.repeat(self._owners, per_piece).astype(np.float64)


@torch.no_grad()
def rows(tensors: list[torch.Tensor], thresholds: Thresholds, scale: torch.Tensor | None = None) -> LateRows:
    """Start measuring dense tensors; their rows arrive later.

    `scale`: a factor in all of them that is known to the device alone; thresholds are meant without it.
    """
    by_device: dict[torch.device, _Lines] = {}
    for (device, dtype), pieces in _groups(tensors).items():
        most = DEVICE_CAPACITY // dtype.itemsize if on_device(pieces[0].elements) else HOST_CAPACITY
        limits = limits_in_float32(thresholds) if dtype == torch.float32 else thresholds
        near, large = (limit if scale is None else limit * scale.to(device) for limit in limits)
        for bucket, width in _buckets(pieces, most):
            by_device.setdefault(device, _Lines()).add(bucket, width, dtype, near, large)

    def finish(arrived: list[np.ndarray]) -> Rows:
        owned = [lines.owned(values) for lines, values in zip(by_device.values(), arrived, strict=True)]
        every_line = np.concatenate([np.empty((0, len(COLUMNS))), *(lines for lines, _ in owned)])
        owners = np.concatenate([np.empty(0, np.int64), *(owner for _, owner in owned)])
        return merge_by_owner(every_line, owners, len(tensors))

    whole = [torch.cat(lines.columns) for lines in by_device.values()]

    def rows_there() -> torch.Tensor:
        (lines,) = by_device.values()
        return lines.merged(whole[0], len(tensors))

    mergeable = len(whole) == 1 and all(map(_is_raw, tensors))
    return LateRows([Copy(columns) for columns in whole], finish, rows_there if mergeable else None)


def _is_raw(tensor: torch.Tensor) -> bool:
    """Whether its lines are as `_raw_columns` leaves them, with sums in fp64."""
    return on_device(tensor) and not tensor.is_complex() and _sum_dtype(tensor.device) is torch.float64


@torch.no_grad()
def exponents(tensors: list[torch.Tensor], shift: int | torch.Tensor) -> LateRows:
    """Start taking histograms of dense tensors, whose elements are divided by 2^shift."""
    by_device: dict[torch.device, torch.Tensor] = {}
    for (device, dtype), pieces in _groups(tensors).items():
        # Places of counts take 8 bytes per element, so a bucket has half of what that of a table has.
        most = DEVICE_CAPACITY // dtype.itemsize // 2 if on_device(pieces[0].elements) else HOST_CAPACITY
        if device not in by_device:
            whole = torch.int32 if device.type == "mps" else torch.int64
            by_device[device] = torch.zeros(len(tensors) * (BINS + 1), dtype=whole, device=device)
        bins = _bins_of_fields(shift, device)
        one = torch.ones((), dtype=by_device[device].dtype, device=device)
        for bucket, width in _buckets(pieces, most):
            owners = np.repeat([p.owner for p in bucket], [-(-len(p.elements) // width) for p in bucket])
            first = torch.from_numpy(owners * (BINS + 1)).to(device, non_blocking=True)  # (lines,)
            places = bins[_fields(_matrix(bucket, width, dtype))].add_(first[:, None]).flatten()
            by_device[device].scatter_add_(0, places, one.expand_as(places))

    def finish(arrived: list[np.ndarray]) -> Rows:
        whole = np.zeros((len(tensors), BINS))
        for counts in arrived:
            whole += counts.reshape(-1, BINS + 1)[:, :BINS]
        return whole

    return LateRows([Copy(counts) for counts in by_device.values()], finish)


def _bins_of_fields(shift: int | torch.Tensor, device: torch.device) -> torch.Tensor:
    """`exponents.bins_of_fields` where only the device may know the shift."""
    field = torch.arange(FIELDS, device=device)
    exponent = field - BIAS - (shift.to(device, torch.int64) if isinstance(shift, torch.Tensor) else shift)
    bins = (exponent - LOWEST + 2).clamp_(1, BINS - 1)
    bins.masked_fill_((exponent < SMALLEST_NORMAL) | (field == 0), 0)
    return bins.masked_fill_(field == FIELDS - 1, LEFT_OUT)


def _fields(lines: torch.Tensor) -> torch.Tensor:
    """The exponent of each element as fp32 has it, as an index; of a zero, that of NaN."""
    if lines.is_complex():
        finite = torch.isfinite(torch.view_as_real(lines)).all(-1)
        lines = lines.to(torch.complex128).abs().masked_fill_(~finite, torch.nan)
    if lines.dtype == torch.float32:
        fields = lines.contiguous().view(torch.int32).bitwise_right_shift(23).bitwise_and_(255)
    else:
        fields = lines.contiguous().view(torch.int64).bitwise_right_shift(52).bitwise_and_(2047)
        bad = fields == 2047
        fields = fields.sub_(1023 - BIAS).clamp_(0, FIELDS - 2).masked_fill_(bad, FIELDS - 1)
    return fields.masked_fill_(lines == 0, FIELDS - 1).long()


def _groups(tensors: list[torch.Tensor]) -> dict[tuple[torch.device, torch.dtype], list[_Piece]]:
    groups: dict[tuple[torch.device, torch.dtype], list[_Piece]] = {}
    for owner, tensor in enumerate(tensors):
        # fp32 holds all narrower numbers exactly, so one bucket takes them all.
        common = torch.float32 if tensor.dtype in _EXACT_IN_FLOAT32 else tensor.dtype
        groups.setdefault((tensor.device, common), []).append(_Piece(owner, tensor.detach().reshape(-1)))
    return groups


def _sum_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no fp64


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


def _raw_columns(lines: torch.Tensor, near: Limit, large: Limit) -> torch.Tensor:
    """Columns without those that follow from others, which `_completed` adds: each would be one more launch."""
    wide = _sum_dtype(lines.device)
    sizes = lines.abs()
    finite = sizes < torch.inf
    bad = ~finite
    values = lines.masked_fill(bad, 0.0)
    column = {
        "parts": finite.sum(1, dtype=wide),
        "min": lines.masked_fill(bad, torch.inf).amin(1),
        "max": lines.masked_fill(bad, -torch.inf).amax(1),
        "zeros": (sizes == 0).sum(1, dtype=wide),
        "near_zero": (sizes < near).sum(1, dtype=wide),
        "very_large": (sizes > large).sum(1, dtype=wide),
        "nan": (lines != lines).sum(1, dtype=wide),
        "neg_inf": (lines == -torch.inf).sum(1, dtype=wide),
    }
    del sizes, finite, bad
    values = values.to(wide)
    column["sum"] = values.sum(1)
    column["sum_abs"] = values.abs_().sum(1)
    scale = torch.ones_like(column["sum"])
    if wide is torch.float32:
        # Of fp32 the squares would leave its range: each line is brought to a largest element of one.
        scale = values.amax(1).clamp_(min=torch.finfo(wide).tiny)
        values.div_(scale[:, None])
    column["sum_sq"] = values.square_().sum(1)
    column["count"] = column["max_abs"] = column["inf"] = scale
    return _stacked(column, wide)


def _completed(lines: Rows, width: np.ndarray) -> Rows:
    scale = lines[:, INDEX["count"]].copy()
    infinite = width - lines[:, INDEX["parts"]] - lines[:, INDEX["nan"]]
    lines[:, INDEX["count"]] = width
    lines[:, INDEX["sum_sq"]] *= scale**2
    lines[:, INDEX["inf"]] = infinite
    lines[:, INDEX["very_large"]] -= infinite  # an infinite element is above every limit
    largest = np.maximum(lines[:, INDEX["max"]], -lines[:, INDEX["min"]])
    lines[:, INDEX["max_abs"]] = np.where(largest > 0, largest, 0.0)
    return lines


def _merged_lines(lines: torch.Tensor, width: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """What `_completed` does, and the padding taken out, on the device. Sums are in fp64, so nothing was scaled."""
    lines = lines.clone()
    infinite = width - lines[:, INDEX["parts"]] - lines[:, INDEX["nan"]]
    lines[:, INDEX["count"]] = width - padding
    lines[:, INDEX["nan"]] -= padding
    lines[:, INDEX["inf"]] = infinite
    lines[:, INDEX["very_large"]] -= infinite
    largest = torch.maximum(lines[:, INDEX["max"]], -lines[:, INDEX["min"]])
    lines[:, INDEX["max_abs"]] = largest.clamp(min=0.0)
    return lines


def _stacked(column: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([column[name].to(dtype) for name in INDEX], dim=1)


def _complex_columns(lines: torch.Tensor, near: Limit, large: Limit) -> torch.Tensor:
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
        "near_zero": ((sizes < near) & finite).sum(1),
        "very_large": ((sizes > large) & finite).sum(1),
        "nan": nan.sum(1),
        "inf": (up | down).sum(1),
        "neg_inf": down.sum(1) - 0.5 * (up & down).sum(1),
    }
    return _stacked(column, torch.float64)
