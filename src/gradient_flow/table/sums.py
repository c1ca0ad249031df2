"""Norms, sizes and non-finite elements of many tensors at once, from the rows that hooks kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gradient_flow.table import columns
from gradient_flow.table.columns import COLUMNS, EMPTY, INDEX, Rows
from gradient_flow.table.table import GradientTable


class Sums:
    """Statistics of each row as plain lists; a row that is None is one of no elements."""

    def __init__(self, rows: Sequence[Rows | None] | Rows) -> None:
        if not isinstance(rows, np.ndarray):
            rows = np.array([EMPTY if row is None else row for row in rows])
        matrix = rows.reshape(-1, len(COLUMNS))
        norms = columns.norm(matrix)
        self.norm: list[float] = norms.tolist()
        self.rms: list[float] = (norms / np.sqrt(np.maximum(matrix[:, INDEX["count"]], 1.0))).tolist()
        self.zero_share: list[float] = columns.zero_fraction(matrix).tolist()
        self.bad = (matrix[:, INDEX["nan"]] + matrix[:, INDEX["inf"]]).astype(np.int64).tolist()
        """Elements that are not finite."""


def sums_by_group(tables: Sequence[GradientTable], group: Mapping[str, int], count: int) -> list[tuple[Sums, set[int]]]:
    """Of each table its rows added up by group (extremes are of no use then), and which groups had a row at all.

    Rows that belong to none are left out: an optimizer may hold more than the model has, such as a learnt loss.
    """
    sums: NDArray[np.float64] = np.zeros((len(tables), count, len(COLUMNS)))
    names, known, members = None, [], []
    seen = []
    for at, table in enumerate(tables):
        if table.names != names:  # tables of one training have the same, as a rule
            names = table.names
            known = [row for row, name in enumerate(names) if name in group]
            members = [group[names[row]] for row in known]
        if members:
            np.add.at(sums[at], members, table.rows[known])
        seen.append(set(members))
    return [(Sums(each), here) for each, here in zip(sums, seen, strict=True)]
