"""Histograms of exponents over the looks that took one: how large the elements of each gradient are, for a page."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gradient_flow.errors import RunFileError
from gradient_flow.record.run import Run, TableSpan
from gradient_flow.table.exponents import BINS, LATER

MOST_LOOKS: Final = 24
MOST_BYTES: Final = 300_000
"""What they may take on a page; of a model with very many tensors there are fewer looks."""
_ALL: Final = 60
"""Tables that are all asked whether they have one; in a longer run those that may."""


def exponents_data(run: Run) -> dict[str, Any] | None:
    """`step` of each look, `first` bin, and `data`, bytes (tensors, looks, bins): shares of 255. None without any."""
    tensors = len(run.tensor_names)
    found: list[tuple[int, Any, Any]] = []
    for span, table in run.intact_tables(_chosen(run.tables)):
        try:
            counts = table.exponents()
        except RunFileError:
            continue  # the rest of the table is sound
        if counts is not None and counts.any():
            found.append((span.step, table.positions, counts))
    if not found or not tensors:
        return None
    filled = np.flatnonzero(np.any([counts.any(axis=0) for _, _, counts in found], axis=0))
    low, high = int(filled[0]), int(filled[-1]) + 1
    most = MOST_BYTES // (tensors * (high - low))
    if most < 1:
        return None
    found = _evenly(found, min(MOST_LOOKS, most))
    shares = np.zeros((tensors, len(found), high - low), dtype=np.uint8)
    for at, (_, positions, counts) in enumerate(found):
        whole = np.maximum(counts.sum(axis=1, keepdims=True), 1)
        shares[positions, at] = np.ceil(255 * counts[:, low:high] / whole)  # a single element still shows
    data = base64.b64encode(shares.tobytes()).decode("ascii")
    return {"step": [step for step, *_ in found], "first": low, "bins": high - low, "of": BINS, "data": data}


def _chosen(tables: Sequence[TableSpan]) -> list[TableSpan]:
    """Those that may have one."""
    if len(tables) <= _ALL:
        return list(tables)
    due, after = [], -1
    for span in tables:
        if span.step >= after:
            due.append(span)
            after = math.ceil(span.step * LATER)
    return _evenly(due, MOST_LOOKS)


def _evenly(items: Sequence[Any], most: int) -> list[Any]:
    """The first, the last and others at even distances."""
    if len(items) <= most:
        return list(items)
    places = np.linspace(0, len(items) - 1, max(1, most)).round().astype(int)
    return [items[at] for at in dict.fromkeys(places.tolist())]
