"""Where ranks leave word for one another without a collective: the key-value store of their process group.

Nobody waits for anybody: a rank that is not watched, or has stopped, leaves no word, and that is all. So this serves
where it is not known whether every rank takes part, as with replicas (`DistributedDataParallel`) of which a user may
watch the first alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from gradient_flow.capture.sharding import several_ranks

_SLOTS: Final = 64
"""Keys of each kind: an older word is overwritten, so that a long training leaves no more."""
_boards: Final[dict[str, int]] = {}


class Board:
    """Words by what they are about and a number. Ranks that watch the same model, as often, share one board."""

    def __init__(self, names: Iterable[str]) -> None:
        model = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        _boards[model] = _boards.get(model, 0) + 1
        self._prefix = f"gradient_flow/{model}/{_boards[model]}"
        self._store = _store()
        self._file = getattr(getattr(self._store, "_underlying_non_prefix_store", None), "path", None)

    def put(self, about: str, number: int) -> None:
        """Leave word; a second time changes nothing. It is there when this returns."""
        key = self._key(about, number)
        self._ask(lambda store: store.set(key, str(number)))
        # Over TCP `set` waits for no answer; what is asked for next on the same connection has one.
        self._ask(lambda store: store.check([key]))

    def has(self, about: str, number: int) -> bool:
        """Whether any rank has left this word."""
        key = self._key(about, number)
        # `get` would wait for a key that nobody has set; none is ever taken away.
        return bool(self._ask(lambda store: store.check([key]) and store.get(key) == str(number).encode()))

    def _key(self, about: str, number: int) -> str:
        return f"{self._prefix}/{about}/{number % _SLOTS}"

    def _ask(self, action: Callable[[Any], Any]) -> Any:
        if self._store is None or not several_ranks():
            return None
        if self._file is not None and not os.path.exists(self._file):
            return None  # a store in a file that is gone is waited for
        try:
            return action(self._store)
        except Exception:  # its server is gone, or it can do less: then there is no word any more
            self._store = None
            return None


def _store() -> Any:
    """That of the default process group, where it has one."""
    try:
        from torch.distributed import distributed_c10d

        store: Any = distributed_c10d._get_default_store()
    except Exception:
        return None
    return store
