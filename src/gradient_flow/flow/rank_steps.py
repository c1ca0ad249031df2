"""The recorded steps of an optimizer whose gradients lie on several ranks: all of a step in two collectives.

What a step has to merge waits for one packed exchange: the gradients as they are now, as they were before the user
clipped them, and how far the step before moved the weights. Which of these take part is settled by counting steps and
calls, never by what succeeded on one rank, so that all ranks come with buffers of the same length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradient_flow.capture.parameters import NamedGradients, gradients_of
from gradient_flow.record.look import LookRecord
from gradient_flow.table import GradientTable
from gradient_flow.table.across_ranks import Share
from gradient_flow.table.columns import COLUMNS, EMPTY, Rows, Thresholds
from gradient_flow.table.measure import merge_shares, share_of_rank
from gradient_flow.table.rank_names import RankNames
from gradient_flow.table.updates import WeightSample, update_ratio

Weights = Sequence[tuple[str, torch.Tensor]]


class RankSteps:
    """The steps of one optimizer, over the ranks of `group` or of the meshes that its parameters lie on."""

    def __init__(self, group: Any = None, *, clip_seen: bool = False) -> None:
        self.ranks = None if group is None else RankNames(group)
        self.clip_seen = clip_seen
        """Whether gradients of this optimizer were clipped since the last recorded step."""
        self._owed: LookRecord | None = None
        self._sample: WeightSample | None = None
        self._moved: tuple[tuple[str, ...], Rows, Rows] | None = None

    def measure(
        self, parameters: Weights, clipped: Mapping[str, Rows], limits: Thresholds, scale: float
    ) -> tuple[GradientTable, Mapping[str, Rows], LookRecord | None]:
        """The gradients, rows of the clipped ones as they were before, and the look that was owed.

        If it fails on one rank, it fails on all of them.
        """
        found = gradients_of(parameters)
        raw = Thresholds(limits.near_zero * scale, limits.very_large * scale)
        shares = [share_of_rank(found, raw)]
        with_clip = self.clip_seen or self.ranks is not None
        if with_clip:
            shares.append(_placed(found, clipped))
        owed, self._owed, self.clip_seen = self._owed, None, False
        if owed is not None:
            shares += self._movements(found)
        tables = merge_shares(shares, found, raw, self.ranks)
        before = dict(zip(tables[1].names, tables[1].rows, strict=True)) if with_clip else {}
        if owed is not None:
            owed.update_ratio = _ratios(owed.table, *tables[-2:])
        return tables[0].unscaled(scale, limits), before, owed

    def remember(self, look: LookRecord, parameters: Weights) -> None:
        """The look is to be completed with how far its step moves each weight."""
        self._owed, self._moved, self._sample = look, None, None
        self._sample = WeightSample([(name, p) for name, p in parameters if p.grad is not None])

    def step_is_done(self) -> None:
        """Look at the weights again, here; the ranks put it together with the next recorded step."""
        if self._sample is None:
            return
        sample, self._sample = self._sample, None
        self._moved = sample.names, *sample.rows()

    def owed_here(self) -> LookRecord | None:
        """What is owed, from this rank's part alone: at the end there is no further step to ask the others with."""
        if self._owed is None:
            return None
        look = self._owed
        names = () if look.table is None else look.table.names
        moved: list[dict[str, Rows]] = [{}, {}] if self._moved is None else [self._by_name(1), self._by_name(2)]
        full = (lambda name: name) if self.ranks is None else self.ranks.global_name
        changes, sizes = ({full(name): row for name, row in rows.items()} for rows in moved)
        look.update_ratio = update_ratio(_stack(names, changes), _stack(names, sizes))
        return look

    def _movements(self, found: NamedGradients) -> list[Share]:
        moved: list[dict[str, Rows]] = [{}, {}] if self._moved is None else [self._by_name(1), self._by_name(2)]
        # Sizes are left out on purpose: a sample is no part of a whole to be filled up.
        return [Share(found.order, _stack(found.order, rows), np.zeros(len(found.order))) for rows in moved]

    def _by_name(self, which: int) -> dict[str, Rows]:
        assert self._moved is not None
        rows: Any = self._moved[which]
        return dict(zip(self._moved[0], rows, strict=True))


def _placed(found: NamedGradients, rows: Mapping[str, Rows]) -> Share:
    whole = {name: float(gradient.numel()) for name, gradient in zip(found.names, found.gradients, strict=True)}
    sizes = np.array([whole[name] if name in rows and name in whole else -1.0 for name in found.order])
    return Share(found.order, _stack(found.order, rows), sizes)


def _stack(names: Sequence[str], rows: Mapping[str, Rows]) -> Rows:
    return np.array([rows.get(name, EMPTY) for name in names]).reshape(-1, len(COLUMNS))


def _ratios(table: GradientTable | None, changes: GradientTable, sizes: GradientTable) -> NDArray[np.float64]:
    names = () if table is None else table.names
    moved, whole = (dict(zip(t.names, t.rows, strict=True)) for t in (changes, sizes))
    return update_ratio(_stack(names, moved), _stack(names, whole))
