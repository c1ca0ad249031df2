"""`EmbeddingProbe`: which row holds most of an embedding's gradient, step by step, and how often it is asked for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from gradient_flow.capture.module_stack import ModuleHook
from gradient_flow.capture.sharding import is_sharded
from gradient_flow.probes.embedding.stats import EmbeddingRows, EmbeddingStats

MEMORY: Final = 64
"""Latest looks kept."""
_LEAST_ROWS: Final = 4
"""Two or three are types of text, say, of which one may be all there is."""
_ASKED: Final = 4096
"""Look-ups of a call that are counted, at equal distances."""
_COLUMNS, _RUNS = 64, 4
"""Columns that are read of each long row, in so many runs of neighbours: single ones would take as much memory traffic
as all of them."""


class _Table(NamedTuple):
    """An embedding of the model."""

    module: nn.Module
    rows: int


class _Look(NamedTuple):
    """One look at one gradient."""

    used: int
    row: int
    share: float
    asked: float | None
    """Share of the look-ups that ask for that row."""


class EmbeddingProbe:
    """Reads the gradients of embeddings after backward, and which rows a forward asks for."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._asked: dict[str, list[torch.Tensor]] = {}
        self._seen: dict[str, tuple[int, deque[_Look]]] = {}
        self._handles: list[Any] = []
        self._listening = False

    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""
        self._tables = {
            path: _Table(module, module.num_embeddings)
            for path, module in model.named_modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.num_embeddings >= _LEAST_ROWS
        }

    def release(self) -> None:
        """Hold on to nothing of it."""
        self._tables, self._asked = {}, {}

    def __enter__(self) -> EmbeddingProbe:
        self._asked, self._listening = {}, True
        for path, table in self._tables.items():
            hook = ModuleHook(table.module, self._hook(path))
            self._handles.append(table.module.register_forward_hook(hook))
        return self

    def __exit__(self, *_: object) -> None:
        """Without hooks again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def listen(self, listening: bool) -> None:
        """Whether the forwards that come are of interest."""
        self._listening = listening

    def _hook(self, path: str) -> Any:
        def note(_module: nn.Module, inputs: Any, _output: Any) -> None:
            ids = inputs[0] if inputs else None
            if self._listening and isinstance(ids, torch.Tensor) and ids.numel():
                with suppress(RuntimeError):  # the user's forward goes on whatever happens here
                    some = ids.detach().flatten()
                    self._asked.setdefault(path, []).append(some[:: -(-len(some) // _ASKED)].clone())

        return note

    def after_step(self, inputs: Any, output: Any) -> None:
        """Once per step, after backward."""
        for path, table in self._tables.items():
            gradient = table.module.weight.grad
            # A shard has a part of the rows, under numbers of its own.
            if isinstance(gradient, torch.Tensor) and not is_sharded(gradient):
                look = _look(gradient, self._asked.get(path, []))
                if look is not None:
                    self._seen.setdefault(path, (table.rows, deque(maxlen=MEMORY)))[1].append(look)
        self._asked = {}

    def result(self) -> EmbeddingStats | None:
        """What was found so far; None without an embedding."""
        if not self._seen:
            return None
        return EmbeddingStats(
            tables=[
                EmbeddingRows(
                    name=path,
                    rows=rows,
                    used=[look.used for look in looks],
                    top_row=[look.row for look in looks],
                    top_share=[look.share for look in looks],
                    top_asked=[look.asked for look in looks],
                )
                for path, (rows, looks) in self._seen.items()
            ]
        )


def _look(gradient: torch.Tensor, asked: Sequence[torch.Tensor]) -> _Look | None:
    """Squared norms of rows: how many are there, which is the largest, and how many look-ups are of that one."""
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
        row = at if named is None else named[at]
        same = sum((ids == row).sum() for ids in asked) + squares.new_zeros(())
        numbers = torch.stack([top, squares.sum(), (squares > 0).sum(), row, same]).tolist()  # one sync
    largest, total, used, row_number, often = numbers
    if not 0 < total < math.inf:
        return None
    count = sum(map(len, asked))
    return _Look(int(used), int(row_number), largest / total, often / count if count else None)
