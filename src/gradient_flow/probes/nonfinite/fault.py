"""What is known of an operation that gave NaN or Inf, in numbers and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gradient_flow.probes.nonfinite.tensor_range import TensorRange


class Explanation(NamedTuple):
    """A cause and a remedy, each one or two sentences."""

    why: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is known of an operation that gave a non-finite result."""

    operator: str
    """Familiar name of the operator that the user called, without `_` or `backward`."""
    inner: str
    """The operator that ran: in a backward pass, or in a custom function, a different one."""
    phase: str
    inputs: Sequence[TensorRange]
    outputs: Sequence[TensorRange]
    from_mask: bool = False
    """Whether it made NaN of an Inf that was there on purpose."""
    unused: str | None = None
    """The operator that keeps the value out of the loss, where a gradient of 0 met the infinite slope."""

    def at(self, *names: str) -> float | None:
        """The value that met the first non-finite element, of the first operand that has one of these names."""
        return next((operand.at_fault for operand in self.inputs if operand.name in names), None)

    @property
    def is_nan(self) -> bool:
        """Whether NaN, not Inf, is what came out."""
        return bool(self.outputs) and self.outputs[0].nan > 0

    @property
    def dtype(self) -> str:
        """Of the result."""
        return self.outputs[0].dtype if self.outputs else ""
