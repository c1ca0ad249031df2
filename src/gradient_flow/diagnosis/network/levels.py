"""The documented levels: gradient norm, share of zero gradients, coefficient of variation.

A level depends on the scale of the loss and on the size of a layer, so one beyond a default is a LOW remark: other
rules say more where ratios agree. A threshold that the user passed is taken at its word, and beyond it is HIGH.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import fmean, median, pstdev
from typing import Final, TypeVar

from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.network.record import AnalysisRecord, Layer
from gradient_flow.diagnosis.words import count, percent, plain, times

T = TypeVar("T")
_BY_USER: Final = "you set this threshold, so crossing it counts as a fault."
_ALONE: Final = {
    -1: "possibly harmless: a loss that is scaled down, or has converged, has small gradients too.",
    1: "possibly harmless: a loss that is scaled up (summed, weighted, a loss scale) has large gradients too.",
}


def gradient_levels(record: AnalysisRecord) -> Iterator[Issue]:
    """Layers whose gradient norm is below `vanishing_threshold`, or above `exploding_threshold`."""
    for name, kind, sign in (
        ("vanishing_threshold", IssueType.VANISHING, -1),
        ("exploding_threshold", IssueType.EXPLODING, 1),
    ):
        limit, explicit = record.thresholds[name], name in record.explicit
        norms = {layer.name: norm for layer in record.layers if (norm := _typical_norm(record, layer)) > 0}
        beyond = {layer: norm for layer, norm in norms.items() if sign * (norm - limit) > 0}
        if not beyond:
            continue
        where = max(beyond, key=lambda layer: sign * beyond[layer])
        severity = IssueSeverity.HIGH if explicit else IssueSeverity.LOW
        limited = f"{'below' if sign < 0 else 'above'} `{name}` ({limit:g})"
        also = f"; so is that of {count(len(beyond) - 1, 'other layer')}" if len(beyond) > 1 else ""
        yield Issue(
            issue_type=kind,
            severity=severity,
            layer=where,
            message=f"its gradient norm, {plain(beyond[where])}, is {limited}{also}.",
            evidence={name: limit, "gradient_norm": beyond[where], "layers": list(beyond)},
            cause=_BY_USER if explicit else _ALONE[sign],
            advice=["Compare layers with each other: their ratios do not depend on the scale of the loss."]
            if explicit
            else [
                "If the loss is scaled on purpose and falls, do nothing.",
                f"Otherwise average the loss, or pass `{name}` to set which norm is too {_TOO[sign]}.",
            ],
            step=1,
            consequences=tuple(
                Issue(
                    issue_type=kind,
                    severity=severity,
                    layer=layer,
                    message=f"its gradient norm, {plain(norm)}, is {limited}.",
                )
                for layer, norm in beyond.items()
                if layer != where
            ),
        )


_TOO: Final = {-1: "small", 1: "large"}


def zero_gradients(record: AnalysisRecord) -> Iterator[Issue]:
    """Layers most of whose gradient is exactly zero in every step, above `dead_threshold`."""
    limit, explicit = record.thresholds["dead_threshold"], "dead_threshold" in record.explicit
    for layer in record.layers:
        shares = [share for share in _of_finite_steps(record, layer.zero_share) if math.isfinite(share)]
        # Rows of an embedding that the batch does not use are not dead, and neither is a frozen layer.
        if not shares or not layer.trainable or layer.is_embedding or not min(shares) > limit:
            continue
        if not explicit and _is_sparse_by_design(record, layer, limit):
            continue
        units = f"; {percent(layer.idle_units)} of its units never get a gradient" if layer.idle_units else ""
        yield Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.HIGH if explicit else IssueSeverity.LOW,
            layer=layer.name,
            message=f"at least {percent(min(shares))} of its gradient is zero in every step, above `dead_threshold` "
            f"({limit:g})"
            f"{units}.",
            evidence={"zero_share": min(shares), "dead_threshold": limit, "idle_units": layer.idle_units},
            cause=_BY_USER if explicit else "units never fire, or the loss does not use their outputs.",
            advice=["Look for large negative biases, or for a part of the layer that these batches do not use."],
            step=1,
        )


def _is_sparse_by_design(record: AnalysisRecord, layer: Layer, limit: float) -> bool:
    """Whether zeros come from a mask, from sparse inputs, from weights that start at zero, or from an idle expert."""
    if layer.masked or layer.used_by_sibling:
        return True
    if layer.idle_units is not None and layer.idle_units <= limit:
        return True  # every unit gets a gradient: it is inputs that are zero, such as words that a batch does not hold
    if any(norm for norm in layer.gradient):
        return False
    # Nothing at all comes: behind a weight that starts at zero that lasts one step, and an expert may have no work.
    kind = _without_numbers(layer.name)
    works = (other for other in record.layers if other is not layer and any(norm for norm in other.gradient))
    shut = any(other.zero_weights or other.weight_norm == 0 for other in record.layers)
    return shut or any(_without_numbers(other.name) == kind for other in works)


def coefficient_of_variation(record: AnalysisRecord) -> Iterator[Issue]:
    """A gradient norm that varies from step to step by more than `unstable_cv_threshold` times its mean."""
    limit, explicit = record.thresholds["unstable_cv_threshold"], "unstable_cv_threshold" in record.explicit
    norms = [norm for norm in record.norms if math.isfinite(norm)]
    ratio = pstdev(norms) / fmean(norms) if len(norms) > 1 and fmean(norms) > 0 else 0.0
    if ratio > limit:
        yield Issue(
            issue_type=IssueType.UNSTABLE,
            severity=IssueSeverity.HIGH if explicit else IssueSeverity.LOW,
            layer="model",
            message=f"the standard deviation of the gradient norm is {times(ratio, 2)} its mean, above "
            f"`unstable_cv_threshold` ({limit:g}).",
            evidence={"coefficient_of_variation": ratio, "unstable_cv_threshold": limit},
            cause=_BY_USER
            if explicit
            else "a few batches are on a different scale, or the norm fell far during the run.",
            advice=["Use larger batches or a lower learning rate, or clip by norm."],
            step=1,
        )


def _typical_norm(record: AnalysisRecord, layer: Layer) -> float:
    """Median over the steps in which a finite gradient came; 0 where there is none, or nothing is trained."""
    norms = [norm for norm in _of_finite_steps(record, layer.gradient) if norm is not None and 0 < norm < math.inf]
    return median(norms) if norms and layer.trainable else 0.0


def _of_finite_steps(record: AnalysisRecord, values: Sequence[T]) -> list[T]:
    """Values of the watched steps, without those in which any gradient was NaN or Inf."""
    norms = record.norms
    bad = {at for at, step in enumerate(record.watched) if 0 <= step < len(norms) and not math.isfinite(norms[step])}
    return [value for at, value in enumerate(values) if at not in bad]


def _without_numbers(name: str) -> str:
    """The same for all members of a list of modules."""
    return re.sub(r"\d+", "*", name)
