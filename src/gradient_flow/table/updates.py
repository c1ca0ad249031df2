"""How far a step moved each weight, from a sample of its elements instead of a copy of all weights.

Before the step up to `SAMPLE` evenly spaced elements of each tensor are copied; after it the same elements are
compared. The ratio ||ΔW|| / ||W|| over the sample is exact for tensors of at most `SAMPLE` elements and an estimate for
larger ones, with a relative error of about 1 / sqrt(2 * SAMPLE): up to 2.4 % was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.sharding import local_part
from gradient_flow.table import columns
from gradient_flow.table.columns import Rows
from gradient_flow.table.measure import measure
from gradient_flow.table.table import GradientTable

SAMPLE: Final = 1024


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
        self._before = sample_weights(self._parameters)

    def moved(self) -> Moved:
        """How far they are from there now; on a device that is on its way then."""
        changes = measure(weight_changes(self._parameters, self._before))
        return Moved(self.names, changes, measure(self._before))

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


def _spaced(parameter: torch.Tensor) -> torch.Tensor:
    flat: torch.Tensor = local_part(parameter).reshape(-1)  # of a sharded weight, each rank samples its own part
    stride = max(1, flat.numel() // SAMPLE)
    return flat[::stride][:SAMPLE]
