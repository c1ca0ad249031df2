"""One call of an operator: what went in, as it was before, and which of it can have made the result non-finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from gradient_flow.probes.nonfinite.operators import Operator, operator_of, reads
from gradient_flow.probes.nonfinite.tensor_range import TensorRange, has_nonfinite

_TELLING: Final = ("other", "exponent", "value", "p", "divisor")
"""Arguments that are often plain numbers and explain a result: `x / 0`, `x ** -0.5`."""


class Operand(NamedTuple):
    """A tensor that an operator reads."""

    name: str
    tensor: torch.Tensor
    before: torch.Tensor
    """With the values from before the call, also where the operator works in place."""


@dataclass(slots=True)
class OperatorCall:
    """A call of an operator: its arguments by name, and the autograd node at work."""

    operator: Operator
    values: dict[str, Any]
    node: Any
    operands: list[Operand]

    @classmethod
    def before(cls, func: Any, args: Any, kwargs: dict[str, Any]) -> OperatorCall:
        """Take down a call that is about to be made; what it will write over is copied."""
        operator = operator_of(func)
        names = [*operator.arguments, *map(str, range(len(operator.arguments), len(args)))]
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        operands = []
        with torch.no_grad():
            for name, tensor in tensors_in(values):
                argument = name.partition("[")[0]
                if reads(operator, argument, values):
                    old = tensor.detach().clone() if argument in operator.written else tensor
                    operands.append(Operand("input" if name == "self" else name, tensor, old))
        return cls(operator, values, torch._C._current_autograd_node(), operands)

    @property
    def written(self) -> list[torch.Tensor]:
        """Tensors that the operator changes."""
        return [tensor for name, tensor in tensors_in(self.values) if name.partition("[")[0] in self.operator.written]

    @property
    def is_fresh_tensor(self) -> bool:
        """Whether this is the way a tensor takes that was made of Python's or NumPy's numbers."""
        return self.operator.full.startswith("aten.lift_fresh")

    @property
    def copies_numbers(self) -> bool:
        """Whether a fresh tensor has memory of its own: `torch.tensor` does, `torch.from_numpy` does not."""
        return all(operand.tensor.untyped_storage().resizable() for operand in self.operands)

    @property
    def gives_nonfinite_number(self) -> bool:
        """Whether a plain NaN or Inf is among the arguments: `masked_fill(mask, -inf)`."""
        return any(isinstance(value, float) and not math.isfinite(value) for value in self.values.values())

    def makes_node(self, results: Iterable[torch.Tensor]) -> bool:
        """Whether autograd records this call; a comparison, say, has no gradient."""
        if not torch.is_grad_enabled() or not any(operand.tensor.requires_grad for operand in self.operands):
            return False
        return any(result.is_floating_point() or result.is_complex() for result in results)

    def telling_numbers(self, limit: int = 4) -> list[TensorRange]:
        """Plain numbers among the arguments that explain a result."""
        numbers = [
            (name, float(v)) for name, v in self.values.items() if name in _TELLING and isinstance(v, (int, float))
        ]
        return [
            TensorRange(
                name=name, shape=(), dtype="number", count=1, minimum=v, maximum=v, zeros=int(v == 0), at_fault=v
            )
            for name, v in numbers[:limit]
            if math.isfinite(v)
        ]

    def culprits(self, result: torch.Tensor) -> tuple[list[Operand], bool]:
        """Operands whose non-finite elements can be those of the result, and whether the result has others as well.

        Where elements meet one by one this is exact; else every non-finite operand counts.
        """
        bad = [operand for operand in self.operands if has_nonfinite(operand.before)]
        if not bad or not self.operator.elementwise:
            return bad, False
        try:
            with torch.no_grad():
                condition = self.values.get("condition")
                taken = {} if condition is None else {"input": condition, "other": ~condition}  # what `where` takes
                return _meeting(bad, result.detach(), taken)
        except RuntimeError:  # shapes or layouts that do not match
            return bad, False


def _meeting(bad: list[Operand], result: torch.Tensor, taken: dict[str, torch.Tensor]) -> tuple[list[Operand], bool]:
    wrong = ~torch.isfinite(result)
    explained = torch.zeros_like(wrong)
    meeting = []
    for operand in bad:
        theirs = ~torch.isfinite(operand.before.detach()) & taken.get(operand.name, torch.ones_like(wrong))
        explained |= theirs
        if bool((theirs & wrong).any()):
            meeting.append(operand)
    return meeting, bool((wrong & ~explained).any())


def tensors_in(values: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors among the arguments, also those in lists, by name."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield f"{name}[{index}]", item
