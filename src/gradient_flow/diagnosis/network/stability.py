"""UNSTABLE: a gradient norm that jumps from step to step, and updates that overshoot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median, pstdev
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import AnalysisRecord
from gradient_flow.diagnosis.network.updates import change_of_loss, largest_update
from gradient_flow.diagnosis.robust import fell_beyond_noise, goes_unfelt, middle_and_spread, spikes
from gradient_flow.diagnosis.words import plain, portion

LARGE: Final = 10.0
"""A spike is also this many times the median norm."""
NOISE: Final = 1.5
"""Variance of the logarithm of the norm from step to step."""
WILD: Final = 4.0
"""The same from which on a fall of the loss has to be beyond its own noise: 17-fold from step to step."""
ERRATIC: Final = 1.7
"""Robust deviation, in nats, of the logarithm of the norm while the weights stand still: batches alone make it."""
OVERSHOOT: Final = -0.3
"""Cosine between successive gradients: on a parabola it is negative where the step is longer than to the bottom."""
_LEAST_STEPS: Final = 8
FAR_OUT: Final = 100.0
"""Times the median norm from which on a spike counts whether or not the loss shows it."""


def unstable_norm(record: AnalysisRecord) -> Iterator[Issue]:
    """Single batches with a gradient far above all others, or noise without progress."""
    norms = record.norms
    finite = [norm for norm in norms if 0 < norm < math.inf]
    if len(finite) < _LEAST_STEPS:
        return
    at, middle = spikes(norms, least=_LEAST_STEPS, tall=LARGE), median(finite)
    change = change_of_loss(record)
    noise = _noise(finite)
    # A loss that wanders over decades, as that of importance weights does, falls now and then by chance.
    falls = change < 0.7 and (noise < WILD or fell_beyond_noise(record.losses))
    restless = record.trained and noise > NOISE and not falls
    erratic = not record.trained and not record.learnt and _is_erratic(finite)
    if not at and not restless and not erratic:
        return
    ratio = max(finite) / middle
    # Norms may be those of the last steps alone; losses are of all.
    shift = len(record.losses) - len(norms)
    lone = bool(at) and not restless and ratio < FAR_OUT and shift >= 0
    unfelt = lone and goes_unfelt(record.losses, [shift + i for i in at])
    seen = (
        f"{len(at):,} of {len(norms):,} steps spiked beyond {LARGE:g} × the median norm ({plain(middle, 2)}), up to "
        f"{plain(ratio, 2)} ×"
        if at
        else f"the gradient norm changes {plain(math.exp(math.sqrt(2 * noise)), 2)}-fold from step to step"
    )
    why = "the learning rate is at the edge of stability, or" if record.trained else ""
    yield Issue(
        issue_type=IssueType.UNSTABLE,
        severity=IssueSeverity.HIGH if ratio > FAR_OUT else IssueSeverity.LOW if unfelt else IssueSeverity.MEDIUM,
        layer="model",
        message=f"{seen}{_of_loss(change) if restless else ''}.",
        evidence={
            "spikes_at": [i + 1 for i in at],
            "largest_over_median": ratio,
            "noise": noise,
            "median_norm": middle,
        },
        cause=f"{why} a few samples or batches are on a different scale from the rest.".strip(),
        advice=[
            advice.clip_at(finite),
            "Limit the weight of single samples: cap importance weights, clip rewards, standardise targets."
            if erratic
            else "Look at the batches of those steps, and standardise the inputs."
            if at
            else "Use larger batches or a lower learning rate.",
        ],
        step=at[0] + 1 if at else 1,
    )


def _of_loss(change: float) -> str:
    if change < 0.7:
        return ", and the loss falls by no more than its noise"
    return f", and the loss does not fall (now {portion(change)} the first)"


def overshooting(record: AnalysisRecord) -> Iterator[Issue]:
    """Successive gradients point against each other while the loss does not fall."""
    cosines = [value for value in record.cosines if math.isfinite(value)]
    change = change_of_loss(record)
    if not record.trained or len(cosines) < _LEAST_STEPS or median(cosines) > OVERSHOOT or change < 0.9:
        return
    rate, ratio = record.learning_rate, largest_update(record)
    yield Issue(
        issue_type=IssueType.UNSTABLE,
        severity=IssueSeverity.HIGH if change > 2 or math.isnan(change) else IssueSeverity.MEDIUM,
        layer="model",
        message=f"each step overshoots: successive gradients point against each other (cosine {median(cosines):.2f}), "
        + (
            "and the loss is no longer finite."
            if math.isnan(change)
            else f"and the loss is {portion(change)} the first."
        ),
        evidence={"cosine": median(cosines), "loss_change": change, "learning_rate": rate},
        cause="the learning rate is beyond the edge of stability.",
        advice=[advice.lower_learning_rate(rate, ratio)],
        step=1,
    )


def _is_erratic(norms: Sequence[float]) -> bool:
    return middle_and_spread([math.log(norm) for norm in norms])[1] > ERRATIC


def _noise(norms: Sequence[float]) -> float:
    """Variance of the logarithm from step to step; a steady fall does not count."""
    logs = [math.log(norm) for norm in norms]
    steps = [later - earlier for earlier, later in pairwise(logs)]
    return pstdev(steps) ** 2 / 2
