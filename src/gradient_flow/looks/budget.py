"""What looks have cost, held against the time that the training has taken."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from gradient_flow.looks.schedule import FREE

_LAST: Final = 8
"""Looks whose cost says what the next one will take."""


class Budget:
    """The `share` of the training time that looks may take, beyond the first ones. `clock` counts seconds."""

    def __init__(self, share: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.clock = share, clock
        self._started = clock()
        self._costs: deque[float] = deque(maxlen=_LAST)
        self._typical = 0.0
        self.taken = 0
        self.seconds = 0.0
        """What all looks have cost."""
        self.first_seconds = 0.0
        """What the first three have cost, which no budget limits."""

    def pay(self, seconds: float) -> None:
        """A look is over and has cost so much."""
        self.taken += 1
        self.seconds += seconds
        self._costs.append(seconds)
        self._typical = median(self._costs)  # the first look warms up, and any may be interrupted by another process
        if self.taken <= FREE:
            self.first_seconds += seconds

    def is_used_up(self, *, begun: bool = False) -> bool:
        """Whether one more look would cost too much. `begun`: one is on that has not been paid for yet."""
        if self.taken + begun < FREE:
            return False
        coming = 1 + (begun and self.taken >= FREE)
        spent = self.seconds - self.first_seconds + coming * self._typical
        return spent > self.share * (self.clock() - self._started)
