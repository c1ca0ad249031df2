"""Per-tensor records of several steps at once, as arrays of statistics: for maps of layers over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gradient_flow.table import columns
from gradient_flow.table.columns import COLUMNS, INDEX, Rows

_READ: Final = ("sum", "min", "max", "zeros", "nan", "inf", "neg_inf")


class Places:
    """Where the tensors of a record stand: a resumed run may list its parameters in another order than the first."""

    def __init__(self, parameters: Sequence[Mapping[str, Any]], order: Mapping[str, int]) -> None:
        self.positions = np.array([order[parameter["name"]] for parameter in parameters], dtype=np.intp)
        self.counts = np.array([math.prod(parameter["shape"]) for parameter in parameters], dtype=np.float64)
        # A complex element is two real numbers.
        self.widths = np.array([1.0 + str(p.get("dtype", "")).startswith("complex") for p in parameters])


def rows_of(records: Sequence[tuple[Mapping[str, Any], Places]], tensors: int) -> tuple[Rows, NDArray[np.float64]]:
    """Rows by `COLUMNS` (records, tensors, columns) and update ratios (records, tensors). NaN is an absent tensor."""
    rows = np.full((len(records), tensors, len(COLUMNS)), np.nan)
    ratios = np.full((len(records), tensors), np.nan)
    for at, (record, places) in enumerate(records):
        here = slice(None) if record.get("rows") is None else np.array(record["rows"], dtype=np.intp)
        where = places.positions[here]
        values = np.zeros((len(where), len(COLUMNS)))
        for name in _READ:
            values[:, INDEX[name]] = _column(record[name])
        values[:, INDEX["sum_sq"]] = np.square(_column(record["norm"]))
        values[:, INDEX["count"]] = places.counts[here]
        bad = values[:, INDEX["nan"]] + values[:, INDEX["inf"]]
        values[:, INDEX["parts"]] = (places.counts[here] - bad) * places.widths[here]
        rows[at, where] = values
        if record.get("update_ratio") is not None:
            ratios[at, where] = _column(record["update_ratio"])
    return rows, ratios


def statistics_of(rows: Rows, ratios: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What a map shows, by the names in `thinning.RULES`. What is not finite is absent there, and counted."""
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


def _column(values: Any) -> NDArray[np.float64]:
    """A list with null for NaN, or a single 0 for all."""
    try:
        return np.fromiter(values, dtype=np.float64, count=len(values))  # half the time of `array`, but takes no null
    except TypeError:
        return np.array(values, dtype=np.float64)
