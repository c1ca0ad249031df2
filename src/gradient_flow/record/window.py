"""A bounded memory of numbers by name, one entry per step, that a NaN cannot poison: it is kept as a gap."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradient_flow.record.step import as_float, flat_numbers


class History:
    """The last steps of a run: `history["norm"]` is an array, as long as `history["step"]`.

    What is kept is the lines that the run file gets, so nested values are named as there: `outer/inner`, `lr`, `lr/1`.
    """

    def __init__(self, length: int = 10_000) -> None:
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=length)

    def append(self, line: Mapping[str, Any]) -> None:
        """Remember one step."""
        self._lines.append(dict(line))

    @property
    def lines(self) -> list[Mapping[str, Any]]:
        """The steps as they were recorded."""
        return list(self._lines)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        values = [_number_in(line, name) for line in self._lines]
        if values and all(value is None for value in values):
            raise KeyError(f"no {name!r} in the history: it has {', '.join(self.names)}")
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    @property
    def names(self) -> list[str]:
        """Everything that was recorded at some step."""
        return list(dict.fromkeys(name for line in self._lines for name, _ in flat_numbers(line)))

    def finite(self, name: str) -> list[float]:
        """The finite values of a name: what running statistics may be taken over."""
        return [value for value in self[name].tolist() if np.isfinite(value)]

    def __len__(self) -> int:
        return len(self._lines)

    def state_dict(self) -> dict[str, Any]:
        """Every number, for a checkpoint."""
        return {"records": [dict(flat_numbers(line)) for line in self._lines]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what a checkpoint holds, as much of it as fits."""
        self._lines = deque((dict(record) for record in state["records"]), maxlen=self._lines.maxlen)


def _number_in(line: Mapping[str, Any], name: str) -> float | None:
    value = line.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return as_float(value)
    return dict(flat_numbers(line)).get(name)


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
