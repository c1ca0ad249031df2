"""Hearing of each batch that a `DataLoader` gives in this process, with the indices that its sampler drew for it.

With a listener, two methods of torch's loader iterators are wrapped; afterwards they are as they were. Workers fetch
ahead, so indices are kept in the order in which they were drawn, which is that of the batches. An iterator that had
begun before anybody listened, or that gives batches out of order, is left alone.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

Fetched = Callable[[Any, Any], None]
"""Called with the indices of a batch, or None where a dataset has none, and the batch."""
_listeners: list[Fetched] = []
_restore: list[Callable[[], None]] = []
_drawn: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()


def listen(fetched: Fetched) -> Callable[[], None]:
    """Call `fetched(indices, batch)` with each batch. Returns a function that ends it."""
    if not _listeners:
        _wrap()
    entry: list[Fetched] = [fetched]
    _listeners.append(fetched)

    def end() -> None:
        if entry:
            _listeners.remove(entry.pop())
        while _restore and not _listeners:
            _restore.pop()()

    return end


def _wrap() -> None:
    kind: Any = dataloader._BaseDataLoaderIter
    draw, fetch = kind._next_index, kind.__next__

    @functools.wraps(draw)
    def next_index(self: Any) -> Any:
        indices = draw(self)
        first = not getattr(self, "_send_idx", 0) if hasattr(self, "_send_idx") else self not in _drawn
        if first:  # an epoch begins: what workers had fetched ahead in the last one is dropped
            _drawn[self] = deque()
        if self in _drawn:
            _drawn[self].append(indices)
        return indices

    @functools.wraps(fetch)
    def next_batch(self: Any) -> Any:
        batch = fetch(self)
        waiting = _drawn.get(self)
        indices = waiting.popleft() if waiting else None
        for fetched in list(_listeners):
            fetched(indices if getattr(self, "_in_order", True) else None, batch)
        return batch

    kind._next_index, kind.__next__ = next_index, next_batch

    def restore() -> None:
        # Another tool may have wrapped them again meanwhile: leave what is not ours.
        if kind._next_index is next_index:
            kind._next_index = draw
        if kind.__next__ is next_batch:
            kind.__next__ = fetch
        _drawn.clear()

    _restore.append(restore)
