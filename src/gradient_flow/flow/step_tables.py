"""The tables of a step: gradients as backward left them and after a clip, on one rank or put together from several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gradient_flow.capture.optimizer_steps import pending_scale, scale_now, scale_of_clip
from gradient_flow.capture.parameters import ClippedRow, ScaleAtClip, gradients_of
from gradient_flow.capture.sharding import any_sharded
from gradient_flow.flow.known_parameters import KnownParameters, Named
from gradient_flow.flow.rank_steps import RankSteps
from gradient_flow.record.look import LookRecord
from gradient_flow.table import GradientTable, measure
from gradient_flow.table.columns import Rows, Thresholds, scale_rows
from gradient_flow.table.measure import share_of_rank


class StepTables(NamedTuple):
    """The gradients of one step."""

    table: GradientTable
    """As backward left them, unscaled."""
    clipped: GradientTable | None
    """The same after clipping, where the step was clipped."""
    owed: LookRecord | None = None
    """An earlier look that is complete now that the ranks have put their parts together."""
    scale_at_clip: float = 1.0
    """The loss scale that was still in the gradients when they were clipped."""


class StepMeasure:
    """Measures steps, and remembers gradients from before the user's clip."""

    def __init__(self, known: KnownParameters, thresholds: Thresholds, process_group: Any, scaler: Any = None) -> None:
        self._known, self._thresholds, self._process_group = known, thresholds, process_group
        self._scaler = scaler
        self._before_clip: dict[str, ClippedRow] = {}
        self._clip_seen = False
        self.rank_steps: dict[int, RankSteps] = {}
        """Optimizer → its steps over the ranks, where its gradients lie on several."""

    def before_clip(self, parameters: Sequence[torch.Tensor]) -> Callable[[], None] | None:
        """Measure what is about to be clipped; what to call once it is. None if nothing of it is known here."""
        ours = [(name, p) for p in parameters if (name := self._known.name_of(p)) is not None]
        if not ours:
            return None
        self._clip_seen = True
        for steps in self.rank_steps.values():
            steps.clip_seen = True  # also where this rank has no gradient: all ranks must come to the same
        ours = [(name, p) for name, p in ours if p.grad is not None]
        noted = scale_now(self._scaler)
        for (name, p), row in zip(ours, self._rows_here(ours, noted), strict=True):
            earlier = self._before_clip.get(name)
            # Clipped twice, it came as it was before the first.
            self._before_clip[name] = earlier if earlier is not None and earlier.is_of(p) else ClippedRow(row, noted)

        def remember_which() -> None:
            for name, p in ours:
                if name in self._before_clip:
                    self._before_clip[name].mark(p)

        return remember_which

    def measure(self, optimizer: torch.optim.Optimizer | None, parameters: Named) -> StepTables:
        """The tables of the coming step, alone or together with the ranks that hold other parts of it."""
        clipped = {name: self._before_clip.pop(name) for name, _ in parameters if name in self._before_clip}
        # A step that was skipped after its clip left rows behind that are not of these gradients.
        valid = {name: clipped[name] for name, p in parameters if name in clipped and clipped[name].is_of(p)}
        noted = {each.scale for each in valid.values()}
        scales = {at_clip: scale_of_clip(at_clip, self._scaler, optimizer) for at_clip in noted}
        rows = {name: _unscaled(each.row, scales[each.scale]) for name, each in valid.items()}
        now, before, owed = self._measured(optimizer, parameters, rows)
        if not before:
            return StepTables(now, None, owed)
        mixed = np.array([before.get(name, row) for name, row in zip(now.names, now.rows, strict=True)])
        table = GradientTable(now.names, mixed, missing=now.missing, thresholds=now.thresholds)
        return StepTables(table, now, owed, max(scales.values(), default=1.0))

    def owed_here(self) -> list[LookRecord]:
        """Looks that are still owed, from this rank's part alone: at the end nobody is left to ask."""
        return [look for steps in self.rank_steps.values() if (look := steps.owed_here()) is not None]

    def _measured(
        self, optimizer: torch.optim.Optimizer | None, parameters: Named, before_clip: Mapping[str, Rows]
    ) -> tuple[GradientTable, Mapping[str, Rows], LookRecord | None]:
        scale, key = pending_scale(optimizer), id(optimizer)
        over_ranks = self._process_group is not None or any_sharded(p for _, p in parameters)
        if key not in self.rank_steps and over_ranks:
            self.rank_steps[key] = RankSteps(self._process_group, clip_seen=self._clip_seen)
        if key in self.rank_steps:
            return self.rank_steps[key].measure(parameters, before_clip, self._thresholds, scale)
        near_zero, very_large = (limit * scale for limit in self._thresholds)
        gradients = {name: parameter.grad for name, parameter in parameters}
        table = measure(gradients, near_zero=near_zero, very_large=very_large)
        return table.unscaled(scale, self._thresholds), before_clip, None

    def _rows_here(self, parameters: Named, noted: ScaleAtClip | None) -> Rows:
        """Of what lies on this rank only: ranks put their parts together once, when the step comes."""
        # Where no optimizer is unscaled yet, none of these gradients is: small and large are meant without the scale.
        scale = noted.scale if noted is not None and not noted.unscaled else 1.0
        limits = Thresholds(*(limit * scale for limit in self._thresholds))
        if not any_sharded(parameter for _, parameter in parameters):
            gradients = {name: parameter.grad for name, parameter in parameters}
            return measure(gradients, **limits._asdict()).rows
        share = share_of_rank(gradients_of(parameters), limits)
        if share.problem is not None:
            raise share.problem
        return share.rows


def _unscaled(row: Rows, scale: float) -> Rows:
    return row if scale == 1.0 else scale_rows(row, 1.0 / scale)
