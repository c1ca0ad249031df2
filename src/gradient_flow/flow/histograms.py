"""Which looks take a histogram of exponents, and how it comes to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradient_flow.capture.arrivals import LateNumber
from gradient_flow.capture.optimizer_steps import late_scale
from gradient_flow.capture.sharding import any_sharded
from gradient_flow.flow.known_parameters import Named
from gradient_flow.record.look import LookRecord
from gradient_flow.table.exponents import LATER, exponent_counts


class Histograms:
    """Takes a histogram of the gradients of a step, as the optimizer gets them but without the loss scale."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}

    def is_due(self, optimizer: int, step: int) -> bool:
        """Whether a look at this step of the optimizer with this id would take one."""
        return step >= self._next.get(optimizer, 0)

    def start(
        self, look: LookRecord, optimizer: torch.optim.Optimizer | None, parameters: Named
    ) -> tuple[Callable[[], bool], Callable[[Any], None]] | None:
        """When the look can have its histogram, and what puts it there; None where its turn has not come.

        Gradients that are sharded over ranks have none: ranks would have to put it together.
        """
        key = id(optimizer)
        gradients = {name: p.grad for name, p in parameters if p.grad is not None}
        if not self.is_due(key, look.step) or look.table is None or any_sharded(gradients.values()):
            return None
        self._next[key] = math.ceil(look.step * LATER)
        scale = late_scale(optimizer)
        on_device = scale.on_device if isinstance(scale, LateNumber) else scale
        counts = exponent_counts([gradients[name] for name in look.table.names], on_device)

        def put(_: Any) -> None:
            look.exponents = counts if isinstance(counts, np.ndarray) else counts()

        return (lambda: isinstance(counts, np.ndarray) or counts.ready()), put
