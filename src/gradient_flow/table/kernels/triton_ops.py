"""The Triton kernel's host side: which chunks there are, two launches per dtype and device, rows that arrive later."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.arrivals import Copy
from gradient_flow.table.columns import COLUMNS, Rows, Thresholds, limits_in_float32
from gradient_flow.table.exponents import BINS
from gradient_flow.table.kernels import triton_kernel as kernel
from gradient_flow.table.kernels.pending import LateRows

CHUNK: Final = 1 << 15
"""Elements that one program reads. Fixed, so that sums are added up in the same order on every device."""
WARPS: Final = 4
OPTIONS: Final[dict[str, Any]] = {"num_warps": WARPS, "enable_fp_fusion": True}
"""Fusion is named, because without it Triton warns that its default will change."""
_WIDTH: Final = 128
"""Chunks that are merged at once."""
_ALIGNMENT: Final = 16
_MOST_KEPT: Final = 8


class Shape(NamedTuple):
    """How a tile lies in the registers of a program: `steps` elements for each of `lanes` accumulators."""

    steps: int
    lanes: int


NARROW: Final = Shape(4, 512)
SHAPES: Final = {
    kernel.FLOAT32.value: NARROW,
    kernel.BFLOAT16.value: NARROW,
    kernel.FLOAT16.value: NARROW,
    kernel.FLOAT8_E4M3.value: NARROW,
    kernel.FLOAT8_E5M2.value: NARROW,
    kernel.FLOAT64.value: Shape(8, 256),
    kernel.COMPLEX64.value: Shape(4, 256),
    kernel.COMPLEX128.value: Shape(4, 256),
}
"""By kind: as many elements as fit into registers without spilling."""
KINDS: Final = {
    torch.float32: kernel.FLOAT32.value,
    torch.float64: kernel.FLOAT64.value,
    torch.bfloat16: kernel.BFLOAT16.value,
    torch.float16: kernel.FLOAT16.value,
    torch.float8_e4m3fn: kernel.FLOAT8_E4M3.value,
    torch.float8_e5m2: kernel.FLOAT8_E5M2.value,
    torch.complex64: kernel.COMPLEX64.value,
    torch.complex128: kernel.COMPLEX128.value,
}


WIDE: Final = (kernel.FLOAT64.value, kernel.COMPLEX64.value, kernel.COMPLEX128.value)
"""Kinds whose elements are compared in fp64."""


class Launches:
    """How often a kernel was launched."""

    def __init__(self) -> None:
        self.count = 0


LAUNCHES: Final = Launches()


@torch.no_grad()
def rows(tensors: list[torch.Tensor], thresholds: Thresholds, scale: torch.Tensor | None = None) -> LateRows:
    """Start measuring flat, dense tensors; two launches for each dtype and device, and one copy for each device.

    `scale`: a factor in all of them that is known to the device alone; thresholds are meant without it.
    """
    order: list[list[int]] = []
    copies: list[Copy] = []
    for device, by_kind in _groups(tensors).items():
        positions = [position for members in by_kind.values() for position in members]
        result = torch.empty((len(positions), len(COLUMNS)), dtype=torch.float64, device=device)
        first = 0
        for kind, members in by_kind.items():
            part = result[first : first + len(members)]
            first += len(members)
            with _on(device):
                _measure([tensors[position] for position in members], kind, thresholds, part, scale)
        order.append(positions)
        copies.append(Copy(result))
    return LateRows(
        copies,
        lambda arrived: _in_order(arrived, order, len(tensors), len(COLUMNS)),
        (lambda: _ordered(result, order[0])) if len(order) == 1 else None,
    )


def _ordered(rows: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Rows in the order of the tensors; of one dtype they are in it already."""
    if order == sorted(order):
        return rows
    places = torch.from_numpy(np.argsort(np.array(order)))
    return rows.index_select(0, _sent(places, rows.device))


@torch.no_grad()
def exponents(tensors: list[torch.Tensor], shift: int | torch.Tensor) -> LateRows:
    """Start taking histograms of flat, dense tensors, in one launch for each dtype and device."""
    order: list[list[int]] = []
    copies: list[Copy] = []
    for device, by_kind in _groups(tensors).items():
        positions = [position for members in by_kind.values() for position in members]
        result = torch.zeros((len(positions), BINS), dtype=torch.int64, device=device)
        if isinstance(shift, torch.Tensor):
            divided_by = shift.to(device, torch.int64)
        else:
            divided_by = torch.full((), shift, dtype=torch.int64, device=device)
        first = 0
        for kind, members in by_kind.items():
            part = result[first : first + len(members)]
            first += len(members)
            with _on(device):
                _count([tensors[position] for position in members], kind, divided_by, part)
        order.append(positions)
        copies.append(Copy(result))
    return LateRows(copies, lambda arrived: _in_order(arrived, order, len(tensors), BINS))


def _count(tensors: list[torch.Tensor], kind: int, shift: torch.Tensor, result: torch.Tensor) -> None:
    table, chunk_count = _table_on(result.device, *_places(tensors), tensors[0].element_size())
    if chunk_count:
        arguments = (table, shift, result, chunk_count, len(tensors), kind, *SHAPES[kind])
        _launch(kernel.count_exponents, chunk_count, *arguments, **OPTIONS)


def _groups(tensors: list[torch.Tensor]) -> dict[torch.device, dict[int, list[int]]]:
    groups: dict[torch.device, dict[int, list[int]]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault(tensor.device, {}).setdefault(KINDS[tensor.dtype], []).append(position)
    return groups


def _in_order(arrived: list[np.ndarray], order: list[list[int]], count: int, width: int) -> Rows:
    matrix = np.empty((count, width))
    for positions, values in zip(order, arrived, strict=True):
        matrix[positions] = values
    return matrix


class Chunks(NamedTuple):
    """What a launch reads: `packed` holds addresses and lengths of chunks, bounds and counts of rows, then the row of
    each chunk."""

    packed: NDArray[np.int64]
    chunk_count: int
    row_count: int


def chunks_of(addresses: NDArray[np.int64], counts: NDArray[np.int64], item_size: int) -> Chunks:
    """Cut tensors into chunks that begin at multiples of 16 bytes; what lies before the first is one of its own."""
    heads = np.minimum(-addresses % _ALIGNMENT // item_size, counts)
    per_row = (heads > 0) + -(-(counts - heads) // CHUNK)
    bounds = np.concatenate([[0], np.cumsum(per_row)])
    chunk_count = int(bounds[-1])
    owner = np.repeat(np.arange(len(counts)), per_row)
    within = np.arange(chunk_count) - bounds[owner]  # 0, 1, 2 … in each row
    head = heads[owner]
    start = np.where(head > 0, np.where(within == 0, 0, head + (within - 1) * CHUNK), within * CHUNK)
    end = np.minimum(np.where((head > 0) & (within == 0), head, start + CHUNK), counts[owner])
    parts = (addresses[owner] + start * item_size, end - start, bounds, counts, owner)
    return Chunks(np.concatenate(parts).astype(np.int64), chunk_count, len(counts))


def _measure(
    tensors: list[torch.Tensor], kind: int, thresholds: Thresholds, result: torch.Tensor, scale: torch.Tensor | None
) -> None:
    limits = _limits_on(result.device, thresholds if kind in WIDE else limits_in_float32(thresholds))
    if scale is not None:
        limits = limits * scale.to(result.device, torch.float64)
    table, chunk_count = _table_on(result.device, *_places(tensors), tensors[0].element_size())
    partials = torch.empty((kernel.PARTIALS, max(chunk_count, 1)), dtype=torch.float64, device=result.device)
    steps, lanes = SHAPES[kind]
    if chunk_count:
        arguments = (table, limits, partials, chunk_count, kind, steps, lanes)
        _launch(kernel.measure_chunks, chunk_count, *arguments, **OPTIONS)
    parts = 2 if kind >= kernel.COMPLEX64.value else 1
    _launch(
        kernel.merge_chunks, len(tensors), table, partials, result, chunk_count, len(tensors), parts, _WIDTH, **OPTIONS
    )


def _places(tensors: list[torch.Tensor]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where tensors begin, and how many elements they have."""
    addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    return addresses, np.array([tensor.numel() for tensor in tensors], dtype=np.int64)


def launch_over(function: Any, tensors: list[torch.Tensor], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel with one program for each chunk of flat, dense tensors of one dtype on one device.

    It gets the table of chunks, the arguments, and how many chunks and tensors there are.
    """
    device = tensors[0].device
    with _on(device):
        table, chunk_count = _table_on(device, *_places(tensors), tensors[0].element_size())
        if chunk_count:
            _launch(function, chunk_count, table, *arguments, chunk_count, len(tensors), **constants, **OPTIONS)


def _launch(function: Any, programs: int, *arguments: Any, **options: Any) -> None:
    LAUNCHES.count += 1
    function[(programs,)](*arguments, **options)


_tables: Final[OrderedDict[Any, tuple[torch.Tensor, int]]] = OrderedDict()


def _table_on(
    device: torch.device, addresses: NDArray[np.int64], counts: NDArray[np.int64], item_size: int
) -> tuple[torch.Tensor, int]:
    """The table on its device. Gradients mostly lie where they lay a step ago, and then nothing is sent."""
    # By stream, too: what one stream has been sent may still be on its way when another reads it.
    key = (device, _stream(device), item_size, addresses.tobytes(), counts.tobytes())
    known = _tables.get(key)
    if known is not None:
        _tables.move_to_end(key)
        return known
    chunks = chunks_of(addresses, counts, item_size)
    known = _tables[key] = _sent(torch.from_numpy(chunks.packed), device), chunks.chunk_count
    while len(_tables) > _MOST_KEPT:
        _tables.popitem(last=False)
    return known


_limits: Final[dict[Any, torch.Tensor]] = {}


def _limits_on(device: torch.device, thresholds: Thresholds) -> torch.Tensor:
    key = (device, _stream(device), thresholds)
    if key not in _limits:
        if len(_limits) >= _MOST_KEPT:
            _limits.clear()
        _limits[key] = _sent(torch.tensor(thresholds, dtype=torch.float64), device)
    return _limits[key]


def _sent(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the device, without waiting for it."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def interpreted() -> bool:
    """Whether kernels run on the CPU, in Triton's interpreter."""
    return not hasattr(kernel.measure_chunks, "device_caches")


def _on(device: torch.device) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
