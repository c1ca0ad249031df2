"""`measure`: from anything that holds gradients to a table, reading each gradient once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradient_flow.capture.parameters import NamedGradients, named_gradients
from gradient_flow.errors import InputError
from gradient_flow.measurement import across_ranks, dense, kernels
from gradient_flow.measurement.columns import COLUMNS, Rows, Thresholds, merge_rows, repeat_row, zeros_row
from gradient_flow.measurement.table import GradientTable

if TYPE_CHECKING:
    import torch


def measure(source: Any, *, near_zero: float = 1e-7, very_large: float = 1e3) -> GradientTable:
    """Measure every gradient in `source` once and return the table of all its statistics.

    `source` is a module or an optimizer (the `.grad` of its parameters), a mapping of names to gradients, an iterable
    of gradients, or one gradient; gradients are torch tensors of any layout and device, NumPy arrays or numbers. A
    parameter stands for its `.grad`. Gradients that are `None` are listed in `table.missing`. Nothing is changed, and
    nothing is kept.

    Elements with a magnitude below `near_zero` and above `very_large` are counted as such. Complex gradients: norms,
    zeros and counts go by the magnitude of each element; mean, variance, min and max are those of its real and
    imaginary parts, taken as two real numbers.

    >>> import numpy as np
    >>> measure([np.array([3.0, 4.0])]).total.norm
    5.0
    """
    return measure_found(named_gradients(source), near_zero=near_zero, very_large=very_large)


def measure_found(found: NamedGradients, *, near_zero: float = 1e-7, very_large: float = 1e3) -> GradientTable:
    """The table of gradients that were found already."""
    thresholds = Thresholds(_threshold(near_zero, "near_zero"), _threshold(very_large, "very_large"))
    if across_ranks.any_sharded(found.gradients) or across_ranks.any_sharded(found.absent.values()):
        return _measure_sharded(found, thresholds)
    return GradientTable(found.names, _rows(found, thresholds), missing=found.missing, thresholds=thresholds)


def _measure_sharded(found: NamedGradients, thresholds: Thresholds) -> GradientTable:
    """The global table, the same on every rank: sharded gradients over all ranks, the others as they are here."""
    here = dict(zip(found.names, found.gradients, strict=True))
    sharded: dict[str, Any] = {name: g for name, g in here.items() if across_ranks.is_sharded(g)}
    sharded |= {name: (p, None) for name, p in found.absent.items() if across_ranks.is_sharded(p)}
    plain = [name for name in here if name not in sharded]

    def measure_local(gradients: list[Any]) -> Rows:
        rows = _rows(NamedGradients(("shard",) * len(gradients), gradients, ()), thresholds)
        return rows() if callable(rows) else rows

    order = sorted(sharded)  # ranks may differ in which gradients they have, never in the names
    rows, present = across_ranks.global_rows([sharded[name] for name in order], measure_local)
    by_name = {name: row for name, row, any_rank in zip(order, rows, present, strict=True) if any_rank}
    by_name |= dict(zip(plain, measure_local([here[name] for name in plain]), strict=True)) if plain else {}
    known = [*found.names, *found.missing]
    names = sorted(by_name) if found.missing else [name for name in known if name in by_name]
    return GradientTable(
        names,
        np.array([by_name[name] for name in names]).reshape(-1, len(COLUMNS)),
        missing=[name for name in found.missing if name not in by_name],
        thresholds=thresholds,
    )


PendingRows = Rows | Callable[[], Rows]
"""Rows, or a function that waits for them where they are computed on a device."""


def reader_for_hooks() -> Callable[[list[torch.Tensor]], PendingRows]:
    """A function that measures tensors inside a hook, where each microsecond counts: what can be settled before is."""
    thresholds = Thresholds()
    in_place = kernels.NATIVE and kernels.forced() is None

    def read(tensors: list[torch.Tensor]) -> PendingRows:
        rows = kernels.native_rows(tensors, thresholds) if in_place else None
        return _rows(NamedGradients(("output",) * len(tensors), tensors, ()), thresholds) if rows is None else rows

    return read


def _threshold(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not math.isfinite(value):
        raise InputError(f"`{name}` must be a finite number, got {value!r}.")
    return float(value)


def _rows(found: NamedGradients, thresholds: Thresholds) -> PendingRows:
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
    pending = kernels.rows_of(plain, thresholds)
    if not corrections:
        return pending

    def corrected() -> Rows:
        rows = pending() if callable(pending) else pending
        for position, correction in corrections.items():
            implicit = zeros_row(correction.implicit_zeros, thresholds, correction.parts)
            rows[position] = merge_rows(np.stack([repeat_row(rows[position], correction.repeat), implicit]))
        return rows

    return corrected if callable(pending) else corrected()
