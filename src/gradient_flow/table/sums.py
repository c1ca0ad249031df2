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

    def __init__(self, rows: Sequence[Rows | None]) -> None:
        matrix = np.array([EMPTY if row is None else row for row in rows]).reshape(-1, len(COLUMNS))
        norms = columns.norm(matrix)
        self.norm: list[float] = norms.tolist()
        self.rms: list[float] = (norms / np.sqrt(np.maximum(matrix[:, INDEX["count"]], 1.0))).tolist()
        self.zero_share: list[float] = columns.zero_fraction(matrix).tolist()
        self.bad = (matrix[:, INDEX["nan"]] + matrix[:, INDEX["inf"]]).astype(np.int64).tolist()
        """Elements that are not finite."""


def sums_by_group(table: GradientTable, group: Mapping[str, int], count: int) -> tuple[Sums, set[int]]:
    """The rows of a table added up by group (extremes are of no use then), and which groups had a row at all.

    Rows that belong to none are left out: an optimizer may hold more than the model has, such as a learnt loss.
    """
    sums: NDArray[np.float64] = np.zeros((count, len(COLUMNS)))
    known = [row for row, name in enumerate(table.names) if name in group]
    members = [group[table.names[row]] for row in known]
    if members:
        np.add.at(sums, members, table.rows[known])
    return Sums(list(sums)), set(members)
