"""The tables of a step: gradients as backward left them and after a clip, on one rank or put together from several."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from gradient_flow.capture.arrivals import LateNumber, on_device
from gradient_flow.capture.optimizer_steps import late_scale, scale_now, scale_of_clip
from gradient_flow.capture.parameters import ClippedRow, ScaleAtClip, gradients_of, named_gradients
from gradient_flow.capture.sharding import any_sharded
from gradient_flow.flow.known_parameters import KnownParameters, Named
from gradient_flow.flow.rank_steps import OwedLook, RankSteps, Talk
from gradient_flow.record.look import LookRecord
from gradient_flow.table import GradientTable, kernels, measure
from gradient_flow.table.across_ranks import Share
from gradient_flow.table.columns import Rows, Thresholds, scale_rows
from gradient_flow.table.kernels.pending import rows_of_tensor
from gradient_flow.table.measure import measure_found, reads_in_place, share_of_rank

if TYPE_CHECKING:
    from gradient_flow.table.kernels.native import InPlace

_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
"""Types of tensors that lie whole on this rank."""


class StepTables(NamedTuple):
    """The gradients of one step."""

    table: GradientTable
    """As backward left them, unscaled."""
    clipped: GradientTable | None
    """The same after clipping, where the step was clipped."""
    owed: OwedLook | None = None
    """An earlier look that is complete now that the ranks have put their parts together."""
    scales: tuple[float | LateNumber, ...] = ()
    """The loss scales that were still in gradients when they were clipped."""
    here: bool = False
    """Whether it is known to be `ready`, and need not be asked."""

    @property
    def ready(self) -> bool:
        """Whether all of it can be read without waiting for a device."""
        return self.table.ready and (self.clipped is None or self.clipped.ready)

    @property
    def scale_at_clip(self) -> float:
        """The largest of the scales."""
        return max(map(float, self.scales), default=1.0)


class _BeforeClip:
    """The rows of clipped gradients as they were before, without the loss scale."""

    def __init__(self, clipped: Mapping[str, ClippedRow], scales: Mapping[Any, Any]) -> None:
        self._clipped, self._scales = clipped, scales

    def ready(self) -> bool:
        """Whether all of them have come."""
        tables = (each.table for each in self._clipped.values())
        return all(table.ready for table in tables) and all(map(_is_ready, self._scales.values()))

    def rows(self) -> dict[str, Rows]:
        """By name; waits for a device."""
        scales = self._scales
        return {
            n: _unscaled(each.table[each.name]._row, float(scales[each.scale])) for n, each in self._clipped.items()
        }

    def on_device(self, names: Sequence[str]) -> torch.Tensor | None:
        """Rows for exactly these names, in their order, if one clip was of all of them; else None."""
        tables = {id(each.table): each.table for each in self._clipped.values()}
        if len(tables) != 1 or len(self._scales) != 1 or tuple(self._clipped) != tuple(names):
            return None
        table: GradientTable
        scale: float | LateNumber
        (table,), (scale,) = tables.values(), self._scales.values()
        if table.names != tuple(each.name for each in self._clipped.values()):
            return None
        rows = table.rows_on_device()
        if rows is None or (not isinstance(scale, LateNumber) and scale == 1.0):
            return rows
        return scale_rows(rows, scale.on_device.to(rows).reciprocal() if isinstance(scale, LateNumber) else 1.0 / scale)


class _Mixed:
    """Rows of a table, with those of clipped gradients as they were before."""

    def __init__(self, now: GradientTable, before: Callable[[], Mapping[str, Rows]], ready: Callable[[], bool]) -> None:
        self._now, self._before, self._ready = now, before, ready

    def ready(self) -> bool:
        """Whether all of them have come."""
        return self._now.ready and self._ready()

    def __call__(self) -> Rows:
        """The rows; waits for them where they have not come."""
        before, now = self._before(), self._now
        return np.array([before.get(name, row) for name, row in zip(now.names, now.rows, strict=True)])


def _is_ready(scale: float | LateNumber) -> bool:
    return not isinstance(scale, LateNumber) or scale.ready()


def _nobody() -> None:
    """No scaler was heard of."""


class StepMeasure:
    """Measures steps, and remembers gradients from before the user's clip."""

    def __init__(self, known: KnownParameters, thresholds: Thresholds, process_group: Any, scaler: Any = None) -> None:
        self._known, self.thresholds, self._process_group = known, thresholds, process_group
        self._in_place: bool | None = None if process_group is None else False
        self._given = scaler
        self._heard: Callable[[], Any] = _nobody
        self._before_clip: dict[str, ClippedRow] = {}
        self._clip_seen = False
        self.rank_steps: dict[int, RankSteps] = {}
        """Optimizer → its steps over the ranks, where its gradients lie on several."""
        self.talk: Talk | None = None
        """Who says something to the other ranks with each step."""

    @property
    def _scaler(self) -> Any:
        return self._heard() if self._given is None else self._given

    def hear_scaler(self, scaler: Any) -> None:
        """This scaler scaled the loss: it serves where the user named none."""
        if scaler is not None and scaler is not self._heard():
            self._heard = weakref.ref(scaler)

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
        table = self._table_here(ours, noted)
        for name, p in ours:
            earlier = self._before_clip.get(name)
            # Clipped twice, it came as it was before the first.
            if earlier is None or not earlier.is_of(p):
                self._before_clip[name] = ClippedRow(table, name, noted)

        def remember_which() -> None:
            for name, p in ours:
                if name in self._before_clip:
                    self._before_clip[name].mark(p)

        return remember_which

    def measure(self, optimizer: torch.optim.Optimizer | None, parameters: Named) -> StepTables:
        """The tables of the coming step, alone or together with the ranks that hold other parts of it."""
        usual = self._usual_table(optimizer, parameters)
        if usual is not None:
            return StepTables(usual, None, here=True)
        clipped = {name: self._before_clip.pop(name) for name, _ in parameters if name in self._before_clip}
        # A step that was skipped after its clip left rows behind that are not of these gradients.
        valid = {name: clipped[name] for name, p in parameters if name in clipped and clipped[name].is_of(p)}
        noted = {each.scale for each in valid.values()}
        scales = {at_clip: scale_of_clip(at_clip, self._scaler, optimizer) for at_clip in noted}
        clip = _BeforeClip(valid, scales)
        now, over_ranks, owed = self._measured(optimizer, parameters, clip)
        if id(optimizer) in self.rank_steps:
            if over_ranks is None or not len(over_ranks):
                return StepTables(now, None, owed)
            before = over_ranks
            late = _Mixed(now, lambda: dict(zip(before.names, before.rows, strict=True)), lambda: before.ready)
        elif not valid:
            return StepTables(now, None, owed)
        else:
            late = _Mixed(now, clip.rows, clip.ready)
        mixed: Any = late() if late.ready() else late
        table = GradientTable(now.names, mixed, missing=now.missing, thresholds=now.thresholds)
        return StepTables(table, now, owed, tuple(scales.values()))

    def _usual_table(self, optimizer: torch.optim.Optimizer | None, parameters: Named) -> GradientTable | None:
        """The table in the shortest way, for gradients that lie as they are in host memory; None for all others.

        On a small model the general way, by whatever holds gradients, takes as long as reading them.
        """
        names, gradients, missing = [], [], []
        for name, p in parameters:
            if type(p) not in _PLAIN:
                return None
            gradient = p.grad
            if gradient is None:
                missing.append(name)
            else:
                names.append(name)
                gradients.append(gradient)
        rows = self.in_place(optimizer, gradients)
        return None if rows is None else GradientTable(names, rows, missing=missing, thresholds=self.thresholds)

    def in_place(self, optimizer: torch.optim.Optimizer | None, gradients: list[Any]) -> InPlace | None:
        """Their rows, if they all lie in host memory as backward left them; else None."""
        if self._in_place is None:
            self._in_place = reads_in_place(self.thresholds)
        scaled = getattr(optimizer, "grad_scale", None) is not None
        if not self._in_place or scaled or self._before_clip or id(optimizer) in self.rank_steps:
            return None
        return kernels.native.rows_in_place(gradients, self.thresholds)

    def owed_here(self) -> list[LookRecord]:
        """Looks that are still incomplete, from this rank's part alone: at the end no further exchange takes place."""
        return [look for steps in self.rank_steps.values() if (look := steps.owed_here()) is not None]

    def _measured(
        self,
        optimizer: torch.optim.Optimizer | None,
        parameters: Named,
        before_clip: _BeforeClip,
    ) -> tuple[GradientTable, GradientTable | None, OwedLook | None]:
        """The table, what ranks together had before a clip where there are several, and a look that was owed."""
        scale, key = late_scale(optimizer), id(optimizer)
        over_ranks = self._process_group is not None or any_sharded(p for _, p in parameters)
        if key not in self.rank_steps and over_ranks:
            self.rank_steps[key] = RankSteps(self._process_group, clip_seen=self._clip_seen)
        if key in self.rank_steps:
            steps = self.rank_steps[key]
            return steps.measure(parameters, before_clip, self.thresholds, float(scale), self.talk)
        gradients = {name: parameter.grad for name, parameter in parameters}
        return self._unscaled_table(gradients, scale), None, None

    def _unscaled_table(self, gradients: Mapping[str, torch.Tensor | None], scale: float | LateNumber) -> GradientTable:
        """The table of gradients without a scale that is in them, by thresholds that are meant without it."""
        present = [gradient for gradient in gradients.values() if gradient is not None]
        if isinstance(scale, LateNumber) and present and all(map(on_device, present)):
            return measure_found(named_gradients(gradients), **self.thresholds._asdict(), scale=scale)
        factor = float(scale)
        limits = {name: limit * factor for name, limit in self.thresholds._asdict().items()}
        return measure(gradients, **limits).unscaled(factor, self.thresholds)

    def _table_here(self, parameters: Named, noted: ScaleAtClip | None) -> GradientTable:
        """Of what lies on this rank only: ranks put their parts together once, when the step comes."""
        # Where no optimizer is unscaled yet, none of these gradients is: small and large are meant without the scale.
        scale = noted.scale if noted is not None and not noted.unscaled else 1.0
        if not any_sharded(parameter for _, parameter in parameters):
            return self._measured_by(dict(parameters), scale)
        limits = Thresholds(*(limit * float(scale) for limit in self.thresholds))
        share = share_of_rank(gradients_of(parameters), limits)
        if share.problem is not None:
            raise share.problem
        return GradientTable(share.names, _rows_of(share))

    def _measured_by(self, parameters: Mapping[str, torch.Tensor], scale: float | LateNumber) -> GradientTable:
        """The table of gradients as they are, by thresholds times a scale."""
        gradients = {name: parameter.grad for name, parameter in parameters.items()}
        found = named_gradients(gradients)
        if isinstance(scale, LateNumber) and found.gradients and all(map(on_device, found.gradients)):
            return measure_found(found, **self.thresholds._asdict(), scale=scale, keep_scale=True)
        limits = {name: limit * float(scale) for name, limit in self.thresholds._asdict().items()}
        return measure(gradients, **limits)


def _rows_of(share: Share) -> Any:
    """As a table takes them: here, or on their way."""
    return share.rows if isinstance(share.rows, np.ndarray) else rows_of_tensor(share.rows)


def _unscaled(row: Rows, scale: float) -> Rows:
    return row if scale == 1.0 else scale_rows(row, 1.0 / scale)
