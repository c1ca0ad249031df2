"""`EmbeddingProbe`: which row of an embedding holds most of its gradient, step by step. It hooks nothing."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

import torch
from torch import nn

from gradient_flow.capture.sharding import is_sharded
from gradient_flow.probes.embedding.stats import EmbeddingRows, EmbeddingStats

MEMORY: Final = 64
"""Latest looks kept."""
_LEAST_ROWS: Final = 16
_COLUMNS, _RUNS = 64, 4
"""Columns that are read of each long row, in so many runs of neighbours: single ones would take as much memory traffic
as all of them."""

_Look = tuple[int, int, float]
"""Rows used, the top row, its share."""


class EmbeddingProbe:
    """Reads the gradients of embeddings after backward."""

    def __init__(self) -> None:
        self._weights: dict[str, tuple[int, Any]] = {}
        self._seen: dict[str, tuple[int, deque[_Look]]] = {}

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._weights = {
            path: (module.num_embeddings, module.weight)
            for path, module in model.named_modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.num_embeddings >= _LEAST_ROWS
        }

    def release(self) -> None:
        """Hold on to nothing of it."""
        self._weights = {}

    def __enter__(self) -> EmbeddingProbe:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to undo: the probe hooks nothing."""

    def listen(self, listening: bool) -> None:
        """Nothing to stop: it reads what backward left."""

    def after_step(self, inputs: Any, output: Any) -> None:
        """Once per step, after backward."""
        for path, (rows, weight) in self._weights.items():
            gradient = weight.grad
            # A shard has a part of the rows, under numbers of its own.
            if gradient is not None and not is_sharded(gradient) and (look := _look(gradient)) is not None:
                self._seen.setdefault(path, (rows, deque(maxlen=MEMORY)))[1].append(look)

    def result(self) -> EmbeddingStats | None:
        """What was found so far; None without an embedding."""
        if not self._seen:
            return None
        return EmbeddingStats(
            tables=[
                EmbeddingRows(
                    name=path,
                    rows=rows,
                    used=[used for used, _, _ in looks],
                    top_row=[row for _, row, _ in looks],
                    top_share=[share for _, _, share in looks],
                )
                for path, (rows, looks) in self._seen.items()
            ]
        )


def _look(gradient: torch.Tensor) -> _Look | None:
    """Squared norms of rows: how many are there, and which is the largest."""
    with torch.no_grad():
        named = None
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            named, gradient = gradient.indices()[0], gradient.values()
        part, width = gradient, gradient.shape[1]
        if width >= 2 * _COLUMNS:
            long = width // _RUNS
            part = gradient[:, : _RUNS * long].view(-1, _RUNS, long)[..., : _COLUMNS // _RUNS]
        squares = part.float().square().sum(dim=tuple(range(1, part.dim())))
        squares = squares.double() if part.is_cpu else squares
        top, at = squares.max(dim=0)
        numbers = torch.stack([top, squares.sum(), (squares > 0).sum(), at]).tolist()  # one sync
    largest, total, used, row = numbers
    if not 0 < total < math.inf:
        return None
    return int(used), int(row if named is None else named[int(row)]), largest / total
