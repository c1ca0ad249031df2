"""Where the first loss or gradient that is not finite became so, from its graph.

Known before the step that spoils all weights, and without a second pass.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from gradient_flow.capture import arrivals
from gradient_flow.capture.nonfinite_graph import GraphOrigin, SteepOperation, nonfinite_origin, steep_operations
from gradient_flow.probes.nonfinite.advice import explain
from gradient_flow.probes.nonfinite.fault import Explanation, Fault
from gradient_flow.probes.nonfinite.operators import name_of_node
from gradient_flow.probes.nonfinite.tensor_range import TensorRange
from gradient_flow.record.event import READ_FROM_GRAPH

_WHY: Final = "a division by zero, a root or logarithm of zero, an overflow, or a row in which everything is masked."
_REPLAY: Final = (
    "Replay that step with `gf.find_nonfinite(step_fn, model)`: it names the operation and the line of code."
)
_DATA: Final = "missing values in the data, or a normalisation of them that divided by zero."
_CLEAN: Final = "Clean or mask the data before it reaches the model."
_OPERANDS: Final = {"self": "input"}
"""Names of operands in the graph → those that explanations use."""
_STEEP_WHERE_FINITE: Final = ("sqrt", "rsqrt", "pow", "acos", "asin")
"""These give a finite result where their slope is infinite. The others do so only where `where` or a mask hides it."""


class LossOrigin:
    """Asked with each loss before its backward pass; tells of a step that turned out not to be finite."""

    def __init__(self, name_of: Callable[[torch.Tensor], str | None]) -> None:
        self._name_of = name_of
        self._found: tuple[int, GraphOrigin] | None = None
        self._last: Callable[[], torch.Tensor | None] = _nothing

    def hold(self, loss: torch.Tensor) -> None:
        """The loss of a pass that begins, as long as its user holds it."""
        self._last = weakref.ref(loss)

    def note(self, loss: torch.Tensor, step: int) -> None:
        """A loss whose backward pass begins. On a device it is left alone: reading it would wait."""
        if loss.numel() != 1 or arrivals.on_device(loss):
            return
        if not math.isfinite(loss.item()):
            origin = nonfinite_origin(loss, self._name_of)
            self._found = None if origin is None else (step, origin)

    def of_step(self, step: int, bad: frozenset[str]) -> dict[str, Any] | None:
        """What is known of a step of which `bad` parameters have gradients that are not finite, as an event keeps it.

        Asked before the next loss.
        """
        if self._found is not None and self._found[0] == step:
            return _forward(self._found[1])
        loss, self._last = self._last(), _nothing
        # To read a sharded loss would ask the other ranks.
        if type(loss) is not torch.Tensor or loss.grad_fn is None or arrivals.on_device(loss):
            return None
        if not math.isfinite(loss.item()):
            return None
        steep = steep_operations(loss.grad_fn, self._name_of, bad)
        return _backward(steep) if steep else None


def _forward(origin: GraphOrigin) -> dict[str, Any]:
    layer, before = _module(origin.own or origin.before), _module(origin.before)
    operator = name_of_node(origin.operation)
    if origin.operand:
        operand = _OPERANDS.get(origin.operand, origin.operand)
        met = TensorRange(name=operand, shape=(), dtype="", count=1, at_fault=origin.value)
        known = explain(Fault(operator=operator, inner=operator, phase="forward", inputs=[met], outputs=[]))
        message = f"NaN or Inf first appeared after `{layer}`, on the way forward, in `{operator}`."
    elif origin.before is None:
        message, known = (
            f"the input of `{layer}` was not finite, before any layer with weights.",
            Explanation(_DATA, _CLEAN),
        )
    else:
        between = f"between `{before}` and `{layer}`" if origin.own is not None else f"after `{layer}`"
        message, known = f"NaN or Inf first appeared {between}, on the way forward.", Explanation(_WHY, _REPLAY)
    return _event(message, known, layer, operator, "forward")


def _backward(steep: list[SteepOperation]) -> dict[str, Any]:
    named = {name_of_node(each.operation): each for each in reversed(steep)}  # the one nearest to the loss stays
    likely = {name: each for name, each in named.items() if name in _STEEP_WHERE_FINITE} or named
    operator = next(reversed(likely))
    layer = _module(likely[operator].before)
    known = explain(Fault(operator=operator, inner=operator, phase="backward", inputs=[], outputs=[]))
    one_of = f"`{operator}`" if len(likely) == 1 else f"one of {', '.join(f'`{name}`' for name in reversed(likely))}"
    after = f" after `{layer}`" if layer else ""
    message = f"the loss was finite, but its gradient became NaN or Inf on the way back, in {one_of}{after}."
    return _event(message, known, layer, operator, "backward")


def _event(message: str, known: Explanation, layer: str, operator: str, phase: str) -> dict[str, Any]:
    return {
        "found": True,
        "message": message,
        "why": known.why,
        "advice": known.advice,
        "module": layer,
        "operator": operator,
        "phase": phase,
        "read_from": READ_FROM_GRAPH,
    }


def _module(parameter: str | None) -> str:
    return "" if parameter is None else parameter.rpartition(".")[0] or parameter


def _nothing() -> None:
    """No loss is held."""
