"""Where the first loss that is not finite became so, from its graph: known before the step that spoils all weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gradient_flow.capture import arrivals
from gradient_flow.capture.nonfinite_graph import GraphOrigin, nonfinite_origin
from gradient_flow.record.event import READ_FROM_GRAPH

_WHY = "a division by zero, a root or logarithm of zero, an overflow, or a row in which everything is masked."
_REPLAY = "Replay that step with gf.find_nonfinite(step_fn, model): it names the operation and the line of code."
_DATA = "missing values in the data, or a normalisation of them that divided by zero."


class LossOrigin:
    """Asked with each loss before its backward pass; tells of a step that turned out not to be finite."""

    def __init__(self, name_of: Callable[[torch.Tensor], str | None]) -> None:
        self._name_of = name_of
        self._found: tuple[int, GraphOrigin] | None = None

    def note(self, loss: torch.Tensor, step: int) -> None:
        """A loss whose backward pass begins. On a device it is left alone: reading it would wait."""
        if loss.numel() != 1 or arrivals.on_device(loss):
            return
        if not math.isfinite(loss.item()):
            origin = nonfinite_origin(loss, self._name_of)
            self._found = None if origin is None else (step, origin)

    def of_step(self, step: int) -> dict[str, Any] | None:
        """What is known of a step, as an event keeps it."""
        if self._found is None or self._found[0] != step:
            return None
        origin = self._found[1]
        layer, before = _module(origin.own or origin.before), _module(origin.before)
        if origin.before is None:
            message, why = f"The input of `{layer}` was not finite, before any layer with weights.", _DATA
        elif origin.own is not None:
            message, why = f"NaN or Inf first appeared between `{before}` and `{layer}`, on the way forward.", _WHY
        else:
            message, why = f"NaN or Inf first appeared after `{layer}`, on the way forward.", _WHY
        return {
            "found": True,
            "message": message,
            "why": why,
            "advice": "Clean or mask the data before it reaches the model." if origin.before is None else _REPLAY,
            "module": layer,
            "operator": origin.operation.lower(),
            "phase": "forward",
            "read_from": READ_FROM_GRAPH,
        }


def _module(parameter: str | None) -> str:
    return "" if parameter is None else parameter.rpartition(".")[0] or parameter
