"""Small reductions put together: what layers have alike costs one set of operations instead of one each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

Sample = TypeVar("Sample")
Sums = TypeVar("Sums")

MOST_HELD: Final = 1 << 19
"""Elements of samples that are held until they are reduced."""


class Later(Generic[Sums]):
    """The sums of one sample, once they are there."""

    __slots__ = ("value",)

    value: Sums

    @classmethod
    def of(cls, value: Sums) -> Later[Sums]:
        """Sums that are there already."""
        later = cls()
        later.value = value
        return later


class Together(Generic[Sample, Sums]):
    """Holds samples and reduces them as soon as they are many. `elements` tells the size of one."""

    def __init__(self, reduce: Callable[[Sequence[Sample]], Sequence[Sums]], elements: Callable[[Sample], int]) -> None:
        self._reduce, self._elements = reduce, elements
        self._waiting: list[tuple[Sample, Later[Sums]]] = []
        self._held = 0

    def add(self, sample: Sample) -> Later[Sums]:
        """Take in a sample."""
        later: Later[Sums] = Later()
        self._waiting.append((sample, later))
        self._held += self._elements(sample)
        if self._held > MOST_HELD:
            self.finish()
        return later

    def finish(self) -> None:
        """Reduce what waits."""
        waiting, self._waiting, self._held = self._waiting, [], 0
        for (_, later), sums in zip(waiting, self._reduce([sample for sample, _ in waiting]), strict=True):
            later.value = sums
