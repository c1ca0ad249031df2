"""Optimizers that step inside backward, one for each parameter: together their steps are one step of training.

The recipe saves the memory of the gradients: a hook on each parameter steps its optimizer as soon as the gradient is
there, and frees it. What such a pass did is put together here and recorded when it is over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from gradient_flow.capture.optimizer_steps import backward_depth
from gradient_flow.flow.step_tables import StepTables
from gradient_flow.record.step import plain_value
from gradient_flow.table import GradientTable
from gradient_flow.table.updates import WeightSample


class BackwardStep:
    """The steps of one backward pass, each measured before it is taken."""

    def __init__(self, *, recorded: bool, looks: bool) -> None:
        self.recorded, self.looks = recorded, looks
        self.rates: list[Any] = []
        """Every learning rate that was used, once."""
        self.guard: str | None = None
        self.losses: dict[str, Any] = {}
        """What is known of the loss of the pass."""
        self._optimizers: set[int] = set()
        self._tasks: set[int] = set()
        self._outer: int | None = None
        self._parts: list[tuple[GradientTable, GradientTable | None]] = []
        self._samples: list[WeightSample] = []
        self._managed: dict[int, float] = {}

    def takes(self, optimizer: torch.optim.Optimizer, task: int) -> bool:
        """Whether the step that comes in this backward pass belongs here; if not, this one is over."""
        if id(optimizer) in self._optimizers:
            return False
        return task in self._tasks or self._outer is None or backward_depth() > 1

    def add_step(self, optimizer: torch.optim.Optimizer, task: int) -> bool:
        """Count a step in; whether the pass is new here and will have to be waited for."""
        self._optimizers.add(id(optimizer))
        for group in optimizer.param_groups:
            rate = plain_value(group.get("lr"))
            if rate is not None and rate not in self.rates:
                self.rates.append(rate)
        if task in self._tasks:
            return False
        self._tasks.add(task)
        if backward_depth() <= 1:  # checkpointing of the reentrant kind runs a pass inside the pass
            self._outer = task
        return True

    def add_tables(self, measured: StepTables, sample: WeightSample | None) -> None:
        """The gradients of a step, and its weights before it where they are looked at."""
        self._parts.append((measured.table, measured.clipped))
        if sample is not None:
            self._samples.append(sample)

    def add_action(self, clipping: Mapping[str, Any], guard: str | None) -> None:
        """What a manager did to the step that was added last."""
        self.guard = self.guard or guard
        if clipping["clipped"] and self._parts:
            self._managed[len(self._parts) - 1] = clipping["clipped_norm"]

    @property
    def measured(self) -> bool:
        """Whether any gradient was measured."""
        return bool(self._parts)

    @property
    def optimizers(self) -> set[int]:
        """Their ids."""
        return self._optimizers

    def tables(self, order: Mapping[str, int]) -> tuple[GradientTable, GradientTable | None]:
        """All gradients of the pass, and the same after clipping where one was clipped; in the order of the model."""
        before = _joined((table for table, _ in self._parts), order)
        if all(clipped is None for _, clipped in self._parts):
            return before, None
        return before, _joined((table if clipped is None else clipped for table, clipped in self._parts), order)

    def managed_norm(self) -> float | None:
        """The norm that a manager left, where it clipped."""
        if not self._managed:
            return None
        left = (table if clipped is None else clipped for table, clipped in self._parts)
        return math.hypot(*(self._managed.get(at, table.total.norm) for at, table in enumerate(left)))

    def ratios(self) -> dict[str, float]:
        """How far each weight was moved, by name."""
        return {name: ratio for sample in self._samples for name, ratio in sample.ratios().items()}


def _joined(tables: Iterable[GradientTable], order: Mapping[str, int]) -> GradientTable:
    tables = list(tables)
    names = [name for table in tables for name in table.names]
    rows = np.concatenate([table.rows for table in tables])
    places = sorted(range(len(names)), key=lambda at: order.get(names[at], len(order)))
    missing = [name for table in tables for name in table.missing]
    return GradientTable([names[at] for at in places], rows[places], missing=missing, thresholds=tables[0].thresholds)
