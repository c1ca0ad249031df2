"""Looks at a training: what they leave to the run, which knows every step, is put in here."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Final

from gradient_flow.diagnosis.network import levels, stability
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.network.rules import NETWORK_RULES
from gradient_flow.record.evidence import RunRecord, Series

RULES: Final = tuple(
    rule for rule in NETWORK_RULES if rule not in (stability.unstable_norm, levels.coefficient_of_variation)
)
"""In a training norms are judged against those around them, which rules on steps do."""


def is_of_training(network: AnalysisRecord) -> bool:
    """Whether it comes from looks at a training; an analysis brings the norms of its own steps."""
    return network.trained and not network.norms and bool(network.watched)


def with_steps(network: AnalysisRecord, record: RunRecord) -> tuple[AnalysisRecord, list[int]]:
    """The network with losses and norms of the run, and the steps that their positions stand for."""
    # With several optimizers norms and losses of different things alternate: rules on steps judge each by itself.
    series = record.totals[0] if len(record.totals) == 1 else Series(name="", steps=[], norms=[])
    graded = {layer.name for layer in record.layers}
    layers = [
        replace(layer, gradient_seen=layer.gradient_seen or not graded.isdisjoint(layer.parameters))
        for layer in network.layers
    ]
    steps = series.steps or network.watched
    return (
        replace(
            network,
            steps=record.steps,
            norms=series.norms,
            losses=_losses(series),
            watched=[min(bisect_left(steps, step), len(steps) - 1) for step in network.watched],
            layers=layers,
        ),
        steps,
    )


def _losses(series: Series) -> list[float]:
    """One per step; where none was recorded, the one before. A loss that is not finite comes with a bad gradient."""
    known: list[float] = []
    for loss, norm in zip(series.losses, series.norms, strict=False):
        missing = math.isnan(loss) and math.isfinite(norm)
        known.append(known[-1] if missing and known else loss)
    return known if all(not math.isnan(loss) for loss in known[:1]) else []
