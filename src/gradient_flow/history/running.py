"""Mean, spread and extremes of a whole run in five numbers (Welford): memory does not grow with the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class RunningStats:
    """Statistics of all finite values seen. Non-finite ones are counted and never enter.

    >>> stats = RunningStats()
    >>> for value in (1.0, 3.0, float("nan")):
    ...     stats.add(value)
    >>> stats.mean, stats.std, stats.nonfinite
    (2.0, 1.0, 1)
    """

    def __init__(self) -> None:
        self.count = self.nonfinite = 0
        self._mean = self._squares = 0.0
        self._min, self._max = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Take in one value."""
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        self.count += 1
        distance = value - self._mean
        self._mean += distance / self.count
        self._squares += distance * (value - self._mean)
        self._min, self._max = min(self._min, value), max(self._max, value)

    @property
    def mean(self) -> float:
        """NaN while there is no value."""
        return self._mean if self.count else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation; NaN while there is no value."""
        return math.sqrt(self._squares / self.count) if self.count else math.nan

    def to_dict(self) -> dict[str, float]:
        """`mean`, `std`, `min`, `max` and `count`."""
        low, high = (self._min, self._max) if self.count else (math.nan, math.nan)
        return {"mean": self.mean, "std": self.std, "min": low, "max": high, "count": self.count}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {**vars(self), "_min": self.to_dict()["min"], "_max": self.to_dict()["max"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        vars(self).update(state)
        if not self.count:
            self._min, self._max = math.inf, -math.inf
