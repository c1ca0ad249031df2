"""Whether a run is still recorded, and the fence around what records it: no failure of ours reaches the training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from gradient_flow.config import disabled
from gradient_flow.errors import warn

Made = TypeVar("Made")


class Guard:
    """Runs what records. What fails ends the recording with one warning, and never the training."""

    def __init__(self, over_ranks: Mapping[int, Any]) -> None:
        self._over_ranks = over_ranks
        """Optimizers whose steps are measured by several ranks together; empty where there are none."""
        self.pid = os.getpid()
        self.off = disabled()
        """Switched off from outside."""
        self.closed = False
        self.gave_up = False
        """Whether gradients are not where they could be read."""
        self.failed = False
        self.ended = False
        """Whether something failed on every rank alike, so that none of them waits for another."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked child, which must not write into its parent's run."""
        return os.getpid() != self.pid

    def run(self, action: Callable[..., Made], *given: Any, together: bool = False) -> Made | None:
        """Run `action`; if it fails, stop recording with one warning. Training must never notice.

        What ranks do `together` goes on after a failure on one of them, which the others do not know of.
        """
        if self.is_elsewhere or self.ended or self.off:
            return None
        if self.failed and not (together and self._over_ranks):
            return None
        try:
            return action(*given)
        except Exception as problem:
            self.fail(problem)
            return None

    def fail(self, problem: Exception) -> None:
        """Record nothing further, and say why."""
        self.failed = True
        warn(
            f"gradient_flow stopped recording ({type(problem).__name__}: {problem}); training continues.",
            stacklevel=5,
        )

    @contextmanager
    def or_end(self) -> Iterator[None]:
        """A failure in here happens on every rank alike: no rank is left waiting, and recording ends."""
        try:
            yield
        except BaseException:
            self.ended = True
            raise
