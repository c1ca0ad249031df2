"""Rules over time, for what a run recorded: non-finite gradients, trends, spikes, update ratios, quiet layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from gradient_flow.diagnosis import advice
from gradient_flow.diagnosis.findings import Diagnosis
from gradient_flow.diagnosis.issue import Issue, IssueSeverity, IssueType
from gradient_flow.diagnosis.registry import Rule, apply_rules
from gradient_flow.diagnosis.robust import MAD_TO_SIGMA
from gradient_flow.diagnosis.run_record import LayerSeries, RunRecord
from gradient_flow.diagnosis.trend import norm_trend
from gradient_flow.diagnosis.update_rules import SUSPICIOUS, TOO_LARGE, TOO_SMALL

WINDOW: Final = 64
LEAST: Final = 16
FLOOR: Final = 0.1
SPIKE: Final = 6.0
"""Robust deviations of the logarithm of the norm above the median of the window before it; floor in nats."""
OFTEN: Final = 0.05
TALL: Final = 10.0
"""A single spike counts when it is also this many times the median."""
LOST: Final = -4.0
"""Decades from the last weights to the first, in gradients of weights, which see less than those of activations."""
_QUIET: Final = 3
_ENOUGH: Final = 2


def nonfinite_gradients(record: RunRecord) -> Iterator[Issue]:
    """Since when, and in which layer, gradients hold NaN or Inf."""
    if record.bad_step is None:
        return
    # Backward runs from the output to the input: what is bad nearest to the output was bad first.
    order = {layer.name: k for k, layer in enumerate(record.layers)}
    where = max(record.bad_layers, key=lambda name: order.get(name, -1), default="model")
    nan, inf = record.bad_counts
    counts = f" ({nan} NaN, {inf} Inf)" if nan + inf else ""
    more = f", with {len(record.bad_layers) - 1} other layers" if len(record.bad_layers) > 1 else ""
    before = [
        n for series in record.totals for s, n in zip(series.steps, series.norms, strict=True) if s < record.bad_step
    ]
    rising = _rises([norm for norm in before if math.isfinite(norm)])
    yield Issue(
        issue_type=IssueType.NUMERICAL,
        severity=IssueSeverity.CRITICAL,
        layer=where,
        step=record.bad_step,
        message=f"gradients are not finite{counts} for the first time{more}.",
        evidence={"layers": list(record.bad_layers), "nan": nan, "inf": inf, "norms_before": before[-3:]},
        cause="the norm was rising before: the run diverged."
        if rising
        else "one operation or one batch: the norms before it are ordinary.",
        advice=[
            advice.learning_rate_at_most(record.learning_rate, 0.0) if rising else "Look at the batch of that step.",
            "Run gf.GradientFlowAnalyzer on the model with that batch: it names the first place forward and backward.",
        ],
    )


def trends(record: RunRecord) -> Iterator[Issue]:
    """The norm falls to nothing or rises out of bounds over the run."""
    for series in record.totals:
        steps, norms = series.finite()
        found = norm_trend(norms)
        if found.status not in ("vanishing", "exploding"):
            continue
        falls = found.status == "vanishing"
        if falls and record.loss_change < 0.5:
            continue  # the loss fell as well: that is what training is for
        whole = abs(found.change) >= 2
        yield Issue(
            issue_type=IssueType.VANISHING if falls else IssueType.EXPLODING,
            severity=IssueSeverity.HIGH if whole else IssueSeverity.MEDIUM,
            layer=_most_changed(record.layers, -1 if falls else 1) or series.name,
            step=steps[found.indices[0]] if found.indices else None,
            message=found.message.replace("entry", "recorded step"),
            evidence={"decades": found.change, "decades_per_step": found.slope, "loss_change": record.loss_change},
            cause="units that saturate or die, or a learning rate that decayed too far."
            if falls
            else "a learning rate beyond the edge of stability.",
            advice=["Run gf.GradientFlowAnalyzer on the model as it is now: it sees activations, a run only weights."]
            if falls
            else [advice.clip_at(norms), "Lower the learning rate by a factor of 3 from before that step."],
        )
        return


def spikes(norms: Sequence[float]) -> list[int]:
    """Which norms stand out above the (at most 64) before them; one that does is not part of later comparisons.

    >>> spikes([1.0] * 20 + [50.0] + [1.0] * 5)
    [20]
    """
    found: list[int] = []
    window: list[float] = []
    for index, norm in enumerate(norms):
        if not 0 < norm < math.inf:
            continue
        value = math.log(norm)
        if len(window) >= LEAST:
            middle = median(window)
            spread = max(MAD_TO_SIGMA * median(abs(each - middle) for each in window), FLOOR)
            if (value - middle) / spread > SPIKE:
                found.append(index)
                continue
        window = [*window[-(WINDOW - 1) :], value]
    return found


def unstable_norm(record: RunRecord) -> Iterator[Issue]:
    """Spikes: often, or tall."""
    for series in record.totals:
        steps, norms = series.finite()
        at = spikes(norms)
        middle = median(norms) if norms else 0.0
        tall = max((norms[i] / middle for i in at), default=0.0) if middle > 0 else 0.0
        often = len(at) > OFTEN * max(len(norms), 1)
        if not at or not (often or tall >= TALL):
            continue
        yield Issue(
            issue_type=IssueType.UNSTABLE,
            severity=IssueSeverity.HIGH if often and tall >= TALL else IssueSeverity.MEDIUM,
            layer=series.name,
            step=steps[at[0]],
            message=f"{len(at)} of {len(norms)} recorded steps spike, up to {tall:.3g} times the median, {middle:.3g}.",
            evidence={
                "spikes": [steps[i] for i in at[:20]],
                "largest_over_median": tall,
                "share": len(at) / len(norms),
            },
            cause="single batches on another scale, or a learning rate at the edge of stability.",
            advice=[advice.clip_at(norms), f"Look at the batches of steps {', '.join(str(steps[i]) for i in at[:3])}."],
        )
        return


def update_ratios(record: RunRecord) -> Iterator[Issue]:
    """How far steps move the weights, relative to their size."""
    seen = {
        layer.name: [ratio for ratio in layer.update_ratios if not math.isnan(ratio)]
        for layer in record.layers
        if layer.is_weight
    }
    seen = {name: ratios for name, ratios in seen.items() if ratios}
    if not seen:
        return
    where = max(seen, key=lambda name: median(seen[name]))
    ratio = median(seen[where])
    stuck = not record.loss_change < 0.9
    if ratio > TOO_LARGE or (ratio > SUSPICIOUS and record.loss_change > 0.9):
        yield Issue(
            issue_type=IssueType.EXPLODING,
            severity=IssueSeverity.HIGH if ratio > TOO_LARGE else IssueSeverity.MEDIUM,
            layer=where,
            message=f"a step moves its weights by {ratio:.2g} of their size (1e-3 is usual).",
            evidence={"update_ratio": ratio, "learning_rate": record.learning_rate, "loss_change": record.loss_change},
            cause="the learning rate is too large for this optimizer.",
            advice=[advice.learning_rate_at_most(record.learning_rate, ratio)],
        )
    elif ratio < TOO_SMALL and stuck:
        known = not math.isnan(record.loss_change)
        yield Issue(
            issue_type=IssueType.SLOW,
            severity=IssueSeverity.MEDIUM if known else IssueSeverity.LOW,
            layer=where,
            message=f"no step moves a weight matrix by more than {ratio:.2g} of its size (1e-3 is usual)"
            + (", and the loss does not fall." if known else "."),
            evidence={"update_ratio": ratio, "learning_rate": record.learning_rate, "loss_change": record.loss_change},
            cause="the learning rate is far too small, or the run has converged.",
            advice=[advice.learning_rate_up_to(record.learning_rate, ratio)],
        )


def quiet_layers(record: RunRecord) -> Iterator[Issue]:
    """Layers whose gradient is exactly zero in the last tables, and was not in an earlier one, or never came."""
    found = []
    for layer in record.layers:
        zero = [norm == 0 for norm in layer.norms]
        if len(zero) >= _QUIET and all(zero[-_QUIET:]):
            since = len(zero) - next((k for k, each in enumerate(reversed(zero)) if not each), len(zero))
            found.append((layer, since))
    if found and len(found) < len(record.layers):
        layer, since = found[0]
        yield Issue(
            issue_type=IssueType.DEAD,
            severity=IssueSeverity.HIGH,
            layer=layer.name,
            step=layer.steps[since],
            message=f"its gradient is exactly zero in the last {len(layer.norms) - since} tables"
            + (f", and so is that of {len(found) - 1} other tensors." if len(found) > 1 else "."),
            evidence={"layers": [each.name for each, _ in found], "tables": len(layer.norms)},
            cause="units that died (after a large update, if it had a gradient before), or a part that no batch uses.",
            advice=[
                "Lower the learning rate and start again from before that step." if since else "Check that it is used."
            ],
        )


def lost_over_depth(record: RunRecord) -> Iterator[Issue]:
    """Gradients of the first weights are a ten-thousandth of those of the last."""
    weights = [layer for layer in record.layers if layer.is_weight and layer.elements and layer.norms]
    sizes = [_per_element(layer) for layer in weights]
    known = [(layer, size) for layer, size in zip(weights, sizes, strict=True) if size > 0]
    if len(known) < 4:
        return
    logs = [math.log10(size) for _, size in known]
    drops = [later - earlier for earlier, later in pairwise(logs)]
    fall = logs[0] - max(logs[-2:])
    if fall <= LOST and sum(drop > 0 for drop in drops) >= 0.6 * len(drops):
        yield Issue(
            issue_type=IssueType.VANISHING,
            severity=IssueSeverity.HIGH,
            layer=known[0][0].name,
            message=f"the gradient of the first weights is 1/{10**-fall:.3g} of that of the last.",
            evidence={"decades": fall, "profile": {layer.name: size for layer, size in known}},
            cause="squashing activations or small initial weights in a deep stack.",
            advice=["Add normalisation or skip connections, or initialise for the activation (He for ReLU)."],
        )


def clipped_share(record: RunRecord) -> Iterator[Issue]:
    """Clipping that acts on most steps sets the step size instead of catching spikes."""
    if len(record.clipped) < LEAST:
        return
    share = sum(after < before * (1 - 1e-6) for before, after in record.clipped) / len(record.clipped)
    if share > 0.5:
        norms = [before for before, _ in record.clipped if math.isfinite(before)]
        yield Issue(
            issue_type=IssueType.UNSTABLE,
            severity=IssueSeverity.LOW,
            layer="model",
            message=f"{share:.0%} of the steps are clipped: the limit sets the step size, it no longer catches spikes.",
            evidence={"clipped_share": share, "median_norm": median(norms) if norms else math.nan},
            cause="a limit below the usual norm.",
            advice=[advice.clip_at(norms)] if norms else [],
        )


RUN_RULES: Final[tuple[Rule, ...]] = (
    nonfinite_gradients,
    trends,
    unstable_norm,
    update_ratios,
    quiet_layers,
    lost_over_depth,
    clipped_share,
)


def judge_run(record: RunRecord) -> Diagnosis:
    """The diagnosis of a run: non-finite gradients take in whatever else they bring about."""
    issues = apply_rules(record, RUN_RULES, "run")
    bad = next((issue for issue in issues if issue.issue_type is IssueType.NUMERICAL), None)
    if bad is not None:
        follows = [i for i in issues if i is not bad and (i.step is None or i.step >= (bad.step or 0))]
        issues = [issue for issue in issues if issue not in follows]
    return Diagnosis(issues, steps=record.steps, enough=record.steps >= _ENOUGH)


def _rises(norms: Sequence[float]) -> bool:
    return len(norms) >= _QUIET and norms[-1] > TALL * median(norms)


def _per_element(layer: LayerSeries) -> float:
    finite = [norm / math.sqrt(count) for norm, count in zip(layer.norms, layer.elements, strict=True) if norm > 0]
    return median(finite) if finite else 0.0


def _most_changed(layers: Sequence[LayerSeries], sign: int) -> str | None:
    changes = {
        layer.name: sign * math.log(layer.norms[-1] / layer.norms[0])
        for layer in layers
        if len(layer.norms) > 1 and 0 < layer.norms[0] < math.inf and 0 < layer.norms[-1] < math.inf
    }
    return max(changes, key=lambda name: changes[name]) if changes else None
