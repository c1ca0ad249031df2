"""Fewer columns than steps, and no extreme lost: neighbours merge, and what stood out in one stands out in both.

Statistics merge by the rule in `RULES`. NaN is "absent" and never wins over a number. Merging is exact and associative,
so a long run can be thinned while it is read, and what was thinned can be thinned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradient_flow.table import columns
from gradient_flow.table.columns import INDEX, Rows

Floats = NDArray[np.floating]

RULES: Final = {
    "norm": "max",
    "mean": "largest",
    "std": "max",
    "min": "min",
    "max": "max",
    "zero_fraction": "max",
    "nonfinite": "sum",
    "update_ratio": "max",
}
"""What a merged column shows of each statistic: its extreme, for `mean` the one of largest magnitude."""
_BOTH: Final = np.zeros(1, dtype=np.intp)


def merge_neighbours(values: Floats, starts: NDArray[np.intp], rule: str) -> Floats:
    """Merge along the first axis: group `k` is from `starts[k]` up to the next start, and none of them is empty.

    >>> merge_neighbours(np.array([1.0, np.nan, -3.0, 2.0]), np.array([0, 2]), "largest")
    array([ 1., -3.])
    """
    if rule == "max":
        return np.fmax.reduceat(values, starts)
    if rule == "min":
        return np.fmin.reduceat(values, starts)
    if rule == "sum":
        present = ~np.isnan(values)
        total = np.add.reduceat(np.where(present, values, 0), starts)
        return np.where(np.logical_or.reduceat(present, starts), total, np.nan).astype(values.dtype)
    high, low = np.fmax.reduceat(values, starts), np.fmin.reduceat(values, starts)
    return np.where(np.abs(low) > np.abs(high), low, high)


def group_starts(length: int, size: int) -> NDArray[np.intp]:
    """Where groups of `size` begin among `length` items; the last one may be smaller."""
    return np.arange(0, length, size, dtype=np.intp)


def statistics_of(rows: Rows, ratios: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What a map shows, by the names in `RULES`. What is not finite is absent there, and counted."""
    nonfinite = rows[..., INDEX["nan"]] + rows[..., INDEX["inf"]]
    found = {
        "norm": columns.norm(rows),
        "mean": columns.mean(rows),
        "std": columns.std(rows),
        "min": columns.minimum(rows),
        "max": columns.maximum(rows),
        "zero_fraction": np.where(np.isnan(nonfinite), np.nan, columns.zero_fraction(rows)),
        "update_ratio": ratios,
    }
    return {name: np.where(np.isfinite(v), v, np.nan) for name, v in found.items()} | {"nonfinite": nonfinite}


class LayerColumns(NamedTuple):
    """Statistics of tensors over time, one column for one table or for several neighbours."""

    first: NDArray[np.int64]
    """First and last step of each column."""
    last: NDArray[np.int64]
    values: dict[str, Floats]
    """Statistic → (columns, tensors), in fp32; NaN where absent."""

    def thinned(self, size: int) -> LayerColumns:
        """With each `size` neighbours merged into one."""
        if size <= 1 or not len(self.first):
            return self
        starts = group_starts(len(self.first), size)
        values = {name: merge_neighbours(self.values[name], starts, rule) for name, rule in RULES.items()}
        return LayerColumns(self.first[starts], self.last[np.append(starts[1:], len(self.last)) - 1], values)

    def at_most(self, columns: int) -> LayerColumns:
        """The same in at most `columns` columns."""
        return self.thinned(-(-len(self.first) // max(1, columns)))

    def wide(self, tensors: int) -> LayerColumns:
        """With columns of NaN for tensors that joined later."""
        missing = tensors - self.values["norm"].shape[1]
        if missing <= 0:
            return self
        absent = np.full((len(self.first), missing), np.nan, dtype=np.float32)
        return self._replace(values={name: np.hstack([values, absent]) for name, values in self.values.items()})


class LayerThinning:
    """Tables of a run as at most `limit` columns for each tensor, built while they are read.

    A column is one table until there are too many; then neighbours merge and a column stands for twice as many. Memory
    depends on the number of tensors and columns, not on the length of the run.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most columns; may be lowered when tensors join."""
        self.stride = 1
        """Tables in a column."""
        self.tables = 0
        """Tables taken in."""
        self._store = _empty(0, 0)

    @property
    def columns(self) -> LayerColumns:
        """What there is so far; a view, which the next tables change."""
        here = slice(0, -(-self.tables // self.stride))
        values = {name: values[here] for name, values in self._store.values.items()}
        return LayerColumns(self._store.first[here], self._store.last[here], values)

    def extend(self, steps: NDArray[np.int64], block: Mapping[str, Floats]) -> None:
        """Take in tables: statistic → (len(steps), tensors), with as many tensors as before or more at the end."""
        if not len(steps):
            return
        while -(-(self.tables + len(steps)) // self.stride) > max(1, self.limit):
            self._keep(self.columns.thinned(2))
            self.stride *= 2
        begun, open_tables = divmod(self.tables, self.stride)  # whole columns, and tables of the one after them
        room = self.stride - open_tables
        starts = np.concatenate([[0], np.arange(room, len(steps), self.stride)]).astype(np.intp)
        self._reserve(begun + len(starts), block["norm"].shape[1])
        here = slice(begun, begun + len(starts))
        firsts, lasts = steps[starts], steps[np.append(starts[1:], len(steps)) - 1]
        if open_tables:  # the first of the new tables belong to the column that was begun
            firsts[0] = self._store.first[begun]
        self._store.first[here], self._store.last[here] = firsts, lasts
        for name, rule in RULES.items():
            new, stored = merge_neighbours(block[name], starts, rule), self._store.values[name]
            if open_tables:
                new[0] = merge_neighbours(np.stack([stored[begun], new[0]]), _BOTH, rule)[0]
            stored[here] = new
        self.tables += len(steps)

    def keep(self, tables: int) -> None:
        """Forget all but the first `tables`, as far as whole columns go; `self.tables` says how many are left."""
        if tables < self.tables:
            self.tables = tables // self.stride * self.stride

    def _reserve(self, columns: int, tensors: int) -> None:
        wide = self.columns.wide(tensors)
        if columns > len(self._store.first) or tensors > self._store.values["norm"].shape[1]:
            self._store = _empty(min(2 * columns, max(columns, self.limit)), wide.values["norm"].shape[1])
            self._keep(wide)

    def _keep(self, columns: LayerColumns) -> None:
        here = slice(0, len(columns.first))
        self._store.first[here], self._store.last[here] = columns.first, columns.last
        for name, values in columns.values.items():
            self._store.values[name][here] = values


def _empty(columns: int, tensors: int) -> LayerColumns:
    steps = np.zeros((2, columns), dtype=np.int64)
    return LayerColumns(steps[0], steps[1], {name: np.empty((columns, tensors), dtype=np.float32) for name in RULES})
