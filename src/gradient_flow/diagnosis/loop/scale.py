"""A loss whose weight is changed in the middle of a run: losses and norms on one scale, that of its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple, TypeVar

from gradient_flow.diagnosis.loop.record import LoopFacts, LoopLook
from gradient_flow.record.evidence import RunRecord, Series

_SAME: Final = 1.02
"""Two weights that differ by less are one."""
_CHANGED: Final = 2.0
"""From this factor on a weight was changed."""
_AGREES: Final = 2.0
"""How far the jump of the loss may be from that of its weight: batches differ."""
_FEW: Final = 3
"""Losses on either side of a jump whose medians are compared too."""

_S = TypeVar("_S", bound=Series)


class Change(NamedTuple):
    """The first step with another weight, and how many times the old one that is."""

    step: int
    factor: float


def on_one_scale(record: RunRecord, facts: LoopFacts) -> RunRecord:
    """The run as it would be, had the loss had its last weight from the start.

    What looks saw tells the weight: that which `backward` starts from, over what the one loss function gave. Where it
    jumps, so do the loss and all gradients, and nothing has happened to the weights of the model.
    """
    changes = _changes(record, facts)
    if not changes:
        return record
    return replace(
        record,
        totals=[_scaled(series, changes) for series in record.totals],
        losses=_times(record.losses, record.totals[0].steps, changes),
        layers=[_scaled(layer, changes) for layer in record.layers],
    )


def _changes(record: RunRecord, facts: LoopFacts) -> list[Change]:
    """Sudden ones. A weight that grows step by step leaves no jump to be found."""
    if len(record.totals) != 1 or len(record.totals[0].losses) != len(record.totals[0].steps) or facts.optimizers > 1:
        return []
    weights = [(look.step, _weight(look)) for look in facts.looks]
    known = [(step, weight) for step, weight in weights if weight is not None]
    if len(known) != len(weights):
        return []
    found = []
    for (start, before), (end, after) in pairwise(known):
        factor = after / before
        if max(factor, 1 / factor) >= _CHANGED:
            change = _jump(record.totals[0], start, end, factor)
            if change is None:
                return []
            found.append(change)
        elif max(factor, 1 / factor) > _SAME:
            return []
    return found


def _weight(look: LoopLook) -> float | None:
    """Of the one loss function of a step; None where there are several, or none."""
    if look.loss is None or look.backwards != 1 or len(look.calls) != 1:
        return None
    value = look.calls[0].value
    if value is None or not 0 < value < math.inf or not 0 < look.loss < math.inf:
        return None
    return look.loss / value


def _jump(series: Series, start: int, end: int, factor: float) -> Change | None:
    """Where the loss jumps by about as much, after one look and up to the next.

    Of a small batch alone the loss may be thrice that of another: a few on either side tell as well.
    """
    losses = series.losses
    jumps = [
        (abs(math.log(losses[at] / losses[at - 1] / factor)), at)
        for at in range(1, len(losses))
        if start < series.steps[at] <= end and losses[at - 1] > 0 and losses[at] > 0
    ]
    if not jumps:
        return None
    off, at = min(jumps)
    few = median(losses[max(0, at - _FEW) : at]), median(losses[at : at + _FEW])
    if min(few) > 0:
        off = min(off, abs(math.log(few[1] / few[0] / factor)))
    return Change(series.steps[at], factor) if off < math.log(_AGREES) else None


def _scaled(series: _S, changes: Sequence[Change]) -> _S:
    return replace(
        series,
        norms=_times(series.norms, series.steps, changes),
        clipped_norms=_times(series.clipped_norms, series.steps, changes),
        losses=_times(series.losses, series.steps, changes),
    )


def _times(values: Sequence[float], steps: Sequence[int], changes: Sequence[Change]) -> list[float]:
    """What is of before a change times its factor."""
    return [
        value * math.prod(change.factor for change in changes if step < change.step)
        for value, step in zip(values, steps, strict=False)
    ]
