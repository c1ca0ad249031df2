"""How much of a sequence is kept: a few samples, a bounded number of steps, and the gradient that enters at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

MOST_ROWS: Final = 8
MOST_STEPS: Final = 256
_FEWEST_STEPS: Final = 4
_MOST_ELEMENTS: Final = 1 << 22
"""Numbers kept of one sequence: 16 MB in fp32."""


def rows_to_keep(batch: int, elements_per_row: int) -> list[int]:
    """Evenly spaced samples of a batch; fewer than `MOST_ROWS` where one sample is large, as in a ConvLSTM."""
    count = max(1, min(MOST_ROWS, batch, _MOST_ELEMENTS // max(1, 64 * elements_per_row)))
    return [index * batch // count for index in range(count)]


def steps_to_keep(elements_per_step: int) -> int:
    """How many steps of that many numbers fit into the bound."""
    return max(_FEWEST_STEPS, min(MOST_STEPS, _MOST_ELEMENTS // max(1, elements_per_step)))


def kept(tensor: torch.Tensor, rows: list[int] | None, dim: int = 0) -> torch.Tensor:
    """A detached copy of some rows, or of all where `rows` is None."""
    tensor = tensor.detach()
    return tensor.clone() if rows is None else tensor.index_select(dim, torch.tensor(rows, device=tensor.device))


def same_rows(left: torch.Tensor, right: torch.Tensor, dim: int = 0) -> bool:
    """Whether any row is equal in both, bit by bit. Any: a padded sample may have kept its old state."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    equal = left == right
    return bool(equal.movedim(dim, 0).flatten(1).all(dim=1).any()) if equal.dim() > 1 else bool(equal.all())


class EndGradient:
    """The gradient that enters a sequence at its last step that has one, part by part (h, c, output …).

    Backward arrives from the end: what belongs to a later call replaces what belongs to an earlier one.
    """

    def __init__(self) -> None:
        self.at = -1
        self.parts: dict[Any, torch.Tensor] = {}
        self._made: dict[Any, int] = {}

    @property
    def parts_made_last(self) -> dict[Any, torch.Tensor]:
        """Without those that others were made from: the gradient of an LSTM cell's c holds what came through its h."""
        last = max((self._made[part] for part in self.parts), default=0)
        return {part: rows for part, rows in self.parts.items() if self._made[part] == last}

    def watch(self, tensor: Any, call: int, part: Any, reduce: Callable[[torch.Tensor], torch.Tensor]) -> Any | None:
        """Put a hook on the tensor, where it has a gradient; returns the handle. `reduce` takes a few rows of it."""
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
            return None

        made = 0 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()

        def hook(gradient: torch.Tensor) -> None:
            if call < self.at:
                return
            rows = reduce(gradient.detach())
            if bool((rows != 0).any()) and bool(torch.isfinite(rows).all()):
                if call > self.at:
                    self.at, self.parts = call, {}
                self.parts[part], self._made[part] = rows, made

        return tensor.register_hook(hook)  # type: ignore[no-untyped-call]
