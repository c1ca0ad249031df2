"""Which parameter, which gradient: identities that neither keep an object alive nor mistake another for it."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch


class KnownParameter(NamedTuple):
    """A parameter by name. An id alone would not do: it is given anew once its object is gone."""

    name: str
    parameter: weakref.ref[torch.Tensor]

    def is_(self, parameter: torch.Tensor) -> bool:
        """Whether this is the one."""
        return self.parameter() is parameter


class ClippedRow:
    """The row of a gradient before it was clipped, and how to tell whether that gradient is still the one there."""

    def __init__(self, row: Any) -> None:
        self.row = row
        self._gradient: weakref.ref[torch.Tensor] | None = None
        self._version = -1

    def mark(self, parameter: torch.Tensor) -> None:
        """Remember the gradient as the clip left it."""
        assert parameter.grad is not None
        self._gradient, self._version = weakref.ref(parameter.grad), parameter.grad._version

    def is_of(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter's gradient is the clipped one, untouched since."""
        gradient = parameter.grad
        marked = self._gradient() if self._gradient is not None else None
        return gradient is not None and gradient is marked and gradient._version == self._version
