"""SATURATION: activations that lie where they are flat."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gradient_flow.diagnosis.advice import by_itself
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.profile import activation_gain
from gradient_flow.diagnosis.network.record import Activation, AnalysisRecord
from gradient_flow.diagnosis.robust import fell_to
from gradient_flow.diagnosis.treatment import Advice, Treatment
from gradient_flow.diagnosis.words import percent, plain

FLAT_SHARE: Final = 0.5
"""Healthy set-ups have at most 0.04 of their entries there."""
_HEAD_BLOCKED: Final = 0.2
"""What the loss would lose if the head's input moved by its gradient, over the loss: about 1 for a head that fits."""
_LOSES: Final = -0.2
"""Decades that a saturated activation takes from the gradient; a healthy tanh takes 0.1."""
_FLAT_BESIDE: Final = 0.8
"""The same share beside the main path, where the gradient has another way."""
_HALF: Final = 0.5
"""Share of the first loss that is left where logits at their bounds keep a classifier from being sure. Of one that was
capped at ±0.5 it is 0.9; logits that a cap of 30 bounds are not flat."""
_BOTH_ENDS: Final = 0.02
"""Share of a gate's values at either end. One that is shut for all, or open for all, was set so by its bias."""

_LEAST_LOSSES: Final = 20
_AROUND_ZERO: Final = frozenset({"Tanh", "Hardtanh", "Softsign", "Atan"})
"""Activations whose range has zero in its middle: no gates."""


def saturation(record: AnalysisRecord) -> Iterator[Issue]:
    """Most entries of a bounded activation lie where it is flat."""
    flat = sorted((a for a in record.activations if _is_flat(record, a)), key=lambda a: record.position(a.layer))
    if not flat:
        return
    first = flat[0]
    deep = first.flat_share > 0.95 or first.mean_slope < 0.02
    severity = (
        IssueSeverity.CRITICAL if deep else IssueSeverity.HIGH if first.flat_share > 0.7 else IssueSeverity.MEDIUM
    )
    where = next((p for p in record.places if p.layer == first.layer and p.own_weights), None)
    rms = where.typical_rms if where is not None else math.nan
    shrink = f" by a factor of {plain(rms / 2, 2)}" if rms > 2 else ""
    is_first = where is not None and where.from_data
    data = by_itself(
        f"Standardise the input: its root mean square is {plain(record.input_rms)}; aim for 1.", "standardise"
    )
    weights = Advice(
        f"Scale the weights of `{first.layer}` down{shrink}: the input of the activation has a root mean square of "
        f"{plain(rms)}; aim for 1.",
        Treatment("rescale", {"factors": {first.layer: 2 / rms}}) if rms > 2 else None,
    )
    yield Issue(
        issue_type=IssueType.SATURATION,
        severity=severity,
        layer=first.layer,
        message=f"{percent(first.flat_share)} of the values of its {first.kind.lower()} are in the flat part; the mean "
        f"slope is {percent(first.mean_slope)} of the steepest.",
        evidence={
            "flat_share": first.flat_share,
            "flat_share_at_first": first.first_flat_share,
            "mean_slope": first.mean_slope,
            "input_rms": record.input_rms,
            "rms": rms,
        },
        cause="the inputs are far too large."
        if is_first and record.input_rms > 5
        else "the weights or targets are too large.",
        advice=([data, weights] if is_first and record.input_rms > 5 else [weights])
        + (
            ["Use a linear output: targets outside the range of the activation are out of reach."]
            if first.is_last
            else []
        ),
        step=1 if not first.first_flat_share <= FLAT_SHARE else None,
        consequences=tuple(
            Issue(
                issue_type=IssueType.SATURATION,
                severity=IssueSeverity.MEDIUM,
                layer=other.layer,
                message=f"{percent(other.flat_share)} of the values of its {other.kind.lower()} are in the flat part.",
            )
            for other in flat[1:]
        ),
    )


def _is_flat(record: AnalysisRecord, activation: Activation) -> bool:
    if not activation.flat_share > FLAT_SHARE:
        return False
    if activation.in_branch:
        lasting = min(activation.flat_share, activation.first_flat_share) > _FLAT_BESIDE
        is_gate = activation.kind not in _AROUND_ZERO
        return lasting and not (is_gate and not _BOTH_ENDS < activation.above < 1 - _BOTH_ENDS)
    if not activation.is_last:
        # In a net that has learnt, entries may be flat and the gradient still find its way through the others.
        gain = activation_gain(record, activation.layer)
        return gain is None or gain < _LOSES
    # A classifier that has learnt its task sits in the flat part too, with a loss as small as its gradient.
    if activation.kind == "Softmax" and record.classes is None:
        return False  # alone it says nothing; a second softmax in the loss makes it a fault
    if record.classes is not None and activation.kind != "Softmax":
        # What a softmax takes tells classes apart by its size, and grows until it is at its bounds.
        return not fell_to(record.losses, _HALF, _LEAST_LOSSES)
    place = next((p for p in reversed(record.places) if p.layer == activation.layer and p.own_weights), None)
    losses = [abs(loss) for loss in record.losses if math.isfinite(loss)]
    if place is None or place.typical_gradient is None or not losses:
        return False
    reach = math.sqrt(place.samples * place.size) * place.typical_gradient
    return reach < _HEAD_BLOCKED * sorted(losses)[len(losses) // 2]
