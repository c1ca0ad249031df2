"""Gradients set aside while an analysis makes its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from gradient_flow.capture.model_state import left_as_found
from gradient_flow.capture.random_states import RandomState


@contextmanager
def nothing_changed(model: nn.Module) -> Iterator[None]:
    """Weights, buffers, gradients, mode and all random generators are afterwards as they were."""
    state = RandomState.capture()
    try:
        with left_as_found(model):
            yield
    finally:
        state.restore()


@contextmanager
def gradients_kept(model: nn.Module) -> Iterator[None]:
    """The model's gradients are afterwards the same tensors."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
