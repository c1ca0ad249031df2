"""The optimizers of a watch: numbered in order of appearance, their steps counted, none of them kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch


class WatchedOptimizers:
    """Optimizers by number. Steps recorded by hand, without an optimizer, are counted under `None`."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[torch.optim.Optimizer]] = []
        self._numbers: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._together: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._references)

    def number_of(self, optimizer: torch.optim.Optimizer) -> int:
        """The number of an optimizer; one that is new gets the next."""
        number = self._numbers.get(id(optimizer))
        if number is None or self._references[number]() is not optimizer:  # ids are reused after garbage collection
            number = self._numbers[id(optimizer)] = len(self._references)
            self._references.append(weakref.ref(optimizer))
        return number

    def add(self, optimizer: torch.optim.Optimizer) -> int:
        """Expect steps of an optimizer; its number."""
        self._steps.setdefault(id(optimizer), 0)
        return self.number_of(optimizer)

    def living(self) -> list[torch.optim.Optimizer]:
        """Those that still exist."""
        return [optimizer for each in self._references if (optimizer := each()) is not None]

    def held(self, name_of: Callable[[torch.Tensor], str | None]) -> dict[int, str]:
        """What they hold: id → name."""
        groups = (group for optimizer in self.living() for group in optimizer.param_groups)
        return {id(parameter): name_of(parameter) or "" for group in groups for parameter in group["params"]}

    def first_of(self, ids: Iterable[int]) -> int:
        """The number for optimizers that step together: that of the first, even when it skips a step."""
        numbers = [self._numbers[each] for each in ids]
        first = min((self._together[number] for number in numbers if number in self._together), default=min(numbers))
        for number in numbers:
            self._together.setdefault(number, first)
        return first

    # ---- steps of each --------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[int]:
        """Steps that each has taken."""
        return list(self._steps.values())

    def count(self, optimizer: torch.optim.Optimizer | None) -> int:
        """Count a step; how many this optimizer has taken now."""
        taken = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        return taken

    def of(self, optimizer: torch.optim.Optimizer) -> int:
        """Steps that this one has taken."""
        return self._steps.get(id(optimizer), 0)

    def resume(self, steps: Sequence[int]) -> None:
        """Go on from the counts of a checkpoint, in the order of appearance."""
        self._steps |= dict(zip(list(self._steps) or [id(None)], steps, strict=False))
