"""`measure`: from anything that holds gradients to a table, reading each gradient once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gradient_flow.capture.parameters import NamedGradients, named_gradients
from gradient_flow.capture.sharding import any_sharded, is_sharded
from gradient_flow.errors import InputError
from gradient_flow.table import across_ranks, dense, kernels
from gradient_flow.table.across_ranks import Said, Share
from gradient_flow.table.columns import Rows, Thresholds, merge_rows, repeat_row, scale_rows, zeros_row
from gradient_flow.table.rank_names import RankNames
from gradient_flow.table.table import GradientTable

if TYPE_CHECKING:
    import torch

    from gradient_flow.capture.arrivals import LateNumber


def measure(
    source: Any, *, near_zero: float = 1e-7, very_large: float = 1e3, process_group: Any = None
) -> GradientTable:
    """Measure every gradient in `source` once and return the table of all its statistics.

    `source` is a module or an optimizer (the `.grad` of its parameters), a mapping of names to gradients, an iterable
    of gradients, or one gradient; gradients are torch tensors of any layout and device, NumPy arrays or numbers. A
    parameter stands for its `.grad`. Gradients that are `None` are listed in `table.missing`. Nothing is changed, and
    nothing is kept.

    Elements with a magnitude below `near_zero` and above `very_large` are counted as such. Complex gradients: norms,
    zeros and counts go by the magnitude of each element; mean, variance, min and max are those of its real and
    imaginary parts, taken as two real numbers.

    Gradients that are sharded over ranks (FSDP2, tensor parallel) are measured whole: all ranks call this together and
    get the same table. Ranks that hold different parameters (pipeline stages) pass the `process_group` to merge over.

    >>> import numpy as np
    >>> measure([np.array([3.0, 4.0])]).total.norm
    5.0
    """
    ranks = None if process_group is None else _names_in(process_group)
    return measure_found(named_gradients(source), near_zero=near_zero, very_large=very_large, ranks=ranks)


def measure_found(
    found: NamedGradients,
    *,
    near_zero: float = 1e-7,
    very_large: float = 1e3,
    ranks: RankNames | None = None,
    scale: LateNumber | None = None,
    keep_scale: bool = False,
) -> GradientTable:
    """The table of gradients that were found already; over `ranks` if they have different parameters.

    `scale`: a loss scale in them that only their device knows. Thresholds are meant without it, and so is the table,
    unless it is to `keep_scale`.
    """
    thresholds = Thresholds(_threshold(near_zero, "near_zero"), _threshold(very_large, "very_large"))
    if ranks is None and not needs_other_ranks(found):
        rows = _rows(found, thresholds, scale, keep_scale)
        return GradientTable(found.names, rows, missing=found.missing, thresholds=thresholds)
    return merge_shares([share_of_rank(found, thresholds)], found, thresholds, ranks)[0][0]


def needs_other_ranks(found: NamedGradients) -> bool:
    """Whether a part of these lies on other ranks: a matter of the parameters, on which ranks do not differ."""
    return any_sharded(found.gradients) or any_sharded(found.absent.values())


def share_of_rank(found: NamedGradients, thresholds: Thresholds) -> Share:
    """What this rank holds, measured; `merge_shares` makes tables of it. No communication, but for `Partial` sums."""

    def measure_local(gradients: list[Any]) -> PendingRows:
        return _rows(NamedGradients(found.names, gradients, ()), thresholds)

    return across_ranks.share_of(found, measure_local)


def merge_shares(
    shares: Sequence[Share],
    found: NamedGradients,
    thresholds: Thresholds,
    ranks: RankNames | None = None,
    says: Sequence[float] = (),
) -> tuple[list[GradientTable], Said]:
    """A table for each share, the same on every rank, from two collectives for all of them; and what ranks said."""
    from gradient_flow.table.rank_groups import device_of, group_of

    if ranks is None:
        sharded = [tensor for tensor in (*found.gradients, *found.absent.values()) if is_sharded(tensor)]
        group = group_of(sharded)
        names = found.order
        results = across_ranks.merged(shares, group, device_of(group), thresholds, says=says) or []
    else:
        results = ranks.merged(shares, device_of(ranks.group), thresholds, says)
        names = ranks.names
    return [_global_table(names, result, thresholds) for result in results], results[0].said


def _global_table(names: tuple[str, ...], result: across_ranks.Merged, thresholds: Thresholds) -> GradientTable:
    present = result.present.tolist()
    held = [name for name, here in zip(names, present, strict=True) if here]
    missing = [name for name, here in zip(names, present, strict=True) if not here]
    rows = result.rows[result.present] if isinstance(result.rows, np.ndarray) else result.rows
    return GradientTable(held, rows, missing=missing, thresholds=thresholds)


_groups: Final[dict[int, tuple[Any, RankNames]]] = {}


def _names_in(group: Any) -> RankNames:
    """What was agreed on in this group. By its identity: a group of the same ranks made later is another."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("`process_group` needs torch.distributed. Call torch.distributed.init_process_group() first.")
    known = _groups.get(id(group))
    if known is None or known[0] is not group:
        _groups.clear()  # one at a time: a program has one such group, and an old one must not be kept alive
        known = _groups[id(group)] = group, RankNames(group)
    return known[1]


PendingRows = Rows | Callable[[], Rows]
"""Rows, or a function that waits for them where they are computed on a device."""


def reads_in_place(thresholds: Thresholds) -> bool:
    """Whether `kernels.native_rows` may be asked first, without more ado, for gradients in host memory."""
    settled = all(type(limit) is float and math.isfinite(limit) for limit in thresholds)
    return settled and kernels.NATIVE and kernels.forced() is None


def measure_parts(names: Sequence[str], array: np.ndarray, sizes: list[int]) -> GradientTable:
    """The table of the parts of a flat array of floating point numbers that lie one after the other in it."""
    if not reads_in_place(Thresholds()):
        return measure(dict(zip(names, np.split(array, np.cumsum(sizes)[:-1]), strict=True)))
    return GradientTable(names, kernels.native.rows_of_parts(array, sizes, Thresholds()))


def reader_for_hooks(*, sizes_only: bool = False) -> Callable[[list[torch.Tensor]], PendingRows]:
    """A function that measures tensors inside a hook, where each microsecond counts: what can be settled before is.

    `sizes_only`: the `columns.OF_SIZES` are all that is wanted; the others may be NaN.
    """
    thresholds = Thresholds()
    in_place = kernels.native.reader(thresholds, sizes_only=sizes_only) if reads_in_place(thresholds) else None

    def read(tensors: list[torch.Tensor]) -> PendingRows:
        rows = in_place(tensors) if in_place is not None else None
        return _rows(NamedGradients(("output",) * len(tensors), tensors, ()), thresholds) if rows is None else rows

    return read


def _threshold(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise InputError(f"`{name}` must be a finite number, got {value!r}.")
    return float(value)


def _rows(
    found: NamedGradients, thresholds: Thresholds, scale: LateNumber | None = None, keep_scale: bool = False
) -> PendingRows:
    rows = kernels.native_rows(found.gradients, thresholds) if kernels.NATIVE and kernels.forced() is None else None
    if rows is not None:
        return rows
    plain: list[Any] = []
    corrections: dict[int, dense.Correction] = {}
    for position, (name, gradient) in enumerate(zip(found.names, found.gradients, strict=True)):
        simple, correction = dense.simplify(gradient, name)
        plain.append(simple)
        if correction is not dense.NONE:
            corrections[position] = correction
    pending = kernels.rows_of(plain, thresholds, None if scale is None else scale.on_device)

    def corrected(rows: Rows) -> Rows:
        for position, correction in corrections.items():
            implicit = zeros_row(correction.implicit_zeros, thresholds, correction.parts)
            rows[position] = merge_rows(np.stack([repeat_row(rows[position], correction.repeat), implicit]))
        return rows if scale is None or keep_scale else scale_rows(rows, 1.0 / float(scale))

    def corrected_there(rows: torch.Tensor) -> torch.Tensor:
        if scale is None or keep_scale:
            return rows
        return scale_rows(rows, scale.on_device.to(rows.device, rows.dtype).reciprocal())

    if isinstance(pending, np.ndarray):
        return corrected(pending)
    if not corrections and scale is None:
        return pending
    return pending.then(corrected, None if corrections else corrected_there)
