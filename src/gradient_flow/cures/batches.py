"""The batches of a cure: drawn once, kept, and replayed to every arm, each with the targets that belong to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from gradient_flow.analysis.steps import call_model, checked_loss
from gradient_flow.cures.shared_state import SharedState
from gradient_flow.errors import InputError

_CHECKED: Final = 2
"""Batches whose loss is taken when they are drawn and again when all are there."""


def seed_all(seed: int) -> None:
    """Seed all generators that a step may draw from. The caller keeps and restores their states."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # the global generator is the one that steps draw from
    # Not `torch.manual_seed`: on a device that nobody uses yet it leaves a note that would seed it later on.
    torch.default_generator.manual_seed(seed)
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_initialized():
            device.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


class KeptBatches:
    """Batches of `input_fn` with what it left for `loss_fn`; `loss(model, at)` replays one."""

    def __init__(self, input_fn: Callable[[], Any], loss_fn: Callable[[Any], torch.Tensor]) -> None:
        self._input_fn, self.loss_fn = input_fn, loss_fn
        self._state = SharedState(loss_fn)
        self._batches: list[Any] = []
        self._left: list[list[Any]] = []
        self._last: list[Any] | None = None
        self.calls = 0
        """How often `input_fn` was called."""

    def __len__(self) -> int:
        return len(self._batches)

    def draw(self, model: nn.Module, count: int, seed: int) -> None:
        """Call `input_fn` once per batch, and make sure that a replay gives the same loss."""
        if not self._drawn(model, count, seed, copied=False) and not self._drawn(model, count, seed, copied=True):
            raise InputError(
                "`loss_fn` must give the same loss when a batch is replayed, and it does not: it reads something that "
                "`input_fn` set and that cannot be put back. Keep the targets in a variable of the function or in an "
                "attribute, as in `def input_fn(): nonlocal target; x, target = next(batches); return x`."
            )

    def _drawn(self, model: nn.Module, count: int, seed: int, *, copied: bool) -> bool:
        self._batches, self._left = [], []
        losses = []
        for at in range(count):
            batch = self._input_fn()
            self.calls += 1
            self._state = SharedState(self.loss_fn) if at == 0 else self._state
            self._batches.append(tree_map(_copied, batch) if copied else batch)
            self._left.append(self._state.values(copied=copied))
            if at < _CHECKED:
                live = self._state.values()
                losses.append(self._checked(model, at, seed))
                self._state.put(live)  # `input_fn` may fill the same tensor again
        self._last = self._state.values()
        try:
            # A loss that differs from itself draws numbers of its own, or counts its calls: no replay is the same.
            return all(
                one != again or _same(one, self._checked(model, at, seed)[0]) for at, (one, again) in enumerate(losses)
            )
        finally:
            self.put_back()

    def _checked(self, model: nn.Module, at: int, seed: int) -> tuple[float, float]:
        with torch.no_grad():
            found = []
            for _ in range(2):
                seed_all(seed)
                with buffers_kept(model):
                    found.append(float(self.loss(model, at)))
        return (found[0], found[0]) if _same(*found) else (found[0], found[1])

    def loss(self, model: nn.Module, at: int) -> torch.Tensor:
        """The loss of a kept batch."""
        self._state.put(self._left[at])
        return checked_loss(self.loss_fn(call_model(model, self._batches[at])))

    def batch(self, at: int) -> Any:
        """A kept batch, with its targets where `loss_fn` looks for them."""
        self._state.put(self._left[at])
        return self._batches[at]

    def put_back(self) -> None:
        """What `loss_fn` reads is again what the last call of `input_fn` left."""
        if self._last is not None:
            self._state.put(self._last)

    def finite(self, at: int) -> bool:
        """Whether a batch holds no NaN and no Inf, so that its loss can be finite."""
        tensors = (leaf for leaf in tree_leaves(self._batches[at]) if isinstance(leaf, torch.Tensor))
        return all(bool(leaf.isfinite().all()) for leaf in tensors if leaf.is_floating_point())


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other) or abs(one - other) <= 1e-6 * abs(one)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore buffers such as running statistics afterwards: a measurement is no step."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in kept:
                buffer.copy_(values)
