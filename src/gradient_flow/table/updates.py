"""How far a step moved each weight, from a sample of its elements instead of a copy of all weights.

Before the step up to `SAMPLE` evenly spaced elements of each tensor are copied; after it the same elements are
compared. The ratio ||ΔW|| / ||W|| over the sample is exact for tensors of at most `SAMPLE` elements and an estimate for
larger ones, with a relative error of about 1 / sqrt(2 * SAMPLE): up to 2.4 % was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.arrivals import on_device
from gradient_flow.capture.sharding import local_part
from gradient_flow.table import columns, kernels
from gradient_flow.table.columns import Rows
from gradient_flow.table.measure import measure, measure_parts
from gradient_flow.table.table import GradientTable

SAMPLE: Final = 1024
_MOST_LEFT: Final = 1 << 16
"""Elements that are kept for later; of a model with more tensors they would take megabytes."""


def sample_weights(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of evenly spaced elements."""
    return [_spaced(parameter).clone() for parameter in parameters]


def weight_changes(parameters: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """How the sampled elements changed since."""
    return [_spaced(parameter) - sample for parameter, sample in zip(parameters, before, strict=True)]


def update_ratio(changes: Rows, sizes: Rows) -> NDArray[np.float64]:
    """||ΔW|| / ||W|| of each row: 0 for a weight that did not move, infinite for one that left zero, NaN for neither.

    Both tables are of the same sampled elements.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(columns.norm(changes) / columns.norm(sizes), dtype=np.float64)


class WeightSample:
    """Sampled weights of named parameters before a step; `ratios()` compares them with what they are after it."""

    def __init__(self, parameters: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.names = tuple(name for name, _ in parameters)
        self._parameters: list[torch.Tensor] = [parameter for _, parameter in parameters]
        found = _spaced_in_place(self._parameters)
        self._in_place: NDArray[Any] | None = None if found is None else found[0]
        """All of them one after the other, where they are read as they lie; else they are in `_before`."""
        self._sizes: list[int] = [] if found is None else found[1]
        self._before = sample_weights(self._parameters) if self._in_place is None else []

    def moved(self) -> Moved:
        """How far they are from there now; on a device that is on its way then."""
        return self.moved_later()()

    def moved_later(self) -> Callable[[], Moved]:
        """The same with all that can wait left to a call: to read a few elements takes a fraction of measuring them."""
        before, names, sizes = self._in_place, self.names, self._sizes
        if before is not None:
            now = _spaced_in_place(self._parameters)
            if now is not None and now[0].dtype == before.dtype and now[1] == sizes:
                after = now[0]

                def made() -> Moved:
                    return Moved(
                        names, measure_parts(names, after - before, sizes), measure_parts(names, before, sizes)
                    )

                return made if len(after) <= _MOST_LEFT else partial(_given, made())
            # Within the step the weights have become of another kind.
            self._before = list(torch.split(torch.from_numpy(before), sizes))
        changes = measure(weight_changes(self._parameters, self._before))
        return partial(_given, Moved(names, changes, measure(self._before)))

    def rows(self) -> tuple[Rows, Rows]:
        """Of the changes, and of the weights before."""
        moved = self.moved()
        return moved.changes.rows, moved.before.rows

    def ratios(self) -> dict[str, float]:
        """Name → how far the step moved the weight, relative to its size."""
        return self.moved().ratios()


class Moved(NamedTuple):
    """Sampled weights: the tables of their changes, and of what they were before."""

    names: tuple[str, ...]
    changes: GradientTable
    before: GradientTable

    def ready(self) -> bool:
        """Whether both can be read without waiting for a device."""
        return self.changes.ready and self.before.ready

    def ratios(self) -> dict[str, float]:
        """Name → how far the step moved the weight, relative to its size."""
        return dict(zip(self.names, update_ratio(self.changes.rows, self.before.rows).tolist(), strict=True))


def _given(moved: Moved) -> Moved:
    return moved


def _spaced_in_place(parameters: list[torch.Tensor]) -> tuple[NDArray[Any], list[int]] | None:
    """The same elements, one tensor after the other, and how many of each; None unless all are fp32, or fp64, here.

    A few elements of a small model are there sooner than torch gets going with each of its tensors.
    """
    if not kernels.NATIVE or not parameters or on_device(parameters[0]):
        return None
    return kernels.native.spaced_elements(parameters, SAMPLE)


def _spaced(parameter: torch.Tensor) -> torch.Tensor:
    flat: torch.Tensor = local_part(parameter).reshape(-1)  # of a sharded weight, each rank samples its own part
    stride = max(1, flat.numel() // SAMPLE)
    return flat[::stride][:SAMPLE]
