"""Looks at the state of optimizers: in some steps, without a hook, so also where the model is compiled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from gradient_flow.diagnosis.optimizer.record import MOST_STATES, OptimizerFacts
from gradient_flow.looks.optimizer_state import StateReader, kind_of
from gradient_flow.looks.schedule import Schedule

EARLY: Final = (2, 3, 4, 6, 9, 12, 18, 25, 35, 50, 70, 100, 140, 200)
"""Steps of an optimizer that are looked at, in a usual schedule; then every hundredth."""
LATER: Final = 100
_FREE: Final = 8
"""Looks that are taken whatever they cost: about two milliseconds for a hundred tensors."""
_SHARE: Final = 0.1
"""Of the budget of all looks."""


class OptimizerWatch:
    """Looks at the state of each optimizer in some of its steps; `facts` is everything that was seen."""

    def __init__(self, schedule: Schedule, budget: float) -> None:
        self._own = Schedule(EARLY).is_usual if False else schedule
        self._budget = budget * _SHARE
        self.facts = OptimizerFacts()
        self.failed, self.reason = False, ""
        self.seconds = 0.0
        self._started = time.perf_counter()
        self._steps: dict[int, int] = {}
        self._ages: dict[int, int] = {}
        self._reader: tuple[int, StateReader] | None = None
