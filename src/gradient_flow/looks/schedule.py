"""Which steps are looked at: a function of the step alone, so that every rank and every machine looks at the same."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

from gradient_flow.errors import InputError

FIRST: Final = 3
"""None before this step: the first ones are those in which a model may be compiled."""
EARLY: Final = (FIRST, 6, 13, 26, 51, 100, 201, 400, 701, 1000)
LATER: Final = 501
"""After the early looks, every Nth step. Odd and even steps take turns: where two optimizers do, both are seen."""
FREE: Final = 3
"""Looks that are taken whatever they cost."""
KEPT: Final = (51, 201)
"""Looks of the usual schedule that are taken too, and paid for by dropping later ones: a budget of time grows so slowly
in a small, fast model that nothing after its first steps would be seen, and when it is depends on the machine."""


class Schedule:
    """`looks=` of `watch`: True for the usual steps, N for every Nth step, or a list of steps."""

    def __init__(self, looks: Any = True, early: tuple[int, ...] = EARLY, later: int = LATER) -> None:
        self._every: int = later
        self._steps: tuple[int, ...] = early
        self._kept: tuple[int, ...] = KEPT if looks is True else ()
        if isinstance(looks, bool):
            self.off = not looks
            return
        self.off = False
        if isinstance(looks, int):
            if looks < 1:
                raise InputError(
                    f"`looks` must be a number of steps of at least 1, got {looks}. False switches looks off."
                )
            self._every, self._steps = looks, ()
            return
        try:
            steps = sorted({int(step) for step in looks}) if isinstance(looks, Iterable) else None
        except (TypeError, ValueError):
            steps = None
        if steps is None or isinstance(looks, str) or any(step < 1 for step in steps):
            raise InputError(
                f"`looks` must be True, False, a number of steps, or a list of steps; got {looks!r}. Leave it out for "
                "the usual steps."
            )
        self._every, self._steps = 0, tuple(steps)

    def is_kept(self, before: int, step: int) -> bool:
        """Whether the look of this step, or of one since the step `before`, is taken whatever the budget says."""
        return any(before < kept <= step for kept in self._kept)

    def until(self, step: int) -> int:
        """How many looks are due up to and with a step."""
        due = bisect_right(self._steps, step)
        last = self._steps[-1] if self._steps else 0
        return due + (max(0, step - last) // self._every if self._every else 0)

    def after(self, step: int) -> float:
        """The next step that a look falls to; infinite where none does.

        >>> Schedule().after(13), Schedule().after(1000), Schedule(False).after(1)
        (26, 1501, inf)
        """
        early = self._steps
        if self.off:
            return math.inf
        if early and step < early[-1]:
            return early[bisect_right(early, step)]
        last = early[-1] if early else 0
        return last + ((step - last) // self._every + 1) * self._every if self._every else math.inf

    def is_due(self, before: int, step: int) -> bool:
        """Whether a look falls to this step, or to one that was passed over since the step `before`.

        >>> [step for step in range(1, 1600) if Schedule().is_due(step - 1, step)][:4]
        [3, 6, 13, 26]
        """
        if step == before + 1 >= FIRST and not self.off:  # asked after every step, so briefly
            early = self._steps
            if early and step <= early[-1]:
                return early[bisect_right(early, step) - 1] == step
            return self._every > 0 and (step - (early[-1] if early else 0)) % self._every == 0
        return not self.off and self.until(step) > self.until(max(before, FIRST - 1))
