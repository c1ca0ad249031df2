"""The recorded steps of an optimizer whose gradients lie on several ranks: all of a step in two collectives.

What a step has to merge waits for one packed exchange: the gradients as they are now, as they were before the user
clipped them, and how far the step before moved the weights. Which of these take part is settled by counting steps and
calls, never by what succeeded on one rank, so that all ranks come with buffers of the same length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from gradient_flow.capture.parameters import NamedGradients, gradients_of
from gradient_flow.flow.recorder import MOST_OPEN
from gradient_flow.record.look import LookRecord
from gradient_flow.table import GradientTable
from gradient_flow.table.across_ranks import Said, Share
from gradient_flow.table.columns import COLUMNS, EMPTY, Rows, Thresholds
from gradient_flow.table.measure import merge_shares, share_of_rank
from gradient_flow.table.rank_names import RankNames
from gradient_flow.table.updates import Moved, WeightSample, update_ratio

Weights = Sequence[tuple[str, torch.Tensor]]


class BeforeClip(Protocol):
    """Gradients as they were before the user clipped them."""

    def rows(self) -> Mapping[str, Rows]:
        """By name; waits for a device."""

    def on_device(self, names: Sequence[str]) -> torch.Tensor | None:
        """Rows for exactly these names, in their order, where a device has them; else None."""


class Talk(Protocol):
    """Somebody who has a few numbers to say to the other ranks: they ride on the collectives of a step."""

    def says(self) -> Sequence[float]:
        """The numbers of this rank, at most `SAYABLE`; must not fail."""

    def hears(self, said: Said) -> None:
        """Their sums over the ranks; must not fail."""


class RankSteps:
    """The steps of one optimizer, over the ranks of `group` or of the meshes that its parameters lie on."""

    def __init__(self, group: Any = None, *, clip_seen: bool = False) -> None:
        self.ranks = None if group is None else RankNames(group)
        self.clip_seen = clip_seen
        """Whether gradients of this optimizer were clipped since the last recorded step."""
        self._owed: LookRecord | None = None
        self._sample: WeightSample | None = None
        self._moved: Moved | None = None
        self._unread: deque[GradientTable] = deque()
        """Tables of the last steps. Whether every rank could make its part shows when they are read."""

    def measure(
        self,
        parameters: Weights,
        clipped: BeforeClip,
        limits: Thresholds,
        scale: float,
        talk: Talk | None = None,
    ) -> tuple[GradientTable, GradientTable | None, OwedLook | None]:
        """The gradients, the clipped ones as they were before, and the look that was owed.

        If it fails on one rank, it fails on all of them, in the same step: on devices that is `MOST_OPEN` steps later.
        """
        if len(self._unread) >= MOST_OPEN:
            self._unread.popleft().wait()
        found = gradients_of(parameters)
        raw = Thresholds(limits.near_zero * scale, limits.very_large * scale)
        shares = [share_of_rank(found, raw)]
        with_clip = self.clip_seen or self.ranks is not None
        if with_clip:
            shares.append(_placed(found, clipped))
        owed, self._owed, self.clip_seen = self._owed, None, False
        if owed is not None:
            shares += self._movements(found)
        tables, said = merge_shares(shares, found, raw, self.ranks, () if talk is None else talk.says())
        if talk is not None:
            talk.hears(said)
        self._unread.append(tables[0])
        complete = None if owed is None else OwedLook(owed, *tables[-2:])
        return tables[0].unscaled(scale, limits), tables[1] if with_clip else None, complete

    def remember(self, look: LookRecord, parameters: Weights) -> None:
        """The look is to be completed with how far its step moves each weight."""
        self._owed, self._moved, self._sample = look, None, None
        self._sample = WeightSample([(name, p) for name, p in parameters if p.grad is not None])

    def step_is_done(self) -> None:
        """Look at the weights again, here; the ranks put it together with the next recorded step."""
        if self._sample is None:
            return
        sample, self._sample = self._sample, None
        self._moved = sample.moved()

    def owed_here(self) -> LookRecord | None:
        """What is owed, from this rank's part alone: at the end there is no further step to ask the others with."""
        if self._owed is None:
            return None
        look = self._owed
        names = () if look.table is None else look.table.names
        moved = self._movement()
        full = (lambda name: name) if self.ranks is None else self.ranks.global_name
        changes, sizes = ({full(name): row for name, row in rows.items()} for rows in moved)
        look.update_ratio = update_ratio(_stack(names, changes), _stack(names, sizes))
        return look

    def _movements(self, found: NamedGradients) -> list[Share]:
        # Sizes are left out on purpose: a sample is no part of a whole to be filled up.
        sizes = np.zeros(len(found.order))
        if self._moved is not None and self._moved.names == found.order:
            there = [table.rows_on_device() for table in (self._moved.changes, self._moved.before)]
            if all(rows is not None for rows in there):
                return [Share(found.order, rows, sizes) for rows in there if rows is not None]
        return [Share(found.order, _stack(found.order, rows), sizes) for rows in self._movement()]

    def _movement(self) -> list[dict[str, Rows]]:
        """Changes and weights by name, from this rank. On a device they were on their way since the last step."""
        if self._moved is None:
            return [{}, {}]
        tables = self._moved.changes, self._moved.before
        return [dict(zip(self._moved.names, table.rows, strict=True)) for table in tables]


def _placed(found: NamedGradients, clipped: BeforeClip) -> Share:
    there = clipped.on_device(found.order)
    if there is not None:
        return Share(found.order, there, np.array([float(gradient.numel()) for gradient in found.gradients]))
    rows = clipped.rows()
    whole = {name: float(gradient.numel()) for name, gradient in zip(found.names, found.gradients, strict=True)}
    sizes = np.array([whole[name] if name in rows and name in whole else -1.0 for name in found.order])
    return Share(found.order, _stack(found.order, rows), sizes)


def _stack(names: Sequence[str], rows: Mapping[str, Rows]) -> Rows:
    return np.array([rows.get(name, EMPTY) for name in names]).reshape(-1, len(COLUMNS))


class OwedLook(NamedTuple):
    """An earlier look, and how far its step moved the weights, as all ranks together know it."""

    look: LookRecord
    changes: GradientTable
    sizes: GradientTable

    def ready(self) -> bool:
        """Whether it can be completed without a wait."""
        return self.changes.ready and self.sizes.ready

    def complete(self) -> LookRecord:
        """The look with its update ratios."""
        names = () if self.look.table is None else self.look.table.names
        moved, whole = (dict(zip(table.names, table.rows, strict=True)) for table in (self.changes, self.sizes))
        self.look.update_ratio = update_ratio(_stack(names, moved), _stack(names, whole))
        return self.look
