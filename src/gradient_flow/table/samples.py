"""What a few rows of an activation or of its gradient tell: units that never fire, samples that get nothing, rank.

A row is one sample at one position, a column one unit. At most `ROWS` rows and `UNITS` columns are looked at, evenly
spaced, so that the cost stays small whatever the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.table import kernels
from gradient_flow.table.columns import EMPTY, INDEX, Rows, Thresholds, norm

if TYPE_CHECKING:
    from torch import nn

ROWS: Final = 128
UNITS: Final = 128
LARGE: Final = 1 << 17
"""Elements of a tensor that is not read as a whole where some of its rows will do."""
ELEMENTS: Final = 1024
_RUN: Final = 32
_PATCHES: Final = 512
_MOST_IN_PATCH: Final = 256
"""Patches of which a rank is taken, and numbers in one of them."""
_LEAST_FOR_RANK: Final = 8
_FEW_POSITIONS: Final = 8
_PARTS: Final = 8
"""Of a sequence, the last of which is its end."""
_COUNT, _SUM_SQ = INDEX["count"], INDEX["sum_sq"]
_OF_NUMPY: Final = (torch.float16, torch.float32, torch.float64)
HARDLY: Final = 0.01
"""Share of the gradient at the last position of a sequence that counts as none."""
FLAT: Final = 0.05
"""A slope below this share of the largest is flat."""
_UNITS_SECOND: Final = (
    *("Conv", "BatchNorm", "GroupNorm", "InstanceNorm"),
    *("Pool2d", "Pool1d", "Pool3d", "Dropout2d", "Upsample"),
)


def units_come_second(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether units lie along dimension 1, as after convolutions, and not along the last."""
    return len(shape) >= 3 and _by_name(type(module).__name__)


@cache
def _by_name(kind: str) -> bool:
    return any(word in kind for word in _UNITS_SECOND)


def sample(tensor: torch.Tensor, units_second: bool, most: int = ROWS) -> torch.Tensor:
    """Evenly spaced rows and units: (samples, positions, units), of which samples × positions ≤ `most`. A copy."""
    if tensor.dim() == 1:
        tensor = tensor[:, None]
    if units_second:
        tensor = tensor.flatten(2).transpose(1, 2)
    elif tensor.dim() > 3:
        tensor = tensor.flatten(1, -2)
    elif tensor.dim() == 2:
        tensor = tensor[:, None]
    few = tensor[_spacing(tensor.shape, most)]
    return few.to(torch.float32, copy=True)  # a view would keep all of it alive, and change with it in place


def rows_on_host(tensor: torch.Tensor, units_second: bool, most: int = ROWS) -> NDArray[np.float32]:
    """What `sample` gives, as an array, of a tensor in host memory: without a copy where NumPy reads it as it lies.

    Of a few numbers NumPy has the answer before torch gets going. Good until the tensor changes.
    """
    array = _as_it_lies(tensor, units_second)
    if array is None:
        copied: NDArray[np.float32] = sample(tensor, units_second, most).numpy()
        return copied
    few: NDArray[np.float32] = array[_spacing(array.shape, most)]
    return few


def _as_it_lies(tensor: torch.Tensor, units_second: bool) -> NDArray[np.float32] | None:
    """A tensor in host memory as (samples, positions, units), without a copy; None where NumPy cannot read it so."""
    if tensor.dtype is not torch.float32 or not tensor.is_contiguous() or tensor.is_neg():
        return None
    array: NDArray[np.float32] = tensor.detach().numpy()
    shape = array.shape
    if units_second:
        return array.reshape(shape[0], shape[1], -1).swapaxes(1, 2)
    if len(shape) != 3:
        return array.reshape(shape[0], -1, shape[-1] if len(shape) > 1 else 1)
    return array


def size_by_rows(tensor: torch.Tensor, units_second: bool) -> Rows | None:
    """A row with the sum of squares of a tensor in host memory, as `ROWS` of its rows have it; None where those do not
    tell, and all of it is to be read: it has another layout, or something in it is not finite.
    """
    array = None if units_second else _as_it_lies(tensor, units_second)
    if array is None:
        return None
    samples, positions, _ = _spacing(array.shape, ROWS)
    few = array[samples, positions]
    square = float(np.einsum("ijk,ijk->", few, few))
    if not 0 < square < math.inf:
        return None
    row = EMPTY.copy()
    row[_COUNT], row[_SUM_SQ] = array.size, square * array.size / few.size
    return row[None]


def _spacing(shape: Sequence[int], most: int) -> tuple[slice, slice, slice]:
    samples, positions, units = shape
    kept = min(positions, max(4, most // max(samples, 1)))
    rows, apart, unit = max(1, -(-samples * kept // most)), max(1, positions // max(1, kept)), max(1, units // UNITS)
    # Up to the last position, which may be the only one that the loss asks about.
    first = max(0, positions - 1 - apart * (kept - 1))
    return slice(None, None, rows), slice(first, None, apart), slice(None, UNITS * unit, unit)


def distinct(rows: torch.Tensor) -> int:
    """How many different rows there are; of numbers, how many different ones."""
    return len(torch.unique(rows, dim=0))


def never_positive(rows: Any) -> Any:
    """Whether a unit has no value above zero in any row of a tensor or an array; (units,). NaN is no such value."""
    if isinstance(rows, np.ndarray):  # one axis after the other: NumPy takes four times as long for both
        return np.maximum.reduce(np.maximum.reduce(rows, axis=1), axis=0) <= 0
    return (rows <= 0).flatten(0, 1).all(dim=0)


def any_nonzero(rows: Any) -> Any:
    """Whether a unit is other than zero in any row of a tensor or an array; (units,). NaN is other than zero."""
    if isinstance(rows, np.ndarray):
        return np.logical_or.reduce(rows, axis=(0, 1))
    return (rows != 0).flatten(0, 1).any(dim=0)


def zero_units(gradient: torch.Tensor) -> torch.Tensor:
    """Which rows of a weight's gradient (entries of a bias's) are exactly zero; (units,)."""
    return (gradient.detach() == 0).flatten(1).all(dim=1) if gradient.dim() > 1 else gradient.detach() == 0


def tanh_slopes(values: torch.Tensor) -> torch.Tensor:
    """The derivative of a tanh, from what it gave."""
    return 1 - values.square()


def share_below(values: torch.Tensor, limit: float) -> float:
    """Share of values below a limit."""
    return float((values < limit).float().mean())


def average(values: torch.Tensor) -> float:
    """The mean."""
    return float(values.mean())


def variation(rows: torch.Tensor) -> float:
    """Median over units that are positive somewhere: standard deviation over root mean square; NaN without any."""
    flat = rows.flatten(0, 1)
    flat = flat[:, flat.amax(dim=0) > 0]
    if flat.numel() == 0:
        return math.nan
    return float((flat.std(dim=0, unbiased=False) / flat.square().mean(dim=0).sqrt()).median())


def reach(gradient: torch.Tensor) -> float | None:
    """Of a gradient (samples, positions, units) that is largest at the end: the share of positions that get at least
    `HARDLY` of that; None where it is largest elsewhere, as under a loss at every position.

    The end is the last of `_PARTS` parts: a convolution over time gives the last but one as much as the last.
    """
    gradient = gradient.detach()
    last = gradient.shape[1] - 1
    end = max(1, gradient.shape[1] // _PARTS)
    # As a rule one of a few others is larger already, and the rest need not be read.
    few = _norms_by_position(gradient[:, last % _FEW_POSITIONS :: max(1, last // _FEW_POSITIONS)])
    if few.max() > _norms_by_position(gradient[:, -end:]).max():
        return None
    norms = _norms_by_position(gradient)
    largest = float(norms.max())
    if not 0 < largest < math.inf or norms[-end:].max() < largest:
        return None
    return float((norms >= HARDLY * largest).mean())


def _norms_by_position(gradient: torch.Tensor) -> NDArray[np.floating[Any]]:
    wide = torch.promote_types(gradient.dtype, torch.float32)
    sizes = torch.linalg.vector_norm(gradient, dim=2, dtype=wide)  # (samples, positions)
    norms: NDArray[np.floating[Any]] = torch.linalg.vector_norm(sizes, dim=0).cpu().numpy()
    return norms


def empty_samples(rows: torch.Tensor) -> float:
    """Share of samples of which every sampled entry is exactly zero."""
    return 1.0 - float((rows.flatten(1) != 0).any(dim=1).float().mean())


def effective_rank(rows: torch.Tensor, *, centred: bool) -> float:
    """The exponential of the entropy of the normalised squared singular values; NaN where there is nothing to rank.

    >>> round(effective_rank(torch.eye(4), centred=False), 6)
    4.0
    """
    return effective_ranks([(rows, centred)])[0]


def effective_ranks(given: Sequence[tuple[torch.Tensor, bool]]) -> list[float]:
    """The same of many matrices, each centred or not: those of one shape in one call."""
    ranks = [math.nan] * len(given)
    alike: dict[tuple[Any, ...], list[tuple[int, torch.Tensor]]] = {}
    for at, (rows, centred) in enumerate(given):
        matrix = rows.reshape(-1, rows.shape[-1]).double()
        matrix = matrix - matrix.mean(dim=0) if centred else matrix
        alike.setdefault((matrix.device, matrix.shape), []).append((at, matrix))
    for (_, shape), members in alike.items():
        if 0 in shape:
            continue
        matrices = torch.stack([matrix for _, matrix in members])
        largest = matrices.abs().amax(dim=(1, 2))
        usable = (largest > 0) & (largest < math.inf)
        # Squares of gradients of 1e-30 would vanish; what is not finite must not spoil the others.
        matrices = torch.where(usable[:, None, None], matrices / largest[:, None, None], 0.0)
        grams = matrices @ matrices.mT if shape[0] < shape[1] else matrices.mT @ matrices
        for (at, _), weights, good in zip(members, _eigenvalues(grams), usable.tolist(), strict=True):
            ranks[at] = _exponential_of_entropy(weights) if good else math.nan
    return ranks


def _eigenvalues(grams: torch.Tensor) -> NDArray[np.float64]:
    """Of symmetric matrices (count, n, n), without those below zero that rounding makes; (count, n)."""
    values: NDArray[np.float64] = torch.linalg.eigvalsh(grams).cpu().numpy()
    return values.clip(0)


def _exponential_of_entropy(weights: NDArray[np.float64]) -> float:
    shares = weights / weights.sum()
    shares = shares[shares > 1e-12]
    return math.exp(-float(shares @ np.log(shares)))


def patch_rank(pictures: torch.Tensor, positions: int) -> float | None:
    """Effective rank of what one of `positions` stands for: of the squares (of a signal, stretches) that pictures of
    (samples, channels, *extent) are cut into; None where they cannot be cut so.

    >>> patch_rank(torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 16) > 3.5
    True
    """
    extent = pictures.shape[2:]
    side = round((math.prod(extent) / max(1, positions)) ** (1 / len(extent)))
    if side < 1 or side > min(extent) or pictures.shape[1] * side ** len(extent) > _MOST_IN_PATCH:
        return None
    patches = pictures
    for dim in range(2, pictures.dim()):
        patches = patches.unfold(dim, side, side)  # (samples, channels, *squares, *side)
    rows = patches.movedim(1, pictures.dim() - 1).flatten(pictures.dim() - 1).flatten(0, pictures.dim() - 2)
    rank = effective_rank(rows[:: max(1, len(rows) // _PATCHES)], centred=True)
    return rank if math.isfinite(rank) else None


def scale_and_spread(rows: torch.Tensor) -> tuple[float, float]:
    """Root mean square of all entries; the largest column's over that of the median column (NaN if that is zero)."""
    squares = rows.flatten(0, 1).square().mean(dim=0)
    middle = float(squares.median())
    return float(squares.mean().sqrt()), math.sqrt(float(squares.amax()) / middle) if middle > 0 else math.nan


def share_in_all(masks: Sequence[NDArray[np.bool_]]) -> float | None:
    """Share of units for which every mask is true; masks of another shape than the last do not count."""
    same = [mask for mask in masks if mask.shape == masks[-1].shape]
    if not same or not same[-1].size:
        return math.nan if same else None
    return np.count_nonzero(reduce(np.logical_and, same)) / same[-1].size


def middle(values: Sequence[float]) -> float | None:
    """The median of the finite values, if there are any."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.median(finite)) if finite else None


def equal_rows(matrix: torch.Tensor, tolerance: float = 1e-3) -> bool:
    """Whether all units of a weight, or of its gradient, are the same and not zero."""
    flat = matrix.detach().flatten(1)
    if flat.shape[0] < 2 or flat.numel() == 0:
        return False
    size = float(flat[0].abs().amax())
    if not 0 < size < math.inf or float((flat[1] - flat[0]).abs().amax()) > tolerance * size:
        return False  # two rows settle it for nearly every weight
    return float((flat - flat[0]).abs().amax()) <= tolerance * size


def is_rank_one(matrix: torch.Tensor) -> bool:
    """Whether some rows of a weight are all multiples of one, none of them zero.

    >>> is_rank_one(torch.outer(torch.arange(1.0, 17), torch.arange(1.0, 17))), is_rank_one(torch.eye(16))
    (True, False)
    """
    flat = matrix.detach().flatten(1)
    if min(flat.shape) < _LEAST_FOR_RANK:
        return False
    rows = flat[:: len(flat) // _LEAST_FOR_RANK][:_LEAST_FOR_RANK, :ELEMENTS].double()
    sizes = rows.norm(dim=1, keepdim=True)
    if not bool((sizes > 0).all()) or not bool(torch.isfinite(sizes).all()):
        return False
    cosines = (rows / sizes) @ (rows[0] / sizes[0])
    return bool((cosines.abs() > 1 - 1e-6).all())


_ROUNDING: Final = 32.0
"""Times the precision of the numbers: differences up to here are rounding."""


def are_on_a_line(rows: torch.Tensor) -> bool:
    """Whether rows differ from one another in one direction only: their differences are multiples of one.

    >>> direction = torch.arange(1.0, 17)
    >>> are_on_a_line(5 + torch.outer(torch.arange(20.0), direction)), are_on_a_line(torch.eye(20))
    (True, False)
    """
    flat = rows.reshape(-1, rows.shape[-1])
    # Neighbours, and evenly spaced ones: the first may be the positions of one sample, all of one colour, and among the
    # others may be mostly padding. By an odd number, since every other position of an upsampled picture is made by the
    # same weights.
    apart = max(1, len(flat) // (2 * _LEAST_FOR_RANK))
    found = [_is_a_line(flat[::step][: 2 * _LEAST_FOR_RANK]) for step in (1, apart - (apart % 2 == 0))]
    return True in found and False not in found


def _is_a_line(rows: torch.Tensor) -> bool | None:
    """The same of a few rows; None of equal ones, which say nothing."""
    few = rows.detach().double().cpu().numpy()  # of a few rows NumPy answers in a fraction of the time
    if min(few.shape) < _LEAST_FOR_RANK:
        return False
    # Rows that are equal but for the last digits differ at random, and with luck in one place only.
    rounding = _ROUNDING * torch.finfo(rows.dtype if rows.is_floating_point() else torch.float32).eps
    with np.errstate(over="ignore", invalid="ignore"):
        away = few - few.mean(axis=0)
        size = float(np.linalg.norm(away))
        if not rounding * float(np.linalg.norm(few)) < size < math.inf:
            return None
        longest = away[np.square(away).sum(axis=1).argmax()]
        along = np.outer(away @ longest, longest) / np.square(longest).sum()
        return bool(np.linalg.norm(away - along) < 1e-3 * size)


def are_one(rows: torch.Tensor) -> bool:
    """Whether all samples have the same values, but for rounding, and not only zeros.

    >>> are_one(torch.randn(1, 3, 4).repeat(20, 1, 1)), are_one(torch.eye(20)), are_one(torch.zeros(20, 4))
    (True, False, False)
    """
    flat = rows.flatten(1).double()
    rounding = _ROUNDING * torch.finfo(rows.dtype if rows.is_floating_point() else torch.float32).eps
    return len(flat) >= _LEAST_FOR_RANK and float((flat - flat[0]).norm()) < rounding * float(flat.norm())


def positions_are_one(rows: torch.Tensor) -> bool:
    """Whether each sample has the same values at all of its positions, but for rounding, and samples differ.

    >>> same = torch.randn(8, 1, 4).expand(8, 6, 4)
    >>> positions_are_one(same), positions_are_one(torch.randn(8, 6, 4)), positions_are_one(same[:1].expand(8, 6, 4))
    (True, False, False)
    """
    rounding = _ROUNDING * torch.finfo(rows.dtype if rows.is_floating_point() else torch.float32).eps
    first = rows[:, :1]
    size = float(first.norm())
    if rows.shape[1] < 2 or float((rows[:, -1:] - first).norm()) > rounding * size:  # as a rule two positions tell
        return False
    apart, between = float((rows - first).norm()), float((first - first[:1]).norm())
    return apart <= rounding * math.sqrt(rows.shape[1]) * size and between > rounding * size


def spread(rows: torch.Tensor) -> float:
    """Root mean square of how far samples lie from their mean, position by position."""
    return float((rows - rows.mean(dim=0)).square().mean().sqrt())


def quick_norm(tensors: list[torch.Tensor]) -> float:
    """The norm of all tensors together: one read of their magnitudes where the C kernel can, else an estimate."""
    is_native = kernels.NATIVE and kernels.forced() is None
    rows = kernels.native.reader(Thresholds(), sizes_only=True)(tensors) if is_native else None
    return estimated_norm(tensors) if rows is None else float(norm(rows.sum(axis=0)))  # of sums nothing else is asked


def estimated_norm(tensors: Sequence[torch.Tensor]) -> float:
    """The norm of all tensors together, from some `ELEMENTS` evenly spaced elements of each; not finite if one is not.

    >>> round(estimated_norm([torch.full((100, 100), 3.0), torch.full((4,), 2.0)]), 3)
    300.027
    """
    flat = [tensor.coalesce().values().reshape(-1) if tensor.is_sparse else tensor.reshape(-1) for tensor in tensors]
    flat = [tensor for tensor in flat if tensor.numel()]
    if all(tensor.dtype in _OF_NUMPY and tensor.device.type == "cpu" for tensor in flat):
        return math.sqrt(math.fsum(_estimated_square(tensor.detach().numpy()) for tensor in flat))
    few = [_chunks(tensor) for tensor in flat]
    if not few:
        return 0.0
    norms = torch.stack([size.float() for size in torch._foreach_norm(few)]).tolist()  # the only wait for a device
    scales = [math.sqrt(whole.numel() / part.numel()) for whole, part in zip(flat, few, strict=True)]
    return math.hypot(*(size * scale for size, scale in zip(norms, scales, strict=True)))


def _estimated_square(flat: NDArray[np.float64]) -> float:
    """For a few numbers NumPy answers in a tenth of the time that torch takes to get going."""
    few = _chunks(flat).astype(np.float64).reshape(-1)
    return float(np.vdot(few, few)) * len(flat) / len(few)


def _chunks(flat: Any) -> Any:
    """Evenly spaced runs of neighbours: single elements, spaced as widely, would take a line of the cache each."""
    if len(flat) <= 2 * ELEMENTS:
        return flat
    chunks = ELEMENTS // _RUN
    return flat[: len(flat) // chunks * chunks].reshape(chunks, -1)[:, :_RUN]


def cosine(left: Sequence[NDArray[np.float64]], right: Sequence[NDArray[np.float64]]) -> float:
    """The cosine between two gradients, each given as a list of samples; NaN where one is zero."""
    product = sum(float(np.vdot(a, b)) for a, b in zip(left, right, strict=True))  # `@` warns of Inf
    size = math.sqrt(_square(left)) * math.sqrt(_square(right))
    return product / size if size > 0 and math.isfinite(size) else math.nan


def _square(parts: Sequence[NDArray[np.float64]]) -> float:
    return sum(float(np.vdot(part, part)) for part in parts)
