"""`Probe`: what looks deeper than the observer, in an analysis and in a training alike."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn


class Probe(Protocol):
    """A special measurement beside the general one. Hooks exist only while it is entered."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *_: Any) -> Any: ...
    def bind(self, model: nn.Module) -> None:
        """Take up the model, until `release`."""

    def release(self) -> None:
        """Release the model."""

    def listen(self, listening: bool) -> None:
        """Whether the forwards that come are of interest."""

    def after_step(self, inputs: Any, output: Any) -> None:
        """Once per step, after backward."""

    def result(self) -> Any:
        """What was found so far."""
